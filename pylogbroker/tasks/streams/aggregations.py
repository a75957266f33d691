"""
The operators of counts, reductions and aggregations: for a key, for a key and a window, and for the
sessions of a key. A module of its own, since windows close here.

What must be true:

  - A closed window gives no result any more, and takes no message.
  - The sessions of a key are further apart than their gap, whatever the order of the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.streams.operators import Surroundings, Take
from pylogbroker.tasks.streams.steps import (
    COUNT,
    REDUCE,
    Aggregation,
    TableAggregation,
    TableGroup,
    WindowedAggregation,
)
from pylogbroker.tasks.streams.stores import (
    BEHIND_TIMES,
    BY_TIME,
    INDEXED,
    SessionStoreSerde,
    TimeIndex,
    ValueAndTimestamp,
    startOf,
    timeOfIndexed,
)
from pylogbroker.tasks.streams.windows import (
    ON_CHANGE,
    TIME_MAX,
    HoppingWindow,
    SessionWindow,
    Windowed,
)

_Update: TypeAlias = Callable[[Any, Any, Any], Any]
_Put: TypeAlias = Callable[[Any, Any, ValueAndTimestamp | None, int], None]


def _ignore(*_arguments: Any) -> None:
    pass


def _updateOf(step: Aggregation) -> _Update:
    """C{update(key, message, value)}: the next value; the value may be L{None}."""
    if step.operation == COUNT:
        return lambda _key, _message, value: (value or 0) + 1
    aggregator, initial = step.aggregator, step.initial
    assert aggregator is not None
    if step.operation == REDUCE:
        return lambda _key, message, value: message if value is None else aggregator(value, message)
    assert initial is not None
    return lambda key, message, value: aggregator(
        key, message, initial() if value is None else value
    )


def _mergerOf(step: WindowedAggregation) -> _Update:
    if step.operation == COUNT:
        return lambda _key, earlier, later: earlier + later
    if step.operation == REDUCE:
        aggregator = step.aggregator
        assert aggregator is not None
        return lambda _key, earlier, later: aggregator(earlier, later)
    assert step.merger is not None
    return step.merger


def _putOf(store: KeyValueStore[Any, Any], forward: Take) -> _Put:
    """
    C{put(key, value, found, timestamp)}: the next value of a key goes to the store and on. L{None}
    removes the key; C{found} is what the store has.
    """

    def put(key: Any, value: Any, found: ValueAndTimestamp | None, timestamp: int) -> None:
        if value is not None:
            store.put(key, ValueAndTimestamp(value, timestamp))
        elif found is not None:
            store.delete(key)
        else:
            return
        forward(key, value, found is not None, timestamp)

    return put


def aggregation(step: Aggregation, around: Surroundings, forward: Take) -> tuple[Take, ...]:
    """The operator of an aggregation without windows."""
    store, dropped, update = around.storeOf(step), around.droppedOf(step), _updateOf(step)
    put = _putOf(store, forward)

    def take(key: Any, message: Any, timestamp: int) -> None:
        if key is None or message is None:
            dropped.increment()
            return
        found = store.get(key)
        if found is None:
            value = update(key, message, None)
        else:
            value = update(key, message, found.value)
            timestamp = max(timestamp, found.timestamp)
        put(key, value, found, timestamp)

    return (take,)


def _subtractionOf(step: TableAggregation) -> _Update:
    """C{subtract(key, message, value)}: the value without a message that is in it."""
    if step.operation == COUNT:
        return lambda _key, _message, value: value - 1
    subtractor = step.subtractor
    assert subtractor is not None
    if step.operation == REDUCE:
        return lambda _key, message, value: subtractor(value, message)
    return subtractor


def tableAggregation(
    step: TableAggregation, around: Surroundings, forward: Take
) -> tuple[Take, ...]:
    """The operator of an aggregation of a table's groups."""
    store, add, subtract = around.storeOf(step), _updateOf(step), _subtractionOf(step)
    put = _putOf(store, forward)

    def take(key: Any, change: tuple[Any, Any], timestamp: int) -> None:
        old, new = change
        found = store.get(key)
        value = None if found is None else found.value
        if old is not None and value is not None:
            value = subtract(key, old, value)
        if new is not None:
            value = add(key, new, value)
        if found is not None:
            timestamp = max(timestamp, found.timestamp)
        put(key, value, found, timestamp)

    return (take,)


def tableGroup(step: TableGroup, around: Surroundings, forward: Take) -> tuple[Take, ...]:
    """The operator that gives a table's changes to their groups."""
    store, dropped, function = around.storeOf(step), around.droppedOf(step), step.function

    def take(key: Any, value: Any, hadValue: bool, timestamp: int) -> None:
        before = store.get(key)
        now = None if value is None else function(key, value)
        if now is not None and (now[0] is None or now[1] is None):
            dropped.increment()
            now = None
        if now is not None:
            store.put(key, now)
        elif before is not None:
            store.delete(key)
        if before is not None and now is not None and before[0] == now[0]:
            forward(now[0], (before[1], now[1]), timestamp)  # one message: nothing is in between
            return
        if before is not None:
            forward(before[0], (before[1], None), timestamp)
        if now is not None:
            forward(now[0], (None, now[1]), timestamp)

    return (take,)


def windowedAggregation(
    step: WindowedAggregation, around: Surroundings, forward: Take
) -> tuple[Take, ...]:
    """The operator of an aggregation in windows."""
    kind = _Sessions if isinstance(step.window, SessionWindow) else _Windows
    made = kind(step, around, forward)
    return (made.take,)


