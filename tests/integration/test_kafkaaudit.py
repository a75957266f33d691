"""
The audit over clusters of today, and over both protocols in one audit: producers that count, with
transactions and without, mirrors, and losses that were planted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twisted.internet.threads import deferToThread

from pylogbroker.audit.comparison import Comparison
from pylogbroker.audit.envelope import envelopeTime
from pylogbroker.auditor.auditedkafkaproducer import AuditedKafkaProducer
from pylogbroker.auditor.auditedproducer import AuditedProducer
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.auditor.service import AuditorService
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.config.auditsettings import AUDIT_TOPIC, AuditorSettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord
from pylogbroker.lake.manifest import WindowCount
from pylogbroker.lake.table import MANIFESTS, manifestName
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.storage.files import RealFileSystem
from tests.auditor.test_service import ask
from tests.lake.tables import manifest, write
from tests.mirror.clusters import reactor
from tests.mirror.test_kafkasource import KafkaSourceCase

WINDOW_MS = 1000
TOPICS = ("t1", "t2")


class KafkaAuditCase(KafkaSourceCase):
    """
    A source and a target of today.

    @ivar base: the time of the messages: the beginning of a window, an hour ago.
    """

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.base = (int(reactor.seconds() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS

    def audited(self, **properties: str) -> AuditedKafkaProducer:
        named = {key.replace("_", "."): value for key, value in properties.items()}
        producer = AuditedKafkaProducer(
            reactor,
            {
                "bootstrap.servers": self.source.bootstrapServers,
                "audit.window.ms": str(WINDOW_MS),
                "compression.type": "gzip",
                **named,
            },
        )
        self.addCleanup(producer.close)
        return producer

    async def produce(self, count: int) -> Counter[tuple[str, int]]:
        """
        Messages of two topics over five windows by two producers: one with transactions, of which
        every third is aborted.

        @return: the truth: how many of each topic and window.
        """
        plain, writer = self.audited(), self.audited(transactional_id="x")
        truth: Counter[tuple[str, int]] = Counter()

        def send(producer: AuditedKafkaProducer, number: int, isKept: bool) -> None:
            topic, timeMs = TOPICS[number % 2], self.base + number * 5 * WINDOW_MS // count
            producer.sendNoWait(
                topic, b"message %d" % number, b"%d" % (number % 9), (("n", b"1"),), timeMs
            )
            if isKept:
                truth[topic, timeMs // WINDOW_MS * WINDOW_MS] += 1

        for number in range(count):
            send(plain, number, True)
        for transaction in range(6):
            try:
                async with writer.transaction():
                    for number in range(transaction, count, 12):
                        send(writer, number, transaction % 3 != 0)
                    if transaction % 3 == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        for producer in (plain, writer):
            await producer.close()
            self.assertEqual(producer.counters.unknownCount, 0)
        return truth

    async def records(self, topic: str) -> list[ConsumerRecord]:
        """The committed records of a topic of the source."""
        found = await self.read(self.source, topic)
        return [record for records in found.values() for record in records]

    async def copy(
        self, topic: str, keep: Callable[[ConsumerRecord], bool], *more: ConsumerRecord
    ) -> None:
        """What a mirror does, but for what is left out, and for what is added."""
        producer = KafkaProducer(reactor, {"bootstrap.servers": self.target.bootstrapServers})
        for record in [*filter(keep, await self.records(topic)), *more]:
            producer.sendNoWait(topic, record.value, record.key, record.headers, record.timestamp)
        await producer.close()
        self.assertEqual(producer.counters.failedCount, 0)

    def settings(self, tiers: dict[str, str] | None = None, **changes: str) -> AuditorSettings:
        if tiers is None:
            tiers = {
                "source": f"kafka:{self.source.bootstrapServers}",
                "target": f"kafka:{self.target.bootstrapServers}",
            }
        given = {
            "tiers": "|".join(f"{name}={address}" for name, address in tiers.items()),
            "audit.window.ms": str(WINDOW_MS),
            "timeout.ms": "10000",
            **changes,
        }
        return AuditorSettings.fromProperties(given, self.fail)

    async def audit(self, tiers: dict[str, str] | None = None) -> Comparison:
        auditor = Auditor(reactor, self.settings(tiers))
        try:
            return await auditor.audit()
        finally:
            await auditor.close()

    def assertTruth(
        self, comparison: Comparison, tier: str, truth: Counter[tuple[str, int]]
    ) -> None:
        """A tier has all messages, each once, in the right windows, and nothing else is said."""
        lines = [line for line in comparison.lines if line.tier == tier]
        self.assertEqual({line.status for line in lines}, {"complete"}, tier)
        for count in ("expectedCount", "seenCount"):
            found = {(line.topic, line.startMs): getattr(line, count) for line in lines}
            self.assertEqual(found, truth, tier)
        self.assertEqual((list(comparison.notes), comparison.isCertain), ([], True))
        self.assertEqual((comparison.missing, comparison.more), ([], []))

    def holes(self, comparison: Comparison) -> list[tuple[Any, ...]]:
        return [
            (line.topic, line.startMs, line.tier, line.status, line.missingCount)
            for line in comparison.missing
        ]


class TodayTests(KafkaAuditCase):
    """Two clusters of today."""

    async def test_mirrored(self) -> None:
        """
        Over source and target of a mirror the audit says exactly what there is: what was committed,
        in each window of each topic, and no alarm. The counts are mirrored, too, and count once.
        """
        truth = await self.produce(600)
        expected = sum(truth.values()) + len(await self.records(AUDIT_TOPIC))
        mirror = self.todayMirror(topics=whitelist(f"t.*|{AUDIT_TOPIC}"))
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == expected, "the mirror")
        await mirror.stopService()
        comparison = await self.audit()
        for tier in ("source", "target"):
            self.assertTruth(comparison, tier, truth)
        self.assertEqual(
            {line.seenChecksum == line.expectedChecksum for line in comparison.lines}, {True}
        )
        self.assertGreater(len(truth), 8)

    async def test_hole(self) -> None:
        """
        Seven messages of one window that were not copied are reported: that topic, that window,
        that tier, that many, and no other.
        """
        truth = await self.produce(600)
        start, left = self.base + 2 * WINDOW_MS, 7

        def keep(record: ConsumerRecord) -> bool:
            nonlocal left
            if not left or record.timestamp // WINDOW_MS * WINDOW_MS != start:
                return True
            left -= 1
            return False

        await self.copy("t1", lambda record: True)
        await self.copy("t2", keep)
        self.assertEqual(left, 0)
        comparison = await self.audit()
        self.assertEqual(self.holes(comparison), [("t2", start, "target", "missing", 7)])
        [hole] = comparison.missing
        self.assertEqual(hole.seenCount, truth["t2", start] - 7)
        self.assertEqual(comparison.more, [])

    async def test_doubled(self) -> None:
        """
        Messages that are there twice are found: as more than were sent; and where as many are lost
        in their window, as others than were sent.
        """
        await self.produce(600)
        records = {topic: await self.records(topic) for topic in TOPICS}
        start = self.base + WINDOW_MS
        lost, twice, *_others = [
            record for record in records["t1"] if record.timestamp // WINDOW_MS * WINDOW_MS == start
        ]
        await self.copy("t1", lambda record: record != lost, twice)
        await self.copy("t2", lambda record: True, *records["t2"][:3])
        comparison = await self.audit()
        self.assertEqual(self.holes(comparison), [("t1", start, "target", "different", 1)])
        self.assertEqual(sum(line.moreCount for line in comparison.more), 3)
        self.assertEqual({(line.topic, line.tier) for line in comparison.more}, {("t2", "target")})

    async def test_service(self) -> None:
        """The service's metrics and pages name tiers of today."""
        await self.produce(60)
        await self.copy("t1", lambda record: True)
        settings = self.settings(None, listen="tcp:0:interface=127.0.0.1", **{"interval.ms": "50"})
        service = AuditorService(reactor, settings, Auditor(reactor, settings))
        service.startService()
        self.addCleanup(service.stopService)
        await self.until(lambda: service.comparison is not None)
        port = service.port.getHost().port
        _status, _kind, metrics = await deferToThread(ask, port, "/metrics")
        for line in (
            'pylogbroker_audit_missing_messages{topic="t2",tier="source"} 0',
            'pylogbroker_audit_missing_messages{topic="t1",tier="target"} 0',
            'pylogbroker_audit_missing_windows{topic="t2",tier="target"} 5',
            "pylogbroker_audit_certain 1",
        ):
            self.assertIn(line, metrics.splitlines())
        _status, _kind, text = await deferToThread(ask, port, "/audit.txt")
        self.assertIn("messages are missing in 5 places", text)


