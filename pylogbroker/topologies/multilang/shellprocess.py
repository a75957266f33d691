"""
The subprocess of a component: its pipes, its end and its standard error. A module of its own, since
it alone knows descriptors and threads.

What must be true:

  - The component's thread does all reading and writing of messages, without blocking in a pipe: it
  waits for both directions at once, so that two full pipes never wait for each other. What the
  subprocess has written and the component has not read stays in the pipe, which is its limit.
  - A thread reads standard error, passes it on in whole lines, keeps the end, and says when the
  subprocess has written messages. It never touches a message.
  - A subprocess that ends, that closes a pipe or that is silent too long is an error. The error
  names the component, the command, the exit status and the end of standard error.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from pylogbroker.errors import PylogbrokerError, WireError
from pylogbroker.topologies.multilang.protocol import ShellMessage, ShellMessageDecoder

READ_SIZE = 256 << 10
STDERR_SIZE_MAX = 4 << 10
"""Bytes of the end of standard error that an error quotes."""

LINE_SIZE_MAX = 64 << 10
"""Bytes; a longer line of standard error is passed on in pieces."""

END_SECONDS = 5.0
"""How long a subprocess may take to end once its standard input is closed; then it is killed."""

PAUSE_SECONDS = 0.001
"""
Between two looks at what a busy subprocess has written: most write each message by itself, and
reading each by itself would cost more than handling it. The first look is at once.
"""

_WAIT_MS = 1_000


class ShellProcessError(PylogbrokerError):
    """The subprocess of a component has failed. The text says which, how, and what it wrote."""


class ShellProcess:
    """
    A subprocess that speaks the multi-language protocol.

    @ivar where: the component, for errors.
    @ivar lastReport: an error that the subprocess has reported itself; empty: none.
    """

    def __init__(
        self,
        where: str,
        command: Sequence[str],
        folder: str | None,
        environment: Mapping[str, str] | None,
        passOn: Callable[[str], None],
        onEnd: Callable[[], None],
        timeoutSeconds: float,
    ) -> None:
        """
        Start it.

        @param folder: where it runs; L{None}: where we do.
        @param environment: over ours.
        @param passOn: called with each line of standard error, on a thread of ours.
        @param onEnd: called once on that thread when standard error has ended, most often with the
            subprocess.
        @param timeoutSeconds: how long it may be silent while an answer is awaited.
        @raise ShellProcessError: it cannot be started.
        """
        self.where = where
        self.lastReport = ""
        self._command = " ".join(command)
        self._passOn = passOn
        self._onEnd = onEnd
        self._timeoutSeconds = timeoutSeconds
        self._silentMs = 0
        self._unsent: list[bytes] = []
        self._stderrEnd = b""
        self._closing = threading.Event()
        self._onReadable: Callable[[], None] | None = None
        self._onSecond: Callable[[], None] | None = None
        self._handled = threading.Event()
        self._decoder = ShellMessageDecoder()
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise ShellProcessError(
                f"{where}: {self._command!r} cannot be started"
                f"{f' in {folder}' if folder else ''}: {error.strerror}"
            ) from error
        self._stdin = _fileOf(self._process.stdin)
        self._stdout = _fileOf(self._process.stdout)
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._readable = select.poll()
        self._readable.register(self._stdout, select.POLLIN)
        self._both = select.poll()
        self._both.register(self._stdout, select.POLLIN)
        self._both.register(self._stdin, select.POLLOUT)
        self._threads = [self._begin(self._readStderr)]

    def _begin(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"{self.where} {run.__name__}", daemon=True)
        thread.start()
        return thread

    def watch(self, onReadable: Callable[[], None], onSecond: Callable[[], None]) -> None:
        """
        Say on a thread of ours when messages can be read, and each second. Neither is called again
        until L{handled} was.
        """
        self._onReadable, self._onSecond = onReadable, onSecond
        self._threads.append(self._begin(self._watch))

    def handled(self) -> None:
        """What L{watch} has called was done."""
        self._handled.set()

    def _watch(self) -> None:
        assert self._onReadable is not None
        assert self._onSecond is not None
        readable = select.poll()  # two threads cannot share one
        readable.register(self._stdout, select.POLLIN)
        while True:
            events = readable.poll(_WAIT_MS)
            if self._closing.is_set():
                return
            self._handled.clear()
            (self._onReadable if events else self._onSecond)()
            self._handled.wait()
            self._closing.wait(PAUSE_SECONDS)

    def _readStderr(self) -> None:
        assert self._process.stderr is not None
        stream = self._process.stderr
        rest = b""
        while data := stream.read(READ_SIZE):
            self._stderrEnd = (self._stderrEnd + data)[-STDERR_SIZE_MAX:]
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_SIZE_MAX:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._passOn(line.decode("utf-8", "backslashreplace"))
        if rest:
            self._passOn(rest.decode("utf-8", "backslashreplace"))
        if not self._closing.is_set():
            self._onEnd()

    def write(self, data: bytes) -> None:
        """Keep what C{flush} and C{exchange} send."""
        self._unsent.append(data)

    def flush(self) -> bool:
        """
        Send what the pipe takes. If the subprocess has ended, nothing is sent; C{read} gives what
        it has written last, and then raises.

        @return: whether that was all.
        """
        if not self._unsent:
            return True
        data = memoryview(b"".join(self._unsent))
        self._unsent.clear()
        try:
            while data:
                data = data[os.write(self._stdin, data) :]
        except BlockingIOError:
            self._unsent.append(bytes(data))
            return False
        except BrokenPipeError:
            pass
        return True

    def read(self) -> list[ShellMessage]:
        """
        The messages that have come, perhaps none.

        @raise ShellProcessError: the subprocess has ended, or has written what is no message.
        """
        try:
            data = os.read(self._stdout, READ_SIZE)
        except BlockingIOError:
            return []
        if not data:
            raise self._ended()
        self._silentMs = 0
        try:
            return self._decoder.feed(data)
        except WireError as error:
            raise self.nonsense(str(error)) from error

    def nonsense(self, what: str) -> ShellProcessError:
        """The error for what no subprocess may say. It is killed."""
        self._kill()
        return self._error(f"it breaks the protocol: {what}")

    def exchange(self, isBusy: bool = False) -> list[ShellMessage]:
        """
        Send what is unsent, as far as the pipe takes it, or wait for messages; at most a second.

        @param isBusy: the subprocess has work for a while: L{PAUSE_SECONDS} pass before the look.
        @raise ShellProcessError: as for L{read}, or the subprocess is silent for too long.
        """
        isAllSent = self.flush()
        if not (self._readable if isAllSent else self._both).poll(_WAIT_MS):
            self.silent(_WAIT_MS)
        if isBusy or not isAllSent:  # a pipe full of work: the subprocess does not wait for us
            self._closing.wait(PAUSE_SECONDS)
        return self.read()

    def silent(self, ms: int) -> None:
        """
        An answer was awaited in vain.

        @param ms: for how many milliseconds more.
        @raise ShellProcessError: the subprocess is silent for too long. It is killed.
        """
        self._silentMs += ms
        if self._silentMs > self._timeoutSeconds * 1000:
            self._kill()
            raise self._error(f"it hangs: it was silent for {self._timeoutSeconds:g} s")

    def _ended(self) -> ShellProcessError:
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._error("it has closed a pipe and was killed")
        if status < 0:
            try:
                return self._error(f"it was ended by {signal.Signals(-status).name}")
            except ValueError:  # a signal without a name
                return self._error(f"it was ended by signal {-status}")
        return self._error(f"it has ended with status {status}")

    def _error(self, what: str) -> ShellProcessError:
        self._threads[0].join(1)  # what it wrote last may not have been read yet
        text = f"{self.where}: {self._command!r}: {what}"
        if self.lastReport:
            text = f"{text}; it reported:\n{self.lastReport.strip()[-STDERR_SIZE_MAX:]}\n"
        end = self._stderrEnd.decode("utf-8", "replace").strip()
        return ShellProcessError(f"{text}; its standard error ends so:\n{end}" if end else text)

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it: its standard input is closed; L{END_SECONDS} later it is killed."""
        self._closing.set()
        self._handled.set()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._drain()
        finally:
            for thread in self._threads:
                thread.join(2)  # one whose pipe a grandchild holds open is left to its end
        self._process.stdout.close()

    def _drain(self) -> None:
        """Read on until it ends, so that it does not wait for room in its pipe."""
        leftMs = int(END_SECONDS * 1000)
        while leftMs > 0:
            if self._process.poll() is not None:
                return
            self._readable.poll(50)
            try:
                if not os.read(self._stdout, READ_SIZE):
                    break
            except BlockingIOError:
                pass
            leftMs -= 50
        try:
            self._process.wait(max(leftMs, 0) / 1000)
        except subprocess.TimeoutExpired:
            self._kill()


def _fileOf(stream: IO[bytes] | None) -> int:
    assert stream is not None
    return stream.fileno()
