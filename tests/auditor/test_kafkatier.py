"""
Tests for L{pylogbroker.auditor.kafkatier}: clusters of today as tiers of an audit, at brokers in
this process.
"""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from pylogbroker.audit.comparison import Comparison
from pylogbroker.audit.envelope import encodeEnvelope
from pylogbroker.auditor.kafkatier import KafkaTier
from pylogbroker.client.kafka.admin.client import checkAll
from pylogbroker.config.auditsettings import AUDIT_TOPIC
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.auditor.auditcase import report
from tests.auditor.kafkaauditcase import WINDOW_MS, KafkaAuditCase, reactor

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class TierCase(KafkaAuditCase):
    """One broker, C{live}, that has a topic C{clicks} of two partitions."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.live = await self.newBroker(**self.properties())

    def properties(self) -> dict[str, str]:
        return {}

    async def put(
        self, *values: bytes | None, timeMs: int = 0, topic: str = "clicks", partition: int = 0
    ) -> None:
        """Records with a time behind the base."""
        producer = self.producer(self.live)
        for value in values:
            await producer.send(
                topic, value, b"key", timestamp=self.base + timeMs, partition=partition
            )
        await producer.close()

    async def report(
        self, count: int, startMs: int = 0, timeSource: str = "record", topic: str = "clicks"
    ) -> None:
        """What a producer has sent in a window."""
        value = report(topic, self.base + startMs, count, timeSource=timeSource)
        await self.put(value, topic=AUDIT_TOPIC)

    def tier(self, comparison: Comparison, name: str = "live") -> list[tuple[int, int, str]]:
        """Window, count and status of each line."""
        return [
            (startMs, seen, status)
            for _topic, startMs, tier, _sent, seen, status in self.lines(comparison)
            if tier == name
        ]


class CountTests(TierCase):
    """What is counted, and in which window."""

    async def test_windows(self) -> None:
        """
        Records of all partitions count in the windows of their timestamps, each once over all
        passes; what has come between two passes counts in the second.
        """
        await self.put(b"a", b"b")
        await self.put(b"c", None, partition=1)
        await self.put(b"d", timeMs=WINDOW_MS, partition=1)
        await self.report(4)
        await self.report(2, WINDOW_MS)
        auditor = self.auditor({"live": self.live})
        for _pass in range(2):
            comparison = await auditor.audit()
            self.assertEqual(self.tier(comparison), [(0, 4, "complete"), (WINDOW_MS, 1, "missing")])
        await self.put(b"e", timeMs=WINDOW_MS)
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 4, "complete"), (WINDOW_MS, 2, "complete")])
        self.assertEqual((list(comparison.notes), comparison.isCertain), ([], True))
        self.assertEqual(auditor.messageCount, 6)

    async def test_envelopes(self) -> None:
        """The time of an envelope comes before the record's, which is that of mirroring."""
        await self.put(encodeEnvelope(self.base, b"web1", b"x"), timeMs=5 * WINDOW_MS)
        await self.report(1, timeSource="")
        comparison = await self.auditor({"live": self.live}).audit()
        self.assertEqual(self.tier(comparison), [(0, 1, "complete")])

    async def test_timeOf(self) -> None:
        """So does what the application reads in the value."""
        await self.put(b"0", b"none", timeMs=5 * WINDOW_MS)
        await self.report(1, timeSource="payload")
        await self.report(1, 5 * WINDOW_MS, timeSource="payload")

        def timeOf(value: bytes) -> int | None:
            return None if value == b"none" else self.base + int(value)

        comparison = await self.auditor({"live": self.live}, timeOf).audit()
        self.assertEqual(comparison.isComplete, True)
        self.assertEqual(
            [(line.startMs - self.base, line.seenCount) for line in comparison.lines],
            [(0, 1), (5 * WINDOW_MS, 1)],
        )

    async def test_mirrored(self) -> None:
        """
        Records whose senders counted by another time than the record's are judged by their total:
        no alarm when all are there, and one when a message is missing.
        """
        await self.put(b"a", b"b", timeMs=5 * WINDOW_MS)
        await self.report(2, timeSource="payload")
        comparison = await self.auditor({"live": self.live}).audit()
        self.assertEqual(self.tier(comparison), [(0, 0, "arrival"), (5 * WINDOW_MS, 2, "arrival")])
        self.assertEqual((comparison.isComplete, len(comparison.notes)), (True, 1))
        await self.report(1, WINDOW_MS)
        comparison = await self.auditor({"live": self.live}).audit()
        self.assertEqual([line.missingCount for line in comparison.missing], [1])

    async def test_logAppendTime(self) -> None:
        """The broker's time says nothing about the sender's windows: only the total is judged."""
        await self.createTopic(self.live, "clicks", message_timestamp_type="LogAppendTime")
        await self.put(b"a", b"b")
        await self.report(2)
        comparison = await self.auditor({"live": self.live}, grace_ms="0").audit()
        self.assertEqual((0, 0, "arrival"), self.tier(comparison)[0])
        self.assertEqual((comparison.isComplete, comparison.totals[0].arrivalCount), (True, 2))
        self.assertIn("without an envelope", comparison.notes[0])
        await self.report(1, WINDOW_MS)
        self.assertFalse((await self.auditor({"live": self.live}).audit()).isComplete)

    async def test_horizon(self) -> None:
        """Records that are older than the horizon are not read."""
        await self.put(b"old", b"older", timeMs=-10 * WINDOW_MS)
        await self.put(b"new")
        await self.put(b"old", timeMs=-10 * WINDOW_MS, partition=1)
        await self.report(1)
        horizonMs = int(reactor.seconds() * 1000) - self.base + 2 * WINDOW_MS
        auditor = self.auditor({"live": self.live}, horizon_ms=str(horizonMs))
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 1, "complete")])
        self.assertEqual(auditor.messageCount, 1)
        await self.put(b"newer", timeMs=WINDOW_MS, partition=1)
        await auditor.audit()
        self.assertEqual(auditor.messageCount, 2)

    async def test_noTopic(self) -> None:
        """A topic that a tier does not have is empty there, and is not made by the audit."""
        await self.report(1)
        comparison = await self.auditor({"live": self.live}).audit()
        self.assertEqual(self.tier(comparison), [(0, 0, "missing")])
        async with self.admin(self.live) as admin:
            self.assertEqual(await admin.listTopics(), [AUDIT_TOPIC])

    async def test_sizes(self) -> None:
        """Many records, in batches that are larger than a fetch, count each once."""
        producer = self.producer(self.live, batch_size="40000", linger_ms="20")
        for number in range(3000):
            producer.sendNoWait("clicks", b"%01000d" % number, timestamp=self.base)
        await producer.flush()
        await self.report(3000)
        auditor = self.auditor({"live": self.live}, fetch_size="10000")
        self.assertEqual(self.tier(await auditor.audit()), [(0, 3000, "complete")])


