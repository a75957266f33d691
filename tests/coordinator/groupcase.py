"""
A coordinator of groups with a clock and a log that the test moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.coordinator.effects import Appended, Record, TransactionalProducer
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    Heartbeat,
    JoinGroup,
    JoinGroupAnswer,
    JoinProtocol,
    LeaveGroup,
    LeaveGroupAnswer,
    LeavingMember,
    MemberAssignment,
    OffsetCommit,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
    OffsetFetchTopic,
    SyncGroup,
    SyncGroupAnswer,
)
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
START_MS = 1_700_000_000_000


class Log:
    """C{__consumer_offsets} in memory. Appends are done at once, or when the test says so."""

    def __init__(self) -> None:
        self.isHeld = False
        self.error = ErrorCode.NONE
        self.waiting: list[
            tuple[int, Sequence[Record], Appended, TransactionalProducer | None]
        ] = []
        self.records: list[tuple[int, Record]] = []
        self.producers: list[TransactionalProducer | None] = []  # of the records

    def append(
        self,
        partition: int,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        self.waiting.append((partition, records, done, producer))
        if not self.isHeld:
            self.flush()

    def flush(self, error: ErrorCode | None = None) -> None:
        """Do the appends that wait, or fail them."""
        error = self.error if error is None else error
        waiting, self.waiting = self.waiting, []
        for partition, records, done, producer in waiting:
            if not error:
                self.producers += [producer for _ in records]
                self.records += [(partition, record) for record in records]
            done(error)


def subscription(*topics: str) -> bytes:
    """A consumer's metadata of version 0."""
    parts = [b"\0\0", len(topics).to_bytes(4, "big")]
    for topic in topics:
        parts += [len(topic).to_bytes(2, "big"), topic.encode()]
    return b"".join(parts) + b"\xff\xff\xff\xff"


RANGE = (JoinProtocol("range", subscription("t")),)


