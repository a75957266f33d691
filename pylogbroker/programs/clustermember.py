"""
A process of a L{pylogbroker.programs.localcluster.ProcessCluster}, started as
C{python -m pylogbroker.programs.clustermember JSON}: a broker with the property file C{config}, or
a ZooKeeper with C{directory} and C{port}; its log goes to the file C{log}. It is a module of its
own, since a process is started by a module's name.

Its first line on standard output is the address where it serves. It stops in order at C{SIGTERM},
and when its standard input ends, since its parent is gone then. Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.protocol import Protocol
from twisted.internet.stdio import StandardIO
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError
from pylogbroker.programs.clocksteps import bootSeconds, keepTimers


class _Parent(Protocol):
    """Standard input and output, whose other end the parent has."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008
        try:
            self._reactor.stop()
        except ReactorNotRunning:
            pass  # it stops already


async def _serve(reactor: Any, what: dict[str, Any], parent: StandardIO) -> None:
    if "config" in what:
        from pylogbroker.config.properties import readProperties
        from pylogbroker.programs.embedded import EmbeddedBroker

        broker = EmbeddedBroker(reactor, readProperties(what["config"]))
        await broker.start()
        address = f"{broker.host}:{broker.port}"
    else:
        from pylogbroker.programs.standalonezookeeper import StandaloneZookeeper

        server = StandaloneZookeeper(reactor, what["directory"], what["port"])
        await server.start()
        address = server.servers
        server.whenFailed().addErrback(_end, reactor, [])
    parent.write(f"{address}\n".encode())


def _end(failure: Failure, reactor: Any, problems: list[str]) -> None:
    problems.append(str(failure.value))
    if not failure.check(PylogbrokerError):
        failure.printTraceback()
    reactor.stop()


def main() -> int:
    """Run until a signal, or the end of the parent. @return: the exit code."""
    from twisted.internet import reactor as installed

    reactor: Any = installed
    what = json.loads(sys.argv[1])
    os.setsid()
    with open(what["log"], "a", encoding="utf-8") as log:
        levels = LogLevelFilterPredicate(LogLevel.info)
        observer = FilteringLogObserver(textFileLogObserver(log), [levels])
        globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
        problems: list[str] = []
        parent = StandardIO(_Parent(reactor))

        def begin() -> None:
            serving = Deferred.fromCoroutine(_serve(reactor, what, parent))
            serving.addErrback(_end, reactor, problems)

        keepTimers(reactor, bootSeconds)
        reactor.callWhenRunning(begin)
        reactor.run()
    for each in problems:
        os.write(2, f"{each}\n".encode())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
