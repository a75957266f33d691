"""
Requests and answers on the wire: the coordinator reads what C{protocol.kafka} decodes, and answers
with fields that it encodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    DeletePartition,
    DeleteTopic,
    Heartbeat,
    JoinGroup,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    OffsetCommit,
    OffsetDelete,
    OffsetFetchGroup,
    OffsetFetchTopic,
    SyncGroup,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.groupcase import GROUP, RANGE, GroupCase

ID = b"i" * 16


def received(name: str, version: int, request: Any) -> Any:
    """A request as it comes from the wire in a version, without the fields that it lacks."""
    fields = {
        field: value
        for field, value in request._asdict().items()
        if field in getattr(messages, name)._fields
        and getattr(messages, name)._fields[field].versions.has(version)
    }
    cls = getattr(messages, name)
    decoded, _ = cls.decode(cls(**fields).encode(version), version)
    return decoded


def sent(name: str, version: int, **fields: Any) -> Any:
    """A response as a client decodes it."""
    cls = getattr(messages, name)
    decoded, _ = cls.decode(cls(**fields).encode(version), version)
    return decoded


class WireTests(GroupCase):
    """Every version of every request, from the wire and back to it."""

    def ask(self, name: str, version: int, request: Any, call: Callable[..., Any]) -> Any:
        """Send a request; the decoded response."""
        answers: list[Any] = []
        call(ClientContext(version), received(f"{name}Request", version, request), answers.append)
        return sent(f"{name}Response", version, **answers[0]._asdict())

    def joined(self, version: int, memberId: str = "") -> Any:
        request = JoinGroup(GROUP, 10_000, 60_000, memberId, None, "consumer", RANGE)
        return self.ask("JoinGroup", version, request, self.coordinator.joinGroup)

    def test_membership(self) -> None:
        """JoinGroup 0 to 9, SyncGroup 0 to 5, LeaveGroup 0 to 5, Heartbeat 0 to 4."""
        for version in range(10):
            self.coordinator = self.make()
            joined = self.joined(version)
            if version >= 4:
                self.assertEqual(joined.errorCode, ErrorCode.MEMBER_ID_REQUIRED)
                joined = self.joined(version, joined.memberId)
            self.assertEqual((joined.errorCode, joined.protocolName), (0, "range"))
            self.assertEqual(joined.members[0].metadata, RANGE[0].metadata)
            older = min(version, 5)
            memberId = joined.memberId
            synced = self.ask(
                "SyncGroup",
                older,
                SyncGroup(
                    GROUP,
                    1,
                    memberId,
                    None,
                    "consumer",
                    "range",
                    [MemberAssignment(memberId, b"a")],
                ),
                self.coordinator.syncGroup,
            )
            self.assertEqual((synced.errorCode, synced.assignment), (0, b"a"))
            heartbeat = received("HeartbeatRequest", min(version, 4), Heartbeat(GROUP, 1, memberId))
            answer = self.coordinator.heartbeat(heartbeat)
            self.assertEqual(sent("HeartbeatResponse", 4, **answer._asdict()).errorCode, 0)
            left = self.ask(
                "LeaveGroup",
                older,
                LeaveGroup(GROUP, memberId, [LeavingMember(memberId)]),
                self.coordinator.leaveGroup,
            )
            self.assertEqual(left.errorCode, 0)
            self.assertEqual([each.memberId for each in left.members], [memberId] * (older >= 3))

    def test_static(self) -> None:
        """A static leader that comes back is answered in each version."""
        request = JoinGroup(GROUP, 10_000, 60_000, "", "i", "consumer", [JoinProtocol("p", b"")])
        for version in range(5, 10):
            self.coordinator = self.make()
            first = self.ask("JoinGroup", version, request, self.coordinator.joinGroup)
            self.sync(first)
            second = self.ask("JoinGroup", version, request, self.coordinator.joinGroup)
            self.assertEqual((second.errorCode, second.skipAssignment), (0, version == 9))

    def test_offsets(self) -> None:
        """OffsetCommit 2 to 10, OffsetFetch 8 to 10, OffsetDelete."""
        for version in range(2, 11):
            partitions = [CommitPartition(0, version)]
            commit = OffsetCommit(GROUP, [CommitTopic("t", partitions, ID)])
            request = received("OffsetCommitRequest", version, commit)
            for topic in request.topics:
                # As the broker does.
                topic.name, topic.topicId = "t", ID
            answers: list[Any] = []
            self.coordinator.offsetCommit(ClientContext(version), request, answers.append)
            committed = sent("OffsetCommitResponse", version, **answers[0]._asdict())
            self.assertEqual(committed.topics[0].partitions[0].errorCode, 0)
            if version >= 8:
                group = OffsetFetchGroup(GROUP, [OffsetFetchTopic("t", [0, 1], ID)])
                cls = messages.OffsetFetchRequest
                asked, _ = cls.decode(cls(groups=[_withMember(group)]).encode(version), version)
                asked.groups[0].topics[0].name = "t"
                fetched: list[Any] = []
                self.coordinator.offsetFetch(
                    ClientContext(version), asked.groups[0], True, fetched.append
                )
                response = sent("OffsetFetchResponse", version, groups=fetched)
                offsets = [each.committedOffset for each in response.groups[0].topics[0].partitions]
                self.assertEqual(offsets, [version, -1])
        delete = OffsetDelete(GROUP, [DeleteTopic("t", [DeletePartition(0)])])
        deleted: list[Any] = []
        self.coordinator.offsetDelete(received("OffsetDeleteRequest", 0, delete), deleted.append)
        response = sent("OffsetDeleteResponse", 0, **deleted[0]._asdict())
        self.assertEqual(response.topics[0].partitions[0].errorCode, 0)
        self.assertEqual(self.position(), -1)

    def test_administration(self) -> None:
        """DescribeGroups 0 to 6, ListGroups 0 to 5, DeleteGroups 0 to 2."""
        self.stable()
        for version in range(7):
            described = self.coordinator.describeGroups(ClientContext(version), [GROUP, "h"])
            response = sent("DescribeGroupsResponse", version, groups=described)
            self.assertEqual([each.groupState for each in response.groups], ["Stable", "Dead"])
        for version in range(6):
            listed = self.coordinator.listGroups()
            response = sent("ListGroupsResponse", version, **listed._asdict())
            self.assertEqual(response.groups[0].groupId, GROUP)
        for version in range(3):
            deleted: list[Any] = []
            self.coordinator.deleteGroups([GROUP], deleted.append)
            response = sent("DeleteGroupsResponse", version, results=deleted[0])
            self.assertEqual(response.results[0].errorCode, ErrorCode.NON_EMPTY_GROUP)


def _withMember(group: OffsetFetchGroup) -> Any:
    return messages.OffsetFetchRequest.OffsetFetchRequestGroup(**group._asdict())
