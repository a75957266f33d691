"""
L{Timer}: one delayed call that can be restarted and stopped. L{wallMs}: the time to write down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from twisted.internet.interfaces import IDelayedCall, IReactorTime

P = ParamSpec("P")


def wallMs(clock: Any) -> int:
    """
    Milliseconds since the epoch, by the wall clock, which may be set at any time: for timestamps,
    not to measure how long something takes.

    @param clock: one whose C{seconds()} does not follow the wall clock has C{wallSeconds()}
        (L{pylogbroker.programs.clocksteps.keepTimers}).
    """
    return int(getattr(clock, "wallSeconds", clock.seconds)() * 1000)


class Timer:
    """One delayed call, or none."""

    __slots__ = ("_clock", "_pending")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._pending: IDelayedCall | None = None

    @property
    def isRunning(self) -> bool:
        return self._pending is not None

    def start(
        self, ms: float, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """
        Call later, instead of the pending call.

        @param ms: milliseconds; negative: 0.
        """
        self.stop()

        def ring() -> None:
            self._pending = None
            call(*args, **kwargs)

        self._pending = self._clock.callLater(max(ms, 0) / 1000, ring)

    def stop(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()
