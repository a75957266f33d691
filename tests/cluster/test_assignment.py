"""Tests of L{pylogbroker.cluster.assignment}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.assignment import (
    OwnershipFault,
    assign,
    javaOrder,
    ownershipFaults,
    threadCountsByTopic,
)
from pylogbroker.cluster.subscription import ISubscription, StaticSubscription, whitelist
from pylogbroker.types import BrokerPartition, PartitionId

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
        """
        Partitions are in the order of their names as text: 10-0 before 2-0, and 1-10 before 1-2.
        """
        self.assertEqual(
            assign(named("2-0", "1-2", "10-0", "1-10"), {"t": 1})["t-0"],
            named("1-10", "1-2", "10-0", "2-0"),
        )

    def test_javaOrder(self) -> None:
        """
        Threads are in Java's order, by UTF-16 units: a character beyond the basic plane comes
        before U+FF5E.
        """
        self.assertLess(javaOrder("\U0001f600"), javaOrder("～"))
        self.assertEqual(
            list(assign(named("0-0", "0-1"), {"～": 1, "\U0001f600": 1})), ["\U0001f600-0", "～-0"]
        )

    def test_nobody(self) -> None:
        """Without threads nobody gets anything."""
        self.assertEqual(assign(named("0-0"), {}), {})
        self.assertEqual(assign(named("0-0"), {"a": 0}), {})

    def test_threadOrder(self) -> None:
        """
        Threads are in the order of their names as text: the tenth is before the second, and those
        of another member may be between.
        """
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
        """
        However many threads somebody claims to have, only those are made that can have a partition.
        """
        shares = assign(named("0-0", "0-1", "0-2"), {"b": 2**63, "c": 1, "a-1": 1, "a": 2})
        self.assertEqual(shares, {"a-0": named("0-0"), "a-1": named("0-1"), "a-1-0": named("0-2")})
        shares = assign(named("0-0", "0-1", "0-2"), {"b": 2**63})
        self.assertEqual(list(shares), ["b-0", "b-1", "b-10"])

    @given(
        st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30))),
        st.dictionaries(MEMBERS, st.integers(0, 130)),
    )
    def test_asListed(self, partitions: set[tuple[int, int]], threadCounts: dict[str, int]) -> None:
        """
        Shares are those of the rule when all threads are listed: contiguous, of sizes that differ
        by one at the most, the larger ones first.
        """
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


PARTITIONS = [BrokerPartition(broker, partition) for broker in range(2) for partition in range(2)]


class OwnershipTests(SynchronousTestCase):
    """Whether a group has shared its partitions out."""

    def test_threads(self) -> None:
        """
        Each member has as many threads of a topic as it said, of patterns in each topic that
        matches.
        """
        subscriptions: dict[str, ISubscription] = {
            "g_a": StaticSubscription({"t": 2, "gone": 1}),
            "g_b": whitelist("t|u"),
        }
        expected = {"t": {"g_a": 2, "g_b": 1}, "gone": {"g_a": 1}, "u": {"g_b": 1}}
        self.assertEqual(threadCountsByTopic(subscriptions, ["t", "u", "v"]), expected)

    def test_good(self) -> None:
        """
        What the range assignment has shared out has no faults; nor has a topic without partitions,
        or a group without members.
        """
        threads = {"t": {"g_a": 2, "g_b": 1}, "empty": {"g_a": 1}}
        owners = {
            PartitionId("t", partition): thread
            for thread, share in assign(PARTITIONS, threads["t"]).items()
            for partition in share
        }
        self.assertEqual(ownershipFaults(threads, {"t": PARTITIONS, "empty": []}, owners), [])
        self.assertEqual(ownershipFaults({}, {"t": PARTITIONS}, {}), [])

    def test_faults(self) -> None:
        """
        A partition that nobody owns is one, and one whose owner is no thread of that topic: gone,
        of another topic, one too many, or no name of one.
        """
        threads = {"t": {"g_a": 1}, "u": {"g_b": 1}}
        owners = {
            PartitionId("t", PARTITIONS[0]): "g_a-0",
            PartitionId("t", PARTITIONS[1]): "g_b-0",
            PartitionId("t", PARTITIONS[2]): "g_a-1",
        }
        wrong = "the owner is no thread of a member that wants this topic"
        self.assertEqual(
            ownershipFaults(threads, {"t": PARTITIONS, "u": PARTITIONS[:1]}, owners),
            [
                OwnershipFault("t", PARTITIONS[1], "g_b-0", wrong),
                OwnershipFault("t", PARTITIONS[2], "g_a-1", wrong),
                OwnershipFault("t", PARTITIONS[3], None, "it has no owner"),
                OwnershipFault("u", PARTITIONS[0], None, "it has no owner"),
            ],
        )
        for owner in (
            "g_a",
            "g_a-",
            "g_a-00",
            "g_a-x",
            "g_a-²",
            "g_a--0",
            "g_a-" + "9" * 5_000,
            "",
        ):
            self.assertEqual(
                len(
                    ownershipFaults(
                        {"t": {"g_a": 2}},
                        {"t": PARTITIONS[:1]},
                        {PartitionId("t", PARTITIONS[0]): owner},
                    )
                ),
                1,
                owner,
            )
