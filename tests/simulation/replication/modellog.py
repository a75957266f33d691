"""
A replica's log as the simulation has it: records, of which a power cut takes what was not flushed,
and may bring back what was truncated.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from pylogbroker.storage.kafka.epochs import LeaderEpochs


class ModelRecord(NamedTuple):
    """
    A record.

    @ivar epoch: of the leader that has written it.
    @ivar data: its bytes, in a log that has bytes.
    """

    epoch: int
    producerId: int
    sequence: int
    data: bytes = b""

    def __str__(self) -> str:
        return f"record {self.sequence} of producer {self.producerId}, epoch {self.epoch}"


class ModelLog:
    """
    An C{IReplicaLog}, and the directory that it is in.

    @ivar logStartOffset: of the first record.
    @ivar records: from there on.
    @ivar brokerEpoch: that the directory has kept; -1: it is new.
    @ivar isStoppedCleanly: the last process has flushed all before it ended.
    @ivar checkpoint: the last high watermark on the disk.
    """

    def __init__(self) -> None:
        self._epochs = LeaderEpochs()
        self.wipe()

    def wipe(self) -> None:
        """The disk is empty."""
        self.records: list[ModelRecord] = []
        self.logStartOffset = self._flushedOffset = self.checkpoint = 0
        self.brokerEpoch = -1
        self.isStoppedCleanly = False
        self._disk: tuple[int, list[ModelRecord]] = (0, [])
        self._rebuildEpochs()

    # -- what a replica asks

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epochs

    @property
    def flushedOffset(self) -> int:
        return self._flushedOffset

    @property
    def logEndOffset(self) -> int:
        return self.logStartOffset + len(self.records)

    def assignEpoch(self, epoch: int) -> None:
        self._epochs.assign(epoch, self.logEndOffset)

    def followEpoch(self, epoch: int) -> None:
        """The epoch begins in this log with its first record."""

    # -- what changes it

    def lead(self, record: ModelRecord) -> None:
        """Append a record as the leader."""
        self.append([record])

    def append(self, records: list[ModelRecord]) -> None:
        """Append a leader's records."""
        for record in records:
            self._epochs.append(record.epoch, self.logEndOffset, self.logEndOffset)
            self.records.append(record)

    def flush(self) -> None:
        self._flushedOffset = self.logEndOffset
        self._disk = (self.logStartOffset, self.records.copy())

    def truncate(self, offset: int) -> None:
        """An offset before the log's start is where the log begins, then."""
        if offset < self.logStartOffset:
            self.startOver(offset)
            return
        del self.records[max(offset - self.logStartOffset, 0) :]
        self._flushedOffset = min(self._flushedOffset, self.logEndOffset)
        self._epochs.truncateFromEnd(offset)

    def startOver(self, offset: int) -> None:
        self.records.clear()
        self.logStartOffset = self._flushedOffset = offset
        self._disk = (offset, [])
        self._rebuildEpochs()

    def deleteBefore(self, offset: int) -> None:
        """Retention."""
        del self.records[: offset - self.logStartOffset]
        self.logStartOffset = offset
        self._epochs.truncateFromStart(offset)

    # -- what others ask

    def read(self, offset: int, count: int) -> list[ModelRecord]:
        begin = offset - self.logStartOffset
        return self.records[begin : begin + count] if begin >= 0 else []

    def at(self, offset: int) -> ModelRecord | None:
        """L{None}: there is none."""
        begin = offset - self.logStartOffset
        return self.records[begin] if 0 <= begin < len(self.records) else None

    def lastOf(self, producerId: int) -> tuple[int, ModelRecord] | None:
        """The last record of a producer, and its offset."""
        for index in range(len(self.records) - 1, -1, -1):
            if self.records[index].producerId == producerId:
                return self.logStartOffset + index, self.records[index]
        return None

    def lastOffsets(self) -> dict[int, int]:
        """Of each producer, the offset of its last record."""
        return {each.producerId: at for at, each in enumerate(self.records, self.logStartOffset)}

    # -- what happens to it

    def cutPower(self, random: Random) -> int:
        """
        What was not flushed is lost, or a part of it. Truncated records come back if the disk does
        not know of the truncation, and of nothing later.

        @return: how many records were lost or came back.
        """
        before = self.logEndOffset
        diskStart, disk = self._disk
        flushed = self.records[: max(self._flushedOffset - self.logStartOffset, 0)]
        old = disk[self.logStartOffset - diskStart :] if diskStart <= self.logStartOffset else []
        if len(old) > len(flushed) and random.random() < 0.5:
            self.records = old
        else:
            keep = random.randint(len(flushed), len(self.records))
            self.records = self.records[:keep]
        self._disk = (self.logStartOffset, self.records.copy())
        self._flushedOffset = self.logEndOffset
        self._rebuildEpochs()
        return abs(before - self.logEndOffset)

    def kill(self) -> None:
        """The process dies; the page cache stays."""

    def stop(self) -> None:
        """The process ends in order."""
        self.flush()
        self.isStoppedCleanly = True

    def restart(self) -> None:
        """A process opens the log. Recovery flushes what it finds."""
        self.flush()

    def _rebuildEpochs(self) -> None:
        self._epochs.entries = ()
        for index, record in enumerate(self.records):
            if record.epoch > self._epochs.latest:
                self._epochs.assign(record.epoch, self.logStartOffset + index)
