"""
Messages on their way: one by one, and those for one partition together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from pylogbroker.types import RANDOM_PARTITION

_BYTES = {bytes}


class QueueItem:
    """
    One message on its way.

    @ivar topic: where to.
    @ivar partition: of the broker that was chosen; -1 lets it pick one.
    @ivar value: what the application gave.
    @ivar key: as well; L{None} for none.
    @ivar size: bytes that it counts for.
    @ivar waiter: whom to tell (C{callback}, C{errback}), or L{None}.
    @ivar mayBeDuplicate: whether it may be in the log already: the outcome of an attempt was unknown.
    """

    __slots__ = ("key", "mayBeDuplicate", "partition", "size", "topic", "value", "waiter")

    def __init__(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int = -1,
        size: int = 0,
        waiter: Any = None,
    ) -> None:
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition
        self.size = size
        self.waiter = waiter
        self.mayBeDuplicate = False

    def succeed(self) -> None:
        """Tell who waits, if anybody does, that it is sent; only once, however often it went."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.callback(None)

    def __repr__(self) -> str:
        return f"<QueueItem for {self.topic}-{self.partition}>"


def sizeOf(value: Any) -> int:
    """Bytes that a value counts for before it is encoded."""
    try:
        return len(value)
    except TypeError:
        return 0


class ILane(Protocol):
    """
    Where batches collect (L{pylogbroker.producer.accumulator.BatchAccumulator}), as far as a batch has to know.

    @ivar count: of the messages that are there.
    @ivar size: bytes that they have.
    @ivar countMax: messages at which they go.
    @ivar sizeMax: bytes at which they go, however few.
    @ivar isTiming: whether a timer runs.
    """

    count: int
    size: int
    countMax: int
    sizeMax: int
    isTiming: bool

    def look(self) -> None:
        """Something was added: does it go at once, or in time?"""
        ...


class PartitionBatch:
    """
    Messages for one partition that go together, in order, column by column: so there is nothing to be made for each of them, and nothing for Python's garbage
    collector to look at. Whoever has to look at each, since they failed or since an application's hook asks, gets L{QueueItem}s.

    @ivar topic: where to.
    @ivar partition: as of L{QueueItem}; to be changed by L{moveTo} alone.
    @ivar values: what the application gave; as are C{keys}, C{sizes} and C{waiters}, see L{QueueItem}.
    @ivar isOpen: whether more can be added: it collects in a lane.
    """

    __slots__ = (
        "_items",
        "_lane",
        "isOpen",
        "keys",
        "partition",
        "sizes",
        "topic",
        "values",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        items: list[QueueItem] | None = None,
        lane: ILane | None = None,
    ) -> None:
        """
        @param items: what it is made of; not to be changed. L{None}: nothing yet.
        @param lane: where it collects, until it is taken from there.
        """
        self.topic = topic
        self.partition = partition
        self.isOpen = lane is not None
        self._items = items
        self._lane = lane
        self.values = [item.value for item in items or ()]
        self.keys = [item.key for item in items or ()]
        self.sizes = [item.size for item in items or ()]
        self.waiters = [item.waiter for item in items or ()]

    @classmethod
    def of(cls, topic: str, values: Iterable[Any], key: Any) -> PartitionBatch:
        """Messages with one key that have no place yet, and for which nobody waits."""
        batch = cls(topic, RANDOM_PARTITION)
        batch.values = list(values)
        batch.keys = [key] * len(batch.values)
        batch.sizes = list(
            map(len if set(map(type, batch.values)) == _BYTES else sizeOf, batch.values)
        )
        batch.waiters = [None] * len(batch.values)
        return batch

    def moveTo(self, partition: int) -> None:
        """They go there."""
        self.partition = partition
        for item in self._items or ():
            item.partition = partition

    def add(self, value: Any, key: Any, size: int, waiter: Any) -> None:
        """One more message, to one that is open; the parameters are those of a L{QueueItem}."""
        self.values.append(value)
        self.keys.append(key)
        self.sizes.append(size)
        self.waiters.append(waiter)
        lane = self._lane
        assert lane is not None
        lane.count = count = lane.count + 1
        lane.size = size = lane.size + size
        if count >= lane.countMax or size >= lane.sizeMax or not lane.isTiming:
            lane.look()

    def close(self) -> PartitionBatch:
        """
        Nothing is added any more.

        @return: what was collected; nothing of it stays here, where it might be kept for longer than it is under way.
        """
        self.isOpen = False
        taken = PartitionBatch(self.topic, self.partition)
        taken._items, taken.values, taken.keys, taken.sizes, taken.waiters = (
            self._items,
            self.values,
            self.keys,
            self.sizes,
            self.waiters,
        )
        self._items, self.values, self.keys, self.sizes, self.waiters = None, [], [], [], []
        return taken

    def items(self) -> list[QueueItem]:
        """A L{QueueItem} of each, always the same ones; to be asked for when nothing is added any more."""
        if self._items is None:
            columns = zip(self.values, self.keys, self.sizes, self.waiters, strict=True)
            self._items = [
                QueueItem(self.topic, value, key, self.partition, size, waiter)
                for value, key, size, waiter in columns
            ]
        return self._items

    def succeed(self) -> None:
        """Tell all who wait that theirs is sent."""
        if self._items is None:
            for waiter in filter(None, self.waiters):
                waiter.callback(None)
        else:
            for item in self._items:
                item.succeed()


def itemsOf(batches: Iterable[PartitionBatch]) -> list[QueueItem]:
    """All messages of some batches."""
    return [item for batch in batches for item in batch.items()]


def groupByPartition(items: Iterable[QueueItem]) -> list[PartitionBatch]:
    """Messages by topic and partition, in order of first appearance; order inside a batch is kept."""
    groups: dict[tuple[str, int], list[QueueItem]] = {}
    for item in items:
        groups.setdefault((item.topic, item.partition), []).append(item)
    return [PartitionBatch(topic, partition, group) for (topic, partition), group in groups.items()]
