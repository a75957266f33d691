"""
Tests for L{pylogbroker.mirror.forwarder}: a stream that the test fills, and a target that the test
is.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.stream import Chunk, MessageStream
from pylogbroker.errors import InvalidChecksumError, MessageTooLargeError, NoBrokersError
from pylogbroker.metrics.mirrormetrics import MirrorCounters
from pylogbroker.mirror import forwarder
from pylogbroker.mirror.forwarder import Forwarder
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.retry import RESEND_DELAYS
from pylogbroker.types import BrokerPartition, PartitionId

ONE, TWO = PartitionId("t", BrokerPartition(0, 0)), PartitionId("t", BrokerPartition(0, 1))


class FarTarget:
    """
    @ivar sent: what was sent: topic, payloads, home, and how to answer.
    """

    batchCountMax = 10
    batchSizeMax = 100

    def __init__(self, clock: Clock) -> None:
        self.inFlight = InFlightMessageLimiter(clock, 30, 1 << 20, -1)
        self.sent: list[tuple[str, list[bytes], BrokerPartition | None, Deferred[None]]] = []

    def send(
        self, topic: str, payloads: list[bytes], fixedTarget: BrokerPartition | None
    ) -> Deferred[None]:
        self.sent.append((topic, payloads, fixedTarget, Deferred()))
        return self.sent[-1][-1]

    def batches(self) -> list[list[bytes]]:
        return [payloads for _topic, payloads, _fixedTarget, _answer in self.sent]

    def confirm(self, count: int = 1 << 30) -> None:
        for *_batch, answer in self.sent[:count]:
            if not answer.called:
                answer.callback(None)


class ForwarderTests(SynchronousTestCase):
    """From a stream to the target."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.positions: dict[PartitionId, int] = {}
        self.ends: dict[PartitionId, int] = {}
        self.unreadable: list[PartitionId] = []
        self.stream = MessageStream(
            "s",
            self.clock,
            self.positions,
        )
        self.target = FarTarget(self.clock)
        self.tracker = OffsetTracker()
        self.counters = MirrorCounters()
        self.again: list[tuple[PartitionId, int]] = []
        self.homes: dict[PartitionId, BrokerPartition] = {}
        target: Any = self.target
        self.forwarder = Forwarder(
            self.clock,
            lambda: 0.0,
            self.stream,
            target,
            self.tracker,
            self.counters,
            self.homes.get,
            {},
            self.seek,
        )
        self.running = Deferred.fromCoroutine(self.forwarder.run())

    def seek(self, partitionId: PartitionId, offset: int) -> None:
        self.again.append((partitionId, offset))
        self.stream.drop((partitionId,))

    def put(
        self, partitionId: PartitionId, *payloads: bytes, codec: int = 0, spoil: bool = False
    ) -> int:
        """What a fetch brought. Returns its end."""
        data = encodeSet(payloads, codec)
        if spoil:
            data = data[:-1] + b"\xff"
        start = self.ends.get(partitionId, 0)
        self.ends[partitionId] = start + len(data)
        self.stream.put(
            Chunk(
                partitionId,
                MessageSet(data, start),
                len(data),
                start + len(data),
                lambda offset, error: self.unreadable.append(partitionId),
            )
        )
        self.turn()
        return self.ends[partitionId]

    def turn(self) -> None:
        for _turn in range(10):
            self.clock.advance(0)

    def test_batches(self) -> None:
        """
        What is there goes at once, in batches of one source partition, none larger than it may be.
        """
        self.stream.put(Chunk(TWO, MessageSet(encodeSet([b"x"]), 0), 11, 11))
        self.put(ONE, *[b"%d" % number for number in range(25)])
        self.assertEqual(self.target.batches()[0], [b"x"])
        self.assertEqual([len(batch) for batch in self.target.batches()[1:]], [10, 10, 5])
        self.put(ONE, b"a" * 60, b"b" * 60, b"c" * 200, b"d")
        self.assertEqual(
            [batch[0][:1] + b"%d" % len(batch) for batch in self.target.batches()[4:]],
            [b"a1", b"b1", b"c1", b"d1"],
        )
        self.assertEqual(self.counters.underWayCount, 30)

    def test_mixed(self) -> None:
        """Partitions that take turns have their batches side by side."""
        for _round in range(3):
            for partitionId in (ONE, TWO):
                self.stream.put(
                    Chunk(
                        partitionId,
                        MessageSet(encodeSet([b"%d" % partitionId.partition.partition]), 0),
                        11,
                        11,
                    )
                )
        self.turn()
        self.assertEqual(sorted(self.target.batches()[-2:]), [[b"0"] * 2, [b"1"] * 3])

    def test_books(self) -> None:
        """What is taken is in the books in the same moment, and settled when it is confirmed."""
        self.tracker.begin(ONE, 0)
        end = self.put(ONE, b"a", b"b")
        self.assertEqual(
            (
                self.positions[ONE],
                self.tracker.committableOffset(ONE, end),
                self.target.inFlight.count,
            ),
            (end, 0, 2),
        )
        self.target.confirm()
        self.assertEqual(
            (
                self.tracker.committableOffset(ONE, end),
                self.tracker.readBoundary(ONE, None),
                self.target.inFlight.count,
            ),
            (end, end, 0),
        )
        self.assertEqual(
            (
                self.counters.confirmedCount,
                self.counters.confirmedSize,
                self.counters.topics["t"].messageCount,
            ),
            (2, 2, 2),
        )

    def test_offsets(self) -> None:
        """
        A message that the target does not take has the offset that a reader gets it with; the very
        first of a partition, that of its end.
        """
        self.tracker.begin(ONE, 0)
        self.put(ONE, b"x" * 99)
        self.put(TWO, b"x" * 99)
        with capturedLogs() as events:
            self.refuse()
        self.assertEqual(
            [event["where"] for event in events if "where" in event],
            ["at offset 0", "that ends at offset 109"],
        )
        self.assertEqual([each.offset for each in self.counters.stuck.values()], [0, 109])
        self.target.confirm()
        self.put(ONE, b"a", b"x" * 99)
        self.refuse()
        self.assertEqual([each.offset for each in self.counters.stuck.values()], [120])

    def refuse(self) -> None:
        """What is large, often enough."""
        for _attempt in range(4):
            for batch in self.target.sent:
                if not batch[-1].called:
                    if b"x" * 99 in batch[1]:
                        batch[-1].errback(MessageTooLargeError("too large"))
                    else:
                        batch[-1].callback(None)
            self.clock.advance(RESEND_DELAYS.maxMs / 1000)

    def test_noRoom(self) -> None:
        """
        With a target that confirms nothing, no more is taken than it has room for, give or take a
        turn; then it goes on.
        """
        self.patch(forwarder, "TURN_COUNT_MAX", 5)
        for _chunk in range(20):
            self.put(ONE, *[b"m"] * 10)
        self.assertLessEqual(self.counters.takenCount, 30 + 5)
        self.assertTrue(self.stream.queuedSize)
        while self.counters.takenCount < 200:
            before = self.counters.confirmedCount
            self.target.confirm()
            self.turn()
            self.assertGreater(self.counters.confirmedCount, before)
        self.target.confirm()
        self.assertEqual(sum(map(len, self.target.batches())), 200)

    def test_turns(self) -> None:
        """A turn has an end, and nothing is lost between two."""
        self.patch(forwarder, "TURN_COUNT_MAX", 7)
        sent = [b"%d" % number for number in range(25)]
        self.put(ONE, *sent)
        self.assertEqual([payload for batch in self.target.batches() for payload in batch], sent)
        self.assertEqual([len(batch) for batch in self.target.batches()], [7, 7, 7, 4])

    def test_insideWrapper(self) -> None:
        """
        The edge lies behind a wrapper, or is not known; never inside one, where the next reader
        gets its first messages again.
        """
        self.tracker.begin(ONE, 0)
        end = self.put(ONE, *[b"%d" % number for number in range(4)], codec=1)
        self.assertEqual(self.tracker.readBoundary(ONE, None), end)
        self.put(
            ONE, *[b"%d" % number for number in range(10)], codec=1
        )  # all but one fill a batch
        self.target.batchCountMax = 9
        edges: list[int | None] = []
        handed = self.tracker.register

        def register(partitionId: PartitionId, nextOffset: int, isWhole: bool) -> Any:
            batch_ = handed(partitionId, nextOffset, isWhole)
            edges.append(self.tracker.readBoundary(partitionId, None))
            return batch_

        self.tracker.register = register  # type: ignore[method-assign, assignment]
        before = self.ends[ONE]
        after = self.put(ONE, *[b"%d" % number for number in range(10)], codec=1)
        self.assertEqual(edges, [None, after])
        self.assertGreater(after, before)

    def test_fault(self) -> None:
        """
        A partition that cannot be read is named in the log and counted; what came before it and the
        others go on.
        """
        self.positions.update({ONE: 0, TWO: 0})
        self.put(TWO, b"a", b"b", spoil=True)
        self.put(ONE, b"c", spoil=True)
        self.put(ONE, b"d")
        self.assertEqual(
            [payload for batch in self.target.batches() for payload in batch], [b"a", b"d"]
        )
        self.assertEqual((self.counters.faultCount, self.unreadable), (2, [TWO, ONE]))
        self.assertEqual(self.flushLoggedErrors(InvalidChecksumError), [])

    def test_unforeseen(self) -> None:
        """
        After an error that nobody foresaw it goes on a little later, and what was taken before it
        is on its way.
        """
        take = self.stream.take
        answers = [None, ZeroDivisionError()]

        def broken() -> Any:
            answer = answers.pop(0) if answers else None
            if answer is not None:
                raise answer
            return take()

        self.stream.take = broken  # type: ignore[method-assign]
        self.put(ONE, b"a", b"b")
        self.assertEqual(
            (self.target.batches(), len(self.flushLoggedErrors(ZeroDivisionError))), ([[b"a"]], 1)
        )
        self.clock.advance(forwarder.PAUSE_MS / 1000)
        self.turn()
        self.assertEqual(self.target.batches(), [[b"a"], [b"b"]])

    def test_home(self) -> None:
        """What has a home goes there."""
        self.homes[ONE] = BrokerPartition(3, 4)
        self.put(ONE, b"a")
        self.put(TWO, b"b")
        self.assertEqual(
            [fixedTarget for _topic, _payloads, fixedTarget, _answer in self.target.sent],
            [BrokerPartition(3, 4), None],
        )

    def test_noHome(self) -> None:
        """
        What has a home that is not known now is not sent anywhere; it is sent, in order, when the
        home is known.
        """
        homes: list[BrokerPartition] = []

        def fixedTarget(partitionId: PartitionId) -> BrokerPartition:
            if not homes:
                raise NoBrokersError(f"where {partitionId} goes is not known")
            return homes[0]

        self.forwarder._fixedTarget = fixedTarget
        self.put(ONE, b"a")
        self.put(ONE, b"b")
        self.clock.advance(20)
        self.assertEqual((self.target.sent, self.counters.underWayCount), ([], 2))
        homes.append(BrokerPartition(3, 4))
        for _round in range(3):
            self.clock.advance(20)
            self.target.confirm()
        self.assertEqual(
            [
                (payloads, fixedTarget)
                for _topic, payloads, fixedTarget, _answer in self.target.sent
            ],
            [([b"a"], homes[0]), ([b"b"], homes[0])],
        )

    def test_stuck(self) -> None:
        """
        Behind a message that the target does not take nothing holds room: it is forgotten, and read
        again from there, when that message is confirmed; all other partitions go on. The next one,
        if it is stuck, is named by the offset where it was read again.
        """
        end = self.put(ONE, b"X")
        for _round in range(3):
            self.put(ONE, *[b"behind"] * 10)
            self.target.sent[-1][-1].addErrback(lambda _failure: None)
        self.assertFalse(self.target.inFlight.isReady)
        for _round in range(2):
            for _topic, payloads, _fixedTarget, answer in self.target.sent:
                if not answer.called:
                    answer.errback(MessageTooLargeError("too large"))
            self.clock.advance(20)
        self.assertEqual(
            (self.again, self.target.inFlight.count, self.counters.underWayCount),
            ([(ONE, end)], 1, 1),
        )
        self.assertEqual(
            (
                self.tracker.committableOffset(ONE, 500),
                self.tracker.readBoundary(ONE, 500),
                self.counters.givenBackCount,
            ),
            (None, None, 30),
        )
        whenConfirmed = self.tracker.whenConfirmed([ONE])
        self.put(TWO, b"b")
        self.target.sent[-1][-1].callback(None)
        self.assertEqual(self.counters.confirmedCount, 1)
        self.assertNoResult(whenConfirmed)
        self.target.confirm()
        self.clock.advance(20)
        self.target.confirm()
        self.successResultOf(whenConfirmed)
        self.assertEqual((self.target.inFlight.count, self.counters.underWayCount), (0, 0))
        self.tracker.reset(ONE)
        self.tracker.begin(ONE, 0)
        self.ends[ONE] = end
        self.put(ONE, b"Y")
        for _round in range(2):
            self.target.sent[-1][-1].errback(MessageTooLargeError("too large"))
            self.clock.advance(20)
        [onRejected] = self.counters.stuck.values()
        self.assertEqual((onRejected.offset, self.again), (end, [(ONE, end), (ONE, end + 11)]))

    def test_stuckAndBegunAnew(self) -> None:
        """
        When the source has begun anew behind a message that the target does not take, it is read
        again from its beginning: no other place is known.
        """
        self.tracker.begin(ONE, 0)
        self.ends[ONE] = 1_000
        self.put(ONE, b"X")
        self.ends[ONE] = 0
        self.put(ONE, b"anew")
        self.target.sent[0][-1].errback(MessageTooLargeError("too large"))
        self.target.sent[1][-1].errback(MessageTooLargeError("too large"))
        self.clock.advance(20)
        self.target.sent[-1][-1].errback(MessageTooLargeError("too large"))
        self.assertEqual(self.again, [(ONE, 0)])
        self.assertEqual(self.tracker.committableOffset(ONE, 500), None)

    def test_tidy(self) -> None:
        """Routes that nobody needs do not pile up."""
        self.patch(forwarder, "PIPELINE_COUNT_MAX", 2)
        for number in range(10):
            self.put(PartitionId("t", BrokerPartition(0, number)), b"a")
            self.target.confirm()
        self.assertLessEqual(len(self.forwarder._pipelines), 3)

    def test_stop(self) -> None:
        """
        After C{stop} nothing is taken, whether it waits for a message or for room; an end of the
        stream is an end, too.
        """
        self.forwarder.stop()
        self.running.cancel()
        self.successResultOf(self.running)
        self.put(ONE, b"a")
        self.assertEqual(self.target.sent, [])
        running = Deferred.fromCoroutine(self.forwarder.run())
        self.successResultOf(running)
        self.forwarder.abort()

    def test_ended(self) -> None:
        """A stream that ends ends it."""
        self.stream.end()
        self.turn()
        self.successResultOf(self.running)
        self.assertIn("Forwarder of <MessageStream s", repr(self.forwarder))

    def test_abort(self) -> None:
        """After C{abort} nothing that failed is sent again."""
        self.put(ONE, b"a")
        self.target.sent[0][-1].errback(ZeroDivisionError())
        self.flushLoggedErrors(ZeroDivisionError)
        self.forwarder.abort()
        self.clock.advance(1000)
        self.assertEqual(len(self.target.sent), 1)
