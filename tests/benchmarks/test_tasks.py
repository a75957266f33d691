"""The benchmarks of tasks run. What they measure is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.tasks.job import Input, Job, loadJobs
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.streams import buildJob, stream
from tests.benchmarks.servers import ROOT
from tests.benchmarks.tasks import EXAMPLE, runCase, runStreamCase, streamJob


class StandbyBenchmarkTests(SynchronousTestCase):
    """Takeovers with and without a stand-by."""

    def test_figures(self) -> None:
        """There are figures of both."""
        command = [sys.executable, "-m", "tests.benchmarks.standbys", "--keys", "50"]
        done = subprocess.run(
            [*command, "--settle", "1"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found = re.findall(
            r"^50 keys, (\d) stand-bys: the task runs \d+\.\d\d s behind the rebalance, with \d+"
            " changes read$",
            done.stdout,
            re.MULTILINE,
        )
        self.assertEqual(found, ["0", "1"], done.stdout)


class TaskBenchmarkTests(SynchronousTestCase):
    """Cases of the word count."""

    def test_figures(self) -> None:
        """Each round prints its figures."""
        command = [sys.executable, "-m", "tests.benchmarks.tasks", "--seconds", "0.1"]
        done = subprocess.run(
            [*command, "--rounds", "2"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        figures = re.findall(r"^\| (\d \| \w+) \| [\d,]+ \| [\d,]+ \|$", done.stdout, re.MULTILINE)
        wanted = ["1 | low", "1 | high", "2 | low", "2 | high"]
        self.assertEqual(figures, wanted, done.stdout)

    def test_wrongCountsAreFound(self) -> None:
        """A case compares: a job that counts something else fails it."""
        jobs = loadJobs(str(EXAMPLE))
        split, count = jobs["split-words"], jobs["count-words"]
        runCase(split, count, ["a", "b", "a"])

        class Twice(count.task):  # type: ignore[name-defined]
            """Counts each word twice."""

            def process(self, envelope: object, collector: object, coordinator: object) -> None:
                """Twice."""
                for _ in range(2):
                    super().process(envelope, collector, coordinator)

        wrong = Job("wrong", Twice, [Input("words", STRING, INTEGER)], stores=count.stores)
        self.assertRaises(RuntimeError, runCase, split, wrong, ["a", "b", "a"])

    def test_wrongStreamsAreFound(self) -> None:
        """A high-level case compares, too."""
        runStreamCase(streamJob(), ["a", "b", "a"])
        words = stream("lines", message=STRING).map(lambda _key, line: (line, 1), STRING, INTEGER)
        wrong = buildJob("wrong", words.groupByKey().count("counts").toStream().to("counts"))
        self.assertRaises(RuntimeError, runStreamCase, wrong, ["a", "b", "a"])
