"""Clusters on this machine: in one process, and in several."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from pylogbroker.config.properties import readProperties
from pylogbroker.errors import ConfigurationError, ZookeeperError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.localcluster import (
    LocalCluster,
    MemberFailedError,
    ProcessCluster,
    freePort,
)
from pylogbroker.testing.localbroker import DEFAULTS

PROPERTIES = {
    key: DEFAULTS[key]
    for key in (
        "log.flush.interval",
        "log.flush.acks.all",
        "log.flush.before.read",
        "offsets.topic.num.partitions",
        "transaction.state.log.num.partitions",
    )
}


class OneProcessTests(TestCase):
    """A cluster in this process."""

    timeout = 60

    @asDeferred
    async def test_round(self) -> None:
        """Brokers serve at the ports that were asked for, and are gone at the end."""
        port = freePort()
        cluster = LocalCluster(reactor, self.mktemp(), 1, PROPERTIES, port)
        await cluster.start()
        try:
            self.assertEqual(cluster.addresses, {1: f"127.0.0.1:{port}"})
            await cluster.stopBroker(1)
            self.assertEqual(cluster.addresses, {})
            await cluster.startBroker(1, port)
        finally:
            await cluster.stop()
        self.assertRaises(ConnectionRefusedError, socket.create_connection, ("127.0.0.1", port))

    @asDeferred
    async def test_taken(self) -> None:
        """A port that is taken is an error, and what has started can be stopped."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            cluster = LocalCluster(reactor, self.mktemp(), 1, PROPERTIES, taken.getsockname()[1])
            with self.assertRaises(ConfigurationError):
                await cluster.start()
            await cluster.stop()


class ProcessesTests(TestCase):
    """A cluster in several processes."""

    timeout = 120

    def setUp(self) -> None:
        self.directory = self.mktemp()
        self.ended: list[Any] = []
        self.told: Deferred[None] = Deferred()

    def brokerEnded(self, *how: Any) -> None:
        self.ended.append(how)
        self.told.callback(None)

    def cluster(self, port: int = 0) -> ProcessCluster:
        return ProcessCluster(
            reactor, self.directory, 1, PROPERTIES, port, brokerEnded=self.brokerEnded
        )

    @asDeferred
    async def test_killed(self) -> None:
        """
        A broker that is killed is told, and its property file can start it again; a ZooKeeper that
        is killed ends the cluster.
        """
        cluster = self.cluster()
        await cluster.start()
        try:
            pid = cluster.pids[1]
            os.kill(pid, signal.SIGKILL)
            await self.told
            self.assertEqual(self.ended, [(1, pid, "signal 9")])
            properties = readProperties(cluster.configOf(1))
            self.assertEqual(properties["brokerid"], "1")
            self.assertEqual(f"127.0.0.1:{properties['port']}", cluster.addresses[1])
            os.kill(cluster.zookeeperPid, signal.SIGKILL)
            with self.assertRaises(ZookeeperError) as caught:
                await cluster.whenFailed()
            self.assertIn("signal 9", str(caught.exception))
        finally:
            await cluster.stop()

    @asDeferred
    async def test_stop(self) -> None:
        """All stop in order, and nothing is told of it."""
        cluster = self.cluster()
        await cluster.start()
        await cluster.stop()
        self.assertEqual(self.ended, [])
        log = os.path.join(self.directory, "broker1")
        self.assertIn(".kafka_cleanshutdown", os.listdir(log))

    @asDeferred
    async def test_failed(self) -> None:
        """A broker that cannot start is named, with what it said."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            cluster = self.cluster(taken.getsockname()[1])
            with self.assertRaises(MemberFailedError) as caught:
                await cluster.start()
            await cluster.stop()
        self.assertIn("broker 1 has ended with status 1", str(caught.exception))
        self.assertIn("cannot listen", str(caught.exception))
