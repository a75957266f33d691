"""
The records of KIP-848's groups in C{__consumer_offsets}: bytes in, values out. A module of its own,
beside the classic ones, since only these groups have them.

All values have version 0. Fields that Kafka adds to it later are tagged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pylogbroker.coordinator.groupmessages import JoinProtocol
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.coordinatorrecords import (
    RECORDS,
    decodeRecord,
    encodeRecord,
    recordVersion,
)
from pylogbroker.protocol.kafka.schemas import ApiMessage

EPOCH_KEY, PARTITIONS_KEY, MEMBER_KEY, TARGET_KEY, TARGET_MEMBER_KEY, CURRENT_KEY = range(3, 9)
PATTERN_KEY = 16

_MEMBER_KEYS = (MEMBER_KEY, TARGET_MEMBER_KEY, CURRENT_KEY, PATTERN_KEY)
_GROUP_KEYS = (EPOCH_KEY, PARTITIONS_KEY, TARGET_KEY)

_VERSION = 0

Partitions = Mapping[bytes, Mapping[int, int]]
"""By topic id: partitions, and the epoch since which each is the member's."""


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


class ClassicMemberMetadata(NamedTuple):
    """Session and protocols of a member that speaks the classic protocol, as it joined."""

    sessionTimeoutMs: int
    protocols: tuple[JoinProtocol, ...]


class MemberValue(NamedTuple):
    """
    What a member told about itself.

    @ivar classic: L{None}: it speaks the protocol of KIP-848.
    """

    instanceId: str | None
    rackId: str | None
    clientId: str
    clientHost: str
    topics: tuple[str, ...]
    pattern: str
    rebalanceTimeoutMs: int
    assignor: str | None
    classic: ClassicMemberMetadata | None = None


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
    if key.keyType in _MEMBER_KEYS:
        made = RECORDS["ConsumerGroupMemberKey"](groupId=key.groupId, name=key.name)
    else:
        made = RECORDS["ConsumerGroupKey"](groupId=key.groupId)
    return encodeRecord(made, key.keyType)


def encodeEpoch(value: GroupEpochValue) -> bytes:
    """A group's epoch."""
    return _encode("Metadata", epoch=value.epoch, metadataHash=value.metadataHash)


def encodeMember(value: MemberValue) -> bytes:
    """What a member told about itself."""
    classic = None
    if value.classic is not None:
        cls = _classOf("MemberMetadata")
        classic = cls.ClassicMemberMetadata(
            sessionTimeoutMs=value.classic.sessionTimeoutMs,
            supportedProtocols=[
                cls.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in value.classic.protocols
            ],
        )
    return _encode(
        "MemberMetadata",
        instanceId=value.instanceId,
        rackId=value.rackId,
        clientId=value.clientId,
        clientHost=value.clientHost,
        subscribedTopicNames=value.topics,
        subscribedTopicRegex=value.pattern,
        rebalanceTimeoutMs=value.rebalanceTimeoutMs,
        serverAssignor=value.assignor,
        classicMemberMetadata=classic,
    )


def encodeTargetEpoch(value: TargetEpochValue) -> bytes:
    """When the target assignment was made."""
    return _encode(
        "TargetAssignmentMetadata",
        assignmentEpoch=value.epoch,
        assignmentTimestamp=value.madeMs,
    )


def encodeTarget(partitions: Mapping[bytes, Iterable[int]]) -> bytes:
    """A member's part of the target assignment."""
    cls = _classOf("TargetAssignmentMember").TopicPartition
    return _encode(
        "TargetAssignmentMember",
        topicPartitions=[
            cls(topicId=topicId, partitions=sorted(indexes))
            for topicId, indexes in partitions.items()
        ],
    )


def encodeCurrent(value: CurrentValue) -> bytes:
    """What a member owns."""
    return _encode(
        "CurrentMemberAssignment",
        memberEpoch=value.epoch,
        previousMemberEpoch=value.previousEpoch,
        state=value.state,
        assignedPartitions=_topicPartitions(value.assigned),
        partitionsPendingRevocation=_topicPartitions(value.pending),
    )


