"""
Reads a few messages for the console: from an offset, or the last ones.

The last ones are hard to find: only reading from a known start shows where a message begins, and
that start may be a gigabyte away. So it reads a window before the end, and searches the first place
from which complete entries with correct checksums follow one another to the end. A payload that
holds a message set can fake such a place; this is a peek, not a reader.

Everything has a limit: bytes read, bytes decompressed, inner messages, bytes of a payload, computed
checksums. It is still too much work for the reactor, so a worker thread decodes. Nothing is
decompressed only to be counted.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from pylogbroker.broker.service import BrokerService
from pylogbroker.client.offsetlookup import bounds, singleOffset
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import FormatError
from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.compression import CODEC_NAMES, crc32
from pylogbroker.records.messageset import DecompressionBudget, MessageSet, decompressedPayloads
from pylogbroker.types import EARLIEST, LATEST, Message, OffsetBounds


class ISource(Protocol):
    """
    One broker as a source of messages. Its methods fail with a
    L{pylogbroker.errors.PylogbrokerError}.
    """

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Awaitable[bytes]:
        """Bytes of a message set from an offset."""
        ...

    def bounds(self, topic: str, partition: int) -> Awaitable[OffsetBounds]:
        """The oldest offset, and the high watermark."""
        ...


class OwnSource:
    """The broker that serves the console."""

    def __init__(self, broker: BrokerService) -> None:
        self.read = broker.read
        self._offsetsBefore = broker.offsetsBefore

    async def bounds(self, topic: str, partition: int) -> OffsetBounds:
        earliest, latest = [
            singleOffset(await self._offsetsBefore(topic, partition, time, 1))
            for time in (EARLIEST, LATEST)
        ]
        return OffsetBounds(earliest, latest)


class RemoteSource:
    """Another broker."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        """@param consumer: connected to it; its owner closes it."""
        self._consumer = consumer

    async def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> bytes:
        found = await self._consumer.fetch(topic, partition, offset, sizeMax)
        if found.error is not None:
            raise found.error
        return found.data

    async def bounds(self, topic: str, partition: int) -> OffsetBounds:
        return await bounds(self._consumer, topic, partition)


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


class PeekResult(NamedTuple):
    """
    The messages that were found.

    @ivar messages: rows for the page.
    @ivar offset: of the first message.
    @ivar nextOffset: the offset to continue at.
    @ivar problem: why there are no more; C{""} if there is no reason.
    """

    messages: list[dict[str, Any]]
    offset: int
    nextOffset: int
    problem: str


Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does something elsewhere than on the reactor's thread."""


async def peek(
    source: ISource, topic: str, partition: int, offset: int, countMax: int, work: Work
) -> PeekResult:
    """
    Messages from an offset.

    @param work: decodes them.
    @raise PylogbrokerError: the broker refuses.
    """
    size = READ_SIZE
    while True:
        data = await source.read(topic, partition, offset, size)
        found: PeekResult = await work(partial(_rows, data, offset, countMax))
        if found.messages or len(data) < size or size >= READ_SIZE_MAX:
            return found
        size = READ_SIZE_MAX


async def peekLast(
    source: ISource, topic: str, partition: int, countMax: int, work: Work
) -> PeekResult:
    """
    The last messages.

    @param work: decodes them.
    @raise PylogbrokerError: the broker refuses.
    """
    start, end = await source.bounds(topic, partition)
    for size in (READ_SIZE, READ_SIZE_MAX):
        offset = max(start, end - size)
        data = await _readAll(source, topic, partition, offset, end)
        found: PeekResult | None = await work(
            partial(_lastRows, data, offset, offset == start, countMax)
        )
        if found is not None:
            return found
    return PeekResult(
        [], end, end, f"the last message is larger than {READ_SIZE_MAX} bytes, or no message set"
    )


async def _readAll(source: ISource, topic: str, partition: int, offset: int, end: int) -> bytes:
    """Read several times, because a read ends with its segment."""
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
    The first place from which complete entries follow one another to the end.

    @return: L{None} if there is none, or the search hit its limit.
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
    """The end of an entry that begins here, by its size and magic number; L{None} if none can."""
    if position + 9 > len(data):
        return None
    (size,) = _SIZE.unpack_from(data, position)
    magic = data[position + 4]
    behind = position + 4 + size
    return None if magic > 1 or size < 5 + magic or behind > len(data) else behind


def _isSound(data: bytes, position: int, behind: int) -> bool:
    """Whether the checksum of an entry is correct."""
    at = position + 5 + data[position + 4]
    return crc32(data[at + 4 : behind]) == int.from_bytes(data[at : at + 4], "big")


def _rows(data: bytes, offset: int, countMax: int) -> PeekResult:
    rows: list[dict[str, Any]] = []
    allowance = DecompressionBudget(LIMITS)
    reached, problem = offset, ""
    try:
        for message, behind in MessageSet(data, offset).shallow():
            rows += _opened(_Entry(message, reached, behind), allowance)
            reached = behind
            if len(rows) >= countMax:
                break
    except FormatError as error:
        problem = str(error) if data else ""
    return PeekResult(rows, offset, reached, problem)


class _Entry(NamedTuple):
    """
    An entry of the log.

    @ivar start: its offset.
    @ivar behind: the offset of the next one.
    """

    message: Message
    start: int
    behind: int


def _lastRows(data: bytes, offset: int, isBeginning: bool, countMax: int) -> PeekResult | None:
    """
    The last rows. Entries are decompressed from the end, and only as needed.

    @param isBeginning: whether an entry begins where the data does.
    @return: L{None} if no place is found from which entries follow one another to the end.
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
    return PeekResult(rows, rows[0]["offset"] if rows else reached, reached, problem)


def _opened(entry: _Entry, allowance: DecompressionBudget) -> list[dict[str, Any]]:
    """
    The rows of one entry: itself, or its first inner messages with the entry's offset, and a note
    if there are more.
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
    """A message for the page."""
    return {
        "offset": offset,
        "next": behind,
        "size": len(payload),
        "codec": codec,
        "checksum": checksum,
        "payload": base64.b64encode(payload[:SHOWN_SIZE_MAX]).decode("ascii"),
    }
