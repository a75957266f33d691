"""
A broker at one moment, as plain values: what its figures, its page and its log lines are made of.

Whoever wants a picture asks for one; nothing is kept up to date for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class PartitionPicture(NamedTuple):
    """
    One partition (C{kafka.logs.<topic>-<partition>}).

    @ivar startOffset: the oldest that can be read.
    @ivar highWatermark: where reading ends; C{CurrentOffset}, with the meaning that its name
        promises (there it is a place in the last segment).
    @ivar logEndOffset: what the next append gets.
    @ivar size: flushed bytes in all segments (C{Size}).
    @ivar segmentCount: files (C{NumberOfSegments}).
    @ivar unflushedSize: bytes that are appended and not yet visible.
    @ivar appendedCount: messages since the broker's start (C{NumAppendedMessages}).
    @ivar failure: why it is out of service; C{""} if it is not.
    """

    topic: str
    partition: int
    startOffset: int
    highWatermark: int
    logEndOffset: int
    size: int
    segmentCount: int
    unflushedSize: int
    appendedCount: int
    failure: str


class BlockedRequest(NamedTuple):
    """
    A client that has to wait, and why.

    @ivar peer: its address.
    @ivar what: what it wants: C{"produce"}, C{"fetch"}, C{"offsets"}, C{"send"} (a large request of
        its).
    @ivar topic: where; C{""} if that does not matter.
    @ivar reason: C{"flush"} (too much is unflushed), C{"disk"} (it is full), C{"roll"}, C{"memory"}
        (for requests), C{"reader"} (it takes its answer more slowly than it could be sent),
        C{"work"} (a worker is at it: a new partition, a compressed set, cold data, a flush that is
        due).
    """

    peer: str
    what: str
    topic: str
    partition: int
    reason: str


class ThrottledPartition(NamedTuple):
    """
    What holds producers back.

    @ivar topic: C{""} for all of them together.
    @ivar reason: C{"flush"}, C{"disk"} or C{"roll"}, as in L{BlockedRequest}.
    @ivar requestCount: how many requests wait for it.
    """

    topic: str
    partition: int
    reason: str
    requestCount: int


class BrokerSnapshot(NamedTuple):
    """
    A broker.

    @ivar timeMs: when it was taken, since the epoch.
    @ivar startedMs: when the broker began to serve, since the epoch; 0: it does not serve.
    @ivar endpoint: C{host:port} that it listens on.
    @ivar isRegistered: in ZooKeeper; L{None}: it is not to be.
    @ivar counters: L{pylogbroker.metrics.counters.BrokerCounters.snapshot}.
    @ivar partitions: in order, at the most as many as were asked for.
    @ivar partitionCount: how many there are.
    @ivar failures: what could not be opened, by name, and why.
    @ivar unflushedSize: bytes of all partitions together.
    @ivar requestMemorySize: bytes granted for large requests.
    @ivar waiting: clients that wait, at the most as many as were asked for.
    @ivar waitingCounts: how many there are, for each reason.
    @ivar cpuSeconds: the processor's time that the process has used.
    @ivar memorySize: bytes of memory that the process has; 0 if that is not known.
    """

    brokerId: int
    endpoint: str
    timeMs: int
    startedMs: int
    isRegistered: bool | None
    counters: Mapping[str, Any]
    partitions: tuple[PartitionPicture, ...]
    partitionCount: int
    failures: Mapping[str, str]
    unflushedSize: int
    unflushedSizeMax: int
    requestMemorySize: int
    holding: tuple[ThrottledPartition, ...]
    waiting: tuple[BlockedRequest, ...]
    waitingCounts: Mapping[str, int]
    cpuSeconds: float
    memorySize: int
