"""
The check of a batch's records without making them. It is a module of its own, since this loop is
most of the cost of a topic whose records are checked.

Numbers of one and two bytes are read in place. It says yes, or does not know: then the slow way
finds the fault, and tells which record has it.
"""

from __future__ import annotations

from pylogbroker.records.recordbatch import readUnsignedVarint
from pylogbroker.speedups import chosen

DELTA_MAX_MS = 1 << 80
"""Beyond what a number of L{readUnsignedVarint} can be."""


def pureAreOrdinary(
    body: bytes,
    recordCount: int,
    isKeyed: bool,
    deltaMinMs: int,
    deltaMaxMs: int,
    deltaLargestMs: int | None = None,
) -> bool:
    """
    Whether records are whole, fill the body exactly, and have the offsets 0, 1, 2 and so on.

    @param body: the records of a batch, decompressed.
    @param isKeyed: each must have a key.
    @param deltaMinMs: to the batch's base timestamp: none is below it.
    @param deltaMaxMs: none is above it.
    @param deltaLargestMs: the largest of them; L{None}: it may be any.
    """
    at, end, largest = 0, len(body), -DELTA_MAX_MS
    try:
        for index in range(recordCount):
            number = body[at]
            at += 1
            if number > 127:
                following = body[at]
                if following < 128:
                    number = number & 127 | following << 7
                    at += 1
                else:
                    number, at = readUnsignedVarint(body, at - 1)
            behind = at + (number >> 1)
            if number & 1 or behind > end:
                return False
            at += 1  # attributes
            number = body[at]
            at += 1
            if number > 127:
                following = body[at]
                if following < 128:
                    number = number & 127 | following << 7
                    at += 1
                else:
                    number, at = readUnsignedVarint(body, at - 1)
            number = number >> 1 ^ -(number & 1)
            if not deltaMinMs <= number <= deltaMaxMs:
                return False
            if number > largest:
                largest = number
            number = body[at]
            at += 1
            if number > 127:
                following = body[at]
                if following < 128:
                    number = number & 127 | following << 7
                    at += 1
                else:
                    number, at = readUnsignedVarint(body, at - 1)
            if number != index << 1:
                return False
            number = body[at]
            at += 1
            if number > 127:
                number, at = readUnsignedVarint(body, at - 1)
            if not number & 1:
                at += number >> 1
            elif isKeyed:
                return False
            number = body[at]
            at += 1
            if number > 127:
                following = body[at]
                if following < 128:
                    number = number & 127 | following << 7
                    at += 1
                else:
                    number, at = readUnsignedVarint(body, at - 1)
            if not number & 1:
                at += number >> 1
            number = body[at]
            at += 1
            if number:
                at = _skipHeaders(body, at - 1)
            if at != behind:
                return False
    except (IndexError, ValueError):  # cut; a number without end
        return False
    return at == end and deltaLargestMs in (None, largest)


areOrdinary = chosen("areOrdinary", pureAreOrdinary)


def _skipHeaders(body: bytes, at: int) -> int:
    """The position behind the headers."""
    number, at = readUnsignedVarint(body, at)
    if number & 1 or number >> 1 > len(body) - at:
        raise ValueError("header count")
    for _ in range(number >> 1):
        number, at = readUnsignedVarint(body, at)
        if number & 1:
            raise ValueError("a header without a name")
        at += number >> 1
        number, at = readUnsignedVarint(body, at)
        if not number & 1:
            at += number >> 1
    return at
