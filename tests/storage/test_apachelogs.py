"""
The log of record batches against Apache Kafka 4.3.1's own classes: a thousand operations and what
came of them there (C{tests/golden/kafka43/BatchLogs.java}), and the directory that they left.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    PylogbrokerError,
)
from pylogbroker.interfaces import EndMarker
from pylogbroker.records.recordbatch import Record, controlBatch, encodeBatch
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.checkpoints import writeOffsets
from pylogbroker.types import TopicPartition
from tests.goldenfiles import GOLDEN
from tests.storage.batches import BatchSite, readRecords, validated
from tests.storage.driving import clean, flush, roll

FOLDER = Path(GOLDEN) / "kafka43" / "batchlog"
NAMES = {
    OutOfOrderSequenceError: "OutOfOrderSequenceException",
    InvalidProducerEpochError: "InvalidProducerEpochException",
    InvalidTransactionStateError: "InvalidTxnStateException",
    CoordinatorFencedError: "TransactionCoordinatorFencedException",
}
OPERATIONS = (FOLDER / "operations.txt").read_text().splitlines()
ANSWERS = (FOLDER / "answers.txt").read_text().splitlines()
START_MS = 1_700_000_000_000
SETTINGS = {
    "segmentSizeMax": 1500,
    "retentionMs": 100_000_000,
    "segmentMs": 50_000_000,
}


class Replay:
    """Does to our log what was done to Apache's."""

    def __init__(self) -> None:
        self.site = BatchSite(**SETTINGS)
        self.site.clock.nowMs = START_MS
        self.log = self.site.make()
        self.number = 0
        self.leaderEpoch = 0

    def perform(self, line: str) -> str:
        """The answer, as the program writes Apache's."""
        name, *words = line.split()
        try:
            return str(getattr(self, name)(*words))
        except PylogbrokerError as error:
            return NAMES[type(error)]

    def _append(self, data: bytes, marker: EndMarker | None = None) -> str:
        found = validated(data)
        if marker is not None:
            found = found._replace(marker=marker)
        if self.log.leaderEpoch != self.leaderEpoch:  # after a restart without its records
            self.log.assignEpoch(self.leaderEpoch)
        if self.log.rollDue(self.site.clock.nowMs, found):
            roll(self.log)
        result = self.log.append(found, self.site.clock.nowMs)
        self.log.write()
        return f"{result.baseOffset} {result.lastOffset}" + (
            " duplicate" if result.isDuplicate else ""
        )

    def _send(
        self, count: str, timestampMs: str, producer: str = "-1", epoch: str = "-1",
        sequence: str = "-1", transactional: bool = False,
    ) -> str:  # fmt: skip
        records = []
        for delta in range(int(count)):
            value = b"v%d" % self.number
            records.append(Record(delta, int(timestampMs) + delta, None, value))
            self.number += 1
        return self._append(
            encodeBatch(
                records,
                producerId=int(producer),
                producerEpoch=int(epoch),
                baseSequence=int(sequence),
                isTransactional=transactional,
            )
        )

    def plain(self, count: str, timestampMs: str) -> str:
        return self._send(count, timestampMs)

    def idempotent(self, pid: str, epoch: str, sequence: str, count: str, ms: str) -> str:
        return self._send(count, ms, pid, epoch, sequence)

    def transactional(self, pid: str, epoch: str, sequence: str, count: str, ms: str) -> str:
        return self._send(count, ms, pid, epoch, sequence, True)

    def _end(self, isCommit: bool, *words: str) -> str:
        pid, epoch, coordinator, timestampMs, version = map(int, words)
        data = controlBatch(isCommit, pid, epoch, coordinator, timestampMs)
        return self._append(data, EndMarker(isCommit, coordinator, version))

    def commit(self, *words: str) -> str:
        return self._end(True, *words)

    def abort(self, *words: str) -> str:
        return self._end(False, *words)

    def roll(self) -> str:
        roll(self.log)
        return "rolled"

    def visible(self) -> int:
        flush(self.log)
        return self.log.lastStableOffset

    def time(self, ms: str) -> str:
        self.site.clock.nowMs = int(ms)
        return "set"

    def retain(self) -> int:
        clean(self.log, self.site.clock.nowMs)
        return self.log.logStartOffset

    def expire(self) -> int:
        self.log.producers.expire(self.site.clock.nowMs)
        return len(self.log.producers.producers)

    def delete(self, offset: str) -> int:
        self.log.deleteRecords(int(offset))
        return self.log.logStartOffset

    def find(self, ms: str) -> str:
        job = self.log.findTime(int(ms))
        job.run()
        if job.found is None:
            return "none"
        return f"{job.found.offset} {job.found.timestampMs} {job.found.leaderEpoch}"

    def epoch(self, epoch: str) -> str:
        self.leaderEpoch = int(epoch)
        self.log.assignEpoch(self.leaderEpoch)
        return "assigned"

    def epochend(self, epoch: str) -> str:
        return "{} {}".format(*self.log.epochs.endOffsetFor(int(epoch), self.log.logEndOffset))

    def reopen(self, how: str) -> str:
        flush(self.log)
        self.site.checkpoint()
        (self.site.close if how == "clean" else self.site.kill)()
        self.log = self.site.reopen()
        return self.state()

    def state(self) -> str:
        return describe(self.log)


