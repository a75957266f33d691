"""Requests of consumer groups, in every version, as a client sees them."""

from __future__ import annotations

from typing import Any

from pylogbroker.broker.kafka.coordinators.grouprequests import GROUP_OPERATIONS, javaHost
from pylogbroker.coordinator.groupmessages import (
    CommitPartition,
    DeletePartition,
    DeleteTopic,
    LeavingMember,
    OffsetFetchTopic,
)
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.groupcase import GROUP, TRANSPORT, GroupCase

UNKNOWN_ID = b"\7" * 16
NO_OPERATIONS = -(2**31)


class FindTests(GroupCase):
    """FindCoordinator."""

    def test_group(self) -> None:
        """In all versions, this broker is the coordinator, at the address that the client knows."""
        for version in range(7):
            found = self.find(version)
            self.assertEqual((found.errorCode, found.nodeId), (0, 0))
            self.assertEqual(found.port, self.lead.service.kafka.advertised(_state(self))[1])
            self.assertNotEqual(found.host, "")
            if version in (1, 2, 3):
                self.assertEqual(found.errorMessage, "NONE")

    def test_others(self) -> None:
        """There are no coordinators of share groups, nor of unknown kinds."""
        for version in range(1, 7):
            for keyType, code in (
                (2, ErrorCode.INVALID_REQUEST),
                (9, ErrorCode.INVALID_REQUEST),
            ):
                found = self.find(version, keyType)
                self.assertEqual(found.errorCode, code)
                self.assertEqual((found.nodeId, found.host, found.port), (-1, "", -1))


class MembershipTests(GroupCase):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

    def test_twoMembers(self) -> None:
        """A second member makes the first join again; both get what the leader assigns."""
        first = self.stable()
        self.assertTrue(first.memberId.startswith("c-"))
        second = self.join()
        self.lead.settle()
        self.assertIsNone(second.body)
        self.assertEqual(self.heartbeat(first), ErrorCode.REBALANCE_IN_PROGRESS)
        again = self.join(first.memberId)
        self.lead.settle()
        leader, follower = again.body, second.body
        self.assertEqual((leader.leader, leader.generationId), (leader.memberId, 2))
        self.assertEqual(follower.members, [])
        ids = [each.memberId for each in leader.members]
        self.assertEqual(ids, [leader.memberId, follower.memberId])
        synced = [self.sync(follower), self.sync(leader, m0=b"a", m1=b"b")]
        self.assertIsNone(synced[0].body)
        self.lead.settle()
        self.assertEqual([each.body.assignment for each in synced], [b"b", b"a"])
        self.assertEqual(self.heartbeat(follower), ErrorCode.NONE)

    def test_memberIdRequired(self) -> None:
        """From version 4 on a member first gets an id."""
        self.find()
        refused = self.join(version=9)
        self.assertEqual(refused.body.errorCode, ErrorCode.MEMBER_ID_REQUIRED)
        joined = self.join(refused.body.memberId, version=9)
        self.lead.settle()
        self.assertEqual((joined.body.errorCode, joined.body.protocolType), (0, "consumer"))

    def test_leave(self) -> None:
        """A member that leaves is gone at once."""
        for version in range(6):
            joined = self.stable()
            asked: dict[str, Any] = {"groupId": GROUP}
            if version < 3:
                asked["memberId"] = joined.memberId
            else:
                asked["members"] = [LeavingMember(joined.memberId)]
            left = self.ask(ApiKey.LEAVE_GROUP, version, **asked)
            self.assertEqual(left.errorCode, 0)
            self.assertEqual(self.heartbeat(joined), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_host(self) -> None:
        """Members are shown with their address, as Java prints it."""
        self.stable()
        (group,) = self.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[GROUP]).groups
        self.assertEqual(group.members[0].clientHost, "/192.0.2.1")
        for host, shown in (
            ("/", "/"),
            ("/::1", "/0:0:0:0:0:0:0:1"),
            ("/fe80::ab%eth0", "/fe80:0:0:0:0:0:0:ab"),
            ("/::ffff:192.0.2.1", "/192.0.2.1"),
        ):
            self.assertEqual(javaHost(host), shown)


