"""
Writes two log files of one day, for readers who have none: C{error.log}, as an Apache web server
writes it, and C{auth.log}, as sshd writes it.

    python samplelogs.py

The same seed gives the same files.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

MIDNIGHT = datetime(2026, 3, 4, tzinfo=UTC)
EVENT_COUNT = 600


def eventTimes(random: Random) -> list[datetime]:
    """Times of events in one day, more of them at noon than at midnight."""
    return sorted(
        MIDNIGHT + timedelta(seconds=int(random.triangular(0, 86_399)))
        for _number in range(EVENT_COUNT)
    )


def apacheLines(random: Random) -> Iterator[str]:
    """Lines of Apache's error log."""
    for time in eventTimes(random):
        level, message = random.choice(
            (
                ("notice", "workerEnv.init() ok /etc/httpd/conf/workers2.properties"),
                ("notice", "jk2_init() Found child 6725 in scoreboard slot 10"),
                ("error", "mod_jk child workerEnv in error state 6"),
                ("error", "[client %s] Directory index forbidden by rule: /var/www/html/"),
                ("warn", "[client %s] request failed: URI too long"),
            )
        )
        yield f"[{time:%a %b %d %H:%M:%S %Y}] [{level}] {message.replace('%s', address(random))}"


def sshdLines(random: Random) -> Iterator[str]:
    """Lines of sshd: most clients guess passwords, some know theirs."""
    for number, time in enumerate(eventTimes(random)):
        client, process = address(random), 2000 + number
        isKnown = random.random() < 0.15
        outcome = f"Accepted password for anna from {client}" if isKnown else ""
        messages = (
            f"Connection from {client} port 50022",
            outcome or f"Failed password for root from {client} port 50022 ssh2",
            "pam_unix(sshd:session): session opened for user anna"
            if isKnown
            else f"Received disconnect from {client}: 11: Bye Bye [preauth]",
        )
        for message in messages:
            yield f"{time:%b %d %H:%M:%S} web1 sshd[{process}]: {message}"


def address(random: Random) -> str:
    """One of 20 clients, at an address that is reserved for documentation."""
    return f"192.0.2.{random.randrange(1, 21)}"


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", help="where to write the files (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the random numbers (%(default)s)")
    options = parser.parse_args()
    for name, lines in (
        ("error.log", apacheLines(Random(options.seed))),
        ("auth.log", sshdLines(Random(options.seed + 1))),
    ):
        path, text = Path(options.folder, name), [f"{line}\n" for line in lines]
        path.write_text("".join(text), encoding="ascii")
        print(f"{path}: {len(text)} lines")
