"""
What is in the topics and stores of a job of L{tests.simulation.tasks.streamplans} at the end. A
module of its own, since its plain functions name messages, and not what was sent for them.

With exactly once each result is there once, tables end with what is due, and their stores have it.
With at least once each result is there, some perhaps several times, and a count is not below the
number of its messages, nor above it by more than those that were handled again. What a container
that was thought to be dead has written to a changelog behind what its successor has read may spoil
all that is made of it: then only the results of single messages are compared.

What a message is joined with in a table that goes on may be any value that the table has had since
the message's stream began; the order of both is no promise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from pylogbroker.tasks.streams import ON_CLOSE, SessionWindow, ValueAndTimestamp, Windowed
from pylogbroker.tasks.streams.steps import COUNT, INNER
from tests.simulation.tasks.judge import Calls, IsStale, Judge, Read
from tests.simulation.tasks.streamplans import (
    AGGREGATION,
    FORWARD,
    LONG_MS,
    LOOKUP,
    OUT,
    TABLE,
    TABLES,
    WINDOW_JOIN,
    Due,
    Item,
    StreamPlan,
    aggregated,
    badOf,
    itemsOf,
    joinedTables,
    lastOf,
    pair,
    pairsOf,
    possibleOf,
    windowsOf,
)

KeyCalls = Mapping[tuple[str, str], int]
"""How often a job was given messages of a key: by topic, or repartition, and key."""


class StreamJudge(Judge):
    """Judges a job."""

    def __init__(
        self,
        plan: StreamPlan,
        isExactlyOnce: bool,
        calls: Calls,
        read: Read,
        isStale: IsStale,
        keyCalls: KeyCalls,
        tableEnds: Mapping[tuple[str, int], int],
    ) -> None:
        """@param tableEnds: where the partitions of the table ended before the job began."""
        super().__init__(plan, isExactlyOnce, calls, read, isStale)
        self._plan = plan
        self._keyCalls = keyCalls
        self._tableEnds = tableEnds
        (output,) = plan.definition.outputs
        self._sent: dict[Any, list[Any]] = defaultdict(list)
        for each in chain(*read(OUT).values()):
            key = None if each.key is None else output.key.decode(each.key)
            value = None if each.value is None else output.message.decode(each.value)
            self._sent[key].append(value)

    def _dead(self) -> list[str]:
        bad = badOf(self._inputs, self._plan.streams)
        return ["/".join(map(str, origin)) for origin in bad]

    def _judgeOwn(self) -> None:
        kind = self._plan.kind
        if kind == FORWARD:
            self._judgeForwarded()
        elif kind in (AGGREGATION, TABLES, WINDOW_JOIN) and self.staleCount:
            return
        elif kind == AGGREGATION:
            self._judgeAggregation()
        elif kind == WINDOW_JOIN:
            self._judgeWindowJoin()
        elif kind == TABLES:
            self._judgeTables()
        else:
            self._judgeTableJoin()

    def _judgeForwarded(self) -> None:
        (topic,) = self._plan.streams
        items = itemsOf(self._plan, self._inputs, topic)
        if self._plan.rekeyed:
            items = [each for each in items if each.key is not None]
        due = Counter((each.key or "", each.text or "") for each in items)
        self._compareSent(
            Counter((key or "", text or "") for key, some in self._sent.items() for text in some),
            due,
        )

    def _compareSent(self, found: Mapping[Any, int], due: Mapping[Any, int]) -> None:
        """Each once, or at least once."""
        if not self._isExactlyOnce:
            found = {key: min(count, due.get(key, 0)) for key, count in found.items()}
        self._compare("what was sent is wrong", found, due)

    # -- aggregations

    def _judgeAggregation(self) -> None:
        plan, windows = self._plan, windowsOf(self._plan, self._inputs)
        isFinal = plan.window is not None and plan.emit == ON_CLOSE
        told = {key: due for key, due in windows.items() if due.isClosed or not isFinal}
        if extra := {key for key, some in self._sent.items() if some[-1] is not None} - {*told}:
            if self._isExactlyOnce or not self._mayMerge:
                raise self._broken(f"results of what is not there: {sorted(extra)}")
        for key, due in told.items():
            sent = [each for each in self._sent.get(key, ()) if each is not None]
            if self._isExactlyOnce:
                isRight = sent[-1:] == [aggregated(plan.operation, due.items)]
                isRight = isRight and self._sent[key][-1] is not None
                if isFinal or not isinstance(plan.window, SessionWindow):
                    isRight = isRight and len(sent) == (1 if isFinal else len(due.items))
            else:
                isRight = any(self._isDue(each, due) for each in sent)
            if not isRight:
                raise self._broken(
                    f"of {key} was sent {self._sent.get(key)}, and is due {self._said(due)}"
                )
        self._judgeAggregates({key: due for key, due in windows.items() if due.isOpen})

    @property
    def _mayMerge(self) -> bool:
        """Whether there may be results of sessions that became others later."""
        return isinstance(self._plan.window, SessionWindow)

    def _judgeAggregates(self, windows: Mapping[Any, Due]) -> None:
        """What the store has."""
        found = self._stored(self._plan.definition.stores[0].name)
        for key in {*found, *windows}:
            due, has = windows.get(key), found.get(key)
            if due is None or has is None or not self._isDue(has.value, due):
                raise self._broken(f"the store has {has} for {key}, and is due {self._said(due)}")
            if has.timestamp != due.time:
                raise self._broken(f"the time of {key} is {has.timestamp}, and not {due.time}")

    def _stored(self, name: str) -> dict[Any, ValueAndTimestamp]:
        """What the changelogs of all tasks say of a store, without its indexes."""
        (store,) = (each for each in self._plan.definition.stores if each.name == name)
        found = {}
        for (_task, one), entries in self._changelogs.items():
            for data, value in entries.items() if one == name else ():
                key = store.key.decode(data)
                if isinstance(key, str | Windowed):
                    found[key] = store.value.decode(value)
        return found

    def _isDue(self, value: int | str, due: Due) -> bool:
        operation, items = self._plan.operation, due.items
        if operation != COUNT or self._isExactlyOnce:
            return value == aggregated(operation, items)
        return len(items) <= int(value) <= self._most(items)

    def _most(self, items: Iterable[Item]) -> int:
        """How often messages were handled, at most."""
        origins = [each.origin for each in items]
        channels = {self._plan.channelOf(topic) for topic, _, _ in origins}
        if "" in channels:
            return sum(self._calls[origin] for origin in origins)
        keys = {each.key for each in items if each.key is not None}
        return sum(self._keyCalls[channel, key] for channel in channels for key in keys)

    def _said(self, due: Due | None) -> str:
        if due is None:
            return "nothing"
        items = due.items
        return f"{aggregated(self._plan.operation, items)!r}, handled {self._most(items)} times"

    # -- joins

    def _judgeWindowJoin(self) -> None:
        plan = self._plan
        pairs = pairsOf(plan, self._inputs)
        due = Counter((key, pair(left.text, right.text)) for key, left, right in pairs)
        found = Counter((key, text) for key, some in self._sent.items() for text in some)
        alone = {each for each in found if "None" in each[1].split("+")}
        assert plan.window is not None
        if plan.window.graceMs == LONG_MS:
            self._compareSent(found, due)
            return
        if extra := found.keys() - due.keys() - alone:
            raise self._broken(f"pairs that are none: {sorted(extra)}")
        if plan.how == INNER and alone:
            raise self._broken(f"messages without a partner: {sorted(alone)}")
        if self._isExactlyOnce:
            if twice := [each for each, count in found.items() if count > 1]:
                raise self._broken(f"sent twice: {sorted(twice)}")
            sides = Counter((key, text.split("+")[0], 0) for key, text in found.keys() - alone)
            sides.update((key, text.split("+")[1], 1) for key, text in found.keys() - alone)
            for key, text in alone:
                left, right = text.split("+")
                if (key, left, 0) in sides or (key, right, 1) in sides:
                    raise self._broken(f"{text} of {key} has a partner")

    def _judgeTables(self) -> None:
        plan = self._plan
        tables = [lastOf(self._inputs, topic) for topic in plan.streams]
        for topic, has in zip(plan.streams, tables, strict=True):
            self._compare(f"table {topic} is wrong", self._stored(topic), has)
        join: Callable[[Any, Any], str | None] = joinedTables[plan.how]
        left, right = ({key: has.value for key, has in each.items()} for each in tables)
        for key in {*self._sent, *left, *right}:
            due, sent = join(left.get(key), right.get(key)), self._sent.get(key, [None])
            if due != sent[-1] if self._isExactlyOnce else due not in sent:
                raise self._broken(f"of {key} was sent {sent}, and is due {due}")

    def _judgeTableJoin(self) -> None:
        plan = self._plan
        isKnown = plan.isBootstrap or plan.kind != LOOKUP
        possible = possibleOf(self._inputs, TABLE, self._tableEnds if isKnown else {})
        (topic,) = plan.streams
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key, some in self._sent.items():
            for each in some:
                text, _, value = each.partition("+")
                found[key, text].append(value)
        for item in itemsOf(plan, self._inputs, topic):
            if item.key is None or item.text is None:
                continue
            sent = found.pop((item.key, item.text), [])
            values = {str(each) for each in possible(item.key)}
            isInner = plan.kind != LOOKUP and plan.how == INNER
            isThere = bool(sent) or (isInner and "None" in values)
            if isInner:
                values.discard("None")
            if self.staleCount:
                isThere = isThere or isInner
            elif not values.issuperset(sent):
                isThere = False
            if not isThere or (self._isExactlyOnce and len(sent) > 1):
                raise self._broken(
                    f"{item.text} of {item.key} was joined with {sent}, and may be with"
                    f" {sorted(values)}"
                )
        if found:
            raise self._broken(f"messages were sent for what is not there: {dict(found)}")
