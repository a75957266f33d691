"""
What the README says is so: its examples are taken from it and run against a real broker.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.testing.localbroker import LocalBroker

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = '"127.0.0.1:9092"'
HOST_AND_PORT = '"127.0.0.1", 9092'


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(language: str, part: str) -> str:
    """The one fenced block of a language that contains C{part}."""
    [found] = [text for text in blocks(language) if part in text]
    return found


class Run(ProcessProtocol):
    """
    A process, and all that it writes.

    @ivar ended: fires with its exit status: the code, or minus the number of the signal.
    @ivar said: fires with L{None} when it has written C{awaited}, or has ended.
    """

    def __init__(self, awaited: bytes = b"") -> None:
        self.output = b""
        self.awaited = awaited
        self.ended: Deferred[int] = Deferred()
        self.said: Deferred[None] = Deferred()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self.output += data
        if self.awaited in self.output and not self.said.called:
            self.said.callback(None)

    def processEnded(self, reason: Failure) -> None:
        status: Any = reason.value
        if not self.said.called:
            self.said.callback(None)
        self.ended.callback(
            0
            if reason.check(ProcessDone)
            else status.exitCode
            if status.exitCode is not None
            else -status.signal
        )


class CommandTests(SynchronousTestCase):
    """The README's two commands."""

    def test_bothAreThere(self) -> None:
        """
        The first installs and runs the demo, the second runs the tests; each is one line in a block
        of its own.
        """
        first, second = (text.splitlines() for text in blocks("sh")[:2])
        self.assertEqual(
            first,
            ["python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/pylogbroker demo"],
        )
        self.assertEqual(second, ["tests/run"])
        self.assertTrue(os.access(ROOT / second[0], os.X_OK))

    def test_linksLeadSomewhere(self) -> None:
        """
        Every relative link of the README and of the pages leads to a file that is there. Those of
        news fragments are as they will be in C{NEWS.md}.
        """
        missing = []
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
            folder = ROOT if page.parent.name == "newsfragments" else page.parent
            for target in re.findall(
                r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")
            ):
                if "://" not in target and not (folder / target).exists():
                    missing.append(f"{page.relative_to(ROOT)}: {target}")
        self.assertEqual(missing, [])

    def test_apiNamesExist(self) -> None:
        """Every name that the API page promises can be imported, and has a docstring."""
        page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
        names = re.findall(r"^- `(pylogbroker[\w.]+)`", page, re.MULTILINE)
        self.assertGreater(len(names), 10)
        self.assertEqual([name for name in names if not namedAny(name).__doc__], [])


