"""
Tests for L{pylogbroker.producer.lifecycle}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer
from zope.interface.verify import verifyObject

from pylogbroker.client.discovery import StaticDiscovery
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
    TimedOutError,
    UnknownOutcomeError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.producer.lifecycle import DiscoveryStartup
from pylogbroker.producer.producer import Producer
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.producer.producercase import ClusterCase, ProducerCase


class StartingTests(ClusterCase):
    """Who is there, and whom that takes how long."""

    def test_noZookeeper(self) -> None:
        """
        A ZooKeeper that does not answer is a failure of each call, in time; the next call tries
        again.
        """
        self.server.disconnect(self.zookeeper)
        producer = self.clustered()
        sending = producer.send("t", b"x")
        self.cluster.pass_(14, 0.5)
        self.failureResultOf(sending, ZookeeperTimeoutException)
        self.server.reconnect(self.zookeeper)
        self.register(0, "a:1")
        self.done(producer.send("t", b"y"))
        self.close(producer)

    def test_startedOnce(self) -> None:
        """A discovery that sends a message while it starts is started once."""

        class Discovery(StaticDiscovery):
            isStatic = False

            def start(self) -> Deferred[None]:
                starts.append(producer.send("t", b"starting"))
                return Deferred()

        starts: list[Deferred[Any]] = []
        producer = self.producer({"producer.type": "sync"}, discovery=Discovery([(0, "a", 1)]))
        sending = producer.send("u", b"x")
        self.assertEqual(len(starts), 1)
        closing = producer.close(1000)
        self.cluster.pass_(2)
        self.failureResultOf(closing, TimedOutError)
        for each in (*starts, sending):
            self.failureResultOf(each, PylogbrokerError)

    def test_closedWhileLooking(self) -> None:
        """Closing is bounded while a topic is being looked up, too."""
        self.server.disconnect(self.zookeeper)
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode})
            sendings = [
                producer.send("t", b"x"),
                producer.send("t", b"y"),
                producer.send("t", b"y", "k"),
            ]
            closing = producer.close(1000)
            self.cluster.pass_(2)
            self.failureResultOf(closing, TimedOutError)
            for sending in sendings:
                self.failureResultOf(sending, PylogbrokerError)
            self.books()
            self.failureResultOf(producer.start(), ClosedError)

    def test_ownZookeeper(self) -> None:
        """
        Without a client one is made as zk.connect says; it goes with the producer, and at once when
        the start fails.
        """
        made: list[Any] = []

        def make(_reactor: Any, settings: Any) -> Any:
            self.assertEqual(settings.zkConnect, "z:2181")
            made.append(self.server.client())
            return made[-1]

        self.patch(ZookeeperClient, "fromSettings", make)
        self.register(0, "a:1")
        given = {"broker.list": None, "zk.connect": "z:2181"}
        producer = self.producer(given)
        starting, again = producer.start(), producer.start()
        self.done(starting)
        self.successResultOf(again)
        self.assertTrue(made[0].connected)
        self.close(producer)
        self.assertTrue(made[0].isClosed)
        self.server.latency = 0.1
        starting = self.producer(given).start()
        self.cluster.pass_(0.4)
        self.server.disconnect(made[1])
        self.turn()
        self.failureResultOf(starting, ZookeeperError)
        self.assertTrue(made[1].isClosed)


class AbandonedTests(ClusterCase):
    """A start that the interpreter ends, because nothing refers to it any more."""

    def test_start(self) -> None:
        """It ends at once: a client that is slow to close does not hold it."""
        self.patch(ZookeeperClient, "fromSettings", lambda *_settings: self.zookeeper)
        settings = ProducerSettings.fromProperties({"zk.connect": "z:2181"}, self.fail)
        startup = DiscoveryStartup(self.clock, settings, self.fail, self.random.random)
        starting = startup._start()
        starting.send(None)
        self.patch(self.zookeeper, "close", Deferred)
        starting.close()
        self.assertIsNone(startup.discovery)


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
        """
        A broker that hangs does not make it take longer: when the time is over its connections are
        cut, whether anything was under way or not.
        """
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

        class Handler:
            def init(self, properties: Any) -> None: ...
            def close(self) -> None: ...

            async def handle(self, batch: Any, sender: Any, encoder: Any) -> None:
                try:
                    await Deferred()
                except CancelledError:
                    await released

        released: Deferred[None] = Deferred()
        producer = self.producer({"batch.size": 1}, eventHandler=Handler())
        sending = producer.send("t", b"x")
        closing = producer.close(500)
        self.cluster.pass_(1)
        self.assertIn(
            "1 more are in flight", str(self.failureResultOf(closing, TimedOutError).value)
        )
        self.assertNoResult(sending)
        released.callback(None)
        self.successResultOf(sending)
        self.books()

    def test_badEnd(self) -> None:
        """
        Without confirmation a connection that does not end well is a failure of close: what was
        written last may be lost.
        """
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
        """
        A reactor can be asked to close it before it stops, and to wait for that; a producer that is
        closed earlier needs it no more.
        """
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
        """
        A session that takes its time to end has what is left of the time, and no more; it ends by
        itself, well or not.
        """
        for isLost in (False, True):
            ending: Deferred[None] = Deferred()
            zookeeper = self.server.client()
            self.patch(zookeeper, "close", partial(_given, ending))
            self.patch(ZookeeperClient, "fromSettings", partial(_given, zookeeper))
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


class Source:
    """A Twisted push or pull producer."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.onResume: Callable[[], None] = lambda: None

    def pauseProducing(self) -> None:
        self.events.append("pause")

    def resumeProducing(self) -> None:
        self.events.append("resume")
        self.onResume()

    def stopProducing(self) -> None:
        self.events.append("stop")


