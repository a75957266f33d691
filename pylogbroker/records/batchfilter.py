"""
Batches with fewer records, as compaction makes them. It is a module of its own, since this loop
over records is most of compaction's cost, and nothing else takes records out of batches.

A batch keeps its offsets, sequence numbers, producer, time type and codec; its records keep their
bytes. Only where a batch gets a delete horizon, which takes the place of the base timestamp, the
records' time fields are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pylogbroker.errors import InvalidRecordError
from pylogbroker.interfaces import BatchHeader, CheckLimits
from pylogbroker.records.compression import compress
from pylogbroker.records.recordbatch import (
    CODEC_ATTRIBUTES,
    DEFAULT_LIMITS,
    DELETE_HORIZON_ATTRIBUTE,
    assembleBatch,
    encodeVarint,
    openRecords,
    readUnsignedVarint,
)


class RawRecord(NamedTuple):
    """
    A record in a batch's opened records.

    @ivar offset: of the log.
    @ivar hasValue: if not, it is a tombstone.
    @ivar start: its first byte.
    @ivar timed: the byte of its time field.
    @ivar delta: its time field.
    @ivar rest: the byte behind that.
    @ivar end: the byte behind the record.
    """

    offset: int
    key: bytes | None
    hasValue: bool
    start: int
    timed: int
    delta: int
    rest: int
    end: int


def walkRecords(body: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """
    The records of a batch.

    @param body: opened (L{openRecords}).
    @raise InvalidRecordError: when the walk reaches a record that is not whole.
    """
    at, end, baseOffset, new = 0, len(body), header.baseOffset, tuple.__new__
    try:
        for _ in range(header.recordCount):
            start = at
            number = body[at]
            at += 1
            if number > 127:
                number, at = readUnsignedVarint(body, at - 1)
            behind = at + (number >> 1)
            timed = at + 1  # behind the attributes, which are not used
            deltaMs = body[timed]
            at = timed + 1
            if deltaMs > 127:
                deltaMs, at = readUnsignedVarint(body, timed)
            rest = at
            delta = body[at]
            at += 1
            if delta > 127:
                delta, at = readUnsignedVarint(body, at - 1)
            number = body[at]
            at += 1
            if number > 127:
                number, at = readUnsignedVarint(body, at - 1)
            key = None
            if not number & 1:
                keyStart = at
                at += number >> 1
                key = body[keyStart:at]
            hasValue = not body[at] & 1
            if at >= behind or behind > end:
                raise InvalidRecordError(f"a record's size does not fit, at {start}")
            at = behind
            yield new(
                RawRecord,
                (
                    baseOffset + (delta >> 1 ^ -(delta & 1)),
                    key,
                    hasValue,
                    start,
                    timed,
                    deltaMs >> 1 ^ -(deltaMs & 1),
                    rest,
                    behind,
                ),
            )
    except IndexError as error:
        raise InvalidRecordError("a record is cut") from error
    except ValueError as error:
        raise InvalidRecordError(f"a record cannot be read: {error}") from error


def filterBatch(
    data: bytes,
    header: BatchHeader,
    retains: Callable[[RawRecord], bool],
    deleteHorizonMs: int,
    startsHorizon: bool = False,
    limits: CheckLimits = DEFAULT_LIMITS,
) -> bytes | None:
    """
    A batch with the records that stay.

    @param deleteHorizonMs: for a batch without one that keeps a tombstone.
    @param startsHorizon: it gets the horizon in any case.
    @return: C{data} itself if nothing changes; L{None}: no record stays.
    @raise FormatError: the records cannot be read.
    @raise DecompressionLimitError: they are more than the limits allow.
    """
    body = openRecords(data, 0, header, limits)
    kept = []
    hasTombstone = False
    for record in walkRecords(body, header):
        if retains(record):
            kept.append(record)
            if not record.hasValue:
                hasTombstone = True
    if not kept:
        return None
    needsHorizon = header.deleteHorizonMs is None and (
        startsHorizon or (hasTombstone and not header.isControl)
    )
    if len(kept) == header.recordCount and not needsHorizon:
        return data
    baseMs, attributes, maxMs = header.baseTimestampMs, header.attributes, header.maxTimestampMs
    if not header.isLogAppendTime:
        maxMs = max(baseMs + record.delta for record in kept)
    if needsHorizon:
        shift = baseMs - deleteHorizonMs
        baseMs = deleteHorizonMs
        attributes |= DELETE_HORIZON_ATTRIBUTE
        parts = [_retimed(body, record, record.delta + shift) for record in kept]
    else:
        parts = [body[record.start : record.end] for record in kept]
    return assembleBatch(
        header._replace(
            attributes=attributes,
            baseTimestampMs=baseMs,
            maxTimestampMs=maxMs,
            recordCount=len(kept),
        ),
        compress(header.codec, b"".join(parts)),
    )


def _retimed(body: bytes, record: RawRecord, delta: int) -> bytes:
    inner = b"".join(
        (
            body[record.timed - 1 : record.timed],
            encodeVarint(delta),
            body[record.rest : record.end],
        )
    )
    return encodeVarint(len(inner)) + inner


def emptyBatch(header: BatchHeader) -> bytes:
    """
    The batch without its records: it keeps offsets, and what the log knows of the producer.
    """
    attributes = header.attributes & ~(CODEC_ATTRIBUTES | DELETE_HORIZON_ATTRIBUTE)
    emptied = header._replace(
        attributes=attributes, baseTimestampMs=header.maxTimestampMs, recordCount=0
    )
    return assembleBatch(emptied, b"")
