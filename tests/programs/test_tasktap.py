"""
Tests of C{twistd pylogbroker-task}: its options, its service, and the process with a real broker.
"""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import NewTopic
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.programs.tasks.tasktap import ContainerService, Options, makeService
from pylogbroker.testing.localbroker import LocalBroker
from tests.cli.commands import Process
from tests.cli.taskjobs import COPY, COUNT
from tests.integration.brokerprocess import ROOT, twistd

reactor: Any = _reactor


def jobFile(folder: str, text: str = COUNT) -> str:
    """A file with jobs, in a new folder."""
    os.makedirs(folder)
    path = Path(folder, "job.py").absolute()
    path.write_text(text, encoding="utf-8")
    return str(path)


class OptionsTests(SynchronousTestCase):
    """What is said on the command line."""

    def setUp(self) -> None:
        self.file = jobFile(self.mktemp(), COUNT + COPY)
        self.server = ("--set", "bootstrap.servers=a:1")

    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(arguments)
        return options

    def fails(self, *arguments: str) -> str:
        return str(self.assertRaises(usage.UsageError, self.parse, *arguments))

    def test_all(self) -> None:
        """A job of a file, under a name, with properties of a file and others."""
        config = Path(self.mktemp()).absolute()
        config.write_text("bootstrap.servers=b:1\ncommit.interval.ms=7\n", encoding="utf-8")
        words = ("-c", str(config), *self.server, "--job", "copy", "--as", "new", self.file)
        options = self.parse(*words)
        self.assertEqual(options.settings.bootstrapServers, ("a:1",))
        self.assertEqual((options.settings.commitIntervalMs, options.job.name), (7, "new"))

    def test_wrong(self) -> None:
        """What is missing or wrong is an error of usage."""
        self.assertIn("one file with a job is needed", self.fails(*self.server))
        self.assertIn("bootstrap.servers", self.fails("--job", "copy", self.file))
        self.assertIn("jobs count, copy: --job says which", self.fails(*self.server, self.file))
        self.assertIn("has no job x", self.fails(*self.server, "-j", "x", self.file))

    def test_service(self) -> None:
        """What twistd is given is a container, with its metrics."""
        options = self.parse(*self.server, "--job", "copy", "--host", "h", "-l", "0", self.file)
        service: Any = makeService(options)
        self.assertIsInstance(service, ContainerService)
        self.assertEqual(service.site.web.names, {"h"})


class ProcessTests(TestCase):
    """The program."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(reactor)
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        self.servers = {"bootstrap.servers": self.broker.bootstrapServers}
        admin = AdminClient(reactor, self.servers)
        await admin.createTopics([NewTopic("words", 1, 1, {})])
        await admin.close()

    async def send(self, *words: str) -> None:
        producer = KafkaProducer(reactor, self.servers)
        for word in words:
            await producer.send("words", word.encode())
        await producer.close()

    def spawn(self, *more: str, text: str = COUNT) -> tuple[Process, Any]:
        folder = self.mktemp()
        words = [
            *twistd(), "-n", "--pidfile=", "pylogbroker-task",
            "--set", f"bootstrap.servers={self.broker.bootstrapServers}",
            *more, jobFile(folder, text),
        ]  # fmt: skip
        protocol = Process()
        process = reactor.spawnProcess(
            protocol, words[0], words, env={**os.environ, "PYTHONPATH": str(ROOT)}, path=folder
        )

        def kill() -> Deferred[Any] | None:
            if protocol.ended.called:
                return None
            process.signalProcess(signal.SIGKILL)
            return protocol.ended

        self.addCleanup(kill)
        return protocol, process

    def place(self, protocol: Process) -> str:
        """Where metrics are served."""
        [found] = [
            line.rpartition(b" ")[2].decode()
            for line in protocol.output.splitlines()
            if b"are served on" in line
        ]
        return found

    async def test_life(self) -> None:
        """It runs the tasks, serves metrics, and commits when SIGTERM ends it, with 0."""
        await self.send("a", "b")
        protocol, process = self.spawn("--listen", "0", "--set", "commit.interval.ms=60000")
        await protocol.said(b"counted b")
        text = ""
        while 'pylogbroker_task_handled_messages_total{job="count",task="0"} 2' not in text:
            text = await deferToThread(fetched, f"http://{self.place(protocol)}/metrics")
        self.assertIn('pylogbroker_container_commits_total{job="count"} 0', text)
        self.assertRegex(text, r'task_store_bytes\{job="count",task="0",store="counts"\} \d+')
        process.signalProcess("TERM")
        outcome = await protocol.ended
        self.assertEqual(outcome.code, 0, outcome.output)
        protocol, process = self.spawn("--listen", "0")
        await self.send("c")
        await protocol.said(b"counted c")
        text = await deferToThread(fetched, f"http://{self.place(protocol)}/metrics")
        self.assertIn('pylogbroker_container_restored_changes_total{job="count"} 2', text)
        process.signalProcess("TERM")
        outcome = await protocol.ended
        self.assertEqual((outcome.code, outcome.output.count(b"counted ")), (0, 1))

    async def test_failure(self) -> None:
        """A message that cannot be handled ends it with 1, and the line of the job's code."""
        await self.send("a", "bad")
        protocol, _process = self.spawn()
        outcome = await protocol.ended
        said = outcome.output.decode() + outcome.errors
        self.assertEqual(outcome.code, 1, said)
        self.assertIn("pylogbroker: task count-0 failed at offset 1 of partition 0 of words", said)
        self.assertIn('raise ValueError("that is a bad word")', said)

    async def test_raises(self) -> None:
        """A job whose C{init} raises ends it with 1."""
        text = COUNT.replace('context.getStore("counts")', "1 / 0")
        protocol, _process = self.spawn(text=text)
        outcome = await protocol.ended
        said = outcome.output.decode() + outcome.errors
        self.assertEqual(outcome.code, 1, said)
        self.assertIn("pylogbroker: ZeroDivisionError: division by zero", said)

    async def test_shutdown(self) -> None:
        """A task ends the process in order."""
        await self.send("a", "end")
        protocol, _process = self.spawn()
        outcome = await protocol.ended
        self.assertEqual(outcome.code, 0, outcome.output)


def fetched(url: str) -> str:
    """A page."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text
