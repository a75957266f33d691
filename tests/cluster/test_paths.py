"""Tests of L{pylogbroker.cluster.paths}."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster import paths
from pylogbroker.errors import InvalidNameError
from pylogbroker.types import BrokerPartition
from tests.goldenfiles import GOLDEN


class PathTests(SynchronousTestCase):
    """All paths of spec-0.7 zookeeper §1."""

    def test_brokers(self) -> None:
        """Brokers and topics are where 0.7 has them."""
        self.assertEqual(paths.brokerId(3), "/brokers/ids/3")
        self.assertEqual(paths.topic("a b"), "/brokers/topics/a b")
        self.assertEqual(paths.topicBroker("t", 3), "/brokers/topics/t/3")

    def test_group(self) -> None:
        """A group's members, owners and offsets are where 0.7 has them."""
        group = paths.GroupPaths("g")
        partition = BrokerPartition(0, 1)
        self.assertEqual(
            [
                group.root,
                group.consumer("c"),
                group.topicOwners("t"),
                group.owner("t", partition),
                group.topicOffsets("t"),
                group.offset("t", partition),
            ],
            [
                "/consumers/g",
                *(
                    f"/consumers/g/{path}"
                    for path in ("ids/c", "owners/t", "owners/t/0-1", "offsets/t", "offsets/t/0-1")
                ),
            ],
        )

    def test_recorded(self) -> None:
        """Every path that 0.7.2 was seen to use with a value is one of ours."""
        recorded = re.findall(
            r"^(/\S+) +(?:EPHEMERAL|persistent) +value='",
            (GOLDEN / "zookeeper-tree.txt").read_text(),
            re.MULTILINE,
        )
        self.assertTrue(recorded)
        for path in recorded:
            steps = path.split("/")[1:]
            if steps[0] == "brokers":
                ours = (
                    paths.brokerId(int(steps[2]))
                    if steps[1] == "ids"
                    else paths.topicBroker(steps[2], int(steps[3]))
                )
            else:
                group = paths.GroupPaths(steps[1])
                if steps[2] == "ids":
                    ours = group.consumer(steps[3])
                else:
                    broker, partition = map(int, steps[4].split("-"))
                    ours = (group.owner if steps[2] == "owners" else group.offset)(
                        steps[3], BrokerPartition(broker, partition)
                    )
            self.assertEqual(ours, path)

    def test_mirrored(self) -> None:
        """What is ours and not 0.7's lies beside the group's offsets."""
        group = paths.GroupPaths("g")
        self.assertEqual(group.mirrored("t", BrokerPartition(0, 1)), "/consumers/g/mirror/t/0-1")
        self.assertRaises(InvalidNameError, group.topicMirrored, "a/b")

    def test_refused(self) -> None:
        """
        A name that would point elsewhere, or that ZooKeeper does not take, is refused and named.
        """
        for name in ("", ".", "..", "a/b", "a\x00", "a\x1f", "a\x85", "\ud805", "\ufffa"):
            error = self.assertRaises(InvalidNameError, paths.GroupPaths, name)
            self.assertIn(repr(name), str(error))
        self.assertRaises(InvalidNameError, paths.topic, "a/b")
        self.assertRaises(InvalidNameError, paths.GroupPaths("g").consumer, "a/b")
