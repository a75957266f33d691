"""
Members of consumer groups: what those of both protocols do, and one of a classic group, which
carries out what L{GroupMembership} decides. A module of its own, since that one is pure.

What must be true:

  - There is one step at a time; heartbeats go on beside it, also while a reader is slow or a
  listener works.
  - The leader looks at the partition counts again with all new metadata, and lets the group
  rebalance when they differ from those it has assigned by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.cluster.kafka.assignors import IPartitionAssignor, assignorOf
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.kafka.groupmembership import GroupMembership, Phase, Step
from pylogbroker.errors import (
    BrokerConnectionError,
    ConsumerStateError,
    InvalidTopicError,
    PylogbrokerError,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import (
    decodeAssignmentAndUserData,
    decodeSubscription,
    encodeAssignment,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.types import ConsumerGroupMetadata, TopicPartition

LEAVE_MS = 5_000
"""How long leaving may take; a member that cannot leave is left to its session's end."""

LEAVE_ATTEMPT_COUNT_MAX = 3
"""After a lost connection, or an error that passes: others wait for the session's end otherwise."""

REFUSED_RETRY_MS = 1_000
"""After a refusal that does not pass, it is tried again so late."""

MANY_LEAVE_VERSION = 3
"""The first version of LeaveGroup with a list of members."""

_PASSING = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
)

log = Logger()