class TransactionTests(TierCase):
    """What is committed, and what is not."""

    async def test_transactions(self) -> None:
        """
        Records of aborted transactions do not count, nor do markers; those of an open one do when
        it is committed. All of it is exactly what the producer has counted.
        """
        await self.createTopic(self.live, "clicks", 1)
        writer = self.audited(self.live, None, transactional_id="x")
        for number in range(5):
            try:
                async with writer.transaction():
                    for _message in range(3):
                        await writer.send("clicks", b"%d" % number, timestamp=self.base)
                    if number % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        await writer.counts.close()
        auditor = self.auditor({"live": self.live})
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 9, "complete")])
        self.assertEqual([line.missingCount for line in comparison.totals], [0])
        [line] = comparison.lines
        self.assertEqual(line.expectedChecksum, line.seenChecksum)
        self.assertIsNot(line.seenChecksum, None)
        self.assertEqual((list(comparison.notes), comparison.isCertain), ([], True))

    async def test_open(self) -> None:
        """An open transaction ends a pass before its records; the next pass goes on there."""
        await self.createTopic(self.live, "clicks", 1)
        await self.report(3)
        await self.put(b"a")
        auditor = self.auditor({"live": self.live})
        writer = self.audited(self.live, None, transactional_id="x", audit_tier="other")
        async with writer.transaction():
            await writer.send("clicks", b"b", timestamp=self.base)
            await self.put(b"c")
            self.assertEqual(self.tier(await auditor.audit()), [(0, 1, "missing")])
        while self.tier(comparison := await auditor.audit())[0][1] < 3:
            pass
        self.assertEqual(self.tier(comparison), [(0, 3, "complete")])
        self.assertEqual(comparison.notes, ())

    async def test_staysOpen(self) -> None:
        """A transaction that is open for longer than the grace is named, until it has ended."""
        await self.createTopic(self.live, "clicks", 1)
        await self.report(1)
        auditor = self.auditor({"live": self.live}, grace_ms="1500")
        writer = self.audited(self.live, None, transactional_id="x", audit_tier="other")
        async with writer.transaction():
            await writer.send("clicks", b"a", timestamp=self.base)
            self.assertEqual((await auditor.audit()).notes, ())
            await deferLater(reactor, 1.6)
            comparison = await auditor.audit()
            self.assertEqual(self.tier(comparison), [(0, 0, "missing")])
            self.assertEqual(
                comparison.notes,
                (
                    "live: a transaction that stays open holds back records of clicks, which look"
                    " missing",
                ),
            )
        while (comparison := await auditor.audit()).notes:
            pass
        self.assertEqual(self.tier(comparison), [(0, 1, "complete")])


