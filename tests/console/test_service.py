"""
Tests of serving: where, and what a scraper sees.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactor
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.console.service import ConsoleService, brokerConsole
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.httpserver import HttpSite
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from tests.broker.client import connect
from tests.broker.manualbroker import PROPERTIES, LeadBroker
from tests.console.asking import figures, get

A, B = encodeSet([b"a"]), encodeSet([b"bb", b"ccc"])


class ListenerTests(SynchronousTestCase):
    """Where a site listens."""

    def test_bound(self) -> None:
        """That is what is bound."""
        memory = MemoryReactor()
        service = ConsoleService(memory, "8067", HttpSite(memory, {}))
        service.privilegedStartService()
        port, _factory, _backlog, interface = memory.tcpServers[0]
        self.assertEqual((port, interface), (8067, "127.0.0.1"))

    def test_whatIsServed(self) -> None:
        """The log says whether the console is served, or only metrics."""
        for isConsole, what in (("true", "Metrics and console"), ("false", "Metrics")):
            lead = LeadBroker()
            settings = BrokerSettings.fromProperties(
                {**PROPERTIES, "http.listener": "8067", "http.console": isConsole}, self.fail
            )
            service = brokerConsole(MemoryReactor(), settings, lead.service)
            assert service is not None
            with capturedLogs() as events:
                service.privilegedStartService()
            lines = [formatEvent(event).partition(" are served on ")[0] for event in events]
            self.assertEqual(lines, [what])

    def test_off(self) -> None:
        """Unless it is asked for, nothing listens."""
        lead = LeadBroker()
        self.assertIsNone(brokerConsole(lead.reactor, lead.settings, lead.service))
        self.assertIsNone(
            brokerConsole(
                None,
                BrokerSettings.fromProperties({**PROPERTIES, "http.listener": " "}, self.fail),
                lead.service,
            )
        )

    def test_waiting(self) -> None:
        """An endpoint that cannot listen before the reactor runs is named."""
        error = self.assertRaises(
            ConfigurationError,
            ConsoleService(
                MemoryReactor(), "nonsense:1", HttpSite(None, {})
            ).privilegedStartService,
        )
        self.assertIn("http.listener", str(error))


class LoadTests(TestCase):
    """Scraping before and after a known load."""

    timeout = 60

    async def scrape(self) -> dict[str, float]:
        console = self.broker.broker.console
        assert console is not None
        answer = await get(console.port.getHost().port, "/metrics")
        self.assertEqual(
            (answer.status, answer.headers["content-type"]),
            (200, "text/plain; version=0.0.4; charset=utf-8"),
        )
        return figures(answer.body)

    async def start(self, **properties: str) -> None:
        self.broker = LocalBroker(reactor, {"http.listener": "0", **properties})
        self.addCleanup(self.broker.stop)
        await self.broker.start()

    async def test_exactly(self) -> None:
        """
        What differs is exactly the load: requests, bytes, messages, failures, connections, flushes.
        """
        await self.start()
        client = await connect(self, self.broker.endpoint)
        client.send(encodeProduce("t", 0, A), encodeOffsets("t", 0, -1, 1))
        await client.answer()
        before = await self.scrape()

        zipped = encodeSet([b"d"] * 100, GZIP)
        sent = [
            encodeProduce("t", 0, A),
            encodeProduce("t", 0, B),
            encodeProduce("u", 0, zipped),
            encodeMultiProduce([("t", 0, A), ("u", 0, B)]),
            encodeFetch("t", 0, 0, 1_000),
            encodeFetch("t", 0, 999_999, 1_000),
            encodeMultiFetch([("u", 0, 0, 1_000), ("t", 0, 11, 11)]),
            encodeOffsets("t", 0, -1, 1),
        ]
        client.send(*sent)
        received = [len(await client.answer()) + 4 for _ in range(4)]
        after = await self.scrape()

        different = {
            name: after[name] - before.get(name, 0)
            for name in after
            if after[name] != before.get(name, 0)
        }
        size, out = (
            len(A) + len(B) + len(zipped) + len(A) + len(B),
            (2 * len(A) + len(B) + len(A)) + (len(zipped) + len(B)) + 11,
        )
        expected = {
            'pylogbroker_requests_total{kind="produce"}': 4,
            'pylogbroker_requests_total{kind="fetch"}': 3,
            'pylogbroker_requests_total{kind="offsets"}': 1,
            "pylogbroker_read_bytes_total": sum(map(len, sent)),
            "pylogbroker_written_bytes_total": sum(received),
            "pylogbroker_messages_in_total": 1 + 2 + 100 + 1 + 2,
            "pylogbroker_bytes_in_total": size,
            "pylogbroker_bytes_out_total": out,
            "pylogbroker_failed_fetch_total": 1,
            'pylogbroker_topic_messages_in_total{topic="t"}': 1 + 2 + 1,
            'pylogbroker_topic_messages_in_total{topic="u"}': 100 + 2,
            'pylogbroker_topic_bytes_in_total{topic="t"}': 2 * len(A) + len(B),
            'pylogbroker_topic_bytes_in_total{topic="u"}': len(zipped) + len(B),
            'pylogbroker_topic_bytes_out_total{topic="t"}': 3 * len(A) + len(B) + 11,
            'pylogbroker_topic_bytes_out_total{topic="u"}': len(zipped) + len(B),
            'pylogbroker_topic_failed_fetch_total{topic="t"}': 1,
            "pylogbroker_partitions": 1,
            'pylogbroker_partition_size_bytes{topic="t",partition="0"}': 2 * len(A) + len(B),
            'pylogbroker_partition_size_bytes{topic="u",partition="0"}': len(zipped) + len(B),
            'pylogbroker_partition_segments{topic="u",partition="0"}': 1,
            'pylogbroker_partition_appended_messages_total{topic="t",partition="0"}': 4,
            'pylogbroker_partition_appended_messages_total{topic="u",partition="0"}': 102,
        }
        for topic in "tu":
            for mark in ("visible", "end"):
                name = f'{{topic="{topic}",partition="0"}}'
                expected[f"pylogbroker_partition_{mark}_offset{name}"] = expected[
                    f"pylogbroker_partition_size_bytes{name}"
                ]
        # What depends on time, and on how the machine cut it up, can only be said to have grown.
        uncertain = (
            "process_",
            "pylogbroker_request_",
            "pylogbroker_flush",
            "pylogbroker_reads_total",
            "pylogbroker_writes_total",
        )
        for name in list(different):
            if name.startswith(uncertain):
                self.assertGreater(different.pop(name), 0, name)
        self.assertEqual(different, expected)

    async def test_nothing(self) -> None:
        """Scraping changes no figure but the process's own time and memory."""
        await self.start()
        first, second = await self.scrape(), await self.scrape()
        self.assertEqual(
            {
                name
                for name in second
                if second[name] != first[name] and not name.startswith("process_")
            },
            set(),
        )

    async def test_hostileTopics(self) -> None:
        """A topic's name, whatever is in it, stays inside its label."""
        await self.start()
        name = 'a"} 1<script>\\'
        client = await connect(self, self.broker.endpoint)
        client.send(encodeProduce(name, 0, A), encodeOffsets(name, 0, -1, 1))
        await client.answer()
        found = await self.scrape()
        self.assertEqual(
            found['pylogbroker_topic_messages_in_total{topic="a\\"} 1<script>\\\\"}'], 1
        )

    async def test_takenPort(self) -> None:
        """A taken port is an error before the broker has touched its directory."""
        await self.start()
        console = self.broker.broker.console
        assert console is not None
        directory = os.path.abspath(self.mktemp())
        other = EmbeddedBroker(
            reactor,
            {**PROPERTIES, "log.dir": directory, "http.listener": str(console.port.getHost().port)},
        )
        starting: Deferred[Any] = other.start()
        error = await self.assertFailure(starting, ConfigurationError)
        self.assertIn("http.listener", str(error))
        self.assertFalse(os.path.exists(directory))

    async def test_failedStart(self) -> None:
        """A broker that cannot start leaves no site behind."""
        await self.start()
        other = EmbeddedBroker(
            reactor, {**PROPERTIES, "log.dir": self.broker.directory, "http.listener": "0"}
        )
        await self.assertFailure(other.start(), Exception)
        assert other.console is not None
        self.assertIsNone(other.console.port)


class ServiceTests(SynchronousTestCase):
    """Starting and stopping."""

    def test_twice(self) -> None:
        """Told to listen twice, it listens once; it stops, and stops again."""
        memory: Any = MemoryReactor()
        service = ConsoleService(memory, "8067", HttpSite(memory, {}))
        service.privilegedStartService()
        self.successResultOf(service.listen())
        self.assertEqual(len(memory.tcpServers), 1)
        service.startService()
        self.successResultOf(service.stopService())
        self.assertIsNone(service.port)
        self.successResultOf(service.stopService())

    def test_later(self) -> None:
        """An endpoint that listens later than at once cannot be used with twistd, and is named."""
        waiting: Deferred[Any] = Deferred()

        class Service(ConsoleService):
            def takePort(self) -> Deferred[Any]:
                return waiting

        error = self.assertRaises(
            ConfigurationError,
            Service(MemoryReactor(), "1", HttpSite(None, {})).privilegedStartService,
        )
        self.assertIn("http.listener", str(error))
