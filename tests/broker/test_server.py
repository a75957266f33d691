"""
Tests of what requests mean.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka07 import Kafka07Protocol, UnconfirmedPartitions
from pylogbroker.broker.server import DUE_FLUSH_WAIT_MS, INLINE_COMPRESSED_SIZE_MAX, Broker
from pylogbroker.errors import (
    CorruptCompressionError,
    DecompressionLimitError,
    InvalidChecksumError,
    InvalidRequestValueError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    PartitionOutOfRangeError,
    PylogbrokerError,
    StorageError,
    UnknownPartitionError,
)
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.protocol.kafka07.requests import Offsets, Produce
from pylogbroker.protocol.kafka07.responses import decodeOffsets
from pylogbroker.records.compression import GZIP, SNAPPY
from pylogbroker.records.messageset import encodeMessage, encodeSet, wrapCompressed
from pylogbroker.types import EARLIEST, LATEST, RANDOM_PARTITION, TopicPartition
from tests.broker.manualbroker import ROOT, LeadBroker, LeadTestCase, capture

ALL = 1 << 30
BAD = encodeMessage(b"a")[:-1] + b"?"
TOO_LARGE = encodeMessage(b"x" * 1_000_001)
NOISE = Random(5).randbytes(INLINE_COMPRESSED_SIZE_MAX + 100)
"""Does not get smaller by compression: a set of it is too large to be opened on the reactor."""


class LenientHandler(Kafka07Protocol):
    """A handler that goes on after every refusal."""

    def __init__(self, broker: Broker, lead: LeadBroker, refusals: list[PylogbrokerError]) -> None:
        super().__init__(broker, ALL, lead.counters, lambda *_: None, lead.service._random)
        self._refusals = refusals

    def _refuseProduce(self, error: PylogbrokerError, unacked: UnconfirmedPartitions) -> None:
        self._refusals.append(error)


class BrokerTestCase(LeadTestCase):
    """A L{Broker}, asked directly."""

    properties: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        self.use(self.broker(self.properties))

    def use(self, lead: LeadBroker) -> None:
        self.lead = lead
        flow: Any = lead.service.connections.sendContext
        self.asked: Broker = flow
        self.unacked = UnconfirmedPartitions()
        self.refusals: list[PylogbrokerError] = []
        self.handler = LenientHandler(self.asked, lead, self.refusals)

    def produce(self, *sets: bytes, topic: str = "t", partition: int = 0) -> Deferred[None] | None:
        later: Deferred[None] | None = self.handler.handle(
            Produce(topic, partition, list(sets)), self.unacked
        )
        return later

    def put(self, *sets: bytes, topic: str = "t", partition: int = 0) -> None:
        """Produce, and see to the end of it."""
        later = self.produce(*sets, topic=topic, partition=partition)
        self.lead.settle()
        if later is not None:
            self.successResultOf(later)

    def fetch(
        self, offset: int, sizeMax: int = 1_000_000, topic: str = "t", partition: int = 0
    ) -> bytes:
        """What a fetch finds without waiting."""
        try:
            found = self.asked.fetch(topic, partition, offset, sizeMax, True)
        except UnknownPartitionError:
            return b""
        assert isinstance(found, Slice)
        return self.take(found)

    def take(self, found: Slice) -> bytes:
        """The bytes of a slice, which is let go."""
        if found.file is None:
            return b""
        data: bytes = self.lead.fileSystem.contents(found.file.path)[
            found.position : found.position + found.size
        ]
        found.file.unpin()
        return data

    def fetchLater(self, offset: int, sizeMax: int = 1_000_000) -> Deferred[Slice]:
        """A fetch that has to wait."""
        found = self.asked.fetch("t", 0, offset, sizeMax, True)
        assert isinstance(found, Deferred)
        self.assertNoResult(found)
        return found

    def offsets(
        self, time: int, countMax: int = 100, topic: str = "t", partition: int = 0
    ) -> Deferred[list[int]]:
        request = Offsets(topic, partition, time, countMax)
        answer: Deferred[list[Any]] = self.handler.handle(request, UnconfirmedPartitions())
        return answer.addCallback(lambda parts: decodeOffsets(parts[0][4:])[1])

    def counted(self, topic: str = "t") -> tuple[int, int, int]:
        """Messages, bytes and failed sets of a topic."""
        counters = self.lead.counters.topic(topic)
        return counters.messageCount, counters.producedSize, counters.failedProduceCount


class ProduceTests(BrokerTestCase):
    """Appending."""

    properties = {"log.flush.interval": "1000"}

    def test_atOnce(self) -> None:
        """
        Plain sets for a partition that is there are appended at once, each counted message by
        message.
        """
        self.put(b"")
        self.put(b"")
        self.assertIsNone(self.produce(encodeSet([b"a", b"b"]), encodeSet([b"c"])))
        self.lead.turn()
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b", b"c"]))
        self.assertEqual(self.counted(), (3, 33, 0))
        self.assertEqual(self.lead.log().appendedCount, 3)

    def test_badInTheMiddle(self) -> None:
        """
        Of a run of sets with a bad one in the middle, those before it stay; with a dialect that
        goes on, those behind it are appended, too.
        """
        self.put(encodeSet([b"a"]), BAD, encodeSet([b"b"]), TOO_LARGE, encodeSet([b"c"]))
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b", b"c"]))
        self.assertEqual(
            [type(error) for error in self.refusals], [InvalidChecksumError, MessageTooLargeError]
        )
        self.assertEqual(self.counted(), (3, 33, 2))

    def test_badEndsTheRun(self) -> None:
        """
        With one that does not go on, those behind the bad one are lost, and the call fails with
        what the dialect raised.
        """

        strict = Kafka07Protocol(self.asked, ALL, self.lead.counters, lambda *_: None, Random(7))
        self.put(b"")
        later = strict.handle(
            Produce("t", 0, [encodeSet([b"a"]), BAD, encodeSet([b"b"])]), self.unacked
        )
        assert later is not None
        self.failureResultOf(later, InvalidChecksumError)
        self.lead.turn()
        self.assertEqual((self.lead.contents(), self.counted()), (encodeSet([b"a"]), (1, 11, 1)))

    def test_cutEnd(self) -> None:
        """
        Behind whole entries a cut one is dropped silently; the topic's bytes count what came, as in
        0.7.
        """
        whole = encodeSet([b"a", b"b"])
        self.put(whole + encodeMessage(b"cut")[:-1])
        self.assertEqual(
            (self.lead.contents(), self.counted(), self.refusals), (whole, (2, 34, 0), [])
        )

    def test_empty(self) -> None:
        """
        An empty set, or one of less than a size field, makes the partition and appends nothing.
        """
        for data in (b"", b"\x00", b"\x00\x00\x00"):
            self.put(data)
        self.assertEqual(
            (self.lead.contents(), self.refusals, self.counted()), (b"", [], (0, 4, 0))
        )

    def test_noSuchPartition(self) -> None:
        """A partition out of range is refused, and makes nothing; -1 is no number here."""
        for partition in (1, -2, 2**31 - 1, -(2**31)):
            self.put(encodeSet([b"a"]), partition=partition)
        self.assertEqual([type(error) for error in self.refusals], [PartitionOutOfRangeError] * 4)
        self.assertEqual(
            (
                self.lead.directory.logs,
                self.lead.counters.topics,
                self.lead.counters.otherTopics.failedProduceCount,
            ),
            ({}, {}, 4),
        )

    def test_badTopic(self) -> None:
        """
        A topic whose name breaks the rules is refused, and makes nothing; also when the broker is
        to pick the partition (row 44).
        """
        for topic in ("", ".", "..", "a/b", "a\x00", "x" * 256, "x" * 255):
            self.put(
                encodeSet([b"a"]), topic=topic, partition=RANDOM_PARTITION if topic == "." else 0
            )
        self.assertEqual([type(error) for error in self.refusals], [InvalidTopicError] * 7)
        self.assertEqual(self.lead.directory.logs, {})

    def test_rejectedCreatesAllTheSame(self) -> None:
        """
        A set that is refused for what is in it has made its partition all the same, as in 0.7 (row
        42).
        """
        self.put(BAD)
        self.assertEqual(list(self.lead.directory.logs), [TopicPartition("t", 0)])

    def test_limitOfMessages(self) -> None:
        """
        A payload of exactly C{max.message.size} passes; inner messages are not measured (row 16).
        """
        self.use(self.broker({"max.message.size": "100", "log.flush.interval": "1000"}))
        exact, over = encodeSet([b"x" * 100]), encodeSet([b"x" * 101])
        inner = wrapCompressed(GZIP, encodeSet([b"x" * 1000]))
        self.put(exact)
        self.put(over)
        self.put(inner)
        self.put(encodeSet([b"y"]) + over)
        self.assertEqual(self.lead.contents(), exact + inner)
        self.assertEqual([type(error) for error in self.refusals], [MessageTooLargeError] * 2)

    def test_whicheverIsFirst(self) -> None:
        """
        Of a set with a message too large and a corrupt one, the first of the two says why it is
        refused.
        """
        self.put(TOO_LARGE + BAD, BAD + TOO_LARGE)
        self.assertEqual(
            [type(error) for error in self.refusals], [MessageTooLargeError, InvalidChecksumError]
        )

    def test_magic0(self) -> None:
        """Messages of magic 0 are kept as they came (row 8)."""
        old = encodeSet([b"a", b""], magic=0)
        self.put(old)
        self.assertEqual((self.lead.contents(), self.counted()), (old, (2, 19, 0)))

    def test_failedPartition(self) -> None:
        """A partition out of service refuses, on the short way and on the long one."""
        self.put(encodeSet([b"a"]))
        self.lead.fileSystem.fail("write", ".kafka", errno.EIO)
        self.put(encodeSet([b"b"]))
        self.assertEqual(self.refusals, [])
        self.put(encodeSet([b"c"]))
        self.put(encodeSet([b"d"]) + b"?")
        self.assertEqual(
            [type(error) for error in self.refusals], [PartitionOfflineError, PartitionOfflineError]
        )
        self.assertEqual(self.counted(), (2, 22, 2))

    def test_fitsTheSegment(self) -> None:
        """A run that would go over the size of a segment is split where 0.7 would have rolled."""
        self.use(self.broker({"log.file.size": "30", "log.flush.interval": "1000"}))
        self.put(b"")
        self.put(*[encodeSet([b"%d" % number]) for number in range(10)])
        self.assertEqual(
            [segment.baseOffset for segment in self.lead.log().segments], [0, 33, 66, 99]
        )
        self.assertEqual(self.lead.contents(), encodeSet([b"%d" % number for number in range(10)]))


class RandomPartitionTests(BrokerTestCase):
    """The broker picks (row 7)."""

    properties = {"num.partitions": "4", "topic.partition.count.map": "six:6"}

    def test_spread(self) -> None:
        """A thousand sets for partition -1 are spread over all four, each set in one of them."""
        for number in range(1000):
            self.produce(encodeSet([b"%03d" % number]), partition=RANDOM_PARTITION)
        self.lead.settle()
        sizes = [len(self.lead.contents("t", partition)) // 13 for partition in range(4)]
        self.assertEqual(sum(sizes), 1000)
        self.assertGreater(min(sizes), 200)

    def test_chance(self) -> None:
        """Which ones, says the chance that the broker was given: the same seed picks the same."""

        def picked(seed: int) -> list[bytes]:
            self.use(self.broker(self.properties, seed=seed))
            self.put(
                *[encodeSet([b"%d" % number]) for number in range(9)], partition=RANDOM_PARTITION
            )
            logs = self.lead.directory.logs
            return [
                self.lead.contents("t", partition) if ("t", partition) in logs else b""
                for partition in range(4)
            ]

        self.assertEqual(picked(7), picked(7))
        self.assertNotEqual(picked(7), picked(8))

    def test_countOfTheTopic(self) -> None:
        """It picks among as many as the topic has (row 43)."""
        self.put(*[encodeSet([b"a"])] * 200, topic="six", partition=RANDOM_PARTITION)
        self.assertEqual(
            sorted(self.lead.directory.logs), [("six", partition) for partition in range(6)]
        )

    def test_everySet(self) -> None:
        """It picks anew for each set of a run."""
        self.put(*[encodeSet([b"a"])] * 100, partition=RANDOM_PARTITION)
        self.assertEqual(len(self.lead.directory.logs), 4)


class CreationTests(BrokerTestCase):
    """A produce request creates its partition (row 42)."""

    def test_joined(self) -> None:
        """
        Producers that come while a partition is made wait for the one creation, and go on in their
        order.
        """
        later = [self.produce(encodeSet([letter])) for letter in (b"a", b"b", b"c")]
        self.assertEqual((len(self.lead.flushWorker.jobs), self.lead.directory.logs), (1, {}))
        self.lead.settle()
        self.assertEqual(
            [self.successResultOf(each) for each in later if each is not None], [None] * 3
        )
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b", b"c"]))

    def test_others(self) -> None:
        """Creations of several partitions do not wait for one another."""
        self.produce(encodeSet([b"a"]), topic="t")
        self.produce(encodeSet([b"a"]), topic="u")
        self.assertEqual(len(self.lead.flushWorker.jobs), 2)

    def test_failing(self) -> None:
        """
        If it cannot be made, out of descriptors or of room, all who wait are refused; a later try
        succeeds.
        """
        for code in (errno.EMFILE, errno.ENOSPC, errno.EIO):
            topic = f"t{code}"
            self.lead.fileSystem.fail("create", ".kafka", code)
            self.produce(encodeSet([b"a"]), topic=topic)
            self.produce(encodeSet([b"b"]), topic=topic)
            self.lead.settle()
            self.assertEqual([type(error) for error in self.refusals], [StorageError] * 2)
            self.assertNotIn((topic, 0), self.lead.directory.logs)
            self.put(encodeSet([b"c"]), topic=topic)
            self.assertEqual(self.lead.contents(topic), encodeSet([b"c"]))
            self.refusals.clear()

    def test_leftBehind(self) -> None:
        """
        What an attempt that was cut short has left is taken in as after a crash, and an operator
        told what was cut.
        """
        self.lead.fileSystem.makeDirectories(f"{ROOT}/t-0")
        segment = self.lead.fileSystem.open(f"{ROOT}/t-0/00000000000000000000.kafka", create=True)
        segment.writeAt(0, [encodeSet([b"a"]), b"torn"])
        lines = capture(self)
        self.put(encodeSet([b"b"]))
        self.assertEqual(self.lead.contents(), encodeSet([b"a", b"b"]))
        self.assertTrue(any("from 15 to 11 bytes" in line for line in lines()), lines())

    def test_partitionsMax(self) -> None:
        """Beyond C{max.partitions} none is created; existing partitions are served."""
        self.use(self.broker({"max.partitions": "2"}))
        for topic in "abc":
            self.put(encodeSet([b"1"]), topic=topic)
        self.assertEqual(sorted(self.lead.directory.logs), [("a", 0), ("b", 0)])
        self.assertIn("max.partitions", str(self.refusals[0]))
        self.put(encodeSet([b"2"]), topic="a")
        self.assertEqual(
            (self.lead.contents("a"), len(self.refusals)), (encodeSet([b"1", b"2"]), 1)
        )

    def test_inventedTopics(self) -> None:
        """
        Who produces to names for which there is no room, or whose partitions cannot be made, takes
        no counters from the topics that come later.
        """
        self.use(self.broker({"max.partitions": "2"}))
        self.put(encodeSet([b"1"]), topic="a")
        self.lead.fileSystem.fail("create", ".kafka", errno.EIO)
        self.put(encodeSet([b"1"]), topic="broken")
        self.put(encodeSet([b"1"]), topic="b")
        for number in range(20):
            self.put(encodeSet([b"1"]), topic=f"invented{number}")
        counters = self.lead.counters
        self.assertEqual(
            (sorted(counters.topics), counters.otherTopics.failedProduceCount, len(self.refusals)),
            (["a", "b"], 21, 21),
        )

    def test_partitionsMaxAtATime(self) -> None:
        """Creations that are under way count."""
        self.use(self.broker({"max.partitions": "2"}))
        for topic in "abcd":
            self.produce(encodeSet([b"1"]), topic=topic)
        self.lead.settle()
        self.assertEqual((len(self.lead.directory.logs), len(self.refusals)), (2, 2))

    def test_couldNotBeLoaded(self) -> None:
        """
        A partition that could not be loaded is refused, and not made anew; its neighbour serves
        (row 41).
        """
        self.put(encodeSet([b"a"]))
        self.put(encodeSet([b"b"]), topic="u")
        self.lead.stop()
        self.lead.fileSystem.open(f"{ROOT}/t-0/00000000000000000500.kafka", create=True)
        self.use(self.broker(fileSystem=self.lead.fileSystem))
        self.put(encodeSet([b"c"]))
        self.put(encodeSet([b"d"]), topic="u")
        self.assertEqual([type(error) for error in self.refusals], [PartitionOfflineError])
        self.assertEqual(self.lead.counters.topics["t"].failedProduceCount, 1)
        self.assertRaises(PartitionOfflineError, self.asked.fetch, "t", 0, 0, 100)
        self.assertEqual(self.lead.contents("u"), encodeSet([b"b", b"d"]))


class CompressedTests(BrokerTestCase):
    """Wrappers are opened to be checked, and kept as they came (row 11 to 13)."""

    def setUp(self) -> None:
        super().setUp()
        self.put(b"")

    def test_small(self) -> None:
        """A small one is opened at once; its messages are counted one by one."""
        for codec in (GZIP, SNAPPY):
            before = self.counted()[0]
            data = encodeSet([b"a", b"b", b"c"], codec)
            done = self.produce(data)
            self.assertEqual(len(self.lead.readWorker.jobs), 0)
            self.lead.settle()
            self.assertIsNone(self.successResultOf(done) if done is not None else None)
            self.assertTrue(self.lead.contents().endswith(data))
            self.assertEqual(self.counted()[0] - before, 3)

    def test_nested(self) -> None:
        """Wrappers inside wrappers count what is inside at last, up to a depth (row 13)."""
        data = encodeSet([b"a", b"b"])
        for _ in range(8):
            data = wrapCompressed(GZIP, data)
        self.put(data)
        self.assertEqual((self.lead.contents(), self.counted()[0]), (data, 2))
        self.put(wrapCompressed(GZIP, data))
        self.assertEqual([type(error) for error in self.refusals], [DecompressionLimitError])

    def test_large(self) -> None:
        """A large one is opened by a worker."""
        data = encodeSet([NOISE], SNAPPY)
        done = self.produce(data)
        assert done is not None
        self.assertNoResult(done)
        self.assertEqual((len(self.lead.readWorker.jobs), self.lead.log().logEndOffset), (1, 0))
        self.lead.settle()
        self.assertIsNone(self.successResultOf(done))
        self.assertEqual((self.lead.contents(), self.counted()), (data, (1, len(data), 0)))

    def test_opensLarge(self) -> None:
        """So is a small one that opens to much."""
        data = encodeSet([b"x" * 1000] * 100, GZIP)
        self.assertLess(len(data), INLINE_COMPRESSED_SIZE_MAX)
        self.produce(data)
        self.assertEqual(len(self.lead.readWorker.jobs), 1)
        self.lead.settle()
        self.assertEqual((self.lead.contents(), self.counted()[0]), (data, 100))

    def test_order(self) -> None:
        """Sets of one request line stay in order, whatever a worker does with them."""
        large = encodeSet([NOISE], GZIP)
        self.put(encodeSet([b"a"]), large, encodeSet([b"b"]), large, encodeSet([b"c"]))
        self.assertEqual(
            self.lead.contents(),
            encodeSet([b"a"]) + large + encodeSet([b"b"]) + large + encodeSet([b"c"]),
        )

    def test_bad(self) -> None:
        """What cannot be opened, or has bad messages inside, is refused, small or large."""
        for bad in (
            encodeMessage(b"no gzip", codec=GZIP),
            encodeMessage(b"\xff\xff\xff\xff\x0f", codec=SNAPPY),
            encodeMessage(NOISE, codec=GZIP),
            wrapCompressed(GZIP, BAD),
            wrapCompressed(GZIP, encodeMessage(NOISE)[:-1] + b"?"),
        ):
            self.put(bad)
        self.assertEqual(
            [type(error) for error in self.refusals],
            [
                CorruptCompressionError,
                CorruptCompressionError,
                CorruptCompressionError,
                InvalidChecksumError,
                InvalidChecksumError,
            ],
        )
        self.assertEqual((self.lead.contents(), self.counted()), (b"", (0, 0, 5)))

    def test_bomb(self) -> None:
        """One that opens to more than is allowed is refused."""
        self.use(self.broker({"max.decompressed.bytes": "200000"}))
        self.put(encodeSet([b"x" * 200_001], GZIP))
        self.put(encodeSet([b"x" * 150_000], GZIP))
        self.assertEqual([type(error) for error in self.refusals], [DecompressionLimitError])
        self.assertEqual(self.counted()[0], 1)

    def test_memory(self) -> None:
        """
        Decompression takes memory from one budget: twice the largest decompressed size, since the
        set exists in pieces and joined. A request that finds none left waits for another to end,
        though workers are free. A refused set returns its memory, too.
        """
        self.use(
            self.broker(
                {"max.decompressed.bytes": "1000000", "max.decompression.memory.bytes": "4000000"}
            )
        )
        self.put(b"")
        large = encodeSet([NOISE], SNAPPY)
        self.produce(large)
        self.produce(wrapCompressed(GZIP, encodeMessage(NOISE)[:-1] + b"?"))
        self.produce(large)
        self.produce(large)
        self.assertEqual(len(self.lead.readWorker.jobs), 2)
        self.lead.readWorker.perform()
        self.assertEqual(len(self.lead.readWorker.jobs), 2)
        self.lead.readWorker.perform()
        self.assertEqual((len(self.refusals), len(self.lead.readWorker.jobs)), (1, 2))
        self.lead.settle()
        self.assertEqual((self.lead.contents(), self.asked._decompression.size), (large * 3, 0))


class FetchTests(BrokerTestCase):
    """Finding (spec-0.7 wire-protocol §7.1)."""

    properties = {"log.file.size": "100"}

    def setUp(self) -> None:
        super().setUp()
        self.sets = [encodeSet([b"%02d" % number]) for number in range(20)]
        self.put(*self.sets)
        self.all = b"".join(self.sets)
        self.assertEqual(
            [segment.baseOffset for segment in self.lead.log().segments], [0, 108, 216]
        )

    def tearDown(self) -> None:
        self.assertEqual(self.lead.pinCounts(), [0] * len(self.lead.pinCounts()))

    def test_found(self) -> None:
        """
        Bytes from the offset, at most as many as asked for, never over the end of a segment; a cut
        last message included.
        """
        self.assertEqual(self.fetch(0, 30), self.all[:30])
        self.assertEqual(self.fetch(12, 12), self.all[12:24])
        self.assertEqual(self.fetch(0, 1000), self.all[:108])
        self.assertEqual(self.fetch(96, 1000), self.all[96:108])
        self.assertEqual(self.fetch(108, 1000), self.all[108:216])
        self.assertEqual(self.fetch(216, 2**31 - 1), self.all[216:])
        self.assertEqual(self.fetch(5, 10), self.all[5:15])

    def test_pinned(self) -> None:
        """What is found is pinned, once."""
        found = self.asked.fetch("t", 0, 216, 100)
        assert isinstance(found, Slice) and found.file is not None
        self.assertEqual(self.lead.pinCounts(), [0, 0, 1])
        found.file.unpin()

    def test_end(self) -> None:
        """At the end it is empty, for any size; with size 0 everywhere."""
        for sizeMax in (100, 0, -1):
            self.assertEqual(self.asked.fetch("t", 0, 240, sizeMax), EMPTY_SLICE)
        self.assertEqual(self.asked.fetch("t", 0, 0, 0), EMPTY_SLICE)

    def test_outOfRange(self) -> None:
        """Below the start, beyond the visible end, negative: out of range, with any size."""
        for offset in (-1, 241, 2**63 - 1, -(2**63)):
            for sizeMax in (100, 0, -1):
                self.assertRaises(OffsetOutOfRangeError, self.asked.fetch, "t", 0, offset, sizeMax)

    def test_negativeSize(self) -> None:
        """A negative size inside the log cannot be meant (gotcha 17)."""
        self.assertRaises(InvalidRequestValueError, self.asked.fetch, "t", 0, 0, -1)

    def test_unknown(self) -> None:
        """
        A partition that does not exist is empty at every offset; nothing is made (row 18). Names
        and numbers are judged first.
        """
        for offset in (0, 500, -1):
            self.assertRaises(UnknownPartitionError, self.asked.fetch, "unknown", 0, offset, 100)
            self.assertEqual(self.fetch(offset, 100, "unknown"), b"")
        self.assertEqual(list(self.lead.directory.logs), [("t", 0)])
        self.assertRaises(PartitionOutOfRangeError, self.asked.fetch, "unknown", 1, 0, 100)
        self.assertRaises(PartitionOutOfRangeError, self.asked.fetch, "t", -1, 0, 100)
        self.assertRaises(InvalidTopicError, self.asked.fetch, "..", 7, 0, 100)

    def test_closedFile(self) -> None:
        """A segment whose file is not open is opened by a worker first."""
        self.lead.directory.cache.closeIdle()
        found = self.asked.fetch("t", 0, 0, 24)
        assert isinstance(found, Deferred)
        self.assertNoResult(found)
        self.lead.readWorker.perform()
        self.assertEqual(self.take(self.successResultOf(found)), self.all[:24])

    def test_cannotBeOpened(self) -> None:
        """If that fails, so does the fetch; the next one may succeed."""
        self.lead.directory.cache.closeIdle()
        self.lead.fileSystem.fail("open", ".kafka", errno.EMFILE)
        found = self.asked.fetch("t", 0, 0, 24)
        assert isinstance(found, Deferred)
        self.lead.settle()
        self.failureResultOf(found, StorageError)
        again = self.asked.fetch("t", 0, 0, 24)
        assert isinstance(again, Deferred)
        self.lead.settle()
        self.assertEqual(self.take(self.successResultOf(again)), self.all[:24])

    def test_fewerPartitions(self) -> None:
        """
        After a restart with fewer partitions those beyond the number are out of range, though they
        are on the disk.
        """
        self.lead.stop()
        fileSystem = self.lead.fileSystem
        self.use(self.broker({"num.partitions": "2"}, fileSystem=fileSystem))
        self.put(encodeSet([b"a"]), topic="u", partition=1)
        self.lead.stop()
        self.use(self.broker(fileSystem=fileSystem))
        self.assertRaises(PartitionOutOfRangeError, self.asked.fetch, "u", 1, 0, 100)
        self.put(encodeSet([b"a"]), topic="u", partition=1)
        self.assertEqual([type(error) for error in self.refusals], [PartitionOutOfRangeError])


class DueTests(BrokerTestCase):
    """A fetch that reaches beyond what is visible waits for a flush that is due by count."""

    properties = {"log.flush.interval": "3"}

    def setUp(self) -> None:
        super().setUp()
        self.first = encodeSet([b"a", b"b", b"c"])
        self.put(self.first)

    def begin(self) -> None:
        self.produce(self.first)
        self.lead.turn()
        self.assertEqual((self.lead.log().highWatermark, self.lead.log().flushDueOffset), (33, 66))

    def test_waits(self) -> None:
        """It finds what 0.7 would have found, which flushes before the produce request ends."""
        self.begin()
        atTheEnd, beyond, across = self.fetchLater(33), self.fetchLater(44), self.fetchLater(0, 50)
        self.lead.flushWorker.perform()
        self.assertEqual(self.take(self.successResultOf(atTheEnd)), self.first)
        self.assertEqual(self.take(self.successResultOf(beyond)), self.first[11:])
        self.assertEqual(self.take(self.successResultOf(across)), (self.first * 2)[:50])
        self.assertEqual(self.lead.pinCounts(), [0])
        self.assertEqual(
            len(self.lead.reactor.getDelayedCalls()), 8
        )  # the ticks of upkeep, and the looks for stalled readers, for who does not close, for who
        # is idle, and for what to compact

    def test_doesNotReach(self) -> None:
        """It does not wait if it does not reach that far."""
        self.begin()
        self.assertEqual(self.fetch(0, 33), self.first)
        self.assertEqual(self.fetch(33, 0), b"")
        self.assertRaises(OffsetOutOfRangeError, self.asked.fetch, "t", 0, 67, 100)

    def test_notDue(self) -> None:
        """
        It does not wait for what is not due: that is empty, or out of range beyond (row 31, row
        34).
        """
        self.produce(encodeSet([b"d", b"e"]))
        self.lead.turn()
        self.assertEqual(self.fetch(33), b"")
        self.assertRaises(OffsetOutOfRangeError, self.asked.fetch, "t", 0, 44, 100)
        self.assertEqual(self.successResultOf(self.offsets(LATEST)), [33, 0])

    def test_tooLong(self) -> None:
        """It gives up after its time, and answers with what is visible then."""
        self.begin()
        atTheEnd, beyond, offsets = self.fetchLater(33), self.fetchLater(44), self.offsets(LATEST)
        self.lead.reactor.advance(DUE_FLUSH_WAIT_MS / 1000 - 0.01)
        self.assertNoResult(atTheEnd)
        self.lead.reactor.advance(0.02)
        self.assertEqual(self.successResultOf(atTheEnd), EMPTY_SLICE)
        self.failureResultOf(beyond, OffsetOutOfRangeError)
        self.assertEqual(self.successResultOf(offsets), [33, 0])
        self.lead.settle()
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_fails(self) -> None:
        """When the flush fails it fails with the partition."""
        self.begin()
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        found, offsets = self.fetchLater(33), self.offsets(LATEST)
        self.lead.settle()
        self.failureResultOf(found, PartitionOfflineError)
        self.failureResultOf(offsets, PartitionOfflineError)
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_offsetsBehindAProduce(self) -> None:
        """
        What was produced before a question for offsets is in the file before the answer is there,
        also if that is about another topic.
        """
        self.put(b"")
        for topic in ("t", "other"):
            self.produce(encodeSet([b"x"]))
            before = len(self.lead.contents())
            asked = self.offsets(LATEST, topic=topic)
            self.assertEqual(len(self.lead.contents()), before + 11)
            self.lead.settle()
            self.successResultOf(asked)

    def test_offsets(self) -> None:
        """Offsets wait, too: the latest is what 0.7 would have said."""
        self.begin()
        found = self.offsets(LATEST)
        self.assertNoResult(found)
        self.lead.flushWorker.perform()
        self.assertEqual(self.successResultOf(found), [66, 0])

    def test_closedMeanwhile(self) -> None:
        """If the segment's file was closed while the fetch waited, it is opened again."""
        self.lead.directory.cache.descriptorCountMax = 0
        self.begin()
        later = self.fetchLater(0)
        self.lead.flushWorker.perform()
        self.assertNoResult(later)
        self.assertFalse(self.lead.log().segments[0].file.isOpen)
        self.lead.readWorker.perform()
        self.assertEqual(self.take(self.successResultOf(later)), self.first * 2)

    def test_perSet(self) -> None:
        """
        With a flush due at every message, what was just sent is found by the next request,
        whichever it is.
        """
        self.use(self.broker())
        for number in range(5):
            self.put(b"")
            self.produce(encodeSet([b"%d" % number]))
            found = self.asked.fetch("t", 0, number * 11, 100, True)
            self.lead.settle()
            if isinstance(found, Deferred):
                found = self.successResultOf(found)
            self.assertEqual(self.take(found), encodeSet([b"%d" % number]))


