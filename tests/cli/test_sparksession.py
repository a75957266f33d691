"""
Tests for L{pylogbroker.cli.commands.load}.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from contextlib import redirect_stderr
from threading import Thread

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.load import (
    DEFAULT_MASTER,
    SPARK_OPTIONS,
    jobProgress,
    session,
    settingsOf,
)
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import LoadError
from pylogbroker.spark.loader.jobprogress import StageProgress
from tests.cli.commands import ROOT
from tests.cli.test_progress import Terminal
from tests.integration.sparksession import sharedSession


class OptionTests(SynchronousTestCase):
    """What people say of Spark."""

    def parse(self, *arguments: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        for argument in SPARK_OPTIONS:
            argument(parser)
        with redirect_stderr(io.StringIO()):
            return parser.parse_args(arguments)

    def test_settings(self) -> None:
        """Settings are Spark's, and may have signs in their values; anything else is refused."""
        options = self.parse("--conf", "spark.a=b=c", "--conf", "spark.driver.memory=4g")
        self.assertEqual(
            (options.master, options.settings),
            (DEFAULT_MASTER, [("spark.a", "b=c"), ("spark.driver.memory", "4g")]),
        )
        for wrong in ("spark.a", "driver.memory=4g"):
            self.assertRaises(SystemExit, self.parse, "--conf", wrong)

    def test_zone(self) -> None:
        """Times without a zone are those of UTC on every machine, unless somebody wants another."""
        zone = "spark.sql.session.timeZone"
        self.assertEqual(
            (
                settingsOf(self.parse(), "load")[zone],
                settingsOf(self.parse("--conf", f"{zone}=Asia/Kolkata"), "load")[zone],
            ),
            ("UTC", "Asia/Kolkata"),
        )

    def test_overridden(self) -> None:
        """C{--conf} overrides the master and the name that the command gives the session."""
        keys = ("spark.master", "spark.app.name")
        changes = ("--conf", "spark.master=local[7]", "--conf", "spark.app.name=nightly")
        for arguments, expected in (
            (("--master", "local[3]"), ("local[3]", "load")),
            (("--master", "local[3]", *changes), ("local[7]", "nightly")),
        ):
            found = settingsOf(self.parse(*arguments), "load")
            self.assertEqual(tuple(map(found.get, keys)), expected)

    def test_loopback(self) -> None:
        """Without other machines the driver listens for none, whatever names the master."""
        key = "spark.driver.bindAddress"
        elsewhere = ("--conf", "spark.master=spark://log1:7077")
        for arguments, expected in (((), "127.0.0.1"), (elsewhere, None)):
            self.assertEqual(settingsOf(self.parse(*arguments), "load").get(key), expected)


class ProgressTests(SynchronousTestCase):
    """What a terminal shows meanwhile."""

    def test_line(self) -> None:
        """
        The stage, its tasks, rows and bytes, which are taken away again, also when the job fails.
        """
        clock, terminal = Clock(), Terminal()

        def fail() -> None:
            with jobProgress(Streams(-1, -1, terminal), clock.seconds) as report:
                clock.advance(2)
                report(StageProgress("counting", 8, 3, 5000, 1_000_000))
                self.assertIn(
                    "counting, 3 of 8 tasks: 5,000 messages, 1.0 MB, 2,500 messages/s",
                    terminal.getvalue(),
                )
                raise LoadError("no")

        self.assertRaises(LoadError, fail)
        self.assertTrue(terminal.getvalue().endswith(" \r"))


class SessionTests(SynchronousTestCase):
    """A session."""

    def test_kept(self) -> None:
        """A program that has a session keeps it."""
        spark = sharedSession()
        with session(argparse.Namespace(master="local[1]", settings=[]), "a command") as found:
            self.assertIs(found, spark)
        self.assertEqual(spark.range(3).count(), 3)

    def test_keptByThread(self) -> None:
        """Also when the command is called in a thread that has not made it."""
        spark = sharedSession()
        found: list[object] = []

        def command() -> None:
            with session(
                argparse.Namespace(master="local[1]", settings=[]), "a command"
            ) as existing:
                found.append(existing)

        thread = Thread(target=command)
        thread.start()
        thread.join()
        self.assertEqual((found, spark.range(3).count()), ([spark], 3))

    def fails(self, before: str, *arguments: str) -> str:
        """A command, in a process that has done something before; what it says."""
        code = f"import sys; {before}\nfrom pylogbroker.cli.main import main\nsys.exit(main())"
        words = ["load", "/nonexistent/table", "--brokers", "h:1", "--topic", "x", *arguments]
        outcome = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        self.assertEqual((outcome.returncode, outcome.stdout), (1, ""), outcome.stderr)
        self.assertNotIn("Traceback", outcome.stderr)
        return outcome.stderr

    def test_withoutSpark(self) -> None:
        """Where Spark is not installed, the command says how to get it."""
        self.assertIn("pip install '.[spark]'", self.fails("sys.modules['pyspark.sql'] = None"))

    def test_doesNotStart(self) -> None:
        """A Spark that does not start is an error of a line."""
        self.assertIn("pylogbroker: Spark does not start: ", self.fails("", "--master", "nonsense"))
