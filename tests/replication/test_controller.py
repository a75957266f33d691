"""
What the controller decides about brokers and partitions.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pylogbroker.cluster.metadataimage import (
    CLUSTER_DEFAULT,
    ConfigRecord,
    PartitionImage,
    TopicRecord,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.controller import (
    AlterPartition,
    InSyncReplica,
    LogState,
    adoptDefaults,
    alterPartition,
    changeSettings,
    electLeader,
    electPreferred,
    fenceAbsent,
    loseReplicas,
    minInSyncReplicas,
    reassign,
    registerBroker,
    shutDownBroker,
    unregisterBroker,
)
from pylogbroker.replication.elections import Loss, newPartition
from tests.replication.imagecase import TOPIC_ID, ImageCase

THREE = PartitionImage(1, 5, 9, (1, 2, 3), (1, 2, 3))
LAST = PartitionImage(1, 5, 9, (1, 2, 3), (1,))
NONE = ErrorCode.NONE


class FenceTests(ImageCase):
    """Brokers whose nodes are gone."""

    def test_leaderGone(self) -> None:
        """The next replica in sync leads, in a new epoch; the old leader is in no in-sync set."""
        self.build(THREE)
        made = self.apply(fenceAbsent(self.image, {2, 3, 4}, 100))
        self.assertEqual(made, PartitionImage(2, 6, 10, (1, 2, 3), (2, 3)))
        self.assertTrue(self.image.brokers[1].isFenced)

    def test_followerGone(self) -> None:
        """A follower leaves the in-sync set; the leader and its epoch stay."""
        self.build(THREE)
        made = self.apply(fenceAbsent(self.image, {1, 3, 4}, 100))
        self.assertEqual(made, PartitionImage(1, 5, 10, (1, 2, 3), (1, 3)))

    def test_allPresent(self) -> None:
        """Nothing is changed while all nodes are there."""
        self.build(THREE)
        self.assertEqual(fenceAbsent(self.image, {1, 2, 3, 4}, 100), [])

    def test_fencedOnce(self) -> None:
        """A fenced broker is not fenced again."""
        self.build(LAST, fenced=(3,))
        self.assertEqual(fenceAbsent(self.image, {1, 2, 4}, 100), [])

    def test_registeredAfterTheList(self) -> None:
        """A broker that registered after the nodes were listed is not taken for gone."""
        self.build(THREE)
        self.assertEqual(fenceAbsent(self.image, {2, 3, 4}, 9), [])
        self.assertNotEqual(fenceAbsent(self.image, {2, 3, 4}, 10), [])

    def test_lastReplica(self) -> None:
        """When the last replica in sync goes, the others wait for it: it is eligible."""
        self.build(LAST)
        made = self.apply(fenceAbsent(self.image, {2, 3, 4}, 100))
        self.assertEqual(made, PartitionImage(-1, 6, 10, (1, 2, 3), (), (1,), 1))

    def test_eligibleLeaders(self) -> None:
        """Below min.insync.replicas, those that leave stay eligible, and one of them may lead."""
        self.build(THREE, min_insync_replicas="2")
        self.apply(fenceAbsent(self.image, {2, 3, 4}, 100))
        made = self.apply(fenceAbsent(self.image, {2, 4}, 100))
        self.assertEqual((made.inSync, made.eligibleLeaders), ((2,), (3,)))
        made = self.apply(fenceAbsent(self.image, {4}, 100))
        self.assertEqual(made, PartitionImage(-1, 7, 12, (1, 2, 3), (), (2, 3), 2))
        made = self.apply(registerBroker(self.image, self.registration(3, 50), LogState.INTACT, 30))
        self.assertEqual(made, PartitionImage(3, 8, 13, (1, 2, 3), (3,), (2,)))

    def test_uncleanElection(self) -> None:
        """Where the topic allows it, a replica that is not in sync leads."""
        self.build(LAST, unclean_leader_election_enable="true")
        made = self.apply(fenceAbsent(self.image, {2, 3, 4}, 100))
        self.assertEqual(made, PartitionImage(2, 6, 10, (1, 2, 3), (2,)))

    def test_uncleanOfTheCluster(self) -> None:
        """The cluster's setting holds for a topic that has none of its own."""
        self.build(LAST)
        name = "unclean.leader.election.enable"
        self.image.apply(ConfigRecord(CLUSTER_DEFAULT, "", name, "true"))
        self.assertEqual(self.apply(fenceAbsent(self.image, {2, 3, 4}, 100)).leader, 2)

    def test_allGone(self) -> None:
        """With all replicas gone at once, the partition waits for any of those in sync."""
        self.build(THREE)
        made = self.apply(fenceAbsent(self.image, set(), 100))
        self.assertEqual(made, PartitionImage(-1, 6, 10, (1, 2, 3), (), (1, 2, 3), 1))


