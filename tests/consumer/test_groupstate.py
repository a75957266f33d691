"""Tests for L{pylogbroker.consumer.groupstate}."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.consumer.groupstate import GroupNodes, GroupWatches
from pylogbroker.errors import NoNodeException, ZookeeperError
from pylogbroker.testing.zookeeper import FakeZookeeper
from tests.consumer.groupcase import GroupCase, deleteTree, drain, place


class GarbageTests(GroupCase):
    """What others have written does not stop anybody."""

    def check(self, path: str, data: bytes, text: str, owned: int = 2) -> None:
        """A node is named in the log, once, and the member has its share all the same."""
        self.cluster.write(path, data)
        with capturedLogs() as events:
            member = self.member()
            self.streams(member)
            self.assertEqual(len(member.owned), owned)
            self.cluster.addTopic(0, f"more{self.memberCount}", 1)
            self.cluster.write("/brokers/topics/t/3", b"0")
            self.cluster.turn()
            self.cluster.do(self.cluster.admin.delete("/brokers/topics/t/3"))
        errors = [
            event["text"]
            for event in events
            if event["log_level"] is LogLevel.error and "text" in event
        ]
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(text, errors[0])
        self.cluster.do(self.cluster.admin.delete(path))
        self.end(member)

    def test_members(self) -> None:
        """A registration that is none."""
        for data in (
            b"what?",
            b'{ "t": 1.5 }',
            b"[1]",
            b"\xff\xfe",
            b'{ "t": 2147483647 }',
            b"*2147483647*.*",
        ):
            self.check("/consumers/g/ids/g_stranger", data, "/consumers/g/ids/g_stranger")

    def test_javaPattern(self) -> None:
        """A pattern that only Java knows: that member is named, and taken not to be there."""
        self.check("/consumers/g/ids/g_java", rb"*1*\p{Alpha}", "g_java")
        self.check("/consumers/g/ids/g_java", b"*1*[a-z&&[^t]]", "g_java")
        self.check("/consumers/g/ids/g_java", b"*1*(?iu)T", "g_java")

    def test_endlessPattern(self) -> None:
        """
        A pattern that would keep Python's matcher busy for ever is matched all the same; if that
        cannot be, that member is taken not to be there.
        """
        self.check("/consumers/g/ids/g_endless", b"*1*(?!x)(a+)+b", "which takes unbounded time")
        self.cluster.write("/consumers/g/ids/g_endless", b"*1*(a+)+b")
        for name in ("a" * 200, "a" * 200 + "b"):
            self.cluster.write(f"/brokers/topics/{name}/0", b"1")
        member = self.member()
        self.soon(member.createMessageStreamsByFilter(whitelist("a+")))
        self.assertEqual({each.topic for each in member.owned}, {"a" * 200})

    def test_counts(self) -> None:
        """
        A number of partitions that is none, or absurd, and a broker that is not named like one.
        """
        self.check("/brokers/topics/t/1", b"many", "/brokers/topics/t/1")
        self.check("/brokers/topics/t/1", b"-4", "/brokers/topics/t/1")
        self.check("/brokers/topics/t/1", b"4000000000", "/brokers/topics/t/1")
        self.check("/brokers/topics/t/one", b"1", "/brokers/topics/t/one")
        self.check("/brokers/topics/t/007", b"1", "/brokers/topics/t/007")

    def test_broker(self) -> None:
        """A broker's registration that cannot be read: its partitions wait, the others flow."""
        self.cluster.write("/brokers/ids/5", b"nonsense")
        self.cluster.write("/brokers/topics/t/5", b"1")
        self.broker.log("t", 0).append(b"a")
        (stream,) = self.streams(self.member())
        self.assertEqual(drain(stream), [b"a"])

    def test_topicNames(self) -> None:
        """
        With a filter: a topic whose name no request can carry, or that would be no step of a path,
        is left out.
        """
        long = "x" * 40_000
        self.cluster.write(f"/brokers/topics/{long}/0", b"1")
        self.cluster.write("/brokers/topics/a\ue000b/0", b"1")
        member = self.member()
        self.soon(member.createMessageStreamsByFilter(whitelist("(?s).*")))
        self.assertEqual({each.topic for each in member.owned}, {"t"})

    def test_ownRegistration(self) -> None:
        """A registration that somebody deletes is there again, and the member has its share."""
        member = self.member()
        self.streams(member)
        self.cluster.do(self.cluster.admin.delete("/consumers/g/ids/g_m1"))
        self.cluster.advance(3)
        self.assertEqual(
            json.loads(self.cluster.zookeeper.tree()["/consumers/g/ids/g_m1"][0]), {"t": 1}
        )
        self.assertEqual(len(member.owned), 2)


