"""Tests for L{pylogbroker.tasks.state.keyvaluestore}."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import EncodingError, InvalidPayloadError, RecordTooLargeError
from pylogbroker.tasks.serdes import BYTES, INTEGER, STRING
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import ENTRY_OVERHEAD, KeyValueStore
from pylogbroker.tasks.state.memoryengine import MemoryEngine

KEYS = st.text("abé", max_size=2)
BOUNDS = st.none() | KEYS
VALUES = st.integers(-3, 3)
CACHE_SIZES = st.sampled_from([1, 2 * ENTRY_OVERHEAD + 10, 1 << 20])


def newStore(engine: MemoryEngine, cacheSize: int = 1 << 20) -> KeyValueStore[str, int]:
    """A store of numbers by words."""
    return KeyValueStore("s", STRING, INTEGER, engine, cacheSize)


def between(entries: dict[str, int], start: str | None, end: str | None) -> list[tuple[str, int]]:
    """What a range gives."""
    found = [
        (key, value)
        for key, value in entries.items()
        if (start is None or key >= start) and (end is None or key < end)
    ]
    return sorted(found, key=lambda entry: entry[0].encode())


class StoreMachine(RuleBasedStateMachine):
    """
    A store beside a dict.

    @ivar current: what the task sees.
    @ivar atBegin: what it saw when the message was begun.
    @ivar committed: what the engine has.
    @ivar changed: the keys that were written since the last commit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.engine = MemoryEngine()
        self.store = newStore(self.engine, 1)
        self.current: dict[str, int] = {}
        self.atBegin: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.changed: set[str] = set()
        self.changedAtBegin: set[str] = set()
        self.offset = 0
        self.ranges: list[tuple[Iterator[tuple[str, int]], list[tuple[str, int]]]] = []

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: int) -> None:
        """Write."""
        self.store.put(key, value)
        self.current[key] = value
        self.changed.add(key)

    @rule(entries=st.dictionaries(KEYS, st.none() | VALUES, max_size=3))
    def putAll(self, entries: dict[str, int | None]) -> None:
        """Write several; C{None} deletes."""
        self.store.putAll(iter(entries.items()))
        for key, value in entries.items():
            self.changed.add(key)
            if value is None:
                self.current.pop(key, None)
            else:
                self.current[key] = value

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        """Remove, whether it is there or not."""
        self.store.delete(key)
        self.current.pop(key, None)
        self.changed.add(key)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        """Read one."""
        assert self.store.get(key) == self.current.get(key)

    @rule(start=BOUNDS, end=BOUNDS)
    def range(self, start: str | None, end: str | None) -> None:
        """Read several."""
        assert list(self.store.range(start, end)) == between(self.current, start, end)

    @rule(start=KEYS, end=BOUNDS)
    def first(self, start: str, end: str | None) -> None:
        """Read the first of several."""
        wanted = between(self.current, start, end)
        assert self.store.first(start, end) == (wanted[0] if wanted else None)

    @rule(start=BOUNDS, end=BOUNDS)
    @precondition(lambda self: len(self.ranges) < 3)
    def beginRange(self, start: str | None, end: str | None) -> None:
        """Begin to read several: what is written before the end is read does not show."""
        self.ranges.append((self.store.range(start, end), between(self.current, start, end)))

    @rule()
    @precondition(lambda self: self.ranges)
    def continueRange(self) -> None:
        """Read one entry."""
        found, wanted = self.ranges[0]
        if wanted:
            assert next(found) == wanted.pop(0)

    @rule()
    @precondition(lambda self: self.ranges)
    def finishRange(self) -> None:
        """Read the rest."""
        found, wanted = self.ranges.pop(0)
        assert list(found) == wanted

    @rule()
    def begin(self) -> None:
        """The next message."""
        self.store.begin()
        self.atBegin, self.changedAtBegin = dict(self.current), set(self.changed)

    @rule()
    def rollBack(self) -> None:
        """The message has failed. The next one is begun before anything else is written."""
        self.store.rollBack()
        self.current, self.changed = self.atBegin, self.changedAtBegin
        self.begin()

    @rule()
    def commit(self) -> None:
        """All goes into the engine, each key once, and the mark with it."""
        changes = self.store.changes()
        wanted = {
            key.encode(): None
            if (value := self.current.get(key)) is None
            else INTEGER.encode(value)
            for key in self.changed
        }
        assert len(changes) == len(wanted)
        assert dict(changes) == wanted
        self.offset += len(changes)
        mark = ChangelogMark(b"i" * 16, self.offset)
        self.store.commit(changes, mark)
        assert self.store.mark == self.engine.mark == mark
        self.committed = dict(self.current)
        self.changed = set()
        self.begin()

    @rule(cacheSize=CACHE_SIZES)
    def reopen(self, cacheSize: int) -> None:
        """What was committed is there; the rest is gone."""
        self.store = newStore(self.engine, cacheSize)
        self.current = dict(self.committed)
        self.changed = set()
        self.begin()

    @invariant()
    def isCounted(self) -> None:
        """C{dirtySize} is that of what is not committed."""
        changes = self.store.changes()
        assert self.store.dirtySize == sum(
            ENTRY_OVERHEAD + len(key) + len(value or b"") for key, value in changes
        )
        assert (self.store.dirtySize == 0) == (not changes)

    @invariant()
    def isCommitted(self) -> None:
        """The engine has what was committed, and nothing else."""
        found = [
            (key.decode(), INTEGER.decode(value)) for key, value in self.engine.range(None, None)
        ]
        assert found == between(self.committed, None, None)

    def teardown(self) -> None:
        """All is as the dict says, in the order of the keys' bytes."""
        assert list(self.store.all()) == between(self.current, None, None)


