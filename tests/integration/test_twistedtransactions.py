"""
Transactions of the producer of today's protocol on real brokers: all of a transaction is visible,
with the positions in it, or nothing is, whatever happens in between.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from pylogbroker.broker.kafka import protocol
from pylogbroker.errors import PylogbrokerError, TransactionAbortedError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import ConsumerGroupMetadata, TopicPartition
from tests.integration.test_twistedclients import ClientCase

END = b"end"
SOURCE, RESULTS = "source", "results"
GROUP = ConsumerGroupMetadata("g")


class TransactionCase(ClientCase):
    """Producers with transactions, and what readers see."""

    def writer(self, name: str = "x", **settings: str) -> KafkaProducer:
        return self.producer(
            transactional_id=name, linger_ms="0", retry_backoff_ms="10", **settings
        )

    async def visible(self, topic: str) -> list[bytes]:
        """The messages of a topic's partition 0 that are committed, but for the last, END."""
        await self.producer().send(topic, END, partition=0)
        consumer = self.consumer(isolation_level="read_committed")
        consumer.assign([TopicPartition(topic, 0)])
        found: list[bytes] = []
        async for record in consumer:
            if record.value == END:
                break
            found.append(record.value or b"")
        await consumer.close()
        return found

    async def commit(self, producer: KafkaProducer, topic: str, values: Iterable[bytes]) -> None:
        async with producer.transaction():
            for value in values:
                producer.send(topic, value, partition=0).addErrback(lambda _failure: None)


class EndTests(TransactionCase):
    """On a broker in this process, with C{transaction.version} 2."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(
            reactor, {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
        )
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        self.servers = self.broker.bootstrapServers

    async def test_ends(self) -> None:
        """What is committed is visible, what is aborted is not, and the producer goes on."""
        writer = self.writer()
        for number in range(6):
            if number % 2:
                await self.commit(writer, "t", [b"%d" % number, b"%d more" % number])
            else:
                with self.assertRaises(ZeroDivisionError):
                    async with writer.transaction():
                        await writer.send("t", b"%d" % number, partition=0)
                        writer.send("t", b"late", partition=0).addErrback(lambda _failure: None)
                        raise ZeroDivisionError
        async with writer.transaction():
            pass
        self.assertEqual(
            await self.visible("t"), [b"1", b"1 more", b"3", b"3 more", b"5", b"5 more"]
        )

    async def test_fenced(self) -> None:
        """A second producer of the id ends the transaction of the first, which is told."""
        first, second = self.writer(), self.writer()
        with self.assertRaises(PylogbrokerError) as caught:
            async with first.transaction():
                await first.send("t", b"first", partition=0)
                await self.commit(second, "t", [b"second"])
        self.assertIn("PRODUCER_FENCED", str(caught.exception))
        with self.assertRaises(ResponseError):
            await self.commit(first, "t", [b"again"])
        with self.assertRaises(ResponseError) as refused:
            await first.send("t", b"x")
        self.assertIn("PRODUCER_FENCED", str(refused.exception))
        self.assertEqual(await self.visible("t"), [b"second"])

    async def test_tooLong(self) -> None:
        """A transaction that the coordinator has aborted for its age is reported as such."""
        writer = self.writer(transaction_timeout_ms="100")
        with self.assertRaises(PylogbrokerError) as caught:
            async with writer.transaction():
                await writer.send("t", b"x", partition=0)
                await deferLater(reactor, 0.5)
        self.assertIn("longer than transaction.timeout.ms=100", str(caught.exception))
        self.assertEqual(await self.visible("t"), [])

    async def test_refused(self) -> None:
        """A message that is not stored aborts the transaction, and the next one succeeds."""
        writer = self.writer(delivery_timeout_ms="31000")
        await self.commit(writer, "t", [b"0"])
        self.broker.injectError("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED.name, count=1)
        with self.assertRaises(TransactionAbortedError):
            await self.commit(writer, "t", [b"1"])
        await self.commit(writer, "t", [b"2"])
        self.assertEqual(await self.visible("t"), [b"0", b"2"])

    async def test_closed(self) -> None:
        """Closing a producer aborts the transaction that is open."""
        writer = self.writer()
        with self.assertRaises(TransactionAbortedError):
            async with writer.transaction():
                await writer.send("t", b"x", partition=0)
                await writer.close()
        self.assertEqual(await self.visible("t"), [])

    async def test_everyRetriableError(self) -> None:
        """Each error that passes, and lost connections, at each step."""
        steps = ("FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn")
        codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]
        codes += [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS]
        expected = []
        for number, code in enumerate(codes):
            writer = self.writer()
            for step in steps:
                self.broker.injectError(step, code.name, count=2)
                self.broker.injectDisconnect(step, count=1, isHandled=number % 2 == 1)
            expected.append(b"%d" % number)
            await self.commit(writer, "t", expected[-1:])
            self.broker.clearFaults()
            await writer.close()
        self.assertEqual(await self.visible("t"), expected)

    async def test_positions(self) -> None:
        """Messages that are read, changed and sent on, with crashes between: each once."""
        await self.exactlyOnce()

    async def exactlyOnce(self, count: int = 60) -> None:
        source = self.producer()
        for number in range(count):
            await source.send(SOURCE, b"%d" % number, partition=0)
        chance = random.Random(5)
        position = 0
        for _attempt in range(1_000):
            if position == count:
                break
            writer = self.writer()
            consumer = self.consumer(isolation_level="read_committed")
            consumer.assign({TopicPartition(SOURCE, 0): position})
            try:
                await self.transform(writer, consumer, count, chance)
            except ZeroDivisionError:
                pass
            await consumer.close()
            await writer.close()
            position = await self.committed()
        found = await self.visible(RESULTS)
        self.assertEqual(found, [b"%d" % number for number in range(count)])

    async def transform(self, writer: Any, consumer: Any, count: int, chance: Any) -> None:
        async for batch in consumer.batches():
            async with writer.transaction() as transaction:
                for record in batch:
                    writer.send(RESULTS, record.value, partition=0).addErrback(lambda _f: None)
                await transaction.sendOffsets(consumer.positions, GROUP)
                if chance.random() < 0.5:
                    raise ZeroDivisionError
            if batch[-1].offset == count - 1:
                break

    async def committed(self) -> int:
        """The position of the group."""

        def ask() -> int:
            client = confluent_kafka.Consumer(
                {"bootstrap.servers": self.servers, "group.id": GROUP.groupId}
            )
            [found] = client.committed([confluent_kafka.TopicPartition(SOURCE, 0)], 30)
            client.close()
            return max(found.offset, 0)

        found: Deferred[int] = deferToThread(ask)
        return await found


class ExplicitTests(EndTests):
    """With C{transaction.version} 1: partitions are added before batches leave."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.patch(protocol, "FEATURES", {**protocol.FEATURES, "transaction.version": 1})
        await super().setUp()


class KilledTests(TransactionCase):
    """On a broker that is killed."""

    async def test_killed(self) -> None:
        """A broker that is killed within transactions and comes back: each is whole, and once."""
        broker = BackgroundBroker({})
        self.addCleanup(broker.close)
        broker.start()
        self.servers = broker.bootstrapServers
        writer = self.writer()
        for number in range(30):
            async with writer.transaction():
                for part in range(3):
                    sent = writer.send("t", b"%d %d" % (number, part), partition=0)
                    if part == 1 and number in (10, 20):
                        await sent
                        broker.kill()
                        broker.start()
        self.assertEqual(
            await self.visible("t"),
            [b"%d %d" % (number, part) for number in range(30) for part in range(3)],
        )
