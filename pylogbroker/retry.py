"""
When to connect again: after a failure, later and later; and to a broker that is well, now and then.

Both rules are arithmetic: they are told the time and chance, and answer with a duration or with yes or no. Whoever asks does the waiting, on a
clock or in a thread. They stand here, on floor 2, since both low-level clients need them, and the Twisted one stands above.
"""

from __future__ import annotations

from collections.abc import Callable

BACKOFF_FIRST_MS = 10
BACKOFF_FACTOR = 2
BACKOFF_MAX_MS = 2_000
BACKOFF_JITTER = 0.5

RECONNECT_INTERVAL = 30_000
"""Default of C{reconnect.interval}, requests."""

RECONNECT_TIME_INTERVAL_MS = 10_000_000
"""Default of C{reconnect.time.interval.ms}."""


class Backoff:
    """
    Waiting times that grow with every failure in a row, with jitter, so that many clients of one broker that went down do not all come
    back in the same instant.

    0.7.2 waits 1, 10, 100 … up to 60,000 ms, begins anew with every call, and gives up when the next wait would end too late (spec-0.7
    producer §4): a broker that needs two seconds to start is then tried for one. Ours doubles from 10 ms up to 2 s, so that a caller who has five
    seconds tries several times, up to the end of them.
    """

    def __init__(
        self,
        random: Callable[[], float],
        *,
        firstMs: float = BACKOFF_FIRST_MS,
        factor: float = BACKOFF_FACTOR,
        maxMs: float = BACKOFF_MAX_MS,
        jitter: float = BACKOFF_JITTER,
    ) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        @param firstMs: the wait after the first failure.
        @param factor: by which it grows with each more.
        @param maxMs: the longest.
        @param jitter: the part of a wait, from 0 to 1, that chance may take away.
        """
        self._random = random
        self._firstMs = firstMs
        self._factor = factor
        self._maxMs = maxMs
        self._jitter = jitter
        self._nextMs = firstMs

    def failed(self) -> float:
        """An attempt failed. Returns for how many milliseconds to wait before the next."""
        wait = min(self._nextMs, self._maxMs)
        self._nextMs = min(self._nextMs * self._factor, self._maxMs)
        return wait * (1 - self._jitter * self._random())

    def succeeded(self) -> None:
        """The other side is well: the next failure is a first one."""
        self._nextMs = self._firstMs


class ReconnectPolicy:
    """
    When a producer lets go of a good connection and makes a new one, so that the connections of many producers spread again behind an address that
    stands for several brokers: after so many requests, or so long a time (spec-0.7 producer §4, C{reconnect.interval} and C{reconnect.time.interval.ms}).

    The time of the first connection is taken to be a random part of the interval ago, so that producers that were started together do not reconnect together.
    (0.7.2 takes that part of the request count, by mistake; gotcha 36.)
    """

    def __init__(self, intervalCount: int, intervalMs: float, random: Callable[[], float]) -> None:
        """
        @param intervalCount: requests over one connection.
        @param intervalMs: milliseconds that a connection is used; negative: any time.
        @param random: numbers from 0 up to, not including, 1.
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
        """A connection was made."""
        self._count = 0
        self._sinceMs = nowMs - self._headStartMs
        self._headStartMs = 0.0

    def sent(self, nowMs: float) -> bool:
        """A request was written. Returns whether the connection is to be replaced now."""
        self._count += 1
        return self._count >= self._intervalCount or 0 <= self._intervalMs <= nowMs - self._sinceMs
