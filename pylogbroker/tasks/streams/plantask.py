"""
The task of a high-level job: it connects the operators of the job's steps, and hands each message
to those that read its topic. A module of its own, since it is what a job of
L{pylogbroker.tasks.streams.compiler} runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.tasks.api import (
    Config,
    IncomingMessageEnvelope,
    MessageCollector,
    StreamTask,
    TaskContext,
    TaskCoordinator,
)
from pylogbroker.tasks.streams.aggregations import (
    aggregation,
    tableAggregation,
    tableGroup,
    windowedAggregation,
)
from pylogbroker.tasks.streams.joins import (
    streamTableJoin,
    tableJoin,
    tableJoinGetter,
    windowJoin,
)
from pylogbroker.tasks.streams.operators import Getter, Surroundings, Take
from pylogbroker.tasks.streams.steps import (
    Aggregation,
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Merge,
    Peek,
    PlanStep,
    RepartitionStep,
    SelectKey,
    Sink,
    StreamSource,
    StreamTableJoin,
    TableAggregation,
    TableGroup,
    TableJoin,
    ToStream,
    WindowedAggregation,
    WindowJoin,
)
from pylogbroker.tasks.streams.stores import ValueAndTimestamp


class PlanTask(StreamTask):
    """
    Runs the steps of a job.

    @ivar steps: those.
    @ivar around: what surrounds them, from C{init} on.
    """

    def __init__(self, steps: Sequence[PlanStep]) -> None:
        """@param steps: each behind its parents, with the repartitions that they need."""
        self.steps = steps

    def init(self, config: Config, context: TaskContext) -> None:
        """See L{StreamTask}."""
        self.around = Surroundings(context)
        self._getters: dict[int, Getter] = {}
        self._sources: dict[str, list[Take]] = {}
        behind: dict[int, list[Take]] = {step.number: [] for step in self.steps}
        for step in reversed(self.steps):
            takes = self.operatorOf(step, _toAll(behind[step.number]))
            for parent, take in zip(step.parents, takes, strict=len(takes) > 1):
                behind[parent.number].insert(0, take)
        self._takes = {name: _toAll(found) for name, found in self._sources.items()}

    def operatorOf(self, step: PlanStep, forward: Take) -> tuple[Take, ...]:
        """
        The operator of a step: a function for each parent. An engine that does a step in its own
        way has another one.

        @param forward: takes what the step gives.
        """
        around = self.around
        if isinstance(step, RepartitionStep):
            self.readFrom(step.channel, forward)
            return (_repartition(step, around),)
        if isinstance(step, StreamSource):
            taking = (_table if step.isTable else _stream)(step, around, forward)
            self.readFrom(step.topic, taking)
            return ()
        if isinstance(step, WindowedAggregation):
            return windowedAggregation(step, around, forward)
        if isinstance(step, TableAggregation):
            return tableAggregation(step, around, forward)
        if isinstance(step, Aggregation):
            return aggregation(step, around, forward)
        if isinstance(step, TableGroup):
            return tableGroup(step, around, forward)
        if isinstance(step, WindowJoin):
            return windowJoin(step, around, forward)
        if isinstance(step, StreamTableJoin):
            return streamTableJoin(step, around, forward, self._getterOf(step.parents[1]))
        if isinstance(step, TableJoin):
            return tableJoin(step, forward, *map(self._getterOf, step.parents))
        if isinstance(step, Merge):
            return (forward,) * len(step.parents)
        if isinstance(step, Sink):
            return (around.sender(step.topic),)
        if isinstance(step, ToStream):
            return (lambda key, value, hadValue, timestamp: forward(key, value, timestamp),)
        if step.isTable:
            return (_tableFunction(step, forward),)
        return (_streamFunction(step, forward),)

    def readFrom(self, name: str, take: Take) -> None:
        """
        What comes of a topic, or of a repartition, reaches a function, before those that were
        given already.
        """
        self._sources.setdefault(name, []).insert(0, take)

    def takeOf(self, name: str) -> Take:
        """Takes what comes of a topic, or of a repartition, for all operators that read it."""
        return self._takes[name]

    def _getterOf(self, step: PlanStep) -> Getter:
        """What a table has for a key."""
        found = self._getters.get(step.number)
        if found is None:
            found = self._getters[step.number] = self._newGetter(step)
        return found

    def _newGetter(self, step: PlanStep) -> Getter:
        if step.stores:
            return self.around.storeOf(step).get
        given = [self._getterOf(each) for each in step.parents]
        if isinstance(step, TableJoin):
            return tableJoinGetter(step, *given)
        assert isinstance(step, Filter | MapValues)
        return _functionGetter(step, given[0])

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        """See L{StreamTask}."""
        around = self.around
        around.collector, around.headers = collector, envelope.headers
        try:
            self._takes[envelope.topic](envelope.key, envelope.message, envelope.timestamp)
        except BaseException:
            around.forget()
            raise


def _toAll(takes: Sequence[Take]) -> Take:
    if len(takes) == 1:
        return takes[0]
    given = tuple(takes)

    def takeAll(*arguments: Any) -> None:
        for take in given:
            take(*arguments)

    return takeAll


def _functionGetter(step: Filter | MapValues, get: Getter) -> Getter:
    """Of a table that is made of another one by a function."""
    function = step.function
    if isinstance(step, Filter):

        def getFiltered(key: Any) -> ValueAndTimestamp | None:
            found = get(key)
            return found if found is not None and function(key, found.value) else None

        return getFiltered

    def getMapped(key: Any) -> ValueAndTimestamp | None:
        found = get(key)
        value = None if found is None else function(found.value)
        return None if found is None or value is None else found._replace(value=value)

    return getMapped


def _stream(step: StreamSource, around: Surroundings, forward: Take) -> Take:
    timeOf = step.timestamp
    if timeOf is None:
        return forward
    return lambda key, message, timestamp: forward(key, message, timeOf(key, message))


def _table(step: StreamSource, around: Surroundings, forward: Take) -> Take:
    store, dropped = around.storeOf(step), around.droppedOf(step)

    def take(key: Any, message: Any, timestamp: int) -> None:
        if key is None:
            dropped.increment()
            return
        hadValue = store.get(key) is not None
        if message is not None:
            store.put(key, ValueAndTimestamp(message, timestamp))
        elif hadValue:
            store.delete(key)
        else:
            return
        forward(key, message, hadValue, timestamp)

    return take


def _repartition(step: RepartitionStep, around: Surroundings) -> Take:
    dropped, send = around.droppedOf(step), around.sender(step.channel)

    def take(key: Any, message: Any, timestamp: int) -> None:
        if key is None:
            dropped.increment()
        else:
            send(key, message, timestamp)

    return take


def _tableFunction(step: PlanStep, forward: Take) -> Take:
    assert isinstance(step, Filter | MapValues)
    function, isFilter = step.function, isinstance(step, Filter)

    def take(key: Any, value: Any, hadValue: bool, timestamp: int) -> None:
        if value is not None:
            if not isFilter:
                value = function(value)
            elif not function(key, value):
                value = None
        if value is not None or hadValue:
            forward(key, value, hadValue, timestamp)

    return take


def _streamFunction(step: PlanStep, forward: Take) -> Take:
    assert isinstance(step, Filter | Map | MapValues | FlatMap | FlatMapValues | SelectKey | Peek)
    function = step.function

    def filtered(key: Any, message: Any, timestamp: int) -> None:
        if function(key, message):
            forward(key, message, timestamp)

    def mapped(key: Any, message: Any, timestamp: int) -> None:
        key, message = function(key, message)
        forward(key, message, timestamp)

    def mappedValues(key: Any, message: Any, timestamp: int) -> None:
        forward(key, function(message), timestamp)

    def flatMapped(key: Any, message: Any, timestamp: int) -> None:
        for newKey, newMessage in function(key, message):
            forward(newKey, newMessage, timestamp)

    def flatMappedValues(key: Any, message: Any, timestamp: int) -> None:
        for each in function(message):
            forward(key, each, timestamp)

    def withKey(key: Any, message: Any, timestamp: int) -> None:
        forward(function(key, message), message, timestamp)

    def peeked(key: Any, message: Any, timestamp: int) -> None:
        function(key, message)
        forward(key, message, timestamp)

    return {
        Filter: filtered,
        Map: mapped,
        MapValues: mappedValues,
        FlatMap: flatMapped,
        FlatMapValues: flatMappedValues,
        SelectKey: withKey,
        Peek: peeked,
    }[type(step)]
