"""
Aggregates what producers sent and what each tier has, and compares both: for each topic, window and
tier, whether all sent messages are there, and by which rule.

Fewer messages than sent are a hole. The same number with another sum of checksums is a hole, too:
at least one message is missing and another is there twice. More messages than sent prove nothing,
because a duplicate may hide a loss.

What must be true: missing knowledge never hides a hole, and a message that may still arrive is no
hole. So a window is judged when it and its grace period are over. Messages and reports that do not
fit are counted and named in the result.

A message without a known time counts in the window in which it was read. Such windows say nothing
about the time of sending, so a topic with such messages is judged by its total: all messages seen
against those sent in the ended windows. That is never a false alarm, and may be a late one. The
timestamp of a record of today is such a time only where all senders of the topic have counted by it
or by their envelopes: a mirror of 2011's messages stamps records when it copies them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pylogbroker.audit.counts import (
    IN_ENVELOPE,
    IN_RECORD,
    SENT,
    CountReport,
    addChecksums,
)

COMPLETE = "complete"
MISSING = "missing"
DIFFERENT = "different"
"""As many as were sent, and not the same ones."""

MORE = "more"
OPEN = "open"
UNREPORTED = "unreported"
ARRIVAL = "arrival"
"""A window of messages whose time is not known, or compared with such; see the total."""

HOLES = frozenset((MISSING, DIFFERENT))

TOTAL_START = -1

CELL_COUNT_MAX = 200_000
SERIES_COUNT_MAX = 500_000
TIER_COUNT_MAX = 100


class Line(NamedTuple):
    """
    One topic, window and tier.

    @ivar startMs: the start of the window; -1 for the total of a topic and tier.
    @ivar expectedCount: messages that should be there.
    @ivar unknownCount: messages that may be there in addition.
    @ivar seenCount: messages that are there.
    @ivar arrivalCount: those of C{seenCount} without a known time.
    @ivar reference: the source of C{expectedCount}: C{"sent"}, or the name of a tier without
        producer reports.
    @ivar expectedChecksum: the sum of the checksums of the expected messages; L{None} if unknown.
    @ivar seenChecksum: the sum of those that are there.
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
    expectedChecksum: int | None
    seenChecksum: int | None
    status: str

    @property
    def missingCount(self) -> int:
        """The least number of missing messages. Each duplicate may hide another one."""
        return 1 if self.status == DIFFERENT else max(0, self.expectedCount - self.seenCount)

    @property
    def moreCount(self) -> int:
        """
        The least number of messages beyond those that may have been sent: duplicates, or messages
        of a producer without reports.
        """
        return (
            1
            if self.status == DIFFERENT
            else max(0, self.seenCount - self.expectedCount - self.unknownCount)
        )

    @property
    def completeness(self) -> float | None:
        """The share that is there; above 1 for too many messages, L{None} if none was expected."""
        return self.seenCount / self.expectedCount if self.expectedCount else None


@dataclass(frozen=True)
class Comparison:
    """
    The result of an audit.

    @ivar lines: by topic, window and tier.
    @ivar totals: by topic and tier, over the ended windows.
    @ivar notes: the limits of the result, a sentence each.
    @ivar isCertain: false if some data could not be counted, so that a hole may be hidden, or be
        none.
    """

    windowMs: int
    nowMs: int
    lines: Sequence[Line]
    totals: Sequence[Line]
    notes: Sequence[str] = ()
    isCertain: bool = True

    @property
    def missing(self) -> list[Line]:
        """The holes: in windows, and in totals where windows mean nothing."""
        return self._judged(HOLES)

    @property
    def more(self) -> list[Line]:
        """Windows and totals with more messages than were sent."""
        return self._judged((MORE,))

    def _judged(self, statuses: Collection[str]) -> list[Line]:
        byTotal = {(line.topic, line.tier) for line in self.lines if line.status == ARRIVAL}
        return [line for line in self.lines if line.status in statuses] + [
            line
            for line in self.totals
            if line.status in statuses and (line.topic, line.tier) in byTotal
        ]

    @property
    def isComplete(self) -> bool:
        """True if no expected message is missing."""
        return not self.missing


class WindowTally(NamedTuple):
    """
    Messages of a topic and window, sent or seen in a tier.

    @ivar asideCount: of the sent messages, those with an unknown outcome; of the seen ones, those
        without a known time.
    @ivar recordCount: of the seen messages, those whose time is the timestamp of their record.
    """

    messageCount: int = 0
    asideCount: int = 0
    checksum: int | None = 0
    recordCount: int = 0

    def plus(
        self, messageCount: int, asideCount: int, checksum: int | None, recordCount: int = 0
    ) -> WindowTally:
        """The sum with another tally."""
        checksum = addChecksums(self.checksum, checksum) if messageCount else self.checksum
        return WindowTally(
            self.messageCount + messageCount,
            self.asideCount + asideCount,
            checksum,
            self.recordCount + recordCount,
        )


NOTHING = WindowTally()


def lineOf(
    topic: str,
    startMs: int,
    tier: str,
    expected: WindowTally,
    seen: WindowTally,
    reference: str,
    status: str,
) -> Line:
    """A L{Line} from sent and seen messages."""
    return Line(
        topic, startMs, tier,
        expected.messageCount, expected.asideCount, seen.messageCount, seen.asideCount,
        reference, expected.checksum, seen.checksum, status,
    )  # fmt: skip