def describe(log: BatchLog) -> str:
    """The state of a log, as the program writes Apache's."""
    words: list[object] = [
        log.logStartOffset, log.lastStableOffset, log.highWatermark, log.logEndOffset, "segments",
        *(f"{each.baseOffset}:{each.writtenSize}" for each in log.segments), "epochs",
        *(f"{epoch}:{offset}" for epoch, offset in log.epochs.entries), "producers",
    ]  # fmt: skip
    for producer, entry in sorted(log.producers.producers.items()):
        last = "-"
        if entry.batches:
            last = f"{entry.lastSequence}@{entry.batches[-1].lastOffset}"
        start, coordinator = entry.transactionStart, entry.coordinatorEpoch
        words.append(f"{producer}/{entry.epoch}:{last}:{start}:{coordinator}")
    words.append("aborted")
    for each in log.abortedIn(log.logStartOffset, log.logEndOffset):
        words.append(f"{each[0]}:{each[1]}-{each[2]}<{each[3]}")
    return " ".join(map(str, words))


class ReplayTests(SynchronousTestCase):
    """
    The same operations, the same answers.

    Other operations would show three differences. After a kill we may know more of a producer's
    last batches, since we scan a whole segment; then a repetition is a duplicate here and out of
    order there. If the log start is inside of a batch of an ongoing transaction, Apache's last
    stable offset is the batch's base, below the log start. An empty log has an epoch here.
    """

    def test_answers(self) -> None:
        """Each operation has Apache's answer: offsets, duplicates, refusals, marks, segments."""
        replay = Replay()
        differences = []
        for number, (line, answer) in enumerate(zip(OPERATIONS, ANSWERS, strict=False), 1):
            found = replay.perform(line)
            if found != answer:
                differences.append(f"{number} {line}: {found}, not {answer}")
        self.assertEqual(differences[:5], [])
        self.assertGreater(len(OPERATIONS), 1000)


class DirectoryTests(SynchronousTestCase):
    """The directory that the operations left, opened here."""

    def setUp(self) -> None:
        self.site = BatchSite(**SETTINGS)
        _, recoveryPoint, _, nowMs = ANSWERS[-1].split()
        self.site.clock.nowMs = int(nowMs)
        self.recoveryPoint = int(recoveryPoint)
        self.names = sorted(each.name for each in (FOLDER / "t-0").iterdir())
        for name in self.names:
            self.site.write(f"t-0/{name}", (FOLDER / "t-0" / name).read_bytes())
        place = TopicPartition("t", 0)
        for name, offset in (
            ("recovery-point-offset-checkpoint", recoveryPoint),
            ("log-start-offset-checkpoint", ANSWERS[-2].split()[0]),
        ):
            writeOffsets(self.site.files, self.site.path(name), {place: int(offset)})

    def check(self) -> None:
        """It is what it was at Apache, and can be appended to."""
        log = self.site.reopen()
        self.assertEqual(describe(log), ANSWERS[-2])
        self.assertEqual(str(log.topicId), "f3a1b0c4-1234-4abc-8def-0123456789ab")
        self.assertEqual([each for each in self.site.reports if each.isWarning], [])
        self.assertEqual(readRecords(log), self.records())
        log.append(validated(encodeBatch([Record(0, START_MS, None, b"x")])), START_MS)
        flush(log)
        self.assertEqual(readRecords(log)[-1], (log.logEndOffset - 1, b"x"))

    def records(self) -> list[tuple[int, bytes | None]]:
        """What a replay has from its log start on."""
        replay = Replay()
        for line in OPERATIONS:
            replay.perform(line)
        return readRecords(replay.log)

    def test_stopped(self) -> None:
        """After an orderly stop of Apache's, everything is there, and nothing is recovered."""
        self.site.write(".kafka_cleanshutdown", b'{"version":0,"brokerEpoch":12}')
        self.check()

    def test_killed(self) -> None:
        """
        After a kill, too. Then the last snapshot is missing, and the last indexes have Apache's
        size in advance, filled with zeros.
        """
        last = max(name for name in self.names if name.endswith(".log"))
        for name in self.names:
            path = self.site.path(f"t-0/{name}")
            if name.endswith(".snapshot") and name > last:
                self.site.files.remove(path)
            elif name.startswith(last[:20]) and name.endswith("index"):
                file = self.site.files.open(path)
                file.truncate(100_000)
                file.close()
        self.check()