class RegistrationTests(ImageCase):
    """Brokers that come."""

    def test_first(self) -> None:
        """A broker's first registration changes no partition."""
        self.build(THREE)
        registration = self.registration(9, 90)
        self.assertEqual(registerBroker(self.image, registration, LogState.EMPTY), [registration])

    def test_followerComesBack(self) -> None:
        """A replica that comes back is not in sync by that: it has to catch up."""
        self.build(PartitionImage(1, 5, 9, (1, 2, 3), (1, 2)), fenced=(3,))
        registration = self.registration(3, 50)
        records = registerBroker(self.image, registration, LogState.INTACT, 30)
        self.assertEqual(records, [registration])

    def test_leaderRestartsFast(self) -> None:
        """
        A leader that comes back before it was missed does not go on in its epoch: its log may be
        shorter than what its followers have got from it (KIP-380).
        """
        self.build(THREE)
        made = self.apply(registerBroker(self.image, self.registration(1, 50), LogState.INTACT, 10))
        self.assertEqual((made.leader, made.leaderEpoch, made.inSync), (2, 6, (2, 3)))
        self.build(LAST)
        made = self.apply(registerBroker(self.image, self.registration(1, 50), LogState.INTACT, 10))
        self.assertEqual((made.leader, made.leaderEpoch, made.inSync), (1, 7, (1,)))

    def test_uncertainIsNotEligible(self) -> None:
        """
        A replica that may have lost the end of its log leaves the eligible set; another one that is
        eligible leads before it.
        """
        self.build(THREE, min_insync_replicas="2")
        self.apply(fenceAbsent(self.image, set(), 100))
        registration = self.registration(1, 50)
        made = self.apply(registerBroker(self.image, registration, LogState.UNCERTAIN, 10))
        self.assertEqual((made.leader, made.eligibleLeaders), (-1, (2, 3)))
        made = self.apply(registerBroker(self.image, self.registration(2, 60), LogState.INTACT, 20))
        self.assertEqual((made.leader, made.inSync, made.eligibleLeaders), (2, (2,), (3,)))

    def test_lastKnownLeader(self) -> None:
        """When all may have lost the ends of their logs, only the last leader leads."""
        self.build(THREE, min_insync_replicas="2")
        self.apply(fenceAbsent(self.image, set(), 100))
        for brokerId in (3, 2):
            registration = self.registration(brokerId, 50 + brokerId)
            self.apply(registerBroker(self.image, registration, LogState.UNCERTAIN, 10 * brokerId))
        self.assertEqual(self.partition.leader, -1)
        registration = self.registration(1, 60)
        made = self.apply(registerBroker(self.image, registration, LogState.UNCERTAIN, 10))
        self.assertEqual((made.leader, made.inSync, made.eligibleLeaders), (1, (1,), ()))
        self.assertEqual(made.lastKnownLeader, -1)

    def test_emptyDoesNotLead(self) -> None:
        """A broker whose log directory is new leads nothing of what it had, not even alone."""
        self.build(LAST)
        made = self.apply(registerBroker(self.image, self.registration(1, 50), LogState.EMPTY))
        self.assertEqual(made, PartitionImage(-1, 6, 11, (1, 2, 3), (), (), -1))

    def test_otherDirectory(self) -> None:
        """A log directory that is not the one of the last registration may lack records."""
        self.build(LAST)
        made = self.apply(registerBroker(self.image, self.registration(1, 50), LogState.INTACT, 3))
        self.assertEqual((made.leader, made.eligibleLeaders), (1, ()))
        self.build(PartitionImage(-1, 5, 9, (1, 2), (), (1, 2), 2), fenced=(1, 2))
        made = self.apply(registerBroker(self.image, self.registration(1, 50), LogState.INTACT, 3))
        self.assertEqual((made.leader, made.eligibleLeaders), (-1, (2,)))

    def test_lostPartition(self) -> None:
        """
        A broker whose log of one partition is gone does not lead that, not even alone; others lead
        where one in sync is left. A shortened log may be the last that leads.
        """
        for loss in Loss:
            self.build(THREE)
            registration, losses = self.registration(1, 50), {(TOPIC_ID, 0): loss}
            made = self.apply(registerBroker(self.image, registration, LogState.INTACT, 10, losses))
            self.assertEqual((made.leader, made.inSync), (2, (2, 3)))
            self.build(LAST)
            made = self.apply(registerBroker(self.image, registration, LogState.INTACT, 10, losses))
            leader = -1 if loss is Loss.ALL else 1
            self.assertEqual((made.leader, made.eligibleLeaders), (leader, ()))

    def test_lostAnother(self) -> None:
        """What is lost of other partitions changes nothing; it adds to an unclean stop."""
        self.build(LAST)
        registration, losses = self.registration(1, 50), {(TOPIC_ID, 1): Loss.ALL}
        made = self.apply(registerBroker(self.image, registration, LogState.INTACT, 10, losses))
        self.assertEqual((made.leader, made.inSync), (1, (1,)))
        self.build(LAST)
        losses = {(TOPIC_ID, 0): Loss.ALL}
        made = self.apply(registerBroker(self.image, registration, LogState.UNCERTAIN, 10, losses))
        self.assertEqual((made.leader, made.lastKnownLeader), (-1, -1))
        self.build(LAST)
        losses = {(TOPIC_ID, 0): Loss.SUFFIX}
        made = self.apply(registerBroker(self.image, registration, LogState.EMPTY, 10, losses))
        self.assertEqual((made.leader, made.lastKnownLeader), (-1, -1))

    def test_newPartition(self) -> None:
        """A new partition is led by its first replica that may; those there are in sync."""
        made = newPartition((1, 2, 3), lambda each: each != 1)
        self.assertEqual(made, PartitionImage(2, 0, 0, (1, 2, 3), (2, 3)))
        self.assertIsNone(newPartition((1,), lambda each: False))


