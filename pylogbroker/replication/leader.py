"""
A partition's leader in one leader epoch: which followers are in sync, and how far records are
committed. A pure state machine: events in, effects out. It is a module of its own, since it is the
other side of the follower: the two meet in fetches only.

What must be true:

 - The high watermark is at most the offset that each member of the maximal in-sync set has named:
   the set that the metadata have, and the one that was asked for. The second counts until the
   metadata show what became of it, since an answer may be lost on the way.
 - It stands still while the set that the metadata have is smaller than C{min.insync.replicas}.
 - A follower is proposed when it has named an offset that is not before the high watermark and not
   before the start of this epoch, in a fetch of this epoch and with the broker epoch that the
   metadata have. What an earlier process of the follower has named is forgotten.
 - One change of the set is under way at a time. It is asked for again until the metadata show a
   later partition epoch, or until it was refused for its members.

A follower that is caught up, but not yet joined, holds the watermark back, too: else a busy leader
would always be ahead of it. A follower leaves the in-sync set when it was not caught up for
C{replica.lag.time.max.ms}. It was caught up at the time of a fetch that named the leader's end, or
at the time of the fetch before, if it has reached what was the end then. One that is in sync, and
whose last fetch named the end, is caught up until the end moves: it need not ask again meanwhile.

Rejected: that the answer to C{AlterPartition} changes the set. The change comes by the metadata log
with all changes before it, such as one of C{min.insync.replicas}; so leader and controller agree on
who was eligible when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from pylogbroker.cluster.metadataimage import BrokerImage, PartitionImage
from pylogbroker.errors import OffsetOutOfRangeError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.controller import AlterPartition, InSyncReplica
from pylogbroker.replication.elections import effectiveMinInSync
from pylogbroker.replication.replicafetch import (
    UNDEFINED,
    IReplicaLog,
    ReplicaFetch,
    ReplicaFetchAnswer,
)
from pylogbroker.storage.kafka.epochs import EpochStart, divergence

ALTER_PARTITION_RETRY_MS = 1_000
"""How long to wait for the outcome of a request before it is sent again."""

NEVER_MS = -(1 << 62)
"""A time before all others."""


class ProposeInSync(NamedTuple):
    """An effect: ask for another in-sync set."""

    request: AlterPartition


class MoveHighWatermark(NamedTuple):
    """An effect: records before this offset are committed."""

    offset: int


LeaderEffect = ProposeInSync | MoveHighWatermark


class LeaderSettings(NamedTuple):
    """
    @ivar lagTimeMaxMs: C{replica.lag.time.max.ms}.
    """

    lagTimeMaxMs: int = 30_000


class PartitionState(NamedTuple):
    """
    What the metadata say at one position of the metadata log.

    @ivar minInSync: C{min.insync.replicas} of the topic.
    """

    partition: PartitionImage
    brokers: Mapping[int, BrokerImage]
    minInSync: int


class LogEnd(NamedTuple):
    """
    The end of the leader's log.

    @ivar acknowledgeable: the offset up to which the leader itself counts: what is flushed; or
        what is appended, where acknowledgements do not wait for flushes.
    """

    logEndOffset: int
    acknowledgeable: int


@dataclass
class FollowerState:
    """
    What the leader knows of a follower, by its fetches.

    @ivar logEndOffset: that its last fetch has named; -1: none.
    @ivar brokerEpoch: of its last fetch; -1: none.
    @ivar lastCaughtUpMs: when it had the leader's end for the last time.
    @ivar lastFetchMs: when it has fetched for the last time.
    @ivar lastFetchEndOffset: the leader's end then.
    @ivar logStartOffset: of its log then; -1: it does not say.
    """

    lastCaughtUpMs: int
    logEndOffset: int = UNDEFINED
    brokerEpoch: int = UNDEFINED
    lastFetchMs: int = 0
    lastFetchEndOffset: int = UNDEFINED
    logStartOffset: int = UNDEFINED

    def update(self, fetch: ReplicaFetch, leaderEndOffset: int, nowMs: int) -> None:
        """A fetch has come."""
        if fetch.brokerEpoch != self.brokerEpoch:
            self.brokerEpoch = fetch.brokerEpoch
            self.lastFetchEndOffset = UNDEFINED
        if fetch.offset >= leaderEndOffset:
            self.lastCaughtUpMs = max(self.lastCaughtUpMs, nowMs)
        elif self.lastFetchEndOffset != UNDEFINED and fetch.offset >= self.lastFetchEndOffset:
            self.lastCaughtUpMs = max(self.lastCaughtUpMs, self.lastFetchMs)
        self.logEndOffset = fetch.offset
        self.logStartOffset = fetch.logStartOffset
        self.lastFetchMs, self.lastFetchEndOffset = nowMs, leaderEndOffset

    def isCaughtUp(self, leaderEndOffset: int, nowMs: int, lagTimeMaxMs: int) -> bool:
        """Whether it has the leader's end, or had it not long ago."""
        isAtEnd = self.logEndOffset == leaderEndOffset
        return isAtEnd or nowMs - self.lastCaughtUpMs <= lagTimeMaxMs


