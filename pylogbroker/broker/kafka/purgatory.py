"""
Requests that wait for a time: one timer for all of them.

A fetch waits for data until its time is over, an acknowledgement for a flush. Thousands wait at the
same moment, and most end early; so a deadline is an entry in a heap, and the one timer is set to
the earliest. An entry that was cancelled stays in the heap until its time, or until half of the
entries are such.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from pylogbroker.net.timer import Timer

SLACK_COUNT = 64
TICK_SECONDS = 0.005
"""Deadlines this close to each other are served together."""


class Purgatory:
    """Calls functions when their time has come; L{Purgatory.cancel} forgets one."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._timer = Timer(clock)
        self._heap: list[tuple[float, int]] = []
        self._calls: dict[int, Callable[[], object]] = {}
        self._number = 0
        self._dueAt = 0.0

    def __len__(self) -> int:
        return len(self._calls)

    def wait(self, ms: float, call: Callable[[], object]) -> int:
        """
        Call a function later; it must not raise.

        @return: a key for L{cancel}.
        """
        self._number = key = self._number + 1
        due = self._clock.seconds() + ms / 1000
        self._calls[key] = call
        heappush(self._heap, (due, key))
        if not self._timer.isRunning or due < self._dueAt - TICK_SECONDS:
            self._start()
        return key

    def cancel(self, key: int) -> None:
        """Forget a call. Without effect when it was made."""
        if self._calls.pop(key, None) is None:
            return
        if not self._calls:
            self._heap.clear()  # the timer goes on: setting it again for each flush costs more
        elif len(self._heap) > SLACK_COUNT + 2 * len(self._calls):
            self._heap = [each for each in self._heap if each[1] in self._calls]
            heapify(self._heap)

    def _start(self) -> None:
        self._dueAt = self._heap[0][0]
        self._timer.start((self._dueAt - self._clock.seconds()) * 1000, self._serve)

    def _serve(self) -> None:
        until = self._clock.seconds() + TICK_SECONDS
        while self._heap and self._heap[0][0] <= until:
            call = self._calls.pop(heappop(self._heap)[1], None)
            if call is not None:
                call()
        if self._heap and not self._timer.isRunning:
            self._start()

    def stop(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self._heap.clear()
        self._timer.stop()
