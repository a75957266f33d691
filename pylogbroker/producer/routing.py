"""
Which broker and partition a message goes to (spec-0.7 producer §2).

With ZooKeeper: the topic's partitions in order, and the partitioner's choice among them, or chance if there is no key. With a list of brokers: one of them by
chance, key or not, and the partition is left to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pylogbroker.client.discovery import IDiscovery
from pylogbroker.cluster.partitioner import (
    REMEMBERED_COUNT_MAX,
    REMEMBERED_LENGTH_MAX,
    Partitioner,
    defaultPartitioner,
)
from pylogbroker.errors import InvalidPartitionError, PylogbrokerError
from pylogbroker.producer.batches import PartitionBatch
from pylogbroker.types import RANDOM_PARTITION, BrokerPartition


class TopicRoute:
    """
    What is known of a topic, for as long as it stays as it is: kept so that it is not asked for with each message.

    @ivar places: its partitions; the very list that the discovery gave, which gives another one when anything has changed.
    @ivar count: of them.
    @ivar batches: what is collected for each, as far as it was looked for; it may be closed.
    @ivar indexes: what C{choose} said of keys for which it says the same again; L{None} among them, for no key, if there is but one partition.
    @ivar router: which chooses among them.
    """

    __slots__ = ("batches", "count", "indexes", "places", "router")

    def __init__(self, places: list[BrokerPartition], router: Router) -> None:
        self.router = router
        self.places = places
        self.count = len(places)
        self.batches = [_CLOSED] * self.count
        self.indexes: dict[str | None, int] = {None: 0} if self.count == 1 else {}

    def choose(self, topic: str, key: Any) -> int:
        """
        The index of a partition; the rest is as of L{Router.choose}.
        """
        index = self.router.index(topic, key, self.count)
        if (
            type(key) is str
            and self.router.isSteady
            and len(key) <= REMEMBERED_LENGTH_MAX
            and key not in self.indexes
        ):
            self.indexes[key] = index
            self.router.remember(self.indexes, key)
        return index


_CLOSED = PartitionBatch("", RANDOM_PARTITION)


class Router:
    """
    Chooses.

    @ivar partitions: of a topic; the discovery's.
    @ivar isSteady: whether a key that is text goes to the same of so many partitions whenever it is asked for.
    """

    def __init__(
        self, discovery: IDiscovery, partitioner: Partitioner, random: Callable[[], float]
    ) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        """
        self.partitions = discovery.partitions
        self.isSteady = partitioner is defaultPartitioner and not discovery.isStatic
        self._isStatic = discovery.isStatic
        self._remembered: deque[tuple[dict[str | None, int], str]] = deque()
        self._partitioner = partitioner
        self._random = random

    def choose(
        self, topic: str, key: Any = None, avoid: int | None = None
    ) -> BrokerPartition | None:
        """
        @param avoid: a broker that is not taken if there is another choice, and the key leaves one.
        @return: L{None} when nothing is known of the topic: it must be looked up.
        @raise InvalidPartitionError: the partitioner gave no index of a partition, or failed.
        @raise pylogbroker.errors.InvalidKeyError: the default partitioner does not know such keys.
        """
        places = self.partitions(topic)
        if avoid is not None and (key is None or self._isStatic):
            places = [place for place in places if place.broker != avoid] or places
        return places[self.index(topic, key, len(places))] if places else None

    def remember(self, indexes: dict[str | None, int], key: str) -> None:
        """A route remembers a key: the oldest one of all routes is forgotten when there are too many."""
        self._remembered.append((indexes, key))
        if len(self._remembered) > REMEMBERED_COUNT_MAX:
            oldIndexes, oldKey = self._remembered.popleft()
            oldIndexes.pop(oldKey, None)

    def index(self, topic: str, key: Any, count: int) -> int:
        """
        The choice among so many partitions, at least one; the rest is as of C{choose}.
        """
        if key is not None and not self._isStatic:
            return self._partition(topic, key, count)
        return int(self._random() * count) if count > 1 else 0

    def _partition(self, topic: str, key: Any, count: int) -> int:
        try:
            index: Any = self._partitioner(key, count)
        except PylogbrokerError:
            raise
        except Exception as error:  # the application's own partitioner
            raise InvalidPartitionError(
                f"the partitioner failed for topic {topic} and key {key!r}: {error!r}"
            ) from error
        if not isinstance(index, int) or not 0 <= index < count:
            raise InvalidPartitionError(
                f"the partitioner gave {index!r} for topic {topic} and key {key!r}; 0 to {count - 1} would be right"
            )
        return index
