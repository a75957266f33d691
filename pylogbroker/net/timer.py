"""
A timer that can be started and stopped at any time, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from twisted.internet.interfaces import IDelayedCall, IReactorTime

P = ParamSpec("P")


class Timer:
    """
    One call in the future, or none.
    """

    __slots__ = ("_clock", "_pending")

    def __init__(self, clock: IReactorTime) -> None:
        """
        @param clock: what calls.
        """
        self._clock = clock
        self._pending: IDelayedCall | None = None

    @property
    def isRunning(self) -> bool:
        """Whether a call is to come."""
        return self._pending is not None

    def start(
        self, ms: float, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """
        Call later, and take back what was to be called before that.

        @param ms: milliseconds; less than none is none.
        """
        self.stop()

        def ring() -> None:
            self._pending = None
            call(*args, **kwargs)

        self._pending = self._clock.callLater(max(ms, 0) / 1000, ring)

    def stop(self) -> None:
        """Take the call back, if there is one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
