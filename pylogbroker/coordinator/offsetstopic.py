"""
The records of C{__consumer_offsets} for committed offsets and classic groups: bytes in, values out.

A committed offset is written in version 4; in version 1 if it has an expiry time of its own, as
Kafka 4.3 does. A group is written in version 3. Versions 0 to 4 of both are read. Keys of other
types belong to other kinds of groups. A reader skips them, as Apache's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.protocol.kafka.coordinatorrecords import (
    RECORDS,
    decodeRecord,
    encodeRecord,
    recordVersion,
)
from pylogbroker.protocol.kafka.schemas import ZERO_UUID, ApiMessage

TOPIC = "__consumer_offsets"
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""How the topic is created, as by Kafka with its default settings."""

_OFFSET_COMMIT_KEY_TYPES = (0, 1)
_OFFSET_COMMIT_KEY_TYPE = 1
_GROUP_METADATA_KEY_TYPE = 2
_EXPIRING_COMMIT_VERSION = 1
_COMMIT_VERSION = 4
_GROUP_METADATA_VERSION = 3


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
    A committed offset of a group in a partition.

    @ivar leaderEpoch: of the last consumed record, or -1.
    @ivar metadata: the client's text.
    @ivar commitTimestampMs: when it was committed, since 1970.
    @ivar expireTimestampMs: when it expires if the client said so (OffsetCommit 2–4), or -1.
    @ivar topicId: L{ZERO_UUID} if it is not known.
    """

    offset: int
    leaderEpoch: int = -1
    metadata: str = ""
    commitTimestampMs: int = -1
    expireTimestampMs: int = -1
    topicId: bytes = ZERO_UUID


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
    made = RECORDS["OffsetCommitKey"](group=groupId, topic=topic, partition=partition)
    return encodeRecord(made, _OFFSET_COMMIT_KEY_TYPE)


def encodeGroupMetadataKey(groupId: str) -> bytes:
    """
    The key of a group.

    @raise FormatError: the name has more than 32,767 bytes.
    """
    return encodeRecord(RECORDS["GroupMetadataKey"](group=groupId), _GROUP_METADATA_KEY_TYPE)


def encodeCommittedOffset(committed: CommittedOffset) -> bytes:
    """
    The value of a committed offset.

    @raise FormatError: the metadata have more than 32,767 bytes.
    """
    made = RECORDS["OffsetCommitValue"](
        offset=committed.offset,
        leaderEpoch=committed.leaderEpoch,
        metadata=committed.metadata,
        commitTimestamp=committed.commitTimestampMs,
        expireTimestamp=committed.expireTimestampMs,
        topicId=committed.topicId,
    )
    isExpiring = committed.expireTimestampMs != -1
    return encodeRecord(made, _EXPIRING_COMMIT_VERSION if isExpiring else _COMMIT_VERSION)


def encodeStoredGroup(group: StoredGroup) -> bytes:
    """
    The value of a group.

    @raise FormatError: a name has more than 32,767 bytes.
    """
    cls: Any = RECORDS["GroupMetadataValue"]
    made = cls(
        protocolType=group.protocolType,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        currentStateTimestamp=group.currentStateTimestampMs,
        members=[
            cls.MemberMetadata(
                memberId=each.memberId,
                groupInstanceId=each.groupInstanceId,
                clientId=each.clientId,
                clientHost=each.clientHost,
                rebalanceTimeout=each.rebalanceTimeoutMs,
                sessionTimeout=each.sessionTimeoutMs,
                subscription=each.subscription,
                assignment=each.assignment,
            )
            for each in group.members
        ],
    )
    return encodeRecord(made, _GROUP_METADATA_VERSION)


# -- decoding


def decodeKey(data: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """
    @return: L{None} for a key of another type.
    @raise FormatError: the key is cut, or has bytes left over.
    """
    keyType = recordVersion(data)
    if keyType in _OFFSET_COMMIT_KEY_TYPES:
        found = decodeRecord("OffsetCommitKey", data)
        return OffsetCommitKey(found.group, found.topic, found.partition)
    if keyType == _GROUP_METADATA_KEY_TYPE:
        return GroupMetadataKey(decodeRecord("GroupMetadataKey", data).group)
    return None


def decodeCommittedOffset(data: bytes) -> CommittedOffset:
    """
    @raise FormatError: the value is cut, or of an unknown version.
    """
    found = decodeRecord("OffsetCommitValue", data)
    return CommittedOffset(
        found.offset,
        found.leaderEpoch,
        found.metadata,
        found.commitTimestamp,
        found.expireTimestamp,
        found.topicId,
    )


def decodeStoredGroup(data: bytes) -> StoredGroup:
    """
    @raise FormatError: the value is cut, or of an unknown version.
    """
    found = decodeRecord("GroupMetadataValue", data)
    return StoredGroup(
        found.protocolType,
        found.generation,
        found.protocol,
        found.leader,
        found.currentStateTimestamp,
        tuple(_storedMember(each) for each in found.members),
    )


def _storedMember(found: ApiMessage) -> StoredMember:
    hasTimeout = found.rebalanceTimeout != -1
    return StoredMember(
        found.memberId,
        found.groupInstanceId,
        found.clientId,
        found.clientHost,
        found.rebalanceTimeout if hasTimeout else found.sessionTimeout,
        found.sessionTimeout,
        found.subscription,
        found.assignment,
    )
