"""
L{Partition}: a partition's log, the state of its input and output, and the callers that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from pylogbroker.interfaces import AppendResult, ValidatedBatches
from pylogbroker.metrics.counters import TopicCounters
from pylogbroker.net.deferreds import Waiters
from pylogbroker.storage.partitionlog import PartitionLog
from pylogbroker.types import TopicPartition

if TYPE_CHECKING:
    from pylogbroker.broker.logmanager import LogManager


class Partition:
    """
    One partition of this broker. It alone admits appends; L{LogManager} moves its data to the disk.

    @ivar accountedSize: the unflushed bytes that the sum over all partitions contains.
    @ivar isDiskBlocked: accepted bytes, or a roll, wait for room on the disk.
    @ivar isRolling: a roll is requested or under way.
    @ivar isRetaining: retention is under way.
    @ivar afterJob: calls for the end of the job that is under way; L{None}: no job is.
    @ivar capacityWaiters: fire when this partition admits appends again, or fails.
    @ivar rollWaiters: fire when the roll has ended, however it ended.
    @ivar topicCounters: of its topic, once something was produced.
    """

    __slots__ = (
        "_manager",
        "accountedSize",
        "afterJob",
        "capacityWaiters",
        "isDiskBlocked",
        "isRetaining",
        "isRolling",
        "log",
        "rollWaiters",
        "topicCounters",
    )

    def __init__(self, log: PartitionLog, manager: LogManager) -> None:
        self.log = log
        self._manager = manager
        self.accountedSize = 0
        self.isDiskBlocked = self.isRolling = self.isRetaining = False
        self.afterJob: list[Callable[[], None]] | None = None
        self.capacityWaiters: Waiters[None] = Waiters()
        self.rollWaiters: Waiters[None] = Waiters()
        self.topicCounters: TopicCounters | None = None

    @property
    def topicPartition(self) -> TopicPartition:
        return self.log.topicPartition

    @property
    def isOverLimit(self) -> bool:
        """Whether too many bytes of this partition are unflushed."""
        return self.log.unflushedSize > self._manager.partitionUnflushedSizeMax

    @property
    def isThrottled(self) -> bool:
        """Whether appends must wait: too many bytes are unflushed, here or in all, or the disk is full."""
        manager = self._manager
        return (
            self.log.unflushedSize > manager.partitionUnflushedSizeMax
            or manager.unflushedSize > manager.unflushedSizeMax
            or self.isDiskBlocked
        )

    def append(self, batches: ValidatedBatches, nowMs: int) -> AppendResult | None:
        """
        Append if the partition admits it now.

        @return: L{None}: wait for L{awaitAdmission} and call again; a run of several batches must
            be appended batch by batch, since the segment may have to be rolled between two.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        log = self.log
        if (
            log.failure is None
            and not log.closed
            and (
                log.rolling
                or (batches.size > log.bytesUntilRoll and len(batches.buffers) > 1)
                or log.rollDue(nowMs)
                or self.isThrottled
            )
        ):
            return None
        result = log.append(batches, nowMs)
        self._manager.onAppend(self)
        return result

    def awaitAdmission(self) -> Deferred[None]:
        """
        @return: fires with L{None} when an append may be tried again. Can be cancelled.
        """
        if self.isThrottled:
            return self._manager.awaitCapacity(self)
        return self._manager.roll(self)
