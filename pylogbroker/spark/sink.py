"""
Writing to topics: C{df.write.format("pylogbroker")} and C{df.writeStream…}. A module of its own,
because nothing here reads.

What is promised, and logged. Every row is written *at least once*. The protocol has no
acknowledgement: the rows of a task are taken when the broker answers a request behind them, and a
task that fails is repeated as a whole. A 0.7 broker cannot take back what the first attempt sent. A
stream with C{zookeeper} does better: the number of a wholly written micro-batch is stored in
ZooKeeper under the query's id, and a restart that repeats that micro-batch writes nothing
(*effectively once* for whole micro-batches). With a list of brokers there is no place for it.

Rejected: storing the number of each finished task. A repeated micro-batch may be cut into other
tasks than the first time, so a number would stand for other rows.

A broker counts a compressed set as one message and refuses a large one. So the messages of a set
have, before compression, at most the size of one message. A set that is still too large, because
its data grow when they are compressed, is sent in halves; a single message then uncompressed.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from random import SystemRandom
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from pylogbroker.cluster import paths
from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.errors import (
    BrokerConnectionError,
    ConfigurationError,
    EncodingError,
    InvalidNameError,
    MessageTooLargeError,
    NoBrokersError,
)
from pylogbroker.records.compression import NONE
from pylogbroker.records.messageset import PLAIN
from pylogbroker.spark.options import SinkOptions
from pylogbroker.syncclient.clustermetadata import IClusterMetadata, ZookeeperMetadata
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.types import BrokerPartition, PartitionId

BUFFERED_SIZE_MAX = 64 << 20
"""Bytes of unsent messages in a task, over all partitions."""

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "key": (BinaryType, StringType, ByteType, ShortType, IntegerType, LongType),
    "value": (BinaryType, StringType),
}

log = logging.getLogger(__name__)


def checkColumns(
    schema: StructType, topic: str, columns: Mapping[str, tuple[type[DataType], ...]] = _COLUMNS
) -> None:
    """
    @param topic: the option.
    @param columns: the types of each column that is sent.
    @raise ConfigurationError: a column is missing, or has a type that cannot be sent.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    needed = {"value"} if topic else {"value", "topic"}
    for name in sorted(needed - set(kinds)):
        raise ConfigurationError(
            f"there is no column {name}" + (", nor an option topic" if name == "topic" else "")
        )
    for name, allowed in columns.items():
        if name in kinds and not isinstance(kinds[name], allowed):
            words = ", ".join(kind.typeName() for kind in allowed)
            raise ConfigurationError(
                f"column {name} is of type {kinds[name].simpleString()}; it must be one of {words}"
            )


