"""
Through which modules does one message pass? C{python -m tests.long.hops} prints them.

Two ways are traced in one process, with a real broker on a real port:

  - from C{producer.send} to the C{write} of the transport of the client's socket, with a
    L{Producer} in both of its modes;
  - from the C{recv} on the broker's socket to the call that has the kernel sync the segment file.

What is needed only once has been done before: earlier messages have gone the same way, so
connections, topic, files and threads are there. A profile function (C{sys.setprofile}) sees each
call in each thread. It notes every module of the package in which a function is entered while the
message is on its way. Modules of floor 0 (errors, types, limits, interfaces, retry) do not count. A
timer that happens to fire in between would add its modules, so each way is traced several times,
and the shortest trace is printed.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import tempfile
import threading
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import react

import pylogbroker
from pylogbroker.net.aiofsync import AioFsync
from pylogbroker.producer.producer import Producer
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.testing.localbroker import DEFAULTS
from tests.long.telling import tell

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = Path(pylogbroker.__file__).resolve().parent
FLOOR_0 = {"errors", "types", "limits", "interfaces", "retry"}
BROKERS_OWN = ("broker.", "storage.", "net.sendfile", "net.workers")
"""What only the broker calls."""

BROKER_COUNT_MAX = 10
CLIENT_COUNT_MAX = 8
TRACE_COUNT = 10
TRACE_SECONDS_MAX = 30.0
TOPIC = "hops"
MODES = ("async", "sync")

Boundary = Callable[[FrameType, str, Any], bool]
"""Takes what a profile function takes; says whether a way begins or ends with this call."""


class Tracer:
    """
    Notes modules in the order in which they are first entered.

    @ivar entered: the function through which each module was first entered, by the module's name.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._begins: Boundary | None = None
        self._ends: Boundary | None = None
        self._isOnItsWay = self._isClient = False
        self._ended: Deferred[None] | None = None
        self._names: dict[str, str | None] = {}
        self.entered: dict[str, str] = {}
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def trace(
        self, begins: Boundary | None, ends: Boundary, isClient: bool = False
    ) -> Deferred[None]:
        """
        Trace one way.

        @param begins: the call with which the way begins; L{None}: now.
        @param ends: the call with which it ends.
        @param isClient: leave out what the broker does meanwhile, which is in the same process.
        @return: fires when it has ended.
        """
        self.entered = {}
        self._begins, self._ends, self._isClient = begins, ends, isClient
        self._ended = Deferred()
        self._ended.addTimeout(TRACE_SECONDS_MAX, self._reactor)
        self._isOnItsWay = begins is None
        return self._ended

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._ends is None or not event.endswith("call"):
            return
        if self._isOnItsWay and self._ends(frame, event, argument):
            if event == "call":
                self._enter(frame)
            self._ends = None
            self._isOnItsWay = False
            self._reactor.callFromThread(self._finish)
        elif self._begins is not None and self._begins(frame, event, argument):
            self._begins = None
            self._isOnItsWay = True
            self._enter(frame)
        elif self._isOnItsWay and event == "call":
            self._enter(frame)

    def _enter(self, frame: FrameType) -> None:
        name = self._moduleOf(frame)
        if name is not None and name not in self.entered and not self._isBrokers(frame):
            self.entered[name] = frame.f_code.co_qualname

    def _moduleOf(self, frame: FrameType) -> str | None:
        file = frame.f_code.co_filename
        if file not in self._names:
            self._names[file] = moduleName(file)
        return self._names[file]

    def _isBrokers(self, frame: FrameType | None) -> bool:
        """
        Whether the broker calls this, in a thread of its own or in ours, while the client's way is
        traced.
        """
        if self._isClient and threading.current_thread() is not threading.main_thread():
            return True
        while frame is not None and self._isClient:
            if (self._moduleOf(frame) or "").startswith(BROKERS_OWN):
                return True
            frame = frame.f_back
        return False

    def _finish(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.callback(None)


def moduleName(file: str) -> str | None:
    """
    C{".../pylogbroker/storage/segment.py"} → C{"storage.segment"}; L{None} for what does not count.
    """
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return None
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return None if parts[0] in FLOOR_0 else ".".join(parts)


def writesToBroker(port: int) -> Boundary:
    """The client gives bytes to the transport of its socket."""

    def isIt(frame: FrameType, event: str, _: Any) -> bool:
        code = frame.f_code
        if event != "call" or not code.co_filename.endswith("twisted/internet/abstract.py"):
            return False
        transport: Any = frame.f_locals.get("self")
        return code.co_name in ("write", "writeSequence") and bool(transport.getPeer().port == port)

    return isIt


def receivesAt(port: int) -> Boundary:
    """The broker receives from a socket."""

    def isIt(_: FrameType, event: str, function: Any) -> bool:
        owner = getattr(function, "__self__", None)
        return (
            event == "c_call"
            and function.__name__ == "recv"
            and isinstance(owner, socket.socket)
            and bool(owner.getsockname()[1] == port)
        )

    return isIt


def syncs(frame: FrameType, event: str, function: Any) -> bool:
    """A file is put on the disk, by a thread or by the kernel."""
    if event == "call":
        return frame.f_code is AioFsync.fsync.__code__
    return event == "c_call" and function.__name__ in ("fsync", "fdatasync")


def produceRequest(payload: bytes) -> bytes:
    """A framed request of 0.7 with one message for partition 0."""
    message = struct.pack(">BBI", 1, 0, zlib.crc32(payload)) + payload
    messageSet = struct.pack(">I", len(message)) + message
    topic = TOPIC.encode()
    body = struct.pack(">HH", 0, len(topic)) + topic + struct.pack(">II", 0, len(messageSet))
    return struct.pack(">I", len(body) + len(messageSet)) + body + messageSet


async def shortest(trace: Callable[[], Any], tracer: Tracer) -> dict[str, str]:
    """The trace with the fewest modules, of some after the first, which warms up."""
    found = []
    for _ in range(TRACE_COUNT):
        await trace()
        found.append(tracer.entered)
    return min(found[1:], key=len)


async def clientWay(
    reactor: Any, tracer: Tracer, port: int, mode: str, confirm: bool
) -> dict[str, str]:
    """From C{producer.send} to the client's socket."""
    settings = {
        "broker.list": f"0:127.0.0.1:{port}",
        "producer.type": mode,
        "queue.time": "1",
        "confirm": str(confirm).lower(),
    }
    producer = Producer(reactor, settings)
    await producer.start()

    async def trace() -> None:
        ended = tracer.trace(None, writesToBroker(port), isClient=True)
        sent = producer.send(TOPIC, b"on its way")
        await ended
        await sent

    try:
        return await shortest(trace, tracer)
    finally:
        await producer.close()


async def brokerWay(
    tracer: Tracer, port: int, drain: Callable[[], Awaitable[None]]
) -> dict[str, str]:
    """
    From the broker's socket to the disk. The client is a bare socket: our client code does not run.

    @param drain: waits for what the broker does after the flush of the message before.
    """
    with socket.create_connection(("127.0.0.1", port)) as client:

        async def trace() -> None:
            ended = tracer.trace(receivesAt(port), syncs)
            client.sendall(produceRequest(b"on its way"))
            await ended
            await drain()

        return await shortest(trace, tracer)


def report(title: str, entered: dict[str, str], countMax: int) -> bool:
    """Print one way; returns whether it is short enough."""
    isShort = len(entered) <= countMax
    verdict = "" if isShort else "  TOO MANY"
    tell(f"{title}: {len(entered)} modules of at most {countMax}{verdict}")
    for number, (name, function) in enumerate(entered.items(), 1):
        tell(f"  {number:2} {name:34} {function}")
    return isShort


async def measure(reactor: Any, confirm: bool) -> None:
    """
    Trace all ways, and end with 1 if one is too long.

    @param confirm: the producer asks the broker to confirm its messages.
    """
    tracer = Tracer(reactor)
    directory = tempfile.TemporaryDirectory()
    broker = EmbeddedBroker(reactor, {**DEFAULTS, "log.dir": directory.name})
    await broker.start()
    try:
        port = broker.port
        ways = [
            (
                f"from send to the client's socket, {mode}",
                await clientWay(reactor, tracer, port, mode, confirm),
                CLIENT_COUNT_MAX,
            )
            for mode in MODES
        ]
        way = await brokerWay(tracer, port, broker.service.logManager.drain)
        ways.append(("from the broker's socket to the disk", way, BROKER_COUNT_MAX))
    finally:
        await broker.stop()
        directory.cleanup()
    areShort = [report(*way) for way in ways]
    if not all(areShort):
        raise SystemExit(1)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.hops", description="Through which modules does one message pass?"
    )
    parser.add_argument("--confirm", action="store_true", help="with confirm=true at the producer")
    options = parser.parse_args()
    react(lambda reactor: ensureDeferred(measure(reactor, options.confirm)))


if __name__ == "__main__":
    main()
