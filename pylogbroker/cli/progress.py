"""
One line on a terminal that says how far we are. On anything but a terminal, nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

INTERVAL_SECONDS = 0.2
_WIDTH_MAX = 79


def formatBytes(size: float) -> str:
    """Bytes, for people: C{1.5 MB}. Powers of 1000."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"


class Progress:
    """
    Messages and bytes that are done, their rate, and how much of the whole that is.
    """

    def __init__(
        self, errors: TextIO, clock: Callable[[], float], sizeTotal: int | None = None
    ) -> None:
        """
        @param errors: where to show it.
        @param clock: seconds.
        @param sizeTotal: bytes of the whole; L{None} when nobody knows.
        """
        self._errors = errors
        self._clock = clock
        self._sizeTotal = sizeTotal
        self._isTerminal = errors.isatty()
        self._start = self._last = clock()
        self._isShown = False

    def update(self, count: int, size: int, stage: str = "") -> None:
        """
        Show it, unless that was done a moment ago.

        @param count: messages done.
        @param size: bytes done.
        @param stage: what is being done, where there are several things.
        """
        now = self._clock()
        if not self._isTerminal or now - self._last < INTERVAL_SECONDS:
            return
        self._last = now
        part = f", {100 * size / self._sizeTotal:.0f} %" if self._sizeTotal else ""
        text = f"{stage + ': ' if stage else ''}{count:,} messages, {formatBytes(size)}{part}, {count / (now - self._start):,.0f} messages/s"
        self._show("\r" + text[:_WIDTH_MAX].ljust(_WIDTH_MAX))
        self._isShown = True

    def clear(self) -> None:
        """Take it off the terminal again."""
        if self._isShown:
            self._show("\r" + " " * _WIDTH_MAX + "\r")
            self._isShown = False

    def _show(self, text: str) -> None:
        try:
            self._errors.write(text)
            self._errors.flush()
        except (OSError, ValueError):
            self._isTerminal = False
