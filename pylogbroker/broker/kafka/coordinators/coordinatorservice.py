"""
L{CoordinatorService}: drives a coordinator, which is pure, with the log, workers and the clock. A
module of its own, since every coordinator needs the same.

B{The topic} of the coordinator is created when the first client looks for it. It gives the answer
when the topic is there, so that the client need not ask again.

B{Loading.} A start reads each partition from its beginning
(L{pylogbroker.broker.kafka.coordinators.coordinatorlog}). Clients whose partition is being read are
told so. A partition that cannot be read is not served: a coordinator that has missed a record would
give answers of the past.

B{The end.} L{CoordinatorService.stop} answers all that waits. Appends that are under way end with
their log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.kafka.coordinators.coordinatorlog import Appender, Loaded, Loader
from pylogbroker.broker.kafka.topics import TopicManager
from pylogbroker.cluster.metadataimage import TopicImage
from pylogbroker.coordinator.effects import Appended, Record, TransactionalProducer
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import Waiters, gatherInBatches
from pylogbroker.net.timer import Timer
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

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
        self, clock: Any, topics: TopicManager, worker: IWorker, partitionCount: int
    ) -> None:
        """
        @param worker: reads the partitions.
        @param partitionCount: with which the topic is created.
        """
        self._clock = clock
        self._topics = topics
        self._worker = worker
        self._timer = Timer(clock)
        self._dueMs: int | None = None
        self._isRunning = False
        self._isCreating = False
        self._created: Waiters[None] = Waiters()
        self._topic: TopicImage | None = None
        self._appenders: dict[int, Appender] = {}
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
        Load what the topic holds. The partitions of all topics are there.

        @return: fires with L{None} when all partitions are served, or found to be unreadable.
            Clients need not wait for it.
        """
        self._isRunning = True
        self._topics.metadata.listen(self._onMetadata)
        topic = self._topics.image.topics.get(self.topicName)
        if topic is None:
            return Deferred.fromCoroutine(_nothing())
        return Deferred.fromCoroutine(self._load(topic))

    def stop(self) -> None:
        """Serve nothing any more. What waits is answered with an error."""
        self._isRunning = False
        self._timer.stop()
        self._unload()
        self._created.fire(None)

    # -- the topic

    async def findPartition(self, index: int) -> bool:
        """Whether this broker serves a partition of the topic. Creates the topic if need be."""
        await self.awaitTopic()
        return index in self._appenders

    async def awaitTopic(self) -> bool:
        """Create the topic if need be. Returns whether it is there."""
        while self._isRunning and self._topic is None:
            waiting = self._created.wait()
            if not self._isCreating:
                self._isCreating = True
                Deferred.fromCoroutine(self._create()).addErrback(_bug)
            await waiting
            if self._topic is None:
                return False
        return self._topic is not None

    async def _create(self) -> None:
        try:
            topic = await self._topics.create(
                self.topicName, self._newPartitionCount, self.topicConfigs
            )
            if self._isRunning:
                await self._load(topic)
        except PylogbrokerError as error:
            log.warn("{topic} cannot be created: {error}", topic=self.topicName, error=error)
        finally:
            self._isCreating = False
            self._created.fire(None)

    def _onMetadata(self) -> None:
        if self._topic is not None and self._topic.topicId not in self._topics.image.topicsById:
            self._unload()

    def _unload(self) -> None:
        self._topic = None
        appenders, self._appenders = self._appenders, {}
        for index in appenders:
            self.coordinator.unload(index)

    # -- loading

    async def _load(self, topic: TopicImage) -> None:
        self._topic = topic
        if topic.partitionCount != self.partitionCount:
            self.partitionCount = topic.partitionCount
            self._makeCoordinator()
        for index in range(topic.partitionCount):
            found = self._topics.find(self.topicName, index)
            if found is None:
                log.error(
                    "The coordinator could not load {topic}-{index}: the partition is missing",
                    topic=self.topicName,
                    index=index,
                )
                continue
            self._appenders[index] = Appender(found, self.nowMs, partial(self._failed, index))
            self.coordinator.beginLoading(index)
        await gatherInBatches(self._loadOne, list(self._appenders.items()), LOAD_COUNT_MAX)

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
        """A partition cannot be read or written any more."""
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


async def _nothing() -> None:
    """There is nothing to wait for."""


def _bug(failure: Any) -> None:
    log.failure("Creating a topic failed unexpectedly: this is a bug", failure)
