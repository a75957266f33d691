"""
A member of a consumer group of today's Kafka, in the classic protocol, without threads: whoever
reads also calls L{KafkaGroupMember.heartbeat} in time. A module of its own, since reading needs no
group.

When members come and go, the coordinator says so in answer to a heartbeat. The member then commits
what has been handled, and joins again; until it has, it has no partitions (the eager protocol). If
it leads the group, it assigns with C{range}, which all clients know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pylogbroker.cluster.kafka.assignors import assignorOf
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import (
    PROTOCOL_TYPE,
    byTopic,
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    encodeSubscription,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.types import MemberSubscription, TopicPartition

HEARTBEAT_MS = 3_000
SESSION_MS = 45_000
REBALANCE_MS = 60_000

_ASSIGNOR = assignorOf("range")
_REJOIN = frozenset(
    (
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    )
)
_NAMED_COMMIT, _SINGLE_FETCH = 9, 7
"""The last versions of OffsetCommit that names topics, and of OffsetFetch with one group."""


class KafkaGroupMember:
    """
    One member.

    @ivar memberId: by the coordinator; empty before the first join.
    @ivar partitions: what it has been given.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        group: str,
        topics: Sequence[str],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = sorted(topics)
        self._clock = clock
        self._generation = -1
        self._heartbeatAt = 0.0
        self.memberId = ""
        self.partitions: list[TopicPartition] = []

    # -- joining

    def join(self) -> list[TopicPartition]:
        """
        Join the group, or join it again, and wait until all members have.

        @return: the partitions of this member.
        @raise ResponseError: the group does not take it.
        """
        self.partitions = []
        self.partitions = self._cluster.attempt(self._join)
        self._heartbeatAt = self._clock()
        return self.partitions

    def _join(self) -> list[TopicPartition]:
        while True:
            try:
                return self._sync(self._joined())
            except ResponseError as error:
                if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    self.memberId = ""
                elif error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                    raise

    def _joined(self) -> Any:
        cls = messages.JoinGroupRequest
        protocol = cls.JoinGroupRequestProtocol(
            name=_ASSIGNOR.name,
            metadata=encodeSubscription(MemberSubscription("", self._topics)),
        )
        while True:
            body = cls(
                groupId=self._group,
                sessionTimeoutMs=SESSION_MS,
                rebalanceTimeoutMs=REBALANCE_MS,
                memberId=self.memberId,
                protocolType=PROTOCOL_TYPE,
                protocols=[protocol],
            )
            found = self._ask(ApiKey.JOIN_GROUP, body, REBALANCE_MS)
            if found.errorCode == ErrorCode.MEMBER_ID_REQUIRED and not self.memberId:
                self.memberId = found.memberId
                continue
            checkCode(found.errorCode, f"group {self._group}")
            self.memberId, self._generation = found.memberId, found.generationId
            return found

    def _sync(self, joined: Any) -> list[TopicPartition]:
        cls = messages.SyncGroupRequest
        assignments = []
        if joined.leader == self.memberId:
            assignments = [
                cls.SyncGroupRequestAssignment(
                    memberId=member, assignment=encodeAssignment(partitions)
                )
                for member, partitions in self._assign(joined.members).items()
            ]
        body = cls(
            groupId=self._group,
            generationId=self._generation,
            memberId=self.memberId,
            protocolType=PROTOCOL_TYPE,
            protocolName=_ASSIGNOR.name,
            assignments=assignments,
        )
        found = self._ask(ApiKey.SYNC_GROUP, body, REBALANCE_MS)
        checkCode(found.errorCode, f"group {self._group}")
        return decodeAssignment(found.assignment)

    def _assign(self, members: Sequence[Any]) -> dict[str, list[TopicPartition]]:
        subscriptions = [decodeSubscription(each.metadata, each.memberId) for each in members]
        topics = sorted({topic for each in subscriptions for topic in each.topics})
        counts = {
            topic.name: len(topic.partitions)
            for topic in self._cluster.metadata(topics).topics
            if not topic.errorCode
        }
        return _ASSIGNOR.assign(counts, subscriptions)

    # -- while it reads

    def heartbeat(self) -> bool:
        """
        Tell the coordinator that the member lives, if it is time.

        @return: whether the member must join again.
        @raise ResponseError: the group does not take it any more.
        """
        if (self._clock() - self._heartbeatAt) * 1000 < HEARTBEAT_MS:
            return False
        body = messages.HeartbeatRequest(
            groupId=self._group, generationId=self._generation, memberId=self.memberId
        )
        found = self._cluster.attempt(lambda: self._ask(ApiKey.HEARTBEAT, body))
        self._heartbeatAt = self._clock()
        if found.errorCode in _REJOIN:
            return True
        checkCode(found.errorCode, f"group {self._group}")
        return False

    def committed(self) -> dict[TopicPartition, int]:
        """The committed offsets of the member's partitions; without those that have none."""
        cls = messages.OffsetFetchRequest
        topics = [
            cls.OffsetFetchRequestTopic(name=name, partitionIndexes=indexes)
            for name, indexes in byTopic(self.partitions).items()
        ]
        body = cls(groupId=self._group, topics=topics)

        def ask() -> Any:
            found = self._ask(ApiKey.OFFSET_FETCH, body, versionMax=_SINGLE_FETCH)
            checkCode(found.errorCode, f"group {self._group}")
            return found

        return {
            TopicPartition(topic.name, part.partitionIndex): part.committedOffset
            for topic in self._cluster.attempt(ask).topics
            for part in topic.partitions
            if part.committedOffset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """
        Commit the next offsets of partitions of this member.

        @return: whether they are committed; if not, others have the partitions now.
        @raise ResponseError: they are refused for another reason.
        """
        if not offsets:
            return True
        cls = messages.OffsetCommitRequest
        topics = [
            cls.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    cls.OffsetCommitRequestPartition(
                        partitionIndex=index,
                        committedOffset=offsets[TopicPartition(name, index)],
                        committedMetadata="",
                    )
                    for index in indexes
                ],
            )
            for name, indexes in byTopic(offsets).items()
        ]
        body = cls(
            groupId=self._group,
            generationIdOrMemberEpoch=self._generation,
            memberId=self.memberId,
            topics=topics,
        )

        def ask() -> bool:
            found = self._ask(ApiKey.OFFSET_COMMIT, body, versionMax=_NAMED_COMMIT)
            for topic in found.topics:
                for part in topic.partitions:
                    if part.errorCode in _REJOIN:
                        return False
                    checkCode(part.errorCode, f"{topic.name}-{part.partitionIndex}")
            return True

        return self._cluster.attempt(ask)

    def leave(self) -> None:
        """Leave the group, so that others need not wait for the end of the session."""
        if self.memberId:
            cls = messages.LeaveGroupRequest
            body = cls(groupId=self._group, memberId=self.memberId)
            self._ask(ApiKey.LEAVE_GROUP, body, versionMax=2)
            self.memberId, self.partitions = "", []

    def _ask(self, key: ApiKey, body: Any, waitMs: float = 0, **more: Any) -> Any:
        return self._cluster.coordinator(self._group).request(key, body, waitMs, **more)
