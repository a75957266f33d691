"""The records of a coordinator in its topic."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators import coordinatorlog
from pylogbroker.broker.kafka.coordinators.coordinatorlog import (
    Appender,
    Loaded,
    LoadedEnd,
    LoadedRecord,
    Loader,
    encodeMarker,
    encodeRecords,
)
from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.coordinator.effects import Record, TransactionalProducer
from pylogbroker.errors import FormatError, StorageError
from pylogbroker.interfaces import CheckLimits, EndMarker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records import recordbatch
from pylogbroker.records.kafkaformat import LOG_RULES, KafkaFormat
from tests.broker.kafka.groupcase import GroupCase

TIMEOUT_MS = 5_000


class CoordinatorLogCase(GroupCase):
    """A partition of a topic."""

    def setUp(self) -> None:
        super().setUp()
        self.partition = self.lead.partition("t")
        self.outcomes: list[Any] = []
        self.appender = Appender(
            self.partition,
            self.lead.logManager.nowMs,
            lambda: self.outcomes.append("failed"),
            self.lead.service.kafka.purgatory,
            TIMEOUT_MS,
        )

    def append(self, *records: Record) -> None:
        number = len(self.outcomes)
        self.outcomes.append(None)

        def done(error: ErrorCode) -> None:
            self.outcomes[number] = error

        self.appender.append(records, done)

    def put(self, data: bytes) -> None:
        """Append what a coordinator does not write."""
        batches = KafkaFormat(LOG_RULES).validate(data, CheckLimits())
        self.assertIsNotNone(self.partition.append(batches, self.lead.logManager.nowMs()))

    def load(self) -> list[Loaded]:
        """All records, and the ends of transactions."""
        loader = Loader(self.partition, self.lead.readWorker)
        found: list[Loaded] = []
        while True:
            loading = nextRecords(loader)
            self.lead.settle()
            records = self.successResultOf(loading)
            if records is None:
                return found
            found += records


def nextRecords(loader: Loader) -> Any:
    """The next records."""
    return Deferred.fromCoroutine(loader.nextRecords())


class AppendTests(CoordinatorLogCase):
    """L{Appender}."""

    def test_batches(self) -> None:
        """Records are one batch, or as many as the topic's limit asks for."""
        records = [(b"%d" % index, bytes(100)) for index in range(10)]
        one = encodeRecords(records, 5, 1 << 20)
        self.assertEqual((len(one.buffers), one.messageCount, one.timestampMaxMs), (1, 10, 5))
        several = encodeRecords(records, 5, 500)
        self.assertEqual([each.recordCount for each in several.headers], [3, 3, 3, 1])
        self.assertTrue(all(len(each) <= 500 for each in several.buffers))
        self.assertEqual(several.size, sum(map(len, several.buffers)))

    def test_read(self) -> None:
        """What was appended is read."""
        self.append((b"a", b"1"), (b"b", None))
        self.append((b"a", b"2"))
        self.lead.settle()
        self.assertEqual(self.outcomes, [ErrorCode.NONE] * 2)
        self.assertEqual(
            self.load(),
            [LoadedRecord(b"a", b"1"), LoadedRecord(b"b", None), LoadedRecord(b"a", b"2")],
        )

    def test_tooLarge(self) -> None:
        """A record that no batch can hold is refused; the others are not hurt."""
        self.append((b"a", bytes(2 << 20)))
        self.append((b"a", b"1"))
        self.lead.settle()
        self.assertEqual(self.outcomes, [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE])
        with self.assertRaises(KafkaError):
            encodeRecords([(b"a", bytes(400))], 5, 400)

    def test_queueFull(self) -> None:
        """Beyond a limit of bytes, what waits is refused, in its turn."""
        self.patch(coordinatorlog, "QUEUED_SIZE_MAX", 100)
        self.append((b"a", b"1"))
        self.lead.settle()
        self.lead.logManager.roll(self.partition)
        for index in range(3):
            self.append((b"%d" % index, bytes(20)))
        self.assertEqual(self.outcomes, [ErrorCode.NONE, None, None, None])
        self.lead.settle()
        refused = [ErrorCode.REQUEST_TIMED_OUT] * 2
        self.assertEqual(self.outcomes, [ErrorCode.NONE, ErrorCode.NONE, *refused])
        self.append((b"9", bytes(20)))
        self.lead.settle()
        self.assertEqual(self.outcomes[4], ErrorCode.NONE)

    def test_lateInTheLog(self) -> None:
        """
        An append that is not acknowledged in time fails, once; its records may be there all the
        same, and later ones are appended behind them.
        """
        self.append((b"a", b"1"))
        self.append((b"b", b"1"))
        self.lead.reactor.advance(TIMEOUT_MS / 1000 - 1)
        self.append((b"a", b"2"))
        self.lead.reactor.advance(1.1)
        self.assertEqual(self.outcomes, [ErrorCode.REQUEST_TIMED_OUT] * 2 + [None])
        self.lead.settle()
        self.assertEqual(self.outcomes, [ErrorCode.REQUEST_TIMED_OUT] * 2 + [ErrorCode.NONE])
        values = [each.value for each in self.load() if isinstance(each, LoadedRecord)]
        self.assertEqual(values, [b"1", b"1", b"2"])

    def test_lateBeforeItsTurn(self) -> None:
        """What waits for its turn longer than that is not appended; ends of transactions wait."""
        self.append((b"a", b"1"))
        self.lead.settle()
        self.lead.logManager.roll(self.partition)
        self.append((b"a", b"2"))
        marker = encodeMarker(
            TransactionalProducer(5, 0), EndMarker(True, 0), self.lead.logManager.nowMs()
        )
        self.appender.appendBatches(marker, self.outcomes.append)
        self.lead.reactor.advance(TIMEOUT_MS / 1000 + 0.1)
        self.assertEqual(self.outcomes, [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT])
        self.lead.settle()
        self.assertEqual(self.outcomes[2:], [None])
        self.append((b"a", b"3"))
        self.lead.settle()
        self.assertEqual(self.outcomes[3:], [ErrorCode.NONE])
        values = [each.value for each in self.load() if isinstance(each, LoadedRecord)]
        self.assertEqual(values, [b"1", b"3"])
        self.assertEqual(len(self.lead.service.kafka.purgatory), 0)

    def test_closed(self) -> None:
        """What waits when the broker ceases to lead is not appended, nor is anything later."""
        self.append((b"a", b"1"))
        self.lead.settle()
        self.lead.logManager.roll(self.partition)
        self.append((b"a", b"2"))
        self.assertEqual(self.outcomes, [ErrorCode.NONE, None])
        self.appender.close()
        self.append((b"a", b"3"))
        self.lead.settle()
        refused = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        self.assertEqual(self.outcomes, [ErrorCode.NONE, *refused])
        self.assertEqual(self.partition.log.logEndOffset, 1)


