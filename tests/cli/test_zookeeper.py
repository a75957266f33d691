"""
Tests for C{zookeeper} in L{pylogbroker.cli.commands.dev}.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from typing import Any

from twisted.internet.defer import Deferred, DeferredList

from pylogbroker.errors import StorageError
from pylogbroker.programs import standalonezookeeper
from pylogbroker.storage.files import RealFile, RealFileSystem
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.cli.commands import CommandCase, Outcome, Process, reactor
from tests.contracts.zookeeperbench import freePort


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

    async def fillUp(self, servers: str) -> None:
        """Write until the server of L{FailingFileSystem} fails."""
        client = await self.connected(servers)
        writes = [client.create(f"/{i}", bytes(1_000)) for i in range(50)]
        await client.close()
        results = await DeferredList(writes, consumeErrors=True)
        self.assertFalse(all(isDone for isDone, _ in results))


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
            self.assertIn(b"production wants an ensemble", protocol.output)
        self.assertEqual(sorted(os.listdir(data)), ["log", "snapshots"])

    async def test_taken(self) -> None:
        """A port or a directory that another one has is an error, and the other goes on."""
        data = self.mktemp()
        protocol, process = self.spawn("zookeeper", "--data", data, "--port", "0")
        servers = await self.served(protocol)
        result = await self.perform(
            "zookeeper", "--data", self.mktemp(), "--port", servers.rpartition(":")[2]
        )
        self.assertEqual((result.code, "already in use" in result.errors), (1, True))
        result = await self.perform("zookeeper", "--data", data, "--port", "0")
        self.assertEqual((result.code, "another ZooKeeper has" in result.errors), (1, True))
        self.assertEqual((await self.ended(protocol, process)).code, 0)

    async def test_notADirectory(self) -> None:
        """Data that cannot be there is an error."""
        result = await self.perform("zookeeper", "--data", self.write(b"x"), "--port", "0")
        self.assertEqual(result.code, 1)
        self.assertIn("Not a directory", result.errors)

    async def test_apaches(self) -> None:
        """A directory with the data of Apache's ZooKeeper is an error that says what to do."""
        data = self.mktemp()
        os.makedirs(f"{data}/version-2")
        result = await self.perform("zookeeper", "--data", data, "--port", "0")
        self.assertEqual((result.code, "zkServer.sh" in result.errors), (1, True))

    async def test_diskFails(self) -> None:
        """A server whose disk fails ends, with an error."""
        self.patch(standalonezookeeper, "RealFileSystem", FailingFileSystem)
        port = freePort()
        ended = Deferred.fromCoroutine(
            self.perform("zookeeper", "--data", self.mktemp(), "--port", str(port))
        )
        await self.fillUp(f"127.0.0.1:{port}")
        result = await ended
        self.assertEqual((result.code, "server has ended" in result.errors), (1, True))


class FailingFile(RealFile):
    """A file whose disk fails when there is much to write."""

    def sync(self) -> None:
        """@raise StorageError: the file is large."""
        if self.size() > 20_000:
            raise StorageError(self.path, "fsync", "Input/output error", errno.EIO)
        super().sync()


class FailingFileSystem(RealFileSystem):
    """Files whose disk fails."""

    fileClass = FailingFile
