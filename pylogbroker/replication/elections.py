"""
Who leads one partition, who is in sync, and who may lead when no replica in sync is left; a module
of its own, since these rules can be read and checked without brokers, topics and records.

Every change of a partition by the controller goes through L{settled}: it takes the partition, what
is known about brokers, and what is asked for, and gives the partition as it must be. So each rule
stands in one place:

 - The leader is in sync. It is elected from the in-sync set; with none left there, from the
   eligible leaders (KIP-966); with both sets empty, it is the last known leader; then, where the
   topic allows unclean election, any replica. Otherwise the partition has no leader.
 - A replica that leaves the in-sync set while fewer than C{min.insync.replicas} remain stays
   eligible: the high watermark stands still from then on, so it has all that was acknowledged.
 - A replica that has lost records is in neither set.
 - Each new leader has a new leader epoch, also when no broker leads (so that a request of the old
   leader is refused), and when a replica is removed.

Rejected: that the last replica stays in the in-sync set when it is gone, as in Kafka before 4.0. If
it comes back with a shorter log, it leads all the same, and the others truncate what it lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import NamedTuple

from pylogbroker.cluster.metadataimage import PartitionImage

NO_LEADER = -1


class ElectionRules(NamedTuple):
    """
    What an election depends on, beside the partition.

    @ivar isAlive: whether a broker is registered and not fenced.
    @ivar mayLead: whether it is alive and not about to stop.
    @ivar minInSync: C{min.insync.replicas} of the topic.
    @ivar isUncleanAllowed: C{unclean.leader.election.enable} of the topic.
    """

    isAlive: Callable[[int], bool]
    mayLead: Callable[[int], bool]
    minInSync: int
    isUncleanAllowed: bool


class Loss(Enum):
    """What brokers have lost of a partition."""

    SUFFIX = "suffix"
    """Perhaps the end of the log, at an unclean stop: the broker may still be the last to lead."""
    ALL = "all"
    """The log: a failed or an empty disk."""


def newPartition(replicas: Sequence[int], mayLead: Callable[[int], bool]) -> PartitionImage | None:
    """
    A partition of a new topic: its log is empty, so all replicas that are there are in sync.

    @return: L{None} if no replica may lead.
    """
    inSync = tuple(each for each in replicas if mayLead(each))
    return PartitionImage(inSync[0], 0, 0, tuple(replicas), inSync) if inSync else None


def effectiveMinInSync(minInSync: int, replicaCount: int) -> int:
    """A partition with fewer replicas than C{min.insync.replicas} needs all of them."""
    return min(minInSync, replicaCount)


def settled(
    partition: PartitionImage,
    rules: ElectionRules,
    *,
    inSync: Sequence[int] | None = None,
    lost: Collection[int] = (),
    loss: Loss = Loss.SUFFIX,
    isPreferred: bool = False,
    isNewEpoch: bool = False,
) -> PartitionImage:
    """
    The partition as it must be.

    @param partition: as it is; its C{replicas}, C{adding} and C{removing} are those asked for.
    @param inSync: a new in-sync set that the leader has proposed; L{None}: as it was.
    @param lost: brokers that have lost records.
    @param loss: what they have lost.
    @param isPreferred: the first replica leads, if it is in sync and may.
    @param isNewEpoch: a new leader epoch begins in any case.
    @return: C{partition} itself if nothing changes; else with greater epochs.
    """
    settlement = _Settlement(partition, rules, inSync, frozenset(lost), loss, isPreferred)
    return settlement.result(isNewEpoch)


class _Settlement:
    """One use of L{settled}; the attributes are what the partition is to have."""

    def __init__(
        self,
        before: PartitionImage,
        rules: ElectionRules,
        inSync: Sequence[int] | None,
        lost: frozenset[int],
        loss: Loss,
        isPreferred: bool,
    ) -> None:
        self._before = before
        self._rules = rules
        self._lost = lost
        self._isPreferred = isPreferred
        self._replicas = before.replicas
        self._adding, self._removing = before.adding, before.removing
        wanted = before.inSync if inSync is None else tuple(inSync)
        self._inSync = self._present(wanted)
        self._completeReassignment()
        self._eligible = self._eligibleBeside(self._inSync)
        lastKnown = before.lastKnownLeader if before.leader == NO_LEADER else before.leader
        isForgotten = lastKnown not in self._replicas or (loss is Loss.ALL and lastKnown in lost)
        self._lastKnown = NO_LEADER if isForgotten else lastKnown

    def _present(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Those that are there. Who is about to stop leaves, unless no other replica would stay."""
        alive = [
            each
            for each in wanted
            if each in self._replicas and each not in self._lost and self._rules.isAlive(each)
        ]
        staying = [each for each in alive if self._rules.mayLead(each)]
        return tuple(staying or alive)

    def _completeReassignment(self) -> None:
        """Drop the removed replicas when each added one is in sync, and one that stays may lead."""
        if not self._adding and not self._removing:
            return
        staying = tuple(each for each in self._replicas if each not in self._removing)
        inSync = tuple(each for each in self._inSync if each in staying)
        if set(self._adding) <= set(inSync) and any(map(self._rules.mayLead, inSync)):
            self._replicas, self._inSync = staying, inSync
            self._adding = self._removing = ()

    def _eligibleBeside(self, inSync: tuple[int, ...]) -> tuple[int, ...]:
        if len(inSync) >= effectiveMinInSync(self._rules.minInSync, len(self._replicas)):
            return ()
        had = {*self._before.inSync, *self._before.eligibleLeaders} - self._lost
        return tuple(each for each in self._replicas if each in had and each not in inSync)

    def _elect(self) -> int:
        """The leader; the in-sync and eligible sets follow it."""
        mayLead = self._rules.mayLead
        preferred, leader = self._replicas[0], self._before.leader
        if self._isPreferred and preferred in self._inSync and mayLead(preferred):
            return preferred
        if leader in self._inSync:
            return leader
        candidates = [each for each in self._replicas if mayLead(each) and each not in self._lost]
        for each in candidates:
            if each in self._inSync:
                return each
        for each in candidates:
            if each in self._eligible:
                self._inSync = (each,)
                self._eligible = self._eligibleBeside(self._inSync)
                return each
        if not self._inSync and not self._eligible and self._lastKnown in candidates:
            leader = self._lastKnown
        elif candidates and self._rules.isUncleanAllowed:
            leader = candidates[0]
        else:
            return NO_LEADER
        self._inSync, self._eligible = (leader,), ()
        return leader

    def result(self, isNewEpoch: bool) -> PartitionImage:
        before = self._before
        leader = self._elect()
        isNewEpoch |= leader != before.leader or self._replicas != before.replicas
        made = PartitionImage(
            leader,
            before.leaderEpoch + isNewEpoch,
            before.partitionEpoch,
            self._replicas,
            self._inSync,
            self._eligible,
            self._lastKnown if leader == NO_LEADER else NO_LEADER,
            self._adding,
            self._removing,
        )
        return before if made == before else made._replace(partitionEpoch=before.partitionEpoch + 1)
