"""
What a partition knows of its producers.
"""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    CoordinatorFencedError,
    CorruptLogError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from pylogbroker.interfaces import BatchHeader, EndMarker
from pylogbroker.storage.kafka import producerstate
from pylogbroker.storage.kafka.producerstate import (
    SEQUENCE_MASK,
    CompletedTransaction,
    ProducedBatch,
    ProducerStateManager,
    decodeSnapshot,
    encodeSnapshot,
    loadLatestSnapshot,
    parseSnapshotName,
    snapshotPath,
)
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.types import LogPosition
from tests.storage.batches import header

DAY_MS = 86_400_000
COMMIT = EndMarker(True, 0)
ABORT = EndMarker(False, 0)


class ProducerCase(SynchronousTestCase):
    """A partition's producers, and its log end."""

    def setUp(self) -> None:
        self.state = ProducerStateManager("t-0", DAY_MS)
        self.end = 0

    def send(self, found: BatchHeader) -> ProducedBatch | None:
        """What a log does with a client's batch."""
        duplicate = self.state.check(found)
        if duplicate is None:
            self.state.append(found, self.end, found.maxTimestampMs, None, self.place())
            self.end += found.lastOffsetDelta + 1
        return duplicate

    def place(self) -> LogPosition:
        return LogPosition(self.end, 0, 100 * self.end)

    def mark(
        self, marker: EndMarker, producerId: int = 1, epoch: int = 0
    ) -> CompletedTransaction | None:
        """What a log does with a coordinator's marker."""
        found = header(producerId, epoch, isTransactional=True, isControl=True)
        self.state.checkMarker(found, marker)
        self.end += 1
        return self.state.append(found, self.end - 1, 0, marker, self.place())

    def refuse(self, error: type[Exception], found: BatchHeader) -> None:
        before = encodeSnapshot(self.state.producers.values())
        self.assertRaises(error, self.send, found)
        self.assertEqual(encodeSnapshot(self.state.producers.values()), before)


