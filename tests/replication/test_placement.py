"""Which brokers get the replicas of new partitions."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import BrokerImage
from pylogbroker.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from pylogbroker.replication.placement import (
    checkAssignment,
    placeReplicas,
)


def brokersOf(*racks: str | None, fenced: tuple[int, ...] = ()) -> list[BrokerImage]:
    """Brokers 0, 1, ... with their racks."""
    return [
        BrokerImage(brokerId, brokerId + 10, (), rack, brokerId in fenced)
        for brokerId, rack in enumerate(racks)
    ]


class PlacementTests(SynchronousTestCase):
    """L{placeReplicas}."""

    def test_leadersGoRound(self) -> None:
        """As many partitions as brokers: each leads one, whatever the start and the racks."""
        for seed in range(20):
            for racks in (("a", "b", "c"), (None,) * 3, ("a", "b", "a", "b")):
                brokers = brokersOf(*racks)
                placed = placeReplicas(brokers, len(brokers), 1, Random(seed))
                leaders = sorted(replicas[0] for replicas in placed)
                self.assertEqual(leaders, [each.brokerId for each in brokers])

    def test_startIsRandom(self) -> None:
        """Topics of one partition do not all go to one broker."""
        brokers = brokersOf(None, None, None)
        found = {placeReplicas(brokers, 1, 1, Random(seed))[0] for seed in range(30)}
        self.assertEqual(found, {(0,), (1,), (2,)})

    def test_racks(self) -> None:
        """Replicas of a partition are in different racks, and the leaders in each in turn."""
        brokers = brokersOf("a", "a", "b", "b", "c", "c")
        placed = placeReplicas(brokers, 6, 3, Random(1))
        for replicas in placed:
            self.assertEqual({brokers[each].rack for each in replicas}, {"a", "b", "c"})
        leaders = [brokers[replicas[0]].rack for replicas in placed]
        self.assertEqual(Counter(leaders), {"a": 2, "b": 2, "c": 2})
        self.assertEqual(leaders[:3], leaders[3:])

    def test_fenced(self) -> None:
        """A fenced broker gets replicas only where the serving ones do not suffice; no leader."""
        brokers = brokersOf(None, None, None, fenced=(1,))
        for replicas in placeReplicas(brokers, 6, 2, Random(1)):
            self.assertEqual(sorted(replicas), [0, 2])
        for replicas in placeReplicas(brokers, 6, 3, Random(1)):
            self.assertEqual(replicas[2], 1)

    def test_rackOfFencedBrokers(self) -> None:
        """A rack without a serving broker does not lead, and its neighbour does twice."""
        brokers = brokersOf("a", "b", "c", fenced=(1,))
        placed = placeReplicas(brokers, 2, 3, Random(5))
        for replicas in placed:
            self.assertNotEqual(replicas[0], 1)
            self.assertEqual(sorted(replicas), [0, 1, 2])

    def test_shuttingDown(self) -> None:
        """A broker that is about to stop gets nothing."""
        brokers = brokersOf(None, None)
        brokers[0] = brokers[0]._replace(isShuttingDown=True)
        self.assertEqual(set(placeReplicas(brokers, 4, 1, Random(1))), {(1,)})
        error = self.assertRaises(
            InvalidReplicationFactorError, placeReplicas, brokers, 1, 2, Random(1)
        )
        self.assertIn("only 1 broker(s) are registered", str(error))

    def test_refused(self) -> None:
        """The refusals are Kafka's."""
        brokers = brokersOf(None, None, fenced=(0, 1))
        error = self.assertRaises(
            InvalidReplicationFactorError, placeReplicas, brokers, 1, 1, Random(1)
        )
        self.assertEqual(
            str(error),
            "Unable to replicate the partition 1 time(s): All brokers are currently fenced or in"
            " controlled shutdown.",
        )
        error = self.assertRaises(
            InvalidReplicationFactorError, placeReplicas, brokersOf(None), 1, 0, Random(1)
        )
        self.assertIn("must be positive", str(error))

    @given(
        st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9),
        st.integers(1, 30),
        st.data(),
    )
    def test_whatMustBeTrue(self, racks: list[str | None], count: int, data: st.DataObject) -> None:
        """
        Each partition has different brokers, as many as wanted, in as many racks as possible; the
        first one serves. Within a round no broker of a rack leads again before the others of it.
        """
        brokerIds = range(len(racks))
        fenced = data.draw(st.sets(st.sampled_from(brokerIds), max_size=len(racks) - 1))
        factor = data.draw(st.integers(1, len(racks)))
        brokers = brokersOf(*racks, fenced=tuple(fenced))
        placed = placeReplicas(brokers, count, factor, Random(data.draw(st.integers(0, 9))))
        self.assertEqual(len(placed), count)
        rackCount = len(set(racks))
        for replicas in placed:
            self.assertEqual(len(set(replicas)), factor)
            self.assertNotIn(replicas[0], fenced)
            found = {racks[each] for each in replicas}
            self.assertEqual(len(found), min(rackCount, factor))
        if rackCount == 1:
            servingCount = len(racks) - len(fenced)
            leaders = Counter(replicas[0] for replicas in placed[:servingCount])
            self.assertEqual(set(leaders.values()), {1})


class AssignmentTests(SynchronousTestCase):
    """What clients choose."""

    def check(self, *replicas: int, factor: int | None = None) -> str:
        """The refusal."""
        try:
            checkAssignment((1, 2, 3), replicas, factor)
        except InvalidReplicaAssignmentError as error:
            return str(error).removeprefix("The manual partition assignment ")
        return ""

    def test_assignments(self) -> None:
        """Known brokers, each once, as many as the partitions before have."""
        self.assertEqual(self.check(3, 1), "")
        self.assertEqual(self.check(3, 1, factor=2), "")
        self.assertEqual(self.check(), "includes an empty replica list.")
        self.assertEqual(self.check(1, 4), "includes broker 4, but no such broker is registered.")
        self.assertEqual(self.check(2, 1, 2), "includes the broker 2 more than once.")
        self.assertEqual(
            self.check(1, factor=2),
            "includes a partition with 1 replica(s), but this is not consistent with previous"
            " partitions, which have 2 replica(s).",
        )
