"""
Tests of subprocesses of components: real ones, which end, hang and talk nonsense.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Event

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.topologies.multilang.protocol import ShellMessage
from pylogbroker.topologies.multilang.shellprocess import (
    STDERR_SIZE_MAX,
    ShellProcess,
    ShellProcessError,
)

WHERE = "topology t, component c, task 1"


class ShellProcessTests(SynchronousTestCase):
    """L{ShellProcess} against small programs."""

    def setUp(self) -> None:
        self.lines: list[str] = []
        self.hasEnded = Event()

    def start(self, program: str, timeoutSeconds: float = 600) -> ShellProcess:
        """A program of Python."""
        process = ShellProcess(
            WHERE,
            [sys.executable, "-c", program],
            None,
            {"OVER": "ours"},
            self.lines.append,
            self.hasEnded.set,
            timeoutSeconds,
        )
        self.addCleanup(process.close)
        return process

    def exchange(
        self, process: ShellProcess, isDone: Callable[[list[ShellMessage]], bool]
    ) -> list[ShellMessage]:
        """Messages, until there are enough."""
        got: list[ShellMessage] = []
        while not isDone(got):
            got += process.exchange()
        return got

    def failureOf(self, process: ShellProcess) -> str:
        """How it fails."""
        with self.assertRaises(ShellProcessError) as caught:
            self.exchange(process, lambda got: False)
        text = str(caught.exception)
        self.assertIn(WHERE, text)
        self.assertIn(sys.executable, text)
        return text

    def test_fullPipes(self) -> None:
        """Two pipes that are full in both directions do not wait for each other."""
        process = self.start(
            "import sys\n"
            "for line in sys.stdin:\n"
            '    sys.stdout.write("""{"command": "log", "msg": "%s"}\\nend\\n""" % line.strip())\n'
        )
        line = b"x" * 9_999 + b"\n"
        for _ in range(200):  # 2 MB in each direction; a pipe takes 64 KB
            process.write(line)
        self.assertFalse(process.flush())
        got = self.exchange(process, lambda got: process.flush() and len(got) > 190)
        self.assertEqual({len(str(each.msg)) for each in got}, {9_999})

    def test_environment(self) -> None:
        """The environment is ours, with the author's variables over it."""
        process = self.start(
            "import os, json\n"
            "msg = [os.environ['OVER'], os.environ['PATH']]\n"
            "print(json.dumps({'command': 'log', 'msg': msg}) + '\\nend')\n"
        )
        (message,) = self.exchange(process, bool)
        self.assertEqual(message.msg, ["ours", os.environ["PATH"]])

    def test_status(self) -> None:
        """An end has its exit status and the end of standard error; what came before is read."""
        process = self.start(
            "import sys\n"
            'print(\'{"command": "sync"}\\nend\', flush=True)\n'
            f"sys.stderr.write('much' * {STDERR_SIZE_MAX} + '\\nlast words\\n')\n"
            "sys.exit(3)\n"
        )
        self.assertEqual([each.command for each in self.exchange(process, bool)], ["sync"])
        text = self.failureOf(process)
        self.assertIn("ended with status 3", text)
        self.assertTrue(text.endswith("last words"))
        self.assertLess(len(text), STDERR_SIZE_MAX + 500)
        self.assertTrue(self.hasEnded.wait(60))
        self.assertEqual(self.lines[-1], "last words")

    def test_report(self) -> None:
        """What the subprocess has reported itself is quoted, too."""
        process = self.start("raise SystemExit(1)")
        process.lastReport = "the traceback"
        self.assertIn("it reported:\nthe traceback", self.failureOf(process))

    def test_signal(self) -> None:
        """A signal is named."""
        process = self.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        self.assertIn("ended by SIGKILL", self.failureOf(process))

    def test_writeToTheDead(self) -> None:
        """Writing to a subprocess that has ended fails as reading does: with its status."""
        process = self.start("raise SystemExit(5)")
        self.assertTrue(self.hasEnded.wait(60))
        process.write(b"x" * 1_000_000)
        self.assertIn("ended with status 5", self.failureOf(process))

    def test_hang(self) -> None:
        """A subprocess that is silent while an answer is awaited is killed."""
        process = self.start("import time; time.sleep(600)", 1)
        self.assertIn("it hangs: it was silent for 1 s", self.failureOf(process))

    def test_closedPipe(self) -> None:
        """A subprocess that closes its standard output is killed."""
        process = self.start("import os, time; os.close(1); time.sleep(600)")
        self.assertIn("it has closed a pipe", self.failureOf(process))

    def test_nonsense(self) -> None:
        """What is no message is quoted, and the subprocess is killed."""
        process = self.start("print('hello world\\nend', flush=True); import time; time.sleep(600)")
        text = self.failureOf(process)
        self.assertIn("it breaks the protocol: 'hello world' is no message", text)

    def test_notThere(self) -> None:
        """A program or a folder that is not there is named."""
        for command, folder in ((["/no/such/program"], None), ([sys.executable], "/no/folder")):
            with self.assertRaises(ShellProcessError) as caught:
                ShellProcess(WHERE, command, folder, None, print, lambda: None, 1)
            self.assertIn(folder or command[0], str(caught.exception))

    def test_close(self) -> None:
        """
        A subprocess whose standard input is closed may end by itself; one that writes on without
        an end is killed.
        """
        process = self.start("import sys; sys.stdin.read(); sys.stderr.write('by itself\\n')")
        process.close()
        self.assertEqual(self.lines, ["by itself"])
        process = self.start("import sys\nwhile True: sys.stdout.write('x' * 9999)")
        process.close()
        self.assertFalse(self.hasEnded.is_set())

    def test_watch(self) -> None:
        """A thread says when there are messages, and not again before they were handled."""
        process = self.start(
            'import sys\nfor line in sys.stdin: print(\'{"command": "sync"}\\nend\', flush=True)\n'
        )
        said: list[int] = []
        event = Event()

        def say() -> None:
            said.append(1)
            event.set()

        process.watch(say, process.handled)
        for _ in range(2):
            process.write(b"\n")
            process.flush()
            got: list[ShellMessage] = []
            while not got:
                self.assertTrue(event.wait(60))
                event.clear()
                before = len(said)
                got = process.read()  # perhaps not whole yet
                self.assertEqual(len(said), before)
                process.handled()
            self.assertEqual(len(got), 1)
