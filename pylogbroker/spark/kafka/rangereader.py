"""
Reading ranges of today's topics as Arrow batches. A module of its own, since tasks run it, and the
driver does not.

What must be true: a task gives every record of its range once and in order, or fails. Only records
that are gone may be left out, if the user allows that, and then a warning says so. A batch that
crosses an end of the range is read, and its other records are left to the neighbour.

Memory is bounded: one fetch, one decompressed batch, and one Arrow batch of 10,000 rows or 16 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pylogbroker.errors import (
    BrokerConnectionError,
    FormatError,
    OffsetOutOfRangeError,
    UnreadableRangeError,
)
from pylogbroker.interfaces import BatchHeader
from pylogbroker.records.columns import RecordColumns, recordColumns
from pylogbroker.spark.kafka.options import KafkaSourceOptions
from pylogbroker.spark.kafka.ranges import KafkaRange, logBounds
from pylogbroker.spark.splits import reportDataLoss
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import FetchedBatches, RecordReader

ROW_COUNT = 10_000
TIMESTAMP_MAX_MS = ((1 << 63) - 1) // 1000
"""Milliseconds that can be counted in microseconds, as Spark does."""

_WAIT_MS = 500

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_COLUMNS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIMESTAMP),
    ("timestampType", pa.int32()),
]
KAFKA_SCHEMA = pa.schema(_COLUMNS)
"""The columns of Spark's own Kafka source."""

HEADERS_TYPE = pa.list_(_HEADER)

KAFKA_SCHEMA_WITH_HEADERS = pa.schema([*_COLUMNS, ("headers", HEADERS_TYPE)])


class KafkaRangeReader:
    """The records of one range."""

    def __init__(
        self, wanted: KafkaRange, cluster: KafkaCluster, options: KafkaSourceOptions
    ) -> None:
        self._wanted = wanted
        self._cluster = cluster
        self._options = options
        self._emptyCount = 0
        self._reader = RecordReader(
            cluster,
            {wanted.where: wanted.start},
            options.kafkaMaxPartitionFetchBytes,
            options.isCommitted,
        )

    def __iter__(self) -> Iterator[RecordColumns]:
        """
        The records, in order.

        @raise DataLossError: records are gone.
        @raise UnreadableRangeError: a batch is damaged.
        @raise ResponseError: the partition may not be read.
        @raise BrokerConnectionError: the leader does not answer.
        """
        where, positions = self._wanted.where, self._reader.positions
        while positions[where] < self._wanted.end:
            before = positions[where]
            try:
                found = self._reader.fetch(_WAIT_MS if self._emptyCount else 0)
                for content in found:
                    yield from recordColumns(
                        self._batches(content), before, self._wanted.end, ROW_COUNT
                    )
            except OffsetOutOfRangeError:
                self._skipLost()
                continue
            except FormatError as error:
                raise UnreadableRangeError(
                    f"{where}, offset {positions[where]}: {error.reason}"
                ) from error
            if positions[where] > before:
                self._emptyCount = 0
            else:
                self._skipLost()

    def _batches(self, content: FetchedBatches) -> Iterator[tuple[bytes, int, BatchHeader]]:
        for data, at, header in self._reader.batches(*content):
            if header.baseOffset >= self._wanted.end:
                self._reader.positions[self._wanted.where] = self._wanted.end
                return
            yield data, at, header

    def _skipLost(self) -> None:
        """Find out why a fetch returned nothing, and skip what is lost."""
        where, end = self._wanted.where, self._wanted.end
        position = self._reader.positions[where]
        bounds = logBounds(self._options, self._cluster, [where])[where]
        if position < bounds.earliest:
            reportDataLoss(
                self._options,
                f"{where}, offset {position}: it was deleted before it was read; the earliest"
                f" offset left is {bounds.earliest}",
            )
            self._reader.positions[where] = min(bounds.earliest, end)
        elif bounds.latest < end:
            reportDataLoss(
                self._options,
                f"{where}, offset {position}: the log ends at {bounds.latest}, and ended at {end}"
                " when the query was planned: it was truncated",
            )
            self._reader.positions[where] = end
        else:
            self._emptyCount += 1
            waitedMs = (self._emptyCount - 1) * _WAIT_MS
            if waitedMs >= self._options.kafkaConsumerPollTimeoutMs:
                raise BrokerConnectionError(
                    f"{where}, offset {position}: the broker gives nothing for {waitedMs} ms,"
                    f" though it has {bounds.earliest} to {bounds.latest}"
                )


def arrowBatch(
    columns: RecordColumns, wanted: KafkaRange, schema: pa.Schema = KAFKA_SCHEMA
) -> pa.RecordBatch:
    """
    Records as rows, without an object for any.

    @param columns: one row at least.
    @param schema: L{KAFKA_SCHEMA}, or that with headers.
    @raise UnreadableRangeError: a timestamp does not fit in Spark's.
    """
    count = columns.rowCount

    def array(
        kind: pa.DataType, size: int, *buffers: bytes | None, children: list[pa.Array] | None = None
    ) -> pa.Array:
        views = [None if each is None else pa.py_buffer(each) for each in buffers]
        return pa.Array.from_buffers(kind, size, views, children=children)

    timesMs = np.frombuffer(columns.timestamps, np.int64)
    for timeMs in (timesMs.min(), timesMs.max()):
        if abs(int(timeMs)) > TIMESTAMP_MAX_MS:
            raise UnreadableRangeError(f"{wanted}: a record has the timestamp {timeMs}")
    made = [
        array(pa.binary(), count, columns.keyValidity, columns.keyOffsets, columns.keys),
        array(pa.binary(), count, columns.valueValidity, columns.valueOffsets, columns.values),
        pa.repeat(pa.scalar(wanted.where.topic, pa.string()), count),
        pa.repeat(pa.scalar(wanted.where.partition, pa.int32()), count),
        array(pa.int64(), count, None, columns.offsets),
        array(_TIMESTAMP, count, None, (timesMs * 1000).tobytes()),
        array(pa.int32(), count, None, columns.timestampTypes),
    ]
    if schema is not KAFKA_SCHEMA:
        size = columns.headerCount
        names = array(pa.string(), size, None, columns.headerNameOffsets, columns.headerNames)
        values = array(
            pa.binary(),
            size,
            columns.headerValueValidity,
            columns.headerValueOffsets,
            columns.headerValues,
        )
        pairs = array(_HEADER, size, None, children=[names, values])
        # A record without headers has null, as from Spark's own source.
        edges = np.frombuffer(columns.headerOffsets, np.int32)
        validity = np.packbits(edges[1:] > edges[:-1], bitorder="little").tobytes()
        kind = schema.field("headers").type
        made.append(array(kind, count, validity, columns.headerOffsets, children=[pairs]))
    return pa.RecordBatch.from_arrays(made, schema=schema)


def readRange(wanted: KafkaRange, options: KafkaSourceOptions) -> Iterator[pa.RecordBatch]:
    """
    All records of a range, in order.

    @raise PylogbrokerError: as L{KafkaRangeReader}.
    """
    schema = KAFKA_SCHEMA_WITH_HEADERS if options.includeHeaders else KAFKA_SCHEMA
    with options.cluster() as cluster:
        for columns in KafkaRangeReader(wanted, cluster, options):
            yield arrowBatch(columns, wanted, schema)
