"""
L{TopicManager}: the topics of Kafka's current protocol and their partitions on this broker.

A topic is created in the metadata first, durably, and then on the disk; it is answered when both
are done. A start creates what a crash left out, and removes partitions of topics that are gone. A
topic's name belongs to the protocol that created it: 2011's topics are directories without
metadata, and are refused here by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.logmanager import LogManager, Partition
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import (
    TOPIC,
    ConfigRecord,
    MetadataImage,
    PartitionCountRecord,
    Record,
    RemoveTopicRecord,
    TopicImage,
    TopicRecord,
    TopicRemovalCompletedRecord,
)
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.config.topicconfigs import (
    TOPIC_CONFIGS,
    EffectiveConfigs,
    checkTopicConfig,
    topicDefaults,
)
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import Waiters, gatherInBatches
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records import compression
from pylogbroker.records.kafkaformat import KafkaFormat, RecordRules
from pylogbroker.records.segmentindex import IndexSettings
from pylogbroker.storage.kafka.batchlog import BatchLog, BatchLogSettings, CompactionSettings
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.segments import both, byRecordTime, bySize
from pylogbroker.types import TopicPartition

NAME_LENGTH_MAX = 249
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))

_NAME = re.compile(r"[a-zA-Z0-9._-]+")

_CODECS = {
    "uncompressed": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}

log = Logger()


def checkName(name: str | None) -> str:
    """@raise KafkaError: it is no name for a topic, and why."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _NAME.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', "
            "'_' and '-'"
        )
    if reason:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
    assert name is not None
    return name


def batchLog(partition: Partition) -> BatchLog:
    """The log of a partition of today's protocol."""
    found = partition.log
    assert isinstance(found, BatchLog)
    return found


