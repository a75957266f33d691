"""
The leader of a partition: who is in sync, and what is committed.
"""

from __future__ import annotations

from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import BrokerImage, PartitionImage
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.controller import AlterPartition, InSyncReplica
from pylogbroker.replication.leader import (
    ALTER_PARTITION_RETRY_MS,
    LeaderEffect,
    LeaderReplica,
    LeaderSettings,
    LogEnd,
    MoveHighWatermark,
    PartitionState,
    ProposeInSync,
)
from pylogbroker.replication.replicafetch import ReplicaFetch, ReplicaFetchAnswer
from pylogbroker.storage.kafka.epochs import EpochStart
from tests.replication.manuallog import ManualLog

TOPIC_ID = UUID(int=7)
LAG_MS = 10_000
ALL = PartitionImage(1, 5, 9, (1, 2, 3), (1, 2, 3))
ALONE = PartitionImage(1, 5, 9, (1, 2, 3), (1,))


class LeaderCase(SynchronousTestCase):
    """Broker 1 leads in epoch 5, which began at offset 10. A broker's epoch is ten times its id."""

    def lead(
        self, partition: PartitionImage, minInSync: int = 1, highWatermark: int = 8
    ) -> list[LeaderEffect]:
        self.nowMs = 100_000
        self.brokers = {each: BrokerImage(each, 10 * each, (), None) for each in (1, 2, 3, 4)}
        self.partition, self.minInSync = partition, minInSync
        self.leader = LeaderReplica(
            TOPIC_ID,
            0,
            self.brokers[1],
            self.state(),
            ManualLog([EpochStart(3, 0), EpochStart(5, 10)]),
            LogEnd(10, 10),
            highWatermark,
            LeaderSettings(LAG_MS),
            self.nowMs,
        )
        return self.leader.start(self.nowMs)

    def state(self) -> PartitionState:
        return PartitionState(self.partition, self.brokers, self.minInSync)

    def change(self, **fields: object) -> list[LeaderEffect]:
        epoch = self.partition.partitionEpoch + 1
        self.partition = self.partition._replace(partitionEpoch=epoch, **fields)  # type: ignore[arg-type]
        return self.leader.metadataChanged(self.state(), self.nowMs)

    def ask(
        self, brokerId: int, offset: int, **fields: int
    ) -> tuple[ReplicaFetchAnswer, list[LeaderEffect]]:
        lastEpoch = 5 if offset > 10 else 3
        fetch = ReplicaFetch(brokerId, 10 * brokerId, 5, offset, lastEpoch, 1)._replace(**fields)
        return self.leader.fetched(fetch, 0, self.nowMs)

    def fetch(self, brokerId: int, offset: int, **fields: int) -> list[LeaderEffect]:
        answer, effects = self.ask(brokerId, offset, **fields)
        self.assertEqual((answer.error, answer.diverging), (ErrorCode.NONE, None))
        return effects

    def append(self, end: int, acknowledgeable: int | None = None) -> list[LeaderEffect]:
        log = LogEnd(end, end if acknowledgeable is None else acknowledgeable)
        return self.leader.logChanged(log, self.nowMs)

    def proposal(self, *members: int) -> ProposeInSync:
        inSync = tuple(InSyncReplica(each, 10 * each) for each in members)
        epoch = self.partition.partitionEpoch
        return ProposeInSync(AlterPartition(TOPIC_ID, 0, 1, 10, 5, epoch, inSync))


