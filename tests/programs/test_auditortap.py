"""
Tests for L{pylogbroker.programs.auditortap}: C{twistd pylogbroker-auditor}.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.programs.auditortap import Options, TwistdAuditorService, makeService
from tests.integration.brokerprocess import twistd

ROOT = Path(__file__).resolve().parent.parent


class TapTests(SynchronousTestCase):
    """Options, and the program."""

    def config(self, text: str = "") -> str:
        path = os.path.abspath(self.mktemp())
        with open(path, "w") as file:
            file.write(
                f"tiers=live=broker:127.0.0.1:1\nlisten=tcp:0:interface=127.0.0.1\ntimeout.ms=100\n{text}"
            )
        return path

    def test_options(self) -> None:
        """The file is read, with the function that it names; what is wrong is a usage error."""
        options = Options()
        options.parseOptions(
            ["--config", self.config("timeof=os.path.getsize"), "--set", "grace.ms=5"]
        )
        self.assertEqual(options.settings.graceMs, 5)
        self.assertIs(options.timeOf, os.path.getsize)
        self.assertIsInstance(makeService(options), TwistdAuditorService)
        for wrong in ("timeof=nowhere.at.all", "grace.ms=x"):
            self.assertRaises(
                usage.UsageError, Options().parseOptions, ["--config", self.config(wrong)]
            )

    def spawn(self, *changes: str, **environment: str) -> subprocess.Popen[str]:
        sets = [word for change in changes for word in ("--set", change)]
        process = subprocess.Popen(
            [
                *twistd(),
                "--nodaemon",
                "--pidfile=",
                "pylogbroker-auditor",
                "--config",
                self.config(),
                *sets,
            ],
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **environment},
        )
        self.addCleanup(process.kill)
        return process

    def test_process(self) -> None:
        """It runs, tells systemd that it is ready, serves, and a signal ends it with 0."""
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)
        path = os.path.join(folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(path)
            self.addCleanup(os.unlink, path)
            receiver.settimeout(60)
            process = self.spawn(NOTIFY_SOCKET=path)
            self.assertEqual(receiver.recv(100), b"READY=1")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(receiver.recv(100), b"STOPPING=1")
            output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, output)
        self.assertRegex(output, r"The auditor counts live, and tells on 127\.0\.0\.1:\d+")

    def test_failedStart(self) -> None:
        """A port that is taken ends it with 1, and a line that says so."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = self.spawn(f"listen=tcp:{port}:interface=127.0.0.1")
            output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 1)
        self.assertTrue(
            re.search(rf"^pylogbroker: listen=tcp:{port}", output, re.MULTILINE), output
        )
