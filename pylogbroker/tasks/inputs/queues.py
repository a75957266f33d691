"""
What a task has of its partitions, and which message is next. A module of its own, since it is pure:
messages go in, and come out in another order.

What must be true:

  - The next message is the one with the smallest timestamp of those that are first in their queues;
  of equal ones, that of the lowest rank. A message without a timestamp comes before all others.
  - A partition keeps the order of its log, whatever its timestamps are.
  - With data at the brokers the order does not depend on which partition is fetched first: while a
  queue is empty, and its partition is not known to be at its end, no other gives anything.
  - Until each bootstrapped partition is where it ended when the task began, only such give
  messages, and none from behind that end.
  - Queues are bounded by messages, each by itself, and by bytes, all together. An empty one is
  never full, since others may have to wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.types import TopicPartition

MESSAGE_OVERHEAD = 100
"""Bytes that a message costs beside key, value and headers, about."""

NEVER_WAIT = -1
"""For C{idleMs}: what is there is handed out in order, and what may come is not waited for."""

Rank = tuple[int, ...]


class ReadProgress(NamedTuple):
    """
    How far a partition was read.

    @ivar position: of the next message that comes from the consumer; L{None}: not known yet.
    @ivar lag: from there to the end of the log; L{None}: not known yet.
    """

    position: int | None
    lag: int | None


class _Queue:
    """
    @ivar bootstrapEnd: until where nothing else is handed out; L{None}: it is no such partition, or
        it was there.
    @ivar size: bytes of its messages, with L{MESSAGE_OVERHEAD}; L{None}: they are not counted.
    @ivar idleSinceMs: since when it is empty, and its partition at its end; L{None}: it is not.
    """

    __slots__ = ("bootstrapEnd", "idleSinceMs", "place", "rank", "records", "size")

    def __init__(self, place: TopicPartition, rank: Rank, bootstrapEnd: int | None) -> None:
        self.place = place
        self.rank = rank
        self.bootstrapEnd = bootstrapEnd
        self.records: deque[ConsumerRecord] = deque()
        self.size: int | None = 0
        self.idleSinceMs: float | None = None

    def put(self, records: Collection[ConsumerRecord], isCounted: bool) -> None:
        """@param isCounted: L{False}: they are likely to be taken at once."""
        self.records.extend(records)
        if self.size is not None:
            self.size = self.size + sum(map(_sizeOf, records)) if isCounted else None
        self.idleSinceMs = None

    def count(self) -> int:
        """@return: C{size}, counted if it was not."""
        if self.size is None:
            self.size = sum(map(_sizeOf, self.records))
        return self.size

    def pop(self) -> ConsumerRecord:
        record = self.records.popleft()
        if self.size is not None:
            self.size -= _sizeOf(record)
        return record

    def takeAll(self) -> list[ConsumerRecord]:
        taken = list(self.records)
        self.records.clear()
        self.size = 0
        return taken

    @property
    def order(self) -> tuple[int, Rank]:
        """The order of its first message among those of other queues."""
        return (max(self.records[0].timestamp, -1), self.rank)

    def isBehind(self, progress: Callable[[TopicPartition], ReadProgress]) -> bool:
        """Whether messages are missing until its C{bootstrapEnd}."""
        if self.bootstrapEnd is None:
            return False
        if self.records:
            isBehind = self.records[0].offset < self.bootstrapEnd
        else:
            position = progress(self.place).position
            isBehind = position is None or position < self.bootstrapEnd
        if not isBehind:
            self.bootstrapEnd = None
        return isBehind


class InputQueues:
    """
    The queues of a task.

    @ivar dueAtMs: when L{take} may give more, though nothing new has come; L{None}: never.
    """

    def __init__(self, idleMs: float, bufferedMax: int, sizeMax: int) -> None:
        """
        @param idleMs: how long an empty queue whose partition is at its end is waited for;
            L{NEVER_WAIT}: empty queues are never waited for.
        @param bufferedMax: messages; a queue that has as many is full.
        @param sizeMax: bytes, with L{MESSAGE_OVERHEAD} for each message; when the queues have as
            many together, those with messages are full.
        """
        self.dueAtMs: float | None = None
        self._idleMs = idleMs
        self._bufferedMax = bufferedMax
        self._sizeMax = sizeMax
        self._queues: dict[TopicPartition, _Queue] = {}

    def add(self, place: TopicPartition, rank: Rank, bootstrapEnd: int | None = None) -> None:
        """
        Begin with a partition.

        @param rank: lower ones come first, at the same timestamp; different for each partition.
        @param bootstrapEnd: the offset up to which it is read before others are.
        """
        self._queues[place] = _Queue(place, rank, bootstrapEnd)

    def discard(self, place: TopicPartition) -> None:
        """A partition has gone, with what it has here."""
        self._queues.pop(place, None)

    def put(self, place: TopicPartition, records: Collection[ConsumerRecord]) -> None:
        """Take messages of a partition in. They are left out when it is not here."""
        queue = self._queues.get(place)
        if queue is not None:
            queue.put(records, len(self._queues) > 1)

    def firstOffset(self, place: TopicPartition) -> int | None:
        """Of the message of a partition that comes next; L{None}: there is none here."""
        queue = self._queues.get(place)
        return queue.records[0].offset if queue is not None and queue.records else None

    @property
    def isEmpty(self) -> bool:
        """Whether there is nothing."""
        return not any(each.records for each in self._queues.values())

    def full(self) -> set[TopicPartition]:
        """The partitions of which no more messages should come for now."""
        queues = self._queues.values()
        isFull = sum([each.count() for each in queues]) >= self._sizeMax
        countMin = 1 if isFull else self._bufferedMax
        return {each.place for each in queues if len(each.records) >= countMin}

    def take(
        self,
        countMax: int,
        nowMs: float,
        progress: Callable[[TopicPartition], ReadProgress],
    ) -> list[ConsumerRecord]:
        """
        The next messages.

        @param countMax: of the messages that are returned.
        @param progress: how far the consumer has read a partition.
        """
        self.dueAtMs = None
        behind = {place for place, each in self._queues.items() if each.isBehind(progress)}
        if len(self._queues) == 1 and not behind:
            [only] = self._queues.values()
            if len(only.records) <= countMax:
                return only.takeAll()
        queues = [self._queues[place] for place in behind] if behind else self._queues.values()
        for queue in queues:
            if not queue.records and self._mustWait(queue, nowMs, progress):
                return []
        heap = [(queue.order, queue) for queue in queues if queue.records]
        heapify(heap)
        taken: list[ConsumerRecord] = []
        while heap and len(taken) < countMax:
            queue = heap[0][1]
            taken.append(queue.pop())
            if behind and not queue.isBehind(progress):
                heappop(heap)
            elif queue.records:
                heapreplace(heap, (queue.order, queue))
            else:
                heappop(heap)
                if self._mustWait(queue, nowMs, progress):
                    break
        return taken

    def _mustWait(
        self,
        queue: _Queue,
        nowMs: float,
        progress: Callable[[TopicPartition], ReadProgress],
    ) -> bool:
        """Whether others may not go on while this one is empty."""
        if self._idleMs == NEVER_WAIT:
            return False
        lag = progress(queue.place).lag
        if lag is None or lag > 0:
            queue.idleSinceMs = None
            return True
        if queue.idleSinceMs is None:
            queue.idleSinceMs = nowMs
        dueAtMs = queue.idleSinceMs + self._idleMs
        if nowMs >= dueAtMs:
            return False
        self.dueAtMs = dueAtMs
        return True


def _sizeOf(record: ConsumerRecord) -> int:
    size = MESSAGE_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size += len(name) + len(content or b"")
    return size


def byPartition(
    records: Iterable[ConsumerRecord],
) -> Iterator[tuple[TopicPartition, Iterator[ConsumerRecord]]]:
    """Messages of one partition that stand together."""
    for place, run in groupby(records, attrgetter("topic", "partition")):
        yield TopicPartition(*place), run
