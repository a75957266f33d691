"""
The records of KIP-848's groups in C{__consumer_offsets}, as Apache Kafka 4.3 writes and reads them.
A module of its own, beside the classic ones, since only these groups have them.

  ===== ============================ ============================================================
  type  key                          value
  ===== ============================ ============================================================
  3     group                        its epoch, and a hash of the metadata of its topics
  4     group                        of earlier versions; it is only deleted
  5     group, member                what the member told about itself
  6     group                        the epoch of the target assignment, and when it was made
  7     group, member                the member's part of the target assignment
  8     group, member                the member's epoch, and what it owns
  16    group, pattern               the topics that a pattern matched
  ===== ============================ ============================================================

All values have version 0. Fields that Kafka adds to it later are tagged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import NamedTuple, TypeVar

from pylogbroker.errors import FormatError

EPOCH_KEY, PARTITIONS_KEY, MEMBER_KEY, TARGET_KEY, TARGET_MEMBER_KEY, CURRENT_KEY = range(3, 9)
PATTERN_KEY = 16

_MEMBER_KEYS = (MEMBER_KEY, TARGET_MEMBER_KEY, CURRENT_KEY, PATTERN_KEY)
_KEYS = (EPOCH_KEY, PARTITIONS_KEY, TARGET_KEY, *_MEMBER_KEYS)

_VERSION = b"\0\0"
_ID_SIZE = 16
_STRING_SIZE_MAX = 0x7FFF
_VARINT_SIZE_MAX = 5
_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_NO_CLASSIC_MEMBER = b"\1\0\1\0"
"""The tag for a member that joined by the classic protocol: none."""

Partitions = Mapping[bytes, Mapping[int, int]]
"""By topic id: partitions, and the epoch since which each is the member's."""

_T = TypeVar("_T")


class ConsumerGroupKey(NamedTuple):
    """
    What a record belongs to.

    @ivar name: of the member, or the pattern; empty if the record is the group's.
    """

    keyType: int
    groupId: str
    name: str = ""


class GroupEpochValue(NamedTuple):
    """
    @ivar metadataHash: 64 bits; 0 for no topics.
    """

    epoch: int
    metadataHash: int


class MemberValue(NamedTuple):
    """What a member told about itself."""

    instanceId: str | None
    rackId: str | None
    clientId: str
    clientHost: str
    topics: tuple[str, ...]
    pattern: str
    rebalanceTimeoutMs: int
    assignor: str | None


class TargetEpochValue(NamedTuple):
    """
    @ivar madeMs: since 1970, or 0.
    """

    epoch: int
    madeMs: int


class CurrentValue(NamedTuple):
    """
    @ivar state: see L{pylogbroker.coordinator.consumergroups.consumergroup.MemberState}.
    @ivar pending: partitions that the member has to give up.
    """

    epoch: int
    previousEpoch: int
    state: int
    assigned: Partitions
    pending: Partitions


class PatternValue(NamedTuple):
    """
    @ivar version: of the topics that were looked at.
    @ivar madeMs: since 1970.
    """

    topics: tuple[str, ...]
    version: int
    madeMs: int


# -- encoding


def encodeKey(key: ConsumerGroupKey) -> bytes:
    """@raise FormatError: a name has more than 32,767 bytes."""
    parts = [_INT16.pack(key.keyType), _plainString(key.groupId)]
    if key.keyType in _MEMBER_KEYS:
        parts.append(_plainString(key.name))
    return b"".join(parts)


def encodeEpoch(value: GroupEpochValue) -> bytes:
    """A group's epoch."""
    tag = _tag(_INT64.pack(value.metadataHash)) if value.metadataHash else b"\0"
    return _VERSION + _INT32.pack(value.epoch) + tag


def encodeMember(value: MemberValue) -> bytes:
    """What a member told about itself."""
    return b"".join(
        (
            _VERSION,
            _nullableString(value.instanceId),
            _nullableString(value.rackId),
            _nullableString(value.clientId),
            _nullableString(value.clientHost),
            _varint(len(value.topics) + 1),
            *map(_nullableString, value.topics),
            _nullableString(value.pattern),
            _INT32.pack(value.rebalanceTimeoutMs),
            _nullableString(value.assignor),
            _NO_CLASSIC_MEMBER,
        )
    )


def encodeTargetEpoch(value: TargetEpochValue) -> bytes:
    """When the target assignment was made."""
    tag = _tag(_INT64.pack(value.madeMs)) if value.madeMs else b"\0"
    return _VERSION + _INT32.pack(value.epoch) + tag


def encodeTarget(partitions: Mapping[bytes, Iterable[int]]) -> bytes:
    """A member's part of the target assignment."""
    parts = [_VERSION, _varint(len(partitions) + 1)]
    for topicId, indexes in partitions.items():
        parts += (topicId, _numbers(sorted(indexes)), b"\0")
    return b"".join((*parts, b"\0"))


def encodeCurrent(value: CurrentValue) -> bytes:
    """What a member owns."""
    return b"".join(
        (
            _VERSION,
            _INT32.pack(value.epoch),
            _INT32.pack(value.previousEpoch),
            _INT8.pack(value.state),
            _partitions(value.assigned),
            _partitions(value.pending),
            b"\0",
        )
    )


def encodePattern(value: PatternValue) -> bytes:
    """The topics that a pattern matched."""
    return b"".join(
        (
            _VERSION,
            _varint(len(value.topics) + 1),
            *map(_nullableString, value.topics),
            _INT64.pack(value.version),
            _INT64.pack(value.madeMs),
            b"\0",
        )
    )


