"""
Writing to topics: C{df.write.format("pylogbroker")} and C{df.writeStream…}.

What is promised, and said in the log. Every row is written *at least once*: a task that fails, or is run twice by speculation, is repeated as a whole, and
a 0.7 broker cannot take back what the first attempt sent. A stream with C{zookeeper} does better where it can: when a micro-batch is wholly written, its number
is kept in ZooKeeper under the query's id, and a restart that repeats a micro-batch whose number is kept writes nothing (*effectively once* for
micro-batches that were written whole). A list of brokers has no place to keep that.

Rejected: keeping the number of each task that is done. A repeated micro-batch may be cut into other tasks than the first time, so that a number would stand
for other rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
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
from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.options import SinkOptions
from pylogbroker.spark.taskwriter import TaskWriter
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "key": (BinaryType, StringType, ByteType, ShortType, IntegerType, LongType),
    "value": (BinaryType, StringType),
}

log = logging.getLogger(__name__)


def checkColumns(schema: StructType, options: SinkOptions) -> None:
    """
    @raise ConfigurationError: there is no C{value}, no C{topic} where one is needed, or one of another type than can be sent.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    needed = {"value"} if options.topic else {"value", "topic"}
    for name in sorted(needed - set(kinds)):
        raise ConfigurationError(
            f"there is no column {name}" + (", nor an option topic" if name == "topic" else "")
        )
    for name, right in _COLUMNS.items():
        if name in kinds and not isinstance(kinds[name], right):
            words = ", ".join(kind.typeName() for kind in right)
            raise ConfigurationError(
                f"column {name} is of type {kinds[name].simpleString()}; it should be one of {words}"
            )


@dataclass
class Written(WriterCommitMessage):
    """
    What a task did.

    @ivar query: the id of the stream's query, if it is one.
    """

    query: str
    count: int


def sendAll(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """
    Send all rows, and prove that they were taken.

    @return: how many. If there are none, nobody is asked anything.
    @raise PylogbrokerError: not all can be sent, or it is not known whether all were taken.
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return 0
    with options.cluster.view() as view:
        sending = TaskWriter(options, view)
        try:
            for batch in chain([first], batches):
                for topic, key, value in _rows(options, batch):
                    sending.add(topic, key, value)
            sending.close()
        except BaseException:
            sending.abandon()
            raise
        return sending.sentCount


def _rows(options: SinkOptions, batch: pa.RecordBatch) -> Iterator[tuple[Any, Any, Any]]:
    names, nothing = batch.schema.names, [None] * batch.num_rows
    topics = (
        [options.topic] * batch.num_rows if options.topic else batch.column("topic").to_pylist()
    )
    keys = batch.column("key").to_pylist() if "key" in names else nothing
    return zip(topics, keys, batch.column("value").to_pylist(), strict=True)


class BatchWriter(DataSourceArrowWriter):
    """
    What Spark asks of a batch.
    """

    def __init__(self, options: SinkOptions) -> None:
        log.info("Rows are written at least once: a task that is repeated writes them again")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """A task's rows."""
        return Written("", sendAll(self._options, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have done their part."""
        log.info("%d rows were written", _count(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed. What was sent stays."""
        log.warning("The job failed; %d rows or more were written and stay", _count(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """
    What Spark asks of a stream.
    """

    def __init__(self, options: SinkOptions) -> None:
        if options.cluster.zookeeper:
            log.info(
                "Micro-batches are written effectively once, as far as their numbers are kept in ZooKeeper; a task that is repeated writes rows again"
            )
        else:
            log.warning(
                "Rows are written at least once: there is no ZooKeeper to keep the numbers of micro-batches, so that a repeated one is written again"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """A task's rows, unless their micro-batch is known to be written."""
        context: Any = TaskContext.get()
        return sendOnce(
            self._options,
            str(context.getLocalProperty(QUERY_PROPERTY)),
            int(context.getLocalProperty(BATCH_PROPERTY)),
            iterator,
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have done their part: the micro-batch's number is kept."""
        for query in {message.query for message in messages if isinstance(message, Written)}:
            keepWritten(self._options, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed. What was sent stays, and will be sent again."""
        log.warning(
            "Micro-batch %d failed; %d rows or more were written, stay, and will be written again",
            batchId,
            _count(messages),
        )


def sendOnce(
    options: SinkOptions, query: str, batch: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """
    Send a task's rows, unless their micro-batch is known to be written.

    @raise PylogbrokerError: as L{sendAll}.
    """
    last = lastWritten(options, query)
    if last is None or batch > last:
        return Written(query, sendAll(options, batches))
    log.warning(
        "Micro-batch %d of query %s is written already, the last was %d; nothing is sent",
        batch,
        query,
        last,
    )
    for _batch in batches:
        pass  # Spark wants its rows to be taken
    return Written(query, 0)


def _count(messages: Iterable[WriterCommitMessage | None]) -> int:
    return sum(message.count for message in messages if isinstance(message, Written))


def lastWritten(options: SinkOptions, query: str) -> int | None:
    """The last micro-batch of a query that is known to be written; L{None}: none is."""
    if not options.cluster.zookeeper:
        return None
    with options.cluster.view() as view:
        assert isinstance(view, ZookeeperMetadata)
        return view.number(paths.sink(query))


def keepWritten(options: SinkOptions, query: str, batch: int) -> None:
    """A micro-batch of a query is written."""
    if not options.cluster.zookeeper:
        return
    with options.cluster.view() as view:
        assert isinstance(view, ZookeeperMetadata)
        view.storeNumber(paths.sink(query), batch)
