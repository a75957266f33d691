"""
Tests for L{pylogbroker.audit.counts}.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.counts import (
    CHECKSUM_MODULUS,
    IN_ENVELOPE,
    IN_PAYLOAD,
    IN_RECORD,
    REPORT_SIZE_MAX,
    CountBatch,
    CountReport,
    WindowCounter,
    addChecksums,
    decodeReport,
)
from pylogbroker.errors import FormatError

REPORT = CountReport(
    "sent", "live", "clicks", 120_000, 60_000, 7, 1, "web1-1", 3, 2, "web1", 130_000, 99
)


class ReportTests(SynchronousTestCase):
    """A report as bytes."""

    def test_roundTrip(self) -> None:
        """What is encoded is decoded; it is the JSON of the page."""
        self.assertEqual(decodeReport(REPORT.encode()), REPORT)
        self.assertEqual(
            json.loads(REPORT.encode()),
            {
                "audit": 1,
                "role": "sent",
                "tier": "live",
                "topic": "clicks",
                "startMs": 120_000,
                "windowMs": 60_000,
                "messageCount": 7,
                "unknownCount": 1,
                "source": "web1-1",
                "series": 3,
                "sequence": 2,
                "host": "web1",
                "timeMs": 130_000,
                "checksum": 99,
            },
        )

    def test_noChecksum(self) -> None:
        """A report may have no checksum, or none that is known."""
        good = json.loads(REPORT.encode())
        for changed in (
            {**good, "checksum": None},
            {key: value for key, value in good.items() if key != "checksum"},
        ):
            self.assertEqual(
                decodeReport(json.dumps(changed).encode()), REPORT._replace(checksum=None)
            )

    def test_timeSource(self) -> None:
        """A report may say where its messages have their time; a word that is not known is kept."""
        for word in (IN_ENVELOPE, IN_PAYLOAD, IN_RECORD, "elsewhere"):
            report = REPORT._replace(timeSource=word)
            self.assertEqual(json.loads(report.encode())["timeSource"], word)
            self.assertEqual(decodeReport(report.encode()), report)

    def test_wrong(self) -> None:
        """
        What is no report is refused: other types, numbers out of range, missing fields, windows
        that cannot be.
        """
        good = json.loads(REPORT.encode())
        wrongs: list[dict[str, Any]] = [
            {**good, **change}
            for change in (
                {"audit": 2},
                {"role": "lost"},
                {"messageCount": -1},
                {"messageCount": "7"},
                {"messageCount": True},
                {"messageCount": 2**63},
                {"topic": None},
                {"topic": "x" * 5000},
                {"startMs": 1},
                {"windowMs": 0},
                {"windowMs": 2**40, "startMs": 0},
                {"source": 1},
                {"checksum": -1},
                {"checksum": "99"},
                {"checksum": CHECKSUM_MODULUS},
                {"checksum": True},
                {"timeSource": 1},
                {"timeSource": "x" * 5000},
            )
        ]
        for name in CountReport._fields[:-2]:
            wrongs.append({key: value for key, value in good.items() if key != name})
        for wrong in wrongs:
            self.assertRaises(FormatError, decodeReport, json.dumps(wrong).encode())
        for data in (
            b"",
            b"[]",
            b"{",
            b"\xff",
            b"[" * 10_000,
            b" " * (REPORT_SIZE_MAX + 1),
            REPORT.encode()[:-1],
        ):
            self.assertRaises(FormatError, decodeReport, data)

    @given(st.binary())
    def test_anything(self, data: bytes) -> None:
        """Any bytes are a report, or refused."""
        self.assertRaises(FormatError, decodeReport, data)


class CounterTests(SynchronousTestCase):
    """Counting by topic and window."""

    def setUp(self) -> None:
        self.counter = WindowCounter("web1-1", "web1", "live", 1000)

    def test_series(self) -> None:
        """
        Each topic and window is a series with a number of its own, and a report says all of it so
        far.
        """
        self.counter.add("a", 1999)
        self.counter.add("a", 1000, 4)
        self.counter.add("a", 2000)
        self.counter.add("b", 1500, 0, 2)
        found = [
            (
                report.topic,
                report.startMs,
                report.messageCount,
                report.unknownCount,
                report.series,
                report.sequence,
            )
            for report in self.counter.due(5000)
        ]
        self.assertEqual(
            found, [("a", 1000, 5, 0, 0, 1), ("a", 2000, 1, 0, 1, 1), ("b", 1000, 0, 2, 2, 1)]
        )
        [first, *_] = self.counter.due(5000)
        self.assertEqual(
            (first.role, first.tier, first.source, first.host, first.windowMs, first.timeMs),
            ("sent", "live", "web1-1", "web1", 1000, 5000),
        )

    def test_checksums(self) -> None:
        """
        Checksums add up, below the modulus, whatever the order; with one that is not known the sum
        is not, either.
        """
        self.counter.add("a", 0, 1, checksum=CHECKSUM_MODULUS - 1)
        self.counter.add("a", 0, 0, 1)
        self.counter.add("a", 0, 2, checksum=5)
        self.counter.add("b", 0, 1, checksum=5)
        self.counter.add("b", 0)
        self.counter.add("b", 0, 1, checksum=5)
        self.counter.add("c", 0, 0, 1)
        self.assertEqual(
            {report.topic: report.checksum for report in self.counter.due(0)},
            {"a": 4, "b": None, "c": 0},
        )
        self.assertEqual(
            (addChecksums(None, 1), addChecksums(1, None), addChecksums(1, 2)), (None, None, 3)
        )

    def test_dueUntilArrived(self) -> None:
        """
        A report is due again, with the next number, until one has arrived; and again when more has
        come.
        """
        self.counter.add("a", 0)
        [first] = self.counter.due(0)
        [again] = self.counter.due(1)
        self.assertEqual((first.sequence, again.sequence), (1, 2))
        self.assertEqual(self.counter.dueCount, 1)
        self.counter.arrived(first)
        self.assertEqual((self.counter.dueCount, self.counter.due(2)), (0, []))
        self.counter.add("a", 0)
        [more] = self.counter.due(3)
        self.assertEqual((more.messageCount, more.sequence), (2, 3))
        self.counter.arrived(more)
        self.counter.arrived(first)  # late: it takes nothing back
        self.assertEqual(self.counter.due(4), [])

    def test_forget(self) -> None:
        """
        A window that is over and reported is forgotten; what comes for it later begins another
        series, which adds up with the first.
        """
        self.counter.add("a", 0)
        self.counter.add("a", 1500)
        self.counter.forget(1000)
        self.assertEqual(len(self.counter), 2)  # not reported yet
        for report in self.counter.due(0):
            self.counter.arrived(report)
        self.counter.forget(1000)
        self.assertEqual(len(self.counter), 1)
        self.counter.add("a", 0)
        [late] = self.counter.due(0)
        self.assertEqual((late.messageCount, late.series), (1, 2))
        self.counter.arrived(late._replace(series=0))  # of the series before
        self.assertEqual(len(self.counter.due(0)), 1)

    def test_limit(self) -> None:
        """Beyond the limit of windows nothing is counted, but that."""
        counter = WindowCounter("s", "h", "t", 1000, openCountMax=2)
        for time in (0, 1000, 2000, 2500, 10):
            counter.add("a", time)
        counter.add("a", -5)
        self.assertEqual((len(counter), counter.leftOutCount), (2, 3))

    def test_future(self) -> None:
        """Nor is what begins later than what is given as the latest."""
        for time in (1000, 1999, 2000):
            self.counter.add("a", time, latestMs=1000)
        self.assertEqual((len(self.counter), self.counter.leftOutCount), (1, 1))

    def test_timeSource(self) -> None:
        """Each report says where the messages have their time."""
        counter = WindowCounter("s", "h", "t", 1000, timeSource=IN_RECORD)
        counter.add("a", 0)
        self.assertEqual([report.timeSource for report in counter.due(0)], [IN_RECORD])


class BatchTests(SynchronousTestCase):
    """Messages that count together."""

    def test_sums(self) -> None:
        """A cell for each topic and window, with count and sum of checksums."""
        batch = CountBatch(1000)
        batch.add("a", 1, 5)
        batch.add("a", 999, CHECKSUM_MODULUS - 1)
        batch.add("a", 1000, 7)
        batch.add("b", 0, None)
        self.assertEqual(list(batch), [("a", 0, 2, 4), ("a", 1000, 1, 7), ("b", 0, 1, None)])

    def test_limit(self) -> None:
        """Messages beyond the limit of cells are counted as left out."""
        batch = CountBatch(1000, cellCountMax=2)
        for timeMs in (0, 1000, 2000, 3000, 1):
            batch.add("a", timeMs, 1)
        self.assertEqual(list(batch), [("a", 0, 2, 2), ("a", 1000, 1, 1)])
        self.assertEqual(batch.leftOutCount, 2)
