"""
Takes pictures of a broker: what L{pylogbroker.metrics.snapshot} is filled from.

It costs some microseconds for each partition and each client, when somebody asks, and nothing when nobody does; how many partitions and waiting
clients are told one by one has a limit, and the oldest names come first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pylogbroker.broker.connection import BrokerFactory
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.requestmemory import RequestMemory
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.metrics.snapshot import (
    BlockedRequest,
    BrokerSnapshot,
    PartitionPicture,
    ThrottledPartition,
)
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import PartitionLog
from pylogbroker.types import RANDOM_PARTITION, TopicPartition

PARTITION_COUNT_MAX = 2_000
WAITING_COUNT_MAX = 200
REASONS = ("disk", "flush", "memory", "reader", "roll", "work")


class BrokerStatus:
    """
    One broker, looked at.

    @ivar startedMs: when it began to serve, since the epoch; 0: it does not.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        counters: BrokerCounters,
        directory: LogDirectory,
        upkeep: LogManager,
        admission: RequestMemory,
        factory: BrokerFactory,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._directory = directory
        self._upkeep = upkeep
        self._admission = admission
        self._factory = factory
        self.startedMs = 0

    def take(self, endpoint: str, isRegistered: bool | None) -> BrokerSnapshot:
        """
        A picture of this moment.

        @param endpoint: C{host:port} that the broker listens on; C{""} if it does not.
        @param isRegistered: in ZooKeeper; L{None}: it is not to be.
        """
        logs = dict(self._directory.logs) if self._directory.isOpen else {}
        holding, reasons = self._holding()
        waiting = [self._waiting(found, reasons) for found in self._lookRound()]
        counts = Counter(dict.fromkeys(REASONS, 0))
        counts.update(each.reason for each in waiting)
        times = os.times()
        return BrokerSnapshot(
            brokerId=self._settings.brokerId,
            endpoint=endpoint,
            timeMs=self._upkeep.nowMs(),
            startedMs=self.startedMs,
            isRegistered=isRegistered,
            counters=self._counters.snapshot(),
            partitions=tuple(_partition(logs[key]) for key in sorted(logs)[:PARTITION_COUNT_MAX]),
            partitionCount=len(logs),
            failures={
                str(name): str(error) for name, error in dict(self._directory.failures).items()
            },  # it may be loading, on a worker
            unflushedSize=self._upkeep.unflushedSize,
            unflushedSizeMax=self._settings.maxUnflushedBytes,
            requestMemorySize=self._admission.grantedSize,
            holding=tuple(holding),
            waiting=tuple(waiting[:WAITING_COUNT_MAX]),
            waitingCounts=dict(counts),
            cpuSeconds=times.user + times.system,
            memorySize=residentSize(),
        )

    def _holding(self) -> tuple[list[ThrottledPartition], dict[TopicPartition | None, str]]:
        """What holds back, and why for each partition; L{None} is the process."""
        found, reasons = [], {}
        for log, reason, count in self._upkeep.waits():
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

    def _lookRound(self) -> Iterable[tuple[str, str, TopicPartition | None]]:
        for connection in (*self._factory.connections, *self._factory.unheard):
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
            if partition == RANDOM_PARTITION:  # whichever it was to be
                reason = next(
                    (why for key, why in reasons.items() if key is not None and key.topic == topic),
                    reason,
                )
            reason = reasons.get(where) or (
                reasons.get(None, reason) if reason == "work" else reason
            )
        return BlockedRequest(peer, what, topic, partition, reason)


def _partition(log: PartitionLog) -> PartitionPicture:
    return PartitionPicture(
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
    Bytes of memory that this process has.

    @param path: where Linux says so, in pages.
    @return: 0 if that is not to be had.
    """
    try:
        with open(path, encoding="ascii") as file:
            pages = int(file.read(200).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * (pageSize or os.sysconf("SC_PAGE_SIZE"))