def judge(expected: WindowTally, seen: WindowTally, isMeasure: bool) -> str:
    """
    The status of an ended window, or of a total.

    @param isMeasure: whether the tier itself is the reference.
    """
    if isMeasure:
        return UNREPORTED
    if seen.messageCount < expected.messageCount:
        return MISSING
    if seen.messageCount > expected.messageCount + expected.asideCount:
        return MORE
    isKnown = (
        not expected.asideCount and expected.checksum is not None and seen.checksum is not None
    )
    return DIFFERENT if isKnown and expected.checksum != seen.checksum else COMPLETE


def total(lines: Sequence[Line], isMeasure: bool, isArrival: bool) -> Line:
    """
    The total of a topic and tier: over the ended windows, or over all messages where their times
    are not known.
    """
    over = [line for line in lines if line.status != OPEN]
    expected = seen = NOTHING
    for line in over:
        expected = expected.plus(line.expectedCount, line.unknownCount, line.expectedChecksum)
    for line in lines if isArrival else over:
        seen = seen.plus(line.seenCount, line.arrivalCount, line.seenChecksum)
    status = judge(expected, seen, isMeasure)
    if isArrival and status in (MORE, DIFFERENT) and len(over) < len(lines):
        status = COMPLETE  # what is more, or other, may belong to the windows that are not over
    return lineOf(
        lines[0].topic, TOTAL_START, lines[0].tier, expected, seen, lines[0].reference, status
    )


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
        self._seen: dict[tuple[str | None, str, int], WindowTally] = {}
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
        isRecordTime: bool = False,
    ) -> None:
        """
        Count messages that are in a tier.

        @param startMs: the start of their window.
        @param isArrival: the window is that of reading, because their time is not known.
        @param checksum: the sum of their checksums; L{None} if unknown.
        @param isRecordTime: the window is that of the timestamps of their records.
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
        self._seen[key] = tally.plus(
            count, count if isArrival else 0, checksum, count if isRecordTime else 0
        )

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
        tallies, allTiers = self._gather(tiers)
        byArrival = {
            (tier, topic)
            for (tier, topic, _start), tally in tallies.items()
            if tier is not None and tally.asideCount
        }
        windows: dict[str, set[int]] = {}
        for _tier, topic, startMs in tallies:
            windows.setdefault(topic, set()).add(startMs)
        reported = {topic for tier, topic, _start in tallies if tier is None}
        lines: list[Line] = []
        totals: list[Line] = []
        for topic in sorted(windows):
            if topics is not None and topic not in topics:
                continue
            measure = None if topic in reported or not allTiers else allTiers[0]
            for tier in allTiers:
                isArrival = (tier, topic) in byArrival or (measure, topic) in byArrival
                some = []
                for startMs in sorted(windows[topic]):
                    found = tallies.get((tier, topic, startMs), NOTHING)
                    expected = tallies.get((measure, topic, startMs), NOTHING)
                    if measure is not None:
                        expected = expected._replace(asideCount=0)
                    status = (
                        OPEN
                        if startMs + self.windowMs + graceMs > nowMs
                        else judge(expected, found, tier == measure)
                    )
                    if isArrival and status != OPEN:
                        status = ARRIVAL
                    some.append(
                        lineOf(topic, startMs, tier, expected, found, measure or "sent", status)
                    )
                lines += some
                totals.append(total(some, tier == measure, isArrival))
        isCertain = not (self.leftOutCount or self.leftOutReportCount or self.misfitCount)
        lines.sort(key=lambda line: (line.topic, line.startMs))
        return Comparison(
            self.windowMs, nowMs, lines, totals, (*notes, *self._notes(byArrival)), isCertain
        )

    def _gather(
        self, tiers: Sequence[str]
    ) -> tuple[dict[tuple[str | None, str, int], WindowTally], list[str]]:
        """
        @return: the sums of messages by tier, topic and window, and the tiers. The tier L{None} has
            the sent messages.
        """
        stamped = self._stampedOtherwise()
        tallies: dict[tuple[str | None, str, int], WindowTally] = {
            key: tally._replace(asideCount=tally.asideCount + tally.recordCount)
            if key[1] in stamped
            else tally
            for key, tally in self._seen.items()
        }
        allTiers = dict.fromkeys(tiers)
        for report in self._reports.values():
            tier = None if report.role == SENT else report.tier
            if tier is not None:
                if tier not in allTiers and len(allTiers) >= TIER_COUNT_MAX:
                    continue
                allTiers[tier] = None
            key = tier, report.topic, self.startOf(report.startMs)
            tallies[key] = tallies.get(key, NOTHING).plus(
                report.messageCount, report.unknownCount if tier is None else 0, report.checksum
            )
        return tallies, list(allTiers)

    def _stampedOtherwise(self) -> set[str]:
        """
        Topics of which some messages were counted by a time that neither an envelope nor a record
        need have.
        """
        return {
            report.topic
            for report in self._reports.values()
            if report.role == SENT and report.timeSource not in (IN_ENVELOPE, IN_RECORD)
        }

    def _notes(self, byArrival: set[tuple[str, str]]) -> list[str]:
        notes = [
            f"{topic} in {tier}: messages without an envelope, whose time of sending is unknown;"
            " their windows mean when they were read or stored, and only the total is judged"
            for tier, topic in sorted(byArrival)
        ]
        if self.leftOutCount:
            notes.append(
                f"{self.leftOutCount} messages were not counted: too many topics and windows"
            )
        if self.leftOutReportCount:
            notes.append(
                f"{self.leftOutReportCount} reports were not counted: too many producers, topics"
                " and windows"
            )
        if self.misfitCount:
            notes.append(
                f"{self.misfitCount} reports were not counted: their windows do not divide"
                f" {self.windowMs} ms"
            )
        return notes
