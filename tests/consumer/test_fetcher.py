"""
Tests for L{pylogbroker.consumer.fetcher}: what is asked of brokers, and what becomes of what they
answer.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from pylogbroker.errors import (
    CorruptCompressionError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    RemotePartitionError,
)
from pylogbroker.protocol.kafka07.requests import MultiFetch, Offsets
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import encodeMessage, encodeSet
from tests.consumer.groupcase import GroupCase, drain


class FetchCase(GroupCase):
    """A member that has both partitions."""

    def fetches(self) -> list[list[tuple[int, int, int]]]:
        """Partition, offset and size of each part of each MULTIFETCH since the last time."""
        asked, self.broker.asked[:] = list(self.broker.asked), []
        return [
            [(each.partition, each.offset, each.sizeMax) for each in request.fetches]
            for request in asked
            if isinstance(request, MultiFetch)
        ]

    def raising(self, stream: Any, *kinds: type[Exception]) -> str:
        """The next thing in a stream is an error."""
        return str(self.assertRaises(kinds, stream.take))


class AskingTests(FetchCase):
    """When and what is asked."""

    def test_multifetch(self) -> None:
        """
        Feature 114, FetcherTest.testFetcher: one request asks for all partitions of a broker, each
        at its offset; two brokers feed one stream, which is empty once drained.
        """
        other = self.cluster.addBroker(1, {"t": 1})
        (stream,) = self.streams(self.member())
        self.fetches()
        self.broker.log("t", 0).append(b"a", b"b")
        self.broker.log("t", 1).append(b"c")
        other.log("t", 0).append(b"d")
        self.cluster.advance(1)
        self.assertEqual(sorted(drain(stream)), [b"a", b"b", b"c", b"d"])
        self.assertEqual(drain(stream), [])
        self.fetches()
        self.cluster.advance(1)
        (parts,) = self.fetches()
        self.assertEqual(sorted(parts), [(0, 22, 1 << 20), (1, 11, 1 << 20)])

    def test_backsOffWhenEmpty(self) -> None:
        """
        Feature 113: a round without anything is followed by C{fetcher.backoff.ms}; one with
        something by the next round at once.
        """
        (stream,) = self.streams(self.member({"fetcher.backoff.ms": "250"}))
        self.cluster.advance(0.3)
        self.fetches()
        self.cluster.advance(2.5)
        self.assertEqual(len(self.fetches()), 10)
        self.broker.log("t", 0).append(*[b"x" * 100] * 100)
        self.cluster.advance(0.25)
        self.assertEqual(len(drain(stream)), 100)
        self.assertEqual(len(self.fetches()), 2)

    def test_fullStream(self) -> None:
        """
        Feature 112, gotcha 53: a full stream is not asked for, and holds up no other; with no room
        anywhere nothing is asked at all.
        """
        member = self.member({"fetch.size": "110", "queuedchunks.max": "3"})
        full, other = self.soon(member.createMessageStreams({"t": 2}))["t"]
        self.broker.log("t", 0).append(*(b"%d" % (index % 10) for index in range(200)))
        self.cluster.advance(5)
        self.assertEqual(full.queuedSize, 330)
        self.fetches()
        self.broker.log("t", 1).append(b"z")
        self.cluster.advance(1)
        self.assertEqual(drain(other), [b"z"])
        self.assertEqual({part[0] for parts in self.fetches() for part in parts}, {1})
        self.broker.log("t", 1).append(*(b"z" for index in range(200)))
        self.cluster.advance(5)
        self.fetches()
        self.cluster.advance(60)
        self.assertEqual(self.fetches(), [])
        got = []
        for _turn in range(50):
            got += drain(full)
            self.cluster.turn()
        self.assertEqual(got, [b"%d" % (index % 10) for index in range(200)])

    def test_roomIsKept(self) -> None:
        """Two brokers and four partitions cannot put more into a stream than it holds."""
        self.cluster.addBroker(1, {"t": 2})
        (stream,) = self.streams(self.member({"fetch.size": "110", "queuedchunks.max": "3"}))
        for broker in self.cluster.brokers.values():
            broker.isHolding = True
        for broker in self.cluster.brokers.values():
            for partition in (0, 1):
                broker.log("t", partition).append(*(b"x" for index in range(50)))
        self.cluster.advance(2)
        for broker in self.cluster.brokers.values():
            broker.isHolding = False
        self.cluster.advance(2)
        self.assertEqual(stream.queuedSize, 330)
        got = []
        for _turn in range(50):
            got += drain(stream)
            self.assertLessEqual(stream.queuedSize, 330)
            self.cluster.advance(0.5)
        self.assertEqual(len(got), 200)

    def test_fair(self) -> None:
        """A request asks for C{max.response.bytes} at most; the partitions take turns."""
        self.cluster.addTopic(0, "wide", 10)
        (stream,) = self.streams(
            self.member(
                {"fetch.size": "110", "max.response.bytes": "330", "queuedchunks.max": "1000"}
            ),
            {"wide": 1},
        )
        for partition in range(10):
            self.broker.log("wide", partition).append(*(b"x" for index in range(20)))
        self.cluster.advance(2)
        drain(stream)
        self.fetches()
        for partition in range(10):
            self.broker.log("wide", partition).append(*(b"x" for index in range(20)))
        self.cluster.advance(1)
        asked = [[part[0] for part in parts] for parts in self.fetches()]
        self.assertEqual(max(len(each) for each in asked), 3)
        counts = [sum(parts.count(partition) for parts in asked) for partition in range(10)]
        self.assertGreater(min(counts), 1)
        self.assertLess(max(counts) - min(counts), 2, counts)

    def test_releasedMeanwhile(self) -> None:
        """What was asked for before a partition was let go of is dropped when it comes."""
        member = self.member()
        (stream,) = self.streams(member)
        self.broker.isHolding = True
        for partition in (0, 1):
            self.broker.log("t", partition).append(b"x")
        self.cluster.advance(1)
        self.streams(self.member({"consumerid": "a"}))
        self.assertEqual(len(member.owned), 1)
        self.broker.isHolding = False
        self.cluster.advance(1)
        self.assertEqual(
            [(message.partition.partition) for message in iter(stream.take, None)], [1]
        )

    def test_stopDropsAnswers(self) -> None:
        """After the end, answers that were under way reach nobody."""
        member = self.member()
        (stream,) = self.streams(member)
        self.broker.isHolding = True
        self.broker.log("t", 0).append(b"x")
        self.cluster.advance(1)
        ending = member.shutdown()
        self.cluster.turn()
        self.broker.isHolding = False
        self.cluster.advance(30)
        self.successResultOf(ending)
        self.assertIsNone(stream.take())
        self.assertEqual(self.clock.getDelayedCalls(), [])


class FailingTests(FetchCase):
    """What goes wrong."""

    def test_brokenConnection(self) -> None:
        """
        Gotcha 52: a broken connection, and a broker that is away for long, are tried again for
        ever; then it goes on, with nothing lost or twice.
        """
        (stream,) = self.streams(self.member())
        self.broker.log("t", 0).append(b"a")
        self.cluster.advance(1)
        self.broker.lines[0].cut()
        self.broker.log("t", 0).append(b"b")
        self.cluster.advance(2)
        self.broker.stop()
        self.broker.log("t", 0).append(b"c")
        self.cluster.advance(600)
        attempts = len(self.broker.network.attempts)
        self.assertGreater(attempts, 100)
        self.assertLess(attempts, 2_000)
        self.broker.isUp = True
        self.cluster.advance(5)
        self.assertEqual(drain(stream), [b"a", b"b", b"c"])

    def test_lostBrokerIsReported(self) -> None:
        """
        A broker that dies is a warning at once, not when C{socket.timeout.ms} is over; one an
        outage, however long that is.
        """
        (stream,) = self.streams(self.member())
        for seconds in (60, 1):
            with capturedLogs() as events:
                self.broker.stop()
                self.cluster.advance(1.5)
                warnings = [
                    formatEvent(each) for each in events if each["log_level"].name == "warn"
                ]
                self.assertEqual(len(warnings), 1, warnings)
                self.assertIn("broker0", warnings[0])
                self.cluster.advance(seconds)
            self.assertEqual(sum("No connection" in formatEvent(each) for each in events), 1)
            self.broker.isUp = True
            self.cluster.advance(10)
        self.broker.log("t", 0).append(b"a")
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"a"])

    def test_silentBroker(self) -> None:
        """A broker that does not answer costs C{socket.timeout.ms}, and is asked again."""
        (stream,) = self.streams(self.member({"socket.timeout.ms": "2000"}))
        self.broker.isHolding = True
        self.broker.log("t", 0).append(b"a")
        self.cluster.advance(30)
        self.broker.isHolding = False
        self.cluster.advance(15)
        self.assertEqual(drain(stream), [b"a"])

    def test_nonsense(self) -> None:
        """A broker that answers nonsense is asked again, too."""
        (stream,) = self.streams(self.member())
        self.broker.log("t", 0).append(b"a")
        self.broker.isHolding = True
        self.cluster.advance(1)
        self.broker.lines[0].deliver(b"\0\0\0\2\0\0")
        self.broker.isHolding = False
        self.cluster.advance(3)
        self.assertEqual(drain(stream), [b"a"])

    def test_oneBadPartition(self) -> None:
        """
        An error code stops its partition alone, comes out of the stream once, and the partition is
        tried again, later and later.
        """
        self.broker.log("t", 0).code = 3
        (stream,) = self.streams(self.member())
        self.broker.log("t", 1).append(b"b")
        self.cluster.advance(300)
        self.assertIn("t-0 at 0", self.raising(stream, RemotePartitionError))
        self.assertEqual(drain(stream), [b"b"])
        self.assertLess(sum(part[0] == 0 for parts in self.fetches() for part in parts), 15)
        self.broker.log("t", 0).code = 0
        self.broker.log("t", 0).append(b"a")
        self.cluster.advance(60)
        self.assertEqual(drain(stream), [b"a"])

    def test_badChecksum(self) -> None:
        """
        Feature 117, LogCorruptionTest: an entry that went bad on the disk: what is before it is
        handed out, then comes an error that names the offset; others go on; once it is mended, it
        goes on there.
        """
        good = encodeMessage(b"a")
        log = self.broker.log("t", 0)
        for bad, kind in (
            (good[:-1] + b"?", InvalidChecksumError),
            (b"\0\0\3\xe8" + good[4:], InvalidMessageSizeError),
            (b"\xff\xff\xff\xff" + good[4:], InvalidMessageSizeError),
        ):
            log.data = good + bad + good
            member = self.member({"autocommit.enable": "false"})
            (stream,) = self.streams(member)
            self.assertEqual(stream.take().value, b"a")  # type: ignore[union-attr]
            text = ""
            for _try in range(40):
                self.cluster.advance(5)
                try:
                    self.assertIsNone(stream.take())
                except kind as error:
                    text = text or str(error)
            self.assertIn("t/0-0 at offset 11", text)
            self.broker.log("t", 1).append(b"b")
            self.cluster.advance(61)
            self.assertEqual(drain(stream), [b"b"])
            log.data = good + good + good
            self.cluster.advance(61)
            self.assertEqual(drain(stream), [b"a", b"a"])
            self.end(member)
            self.broker.logs[("t", 1)].data = b""

    def reading(self, stream: Any) -> list[Any]:
        """
        Somebody reads on and on, and waits where nothing has come yet: values, and the names of
        errors.
        """
        got: list[Any] = []

        async def read() -> None:
            while not stream.isEnded:
                try:
                    async for message in stream:
                        got.append(message.value)
                except PylogbrokerError as error:
                    got.append(type(error).__name__)

        Deferred.fromCoroutine(read())
        return got

    def test_badBeforeWaitingReader(self) -> None:
        """
        A reader that waits when a chunk with a bad entry comes reads in that moment: the error
        comes once, no position gets behind it, and what stands there is handed out when it is
        mended.
        """
        good = encodeMessage(b"a")
        log = self.broker.log("t", 0)
        member = self.member()
        (stream,) = self.streams(member)
        got = self.reading(stream)
        log.data = good + good[:-1] + b"?" + good
        self.cluster.advance(10)
        log.append(b"b")
        self.cluster.advance(300)
        self.assertEqual(got, [b"a", "InvalidChecksumError"])
        self.cluster.do(member.commitOffsets())
        self.assertEqual(self.offset("0-0"), "11")
        log.data = good * 3
        self.cluster.advance(61)
        self.assertEqual(got[2:], [b"a", b"a"])

    def test_badInsideBeforeWaitingReader(self) -> None:
        """
        The same inside a wrapper, which is tried once more, and then its partition is left alone.
        """
        log = self.broker.log("t", 0)
        member = self.member()
        (stream,) = self.streams(member)
        got = self.reading(stream)
        log.data = encodeSet([b"a", b"b"], GZIP)
        end = log.end
        log.data += encodeMessage(b"this is not gzip", codec=GZIP) + encodeSet([b"c", b"d"], GZIP)
        self.cluster.advance(5)
        self.assertEqual(got, [b"a", b"b", "CorruptCompressionError", "CorruptCompressionError"])
        log.append(b"e")
        self.cluster.advance(300)
        self.cluster.do(member.commitOffsets())
        self.assertEqual((len(got), self.offset("0-0")), (4, str(end)))

    def test_waitingReaderShutsDown(self) -> None:
        """
        A reader that shuts its consumer down in the moment in which a message comes has had that
        one, and nothing else goes on.
        """
        member = self.member()
        (stream,) = self.streams(member)
        got: list[Any] = []

        async def read() -> None:
            got.append((await stream.__anext__()).value)
            await member.shutdown()

        reading = Deferred.fromCoroutine(read())
        self.broker.log("t", 0).append(b"a", b"b")
        self.broker.log("t", 1).append(b"c")
        self.cluster.advance(5)
        self.successResultOf(reading)
        self.assertEqual(
            (got, self.offset("0-0"), self.offset("0-1"), self.owners()), ([b"a"], "11", "0", {})
        )
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_badInside(self) -> None:
        """
        What is bad inside a wrapper is tried once more, and then its partition is left alone;
        others go on.
        """
        bad = encodeMessage(b"this is not gzip", codec=GZIP)
        log = self.broker.log("t", 0)
        log.data = encodeMessage(b"a") + bad + encodeMessage(b"c")
        with capturedLogs() as events:
            (stream,) = self.streams(self.member())
            self.assertEqual(stream.take().value, b"a")  # type: ignore[union-attr]
            self.assertIn("at offset 11", self.raising(stream, CorruptCompressionError))
            self.cluster.advance(5)
            self.raising(stream, CorruptCompressionError)
            self.cluster.advance(300)
        self.assertIsNone(stream.take())
        self.assertTrue(
            any("left alone" in event["log_format"] for event in events if event.get("log_format"))
        )
        self.broker.log("t", 1).append(b"b")
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"b"])

    def test_largeMessage(self) -> None:
        """
        A message that is larger than C{fetch.size} is fetched with more, by doubling, for its
        partition alone; then the size is as before.
        """
        member = self.member({"fetch.size": "100", "fetch.size.max": "1000"})
        (stream,) = self.streams(member)
        self.broker.log("t", 0).append(b"x" * 700, b"y")
        self.cluster.advance(1.1)
        self.assertEqual(drain(stream), [b"x" * 700, b"y"])
        sizes = [part[2] for parts in self.fetches() for part in parts if part[0] == 0]
        self.assertEqual(set(sizes), {100, 800})
        self.assertEqual(sizes[-1], 100)

    def test_hugeMessage(self) -> None:
        """
        Beyond C{fetch.size.max} an error names offset and size; other partitions go on, and no
        position moves.
        """
        (stream,) = self.streams(self.member({"fetch.size": "100", "fetch.size.max": "1000"}))
        self.broker.log("t", 0).append(b"a", b"x" * 2_000)
        self.broker.log("t", 1).append(b"b")
        self.cluster.advance(100)
        self.assertEqual(
            sorted(each.value for each in (stream.take(), stream.take()) if each), [b"a", b"b"]
        )
        text = self.raising(stream, MessageTooLargeError)
        self.assertIn(
            "t/0-0 at offset 11: a message of 2010 bytes, fetch.size.max allows 1000", text
        )
        self.assertIsNone(stream.take())

    def test_hugeMessageAtStart(self) -> None:
        """The same at a stored offset: it is not taken for an offset in the middle of something."""
        self.cluster.write("/consumers/g/offsets/t/0-0", b"11")
        self.broker.log("t", 0).append(b"a", b"x" * 2_000)
        (stream,) = self.streams(self.member({"fetch.size": "100", "fetch.size.max": "1000"}))
        self.raising(stream, MessageTooLargeError)
        self.assertEqual(self.offset("0-0"), "11")

    def test_tinyFetchSize(self) -> None:
        """Even a fetch size that holds no size field grows until something fits."""
        (stream,) = self.streams(self.member({"fetch.size": "3"}))
        self.broker.log("t", 0).append(b"abc", b"d")
        self.cluster.advance(2)
        self.assertEqual(drain(stream), [b"abc", b"d"])


class BeginningTests(FetchCase):
    """Where to begin, and begin again."""

    def setUp(self) -> None:
        super().setUp()
        self.broker.log("t", 0).append(*(b"%d" % index for index in range(10)))
        self.all = [b"%d" % index for index in range(10)]

    def store(self, offset: int) -> None:
        self.cluster.write("/consumers/g/offsets/t/0-0", str(offset).encode())

    def read(self, **properties: str) -> list[Any]:
        (stream,) = self.streams(
            self.member({key.replace("_", "."): value for key, value in properties.items()})
        )
        self.cluster.advance(3)
        return drain(stream)

    def test_stored(self) -> None:
        """A stored offset is where to go on; no broker is asked for offsets then."""
        self.store(55)
        self.assertEqual(self.read(), self.all[5:])
        self.assertEqual(
            [
                request
                for request in self.broker.asked
                if isinstance(request, Offsets) and request.partition == 0
            ],
            [],
        )

    def test_outOfRangeSmallest(self) -> None:
        """
        AutoOffsetResetTest: stored offset 10000 with smallest gives all 10, and the reset is stored
        at once, also without auto-commit.
        """
        self.store(10_000)
        member = self.member({"autooffset.reset": "smallest", "autocommit.enable": "false"})
        (stream,) = self.streams(member)
        self.assertEqual(self.offset("0-0"), "0")
        self.assertEqual(drain(stream), self.all)

    def test_minusOneSmallest(self) -> None:
        """
        AutoOffsetResetTest: stored -1, which 0.7.2 leaves when it could not ask, with smallest
        gives all 10.
        """
        self.store(-1)
        self.assertEqual(self.read(autooffset_reset="smallest"), self.all)

    def test_outOfRangeLargest(self) -> None:
        """
        AutoOffsetResetTest: stored offset 10000 with largest gives none; what comes later comes.
        """
        self.store(10_000)
        (stream,) = self.streams(self.member({"autooffset.reset": "largest"}))
        self.cluster.advance(3)
        self.assertEqual(drain(stream), [])
        self.assertEqual(self.offset("0-0"), "110")
        self.broker.log("t", 0).append(b"new")
        self.cluster.advance(3)
        self.assertEqual(drain(stream), [b"new"])

    def test_retention(self) -> None:
        """
        What was deleted before it was read is passed over; what is queued is still read first, and
        the position follows the reading.
        """
        member = self.member({"fetch.size": "110", "queuedchunks.max": "1"})
        (stream,) = self.streams(member)
        log = self.broker.log("t", 0)
        log.append(*[b"x"] * 20)
        log.start, log.data = 220, log.data[220:]
        stream.take()
        self.cluster.advance(3)
        self.assertEqual(drain(stream), self.all[1:] + [b"x"] * 10)
        self.cluster.do(member.commitOffsets())
        self.assertEqual(self.offset("0-0"), "330")

    def test_absentLargest(self) -> None:
        """Feature 107: without a stored offset and with largest, only what comes later comes."""
        self.assertEqual(self.read(autooffset_reset="largest"), [])

    def test_otherPolicy(self) -> None:
        """
        Anything else as the policy: an error of the stream, absent or out of range; the partition
        is left alone, others go on.
        """
        self.cluster.write("/consumers/g/offsets/t/1-0", b"0")
        self.cluster.addBroker(1, {"t": 1}).log("t", 0).append(b"b")
        (stream,) = self.streams(self.member({"autooffset.reset": "fail"}))
        texts = sorted(self.raising(stream, OffsetOutOfRangeError) for _ in range(2))
        self.assertIn("t/0-0: there is no stored offset, and autooffset.reset=fail", texts[0])
        self.cluster.advance(10)
        self.assertEqual(drain(stream), [b"b"])
        self.broker = self.cluster.brokers[1]
        self.broker.log("t", 0).data = b""
        self.broker.log("t", 0).start = 500
        self.cluster.advance(3)
        self.assertIn("offset 11 is out of range", self.raising(stream, OffsetOutOfRangeError))

    def test_wipedBroker(self) -> None:
        """
        A stored offset that is not where a message begins: named in the log, then the reset policy.
        """
        for stored in (3, 5, 12, 16, 20, 105):
            self.store(stored)
            with capturedLogs() as events:
                member = self.member()
                (stream,) = self.streams(member)
                self.cluster.advance(3)
                self.assertEqual(drain(stream), self.all, stored)
            named = [
                event
                for event in events
                if "is not where a message begins" in event.get("log_format", "")
            ]
            self.assertEqual(
                [(event["offset"], str(event["partition"])) for event in named], [(stored, "t/0-0")]
            )
            self.end(member)

    def test_badChecksumAtStoredOffset(self) -> None:
        """
        A stored offset where an entry stands whose checksum alone is wrong is no wiped broker,
        whatever is behind it: an error of the stream that names the offset; nothing is skipped, and
        nothing delivered again.
        """
        log = self.broker.log("t", 0)
        whole = log.data
        good = encodeMessage(b"x")
        bad = good[:-1] + b"?"
        for data, fetchSize in (
            (bad, 1_000),
            (bad + good, 1_000),
            (bad + bad + good, 1_000),
            (bad + good, 11),
            (bad + good, 13),
            (bad + good, 16),
            (bad + good, 18),
        ):
            self.store(55)
            log.data = whole[:55] + data
            member = self.member({"autooffset.reset": "largest", "fetch.size": str(fetchSize)})
            (stream,) = self.streams(member)
            self.assertIn("t/0-0 at offset 55", self.raising(stream, InvalidChecksumError))
            self.cluster.advance(60)
            self.assertIsNone(stream.take())
            self.assertEqual(self.offset("0-0"), "55")
            log.data = whole
            self.cluster.advance(61)
            self.assertEqual(drain(stream), self.all[5:])
            self.end(member)

    def test_badChecksumAndNoEntryBehind(self) -> None:
        """If what stands there leads to no other entry, it was none."""
        self.store(55)
        self.broker.log("t", 0).data = (
            self.broker.log("t", 0).data[:55] + encodeMessage(b"x")[:-1] + b"?" + b"\0" * 20
        )
        (stream,) = self.streams(self.member({"autooffset.reset": "fail"}))
        self.raising(stream, OffsetOutOfRangeError)

    def test_wipedBrokerAndOtherPolicy(self) -> None:
        """The same with another policy is an error of the stream."""
        self.store(12)
        (stream,) = self.streams(self.member({"autooffset.reset": "fail"}))
        self.raising(stream, OffsetOutOfRangeError)

    def test_brokerAway(self) -> None:
        """
        While the broker cannot be asked where to begin, it is tried again; nothing else suffers.
        """
        self.broker.stop()
        member = self.member()
        joining = member.createMessageStreams({"t": 1})
        self.cluster.advance(30)
        (stream,) = self.successResultOf(joining)["t"]
        self.broker.isUp = True
        self.cluster.advance(60)
        self.assertEqual(drain(stream), self.all)
        self.assertIn("2 partitions", repr(member._fetchers))

    def test_leavesWhileAsking(self) -> None:
        """A partition that is let go of while it is asked where to begin is not begun."""
        self.broker.isHolding = True
        member = self.member()
        joining = member.createMessageStreams({"t": 1})
        self.cluster.advance(1)
        self.successResultOf(joining)
        self.cluster.do(member.commitOffsets())
        ending = member.shutdown()
        self.cluster.advance(30)
        self.successResultOf(ending)
        self.assertIsNone(self.offset("0-0"))
