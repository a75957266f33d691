"""
Consumer groups with whole brokers on real sockets, and a ZooKeeper in memory: the scenarios of
0.7.2's ZookeeperConsumerConnectorTest.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.tcp import Client
from twisted.trial.unittest import TestCase

from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster import paths
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.cluster.znodes import BrokerRegistration, encodeNumber
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream, decodeText
from pylogbroker.errors import ConsumerTimeoutError, InvalidMessageSizeError
from pylogbroker.records.compression import GZIP, NONE
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.zookeeper.ephemeral import claim

TOPIC = "topic1"
PARTITION_COUNT = 2


class ConsumerConnectorTests(TestCase):
    """Two brokers of two partitions each."""

    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        self.zookeeper = FakeZookeeper(reactor)
        self.admin = self.zookeeper.client()
        await self.admin.connect()
        self.addCleanup(self.admin.close)
        self.brokers: list[LocalBroker] = []
        for number in (0, 1):
            broker = LocalBroker(
                reactor, {"brokerid": str(number), "num.partitions": str(PARTITION_COUNT)}
            )
            await broker.start()
            self.addCleanup(broker.stop)
            self.brokers.append(broker)
            await claim(
                self.admin,
                paths.brokerId(number),
                BrokerRegistration("c", broker.host, broker.port).encode(),
            )
            await claim(self.admin, paths.topicBroker(TOPIC, number), encodeNumber(PARTITION_COUNT))

    async def send(self, name: str, count: int, codec: int = NONE) -> list[bytes]:
        """So many messages to each partition, in one set."""
        sent = []
        for number, broker in enumerate(self.brokers):
            producer = SyncProducer(reactor, broker.endpoint)
            for partition in range(PARTITION_COUNT):
                payloads = [
                    f"{name}-{number}-{partition}-{index}".encode() for index in range(count)
                ]
                await producer.send(TOPIC, partition, encodeSet(payloads, codec))
                sent += payloads
            await producer.close()
        return sorted(sent)

    async def consumer(
        self, name: str, properties: Mapping[str, str] | None = None
    ) -> ConsumerConnector:
        """A member."""
        session = self.zookeeper.client()
        consumer = ConsumerConnector(
            reactor,
            {
                "groupid": "group1",
                "consumerid": name,
                "consumer.timeout.ms": "400",
                "rebalance.backoff.ms": "50",
                "fetcher.backoff.ms": "20",
                **(properties or {}),
            },
            session,
        )
        await consumer.connect()
        self.addCleanup(session.close)
        self.addCleanup(consumer.shutdown)
        return consumer

    async def take(self, stream: MessageStream, count: int) -> list[Any]:
        """So many values, sorted."""
        return sorted([(await stream.__anext__()).value for _ in range(count)])

    async def silent(self, stream: MessageStream) -> None:
        """Nothing comes."""
        await self.assertFailure(Deferred.fromCoroutine(stream.__anext__()), ConsumerTimeoutError)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait for something to be so."""
        while not holds():
            await deferLater(reactor, 0.01)

    async def basic(self, codec: int) -> None:
        """What testBasic and testCompression do."""
        first = await self.consumer("consumer1")
        (one,) = (await first.createMessageStreams({TOPIC: 1}))[TOPIC]
        await self.silent(one)
        await self.silent(one)
        sent = await self.send("a", 20, codec)
        self.assertEqual(await self.take(one, len(sent)), sent)
        await first.commitOffsets()
        second = await self.consumer("consumer2")
        (two,) = (await second.createMessageStreams({TOPIC: 1}))[TOPIC]
        await self.until(lambda: len(first.owned) == len(second.owned) == 2)
        sent = await self.send("b", 20, codec)
        got = await self.take(one, len(sent) // 2) + await self.take(two, len(sent) // 2)
        self.assertEqual(sorted(got), sent)
        nothing = await self.consumer("consumer3")
        self.assertEqual(await nothing.createMessageStreams({}), {})
        sent = await self.send("c", 20, codec)
        got = await self.take(one, len(sent) // 2) + await self.take(two, len(sent) // 2)
        self.assertEqual(sorted(got), sent)

    async def test_basic(self) -> None:
        """
        ZookeeperConsumerConnectorTest.testBasic: the time-out is raised twice on the same stream;
        messages are consumed and committed; a second consumer takes half of the partitions; one of
        an empty map disturbs nothing.
        """
        await self.basic(NONE)

    async def test_compression(self) -> None:
        """ZookeeperConsumerConnectorTest.testCompression: the same with gzip."""
        await self.basic(GZIP)

    async def test_compressionSetConsumption(self) -> None:
        """
        ZookeeperConsumerConnectorTest.testCompressionSetConsumption: after half of a wrapper of 200
        was consumed and the consumer restarted, everything is delivered again.
        """
        sent = await self.send("a", 200, GZIP)
        first = await self.consumer("consumer1")
        (one,) = (await first.createMessageStreams({TOPIC: 1}))[TOPIC]
        await self.take(one, 100)
        await first.shutdown()
        second = await self.consumer("consumer2")
        (two,) = (await second.createMessageStreams({TOPIC: 1}))[TOPIC]
        self.assertEqual(await self.take(two, len(sent)), sent)
        await self.silent(two)

    async def test_consumerDecoder(self) -> None:
        """
        ZookeeperConsumerConnectorTest.testConsumerDecoder: a decoder of text, with a filter, and
        committed positions.
        """
        sent = await self.send("ä", 20)
        consumer = await self.consumer("consumer1")
        (stream,) = await consumer.createMessageStreamsByFilter(
            whitelist("topic.*"), decode=decodeText
        )
        self.assertEqual(await self.take(stream, len(sent)), [each.decode() for each in sent])
        await consumer.shutdown()
        again = await self.consumer("consumer1")
        (stream,) = (await again.createMessageStreams({TOPIC: 1}, decodeText))[TOPIC]
        await self.silent(stream)

    async def test_messageSizeTooLarge(self) -> None:
        """
        LogCorruptionTest.testMessageSizeTooLarge, the high-level consumer: a size field overwritten
        with 1000 on the disk makes reading raise; the other partitions go on.
        """
        await self.send("a", 1)
        [path] = Path(self.brokers[0].directory, f"{TOPIC}-0").glob("*.kafka")
        with path.open("r+b") as segment:
            segment.write((1000).to_bytes(4, "big"))
        consumer = await self.consumer("consumer1")
        (stream,) = (await consumer.createMessageStreams({TOPIC: 1}))[TOPIC]
        got: list[Any] = []
        errors: list[InvalidMessageSizeError] = []
        while len(got) < 3 or not errors:
            try:
                got.append((await stream.__anext__()).value)
            except InvalidMessageSizeError as error:
                errors.append(error)
        self.assertEqual(sorted(got), [b"a-0-1-0", b"a-1-0-0", b"a-1-1-0"])
        self.assertIn(f"{TOPIC}/0-0 at offset 0", str(errors[0]))

    async def test_receiveBuffer(self) -> None:
        """
        socket.buffersize is the SO_RCVBUF of the connections to brokers (which Linux doubles, for
        its own books).
        """
        await self.send("a", 1)
        consumer = await self.consumer("consumer1", {"socket.buffersize": "30000"})
        (stream,) = (await consumer.createMessageStreams({TOPIC: 1}))[TOPIC]
        await self.take(stream, 4)
        ports = {broker.port for broker in self.brokers}
        clients = [
            each
            for each in cast(Any, reactor).getReaders()
            if isinstance(each, Client) and each.getPeer().port in ports
        ]
        self.assertEqual(
            [client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for client in clients],
            [60_000, 60_000],
        )

    async def test_asyncFor(self) -> None:
        """
        As an application is written: C{async with}, C{async for}; the next run goes on where the
        first was left.
        """
        sent = await self.send("a", 50)
        got: list[bytes] = []
        for _run in range(2):
            session = self.zookeeper.client()
            async with ConsumerConnector(reactor, {"groupid": "group1"}, session) as consumer:
                streams = await consumer.createMessageStreams({TOPIC: 2})
                for stream in streams[TOPIC]:
                    count = 0
                    async for message in stream:
                        got.append(message.value)
                        count += 1
                        if count == len(sent) // 4:
                            break
            await session.close()
        self.assertEqual(sorted(got), sent)
