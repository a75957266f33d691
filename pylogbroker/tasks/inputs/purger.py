"""
Deletes from repartition topics what was handled. A module of its own, since only it deletes
messages: those before a committed position, which no task needs again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.errors import PylogbrokerError
from pylogbroker.types import TopicPartition

log = Logger()


class RepartitionPurger:
    """
    Deletes now and then, of the partitions that a container has.
    """

    def __init__(self, admin: AdminClient, topics: Collection[str], intervalMs: float) -> None:
        """@param topics: the repartition topics."""
        self._admin = admin
        self._topics = topics
        self._intervalMs = intervalMs
        self._dueAtMs: float | None = None
        self._purged: dict[TopicPartition, int] = {}
        self._purging: Deferred[None] | None = None
        self._said = ""

    def tick(self, nowMs: float, committed: Mapping[TopicPartition, int]) -> None:
        """
        Begin to delete, if it is time, and nothing is being deleted.

        @param committed: positions.
        """
        if self._dueAtMs is None:
            self._dueAtMs = nowMs + self._intervalMs
        if nowMs < self._dueAtMs or self._purging is not None:
            return
        self._dueAtMs = nowMs + self._intervalMs
        offsets = {
            place: offset
            for place, offset in committed.items()
            if place.topic in self._topics and offset > self._purged.get(place, 0)
        }
        if offsets:
            self._purging = Deferred.fromCoroutine(self._purge(offsets))
            self._purging.addBoth(self._done)

    async def _purge(self, offsets: dict[TopicPartition, int]) -> None:
        try:
            found = await self._admin.deleteRecords(offsets)
        except PylogbrokerError as error:
            self._say(str(error))
            return
        for place, outcome in found.items():
            if isinstance(outcome, PylogbrokerError):
                self._say(f"{place}: {outcome}")
            else:
                self._purged[place] = offsets[place]

    def _say(self, reason: str) -> None:
        """Once: the next turn tries again."""
        if reason != self._said:
            log.info("A repartition topic keeps what was handled: {reason}", reason=reason)
        self._said = reason

    def _done(self, result: object) -> object:
        self._purging = None
        failed = getattr(result, "check", None)
        return None if failed is None or failed(CancelledError) else result

    def stop(self) -> None:
        """Delete nothing more."""
        if self._purging is not None:
            self._purging.cancel()