class WatermarkTests(LeaderCase):
    """What is committed."""

    def test_least(self) -> None:
        """The watermark is the least offset that the replicas in sync have named."""
        self.assertEqual(self.lead(ALL), [])
        self.append(20)
        self.assertEqual(self.fetch(2, 15), [])
        self.assertEqual(self.fetch(3, 12), [MoveHighWatermark(12)])
        self.assertEqual(self.fetch(3, 20), [MoveHighWatermark(15)])
        self.assertEqual(self.fetch(2, 20), [MoveHighWatermark(20)])

    def test_alone(self) -> None:
        """A leader alone in sync commits what it has."""
        self.assertEqual(self.lead(ALONE), [MoveHighWatermark(10)])

    def test_unflushed(self) -> None:
        """The leader itself counts with what it has flushed."""
        self.lead(ALONE)
        self.assertEqual(self.append(20, 14), [MoveHighWatermark(14)])
        self.assertEqual(self.append(20, 20), [MoveHighWatermark(20)])

    def test_lowWatermark(self) -> None:
        """
        What the leader has deleted may come back while a replica in sync, or one that may be by
        now, has it. What a follower has is not known before it fetches.
        """
        self.lead(ALL)
        self.fetch(2, 10, logStartOffset=4)
        self.assertEqual(self.leader.lowWatermark(7), -1)
        self.fetch(3, 10, logStartOffset=7)
        self.assertEqual(self.leader.lowWatermark(7), 4)
        self.fetch(2, 10, logStartOffset=8)
        self.assertEqual(self.leader.lowWatermark(7), 7)
        self.lead(ALONE)
        self.assertEqual(self.leader.lowWatermark(7), 7)
        self.fetch(2, 10, logStartOffset=3)  # it is asked to join
        self.assertEqual(self.leader.lowWatermark(7), 3)

    def test_tooFewInSync(self) -> None:
        """Below min.insync.replicas it stands still, and acks=all is not served (KIP-966)."""
        self.assertEqual(self.lead(ALONE, minInSync=2), [])
        self.assertFalse(self.leader.hasEnoughInSync)
        self.assertEqual(self.append(12), [])
        self.fetch(2, 12)
        self.assertEqual(self.change(inSync=(1, 2)), [MoveHighWatermark(12)])
        self.assertTrue(self.leader.hasEnoughInSync)

    def test_fewerReplicasThanNeeded(self) -> None:
        """A partition with fewer replicas than min.insync.replicas needs all of them."""
        self.lead(ALONE._replace(replicas=(1,)), minInSync=2)
        self.assertTrue(self.leader.hasEnoughInSync)

    def test_caughtUp(self) -> None:
        """A follower that is caught up holds the watermark back before it is joined."""
        self.lead(ALONE)
        self.fetch(2, 10)
        self.assertEqual(self.append(20), [])

    def test_behind(self) -> None:
        """A follower that is far behind does not."""
        self.lead(ALONE)
        self.append(20)
        self.assertEqual(self.fetch(2, 5), [])
        self.assertEqual(self.append(30), [MoveHighWatermark(30)])

    def test_proposed(self) -> None:
        """A follower counts from its proposal on, until the metadata show what became of it."""
        self.lead(ALONE)
        self.assertEqual(self.fetch(2, 10), [self.proposal(1, 2)])
        self.nowMs += LAG_MS + 1
        self.append(20)
        self.assertEqual(self.leader.maximalInSync, {1, 2})
        self.assertEqual(self.leader.highWatermark, 10)
        self.assertEqual(
            self.change(inSync=(1,)),
            [
                self.proposal(1, 2),
            ],
        )
        self.assertEqual(self.leader.highWatermark, 10)

    def test_epochStart(self) -> None:
        """Until the watermark has reached the epoch's start, the end is not told (KIP-207)."""
        self.lead(ALL)
        self.assertFalse(self.leader.hasReachedEpoch)
        self.fetch(2, 10)
        self.fetch(3, 10)
        self.assertTrue(self.leader.hasReachedEpoch)


