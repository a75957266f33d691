"""
Tests of a broker inside an application's reactor.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.application.service import Application, IService, IServiceCollection
from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from pylogbroker.errors import ConfigurationError, DirectoryLockedError
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeFetch
from pylogbroker.records.messageset import encodeSet
from tests.broker.client import connect
from tests.broker.manualbroker import capture

SET = encodeSet([b"hello"])


class Triggers:
    """
    The reactor, with triggers that a test looks at.

    @ivar waiting: the phase and the callable of each.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)

    def addSystemEventTrigger(self, phase: str, _event: str, call: Any) -> tuple[str, Any]:
        self.waiting.append((phase, call))
        return phase, call

    def removeSystemEventTrigger(self, trigger: tuple[str, Any]) -> None:
        self.waiting.remove(trigger)


class EmbeddedBrokerTests(TestCase):
    """The application starts it, and stops it."""

    timeout = 60

    def setUp(self) -> None:
        self.directory = os.path.abspath(self.mktemp())

    def broker(self, over: Any = reactor, **properties: str) -> EmbeddedBroker:
        return EmbeddedBroker(
            over,
            {
                "brokerid": "0",
                "port": "0",
                "listen.interface": "127.0.0.1",
                "enable.zookeeper": "false",
                "log.dir": self.directory,
                "log.flush.interval": "1",
                **{key.replace("_", "."): value for key, value in properties.items()},
            },
        )

    async def exchange(self, broker: EmbeddedBroker) -> None:
        client = await connect(self, broker.endpoint)
        client.send(encodeProduce("t", 0, SET), encodeFetch("t", 0, 0, 100))
        self.assertEqual(decodeFetch(await client.answer()), (0, SET))
        await client.abort()

    async def test_serves(self) -> None:
        """
        Started, it serves at its endpoint; stopped, everything is on the disk, with the
        clean-shutdown mark, and nothing left in the reactor (row 54).
        """
        broker = self.broker()
        await broker.start()
        self.assertEqual(
            (broker.host, broker.endpoint), ("127.0.0.1", f"tcp:127.0.0.1:{broker.port}")
        )
        await self.exchange(broker)
        await broker.stop()
        self.assertEqual(
            sorted(os.listdir(self.directory)),
            [".kafka_cleanshutdown", ".lock", "meta.properties", "metadata.journal", "t-0"],
        )
        with open(f"{self.directory}/t-0/00000000000000000000.kafka", "rb") as segment:
            self.assertEqual(segment.read(), SET)

    async def test_again(self) -> None:
        """Another one can go on where it ended; itself it cannot be started again, and says so."""
        for number in range(2):
            broker = self.broker()
            await broker.start()
            client = await connect(self, broker.endpoint)
            client.send(encodeProduce("t", 0, SET), encodeFetch("t", 0, 15 * number, 100))
            self.assertEqual(decodeFetch(await client.answer()), (0, SET))
            await broker.stop()
            with self.assertRaisesRegex(RuntimeError, "make another one"):
                await broker.start()
        self.assertEqual(
            os.path.getsize(f"{self.directory}/t-0/00000000000000000000.kafka"), 2 * len(SET)
        )

    async def test_startedOnce(self) -> None:
        """While it runs it cannot be started again, which leaves it alone."""
        broker = self.broker()
        self.addCleanup(broker.stop)
        await broker.start()
        with self.assertRaisesRegex(RuntimeError, "started once"):
            await broker.start()
        await self.exchange(broker)

    async def test_everywhere(self) -> None:
        """Listening on all addresses, its endpoint is one that can be connected to."""
        broker = self.broker(listen_interface="")
        self.addCleanup(broker.stop)
        await broker.start()
        self.assertEqual(
            (broker.host, broker.endpoint), ("0.0.0.0", f"tcp:127.0.0.1:{broker.port}")
        )
        await self.exchange(broker)

    async def test_ipv6(self) -> None:
        """So it is with IPv6, whose addresses have colons."""
        for interface in ("::1", "::"):
            broker = self.broker(listen_interface=interface)
            await broker.start()
            self.assertEqual(broker.endpoint, f"tcp:\\:\\:1:{broker.port}")
            client = await connect(self, broker.endpoint)
            client.send(encodeFetch("u", 0, 0, 100))
            self.assertEqual(decodeFetch(await client.answer()), (0, b""))
            await client.abort()
            await broker.stop()

    def test_wrong(self) -> None:
        """Wrong properties are refused at once, all of them named."""
        error = self.assertRaises(
            ConfigurationError, self.broker, num_partitions="0", log_file_size="many"
        )
        self.assertIn("num.partitions", str(error))
        self.assertIn("log.file.size", str(error))

    def test_misspelt(self) -> None:
        """A property that nobody knows is logged, with its nearest neighbour."""
        lines = capture(self)
        self.broker(num_partition="3")
        self.assertEqual(len(lines()), 1)
        self.assertIn("num.partition", lines()[0])
        self.assertIn("num.partitions?", lines()[0])

    async def test_locked(self) -> None:
        """
        A second one in the same directory fails to start, and leaves nothing behind: the first goes
        on.
        """
        first, second = self.broker(), self.broker()
        self.addCleanup(first.stop)
        await first.start()
        with self.assertRaises(DirectoryLockedError):
            await second.start()
        self.assertEqual(second.service.ports, [])
        await self.exchange(first)
        await second.stop()

    async def test_endOfTheReactor(self) -> None:
        """
        What was not stopped is stopped before the reactor ends, which waits for it; stopping it
        then, or later, is as once.
        """
        triggers = Triggers()
        broker = self.broker(triggers)
        await broker.start()
        await self.exchange(broker)
        ((phase, stop),) = triggers.waiting
        self.assertEqual(phase, "before")
        triggers.waiting.clear()  # as the reactor does that calls them
        await stop()
        self.assertIn(".kafka_cleanshutdown", os.listdir(self.directory))
        await broker.stop()

    async def test_nothingLeftForTheEnd(self) -> None:
        """
        What was stopped, or could not be started, leaves nothing behind for the reactor's end.
        """
        triggers = Triggers()
        first, second = self.broker(triggers), self.broker(triggers)
        await first.start()
        with self.assertRaises(DirectoryLockedError):
            await second.start()
        self.assertEqual(len(triggers.waiting), 1)
        await first.stop()
        self.assertEqual(triggers.waiting, [])

    async def test_asAService(self) -> None:
        """Its service can be a part of a Twisted application, which stops it."""
        broker = self.broker()
        application = Application("an application")
        broker.service.setServiceParent(IServiceCollection(application))
        await broker.start()
        await self.exchange(broker)
        await IService(application).stopService()
        self.assertFalse(broker.service.running)
        self.assertIn(".kafka_cleanshutdown", os.listdir(self.directory))
