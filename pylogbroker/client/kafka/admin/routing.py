"""
Which broker an admin client's request goes to, and when it is tried again.

What must be true:

  - A request for several things is sent again for those that a broker refused for a reason that
  passes (but not for topics that are missing), until C{default.api.timeout.ms} is over. The others
  keep their result.
  - A request whose answer was lost is sent again, too. So a topic that was created by the first
  attempt is refused with TOPIC_ALREADY_EXISTS by the second, as with Java's client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.errors import PylogbrokerError, TimedOutError, UnknownPartitionError
from pylogbroker.net.deferreds import asDeferred, gatherInBatches
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.types import TopicPartition

K = TypeVar("K")
T = TypeVar("T")

Found = dict[K, T | PylogbrokerError]
"""A result for each item, or the error with which it was refused."""

NO_CONTROLLER = -1

_TOLD_AT_ONCE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
)
"""Errors that pass for a producer, which waits for a topic. An administrator wants to know."""


def refusal(code: int, what: object, text: str | None = None) -> PylogbrokerError | None:
    """The error of an item; L{None}: there is none."""
    return ResponseError(code, str(what), text) if code else None


def checkAll(found: Mapping[K, T | PylogbrokerError]) -> dict[K, T]:
    """
    The results, when nothing was refused.

    @raise PylogbrokerError: the first refusal.
    """
    made = {}
    for key, each in found.items():
        if isinstance(each, PylogbrokerError):
            raise each
        made[key] = each
    return made


class AdminRouter:
    """
    Sends requests where they belong.

    @ivar cluster: a L{ClusterClient}.
    """

    def __init__(self, reactor: Any, settings: KafkaAdminSettings, random: Any = None) -> None:
        self.cluster = ClusterClient(reactor, settings, isCreatingTopics=False, random=random)
        self._timeoutMs = settings.defaultApiTimeoutMs
        self._controller = NO_CONTROLLER

    @property
    def timeoutMs(self) -> int:
        """What a request tells the broker of its own time."""
        return self._timeoutMs

    def close(self) -> Deferred[None]:
        """Close the connections. Fires when they are gone; what is asked fails."""
        self.cluster.abort()
        return self.cluster.close()

    # -- one request

    def attempt(self, action: Callable[[], Coroutine[Any, Any, T]], what: str) -> Deferred[T]:
        """As L{ClusterClient.attempt}, within C{default.api.timeout.ms}."""
        return self.cluster.attempt(action, self._timeoutMs, what)

    def anywhere(
        self, ask: Callable[[NegotiatedConnection], Coroutine[Any, Any, T]], what: str
    ) -> Deferred[T]:
        """Ask any broker."""

        async def action() -> T:
            return await ask(await self.cluster.anyConnection())

        return self.attempt(action, what)

    async def controller(self) -> NegotiatedConnection:
        """
        A connection to the controller; to any broker where none is known.

        @raise PylogbrokerError: as L{ClusterClient.anyConnection}.
        """
        if self._controller == NO_CONTROLLER:
            self._controller = (await self.cluster.lookUp(())).controllerId
        if self._controller not in self.cluster.metadata.brokers:
            return await self.cluster.anyConnection()
        return await self.broker(self._controller)

    def forgetController(self) -> None:
        """Look for the controller again."""
        self._controller = NO_CONTROLLER

    async def broker(self, number: int) -> NegotiatedConnection:
        """
        A connection to a broker.

        @raise PylogbrokerError: as L{ClusterClient.broker}.
        """
        if number not in self.cluster.metadata.brokers:
            await self.cluster.lookUp(())
        return await self.cluster.broker(number).connection()

    async def brokers(self) -> list[int]:
        """The numbers of all brokers."""
        await self.cluster.lookUp(())
        return sorted(self.cluster.metadata.brokers)

    # -- several items

    @asDeferred
    async def each(
        self,
        items: Iterable[K],
        ask: Callable[[list[K]], Coroutine[Any, Any, Mapping[K, T | PylogbrokerError]]],
        what: str,
    ) -> Found[K, T]:
        """
        Ask for several items, and again for those with an error that passes.

        @param ask: gives a result or an error for each of the items that it gets.
        @return: fires with a result or an error for each item, in order. Fails only when there is
            no result at all, as L{ClusterClient.attempt}.
        """
        wanted = list(dict.fromkeys(items))
        left, done = list(wanted), dict[K, T | PylogbrokerError]()
        if not wanted:
            return done

        async def action() -> None:
            found = await ask(list(left))
            reason: PylogbrokerError | None = None
            for key in list(left):
                if key not in found:
                    raise ResponseError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: no {key}")
                each = found[key]
                if (
                    isinstance(each, ResponseError)
                    and ErrorPolicy.RETRY in policyOf(each.code)
                    and each.code not in _TOLD_AT_ONCE
                ):
                    reason = each
                    if each.code == ErrorCode.NOT_CONTROLLER:
                        self.forgetController()
                else:
                    done[key] = each
                    left.remove(key)
            if reason is not None:
                raise reason

        try:
            await self.attempt(action, what)
        except TimedOutError as error:
            if not done:
                raise
            done.update(dict.fromkeys(left, error))
        return {key: done[key] for key in wanted}

    def atController(
        self,
        items: Iterable[K],
        ask: Callable[
            [NegotiatedConnection, list[K]],
            Coroutine[Any, Any, Mapping[K, T | PylogbrokerError]],
        ],
        what: str,
    ) -> Deferred[Found[K, T]]:
        """As L{each}, at the controller."""

        async def at(some: list[K]) -> Mapping[K, T | PylogbrokerError]:
            return await ask(await self.controller(), some)

        return self.each(items, at, what)

    def atLeaders(
        self,
        places: Iterable[TopicPartition],
        ask: Callable[
            [NegotiatedConnection, list[TopicPartition]],
            Coroutine[Any, Any, Mapping[TopicPartition, T | PylogbrokerError]],
        ],
        what: str,
    ) -> Deferred[Found[TopicPartition, T]]:
        """As L{each}, each partition at its leader."""

        async def at(some: list[TopicPartition]) -> Mapping[TopicPartition, T | PylogbrokerError]:
            found: dict[TopicPartition, T | PylogbrokerError] = {}
            byNode = await self._leaders(some, found)

            async def one(node: int) -> Mapping[TopicPartition, T | PylogbrokerError]:
                return await ask(await self.broker(node), byNode[node])

            for answer in await gatherInBatches(one, byNode):
                found.update(answer)
            return found

        return self.each([TopicPartition(*place) for place in places], at, what)

    async def _leaders(
        self, places: Collection[TopicPartition], refused: dict[TopicPartition, Any]
    ) -> dict[int, list[TopicPartition]]:
        """Partitions by the number of their leader. Those that have none are refused."""
        found = await self.cluster.lookUp(dict.fromkeys(place.topic for place in places))
        topics = {topic.name: topic for topic in found.topics}
        byNode: dict[int, list[TopicPartition]] = {}
        for place in places:
            topic = topics.get(place.topic)
            if topic is None or topic.errorCode:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.errorCode
                refused[place] = ResponseError(code, str(place))
                continue
            parts = {part.partitionIndex: part for part in topic.partitions}
            if place.partition not in parts:
                refused[place] = UnknownPartitionError(
                    f"partition {place.partition} of {place.topic}, which has {len(parts)}"
                )
            elif parts[place.partition].leaderId < 0:
                refused[place] = ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, str(place))
            else:
                byNode.setdefault(parts[place.partition].leaderId, []).append(place)
        return byNode

    def atCoordinators(
        self,
        kind: CoordinatorKind,
        keys: Iterable[str],
        ask: Callable[[NegotiatedConnection, str], Awaitable[T]],
        what: str,
    ) -> Deferred[Found[str, T]]:
        """
        Ask the coordinator of each key.

        @param ask: raises what the coordinator refuses; then the coordinator is looked for again,
            where it says so.
        """
        coordinators = self.cluster.coordinators

        async def one(key: str) -> tuple[str, T | PylogbrokerError]:
            try:
                return key, await coordinators.ask(
                    kind, key, lambda connection: ask(connection, key)
                )
            except ResponseError as error:
                return key, error

        async def at(some: list[str]) -> dict[str, T | PylogbrokerError]:
            return dict(await gatherInBatches(one, some))

        return self.each(keys, at, what)


def checkResponse(answer: Any, what: str) -> Any:
    """
    @raise ResponseError: the whole request was refused.
    """
    checkCode(answer.errorCode, what, getattr(answer, "errorMessage", None))
    return answer