class LeaderReplica:
    """
    The leader of a partition in one epoch.

    @ivar highWatermark: records before it are committed. It does not go back.
    @ivar epochStartOffset: the end of the log when the epoch began.
    @ivar followers: what is known of the other replicas, by broker.
    @ivar pending: the change of the in-sync set that is under way.
    """

    def __init__(
        self,
        topicId: UUID,
        number: int,
        broker: BrokerImage,
        state: PartitionState,
        log: IReplicaLog,
        end: LogEnd,
        highWatermark: int,
        settings: LeaderSettings,
        nowMs: int,
    ) -> None:
        """
        @param broker: this one, as it is registered.
        @param log: in whose epochs this one has begun at the log's end.
        @param end: that end.
        @param highWatermark: that the broker knew of before; not behind the log's end.
        """
        self._topicId, self._number = topicId, number
        self._broker = broker
        self._state = state
        self._log = log
        self._end = end
        self._settings = settings
        self._askedMs = nowMs
        self.leaderEpoch = state.partition.leaderEpoch
        self.epochStartOffset = end.logEndOffset
        self.highWatermark = highWatermark
        self.pending: AlterPartition | None = None
        self.followers: dict[int, FollowerState] = {}
        self._trackFollowers(nowMs)

    def start(self, nowMs: int) -> list[LeaderEffect]:
        """What is to be done at once: a leader alone in sync has committed what it has."""
        return self._advance(nowMs)

    # -- events

    def logChanged(self, end: LogEnd, nowMs: int) -> list[LeaderEffect]:
        """Records were appended, or flushed."""
        known = self._end.logEndOffset
        if end.logEndOffset > known:
            for each in self._state.partition.inSync:
                follower = self.followers.get(each)
                if follower is not None and follower.logEndOffset == known:
                    follower.lastCaughtUpMs = max(follower.lastCaughtUpMs, nowMs)
        self._end = end
        return self._advance(nowMs)

    def fetched(
        self, fetch: ReplicaFetch, logStartOffset: int, nowMs: int
    ) -> tuple[ReplicaFetchAnswer, list[LeaderEffect]]:
        """
        A follower asks for records.

        @return: the answer, with the watermark after the effects; and the effects.
        """
        error, diverging = self._check(fetch, logStartOffset)
        effects: list[LeaderEffect] = []
        if error is ErrorCode.NONE and diverging is None:
            self.followers[fetch.brokerId].update(fetch, self._end.logEndOffset, nowMs)
            effects = [*self._expand(nowMs), *self._advance(nowMs)]
        return ReplicaFetchAnswer(error, self.highWatermark, logStartOffset, diverging), effects

    def _check(
        self, fetch: ReplicaFetch, logStartOffset: int
    ) -> tuple[ErrorCode, EpochStart | None]:
        if fetch.leaderEpoch < self.leaderEpoch:
            return ErrorCode.FENCED_LEADER_EPOCH, None
        if fetch.leaderEpoch > self.leaderEpoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, None
        follower = self.followers.get(fetch.brokerId)
        if follower is None or fetch.brokerEpoch < follower.brokerEpoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        end, epoch = self._end.logEndOffset, fetch.lastFetchedEpoch
        if epoch != UNDEFINED:
            try:
                found = divergence(self._log.epochs, end, fetch.offset, epoch)
            except OffsetOutOfRangeError:
                return ErrorCode.OFFSET_OUT_OF_RANGE, None
            if found is not None:
                return ErrorCode.NONE, found
        if not logStartOffset <= fetch.offset <= end:
            return ErrorCode.OFFSET_OUT_OF_RANGE, None
        return ErrorCode.NONE, None

    def metadataChanged(self, state: PartitionState, nowMs: int) -> list[LeaderEffect]:
        """
        The metadata have changed, and this broker still leads in this epoch.

        @param state: with a partition epoch that is not smaller than before.
        """
        self._state = state
        pending = self.pending
        if pending is not None and state.partition.partitionEpoch > pending.partitionEpoch:
            self.pending = None
        self._trackFollowers(nowMs)
        return [*self._expand(nowMs), *self._advance(nowMs)]

    def alterPartitionRefused(
        self, request: AlterPartition, error: ErrorCode, nowMs: int
    ) -> list[LeaderEffect]:
        """
        A request was answered with an error. Only L{ErrorCode.INELIGIBLE_REPLICA} proves that it
        has not come about, not even when it was sent before.
        """
        if request == self.pending and error is ErrorCode.INELIGIBLE_REPLICA:
            self.pending = None
            return self._advance(nowMs)
        return []

    def timePassed(self, nowMs: int) -> list[LeaderEffect]:
        """
        To be called several times in C{replica.lag.time.max.ms}: drop followers that are behind
        from the in-sync set, and ask again for what was not answered.
        """
        if self.pending is not None:
            if nowMs - self._askedMs < ALTER_PARTITION_RETRY_MS:
                return []
            self._askedMs = nowMs
            return [ProposeInSync(self.pending)]
        inSync = self._state.partition.inSync
        kept = [each for each in inSync if each not in self.followers or self._keeps(each, nowMs)]
        effects = self._propose(kept, nowMs) if len(kept) < len(inSync) else self._expand(nowMs)
        return [*effects, *self._advance(nowMs)]

    # -- what others ask

    @property
    def inSync(self) -> tuple[int, ...]:
        """Those that the metadata have in sync, this broker among them."""
        return self._state.partition.inSync

    @property
    def brokerId(self) -> int:
        return self._broker.brokerId

    @property
    def outOfSync(self) -> tuple[int, ...]:
        """The followers that the metadata do not have in sync."""
        inSync = self._state.partition.inSync
        if len(inSync) > len(self.followers):
            return ()
        return tuple(each for each in self.followers if each not in inSync)

    @property
    def isAtRest(self) -> bool:
        """
        Whether L{timePassed} does nothing, however late: what can be committed is, those in sync
        have the end of the log, and no other can join.
        """
        end, inSync = self._end.logEndOffset, self._state.partition.inSync
        if self.pending is not None or (self.highWatermark < end and self.hasEnoughInSync):
            return False
        return all(
            follower.logEndOffset == end if each in inSync else not self._mayJoin(each)
            for each, follower in self.followers.items()
        )

    @property
    def maximalInSync(self) -> frozenset[int]:
        """Those that the metadata have in sync, and those that may be by now."""
        proposed = () if self.pending is None else self.pending.inSync
        return frozenset(self._state.partition.inSync) | {each.brokerId for each in proposed}

    @property
    def hasEnoughInSync(self) -> bool:
        """Whether C{acks=all} is served: else it is C{NOT_ENOUGH_REPLICAS}."""
        partition = self._state.partition
        least = effectiveMinInSync(self._state.minInSync, len(partition.replicas))
        return len(partition.inSync) >= least

    @property
    def hasReachedEpoch(self) -> bool:
        """
        Whether the watermark is not behind what clients may have seen of the leader before: else
        ListOffsets is C{OFFSET_NOT_AVAILABLE} (KIP-207).
        """
        return self.highWatermark >= self.epochStartOffset

    def lowWatermark(self, logStartOffset: int) -> int:
        """
        The offset from which on records may come back when another replica leads: what is before
        it is deleted on each replica that is in sync, or may be by now; -1: that is not known.

        @param logStartOffset: of the leader's log.
        """
        starts = [
            self.followers[each].logStartOffset
            for each in self.maximalInSync
            if each in self.followers
        ]
        return min([logStartOffset, *starts])

    # -- rules

    def _trackFollowers(self, nowMs: int) -> None:
        partition = self._state.partition
        for each in partition.replicas:
            if each != self._broker.brokerId and each not in self.followers:
                isInSync = each in partition.inSync
                self.followers[each] = FollowerState(nowMs if isInSync else NEVER_MS)
        for each in self.followers.keys() - set(partition.replicas):
            del self.followers[each]

    def _keeps(self, brokerId: int, nowMs: int) -> bool:
        end, lagTimeMaxMs = self._end.logEndOffset, self._settings.lagTimeMaxMs
        return self.followers[brokerId].isCaughtUp(end, nowMs, lagTimeMaxMs)

    def _isEligible(self, brokerId: int) -> bool:
        """Whether what a follower has named is what its registered process has."""
        broker = self._state.brokers.get(brokerId)
        if broker is None or not broker.mayLead:
            return False
        return broker.epoch == self.followers[brokerId].brokerEpoch

    def _mayJoin(self, brokerId: int) -> bool:
        reached = self.followers[brokerId].logEndOffset
        isBehind = reached < self.highWatermark or reached < self.epochStartOffset
        return not isBehind and self._isEligible(brokerId)

    def _expand(self, nowMs: int) -> list[LeaderEffect]:
        inSync = self._state.partition.inSync
        if self.pending is not None:
            return []
        joined = [each for each in self.followers if each not in inSync and self._mayJoin(each)]
        return self._propose([*inSync, *joined], nowMs) if joined else []

    def _propose(self, members: list[int], nowMs: int) -> list[LeaderEffect]:
        self.pending = AlterPartition(
            self._topicId,
            self._number,
            self._broker.brokerId,
            self._broker.epoch,
            self.leaderEpoch,
            self._state.partition.partitionEpoch,
            tuple(InSyncReplica(each, self._brokerEpochOf(each)) for each in members),
        )
        self._askedMs = nowMs
        return [ProposeInSync(self.pending)]

    def _brokerEpochOf(self, brokerId: int) -> int:
        """With which a broker is proposed: the one it has fetched with, or is in sync with."""
        if brokerId == self._broker.brokerId:
            return self._broker.epoch
        if brokerId in self._state.partition.inSync and brokerId in self._state.brokers:
            return self._state.brokers[brokerId].epoch
        return self.followers[brokerId].brokerEpoch

    def _advance(self, nowMs: int) -> list[LeaderEffect]:
        if not self.hasEnoughInSync:
            return []
        counted = self._end.acknowledgeable
        maximal = self.maximalInSync
        for each, follower in self.followers.items():
            isJoining = self._keeps(each, nowMs) and self._isEligible(each)
            if each in maximal or isJoining:
                counted = min(counted, follower.logEndOffset)
        if counted <= self.highWatermark:
            return []
        self.highWatermark = counted
        return [MoveHighWatermark(counted)]