def encodePattern(value: PatternValue) -> bytes:
    """The topics that a pattern matched."""
    return _encode(
        "RegularExpression", topics=value.topics, version=value.version, timestamp=value.madeMs
    )


def _topicPartitions(partitions: Partitions) -> list[ApiMessage]:
    cls = _classOf("CurrentMemberAssignment").TopicPartitions
    return [
        cls(
            topicId=topicId,
            partitions=sorted(epochs),
            assignmentEpochs=[epochs[each] for each in sorted(epochs)],
        )
        for topicId, epochs in partitions.items()
    ]


def _encode(kind: str, **fields: Any) -> bytes:
    return encodeRecord(_classOf(kind)(**fields), _VERSION)


def _classOf(kind: str) -> Any:
    return RECORDS[f"ConsumerGroup{kind}Value"]


# -- decoding


def decodeKey(data: bytes) -> ConsumerGroupKey | None:
    """
    @return: L{None} for a key of another type.
    @raise FormatError: the key is cut, or has bytes left over.
    """
    keyType = recordVersion(data)
    if keyType in _MEMBER_KEYS:
        found = decodeRecord("ConsumerGroupMemberKey", data)
        return ConsumerGroupKey(keyType, found.groupId, found.name)
    if keyType in _GROUP_KEYS:
        return ConsumerGroupKey(keyType, decodeRecord("ConsumerGroupKey", data).groupId)
    return None


def decodeEpoch(data: bytes) -> GroupEpochValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    found = _decode("Metadata", data)
    return GroupEpochValue(found.epoch, found.metadataHash)


def decodeMember(data: bytes) -> MemberValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    found = _decode("MemberMetadata", data)
    classic, stored = None, found.classicMemberMetadata
    if stored is not None and stored.supportedProtocols:
        protocols = [JoinProtocol(each.name, each.metadata) for each in stored.supportedProtocols]
        classic = ClassicMemberMetadata(stored.sessionTimeoutMs, tuple(protocols))
    return MemberValue(
        found.instanceId,
        found.rackId,
        found.clientId,
        found.clientHost,
        tuple(found.subscribedTopicNames),
        found.subscribedTopicRegex,
        found.rebalanceTimeoutMs,
        found.serverAssignor,
        classic,
    )


def decodeTargetEpoch(data: bytes) -> TargetEpochValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    found = _decode("TargetAssignmentMetadata", data)
    return TargetEpochValue(found.assignmentEpoch, found.assignmentTimestamp)


def decodeTarget(data: bytes) -> dict[bytes, frozenset[int]]:
    """@raise FormatError: the value is cut, or of an unknown version."""
    found = _decode("TargetAssignmentMember", data)
    return {each.topicId: frozenset(each.partitions) for each in found.topicPartitions}


def decodeCurrent(data: bytes) -> CurrentValue:
    """
    A partition without an epoch, as earlier versions wrote it, is the member's since it has its
    own.

    @raise FormatError: the value is cut, or of an unknown version.
    """
    found = _decode("CurrentMemberAssignment", data)
    return CurrentValue(
        found.memberEpoch,
        found.previousMemberEpoch,
        found.state,
        _partitions(found.assignedPartitions, found.memberEpoch),
        _partitions(found.partitionsPendingRevocation, found.memberEpoch),
    )


def decodePattern(data: bytes) -> PatternValue:
    """@raise FormatError: the value is cut, or of an unknown version."""
    found = _decode("RegularExpression", data)
    return PatternValue(tuple(found.topics), found.version, found.timestamp)


def _partitions(topics: list[ApiMessage], memberEpoch: int) -> Partitions:
    partitions = {}
    for topic in topics:
        indexes, epochs = topic.partitions, topic.assignmentEpochs
        if epochs is None:
            epochs = [memberEpoch] * len(indexes)
        if len(epochs) != len(indexes):
            raise FormatError(f"{len(epochs)} epochs of {len(indexes)} partitions")
        partitions[topic.topicId] = dict(zip(indexes, epochs, strict=True))
    return partitions


def _decode(kind: str, data: bytes) -> ApiMessage:
    return decodeRecord(f"ConsumerGroup{kind}Value", data)
