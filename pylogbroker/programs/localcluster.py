"""
Clusters on this machine, for development and tests: brokers of today's protocol, and the ZooKeeper
that coordinates them. All listen on the loopback interface, and each has its own directory. A
module of its own, since tests use it, too.

L{LocalCluster} has all of it in this process. L{ProcessCluster} has a process for each, so that one
of them can be killed: C{kill -9} ends a broker as a lost machine would. The process of a broker
ends with its parent, too, by the end of its standard input.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from pylogbroker.config.properties import formatProperties
from pylogbroker.errors import PylogbrokerError, ZookeeperError
from pylogbroker.net.deferreds import asDeferred, closeAll, gatherAll
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.programs.standalonezookeeper import HOST, StandaloneZookeeper

FIRST_ID = 1
"""The id of the first broker."""

STOP_SECONDS_MAX = 30
"""How long a process may take to stop in order; then it is killed."""


class MemberFailedError(PylogbrokerError):
    """A process of a cluster could not start. The text says which, and what it said."""


def brokerProperties(
    properties: Mapping[str, str], number: int, directory: str, port: int, servers: str
) -> dict[str, str]:
    """
    The properties of a broker of a cluster.

    @param properties: of all brokers.
    @param number: its id.
    @param directory: of the cluster.
    @param port: 0 for any free one.
    @param servers: ZooKeeper's.
    """
    return {
        **properties,
        "brokerid": str(number),
        "port": str(port),
        "listen.interface": HOST,
        "hostname": HOST,
        "log.dir": os.path.join(directory, f"broker{number}"),
        "enable.zookeeper": "true",
        "zk.connect": servers,
        "metadata.store": "zookeeper",
    }


def _replicationFactors(brokerCount: int) -> dict[str, str]:
    """Of all topics: 3, as Kafka's default for coordinators' topics, or one for each broker."""
    factor = str(min(brokerCount, 3))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
    }


class LocalCluster:
    """
    A cluster in this process.

    @ivar servers: ZooKeeper's, as C{zk.connect} has them; once it has started.
    @ivar brokers: those that run, by id.
    """

    def __init__(
        self,
        reactor: Any,
        directory: str,
        brokerCount: int,
        properties: Mapping[str, str],
        port: int = 0,
        zookeeperPort: int = 0,
        own: Mapping[int, Mapping[str, str]] = {},
    ) -> None:
        """
        @param directory: of all data; made if it is missing.
        @param properties: of all brokers.
        @param own: those of single brokers, such as C{broker.rack}, by id.
        @param port: of the first broker; the others have the next ones. 0: each takes a free one.
        @param zookeeperPort: 0 for any free one.
        """
        self._reactor = reactor
        self._directory = directory
        self._properties = {**_replicationFactors(brokerCount), **properties}
        self._own = own
        self._ports = [port and port + each for each in range(brokerCount)]
        self.servers = ""
        self.zookeeper = StandaloneZookeeper(
            reactor, os.path.join(directory, "zookeeper"), zookeeperPort
        )
        self.brokers: dict[int, EmbeddedBroker] = {}

    @property
    def addresses(self) -> dict[int, str]:
        """C{127.0.0.1:PORT} of each broker, by its id."""
        return {number: f"{HOST}:{each.port}" for number, each in self.brokers.items()}

    @asDeferred
    async def start(self) -> None:
        """
        @return: fires with L{None} when all brokers serve clients. Fails with a
            L{PylogbrokerError}; call L{stop} then, too.
        """
        await self.zookeeper.start()
        self.servers = self.zookeeper.servers
        for number, port in enumerate(self._ports, FIRST_ID):
            await self.startBroker(number, port)

    @asDeferred
    async def startBroker(self, number: int, port: int = 0) -> None:
        """Start a broker that does not run, with the data that it had."""
        properties = {**self._properties, **self._own.get(number, {})}
        broker = EmbeddedBroker(
            self._reactor,
            brokerProperties(properties, number, self._directory, port, self.servers),
        )
        await broker.start()
        self.brokers[number] = broker

    @asDeferred
    async def stopBroker(self, number: int) -> None:
        """Stop a broker in order."""
        await self.brokers.pop(number).stop()

    def whenFailed(self) -> Deferred[NoReturn]:
        """@return: fails with L{ZookeeperError} when ZooKeeper has ended by itself."""
        return self.zookeeper.whenFailed()

    @asDeferred
    async def stop(self) -> None:
        """@return: fires with L{None} when the brokers, and then ZooKeeper, have ended."""
        for number in list(self.brokers):
            await closeAll(self.stopBroker(number))
        await closeAll(self.zookeeper.stop())


# -- processes


class _Member(ProcessProtocol):
    """
    A process of a cluster.

    @ivar name: for texts.
    @ivar pid: of the process.
    @ivar address: where it serves, once it does.
    @ivar reason: how it has ended; L{None}: it runs.
    """

    def __init__(
        self, reactor: Any, name: str, log: str, onEnd: Callable[[_Member], object]
    ) -> None:
        """
        @param log: the file that its log goes to.
        @param onEnd: called when a process that has served ends.
        """
        self.name = name
        self.log = log
        self.address = ""
        self.reason: str | None = None
        self.started: Deferred[None] = Deferred()
        self.pid = 0
        self._reactor = reactor
        self._onEnd = onEnd
        self._output = b""
        self._process: Any = None
        self._ended: Deferred[None] = Deferred()

    @asDeferred
    async def start(self, what: Mapping[str, Any]) -> None:
        """
        @param what: for L{pylogbroker.programs.clustermember}.
        @raise MemberFailedError: it has ended before it served.
        """
        command = [sys.executable, "-m", "pylogbroker.programs.clustermember", json.dumps(what)]
        self._process = self._reactor.spawnProcess(
            self, sys.executable, command, None, childFDs={0: "w", 1: "r", 2: "r"}
        )
        self.pid = self._process.pid
        await self.started

    def outReceived(self, data: bytes) -> None:
        self._output = (self._output + data)[-4096:]
        if not self.address and b"\n" in self._output and self.reason is None:
            self.address = self._output.decode().strip()
            self.started.callback(None)

    def errReceived(self, data: bytes) -> None:
        self._output = (self._output + data)[-4096:]

    def processEnded(self, reason: Failure) -> None:
        status: Any = reason.value
        isKilled = status.signal is not None
        self.reason = f"signal {status.signal}" if isKilled else f"status {status.exitCode}"
        if self.address:
            self._onEnd(self)
        else:
            said = self._output.decode(errors="replace").strip() or f"nothing; see {self.log}"
            text = f"{self.name} has ended with {self.reason} before it served: {said}"
            self.started.errback(MemberFailedError(text))
        self._ended.callback(None)

    @asDeferred
    async def stop(self) -> None:
        """Stop it in order, or after STOP_SECONDS_MAX by force."""
        if self._process is None or self.reason is not None:
            return
        self._signal("TERM")
        late = self._reactor.callLater(STOP_SECONDS_MAX, self._signal, "KILL")
        await self._ended
        if late.active():
            late.cancel()

    def _signal(self, name: str) -> None:
        try:
            self._process.signalProcess(name)
        except ProcessExitedAlready:
            pass  # and processEnded follows


class ProcessCluster:
    """
    A cluster with a process for each broker and for ZooKeeper; used as a L{LocalCluster}.
    """

    def __init__(
        self,
        reactor: Any,
        directory: str,
        brokerCount: int,
        properties: Mapping[str, str],
        port: int = 0,
        zookeeperPort: int = 0,
        *,
        brokerEnded: Callable[[int, int, str], object] = lambda number, pid, reason: None,
    ) -> None:
        """
        As of L{LocalCluster}.

        @param brokerEnded: called with id, process id and reason (C{"signal 9"}) when a broker has
            ended by itself. The others go on.
        """
        self._reactor = reactor
        self._directory = os.path.abspath(directory)
        self._properties = {**_replicationFactors(brokerCount), **properties}
        self._port = port
        self._brokerCount = brokerCount
        self._zookeeperPort = zookeeperPort
        self._brokerEnded = brokerEnded
        self._isStopping = False
        self._failed: Deferred[NoReturn] = Deferred()
        self._zookeeper = self._member("ZooKeeper", "zookeeper", self._zookeeperEnded)
        self._brokers: dict[int, _Member] = {}
        self.servers = ""

    def _member(self, name: str, base: str, onEnd: Callable[[_Member], object]) -> _Member:
        return _Member(self._reactor, name, os.path.join(self._directory, f"{base}.log"), onEnd)

    @property
    def addresses(self) -> dict[int, str]:
        """C{127.0.0.1:PORT} of each broker, by its id."""
        return {number: each.address for number, each in self._brokers.items()}

    @property
    def pids(self) -> dict[int, int]:
        """The processes of the brokers, by id."""
        return {number: each.pid for number, each in self._brokers.items()}

    @property
    def zookeeperPid(self) -> int:
        """The process of ZooKeeper."""
        return self._zookeeper.pid

    @asDeferred
    async def start(self) -> None:
        """As L{LocalCluster.start}."""
        os.makedirs(self._directory, exist_ok=True)
        await self._zookeeper.start(
            {
                "directory": os.path.join(self._directory, "zookeeper"),
                "port": self._zookeeperPort,
                "log": self._zookeeper.log,
            }
        )
        self.servers = self._zookeeper.address
        await gatherAll([self.startBroker(FIRST_ID + at) for at in range(self._brokerCount)])

    @asDeferred
    async def startBroker(self, number: int) -> None:
        """As L{LocalCluster.startBroker}; its port stays if the cluster was given one."""
        member = self._brokers[number] = self._member(
            f"broker {number}", f"broker{number}", lambda ended: self._ended(number, ended)
        )
        port = self._port and self._port + number - FIRST_ID
        properties = brokerProperties(
            self._properties, number, self._directory, port or freePort(), self.servers
        )
        with open(self.configOf(number), "w", encoding="utf-8") as file:
            file.write(formatProperties(properties))
        await member.start({"config": self.configOf(number), "log": member.log})

    def configOf(self, number: int) -> str:
        """The property file of a broker, with which C{twistd pylogbroker} can start it again."""
        return os.path.join(self._directory, f"broker{number}.properties")

    def _ended(self, number: int, member: _Member) -> None:
        if not self._isStopping:
            self._brokerEnded(number, member.pid, str(member.reason))

    def _zookeeperEnded(self, member: _Member) -> None:
        if not self._isStopping:
            text = f"ZooKeeper has ended by itself, with {member.reason}; see {member.log}"
            self._failed.errback(ZookeeperError(text))

    def whenFailed(self) -> Deferred[NoReturn]:
        """As L{LocalCluster.whenFailed}."""
        return self._failed

    @asDeferred
    async def stop(self) -> None:
        """As L{LocalCluster.stop}."""
        self._isStopping = True
        await closeAll(*(each.stop() for each in self._brokers.values()))
        await closeAll(self._zookeeper.stop())


def freePort() -> int:
    """A port of the loopback interface that is free now; a restart of its broker can have it."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
