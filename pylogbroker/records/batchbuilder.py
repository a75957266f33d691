"""
Builds a record batch: a module of its own, since this loop is most of what sending a message costs.

Records wait in lists until their bytes, or the size of the batch, are needed: a loop over many
records costs a third of a call for each. Each record is encoded once, into pieces that refer to its
key and value; its offset is its index, its timestamp is relative to the first record's. Numbers
that have few bytes are looked up.

The bytes are those of L{pylogbroker.records.recordbatch.encodeBatch}, which tests compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pylogbroker.errors import EncodingError
from pylogbroker.interfaces import NO_PRODUCER, BatchHeader
from pylogbroker.records.compression import NONE, compress
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_ATTRIBUTE,
    assembleBatch,
    encodeVarint,
)
from pylogbroker.speedups import chosen

RECORD_OVERHEAD_MAX = 21
"""Bytes of a record besides key, value and headers: Kafka's own upper bound."""

_HEADER_OVERHEAD_MAX = 10
_LOOKED_UP_COUNT = 1 << 13
_SMALL = [encodeVarint(number) for number in range(_LOOKED_UP_COUNT)]
"""The first numbers from 0 on, as records have them: one or two bytes."""

_ABSENT = encodeVarint(-1)

_HEAD_COUNT = 1 << 11
_HEADS = [size + b"\0" for size in _SMALL[:_HEAD_COUNT]]
"""The size of a record, and its attributes."""

_KEYLESS = [_ABSENT + size for size in _SMALL[:_HEAD_COUNT]]
"""No key, and the size of a value."""

GivenHeaders = Iterable[tuple[str, bytes | None]]


def _varint(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < _LOOKED_UP_COUNT else encodeVarint(number)


def recordSizeMax(key: Any, value: Any, headers: GivenHeaders) -> int:
    """
    The most bytes that a record takes in a batch.

    @raise EncodingError: key or value are no bytes, or the headers no pairs of text and bytes.
    """
    if not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
        wrong = value if isinstance(key, bytes | None) else key
        raise EncodingError(f"keys and values are bytes or None, not {type(wrong).__name__}")
    size = RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"")
    if headers:
        try:
            for name, content in headers:
                if not isinstance(content, bytes | None):
                    raise TypeError(f"{name!r} has no bytes but {type(content).__name__}")
                size += len(name.encode()) + len(content or b"") + _HEADER_OVERHEAD_MAX
        except (AttributeError, TypeError, ValueError) as error:
            raise EncodingError(f"headers are pairs of text and bytes: {error}") from error
    return size


