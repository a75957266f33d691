"""
Tests of what happens to partitions by the clock and on workers.
"""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.broker.kafka07 import PARTITION_COUNT_MAX
from pylogbroker.broker.logmanager import WRITE_SIZE_MAX
from pylogbroker.errors import PartitionOfflineError
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.messageset import encodeSet
from pylogbroker.storage.partitionlog import MarkKind, writtenWatermark
from pylogbroker.types import LogPosition
from tests.broker.manualbroker import ROOT, LeadBroker, LeadTestCase, Peer, capture, waitingCount
from tests.storage.driving import append

NEVER = {"log.flush.interval": "1000000", "log.default.flush.interval.ms": "1000000000"}
"""Neither by count nor by time."""


def produce(*payloads: bytes, topic: str = "t") -> bytes:
    """One PRODUCE."""
    return encodeProduce(topic, 0, encodeSet(payloads))


def sized(size: int, letter: bytes = b"x") -> bytes:
    """A payload whose set has a size."""
    return letter * (size - 10)


class UpkeepTestCase(LeadTestCase):
    """A broker with one topic that exists, and a client."""

    properties: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        self.lead = self.broker(self.properties)
        self.peer = self.lead.connect()
        self.create("t")

    def create(self, *topics: str) -> None:
        self.peer.send(*(encodeProduce(topic, 0, b"") for topic in topics))
        self.lead.settle()

    def path(self, topic: str = "t") -> str:
        return self.lead.log(topic).segments[-1].path

    def fetch(self, offset: int, topic: str = "t") -> tuple[int, bytes]:
        peer = self.lead.connect()
        peer.send(encodeFetch(topic, 0, offset, 1_000_000))
        found = peer.fetched()
        self.assertEqual(len(found), 1)
        peer.close()
        return found[0]


class WriteTests(UpkeepTestCase):
    """From memory to the page cache."""

    properties = NEVER

    def test_endOfTheTurn(self) -> None:
        """
        What was appended in a turn is in memory until its end, and then in the file, in order; one
        write took all of it.
        """
        log, upkeep = self.lead.log(), self.lead.logManager
        for payload in (b"a", b"b", b"c"):
            self.lead.append(encodeSet([payload]))
        self.assertEqual(
            (self.lead.contents(), log.pendingSize, log.logEndOffset, upkeep.unflushedSize),
            (b"", 33, 33, 33),
        )
        before = self.lead.fileSystem.operationCount
        self.lead.turn()
        self.assertEqual(
            (self.lead.contents(), log.pendingSize, log.logEndOffset),
            (encodeSet([b"a", b"b", b"c"]), 0, 33),
        )
        self.assertEqual(self.lead.fileSystem.operationCount - before, 1)

    def test_manyConnections(self) -> None:
        """What many connections send in one turn goes to the file in one write."""
        peers = [self.lead.connect() for _ in range(20)]
        for peer in peers:
            peer.sendSome(produce(b"a"))
        before = self.lead.fileSystem.operationCount
        self.lead.turn()
        self.assertEqual(self.lead.contents(), encodeSet([b"a"]) * 20)
        self.assertEqual(self.lead.fileSystem.operationCount - before, 1)

    def test_large(self) -> None:
        """Above 256 KiB it is written at once, within the turn."""
        log = self.lead.log()
        data = encodeSet([sized(WRITE_SIZE_MAX - 1)])
        self.lead.append(data)
        self.assertEqual(self.lead.contents(), b"")
        more = encodeSet([b"a"])
        self.lead.append(more)
        self.assertEqual((self.lead.contents(), log.pendingSize), (data + more, 0))

    def test_warm(self) -> None:
        """What was just flushed counts as cached: it goes out without a look at the page cache."""
        self.peer.send(produce(b"a"))
        self.lead.logManager.flush(self.lead.partition())
        self.lead.settle()
        warmth: Any = self.lead.service.connections.sendContext.pageCache
        self.assertTrue(warmth.isCached(self.path(), -1, 0, 11))

    def test_warmForWaiters(self) -> None:
        """It does already for fetches that waited for the flush."""
        warmth: Any = self.lead.service.connections.sendContext.pageCache
        found: list[bool] = []
        self.lead.log().whenReached(
            MarkKind.HIGH_WATERMARK,
            11,
            lambda _failure: found.append(warmth.isCached(self.path(), -1, 0, 11)),
        )
        self.peer.send(produce(b"a"))
        self.lead.logManager.flush(self.lead.partition())
        self.lead.settle()
        self.assertEqual(found, [True])


