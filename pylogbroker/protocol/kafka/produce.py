"""
Produce by hand: a module of its own, since no other request is decoded and answered as often.

What must be true: the bytes and the values are those of C{messages}; tests compare them over random
values. The decoder here takes requests without tagged fields, that is, every request that a client
sends. Whatever else it meets, malformed bytes included, it leaves to C{messages}, which then also
has the text of the error.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.schemas import (
    ELEMENT_COUNT_MAX,
    ZERO_UUID,
    ApiMessage,
    packUnsignedVarint,
    readUnsignedVarint,
)

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_INT_INT = struct.Struct(">ii")

_new = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""


class PartitionProduceData(NamedTuple):
    """
    Records for a partition.

    @ivar records: a view of the frame.
    """

    index: int  # type: ignore[assignment]
    records: memoryview | None


class TopicProduceData(NamedTuple):
    """The partitions of a topic, which has a name up to version 12 and an id from 13."""

    name: str
    topicId: bytes
    partitionData: list[PartitionProduceData]


class ProduceRequest(NamedTuple):
    """The request, with Kafka's names."""

    transactionalId: str | None
    acks: int
    timeoutMs: int
    topicData: list[TopicProduceData]


class PartitionProduceResponse(NamedTuple):
    """
    What became of the records for a partition.

    @ivar recordErrors: of (index of the record, text or L{None}).
    @ivar currentLeader: node and epoch, or L{None}.
    """

    index: int  # type: ignore[assignment]
    errorCode: int = 0
    baseOffset: int = -1
    logAppendTimeMs: int = -1
    logStartOffset: int = -1
    recordErrors: Sequence[tuple[int, str | None]] = ()
    errorMessage: str | None = None
    currentLeader: tuple[int, int] | None = None


class TopicProduceResponse(NamedTuple):
    """The partitions of a topic, which has a name up to version 12 and an id from 13."""

    name: str
    topicId: bytes
    partitionResponses: list[PartitionProduceResponse]


class _IrregularError(Exception):
    """A message has something that only the general decoder and encoder know."""


def decodeProduceRequest(data: bytes, version: int, position: int) -> ProduceRequest:
    """
    @param position: the byte of C{data} where the body begins.
    @raise WireError: see L{ApiMessage.decode<pylogbroker.protocol.kafka.schemas.ApiMessage>}.
    """
    try:
        decode = _decodeFlexible if version >= 9 else _decodeFixed
        return decode(data, version, position)
    except (_IrregularError, IndexError, struct.error, WireError):
        found, _ = messages.ProduceRequest.decode(data, version, position)
        return ProduceRequest(
            found.transactionalId,
            found.acks,
            found.timeoutMs,
            [
                TopicProduceData(
                    topic.name,
                    topic.topicId,
                    [
                        PartitionProduceData(part.index, part.records)
                        for part in topic.partitionData
                    ],
                )
                for topic in found.topicData
            ],
        )


def _decodeFixed(data: bytes, version: int, position: int) -> ProduceRequest:
    end = len(data)
    view = memoryview(data)
    short, integer, pair = _SHORT.unpack_from, _INT.unpack_from, _INT_INT.unpack_from
    (size,) = short(data, position)
    position += 2
    transactionalId = None
    if size >= 0:
        transactionalId = data[position : position + size].decode("utf-8", "replace")
        position += size
    acks, timeoutMs = _ACKS_TIMEOUT.unpack_from(data, position)
    (topicCount,) = integer(data, position + 6)
    position += 10
    elementCount = topicCount
    topics = []
    for _ in range(_count(topicCount)):
        (size,) = short(data, position)
        start = position + 2
        position = start + _count(size)
        name = data[start:position].decode("utf-8", "replace")
        (partitionCount,) = integer(data, position)
        position += 4
        elementCount += partitionCount
        if elementCount > ELEMENT_COUNT_MAX:
            raise _IrregularError
        partitions = []
        for _ in range(_count(partitionCount)):
            index, size = pair(data, position)
            start = position + 8
            position = start + _count(size)
            if position > end:
                raise _IrregularError
            partitions.append(_new(PartitionProduceData, (index, view[start:position])))
        topics.append(_new(TopicProduceData, (name, ZERO_UUID, partitions)))
    return _new(ProduceRequest, (transactionalId, acks, timeoutMs, topics))


def _count(count: int) -> int:
    if count < 0:
        raise _IrregularError
    return count


