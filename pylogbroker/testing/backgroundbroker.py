"""
A real broker beside a test that knows nothing of Twisted::

    with BackgroundBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrapServers})

It runs in a process of its own, which costs an import of Twisted once: about 0.4 s of processor
time. A thread with a private reactor starts no sooner, and was rejected: it would share the
interpreter's lock with the test, and so its speed; a test that freezes or patches the clock, turns
warnings into errors, forks, or measures coverage would do so to the broker; and a thread cannot be
ended as by C{kill -9}. Between tests L{BackgroundBroker.reset} puts an empty broker in the place of
the one before, in the same process and on the same port, within a few hundredths of a second.

The process ends when this object is closed or forgotten, and when the test's process ends, even by
C{kill -9}: it reads from a pipe, which then ends.

Imports neither Twisted nor the broker.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pylogbroker.errors import ClosedError, PylogbrokerError, TimedOutError
from pylogbroker.testing.faults.faultinjection import FaultInjection

TIMEOUT_MS = 60_000
"""For a start, a stop or a reset, on a machine that is busy."""

_ANSWER_SIZE_MAX = 1 << 20
_READ_SIZE = 1 << 16
_ROOT = str(Path(__file__).resolve().parent.parent.parent)
_HOST = "127.0.0.1"


class _Child:
    """
    The process and the pipes to it: a line of JSON for each command, another for its answer.

    @ivar port: where its broker listens; kept for the next process.
    """

    def __init__(self) -> None:
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._lock = threading.Lock()

    @property
    def isRunning(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, arguments: Mapping[str, Any], timeoutMs: int) -> None:
        path = os.environ.get("PYTHONPATH")
        self._received = b""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # a module in the test's folder must not hide one of the library
                "-m",
                "pylogbroker.testing.backgroundprocess",
                json.dumps({**arguments, "port": self.port}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else _ROOT},
            start_new_session=True,  # Ctrl-C is for the test, which then stops the broker
        )
        try:
            self.port = int(self._answer(timeoutMs)["port"])
        except BaseException:
            self.kill()
            raise

    def command(self, timeoutMs: int, **command: Any) -> dict[str, Any]:
        with self._lock:
            if self.process is None or self.process.stdin is None:
                raise ClosedError("the broker does not run: call start")
            try:
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                raise self._ended() from None
            return self._answer(timeoutMs)

    def _answer(self, timeoutMs: int) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(timeoutMs):
                raise TimedOutError(f"the broker's process has not answered for {timeoutMs} ms")
            part = os.read(descriptor, _READ_SIZE)
            if not part or len(self._received) > _ANSWER_SIZE_MAX:
                raise self._ended()
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise PylogbrokerError(found["error"])
        return found

    def _ended(self) -> ClosedError:
        assert self.process is not None
        status = self.process.wait()
        return ClosedError(f"the broker's process has ended by itself, with status {status}")

    def wait(self, timeoutMs: int) -> None:
        """Wait for its end, for which it was asked; end it, if it takes too long."""
        if self.process is not None:
            try:
                self.process.wait(timeoutMs / 1000)
            except subprocess.TimeoutExpired:
                pass
            self.kill()

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # of bytes that were not flushed
                        pass


def _forget(child: _Child, directory: str | None, ownerPid: int) -> None:
    """
    At the end of the object, or of the process.

    @param directory: to be removed.
    """
    if os.getpid() != ownerPid:
        return  # a fork of the test's process ends, and not the test
    child.kill()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


class BackgroundFault:
    """A fault that was injected from a L{BackgroundBroker}."""

    def __init__(self, command: Callable[..., dict[str, Any]], number: int) -> None:
        """@param command: to the broker's process."""
        self._command = command
        self._number = number

    @property
    def hitCount(self) -> int:
        """Requests that have met it."""
        return int(self._ask(False)["hitCount"])

    @property
    def leftCount(self) -> int | None:
        """Requests that will still meet it; L{None}: all until it is cleared."""
        found: int | None = self._ask(False)["leftCount"]
        return found

    def clear(self) -> None:
        """No request will meet it any more."""
        self._ask(True)

    def _ask(self, isCleared: bool) -> dict[str, Any]:
        return self._command(command="fault", fault=self._number, isCleared=isCleared)