class OffsetsTests(BrokerTestCase):
    """Offsets before a time (spec-0.7 wire-protocol §10, LogOffsetTest)."""

    properties = {"log.file.size": "100"}

    def test_unknown(self) -> None:
        """
        Of a partition that does not exist: the latest and the earliest are 0, whatever count,
        others there are none; nothing is made.
        """
        for time in (LATEST, EARLIEST):
            for countMax in (1, 0, -1):
                self.assertEqual(self.successResultOf(self.offsets(time, countMax)), [0])
        self.assertEqual(self.successResultOf(self.offsets(1)), [])
        self.assertEqual(self.lead.directory.logs, {})

    def test_example(self) -> None:
        """
        Twenty entries of 12 bytes in segments of 100: 240, 216, 108, 0 (row 6,
        LogOffsetTest.testGetOffsetsBeforeLatestTime).
        """
        self.put(*[encodeSet([b"%02d" % number]) for number in range(20)])
        nowMs = int(self.lead.reactor.seconds() * 1000)
        self.assertEqual(self.successResultOf(self.offsets(LATEST, 10)), [240, 216, 108, 0])
        self.assertEqual(self.successResultOf(self.offsets(LATEST, 1)), [240])
        self.assertEqual(self.successResultOf(self.offsets(LATEST, 0)), [])
        self.assertEqual(self.successResultOf(self.offsets(EARLIEST, 10)), [0])
        self.assertEqual(self.successResultOf(self.offsets(nowMs, 10)), [240, 216, 108, 0])
        self.lead.advance(5)
        self.assertEqual(self.successResultOf(self.offsets(nowMs, 10)), [216, 108, 0])
        self.assertEqual(self.successResultOf(self.offsets(nowMs - 1, 10)), [])

    def test_refused(self) -> None:
        """A negative count, a bad name, a partition out of range."""
        self.put(encodeSet([b"a"]))
        self.failureResultOf(self.offsets(LATEST, -1), InvalidRequestValueError)
        self.failureResultOf(self.offsets(LATEST, topic="."), InvalidTopicError)
        self.failureResultOf(self.offsets(LATEST, partition=1), PartitionOutOfRangeError)
        self.failureResultOf(self.offsets(LATEST, partition=-1), PartitionOutOfRangeError)


class SentTests(BrokerTestCase):
    """Counting what goes out."""

    def test_countOut(self) -> None:
        """What was sent adds up, and so do the writes."""
        self.asked.onBytesSent(5)
        self.asked.onBytesSent(7)
        requests = self.lead.counters.requests
        self.assertEqual((requests.writtenSize, requests.writeCount), (12, 2))
