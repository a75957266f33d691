"""Tests for L{pylogbroker.storage.recovery}."""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IRecordFormat
from pylogbroker.records.compression import GZIP
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import CHECKED_RULES, KafkaFormat
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.recovery import SegmentReport, verify

PLAIN = encodeSet([b"one", b"two"])
WRAPPED = encodeSet([b"a", b"b", b"c"], GZIP)


def name(offset: int) -> str:
    """Of a segment."""
    return f"{offset:020}.kafka"


class VerificationTests(SynchronousTestCase):
    """Files, partitions, log directories."""

    def setUp(self) -> None:
        self.root = self.mktemp()

    def file(self, partition: str, offset: int, data: bytes) -> str:
        folder = os.path.join(self.root, partition)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name(offset))
        with open(path, "wb") as file:
            file.write(data)
        return path

    def verdicts(self, path: str) -> list[SegmentReport]:
        return list(verify(RealFileSystem(), path, [Kafka07Format()]))

    def fault(self, data: bytes) -> SegmentReport:
        """Of one file."""
        [verdict] = self.verdicts(self.file("t-0", 0, data))
        return verdict

    def test_good(self) -> None:
        """
        A good segment: its size, its entries, and its messages, those inside compressed entries
        counted one by one.
        """
        data = PLAIN + WRAPPED + PLAIN + encodeSet([b"old"], magic=0)
        path = self.file("t-0", 40, data)
        self.assertEqual(
            self.verdicts(path),
            [SegmentReport(path, 40, len(data), len(data), 6, 8, 40 + len(data), None)],
        )
        self.assertEqual(self.fault(b"")[2:], (0, 0, 0, 0, 0, None))

    def test_many(self) -> None:
        """Thousands of entries are counted, small, compressed and large ones."""
        verdict = self.fault(
            encodeSet([b"x"]) * (2 * 1000 + 7) + WRAPPED + encodeSet([b"y" * 600_000]) * 4
        )
        self.assertEqual(
            (verdict.entryCount, verdict.messageCount, verdict.fault),
            (2 * 1000 + 12, 2 * 1000 + 14, None),
        )

    def test_cut(self) -> None:
        """
        An entry that is cut, or whose checksum is wrong, ends what is valid; it is told at which
        offset.
        """
        verdict = self.fault(PLAIN + WRAPPED[:-1])
        self.assertEqual(
            (verdict.validSize, verdict.entryCount, verdict.messageCount), (len(PLAIN), 2, 2)
        )
        self.assertIn(
            f"valid up to offset {len(PLAIN)} (byte {len(PLAIN)}), and no further: size field is",
            verdict.fault or "",
        )
        self.assertIn(
            "checksum", self.fault(PLAIN + encodeMessage(b"x")[:-1] + b"y" + PLAIN).fault or ""
        )
        self.assertIn("less than a size field", self.fault(PLAIN + b"\0").fault or "")

    def test_wrapper(self) -> None:
        """
        A compressed entry that is whole and cannot be opened is a fault; the entries behind it
        count.
        """
        bad = bytearray(encodeMessage(b"no gzip"))
        bad[5] = GZIP
        verdict = self.fault(PLAIN + WRAPPED + bytes(bad) + PLAIN)
        self.assertIn(
            f"the compressed entry at byte {len(PLAIN + WRAPPED)} cannot be opened",
            verdict.fault or "",
        )
        self.assertEqual(
            (verdict.entryCount, verdict.messageCount, verdict.validSize), (6, 7, verdict.size)
        )

    def test_partition(self) -> None:
        """
        Segments are looked at in their order; one that does not begin where the one before it ends
        is a fault.
        """
        self.file("t-0", 0, PLAIN)
        self.file("t-0", len(PLAIN), WRAPPED)
        path = self.file("t-0", len(PLAIN + WRAPPED) + 1, PLAIN)
        with open(os.path.join(self.root, "t-0", "notes.txt"), "wb"):
            pass
        verdicts = self.verdicts(os.path.dirname(path) + "/")
        self.assertEqual(
            [each.baseOffset for each in verdicts], [0, len(PLAIN), len(PLAIN + WRAPPED) + 1]
        )
        self.assertEqual(
            [each.fault for each in verdicts],
            [None, None, f"the segment before it ends at {len(PLAIN + WRAPPED)}"],
        )

    def test_directory(self) -> None:
        """A log directory is all its partitions; what is none is left alone."""
        paths = [self.file(partition, 0, PLAIN) for partition in ("a-0", "a-1", "b-0")]
        self.file("nothing", 0, b"x")
        with open(os.path.join(self.root, ".lock"), "wb"):
            pass
        self.assertEqual([each.path for each in self.verdicts(self.root)], paths)

    def test_names(self) -> None:
        """A segment file whose name is no offset is a fault."""
        os.makedirs(os.path.join(self.root, "t-0"))
        path = os.path.join(self.root, "t-0", "first.kafka")
        with open(path, "wb") as file:
            file.write(PLAIN)
        [verdict] = self.verdicts(path)
        self.assertIn("its offset in decimal digits", verdict.fault or "")

    def test_nothing(self) -> None:
        """Where nothing is, or nothing of ours, that is an error."""
        self.assertIn(
            "nothing is there", str(self.assertRaises(StorageError, self.verdicts, self.root))
        )
        os.makedirs(self.root)
        self.assertIn(
            "no segment files", str(self.assertRaises(StorageError, self.verdicts, self.root))
        )
        os.makedirs(os.path.join(self.root, "magic-6"))
        self.assertIn(
            "no segment files", str(self.assertRaises(StorageError, self.verdicts, self.root))
        )


def batch(offset: int, count: int = 1) -> bytes:
    """A batch as a log holds it."""
    records = [Record(offset + index, 0, None, b"x") for index in range(count)]
    return encodeBatch(records, baseOffset=offset)


class KafkaVerificationTests(SynchronousTestCase):
    """Verification of today's format, beside 2011's in one directory."""

    def test_gaps(self) -> None:
        """Gaps are no fault, an overlap is; each partition is read in its own format."""
        root = self.mktemp()
        for partition, offset, data in (
            ("a-0", 0, batch(0, 2) + batch(5)),
            ("a-0", 9, batch(12)),
            ("a-0", 11, batch(14)),
        ):
            folder = os.path.join(root, partition)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, f"{offset:020}.log"), "wb") as file:
                file.write(data)
        os.makedirs(os.path.join(root, "b-0"))
        with open(os.path.join(root, "b-0", name(0)), "wb") as file:
            file.write(PLAIN)
        formats: list[IRecordFormat] = [Kafka07Format(), KafkaFormat(CHECKED_RULES)]
        reports = list(verify(RealFileSystem(), root, formats))
        self.assertEqual(
            [(each.baseOffset, each.messageCount, each.nextOffset, each.fault) for each in reports],
            [
                (0, 3, 6, None),
                (9, 1, 13, None),
                (11, 1, 15, "the segment before it ends at 13"),
                (0, 2, len(PLAIN), None),
            ],
        )
