"""
The group's side of a consumer: its subscription, listener and commits. A module of its own, since
L{pylogbroker.consumer.kafka.consumer} is what applications call.

What must be true:

  - A message counts as handled when its reader takes the next one, or waits for it. What is
  committed by time, before partitions are given up, and at the end, lies behind handled messages
  only: each message is handled at least once.
  - A partition is given up in this order: nothing more of it is handed out; the reader comes back
  from the messages that it has; its position is committed; the listener is told. A reader that does
  not come back within C{max.poll.interval.ms} loses all partitions.
  - Of a partition that comes, nothing is handed out before its position was loaded and the listener
  was told.
  - A member that has lost its partitions may be one again before its reader comes back from their
  messages. The reader's commits are refused until then, by hand and in transactions; and no commit
  is tried again as another member than it began.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.cluster import ClusterClient, checkTopic
from pylogbroker.cluster.kafka.assignors import IPartitionAssignor
from pylogbroker.config.kafka.clientsettings import CONSUMER, KafkaConsumerSettings
from pylogbroker.consumer.kafka.assignedpartition import NO_EPOCH, NO_OFFSET, AssignedPartition
from pylogbroker.consumer.kafka.consumergroupmember import ConsumerGroupMember
from pylogbroker.consumer.kafka.fetcher import ERROR_RETRY_MS, KafkaFetcher
from pylogbroker.consumer.kafka.groupmember import LEAVE_MS, BaseGroupMember, ClassicGroupMember
from pylogbroker.consumer.kafka.groupmembership import NO_GENERATION
from pylogbroker.consumer.kafka.groupoffsets import Commits, GroupOffsets
from pylogbroker.consumer.offsetstores import IOffsetStore
from pylogbroker.errors import (
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    PylogbrokerError,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import checkCode
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

log = Logger()


class IRebalanceListener(Protocol):
    """
    Is told of partitions that come and go. Each method may return a Deferred or a coroutine, which
    is waited for, within C{max.poll.interval.ms}. What it raises is logged.
    """

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> Any:
        """Before messages of new partitions are handed out; C{seek} works."""

    def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> Any:
        """Before partitions go to others; C{commitOffsets} works."""

    def partitionsLost(self, partitions: Collection[TopicPartition]) -> Any:
        """Partitions may have other readers by now: nothing of them can be committed."""


class GroupReader:
    """
    Keeps the partitions of a consumer in step with its group.

    @ivar inHand: partitions with messages that the reader has and has not come back from, and the
        offset of the first one.
    @ivar offsets: a L{GroupOffsets}.
    @ivar member: a L{BaseGroupMember} of the protocol that C{group.protocol} names.
    @ivar subscribed: topics, or a pattern; L{None}: nothing.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaConsumerSettings,
        cluster: ClusterClient,
        fetcher: KafkaFetcher,
        store: IOffsetStore | None,
        onError: Callable[[PylogbrokerError], None],
        drop: Callable[[AssignedPartition], None],
        isAttached: Callable[[], bool],
        random: Callable[[], float],
        assignor: IPartitionAssignor | None = None,
    ) -> None:
        """
        @param onError: called with what the reader is to know.
        @param drop: discards what was fetched of a partition.
        @param isAttached: whether the reader wants to be woken.
        @param random: numbers from 0 up to, not including, 1.
        @param assignor: in place of C{partition.assignment.strategy}.
        @raise ConfigurationError: there is no such assignor, or the coordinator assigns.
        """
        if assignor is not None and settings.groupProtocol == CONSUMER:
            raise ConfigurationError(
                f"the assignor {assignor.name} needs group.protocol=classic: with {CONSUMER}, the"
                " coordinator assigns the partitions"
            )
        self.inHand: dict[AssignedPartition, int] = {}
        self.subscribed: frozenset[str] | re.Pattern[str] | None = None
        self.member: BaseGroupMember = (
            ConsumerGroupMember(clock, settings, cluster, self, random)
            if settings.groupProtocol == CONSUMER
            else ClassicGroupMember(clock, settings, cluster, self, assignor=assignor)
        )
        self.offsets = GroupOffsets(clock, cluster, store, settings)
        self.failed = onError
        self._listener: IRebalanceListener | None = None
        self._clock = clock
        self._settings = settings
        self._cluster = cluster
        self._fetcher = fetcher
        self._drop = drop
        self._isAttached = isAttached
        self._returned: Waiters[None] = Waiters()
        self._lossCount = 0
        self._isFenced = False  # the reader may have messages of partitions that were lost
        self._memberId = ""  # the last one with partitions
        self._commitTimer = Timer(clock)
        self._commitFailure = ""
        self._patternTimer = Timer(clock)
        self._tasks: set[Deferred[None]] = set()
        self.hasOffsets = bool(settings.groupId) or store is not None
        self._isCommitting = self.hasOffsets and settings.enableAutoCommit
        self._isEnded = False

    # -- the reader

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that it has."""
        return list(self._fetcher.partitions)

    @property
    def isWaiting(self) -> bool:
        """Whether the reader has handled all that it took, and waits for more."""
        return self._isAttached() and not self.inHand

    def polled(self) -> None:
        """The reader is here, and has handled what it took."""
        self.inHand.clear()
        self._isFenced = False
        if self.subscribed is not None:
            self.member.polled()
            self._returned.fire(None)

    # -- the subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: IRebalanceListener | None
    ) -> None:
        """See L{KafkaConsumer.subscribe}."""
        if not self._settings.groupId:
            raise ConsumerStateError("to subscribe, a consumer needs group.id")
        if isinstance(topics, str):
            raise TypeError(f"{topics!r} is no list of topics; a pattern is compiled")
        wanted = topics if isinstance(topics, re.Pattern) else frozenset(topics)
        if isinstance(wanted, frozenset):
            for name in wanted:
                checkTopic(name)
        self.subscribed, self._listener = wanted, listener
        self._patternTimer.stop()
        if isinstance(wanted, re.Pattern):
            self._findTopics()
        else:
            self._setTopics(wanted)
        self.startCommits()

    async def unsubscribe(self) -> None:
        """See L{KafkaConsumer.unsubscribe}."""
        self._patternTimer.stop()
        if self.subscribed is not None:
            self._setTopics(())
            await self.member.whenOut()
            self.subscribed = None

    def _setTopics(self, topics: Collection[str]) -> None:
        for name in {*self.member.membership.topics} - {*topics}:
            self._cluster.forgetTopic(name)
        for name in sorted(topics):  # requests have them in this order
            self._cluster.topic(name)
        self.member.subscribe(topics)

    def _findTopics(self) -> None:
        """Look for topics that match, now and each C{metadata.max.age.ms}."""
        self._start(self._findMatching())

    async def _findMatching(self) -> None:
        pattern, waitMs = self.subscribed, float(self._settings.metadataMaxAgeMs)
        if not isinstance(pattern, re.Pattern):
            return
        try:
            connection = await self._cluster.anyConnection()
            body = messages.MetadataRequest(topics=None)
            found = await connection.request(ApiKey.METADATA, body)
            checkCode(found.errorCode, "metadata of all topics")
            if pattern is self.subscribed:
                self._setTopics(
                    [
                        each.name
                        for each in found.topics
                        if not each.errorCode
                        and not each.isInternal
                        and pattern.fullmatch(each.name)
                    ]
                )
        except PylogbrokerError as error:
            waitMs = ERROR_RETRY_MS
            log.info("The topics that match are not found yet: {error}", error=error)
        if pattern is self.subscribed and not self._isEnded:
            self._patternTimer.start(waitMs, self._findTopics)

    def _start(self, work: Any) -> None:
        task: Deferred[None] = Deferred.fromCoroutine(work)
        self._tasks.add(task)
        task.addBoth(self._done, task)

    def _done(self, result: Failure | None, task: Deferred[None]) -> None:
        self._tasks.discard(task)
        if isinstance(result, Failure) and not result.check(CancelledError):
            log.failure("A consumer's work failed unexpectedly: this is a bug", result)

    # -- partitions come and go

    async def adopt(self, partitions: Collection[TopicPartition]) -> None:
        """
        Take partitions in: load their positions, and tell the listener.

        @raise PylogbrokerError: the positions cannot be had.
        """
        self._memberId = self.member.metadata.memberId
        if not partitions and self.owned:
            return
        found = await self.offsets.load(partitions)
        held = []
        for place in partitions:
            counters = self._fetcher.counters.topic(place.topic)
            partition = AssignedPartition(place, counters)
            partition.isHeld = True
            self._fetcher.partitions[place] = partition
            held.append(partition)
        self._begin(found)
        await self._tell("partitionsAssigned", partitions)
        for partition in held:
            partition.isHeld = False
        self._fetcher.wake()

    def _begin(self, found: dict[TopicPartition, OffsetAndMetadata | None]) -> None:
        for place, stored in found.items():
            partition = self._fetcher.partitions.get(place)
            if stored is not None and partition is not None and partition.position == NO_OFFSET:
                partition.moveTo(stored.offset, stored.leaderEpoch)
                self.offsets.committed[place] = stored

    def load(self, partitions: Collection[AssignedPartition]) -> None:
        """Find the positions of partitions that the application has assigned."""
        for each in partitions:
            each.isHeld = True
        self._start(self._load(list(partitions)))
        self.startCommits()

    async def _load(self, partitions: Collection[AssignedPartition]) -> None:
        while not self._isEnded:
            mine = [each for each in partitions if self._fetcher.partitions.get(each.place) is each]
            try:
                found = await self.offsets.load([each.place for each in mine])
            except PylogbrokerError as error:
                self.failed(error)
                pause: Deferred[None] = Deferred()
                pause.addTimeout(ERROR_RETRY_MS / 1000, self._clock, lambda _result, _seconds: None)
                await pause
                continue
            self._begin({each.place: found[each.place] for each in mine})
            for each in mine:
                each.isHeld = False
            self._fetcher.wake()
            return

    async def revoke(self, partitions: Collection[TopicPartition]) -> bool:
        """See L{IGroupReader.revoke}."""
        known = self._fetcher.partitions
        held = [known[place] for place in partitions if place in known]
        if not held:
            return True
        for each in held:
            each.isHeld = True
        expiresAtMs = self.member.membership.expiresAtMs
        while not self.member.isEnded and any(each in self.inHand for each in held):
            leftMs = expiresAtMs() - self._clock.seconds() * 1000
            if leftMs <= 0:
                return False
            back = self._returned.wait()
            back.addTimeout(leftMs / 1000, self._clock, lambda _result, _seconds: None)
            await back
        places = [each.place for each in held]
        if self._isCommitting:
            await self._commitAndLog(places, LEAVE_MS)
        await self._tell("partitionsRevoked", places)
        self._forget(held)
        return True

    async def lose(self) -> None:
        """See L{IGroupReader.lose}."""
        self._lossCount += 1
        held = list(self._fetcher.partitions.values())
        if held:
            self._isFenced = not self.isWaiting
            for each in held:
                each.isHeld = True
            await self._tell("partitionsLost", [each.place for each in held])
            self._forget(held)

    def _forget(self, partitions: Collection[AssignedPartition]) -> None:
        for each in partitions:
            self._drop(each)
            self.inHand.pop(each, None)
            self._fetcher.partitions.pop(each.place, None)
            self.offsets.committed.pop(each.place, None)
        self._fetcher.wake()

    async def _tell(self, name: str, partitions: Collection[TopicPartition]) -> None:
        if self._listener is None:
            return
        limitMs = max(self._settings.maxPollIntervalMs, 1)
        try:
            told = getattr(self._listener, name)(list(partitions))
            if isinstance(told, Awaitable):
                waiting = (
                    told if isinstance(told, Deferred) else Deferred.fromCoroutine(_await(told))
                )
                waiting.addTimeout(limitMs / 1000, self._clock)
                await waiting
        except CancelledError:
            raise
        except DeferredTimeoutError:
            log.warn("{name} took more than {limit} ms", name=name, limit=limitMs)
        except Exception:
            log.failure("{name} has raised; the rebalance goes on", name=name)

    # -- commits

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        """
        As whom to commit what the reader has. Where that was lost, it has no generation, but a
        member id.
        """
        found = self.member.metadata
        if self.subscribed is None or not (self._isFenced or found.generationId == NO_GENERATION):
            return found
        memberId = found.memberId or self._memberId
        return found._replace(generationId=NO_GENERATION, memberId=memberId)

    def _committer(self) -> Callable[[], ConsumerGroupMetadata]:
        """
        Says as whom to make one commit, now and with each retry.

        @return: raises L{CommitFailedError} when this is no member any more, or was none in
            between, so others may have the partitions.
        """
        lossCount = self._lossCount

        def committer() -> ConsumerGroupMetadata:
            found = self.member.metadata
            isMember = found.generationId != NO_GENERATION and self._lossCount == lossCount
            if self.subscribed is not None and not isMember:
                raise CommitFailedError(
                    f"nothing was committed, since this is no member of group {found.groupId} now,"
                    " or was none in between: others may have its partitions"
                )
            return found

        return committer

    async def commit(self, offsets: Commits | None) -> None:
        """
        Commit by hand; what lies before is handled.

        @param offsets: L{None}: behind all that was handed out.
        @raise PylogbrokerError: as L{GroupOffsets.commit}.
        """
        committer = self._committer()
        committer()
        if self._isFenced:
            raise CommitFailedError(
                "nothing was committed, since the reader has messages of partitions that were lost:"
                " others may have them"
            )
        given = self.positions(isHandled=False) if offsets is None else offsets
        await self.offsets.commit(lambda: given, committer)
        for each, first in list(self.inHand.items()):
            offset = given[each.place].offset if each.place in given else NO_OFFSET
            if offset >= each.position:
                del self.inHand[each]
            elif offset > first:
                self.inHand[each] = offset
        self._returned.fire(None)

    def positions(self, isHandled: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """
        What to commit.

        @param isHandled: without messages that the reader has not come back from.
        """
        found = {}
        for place, each in self._fetcher.partitions.items():
            offset, epoch = each.position, each.readEpoch
            if isHandled and each in self.inHand:
                offset, epoch = self.inHand[each], NO_EPOCH
            if offset != NO_OFFSET:
                found[place] = OffsetAndMetadata(offset, epoch)
        return found

    def _moved(self, places: Collection[TopicPartition] | None) -> Commits:
        """Handled positions that are not committed yet."""
        known = self.offsets.committed
        return {
            place: each
            for place, each in self.positions(isHandled=True).items()
            if (places is None or place in places)
            and (place not in known or known[place].offset != each.offset)
        }

    def startCommits(self) -> None:
        """Commit by time from now on."""
        if self._isCommitting and not self._commitTimer.isRunning and not self._isEnded:
            self._commitTimer.start(self._settings.autoCommitIntervalMs, self._commitNow)

    def _commitNow(self) -> None:
        self._start(self._commitAndGoOn())

    async def _commitAndGoOn(self) -> None:
        await self._commitAndLog()
        self.startCommits()

    async def _commitAndLog(
        self, places: Collection[TopicPartition] | None = None, timeoutMs: float | None = None
    ) -> None:
        """A failure that repeats itself is logged once, and its end, too."""
        try:
            await self.offsets.commit(lambda: self._moved(places), self._committer(), timeoutMs)
        except CancelledError:
            raise
        except Exception as error:
            if str(error) != self._commitFailure:
                log.warn("Positions are not committed: {error}. It is tried again", error=error)
            self._commitFailure = str(error)
        else:
            if self._commitFailure:
                log.info("Positions are committed again")
            self._commitFailure = ""

    # -- the end

    async def close(self) -> None:
        """Commit, leave, and stop."""
        self._isEnded = True
        self._patternTimer.stop()
        self._commitTimer.stop()
        for task in list(self._tasks):
            task.cancel()
        if self.subscribed is None and self._isCommitting:
            await self._commitAndLog(None, LEAVE_MS)
        await self.member.close()


async def _await(told: Awaitable[Any]) -> Any:
    return await told