class SequenceTests(ProducerCase):
    """Idempotent producers."""

    def test_inOrder(self) -> None:
        """Each batch follows the last one; any number of records."""
        for sequence, count in ((0, 3), (3, 1), (4, 5)):
            self.assertIsNone(self.send(header(1, 0, sequence, count)))
        self.assertEqual((self.end, self.state.producers[1].lastSequence), (9, 8))

    def test_gap(self) -> None:
        """A batch that leaves a gap, or comes from the past, is refused, and changes nothing."""
        self.send(header(1, 0, 0, 3))
        for sequence in (0, 1, 2, 4):
            self.refuse(OutOfOrderSequenceError, header(1, 0, sequence, 2))

    def test_duplicates(self) -> None:
        """Each of the last five batches that comes again gets its first offsets, an older none."""
        for number in range(6):
            self.send(header(1, 0, 2 * number, 2, timestampMs=number))
        for number in range(1, 6):
            found = self.send(header(1, 0, 2 * number, 2))
            assert found is not None
            self.assertEqual((found.firstOffset, found.lastOffset), (2 * number, 2 * number + 1))
            self.assertEqual(found.timestampMs, number)
        self.refuse(OutOfOrderSequenceError, header(1, 0, 0, 2))
        self.refuse(OutOfOrderSequenceError, header(1, 0, 10, 1))
        self.assertEqual(self.end, 12)

    def test_unknownProducer(self) -> None:
        """A producer that the partition does not know may begin anywhere."""
        self.assertIsNone(self.send(header(1, 3, 77, 1)))
        self.refuse(OutOfOrderSequenceError, header(1, 3, 79, 1))
        self.assertIsNone(self.send(header(1, 3, 78, 1)))

    def test_begin(self) -> None:
        """One that begins each transaction at 0 may begin so only, where nothing is known of it."""
        self.state.checkBegin(9, 0)
        self.assertRaises(OutOfOrderSequenceError, self.state.checkBegin, 9, 1)
        self.send(header(9, 0, 0, 1))
        self.state.checkBegin(9, 1)  # what follows is told by its batches

    def test_together(self) -> None:
        """Batches of a producer may come together if they follow it and one another."""
        self.send(header(1, 0, 0, 3))
        nothing = header(-1, -1, -1, 2)
        next1, next2 = header(1, 0, 3, 2), header(1, 0, 5, 1)
        for found, expected in (
            ([nothing, nothing], True),
            ([next1, next2, header(1, 0, 6, 9)], True),
            ([header(2, 7, SEQUENCE_MASK - 1, 2), header(2, 7, 0, 1)], True),
            ([header(1, 1, 0, 1), header(1, 1, 1, 1)], True),
            ([next2, header(1, 0, 6, 9)], False),
            ([next1, header(1, 0, 6, 9)], False),
            ([next1, next1], False),
            ([next1, header(1, 1, 5, 1)], False),
            ([next1, header(2, 0, 5, 1)], False),
            ([next1, nothing], False),
            ([nothing, next1], False),
            ([header(1, 0, 0, 3), next1], False),
            ([header(3, 0, 0, 1, isTransactional=True), header(3, 0, 1, 1)], False),
            ([header(3, 0, 0, 1), header(3, 0, 1, 1, isTransactional=True)], False),
        ):
            self.assertEqual(self.state.areNext(found), expected, found)
        self.send(header(4, 5, 0, 1))
        self.assertFalse(self.state.areNext([header(4, 4, 1, 1), header(4, 4, 2, 1)]))

    def test_wrap(self) -> None:
        """Behind sequence 2^31-1 comes 0, also inside a batch, and duplicates are still known."""
        self.send(header(1, 0, SEQUENCE_MASK - 1, 2))
        self.assertIsNone(self.send(header(1, 0, 0, 1)))
        self.send(header(2, 0, SEQUENCE_MASK - 1, 5))
        self.assertEqual(self.state.producers[2].lastSequence, 2)
        found = self.send(header(2, 0, SEQUENCE_MASK - 1, 5))
        assert found is not None
        self.assertEqual(found.firstOffset, 3)
        self.assertIsNone(self.send(header(2, 0, 3, 1)))

    def test_epochs(self) -> None:
        """A new epoch begins at sequence 0; then the old one is refused, even with a duplicate."""
        self.send(header(1, 0, 0, 2))
        self.refuse(OutOfOrderSequenceError, header(1, 1, 2, 1))
        self.assertIsNone(self.send(header(1, 1, 0, 1)))
        self.refuse(InvalidProducerEpochError, header(1, 0, 0, 2))
        self.refuse(InvalidProducerEpochError, header(1, 0, 2, 1))
        self.refuse(OutOfOrderSequenceError, header(1, 1, 5, 1))

    def test_withoutProducer(self) -> None:
        """Batches without a producer leave no trace."""
        self.assertIsNone(self.send(header()))
        self.assertEqual(self.state.producers, {})

    @given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=40))
    def test_resentBatches(self, sent: list[tuple[int, int]]) -> None:
        """Whatever is sent again, up to five batches back: the log has each record once."""
        self.setUp()
        log: list[int] = []
        batches: list[tuple[int, int]] = []
        for count, back in sent:
            sequence = sum(count for _, count in batches)
            isNew = back > min(5, len(batches)) or back == 0
            first, size = (sequence, count) if isNew else batches[-back]
            if self.send(header(1, 0, first, size)) is None:
                log += range(first, first + size)
            if isNew:
                batches.append((first, size))
        self.assertEqual(log, list(range(len(log))))


class ForgetTests(ProducerCase):
    """Producers that were idle too long."""

    def test_expire(self) -> None:
        """An idle producer is forgotten after its time, unless its transaction is ongoing."""
        self.send(header(1, timestampMs=1000))
        self.send(header(2, timestampMs=1001))
        self.send(header(3, timestampMs=0, isTransactional=True))
        self.assertEqual(self.state.expire(1000 + DAY_MS), 1)
        self.assertEqual(sorted(self.state.producers), [2, 3])
        self.assertIsNone(self.send(header(1, 0, 55)))

    def test_limit(self) -> None:
        """Above the limit the tenth that was idle longest is forgotten."""
        self.patch(producerstate, "PRODUCER_COUNT_MAX", 20)
        self.send(header(100, timestampMs=-1, isTransactional=True))
        for producer in range(19):
            self.send(header(producer, timestampMs=1000 - producer))
        self.send(header(50, timestampMs=2000))
        self.assertEqual(sorted(self.state.producers), [*range(17), 50, 100])


