"""
Tests for L{pylogbroker.auditor.tabletier}: a table as a tier of an audit, beside a real broker.
"""

from __future__ import annotations

import os
from dataclasses import replace

from pylogbroker.audit.comparison import Comparison
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.config.auditsettings import AUDIT_TOPIC
from pylogbroker.lake.manifest import EVENT_TIME_RULE, RunManifest, WindowCount
from pylogbroker.lake.table import MANIFESTS, manifestName
from pylogbroker.storage.files import RealFileSystem
from tests.auditor.auditcase import WINDOW_MS, AuditCase, report
from tests.cli.commands import reactor
from tests.lake.tables import manifest, write


class TableTests(AuditCase):
    """What a pass finds in a table."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.path = os.path.abspath(self.mktemp())
        self.runCount = 0
        self.auditor = Auditor(
            reactor, self.settings(tiers=f"{self.tiers()[0]}|warehouse=table:{self.path}")
        )
        self.addCleanup(self.auditor.close)

    def run_(
        self, *windows: tuple[int, int], arrivalCount: int = 0, **changes: object
    ) -> RunManifest:
        """
        A run that has loaded so many rows in windows that begin so many milliseconds behind the
        base.
        """
        self.runCount += 1
        counted = tuple(
            WindowCount("clicks", self.base + startMs, f"web{number}", count)
            for number, (startMs, count) in enumerate(windows)
        )
        one = replace(
            manifest(self.runCount),
            startedMs=self.base + 60_000,
            windowMs=WINDOW_MS,
            windows=counted,
            arrivals={"clicks": arrivalCount} if arrivalCount else {},
            **changes,  # type: ignore[arg-type]
        )
        write(RealFileSystem(), f"{self.path}/{MANIFESTS}/{manifestName(one.number)}", one.encode())
        return one

    async def seen(self) -> tuple[list[tuple[int, int, str]], Comparison]:
        comparison = await self.auditor.audit()
        return [
            (line.startMs - self.base, line.seenCount, line.status)
            for line in comparison.lines
            if line.tier == "warehouse"
        ], comparison

    async def test_whole(self) -> None:
        """The rows of a window, of all hosts and runs, count once, over any number of passes."""
        await self.fill()
        self.run_((0, 4), (0, 3))
        self.run_((0, 3), (WINDOW_MS, 2))
        for _pass in range(2):
            found, comparison = await self.seen()
            self.assertEqual(found, [(0, 10, "complete"), (WINDOW_MS, 2, "more")])
            self.assertTrue(comparison.isComplete and comparison.isCertain)

    async def test_hole(self) -> None:
        """What was not loaded is missing; the next run closes the hole."""
        await self.fill()
        self.run_((0, 7))
        found, comparison = await self.seen()
        self.assertEqual((found, comparison.isComplete), ([(0, 7, "missing")], False))
        self.run_((0, 3))
        self.assertEqual((await self.seen())[0], [(0, 10, "complete")])

    async def test_replaced(self) -> None:
        """Rows that were replaced count no more."""
        await self.fill()
        self.run_((0, 10))
        self.run_((0, -10), (0, 9))
        self.assertEqual((await self.seen())[0], [(0, 9, "missing")])

    async def test_arrival(self) -> None:
        """Rows without a time are judged by their total."""
        await self.fill()
        self.run_((0, 4), arrivalCount=6)
        _lines, comparison = await self.seen()
        self.assertEqual(
            [
                (line.seenCount, line.arrivalCount, line.status)
                for line in comparison.totals
                if line.tier == "warehouse"
            ],
            [(10, 6, "complete")],
        )
        self.assertIn("without an envelope", comparison.notes[0])

    async def test_recordTime(self) -> None:
        """
        Rows without a host have the timestamps of their records, by which the senders need not have
        counted: then they are judged by their total. Those that were loaded by an expression have
        the time that it gives.
        """
        one = replace(
            manifest(1),
            startedMs=self.base + 60_000,
            windowMs=WINDOW_MS,
            windows=(WindowCount("clicks", self.base + 5 * WINDOW_MS, "", 10),),
            arrivals={},
        )
        for number, (rule, sender, statuses) in enumerate(
            (
                (EVENT_TIME_RULE, "payload", ["arrival", "arrival"]),
                (EVENT_TIME_RULE, "record", ["missing", "more"]),
                ("time, else the time of the run", "payload", ["missing", "more"]),
            )
        ):
            sent = report("clicks", self.base, 10, sequence=number + 1, timeSource=sender)
            await self.put(self.live, AUDIT_TOPIC, sent)
            folder = f"{self.path}-{number}"
            path = f"{folder}/{MANIFESTS}/{manifestName(1)}"
            write(RealFileSystem(), path, replace(one, eventTime=rule).encode())
            auditor = Auditor(reactor, self.settings(tiers=f"{self.tiers()[0]}|w=table:{folder}"))
            comparison = await auditor.audit()
            await auditor.close()
            found = [line.status for line in comparison.lines if line.tier == "w"]
            self.assertEqual(found, statuses, (rule, sender))

    async def test_laterTopic(self) -> None:
        """A topic that producers have reported only after its rows were loaded is counted then."""
        await self.fill(topic="other")
        self.run_((0, 10))
        self.assertEqual((await self.seen())[0], [(0, 0, "missing")])
        await self.put(self.live, AUDIT_TOPIC, report("clicks", self.base, 10, source="late"))
        self.assertIn((0, 10, "complete"), (await self.seen())[0])

    async def test_cannotBeRead(self) -> None:
        """
        A folder without a table, and windows that do not fit, are said; the table is not called
        empty.
        """
        await self.fill()
        found, comparison = await self.seen()
        self.assertEqual((found, comparison.isCertain), ([], False))
        self.assertIn("warehouse was not audited", comparison.notes[0])
        self.assertIn("there is no table", comparison.notes[0])
        one = self.run_((0, 10))
        wide = replace(one, number=2, windowMs=7 * WINDOW_MS)
        write(RealFileSystem(), f"{self.path}/{MANIFESTS}/{manifestName(2)}", wide.encode())
        self.assertIn("which do not divide", (await self.seen())[1].notes[0])

    async def test_leftOut(self) -> None:
        """Rows that the loader could not count make the audit uncertain."""
        await self.fill()
        self.run_((0, 10), leftOutCount=3)
        self.assertFalse((await self.seen())[1].isCertain)
