"""
Apache's ZooKeeper server as a child process. It listens on the loopback interface and keeps its
data in one directory. C{python -m tests.integration.apachezookeeper} runs one until it is ended.

It runs the jars of the PySpark wheel, or Debian's package C{zookeeper}; both need Java. The child
has its own process group, so Ctrl-C does not reach it. Linux ends the child when its parent dies.

ZooKeeper reports a taken port unreadably, and lets two servers share one directory. So C{start}
checks both first. The child holds the directory's lock until it ends.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol, Protocol
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.errors import ConfigurationError, ZookeeperError, ZookeeperTimeoutException
from tests.contracts.zookeeperbench import freePort

NEEDS = ("java", "zookeeper")
HOST = "127.0.0.1"
TICK_MS = 500
SESSION_TIMEOUT_MS_MAX = 120_000
HEAP_MIB = 64
START_MS_MAX = 30_000
STOP_MS_MAX = 5_000
LOOK_MS = 50

SPARKS_JARS = (
    "zookeeper-3*",
    "zookeeper-jute-3*",
    "slf4j-api-*",
    "metrics-core-*",
    "snappy-java-*",
)
"""
The jars of the PySpark wheel that ZooKeeper 3.9 needs. Without the last one it never becomes ready.
"""

DEBIANS_JAR = "/usr/share/java/zookeeper.jar"
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CONFIGURATION = "pylogbroker-zoo.cfg"
_LINE_COUNT_MAX = 30

_LAUNCH = """\
import ctypes, os, signal, sys
os.setsid()
try:
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
except (AttributeError, OSError):
    pass  # not Linux
