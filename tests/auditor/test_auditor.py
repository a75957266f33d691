"""
Tests for L{pylogbroker.auditor.auditor}, at two real brokers.
"""

from __future__ import annotations

from math import inf
from typing import Any

from pylogbroker.audit.comparison import Comparison
from pylogbroker.audit.counts import FUTURE_MS_MAX
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.auditor.clustertier import ClusterTier
from pylogbroker.config.auditsettings import AUDIT_TOPIC
from tests.auditor.auditcase import WINDOW_MS, AuditCase, packed, report
from tests.cli.commands import reactor


class AuditorTests(AuditCase):
    """What a pass finds."""

    async def audit(self, *, times: int = 1, timeOf: Any = None, **properties: str) -> Comparison:
        self.auditor = auditor = Auditor(reactor, self.settings(**properties), timeOf=timeOf)
        self.addCleanup(auditor.close)
        for _time in range(times - 1):
            await auditor.audit()
        return await auditor.audit()

    def lines(self, comparison: Comparison) -> list[tuple[int, str, int, int, str]]:
        return [
            (line.startMs - self.base, line.tier, line.expectedCount, line.seenCount, line.status)
            for line in comparison.lines
        ]

    async def test_whole(self) -> None:
        """Everything is there, in both tiers; a second pass counts nothing twice."""
        await self.fill()
        comparison = await self.audit(times=2)
        self.assertEqual(
            self.lines(comparison),
            [(0, "live", 10, 10, "complete"), (0, "mirror", 10, 10, "complete")],
        )
        self.assertEqual(
            (comparison.isComplete, comparison.isCertain, list(comparison.notes)), (True, True, [])
        )
        self.assertEqual(self.auditor.messageCount, 20)

    async def test_hole(self) -> None:
        """Messages that are missing in one tier are found there, in their window."""
        await self.fill()
        await self.fill(10, 7, startMs=2000)
        comparison = await self.audit()
        [hole] = comparison.missing
        self.assertEqual(
            (hole.topic, hole.startMs - self.base, hole.tier, hole.missingCount),
            ("clicks", 2000, "mirror", 3),
        )

    async def test_later(self) -> None:
        """What has come between two passes counts in the second; a hole can close."""
        await self.fill(10, 9)
        auditor = Auditor(reactor, self.settings())
        self.addCleanup(auditor.close)
        self.assertFalse((await auditor.audit()).isComplete)
        await self.put(self.mirror, "clicks", packed(self.base))
        self.assertTrue((await auditor.audit()).isComplete)

    async def test_arrival(self) -> None:
        """Messages without envelopes are judged by their total, and the report says so."""
        await self.put(self.live, "clicks", b"a", b"b")
        await self.put(self.mirror, "clicks", b"a")
        await self.put(self.live, AUDIT_TOPIC, report("clicks", self.base, 2))
        comparison = await self.audit()
        self.assertEqual(
            [(line.tier, line.status) for line in comparison.totals],
            [("live", "complete"), ("mirror", "missing")],
        )
        self.assertIn("without an envelope", comparison.notes[0])
        self.assertFalse(comparison.isComplete)

    async def test_timeOf(self) -> None:
        """
        The application says how to read the time; where that fails, or knows none, only the arrival
        is known.
        """
        await self.put(self.live, "clicks", b"%d" % self.base, b"%d" % (self.base + 1), b"none")
        await self.put(self.mirror, "clicks", b"%d" % self.base, b"%d" % (self.base + 1))
        await self.put(self.live, AUDIT_TOPIC, report("clicks", self.base, 2))

        def timeOf(payload: bytes) -> int | None:
            return int(payload)

        comparison = await self.audit(timeOf=timeOf)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(
            [
                line.status
                for line in comparison.lines
                if line.tier == "mirror" and line.startMs == self.base
            ],
            ["complete"],
        )
        self.assertTrue(any("timeOf failed on 1" in note for note in comparison.notes))
        comparison = await self.audit(timeOf=lambda payload: None if payload == b"none" else "soon")
        self.assertEqual({line.status for line in comparison.lines}, {"arrival", "open"})

    async def test_topics(self) -> None:
        """Without a choice, what producers have reported; with one, that, reported or not."""
        await self.fill()
        await self.put(self.live, "other", packed(self.base), packed(self.base))
        await self.put(self.mirror, "other", packed(self.base))
        self.assertEqual({line.topic for line in (await self.audit()).lines}, {"clicks"})
        comparison = await self.audit(topics="other")
        self.assertEqual(
            self.lines(comparison),
            [(0, "live", 2, 2, "unreported"), (0, "mirror", 2, 1, "missing")],
        )

    async def test_horizon(self) -> None:
        """What is older than the horizon is forgotten."""
        await self.fill()
        self.assertEqual((await self.audit(horizon_ms="60000")).lines, [])

    async def test_strangers(self) -> None:
        """
        Messages among the counts that are none, and times that cannot be, are left out and said.
        """
        await self.fill()
        await self.put(
            self.live,
            AUDIT_TOPIC,
            b"hello",
            b"{}",
            report("clicks", (self.base + 10 * FUTURE_MS_MAX) // 1000 * 1000, 5),
        )
        await self.put(self.live, "clicks", packed(2**62))
        comparison = await self.audit()
        self.assertTrue(comparison.isComplete)
        self.assertEqual(len(comparison.notes), 2)
        self.assertEqual({line.startMs for line in comparison.lines}, {self.base})

    async def test_tierAway(self) -> None:
        """A tier that cannot be read is said, and not called empty; the others are judged."""
        await self.fill(10, 0)
        await self.mirror.stop()
        comparison = await self.audit(timeout_ms="300")
        self.assertEqual(self.lines(comparison), [(0, "live", 10, 10, "complete")])
        self.assertEqual((comparison.isComplete, comparison.isCertain), (True, False))
        self.assertIn("mirror was not audited", comparison.notes[0])

    async def test_partlyAway(self) -> None:
        """
        A tier of which something that was there is away is said, and left out; nothing is certain
        then, until it is back.
        """
        await self.fill()
        auditor = Auditor(reactor, self.settings())
        self.addCleanup(auditor.close)
        self.assertTrue((await auditor.audit()).isCertain)
        reader = auditor._readers[0]
        assert isinstance(reader, ClusterTier)
        lost = next(part for part in reader._metMs if part.topic == "clicks")._replace(partition=1)
        reader._metMs[lost] = inf
        comparison = await auditor.audit()
        self.assertEqual(
            (self.lines(comparison), comparison.isCertain),
            ([(0, "mirror", 10, 10, "complete")], False),
        )
        self.assertEqual(list(comparison.notes), [f"live was not audited: {lost} is away"])
        del reader._metMs[lost]
        self.assertTrue((await auditor.audit()).isCertain)

    async def test_allAway(self) -> None:
        """Even when none can be read there is an answer."""
        await self.live.stop()
        await self.mirror.stop()
        comparison = await self.audit(timeout_ms="200", topics="clicks")
        self.assertEqual(
            (len(comparison.lines), comparison.isCertain, len(comparison.notes)), (0, False, 2)
        )

    async def test_retention(self) -> None:
        """Data that was deleted before it was counted is said."""
        await self.fill()
        auditor = Auditor(reactor, self.settings())
        self.addCleanup(auditor.close)
        await auditor.audit()
        reader = auditor._readers[0]
        assert isinstance(reader, ClusterTier)
        reader._positions = dict.fromkeys(reader._positions, 10**6)
        comparison = await auditor.audit()
        self.assertIn("live: 2 times data was deleted", comparison.notes[0])
        self.assertEqual(WINDOW_MS, comparison.windowMs)
