"""
A place for each message: the broker and the partition that it goes to, at once if its topic is known, and else when it has been looked up.

Calls for one topic keep their order: while it is being looked up, they form a line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.discovery import IDiscovery
from pylogbroker.cluster import paths
from pylogbroker.cluster.partitioner import Partitioner
from pylogbroker.errors import ClosedError, InvalidTopicError, NoBrokersError, PylogbrokerError
from pylogbroker.producer.routing import Router, TopicRoute
from pylogbroker.types import BrokerPartition

TOPIC_LENGTH_MAX = 8_000
"""Characters of a topic's name; more might not fit in a request. Brokers have limits of their own."""

TOPIC_COUNT_MAX = 10_000
"""How many names are remembered as good."""

log = Logger()


class TopicRouter:
    """
    Where messages go.

    @ivar routes: what was known of topics when they were asked for last. To be compared with what is known now.
    @ivar isStopped: whether nothing is looked up any more.
    """

    def __init__(
        self,
        start: Callable[[], Deferred[Any]],
        partitioner: Partitioner,
        random: Callable[[], float],
    ) -> None:
        """
        @param start: fires when C{use} was called; asked when a topic is to be looked up.
        @param partitioner: chooses among partitions by key.
        @param random: numbers from 0 up to, not including, 1.
        """
        self.isStopped = False
        self._start = start
        self._partitioner = partitioner
        self._random = random
        self._discovery: IDiscovery | None = None
        self._router: Router | None = None
        self.routes: dict[str, TopicRoute] = {}
        self._topics: set[str] = set()  # names that are good
        self._lines: dict[
            str, deque[Deferred[None]]
        ] = {}  # calls for topics that are being looked up
        self._servings: dict[Deferred[None], None] = {}

    def use(self, discovery: IDiscovery) -> None:
        """It is known who is there."""
        self._discovery = discovery
        self._router = Router(discovery, self._partitioner, self._random)

    def route(self, topic: str) -> TopicRoute | None:
        """
        What is known of a topic, and kept in C{routes}.

        @return: L{None} when it has to be looked up.
        @raise InvalidTopicError: no request can carry the topic's name.
        @raise pylogbroker.errors.InvalidNameError: it is no topic's name.
        """
        if topic not in self._topics:
            self._check(topic)
        router = self._router
        if router is None or (self._lines and topic in self._lines):
            return None
        places = router.partitions(topic)
        if not places:
            return None
        route = self.routes.get(topic)
        if route is None or route.places is not places:
            route = self.routes[topic] = TopicRoute(places, router)
        return route

    def choose(self, topic: str, key: Any) -> BrokerPartition | None:
        """
        A place that is known.

        @return: L{None} when it has to be looked up.
        @raise PylogbrokerError: as C{route}, and as L{Router.choose}.
        """
        route = self.route(topic)
        return None if route is None else route.places[route.choose(topic, key)]

    def _check(self, topic: str) -> None:
        """A broker would cut the connection, and all that is on it would suffer."""
        paths.topic(topic)
        if len(topic) > TOPIC_LENGTH_MAX:
            raise InvalidTopicError(
                f"a topic's name of {len(topic)} characters; {TOPIC_LENGTH_MAX} fit in a request"
            )
        if len(self._topics) >= TOPIC_COUNT_MAX:
            self._topics.clear()
            self.routes.clear()
        self._topics.add(topic)

    async def lookUp(
        self, topic: str, key: Any, avoid: int | None = None, isTheirTurn: bool = False
    ) -> BrokerPartition:
        """
        A place, with every effort; calls for one topic are answered in their order.

        @param avoid: a broker that is not taken if there is another choice.
        @param isTheirTurn: the caller's turn has come before, and it has more for this topic: with that it does not go to the end of the line.
        @raise NoBrokersError: there is none.
        @raise ClosedError: after C{stop}, or if the discovery gave up.
        @raise PylogbrokerError: as L{choose}, and as starting and looking up failed.
        """
        if self.isStopped:
            raise ClosedError("the producer was closed")
        if topic not in self._topics:
            self._check(topic)
        if (isTheirTurn or topic not in self._lines) and self._router is not None:
            place = self._router.choose(topic, key, avoid)
            if place is not None:
                return place
        try:
            await self._standInLine(topic)
            assert self._router is not None
            place = self._router.choose(topic, key, avoid)
        except NoBrokersError as error:
            raise NoBrokersError(f"there is no broker for topic {topic} (key {key!r})") from error
        except CancelledError as error:
            raise ClosedError(f"looking up topic {topic} was given up") from error
        if place is None:
            raise NoBrokersError(f"there is no broker for topic {topic} (key {key!r})")
        return place

    def _standInLine(self, topic: str) -> Deferred[None]:
        turn: Deferred[None] = Deferred(lambda turn: self._leaveLine(topic, turn))
        line = self._lines.get(topic)
        if line is None:
            self._lines[topic] = deque([turn])
            serving = Deferred.fromCoroutine(self._serveLine(topic))
            if not serving.called:
                self._servings[serving] = None
            serving.addBoth(lambda _result: self._servings.pop(serving, None))
        else:
            line.append(turn)
        return turn

    def _leaveLine(self, topic: str, turn: Deferred[None]) -> None:
        line = self._lines.get(topic)
        if line is not None and turn in line:
            line.remove(turn)

    async def _serveLine(self, topic: str) -> None:
        failure = None
        try:
            await self._start()
            assert self._discovery is not None
            await self._discovery.lookUp(topic)
        except (PylogbrokerError, CancelledError) as error:
            failure = Failure(error)
        except Exception as error:  # a discovery of the application's own
            log.failure("Looking up {topic} failed", topic=topic)
            failure = Failure(NoBrokersError(f"looking up {topic} failed: {error!r}"))
        if failure is not None:
            for turn in self._lines.pop(topic):  # who asks again when told begins a new line
                turn.errback(failure)
            return
        line = self._lines[topic]
        while line:
            line.popleft().callback(None)
        del self._lines[topic]

    def stop(self) -> None:
        """Nothing is looked up any more; see C{cancel} for what is being looked up."""
        self.isStopped = True

    def cancel(self) -> None:
        """Whoever stands in a line is sent away."""
        for serving in list(self._servings):
            serving.cancel()
