"""
Tests for L{pylogbroker.programs.lifecycle}. That signals end a program with 0 is shown by
processes, in L{tests.programs.test_auditortap} and L{tests.programs.test_brokertap}.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.programs.lifecycle import (
    HttpServiceMixin,
    PropertyOptions,
    TwistdLifecycle,
    notifySystemd,
    printStartupError,
    warn,
)


class NotifyTests(SynchronousTestCase):
    """A word to systemd."""

    def receive(self, address: str) -> socket.socket:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(receiver.close)
        receiver.bind(address)
        receiver.settimeout(10)
        return receiver

    def test_told(self) -> None:
        """The state is sent to the socket that systemd names, a file or an abstract one."""
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)
        path = os.path.join(folder, "notify")
        receiver = self.receive(path)
        self.addCleanup(os.unlink, path)
        self.assertTrue(notifySystemd("READY=1", {"NOTIFY_SOCKET": path}))
        self.assertEqual(receiver.recv(100), b"READY=1")
        name = f"pylogbroker-{os.getpid()}"
        receiver = self.receive(f"\0{name}")
        self.assertTrue(notifySystemd("STOPPING=1", {"NOTIFY_SOCKET": f"@{name}"}))
        self.assertEqual(receiver.recv(100), b"STOPPING=1")

    def test_nobody(self) -> None:
        """Without systemd, or when it does not listen, nothing happens."""
        self.assertFalse(notifySystemd("READY=1", {}))
        self.assertFalse(notifySystemd("READY=1", {"NOTIFY_SOCKET": "/nowhere/at/all"}))


class _Options(PropertyOptions):
    @staticmethod
    def read(properties: Mapping[str, str], warn: Callable[[str], None]) -> Any:
        if "wrong" in properties:
            raise ConfigurationError("wrong=: is wrong")
        return dict(properties)


class OptionsTests(SynchronousTestCase):
    """A file, and changes."""

    def file(self, text: str) -> str:
        path = self.mktemp()
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_changes(self) -> None:
        """Changes come over the file, the last one counts."""
        options = _Options()
        options.parseOptions(["--config", self.file("a=1\nb=2\n"), "--set", "b=3", "-s", "b=4"])
        self.assertEqual(options.settings, {"a": "1", "b": "4"})

    def test_wrong(self) -> None:
        """No file, one that is not there, wrong values, no KEY=VALUE: usage errors."""
        for arguments in (
            [],
            ["--config", "/nowhere"],
            ["--config", self.file("wrong=1")],
            ["--config", self.file(""), "--set", "x"],
        ):
            self.assertRaises(usage.UsageError, _Options().parseOptions, arguments)
        self.assertRaises(
            NotImplementedError, PropertyOptions().parseOptions, ["--config", self.file("")]
        )

    def test_logLevels(self) -> None:
        """
        Levels of the log are read with the options; a file that is not there, or says what is no
        level, is a usage error.
        """
        options = _Options()
        options.parseOptions(["--config", self.file(""), "--log-levels", self.file("root=warn")])
        self.assertEqual(str(options.logLevels), "root=warn")
        for path in ("/nowhere", self.file("root=loud")):
            self.assertRaises(
                usage.UsageError,
                _Options().parseOptions,
                ["--config", self.file(""), "--log-levels", path],
            )


class _Told(Service):
    """Writes down what it is told."""

    def __init__(self, name: str, told: list[str], stopping: Deferred[None] | None = None) -> None:
        self.name = name
        self.told = told
        self.stopping = stopping or succeed(None)

    def privilegedStartService(self) -> None:
        self.told.append(f"{self.name} begins")

    def stopService(self) -> Deferred[None]:
        self.told.append(f"{self.name} stops")
        return self.stopping


class _Shown(HttpServiceMixin, _Told):
    """A program with a site."""


class SiteTests(SynchronousTestCase):
    """A site lives as long as its program."""

    def test_life(self) -> None:
        """It begins before the program, and has stopped before the program stops."""
        told: list[str] = []
        stopping: Deferred[None] = Deferred()
        program = _Shown("program", told)
        program.site = _Told("site", told, stopping)
        program.privilegedStartService()
        stopped = program.stopService()
        self.assertEqual(told, ["site begins", "program begins", "site stops"])
        self.assertNoResult(stopped)
        stopping.callback(None)
        self.successResultOf(stopped)
        self.assertEqual(told[3:], ["program stops"])

    def test_none(self) -> None:
        """Without one there is the program alone."""
        told: list[str] = []
        program = _Shown("program", told)
        program.privilegedStartService()
        self.successResultOf(program.stopService())
        self.assertEqual(told, ["program begins", "program stops"])


class _Failing(Service):
    def privilegedStartService(self) -> None:
        raise ConfigurationError("the port is taken")


class _Program(TwistdLifecycle, _Failing):
    """Whose start fails."""


class StartTests(SynchronousTestCase):
    """A start that fails says why, in one line."""

    def test_oneLine(self) -> None:
        """The error goes on to C{twistd}, and what Python prints of it in the end is a line."""
        self.patch(sys, "excepthook", sys.excepthook)
        error = self.assertRaises(ConfigurationError, _Program().privilegedStartService)
        self.assertIs(cast(Any, sys.excepthook).func, printStartupError)
        stream = io.StringIO()
        self.patch(sys, "stderr", stream)
        self.patch(sys, "__stderr__", None)
        printStartupError(type(error), error, None)
        warn("a sentence")
        self.assertEqual(
            stream.getvalue(), "pylogbroker: the port is taken\npylogbroker: a sentence\n"
        )