class FlushTests(UpkeepTestCase):
    """From the page cache to the disk, and before the eyes of consumers (row 31 to 34)."""

    properties = {
        "log.flush.interval": "3",
        "log.default.flush.scheduler.interval.ms": "50",
        "log.default.flush.interval.ms": "390",
        "topic.flush.intervals.ms": "quick:90",
    }

    def test_byCount(self) -> None:
        """
        A flush begins with the message that makes it due, on a worker; what it covers is visible
        when it has ended.
        """
        self.peer.send(produce(b"a", b"b"))
        self.assertEqual(len(self.lead.flushWorker.jobs), 0)
        self.peer.send(produce(b"c"), produce(b"d"))
        self.assertEqual((len(self.lead.flushWorker.jobs), self.lead.log().highWatermark), (1, 0))
        self.assertEqual(self.fetch(0, "unknown"), (0, b""))
        self.lead.flushWorker.perform()
        self.assertEqual(self.lead.log().highWatermark, 44)
        self.assertEqual(self.fetch(0), (0, encodeSet([b"a", b"b", b"c", b"d"])))
        self.assertEqual(
            (self.lead.counters.flushes.count, self.lead.logManager.unflushedSize), (1, 0)
        )

    def test_otherWatermarks(self) -> None:
        """
        Whatever moves the high watermark, a flush begins by count, and only by count; and no fetch
        waits for it.
        """
        log = self.lead.log()
        for policy in (writtenWatermark, lambda _log: LogPosition(0, 0, 0)):
            log.setWatermarkPolicy(policy)
            jobCounts = []
            for _ in range(6):
                self.peer.send(produce(b"a"))
                jobCounts.append(self.lead.flushWorker.performAll())
            self.assertEqual(jobCounts, [0, 0, 1, 0, 0, 1])
            self.assertEqual(log.flushedOffset, log.logEndOffset)
            self.assertFalse(log.readsPastWatermark(0, 1000))

    def test_byTime(self) -> None:
        """
        At a tick of the scheduler everything that has waited long enough is flushed; topics may
        have times of their own (LogManagerTest.testTimeBasedFlush).
        """
        self.create("quick")
        self.lead.advance(1)
        self.peer.send(produce(b"a"), produce(b"b", topic="quick"))
        self.lead.advance(0.05)
        self.lead.flushWorker.performAll()
        self.peer.send(produce(b"c"), produce(b"d", topic="quick"))
        self.lead.advance(0.05)
        self.assertEqual(self.lead.flushWorker.performAll(), 0)
        self.assertEqual(
            (self.lead.log().highWatermark, self.lead.log("quick").highWatermark), (11, 11)
        )
        self.lead.advance(0.05)
        self.assertEqual(self.lead.flushWorker.performAll(), 1)
        self.assertEqual(
            (self.lead.log().highWatermark, self.lead.log("quick").highWatermark), (11, 22)
        )
        for _ in range(6):
            self.lead.advance(0.05)
        self.assertEqual(self.lead.flushWorker.performAll(), 1)
        self.assertEqual(
            (self.lead.log().highWatermark, self.lead.log("quick").highWatermark), (22, 22)
        )

    def test_oneAtATime(self) -> None:
        """
        One flush a partition is under way at a time; what comes meanwhile is flushed by the next,
        at once if that is due, too.
        """
        self.peer.send(produce(b"a", b"b", b"c"))
        self.peer.send(produce(b"d", b"e", b"f"))
        self.peer.send(produce(b"g"))
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.lead.flushWorker.perform()
        self.assertEqual((self.lead.log().highWatermark, len(self.lead.flushWorker.jobs)), (33, 1))
        self.lead.flushWorker.perform()
        self.assertEqual((self.lead.log().highWatermark, len(self.lead.flushWorker.jobs)), (77, 0))

    def test_partitionsTogether(self) -> None:
        """Flushes of several partitions do not wait for one another."""
        self.create("u", "v")
        self.peer.send(*(produce(b"a", b"b", b"c", topic=topic) for topic in "tuv"))
        self.assertEqual(len(self.lead.flushWorker.jobs), 3)

    def test_duration(self) -> None:
        """Flushes are counted with the time that they took."""
        self.peer.send(produce(b"a", b"b", b"c"))
        self.lead.reactor.advance(0.0205)
        self.lead.flushWorker.perform()
        self.assertEqual(
            self.lead.counters.flushes.snapshot(),
            {"count": 1, "failedCount": 0, "totalMs": 20, "longestMs": 20},
        )


