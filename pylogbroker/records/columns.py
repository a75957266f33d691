"""
A message set as columns: lists of payloads and of offsets, for readers that build tables and would pay for an object a message.

A L{ColumnBatch} is a run of plain entries, or what is inside one wrapper. What is plain, whole and valid is walked by one tight loop; everything else goes
through L{readEntry}, so that nothing is accepted here that is refused elsewhere (the tests hold the two readings against each other). Offsets
mean what they mean to the other readers (spec-0.7 wire-protocol §6): messages inside a wrapper share its offset, and all but the last of them lead back to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.compression import NONE
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
from pylogbroker.records.zlibbackend import crc32
from pylogbroker.types import Message


class ColumnBatch(NamedTuple):
    """
    Messages that stand behind one another.

    @ivar offsets: where the entry of each begins, or the wrapper that it is in.
    @ivar nextOffsets: what to fetch behind each.
    @ivar behind: the offset behind the last entry; a wrapper without messages has that, too.
    """

    payloads: list[bytes]
    offsets: list[int]
    nextOffsets: list[int]
    behind: int


def stretches(
    data: bytes, baseOffset: int, limits: CheckLimits = DEFAULT_LIMITS
) -> Iterator[ColumnBatch]:
    """
    @param data: whole entries, and at their end perhaps one that is cut.
    @param baseOffset: of the first.
    @raise FormatError: as L{pylogbroker.records.messageset.MessageSet} raises it, at the entry where it is met; what is before it has been given out.
    """
    position, end = 0, len(data)
    while True:
        plain, position = _plainStretch(data, position, baseOffset)
        if plain.payloads:
            yield plain
        found = readEntry(data, position, end, position == 0)
        if found is None:
            return
        message, behind = found
        yield (
            _single(message, baseOffset + position, baseOffset + behind)
            if message.codec == NONE
            else _opened(message, position, behind, baseOffset, limits)
        )
        position = behind


def _plainStretch(data: bytes, position: int, baseOffset: int) -> tuple[ColumnBatch, int]:
    """The hot loop, and two that run in C. Returns where it stopped, too."""
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


def _single(message: Message, offset: int, nextOffset: int) -> ColumnBatch:
    return ColumnBatch([message.payload], [offset], [nextOffset], nextOffset)


def _opened(
    message: Message, position: int, behind: int, baseOffset: int, limits: CheckLimits
) -> ColumnBatch:
    payloads = list(decompressedPayloads(message, DecompressionBudget(limits), 0, position))
    offset, nextOffset, count = baseOffset + position, baseOffset + behind, len(payloads)
    return ColumnBatch(
        payloads, [offset] * count, [offset] * (count - 1) + [nextOffset] * (count > 0), nextOffset
    )


def completeEntriesSize(data: bytes) -> int:
    """
    Bytes of whole entries from the start, by their size fields alone: checksums are not looked at, and it stops at a size that is none.
    """
    unpack, position, end = SIZE.unpack_from, 0, len(data)
    while position + SIZE_FIELD_SIZE <= end:
        (size,) = unpack(data, position)
        behind = position + SIZE_FIELD_SIZE + size
        if size < HEADER_SIZE_0 or behind > end:
            break
        position = behind
    return position
