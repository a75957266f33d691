"""
The process of a L{BackgroundBroker<pylogbroker.testing.backgroundbroker.BackgroundBroker>}, started
as C{python -m pylogbroker.testing.backgroundprocess JSON}.

Commands come on standard input and answers go to standard output, each a line of JSON. The first
answer says the port, or why the broker has not started. The end of the input ends the process: the
test is gone, so a temporary directory is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.error import ReactorNotRunning
from twisted.internet.stdio import StandardIO
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.protocols.basic import LineReceiver

from pylogbroker.errors import ClosedError, ConfigurationError, PylogbrokerError
from pylogbroker.testing.backgroundbroker import removeContents
from pylogbroker.testing.faults.faultinjector import Fault
from pylogbroker.testing.localbroker import LocalBroker

log = Logger()

FAULT_COUNT_MAX = 100_000
"""Faults that are injected from one process."""


class CommandReceiver(LineReceiver):
    """Carries out commands, one after another."""

    transport: Any
    delimiter = b"\n"
    MAX_LENGTH = 1 << 20

    def __init__(self, reactor: Any, arguments: dict[str, Any]) -> None:
        """@param arguments: C{properties}, C{directory}, C{port} and C{isTemporary}."""
        self._reactor = reactor
        self._arguments = arguments
        self._port = arguments["port"]
        self._isTemporary = arguments["isTemporary"]
        self._turn = DeferredLock()
        self._broker: LocalBroker | None = None
        self._faults: list[Fault] = []

    def connectionMade(self) -> None:
        self._carryOut({"command": "start"})

    def lineReceived(self, line: bytes) -> None:
        self._carryOut(json.loads(line))

    def _carryOut(self, command: dict[str, Any]) -> None:
        def failed(failure: Any) -> dict[str, Any]:
            if not failure.check(PylogbrokerError):
                log.failure("A command failed unexpectedly: this is a bug", failure)
            return {"error": str(failure.value) or repr(failure.value)}

        def act() -> Deferred[Any]:
            return Deferred.fromCoroutine(getattr(self, f"_{command['command']}")(command))

        self._turn.run(act).addErrback(failed).addCallback(self._say)

    def _say(self, answer: dict[str, Any]) -> None:
        self.transport.write(json.dumps(answer).encode() + b"\n")

    async def _start(self, _command: dict[str, Any]) -> dict[str, Any]:
        properties = dict(self._arguments["properties"])
        if self._port and "listeners" not in properties:
            properties["port"] = str(self._port)
        self._broker = LocalBroker(self._reactor, properties, self._arguments["directory"])
        await self._broker.start()
        self._port = self._broker.port
        return {"port": self._port}

    async def _end(self) -> None:
        """Cut the connections first: a stop in order waits for the answers to their requests."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.cutConnections()
            await broker.stop()

    async def _cut(self, _command: dict[str, Any]) -> dict[str, Any]:
        if self._broker is not None:
            self._broker.cutConnections()
        return {}

    def _running(self) -> LocalBroker:
        if self._broker is None:
            raise ClosedError("the broker does not run")
        return self._broker

    async def _inject(self, command: dict[str, Any]) -> dict[str, Any]:
        faults = self._running().faults
        if len(self._faults) >= FAULT_COUNT_MAX:
            raise ConfigurationError(f"more than {FAULT_COUNT_MAX} faults were injected")
        self._faults.append(faults.inject(**command["arguments"]))
        return {"fault": len(self._faults) - 1}

    async def _fault(self, command: dict[str, Any]) -> dict[str, Any]:
        """Those of an earlier broker are over, but their counts are still told."""
        fault = self._faults[command["fault"]]
        if command["isCleared"]:
            fault.clear()
        return {"hitCount": fault.hitCount, "leftCount": fault.leftCount}

    async def _clearFaults(self, _command: dict[str, Any]) -> dict[str, Any]:
        self._running().clearFaults()
        return {}

    async def _moveLeader(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"leader": self._running().moveLeader(**command["arguments"])}

    async def _reset(self, command: dict[str, Any]) -> dict[str, Any]:
        await self._end()
        removeContents(self._arguments["directory"])
        return await self._start(command)

    async def _stop(self, _command: dict[str, Any]) -> dict[str, Any]:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()
        self._isTemporary = False  # the test removes it
        self._reactor.callLater(0, self.transport.loseConnection)
        return {}

    def connectionLost(self, _reason: Any = None) -> None:
        """The test has ended, or has said that it needs no broker any more."""

        async def end() -> None:
            await self._end()
            if self._isTemporary:
                shutil.rmtree(self._arguments["directory"], ignore_errors=True)

        def over(_result: Any) -> None:
            try:
                self._reactor.stop()
            except ReactorNotRunning:  # a signal was first
                pass

        self._turn.run(lambda: Deferred.fromCoroutine(end())).addBoth(over)


def main(reactor: Any, arguments: dict[str, Any]) -> None:
    """Serve until the input ends."""
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not look like an answer
    observer = FilteringLogObserver(
        textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(LogLevel.warn)]
    )
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
    makeStandardIO: Any = StandardIO  # mypy takes it for that of Windows
    makeStandardIO(CommandReceiver(reactor, arguments), stdin=0, stdout=output, reactor=reactor)
    reactor.run()


if __name__ == "__main__":
    from twisted.internet import reactor

    main(reactor, json.loads(sys.argv[1]))
