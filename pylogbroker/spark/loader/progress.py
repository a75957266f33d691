"""
Progress of Spark jobs: a thread reads Spark's status twice a second and calls a function with it.

Stages and tasks come from Spark's public C{StatusTracker}. It has no rows and bytes, and neither has any other public API of PySpark; so L{stageOutput}
reads them from the JVM's C{AppStatusStore}, through C{SparkContext._jsc}. Nothing else in this package uses private attributes of Spark; a test holds
them against the Spark that is installed. Spark Connect has no context, and no progress is reported there.
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
    context = getattr(spark, "sparkContext", None)
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
            written = stageOutput(context, number)
            if info is not None and written is not None:
                report(StageProgress(stage, info.numTasks, info.numCompletedTasks, *written))


def stageOutput(context: Any, number: int) -> tuple[int, int] | None:
    """
    Rows and bytes that a stage has written so far, to a shuffle or to files.

    @param context: of Spark.
    @param number: of the stage.
    @return: L{None} if Spark does not remember the stage.
    """
    try:
        found = context._jsc.sc().statusStore().lastStageAttempt(number)
    except Py4JError:
        return None
    return max(found.shuffleWriteRecords(), found.outputRecords()), max(
        found.shuffleWriteBytes(), found.outputBytes()
    )


JOB_COUNT_MAX = 20
"""Of the latest jobs of a run that are asked for their stages: with hundreds, which Spark remembers, the answer would be about stages that are over."""
