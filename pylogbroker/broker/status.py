"""
L{BrokerStatus} takes snapshots of a broker for metrics and console. A module of its own, since
requests never need it.

A snapshot costs some microseconds per partition and connection. It lists at most
L{PARTITION_COUNT_MAX} partitions, by name, and L{WAITING_COUNT_MAX} waiting clients.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pylogbroker.broker.connection import BrokerConnections
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.requestmemory import RequestMemory
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.metrics.brokermetrics import (
    BlockedRequest,
    BrokerSnapshot,
    PartitionSnapshot,
    ThrottledPartition,
)
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import PartitionLog
from pylogbroker.types import RANDOM_PARTITION, TopicPartition

PARTITION_COUNT_MAX = 2_000
WAITING_COUNT_MAX = 200
REASONS = ("disk", "flush", "memory", "reader", "roll", "work")


class BrokerStatus:
    """
    The status of one broker.

    @ivar startedMs: when it started to serve, since the epoch; 0: it does not serve.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        counters: BrokerCounters,
        directory: LogDirectory,
        logManager: LogManager,
        memory: RequestMemory,
        connections: BrokerConnections,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._directory = directory
        self._logManager = logManager
        self._memory = memory
        self._connections = connections
        self.startedMs = 0

    def snapshot(self, endpoint: str, isRegistered: bool | None) -> BrokerSnapshot:
        """
        @param endpoint: C{host:port} that the broker listens on; C{""} if it does not.
        @param isRegistered: in ZooKeeper; L{None}: registration is off.
        """
        logs = dict(self._directory.logs) if self._directory.isOpen else {}
        holding, reasons = self._throttled()
        waiting = [self._waiting(found, reasons) for found in self._waitingConnections()]
        counts = Counter(dict.fromkeys(REASONS, 0))
        counts.update(each.reason for each in waiting)
        times = os.times()
        return BrokerSnapshot(
            brokerId=self._settings.brokerId,
            endpoint=endpoint,
            timeMs=self._logManager.nowMs(),
            startedMs=self.startedMs,
            isRegistered=isRegistered,
            counters=self._counters.snapshot(),
            partitions=tuple(_partition(logs[key]) for key in sorted(logs)[:PARTITION_COUNT_MAX]),
            partitionCount=len(logs),
            failures={
                str(name): str(error) for name, error in dict(self._directory.failures).items()
            },  # a copy: the directory may be loading, on a worker
            unflushedSize=self._logManager.unflushedSize,
            unflushedSizeMax=self._settings.maxUnflushedBytes,
            requestMemorySize=self._memory.reservedSize,
            holding=tuple(holding),
            waiting=tuple(waiting[:WAITING_COUNT_MAX]),
            waitingCounts=dict(counts),
            cpuSeconds=times.user + times.system,
            memorySize=residentSize(),
        )

    def _throttled(self) -> tuple[list[ThrottledPartition], dict[TopicPartition | None, str]]:
        found, reasons = [], {}
        for log, reason, count in self._logManager.throttled():
            where = None if log is None else log.topicPartition
            reasons[where] = reason
            found.append(
                ThrottledPartition(
                    "" if where is None else where.topic,
                    -1 if where is None else where.partition,
                    reason,
                    count,
                )
            )
        return found, reasons

    def _waitingConnections(self) -> Iterable[tuple[str, str, TopicPartition | None]]:
        for connection in (*self._connections.open, *self._connections.orphaned):
            found = connection.waiting()
            if found is not None:
                yield found

    @staticmethod
    def _waiting(
        found: tuple[str, str, TopicPartition | None], reasons: dict[TopicPartition | None, str]
    ) -> BlockedRequest:
        peer, what, where = found
        topic, partition = where or ("", -1)
        if what in ("memory", "reader"):
            return BlockedRequest(
                peer, "send" if what == "memory" else "fetch", topic, partition, what
            )
        reason = "work"
        if what == "produce":
            if partition == RANDOM_PARTITION:  # any partition of the topic
                reason = next(
                    (why for key, why in reasons.items() if key is not None and key.topic == topic),
                    reason,
                )
            reason = reasons.get(where) or (
                reasons.get(None, reason) if reason == "work" else reason
            )
        return BlockedRequest(peer, what, topic, partition, reason)


def _partition(log: PartitionLog) -> PartitionSnapshot:
    return PartitionSnapshot(
        *log.topicPartition,
        startOffset=log.logStartOffset,
        highWatermark=log.highWatermark,
        logEndOffset=log.logEndOffset,
        size=log.size,
        segmentCount=len(log.segments),
        unflushedSize=log.unflushedSize,
        appendedCount=log.appendedCount,
        failure="" if log.failure is None else str(log.failure),
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
