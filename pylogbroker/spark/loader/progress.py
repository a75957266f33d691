"""
How far Spark is, while it works: a thread that looks every half second and tells somebody.

Spark tells nobody by itself what a job has read; its own books of running stages do. Where there are none (Spark Connect), nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

LOOK_SECONDS = 0.5
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"


class StageProgress(NamedTuple):
    """
    What is going on.

    @ivar stage: what is being done, for people.
    @ivar taskCount: of the stage.
    @ivar doneCount: tasks that are done.
    @ivar rowCount: rows so far; Spark hears of them when a task ends, and every few seconds.
    @ivar size: bytes so far.
    """

    stage: str
    taskCount: int
    doneCount: int
    rowCount: int
    size: int


Report = Callable[[StageProgress], None]


@contextmanager
def watched(spark: SparkSession, runId: str, stage: str, report: Report | None) -> Iterator[None]:
    """
    Report on what this thread lets Spark do.

    @param runId: names the group of jobs.
    @param stage: what they do, for people.
    @param report: is called on another thread; L{None}: nothing is watched. What it raises ends the watching, and nothing else.
    """
    context = getattr(spark, "_sc", None)
    if report is None or context is None:
        yield
        return
    before = context.getLocalProperty(_GROUP), context.getLocalProperty(_DESCRIPTION)
    context.setJobGroup(f"{runId} {stage}", f"pylogbroker load: {stage}")
    over = Event()
    thread = Thread(
        target=_watch,
        args=(context, f"{runId} {stage}", stage, report, over),
        name="pylogbroker-load",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for name, value in zip((_GROUP, _DESCRIPTION), before, strict=True):
            context.setLocalProperty(name, value)


def _watch(context: Any, group: str, stage: str, report: Report, over: Event) -> None:
    tracker = context.statusTracker()
    while not over.wait(LOOK_SECONDS):
        active = set(tracker.getActiveStageIds())
        jobs = sorted(tracker.getJobIdsForGroup(group))[-JOB_COUNT_MAX:] if active else []
        running = [
            number
            for job in jobs
            for number in getattr(tracker.getJobInfo(job), "stageIds", ())
            if number in active
        ]
        for number in running[-1:]:
            info = tracker.getStageInfo(number)
            written = _written(context, number)
            if info is not None and written is not None:
                report(StageProgress(stage, info.numTasks, info.numCompletedTasks, *written))


def _written(context: Any, number: int) -> tuple[int, int] | None:
    """Rows and bytes that a stage has put out: to a shuffle, or to files. L{None}: Spark does not know it any more."""
    try:
        found = context._jsc.sc().statusStore().lastStageAttempt(number)
    except Py4JError:
        return None
    return max(found.shuffleWriteRecords(), found.outputRecords()), max(
        found.shuffleWriteBytes(), found.outputBytes()
    )


JOB_COUNT_MAX = 20
"""Of the latest jobs of a run that are asked for their stages: with hundreds, which Spark remembers, the answer would be about stages that are over."""
