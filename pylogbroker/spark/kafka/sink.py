"""
Writing to topics of today's Kafka. A module of its own, because nothing here reads.

Every row is written *at least once*, as by Spark's own sink: each batch is acknowledged by all
in-sync replicas, and repeated after a lost answer without a duplicate; but a task that fails is
repeated as a whole, and so is a micro-batch.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import SystemRandom
from time import time  # noqa: TID251 - the default clock
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import ConfigurationError, EncodingError, UnknownPartitionError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.records.recordbatch import Headers, Record
from pylogbroker.spark.kafka.options import KafkaSinkOptions
from pylogbroker.spark.sink import TaskResult, checkColumns, countRows
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.types import TopicPartition

BUFFERED_SIZE_MAX = 64 << 20
"""Bytes of unsent records in a task, over all partitions."""

RECORD_OVERHEAD = 24
"""Bytes of a record beside key, value and headers, roughly."""

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "partition": (IntegerType,),
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "headers": (ArrayType,),
}

log = logging.getLogger(__name__)


def checkKafkaColumns(schema: StructType, options: KafkaSinkOptions) -> None:
    """
    @raise ConfigurationError: a column is missing, or has a type that cannot be sent.
    """
    checkColumns(schema, options.topic, _COLUMNS)
    kinds = {field.name: field.dataType for field in schema.fields}
    headers = kinds.get("headers")
    if headers is not None and headers.simpleString() != "array<struct<key:string,value:binary>>":
        raise ConfigurationError(
            f"column headers is of type {headers.simpleString()}; it must be"
            " array<struct<key:string,value:binary>>"
        )
    name = options.timestampColumn
    if name and not isinstance(kinds.get(name), TimestampType):
        found = kinds[name].simpleString() if name in kinds else "not there"
        raise ConfigurationError(
            f"timestampColumn={name}: the column is {found}; it must be timestamp"
        )


class KafkaTaskWriter:
    """
    Sends the rows of one task, and waits for every acknowledgement.

    A row with a C{partition} goes there; a key goes to the partition that Java's producer chooses
    for it; other rows go to a random partition, one batch after another.

    @ivar sentCount: records that were acknowledged.
    """

    def __init__(
        self,
        options: KafkaSinkOptions,
        cluster: KafkaCluster,
        clock: Callable[[], float] = time,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param cluster: the caller closes it.
        @param clock: gives seconds since 1970.
        @param random: gives numbers from 0 up to, not including, 1; by default the system's.
        """
        self.sentCount = 0
        self._options = options
        self._cluster = cluster
        self._clock = clock
        self._random = random or SystemRandom().random
        self._writer = RecordWriter(cluster, options.kafkaCompressionType)
        self._partitions: dict[str, list[int]] = {}
        self._chosen: dict[str, int] = {}  # for rows without a key, until a batch is sent
        self._buffered = defaultdict[TopicPartition, list[Record]](list)
        self._sizes = Counter[TopicPartition]()
        self._bufferedSize = 0

    def add(
        self,
        topic: str | None,
        partition: int | None,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers = (),
        timestampMs: int | None = None,
    ) -> None:
        """
        Add a row, and send the batches that are full.

        @param value: L{None}: a tombstone.
        @param timestampMs: milliseconds since the epoch; L{None}: now.
        @raise EncodingError: the row has no topic.
        @raise UnknownPartitionError: the topic has no such partition.
        @raise ResponseError: a record is refused.
        @raise BrokerConnectionError: it is unknown whether records are stored.
        """
        if not topic:
            raise EncodingError(f"a row without a topic (key {key!r})")
        encodedKey = key.encode() if isinstance(key, str) else key
        encodedValue = value.encode() if isinstance(value, str) else value
        where = TopicPartition(topic, self._choose(topic, partition, encodedKey))
        size = RECORD_OVERHEAD + len(encodedKey or b"") + len(encodedValue or b"")
        size += sum(len(name) + len(data or b"") for name, data in headers)
        if timestampMs is None:
            timestampMs = int(self._clock() * 1000)
        self._buffered[where].append(Record(0, timestampMs, encodedKey, encodedValue, headers))
        self._sizes[where] += size
        self._bufferedSize += size
        if self._sizes[where] >= self._options.kafkaBatchSize:
            self._send(where)
        elif self._bufferedSize > BUFFERED_SIZE_MAX:
            self.flush()

    def _choose(self, topic: str, partition: int | None, key: bytes | None) -> int:
        numbers = self._partitions.get(topic)
        if numbers is None:
            numbers = self._cluster.partitions(topic, isCreating=True)
            self._partitions[topic] = numbers
        if partition is not None:
            if partition not in numbers:
                raise UnknownPartitionError(
                    f"topic {topic} has {len(numbers)} partitions, and a row names {partition}"
                )
            return partition
        if key is not None:
            return numbers[keyPartition(key, len(numbers))]
        chosen = self._chosen.get(topic)
        if chosen is None:
            chosen = self._chosen[topic] = numbers[int(self._random() * len(numbers))]
        return chosen

    def _send(self, where: TopicPartition) -> None:
        records = self._buffered.pop(where)
        self._bufferedSize -= self._sizes.pop(where)
        self._chosen.pop(where.topic, None)
        self._write(where, records)

    def _write(self, where: TopicPartition, records: Sequence[Record]) -> None:
        try:
            self._writer.write(where, records)
        except ResponseError as error:
            if error.code not in _TOO_LARGE or len(records) == 1:
                raise
            middle = len(records) // 2
            self._write(where, records[:middle])
            self._write(where, records[middle:])
        else:
            self.sentCount += len(records)

    def flush(self) -> None:
        """
        Send the rest.

        @raise PylogbrokerError: as C{add}.
        """
        for where in list(self._buffered):
            self._send(where)


def sendRows(options: KafkaSinkOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """
    Send all rows of a task. Without rows no broker is asked.

    @return: the number of rows.
    @raise PylogbrokerError: as L{KafkaTaskWriter.add}.
    """
    with options.cluster() as cluster:
        writer = KafkaTaskWriter(options, cluster)
        for batch in batches:
            for row in _rows(options, batch):
                writer.add(*row)
        writer.flush()
        return writer.sentCount


def _rows(options: KafkaSinkOptions, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    names = batch.schema.names

    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [None] * batch.num_rows

    topics = [options.topic] * batch.num_rows if options.topic else column("topic")
    headers = (
        tuple((pair["key"], pair["value"]) for pair in each or ()) for each in column("headers")
    )
    columns = (column("partition"), column("key"), column("value"))
    return zip(topics, *columns, headers, _timestamps(options, batch), strict=True)


def _timestamps(options: KafkaSinkOptions, batch: pa.RecordBatch) -> Iterable[int | None]:
    """Of each row, in milliseconds since the epoch."""
    if not options.timestampColumn:
        return [None] * batch.num_rows
    column = batch.column(options.timestampColumn)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return (None if each is None else each // 1000 for each in micros.to_pylist())


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """The data source's writer of a stream."""

    def __init__(self, options: KafkaSinkOptions) -> None:
        log.info("Rows are written at least once: a repeated micro-batch writes them again")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a task."""
        return TaskResult("", sendRows(self._options, iterator))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch has failed. Its rows that were sent stay, and are sent again."""
        log.warning(
            "Micro-batch %d failed; %d rows or more were written, stay, and are written again",
            batchId,
            countRows(messages),
        )
