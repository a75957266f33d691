"""
Makes a job of steps: names them, puts repartitions where keys have changed, and finds out inputs,
outputs and stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.job import ROCKSDB, STOP, Input, Job, Output, Repartition, Store
from pylogbroker.tasks.serdes import BYTES, STRING, Serde
from pylogbroker.tasks.streams.fluent import KSink, KStream, KTable
from pylogbroker.tasks.streams.plantask import PlanTask
from pylogbroker.tasks.streams.steps import (
    JoinStep,
    PlanStep,
    RepartitionStep,
    Sink,
    StreamSource,
    TableGroup,
    TableSource,
    WindowedAggregation,
    WindowJoin,
    ancestorsOf,
    originsOf,
)
from pylogbroker.tasks.streams.stores import (
    STREAM_TIMES,
    OptionalPairSerde,
    SessionStoreSerde,
    StreamTimeSerde,
    TimestampedSerde,
    WindowStoreSerde,
)
from pylogbroker.tasks.streams.windows import HoppingWindow


def buildJob(
    name: str,
    *results: KSink | KStream | KTable,
    config: Mapping[str, str] | None = None,
    onError: str = STOP,
    deadLetterTopic: str = "",
    engine: str = ROCKSDB,
) -> Job:
    """
    A job of all steps from which the results come.

    @param results: what C{to} gave; and streams and tables that are wanted for what their steps do,
        such as a table for its store.
    @param engine: of all stores.
    @return: the job; C{steps} has its steps.
    @raise ConfigurationError: two steps have one name; a serde is needed, and not known; a topic is
        read or written in two ways; and what L{Job} refuses.
    """
    if not results:
        raise ConfigurationError(f"job {name}: it has no result, such as what to(topic) gives")
    steps = _Resolution(name, ancestorsOf(each.step for each in results)).steps
    return Job(
        name,
        task=partial(PlanTask, steps),
        inputs=_inputsOf(name, steps),
        outputs=_outputsOf(name, steps),
        stores=[
            *(store for step in steps for store in _storesOf(step, engine)),
            *_streamTimesOf(steps, engine),
        ],
        repartitions=[
            Repartition(step.channel, step.key or BYTES, step.message or BYTES)
            for step in steps
            if isinstance(step, RepartitionStep)
        ],
        copartitions=_copartitionsOf(steps),
        config=config or {},
        onError=onError,
        deadLetterTopic=deadLetterTopic,
        steps=steps,
    )


class _Resolution:
    """
    The steps of a job with their names, and with repartitions.

    @ivar steps: each behind its parents.
    """

    def __init__(self, job: str, given: Iterable[PlanStep]) -> None:
        self.steps: list[PlanStep] = []
        self._job = job
        self._repartitions: dict[int, PlanStep] = {}  # by the number of what they repartition
        given = list(given)
        self._names: set[str] = set()
        for step in given:
            if step.name:
                if step.name in self._names:
                    raise ConfigurationError(f"job {job}: two steps are named {step.name}")
                self._names.add(step.name)
        found: dict[int, PlanStep] = {}
        for step in given:
            parents = tuple(found[each.number] for each in step.parents)
            if step.isKeyed:
                parents = tuple(self._repartitioned(each) for each in parents)
            found[step.number] = self._add(replace(step, parents=parents))

    def _add(self, step: PlanStep) -> PlanStep:
        if not step.name:
            kind = step.topic if isinstance(step, StreamSource) else step.kindName
            step = replace(step, name=self._newName(kind))
        if isinstance(step, RepartitionStep) and not step.channel:
            step = replace(step, channel=step.name)
        step = replace(step, number=len(self.steps))
        if step.isKeyed:
            for parent in step.parents:
                _check(self._job, step, "keys", parent.key, "key")
        if isinstance(step, JoinStep):
            left, right = (each.key and each.key.name for each in step.parents)
            if left != right:
                raise ConfigurationError(
                    f"job {self._job}, step {step.name}: it joins keys of {left} with keys of"
                    f" {right}, whose bytes differ"
                )
        if isinstance(step, WindowJoin):
            for parent in step.parents:
                _check(self._job, step, "messages", parent.message, "message")
        elif step.stores:
            _check(self._job, step, "values", step.message, "message")
        if isinstance(step, TableGroup):
            for each in (step, *step.parents):
                _check(self._job, step, "keys", each.key, "key")
        if isinstance(step, RepartitionStep | Sink):
            _check(self._job, step, "keys", step.key, "key")
            _check(self._job, step, "messages", step.message, "message")
        self.steps.append(step)
        return step

    def _newName(self, kind: str) -> str:
        name, number = kind, 1
        while name in self._names:
            number += 1
            name = f"{kind}-{number}"
        self._names.add(name)
        return name

    def _repartitioned(self, step: PlanStep) -> PlanStep:
        if step.isTable or not step.changesKey:
            return step
        found = self._repartitions.get(step.number)
        if found is None:
            found = self._repartitions[step.number] = self._add(
                RepartitionStep(
                    parents=(step,),
                    key=step.key,
                    message=step.message,
                    name=self._newName(f"{step.name}-repartition"),
                    channel=step.name,
                )
            )
        return found


def _check(job: str, step: PlanStep, what: str, serde: Serde | None, parameter: str) -> None:
    if serde is None:
        raise ConfigurationError(
            f"job {job}, step {step.name}: the serde of its {what} is not known: give {parameter}="
            " to the step that makes them"
        )


def _inputsOf(job: str, steps: Iterable[PlanStep]) -> list[Input]:
    found: dict[str, Input] = {}
    for step in steps:
        if isinstance(step, StreamSource):
            isTable = isinstance(step, TableSource)
            new = Input(step.topic, step.key or BYTES, step.message or BYTES, isBootstrap=isTable)
            if found.setdefault(step.topic, new) != new:
                raise ConfigurationError(
                    f"job {job}, step {step.name}: topic {step.topic} is read in two ways: as a"
                    " stream and a table, or with other serdes"
                )
    return list(found.values())


def _outputsOf(job: str, steps: Iterable[PlanStep]) -> list[Output]:
    found: dict[str, Output] = {}

    def add(step: PlanStep, new: Output) -> None:
        if found.setdefault(new.topic, new) != new:
            raise ConfigurationError(
                f"job {job}, step {step.name}: topic {new.topic} is written with other serdes"
            )

    for step in steps:
        if isinstance(step, Sink):
            add(step, Output(step.topic, step.key or BYTES, step.message or BYTES))
        elif isinstance(step, WindowedAggregation) and step.lateTopic:
            (parent,) = step.parents
            _check(job, step, "late messages", parent.message, "message")
            add(step, Output(step.lateTopic, parent.key or BYTES, parent.message or BYTES))
    return list(found.values())


def _storesOf(step: PlanStep, engine: str) -> list[Store]:
    if isinstance(step, WindowJoin):
        return [Store(name, BYTES, BYTES, engine=engine) for name in step.stores]
    if not step.stores:
        return []
    if isinstance(step, TableGroup):
        (table,) = step.parents
        assert isinstance(step.message, OptionalPairSerde)
        rows = OptionalPairSerde(step.key or BYTES, step.message.second)
        return [Store(step.name, table.key or BYTES, rows, engine=engine)]
    key: Serde = step.key or BYTES
    if isinstance(step, WindowedAggregation):
        inner = step.parents[0].key or BYTES
        key = (
            WindowStoreSerde(inner, step.window.sizeMs)
            if isinstance(step.window, HoppingWindow)
            else SessionStoreSerde(inner)
        )
    value = TimestampedSerde(step.message or BYTES)
    return [Store(name, key, value, engine=engine) for name in step.stores]


def _streamTimesOf(steps: Iterable[PlanStep], engine: str) -> list[Store]:
    if any(step.isTimed for step in steps):
        return [Store(STREAM_TIMES, STRING, StreamTimeSerde(), engine=engine)]
    return []


def _copartitionsOf(steps: Iterable[PlanStep]) -> list[list[str]]:
    groups: list[list[str]] = []
    for step in steps:
        if not step.isKeyed:
            continue
        names = {
            origin.channel if isinstance(origin, RepartitionStep) else origin.topic: None
            for parent in step.parents
            for origin in originsOf(parent)
            if isinstance(origin, RepartitionStep | StreamSource)
        }
        # Two groups that share a topic are one.
        for group in [each for each in groups if not names.keys().isdisjoint(each)]:
            groups.remove(group)
            names = dict.fromkeys([*group, *names])
        groups.append(list(names))
    return [each for each in groups if len(each) > 1]
