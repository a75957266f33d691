"""
What a follower asks of its leader and what it is answered: Kafka's Fetch of a replica, for one
partition; and what both ask their logs. The logs are compared, as
L{pylogbroker.storage.kafka.epochs} says, at each fetch (KIP-595's way of KIP-101); a follower needs
no C{OffsetForLeaderEpoch}.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.storage.kafka.epochs import EpochStart, LeaderEpochs

UNDEFINED = -1


class IReplicaLog(Protocol):
    """
    What a replica asks its log.

    @ivar epochs: those of the log as it is; after a truncation perhaps another object.
    @ivar flushedOffset: a power cut leaves the records before it.
    """

    @property
    def epochs(self) -> LeaderEpochs: ...

    @property
    def logStartOffset(self) -> int: ...

    @property
    def logEndOffset(self) -> int: ...

    @property
    def flushedOffset(self) -> int: ...

    def assignEpoch(self, epoch: int) -> None:
        """This broker leads: an epoch begins at the log's end."""
        ...

    def followEpoch(self, epoch: int) -> None:
        """Another broker leads in an epoch."""
        ...


class ReplicaFetch(NamedTuple):
    """
    A follower asks for records.

    @ivar brokerId: the follower.
    @ivar brokerEpoch: of the follower's registration.
    @ivar leaderEpoch: in which the follower takes the receiver for the leader.
    @ivar offset: of the next record; the follower has those before it, as durably as an
        acknowledgement promises.
    @ivar lastFetchedEpoch: of the record before; -1: there is none.
    @ivar number: of the request, among those of this follower to any leader.
    @ivar logStartOffset: of the follower's log, as a power cut leaves it; -1: it does not say.
    """

    brokerId: int
    brokerEpoch: int
    leaderEpoch: int
    offset: int
    lastFetchedEpoch: int
    number: int
    logStartOffset: int = UNDEFINED


class ReplicaFetchAnswer(NamedTuple):
    """
    What the leader answers, beside the records.

    @ivar diverging: the logs part behind this epoch's last record; there are no records then.
    """

    error: ErrorCode = ErrorCode.NONE
    highWatermark: int = UNDEFINED
    logStartOffset: int = UNDEFINED
    diverging: EpochStart | None = None
