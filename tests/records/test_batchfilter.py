"""
Batches with fewer records.
"""

from __future__ import annotations

from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidRecordError
from pylogbroker.interfaces import BatchHeader
from pylogbroker.records.batchfilter import RawRecord, emptyBatch, filterBatch, walkRecords
from pylogbroker.records.recordbatch import (
    APPEND_TIME_ATTRIBUTE,
    Record,
    checkCrc,
    encodeBatch,
    iterateRecords,
    openRecords,
    readHeader,
    stampBatch,
)

BASE = 1_000_000
RECORDS = [
    Record(BASE, 5_000, b"a" * 100, b"1" * 100, (("h", b"x"), ("i", None))),
    Record(BASE + 100, 9_000, None, None),
    Record(BASE + 300, 1_000, b"", b""),
    Record(BASE + 301, -1, b"c" * 9000, None),
]


def made(codec: int = 0) -> tuple[bytes, BatchHeader]:
    """A batch of L{RECORDS}, with gaps."""
    data = encodeBatch(
        RECORDS, baseOffset=BASE, codec=codec, producerId=5, producerEpoch=1, baseSequence=7
    )
    return data, readHeader(data)


def isChosen(offsets: set[int], record: RawRecord) -> bool:
    """Whether a record stays."""
    return record.offset in offsets


def opened(data: bytes) -> list[Record]:
    """The records of a batch with a right checksum."""
    header = readHeader(data)
    checkCrc(data, 0, header)
    return list(iterateRecords(data, 0, header))


class FilterTests(SynchronousTestCase):
    """L{filterBatch} and L{emptyBatch}."""

    def test_walk(self) -> None:
        """The walk sees what the decoder sees."""
        data, header = made()
        found = list(walkRecords(openRecords(data, 0, header), header))
        self.assertEqual(
            [(each.offset, each.key, each.hasValue) for each in found],
            [(each.offset, each.key, each.value is not None) for each in RECORDS],
        )

    def test_each(self) -> None:
        """Each choice of records keeps these as they are, with every codec."""
        for codec in range(5):
            data, header = made(codec)
            for choice in range(1, 16):
                offsets = {r.offset for i, r in enumerate(RECORDS) if choice >> i & 1}
                for isRetimed in (False, True):
                    found = filterBatch(
                        data,
                        header,
                        partial(isChosen, offsets),
                        77,
                        isRetimed,
                    )
                    assert found is not None
                    expected = [each for each in RECORDS if each.offset in offsets]
                    self.assertEqual(opened(found), expected)
                    kept = readHeader(found)
                    self.assertEqual(
                        (kept.baseOffset, kept.lastOffset, kept.codec, kept.baseSequence),
                        (BASE, BASE + 301, codec, 7),
                    )
                    self.assertEqual(
                        kept.maxTimestampMs, max(each.timestampMs for each in expected)
                    )
                    hasHorizon = isRetimed or any(each.value is None for each in expected)
                    self.assertEqual(kept.deleteHorizonMs, 77 if hasHorizon else None)

    def test_unchanged(self) -> None:
        """With nothing to change it is the same bytes; with no record left it is nothing."""
        data = encodeBatch(RECORDS[:1], baseOffset=BASE)
        header = readHeader(data)
        self.assertIs(filterBatch(data, header, lambda each: True, 77), data)
        self.assertIsNone(filterBatch(data, header, lambda each: False, 77))

    def test_horizonStays(self) -> None:
        """A horizon that is there stays."""
        data = encodeBatch(RECORDS, baseOffset=BASE, deleteHorizonMs=55)
        header = readHeader(data)
        found = filterBatch(data, header, lambda each: each.offset > BASE, 77)
        assert found is not None
        self.assertEqual(readHeader(found).deleteHorizonMs, 55)
        self.assertEqual(opened(found), RECORDS[1:])

    def test_appendTime(self) -> None:
        """The time of the append stays the largest timestamp, whatever is left."""
        data, header = made()
        timed = header._replace(attributes=header.attributes | APPEND_TIME_ATTRIBUTE)
        stamped = stampBatch(data, timed, BASE, 0, 77_000)
        found = filterBatch(stamped, readHeader(stamped), partial(isChosen, {BASE}), 0)
        assert found is not None
        self.assertEqual(readHeader(found).maxTimestampMs, 77_000)
        self.assertEqual([each.timestampMs for each in opened(found)], [77_000])

    def test_empty(self) -> None:
        """An empty batch keeps offsets, producer and time."""
        _, header = made(3)
        found = readHeader(emptyBatch(header))
        self.assertEqual(opened(emptyBatch(header)), [])
        self.assertEqual(
            (found.baseOffset, found.lastOffset, found.lastSequence, found.maxTimestampMs),
            (BASE, BASE + 301, header.lastSequence, 9_000),
        )

    def test_damaged(self) -> None:
        """Records that are cut, have no end, or a wrong size are errors, and nothing else."""
        data, header = made()
        body = openRecords(data, 0, header)

        def walk(damaged: bytes) -> list[RawRecord]:
            return list(walkRecords(damaged, header))

        for size in range(len(body) - 1):
            self.assertRaises(InvalidRecordError, walk, body[:size])
        self.assertRaises(InvalidRecordError, walk, b"\xff" * 50)
        self.assertRaises(InvalidRecordError, walk, b"\x02" + body[2:])
