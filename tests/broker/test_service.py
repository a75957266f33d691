"""
Tests of starting and stopping.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import deferLater
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import TestCase

from pylogbroker.broker import service
from pylogbroker.broker.service import (
    BrokerService,
    logSettings,
    raiseDescriptorLimit,
    shareDescriptors,
)
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import ConfigurationError, DirectoryLockedError, StorageError
from pylogbroker.net.sendfile import SendfileTransport
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeFetch
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.storage.segments import Segment
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.worker import ManualWorker
from pylogbroker.testing.zookeeper import FakeZookeeper
from tests.broker.client import connect
from tests.broker.manualbroker import PROPERTIES, ROOT, LeadTestCase, capture
from tests.broker.test_server import NOISE

MARK = ".kafka_cleanshutdown"
A, B = encodeSet([b"a"]), encodeSet([b"b"])


class ThrownAwayTests(LeadTestCase):
    """A service whose reactor is gone."""

    def test_whileStarting(self) -> None:
        """A start that never came to its end goes away with all else, quietly."""
        reactor: Any = MemoryReactorClock()
        properties = {
            **PROPERTIES,
            "enable.zookeeper": "true",
            "zk.connect": "double",
            "port": "9092",
        }
        settings = BrokerSettings.fromProperties(properties, self.fail)
        workers: list[ManualWorker] = []

        def newWorker(*arguments: Any) -> ManualWorker:
            workers.append(ManualWorker(*arguments))
            return workers[-1]

        zookeeper = FakeZookeeper(reactor)
        broker = BrokerService(
            reactor,
            settings,
            fileSystem=PowerCutFileSystem(),
            worker=newWorker,
            zookeeper=zookeeper.client,
        )
        starting = broker._start()
        opening = starting.send(None)
        workers[0].perform()
        self.successResultOf(opening)
        starting.send(None)  # waits for ZooKeeper
        starting.close()
        self.assertFalse(broker.running)


class SettingsTests(LeadTestCase):
    """What of the settings becomes of the log's."""

    def test_everyKey(self) -> None:
        """
        Each of the log's properties, and each of its per-topic maps, arrives, in the unit of the
        code (row 30, row 33).
        """
        settings = BrokerSettings.fromProperties(
            {
                **PROPERTIES,
                "num.partitions": "3",
                "topic.partition.count.map": "a:4",
                "log.file.size": "1000",
                "topic.log.file.size": "a:2000",
                "log.roll.hours": "5",
                "topic.log.roll.hours": "a:6",
                "log.flush.interval": "7",
                "log.default.flush.interval.ms": "8",
                "topic.flush.intervals.ms": "a:9",
                "log.retention.hours": "10",
                "topic.log.retention.hours": "a:11",
                "log.retention.size": "12",
                "topic.log.retention.size": "a:13",
                "max.topic.name.length": "14",
                "max.open.segments": "15",
            },
            lambda sentence: self.fail(sentence),
        )
        found = logSettings(settings, lambda topic: self.fail(topic))
        hour = 3_600_000
        self.assertEqual((found.topicLengthMax, found.descriptorCountMax), (14, 15))
        for topic, expected, keepHours, keepSize in (
            ("b", (3, 1000, 5 * hour, 7, 8), 10, 12),
            ("a", (4, 2000, 6 * hour, 7, 9), 11, 13),
        ):
            each = found.forTopic(topic)
            self.assertEqual(
                (
                    found.partitionCount(topic),
                    each.segmentSizeMax,
                    each.rollAgeMs,
                    each.flushCountMax,
                    each.flushIntervalMs,
                ),
                expected,
            )
            none: Any = None
            old = [Segment(0, none, 1, 0, none)]
            self.assertEqual([each.retention(old, keepHours * hour + ms) for ms in (0, 1)], [0, 1])
            young = [Segment(0, none, 1, hour, none), Segment(1, none, keepSize - 1, hour, none)]
            self.assertEqual(each.retention(young, hour), 0)
            young = [Segment(0, none, 1, hour, none), Segment(1, none, keepSize, hour, none)]
            self.assertEqual(each.retention(young, hour), 1)

    def test_descriptors(self) -> None:
        """A broker takes as many descriptors as the system allows its process."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        self.assertEqual(raiseDescriptorLimit(), before[1])
        self.assertEqual(resource.getrlimit(resource.RLIMIT_NOFILE), (before[1], before[1]))

    def test_shareDescriptors(self) -> None:
        """
        Clients leave descriptors for segments and a few other things, but half of all are theirs;
        without a limit there is none.
        """
        self.assertEqual(shareDescriptors(20_000, 512), (20_000 - 512 - 64, 512))
        self.assertEqual(shareDescriptors(1024, 512), (512, 1024 - 512 - 64))
        self.assertEqual(shareDescriptors(64, 512), (32, 4))
        self.assertEqual(shareDescriptors(64, 2), (32, 2))
        self.assertGreater(shareDescriptors(resource.RLIM_INFINITY, 512)[0], 1 << 30)


class LifeTests(LeadTestCase):
    """Starting, stopping, and starting again, in order."""

    def test_cleanShutdown(self) -> None:
        """
        Produce 2, stop: the mark is there. Restart: the same 2; 2 more are readable from where
        those ended (ServerShutdownTest.testCleanShutdown, row 40).
        """
        first = self.broker()
        first.connect().send(encodeProduce("t", 0, encodeSet([b"1", b"2"])))
        first.settle()
        first.stop()
        self.assertIn(MARK, first.fileSystem.list(ROOT))
        lines = capture(self)
        second = self.broker(fileSystem=first.fileSystem)
        self.assertNotIn(MARK, first.fileSystem.list(ROOT))
        self.assertFalse(any("clean-shutdown" in line for line in lines()), lines())
        peer = second.connect()
        peer.send(encodeFetch("t", 0, 0, 10_000))
        second.settle()
        ((code, data),) = peer.fetched()
        found = MessageSet(data)
        self.assertEqual((code, [payload for payload, _ in found.payloads()]), (0, [b"1", b"2"]))
        peer.send(
            encodeProduce("t", 0, encodeSet([b"3", b"4"])),
            encodeFetch("t", 0, found.validSize, 10_000),
        )
        second.settle()
        self.assertEqual(peer.fetched(), [(0, encodeSet([b"3", b"4"]))])

    def test_killed(self) -> None:
        """
        After a kill there is no mark: the next start says that it checks the last segments, and
        cuts what is torn (row 39).
        """
        first = self.broker()
        first.connect().send(encodeProduce("t", 0, A))
        first.settle()
        path = first.log().segments[0].path
        first.fileSystem.kill()
        first.fileSystem.open(path).writeAt(11, [B[:-1]])
        lines = capture(self)
        second = self.broker(fileSystem=first.fileSystem)
        self.assertTrue(any("has no clean-shutdown mark" in line for line in lines()), lines())
        self.assertTrue(
            any("Truncated " in line and "from 21 to 11 bytes" in line for line in lines()), lines()
        )
        self.assertEqual(second.contents(), A)

    def test_said(self) -> None:
        """An operator is told when it serves, what, and where, and when it has stopped."""
        lines = capture(self)
        lead = self.broker()
        self.assertEqual(lines()[-1].split(" on ")[0], f"Broker 0 serves 0 partitions in {ROOT}")
        lead.stop()
        self.assertEqual(lines()[-1], "Broker 0 has stopped")

    def test_nothingToStop(self) -> None:
        """
        A broker that was not started has nothing to stop; one that has stopped has nothing more.
        """
        lead = self.broker(start=False)
        self.successResultOf(lead.service.stopService())
        started = self.broker()
        started.stop()
        self.successResultOf(started.service.stop())

    def test_markCannotBeWritten(self) -> None:
        """If the mark cannot be written the stop says so, and ends."""
        lines = capture(self)
        lead = self.broker()
        lead.fileSystem.fail("create", MARK, errno.EIO)
        lead.stop()
        self.assertTrue(
            any("The clean-shutdown marker could not be written" in line for line in lines()),
            lines(),
        )
        self.assertFalse(lead.directory.isOpen)

    def test_needsARunningReactor(self) -> None:
        """
        An endpoint that does not listen at once is refused under twistd, which cannot wait for it.
        """
        lead = self.broker(start=False)
        never: Deferred[Any] = Deferred()

        class Slow:
            def listen(self, factory: object) -> Deferred[Any]:
                return never

        self.patch(service, "listenerEndpoint", lambda reactor, listener: Slow())
        error = self.assertRaises(ConfigurationError, lead.service.privilegedStartService)
        self.assertIn("twistd cannot wait", str(error))

    def test_failsLate(self) -> None:
        """
        An endpoint that does not listen at once and fails later has been refused, and that is all:
        no failure is left that nobody handles.
        """
        lead = self.broker(start=False)
        late: Deferred[Any] = Deferred()

        class Slow:
            def listen(self, factory: object) -> Deferred[Any]:
                return late

        self.patch(service, "listenerEndpoint", lambda reactor, listener: Slow())
        self.assertRaises(ConfigurationError, lead.service.privilegedStartService)
        late.errback(OSError("late"))
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_locked(self) -> None:
        """A directory that another broker has is refused; the ports are closed again."""
        first = self.broker()
        second = self.broker(start=False, fileSystem=first.fileSystem)
        self.assertRaises(DirectoryLockedError, second.service.privilegedStartService)
        self.assertEqual(second.service.ports, [])

    def test_unusable(self) -> None:
        """So is one that cannot be made or read."""
        fileSystem = PowerCutFileSystem()
        fileSystem.fail("create", "/srv", errno.EACCES)
        lead = self.broker(start=False, fileSystem=fileSystem)
        self.assertRaises(StorageError, lead.service.privilegedStartService)


class StopTests(LeadTestCase):
    """What is under way and held when it stops."""

    def test_idleConnections(self) -> None:
        """Idle connections are closed; the stop does not wait for anything."""
        lead = self.broker()
        peers = [lead.connect() for _ in range(5)]
        before = lead.reactor.seconds()
        lead.stop()
        self.assertTrue(all(peer.isClosed for peer in peers))
        self.assertLess(lead.reactor.seconds() - before, 0.1)

    def test_underWay(self) -> None:
        """
        Requests that are under way and held come to their end, with their answers, before the
        connection is closed (row 49).
        """
        lead = self.broker()
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, b""))
        lead.settle()
        peer.send(
            encodeProduce("t", 0, A),
            encodeFetch("t", 0, 0, 100),
            encodeProduce("t", 0, B),
            encodeFetch("t", 0, 11, 100),
        )
        lead.stop()
        self.assertEqual(peer.fetched(), [(0, A), (0, B)])
        self.assertTrue(peer.isClosed)

    def test_noMoreIsRead(self) -> None:
        """What clients send after the stop has begun is not taken in."""
        lead = self.broker()
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, b""))
        lead.settle()
        peer.send(encodeProduce("t", 0, A), encodeFetch("t", 0, 0, 100))
        stopped: list[Any] = []
        lead.service.stopService().addCallback(stopped.append)
        peer.sendSome(encodeProduce("t", 0, B))
        for _ in range(100):
            lead.settle()
            lead.reactor.advance(0.02)
        self.assertEqual((lead.contents(), stopped), (A, [None]))

    def test_heldBack(self) -> None:
        """
        Producers that are held back are let go by the last flush, and what they have sent is kept.
        """
        lead = self.broker(
            {"max.unflushed.bytes.per.partition": "100", "log.flush.interval": "1000"}
        )
        peer, gone = lead.connect(), lead.connect()
        peer.send(encodeProduce("t", 0, b""))
        lead.settle()
        large = encodeSet([b"x" * 200])
        peer.send(encodeProduce("t", 0, large))
        peer.send(encodeProduce("t", 0, A))
        gone.send(encodeProduce("t", 0, B))
        gone.vanish()
        self.assertEqual(lead.log().logEndOffset, 210)
        lead.stop()
        self.assertEqual(lead.contents(), large + A + B)
        self.assertIn(MARK, lead.fileSystem.list(ROOT))

    def test_stuckReader(self) -> None:
        """
        A client that does not take its answer is cut after a moment; what it has sent behind is
        kept all the same.
        """
        lead = self.broker()
        large = encodeSet([b"x" * 900_000])
        lead.connect().send(encodeProduce("t", 0, large))
        lead.settle()
        stuck = lead.connect()
        stuck.resize(10_000)
        stuck.send(encodeFetch("t", 0, 0, 1_000_000), encodeProduce("t", 0, A))
        before = lead.reactor.seconds()
        lead.stop()
        self.assertGreaterEqual(lead.reactor.seconds() - before, service.STOP_GRACE_MS / 1000 - 0.1)
        self.assertEqual(lead.contents(), large + A)
        self.assertEqual(lead.pinCounts(), [0])

    def test_goneBeforeItsTopicIsThere(self) -> None:
        """
        "Connect, send, close" to a topic that does not exist yet, and a stop at once: the partition
        is made, the message kept, and the mark tells the truth (row 21).
        """
        lead = self.broker()
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, A))
        peer.vanish()
        self.assertEqual(lead.directory.logs, {})
        lead.stop()
        self.assertEqual(
            (lead.contents(), lead.log().highWatermark, lead.service.connections.orphaned),
            (A, 11, {}),
        )
        lead.fileSystem.cutPower()
        self.assertEqual(self.broker(fileSystem=lead.fileSystem).contents(), A)

    def test_goneWhileAWorkerOpensItsSet(self) -> None:
        """The same with a compressed set that a worker has still to open."""
        lead = self.broker()
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, b""))
        lead.settle()
        large = encodeSet([NOISE], GZIP)
        peer.send(encodeProduce("t", 0, large), encodeProduce("t", 0, A))
        peer.vanish()
        self.assertEqual(len(lead.readWorker.jobs), 1)
        lead.stop()
        self.assertEqual(lead.contents(), large + A)

    def test_neverCarriedOut(self) -> None:
        """What cannot be carried out even then is said to be lost, and no mark is written."""
        lines = capture(self)
        lead = self.broker({"log.flush.interval": "1"})
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, b""))
        lead.settle()
        lead.fileSystem.fail("write", ".kafka", errno.ENOSPC, 1_000_000)
        peer.send(encodeProduce("t", 0, A))
        peer.send(encodeProduce("t", 0, B))
        peer.vanish()
        lead.stop()
        self.assertTrue(
            any(
                "The last requests of 1 clients could not be handled in time: they are lost" in line
                for line in lines()
            ),
            lines(),
        )
        self.assertNotIn(MARK, lead.fileSystem.list(ROOT))
        self.assertEqual(lead.service.connections.orphaned, {})

    def test_lateCreation(self) -> None:
        """
        A partition that comes into being after everything was closed leaves no mark, since its
        bytes are not flushed.
        """
        lines = capture(self)
        lead = self.broker()
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, A))
        (creation,) = lead.flushWorker.jobs
        lead.flushWorker.jobs.clear()
        outcomes: list[Any] = []
        lead.service.stopService().addBoth(outcomes.append)
        for _ in range(1000):
            lead.reactor.advance(0.02)
            lead.reactor.turn()
            if lead.flushWorker.jobs:
                break
        lead.flushWorker.jobs.appendleft(creation)
        lead.settle()
        self.assertEqual(outcomes, [None])
        self.assertTrue(
            any("The clean-shutdown marker could not be written" in line for line in lines()),
            lines(),
        )
        self.assertNotIn(MARK, lead.fileSystem.list(ROOT))


class PortTests(TestCase):
    """Listening, on real ports."""

    timeout = 60

    def settings(self, **properties: str) -> BrokerSettings:
        self.directory = os.path.abspath(self.mktemp())
        changes = {key.replace("_", "."): value for key, value in properties.items()}
        return BrokerSettings.fromProperties(
            {**PROPERTIES, "log.dir": self.directory, **changes}, self.fail
        )

    def taken(self) -> int:
        """A port on which another socket listens."""
        other = socket.socket()
        self.addCleanup(other.close)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port: int = other.getsockname()[1]
        return port

    async def test_taken(self) -> None:
        """
        A taken port fails at once, names the endpoint, and nothing was touched or is left behind
        (gotcha 6).
        """
        port = self.taken()
        broker = BrokerService(reactor, self.settings(port=str(port)))
        with self.assertRaisesRegex(
            ConfigurationError,
            f"cannot listen on 'tcp:{port}:interface=127.0.0.1'.*[Aa]ddress already in use",
        ):
            await broker.start()
        self.assertFalse(os.path.exists(self.directory))
        with self.assertRaises(ConfigurationError):
            broker.privilegedStartService()
        self.assertFalse(broker.running)

    async def test_secondIsTaken(self) -> None:
        """When the second of two listeners cannot be had, the first is closed again."""
        port = self.taken()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        broker = BrokerService(
            reactor,
            self.settings(
                listeners=f"tcp:{free}:interface=127.0.0.1 | tcp:{port}:interface=127.0.0.1"
            ),
        )
        with self.assertRaises(ConfigurationError):
            await broker.start()
        self.assertEqual(broker.ports, [])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", free))

    async def test_nonsense(self) -> None:
        """An endpoint string that makes no sense is named."""
        for listener in ("carrier-pigeon:coop=3", "tcp:http-port", "ssl:0:privateKey=/nowhere.pem"):
            broker = BrokerService(reactor, self.settings(listeners=listener))
            with self.assertRaisesRegex(ConfigurationError, "cannot listen on"):
                await broker.start()

    async def test_failedStart(self) -> None:
        """
        A start that fails at the directory, in a running reactor, gives the ports back and leaves
        no thread.
        """
        settings = self.settings()
        with open(self.directory, "w", encoding="utf-8"):
            pass
        broker = BrokerService(reactor, settings)
        with self.assertRaises(StorageError):
            await broker.start()
        self.assertEqual((broker.ports, broker.running), ([], False))
        names = [thread.name for thread in threading.enumerate()]
        self.assertEqual([name for name in names if "pylogbroker" in name], [])
        await broker.stop()

    async def test_stoppedWhileStarting(self) -> None:
        """
        A stop that comes while the directory is being opened has an effect: what was being started
        is stopped, however often that is asked for.
        """
        broker = BrokerService(reactor, self.settings())
        started, stopped, again = broker.start(), broker.stop(), broker.stop()
        await started
        await stopped
        await again
        self.assertEqual(
            (broker.running, broker.ports, broker.directory.isOpen), (False, [], False)
        )
        self.assertEqual(
            set(os.listdir(self.directory)), {MARK, ".lock", "metadata.journal", "meta.properties"}
        )

    async def test_startCancelled(self) -> None:
        """
        So has cancelling the start: the directory that a worker opens meanwhile is let go, and
        there is nothing to stop.
        """
        broker = BrokerService(reactor, self.settings())
        started = broker.start()
        started.cancel()
        with self.assertRaises(CancelledError):
            await started
        await broker.stop()
        self.assertEqual(
            (broker.running, broker.ports, broker.directory.isOpen), (False, [], False)
        )

    async def test_nobodyTooEarly(self) -> None:
        """
        Who connects while the directory is being opened is accepted when it is, and answered then.
        """
        workers: list[ManualWorker] = []

        def newWorker(reactor: Any, name: str, threadCount: int) -> ManualWorker:
            workers.append(ManualWorker())
            return workers[-1]

        broker = BrokerService(reactor, self.settings(), worker=newWorker, random=Random(1))
        started = broker.start()
        port = broker.ports[0].getHost().port
        client = await connect(self, f"tcp:127.0.0.1:{port}")
        client.send(encodeFetch("t", 0, 0, 1))
        answer = client.answer()
        self.assertEqual((broker.counters.connections.openedCount, started.called), (0, False))
        workers[0].perform()
        await started
        self.assertEqual(decodeFetch(await answer), (0, b""))
        await client.abort()
        stopped = broker.stop()
        while not stopped.called:
            for worker in workers:
                worker.performAll()
            await deferLater(reactor, 0)

    async def test_interface(self) -> None:
        """
        The interface is honoured: on another address of the machine the port is not there (gotcha
        23).
        """
        broker = BrokerService(reactor, self.settings(listen_interface="127.0.0.2"))
        self.addCleanup(broker.stop)
        await broker.start()
        host = broker.ports[0].getHost()
        self.assertEqual(host.host, "127.0.0.2")
        client = await connect(self, f"tcp:127.0.0.2:{host.port}")
        client.send(encodeFetch("t", 0, 0, 1))
        await client.answer()
        with socket.socket() as other:
            self.assertEqual(other.connect_ex(("127.0.0.1", host.port)), errno.ECONNREFUSED)

    async def test_several(self) -> None:
        """Several listeners serve the same partitions."""
        broker = BrokerService(
            reactor, self.settings(listeners="tcp:0:interface=127.0.0.1 | tcp6:0:interface=\\:\\:1")
        )
        self.addCleanup(broker.stop)
        await broker.start()
        first, second = (port.getHost().port for port in broker.ports)
        one = await connect(self, f"tcp:127.0.0.1:{first}")
        two = await connect(self, f"tcp:\\:\\:1:{second}")
        one.send(encodeProduce("t", 0, A), encodeFetch("t", 0, 0, 100))
        self.assertEqual(decodeFetch(await one.answer()), (0, A))
        two.send(encodeFetch("t", 0, 0, 100))
        self.assertEqual(decodeFetch(await two.answer()), (0, A))

    async def accepted(self, **properties: str) -> Callable[[int, int], int]:
        """What an option of an accepted socket is."""
        broker = LocalBroker(
            reactor, {key.replace("_", "."): value for key, value in properties.items()}
        )
        self.addCleanup(broker.stop)
        await broker.start()
        client = await connect(self, broker.endpoint)
        client.send(encodeFetch("t", 0, 0, 1))
        await client.answer()
        (connection,) = broker.broker.service.connections.open
        transport: SendfileTransport = connection.transport
        option: Callable[[int, int], int] = transport.socket.getsockopt
        return option

    async def test_buffers(self) -> None:
        """
        Connections have the buffers that the properties say (Linux doubles the numbers), and do not
        delay small segments (row 24).
        """
        option = await self.accepted(socket_send_buffer="50000", socket_receive_buffer="60000")
        self.assertEqual(option(socket.SOL_SOCKET, socket.SO_SNDBUF), 100_000)
        self.assertEqual(option(socket.SOL_SOCKET, socket.SO_RCVBUF), 120_000)
        self.assertEqual(option(socket.IPPROTO_TCP, socket.TCP_NODELAY), 1)

    async def test_buffersLeft(self) -> None:
        """0 leaves them to the system."""
        option = await self.accepted(socket_send_buffer="0", socket_receive_buffer="0")
        self.assertNotIn(option(socket.SOL_SOCKET, socket.SO_SNDBUF), (0, 204_800))
        self.assertNotIn(option(socket.SOL_SOCKET, socket.SO_RCVBUF), (0, 204_800))

    async def test_burst(self) -> None:
        """A burst of connections, more than Twisted's backlog, is accepted."""
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        clients = await gatherResults(
            [Deferred.fromCoroutine(connect(self, broker.endpoint)) for _ in range(200)]
        )
        for client in clients:
            client.send(encodeFetch("t", 0, 0, 1))
        await gatherResults([client.answer() for client in clients])
        self.assertEqual(broker.broker.service.counters.connections.openCount, 200)

    async def test_noZooKeeper(self) -> None:
        """Without ZooKeeper it serves at once; with it, this release does not start (row 54)."""
        broker = BrokerService(reactor, self.settings(enable_zookeeper="false"))
        await broker.start()
        await broker.stop()
        with self.assertRaisesRegex(ConfigurationError, "enable.zookeeper"):
            self.settings(enable_zookeeper="true")