class OffsetTests(GroupCase):
    """OffsetCommit, OffsetFetch, OffsetDelete."""

    def setUp(self) -> None:
        super().setUp()
        self.topicId = self.lead.service.kafka.topics.image.topics["t"].topicId.bytes
        self.find()

    def commits(self, version: int, *topics: tuple[Any, tuple[int, ...]]) -> Any:
        """Commit the version as offset of partitions of topics by name or id."""
        cls = ApiKey.OFFSET_COMMIT.requestClass
        asked = [
            cls.OffsetCommitRequestTopic(
                **_named(topic, version >= 10),
                partitions=[CommitPartition(index, version) for index in partitions],
            )
            for topic, partitions in topics
        ]
        return self.ask(ApiKey.OFFSET_COMMIT, version, groupId=GROUP, topics=asked).topics

    def test_commit(self) -> None:
        """All versions; a fetch shows what was committed."""
        for version in range(2, 11):
            topic = self.topicId if version >= 10 else "t"
            (result,) = self.commits(version, (topic, (0, 1)))
            self.assertEqual([each.errorCode for each in result.partitions], [0, 0])
            self.assertEqual(self.position(), version)

    def test_commitUnknown(self) -> None:
        """Unknown topics and partitions have errors, before what is committed all the same."""
        found = self.commits(9, ("t", (0, 3)), ("u", (0,)), ("v", ()))
        self.assertEqual(
            [(each.name, _errors(each)) for each in found],
            [("t", [(3, 3), (0, 0)]), ("u", [(0, 3)])],
        )
        self.assertEqual(self.position(), 9)
        found = self.commits(10, (UNKNOWN_ID, (0,)), (self.topicId, (-1, 1)))
        self.assertEqual(
            [(each.topicId, _errors(each)) for each in found],
            [(UNKNOWN_ID, [(0, 100)]), (self.topicId, [(-1, 3), (1, 0)])],
        )
        (found,) = self.commits(8, ("u", (0,)))
        self.assertEqual(_errors(found), [(0, 3)])

    def fetched(
        self, version: int, *topics: tuple[Any, tuple[int, ...]], isAll: bool = False
    ) -> Any:
        """(topic, [(offset, error)]) of a fetch."""
        cls = ApiKey.OFFSET_FETCH.requestClass
        if version < 8:
            asked = None if isAll else [OffsetFetchTopic(*each) for each in topics]
            body = self.ask(ApiKey.OFFSET_FETCH, version, groupId=GROUP, topics=asked)
            self.assertEqual(body.errorCode, 0)
            found = body.topics
        else:
            asked = [
                cls.OffsetFetchRequestTopics(
                    **_named(topic, version >= 10), partitionIndexes=list(partitions)
                )
                for topic, partitions in topics
            ]
            group = cls.OffsetFetchRequestGroup(groupId=GROUP, topics=None if isAll else asked)
            (answer,) = self.ask(ApiKey.OFFSET_FETCH, version, groups=[group]).groups
            self.assertEqual((answer.groupId, answer.errorCode), (GROUP, 0))
            found = answer.topics
        return [
            (
                each.topicId if version >= 10 else each.name,
                [(part.committedOffset, part.errorCode) for part in each.partitions],
            )
            for each in found
        ]

    def test_fetch(self) -> None:
        """All versions, some partitions or all."""
        self.commits(9, ("t", (0,)))
        for version in range(1, 11):
            topic = self.topicId if version >= 10 else "t"
            found = self.fetched(version, (topic, (0, 1)))
            self.assertEqual(found, [(topic, [(9, 0), (-1, 0)])])
            if version >= 2:
                self.assertEqual(self.fetched(version, isAll=True), [(topic, [(9, 0)])])

    def test_fetchUnknown(self) -> None:
        """An unknown id has an error; an unknown name has no offset."""
        self.commits(9, ("t", (0,)))
        found = self.fetched(10, (UNKNOWN_ID, (0,)), (self.topicId, (0,)))
        self.assertEqual(found, [(self.topicId, [(9, 0)]), (UNKNOWN_ID, [(-1, 100)])])
        self.assertEqual(self.fetched(9, ("u", (0,))), [("u", [(-1, 0)])])

    def test_fetchGroups(self) -> None:
        """Several groups in one request, each with its own error, in order."""
        cls = ApiKey.OFFSET_FETCH.requestClass
        groups = [
            cls.OffsetFetchRequestGroup(groupId=each, topics=None) for each in ("h", GROUP, "")
        ]
        self.commits(9, ("t", (0,)))
        self.commit(10)
        answer = self.send(ApiKey.OFFSET_FETCH, 9, groups=groups, requireStable=True)
        self.assertIsNone(answer.body)  # a commit is on its way
        self.lead.settle()
        found = answer.body.groups
        self.assertEqual([each.groupId for each in found], ["h", GROUP, ""])
        self.assertEqual([len(each.topics) for each in found], [0, 1, 0])
        self.assertEqual(found[1].topics[0].partitions[0].committedOffset, 10)

    def test_fetchRepeated(self) -> None:
        """A group, and a partition of it, is answered twice at most."""
        cls = ApiKey.OFFSET_FETCH.requestClass
        everything = cls.OffsetFetchRequestGroup(groupId=GROUP, topics=None)
        other = cls.OffsetFetchRequestGroup(groupId="h", topics=None)
        found = self.ask(ApiKey.OFFSET_FETCH, 9, groups=[everything, other, *[everything] * 3])
        self.assertEqual([each.groupId for each in found.groups], [GROUP, "h", GROUP])
        topics = [("t", (0, 1, 0, 0)), ("t", (0, 1))]
        asked = [OffsetFetchTopic(*each) for each in topics]
        found = self.ask(ApiKey.OFFSET_FETCH, 7, groupId=GROUP, topics=asked)
        indexes = [part.partitionIndex for each in found.topics for part in each.partitions]
        self.assertEqual(sorted(indexes), [0, 0, 1, 1])

    def test_fetchElsewhere(self) -> None:
        """
        Before the groups are served, the error stands where the version has it, and where aiokafka
        looks for it: one that it does not see would be a group without positions.
        """
        self.lead.service.kafka.groups.stop()
        cls = ApiKey.OFFSET_FETCH.requestClass
        topics = [OffsetFetchTopic("t", [0])]
        code = ErrorCode.NOT_COORDINATOR
        found = self.ask(ApiKey.OFFSET_FETCH, 1, groupId=GROUP, topics=topics)
        self.assertEqual(found.topics[0].partitions[0].errorCode, code)
        for version in (2, 7):
            found = self.ask(ApiKey.OFFSET_FETCH, version, groupId=GROUP, topics=topics)
            self.assertEqual(found.errorCode, code)
            self.assertEqual(found.topics[0].partitions[0].errorCode, code)
            found = self.ask(ApiKey.OFFSET_FETCH, version, groupId=GROUP, topics=None)
            self.assertEqual((found.errorCode, found.topics), (code, []))
        group = cls.OffsetFetchRequestGroup(groupId=GROUP, topics=None)
        found = self.ask(ApiKey.OFFSET_FETCH, 10, groups=[group])
        self.assertEqual(found.groups[0].errorCode, code)

    def delete(self, groupId: str, *topics: tuple[str, tuple[int, ...]]) -> Any:
        asked = [
            DeleteTopic(name, [DeletePartition(each) for each in partitions])
            for name, partitions in topics
        ]
        return self.ask(ApiKey.OFFSET_DELETE, 0, groupId=groupId, topics=asked)

    def test_delete(self) -> None:
        """Offsets go; unknown partitions have errors."""
        self.commits(9, ("t", (0,)))
        found = self.delete(GROUP, ("t", (0, 7)), ("u", (0,)))
        self.assertEqual(found.errorCode, 0)
        self.assertEqual(
            [(each.name, _errors(each)) for each in found.topics],
            [("t", [(7, 3), (0, 0)]), ("u", [(0, 3)])],
        )
        self.assertEqual(self.position(), -1)
        found = self.delete(GROUP, ("u", (0,)))
        self.assertEqual((found.errorCode, _errors(found.topics[0])), (0, [(0, 3)]))
        found = self.delete("h", ("t", (0,)), ("u", (0,)))
        self.assertEqual((found.errorCode, found.topics), (ErrorCode.GROUP_ID_NOT_FOUND, []))


