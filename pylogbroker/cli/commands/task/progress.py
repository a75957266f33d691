"""
How containers of tasks are getting on, for people: on a terminal a line that changes each second,
elsewhere a line now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.internet.task import LoopingCall

from pylogbroker.cli.output import StatusLine
from pylogbroker.cli.streams import Streams
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.types import formatCount

SECONDS = 1
RARE_SECONDS = 60
"""Between two lines where there is no terminal."""


class TaskProgress:
    """Shows reports of containers."""

    def __init__(self, streams: Streams, reports: Callable[[], Iterable[ContainerReport]]) -> None:
        """@param reports: of all containers."""
        self._streams = streams
        self._reports = reports
        self._line = StatusLine(streams.errors)
        self._said = ""
        self._handledCount = 0
        self._atSeconds = streams.reactor.seconds()
        self._ticking: Any = LoopingCall(self._tick)
        self._ticking.clock = streams.reactor
        self._ticking.start(SECONDS if self._line.isTerminal else RARE_SECONDS, now=False)

    def _tick(self) -> None:
        reports = list(self._reports())
        handledCount = sum(each.handledCount for each in reports)
        now = self._streams.reactor.seconds()
        rate = max(handledCount - self._handledCount, 0) / max(now - self._atSeconds, 0.001)
        self._handledCount, self._atSeconds = handledCount, now
        text = _described(reports)
        if self._line.isTerminal:
            self._line.show(f"{text}, {rate:,.0f} messages/s")
        elif text != self._said:
            self._said = text
            self._streams.say(text)

    def clear(self) -> None:
        """Make room for another line."""
        self._line.clear()

    def stop(self) -> None:
        """Say what was done, and show nothing more."""
        if self._ticking.running:
            self._ticking.stop()
        self._line.clear()
        self._streams.say(_described(list(self._reports())))


def _described(reports: Sequence[ContainerReport]) -> str:
    """What containers have done, and which stores they restore."""
    taskCount = sum(each.taskCount for each in reports)
    handledCount = sum(each.handledCount for each in reports)
    failedCount = sum(each.failedCount for each in reports)
    restoringCount = sum(each.restoringCount for each in reports)
    text = f"{formatCount(handledCount, 'message')} handled"
    standbyCount = sum(each.standbyCount for each in reports)
    standbyLag = sum(each.standbyLag for each in reports)
    if standbyCount:
        text = f"{formatCount(standbyCount, 'stand-by')} ({standbyLag:,} changes behind), {text}"
    if taskCount:
        text = f"{formatCount(taskCount, 'task')}, {text}"
    if failedCount:
        text += f", {failedCount:,} left out"
    if restoringCount:
        shown = "; ".join(line for each in reports for line in each.restoring)
        text += f", restoring {formatCount(restoringCount, 'store')} ({shown})"
    return text
