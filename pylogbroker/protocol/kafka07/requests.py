"""
Requests of Kafka 0.7 (spec-0.7 wire-protocol §3), as values, encoded and decoded.

A producer that sends one message a request sends them one behind the other, to a few partitions.
Decoding and appending each costs several times what its bytes are worth, so
L{RequestDecoder.takeRequest} gives the requests for one partition as one L{Produce} with many sets,
and those for several partitions as L{ProduceRuns}. Request type, topic and partition are the same
bytes in each request for a partition: one comparison replaces their decoding, and a small table
keeps what they decode to. The sets of a partition keep their order. Those of different partitions
do not, which no client can see: PRODUCE has no answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pylogbroker.errors import UnknownRequestError, WireError
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.speedups import native

PRODUCE = 0
FETCH = 1
MULTIFETCH = 2
MULTIPRODUCE = 3
OFFSETS = 4

COUNT_MAX = 2**15 - 1
SIZE_MAX = 2**31 - 1

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_RANGE = struct.Struct(">iqi")
_POSITION = struct.Struct(">qi")
_RUN_HEAD = struct.Struct(">ihh")
_RUN_KEY_COUNT_MAX = 1024
_RUN_TOPIC_SIZE_MAX = 1024  # more than any valid topic has, and little, since the table keeps it


class Produce(NamedTuple):
    """
    One or more PRODUCE requests in a row for one partition; in a L{MultiProduce} exactly one.

    @ivar partition: -1 lets the broker choose, for each set anew.
    @ivar sets: the message set of each request, unchecked.
    """

    topic: str
    partition: int
    sets: list[bytes]


class MultiProduce(NamedTuple):
    """MULTIPRODUCE. The broker handles the parts in order, up to the first that fails."""

    produces: list[Produce]


class ProduceRuns(NamedTuple):
    """
    PRODUCE requests in a row for several partitions, one L{Produce} for each partition.
    """

    produces: list[Produce]


class Fetch(NamedTuple):
    """
    FETCH.

    @ivar sizeMax: bytes of message set at most; negative if it came so.
    """

    topic: str
    partition: int
    offset: int
    sizeMax: int


class MultiFetch(NamedTuple):
    """MULTIFETCH."""

    fetches: list[Fetch]


class Offsets(NamedTuple):
    """
    OFFSETS.

    @ivar time: milliseconds since the epoch, or -1 (latest), or -2 (earliest).
    @ivar countMax: offsets at most; negative if it came so.
    """

    topic: str
    partition: int
    time: int
    countMax: int


Request = Produce | ProduceRuns | MultiProduce | Fetch | MultiFetch | Offsets


# -- encoding


def _frame(kind: int, *parts: bytes) -> bytes:
    size = 2 + sum(map(len, parts))
    if size > SIZE_MAX:
        raise ValueError(f"a request of {size} bytes does not fit in a frame")
    return b"".join((_INT.pack(size), _SHORT.pack(kind), *parts))


def _pack(layout: struct.Struct, *values: int) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"{', '.join(map(str, values))}: {error}") from error


def _topicPartition(topic: str, partition: int) -> bytes:
    name = topic.encode("utf-8", "surrogatepass")
    if len(name) > COUNT_MAX:
        raise ValueError(f"topic of {len(name)} bytes; {COUNT_MAX} fit in a request")
    return _SHORT.pack(len(name)) + name + _pack(_INT, partition)


def _count(things: Sequence[object]) -> bytes:
    if len(things) > COUNT_MAX:
        raise ValueError(f"{len(things)} parts; {COUNT_MAX} fit in one request")
    return _SHORT.pack(len(things))


def encodeProduce(topic: str, partition: int, messageSet: bytes) -> bytes:
    """
    A PRODUCE frame.

    @raise ValueError: a part, or the whole, does not fit; likewise below.
    """
    return _frame(
        PRODUCE, _topicPartition(topic, partition), _pack(_INT, len(messageSet)), messageSet
    )


def encodeMultiProduce(produces: Iterable[tuple[str, int, bytes]]) -> bytes:
    """A MULTIPRODUCE frame, of (topic, partition, message set)."""
    produces = list(produces)
    parts = [_count(produces)]
    for topic, partition, messageSet in produces:
        parts += (_topicPartition(topic, partition), _pack(_INT, len(messageSet)), messageSet)
    return _frame(MULTIPRODUCE, *parts)


def encodeFetch(topic: str, partition: int, offset: int, sizeMax: int) -> bytes:
    """A FETCH frame."""
    return _frame(FETCH, _topicPartition(topic, partition), _pack(_POSITION, offset, sizeMax))


def encodeMultiFetch(fetches: Iterable[tuple[str, int, int, int]]) -> bytes:
    """A MULTIFETCH frame, of (topic, partition, offset, sizeMax)."""
    fetches = list(fetches)
    parts = [_count(fetches)]
    for topic, partition, offset, sizeMax in fetches:
        parts += (_topicPartition(topic, partition), _pack(_POSITION, offset, sizeMax))
    return _frame(MULTIFETCH, *parts)


def encodeOffsets(topic: str, partition: int, time: int, countMax: int) -> bytes:
    """An OFFSETS frame."""
    return _frame(OFFSETS, _topicPartition(topic, partition), _pack(_POSITION, time, countMax))


# -- decoding


class _Fields:
    """Reads the fields of a request's body; a missing one is a L{WireError} that says where."""

    __slots__ = ("_body", "_position")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def _take(self, what: str, layout: struct.Struct) -> tuple[int, ...]:
        position = self._position
        self._position += layout.size
        if self._position > len(self._body):
            raise WireError(
                f"request ends inside its {what} (byte {position} of {len(self._body)})"
            )
        return layout.unpack_from(self._body, position)

    def short(self, what: str) -> int:
        return self._take(what, _SHORT)[0]

    def bytes(self, what: str, size: int) -> bytes:
        start, end = self._position, self._position + size
        if size < 0 or end > len(self._body):
            raise WireError(
                f"{what} of {size} bytes at byte {start}, where {len(self._body) - start} are left"
            )
        self._position = end
        return self._body[start:end]

    def topic(self) -> str:
        # Malformed UTF-8 becomes U+FFFD, as in Java, which the rules for topic names refuse.
        return self.bytes("topic", self.short("topic size")).decode("utf-8", "replace")

    def produce(self) -> Produce:
        topic = self.topic()
        (partition,) = self._take("partition", _INT)
        (size,) = self._take("message set size", _INT)
        return Produce(topic, partition, [self.bytes("message set", size)])

    def range(self) -> tuple[str, int, int, int]:
        topic = self.topic()
        partition, position, size = self._take("partition, offset and size", _RANGE)
        return topic, partition, position, size

    def count(self) -> int:
        count = self.short("count")
        if count < 0:
            raise WireError(f"count of {count}")
        return count


