"""
Routing: the broker and partition of each message (spec-0.7 producer §2).

With ZooKeeper, the partitioner chooses a partition by key, or at random without a key. With
C{broker.list}, chance chooses a broker, and the broker the partition.

Calls for a topic wait in order while the topic is being looked up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.discovery import BrokerNode, IDiscovery, StaticDiscovery
from pylogbroker.cluster import paths
from pylogbroker.cluster.partitioner import (
    REMEMBERED_COUNT_MAX,
    REMEMBERED_LENGTH_MAX,
    Partitioner,
    defaultPartitioner,
)
from pylogbroker.errors import (
    ClosedError,
    InvalidPartitionError,
    InvalidTopicError,
    NoBrokersError,
    PylogbrokerError,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.producer.accumulator import PartitionBatch
from pylogbroker.types import BrokerPartition

TOPIC_LENGTH_MAX = 8_000
"""Characters of a topic's name that fit in a request. Brokers have limits of their own."""

TOPIC_COUNT_MAX = 10_000
"""Topic names that are remembered as valid."""

log = Logger()

_CLOSED = PartitionBatch("")


@dataclass(slots=True)
class TopicRoute:
    """
    The partitions of a topic at one version of the discovery.

    @ivar count: of partitions.
    @ivar batches: for each partition its last batch, which may be closed.
    @ivar indexes: cached results of L{TopicRouter.indexOn}, by key.
    """

    version: int
    partitions: list[BrokerPartition]
    count: int
    batches: list[PartitionBatch]
    indexes: dict[str, int]


