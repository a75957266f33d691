"""
Tests of C{twistd pylogbroker}: its options, and the process.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from select import select
from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import getPlugins
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.service import BrokerService
from pylogbroker.console.service import brokerConsole
from pylogbroker.programs import brokertap
from pylogbroker.programs.brokertap import Options, TwistdBrokerService, makeService
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeProduce
from pylogbroker.protocol.kafka07.responses import fetchHeader
from pylogbroker.records.messageset import encodeSet
from tests.integration.brokerprocess import ROOT, BrokerProcess, twistd
from tests.integration.rawclient import RawClient

SECONDS_MAX = 300
SET = encodeSet([b"hello", b"there"])
MARK = ".kafka_cleanshutdown"


class FolderTestCase(SynchronousTestCase):
    """A folder with a property file."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.config = self.folder / "broker.properties"
        self.write(brokerid="3", port="0")

    def write(self, **changes: str) -> None:
        """The file; underscores stand for dots."""
        properties = {
            "enable_zookeeper": "false",
            "listen_interface": "127.0.0.1",
            "log_dir": str(self.folder / "logs"),
            "log_flush_interval": "1",
            **changes,
        }
        self.config.write_text(
            "".join(f"{key.replace('_', '.')}={value}\n" for key, value in properties.items()),
            encoding="utf-8",
        )


class OptionsTests(FolderTestCase):
    """What is said on the command line."""

    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(["--config", str(self.config), *arguments])
        return options

    def fails(self, *arguments: str) -> str:
        return str(self.assertRaises(usage.UsageError, Options().parseOptions, list(arguments)))

    def warnings(self) -> list[str]:
        """What is written to standard error from now on."""
        lines: list[str] = []

        class Out:
            write = staticmethod(lines.append)

        self.patch(sys, "stderr", Out)
        return lines

    def test_file(self) -> None:
        """The property file is read (row 48)."""
        settings = self.parse().settings
        self.assertEqual((settings.brokerId, settings.logDir), (3, str(self.folder / "logs")))

    def test_set(self) -> None:
        """C{--set} overrides it, as often as one likes; the last counts."""
        settings = self.parse(
            "--set", "brokerid=4", "-s", "num.partitions=7", "--set", "brokerid=5"
        ).settings
        self.assertEqual((settings.brokerId, settings.numPartitions), (5, 7))

    def test_wrong(self) -> None:
        """
        A missing or unreadable file, a wrong value, a C{--set} without C{=} are errors of usage
        that say what and where.
        """
        self.assertIn("--config FILE is missing", self.fails())
        self.assertIn(
            "/nowhere.properties: No such file", self.fails("--config", "/nowhere.properties")
        )
        self.assertIn(
            "must be key=value", self.fails("--config", str(self.config), "--set", "brokerid")
        )
        self.write(brokerid="-1")
        text = self.fails("--config", str(self.config))
        self.assertIn("broker.properties:5: brokerid=-1", text)
        self.assertIn(
            "--set: port=http", self.fails("--config", str(self.config), "--set", "port=http")
        )

    def test_misspelt(self) -> None:
        """
        A property that nobody knows is a warning on standard error, which names its nearest
        neighbour (gotcha 24).
        """
        lines = self.warnings()
        self.write(brokerid="3", num_partitons="5")
        self.assertEqual(self.parse().settings.numPartitions, 1)
        self.assertEqual(len(lines), 1)
        self.assertTrue(lines[0].startswith("pylogbroker: "), lines)
        self.assertIn("num.partitons", lines[0])
        self.assertIn("num.partitions?", lines[0])

    def test_twice(self) -> None:
        """So is one that comes twice."""
        lines = self.warnings()
        self.config.write_text(
            self.config.read_text(encoding="utf-8") + "brokerid=9\n", encoding="utf-8"
        )
        self.assertEqual(self.parse().settings.brokerId, 9)
        self.assertIn("brokerid was set before", lines[0])

    def test_service(self) -> None:
        """What twistd is given is a broker of these settings."""
        service: Any = makeService(self.parse())
        self.assertIsInstance(service, BrokerService)
        self.assertEqual((service.name, service.running), ("pylogbroker", 0))

    def test_stop(self) -> None:
        """C{stop}, which ends a start that has failed, frees the console's port, too."""
        memory: Any = MemoryReactorClock()
        memory.callFromThread = memory.callWhenRunning  # which its workers want to have
        settings = self.parse("--set", "http.listener=8067").settings
        service = TwistdBrokerService(memory, settings)
        service.site = brokerConsole(memory, settings, service)
        service.site.privilegedStartService()
        self.successResultOf(service.stop())
        self.assertIsNone(service.site.port)

    def test_plugin(self) -> None:
        """twistd finds it by its name, with this module behind it."""
        from twisted.application.service import IServiceMaker

        import twisted.plugins

        sys.path.insert(0, str(ROOT))
        self.addCleanup(sys.path.remove, str(ROOT))
        self.patch(
            twisted.plugins,
            "__path__",
            [*twisted.plugins.__path__, str(ROOT / "twisted" / "plugins")],
        )
        makers: dict[str, Any] = {
            each.tapname: each for each in getPlugins(IServiceMaker, twisted.plugins)
        }
        maker = makers["pylogbroker"]
        frozen: list[bool] = []
        # What other tests have made must not stay for ever.
        self.patch(gc, "freeze", lambda: frozen.append(gc.isenabled()))
        self.assertEqual((maker.module, maker.options), ("pylogbroker.programs.brokertap", Options))
        self.assertIs(maker.makeService, brokertap.makeService)
        self.assertEqual((frozen, gc.isenabled()), ([False], True))


