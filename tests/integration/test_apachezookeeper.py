"""
Tests for L{tests.integration.apachezookeeper}.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.errors import ConfigurationError, ZookeeperError, ZookeeperTimeoutException
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.contracts.zookeeperbench import freePort
from tests.integration import apachezookeeper as module
from tests.integration.apachezookeeper import (
    SPARKS_JARS,
    ZookeeperServerProcess,
    findJars,
    findJava,
    isReady,
)

reactor: Any = _reactor


class FindTests(SynchronousTestCase):
    """What there is to run."""

    def folder(self, *names: str) -> str:
        folder = os.path.abspath(self.mktemp())
        os.makedirs(folder)
        for name in names:
            Path(folder, name).touch(0o755)
        return folder

    def test_java(self) -> None:
        """C{JAVA_HOME} comes before the path; without either it is said what to install."""
        home, path = self.folder(), self.folder("java")
        os.makedirs(f"{home}/bin")
        self.assertEqual(findJava({"JAVA_HOME": home, "PATH": path}), f"{path}/java")
        Path(home, "bin", "java").touch(0o755)
        self.assertEqual(findJava({"JAVA_HOME": home, "PATH": path}), f"{home}/bin/java")
        self.assertEqual(findJava({"PATH": path}), f"{path}/java")
        error = self.assertRaises(ConfigurationError, findJava, {"PATH": self.folder()})
        self.assertIn("default-jre-headless", str(error))

    def test_jars(self) -> None:
        """
        PySpark's five jars come before Debian's package; without either it is said what to install.
        """
        names = [
            name.replace("-3*", "-3.9.5").replace("-*", "-1.0") + ".jar" for name in SPARKS_JARS
        ]
        whole, part, debians = (
            self.folder(*names),
            self.folder(*names[:-1]),
            f"{self.folder('zookeeper.jar')}/zookeeper.jar",
        )
        self.assertEqual(findJars(whole, debians), ":".join(f"{whole}/{name}" for name in names))
        self.assertEqual(findJars(part, debians), debians)
        error = self.assertRaises(ConfigurationError, findJars, part, "/nowhere")
        for word in ("zookeeper", "pyspark"):
            self.assertIn(word, str(error))

    def test_here(self) -> None:
        """On the machine that runs the tests there is one."""
        for jar in findJars().split(":"):
            self.assertTrue(os.path.exists(jar))
        self.assertTrue(os.path.exists(findJava(os.environ)))


class Mute(Protocol):
    """Takes connections and says nothing."""


class ServerTests(TestCase):
    """A real server."""

    timeout = 120

    def server(self, directory: str = "", **keywords: Any) -> ZookeeperServerProcess:
        server = ZookeeperServerProcess(reactor, directory or self.mktemp(), **keywords)
        self.addCleanup(server.stop)
        return server

    async def fails(self, kind: type[Exception], server: ZookeeperServerProcess) -> str:
        with self.assertRaises(kind) as raised:
            await server.start()
        self.assertFalse(server.isRunning)
        return str(raised.exception)

    async def test_life(self) -> None:
        """
        It is started, used, stopped, and started again with the same data on the same port; twice
        is refused, or does nothing.
        """
        server = self.server()
        self.assertFalse(server.isRunning)
        await server.stop()
        for time in range(2):
            await server.start()
            self.assertTrue(server.isRunning and server.pid)
            client = ZookeeperClient(reactor, server.servers)
            await client.connect()
            self.assertEqual(await client.exists("/kept") is not None, time == 1)
            if time == 0:
                await client.create("/kept")
                with self.assertRaises(ZookeeperError):
                    await server.start()
            await client.close()
            ended = server.whenEnded()
            await server.stop()
            await ended
            await server.whenEnded()
            self.assertFalse(server.isRunning)
            await server.stop()

    async def test_portTaken(self) -> None:
        """
        A port that somebody has who is no ZooKeeper is an error that names it, and nothing is
        started.
        """
        listening = reactor.listenTCP(0, Factory.forProtocol(Mute), interface="127.0.0.1")
        self.addCleanup(listening.stopListening)
        port = listening.getHost().port
        directory = self.mktemp()
        text = await self.fails(ConfigurationError, self.server(directory, port=port))
        self.assertEqual(text, f"port {port} of 127.0.0.1 cannot be had: Address already in use")
        self.assertFalse(os.path.exists(directory))

    async def test_dataTaken(self) -> None:
        """
        Data that another one has is an error that names the directory, and the other's
        configuration stays; when it has ended, however, they are free.
        """
        directory = self.mktemp()
        first, second = self.server(directory), self.server(directory)
        await first.start()
        text = await self.fails(ConfigurationError, second)
        self.assertEqual(
            text,
            f"ZooKeeper's data cannot be in {os.path.abspath(directory)}: another ZooKeeper has "
            "them there",
        )
        self.assertEqual(Path(directory, module.CONFIGURATION).read_text(), first.configuration())
        await first.kill()
        await second.start()
        self.assertEqual(Path(directory, module.CONFIGURATION).read_text(), second.configuration())

    async def test_cannotServe(self) -> None:
        """
        One that ends instead of serving is an error with what it said, also when that was nothing.
        """
        for act, said in (("exit 3", "nothing"), ("echo one; echo; echo two >&2", "one / two")):
            home = self.mktemp()
            os.makedirs(f"{home}/bin")
            Path(home, "bin", "java").write_text(f"#!/bin/sh\n{act}\n")
            os.chmod(f"{home}/bin/java", 0o755)
            server = self.server(environment={"JAVA_HOME": home, "PATH": os.defpath})
            text = await self.fails(ZookeeperError, server)
            self.assertEqual(
                text, f"ZooKeeper has ended instead of serving on {server.servers}; it said: {said}"
            )

    async def test_tooSlow(self) -> None:
        """
        One that takes too long is killed, and is an error; one that does not end when it is asked
        to is killed, too.
        """
        home = self.mktemp()
        os.makedirs(f"{home}/bin")
        Path(home, "bin", "java").write_text(
            "#!/bin/sh\ntrap '' TERM\necho here\nwhile :; do read -t 1 x </dev/zero; done\n"
        )
        os.chmod(f"{home}/bin/java", 0o755)
        self.patch(module, "START_MS_MAX", 500)
        server = self.server(environment={"JAVA_HOME": home, "PATH": os.defpath})
        self.assertIn("after 500 ms", await self.fails(ZookeeperTimeoutException, server))
        self.patch(module, "START_MS_MAX", 30_000)
        self.patch(module, "STOP_MS_MAX", 100)
        starting = server.start()
        while not server.isRunning:
            await isReady(reactor, freePort())
        await server.stop()
        with self.assertRaises(ZookeeperError):
            await starting

    async def test_noJava(self) -> None:
        """Without Java it says what to install."""
        self.assertIn(
            "Java",
            await self.fails(ConfigurationError, self.server(environment={"PATH": "/nowhere"})),
        )

    async def test_mute(self) -> None:
        """A port whose owner says nothing is not ready."""
        listening = reactor.listenTCP(0, Factory.forProtocol(Mute), interface="127.0.0.1")
        self.addCleanup(listening.stopListening)
        self.assertFalse(await isReady(reactor, listening.getHost().port))
        self.assertFalse(await isReady(reactor, freePort()))
