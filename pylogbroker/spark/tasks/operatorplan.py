"""
Which high-level jobs run as Spark's own operators. A module of its own, since it needs no Spark.

Steps without state are functions over the rows of our source. A count is Spark's C{groupBy}, by
task and key, with a shuffle in the place of a repartition topic; what comes of it is a function
over the counts that a micro-batch has changed. All other steps have state that Spark's operators do
not have, or have it in another way. A job with such a step runs by its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.job import STOP, Job
from pylogbroker.tasks.streams.steps import (
    COUNT,
    Aggregation,
    JoinStep,
    PlanStep,
    RepartitionStep,
    Sink,
    TableAggregation,
    TableGroup,
    TableSource,
    WindowedAggregation,
    WindowJoin,
    originsOf,
)

OPERATORS = "spark.pylogbroker.task.operators"
"""A setting: whether jobs run as Spark's operators that can: C{true}, the default, or C{false}."""

_TABLE = "a table is read to its end before streams, and Spark has no operator for that"
_WINDOW = "Spark closes windows by one watermark for all tasks, and no changelog hears of it"
_WINDOW_JOIN = "Spark's join forgets messages by one watermark for all tasks, and has no changelog"
_TABLE_JOIN = "Spark has no operator that joins tables while they change"
_FUNCTION = "Spark's aggregations call no function for each message"
_GROUP = "Spark has no operator for groups of a table, whose changes take away from one"
_SECOND = "it comes of another count, and Spark has one aggregation in such a query"
_MIXED = "it merges what comes of a count with other messages"
_BESIDE = "it does not come of a count, and a query that counts gives only counts"
_ORIGINS = "its messages come by a repartition, and without one"
_ON_ERROR = "a message is left out together with its count, which Spark cannot take back"


def areOperatorsWanted(settings: Mapping[str, str]) -> bool:
    """
    @param settings: of Spark, those that were given.
    @raise ConfigurationError: L{OPERATORS} is neither C{true} nor C{false}.
    """
    given = settings.get(OPERATORS, "true")
    if given not in ("true", "false"):
        raise ConfigurationError(f"{OPERATORS}={given}: it must be true or false")
    return given == "true"


class OperatorPlan(NamedTuple):
    """
    The steps of a job in Spark's operators.

    @ivar before: those that each message of a topic can reach, and the counts where they end.
    @ivar counts: the counts.
    @ivar behind: the counts, and what comes of them.
    """

    before: tuple[PlanStep, ...]
    counts: tuple[Aggregation, ...]
    behind: tuple[PlanStep, ...]


def operatorPlan(steps: Sequence[PlanStep]) -> OperatorPlan:
    """The plan of steps that have no obstacle."""
    counts = tuple(each for each in steps if isinstance(each, Aggregation))
    results = _resultsOf(steps)
    return OperatorPlan(
        tuple(each for each in steps if each.number not in results),
        counts,
        tuple(each for each in steps if each.number in results or each in counts),
    )


def withoutRepartitions(job: Job) -> Job:
    """The job for which topics are prepared: Spark's shuffle needs no repartition topics."""
    names = {each.name for each in job.repartitions}
    groups = ([name for name in group if name not in names] for group in job.copartitions)
    return replace(job, repartitions=(), copartitions=[each for each in groups if len(each) > 1])


def obstaclesOf(job: Job, areWanted: bool = True) -> list[str]:
    """
    Why the steps of a job are not Spark's operators.

    @param areWanted: as L{areOperatorsWanted} has it.
    @return: a sentence for each step that cannot be one; empty: they are.
    """
    if not areWanted:
        return [f"{OPERATORS}=false"]
    if not job.steps:
        return ["it has no steps, as jobs of the low-level API"]
    results = _resultsOf(job.steps)
    hasCount = any(isinstance(each, Aggregation) for each in job.steps)
    found = []
    for step in job.steps:
        reason = _obstacleOf(step, results, hasCount)
        if reason:
            found.append(f"step {step.name}: {reason}")
    if hasCount and job.onError != STOP:
        found.append(f"onError={job.onError}: {_ON_ERROR}")
    return found


def _resultsOf(steps: Sequence[PlanStep]) -> set[int]:
    """The numbers of steps that come behind an aggregation."""
    found: set[int] = set()
    for step in steps:
        if any(each.number in found or isinstance(each, Aggregation) for each in step.parents):
            found.add(step.number)
    return found


def _obstacleOf(step: PlanStep, results: set[int], hasCount: bool) -> str:
    isResult = step.number in results
    if isinstance(step, TableSource):
        return _TABLE
    if isinstance(step, WindowJoin):
        return _WINDOW_JOIN
    if isinstance(step, JoinStep):
        return _TABLE_JOIN
    if isinstance(step, WindowedAggregation):
        return _WINDOW
    if isinstance(step, TableGroup | TableAggregation):
        return _GROUP
    if isinstance(step, Aggregation):
        if step.operation != COUNT:
            return _FUNCTION
        if isResult:
            return _SECOND
        origins = {isinstance(each, RepartitionStep) for each in originsOf(step.parents[0])}
        return _ORIGINS if len(origins) > 1 else ""
    if isResult:
        isAll = all(
            each.number in results or isinstance(each, Aggregation) for each in step.parents
        )
        return "" if isAll else _MIXED
    return _BESIDE if hasCount and isinstance(step, Sink) else ""