def _decodeFlexible(data: bytes, version: int, position: int) -> ProduceRequest:
    end = len(data)
    view = memoryview(data)
    integer, hasNames = _INT.unpack_from, version < 13
    transactionalId = None
    size = data[position]
    position += 1
    if size:
        if size > 127:
            size, position = readUnsignedVarint(data, position - 1, "")
        start = position
        position += size - 1
        transactionalId = data[start:position].decode("utf-8", "replace")
    acks, timeoutMs = _ACKS_TIMEOUT.unpack_from(data, position)
    position += 6
    topicCount = data[position]
    position += 1
    if topicCount > 127:
        topicCount, position = readUnsignedVarint(data, position - 1, "")
    elementCount = topicCount
    topics = []
    for _ in range(_count(topicCount - 1)):
        if hasNames:
            size = data[position]
            position += 1
            if size > 127:
                size, position = readUnsignedVarint(data, position - 1, "")
            start = position
            position += _count(size - 1)
            name, topicId = data[start:position].decode("utf-8", "replace"), ZERO_UUID
        else:
            name, topicId = "", data[position : position + 16]
            position += 16
        partitionCount = data[position]
        position += 1
        if partitionCount > 127:
            partitionCount, position = readUnsignedVarint(data, position - 1, "")
        elementCount += partitionCount
        if elementCount > ELEMENT_COUNT_MAX:
            raise _IrregularError
        partitions = []
        for _ in range(_count(partitionCount - 1)):
            (index,) = integer(data, position)
            size, start = readUnsignedVarint(data, position + 4, "")
            position = start + _count(size - 1)
            if position >= end or data[position]:
                raise _IrregularError
            position += 1
            partitions.append(_new(PartitionProduceData, (index, view[start : position - 1])))
        if data[position]:
            raise _IrregularError
        position += 1
        topics.append(_new(TopicProduceData, (name, topicId, partitions)))
    if data[position]:
        raise _IrregularError
    return _new(ProduceRequest, (transactionalId, acks, timeoutMs, topics))


_PLAIN_5 = struct.Struct(">ihqqq")
_PLAIN_8 = struct.Struct(">ihqqqih")
_PLAIN_9 = struct.Struct(">ihqqqBBB")


def _packPlain(version: int, part: PartitionProduceResponse) -> bytes:
    """A partition of numbers alone."""
    index, errorCode, baseOffset, logAppendTimeMs, logStartOffset, errors, text, leader = part
    if errors or text is not None or leader is not None:
        raise _IrregularError
    if version >= 9:
        return _PLAIN_9.pack(index, errorCode, baseOffset, logAppendTimeMs, logStartOffset, 1, 0, 0)
    if version == 8:
        return _PLAIN_8.pack(index, errorCode, baseOffset, logAppendTimeMs, logStartOffset, 0, -1)
    packed = _PLAIN_5.pack(index, errorCode, baseOffset, logAppendTimeMs, logStartOffset)
    return packed if version >= 5 else packed[:-8]


def encodeProduceResponse(
    version: int,
    responses: Sequence[TopicProduceResponse],
    throttleTimeMs: int = 0,
    nodeEndpoints: Sequence[Any] = (),
) -> bytes:
    """
    The body of a response.

    @param nodeEndpoints: C{messages.ProduceResponse.NodeEndpoint}s, from version 10 on.
    @raise WireError: a value does not fit.
    """
    try:
        if nodeEndpoints:
            raise _IrregularError
        return _encodePlain(version, responses, throttleTimeMs)
    except _IrregularError:
        return _general(responses, throttleTimeMs, nodeEndpoints).encode(version)
    except struct.error as error:
        raise WireError(f"ProduceResponse v{version}: {error}") from error


def frameProduceResponse(
    version: int,
    correlationId: int,
    topic: TopicProduceData | TopicProduceResponse,
    part: PartitionProduceResponse,
) -> bytes | None:
    """
    The whole frame of the usual response: one partition, without an error.

    @param topic: the partition's.
    @return: L{None}: it is another response, for L{encodeProduceResponse}.
    """
    index, errorCode, baseOffset, logAppendTimeMs, logStartOffset, errors, text, leader = part
    if version < 9 or errorCode or errors or text is not None or leader is not None:
        return None
    head = _topicHead(version, topic.name, topic.topicId)
    try:
        end = _FRAME_END.pack(index, 0, baseOffset, logAppendTimeMs, logStartOffset, 1)
    except struct.error:
        return None
    return b"".join((_FRAME_HEAD.pack(_FRAME_SIZE + len(head), correlationId), head, end))


