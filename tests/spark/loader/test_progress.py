"""
Tests for L{pylogbroker.spark.loader.progress}.
"""

from __future__ import annotations

import threading

from pylogbroker.spark.loader.progress import StageProgress, stageOutput, watched
from tests.spark.loader.cases import SparkCase


class WatchTests(SparkCase):
    """A job, while it runs."""

    def test_told(self) -> None:
        """Somebody is told of the stage, its tasks and what it has put out, until the job is done; then nobody watches, and jobs belong to whom they did."""
        reports: list[StageProgress] = []
        seen = threading.Event()
        self.spark.sparkContext.setJobGroup("mine", "my own")
        self.addCleanup(self.spark.sparkContext.setLocalProperty, "spark.jobGroup.id", None)
        self.addCleanup(self.spark.sparkContext.setLocalProperty, "spark.job.description", None)

        def report(progress: StageProgress) -> None:
            reports.append(progress)
            seen.set()

        with watched(self.spark, "run1", "reading", report):
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
        """The installed Spark still has what is read of it without a public API: rows and bytes of each stage of a job, to a shuffle and to files."""
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
        """Without somebody to tell, and without a context to ask, nothing is watched."""
        with watched(self.spark, "run1", "reading", None):
            self.assertEqual(
                [
                    thread.name
                    for thread in threading.enumerate()
                    if thread.name == "pylogbroker-load"
                ],
                [],
            )