class IGroupReader(Protocol):
    """
    What has the partitions of a member.

    @ivar owned: the partitions that it has.
    @ivar isWaiting: whether its reader waits for messages.
    """

    @property
    def owned(self) -> Collection[TopicPartition]:
        """See the class."""

    @property
    def isWaiting(self) -> bool:
        """See the class."""

    async def revoke(self, partitions: Collection[TopicPartition]) -> bool:
        """
        Give partitions up, in order.

        @return: false: the reader did not come back before the member has to leave the group.
        """

    async def lose(self) -> None:
        """Drop all partitions: others may have them."""

    async def adopt(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions in."""

    def failed(self, error: PylogbrokerError) -> None:
        """Tell the reader of an error."""


class IMembership(Protocol):
    """What members of both protocols know of themselves; see L{GroupMembership}."""

    groupId: str
    instanceId: str | None
    phase: Phase
    topics: tuple[str, ...]
    memberId: str
    generation: int
    isLost: bool
    polledAtMs: float

    def expiresAtMs(self) -> float:
        """When a reader that takes nothing must be out of the group."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Other topics."""

    def lose(self) -> None:
        """It is no member any more, and has lost its partitions."""


class BaseGroupMember:
    """
    One member, of either protocol.

    @ivar membership: what it is in its group.
    @ivar isEnded: whether it takes part no more.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaConsumerSettings,
        cluster: ClusterClient,
        reader: IGroupReader,
        membership: IMembership,
    ) -> None:
        self.membership = membership
        self.isEnded = False
        self._clock = clock
        self._settings = settings
        self._cluster = cluster
        self._reader = reader
        self._news: Waiters[None] = Waiters()
        self._out: Waiters[None] = Waiters()
        self._hasNews = False
        self._running: Deferred[None] | None = None
        self._beating: Deferred[None] | None = None
        self._beatTimer = Timer(clock)
        self._failureCount = 0
        cluster.listen(self._onMetadata)

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        """As the coordinator knows the member."""
        member = self.membership
        return ConsumerGroupMetadata(
            member.groupId, member.generation, member.memberId, member.instanceId
        )

    @property
    def isOwning(self) -> bool:
        """
        Whether it has all partitions that are assigned to it. It still has them while the reader
        gives them up.
        """
        return self.membership.phase is Phase.STABLE and not self._isAdopting()

    def _isAdopting(self) -> bool:
        """Whether partitions are assigned to it that the reader does not have yet."""
        raise NotImplementedError

    def _nowMs(self) -> float:
        return self._clock.seconds() * 1000

    def polled(self) -> None:
        """The reader is here."""
        isBack = self._nowMs() >= self.membership.expiresAtMs()
        self.membership.polledAtMs = self._nowMs()
        if isBack:
            self.wake()

    def wake(self) -> None:
        """Something has changed."""
        self._hasNews = True
        self._news.fire(None)

    def subscribe(self, topics: Collection[str]) -> None:
        """
        @param topics: to read; none: leave the group.
        """
        self.membership.subscribe(sorted(topics))
        self.polled()
        if self._running is None and not self.isEnded:
            self._running = Deferred.fromCoroutine(self._run())
            self._running.addErrback(self._broken)
        self.wake()

    def rejoin(self) -> None:
        """
        Let the group rebalance.

        @raise ConsumerStateError: the coordinator assigns the partitions.
        """
        raise ConsumerStateError("with group.protocol=consumer, the coordinator rebalances a group")

    async def whenOut(self) -> None:
        """Wait until this is no member any more."""
        while not self.isEnded and (self.membership.phase is not Phase.OUT or self._reader.owned):
            await self._out.wait()

    def _broken(self, reason: Failure) -> None:
        self._running = None
        if not reason.check(CancelledError):
            log.failure("A consumer's group member failed unexpectedly: this is a bug", reason)
            self._reader.failed(BrokerConnectionError(f"unexpected: {reason.value!r}"))

    # -- steps

    async def _run(self) -> None:
        while not self.isEnded:
            self._hasNews = False
            try:
                await self._step()
                self._failureCount = 0
            except PylogbrokerError as error:
                await self._rest(self._waitAfter(error))

    def _waitAfter(self, error: PylogbrokerError) -> float:
        """How long to wait before the next attempt; the reader is told of what does not pass."""
        code = error.code if isinstance(error, ResponseError) else 0
        self._failureCount += 1
        if (
            code in _PASSING
            or isinstance(error, BrokerConnectionError)
            or ErrorPolicy.RETRY in policyOf(code)
        ):
            return self._cluster.backoffMs(self._failureCount)
        if code == ErrorCode.FENCED_INSTANCE_ID:
            log.warn("{error}. Another member has its group.instance.id", error=error)
        self._reader.failed(error)
        return REFUSED_RETRY_MS

    async def _rest(self, ms: float) -> None:
        if not self._hasNews:
            news = self._news.wait()
            news.addTimeout(max(ms, 0) / 1000, self._clock, lambda _result, _seconds: None)
            await news

    async def _step(self) -> None:
        raise NotImplementedError

    def _see(self) -> None:
        """A reader that waits for messages is here."""
        if self._reader.isWaiting:
            self.membership.polledAtMs = self._nowMs()

    async def _restWell(self) -> None:
        """Wait for news, or until the reader was away for too long."""
        leftMs = self.membership.expiresAtMs() - self._nowMs()
        await self._rest(leftMs if leftMs > 0 else self._settings.maxPollIntervalMs)

    async def _lose(self) -> None:
        self._stopBeating()
        self.membership.isLost = False
        await self._reader.lose()
        self._out.fire(None)

    async def _leaveSince(self) -> None:
        """The reader is away for too long, or wants no topics any more."""
        member = self.membership
        if member.topics:
            log.warn(
                "The reader of group {group} took nothing for {limit} ms, so it leaves the group"
                " until it takes again. More time: max.poll.interval.ms",
                group=member.groupId,
                limit=self._settings.maxPollIntervalMs,
            )
        else:
            await self._reader.revoke(list(self._reader.owned))
        await self._leave("max.poll.interval.ms" if member.topics else "unsubscribed")
        member.lose()
        await self._lose()

    async def _ask(self, key: ApiKey, body: Any, waitMs: float = 0) -> Any:
        async def ask(connection: NegotiatedConnection) -> Any:
            answer = await connection.request(key, body, waitMs)
            if ErrorPolicy.FIND_COORDINATOR in policyOf(answer.errorCode):
                raise ResponseError(answer.errorCode, f"group {self.membership.groupId}")
            return answer

        coordinators, group = self._cluster.coordinators, self.membership.groupId
        return await coordinators.ask(CoordinatorKind.GROUP, group, ask)

    def _onMetadata(self) -> None:
        raise NotImplementedError

    # -- heartbeats

    def _beat(self) -> None:
        self._beating = Deferred.fromCoroutine(self._heartbeat())
        self._beating.addErrback(self._beatFailed)

    async def _heartbeat(self) -> None:
        raise NotImplementedError

    def _beaten(self) -> None:
        if self.membership.phase is not Phase.OUT and not self.isEnded:
            self._beatTimer.start(self._beatIntervalMs(), self._beat)
        if self.membership.isLost or self._hasWork():
            self.wake()

    def _beatIntervalMs(self) -> float:
        raise NotImplementedError

    def _hasWork(self) -> bool:
        raise NotImplementedError

    def _beatFailed(self, reason: Failure) -> None:
        error = reason.value
        if reason.check(CancelledError) or self.isEnded:
            return
        if not isinstance(error, PylogbrokerError):
            log.failure("A heartbeat failed unexpectedly: this is a bug", reason)
        elif self._waitAfter(error) and self.membership.isLost:
            self.wake()
            return
        self._beaten()

    def _stopBeating(self) -> None:
        self._beatTimer.stop()
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()

    # -- the end

    async def _leave(self, reason: str) -> None:
        """Leave; a member that cannot is forgotten later."""
        if not self._isKnown():
            return
        asking = Deferred.fromCoroutine(self._askToLeave(reason))
        asking.addTimeout(LEAVE_MS / 1000, self._clock)
        try:
            await asking
        except (PylogbrokerError, DeferredTimeoutError) as error:
            log.info("Not left, but to be forgotten: {error}", error=error)

    async def _askToLeave(self, reason: str) -> None:
        attemptCount = 0
        while True:
            attemptCount += 1
            try:
                await self._cluster.coordinators.ask(
                    CoordinatorKind.GROUP,
                    self.membership.groupId,
                    lambda connection: self._tellLeaving(connection, reason),
                )
                return
            except (BrokerConnectionError, ResponseError) as error:
                if isinstance(error, ResponseError):
                    if attemptCount > 1 and error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                        return  # the answer before was lost
                    if ErrorPolicy.RETRY not in policyOf(error.code):
                        raise
                if attemptCount == LEAVE_ATTEMPT_COUNT_MAX:
                    raise
            await deferLater(self._clock, self._cluster.backoffMs(attemptCount) / 1000)

    def _isKnown(self) -> bool:
        """Whether the coordinator is to be told that the member leaves."""
        raise NotImplementedError

    async def _tellLeaving(self, connection: NegotiatedConnection, reason: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Give the partitions up, and leave."""
        self.isEnded = True
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        try:
            if self.membership.phase is Phase.STABLE:
                await self._reader.revoke(list(self._reader.owned))
        finally:
            self._stopBeating()
        await self._leave("the consumer was closed")
        self.membership.lose()
        self._out.fire(None)


class ClassicGroupMember(BaseGroupMember):
    """
    A member of a classic group, whose leader assigns the partitions.

    @ivar membership: a L{GroupMembership}.
    """

    membership: GroupMembership

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaConsumerSettings,
        cluster: ClusterClient,
        reader: IGroupReader,
        membership: GroupMembership | None = None,
        assignor: IPartitionAssignor | None = None,
    ) -> None:
        """
        @param membership: by default, a consumer's.
        @param assignor: in place of C{partition.assignment.strategy}.
        @raise ConfigurationError: there is no such assignor.
        """
        assignors = (
            [assignorOf(name) for name in settings.partitionAssignmentStrategy]
            if assignor is None
            else [assignor]
        )
        self._assignors = {each.name: each for each in assignors}
        if membership is None:
            membership = GroupMembership(
                settings.groupId,
                settings.groupInstanceId or None,
                assignors,
                sessionTimeoutMs=settings.sessionTimeoutMs,
                maxPollIntervalMs=settings.maxPollIntervalMs,
                rackId=settings.clientRack or None,
            )
        self._coming: list[TopicPartition] | None = None  # assigned, and not adopted yet
        self._counts: dict[str, int] = {}  # by which the leader has assigned
        super().__init__(clock, settings, cluster, reader, membership)

    async def _step(self) -> None:
        self._see()
        member = self.membership
        step = member.step(self._nowMs())
        if step is Step.REST and self._coming is not None:
            await self._reader.adopt(self._coming)
            self._coming = None
        elif step is Step.REST:
            await self._restWell()
        elif step is Step.JOIN:
            await self._join()
        elif step is Step.SYNC:
            await self._sync()
        elif step is Step.LOSE:
            await self._lose()
        else:
            await self._leaveSince()

    def rejoin(self) -> None:
        """See the superclass."""
        self.membership.rejoin()
        self.wake()

    def _isAdopting(self) -> bool:
        return self._coming is not None

    async def _lose(self) -> None:
        self._coming = None
        await super()._lose()

    async def _join(self) -> None:
        member = self.membership
        await self._reader.revoke(member.givenUp(self._reader.owned))
        if member.step(self._nowMs()) is not Step.JOIN:
            return
        self._coming = None
        body = member.joinRequest(list(self._reader.owned))
        waitMs = self._settings.maxPollIntervalMs
        member.joined(await self._ask(ApiKey.JOIN_GROUP, body, waitMs))

    async def _sync(self) -> None:
        member = self.membership
        assignments = await self._assign() if member.isLeader else {}
        if member.skipsAssignment:  # the leader only watches the partition counts
            assignments = {}
        waitMs = self._settings.maxPollIntervalMs
        answer = await self._ask(ApiKey.SYNC_GROUP, member.syncRequest(assignments), waitMs)
        assigned = self._decodeAssignment(bytes(answer.assignment))
        member.synced(answer.errorCode)
        if member.phase is not Phase.STABLE:
            return
        self._beatTimer.start(self._settings.heartbeatIntervalMs, self._beat)
        await self._assigned(assigned)

    def _decodeAssignment(self, data: bytes) -> Any:
        return decodeAssignmentAndUserData(data)

    async def _assigned(self, assigned: Any) -> None:
        member = self.membership
        partitions, userData = assigned
        leaving = [each for each in self._reader.owned if each not in partitions]
        if leaving:
            member.rejoin()
            if not await self._reader.revoke(leaving):
                return
        if member.assignor in self._assignors:
            self._assignors[member.assignor].onAssignment(partitions, userData)
        self._coming = [each for each in partitions if each not in self._reader.owned]

    # -- the leader

    async def _assign(self) -> Mapping[str, bytes]:
        member = self.membership
        subscriptions = [
            decodeSubscription(bytes(each.metadata), each.memberId, each.groupInstanceId)
            for each in member.members
        ]
        topics = sorted({topic for each in subscriptions for topic in each.topics})
        self._counts = await self._partitionCounts(topics)
        assignor = self._assignors[member.assignor]
        made = assignor.assign(self._counts, subscriptions)
        data = assignor.assignedUserData(self._counts, subscriptions)
        return {each: encodeAssignment(places, data.get(each)) for each, places in made.items()}

    async def _partitionCounts(self, topics: Collection[str]) -> dict[str, int]:
        known = self._known(topics)
        if len(known) < len(topics):
            news = self._cluster.refresh()
            limitMs = self._settings.requestTimeoutMs
            news.addTimeout(limitMs / 1000, self._clock, lambda _result, _seconds: None)
            await news
            known = self._known(topics)
        return known

    def _known(self, topics: Collection[str]) -> dict[str, int]:
        found = {}
        for name in topics:
            try:
                topic = self._cluster.topic(name)
            except InvalidTopicError:  # of a member that checks less: no such topic exists
                continue
            found[name] = 0 if topic is None else len(topic.partitions)
        return {name: count for name, count in found.items() if count}

    def _onMetadata(self) -> None:
        member = self.membership
        if member.isLeader and member.phase is Phase.STABLE:
            topics = self._cluster.metadata.topics
            now = {
                name: len(topics[name].partitions) if name in topics else self._counts.get(name, 0)
                for name in {*self._counts, *member.topics}
            }
            if {name: count for name, count in now.items() if count} != self._counts:
                self.rejoin()

    # -- heartbeats, and the end

    def _beatIntervalMs(self) -> float:
        return self._settings.heartbeatIntervalMs

    def _hasWork(self) -> bool:
        return self.membership.step(self._nowMs()) is not Step.REST

    async def _heartbeat(self) -> None:
        member = self.membership
        if member.phase is Phase.STABLE:
            generation = member.generation
            answer = await self._ask(ApiKey.HEARTBEAT, member.heartbeatRequest())
            member.beaten(generation, answer.errorCode)
        self._beaten()

    def _isKnown(self) -> bool:
        """A static member may come back, so it does not leave."""
        return bool(self.membership.memberId) and self.membership.instanceId is None

    async def _tellLeaving(self, connection: NegotiatedConnection, reason: str) -> None:
        member, cls = self.membership, messages.LeaveGroupRequest
        body = cls(groupId=member.groupId)
        if connection.supports(ApiKey.LEAVE_GROUP, MANY_LEAVE_VERSION):
            body.members = [cls.MemberIdentity(memberId=member.memberId, reason=reason)]
        else:
            body.memberId = member.memberId
        answer = await connection.request(ApiKey.LEAVE_GROUP, body)
        checkCode(answer.errorCode, f"leaving group {member.groupId}")
