"""
A broker at one moment, as plain values, for its metrics, its console and its log lines. It is made
on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class PartitionPicture(NamedTuple):
    """
    One partition (C{kafka.logs.<topic>-<partition>}).

    @ivar startOffset: the oldest offset.
    @ivar highWatermark: the end for consumers (C{CurrentOffset}, which is a place in the last
        segment there).
    @ivar logEndOffset: the offset of the next append.
    @ivar size: flushed bytes in all segments (C{Size}).
    @ivar segmentCount: files (C{NumberOfSegments}).
    @ivar unflushedSize: appended bytes that are not flushed.
    @ivar appendedCount: messages since the broker's start (C{NumAppendedMessages}).
    @ivar failure: why it is offline; C{""} if it is not.
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
    A waiting client.

    @ivar peer: its address.
    @ivar what: what it wants to do: C{"produce"}, C{"fetch"}, C{"offsets"}, or C{"send"} a large
        request.
    @ivar topic: the topic; C{""} if it does not matter.
    @ivar reason: C{"flush"} (too many unflushed bytes), C{"disk"} (full), C{"roll"}, C{"memory"}
        (for requests), C{"reader"} (it reads its response slowly), C{"work"} (a worker thread
        processes it: a new partition, a compressed set, cold data, a due flush).
    """

    peer: str
    what: str
    topic: str
    partition: int
    reason: str


class ThrottledPartition(NamedTuple):
    """
    A partition whose producers wait.

    @ivar topic: C{""} for the whole broker.
    @ivar reason: C{"flush"}, C{"disk"} or C{"roll"}, as in L{BlockedRequest}.
    @ivar requestCount: waiting requests.
    """

    topic: str
    partition: int
    reason: str
    requestCount: int


class BrokerSnapshot(NamedTuple):
    """
    A broker.

    @ivar timeMs: the time of the snapshot, since the epoch.
    @ivar startedMs: the start of serving, since the epoch; 0 if it does not serve.
    @ivar endpoint: its C{host:port}.
    @ivar isRegistered: whether ZooKeeper has its registration; L{None} without ZooKeeper.
    @ivar counters: L{pylogbroker.metrics.counters.BrokerCounters.snapshot}.
    @ivar partitions: in order, up to the requested number.
    @ivar partitionCount: all partitions.
    @ivar failures: the reason for each partition that could not be opened, by name.
    @ivar unflushedSize: bytes of all partitions.
    @ivar requestMemorySize: bytes reserved for large requests.
    @ivar waiting: waiting clients, up to the requested number.
    @ivar waitingCounts: all waiting clients, by reason.
    @ivar cpuSeconds: processor time of the process.
    @ivar memorySize: resident bytes of the process; 0 if unknown.
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
