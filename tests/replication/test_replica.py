"""
A replica that leads, follows, and does neither, as the metadata change.
"""

from __future__ import annotations

from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import BrokerImage, PartitionImage
from pylogbroker.replication.follower import FetchState, Flush
from pylogbroker.replication.leader import MoveHighWatermark, PartitionState
from pylogbroker.replication.replica import (
    PartitionReplica,
    RemoveLog,
    ReplicaEffect,
    ReplicaSettings,
    StopLeading,
)
from pylogbroker.storage.kafka.epochs import EpochStart
from tests.replication.manuallog import ManualLog

LEADER = PartitionImage(1, 5, 9, (1, 2), (1,))
FOLLOWER = PartitionImage(2, 6, 10, (1, 2), (2,))


class ReplicaTests(SynchronousTestCase):
    """The replica of broker 1, which has registered with epoch 10."""

    def setUp(self) -> None:
        self.log = ManualLog([EpochStart(1, 0)])
        self.replica = PartitionReplica(UUID(int=7), 0, 1, 10, self.log, 12, ReplicaSettings())

    def change(
        self, partition: PartitionImage, epoch: int = 10, isFenced: bool = False
    ) -> list[ReplicaEffect]:
        brokers = {1: BrokerImage(1, epoch, (), None, isFenced), 2: BrokerImage(2, 20, (), None)}
        return self.replica.metadataChanged(PartitionState(partition, brokers, 1), 0)

    def test_watermark(self) -> None:
        """A watermark behind the log's end does not count."""
        self.assertEqual(self.replica.highWatermark, 10)

    def test_leads(self) -> None:
        """A leader begins its epoch at the log's end; in the same epoch it goes on."""
        self.assertEqual(self.change(LEADER), [])
        self.assertEqual(self.log.epochs.entries[-1], (5, 10))
        leader = self.replica.leader
        self.change(LEADER._replace(partitionEpoch=10))
        self.assertIs(self.replica.leader, leader)
        self.log.logEndOffset = 12
        self.assertEqual(self.replica.logChanged(0), [])
        self.log.flushedOffset = 12
        self.assertEqual(self.replica.logChanged(0), [MoveHighWatermark(12)])
        self.assertEqual(self.replica.highWatermark, 12)

    def test_newEpoch(self) -> None:
        """In a new epoch of its own it is another leader."""
        self.change(LEADER)
        self.assertEqual(self.change(LEADER._replace(leaderEpoch=6)), [StopLeading()])
        self.assertEqual(self.log.epochs.entries[-1], (6, 10))

    def test_follows(self) -> None:
        """A leader that is replaced stops, and follows when its log is flushed."""
        self.change(LEADER)
        self.log.logEndOffset = 12
        self.assertEqual(self.change(FOLLOWER), [StopLeading(), Flush()])
        self.assertIsNone(self.replica.leader)
        self.assertEqual(self.log.followedEpoch, 6)
        self.log.flushedOffset = 12
        self.assertEqual(self.replica.logChanged(0), [])
        assert self.replica.follower is not None
        self.assertIs(self.replica.follower.state, FetchState.READY)
        follower = self.replica.follower
        self.change(FOLLOWER._replace(partitionEpoch=11))
        self.assertIs(self.replica.follower, follower)

    def test_leadsAgain(self) -> None:
        """A follower that is elected leads with the watermark that it knows."""
        self.change(FOLLOWER)
        self.change(LEADER._replace(leaderEpoch=7))
        self.assertIsNone(self.replica.follower)
        self.assertEqual(self.replica.highWatermark, 10)

    def test_otherRegistration(self) -> None:
        """What is said of an earlier or a later process, or of a fenced one, is not acted on."""
        self.assertEqual(self.change(LEADER, epoch=9), [])
        self.assertIsNone(self.replica.leader)
        self.change(LEADER)
        self.assertEqual(self.change(LEADER, isFenced=True), [StopLeading()])
        self.change(LEADER)
        self.assertEqual(self.change(LEADER, epoch=11), [StopLeading()])

    def test_unregistered(self) -> None:
        """A broker that the metadata do not know does nothing."""
        self.assertEqual(self.replica.metadataChanged(PartitionState(LEADER, {}, 1), 0), [])
        self.assertEqual(self.replica.logChanged(0), [])

    def test_removed(self) -> None:
        """A replica that was removed goes with its log."""
        self.change(LEADER)
        self.assertEqual(
            self.change(FOLLOWER._replace(replicas=(2,))), [StopLeading(), RemoveLog()]
        )

    def test_failed(self) -> None:
        """A replica whose log has failed does nothing any more."""
        self.change(LEADER)
        self.assertEqual(self.replica.logFailed(), [StopLeading()])
        self.assertEqual(self.change(LEADER._replace(leaderEpoch=7)), [])
        self.assertIsNone(self.replica.leader)
