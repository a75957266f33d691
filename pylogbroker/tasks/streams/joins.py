"""
The operators of joins: of two streams in a window, of a stream with a table, of two tables. A
module of its own, since messages wait for one another here.

Two messages of two streams are joined when the second one comes, if neither has waited for longer
than its window allows. So the result does not depend on which stream is ahead, within that.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.streams.operators import Getter, Surroundings, Take
from pylogbroker.tasks.streams.steps import (
    INNER,
    LEFT,
    OUTER,
    PlanStep,
    StreamTableJoin,
    TableJoin,
    WindowJoin,
)
from pylogbroker.tasks.streams.stores import (
    BEHIND_TIMES,
    BY_KEY,
    BY_TIME,
    PAIR,
    SIZE,
    TIME,
    TimeIndex,
    ValueAndTimestamp,
    timeOfIndexed,
)
from pylogbroker.tasks.streams.windows import TIME_MAX

_ALONE, _JOINED = b"\0", b"\1"
"""The first byte of a message that waits."""


class _Side:
    """
    The messages of a stream that wait for those of the other.

    @ivar isLeft: or right.
    @ivar isKept: whether messages that stay alone are results.
    @ivar beforeMs: how far before a message its first partner may be.
    @ivar afterMs: how far behind it the last one may be.
    """

    def __init__(self, step: WindowJoin, around: Surroundings, number: int) -> None:
        window = step.window
        key, message = step.parents[number].key, step.parents[number].message
        assert key is not None and message is not None
        self.isLeft = number == 0
        self.isKept = step.how == OUTER or (step.how == LEFT and self.isLeft)
        bounds = (window.beforeMs, window.afterMs)
        self.beforeMs, self.afterMs = bounds if self.isLeft else bounds[::-1]
        self.encodeKey, self.decodeKey = key.encode, key.decode
        self.encode, self.decode = message.encode, message.decode
        self.store: KeyValueStore[bytes, bytes] = around.storeOf(step, number)
        self.index = around.indexed(TimeIndex(self.store, BY_TIME, BEHIND_TIMES, timeOfIndexed))

    def add(self, key: bytes, message: Any, time: int, number: int, isJoined: bool) -> None:
        """A message waits from now on."""
        mark = _JOINED if isJoined or not self.isKept else _ALONE
        place = PAIR.pack(time, number)
        self.store.put(_prefixOf(key) + place, mark + self.encode(message))
        self.store.put(BY_TIME + place + key, b"")
        self.index.added(time)

    def partners(self, key: bytes, first: int, last: int) -> list[tuple[int, Any]]:
        """The messages of a key that wait, with their times; they are joined now."""
        found = []
        prefix = _prefixOf(key)
        start = prefix + TIME.pack(max(0, first))
        end = prefix + TIME.pack(min(TIME_MAX, last + 1))
        for place, data in self.store.range(start, end):
            if data[:1] == _ALONE:
                self.store.put(place, _JOINED + data[1:])
            found.append((TIME.unpack_from(place, len(prefix))[0], self.decode(data[1:])))
        return found

    def takeClosed(self, before: int, now: int) -> list[tuple[int, bool, bytes, Any]]:
        """
        Remove what has waited long enough.

        @return: time, L{isLeft}, key and message of those that have stayed alone.
        """
        alone = []
        for entry, _ in self.index.due(before, now):
            place, key = entry[1 : 1 + PAIR.size], entry[1 + PAIR.size :]
            name = _prefixOf(key) + place
            if self.isKept:
                data = self.store.get(name)
                if data is not None and data[:1] == _ALONE:
                    time = TIME.unpack_from(place)[0]
                    alone.append((time, self.isLeft, self.decodeKey(key), self.decode(data[1:])))
            self.store.delete(entry)
            self.store.delete(name)
        return alone


def _prefixOf(key: bytes) -> bytes:
    return BY_KEY + SIZE.pack(len(key)) + key


def windowJoin(step: WindowJoin, around: Surroundings, forward: Take) -> tuple[Take, ...]:
    """The operator of a join of two streams."""
    time, joiner, waitMs = around.streamTimeOf(step), step.joiner, step.window.waitMs
    dropped, late = around.droppedOf(step), around.lateOf(step)
    sides = (_Side(step, around, 0), _Side(step, around, 1))

    def close(before: int, now: int) -> None:
        alone = [each for side in sides for each in side.takeClosed(before, now)]
        for timestamp, isLeft, key, message in sorted(alone, key=itemgetter(0)):
            pair = (message, None) if isLeft else (None, message)
            forward(key, joiner(*pair), timestamp)

    def takeOf(mine: _Side, other: _Side) -> Take:
        def take(key: Any, message: Any, timestamp: int) -> None:
            if key is None or message is None:
                dropped.increment()
                return
            before = time.observe(timestamp)
            now = time.now
            if before < now:
                around.withoutHeaders(close, before - waitMs, now - waitMs)
            if timestamp + waitMs < now:
                late.increment()
                return
            data = mine.encodeKey(key)
            found = other.partners(data, timestamp - mine.beforeMs, timestamp + mine.afterMs)
            mine.add(data, message, timestamp, time.nextNumber(), bool(found))
            for partnerTime, partner in found:
                pair = (message, partner) if mine.isLeft else (partner, message)
                forward(key, joiner(*pair), max(timestamp, partnerTime))

        return take

    left, right = sides
    return takeOf(left, right), takeOf(right, left)


def streamTableJoin(
    step: StreamTableJoin, around: Surroundings, forward: Take, get: Getter
) -> tuple[Take, ...]:
    """
    The operator of a join of a stream with a table.

    @param get: the table's.
    """
    dropped, joiner, isInner = around.droppedOf(step), step.joiner, step.how == INNER

    def take(key: Any, message: Any, timestamp: int) -> None:
        if key is None or message is None:
            dropped.increment()
            return
        found = get(key)
        if found is not None:
            forward(key, joiner(message, found.value), timestamp)
        elif not isInner:
            forward(key, joiner(message, None), timestamp)

    def ignore(key: Any, value: Any, hadValue: bool, timestamp: int) -> None:
        """The table has it, and its changes are no results."""

    return take, ignore


def tableJoinGetter(step: TableJoin, getLeft: Getter, getRight: Getter) -> Getter:
    """What a join of two tables has for a key: it keeps nothing itself."""

    def get(key: Any) -> ValueAndTimestamp | None:
        left, right = getLeft(key), getRight(key)
        value = _joined(
            step, None if left is None else left.value, None if right is None else right.value
        )
        if value is None:
            return None
        return ValueAndTimestamp(value, max(each.timestamp for each in (left, right) if each))

    return get


def tableJoin(
    step: TableJoin, forward: Take, getLeft: Getter, getRight: Getter
) -> tuple[Take, ...]:
    """
    The operator of a join of two tables.

    @param getLeft: the left table's.
    @param getRight: the right one's.
    """
    how = step.how
    # Where both come of one table, the other one has changed, too, before this is told.
    isShared = _shareTable(step)

    def takeOf(isLeft: bool, getOther: Getter) -> Take:
        def take(key: Any, value: Any, hadValue: bool, timestamp: int) -> None:
            other = getOther(key)
            its = None
            if other is not None:
                its, timestamp = other.value, max(timestamp, other.timestamp)
            result = _joined(step, value, its) if isLeft else _joined(step, its, value)
            if how == OUTER:
                hadValue = hadValue or other is not None
            elif how == INNER:
                hadValue = hadValue and other is not None
            elif not isLeft:
                hadValue = other is not None
            hadValue = hadValue or isShared
            if result is not None or hadValue:
                forward(key, result, hadValue, timestamp)

        return take

    return takeOf(True, getRight), takeOf(False, getLeft)


def _joined(step: TableJoin, left: Any, right: Any) -> Any:
    if left is None and (right is None or step.how != OUTER):
        return None
    if right is None and step.how == INNER:
        return None
    return step.joiner(left, right)


def _shareTable(step: TableJoin) -> bool:
    left, right = (_tablesOf(each) for each in step.parents)
    return not left.isdisjoint(right)


def _tablesOf(step: PlanStep) -> set[int]:
    """The tables with a store of which a table is made, by number."""
    if step.stores:
        return {step.number}
    return set().union(*(_tablesOf(each) for each in step.parents))
