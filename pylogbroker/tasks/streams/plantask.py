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
from pylogbroker.tasks.streams.aggregations import aggregation, windowedAggregation
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
    TableJoin,
    ToStream,
    WindowedAggregation,
    WindowJoin,
)
from pylogbroker.tasks.streams.stores import ValueAndTimestamp


class PlanTask(StreamTask):
    """Runs the steps of a job."""

    def __init__(self, steps: Sequence[PlanStep]) -> None:
        """@param steps: each behind its parents, with the repartitions that they need."""
        self._steps = steps

    def init(self, config: Config, context: TaskContext) -> None:
        """See L{StreamTask}."""
        self._around = around = Surroundings(context)
        getters: dict[int, Getter] = {}
        for step in self._steps:
            if step.isTable:
                getters[step.number] = _getterOf(step, around, getters)
        sources: dict[str, list[Take]] = {}
        behind: dict[int, list[Take]] = {step.number: [] for step in self._steps}
        for step in reversed(self._steps):
            forward = _toAll(behind[step.number])
            if isinstance(step, RepartitionStep):
                takes: tuple[Take, ...] = (_repartition(step, around),)
                sources.setdefault(step.channel, []).insert(0, forward)
            elif isinstance(step, StreamSource):
                takes = ()
                taking = (_table if step.isTable else _stream)(step, around, forward)
                sources.setdefault(step.topic, []).insert(0, taking)
            else:
                takes = _operatorOf(step, around, forward, getters)
            for parent, take in zip(step.parents, takes, strict=len(takes) > 1):
                behind[parent.number].insert(0, take)
        self._takes = {topic: _toAll(found) for topic, found in sources.items()}

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        """See L{StreamTask}."""
        around = self._around
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


def _getterOf(step: PlanStep, around: Surroundings, getters: dict[int, Getter]) -> Getter:
    """Of a table."""
    if step.stores:
        return around.storeOf(step).get
    given = [getters[each.number] for each in step.parents]
    if isinstance(step, TableJoin):
        return tableJoinGetter(step, *given)
    assert isinstance(step, Filter | MapValues)
    (get,), function = given, step.function
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


def _operatorOf(
    step: PlanStep, around: Surroundings, forward: Take, getters: dict[int, Getter]
) -> tuple[Take, ...]:
    if isinstance(step, WindowedAggregation):
        return windowedAggregation(step, around, forward)
    if isinstance(step, Aggregation):
        return aggregation(step, around, forward)
    if isinstance(step, WindowJoin):
        return windowJoin(step, around, forward)
    if isinstance(step, StreamTableJoin):
        return streamTableJoin(step, around, forward, getters[step.parents[1].number])
    if isinstance(step, TableJoin):
        return tableJoin(step, forward, *(getters[each.number] for each in step.parents))
    if isinstance(step, Merge):
        return (forward,) * len(step.parents)
    if isinstance(step, Sink):
        return (around.sender(step.topic),)
    if isinstance(step, ToStream):
        return (lambda key, value, hadValue, timestamp: forward(key, value, timestamp),)
    if step.isTable:
        return (_tableFunction(step, forward),)
    return (_streamFunction(step, forward),)


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
