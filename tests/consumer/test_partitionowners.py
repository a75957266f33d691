"""Tests for L{pylogbroker.consumer.partitionowners}."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.consumer.childwatches import ChildWatches
from pylogbroker.consumer.partitionowners import PartitionOwners
from tests.consumer.groupcase import GroupCase, deleteTree, drain, place


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
        session = self.cluster.zookeeper.client()
        ownership = PartitionOwners(
            session, ChildWatches(session, lambda: None), GroupPaths("g"), "m"
        )
        disowning = Deferred.fromCoroutine(
            ownership.disown({place(f"0-{number}"): "m-0" for number in range(300)})
        )
        disowning.cancel()
        self.failureResultOf(disowning, CancelledError)

    def test_ownersNodeTakenAway(self) -> None:
        """An owner's node that is another's by now is not deleted at the end."""
        member = self.member()
        self.streams(member)
        self.cluster.admin.delete("/consumers/g/owners/t/0-0")
        self.cluster.do(
            self.cluster.admin.create("/consumers/g/owners/t/0-0", b"somebody", flags=1)
        )
        self.cluster.do(member.shutdown())
        self.assertEqual(self.owners(), {"0-0": "somebody"})

    def deleteGroup(self) -> None:
        """What 0.7's C{ConsoleConsumer --from-beginning} does to a group that it is started into."""
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g"))

    def test_comesBack(self) -> None:
        """Owner nodes that were deleted come back at once, and what is read goes on without a gap and without a repetition."""
        self.broker.log("t", 0).append(b"a", b"b")
        member = self.member()
        (stream,) = self.streams(member)
        before = self.owners()
        self.assertEqual(set(before), {"0-0", "0-1"})
        first = stream.take()
        self.deleteGroup()
        self.assertEqual((self.owners(), member.isOwning), (before, True))
        self.broker.log("t", 0).append(b"c")
        self.cluster.advance(2)
        self.assertEqual([first and first.value, *drain(stream)], [b"a", b"b", b"c"])

    def test_oneComesBack(self) -> None:
        """So does a single one, also one that somebody has written to, and though nothing else in the group has changed."""
        member = self.member()
        self.streams(member)
        before = self.owners()
        for _time in range(2):
            self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-1"))
            self.assertEqual(self.owners(), before)
        self.cluster.do(self.cluster.admin.set("/consumers/g/owners/t/0-1", b"nonsense"))
        self.assertEqual(self.owners(), before)

    def test_goneWhileAway(self) -> None:
        """Owner nodes that were deleted while the connection to ZooKeeper was lost come back when it is there again."""
        member = self.member()
        self.streams(member)
        before = self.owners()
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g/owners"))
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.turn()
        self.assertEqual(self.owners(), before)

    def test_takenMeanwhile(self) -> None:
        """A partition whose deleted owner node another session has made is fetched no more, and its position is the other's; when the node goes, we have it."""
        member = self.member({"autocommit.interval.ms": "1000"})
        (stream,) = self.streams(member)
        self.broker.log("t", 0).append(b"a")
        self.cluster.advance(2)
        self.assertEqual((drain(stream), set(member.owned)), ([b"a"], {place("0-0"), place("0-1")}))
        self.cluster.advance(1)
        self.assertEqual(self.offset("0-0"), "11")
        self.cluster.admin.delete("/consumers/g/owners/t/0-0")
        self.cluster.do(self.cluster.admin.create("/consumers/g/owners/t/0-0", b"other", flags=1))
        self.cluster.write("/consumers/g/offsets/t/0-0", b"0")
        self.broker.log("t", 0).append(b"b")
        self.broker.log("t", 1).append(b"c")
        self.cluster.advance(2)
        self.assertEqual((drain(stream), set(member.owned)), ([b"c"], {place("0-1")}))
        self.assertEqual((self.offset("0-0"), self.owners()["0-0"]), ("0", "other"))
        self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-0"))
        self.cluster.advance(3)
        self.assertEqual(
            (drain(stream), set(member.owned)), ([b"a", b"b"], set(map(place, ("0-0", "0-1"))))
        )

    def test_noWatchOfItsOwnDoing(self) -> None:
        """A partition that goes to another member in order does not make its old owner look again."""
        first = self.member()
        self.streams(first)
        second = self.member()
        self.streams(second)
        self.assertEqual([len(each.owned) for each in (first, second)], [1, 1])
        watches = first._member._watches
        owner = "/consumers/g/owners/t/"
        self.assertEqual(
            [
                watches.isWatched(f"{owner}{each.partition}")
                for each in (*first.owned, *second.owned)
            ],
            [True, False],
        )
