"""
What the tests of the auditor share for today's Kafka: brokers in this process, audited producers,
and an auditor of their topics.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.trial.unittest import TestCase

from pylogbroker.audit.comparison import Comparison
from pylogbroker.audit.counts import CountReport, decodeReport
from pylogbroker.auditor.auditedkafkaproducer import AuditedKafkaProducer
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.client.kafka.admin.client import AdminClient, NewTopic, checkAll
from pylogbroker.config.auditsettings import AUDIT_TOPIC, AuditorSettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.testing.localbroker import LocalBroker

reactor: Any = _reactor

WINDOW_MS = 1000


def named(properties: dict[str, str]) -> dict[str, str]:
    """Properties whose names have underscores for dots."""
    return {key.replace("_", "."): value for key, value in properties.items()}


class KafkaAuditCase(TestCase):
    """
    Brokers of today.

    @ivar base: the time of the messages: the beginning of a window, an hour ago.
    """

    timeout = 60

    def setUp(self) -> Any:
        self.base = (int(reactor.seconds() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS

    async def newBroker(self, **properties: str) -> LocalBroker:
        broker = LocalBroker(reactor, {"num.partitions": "2", **named(properties)})
        await broker.start()
        self.addCleanup(broker.stop)
        return broker

    async def createTopic(
        self, broker: LocalBroker, name: str, partitionCount: int = 2, **configs: str
    ) -> None:
        async with self.admin(broker) as admin:
            new = NewTopic(name, partitionCount, 1, named(configs))
            checkAll(await admin.createTopics([new]))

    def admin(self, broker: LocalBroker) -> AdminClient:
        return AdminClient(reactor, {"bootstrap.servers": broker.bootstrapServers})

    def audited(
        self, broker: LocalBroker, options: dict[str, Any] | None = None, **properties: str
    ) -> AuditedKafkaProducer:
        given = {
            "bootstrap.servers": broker.bootstrapServers,
            "linger.ms": "0",
            "audit.window.ms": str(WINDOW_MS),
            "audit.interval.ms": "60000",
            "audit.host": "web1",
        }
        producer = AuditedKafkaProducer(
            reactor, {**given, **named(properties)}, auditRandom=Random(1), **(options or {})
        )
        self.addCleanup(producer.close)
        return producer

    def producer(self, broker: LocalBroker, **properties: str) -> KafkaProducer:
        producer = KafkaProducer(
            reactor,
            {"bootstrap.servers": broker.bootstrapServers, "linger.ms": "0", **named(properties)},
        )
        self.addCleanup(producer.close)
        return producer

    async def records(self, broker: LocalBroker, topic: str) -> list[ConsumerRecord]:
        """All records of a topic that are committed."""
        consumer = KafkaConsumer(
            reactor,
            {
                "bootstrap.servers": broker.bootstrapServers,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            },
        )
        partitions = await consumer.partitionsFor(topic)
        ends = await consumer.endOffsets(partitions)
        consumer.assign(partitions)
        found: list[ConsumerRecord] = []
        while any(consumer.positions.get(place, 0) < end for place, end in ends.items()):
            more = consumer.takeMany()
            found += more
            if not more and any(
                consumer.positions.get(place, 0) < end for place, end in ends.items()
            ):
                await consumer.wait()
        await consumer.close()
        return found

    async def reports(self, broker: LocalBroker) -> list[CountReport]:
        return [
            decodeReport(record.value or b"") for record in await self.records(broker, AUDIT_TOPIC)
        ]

    def auditor(
        self, tiers: dict[str, LocalBroker | str], timeOf: Any = None, **properties: str
    ) -> Auditor:
        """One that is closed at the end; a tier is a broker of today, or an address."""
        addresses = [
            f"{name}={tier if isinstance(tier, str) else 'kafka:' + tier.bootstrapServers}"
            for name, tier in tiers.items()
        ]
        given = {
            "tiers": "|".join(addresses),
            "audit.window.ms": str(WINDOW_MS),
            "timeout.ms": "5000",
            "listen": "",
        }
        settings = AuditorSettings.fromProperties({**given, **named(properties)}, self.fail)
        auditor = Auditor(reactor, settings, timeOf=timeOf)
        self.addCleanup(auditor.close)
        return auditor

    def lines(self, comparison: Comparison) -> list[tuple[str, int, str, int, int, str]]:
        return [
            (
                line.topic,
                line.startMs - self.base,
                line.tier,
                line.expectedCount,
                line.seenCount,
                line.status,
            )
            for line in comparison.lines
        ]
