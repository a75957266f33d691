"""
L{CoordinatorService}: drives a coordinator, which is pure, with the log, workers and the clock. A
module of its own, since every coordinator needs the same.

B{The topic} of the coordinator is created when the first client looks for it. It gives the answer
when the topic is there, so that the client need not ask again.

B{Loading.} The leader of a partition of the topic coordinates what belongs there. It reads the
partition from its beginning (L{pylogbroker.broker.kafka.coordinators.coordinatorlog}) when the
broker starts or begins to lead it, and again in another leader epoch; and forgets what was there
when another broker leads. Clients whose partition is being read are told so. A partition that
cannot be read is not served: a coordinator that has missed a record would give answers of the past.
Nor is any while the broker may have been replaced: they may have another coordinator by now.

B{The end.} L{CoordinatorService.stop} answers all that waits. Appends that are under way end with
their log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pylogbroker.broker.kafka.coordinators.coordinatorlog import Appender, Loaded, Loader
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import TopicManager, batchLog
from pylogbroker.broker.logmanager import Partition
from pylogbroker.cluster.metadataimage import TopicImage
from pylogbroker.coordinator.effects import Appended, Record, TransactionalProducer
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.elections import NO_LEADER

LOAD_COUNT_MAX = 4
"""Partitions that are read at the same time."""

log = Logger()


class ICoordinator(Protocol):
    """What all coordinators have."""

    def beginLoading(self, partition: int) -> None:
        """A partition of the topic is going to be read."""

    def unload(self, partition: int) -> None:
        """A partition is not to be served any more."""

    def nextDeadlineMs(self) -> int | None:
        """When L{advance} is to be called."""

    def advance(self) -> None:
        """Do what is due."""


class _Served(NamedTuple):
    """A partition, and the leader epoch in which this broker leads it."""

    partition: Partition
    leaderEpoch: int


class CoordinatorService:
    """
    What the services of all coordinators share; the module states the rules.

    @ivar topicName: of the coordinator's topic.
    @ivar partitionCount: of the topic, as it is, or will be created.
    """

    topicName: str
    topicConfigs: Mapping[str, str]
    coordinator: ICoordinator

    def __init__(
        self,
        clock: Any,
        topics: TopicManager,
        worker: IWorker,
        purgatory: Purgatory,
        partitionCount: int,
        appendTimeoutMs: int,
    ) -> None:
        """
        @param worker: reads the partitions.
        @param partitionCount: with which the topic is created.
        @param appendTimeoutMs: in which an append must be acknowledged.
        """
        self._clock = clock
        self._purgatory = purgatory
        self._appendTimeoutMs = appendTimeoutMs
        self._topics = topics
        self._worker = worker
        self._timer = Timer(clock)
        self._dueMs: int | None = None
        self._isRunning = self._wasStopped = False
        self._isCreating = False
        self._created: Waiters[None] = Waiters()
        self._topic: TopicImage | None = None
        self._served: dict[int, _Served] = {}  # also what has failed since
        self._appenders: dict[int, Appender] = {}
        self._toLoad: deque[tuple[int, Appender]] = deque()
        self._loadingCount = 0
        self._loading: Waiters[None] = Waiters()
        self._newPartitionCount = self.partitionCount = partitionCount

    def nowMs(self) -> int:
        return int(self._clock.seconds() * 1000)

    # -- what a coordinator does in its own way

    def _makeCoordinator(self) -> None:
        """Make the coordinator anew, for C{partitionCount} partitions."""
        raise NotImplementedError

    def _replay(self, partition: int, records: Sequence[Loaded]) -> None:
        """
        Records were read.

        @raise PylogbrokerError: one is broken.
        """
        raise NotImplementedError

    def _loaded(self, partition: int, appender: Appender) -> None:
        """A partition was read to its end."""
        raise NotImplementedError

    # -- start and stop

    def start(self) -> Deferred[None]:
        """
        Load what the topic holds. The partitions of all topics are there. After L{stop} it does
        nothing: a broker may stop while what comes before this one is loading.

        @return: fires with L{None} when all partitions are served, or found to be unreadable.
            Clients need not wait for it.
        """
        if self._wasStopped:
            return succeed(None)
        self._isRunning = True
        self._topics.metadata.listen(self._onMetadata)
        self._topics.watch(self.topicName, self._onLeadership)
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        self._follow()
        if self._topic is not None:
            self._findMissing(self._topic)
            await self._loadingDone()

    def stop(self) -> None:
        """Serve nothing any more. What waits is answered with an error."""
        self._isRunning, self._wasStopped = False, True
        self._timer.stop()
        self._unloadAll()
        self._created.fire(None)

    # -- the topic

    def leaderOf(self, index: int) -> int:
        """The broker that serves a partition of the topic; L{NO_LEADER}: none does now."""
        topic = self._topics.image.topics.get(self.topicName)
        if topic is None or index >= topic.partitionCount:
            return NO_LEADER
        leader, _ = self._topics.leaderOf(topic, index)
        isServed = index in self._appenders and self._isCurrent()
        return NO_LEADER if leader == self._topics.brokerId and not isServed else leader

    def _isCurrent(self) -> bool:
        """Whether no other broker can have taken over what this one leads, unnoticed."""
        return self._topics.metadata.isCurrent

    async def awaitTopic(self) -> bool:
        """Create the topic if need be. Returns whether it is there."""
        if self._isRunning and (self._isCreating or self._topic is None):
            waiting = self._created.wait()
            if not self._isCreating:
                self._isCreating = True
                Deferred.fromCoroutine(self._create()).addErrback(_bug)
            await waiting
        return self._topic is not None

    async def _create(self) -> None:
        try:
            topic = await self._topics.create(
                self.topicName, self._newPartitionCount, self.topicConfigs
            )
            self._follow()
            if self._isRunning:
                self._findMissing(topic)
                await self._loadingDone()
        except PylogbrokerError as error:
            log.warn("{topic} cannot be created: {error}", topic=self.topicName, error=error)
        finally:
            self._isCreating = False
            self._created.fire(None)

    def _findMissing(self, topic: TopicImage) -> None:
        """Tell operators of partitions that this broker should serve, and has not."""
        for index in range(topic.partitionCount):
            leader, _ = self._topics.leaderOf(topic, index)
            if leader == self._topics.brokerId and index not in self._served:
                log.error(
                    "The coordinator could not load {topic}-{index}: the partition is missing",
                    topic=self.topicName,
                    index=index,
                )

    def _onMetadata(self) -> None:
        self._follow()

    def _follow(self) -> None:
        """Take the topic as the image has it: perhaps it is gone, or another one."""
        topic = self._topics.image.topics.get(self.topicName) if self._isRunning else None
        known = self._topic
        if known is not None and (topic is None or topic.topicId != known.topicId):
            self._unloadAll()
        self._topic = topic
        if topic is None or (known is not None and topic.topicId == known.topicId):
            return
        if topic.partitionCount != self.partitionCount:
            self.partitionCount = topic.partitionCount
            self._makeCoordinator()
        for index in range(topic.partitionCount):
            self._serve(index)

    def _onLeadership(self, index: int) -> None:
        self._follow()
        if self._topic is not None:
            self._serve(index)

    def _unloadAll(self) -> None:
        self._topic = None
        for index in list(self._served):
            self._unload(index)

    # -- loading

    def _serve(self, index: int) -> None:
        """Load a partition that this broker leads; unload one that it does not, or not so."""
        found = self._topics.led(self.topicName, index)
        served = None if found is None else _Served(found, batchLog(found).leaderEpoch)
        if self._served.get(index) == served or index >= self.partitionCount:
            return
        if index in self._served:
            self._unload(index)
        if served is not None:
            self._served[index] = served
            made = Appender(
                served.partition,
                self.nowMs,
                partial(self._failed, index),
                self._purgatory,
                self._appendTimeoutMs,
            )
            self._appenders[index] = made
            self.coordinator.beginLoading(index)
            self._toLoad.append((index, made))
            self._loadNext()

    def _unload(self, index: int) -> None:
        del self._served[index]
        appender = self._appenders.pop(index, None)
        if appender is not None:
            self.coordinator.unload(index)
            appender.close()
            self.schedule()

    def _loadNext(self) -> None:
        while self._toLoad and self._loadingCount < LOAD_COUNT_MAX:
            self._loadingCount += 1
            place = self._toLoad.popleft()
            Deferred.fromCoroutine(self._loadOne(place)).addErrback(_bug).addBoth(self._loadEnded)

    def _loadEnded(self, _none: object) -> None:
        self._loadingCount -= 1
        self._loadNext()
        if not self._loadingCount:
            self._loading.fire(None)

    async def _loadingDone(self) -> None:
        if self._loadingCount:
            await self._loading.wait()

    async def _loadOne(self, place: tuple[int, Appender]) -> None:
        index, appender = place
        loader = Loader(appender.partition, self._worker)
        try:
            while self._appenders.get(index) is appender:
                records = await loader.nextRecords()
                if self._appenders.get(index) is not appender:
                    return  # stopped meanwhile
                if records is None:
                    self._loaded(index, appender)
                    self.schedule()
                    return
                self._replay(index, records)
        except PylogbrokerError as error:
            if self._appenders.get(index) is not appender:
                return
            log.critical(
                "The coordinator could not load {topicPartition}: {error}",
                topicPartition=appender.partition.topicPartition,
                error=error,
            )
            self._failed(index)

    # -- appending

    def _append(
        self,
        index: int,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
        /,
    ) -> None:
        appender = self._appenders.get(index)
        if appender is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            appender.append(records, partial(self._appended, done), producer)

    def _appended(self, done: Appended, error: ErrorCode) -> None:
        done(error)
        self.schedule()

    def _failed(self, index: int) -> None:
        """A partition cannot be read or written any more in this epoch."""
        if self._appenders.pop(index, None) is not None:
            self.coordinator.unload(index)
            self.schedule()

    # -- time

    def schedule(self) -> None:
        """Have the coordinator called when it wants to be."""
        if not self._isRunning:
            return
        dueMs = self.coordinator.nextDeadlineMs()
        if dueMs == self._dueMs:
            return
        self._dueMs = dueMs
        if dueMs is None:
            self._timer.stop()
        else:
            self._timer.start(dueMs - self.nowMs(), self._advance)

    def _advance(self) -> None:
        self._dueMs = None
        self.coordinator.advance()
        self.schedule()


def _bug(failure: Any) -> None:
    log.failure("Creating a topic failed unexpectedly: this is a bug", failure)
