"""
Which records of a partition are in flight, and which position may be committed; pure. A module of
its own, since it knows neither brokers nor tuples.

What must be true: a position is committed only when every record before it is done. Records are
done in any order. The committable position is where the first begins that is not.
"""

from __future__ import annotations

from collections import deque

from pylogbroker.retry import Backoff
from pylogbroker.topologies.log.logclients import LogRecord


class InFlightRecord:
    """
    A record that was read and is not done; also the id of its tuple.

    @ivar backoff: of its replays; L{None}: there was none.
    @ivar failureCount: how often it has failed.
    @ivar size: bytes that it counts for.
    """

    __slots__ = ("backoff", "failureCount", "isDone", "progress", "record", "size")

    def __init__(self, record: LogRecord, progress: PartitionProgress) -> None:
        self.record = record
        self.progress = progress
        self.backoff: Backoff | None = None
        self.failureCount = 0
        self.isDone = False
        self.size = len(record.key or b"") + len(record.value or b"")


class PartitionProgress:
    """
    A partition that is read.

    @ivar position: of the next record to read.
    @ivar committable: the position that may be committed.
    """

    def __init__(self, position: int) -> None:
        self.position = self.committable = position
        self._inFlight: deque[InFlightRecord] = deque()

    @property
    def count(self) -> int:
        """Records from the first that is not done to the last that was read."""
        return len(self._inFlight)

    def add(self, record: LogRecord) -> InFlightRecord:
        """A record was read; the next one is behind it."""
        found = InFlightRecord(record, self)
        self._inFlight.append(found)
        self.position = record.nextOffset
        return found

    def moveTo(self, position: int) -> None:
        """Everything before a position was read, or is not to be read."""
        self.position = position
        self._advance()

    def done(self, done: InFlightRecord) -> None:
        """A record is handled, or given up."""
        done.isDone = True
        self._advance()

    def _advance(self) -> None:
        waiting = self._inFlight
        while waiting and waiting[0].isDone:
            self.committable = waiting.popleft().record.nextOffset
        if not waiting:
            self.committable = self.position
