"""
The programs of C{docs/examples}, run as they are against brokers that are registered in a real
ZooKeeper; the pages show what they are.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.internet.utils import getProcessOutputAndValue
from twisted.protocols.basic import LineOnlyReceiver
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.cli.commands import Process
from tests.integration.test_groups import ROOT, ClusterTestCase

DOCS = ROOT / "docs"
PROGRAMS = sorted(path.stem for path in (DOCS / "examples").glob("*.py"))


READER = """
import sys

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from pylogbroker.consumer.connector import ConsumerConnector


def read(messages):
    for message in messages:
        print(message.value, flush=True)


async def main(reactor, servers, way):
    async with ConsumerConnector(reactor, {"zk.connect": servers, "groupid": "g"}) as consumer:
        [stream] = (await consumer.createMessageStreams({"clicks": 1}))["clicks"]
        if way == "thread":
            reading = deferToThread(read, stream.blocking(reactor))
            # The reactor, told to stop, would not wait for a thread that ends late.
            reactor.addSystemEventTrigger("before", "shutdown", lambda: reading)
            await reading
        async for message in stream:
            print(message.value, flush=True)
    print("has left", flush=True)


react(lambda *arguments: ensureDeferred(main(*arguments)), sys.argv[1:])
"""


class Collector(Factory):
    """
    Takes lines, and ends the connection when it has enough.

    @ivar lines: so far.
    """

    def __init__(self, countMax: int) -> None:
        self.countMax = countMax
        self.lines: list[bytes] = []

    def buildProtocol(self, address: object) -> LineOnlyReceiver:
        protocol = LineOnlyReceiver()
        protocol.delimiter = b"\n"
        protocol.lineReceived = lambda line: self._take(protocol, line)  # type: ignore[method-assign]
        return protocol

    def _take(self, protocol: LineOnlyReceiver, line: bytes) -> None:
        self.lines.append(line)
        if len(self.lines) == self.countMax:
            cast(Any, protocol.transport).loseConnection()


class PageTests(SynchronousTestCase):
    """What is said of them."""

    def test_shown(self) -> None:
        """
        The programs that a page shows are those in the files, to the letter; all others are linked,
        and there is a test that runs each of them.
        """
        page = (DOCS / "groups.md").read_text(encoding="utf-8")
        shown = re.findall(
            r"^\[`examples/(\w+)\.py`\][^\n]*:\n\n```python\n(.*?)^```$",
            page,
            re.MULTILINE | re.DOTALL,
        )
        self.assertEqual([name for name, _text in shown], ["publish", "consume", "pipe"])
        for name, text in shown:
            self.assertEqual(text, (DOCS / "examples" / f"{name}.py").read_text(encoding="utf-8"))
        self.assertEqual(sorted(set(re.findall(r"\(examples/(\w+)\.py\)", page))), PROGRAMS)
        self.assertEqual(
            sorted(
                name.removeprefix("test_")
                for name in vars(ProgramTests)
                if name.startswith("test_")
            ),
            PROGRAMS,
        )


class ProgramTests(ClusterTestCase):
    """Each program, to its end."""

    def run_(self, name: str, *arguments: str) -> Deferred[list[bytes]]:
        """The lines that it prints; it says nothing else, and ends with 0."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [str(DOCS / "examples" / f"{name}.py"), *arguments]

        def ended(result: tuple[bytes, bytes, int]) -> list[bytes]:
            output, errors, status = result
            self.assertEqual((status, errors), (0, b""))
            return output.splitlines()

        return getProcessOutputAndValue(sys.executable, command, env=environment).addCallback(ended)

    def published(self, count: int) -> Deferred[list[bytes]]:
        return self.run_("publish", "--zookeeper", self.servers, "--count", str(count))

    async def test_publish(self) -> None:
        """All are sent, and taken."""
        [said] = await self.published(300)
        self.assertIn(b"writtenCount=300, failedCount=0, unknownCount=0", said)

    async def test_consume(self) -> None:
        """What was published is consumed, until it is enough."""
        await self.published(300)
        [said] = await self.run_("consume", "--zookeeper", self.servers, "--count", "300")
        self.assertIn(b"300 messages, the last one b'click ", said)

    async def test_pipe(self) -> None:
        """What was published arrives elsewhere as lines, each once."""
        await self.published(300)
        collector = Collector(300)
        port = cast(Any, reactor).listenTCP(0, collector, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        said = await self.run_(
            "pipe", "--zookeeper", self.servers, "--to", f"tcp:127.0.0.1:{port.getHost().port}"
        )
        self.assertEqual(said, [b"the collector has closed the connection"])
        self.assertEqual(
            sorted(collector.lines), sorted(b"click %d" % number for number in range(300))
        )

    async def test_threads(self) -> None:
        """
        The lines of a file come back, in order, through a broker; a second run reads only its own.
        """
        broker = self.brokers[0]
        for count in (500, 3):
            path = Path(self.mktemp())
            path.write_bytes(b"".join(b"line %d\n" % number for number in range(count)))
            said = await self.run_("threads", str(path), "--port", str(broker.port))
            self.assertEqual(said, [b"line %d" % number for number in range(count)])

    async def test_ownoffsets(self) -> None:
        """
        Each run prints what has come since the last one; what has been deleted meanwhile is left
        out, and it goes on at what is there.
        """
        broker = self.brokers[0]
        offsets = Path(self.mktemp())
        arguments = ("a", "b", "--broker", broker.endpoint, "--file", str(offsets))
        producer = SyncProducer(reactor, broker.endpoint)
        self.addCleanup(producer.close)
        expected: list[list[bytes]] = []
        for number in range(2):
            for topic in ("a", "b"):
                await producer.send(topic, 0, [b"%d" % number])
                await producer.confirm(topic, 0)
            expected.append([b"a %d" % number, b"b %d" % number])
            self.assertEqual(await self.run_("ownoffsets", *arguments), expected[-1])
        self.assertEqual(await self.run_("ownoffsets", *arguments), [])
        offsets.write_text('{"a": 999999, "b": 0}', encoding="ascii")
        self.assertEqual(
            await self.run_("ownoffsets", *arguments), [b"b 0", b"b 1", b"a 0", b"a 1"]
        )


class EndingTests(ClusterTestCase):
    """A reader that is told to end, however it reads."""

    async def test_signals(self) -> None:
        """
        Ctrl-C and SIGTERM end a program that reads in a plain thread, or with C{async for}: what it
        had is committed, nobody is a member any more, and the program goes on behind its loop.
        """
        producer = SyncProducer(reactor, self.brokers[0].endpoint)
        self.addCleanup(producer.close)
        admin: Any = ZookeeperClient(reactor, self.servers)
        self.addCleanup(admin.close)
        await admin.connect()
        size = 0
        for way in ("thread", "iteration"):
            for number in (signal.SIGINT, signal.SIGTERM):
                payload = f"{way} {number}".encode()
                await producer.send("clicks", 0, [payload])
                size += 10 + len(payload)
                process = Process()
                transport = cast(Any, reactor).spawnProcess(
                    process,
                    sys.executable,
                    [sys.executable, "-c", READER, self.servers, way],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
                self.addCleanup(_kill, process, transport)
                await process.said(payload)
                transport.signalProcess(number)
                outcome = await process.ended
                self.assertEqual(
                    (outcome.code, outcome.output, outcome.errors),
                    (0, b"%r\nhas left\n" % payload, ""),
                )
                self.assertEqual(await admin.get_children("/consumers/g/ids"), [])
                self.assertEqual(
                    (await admin.get("/consumers/g/offsets/clicks/0-0"))[0], b"%d" % size
                )


def _kill(process: Process, transport: Any) -> None:
    if not process.ended.called:
        transport.signalProcess(signal.SIGKILL)