class MixedTests(KafkaAuditCase):
    """Sent to a cluster of 2011, mirrored to one of today, and from there on."""

    async def test_mixed(self) -> None:
        """
        Messages in envelopes are complete in a cluster of 2011, in its mirror of today, in that
        one's mirror of 2011, and in a table; losses in the middle and at the end are found there.
        """
        old, again = self.cluster("old"), self.cluster("again")
        await old.start()
        await again.start()
        truth = await self.send2011(old.endpoint(0))
        expected = sum(truth.values())
        first = self.mirror([old], self.source)
        first.startService()
        await self.until(lambda: first.counters.confirmedCount == expected, "the first mirror")
        await first.stopService()
        second = self.todayMirror(again)
        second.startService()
        await self.until(lambda: second.counters.confirmedCount == expected, "the second mirror")
        await second.stopService()
        lost = (await self.records("t1"))[3]
        await self.copy("t1", lambda record: record != lost)
        await self.copy("t2", lambda record: True)
        table = self.load(truth, leftOutCount=2)
        comparison = await self.audit(
            {
                "old": f"broker:{old.endpoint(0).removeprefix('tcp:')}",
                "today": f"kafka:{self.source.bootstrapServers}",
                "again": f"broker:{again.endpoint(0).removeprefix('tcp:')}",
                "copy": f"kafka:{self.target.bootstrapServers}",
                "warehouse": f"table:{table}",
            }
        )
        self.assertEqual((list(comparison.notes), comparison.isCertain), ([], True))
        lostMs = envelopeTime(lost.value or b"")
        assert lostMs is not None
        self.assertCountEqual(
            self.holes(comparison),
            [
                ("t1", self.base, "warehouse", "missing", 2),
                ("t1", lostMs // WINDOW_MS * WINDOW_MS, "copy", "missing", 1),
            ],
        )
        self.assertEqual(comparison.more, [])
        for tier in ("old", "today", "again"):
            self.assertEqual(
                {
                    (line.topic, line.startMs): line.seenCount
                    for line in comparison.lines
                    if line.tier == tier
                },
                truth,
            )

    async def test_noEnvelopes(self) -> None:
        """
        Messages of 2011 without a time are judged by their totals in a mirror of today as well:
        its timestamps, those of mirroring, make no alarm, and a loss is one.
        """
        old = self.cluster("old")
        await old.start()
        truth = await self.send2011(old.endpoint(0), envelope="false")
        mirror = self.mirror([old], self.source)
        mirror.startService()
        await self.until(
            lambda: mirror.counters.confirmedCount == sum(truth.values()), "the mirror"
        )
        await mirror.stopService()
        lost = (await self.records("t1"))[3]
        await self.copy("t1", lambda record: record != lost)
        await self.copy("t2", lambda record: True)
        comparison = await self.audit(
            {
                "old": f"broker:{old.endpoint(0).removeprefix('tcp:')}",
                "today": f"kafka:{self.source.bootstrapServers}",
                "copy": f"kafka:{self.target.bootstrapServers}",
            }
        )
        self.assertEqual(self.holes(comparison), [("t1", -1, "copy", "missing", 1)])
        self.assertEqual({line.status for line in comparison.lines} - {"open"}, {"arrival"})

    async def send2011(self, endpoint: str, envelope: str = "true") -> Counter[tuple[str, int]]:
        """
        Messages of two topics over five windows by a producer of 2011; its counts as well.

        @return: how many of each topic and window.
        """
        times = iter(range(self.base, self.base + 5 * WINDOW_MS, 25))
        producer = AuditedProducer(
            reactor,
            {
                "broker.list": f"0:{endpoint.removeprefix('tcp:')}",
                "producer.type": "async",
                "queue.time": "20",
                "confirm": "true",
                "audit.window.ms": str(WINDOW_MS),
                "audit.envelope": envelope,
            },
            timeOf=lambda payload: next(times),
        )
        truth: Counter[tuple[str, int]] = Counter()
        for number in range(200):
            topic = TOPICS[number % 2]
            producer.sendNoWait(topic, b"message %d" % number)
            truth[topic, (self.base + 25 * number) // WINDOW_MS * WINDOW_MS] += 1
        await producer.close()
        self.assertEqual((producer.counters.failedCount, producer.counters.unknownCount), (0, 0))
        return truth

    def load(self, truth: Counter[tuple[str, int]], leftOutCount: int) -> str:
        """
        A table with the counts of a load.

        @param leftOutCount: rows that are missing of the first topic's first window.
        @return: its folder.
        """
        path = os.path.abspath(self.mktemp())
        missing = {(TOPICS[0], self.base): leftOutCount}
        one = replace(
            manifest(1),
            startedMs=self.base + 60_000,
            windowMs=WINDOW_MS,
            windows=tuple(
                WindowCount(topic, startMs, "web1", count - missing.get((topic, startMs), 0))
                for (topic, startMs), count in truth.items()
            ),
            arrivals={},
        )
        write(RealFileSystem(), f"{path}/{MANIFESTS}/{manifestName(1)}", one.encode())
        return path
