"""
Tests of where the console reads from.
"""

from __future__ import annotations

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.console.peek import ISource, OwnSource, RemoteSource
from pylogbroker.errors import OffsetOutOfRangeError, PylogbrokerError, RemoteOffsetOutOfRangeError
from pylogbroker.protocol.kafka07.requests import encodeOffsets, encodeProduce
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from tests.broker.client import connect

DATA = encodeSet([b"hello", b"world"])


class SourceTests(TestCase):
    """Both read alike."""

    timeout = 60

    async def start(self) -> list[ISource]:
        self.broker = LocalBroker(reactor)
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        client = await connect(self, self.broker.endpoint)
        client.send(encodeProduce("t", 0, DATA), encodeOffsets("t", 0, -1, 1))
        await client.answer()
        consumer = SimpleConsumer(reactor, self.broker.endpoint)
        self.addCleanup(consumer.close)
        return [OwnSource(self.broker.broker.service), RemoteSource(consumer)]

    async def test_read(self) -> None:
        """Bytes from an offset on; none at the end, and of a topic that is not there."""
        for source in await self.start():
            self.assertEqual(await source.read("t", 0, 0, 1000), DATA)
            self.assertEqual(await source.read("t", 0, 15, 5), DATA[15:20])
            self.assertEqual(
                (await source.read("t", 0, 30, 1000), await source.read("u", 0, 0, 1000)),
                (b"", b""),
            )

    async def test_bounds(self) -> None:
        """Where a partition begins and ends."""
        for source in await self.start():
            self.assertEqual(
                (await source.bounds("t", 0), await source.bounds("u", 0)), ((0, 30), (0, 0))
            )

    async def test_errors(self) -> None:
        """What is refused, fails."""
        own, remote = await self.start()
        with self.assertRaises(OffsetOutOfRangeError):
            await own.read("t", 0, 31, 100)
        with self.assertRaises(RemoteOffsetOutOfRangeError):
            await remote.read("t", 0, 31, 100)
        for source in (own, remote):
            with self.assertRaises(PylogbrokerError):
                await source.read("t", 9, 0, 100)
            with self.assertRaises(PylogbrokerError):
                await source.bounds("t", 9)

    async def test_notCounted(self) -> None:
        """Looking at the own broker is no traffic."""
        own, _remote = await self.start()
        before = self.broker.broker.service.counters.snapshot()
        await own.read("t", 0, 0, 1000)
        await own.bounds("t", 0)
        self.assertEqual(self.broker.broker.service.counters.snapshot(), before)
