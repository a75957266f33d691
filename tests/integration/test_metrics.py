"""
An application that serves the figures of its producer and its consumer: they differ by exactly what
went through.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from pylogbroker.console.service import MetricsService
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.producer.producer import Producer
from tests.console.asking import figures, get
from tests.integration.test_groups import ClusterTestCase


class ApplicationTests(ClusterTestCase):
    """Two brokers, a producer, a consumer, a scraper."""

    async def scrape(self) -> dict[str, float]:
        answer = await get(self.metrics.port.getHost().port, "/metrics")
        self.assertEqual(answer.status, 200)
        return figures(answer.body)

    async def test_exactly(self) -> None:
        """Scraped before and after a known load, the figures differ by exactly that."""
        producer = Producer(
            reactor,
            {
                "zk.connect": self.servers,
                "confirm": "true",
                "producer.type": "async",
                "queue.time": "20",
            },
        )
        await producer.start()
        consumer = ConsumerConnector(
            reactor,
            {
                "zk.connect": self.servers,
                "groupid": "g",
                "fetcher.backoff.ms": "20",
                "autooffset.reset": "smallest",
            },
        )
        self.addCleanup(consumer.shutdown)
        await producer.send("clicks", b"first", key="a")  # the topic comes into being
        await consumer.connect()
        streams: dict[str, list[MessageStream]] = await consumer.createMessageStreams({"clicks": 1})
        stream: Any = streams["clicks"][0]
        await stream.__anext__()
        self.metrics = MetricsService(
            reactor,
            "0",
            lambda: [*producer.metricFamilies({"name": "p"}), *consumer.metricFamilies()],
        )
        self.addCleanup(self.metrics.stopService)
        await self.metrics.listen()

        before = await self.scrape()
        total, size = 300, 20
        sending: list[Deferred[None]] = [
            producer.send("clicks", b"%020d" % number, key=f"key {number % 7}")
            for number in range(total)
        ]
        await gatherResults(sending)
        for _ in range(total):
            await stream.__anext__()
        self.assertIsNone(stream.take())  # or the last answer's messages would not be counted yet
        after = await self.scrape()

        def grown(name: str) -> float:
            return after[name] - before.get(name, 0)

        self.assertEqual(grown('pylogbroker_producer_accepted_messages_total{name="p"}'), total)
        self.assertEqual(grown('pylogbroker_producer_written_messages_total{name="p"}'), total)
        self.assertEqual(grown('pylogbroker_producer_failed_messages_total{name="p"}'), 0)
        self.assertGreater(grown('pylogbroker_producer_requests_total{name="p"}'), 0)
        self.assertEqual(after['pylogbroker_producer_queued_messages{name="p"}'], 0)
        self.assertEqual(
            after['pylogbroker_consumer_messages_total{group="g",topic="clicks"}'], 1 + total
        )
        self.assertEqual(
            grown('pylogbroker_consumer_bytes_total{group="g",topic="clicks"}'), total * (size + 10)
        )
        self.assertGreater(grown('pylogbroker_consumer_fetches_total{group="g"}'), 0)
        self.assertGreater(grown('pylogbroker_consumer_fetch_seconds_total{group="g"}'), 0)
        self.assertEqual(after['pylogbroker_consumer_owned_partitions{group="g"}'], 4)
        await producer.close()