def frameProduceRun(
    version: int,
    correlationIds: Sequence[int],
    topic: TopicProduceData,
    part: PartitionProduceResponse,
    baseOffsets: Sequence[int],
) -> bytes:
    """
    The frames of usual responses, as of L{frameProduceResponse}, which differ in correlation id and
    base offset alone.

    @param version: 9 or later.
    """
    head = _topicHead(version, topic.name, topic.topicId)
    size, packHead, packEnd = _FRAME_SIZE + len(head), _FRAME_HEAD.pack, _FRAME_END.pack
    timeMs, startOffset = part.logAppendTimeMs, part.logStartOffset
    pieces: list[bytes] = []
    for correlationId, baseOffset in zip(correlationIds, baseOffsets, strict=True):
        end = packEnd(part.index, 0, baseOffset, timeMs, startOffset, 1)
        pieces += (packHead(size, correlationId), head, end)
    return b"".join(pieces)


_FRAME_HEAD = struct.Struct(">iix")
"""Size, correlation id, no tags."""
_FRAME_END = struct.Struct(">ihqqqB8x")
"""
A partition: its numbers, and no errors. Behind them are, all empty or 0, its text and tags, the
tags of the topic, the throttle time, and tags.
"""
_FRAME_SIZE = _FRAME_HEAD.size - _INT.size + _FRAME_END.size


@lru_cache(maxsize=1024)
def _topicHead(version: int, name: str, topicId: bytes) -> bytes:
    """One topic, which exists, up to its one partition."""
    text = name.encode("utf-8", "replace")
    shown = topicId if version >= 13 else packUnsignedVarint(len(text) + 1) + text
    return b"".join((b"\2", shown, b"\2"))


def withThrottleTime(frame: bytes, version: int, throttleTimeMs: int) -> bytes:
    """
    A response with another throttle time, which is its last field.

    @param frame: a whole response without C{nodeEndpoints}.
    """
    end = len(frame) - (version >= 9)
    return b"".join((frame[: end - _INT.size], _INT.pack(throttleTimeMs), frame[end:]))


def _encodePlain(
    version: int, responses: Sequence[TopicProduceResponse], throttleTimeMs: int
) -> bytes:
    isFlexible = version >= 9
    parts = [packUnsignedVarint(len(responses) + 1) if isFlexible else _INT.pack(len(responses))]
    for name, topicId, partitions in responses:
        if version >= 13:
            parts.append(topicId)
        else:
            text = name.encode("utf-8", "replace")
            parts += (
                packUnsignedVarint(len(text) + 1) if isFlexible else _SHORT.pack(len(text)),
                text,
            )
        count = len(partitions)
        parts.append(packUnsignedVarint(count + 1) if isFlexible else _INT.pack(count))
        parts += [_packPlain(version, part) for part in partitions]
        if isFlexible:
            parts.append(b"\0")
    parts.append(_INT.pack(throttleTimeMs))
    if isFlexible:
        parts.append(b"\0")
    return b"".join(parts)


def _general(
    responses: Sequence[TopicProduceResponse], throttleTimeMs: int, nodeEndpoints: Sequence[Any]
) -> ApiMessage:
    cls = messages.ProduceResponse
    made: ApiMessage = cls(throttleTimeMs=throttleTimeMs, nodeEndpoints=list(nodeEndpoints))
    for topic in responses:
        topicResponse = cls.TopicProduceResponse(name=topic.name, topicId=topic.topicId)
        made.responses.append(topicResponse)
        for part in topic.partitionResponses:
            leaderId, leaderEpoch = part.currentLeader or (-1, -1)
            topicResponse.partitionResponses.append(
                cls.PartitionProduceResponse(
                    index=part.index,
                    errorCode=part.errorCode,
                    baseOffset=part.baseOffset,
                    logAppendTimeMs=part.logAppendTimeMs,
                    logStartOffset=part.logStartOffset,
                    recordErrors=[
                        cls.BatchIndexAndErrorMessage(batchIndex=index, batchIndexErrorMessage=text)
                        for index, text in part.recordErrors
                    ],
                    errorMessage=part.errorMessage,
                    currentLeader=cls.LeaderIdAndEpoch(leaderId=leaderId, leaderEpoch=leaderEpoch),
                )
            )
    return made
