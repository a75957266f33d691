"""
Async mode: messages for one broker collect until there are enough of them, or until it is time (spec-0.7 producer §5).

0.7 has a thread for each broker, which polls a queue until C{queue.time} after the batch before; whether messages came or not, the time begins anew then. So
its batches leave in step with a clock that was set by the last dispatch, and no message waits longer than C{queue.time}. A L{BatchAccumulator} keeps
the same time without a thread, and without a timer while it is empty.

With hooks it has to look at the clock even then: they are asked at every poll, also when it has found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.interfaces import IReactorTime

from pylogbroker.net.timer import Timer
from pylogbroker.producer.batches import PartitionBatch, QueueItem

Poll = Callable[[Any], list[Any]]


class BatchAccumulator:
    """
    Where messages for one broker collect.

    @ivar count: of the messages.
    @ivar size: bytes that they have.
    @ivar countMax: messages that go together.
    @ivar sizeMax: bytes at which they go, however few.
    @ivar isTiming: whether a timer runs.
    """

    def __init__(
        self,
        clock: IReactorTime,
        countMax: int,
        sizeMax: int,
        queueTimeMs: int,
        dispatch: Callable[[list[PartitionBatch]], None],
    ) -> None:
        """
        @param countMax: messages that go together.
        @param sizeMax: bytes at which they go, however few.
        @param queueTimeMs: between two dispatches, if not enough messages come.
        @param dispatch: called with the messages.
        """
        self._clock = clock
        self.countMax = countMax
        self.sizeMax = sizeMax
        self._queueTime = queueTimeMs / 1000
        self._dispatch = dispatch
        self._batches: dict[Any, PartitionBatch] = {}
        self.count = self.size = 0
        self._timer = Timer(clock)
        self.isTiming = False
        self._isPolled = False
        self._since = clock.seconds()

    def open(self, topic: str, partition: int) -> PartitionBatch:
        """What is collected for a partition, to be added to as long as it is open."""
        batch = self._batches.get((topic, partition))
        if batch is None:
            batch = self._batches[topic, partition] = PartitionBatch(topic, partition, lane=self)
        return batch

    def addBatch(self, batch: PartitionBatch) -> None:
        """All messages of a batch that has its partition."""
        messages = zip(batch.values, batch.keys, batch.sizes, batch.waiters, strict=True)
        count, size = self.count + len(batch.sizes), self.size + sum(batch.sizes)
        if count > self.countMax or size > self.sizeMax:
            for message in messages:
                self.open(batch.topic, batch.partition).add(*message)
            return
        collected = self.open(batch.topic, batch.partition)
        collected.values += batch.values
        collected.keys += batch.keys
        collected.sizes += batch.sizes
        collected.waiters += batch.waiters
        self.count, self.size = count, size
        self.look()

    def look(self) -> None:
        """Something was added: does it go at once, or in time?"""
        if self.count >= self.countMax or self.size >= self.sizeMax:
            self.flush()
        elif self.count and not self.isTiming:
            self._startTiming()

    def _startTiming(self) -> None:
        now = self._clock.seconds()
        late = now - self._since
        if late >= self._queueTime:
            self._since = now - late % self._queueTime
        self.isTiming = True
        self._timer.start((self._since + self._queueTime - now) * 1000, self._ring)

    def _ring(self) -> None:
        self.isTiming = False
        self.flush()

    def flush(self) -> None:
        """Dispatch what there is."""
        batches = self.take()
        self._since = self._clock.seconds()
        if self._isPolled:
            self._startTiming()
        if batches:
            self._dispatch(batches)

    def take(self) -> list[PartitionBatch]:
        """What there is; it is not collected here any more."""
        batches, self._batches = [batch.close() for batch in self._batches.values()], {}
        self.count = self.size = 0
        if self.isTiming:
            self.isTiming = False
            self._timer.stop()
        return batches

    def stop(self) -> list[PartitionBatch]:
        """No time is kept any more. Returns what was left."""
        return self.take()


class HookedAccumulator(BatchAccumulator):
    """
    The same for an application that has put something of its own into the way (L{pylogbroker.producer.hooks}): each message stays the L{QueueItem} that it
    was, and all of them stay in the order in which they came.
    """

    def __init__(
        self,
        clock: IReactorTime,
        countMax: int,
        sizeMax: int,
        queueTimeMs: int,
        dispatch: Callable[[list[PartitionBatch]], None],
        poll: Poll | None = None,
    ) -> None:
        """
        @param poll: called with each message, or with L{None} when it is time; what it returns is collected. None: the messages themselves.
        """
        super().__init__(clock, countMax, sizeMax, queueTimeMs, dispatch)
        self._poll = poll
        self._isPolled = poll is not None
        if self._isPolled:
            self._startTiming()

    def add(self, item: QueueItem) -> None:
        """One more message."""
        self.addAll([item] if self._poll is None else self._poll(item))

    def addBatch(self, batch: PartitionBatch) -> None:
        """All messages of a batch, polled one by one."""
        for item in batch.items():
            self.add(item)

    def addAll(self, items: Sequence[QueueItem]) -> None:
        """Messages that no poll sees."""
        self._collect(items)
        self.look()

    def _collect(self, items: Sequence[QueueItem]) -> None:
        for item in items:
            self._batches[self.count] = PartitionBatch(item.topic, item.partition, [item])
            self.count += 1
            self.size += item.size

    def _ring(self) -> None:
        if self._poll is not None:
            self._collect(self._poll(None))
        super()._ring()

    def stop(self) -> list[PartitionBatch]:
        """No time is kept any more, and nothing polled. Returns what was left."""
        self._poll = None
        self._isPolled = False
        return super().stop()
