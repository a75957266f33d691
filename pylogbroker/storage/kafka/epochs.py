"""
The leader epochs of a partition, a module of its own, since replicas and consumers reason with it
alone: which leader wrote which offsets.

Each epoch has the offset at which it began. A reader whose log ended in an epoch learns where that
epoch ended here (C{OffsetForLeaderEpoch}), and thereby where the two logs part. Batches carry their
epoch, too, so that a lost C{leader-epoch-checkpoint} is rebuilt from the log.

B{Reconciliation.} What must be true: two replicas with the same epoch at the same offset have the
same records up to it, since one leader wrote them. So a follower finds the last offset at which its
log is the leader's by comparing epochs, and truncates to it; never to a high watermark, which may
be behind what was acknowledged (KIP-101), and never by the leader's answer alone, since it may have
an epoch that the leader does not know (KIP-279). The follower names the epoch of its last record
(L{LeaderEpochs.lastOf}) in each fetch, or in C{OffsetForLeaderEpoch}; the leader compares
(L{divergence}) and tells where that epoch, or the largest that it has before it, ends in its log;
the follower truncates (L{truncationFor}) and names the last epoch that is left. Each step drops an
epoch or ends, so there are at most as many as the follower has epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from pylogbroker.errors import OffsetOutOfRangeError


class EpochStart(NamedTuple):
    """
    @ivar startOffset: at which the epoch begins.
    """

    epoch: int
    startOffset: int


UNDEFINED = EpochStart(-1, -1)


class Truncation(NamedTuple):
    """
    The end that a leader's answer sets for a follower's log.

    @ivar offset: where its log must end; its log end if nothing is to be cut.
    @ivar isComplete: whether the log is then the leader's up to its end. If not, the leader must be
        asked again, for the epoch of the last record that is left.
    """

    offset: int
    isComplete: bool


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

    def append(self, epoch: int, logEndOffset: int, offset: int) -> None:
        """
        A record of an epoch is added to a log, behind its end if there is a gap. Epochs that began
        at the end have no record; they are dropped, since the record may be of an earlier one: that
        of a leader that had more than a replica that led after it.
        """
        self.truncateFromEnd(logEndOffset)
        if epoch > self.latest:
            self.assign(epoch, offset)

    def epochOf(self, offset: int) -> int:
        """The epoch that wrote an offset; -1: unknown."""
        if self.entries and self.entries[-1].startOffset <= offset:
            return self.entries[-1].epoch
        index = bisect_right([each.startOffset for each in self.entries], offset) - 1
        return self.entries[index].epoch if index >= 0 else -1

    def lastOf(self, logEndOffset: int) -> int:
        """
        The epoch of the last record, which a follower names when it fetches; -1: there is no
        record, or its epoch is unknown. An epoch that begins at the log end has no record.
        """
        return self.epochOf(logEndOffset - 1)

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


def divergence(
    epochs: LeaderEpochs, logEndOffset: int, fetchOffset: int, lastFetchedEpoch: int
) -> EpochStart | None:
    """
    Compare the end of a reader's log with the leader's, as every fetch that names an epoch wants
    (KIP-595).

    @param epochs: the leader's.
    @param logEndOffset: the leader's.
    @param fetchOffset: where the reader's log ends.
    @param lastFetchedEpoch: of the reader's last record.
    @return: L{None}: the reader may go on. Otherwise where the logs part, at the earliest: the
        largest epoch up to C{lastFetchedEpoch} that the leader has, and the offset behind it.
    @raise OffsetOutOfRangeError: the leader knows no epoch as late as the reader's.
    """
    found = epochs.endOffsetFor(lastFetchedEpoch, logEndOffset)
    if found == UNDEFINED:
        raise OffsetOutOfRangeError(
            f"no epoch from {lastFetchedEpoch} on is known, the last is {epochs.latest}"
        )
    if found.epoch < lastFetchedEpoch or found.startOffset < fetchOffset:
        return found
    return None


def truncationFor(epochs: LeaderEpochs, logEndOffset: int, answer: EpochStart) -> Truncation:
    """
    The truncation that follows from the leader's answer for the epoch of a follower's last record:
    that of C{OffsetForLeaderEpoch}, or C{DivergingEpoch} of a fetch.

    @param epochs: the follower's.
    @param logEndOffset: the follower's.
    @param answer: an epoch that the leader has, and the offset behind its last record.
    @raise ValueError: C{answer} is L{UNDEFINED}: the leader knows no such epoch, and nothing
        follows.
    """
    if answer.epoch < 0 or answer.startOffset < 0:
        raise ValueError(f"nothing follows from {answer}")
    own = epochs.endOffsetFor(answer.epoch, logEndOffset)
    if own == UNDEFINED:  # all own records, if there are any, are of earlier epochs, or of none
        own = EpochStart(answer.epoch, logEndOffset)
    if own.epoch != answer.epoch:
        # The leader has an epoch here that this log does not have: only what is before the next
        # one of this log can be the same.
        return Truncation(min(own.startOffset, answer.startOffset, logEndOffset), False)
    return Truncation(min(own.startOffset, answer.startOffset, logEndOffset), True)
