"""
Requests to the group coordinator and its answers, with Kafka's names for their fields.

What the coordinator reads is only the fields: a request as C{protocol.kafka} decodes it serves as
well as one of these classes, and the broker encodes the fields of an answer as they are. Times are
milliseconds, generations and partitions are numbers, error codes are those of
L{pylogbroker.protocol.kafka.errorcodes.ErrorCode}. Fields that a version lacks have Kafka's
defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pylogbroker.protocol.kafka.schemas import ZERO_UUID

UNKNOWN_MEMBER_ID = ""
"""Of a member that has not been given an id yet."""


class ClientContext(NamedTuple):
    """
    Who sends a request, and in which version.

    @ivar clientId: empty if the client has none.
    @ivar clientHost: as Kafka shows it: a slash and the address.
    @ivar sees: whether the client may know of a topic; L{None}: of every one.
    """

    apiVersion: int
    clientId: str = ""
    clientHost: str = ""
    sees: Callable[[str], bool] | None = None


# -- membership


class JoinProtocol(NamedTuple):
    """A way to assign partitions that a member knows, and what it tells the leader about itself."""

    name: str
    metadata: bytes


def protocolsSize(protocols: Sequence[JoinProtocol]) -> int:
    """Bytes of names and metadata."""
    return sum(len(each.name) + len(each.metadata) for each in protocols)


class JoinGroup(NamedTuple):
    """Become, or stay, a member. The answer waits until the next generation begins."""

    groupId: str
    sessionTimeoutMs: int
    rebalanceTimeoutMs: int = -1
    memberId: str = UNKNOWN_MEMBER_ID
    groupInstanceId: str | None = None
    protocolType: str = "consumer"
    protocols: Sequence[JoinProtocol] = ()
    reason: str | None = None


class JoinedMember(NamedTuple):
    """A member, as the leader sees it."""

    memberId: str
    groupInstanceId: str | None
    metadata: bytes


class JoinGroupAnswer(NamedTuple):
    """
    A generation has begun.

    @ivar members: for the leader; none for the others.
    @ivar skipAssignment: the leader need not assign anything.
    """

    errorCode: int = 0
    generationId: int = -1
    protocolType: str | None = None
    protocolName: str | None = None
    leader: str = ""
    skipAssignment: bool = False
    memberId: str = UNKNOWN_MEMBER_ID
    members: Sequence[JoinedMember] = ()
    throttleTimeMs: int = 0


class MemberAssignment(NamedTuple):
    """What the leader assigns to a member."""

    memberId: str
    assignment: bytes


class SyncGroup(NamedTuple):
    """Ask for one's assignment; the leader brings those of all members."""

    groupId: str
    generationId: int
    memberId: str
    groupInstanceId: str | None = None
    protocolType: str | None = None
    protocolName: str | None = None
    assignments: Sequence[MemberAssignment] = ()


class SyncGroupAnswer(NamedTuple):
    """A member's assignment."""

    errorCode: int = 0
    protocolType: str | None = None
    protocolName: str | None = None
    assignment: bytes = b""
    throttleTimeMs: int = 0


class Heartbeat(NamedTuple):
    """A member lives."""

    groupId: str
    generationId: int
    memberId: str
    groupInstanceId: str | None = None


class HeartbeatAnswer(NamedTuple):
    """Whether the member shall go on, or join again."""

    errorCode: int = 0
    throttleTimeMs: int = 0


class LeavingMember(NamedTuple):
    """A member that leaves; a static one may be named by its instance alone."""

    memberId: str
    groupInstanceId: str | None = None
    reason: str | None = None


class LeaveGroup(NamedTuple):
    """
    Members leave.

    @ivar memberId: up to version 2.
    @ivar members: from version 3.
    """

    groupId: str
    memberId: str = UNKNOWN_MEMBER_ID
    members: Sequence[LeavingMember] = ()


class LeftMember(NamedTuple):
    """What became of a member that leaves."""

    memberId: str
    groupInstanceId: str | None = None
    errorCode: int = 0


class LeaveGroupAnswer(NamedTuple):
    """
    Members have left.

    @ivar members: none before version 3, where C{errorCode} is that of the only member.
    """

    errorCode: int
    members: list[LeftMember]
    throttleTimeMs: int = 0


# -- membership of KIP-848


class ConsumerPartitions(NamedTuple):
    """Partitions of a topic."""

    topicId: bytes
    partitions: Sequence[int]


class ConsumerGroupHeartbeat(NamedTuple):
    """
    A member joins, lives or leaves. What did not change since its last request is null, or -1.

    @ivar memberEpoch: 0 to join, -1 to leave, -2 if a static member goes and may come back.
    @ivar topicPartitions: what the member owns.
    """

    groupId: str
    memberId: str
    memberEpoch: int
    instanceId: str | None = None
    rackId: str | None = None
    rebalanceTimeoutMs: int = -1
    subscribedTopicNames: Sequence[str] | None = None
    subscribedTopicRegex: str | None = None
    serverAssignor: str | None = None
    topicPartitions: Sequence[ConsumerPartitions] | None = None


class ConsumerAssignment(NamedTuple):
    """What a member may own."""

    topicPartitions: Sequence[ConsumerPartitions]


class ConsumerGroupHeartbeatAnswer(NamedTuple):
    """
    The member's epoch, and what it may own if that has changed.
    """

    errorCode: int = 0
    errorMessage: str | None = None
    memberId: str | None = None
    memberEpoch: int = 0
    heartbeatIntervalMs: int = 0
    assignment: ConsumerAssignment | None = None
    throttleTimeMs: int = 0


# -- committed offsets


