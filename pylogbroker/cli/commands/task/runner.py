"""
C{task run}: containers of jobs, in this process or each in one of its own. With C{--containers} it
starts itself once for each container, with the hidden option C{--report-to}.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from random import SystemRandom
from traceback import format_exception
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.task import LoopingCall, deferLater
from twisted.python.failure import Failure

from pylogbroker.cli.commands.load import DEFAULT_MASTER
from pylogbroker.cli.commands.task.progress import TaskProgress
from pylogbroker.cli.streams import Streams
from pylogbroker.config.properties import Properties
from pylogbroker.config.securitysettings import ToolSettings
from pylogbroker.errors import ConfigurationError, TaskFailedError
from pylogbroker.net.deferreds import asDeferred, gatherSettled, untilEnded
from pylogbroker.programs.tasks.jobchoice import chosenJobs, containerSettings
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.programs.tasks.supervisor import REPORT_FD, ContainerSupervisor
from pylogbroker.tasks.container import TaskContainer

CONTAINERS, SPARK = ENGINES = ("containers", "spark")

SECRETS = tuple(key.key for key in ToolSettings.keys)
"""Keys that a property file has, and the options of a query do not."""

FINAL = (TaskFailedError, ConfigurationError)
"""Failures that a new start would repeat."""

REPORT_SECONDS = 1


def prepareRun(options: Namespace, streams: Streams) -> None:
    """
    Read the files.

    @raise ConfigurationError: one cannot be used, or a setting is wrong.
    """
    _checkEngine(options)
    if options.reportTo is not None:
        os.setsid()  # Ctrl-C reaches the supervisor alone, which ends this process in order
        os.set_blocking(options.reportTo, False)
    changes = list(options.changes)
    if options.bootstrapServer is not None:
        changes.append(f"bootstrap.servers={options.bootstrapServer}")
    if options.stateDir is not None:
        changes.append(f"state.dir={options.stateDir}")
    try:
        options.taskSettings = containerSettings(options.propertyFile, changes, streams.warn)
        options.jobs = chosenJobs(options.file, options.job, options.newName)
    except ConfigurationError:
        if options.reportTo is not None:
            _report(options.reportTo, ContainerReport(isFinal=True))
        raise


def _checkEngine(options: Namespace) -> None:
    if options.engine == SPARK:
        reason = "has no meaning with --engine spark: Spark shares tasks among its executors"
        if options.containers != 1:
            options.parser.error(f"--containers {reason}")
        if options.containerId:
            options.parser.error(f"--container-id {reason}")
        given = Properties().withOverrides(options.changes)
        for key in SECRETS:
            if key in given:
                options.parser.error(
                    f"--set {key}: with --engine spark it belongs in the file of --config, since"
                    " Spark's options travel to the workers"
                )
    elif options.settings or options.master != DEFAULT_MASTER:
        options.parser.error("--master and --conf are for --engine spark")


async def run(options: Namespace, streams: Streams) -> int:
    """Run containers until a signal ends them, or they end by themselves."""
    await deferLater(streams.reactor, 0)  # from here on signals are caught
    if options.reportTo is None:
        names = ", ".join(job.name for job in options.jobs)
        streams.say(f"runs job {names}, with its stores in {options.taskSettings.stateDir}")
    if options.containers > 1:
        return await _supervise(options, streams)
    running = RunningContainers(
        [
            TaskContainer(
                streams.reactor,
                job,
                options.taskSettings,
                containerId=options.containerId,
                isUntilEnd=not options.follow,
            )
            for job in options.jobs
        ]
    )
    shown: _Reports | TaskProgress
    if options.reportTo is not None:
        shown = _Reports(options.reportTo, running, streams)
    else:
        shown = TaskProgress(streams, lambda: [running.report()])
    try:
        await untilEnded(running.run(), running.stop)
    except CancelledError:
        if options.reportTo is None:
            raise  # it decides the exit code
    except FINAL as error:
        running.isFinal = True
        if error.__cause__ is not None and isinstance(error, TaskFailedError):
            streams.say("".join(format_exception(error.__cause__)).rstrip())
        raise
    finally:
        shown.stop()
    return 0


class RunningContainers:
    """
    Containers of this process: the first failure ends all of them.

    @ivar isFinal: see L{ContainerReport}; set by the caller.
    """

    def __init__(self, containers: list[TaskContainer]) -> None:
        self.isFinal = False
        self._containers = containers
        self._failure: Failure | None = None

    @asDeferred
    async def run(self) -> None:
        """
        Run them all; once.

        @return: fires with L{None} when all are closed. Fails likewise, as the first has failed.
        """
        await gatherSettled([each.run().addErrback(self._failed) for each in self._containers])
        if self._failure is not None:
            self._failure.raiseException()

    def _failed(self, failure: Failure) -> None:
        if self._failure is None:
            self._failure = failure
        self.stop()

    def stop(self) -> None:
        """End all in order; C{run} tells when that is done."""
        for each in self._containers:
            each.stop()

    def report(self) -> ContainerReport:
        """All of them as one."""
        reports = [ContainerReport.of(each) for each in self._containers]
        return ContainerReport(
            sum(each.taskCount for each in reports),
            sum(each.handledCount for each in reports),
            sum(each.failedCount for each in reports),
            sum(each.restoringCount for each in reports),
            tuple(text for each in reports for text in each.restoring),
            self.isFinal,
            sum(each.standbyCount for each in reports),
            sum(each.standbyLag for each in reports),
        )


# -- with a supervisor


class _Reports:
    """Reports each second. When the supervisor is gone, this process ends in order."""

    def __init__(self, descriptor: int, running: RunningContainers, streams: Streams) -> None:
        self._descriptor = descriptor
        self._running = running
        self._ticking: Any = LoopingCall(self._tick)
        self._ticking.clock = streams.reactor
        self._ticking.start(REPORT_SECONDS, now=False)

    def _tick(self) -> None:
        if not _report(self._descriptor, self._running.report()):
            self._end()
            signal.raise_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Report a last time."""
        self._end()
        _report(self._descriptor, self._running.report())

    def _end(self) -> None:
        if self._ticking.running:
            self._ticking.stop()


