"""Tests for L{pylogbroker.cli.session}, with a real ZooKeeper."""

from __future__ import annotations

import argparse
import inspect
import io
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli import CommandError
from pylogbroker.cli.session import ClusterSession
from pylogbroker.cli.streams import Streams
from pylogbroker.config.securitysettings import PLAIN
from pylogbroker.errors import NoBrokersError, ZookeeperError
from pylogbroker.types import BrokerPartition
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import reactor


class ClusterReadingTests(ClusterCase):
    """A cluster, for as long as a command looks at it."""

    def session(self, servers: str) -> ClusterSession:
        options = argparse.Namespace(zookeeper=servers, timeoutMs=20_000, access=PLAIN)
        return ClusterSession(options, Streams(-1, -1, io.StringIO(), reactor))

    async def open(self) -> ClusterSession:
        """A reading, to the end of the test."""
        reading = self.session(self.servers)
        await reading.__aenter__()
        self.addCleanup(lambda: self.end(reading))
        return reading

    def end(self, reading: ClusterSession) -> Any:
        return Deferred.fromCoroutine(reading.__aexit__(None, None, None))

    async def test_brokers(self) -> None:
        """
        Brokers are looked up in ZooKeeper, once each; one that is not registered is an error that
        names it, and becomes none when it is.
        """
        await self.startBrokers(1)
        await self.establish("t")
        cluster = await self.open()
        error = await self.refused(cluster.offsets.end("t", BrokerPartition(1, 0)), NoBrokersError)
        self.assertEqual(str(error), "broker 1 is not registered")
        self.assertEqual(await cluster.offsets.end("t", BrokerPartition(0, 0)), 15)
        await self.admin.delete("/brokers/ids/0")
        self.assertEqual(await cluster.offsets.start("t", BrokerPartition(0, 0)), 0)
        self.assertEqual(cluster.problems, [])

    async def test_problems(self) -> None:
        """What cannot be read is told at the end, and the rest is read."""
        await self.node("/brokers/topics/t/0", b"1")
        await self.node("/brokers/topics/t/1", b"many")
        cluster = await self.open()
        self.assertEqual(await cluster.reader.partitions(["t"]), [("t", BrokerPartition(0, 0))])
        [problem] = cluster.problems
        self.assertIn("/brokers/topics/t/1", problem)

    async def test_knownTopics(self) -> None:
        """A topic that is not there is an error that says which are."""
        await self.node("/brokers/topics/t/0", b"1")
        cluster = await self.open()
        self.assertEqual(
            (await cluster.knownTopics([]), await cluster.knownTopics(["t"])), (["t"], ["t"])
        )
        error = await self.refused(cluster.knownTopics(["u"]), CommandError)
        self.assertEqual(str(error), "there is no topic u; there are: t")

    async def test_unreachable(self) -> None:
        """A chroot that does not exist is an error, and nothing is left open."""
        await self.refused(self.session(self.servers + "/nowhere").__aenter__(), ZookeeperError)


class _SlowSession(ClusterSession):
    """Neither connecting nor closing ends."""

    async def connect(self) -> None:
        await Deferred()

    async def close(self) -> None:
        await Deferred()


class AbandonedTests(SynchronousTestCase):
    """A command that the interpreter ends, because nothing refers to it any more."""

    def test_opening(self) -> None:
        """Opening ends at once: a connection that is slow to close does not hold it."""
        options = argparse.Namespace(zookeeper="z:2181", timeoutMs=20_000, access=PLAIN)
        opening = _SlowSession(options, Streams(-1, -1, io.StringIO(), reactor)).__aenter__()
        opening.send(None)
        opening.close()
        self.assertEqual(inspect.getcoroutinestate(opening), inspect.CORO_CLOSED)
