"""
Tests for L{pylogbroker.broker.service} with C{enable.zookeeper}: when a broker is registered, and
when it is not. On real sockets, with a ZooKeeper in memory.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from pylogbroker.broker.service import BrokerService
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import SessionEvent
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient

reactor: Any = _reactor

SESSION_MS = 400
OWN = "/brokers/ids/0"


class RegisteringCase(TestCase):
    """
    @ivar clients: that brokers have made, in order.
    """

    timeout = 60

    def setUp(self) -> None:
        self.server = FakeZookeeper(reactor, latencyMs=2)
        self.clients: list[FakeZookeeperClient] = []

    def client(self) -> FakeZookeeperClient:
        self.clients.append(self.server.client(SESSION_MS))
        return self.clients[-1]

    properties = {
        "enable.zookeeper": "true",
        "zk.connect": "double",
        "zk.sessiontimeout.ms": str(SESSION_MS),
        "num.partitions": "2",
    }

    def broker(self, directory: str | None = None, **changes: str) -> LocalBroker:
        properties = {
            **self.properties,
            **{key.replace("_", "."): value for key, value in changes.items()},
        }
        broker = LocalBroker(reactor, properties, directory, zookeeper=self.client)
        self.addCleanup(broker.stop)
        return broker

    async def until(self, condition: Any) -> None:
        for _look in range(1000):
            if condition():
                return
            await deferLater(reactor, 0.01)
        self.fail("it has not happened")

    async def produce(self, broker: LocalBroker, topic: str) -> None:
        producer = SyncProducer(reactor, broker.endpoint)
        try:
            await producer.send(topic, 0, encodeSet([b"x"]))
            await producer.confirm(topic, 0)
        finally:
            await producer.close()


class StartTests(RegisteringCase):
    """Starting in a running reactor."""

    async def test_registered(self) -> None:
        """
        Once C{start} has fired the broker is in the tree, with the address where it is reached, and
        clients are served.
        """
        broker = self.broker()
        await broker.start()
        value, owner = self.server.tree()[OWN]
        self.assertTrue(value.endswith(f":127.0.0.1:{broker.port}".encode()))
        self.assertEqual(owner, self.clients[0].session_id)
        await self.produce(broker, "alpha")
        await self.until(lambda: "/brokers/topics/alpha/0" in self.server.tree())
        self.assertEqual(self.server.tree()["/brokers/topics/alpha/0"], (b"2", owner))

    async def test_topicsOnDisk(self) -> None:
        """Topics that are on the disk are registered at the start."""
        directory = self.mktemp()
        broker = self.broker(directory)
        await broker.start()
        await self.produce(broker, "alpha")
        await self.produce(broker, "beta")
        await broker.stop()
        self.assertEqual([path for path, (_data, owner) in self.server.tree().items() if owner], [])
        again = self.broker(directory)
        await again.start()
        await self.until(
            lambda: len([path for path, (_data, owner) in self.server.tree().items() if owner]) == 3
        )

    async def test_nobodyBefore(self) -> None:
        """
        Before the broker's own entry is there no client is accepted: what it sends is carried out
        then (gotcha 13).
        """
        blocker = self.server.client(60_000)
        await blocker.connect()
        for path in ("/brokers", "/brokers/ids"):
            await blocker.create(path)
        await blocker.create(OWN, b"x-1:elsewhere:1", flags=1)
        broker = self.broker()
        starting = broker.start()
        await self.until(lambda: self.clients and self.clients[0].connected)
        producing = Deferred.fromCoroutine(self.produce(broker, "alpha"))
        await deferLater(reactor, 0.3)
        self.assertFalse(producing.called or starting.called)
        self.assertEqual(broker.broker.service.directory.logs, {})
        await blocker.close()
        await starting
        await producing

    async def test_duplicate(self) -> None:
        """
        A number that is taken ends the start with an error that names both brokers; nothing is left
        behind, and the other goes on.
        """
        first, second = self.broker(), self.broker(directory := self.mktemp())
        await first.start()
        with self.assertRaises(ConfigurationError) as raised:
            await second.start()
        self.assertIn(f"127.0.0.1:{first.port}", str(raised.exception))
        self.assertEqual(second.broker.service.ports, [])
        self.assertTrue(self.clients[1].isClosed)
        self.assertEqual(
            sorted(os.listdir(directory)),
            [".kafka_cleanshutdown", ".lock", "meta.properties", "metadata.journal"],
        )
        self.assertEqual(self.server.tree()[OWN][1], self.clients[0].session_id)
        await self.broker(directory, brokerid="1").start()

    async def test_unreachable(self) -> None:
        """A ZooKeeper that cannot be reached ends the start after C{zk.connectiontimeout.ms}."""
        self.server.stop()
        broker = self.broker(zk_connectiontimeout_ms="100")
        with self.assertRaises(ZookeeperTimeoutException):
            await broker.start()
        self.assertEqual(broker.broker.service.ports, [])

    async def test_literal(self) -> None:
        """An address that cannot be told ends the start before ZooKeeper is asked."""
        with self.assertRaises(ConfigurationError):
            await self.broker(hostname="::1").start()
        self.assertEqual(self.clients, [])

    async def test_noPort(self) -> None:
        """So does a listener without a port that could be told."""
        broker = self.broker(listeners=f"unix:{self.mktemp()}", port="0")
        with self.assertRaises(ConfigurationError) as raised:
            await broker.start()
        self.assertIn("set port", str(raised.exception))

    async def test_port(self) -> None:
        """C{port} is what others are told, wherever C{listeners} has the broker listen."""
        broker = self.broker(
            listeners="tcp:0:interface=127.0.0.1", port="1234", hostname="outside.example.org"
        )
        await broker.start()
        self.assertTrue(self.server.tree()[OWN][0].endswith(b":outside.example.org:1234"))

    async def test_warning(self) -> None:
        """An address at which others will not find the broker is warned of."""
        with capturedLogs() as events:
            await self.broker(listen_interface="0.0.0.0", hostname="127.0.1.1").start()
        self.assertTrue(
            any(
                "127.0.1.1" in formatEvent(event) and "Set hostname" in formatEvent(event)
                for event in events
            )
        )

    async def test_ownName(self) -> None:
        """
        The address of the host's name is looked up elsewhere than on the reactor's thread, and a
        stop does not wait for ZooKeeper behind it.
        """
        threads: list[int] = []
        asked: Deferred[None] = Deferred()
        go = threading.Event()
        go.set()

        def resolve(name: str) -> str:
            threads.append(threading.get_ident())
            reactor.callFromThread(asked.callback, None)
            go.wait(30)
            return "10.0.0.5"

        self.patch(socket, "gethostbyname", resolve)
        await self.broker(listen_interface="0.0.0.0").start()
        self.assertIn(b":10.0.0.5:", self.server.tree()[OWN][0])
        self.assertNotIn(threading.get_ident(), threads)
        go.clear()
        asked = Deferred()
        broker = self.broker(listen_interface="0.0.0.0", brokerid="1")
        starting = broker.start()
        await asked
        stopping = broker.stop()
        go.set()
        await stopping
        with self.assertRaises(ClosedError):
            await starting
        self.assertEqual(len(self.clients), 1)

    async def test_badServers(self) -> None:
        """Servers that cannot be read are an error before anything is touched."""
        with self.assertRaises(ConfigurationError) as raised:
            LocalBroker(reactor, {**self.properties, "zk.connect": "host:port"})
        self.assertIn("zk.connect=host:port", str(raised.exception))

    async def test_expiry(self) -> None:
        """
        After an expiry the broker and its topics are registered again; clients notice nothing.
        """
        broker = self.broker()
        await broker.start()
        await self.produce(broker, "alpha")
        await self.until(lambda: "/brokers/topics/alpha/0" in self.server.tree())
        self.server.expire(self.clients[0])
        await self.until(lambda: "/brokers/topics/alpha/0" in self.server.tree())
        self.assertEqual(self.server.tree()[OWN][1], self.clients[0].session_id)
        await self.produce(broker, "alpha")


class StopTests(RegisteringCase):
    """Stopping."""

    async def test_goneFirst(self) -> None:
        """The registration goes before the ports are closed."""
        broker = self.broker()
        await broker.start()
        service = broker.broker.service
        seen: list[tuple[SessionEvent, bool, int]] = []
        self.clients[0].add_session_listener(
            lambda event: seen.append((event, OWN in self.server.tree(), len(service.ports)))
        )
        await broker.stop()
        self.assertEqual(seen, [(SessionEvent.CLOSED, False, 1)])
        self.assertEqual((service.ports, service.registration), ([], None))

    async def test_withoutZookeeper(self) -> None:
        """A ZooKeeper that is away holds up no stop."""
        broker = self.broker(zk_sessiontimeout_ms="60000")
        await broker.start()
        self.server.stop()
        await broker.stop()

    async def test_whileStarting(self) -> None:
        """Who stops a broker that waits to be registered ends its start, too; both end once."""
        blocker = self.server.client(60_000)
        await blocker.connect()
        for path in ("/brokers", "/brokers/ids"):
            await blocker.create(path)
        await blocker.create(OWN, b"x-1:elsewhere:1", flags=1)
        broker = self.broker()
        starting = broker.start()
        await self.until(lambda: self.clients and self.clients[0].connected)
        await deferLater(reactor, 0.05)
        first, second = broker.broker.stop(), broker.broker.stop()
        await first
        await second
        with self.assertRaises(ClosedError):
            await starting
        self.assertEqual(broker.broker.service.ports, [])
        self.assertFalse(broker.broker.service.directory.isOpen)


class TwistdTests(RegisteringCase):
    """Starting before the reactor runs: C{iterate} stands for that."""

    def service(self, **changes: str) -> BrokerService:
        properties = {
            "brokerid": "0",
            "port": "0",
            "listen.interface": "127.0.0.1",
            "log.dir": self.mktemp(),
            **self.properties,
            **{key.replace("_", "."): value for key, value in changes.items()},
        }
        service = BrokerService(
            TurnedReactor(self.server),
            BrokerSettings.fromProperties(properties, self.fail),
            zookeeper=self.client,
        )
        self.addCleanup(service.stop)
        return service

    def test_registered(self) -> Deferred[None]:
        """Privileged starting ends when the broker is registered."""
        service = self.service()
        service.privilegedStartService()
        self.assertIn(OWN, self.server.tree())
        service.startService()
        return service.stopService()

    def test_ownName(self) -> Deferred[None]:
        """There the address of the host's name is looked up on the spot."""
        threads: list[int] = []

        def resolve(name: str) -> str:
            threads.append(threading.get_ident())
            return "10.0.0.5"

        self.patch(socket, "gethostbyname", resolve)
        service = self.service(**{"listen.interface": "0.0.0.0"})
        service.privilegedStartService()
        self.assertIn(b":10.0.0.5:", self.server.tree()[OWN][0])
        self.assertEqual(threads, [threading.get_ident()])
        service.startService()
        return service.stopService()

    def test_fails(self) -> None:
        """A start that fails raises, and leaves nothing behind."""
        self.server.stop()
        service = self.service(zk_connectiontimeout_ms="50")
        self.assertRaises(ZookeeperError, service.privilegedStartService)
        self.assertEqual((service.ports, service.directory.isOpen), ([], False))


class TurnedReactor:
    """
    The test's reactor, which runs already, as one that does not: its C{iterate} lets the
    ZooKeeper's calls and those of threads come.
    """

    def __init__(self, server: FakeZookeeper) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)

    def iterate(self, delay: float) -> None:
        reactor.runUntilCurrent()
        reactor.doIteration(delay)
