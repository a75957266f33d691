"""
Which broker and partition a message goes to (spec-0.7 producer §2).

With ZooKeeper: the topic's partitions in order, and the partitioner's choice among them, or chance if there is no key. With a list of brokers: one of them by
chance, key or not, and the partition is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogbroker.client.discovery import IDiscovery
from pylogbroker.cluster.partitioning import Partitioner
from pylogbroker.errors import InvalidPartitionError, PylogbrokerError
from pylogbroker.model import BrokerPartition


class Router:
    """
    Chooses.
    """

    def __init__(self, discovery: IDiscovery, partitioner: Partitioner, random: Callable[[], float]) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        """
        self._discovery = discovery
        self._partitioner = partitioner
        self._random = random

    def choose(self, topic: str, key: Any = None, avoid: int | None = None) -> BrokerPartition | None:
        """
        @param avoid: a broker that is not taken if there is another choice, and the key leaves one.
        @return: L{None} when nothing is known of the topic: it must be looked up.
        @raise InvalidPartitionError: the partitioner gave no index of a partition, or failed.
        @raise pylogbroker.errors.InvalidKeyError: the default partitioner does not know such keys.
        """
        places = self._discovery.partitions(topic)
        if not places:
            return None
        if key is not None and not self._discovery.isStatic:
            return places[self._index(topic, key, len(places))]
        if avoid is not None:
            places = [place for place in places if place.broker != avoid] or places
        return places[int(self._random() * len(places))] if len(places) > 1 else places[0]

    def _index(self, topic: str, key: Any, count: int) -> int:
        try:
            index: Any = self._partitioner(key, count)
        except PylogbrokerError:
            raise
        except Exception as error:  # the application's own partitioner
            raise InvalidPartitionError(f"the partitioner failed for topic {topic} and key {key!r}: {error!r}") from error
        if not isinstance(index, int) or not 0 <= index < count:
            raise InvalidPartitionError(f"the partitioner gave {index!r} for topic {topic} and key {key!r}; 0 to {count - 1} would be right")
        return index
