"""Tests for L{pylogbroker.records.recordcheck}."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import FormatError
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    encodeBatch,
    iterateRecords,
    readHeader,
)
from pylogbroker.records.recordcheck import areOrdinary
from tests.records.goldenbatches import START_MS, manyRecords, mixedRecords

MANY = 1 << 40


def body(records: list[Record]) -> bytes:
    return encodeBatch(records, baseOffset=0)[BATCH_OVERHEAD:]


class OrdinaryTests(SynchronousTestCase):
    """Records that need no second look."""

    def test_yes(self) -> None:
        """Whole records with ascending offsets; large ones; with headers, and without fields."""
        large = [
            Record(index, START_MS + index * MANY, b"k" * size, b"v" * size, (("h" * size, None),))
            for index, size in enumerate((0, 63, 64, 8191, 8192, 2_000_000))
        ]
        for records in (mixedRecords(), manyRecords(300), large):
            self.assertTrue(areOrdinary(body(records), len(records), False, -MANY, 10 * MANY))
        self.assertTrue(areOrdinary(b"", 0, False, 0, 0))

    def test_keys(self) -> None:
        """Where each must have a key, one without is not ordinary."""
        self.assertTrue(areOrdinary(body(manyRecords(20)), 20, True, 0, 100))
        self.assertFalse(areOrdinary(body(mixedRecords()), 5, True, -MANY, MANY))

    def test_times(self) -> None:
        """Nor is one whose timestamp is out of bounds."""
        data = body(mixedRecords())
        for low, high, isOrdinary in (
            (-5, 70_000, True),
            (-4, 70_000, False),
            (-5, 69_999, False),
        ):
            self.assertEqual(areOrdinary(data, 5, False, low, high), isOrdinary)

    def test_largestTime(self) -> None:
        """Where the header tells the largest timestamp, one of them must be that."""
        data = body(mixedRecords())
        for largest, isOrdinary in ((70_000, True), (69_999, False), (70_001, False)):
            self.assertEqual(areOrdinary(data, 5, False, -MANY, MANY, largest), isOrdinary)

    def test_offsets(self) -> None:
        """Nor records with other offsets than 0, 1, 2 and so on."""
        records = manyRecords(20)
        self.assertFalse(areOrdinary(body(records[1:]), 19, False, 0, 100))
        self.assertFalse(areOrdinary(body([records[0], records[2]]), 2, False, 0, 100))

    def test_counts(self) -> None:
        """The records fill the body exactly."""
        data = body(manyRecords(20))
        for count in (-1, 0, 19, 21):
            self.assertFalse(areOrdinary(data, count, False, 0, 100))
        self.assertFalse(areOrdinary(data + b"\0", 20, False, 0, 100))

    def test_mutations(self) -> None:
        """What it says yes to, the slow way reads to the same end."""
        chance = random.Random(17)
        records = [
            *mixedRecords(),
            *[each._replace(offset=each.offset + 5) for each in mixedRecords()],
        ]
        good = encodeBatch(records)
        header = readHeader(good)
        counts = {True: 0, False: 0}
        for _ in range(4000):
            data = bytearray(good)
            for _ in range(chance.choice((1, 1, 2))):
                data[chance.randrange(BATCH_OVERHEAD, len(data))] = chance.choice(
                    (0, 1, 2, 126, 127, 128, 255, chance.randrange(256))
                )
            if chance.random() < 0.1:
                del data[chance.randrange(BATCH_OVERHEAD, len(data)) :]
            changed = header._replace(size=len(data))
            found = areOrdinary(bytes(data[BATCH_OVERHEAD:]), 10, False, -MANY, MANY)
            counts[found] += 1
            try:
                read = list(iterateRecords(bytes(data), 0, changed))
            except FormatError:
                self.assertFalse(found)
            else:
                isAscending = [each.offset for each in read] == list(range(10))
                inTime = all(abs(each.timestampMs - START_MS) <= MANY for each in read)
                self.assertEqual(found, isAscending and inTime)
        self.assertTrue(min(counts.values()) > 500, counts)
