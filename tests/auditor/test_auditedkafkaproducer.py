"""
Tests for L{pylogbroker.auditor.auditedkafkaproducer}, at brokers of today in this process.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from zope.interface.verify import verifyClass

from pylogbroker.audit.comparison import AuditAggregator
from pylogbroker.audit.counts import IN_ENVELOPE, IN_RECORD, SEEN, CountReport
from pylogbroker.audit.envelope import decodeEnvelope
from pylogbroker.auditor.auditedkafkaproducer import AuditedKafkaProducer
from pylogbroker.auditor.countpublisher import CountPublisher
from pylogbroker.config.auditsettings import AUDIT_TOPIC
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    EncodingError,
    PylogbrokerError,
    TimedOutError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownOutcomeError,
)
from pylogbroker.producer.completion import FailureWaiter
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.producer.producer import ProducerData
from pylogbroker.types import ConsumerGroupMetadata, TopicPartition
from tests.auditor.kafkaauditcase import WINDOW_MS, KafkaAuditCase, reactor
from tests.auditor.test_auditedproducer import Source

Counts = dict[tuple[str, int], tuple[int, int]]


class ProducerCase(KafkaAuditCase):
    """An audited producer at one broker."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.broker = await self.newBroker(**self.properties())

    def properties(self) -> dict[str, str]:
        return {}

    def counted(self, reports: list[CountReport]) -> Counts:
        """What an auditor makes of reports: sent and unknown, by topic and window behind base."""
        ledger = AuditAggregator(WINDOW_MS)
        for report in reports:
            ledger.enter(report)
        return {
            (line.topic, line.startMs - self.base): (line.expectedCount, line.unknownCount)
            for line in ledger.compare(["live"], 2**60, 0).lines
        }

    async def closed(self, producer: AuditedKafkaProducer) -> list[CountReport]:
        """The reports of a producer, which is closed."""
        await producer.close()
        return await self.reports(self.broker)

    def checksum(self, reports: list[CountReport]) -> int:
        return sum(report.checksum or 0 for report in reports)


