"""
Reading the splits of a query as Arrow batches, the one fast way into Spark. A module of its own,
since tasks run it, and the driver does not.

What must be true: a task gives the whole range, each message once and in order, or fails. Only data
that are gone may be left out, if the user allows that, and then a warning says so. An entry that
crosses the end of the range is an error: then the end is not a boundary of entries, and the reader
of the next range would get garbage or the same messages again.

Memory is bounded. A fetch has C{fetchSize} bytes; for a larger entry, exactly the size of the
entry, up to C{fetchSizeMax}. A batch has some ten thousand rows, where Spark is quickest, or fewer
if the messages are large.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pylogbroker.errors import (
    BrokerConnectionError,
    FormatError,
    RemoteOffsetOutOfRangeError,
    UnreadableRangeError,
)
from pylogbroker.records.columns import ColumnBatch, columnBatches, entrySize, sizeBetween
from pylogbroker.records.messageset import MessageSet
from pylogbroker.spark.brokerclients import BrokerClients, OffsetRange
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.splits import InputSplit, reportDataLoss

ROW_COUNT = 10_000
BATCH_SIZE_MAX = 16 << 20
"""Bytes of payloads in a batch. The last fetch, or decompressed set, of a batch may exceed it."""

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


class RangeReader:
    """The messages of one range."""

    def __init__(
        self, offsetRange: OffsetRange, brokers: BrokerClients, options: SourceOptions
    ) -> None:
        self._range = offsetRange
        self._brokers = brokers
        self._options = options
        self._offset = offsetRange.start
        self._sizeMax = options.fetchSize
        self._emptyCount = 0

    def __iter__(self) -> Iterator[ColumnBatch]:
        """
        The messages, in order.

        @raise DataLossError: messages are gone.
        @raise UnreadableRangeError: messages cannot be read.
        @raise BrokerConnectionError: the broker does not answer.
        """
        while self._offset < self._range.end:
            fetched = self._fetch()
            if isinstance(fetched.error, RemoteOffsetOutOfRangeError) or (
                fetched.error is None and not fetched.data
            ):
                self._explainNothing()
            elif fetched.error is not None:
                raise UnreadableRangeError(f"{self._at()}: {fetched.error}") from fetched.error
            elif self._isWhole(fetched.data):
                yield from self._decode(fetched)

    def _at(self) -> str:
        return (
            f"topic {self._range.topic}, partition {self._range.partition}, offset {self._offset}"
        )

    def _fetch(self) -> MessageSet:
        """Fetch from the current offset, and nothing from behind the end."""
        topic, partition = self._range.topic, self._range.partition
        size = min(self._sizeMax, sizeBetween(self._offset, self._range.end))
        return self._brokers.call(
            partition.broker,
            self._at(),
            lambda consumer: consumer.fetch(topic, partition.partition, self._offset, size),
        )

    def _decode(self, fetched: MessageSet) -> Iterator[ColumnBatch]:
        try:
            for batch in columnBatches(fetched.data, self._offset):
                yield batch
                self._offset = batch.behind
        except FormatError as error:
            self._offset = fetched.baseOffset + error.position
            raise UnreadableRangeError(f"{self._at()}: {error.reason}") from error
        self._emptyCount = 0
        self._sizeMax = self._options.fetchSize

    def _isWhole(self, data: bytes) -> bool:
        """
        Whether the first entry is complete. If not, the next fetch is large enough, or this is an
        error.
        """
        needed = entrySize(data)
        if needed <= len(data):
            return True
        if needed > sizeBetween(self._offset, self._range.end):
            raise UnreadableRangeError(
                f"{self._at()}: the entry there has {needed} bytes and crosses {self._range.end},"
                " the end of the range: the end is not a boundary of entries, or the entry is"
                " corrupt"
            )
        if needed > self._options.fetchSizeMax:
            raise UnreadableRangeError(
                f"{self._at()}: the entry there has {needed} bytes, more than"
                f" fetchSizeMax={self._options.fetchSizeMax}, or is corrupt"
            )
        if needed <= self._sizeMax:
            self._countEmpty(
                f"the entry there has {needed} bytes, of which the broker gives {len(data)}"
            )
        self._sizeMax = max(needed, self._sizeMax)
        return False

    def _countEmpty(self, text: str) -> None:
        """
        Allow C{retryCount} answers that have less than they should: the broker may have just
        restarted.
        """
        self._emptyCount += 1
        if self._emptyCount > self._options.retryCount:
            raise BrokerConnectionError(f"{self._at()}: {text}")

    def _explainNothing(self) -> None:
        """Find out why a fetch returned nothing, and skip what is lost."""
        bounds = self._brokers.segmentBounds(self._range.topic, self._range.partition)
        end = self._range.end
        if self._offset < bounds.earliest:
            reportDataLoss(
                self._options,
                f"{self._at()}: it was deleted before it was read;"
                f" the earliest offset left is {bounds.earliest}",
            )
            self._offset = min(bounds.earliest, end)
        elif bounds.latest < end:
            reportDataLoss(
                self._options,
                f"{self._at()}: the log ends at {bounds.latest}, and ended at {end} when the query"
                " was planned: it was emptied or truncated",
            )
            self._offset = end
        else:
            self._countEmpty(
                f"the broker gives nothing, though it has {bounds.earliest} to {bounds.latest}"
            )


class ArrowBatchBuilder:
    """
    Makes Arrow batches of the messages of one range, without an object for a row. Columns that are
    equal in all rows are made once.
    """

    def __init__(self, offsetRange: OffsetRange) -> None:
        self._payloads: list[bytes] = []
        self._offsets: list[int] = []
        self._nextOffsets: list[int] = []
        self._size = 0
        values = {
            "key": None,
            "topic": offsetRange.topic,
            **offsetRange.partition._asdict(),
            "timestamp": None,
        }
        self._constant = {
            name: pa.repeat(pa.scalar(value, ARROW_SCHEMA.field(name).type), ROW_COUNT)
            for name, value in values.items()
        }

    def add(self, batch: ColumnBatch) -> Iterator[pa.RecordBatch]:
        """Add messages, and return the batches that are full."""
        self._payloads += batch.payloads
        self._offsets += batch.offsets
        self._nextOffsets += batch.nextOffsets
        self._size += sum(map(len, batch.payloads))
        while len(self._payloads) >= ROW_COUNT:
            yield self._take(ROW_COUNT)
        if self._size > BATCH_SIZE_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The messages that are left, as a batch."""
        if self._payloads:
            yield self._take(len(self._payloads))

    def _take(self, count: int) -> pa.RecordBatch:
        payloads = self._payloads[:count]
        columns = {
            **{name: column[:count] for name, column in self._constant.items()},
            "value": payloads,
            # Arrow makes a column of an array in half the time that it needs for a list.
            "offset": np.array(self._offsets[:count], np.int64),
            "nextOffset": np.array(self._nextOffsets[:count], np.int64),
        }
        del self._payloads[:count], self._offsets[:count], self._nextOffsets[:count]
        self._size -= sum(map(len, payloads))
        return pa.RecordBatch.from_pydict(columns, ARROW_SCHEMA)


def readSplit(split: InputSplit, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """
    All messages of a split, in order.

    @raise PylogbrokerError: as L{RangeReader}.
    """
    builder = ArrowBatchBuilder(split.range)
    with BrokerClients({split.address.brokerId: split.address}, options) as brokers:
        for batch in RangeReader(split.range, brokers, options):
            yield from builder.add(batch)
        yield from builder.flush()