class JoinTests(LeaderCase):
    """Followers that join the in-sync set."""

    def test_joins(self) -> None:
        """A follower that has all is proposed with the broker epoch that it has fetched with."""
        self.lead(ALONE)
        self.assertEqual(self.fetch(2, 10), [self.proposal(1, 2)])
        self.assertEqual(self.leader.pending, self.proposal(1, 2).request)

    def test_belowWatermark(self) -> None:
        """A follower is not proposed before it has reached the watermark."""
        self.lead(ALONE)
        self.append(20)
        self.assertEqual(self.fetch(2, 19), [])
        self.assertEqual(self.fetch(2, 20), [self.proposal(1, 2)])

    def test_belowEpoch(self) -> None:
        """Nor before it has reached the start of the epoch (KAFKA-7128)."""
        self.lead(PartitionImage(1, 5, 9, (1, 2, 3), (1, 3)))
        self.assertEqual(self.fetch(2, 8), [])
        self.assertEqual(self.fetch(2, 10), [self.proposal(1, 3, 2)])

    def test_ineligible(self) -> None:
        """Nor if it is fenced, stops, is unknown, or its registration is another (KIP-903)."""
        for broker in (
            BrokerImage(2, 20, (), None, isFenced=True),
            BrokerImage(2, 20, (), None, isShuttingDown=True),
            BrokerImage(2, 21, (), None),
            None,
        ):
            self.lead(ALONE)
            if broker is None:
                del self.brokers[2]
            else:
                self.brokers[2] = broker
            self.assertEqual(self.fetch(2, 10), [])

    def test_eligibleAgain(self) -> None:
        """A follower is proposed when the metadata show its registration."""
        self.lead(ALONE)
        self.assertEqual(self.fetch(2, 10, brokerEpoch=21), [])
        self.brokers[2] = BrokerImage(2, 21, (), None)
        (effect,) = self.change()
        assert isinstance(effect, ProposeInSync)
        self.assertEqual(effect.request.inSync[1], InSyncReplica(2, 21))

    def test_oneAtATime(self) -> None:
        """While a proposal is under way there is no other."""
        self.lead(ALONE)
        self.fetch(2, 10)
        self.assertEqual(self.fetch(3, 10), [])
        self.assertEqual(self.change(inSync=(1, 2)), [self.proposal(1, 2, 3)])

    def test_ineligibleAnswer(self) -> None:
        """A proposal that was refused for its members is dropped, and made again in time."""
        self.lead(ALONE)
        (effect,) = self.fetch(2, 10)
        assert isinstance(effect, ProposeInSync)
        error = ErrorCode.INELIGIBLE_REPLICA
        self.assertEqual(self.leader.alterPartitionRefused(effect.request, error, self.nowMs), [])
        self.assertIsNone(self.leader.pending)
        self.assertEqual(self.leader.timePassed(self.nowMs), [effect])

    def test_otherAnswers(self) -> None:
        """After other refusals it may have come about: it is kept, and sent again."""
        self.lead(ALONE)
        (effect,) = self.fetch(2, 10)
        assert isinstance(effect, ProposeInSync)
        error = ErrorCode.INVALID_UPDATE_VERSION
        self.leader.alterPartitionRefused(effect.request, error, self.nowMs)
        self.assertEqual(self.leader.pending, effect.request)
        self.assertEqual(self.leader.timePassed(self.nowMs), [])
        self.nowMs += ALTER_PARTITION_RETRY_MS
        self.assertEqual(self.leader.timePassed(self.nowMs), [effect])


class LagTests(LeaderCase):
    """Followers that leave the in-sync set."""

    def test_leaves(self) -> None:
        """A follower that was not caught up for the lag time is dropped."""
        self.lead(ALL)
        self.fetch(3, 10)
        self.append(20)
        self.nowMs += LAG_MS
        self.assertEqual(self.leader.timePassed(self.nowMs), [])
        self.nowMs += 1
        self.fetch(3, 20)
        self.assertEqual(self.leader.timePassed(self.nowMs), [self.proposal(1, 3)])

    def test_always(self) -> None:
        """A follower that has reached what was the end at its last fetch was caught up then."""
        self.lead(ALL)
        self.fetch(3, 10)
        for end in range(20, 200, 10):
            self.nowMs += LAG_MS // 2
            self.append(end)
            self.fetch(2, end - 10)
            self.fetch(3, end)
            self.assertEqual(
                [
                    each
                    for each in self.leader.timePassed(self.nowMs)
                    if isinstance(each, ProposeInSync)
                ],
                [],
            )

    def test_atEnd(self) -> None:
        """A follower that is at the end stays, however long it is silent."""
        self.lead(ALL)
        self.fetch(2, 10)
        self.fetch(3, 10)
        self.nowMs += 10 * LAG_MS
        self.assertEqual(self.leader.timePassed(self.nowMs), [])

    def test_counts(self) -> None:
        """A follower that is to leave counts until the metadata show that it has left."""
        self.lead(ALL)
        self.fetch(3, 10)
        self.append(20)
        self.nowMs += LAG_MS + 1
        self.fetch(3, 20)
        self.leader.timePassed(self.nowMs)
        self.assertEqual(self.leader.highWatermark, 8)
        self.assertEqual(self.change(inSync=(1, 3)), [MoveHighWatermark(20)])


