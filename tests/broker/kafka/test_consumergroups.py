"""Requests of groups of the new consumer protocol (KIP-848), as a client sees them."""

from __future__ import annotations

from typing import Any

from pylogbroker.broker.kafka.coordinators.grouprequests import GROUP_OPERATIONS
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.groupcase import GROUP, GroupCase
from tests.broker.kafka.security.test_aclrequests import creation

MEMBER = "A" * 22
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class ConsumerGroupTests(GroupCase):
    """ConsumerGroupHeartbeat, ConsumerGroupDescribe; OffsetCommit and OffsetFetch with epochs."""

    def enter(self, version: int = 1, **fields: Any) -> Any:
        """A member joins."""
        asked = {
            "groupId": GROUP,
            "memberId": MEMBER,
            "memberEpoch": 0,
            "rebalanceTimeoutMs": 30_000,
            "subscribedTopicNames": ["t"],
            "topicPartitions": [],
            **fields,
        }
        return self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **asked)

    def beat(self, epoch: int, **fields: Any) -> Any:
        """A member lives."""
        return self.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            groupId=GROUP,
            memberId=MEMBER,
            memberEpoch=epoch,
            **fields,
        )

    def partitions(self, answer: Any) -> list[list[int]]:
        """Those that a member is told of, by topic."""
        return [list(each.partitions) for each in answer.assignment.topicPartitions]

    def describe(self, version: int = 1, **fields: Any) -> Any:
        """ConsumerGroupDescribe."""
        asked = {"groupIds": [GROUP], **fields}
        (group,) = self.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, **asked).groups
        return group

    def fetchCode(self, memberId: str | None, epoch: int) -> int:
        """OffsetFetch of a member; the error code."""
        cls = ApiKey.OFFSET_FETCH.requestClass
        group = cls.OffsetFetchRequestGroup(
            groupId=GROUP, topics=None, memberId=memberId, memberEpoch=epoch
        )
        (found,) = self.ask(ApiKey.OFFSET_FETCH, 9, groups=[group]).groups
        return int(found.errorCode)

    def test_versions(self) -> None:
        """In both versions a member gets all partitions, and is described."""
        self.find()
        for version in (0, 1):
            joined = self.enter(version)
            self.assertEqual((joined.errorCode, joined.memberId), (0, MEMBER))
            self.assertEqual(self.partitions(joined), [[0, 1, 2]])
            group = self.describe(version, includeAuthorizedOperations=True)
            self.assertEqual(group.authorizedOperations, GROUP_OPERATIONS)
            self.assertEqual((group.groupState, group.members[0].memberId), ("Stable", MEMBER))
        self.assertEqual(self.describe(groupIds=["x"]).errorCode, ErrorCode.GROUP_ID_NOT_FOUND)

    def test_positions(self) -> None:
        """A member commits and fetches with its epoch; both outlive a power cut."""
        self.find()
        epoch = self.enter().memberEpoch
        fields: dict[str, Any] = {"memberId": MEMBER, "version": 9}
        done = self.commit(5, generationIdOrMemberEpoch=epoch, **fields)
        self.lead.settle()
        self.assertEqual(self.committed(done), [0])
        stale = self.commit(6, generationIdOrMemberEpoch=epoch + 1, **fields)
        self.lead.settle()
        self.assertEqual(self.committed(stale), [ErrorCode.STALE_MEMBER_EPOCH])
        self.lead.fileSystem.cutPower()
        self.restart()
        self.assertEqual(self.fetchCode(MEMBER, epoch), 0)
        self.assertEqual(self.fetchCode(MEMBER, epoch + 1), ErrorCode.STALE_MEMBER_EPOCH)
        self.assertEqual(self.fetchCode(None, -1), 0)
        self.assertEqual(self.position(), 5)
        self.assertEqual(self.beat(epoch).memberEpoch, epoch)

    def test_topics(self) -> None:
        """A topic that comes later is assigned with the next heartbeats."""
        self.lead = self.made({"group.consumer.assignment.interval.ms": "0"})
        self.find()
        epoch = self.enter(subscribedTopicNames=["later"]).memberEpoch
        self.createTopic("later", 2)
        self.assertEqual(self.partitions(self.beat(epoch)), [[0, 1]])

    def test_pattern(self) -> None:
        """A pattern is matched with the topics behind the answer."""
        self.find()
        fields: dict[str, Any] = {"subscribedTopicNames": None, "subscribedTopicRegex": "[tu]"}
        self.assertEqual(self.partitions(self.enter(**fields)), [])
        self.lead.reactor.advance(0.001)
        self.lead.settle()
        self.assertEqual(self.partitions(self.beat(1)), [[0, 1, 2]])

    def test_hiddenTopics(self) -> None:
        """With an authorizer, a pattern matches only topics of which the client may know."""
        self.lead = self.made(
            {
                "authorizer.class.name": AUTHORIZER,
                "allow.everyone.if.no.acl.found": "true",
            }
        )
        self.createTopic("u", 2)
        self.find()
        self.ask(ApiKey.CREATE_ACLS, 3, creations=[creation("t")])
        self.enter(subscribedTopicNames=None, subscribedTopicRegex="[tu]")
        self.lead.reactor.advance(0.001)
        self.lead.settle()
        self.assertEqual(self.partitions(self.beat(1)), [[0, 1]])
