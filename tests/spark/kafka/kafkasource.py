"""
What tests of the source and the sink for today's Kafka share: a real broker, records, options.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.recordbatch import Record
from pylogbroker.spark.kafka.options import KafkaSourceOptions
from pylogbroker.spark.kafka.source import KafkaBatchReader, KafkaStreamReader
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.types import TopicPartition

T0, T1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
ALL = ReadAllAvailable()


def record(value: bytes | None, timestampMs: int = 0, key: bytes | None = None) -> Record:
    """A record, whose offset is the broker's to give."""
    return Record(0, timestampMs, key, value)


def deleteBefore(cluster: KafkaCluster, where: TopicPartition, offset: int) -> None:
    """As retention does."""
    cls = messages.DeleteRecordsRequest
    part = cls.DeleteRecordsPartition(partitionIndex=where.partition, offset=offset)
    body = cls(
        topics=[cls.DeleteRecordsTopic(name=where.topic, partitions=[part])], timeoutMs=30_000
    )
    cluster.broker(cluster.leader(where)).request(ApiKey.DELETE_RECORDS, body)


class KafkaSourceCase(SynchronousTestCase):
    """
    Has a broker with the topic C{clicks} of two partitions.

    @ivar cluster: a client of it.
    """

    # One for all; the end of the run ends it. The records' times are those of 1970.
    broker = BackgroundBroker({"num.partitions": "2", "log.retention.ms": "-1"})

    def setUp(self) -> None:
        self.broker.reset()
        self.cluster = self.options().cluster()
        self.addCleanup(self.cluster.close)
        self.cluster.partitions("clicks", isCreating=True)

    def given(self, **options: Any) -> dict[str, str]:
        """Options as a job gives them; C{_} stands for a dot."""
        servers = self.broker.bootstrapServers
        found = {"kafka.bootstrap.servers": servers, "subscribe": "clicks"}
        found |= {key.replace("_", "."): str(value) for key, value in options.items()}
        return {key: value for key, value in found.items() if value != "None"}

    def options(self, **options: Any) -> KafkaSourceOptions:
        """As a worker gets them."""
        found: KafkaSourceOptions = pickle.loads(
            pickle.dumps(KafkaSourceOptions.fromOptions(self.given(**options)))
        )
        return found

    def write(self, where: TopicPartition, *values: bytes | None, timestampMs: int = 0) -> None:
        """A batch of records."""
        RecordWriter(self.cluster).write(where, [record(each, timestampMs) for each in values])

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        """The rows of a batch, by partition and offset."""
        reader = KafkaBatchReader(self.options(**options))
        found = [row for part in reader.partitions() for row in self._read(reader, part)]
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def values(self, **options: Any) -> list[bytes | None]:
        """Of the rows of a batch."""
        return [row["value"] for row in self.rows(**options)]

    def micro(self, reader: KafkaStreamReader, start: Any, end: Any) -> list[bytes | None]:
        """The values of a micro-batch."""
        return [
            row["value"]
            for part in reader.partitions(start, end)
            for row in self._read(reader, part)
        ]

    def _read(self, reader: Any, part: Any) -> Iterable[dict[str, Any]]:
        for batch in reader.read(pickle.loads(pickle.dumps(part))):
            batch.validate(full=True)
            yield from batch.to_pylist()

    def stream(self, clock: Callable[[], float] = monotonic, **options: Any) -> KafkaStreamReader:
        """A stream's reader, which the test ends."""
        reader = KafkaStreamReader(self.options(**options), clock)
        self.addCleanup(reader.stop)
        return reader
