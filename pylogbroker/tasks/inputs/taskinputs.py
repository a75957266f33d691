"""
What one task reads: its partitions of the group's consumer, and broadcast inputs by a consumer of
its own. A module of its own, since a container has many tasks, and each its own order.

What must be true:

  - A task that is slow, or waits for one of its inputs, holds bounded queues, and what they cannot
  take is not read: its partitions are paused, and no other task's.
  - Broadcast inputs have no positions. Each task reads all of their partitions from the beginning,
  at its own pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.tasks.inputs.ends import InputEnds
from pylogbroker.tasks.inputs.queues import InputQueues, Rank, ReadProgress
from pylogbroker.types import TopicPartition


class TaskInputs:
    """
    The inputs of a task.

    @ivar broadcasts: the consumer of its broadcast inputs; L{None}: it has none.
    @ivar starts: the offset of the first message of each partition that has come.
    """

    def __init__(
        self,
        ranks: Mapping[str, Rank],
        queues: InputQueues,
        reader: KafkaConsumer,
        broadcasts: KafkaConsumer | None,
        ends: InputEnds | None,
    ) -> None:
        """
        @param ranks: of the topics; see L{Job.ranks<pylogbroker.tasks.job.Job.ranks>}.
        @param queues: of this alone.
        @param reader: of the group.
        @param ends: where the inputs end for this container.
        """
        self.broadcasts = broadcasts
        self.starts: dict[TopicPartition, int] = {}
        self._ranks = ranks
        self._queues = queues
        self._reader = reader
        self._ends = ends
        self._paused: dict[KafkaConsumer, set[TopicPartition]] = {}
        self._broadcastPlaces: set[TopicPartition] = set()

    def add(
        self, places: Iterable[TopicPartition], bootstrapEnds: dict[TopicPartition, int]
    ) -> None:
        """
        Begin with partitions of the group.

        @param bootstrapEnds: up to where the bootstrapped ones are read before all else.
        """
        for place in places:
            rank = (*self._ranks[place.topic], place.partition)
            self._queues.add(place, rank, bootstrapEnds.get(place))

    def addBroadcasts(
        self, places: Iterable[TopicPartition], bootstrapEnds: dict[TopicPartition, int]
    ) -> None:
        """Begin with the partitions of broadcast inputs, all of them at once; see L{add}."""
        assert self.broadcasts is not None
        self._broadcastPlaces = set(places)
        self.add(self._broadcastPlaces, bootstrapEnds)
        self.broadcasts.assign(self._broadcastPlaces)

    def discard(self, place: TopicPartition) -> None:
        """A partition of the group has gone."""
        self._queues.discard(place)
        self.starts.pop(place, None)
        for paused in self._paused.values():
            paused.discard(place)

    def put(self, place: TopicPartition, records: Iterable[ConsumerRecord]) -> None:
        """Take in what a consumer has given of a partition: one message or more."""
        records = list(records)
        self.starts.setdefault(place, records[0].offset)
        self._queues.put(place, records)

    @property
    def dueAtMs(self) -> float | None:
        """When L{take} may give more, though nothing new has come."""
        return self._queues.dueAtMs

    @property
    def isEmpty(self) -> bool:
        """Whether nothing waits for its turn."""
        return self._queues.isEmpty

    def positions(
        self, places: Iterable[TopicPartition], read: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """
        Where the next message is that the task gets from partitions.

        @param read: the positions of the consumer.
        @return: L{None}: not known yet.
        """
        waiting = {place: self._queues.firstOffset(place) for place in places}
        return {
            place: read.get(place) if offset is None else offset
            for place, offset in waiting.items()
        }

    def broadcastPositions(self) -> dict[TopicPartition, int | None]:
        """Where the next message of each partition of a broadcast input is; see L{positions}."""
        if self.broadcasts is None:
            return {}
        return self.positions(self._broadcastPlaces, self.broadcasts.positions)

    @property
    def isAtEnd(self) -> bool:
        """Whether nothing waits, and broadcast inputs were read to their ends."""
        if not self.isEmpty:
            return False
        ends, broadcasts = self._ends, self.broadcasts
        return ends is None or broadcasts is None or ends.areReached(broadcasts)

    def take(self, countMax: int, nowMs: float) -> list[ConsumerRecord]:
        """The next messages, in their order."""
        return self._queues.take(countMax, nowMs, self._progress)

    def _consumerOf(self, place: TopicPartition) -> KafkaConsumer:
        if self.broadcasts is not None and place in self._broadcastPlaces:
            return self.broadcasts
        return self._reader

    def _progress(self, place: TopicPartition) -> ReadProgress:
        consumer = self._consumerOf(place)
        position = consumer.position(place)
        if self._ends is not None and self._ends.isReached(place, position):
            return ReadProgress(position, 0)  # it is paused there
        return ReadProgress(position, consumer.currentLag(place))

    def limit(self) -> None:
        """Pause the partitions whose queues are full, and go on with those that have room again."""
        full: dict[KafkaConsumer, set[TopicPartition]] = {}
        for place in self._queues.full():
            full.setdefault(self._consumerOf(place), set()).add(place)
        for consumer in {*full, *self._paused}:
            now, before = full.get(consumer, set()), self._paused.get(consumer, set())
            if now - before:
                consumer.pause(now - before)
            if before - now:
                consumer.resume(before - now)
        self._paused = full

    async def close(self) -> None:
        """Let the consumer of broadcast inputs go."""
        if self.broadcasts is not None:
            await self.broadcasts.close()
