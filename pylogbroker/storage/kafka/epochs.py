"""
The leader epochs of a partition, a module of its own, since replicas and consumers reason with it
alone: which leader wrote which offsets.

Each epoch has the offset at which it began. A reader whose log ended in an epoch learns where that
epoch ended here (C{OffsetForLeaderEpoch}), and thereby where the two logs part. Batches carry their
epoch, too, so that a lost C{leader-epoch-checkpoint} is rebuilt from the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.storage.kafka.checkpoints import (
    LEADER_EPOCHS,
    readCheckpoint,
    readNumber,
    writeCheckpoint,
)


class EpochStart(NamedTuple):
    """
    @ivar startOffset: at which the epoch begins.
    """

    epoch: int
    startOffset: int


UNDEFINED = EpochStart(-1, -1)


class LeaderEpochs:
    """
    The epochs, ascending, with their start offsets.

    @ivar entries: oldest first. Replaced as a whole, so that a job may hold it.
    """

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self.entries: tuple[EpochStart, ...] = ()
        for entry in entries:
            self.assign(*entry)

    @property
    def latest(self) -> int:
        """The latest epoch; -1: none."""
        return self.entries[-1].epoch if self.entries else -1

    def assign(self, epoch: int, startOffset: int) -> bool:
        """
        An epoch begins at an offset. Earlier entries that contradict it are dropped.

        @return: whether something changed.
        """
        if self.entries:
            last = self.entries[-1]
            if last.epoch == epoch and startOffset >= last.startOffset:
                return False
        kept = [each for each in self.entries if each.epoch < epoch]
        kept = [each for each in kept if each.startOffset < startOffset]
        self.entries = (*kept, EpochStart(epoch, startOffset))
        return True

    def epochOf(self, offset: int) -> int:
        """The epoch that wrote an offset; -1: unknown."""
        index = bisect_right([each.startOffset for each in self.entries], offset) - 1
        return self.entries[index].epoch if index >= 0 else -1

    def endOffsetFor(self, epoch: int, logEndOffset: int) -> EpochStart:
        """
        Where an epoch ended, as C{OffsetForLeaderEpoch} answers.

        @return: the largest known epoch up to C{epoch}, and the offset behind its last record;
            L{UNDEFINED} for an epoch that is later than all known ones.
        """
        if epoch >= 0 and epoch == self.latest:
            return EpochStart(epoch, logEndOffset)
        later = [each for each in self.entries if each.epoch > epoch]
        if epoch == UNDEFINED.epoch or not later:
            return UNDEFINED
        earlier = len(self.entries) - len(later)
        known = self.entries[earlier - 1].epoch if earlier else epoch
        return EpochStart(known, later[0].startOffset)

    def truncateFromStart(self, offset: int) -> bool:
        """
        The log begins at an offset now: the epoch of that offset begins there.

        @return: whether something changed.
        """
        index = bisect_right([each.startOffset for each in self.entries], offset) - 1
        if index < 0 or (self.entries[index].startOffset == offset and index == 0):
            return False
        first = EpochStart(self.entries[index].epoch, offset)
        self.entries = (first, *self.entries[index + 1 :])
        return True

    def truncateFromEnd(self, offset: int) -> bool:
        """
        The log ends at an offset now: epochs that began there or later are dropped.

        @return: whether something changed.
        """
        kept = tuple(each for each in self.entries if each.startOffset < offset)
        changed, self.entries = len(kept) != len(self.entries), kept
        return changed


def readEpochs(fileSystem: IFileSystem, directory: str) -> LeaderEpochs:
    """
    The epochs in a partition's directory; none if it has no such file. Blocks.

    @raise CorruptLogError: the file cannot be read.
    """
    path = f"{directory}/{LEADER_EPOCHS}"
    entries = []
    for line in readCheckpoint(fileSystem, path) or ():
        if len(line) != 2:
            raise CorruptLogError(path, "read", f"{' '.join(line)[:80]!r} is no epoch")
        entries.append(EpochStart(*(readNumber(path, each) for each in line)))
    return LeaderEpochs(entries)


def writeEpochs(fileSystem: IFileSystem, directory: str, entries: Iterable[EpochStart]) -> None:
    """Replace C{leader-epoch-checkpoint} durably. Blocks."""
    writeCheckpoint(
        fileSystem,
        f"{directory}/{LEADER_EPOCHS}",
        (f"{epoch} {startOffset}" for epoch, startOffset in entries),
    )
