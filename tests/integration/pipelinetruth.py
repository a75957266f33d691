"""
What the pipeline's examples should find, in plain Python: of the same lines and events, but of
nothing else that the examples are made of. Lines are taken apart by their words here, not by
patterns; sessions and windows are made by walking.

Where loghub is not there, lines of the same form take its place; some odd ones are always added.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from tests.integration.logfiles import LOGHUB

YEAR = 2016
GAP = timedelta(minutes=30)
LINE_COUNT = 2000

ODD_APACHE = b"""\
[Sat Dec 31 23:50:00 2005] [error] [client 192.0.2.7] Directory index forbidden by rule: /var/www/html/\r
[Sun Jan  1 00:19:59 2006] [warn] [client 192.0.2.7] a line within half an hour, in another year
[Sun Jan 01 00:50:00 2006] [crit] [client 192.0.2.7] a line after a longer break
[Sun Jan 01 00:50:00 2006] [info] caf\xe9 without a client [error]
[Sun Jan 01 00:50:00] [error] no year

not a line at all \xff\xfe
[Thu Feb 30 00:50:00 2006] [error] no day
""".split(b"\n")
ODD_APACHE_STRANGE_COUNT = 3

ODD_OPENSSH = b"""\
Dec 31 01:00:00 LabSZ sshd[9001]: Connection from 192.0.2.9 port 22
Dec 31 01:00:01 LabSZ sshd[9001]: Failed password for invalid user from 203.0.113.1 from 192.0.2.9 port 52683 ssh2
Dec 31 01:00:02 LabSZ sshd[9001]: message repeated 3 times: [ Failed password for invalid user x from 192.0.2.9 port 52683 ssh2]
Dec 31 01:00:03 LabSZ sshd[9003]: pam_unix(sshd:auth): authentication failure; rhost=192.0.2.9.example.com  user=root
Dec 31 01:30:02 LabSZ sshd[9001]: Accepted password for fztu from 192.0.2.9 port 52683 ssh2
Dec 31 02:40:00 LabSZ sshd[9001]: pam_unix(sshd:session): session opened for user fztu by (uid=0)
Dec 31 03:00:00 LabSZ sshd[9002]: Server listening on :: port 22.
Dec 31 03:00:00 LabSZ cron[9002]: no line of sshd's
""".split(b"\n")
ODD_OPENSSH_STRANGE_COUNT = 1


class Fact(NamedTuple):
    """What a line says."""

    topic: str
    time: datetime
    level: str
    client: str | None
    outcome: str | None
    lineCount: int

    @property
    def hour(self) -> str:
        return iso(self.time.replace(minute=0, second=0))


def iso(time: datetime) -> str:
    """As the examples write times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


# -- lines -----------------------------------------------------------------------------------------


def apacheLines() -> list[bytes]:
    """An error log."""
    if LOGHUB.is_dir():
        return (LOGHUB / "Apache_2k.log").read_bytes().split(b"\n")
    random, time, lines = Random(1), datetime(2005, 12, 4, 4, tzinfo=UTC), []
    for _number in range(LINE_COUNT):
        time += timedelta(seconds=random.choice((0, 1, 30, 200)))
        level, message = random.choice(
            (
                ("notice", "workerEnv.init() ok"),
                ("error", "mod_jk child in error state 6"),
                ("error", "[client 198.51.100.%d] no"),
            )
        )
        lines.append(
            f"[{time:%a %b %d %H:%M:%S %Y}] [{level}]"
            f" {message.replace('%d', str(random.randrange(40)))}\r".encode()
        )
    return lines