class TopicManager:
    """
    Topics and partitions; the module states the rules.

    @ivar metadata: whose image is the truth.
    @ivar staticValues: what the broker's file says, by its keys.
    """

    def __init__(
        self,
        metadata: MetadataManager,
        directory: LogDirectory,
        logManager: LogManager,
        staticValues: Mapping[str, str],
        partitionCountMax: int,
    ) -> None:
        """
        @param staticValues: what the broker's file says, by its keys.
        @param partitionCountMax: partitions that this broker may have.
        """
        self.metadata = metadata
        self._directory = directory
        self._logManager = logManager
        self.staticValues = staticValues
        self._serverConfigs = topicDefaults(staticValues)
        self._partitionCountMax = partitionCountMax
        self._format = KafkaFormat()
        self._byName: dict[tuple[str, int], Partition] = {}
        self._byId: dict[tuple[bytes, int], Partition] = {}
        self._creating: dict[tuple[str, int], Waiters[None]] = {}
        self._isStopping = False

    # -- looking up

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    @property
    def staticConfigs(self) -> Mapping[str, str]:
        """The broker's settings at its start, by the names of topic settings."""
        return self._serverConfigs

    @property
    def serverConfigs(self) -> Mapping[str, str]:
        """The broker's settings as of now, by the names of topic settings."""
        return currentConfigs(self.image, self._serverConfigs)

    def configs(self, topic: TopicImage) -> EffectiveConfigs:
        return EffectiveConfigs(topic.configs, self.serverConfigs)

    def find(self, name: str, index: int) -> Partition | None:
        """A partition that is there; L{None}: it is not, or not yet."""
        return self._byName.get((name, index))

    def findById(self, topicId: bytes, index: int) -> Partition | None:
        """As L{find}, by the topic's id."""
        return self._byId.get((topicId, index))

    def topicById(self, topicId: bytes) -> TopicImage | None:
        return self.image.topicsById.get(UUID(bytes=bytes(topicId)))

    # -- start

    def start(self) -> Deferred[None]:
        """
        Serve what is there, at once; then remove what a crash left of removed topics, and create
        missing partitions. The log directory is open.

        @return: fires when every partition of every topic is there, or is out of service.
        """
        for topic in self.image.topics.values():
            for index in range(topic.partitionCount):
                found = self._directory.logs.get(TopicPartition(topic.name, index))
                if found is not None:
                    self._put(topic, index, self._logManager.partition(found))
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        strays: dict[str, list[TopicPartition]] = {}
        removing = set(self.image.removing.values())
        for topicPartition, found in self._directory.logs.items():
            isStray = found.format.isStamped and topicPartition.topic not in self.image.topics
            if isStray or topicPartition.topic in removing:
                strays.setdefault(topicPartition.topic, []).append(topicPartition)
                found.keepAll()
        for topicId, name in list(self.image.removing.items()):
            failed = [each for each in self._directory.failures if each.topic == name]
            await self._removeAll(topicId, strays.pop(name, []) + failed)
        for name in strays:
            log.warn(
                "Stray partitions of topic {topic}, which the metadata do not have, are not served",
                topic=name,
            )
        await self._createMissing(list(self.image.topics.values()))

    async def stop(self) -> None:
        """
        Create no more partitions, and wait for those that are created now. The next start creates
        what is missing.
        """
        self._isStopping = True
        for underWay in list(self._creating.values()):
            await underWay.wait()

    def _put(self, topic: TopicImage, index: int, partition: Partition) -> None:
        self._byName[topic.name, index] = partition
        self._byId[topic.topicId.bytes, index] = partition

    async def _createMissing(self, topics: Iterable[TopicImage]) -> None:
        """Topics that are removed meanwhile get no further partitions."""

        async def create(place: tuple[TopicImage, int]) -> None:
            topic, index = place
            try:
                await self._createPartition(topic, index)
            except PylogbrokerError as error:
                log.error(
                    "{topic}-{index} cannot be created: {error}",
                    topic=topic.name,
                    index=index,
                    error=error,
                )

        places = [(topic, index) for topic in topics for index in range(topic.partitionCount)]
        await gatherInBatches(create, places)

    async def _createPartition(self, topic: TopicImage, index: int) -> None:
        place = (topic.name, index)
        while (underWay := self._creating.get(place)) is not None:
            await underWay.wait()
        isGone = topic.topicId not in self.image.topicsById
        if self._isStopping or isGone or place in self._byName:
            return
        underWay = self._creating[place] = Waiters()
        try:
            await self._createOne(topic, index)
        finally:
            del self._creating[place]
            underWay.fire(None)

    async def _createOne(self, topic: TopicImage, index: int) -> None:
        found = self._directory.get(topic.name, index)
        if found is None:
            job = self._directory.beginCreate(topic.name, index, self._format, topic.topicId)
            found = self._directory.finishCreate(job, await self._logManager.runJob(job))
        if topic.topicId in self.image.topicsById:
            self._put(topic, index, self._logManager.partition(found))

    # -- changes

    def checkNewTopic(
        self, image: MetadataImage, name: str, configs: Mapping[str, str | None]
    ) -> dict[str, str]:
        """
        Check the name and the settings of a new topic.

        @return: the settings in their usual form.
        @raise KafkaError: it cannot be created.
        """
        checkName(name)
        if name in image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if name in image.removing.values():
            text = f"Topic '{name}' is marked for deletion."
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, text)
        if self._isIn(name):
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"Topic '{name}' already exists, for clients of Kafka 0.7.",
            )
        try:
            return {key: checkTopicConfig(key, value) for key, value in configs.items()}
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def isOf2011(self, name: str) -> bool:
        """Whether a name belongs to clients of Kafka 0.7: no topic here can have it."""
        image = self.image
        isHere = name in image.topics or name in image.removing.values()
        return not isHere and self._isIn(name)

    def _isIn(self, name: str) -> bool:
        """Whether the directory has a partition of a topic, of either protocol."""
        return name in self._directory.topics or self._directory.isCreating(name)

    def checkSimilarNames(
        self, image: MetadataImage, name: str, together: Container[str] = ()
    ) -> None:
        """
        Check that a new topic has a name of its own where C{.} and C{_} are the same, as in the
        names of Kafka's metrics.

        @param together: topics that one request creates with it.
        @raise KafkaError: another topic has such a name.
        """
        if "." not in name and "_" not in name:
            return
        unified = name.replace(".", "_")
        for each in image.topics:
            if each.replace(".", "_") == unified and each not in together:
                text = f"Topic '{name}' collides with existing topic: {each}"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)

    def newTopic(
        self,
        image: MetadataImage,
        name: str,
        partitionCount: int,
        configs: Mapping[str, str | None],
    ) -> list[Record]:
        """
        The records of a new topic.

        @raise KafkaError: it cannot be created.
        """
        checked = self.checkNewTopic(image, name, configs)
        if partitionCount < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        self.checkRoom(image, partitionCount)
        topicId = str(self.metadata.newTopicId())
        records: list[Record] = [TopicRecord(name, topicId, partitionCount)]
        records += [ConfigRecord(TOPIC, topicId, key, value) for key, value in checked.items()]
        return records

    def checkRoom(self, image: MetadataImage, count: int) -> None:
        """@raise KafkaError: there would be too many partitions."""
        have = image.partitionCount + len(self._directory.logs) - len(self._byName)
        if have + count > self._partitionCountMax:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{count} partitions more than {have} would exceed max.partitions,"
                f" {self._partitionCountMax}",
            )

    async def change(self, decide: Callable[[MetadataImage], tuple[list[Record], Any]]) -> Any:
        """
        Change the metadata, then create and remove partitions.

        @return: what C{decide} gave, when all is done.
        """

        def withRemoved(image: MetadataImage) -> tuple[list[Record], Any]:
            records, result = decide(image)
            topics = [
                image.topicsById[UUID(each.topicId)]
                for each in records
                if isinstance(each, RemoveTopicRecord) and UUID(each.topicId) in image.topicsById
            ]
            touched = [
                UUID(each.topicId)
                for each in records
                if isinstance(each, TopicRecord | PartitionCountRecord)
            ]
            return records, (topics, touched, _configured(records, image), result)

        removed, touched, configured, result = await self.metadata.change(withRemoved)
        for topic in removed:
            self._forget(topic)
        for topic in removed:
            await self._remove(topic)
        image = self.image
        for topicId in configured & image.topicsById.keys():
            self._directory.configure(image.topicsById[topicId].name)
        await self._createMissing(
            image.topicsById[topicId] for topicId in touched if topicId in image.topicsById
        )
        return result

    def _forget(self, topic: TopicImage) -> None:
        for index in range(topic.partitionCount):
            self._byName.pop((topic.name, index), None)
            self._byId.pop((topic.topicId.bytes, index), None)

    async def _remove(self, topic: TopicImage) -> None:
        partitions = []
        for place in [(topic.name, index) for index in range(topic.partitionCount)]:
            while (underWay := self._creating.get(place)) is not None:
                await underWay.wait()
            topicPartition = TopicPartition(*place)
            if self._directory.isToRemove(topicPartition):
                partitions.append(topicPartition)
        await self._removeAll(topic.topicId, partitions)

    async def _removeAll(self, topicId: UUID, partitions: list[TopicPartition]) -> None:
        """What cannot be removed is tried again by the next start."""
        try:
            for partition in partitions:
                await self._logManager.remove(partition)
            record = TopicRemovalCompletedRecord(str(topicId))
            await self.metadata.change(lambda image: ([record], None))
        except PylogbrokerError as error:
            log.error(
                "The partitions of a deleted topic could not be removed: {error}", error=error
            )

    async def create(
        self, name: str, partitionCount: int, configs: Mapping[str, str | None] | None = None
    ) -> TopicImage:
        """
        Create a topic, unless it is there; in any case wait for its partitions.

        @raise KafkaError: it cannot be created, or was removed meanwhile.
        """

        def decide(image: MetadataImage) -> tuple[list[Record], bool]:
            if name in image.topics:
                return [], False
            self.checkSimilarNames(image, name)
            return self.newTopic(image, name, partitionCount, configs or {}), True

        isNew = await self.change(decide)
        topic = self.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not isNew:
            await self._createMissing([topic])
        return topic