def _report(descriptor: int, report: ContainerReport) -> bool:
    """@return: whether there is a supervisor."""
    try:
        os.write(descriptor, report.encode())
    except BlockingIOError:
        pass  # it does not read at present
    except OSError:
        return False
    return True


async def _supervise(options: Namespace, streams: Streams) -> int:
    async def write(fd: int, lines: bytes) -> None:
        progress.clear()
        if fd == 1:
            await streams.write(lines)
        else:
            streams.say(lines.decode(errors="replace").removesuffix("\n"))

    def say(text: str) -> None:
        progress.clear()
        streams.warn(text)

    supervisor = ContainerSupervisor(
        streams.reactor, _commands(options), write, say, SystemRandom().random
    )
    progress = TaskProgress(streams, supervisor.reports)
    try:
        await untilEnded(supervisor.run(), supervisor.stop)
    finally:
        progress.stop()
    return 0


def _commands(options: Namespace) -> dict[str, list[str]]:
    """The program and its arguments for each container, by its name."""
    words = [sys.executable, "-m", "pylogbroker", "task", "run", options.file]
    for name, value in (
        ("--config", options.propertyFile),
        ("--bootstrap-server", options.bootstrapServer),
        ("--state-dir", options.stateDir),
        ("--as", options.newName),
    ):
        if value is not None:
            words += [name, value]
    for change in options.changes:
        words += ["--set", change]
    if not options.follow:
        words.append("--until-end")
    words += ["--report-to", str(REPORT_FD)]
    # Without one of ours, no container of another machine may have the same.
    containerId = options.containerId or f"{SystemRandom().getrandbits(48):012x}"
    found = {}
    for job in options.jobs:
        name = options.job if options.newName is not None else job.name
        chosen = [] if name is None else ["--job", name]
        for number in range(1, options.containers + 1):
            own = [*chosen, "--container-id", f"{containerId}-{number}"]
            found[f"{job.name}/{number}"] = [*words, *own]
    return found
