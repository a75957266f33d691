"""Tests for L{pylogbroker.cluster.assignment}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.assignment import (
    OwnershipFault,
    assign,
    ownershipFaults,
    threadCountsByTopic,
)
from pylogbroker.cluster.subscription import ISubscription, StaticSubscription, whitelist
from pylogbroker.types import BrokerPartition, PartitionId

PARTITIONS = [BrokerPartition(broker, partition) for broker in range(2) for partition in range(2)]


class OwnershipTests(SynchronousTestCase):
    """Whether a group has shared its partitions out."""

    def test_threads(self) -> None:
        """Each member has as many threads of a topic as it said, of patterns in each topic that matches."""
        subscriptions: dict[str, ISubscription] = {
            "g_a": StaticSubscription({"t": 2, "gone": 1}),
            "g_b": whitelist("t|u"),
        }
        expected = {"t": {"g_a": 2, "g_b": 1}, "gone": {"g_a": 1}, "u": {"g_b": 1}}
        self.assertEqual(threadCountsByTopic(subscriptions, ["t", "u", "v"]), expected)

    def test_good(self) -> None:
        """What the range assignment has shared out has no faults; nor has a topic without partitions, or a group without members."""
        threads = {"t": {"g_a": 2, "g_b": 1}, "empty": {"g_a": 1}}
        owners = {
            PartitionId("t", partition): thread
            for thread, share in assign(PARTITIONS, threads["t"]).items()
            for partition in share
        }
        self.assertEqual(ownershipFaults(threads, {"t": PARTITIONS, "empty": []}, owners), [])
        self.assertEqual(ownershipFaults({}, {"t": PARTITIONS}, {}), [])

    def test_faults(self) -> None:
        """A partition that nobody owns is one, and one whose owner is no thread of that topic: gone, of another topic, one too many, or no name of one."""
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
                OwnershipFault("t", PARTITIONS[3], None, "nobody owns it"),
                OwnershipFault("u", PARTITIONS[0], None, "nobody owns it"),
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
