"""
The records of C{__consumer_offsets}, as Apache Kafka writes and reads them: bytes in, values out.

A key begins with its type as two bytes; a value begins with its version. A record with a key and no
value (a I{tombstone}) deletes what the key names.

  ======== ===================== ============================== ==================================
  type     key                   value                          versions read, version written
  ======== ===================== ============================== ==================================
  0, 1     group, topic,         a committed offset             0–4, 4; 1 if it has an expiry time
           partition                                            of its own, as Kafka 4.3 does
  2        group                 members and their assignments  0–4, 3
  ======== ===================== ============================== ==================================

Keys of other types belong to other kinds of groups. A reader skips them, as Apache's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple, TypeVar

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.errors import FormatError

TOPIC = "__consumer_offsets"
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""How the topic is created, as by Kafka with its default settings."""

ZERO_ID = bytes(16)
"""Stands for an absent topic id."""

_OFFSET_COMMIT_KEY_TYPES = (0, 1)
_GROUP_METADATA_KEY_TYPE = 2
_EXPIRING_COMMIT_VERSION = 1
_COMMIT_VERSION = 4
_GROUP_METADATA_VERSION = 3
_VERSION_MAX = 4
"""Of both kinds of values; the first version with tagged fields, too."""

_TOPIC_ID_TAG = 0
_STRING_SIZE_MAX = 0x7FFF
_VARINT_SIZE_MAX = 5
_MEMBER_SIZE_MIN = 6
"""Bytes of a member at the very least, in any version: bounds a count before anything is read."""

_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_T = TypeVar("_T")


class OffsetCommitKey(NamedTuple):
    """What a committed offset belongs to."""

    groupId: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """The group whose members a record holds."""

    groupId: str


class CommittedOffset(NamedTuple):
    """
    The position of a group in a partition.

    @ivar leaderEpoch: of the last consumed record, or -1.
    @ivar metadata: the client's text.
    @ivar commitTimestampMs: when it was committed, since 1970.
    @ivar expireTimestampMs: when it expires if the client said so (OffsetCommit 2–4), or -1.
    @ivar topicId: L{ZERO_ID} if it is not known.
    """

    offset: int
    leaderEpoch: int = -1
    metadata: str = ""
    commitTimestampMs: int = -1
    expireTimestampMs: int = -1
    topicId: bytes = ZERO_ID


class StoredMember(NamedTuple):
    """A member of a stable generation."""

    memberId: str
    groupInstanceId: str | None
    clientId: str
    clientHost: str
    rebalanceTimeoutMs: int
    sessionTimeoutMs: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """
    A generation of a group.

    @ivar protocolType: empty for a group that has never had a member.
    @ivar currentStateTimestampMs: when the group got into its state, since 1970, or -1.
    @ivar members: none for an empty group.
    """

    protocolType: str
    generation: int
    protocol: str | None
    leader: str | None
    currentStateTimestampMs: int
    members: Sequence[StoredMember] = ()


def partitionFor(groupId: str, partitionCount: int) -> int:
    """The partition of C{__consumer_offsets} that holds a group: by Java's hash of its name."""
    return defaultPartitioner(groupId, partitionCount)


# -- encoding


def encodeOffsetCommitKey(groupId: str, topic: str, partition: int) -> bytes:
    """
    The key of a committed offset.

    @raise FormatError: a name has more than 32,767 bytes.
    """
    return b"\0\1" + _string(groupId) + _string(topic) + _INT32.pack(partition)


def encodeGroupMetadataKey(groupId: str) -> bytes:
    """
    The key of a group.

    @raise FormatError: the name has more than 32,767 bytes.
    """
    return b"\0\2" + _string(groupId)


def encodeCommittedOffset(committed: CommittedOffset) -> bytes:
    """
    The value of a committed offset.

    @raise FormatError: the metadata have more than 32,767 bytes, where the version limits them.
    """
    if committed.expireTimestampMs != -1:
        return b"".join(
            (
                _INT16.pack(_EXPIRING_COMMIT_VERSION),
                _INT64.pack(committed.offset),
                _string(committed.metadata),
                _INT64.pack(committed.commitTimestampMs),
                _INT64.pack(committed.expireTimestampMs),
            )
        )
    metadata = committed.metadata.encode()
    tags = b"\0"
    if committed.topicId != ZERO_ID:
        tags = bytes((1, _TOPIC_ID_TAG, 16)) + committed.topicId
    return b"".join(
        (
            _INT16.pack(_COMMIT_VERSION),
            _INT64.pack(committed.offset),
            _INT32.pack(committed.leaderEpoch),
            _varint(len(metadata) + 1),
            metadata,
            _INT64.pack(committed.commitTimestampMs),
            tags,
        )
    )


