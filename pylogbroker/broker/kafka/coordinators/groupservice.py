"""
L{GroupService}: drives the coordinator of consumer groups, which is pure
(L{pylogbroker.coordinator.groups}), with the log, workers and the clock.

B{The topic} C{__consumer_offsets} is created when the first client looks for a coordinator. It
gives the answer when the topic is there, so that the client need not ask again.

B{Loading.} A start reads each partition from its beginning
(L{pylogbroker.broker.kafka.coordinators.coordinatorlog}). Clients of a group whose partition is
being read are told so. A partition that cannot be read is not served: a coordinator that has missed
a record would give positions that went back.

B{The end.} L{GroupService.stop} answers all joins and syncs that wait. Appends that are under way
end with their log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.kafka.coordinators.coordinatorlog import Appender, Loader
from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, TopicManager
from pylogbroker.cluster.metadataimage import TopicImage
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.coordinator.effects import Appended, Record
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.offsetstopic import partitionFor
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import Waiters, gatherInBatches
from pylogbroker.net.timer import Timer
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

LOAD_COUNT_MAX = 4
"""Partitions that are read at the same time."""

OFFSETS_TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""The settings with which Kafka creates the topic."""

_MINUTE_MS = 60_000

log = Logger()


def groupSettings(settings: BrokerSettings, partitionCount: int) -> GroupSettings:
    """The coordinator's settings."""
    return GroupSettings(
        partitionCount=partitionCount,
        sessionTimeoutMinMs=settings.groupMinSessionTimeoutMs,
        sessionTimeoutMaxMs=settings.groupMaxSessionTimeoutMs,
        initialRebalanceDelayMs=settings.groupInitialRebalanceDelayMs,
        groupMaxSize=settings.groupMaxSize,
        offsetMetadataMaxSize=settings.offsetMetadataMaxBytes,
        offsetsRetentionMs=settings.offsetsRetentionMinutes * _MINUTE_MS,
        offsetsRetentionCheckIntervalMs=settings.offsetsRetentionCheckIntervalMs,
    )


class GroupService:
    """
    The groups of a broker; the module states the rules.

    @ivar coordinator: call L{schedule} behind each of its methods that changes something.
    """

    def __init__(
        self,
        clock: Any,
        topics: TopicManager,
        worker: IWorker,
        settings: BrokerSettings,
        random: Random,
    ) -> None:
        """
        @param worker: reads the partitions.
        @param random: for the ids of members, which nobody should be able to guess.
        """
        self._clock = clock
        self._topics = topics
        self._worker = worker
        self._settings = settings
        self._random = random
        self._timer = Timer(clock)
        self._dueMs: int | None = None
        self._isRunning = False
        self._isCreating = False
        self._created: Waiters[None] = Waiters()
        self._topic: TopicImage | None = None
        self._appenders: dict[int, Appender] = {}
        self._known: Mapping[UUID, TopicImage] = {}
        self._partitionCount = settings.offsetsTopicNumPartitions
        self.coordinator = self._newCoordinator()

    def _newCoordinator(self) -> GroupCoordinator:
        settings = groupSettings(self._settings, self._partitionCount)
        return GroupCoordinator(settings, self._append, self.nowMs, self._random)

    def nowMs(self) -> int:
        return int(self._clock.seconds() * 1000)

    # -- start and stop

    def start(self) -> Deferred[None]:
        """
        Load the groups. The partitions of all topics are there.

        @return: fires with L{None} when all partitions are served, or found to be unreadable.
            Clients need not wait for it.
        """
        self._isRunning = True
        self._known = self._topics.image.topicsById
        self._topics.metadata.listen(self._onMetadata)
        topic = self._topics.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return Deferred.fromCoroutine(_nothing())
        return Deferred.fromCoroutine(self._load(topic))

    def stop(self) -> None:
        """Serve no group any more. What waits is answered with an error."""
        self._isRunning = False
        self._timer.stop()
        self._unload()
        self._created.fire(None)

    # -- the topic

    async def findCoordinator(self, groupId: str) -> bool:
        """
        Whether this broker serves a group. Creates the topic if need be.
        """
        while self._isRunning and self._topic is None:
            waiting = self._created.wait()
            if not self._isCreating:
                self._isCreating = True
                Deferred.fromCoroutine(self._create()).addErrback(_bug)
            await waiting
            if self._topic is None:
                return False
        return partitionFor(groupId, self._partitionCount) in self._appenders

    async def _create(self) -> None:
        try:
            topic = await self._topics.create(
                OFFSETS_TOPIC, self._settings.offsetsTopicNumPartitions, OFFSETS_TOPIC_CONFIGS
            )
            if self._isRunning:
                await self._load(topic)
        except PylogbrokerError as error:
            log.error("{topic} cannot be created: {error}", topic=OFFSETS_TOPIC, error=error)
        finally:
            self._isCreating = False
            self._created.fire(None)

    def _onMetadata(self) -> None:
        """Topics that are gone take their committed offsets along."""
        known, self._known = self._known, self._topics.image.topicsById
        if self._topic is not None and self._topic.topicId not in self._known:
            self._unload()
        for topicId in known.keys() - self._known.keys():
            self.coordinator.topicDeleted(known[topicId].name, topicId.bytes)

    def _unload(self) -> None:
        self._topic = None
        appenders, self._appenders = self._appenders, {}
        for index in appenders:
            self.coordinator.unload(index)

    # -- loading

    async def _load(self, topic: TopicImage) -> None:
        self._topic = topic
        if topic.partitionCount != self._partitionCount:
            self._partitionCount = topic.partitionCount
            self.coordinator = self._newCoordinator()
        for index in range(topic.partitionCount):
            found = self._topics.find(OFFSETS_TOPIC, index)
            if found is None:
                log.error("{topic}-{index} is not there", topic=OFFSETS_TOPIC, index=index)
                continue
            self._appenders[index] = Appender(found, self.nowMs, partial(self._failed, index))
            self.coordinator.beginLoading(index)
        await gatherInBatches(self._loadOne, list(self._appenders.items()), LOAD_COUNT_MAX)

    async def _loadOne(self, place: tuple[int, Appender]) -> None:
        index, appender = place
        loader = Loader(appender.partition, self._worker)
        coordinator = self.coordinator
        try:
            while self._appenders.get(index) is appender:
                records = await loader.nextRecords()
                if self._appenders.get(index) is not appender:
                    return  # stopped meanwhile
                if records is None:
                    coordinator.loaded(index)
                    self.schedule()
                    return
                for key, value in records:
                    coordinator.replay(key, value)
        except PylogbrokerError as error:
            log.critical(
                "The groups of {topicPartition} are not served, since it cannot be read: {error}",
                topicPartition=appender.partition.topicPartition,
                error=error,
            )
            self._failed(index)

    # -- appending

    def _append(self, index: int, records: Sequence[Record], done: Appended) -> None:
        appender = self._appenders.get(index)
        if appender is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            appender.append(records, partial(self._appended, done))

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