class BackPressureTests(UpkeepTestCase):
    """Producers wait when too much is unflushed."""

    properties = {
        **NEVER,
        "max.unflushed.bytes.per.partition": "1000",
        "max.unflushed.bytes": "2000",
    }

    def test_flushBegins(self) -> None:
        """Above the limit of a partition a flush begins at once, without being due."""
        self.peer.send(produce(sized(1000)))
        self.assertEqual(len(self.lead.flushWorker.jobs), 0)
        self.peer.send(produce(b"a"))
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)

    def test_wait(self) -> None:
        """
        Who produces there waits, with all that comes behind on its connection; it goes on when the
        flush has ended. Nothing is lost, the order is kept.
        """
        other = self.lead.connect()
        self.peer.send(produce(sized(1001)))
        self.peer.send(produce(b"b"), produce(b"c"), encodeOffsets("t", 0, -2, 1))
        other.send(produce(b"d"))
        self.assertEqual(
            (self.lead.log().logEndOffset, waitingCount(self.lead.logManager), self.peer.offsets()),
            (1001, 2, []),
        )
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.log().logEndOffset, waitingCount(self.lead.logManager), self.peer.offsets()),
            (1034, 0, [[0]]),
        )
        self.assertEqual(self.lead.contents(), encodeSet([sized(1001), b"b", b"c", b"d"]))

    def test_otherPartitions(self) -> None:
        """Who produces elsewhere does not wait."""
        self.create("u")
        other = self.lead.connect()
        self.peer.send(produce(sized(1001)), produce(b"b"))
        other.send(produce(b"c", topic="u"))
        self.assertEqual(
            (self.lead.log().logEndOffset, self.lead.log("u").logEndOffset), (1001, 11)
        )

    def test_untilHalf(self) -> None:
        """
        Who waits goes on when half of the limit is reached, and no sooner; flushes follow one
        another until then, though none is due.
        """
        self.peer.send(produce(sized(600)))
        self.lead.logManager.flush(self.lead.partition())
        self.peer.send(produce(sized(520)))
        self.peer.send(produce(b"waiting"))
        self.assertEqual(
            (self.lead.log().unflushedSize, waitingCount(self.lead.logManager)), (1120, 1)
        )
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.log().unflushedSize, waitingCount(self.lead.logManager)), (520, 1)
        )
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.log().unflushedSize, waitingCount(self.lead.logManager)), (17, 0)
        )

    def test_halfIsEnough(self) -> None:
        """Exactly half is enough."""
        self.peer.send(produce(sized(600)))
        self.lead.logManager.flush(self.lead.partition())
        self.peer.send(produce(sized(500)))
        self.peer.send(produce(b"waiting"))
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.log().unflushedSize, waitingCount(self.lead.logManager)), (517, 0)
        )

    def test_process(self) -> None:
        """
        Above the limit for all partitions together all are flushed, and every producer waits until
        the sum is down to half.
        """
        self.create("u", "v")
        self.peer.send(produce(sized(900)), produce(sized(900), topic="u"))
        self.assertEqual(len(self.lead.flushWorker.jobs), 0)
        self.peer.send(produce(sized(300), topic="v"))
        self.assertEqual(
            (len(self.lead.flushWorker.jobs), self.lead.logManager.unflushedSize), (3, 2100)
        )
        self.peer.send(produce(b"waiting"))
        self.assertEqual(waitingCount(self.lead.logManager), 1)
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.logManager.unflushedSize, waitingCount(self.lead.logManager)), (1200, 1)
        )
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.logManager.unflushedSize, waitingCount(self.lead.logManager)), (317, 0)
        )
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.lead.logManager.unflushedSize, len(self.lead.flushWorker.jobs)), (17, 0)
        )

    def test_processKeepsFlushing(self) -> None:
        """
        What was appended while the first flushes were under way is flushed, too, while anybody
        waits for the process's limit.
        """
        self.create("u", "v")
        self.peer.send(produce(sized(900)), produce(sized(900), topic="u"))
        self.lead.logManager._flushAll()
        self.peer.send(produce(sized(300), topic="v"), produce(b"waiting", topic="v"))
        other = self.lead.connect()
        other.send(produce(b"waiting, too", topic="u"))
        self.assertEqual(waitingCount(self.lead.logManager), 2)
        self.lead.settle()
        self.assertEqual(
            (
                waitingCount(self.lead.logManager),
                self.lead.log("v").logEndOffset,
                self.lead.log("u").logEndOffset,
            ),
            (0, 317, 922),
        )

    def test_strides(self) -> None:
        """
        Of several that are let go together, those who would come above the limit again wait again;
        at no time is more than one set above it.
        """
        peers = [self.lead.connect() for _ in range(10)]
        self.peer.send(produce(sized(1001)))
        for peer in peers:
            peer.send(produce(sized(400)))
        self.assertEqual(waitingCount(self.lead.logManager), 10)
        most = 0
        while self.lead.flushWorker.jobs:
            self.lead.flushWorker.perform()
            self.lead.turn()
            most = max(most, self.lead.log().unflushedSize)
        self.lead.settle()
        self.assertEqual(
            (most, self.lead.log().logEndOffset, waitingCount(self.lead.logManager)),
            (1200, 1001 + 4000, 0),
        )

    def test_cancel(self) -> None:
        """Who waits for relief or for a roll can go away."""
        self.peer.send(produce(sized(1001)))
        partition, upkeep = self.lead.partition(), self.lead.logManager
        waiting = upkeep.awaitCapacity(partition), upkeep.roll(partition)
        self.assertEqual(waitingCount(upkeep), 2)
        for each in waiting:
            each.cancel()
            self.failureResultOf(each, CancelledError)
        self.assertEqual(waitingCount(upkeep), 0)
        self.lead.settle()


