"""
Builds a record batch record by record: a module of its own, since this loop is most of what sending
a message costs.

The bytes of a record are known when it is added: its offset is its index, its timestamp is relative
to the first record's. So each record is encoded once, into pieces that refer to its key and value;
closing the batch joins all pieces. Numbers that have few bytes are looked up.

The bytes are those of L{pylogbroker.records.recordbatch.encodeBatch}, which tests compare.
"""

from __future__ import annotations

from collections.abc import Iterable
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

    __slots__ = ("_pieces", "baseMs", "count", "maxTimestampMs", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = BATCH_OVERHEAD
        self.maxTimestampMs = -1
        self.baseMs = 0
        self._pieces: list[bytes] = []

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
        index = self.count
        if not index:
            self.baseMs = timestampMs
        self.count = index + 1
        if timestampMs > self.maxTimestampMs:
            self.maxTimestampMs = timestampMs
        small = _SMALL
        number = timestampMs - self.baseMs
        delta = small[number] if 0 <= number < _LOOKED_UP_COUNT else encodeVarint(number)
        position = small[index] if index < _LOOKED_UP_COUNT else encodeVarint(index)
        if value is None:
            valueSize, value, number = _ABSENT, b"", 0
        else:
            number = len(value)
            valueSize = small[number] if number < _LOOKED_UP_COUNT else encodeVarint(number)
        # Two more bytes for attributes, and the number of headers.
        size = 2 + len(delta) + len(position) + len(valueSize) + number
        tail: bytes = b"\0"
        if headers:
            tail = _encodeHeaders(headers)
            size += len(tail) - 1
        if key is None:
            size += 1
            head = small[size] if size < _LOOKED_UP_COUNT else encodeVarint(size)
            self._pieces += (head, b"\0", delta, position, _ABSENT, valueSize, value, tail)
        else:
            keySize = _varint(len(key))
            size += len(keySize) + len(key)
            head = _varint(size)
            self._pieces += (head, b"\0", delta, position, keySize, key, valueSize, value, tail)
        self.size += len(head) + size

    def take(self) -> bytes:
        """The bytes of the records, which are here no longer."""
        body = b"".join(self._pieces)
        self._pieces = []
        return body


if TYPE_CHECKING:
    _RecordEncoder = PureRecordEncoder
else:
    _RecordEncoder = chosen("RecordEncoder", PureRecordEncoder)


class BatchBuilder(_RecordEncoder):
    """
    Records for one batch.
    """

    __slots__ = ()

    def close(self, codec: int = NONE) -> PackedRecords:
        """
        The records, compressed. The builder must not be used after it.

        @raise UnknownCodecError: an unknown codec.
        """
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
