"""
What the tests of loading share: the session, one broker for all of them, and rows like those of the
data source.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from itertools import count
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.envelope import encodeEnvelope
from pylogbroker.lake.manifest import RunManifest
from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.records.recordbatch import Record
from pylogbroker.spark.loader import load
from pylogbroker.spark.loader.run import LoadResult
from pylogbroker.syncclient.kafka.cluster import LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.types import AnyPartition, BrokerPartition, PartitionId, TopicPartition
from tests.integration.sparksession import SparkCluster, sharedSession

NOW_MS = 1_767_272_400_005
"""2026-01-01T13:00:00.005Z."""

HERE = BrokerPartition(0, 0)
ROW = (
    "key binary, value binary, topic string, broker int, partition int, offset long,"
    " nextOffset long, timestamp timestamp"
)

_clusters: list[SparkCluster] = []
_numbers = count()


def sharedCluster() -> SparkCluster:
    """One broker of two partitions, with small segments; tests keep apart by topics."""
    if not _clusters:
        _clusters.append(SparkCluster(1, num_partitions="2", log_file_size="20000"))
        atexit.register(_clusters[0].end)
    return _clusters[0]


def packed(timeMs: int, payload: bytes = b"x", host: bytes = b"web1") -> bytes:
    """A payload in an envelope."""
    return encodeEnvelope(timeMs, host, payload)


class SparkCase(SynchronousTestCase):
    """Has a session and a folder."""

    def setUp(self) -> None:
        self.spark = sharedSession()
        self.folder = os.path.abspath(self.mktemp())

    def rows(self, values: Iterable[bytes], topic: str = "clicks") -> Any:
        """As the data source gives them."""
        return self.spark.createDataFrame(
            [
                (None, value, topic, 0, 0, number, number + 1, None)
                for number, value in enumerate(values)
            ],
            ROW,
        )


class LoadCase(SparkCase):
    """
    Loads topics of Kafka 0.7.

    @ivar topic: of this test.
    """

    SOURCE_COLUMNS = ("key", "value", "broker", "partition", "offset", "nextOffset", "timestamp")

    def setUp(self) -> None:
        super().setUp()
        self.cluster = sharedCluster()
        self.topic = f"load{next(_numbers)}"

    def write(self, *payloads: bytes, partition: int = 0, codec: int = 0) -> None:
        """Messages of the topic, without a time."""
        self.cluster.write(self.topic, BrokerPartition(0, partition), list(payloads), codec)

    def end(self, partition: int = 0) -> int:
        """Where the log ends."""
        from pylogbroker.syncclient import SimpleConsumer

        with SimpleConsumer("127.0.0.1", self.cluster.brokers[0].port) as consumer:
            [offset] = consumer.getOffsetsBefore(self.topic, partition, -1, 1)
        return offset

    def place(self, partition: int = 0) -> AnyPartition:
        """One of the topic's two partitions."""
        return PartitionId(self.topic, BrokerPartition(0, partition))

    def source(self) -> dict[str, Any]:
        """Where the topic is, as options."""
        return {"brokers": self.cluster.listed, "subscribe": self.topic}

    def chosenBy(self, pattern: str) -> dict[str, Any]:
        """Options that choose topics by a pattern."""
        return {
            "brokers": None,
            "zookeeper": self.cluster.zookeeper,
            "subscribe": None,
            "subscribePattern": pattern,
        }

    def load(self, **options: Any) -> LoadResult:
        """One run. Options that are None are not given."""
        given = {"nowMs": lambda: NOW_MS, **self.source(), **options}
        return load(
            self.spark,
            self.folder,
            **{name: value for name, value in given.items() if value is not None},
        )

    def loaded(self, **options: Any) -> RunManifest:
        """One run that has something to do."""
        manifest = self.load(**options).manifest
        assert manifest is not None
        return manifest


class KafkaLoadCase(LoadCase):
    """Loads topics of today's Kafka, of one broker for all tests."""

    SOURCE_COLUMNS = (
        "key",
        "value",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    )
    broker = BackgroundBroker({"num.partitions": "2", "log.retention.ms": "-1"})

    def setUp(self) -> None:
        super(LoadCase, self).setUp()
        self.broker.start()
        self.topic = f"load{next(_numbers)}"
        self.today = KafkaCluster([endpoint(self.broker.bootstrapServers)])
        self.addCleanup(self.today.close)
        self.today.partitions(self.topic, isCreating=True)

    def write(self, *payloads: bytes | None, partition: int = 0, codec: int = 0) -> None:
        """Records of the topic, without a time."""
        self.writeRecords(*(Record(0, -1, None, each) for each in payloads), partition=partition)

    def writeRecords(self, *records: Record, partition: int = 0) -> None:
        """Records, whose offsets are the broker's to give; a new topic is created."""
        self.today.partitions(self.topic, isCreating=True)
        RecordWriter(self.today).write(TopicPartition(self.topic, partition), records)

    def end(self, partition: int = 0) -> int:
        """See L{LoadCase.end}."""
        place = TopicPartition(self.topic, partition)
        found = self.today.offsets([place], LATEST)[place]
        assert isinstance(found, tuple)
        return found[0]

    def place(self, partition: int = 0) -> AnyPartition:
        """See L{LoadCase.place}."""
        return TopicPartition(self.topic, partition)

    def source(self) -> dict[str, Any]:
        """See L{LoadCase.source}."""
        return {
            "kafka.bootstrap.servers": self.broker.bootstrapServers,
            "subscribe": self.topic,
        }

    def chosenBy(self, pattern: str) -> dict[str, Any]:
        """See L{LoadCase.chosenBy}."""
        return {"subscribe": None, "subscribePattern": pattern}