class LoadTests(CoordinatorLogCase):
    """L{Loader}."""

    def test_transactions(self) -> None:
        """Records of a transaction come with its producer, and its end where it is in the log."""

        nowMs = self.lead.logManager.nowMs()

        def transactional(producer: int, sequence: int, *records: Record) -> bytes:
            found = [recordbatch.Record(at, nowMs, *each) for at, each in enumerate(records)]
            return recordbatch.encodeBatch(
                found,
                producerId=producer,
                producerEpoch=0,
                baseSequence=sequence,
                isTransactional=True,
            )

        self.put(transactional(1, 0, (b"a", b"1"), (b"b", b"1")))
        self.put(transactional(2, 0, (b"c", b"1")))
        self.append((b"d", b"1"))
        self.put(transactional(1, 2, (b"a", b"2")))
        self.put(recordbatch.controlBatch(True, 1, 0, 0, nowMs))
        self.put(recordbatch.controlBatch(False, 2, 0, 0, nowMs))
        self.put(transactional(3, 0, (b"e", b"1")))
        self.lead.settle()
        self.assertEqual(
            self.load(),
            [
                LoadedRecord(b"a", b"1", 1),
                LoadedRecord(b"b", b"1", 1),
                LoadedRecord(b"c", b"1", 2),
                LoadedRecord(b"d", b"1"),
                LoadedRecord(b"a", b"2", 1),
                LoadedEnd(1, True),
                LoadedEnd(2, False),
                LoadedRecord(b"e", b"1", 3),
            ],
        )

    def test_inTransaction(self) -> None:
        """What a coordinator appends in a transaction is one batch; its sequence means nothing."""
        producer = TransactionalProducer(5, 2)
        for number in range(2):
            self.appender.append([(b"a", b"%d" % number)], self.outcomes.append, producer)
        marker = encodeMarker(producer, EndMarker(True, 0), self.lead.logManager.nowMs())
        self.appender.appendBatches(marker, self.outcomes.append)
        late = TransactionalProducer(5, 1)
        self.appender.append([(b"a", b"2")], self.outcomes.append, late)
        self.lead.settle()
        refused = ErrorCode.INVALID_PRODUCER_EPOCH
        self.assertEqual(self.outcomes, [refused, ErrorCode.NONE, ErrorCode.NONE, None])
        self.assertEqual(
            self.load(),
            [LoadedRecord(b"a", b"0", 5), LoadedRecord(b"a", b"1", 5), LoadedEnd(5, True)],
        )
        with self.assertRaises(KafkaError):
            encodeRecords([(b"a", bytes(200)), (b"b", bytes(200))], 5, 400, producer)

    def test_withoutKey(self) -> None:
        """A record without a key, which somebody may have produced, is left out."""
        self.put(recordbatch.encodeBatch([recordbatch.Record(0, -1, None, b"x")]))
        self.append((b"a", b"1"))
        self.lead.settle()
        self.assertEqual(self.load(), [LoadedRecord(b"a", b"1")])

    def test_unflushed(self) -> None:
        """What is not flushed when reading begins is waited for."""
        self.append((b"a", b"1"))
        loading = nextRecords(Loader(self.partition, self.lead.readWorker))
        self.lead.turn()
        self.assertNoResult(loading)
        self.lead.settle()
        self.assertEqual(self.successResultOf(loading), [LoadedRecord(b"a", b"1")])

    def test_largeBatch(self) -> None:
        """A batch is read whole, though it is larger than a piece."""
        self.append((b"a", bytes(500_000)), (b"b", b"1"))
        self.append((b"c", b"1"))
        self.lead.settle()
        self.assertEqual(
            [each.key for each in self.load() if isinstance(each, LoadedRecord)], [b"a", b"b", b"c"]
        )

    def test_failed(self) -> None:
        """A partition that fails meanwhile, or a file that is cut, is an error."""
        self.append((b"a", b"1"))
        loading = nextRecords(Loader(self.partition, self.lead.readWorker))
        self.lead.turn()
        self.lead.fileSystem.fail("fsync", ".log", 5)
        self.lead.settle()
        self.failureResultOf(loading, StorageError)

    def test_cut(self) -> None:
        """A file that is shorter than it was is an error."""
        self.append((b"a", b"1"))
        self.lead.settle()
        self.lead.fileSystem.open(self.partition.log.segments[0].path).truncate(65)
        loading = nextRecords(Loader(self.partition, self.lead.readWorker))
        self.lead.settle()
        self.failureResultOf(loading, FormatError)

    def test_coldFile(self) -> None:
        """A file that is not open is opened on the worker."""
        self.append((b"a", b"1"))
        self.lead.settle()
        self.lead.logManager.roll(self.partition)
        self.lead.settle()
        self.lead.directory.cache.closeIdle()
        self.assertEqual(self.load(), [LoadedRecord(b"a", b"1")])
