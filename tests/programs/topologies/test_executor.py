"""
Tests for L{pylogbroker.programs.topologies.executor}: the executor of container 0 in this process,
with a real master in its own, and a ZooKeeper. Whole topologies are in
L{tests.integration.test_topologies}.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import SystemRandom
from typing import Any

from twisted.internet.task import deferLater

from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import SessionExpiredException
from pylogbroker.programs.topologies.executor import ContainerExecutor
from pylogbroker.programs.topologies.process import EXECUTOR, ProcessSpec, RoleContext
from pylogbroker.topologies.plan import KILLED
from pylogbroker.topologies.statemanager import NoSuchTopologyError
from tests.topologies.definitions import DEFINITION
from tests.topologies.zookeepercase import TopologyNodesCase, reactor

SESSION_MS = 1_000


class ContainerExecutorTests(TopologyNodesCase):
    """Container 0."""

    timeout = 120
    sessionMs = 20_000

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        await self.states.submit(DEFINITION)
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        properties = {"zk.connect": self.server.servers, "zk.sessiontimeout.ms": str(SESSION_MS)}
        path = folder / "properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.folder = folder
        self.settings = TopologySettings.fromProperties(properties)
        self.path = str(path)

    def executor(self, topology: str = "words") -> ContainerExecutor:
        spec = ProcessSpec(EXECUTOR, topology, 0, self.path, str(self.folder))
        return ContainerExecutor(reactor, RoleContext(spec, self.settings, {}, SystemRandom()))

    async def until(self, isTrue: Any) -> None:
        while not isTrue():
            await deferLater(reactor, 0.02)

    def pids(self, executor: ContainerExecutor) -> dict[str, int]:
        supervisor = executor._supervisor
        return {} if supervisor is None else supervisor.pids()

    async def untilMaster(self) -> Any:
        while (location := await self.states.master("words")) is None:
            await deferLater(reactor, 0.02)
        return location

    async def test_partition(self) -> None:
        """Without ZooKeeper it kills its processes within the session, and fails."""
        executor = self.executor()
        running = executor.run()
        await self.untilMaster()
        pid = self.pids(executor)["master"]
        await self.server.stop()
        await self.assertFailure(running, SessionExpiredException)
        self.assertEqual(self.pids(executor), {})
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    async def test_killedMaster(self) -> None:
        """
        Another process is the master then, with the next epoch, once the session of the one before
        has ended; the end of the topology ends it in order.
        """
        executor = self.executor()
        running = executor.run()
        first = await self.untilMaster()
        self.assertEqual(await self.states.containers("words"), [0])
        os.kill(self.pids(executor)["master"], signal.SIGKILL)
        while (second := await self.untilMaster()) == first:
            await deferLater(reactor, 0.02)
        self.assertEqual(second.epoch, first.epoch + (1 << 32))
        await self.states.setState("words", KILLED)
        await running
        self.assertIn("Master of words", (self.folder / "master.log").read_text())
        await self.until(lambda: not self.pids(executor))

    async def test_removed(self) -> None:
        """The topology is removed while it runs: that is its end, too."""
        executor = self.executor()
        running = executor.run()
        await self.untilMaster()
        await self.states.remove("words")
        await running
        self.assertEqual(self.pids(executor), {})

    async def test_waits(self) -> None:
        """While another executor has the container nothing is started; it can be ended."""
        await self.states.claimContainer("words", 0, 100, lambda: None)
        executor = self.executor()
        running = executor.run()
        await self.until(lambda: executor._waiting is not None)
        await deferLater(reactor, 0.1)
        self.assertEqual((self.pids(executor), running.called), ({}, False))
        executor.stop()
        await running

    async def test_unknown(self) -> None:
        """A topology that was not submitted."""
        await self.assertFailure(self.executor("none").run(), NoSuchTopologyError)
