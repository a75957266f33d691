"""Tests for L{pylogbroker.consumer.partitionowners}."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.consumer.partitionowners import PartitionOwners
from tests.consumer.groupcase import GroupCase, drain, place


class OwnershipTests(GroupCase):
    """Owners' nodes are ours, or left alone."""

    def test_owner(self) -> None:
        """An owner's node of no session keeps its partition from us, and nothing else; when it goes, so does the matter."""
        self.broker.log("t", 0).append(b"a")
        self.broker.log("t", 1).append(b"b")
        self.cluster.write("/consumers/g/owners/t/0-0", b"nobody")
        member = self.member()
        (stream,) = self.streams(member)
        self.assertEqual(set(member.owned), {place("0-1")})
        self.assertEqual(drain(stream), [b"b"])
        self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-0"))
        self.cluster.advance(2.1)
        self.assertEqual(drain(stream), [b"a"])

    def test_garbageCount(self) -> None:
        """A number of partitions that somebody wrote for a broker that is not there is claimed and let go of a hundred at a time; the others are read."""
        self.broker.log("t", 0).append(b"a")
        self.cluster.write("/brokers/topics/t/7", b"500")
        member = self.member()
        self.cluster.zookeeper.latency = 0.001
        joining = member.createMessageStreams({"t": 1})
        counts = [0]
        while not joining.called:
            self.cluster.advance(0.001)
            counts.append(len(self.owners()))
        (stream,) = self.successResultOf(joining)["t"]
        self.cluster.advance(1)
        self.assertEqual((drain(stream), len(member.owned)), ([b"a"], 502))
        ending = member.shutdown()
        while not ending.called:
            self.cluster.advance(0.001)
            counts.append(len(self.owners()))
        self.assertEqual(counts[-1], 0)
        self.assertLessEqual(max(abs(after - before) for before, after in pairwise(counts)), 100)

    def test_oneCannotBeDeleted(self) -> None:
        """A connection that is lost while hundreds are let go of leaves those that were on their way, and not the hundreds behind them."""
        self.cluster.write("/brokers/topics/t/7", b"500")
        member = self.member()
        self.streams(member)
        self.cluster.advance(1)
        self.assertEqual(len(self.owners()), 502)
        session, zookeeper = self.sessions[member], self.cluster.zookeeper
        zookeeper.latency = 0.001
        ending = member.shutdown()
        while len(self.owners()) > 302:
            self.cluster.advance(0.0005)
        zookeeper.disconnect(session)
        zookeeper.reconnect(session)
        while not ending.called:
            self.cluster.advance(0.001)
        self.assertLessEqual(len(self.owners()), 100)

    def test_brokenOff(self) -> None:
        """Who is cancelled while hundreds are let go of begins no more of them."""
        ownership = PartitionOwners(self.cluster.zookeeper.client(), GroupPaths("g"), "m")
        disowning = Deferred.fromCoroutine(
            ownership.disown({place(f"0-{number}"): "m-0" for number in range(300)})
        )
        disowning.cancel()
        self.failureResultOf(disowning, CancelledError)

    def test_ownersNodeTakenAway(self) -> None:
        """An owner's node that is another's by now is not deleted at the end."""
        member = self.member()
        self.streams(member)
        self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-0"))
        self.cluster.do(
            self.cluster.admin.create("/consumers/g/owners/t/0-0", b"somebody", flags=1)
        )
        self.cluster.do(member.shutdown())
        self.assertEqual(self.owners(), {"0-0": "somebody"})