class FullDiskTests(UpkeepTestCase):
    """No room on the disk: held up, and nothing lost."""

    properties = {"disk.full.retry.ms": "500"}

    def full(self, count: int = 1_000_000) -> None:
        self.lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.ENOSPC, count)

    def test_heldUp(self) -> None:
        """
        What was accepted stays in memory, its producers wait, an operator is told once; retried by
        the clock, all of it is there, in order, in the end.
        """
        lines = capture(self)
        other = self.lead.connect()
        self.full()
        self.peer.send(produce(b"a"), produce(b"b"))
        self.peer.send(produce(b"c"), produce(b"d"))
        other.send(produce(b"e"))
        log = self.lead.log()
        self.assertEqual(
            (
                log.logEndOffset,
                log.pendingSize,
                waitingCount(self.lead.logManager),
                self.lead.contents(),
            ),
            (22, 22, 2, b""),
        )
        for _ in range(10):
            self.lead.advance(0.5)
        self.assertEqual(len(lines()), 1)
        self.assertIn("t-0 waits for room on the disk", lines()[0])
        self.lead.fileSystem.mend()
        self.lead.advance(0.5)
        self.lead.settle()
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b", b"c", b"d", b"e"]))
        self.assertEqual((waitingCount(self.lead.logManager), len(lines())), (0, 2))
        self.assertEqual(self.fetch(0), (0, self.lead.contents()))
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_muchWasHeldUp(self) -> None:
        """
        Who waited goes on when there is room again, and not only with the next flush by the clock,
        also when what was held up is more than half of what a partition may have unflushed.
        """
        properties = {
            "log.flush.interval": "1000",
            "log.default.flush.interval.ms": "3600000",
            "max.unflushed.bytes.per.partition": "100",
        }
        self.lead = self.broker({**self.properties, **properties})
        self.peer = self.lead.connect()
        self.create("t")
        self.full()
        self.peer.send(produce(b"x" * 80))
        self.peer.send(produce(b"a"))
        self.assertEqual(waitingCount(self.lead.logManager), 1)
        self.lead.fileSystem.mend()
        self.lead.advance(0.5)
        self.lead.settle()
        self.assertEqual(waitingCount(self.lead.logManager), 0)
        self.assertEqual(self.lead.contents(), encodeSet([b"x" * 80]) + encodeSet([b"a"]))

    def test_reallyFull(self) -> None:
        """
        A disk that takes a part of a write keeps whole sets only; the rest follows when there is
        room (row 46).
        """
        lines = capture(self)
        self.lead.fileSystem.sizeMax = self.lead.fileSystem.usedSize + 30
        self.peer.send(produce(b"a"), produce(b"b"), produce(b"c"), produce(b"d"))
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b"]))
        self.lead.fileSystem.sizeMax += 11
        self.lead.advance(0.5)
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b", b"c"]))
        self.lead.fileSystem.sizeMax = None
        self.lead.advance(0.5)
        self.lead.settle()
        self.assertEqual(self.fetch(0), (0, encodeSet([b"a", b"b", b"c", b"d"])))
        self.assertEqual(len(lines()), 2)

    def test_othersGoOn(self) -> None:
        """Other topics, for which there is room, go on (row 46)."""
        self.create("u")
        other = self.lead.connect()
        self.full()
        self.peer.send(produce(b"a"), produce(b"b"))
        other.send(produce(b"c", topic="u"))
        self.lead.settle()
        self.assertEqual(self.fetch(0, "u"), (0, encodeSet([b"c"])))
        self.assertEqual(self.lead.log().highWatermark, 0)

    def test_readersGoOn(self) -> None:
        """What was visible stays so while the partition is held up."""
        self.peer.send(produce(b"a"))
        self.lead.settle()
        self.full()
        self.peer.send(produce(b"b"))
        self.lead.settle()
        peer = self.lead.connect()
        peer.send(encodeFetch("t", 0, 0, 11))
        self.assertEqual(peer.fetched(), [(0, encodeSet([b"a"]))])

    def test_answersWait(self) -> None:
        """
        An OFFSETS request behind data that waits for the disk is answered when the data is in the
        file, since the answer acknowledges it. Another connection's request is answered at once.
        If the partition fails instead, the request is not answered.
        """
        self.create("u")
        for isMended in (True, False):
            peer, other = self.lead.connect(), self.lead.connect()
            self.full()
            peer.send(produce(b"a") + encodeOffsets("u", 0, -1, 1))
            other.send(encodeOffsets("u", 0, -1, 1))
            self.assertEqual((peer.offsets(), other.offsets()), ([], [[0]]))
            self.lead.fileSystem.mend()
            if not isMended:
                self.lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.EIO)
            self.lead.advance(0.5)
            self.lead.settle()
            self.assertEqual(peer.offsets(), [[0]] if isMended else [])
            self.assertEqual(peer.isClosed, not isMended)

    def test_outOfDescriptors(self) -> None:
        """
        So it is when the segment's file cannot be opened, since there are no descriptors left.
        """
        self.lead.directory.cache.closeIdle()
        self.lead.fileSystem.fail("open", ".kafka", errno.EMFILE, 3)
        self.peer.send(produce(b"a"))
        self.assertEqual(self.lead.log().pendingSize, 11)
        for _ in range(3):
            self.lead.advance(0.5)
        self.lead.settle()
        self.assertEqual(self.fetch(0), (0, encodeSet([b"a"])))

    def test_thenBroken(self) -> None:
        """
        A retry that fails in another way takes the partition out of service, and those who wait are
        told.
        """
        self.full(2)
        self.peer.send(produce(b"a"))
        self.peer.send(produce(b"b"))
        self.lead.fileSystem.fail("write", ".kafka", errno.EIO)
        for _ in range(3):
            self.lead.advance(0.5)
        self.assertIsNotNone(self.lead.log().failure)
        self.assertTrue(self.peer.isClosed)
        self.assertEqual(
            (waitingCount(self.lead.logManager), self.lead.logManager.unflushedSize), (0, 0)
        )

    def test_brokenInAFlush(self) -> None:
        """Those who wait are told at once if the flush on their behalf finds the file broken."""
        lines = capture(self)
        self.full(1)
        self.peer.send(produce(b"a"))
        self.lead.fileSystem.fail("write", ".kafka", errno.EIO)
        self.peer.send(produce(b"b"))
        self.assertTrue(self.peer.isClosed)
        self.assertEqual(
            (self.lead.logManager.unflushedSize, self.lead.logManager.failedPartitionCount()),
            (0, 1),
        )
        self.assertIn("t-0 is out of service", lines()[1])

    def test_closedFull(self) -> None:
        """
        A broker that is stopped while the disk is full says how many bytes are lost, writes no
        mark, and tells the producers that wait.
        """
        lines = capture(self)
        self.create("u")
        self.full()
        self.peer.send(produce(b"a"), produce(b"b"))
        self.peer.send(produce(b"c"))
        self.lead.stop()
        self.assertTrue(
            any(
                "t-0 is closed with 22 bytes that could not be written: they are lost" in line
                for line in lines()
            ),
            lines(),
        )
        self.assertTrue(any("No clean-shutdown marker was written" in line for line in lines()))
        self.assertNotIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))
        self.assertEqual(waitingCount(self.lead.logManager), 0)

    def test_roomAtTheLastMoment(self) -> None:
        """If there is room when it is stopped, nothing is lost, and nothing said."""
        lines = capture(self)
        self.full(2)
        self.peer.send(produce(b"a"), produce(b"b"))
        self.lead.stop()
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b"]))
        self.assertFalse(any("are lost" in line for line in lines()), lines())
        self.assertIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))