class ShutdownTests(ImageCase):
    """Brokers that stop in order."""

    def test_leadersMove(self) -> None:
        """A broker that stops leads no more, and is in sync no more; it is not fenced."""
        self.build(THREE)
        self.assertEqual(self.partition.leader, 1)
        error, records = shutDownBroker(self.image, 1, 10)
        made = self.apply(records)
        self.assertEqual((error, made), (NONE, PartitionImage(2, 6, 10, (1, 2, 3), (2, 3))))
        self.assertEqual(self.partition.leader, 2)
        self.assertEqual(shutDownBroker(self.image, 1, 10), (NONE, []))

    def test_onlyReplica(self) -> None:
        """A leader that no replica can replace leads until it is gone."""
        self.build(LAST)
        made = self.apply(shutDownBroker(self.image, 1, 10)[1])
        self.assertEqual(made, LAST)
        self.assertEqual(self.apply(fenceAbsent(self.image, {2, 3, 4}, 100)).leader, -1)

    def test_stoppingIsNotElected(self) -> None:
        """A broker that stops is given nothing to lead, even as the last one in sync."""
        self.build(PartitionImage(1, 5, 9, (1, 2), (1, 2)), stopping=(2,))
        self.image.apply(
            self.partition._replace(partitionEpoch=10, inSync=(1,)).record(TOPIC_ID, 0)
        )
        self.assertEqual(self.apply(fenceAbsent(self.image, {2, 3, 4}, 100)).leader, -1)

    def test_stale(self) -> None:
        """A broker that is not registered, fenced, or of another epoch is refused."""
        self.build(THREE, fenced=(4,))
        for brokerId, epoch in ((1, 9), (4, 40), (5, 50)):
            answer = shutDownBroker(self.image, brokerId, epoch)
            self.assertEqual(answer, (ErrorCode.STALE_BROKER_EPOCH, []))

    def test_unregister(self) -> None:
        """Only a fenced broker without replicas is unregistered."""
        self.build(LAST, fenced=(2, 4))
        self.assertEqual(unregisterBroker(self.image, 9)[0], ErrorCode.BROKER_ID_NOT_REGISTERED)
        self.assertEqual(unregisterBroker(self.image, 2)[0], ErrorCode.INVALID_REQUEST)
        error, records = unregisterBroker(self.image, 4)
        self.apply(records)
        self.assertEqual((error, 4 in self.image.brokers), (NONE, False))
        self.build(LAST)
        self.assertEqual(unregisterBroker(self.image, 4)[0], ErrorCode.INVALID_REQUEST)