class CommitPartition(NamedTuple):
    """An offset to commit."""

    partitionIndex: int
    committedOffset: int
    committedLeaderEpoch: int = -1
    committedMetadata: str | None = ""


class CommitTopic(NamedTuple):
    """Offsets of a topic. The broker fills in whichever of name and id the version lacks."""

    name: str
    partitions: Sequence[CommitPartition]
    topicId: bytes = ZERO_UUID


class OffsetCommit(NamedTuple):
    """Commit offsets; generation -1 without a member id if no group is managed."""

    groupId: str
    topics: Sequence[CommitTopic]
    generationIdOrMemberEpoch: int = -1
    memberId: str = UNKNOWN_MEMBER_ID
    groupInstanceId: str | None = None
    retentionTimeMs: int = -1


class TxnOffsetCommit(NamedTuple):
    """
    Commit offsets in a producer's transaction.

    @ivar producerId: of the producer, whose transaction the broker has checked.
    """

    groupId: str
    topics: Sequence[CommitTopic]
    producerId: int
    producerEpoch: int
    generationIdOrMemberEpoch: int = -1
    memberId: str = UNKNOWN_MEMBER_ID
    groupInstanceId: str | None = None
    retentionTimeMs: int = -1


class PartitionResult(NamedTuple):
    """What became of a partition in a request."""

    partitionIndex: int
    errorCode: int = 0


class TopicResults(NamedTuple):
    """What became of the partitions of a topic."""

    name: str
    partitions: Sequence[PartitionResult]
    topicId: bytes = ZERO_UUID


class OffsetCommitAnswer(NamedTuple):
    """What became of each offset."""

    topics: Sequence[TopicResults]
    throttleTimeMs: int = 0


class OffsetFetchTopic(NamedTuple):
    """Partitions of a topic whose offsets are asked for."""

    name: str
    partitionIndexes: Sequence[int]
    topicId: bytes = ZERO_UUID


class OffsetFetchGroup(NamedTuple):
    """
    Ask for a group's offsets.

    @ivar topics: L{None} for all that the group has.
    @ivar memberId: from version 9, of a member of a group of KIP-848, with its epoch.
    """

    groupId: str
    topics: Sequence[OffsetFetchTopic] | None = None
    memberId: str | None = None
    memberEpoch: int = -1


class FetchedPartition(NamedTuple):
    """A committed offset, or -1."""

    partitionIndex: int
    committedOffset: int = -1
    committedLeaderEpoch: int = -1
    metadata: str | None = ""
    errorCode: int = 0


class FetchedTopic(NamedTuple):
    """Committed offsets of a topic."""

    name: str
    partitions: Sequence[FetchedPartition]
    topicId: bytes = ZERO_UUID


class OffsetFetchGroupAnswer(NamedTuple):
    """A group's offsets."""

    groupId: str
    topics: Sequence[FetchedTopic] = ()
    errorCode: int = 0


class DeletePartition(NamedTuple):
    """A partition whose offset shall be deleted."""

    partitionIndex: int


class DeleteTopic(NamedTuple):
    """Partitions of a topic whose offsets shall be deleted."""

    name: str
    partitions: Sequence[DeletePartition]


class OffsetDelete(NamedTuple):
    """Delete a group's offsets."""

    groupId: str
    topics: Sequence[DeleteTopic]


class OffsetDeleteAnswer(NamedTuple):
    """What became of each offset."""

    errorCode: int = 0
    topics: Sequence[TopicResults] = ()
    throttleTimeMs: int = 0


# -- administration


class DescribedMember(NamedTuple):
    """A member, for people."""

    memberId: str
    groupInstanceId: str | None
    clientId: str
    clientHost: str
    memberMetadata: bytes
    memberAssignment: bytes


class DescribedGroup(NamedTuple):
    """A group, for people. The broker fills in the authorized operations."""

    groupId: str
    errorCode: int = 0
    errorMessage: str | None = None
    groupState: str = ""
    protocolType: str = ""
    protocolData: str = ""
    members: Sequence[DescribedMember] = ()
    authorizedOperations: int = -(2**31)


class NamedPartitions(NamedTuple):
    """Partitions of a topic, for people."""

    topicId: bytes
    topicName: str
    partitions: Sequence[int]


class DescribedAssignment(NamedTuple):
    """Partitions, for people."""

    topicPartitions: Sequence[NamedPartitions]


class DescribedConsumer(NamedTuple):
    """A member of a group of KIP-848, for people."""

    memberId: str
    instanceId: str | None
    rackId: str | None
    memberEpoch: int
    clientId: str
    clientHost: str
    subscribedTopicNames: Sequence[str]
    subscribedTopicRegex: str | None
    assignment: DescribedAssignment
    targetAssignment: DescribedAssignment
    memberType: int = 1


class DescribedConsumerGroup(NamedTuple):
    """A group of KIP-848, for people. The broker fills in the authorized operations."""

    groupId: str
    errorCode: int = 0
    errorMessage: str | None = None
    groupState: str = ""
    groupEpoch: int = 0
    assignmentEpoch: int = 0
    assignorName: str = ""
    members: Sequence[DescribedConsumer] = ()
    authorizedOperations: int = -(2**31)


class ListedGroup(NamedTuple):
    """A group in a list."""

    groupId: str
    protocolType: str
    groupState: str
    groupType: str


class ListGroupsAnswer(NamedTuple):
    """Groups."""

    errorCode: int = 0
    groups: Sequence[ListedGroup] = ()
    throttleTimeMs: int = 0


class DeletedGroup(NamedTuple):
    """What became of a group that shall be deleted."""

    groupId: str
    errorCode: int = 0
