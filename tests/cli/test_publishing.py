"""Tests for L{pylogbroker.cli.publisher}."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli import publisher as module
from pylogbroker.cli.publisher import BATCH_SIZE_MAX, BrokerPublisher, PublisherLimits
from pylogbroker.errors import BrokerConnectionError, MessageTooLargeError
from pylogbroker.records.compression import GZIP
from tests.cli.commands import CommandCase, reactor


class PublisherTests(CommandCase):
    """Messages go out in batches, and one can say what has arrived."""

    def publisher(self, broker: str = "", partition: int = 0, **more: Any) -> BrokerPublisher:
        limits = PublisherLimits(0, 3, 1_000_000, 5000)._replace(**more)
        publisher = BrokerPublisher(reactor, broker or self.broker.endpoint, "t", partition, limits)
        self.addCleanup(lambda: Deferred.fromCoroutine(publisher.close()))
        return publisher

    async def test_batches(self) -> None:
        """A batch is sent when it has enough messages; the rest when it is flushed."""
        await self.startBroker()
        publisher = self.publisher()
        await publisher.check()
        await publisher.add([b"%d" % index for index in range(7)])
        self.assertEqual((publisher.batchCount, publisher.sentCount), (2, 6))
        await publisher.flush()
        await publisher.flush()
        self.assertEqual(
            (
                publisher.batchCount,
                publisher.sentCount,
                publisher.sentSize,
                publisher.confirmedCount,
            ),
            (3, 7, 7, 0),
        )
        await publisher.confirm()
        self.assertEqual(publisher.confirmedCount, 7)
        self.assertEqual(await self.messages("t"), [b"%d" % index for index in range(7)])

    async def test_batchSize(self) -> None:
        """A batch is sent before it has too many bytes; one large message is a batch of its own."""
        await self.startBroker(max_message_size="2000000")
        payloads = [bytes([65 + index]) * (BATCH_SIZE_MAX // 2) for index in range(3)] + [
            b"d" * (BATCH_SIZE_MAX + 1),
            b"e",
        ]
        publisher = self.publisher(batchCountMax=100, payloadSizeMax=2_000_000)
        await publisher.add(payloads)
        await publisher.flush()
        await publisher.confirm()
        self.assertEqual(publisher.batchCount, 4)
        self.assertEqual(await self.messages("t"), payloads)

    async def test_compressedTooLarge(self) -> None:
        """A batch that is too large as one compressed message is sent in parts, in order."""
        await self.startBroker(max_message_size="1000")
        payloads = [random.Random(index).randbytes(400) for index in range(5)]
        publisher = self.publisher(batchCountMax=5, payloadSizeMax=1000, codec=GZIP)
        await publisher.add(payloads)
        await publisher.confirm()
        self.assertGreater(publisher.batchCount, 2)
        self.assertEqual(await self.messages("t"), payloads)

    async def test_tooLarge(self) -> None:
        """
        A message that is too large for the broker is refused, and told by how many were sent before
        it.
        """
        await self.startBroker()
        for codec in (0, GZIP):
            publisher = self.publisher(payloadSizeMax=100, codec=codec)
            await publisher.add([b"a", b"b"])
            await self.refused(
                publisher.add([random.Random(0).randbytes(200)]), MessageTooLargeError
            )
            self.assertEqual(publisher.sentCount, 2)

    async def test_randomPartition(self) -> None:
        """The broker may choose the partition."""
        await self.startBroker()
        publisher = self.publisher(partition=-1)
        await publisher.check()
        await publisher.add([b"a"])
        await publisher.flush()
        await publisher.confirm()
        self.assertEqual(await self.messages("t"), [b"a"])

    async def test_confirmsOnItsWay(self) -> None:
        """After so many messages, or bytes, the broker is asked without being told to."""
        await self.startBroker()
        self.patch(module, "UNCONFIRMED_COUNT_MAX", 5)
        self.patch(module, "UNCONFIRMED_SIZE_MAX", 100)
        publisher = self.publisher()
        await publisher.add([b"a"] * 6)
        self.assertEqual((publisher.sentCount, publisher.confirmedCount), (6, 6))
        await publisher.add([b"a" * 40] * 3)
        self.assertEqual((publisher.sentCount, publisher.confirmedCount), (9, 9))

    async def test_noBroker(self) -> None:
        """Without a broker there is an error, and closing works all the same."""
        publisher = self.publisher("127.0.0.1:1", timeoutMs=50)
        await self.refused(publisher.check(), BrokerConnectionError)
        await publisher.close()

    async def test_lost(self) -> None:
        """
        When the broker hangs up, that is not confirmed, and the text says how much of it surely
        arrived.
        """
        publisher = self.publisher(self.startDeaf(10))
        await publisher.add([b"a"] * 3)
        error = await self.refused(publisher.confirm(), BrokerConnectionError)
        text = str(publisher.failed(error))
        self.assertTrue(text.endswith("\nof 3 lines sent, the broker has confirmed none"), text)
        publisher.confirmedCount = 2
        self.assertTrue(
            str(publisher.failed(error)).endswith(
                "\nof 3 lines sent, the broker has confirmed the first 2"
            )
        )
        publisher.confirmedCount = 3
        self.assertEqual(str(publisher.failed(CommandError("no"))), "no")
