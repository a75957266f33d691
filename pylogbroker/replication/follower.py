"""
A partition's follower: it fetches from the leader, truncates where the logs part, and learns the
high watermark. A pure state machine: events in, effects out. It is a module of its own, since a
follower goes from leader to leader, and knows of them only what they answer.

What must be true:

 - A fetch names an offset when all before it is as durable as an acknowledgement promises: with
   C{isFlushed}, when it is on the disk. One request is under way at a time, and none while the log
   is written.
 - The log is truncated where its epochs part from the leader's, and never because of a watermark.
 - What another leader, or an earlier epoch of this one, has answered is dropped.
 - The watermark is at most the leader's and at most the log's end. It goes back only with a
   truncation below it, which only an unclean election brings about.
 - The log begins where the leader's does, or behind that, before its watermark moves. The leader
   cannot compare what it has deleted, so records before its log start may be another leader's.

  ================= ============================== ============================== ==============
  state             on                             effect                         then
  ================= ============================== ============================== ==============
  idle              a leader in a new epoch                                       ready
  idle              the same, log to be flushed    L{Flush}                       flushing
  ready             C{nextFetch}                   (the request)                  fetching
  fetching          records                        L{AppendRecords}                      writing
  fetching          no records                     L{SetHighWatermark}            ready
  fetching          the logs part                  L{Truncate}                    writing
  fetching          out of the leader's range      L{StartOver}                   writing
  fetching          an error, no answer                                           delayed
  fetching          a leader in a new epoch                                       ready
  writing           written, to be flushed         L{Flush}                       flushing
  writing           written                        L{SetHighWatermark}            ready
  flushing          flushed to the end             L{SetHighWatermark}            ready
  delayed           C{nextFetch} in time           (the request)                  fetching
  any               no leader, leads itself                                       idle
  any               the log has failed                                            failed
  ================= ============================== ============================== ==============

A new leader while the log is written or flushed is followed when that is done.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.elections import NO_LEADER
from pylogbroker.replication.replicafetch import (
    UNDEFINED,
    IReplicaLog,
    ReplicaFetch,
    ReplicaFetchAnswer,
)
from pylogbroker.storage.kafka.epochs import truncationFor

_NOT_LEADING_YET = (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""A broker learns that it leads when it reads the metadata, perhaps later than its followers."""

_DOUBLINGS_MAX = 10


class FetchState(Enum):
    """What a follower is doing; the module's table says what follows."""

    IDLE = "idle"
    READY = "ready"
    FETCHING = "fetching"
    WRITING = "writing"
    FLUSHING = "flushing"
    DELAYED = "delayed"
    FAILED = "failed"


class AppendRecords(NamedTuple):
    """An effect: append the answer's records as they are, then call C{appended}."""


class Flush(NamedTuple):
    """An effect: flush the log, then call C{flushed}."""


class Truncate(NamedTuple):
    """
    An effect: drop records from an offset on, then call C{truncated}.

    @ivar isBelowHighWatermark: committed records are dropped, since an unclean leader lacks them.
    """

    offset: int
    isBelowHighWatermark: bool


class StartOver(NamedTuple):
    """An effect: drop all records, begin at an offset, then call C{startedOver}."""

    offset: int


class SetHighWatermark(NamedTuple):
    """
    An effect: records before an offset are committed.

    @ivar logStartOffset: of the leader, not behind C{offset}: records before it are deleted here,
        too, if there are any.
    """

    offset: int
    logStartOffset: int


FollowerEffect = AppendRecords | Flush | Truncate | StartOver | SetHighWatermark


class FollowerSettings(NamedTuple):
    """
    @ivar isFlushed: whether an offset is named only when the records before it are flushed.
    @ivar backOffMs: C{replica.fetch.backoff.ms}.
    @ivar firstBackOffMs: how long to wait for a broker that does not know yet that it leads. It
        doubles with each answer of this kind, up to C{backOffMs}; -1: as long as for other errors.
    """

    isFlushed: bool = True
    backOffMs: int = 1_000
    firstBackOffMs: int = -1


