"""
Spark's jobs: their progress, and their errors in one line.

A thread reads Spark's status twice a second and calls a function with it. Stages and tasks come
from Spark's public C{StatusTracker}. It has no rows and bytes, and neither has any other public API
of PySpark; so L{stageOutput} reads them from the JVM's C{AppStatusStore}, through
C{SparkContext._jsc}. Nothing else in this package uses private attributes of Spark; a test checks
them against the Spark that is installed. Spark Connect has no context, so no progress there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pylogbroker.errors import LoadError

JAVA_VERSION_MIN = 17
POLL_SECONDS = 0.5
JOB_COUNT_MAX = 20
"""The latest jobs of a run whose stages are looked up; Spark remembers hundreds."""

_NO_JAVA_PROCESS = "JAVA_GATEWAY_EXITED"
"""PySpark's error if the Java process that it starts ends at once, for whatever reason."""

_OURS = re.compile(r"^(?:pylogbroker\.errors\.)(\w+): (.+)$", re.MULTILINE)
_TEXT_SIZE_MAX = 500


# -- errors


def reason(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """
    One line of what Spark says: the last error of ours that a worker has raised, else the first
    line that says anything.

    @param environment: of the program that starts Spark; names its Java runtime.
    """
    if _NO_JAVA_PROCESS in text:
        return _javaProblem(environment)
    found = _OURS.findall(text)
    if found:
        return f"{found[-1][1]} ({found[-1][0]})"
    lines = [
        line.strip(" \t:")
        for line in text.splitlines()
        if line.strip() and not line.startswith("An error occurred while calling")
    ]
    return (lines[0] if lines else "Spark gives no reason")[:_TEXT_SIZE_MAX]


def _javaProblem(environment: Mapping[str, str]) -> str:
    """
    Why there is no Java process. Spark takes the runtime of C{JAVA_HOME}, else the first in the
    path.
    """
    home = environment.get("JAVA_HOME")
    path = environment.get("PATH", os.defpath)
    java = shutil.which(f"{home}/bin/java" if home else "java", path=path)
    if java is None:
        where = f"JAVA_HOME={home} has none" if home else "there is none"
        return (
            f"it needs a Java runtime, and {where}: install one of version {JAVA_VERSION_MIN} or"
            " later (Debian: default-jre-headless)"
        )
    return f"its Java process has ended at once; is {java} of version {JAVA_VERSION_MIN} or later?"


@contextmanager
def translateErrors() -> Iterator[None]:
    """
    @raise LoadError: for every error of Spark's.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise LoadError(f"Spark failed, and nothing was committed: {reason(str(error))}") from error


# -- progress


class StageProgress(NamedTuple):
    """
    The state of a running stage.

    @ivar stage: a phrase for people.
    @ivar doneCount: tasks that have ended.
    @ivar rowCount: rows so far; Spark updates it when a task ends, and every few seconds.
    @ivar size: bytes so far.
    """

    stage: str
    taskCount: int
    doneCount: int
    rowCount: int
    size: int


ProgressCallback = Callable[[StageProgress], None]


@contextmanager
def reportProgress(
    spark: SparkSession, runId: str, stage: str, callback: ProgressCallback | None
) -> Iterator[None]:
    """
    Report the progress of the jobs that this thread starts.

    @param runId: names the group of jobs.
    @param stage: a phrase for people.
    @param callback: called on another thread; L{None}: no reports. An error that it raises ends the
        reports, and nothing else.
    """
    context = getattr(spark, "sparkContext", None)
    if callback is None or context is None:
        yield
        return
    names = ("spark.jobGroup.id", "spark.job.description")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup(f"{runId} {stage}", f"pylogbroker load: {stage}")
    over = Event()

    def poll() -> None:
        tracker = context.statusTracker()
        while not over.wait(POLL_SECONDS):
            active = set(tracker.getActiveStageIds())
            jobs = tracker.getJobIdsForGroup(f"{runId} {stage}") if active else []
            running = [
                number
                for job in sorted(jobs)[-JOB_COUNT_MAX:]
                for number in getattr(tracker.getJobInfo(job), "stageIds", ())
                if number in active
            ]
            for number in running[-1:]:
                info = tracker.getStageInfo(number)
                output = stageOutput(context, number)
                if info is not None and output is not None:
                    callback(StageProgress(stage, info.numTasks, info.numCompletedTasks, *output))

    thread = Thread(target=poll, name="pylogbroker-load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)


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
