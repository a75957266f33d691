"""
Back pressure, as spouts feel it: why the spouts of a container must stand still, and for how long
they have. A module of its own, since it is arithmetic, without a connection.
"""

from __future__ import annotations

from collections.abc import Callable


class BackPressureState:
    """The reasons of one stream manager."""

    def __init__(self, seconds: Callable[[], float], changed: Callable[[], object]) -> None:
        """
        @param seconds: what time it is, of any clock.
        @param changed: called when L{isInitiated} or L{isOn} may be another.
        """
        self._seconds = seconds
        self._changed = changed
        self._peers: set[int] = set()
        self._queues: dict[object, tuple[str, float]] = {}  # names, and since when it is too long
        self._times: dict[str, float] = {}  # seconds, of queues that were
        self._stoppedSince: float | None = None
        self._stoppedTime = 0.0

    @property
    def isInitiated(self) -> bool:
        """Whether a queue of this stream manager is too long: its peers must be told."""
        return bool(self._queues)

    @property
    def isOn(self) -> bool:
        """Whether the spouts must stand still."""
        return bool(self._queues or self._peers)

    def initiate(self, queue: object, name: str) -> None:
        """A queue is too long."""
        self._queues.setdefault(queue, (name, self._seconds()))
        self._look()

    def relieve(self, queue: object) -> None:
        """A queue is short again, or gone."""
        found = self._queues.pop(queue, None)
        if found is not None:
            self._add(self._times, *found)
        self._look()

    def setPeer(self, container: int, isOn: bool) -> None:
        """Another stream manager asks for it, or not any more."""
        if isOn:
            self._peers.add(container)
        else:
            self._peers.discard(container)
        self._look()

    def _look(self) -> None:
        if self.isOn and self._stoppedSince is None:
            self._stoppedSince = self._seconds()
        elif not self.isOn and self._stoppedSince is not None:
            self._stoppedTime += self._seconds() - self._stoppedSince
            self._stoppedSince = None
        self._changed()

    def _add(self, times: dict[str, float], name: str, since: float) -> None:
        times[name] = times.get(name, 0.0) + self._seconds() - since

    @property
    def stoppedTime(self) -> float:
        """Seconds for which the spouts have stood still."""
        since = self._stoppedSince
        return self._stoppedTime + (0 if since is None else self._seconds() - since)

    def times(self) -> dict[str, float]:
        """Seconds for which the queues of each name were too long, those of each summed up."""
        times = dict(self._times)
        for name, since in self._queues.values():
            self._add(times, name, since)
        return times
