"""
Reads a few records of a topic of today's protocol for the console: from an offset, or the last
ones. A module of its own, since L{pylogbroker.console.peek} knows the 2011 format only.

Offsets count records, so the last ones begin that many offsets before the end. Compaction leaves
gaps; there may be fewer then. Records of open and aborted transactions are shown, and so are the
markers of transactions.

Everything has a limit: bytes read and decompressed, and what is shown of a key, a value and the
headers. A worker thread decodes.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable
from functools import partial
from typing import Any, Protocol

from pylogbroker.console.peek import LIMITS, READ_SIZE_MAX, SHOWN_SIZE_MAX, PeekResult, Work
from pylogbroker.errors import FormatError
from pylogbroker.interfaces import BatchHeader
from pylogbroker.records.compression import BATCH_CODEC_NAMES, NONE
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    checkCrc,
    iterateRecords,
    readHeader,
    readMarker,
)
from pylogbroker.types import OffsetBounds

HEADER_COUNT_MAX = 20
HEADER_SIZE_MAX = 256
"""Bytes that are shown of a header's value, and characters of its name."""


class IRecordSource(Protocol):
    """
    A broker as a source of record batches. Its methods raise
    L{pylogbroker.errors.PylogbrokerError}.
    """

    def readBatches(
        self, topic: str, partition: int, offset: int, sizeMax: int
    ) -> Awaitable[bytes]:
        """Batches from the one with an offset on; the last may be cut."""
        ...

    def recordBounds(self, topic: str, partition: int) -> Awaitable[OffsetBounds]:
        """The log start offset, and the high watermark."""
        ...


async def peekRecordsAt(
    source: IRecordSource,
    topic: str,
    partition: int,
    offset: int | None,
    countMax: int,
    work: Work,
) -> dict[str, Any]:
    """
    Records with the range of their partition, for the page.

    @param offset: of the first; L{None}: the last records.
    @param work: decodes them.
    @raise PylogbrokerError: the broker refuses.
    """
    if offset is None:
        found = await peekLastRecords(source, topic, partition, countMax, work)
    else:
        found = await peekRecords(source, topic, partition, offset, countMax, work)
    return {**found._asdict(), **(await source.recordBounds(topic, partition))._asdict()}


async def peekRecords(
    source: IRecordSource, topic: str, partition: int, offset: int, countMax: int, work: Work
) -> PeekResult:
    """
    Records from an offset.

    @param work: decodes them.
    @raise PylogbrokerError: the broker refuses.
    """
    look = _Look(offset, countMax)
    left = READ_SIZE_MAX
    while left > 0 and not look.isOver:
        reached = look.reached
        data = await source.readBatches(topic, partition, reached, left)  # up to a segment's end
        left -= len(data)
        await work(partial(look.add, data))
        if look.reached == reached:
            break
    if not look.rows and left <= 0:
        look.problem = look.problem or f"the next batch is larger than {READ_SIZE_MAX} bytes"
    return PeekResult(
        look.rows, look.rows[0]["offset"] if look.rows else offset, look.reached, look.problem
    )


async def peekLastRecords(
    source: IRecordSource, topic: str, partition: int, countMax: int, work: Work
) -> PeekResult:
    """
    The last records; fewer, if a read of L{READ_SIZE_MAX} bytes does not reach the end.

    @param work: decodes them.
    @raise PylogbrokerError: the broker refuses.
    """
    while True:
        start, end = await source.recordBounds(topic, partition)
        offset = max(start, end - countMax)
        found = await peekRecords(source, topic, partition, offset, countMax, work)
        if found.nextOffset >= end or countMax == 1:
            return found
        countMax //= 2


class _Look:
    """
    Records from an offset on.

    @ivar rows: for the page.
    @ivar reached: the offset to continue at.
    @ivar problem: why there are no more rows; C{""}: no reason.
    """

    def __init__(self, offset: int, countMax: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.reached = offset
        self.problem = ""
        self._countMax = countMax
        self._decompressedLeft = LIMITS.decompressedSizeMax

    @property
    def isOver(self) -> bool:
        """Whether no more batches are wanted."""
        return bool(self.problem) or len(self.rows) >= self._countMax

    def add(self, data: bytes) -> None:
        """Decode batches, of which the last may be cut."""
        at = 0
        try:
            while not self.isOver and len(data) - at >= BATCH_OVERHEAD:
                header = readHeader(data, at)
                if header.size > len(data) - at:
                    break
                checkCrc(data, at, header)
                self._addBatch(data, at, header)
                at += header.size
        except FormatError as error:
            self.problem = str(error)

    def _addBatch(self, data: bytes, at: int, header: BatchHeader) -> None:
        offset = self.reached
        limits = LIMITS._replace(decompressedSizeMax=max(self._decompressedLeft, 0))
        for record in iterateRecords(data, at, header, limits):
            if header.codec != NONE:
                self._decompressedLeft -= _sizeOf(record)
            if record.offset < offset:
                continue
            if len(self.rows) == self._countMax:
                return
            self.rows.append(_row(record, header))
            self.reached = record.offset + 1
        self.reached = max(self.reached, header.nextOffset)


def _sizeOf(record: Record) -> int:
    parts = (record.key, record.value, *(value for _, value in record.headers))
    return sum(len(each or b"") for each in parts)


def _row(record: Record, header: BatchHeader) -> dict[str, Any]:
    """A record for the page."""
    marker = readMarker(record) if header.isControl else None
    return {
        "offset": record.offset,
        "next": record.offset + 1,
        "timestampMs": record.timestampMs,
        "size": len(record.value or b""),
        "keySize": len(record.key or b""),
        "codec": "" if header.codec == NONE else BATCH_CODEC_NAMES.get(header.codec, "?"),
        "key": _shown(record.key),
        "payload": _shown(record.value),
        "headers": [
            [name[:HEADER_SIZE_MAX], _shown(value, HEADER_SIZE_MAX)]
            for name, value in record.headers[:HEADER_COUNT_MAX]
        ],
        "headerCount": len(record.headers),
        "control": header.isControl,
        "marker": "" if marker is None else "COMMIT" if marker.isCommit else "ABORT",
    }


def _shown(data: bytes | None, sizeMax: int = SHOWN_SIZE_MAX) -> str | None:
    return None if data is None else base64.b64encode(data[:sizeMax]).decode("ascii")
