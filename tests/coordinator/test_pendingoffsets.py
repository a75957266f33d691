"""
Offsets that are committed in transactions.
"""

from __future__ import annotations

from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    DeletePartition,
    DeleteTopic,
    OffsetDelete,
    OffsetFetchTopic,
    TxnOffsetCommit,
)
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.offsetstopic import encodeGroupMetadataKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.groupcase import GROUP, GroupCase

PRODUCER, OTHER = 7, 8
ID, OTHER_ID = b"i" * 16, b"o" * 16


class PendingCase(GroupCase):
    """A coordinator of one partition."""

    settings = GroupSettings(
        partitionCount=1, initialRebalanceDelayMs=0, offsetsRetentionMs=1000, offsetCountMax=3
    )

    def commitIn(
        self,
        producerId: int,
        offset: int,
        topic: str = "t",
        topicId: bytes = ID,
        groupId: str = GROUP,
        generation: int = -1,
        memberId: str = "",
    ) -> list[int]:
        """TxnOffsetCommit of partition 0; its error code."""
        answers: list[int] = []
        topics = [CommitTopic(topic, [CommitPartition(0, offset, -1, "m")], topicId)]
        self.coordinator.offsetCommit(
            ClientContext(5),
            TxnOffsetCommit(groupId, topics, producerId, 0, generation, memberId),
            lambda answer: answers.append(answer.topics[0].partitions[0].errorCode),
        )
        return answers

    def end(self, producerId: int, isCommit: bool = True) -> None:
        self.coordinator.transactionEnded(0, producerId, isCommit)

    def stableOffset(self, topic: str = "t") -> int:
        """The committed offset, for a client that wants stable ones; or the negated error."""
        (answer,) = self.fetch([OffsetFetchTopic(topic, [0])], requireStable=True)
        (found,) = answer.topics[0].partitions
        return -found.errorCode if found.errorCode else found.committedOffset


