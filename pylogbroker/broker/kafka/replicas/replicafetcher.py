"""
L{ReplicaFetcher}: fetches from one leader, for all partitions that follow it, in one request after
another on one connection. A module of its own, since it knows requests and time, and neither logs
nor metadata.

What must be true:

  - A request has the partitions that have nothing to write. One that is being written is in the
  next request; so each has one request under way at most.
  - The next request waits until what the last one brought is written, for L{WRITE_WAIT_MS} at the
  longest: a leader that has nothing for the others would hold it for C{replica.fetch.wait.max.ms},
  and the acknowledgement of what was just written with it.
  - A partition that fails, or whose disk is full, does not hold up the others.
  - An answer has at most C{replica.fetch.response.max.bytes}, or one batch. A partition that was
  given records goes to the end of the next request, so that each has its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.interbroker import InterBrokerConnections, Purpose
from pylogbroker.errors import ClosedError, PylogbrokerError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import errorCode
from pylogbroker.replication.follower import FetchState, FollowerReplica
from pylogbroker.replication.replicafetch import ReplicaFetch, ReplicaFetchAnswer
from pylogbroker.storage.kafka.epochs import EpochStart

if TYPE_CHECKING:
    from pylogbroker.broker.kafka.replicas.replicamanager import HostedReplica

WRITE_WAIT_MS = 200
"""How long a request waits for what the one before has brought."""

BUSY_WAIT_MS = 20
"""How long a leader may hold a request while a partition that is not in it is being written."""

log = Logger()


class FetchSettings(NamedTuple):
    """
    @ivar partitionSizeMax: bytes of a partition in an answer (C{replica.fetch.max.bytes}).
    @ivar sizeMax: bytes of an answer (C{replica.fetch.response.max.bytes}).
    @ivar minSize: bytes for which the leader waits (C{replica.fetch.min.bytes}).
    @ivar waitMs: how long (C{replica.fetch.wait.max.ms}).
    @ivar backOffMs: after an error (C{replica.fetch.backoff.ms}).
    """

    brokerId: int
    partitionSizeMax: int
    sizeMax: int
    minSize: int
    waitMs: int
    backOffMs: int


class IFetchReceiver(Protocol):
    """What takes the answers."""

    def nowMs(self) -> int: ...

    def logStartOf(self, replica: HostedReplica) -> int: ...

    def answered(
        self,
        replica: HostedReplica,
        follower: FollowerReplica,
        request: ReplicaFetch,
        answer: ReplicaFetchAnswer,
        records: Any,
    ) -> None: ...

    def unanswered(
        self, replica: HostedReplica, follower: FollowerReplica, request: ReplicaFetch
    ) -> None: ...


_Asked = tuple["HostedReplica", FollowerReplica, ReplicaFetch]


class ReplicaFetcher:
    """Fetches from a leader; the module states the rules."""

    def __init__(
        self,
        clock: Any,
        leader: int,
        connections: InterBrokerConnections,
        settings: FetchSettings,
        receiver: IFetchReceiver,
    ) -> None:
        """@param leader: the broker."""
        self._clock = clock
        self._leader = leader
        self._connections = connections
        self._settings = settings
        self._receiver = receiver
        self._replicas: dict[HostedReplica, None] = {}
        self._woken: Waiters[None] = Waiters()
        self._isWoken = False
        self._isRunning = self._isStopped = False
        self._request: Deferred[Any] | None = None
        self._hasWarned = False

    def add(self, replica: HostedReplica) -> None:
        """Fetch for a partition."""
        self._replicas[replica] = None
        self.wake()
        if not self._isRunning:
            self._isRunning = True
            Deferred.fromCoroutine(self._run()).addErrback(self._ended)

    def remove(self, replica: HostedReplica) -> None:
        """Fetch for a partition no more."""
        self._replicas.pop(replica, None)
        self.wake()

    def wake(self) -> None:
        """A partition may be fetched now, or is written."""
        self._isWoken = True
        self._woken.fire(None)

    def stop(self) -> None:
        """Fetch no more. A request under way is given up."""
        self._isStopped = True
        self.wake()
        if self._request is not None:
            self._request.cancel()

    def _ended(self, failure: Failure) -> None:
        self._isRunning = False
        log.failure("Fetching from a leader failed: this is a bug", failure)

    async def _run(self) -> None:
        while self._replicas and not self._isStopped:
            asked = self._asked()
            if asked:
                await self._fetch(asked)
                await self._written([replica for replica, _, _ in asked])
            else:
                await self._sleep(self._settings.backOffMs)
        self._isRunning = False

    def _asked(self) -> list[_Asked]:
        self._isWoken = False
        nowMs, asked = self._receiver.nowMs(), []
        for replica in self._replicas:
            follower = replica.follower
            if follower is not None and follower.leader == self._leader:
                request = follower.nextFetch(nowMs)
                if request is not None:
                    asked.append((replica, follower, request))
        return asked

    async def _sleep(self, ms: float) -> None:
        if not self._isWoken and not self._isStopped:
            timer = Timer(self._clock)
            timer.start(ms, self.wake)
            await self._woken.wait()
            timer.stop()
        self._isWoken = False

    async def _written(self, replicas: Sequence[HostedReplica]) -> None:
        """Wait until what was fetched is written, but not for long."""
        endMs = self._receiver.nowMs() + WRITE_WAIT_MS
        left = [*replicas]
        while left and not self._isStopped:
            # Each of perhaps thousands wakes when it is written: those are not looked at again.
            if not _isBusy(left[-1]):
                left.pop()
                continue
            leftMs = endMs - self._receiver.nowMs()
            if leftMs <= 0:
                return
            await self._sleep(leftMs)

    async def _fetch(self, asked: list[_Asked]) -> None:
        waitMs = self._settings.waitMs
        if any(map(_isBusy, self._replicas)):
            waitMs = min(waitMs, BUSY_WAIT_MS)
        self._request = self._connections.request(
            self._leader, Purpose.REPLICATION, ApiKey.FETCH, self._body(asked, waitMs), waitMs
        )
        found: dict[tuple[bytes, int], Any] = {}
        try:
            response = await self._request
            if response.errorCode:
                self._warn(errorCode(response.errorCode).name)
            else:
                self._hasWarned = False
                for topic in response.responses:
                    for part in topic.partitions:
                        found[bytes(topic.topicId), part.partitionIndex] = part
        except (CancelledError, ClosedError):
            pass  # the broker stops
        except PylogbrokerError as error:
            self._warn(str(error))
        finally:
            self._request = None
        if self._isStopped:
            return
        for replica, follower, request in asked:
            part = found.get((replica.topic.topicId.bytes, replica.index))
            if part is None:
                self._receiver.unanswered(replica, follower, request)
                continue
            if part.records and replica in self._replicas:
                del self._replicas[replica]
                self._replicas[replica] = None
            self._receiver.answered(replica, follower, request, _answerOf(part), part.records)

    def _warn(self, reason: str) -> None:
        if not self._hasWarned:
            self._hasWarned = True
            log.warn(
                "Replicas cannot be fetched from broker {leader}: {reason}. It is tried again",
                leader=self._leader,
                reason=reason,
            )

    def _body(self, asked: list[_Asked], waitMs: int) -> Any:
        cls, settings = messages.FetchRequest, self._settings
        topics: dict[bytes, list[Any]] = {}
        for replica, _follower, request in asked:
            part = cls.FetchPartition(
                partition=replica.index,
                currentLeaderEpoch=request.leaderEpoch,
                fetchOffset=request.offset,
                lastFetchedEpoch=request.lastFetchedEpoch,
                logStartOffset=self._receiver.logStartOf(replica),
                partitionMaxBytes=settings.partitionSizeMax,
            )
            topics.setdefault(replica.topic.topicId.bytes, []).append(part)
        return cls(
            replicaState=cls.ReplicaState(
                replicaId=settings.brokerId, replicaEpoch=asked[0][2].brokerEpoch
            ),
            maxWaitMs=waitMs,
            minBytes=settings.minSize,
            maxBytes=settings.sizeMax,
            sessionId=0,
            sessionEpoch=-1,
            topics=[
                cls.FetchTopic(topicId=each, partitions=parts) for each, parts in topics.items()
            ],
        )


def _isBusy(replica: HostedReplica) -> bool:
    """Whether a partition is being written."""
    follower = replica.follower
    return follower is not None and follower.state in (FetchState.WRITING, FetchState.FLUSHING)


def _answerOf(part: Any) -> ReplicaFetchAnswer:
    diverging = part.divergingEpoch
    return ReplicaFetchAnswer(
        errorCode(part.errorCode),
        part.highWatermark,
        part.logStartOffset,
        EpochStart(diverging.epoch, diverging.endOffset) if diverging.epoch >= 0 else None,
    )
