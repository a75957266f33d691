"""What a replica fetcher needs: megabytes of batches of another broker, as its files have them."""

from __future__ import annotations

import tracemalloc
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.interbroker import Purpose
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.recordbatch import Record, encodeBatch
from tests.broker.kafka.clustercase import ClusterCase

BATCH_COUNT = 8
VALUE_SIZE = 1_000_000


class FetchTests(ClusterCase):
    """Broker 0 fetches from broker 1."""

    def setUp(self) -> None:
        super().setUp()
        self.use(1)
        cls = messages.ProduceRequest
        for number in range(BATCH_COUNT):
            records = encodeBatch(
                [Record(0, 1_300_000_000_000, None, bytes([number]) * VALUE_SIZE)]
            )
            data = cls.PartitionProduceData(index=1, records=records)
            topic = cls.TopicProduceData(name="t", partitionData=[data])
            self.ask(ApiKey.PRODUCE, 9, acks=-1, timeoutMs=9000, topicData=[topic])
        self.use(0)

    def fetch(self, sizeMax: int) -> Deferred[Any]:
        cls = messages.FetchRequest
        image = self.lead.service.kafka.metadata.image
        part = cls.FetchPartition(partition=1, fetchOffset=0, partitionMaxBytes=sizeMax)
        body = cls(
            maxWaitMs=500,
            minBytes=1,
            maxBytes=sizeMax,
            topics=[cls.FetchTopic(topicId=image.topics["t"].topicId.bytes, partitions=[part])],
        )
        connections = self.lead.service.kafka.brokerConnections
        fetched = connections.request(1, Purpose.REPLICATION, ApiKey.FETCH, body, 500)
        self.lead.settle()
        return fetched

    def batches(self, response: Any) -> memoryview:
        (topic,) = response.responses
        (part,) = topic.partitions
        self.assertEqual(part.errorCode, 0)
        found: memoryview = part.records
        return found

    def test_large(self) -> None:
        """
        8 MB come byte for byte, as a view of the frame that was received, which later responses on
        the connection leave alone.
        """
        first = self.batches(self.successResultOf(self.fetch(16 << 20)))
        self.assertIsInstance(first, memoryview)
        self.assertGreater(len(first), BATCH_COUNT * VALUE_SIZE)
        frame: Any = first.obj
        self.assertLess(len(frame) - len(first), 200)
        kept = bytes(first)
        self.assertEqual(kept, self.leads[1].contents("t", 1))
        self.batches(self.successResultOf(self.fetch(1 << 20)))
        self.assertEqual(bytes(first), kept)
        self.assertEqual(self.network.count, 1)

    def test_memory(self) -> None:
        """At most the received pieces and the frame that they become are in memory, both once."""
        self.successResultOf(self.fetch(100))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        fetched = self.fetch(16 << 20)
        size = len(self.batches(self.successResultOf(fetched)))
        _now, peak = tracemalloc.get_traced_memory()
        self.assertLess(peak, 2.5 * size)