def decodeRequest(body: bytes) -> Request:
    """
    Decode a frame without its size field. Bytes behind a complete request are ignored, as by 0.7.2.

    @raise UnknownRequestError: the type is none of the five.
    @raise WireError: a field is missing or impossible.
    """
    fields = _Fields(body)
    kind = fields.short("request type")
    if kind == PRODUCE:
        return fields.produce()
    if kind == FETCH:
        return Fetch(*fields.range())
    if kind == MULTIFETCH:
        return MultiFetch([Fetch(*fields.range()) for _ in range(fields.count())])
    if kind == MULTIPRODUCE:
        return MultiProduce([fields.produce() for _ in range(fields.count())])
    if kind == OFFSETS:
        return Offsets(*fields.range())
    raise UnknownRequestError(f"request type {kind}; 0 to 4 are known")


class RequestDecoder(FrameDecoder):
    """Bytes in, requests out: the broker's end of a connection."""

    __slots__ = ("_runs",)

    def __init__(
        self, sizeMax: int, runs: dict[bytes, tuple[str, int, struct.Struct]] | None = None
    ) -> None:
        """
        @param sizeMax: the largest frame accepted, in bytes without the size field.
        @param runs: a table for all connections of a broker, with about a thousand entries at most.
        """
        super().__init__(sizeMax)
        self._runs = {} if runs is None else runs

    def takeRequest(self) -> Request | None:
        """
        The next request, or the PRODUCE requests that follow each other, by partition.

        @return: L{None} while it is not whole.
        @raise WireError: see L{decodeRequest} and L{FrameDecoder.take}.
        """
        if self._pieces is not None and not self._gather(self._pieces):
            return None
        runs = self._takeRuns()
        if len(runs) > 1:
            return ProduceRuns(runs)
        if runs:
            return runs[0]
        body = self.take()
        return None if body is None else decodeRequest(body)

    def _takeRuns(self) -> list[Produce]:
        """
        The hot loop: whole and regular PRODUCE requests only; L{decodeRequest} decodes all others.
        """
        buffer, position = self._buffer, self._position
        if native is not None:
            taken, position = native.takeRuns(buffer, position, self.sizeMax)
            if not taken:
                return []
            self._advance(position)
            return [
                tuple.__new__(Produce, (*(self._runs.get(name) or self._learn(name))[:2], each))
                for name, each in taken.items()
            ]
        end, sizeMax = len(buffer), self.sizeMax
        startswith, known = buffer.startswith, self._runs
        found: dict[bytes, Produce] = {}
        key, headSize, unpack = b"", 0, _RUN_HEAD.unpack_from
        sets: list[bytes] | None = None
        while True:
            if sets is None or not startswith(key, position + 4):  # of another partition
                if end - position < _RUN_HEAD.size:
                    break
                _, kind, topicSize = _RUN_HEAD.unpack_from(buffer, position)
                if kind != PRODUCE or not 0 <= topicSize <= _RUN_TOPIC_SIZE_MAX:
                    break
                key = buffer[position + 4 : position + 12 + topicSize]
                if position + 12 + topicSize > end:
                    break
                topic, partition, layout = known.get(key) or self._learn(key)
                unpack = layout.unpack_from
                headSize = 16 + topicSize  # two sizes, type, size of topic, topic, partition
                run = found.get(key)
                if run is None:
                    # Half the cost of calling the class.
                    run = found[key] = tuple.__new__(Produce, (topic, partition, []))
                sets = run[2]
            start = position + headSize
            if start > end:
                break
            frameSize, setSize = unpack(buffer, position)
            behind = position + 4 + frameSize
            if start + setSize != behind or setSize < 0 or behind > end or frameSize > sizeMax:
                break
            sets.append(buffer[start:behind])
            position = behind
        if position > self._position:
            self._advance(position)
        return [run for run in found.values() if run[2]]

    def _learn(self, key: bytes) -> tuple[str, int, struct.Struct]:
        if len(self._runs) >= _RUN_KEY_COUNT_MAX:
            self._runs.clear()
        known = (
            key[4:-4].decode("utf-8", "replace"),
            _INT.unpack(key[-4:])[0],
            struct.Struct(f">i{len(key)}xi"),
        )
        self._runs[key] = known
        return known
