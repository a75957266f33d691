"""
Tests for L{pylogbroker.programs.registrytap}: C{twistd pylogbroker-registry}. That a topic which
was cut ends it with 1 is in L{tests.integration.test_registry}.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidRegistryTopicError
from pylogbroker.programs.registrytap import Options, TwistdRegistryService, makeService
from tests.integration.registryprocess import RegistryProcess

ROOT = Path(__file__).resolve().parent.parent.parent


class TapTests(SynchronousTestCase):
    """Options, and the program."""

    def config(self, text: str = "broker=127.0.0.1:1\n") -> str:
        path = os.path.abspath(self.mktemp())
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_options(self) -> None:
        """The file is read; what is wrong is a usage error."""
        options = Options()
        options.parseOptions(["--config", self.config(), "--set", "topic=t"])
        self.assertEqual(options.settings.topic, "t")
        self.assertIsInstance(makeService(options), TwistdRegistryService)
        for wrong in ("timeout.ms=x\nbroker=b:1", ""):
            self.assertRaises(
                usage.UsageError, Options().parseOptions, ["--config", self.config(wrong)]
            )

    def test_without(self) -> None:
        """Without the extra, the program ends with 1 and one line that says what to install."""
        code = (
            "import sys; sys.modules['fastavro'] = None; from twisted.scripts.twistd import run;"
            " sys.argv[1:] = ['-n', '--pidfile=', 'pylogbroker-registry']; run()"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(len(ended.stderr.splitlines()), 1, ended.stderr)
        self.assertIn(
            "pylogbroker: the registry needs the extra avro: pip install '.[avro]'", ended.stderr
        )

    def test_process(self) -> None:
        """It runs while its broker is away, and a signal ends it with 0."""
        process = RegistryProcess(os.path.abspath(self.mktemp()), 1)
        self.addCleanup(process.kill)
        process.launch()
        process.waitForLine("cannot be read now; trying again")
        self.assertEqual(process.stop(), 0)

    def test_taken(self) -> None:
        """A port that is taken ends it with 1, and a line that says so."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = RegistryProcess(os.path.abspath(self.mktemp()), 1, listen=str(port))
            self.addCleanup(process.kill)
            process.launchOnly()
            self.assertEqual(process.wait(), 1)
        self.assertIn(f"pylogbroker: listen={port}", process.log)

    def test_unusable(self) -> None:
        """
        A topic that cannot be a registry's stops the reactor, once it runs, and the process with 1.
        """
        triggers: list[tuple[object, ...]] = []

        class Reactor:
            running = True
            isStopped = False

            def addSystemEventTrigger(self, *arguments: object) -> None:
                triggers.append(arguments)

            def stop(self) -> None:
                self.isStopped = True

        options = Options()
        options.parseOptions(["--config", self.config()])
        service = TwistdRegistryService(reactor := Reactor(), options.settings)
        service.unusable(InvalidRegistryTopicError("it was cut"))
        self.assertTrue(reactor.isStopped)
        self.assertEqual(
            [(*trigger[:2], *trigger[3:]) for trigger in triggers],
            [("after", "shutdown", os._exit, 1)],
        )
