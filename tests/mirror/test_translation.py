"""
Tests for L{pylogbroker.mirror.offsetsyncs}.
"""

from __future__ import annotations

from bisect import bisect_left
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ZnodeError
from pylogbroker.mirror.offsetsyncs import (
    COUNT_MAX,
    SIZE_MAX,
    OffsetSyncTable,
    decodeTable,
    translate,
)
from pylogbroker.types import BrokerPartition, PartitionId

A = BrokerPartition(0, 0)
B = BrokerPartition(1, 0)
ONE = PartitionId("t", BrokerPartition(0, 0))
TWO = PartitionId("t", BrokerPartition(0, 1))


class OffsetTableTests(SynchronousTestCase):
    """One source partition."""

    def test_lookUp(self) -> None:
        """The last entry at or before a position counts; before the first nothing is known."""
        table = OffsetSyncTable()
        for offset, end in ((100, 1000), (200, 2500)):
            self.assertTrue(table.record(offset, {A: end}))
        self.assertEqual(
            [table.lookUp(position) for position in (99, 100, 199, 200, 10**9)],
            [None, {A: 1000}, {A: 1000}, {A: 2500}, {A: 2500}],
        )

    def test_noNews(self) -> None:
        """What says nothing new is said to; a later end at the same offset is news."""
        table = OffsetSyncTable(entries=[(100, {A: 1000})])
        self.assertFalse(table.record(100, {A: 1000}))
        self.assertFalse(table.record(100, {A: 900}))
        self.assertTrue(table.record(100, {A: 1100, B: 5}))
        self.assertEqual(table.entries, [(100, {A: 1100, B: 5})])

    def test_backwards(self) -> None:
        """
        A mirror that began again further back makes what it says hold for all that is behind, too.
        """
        table = OffsetSyncTable(entries=[(100, {A: 1000}), (300, {A: 3000})])
        table.record(200, {A: 5000})
        self.assertEqual(table.entries, [(100, {A: 1000}), (200, {A: 5000}), (300, {A: 5000})])

    def test_bounded(self) -> None:
        """However long it goes on, the table does not grow; the first entry and the last stay."""
        table = OffsetSyncTable()
        for step in range(5000):
            table.record(step * 1000, {A: step * 1100})
        self.assertEqual(len(table.entries), COUNT_MAX)
        self.assertEqual(
            (table.entries[0], table.entries[-1]), ((0, {A: 0}), (4_999_000, {A: 5_498_900}))
        )

    def test_precision(self) -> None:
        """
        Whoever is B bytes behind lands at most a third of B further back than they need to, and a
        step.
        """
        table = OffsetSyncTable()
        step = 1000
        for count in range(20_000):
            table.record(count * step, {A: count * step})
        end = 19_999 * step
        for position in range(0, end, 77_777):
            found = table.lookUp(position)
            assert found is not None
            self.assertLessEqual(found[A], position)
            self.assertLessEqual(position - found[A], (end - position) / 3 + step)

    def test_bytes(self) -> None:
        """
        A table of many partitions has fewer entries, so that it stays within its limit in bytes.
        """
        many = [
            BrokerPartition(broker, partition) for broker in range(20) for partition in range(10)
        ]
        table = OffsetSyncTable()
        for step in range(COUNT_MAX):
            table.record(step, dict.fromkeys(many, 10**14 + step))
        self.assertLessEqual(len(table.encode()), SIZE_MAX)
        self.assertGreater(len(decodeTable("/x", table.encode()).entries), 10)

    def test_encoded(self) -> None:
        """What was written is read; a partition that was not known then counts from 0."""
        table = OffsetSyncTable(B, [(5, {A: 7}), (9, {A: 8, B: 3})])
        again = decodeTable("/x", table.encode())
        self.assertEqual(
            (again.fixedTarget, again.entries), (B, [(5, {A: 7, B: 0}), (9, {A: 8, B: 3})])
        )
        self.assertEqual(repr(again), "<OffsetSyncTable to 1-0, 2 entries>")
        empty = decodeTable("/x", b"")
        self.assertEqual((empty.fixedTarget, empty.entries), (None, []))

    def test_garbage(self) -> None:
        """What is no table is refused with its path."""
        for data in (
            b"x",
            b"[]",
            b"{}",
            b'{"version":2}',
            b'{"version":1,"home":"x","targets":[],"entries":[]}',
            b"\xff",
            b'{"version":1,"home":null,"targets":["0-0"],"entries":[[1]]}',
            b'{"version":1,"home":null,"targets":[],"entries":[[2],[1]]}',
            b'{"version":1,"home":null,"targets":[],"entries":[["x"]]}',
            b"[" * 100_000,
        ):
            self.assertIn("/x", str(self.assertRaises(ZnodeError, decodeTable, "/x", data)))