class BrokenDiskTests(UpkeepTestCase):
    """A disk that fails in another way (row 46)."""

    def expectFailed(self, reason: str, lines: list[str]) -> None:
        self.assertIn(reason, str(self.lead.log().failure))
        said = [line for line in lines if "t-0 is out of service" in line]
        self.assertEqual(len(said), 1, lines)
        self.assertIn(reason, said[0])
        self.assertEqual(
            (self.lead.logManager.unflushedSize, waitingCount(self.lead.logManager)), (0, 0)
        )
        self.assertEqual(self.lead.pinCounts(), [0] * len(self.lead.pinCounts()))

    def test_write(self) -> None:
        """
        A write that fails takes the partition out of service: fetches are answered with -1,
        producers cut off. Other topics go on.
        """
        lines = capture(self)
        self.create("u")
        self.lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.EIO)
        self.peer.send(produce(b"a"))
        self.lead.settle()
        self.expectFailed("Input/output error", lines())
        self.assertEqual(self.fetch(0), (-1, b""))
        self.peer.send(produce(b"b"))
        self.assertTrue(self.peer.isClosed)
        other = self.lead.connect()
        other.send(produce(b"c", topic="u"))
        self.lead.settle()
        self.assertEqual(self.fetch(0, "u"), (0, encodeSet([b"c"])))
        self.assertEqual(self.lead.counters.topic("t").failedProduceCount, 1)

    def test_sync(self) -> None:
        """
        A flush that fails does so, too, and is never tried again: what it covered stays invisible
        though a second would have succeeded.
        """
        lines = capture(self)
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        self.peer.send(produce(b"a"))
        self.lead.settle()
        self.expectFailed("Input/output error", lines())
        before = self.lead.fileSystem.operationCount
        for _ in range(20):
            self.lead.advance(3)
            self.lead.settle()
        self.assertEqual(self.lead.fileSystem.operationCount, before)
        self.assertEqual(self.lead.log().highWatermark, 0)
        self.assertEqual(self.fetch(0), (-1, b""))
        self.assertEqual(
            self.lead.counters.flushes.snapshot(),
            {"count": 0, "failedCount": 1, "totalMs": 0, "longestMs": 0},
        )

    def test_saidOnce(self) -> None:
        """
        A write that fails while a flush is under way is reported once, not again when the flush has
        ended.
        """
        lines = capture(self)
        self.peer.send(produce(b"a"))
        self.assertEqual(self.lead.flushWorker.jobs.__len__(), 1)
        self.lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.EIO)
        self.peer.send(produce(b"b"))
        self.lead.settle()
        self.expectFailed("Input/output error", lines())

    def test_waitersAreReleased(self) -> None:
        """
        Who waits for relief, for a roll or for a due flush is told when the partition fails; their
        connections end, or get -1.
        """
        lead = self.broker({"max.unflushed.bytes.per.partition": "1000"})
        first, second, third = lead.connect(), lead.connect(), lead.connect()
        first.send(produce(b"a"))
        lead.settle()
        lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        first.send(produce(sized(1001)), produce(b"b"))
        second.send(produce(b"c"))
        third.send(encodeFetch("t", 0, 11, 100), encodeOffsets("t", 0, -1, 1))
        self.assertEqual(waitingCount(lead.logManager), 2)
        lead.settle()
        self.assertTrue(first.isClosed)
        self.assertTrue(second.isClosed)
        self.assertEqual(third.fetched(), [(-1, b"")])
        self.assertTrue(third.isClosed)

    def begin(self) -> None:
        """A broker that flushes when it is told to, and two topics."""
        self.lead = self.broker(NEVER)
        self.peer = self.lead.connect()
        self.create("t", "u")

    def test_nothingIsProven(self) -> None:
        """
        When what was produced on a connection is lost with its partition, a question behind it is
        not answered, whatever topic it is about: the connection ends. Who has produced to other
        partitions is answered, also when the partition had failed before.
        """
        for frame in (
            produce(b"a"),
            encodeProduce("t", -1, encodeSet([b"a"])),
            encodeMultiProduce([("u", 0, encodeSet([b"x"])), ("t", 0, encodeSet([b"a"]))]),
        ):
            for isWrite in (True, False):
                self.begin()
                self.lead.fileSystem.fail(
                    "write" if isWrite else "fsync",
                    self.path()[len(ROOT) :] if isWrite else ".kafka",
                    errno.EIO,
                )
                affected, other = self.lead.connect(), self.lead.connect()
                other.send(produce(b"o", topic="u"))
                if isWrite:  # in one piece, so that only the question has it written
                    affected.send(frame + encodeOffsets("u", 0, -1, 1))
                else:
                    affected.send(frame)
                    self.lead.logManager.flush(self.lead.partition())
                    self.lead.settle()
                    affected.send(encodeOffsets("u", 0, -1, 1))
                self.assertTrue(affected.isClosed)
                self.assertIsNotNone(self.lead.log().failure)
                for peer in (other, self.lead.connect()):
                    peer.send(encodeOffsets("u", 0, -1, 1))
                    self.assertEqual(len(peer.offsets()), 1)

    def test_besideAFailedOne(self) -> None:
        """
        Of two partitions of a topic one is out of service: what is produced to the other is proven
        by a question about that other one, and by no other.
        """
        self.lead = lead = self.broker({**NEVER, "num.partitions": "2"})
        self.peer = lead.connect()
        self.create("t")
        lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.EIO)
        self.peer.send(produce(b"a"))
        self.assertIsNotNone(lead.log().failure)
        for asked, answers in (
            (1, [[0]]),
            (0, []),
        ):  # an answer is what is visible, and nothing was flushed
            peer = lead.connect()
            peer.send(encodeProduce("t", 1, encodeSet([b"b"])) + encodeOffsets("t", asked, -1, 1))
            lead.settle()
            self.assertEqual(peer.offsets(), answers)
            self.assertEqual(peer.closed, not answers)

    def test_failedBefore(self) -> None:
        """
        What failed before a connection produced anything is none of its concern, however much it
        produces, and wherever: it would have been refused there. What fails afterwards is, also
        when the connection has produced to more partitions than are recorded.
        """
        topics = [f"topic{number}" for number in range(PARTITION_COUNT_MAX)]
        everywhere = encodeMultiProduce([(topic, 0, encodeSet([b"x"])) for topic in topics])
        self.begin()
        self.create(*topics)
        self.lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.EIO)
        self.peer.send(produce(b"a"))
        self.assertIsNotNone(self.lead.log().failure)
        peer = self.lead.connect()
        for _time in range(2):
            peer.send(everywhere + encodeOffsets("topic0", 0, -1, 1))
            self.assertEqual(peer.offsets(), [[0]])
        peer.send(everywhere)
        self.lead.fileSystem.fail("write", self.path("topic7")[len(ROOT) :], errno.EIO)
        self.lead.connect().send(produce(b"b", topic="topic7"))
        self.assertIsNotNone(self.lead.log("topic7").failure)
        peer.send(encodeOffsets("topic0", 0, -1, 1))
        self.assertTrue(peer.isClosed)

    def test_provenBefore(self) -> None:
        """
        What was proven before the partition failed counts no more: the connection's questions go on
        being answered.
        """
        self.begin()
        peer = self.lead.connect()
        peer.send(produce(b"a"), encodeOffsets("u", 0, -1, 1))
        self.assertEqual(peer.offsets(), [[0]])
        self.lead.fileSystem.fail("write", self.path()[len(ROOT) :], errno.EIO)
        another = self.lead.connect()
        another.send(produce(b"b"))
        self.assertIsNotNone(self.lead.log().failure)
        peer.send(produce(b"c", topic="u"), encodeOffsets("u", 0, -1, 1))
        self.assertEqual(len(peer.offsets()), 1)
        another.send(encodeOffsets("u", 0, -1, 1))
        self.assertTrue(another.isClosed)

    def test_unforeseen(self) -> None:
        """
        Even an unexpected failure takes only this partition out of service, and its traceback is
        logged.
        """
        lines = capture(self)
        self.peer.send(produce(b"a"))
        self.lead.fileSystem.cutAt = self.lead.fileSystem.operationCount
        self.lead.settle()
        self.assertEqual(len(self.flushLoggedErrors()), 1)
        self.assertIn("failed unexpectedly", lines()[0])
        self.assertIn("the power fails here", str(self.lead.log().failure))

    def test_mark(self) -> None:
        """
        After a failure no clean-shutdown mark is written, so that the next start checks the
        partition.
        """
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        self.peer.send(produce(b"a"))
        self.lead.settle()
        self.lead.stop()
        self.assertNotIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))
        again = self.broker(fileSystem=self.lead.fileSystem)
        self.assertIsNone(again.log().failure)
        self.assertEqual(again.contents(), encodeSet([b"a"]))


