"""Tests for L{pylogbroker.topologies.groupings}."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import TupleError
from pylogbroker.topologies.api import Grouping, TopologyContext
from pylogbroker.topologies.groupings import Chooser, chooserOf, stableHash

TASKS = (4, 5, 6, 7)


def contextWith(start: float = 0.0, tasks: Sequence[int] = TASKS) -> TopologyContext:
    """Of an instance of C{words}, which emits to C{count}."""
    return TopologyContext(
        "t",
        "words",
        1,
        0,
        {"words": [1], "count": tasks},
        {"words": {"default": ["word", "n"]}, "count": {}},
        lambda: 0.0,
        lambda: start,
        lambda name, number: None,
    )


def chooser(grouping: Grouping, start: float = 0.0, localTasks: Sequence[int] = ()) -> Chooser:
    """For the tuples of C{words}."""
    return chooserOf(grouping, contextWith(start), "default", "count", localTasks)


class Text(StrEnum):
    """Strings by name."""

    A = "a"


class Place(Enum):
    """Has a value, and is none."""

    B = "b"


class GroupingTests(SynchronousTestCase):
    """Which tasks get a tuple."""

    def test_shuffle(self) -> None:
        """Each task gets equally many, in turn, from where chance says; none is the same."""
        for grouping in (Grouping.SHUFFLE, Grouping.NONE, Grouping.LOCAL_OR_SHUFFLE):
            choose = chooser(grouping, 0.5)
            self.assertEqual(
                [tuple(choose(["a", 1])) for _ in range(5)], [(6,), (7,), (4,), (5,), (6,)]
            )

    def test_all(self) -> None:
        """All tasks get it."""
        self.assertEqual(tuple(chooser(Grouping.ALL)(["a", 1])), TASKS)

    def test_global(self) -> None:
        """The task with the lowest number gets all."""
        choose = chooserOf(Grouping("global"), contextWith(0, (9, 3, 5)), "default", "count")
        self.assertEqual([tuple(choose([n, n])) for n in range(3)], [(3,)] * 3)

    def test_local(self) -> None:
        """The tasks of the own container take turns, if there are any."""
        choose = chooser(Grouping.LOCAL_OR_SHUFFLE, 0, [1, 5, 7])
        self.assertEqual([tuple(choose(["a", 1])) for _ in range(3)], [(5,), (7,), (5,)])

    def test_oneTask(self) -> None:
        """One task gets everything, values that cannot be grouped by, too."""
        choose = chooserOf(Grouping.fields("word"), contextWith(0, [8]), "default", "count")
        self.assertEqual(tuple(choose([object(), 1])), (8,))

    def test_fields(self) -> None:
        """Equal values go to one task, and many values to all tasks about equally."""
        choose = chooser(Grouping.fields("word"))
        counts = Counter(choose([f"word-{n}", n])[0] for n in range(4000))
        self.assertEqual(set(counts), set(TASKS))
        self.assertTrue(all(900 < count < 1100 for count in counts.values()), counts)
        again = chooser(Grouping.fields("word"), 0.9)
        for n in range(50):
            self.assertEqual(choose([f"word-{n}", n]), again([f"word-{n}", -n]))

    def test_numbers(self) -> None:
        """Numbers with a common divisor spread, too."""
        choose = chooser(Grouping.fields("n"))
        counts = Counter(choose(["", n * 4])[0] for n in range(4000))
        self.assertTrue(all(900 < counts[task] < 1100 for task in TASKS), counts)

    def test_equalValues(self) -> None:
        """What is equal in Python, or becomes equal on the way, has one hash."""
        east = timezone(timedelta(hours=2))
        for left, right in (
            (1, 1.0),
            (1, True),
            (0.0, -0.0),
            (b"a", bytearray(b"a")),
            ("a", Text.A),
            ([1, "a"], (1, "a")),
            ({"a": 1, "b": [2]}, {"b": (2.0,), "a": 1}),
            ({1, 2}, frozenset([2, 1])),
            (Place.B, "b"),
            ([UUID(int=1)], [str(UUID(int=1))]),
            (datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 14, tzinfo=east)),
        ):
            self.assertEqual(stableHash(left), stableHash(right), (left, right))
        choose = chooser(Grouping.fields("word"))
        self.assertEqual(choose(["a", 0]), choose([Text.A, 0]))

    def test_differentValues(self) -> None:
        """Values that differ have different hashes, nested ones too."""
        values: list[Any] = [
            None, 0, 1, 1.5, float("inf"), "", "a", "1", b"a", [], ["a"], ["a", "b"], ["ab"],
            [["a"], "b"], [["a", "b"]], {}, {"a": "b"}, date(2026, 1, 1), "\ud800",
            datetime(2026, 1, 1),  # noqa: DTZ001 - it may be without a time zone
        ]  # fmt: skip
        self.assertEqual(len({stableHash(value) for value in values}), len(values))

    def test_severalFields(self) -> None:
        """Several fields go together."""
        choose = chooser(Grouping.fields("n", "word"))
        counts = Counter(choose(["a", n])[0] for n in range(400))
        self.assertEqual(set(counts), set(TASKS))
        self.assertEqual(choose(["a", 7]), choose(["a", 7.0]))

    def test_known(self) -> None:
        """Hashes are these, in each process and for each version: they are written down."""
        values: list[Any] = ["word", 12, -1.25, None, [b"x", {"k": True}]]
        known = [2598749967, 3066920847, 2545533485, 701932520, 743771563]
        self.assertEqual([stableHash(value) for value in values], known)
        code = (
            "from pylogbroker.topologies.groupings import stableHash;"
            f"print([stableHash(value) for value in {values!r}])"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(out.stdout.strip(), str(known), out.stderr)

    def test_otherTypes(self) -> None:
        """What cannot be a value is named."""
        error = self.assertRaises(TupleError, stableHash, [1j])
        self.assertEqual(str(error), "a complex cannot be grouped by: 1j")


class Ends:
    """A custom grouping: the first and the last task."""

    def prepare(self, context: TopologyContext, stream: str, targetTasks: Sequence[int]) -> None:
        """Keep what it gets."""
        self.given = (context.component, stream, tuple(targetTasks))
        self.targets = targetTasks

    def chooseTasks(self, values: Sequence[Any]) -> Sequence[int]:
        """Both ends, or a wrong one."""
        return [99] if values[0] == "wrong" else [self.targets[0], self.targets[-1]]


class CustomTests(SynchronousTestCase):
    """Groupings of the author's."""

    def test_custom(self) -> None:
        """It is prepared once, and asked for each tuple."""
        made: list[Ends] = []

        def make() -> Ends:
            made.append(Ends())
            return made[-1]

        choose = chooser(Grouping.custom(make))
        self.assertEqual([list(choose(["a", n])) for n in range(2)], [[4, 7]] * 2)
        self.assertEqual([each.given for each in made], [("words", "default", TASKS)])

    def test_wrongTask(self) -> None:
        """A task that is none of the bolt's is refused."""
        error = self.assertRaises(TupleError, chooser(Grouping.custom(Ends)), ["wrong", 1])
        self.assertEqual(
            str(error),
            "the custom grouping of words.default for count chose [99], of the tasks [4, 5, 6, 7]",
        )
