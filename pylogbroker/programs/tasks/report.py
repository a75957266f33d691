"""
What a container says of itself each second, as a line of JSON from its process to the one that
supervises it, and to people.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Self

from pylogbroker.tasks.container import TaskContainer

RESTORING_COUNT_MAX = 3
"""Stores that are named of those that are being restored."""


class ContainerReport(NamedTuple):
    """
    @ivar taskCount: tasks that it has.
    @ivar handledCount: messages, of all tasks that it has had.
    @ivar failedCount: messages of these that were left out.
    @ivar restoringCount: stores that are being restored.
    @ivar restoring: how far the first of them are, for people.
    @ivar isFinal: whether it has failed as each other container would.
    @ivar standbyCount: tasks that it follows.
    @ivar standbyLag: changes that these lack.
    """

    taskCount: int = 0
    handledCount: int = 0
    failedCount: int = 0
    restoringCount: int = 0
    restoring: tuple[str, ...] = ()
    isFinal: bool = False
    standbyCount: int = 0
    standbyLag: int = 0

    @classmethod
    def of(cls, container: TaskContainer) -> Self:
        """What a container is doing."""
        restoring = container.restoring()
        standbys = container.standbys()
        return cls(
            len(container.status()),
            container.handledCount,
            container.failedCount,
            len(restoring),
            tuple(restoring[:RESTORING_COUNT_MAX]),
            standbyCount=len(standbys),
            standbyLag=sum(each.lag or 0 for each in standbys),
        )

    def encode(self) -> bytes:
        """A line, with its end."""
        return json.dumps(self).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """@raise ValueError: it is none."""
        try:
            tasks, handled, failed, count, restoring, isFinal, standbys, lag = json.loads(line)
            texts = tuple(map(str, restoring))
            counts = int(tasks), int(handled), int(failed), int(count)
            return cls(*counts, texts, bool(isFinal), int(standbys), int(lag))
        except TypeError as error:
            raise ValueError(f"no report of a container: {error}") from error