class StoreMachineTests(SynchronousTestCase):
    """Random calls, with caches of all sizes."""

    def test_model(self) -> None:
        """A store is as a dict beside it."""
        run_state_machine_as_test(
            StoreMachine,
            settings=settings(max_examples=100, stateful_step_count=40, deadline=None),
        )


class CountedEngine(MemoryEngine):
    """
    Counts reads.

    @ivar gets: the keys that were read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Count."""
        self.gets.append(key)
        return super().get(key)


class CacheTests(SynchronousTestCase):
    """What is read again comes from memory."""

    def setUp(self) -> None:
        self.engine = CountedEngine()
        self.engine.write(
            [(b"k%d" % number, INTEGER.encode(number)) for number in range(10)],
            ChangelogMark(bytes(16), 10),
        )

    def test_readOnce(self) -> None:
        """A value is read from the engine once; that there is none, too."""
        store = newStore(self.engine)
        for _ in range(3):
            self.assertEqual((store.get("k1"), store.get("none")), (1, None))
        self.assertEqual(self.engine.gets, [b"k1", b"none"])

    def test_writtenIsNotRead(self) -> None:
        """What was written is not read, before a commit and behind it."""
        store = newStore(self.engine)
        store.put("k1", 7)
        store.delete("k2")
        for _ in range(2):
            self.assertEqual((store.get("k1"), store.get("k2")), (7, None))
            store.commit(store.changes(), ChangelogMark(bytes(16), 12))
        self.assertEqual(self.engine.gets, [])

    def test_bounded(self) -> None:
        """A cache for two entries does not hold ten."""
        store = newStore(self.engine, 2 * (ENTRY_OVERHEAD + 2 + 4))
        for _ in range(2):
            for number in range(10):
                self.assertEqual(store.get(f"k{number}"), number)
        self.assertEqual(len(self.engine.gets), 20)
        store.get("k8")
        store.get("k9")
        self.assertEqual(len(self.engine.gets), 20)


class StoreTests(SynchronousTestCase):
    """What is not random."""

    def test_order(self) -> None:
        """Keys are in the order of their bytes: text by code point, negative numbers at the end."""
        texts = newStore(MemoryEngine())
        texts.putAll((text, 0) for text in ("é", "b", "", "Z", "ab", "a", "𝄞", "\uffff"))
        self.assertEqual(
            [key for key, _ in texts.all()], ["", "Z", "a", "ab", "b", "é", "\uffff", "𝄞"]
        )
        numbers = KeyValueStore[int, bytes]("n", INTEGER, BYTES, MemoryEngine(), 1)
        numbers.putAll((number, b"") for number in (1, -1, 0, -2))
        self.assertEqual([key for key, _ in numbers.all()], [0, 1, -2, -1])

    def test_errors(self) -> None:
        """Keys and values of other kinds are refused, and nothing is written."""
        engine = MemoryEngine()
        store: Any = newStore(engine)
        for call in (
            lambda: store.put(1, 1),
            lambda: store.put("a", "b"),
            lambda: store.put("a", 2**31),
            lambda: store.get(b"a"),
            lambda: store.delete(None),
            lambda: store.range(1, None),
            lambda: store.range(None, 1),
        ):
            self.assertRaises(EncodingError, call)
        self.assertEqual((store.changes(), store.dirtySize), ([], 0))
        engine.write([(b"a", b"abc")], ChangelogMark(bytes(16), 1))
        self.assertRaises(InvalidPayloadError, store.get, "a")
        self.assertRaises(InvalidPayloadError, list, store.all())

    def test_tooLarge(self) -> None:
        """An entry that the changelog's producer would not take is refused, and changes nothing."""
        store = KeyValueStore[str, bytes]("s", STRING, BYTES, MemoryEngine(), 1 << 20, 121)
        store.put("k", b"v" * 99)
        for call in (
            lambda: store.put("k", b"v" * 100),
            lambda: store.delete("k" * 101),
            lambda: store.putAll([("k", b"v" * 100)]),
        ):
            with self.assertRaises(RecordTooLargeError) as caught:
                call()
            self.assertEqual(
                str(caught.exception),
                "store s: an entry of 101 bytes: max.request.size of the producer allows 100 for"
                " its changelog",
            )
        self.assertEqual(store.changes(), [(b"k", b"v" * 99)])

    def test_oneKeyManyTimes(self) -> None:
        """A key that is written again and again takes the memory of one, and can be taken back."""
        store = newStore(MemoryEngine())
        store.put("a", 0)
        store.begin()
        for number in range(1_000):
            store.put("a", number)
        self.assertEqual(store.dirtySize, ENTRY_OVERHEAD + 1 + 4)
        self.assertEqual(len(store._undo), 1)
        store.rollBack()
        self.assertEqual(store.get("a"), 0)

    def test_repr(self) -> None:
        """It says what it is."""
        store = newStore(MemoryEngine())
        store.put("a", 1)
        self.assertEqual(repr(store), "<KeyValueStore s, 1 entries not committed>")
        self.assertIs(store.mark, None)