class LostDiskTests(ImageCase):
    """Replicas whose disk has failed."""

    def test_leaves(self) -> None:
        """A lost replica leaves both sets and leads no more, though its broker is there."""
        self.build(THREE)
        error, records = loseReplicas(self.image, 1, 10, {(TOPIC_ID, 0)})
        made = self.apply(records)
        self.assertEqual((error, made), (NONE, PartitionImage(2, 6, 10, (1, 2, 3), (2, 3))))

    def test_otherPartition(self) -> None:
        """Partitions on other disks stay as they are."""
        self.build(THREE)
        self.assertEqual(loseReplicas(self.image, 1, 10, {(TOPIC_ID, 1)}), (NONE, []))

    def test_last(self) -> None:
        """The last replica does not lead what it has lost, even with unclean election allowed."""
        self.build(LAST, brokers=(1,), unclean_leader_election_enable="true")
        (record,) = loseReplicas(self.image, 1, 10, {(TOPIC_ID, 0)})[1]
        self.image.apply(record)
        self.assertEqual(self.partition, PartitionImage(-1, 6, 10, (1, 2, 3), (), (), -1))

    def test_stale(self) -> None:
        """A report of an earlier process is refused."""
        self.build(THREE)
        answer = loseReplicas(self.image, 1, 9, {(TOPIC_ID, 0)})
        self.assertEqual(answer, (ErrorCode.STALE_BROKER_EPOCH, []))


class AlterPartitionTests(ImageCase):
    """In-sync sets that leaders ask for."""

    def request(self, *members: int, **fields: Any) -> AlterPartition:
        inSync = tuple(InSyncReplica(each, 10 * each) for each in members)
        return AlterPartition(TOPIC_ID, 0, 1, 10, 5, 9, inSync)._replace(**fields)

    def refused(self, error: ErrorCode, request: AlterPartition) -> None:
        self.assertEqual(alterPartition(self.image, request), (error, []))

    def test_accepted(self) -> None:
        """The set is changed, and the leader's epoch stays."""
        self.build(LAST)
        error, records = alterPartition(self.image, self.request(1, 3))
        self.assertEqual(error, NONE)
        self.assertEqual(self.apply(records), PartitionImage(1, 5, 10, (1, 2, 3), (1, 3)))

    def test_unchanged(self) -> None:
        """The set that is there already needs no record."""
        self.build(LAST)
        self.assertEqual(alterPartition(self.image, self.request(1)), (NONE, []))

    def test_smallerThanMin(self) -> None:
        """Those that leave a set below min.insync.replicas stay eligible."""
        self.build(THREE, min_insync_replicas="2")
        made = self.apply(alterPartition(self.image, self.request(1))[1])
        self.assertEqual((made.inSync, made.eligibleLeaders), ((1,), (2, 3)))
        request = self.request(1, 2, partitionEpoch=10)
        made = self.apply(alterPartition(self.image, request)[1])
        self.assertEqual((made.inSync, made.eligibleLeaders), ((1, 2), ()))

    def test_epochs(self) -> None:
        """Requests with a stale epoch of broker, leader or partition are refused."""
        self.build(LAST, fenced=(4,))
        stale = ErrorCode.STALE_BROKER_EPOCH
        self.refused(stale, self.request(1, 2, brokerEpoch=9))
        self.refused(stale, self.request(4, brokerId=4, brokerEpoch=40))
        self.refused(stale, self.request(9, brokerId=9, brokerEpoch=90))
        self.refused(ErrorCode.FENCED_LEADER_EPOCH, self.request(1, 2, leaderEpoch=4))
        self.refused(ErrorCode.INVALID_REQUEST, self.request(1, 2, leaderEpoch=6))
        self.refused(ErrorCode.INVALID_UPDATE_VERSION, self.request(1, 2, partitionEpoch=8))
        self.refused(ErrorCode.INVALID_UPDATE_VERSION, self.request(1, 2, partitionEpoch=10))

    def test_otherBroker(self) -> None:
        """Only the leader changes the set."""
        self.build(LAST)
        self.refused(ErrorCode.INVALID_REQUEST, self.request(1, 2, brokerId=2, brokerEpoch=20))

    def test_membersOutsideOfReplicas(self) -> None:
        """The set has the leader, and replicas only, each once."""
        self.build(LAST)
        for members in ((2,), (1, 4), (1, 2, 2)):
            self.refused(ErrorCode.INVALID_REQUEST, self.request(*members))

    def test_ineligible(self) -> None:
        """
        A replica that is fenced, that stops, or whose last fetch was of an earlier process is
        refused (KIP-841, KIP-903).
        """
        self.build(LAST, brokers=(1, 2), fenced=(2,))
        ineligible = ErrorCode.INELIGIBLE_REPLICA
        self.refused(ineligible, self.request(1, 2))
        self.refused(ineligible, self.request(1, 3))
        self.build(LAST, stopping=(2,))
        self.refused(ineligible, self.request(1, 2))
        stale = (InSyncReplica(1, 10), InSyncReplica(3, 29))
        self.refused(ineligible, self.request(1)._replace(inSync=stale))

    def test_leaderStops(self) -> None:
        """A leader that stops may still shrink its set, and gives way to one that joins it."""
        self.build(LAST, stopping=(1,))
        made = self.apply(alterPartition(self.image, self.request(1, 2))[1])
        self.assertEqual((made.leader, made.inSync), (2, (2,)))

    def test_unknown(self) -> None:
        """A topic or a partition that is not there is named as such."""
        self.build(LAST)
        other = self.request(1, 2)._replace(topicId=UUID(int=8))
        self.refused(ErrorCode.UNKNOWN_TOPIC_ID, other)
        self.refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self.request(1, 2, partition=1))


