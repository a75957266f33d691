"""
Lines of web servers' logs as records with a schema.

What a line means is decided here, once, where it is published; all who read the topic get the same
words for it:

  - Apache's error log (the form of 2.0 and 2.2): the level is the line's. A line of level C{error}
    or worse is an error, any other is none. Only lines about a request name a client.
  - OpenSSH's log, as syslog writes it: it has no levels, but for C{error:} and C{fatal:} at a
    line's beginning. What can succeed or fail there is a log-in: C{Failed …} is an error,
    C{Accepted …} is none, all other lines are neither. Lines that do not name their client get that
    of their process, since sshd has one for each connection. "message repeated 5 times: [ Failed
    …]" stands for five.

Neither log has a time zone: times are taken for UTC. Syslog has no year, either: that is the
caller's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "LogLine",
    "namespace": "pylogbroker.examples",
    "fields": [
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "level", "type": "string"},
        {
            "name": "client",
            "type": ["null", "string"],
            "default": None,
            "doc": "its address, where it is known",
        },
        {
            "name": "outcome",
            "type": ["null", "string"],
            "default": None,
            "doc": "ok or error; null for what can be neither",
        },
        {"name": "count", "type": "int", "default": 1, "doc": "how many equal lines it stands for"},
        {"name": "message", "type": "string"},
    ],
}

APACHE = re.compile(
    r"\[(\w{3} \w{3} +\d+ [\d:]{8} \d{4})\] \[(\w+)\] (?:\[client ([^\]]+)\] )?(.*)"
)
APACHE_ERRORS = {"error", "crit", "alert", "emerg"}

SSHD = re.compile(r"(\w{3} +\d+ [\d:]{8}) \S+ sshd\[(\d+)\]: (.*)")
SSHD_CLIENT = re.compile(r".*(?:\b(?:from|by) |\brhost=|\[)(\d+\.\d+\.\d+\.\d+)(?=[\s\]:]|$)")
"""
The last one, and not a part of a host's name: clients choose the names that stand before it, and
those of their hosts.
"""
SSHD_LEVEL = re.compile(r"(error|fatal): ")
SSHD_REPEATED = re.compile(r"message repeated (\d+) times: \[ ?(.*)\]")
SSHD_OUTCOMES = {"Failed": "error", "Accepted": "ok"}

Record = dict[str, Any]


class ApacheLines:
    """Reads an error log of Apache's."""

    def read(self, line: str) -> Record | None:
        """The record of a line; L{None}: it is no such line."""
        found = APACHE.fullmatch(line)
        if found is None:
            return None
        time, level, client, message = found.groups()
        when = datetime.strptime(time, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
        return {
            "time": when,
            "level": level,
            "client": client,
            "outcome": "error" if level in APACHE_ERRORS else "ok",
            "count": 1,
            "message": message,
        }


class SshdLines:
    """
    Reads sshd's lines in a log of syslog's. Remembers the client of each process: there are no more
    of them than the system has process ids.
    """

    def __init__(self, year: int) -> None:
        self._year = year
        self._clients: dict[str, str] = {}

    def read(self, line: str) -> Record | None:
        """The record of a line; L{None}: it is no such line."""
        found = SSHD.fullmatch(line)
        if found is None:
            return None
        time, process, message = found.groups()
        when = datetime.strptime(f"{self._year} {time}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
        named = SSHD_CLIENT.match(message)
        if named is not None:
            self._clients[process] = named[1]
        level = SSHD_LEVEL.match(message)
        repeated = SSHD_REPEATED.fullmatch(message)
        count, told = (int(repeated[1]), repeated[2]) if repeated is not None else (1, message)
        return {
            "time": when,
            "level": "info" if level is None else level[1],
            "client": self._clients.get(process),
            "outcome": SSHD_OUTCOMES.get(told.partition(" ")[0]),
            "count": count,
            "message": message,
        }


def records(
    lines: Iterable[bytes], read: Callable[[str], Record | None], strange: Callable[[str], None]
) -> Iterator[Record]:
    """
    The records of a file.

    @param read: of one line.
    @param strange: is told each line that is none, and not empty.
    """
    for line in lines:
        text = line.decode(errors="replace").rstrip("\r\n")
        try:
            record = read(text)
        except ValueError:  # a 31st of February
            record = None
        if record is not None:
            yield record
        elif text.strip():
            strange(text)
