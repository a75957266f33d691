"""Tests for L{pylogbroker.cli.session}, with a real ZooKeeper."""

from __future__ import annotations

import argparse
import io

from twisted.internet.defer import Deferred

from pylogbroker.cli.session import GroupMember
from pylogbroker.cli.streams import Streams
from pylogbroker.config.securitysettings import SecuritySettings
from pylogbroker.errors import ZookeeperError
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import reactor


class GroupMemberTests(ClusterCase):
    """A member, for as long as a command takes."""

    def member(self, group: str | None, **more: str) -> GroupMember:
        options = argparse.Namespace(
            group=group,
            zookeeper=more.get("servers", self.servers),
            access=SecuritySettings.fromProperties({"zk.digest": more.get("digest", "")}),
            timeoutMs=2_000,
            fetchSize=1 << 20,
        )
        return GroupMember(
            options,
            Streams(-1, -1, io.StringIO(), reactor),
            "tests",
            100,
            {"autooffset.reset": "smallest"},
        )

    async def join(self, member: GroupMember) -> None:
        """Begin to read, and commit."""
        await member.connect()
        [stream] = (await member.consumer.createMessageStreams({"t": 1}))["t"]
        await stream.__anext__()

    async def test_own(self) -> None:
        """A group of its own is there while it reads, and nothing of it is there afterwards."""
        await self.startBrokers(1)
        await self.establish("t")
        member = self.member(None)
        await self.join(member)
        [name] = await self.children("/consumers")
        self.assertRegex(name, r"tests-\d+")
        await member.close()
        self.assertEqual(await self.children("/consumers"), [])

    async def test_named(self) -> None:
        """
        Of a group that somebody has named, the positions stay, with the access control that goes
        with the credentials.
        """
        await self.startBrokers(1)
        await self.establish("t")
        member = self.member("g", digest="me:secret")
        await self.join(member)
        await member.close()
        self.assertIn("0-0", await self.children("/consumers/g/offsets/t"))
        self.assertEqual(await self.children("/consumers/g/ids"), [])
        await self.refused(self.admin.set("/consumers/g/offsets/t/0-0", b"1"), ZookeeperError)

    async def test_unconnected(self) -> None:
        """One that found no ZooKeeper can leave, too."""
        member = self.member(None, servers="127.0.0.1:1")
        await self.refused(Deferred.fromCoroutine(self.join(member)), ZookeeperError)
        await member.close()