class DeletedTests(TierCase):
    """Records that are gone before they were counted."""

    def properties(self) -> dict[str, str]:
        return {"log.cleaner.backoff.ms": "20"}

    async def deleteBefore(self, offset: int) -> None:
        async with self.admin(self.live) as admin:
            checkAll(await admin.deleteRecords({TopicPartition("clicks", 0): offset}))

    async def test_beginning(self) -> None:
        """
        A new auditor begins with what is left. One that finds its position deleted goes on behind
        the gap, and says so.
        """
        await self.createTopic(self.live, "clicks", 1)
        await self.put(b"a", b"b")
        await self.deleteBefore(1)
        await self.report(4)
        auditor = self.auditor({"live": self.live})
        comparison = await auditor.audit()
        self.assertEqual((self.tier(comparison), comparison.notes), ([(0, 1, "missing")], ()))
        await self.put(b"c", b"d")
        await self.deleteBefore(3)
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 2, "missing")])
        self.assertEqual(
            comparison.notes, ("live: 1 times data was deleted before it was counted",)
        )

    async def test_deletedWhileRead(self) -> None:
        """Records that are deleted between the question for offsets and the fetch are passed."""
        await self.createTopic(self.live, "clicks", 1)
        await self.put(b"a", b"b", b"c")
        await self.report(3)
        auditor = self.auditor({"live": self.live})
        [tier] = auditor._readers
        assert isinstance(tier, KafkaTier)
        locate = tier._locate
        deletions: list[int] = []

        async def locateAndDelete(topics: list[str], sinceMs: int) -> dict[TopicPartition, int]:
            found = await locate(topics, sinceMs)
            if "clicks" in topics and not deletions:
                deletions.append(2)
                await self.deleteBefore(2)
            return found

        self.patch(tier, "_locate", locateAndDelete)
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 1, "missing")])
        self.assertEqual((tier.skippedCount, comparison.isCertain), (1, True))

    async def test_madeAgain(self) -> None:
        """A topic that was deleted and made again is read from its beginning."""
        await self.createTopic(self.live, "clicks", 1)
        await self.put(b"a", b"b")
        await self.report(3)
        auditor = self.auditor({"live": self.live})
        await auditor.audit()
        async with self.admin(self.live) as admin:
            checkAll(await admin.deleteTopics(["clicks"]))
            while "clicks" in await admin.listTopics():
                pass
        await self.createTopic(self.live, "clicks", 1)
        await self.put(b"c", b"d", b"e", timeMs=WINDOW_MS)
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 2, "missing"), (WINDOW_MS, 3, "more")])
        self.assertIn("1 times data was deleted", comparison.notes[0])

    async def test_truncated(self) -> None:
        """A log that ends before the reader's position is read on from its end."""
        await self.createTopic(self.live, "clicks", 1)
        await self.put(b"a", b"b")
        await self.report(2)
        auditor = self.auditor({"live": self.live})
        await auditor.audit()
        [tier] = auditor._readers
        assert isinstance(tier, KafkaTier)
        tier._positions[TopicPartition("clicks", 0)] = 100
        self.assertEqual(self.tier(await auditor.audit()), [(0, 2, "complete")])
        self.assertEqual(tier.skippedCount, 1)
        await self.put(b"c")
        self.assertEqual(self.tier(await auditor.audit()), [(0, 3, "more")])

    async def test_compacted(self) -> None:
        """Where compaction has removed records, a note says why they are missing."""
        await self.createTopic(
            self.live,
            "clicks",
            1,
            cleanup_policy="compact",
            segment_bytes=str(1 << 20),
            min_cleanable_dirty_ratio="0",
        )
        await self.put(*[b"%0600000d" % number for number in range(4)])
        await self.report(4)
        while len(await self.records(self.live, "clicks")) == 4:
            pass
        comparison = await self.auditor({"live": self.live}).audit()
        self.assertEqual([line.status for line in comparison.lines], ["missing"])
        self.assertEqual(
            comparison.notes,
            (
                "live: clicks is compacted: records that were removed before they were counted look"
                " missing",
            ),
        )


