"""
Processes of containers: started, started again when they die, ended in order. A module of its own,
since any program may supervise containers so.

What must be true, beside what L{pylogbroker.programs.processes.supervisor} states:

  - One that has failed as each other container would, since a message cannot be handled or a
  setting is wrong, is not started again: then all are ended, and the supervisor fails.
  - A container that has died more than L{RESTART_COUNT_MAX} times within L{RESTART_SECONDS} is
  given up, with the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pylogbroker.programs.processes.supervisor import (
    ProcessCommand,
    ProcessDiedError,
    ProcessSupervisor,
    RestartPolicy,
)
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.retry import RetryDelays

REPORT_FD = 3
"""The descriptor to which a process writes L{ContainerReport}s."""

RESTART_COUNT_MAX = 5
RESTART_SECONDS = 60

RESTART_DELAYS = RetryDelays(500, 10_000)
"""Between the end of a process and the start of the next one."""

STOP_SECONDS_MAX = 60
"""How long a process may take to end in order; then it is killed."""


class ContainerDiedError(ProcessDiedError):
    """A container cannot run, or has died too often. The text says which."""


class ContainerSupervisor(ProcessSupervisor):
    """Runs containers, each in a process; the module states its promises."""

    noun = "container"
    errorKind = ContainerDiedError
    reportFd = REPORT_FD

    def __init__(
        self,
        reactor: Any,
        commands: Mapping[str, Sequence[str]],
        write: Callable[[int, bytes], Awaitable[None]],
        say: Callable[[str], object],
        random: Callable[[], float],
    ) -> None:
        """
        @param commands: for each container, by its name, the program and its arguments. It writes
            reports to L{REPORT_FD}.
        @param write: called with 1 or 2, standard output or error, and whole lines.
        @param say: called with a sentence for people.
        @param random: numbers from 0 up to, not including, 1.
        """
        super().__init__(
            reactor,
            {name: ProcessCommand(words) for name, words in commands.items()},
            write,
            say,
            random,
            RestartPolicy(RESTART_DELAYS, RESTART_COUNT_MAX, RESTART_SECONDS, STOP_SECONDS_MAX),
        )
        # For each: the last report of the present process, and what its earlier ones have done.
        self._reports = dict.fromkeys(commands, ContainerReport())
        self._before = dict.fromkeys(commands, ContainerReport())

    def reports(self) -> list[ContainerReport]:
        """What the containers do, and what their processes have done that have ended."""
        return [
            report for name in self._reports for report in (self._before[name], self._reports[name])
        ]

    def reported(self, name: str, line: bytes) -> bool | None:
        """See L{ProcessSupervisor.reported}."""
        try:
            report = ContainerReport.decode(line)
        except ValueError:  # the author's code has written to our descriptor
            return None
        self._reports[name] = report
        return report.isFinal

    def ended(self, name: str) -> None:
        """See L{ProcessSupervisor.ended}."""
        before, report = self._before[name], self._reports[name]
        self._before[name] = ContainerReport(
            handledCount=before.handledCount + report.handledCount,
            failedCount=before.failedCount + report.failedCount,
        )
        self._reports[name] = ContainerReport()