class TransactionTests(ProducerCase):
    """Ongoing transactions, their markers, the last stable offset."""

    def test_commit(self) -> None:
        """A transaction is unstable until readers can see its marker."""
        self.send(header())
        self.assertEqual(self.state.firstUnstableOffset, -1)
        self.assertIsNone(self.state.firstUnstablePosition)
        self.send(header(1, 0, 0, 2, isTransactional=True))
        self.send(header(1, 0, 2, 1, isTransactional=True))
        self.assertEqual(self.state.firstUnstableOffset, 1)
        self.assertEqual(self.state.firstUnstablePosition, LogPosition(1, 0, 100))
        self.assertTrue(self.state.hasOngoingTransaction(1, 0))
        self.assertFalse(self.state.hasOngoingTransaction(1, 1))
        self.assertFalse(self.state.hasOngoingTransaction(2, 0))
        self.assertEqual(self.mark(COMMIT), CompletedTransaction(1, 1, 4, False))
        self.assertFalse(self.state.hasOngoingTransaction(1, 0))
        self.assertEqual(self.state.firstUnstableOffset, 1)
        self.assertEqual(self.state.firstUnstablePosition, LogPosition(1, 0, 100))
        self.state.onHighWatermark(4)
        self.assertEqual(self.state.firstUnstableOffset, 1)
        self.state.onHighWatermark(5)
        self.assertEqual(self.state.firstUnstableOffset, -1)
        self.state.onHighWatermark(6)

    def test_severalAtOnce(self) -> None:
        """The oldest undecided one counts, and the entry of an abort says from where on."""
        for producer in (1, 2, 3):
            self.send(header(producer, isTransactional=True))
        completed = self.mark(ABORT, 2)
        assert completed is not None
        self.assertTrue(completed.isAborted)
        self.assertEqual(self.state.aborted(completed), (2, 1, 3, 0))
        self.state.onHighWatermark(4)
        self.mark(COMMIT, 1)
        self.assertEqual(self.state.firstUnstableOffset, 0)
        self.state.onHighWatermark(5)
        self.assertEqual(self.state.firstUnstableOffset, 2)
        completed = self.mark(ABORT, 3)
        assert completed is not None
        self.assertEqual(self.state.aborted(completed), (3, 2, 5, 6))
        self.assertEqual(self.state.firstUnstableOffset, 2)

    def test_outside(self) -> None:
        """While a transaction is ongoing, its producer cannot write outside of it."""
        self.send(header(1, isTransactional=True))
        self.refuse(InvalidTransactionStateError, header(1, 0, 1))
        self.assertIsNone(self.send(header(2)))

    def test_markerWithoutTransaction(self) -> None:
        """A marker without a transaction ends nothing, but fences an older epoch."""
        self.assertIsNone(self.mark(ABORT, 9, 4))
        self.refuse(InvalidProducerEpochError, header(9, 3))
        self.assertIsNone(self.send(header(9, 4, 0)))

    def test_markersAreFenced(self) -> None:
        """Markers of an older epoch, or of an older coordinator, are refused."""
        self.mark(EndMarker(True, 5), 1, 2)
        self.assertRaises(InvalidProducerEpochError, self.mark, COMMIT, 1, 1)
        self.assertRaises(CoordinatorFencedError, self.mark, EndMarker(True, 4), 1, 2)
        self.assertIsNone(self.mark(EndMarker(True, 5), 1, 2))

    def test_epochOfMarker(self) -> None:
        """A marker with a new epoch ends the transaction; the new epoch begins at sequence 0."""
        self.send(header(1, 0, 0, 3, isTransactional=True))
        self.assertIsNotNone(self.mark(ABORT, 1, 1))
        self.refuse(OutOfOrderSequenceError, header(1, 1, 3, isTransactional=True))
        self.assertIsNone(self.send(header(1, 1, 0, isTransactional=True)))

    def test_otherControlBatches(self) -> None:
        """A control batch that ends no transaction leaves no trace."""
        control = header(1, isTransactional=True, isControl=True)
        self.assertIsNone(self.state.append(control, 0, 0))
        self.assertEqual(self.state.producers, {})


