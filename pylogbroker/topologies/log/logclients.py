"""
What the log spout and the log bolt need of a cluster of either dialect. A module of its own, since
both dialects implement it.

All calls block. Errors that pass, such as those of a broker that restarts, are L{TRANSIENT_ERRORS}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pylogbroker.config.topologies.logsettings import StartPosition
from pylogbroker.errors import (
    BrokerConnectionError,
    NoBrokersError,
    PylogbrokerError,
    ZookeeperError,
)
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.records.recordbatch import Headers
from pylogbroker.retry import Backoff, RetryDelays
from pylogbroker.types import AnyPartition, OffsetBounds

TRANSIENT_ERRORS = (BrokerConnectionError, NoBrokersError, ZookeeperError, ResponseError)
"""May pass; of a L{ResponseError} its C{isRetriable} says whether it does."""


AWAY_DELAYS = RetryDelays(200, 5_000)
"""Between attempts to read from a broker that does not answer."""

log = logging.getLogger(__name__)


def isTransient(error: BaseException) -> bool:
    """Whether the request may be tried again later."""
    if isinstance(error, ResponseError):
        return error.isRetriable
    return isinstance(error, TRANSIENT_ERRORS)


class LogRecord(NamedTuple):
    """
    A record as it was read. One of 2011 has no key, time and headers.

    @ivar nextOffset: the position to commit behind it.
    @ivar timestampMs: since the epoch; -1: none.
    @ivar value: L{None}: a tombstone.
    """

    partition: AnyPartition
    offset: int
    nextOffset: int
    key: bytes | None
    value: bytes | None
    timestampMs: int = -1
    headers: Headers = ()

    @property
    def topic(self) -> str:
        """Where it was read."""
        return self.partition.topic


class LogMessage(NamedTuple):
    """
    A message to write. In the log of 2011 the key only chooses the partition.

    @ivar timestampMs: since the epoch; L{None}: the time of sending.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    timestampMs: int | None = None
    headers: Headers = ()

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class ReadResult(NamedTuple):
    """
    @ivar positions: behind what was read, also of what holds no records.
    """

    records: Sequence[LogRecord]
    positions: Mapping[AnyPartition, int]


class ILogReader(Protocol):
    """Reads partitions, and keeps positions. Raises L{TRANSIENT_ERRORS}."""

    def partitions(self) -> Sequence[AnyPartition]:
        """The partitions of the topics as they are now."""

    def share(self, partition: AnyPartition) -> int:
        """A number by which partitions are divided; it depends on the partition alone."""

    def committed(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, int]:
        """The positions of the group, of partitions that have one."""

    def commit(self, positions: Mapping[AnyPartition, int]) -> None:
        """
        Commit positions.

        @raise ConfigurationError: consumers have the group.
        """

    def starts(
        self, partitions: Collection[AnyPartition], start: StartPosition, nowMs: int
    ) -> Mapping[AnyPartition, int]:
        """
        Where reading begins.

        @param start: not C{none}.
        @param nowMs: milliseconds since 1970.
        """

    def bounds(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, OffsetBounds]:
        """What the log has."""

    def ends(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, int]:
        """Where partitions end; those whose brokers do not answer are left out."""

    def read(self, positions: Mapping[AnyPartition, int], waitMs: int) -> ReadResult:
        """
        Read on.

        @param positions: of one partition at least.
        @param waitMs: how long to wait for records.
        @raise OffsetOutOfRangeError: a position is not in the log.
        """

    def close(self) -> None:
        """Close all connections at once."""


class ILogWriter(Protocol):
    """Writes messages."""

    def write(self, messages: Sequence[LogMessage]) -> Sequence[PylogbrokerError | None]:
        """
        Write messages, and wait until the brokers have confirmed them. Those of one partition keep
        their order.

        @return: for each, L{None} when it is confirmed, or why it is not; then the log may have it
            all the same.
        """

    def close(self) -> None:
        """Close all connections."""


class AwayBrokers:
    """Brokers that did not answer, and are asked again later: each time later."""

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """
        @param clock: gives seconds.
        @param random: gives numbers from 0 up to, not including, 1.
        """
        self._clock = clock
        self._random = random
        self._away: dict[int, tuple[Backoff, float]] = {}

    def mustWait(self, broker: int) -> bool:
        """Whether it is not yet time to ask a broker again."""
        return broker in self._away and self._clock() < self._away[broker][1]

    def check(self, broker: int) -> None:
        """
        @raise BrokerConnectionError: it is not yet time to ask this broker again.
        """
        if self.mustWait(broker):
            raise BrokerConnectionError(f"broker {broker} did not answer and is asked again later")

    def failed(self, broker: int, error: Exception) -> None:
        """It did not answer."""
        log.warning("Broker %d does not answer: %s", broker, error)
        backoff = self._away.get(broker, (Backoff(self._random, AWAY_DELAYS), 0.0))[0]
        self._away[broker] = backoff, self._clock() + backoff.failed() / 1000

    def succeeded(self, broker: int) -> None:
        """It has answered."""
        self._away.pop(broker, None)


def byPartition(
    places: Iterable[AnyPartition],
) -> dict[AnyPartition, list[int]]:
    """The indexes of the items of each partition."""
    found: dict[AnyPartition, list[int]] = {}
    for index, where in enumerate(places):
        found.setdefault(where, []).append(index)
    return found
