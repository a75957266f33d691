"""
L{ReplicaFetcher}: fetches from one leader, for all partitions that follow it, in one request after
another on one connection. A module of its own, since it knows requests and time, and neither logs
nor metadata.

What must be true:

  - A fetch session (KIP-227) has the partitions that have nothing to write: what they ask stands
  until the leader has news for them. A request names those whose question is a new one, at most
  L{NAMED_COUNT_MAX}, so that thousands do not hold up either broker. One that is being written
  leaves the session until that is done.
  - Neither a request nor a response costs more for partitions without news.
  - The next request waits until what the last one brought is written, for L{WRITE_WAIT_MS} at the
  longest: a leader that has nothing for the others would hold it for C{replica.fetch.wait.max.ms},
  and the acknowledgement of what was just written with it.
  - A partition that fails, or whose disk is full, does not hold up the others. One that is
  throttled asks nothing; it is looked at again after C{replica.fetch.backoff.ms}.
  - An answer has at most C{replica.fetch.response.max.bytes}, or one batch. A partition that was
  given records is read behind those that were left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.interbroker import InterBrokerConnections, Purpose
from pylogbroker.broker.kafka.fetchsessions import EPOCH_MAX, INITIAL_EPOCH, NO_SESSION
from pylogbroker.errors import ClosedError, PylogbrokerError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, errorCode
from pylogbroker.replication.follower import FetchState, FollowerReplica
from pylogbroker.replication.replicafetch import ReplicaFetch, ReplicaFetchAnswer
from pylogbroker.storage.kafka.epochs import EpochStart

if TYPE_CHECKING:
    from pylogbroker.broker.kafka.replicas.replicamanager import HostedReplica

WRITE_WAIT_MS = 200
"""How long a request waits for what the one before has brought."""

BUSY_WAIT_MS = 20
"""How long a leader may hold a request while a partition that is not in it is being written."""

NAMED_COUNT_MAX = 1_000
"""Partitions that a request names. The others follow at once, if the leader has sessions."""

PartitionKey = tuple[bytes, int]
"""A topic's id, and the partition's number."""

_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

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

    def isThrottled(self, replica: HostedReplica, follower: FollowerReplica) -> bool: ...

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


class _Asked(NamedTuple):
    """
    What a partition's follower asks; the answer may come with a later response.

    @ivar place: what the request says of it: leader epoch, offset, epoch of the last record, log
        start.
    """

    replica: HostedReplica
    follower: FollowerReplica
    request: ReplicaFetch
    place: tuple[int, int, int, int]

    @property
    def isAwaited(self) -> bool:
        """Whether the follower waits for the answer."""
        follower = self.follower
        return self.replica.follower is follower and follower.state is FetchState.FETCHING


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
        self._due: dict[HostedReplica, None] = {}  # to be looked at
        self._delayed: dict[HostedReplica, int] = {}  # until when, after an error
        self._busy: dict[HostedReplica, None] = {}  # are written
        self._naming: dict[PartitionKey, _Asked] = {}  # of the next requests
        self._named: dict[PartitionKey, _Asked] = {}  # in the session, or the request under way
        self._forgotten: dict[PartitionKey, None] = {}  # are to leave the session
        self._sessionId, self._sessionEpoch = NO_SESSION, INITIAL_EPOCH
        self._hasNoSession = False  # the leader has no room for one
        self._brokerEpoch = -1
        self._woken: Waiters[None] = Waiters()
        self._isWoken = False
        self._isRunning = self._isStopped = False
        self._request: Deferred[Any] | None = None
        self._hasWarned = False

    def add(self, replica: HostedReplica) -> None:
        """Fetch for a partition."""
        self._replicas[replica] = None
        self.wake(replica)
        if not self._isRunning:
            self._isRunning = True
            Deferred.fromCoroutine(self._run()).addErrback(self._ended)

    def remove(self, replica: HostedReplica) -> None:
        """Fetch for a partition no more."""
        self._replicas.pop(replica, None)
        self._due.pop(replica, None)
        self._delayed.pop(replica, None)
        self._busy.pop(replica, None)
        self._forget(replica)
        self._wake()

    def wake(self, replica: HostedReplica) -> None:
        """The state of a partition's follower may have changed."""
        self._due[replica] = None
        self._busy.pop(replica, None)
        self._wake()

    def _wake(self) -> None:
        self._isWoken = True
        self._woken.fire(None)

    def stop(self) -> None:
        """Fetch no more. A request under way is given up."""
        self._isStopped = True
        self._wake()
        if self._request is not None:
            self._request.cancel()

    def _ended(self, failure: Failure) -> None:
        self._isRunning = False
        log.failure("Fetching from a leader failed: this is a bug", failure)

    async def _run(self) -> None:
        while self._replicas and not self._isStopped:
            self._look()
            named = self._takeNamed()
            if named or self._named:
                await self._written(await self._fetch(named))
            else:
                await self._sleep(self._settings.backOffMs)
        self._isRunning = False

    async def _sleep(self, ms: float) -> None:
        if not self._isWoken and not self._isStopped:
            timer = Timer(self._clock)
            timer.start(ms, self._wake)
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

    # -- what to ask

    def _look(self) -> None:
        """See what the followers want to know whose state has changed."""
        self._isWoken = False
        nowMs = self._receiver.nowMs()
        while self._delayed and (first := next(iter(self._delayed))) is not None:
            if self._delayed[first] > nowMs:
                break
            del self._delayed[first]
            self._due[first] = None
        due, self._due = self._due, {}
        for replica in due:
            follower = replica.follower
            isHere = follower is not None and follower.leader == self._leader
            if replica not in self._replicas or follower is None or not isHere:
                self._forget(replica)
                continue
            if self._isThrottled(replica, follower):
                self._delayed.setdefault(replica, nowMs + self._settings.backOffMs)
                self._forget(replica)
                continue
            request = follower.nextFetch(nowMs)
            if request is not None:
                self._ask(replica, follower, request)
            elif _isBusy(replica):
                self._busy[replica] = None
            elif follower.state is FetchState.DELAYED:
                self._delayed.setdefault(replica, nowMs + self._settings.backOffMs)
                self._forget(replica)
            elif follower.state is not FetchState.FETCHING:
                self._forget(replica)
            elif (asked := self._named.get(replica.key)) is not None:
                start = self._receiver.logStartOf(replica)
                if start != asked.place[3]:
                    self._naming[replica.key] = asked._replace(place=(*asked.place[:3], start))
        for replica in self._busy:
            self._forget(replica)

    def _isThrottled(self, replica: HostedReplica, follower: FollowerReplica) -> bool:
        mayAsk = follower.state in (FetchState.READY, FetchState.DELAYED)
        return mayAsk and self._receiver.isThrottled(replica, follower)

    def _ask(
        self, replica: HostedReplica, follower: FollowerReplica, request: ReplicaFetch
    ) -> None:
        start = self._receiver.logStartOf(replica)
        place = request.leaderEpoch, request.offset, request.lastFetchedEpoch, start
        asked = _Asked(replica, follower, request, place)
        if request.brokerEpoch > self._brokerEpoch:
            self._brokerEpoch = request.brokerEpoch
            self._beginAnew()
        known = self._named.get(replica.key)
        if known is not None and known.place == place:
            self._named[replica.key] = asked  # the leader knows it
            self._naming.pop(replica.key, None)
        else:
            self._naming[replica.key] = asked

    def _forget(self, replica: HostedReplica) -> None:
        self._naming.pop(replica.key, None)
        if self._named.pop(replica.key, None) is not None:
            self._forgotten[replica.key] = None

    def _beginAnew(self) -> None:
        """There is no session: name all partitions again."""
        self._naming = {**self._named, **self._naming}
        self._named = {}
        self._forgotten = {}
        self._sessionId, self._sessionEpoch = NO_SESSION, INITIAL_EPOCH

    def _takeNamed(self) -> dict[PartitionKey, _Asked]:
        """What the next request is to name."""
        countMax = len(self._naming) if self._hasNoSession else NAMED_COUNT_MAX
        taken: dict[PartitionKey, _Asked] = {}
        for key in [*islice(self._naming, countMax)]:
            asked = self._naming.pop(key)
            if asked.isAwaited and asked.request.brokerEpoch == self._brokerEpoch:
                taken[key] = asked
        return taken

    async def _fetch(self, named: dict[PartitionKey, _Asked]) -> list[HostedReplica]:
        """@return: the partitions for which an answer came."""
        waitMs = self._settings.waitMs
        if self._naming:
            waitMs = 0
        elif self._busy:
            waitMs = min(waitMs, BUSY_WAIT_MS)
        self._named.update(named)
        forgotten, self._forgotten = self._forgotten, {}
        body = self._body(named, [key for key in forgotten if key not in self._named], waitMs)
        self._request = self._connections.request(
            self._leader, Purpose.REPLICATION, ApiKey.FETCH, body, waitMs
        )
        try:
            response = await self._request
        except (CancelledError, ClosedError):
            response = None  # the broker stops
        except PylogbrokerError as error:
            response = None
            self._warn(str(error))
        finally:
            self._request = None
        if self._isStopped:
            return []
        if response is not None and response.errorCode in _SESSION_ERRORS:
            self._beginAnew()
            return []
        if response is not None and response.errorCode:
            self._warn(errorCode(response.errorCode).name)
            response = None
        if response is None:
            self._fail(self._named)
            self._beginAnew()
            return []
        self._hasWarned = False
        self._sessionId = response.sessionId
        self._hasNoSession = self._sessionId == NO_SESSION
        self._sessionEpoch = 0 if self._hasNoSession else self._sessionEpoch % EPOCH_MAX + 1
        return self._take(response)

    def _take(self, response: Any) -> list[HostedReplica]:
        """Give the answers of a response to those who have asked."""
        answered = []
        known = self._named
        if self._hasNoSession:
            self._named = {}
        for topic in response.responses:
            topicId = bytes(topic.topicId)
            for part in topic.partitions:
                asked = known.get((topicId, part.partitionIndex))
                if asked is None:
                    continue
                if self._hasNoSession:
                    del known[asked.replica.key]
                answered.append(asked.replica)
                self._receiver.answered(*asked[:3], _answerOf(part), part.records)
        if self._hasNoSession:
            self._fail(known)
        return answered

    def _fail(self, named: dict[PartitionKey, _Asked]) -> None:
        """No answer came."""
        for each in [*named.values()]:
            named.pop(each.replica.key, None)
            self._receiver.unanswered(*each[:3])

    def _warn(self, reason: str) -> None:
        if not self._hasWarned:
            self._hasWarned = True
            log.warn(
                "Replicas cannot be fetched from broker {leader}: {reason}. It is tried again",
                leader=self._leader,
                reason=reason,
            )

    def _body(
        self, named: dict[PartitionKey, _Asked], forgotten: list[PartitionKey], waitMs: int
    ) -> Any:
        cls, settings = messages.FetchRequest, self._settings
        topics: dict[bytes, list[Any]] = {}
        for (topicId, index), asked in named.items():
            leaderEpoch, offset, lastEpoch, start = asked.place
            part = cls.FetchPartition(
                partition=index,
                currentLeaderEpoch=leaderEpoch,
                fetchOffset=offset,
                lastFetchedEpoch=lastEpoch,
                logStartOffset=start,
                partitionMaxBytes=settings.partitionSizeMax,
            )
            topics.setdefault(topicId, []).append(part)
        left: dict[bytes, list[int]] = {}
        if self._sessionEpoch != INITIAL_EPOCH:
            for topicId, index in forgotten:
                left.setdefault(topicId, []).append(index)
        return cls(
            replicaState=cls.ReplicaState(
                replicaId=settings.brokerId, replicaEpoch=self._brokerEpoch
            ),
            maxWaitMs=waitMs,
            minBytes=settings.minSize,
            maxBytes=settings.sizeMax,
            sessionId=self._sessionId,
            sessionEpoch=self._sessionEpoch,
            topics=[
                cls.FetchTopic(topicId=each, partitions=parts) for each, parts in topics.items()
            ],
            forgottenTopicsData=[
                cls.ForgottenTopic(topicId=each, partitions=parts) for each, parts in left.items()
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
