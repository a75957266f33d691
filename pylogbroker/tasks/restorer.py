"""
Stores from their changelogs, at the start of a task. A module of its own, since a container is long
enough without it.

What must be true:

  - A store is as its changelog says, up to the end that the partition had when the store was
  opened. That end is the high watermark: what an open transaction holds back is waited for, and
  nothing of an aborted one is taken.
  - A store whose mark is of another topic of the name, or lies outside the log, is emptied first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import EARLIEST, LATEST
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.net.workers import IWorker
from pylogbroker.tasks.state.engines import ChangelogMark, IStoreEngine
from pylogbroker.tasks.state.keyvaluestore import Entry
from pylogbroker.types import TopicPartition

BATCH_COUNT = 2_000
"""Changes that are written to an engine at a time."""

log = Logger()


class RestoreProgress:
    """
    How far a store is restored.

    @ivar place: of the changelog.
    @ivar start: where it began.
    @ivar offset: of the next change.
    @ivar end: where it is done.
    """

    def __init__(self, place: TopicPartition, start: int, end: int) -> None:
        self.place = place
        self.start = self.offset = start
        self.end = end

    def __str__(self) -> str:
        return f"{self.place}: {self.offset - self.start:,} of {self.end - self.start:,}"


def changesOf(
    records: Sequence[ConsumerRecord], topicId: bytes
) -> tuple[list[Entry], ChangelogMark]:
    """
    What messages of a changelog's partition change in a store.

    @param records: one or more, in the order of the log.
    @param topicId: of the changelog, 16 bytes.
    @return: the entries, and the mark behind them.
    """
    entries = [(each.key, each.value) for each in records if each.key is not None]
    return entries, ChangelogMark(topicId, records[-1].offset + 1)


class ChangelogRestorer:
    """
    Restores stores.

    @ivar restoring: the stores that are being restored.
    @ivar restoredCount: changes, all in all.
    """

    def __init__(
        self,
        reactor: Any,
        settings: KafkaConsumerSettings,
        admin: AdminClient,
        worker: IWorker,
        topicIds: Mapping[str, bytes],
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param settings: of consumers that are no members of a group.
        @param worker: what the engines run on.
        @param topicIds: of the changelogs.
        """
        self.restoring: set[RestoreProgress] = set()
        self.restoredCount = 0
        self._reactor = reactor
        self._settings = settings
        self._admin = admin
        self._worker = worker
        self._topicIds = topicIds
        self._random = random

    async def begin(self, place: TopicPartition, engine: IStoreEngine) -> tuple[int, int]:
        """
        Look where a store is in its changelog, and empty it if it is in another one.

        @return: the offset of the first change that it lacks, and the changelog's end.
        @raise StorageError: the engine cannot be written.
        @raise PylogbrokerError: no broker tells where the changelog begins and ends.
        """
        ends = checkAll(await self._admin.listOffsets({place: LATEST}))
        starts = checkAll(await self._admin.listOffsets({place: EARLIEST}))
        end, first = ends[place].offset, starts[place].offset
        topicId, mark = self._topicIds[place.topic], engine.mark
        start = first
        if mark is not None and (mark.topicId != topicId or mark.offset > end):
            log.warn(
                "Store of {place}: it is of another changelog, and is built anew", place=str(place)
            )
            await self._worker.submit(engine.clear)
        elif mark is not None and mark.offset < first:
            # Compaction never moves the log's start; deleted records are gone from the store, too.
            log.warn(
                "Store of {place}: its changelog begins at {first}, behind {start}; it is built"
                " anew",
                place=str(place),
                first=first,
                start=mark.offset,
            )
            await self._worker.submit(engine.clear)
        elif mark is not None:
            start = mark.offset
        return start, end

    async def restore(self, place: TopicPartition, engine: IStoreEngine) -> None:
        """
        Bring a store to the end of its changelog.

        @raise StorageError: the engine cannot be written.
        @raise PylogbrokerError: the changelog cannot be read.
        """
        start, end = await self.begin(place, engine)
        topicId = self._topicIds[place.topic]
        if start >= end:
            return
        progress = RestoreProgress(place, start, end)
        self.restoring.add(progress)
        try:
            await self._read(progress, topicId, engine)
        finally:
            self.restoring.discard(progress)
        log.info(
            "Store of {place}: {count} changes were read",
            place=str(place),
            count=f"{end - start:,}",
        )

    async def _read(self, progress: RestoreProgress, topicId: bytes, engine: IStoreEngine) -> None:
        place = progress.place
        async with KafkaConsumer(self._reactor, self._settings, random=self._random) as consumer:
            consumer.assign({place: progress.start})
            while progress.offset < progress.end:
                records = consumer.takeMany(BATCH_COUNT)
                if records:
                    entries, mark = changesOf(records, topicId)
                    await self._worker.submit(partial(engine.write, entries, mark))
                    self.restoredCount += len(entries)
                position = consumer.positions.get(place, progress.offset)
                progress.offset = max(progress.offset, position)
                if not records and progress.offset < progress.end:
                    await consumer.wait()
        mark = ChangelogMark(topicId, progress.offset)
        if engine.mark != mark:
            await self._worker.submit(partial(engine.write, (), mark))
