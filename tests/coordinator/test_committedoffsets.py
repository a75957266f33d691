"""
Committed offsets of classic groups.
"""

from __future__ import annotations

from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    DeletePartition,
    DeleteTopic,
    FetchedPartition,
    FetchedTopic,
    JoinProtocol,
    LeavingMember,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetDelete,
    OffsetDeleteAnswer,
    OffsetFetchGroupAnswer,
    OffsetFetchTopic,
    PartitionResult,
    TopicResults,
)
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.offsetstopic import (
    CommittedOffset,
    OffsetCommitKey,
    decodeCommittedOffset,
    decodeKey,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.groupcase import GROUP, SESSION_MS, START_MS, GroupCase

ID, OTHER_ID = b"i" * 16, b"o" * 16
HOUR_MS = 3_600_000


class CommitTests(GroupCase):
    """Committing."""

    def test_simple(self) -> None:
        """Without a managed group anybody commits; the group is there then."""
        self.assertEqual(self.commit(5, metadata="note", topicId=ID), [0])
        (fetched,) = self.fetch()
        self.assertEqual(
            fetched,
            OffsetFetchGroupAnswer(GROUP, [FetchedTopic("t", [FetchedPartition(0, 5, 3, "note")])]),
        )
        self.assertEqual(self.state(), "Empty")
        ((_, (key, value)),) = self.log.records
        self.assertEqual(decodeKey(key), OffsetCommitKey(GROUP, "t", 0))
        self.assertEqual(
            decodeCommittedOffset(value or b""), CommittedOffset(5, 3, "note", START_MS, -1, ID)
        )

    def test_emptyGroupId(self) -> None:
        """The group id may be empty, but not missing."""
        self.assertEqual(self.commit(5, groupId=""), [0])
        self.assertEqual(self.fetch(groupId="")[0].topics[0].partitions[0].committedOffset, 5)
        self.assertEqual(self.commit(5, groupId=None), [ErrorCode.INVALID_GROUP_ID])

    def test_member(self) -> None:
        """A member commits in its generation, also while a rebalance is prepared."""
        (leader,) = self.stable()
        self.assertEqual(self.commit(5, leader), [0])
        self.join()
        self.assertEqual(self.commit(6, leader), [0])
        self.assertEqual(self.position(), 6)

    def test_refused(self) -> None:
        """Whoever is no member of the current generation commits nothing."""
        unknown, illegal = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
        (leader,) = self.join()
        self.assertEqual(self.commit(5, leader), [ErrorCode.REBALANCE_IN_PROGRESS])
        self.sync(leader)
        self.assertEqual(self.commit(5, leader._replace(generationId=7)), [illegal])
        self.assertEqual(self.commit(5, leader._replace(memberId="nobody")), [unknown])
        self.assertEqual(self.commit(5), [unknown])
        self.assertEqual(self.commit(5, memberId=leader.memberId), [illegal])
        self.assertEqual(self.commit(5, groupInstanceId="i"), [unknown])
        self.assertEqual(self.position(), -1)
        self.leave(LeavingMember(leader.memberId))
        self.assertEqual(self.commit(5, leader), [unknown])
        self.assertEqual(self.commit(5), [0])

    def test_unknownGroup(self) -> None:
        """A member of a group that is not there is told so, from version 9 in its own words."""
        (joined,) = self.stable()
        self.assertEqual(self.commit(5, joined, groupId="h"), [ErrorCode.GROUP_ID_NOT_FOUND])
        self.assertEqual(self.commit(5, joined, 8, groupId="h"), [ErrorCode.ILLEGAL_GENERATION])

    def test_isALife(self) -> None:
        """A commit is as good as a heartbeat."""
        (leader,) = self.stable()
        self.advance(SESSION_MS - 1)
        self.commit(5, leader)
        self.advance(SESSION_MS - 1)
        self.assertEqual(self.state(), "Stable")

    def test_metadata(self) -> None:
        """Metadata are limited, in UTF-16 units; none are empty ones."""
        self.coordinator = self.make(GroupSettings(offsetMetadataMaxSize=4))
        self.assertEqual(self.commit(5, metadata="😀😀"), [0])
        self.assertEqual(self.commit(6, metadata="😀😀x"), [ErrorCode.OFFSET_METADATA_TOO_LARGE])
        self.assertEqual(self.position(), 5)
        self.assertEqual(self.commit(7, metadata=None), [0])
        self.assertEqual(self.fetch()[0].topics[0].partitions[0].metadata, "")
        self.coordinator = self.make(GroupSettings(offsetMetadataMaxSize=100_000))
        self.assertEqual(
            self.commit(6, metadata="x" * 32_768), [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        )

    def test_several(self) -> None:
        """Each partition has its own outcome; the good ones are one append."""
        self.coordinator = self.make(GroupSettings(offsetCountMax=2, groupCountMax=1))
        answers: list[OffsetCommitAnswer] = []
        request = OffsetCommit(
            GROUP,
            [
                CommitTopic("t", [CommitPartition(0, 1), CommitPartition(1, 2, 0, "x" * 5_000)]),
                CommitTopic("u", [CommitPartition(0, 3), CommitPartition(1, 4)], ID),
            ],
        )
        self.log.isHeld = True
        self.coordinator.offsetCommit(ClientContext(9), request, answers.append)
        self.assertEqual(len(self.log.waiting), 1)
        self.log.flush()
        full = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self.assertEqual(
            answers[0].topics,
            [
                TopicResults(
                    "t",
                    [PartitionResult(0), PartitionResult(1, ErrorCode.OFFSET_METADATA_TOO_LARGE)],
                ),
                TopicResults("u", [PartitionResult(0), PartitionResult(1, full)], ID),
            ],
        )
        self.log.isHeld = False
        self.assertEqual(self.commit(2), [0])
        self.assertEqual(self.commit(2, partition=7), [full])
        self.assertEqual(self.commit(2, groupId="h"), [full])

    def test_notBeforeAppended(self) -> None:
        """
        A commit is acknowledged, and shown, when it is appended. Who asks for stable offsets waits.
        """
        self.commit(5)
        self.log.isHeld = True
        first, second = self.commit(6), self.commit(7)
        self.assertEqual((first, self.position()), ([], 5))
        stable = self.fetch(requireStable=True)
        self.assertEqual(stable, [])
        self.log.flush()
        self.assertEqual((first, second, self.position()), ([0], [0], 7))
        self.assertEqual(stable[0].topics[0].partitions[0].committedOffset, 7)
        self.assertEqual(len(self.fetch(requireStable=True)), 1)
        self.assertEqual(len(self.fetch(requireStable=True, groupId="h")), 1)

    def test_appendFails(self) -> None:
        """A commit that cannot be appended is no commit, and begins no group."""
        self.log.error = ErrorCode.KAFKA_STORAGE_ERROR
        self.assertEqual(self.commit(5), [ErrorCode.NOT_COORDINATOR])
        self.assertEqual(self.state(), "Dead")
        self.join(version=4, groupId="h")
        self.log.error = ErrorCode.NONE
        self.commit(4)
        self.log.error = ErrorCode.MESSAGE_TOO_LARGE
        self.assertEqual(self.commit(5), [ErrorCode.UNKNOWN_SERVER_ERROR])
        self.assertEqual((self.position(), self.state()), (4, "Empty"))

    def test_reloaded(self) -> None:
        """Offsets outlive the coordinator, in groups with and without members."""
        (leader,) = self.stable()
        self.commit(5, leader)
        self.commit(6, groupId="h", topic="u", partition=3)
        self.reload()
        self.assertEqual(self.position(), 5)
        self.assertEqual(
            self.fetch(groupId="h")[0].topics, [FetchedTopic("u", [FetchedPartition(3, 6, 3, "")])]
        )
        self.assertEqual(self.commit(7, leader), [0])


class FetchTests(GroupCase):
    """Fetching."""

    def test_partitions(self) -> None:
        """Partitions without an offset, and groups that are not there, have -1."""
        self.commit(5, partition=1)
        topics = [OffsetFetchTopic("t", [0, 1], ID), OffsetFetchTopic("u", [0])]
        (fetched,) = self.fetch(topics)
        self.assertEqual(
            fetched.topics,
            [
                FetchedTopic("t", [FetchedPartition(0), FetchedPartition(1, 5, 3, "")], ID),
                FetchedTopic("u", [FetchedPartition(0)]),
            ],
        )
        (fetched,) = self.fetch([OffsetFetchTopic("t", [1])], groupId="h")
        self.assertEqual(fetched.topics, [FetchedTopic("t", [FetchedPartition(1)])])
        self.assertEqual(self.fetch(groupId="h")[0].topics, [])

    def test_otherTopic(self) -> None:
        """An offset of a deleted topic is none of a new topic of its name."""
        self.commit(5, topicId=ID)
        for topicId, offset in ((ID, 5), (bytes(16), 5), (OTHER_ID, -1)):
            (fetched,) = self.fetch([OffsetFetchTopic("t", [0], topicId)])
            self.assertEqual(fetched.topics[0].partitions[0].committedOffset, offset)

    def test_errors(self) -> None:
        """An error is the group's; in version 1, each partition's."""
        self.coordinator.unload(13)
        lost = ErrorCode.NOT_COORDINATOR
        self.assertEqual(
            self.fetch(groupId="group-id")[0], OffsetFetchGroupAnswer("group-id", (), lost)
        )
        (fetched,) = self.fetch([OffsetFetchTopic("t", [4])], groupId="group-id", version=1)
        self.assertEqual(
            fetched.topics, [FetchedTopic("t", [FetchedPartition(4, -1, -1, "", lost)])]
        )
        self.assertEqual(self.fetch(groupId="group-id", version=1)[0].topics, [])


class DeleteTests(GroupCase):
    """Deleting."""

    def delete(self, *topics: str, groupId: str = GROUP) -> list[OffsetDeleteAnswer]:
        answers: list[OffsetDeleteAnswer] = []
        partitions = [DeletePartition(0), DeletePartition(1)]
        request = OffsetDelete(groupId, [DeleteTopic(topic, partitions) for topic in topics])
        self.coordinator.offsetDelete(request, answers.append)
        return answers

    def test_delete(self) -> None:
        """Offsets are deleted when that is appended; those that are not there do not matter."""
        self.commit(5)
        self.commit(6, partition=2)
        self.log.isHeld = True
        answers = self.delete("t", "u")
        self.assertEqual((answers, self.position()), ([], 5))
        self.log.flush()
        self.assertEqual(
            answers[0].topics,
            [
                TopicResults("t", [PartitionResult(0), PartitionResult(1)]),
                TopicResults("u", [PartitionResult(0), PartitionResult(1)]),
            ],
        )
        self.assertEqual((self.position(), self.position(partition=2)), (-1, 6))
        self.assertEqual(self.log.records[-1][1][1], None)
        self.log.isHeld = False
        self.assertEqual(self.delete("u")[0].errorCode, 0)
        self.reload()
        self.assertEqual(self.position(), -1)

    def test_commitOnTheWay(self) -> None:
        """A commit that is being appended is deleted, too."""
        self.log.isHeld = True
        self.commit(5)
        self.delete("t")
        self.log.flush()
        self.assertEqual(self.position(), -1)

    def test_appendFails(self) -> None:
        """What cannot be appended is not deleted."""
        self.commit(5)
        self.log.error = ErrorCode.KAFKA_STORAGE_ERROR
        self.assertEqual(self.delete("t")[0].errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.position(), 5)

    def test_subscribed(self) -> None:
        """Topics that the members subscribe to are left alone, if it is known which these are."""
        (leader,) = self.stable()
        self.commit(5, leader)
        self.commit(6, leader, topic="u")
        (answer,) = self.delete("t", "u")
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        self.assertEqual(
            answer.topics,
            [
                TopicResults("t", [PartitionResult(0, subscribed), PartitionResult(1, subscribed)]),
                TopicResults("u", [PartitionResult(0), PartitionResult(1)]),
            ],
        )
        self.assertEqual((self.position(), self.position("u")), (5, -1))

    def test_refused(self) -> None:
        """Groups that are not there, or have members of another kind, are left alone."""
        self.assertEqual(self.delete("t", groupId="")[0].errorCode, ErrorCode.INVALID_GROUP_ID)
        self.assertEqual(self.delete("t")[0].errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        (leader,) = self.stable(protocolType="connect")
        self.assertEqual(self.delete("t")[0].errorCode, ErrorCode.NON_EMPTY_GROUP)
        self.leave(LeavingMember(leader.memberId))
        self.assertEqual(self.delete("t")[0].errorCode, 0)

    def test_topicDeleted(self) -> None:
        """With a topic go its offsets, but not those of another topic of its name."""
        self.commit(5, topicId=ID)
        self.commit(6, partition=1, topicId=OTHER_ID)
        self.commit(7, partition=2)
        self.commit(8, topic="u", groupId="h")
        self.coordinator.topicDeleted("t", ID)
        self.assertEqual([self.position(partition=each) for each in range(3)], [-1, 6, -1])


class ExpiryTests(GroupCase):
    """Offsets expire."""

    settings = GroupSettings(
        initialRebalanceDelayMs=0, offsetsRetentionMs=24 * HOUR_MS, sessionTimeoutMaxMs=2**31 - 1
    )

    def test_simple(self) -> None:
        """Without a managed group each offset expires by itself; the last takes the group along."""
        self.commit(5)
        self.advance(HOUR_MS)
        self.commit(6, partition=1)
        self.advance(23 * HOUR_MS)
        self.assertEqual((self.position(), self.position(partition=1)), (-1, 6))
        self.advance(HOUR_MS)
        self.assertEqual(self.state(), "Dead")
        self.reload()
        self.assertEqual(self.state(), "Dead")

    def test_empty(self) -> None:
        """With a managed group all expire together, that long after the group is empty."""
        (leader,) = self.stable(sessionTimeoutMs=100 * HOUR_MS)
        self.commit(5, leader)
        self.advance(50 * HOUR_MS)
        self.assertEqual(self.position(), 5)
        self.leave(LeavingMember(leader.memberId))
        self.advance(24 * HOUR_MS - 1)
        self.reload()
        self.assertEqual(self.position(), 5)
        self.advance(HOUR_MS)
        self.assertEqual(self.state(), "Dead")

    def test_notSubscribed(self) -> None:
        """While a group is stable, offsets of topics that it does not subscribe to expire."""
        (leader,) = self.stable(sessionTimeoutMs=100 * HOUR_MS, rebalanceTimeoutMs=100 * HOUR_MS)
        self.commit(5, leader)
        self.commit(6, leader, topic="u")
        self.advance(24 * HOUR_MS)
        self.assertEqual((self.position(), self.position("u")), (5, -1))
        self.commit(7, leader, topic="v")
        self.join()
        self.advance(25 * HOUR_MS)
        self.assertEqual((self.state(), self.position("v")), ("PreparingRebalance", 7))

    def test_unknownSubscription(self) -> None:
        """While it is not known what a group subscribes to, nothing expires."""
        for metadata in (
            b"",
            b"\xff\xff\0\0\0\0",
            b"\0\0\x7f\0\0\0",
            b"\0\0\0\0\0\1\0",
            b"\0\0\0\0\0\1\0\2x",
            b"\0\0\0\0\0\2\0\0",
        ):
            self.coordinator = self.make()
            (leader,) = self.stable(
                sessionTimeoutMs=100 * HOUR_MS,
                protocols=[JoinProtocol("range", metadata)],
            )
            self.commit(5, leader, topic="u")
            self.advance(25 * HOUR_MS)
            self.assertEqual(self.position("u"), 5, metadata)
            self.leave(LeavingMember(leader.memberId))

    def test_ownTime(self) -> None:
        """In versions 2 to 4 a commit brings its own time."""
        self.commit(5, version=4, retentionTimeMs=HOUR_MS)
        self.commit(6, version=4, retentionTimeMs=2**63 - 1, partition=1)
        self.commit(7, version=4, retentionTimeMs=-(2**63), partition=2)
        self.reload()
        self.advance(HOUR_MS)
        self.assertEqual([self.position(partition=each) for each in range(3)], [-1, 6, -1])

    def test_commitOnTheWay(self) -> None:
        """An offset that is being committed again does not expire, nor does its group."""
        self.commit(5)
        self.log.isHeld = True
        self.commit(6)
        self.advance(25 * HOUR_MS)
        self.log.flush()
        self.assertEqual(self.position(), 6)

    def test_idOnTheWay(self) -> None:
        """A group to which an id was given is not expired."""
        self.join(version=4, sessionTimeoutMs=HOUR_MS)
        self.advance(HOUR_MS - 1)
        self.assertEqual(self.state(), "Empty")
        self.advance(HOUR_MS)
        self.assertEqual(self.state(), "Dead")

    def test_inSteps(self) -> None:
        """Many offsets are checked in steps, between which the coordinator can do other things."""
        for number in range(6):
            partitions = [CommitPartition(each, 1) for each in range(2_000)]
            request = OffsetCommit(f"g{number}", [CommitTopic("t", partitions)])
            self.coordinator.offsetCommit(ClientContext(9), request, lambda answer: None)
        self.nowMs += 25 * HOUR_MS
        counts = []
        while self.coordinator.listGroups().groups:
            counts.append(len(self.coordinator.listGroups().groups))
            self.coordinator.advance()
            self.coordinator.deleteGroups(["g4"], lambda deleted: None)
            self.nowMs += 1
        self.assertEqual(counts, [6, 2])
