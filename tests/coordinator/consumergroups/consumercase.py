"""
A coordinator with topics, and requests of members of KIP-848's groups.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pylogbroker.cluster.metadataimage import (
    PartitionCountRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatAnswer,
    ConsumerPartitions,
    DescribedConsumerGroup,
    OffsetFetchGroup,
)
from pylogbroker.coordinator.grouptable import GroupSettings
from tests.coordinator.groupcase import GROUP, GroupCase

A, B, C = "A", "B", "C"
REBALANCE_TIMEOUT_MS = 30_000
INTERVAL_MS = 1_000
SESSION_TIMEOUT_MS = 45_000

Owned = dict[str, list[int]]
"""Partitions by topic."""


class ConsumerCase(GroupCase):
    """The group has two topics: C{t} with two partitions, and C{u} with three."""

    settings = GroupSettings(initialRebalanceDelayMs=0, offsetsRetentionMs=100_000)

    def setUp(self) -> None:
        super().setUp()
        self.addTopic("t", 2)
        self.addTopic("u", 3)

    def addTopic(self, name: str, count: int) -> None:
        """A topic comes, or has more partitions."""
        topic = self.image.topics.get(name)
        if topic is None:
            topicId = str(UUID(int=len(self.image.removing) * 100 + len(self.image.topics) + 1))
            self.image.apply(TopicRecord(name, topicId, count))
        else:
            self.image.apply(PartitionCountRecord(str(topic.topicId), count))
        self.coordinator.topicsChanged()

    def removeTopic(self, name: str) -> None:
        """A topic goes."""
        self.image.apply(RemoveTopicRecord(str(self.image.topics[name].topicId)))
        self.coordinator.topicsChanged()

    # -- requests

    def send(self, version: int = 1, **fields: Any) -> list[ConsumerGroupHeartbeatAnswer]:
        """ConsumerGroupHeartbeat."""
        owned = fields.pop("owned", None)
        if owned is not None:
            fields["topicPartitions"] = [
                ConsumerPartitions(self.image.topics[name].topicId.bytes, parts)
                for name, parts in owned.items()
            ]
        sees = fields.pop("sees", None)
        request = ConsumerGroupHeartbeat(**{"groupId": GROUP, **fields})
        answers: list[ConsumerGroupHeartbeatAnswer] = []
        self.coordinator.consumerGroupHeartbeat(
            ClientContext(version, "client", "/host", sees), request, answers.append
        )
        return answers

    def beat(self, memberId: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatAnswer:
        """One that is answered at once."""
        (answer,) = self.send(memberId=memberId, memberEpoch=epoch, **fields)
        return answer

    def enter(self, memberId: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatAnswer:
        """A member joins."""
        return self.beat(
            memberId,
            0,
            **{
                "subscribedTopicNames": topics,
                "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
                "owned": {},
                **fields,
            },
        )

    def given(self, answer: ConsumerGroupHeartbeatAnswer) -> Owned | None:
        """What a member is told that it may own."""
        self.assertEqual(answer.errorCode, 0, answer)
        if answer.assignment is None:
            return None
        return self._named(answer.assignment.topicPartitions)

    def _named(self, partitions: Any) -> Owned:
        names = {topic.topicId.bytes: topic.name for topic in self.image.topics.values()}
        return {names[each.topicId]: list(each.partitions) for each in partitions}

    def described(self, groupId: str = GROUP) -> DescribedConsumerGroup:
        """ConsumerGroupDescribe."""
        (group,) = self.coordinator.describeConsumerGroups([groupId])
        return group

    def targets(self) -> dict[str, Owned]:
        """The target assignment."""
        return {
            each.memberId: self._named(each.targetAssignment.topicPartitions)
            for each in self.described().members
        }

    def owned(self) -> dict[str, Owned]:
        """What members own, or have to give up."""
        return {
            each.memberId: self._named(each.assignment.topicPartitions)
            for each in self.described().members
        }

    def epochs(self) -> dict[str, int]:
        """The epochs of members."""
        return {each.memberId: each.memberEpoch for each in self.described().members}

    def pair(self) -> None:
        """C{A} owns partition 0 of C{t}, C{B} partition 1; both have epoch 3."""
        self.assertEqual(self.given(self.enter(A, "t")), {"t": [0, 1]})
        self.assertEqual(self.given(self.enter(B, "t")), {})
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 2, owned={"t": [0, 1]})), {"t": [0]})
        self.assertIsNone(self.given(self.beat(A, 2, owned={"t": [0]})))
        self.assertEqual(self.given(self.beat(B, 2, owned={})), {"t": [1]})
        self.assertEqual(self.epochs(), {A: 3, B: 3})

    def fetchAs(self, memberId: str | None, epoch: int) -> int:
        """OffsetFetch; the error code."""
        answers: list[Any] = []
        request = OffsetFetchGroup(GROUP, None, memberId, epoch)
        self.coordinator.offsetFetch(ClientContext(9), request, False, answers.append)
        return int(answers[0].errorCode)

    def commitAs(self, memberId: str, epoch: int, partition: int = 0, **fields: Any) -> int:
        """OffsetCommit of a partition of C{t}; the error code."""
        (code,) = self.commit(
            5,
            partition=partition,
            topicId=self.image.topics["t"].topicId.bytes,
            memberId=memberId,
            generationIdOrMemberEpoch=epoch,
            **fields,
        )
        return code
