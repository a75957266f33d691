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

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

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


class _Piece(NamedTuple):
    """
    Consecutive messages, without a copy of their bytes.

    @ivar edges: where each payload begins in C{payloads}, and where the last one ends.
    """

    edges: np.ndarray
    payloads: pa.Buffer
    offsets: np.ndarray
    nextOffsets: np.ndarray

    @property
    def size(self) -> int:
        """Bytes of payloads."""
        return int(self.edges[-1] - self.edges[0])

    def between(self, start: int, end: int) -> _Piece:
        """The messages from one to before another."""
        rows = slice(start, end)
        edges = self.edges[start : end + 1]
        return _Piece(edges, self.payloads, self.offsets[rows], self.nextOffsets[rows])

    def values(self) -> pa.Array:
        """The payloads as a column."""
        buffers = [None, pa.py_buffer(self.edges), self.payloads]
        return pa.Array.from_buffers(pa.binary(), len(self.offsets), buffers)


class ArrowBatchBuilder:
    """
    Makes Arrow batches of the messages of one range, without an object for a row. Columns that are
    equal in all rows are made once.
    """

    def __init__(self, offsetRange: OffsetRange) -> None:
        self._pieces: deque[_Piece] = deque()
        self._count = self._size = 0
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
        offsets = np.frombuffer(batch.offsets, np.int64)
        if len(offsets):
            piece = _Piece(
                np.frombuffer(batch.payloadOffsets, np.int32),
                pa.py_buffer(batch.payloads),
                offsets,
                np.frombuffer(batch.nextOffsets, np.int64),
            )
            self._pieces.append(piece)
            self._count += len(offsets)
            self._size += piece.size
        while self._count >= ROW_COUNT:
            yield self._take(ROW_COUNT)
        if self._size > BATCH_SIZE_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The messages that are left, as a batch."""
        if self._count:
            yield self._take(self._count)

    def _take(self, count: int) -> pa.RecordBatch:
        taken: list[_Piece] = []
        left = count
        while left:
            piece = self._pieces.popleft()
            rowCount = len(piece.offsets)
            if rowCount > left:
                self._pieces.appendleft(piece.between(left, rowCount))
                piece = piece.between(0, left)
            taken.append(piece)
            left -= len(piece.offsets)
        self._count -= count
        self._size -= sum(piece.size for piece in taken)
        values = [piece.values() for piece in taken]
        columns = {
            **{name: column[:count] for name, column in self._constant.items()},
            "value": values[0] if len(values) == 1 else pa.concat_arrays(values),
            "offset": pa.array(np.concatenate([piece.offsets for piece in taken])),
            "nextOffset": pa.array(np.concatenate([piece.nextOffsets for piece in taken])),
        }
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA
        )


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
