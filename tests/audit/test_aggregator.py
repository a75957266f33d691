"""
Tests for L{pylogbroker.audit.comparison.AuditAggregator}.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.comparison import (
    ARRIVAL,
    COMPLETE,
    DIFFERENT,
    MISSING,
    MORE,
    OPEN,
    TIER_COUNT_MAX,
    UNREPORTED,
    AuditAggregator,
    Comparison,
)
from pylogbroker.audit.counts import (
    IN_ENVELOPE,
    IN_PAYLOAD,
    IN_RECORD,
    SEEN,
    CountReport,
    WindowCounter,
)

WINDOW = 1000


def report(
    count: int,
    startMs: int = 0,
    *,
    unknown: int = 0,
    series: int = 0,
    sequence: int = 1,
    source: str = "p",
    topic: str = "t",
    role: str = "sent",
    tier: str = "live",
    checksum: int | None = None,
    timeSource: str = "",
) -> CountReport:
    return CountReport(
        role,
        tier,
        topic,
        startMs,
        WINDOW,
        count,
        unknown,
        source,
        series,
        sequence,
        "h",
        0,
        checksum,
        timeSource,
    )


class LedgerCase(SynchronousTestCase):
    """Books of windows of a second."""

    def setUp(self) -> None:
        self.ledger = AuditAggregator(WINDOW)

    def compare(self, *tiers: str, nowMs: int = 10**6) -> Comparison:
        return self.ledger.compare(tiers or ("live",), nowMs, 500)

    def statuses(self, *tiers: str, nowMs: int = 10**6) -> list[tuple[int, str, str]]:
        return [
            (line.startMs, line.tier, line.status)
            for line in self.compare(*tiers, nowMs=nowMs).lines
        ]


class JudgeTests(LedgerCase):
    """What is said of a window."""

    def test_statuses(self) -> None:
        """
        As much as was sent is complete; less is missing; more is said, and no hole; what may have
        been sent counts for neither.
        """
        for startMs, count in enumerate((10, 9, 11, 12, 13)):
            self.ledger.enter(
                report(10, startMs * WINDOW, unknown=2 if startMs > 1 else 0, series=startMs)
            )
            self.ledger.see("live", "t", startMs * WINDOW, count)
        expected = (COMPLETE, MISSING, COMPLETE, COMPLETE, MORE)
        self.assertEqual(
            self.statuses(),
            [(startMs * WINDOW, "live", status) for startMs, status in enumerate(expected)],
        )
        comparison = self.compare()
        self.assertFalse(comparison.isComplete)
        [hole] = comparison.missing
        self.assertEqual((hole.startMs, hole.missingCount, hole.completeness), (1000, 1, 0.9))

    def test_nothingSeen(self) -> None:
        """A window of which nothing is there is a hole of all of it."""
        self.ledger.enter(report(10))
        self.assertEqual(self.compare().missing[0].missingCount, 10)

    def test_moreElsewhereHidesNothing(self) -> None:
        """
        A window with too much does not make up for one with too little, though the total looks
        well.
        """
        self.ledger.enter(report(10, 0))
        self.ledger.enter(report(10, 1000, series=1))
        self.ledger.see("live", "t", 0, 9)
        self.ledger.see("live", "t", 1000, 11)
        comparison = self.compare()
        self.assertEqual((comparison.totals[0].status, comparison.isComplete), (COMPLETE, False))

    def test_sameCountOtherMessages(self) -> None:
        """
        Where as many are there as were sent, and the sums say that they are not the same, there is
        a hole; in that tier and window, and in no other.
        """
        for startMs in (0, 1000):
            self.ledger.enter(report(2, startMs, series=startMs, checksum=30))
            self.ledger.enter(report(1, startMs, series=startMs + 1, checksum=7))
            for tier, checksum in (("live", 37), ("mirror", 37 if startMs else 40)):
                self.ledger.see(tier, "t", startMs, 3, checksum=checksum)
        expected = [
            (0, "live", COMPLETE),
            (0, "mirror", DIFFERENT),
            (1000, "live", COMPLETE),
            (1000, "mirror", COMPLETE),
        ]
        self.assertEqual(self.statuses("live", "mirror"), expected)
        comparison = self.compare("live", "mirror")
        self.assertEqual(
            [
                (line.startMs, line.tier, line.missingCount, line.moreCount)
                for line in comparison.missing
            ],
            [(0, "mirror", 1, 1)],
        )
        self.assertEqual([line.status for line in comparison.totals], [COMPLETE, DIFFERENT])

    def test_sumsNotKnown(self) -> None:
        """
        One sum that is not known leaves all to the counts; so does a message that may have been
        sent.
        """
        self.ledger.enter(report(1, checksum=30))
        self.ledger.enter(report(1, series=1))
        self.ledger.enter(report(1, 1000, series=2, unknown=1, checksum=30))
        self.ledger.enter(report(0, 2000, series=3, unknown=1))
        self.ledger.enter(report(1, 2000, series=4, checksum=30))
        for startMs, count in ((0, 2), (1000, 1), (2000, 1)):
            self.ledger.see("live", "t", startMs, count, checksum=99)
        self.assertEqual({status for _start, _tier, status in self.statuses()}, {COMPLETE})

    def test_measureHasSums(self) -> None:
        """Where nobody has said what was sent, tiers are compared by sums as well."""
        self.ledger.see("live", "t", 0, 2, checksum=10)
        self.ledger.see("mirror", "t", 0, 2, checksum=11)
        self.assertEqual(
            self.statuses("live", "mirror"), [(0, "live", UNREPORTED), (0, "mirror", DIFFERENT)]
        )

    def test_open(self) -> None:
        """A window is judged when it is over and the grace is, and not before."""
        self.ledger.enter(report(10))
        self.assertEqual(self.statuses(nowMs=1499), [(0, "live", OPEN)])
        self.assertTrue(self.compare(nowMs=1499).isComplete)
        self.assertEqual(self.compare(nowMs=1499).totals[0].expectedCount, 0)
        self.assertEqual(self.statuses(nowMs=1500), [(0, "live", MISSING)])

    def test_tiers(self) -> None:
        """Each tier is judged for itself."""
        self.ledger.enter(report(10))
        self.ledger.see("live", "t", 0, 10)
        self.ledger.see("mirror", "t", 0, 7)
        self.assertEqual(
            self.statuses("live", "mirror"), [(0, "live", COMPLETE), (0, "mirror", MISSING)]
        )

    def test_warehouse(self) -> None:
        """What somebody at the other end reports to have seen is a tier as well."""
        self.ledger.enter(report(10))
        self.ledger.see("live", "t", 0, 10)
        self.ledger.enter(report(4, role=SEEN, tier="warehouse", source="loader"))
        self.ledger.enter(report(5, role=SEEN, tier="warehouse", source="another"))
        self.assertEqual(self.statuses(), [(0, "live", COMPLETE), (0, "warehouse", MISSING)])

    def test_tierCountHasALimit(self) -> None:
        """Reports can name so many tiers, and no more."""
        for number in range(TIER_COUNT_MAX + 5):
            self.ledger.enter(report(1, role=SEEN, tier=f"tier {number}", source=str(number)))
        self.assertEqual(len(self.compare().totals), TIER_COUNT_MAX)

    def test_unreported(self) -> None:
        """Where nobody has said what was sent, the first tier is the measure of the others."""
        self.ledger.see("live", "t", 0, 10)
        self.ledger.see("mirror", "t", 0, 9)
        comparison = self.compare("live", "mirror")
        self.assertEqual(
            [(line.status, line.reference) for line in comparison.lines],
            [(UNREPORTED, "live"), (MISSING, "live")],
        )

    def test_chosenTopics(self) -> None:
        """Topics that were not asked for are left out."""
        self.ledger.enter(report(1))
        self.ledger.enter(report(1, topic="u", source="q"))
        self.assertEqual(
            {line.topic for line in self.ledger.compare(["live"], 10**6, 0, {"u"}).lines}, {"u"}
        )
        self.assertEqual(self.ledger.reportedTopics, {"t", "u"})


class ArrivalTests(LedgerCase):
    """Messages whose time nobody knows."""

    def test_total(self) -> None:
        """Their windows are not judged; the total is, and says so when it is short."""
        self.ledger.enter(report(10))
        self.ledger.see("live", "t", 50_000, 10, isArrival=True)
        comparison = self.compare()
        self.assertEqual([line.status for line in comparison.lines], [ARRIVAL, ARRIVAL])
        self.assertEqual((comparison.totals[0].status, comparison.isComplete), (COMPLETE, True))
        self.assertIn("t in live", comparison.notes[0])
        self.ledger.enter(report(11, sequence=2))
        self.assertEqual([line.startMs for line in self.compare().missing], [-1])

    def test_openWindows(self) -> None:
        """
        What was read just now counts, so that nothing is called missing that is there; and what is
        more may belong to what is not over.
        """
        self.ledger.enter(report(10))
        self.ledger.see("live", "t", 9000, 15, isArrival=True)
        comparison = self.compare(nowMs=9500)
        self.assertEqual(
            (comparison.totals[0].status, comparison.totals[0].seenCount), (COMPLETE, 15)
        )
        comparison = self.compare(nowMs=20_000)
        self.assertEqual(
            (comparison.totals[0].status, [line.moreCount for line in comparison.more]), (MORE, [5])
        )

    def test_sums(self) -> None:
        """The sums of totals are compared, too, when all windows are over."""
        self.ledger.enter(report(10, checksum=5))
        self.ledger.see("live", "t", 9000, 10, isArrival=True, checksum=6)
        self.assertEqual(self.compare(nowMs=9500).totals[0].status, COMPLETE)
        comparison = self.compare()
        self.assertEqual(
            [(line.startMs, line.status) for line in comparison.missing], [(-1, DIFFERENT)]
        )


class RecordTimeTests(LedgerCase):
    """Messages whose time is the timestamp of their record."""

    def seeRecords(self, tier: str, startMs: int, count: int) -> None:
        self.ledger.see(tier, "t", startMs, count, isRecordTime=True)

    def test_senders(self) -> None:
        """
        Their windows are judged where all senders have counted by records or envelopes; where one
        has counted otherwise, or does not say, only the total is, and the result says so.
        """
        for words, isJudged in (
            ((IN_RECORD,), True),
            ((IN_RECORD, IN_ENVELOPE), True),
            ((IN_RECORD, IN_PAYLOAD), False),
            ((IN_RECORD, ""), False),
        ):
            self.ledger = AuditAggregator(WINDOW)
            for number, word in enumerate(words):
                self.ledger.enter(report(5, source=f"p{number}", timeSource=word))
            self.seeRecords("live", 0, 5 * len(words) - 2)
            self.seeRecords("live", 1000, 2)
            comparison = self.compare()
            expected = [MISSING, MORE] if isJudged else [ARRIVAL, ARRIVAL]
            self.assertEqual([line.status for line in comparison.lines], expected, words)
            self.assertEqual(comparison.isComplete, not isJudged, words)
            self.assertEqual(len(comparison.notes), 0 if isJudged else 1, words)

    def test_lost(self) -> None:
        """A message that is missing by the total is a hole."""
        self.ledger.enter(report(5, timeSource=IN_PAYLOAD))
        self.seeRecords("live", 0, 2)
        self.seeRecords("live", 1000, 2)
        [hole] = self.compare().missing
        self.assertEqual((hole.startMs, hole.missingCount), (-1, 1))

    def test_otherTier(self) -> None:
        """Messages of a tier that have their own time are judged by windows all the same."""
        self.ledger.enter(report(5, timeSource=IN_PAYLOAD))
        self.seeRecords("mirror", 1000, 5)
        self.ledger.see("live", "t", 0, 4)
        self.assertEqual(
            self.statuses("live", "mirror"),
            [
                (0, "live", MISSING),
                (0, "mirror", ARRIVAL),
                (1000, "live", COMPLETE),
                (1000, "mirror", ARRIVAL),
            ],
        )

    def test_measureOfArrivals(self) -> None:
        """
        Where no producer reports, and the first tier does not know the times, the other tiers are
        judged by their totals as well: complete, or a hole.
        """
        for count, isComplete in ((5, True), (4, False)):
            self.ledger = AuditAggregator(WINDOW)
            self.ledger.see("live", "t", 5000, 5, True)
            self.seeRecords("mirror", 0, count)
            comparison = self.compare("live", "mirror")
            self.assertEqual({line.status for line in comparison.lines}, {ARRIVAL})
            self.assertEqual(comparison.isComplete, isComplete)
            self.assertEqual([line.tier for line in comparison.missing], ["mirror"][isComplete:])


class ReportTests(LedgerCase):
    """Reports may come twice, late, in the wrong order."""

    @given(
        st.integers(0, 2**32),
        st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(0, 4999), st.integers(1, 9)), max_size=40
        ),
    )
    def test_anyOrder(self, seed: int, adds: list[tuple[str, int, int]]) -> None:
        """
        However reports are doubled and shuffled, and whichever but the last of each series are
        lost: what counts is what was counted.
        """
        random = Random(seed)
        ledger = AuditAggregator(WINDOW)
        counter = WindowCounter("p", "h", "live", WINDOW)
        truth: dict[tuple[str, int], int] = {}
        reports = []
        for topic, time, count in adds:
            counter.add(topic, time, count)
            truth[topic, time // WINDOW * WINDOW] = (
                truth.get((topic, time // WINDOW * WINDOW), 0) + count
            )
            due = counter.due(time)
            if random.random() < 0.7:
                reports += due
            if random.random() < 0.3:
                for each in due:
                    reports.append(each)
                    counter.arrived(each)
            if random.random() < 0.2:
                counter.forget(10_000)
        last = counter.due(9999)
        reports = [*reports, *reports, *last]
        random.shuffle(reports)
        for each in reports:
            ledger.enter(each)
        comparison = ledger.compare(["live"], 10**9, 0)
        self.assertEqual(
            {(line.topic, line.startMs): line.expectedCount for line in comparison.lines}, truth
        )

    def test_sourcesAddUp(self) -> None:
        """Reports of several programs, and of several series of one, add up."""
        for number, (source, series) in enumerate((("p", 0), ("p", 1), ("q", 0))):
            self.ledger.enter(report(10**number, source=source, series=series))
        self.assertEqual(self.compare().lines[0].expectedCount, 111)

    def test_finerWindows(self) -> None:
        """Windows that divide ours add up; others are counted, and said."""
        ledger = AuditAggregator(2000)
        for startMs in (0, 1000, 2000):
            ledger.enter(report(1, startMs, series=startMs))
        comparison = ledger.compare(["live"], 10**6, 0)
        self.assertEqual(
            [(line.startMs, line.expectedCount) for line in comparison.lines], [(0, 2), (2000, 1)]
        )
        ledger.enter(report(1)._replace(windowMs=1500))
        comparison = ledger.compare(["live"], 10**6, 0)
        self.assertEqual((ledger.misfitCount, comparison.isCertain), (1, False))
        self.assertIn("do not divide", comparison.notes[0])


class LimitTests(LedgerCase):
    """The books have a limit."""

    def test_cells(self) -> None:
        """Beyond it messages are not counted, but that; and the comparison is not certain."""
        ledger = AuditAggregator(WINDOW, cellCountMax=2)
        for startMs in (0, 1000, 2000, 0):
            ledger.see("live", "t", startMs, 5)
        self.assertEqual(ledger.leftOutCount, 5)
        self.assertFalse(ledger.compare(["live"], 10**6, 0).isCertain)

    def test_series(self) -> None:
        """The same for reports; those of a series that is known still count."""
        ledger = AuditAggregator(WINDOW, seriesCountMax=1)
        ledger.enter(report(1))
        ledger.enter(report(1, series=1))
        ledger.enter(report(2, sequence=2))
        comparison = ledger.compare(["live"], 10**6, 0)
        self.assertEqual(
            (ledger.leftOutReportCount, comparison.lines[0].expectedCount, comparison.isCertain),
            (1, 2, False),
        )
        self.assertEqual(len(comparison.notes), 1)

    def test_forget(self) -> None:
        """
        What begins before a time is forgotten, and not taken again; a window is never half there.
        """
        for startMs in (0, 1000, 2000):
            self.ledger.enter(report(5, startMs, series=startMs))
            self.ledger.see("live", "t", startMs, 5)
        self.ledger.forgetBefore(1001)
        self.ledger.see("live", "t", 1000, 5)
        self.ledger.enter(report(6, 1000, series=1000, sequence=2))
        self.assertEqual(
            [(line.startMs, line.expectedCount, line.seenCount) for line in self.compare().lines],
            [(2000, 5, 5)],
        )
        self.ledger.forgetBefore(0)  # time does not go back
        self.assertEqual(len(self.compare().lines), 1)
