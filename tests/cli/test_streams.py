"""Tests for L{pylogbroker.cli.streams}."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.cli.streams import Streams, inputSize, openInput, read, write, writeAtOnce
from pylogbroker.errors import StorageError

reactor: Any = _reactor


class PipeTests(TestCase):
    """Reading and writing that does not stop the reactor."""

    timeout = 20

    def pipe(self) -> tuple[int, int]:
        """Both ends of one."""
        ends = os.pipe()
        self.ends = list(ends)
        self.addCleanup(lambda: list(map(os.close, self.ends)))
        return ends

    def close(self, end: int) -> None:
        self.ends.remove(end)
        os.close(end)

    async def test_readWaits(self) -> None:
        """Reading from a pipe waits until there is something, and the reactor goes on meanwhile."""
        source, sink = self.pipe()
        reading = Deferred.fromCoroutine(read(reactor, source))
        await deferLater(reactor, 0, lambda: None)
        self.assertNoResult(reading)
        os.write(sink, b"abc")
        self.assertEqual(await reading, b"abc")

    async def test_readEnd(self) -> None:
        """Nobody who writes means the end."""
        source, sink = self.pipe()
        reading = Deferred.fromCoroutine(read(reactor, source))
        self.close(sink)
        self.assertEqual(await reading, b"")

    async def test_readCancelled(self) -> None:
        """Waiting can be given up; what comes later is left for the next who reads."""
        source, sink = self.pipe()
        reading = Deferred.fromCoroutine(read(reactor, source))
        reading.cancel()
        self.failureResultOf(reading, CancelledError)
        os.write(sink, b"abc")
        self.assertEqual(await read(reactor, source), b"abc")

    async def test_readFile(self) -> None:
        """A file is read at once."""
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(b"abc")
        with open(path, "rb") as file:
            reading = Deferred.fromCoroutine(read(reactor, file.fileno()))
            self.assertEqual(self.successResultOf(reading), b"abc")

    async def test_writeWaits(self) -> None:
        """Writing more than a pipe holds waits for who reads, and loses nothing."""
        source, sink = self.pipe()
        data = os.urandom(1 << 20)
        writing = Deferred.fromCoroutine(write(reactor, sink, data))
        await deferLater(reactor, 0.01, lambda: None)
        self.assertNoResult(writing)
        found = b""
        while len(found) < len(data):
            found += await read(reactor, source)
        await writing
        self.assertEqual(found, data)

    async def test_writeCancelled(self) -> None:
        """Waiting for who does not read can be given up."""
        _source, sink = self.pipe()
        writing = Deferred.fromCoroutine(write(reactor, sink, bytes(1 << 20)))
        await deferLater(reactor, 0.01, lambda: None)
        writing.cancel()
        self.failureResultOf(writing, CancelledError)

    async def test_writeToNobody(self) -> None:
        """Nobody who reads is a broken pipe, also when they leave while we wait."""
        source, sink = self.pipe()
        writing = Deferred.fromCoroutine(write(reactor, sink, bytes(1 << 20)))
        await deferLater(reactor, 0.01, lambda: None)
        self.close(source)
        await self.assertFailure(writing, BrokenPipeError)
        self.assertRaises(BrokenPipeError, writeAtOnce, sink, b"a")

    async def test_writePieces(self) -> None:
        """
        What is written to a pipe at a time fits into what the reactor said is free: less than that
        is free, and it does not block.
        """
        source, sink = self.pipe()
        while select.select([], [sink], [], 0)[1]:
            os.write(sink, bytes(select.PIPE_BUF))
        os.read(source, select.PIPE_BUF)
        writing = Deferred.fromCoroutine(write(reactor, sink, bytes(select.PIPE_BUF + 1)))
        await deferLater(reactor, 0.01, lambda: None)
        self.assertNoResult(writing)
        os.read(source, 1 << 20)
        await writing


class OutputTests(SynchronousTestCase):
    """Output that does not have to wait."""

    def test_file(self) -> None:
        """A file takes all at once."""
        path = self.mktemp()
        with open(path, "wb") as file:
            self.successResultOf(
                Deferred.fromCoroutine(write(reactor, file.fileno(), b"ab" * 100_000))
            )
            writeAtOnce(file.fileno(), b"c")
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"ab" * 100_000 + b"c")

    def test_full(self) -> None:
        """A disk without room is an error that says so; so is a descriptor that is not open."""
        with open("/dev/full", "wb", 0) as file:
            error = self.failureResultOf(
                Deferred.fromCoroutine(write(reactor, file.fileno(), b"a")), StorageError
            )
            self.assertEqual(str(error.value), "cannot write the output: No space left on device")
            descriptor = file.fileno()
        self.failureResultOf(Deferred.fromCoroutine(write(reactor, descriptor, b"a")), StorageError)

    def test_say(self) -> None:
        """A line goes where errors go, and does nothing to a terminal; nobody there is no error."""
        errors = io.StringIO()
        streams = Streams(0, 1, errors)
        streams.say("hello")
        streams.say("one\ntwo \x1b[31m")
        self.assertEqual(errors.getvalue(), "hello\none\ntwo \\x1b[31m\n")
        errors.close()
        streams.say("hello")


class InputTests(SynchronousTestCase):
    """Files to read from."""

    def test_standardInput(self) -> None:
        """A dash is what was given as standard input."""
        self.assertEqual(openInput("-", 77), (77, "standard input"))

    def test_file(self) -> None:
        """A path is opened, and has a size."""
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(b"abc")
        descriptor, name = openInput(path, 0)
        self.addCleanup(os.close, descriptor)
        self.assertEqual((name, inputSize(descriptor)), (path, 3))

    def test_pipeHasNoSize(self) -> None:
        """What comes through a pipe has no size."""
        for end in os.pipe():
            self.addCleanup(os.close, end)
        self.assertIs(inputSize(end), None)

    def test_notOpen(self) -> None:
        """What is not open has none either; reading it fails later, and says so."""
        source, sink = os.pipe()
        os.close(source)
        os.close(sink)
        self.assertIs(inputSize(sink), None)

    def test_noFile(self) -> None:
        """A directory, and what is not there, are errors."""
        self.assertRaises(IsADirectoryError, openInput, os.curdir, 0)
        self.assertRaises(FileNotFoundError, openInput, self.mktemp(), 0)


class StandardDescriptorTests(SynchronousTestCase):
    """Programs that are started without standard descriptors."""

    def run_(self, redirection: str, code: str) -> str:
        script = (
            "from pylogbroker.cli.streams import keepStandardDescriptors;"
            f" keepStandardDescriptors(); import os; {code}"
        )
        command = ["/bin/sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, script]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout

    def test_nothingElseGetsTheirNumbers(self) -> None:
        """
        What is opened later gets other numbers; standard output that was closed cannot be written
        to.
        """
        code = """
assert os.open(os.devnull, os.O_RDONLY) > 2
try:
    os.write(1, b'a')
except OSError as error:
    os.write(2, error.strerror.encode())
"""
        self.assertEqual(self.run_("2>&1 >&-", f"exec({code!r})"), "Bad file descriptor")

    def test_openOnesStay(self) -> None:
        """Descriptors that are open are left as they are."""
        self.assertEqual(self.run_("", "print('hello')"), "hello\n")