class RollTests(UpkeepTestCase):
    """The next segment."""

    properties = {
        **NEVER,
        "log.file.size": "100",
        "log.roll.hours": "1",
        "disk.full.retry.ms": "500",
    }

    def segments(self) -> list[int]:
        return [segment.baseOffset for segment in self.lead.log().segments]

    def test_appendsWait(self) -> None:
        """
        An append that finds the segment too large waits for the next one, which a worker makes; all
        that wait go on in the new segment (row 28).
        """
        other = self.lead.connect()
        self.peer.send(produce(sized(101)), produce(b"b"), produce(b"c"))
        other.send(produce(b"d"))
        self.assertEqual(
            (self.segments(), self.lead.log().logEndOffset, waitingCount(self.lead.logManager)),
            ([0], 101, 2),
        )
        self.lead.flushWorker.perform()
        self.assertEqual(
            (self.segments(), self.lead.log().logEndOffset, waitingCount(self.lead.logManager)),
            ([0, 101], 134, 0),
        )
        self.lead.turn()
        self.assertEqual(self.lead.contents()[101:], encodeSet([b"b", b"c", b"d"]))

    def test_flushed(self) -> None:
        """A roll flushes the old segment: it is visible afterwards, with nothing of the new one."""
        self.peer.send(produce(sized(101)), produce(b"b"))
        self.lead.flushWorker.perform()
        self.assertEqual(self.lead.log().highWatermark, 101)

    def test_flushedAtOnce(self) -> None:
        """What waited for a roll counts for the flush that may follow the roll at once."""
        lead = self.broker({**self.properties, "log.flush.interval": "1"})
        peer = lead.connect()
        peer.send(produce())
        lead.settle()
        peer.send(produce(sized(101)), produce(b"b"))
        lead.flushWorker.perform()  # the flush of the first
        lead.flushWorker.perform()  # the roll
        self.assertEqual(len(lead.flushWorker.jobs), 1)
        lead.flushWorker.perform()
        self.assertEqual(lead.log().highWatermark, 112)

    def test_waitsForTheFlush(self) -> None:
        """A roll waits for a flush that is under way."""
        self.peer.send(produce(sized(101)))
        self.lead.logManager.flush(self.lead.partition())
        self.peer.send(produce(b"b"))
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.lead.flushWorker.perform()
        self.assertEqual((self.segments(), len(self.lead.flushWorker.jobs)), ([0], 1))
        self.lead.flushWorker.perform()
        self.assertEqual(self.segments(), [0, 101])

    def test_byAge(self) -> None:
        """
        A segment whose first message is old is rolled before the next append (row 29,
        LogTest.testTimeBasedLogRoll).
        """
        self.peer.send(produce(b"a"))
        self.lead.advance(3601)
        self.peer.send(produce(b"b"))
        self.lead.settle()
        self.assertEqual(self.segments(), [0, 11])

    def test_emptySetRolls(self) -> None:
        """
        An append of an empty set can roll, too; an empty segment does not roll by age
        (LogTest.testTimeBasedLogRoll).
        """
        self.lead.advance(3601)
        self.peer.send(encodeProduce("t", 0, b""))
        self.lead.settle()
        self.assertEqual(self.segments(), [0])
        self.peer.send(produce(b"a"))
        self.lead.advance(3601)
        self.peer.send(encodeProduce("t", 0, b""))
        self.lead.settle()
        self.assertEqual(self.segments(), [0, 11])

    def test_noRoom(self) -> None:
        """
        When there is no room for the new file the partition is held up, and the roll tried again by
        the clock; nothing is lost.
        """
        lines = capture(self)
        self.lead.fileSystem.fail("create", ".kafka", errno.ENOSPC, 3)
        self.peer.send(produce(sized(101)), produce(b"b"))
        for _ in range(8):
            self.lead.settle()
            self.lead.advance(0.5)
        self.lead.settle()
        self.assertEqual(
            (self.segments(), self.lead.contents()[101:]), ([0, 101], encodeSet([b"b"]))
        )
        self.assertTrue(any("t-0 waits for room on the disk" in line for line in lines()), lines())
        self.assertEqual(waitingCount(self.lead.logManager), 0)
        self.lead.advance(10)
        self.assertEqual(self.lead.logManager.throttled(), [])

    def test_noRoomForThePending(self) -> None:
        """When what is pending finds no room before a roll, that is held up first."""
        self.lead.fileSystem.fail("write", ".kafka", errno.ENOSPC, 3)
        self.peer.send(produce(sized(101)), produce(b"b"))
        for _ in range(8):
            self.lead.settle()
            self.lead.advance(0.5)
        self.assertEqual(
            (self.segments(), self.lead.contents()[101:]), ([0, 101], encodeSet([b"b"]))
        )

    def test_broken(self) -> None:
        """
        When the new file cannot be made for another reason, the partition is out of service and
        those who wait are told.
        """
        self.lead.fileSystem.fail("create", ".kafka", errno.EIO)
        self.peer.send(produce(sized(101)), produce(b"b"))
        self.lead.settle()
        self.assertIsNotNone(self.lead.log().failure)
        self.assertTrue(self.peer.isClosed)

    def test_failedBeforeTheRoll(self) -> None:
        """A roll that waits for a flush which fails is over with it."""
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        self.peer.send(produce(sized(101)))
        self.lead.logManager.flush(self.lead.partition())
        self.peer.send(produce(b"b"))
        self.assertEqual(waitingCount(self.lead.logManager), 1)
        self.lead.settle()
        self.assertEqual(waitingCount(self.lead.logManager), 0)
        self.assertTrue(self.peer.isClosed)

    def test_obstacle(self) -> None:
        """What a roll removes from its way is reported."""
        lines = capture(self)
        self.peer.send(produce(sized(101)))
        self.lead.settle()
        directory = self.path().rpartition("/")[0]
        self.lead.fileSystem.open(f"{directory}/00000000000000000101.kafka", create=True)
        self.peer.send(produce(b"b"))
        self.lead.settle()
        self.assertEqual(self.segments(), [0, 101])
        self.assertTrue(
            any("had the name of the next segment" in line for line in lines()), lines()
        )


