"""
What C{docs/registry.md} says is so: its examples are taken from it and run, with a real broker,
ZooKeeper, registry and Spark. Addresses alone are exchanged.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import TestCase

from pylogbroker.schemas.avro import AvroEncoder
from pylogbroker.syncclient.registryclient import RegistryClient
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.testing.localbroker import LocalBroker
from tests.integration.brokerprocess import ROOT, until
from tests.integration.chroots import freshChroot, registered
from tests.integration.registryprocess import RegistryProcess
from tests.integration.sparksession import sharedSession

PAGE = (ROOT / "docs" / "registry.md").read_text(encoding="utf-8")
TOPIC = "visits"
GROUPS_PAGE = (ROOT / "docs" / "groups.md").read_text(encoding="utf-8")
VISIT = json.dumps(
    {
        "type": "record",
        "name": "Visit",
        "fields": [{"name": "user", "type": "string"}, {"name": "page", "type": "string"}],
    }
)


def block(language: str, part: str) -> str:
    """The one fenced block of a language that contains C{part}."""
    [found] = [
        text
        for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        if part in text
    ]
    return str(found)


class ExampleTests(TestCase):
    """The page's examples, all of them."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers = await freshChroot("registry")
        self.broker = LocalBroker(reactor, registered(self.servers, 0, 1))
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        self.registry = self.startRegistry()
        self.addCleanup(lambda: deferToThread(self.registry.kill))
        await deferToThread(lambda: self.registry.waitForLine(r"The registry has \d+ subjects"))

    def startRegistry(self) -> RegistryProcess:
        """Its port is open; it reads its topic from the broker that runs in this process."""
        registry = RegistryProcess(os.path.abspath(self.mktemp()), self.broker.port)
        registry.launch()
        return registry

    def example(self, part: str) -> str:
        """A program, with our addresses."""
        text = block("python", part)
        for theirs, ours in (
            ("localhost:2181", self.servers),
            ("http://127.0.0.1:8081", self.registry.url),
            ('"127.0.0.1", 9092', f'"127.0.0.1", {self.broker.port}'),
            ("127.0.0.1:9092", f"127.0.0.1:{self.broker.port}"),
        ):
            text = text.replace(theirs, ours)
        return text

    async def run_(self, part: str) -> list[str]:
        """The lines that a program prints; it says nothing else, and ends with 0."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        output, errors, status = await getProcessOutputAndValue(
            sys.executable, ["-c", self.example(part)], env=environment
        )
        self.assertEqual((status, errors), (0, b""))
        return output.decode().splitlines()

    def sendTo(self, topic: str, *payloads: bytes) -> None:
        with SyncProducer("127.0.0.1", self.broker.port) as producer:
            producer.send(topic, 0, payloads)

    def send(self, *payloads: bytes) -> None:
        """They are there before it returns."""
        self.sendTo(TOPIC, *payloads)
        until(lambda: len(self.payloads(TOPIC)) == len(payloads), "they are visible")

    def payloads(self, topic: str) -> list[bytes]:
        with SimpleConsumer("127.0.0.1", self.broker.port) as consumer:
            return [
                payload for payload, _nextOffset in consumer.fetch(topic, 0, 0, 1 << 20).payloads()
            ]

    def sendVisits(self) -> None:
        """Two, as the page's program for Twisted sends one."""
        encoder = AvroEncoder(
            RegistryClient(self.registry.url).register(f"{TOPIC}-value", VISIT), VISIT
        )
        self.send(*(encoder.encode({"user": user, "page": "/"}) for user in ("anna", "bob")))

    async def test_twisted(self) -> None:
        """
        The program for Twisted registers its schema, sends a visit and reads it back; what is
        broken goes to the topic for that, and the stream goes on.
        """
        await deferToThread(self.send, b"rubbish")
        self.assertEqual(await self.run_("react("), ["anna"])
        self.assertEqual(await deferToThread(self.payloads, f"{TOPIC}-broken"), [b"rubbish"])

    async def test_threads(self) -> None:
        """
        The program for threads reads what was sent, also after the examples of the page about
        groups, whose messages are no records.
        """
        await deferToThread(self.sendVisits)
        for topic in set(re.findall(r'"--topic", default="(\w+)"', GROUPS_PAGE)):
            await deferToThread(self.sendTo, topic, b"click 0")
        self.assertEqual(await self.run_("pylogbroker.syncclient"), ["anna", "bob"])

    async def test_spark(self) -> None:
        """
        The program for Spark shows what was sent. (It gets the session of these tests, which is
        small.)
        """

        def show() -> str:
            self.sendVisits()
            sharedSession()
            shown = StringIO()
            with redirect_stdout(shown):
                exec(compile(self.example("pyspark"), "docs/registry.md", "exec"), {})
            return shown.getvalue()

        text: Any = await deferToThread(show)
        self.assertEqual(re.findall(r"\| *(\w+) *\|", text), ["user", "anna", "bob"])

    def test_commands(self) -> None:
        """
        The commands install the extra that there is, and start the registry as these tests do, with
        a file that is there.
        """
        install, start = block("sh", "twistd").splitlines()
        self.assertEqual(install, "pip install '.[avro]'")
        words = start.split()
        self.assertEqual(
            words[:5], ["twistd", "-n", "--pidfile=", "pylogbroker-registry", "--config"]
        )
        self.assertTrue((ROOT / words[5]).is_file())
