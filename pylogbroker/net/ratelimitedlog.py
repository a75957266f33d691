"""
Log lines that others can cause, at a rate that they cannot: one a kind and interval, which says how many were left out. A server's strangers do, and a client's
server.
"""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

INTERVAL_MS = 10_000


class RateLimitedLogger:
    """
    A L{Logger} in front of which each kind of line waits its turn. Kinds are few: they are the sentences in our code.
    """

    def __init__(self, clock: Any, log: Logger, intervalMs: int = INTERVAL_MS) -> None:
        self._clock = clock
        self._log = log
        self._interval = intervalMs / 1000
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, sentence: str, **fields: object) -> None:
        """
        Log a warning, unless one of its kind was logged a moment ago.

        @param sentence: a format for the fields; it is the kind.
        """
        now = self._clock.seconds()
        next_, leftOut = self._kinds.get(sentence, (0.0, 0))
        if now < next_:
            self._kinds[sentence] = next_, leftOut + 1
            return
        self._kinds[sentence] = now + self._interval, 0
        more = f" ({leftOut} more of this kind were not logged)" if leftOut else ""
        self._log.warn(sentence + "{more}", more=more, **fields)