class RetentionTests(UpkeepTestCase):
    """Deleting by the clock."""

    properties = {
        "log.flush.interval": "1",
        "log.file.size": "130",
        "log.retention.hours": "1",
        "log.cleanup.interval.mins": "10",
    }

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.peer.send(produce(b"test"))
            self.lead.settle()

    def tick(self, seconds: float) -> None:
        self.lead.advance(seconds)
        self.lead.settle()

    def files(self) -> list[str]:
        return sorted(self.lead.fileSystem.list(f"{ROOT}/t-0"))

    def test_bySize(self) -> None:
        """
        1000 entries of 14 bytes, segments of 130, 710 bytes to keep: of 100 segments exactly 6 are
        left (row 36, LogManagerTest.testCleanupSegmentsToMaintainSize).
        """
        self.lead = self.broker({**self.properties, "log.retention.size": "710"})
        self.peer = self.lead.connect()
        self.fill(1000)
        self.assertEqual(len(self.files()), 100)
        lines = capture(self)
        self.tick(59)
        self.assertEqual(len(self.files()), 100)
        self.tick(1)
        self.assertEqual(len(self.files()), 6)
        self.assertEqual(self.lead.log().logStartOffset, 14 * 940)
        self.assertEqual(self.fetch(0), (1, b""))
        self.assertIn("Deleted 94 segments of t-0, which begins at 13160 now", lines())
        self.assertEqual(self.lead.pinCounts(), [0] * 6)

    def test_bySizeWhileFlushing(self) -> None:
        """A flush that begins while ages are read counts: sizes are looked at behind it."""
        self.lead = self.broker({**self.properties, "log.retention.size": "140"})
        self.peer = self.lead.connect()
        self.fill(11)
        self.lead.advance(60)
        self.peer.send(produce(*[b"test"] * 9))
        self.lead.settle()
        self.assertEqual(self.lead.log().logStartOffset, 140)

    def test_everythingExpired(self) -> None:
        """
        When everything is too old, one new empty segment is left, whose offsets go on where the old
        ended (row 35, row 37, LogManagerTest.testCleanupExpiredSegments).
        """
        self.fill(95)
        self.tick(60)
        self.assertEqual(len(self.files()), 10)
        self.tick(3600)
        end = 95 * 14
        self.assertEqual(self.files(), [f"{end:020d}.kafka"])
        self.assertEqual((self.fetch(end), self.fetch(0)), ((0, b""), (1, b"")))
        self.fill(1)
        self.assertEqual(self.fetch(end), (0, encodeSet([b"test"])))

    def test_touchedFromOutside(self) -> None:
        """Ages go by the files' own times, which an operator may set."""
        self.fill(30)
        self.tick(60)
        first = self.lead.log().segments[0].path
        self.lead.fileSystem.setModified(first, int((self.lead.reactor.seconds() - 7200) * 1000))
        self.tick(600)
        self.assertEqual(len(self.files()), 2)
        self.assertEqual(self.lead.log().logStartOffset, 140)

    def test_readersKeepTheirSlices(self) -> None:
        """
        A segment that is deleted while a client takes its slice is sent to the end, and its file
        removed the next time (row 45).
        """
        self.lead = self.broker(
            {**self.properties, "log.file.size": "3000000", "log.retention.size": "1"}
        )
        self.peer = self.lead.connect()
        for _ in range(4):
            self.peer.send(produce(b"x" * 900_000))
            self.lead.settle()
        reader = self.lead.connect()
        reader.resize(10_000)
        reader.send(encodeFetch("t", 0, 0, 4_000_000))
        self.peer.send(produce(b"new"))
        self.lead.settle()
        self.tick(60)
        self.assertEqual(len(self.files()), 2)
        self.assertTrue(self.files()[0].endswith(".deleted"))
        self.assertEqual(reader.fetched(), [(0, encodeSet([b"x" * 900_000]) * 4)])
        self.tick(600)
        self.assertEqual(len(self.files()), 1)

    def test_failing(self) -> None:
        """
        A deletion that does not work is logged, the partition serves on, and the next time is tried
        again.
        """
        lines = capture(self)
        self.fill(30)
        self.lead.fileSystem.fail("rename", ".kafka", errno.EACCES)
        self.tick(60)
        self.tick(3600)
        self.assertTrue(
            any("Deleting segments of t-0 did not work" in line for line in lines()), lines()
        )
        self.fill(1)
        self.assertEqual(self.fetch(30 * 14), (0, encodeSet([b"test"])))
        self.tick(600)
        self.assertEqual(len(self.files()), 1)

    def test_slow(self) -> None:
        """
        While the last round is not over for a partition, the next leaves it out; what comes
        meanwhile is appended.
        """
        self.fill(25)
        self.lead.advance(60)
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.lead.advance(600)
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.peer.send(produce(b"more"))
        self.assertEqual(self.lead.log().logEndOffset, 26 * 14)
        self.lead.settle()
        self.assertEqual(self.lead.log().highWatermark, 26 * 14)

    def test_failedPartition(self) -> None:
        """A partition that is out of service is left alone."""
        self.fill(1)
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        self.fill(1)
        before = self.lead.fileSystem.operationCount
        self.tick(60)
        self.tick(7200)
        self.assertEqual(self.lead.fileSystem.operationCount, before)

    def test_stoppedInTheMiddle(self) -> None:
        """A stop in the middle of a round lets the job that is under way end."""
        self.fill(30)
        self.tick(60)
        self.lead.advance(3600)
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.lead.stop()
        self.assertIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))

    def test_bug(self) -> None:
        """
        An unexpected failure of retention is logged, and the broker serves on and stops in order.
        """
        lines = capture(self)
        self.lead.logManager._logs = lambda: 1 // 0  # type: ignore[assignment,return-value]
        self.tick(60)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(lines(), ["Background work failed unexpectedly: this is a bug"])
        self.fill(1)
        self.assertEqual(self.fetch(0), (0, encodeSet([b"test"])))
        self.lead.stop()
        self.assertIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))


