"""
Faults that are planted into members of the simulated cluster, to see that it finds them. Each is a
mistake that somebody could make.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.rebalance import Effect, GroupState, Rebalance, State, computeAssignment
from pylogbroker.consumer.stream import Chunk, MessageStream
from pylogbroker.types import PartitionId
from tests.simulation.simulation import Plants


class _Session:
    """A member's ZooKeeper client with something wrong in it; all else is passed on."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class ForgetsReleases(_Session):
    """A release is forgotten: the owner's node stays, though the member has let go."""

    def delete(self, path: str, version: int = -1) -> Deferred[None]:
        if "/owners/" in path:
            return succeed(None)
        deleted: Deferred[None] = self._session.delete(path, version)
        return deleted


class WatchesOnce(_Session):
    """A watch is not armed again after it has fired: each path is watched once."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._seen: set[str] = set()

    def get_children_and_watch(self, path: str) -> tuple[Deferred[list[str]], Deferred[Any]]:
        if path in self._seen:
            return self._session.get_children(path), Deferred()
        self._seen.add(path)
        both: tuple[Deferred[list[str]], Deferred[Any]] = self._session.get_children_and_watch(path)
        return both


class EagerStream(MessageStream):
    """
    A commit that comes too early: the position moves when a chunk arrives, and not when its
    messages are handed out.
    """

    def put(self, chunk: Chunk) -> None:
        super().put(chunk)
        if not self.isEnded:
            self.positions[chunk.partition] = chunk.messages.nextOffset


class _Eager(ConsumerConnector):
    def _makeStream(self, topic: str, index: int, decode: Any) -> MessageStream:
        settings = self._settings
        return EagerStream(
            f"{self.consumerId}-{index}",
            self._clock,
            self._offsets.positions,
            decode=decode,
            chunkCountMax=settings.queuedChunksMax,
            queuedSizeMax=settings.maxQueuedBytes,
        )


class UnsortedRebalance(Rebalance):
    """
    A list is not sorted: this member shares the partitions out as they happen to be listed, and it
    lists them from the end.
    """

    def _groupRead(self, state: GroupState, missing: frozenset[PartitionId]) -> list[Effect]:
        order = {topic: sorted(places, key=str) for topic, places in state.topics.items()}
        mirrors = {
            topic: dict(zip(places, reversed(places), strict=True))
            for topic, places in order.items()
        }
        share = computeAssignment(self._consumerId, state)
        if share is None:
            return super()._groupRead(state, missing)
        self._brokers = state.brokers
        self._wanted = {
            PartitionId(place.topic, mirrors[place.topic][place.partition]): thread
            for place, thread in share.items()
        }
        if self._wanted == self.owned and not self._uncertain:
            return self._own()
        held = {**self._uncertain, **self.owned}
        return self._release(
            State.RELEASING,
            {place: thread for place, thread in held.items() if self._wanted.get(place) != thread},
        )


class _Unsorted(ConsumerConnector):
    def __init__(
        self, reactor: Any, settings: Any, *arguments: Any, random: Random, **more: Any
    ) -> None:
        super().__init__(reactor, settings, *arguments, random=random, **more)
        if random.random() < 0.5:  # if all did, nobody would notice
            self._member._rebalance = UnsortedRebalance(
                self.consumerId, self._settings.rebalanceRetriesMax
            )


PLANTS = {
    "a release forgotten": Plants(session=ForgetsReleases),
    "a commit too early": Plants(connect=_Eager),
    "an unsorted list": Plants(connect=_Unsorted),
    "a watch not armed again": Plants(session=WatchesOnce),
}