class ConsumerTests(ProducerCase):
    """As a Twisted consumer."""

    def test_pushes(self) -> None:
        """
        Any push producer can be connected: it is paused when the queue is three quarters full, and
        resumed at a quarter.
        """
        producer = self.producer({"topic": "bytes", "queue.size": 8, "batch.size": 100})
        verifyObject(IConsumer, producer)
        source = Source()
        producer.registerProducer(source, True)
        self.assertRaises(RuntimeError, producer.registerProducer, source, True)
        for index in range(5):
            producer.write(b"%d" % index)
        self.assertEqual(source.events, [])
        producer.write(b"5")
        producer.write(b"6")
        self.assertEqual(source.events, ["pause"])
        producer.flush()
        self.turn()
        self.assertEqual(source.events, ["pause", "resume"])
        self.assertEqual(self.a.payloads("bytes"), [b"%d" % index for index in range(7)])
        self.close(producer)
        self.assertEqual(source.events[-1], "stop")
        producer.registerProducer(source, True)
        producer.write(b"late")
        self.assertEqual(source.events[-2:], ["stop", "stop"])

    def test_pulls(self) -> None:
        """A pull producer is asked for more, one write at a time, while there is room."""
        producer = self.producer({"topic": "bytes", "queue.size": 4, "batch.size": 100})
        source = Source()
        numbers = iter(range(100))
        source.onResume = lambda: producer.write(b"%d" % next(numbers))
        producer.registerProducer(source, False)
        self.turn()
        self.assertEqual(len(source.events), 4)
        producer.flush()
        self.turn()
        self.assertEqual(len(source.events), 8)
        producer.unregisterProducer()
        self.close(producer)

    def test_unregistered(self) -> None:
        """Without a source one can write all the same."""
        producer = self.producer({"topic": "bytes"})
        producer.registerProducer(Source(), True)
        producer.unregisterProducer()
        producer.write(b"x")
        self.close(producer)
        self.assertEqual(self.a.payloads(), [b"x"])

    def test_noTopic(self) -> None:
        """Without a topic there is nowhere to write to."""
        producer = self.producer()
        self.assertRaises(ConfigurationError, producer.registerProducer, Source(), True)
        self.assertRaises(ConfigurationError, producer.write, b"x")
        self.close(producer)
