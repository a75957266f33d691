"""
Tests of what retention decides.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.storage.segments import Segment, both, byAge, bySize


def kept(*sizesAndTimes: tuple[int, int]) -> list[Segment]:
    """Segments without files, oldest first."""
    noFile: Any = None
    noIndex: Any = None
    found: list[Segment] = []
    for size, modifiedMs in sizesAndTimes:
        baseOffset = found[-1].baseOffset + found[-1].size if found else 0
        found.append(Segment(baseOffset, noFile, size, modifiedMs, noIndex))
    return found


class RetentionTests(SynchronousTestCase):
    """spec-0.7 log-storage §10."""

    def test_keepEverything(self) -> None:
        """Nothing goes."""
        self.assertEqual(bySize(-1)(kept((1, 0)), 10**15), 0)

    def test_byAge(self) -> None:
        """What is older than the limit goes, what is exactly as old stays."""
        segments = kept((1, 100), (1, 200), (1, 300))
        self.assertEqual(
            [byAge(50)(segments, nowMs) for nowMs in (150, 151, 250, 251, 351)], [0, 1, 1, 2, 3]
        )

    def test_byAgeStopsAtTheFirstYoungOne(self) -> None:
        """
        Only the old end is deleted from: an old segment behind a young one stays, or there would be
        a gap.
        """
        self.assertEqual(byAge(50)(kept((1, 100), (1, 300), (1, 100)), 300), 1)

    def test_bySize(self) -> None:
        """Segments go while what is left is at least the limit."""
        segments = kept((10, 0), (10, 0), (10, 0))
        self.assertEqual(
            [bySize(limit)(segments, 0) for limit in (31, 30, 21, 20, 19, 10, 1, 0)],
            [0, 0, 0, 1, 1, 2, 2, 3],
        )

    def test_bySizeOff(self) -> None:
        """A negative limit is none."""
        self.assertEqual(bySize(-1)(kept((10, 0), (0, 0)), 0), 0)

    def test_bySizeOfASmallLog(self) -> None:
        """A log below its limit keeps everything, an empty segment at its start, too."""
        self.assertEqual(bySize(100)(kept((0, 0), (10, 0)), 0), 0)

    def test_cleanupSegmentsToMaintainSize(self) -> None:
        """
        LogManagerTest.testCleanupSegmentsToMaintainSize: of 100 segments of 140 bytes, a limit of
        710 bytes keeps exactly 6.
        """
        self.assertEqual(bySize(710)(kept(*[(140, 0)] * 100), 0), 94)

    def test_both(self) -> None:
        """Age first; then size, counted over what age has left."""
        segments = kept((10, 0), (10, 90), (10, 90), (10, 90))
        self.assertEqual(both(byAge(50), bySize(30))(segments, 100), 1)
        self.assertEqual(both(byAge(50), bySize(20))(segments, 100), 2)
        self.assertEqual(both(byAge(50), bySize(-1))(segments, 200), 4)

    @given(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8),
        st.integers(0, 200),
        st.integers(0, 50),
        st.integers(0, 100),
    )
    def test_neverBelowTheLimit(
        self, sizesAndTimes: list[tuple[int, int]], limit: int, ageMs: int, nowMs: int
    ) -> None:
        """
        Whatever the segments are, the answer is a prefix; the size rule leaves the limit or
        everything; one segment more would not qualify.
        """
        segments = kept(*sizesAndTimes)
        count = bySize(limit)(segments, nowMs)
        left = sum(segment.size for segment in segments[count:])
        self.assertTrue(count == 0 or left >= limit)
        self.assertTrue(count == len(segments) or left - segments[count].size < limit)
        count = byAge(ageMs)(segments, nowMs)
        self.assertTrue(all(nowMs - segment.modifiedMs > ageMs for segment in segments[:count]))
        self.assertTrue(count == len(segments) or nowMs - segments[count].modifiedMs <= ageMs)
