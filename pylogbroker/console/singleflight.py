"""
What is gathered only when somebody asks, and seldom enough.

Who asks gets what is known if it is young; else one gathering is made for all who ask meanwhile. A
gathering that took long is kept longer, so that looking takes at most a small part of the time of
whoever is asked, however large a cluster is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")

AGE_MS = 800
SHARE = 20
"""What took a time is kept for so many times as long."""


class TtlCache(Generic[T]):
    """One value that is gathered when somebody asks and it is old."""

    def __init__(self, clock: Any, gather: Callable[[], Awaitable[T]], ageMs: int = AGE_MS) -> None:
        self._clock = clock
        self._gather = gather
        self._age = ageMs / 1000
        self._value: T | None = None
        self._until = 0.0
        self._waiting: list[Deferred[T]] | None = None

    def get(self) -> Deferred[T]:
        """
        @return: fires with the value; fails as gathering does.
        """
        waiting: Deferred[T] = Deferred()
        if self._value is not None and self._clock.seconds() < self._until:
            waiting.callback(self._value)
        elif self._waiting is not None:
            self._waiting.append(waiting)
        else:
            self._waiting = [waiting]
            begun = self._clock.seconds()
            Deferred.fromCoroutine(self._take()).addBoth(self._over, begun)
        return waiting

    async def _take(self) -> T:
        self._value = await self._gather()
        return self._value

    def _over(self, result: Any, begun: float) -> None:
        if isinstance(result, Failure):
            self._value = None  # what was known is old, and nobody is told that it is young
        now = self._clock.seconds()
        self._until = now + max(self._age, SHARE * (now - begun))
        waiting, self._waiting = self._waiting or [], None
        for each in waiting:
            each.callback(result)  # a Failure is passed on as one
