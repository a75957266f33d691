"""
C{task run --engine spark}: jobs as queries of Structured Streaming, in one session.

The topics are prepared as a container does it. Then one thread makes the session, starts the
queries and waits for them. PySpark comes with the extra C{spark}, so neither it nor a module that
needs it is imported before.
"""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from twisted.internet.task import deferLater

from pylogbroker.cli import CommandError
from pylogbroker.cli.commands.load import session
from pylogbroker.cli.commands.task.progress import TaskProgress
from pylogbroker.cli.streams import Streams
from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.deferreds import untilEnded
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.spark.tasks.operatorplan import (
    areOperatorsWanted,
    obstaclesOf,
    withoutRepartitions,
)
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.topics import missingInputs, prepareTopics

if TYPE_CHECKING:
    from pylogbroker.spark.tasks.jobquery import JobPlace, JobQuery

MODULES = ("pyspark", "google.protobuf", "pyarrow", "pandas")
"""What the extra C{spark} installs, and the engine needs."""

RETRY_SECONDS = 1
"""Between two looks for inputs that are missing."""


def checkInstalled() -> None:
    """
    @raise CommandError: the extra C{spark} is not installed.
    """
    for name in MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # the package that a module is in
            found = None
        if found is None:
            raise CommandError(
                f"--engine spark needs the extra spark, pip install 'pylogbroker[spark]': there is"
                f" no module {name}"
            )


async def runOnSpark(options: Namespace, streams: Streams) -> int:
    """Run queries until a signal ends them, or they end by themselves."""
    checkInstalled()
    from pylogbroker.spark.tasks.jobquery import checkJob, jobPlace

    for job in options.jobs:
        checkJob(job)
    areWanted = areOperatorsWanted(dict(options.settings))
    place = jobPlace(options.taskSettings, options.propertyFile, streams.warn)
    await deferLater(streams.reactor, 0)  # from here on signals are caught
    admin = AdminClient(streams.reactor, options.taskSettings.forAdmin(streams.warn))
    try:
        taskCounts = [
            await _prepare(admin, job, areWanted, options, streams) for job in options.jobs
        ]
    finally:
        await admin.close()
    names = ", ".join(job.name for job in options.jobs)
    streams.say(f"runs job {names} on Spark, with its state in {options.taskSettings.stateDir}")
    for job in options.jobs:
        if job.steps:
            streams.say(_wayOf(job, areWanted))
    running = _RunningQueries(options, place, taskCounts, areWanted, streams)
    progress = TaskProgress(streams, lambda: [running.report])
    worker = ThreadPoolWorker(streams.reactor, "spark", 1)
    worker.start()
    try:
        await untilEnded(worker.submit(running.run), running.isStopped.set)
    finally:
        worker.stop()
        progress.stop()
    return 0


def _wayOf(job: Job, areWanted: bool) -> str:
    obstacles = obstaclesOf(job, areWanted)
    if not obstacles:
        return f"job {job.name}: its steps run as Spark's operators"
    return f"job {job.name}: its tasks run in Python: {'; '.join(obstacles)}"


async def _prepare(
    admin: AdminClient, job: Job, areWanted: bool, options: Namespace, streams: Streams
) -> int:
    """@return: how many tasks the job has."""
    if not obstaclesOf(job, areWanted):
        job = withoutRepartitions(job)
    isSaid = False
    while missing := await missingInputs(admin, job):
        text = f"job {job.name}: there is no topic {', '.join(missing)}"
        if not options.follow:
            raise ConfigurationError(text)
        if not isSaid:
            streams.warn(f"{text}: waits for it")
            isSaid = True
        await deferLater(streams.reactor, RETRY_SECONDS)
    return (await prepareTopics(admin, job, options.taskSettings.replicationFactor)).taskCount


class _RunningQueries:
    """
    The queries, on the thread of the session.

    @ivar report: what all have done so far.
    @ivar isStopped: set to end all.
    """

    def __init__(
        self,
        options: Namespace,
        place: JobPlace,
        taskCounts: list[int],
        areOperatorsWanted: bool,
        streams: Streams,
    ) -> None:
        self.report = ContainerReport(sum(taskCounts))
        self.isStopped = Event()
        self._options = options
        self._place = place
        self._streams = streams
        self._taskCounts = taskCounts
        self._areOperatorsWanted = areOperatorsWanted

    def run(self) -> None:
        """
        Run them until the end.

        @raise PylogbrokerError: a job cannot run on Spark, or its query has failed.
        """
        options = self._options
        with session(options, "pylogbroker task run") as spark:
            from pylogbroker.spark.tasks.jobquery import JobQuery, waitForAll

            queries = [
                JobQuery(spark, job, self._place, taskCount, self._areOperatorsWanted)
                for job, taskCount in zip(options.jobs, self._taskCounts, strict=True)
            ]
            for each in queries:
                each.start(isUntilEnd=not options.follow)
            waitForAll(
                queries,
                self.isStopped.is_set,
                lambda: self._show(queries),
                options.taskSettings.repartitionPurgeIntervalMs,
                self._streams.reactor.seconds,
                partial(self._streams.reactor.callFromThread, self._streams.warn),
            )

    def _show(self, queries: list[JobQuery]) -> None:
        done = [each.progress() for each in queries]
        self.report = ContainerReport(
            sum(self._taskCounts),
            sum(each.handledCount for each in done),
            sum(each.failedCount for each in done),
        )