class FetchTests(LeaderCase):
    """What followers are answered."""

    def refusal(self, brokerId: int, offset: int, **fields: int) -> ErrorCode:
        answer, effects = self.ask(brokerId, offset, **fields)
        self.assertEqual(effects, [])
        return answer.error

    def test_epochs(self) -> None:
        """A fetch of another leader epoch is refused, on either side."""
        self.lead(ALL)
        self.assertEqual(self.refusal(2, 10, leaderEpoch=4), ErrorCode.FENCED_LEADER_EPOCH)
        self.assertEqual(self.refusal(2, 10, leaderEpoch=6), ErrorCode.UNKNOWN_LEADER_EPOCH)

    def test_strangers(self) -> None:
        """A fetch of a broker that has no replica, or of an earlier process, is refused."""
        self.lead(ALL)
        self.assertEqual(self.refusal(4, 10), ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetch(2, 10)
        self.assertEqual(self.refusal(2, 10, brokerEpoch=19), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def test_earlierProcess(self) -> None:
        """What an earlier process of a follower has named is forgotten with a later one's fetch."""
        self.lead(ALL)
        self.fetch(3, 10)
        self.append(20)
        self.fetch(2, 20)
        self.fetch(2, 12, brokerEpoch=21)
        self.assertEqual(self.leader.followers[2].logEndOffset, 12)

    def test_diverging(self) -> None:
        """A follower with records that the leader has not is told where the logs part."""
        self.lead(ALL)
        answer, effects = self.ask(2, 12, lastFetchedEpoch=3)
        self.assertEqual((answer.diverging, effects), ((3, 10), []))
        self.assertEqual(self.leader.followers[2].logEndOffset, -1)
        answer, _ = self.ask(2, 9, lastFetchedEpoch=4)
        self.assertEqual(answer.diverging, (3, 10))

    def test_outOfRange(self) -> None:
        """A fetch before the log's start, or without a common epoch, is out of range."""
        self.lead(ALL)
        fetch = ReplicaFetch(2, 20, 5, 3, -1, 1)
        answer, _ = self.leader.fetched(fetch, 4, self.nowMs)
        self.assertEqual(answer.error, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.assertEqual(answer.logStartOffset, 4)
        self.assertEqual(self.refusal(2, 10, lastFetchedEpoch=6), ErrorCode.OFFSET_OUT_OF_RANGE)

    def test_replicasChange(self) -> None:
        """Added replicas are served, removed ones are not."""
        self.lead(ALL)
        self.change(replicas=(1, 2, 4), inSync=(1, 2))
        self.fetch(4, 0, lastFetchedEpoch=-1)
        self.assertEqual(self.refusal(3, 10), ErrorCode.NOT_LEADER_OR_FOLLOWER)


class RestTests(LeaderCase):
    """When a leader needs no clock."""

    def setUp(self) -> None:
        self.lead(ALL)
        for each in (2, 3):
            self.fetch(each, 10)
        self.assertTrue(self.leader.isAtRest)

    def test_rest(self) -> None:
        """When all that are in sync have the end, nothing follows from time."""
        self.nowMs += 100 * LAG_MS
        self.assertEqual(self.leader.timePassed(self.nowMs), [])
        self.assertEqual(self.leader.outOfSync, ())

    def test_records(self) -> None:
        """New records end the rest until all in sync have them, and they are committed."""
        self.append(12)
        self.assertFalse(self.leader.isAtRest)
        self.fetch(2, 12)
        self.assertFalse(self.leader.isAtRest)
        self.fetch(3, 12)
        self.assertTrue(self.leader.isAtRest)
        self.append(14, 12)
        for each in (2, 3):
            self.fetch(each, 14)
        self.assertFalse(self.leader.isAtRest)

    def test_caughtUpAtRest(self) -> None:
        """
        A follower in sync need not ask again while it has the end: its lag begins with the next
        record.
        """
        self.nowMs += 100 * LAG_MS
        self.append(12)
        self.nowMs += LAG_MS
        self.assertEqual(self.leader.timePassed(self.nowMs), [])
        self.nowMs += 1
        self.assertEqual(self.leader.timePassed(self.nowMs), [self.proposal(1)])

    def test_outOfSync(self) -> None:
        """One that is not in sync asks again; it can join, or it is left to its next fetch."""
        self.change(inSync=(1, 2))
        self.assertEqual(self.leader.outOfSync, (3,))
        self.assertFalse(self.leader.isAtRest)  # it has the end, and is asked to join
        self.brokers = {**self.brokers, 3: BrokerImage(3, 31, (), None)}
        self.lead(ALL._replace(inSync=(1, 2)))
        self.fetch(2, 10)
        self.fetch(3, 9)
        self.assertTrue(self.leader.isAtRest)

    def test_tooFew(self) -> None:
        """What cannot be committed is not waited for."""
        self.lead(ALONE, minInSync=2)
        self.append(12)
        self.assertTrue(self.leader.isAtRest)
