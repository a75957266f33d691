"""
Standard input and output under a reactor, and lines of bytes.

What must be true: an idle terminal or pager does not stop the reactor, or Ctrl-C would not work. We
wait until the reactor says that a pipe, socket or terminal is ready. Then we read what is there, or
write at most C{PIPE_BUF} bytes, which never blocks. Files are always ready.

Rejected: non-blocking mode. It belongs to the open file, which the shell shares.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.cli import CommandError
from pylogbroker.errors import StorageError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.types import escapeUnprintable

READ_SIZE = 256 << 10


class Streams(NamedTuple):
    """
    The standard streams of a command.

    @ivar input: descriptor to read from.
    @ivar output: descriptor to write results to.
    @ivar errors: text stream for everything else.
    @ivar reactor: L{None} for commands that block.
    """

    input: int
    output: int
    errors: TextIO
    reactor: Any = None

    def nowMs(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.reactor.seconds() * 1000)

    def warn(self, text: str) -> None:
        """Print a line for people, with the program's name before it."""
        self.say(f"pylogbroker: {text}")

    def say(self, text: str) -> None:
        """Print lines for people, unprintable characters escaped. A closed stream is no error."""
        try:
            print("\n".join(map(escapeUnprintable, text.split("\n"))), file=self.errors, flush=True)
        except (OSError, ValueError):
            pass

    async def write(self, data: bytes) -> None:
        """Write a result. Raises as L{write}."""
        await write(self.reactor, self.output, data)

    async def show(self, text: str) -> None:
        """Write a result, whose names may hold lone surrogates. Raises as L{write}."""
        await self.write(text.encode("utf-8", "surrogatepass"))


def keepStandardDescriptors() -> None:
    """
    Occupy the descriptors 0 to 2 that are closed, or the next socket would get one of the numbers,
    and our output with it. Each is opened for the opposite direction, so that using it fails.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free


@implementer(IReadDescriptor, IWriteDescriptor)
class _Readiness:
    """A descriptor that a reactor watches until it is ready once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.waiters: Waiters[None] = Waiters()

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return f"descriptor {self._descriptor}"

    def doRead(self) -> None:
        self.waiters.fire(None)

    doWrite = doRead

    def connectionLost(self, reason: Failure) -> None:
        """The peer is gone: the next read or write fails."""
        self.doRead()


def _isSlow(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return (
        stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(descriptor))
    )


async def _ready(descriptor: int, add: Any, remove: Any) -> None:
    """Wait until a descriptor is ready, by two methods such as C{addReader}, C{removeReader}."""
    if not _isSlow(descriptor):
        return
    readiness = _Readiness(descriptor)
    add(readiness)
    try:
        await readiness.waiters.wait()
    finally:
        remove(readiness)


async def read(reactor: Any, descriptor: int) -> bytes:
    """
    Read up to L{READ_SIZE} bytes as soon as there are any.

    @return: C{b""} at the end.
    @raise OSError: the descriptor cannot be read.
    """
    await _ready(descriptor, reactor.addReader, reactor.removeReader)
    return os.read(descriptor, READ_SIZE)


async def write(reactor: Any, descriptor: int, data: bytes) -> None:
    """
    Write all bytes of a result.

    @raise BrokenPipeError: the reader has closed its end.
    @raise StorageError: the bytes cannot be written.
    """
    view = memoryview(data)
    while view:
        await _ready(descriptor, reactor.addWriter, reactor.removeWriter)
        view = view[_write(descriptor, view[: select.PIPE_BUF] if _isSlow(descriptor) else view) :]


def writeAtOnce(descriptor: int, data: bytes) -> None:
    """Write all bytes of a result, and block meanwhile. Raises as L{write}."""
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


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn the error of a file that cannot be read into a L{CommandError} that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"cannot read {path!r}: {reason}") from error


def openInput(path: str, input: int) -> tuple[int, str]:
    """
    Open a file to read; C{-} is standard input.

    @return: (the descriptor; the name for people).
    @raise OSError: the file cannot be opened, or is a directory.
    """
    if path == "-":
        return input, "standard input"
    with open(path, "rb", buffering=0) as file:
        return os.dup(file.fileno()), path


def readText(path: str, input: int, sizeMax: int, what: str) -> tuple[str, str]:
    """
    Read a whole file, or standard input.

    @param sizeMax: bytes.
    @param what: the file's kind, for errors.
    @return: (the text; the name for people).
    @raise CommandError: it cannot be read, is larger, or is not UTF-8.
    """
    with readable(path):
        descriptor, name = openInput(path, input)
        with open(descriptor, "rb", closefd=descriptor != input) as file:
            data = file.read(sizeMax + 1)
    if len(data) > sizeMax:
        raise CommandError(f"{name} has more than {sizeMax:,} bytes: that is no {what}")
    try:
        return data.decode(), name
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8: that is no {what}") from error


def writeNewFile(path: str, text: str) -> None:
    """
    Write a new file, and flush it to the disk. An existing one may be the only copy of older data.

    @raise CommandError: it exists, or cannot be written.
    """
    try:
        with open(path, "x", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


def inputSize(descriptor: int) -> int | None:
    """The size of a file; L{None} for a pipe, and for a descriptor that cannot be read."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class LineDecoder:
    """
    Splits bytes into lines, which become messages.

    Only C{\\n} ends a line. A carriage return before it, NUL bytes and bytes that are not UTF-8
    are content, and an empty line is an empty message. So C{b"\\n".join(messages)} is the file
    again, apart from a line feed at its end (L{isEnded}).

    @ivar sizeMax: bytes in a line, without its end.
    @ivar count: lines returned so far.
    @ivar overlong: the number, from 1, of the first line above C{sizeMax}; it ends the decoding.
    @ivar isEnded: whether the last line had a line feed; C{True} before the first.
    """

    def __init__(self, sizeMax: int) -> None:
        self.sizeMax = sizeMax
        self.count = 0
        self.overlong: int | None = None
        self.isEnded = True
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """
        @return: the lines that end in these bytes, without their ends, up to an overlong one.
        """
        if self.overlong is not None:
            return []
        *lines, rest = data.split(b"\n")
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        sizeMax = self.sizeMax
        isOverlong = len(self._rest) > sizeMax
        for index, line in enumerate(lines):
            if len(line) > sizeMax:
                isOverlong = True
                del lines[index:]
                break
        self.count += len(lines)
        if isOverlong:
            self.overlong = self.count + 1
        return lines

    def finish(self) -> list[bytes]:
        """
        @return: the last line, if no line feed ends it.
        """
        if self.overlong is not None or not self._rest:
            return []
        self.count += 1
        self.isEnded = False
        return [bytes(self._rest)]