def opensshLines() -> list[bytes]:
    """A log of sshd's."""
    if LOGHUB.is_dir():
        return (LOGHUB / "OpenSSH_2k.log").read_bytes().split(b"\n")
    random, time, lines = Random(2), datetime(YEAR, 12, 10, 6, 55, tzinfo=UTC), []
    for number in range(LINE_COUNT // 4):
        time += timedelta(seconds=random.choice((0, 5, 60, 100)))
        head = f"{time:%b %d %H:%M:%S} LabSZ sshd[{24200 + number}]: "
        client = f"198.51.100.{random.randrange(30)}"
        outcome = random.choice(("Failed", "Failed", "Failed", "Accepted"))
        bodies = (
            f"Invalid user admin from {client}",
            "pam_unix(sshd:auth): check pass; user unknown",
            f"{outcome} password for root from {client} port {number} ssh2",
            f"Received disconnect from {client}: 11: Bye Bye [preauth]",
        )
        lines += [f"{head}{body}\r".encode() for body in bodies]
    return lines


def apacheFacts(lines: Iterable[bytes]) -> list[Fact]:
    """What an error log says; nothing of lines that are none."""
    found = []
    for line in lines:
        pieces = line.decode("latin-1").strip().split("] ")
        try:
            time = datetime.strptime(pieces[0], "[%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
        except ValueError:
            continue
        level = pieces[1].lstrip("[")
        client = pieces[2].removeprefix("[client ") if pieces[2].startswith("[client ") else None
        found.append(
            Fact("apache", time, level, client, "error" if level in ("error", "crit") else "ok", 1)
        )
    return found


def addressIn(message: str) -> str | None:
    """The last IPv4 address."""
    words = message.replace("rhost=", " ").translate(str.maketrans("[]:,;", "     ")).split()
    addresses = [word for word in words if word.count(".") == 3 and word.replace(".", "").isdigit()]
    return addresses[-1] if addresses else None


def opensshFacts(lines: Iterable[bytes]) -> list[Fact]:
    """What a log of sshd's says."""
    found = []
    clients: dict[str, str] = {}
    for line in lines:
        head, _colon, message = line.decode("latin-1").strip().partition("]: ")
        words = head.split()
        if len(words) != 5 or not words[4].startswith("sshd["):
            continue
        time = datetime.strptime(f"{YEAR} {' '.join(words[:3])}", "%Y %b %d %H:%M:%S").replace(
            tzinfo=UTC
        )
        client = addressIn(message)
        if client is not None:
            clients[words[4]] = client
        level = message.split(":")[0] if message.startswith(("error:", "fatal:")) else "info"
        count = 1
        if message.startswith("message repeated"):
            count = int(message.split()[2])
            message = message.split("[ ")[1]
        outcome = (
            "error"
            if message.startswith("Failed ")
            else "ok"
            if message.startswith("Accepted ")
            else None
        )
        found.append(Fact("openssh", time, level, clients.get(words[4]), outcome, count))
    return found


# -- figures ---------------------------------------------------------------------------------------


def sessionsOf(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    """Sessions, sorted."""
    found: dict[tuple[str, str], list[list[Fact]]] = defaultdict(list)
    for fact in sorted(facts, key=lambda fact: fact.time):
        if fact.client is None:
            continue
        own = found[fact.topic, fact.client]
        if own and fact.time - own[-1][-1].time <= GAP:
            own[-1].append(fact)
        else:
            own.append([fact])
    sessions = [
        {
            "topic": topic,
            "client": client,
            "begin": iso(session[0].time),
            "end": iso(session[-1].time),
            "lines": len(session),
            "errors": sum(fact.lineCount for fact in session if fact.outcome == "error"),
        }
        for (topic, client), own in found.items()
        for session in own
    ]
    return sorted(sessions, key=lambda row: (row["topic"], row["begin"], row["client"]))


def reportOf(facts: list[Fact]) -> dict[str, list[dict[str, Any]]]:
    """The whole report."""
    sessions = sessionsOf(facts)
    beginning = Counter((session["topic"], session["begin"][:13]) for session in sessions)
    hours = []
    for topic, hour in sorted({(fact.topic, fact.hour) for fact in facts}):
        own = [fact for fact in facts if (fact.topic, fact.hour) == (topic, hour)]
        attempts = sum(fact.lineCount for fact in own if fact.outcome is not None)
        errors = sum(fact.lineCount for fact in own if fact.outcome == "error")
        rate = errors / attempts if attempts else None
        row = {
            "topic": topic,
            "hour": hour,
            "lines": len(own),
            "attempts": attempts,
            "errors": errors,
            "errorRate": rate,
        }
        hours.append({**row, "sessions": beginning[topic, hour[:13]]})
    levels: Counter[tuple[str, str, str]] = Counter()
    for fact in facts:
        levels[fact.topic, fact.hour, fact.level] += fact.lineCount
    named = [
        {"topic": topic, "hour": hour, "level": level, "count": count}
        for (topic, hour, level), count in sorted(levels.items())
    ]
    return {"hours": hours, "levels": named, "sessions": sessions}


def ratesOf(
    impressions: Iterable[bytes],
    clicks: Iterable[bytes],
    campaigns: dict[str, str],
    windowSeconds: int,
) -> dict[tuple[str, str], tuple[int, int]]:
    """
    How many ads were shown, and how many of these were clicked, of each campaign and window; by
    campaign and the window's begin.
    """
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for index, events in enumerate((impressions, clicks)):
        for event in map(json.loads, events):
            seconds = event["shown"] // 1000
            begin = datetime.fromtimestamp(seconds - seconds % windowSeconds, UTC)
            counts[campaigns[event["ad"]], iso(begin)][index] += 1
    return {key: (shown, clicked) for key, (shown, clicked) in counts.items()}
