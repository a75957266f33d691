"""
A container of a job that counts words, as a process that a trial kills and starts again::

    python -m tests.integration.taskmember JSON

C{JSON} has the container's C{properties}, its C{id}, and C{handled}, a file to which it appends
what its tasks get, 12 bytes a message, before they handle it.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.python.log import startLogging

from pylogbroker.tasks.api import (
    Config,
    IncomingMessageEnvelope,
    MessageCollector,
    StreamTask,
    TaskContext,
    TaskCoordinator,
)
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import Input, Job, Store
from pylogbroker.tasks.serdes import INTEGER, STRING

JOB, INPUT, STORE, CHANGELOG = "count-words", "words", "word-counts", "word-counts"
HANDLED = struct.Struct(">iq")  # partition, offset

HANDLE_SECONDS = 0.001
"""What a message takes, so that there is something to kill."""


class SlowCount(StreamTask):
    """Counts words, slowly."""

    def init(self, config: Config, context: TaskContext) -> None:
        self.store = context.getStore(STORE)
        self.file = os.open(config["handled"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        os.write(self.file, HANDLED.pack(envelope.partition, envelope.offset))
        time.sleep(HANDLE_SECONDS)
        word = envelope.getKey()
        self.store.put(word, (self.store.get(word) or 0) + envelope.getMessage())

    def close(self) -> None:
        os.close(self.file)


def countingJob(handled: str) -> Job:
    """@param handled: the path of the file."""
    return Job(
        JOB,
        SlowCount,
        [Input(INPUT, STRING, INTEGER)],
        stores=[Store(STORE, STRING, INTEGER, CHANGELOG)],
        config={"handled": handled},
    )


async def main(reactor: Any, given: dict[str, Any]) -> None:
    """Until SIGTERM, which stops the reactor, or, with C{isUntilEnd}, until all is handled."""
    container = TaskContainer(
        reactor,
        countingJob(given["handled"]),
        given["properties"],
        containerId=given["id"],
        isUntilEnd=given.get("isUntilEnd", False),
    )
    await container.run()


if __name__ == "__main__":
    startLogging(sys.stderr, setStdout=False)
    settings = json.loads(sys.argv[1])
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, settings)))
