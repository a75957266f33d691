"""
Async mode: messages for one broker collect until there are enough of them, or until it is time (spec-0.7 producer §5).

0.7 has a thread for each broker, which polls a queue until C{queue.time} after the batch before; whether messages came or not, the time begins anew then. So
its batches leave in step with a clock that was set by the last dispatch, and no message waits longer than C{queue.time}. A L{Lane} keeps
the same time without a thread, and without a timer while it is empty.

With hooks it has to look at the clock even then: they are asked at every poll, also when it has found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.internet.interfaces import IReactorTime

from pylogbroker.client.timer import Timer

Poll = Callable[[Any], list[Any]]


class QueueItem:
    """
    One message on its way.

    @ivar topic: where to.
    @ivar partition: of the broker that was chosen; -1 lets it pick one.
    @ivar value: what the application gave.
    @ivar key: as well; L{None} for none.
    @ivar size: bytes that it counts for.
    @ivar waiter: whom to tell (C{callback}, C{errback}), or L{None}.
    @ivar isDoubtful: whether it may be in the log already: the outcome of an attempt was unknown.
    """

    __slots__ = ("isDoubtful", "key", "partition", "size", "topic", "value", "waiter")

    def __init__(self, topic: str, value: Any, key: Any = None, partition: int = -1, size: int = 0, waiter: Any = None) -> None:
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition
        self.size = size
        self.waiter = waiter
        self.isDoubtful = False

    def __repr__(self) -> str:
        return f"<QueueItem for {self.topic}-{self.partition}>"


def sizeOf(value: Any) -> int:
    """Bytes that a value counts for before it is encoded."""
    try:
        return len(value)
    except TypeError:
        return 0


def collate(items: Iterable[QueueItem]) -> dict[tuple[str, int], list[QueueItem]]:
    """Messages by topic and partition, in order of first appearance; order inside a group is kept."""
    groups: dict[tuple[str, int], list[QueueItem]] = {}
    for item in items:
        place = item.topic, item.partition
        group = groups.get(place)
        if group is None:
            groups[place] = [item]
        else:
            group.append(item)
    return groups


class Lane:
    """
    Where messages for one broker collect.
    """

    def __init__(
        self,
        clock: IReactorTime,
        countMax: int,
        sizeMax: int,
        queueTimeMs: int,
        dispatch: Callable[[list[QueueItem]], None],
        poll: Poll | None = None,
    ) -> None:
        """
        @param countMax: messages that go together.
        @param sizeMax: bytes at which they go, however few.
        @param queueTimeMs: between two dispatches, if not enough messages come.
        @param dispatch: called with the messages.
        @param poll: called with each message, or with L{None} when it is time; what it returns is collected. None: the messages themselves.
        """
        self._clock = clock
        self._countMax = countMax
        self._sizeMax = sizeMax
        self._queueTime = queueTimeMs / 1000
        self._dispatch = dispatch
        self._poll = poll
        self._items: list[QueueItem] = []
        self._size = 0
        self._timer = Timer(clock)
        self._isTiming = False
        self._since = clock.seconds()
        if poll is not None:
            self._startTiming()

    def add(self, item: QueueItem) -> None:
        """One more message."""
        if self._poll is not None:
            self.addAll(self._poll(item))
            return
        items = self._items
        items.append(item)
        self._size += item.size
        if len(items) >= self._countMax or self._size >= self._sizeMax:
            self.flush()
        elif not self._isTiming:
            self._startTiming()

    def addAll(self, items: Sequence[QueueItem]) -> None:
        """Messages that no poll sees."""
        for item in items:
            self._items.append(item)
            self._size += item.size
        if len(self._items) >= self._countMax or self._size >= self._sizeMax:
            self.flush()
        elif self._items and not self._isTiming:
            self._startTiming()

    def _startTiming(self) -> None:
        now = self._clock.seconds()
        late = now - self._since
        if late >= self._queueTime:
            self._since = now - late % self._queueTime
        self._isTiming = True
        self._timer.start((self._since + self._queueTime - now) * 1000, self._ring)

    def _ring(self) -> None:
        if self._poll is not None:
            self._items += self._poll(None)
        self._isTiming = False
        self.flush()

    def flush(self) -> None:
        """Dispatch what there is."""
        items = self.take()
        self._since = self._clock.seconds()
        if self._poll is not None:
            self._startTiming()
        if items:
            self._dispatch(items)

    def take(self) -> list[QueueItem]:
        """What there is; it is not collected here any more."""
        items, self._items = self._items, []
        self._size = 0
        if self._isTiming:
            self._isTiming = False
            self._timer.stop()
        return items

    def stop(self) -> list[QueueItem]:
        """No time is kept any more. Returns what was left."""
        self._poll = None
        return self.take()