def encodeStoredGroup(group: StoredGroup) -> bytes:
    """
    The value of a group.

    @raise FormatError: a name has more than 32,767 bytes.
    """
    parts = [
        _INT16.pack(_GROUP_METADATA_VERSION),
        _string(group.protocolType),
        _INT32.pack(group.generation),
        _nullableString(group.protocol),
        _nullableString(group.leader),
        _INT64.pack(group.currentStateTimestampMs),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.memberId),
            _nullableString(member.groupInstanceId),
            _string(member.clientId),
            _string(member.clientHost),
            _INT32.pack(member.rebalanceTimeoutMs),
            _INT32.pack(member.sessionTimeoutMs),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _STRING_SIZE_MAX:
        raise FormatError(f"a string of {len(data)} bytes, more than {_STRING_SIZE_MAX}")
    return _INT16.pack(len(data)) + data


def _nullableString(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


# -- decoding


def decodeKey(data: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """
    @return: L{None} for a key of another type.
    @raise FormatError: the key is cut, or has bytes left over.
    """
    fields = _Fields(data)
    keyType = fields.int16()
    if keyType in _OFFSET_COMMIT_KEY_TYPES:
        return fields.ended(OffsetCommitKey(fields.string(), fields.string(), fields.int32()))
    if keyType == _GROUP_METADATA_KEY_TYPE:
        return fields.ended(GroupMetadataKey(fields.string()))
    return None


def decodeCommittedOffset(data: bytes) -> CommittedOffset:
    """
    @raise FormatError: the value is cut, or of an unknown version.
    """
    fields = _Fields(data)
    version = fields.version()
    offset = fields.int64()
    leaderEpoch = fields.int32() if version >= 3 else -1
    metadata = fields.string()
    commitTimestampMs = fields.int64()
    expireTimestampMs = fields.int64() if version == _EXPIRING_COMMIT_VERSION else -1
    topicId = fields.tags().get(_TOPIC_ID_TAG, ZERO_ID)
    if len(topicId) != len(ZERO_ID):
        raise FormatError(f"a topic id of {len(topicId)} bytes")
    return fields.ended(
        CommittedOffset(
            offset,
            leaderEpoch,
            metadata,
            commitTimestampMs,
            expireTimestampMs,
            topicId,
        )
    )


def decodeStoredGroup(data: bytes) -> StoredGroup:
    """
    @raise FormatError: the value is cut, or of an unknown version.
    """
    fields = _Fields(data)
    version = fields.version()
    protocolType = fields.string()
    generation = fields.int32()
    protocol = fields.nullableString()
    leader = fields.nullableString()
    currentStateTimestampMs = fields.int64() if version >= 2 else -1
    members = fields.array(lambda: _member(fields, version))
    fields.tags()
    return fields.ended(
        StoredGroup(protocolType, generation, protocol, leader, currentStateTimestampMs, members)
    )


def _member(fields: _Fields, version: int) -> StoredMember:
    memberId = fields.string()
    groupInstanceId = fields.nullableString() if version >= 3 else None
    clientId = fields.string()
    clientHost = fields.string()
    rebalanceTimeoutMs = fields.int32() if version >= 1 else -1
    sessionTimeoutMs = fields.int32()
    member = StoredMember(
        memberId,
        groupInstanceId,
        clientId,
        clientHost,
        sessionTimeoutMs if rebalanceTimeoutMs == -1 else rebalanceTimeoutMs,
        sessionTimeoutMs,
        fields.data(),
        fields.data(),
    )
    fields.tags()
    return member


class _Fields:
    """The fields of a key or value, one after the other; lengths are checked before reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._isFlexible = False

    def version(self) -> int:
        version = self.int16()
        if not 0 <= version <= _VERSION_MAX:
            raise FormatError(f"a value of version {version}, not 0 to {_VERSION_MAX}")
        self._isFlexible = version == _VERSION_MAX
        return version

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def nullableString(self) -> str | None:
        size = self._varint() - 1 if self._isFlexible else self.int16()
        return None if size == -1 else str(self._take(size), "utf-8", "replace")

    def string(self) -> str:
        text = self.nullableString()
        if text is None:
            raise FormatError("a null string", self._position)
        return text

    def data(self) -> bytes:
        return self._take(self._varint() - 1 if self._isFlexible else self.int32())

    def array(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        count = self._varint() - 1 if self._isFlexible else self.int32()
        if not 0 <= count <= (len(self._data) - self._position) // _MEMBER_SIZE_MIN:
            raise FormatError(f"an array of {count} entries", self._position)
        return tuple(read() for _ in range(count))

    def tags(self) -> dict[int, bytes]:
        """Tagged fields; none in versions that have no tags."""
        if not self._isFlexible:
            return {}
        found = {}
        for _ in range(self._varint()):
            tag = self._varint()
            found[tag] = self._take(self._varint())
        return found

    def ended(self, value: _T) -> _T:
        if self._position != len(self._data):
            raise FormatError(
                f"{len(self._data) - self._position} bytes after the last field", self._position
            )
        return value

    def _number(self, struct: Struct) -> int:
        (value,) = struct.unpack(self._take(struct.size))
        return int(value)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _VARINT_SIZE_MAX, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FormatError("a number of more than five bytes", self._position)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise FormatError(f"a field of {size} bytes crosses the end", self._position)
        found = self._data[self._position : end]
        self._position = end
        return found
