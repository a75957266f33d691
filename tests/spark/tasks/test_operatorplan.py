"""Tests of L{pylogbroker.spark.tasks.operatorplan}, which need no Spark."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.tasks.operatorplan import (
    OPERATORS,
    areOperatorsWanted,
    obstaclesOf,
    operatorPlan,
    withoutRepartitions,
)
from pylogbroker.tasks.job import SKIP
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.streams import (
    JoinWindow,
    KSink,
    KStream,
    KTable,
    TumblingWindow,
    buildJob,
    stream,
    table,
)
from tests.tasks.jobs import countWords


def numbers(topic: str = "in") -> KStream:
    """The stream that tests begin with."""
    return stream(topic, STRING, INTEGER)


def pair(left: Any, right: Any) -> Any:
    """Joins."""
    return left


def every(key: Any, message: Any) -> bool:
    """Filters nothing out."""
    return True


def obstacles(*results: KSink | KStream | KTable, **changes: Any) -> list[str]:
    """Why a job of these results does not run as Spark's operators."""
    return obstaclesOf(buildJob("job", *results, **changes))


class PlanTests(SynchronousTestCase):
    """Jobs that Spark's operators can run."""

    def test_stateless(self) -> None:
        """Functions, merges, repartitions that were asked for, whatever C{onError} says."""
        changed = numbers().map(lambda key, number: (key, number), STRING, INTEGER)
        merged = changed.merge(numbers("more").peek(print)).repartition().filter(every)
        self.assertEqual(obstacles(merged.to("out"), onError=SKIP), [])

    def test_counts(self) -> None:
        """
        Counts, of a stream and of the same one under other keys, and what comes of them. The steps
        are divided at the counts.
        """
        counts = numbers().groupByKey().count("by-key")
        others = numbers().groupBy(lambda key, number: number, INTEGER).count("by-number")
        results = counts.filter(lambda key, count: count > 2).toStream().mapValues(str, STRING)
        job = buildJob("job", results.to("out"), others)
        self.assertEqual(obstaclesOf(job), [])
        plan = operatorPlan(job.steps)
        self.assertEqual([each.name for each in plan.counts], ["by-key", "by-number"])
        self.assertEqual(
            [each.name for each in plan.before],
            ["in", "by-key", "in-2", "selectKey", "selectKey-repartition", "by-number"],
        )
        self.assertEqual(
            [each.name for each in plan.behind],
            ["by-key", "by-number", "filter", "toStream", "mapValues", "to"],
        )

    def test_topics(self) -> None:
        """There are no repartition topics; inputs must still have equally many partitions."""
        merged = numbers().merge(numbers("more"))
        both = merged.groupByKey().count()
        moved = merged.selectKey(lambda key, number: number, INTEGER).groupByKey().count()
        job = buildJob("job", both, moved)
        self.assertEqual(len(job.repartitions), 1)
        found = withoutRepartitions(job)
        self.assertEqual(found.repartitions, ())
        self.assertEqual(found.copartitions, (["in", "more"],))
        self.assertEqual(found.stores, job.stores)

    def test_setting(self) -> None:
        """It can be switched off, and a wrong value is an error."""
        self.assertTrue(areOperatorsWanted({}))
        self.assertFalse(areOperatorsWanted({OPERATORS: "false"}))
        with self.assertRaisesRegex(ConfigurationError, f"{OPERATORS}=no: it must be true or fals"):
            areOperatorsWanted({OPERATORS: "no"})
        job = buildJob("job", numbers().to("out"))
        self.assertEqual(obstaclesOf(job, areWanted=False), [f"{OPERATORS}=false"])


class ObstacleTests(SynchronousTestCase):
    """Jobs that run by their tasks, and why."""

    def assertObstacle(self, text: str, *results: KSink | KStream | KTable, **changes: Any) -> None:
        """There is one, which begins so."""
        [found] = obstacles(*results, **changes)
        self.assertEqual(found[: len(text)], text)

    def test_lowLevel(self) -> None:
        """A job without steps."""
        self.assertEqual(
            obstaclesOf(countWords()), ["it has no steps, as jobs of the low-level API"]
        )

    def test_steps(self) -> None:
        """Tables, joins, windows, functions that aggregate: each step is named."""
        groups = numbers().groupByKey()
        self.assertObstacle("step t: a table", table("t", STRING, INTEGER))
        self.assertObstacle(
            "step sums: Spark's aggregations call no function", groups.reduce(pair, name="sums")
        )
        window = groups.window(TumblingWindow(10)).count("w")
        self.assertObstacle("step w: Spark closes windows by one watermark", window)
        joined = numbers().join(numbers("more"), pair, JoinWindow(1, 1), name="near")
        self.assertObstacle("step near: Spark's join forgets", joined.filter(every))
        counts = groups.count("a").join(groups.count("b"), pair, name="both")
        self.assertObstacle("step both: Spark has no operator that joins tables", counts)
        self.assertEqual(
            [each.split(":")[0] for each in obstacles(numbers().join(table("t", STRING), pair))],
            ["step t", "step join"],
        )

    def test_countOfCounts(self) -> None:
        """Spark has one aggregation in a query."""
        counts = numbers().groupByKey().count("first").toStream()
        again = counts.groupBy(lambda key, count: count, INTEGER).count("second")
        self.assertObstacle("step second: it comes of another count", again)

    def test_groupsOfTables(self) -> None:
        """Also those of a count."""
        counts = numbers().groupByKey().count("first")
        again = counts.groupBy(lambda key, count: (count, key), INTEGER, STRING).count("second")
        found = obstacles(again)
        self.assertEqual(len(found), 2)
        for each in found:
            self.assertIn("Spark has no operator for groups of a table", each)

    def test_besideCounts(self) -> None:
        """What does not come of a count, in a job with one."""
        counts = numbers().groupByKey().count("counts")
        self.assertObstacle("step to: it does not come of a count", counts, numbers().to("out"))
        merged = counts.toStream().merge(numbers(), "merged")
        self.assertObstacle("step merged: it merges what comes of a count", merged)
        self.assertObstacle("onError=skip: a message is left out", counts, onError=SKIP)

    def test_origins(self) -> None:
        """Messages whose task is their partition's, and others whose task is their key's."""
        mixed = numbers().repartition().merge(numbers("more")).groupByKey().count("counts")
        self.assertObstacle("step counts: its messages come by a repartition, and", mixed)
