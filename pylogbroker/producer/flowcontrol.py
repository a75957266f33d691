"""
A producer of the log as a consumer of bytes, in Twisted's sense: whoever writes is paused when the queue fills, and resumed when it has emptied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorTime

HIGH_PARTS, LOW_PARTS = 3 / 4, 1 / 4
"""Of the queue: where a Twisted producer is paused, and where it is resumed."""


class UpstreamFlowControl:
    """
    Who writes, if anybody does.
    """

    def __init__(self, clock: IReactorTime, fullness: Callable[[], float]) -> None:
        """
        @param clock: a pull producer is asked again in the next turn.
        @param fullness: the part of the queue that is taken; from 0 to 1, or more.
        """
        self._clock = clock
        self._fullness = fullness
        self._source: Any = None
        self._isPushing = False
        self._isEnded = False
        self.isPaused = False

    def register(self, source: Any, isPushing: bool) -> None:
        """
        Someone writes from now on; after C{end} it is told to stop.

        @raise RuntimeError: someone does already.
        """
        if self._source is not None:
            raise RuntimeError(f"{self._source!r} is registered already")
        self._source = source
        self._isPushing = isPushing
        self.isPaused = False
        if self._isEnded:
            source.stopProducing()
        elif not isPushing:
            self.isPaused = True
            self.look()

    def unregister(self) -> None:
        """Nobody writes any more."""
        self._source = None
        self.isPaused = False

    def wrote(self) -> None:
        """Something was written."""
        if self._source is None:
            return
        if not self._isPushing:
            self.isPaused = True
            self._clock.callLater(0, self.look)
        elif not self.isPaused and self._fullness() >= HIGH_PARTS:
            self.isPaused = True
            self._source.pauseProducing()

    def look(self) -> None:
        """May who writes go on?"""
        if self._source is None or not self.isPaused or self._isEnded:
            return
        if self._fullness() <= (LOW_PARTS if self._isPushing else HIGH_PARTS):
            self.isPaused = False
            self._source.resumeProducing()

    def end(self) -> None:
        """Nothing is taken any more."""
        self._isEnded = True
        if self._source is not None:
            source, self._source = self._source, None
            source.stopProducing()