class _Windowed:
    """
    An aggregation in windows.

    @ivar store: has the windows that are open.
    """

    def __init__(self, step: WindowedAggregation, around: Surroundings, forward: Take) -> None:
        self.store = around.storeOf(step)
        self._around, self._forward = around, forward
        self._update = _updateOf(step)
        self._time = around.streamTimeOf(step)
        self._dropped, self._late = around.droppedOf(step), around.lateOf(step)
        self._giveLate = around.sender(step.lateTopic) if step.lateTopic else _ignore
        self._isOnChange = step.emit == ON_CHANGE
        self._put = _putOf(self.store, forward if self._isOnChange else _ignore)

    def take(self, key: Any, message: Any, timestamp: int) -> None:
        """Add a message to its windows, and close those whose time is over."""
        if key is None or message is None:
            self._dropped.increment()
            return
        before = self._time.observe(timestamp)
        if before < self._time.now:
            self._around.withoutHeaders(self._close, before, self._time.now)
        if not self._add(key, message, timestamp):
            self._late.increment()
            self._giveLate(key, message, timestamp)

    def _close(self, before: int, now: int) -> None:
        raise NotImplementedError

    def _add(self, key: Any, message: Any, timestamp: int) -> bool:
        raise NotImplementedError


class _Windows(_Windowed):
    """Tumbling or hopping ones."""

    def __init__(self, step: WindowedAggregation, around: Surroundings, forward: Take) -> None:
        super().__init__(step, around, forward)
        assert isinstance(step.window, HoppingWindow)
        self._startsOf, self._size = step.window.startsOf, step.window.sizeMs
        self._openMs = step.window.sizeMs + step.window.graceMs  # from a window's beginning
        self._index = around.indexed(TimeIndex(self.store, b"", None, startOf))

    def _close(self, before: int, now: int) -> None:
        # Closed is what begins at now - openMs or earlier.
        openMs = self._openMs - 1
        for window, found in self._index.due(before - openMs, now - openMs):
            self.store.delete(window)
            if not self._isOnChange:
                self._forward(window, found.value, False, found.timestamp)

    def _add(self, key: Any, message: Any, timestamp: int) -> bool:
        firstOpen = self._time.now - self._openMs + 1
        isInTime = True
        for start in self._startsOf(timestamp):
            if start < firstOpen:
                isInTime = False
                continue
            window = Windowed(key, start, start + self._size)
            found = self.store.get(window)
            if found is None:
                value, last = self._update(key, message, None), timestamp
                self._index.added(start)
            else:
                value = self._update(key, message, found.value)
                last = max(timestamp, found.timestamp)
            self._put(window, value, found, last)
        return isInTime


class _Sessions(_Windowed):
    """
    Sessions. A session stays in the store for another gap when it is closed: a message that would
    belong to it is late.
    """

    def __init__(self, step: WindowedAggregation, around: Surroundings, forward: Take) -> None:
        super().__init__(step, around, forward)
        assert isinstance(step.window, SessionWindow)
        self._gap, self._grace = step.window.gapMs, step.window.graceMs
        self._merge = _mergerOf(step)
        inner = step.parents[0].key
        assert inner is not None
        self._serde = SessionStoreSerde(inner)
        self._closing, self._removal = (
            around.indexed(TimeIndex(self.store, BY_TIME, BEHIND_TIMES, timeOfIndexed))
            for _ in range(2)
        )

    def _close(self, before: int, now: int) -> None:
        if not self._isOnChange:
            grace = self._grace
            for entry, _ in self._closing.due(before - grace, now - grace):
                session = self._serde.sessionOf(entry)
                value, timestamp = self.store.get(session) or (None, -1)
                self._forward(session, value, False, timestamp)
        keptMs = self._grace + self._gap
        for entry, _ in self._removal.due(before - keptMs, now - keptMs):
            self.store.delete(entry)
            self.store.delete(self._serde.sessionOf(entry))

    def _add(self, key: Any, message: Any, timestamp: int) -> bool:
        lastClosed = self._time.now - self._grace - 1  # the end of the last session that is closed
        start, end = timestamp, timestamp + self._gap
        if end <= lastClosed:
            return False
        # Sessions of a key do not overlap: they begin in the order in which they end.
        near: list[tuple[Windowed, ValueAndTimestamp]] = []
        first, behind = Windowed(key, 0, timestamp), Windowed(key, TIME_MAX, TIME_MAX)
        for session, found in self.store.range(first, behind):
            if session.startMs > end:
                break
            if session.endMs <= lastClosed:
                return False
            near.append((session, found))
        value, last = None, timestamp
        for session, found in near:
            value = found.value if value is None else self._merge(key, value, found.value)
            start, end = min(start, session.startMs), max(end, session.endMs)
            last = max(last, found.timestamp)
        value = self._update(key, message, value)
        merged = Windowed(key, start, end)
        same = None
        for session, found in near:
            if session == merged:
                same = found
                continue
            self._remove(session)
            if self._isOnChange:
                self._forward(session, None, True, last)
        if value is None:
            if same is not None:
                self._remove(merged)
        elif same is None:
            self.store.put(self._serde.indexed(merged), INDEXED)
            self._closing.added(end)
            self._removal.added(end)
        self._put(merged, value, same, last)
        return True

    def _remove(self, session: Windowed) -> None:
        self.store.delete(session)
        self.store.delete(self._serde.indexed(session))