class WatchesTests(SynchronousTestCase):
    """Children that are watched."""

    def setUp(self) -> None:
        self.clock = Clock()
        server = FakeZookeeper(self.clock)
        self.zookeeper, self.other = server.client(), server.client()
        for client in (self.zookeeper, self.other):
            client.connect()
        self.server = server
        self.turn()
        self.changeCount = 0
        self.watches = GroupWatches(self.zookeeper, self.changed)

    def changed(self) -> None:
        self.changeCount += 1

    def turn(self) -> None:
        for _turn in range(20):
            self.clock.advance(0)

    def do(self, doing: Any) -> Any:
        self.turn()
        return self.successResultOf(doing)

    def children(self, path: str) -> list[str]:
        found: list[str] = self.do(Deferred.fromCoroutine(self.watches.children(path)))
        return found

    def test_children(self) -> None:
        """
        A change fires once, however often the children were read before it; after that they are to
        be read again.
        """
        self.do(self.other.create("/a"))
        self.assertEqual(self.children("/a"), [])
        self.assertEqual(self.children("/a"), [])
        self.do(self.other.create("/a/1"))
        self.do(self.other.create("/a/2"))
        self.assertEqual(self.changeCount, 1)
        self.assertEqual(sorted(self.children("/a")), ["1", "2"])
        self.do(self.other.delete("/a/1"))
        self.assertEqual(self.changeCount, 2)

    def test_missing(self) -> None:
        """A node that is not there has no children, and is watched for."""
        self.assertEqual(self.children("/a"), [])
        self.do(self.other.create("/a"))
        self.assertEqual(self.changeCount, 1)

    def test_deletedBetween(self) -> None:
        """A node that goes while its watch is armed is one that is not there."""
        self.do(self.other.create("/a"))
        self.children("/a")
        self.do(self.other.delete("/a"))
        self.assertEqual((self.changeCount, self.children("/a")), (1, []))

    def test_session(self) -> None:
        """A session's end is no change; who reads in the next session is told of changes again."""
        self.do(self.other.create("/a"))
        self.children("/a")
        self.server.expire(self.zookeeper)
        self.turn()
        self.assertEqual(self.changeCount, 0)
        self.assertEqual(self.children("/a"), [])
        self.do(self.other.create("/a/1"))
        self.assertEqual(self.changeCount, 1)

    def test_cancel(self) -> None:
        """Nothing is told after the end."""
        self.do(self.other.create("/a"))
        self.children("/a")
        self.watches.cancelAll()
        self.do(self.other.create("/a/1"))
        self.assertEqual(self.changeCount, 0)

    def test_failure(self) -> None:
        """What cannot be read fails, and leaves no watch behind."""
        self.server.disconnect(self.zookeeper)
        reading = Deferred.fromCoroutine(self.watches.children("/a"))
        self.clock.pump([1] * 60)
        self.failureResultOf(reading, ZookeeperError)


class OwnershipTests(GroupCase):
    """Owners' nodes are ours, or left alone."""

    def test_owner(self) -> None:
        """
        An owner's node of no session keeps its partition from us, and nothing else; when it goes,
        so does the matter.
        """
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
        """
        A number of partitions that somebody wrote for a broker that is not there is claimed and let
        go of a hundred at a time; the others are read.
        """
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
        """
        A connection that is lost while hundreds are let go of leaves those that were on their way,
        and not the hundreds behind them.
        """
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

    def test_oneFailsUnexpectedly(self) -> None:
        """An unexpected error with one partition does not keep the others from their release."""
        session = self.cluster.zookeeper.client()
        nodes = GroupNodes(session, GroupWatches(session, lambda: None), GroupPaths("g"), "m")
        asked: list[str] = []

        def get(path: str) -> Deferred[Any]:
            asked.append(path)
            return fail(RuntimeError("not expected") if len(asked) == 3 else NoNodeException(path))

        self.patch(session, "get", get)
        releasing = nodes.release({place(f"0-{number}"): "m-0" for number in range(300)})
        self.failureResultOf(Deferred.fromCoroutine(releasing), RuntimeError)
        self.assertEqual(len(asked), 300)

    def test_brokenOff(self) -> None:
        """Who is cancelled while hundreds are let go of begins no more of them."""
        session = self.cluster.zookeeper.client()
        ownership = GroupNodes(session, GroupWatches(session, lambda: None), GroupPaths("g"), "m")
        disowning = Deferred.fromCoroutine(
            ownership.release({place(f"0-{number}"): "m-0" for number in range(300)})
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
        """
        What 0.7's C{ConsoleConsumer --from-beginning} does to a group that it is started into.
        """
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g"))

    def test_comesBack(self) -> None:
        """
        Owner nodes that were deleted come back at once, and what is read goes on without a gap and
        without a repetition.
        """
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
        """
        So does a single one, also one that somebody has written to, and though nothing else in the
        group has changed.
        """
        member = self.member()
        self.streams(member)
        before = self.owners()
        for _time in range(2):
            self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-1"))
            self.assertEqual(self.owners(), before)
        self.cluster.do(self.cluster.admin.set("/consumers/g/owners/t/0-1", b"nonsense"))
        self.assertEqual(self.owners(), before)

    def test_goneWhileAway(self) -> None:
        """
        Owner nodes that were deleted while the connection to ZooKeeper was lost come back when it
        is there again.
        """
        member = self.member()
        self.streams(member)
        before = self.owners()
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g/owners"))
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.turn()
        self.assertEqual(self.owners(), before)

    def test_takenMeanwhile(self) -> None:
        """
        A partition whose deleted owner node another session has made is fetched no more, and its
        position is the other's; when the node goes, we have it.
        """
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
        """
        A partition that goes to another member in order does not make its old owner look again.
        """
        first = self.member()
        self.streams(first)
        second = self.member()
        self.streams(second)
        self.assertEqual([len(each.owned) for each in (first, second)], [1, 1])
        watches = first._member._watches
        owner = "/consumers/g/owners/t/"
        self.assertEqual(
            [watches.isArmed(f"{owner}{each.partition}") for each in (*first.owned, *second.owned)],
            [True, False],
        )
