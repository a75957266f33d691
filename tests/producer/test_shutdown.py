"""
Tests for L{pylogbroker.producer.shutdown}.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

import pylogbroker.zookeeper.client
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    TimedOutError,
    UnknownOutcomeError,
)
from pylogbroker.producer.producer import Producer
from tests.producer.producercase import ClusterCase, ProducerCase


def _given(result: Any, *_arguments: Any, **_options: Any) -> Any:
    return result


class CloseTests(ProducerCase):
    """The end."""

    def test_timeout(self) -> None:
        """Closing is bounded: what is still under way has failed, or is unknown."""
        producer = self.producer(
            {"confirm": "true", "batch.size": 2, "queue.size": 4, "close.timeout.ms": 1000}
        )
        self.a.isAnswering = False
        sendings = [producer.send("t", b"%d" % index) for index in range(6)]
        self.turn()
        closing = producer.close()
        self.cluster.pass_(1.5)
        self.assertIn("too long", str(self.failureResultOf(closing, TimedOutError).value))
        for sending in sendings[:4]:
            self.failureResultOf(sending, UnknownOutcomeError)
        for sending in sendings[4:]:
            self.failureResultOf(sending, TimedOutError)
        self.books()
        self.assertEqual((producer.counters.unknownCount, producer.counters.failedCount), (4, 2))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_timeoutUnconnected(self) -> None:
        """What had no connection has failed."""
        producer = self.producer({"connect.timeout.ms": 60_000})
        sending = producer.send("t", b"x")
        closing = producer.close(100)
        self.clock.advance(0.2)
        self.failureResultOf(closing, TimedOutError)
        self.assertFalse(self.failureResultOf(sending, ClosedError).check(UnknownOutcomeError))
        self.books()

    def test_timeoutHung(self) -> None:
        """A broker that hangs does not make it take longer: when the time is over its connections are cut, whether anything was under way or not."""
        for mode in ("sync", "async"):
            for confirm in ("true", "false"):
                for count in (0, 2):
                    producer = self.producer(
                        {"producer.type": mode, "confirm": confirm, "batch.size": 1}
                    )
                    self.a.isAnswering = True
                    self.successResultOf(self.sent(producer))
                    self.a.isAnswering = False
                    (line,) = self.a.lines
                    self.a.lines.clear()  # it reads nothing, and sees no end
                    for _message in range(count):
                        producer.send("t", b"x" * 300_000).addErrback(
                            lambda failure: failure.trap(UnknownOutcomeError)
                        )
                    self.turn()
                    closing = producer.close(1000)
                    self.cluster.pass_(0.95)
                    self.assertNoResult(closing)
                    self.cluster.pass_(0.1)
                    self.failureResultOf(closing, TimedOutError)
                    self.assertIsNotNone(line.reason)
                    self.books()
                    self.assertEqual(self.clock.getDelayedCalls(), [])

    def sent(self, producer: Producer) -> Deferred[None]:
        """A message, which is through at once."""
        sending = producer.send("t", b"x")
        self.turn()
        return sending

    def test_timeoutUnaccounted(self) -> None:
        """What does not let itself be cancelled does not hold the end up."""

        class Sender:
            def init(self, properties: Any) -> None: ...
            def close(self) -> None: ...

            async def handle(self, batch: Any, carrier: Any, encoder: Any) -> None:
                try:
                    await Deferred()
                except CancelledError:
                    await released

        released: Deferred[None] = Deferred()
        producer = self.producer({"batch.size": 1}, eventSender=Sender())
        sending = producer.send("t", b"x")
        closing = producer.close(500)
        self.cluster.pass_(1)
        self.assertIn(
            "1 more are still under way", str(self.failureResultOf(closing, TimedOutError).value)
        )
        self.assertNoResult(sending)
        released.callback(None)
        self.successResultOf(sending)
        self.books()

    def test_badEnd(self) -> None:
        """Without confirmation a connection that does not end well is a failure of close: what was written last may be lost."""
        producer = self.producer({"batch.size": 1})
        producer.send("t", b"x")
        self.turn()
        closing = producer.close()
        next(iter(self.a.lines)).cut()
        self.failureResultOf(closing, BrokerConnectionError)

    def test_badEndConfirmed(self) -> None:
        """With it, nothing can be lost any more."""
        producer = self.producer({"batch.size": 1, "confirm": "true"})
        producer.send("t", b"x")
        self.turn()
        closing = producer.close()
        next(iter(self.a.lines)).cut()
        self.successResultOf(closing)

    def test_beforeStop(self) -> None:
        """A reactor can be asked to close it before it stops, and to wait for that; a producer that is closed earlier needs it no more."""
        triggers: list[Any] = []
        reactor: Any = self.clock

        def addTrigger(phase: str, event: str, call: Any) -> Any:
            triggers.append((phase, event, call))
            return call

        reactor.addSystemEventTrigger = addTrigger
        reactor.removeSystemEventTrigger = lambda call: triggers.clear()
        producer = self.producer()
        producer.closeBeforeStop()
        producer.closeBeforeStop()
        ((phase, event, call),) = triggers
        self.assertEqual((phase, event), ("before", "shutdown"))
        producer.send("t", b"x")
        closing = call()
        self.turn()
        self.successResultOf(closing)
        self.assertEqual(self.a.payloads(), [b"x"])
        other = self.producer()
        triggers.clear()
        other.closeBeforeStop()
        self.close(other)
        self.assertEqual(triggers, [])


class ClusterCloseTests(ClusterCase):
    """The end, where the registries are in ZooKeeper."""

    def test_timeoutGone(self) -> None:
        """A connection to a broker that has gone since is waited for, and cut with the others."""
        self.register(0, "a:1")
        producer = self.clustered()
        self.done(producer.send("t", b"x"))
        (line,) = self.a.lines
        self.a.lines.clear()
        self.unregister(0)
        closing = producer.close(500)
        self.cluster.pass_(0.4)
        self.assertNoResult(closing)
        self.cluster.pass_(0.2)
        self.failureResultOf(closing, TimedOutError)
        self.assertIsNotNone(line.reason)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_timeoutZookeeper(self) -> None:
        """A session that takes its time to end has what is left of the time, and no more; it ends by itself, well or not."""
        for isLost in (False, True):
            ending: Deferred[None] = Deferred()
            zookeeper = self.server.client()
            self.patch(zookeeper, "close", partial(_given, ending))
            self.patch(pylogbroker.zookeeper.client, "ZookeeperClient", partial(_given, zookeeper))
            self.register(0, "a:1")
            producer = self.producer(
                {"broker.list": None, "zk.connect": "z:2181", "confirm": "true", "batch.size": 1}
            )
            self.done(producer.start())
            self.done(producer.send("t", b"x"))
            if isLost:
                self.a.isAnswering = False
                producer.send("t", b"y").addErrback(
                    lambda failure: failure.trap(UnknownOutcomeError)
                )
            closing = producer.close(500)
            self.cluster.pass_(0.4)
            self.assertNoResult(closing)
            self.cluster.pass_(0.2)
            self.failureResultOf(closing, TimedOutError)
            ending.callback(None)
            self.unregister(0)
