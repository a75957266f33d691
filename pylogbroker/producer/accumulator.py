"""
Batches that collect messages for one broker (spec-0.7 producer §5).

No message waits longer than C{queue.time}. 0.7 has a thread for each broker, which sends every
C{queue.time} after the last batch. A L{BatchAccumulator} keeps these times without a thread, and
without a timer while it is empty.

A batch keeps its messages in columns, one list per property: a message needs no object of its own
for the garbage collector to examine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogbroker.types import RANDOM_PARTITION

_BYTES = {bytes}


def sizeOf(value: Any) -> int:
    """The size of a value before it is encoded: its length in bytes, or 0."""
    try:
        return len(value)
    except TypeError:
        return 0


class PartitionBatch:
    """
    Messages for one partition, in order. With a handler of the application, the values are
    L{pylogbroker.producer.plugins.QueueItem}s.

    @ivar partition: the broker's partition; -1 lets the broker pick one.
    @ivar sizes: bytes of each in L{pylogbroker.producer.inflight.InFlightMessageLimiter}.
    @ivar waiters: objects with C{callback} and C{errback} that take the outcome, or L{None}.
    @ivar accumulator: where the batch collects until it is closed, or L{None}.
    @ivar mayBeDuplicate: whether an earlier attempt to send them had an unknown outcome.
    """

    __slots__ = (
        "accumulator",
        "isOpen",
        "keys",
        "mayBeDuplicate",
        "partition",
        "sizes",
        "topic",
        "values",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        partition: int = RANDOM_PARTITION,
        accumulator: BatchAccumulator | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.accumulator = accumulator
        self.isOpen = accumulator is not None
        self.mayBeDuplicate = False
        self.values: list[Any] = []
        self.keys: list[Any] = []
        self.sizes: list[int] = []
        self.waiters: list[Any] = []

    @classmethod
    def of(cls, topic: str, values: Iterable[Any], key: Any, waiter: Any = None) -> PartitionBatch:
        batch = cls(topic)
        batch.values = list(values)
        batch.keys = [key] * len(batch.values)
        batch.waiters = [waiter] * len(batch.values)
        isBytes = set(map(type, batch.values)) == _BYTES
        batch.sizes = list(map(len if isBytes else sizeOf, batch.values))
        return batch

    def __len__(self) -> int:
        return len(self.values)

    def append(self, value: Any, key: Any, size: int, waiter: Any) -> None:
        """Add a message to an open batch; its accumulator may dispatch it at once."""
        self.values.append(value)
        self.keys.append(key)
        self.sizes.append(size)
        self.waiters.append(waiter)
        accumulator = self.accumulator
        assert accumulator is not None
        accumulator.count = count = accumulator.count + 1
        accumulator.size = size = accumulator.size + size
        if (
            count >= accumulator.countMax
            or size >= accumulator.sizeMax
            or accumulator.timer is None
        ):
            accumulator.check()

    def select(self, indexes: Iterable[int]) -> PartitionBatch:
        chosen = PartitionBatch(self.topic, self.partition)
        chosen.mayBeDuplicate = self.mayBeDuplicate
        for index in indexes:
            chosen.values.append(self.values[index])
            chosen.keys.append(self.keys[index])
            chosen.sizes.append(self.sizes[index])
            chosen.waiters.append(self.waiters[index])
        return chosen

    def extend(self, other: PartitionBatch) -> None:
        self.values += other.values
        self.keys += other.keys
        self.sizes += other.sizes
        self.waiters += other.waiters
        self.mayBeDuplicate = self.mayBeDuplicate or other.mayBeDuplicate

    def close(self) -> PartitionBatch:
        """
        Close the batch and return its messages. A route may keep this object for long, so it keeps
        none.
        """
        self.isOpen = False
        taken = PartitionBatch(self.topic, self.partition)
        taken.values, self.values = self.values, []
        taken.keys, self.keys = self.keys, []
        taken.sizes, self.sizes = self.sizes, []
        taken.waiters, self.waiters = self.waiters, []
        return taken


class BatchAccumulator:
    """
    Collects batches for one broker and dispatches them together: by count, size or time.

    @ivar size: bytes collected.
    @ivar countMax: messages that trigger a dispatch.
    @ivar sizeMax: bytes that trigger a dispatch.
    @ivar timer: of the next dispatch by time.
    """

    def __init__(
        self,
        clock: IReactorTime,
        countMax: int,
        sizeMax: int,
        queueTimeMs: int,
        dispatch: Callable[[list[PartitionBatch]], object],
        onPoll: Callable[[], object] | None = None,
    ) -> None:
        """
        @param queueTimeMs: milliseconds between dispatches below both limits.
        @param dispatch: called with complete batches.
        @param onPoll: called every C{queueTimeMs} before the dispatch, even for an empty batch; it
            may add messages. L{None} stops the timer while the accumulator is empty.
        """
        self.count = self.size = 0
        self.countMax = countMax
        self.sizeMax = sizeMax
        self.isClosed = False
        self._clock = clock
        self._queueTime = queueTimeMs / 1000
        self._dispatch = dispatch
        self._onPoll = onPoll
        self._batches: dict[tuple[str, int], PartitionBatch] = {}
        self.timer: IDelayedCall | None = None
        self._lastDispatch = clock.seconds()
        if onPoll is not None:
            self._startTimer()

    def open(self, topic: str, partition: int) -> PartitionBatch:
        batch = self._batches.get((topic, partition))
        if batch is None:
            batch = PartitionBatch(topic, partition, self)
            self._batches[topic, partition] = batch
        return batch

    def add(self, batch: PartitionBatch) -> None:
        """Add a batch's messages, split where a limit is reached."""
        count, size = self.count + len(batch), self.size + sum(batch.sizes)
        if count <= self.countMax and size <= self.sizeMax:
            self.addWhole(batch)
            return
        columns = zip(batch.values, batch.keys, batch.sizes, batch.waiters, strict=True)
        for message in columns:
            self.open(batch.topic, batch.partition).append(*message)

    def addWhole(self, batch: PartitionBatch) -> None:
        """Add a batch's messages, which are dispatched together despite the limits."""
        self.count += len(batch)
        self.size += sum(batch.sizes)
        self.open(batch.topic, batch.partition).extend(batch)
        self.check()

    def check(self) -> None:
        if self.count >= self.countMax or self.size >= self.sizeMax:
            self.flush()
        elif self.count and self.timer is None:
            self._startTimer()

    def _startTimer(self) -> None:
        now = self._clock.seconds()
        late = now - self._lastDispatch
        if late >= self._queueTime:  # empty polls have passed meanwhile
            self._lastDispatch = now - late % self._queueTime
        self.timer = self._clock.callLater(
            self._lastDispatch + self._queueTime - now, self._onTimer
        )

    def _onTimer(self) -> None:
        self.timer = None
        if self._onPoll is not None:
            self._onPoll()
        self.flush()

    def flush(self) -> None:
        batches = self._take()
        self._lastDispatch = self._clock.seconds()
        if self._onPoll is not None:
            self._startTimer()
        if batches:
            self._dispatch(batches)

    def _take(self) -> list[PartitionBatch]:
        batches, self._batches = [batch.close() for batch in self._batches.values()], {}
        self.count = self.size = 0
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        return batches

    def close(self) -> list[PartitionBatch]:
        """Stop the timer for good. Returns the batches that were not dispatched."""
        self.isClosed = True
        self._onPoll = None
        return self._take()
