"""
Tests for L{pylogbroker.topologies.metrics.manager} and C{reporter}, with processes of a container
on the loopback interface.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.topologies import control
from pylogbroker.topologies.connection import TopologyClient, TopologyConnection, tcpEndpoints
from pylogbroker.topologies.control import ControlPeer, ControlServer
from pylogbroker.topologies.messages import (
    INSTANCE,
    METRICS_MANAGER,
    STREAM_MANAGER,
    Confirm,
    Control,
    Hello,
    Metrics,
    Refused,
    Welcome,
    encodeBatch,
)
from pylogbroker.topologies.metrics.manager import MetricsManager
from pylogbroker.topologies.metrics.reporter import MetricsReporter
from pylogbroker.topologies.plan import MasterLocation

reactor: Any = _reactor
endpointTo = tcpEndpoints(reactor)


class ListSink:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.taken: list[Metrics] = []
        self.isClosed = False

    def take(self, metrics: Metrics) -> None:
        self.taken.append(metrics)

    def close(self) -> Deferred[None]:
        self.isClosed = True
        return succeed(None)


class RawEnd:
    """A process that says what the test says; C{said} is what it was answered."""

    def __init__(self, address: str) -> None:
        self.said: list[Any] = []
        self.reason = ""
        self.client = TopologyClient(reactor, endpointTo, self, lambda: 0.5)
        self.client.goTo(address)

    def connected(self, connection: TopologyConnection) -> None:
        pass

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        self.said.append(message)

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        pass

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        self.reason = reason
        self.client.goTo(None)


class MetricsManagerTests(TestCase):
    """The manager of container 2, with task 3, and a master."""

    timeout = 60

    def setUp(self) -> None:
        self.sink = ListSink()
        self.manager = MetricsManager(
            reactor, "words", 2, [3], 7, endpointTo, lambda: 0.5, [self.sink]
        )
        self.address = self.listen(self.manager.factory)
        self.hellos: list[Hello] = []
        self.passedOn: list[Control] = []
        master = ControlServer(
            reactor,
            self.welcome,
            lambda _peer, message: self.passedOn.append(message),
            lambda _peer: None,
            10,
        )
        host, _, port = self.listen(master).rpartition(":")
        self.addCleanup(master.closeAll, "the test ends")
        self.addCleanup(self.manager.stop)
        self.location = MasterLocation(host, int(port), 0, 1 << 32)

    def listen(self, factory: Any) -> str:
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return f"127.0.0.1:{port.getHost().port}"

    def welcome(self, peer: ControlPeer, hello: Hello) -> None:
        self.hellos.append(hello)
        peer.send(Welcome(1))

    async def until(self, isTrue: Any) -> None:
        while not isTrue():
            await deferLater(reactor, 0.005)

    def end(self) -> RawEnd:
        made = RawEnd(self.address)
        self.addCleanup(made.client.goTo, None)
        return made

    async def test_reports(self) -> None:
        """What a process reports at intervals goes to the sinks and to the master."""
        self.manager.setMaster(self.location)
        count = [0]

        def read() -> Metrics:
            count[0] += 1
            return Metrics(2, "3", "count", 5, 1_000, {"emitted": count[0]})

        reporter = MetricsReporter(
            reactor, endpointTo, lambda: 0.5, self.address, Hello("words", INSTANCE, 3, 5), read, 10
        )
        reporter.start()
        await self.until(lambda: len(self.passedOn) > 2)
        reporter.stop()
        self.assertEqual(self.hellos, [Hello("words", METRICS_MANAGER, 2, 7)])
        self.assertEqual(
            self.sink.taken[-len(self.passedOn) :][:1], self.passedOn[:1], "passed on as it is"
        )
        numbers = [each.values["emitted"] for each in self.sink.taken]
        self.assertEqual(numbers, sorted(numbers))
        self.manager.setMaster(None)
        await self.manager.stop()
        self.assertTrue(self.sink.isClosed)

    async def test_refused(self) -> None:
        """What is not of the container is refused."""
        for hello in (
            Hello("other", INSTANCE, 3, 5),
            Hello("words", INSTANCE, 4, 5),
            Hello("words", STREAM_MANAGER, 1, 5),
            Hello("words", METRICS_MANAGER, 2, 5),
        ):
            end = self.end()
            await self.until(lambda end=end: end.client.connection)
            end.client.connection.send(hello)  # type: ignore[union-attr]
            await self.until(lambda end=end: end.reason)
            [refused] = end.said
            self.assertIsInstance(refused, Refused)

    async def test_foreignMetrics(self) -> None:
        """Metrics that name another process are ignored; other messages end the connection."""
        end = self.end()
        await self.until(lambda: end.client.connection)
        connection: Any = end.client.connection
        connection.send(Hello("words", INSTANCE, 3, 5))
        for container, source in ((0, "3"), (2, "4"), (2, STREAM_MANAGER), (2, "3")):
            connection.send(Metrics(container, source, "count", 5, 1_000, {}))
        connection.send(Confirm(1))
        await self.until(lambda: end.reason)
        self.assertEqual([(each.container, each.source) for each in self.sink.taken], [(2, "3")])

    async def test_batch(self) -> None:
        """Tuples have no place here."""
        end = self.end()
        await self.until(lambda: end.client.connection)
        connection: Any = end.client.connection
        connection.write(encodeBatch(1, [b""]))
        await self.until(lambda: end.reason)

    async def test_silent(self) -> None:
        """A connection that does not say hello is closed; so is one beyond the limit."""
        self.patch(control, "HELLO_SECONDS_MAX", 0.01)
        end = self.end()
        await self.until(lambda: end.reason)
        self.patch(control, "HELLO_SECONDS_MAX", 60)
        ends = [self.end() for _each in range(1 + 16)]
        await self.until(lambda: len(self.manager.factory.peers) == 17)
        one = self.end()
        await self.until(lambda: one.reason)
        self.assertFalse(any(each.reason for each in ends))
