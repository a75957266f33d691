"""
Tests for L{pylogbroker.cli.commands.demo}, with a real ZooKeeper.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from twisted.internet.task import deferLater

from pylogbroker.zookeeper.client import ZookeeperClient
from tests.cli.commands import CommandCase, Outcome, Process, reactor

NEEDS = ("java", "zookeeper")


class ZookeeperCase(CommandCase):
    """Commands that are ended by a signal."""

    timeout = 120

    async def served(self, protocol: Process) -> str:
        """Where the ZooKeeper is."""
        await protocol.said(b"Ctrl-C ends")
        found = re.search(rb"(?:serves on |zookeeper  )(127\.0\.0\.1:\d+)", protocol.output)
        assert found is not None, (protocol.output, protocol.errors)
        return found[1].decode()

    async def connected(self, servers: str) -> Any:
        client = ZookeeperClient(reactor, servers, 2_000)
        self.addCleanup(client.close)
        await client.connect()
        return client

    async def ended(self, protocol: Process, process: Any, number: int = signal.SIGINT) -> Outcome:
        os.kill(process.pid, number)
        result: Outcome = await protocol.ended
        return result


class CommandTests(ZookeeperCase):
    """C{pylogbroker zookeeper}."""

    async def test_round(self) -> None:
        """
        It serves until it is ended, which is no failure; started again with the same data it has
        what it had.
        """
        data = self.mktemp()
        for number, signalled in enumerate((signal.SIGINT, signal.SIGTERM)):
            protocol, process = self.spawn("zookeeper", "--data", data, "--port", "0")
            servers = await self.served(protocol)
            client = await self.connected(servers)
            self.assertEqual(await client.exists("/a") is not None, number == 1)
            if number == 0:
                await client.create("/a")
            await client.close()
            result = await self.ended(protocol, process, signalled)
            self.assertEqual((result.code, result.errors), (0, ""))
        self.assertIn("version-2", os.listdir(data))

    async def test_taken(self) -> None:
        """A port that another one has is an error, and the other goes on."""
        protocol, process = self.spawn("zookeeper", "--data", self.mktemp(), "--port", "0")
        servers = await self.served(protocol)
        result = await self.perform(
            "zookeeper", "--data", self.mktemp(), "--port", servers.rpartition(":")[2]
        )
        self.assertEqual((result.code, "another ZooKeeper is there" in result.errors), (1, True))
        self.assertEqual((await self.ended(protocol, process)).code, 0)

    async def test_notADirectory(self) -> None:
        """Data that cannot be there is an error."""
        result = await self.perform("zookeeper", "--data", self.write(b"x"), "--port", "0")
        self.assertEqual(result.code, 1)
        self.assertIn("ZooKeeper's data cannot be in", result.errors)

    async def test_killed(self) -> None:
        """
        A server that somebody else ends is an error; and when its parent is killed, it ends by
        itself.
        """
        protocol, process = self.spawn("zookeeper", "--data", self.mktemp(), "--port", "0")
        await self.served(protocol)
        os.kill(childOf(process.pid), signal.SIGKILL)
        result = await protocol.ended
        self.assertEqual(
            (result.code, result.errors), (1, "pylogbroker: ZooKeeper has ended by itself\n")
        )
        protocol, process = self.spawn("zookeeper", "--data", self.mktemp(), "--port", "0")
        await self.served(protocol)
        child = childOf(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        for _look in range(500):
            if not os.path.exists(f"/proc/{child}"):
                break
            await deferLater(reactor, 0.02)
        else:
            self.fail("it goes on")


def childOf(pid: int) -> int:
    """The one child of a process."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int(file.read())