class ExampleTests(TestCase):
    """The README's examples, against a broker."""

    timeout = 60

    def start(self, arguments: list[str], folder: str = "", awaited: bytes = b"") -> Run:
        """Start a Python process with this package in its path."""
        run = Run(awaited)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        process = reactor.spawnProcess(
            run,
            sys.executable,
            [sys.executable, *arguments],
            env=environment,
            path=folder or self.folder(),
        )

        def end() -> Deferred[int]:
            if not run.ended.called:
                process.signalProcess("KILL")
            return run.ended

        self.addCleanup(end)
        return run

    def folder(self) -> str:
        """An empty one."""
        path = self.mktemp()
        os.makedirs(path)
        return os.path.abspath(path)

    async def broker(self) -> LocalBroker:
        """One with the flushing of C{etc/broker.properties}: a message is not visible at once."""
        broker = LocalBroker(
            reactor,
            {"log.flush.interval": "10000", "log.default.flush.scheduler.interval.ms": "200"},
        )
        self.addCleanup(broker.stop)
        await broker.start()
        return broker

    async def runScript(self, text: str) -> list[str]:
        """Run a script to its end and return the lines that it wrote."""
        run = self.start(["-c", text])
        status = await run.ended
        self.assertEqual(status, 0, run.output.decode())
        return run.output.decode().splitlines()

    async def test_kafkaClient(self) -> None:
        """The example of today's clients for Twisted stores a record and reads it in a group."""
        broker = await self.broker()
        text = block("python", "KafkaProducer").replace(ADDRESS, repr(broker.bootstrapServers))
        self.assertEqual(
            await self.runScript(text), ["stored in partition 0", "anna visited /index.html"]
        )

    async def test_twistedClient(self) -> None:
        """
        The example for Twisted sends two messages and gets both back, again when there are older
        ones.
        """
        broker = await self.broker()
        text = block("python", "deferLater(reactor, 0.2)").replace(ADDRESS, repr(broker.endpoint))
        for _ in range(2):
            self.assertEqual(await self.runScript(text), ["hello", "there"])

    async def test_blockingClient(self) -> None:
        """
        The example for threads sends two messages and gets both back, again when there are older
        ones.
        """
        broker = await self.broker()
        text = block("python", "pylogbroker.syncclient").replace(
            HOST_AND_PORT, f"{broker.host!r}, {broker.port}"
        )
        for _ in range(2):
            self.assertEqual(await self.runScript(text), ["[b'hello', b'there']"])

    async def test_fixture(self) -> None:
        """The examples with pytest's fixture pass; the broker is in the package's plugin."""
        folder = self.folder()
        text = block("python", "test_it(kafka_broker)") + block("python", "test_trouble")
        Path(folder, "test_orders.py").write_text(text, encoding="utf-8")
        # By entry point or not: pytest is told of the plugin, which may not be installed here.
        words = ["-p", "pylogbroker.testing.pytestplugin", "-p", "no:cacheprovider"]
        code = (
            "import os, sys, pytest; os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'; "
            f"sys.exit(pytest.main({['-q', *words, 'test_orders.py']!r}))"
        )
        run = self.start(["-c", code], folder)
        self.assertEqual(await run.ended, 0, run.output.decode())
        self.assertIn(b"2 passed", run.output)

    async def test_backgroundBroker(self) -> None:
        """The example with the context manager delivers its record."""
        found = await self.runScript(block("python", "BackgroundBroker"))
        self.assertIn("0 records are left", found)  # and what librdkafka logs of the broker's end

    async def test_localBrokerInTrial(self) -> None:
        """The example of a test with L{LocalBroker} passes under trial."""
        folder = self.folder()
        Path(folder, "test_greeting.py").write_text(
            block("python", "LocalBroker"), encoding="utf-8"
        )
        run = self.start(["-m", "twisted.trial", "test_greeting"], folder)
        self.assertEqual(await run.ended, 0, run.output.decode())
        self.assertIn(b"PASSED (successes=1)", run.output)

    async def test_localBrokerInPytest(self) -> None:
        """The example of a test with L{LocalBroker} passes under pytest."""
        folder = self.folder()
        Path(folder, "test_greeting.py").write_text(
            block("python", "LocalBroker"), encoding="utf-8"
        )
        run = self.start(
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_greeting.py"], folder
        )
        self.assertEqual(await run.ended, 0, run.output.decode())
        self.assertIn(b"1 passed", run.output)

    async def test_twistdAndCommandLine(self) -> None:
        """
        The README's broker starts with C{twistd}, its three commands work against it in order, and
        C{SIGTERM} ends it with 0.
        """
        words = block("sh", "twistd").split()
        self.assertEqual(words[:2], ["twistd", "-n"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        data = os.path.join(self.folder(), "data")
        changes = {"log.dir=/var/lib/pylogbroker": f"log.dir={data}", "port=9092": f"port={port}"}
        changes["etc/broker.properties"] = str(ROOT / "etc" / "broker.properties")
        arguments = [changes.get(word, word) for word in words[1:]]
        broker = self.start(
            ["-c", "from twisted.scripts.twistd import run; run()", *arguments], awaited=b"serves"
        )
        await broker.said
        self.assertFalse(broker.ended.called, broker.output.decode())

        lines = [f"line {number}\n" for number in range(100)]
        log = Path(self.folder(), "dpkg.log")
        log.write_text("".join(lines), encoding="utf-8")
        outputs = []
        for command in block("sh", "pylogbroker offset list").splitlines():
            words = command.replace("/var/log/dpkg.log", str(log)).split()
            self.assertEqual(words[0], "pylogbroker")
            run = self.start(["-m", *words, "--broker", f"127.0.0.1:{port}"])
            self.assertEqual(await run.ended, 0, run.output.decode())
            outputs.append(run.output.decode())
        self.assertIn("".join(lines[:3]), outputs[1])
        self.assertIn(str(sum(10 + len(line) - 1 for line in lines)), outputs[2])

        process: Any = broker.transport
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(await broker.ended, 0, broker.output.decode())
        self.assertIn(".kafka_cleanshutdown", os.listdir(data))
