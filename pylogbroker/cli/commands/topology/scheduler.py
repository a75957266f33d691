"""
C{topology submit}: the local scheduler in the foreground, with a ZooKeeper of its own if there is
none.
"""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from random import SystemRandom
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall

from pylogbroker.cli.commands.topology.masterstatus import readStatus
from pylogbroker.cli.streams import Streams
from pylogbroker.config.properties import Properties, readProperties
from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import closeAll, closing, untilEnded
from pylogbroker.net.timer import wallMs
from pylogbroker.programs.clocksteps import bootSeconds, keepTimers
from pylogbroker.programs.standalonezookeeper import HOST, StandaloneZookeeper
from pylogbroker.programs.topologies.localscheduler import LocalScheduler, definitionOf
from pylogbroker.programs.topologies.topologychoice import chosenTopology
from pylogbroker.topologies.multilang.definitions import loadableFile
from pylogbroker.topologies.packings import pack
from pylogbroker.zookeeper.client import ZookeeperClient

PROGRESS_SECONDS = 1


def prepareSubmit(options: Namespace, streams: Streams) -> None:
    """
    Read the files.

    @raise ConfigurationError: one cannot be used, or a setting is wrong.
    """
    properties = Properties()
    if options.propertyFile is not None:
        properties = readProperties(options.propertyFile, streams.warn)
    changes = list(options.changes)
    if options.zookeeper is not None:
        changes.append(f"zk.connect={options.zookeeper}")
    if options.stateDir is not None:
        changes.append(f"state.dir={options.stateDir}")
    properties = properties.withOverrides(changes)
    settings, config = TopologySettings.split(properties, streams.warn)
    options.file = loadableFile(
        options.file, settings.stateDir, options.python, options.environment
    )
    topology = chosenTopology(options.file, options.topology, config)
    options.packing = pack(topology, options.containers)
    options.chosen, options.topologySettings = topology, settings
    options.properties = properties
    # One that listens at the usual port is taken, as the other commands do.
    if not settings.zkConnect and options.zookeeperPort and _isTaken(options.zookeeperPort):
        options.properties["zk.connect"] = f"{HOST}:{options.zookeeperPort}"


def _isTaken(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1).close()
        return True
    except OSError:
        return False


async def submit(options: Namespace, streams: Streams) -> int:
    """Run a topology until it is killed, or a signal ends it."""
    keepTimers(streams.reactor, bootSeconds)
    properties = options.properties
    server = None
    try:
        if not properties.get("zk.connect", "").strip():
            folder = os.path.join(options.topologySettings.stateDir, "zookeeper")
            server = StandaloneZookeeper(streams.reactor, folder, options.zookeeperPort)
            await server.start()
            properties["zk.connect"] = server.servers
            streams.say(f"ZooKeeper serves on {server.servers}, for development")
        return await _run(options, streams)
    finally:
        if server is not None:
            await closeAll(server.stop())


async def _run(options: Namespace, streams: Streams) -> int:
    settings, _config = TopologySettings.split(options.properties)
    client = ZookeeperClient.fromSettings(streams.reactor, settings)
    await client.connect()
    async with closing(client):
        topology = options.chosen

        async def write(_fd: int, lines: bytes) -> None:
            if lines:
                streams.say(lines.decode(errors="replace").removesuffix("\n"))

        scheduler = LocalScheduler(
            streams.reactor,
            client,
            definitionOf(topology, options.packing, options.file, wallMs(streams.reactor)),
            settings,
            options.properties,
            write,
            streams.warn,
            SystemRandom(),
        )
        streams.say(
            f"topology {topology.name}: {len(options.packing.instances)} instances in"
            f" {len(options.packing.containers)} containers, with logs in {scheduler.directory};"
            " Ctrl-C ends it"
        )
        progress = _Progress(streams, scheduler, topology.name)
        try:
            await untilEnded(scheduler.run(), scheduler.stop)
        finally:
            progress.stop()
        streams.say(f"topology {topology.name} has ended")
        return 0


class _Progress:
    """Says when all containers are there, and when one is missing."""

    def __init__(self, streams: Streams, scheduler: LocalScheduler, name: str) -> None:
        self._streams = streams
        self._scheduler = scheduler
        self._name = name
        self._said = ""
        self._asking: Deferred[None] | None = None
        self._ticking: Any = LoopingCall(self._tick)
        self._ticking.clock = streams.reactor
        self._ticking.start(PROGRESS_SECONDS, now=False)

    def _tick(self) -> None:
        if self._asking is None:
            asking = self._asking = Deferred.fromCoroutine(self._ask())
            asking.addErrback(lambda failure: failure.trap(CancelledError))
            asking.addBoth(self._asked)

    def _asked(self, _result: object) -> None:
        self._asking = None

    async def _ask(self) -> None:
        try:
            location = await self._scheduler.states.master(self._name)
            status = None if location is None else await readStatus(self._streams.reactor, location)
        except PylogbrokerError:
            return  # the next one tells
        if status is None:
            text = "no master"
        elif missing := [
            each["number"] for each in status["containers"] if not each["isConnected"]
        ]:
            text = f"waits for container {', '.join(map(str, missing))}"
        else:
            text = str(status["state"])
        if text != self._said:
            self._said = text
            self._streams.say(f"topology {self._name}: {text}")

    def stop(self) -> None:
        """Say no more."""
        self._ticking.stop()
        if self._asking is not None:
            self._asking.cancel()
