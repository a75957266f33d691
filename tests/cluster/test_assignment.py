"""Tests of L{pylogbroker.cluster.assignment}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.assignment import assign, javaOrder
from pylogbroker.model import BrokerPartition


def named(*names: str) -> list[BrokerPartition]:
    """Partitions by their names."""
    return [BrokerPartition(*map(int, name.split("-"))) for name in names]


class AssignTests(SynchronousTestCase):
    """The range assignment of spec-0.7 zookeeper §4.5."""

    def test_workedExamples(self) -> None:
        """ZKLoadBalanceTest.testLoadBalance: the sequence of the shipped test."""
        both = ["g_consumer2-0", "g_consumer1-0"]
        self.assertEqual(assign(named("400-0", "400-1"), ["g_consumer1-0"]), {"g_consumer1-0": named("400-0", "400-1")})
        self.assertEqual(assign(named("400-0"), both), {"g_consumer1-0": named("400-0"), "g_consumer2-0": []})
        self.assertEqual(
            assign(named("400-0", "200-1", "300-1", "300-0", "200-0"), both),
            {"g_consumer1-0": named("200-0", "200-1", "300-0"), "g_consumer2-0": named("300-1", "400-0")},
        )
        self.assertEqual(
            assign(named("300-1", "200-1", "300-0", "200-0"), both), {"g_consumer1-0": named("200-0", "200-1"), "g_consumer2-0": named("300-0", "300-1")}
        )

    def test_stringOrder(self) -> None:
        """Partitions are in the order of their names as text: 10-0 before 2-0, and 1-10 before 1-2."""
        self.assertEqual(assign(named("2-0", "1-2", "10-0", "1-10"), ["t"])["t"], named("1-10", "1-2", "10-0", "2-0"))

    def test_javaOrder(self) -> None:
        """Threads are in Java's order, by UTF-16 units: a character beyond the basic plane comes before U+FF5E."""
        self.assertLess(javaOrder("\U0001f600"), javaOrder("～"))
        self.assertEqual(list(assign(named("0-0"), ["～", "\U0001f600"])), ["\U0001f600", "～"])

    def test_nobody(self) -> None:
        """Without threads nobody gets anything."""
        self.assertEqual(assign(named("0-0"), []), {})

    @given(st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30))), st.sets(st.text(min_size=1, max_size=5), min_size=1))
    def test_everyPartitionOnce(self, partitions: set[tuple[int, int]], threads: set[str]) -> None:
        """Each partition has one owner, shares differ by one at the most, and whoever has more comes first."""
        shares = assign([BrokerPartition(*each) for each in partitions], threads)
        owned = [partition for share in shares.values() for partition in share]
        self.assertEqual(owned, sorted((BrokerPartition(*each) for each in partitions), key=str))
        sizes = [len(share) for share in shares.values()]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertLessEqual(max(sizes) - min(sizes), 1)
