"""
A slow consumer costs others nothing; the long form, with figures, is C{python -m
tests.long.slowconsumer}.
"""

from __future__ import annotations

import shutil
import tempfile

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.slowconsumer import (
    FETCH_SIZE,
    QUEUED_SIZE_MAX,
    STOPPED,
    STREAM_COUNT,
    SlowCluster,
)
from tests.integration.zookeeperprocess import sharedZookeeper

COUNT = 60_000
SIZE = 1_000
GROWTH_SIZE_MAX = 36 << 20


class SlowConsumerTests(SynchronousTestCase):
    """One process, four streams, one of which its application does not read."""

    def test_stoppedStream(self) -> None:
        """
        While one stream is not read, the others get all that is theirs, in order; what waits for
        the stopped one, and the memory of the process, stay within the limits; and when it is read
        in the end, it gets all, too.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        cluster = SlowCluster(folder, sharedZookeeper(), "/slowconsumer")
        self.addCleanup(cluster.close)
        counts = [COUNT] * STREAM_COUNT
        cluster.fill("clicks", counts, SIZE)
        read = cluster.read("clicks", counts)
        self.assertEqual(read.inTurn, [COUNT] * (STREAM_COUNT - 1))
        self.assertEqual(read.lateInTurn, counts[STOPPED])
        self.assertGreater(max(read.queuedSizes), 0)
        self.assertLessEqual(max(read.queuedSizes), QUEUED_SIZE_MAX + FETCH_SIZE)
        # Four times what one stream would have taken in without a limit was read, and as much
        # waited at the broker.
        self.assertLess(max(read.rssSizes) - read.rssSizes[0], GROWTH_SIZE_MAX)
