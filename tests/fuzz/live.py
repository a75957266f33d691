"""
A broker in a process of its own that says what it logs: C{python -m tests.fuzz.live DIRECTORY
[KEY=VALUE …]}.

It prints a line C{PORTS [n, …]}, those of its listeners and behind them that of HTTP if it has one;
then a line C{LOGGED …} for each event that is an error, or carries a failure; anything else that
appears on its output (a traceback, a warning of Python) is no such line and counts against it, too.
Warnings are counted by kind. It stops when its input ends, and closes with its counters.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor, stdio
from twisted.internet.protocol import Protocol
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from zope.interface import provider

from pylogbroker.testing.localbroker import LocalBroker
from tests.fuzz.record import say


def observer(kinds: Counter[str], tell: Callable[[str], None]) -> ILogObserver:
    """
    What says which events count against a broker.

    @param kinds: warnings by their sentence, which it counts.
    @param tell: called with a line for each error.
    """

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        level = event.get("log_level", LogLevel.info)
        failure = event.get("log_failure")
        if level >= LogLevel.error or failure is not None or event.get("isError"):
            traceback = "" if failure is None else failure.getTraceback()
            tell(f"LOGGED {level.name} {json.dumps(formatEvent(event) + traceback)}")
        elif level >= LogLevel.warn:
            kinds[str(event.get("log_format"))] += 1

    return cast("ILogObserver", observe)


def main(directory: str, *changes: str) -> None:
    """Run until the input ends."""
    kinds: Counter[str] = Counter()
    globalLogBeginner.beginLoggingTo(
        [observer(kinds, say)], redirectStandardIO=False, discardBuffer=True
    )
    broker = LocalBroker(reactor, dict(change.split("=", 1) for change in changes), directory)

    class UntilEnd(Protocol):
        def connectionLost(self, reason: Any = None) -> None:
            broker.stop().addErrback(
                lambda failure: say(f"LOGGED critical {json.dumps(failure.getTraceback())}")
            ).addBoth(stop)

    def stop(_: object) -> None:
        reactor.stop()

    def started(_: object) -> None:
        console = broker.broker.console
        ports = [*broker.broker.service.ports, *([console.port] if console else [])]
        say(f"PORTS {json.dumps([port.getHost().port for port in ports])}")
        stdio.StandardIO(UntilEnd())

    def failed(failure: Any) -> None:
        say(f"LOGGED critical {json.dumps(failure.getTraceback())}")
        stop(None)

    reactor.callWhenRunning(lambda: broker.start().addCallbacks(started, failed))
    reactor.run()
    counters = broker.broker.service.counters
    requests, connections = counters.requests, counters.connections
    figures = {**requests.snapshot(), **connections.snapshot()}
    figures["partitions"] = len(list(Path(directory).glob("*-*")))
    say(f"FIGURES {json.dumps(figures)}")
    say(f"WARNINGS {json.dumps(dict(kinds))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
