"""
A producer's reports: the number of messages of a topic in a window of time.

A report must survive an at-least-once log: it may be duplicated, late, out of order, or lost. So a
report gives the whole count of one I{series} (one topic and window of one run of a producer) and a
growing number. The report with the largest number of a series counts, and the next one repairs a
lost one. (Rejected: reports of increments, where each lost or doubled one is a false alarm or a
hidden hole.)

Messages count when their sending has succeeded. Messages with an unknown outcome are counted apart;
the application knows about failed ones.

A count alone does not notice a lost message when another one is doubled. So a report also has the
sum of the CRC-32s of the messages, which is independent of their order and adds up. (Rejected: an
exclusive or, in which pairs cancel out; a number in each envelope, for which an auditor would have
to remember what it has seen of every producer.) A counter without the messages' bytes leaves the
sum out.

Messages of a transaction count together or not at all: a L{CountBatch} holds them until it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pylogbroker.errors import FormatError

SENT = "sent"
SEEN = "seen"
ROLES = (SENT, SEEN)

IN_ENVELOPE = "envelope"
IN_PAYLOAD = "payload"
"""Only the application can read the time by which a message was counted."""

IN_RECORD = "record"
"""The timestamp of today's records."""

REPORT_SIZE_MAX = 16 << 10
NAME_LENGTH_MAX = 4_096
INT_MAX = 2**63 - 1
CHECKSUM_MODULUS = 1 << 53
"""Sums stay below it: every reader of JSON can represent that exactly."""

OPEN_COUNT_MAX = 10_000
WINDOW_MS_MAX = 7 * 24 * 3_600_000
FUTURE_MS_MAX = 24 * 3_600_000
"""
Milliseconds. A message whose time is further ahead is counted in no window: windows that never end
would fill the memory of the sender and of the auditor.
"""


def addChecksums(one: int | None, other: int | None) -> int | None:
    """
    The sum modulo L{CHECKSUM_MODULUS}.

    @return: L{None} if either is unknown.
    """
    return None if one is None or other is None else (one + other) % CHECKSUM_MODULUS