class TopicRouter:
    """
    Routes messages by topic and key.

    @ivar routes: by topic; may be outdated.
    """

    def __init__(
        self,
        start: Callable[[], Deferred[Any]],
        partitioner: Partitioner,
        random: Callable[[], float],
    ) -> None:
        """
        @param start: called before a look-up; fires after L{use} was called.
        @param partitioner: chooses among partitions by key.
        @param random: numbers from 0 up to, not including, 1.
        """
        self.routes: dict[str, TopicRoute] = {}
        self.isStopped = False
        self._isSteady = False  # whether a text key's partition depends only on the count
        self._start = start
        self._partitioner = partitioner
        self._random = random
        self._discovery: IDiscovery = StaticDiscovery(())
        self._topics: set[str] = set()  # valid names
        self._lines: dict[str, Waiters[None]] = {}  # calls that wait, by topic
        self._lookUps: dict[Deferred[None], None] = {}
        self._remembered: deque[tuple[dict[str, int], str]] = deque()

    def use(self, discovery: IDiscovery) -> None:
        self._discovery = discovery
        self._isSteady = self._partitioner is defaultPartitioner and not discovery.isStatic

    def node(self, number: int) -> BrokerNode:
        """
        A broker's address.

        @raise NoBrokersError: the broker is not alive.
        """
        node = self._discovery.brokers.get(number)
        if node is None:
            raise NoBrokersError(f"broker {number} is not alive")
        return node

    # -- at once

    def route(self, topic: str) -> TopicRoute | None:
        """
        The route of a topic.

        @return: L{None} when the topic has to be looked up.
        @raise InvalidTopicError: the name does not fit in a request.
        @raise pylogbroker.errors.InvalidNameError: it is not a valid name.
        """
        self._checkTopic(topic)
        version, partitions = self._discovery.version, self._discovery.partitions(topic)
        if not partitions or topic in self._lines:
            return None
        route = self.routes.get(topic)
        if route is None or route.version != version:
            count = len(partitions)
            route = TopicRoute(version, partitions, count, [_CLOSED] * count, {})
            self.routes[topic] = route
        return route

    def _checkTopic(self, topic: str) -> None:
        if topic in self._topics:
            return
        paths.topic(topic)
        if len(topic) > TOPIC_LENGTH_MAX:
            raise InvalidTopicError(
                f"a topic's name of {len(topic)} characters; {TOPIC_LENGTH_MAX} fit in a request"
            )
        if len(self._topics) >= TOPIC_COUNT_MAX:
            self._topics.clear()
            self.routes.clear()
        self._topics.add(topic)

    def choose(
        self, topic: str, key: Any = None, avoid: int | None = None
    ) -> BrokerPartition | None:
        """
        Choose a partition of a topic.

        @param avoid: a broker to avoid if there is another one and the key permits it.
        @return: L{None} when the topic has to be looked up.
        @raise InvalidPartitionError: the partitioner failed, or returned no valid index.
        @raise pylogbroker.errors.InvalidKeyError: the default partitioner does not take such keys.
        """
        discovery = self._discovery
        partitions = discovery.partitions(topic)
        if avoid is not None and (key is None or discovery.isStatic):
            partitions = [each for each in partitions if each.broker != avoid] or partitions
        return partitions[self.index(topic, key, len(partitions))] if partitions else None

    def index(self, topic: str, key: Any, count: int) -> int:
        """Choose one of C{count} partitions, at least one; raises as L{choose}."""
        if key is None or self._discovery.isStatic:
            return int(self._random() * count) if count > 1 else 0
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
                f"the partitioner gave {index!r} for topic {topic} and key {key!r}; "
                f"0 to {count - 1} would be right"
            )
        return index

    def indexOn(self, route: TopicRoute, topic: str, key: Any) -> int:
        """The index of the partition for a key, which the route caches; raises as L{choose}."""
        index, indexes = self.index(topic, key, route.count), route.indexes
        isText = type(key) is str and len(key) <= REMEMBERED_LENGTH_MAX
        if isText and self._isSteady and key not in indexes:
            indexes[key] = index
            self._remembered.append((indexes, key))
            if len(self._remembered) > REMEMBERED_COUNT_MAX:
                oldIndexes, oldKey = self._remembered.popleft()
                oldIndexes.pop(oldKey, None)
        return index

    def chooseNow(
        self, topic: str, key: Any, avoid: int | None = None, isTheirTurn: bool = False
    ) -> BrokerPartition | None:
        """Choose a partition without waiting; L{None}, C{avoid} and errors as of L{lookUp}."""
        if self.isStopped:
            raise ClosedError("the producer was closed")
        self._checkTopic(topic)
        if self._lines and topic in self._lines and not isTheirTurn:
            return None
        return self.choose(topic, key, avoid)

    # -- later

    async def lookUp(
        self, topic: str, key: Any, avoid: int | None = None, isTheirTurn: bool = False
    ) -> BrokerPartition:
        """
        Choose a partition, after a look-up if need be. Calls for one topic keep their order.

        @param avoid: as of L{choose}.
        @param isTheirTurn: whether the caller was just served and has more messages for the topic;
            then it need not queue again.
        @raise NoBrokersError: there is no broker for the topic.
        @raise ClosedError: after L{stop} or L{cancel}.
        @raise PylogbrokerError: as L{choose}, or starting or looking up fails.
        """
        chosen = self.chooseNow(topic, key, avoid, isTheirTurn)
        if chosen is not None:
            return chosen
        try:
            await self._waitInLine(topic)
            chosen = self.choose(topic, key, avoid)
            if chosen is None:
                raise NoBrokersError(f"topic {topic} has no partitions")
        except NoBrokersError as error:
            raise NoBrokersError(f"there is no broker for topic {topic} (key {key!r})") from error
        except CancelledError as error:
            raise ClosedError(f"looking up topic {topic} was given up") from error
        return chosen

    def _waitInLine(self, topic: str) -> Deferred[None]:
        line = self._lines.get(topic)
        if line is not None:
            return line.wait()
        line = self._lines[topic] = Waiters()
        turn = line.wait()
        lookUp = Deferred.fromCoroutine(self._serveLine(topic))
        if not lookUp.called:
            self._lookUps[lookUp] = None
            lookUp.addBoth(lambda _result: self._lookUps.pop(lookUp))
        return turn

    async def _serveLine(self, topic: str) -> None:
        try:
            await self._start()
            await self._discovery.lookUp(topic)
        except Exception as error:
            reason: Exception = error
            if not isinstance(error, PylogbrokerError | CancelledError):
                log.failure("Looking up {topic} failed", topic=topic)  # the application's own
                reason = NoBrokersError(f"looking up {topic} failed: {error!r}")
            # a callback that asks again begins a new line
            self._lines.pop(topic).fire(Failure(reason))
            return
        line = self._lines[topic]
        while len(line):
            line.fire(None)
        del self._lines[topic]

    def cancel(self) -> None:
        for lookUp in list(self._lookUps):
            lookUp.cancel()