class ElectionTests(ImageCase):
    """Elections that an operator asks for."""

    def test_preferred(self) -> None:
        """The first replica leads if it is in sync."""
        self.build(PartitionImage(2, 5, 9, (1, 2, 3), (2, 1)))
        error, records = electLeader(self.image, TOPIC_ID, 0)
        self.assertEqual(records, electPreferred(self.image))
        self.assertEqual(self.apply(records), PartitionImage(1, 6, 10, (1, 2, 3), (2, 1)))
        self.assertEqual(error, NONE)
        again = electLeader(self.image, TOPIC_ID, 0)
        self.assertEqual(again, (ErrorCode.ELECTION_NOT_NEEDED, []))

    def test_imbalance(self) -> None:
        """
        A broker gets nothing back while it lacks no larger share than that of the partitions that
        prefer it; then it gets all.
        """
        self.build(PartitionImage(1, 0, 0, (1, 2), (1, 2)))
        many = UUID(int=8)
        self.image.apply(TopicRecord("many", str(many), 10))
        for number in range(10):
            replicas = (1, 2) if number < 9 else (2, 1)
            leader = 2 if number in (0, 9) else 1
            part = PartitionImage(leader, 0, 0, replicas, replicas)
            self.image.apply(part.record(many, number))
        self.assertEqual(electPreferred(self.image, 10), [])  # broker 1: one of ten
        record = PartitionImage(1, 1, 1, (1, 2), (1, 2)).record(many, 0)
        self.assertEqual(electPreferred(self.image, 9), [record])
        self.assertEqual(electPreferred(self.image), [record])
        self.image.apply(PartitionImage(1, 1, 1, (2, 1), (2, 1)).record(many, 9))
        record = PartitionImage(2, 2, 2, (2, 1), (2, 1)).record(many, 9)
        self.assertEqual(electPreferred(self.image, 10), [record])  # broker 2: one of one

    def test_preferredNotInSync(self) -> None:
        """A preferred leader that is not in sync has to wait."""
        self.build(PartitionImage(2, 5, 9, (1, 2, 3), (2, 3)))
        answer = electLeader(self.image, TOPIC_ID, 0)
        self.assertEqual(answer, (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, []))
        self.assertEqual(electPreferred(self.image), [])

    def test_unclean(self) -> None:
        """An operator may have a replica lead that is not in sync, if no other leads."""
        self.build(PartitionImage(-1, 5, 9, (1, 2, 3), (), (1,)), fenced=(1, 2))
        error, records = electLeader(self.image, TOPIC_ID, 0, isUnclean=True)
        self.assertEqual(
            (error, self.apply(records)), (NONE, PartitionImage(3, 6, 10, (1, 2, 3), (3,)))
        )
        answer = electLeader(self.image, TOPIC_ID, 0, isUnclean=True)
        self.assertEqual(answer, (ErrorCode.ELECTION_NOT_NEEDED, []))

    def test_uncleanWithNone(self) -> None:
        """An election needs a replica that is there."""
        self.build(PartitionImage(-1, 5, 9, (1, 2, 3), (), (1,)), fenced=(1, 2, 3))
        answer = electLeader(self.image, TOPIC_ID, 0, isUnclean=True)
        self.assertEqual(answer, (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, []))

    def test_unknown(self) -> None:
        """A partition that is not there is named as such."""
        self.build(THREE)
        answer = electLeader(self.image, TOPIC_ID, 1)
        self.assertEqual(answer, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []))


