"""The command line beside ZooKeeper, and members of groups."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed

from pylogbroker.consumer.offsetstores import MemoryOffsetStore
from pylogbroker.errors import NoNodeException, NotEmptyException
from pylogbroker.zookeeper.ephemeral import createParents, createPersistent
from tests.broker.onlead import capture
from tests.cli import test_groupconsume, test_groupverify
from tests.cli.commands import Outcome
from tests.consumer import test_group, test_owning
from tests.consumer.groupcase import drain
from tests.zookeeper import test_ephemeral


async def deleteTree(zookeeper: Any, path: str) -> None:
    """As ZooKeeper's C{deleteall}; what is made again meanwhile stays."""
    try:
        for name in await zookeeper.get_children(path):
            await deleteTree(zookeeper, f"{path}/{name}")
        await zookeeper.delete(path)
    except (NoNodeException, NotEmptyException):
        pass


class ConsumeProbes(test_groupconsume.GroupConsumeTests):
    async def test_unknownTopic(self) -> None:
        await self.startBrokers(1)
        await self.establish("u")
        self.assertEqual(
            await self.consumed("--topic", "t", "--from-beginning"),
            Outcome(1, b"", "pylogbroker: there is no topic t; there are: u\n"),
        )


class VerifyProbes(test_groupverify.GroupVerifyTests):
    async def test_noMembers(self) -> None:
        await self.node("/consumers/g/offsets/t/0-0", b"1")
        self.assertEqual(
            await self.verify("g"),
            Outcome(1, b"", "pylogbroker: there is nothing to verify: no members in g\n"),
        )


class OwnerProbes(test_owning.OwnershipTests):
    def test_comesBack(self) -> None:
        self.broker.log("t", 0).append(b"a", b"b")
        member = self.member()
        (stream,) = self.streams(member)
        before = self.owners()
        self.assertEqual(set(before), {"0-0", "0-1"})
        first = stream.take()
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g"))
        self.cluster.advance(20)
        self.assertEqual((self.owners(), member.isOwning), (before, True))
        self.broker.log("t", 0).append(b"c")
        self.cluster.advance(2)
        self.assertEqual([first and first.value, *drain(stream)], [b"a", b"b", b"c"])


class OffsetProbes(test_group.CommitTests):
    def test_deleted(self) -> None:
        (stream,) = self.streams(self.member({"autocommit.interval.ms": "1000"}))
        self.cluster.advance(1)
        stream.take()
        self.cluster.advance(1)
        self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("11", "0"))
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g/offsets"))
        self.cluster.advance(20)
        self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("11", "0"))


class FullStore(MemoryOffsetStore):
    isFull = True

    def commit(self, positions: Any) -> Deferred[Any]:
        return succeed({}) if self.isFull else super().commit(positions)


class RepeatedProbes(test_group.CommitTests):
    def test_repeatedFailure(self) -> None:
        store = FullStore()
        lines = capture(self)
        member = self.member({"autocommit.interval.ms": "1000"}, offsetStore=store)
        (stream,) = self.streams(member)
        drain(stream)
        self.cluster.advance(5)
        store.isFull = False
        self.cluster.advance(5)
        self.assertEqual(
            [line.partition(":")[0] for line in lines() if "ositions" in line],
            ["the positions of 2 partitions were not stored", "Positions are stored again"],
        )


class ParentProbes(test_ephemeral.EphemeralCase):
    def test_parents(self) -> None:
        self.make("/a", b"kept")
        self.done(createParents(self.client, "/a/b/c/d"))
        self.assertEqual(
            self.server.tree(), {"/a": (b"kept", 0), "/a/b": (None, 0), "/a/b/c": (None, 0)}
        )


class ChrootProbes(test_ephemeral.EphemeralCase):
    def test_chrootDeleted(self) -> None:
        """The mended function has failed after one request, of the 0.2 s that it is given here."""
        self.make("/chroot")
        client = self.server.client(test_ephemeral.SESSION_MS, "/chroot")
        client.connect()
        self.settle()
        self.other.delete("/chroot")
        self.settle()
        error = self.fails(NoNodeException, createPersistent(client, "/a/b", b"x"))
        self.assertIn("the chroot was deleted", str(error))