class AwayTests(TierCase):
    """Tiers that cannot be read."""

    async def test_away(self) -> None:
        """A cluster that does not answer is not audited, and is there again in the next pass."""
        mirror = await self.newBroker()
        await self.put(b"a")
        await self.report(1)
        auditor = self.auditor({"live": self.live, "mirror": mirror}, timeout_ms="1500")
        await mirror.stop()
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 1, "complete")])
        self.assertFalse(comparison.isCertain)
        self.assertIn("mirror was not audited", comparison.notes[0])

    async def test_goesOn(self) -> None:
        """What was not read in a pass that failed is read in the next, and counts once."""
        await self.put(b"a", b"b")
        await self.report(2)
        auditor = self.auditor({"live": self.live})
        self.live.injectError("Fetch", "UNKNOWN_SERVER_ERROR", topic="clicks", count=1)
        comparison = await auditor.audit()
        self.assertFalse(comparison.isCertain)
        self.assertIn("live was not audited", comparison.notes[0])
        comparison = await auditor.audit()
        self.assertEqual(self.tier(comparison), [(0, 2, "complete")])
        self.assertTrue(comparison.isCertain)

    async def test_silent(self) -> None:
        """A broker that gives no records in time fails the pass, which says where it stood."""
        await self.put(b"a")
        await self.report(1)
        auditor = self.auditor({"live": self.live}, timeout_ms="1500")
        self.live.injectError("Fetch", "UNKNOWN_LEADER_EPOCH", topic="clicks", count=None)
        comparison = await auditor.audit()
        self.assertIn("clicks-0 was read to offset 0 of 1, and no more", comparison.notes[0])

    async def test_refused(self) -> None:
        """A topic that may not be seen is not an empty one."""
        await self.put(b"a")
        await self.report(1)
        self.live.injectError("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic="clicks")
        comparison = await self.auditor({"live": self.live}).audit()
        self.assertIn("TOPIC_AUTHORIZATION_FAILED", comparison.notes[0])
        self.assertFalse(comparison.isCertain)

    async def test_movedLeader(self) -> None:
        """Another leader of a partition is found."""
        await self.put(b"a")
        await self.report(3)
        auditor = self.auditor({"live": self.live})
        await auditor.audit()
        self.live.moveLeader("clicks", 0)
        await self.put(b"b", b"c")
        self.assertEqual(self.tier(await auditor.audit()), [(0, 3, "complete")])

    async def test_closedInAPass(self) -> None:
        """A pass that is cancelled leaves nothing behind."""
        await self.put(b"a")
        await self.report(1)
        auditor = self.auditor({"live": self.live})
        self.live.injectDelay("Fetch", 5000, count=None)
        passing = Deferred.fromCoroutine(auditor.audit())
        await deferLater(reactor, 0.1)
        self.assertNoResult(passing)
        passing.cancel()
        await self.assertFailure(passing, CancelledError)
        await auditor.close()


class SecureTests(KafkaAuditCase):
    """Brokers that want a password."""

    async def test_password(self) -> None:
        """A tier has its own user; without one, or with a wrong password, it cannot be read."""
        broker = await self.secureBroker()
        settings = {
            "tier.live.sasl.username": "auditor",
            "tier.live.sasl.mechanism": "PLAIN",
            "topics": "clicks",
        }
        for password, isCertain in (("right", True), ("wrong", False)):
            auditor = self.auditor(
                {"live": broker},
                None,
                **settings,
                **{"tier.live.sasl.password": password, "timeout.ms": "2000"},
            )
            comparison = await auditor.audit()
            self.assertEqual(comparison.isCertain, isCertain, comparison.notes)

    async def secureBroker(self) -> LocalBroker:
        listener = "listener.name.sasl_plaintext."
        broker = LocalBroker(
            reactor,
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "PLAIN",
                f"{listener}plain.sasl.jaas.config": f'{MODULE} required user_auditor="right";',
            },
        )
        await broker.start()
        self.addCleanup(broker.stop)
        return broker