class GroupCase(SynchronousTestCase):
    """Requests to a coordinator. What waits for its answer is an empty list until it comes."""

    settings = GroupSettings(initialRebalanceDelayMs=0)

    def setUp(self) -> None:
        self.nowMs = START_MS
        self.log = Log()
        self.image = MetadataImage()
        self.coordinator = self.make()

    def make(self, settings: GroupSettings | None = None) -> GroupCoordinator:
        """A coordinator that serves all partitions."""
        made = GroupCoordinator(
            settings or self.settings,
            self.log.append,
            lambda: self.nowMs,
            Random(1),
            lambda: self.image,
        )
        for partition in range((settings or self.settings).partitionCount):
            made.beginLoading(partition)
            made.loaded(partition)
        return made

    def reload(self) -> None:
        """Another coordinator reads the log."""
        self.coordinator = GroupCoordinator(
            self.settings,
            self.log.append,
            lambda: self.nowMs,
            Random(2),
            lambda: self.image,
        )
        for partition in range(self.settings.partitionCount):
            self.coordinator.beginLoading(partition)
        for (partition, (key, value)), producer in zip(
            self.log.records, self.log.producers, strict=True
        ):
            producerId = -1 if producer is None else producer.producerId
            self.assertTrue(self.coordinator.replay(key, value, partition, producerId))
        for partition in range(self.settings.partitionCount):
            self.coordinator.loaded(partition)

    def compact(self) -> None:
        """Only the last record of each key stays in the log, and no tombstone."""
        last: dict[tuple[int, bytes], bytes | None] = {}
        for partition, (key, value) in self.log.records:
            last.pop((partition, key), None)
            last[partition, key] = value
        self.log.records = [
            (partition, (key, value))
            for (partition, key), value in last.items()
            if value is not None
        ]
        self.log.producers = [None] * len(self.log.records)

    def advance(self, ms: int) -> None:
        """Time goes by, deadline by deadline."""
        endMs = self.nowMs + ms
        while (dueMs := self.coordinator.nextDeadlineMs()) is not None and dueMs <= endMs:
            self.nowMs = max(self.nowMs, dueMs)
            self.coordinator.advance()
        self.nowMs = endMs

    # -- requests

    def join(self, memberId: str = "", version: int = 3, **fields: Any) -> list[JoinGroupAnswer]:
        """JoinGroup; below version 4, no id is required first."""
        answers: list[JoinGroupAnswer] = []
        request = JoinGroup(
            **{
                "groupId": GROUP,
                "sessionTimeoutMs": SESSION_MS,
                "rebalanceTimeoutMs": REBALANCE_MS,
                "memberId": memberId,
                "protocols": RANGE,
                **fields,
            }
        )
        self.coordinator.joinGroup(
            ClientContext(version, "client", "/host"), request, answers.append
        )
        return answers

    def sync(
        self, joined: JoinGroupAnswer, version: int = 5, **fields: Any
    ) -> list[SyncGroupAnswer]:
        """SyncGroup, with the member's id as the assignment of each member if it leads."""
        answers: list[SyncGroupAnswer] = []
        request = SyncGroup(
            **{
                "groupId": GROUP,
                "generationId": joined.generationId,
                "memberId": joined.memberId,
                "protocolType": joined.protocolType,
                "protocolName": joined.protocolName,
                "assignments": [
                    MemberAssignment(each.memberId, each.memberId.encode())
                    for each in joined.members
                ],
                **fields,
            }
        )
        self.coordinator.syncGroup(ClientContext(version), request, answers.append)
        return answers

    def heartbeat(self, joined: JoinGroupAnswer, **fields: Any) -> int:
        """Heartbeat; the error code."""
        request = Heartbeat(GROUP, joined.generationId, joined.memberId)
        return self.coordinator.heartbeat(request._replace(**fields)).errorCode

    def leave(
        self, *members: LeavingMember, version: int = 5, **fields: Any
    ) -> list[LeaveGroupAnswer]:
        """LeaveGroup."""
        answers: list[LeaveGroupAnswer] = []
        request = LeaveGroup(**{"groupId": GROUP, "members": members, **fields})
        self.coordinator.leaveGroup(ClientContext(version), request, answers.append)
        return answers

    def commit(
        self,
        offset: int,
        joined: JoinGroupAnswer | None = None,
        version: int = 9,
        topic: str = "t",
        partition: int = 0,
        metadata: str | None = "",
        topicId: bytes = bytes(16),
        **fields: Any,
    ) -> list[int]:
        """OffsetCommit of one partition; its error code."""
        answers: list[int] = []
        offsets = [CommitPartition(partition, offset, 3, metadata)]
        request = OffsetCommit(
            **{
                "groupId": GROUP,
                "topics": [CommitTopic(topic, offsets, topicId)],
                "generationIdOrMemberEpoch": -1 if joined is None else joined.generationId,
                "memberId": "" if joined is None else joined.memberId,
                **fields,
            }
        )
        self.coordinator.offsetCommit(
            ClientContext(version),
            request,
            lambda answer: answers.append(answer.topics[0].partitions[0].errorCode),
        )
        return answers

    def fetch(
        self,
        topics: Sequence[OffsetFetchTopic] | None = None,
        requireStable: bool = False,
        groupId: str = GROUP,
        version: int = 8,
    ) -> list[OffsetFetchGroupAnswer]:
        """OffsetFetch of one group."""
        answers: list[OffsetFetchGroupAnswer] = []
        self.coordinator.offsetFetch(
            ClientContext(version), OffsetFetchGroup(groupId, topics), requireStable, answers.append
        )
        return answers

    # -- shortcuts

    def position(self, topic: str = "t", partition: int = 0) -> int:
        """The committed offset, or -1."""
        (answer,) = self.fetch([OffsetFetchTopic(topic, [partition])])
        return answer.topics[0].partitions[0].committedOffset

    def state(self, groupId: str = GROUP) -> str:
        """The state of the group."""
        (group,) = self.coordinator.describeGroups(ClientContext(6), [groupId])
        return group.groupState

    def memberIds(self) -> list[str]:
        """The members of the group."""
        (group,) = self.coordinator.describeGroups(ClientContext(6), [GROUP])
        return [each.memberId for each in group.members]

    def stable(self, count: int = 1, **fields: Any) -> list[JoinGroupAnswer]:
        """A stable group; the first member leads."""
        waiting = [self.join(**fields)]
        for _ in range(count - 1):
            waiting.append(self.join(**fields))
        if count > 1:
            # The first one has begun a generation by itself; it joins again.
            (first,) = waiting[0]
            waiting[0] = self.join(first.memberId, **fields)
            for index in range(1, count):
                self.assertEqual(len(waiting[index]), 1, waiting)
        joined = [answers[-1] for answers in waiting]
        for each in joined:
            self.sync(each)
        self.assertEqual(self.state(), "Stable")
        return joined
