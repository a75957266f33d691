"""
Tests of the 2011 format as a log sees it.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidChecksumError
from pylogbroker.interfaces import (
    CheckLimits,
    IRecordFormat,
    ISegmentIndex,
    ScannedEntry,
    ValidatedBatches,
)
from pylogbroker.records import scanwindow
from pylogbroker.records.compression import GZIP, NONE, SNAPPY
from pylogbroker.records.kafka07format import Kafka07Format, SegmentScan
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet
from pylogbroker.records.scanwindow import SCAN_WINDOW_SIZE
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.fuzz import golden, judge, promises
from tests.fuzz.mutation import Mutator
from tests.fuzz.promises import SCAN_WINDOW_SIZES

HELLO = encodeMessage(b"hello")
OTHER = encodeMessage(b"other", 0)


class ReadFile:
    """
    A file in memory that writes down what is read of it.

    @ivar reads: (position, size) of each.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def __call__(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        return self.data[position : position + size]


def scanOf(data: bytes, baseOffset: int = 0, start: int = 0, end: int | None = None) -> SegmentScan:
    return Kafka07Format().scan(
        ReadFile(data), baseOffset, start, len(data) if end is None else end
    )


class FormatTests(SynchronousTestCase):
    """What the log asks of a format."""

    def test_validatePlain(self) -> None:
        """A run of plain sets is validated in one go; a run with another set in it is not."""
        form: IRecordFormat = Kafka07Format()
        run = [HELLO, HELLO * 2]
        joined = (b"".join(run),)  # they are small
        self.assertEqual(form.validatePlain(run, 100), ValidatedBatches(joined, 45, 3, 45))
        self.assertIsNone(form.validatePlain([*run, OTHER], 100))

    def test_validate(self) -> None:
        """One set is validated without its cut last entry; an invalid one is refused."""
        form = Kafka07Format()
        self.assertEqual(
            form.validate(HELLO + OTHER + b"\x00", CheckLimits()),
            ValidatedBatches((HELLO + OTHER,), 29, 2, 29),
        )
        self.assertEqual(form.validate(b"\x00", CheckLimits()), ValidatedBatches((), 0, 0, 0))
        self.assertRaises(InvalidChecksumError, form.validate, HELLO[:-1] + b"0", CheckLimits())

    def test_stamp(self) -> None:
        """Sets are written as they came."""
        batches = Kafka07Format().validate(HELLO, CheckLimits())
        self.assertIs(Kafka07Format().stamp(batches, 5, 6, 7), batches.buffers)

    def test_offsetsAreBytes(self) -> None:
        """
        An offset's position is a subtraction, the next offset an addition: also beyond 32 bits.
        """
        for base, offset, position in ((1000, 1015, 15), (2**40, 2**40, 0)):
            index = Kafka07Format().openIndex(PowerCutFileSystem(), "/0.kafka", base, 100, True)
            self.assertEqual(index.positionOf(offset), position)
            file: Any = None  # a subtraction reads no file
            self.assertEqual(index.search(file, offset), position)
            self.assertEqual(index.findEnd(100), base + 100)
            self.assertEqual(Kafka07Format().contiguousEnd(base, 100), base + 100)
        self.assertEqual(Kafka07Format().nextOffset(2**40, [HELLO]), 2**40 + 15)

    def test_noTimes(self) -> None:
        """Nothing has a timestamp, so nothing is found by time."""
        index: ISegmentIndex = Kafka07Format().openIndex(
            PowerCutFileSystem(), "/0.kafka", 0, 0, False
        )
        file: Any = None  # is not read
        index.add(Kafka07Format().validate(HELLO, CheckLimits()), 0, 0, 7)
        index.truncate(0, 0)
        self.assertEqual((index.largestTimestampMs, index.positionOf(5)), (-1, 5))
        self.assertIsNone(index.searchTime(file, 0, 0))
        self.assertIsNone(index.searchLargestTime(file))


class ScanTests(SynchronousTestCase):
    """A walk over a segment (spec-0.7 log-storage §8, gotcha 3 mended)."""

    def stops(self, tail: bytes, reason: str) -> None:
        """The walk keeps what is before C{tail}, by steps and in one go, and says why."""
        for before in (b"", HELLO, HELLO + OTHER):
            data = before + tail
            scans = scanOf(data), scanOf(data)
            self.assertEqual(sum(entry.size for entry in scans[0]), len(before))
            self.assertEqual(scans[1].skipToEnd(), len(before))
            for scan in scans:
                self.assertEqual(scan.position, len(before))
                self.assertIn(reason, str(scan.reason))

    def test_entries(self) -> None:
        """
        Each entry comes with position, size, offset and next offset; positions count from the
        file's start, offsets from the segment's.
        """
        scan = scanOf(HELLO + OTHER, 5000)
        self.assertEqual(
            list(scan), [ScannedEntry(0, 15, 5000, 5015), ScannedEntry(15, 14, 5015, 5029)]
        )
        self.assertEqual((scan.position, scan.reason), (29, None))

    def test_startInTheMiddle(self) -> None:
        """A walk can begin at any entry."""
        self.assertEqual(list(scanOf(HELLO + OTHER, 5000, 15)), [ScannedEntry(15, 14, 5015, 5029)])

    def test_endInTheMiddle(self) -> None:
        """A walk goes no further than it was told; an entry over that end is not whole."""
        scan = scanOf(HELLO + OTHER, end=15)
        self.assertEqual((scan.skipToEnd(), scan.reason), (15, None))
        self.assertIn("size field is 10", str(self.stopped(scanOf(HELLO + OTHER, end=28)).reason))

    def stopped(self, scan: SegmentScan) -> SegmentScan:
        self.assertEqual(scan.skipToEnd(), 15)
        return scan

    def test_nothing(self) -> None:
        """A walk over no bytes has come to its end, exactly."""
        for start in (0, 15):
            scan = scanOf(HELLO, start=start, end=start)
            self.assertEqual((list(scan), scan.skipToEnd(), scan.reason), ([], start, None))

    def test_wrappersAreNotOpened(self) -> None:
        """
        A wrapper is one entry, and is kept when its own checksum is right, whatever is inside.
        """
        data = (
            encodeSet([b"a", b"b"], GZIP)
            + encodeMessage(b"no snappy", codec=SNAPPY)
            + encodeMessage(b"no codec", codec=3)
        )
        self.assertEqual(len(list(scanOf(data))), 3)

    def test_cutSizeField(self) -> None:
        """Fewer than four bytes end it."""
        for size in range(1, 4):
            self.stops(bytes(size), "less than a size field")

    def test_smallSizes(self) -> None:
        """A size under 5, zero and negative ones among them, ends it."""
        for size in (4, 1, 0, -1, -(2**31)):
            self.stops(struct.pack(">i", size) + bytes(20), f"size field is {size}")

    def test_beyondTheFile(self) -> None:
        """An entry that goes beyond the file ends it, and is not read."""
        for size in (22, 2**31 - 1):
            self.stops(
                struct.pack(">i", size) + bytes(21), f"size field is {size} and 21 bytes follow"
            )

    def test_checksum(self) -> None:
        """A wrong checksum ends it, in both magics."""
        self.stops(HELLO[:-1] + b"0", "checksum")
        self.stops(OTHER[:-1] + b"0", "checksum")
        self.stops(HELLO[:-1] + b"0" + HELLO, "checksum")

    def test_unknownMagic(self) -> None:
        """
        An unknown magic byte ends it, and does not throw, as 0.7.2's recovery does (gotcha 3).
        """
        self.stops(HELLO[:4] + b"\x02" + HELLO[5:], "magic byte is 2")

    def test_shortMagic1(self) -> None:
        """An entry of 5 bytes with magic 1 ends it, and does not throw (gotcha 3)."""
        self.stops(bytes.fromhex("000000050100000000"), "less than the header of magic 1")

    def test_shortMagic0(self) -> None:
        """An entry of 5 bytes with magic 0 is an empty message, and is kept."""
        self.assertEqual(scanOf(bytes.fromhex("000000050000000000")).skipToEnd(), 9)

    def test_trailingZeros(self) -> None:
        """
        0, 2, 4, 5 and 6 trailing zero bytes are no entries
        (FileMessageSetTest.testIterationOverPartialAndTruncation).
        """
        for count in (2, 4, 5, 6):
            self.stops(bytes(count), "")
        scan = scanOf(HELLO + OTHER)
        self.assertEqual((scan.skipToEnd(), scan.reason), (29, None))

    def test_fileBecameShorter(self) -> None:
        """
        A file that is shorter than it was ends the walk at its last whole entry, wherever it was
        cut.
        """
        data = HELLO + OTHER + HELLO
        for size in range(len(data)):
            kept = sum(seen.end - seen.start for seen in judge.recoverable(data[:size]))
            scans = scanOf(data[:size], end=len(data)), scanOf(data[:size], end=len(data))
            self.assertEqual(sum(entry.size for entry in scans[0]), kept)
            self.assertEqual(scans[1].skipToEnd(), kept)
            for scan in scans:
                self.assertEqual(scan.reason, "the file is shorter than it was")

    def test_stepsThenOneGo(self) -> None:
        """A walk that was begun by steps can be ended in one go; the place is remembered."""
        scan = scanOf(HELLO * 5)
        entries = iter(scan)
        self.assertEqual([next(entries).position, next(entries).position], [0, 15])
        self.assertEqual(scan.position, 30)
        self.assertEqual(scan.skipToEnd(), 75)
        self.assertEqual(list(entries), [])

    def test_positionGrows(self) -> None:
        """The position is behind the entry that was just given: as much as is known to be good."""
        scan = scanOf(HELLO * 3)
        self.assertEqual(
            [(entry.position + entry.size, scan.position) for entry in scan],
            [(15, 15), (30, 30), (45, 45)],
        )

    def test_readFromAnEntryIsTheTail(self) -> None:
        """
        What is read from the end of the first entry on is the rest of the messages
        (FileMessageSetTest.testRead).
        """
        data = encodeSet([b"one", b"two", b"three"])
        first = next(iter(scanOf(data)))
        self.assertEqual(
            [
                payload
                for payload, _ in MessageSet(data[first.nextOffset :], first.nextOffset).payloads()
            ],
            [b"two", b"three"],
        )

    def test_segmentOf072(self) -> None:
        """The segment that 0.7.2 wrote is good to its end."""
        data = golden.segment()
        self.assertEqual(scanOf(data).skipToEnd(), len(data))
        self.assertEqual(len(list(scanOf(data))), len(judge.recoverable(data)))


class WindowTests(SynchronousTestCase):
    """How much is read, and how often."""

    def test_windows(self) -> None:
        """
        A segment is read in windows of 1 MiB, the entry that is cut by one again in the next; never
        beyond the end.
        """
        data = encodeSet([bytes(1000)] * 3000)
        for walk in (lambda scan: sum(1 for _ in scan), SegmentScan.skipToEnd):
            file = ReadFile(data)
            scan = Kafka07Format().scan(file, 0, 0, len(data))
            walk(scan)
            self.assertEqual(scan.position, len(data))
            self.assertLess(len(file.reads), 6)
            self.assertLess(sum(size for _, size in file.reads), len(data) + 6 * 1010)
            self.assertTrue(
                all(
                    size <= SCAN_WINDOW_SIZE and position + size <= len(data)
                    for position, size in file.reads
                )
            )

    def test_largeEntry(self) -> None:
        """
        An entry larger than a window is read in pieces of a window, once more than its beginning.
        """
        for magic in (0, 1):
            data = HELLO + encodeMessage(bytes(3 * SCAN_WINDOW_SIZE), magic) + HELLO
            file = ReadFile(data)
            self.assertEqual(Kafka07Format().scan(file, 0, 0, len(data)).skipToEnd(), len(data))
            self.assertEqual(
                [size for _, size in file.reads],
                [SCAN_WINDOW_SIZE, 10, *[SCAN_WINDOW_SIZE] * 3, len(HELLO)],
            )

    def test_largeEntryBad(self) -> None:
        """
        A large entry with another checksum or magic, or whose file has become shorter, ends the
        walk, and the reason says which.
        """
        large = encodeMessage(bytes(2 * SCAN_WINDOW_SIZE))
        for data, reason in (
            (large[:-1] + b"x", "checksum"),
            (large[:4] + b"\x02" + large[5:], "magic byte is 2"),
            (large[:-1], "the file is shorter"),
        ):
            file = ReadFile(HELLO + data)
            scan = Kafka07Format().scan(file, 0, 0, len(HELLO + large))
            self.assertEqual(scan.skipToEnd(), len(HELLO))
            self.assertIn(reason, str(scan.reason))

    def test_announcedSizesAllocateNothing(self) -> None:
        """
        A size field of up to 2 GiB in a small file allocates no more than the file's bytes, and a
        little.
        """
        data = HELLO + struct.pack(">i", 2**31 - 1) + bytes(100)
        tracemalloc.start()
        try:
            self.assertEqual(scanOf(data, end=2**40).skipToEnd(), 15)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 1 << 16)

    @given(
        st.lists(
            st.tuples(
                st.binary(max_size=30), st.sampled_from((NONE, GZIP)), st.sampled_from((0, 1))
            ),
            max_size=6,
        ),
        st.integers(0, 2**32),
        st.sampled_from(SCAN_WINDOW_SIZES),
    )
    def test_anyWindow(
        self, messages: list[tuple[bytes, int, int]], seed: int, windowSize: int
    ) -> None:
        """
        Whatever the size of the window, good and mutated segments are walked as an independent
        reading of recovery walks them.
        """
        data = b"".join(encodeSet([payload], codec, magic) for payload, codec, magic in messages)
        head = bytes((SCAN_WINDOW_SIZES.index(windowSize),))
        mutator = Mutator(seed, [data])
        for _ in range(3):
            promises.scan(head + data)
            data = mutator.garble(data)
        self.assertEqual(scanwindow.SCAN_WINDOW_SIZE, SCAN_WINDOW_SIZE)
