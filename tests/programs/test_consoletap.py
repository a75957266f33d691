"""
Tests of C{twistd pylogbroker-console}: its options, and the process.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from typing import Any

from twisted.application.service import IServiceMaker
from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import getPlugins
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.securitysettings import PLAIN, SecuritySettings
from pylogbroker.console.standalone import ClusterConsole, KafkaClusterConsole
from pylogbroker.programs.consoletap import Options, TwistdConsole, makeService
from tests.integration.brokerprocess import ROOT, twistd

SECONDS_MAX = 300


class OptionsTests(SynchronousTestCase):
    """What is said on the command line."""

    def test_missing(self) -> None:
        """Without ZooKeeper's servers there is nothing to show."""
        for arguments in ([], ["--zookeeper", " "]):
            error = self.assertRaises(usage.UsageError, Options().parseOptions, arguments)
            self.assertIn("--zookeeper", str(error))

    def test_noServers(self) -> None:
        """Servers that are none are named."""
        error = self.assertRaises(
            usage.UsageError, Options().parseOptions, ["--zookeeper", "zk1:2181,ev[il:2181"]
        )
        self.assertIn("'ev[il:2181'", str(error))

    def test_brokerPage(self) -> None:
        """A template of brokers' pages that is no URL, or the same for all brokers, is refused."""
        for page in ("javascript:{host}", "http://broker1:8067/"):
            error = self.assertRaises(
                usage.UsageError,
                Options().parseOptions,
                ["--zookeeper", "zk:1", "--broker-page", page],
            )
            self.assertIn(f"--broker-page {page}", str(error))
        options = Options()
        options.parseOptions(["--zookeeper", "zk:1", "--broker-page", "https://{host}:8067/"])
        self.assertEqual(options["broker-page"], "https://{host}:8067/")

    def test_service(self) -> None:
        """Options become the service."""
        options = Options()
        options.parseOptions(
            [
                "--zookeeper",
                "zk:1",
                "--listen",
                "0",
                "--host",
                "a.example",
                "--host",
                "b.example",
                "--no-messages",
            ]
        )
        service = makeService(options)
        assert isinstance(service, ClusterConsole)
        self.assertEqual(service.web.names, {"a.example", "b.example"})
        self.assertNotIn("/api/messages", service.web.routes)
        options = Options()
        options.parseOptions(["--zookeeper", "zk:1"])
        self.assertEqual((options["listen"], options.access), ("8067", PLAIN))

    def test_kafka(self) -> None:
        """A cluster of today's Kafka, with a password; one kind of cluster, and not both."""
        options = Options()
        options.parseOptions(
            [
                "--bootstrap-server",
                "broker1:9092,broker2:9092",
                "--listen",
                "0",
                "--set",
                "sasl.username=u",
                "--set",
                "sasl.password=p",
            ]
        )
        self.assertIsInstance(makeService(options), KafkaClusterConsole)
        for arguments, word in (
            (["--zookeeper", "zk:1", "--bootstrap-server", "b:1"], "and not both"),
            (["--bootstrap-server", "broker1"], "'broker1' is not a host with a port"),
            (["--zookeeper", "zk:1", "--metrics-topic", "m"], "Kafka 0.7 has no tasks"),
        ):
            error = self.assertRaises(usage.UsageError, Options().parseOptions, arguments)
            self.assertIn(word, str(error))

    def test_access(self) -> None:
        """
        Credentials and TLS, from a file that others read, too, and over it; what is wrong is a
        usage error.
        """
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write("groupid=g\nzk.digest=me:secret\n")
        options = Options()
        options.parseOptions(
            ["--zookeeper", "zk:1", "--config", path, "--set", "broker.endpoint=tls:{host}:{port}"]
        )
        self.assertEqual(
            options.access,
            SecuritySettings.fromProperties(
                {"zk.digest": "me:secret", "broker.endpoint": "tls:{host}:{port}"}
            ),
        )
        error = self.assertRaises(
            usage.UsageError,
            Options().parseOptions,
            ["--zookeeper", "zk:1", "--set", "zk.digset=me:x"],
        )
        self.assertIn("zk.digest", str(error))

    def test_plugin(self) -> None:
        """twistd knows it."""
        makers: list[Any] = list(getPlugins(IServiceMaker))
        [found] = [maker for maker in makers if maker.tapname == "pylogbroker-console"]
        self.assertEqual(found.module, "pylogbroker.programs.consoletap")


class SignalTests(SynchronousTestCase):
    """Ending."""

    def test_signals(self) -> None:
        """A signal stops the reactor, once."""
        memory: Any = MemoryReactorClock()
        stopped: list[bool] = []
        memory.stop = lambda: stopped.append(True)
        memory.callFromThread = lambda act: act()
        service = TwistdConsole(memory, "8067", "zk:1")
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        service._catchSignals()
        memory.running = True
        signal.raise_signal(signal.SIGTERM)
        memory.running = False
        signal.raise_signal(signal.SIGINT)
        self.assertEqual(stopped, [True])


class ProcessTests(SynchronousTestCase):
    """C{twistd} itself."""

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [
            *twistd(),
            "--nodaemon",
            "--pidfile=",
            "pylogbroker-console",
            "--zookeeper",
            "127.0.0.1:1",
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_life(self) -> None:
        """It serves, also while ZooKeeper is away, and ends with 0 on SIGTERM."""
        process = self.start("--listen", "0")
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"served on .*:(\d+)", line):
                break
        else:
            self.fail("it does not serve")
        with socket.create_connection(("127.0.0.1", int(found[1])), SECONDS_MAX) as client:
            client.sendall(
                b"GET /api/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            self.assertIn(
                b"ZooKeeper: there is no connection",
                b"".join(iter(lambda: client.recv(65536), b"")),
            )
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(SECONDS_MAX), 0)

    def test_takenPort(self) -> None:
        """A taken port is one line and status 1."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            process = self.start("--listen", str(taken.getsockname()[1]))
            output, _ = process.communicate(timeout=SECONDS_MAX)
            self.assertEqual((process.returncode, "Traceback" in output), (1, False))
            self.assertIn("pylogbroker: cannot listen on", output)
