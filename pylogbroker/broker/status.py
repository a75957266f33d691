"""
L{BrokerStatus} takes snapshots of a broker for metrics and console. A module of its own, since
requests never need it.

A snapshot costs some microseconds per partition and connection. It lists at most
L{PARTITION_COUNT_MAX} partitions, by name, and L{WAITING_COUNT_MAX} waiting clients.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pylogbroker.broker.connection import BrokerConnections
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.requestmemory import RequestMemory
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.metrics.brokermetrics import (
    BlockedRequest,
    BrokerSnapshot,
    ClusterSnapshot,
    GroupSnapshot,
    PartitionSnapshot,
    ThrottledPartition,
)
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import PartitionLog
from pylogbroker.types import RANDOM_PARTITION

PARTITION_COUNT_MAX = 2_000
WAITING_COUNT_MAX = 200
REASONS = ("disk", "flush", "memory", "reader", "roll", "work")


@dataclass(eq=False)
class BrokerStatus:
    """
    The status of one broker.

    @ivar groups: gives groups of today's Kafka, and the number of all.
    @ivar cluster: tells what the metadata say of the cluster.
    @ivar startedMs: when it started to serve, since the epoch; 0: it does not serve.
    """

    settings: BrokerSettings
    counters: BrokerCounters
    directory: LogDirectory
    logManager: LogManager
    memory: RequestMemory
    connections: BrokerConnections
    groups: Callable[[], tuple[tuple[GroupSnapshot, ...], int]] = lambda: ((), 0)
    cluster: Callable[[], ClusterSnapshot | None] = lambda: None
    startedMs: int = 0

    def snapshot(self, endpoint: str, isRegistered: bool | None) -> BrokerSnapshot:
        """
        @param endpoint: C{host:port} that the broker listens on; C{""} if it does not.
        @param isRegistered: in ZooKeeper; L{None}: registration is off.
        """
        logs = dict(self.directory.logs) if self.directory.isOpen else {}
        throttled = self.logManager.throttled()
        waiting = list(self._waiting(throttled))
        counts = Counter(dict.fromkeys(REASONS, 0))
        counts.update(each.reason for each in waiting)
        times = os.times()
        groups, groupCount = self.groups() if self.startedMs else ((), 0)
        return BrokerSnapshot(
            brokerId=self.settings.brokerId,
            endpoint=endpoint,
            timeMs=self.logManager.nowMs(),
            startedMs=self.startedMs,
            isRegistered=isRegistered,
            counters=self.counters.snapshot(),
            partitions=tuple(_partition(logs[key]) for key in sorted(logs)[:PARTITION_COUNT_MAX]),
            partitionCount=len(logs),
            failures={
                str(name): str(error) for name, error in dict(self.directory.failures).items()
            },  # a copy: the directory may be loading, on a worker
            unflushedSize=self.logManager.unflushedSize,
            unflushedSizeMax=self.settings.maxUnflushedBytes,
            requestMemorySize=self.memory.reservedSize,
            holding=tuple(throttled),
            waiting=tuple(waiting[:WAITING_COUNT_MAX]),
            waitingCounts=counts,
            cpuSeconds=times.user + times.system,
            memorySize=residentSize(),
            groups=groups,
            groupCount=groupCount,
            cluster=self.cluster() if self.startedMs else None,
        )

    def _waiting(self, throttled: Iterable[ThrottledPartition]) -> Iterable[BlockedRequest]:
        reasons: dict[tuple[str, int], str] = {}
        for each in throttled:
            reasons[each.topic, each.partition] = each.reason
            reasons[each.topic, RANDOM_PARTITION] = each.reason  # any of the topic
        for connection in (*self.connections.open, *self.connections.orphaned):
            found = connection.waiting()
            if found is None:
                continue
            peer, what, where = found
            topic, partition = where or ("", -1)
            reason = "work"
            if what == "memory":
                what, reason = "send", what
            elif what == "reader":
                what, reason = "fetch", what
            elif what == "produce":
                reason = reasons.get((topic, partition)) or reasons.get(("", -1), reason)
            yield BlockedRequest(peer, what, topic, partition, reason)


def _partition(log: PartitionLog) -> PartitionSnapshot:
    isCurrent = log.format.isStamped
    return PartitionSnapshot(
        *log.topicPartition,
        startOffset=log.logStartOffset,
        highWatermark=log.highWatermark,
        logEndOffset=log.logEndOffset,
        # as in DescribeLogDirs: where readers see the page cache, a flush may be hours away
        size=log.size + log.unflushedSize if isCurrent else log.size,
        segmentCount=len(log.segments),
        unflushedSize=log.unflushedSize,
        appendedCount=log.appendedCount,
        failure="" if log.failure is None else str(log.failure),
        isCurrent=isCurrent,
        producerCount=len(log.producers.producers) if isinstance(log, BatchLog) else 0,
    )


def residentSize(path: str = "/proc/self/statm", pageSize: Any = None) -> int:
    """
    Bytes of memory that this process occupies; 0 if the file cannot be read.

    @param path: Linux's file with the number of pages.
    """
    try:
        with open(path, encoding="ascii") as file:
            pages = int(file.read(200).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * (pageSize or os.sysconf("SC_PAGE_SIZE"))
