"""
Trying again until it works: for what may be away for long and comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.errors import PylogbrokerError
from pylogbroker.retry import Backoff

T = TypeVar("T")

RETRY_FIRST_MS = 200
RETRY_MAX_MS = 10_000

log = Logger()


class RetryPolicy:
    """
    How one thing is waited for: later and later, and with a line in the log at the first failure and whenever the reason changes.
    """

    def __init__(self, clock: Any, random: Callable[[], float], sentence: str) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        @param sentence: what is the matter, for the log.
        """
        self._clock = clock
        self._sentence = sentence
        self._backoff = Backoff(random, firstMs=RETRY_FIRST_MS, maxMs=RETRY_MAX_MS)
        self._told: str | None = None

    def failed(self, error: PylogbrokerError) -> float:
        """It did not work. Returns how many milliseconds to wait."""
        if self._told != str(error):
            self._told = str(error)
            log.warn(
                "{sentence}: {error}. It is tried again until it works",
                sentence=self._sentence,
                error=error,
            )
        return self._backoff.failed()

    def succeeded(self) -> None:
        """It works."""
        if self._told is not None:
            log.info("Over: {sentence}", sentence=self._sentence)
            self._told = None
        self._backoff.succeeded()

    async def wait(self, error: PylogbrokerError) -> None:
        """It did not work: wait."""
        await deferLater(self._clock, self.failed(error) / 1000)


async def retryForever(work: Callable[[], Awaitable[T]], patience: RetryPolicy) -> T:
    """
    Do something until it works.

    @return: what it came to.
    """
    while True:
        try:
            done = await work()
        except PylogbrokerError as error:
            await patience.wait(error)
        else:
            patience.succeeded()
            return done
