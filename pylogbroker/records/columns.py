"""
A message set as columns: lists of payloads and offsets, for readers that build tables, where an
object per message costs too much.

A L{ColumnBatch} is a run of plain entries, or the content of one compressed entry. One tight loop
walks plain, whole, valid entries; L{readEntry} reads the rest, so both accept the same. Messages
inside a compressed entry share its offset, and all but the last lead back to it (spec-0.7
wire-protocol §6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.compression import NONE, crc32
from pylogbroker.records.messageset import (
    DEFAULT_LIMITS,
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    PLAIN,
    PLAIN_HEAD,
    SIZE,
    SIZE_FIELD_SIZE,
    DecompressionBudget,
    decompressedPayloads,
    readEntry,
)
from pylogbroker.speedups import native


class ColumnBatch(NamedTuple):
    """
    Consecutive messages.

    @ivar offsets: of each message's top-level entry.
    @ivar nextOffsets: the offset to fetch after each message.
    @ivar behind: the offset behind the last entry, also of an empty compressed entry.
    """

    payloads: list[bytes]
    offsets: list[int]
    nextOffsets: list[int]
    behind: int


def columnBatches(
    data: bytes, baseOffset: int, limits: CheckLimits = DEFAULT_LIMITS
) -> Iterator[ColumnBatch]:
    """
    Read a message set.

    @param data: whole entries; the last may be cut.
    @param baseOffset: of the first.
    @raise FormatError: as from L{pylogbroker.records.messageset.MessageSet}, behind the columns of
        the entries before the fault.
    """
    position, end = 0, len(data)
    while True:
        plain, position = _plainColumns(data, position, baseOffset)
        if plain.payloads:
            yield plain
        found = readEntry(data, position, end, position == 0)
        if found is None:
            return
        message, behind = found
        payloads = (
            [message.payload]
            if message.codec == NONE
            else list(decompressedPayloads(message, DecompressionBudget(limits), 0, position))
        )
        offset, nextOffset, count = baseOffset + position, baseOffset + behind, len(payloads)
        nextOffsets = [offset] * (count - 1) + [nextOffset] * (count > 0)
        yield ColumnBatch(payloads, [offset] * count, nextOffsets, nextOffset)
        position = behind


def _plainColumns(data: bytes, position: int, baseOffset: int) -> tuple[ColumnBatch, int]:
    if native is not None:
        payloads, offsets, position = native.plainColumns(data, position, baseOffset)
        return ColumnBatch(payloads, offsets[:-1], offsets[1:], offsets[-1]), position
    edges, checksums = [position], list[int]()
    unpack, end, add, addChecksum = PLAIN.unpack_from, len(data), edges.append, checksums.append
    try:
        while True:
            size, head, checksum = unpack(data, position)
            position += SIZE_FIELD_SIZE + size
            if head != PLAIN_HEAD or size < HEADER_SIZE_1 or position > end:
                break
            add(position)
            addChecksum(checksum)
    except struct.error:
        pass  # fewer bytes than a header
    payloads = [data[start + PLAIN.size : behind] for start, behind in pairwise(edges)]
    found = list(map(crc32, payloads))
    if found != checksums:
        count = next(index for index, each in enumerate(found) if each != checksums[index])
        del payloads[count:], edges[count + 1 :]
    offsets = [baseOffset + edge for edge in edges]
    return ColumnBatch(payloads, offsets[:-1], offsets[1:], offsets[-1]), edges[-1]


def completeEntriesSize(data: bytes) -> int:
    """Bytes of complete entries at the start, by size fields alone, up to an impossible size."""
    unpack, position, end = SIZE.unpack_from, 0, len(data)
    while position + SIZE_FIELD_SIZE <= end:
        (size,) = unpack(data, position)
        behind = position + SIZE_FIELD_SIZE + size
        if size < HEADER_SIZE_0 or behind > end:
            break
        position = behind
    return position


# -- offsets and sizes: an offset of the 2011 format is the number of a byte


def entrySize(data: bytes) -> int:
    """
    Bytes of the first entry, by its size field alone.

    @return: L{SIZE_FIELD_SIZE} if the size field is cut or invalid.
    """
    if len(data) < SIZE_FIELD_SIZE:
        return SIZE_FIELD_SIZE
    return SIZE_FIELD_SIZE + max(int(SIZE.unpack_from(data)[0]), 0)


def sizeBetween(start: int, end: int) -> int:
    """Bytes of the log between two offsets."""
    return end - start


def offsetAfter(offset: int, size: int) -> int:
    """The offset a number of bytes behind another one."""
    return offset + size
