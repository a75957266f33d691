"""
Tests for L{pylogbroker.spark.loader.jobprogress}.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import LoadError
from pylogbroker.spark.loader.jobprogress import (
    StageProgress,
    reason,
    reportProgress,
    stageOutput,
    translateErrors,
)
from tests.integration.brokerprocess import ROOT
from tests.spark.loader.cases import SparkCase


class WatchTests(SparkCase):
    """A job, while it runs."""

    def test_told(self) -> None:
        """
        The callback gets the stage, its tasks and its output until the job is done. Then no thread
        watches, and the thread's jobs belong to their former group.
        """
        reports: list[StageProgress] = []
        seen = threading.Event()
        self.spark.sparkContext.setJobGroup("mine", "my own")
        self.addCleanup(self.spark.sparkContext.setLocalProperty, "spark.jobGroup.id", None)
        self.addCleanup(self.spark.sparkContext.setLocalProperty, "spark.job.description", None)

        def report(progress: StageProgress) -> None:
            reports.append(progress)
            seen.set()

        with reportProgress(self.spark, "run1", "reading", report):
            count = 2_000_000
            while not seen.is_set():  # until one takes longer than it takes to look
                self.spark.range(count).selectExpr("sum(hash(id))").collect()
                count *= 2
        self.assertEqual(reports[0].stage, "reading")
        self.assertGreaterEqual(reports[0].taskCount, 1)
        self.assertEqual(
            [thread.name for thread in threading.enumerate() if thread.name == "pylogbroker-load"],
            [],
        )
        self.assertEqual(self.spark.sparkContext.getLocalProperty("spark.jobGroup.id"), "mine")
        self.assertEqual(
            self.spark.sparkContext.getLocalProperty("spark.job.description"), "my own"
        )

    def test_forgotten(self) -> None:
        """A stage that Spark does not know any more is nothing to tell of."""
        self.assertIsNone(stageOutput(self.spark.sparkContext, 10**6))

    def test_statusStore(self) -> None:
        """
        The installed Spark still has what is read of it without a public API: rows and bytes of
        each stage of a job, to a shuffle and to files.
        """
        context = self.spark.sparkContext
        context.setJobGroup("written", "")
        self.addCleanup(context.setLocalProperty, "spark.jobGroup.id", None)
        self.spark.range(0, 1_000, 1, 1).repartition(2).write.parquet(self.folder)
        tracker = context.statusTracker()
        outputs = []
        for job in tracker.getJobIdsForGroup("written"):
            info = tracker.getJobInfo(job)
            assert info is not None
            outputs += [stageOutput(context, number) for number in info.stageIds]
        found = [output for output in outputs if output is not None and output[0]]
        self.assertEqual({rowCount for rowCount, _size in found}, {1_000})
        self.assertGreaterEqual(len(found), 2)
        self.assertEqual([size for _rowCount, size in found if size < 1_000], [])

    def test_nobody(self) -> None:
        """Without a callback or without a context, no thread watches."""
        with reportProgress(self.spark, "run1", "reading", None):
            self.assertEqual(
                [
                    thread.name
                    for thread in threading.enumerate()
                    if thread.name == "pylogbroker-load"
                ],
                [],
            )


class FailingTests(SynchronousTestCase):
    """What Spark says, in short."""

    def test_ours(self) -> None:
        """The last error of ours in a worker's traceback is the reason."""
        text = (
            "An error occurred\nTraceback …\npylogbroker.errors.WireError: first\n  at x\n"
            "pylogbroker.errors.DataLossError: it is gone\n\tat org.apache"
        )
        self.assertEqual(reason(text), "it is gone (DataLossError)")

    def test_sparks(self) -> None:
        """Otherwise the first line that says something, cut to a readable length."""
        self.assertEqual(
            reason(
                "An error occurred while calling o4.load.\n: java.io.IOException: no space\n\tat x"
            ),
            "java.io.IOException: no space",
        )
        self.assertEqual(reason("\n [NO_COLUMN] there is none\n"), "[NO_COLUMN] there is none")
        self.assertEqual(reason(""), "Spark gives no reason")
        self.assertEqual(len(reason("x" * 9_999)), 500)

    def test_noJava(self) -> None:
        """
        Without a Java runtime the reason is that, as C{pylogbroker dev} says it, and not the name
        of PySpark's error.
        """
        text = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
        self.assertEqual(
            reason(text, {"PATH": "/nowhere"}),
            "it needs a Java runtime, and there is none: install one of version 17 or later"
            " (Debian: default-jre-headless)",
        )
        self.assertIn(
            "and JAVA_HOME=/nowhere has none: install one",
            reason(text, {"JAVA_HOME": "/nowhere", "PATH": os.environ["PATH"]}),
        )

    def test_oldJava(self) -> None:
        """A Java runtime that ends at once is named."""
        folder = self.mktemp()
        os.makedirs(f"{folder}/bin")
        with open(f"{folder}/bin/java", "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nexit 1\n")
        os.chmod(f"{folder}/bin/java", 0o755)
        for environment in ({"JAVA_HOME": folder}, {"PATH": f"{folder}/bin"}):
            self.assertEqual(
                reason("[JAVA_GATEWAY_EXITED] It has.", environment),
                f"its Java process has ended at once; is {folder}/bin/java of version 17 or later?",
            )

    def test_commandWithoutJava(self) -> None:
        """The command says what to install, as its last line, and exits with 1."""
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "pylogbroker",
                "load",
                self.mktemp(),
                "--brokers",
                "127.0.0.1:1",
                "--topic",
                "clicks",
            ],
            env={**os.environ, "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(
            ended.stderr.splitlines()[-1],
            r"Spark does not start: it needs a Java runtime, .*: install one .*Debian",
        )

    def test_raised(self) -> None:
        """
        Whatever Spark raises is a load that came to nothing; what is not Spark's goes through.
        """
        for error in (PySparkException("a reason"), Py4JError("a reason")):
            with self.assertRaises(LoadError) as caught, translateErrors():
                raise error
            self.assertIn("nothing was committed: a reason", str(caught.exception))
        with self.assertRaises(ZeroDivisionError), translateErrors():
            raise ZeroDivisionError
