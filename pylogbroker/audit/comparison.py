"""
The result of an audit: for each topic, window and tier, whether all sent messages are there, and by
which rule.

Fewer messages than sent are a hole. The same number with another sum of checksums is a hole, too:
at least one message is missing and another is there twice. More messages than sent prove nothing,
because a duplicate may hide a loss.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pylogbroker.audit.counts import addChecksums

COMPLETE = "complete"
MISSING = "missing"
DIFFERENT = "different"
"""As many as were sent, and not the same ones."""

MORE = "more"
OPEN = "open"
UNREPORTED = "unreported"
ARRIVAL = "arrival"
"""A window of messages whose time is not known; see the total."""

HOLES = frozenset((MISSING, DIFFERENT))

TOTAL_START = -1


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
        return [line for line in self.lines if line.status in statuses] + [
            line for line in self.totals if line.status in statuses and line.arrivalCount
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
    """

    messageCount: int = 0
    asideCount: int = 0
    checksum: int | None = 0

    def plus(self, messageCount: int, asideCount: int, checksum: int | None) -> WindowTally:
        """The sum with another tally."""
        checksum = addChecksums(self.checksum, checksum) if messageCount else self.checksum
        return WindowTally(self.messageCount + messageCount, self.asideCount + asideCount, checksum)


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
        topic, startMs, tier, expected.messageCount, expected.asideCount, seen.messageCount, seen.asideCount, reference,
        expected.checksum, seen.checksum, status,
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
