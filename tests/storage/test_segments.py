"""
Tests of segments and their list.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.records.kafka07format import ByteOffsetIndex
from pylogbroker.storage.files import DescriptorCache, SegmentFile
from pylogbroker.storage.segments import Segment, SegmentList
from pylogbroker.testing.powercut import PowerCutFileSystem

CACHE = DescriptorCache(PowerCutFileSystem(), 1)


def segment(baseOffset: int) -> Segment:
    """One without a file."""
    file = SegmentFile(CACHE, f"/{baseOffset}", False)
    return Segment(baseOffset, file, 0, 0, ByteOffsetIndex(0))


class SegmentTests(SynchronousTestCase):
    """What a segment says of itself."""

    def test_loadedBytesAreWrittenAndFlushed(self) -> None:
        """
        A segment that is loaded has nothing unflushed; its path is its file's, its text names
        offset and sizes.
        """
        segment = Segment(
            20,
            SegmentFile(DescriptorCache(PowerCutFileSystem(), 1), "/p/20.kafka", False),
            7,
            5,
            ByteOffsetIndex(20),
        )
        self.assertEqual(
            (segment.size, segment.writtenSize, segment.modifiedMs, segment.path),
            (7, 7, 5, "/p/20.kafka"),
        )
        self.assertEqual(repr(segment), "<Segment 20 7/7 bytes>")


class SegmentListTests(SynchronousTestCase):
    """spec-0.7 log-storage §7."""

    def test_append(self) -> None:
        """
        SegmentListTest.testAppend: an appended segment is last; a snapshot taken before does not
        have it.
        """
        first, second = segment(0), segment(10)
        before = SegmentList([first])
        found = before.replaced(1, 1, [second])
        self.assertEqual(found.segments, (first, second))
        self.assertEqual(found.bases, (0, 10))
        self.assertEqual(before.segments, (first,))

    def test_dropOldest(self) -> None:
        """
        SegmentListTest.testTrunc: the oldest are taken out; a snapshot taken before still has them.
        """
        segments = tuple(segment(base) for base in (0, 10, 20))
        before = SegmentList(segments)
        found = before.replaced(0, 2)
        self.assertEqual(found.segments, segments[2:])
        self.assertEqual(found.bases, (20,))
        self.assertEqual(before.segments, segments)
        self.assertEqual(before.bases, (0, 10, 20))

    def test_truncateBeyondTheLength(self) -> None:
        """SegmentListTest.testTruncBeyondList: truncation beyond the length empties the list."""
        segments = (segment(0), segment(10))
        before = SegmentList(segments)
        self.assertEqual(before.replaced(0, 3).segments, ())
        self.assertEqual(before.segments, segments)

    def test_truncate(self) -> None:
        """The newest are taken out in the same way."""
        segments = tuple(segment(base) for base in (0, 10, 20))
        before = SegmentList(segments)
        self.assertEqual(before.replaced(1, 3).bases, (0,))
        self.assertEqual(before.segments, segments)

    def test_replace(self) -> None:
        """
        Compaction puts fewer segments in the place of some; gaps between them are allowed, a wrong
        order is not.
        """
        segments = tuple(segment(base) for base in (0, 10, 20, 30))
        before = SegmentList(segments)
        merged = segment(12)
        found = before.replaced(1, 3, [merged])
        self.assertEqual(before.segments, segments)
        self.assertEqual(found.segments, (segments[0], merged, segments[3]))
        self.assertEqual(found.indexOf(11), 0)
        for base in (0, 12, 40):
            self.assertRaises(ValueError, found.replaced, 1, 2, [segment(base), segment(base)])
        self.assertRaises(ValueError, found.replaced, 1, 2, [segment(31)])
        self.assertEqual(found.segments, (segments[0], merged, segments[3]))

    def test_findSegment(self) -> None:
        """
        LogTest.testFindSegment: nothing in an empty list, nothing below the first; else the last
        segment that begins at or below the offset.
        """
        self.assertEqual(SegmentList().indexOf(0), -1)
        view = SegmentList([segment(10), segment(20), segment(35)])
        self.assertEqual(
            [view.indexOf(offset) for offset in (0, 9, 10, 19, 20, 34, 35, 1000)],
            [-1, -1, 0, 0, 1, 1, 2, 2],
        )

    @given(st.sets(st.integers(0, 100), max_size=10), st.integers(-1, 101))
    def test_searchAgreesWithLooking(self, bases: set[int], offset: int) -> None:
        """The search finds what looking at each segment finds."""
        view = SegmentList([segment(base) for base in sorted(bases)])
        self.assertEqual(view.indexOf(offset), sum(base <= offset for base in bases) - 1)