class EndTests(PendingCase):
    """Commits and aborts."""

    def test_commit(self) -> None:
        """An offset counts when the transaction is committed; until then it is not stable."""
        self.assertEqual(self.commitIn(PRODUCER, 5), [0])
        self.assertEqual(self.log.producers, [TransactionalProducer(PRODUCER, 0)])
        self.assertEqual(
            (self.position(), self.stableOffset()), (-1, -ErrorCode.UNSTABLE_OFFSET_COMMIT)
        )
        self.commitIn(PRODUCER, 6)
        self.assertEqual(self.coordinator.partitionOf(GROUP), 0)
        self.end(OTHER)
        self.coordinator.transactionEnded(1, PRODUCER, True)
        self.assertEqual(self.position(), -1)
        self.end(PRODUCER)
        self.assertEqual((self.position(), self.stableOffset()), (6, 6))

    def test_abort(self) -> None:
        """An aborted one leaves what was there."""
        self.commit(3)
        self.commitIn(PRODUCER, 5)
        (answer,) = self.fetch(None, requireStable=True)
        (found,) = answer.topics[0].partitions
        self.assertEqual(found.errorCode, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        self.assertEqual(self.position(), 3)
        self.end(PRODUCER, False)
        self.assertEqual(self.stableOffset(), 3)

    def test_several(self) -> None:
        """A position is stable when the last of its transactions is ended."""
        self.commitIn(PRODUCER, 5)
        self.commitIn(OTHER, 6)
        self.end(OTHER)
        self.assertEqual((self.position(), self.stableOffset()), (6, -88))
        self.end(PRODUCER, False)
        self.assertEqual(self.stableOffset(), 6)

    def test_newer(self) -> None:
        """What was committed or deleted outside of the transaction behind it is newer."""
        self.commitIn(PRODUCER, 5)
        self.commitIn(OTHER, 6, topic="other")
        self.commit(9)
        self.end(PRODUCER)
        self.end(OTHER)
        self.assertEqual((self.position(), self.position("other")), (9, 6))
        self.commitIn(PRODUCER, 10)
        request = OffsetDelete(GROUP, [DeleteTopic("t", [DeletePartition(0)])])
        self.coordinator.offsetDelete(request, lambda answer: None)
        self.end(PRODUCER)
        self.assertEqual(self.position(), -1)

    def test_failed(self) -> None:
        """What could not be appended is not pending."""
        self.log.error = ErrorCode.INVALID_PRODUCER_EPOCH
        self.assertEqual(self.commitIn(PRODUCER, 5), [ErrorCode.INVALID_PRODUCER_EPOCH])
        self.log.error = ErrorCode.NONE
        self.assertEqual(self.stableOffset(), -1)


class RuleTests(PendingCase):
    """Who may commit in a transaction."""

    def test_members(self) -> None:
        """A member of the generation, or nobody in particular."""
        self.assertEqual(self.commitIn(PRODUCER, 5, generation=1), [ErrorCode.ILLEGAL_GENERATION])
        (joined,) = self.stable()
        self.assertEqual(self.commitIn(PRODUCER, 5), [0])
        for generation, memberId, code in (
            (joined.generationId, joined.memberId, 0),
            (joined.generationId + 1, joined.memberId, ErrorCode.ILLEGAL_GENERATION),
            (joined.generationId, "other", ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            found = self.commitIn(PRODUCER, 5, generation=generation, memberId=memberId)
            self.assertEqual(found, [code])

    def test_whileRebalancing(self) -> None:
        """A new generation that is not assigned yet is no reason to refuse, as by Kafka."""
        (joined,) = self.join()
        found = self.commitIn(PRODUCER, 5, generation=joined.generationId, memberId=joined.memberId)
        self.assertEqual(found, [0])

    def test_limit(self) -> None:
        """Offsets that wait count, too."""
        for number in range(3):
            self.assertEqual(self.commitIn(PRODUCER, 5, topic=f"t{number}"), [0])
        full = [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
        self.assertEqual(self.commitIn(PRODUCER, 5, topic="other"), full)
        self.end(PRODUCER, False)
        self.assertEqual(self.commitIn(PRODUCER, 5, topic="other"), [0])


class LogTests(PendingCase):
    """What is in the log."""

    def test_reload(self) -> None:
        """Offsets wait for the end of their transaction after a restart, too."""
        self.commit(3)
        self.commitIn(PRODUCER, 5)
        self.reload()
        self.assertEqual((self.position(), self.stableOffset()), (3, -88))
        self.end(PRODUCER)
        self.assertEqual(self.stableOffset(), 5)

    def test_reloadNewer(self) -> None:
        """A newer offset in the log counts."""
        self.commitIn(PRODUCER, 5)
        self.commit(9)
        self.reload()
        self.end(PRODUCER)
        self.assertEqual(self.position(), 9)

    def test_unknownGroup(self) -> None:
        """The end of a transaction makes the group, if only it has a position of it."""
        self.commitIn(PRODUCER, 5)
        self.reload()
        self.assertEqual(self.state(), "Dead")
        self.end(PRODUCER)
        self.assertEqual((self.state(), self.position()), ("Empty", 5))

    def test_unload(self) -> None:
        """A partition that is not served has nothing that waits."""
        self.commitIn(PRODUCER, 5)
        self.coordinator.unload(0)
        self.coordinator.beginLoading(0)
        self.coordinator.loaded(0)
        self.assertEqual(self.stableOffset(), -1)


class DeletedTests(PendingCase):
    """Groups, topics and time."""

    def test_group(self) -> None:
        """A deleted group takes along what waits."""
        self.commitIn(PRODUCER, 5)
        self.coordinator.deleteGroups([GROUP], lambda answer: None)
        self.assertEqual(self.log.records[-1][1], (encodeGroupMetadataKey(GROUP), None))
        self.end(PRODUCER)
        self.assertEqual(self.position(), -1)

    def test_topic(self) -> None:
        """So does a deleted topic, but not another one of its name; the log knows it."""
        self.commitIn(PRODUCER, 5, topic="gone")
        self.commitIn(PRODUCER, 6, topic="stays", topicId=OTHER_ID)
        for topic in ("gone", "stays"):
            self.coordinator.topicDeleted(topic, ID)
        self.reload()
        self.coordinator.topicDeleted("gone", ID)
        self.end(PRODUCER)
        self.assertEqual((self.position("gone"), self.position("stays")), (-1, 6))

    def test_expiry(self) -> None:
        """Nothing expires that waits for the end of a transaction."""
        self.commit(3)
        self.commitIn(PRODUCER, 5)
        self.advance(2 * self.settings.offsetsRetentionCheckIntervalMs)
        self.assertEqual((self.position(), self.state()), (3, "Empty"))
        self.end(PRODUCER, False)
        self.advance(self.settings.offsetsRetentionCheckIntervalMs)
        self.assertEqual((self.position(), self.state()), (-1, "Dead"))
