"""
Tests for L{pylogbroker.producer.plugins}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.producer.plugins import callableOf, loadPlugin


class Partitioner:
    """Has the method."""

    def partition(self, key: Any, count: int) -> int:
        return count - 1


class Demanding:
    """Cannot be made without arguments."""

    def __init__(self, argument: object) -> None:
        pass


def last(key: Any, count: int) -> int:
    """A function."""
    return count - 1


class LoadTests(SynchronousTestCase):
    """What a property names."""

    def refused(self, name: str, method: str | None = None) -> str:
        return str(
            self.assertRaises(
                ConfigurationError, loadPlugin, "some.key", name, {"built.in": 1}, method
            )
        )

    def test_builtIn(self) -> None:
        """Names of what is built in are not imported."""
        self.assertEqual(loadPlugin("k", "built.in", {"built.in": 1}), 1)

    def test_classOrFunction(self) -> None:
        """A class is made, and gives its method; a function is one; without a method the object itself is wanted."""
        for name in ("Partitioner", "last"):
            self.assertEqual(loadPlugin("k", f"{__name__}.{name}", {}, "partition")("key", 5), 4)
        self.assertIsInstance(loadPlugin("k", f"{__name__}.Partitioner", {}), Partitioner)

    def test_refused(self) -> None:
        """What cannot be imported, made, or called is a configuration error that names key, name and reason."""
        for name, why in (
            (
                "word",
                "some.key=word: a dotted name is needed, package.module.Class (built in: built.in)",
            ),
            ("no.such.module.Class", "cannot be imported"),
            (f"{__name__}.Nothing", "cannot be imported"),
            (f"{__name__}.Demanding", "cannot be made without arguments"),
        ):
            self.assertIn(why, self.refused(name, "partition"))
        self.assertIn(
            "neither a function nor has it a method partition",
            str(self.assertRaises(ConfigurationError, callableOf, "k", 7, "partition")),
        )
        self.assertIn(
            "cannot be imported",
            str(self.assertRaises(ConfigurationError, loadPlugin, "k", "no.such", {})),
        )
