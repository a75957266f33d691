"""
What the processes of the chaos runs have in common (L{tests.integration.chaosmember},
L{tests.integration.kafkachaosmember}): each writes down what it sees in a file, line by line, at
once, so what a killed one has written stays. C{SIGTERM} ends it in order.

A line is a word, the time (ns of the monotonic clock, which all processes of a machine share), and
what belongs to the word.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic_ns
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import react
from twisted.logger import globalLogBeginner, textFileLogObserver


class Record:
    """A file of lines that survives its writer."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, word: str, *others: object) -> None:
        """One line, in the file when this returns."""
        os.write(
            self._descriptor,
            " ".join([word, str(monotonic_ns()), *map(str, others)]).encode() + b"\n",
        )


Program = Callable[
    [Any, dict[str, Any], Record, Deferred[None]], Coroutine[Deferred[Any], Any, None]
]
"""Runs with a reactor, options and a record, until the L{Deferred} fires."""


async def run(
    reactor: Any,
    program: Program,
    options: dict[str, Any],
) -> None:
    """Run a program until C{SIGTERM}."""
    over: Deferred[None] = Deferred()

    def end() -> None:
        if not over.called:
            over.callback(None)

    # In the first turn, since the reactor sets its own when it starts.
    reactor.callLater(0, signal.signal, signal.SIGTERM, lambda *_: reactor.callFromThread(end))
    await program(reactor, options, Record(options["record"]), over)


def start(programs: Mapping[str, Program]) -> None:
    """
    Run the program that the command line names, in JSON, with its options.

    @param programs: by name.
    """
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    given = json.loads(sys.argv[1])
    react(lambda reactor: ensureDeferred(run(reactor, programs[given["program"]], given)))