class PureRecordEncoder:
    """
    Encodes records one behind the other, for one batch.

    @ivar count: of records.
    @ivar size: bytes of the batch so far, before compression.
    @ivar maxTimestampMs: the largest timestamp.
    @ivar baseMs: the first one.
    """

    __slots__ = ("_bodies", "baseMs", "count", "maxTimestampMs", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = BATCH_OVERHEAD
        self.maxTimestampMs = -1
        self.baseMs = 0
        self._bodies: list[bytes] = []

    def extend(
        self,
        timestamps: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Mapping[int, GivenHeaders],
    ) -> None:
        """
        Add records. L{recordSizeMax} has checked them.

        @param timestamps: of each record, in milliseconds since the epoch.
        @param keys: of each record.
        @param values: of each record.
        @param headers: of the records that have some, by their index in these lists.
        """
        if not timestamps:
            return
        first, behind = self.count, self.count + len(timestamps)
        if not first:
            self.baseMs = timestamps[0]
        positions = _SMALL[first:behind]
        positions += [encodeVarint(index) for index in range(first + len(positions), behind)]
        tails = [b"\0"] * len(timestamps)
        for index, given in headers.items():
            tails[index] = _encodeHeaders(given)
        # As locals, which are faster than globals.
        small, smallCount, absent, headCount = _SMALL, _LOOKED_UP_COUNT, _ABSENT, _HEAD_COUNT
        heads, keyless, baseMs = _HEADS, _KEYLESS, self.baseMs
        beforeMs, delta = baseMs, b"\0"
        pieces: list[bytes] = []
        for timestampMs, key, value, position, tail in zip(
            timestamps, keys, values, positions, tails, strict=True
        ):
            if timestampMs != beforeMs:
                beforeMs, delta = timestampMs, _varint(timestampMs - baseMs)
            if value is None:
                value, fields = b"", absent + absent if key is None else absent
            else:
                size = len(value)
                if key is None and size < headCount:
                    fields = keyless[size]
                else:
                    fields = small[size] if size < smallCount else encodeVarint(size)
                    if key is None:
                        fields = absent + fields
            # One more byte for the attributes.
            size = 1 + len(delta) + len(position) + len(fields) + len(value) + len(tail)
            if key is None:
                head = heads[size] if size < headCount else encodeVarint(size) + b"\0"
                pieces += (head, delta, position, fields, value, tail)
            else:
                keySize = _varint(len(key))
                size += len(keySize) + len(key)
                head = heads[size] if size < headCount else encodeVarint(size) + b"\0"
                pieces += (head, delta, position, keySize, key, fields, value, tail)
        body = b"".join(pieces)
        self._bodies.append(body)
        self.count = behind
        self.size += len(body)
        self.maxTimestampMs = max(self.maxTimestampMs, max(timestamps))

    def take(self) -> bytes:
        """The bytes of the records, which are here no longer."""
        body = b"".join(self._bodies)
        self._bodies = []
        return body


if TYPE_CHECKING:
    _RecordEncoder = PureRecordEncoder
else:
    _RecordEncoder = chosen("RecordEncoder", PureRecordEncoder)


class BatchBuilder(_RecordEncoder):
    """
    Records for one batch.

    The lists are open to the producer, which appends to them itself, as L{append} does.

    @ivar timestamps: of all records.
    @ivar keys: of records that are not encoded yet.
    @ivar values: likewise.
    @ivar headers: likewise, of those that have some, by their index in C{values}.
    """

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        super().__init__()
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, GivenHeaders] = {}

    def append(
        self,
        timestampMs: int,
        key: bytes | None,
        value: bytes | None,
        headers: GivenHeaders = (),
    ) -> None:
        """
        Add a record. L{recordSizeMax} has checked it.

        @param timestampMs: since the epoch.
        """
        if headers:
            self.headers[len(self.values)] = headers
        self.timestamps.append(timestampMs)
        self.keys.append(key)
        self.values.append(value)

    def encode(self) -> int:
        """
        Encode the records that are not encoded yet.

        @return: the bytes of the batch so far, before compression.
        """
        if self.values:
            self.extend(self.timestamps[self.count :], self.keys, self.values, self.headers)
            self.keys.clear()
            self.values.clear()
            self.headers.clear()
        return self.size

    def close(self, codec: int = NONE) -> PackedRecords:
        """
        The records, compressed. The builder must not be used after it.

        @raise UnknownCodecError: an unknown codec.
        """
        self.encode()
        body = compress(codec, self.take())
        return PackedRecords(body, codec, self.count, self.baseMs, self.maxTimestampMs)


class PackedRecords:
    """
    The records of a batch without the numbers of its producer, which may change before it is sent.
    """

    __slots__ = ("_baseMs", "_codec", "_maxTimestampMs", "_packed", "count")

    def __init__(
        self, packed: bytes, codec: int, count: int, baseMs: int, maxTimestampMs: int
    ) -> None:
        self._packed = packed
        self._codec = codec
        self.count = count
        self._baseMs = baseMs
        self._maxTimestampMs = maxTimestampMs

    @property
    def size(self) -> int:
        """Bytes of the batch."""
        return BATCH_OVERHEAD + len(self._packed)

    def encode(
        self,
        producerId: int = NO_PRODUCER,
        producerEpoch: int = -1,
        baseSequence: int = -1,
        isTransactional: bool = False,
    ) -> bytes:
        """The batch."""
        attributes = self._codec | (TRANSACTIONAL_ATTRIBUTE if isTransactional else 0)
        header = BatchHeader(
            0,
            0,
            -1,
            MAGIC,
            0,
            attributes,
            self.count - 1,
            self._baseMs,
            self._maxTimestampMs,
            producerId,
            producerEpoch,
            baseSequence,
            self.count,
        )
        return assembleBatch(header, self._packed)


def _encodeHeaders(headers: GivenHeaders) -> bytes:
    pieces: list[bytes] = []
    count = 0
    for name, content in headers:
        count += 1
        encoded = name.encode()
        pieces += (_varint(len(encoded)), encoded)
        pieces += (_ABSENT,) if content is None else (_varint(len(content)), content)
    return b"".join((_varint(count), *pieces))