def _configured(records: Iterable[Record], image: MetadataImage) -> set[UUID]:
    """The topics whose settings change with records."""
    found = [each for each in records if isinstance(each, ConfigRecord)]
    if any(each.resource != TOPIC for each in found):
        return set(image.topicsById)
    return {UUID(each.owner) for each in found}


def currentConfigs(image: MetadataImage, static: Mapping[str, str]) -> Mapping[str, str]:
    """
    The broker's settings, with those that were changed while it ran.

    @param static: those at its start, by the names of topic settings.
    """
    if not image.brokerConfigs:
        return static
    made = dict(static)
    for _owner, configs in sorted(image.brokerConfigs.items()):  # those of all brokers come first
        for name, config in TOPIC_CONFIGS.items():
            if config.serverKey in configs:
                made[name] = configs[config.serverKey]
    return made


def batchLogSettings(
    configs: EffectiveConfigs,
    settings: BrokerSettings,
    random: Callable[[], float],
    nowMs: Callable[[], int],
) -> BatchLogSettings:
    """
    The settings of a topic's partitions.

    @param random: numbers from 0 up to, not including, 1; for C{segment.jitter.ms}.
    @param nowMs: the broker's clock, with which timestamps are compared.
    """
    rollMs = configs.number("segment.ms")
    jitterMs = min(configs.number("segment.jitter.ms"), rollMs - 1)
    policies = configs["cleanup.policy"].split(",")
    isCompacted = "compact" in policies
    if isCompacted:  # what is not rolled is not compacted
        rollMs = min(rollMs, configs.number("max.compaction.lag.ms"))
        jitterMs = min(jitterMs, rollMs - 1)
    codec = configs["compression.type"]
    levels = {
        "gzip": "compression.gzip.level",
        "lz4": "compression.lz4.level",
        "zstd": "compression.zstd.level",
    }
    rules = RecordRules(
        batchSizeMax=configs.number("max.message.bytes"),
        isLogAppendTime=configs["message.timestamp.type"] == "LogAppendTime",
        timestampBeforeMaxMs=configs.number("message.timestamp.before.max.ms"),
        timestampAfterMaxMs=configs.number("message.timestamp.after.max.ms"),
        codec=_CODECS.get(codec),
        level=configs.number(levels[codec]) if codec in levels else None,
        isCompacted=isCompacted,
        isEveryRecordChecked=settings.logCheckRecords,
        index=IndexSettings(
            configs.number("index.interval.bytes"), configs.number("segment.index.bytes")
        ),
    )
    ageMs = configs.number("retention.ms") if "delete" in policies else -1
    size = configs.number("retention.bytes") if "delete" in policies else -1
    return BatchLogSettings(
        segmentSizeMax=configs.number("segment.bytes"),
        rollAgeMs=rollMs - int(random() * jitterMs),
        flushCountMax=configs.number("flush.messages"),
        flushIntervalMs=configs.number("flush.ms"),
        retention=both(byRecordTime(ageMs), bySize(size)),
        batchSizeMax=configs.number("max.message.bytes"),
        producerExpirationMs=settings.producerIdExpirationMs,
        isReadWhenFlushed=settings.logFlushBeforeRead,
        format=KafkaFormat(rules, nowMs),
        compaction=CompactionSettings(
            float(configs["min.cleanable.dirty.ratio"]),
            configs.number("min.compaction.lag.ms"),
            configs.number("max.compaction.lag.ms"),
            configs.number("delete.retention.ms"),
        )
        if isCompacted
        else None,
    )
