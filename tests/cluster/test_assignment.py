"""Tests of L{pylogbroker.cluster.assignment}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.assignment import assign, javaOrder
from pylogbroker.types import BrokerPartition

MEMBERS = st.one_of(
    st.text(min_size=1, max_size=5), st.sampled_from(["a", "a-1", "a-10", "a-1-0", "a-"])
)


def named(*names: str) -> list[BrokerPartition]:
    """Partitions by their names."""
    return [BrokerPartition(*map(int, name.split("-"))) for name in names]


class AssignTests(SynchronousTestCase):
    """The range assignment of spec-0.7 zookeeper §4.5."""

    def test_workedExamples(self) -> None:
        """ZKLoadBalanceTest.testLoadBalance: the sequence of the shipped test."""
        both = {"g_consumer2": 1, "g_consumer1": 1}
        self.assertEqual(
            assign(named("400-0", "400-1"), {"g_consumer1": 1}),
            {"g_consumer1-0": named("400-0", "400-1")},
        )
        self.assertEqual(assign(named("400-0"), both), {"g_consumer1-0": named("400-0")})
        self.assertEqual(
            assign(named("400-0", "200-1", "300-1", "300-0", "200-0"), both),
            {
                "g_consumer1-0": named("200-0", "200-1", "300-0"),
                "g_consumer2-0": named("300-1", "400-0"),
            },
        )
        self.assertEqual(
            assign(named("300-1", "200-1", "300-0", "200-0"), both),
            {"g_consumer1-0": named("200-0", "200-1"), "g_consumer2-0": named("300-0", "300-1")},
        )

    def test_stringOrder(self) -> None:
        """Partitions are in the order of their names as text: 10-0 before 2-0, and 1-10 before 1-2."""
        self.assertEqual(
            assign(named("2-0", "1-2", "10-0", "1-10"), {"t": 1})["t-0"],
            named("1-10", "1-2", "10-0", "2-0"),
        )

    def test_javaOrder(self) -> None:
        """Threads are in Java's order, by UTF-16 units: a character beyond the basic plane comes before U+FF5E."""
        self.assertLess(javaOrder("\U0001f600"), javaOrder("～"))
        self.assertEqual(
            list(assign(named("0-0", "0-1"), {"～": 1, "\U0001f600": 1})), ["\U0001f600-0", "～-0"]
        )

    def test_nobody(self) -> None:
        """Without threads nobody gets anything."""
        self.assertEqual(assign(named("0-0"), {}), {})
        self.assertEqual(assign(named("0-0"), {"a": 0}), {})

    def test_threadOrder(self) -> None:
        """Threads are in the order of their names as text: the tenth is before the second, and those of another member may be between."""
        some = named(*[f"0-{index}" for index in range(14)])
        expected = [
            "a-0",
            "a-1",
            "a-1-0",
            "a-1-1",
            "a-10",
            "a-2",
            "a-3",
            "a-4",
            "a-5",
            "a-6",
            "a-7",
            "a-8",
            "a-9",
        ]
        self.assertEqual(list(assign(some, {"a": 11, "a-1": 2})), expected)

    def test_absurdCounts(self) -> None:
        """However many threads somebody claims to have, only those are made that can have a partition."""
        shares = assign(named("0-0", "0-1", "0-2"), {"b": 2**63, "c": 1, "a-1": 1, "a": 2})
        self.assertEqual(shares, {"a-0": named("0-0"), "a-1": named("0-1"), "a-1-0": named("0-2")})
        shares = assign(named("0-0", "0-1", "0-2"), {"b": 2**63})
        self.assertEqual(list(shares), ["b-0", "b-1", "b-10"])

    @given(
        st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30))),
        st.dictionaries(MEMBERS, st.integers(0, 130)),
    )
    def test_asListed(self, partitions: set[tuple[int, int]], threadCounts: dict[str, int]) -> None:
        """Shares are those of the rule when all threads are listed: contiguous, of sizes that differ by one at the most, the larger ones first."""
        names = sorted((BrokerPartition(*each) for each in partitions), key=str)
        threads = sorted(
            (
                f"{member}-{index}"
                for member, count in threadCounts.items()
                for index in range(count)
            ),
            key=javaOrder,
        )
        expected = {}
        for index, thread in enumerate(threads):
            each, more = divmod(len(names), len(threads))
            start = each * index + min(index, more)
            if names[start : start + each + (index < more)]:
                expected[thread] = names[start : start + each + (index < more)]
        self.assertEqual(list(assign(names, threadCounts).items()), list(expected.items()))
