"""
Tests for L{pylogbroker.mirror.pipeline}.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    BrokerConnectionError,
    ConnectionLostError,
    MessageTooLargeError,
    NoBrokersError,
    TimedOutError,
    UnknownOutcomeError,
)
from pylogbroker.metrics.mirrormetrics import MirrorCounters, StuckMessage
from pylogbroker.mirror.pipeline import Batch, PartitionPipeline
from pylogbroker.retry import RESEND_DELAYS
from pylogbroker.types import BrokerPartition, PartitionId


class RouteTests(SynchronousTestCase):
    """Batches of one partition, and a target that the test is."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.counters = MirrorCounters()
        self.sent: list[tuple[bytes, Deferred[None]]] = []
        self.onConfirmed: list[bytes] = []
        self.told: list[bytes] = []
        self.onDiscarded: list[bytes] = []
        self.instantly = False
        self.pipeline = PartitionPipeline(
            PartitionId("t", BrokerPartition(0, 0)),
            self.clock,
            lambda: 0.0,
            self.send,
            self.counters,
            {"group": "g"},
        )

    def send(self, payloads: list[bytes]) -> Deferred[None]:
        if self.instantly:
            self.sent.append((b"".join(payloads), succeed(None)))
        else:
            self.sent.append((b"".join(payloads), Deferred()))
        return self.sent[-1][1]

    def add(self, *batches: bytes) -> None:
        for each in batches:
            self.addPayloads([each[index : index + 1] for index in range(len(each))])

    def addPayloads(self, payloads: list[bytes]) -> None:
        """A batch whose messages have the offsets 100, 101 and so on."""
        name = b"".join(payloads)
        onConfirmed, onRejected, onDiscarded = (
            lambda found=found: found.append(name)
            for found in (self.onConfirmed, self.told, self.onDiscarded)
        )
        ends = range(101, 101 + len(payloads))
        self.pipeline.add(
            Batch(payloads, 100, ends, len(name), onConfirmed, onRejected, onDiscarded)
        )

    def names(self) -> list[bytes]:
        """What was sent since this was last asked."""
        names = [name for name, _answer in self.sent[self.seen :]]
        self.seen = len(self.sent)
        return names

    seen = 0

    def answer(self, name: bytes, error: Exception | None = None) -> None:
        """To the last that was sent of this name."""
        (answer,) = [each for sent, each in self.sent if sent == name and not each.called]
        if error is None:
            answer.callback(None)
        else:
            answer.errback(error)

    def test_pipeline(self) -> None:
        """Nobody waits for anybody as long as all goes well."""
        self.add(b"a", b"b", b"c")
        self.assertEqual(self.names(), [b"a", b"b", b"c"])
        for name in (b"c", b"a", b"b"):
            self.answer(name)
        self.assertEqual((self.onConfirmed, self.pipeline.isIdle), ([b"c", b"a", b"b"], True))

    def test_again(self) -> None:
        """
        After a failure nothing new is sent until all are back; then what failed goes again in its
        order, first one as a probe, and then all that waited.
        """
        self.add(b"a", b"b", b"c")
        self.answer(b"b", BrokerConnectionError("gone"))
        self.add(b"d")
        self.answer(b"a", UnknownOutcomeError("gone"))
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual(self.names(), [b"a", b"b", b"c"])
        self.answer(b"c")
        self.add(b"e")
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual(self.names(), [b"a"])
        self.add(b"f")
        self.assertFalse(self.pipeline.isIdle)
        self.answer(b"a")
        self.assertEqual(self.names(), [b"b", b"d", b"e", b"f"])
        for name in (b"b", b"d", b"e", b"f"):
            self.answer(name)
        self.assertEqual(
            (self.onConfirmed, self.pipeline.isIdle), ([b"c", b"a", b"b", b"d", b"e", b"f"], True)
        )
        self.assertEqual((self.counters.retriedCount, self.counters.repeatedCount), (2, 1))

    def test_probeFails(self) -> None:
        """A probe that fails is made again, later; nothing else is tried meanwhile."""
        self.add(b"a", b"b")
        for name in (b"a", b"b"):
            self.answer(name, NoBrokersError("none"))
        self.assertEqual(self.names(), [b"a", b"b"])
        for _round in range(5):
            self.clock.advance(RESEND_DELAYS.maxMs / 1000)
            self.assertEqual(self.names(), [b"a"])
            self.answer(b"a", NoBrokersError("none"))
        self.instantly = True
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual((self.names(), self.onConfirmed), ([b"a", b"b"], [b"a", b"b"]))

    def test_failsWhileSending(self) -> None:
        """What fails in the very act of sending holds up what waits behind it."""
        self.add(b"a")
        self.answer(b"a", NoBrokersError("none"))
        self.add(b"b", b"c")
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual(self.names(), [b"a", b"a"])
        answers = [NoBrokersError("none")]

        def send(payloads: list[bytes]) -> Deferred[None]:
            sending = self.send(payloads)
            if answers:
                sending.errback(answers.pop())
            return sending

        self.pipeline._send = send
        self.answer(b"a")
        self.assertEqual(self.names(), [b"b"])
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual(self.names(), [b"b"])
        self.answer(b"b")
        self.assertEqual(self.names(), [b"c"])

    def test_tooLarge(self) -> None:
        """
        A batch that is refused for its size is halved until only the message at fault stays behind;
        the batch counts as sent when all of it is.
        """
        self.add(b"abXc")

        def judge() -> None:
            for name, answer in self.sent:
                if not answer.called:
                    if b"X" in name:
                        answer.errback(MessageTooLargeError("too large"))
                    else:
                        answer.callback(None)

        for _round in range(10):
            judge()
            self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertIn(b"ab", self.names())
        self.assertEqual(self.onConfirmed, [])
        self.assertFalse(self.pipeline.isIdle)
        (answer,) = [answer for name, answer in self.sent if name == b"X" and not answer.called]
        answer.callback(None)  # somebody has raised the limit
        judge()
        self.assertEqual((self.onConfirmed, self.pipeline.isIdle), ([b"abXc"], True))

    def lost(self) -> UnknownOutcomeError:
        """How a broker says that it has dropped something, or nothing."""
        error = UnknownOutcomeError("unknown")
        error.__cause__ = ConnectionLostError("lost")
        return error

    def test_droppedThere(self) -> None:
        """
        A batch whose connection ends instead of a confirmation, also when it is sent alone, is sent
        in parts, the one large message by itself. That is then named, once, by place, offset and
        size, in the log and in figures, until it is confirmed; what is before it is confirmed, what
        is behind it waits.
        """
        large = b"X" * 50
        self.addPayloads([b"a", b"b", large, b"c"])
        with capturedLogs() as events:
            for _round in range(6):
                self.assertEqual(self.counters.stuck, {})
                for name, answer in self.sent:
                    if not answer.called:
                        if large in name:
                            answer.errback(self.lost())
                        else:
                            answer.callback(None)
                if self.counters.stuck:
                    break
                self.clock.advance(RESEND_DELAYS.maxMs / 1000)
            self.assertIn(b"ab", self.names())
            for _round in range(3):
                self.clock.advance(RESEND_DELAYS.maxMs / 1000)
                self.assertEqual(self.names(), [large])
                self.answer(large, self.lost())
        labels = {"group": "g", "topic": "t", "broker": "0", "partition": "0"}
        self.assertEqual(list(self.counters.stuck.values()), [StuckMessage(labels, 102, 50)])
        told = [formatEvent(event) for event in events if event["log_level"] is LogLevel.error]
        self.assertEqual(len(told), 1)
        self.assertIn(
            "t/0-0: the target does not take the message at offset 102 of the source, of 50 bytes",
            told[0],
        )
        self.instantly = True
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual(
            (len(self.onConfirmed), self.pipeline.isIdle, self.counters.stuck), (1, True, {})
        )

    def test_behind(self) -> None:
        """
        What is behind a message that is not taken is not kept; what was one batch with it is, and
        goes when it has gone.
        """
        self.add(b"aXb", b"cd", b"ef")
        for name in (b"ef", b"cd", b"aXb"):
            self.answer(
                name, MessageTooLargeError("too large")
            )  # the second is in parts by now, too
        for _round in range(3):
            self.clock.advance(RESEND_DELAYS.maxMs / 1000)
            for name, answer in self.sent:
                if not answer.called:
                    if name == b"a":
                        answer.callback(None)
                    else:
                        answer.errback(MessageTooLargeError("too large"))
        self.assertEqual(
            (len(self.counters.stuck), self.told, self.onDiscarded, self.onConfirmed),
            (1, [b"aXb"], [b"cd", b"ef"], []),
        )
        self.names()
        self.instantly = True
        self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual(
            (b"".join(self.names()), self.onConfirmed, self.pipeline.isIdle),
            (b"Xb", [b"aXb"], True),
        )

    def test_slow(self) -> None:
        """
        A batch that is not answered in time goes again as it is, and no message of it is named.
        """
        self.add(b"ab")
        for _round in range(5):
            error = UnknownOutcomeError("unknown")
            error.__cause__ = TimedOutError("slow")
            self.answer(b"ab", error)
            self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.assertEqual((self.names(), self.counters.stuck), ([b"ab"] * 6, {}))

    def test_stuckAtTheEnd(self) -> None:
        """What is not sent any more is not in the figures, either."""
        self.add(b"a")
        for _round in range(2):
            self.answer(b"a", MessageTooLargeError("too large"))
            self.clock.advance(RESEND_DELAYS.maxMs / 1000)
        self.answer(b"a", MessageTooLargeError("too large"))
        self.assertEqual(len(self.counters.stuck), 1)
        self.pipeline.stop()
        self.assertEqual(self.counters.stuck, {})

    def test_unforeseen(self) -> None:
        """
        An error that nobody foresaw is logged, and it is tried again like one of which the outcome
        is unknown.
        """
        self.add(b"a")
        self.answer(b"a", ZeroDivisionError())
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.counters.repeatedCount, 1)

    def test_stop(self) -> None:
        """After the end nothing is tried again."""
        self.add(b"a")
        self.answer(b"a", NoBrokersError("none"))
        self.pipeline.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
