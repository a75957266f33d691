"""
A look at messages: some, from an offset on, or the last ones.

The last ones are the hard part. An offset is a place in the log; where a message begins, only
reading from a known beginning tells, and that may be a gigabyte away. So a window before the end is
read, and the first place is looked for from which whole entries with right checksums follow one
another exactly to the end. A payload that holds a message set could deceive that, to show its own
messages before the next real one; it is a look, not a reading.

What a look costs has a limit everywhere: bytes read, bytes that all compressed messages of it may
open to, messages that are looked at inside of one, bytes of a payload that are shown, checksums
that are computed in search of a beginning. All the same it is too much for the reactor, which
serves others: reading the bytes is the source's affair, and what is made of them is made by a
worker. Nothing is opened only to be counted.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pylogbroker.console.sources import ISource
from pylogbroker.errors import FormatError
from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.compression import CODEC_NAMES
from pylogbroker.records.messageset import DecompressionBudget, MessageSet, decompressedPayloads
from pylogbroker.records.zlibbackend import crc32
from pylogbroker.types import Message

COUNT_MAX = 100
SHOWN_SIZE_MAX = 4 << 10
READ_SIZE = 64 << 10
READ_SIZE_MAX = 2 << 20
"""A message that is larger, with others before it, is not looked at."""

CHECKED_SIZE_MAX = 8 << 20
LIMITS = CheckLimits(payloadSizeMax=READ_SIZE_MAX, decompressedSizeMax=4 << 20, depthMax=4)
"""Of one look: all compressed messages together."""

CANDIDATE_COUNT_MAX = 20_000
"""Places that look like a beginning, and are tried."""

_SIZE = struct.Struct(">i")
_BEGINNING = re.compile(
    rb"(?=(?!\x00\x00\x00[\x00-\x04])\x00[\x00-\x20]..(?:\x00|\x01[\x00-\x03]))", re.DOTALL
)
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


Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does something elsewhere than on the reactor's thread."""


async def peek(
    source: ISource, topic: str, partition: int, offset: int, countMax: int, work: Work
) -> Peek:
    """
    Messages from an offset on.

    @param work: where they are decoded.
    @raise PylogbrokerError: the broker refuses.
    """
    size = READ_SIZE
    while True:
        data = await source.read(topic, partition, offset, size)
        rows, reached, problem = await work(partial(_rows, data, offset, countMax))
        if rows or len(data) < size or size >= READ_SIZE_MAX:
            return Peek(rows, offset, reached, problem)
        size = READ_SIZE_MAX


async def peekLast(source: ISource, topic: str, partition: int, countMax: int, work: Work) -> Peek:
    """
    The last messages.

    @param work: where they are decoded.
    @raise PylogbrokerError: the broker refuses.
    """
    start, end = await source.bounds(topic, partition)
    for size in (READ_SIZE, READ_SIZE_MAX):
        offset = max(start, end - size)
        data = await _readAll(source, topic, partition, offset, end)
        found: Peek | None = await work(partial(_lastRows, data, offset, offset == start, countMax))
        if found is not None:
            return found
    return Peek(
        [], end, end, f"the last message is larger than {READ_SIZE_MAX} bytes, or no message set"
    )


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
    """
    Where an entry would end that begins here, by its size and magic number; L{None}: none does.
    """
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


def _rows(data: bytes, offset: int, countMax: int) -> tuple[list[dict[str, Any]], int, str]:
    """Rows, where they end, and what kept us from more."""
    rows: list[dict[str, Any]] = []
    allowance = DecompressionBudget(LIMITS)
    start = offset
    try:
        for outer in MessageSet(data, offset).shallow():
            rows += _opened(_Entry(outer.message, start, outer.nextOffset), allowance)
            start = outer.nextOffset
            if len(rows) >= countMax:
                break
    except FormatError as error:
        return rows, start, str(error) if data else ""
    return rows, start, ""


class _Entry(NamedTuple):
    """
    An entry of the log.

    @ivar start: its offset.
    @ivar behind: that of the next.
    """

    message: Message
    start: int
    behind: int


def _lastRows(data: bytes, offset: int, isBeginning: bool, countMax: int) -> Peek | None:
    """
    The last rows. Entries are opened from the end on, and none that is not wanted.

    @param isBeginning: whether an entry begins where the data do.
    @return: L{None}: there is no place from which entries follow one another to the end.
    """
    begin = 0 if isBeginning else firstEntry(data)
    if begin is None:
        return None
    last: deque[_Entry] = deque(maxlen=countMax)
    reached, problem = offset + begin, ""
    try:
        for message, behind in MessageSet(data[begin:], offset + begin).shallow():
            last.append(_Entry(message, reached, behind))
            reached = behind
    except FormatError as error:
        problem = str(error) if data else ""
    rows: list[dict[str, Any]] = []
    allowance = DecompressionBudget(LIMITS)
    try:
        while last and len(rows) < countMax:
            rows[:0] = _opened(last.pop(), allowance)
    except FormatError as error:
        problem = problem or str(error)
    rows = rows[-countMax:]
    return Peek(rows, rows[0]["offset"] if rows else reached, reached, problem)


def _opened(entry: _Entry, allowance: DecompressionBudget) -> list[dict[str, Any]]:
    """
    The rows of one entry: itself, or the first that are inside of it, each with the offset of the
    entry; of many, that there are more.
    """
    message, start, behind = entry
    if not message.codec:
        return [_row(message.payload, start, behind, "", message.checksum)]
    codec = CODEC_NAMES.get(message.codec, str(message.codec))
    payloads = list(islice(decompressedPayloads(message, allowance, 0, start), COUNT_MAX + 1))
    rows = [_row(payload, start, behind, codec, crc32(payload)) for payload in payloads[:COUNT_MAX]]
    if len(payloads) > COUNT_MAX:
        rows.append({**_row(b"", start, behind, codec, message.checksum), "moreThan": COUNT_MAX})
    return rows


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