class TranslateTests(SynchronousTestCase):
    """A group that moves."""

    def test_least(self) -> None:
        """In each target partition the least counts that any source partition asks for."""
        tables = {
            ONE: OffsetSyncTable(entries=[(0, {A: 0, B: 0}), (100, {A: 50, B: 70})]),
            TWO: OffsetSyncTable(entries=[(0, {A: 40, B: 10}), (100, {A: 60, B: 80})]),
        }
        found = translate({ONE: 150, TWO: 99}, tables, {"t": [A, B]})
        self.assertEqual(found, {PartitionId("t", A): 40, PartitionId("t", B): 10})

    def test_unknown(self) -> None:
        """
        A partition that no mirror knows, or a group that was not there yet, begins at the
        beginning; so does what came to the target later.
        """
        tables = {ONE: OffsetSyncTable(entries=[(100, {A: 50})])}
        self.assertEqual(
            translate({ONE: 100}, tables, {"t": [A, B]}),
            {PartitionId("t", A): 50, PartitionId("t", B): 0},
        )
        self.assertEqual(translate({ONE: 99}, tables, {"t": [A]}), {PartitionId("t", A): 0})
        self.assertEqual(
            translate({ONE: 100, TWO: 5}, tables, {"t": [A]}), {PartitionId("t", A): 0}
        )
        self.assertEqual(translate({TWO: 100}, tables, {"t": [A]}), {PartitionId("t", A): 0})
        self.assertEqual(translate({}, tables, {"t": [A]}), {})

    def test_home(self) -> None:
        """
        With partitions kept, each source partition has its say about its own target partition only.
        """
        tables = {ONE: OffsetSyncTable(A, [(0, {A: 7})]), TWO: OffsetSyncTable(B, [(0, {B: 9})])}
        self.assertEqual(
            translate({ONE: 5, TWO: 5}, tables, {"t": [A, B]}),
            {PartitionId("t", A): 7, PartitionId("t", B): 9},
        )
        self.assertEqual(
            translate({ONE: 5, TWO: 5}, {ONE: tables[ONE], TWO: OffsetSyncTable(B)}, {"t": [A, B]}),
            {PartitionId("t", A): 0, PartitionId("t", B): 0},
        )

    @settings(deadline=None)
    @given(st.randoms(use_true_random=False), st.booleans())
    def test_neverBehind(self, random: Random, isKeeping: bool) -> None:
        """
        Whatever is mirrored in which order, with the mirror dying and beginning again further back:
        from the translated offsets on, a group finds all that it has not read.
        """
        target: dict[BrokerPartition, list[tuple[PartitionId, int]]] = {
            A: [],
            B: [],
        }  # what stands there
        homes = {ONE: A, TWO: random.choice((A, B))}
        tables = {
            partitionId: OffsetSyncTable(homes[partitionId] if isKeeping else None)
            for partitionId in (ONE, TWO)
        }
        handed = dict.fromkeys(tables, 0)
        committed = dict.fromkeys(tables, 0)
        for _step in range(random.randrange(200)):
            partitionId = random.choice((ONE, TWO))
            act = random.random()
            if act < 0.6:
                partition = homes[partitionId] if isKeeping else random.choice((A, B))
                target[partition].append((partitionId, handed[partitionId]))
                handed[partitionId] += 1
            elif act < 0.75:
                ends = {
                    partition: len(there)
                    for partition, there in target.items()
                    if not isKeeping or partition == homes[partitionId]
                }
                tables[partitionId].record(handed[partitionId], ends)
            elif act < 0.85:
                committed[partitionId] = random.randint(committed[partitionId], handed[partitionId])
            elif act < 0.9:
                handed[partitionId] = committed[partitionId]  # killed
        for partitionId in tables:  # the mirror catches up with itself
            while handed[partitionId] < 200:
                partition = homes[partitionId] if isKeeping else random.choice((A, B))
                target[partition].append((partitionId, handed[partitionId]))
                handed[partitionId] += 1
        group = {partitionId: random.randint(0, 200) for partitionId in tables}
        found = translate(
            group,
            {
                partitionId: decodeTable("/x", table.encode())
                for partitionId, table in tables.items()
            },
            {"t": [A, B]},
        )
        seen = {
            each
            for partition, there in target.items()
            for each in there[found.get(PartitionId("t", partition), 0) :]
        }
        for partitionId, position in group.items():
            self.assertEqual(
                {number for each, number in seen if each == partitionId and number >= position},
                set(range(position, 200)),
            )


class ThinTests(SynchronousTestCase):
    """What becomes of old entries."""

    def test_order(self) -> None:
        """They stay in order, and none is invented."""
        random = Random(5)
        table, given = OffsetSyncTable(), set()
        offset = 0
        for _step in range(1000):
            offset += random.randrange(1, 10**6)
            given.add(offset)
            table.record(offset, {A: offset})
        offsets = [each for each, _ends in table.entries]
        self.assertEqual(offsets, sorted(offsets))
        self.assertLessEqual(set(offsets), given)
        self.assertEqual(bisect_left(offsets, offset), COUNT_MAX - 1)
