"""
When to try again: the delays after failures, and when a producer replaces a good connection.

All of it is arithmetic: these classes are told the time and given random numbers, and answer with a
duration or with yes or no. The caller waits, on a reactor's clock or in a thread, so both kinds of
client, Spark and the mirror share one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class RetryDelays(NamedTuple):
    """
    How the delays of a L{Backoff} grow.

    @ivar firstMs: milliseconds after the first failure.
    @ivar maxMs: the longest delay.
    @ivar factor: by which a delay grows with each further failure.
    @ivar jitter: the part of a delay, from 0 to 1, that chance may take away.
    """

    firstMs: float
    maxMs: float
    factor: float = 2
    jitter: float = 0.5


RECONNECT_DELAYS = RetryDelays(10, 2_000)
"""Between attempts to connect to a broker."""

READ_DELAYS = RetryDelays(100, 5_000)
"""Between attempts to read from ZooKeeper, and between Spark's attempts to ask a broker."""

RESEND_DELAYS = RetryDelays(200, 10_000)
"""Between the mirror's attempts to send a batch, and to join its clusters."""

PARTITION_DELAYS = RetryDelays(1_000, 60_000, jitter=0)
"""Between attempts to fetch a partition that could not be read."""

RETRY_INTERVAL_MS = 1_000
"""Between attempts of a service that tries until it succeeds, always with the same delay."""

RECONNECT_INTERVAL = 30_000
"""Default of C{reconnect.interval}, requests."""

RECONNECT_TIME_INTERVAL_MS = 10_000_000
"""Default of C{reconnect.time.interval.ms}."""


class Backoff:
    """
    Exponential backoff with jitter, so that the clients of one broker that failed do not all return
    at the same instant.

    0.7.2 waits 1, 10, 100 … up to 60,000 ms, begins anew with every call, and gives up when the
    next delay would end too late (spec-0.7 producer §4): it tries a broker that needs two seconds
    to start for one second only.
    """

    __slots__ = ("_delays", "_nextMs", "_random")

    def __init__(self, random: Callable[[], float], delays: RetryDelays = RECONNECT_DELAYS) -> None:
        """
        @param random: gives numbers from 0 up to, not including, 1.
        """
        self._random = random
        self._delays = delays
        self._nextMs = delays.firstMs

    def failed(self) -> float:
        """Record a failed attempt. Returns the milliseconds to wait before the next one."""
        delays = self._delays
        delay = min(self._nextMs, delays.maxMs)
        self._nextMs = min(self._nextMs * delays.factor, delays.maxMs)
        return delay * (1 - delays.jitter * self._random())

    def succeeded(self) -> None:
        """Record a success: the next delay is the first one again."""
        self._nextMs = self._delays.firstMs


@dataclass
class BlockingRetryPolicy:
    """
    A limited number of attempts in a thread, with a L{Backoff} between them.

    @ivar retryCount: attempts after the first one.
    @ivar sleep: waits for a number of seconds.
    @ivar random: as of L{Backoff}.
    """

    retryCount: int
    sleep: Callable[[float], object]
    random: Callable[[], float]
    delays: RetryDelays = READ_DELAYS

    def attempts(self) -> Iterator[bool]:
        """One item for each attempt: whether it is the last. Sleeps before all but the first."""
        backoff = Backoff(self.random, self.delays)
        for _retry in range(self.retryCount):
            yield False
            self.sleep(backoff.failed() / 1000)
        yield True


class PeriodicReconnect:
    """
    When a producer replaces a good connection, so that the connections of many producers spread
    again behind an address that stands for several brokers: after C{reconnect.interval} requests or
    C{reconnect.time.interval.ms} milliseconds (spec-0.7 producer §4).

    The first connection counts as made a random part of the interval ago, so that producers that
    start together do not reconnect together. (0.7.2 takes that part of the request count, by
    mistake; gotcha 36.)
    """

    def __init__(self, intervalCount: int, intervalMs: float, random: Callable[[], float]) -> None:
        """
        @param intervalCount: requests over one connection.
        @param intervalMs: milliseconds that a connection is used; negative: without limit.
        @param random: as of L{Backoff}.
        @raise ValueError: C{intervalCount} is not positive.
        """
        if intervalCount < 1:
            raise ValueError(f"reconnect interval of {intervalCount} requests")
        self._intervalCount = intervalCount
        self._intervalMs = intervalMs
        self._count = 0
        self._headStartMs = random() * max(intervalMs, 0)
        self._sinceMs = 0.0

    def connected(self, nowMs: float) -> None:
        """Record a new connection."""
        self._count = 0
        self._sinceMs = nowMs - self._headStartMs
        self._headStartMs = 0.0

    def sent(self, nowMs: float) -> bool:
        """Record a request. Returns whether to replace the connection now."""
        self._count += 1
        return self._count >= self._intervalCount or 0 <= self._intervalMs <= nowMs - self._sinceMs
