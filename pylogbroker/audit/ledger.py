"""
What was sent and what was seen, side by side: the books of an audit, and what they say.

What must be true: a hole is never hidden by what is not known, and nothing is called a hole that may still arrive. So a window is judged when it has ended
and some grace is over; what cannot be entered into the books, since they are full or a report does not fit the windows, is counted and said.

Messages whose time nobody knows were entered under the time at which they were read. Their windows mean nothing about when they were sent, so a topic
with such messages is judged by its total alone: all that was seen, against what was sent in the windows that are over. That is never a
false alarm, and may be a late one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pylogbroker.audit.counts import SENT, CountReport

CELL_COUNT_MAX = 200_000
SERIES_COUNT_MAX = 500_000
TIER_COUNT_MAX = 100

COMPLETE = "complete"
MISSING = "missing"
MORE = "more"
OPEN = "open"
UNREPORTED = "unreported"
ARRIVAL = "arrival"
"""A window of messages whose time is not known; see the total."""

TOTAL_START = -1


class Line(NamedTuple):
    """
    What is known about one topic, window and tier.

    @ivar startMs: where the window begins; -1 for the total of a topic and tier.
    @ivar expectedCount: messages that ought to be there.
    @ivar unknownCount: messages that may be there in addition.
    @ivar seenCount: messages that are there.
    @ivar arrivalCount: of these, those whose time was not known, but only when they were read.
    @ivar reference: what C{expectedCount} is: C{"sent"}, or the name of a tier when nobody has said what was sent.
    @ivar status: one of the words above.
    """

    topic: str
    startMs: int
    tier: str
    expectedCount: int
    unknownCount: int
    seenCount: int
    arrivalCount: int
    reference: str
    status: str

    @property
    def missingCount(self) -> int:
        """Messages that are missing for certain."""
        return max(0, self.expectedCount - self.seenCount)

    @property
    def completeness(self) -> float | None:
        """The part that is there; more than 1 for more than was sent, L{None} where nothing was expected."""
        return self.seenCount / self.expectedCount if self.expectedCount else None


@dataclass(frozen=True)
class Comparison:
    """
    What an audit has found.

    @ivar lines: of windows, by topic, window and tier.
    @ivar totals: of topics and tiers, over the windows that are over.
    @ivar notes: what limits what can be said, a sentence each.
    @ivar isCertain: whether everything could be entered into the books; if not, a hole may be hidden, or be none.
    """

    windowMs: int
    nowMs: int
    lines: Sequence[Line]
    totals: Sequence[Line]
    notes: Sequence[str] = ()
    isCertain: bool = True

    @property
    def missing(self) -> list[Line]:
        """Holes: of windows, and of totals where windows mean nothing."""
        return [line for line in self.lines if line.status == MISSING] + [line for line in self.totals if line.status == MISSING and line.arrivalCount]

    @property
    def isComplete(self) -> bool:
        """Whether nothing is missing that ought to be there."""
        return not self.missing


class _Seen:
    """Of a tier, topic and window."""

    __slots__ = ("arrivalCount", "count")

    def __init__(self) -> None:
        self.count = self.arrivalCount = 0


class Ledger:
    """
    The books.

    @ivar windowMs: of the windows that are compared.
    @ivar leftOutCount: messages that were not entered, since the books are full.
    @ivar leftOutReportCount: the same of reports.
    @ivar misfitCount: reports whose windows do not divide ours.
    """

    def __init__(self, windowMs: int, *, cellCountMax: int = CELL_COUNT_MAX, seriesCountMax: int = SERIES_COUNT_MAX) -> None:
        """
        @param cellCountMax: tiers, topics and windows with messages.
        @param seriesCountMax: series of reports; see L{pylogbroker.audit.counts}.
        """
        self.windowMs = windowMs
        self.leftOutCount = self.leftOutReportCount = self.misfitCount = 0
        self._sinceMs = 0
        self._cellCountMax = cellCountMax
        self._seriesCountMax = seriesCountMax
        self._seen: dict[tuple[str, str, int], _Seen] = {}
        self._reports: dict[tuple[str, int], CountReport] = {}

    def startOf(self, timeMs: int) -> int:
        """Where the window of a time begins."""
        return timeMs - timeMs % self.windowMs

    def see(self, tier: str, topic: str, startMs: int, count: int, isArrival: bool = False) -> None:
        """
        Messages that are there.

        @param startMs: of their window.
        @param isArrival: their time is not known; the window is that in which they were read.
        """
        if startMs < self._sinceMs:
            return
        cell = self._seen.get((tier, topic, startMs))
        if cell is None:
            if len(self._seen) >= self._cellCountMax:
                self.leftOutCount += count
                return
            cell = self._seen[tier, topic, startMs] = _Seen()
        cell.count += count
        if isArrival:
            cell.arrivalCount += count

    def enter(self, report: CountReport) -> None:
        """A report; of a series the one with the largest number counts, whenever it comes."""
        if report.startMs + report.windowMs <= self._sinceMs:
            return
        if self.windowMs % report.windowMs:
            self.misfitCount += 1
            return
        key = report.source, report.series
        known = self._reports.get(key)
        if known is None and len(self._reports) >= self._seriesCountMax:
            self.leftOutReportCount += 1
        elif known is None or known.sequence < report.sequence:
            self._reports[key] = report

    def forgetBefore(self, timeMs: int) -> None:
        """Let go of windows that begin before a time, and take nothing more for them."""
        self._sinceMs = max(self._sinceMs, self.startOf(timeMs + self.windowMs - 1))
        self._seen = {key: cell for key, cell in self._seen.items() if key[2] >= self._sinceMs}
        self._reports = {key: report for key, report in self._reports.items() if self.startOf(report.startMs) >= self._sinceMs}

    @property
    def reportedTopics(self) -> set[str]:
        """Topics of which somebody has said what was sent."""
        return {report.topic for report in self._reports.values()}

    def compare(self, tiers: Sequence[str], nowMs: int, graceMs: int, topics: Collection[str] | None = None, notes: Sequence[str] = ()) -> Comparison:
        """
        Judge.

        @param tiers: what was counted; the first is the measure where nobody has said what was sent. Tiers that others have counted come behind them.
        @param graceMs: how long after its end a window may still be on its way.
        @param topics: only these.
        @param notes: what else there is to say.
        """
        sent, seen, allTiers = self._gather(tiers)
        byArrival = {(tier, topic) for (tier, topic, _start), (_count, arrival) in seen.items() if arrival}
        windows: dict[str, set[int]] = {}
        for topic, startMs in (*sent, *((topic, startMs) for _tier, topic, startMs in seen)):
            windows.setdefault(topic, set()).add(startMs)
        reported = {topic for topic, _start in sent}
        lines: list[Line] = []
        totals: list[Line] = []
        for topic in sorted(windows):
            if topics is not None and topic not in topics:
                continue
            measure = None if topic in reported or not allTiers else allTiers[0]
            for tier in allTiers:
                some = []
                for startMs in sorted(windows[topic]):
                    count, arrival = seen.get((tier, topic, startMs), _NOTHING)
                    expected, unknown = sent.get((topic, startMs), _NOTHING) if measure is None else (seen.get((measure, topic, startMs), _NOTHING)[0], 0)
                    status = OPEN if startMs + self.windowMs + graceMs > nowMs else _judge(expected, unknown, count, tier == measure)
                    if (tier, topic) in byArrival and status != OPEN:
                        status = ARRIVAL
                    some.append(Line(topic, startMs, tier, expected, unknown, count, arrival, measure or "sent", status))
                lines += some
                totals.append(_total(some, tier == measure, (tier, topic) in byArrival))
        isCertain = not (self.leftOutCount or self.leftOutReportCount or self.misfitCount)
        lines.sort(key=lambda line: (line.topic, line.startMs))
        return Comparison(self.windowMs, nowMs, lines, totals, (*notes, *self._notes(byArrival)), isCertain)

    def _gather(self, tiers: Sequence[str]) -> tuple[dict[tuple[str, int], tuple[int, int]], dict[tuple[str, str, int], tuple[int, int]], list[str]]:
        """
        The sums.

        @return: by topic and window, what was sent and what may have been; by tier, topic and window, what was seen and how much of that by arrival; the tiers.
        """
        sent: dict[tuple[str, int], tuple[int, int]] = {}
        seen = {key: (cell.count, cell.arrivalCount) for key, cell in self._seen.items()}
        allTiers = dict.fromkeys(tiers)
        for report in self._reports.values():
            topic, startMs = report.topic, self.startOf(report.startMs)
            if report.role == SENT:
                count, unknown = sent.get((topic, startMs), _NOTHING)
                sent[topic, startMs] = count + report.messageCount, unknown + report.unknownCount
            elif report.tier in allTiers or len(allTiers) < TIER_COUNT_MAX:
                allTiers[report.tier] = None
                count, arrival = seen.get((report.tier, topic, startMs), _NOTHING)
                seen[report.tier, topic, startMs] = count + report.messageCount, arrival
        return sent, seen, list(allTiers)

    def _notes(self, byArrival: set[tuple[str, str]]) -> list[str]:
        notes = [
            f"{topic} in {tier}: messages without an envelope, whose time nobody knows; their windows mean when they were read, and only the total is judged"
            for tier, topic in sorted(byArrival)
        ]
        if self.leftOutCount:
            notes.append(f"{self.leftOutCount} messages were not counted: there are too many topics and windows")
        if self.leftOutReportCount:
            notes.append(f"{self.leftOutReportCount} reports were not counted: there are too many producers, topics and windows")
        if self.misfitCount:
            notes.append(f"{self.misfitCount} reports have windows that do not divide {self.windowMs} ms, and were not counted")
        return notes


_NOTHING = (0, 0)


def _judge(expected: int, unknown: int, count: int, isMeasure: bool) -> str:
    """Of a window that is over, or of a total."""
    if isMeasure:
        return UNREPORTED
    if count < expected:
        return MISSING
    return COMPLETE if count <= expected + unknown else MORE


def _total(lines: Sequence[Line], isMeasure: bool, isArrival: bool) -> Line:
    """Of one topic and tier: over the windows that are over, but all that was read where nobody knows into which window it belongs."""
    over = [line for line in lines if line.status != OPEN]
    read = lines if isArrival else over
    expected, unknown = sum(line.expectedCount for line in over), sum(line.unknownCount for line in over)
    count, arrival = sum(line.seenCount for line in read), sum(line.arrivalCount for line in read)
    status = _judge(expected, unknown, count, isMeasure)
    if isArrival and status == MORE and len(over) < len(lines):
        status = COMPLETE  # what is more may belong to the windows that are not over
    return Line(lines[0].topic, TOTAL_START, lines[0].tier, expected, unknown, count, arrival, lines[0].reference, status)
