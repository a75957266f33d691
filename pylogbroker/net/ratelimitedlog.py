"""
L{RateLimitedLogger}: a logger that bounds the lines that clients or servers can cause.
"""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

INTERVAL_MS = 10_000


class RateLimitedLogger:
    """
    A L{Logger} that logs one line per format and interval, with the number of those left out. The
    formats in our code are few.
    """

    def __init__(self, clock: Any, log: Logger, intervalMs: int = INTERVAL_MS) -> None:
        self._clock = clock
        self._log = log
        self._interval = intervalMs / 1000
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, format: str, **fields: object) -> None:
        now = self._clock.seconds()
        next_, leftOut = self._kinds.get(format, (0.0, 0))
        if now < next_:
            self._kinds[format] = next_, leftOut + 1
            return
        self._kinds[format] = now + self._interval, 0
        more = f" ({leftOut} more of this kind were not logged)" if leftOut else ""
        self._log.warn(format + "{more}", more=more, **fields)
