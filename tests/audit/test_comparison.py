"""
Tests for L{pylogbroker.audit.comparison}. What becomes of reports and of what was seen is in
L{tests.audit.test_aggregator}.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.comparison import (
    COMPLETE,
    DIFFERENT,
    HOLES,
    MISSING,
    MORE,
    NOTHING,
    UNREPORTED,
    WindowTally,
    judge,
    lineOf,
)

MESSAGES = st.lists(st.integers(0, 10**9), min_size=1, max_size=20, unique=True)


def tally(numbers: list[int]) -> WindowTally:
    """Of messages that are numbers."""
    found = NOTHING
    for number in numbers:
        found = found.plus(1, 0, crc32(b"%d" % number))
    return found


class JudgeTests(SynchronousTestCase):
    """The rule."""

    @given(MESSAGES, st.integers(0, 2**32))
    def test_shuffled(self, numbers: list[int], seed: int) -> None:
        """The same messages are complete, in whatever order."""
        others = list(numbers)
        Random(seed).shuffle(others)
        self.assertEqual(judge(tally(numbers), tally(others), False), COMPLETE)

    @given(MESSAGES, st.data())
    def test_lostAndDoubled(self, numbers: list[int], data: st.DataObject) -> None:
        """One lost is missing; one doubled is more; one lost and another doubled is different."""
        lost = data.draw(st.sampled_from(numbers))
        rest = [number for number in numbers if number != lost]
        sent = tally(numbers)
        self.assertEqual(judge(sent, tally(rest), False), MISSING)
        self.assertEqual(judge(sent, tally([*numbers, lost]), False), MORE)
        if rest:
            self.assertEqual(
                judge(sent, tally([*rest, data.draw(st.sampled_from(rest))]), False), DIFFERENT
            )

    def test_unknown(self) -> None:
        """What may have been sent counts for neither, and leaves the sums out of it."""
        sent = tally([1, 2]).plus(0, 1, 0)
        self.assertEqual(
            [judge(sent, tally(found), False) for found in ([1], [3, 4], [1, 2, 3], [1, 2, 3, 4])],
            [MISSING, COMPLETE, COMPLETE, MORE],
        )

    def test_measure(self) -> None:
        """What others are compared with is not judged."""
        self.assertEqual(judge(tally([1]), NOTHING, True), UNREPORTED)

    def test_counts(self) -> None:
        """A line says how many are missing, and how many are there too often, for certain."""
        for seen, status, missing, more in (
            (7, MISSING, 3, 0),
            (10, DIFFERENT, 1, 1),
            (12, COMPLETE, 0, 0),
            (13, MORE, 0, 1),
        ):
            line = lineOf("t", 0, "live", WindowTally(10, 2), WindowTally(seen), "sent", status)
            self.assertEqual(
                (line.missingCount, line.moreCount, line.completeness), (missing, more, seen / 10)
            )
            self.assertEqual(status in HOLES, missing > 0)
        self.assertIs(lineOf("t", 0, "live", NOTHING, NOTHING, "sent", COMPLETE).completeness, None)