os.execv(sys.argv[1], sys.argv[1:])
"""


def findJava(environment: Mapping[str, str]) -> str:
    """
    The program C{java} of C{JAVA_HOME}, or on the C{PATH}.

    @raise ConfigurationError: it is missing; the text says what to install.
    """
    home = environment.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return os.path.abspath(f"{home}/bin/java")
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is None:
        raise ConfigurationError(
            "ZooKeeper needs a Java runtime, and there is none: install one (Debian: "
            "default-jre-headless)"
        )
    return os.path.abspath(found)


def findJars(sparks: str | None = None, debians: str = DEBIANS_JAR) -> str:
    """
    The class path of a ZooKeeper.

    @param sparks: a folder with PySpark's jars; by default that of the installed wheel.
    @param debians: the Debian package's jar, which names its dependencies.
    @raise ConfigurationError: it is missing; the text says what to install.
    """
    if sparks is None:
        spec = importlib.util.find_spec("pyspark")
        sparks = str(Path(spec.origin).parent / "jars") if spec is not None and spec.origin else ""
    if sparks:
        found = [sorted(Path(sparks).glob(f"{name}.jar")) for name in SPARKS_JARS]
        if all(found):
            return os.pathsep.join(str(paths[-1]) for paths in found)
    if os.path.exists(debians):
        return debians
    raise ConfigurationError(
        "there is no ZooKeeper to run: install Debian's package zookeeper, or pyspark into this "
        "Python"
    )


class _Child(ProcessProtocol):
    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_LINE_COUNT_MAX)
        self.hasEnded = False
        self._waiting: list[Deferred[None]] = []

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self.lines.extend(data.decode(errors="replace").splitlines())

    def processEnded(self, reason: Any) -> None:
        self.hasEnded = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    def whenEnded(self) -> Deferred[None]:
        if self.hasEnded:
            return succeed(None)
        ended: Deferred[None] = Deferred()
        self._waiting.append(ended)
        return ended


class _Answer(Protocol):
    def __init__(self, word: bytes) -> None:
        self.text: Deferred[bytes] = Deferred()
        self._word = word
        self._received: list[bytes] = []

    def connectionMade(self) -> None:
        self.transport.write(self._word)  # type: ignore[union-attr] # it is connected

    def dataReceived(self, data: bytes) -> None:
        self._received.append(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.text.callback(b"".join(self._received))


async def isReady(reactor: Any, port: int) -> bool:
    """Whether a server on this port serves clients."""
    answer = _Answer(b"srvr")
    try:
        connected = await connectProtocol(
            TCP4ClientEndpoint(reactor, HOST, port, timeout=1), answer
        )
    except Exception:
        return False
    tooLong = reactor.callLater(1, connected.transport.abortConnection)
    text = await answer.text
    if tooLong.active():
        tooLong.cancel()
    return b"Mode:" in text


class ZookeeperServerProcess:
    """
    A server that restarts with the same data on the same port.

    @ivar port: on the loopback interface.
    @ivar servers: the C{zk.connect} of its clients.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        directory: str,
        port: int = 0,
        *,
        tickMs: int = TICK_MS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        @param directory: of its data; created if missing.
        @param port: 0 for any free one.
        @param tickMs: its clock's step; a session lasts at least two steps.
        @param environment: the child's, and where C{java} is looked for; by default our own.
        """
        self.port = port or freePort()
        self.servers = f"{HOST}:{self.port}"
        self._reactor = reactor
        self._directory = os.path.abspath(directory)
        self._tickMs = tickMs
        self._environment = dict(os.environ) if environment is None else dict(environment)
        self._child: _Child | None = None
        self._process: Any = None

    @property
    def isRunning(self) -> bool:
        return self._child is not None and not self._child.hasEnded

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def configuration(self) -> str:
        return (
            f"tickTime={self._tickMs}\ninitLimit=10\nsyncLimit=5\ndataDir={self._directory}\nclientPort={self.port}\nclientPortAddress={HOST}\n"
            f"maxSessionTimeout={SESSION_TIMEOUT_MS_MAX}\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
            "autopurge.snapRetainCount=3\nautopurge.purgeInterval=1\n"
        )

    def command(self) -> Sequence[str]:
        """@raise ConfigurationError: Java or ZooKeeper is missing."""
        return [
            findJava(self._environment),
            f"-Xmx{HEAP_MIB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            findJars(),
            MAIN_CLASS,
            f"{self._directory}/{CONFIGURATION}",
        ]

    def start(self) -> Deferred[None]:
        """
        @return: fires with L{None} when it serves clients. Fails with L{ConfigurationError} when
            Java or ZooKeeper is missing, or the port or the directory is taken; with
            L{ZookeeperError} when the server ends first or takes too long. Then it does not run.
        """
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        if self.isRunning:
            raise ZookeeperError(f"the ZooKeeper at {self.servers} runs already")
        command = self.command()
        await self._checkPort()
        held = self._takeData()
        self._child = child = _Child()
        try:
            self._process = self._reactor.spawnProcess(
                child,
                sys.executable,
                [sys.executable, "-ISc", _LAUNCH, *command],
                self._environment,
                self._directory,
                childFDs={0: "w", 1: "r", 2: "r", 3: held},
            )
        finally:
            os.close(held)
        for _look in range(START_MS_MAX // LOOK_MS):
            if child.hasEnded:
                raise ZookeeperError(
                    f"ZooKeeper has ended instead of serving on {self.servers}; it said: "
                    f"{_said(child)}"
                )
            if await isReady(self._reactor, self.port) and not child.hasEnded:
                self._log.info(
                    "ZooKeeper serves on {servers}, with its data in {directory}",
                    servers=self.servers,
                    directory=self._directory,
                )
                return
            await deferLater(self._reactor, LOOK_MS / 1000)
        await self.kill()
        raise ZookeeperTimeoutException(
            f"ZooKeeper does not serve on {self.servers} after {START_MS_MAX} ms; it said: "
            f"{_said(child)}"
        )

    async def _checkPort(self) -> None:
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZooKeeper has it
                probe.bind((HOST, self.port))
        except OSError as error:
            if await isReady(self._reactor, self.port):
                raise ZookeeperError(f"port {self.port}: another ZooKeeper is there") from error
            raise ConfigurationError(
                f"port {self.port} of {HOST} cannot be had: {error.strerror}"
            ) from error

    def _takeData(self) -> int:
        try:
            os.makedirs(self._directory, exist_ok=True)
            with open(f"{self._directory}/{CONFIGURATION}", "a", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(self.configuration())
                file.flush()
                return os.dup(file.fileno())
        except OSError as error:
            reason = (
                "another ZooKeeper has them there"
                if isinstance(error, BlockingIOError)
                else error.strerror
            )
            raise ConfigurationError(
                f"ZooKeeper's data cannot be in {self._directory}: {reason}"
            ) from error

    def stop(self) -> Deferred[None]:
        """
        End the server; acknowledged data are on the disk.

        @return: fires with L{None} when the process has ended.
        """
        ended = self._signal("TERM")
        if self.isRunning:
            late = self._reactor.callLater(STOP_MS_MAX / 1000, self._signal, "KILL")

            ended.addCallback(lambda _ended: late.cancel() if late.active() else None)
        return ended

    def kill(self) -> Deferred[None]:
        """C{kill -9}. Returns as C{stop}."""
        return self._signal("KILL")

    def pause(self) -> None:
        """Stop the process (C{SIGSTOP}) without closing a connection."""
        self._process.signalProcess(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.signalProcess(signal.SIGCONT)

    def whenEnded(self) -> Deferred[None]:
        """@return: fires with L{None} when the process has ended, for any reason."""
        return succeed(None) if self._child is None else self._child.whenEnded()

    def _signal(self, name: str) -> Deferred[None]:
        if self.isRunning:
            try:
                self._process.signalProcess(name)
            except ProcessExitedAlready:
                pass  # and we shall hear of it
        return self.whenEnded()


def _said(child: _Child) -> str:
    return " / ".join(line.strip() for line in child.lines if line.strip()) or "nothing"


async def _run(reactor: Any, directory: str, port: str, tickMs: str) -> None:
    server = ZookeeperServerProcess(reactor, directory, int(port), tickMs=int(tickMs))
    reactor.addSystemEventTrigger("before", "shutdown", server.stop)
    await server.start()
    sys.stdout.write(f"ZooKeeper serves on {server.servers}\n")
    sys.stdout.flush()
    await server.whenEnded()


if __name__ == "__main__":
    from twisted.internet.task import react

    react(lambda reactor, *rest: Deferred.fromCoroutine(_run(reactor, *rest)), sys.argv[1:])
