"""
Aggregates what producers sent and what each tier has, and compares both.

What must be true: missing knowledge never hides a hole, and a message that may still arrive is no
hole. So a window is judged when it and its grace period are over. Messages and reports that do not
fit are counted and named in the result.

A message without a known time counts in the window in which it was read. Such windows say nothing
about the time of sending, so a topic with such messages is judged by its total: all messages seen
against those sent in the ended windows. That is never a false alarm, and may be a late one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pylogbroker.audit.comparison import (
    ARRIVAL,
    NOTHING,
    OPEN,
    Comparison,
    Line,
    WindowTally,
    judge,
    lineOf,
    total,
)
from pylogbroker.audit.counts import SENT, CountReport

CELL_COUNT_MAX = 200_000
SERIES_COUNT_MAX = 500_000
TIER_COUNT_MAX = 100


class AuditAggregator:
    """
    The counts of one audit.

    @ivar windowMs: the length of the compared windows.
    @ivar leftOutCount: messages beyond the limits.
    @ivar leftOutReportCount: reports beyond the limits.
    @ivar misfitCount: reports whose windows do not divide ours.
    """

    def __init__(
        self,
        windowMs: int,
        *,
        cellCountMax: int = CELL_COUNT_MAX,
        seriesCountMax: int = SERIES_COUNT_MAX,
    ) -> None:
        """
        @param cellCountMax: the limit of tiers, topics and windows with messages.
        @param seriesCountMax: the limit of report series; see L{pylogbroker.audit.counts}.
        """
        self.windowMs = windowMs
        self.leftOutCount = self.leftOutReportCount = self.misfitCount = 0
        self._sinceMs = 0
        self._cellCountMax = cellCountMax
        self._seriesCountMax = seriesCountMax
        self._seen: dict[tuple[str, str, int], WindowTally] = {}
        self._reports: dict[tuple[str, int], CountReport] = {}

    def startOf(self, timeMs: int) -> int:
        """The start of the window that holds a time."""
        return timeMs - timeMs % self.windowMs

    def see(
        self,
        tier: str,
        topic: str,
        startMs: int,
        count: int,
        isArrival: bool = False,
        checksum: int | None = None,
    ) -> None:
        """
        Count messages that are in a tier.

        @param startMs: the start of their window.
        @param isArrival: the window is that of reading, because their time is not known.
        @param checksum: the sum of their checksums; L{None} if unknown.
        """
        if startMs < self._sinceMs:
            return
        key = tier, topic, startMs
        tally = self._seen.get(key)
        if tally is None:
            if len(self._seen) >= self._cellCountMax:
                self.leftOutCount += count
                return
            tally = NOTHING
        self._seen[key] = tally.plus(count, count if isArrival else 0, checksum)

    def enter(self, report: CountReport) -> None:
        """Add a report. The report with the largest number of a series counts, in any order."""
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
        """Drop windows that begin before a time, and ignore them from now on."""
        self._sinceMs = max(self._sinceMs, self.startOf(timeMs + self.windowMs - 1))
        self._seen = {key: tally for key, tally in self._seen.items() if key[2] >= self._sinceMs}
        self._reports = {
            key: report
            for key, report in self._reports.items()
            if self.startOf(report.startMs) >= self._sinceMs
        }

    @property
    def reportedTopics(self) -> set[str]:
        """The topics that producers have reported."""
        return {report.topic for report in self._reports.values()}

    def compare(
        self,
        tiers: Sequence[str],
        nowMs: int,
        graceMs: int,
        topics: Collection[str] | None = None,
        notes: Sequence[str] = (),
    ) -> Comparison:
        """
        Compare all tiers.

        @param tiers: the counted tiers; the first is the reference for topics without producer
            reports. Tiers that others have counted follow.
        @param graceMs: the time after the end of a window during which messages may still arrive.
        @param topics: the topics to compare; by default all.
        @param notes: further notes for the result.
        """
        sent, seen, allTiers = self._gather(tiers)
        byArrival = {
            (tier, topic) for (tier, topic, _start), tally in seen.items() if tally.asideCount
        }
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
                    found = seen.get((tier, topic, startMs), NOTHING)
                    expected = (
                        sent.get((topic, startMs), NOTHING)
                        if measure is None
                        else seen.get((measure, topic, startMs), NOTHING)._replace(asideCount=0)
                    )
                    status = (
                        OPEN
                        if startMs + self.windowMs + graceMs > nowMs
                        else judge(expected, found, tier == measure)
                    )
                    if (tier, topic) in byArrival and status != OPEN:
                        status = ARRIVAL
                    some.append(
                        lineOf(topic, startMs, tier, expected, found, measure or "sent", status)
                    )
                lines += some
                totals.append(total(some, tier == measure, (tier, topic) in byArrival))
        isCertain = not (self.leftOutCount or self.leftOutReportCount or self.misfitCount)
        lines.sort(key=lambda line: (line.topic, line.startMs))
        return Comparison(
            self.windowMs, nowMs, lines, totals, (*notes, *self._notes(byArrival)), isCertain
        )

    def _gather(
        self, tiers: Sequence[str]
    ) -> tuple[
        dict[tuple[str, int], WindowTally], dict[tuple[str, str, int], WindowTally], list[str]
    ]:
        """
        @return: the sums of sent messages by topic and window, those of seen ones by tier, topic
            and window, and the tiers.
        """
        sent: dict[tuple[str, int], WindowTally] = {}
        seen = dict(self._seen)
        allTiers = dict.fromkeys(tiers)
        for report in self._reports.values():
            topic, startMs = report.topic, self.startOf(report.startMs)
            if report.role == SENT:
                tally = sent.get((topic, startMs), NOTHING)
                sent[topic, startMs] = tally.plus(
                    report.messageCount, report.unknownCount, report.checksum
                )
            elif report.tier in allTiers or len(allTiers) < TIER_COUNT_MAX:
                allTiers[report.tier] = None
                tally = seen.get((report.tier, topic, startMs), NOTHING)
                seen[report.tier, topic, startMs] = tally.plus(
                    report.messageCount, 0, report.checksum
                )
        return sent, seen, list(allTiers)

    def _notes(self, byArrival: set[tuple[str, str]]) -> list[str]:
        notes = [
            f"{topic} in {tier}: messages without an envelope, whose time nobody knows; their windows mean when they were read, and only the total is judged"
            for tier, topic in sorted(byArrival)
        ]
        if self.leftOutCount:
            notes.append(
                f"{self.leftOutCount} messages were not counted: there are too many topics and windows"
            )
        if self.leftOutReportCount:
            notes.append(
                f"{self.leftOutReportCount} reports were not counted: there are too many producers, topics and windows"
            )
        if self.misfitCount:
            notes.append(
                f"{self.misfitCount} reports have windows that do not divide {self.windowMs} ms, and were not counted"
            )
        return notes
