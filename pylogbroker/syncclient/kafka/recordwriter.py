"""
Writes records, with acknowledgement by all replicas and without duplicates; a module of its own,
since a command that reads records does not need it.

The writer is idempotent: it has a producer id, and each partition's batches are numbered. A batch
whose answer was lost is sent again with its numbers, and the broker keeps one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.records.compression import NONE
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.syncclient.connection import TIMEOUT_MS
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import NAMED_VERSION
from pylogbroker.types import TopicPartition

_ALL = -1
_SEQUENCE_MASK = 0x7FFFFFFF


class RecordWriter:
    """A producer that sends one batch at a time."""

    def __init__(
        self, cluster: KafkaCluster, codec: int = NONE, timeoutMs: int = TIMEOUT_MS
    ) -> None:
        """
        @param codec: of the batches (L{pylogbroker.records.compression}).
        @param timeoutMs: for the acknowledgement of a batch.
        """
        self._cluster = cluster
        self._codec = codec
        self._timeoutMs = timeoutMs
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    def write(self, where: TopicPartition, records: Sequence[Record]) -> int:
        """
        Append records as one batch. Their offsets are the broker's to give.

        @param records: one at least.
        @return: the offset of the first.
        @raise ResponseError: they are refused, and none is appended.
        @raise BrokerConnectionError: it is unknown whether they are.
        """
        if self._producer is None:
            self._producer = self._cluster.attempt(self._newProducer)
        producerId, epoch = self._producer
        sequence = self._sequences.get(where, 0)
        batch = encodeBatch(
            [record._replace(offset=offset) for offset, record in enumerate(records)],
            codec=self._codec,
            producerId=producerId,
            producerEpoch=epoch,
            baseSequence=sequence,
        )
        offset = self._cluster.attempt(lambda: self._send(where, batch))
        self._sequences[where] = (sequence + len(records)) & _SEQUENCE_MASK
        return offset

    def _newProducer(self) -> tuple[int, int]:
        body = messages.InitProducerIdRequest(transactionalId=None, transactionTimeoutMs=0)
        found = self._cluster.any().request(ApiKey.INIT_PRODUCER_ID, body)
        checkCode(found.errorCode, "producer id")
        return found.producerId, found.producerEpoch

    def _send(self, where: TopicPartition, batch: bytes) -> int:
        cls: Any = messages.ProduceRequest
        part = cls.PartitionProduceData(index=where.partition, records=batch)
        body = cls(
            acks=_ALL,
            timeoutMs=self._timeoutMs,
            topicData=[cls.TopicProduceData(name=where.topic, partitionData=[part])],
        )
        leader = self._cluster.broker(self._cluster.leader(where))
        response = leader.request(ApiKey.PRODUCE, body, self._timeoutMs, NAMED_VERSION)
        [topic] = response.responses
        [found] = topic.partitionResponses
        if found.errorCode and found.errorCode != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            raise ResponseError(found.errorCode, str(where), found.errorMessage)
        offset: int = found.baseOffset
        return offset