class ReassignmentTests(ImageCase):
    """Partitions that move."""

    def start(self, *target: int) -> PartitionImage:
        error, records = reassign(self.image, TOPIC_ID, 0, target)
        self.assertEqual(error, NONE)
        return self.apply(records)

    def join(self, *inSync: int) -> PartitionImage:
        members = tuple(InSyncReplica(each, 10 * each) for each in inSync)
        leader, epoch = self.partition.leader, self.partition.leaderEpoch
        request = AlterPartition(
            TOPIC_ID, 0, leader, 10 * leader, epoch, self.partition.partitionEpoch, members
        )
        error, records = alterPartition(self.image, request)
        self.assertEqual(error, NONE)
        return self.apply(records)

    def refused(self, error: ErrorCode, *target: int) -> None:
        self.assertEqual(reassign(self.image, TOPIC_ID, 0, target), (error, []))

    def test_steps(self) -> None:
        """Replicas are added, wait until all are in sync, lead, and then the old ones are gone."""
        self.build(PartitionImage(1, 5, 9, (1, 2), (1, 2)))
        made = self.start(3, 4)
        expected = PartitionImage(1, 5, 10, (3, 4, 1, 2), (1, 2), adding=(3, 4), removing=(1, 2))
        self.assertEqual(made, expected)
        made = self.join(1, 2, 3)
        self.assertEqual(made, expected._replace(partitionEpoch=11, inSync=(1, 2, 3)))
        made = self.join(1, 2, 3, 4)
        self.assertEqual(made, PartitionImage(3, 6, 12, (3, 4), (3, 4)))

    def test_fewer(self) -> None:
        """Replicas that are only removed go at once, in a new epoch."""
        self.build(THREE)
        self.assertEqual(self.start(1, 3), PartitionImage(1, 6, 10, (1, 3), (1, 3)))

    def test_reordered(self) -> None:
        """Another order names another preferred leader, and changes nothing else."""
        self.build(THREE)
        self.assertEqual(self.start(3, 2, 1), PartitionImage(1, 5, 10, (3, 2, 1), (1, 2, 3)))
        self.assertEqual(reassign(self.image, TOPIC_ID, 0, (3, 2, 1)), (NONE, []))

    def test_cancel(self) -> None:
        """A stopped reassignment leaves the replicas as they were, in a new epoch."""
        self.build(PartitionImage(1, 5, 9, (1, 2), (1, 2)))
        self.start(3, 4)
        self.join(1, 2, 3)
        error, records = reassign(self.image, TOPIC_ID, 0, None)
        made = self.apply(records)
        self.assertEqual((error, made), (NONE, PartitionImage(1, 6, 12, (1, 2), (1, 2))))
        answer = reassign(self.image, TOPIC_ID, 0, None)
        self.assertEqual(answer, (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, []))

    def test_cancelWithoutOriginals(self) -> None:
        """A reassignment is not stopped if only added replicas have the records."""
        partition = PartitionImage(3, 5, 9, (3, 4, 1), (3,), adding=(3, 4), removing=(1,))
        self.build(partition, fenced=(1,))
        answer = reassign(self.image, TOPIC_ID, 0, None)
        self.assertEqual(answer, (ErrorCode.INVALID_REPLICA_ASSIGNMENT, []))

    def test_addedLeaderLeaves(self) -> None:
        """An added replica that leads gives way when its reassignment is stopped."""
        partition = PartitionImage(3, 5, 9, (3, 4, 1), (3, 1), adding=(3, 4), removing=(1,))
        self.build(partition)
        made = self.apply(reassign(self.image, TOPIC_ID, 0, None)[1])
        self.assertEqual(made, PartitionImage(1, 6, 10, (1,), (1,)))

    def test_replaced(self) -> None:
        """Another target replaces an unfinished one."""
        self.build(PartitionImage(1, 5, 9, (1, 2), (1, 2)))
        self.start(3, 2)
        made = self.start(4, 2)
        self.assertEqual(made.replicas, (4, 2, 1))
        self.assertEqual((made.adding, made.removing), ((4,), (1,)))

    def test_completesOnlyWithALeader(self) -> None:
        """The old replicas stay while none of the new ones may lead."""
        self.build(PartitionImage(1, 5, 9, (1, 2), (1, 2)), fenced=(3,))
        made = self.start(3)
        self.assertEqual((made.replicas, made.adding), ((3, 1, 2), (3,)))

    def test_invalid(self) -> None:
        """A target has brokers that are registered, each once."""
        self.build(THREE)
        for target in ((), (1, 9), (1, 1)):
            self.refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, *target)
        answer = reassign(self.image, UUID(int=8), 0, (1,))
        self.assertEqual(answer, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []))


