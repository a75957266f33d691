"""
A log whose end is set by hand.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogbroker.storage.kafka.epochs import EpochStart, LeaderEpochs


class ManualLog:
    """@ivar followedEpoch: of the leader that it was told of."""

    def __init__(self, entries: Iterable[EpochStart]) -> None:
        self.epochs = LeaderEpochs(entries)
        self.logStartOffset = 0
        self.logEndOffset = self.flushedOffset = 10
        self.followedEpoch = -1

    def assignEpoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.logEndOffset)

    def followEpoch(self, epoch: int) -> None:
        self.followedEpoch = epoch