class FollowerReplica:
    """
    A follower of a partition.

    @ivar leader: the broker to fetch from; -1: none.
    @ivar leaderEpoch: in which it leads.
    @ivar highWatermark: as far as the follower knows.
    @ivar logEndOffset: of the follower's log.
    @ivar retryMs: while it is delayed: when it fetches again.
    """

    def __init__(
        self,
        brokerId: int,
        brokerEpoch: int,
        log: IReplicaLog,
        highWatermark: int,
        settings: FollowerSettings,
    ) -> None:
        """
        @param brokerEpoch: of this broker's registration.
        @param log: at rest.
        @param highWatermark: that was known before; what is behind the log's end does not count.
        """
        self._brokerId, self._brokerEpoch = brokerId, brokerEpoch
        self._log = log
        self._settings = settings
        self._flushedOffset = log.flushedOffset
        self._request: ReplicaFetch | None = None
        self._requestCount = 0
        self._refusalCount = 0  # by a broker that does not know yet that it leads
        self.retryMs = 0
        self._leaderHighWatermark = self._leaderLogStart = -1
        self.state = FetchState.IDLE
        self.leader, self.leaderEpoch = NO_LEADER, -1
        self.logEndOffset = log.logEndOffset
        self.highWatermark = min(highWatermark, log.logEndOffset)

    # -- events

    def leaderChanged(self, leader: int, leaderEpoch: int) -> list[FollowerEffect]:
        """
        The metadata name a leader in another epoch, or none.

        @return: nothing for an epoch that is not later than the one that is known.
        """
        if leaderEpoch <= self.leaderEpoch or self.state is FetchState.FAILED:
            return []
        self.leader, self.leaderEpoch = leader, leaderEpoch
        self._request = None
        self._refusalCount = 0
        self._leaderHighWatermark = self._leaderLogStart = -1
        if self.state in (FetchState.WRITING, FetchState.FLUSHING):
            return []
        return self._continue()

    def nextFetch(self, nowMs: int) -> ReplicaFetch | None:
        """
        What to ask the leader now, if anything. Its answer goes to L{answered}, or L{unanswered} is
        called.
        """
        isDue = self.state is FetchState.DELAYED and nowMs >= self.retryMs
        if not isDue and self.state is not FetchState.READY:
            return None
        self._requestCount += 1
        self.state = FetchState.FETCHING
        self._request = ReplicaFetch(
            self._brokerId,
            self._brokerEpoch,
            self.leaderEpoch,
            self.logEndOffset,
            self._log.epochs.lastOf(self.logEndOffset),
            self._requestCount,
        )
        return self._request

    def answered(
        self, request: ReplicaFetch, answer: ReplicaFetchAnswer, hasRecords: bool, nowMs: int
    ) -> list[FollowerEffect]:
        """
        The leader has answered.

        @param hasRecords: whether records came with the answer.
        """
        if request != self._request:
            return []
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and answer.logStartOffset != UNDEFINED:
            # An empty log may also begin behind the end of a leader that was elected uncleanly.
            isEmpty = request.lastFetchedEpoch == UNDEFINED
            if isEmpty or answer.logStartOffset > self.logEndOffset:
                return self._write(StartOver(answer.logStartOffset))
        if answer.error in _NOT_LEADING_YET and self._settings.firstBackOffMs >= 0:
            first, most = self._settings.firstBackOffMs, self._settings.backOffMs
            self._delay(nowMs + min(first << min(self._refusalCount, _DOUBLINGS_MAX), most))
            self._refusalCount += 1
            return []
        if answer.error is not ErrorCode.NONE:
            return self.unanswered(request, nowMs)
        if answer.diverging is not None:
            offset = truncationFor(self._log.epochs, self.logEndOffset, answer.diverging).offset
            return self._write(Truncate(offset, offset < self.highWatermark))
        self._leaderHighWatermark = answer.highWatermark
        self._leaderLogStart = answer.logStartOffset
        if hasRecords:
            return self._write(AppendRecords())
        self._request = None
        return self._continue()

    def unanswered(self, request: ReplicaFetch, nowMs: int) -> list[FollowerEffect]:
        """The connection was lost, or the leader has answered with an error."""
        if request == self._request:
            self._delay(nowMs + self._settings.backOffMs)
        return []

    def appended(self, logEndOffset: int) -> list[FollowerEffect]:
        """The records of the last answer are in the log."""
        self.logEndOffset = logEndOffset
        return self._continue()

    def flushed(self, offset: int) -> list[FollowerEffect]:
        """The log is flushed up to an offset, perhaps for another reason than L{Flush}."""
        self._flushedOffset = max(self._flushedOffset, offset)
        isAwaited = self.state is FetchState.FLUSHING
        return self._continue() if isAwaited and self._isFlushed else []

    def truncated(self, logEndOffset: int) -> list[FollowerEffect]:
        """The log has lost its end."""
        self.logEndOffset = logEndOffset
        self._flushedOffset = min(self._flushedOffset, logEndOffset)
        self.highWatermark = min(self.highWatermark, logEndOffset)
        return self._continue()

    def startedOver(self, offset: int) -> list[FollowerEffect]:
        """
        The log is empty, and begins at an offset, durably. What the leader has deleted before it
        was committed.
        """
        self.logEndOffset = self._flushedOffset = self.highWatermark = offset
        return self._continue()

    def logFailed(self) -> list[FollowerEffect]:
        """The disk has failed: nothing is done any more."""
        self.state, self._request = FetchState.FAILED, None
        return []

    # -- what others ask

    @property
    def leaderHighWatermark(self) -> int:
        """
        What the leader of this epoch has said last. This log may be behind it. -1: nothing yet.
        """
        return self._leaderHighWatermark

    @property
    def isCaughtUp(self) -> bool:
        """Whether it has what the leader has committed, as far as it knows."""
        return 0 <= self._leaderHighWatermark <= self.logEndOffset

    # -- rules

    def _delay(self, untilMs: int) -> None:
        self._request = None
        self.state, self.retryMs = FetchState.DELAYED, untilMs

    @property
    def _isFlushed(self) -> bool:
        return not self._settings.isFlushed or self._flushedOffset >= self.logEndOffset

    def _write(self, effect: FollowerEffect) -> list[FollowerEffect]:
        self.state, self._request = FetchState.WRITING, None
        return [effect]

    def _continue(self) -> list[FollowerEffect]:
        """The log is at rest: go on with what is next."""
        if self.state is FetchState.FAILED:
            return []
        if not self._isFlushed:
            self.state = FetchState.FLUSHING
            return [Flush()]
        isFollowing = self.leader not in (NO_LEADER, self._brokerId)
        self.state = FetchState.READY if isFollowing else FetchState.IDLE
        watermark = min(self._leaderHighWatermark, self.logEndOffset)
        logStart = min(self._leaderLogStart, watermark)
        if watermark <= self.highWatermark and logStart <= self._log.logStartOffset:
            return []
        self.highWatermark = max(self.highWatermark, watermark)
        return [SetHighWatermark(self.highWatermark, logStart)]