def _partitions(partitions: Partitions) -> bytes:
    parts = [_varint(len(partitions) + 1)]
    for topicId, epochs in partitions.items():
        indexes = sorted(epochs)
        parts += (topicId, _numbers(indexes), _tag(_numbers([epochs[each] for each in indexes])))
    return b"".join(parts)


def _numbers(numbers: list[int]) -> bytes:
    return _varint(len(numbers) + 1) + b"".join(map(_INT32.pack, numbers))


def _tag(data: bytes) -> bytes:
    """Tagged fields, of which there is one, with number 0."""
    return b"\1\0" + _varint(len(data)) + data


def _plainString(text: str) -> bytes:
    data = text.encode()
    if len(data) > _STRING_SIZE_MAX:
        raise FormatError(f"a string of {len(data)} bytes, more than {_STRING_SIZE_MAX}")
    return _INT16.pack(len(data)) + data


def _nullableString(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return _varint(len(data) + 1) + data


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


# -- decoding


def decodeKey(data: bytes) -> ConsumerGroupKey | None:
    """
    @return: L{None} for a key of another type.
    @raise FormatError: the key is cut, or has bytes left over.
    """
    fields = _Fields(data)
    keyType = fields.number(_INT16)
    if keyType not in _KEYS:
        return None
    groupId = fields.plainString()
    name = fields.plainString() if keyType in _MEMBER_KEYS else ""
    return fields.ended(ConsumerGroupKey(keyType, groupId, name))


def decodeEpoch(data: bytes) -> GroupEpochValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    fields = _Fields(data).versioned()
    epoch = fields.number(_INT32)
    tags = fields.tags()
    return fields.ended(GroupEpochValue(epoch, _int64Of(tags)))


def decodeMember(data: bytes) -> MemberValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    fields = _Fields(data).versioned()
    value = MemberValue(
        fields.nullableString(),
        fields.nullableString(),
        fields.nullableString() or "",
        fields.nullableString() or "",
        tuple(fields.array(lambda: fields.nullableString() or "")),
        fields.nullableString() or "",
        fields.number(_INT32),
        fields.nullableString(),
    )
    fields.tags()
    return fields.ended(value)


def decodeTargetEpoch(data: bytes) -> TargetEpochValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    fields = _Fields(data).versioned()
    epoch = fields.number(_INT32)
    tags = fields.tags()
    return fields.ended(TargetEpochValue(epoch, _int64Of(tags)))


def decodeTarget(data: bytes) -> dict[bytes, frozenset[int]]:
    """@raise FormatError: the value is cut, or of an unknown version."""
    fields = _Fields(data).versioned()

    def read() -> tuple[bytes, frozenset[int]]:
        found = fields.take(_ID_SIZE), frozenset(fields.array(lambda: fields.number(_INT32)))
        fields.tags()
        return found

    partitions = dict(fields.array(read))
    fields.tags()
    return fields.ended(partitions)


def decodeCurrent(data: bytes) -> CurrentValue:
    """
    A partition without an epoch, as earlier versions wrote it, is the member's since it has its
    own.

    @raise FormatError: the value is cut, or of an unknown version.
    """
    fields = _Fields(data).versioned()
    epoch, previousEpoch = fields.number(_INT32), fields.number(_INT32)
    state = fields.number(_INT8)

    def read() -> tuple[bytes, dict[int, int]]:
        topicId = fields.take(_ID_SIZE)
        indexes = fields.array(lambda: fields.number(_INT32))
        tagged = fields.tags().get(0)
        epochs = [epoch] * len(indexes)
        if tagged is not None:
            more = _Fields(tagged)
            epochs = more.ended(more.array(lambda: more.number(_INT32)))
        if len(epochs) != len(indexes):
            raise FormatError(f"{len(epochs)} epochs of {len(indexes)} partitions")
        return topicId, dict(zip(indexes, epochs, strict=True))

    value = CurrentValue(
        epoch, previousEpoch, state, dict(fields.array(read)), dict(fields.array(read))
    )
    fields.tags()
    return fields.ended(value)


def decodePattern(data: bytes) -> PatternValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    fields = _Fields(data).versioned()
    topics = tuple(fields.array(lambda: fields.nullableString() or ""))
    value = PatternValue(topics, fields.number(_INT64), fields.number(_INT64))
    fields.tags()
    return fields.ended(value)


def _int64Of(tags: Mapping[int, bytes]) -> int:
    fields = _Fields(tags.get(0, bytes(_INT64.size)))
    return fields.ended(fields.number(_INT64))


class _Fields:
    """The fields of a key or value, one after the other; lengths are checked before reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def versioned(self) -> _Fields:
        version = self.number(_INT16)
        if version:
            raise FormatError(f"a value of version {version}, not 0")
        return self

    def number(self, struct: Struct) -> int:
        (value,) = struct.unpack(self.take(struct.size))
        return int(value)

    def plainString(self) -> str:
        return str(self.take(self.number(_INT16)), "utf-8", "replace")

    def nullableString(self) -> str | None:
        size = self._varint() - 1
        return None if size < 0 else str(self.take(size), "utf-8", "replace")

    def array(self, read: Callable[[], _T]) -> list[_T]:
        count = self._varint() - 1
        if not 0 <= count <= len(self._data) - self._position:
            raise FormatError(f"an array of {count} entries", self._position)
        return [read() for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self._varint()):
            tag = self._varint()
            found[tag] = self.take(self._varint())
        return found

    def ended(self, value: _T) -> _T:
        if self._position != len(self._data):
            raise FormatError(
                f"{len(self._data) - self._position} bytes after the last field", self._position
            )
        return value

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise FormatError(f"a field of {size} bytes crosses the end", self._position)
        found = self._data[self._position : end]
        self._position = end
        return found

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _VARINT_SIZE_MAX, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FormatError("a number of more than five bytes", self._position)
