"""
What a producer says about itself: so many messages of this topic, in this window of time.

A report must survive what a log at least once does to it: it may come twice, late, or in the wrong
order, and one may be missing. So reports do not add up: each says the whole count so far of one
I{series}, which is one topic and window of one producer's life, and has a number that grows. Of the
reports of a series the one with the largest number counts. A lost one is made good by the next.
(Rejected: reporting increments, of which each one lost or doubled is a false alarm or a hidden
hole.)

What is counted are messages whose sending has succeeded, and, apart, those whose outcome is not
known. Who has failed to send has been told so.

A count alone does not see a message that is lost while another one is doubled. So beside it stands
the sum of the CRC-32s of the same messages, which does not depend on their order, and adds up over
reports as counts do. (Rejected: an exclusive or, in which every pair of doubles cancels out; a
number in each envelope, which would name the lost ones, and would have an auditor remember what it
has seen of every producer.) Whoever does not know the messages' bytes counts without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from pylogbroker.errors import FormatError

SENT = "sent"
SEEN = "seen"
ROLES = (SENT, SEEN)
REPORT_SIZE_MAX = 16 << 10
NAME_LENGTH_MAX = 4_096
INT_MAX = 2**63 - 1
CHECKSUM_MODULUS = 1 << 53
"""Sums stay below it: every reader of JSON can represent that exactly."""

OPEN_COUNT_MAX = 10_000
WINDOW_MS_MAX = 7 * 24 * 3_600_000
FUTURE_MS_MAX = 24 * 3_600_000
"""
A time that is further ahead is nobody's: windows that never end would fill the books, of who sends
and of who audits.
"""


def addChecksums(one: int | None, other: int | None) -> int | None:
    """
    The sum, below L{CHECKSUM_MODULUS}.

    @return: L{None} when either is not known.
    """
    return None if one is None or other is None else (one + other) % CHECKSUM_MODULUS


class CountReport(NamedTuple):
    """
    One report.

    @ivar role: L{SENT} by a producer, or L{SEEN} by somebody at the other end, who counts for a
        tier.
    @ivar tier: where: a name for a cluster or a warehouse.
    @ivar startMs: where the window begins; a multiple of C{windowMs}.
    @ivar windowMs: how long the window is.
    @ivar messageCount: messages so far.
    @ivar unknownCount: messages that may have been sent or not.
    @ivar source: whose report this is: unique to one life of one program.
    @ivar series: which topic and window of this source; a number.
    @ivar sequence: which report of this series; the largest counts.
    @ivar host: the machine.
    @ivar timeMs: when this was reported.
    @ivar checksum: the sum of the CRC-32s of the C{messageCount} messages' payloads as they are in
        the log, modulo L{CHECKSUM_MODULUS}; L{None}: not known.
    """

    role: str
    tier: str
    topic: str
    startMs: int
    windowMs: int
    messageCount: int
    unknownCount: int
    source: str
    series: int
    sequence: int
    host: str
    timeMs: int
    checksum: int | None = None

    def encode(self) -> bytes:
        """As a message of the audit topic: JSON, of one level."""
        return json.dumps({"audit": 1, **self._asdict()}, separators=(",", ":")).encode()


def decodeReport(data: bytes) -> CountReport:
    """
    @raise FormatError: it is none. Anything may stand in a topic.
    """
    if len(data) > REPORT_SIZE_MAX:
        raise FormatError(f"{len(data)} bytes are no count report")
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no count report: {error}") from error
    if not isinstance(found, dict) or found.get("audit") != 1:
        raise FormatError("no count report: not an object with audit = 1")
    values: list[Any] = [found.get(name) for name in _NEEDED]
    for name, value, kind in zip(_NEEDED, values, _KINDS, strict=True):
        isGood = type(value) is kind and (
            0 <= value <= INT_MAX if kind is int else len(value) <= NAME_LENGTH_MAX
        )
        if not isGood:
            raise FormatError(f"no count report: {name} is {str(value)[:40]!r}")
    checksum = found.get("checksum")
    if checksum is not None and (type(checksum) is not int or not 0 <= checksum < CHECKSUM_MODULUS):
        raise FormatError(f"no count report: checksum is {str(checksum)[:40]!r}")
    report = CountReport._make((*values, checksum))
    if (
        report.role not in ROLES
        or not 1 <= report.windowMs <= WINDOW_MS_MAX
        or report.startMs % report.windowMs
    ):
        raise FormatError("no count report: a role or a window that cannot be")
    return report


_NEEDED = CountReport._fields[:-1]
_KINDS: tuple[Any, ...] = (str, str, str, int, int, int, int, str, int, int, str, int)


class _Cell:
    """One series under way."""

    __slots__ = (
        "checksum",
        "count",
        "reported",
        "sequence",
        "series",
        "startMs",
        "topic",
        "unknownCount",
    )

    def __init__(self, topic: str, startMs: int, series: int) -> None:
        self.topic = topic
        self.startMs = startMs
        self.series = series
        self.count = self.unknownCount = self.sequence = 0
        self.checksum: int | None = 0
        self.reported: tuple[int, int] = (0, 0)


class WindowCounter:
    """
    Counts for one program's life, and makes the reports.

    @ivar leftOutCount: messages that could not be counted, since too many windows were open, or
        since their times cannot be.
    """

    def __init__(
        self,
        source: str,
        host: str,
        tier: str,
        windowMs: int,
        role: str = SENT,
        openCountMax: int = OPEN_COUNT_MAX,
    ) -> None:
        """
        @param source: unique to this life of this program.
        @param openCountMax: topics and windows that are counted at a time.
        """
        self.leftOutCount = 0
        self.windowMs = windowMs
        self._identity = (source, host, tier, role)
        self._openCountMax = openCountMax
        self._cells: dict[tuple[str, int], _Cell] = {}
        self._series = 0

    def __len__(self) -> int:
        return len(self._cells)

    def add(
        self,
        topic: str,
        timeMs: int,
        count: int = 1,
        unknownCount: int = 0,
        checksum: int | None = None,
        latestMs: int = INT_MAX,
    ) -> None:
        """
        Messages of a time.

        @param latestMs: a window that begins later is not counted.
        @param checksum: the sum of the CRC-32s of the C{count} messages' payloads; L{None}: not
            known, and then that of the window is not, either.
        """
        startMs = timeMs - timeMs % self.windowMs
        cell = self._cells.get((topic, startMs))
        if cell is None:
            if len(self._cells) >= self._openCountMax or not 0 <= startMs <= latestMs:
                self.leftOutCount += count + unknownCount
                return
            cell = self._cells[topic, startMs] = _Cell(topic, startMs, self._series)
            self._series += 1
        cell.count += count
        cell.unknownCount += unknownCount
        if count:
            cell.checksum = addChecksums(cell.checksum, checksum)

    @property
    def dueCount(self) -> int:
        """Series of which a report is due."""
        return sum(
            cell.reported != (cell.count, cell.unknownCount) for cell in self._cells.values()
        )

    def due(self, nowMs: int) -> list[CountReport]:
        """A report of each series that has changed since its last one that has arrived."""
        source, host, tier, role = self._identity
        reports = []
        for cell in self._cells.values():
            if cell.reported != (cell.count, cell.unknownCount):
                cell.sequence += 1
                reports.append(
                    CountReport(
                        role, tier, cell.topic, cell.startMs, self.windowMs, cell.count, cell.unknownCount, source, cell.series, cell.sequence, host, nowMs,
                        cell.checksum,
                    )
                )  # fmt: skip
        return reports

    def arrived(self, report: CountReport) -> None:
        """A report has been sent."""
        cell = self._cells.get((report.topic, report.startMs))
        if cell is not None and cell.series == report.series:
            cell.reported = max(cell.reported, (report.messageCount, report.unknownCount))

    def forget(self, beforeMs: int) -> None:
        """
        Let go of windows that ended before a time, and whose last report has arrived. What still
        comes for one of them begins a series of its own.
        """
        for place in self._ended(beforeMs):
            del self._cells[place]

    def _ended(self, beforeMs: int) -> Iterable[tuple[str, int]]:
        return [
            place
            for place, cell in self._cells.items()
            if cell.startMs + self.windowMs <= beforeMs
            and cell.reported == (cell.count, cell.unknownCount)
        ]