class SnapshotTests(ProducerCase):
    """The state in a file."""

    def setUp(self) -> None:
        super().setUp()
        self.files = PowerCutFileSystem()
        self.files.makeDirectories("/p")

    def fill(self) -> None:
        self.send(header(1, 2, 0, 3, timestampMs=50))
        self.send(header(1, 2, 3, 4, timestampMs=60))
        self.send(header(2, 0, 9, 1, timestampMs=70, isTransactional=True))
        self.mark(COMMIT, 3, 7)

    def test_format(self) -> None:
        """Kafka's version 1: 46 bytes for each producer behind version, checksum and count."""
        self.fill()
        data = encodeSnapshot(self.state.producers.values())
        self.assertEqual(
            data.hex(),
            "0001" + data[2:6].hex() + "00000003"
            "0000000000000001" "0002" "00000006" "0000000000000006" "00000003"
            "000000000000003c" "ffffffff" "ffffffffffffffff"
            "0000000000000002" "0000" "00000009" "0000000000000007" "00000000"
            "0000000000000046" "ffffffff" "0000000000000007"
            "0000000000000003" "0007" "ffffffff" "ffffffffffffffff" "00000000"
            "0000000000000000" "00000000" "ffffffffffffffff",
        )  # fmt: skip

    def test_goesOn(self) -> None:
        """A restored partition knows the last batch of each producer, and its transactions."""
        self.fill()
        snapshot = self.state.takeSnapshot(self.end)
        assert snapshot is not None
        snapshot.write(self.files, "/p")
        found = loadLatestSnapshot(self.files, "/p", self.end)
        assert found is not None
        self.state = ProducerStateManager("t-0", DAY_MS)
        self.state.restore(*found, 100)
        self.assertEqual((self.state.endOffset, self.state.snapshotOffset), (self.end, self.end))
        self.assertIsNone(self.state.takeSnapshot(self.end))
        self.assertEqual(self.state.firstUnstableOffset, 7)
        self.assertIsNone(self.state.firstUnstablePosition)
        duplicate = self.send(header(1, 2, 3, 4))
        assert duplicate is not None
        self.assertEqual(duplicate.firstOffset, 3)
        self.refuse(OutOfOrderSequenceError, header(1, 2, 0, 3))
        self.assertIsNone(self.send(header(1, 2, 7, 1)))
        self.refuse(InvalidProducerEpochError, header(3, 6))

    def test_expiredAreLeftOut(self) -> None:
        """Producers that expired while the broker was down are not restored."""
        self.fill()
        entries = decodeSnapshot(encodeSnapshot(self.state.producers.values()))
        self.state.restore(9, entries, 65 + DAY_MS)
        self.assertEqual(sorted(self.state.producers), [2])

    def test_invalid(self) -> None:
        """A cut, flipped or longer file, or one of another version, is no snapshot."""
        self.fill()
        data = encodeSnapshot(self.state.producers.values())
        self.assertEqual(len(decodeSnapshot(data)), 3)
        flipped = bytearray(data)
        flipped[20] ^= 1
        body = data[6:] + b"\0"
        longer = data[:2] + crc32c(body).to_bytes(4, "big") + body
        for bad in (b"", data[:9], data[:-1], bytes(flipped), b"\0\2" + data[2:], longer):
            self.assertRaises(CorruptLogError, decodeSnapshot, bad)

    def test_latestValid(self) -> None:
        """The latest valid snapshot in the log is loaded; later and invalid ones are removed."""
        self.assertIsNone(loadLatestSnapshot(self.files, "/p", 100))
        for offset in (3, 5, 8, 11):
            self.state.restore(-1, [], 0)
            snapshot = self.state.takeSnapshot(offset)
            assert snapshot is not None
            snapshot.write(self.files, "/p")
        file = self.files.open(snapshotPath("/p", 8))
        file.writeAt(3, [b"x"])
        file.close()
        self.files.open("/p/readme.txt", create=True).close()
        self.assertEqual(loadLatestSnapshot(self.files, "/p", 10), (5, []))
        names = sorted(self.files.list("/p"))
        self.assertEqual([parseSnapshotName(name) for name in names], [3, 5, None])
