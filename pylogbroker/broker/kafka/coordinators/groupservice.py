"""
L{GroupService}: drives the coordinator of consumer groups
(L{pylogbroker.coordinator.groups}), whose topic is C{__consumer_offsets}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators.coordinatorlog import Appender, Loaded, LoadedEnd
from pylogbroker.broker.kafka.coordinators.coordinatorservice import CoordinatorService
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, TopicManager
from pylogbroker.cluster.metadataimage import TopicImage
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import ValidatedBatches
from pylogbroker.net.workers import IWorker
from pylogbroker.replication.elections import NO_LEADER

OFFSETS_TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""The settings with which Kafka creates the topic."""

_MINUTE_MS = 60_000


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
        consumerSessionTimeoutMs=settings.groupConsumerSessionTimeoutMs,
        consumerHeartbeatIntervalMs=settings.groupConsumerHeartbeatIntervalMs,
        consumerAssignmentIntervalMs=settings.groupConsumerAssignmentIntervalMs,
        consumerGroupMaxSize=settings.groupConsumerMaxSize,
        consumerAssignors=settings.groupConsumerAssignors,
        consumerRegexRefreshIntervalMs=settings.groupConsumerRegexRefreshIntervalMs,
        mayUpgrade=settings.groupConsumerMigrationPolicy[0],
        mayDowngrade=settings.groupConsumerMigrationPolicy[1],
    )


class GroupService(CoordinatorService):
    """
    The groups of a broker.

    @ivar coordinator: call C{schedule} behind each of its methods that changes something.
    """

    topicName = OFFSETS_TOPIC
    topicConfigs = OFFSETS_TOPIC_CONFIGS
    coordinator: GroupCoordinator

    def __init__(
        self,
        clock: Any,
        topics: TopicManager,
        worker: IWorker,
        purgatory: Purgatory,
        settings: BrokerSettings,
        random: Random,
    ) -> None:
        """@param random: for the ids of members, which must be hard to guess."""
        super().__init__(
            clock,
            topics,
            worker,
            purgatory,
            settings.offsetsTopicNumPartitions,
            settings.offsetsCommitTimeoutMs,
        )
        self._settings = settings
        self._random = random
        self._known: Mapping[UUID, TopicImage] = {}
        self._endsWhileLoading: dict[int, tuple[Appender, list[tuple[int, bool]]]] = {}
        self._makeCoordinator()

    def _makeCoordinator(self) -> None:
        settings = groupSettings(self._settings, self.partitionCount)
        self.coordinator = GroupCoordinator(
            settings,
            self._append,
            self.nowMs,
            self._random,
            lambda: self._topics.image,
            self._isCurrent,
        )

    def start(self) -> Deferred[None]:
        """See L{CoordinatorService.start}."""
        self._known = self._topics.image.topicsById
        return super().start()

    async def findCoordinator(self, groupId: str) -> int:
        """The broker that serves a group, or L{NO_LEADER}. Creates the topic if need be."""
        if not await self.awaitTopic():
            return NO_LEADER
        return self.leaderOf(self.coordinator.partitionOf(groupId))

    def _onMetadata(self) -> None:
        """Topics that are gone take their committed offsets along."""
        super()._onMetadata()
        known, self._known = self._known, self._topics.image.topicsById
        self.coordinator.topicsChanged()
        for topicId in known.keys() - self._known.keys():
            self.coordinator.topicDeleted(known[topicId].name, topicId.bytes)

    def _replay(self, partition: int, records: Sequence[Loaded]) -> None:
        for each in records:
            if isinstance(each, LoadedEnd):
                self.coordinator.transactionEnded(partition, each.producerId, each.isCommit)
            else:
                self.coordinator.replay(each.key, each.value, partition, each.producerId)

    def _loaded(self, partition: int, appender: Appender) -> None:
        appendedBy, ends = self._endsWhileLoading.pop(partition, (appender, []))
        if appendedBy is appender:
            for producerId, isCommit in ends:
                self.coordinator.transactionEnded(partition, producerId, isCommit)
        self.coordinator.loaded(partition)

    # -- transactions

    def endTransaction(
        self,
        partition: int,
        marker: ValidatedBatches,
        done: Callable[[PylogbrokerError | None], None],
    ) -> bool:
        """
        Append a transaction's end marker, behind the offsets that were committed in it. While the
        partition is being loaded, these may not be read yet: then the end counts behind all that is
        read.

        @param done: called when the marker is appended as an acknowledged write is, or with why it
            is not.
        @return: whether the partition is served; otherwise C{done} is not called.
        """
        appender = self._appenders.get(partition)
        if appender is None:
            return False
        appender.appendBatches(marker, partial(self._ended, partition, appender, marker, done))
        return True

    def _ended(
        self,
        partition: int,
        appender: Appender,
        marker: ValidatedBatches,
        done: Callable[[PylogbrokerError | None], None],
        error: PylogbrokerError | None,
    ) -> None:
        # A later appender's partition is read with this marker.
        if error is None and self._appenders.get(partition) is appender:
            assert marker.marker is not None
            end = marker.headers[0].producerId, marker.marker.isCommit
            if self.coordinator.isLoading(partition):
                known = self._endsWhileLoading.get(partition)
                if known is None or known[0] is not appender:
                    known = self._endsWhileLoading[partition] = appender, []
                known[1].append(end)
            else:
                self.coordinator.transactionEnded(partition, *end)
                self.schedule()
        done(error)
