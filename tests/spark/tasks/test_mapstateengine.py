"""Tests for L{pylogbroker.spark.tasks.mapstateengine}, over a map of the test's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as some
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.spark.tasks.mapstateengine import MapStateEngine
from pylogbroker.tasks.state.engines import ChangelogMark

MARK = ChangelogMark(bytes(16), 0)
KEYS = some.binary(max_size=2)
Step = tuple[str, bytes | None, bytes | None]


class FakeMapState:
    """
    As Spark's: entries in no order, values as the JVM gives them.

    @ivar calls: by method: each would be a round trip.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.calls: Counter[str] = Counter()

    def exists(self) -> bool:
        return bool(self.entries)

    def getValue(self, key: tuple[bytes]) -> tuple[bytes] | None:
        self.calls["getValue"] += 1
        found = self.entries.get(key[0])
        return None if found is None else (bytearray(found),)  # type: ignore[return-value]

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:
        self.calls["updateValue"] += 1
        self.entries[key[0]] = value[0]

    def removeKey(self, key: tuple[bytes]) -> None:
        self.calls["removeKey"] += 1
        self.entries.pop(key[0], None)

    def iterator(self) -> Iterator[tuple[tuple[bytes], tuple[bytes]]]:
        self.calls["iterator"] += 1
        return iter([((key,), (value,)) for key, value in reversed(self.entries.items())])


class EngineTests(SynchronousTestCase):
    """Entries come back in the order of keys, with as few round trips as can be."""

    @given(
        some.lists(
            some.one_of(
                some.tuples(some.just("write"), KEYS, some.none() | some.binary(max_size=40)),
                some.tuples(some.just("get"), KEYS, some.none()),
                some.tuples(some.just("range"), some.none() | KEYS, some.none() | KEYS),
            ),
            max_size=30,
        ),
        some.sampled_from([0, 60, 1 << 20]),
    )
    def test_random(
        self, steps: list[tuple[str, bytes | None, bytes | None]], copySizeMax: int
    ) -> None:
        """Random steps do what they do with a dictionary, whatever is kept."""
        truth: dict[bytes, bytes] = {}
        state = FakeMapState()
        engine = MapStateEngine(state, copySizeMax)
        for what, first, other in steps:
            key = first or b""
            if what == "write":
                engine.write([(key, other)], MARK)
                if other is None:
                    truth.pop(key, None)
                else:
                    truth[key] = other
            elif what == "get":
                self.assertEqual(engine.get(key), truth.get(key))
            else:
                expected = sorted(
                    entry
                    for entry in truth.items()
                    if (first is None or entry[0] >= first) and (other is None or entry[0] < other)
                )
                found = engine.range(first, other)
                engine.write([], MARK)
                self.assertEqual(list(found), expected)
        self.assertEqual(state.entries, truth)

    def test_copy(self) -> None:
        """
        Behind a range nothing is read again, unless the store is too large to be kept. A range is
        as it was at the call.
        """
        state = FakeMapState()
        engine = MapStateEngine(state, 100)
        engine.write([(b"b", b"2"), (b"a", b"1")], MARK)
        found = engine.range(None, None)
        engine.write([(b"a", None), (b"c", b"3")], MARK)
        self.assertEqual(list(found), [(b"a", b"1"), (b"b", b"2")])
        self.assertEqual(list(engine.range(b"b", None)), [(b"b", b"2"), (b"c", b"3")])
        self.assertEqual((engine.get(b"a"), engine.get(b"c")), (None, b"3"))
        self.assertEqual((state.calls["iterator"], state.calls["getValue"]), (1, 0))
        self.assertEqual(engine.size, 4)
        engine.write([(b"d", bytes(200))], MARK)
        self.assertEqual(len(list(engine.range(None, None))), 3)
        self.assertEqual(len(list(engine.range(None, None))), 3)
        self.assertEqual((state.calls["iterator"], engine.size), (3, 0))
        engine.close()
        self.assertEqual(engine.get(b"b"), b"2")

    def test_clear(self) -> None:
        """Nothing is left."""
        state = FakeMapState()
        engine = MapStateEngine(state, 100)
        engine.clear()
        engine.write([(b"b", b"2"), (b"a", b"1")], MARK)
        self.assertEqual(len(list(engine.range(None, None))), 2)
        engine.clear()
        self.assertEqual(state.entries, {})
        self.assertEqual(list(engine.range(None, None)), [])
        self.assertIs(engine.mark, None)
