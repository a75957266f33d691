"""
A broker's replica of a partition: as the metadata change, it leads, follows, or does neither; a
module of its own, since neither a leader nor a follower knows of the other role.

What must be true: a process acts on the metadata only from its own registration on, and only until
that is fenced or replaced. What they say before is about the process that was there before, whose
log may have been longer: if that one was the leader, this one is not.

A replica whose log has failed does nothing until its broker registers anew.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from pylogbroker.replication.follower import (
    FollowerEffect,
    FollowerReplica,
    FollowerSettings,
)
from pylogbroker.replication.leader import (
    LeaderEffect,
    LeaderReplica,
    LeaderSettings,
    LogEnd,
    PartitionState,
)
from pylogbroker.replication.replicafetch import IReplicaLog


class StopLeading(NamedTuple):
    """An effect: requests that wait for the leader are answered with NOT_LEADER_OR_FOLLOWER."""


class RemoveLog(NamedTuple):
    """An effect: the broker has no replica of the partition any more."""


ReplicaEffect = LeaderEffect | FollowerEffect | StopLeading | RemoveLog


class ReplicaSettings(NamedTuple):
    """
    @ivar isFlushed: whether what is acknowledged is flushed, on the leader and on followers.
    @ivar lagTimeMaxMs: C{replica.lag.time.max.ms}.
    @ivar backOffMs: C{replica.fetch.backoff.ms}.
    @ivar firstBackOffMs: as of L{FollowerSettings}.
    """

    isFlushed: bool = True
    lagTimeMaxMs: int = 30_000
    backOffMs: int = 1_000
    firstBackOffMs: int = -1


class PartitionReplica:
    """
    A replica, from one registration of its broker to the next.

    @ivar leader: while it leads.
    @ivar follower: while it follows, or waits for a leader.
    """

    def __init__(
        self,
        topicId: UUID,
        number: int,
        brokerId: int,
        brokerEpoch: int,
        log: IReplicaLog,
        highWatermark: int,
        settings: ReplicaSettings,
    ) -> None:
        """
        @param brokerEpoch: of this process's registration.
        @param highWatermark: the last one that is known; what is behind the log's end does not
            count.
        """
        self._topicId, self._number = topicId, number
        self._brokerId, self._brokerEpoch = brokerId, brokerEpoch
        self._log = log
        self._settings = settings
        self._highWatermark = max(min(highWatermark, log.logEndOffset), log.logStartOffset)
        self._hasFailed = False
        self.leader: LeaderReplica | None = None
        self.follower: FollowerReplica | None = None

    @property
    def highWatermark(self) -> int:
        """Records before it are committed."""
        role = self.leader or self.follower
        return self._highWatermark if role is None else role.highWatermark

    def metadataChanged(self, state: PartitionState, nowMs: int) -> list[ReplicaEffect]:
        """
        The metadata are at a later position.

        The caller appends and truncates before it calls again: at a change of the leader, no write
        of the follower is under way.
        """
        partition = state.partition
        broker = state.brokers.get(self._brokerId)
        isRegistered = broker is not None and broker.epoch == self._brokerEpoch
        if broker is None or not isRegistered or broker.isFenced or self._hasFailed:
            return self.resign()
        if partition.leader == self._brokerId:
            return self._lead(state, nowMs)
        if self._brokerId not in partition.replicas:
            return [*self.resign(), RemoveLog()]
        effects = self.resign() if self.leader is not None else []
        if self.follower is None:
            self.follower = FollowerReplica(
                self._brokerId,
                self._brokerEpoch,
                self._log,
                self._highWatermark,
                FollowerSettings(
                    self._settings.isFlushed,
                    self._settings.backOffMs,
                    self._settings.firstBackOffMs,
                ),
            )
        if partition.leaderEpoch > self.follower.leaderEpoch:
            self._log.followEpoch(partition.leaderEpoch)
        return [*effects, *self.follower.leaderChanged(partition.leader, partition.leaderEpoch)]

    def resign(self) -> list[ReplicaEffect]:
        """Neither lead nor follow: also to be called when the broker's session has ended."""
        self._highWatermark = self.highWatermark
        hasLed = self.leader is not None
        self.leader = self.follower = None
        return [StopLeading()] if hasLed else []

    def logFailed(self) -> list[ReplicaEffect]:
        """The disk has failed."""
        self._hasFailed = True
        return self.resign()

    def logChanged(self, nowMs: int) -> list[ReplicaEffect]:
        """Records were appended by the leader, or flushed."""
        if self.leader is not None:
            return [*self.leader.logChanged(self._logEnd(), nowMs)]
        if self.follower is not None:
            return [*self.follower.flushed(self._log.flushedOffset)]
        return []

    def _lead(self, state: PartitionState, nowMs: int) -> list[ReplicaEffect]:
        partition = state.partition
        if self.leader is not None and self.leader.leaderEpoch == partition.leaderEpoch:
            return [*self.leader.metadataChanged(state, nowMs)]
        effects = self.resign()
        self._log.assignEpoch(partition.leaderEpoch)
        self.leader = LeaderReplica(
            self._topicId,
            self._number,
            state.brokers[self._brokerId],
            state,
            self._log,
            self._logEnd(),
            self._highWatermark,
            LeaderSettings(self._settings.lagTimeMaxMs),
            nowMs,
        )
        return [*effects, *self.leader.start(nowMs)]

    def _logEnd(self) -> LogEnd:
        end = self._log.logEndOffset
        return LogEnd(end, self._log.flushedOffset if self._settings.isFlushed else end)
