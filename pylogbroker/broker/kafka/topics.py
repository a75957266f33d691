"""
L{TopicManager}: the topics of Kafka's current protocol and their partitions on this broker.

B{The image of the metadata decides} which partitions this broker is to have and which it leads:
with a journal of its own, all; in a cluster, those that name it as a replica, and as the leader. A
topic is created in the metadata first, durably, and then on the disk. After each change of the
image, of this broker or another, and at the start, each partition's directory is brought in line
with it: created if it is missing, removed if its topic is, or if the image gives the partition to
others. So the work is the same for all changes, can be cut off anywhere, and is begun again by the
next start. At most L{WORK_COUNT_MAX} directories are worked on at a time. A change is answered when
the partitions that it touches are as they should be on this broker; those of others may follow.

B{What is removed.} Only what the image has removed: a directory whose C{partition.metadata} names a
topic in C{MetadataImage.removing}, or a partition that the image gives to other brokers. A removed
topic stays in the image until each broker that had replicas says that they are gone, so that a
broker that was away finds out at its start. A directory of a topic that the image does not know is
a I{stray}: it is not served, and it is kept, since the metadata may have been lost. It blocks a new
partition of its name until an operator has moved it away. Kafka, too, keeps strays, and moves them
aside.

A topic's name belongs to the protocol that created it: 2011's topics are directories without
metadata, and are refused here by name. Those of other brokers are found in ZooKeeper.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence, Set
from random import Random
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.logmanager import LogManager, Partition
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import (
    TOPIC,
    BrokerImage,
    ConfigRecord,
    MetadataImage,
    PartitionCountRecord,
    PartitionImage,
    Record,
    RemoveTopicRecord,
    ReplicasRemovedRecord,
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
from pylogbroker.errors import (
    InvalidReplicaAssignmentError,
    PartitionOfflineError,
    PylogbrokerError,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records import compression
from pylogbroker.records.kafkaformat import KafkaFormat, RecordRules
from pylogbroker.records.segmentindex import IndexSettings
from pylogbroker.replication.controller import PartitionKey, hostedPartitions
from pylogbroker.replication.elections import NO_LEADER, Loss, newPartition
from pylogbroker.replication.placement import (
    checkAssignment,
    placeReplicas,
)
from pylogbroker.storage.kafka.batchlog import BatchLog, BatchLogSettings, CompactionSettings
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import PartitionLog
from pylogbroker.storage.segments import both, byRecordTime, bySize
from pylogbroker.types import TopicPartition

NAME_LENGTH_MAX = 249
NEW_COUNT_MAX = 3_000
"""Partitions that a topic of a cluster may get at once: one change of the metadata has them all."""
WORK_COUNT_MAX = 100
"""Partitions that are created or removed at the same time."""
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


class NotLeaderOrFollowerError(KafkaError):
    """
    Another broker leads a partition, or none.

    @ivar leader: the broker, or L{NO_LEADER}, and the leader epoch.
    """

    def __init__(
        self, leader: int, leaderEpoch: int, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
    ) -> None:
        super().__init__(code)
        self.leader = leader, leaderEpoch


class OtherProtocolError(KafkaError):
    """A topic of clients of Kafka 0.7 has the name of a new one."""

    def __init__(self, name: str, where: str = "") -> None:
        text = f"Topic '{name}' already exists, for clients of Kafka 0.7{where}."
        super().__init__(ErrorCode.TOPIC_ALREADY_EXISTS, text)


class IReplicas(Protocol):
    """What makes the partitions that other brokers have, too, lead and follow."""

    def host(self, topic: TopicImage, index: int, partition: Partition) -> None:
        """This broker has a partition; or the metadata of one that it has have changed."""

    def creationFailed(self, topic: TopicImage, index: int) -> None:
        """A partition that this broker is to have cannot be created: let another one lead it."""

    def release(self, partition: Partition) -> None:
        """A partition is not to be replicated any more, or is to be removed."""

    def awaitDeletion(self, partition: Partition, offset: int) -> Deferred[int]:
        """
        Wait until records before an offset are deleted on all replicas in sync. It may be
        cancelled.

        @return: fires with the low watermark; fails with L{KafkaError} when this broker does not
            lead the partition any more.
        """

    def isFollowing(self, partition: Partition, topicId: UUID, leaderEpoch: int) -> bool:
        """Whether this broker follows the leader of an epoch, or waits for one in it."""
        ...


class _Work(NamedTuple):
    """
    What is to be done with a partition's directory.

    @ivar topic: whose partition is to be created; L{None}: it is to be removed.
    @ivar topicId: of the topic whose partition is to be removed.
    """

    topic: TopicImage | None
    topicId: UUID


class TopicManager:
    """
    Topics and partitions; the module states the rules.

    @ivar metadata: whose image is the truth.
    @ivar staticValues: what the broker's file says, by its keys.
    @ivar brokerId: of this broker.
    @ivar findOf2011: gives the node of a topic of 2011 in the cluster's ZooKeeper, or L{None};
        L{None}: there are no other brokers.
    @ivar replicas: decides what this broker does with a partition that others have, too, and calls
        L{lead} and L{unlead}; L{None}: there are no such partitions.
    """

    def __init__(
        self,
        metadata: MetadataManager,
        directory: LogDirectory,
        logManager: LogManager,
        staticValues: Mapping[str, str],
        partitionCountMax: int,
        brokerId: int,
        random: Random,
        replicationFactors: Mapping[str, int] | None = None,
    ) -> None:
        """
        @param staticValues: what the broker's file says, by its keys.
        @param partitionCountMax: partitions that a broker may have.
        @param random: places new partitions.
        @param replicationFactors: of topics in a cluster whose creator does not say; C{""}: of all
            that are not named.
        """
        self.metadata = metadata
        self.brokerId = brokerId
        self.findOf2011: Callable[[str], Awaitable[str | None]] | None = None
        self.replicas: IReplicas | None = None
        self._directory = directory
        self._logManager = logManager
        self.staticValues = staticValues
        self._serverConfigs = topicDefaults(staticValues)
        self._partitionCountMax = partitionCountMax
        self._random = random
        self._replicationFactors = replicationFactors or {}
        self._format = KafkaFormat()
        self._byName: dict[tuple[str, int], Partition] = {}  # that this broker leads
        self._byId: dict[tuple[bytes, int], Partition] = {}
        self._hosted: dict[tuple[str, int], Partition] = {}
        # The topic whose partition a directory has, or would have if its creation had not failed.
        self._owners: dict[tuple[str, int], UUID] = {}
        self._owned: dict[UUID, set[int]] = {}
        self._seen: Mapping[str, TopicImage] = {}
        self._seenConfigs: Mapping[str, Mapping[str, str]] = {}
        self._seenRemoved: Set[UUID] = frozenset()
        self._confirming: dict[UUID, Waiters[None]] = {}
        self._working: dict[tuple[str, int], Waiters[None]] = {}
        self._queue: deque[tuple[str, int]] = deque()
        self._workCount = 0
        self._watchers: dict[str, Callable[[int], object]] = {}
        self._isPumping = False
        self._isShared = False  # with other brokers, which may take over what this one leads
        self._isStarted = self._isStopping = False

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
        return currentConfigs(self.image, self._serverConfigs, self.brokerId)

    def configs(self, topic: TopicImage) -> EffectiveConfigs:
        return EffectiveConfigs(topic.configs, self.serverConfigs)

    def find(self, name: str, index: int) -> Partition | None:
        """
        A partition that this broker leads, and that is there. L{None}: L{unavailable} tells why.
        """
        if self._isShared and not self.metadata.isCurrent:
            return None
        return self._byName.get((name, index))

    def findById(self, topicId: bytes, index: int) -> Partition | None:
        """As L{find}, by the topic's id."""
        if self._isShared and not self.metadata.isCurrent:
            return None
        return self._byId.get((topicId, index))

    def led(self, name: str, index: int) -> Partition | None:
        """
        A partition that this broker leads as far as it knows, though it may have been replaced.
        """
        return self._byName.get((name, index))

    def followed(self, name: str, index: int) -> Partition | None:
        """
        A partition that this broker follows, in the leader epoch that the metadata have: a consumer
        may read what is committed there.
        """
        found = self._hosted.get((name, index))
        if found is None or self.replicas is None or not self.metadata.isCurrent:
            return None
        topic = self.image.topics.get(name)
        if topic is None or not topic.isReplicated(index):
            return None
        epoch = topic.partitions[index].leaderEpoch
        return found if self.replicas.isFollowing(found, topic.topicId, epoch) else None

    def hosted(self, name: str, index: int) -> Partition | None:
        """A partition that is on this broker, which may lead it or not."""
        return self._hosted.get((name, index))

    def topicById(self, topicId: bytes) -> TopicImage | None:
        return self.image.topicsById.get(UUID(bytes=bytes(topicId)))

    def leaderOf(self, topic: TopicImage, index: int) -> tuple[int, int]:
        """
        The broker that leads a partition, or L{NO_LEADER}, and its leader epoch, which is -1 where
        a broker keeps its metadata by itself: there only the log knows it.
        """
        if not topic.partitions:
            return self.brokerId, -1
        found = topic.partitions[index]
        return found.leader, found.leaderEpoch

    def leaderAt(self, name: str, index: int) -> tuple[int, int] | None:
        """As L{leaderOf}, by the topic's name; L{None}: there is no such partition."""
        topic = self.image.topics.get(name)
        if topic is None or not 0 <= index < topic.partitionCount:
            return None
        return self.leaderOf(topic, index)

    def isReplica(self, name: str, index: int, brokerId: int, brokerEpoch: int) -> bool:
        """
        Whether another broker has a partition, too.

        @param brokerEpoch: of its registration, which must not have been followed by another; -1:
            it does not say.
        """
        image = self.image
        topic = image.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions) or brokerId == self.brokerId:
            return False
        broker = image.brokers.get(brokerId)
        isOld = broker is None or -1 < brokerEpoch < broker.epoch
        return brokerId in topic.partitions[index].replicas and not isOld

    def unavailable(self, topic: TopicImage | None, index: int) -> KafkaError:
        """Why L{find} does not find a partition: it does not exist, or not here."""
        if topic is not None and topic.partitions and 0 <= index < topic.partitionCount:
            if not self.metadata.isCurrent:  # then it is not known who leads
                return NotLeaderOrFollowerError(NO_LEADER, -1)
            return NotLeaderOrFollowerError(*self.leaderOf(topic, index))
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def watch(self, name: str, watcher: Callable[[int], object]) -> None:
        """
        Call a function with the number of a partition of a topic whenever this broker begins or
        ceases to lead it, or leads it in another epoch; perhaps also when nothing has changed.
        There is one such function for a topic.
        """
        self._watchers[name] = watcher

    # -- start and stop

    def start(self) -> Deferred[None]:
        """
        Serve what is there, at once; then remove what a crash left of removed topics, and create
        missing partitions. The log directory is open.

        @return: fires when every partition of every topic is there, or is out of service.
        """
        image, strays = self.image, set[str]()
        for topicPartition, found in self._directory.logs.items():
            topic = image.topics.get(topicPartition.topic)
            if isinstance(found, BatchLog) and topic is not None:
                self._own(topicPartition, topic.topicId)
                if self._isWanted(topic, topicPartition.partition):
                    self._hosted[topicPartition] = self._logManager.partition(found)
                continue
            topicId = self._removedId(topicPartition)
            if found.format.isStamped or topicId is not None:
                found.keepAll()
                self._adopt(topicPartition, topicId, strays)
        for topicPartition in self._directory.failures:
            topic = image.topics.get(topicPartition.topic)
            topicId = self._directory.topicIds.get(topicPartition)
            if topicId is None and topic is not None:
                topicId = topic.topicId
            topicId = topicId or self._removedId(topicPartition)
            if topicId is not None:
                self._adopt(topicPartition, topicId, strays)
        for name in sorted(strays):
            log.warn(
                "Stray partitions of topic {topic}, which the metadata do not have, are not served",
                topic=name,
            )
        self._isStarted = True
        self.metadata.listen(self._onMetadata)
        self._onMetadata()
        return Deferred.fromCoroutine(self._finished(list(self._working)))

    def _removedId(self, topicPartition: TopicPartition) -> UUID | None:
        """
        The topic of a directory that is not one of a known topic. Versions before topic ids left
        none, and there the name tells, unless there are other brokers, which may have had it.
        """
        image = self.image
        found = self._directory.topicIds.get(topicPartition)
        if found is not None:
            return found
        for topicId, name in image.removing.items():
            if name == topicPartition.topic and topicId not in image.removingBrokers:
                return topicId
        return None

    def _adopt(
        self, topicPartition: TopicPartition, topicId: UUID | None, strays: set[str]
    ) -> None:
        """@param strays: gets the name, if the image does not know the topic."""
        if topicId is not None:
            self._own(topicPartition, topicId)
        if topicId not in self.image.topicsById and topicId not in self.image.removing:
            strays.add(topicPartition.topic)

    def losses(self, image: MetadataImage) -> dict[PartitionKey, Loss]:
        """
        What this broker has lost of the partitions that it is to have, as the log directory was
        when it was opened: another replica must lead them.

        A partition that was given to this broker while it was away is missing, too, and is in no
        in-sync set; one that it had no time to create is not lost. One that cannot be loaded, and
        that no other broker has, waits for its repair.
        """
        directory = self._directory
        found: dict[PartitionKey, Loss] = {}
        suspects = directory.failures or directory.missing or directory.shortened
        if not suspects and not directory.isMemoryDamaged:
            return found
        for topicId, index in hostedPartitions(image, self.brokerId):
            topic = image.topicsById[topicId]
            place = TopicPartition(topic.name, index)
            if directory.topicIds.get(place, topicId) != topicId:
                continue  # what is there is of an earlier topic of this name
            isMissing = place in directory.missing
            if directory.isMemoryDamaged and place not in directory.logs:
                isMissing = True
            isDamaged = place in directory.failures
            if isMissing or (isDamaged and topic.isReplicated(index)):
                found[topicId, index] = Loss.ALL
            elif place in directory.shortened:
                log = directory.logs[place]
                isEmpty = log.logEndOffset <= log.logStartOffset
                found[topicId, index] = Loss.ALL if isEmpty else Loss.SUFFIX
        return found

    async def stop(self) -> None:
        """
        Create and remove no more partitions, and wait for those that are under way. The next start
        does the rest.
        """
        self._isStopping = True
        await self._finished(list(self._working))

    # -- what the image wants

    def _isWanted(self, topic: TopicImage, index: int) -> bool:
        """Whether this broker is to have a partition."""
        if not topic.partitions:
            return index < topic.partitionCount
        return index < len(topic.partitions) and self.brokerId in topic.partitions[index].replicas

    def _onMetadata(self) -> None:
        """Serve what the image says, and begin to create and remove what it wants."""
        if not self._isStarted:
            return
        image, seen = self.image, self._seen
        topics = self._seen = image.topics
        self._isShared = bool(image.brokers)
        # Thousands of topics are compared with each change: by name, since ids are slow to hash.
        found = zip(topics.values(), map(seen.get, topics), strict=True)
        changed = [(topic, before) for topic, before in found if topic is not before]
        gone = [before for topic, before in changed if before and before.topicId != topic.topicId]
        if len(seen) + sum(before is None for _, before in changed) != len(topics):
            gone += [topic for name, topic in seen.items() if name not in topics]
        for topic in gone:
            for index in range(topic.partitionCount):
                self._drop(topic, index)
        for topicId in image.removing.keys() - self._seenRemoved:
            self._remove(topicId)
        self._seenRemoved = image.removing.keys()
        for topic, before in changed:
            self._update(topic, None if before in gone else before)
        if image.brokerConfigs != self._seenConfigs:
            for name in topics:
                self._directory.configure(name)
        self._seenConfigs = image.brokerConfigs
        self._pump()

    def _update(self, topic: TopicImage, before: TopicImage | None) -> None:
        if before is not None and before.configs != topic.configs:
            self._directory.configure(topic.name)
        partitions = topic.partitions
        areSameConfigs = before is not None and before.configs == topic.configs
        known = before.partitions if before is not None and areSameConfigs else ()
        for index in range(topic.partitionCount):
            if index < len(known) and known[index] is partitions[index]:
                continue
            place = topic.name, index
            if self._isWanted(topic, index):
                if place in self._hosted:
                    self._setLeader(topic, index)
                else:
                    self._begin(place)
            else:
                self._drop(topic, index)
                if place in self._owners:
                    self._begin(place)

    def _setLeader(self, topic: TopicImage, index: int) -> None:
        """Serve a partition that this broker leads, from its leader epoch on."""
        found = self._hosted[topic.name, index]
        leader, epoch = self.leaderOf(topic, index)
        batches = batchLog(found)
        isReplicated = topic.isReplicated(index) and self.replicas is not None
        if batches.isReplicated != isReplicated:
            batches.setReplicated(isReplicated)
            if not isReplicated:
                self._release(found)
        if leader != self.brokerId and not isReplicated:
            batches.followEpoch(epoch)
        elif leader == self.brokerId and topic.partitions:
            if batches.epochs.latest > epoch:
                log.critical(
                    "{topic}-{index} is not served: the log has leader epoch {latest},"
                    " and the metadata only {epoch}",
                    topic=topic.name,
                    index=index,
                    latest=batches.epochs.latest,
                    epoch=epoch,
                )
                leader = NO_LEADER
                isReplicated = False
            elif not isReplicated:
                batches.assignEpoch(epoch)
        if leader != self.brokerId:
            self.unlead(topic, index)
        elif not isReplicated:
            self.lead(topic, index)
        if isReplicated:
            assert self.replicas is not None
            self.replicas.host(topic, index, found)

    def lead(self, topic: TopicImage, index: int) -> None:
        """Serve a partition that is on this broker, which leads it now."""
        found = self._hosted[topic.name, index]
        self._byName[topic.name, index] = found
        self._byId[topic.topicId.bytes, index] = found
        self._tell(topic, index)

    def _release(self, partition: Partition) -> None:
        batchLog(partition).isFollowing = False
        if self.replicas is not None:
            self.replicas.release(partition)

    def unlead(self, topic: TopicImage, index: int) -> None:
        """Serve a partition no more; it may stay on this broker."""
        if self._byId.pop((topic.topicId.bytes, index), None) is not None:
            del self._byName[topic.name, index]
            self._tell(topic, index)

    def _tell(self, topic: TopicImage, index: int) -> None:
        watcher = self._watchers.get(topic.name)
        if watcher is not None:
            watcher(index)

    def _drop(self, topic: TopicImage, index: int) -> None:
        """Have a partition no more."""
        self.unlead(topic, index)
        if self._owners.get((topic.name, index)) == topic.topicId:
            found = self._hosted.pop((topic.name, index), None)
            if found is not None and found.log.isReplicated:
                self._release(found)

    def _put(self, topic: TopicImage, index: int, found: PartitionLog) -> None:
        self._hosted[topic.name, index] = self._logManager.partition(found)
        self._setLeader(topic, index)

    def _own(self, place: tuple[str, int], topicId: UUID) -> None:
        self._owners[place] = topicId
        self._owned.setdefault(topicId, set()).add(place[1])

    def _disown(self, place: tuple[str, int]) -> None:
        topicId = self._owners.pop(place)
        self._owned[topicId].discard(place[1])
        if not self._owned[topicId]:
            del self._owned[topicId]

    # -- work on directories

    def _begin(self, place: tuple[str, int]) -> None:
        """Bring a directory in line with the image: now, or when others are done."""
        if place not in self._working:
            self._working[place] = Waiters()
            self._queue.append(place)

    def _pump(self) -> None:
        if self._isPumping:  # what has nothing to wait for would call it again and again
            return
        self._isPumping = True
        while self._queue and self._workCount < WORK_COUNT_MAX:
            self._workCount += 1
            place = self._queue.popleft()
            working = Deferred.fromCoroutine(self._work(place)).addErrback(_bug)
            working.addCallback(self._worked, place)
        self._isPumping = False

    async def _work(self, place: tuple[str, int]) -> None:
        failed = None
        # The image may change meanwhile. What has failed is tried again by the next change.
        while (work := self._workAt(place)) not in (None, failed):
            assert work is not None
            try:
                await self._do(place, work)
            except PylogbrokerError as error:
                log.error(
                    "{topic}-{index} cannot be {done}: {error}",
                    topic=place[0],
                    index=place[1],
                    done="removed" if work.topic is None else "created",
                    error=error,
                )
                failed = work
                if work.topic is not None and self.replicas is not None:
                    self.replicas.creationFailed(work.topic, place[1])

    def _worked(self, _none: None, place: tuple[str, int]) -> None:
        self._workCount -= 1
        self._working.pop(place).fire(None)
        self._pump()

    def _workAt(self, place: tuple[str, int]) -> _Work | None:
        """L{None}: there is nothing to do, or nothing that may be done."""
        if self._isStopping:
            return None
        name, index = place
        image, owner = self.image, self._owners.get(place)
        topic = image.topics.get(name)
        if topic is not None and not self._isWanted(topic, index):
            topic = None
        isForeign = owner is not None and (topic is None or topic.topicId != owner)
        if owner is not None and isForeign and self._mayRemove(owner, index):
            return _Work(None, owner)
        if topic is None or place in self._hosted:
            return None
        return _Work(topic, topic.topicId)

    def _mayRemove(self, topicId: UUID, index: int) -> bool:
        """Whether the image says that this broker is not to have a partition any more."""
        if topicId in self.image.removing:
            return True
        topic = self.image.topicsById.get(topicId)
        return (
            topic is not None and index < len(topic.partitions) and not self._isWanted(topic, index)
        )

    async def _do(self, place: tuple[str, int], work: _Work) -> None:
        """@raise PylogbrokerError: it cannot be done."""
        if work.topic is not None:
            await self._createOne(work.topic, place[1])
            return
        topicPartition = TopicPartition(*place)
        if not self._directory.isToRemove(topicPartition):
            raise PartitionOfflineError(
                f"{self._directory.path}/{topicPartition}",
                "remove",
                "an earlier attempt failed; the next start of the broker tries again",
            )
        await self._logManager.remove(topicPartition)
        self._disown(place)
        self._remove(work.topicId)

    async def _createOne(self, topic: TopicImage, index: int) -> None:
        name = topic.name
        found = self._directory.get(name, index)
        if found is None:
            job = self._directory.beginCreate(name, index, self._format, topic.topicId)
            self._own((name, index), topic.topicId)
            found = self._directory.finishCreate(job, await self._logManager.runJob(job))
        if not isinstance(found, BatchLog):
            text = "the directory is of another protocol, or of a topic that was lost"
            where = f"{self._directory.path}/{name}-{index}"
            raise PartitionOfflineError(where, "use", text)
        if topic.partitions:
            await self._logManager.remember(found.topicPartition)
        latest = self.image.topicsById.get(topic.topicId)
        if latest is not None and self._isWanted(latest, index):
            self._put(latest, index, found)

    def _remove(self, topicId: UUID) -> None:
        """Remove what is left of a removed topic; if nothing is, say so in the metadata."""
        name = self.image.removing.get(topicId)
        if name is None:
            return
        for index in self._owned.get(topicId, ()):
            self._begin((name, index))
        if topicId in self._owned or topicId in self._confirming or self._isStopping:
            return
        brokers = self.image.removingBrokers.get(topicId)
        if brokers is None:
            record: Record = TopicRemovalCompletedRecord(str(topicId))
        elif self.brokerId in brokers:
            record = ReplicasRemovedRecord(str(topicId), self.brokerId)
        else:
            return
        waiters = self._confirming[topicId] = Waiters()

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            isLeft = image.removing.get(topicId) is not None
            if brokers is not None:
                isLeft = self.brokerId in image.removingBrokers.get(topicId, ())
            return [record] if isLeft else [], None

        def failed(failure: Failure) -> None:
            failure.trap(PylogbrokerError)
            log.error(
                "The removal of topic {topic} could not be completed: {error}; the next start"
                " tries again",
                topic=name,
                error=failure.value,
            )

        def confirmed(_none: None) -> None:
            del self._confirming[topicId]
            waiters.fire(None)

        self.metadata.change(decide).addErrback(failed).addCallback(confirmed).addErrback(_bug)

    async def _finished(self, places: Iterable[tuple[str, int]]) -> None:
        """Wait for the work on some directories."""
        for place in places:
            underWay = self._working.get(place)
            if underWay is not None:
                await underWay.wait()

    async def _settled(self, topicIds: Iterable[UUID]) -> None:
        """Wait until the partitions of topics are as the image says."""
        for topicId in topicIds:
            topic = self.image.topicsById.get(topicId)
            if topic is not None:
                await self._finished((topic.name, index) for index in range(topic.partitionCount))
                continue
            name = self.image.removing.get(topicId, "")
            await self._finished([(name, index) for index in self._owned.get(topicId, ())])
            confirming = self._confirming.get(topicId)
            if confirming is not None:
                await confirming.wait()

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
        if image.isTaken(name):
            text = f"Topic '{name}' is marked for deletion."
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, text)
        if name not in image.removing.values() and self._isIn(name):
            raise OtherProtocolError(name)
        try:
            return {key: checkTopicConfig(key, value) for key, value in configs.items()}
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error

    async def checkOtherBrokers(self, name: str | None) -> None:
        """
        Check that the name of a new topic belongs to no topic of 2011, on whichever broker.

        @raise OtherProtocolError: it does.
        @raise PylogbrokerError: ZooKeeper cannot be asked.
        """
        if self.findOf2011 is None or not name or _NAME.fullmatch(name) is None:
            return
        if name not in self.image.topics:
            found = await self.findOf2011(name)
            if found is not None:
                raise OtherProtocolError(name, f" ({found} in ZooKeeper)")

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
        replicationFactor: int = 1,
        assignment: Sequence[Sequence[int]] = (),
    ) -> list[Record]:
        """
        The records of a new topic.

        @param assignment: the replicas of each partition, as a client has chosen them; none: they
            are placed.
        @return: the first one is the L{TopicRecord}.
        @raise PylogbrokerError: it cannot be created.
        """
        checked = self.checkNewTopic(image, name, configs)
        if partitionCount < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        made = self._newPartitions(image, partitionCount, replicationFactor, assignment)
        self.checkRoom(image, partitionCount)
        topicId = self.metadata.newTopicId()
        shown = str(topicId)
        records: list[Record] = [TopicRecord(name, shown, partitionCount)]
        records += [each.record(topicId, index) for index, each in enumerate(made)]
        records += [ConfigRecord(TOPIC, shown, key, value) for key, value in checked.items()]
        return records

    def morePartitions(
        self,
        image: MetadataImage,
        topic: TopicImage,
        partitionCount: int,
        assignment: Sequence[Sequence[int]] = (),
    ) -> list[Record]:
        """
        The records of a topic that gets more partitions, with as many replicas as the first has.

        @param partitionCount: of all together.
        @param assignment: as for L{newTopic}, of the new ones.
        @raise PylogbrokerError: it cannot get them.
        """
        have = topic.partitionCount
        factor = len(topic.partitions[0].replicas) if topic.partitions else 1
        made = self._newPartitions(image, partitionCount - have, factor, assignment, have)
        self.checkRoom(image, partitionCount - have)
        return [
            PartitionCountRecord(str(topic.topicId), partitionCount),
            *(each.record(topic.topicId, index) for index, each in enumerate(made, have)),
        ]

    def _newPartitions(
        self,
        image: MetadataImage,
        count: int,
        replicationFactor: int,
        assignment: Sequence[Sequence[int]],
        first: int = 0,
    ) -> list[PartitionImage]:
        """
        Place new partitions. None, if this broker keeps its metadata by itself and has them all.

        @param first: the number of the first one. Behind others, their replication factor holds.
        """
        brokers = image.brokers or {self.brokerId: BrokerImage(self.brokerId, 0, (), None)}
        if assignment:
            expected = replicationFactor if first else None
            for replicas in assignment:
                checkAssignment(brokers, replicas, expected)
                expected = len(replicas)
        elif image.brokers or replicationFactor != 1:
            assignment = placeReplicas(brokers.values(), count, replicationFactor, self._random)
        if not image.brokers:
            return []
        if count > NEW_COUNT_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{count} new partitions of a topic: in a cluster {NEW_COUNT_MAX} are possible at"
                " a time. Create the topic with fewer, and add the others.",
            )
        made: list[PartitionImage] = []
        for replicas in assignment:
            partition = newPartition(replicas, lambda each: brokers[each].mayLead)
            if partition is None:
                raise InvalidReplicaAssignmentError(
                    "All brokers specified in the manual partition assignment for partition"
                    f" {first + len(made)} are fenced or in controlled shutdown."
                )
            made.append(partition)
        return made

    def checkRoom(self, image: MetadataImage, count: int) -> None:
        """@raise KafkaError: there would be too many partitions."""
        have = image.partitionCount + len(self._directory.logs) - len(self._hosted)
        if have + count > self._partitionCountMax * max(len(image.brokers), 1):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{count} partitions more than {have} would exceed max.partitions,"
                f" {self._partitionCountMax}",
            )

    async def change(self, decide: Callable[[MetadataImage], tuple[list[Record], Any]]) -> Any:
        """
        Change the metadata, then create and remove partitions.

        @return: what C{decide} gave, when all is done on this broker.
        """

        def withTouched(image: MetadataImage) -> tuple[list[Record], Any]:
            records, result = decide(image)
            kinds = TopicRecord | PartitionCountRecord | RemoveTopicRecord
            touched = [UUID(each.topicId) for each in records if isinstance(each, kinds)]
            return records, (touched, result)

        touched, result = await self.metadata.change(withTouched)
        await self._settled(touched)
        return result

    def replicationFactor(self, image: MetadataImage, name: str) -> int:
        """How many brokers have a new topic whose creator does not say."""
        factors = self._replicationFactors
        return factors.get(name, factors.get("", 1)) if image.brokers else 1

    async def create(
        self, name: str, partitionCount: int, configs: Mapping[str, str | None] | None = None
    ) -> TopicImage:
        """
        Create a topic, unless it is there; in any case wait for its partitions on this broker.

        @raise PylogbrokerError: it cannot be created, or was removed meanwhile.
        """

        def decide(image: MetadataImage) -> tuple[list[Record], bool]:
            if name in image.topics:
                return [], False
            self.checkSimilarNames(image, name)
            factor = self.replicationFactor(image, name)
            return self.newTopic(image, name, partitionCount, configs or {}, factor), True

        await self.checkOtherBrokers(name)
        isNew = await self.change(decide)
        topic = self.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not isNew:  # what failed before is tried again
            for index in range(topic.partitionCount):
                if self._workAt((name, index)) is not None:
                    self._begin((name, index))
            self._pump()
            await self._settled([topic.topicId])
        return topic


def currentConfigs(
    image: MetadataImage, static: Mapping[str, str], brokerId: int
) -> Mapping[str, str]:
    """
    A broker's settings, with those that were changed while it ran.

    @param static: those at its start, by the names of topic settings.
    """
    if not image.brokerConfigs:
        return static
    made = dict(static)
    for owner in ("", str(brokerId)):
        configs = image.brokerConfigs.get(owner, {})
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


def _bug(failure: Failure) -> None:
    log.failure("Work on a partition's directory failed: this is a bug", failure)
