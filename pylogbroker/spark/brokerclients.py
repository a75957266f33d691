"""
Clients of brokers for Spark, and discovery of the partitions and brokers that a query reads.

Clients only read, so a request without an answer can be repeated: a broker that is away for a
moment costs time, one that stays away is an error. Any answer is final, an error code included.

A broker that restarts is missing from ZooKeeper for a moment. Callers therefore name the partitions
that they expect, and discovery repeats. A partition that stays away is then an error or lost data;
a plan never silently lacks it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from random import SystemRandom
from typing import NamedTuple, TypeVar

from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import (
    BrokerConnectionError,
    NoBrokersError,
    RemotePartitionError,
    UnreadableRangeError,
    ZookeeperError,
)
from pylogbroker.records.columns import sizeBetween
from pylogbroker.retry import BlockingRetryPolicy
from pylogbroker.spark.options import ClusterOptions, Selection
from pylogbroker.syncclient.clustermetadata import IClusterMetadata
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.types import LATEST, BrokerPartition, PartitionId

T = TypeVar("T")

SEGMENT_COUNT_MAX = 1_000_000
TIME_MAX_MS = 2**63 - 1

log = logging.getLogger(__name__)


def retryPolicy(retryCount: int) -> BlockingRetryPolicy:
    """A policy that sleeps between attempts."""
    return BlockingRetryPolicy(retryCount, sleep, SystemRandom().random)


class SegmentBounds(NamedTuple):
    """
    What a broker has of a partition. All these offsets are boundaries of entries; no others are
    known to be.

    @ivar starts: where its segments begin, ascending; at least one.
    @ivar latest: the high watermark.
    """

    starts: tuple[int, ...]
    latest: int

    @property
    def earliest(self) -> int:
        """The oldest offset in the log."""
        return self.starts[0]


EMPTY = SegmentBounds((0,), 0)
"""A log without messages, and a log that does not exist."""


class OffsetRange(NamedTuple):
    """
    Part of a partition: the entries from C{start} to one that ends at C{end}.
    """

    topic: str
    partition: BrokerPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return sizeBetween(self.start, self.end)

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, {self.start} to {self.end}"


class BrokerClients:
    """
    One client for each broker, connected when it is first called. A context manager: leaving it
    closes all connections.
    """

    def __init__(
        self,
        addresses: Mapping[int, BrokerAddress],
        options: ClusterOptions,
        policy: BlockingRetryPolicy | None = None,
    ) -> None:
        """
        @param policy: by default C{retryCount} of the options.
        """
        self._addresses = addresses
        self._options = options
        self._policy = policy or retryPolicy(options.retryCount)
        self._consumers: dict[int, SimpleConsumer] = {}

    def __enter__(self) -> BrokerClients:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.close()

    def call(self, broker: int, what: str, request: Callable[[SimpleConsumer], T]) -> T:
        """
        Call a broker, again if it does not answer.

        @param what: is requested, for errors.
        @raise NoBrokersError: no broker has this id.
        @raise BrokerConnectionError: no attempt got an answer.
        @raise pylogbroker.errors.WireError: the answer cannot be decoded.
        """
        if broker not in self._addresses:
            known = ", ".join(map(str, sorted(self._addresses))) or "none"
            raise NoBrokersError(f"{what}: there is no broker {broker}; the brokers are {known}")
        if broker not in self._consumers:
            self._consumers[broker] = self._options.consumer(self._addresses[broker])
        consumer = self._consumers[broker]
        for isLast in self._policy.attempts():
            try:
                return request(consumer)
            except BrokerConnectionError as error:
                if isLast:
                    raise type(error)(
                        f"{what}: broker {broker} did not answer {self._policy.retryCount + 1}"
                        f" requests: {error}"
                    ) from error
                log.warning(
                    "%s: broker %d did not answer, the request is repeated: %s", what, broker, error
                )
        raise AssertionError("a policy has at least one attempt")

    def address(self, broker: int) -> BrokerAddress:
        """The address of a broker."""
        return self._addresses[broker]

    def segmentBounds(self, topic: str, partition: BrokerPartition) -> SegmentBounds:
        """
        The bounds of a partition: one OFFSETS request lists the high watermark and the start of
        each segment (spec-0.7 wire-protocol §10).

        @raise UnreadableRangeError: the broker does not have this partition.
        @raise BrokerConnectionError: as L{call}.
        """
        newestFirst = self._offsetsBefore(topic, partition, LATEST)
        if not newestFirst:
            raise UnreadableRangeError(
                f"topic {topic}, partition {partition}: the broker does not name its end"
            )
        return SegmentBounds(tuple(reversed(newestFirst[1:])) or (newestFirst[-1],), newestFirst[0])

    def offsetAt(self, topic: str, partition: BrokerPartition, timeMs: int) -> int:
        """
        The offset from which everything since a time can be read. Brokers know the times of
        segments only, so older messages may come along.

        @param timeMs: milliseconds since 1970.
        @raise BrokerConnectionError: as L{call}.
        """
        found = self._offsetsBefore(topic, partition, timeMs)
        return found[0] if found else self.segmentBounds(topic, partition).earliest

    def hasLog(self, topic: str, partition: BrokerPartition) -> bool:
        """
        Whether the broker has a log for a partition. If not, it names no offset before a time, but
        still 0 as the earliest and the latest offset (spec-0.7 wire-protocol §10).

        @raise BrokerConnectionError: as L{call}.
        """
        return bool(self._offsetsBefore(topic, partition, TIME_MAX_MS))

    def _offsetsBefore(self, topic: str, partition: BrokerPartition, timeMs: int) -> list[int]:
        what, (broker, number) = f"topic {topic}, partition {partition}", partition
        # A broker closes the connection on an OFFSETS request for a partition that it does not
        # have, but answers a FETCH request with an error code.
        empty = self.call(broker, what, lambda consumer: consumer.fetch(topic, number, 0, 0))
        if isinstance(empty.error, RemotePartitionError):
            raise UnreadableRangeError(
                f"{what}: the broker does not have this partition"
            ) from empty.error
        return self.call(
            broker,
            what,
            lambda consumer: consumer.getOffsetsBefore(topic, number, timeMs, SEGMENT_COUNT_MAX),
        )


# -- discovery


class PartitionDiscovery:
    """
    Partitions and brokers of one cluster. A context manager: leaving it closes the connection to
    ZooKeeper; the next call opens it again.
    """

    def __init__(
        self,
        options: ClusterOptions,
        policy: BlockingRetryPolicy | None = None,
        metadata: IClusterMetadata | None = None,
    ) -> None:
        """
        @param policy: by default C{retryCount} of the options.
        @param metadata: by default that of the options. This object closes it.
        """
        self._options = options
        self._policy = policy or retryPolicy(options.retryCount)
        self._metadata = metadata or options.metadata()
        self._known: list[PartitionId] = []
        self._addresses: dict[int, BrokerAddress] = {}

    def __enter__(self) -> PartitionDiscovery:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to ZooKeeper."""
        self._metadata.close()

    def partitions(
        self, selection: Selection, expected: Collection[PartitionId] = ()
    ) -> list[PartitionId]:
        """
        The partitions to read, sorted.

        @param expected: partitions to wait for, within the retry policy.
        @raise NoBrokersError: no broker has a topic that is named.
        @raise BrokerConnectionError: a listed broker does not answer.
        @raise ZookeeperError: ZooKeeper cannot be read, and never could.
        """
        for isLast in self._policy.attempts():
            try:
                found = findPartitions(self._metadata, selection)
            except (NoBrokersError, BrokerConnectionError) as error:
                if isLast:
                    raise type(error)(
                        f"{error} ({self._policy.retryCount + 1} attempts in {self._options.name})"
                    ) from error
                log.warning("Looking for the partitions again: %s", error)
            except ZookeeperError as error:
                if not self._known:
                    raise
                log.warning("Cannot read ZooKeeper, so new partitions stay unknown: %s", error)
                return self._known
            else:
                self._known = found
                if set(found).issuperset(expected):
                    break
        return self._known

    def brokers(self, needed: Iterable[PartitionId | OffsetRange]) -> BrokerClients:
        """
        Clients, which the caller closes. Without ZooKeeper the last known addresses stay in use: a
        broker that has moved does not answer there.

        @param needed: partitions whose brokers to wait for, within the retry policy.
        @raise NoBrokersError: a broker stayed away.
        @raise ZookeeperError: ZooKeeper cannot be read, and a broker is not known from before.
        """
        wanted = {each.partition.broker for each in needed}
        for _isLast in self._policy.attempts():
            try:
                self._addresses = self._metadata.brokers()
            except ZookeeperError as error:
                if not wanted.issubset(self._addresses):
                    raise
                log.warning("Cannot read ZooKeeper; the last known addresses are used: %s", error)
            if wanted.issubset(self._addresses):
                return BrokerClients(self._addresses, self._options, self._policy)
        missing = min(wanted.difference(self._addresses))
        known = ", ".join(map(str, sorted(self._addresses))) or "none"
        raise NoBrokersError(
            f"there is no broker {missing} after {self._policy.retryCount + 1} attempts;"
            f" the brokers are {known}"
        )


def findPartitions(metadata: IClusterMetadata, selection: Selection) -> list[PartitionId]:
    """
    The partitions of a selection as they are now, sorted.

    @raise NoBrokersError: no broker has a topic that is named.
    """
    if selection.assigned:
        return sorted(selection.assigned)
    names: Iterable[str] = selection.topics
    if selection.pattern:
        matches = TopicPattern(selection.pattern).matches
        names = [name for name in metadata.topics() if matches(name)]
    found: list[PartitionId] = []
    for topic in sorted(names):
        partitions = metadata.partitions(topic)
        if not partitions and not selection.pattern:
            raise NoBrokersError(f"no broker has topic {topic}")
        found += [PartitionId(topic, partition) for partition in partitions]
    return found


def isSelected(selection: Selection, partition: PartitionId) -> bool:
    """Whether a selection includes a partition, whether or not a broker has it."""
    if selection.pattern:
        return TopicPattern(selection.pattern).matches(partition.topic)
    return partition in selection.assigned or partition.topic in selection.topics