class SettingsTests(ImageCase):
    """Settings on which elections depend."""

    def test_lowerMinInSync(self) -> None:
        """
        With a lower min.insync.replicas the leader may commit alone: those that were eligible are
        not, before the setting changes.
        """
        self.build(PartitionImage(1, 5, 9, (1, 2, 3), (1,), (2,)), min_insync_replicas="2")
        change = self.config("min_insync_replicas", "1")
        records = changeSettings(self.image, [change])
        self.assertEqual(records[1:], [change])
        self.assertEqual(self.apply(records).eligibleLeaders, ())

    def test_higherMinInSync(self) -> None:
        """A higher min.insync.replicas makes no replica eligible that has left."""
        self.build(LAST)
        change = self.config("min_insync_replicas", "2")
        self.assertEqual(changeSettings(self.image, [change]), [change])

    def test_uncleanAllowed(self) -> None:
        """A partition without a leader gets one when unclean election is allowed."""
        self.build(PartitionImage(-1, 5, 9, (1, 2), (), (1,)), fenced=(1,))
        change = self.config("unclean_leader_election_enable", "true")
        self.assertEqual(self.apply(changeSettings(self.image, [change])).leader, 2)

    def test_adoptDefaults(self) -> None:
        """The first broker's file gives the cluster its defaults; no later one changes them."""
        self.build(PartitionImage(-1, 5, 9, (1, 2), (), (1,)), fenced=(1,))
        self.assertEqual(adoptDefaults(self.image, {}), [])
        values = {"min.insync.replicas": "2"}
        self.assertEqual(
            adoptDefaults(self.image, values),
            [ConfigRecord(CLUSTER_DEFAULT, "", "min.insync.replicas", "2")],
        )
        self.apply(adoptDefaults(self.image, values))
        self.assertEqual(minInSyncReplicas(self.image, self.image.topicsById[TOPIC_ID]), 2)
        values = {"min.insync.replicas": "3", "unclean.leader.election.enable": "true"}
        made = self.apply(adoptDefaults(self.image, values))
        self.assertEqual(self.image.brokerConfigs[""]["min.insync.replicas"], "2")
        self.assertEqual(made.leader, 2)
        self.assertEqual(adoptDefaults(self.image, values), [])

    def test_newTopic(self) -> None:
        """Settings may come with the topic that they are for."""
        self.build(THREE)
        records = [TopicRecord("new", str(UUID(int=8)), 1)]
        self.assertEqual(changeSettings(self.image, records), records)
