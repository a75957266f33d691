"""
Offset syncs and checkpoints between two clusters of today, as MirrorMaker 2 keeps them. A module of
its own, since L{pylogbroker.mirror.offsetsyncs} keeps its tables in ZooKeeper, which these clusters
do not have.

Partition N goes to partition N of a topic of the same name. The target's answer to a produce
request has the offset of each message, so a pair of offsets is exact: a sync. The newest one of
each partition is written to the source's C{mm2-offset-syncs.<target>.internal} as often as the
mirror commits. Before it goes the first sync that a mirror has of a partition, for groups that have
read less than what the first commit covers. From time to time the mirror reads all syncs, its
predecessors' too, translates the committed positions of the source's groups, and writes them to the
target's C{<source>.checkpoints.internal}.

For a position P the sync with the greatest offset up to P counts: the messages from P on are behind
it in the target, because the order of a partition is kept. So a group that moves misses nothing,
and reads again at most what was mirrored between that sync and P. A table has at most
L{COUNT_MAX<pylogbroker.mirror.offsetsyncs.COUNT_MAX>} syncs, dense near the end.

What must be true: a mirror writes a sync only if it still owned the partition when the message was
stored. Otherwise a successor's messages could stand before it. So a sync is written after a commit
that the group's coordinator has accepted behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceKind,
    checkAll,
)
from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.cluster.subscription import normalisePattern
from pylogbroker.config.kafka.clientsettings import (
    ACKS_ALL,
    EARLIEST,
    KafkaAdminSettings,
    KafkaClientSettings,
    KafkaConsumerSettings,
    KafkaProducerSettings,
)
from pylogbroker.config.kafka.mirrorsettings import KafkaSourceSettings
from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import PylogbrokerError
from pylogbroker.mirror.checkpoints import (
    Checkpoint,
    CompactedTopicReader,
    OffsetSync,
    checkpointsTopic,
    decodeOffsetSync,
    offsetSyncsTopic,
)
from pylogbroker.mirror.offsetsyncs import OffsetSyncTable
from pylogbroker.net.deferreds import gatherAll, gatherSettled
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import BrokerPartition, PartitionId, TopicPartition

CALL_TIMEOUT_MS = 10_000
CLOSE_MS = 1_000
WRITE_COUNT_MAX = 1_000
"""Records that are written at a time."""

_TOPIC_CONFIG = 1
"""Of a setting's source: it was set for the topic."""

_EXCLUDED_CONFIGS = frozenset(
    (
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "unclean.leader.election.enable",
        "min.insync.replicas",
    )
)
"""Not MirrorMaker 2's to copy (C{DefaultConfigPropertyFilter}), nor ours."""

StoredSyncs = dict[tuple[TopicPartition, bool], OffsetSync]
"""By partition: the first sync since the partition was taken over (true), and the newest one."""

_COMPACTED = {"cleanup.policy": "compact"}
_WITHOUT_MEMBERS = ("Empty", "Dead")


def addSync(table: OffsetSyncTable, sync: OffsetSync) -> None:
    """
    Add a sync to the table of its partition. If the target ends earlier than it did, it was made
    anew, and what was known says nothing about it.
    """
    target = BrokerPartition(0, sync.place.partition)
    if table.entries:
        offset, ends = table.entries[-1]
        if offset <= sync.upstream and ends.get(target, 0) > sync.downstream + 1:
            table.entries.clear()
    if not table.entries:
        table.record(sync.upstream, {target: sync.downstream})
    # All messages behind this one are behind it in the target, too.
    table.record(sync.upstream + 1, {target: sync.downstream + 1})


def translatePosition(table: OffsetSyncTable, place: TopicPartition, position: int) -> int | None:
    """
    @return: where a group that has read up to a position of the source continues; L{None} if the
        syncs do not go back so far.
    """
    ends = table.lookUp(position)
    return None if ends is None else ends[BrokerPartition(0, place.partition)]