class SendTests(ProducerCase):
    """Messages, and counts beside them."""

    async def test_counts(self) -> None:
        """
        A message counts in the window of its record's timestamp; the report has the checksums of
        the values, a tombstone's being that of no bytes; the Deferred says where the record is.
        """
        producer = self.audited(self.broker)
        place = await producer.send(
            "clicks", b"one", b"key", (("a", b"b"),), timestamp=self.base, partition=1
        )
        self.assertEqual(
            (place.topic, place.partition, place.offset, place.timestamp),
            ("clicks", 1, 0, self.base),
        )
        await producer.send("clicks", b"two", timestamp=self.base + 999)
        await producer.send("clicks", None, b"key", timestamp=self.base + WINDOW_MS)
        await producer.send("views", b"three", timestamp=self.base)
        reports = await self.closed(producer)
        self.assertEqual(
            self.counted(reports),
            {("clicks", 0): (2, 0), ("clicks", WINDOW_MS): (1, 0), ("views", 0): (1, 0)},
        )
        values = (b"one", b"two", b"", b"three")
        self.assertEqual(self.checksum(reports), sum(map(crc32, values)))
        self.assertEqual({report.timeSource for report in reports}, {IN_RECORD})
        self.assertEqual({(report.host, report.tier) for report in reports}, {("web1", "live")})
        found = await self.records(self.broker, "clicks")
        self.assertEqual(
            {(record.value, record.timestamp - self.base) for record in found},
            {(b"one", 0), (b"two", 999), (None, WINDOW_MS)},
        )

    async def test_now(self) -> None:
        """Without a timestamp a message counts in the window of its acceptance; its record too."""
        producer = self.audited(self.broker)
        place = await producer.send("clicks", b"x")
        self.assertLess(abs(place.timestamp - reactor.seconds() * 1000), 30_000)
        start = place.timestamp // WINDOW_MS * WINDOW_MS - self.base
        self.assertEqual(self.counted(await self.closed(producer)), {("clicks", start): (1, 0)})

    async def test_timeOf(self) -> None:
        """The application may read the timestamp in the value; the call's own comes before it."""

        def timeOf(value: bytes) -> int | None:
            return None if value == b"now" else self.base + int(value)

        producer = self.audited(self.broker, {"timeOf": timeOf})
        await producer.sendMany([ProducerData("clicks", [b"5", b"1500"])])
        await producer.send("clicks", b"3500", timestamp=self.base)
        await producer.send("clicks", None, b"key", timestamp=self.base)
        place = await producer.send("clicks", b"now")
        self.assertGreater(place.timestamp, self.base + 3_000_000)
        with self.assertRaisesRegex(PylogbrokerError, "timeOf failed"):
            await producer.send("clicks", b"nonsense")
        with self.assertRaisesRegex(PylogbrokerError, "timeOf failed"):
            await producer.sendMany([ProducerData("clicks", [b"1", b"nonsense"])])
        self.assertEqual(producer.counters.failedCount, 3)
        counted = self.counted(await self.closed(producer))
        self.assertEqual((counted["clicks", 0], counted["clicks", WINDOW_MS]), ((3, 0), (1, 0)))
        self.assertEqual(sum(count for count, _unknown in counted.values()), 5)
        self.assertEqual(len(self.flushLoggedErrors()), 0)

    async def test_envelope(self) -> None:
        """With audit.envelope=true values go with time and host, also through today's protocol."""
        producer = self.audited(self.broker, audit_envelope="true")
        await producer.send("clicks", b"one", timestamp=self.base)
        await producer.send("clicks", None, b"key", timestamp=self.base)
        reports = await self.closed(producer)
        [envelope] = [
            each.value for each in await self.records(self.broker, "clicks") if each.value
        ]
        self.assertEqual(tuple(decodeEnvelope(envelope)), (self.base, "web1", b"one"))
        self.assertEqual(self.checksum(reports), crc32(envelope))
        self.assertEqual([report.timeSource for report in reports], [IN_ENVELOPE])

    async def test_several(self) -> None:
        """sendMany, sendEach and sendNoWait count each message; flush waits for their outcomes."""
        producer = self.audited(self.broker)
        await producer.whenReady()
        await producer.sendMany([ProducerData("clicks", [b"a", b"b"], b"k")], partition=1)
        await producer.sendMany([])
        places = [await each for each in producer.sendEach([ProducerData("clicks", [b"c"] * 3)])]
        self.assertEqual({place.topic for place in places}, {"clicks"})
        producer.sendNoWait("clicks", b"d", timestamp=self.base)
        await producer.flush()
        self.assertEqual(await producer.partitionsFor("clicks"), [0, 1])
        counted = self.counted(await self.closed(producer))
        self.assertEqual(sum(count for count, _unknown in counted.values()), 6)
        self.assertEqual(
            [each.partition for each in await self.records(self.broker, "clicks") if each.key],
            [1, 1],
        )

    async def test_refused(self) -> None:
        """What is not sent does not count: wrong values, the topic of the counts, a closed one."""
        producer = self.audited(self.broker)
        await producer.send("clicks", b"x", timestamp=self.base)
        wrong: Any = "text"
        refused: list[tuple[Deferred[Any], type[Exception]]] = [
            (producer.send("clicks", wrong), EncodingError),
            (producer.send("clicks", b"x", timestamp=-1), EncodingError),
            (producer.send(AUDIT_TOPIC, b"x"), ConfigurationError),
            (producer.sendMany([ProducerData(AUDIT_TOPIC, [b"x"])]), ConfigurationError),
        ]
        for sending, kind in refused:
            await self.assertFailure(sending, kind)
        told: list[Failure] = []

        class Waiter(FailureWaiter):
            """Keeps what it is told."""

            errback = staticmethod(told.append)  # type: ignore[assignment]

        producer.sendNoWait("clicks", wrong, waiter=Waiter())
        self.assertEqual([each.check(EncodingError) for each in told], [EncodingError])
        self.assertEqual(self.counted(await self.closed(producer)), {("clicks", 0): (1, 0)})
        await self.assertFailure(producer.send("clicks", b"x"), ClosedError)
        self.assertEqual(producer.counters.failedCount, 6)
        with self.assertRaisesRegex(ConfigurationError, "audit.topic"):
            self.audited(self.broker, topic=AUDIT_TOPIC)

    async def test_cancelled(self) -> None:
        """A message whose sender waits no longer is sent all the same, and counts."""
        producer = self.audited(self.broker, linger_ms="100")
        sending = producer.send("clicks", b"x", timestamp=self.base)
        sending.cancel()
        await self.assertFailure(sending, CancelledError)
        self.assertEqual(self.counted(await self.closed(producer)), {("clicks", 0): (1, 0)})

    async def test_unknown(self) -> None:
        """A message that the broker may have, or may not, is counted apart."""
        self.broker.injectDisconnect("Produce", topic="clicks", isHandled=True)
        producer = self.audited(self.broker, enable_idempotence="false", acks="1", retries="0")
        await self.assertFailure(
            producer.send("clicks", b"x", timestamp=self.base), UnknownOutcomeError
        )
        await producer.send("clicks", b"y", timestamp=self.base)
        self.assertEqual(self.counted(await self.closed(producer)), {("clicks", 0): (1, 1)})
        self.flushLoggedErrors()

    async def test_repeated(self) -> None:
        """Answers that are lost make an idempotent producer repeat, and count nothing twice."""
        self.broker.injectDisconnect("Produce", count=2, isHandled=True)
        producer = self.audited(self.broker, retry_backoff_ms="1")
        for _number in range(3):
            await producer.send("clicks", b"x", timestamp=self.base)
        self.assertEqual(self.counted(await self.closed(producer)), {("clicks", 0): (3, 0)})
        self.assertEqual(len(await self.records(self.broker, "clicks")), 3)

    async def test_interval(self) -> None:
        """The counts come at intervals, while the producer is open."""
        producer = self.audited(self.broker, audit_interval_ms="10")
        await producer.send("clicks", b"x", timestamp=self.base)
        await self.createTopicIfMissing()
        while not (reports := await self.reports(self.broker)):
            pass
        self.assertEqual(self.counted(reports), {("clicks", 0): (1, 0)})

    async def createTopicIfMissing(self) -> None:
        producer = self.producer(self.broker)
        await producer.partitionsFor(AUDIT_TOPIC)
        await producer.close()

    async def test_write(self) -> None:
        """A Twisted producer's bytes are messages of the settings' topic, and count."""
        verifyClass(IConsumer, AuditedKafkaProducer)
        producer = self.audited(self.broker, topic="clicks")
        source = Source()
        producer.registerProducer(source, True)
        producer.write(b"one")
        producer.write(b"two")
        producer.unregisterProducer()
        await producer.flush()
        reports = await self.closed(producer)
        self.assertEqual(sum(report.messageCount for report in reports), 2)
        self.assertEqual(self.checksum(reports), crc32(b"one") + crc32(b"two"))
        with self.assertRaisesRegex(ConfigurationError, "topic is missing"):
            self.audited(self.broker).write(b"x")

    async def test_paused(self) -> None:
        """A Twisted producer that writes too much is paused, and resumed when there is room."""
        producer = self.audited(self.broker, topic="clicks", queue_size="8")
        source = Source()
        producer.registerProducer(source, True)
        for _number in range(7):
            producer.write(b"x")
        self.assertEqual(source.calls, ["pause"])
        await producer.flush()
        self.assertEqual(source.calls, ["pause", "resume"])

    async def test_gone(self) -> None:
        """A close whose time is over says so, and the counts that are lost are logged."""
        producer = self.audited(self.broker)
        await producer.send("clicks", b"x", timestamp=self.base)
        await self.broker.stop()
        with capturedLogs() as events:
            await self.assertFailure(producer.close(200), TimedOutError)
        self.assertIn(
            "1 counts could not be published: the audit will see more messages than were reported",
            [formatEvent(event) for event in events],
        )

    def test_methods(self) -> None:
        """It has what a KafkaProducer has, and says what it is."""
        for name in dir(KafkaProducer):
            if not name.startswith("_") and name != "onUpstreamWrite":
                self.assertTrue(hasattr(AuditedKafkaProducer, name), name)
        producer = self.audited(self.broker)
        self.assertIn("AuditedKafkaProducer over <KafkaProducer", repr(producer))
        self.assertEqual(
            [family.name for family in producer.metricFamilies({"a": "b"})],
            [family.name for family in producer.producer.metricFamilies({"a": "b"})],
        )
        self.assertIs(producer.fatalError, None)


