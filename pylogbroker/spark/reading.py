"""
Splits as Arrow batches, which is the one fast way into Spark.

Batches have some ten thousand rows, where Spark is at its quickest, or fewer when messages are large: what is held at a time is bounded in bytes as well.
No object is made for a row: columns that are the same in each row are made once for a split.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pylogbroker.records.columns import ColumnBatch
from pylogbroker.spark.brokerclients import BrokerClients
from pylogbroker.spark.fetching import RangeReader
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.splits import InputSplit, OffsetRange

ROW_COUNT = 10_000
BATCH_SIZE_MAX = 16 << 20
"""Bytes of payloads in a batch, and up to a fetch or an opened wrapper more."""

ARROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("nextOffset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class ArrowBatchBuilder:
    """
    Gathers messages of one range and makes batches of them.
    """

    def __init__(self, whole: OffsetRange) -> None:
        self._payloads: list[bytes] = []
        self._offsets: list[int] = []
        self._nextOffsets: list[int] = []
        self._size = 0
        self._range = whole
        self._constant: dict[int, list[pa.Array]] = {}

    def add(self, stretch: ColumnBatch) -> Iterator[pa.RecordBatch]:
        """Take in messages, and give out what is full."""
        self._payloads += stretch.payloads
        self._offsets += stretch.offsets
        self._nextOffsets += stretch.nextOffsets
        self._size += sum(map(len, stretch.payloads))
        while len(self._payloads) >= ROW_COUNT:
            yield self._take(ROW_COUNT)
        if self._size > BATCH_SIZE_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is left."""
        if self._payloads:
            yield self._take(len(self._payloads))

    def _take(self, count: int) -> pa.RecordBatch:
        key, topic, broker, partition, timestamp = self._constants(count)
        payloads = self._payloads[:count]
        columns = [
            key, pa.array(payloads, pa.binary()), topic, broker, partition,
            _longs(self._offsets[:count]), _longs(self._nextOffsets[:count]), timestamp,
        ]  # fmt: skip
        del self._payloads[:count], self._offsets[:count], self._nextOffsets[:count]
        self._size -= sum(map(len, payloads))
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def _constants(self, count: int) -> list[pa.Array]:
        """Columns that are the same in each row: key, topic, broker, partition, timestamp."""
        found = self._constant.get(count)
        if found is None:
            topic, (broker, partition) = self._range.topic, self._range.partition
            values = (
                (None, pa.binary()),
                (topic, pa.string()),
                (broker, pa.int32()),
                (partition, pa.int32()),
            )
            found = [pa.repeat(pa.scalar(value, kind), count) for value, kind in values]
            found.append(pa.nulls(count, ARROW_SCHEMA.field("timestamp").type))
            self._constant = {count: found}
        return found


def _longs(values: list[int]) -> pa.Array:
    """By way of numpy, in half the time."""
    return pa.array(np.array(values, dtype=np.int64))


def readSplit(split: InputSplit, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """
    All messages of a split, in order.

    @raise PylogbrokerError: not all can be read; see L{RangeReader}.
    """
    batches = ArrowBatchBuilder(split.range)
    with BrokerClients({split.address.brokerId: split.address}, options.cluster) as brokers:
        for stretch in RangeReader(split.range, brokers, options):
            yield from batches.add(stretch)
        yield from batches.rest()
