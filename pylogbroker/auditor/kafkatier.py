"""
A cluster of today's Kafka as a tier: its reader counts the records of topics from a time to the
current ends, and continues there in the next pass. A module of its own, since a reader of one
protocol need not read the other.

What must be true:

  - A record counts once: the position moves behind it in the same turn of the reactor.
  - Records of aborted transactions are not counted, and those of open ones not yet
  (C{read_committed}). So a pass ends where the first open transaction begins. If it stays there for
  longer than the grace, a note says why later records look missing.
  - The metadata name all partitions, also those without a leader. A partition that cannot be read
  fails the pass: what has not been looked for is not missing.

The auditor is no member of a group and commits nothing. Its positions are in memory; a new auditor
reads the horizon again.

The timestamp of a record counts as the sender's only if its producer has set it (C{CreateTime}): a
broker's time (C{LogAppendTime}) may be in another window.

Compaction removes records, also before they were counted. Then offsets are missing before or
between others, as those of older records and of markers are. So where offsets are missing, the
topic's C{cleanup.policy} is asked for, and a compacted topic is named in the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from twisted.internet.task import deferLater

from pylogbroker.auditor.messagecounter import MessageCounter, TimedPayloads
from pylogbroker.auditor.tiers import skippedNotes
from pylogbroker.client.kafka.admin.client import AdminClient, checkAll
from pylogbroker.client.kafka.admin.topics import EARLIEST, LATEST, ConfigResource, ResourceKind
from pylogbroker.config.auditsettings import AuditorSettings, TierAddress
from pylogbroker.config.kafka.clientsettings import (
    NO_RESET,
    KafkaAdminSettings,
    KafkaClientSettings,
    KafkaConsumerSettings,
)
from pylogbroker.consumer.kafka.assignedpartition import CREATE_TIME, ConsumerRecord
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import (
    ConsumerTimeoutError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    TimedOutError,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.types import TopicPartition

RANGE_TRY_COUNT = 3
"""How often a pass looks for the beginnings of logs, if records are deleted while it reads."""

CLEANUP_POLICY = "cleanup.policy"
_COMPACT = "compact"


_TakeOf = Callable[[str, TimedPayloads], None]
"""A L{Take<pylogbroker.auditor.messagecounter.Take>}, with the topic."""


class KafkaTier:
    """
    The reader of one cluster.

    @ivar name: see L{IAuditTier<pylogbroker.auditor.tiers.IAuditTier>}.
    @ivar skippedCount: times that a partition did not begin or end at the reader's position,
        because records were deleted before they were read.
    """

    def __init__(self, reactor: Any, address: TierAddress, settings: AuditorSettings) -> None:
        self.name = address.name
        self.skippedCount = 0
        self._clock = reactor
        self._settings = settings
        client = settings.clientSettings(address)
        shared: dict[str, Any] = {
            key.name: getattr(client, key.name) for key in KafkaClientSettings.keys
        }
        servers = {"bootstrap.servers": "localhost:9092"}  # replaced, with all that clients share
        self._admin = AdminClient(
            reactor,
            KafkaAdminSettings.fromProperties(servers).replace(
                **shared, defaultApiTimeoutMs=settings.timeoutMs
            ),
        )
        self._consumer = KafkaConsumer(
            reactor,
            KafkaConsumerSettings.fromProperties(servers).replace(
                **shared,
                autoOffsetReset=NO_RESET,
                isolationLevel=True,
                maxPartitionFetchBytes=settings.fetchSize,
                allowAutoCreateTopics=False,
                consumerTimeoutMs=settings.timeoutMs,
            ),
        )
        self._positions: dict[TopicPartition, int] = {}
        self._topicIds: dict[str, bytes] = {}
        self._held: dict[TopicPartition, tuple[int, float]] = {}  # where and since when, in ms
        self._gapTopics: set[str] = set()  # of this pass
        self._compacted: set[str] = set()

    # -- a pass

    async def readCounts(self, counter: MessageCounter, sinceMs: int) -> None:
        """See L{IAuditTier<pylogbroker.auditor.tiers.IAuditTier>}."""
        await self._read(
            [self._settings.auditTopic], sinceMs, lambda _topic, each: counter.takeReports(each)
        )

    async def readData(
        self, counter: MessageCounter, topics: Collection[str], sinceMs: int
    ) -> None:
        """See L{IAuditTier<pylogbroker.auditor.tiers.IAuditTier>}."""
        self._gapTopics.clear()
        await self._read(
            topics, sinceMs, lambda topic, each: counter.takeMessages(self.name, topic, each)
        )
        if self._gapTopics - self._compacted:
            await self._askPolicies(self._gapTopics - self._compacted)

    async def _read(
        self,
        topics: Collection[str],
        sinceMs: int,
        take: _TakeOf,
    ) -> None:
        for tryCount in range(1, RANGE_TRY_COUNT + 1):
            ends = await self._locate(topics, sinceMs)
            try:
                await self._readTo(ends, take)
                return
            except OffsetOutOfRangeError:
                if tryCount == RANGE_TRY_COUNT:
                    raise

    # -- where to read

    async def _locate(self, topics: Collection[str], sinceMs: int) -> dict[TopicPartition, int]:
        """
        Set the positions of all partitions. A new one begins with its first record that is not
        older than C{sinceMs}.

        @return: where to read to, for each partition that has more.
        @raise PylogbrokerError: a partition's offsets cannot be found out.
        """
        places = await self._partitions(topics)
        if not places:
            return {}
        admin = self._admin
        highs = checkAll(await admin.listOffsets(dict.fromkeys(places, LATEST)))
        ends = checkAll(await admin.listOffsets(dict.fromkeys(places, LATEST), isCommitted=True))
        begins = checkAll(await admin.listOffsets(dict.fromkeys(places, EARLIEST)))
        new = [place for place in places if place not in self._positions]
        firsts = checkAll(await admin.listOffsets(dict.fromkeys(new, sinceMs)))
        found = {}
        for place in places:
            begin, end = begins[place].offset, ends[place].offset
            position = self._positions.get(place)
            self._hold(place, end, highs[place].offset)
            if position is None:
                first = firsts[place].offset  # -1: all records are older
                position = min(first, end) if first >= 0 else end
                if position > begin:
                    self._gapTopics.add(place.topic)
            elif not begin <= position <= end:  # deleted, or truncated
                self.skippedCount += 1
                position = end if position > end else begin
            self._positions[place] = position = max(position, begin)
            if position < end:
                found[place] = end
        return found

    def _hold(self, place: TopicPartition, end: int, high: int) -> None:
        """
        Note whether a transaction is open, since when a pass has found it there.

        @param end: where it begins, if it is before C{high}.
        @param high: the high watermark, asked for before.
        """
        offset, sinceMs = self._held.pop(place, (end, self._nowMs()))
        if end < high:
            self._held[place] = end, sinceMs if offset == end else self._nowMs()

    def _nowMs(self) -> float:
        return float(self._clock.seconds() * 1000)

    async def _partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """The partitions of those topics that the cluster has."""
        places = []
        for name, found in (await self._admin.describeTopics(topics)).items():
            if isinstance(found, ResponseError) and (
                found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ):
                continue
            if isinstance(found, PylogbrokerError):
                raise found
            self._checkId(name, found.topicId)
            places += [TopicPartition(name, each.partitionIndex) for each in found.partitions]
        return places

    def _checkId(self, topic: str, topicId: bytes) -> None:
        """Read a topic that was made again from its beginning."""
        before = self._topicIds.get(topic, ZERO_UUID)
        self._topicIds[topic] = topicId
        if ZERO_UUID not in (before, topicId) and before != topicId:
            self.skippedCount += 1
            for place in [each for each in self._positions if each.topic == topic]:
                del self._positions[place]

    # -- reading

    async def _readTo(
        self,
        ends: dict[TopicPartition, int],
        take: _TakeOf,
    ) -> None:
        """
        Take the records before the ends, and those that have come with them.

        @raise PylogbrokerError: a partition cannot be read; the positions are behind what was
            taken.
        """
        consumer, left = self._consumer, dict(ends)
        consumer.assign({place: self._positions[place] for place in left})
        try:
            while left:
                records = consumer.takeMany()
                self._take(records, take)
                self._positions.update(consumer.positions)
                done = [place for place, end in left.items() if self._positions[place] >= end]
                for place in done:
                    del left[place]
                consumer.pause(done)
                if records:
                    await deferLater(self._clock, 0)  # other work has its turn
                elif left and not done:
                    await self._wait(left)
        finally:
            if not consumer.isEnded:
                consumer.assign(())

    async def _wait(self, left: dict[TopicPartition, int]) -> None:
        try:
            await self._consumer.wait()
        except ConsumerTimeoutError as error:
            place, end = next(iter(left.items()))
            raise TimedOutError(
                f"{place} was read to offset {self._positions[place]} of {end}, and no more came"
                f" within {self._settings.timeoutMs} ms"
            ) from error

    def _take(
        self,
        records: Sequence[ConsumerRecord],
        take: _TakeOf,
    ) -> None:
        for (topic, number), group in groupby(records, itemgetter(0, 1)):
            run, place = list(group), TopicPartition(topic, number)
            if run[-1].offset + 1 - self._positions[place] != len(run):
                self._gapTopics.add(topic)
            self._positions[place] = run[-1].offset + 1
            take(
                topic,
                (
                    (
                        record.value or b"",
                        record.timestamp
                        if record.timestampType == CREATE_TIME and record.timestamp >= 0
                        else None,
                    )
                    for record in run
                ),
            )

    # -- what else there is to say

    async def _askPolicies(self, topics: Collection[str]) -> None:
        """Find out which topics are compacted; one whose settings may not be seen stays unknown."""
        resources = [ConfigResource(ResourceKind.TOPIC, topic) for topic in sorted(topics)]
        found = await self._admin.describeConfigs(resources, [CLEANUP_POLICY])
        for resource, configs in found.items():
            if not isinstance(configs, PylogbrokerError) and (
                _COMPACT in configs[CLEANUP_POLICY].value
            ):
                self._compacted.add(resource.name)

    def lack(self, sinceMs: int) -> str:
        """Nothing: a part that is away fails the pass."""
        return ""

    def notes(self) -> list[str]:
        """See L{IAuditTier<pylogbroker.auditor.tiers.IAuditTier>}."""
        heldMs = self._nowMs() - self._settings.graceMs
        held = {place.topic for place, (_at, sinceMs) in self._held.items() if sinceMs <= heldMs}
        notes = skippedNotes(self.name, self.skippedCount)
        notes += [
            f"{self.name}: a transaction that stays open holds back records of {topic}, which look"
            " missing"
            for topic in sorted(held)
        ]
        return notes + [
            f"{self.name}: {topic} is compacted: records that were removed before they were counted"
            " look missing"
            for topic in sorted(self._compacted)
        ]

    async def close(self) -> None:
        """Close all connections."""
        await self._consumer.close()
        await self._admin.close()