class SeenTests(ProducerCase):
    """A program at the other end, which counts for a tier."""

    async def test_seen(self) -> None:
        """It publishes its counts by a KafkaProducer, and is a tier of the audit."""
        sender = self.audited(self.broker)
        producer = self.producer(self.broker)
        counts = CountPublisher(
            reactor,
            producer,
            {"audit.tier": "warehouse", "audit.window.ms": str(WINDOW_MS)},
            role=SEEN,
        )
        for number in range(3):
            await sender.send("clicks", b"%d" % number, timestamp=self.base)
        counts.count("clicks", self.base, 2, checksum=crc32(b"0") + crc32(b"1"))
        await counts.close()
        await sender.close()
        comparison = await self.auditor({"live": self.broker}).audit()
        self.assertEqual(
            self.lines(comparison),
            [
                ("clicks", 0, "live", 3, 3, "complete"),
                ("clicks", 0, "warehouse", 3, 2, "missing"),
            ],
        )


class TransactionTests(ProducerCase):
    """Messages that count together."""

    def writer(self, **properties: str) -> AuditedKafkaProducer:
        return self.audited(
            self.broker, None, transactional_id="x", retry_backoff_ms="5", **properties
        )

    async def test_ends(self) -> None:
        """What is committed counts once; what is aborted does not, though it was stored."""
        writer = self.writer()
        async with writer.transaction():
            await writer.send("clicks", b"one", timestamp=self.base)
            writer.sendNoWait("clicks", b"two", timestamp=self.base + WINDOW_MS)
        self.assertEqual(writer.counters.writtenCount, 2)
        with self.assertRaises(ZeroDivisionError):
            async with writer.transaction():
                await writer.send("clicks", b"three", timestamp=self.base)
                raise ZeroDivisionError
        async with writer.transaction() as transaction:
            await writer.send("clicks", b"four", timestamp=self.base)
            await transaction.sendOffsets(
                {TopicPartition("clicks", 0): 1}, ConsumerGroupMetadata("g")
            )
        await self.assertFailure(writer.send("clicks", b"five"), TransactionStateError)
        reports = await self.closed(writer)
        self.assertEqual(
            self.counted(reports), {("clicks", 0): (2, 0), ("clicks", WINDOW_MS): (1, 0)}
        )
        self.assertEqual(self.checksum(reports), sum(map(crc32, (b"one", b"two", b"four"))))

    async def test_failed(self) -> None:
        """A transaction with a message that was refused is aborted, and nothing of it counts."""
        writer = self.writer()
        async with writer.transaction():
            await writer.send("clicks", b"one", timestamp=self.base)
        self.broker.injectError("Produce", "MESSAGE_TOO_LARGE", topic="clicks")
        with self.assertRaises(TransactionAbortedError):
            async with writer.transaction():
                writer.sendNoWait("clicks", b"two", timestamp=self.base)
                writer.sendNoWait("views", b"three", timestamp=self.base)
        self.assertEqual(self.counted(await self.closed(writer)), {("clicks", 0): (1, 0)})

    async def test_unknown(self) -> None:
        """When it is unknown whether it was committed, so are its messages."""
        writer = self.writer(delivery_timeout_ms="2000", request_timeout_ms="1000")
        self.broker.injectDisconnect("EndTxn", count=None, isHandled=True)
        with self.assertRaises(UnknownOutcomeError):
            async with writer.transaction():
                await writer.send("clicks", b"one", timestamp=self.base)
                await writer.send("clicks", b"two", timestamp=self.base)
        self.broker.clearFaults()
        error = writer.fatalError  # which later messages get: they are certainly not stored
        self.assertIsInstance(error, TransactionStateError)
        self.assertIn("is unknown", str(error))
        self.assertEqual(self.counted(await self.closed(writer)), {("clicks", 0): (0, 2)})

    async def test_closed(self) -> None:
        """A transaction that is open at the end is aborted: its messages do not count."""
        writer = self.writer()
        async with writer.transaction():
            await writer.send("clicks", b"one", timestamp=self.base)
        closing: Deferred[None] | None = None
        with self.assertRaises(TransactionAbortedError):
            async with writer.transaction():
                await writer.send("clicks", b"two", timestamp=self.base)
                closing = writer.close()
                await closing
        self.assertEqual(self.counted(await self.reports(self.broker)), {("clicks", 0): (1, 0)})