class AdministrationTests(GroupCase):
    """DescribeGroups, ListGroups, DeleteGroups."""

    def test_describeRepeated(self) -> None:
        """A group is described twice at most, however often a request names it."""
        self.find()
        found = self.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[GROUP, "h", *[GROUP] * 3]).groups
        self.assertEqual([each.groupId for each in found], [GROUP, "h", GROUP])

    def test_describe(self) -> None:
        """All versions; what may be done to a group is told if it is asked for."""
        self.stable()
        for version in range(7):
            for isAsked in (False, True) if version >= 3 else (False,):
                group, other = self.ask(
                    ApiKey.DESCRIBE_GROUPS,
                    version,
                    groups=[GROUP, "h"],
                    includeAuthorizedOperations=isAsked,
                ).groups
                self.assertEqual((group.groupState, len(group.members)), ("Stable", 1))
                operations = GROUP_OPERATIONS if isAsked else NO_OPERATIONS
                self.assertEqual(group.authorizedOperations, operations)
                self.assertEqual(other.groupState, "Dead")
                isTold = version < 6 and isAsked
                operations = GROUP_OPERATIONS if isTold else NO_OPERATIONS
                self.assertEqual(other.authorizedOperations, operations)

    def test_list(self) -> None:
        """All versions, with filters."""
        self.stable()
        for version in range(6):
            (group,) = self.ask(ApiKey.LIST_GROUPS, version).groups
            self.assertEqual((group.groupId, group.protocolType), (GROUP, "consumer"))
        found = self.ask(ApiKey.LIST_GROUPS, 5, statesFilter=["Empty"], typesFilter=["classic"])
        self.assertEqual(found.groups, [])

    def test_delete(self) -> None:
        """A group without members can be deleted."""
        joined = self.stable()
        for version in range(3):
            found = self.ask(ApiKey.DELETE_GROUPS, version, groupsNames=[GROUP, "h"])
            self.assertEqual(
                [(each.groupId, each.errorCode) for each in found.results],
                [(GROUP, ErrorCode.NON_EMPTY_GROUP), ("h", ErrorCode.GROUP_ID_NOT_FOUND)],
            )
        self.ask(ApiKey.LEAVE_GROUP, 2, groupId=GROUP, memberId=joined.memberId)
        found = self.ask(ApiKey.DELETE_GROUPS, 2, groupsNames=[GROUP])
        self.assertEqual(found.results[0].errorCode, 0)
        self.assertEqual(self.ask(ApiKey.LIST_GROUPS, 5).groups, [])


def _state(case: GroupCase) -> Any:

    return case.lead.service.kafka.protocols[0].newState(TRANSPORT)


def _named(topic: Any, isId: bool) -> dict[str, Any]:
    return {"topicId": topic} if isId else {"name": topic}


def _errors(topic: Any) -> list[tuple[int, int]]:
    return [(each.partitionIndex, each.errorCode) for each in topic.partitions]