class EndTests(UpkeepTestCase):
    """Stopping."""

    properties = NEVER

    def drained(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.lead.logManager.drain())

    def test_drain(self) -> None:
        """Draining writes and flushes everything, waits for it, and for what was under way."""
        self.create("u")
        self.peer.send(produce(b"a"), produce(b"b", topic="u"))
        self.lead.logManager.flush(self.lead.partition())
        log = self.lead.log()
        self.lead.append(encodeSet([b"c"]))
        drained = self.drained()
        self.assertNoResult(drained)
        self.lead.settle()
        self.successResultOf(drained)
        self.assertEqual((log.highWatermark, self.lead.log("u").highWatermark), (22, 11))
        self.successResultOf(self.drained())

    def test_stop(self) -> None:
        """
        A stop flushes and closes everything and writes the mark; nothing is left in the reactor
        (row 49).
        """
        self.peer.send(produce(b"a"))
        self.lead.stop()
        self.assertEqual((self.lead.log().highWatermark, self.lead.log().closed), (11, True))
        self.assertIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))
        self.lead.fileSystem.cutPower()
        again = self.broker(fileSystem=self.lead.fileSystem)
        self.assertEqual(again.log().highWatermark, 11)

    def test_nothingLeftInTheReactor(self) -> None:
        """After the end nothing is done by the clock, not even the end of a turn."""
        self.lead.append(b"")
        self.lead.logManager.stop()
        self.assertEqual(self.lead.reactor.getDelayedCalls(), [])

    def test_lastFlushFails(self) -> None:
        """A last flush that fails leaves no mark."""
        self.peer.send(produce(b"a"))
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        self.lead.stop()
        self.assertNotIn(".kafka_cleanshutdown", self.lead.fileSystem.list(ROOT))

    def test_appendAfterTheEnd(self) -> None:
        """
        What would be appended to a closed partition is refused, also by one who waits for a roll
        that comes no more.
        """
        lead: LeadBroker = self.broker(
            {**NEVER, "log.file.size": "100", "max.unflushed.bytes.per.partition": "50"}
        )
        peer: Peer = lead.connect()
        peer.send(produce(b"a"))
        lead.settle()
        peer.send(produce(sized(101)))
        lead.settle()
        log = lead.log()
        closed = Deferred.fromCoroutine(lead.logManager.close(log))
        late = lead.connect()
        late.send(produce(b"late"))
        lead.settle()
        self.successResultOf(closed)
        self.assertTrue(late.isClosed)
        self.assertEqual(lead.contents(), encodeSet([b"a", sized(101)]))
        self.assertRaises(PartitionOfflineError, append, log)