class CountReport(NamedTuple):
    """
    One report.

    @ivar role: L{SENT} by a producer, or L{SEEN} by a program that counts for a tier.
    @ivar tier: the name of a cluster or a lake.
    @ivar startMs: the start of the window, a multiple of C{windowMs}.
    @ivar windowMs: the length of the window.
    @ivar messageCount: messages so far.
    @ivar unknownCount: messages with an unknown outcome.
    @ivar source: the id of one run of a program.
    @ivar series: the number of a topic and window of this source.
    @ivar sequence: the number of the report in its series; the largest counts.
    @ivar host: the machine.
    @ivar timeMs: the time of the report.
    @ivar checksum: the sum of the CRC-32s of the C{messageCount} payloads as they are in the log
        (of today's records: the values), modulo L{CHECKSUM_MODULUS}; L{None} if unknown.
    @ivar timeSource: where a sent message has the time by which it was counted: L{IN_ENVELOPE},
        L{IN_PAYLOAD} or L{IN_RECORD}; anything else: unknown.
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
    timeSource: str = ""

    def encode(self) -> bytes:
        """As a message of the audit topic: flat JSON."""
        fields = {"audit": 1, **self._asdict()}
        if not self.timeSource:
            del fields["timeSource"]
        return json.dumps(fields, separators=(",", ":")).encode()


def decodeReport(data: bytes) -> CountReport:
    """@raise FormatError: the payload is no report. A topic may hold anything."""
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
    timeSource = found.get("timeSource", "")
    if type(timeSource) is not str or len(timeSource) > NAME_LENGTH_MAX:
        raise FormatError(f"no count report: timeSource is {str(timeSource)[:40]!r}")
    report = CountReport._make((*values, checksum, timeSource))
    if (
        report.role not in ROLES
        or not 1 <= report.windowMs <= WINDOW_MS_MAX
        or report.startMs % report.windowMs
    ):
        raise FormatError("no count report: a role or a window that cannot be")
    return report


_NEEDED = CountReport._fields[:-2]
_KINDS: tuple[Any, ...] = (str, str, str, int, int, int, int, str, int, int, str, int)


@dataclass(slots=True)
class _Cell:
    """One open series."""

    topic: str
    startMs: int
    series: int
    count: int = 0
    unknownCount: int = 0
    sequence: int = 0
    checksum: int | None = 0
    reported: tuple[int, int] = (0, 0)

    @property
    def isDue(self) -> bool:
        """Whether it has changed since its last published report."""
        return self.reported != (self.count, self.unknownCount)


class CountBatch:
    """
    Sent messages that count together or not at all.

    @ivar leftOutCount: messages beyond the limit.
    """

    def __init__(self, windowMs: int, cellCountMax: int = OPEN_COUNT_MAX) -> None:
        """
        @param windowMs: as of the L{WindowCounter}.
        @param cellCountMax: the limit of topics and windows.
        """
        self.leftOutCount = 0
        self._windowMs = windowMs
        self._cellCountMax = cellCountMax
        self._cells: dict[tuple[str, int], tuple[int, int | None]] = {}

    def add(self, topic: str, timeMs: int, checksum: int | None) -> None:
        """Note a message; the arguments are those of L{WindowCounter.add}."""
        key = topic, timeMs - timeMs % self._windowMs
        known = self._cells.get(key)
        if known is None and len(self._cells) >= self._cellCountMax:
            self.leftOutCount += 1
            return
        count, total = known or (0, 0)
        self._cells[key] = count + 1, addChecksums(total, checksum)

    def __iter__(self) -> Iterator[tuple[str, int, int, int | None]]:
        """Topic, start of the window, count and checksum of each cell."""
        for (topic, startMs), (count, checksum) in self._cells.items():
            yield topic, startMs, count, checksum


class WindowCounter:
    """
    Counts for one run of a program, and makes the reports.

    @ivar leftOutCount: uncounted messages: too many windows were open, or their times are
        impossible.
    """

    def __init__(
        self,
        source: str,
        host: str,
        tier: str,
        windowMs: int,
        role: str = SENT,
        openCountMax: int = OPEN_COUNT_MAX,
        timeSource: str = "",
    ) -> None:
        """
        @param source: the id of this run.
        @param openCountMax: the limit of open topics and windows.
        @param timeSource: as of L{CountReport}.
        """
        self.leftOutCount = 0
        self.windowMs = windowMs
        self._identity = (source, host, tier, role)
        self._timeSource = timeSource
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
        Count messages.

        @param latestMs: windows that begin later are not counted.
        @param checksum: the sum of the CRC-32s of the C{count} payloads; L{None} makes the window's
            sum unknown.
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
        """The number of series with an unpublished change."""
        return sum(cell.isDue for cell in self._cells.values())

    def due(self, nowMs: int) -> list[CountReport]:
        """A report for each series that has changed since its last published report."""
        source, host, tier, role = self._identity
        reports = []
        for cell in self._cells.values():
            if cell.isDue:
                cell.sequence += 1
                reports.append(
                    CountReport(
                        role, tier, cell.topic, cell.startMs, self.windowMs,
                        cell.count, cell.unknownCount, source, cell.series, cell.sequence,
                        host, nowMs, cell.checksum, self._timeSource,
                    )
                )  # fmt: skip
        return reports

    def arrived(self, report: CountReport) -> None:
        """A report was published."""
        cell = self._cells.get((report.topic, report.startMs))
        if cell is not None and cell.series == report.series:
            cell.reported = max(cell.reported, (report.messageCount, report.unknownCount))

    def forget(self, beforeMs: int) -> None:
        """
        Drop windows that ended before a time and are published. Later messages for them begin a new
        series.
        """
        self._cells = {
            key: cell
            for key, cell in self._cells.items()
            if cell.isDue or cell.startMs + self.windowMs > beforeMs
        }