class TaskWriter:
    """
    Sends the rows of one task, and proves that the brokers have taken them.

    A key goes to the partition to which a producer with the default partitioner sends it. Rows
    without a key go to random partitions, one set after another.

    @ivar sentCount: messages that were sent.
    """

    def __init__(
        self,
        options: SinkOptions,
        metadata: IClusterMetadata,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param metadata: of the cluster; the caller closes it.
        @param random: gives numbers from 0 up to, not including, 1; by default the system's.
        """
        self.sentCount = 0
        self._options = options
        self._metadata = metadata
        self._random = random or SystemRandom().random
        self._addresses = metadata.brokers()
        self._partitions: dict[str, list[BrokerPartition]] = {}
        self._chosen: dict[str, BrokerPartition] = {}  # for rows without a key, until a set is sent
        self._buffered = defaultdict[PartitionId, list[bytes]](list)
        self._sizes = Counter[PartitionId]()
        self._bufferedSize = 0
        self._isCompressed = options.compression != NONE
        self._producers: dict[int, SyncProducer] = {}
        self._closing = ExitStack()

    def add(
        self, topic: str | None, key: bytes | str | int | None, value: bytes | str | None
    ) -> None:
        """
        Add a row, and send the sets that are full.

        @raise EncodingError: the row has no topic or no value.
        @raise NoBrokersError: there is no broker.
        @raise MessageTooLargeError: a buffered message is too large, compressed and uncompressed.
        @raise BrokerConnectionError: as L{SyncProducer.send}.
        """
        if topic is None or value is None:
            raise EncodingError(
                f"a row without a {'topic' if topic is None else 'value'} (key {key!r})"
            )
        payload = value.encode() if isinstance(value, str) else value
        partition = PartitionId(topic, self._choose(topic, key))
        size = len(payload) + PLAIN.size
        if (
            self._isCompressed
            and partition in self._buffered
            and self._sizes[partition] + size > self._options.maxMessageSize
        ):
            self._send(partition)
        self._buffered[partition].append(payload)
        self._sizes[partition] += size
        self._bufferedSize += size
        if self._sizes[partition] >= self._options.batchSize:
            self._send(partition)
        elif self._bufferedSize > BUFFERED_SIZE_MAX:
            self._flush()

    def _choose(self, topic: str, key: bytes | str | int | None) -> BrokerPartition:
        partitions = self._partitions.get(topic) or self._lookUp(topic)
        if key is not None:
            return partitions[defaultPartitioner(key, len(partitions))]
        chosen = self._chosen.get(topic)
        if chosen is None:
            chosen = self._chosen[topic] = partitions[int(self._random() * len(partitions))]
        return chosen

    def _lookUp(self, topic: str) -> list[BrokerPartition]:
        """
        The partitions of a topic; of a new one, partition 0 of each broker (spec-0.7 producer §2).
        """
        try:
            paths.topic(topic)
        except InvalidNameError as error:
            raise ConfigurationError(f"topic={topic}: {error}") from error
        found = self._metadata.partitions(topic) or [
            BrokerPartition(number, 0) for number in sorted(self._addresses)
        ]
        if not found:
            raise NoBrokersError(f"there is no broker for topic {topic}")
        self._partitions[topic] = found
        return found

    def _send(self, partition: PartitionId) -> None:
        payloads = self._buffered.pop(partition)
        self._bufferedSize -= self._sizes.pop(partition)
        self._chosen.pop(partition.topic, None)
        self._sendSet(partition, payloads)

    def _sendSet(self, target: PartitionId, payloads: list[bytes]) -> None:
        topic, partition = target
        producer = self._producer(partition.broker)
        try:
            producer.send(topic, partition.partition, payloads, codec=self._options.compression)
        except MessageTooLargeError:
            if not self._isCompressed:
                raise
            if len(payloads) > 1:
                middle = len(payloads) // 2
                self._sendSet(target, payloads[:middle])
                self._sendSet(target, payloads[middle:])
                return
            producer.send(topic, partition.partition, payloads)
        self.sentCount += len(payloads)

    def _flush(self) -> None:
        for partition in list(self._buffered):
            self._send(partition)

    def _producer(self, broker: int) -> SyncProducer:
        producer = self._producers.get(broker)
        if producer is None:
            if broker not in self._addresses:
                raise NoBrokersError(f"broker {broker} has the topic, but is not registered")
            address, options = self._addresses[broker], self._options
            producer = self._producers[broker] = SyncProducer(
                *options.endpoint(address),
                payloadSizeMax=options.maxMessageSize,
                timeoutMs=options.timeoutMs,
                closeMs=options.timeoutMs,
            )
            self._closing.callback(producer.close)
        return producer

    def close(self) -> None:
        """
        Send the rest, and wait until each broker has answered behind it.

        @raise BrokerConnectionError: it is unknown whether a broker has taken its rows.
        """
        self._flush()
        self._producers.clear()
        self._closing.close()

    def abort(self) -> None:
        """
        Close the connections that a failure has left open. What became of the rows sent so far
        stays unknown.
        """
        self._producers.clear()
        with suppress(BrokerConnectionError):
            self._closing.close()


@dataclass
class TaskResult(WriterCommitMessage):
    """
    What a task has written.

    @ivar query: the id of the stream's query; empty for a batch.
    """

    query: str
    count: int


def sendAll(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """
    Send all rows, and prove that the brokers have taken them. Without rows no broker is asked.

    @return: the number of rows.
    @raise PylogbrokerError: a row cannot be sent, or it is unknown whether all were taken.
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return 0
    with options.metadata() as metadata:
        writer = TaskWriter(options, metadata)
        try:
            for batch in chain([first], batches):
                for topic, key, value in _rows(options, batch):
                    writer.add(topic, key, value)
            writer.close()
        finally:
            writer.abort()
        return writer.sentCount


def _rows(options: SinkOptions, batch: pa.RecordBatch) -> Iterator[tuple[Any, Any, Any]]:
    names, nothing = batch.schema.names, [None] * batch.num_rows
    topics = (
        [options.topic] * batch.num_rows if options.topic else batch.column("topic").to_pylist()
    )
    keys = batch.column("key").to_pylist() if "key" in names else nothing
    return zip(topics, keys, batch.column("value").to_pylist(), strict=True)


class BatchWriter(DataSourceArrowWriter):
    """The data source's writer of a batch."""

    def __init__(self, send: Callable[[Iterator[pa.RecordBatch]], int]) -> None:
        """
        @param send: sends the rows of a task, and returns their number. It is pickled.
        """
        log.info("Rows are written at least once: a repeated task writes them again")
        self._send = send

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a task."""
        return TaskResult("", self._send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded."""
        log.info("%d rows were written", countRows(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job has failed. Rows that were sent stay."""
        log.warning("The job failed; %d rows or more were written and stay", countRows(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The data source's writer of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        if options.zookeeper:
            log.info(
                "Whole micro-batches are written effectively once: ZooKeeper keeps their numbers."
                " A repeated task writes its rows again"
            )
        else:
            log.warning(
                "Rows are written at least once: without ZooKeeper the numbers of micro-batches"
                " are not kept, so a repeated one is written again"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a task, unless their micro-batch is known to be written."""
        context: Any = TaskContext.get()
        return sendOnce(
            self._options,
            str(context.getLocalProperty(QUERY_PROPERTY)),
            int(context.getLocalProperty(BATCH_PROPERTY)),
            iterator,
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have succeeded: store the number of the micro-batch."""
        for query in {message.query for message in messages if isinstance(message, TaskResult)}:
            storeLastWritten(self._options, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch has failed. Its rows that were sent stay, and are sent again."""
        log.warning(
            "Micro-batch %d failed; %d rows or more were written, stay, and are written again",
            batchId,
            countRows(messages),
        )


def sendOnce(
    options: SinkOptions, query: str, batch: int, batches: Iterator[pa.RecordBatch]
) -> TaskResult:
    """
    Send the rows of a task, unless their micro-batch is known to be written.

    @raise PylogbrokerError: as L{sendAll}.
    """
    last = lastWritten(options, query)
    if last is None or batch > last:
        return TaskResult(query, sendAll(options, batches))
    log.warning(
        "Micro-batch %d of query %s is written already (the last one is %d); nothing is sent",
        batch,
        query,
        last,
    )
    for _batch in batches:
        pass  # Spark requires that the rows are consumed
    return TaskResult(query, 0)


def countRows(messages: Iterable[WriterCommitMessage | None]) -> int:
    """The rows that tasks have written, by their messages."""
    return sum(message.count for message in messages if isinstance(message, TaskResult))


def lastWritten(options: SinkOptions, query: str) -> int | None:
    """The last micro-batch of a query that is known to be written; L{None}: none."""
    with options.metadata() as metadata:
        if isinstance(metadata, ZookeeperMetadata):
            return metadata.number(paths.sink(query))
    return None


def storeLastWritten(options: SinkOptions, query: str, batch: int) -> None:
    """Store the number of a micro-batch that is wholly written, if there is a ZooKeeper."""
    with options.metadata() as metadata:
        if isinstance(metadata, ZookeeperMetadata):
            metadata.storeNumber(paths.sink(query), batch)
