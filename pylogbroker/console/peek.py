"""
A look at messages: some, from an offset on, or the last ones.

The last ones are the hard part. An offset is a place in the log; where a message begins, only reading from a known beginning tells, and that may
be a gigabyte away. So a window before the end is read, and the first place is looked for from which whole entries with right checksums follow one another
exactly to the end. A payload that holds a message set could deceive that, to show its own messages before the next real one; it is a look, not a reading.

What a message costs has a limit everywhere: bytes read, bytes that compressed ones may open to, bytes of a payload that are shown, checksums that are
computed in search of a beginning.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from pylogbroker.console.sources import ISource
from pylogbroker.errors import FormatError
from pylogbroker.formats.checksum import crc32
from pylogbroker.formats.compression import CODEC_NAMES
from pylogbroker.formats.messageset import MessageSet
from pylogbroker.interfaces import CheckLimits
from pylogbroker.model import Message

COUNT_MAX = 100
SHOWN_SIZE_MAX = 4 << 10
READ_SIZE = 64 << 10
READ_SIZE_MAX = 2 << 20
"""A message that is larger, with others before it, is not looked at."""

CHECKED_SIZE_MAX = 8 << 20
LIMITS = CheckLimits(payloadSizeMax=READ_SIZE_MAX, decompressedSizeMax=2 << 20, depthMax=4)

CANDIDATE_COUNT_MAX = 20_000
"""Places that look like a beginning, and are tried."""

_SIZE = struct.Struct(">i")
_BEGINNING = re.compile(rb"(?=(?!\x00\x00\x00[\x00-\x04])\x00[\x00-\x20]..(?:\x00|\x01[\x00-\x03]))", re.DOTALL)
"""A size from 5 to some 2 MiB, and a magic number; with magic 1, a codec."""


class Peek(NamedTuple):
    """
    What was found.

    @ivar messages: rows for the page.
    @ivar offset: where the first begins.
    @ivar nextOffset: where to go on.
    @ivar problem: why there are no more; C{""} when there is no such reason.
    """

    messages: list[dict[str, Any]]
    offset: int
    nextOffset: int
    problem: str


async def peek(source: ISource, topic: str, partition: int, offset: int, countMax: int) -> Peek:
    """
    Messages from an offset on.

    @raise PylogbrokerError: the broker refuses.
    """
    size = READ_SIZE
    while True:
        data = await source.read(topic, partition, offset, size)
        rows, reached, problem = _rows(data, offset, countMax)
        if rows or len(data) < size or size >= READ_SIZE_MAX:
            return Peek(rows, offset, reached, problem)
        size = READ_SIZE_MAX


async def peekLast(source: ISource, topic: str, partition: int, countMax: int) -> Peek:
    """
    The last messages.

    @raise PylogbrokerError: the broker refuses.
    """
    start, end = await source.bounds(topic, partition)
    for size in (READ_SIZE, READ_SIZE_MAX):
        offset = max(start, end - size)
        data = await _readAll(source, topic, partition, offset, end)
        begin = 0 if offset == start else firstEntry(data)
        if begin is not None:
            rows, reached, problem = _rows(data[begin:], offset + begin, None)
            rows = rows[-countMax:]
            return Peek(rows, rows[0]["offset"] if rows else offset + begin, reached, problem)
    return Peek([], end, end, f"the last message is larger than {READ_SIZE_MAX} bytes, or no message set")


async def _readAll(source: ISource, topic: str, partition: int, offset: int, end: int) -> bytes:
    """A read ends with its segment, so it may take some."""
    parts: list[bytes] = []
    while offset < end:
        data = await source.read(topic, partition, offset, end - offset)
        if not data:
            break
        parts.append(data)
        offset += len(data)
    return b"".join(parts)


def firstEntry(data: bytes) -> int | None:
    """
    The first place from which whole entries follow one another to the end of some bytes.

    @return: L{None} if there is none, or it took too much to find out.
    """
    left = CHECKED_SIZE_MAX
    bad: set[int] = set()  # no chain goes on from there
    for found in islice(_BEGINNING.finditer(data), CANDIDATE_COUNT_MAX):
        start = position = found.start()
        seen = []
        while position < len(data) and position not in bad:
            seen.append(position)
            behind = _entryEnd(data, position)
            if behind is None:
                break
            left -= behind - position
            if left < 0:
                return None
            if not _isSound(data, position, behind):
                break
            position = behind
        if position == len(data):
            return start
        bad.update(seen)
    return None


def _entryEnd(data: bytes, position: int) -> int | None:
    """Where an entry would end that begins here, by its size and magic number; L{None}: none does."""
    if position + 9 > len(data):
        return None
    (size,) = _SIZE.unpack_from(data, position)
    magic = data[position + 4]
    behind = position + 4 + size
    return None if magic > 1 or size < 5 + magic or behind > len(data) else behind


def _isSound(data: bytes, position: int, behind: int) -> bool:
    """Whether its checksum is right."""
    at = position + 5 + data[position + 4]
    return crc32(data[at + 4 : behind]) == int.from_bytes(data[at : at + 4], "big")


def _rows(data: bytes, offset: int, countMax: int | None) -> tuple[list[dict[str, Any]], int, str]:
    """Rows, where they end, and what kept us from more."""
    rows: list[dict[str, Any]] = []
    found = MessageSet(data, offset, limits=LIMITS)
    start = offset
    try:
        for outer in found.shallow():
            for row in _opened(outer.message, start, outer.nextOffset):
                rows.append(row)
            start = outer.nextOffset
            if countMax is not None and len(rows) >= countMax:
                break
    except FormatError as error:
        return rows, start, str(error) if data else ""
    return rows, start, ""


def _opened(message: Message, start: int, behind: int) -> Iterator[dict[str, Any]]:
    """The rows of one entry: itself, or what is inside of it, each with the offset of the entry."""
    if not message.codec:
        yield _row(message.payload, start, behind, "", message.checksum)
        return
    codec = CODEC_NAMES.get(message.codec, str(message.codec))
    wrapper = _wrapped(message)
    count = 0
    for count, each in enumerate(MessageSet(wrapper, limits=LIMITS), 1):
        if count <= COUNT_MAX:
            yield _row(each.message.payload, start, behind, codec, each.message.checksum)
    if count > COUNT_MAX:
        yield {**_row(b"", start, behind, codec, message.checksum), "more": count - COUNT_MAX}


def _wrapped(message: Message) -> bytes:
    """An entry again, as a set of its own."""
    body = bytes((message.magic,)) + (bytes((message.attributes,)) if message.magic else b"") + message.checksum.to_bytes(4, "big") + message.payload
    return _SIZE.pack(len(body)) + body


def _row(payload: bytes, offset: int, behind: int, codec: str, checksum: int) -> dict[str, Any]:
    """For the page, which decides how to show it."""
    return {
        "offset": offset,
        "next": behind,
        "size": len(payload),
        "codec": codec,
        "checksum": checksum,
        "payload": base64.b64encode(payload[:SHOWN_SIZE_MAX]).decode("ascii"),
    }
