"""
Tests for L{tests.gate.commands}.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from tests.gate.commands import execute


class Terminal(io.StringIO):
    """A standard output that calls back when it is written to."""

    def __init__(self, onWrite: Callable[[], None]) -> None:
        super().__init__()
        self._onWrite = onWrite

    def write(self, text: str) -> int:
        self._onWrite()
        return super().write(text)


class ExecuteTests(SynchronousTestCase):
    """A command of the gate."""

    def setUp(self) -> None:
        self.path = os.path.abspath(self.mktemp())
        os.mkfifo(self.path)

    def execute(self, onWrite: Callable[[], None]) -> tuple[int, str]:
        """Run a command that ends with 3 when the pipe has been opened for writing."""
        terminal = Terminal(onWrite)
        self.patch(sys, "stdout", terminal)
        command = [sys.executable, "-c", "import sys; open(sys.argv[1]); sys.exit(3)", self.path]
        status = execute("waiting", command, silenceSecondsMax=0.01)
        return status, terminal.getvalue()

    def test_signOfLife(self) -> None:
        """While a command runs, a line says so again and again; then its status is returned."""
        lifeCount = 0

        def release() -> None:
            nonlocal lifeCount
            lifeCount += 1
            if lifeCount == 5:
                with open(self.path, "w", encoding="ascii"):
                    pass

        status, text = self.execute(release)
        self.assertEqual(status, 3)
        self.assertRegex(text, r"\A(waiting runs \(\d+ s\)\n){2,}")

    def test_interrupted(self) -> None:
        """Ctrl-C kills the command."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, self.execute, interrupt)
        # Nobody reads the pipe.
        self.assertRaises(OSError, os.open, self.path, os.O_WRONLY | os.O_NONBLOCK)