class BackgroundBroker(FaultInjection[BackgroundFault]):
    """
    A broker in a process of its own; a context manager. Not to be shared with a fork.

    It can be stopped or killed and started again: port and data stay until L{close}.

    @ivar directory: of its data.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        directory: str | None = None,
        timeoutMs: int = TIMEOUT_MS,
    ) -> None:
        """
        @param properties: as in a property file, over the
            L{DEFAULTS<pylogbroker.testing.localbroker.DEFAULTS>} of
            L{LocalBroker<pylogbroker.testing.localbroker.LocalBroker>}.
        @param directory: of the data; it is kept then. By default a temporary one.
        @param timeoutMs: the longest wait for the process in milliseconds.
        """
        self._properties = {key: str(value) for key, value in (properties or {}).items()}
        self._isTemporary = directory is None
        self._timeoutMs = timeoutMs
        self._child = _Child()
        self.directory = directory or tempfile.mkdtemp(prefix="pylogbroker-")
        self._finalizer = weakref.finalize(
            self, _forget, self._child, self.directory if self._isTemporary else None, os.getpid()
        )

    # -- its life

    def start(self) -> BackgroundBroker:
        """
        Start it, if it does not run. A second start has the port and the data of the first.

        @raise PylogbrokerError: it cannot start, and why.
        @raise TimedOutError: it has not started in time.
        """
        if not self._finalizer.alive:
            raise ClosedError("the broker was closed: make another one")
        if not self._child.isRunning:
            self._child.kill()  # closes the pipes of one that has ended
            self._child.start(
                {
                    "properties": self._properties,
                    "directory": self.directory,
                    "isTemporary": self._isTemporary,
                },
                self._timeoutMs,
            )
        return self

    def stop(self) -> None:
        """
        Stop it in order. The data stays.

        @raise TimedOutError: it has not stopped in time.
        """
        if self._child.isRunning:
            self._child.command(self._timeoutMs, command="stop")
        self._child.wait(self._timeoutMs)

    def kill(self) -> None:
        """End it as C{kill -9} does. The data stays as it is."""
        self._child.kill()

    def close(self) -> None:
        """End it, and remove the data, unless their directory was given."""
        try:
            if not self._isTemporary:
                self.stop()
        finally:
            self._finalizer()

    def __enter__(self) -> BackgroundBroker:
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def isRunning(self) -> bool:
        """Whether the process is there."""
        return self._child.isRunning

    @property
    def pid(self) -> int | None:
        """The process; L{None}: there is none."""
        return self._child.process.pid if self._child.process is not None else None

    # -- between tests

    def reset(self) -> None:
        """
        Make it as new, on the same port: topics, groups, producer ids and settings that clients
        made are gone, also from a directory that was given. Connections are cut; clients of an
        earlier test that still run connect again, to an empty broker. One that does not run is
        started.

        @raise PylogbrokerError: it cannot start again, and why.
        """
        if self._child.isRunning:
            self._child.command(self._timeoutMs, command="reset")
            return
        self._child.kill()
        removeContents(self.directory)
        self.start()

    # -- faults

    def _inject(self, **fault: Any) -> BackgroundFault:
        command = partial(self._child.command, self._timeoutMs)
        return BackgroundFault(command, command(command="inject", arguments=fault)["fault"])

    def _moveLeader(self, **leader: Any) -> int:
        found = self._child.command(self._timeoutMs, command="moveLeader", arguments=leader)
        return int(found["leader"])

    def clearFaults(self) -> None:
        self._child.command(self._timeoutMs, command="clearFaults")

    def cutConnections(self) -> None:
        self._child.command(self._timeoutMs, command="cut")

    # -- where it is

    @property
    def host(self) -> str:
        """Where it listens."""
        return _HOST

    @property
    def port(self) -> int:
        """Where it listens; 0 before the first start."""
        return self._child.port

    @property
    def bootstrapServers(self) -> str:
        """C{127.0.0.1:PORT}, for C{bootstrap.servers}."""
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        state = f"on {self.bootstrapServers}" if self.isRunning else "which does not run"
        return f"<BackgroundBroker {state}, data in {self.directory}>"


def removeContents(directory: str) -> None:
    """Empty a directory, which may be missing."""
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
