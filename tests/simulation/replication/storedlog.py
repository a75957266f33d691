"""
A replica's log as a broker has it: a C{BatchLog} on files that forget what was not synced.

What was appended is kept in memory, too, for the checkers. Whenever the log is opened, or
truncated, its files are read, and must have these records, byte for byte, up to their end.
"""

from __future__ import annotations

from contextlib import closing
from random import Random

from pylogbroker.records.recordbatch import iterateRecords, readHeader, stampBatch
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.epochs import LeaderEpochs
from tests.simulation.replication.modellog import ModelLog, ModelRecord
from tests.simulation.replication.world import ReplicationWorld
from tests.storage.batches import BatchSite, batch, scan, validated
from tests.storage.driving import START_MS, clean, close, flush, roll, run

SEGMENT_SIZE_MAX = 700


class StoredLog(ModelLog):
    """A log directory with one partition."""

    def wipe(self) -> None:
        self.site = BatchSite(
            segmentSizeMax=SEGMENT_SIZE_MAX, indexInterval=100, isReadWhenFlushed=False
        )
        self.log: BatchLog = self.site.make()
        self.records = []
        self.logStartOffset = self.checkpoint = 0
        self.brokerEpoch = -1
        self.isStoppedCleanly = False

    @property
    def epochs(self) -> LeaderEpochs:
        return self.log.epochs

    @property
    def logEndOffset(self) -> int:
        return self.log.logEndOffset

    @property
    def flushedOffset(self) -> int:
        return self.log.flushedOffset

    def assignEpoch(self, epoch: int) -> None:
        self.log.assignEpoch(epoch)

    def followEpoch(self, epoch: int) -> None:
        self.log.followEpoch(epoch)

    # -- what changes it

    def lead(self, record: ModelRecord) -> None:
        sent = batch(b"%d:%d" % (record.producerId, record.sequence))
        found = validated(sent)
        if self.log.rollDue(START_MS, found):
            roll(self.log)
        offset = self.log.append(found, START_MS).baseOffset
        self.log.write()
        stamped = stampBatch(sent, readHeader(sent), offset, record.epoch, START_MS)
        self.records.append(record._replace(data=bytes(stamped)))

    def append(self, records: list[ModelRecord]) -> None:
        found = validated(b"".join(each.data for each in records))
        done = 0
        while done < len(found.headers):
            done = self.log.appendAsFollower(found, done, START_MS)
            if done < len(found.headers):
                roll(self.log)
        self.log.write()
        self.records += records

    def flush(self) -> None:
        flush(self.log)

    def truncate(self, offset: int) -> None:
        self._truncate(offset, isAnew=False)
        del self.records[max(offset - self.logStartOffset, 0) :]
        self.logStartOffset = min(self.logStartOffset, offset)
        self._check()

    def startOver(self, offset: int) -> None:
        self._truncate(offset, isAnew=True)
        self.records.clear()
        self.logStartOffset = offset
        self._check()

    def _truncate(self, offset: int, isAnew: bool) -> None:
        job = self.log.beginTruncate(offset, isAnew)
        if job is not None:
            self.log.finishTruncate(job, run(job))
            self._writeCheckpoints()

    def _writeCheckpoints(self) -> None:
        job = self.site.directory.beginCheckpoint()
        if job is not None:
            self.site.directory.finishCheckpoint(job, run(job))

    def deleteBefore(self, offset: int) -> None:
        offset = min(offset, self.log.highWatermark)
        if self.log.deleteRecords(offset):
            del self.records[: offset - self.logStartOffset]
            self.logStartOffset = offset
            self._writeCheckpoints()
            clean(self.log, START_MS)

    # -- what happens to it

    def cutPower(self, random: Random) -> int:
        before = self.log.logEndOffset
        flushed = self.records[: self.flushedOffset - self.logStartOffset]
        self.site.double.cutPower(random if random.random() < 0.7 else None)
        self._open()
        if self.records[: len(flushed)] != flushed:
            raise AssertionError(f"of {len(flushed)} flushed records {self.records} are left")
        return abs(before - self.log.logEndOffset)

    def kill(self) -> None:
        self.site.kill()
        self._open()

    def stop(self) -> None:
        close(self.log)
        self.site.close()
        self.isStoppedCleanly = True
        self._open()

    def restart(self) -> None:
        """It was opened when the process before ended."""

    def _open(self) -> None:
        known = self.records
        self.log = self.site.reopen()
        self.logStartOffset = self.log.logStartOffset
        self.records = self._stored()
        if self.records != known[: len(self.records)]:
            raise AssertionError(f"{self.records} were read, {known} were written")

    def _check(self) -> None:
        if self._stored() != self.records:
            raise AssertionError(f"{self._stored()} were read, {self.records} were written")

    def _stored(self) -> list[ModelRecord]:
        """What the files have."""
        found: list[ModelRecord] = []
        for segment in self.log.segments:
            with closing(self.site.files.open(segment.path, write=False)) as file:
                data = file.readAt(0, segment.writtenSize)
            for entry in scan(data):
                header = entry.header
                assert header is not None
                if entry.offset >= self.logStartOffset:
                    (record,) = iterateRecords(data, entry.position, header)
                    assert record.value is not None
                    producerId, sequence = map(int, record.value.split(b":"))
                    whole = data[entry.position : entry.position + entry.size]
                    found.append(ModelRecord(header.leaderEpoch, producerId, sequence, whole))
        return found


class StoredWorld(ReplicationWorld):
    """The simulation with logs on files."""

    makeLog = StoredLog
