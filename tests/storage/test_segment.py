"""
Tests of a segment.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.records.kafka07format import ByteOffsetIndex
from pylogbroker.storage.descriptors import DescriptorCache
from pylogbroker.storage.segment import Segment
from pylogbroker.testing.powercut import PowerCutFileSystem


class SegmentTests(SynchronousTestCase):
    """What a segment says of itself."""

    def test_loadedBytesAreWrittenAndFlushed(self) -> None:
        """A segment that is loaded has nothing unflushed; its path is its file's, its text names offset and sizes."""
        segment = Segment(
            20,
            DescriptorCache(PowerCutFileSystem(), 1).file("/p/20.kafka", writable=False),
            7,
            5,
            ByteOffsetIndex(20),
        )
        self.assertEqual(
            (segment.size, segment.writtenSize, segment.modifiedMs, segment.path),
            (7, 7, 5, "/p/20.kafka"),
        )
        self.assertEqual(repr(segment), "<Segment 20 7/7 bytes>")
