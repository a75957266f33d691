"""Tests of grouped tables, without a broker; L{tests.tasks.streams.test_duckdb} has random ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError, InvalidPayloadError
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.serdes import INTEGER, JSON, STRING
from pylogbroker.tasks.streams import KTable, TumblingWindow, buildJob, stream, table
from pylogbroker.tasks.streams.stores import OptionalPairSerde
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from tests.tasks.streams.drivers import pipe, sentTo

PEOPLE = [
    ("people", "ann", ["red", 1], 1),
    ("people", "bob", ["red", 10], 2),
    ("people", "cid", ["blue", 100], 3),
    ("people", "bob", ["red", 20], 4),  # its message changes, and not its group
    ("people", "ann", ["blue", 1], 5),  # its group changes
    ("people", "cid", None, 9),
    ("people", "cid", None, 10),
    ("people", "dan", None, 11),
]
"""By name: a team and points."""


def pair(key: Any, value: Any) -> tuple[Any, Any]:
    """Both."""
    return key, value


def byTeam() -> Any:
    """Points by team."""
    people = table("people", STRING, JSON)
    return people.groupBy(lambda _name, found: (found[0], found[1]), key=STRING, message=INTEGER)


def jobOf(result: KTable) -> Job:
    """Sends the changes of a table."""
    return buildJob("teams", result.toStream().to("out"))


class GroupTests(SynchronousTestCase):
    """What a group has."""

    def sent(self, result: KTable, messages: Any = PEOPLE, partitionCount: int = 1) -> list[Any]:
        """What comes of a table."""
        with TaskTestDriver(jobOf(result), partitionCount=partitionCount) as driver:
            pipe(driver, messages)
            return sentTo(driver, "out")

    def test_count(self) -> None:
        """Rows that come, go, and change their group; a group that has lost all has 0."""
        self.assertEqual(
            self.sent(byTeam().count()),
            [
                ("red", 1, 1),
                ("red", 2, 2),
                ("blue", 1, 3),
                ("red", 2, 4),
                ("red", 1, 5),
                ("blue", 2, 5),
                ("blue", 1, 9),
            ],
        )

    def test_reduce(self) -> None:
        """A row that changes in its group is replaced at once, with no value in between."""
        total = byTeam().reduce(lambda value, each: value + each, lambda value, each: value - each)
        self.assertEqual(
            [each[:2] for each in self.sent(total)],
            [
                ("red", 1),
                ("red", 11),
                ("blue", 100),
                ("red", 21),
                ("red", 20),
                ("blue", 101),
                ("blue", 1),
            ],
        )

    def test_aggregate(self) -> None:
        """L{None} removes the group; what comes later begins anew."""
        points = byTeam().aggregate(
            list,
            lambda team, each, value: [*value, f"{team} {each}"],
            lambda team, each, value: [it for it in value if it != f"{team} {each}"] or None,
            message=JSON,
        )
        self.assertEqual(
            [
                each[:2]
                for each in self.sent(
                    points,
                    [
                        *PEOPLE[:2],
                        ("people", "ann", None, 3),
                        ("people", "bob", ["blue", 1], 4),
                        ("people", "bob", ["red", 2], 5),
                    ],
                )
            ],
            [
                ("red", ["red 1"]),
                ("red", ["red 1", "red 10"]),
                ("red", ["red 10"]),
                ("red", None),
                ("blue", ["blue 1"]),
                ("blue", None),
                ("red", ["red 2"]),
            ],
        )

    def test_several(self) -> None:
        """Rows of several tasks meet in the task of their group."""
        found = self.sent(byTeam().count("sizes"), PEOPLE, 3)
        self.assertEqual({key: value for key, value, _time in found}, {"red": 1, "blue": 1})

    def test_derived(self) -> None:
        """Tables that are made of others can be grouped, and what comes of groups is a table."""
        people = table("people", STRING, JSON)
        small = people.filter(lambda _name, found: found[1] < 100)
        names = table("names", STRING, STRING)
        both = small.join(names, lambda found, name: [found[0], name], JSON)
        teams = both.groupBy(lambda _name, found: (found[0], found[1]), STRING, STRING)
        joined = teams.count().join(table("colors", STRING, STRING), lambda n, c: [n, c], JSON)
        with TaskTestDriver(jobOf(joined)) as driver:
            pipe(driver, [("names", "ann", "Ann", 0), ("names", "cid", "Cid", 0)])
            pipe(driver, [("colors", "red", "#f00", 0), ("colors", "blue", "#00f", 0), *PEOPLE])
            found = [(key, value) for key, value, _time in sentTo(driver, "out")]
        self.assertEqual(found, [("red", [1, "#f00"]), ("red", [0, "#f00"]), ("blue", [1, "#00f"])])

    def test_dropped(self) -> None:
        """Rows without a group, or a message there, are left out and counted."""
        messages = [("people", "ann", [None, 1], 1), ("people", "bob", ["red", None], 2)]
        with TaskTestDriver(jobOf(byTeam().count())) as driver:
            pipe(driver, [*PEOPLE[:1], *messages])
            self.assertEqual(driver.countOf("dropped-groupBy"), 2)
            self.assertEqual(sentTo(driver, "out"), [("red", 1, 1), ("red", 0, 1)])

    def test_plan(self) -> None:
        """Steps, stores and topics have names of their own."""
        job = jobOf(byTeam().count("sizes"))
        self.assertEqual(
            [(each.name, each.kindName, each.stores) for each in job.steps],
            [
                ("people", "table", ("people",)),
                ("groupBy", "groupBy", ("groupBy",)),
                ("groupBy-repartition", "repartition", ()),
                ("sizes", "count", ("sizes",)),
                ("toStream", "toStream", ()),
                ("to", "to", ()),
            ],
        )
        self.assertEqual([each.name for each in job.repartitions], ["groupBy"])

    def test_refused(self) -> None:
        """Tables of windows, what is no function, and serdes that are not known."""
        counts = stream("in", STRING, STRING).groupByKey().window(TumblingWindow(5)).count()
        for call, reason in (
            (lambda: counts.filter(pair).groupBy(pair), "a groupBy: a table of windows forgets"),
            (lambda: byTeam().reduce(pair, 5), "a reduce: 5 is no function"),
            (
                lambda: jobOf(table("in", STRING, STRING).groupBy(pair, STRING).count()),
                "step groupBy: the serde of its values is not known",
            ),
            (
                lambda: jobOf(table("in", STRING, STRING).groupBy(pair, None, STRING).count()),
                "step groupBy: the serde of its keys is not known",
            ),
        ):
            error = self.assertRaises(ConfigurationError, call)
            self.assertIn(reason, str(error))


class PairTests(SynchronousTestCase):
    """L{OptionalPairSerde}."""

    @given(st.tuples(*[st.none() | st.text(max_size=5)] * 2))
    def test_roundTrip(self, pair: tuple[str | None, str | None]) -> None:
        """A pair is what it was; no part of its bytes is one."""
        serde = OptionalPairSerde(STRING, STRING)
        data = serde.encode(pair)
        self.assertEqual(serde.decode(data), pair)
        for size in range(len(data)):
            self.assertRaises(InvalidPayloadError, serde.decode, data[:size])
        self.assertRaises(InvalidPayloadError, serde.decode, data + b"\0")
        self.assertEqual(serde.name, "string and string")
