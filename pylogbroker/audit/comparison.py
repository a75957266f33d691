"""
What an audit says: of each topic, window and tier whether everything is there that was sent, and by
what rule.

Less than was sent is a hole. As much as was sent may still not be the same: where the sums of the
checksums differ, at least one message is missing and another is there twice; that is a hole, too.
Where more are there than were sent, nothing can be said about that: what is doubled may hide what
is lost.
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
    What is known about one topic, window and tier.

    @ivar startMs: where the window begins; -1 for the total of a topic and tier.
    @ivar expectedCount: messages that ought to be there.
    @ivar unknownCount: messages that may be there in addition.
    @ivar seenCount: messages that are there.
    @ivar arrivalCount: of these, those whose time was not known, but only when they were read.
    @ivar reference: what C{expectedCount} is: C{"sent"}, or the name of a tier when nobody has said
        what was sent.
    @ivar expectedChecksum: the sum of the checksums of the messages that ought to be there;
        L{None}: not known.
    @ivar seenChecksum: that of those that are there.
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
        """
        Messages that are missing for certain, at least: each one that is doubled may hide another.
        """
        return 1 if self.status == DIFFERENT else max(0, self.expectedCount - self.seenCount)

    @property
    def moreCount(self) -> int:
        """
        Messages beyond all that may have been sent, at least: sent twice, or by somebody who has
        not said so.
        """
        return (
            1
            if self.status == DIFFERENT
            else max(0, self.seenCount - self.expectedCount - self.unknownCount)
        )

    @property
    def completeness(self) -> float | None:
        """
        The part that is there; more than 1 for more than was sent, L{None} where nothing was
        expected.
        """
        return self.seenCount / self.expectedCount if self.expectedCount else None


@dataclass(frozen=True)
class Comparison:
    """
    What an audit has found.

    @ivar lines: of windows, by topic, window and tier.
    @ivar totals: of topics and tiers, over the windows that are over.
    @ivar notes: what limits what can be said, a sentence each.
    @ivar isCertain: whether everything could be entered into the books; if not, a hole may be
        hidden, or be none.
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
        return self._judged(HOLES)

    @property
    def more(self) -> list[Line]:
        """
        Where more messages are than were sent: windows, and totals where windows mean nothing.
        """
        return self._judged((MORE,))

    def _judged(self, statuses: Collection[str]) -> list[Line]:
        return [line for line in self.lines if line.status in statuses] + [
            line for line in self.totals if line.status in statuses and line.arrivalCount
        ]

    @property
    def isComplete(self) -> bool:
        """Whether nothing is missing that ought to be there."""
        return not self.missing


class Tally(NamedTuple):
    """
    Messages of a topic and window: sent, or seen in a tier.

    @ivar asideCount: what is told apart: of the sent ones, those that may have been sent in
        addition; of the seen ones, those whose time was not known.
    """

    messageCount: int = 0
    asideCount: int = 0
    checksum: int | None = 0

    def plus(self, messageCount: int, asideCount: int, checksum: int | None) -> Tally:
        """With more of them."""
        checksum = addChecksums(self.checksum, checksum) if messageCount else self.checksum
        return Tally(self.messageCount + messageCount, self.asideCount + asideCount, checksum)


NOTHING = Tally()


def lineOf(
    topic: str, startMs: int, tier: str, expected: Tally, seen: Tally, reference: str, status: str
) -> Line:
    """What is known, as a line."""
    return Line(
        topic, startMs, tier, expected.messageCount, expected.asideCount, seen.messageCount, seen.asideCount, reference,
        expected.checksum, seen.checksum, status,
    )  # fmt: skip


def judge(expected: Tally, seen: Tally, isMeasure: bool) -> str:
    """
    The status of a window that is over, or of a total.

    @param isMeasure: nobody has said what was sent, and others are compared with this.
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
    Of one topic and tier: over the windows that are over, but all that was read where nobody knows
    into which window it belongs.
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
