"""
Clients of brokers for Spark. They only read, so a request without an answer can be repeated: a
broker that is away for a moment costs time, one that stays away is an error. Any answer is final,
an error code included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import NamedTuple, TypeVar

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import (
    BrokerConnectionError,
    NoBrokersError,
    RemotePartitionError,
    UnreadableRangeError,
)
from pylogbroker.retry import RetryPolicy
from pylogbroker.spark.options import ClusterOptions
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.types import LATEST, BrokerPartition

T = TypeVar("T")

SEGMENT_COUNT_MAX = 1_000_000
TIME_MAX_MS = 2**63 - 1

log = logging.getLogger(__name__)


def retryPolicy(retryCount: int) -> RetryPolicy:
    """A policy that sleeps between attempts."""
    return RetryPolicy(retryCount, sleep, SystemRandom().random)


class BrokerClients:
    """
    One client for each broker, connected when it is first called. A context manager: leaving it
    closes all connections.
    """

    def __init__(
        self,
        addresses: Mapping[int, BrokerAddress],
        options: ClusterOptions,
        policy: RetryPolicy | None = None,
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
        consumer = self._consumer(broker, what)
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

    def _consumer(self, broker: int, what: str) -> SimpleConsumer:
        consumer = self._consumers.get(broker)
        if consumer is None:
            address = self._addresses.get(broker)
            if address is None:
                known = ", ".join(map(str, sorted(self._addresses))) or "none"
                raise NoBrokersError(
                    f"{what}: there is no broker {broker}; the brokers are {known}"
                )
            consumer = self._consumers[broker] = self._options.consumer(address)
        return consumer


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


def fetchBounds(brokers: BrokerClients, topic: str, partition: BrokerPartition) -> SegmentBounds:
    """
    The bounds of a partition: one OFFSETS request lists the high watermark and the start of each
    segment (spec-0.7 wire-protocol §10).

    @raise UnreadableRangeError: the broker does not have this partition.
    @raise BrokerConnectionError: as L{BrokerClients.call}.
    """
    newestFirst = _offsetsBefore(brokers, topic, partition, LATEST)
    if not newestFirst:
        raise UnreadableRangeError(
            f"topic {topic}, partition {partition}: the broker does not name its end"
        )
    return SegmentBounds(tuple(reversed(newestFirst[1:])) or (newestFirst[-1],), newestFirst[0])


def fetchOffsetAt(
    brokers: BrokerClients, topic: str, partition: BrokerPartition, timeMs: int
) -> int:
    """
    The offset from which everything since a time can be read. Brokers know the times of segments
    only, so older messages may come along.

    @param timeMs: milliseconds since 1970.
    @raise BrokerConnectionError: as L{BrokerClients.call}.
    """
    found = _offsetsBefore(brokers, topic, partition, timeMs)
    return found[0] if found else fetchBounds(brokers, topic, partition).earliest


def hasLog(brokers: BrokerClients, topic: str, partition: BrokerPartition) -> bool:
    """
    Whether the broker has a log for a partition. If not, it names no offset before a time, but
    still 0 as the earliest and the latest offset (spec-0.7 wire-protocol §10).

    @raise BrokerConnectionError: as L{BrokerClients.call}.
    """
    return bool(_offsetsBefore(brokers, topic, partition, TIME_MAX_MS))


def _offsetsBefore(
    brokers: BrokerClients, topic: str, partition: BrokerPartition, time: int
) -> list[int]:
    what, number = f"topic {topic}, partition {partition}", partition.partition
    # A broker closes the connection on an OFFSETS request for a partition that it does not have,
    # but answers a FETCH request with an error code.
    empty = brokers.call(
        partition.broker, what, lambda consumer: consumer.fetch(topic, number, 0, 0)
    )
    if isinstance(empty.error, RemotePartitionError):
        raise UnreadableRangeError(
            f"{what}: the broker does not have this partition"
        ) from empty.error
    return brokers.call(
        partition.broker,
        what,
        lambda consumer: consumer.getOffsetsBefore(topic, number, time, SEGMENT_COUNT_MAX),
    )
