"""
Standard input and output under a reactor.

What must be true: a slow other side, a terminal at which nobody types, a pager that nobody scrolls, must not stop the reactor, or Ctrl-C would wait for
it, too. Rejected: non-blocking mode, which belongs to the open file and not to us: the shell, and our own standard error, share it. So we wait until
the reactor says that a pipe, socket or terminal is ready, and then read what is there, or write no more than C{PIPE_BUF} bytes, which never
blocks. Files are always ready, and are read and written at once.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import Any, NamedTuple, TextIO

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import StorageError
from pylogbroker.types import escapeUnprintable

READ_SIZE = 256 << 10


class Streams(NamedTuple):
    """
    What a command talks to.

    @ivar input: descriptor to read from.
    @ivar output: descriptor to write results to.
    @ivar errors: where everything else is said.
    """

    input: int
    output: int
    errors: TextIO

    def say(self, text: str) -> None:
        """A line for people, or some; names in it may come from anywhere (L{escapeUnprintable}). That nobody listens is no error."""
        try:
            print("\n".join(map(escapeUnprintable, text.split("\n"))), file=self.errors, flush=True)
        except (OSError, ValueError):
            pass


def keepStandardDescriptors() -> None:
    """
    Occupy the numbers 0 to 2 where we were started without them, or the next socket would get one, and our messages with it. Reading and writing
    fails then, as it should: what is opened here can do the opposite only.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free


@implementer(IReadDescriptor, IWriteDescriptor)
class _Readiness:
    """A descriptor that a reactor watches once."""

    def __init__(self, descriptor: int, fired: Deferred[None]) -> None:
        self._descriptor = descriptor
        self._fired: Deferred[None] | None = fired

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return f"descriptor {self._descriptor}"

    def doRead(self) -> None:
        self._fire()

    def doWrite(self) -> None:
        self._fire()

    def connectionLost(self, reason: Failure) -> None:
        """The other side is gone: the next read or write will say so."""
        self._fire()

    def _fire(self) -> None:
        fired, self._fired = self._fired, None
        if fired is not None:
            fired.callback(None)


def _isSlow(descriptor: int) -> bool:
    """Whether it can keep us waiting for somebody: a pipe, a socket, a terminal. One that is not open cannot."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return (
        stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(descriptor))
    )


async def _ready(descriptor: int, add: Any, remove: Any) -> None:
    """
    Wait until a descriptor is ready, with a reactor's C{addReader} and C{removeReader}, or C{addWriter} and C{removeWriter}. Files are.
    """
    if not _isSlow(descriptor):
        return
    fired: Deferred[None] = Deferred()
    readiness = _Readiness(descriptor, fired)
    add(readiness)
    try:
        await fired
    finally:
        remove(readiness)


async def read(reactor: Any, descriptor: int) -> bytes:
    """
    Some bytes, as soon as there are any.

    @return: C{b""} at the end.
    @raise OSError: they cannot be read.
    """
    await _ready(descriptor, reactor.addReader, reactor.removeReader)
    return os.read(descriptor, READ_SIZE)


async def write(reactor: Any, descriptor: int, data: bytes) -> None:
    """
    Write results, all of them, waiting as often as need be.

    @raise BrokenPipeError: nobody reads any more.
    @raise StorageError: they cannot be written.
    """
    view = memoryview(data)
    while view:
        await _ready(descriptor, reactor.addWriter, reactor.removeWriter)
        view = view[_write(descriptor, view[: select.PIPE_BUF] if _isSlow(descriptor) else view) :]


def writeAtOnce(descriptor: int, data: bytes) -> None:
    """Write results, and block meanwhile. Raises as L{write}."""
    view = memoryview(data)
    while view:
        view = view[_write(descriptor, view) :]


def _write(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            "the output", "write", error.strerror or str(error), error.errno
        ) from error


def openInput(path: str, input: int) -> tuple[int, str]:
    """
    Open a file to read lines from; C{-} is standard input.

    @return: (its descriptor; its name for people).
    @raise OSError: it cannot be opened, or is a directory.
    """
    if path == "-":
        return input, "standard input"
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return descriptor, path


def inputSize(descriptor: int) -> int | None:
    """Bytes that a file has; L{None} for what has no end yet, and for what cannot be read, as reading it will say."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
