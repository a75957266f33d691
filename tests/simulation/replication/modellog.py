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
    """

    epoch: int
    producerId: int
    sequence: int


class ModelLog:
    """
    An C{IReplicaLog}, and the directory that it is in.

    @ivar startOffset: of the first record.
    @ivar records: from there on.
    @ivar brokerEpoch: that the directory has kept; -1: it is new.
    @ivar isStoppedCleanly: the last process has flushed all before it ended.
    @ivar checkpoint: the last high watermark on the disk.
    """

    def __init__(self) -> None:
        self.epochs = LeaderEpochs()
        self.wipe()

    def wipe(self) -> None:
        """The disk is empty."""
        self.records: list[ModelRecord] = []
        self.startOffset = self.flushedOffset = self.checkpoint = 0
        self.brokerEpoch = -1
        self.isStoppedCleanly = False
        self._disk: tuple[int, list[ModelRecord]] = (0, [])
        self._rebuildEpochs()

    # -- what a replica asks

    @property
    def logEndOffset(self) -> int:
        return self.startOffset + len(self.records)

    def assignEpoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.logEndOffset)

    # -- what changes it

    def append(self, records: list[ModelRecord]) -> None:
        for record in records:
            if record.epoch > self.epochs.latest:
                self.epochs.assign(record.epoch, self.logEndOffset)
            self.records.append(record)

    def flush(self) -> None:
        self.flushedOffset = self.logEndOffset
        self._disk = (self.startOffset, self.records.copy())

    def truncate(self, offset: int) -> None:
        del self.records[max(offset - self.startOffset, 0) :]
        self.flushedOffset = min(self.flushedOffset, self.logEndOffset)
        self.epochs.truncateFromEnd(offset)

    def startOver(self, offset: int) -> None:
        self.records.clear()
        self.startOffset = self.flushedOffset = offset
        self._disk = (offset, [])
        self._rebuildEpochs()

    def deleteBefore(self, offset: int) -> None:
        """Retention."""
        del self.records[: offset - self.startOffset]
        self.startOffset = offset
        self.epochs.truncateFromStart(offset)

    # -- what others ask

    def read(self, offset: int, count: int) -> list[ModelRecord]:
        begin = offset - self.startOffset
        return self.records[begin : begin + count] if begin >= 0 else []

    def at(self, offset: int) -> ModelRecord | None:
        """L{None}: there is none."""
        begin = offset - self.startOffset
        return self.records[begin] if 0 <= begin < len(self.records) else None

    def lastOf(self, producerId: int) -> tuple[int, ModelRecord] | None:
        """The last record of a producer, and its offset."""
        for index in range(len(self.records) - 1, -1, -1):
            if self.records[index].producerId == producerId:
                return self.startOffset + index, self.records[index]
        return None

    def lastOffsets(self) -> list[int]:
        """Of each producer. Retention leaves these, as a real broker remembers the numbers."""
        last = {each.producerId: index for index, each in enumerate(self.records)}
        return [self.startOffset + index for index in last.values()]

    # -- what happens to it

    def cutPower(self, random: Random) -> int:
        """
        What was not flushed is lost, or a part of it. Truncated records come back if the disk does
        not know of the truncation, and of nothing later.

        @return: how many records were lost or came back.
        """
        before = self.logEndOffset
        diskStart, disk = self._disk
        flushed = self.records[: max(self.flushedOffset - self.startOffset, 0)]
        old = disk[self.startOffset - diskStart :] if diskStart <= self.startOffset else []
        if len(old) > len(flushed) and random.random() < 0.5:
            self.records = old
        else:
            keep = random.randint(len(flushed), len(self.records))
            self.records = self.records[:keep]
        self._disk = (self.startOffset, self.records.copy())
        self.flushedOffset = self.logEndOffset
        self._rebuildEpochs()
        return abs(before - self.logEndOffset)

    def restart(self) -> None:
        """Recovery flushes what it finds."""
        self.flush()

    def _rebuildEpochs(self) -> None:
        self.epochs.entries = ()
        for index, record in enumerate(self.records):
            if record.epoch > self.epochs.latest:
                self.epochs.assign(record.epoch, self.startOffset + index)