class SignalTests(FolderTestCase):
    """Being asked to end."""

    def test_stopsTheReactorOnce(self) -> None:
        """
        A signal stops the reactor, from its own thread; further ones do nothing, while the services
        stop and after that.
        """
        options = Options()
        options.parseOptions(["--config", str(self.config)])
        reactor = SignalledReactor()
        service = TwistdBrokerService(reactor, options.settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        service._catchSignals()
        reactor.running = True
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        self.assertEqual(len(reactor.fromThread), 3)
        for call in reactor.fromThread:
            call()
        self.assertEqual((reactor.hasStopped, reactor.stopCount), (True, 1))


class SignalledReactor(MemoryReactorClock):
    """Keeps what other threads, and signals, hand to it."""

    def __init__(self) -> None:
        super().__init__()
        self.fromThread: list[Any] = []
        self.stopCount = 0

    def callFromThread(self, call: Any, *arguments: Any, **keywords: Any) -> None:
        self.fromThread.append(call)

    def stop(self) -> None:
        super().stop()
        self.running = True  # as the real one, until the last service has stopped
        self.stopCount += 1


class ProcessTests(FolderTestCase):
    """C{twistd} as a process."""

    def broker(self, **properties: str) -> BrokerProcess:
        changes = {key.replace("_", "."): value for key, value in properties.items()}
        broker = BrokerProcess(str(self.folder / "logs"), changes)
        self.addCleanup(broker.kill)
        return broker

    def run_(
        self,
        *arguments: str,
        options: tuple[str, ...] = ("--nodaemon",),
        held: int | None = None,
        errors: int = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[str]:
        """
        A start that is to fail.

        @param held: a descriptor that all processes of it keep open, to their ends.
        """
        return subprocess.run(
            [
                *twistd(),
                *options,
                "--pidfile=twistd.pid",
                "pylogbroker",
                "--config",
                str(self.config),
                *arguments,
            ],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
                ),
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            pass_fds=() if held is None else (held,),
        )

    def exchange(self, client: RawClient, offset: int = 0) -> None:
        client.send(encodeProduce("t", 0, SET) + encodeFetch("t", 0, offset, 1000))
        expected = fetchHeader(0, len(SET)) + SET
        self.assertEqual(client.receive(len(expected)), expected)

    def assertFailed(self, done: subprocess.CompletedProcess[str], *parts: str) -> None:
        """
        Status 1, one line on standard error that says why, the same in the log, and no file with a
        number of a process.
        """
        self.assertFalse((self.folder / "twistd.pid").exists())
        said = [line for line in done.stderr.splitlines() if line.strip()]
        self.assertEqual((done.returncode, len(said)), (1, 1), done.stderr + done.stdout)
        for part in parts:
            self.assertIn(part, said[0])
        self.assertIn(said[0], done.stdout)
        self.assertNotIn("Traceback", done.stderr + done.stdout)

    def test_cleanShutdown(self) -> None:
        """
        SIGTERM flushes, writes the mark and exits 0; a restart sees the same messages, and goes on
        behind them (row 48, row 49, ServerShutdownTest.testCleanShutdown).
        """
        broker = self.broker(log_flush_interval="1000000").start()
        client = broker.client()
        client.send(encodeProduce("t", 0, SET) + encodeFetch("u", 0, 0, 1))
        client.receive(6)
        self.assertEqual(broker.stop(), 0)
        self.assertIn("Broker 0 has stopped", broker.log)
        self.assertIn(MARK, os.listdir(self.folder / "logs"))
        again = self.broker().start()
        self.assertNotIn(MARK, os.listdir(self.folder / "logs"))
        client = again.client()
        client.send(encodeFetch("t", 0, 0, 1000))
        expected = fetchHeader(0, len(SET)) + SET
        self.assertEqual(client.receive(len(expected)), expected)
        self.exchange(client, len(SET))
        self.assertEqual(again.stop(), 0)

    def test_interrupt(self) -> None:
        """So does SIGINT."""
        broker = self.broker().start()
        self.exchange(broker.client())
        os.kill(broker.pid, signal.SIGINT)
        self.assertEqual(broker.wait(), 0)
        self.assertIn(MARK, os.listdir(self.folder / "logs"))

    def test_takenPort(self) -> None:
        """
        A taken port fails at once, in one line, with status 1 (gotcha 6, gotcha 8); no data
        directory is made.
        """
        other = socket.socket()
        self.addCleanup(other.close)
        other.bind(("127.0.0.1", 0))
        other.listen()
        self.assertFailed(
            self.run_("--set", f"port={other.getsockname()[1]}"),
            "pylogbroker: cannot listen on",
            "ddress already in use",
        )
        self.assertFalse((self.folder / "logs").exists())

    def test_detached(self) -> None:
        """
        A start that fails after it has detached is told by the parent, too, with status 1; the log
        has the whole line.
        """
        (self.folder / "logs").write_text("")
        reading, held = os.pipe()
        self.addCleanup(os.close, reading)
        try:
            done = self.run_(options=("--logfile=broker.log",), held=held)
        finally:
            os.close(held)
        # The parent ends when it has been told; the detached process takes its file away and writes
        # its line after that. When it has ended, nobody holds the other end of this any more.
        self.assertEqual(select([reading], [], [], SECONDS_MAX)[0], [reading])
        self.assertEqual(os.read(reading, 1), b"")
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "An error has occurred: b'pylogbroker.errors.StorageError: cannot use ", done.stderr
        )
        log = (self.folder / "broker.log").read_text(encoding="utf-8")
        self.assertIn(f"pylogbroker: cannot use {self.folder / 'logs'}: it is not a directory", log)
        self.assertNotIn("Traceback", log)
        self.assertFalse((self.folder / "twistd.pid").exists())

    def test_wrongFile(self) -> None:
        """
        A wrong property file fails with a status that is not 0 and names file, line, value, and
        what would be right.
        """
        self.write(brokerid="many")
        done = self.run_()
        self.assertEqual(done.returncode, 1)
        self.assertIn("broker.properties:5: brokerid=many", done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stdout + done.stderr)

    def test_oneLine(self) -> None:
        """
        On a terminal, where log and errors are shown together, a failed start gives its reason
        once, and no page of usage.
        """
        other = socket.socket()
        self.addCleanup(other.close)
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        for arguments, reason in (
            (("--set", f"port={taken}"), "ddress already in use"),
            (
                ("--set", f"listeners=tcp:0:interface=127.0.0.1 | tcp:{taken}"),
                "ddress already in use",
            ),
            (("--set", "brokerid=many"), "brokerid=many"),
            (("--nonsense",), "--nonsense"),
        ):
            done = self.run_(*arguments, errors=subprocess.STDOUT)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stdout.count(reason), 1, done.stdout)
            self.assertNotIn("Usage", done.stdout)

    def test_lockedDirectory(self) -> None:
        """
        A second broker in the same directory fails in one line, with status 1; the first goes on.
        """
        broker = self.broker().start()
        self.assertFailed(self.run_(), "another broker has it", str(self.folder / "logs"))
        self.exchange(broker.client())

    def test_unusableDirectory(self) -> None:
        """So does one whose directory is a file."""
        (self.folder / "logs").write_text("")
        self.assertFailed(self.run_(), str(self.folder / "logs"), "it is not a directory")

    def test_misspelt(self) -> None:
        """
        A property that nobody knows is said on standard error, with its neighbour; the broker
        starts.
        """
        broker = self.broker(log_flush_intervall="5").start()
        self.assertIn("log.flush.interval?", broker.log)

    def test_systemd(self) -> None:
        """
        A socket that systemd has opened is adopted, and sends slices
        (C{systemd:domain=INET:index=0}).
        """
        listening = socket.socket()
        self.addCleanup(listening.close)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        command = [
            *twistd(),
            "--nodaemon",
            "--pidfile=",
            "pylogbroker",
            "--config",
            str(self.config),
            "--set",
            "listeners=systemd:domain=INET:index=0",
        ]
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "broker",
        }
        # systemd gives descriptors from 3 on, and the number of the process that they are for. (Not
        # every shell knows a descriptor of two digits.)
        begin = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] ="
            " str(os.getpid()); os.execv(sys.argv[2], sys.argv[2:])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", begin, str(listening.fileno()), *command],
            cwd=self.folder,
            env=environment,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.wait)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        client = RawClient(port, SECONDS_MAX)
        self.exchange(client)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(SECONDS_MAX), 0)
        self.assertIn("Broker 3 serves", process.stdout.read())
        self.assertIn(MARK, os.listdir(self.folder / "logs"))
