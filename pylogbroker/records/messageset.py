"""
Message sets of the 2011 format: consecutive entries of C{int32 size} and a message (spec-0.7
wire-protocol §5 to §7).

The I{shallow} reading steps over top-level entries, which the broker keeps byte for byte. The
I{deep} one opens compressed entries (I{wrappers}) and yields the messages inside. L{readEntry}
defines a valid entry. For speed, C{validatePlain} of C{kafka07format} and L{MessageSet.payloads}
handle plain entries (magic 1, not compressed, whole) and leave the rest to L{readEntry}; they never
accept an entry that it would refuse.

Decompression is bounded in depth, and in bytes over all depths of a set (L{DecompressionBudget}).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from pylogbroker.errors import (
    DecompressionLimitError,
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    MessageTooLargeError,
    RemoteError,
    UnknownCodecError,
    UnknownMagicError,
)
from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.compression import CODEC_NAMES, NONE, compress, crc32, decompress
from pylogbroker.speedups import native
from pylogbroker.types import Message, MessageAndOffset, PartialBatchOffset

SIZE_FIELD_SIZE = 4
CODEC_MASK = 3
HEADER_SIZE_0 = 5
HEADER_SIZE_1 = 6
ENTRY_SIZE_MIN = SIZE_FIELD_SIZE + HEADER_SIZE_0
PAYLOAD_SIZE_MAX = 2**31 - 1 - HEADER_SIZE_1

SIZE = struct.Struct(">i")
_ENTRY_0 = struct.Struct(">iBI")
_ENTRY_1 = struct.Struct(">iBBI")
PLAIN = struct.Struct(">iHI")
PLAIN_HEAD = 0x0100  # magic 1, no attributes

DEFAULT_LIMITS = CheckLimits()

_PAIR_COUNT = 500
"""Messages that the C speed-up decodes at a time."""


# -- writing


def encodeMessage(payload: bytes, magic: int = 1, codec: int = NONE) -> bytes:
    """
    One entry, with its size field.

    @param payload: at most L{PAYLOAD_SIZE_MAX} bytes; already compressed when C{codec} is not 0.
    @param magic: 1, or 0 for readers older than 0.7, which knows no codec.
    @raise UnknownMagicError: any other.
    @raise MessageTooLargeError: the payload does not fit in an entry.
    """
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise MessageTooLargeError(
            f"payload of {len(payload)} bytes, {PAYLOAD_SIZE_MAX} fit in an entry"
        )
    if magic == 1:
        return _ENTRY_1.pack(HEADER_SIZE_1 + len(payload), 1, codec, crc32(payload)) + payload
    if magic == 0 and codec == NONE:
        return _ENTRY_0.pack(HEADER_SIZE_0 + len(payload), 0, crc32(payload)) + payload
    raise UnknownMagicError(f"no message of magic {magic} and codec {codec} can be written")


def wrapCompressed(codec: int, innerSet: bytes) -> bytes:
    """
    One entry whose payload is a compressed message set.

    @return: nothing for an empty set, as 0.7.2 does; for codec 0 the set itself.
    @raise UnknownCodecError: the codec is not known.
    """
    if codec not in CODEC_NAMES:
        raise UnknownCodecError(f"unknown codec {codec}")
    if codec == NONE or not innerSet:
        return innerSet
    return encodeMessage(compress(codec, innerSet), codec=codec)


def encodeSet(payloads: Iterable[bytes], codec: int = NONE, magic: int = 1) -> bytes:
    """
    A message set.

    @param codec: other than 0: all payloads in one wrapper.
    @param magic: of the messages; the wrapper is always magic 1.
    @raise FormatError: as L{encodeMessage} and L{wrapCompressed}.
    """
    if magic != 1:
        return wrapCompressed(
            codec, b"".join([encodeMessage(payload, magic) for payload in payloads])
        )
    payloads = list(payloads)
    if native is not None:
        encoded = native.encodePlainSet(payloads)
        if encoded is not None:
            return wrapCompressed(codec, encoded)
    pieces: list[bytes] = [b""] * (2 * len(payloads))
    try:  # in loops of C, one for each column
        pieces[::2] = map(
            PLAIN.pack,
            map(HEADER_SIZE_1.__add__, map(len, payloads)),
            repeat(PLAIN_HEAD),
            map(crc32, payloads),
        )
    except struct.error as error:
        raise MessageTooLargeError(
            f"a payload of more than the {PAYLOAD_SIZE_MAX} bytes that fit in an entry"
        ) from error
    pieces[1::2] = payloads
    return wrapCompressed(codec, b"".join(pieces))


# -- reading one entry


def readEntry(data: bytes, position: int, end: int, first: bool) -> tuple[Message, int] | None:
    """
    The entry at a position.

    @param end: of the data.
    @param first: whether a cut entry is an error, not the end.
    @return: (the message, the position behind it); L{None}: the set ends here, or in a cut entry.
    @raise FormatError: a fault of spec-0.7 wire-protocol §7.2.
    """
    left = end - position - SIZE_FIELD_SIZE
    if left < 0:
        return None
    (size,) = SIZE.unpack_from(data, position)
    if size < 0:
        raise InvalidMessageSizeError(f"size field is {size}", position)
    if size > left:
        if first:
            raise InvalidMessageSizeError(
                f"size field is {size} and {left} bytes follow:"
                " larger than the fetch size, or corrupt",
                position,
            )
        return None
    behind = position + SIZE_FIELD_SIZE + size
    if size < HEADER_SIZE_0:
        raise InvalidMessageSizeError(f"size field is {size}, less than any header", position)
    magic = data[position + SIZE_FIELD_SIZE]
    if magic == 1:
        if size < HEADER_SIZE_1:
            raise InvalidMessageSizeError(
                f"size field is {size}, less than the header of magic 1", position
            )
        _, _, attributes, checksum = _ENTRY_1.unpack_from(data, position)
        payload = data[position + _ENTRY_1.size : behind]
    elif magic == 0:
        attributes = NONE
        _, _, checksum = _ENTRY_0.unpack_from(data, position)
        payload = data[position + _ENTRY_0.size : behind]
    else:
        raise UnknownMagicError(f"magic byte is {magic}", position)
    if crc32(payload) != checksum:
        raise InvalidChecksumError(
            f"checksum is {checksum:08x}, the payload's is {crc32(payload):08x}", position
        )
    return Message(payload, magic, attributes, checksum), behind


class DecompressionBudget:
    """Bytes that may still be decompressed."""

    __slots__ = ("depthMax", "size", "sizeMax")

    def __init__(self, limits: CheckLimits) -> None:
        self.size = self.sizeMax = limits.decompressedSizeMax
        self.depthMax = limits.depthMax

    def open(self, message: Message, depth: int, position: int) -> bytes:
        if message.codec not in CODEC_NAMES:
            raise UnknownCodecError(f"codec {message.codec}", position)
        if depth >= self.depthMax:
            raise DecompressionLimitError(f"wrappers nest deeper than {self.depthMax}", position)
        try:
            inner = decompress(message.codec, message.payload, self.size)
        except FormatError as error:
            raise type(error)(error.reason, position) from error
        self.size -= len(inner)
        return inner


def _readInner(inner: bytes, at: int, position: int) -> tuple[Message, int] | None:
    try:
        return readEntry(inner, at, len(inner), at == 0)
    except FormatError as error:
        raise type(error)(f"inside a wrapper: {error.reason}", position) from error


def innerMessages(
    message: Message, budget: DecompressionBudget, depth: int, position: int
) -> Iterator[Message]:
    """The messages inside a wrapper, at every depth. Errors carry the outermost position."""
    inner = budget.open(message, depth, position)
    at = 0
    while found := _readInner(inner, at, position):
        innerMessage, at = found
        if innerMessage.codec == NONE:
            yield innerMessage
        else:
            yield from innerMessages(innerMessage, budget, depth + 1, position)


def decompressedPayloads(
    message: Message, budget: DecompressionBudget, depth: int, position: int
) -> Iterator[bytes]:
    """The payloads inside a wrapper: twice as fast as L{innerMessages} on plain entries."""
    inner = budget.open(message, depth, position)
    at, end = 0, len(inner)
    unpack, crc = PLAIN.unpack_from, crc32
    while True:
        while at + 10 <= end:
            size, head, checksum = unpack(inner, at)
            behind = at + 4 + size
            if (
                head != PLAIN_HEAD
                or size < 6
                or behind > end
                or crc(payload := inner[at + 10 : behind]) != checksum
            ):
                break
            yield payload
            at = behind
        found = _readInner(inner, at, position)
        if found is None:
            return
        innerMessage, at = found
        if innerMessage.codec == NONE:
            yield innerMessage.payload
        else:
            yield from decompressedPayloads(innerMessage, budget, depth + 1, position)


# -- reading: the application's


class CompleteEntries(NamedTuple):
    """
    The complete entries of a fetched set.

    @ivar messages: those; a cut last entry may still be there.
    @ivar nextOffset: the offset behind them.
    """

    messages: MessageSet
    size: int
    nextOffset: int


def _canBeEntry(data: bytes) -> bool:
    if len(data) >= SIZE_FIELD_SIZE and SIZE.unpack_from(data)[0] < HEADER_SIZE_0:
        return False
    magic, attributes = data[4:5], data[5:6]
    return magic in (b"", b"\0") or (
        magic == b"\1" and (not attributes or attributes[0] & CODEC_MASK in CODEC_NAMES)
    )


class MessageSet:
    """
    The result of a fetch: an iterable of L{MessageAndOffset} in the log's order, decoded during
    each iteration.

    The bytes may end inside an entry, which is left for the next fetch. Iteration raises, at the
    entry concerned, L{RemoteError} for an error code; L{InvalidMessageSizeError} when the first
    entry is cut (the fetch size was too small, or the log is corrupt); another L{FormatError} for a
    bad entry (spec-0.7 wire-protocol §7.2, consumer §1).

    @ivar baseOffset: the fetched offset.
    @ivar error: the broker's error, or L{None}.
    """

    __slots__ = ("baseOffset", "data", "error", "limits")

    def __init__(
        self,
        data: bytes,
        baseOffset: int = 0,
        error: RemoteError | None = None,
        limits: CheckLimits = DEFAULT_LIMITS,
    ) -> None:
        self.data = data
        self.baseOffset = baseOffset
        self.error = error
        self.limits = limits

    def __repr__(self) -> str:
        error = f", {self.error}" if self.error else ""
        return f"<MessageSet {len(self.data)} bytes at {self.baseOffset}{error}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageSet):
            return NotImplemented
        return [each.message for each in self] == [each.message for each in other]

    __hash__ = None  # type: ignore[assignment]

    @property
    def sizeInBytes(self) -> int:
        """All bytes, also of a cut last entry."""
        return len(self.data)

    @property
    def validSize(self) -> int:
        """
        Bytes of whole and valid top-level entries; wrappers are not opened (0.7's C{validBytes}).

        @raise RemoteError: the set stands for an error.
        @raise FormatError: an entry is bad.
        """
        return self.nextOffset - self.baseOffset

    @property
    def nextOffset(self) -> int:
        """The offset to fetch next. Raises as C{validSize} does."""
        offset = self.baseOffset
        for _message, offset in self.shallow():
            pass
        return offset

    def shallow(self) -> Iterator[MessageAndOffset]:
        """The top-level entries; wrappers are not opened."""
        if self.error is not None:
            raise self.error
        data, position, end = self.data, 0, len(self.data)
        while found := readEntry(data, position, end, position == 0):
            message, position = found
            yield MessageAndOffset(message, self.baseOffset + position)

    def complete(self) -> CompleteEntries:
        """
        The complete entries, by size fields. Only the first is checked; decoding checks the others.

        @raise FormatError: the first entry is cut, or bad.
        """
        data, end = self.data, len(self.data)
        first = readEntry(data, 0, end, True)
        if first is None:
            raise InvalidMessageSizeError(f"{end} bytes, less than a size field")
        position, messages = first[1], self
        last, sizeMin, unpack = end - SIZE_FIELD_SIZE, ENTRY_SIZE_MIN, SIZE.unpack_from
        while position <= last:
            behind = position + 4 + unpack(data, position)[0]
            if behind > end:
                break
            if behind < position + sizeMin:  # the next fetch meets it as its first entry
                messages = MessageSet(data[:position], self.baseOffset, limits=self.limits)
                break
            position = behind
        return CompleteEntries(messages, position, self.baseOffset + position)

    @property
    def cutEntrySize(self) -> int:
        """Bytes that the first entry takes, if only its end is missing; otherwise 0."""
        data = self.data
        if not _canBeEntry(data):
            return 0
        if len(data) < SIZE_FIELD_SIZE:
            return ENTRY_SIZE_MIN
        size: int = SIZE_FIELD_SIZE + SIZE.unpack_from(data)[0]
        return size if size > len(data) else 0

    @property
    def isCorruptEntry(self) -> bool:
        """
        Whether only the checksum of the first entry is wrong: its size field leads, over others
        like it, to another entry or to the end of the set.
        """
        data, position, end = self.data, 0, len(self.data)
        while True:
            try:
                found = readEntry(data, position, end, False)
            except InvalidChecksumError:
                position += SIZE_FIELD_SIZE + SIZE.unpack_from(data, position)[0]
            except FormatError:
                return False
            else:
                isEntry = found is not None or _canBeEntry(
                    data[position : position + ENTRY_SIZE_MIN]
                )
                return isEntry and position > 0

    def __iter__(self) -> Iterator[MessageAndOffset]:
        """The messages, with the offsets of spec-0.7 wire-protocol §6; wrappers are opened."""
        start = self.baseOffset
        for outer in self.shallow():
            if outer.message.codec == NONE:
                yield outer
            else:
                yield from self._inside(outer, start)
            start = outer.nextOffset

    def _inside(self, outer: MessageAndOffset, start: int) -> Iterator[MessageAndOffset]:
        """All but the last lead back to the wrapper: a reader that stops early reads it again."""
        previous: Message | None = None
        for message in innerMessages(
            outer.message, DecompressionBudget(self.limits), 0, start - self.baseOffset
        ):
            if previous is not None:
                yield MessageAndOffset(previous, start)
            previous = message
        if previous is not None:
            yield MessageAndOffset(previous, outer.nextOffset)

    def payloadsWithOffsets(self) -> Iterator[tuple[bytes, int]]:
        """
        C{payloads}, slower, with an L{PartialBatchOffset} inside wrappers, which counts the
        wrapper's messages read so far.
        """
        start = self.baseOffset
        for message, behind in self.shallow():
            payloads = (
                (message.payload,)
                if message.codec == NONE
                else decompressedPayloads(
                    message, DecompressionBudget(self.limits), 0, start - self.baseOffset
                )
            )
            previous: bytes | None = None
            for count, payload in enumerate(payloads):
                if previous is not None:
                    yield previous, PartialBatchOffset(start, count)
                previous = payload
            if previous is not None:
                yield previous, behind
            start = behind

    def payloads(self) -> Iterator[tuple[bytes, int]]:
        """
        (payload, next offset) of each message: the fastest way to read.
        """
        if self.error is not None:
            raise self.error
        data, position, base = self.data, 0, self.baseOffset
        end = len(data)
        unpack, crc = PLAIN.unpack_from, crc32
        while True:
            if native is not None:
                pairs, position = native.plainPairs(data, position, base, _PAIR_COUNT)
                if pairs:
                    yield from pairs
                    continue
            elif position + 10 <= end:
                size, head, checksum = unpack(data, position)
                behind = position + 4 + size
                if (
                    head == PLAIN_HEAD
                    and size >= 6
                    and behind <= end
                    and crc(payload := data[position + 10 : behind]) == checksum
                ):
                    yield payload, base + behind
                    position = behind
                    continue
            found = readEntry(data, position, end, position == 0)
            if found is None:
                return
            message, behind = found
            if message.codec == NONE:
                yield message.payload, base + behind
            else:
                previous: bytes | None = None  # as in _inside
                for payload in decompressedPayloads(
                    message, DecompressionBudget(self.limits), 0, position
                ):
                    if previous is not None:
                        yield previous, base + position
                    previous = payload
                if previous is not None:
                    yield previous, base + behind
            position = behind
