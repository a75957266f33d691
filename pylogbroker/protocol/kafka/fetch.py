"""
Fetch by hand: a module of its own, since each fetch passes here, and since the response is a list
of parts in which the records are slices of files.

What must be true: as in C{produce}, bytes and values are those of C{messages}. The decoder here
takes what consumers send, and followers with their id in a tagged field; other tagged fields it
leaves to C{messages}.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.interfaces import Slice
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.schemas import (
    ELEMENT_COUNT_MAX,
    ZERO_UUID,
    packUnsignedVarint,
    readUnsignedVarint,
)

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_INT_MAX = 0x7FFFFFFF
_REPLICA_STATE = struct.Struct(">iqB")
"""The follower and its broker epoch, with the count of the struct's tagged fields."""
_REPLICA_STATE_HEAD = bytes((1, 1, _REPLICA_STATE.size))
"""One tagged field: its number, and its size."""


class FetchPartition(NamedTuple):
    """One partition, with Kafka's names."""

    partition: int
    currentLeaderEpoch: int
    fetchOffset: int
    lastFetchedEpoch: int
    logStartOffset: int
    partitionMaxBytes: int


class FetchTopic(NamedTuple):
    """The partitions of a topic, which has a name up to version 12 and an id from 13."""

    topic: str
    topicId: bytes
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that leave a fetch session."""

    topic: str
    topicId: bytes
    partitions: list[int]


class FetchRequest(NamedTuple):
    """
    The request, with Kafka's names.

    @ivar replicaId: of the follower, in any version; -1 for a consumer.
    @ivar replicaEpoch: the broker epoch of the follower; -1: it does not say, or is a consumer.
    """

    replicaId: int
    maxWaitMs: int
    minBytes: int
    maxBytes: int
    isolationLevel: int
    sessionId: int
    sessionEpoch: int
    topics: list[FetchTopic]
    forgottenTopicsData: list[ForgottenTopic]
    rackId: str
    replicaEpoch: int = -1


class _IrregularError(Exception):
    """The request has something that only the decoder for all messages knows."""


def decodeFetchRequest(data: bytes, version: int, position: int) -> FetchRequest:
    """
    @param position: the byte of C{data} where the body begins.
    @raise WireError: see L{ApiMessage.decode<pylogbroker.protocol.kafka.schemas.ApiMessage>}.
    """
    try:
        return _Fields(data, version, position).request()
    except (_IrregularError, IndexError, struct.error, WireError):
        found, _ = messages.FetchRequest.decode(data, version, position)
        return FetchRequest(
            found.replicaId if version < 15 else found.replicaState.replicaId,
            found.maxWaitMs,
            found.minBytes,
            found.maxBytes,
            found.isolationLevel,
            found.sessionId,
            found.sessionEpoch,
            [
                FetchTopic(
                    topic.topic,
                    topic.topicId,
                    [
                        FetchPartition(*(getattr(part, name) for name in FetchPartition._fields))
                        for part in topic.partitions
                    ],
                )
                for topic in found.topics
            ],
            [
                ForgottenTopic(topic.topic, topic.topicId, topic.partitions)
                for topic in found.forgottenTopicsData
            ],
            found.rackId,
            found.replicaState.replicaEpoch if version >= 15 else -1,
        )


def _headLayout(version: int) -> struct.Struct:
    """replicaId, maxWaitMs, minBytes, maxBytes, isolationLevel, sessionId, sessionEpoch."""
    return struct.Struct(
        ">" + ("i" if version < 15 else "") + "iiib" + ("ii" if version >= 7 else "")
    )


def _partitionLayout(version: int) -> struct.Struct:
    """The fields of a partition that stand in a version, with the byte of its tags."""
    if version >= 12:
        return struct.Struct(">iiqiqix")
    return struct.Struct(">iiqqi" if version >= 9 else ">iqqi" if version >= 5 else ">iqi")


_HEADS = {version: _headLayout(version) for version in (4, 7, 15)}
_PARTITIONS = {version: _partitionLayout(version) for version in (4, 5, 9, 12)}


class _Fields:
    """Reads the fields of a regular request."""

    __slots__ = ("_data", "_elementCount", "_isFlexible", "_position", "_version")

    def __init__(self, data: bytes, version: int, position: int) -> None:
        self._data = data
        self._version = version
        self._position = position
        self._isFlexible = version >= 12
        self._elementCount = 0

    def request(self) -> FetchRequest:
        version = self._version
        head = _HEADS[15 if version >= 15 else 7 if version >= 7 else 4]
        values: tuple[int, ...] = head.unpack_from(self._data, self._position)
        self._position += head.size
        if version >= 15:
            values = (-1, *values)
        elif version < 7:
            values = (*values, 0, -1)
        topics = [self._topic() for _ in range(self._count())]
        forgotten: list[ForgottenTopic] = []
        if version >= 7:
            forgotten = [self._forgottenTopic() for _ in range(self._count())]
        rackId = self._string() if version >= 11 else ""
        if version >= 15 and self._data[self._position :].startswith(_REPLICA_STATE_HEAD):
            return self._ofReplica(values, topics, forgotten, rackId)
        self._noTags()
        return FetchRequest._make((*values, topics, forgotten, rackId, -1))

    def _ofReplica(
        self,
        values: tuple[int, ...],
        topics: list[FetchTopic],
        forgotten: list[ForgottenTopic],
        rackId: str,
    ) -> FetchRequest:
        """The one tagged field is the last of the request."""
        end = self._position + len(_REPLICA_STATE_HEAD)
        replicaId, replicaEpoch, tagCount = _REPLICA_STATE.unpack_from(self._data, end)
        if tagCount:
            raise _IrregularError
        return FetchRequest._make((replicaId, *values[1:], topics, forgotten, rackId, replicaEpoch))

    def _size(self, layout: struct.Struct) -> int:
        if self._isFlexible:
            size = self._data[self._position]
            if size < 128:
                self._position += 1
            else:
                size, self._position = readUnsignedVarint(self._data, self._position, "")
            size -= 1
        else:
            (size,) = layout.unpack_from(self._data, self._position)
            self._position += layout.size
        if size < 0:
            raise _IrregularError
        return size

    def _count(self) -> int:
        count = self._size(_INT)
        self._elementCount += count
        if self._elementCount > ELEMENT_COUNT_MAX:
            raise _IrregularError
        return count

    def _string(self) -> str:
        size = self._size(_SHORT)
        start = self._position
        self._position = end = start + size
        if end > len(self._data):
            raise _IrregularError
        return self._data[start:end].decode("utf-8", "replace")

    def _noTags(self) -> None:
        if self._isFlexible:
            if self._data[self._position]:
                raise _IrregularError
            self._position += 1

    def _name(self) -> tuple[str, bytes]:
        if self._version < 13:
            return self._string(), ZERO_UUID
        start = self._position
        self._position += 16
        return "", self._data[start : self._position]

    def _topic(self) -> FetchTopic:
        version = self._version
        name, topicId = self._name()
        count = self._count()
        layout = _PARTITIONS[
            12 if version >= 12 else 9 if version >= 9 else 5 if version >= 5 else 4
        ]
        start = self._position
        self._position = end = start + count * layout.size
        if end > len(self._data):
            raise _IrregularError
        # struct refuses a slice whose size is no multiple of the layout's.
        rows = layout.iter_unpack(self._data[start:end])
        if version >= 12:
            if self._data[start + layout.size - 1 : end : layout.size].count(0) != count:
                raise _IrregularError
            partitions = [FetchPartition._make(row) for row in rows]
        elif version >= 9:
            partitions = [
                FetchPartition(index, epoch, offset, -1, logStart, size)
                for index, epoch, offset, logStart, size in rows
            ]
        elif version >= 5:
            partitions = [
                FetchPartition(index, -1, offset, -1, logStart, size)
                for index, offset, logStart, size in rows
            ]
        else:
            partitions = [
                FetchPartition(index, -1, offset, -1, -1, size) for index, offset, size in rows
            ]
        self._noTags()
        return FetchTopic(name, topicId, partitions)

    def _forgottenTopic(self) -> ForgottenTopic:
        name, topicId = self._name()
        count = self._count()
        if count * 4 > len(self._data) - self._position:
            raise _IrregularError
        partitions = list(struct.unpack_from(f">{count}i", self._data, self._position))
        self._position += 4 * count
        self._noTags()
        return ForgottenTopic(name, topicId, partitions)


def withLongerThrottleTime(head: bytes, version: int, throttleTimeMs: int) -> bytes:
    """
    The first part of a response, with a throttle time of at least so many milliseconds.

    @param head: as of L{FetchResponseWriter.finish}.
    """
    made = bytearray(head)
    at = 2 * _INT.size + (version >= 12)
    before = _INT.unpack_from(made, at)[0]
    _INT.pack_into(made, at, max(before, throttleTimeMs))
    return bytes(made)


class FetchResponseWriter:
    """
    A response, topic by topic and partition by partition: a list of parts in which slices of files
    stand as they were given::

        writer = FetchResponseWriter(version, correlationId, topicCount=1)
        writer.topic("orders", b"", partitionCount=1)
        writer.partition(0, slice, highWatermark=7, lastStableOffset=7, logStartOffset=0)
        parts = writer.finish()
    """

    def __init__(
        self,
        version: int,
        correlationId: int,
        topicCount: int,
        throttleTimeMs: int = 0,
        errorCode: int = 0,
        sessionId: int = 0,
    ) -> None:
        """
        @param topicCount: calls of L{topic} that follow.
        @param errorCode: of the whole response; version 7 and later have it.
        """
        self._version = version
        self._isFlexible = version >= 12
        self._parts: list[bytes | Slice] = []
        self._size = 0
        self._topicCount = topicCount
        self._partitionCount = 0
        self._isInTopic = False
        head = self._head = bytearray(4)
        head += _INT.pack(correlationId)
        if self._isFlexible:
            head.append(0)
        head += _INT.pack(throttleTimeMs)
        if version >= 7:
            head += struct.pack(">hi", errorCode, sessionId)
        self._putCount(topicCount)

    def _putCount(self, count: int) -> None:
        self._head += packUnsignedVarint(count + 1) if self._isFlexible else _INT.pack(count)

    def _endTopic(self) -> None:
        if self._partitionCount:
            raise ValueError(f"{self._partitionCount} partitions of the topic are missing")
        if self._isInTopic and self._isFlexible:
            self._head.append(0)
        self._isInTopic = False

    def topic(self, name: str, topicId: bytes, partitionCount: int) -> None:
        """
        Begin a topic.

        @param name: as in the request; versions up to 12 send it.
        @param topicId: 16 bytes, which versions from 13 on send.
        @param partitionCount: calls of L{partition} that follow.
        @raise ValueError: a partition of the topic before is missing, or there is one topic more
            than was said.
        """
        self._endTopic()
        if not self._topicCount:
            raise ValueError("a topic more than was said")
        self._topicCount -= 1
        self._partitionCount = partitionCount
        self._isInTopic = True
        if self._version >= 13:
            self._head += topicId
        else:
            text = name.encode("utf-8", "replace")
            self._head += (
                packUnsignedVarint(len(text) + 1) if self._isFlexible else _SHORT.pack(len(text))
            )
            self._head += text
        self._putCount(partitionCount)

    def partition(
        self,
        index: int,
        records: bytes | Slice = b"",
        errorCode: int = 0,
        highWatermark: int = -1,
        lastStableOffset: int = -1,
        logStartOffset: int = -1,
        abortedTransactions: Sequence[tuple[int, int]] | None = None,
        preferredReadReplica: int = -1,
        divergingEpoch: tuple[int, int] | None = None,
        currentLeader: tuple[int, int] | None = None,
    ) -> None:
        """
        One partition of the topic.

        @param records: whole batches, as bytes or as a slice of a file.
        @param abortedTransactions: of (producer id, first offset); L{None} unless the client reads
            committed records only.
        @param divergingEpoch: epoch and end offset; from version 12 on, like C{currentLeader}.
        @param currentLeader: node and epoch.
        @raise ValueError: it is one more than was said.
        """
        if not self._partitionCount:
            raise ValueError("a partition more than was said")
        self._partitionCount -= 1
        version, head = self._version, self._head
        if version >= 5:
            head += _HEAD.pack(index, errorCode, highWatermark, lastStableOffset, logStartOffset)
        else:
            head += _HEAD_4.pack(index, errorCode, highWatermark, lastStableOffset)
        if abortedTransactions is None:
            head += b"\0" if self._isFlexible else b"\xff\xff\xff\xff"
        else:
            self._putCount(len(abortedTransactions))
            layout = _ABORTED_FLEXIBLE if self._isFlexible else _ABORTED
            for producerId, firstOffset in abortedTransactions:
                head += layout.pack(producerId, firstOffset)
        if version >= 11:
            head += _INT.pack(preferredReadReplica)
        size = records.size if isinstance(records, Slice) else len(records)
        self._putCount(size)
        if isinstance(records, bytes):
            head += records
        elif size:
            self._flush()
            self._parts.append(records)
            self._size += size
        if self._isFlexible:
            self._putTags(divergingEpoch, currentLeader)

    def _flush(self) -> None:
        self._size += len(self._head)
        self._parts.append(bytes(self._head))
        self._head = bytearray()

    def _putTags(
        self, divergingEpoch: tuple[int, int] | None, currentLeader: tuple[int, int] | None
    ) -> None:
        head = self._head
        head.append((divergingEpoch is not None) + (currentLeader is not None))
        if divergingEpoch is not None:
            head += struct.pack(">BBiqB", 0, 13, *divergingEpoch, 0)
        if currentLeader is not None:
            head += struct.pack(">BBiiB", 1, 9, *currentLeader, 0)

    def finish(self, nodeEndpoints: Sequence[Any] = ()) -> list[bytes | Slice]:
        """
        @param nodeEndpoints: C{messages.FetchResponse.NodeEndpoint}s, from version 16 on.
        @return: the whole frame, its size included.
        @raise ValueError: a topic or partition is missing.
        """
        self._endTopic()
        if self._topicCount:
            raise ValueError(f"{self._topicCount} topics are missing")
        if nodeEndpoints:
            # An empty response has 11 bytes before its tags.
            empty = messages.FetchResponse(nodeEndpoints=list(nodeEndpoints))
            self._head += empty.encode(self._version)[11:]
        elif self._isFlexible:
            self._head.append(0)
        if self._head:
            self._flush()
        first = self._parts[0]
        if not isinstance(first, bytes):  # pragma: no cover
            raise AssertionError("a slice before the header")
        self._parts[0] = _INT.pack(self._size - 4) + first[4:]
        return self._parts


_HEAD = struct.Struct(">ihqqq")
_HEAD_4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_ABORTED_FLEXIBLE = struct.Struct(">qqx")
