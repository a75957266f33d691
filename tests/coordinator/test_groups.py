"""
What holds for all requests to the coordinator: loading, lists, deletion, calls from within calls.
"""

from __future__ import annotations

from random import Random

from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    DeletedGroup,
    DeletePartition,
    DeleteTopic,
    DescribedGroup,
    DescribedMember,
    JoinGroup,
    JoinGroupAnswer,
    LeavingMember,
    ListedGroup,
    OffsetDelete,
)
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.offsetstopic import (
    CommittedOffset,
    StoredGroup,
    decodeStoredGroup,
    encodeCommittedOffset,
    encodeGroupMetadataKey,
    encodeOffsetCommitKey,
    encodeStoredGroup,
)
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.groupcase import GROUP, RANGE, GroupCase

V6 = ClientContext(6)


class LoadTests(GroupCase):
    """Partitions of the topic come and go."""

    settings = GroupSettings(initialRebalanceDelayMs=0, partitionCount=2)

    def codes(self) -> list[int]:
        """The error code of each kind of request."""
        deleted: list[int] = []
        self.coordinator.offsetDelete(
            OffsetDelete(GROUP, []), lambda answer: deleted.append(answer.errorCode)
        )
        dropped: list[DeletedGroup] = []
        self.coordinator.deleteGroups([GROUP], dropped.extend)
        nobody = JoinGroupAnswer(generationId=1, memberId="m", protocolName="range")
        return [
            self.join()[0].errorCode,
            self.sync(nobody, protocolType="consumer")[0].errorCode,
            self.leave(LeavingMember("m"))[0].errorCode,
            self.commit(5)[0],
            self.fetch()[0].errorCode,
            deleted[0],
            self.coordinator.describeGroups(V6, [GROUP])[0].errorCode,
            dropped[0].errorCode,
            self.heartbeat(nobody),
        ]

    def test_loading(self) -> None:
        """While a partition is read, clients are told to try again; heartbeats are good."""
        self.coordinator = GroupCoordinator(
            self.settings, self.log.append, lambda: self.nowMs, Random(1)
        )
        self.assertEqual(set(self.codes()), {ErrorCode.NOT_COORDINATOR})
        for partition in range(2):
            self.coordinator.beginLoading(partition)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self.assertEqual(self.codes(), [loading] * 8 + [0])
        self.assertEqual(self.coordinator.listGroups().errorCode, loading)
        self.assertEqual(self.join()[0].memberId, "")
        self.assertTrue(self.coordinator.isLoading(1))
        for partition in range(2):
            self.coordinator.loaded(partition)
        self.assertFalse(self.coordinator.isLoading(1))
        self.assertEqual(self.join()[0].errorCode, 0)

    def test_unload(self) -> None:
        """If the log of a partition fails, who waits is told; the groups are not served."""
        (leader,) = self.stable()
        waiting = self.join()
        self.join(version=4)
        self.commit(5, groupId="h")
        self.log.isHeld = True
        commit = self.commit(5, leader)
        for partition in range(2):
            self.coordinator.unload(partition)
        self.assertEqual(waiting[0].errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(set(self.codes()), {ErrorCode.NOT_COORDINATOR})
        self.log.flush()
        self.assertEqual(commit, [0])
        self.advance(100_000)
        self.assertEqual(self.coordinator.listGroups().groups, [])

    def test_unloadOne(self) -> None:
        """Groups of the other partitions go on."""
        self.commit(5, groupId="a")
        self.commit(5, groupId="b")
        self.coordinator.unload(0)
        self.assertEqual(len(self.coordinator.listGroups().groups), 1)

    def test_unloadAndAppended(self) -> None:
        """What is appended after the partition has gone does not bring the group back."""
        (leader,) = self.stable()
        self.commit(5, leader, topic="u")
        self.leave(LeavingMember(leader.memberId))
        self.log.isHeld = True
        self.commit(5)
        self.join(groupId="new", version=4)
        self.coordinator.deleteGroups([GROUP], lambda deleted: None)
        self.coordinator.offsetDelete(OffsetDelete(GROUP, []), lambda answer: None)
        for partition in range(2):
            self.coordinator.unload(partition)
        self.log.flush()
        self.assertEqual(self.coordinator.listGroups().groups, [])

    def test_offsetDeletedAfterUnload(self) -> None:
        """Nor does a deletion of offsets."""
        self.commit(5)
        self.log.isHeld = True
        answers: list[object] = []
        topics = [DeleteTopic("t", [DeletePartition(0)])]
        self.coordinator.offsetDelete(OffsetDelete(GROUP, topics), answers.append)
        for partition in range(2):
            self.coordinator.unload(partition)
        self.log.flush()
        self.assertEqual(len(answers), 1)

    def test_replay(self) -> None:
        """
        Records are applied in order. A group that ends keeps its offsets, which may belong to a
        group of another kind now.
        """
        self.coordinator = GroupCoordinator(
            self.settings, self.log.append, lambda: self.nowMs, Random(1)
        )
        replay = self.coordinator.replay
        group = encodeGroupMetadataKey(GROUP)
        offset = encodeOffsetCommitKey(GROUP, "t", 0)
        self.assertFalse(replay(b"\0\x09\0\1g", b"whatever"))
        self.assertTrue(replay(group, None))
        self.assertTrue(replay(offset, None))
        replay(group, encodeStoredGroup(StoredGroup("consumer", 3, None, None, 5)))
        replay(offset, encodeCommittedOffset(CommittedOffset(4)))
        replay(offset, encodeCommittedOffset(CommittedOffset(5)))
        replay(group, None)
        replay(encodeOffsetCommitKey("h", "t", 0), encodeCommittedOffset(CommittedOffset(5)))
        replay(encodeOffsetCommitKey("h", "t", 0), None)
        for broken in ((b"\0", b""), (group, b"\0"), (offset, b"\0")):
            self.assertRaises(FormatError, replay, *broken)
        for partition in range(2):
            self.coordinator.beginLoading(partition)
            self.coordinator.loaded(partition)
        self.assertEqual(self.position(), 5)
        self.assertEqual([each.groupId for each in self.coordinator.listGroups().groups], [GROUP])
        self.assertEqual(self.commit(6), [0])

    def test_replayTwoGenerations(self) -> None:
        """The last record of a group counts, whoever its leader is."""
        self.stable(2)
        first = self.log.records[-1][1]
        self.reload()
        key, value = first
        self.coordinator.replay(key, value)
        self.assertEqual(len(self.memberIds()), 2)
        stored = decodeStoredGroup(value or b"")
        self.coordinator.replay(key, encodeStoredGroup(stored._replace(leader="nobody")))
        self.assertEqual(
            self.join(stored.members[1].memberId)[0].leader, stored.members[0].memberId
        )


class ListTests(GroupCase):
    """Lists and descriptions."""

    def test_list(self) -> None:
        """Groups are listed by state and type, in any case."""
        self.stable()
        self.commit(5, groupId="h")
        both = [
            ListedGroup(GROUP, "consumer", "Stable", "classic"),
            ListedGroup("h", "", "Empty", "classic"),
        ]
        listed = self.coordinator.listGroups
        self.assertEqual(listed().groups, both)
        self.assertEqual(listed([" stable", "Dead"]).groups, both[:1])
        self.assertEqual(listed(["empty"], ["Classic"]).groups, both[1:])
        self.assertEqual(listed(["nonsense"]).groups, [])
        self.assertEqual(listed([], ["consumer"]).groups, [])

    def test_describe(self) -> None:
        """Members are shown, with metadata if the group is stable."""
        (leader,) = self.stable()
        member = DescribedMember(
            leader.memberId, None, "client", "/host", RANGE[0].metadata, leader.memberId.encode()
        )
        self.assertEqual(
            self.coordinator.describeGroups(V6, [GROUP]),
            [DescribedGroup(GROUP, 0, None, "Stable", "consumer", "range", [member])],
        )
        self.join()
        (described,) = self.coordinator.describeGroups(V6, [GROUP])
        self.assertEqual((described.groupState, described.protocolData), ("PreparingRebalance", ""))
        self.assertEqual(described.members[0].memberMetadata, b"")

    def test_unknown(self) -> None:
        """An unknown group is dead; from version 6 it is an error."""
        self.assertEqual(
            self.coordinator.describeGroups(ClientContext(5), ["h"]),
            [DescribedGroup("h", groupState="Dead")],
        )
        (described,) = self.coordinator.describeGroups(V6, ["h"])
        self.assertEqual(described.errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.assertEqual(described.errorMessage, "Group h not found.")


class DeleteTests(GroupCase):
    """Deleting groups."""

    def delete(self, *groupIds: str) -> list[list[DeletedGroup]]:
        answers: list[list[DeletedGroup]] = []
        self.coordinator.deleteGroups(groupIds, answers.append)
        return answers

    def test_delete(self) -> None:
        """Empty groups are deleted with their offsets, once however often they are named."""
        self.stable()
        self.commit(5, groupId="h")
        self.commit(6, groupId="i")
        (deleted,) = self.delete(GROUP, "h", "nobody", "h", "i")
        self.assertEqual(
            deleted,
            [
                DeletedGroup(GROUP, ErrorCode.NON_EMPTY_GROUP),
                DeletedGroup("h", 0),
                DeletedGroup("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
                DeletedGroup("i", 0),
            ],
        )
        self.reload()
        self.assertEqual([each.groupId for each in self.coordinator.listGroups().groups], [GROUP])
        self.assertEqual(self.delete("nobody")[0][0].errorCode, ErrorCode.GROUP_ID_NOT_FOUND)

    def test_onTheWay(self) -> None:
        """
        Until that is appended, the group is dead: its offsets are shown, and nobody joins, commits
        or deletes.
        """
        (joined,) = self.stable()
        self.leave(LeavingMember(joined.memberId))
        self.commit(5)
        self.log.isHeld = True
        self.commit(6)
        deleted = self.delete(GROUP)
        self.assertEqual((deleted, self.state(), self.position()), ([], "Dead", 5))
        later = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.assertEqual(self.join()[0].errorCode, later)
        self.assertEqual(self.sync(joined)[0].errorCode, later)
        self.assertEqual(self.heartbeat(joined), later)
        self.assertEqual(self.leave(LeavingMember(joined.memberId))[0].errorCode, later)
        self.assertEqual(self.commit(7), [later])
        answers: list[int] = []
        self.coordinator.offsetDelete(
            OffsetDelete(GROUP, []), lambda answer: answers.append(answer.errorCode)
        )
        self.assertEqual(answers, [ErrorCode.GROUP_ID_NOT_FOUND])
        self.assertEqual(self.delete(GROUP)[0][0].errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.log.flush()
        self.assertEqual(deleted[0][0].errorCode, 0)
        self.assertEqual(self.position(), -1)
        self.log.isHeld = False
        self.reload()
        self.assertEqual(self.position(), -1)

    def test_appendFails(self) -> None:
        """What cannot be appended is not deleted."""
        self.commit(5)
        self.log.error = ErrorCode.KAFKA_STORAGE_ERROR
        self.assertEqual(self.delete(GROUP)[0][0].errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual((self.state(), self.position()), ("Empty", 5))

    def test_idOnTheWay(self) -> None:
        """An id that was given goes with the group, and its deadline."""
        (given,) = self.join(version=4)
        self.assertEqual(self.delete(GROUP)[0][0].errorCode, 0)
        self.join(version=4)
        self.assertEqual(self.join(given.memberId)[0].errorCode, ErrorCode.UNKNOWN_MEMBER_ID)
        self.advance(100_000)
        self.assertEqual(self.coordinator.listGroups().groups[0].groupId, GROUP)


class CallTests(GroupCase):
    """Calls from within calls, and many at a time."""

    def test_within(self) -> None:
        """An answer may bring the next request at once."""
        answers: list[JoinGroupAnswer] = []

        def again(answer: JoinGroupAnswer) -> None:
            answers.append(answer)
            if answer.errorCode == ErrorCode.MEMBER_ID_REQUIRED:
                request = self._joinRequest(answer.memberId)
                self.coordinator.joinGroup(ClientContext(4), request, again)

        self.coordinator.joinGroup(ClientContext(4), self._joinRequest(""), again)
        self.assertEqual([each.errorCode for each in answers], [ErrorCode.MEMBER_ID_REQUIRED, 0])

    def _joinRequest(self, memberId: str) -> JoinGroup:
        return JoinGroup(GROUP, 10_000, 10_000, memberId, protocols=RANGE)

    def test_manyDue(self) -> None:
        """However much is due, one call does a bounded part of it; the rest is due at once."""
        for number in range(1_500):
            self.join(groupId=f"g{number}")
        self.nowMs += 10_000
        self.coordinator.advance()
        states = [each.groupState for each in self.coordinator.listGroups().groups]
        self.assertEqual(states.count("Empty"), 1_000)
        self.coordinator.advance()
        states = [each.groupState for each in self.coordinator.listGroups().groups]
        self.assertEqual(states.count("Empty"), 1_500)
