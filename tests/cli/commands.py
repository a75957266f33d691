"""
What the tests of the commands share: a command carried out in the test's reactor, or as a process.
"""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NamedTuple, cast

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, ProcessProtocol, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from pylogbroker.cli.arguments import blockingRun
from pylogbroker.cli.main import COMMANDS, prepare, runCommand
from pylogbroker.cli.streams import Streams
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.errors import PylogbrokerError
from pylogbroker.protocol.kafka07.requests import encodeFetch
from pylogbroker.testing.localbroker import LocalBroker

reactor: Any = _reactor

ROOT = Path(__file__).resolve().parent.parent.parent


def commands() -> dict[str, ArgumentParser]:
    """A parser of the arguments of each command, by the command's name."""
    found = {}
    for command in (entry.load() for entry in COMMANDS):
        found[command.name] = ArgumentParser(epilog=command.examples)
        for argument in command.arguments:
            argument(found[command.name])
    return found


class Outcome(NamedTuple):
    """
    @ivar code: exit code; minus the number of a signal.
    @ivar output: what stood on standard output.
    @ivar errors: what stood on standard error.
    """

    code: int
    output: bytes
    errors: str

    def document(self) -> Any:
        """What was printed with C{--json}."""
        return json.loads(self.output)


def performAtOnce(*arguments: str, input: bytes = b"") -> Outcome:
    """Carry out a command that needs no reactor, to its end."""
    errors = io.StringIO()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(input)
        given.seek(0)
        streams = Streams(given.fileno(), output.fileno(), errors)
        try:
            options = prepare(arguments, streams)
            run = blockingRun(options)
            assert run is not None, arguments
            code = run(options, streams)
        except PylogbrokerError as error:
            code = 1
            streams.warn(str(error))
        output.seek(0)
        return Outcome(code, output.read(), errors.getvalue())


class Process(ProcessProtocol):
    """
    C{python -m pylogbroker} with some arguments.

    @ivar ended: fires with an L{Outcome}.
    """

    def __init__(self) -> None:
        self.output = b""
        self.errors = b""
        self.ended: Deferred[Outcome] = Deferred()
        self._awaited: list[tuple[bytes, Deferred[None]]] = []

    def said(self, what: bytes) -> Deferred[None]:
        """Fires when that stands on one of the two, or when the process has ended."""
        waiting: Deferred[None] = Deferred()
        self._awaited.append((what, waiting))
        self._look()
        return waiting

    def saidAnything(self) -> Deferred[None]:
        """Fires when something stands on standard output, or when the process has ended."""
        return self.said(b"\n")

    def _look(self, isEnded: bool = False) -> None:
        awaited, self._awaited = self._awaited, []
        for what, waiting in awaited:
            if isEnded or what in self.output or what in self.errors:
                waiting.callback(None)
            else:
                self._awaited.append((what, waiting))

    def outReceived(self, data: bytes) -> None:
        self.output += data
        self._look()

    def errReceived(self, data: bytes) -> None:
        self.errors += data
        self._look()

    def processEnded(self, reason: Failure) -> None:
        status: Any = reason.value
        self._look(isEnded=True)
        self.ended.callback(
            Outcome(
                status.exitCode if status.exitCode is not None else -status.signal,
                self.output,
                self.errors.decode(),
            )
        )


class Deaf(Protocol):
    """
    A server that reads a number of bytes and then hangs up; with 0, as soon as somebody calls.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def connectionMade(self) -> None:
        self.dataReceived(b"")

    def dataReceived(self, data: bytes) -> None:
        self.size -= len(data)
        if self.size <= 0:
            self.transport.loseConnection()  # type: ignore[union-attr]


@implementer(IHalfCloseableProtocol)
class Silent(Protocol):
    """
    A broker that answers an empty fetch, and nothing else, not even the end of the connection.
    """

    def __init__(self, got: DeferredQueue[None]) -> None:
        self.got = got

    def dataReceived(self, data: bytes) -> None:
        if data == encodeFetch("t", 0, 0, 0):
            cast(Any, self.transport).write(struct.pack(">ih", 2, 0))
        else:
            self.got.put(None)

    def readConnectionLost(self) -> None:
        """This side stays open."""

    def writeConnectionLost(self) -> None:
        """Never."""


class CommandCase(TestCase):
    """Commands, and a broker for them."""

    timeout = 60

    async def startBroker(self, **properties: str) -> LocalBroker:
        """A broker that shows at once what it took; keys with underscores for dots."""
        self.broker = LocalBroker(
            reactor, {key.replace("_", "."): value for key, value in properties.items()}
        )
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        return self.broker

    def startDeaf(self, size: int) -> str:
        """A server of L{Deaf}s. Returns where it is."""
        factory: Any = Factory.forProtocol(cast(Any, lambda: Deaf(size)))
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return f"127.0.0.1:{port.getHost().port}"

    def startSilent(self) -> str:
        """A server of L{Silent}s; C{got} tells when one is asked for more. Returns where it is."""
        self.got: DeferredQueue[None] = DeferredQueue()
        factory: Any = Factory.forProtocol(cast(Any, lambda: Silent(self.got)))
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return f"127.0.0.1:{port.getHost().port}"

    async def refused(self, asking: Awaitable[object], kind: type[BaseException]) -> Any:
        """The error that something fails with."""
        try:
            await asking
        except kind as error:
            return error
        raise self.failureException(f"no {kind.__name__}")

    def write(self, data: bytes, name: str = "") -> str:
        """A file."""
        path = self.mktemp()
        if name:
            os.makedirs(path)
            path = os.path.join(path, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    async def perform(
        self,
        *arguments: str,
        descriptor: int = -1,
        output: int = -1,
        errors: io.StringIO | None = None,
    ) -> Outcome:
        """
        Carry out a command in this reactor.

        @param descriptor: its standard input.
        @param output: its standard output; a file, unless one is given.
        """
        errors = io.StringIO() if errors is None else errors
        path = self.mktemp()
        with open(path, "wb") as file:
            streams = Streams(descriptor, file.fileno() if output < 0 else output, errors, reactor)
            code = await runCommand(prepare(arguments, streams), streams)
        with open(path, "rb") as file:
            return Outcome(code, file.read(), errors.getvalue())

    async def publish(self, topic: str, *payloads: bytes, codec: int = 0) -> None:
        """Put messages into the broker, in one set."""
        producer = SyncProducer(reactor, self.broker.endpoint)
        await producer.send(topic, 0, payloads, codec=codec)
        await producer.confirm(topic, 0)
        await producer.close()

    async def messages(self, topic: str, partition: int = 0) -> list[bytes]:
        """All that the broker holds."""
        consumer = SimpleConsumer(reactor, self.broker.endpoint)
        found, offset = [], 0
        while pairs := list((await consumer.fetch(topic, partition, offset, 8 << 20)).payloads()):
            found += [payload for payload, _ in pairs]
            offset = pairs[-1][1]
        await consumer.close()
        return found

    def spawn(self, *arguments: str, childFDs: dict[int, Any] | None = None) -> tuple[Process, Any]:
        """Start C{python -m pylogbroker}. It is killed with the test."""
        protocol = Process()
        process = reactor.spawnProcess(
            protocol, sys.executable, [sys.executable, "-m", "pylogbroker", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, childFDs=childFDs,
        )  # fmt: skip

        self.addCleanup(self._kill, protocol, process)
        return protocol, process

    @staticmethod
    def _kill(protocol: Process, process: Any) -> Deferred[Outcome] | None:
        if protocol.ended.called:
            return None
        process.signalProcess(signal.SIGKILL)
        return protocol.ended