class KafkaOffsetSyncStore:
    """The topics, syncs and checkpoints of one source and its target."""

    _log = Logger()

    def __init__(
        self, reactor: Any, source: KafkaSourceSettings, target: KafkaProducerSettings
    ) -> None:
        self._settings = source
        self._source = adminClient(reactor, source)
        self._target = adminClient(reactor, target)
        self._syncsTopic = offsetSyncsTopic(source.targetClusterAlias)
        self._checkpointsTopic = checkpointsTopic(source.sourceClusterAlias)
        self._syncsProducer = _producer(reactor, source)
        self._checkpointsProducer = _producer(reactor, target)
        self._consumer = _consumer(reactor, source)
        self._reader = CompactedTopicReader(reactor, self._consumer, self._syncsTopic)
        self._isIncluded = TopicPattern(normalisePattern(source.groups)).matches
        self._isExcluded = TopicPattern(normalisePattern(source.groupsExclude)).matches
        self._counts: dict[str, int] = {}
        self._hasTopics = False
        self._stored: StoredSyncs = {}
        self._begun: set[TopicPartition] = set()
        self._tables: dict[TopicPartition, OffsetSyncTable] = {}
        self._emitted: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self._lock = DeferredLock()

    def __repr__(self) -> str:
        return f"<KafkaOffsetSyncStore, {len(self._tables)} partitions>"

    # -- topics

    async def take(self, partitionId: PartitionId) -> None:
        """
        Prepare to send messages of a partition: its topic is created in the target as it is in the
        source, with its settings, or gets as many partitions.

        @raise PylogbrokerError: that is not possible now.
        """
        topic, number = partitionId.topic, partitionId.partition.partition
        async with self._lock:
            if number < self._counts.get(topic, 0):
                return
            known = checkAll(await self._source.describeTopics([topic]))
            count = len(known[topic].partitions)
            found = (await self._target.describeTopics([topic]))[topic]
            if not isinstance(found, PylogbrokerError):
                if len(found.partitions) < count:
                    checkAll(await self._target.createPartitions({topic: count}))
            elif _isCode(found, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                await self._create(topic, count)
            else:
                raise found
            self._counts[topic] = count

    async def _create(self, topic: str, count: int) -> None:
        resource = ConfigResource(ResourceKind.TOPIC, topic)
        configs = checkAll(await self._source.describeConfigs([resource]))[resource]
        own = {
            name: each.value
            for name, each in configs.items()
            if each.configSource == _TOPIC_CONFIG and name not in _EXCLUDED_CONFIGS
        }
        await _ensureTopic(
            self._target, NewTopic(topic, count, self._settings.replicationFactor, own)
        )

    def fixedTarget(self, partitionId: PartitionId) -> BrokerPartition:
        """The target partition of a source partition: the one with the same number."""
        return partitionId.partition

    # -- syncs and checkpoints

    def stored(self, first: OffsetSync, last: OffsetSync) -> None:
        """The target has stored messages of a partition from one to another, and all before."""
        place = last.place
        if place not in self._begun:
            self._begun.add(place)
            if first != last:
                self._stored[place, True] = first
        self._stored[place, False] = last

    def drop(self, place: TopicPartition) -> None:
        """Forget what was stored of a partition that is not owned any more."""
        self._begun.discard(place)
        for isFirst in (True, False):
            self._stored.pop((place, isFirst), None)

    def takeStored(self) -> StoredSyncs:
        """The syncs that are not written yet; they are not given again."""
        found, self._stored = self._stored, {}
        return found

    def restore(self, syncs: StoredSyncs, owned: Collection[TopicPartition]) -> None:
        """
        Take syncs back that could not be written.

        @param owned: the partitions whose syncs are still to be written.
        """
        kept = {key: sync for key, sync in syncs.items() if sync.place in owned}
        self._stored = {**kept, **self._stored}

    async def write(self, syncs: Collection[OffsetSync]) -> None:
        """
        Write syncs, of messages that were stored while their partitions were owned.

        @raise PylogbrokerError: some may not be written.
        """
        await self._ensureTopics()
        await _send(self._syncsProducer, self._syncsTopic, syncs)

    async def _ensureTopics(self) -> None:
        if not self._hasTopics:
            settings = self._settings
            await _ensureTopic(
                self._source,
                NewTopic(
                    self._syncsTopic, 1, settings.offsetSyncsTopicReplicationFactor, _COMPACTED
                ),
            )
            await _ensureTopic(
                self._target,
                NewTopic(
                    self._checkpointsTopic,
                    1,
                    settings.checkpointsTopicReplicationFactor,
                    _COMPACTED,
                ),
            )
            self._hasTopics = True

    def _add(self, record: ConsumerRecord) -> None:
        if record.value is not None:
            sync = decodeOffsetSync(record)
            addSync(self._tables.setdefault(sync.place, OffsetSyncTable()), sync)

    async def checkpoint(self, owned: Collection[TopicPartition]) -> None:
        """
        Translate the positions of the source's groups.

        @param owned: the partitions whose positions this mirror translates.
        @raise PylogbrokerError: a cluster does not answer; the next call tries again.
        """
        await self._ensureTopics()
        await self._reader.readToEnd(self._add)
        emitted: dict[tuple[str, TopicPartition], Checkpoint] = {}
        changed = []
        states = await self._target.listGroups() if self._settings.syncGroupOffsetsEnabled else {}
        for group in await self._source.listGroups():
            if group == self._settings.groupId or not self._isTranslated(group):
                continue
            found = await self._translated(group, owned)
            for each in found:
                emitted[group, each.place] = each
                if self._emitted.get((group, each.place)) != each:
                    changed.append(each)
            # A group that the target does not know has no members there.
            hasMembers = group in states and states[group].groupState not in _WITHOUT_MEMBERS
            if self._settings.syncGroupOffsetsEnabled and found and not hasMembers:
                await self._syncGroup(group, found)
        await _send(self._checkpointsProducer, self._checkpointsTopic, changed)
        self._emitted = emitted

    def _isTranslated(self, group: str) -> bool:
        return self._isIncluded(group) and not self._isExcluded(group)

    async def _translated(self, group: str, owned: Collection[TopicPartition]) -> list[Checkpoint]:
        known = [place for place in owned if place in self._tables]
        if not known:
            return []
        found = []
        positions = await self._source.listConsumerGroupOffsets(group, known)
        for place, position in positions.items():
            downstream = translatePosition(self._tables[place], place, position.offset)
            if downstream is not None:
                found.append(
                    Checkpoint(group, place, position.offset, downstream, position.metadata or "")
                )
        return found

    async def _syncGroup(self, group: str, checkpoints: list[Checkpoint]) -> None:
        """Commit in the target what is ahead of the group's positions there."""
        known = await self._target.listConsumerGroupOffsets(
            group, [each.place for each in checkpoints]
        )
        ahead = {
            each.place: each.downstream
            for each in checkpoints
            if each.place not in known or known[each.place].offset < each.downstream
        }
        if ahead:
            checkAll(await self._target.alterConsumerGroupOffsets(group, ahead))

    async def close(self) -> None:
        """Close the connections."""
        await gatherSettled(
            [
                self._syncsProducer.close(CLOSE_MS),
                self._checkpointsProducer.close(CLOSE_MS),
                self._consumer.close(),
                self._source.close(),
                self._target.close(),
            ]
        )


def _clientValues(settings: KafkaClientSettings) -> dict[str, Any]:
    return {key.name: getattr(settings, key.name) for key in KafkaClientSettings.keys}


_ANY = {"bootstrap.servers": "localhost:9092"}


def adminClient(reactor: Any, settings: KafkaClientSettings) -> AdminClient:
    """An admin client of the cluster of other settings."""
    own = KafkaAdminSettings.fromProperties(_ANY)
    return AdminClient(
        reactor, own.replace(**_clientValues(settings), defaultApiTimeoutMs=CALL_TIMEOUT_MS)
    )


def _consumer(reactor: Any, settings: KafkaClientSettings) -> KafkaConsumer:
    own = KafkaConsumerSettings.fromProperties(_ANY).replace(
        **_clientValues(settings),
        autoOffsetReset=EARLIEST,
        consumerTimeoutMs=CALL_TIMEOUT_MS,
        defaultApiTimeoutMs=CALL_TIMEOUT_MS,
    )
    return KafkaConsumer(reactor, own)


def _producer(reactor: Any, settings: KafkaClientSettings) -> KafkaProducer:
    own = KafkaProducerSettings.fromProperties({**_ANY, "delivery.timeout.ms": "40000"}).replace(
        **_clientValues(settings), acks=ACKS_ALL, maxBlockMs=CALL_TIMEOUT_MS
    )
    return KafkaProducer(reactor, own, isLoggingFailures=False)


async def _send(
    producer: KafkaProducer, topic: str, records: Iterable[OffsetSync | Checkpoint]
) -> None:
    waiting = []
    for record in records:
        key, value = record.encode()
        waiting.append(producer.send(topic, value, key, partition=0))
        if len(waiting) >= WRITE_COUNT_MAX:
            await gatherAll(waiting)
            waiting = []
    await gatherAll(waiting)


def _isCode(error: PylogbrokerError, code: int) -> bool:
    return isinstance(error, ResponseError) and error.code == code


async def _ensureTopic(admin: AdminClient, topic: NewTopic) -> None:
    """@raise PylogbrokerError: it is not there, and cannot be created now."""
    made = (await admin.createTopics([topic]))[topic.name]
    if isinstance(made, PylogbrokerError) and not _isCode(made, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise made
