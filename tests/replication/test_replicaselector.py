"""From which replica a consumer reads."""

from __future__ import annotations

from pylogbroker.replication.replicafetch import ReplicaFetch
from pylogbroker.replication.replicaselector import NO_REPLICA, preferredReadReplica
from tests.replication.test_leader import ALL, LeaderCase

RACKS = {1: "a", 2: "b", 3: "b"}


class SelectorTests(LeaderCase):
    """Broker 1 leads; all three are in sync, and 2 and 3 are in one rack."""

    def setUp(self) -> None:
        super().setUp()
        self.lead(ALL)
        self.append(20)

    def hear(self, brokerId: int, offset: int, logStartOffset: int = 0) -> None:
        fetch = ReplicaFetch(brokerId, 10 * brokerId, 5, offset, 5, 1, logStartOffset)
        self.leader.fetched(fetch, 0, self.nowMs)

    def preferred(self, rack: str, offset: int = 11, **racks: str | None) -> int:
        found = {**RACKS, **{int(each[1:]): rack for each, rack in racks.items()}}
        return preferredReadReplica(self.leader, rack, offset, found)

    def test_rack(self) -> None:
        """A consumer reads from the follower in its rack that has most; without one, the leader."""
        self.hear(2, 12)
        self.hear(3, 14)
        self.assertEqual(self.preferred("b"), 3)
        self.assertEqual(self.preferred("a"), NO_REPLICA)
        self.assertEqual(self.preferred("c"), NO_REPLICA)

    def test_leaderInRack(self) -> None:
        """From the leader, if that is in the rack, too."""
        self.hear(2, 20)
        self.assertEqual(self.preferred("b", _1="b"), NO_REPLICA)

    def test_caughtUpLast(self) -> None:
        """Of two with as many records, from the one that was caught up last; then by its number."""
        self.hear(2, 20)
        self.hear(3, 20)
        self.assertEqual(self.preferred("b"), 3)
        self.nowMs += 5
        self.hear(2, 20)
        self.assertEqual(self.preferred("b"), 2)

    def test_offset(self) -> None:
        """Only from one whose log has the offset: it may be the next one."""
        self.hear(2, 12, 5)
        self.assertEqual(
            [self.preferred("b", offset) for offset in (4, 5, 12, 13)],
            [NO_REPLICA, 2, 2, NO_REPLICA],
        )

    def test_unheard(self) -> None:
        """Not from one that has not fetched in this epoch."""
        self.assertEqual(self.preferred("b", 0), NO_REPLICA)

    def test_outOfSync(self) -> None:
        """Not from one that is not in sync, though it has the offset."""
        self.hear(3, 20)
        self.change(inSync=(1, 2))
        self.assertEqual(self.preferred("b"), NO_REPLICA)

    def test_gone(self) -> None:
        """Not from a broker that is not there, or that the consumer cannot reach."""
        self.hear(3, 20)
        self.assertEqual(preferredReadReplica(self.leader, "b", 11, {1: "a", 2: "b"}), NO_REPLICA)
