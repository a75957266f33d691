"""
Gathers records into batches for today's Kafka, which are sent one by one and acknowledged by all
replicas in sync.
"""

from __future__ import annotations

from argparse import Namespace

from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.types import TopicPartition

_RECORD_OVERHEAD, _HEADER_OVERHEAD = 21, 10
"""Bytes of a record, and of a header, beside their texts, at most."""


class BatchPublisher:
    """
    Writes to one topic.

    @ivar count: records that are acknowledged.
    @ivar size: bytes of their values.
    @ivar batchCount: requests.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, options: Namespace) -> None:
        """
        @param options: C{batchSize} is the number of records in a batch; C{maxMessageSize}, in
            bytes, is the size of one, unless one record is larger; C{compression}, C{timeoutMs}.
        """
        self._topic = topic
        self._countMax: int = options.batchSize
        self._sizeMax: int = options.maxMessageSize
        self._writer = RecordWriter(cluster, options.compression, options.timeoutMs)
        self._waiting: dict[int, list[Record]] = {}
        self._sizes: dict[int, int] = {}
        self.count = self.size = self.batchCount = 0

    @property
    def waiting(self) -> list[Record]:
        """Records that are not acknowledged yet."""
        return [record for records in self._waiting.values() for record in records]

    def add(self, partition: int, record: Record) -> None:
        """
        Add a record; a full batch is sent.

        @raise ResponseError: a batch is refused, and stays among C{waiting}.
        @raise BrokerConnectionError: it is unknown whether it is stored.
        """
        size = _sizeOf(record)
        if self._sizes.get(partition, 0) + size > self._sizeMax:
            self.send(partition)
        batch = self._waiting.setdefault(partition, [])
        batch.append(record)
        self._sizes[partition] = self._sizes.get(partition, 0) + size
        if len(batch) >= self._countMax:
            self.send(partition)

    def flush(self) -> None:
        """Send what waits. Raises as C{add}."""
        for partition in list(self._waiting):
            self.send(partition)

    def send(self, partition: int) -> None:
        """Send what waits for a partition. Raises as C{add}."""
        batch = self._waiting.get(partition)
        if not batch:
            return
        self._writer.write(TopicPartition(self._topic, partition), batch)
        del self._waiting[partition], self._sizes[partition]
        self.count += len(batch)
        self.size += sum(len(record.value or b"") for record in batch)
        self.batchCount += 1


def _sizeOf(record: Record) -> int:
    return (
        _RECORD_OVERHEAD
        + len(record.key or b"")
        + len(record.value or b"")
        + sum(
            _HEADER_OVERHEAD + len(name.encode()) + len(value or b"")
            for name, value in record.headers
        )
    )
