"""
Faults that a test orders from a broker: error codes, late answers, cut connections, and partitions
whose leader moves.

They stand between the connections of today's protocol and the handlers of requests, so a client
cannot tell them from what a broker in trouble does. Without faults nothing is looked at.

B{Errors.} A refused part of a request is not carried out, the other parts are: see
L{pylogbroker.testing.faults.faultresponses}. While an error is ordered for Fetch, or a leader has
moved, fetches are answered without sessions, since an incremental fetch names no partitions.

B{Delays} hold the answer, not the request: it has been carried out. A connection's later answers
wait behind it, as on a slow network.

B{Moved leaders.} The broker listens on one port more for each further broker that leads a
partition, and serves the same partitions on all of them. Metadata names both brokers and the new
leader, with the next leader epoch; who asks the old one gets NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.service import BrokerService
from pylogbroker.errors import ConfigurationError, NotAllowedError, UnknownPartitionError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.sendfile import releaseSlices
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.testing.faults.faultresponses import (
    LED,
    MARKED,
    SPLIT,
    canRefuse,
    mark,
    merge,
    namesPartitions,
    namesTopics,
    noSession,
    places,
    refusal,
    split,
    unpacked,
)

_DESCRIBED = frozenset(
    (
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.METADATA,
    )
)
"""Requests whose responses name brokers."""
_REQUESTS: Mapping[str, ApiKey] = {
    name.replace("_", "").lower(): key for key in ApiKey for name in (key.name, key.apiName)
}

Place = tuple[str | None, int | None]


class _InjectedDisconnectError(NotAllowedError):
    """A connection ends since a test wants it; no log line, as for every error of this kind."""


class Fault:
    """
    A fault that was ordered.

    @ivar hitCount: requests that have met it.
    @ivar leftCount: requests that will still meet it; L{None}: all until it is cleared.
    """

    def __init__(
        self,
        key: ApiKey,
        topic: str | None,
        partition: int | None,
        count: int | None,
        clear: Callable[[Fault], None],
        code: int = 0,
        delayMs: int = 0,
        isCut: bool = False,
        isHandled: bool = False,
    ) -> None:
        """
        @param clear: forgets this fault.
        @param code: of the error; 0 for a fault of another kind.
        @param isCut: whether the connection is cut, and C{isHandled}, whether the request is
            carried out before.
        """
        self.key = key
        self.topic = topic
        self.partition = partition
        self.leftCount = count
        self.hitCount = 0
        self.code = code
        self.delayMs = delayMs
        self.isCut = isCut
        self.isHandled = isHandled
        self._clear = clear

    def matches(self, place: Place) -> bool:
        """Whether it concerns a place: the topic and partition, of which either may be L{None}."""
        topic, partition = place
        if self.topic is not None and topic != self.topic:
            return False
        return self.partition is None or partition == self.partition

    def mayMatch(self, place: Place) -> bool:
        """
        As L{matches}, of a request whose answer may name topics or partitions that it does not.
        """
        topic, partition = place
        return (topic is None or self.topic in (None, topic)) and (
            partition is None or self.partition in (None, partition)
        )

    def hit(self) -> None:
        """Count a request that has met it."""
        self.hitCount += 1
        if self.leftCount is not None:
            self.leftCount -= 1
            if self.leftCount == 0:
                self.clear()

    def clear(self) -> None:
        """No request will meet it any more."""
        self._clear(self)


class FaultInjector:
    """
    The faults of one broker.

    @ivar faults: those that requests may still meet.
    """

    def __init__(self, reactor: Any, service: BrokerService, brokerId: int) -> None:
        """@param service: not started."""
        self._reactor = reactor
        self._service = service
        self._brokerId = brokerId
        self.faults: list[Fault] = []
        self._leaders: dict[tuple[str, int], int] = {}
        self._ports: dict[int, Any] = {}
        self._held: dict[Deferred[None], Any] = {}  # answers that are late, and their timers
        for protocol in service.kafka.protocols:
            protocol.wrapHandlers(self._around)

    # -- ordering

    def inject(
        self,
        request: str | int,
        topic: str | None,
        partition: int | None,
        count: int | None,
        error: str | int | None = None,
        delayMs: int | None = None,
        isHandled: bool = False,
    ) -> Fault:
        """
        Order an error, a delay, or, with neither, a cut connection: the parameters are those of
        the methods of L{FaultInjection<pylogbroker.testing.faults.faultinjection.FaultInjection>}.

        @raise ConfigurationError: there is no such request or error, or the request names no
            topics, partitions or errors.
        """
        key = requestNamed(request)
        code = ErrorCode.NONE
        if error is not None:
            if not canRefuse(key):
                raise ConfigurationError(f"{key.apiName} has no errors")
            code = errorNamed(error)
            if code is ErrorCode.NONE:
                raise ConfigurationError("NONE is no error")
        if delayMs is not None and delayMs < 1:
            raise ConfigurationError(f"delayMs={delayMs} is not at least 1")
        if topic is not None and not namesTopics(key):
            raise ConfigurationError(f"{key.apiName} names no topics")
        if partition is not None and not namesPartitions(key):
            raise ConfigurationError(f"{key.apiName} names no partitions")
        if count is not None and count < 1:
            raise ConfigurationError(f"count={count} is not at least 1")
        isCut = error is None and delayMs is None
        made = Fault(
            key,
            topic,
            partition,
            count,
            self._forget,
            int(code),
            delayMs or 0,
            isCut,
            isHandled,
        )
        self.faults.append(made)
        return made

    def _forget(self, fault: Fault) -> None:
        if fault in self.faults:
            self.faults.remove(fault)

    def moveLeader(self, topic: str, partition: int = 0, brokerId: int | None = None) -> int:
        """
        L{FaultInjection.moveLeader<pylogbroker.testing.faults.faultinjection.FaultInjection.moveLeader>}.

        @raise UnknownPartitionError: there is no such partition.
        """
        found = self._service.kafka.topics.find(topic, partition)
        if found is None:
            raise UnknownPartitionError(f"there is no partition {topic}-{partition}")
        assert isinstance(found.log, BatchLog)
        place = (topic, partition)
        if brokerId is None:
            isMoved = self._leaders.get(place, self._brokerId) != self._brokerId
            brokerId = self._brokerId if isMoved else self._brokerId + 1
        if brokerId != self._brokerId and brokerId not in self._ports:
            first: Any = self._service.ports[0]
            self._ports[brokerId] = self._reactor.listenTCP(
                0, first.factory, interface=first.getHost().host
            )
        self._leaders[place] = brokerId
        found.log.assignEpoch(found.log.leaderEpoch + 1)
        return brokerId

    def clear(self) -> None:
        """
        Forget all faults, and send late answers now. Leaders stay where they are.
        """
        self.faults.clear()
        held, self._held = self._held, {}
        for waiting, timer in held.items():
            timer.cancel()
            waiting.callback(None)

    @asDeferred
    async def stop(self) -> None:
        """@return: fires with L{None} when the ports of further brokers are closed."""
        self.clear()
        ports, self._ports = self._ports, {}
        for port in ports.values():
            await maybeDeferred(port.stopListening)

    # -- requests

    def _around(self, key: ApiKey, handler: Handler) -> Handler:
        def handle(header: RequestHeader, body: Any, state: ConnectionState) -> Any:
            if not self.faults and not self._leaders:
                return handler(header, body, state)
            return self._handle(handler, header, body, state)

        return handle

    def _nameOf(self, topicId: bytes) -> str | None:
        found = self._service.kafka.topics.topicById(topicId)
        return None if found is None else found.name

    def _handle(
        self, handler: Handler, header: RequestHeader, body: Any, state: ConnectionState
    ) -> Any:
        key = header.apiKey
        found = list(places(body, self._nameOf))
        met = [
            fault
            for fault in list(self.faults)
            if fault.key is key and not fault.code and any(map(fault.mayMatch, found))
        ]
        for fault in met:
            fault.hit()
        if any(fault.isCut and not fault.isHandled for fault in met):
            raise _InjectedDisconnectError("a test has injected a disconnect")
        answer = self._answer(handler, header, body, state, found)
        isCut = any(fault.isCut for fault in met)
        delayMs = sum(fault.delayMs for fault in met)
        if not isCut and not delayMs:
            return answer
        late = partial(self._late, delayMs=delayMs, isCut=isCut)
        return _then(answer, lambda found: Deferred.fromCoroutine(late(found)))

    async def _late(self, answer: Any, delayMs: int, isCut: bool) -> Any:
        if delayMs:
            waiting = Deferred[None]()

            def over() -> None:
                del self._held[waiting]
                waiting.callback(None)

            self._held[waiting] = self._reactor.callLater(delayMs / 1000, over)
            await waiting
        if isCut:
            if isinstance(answer, list):
                releaseSlices(answer)
            raise _InjectedDisconnectError("a test has injected a disconnect")
        return answer

    def _codeOf(self, key: ApiKey, node: int, hit: set[Fault]) -> Any:
        """
        The error of each place in a request.

        @param hit: gets the faults that are met.
        """

        def codeOf(topic: str | None, partition: int | None) -> int:
            for fault in self.faults:
                if fault.key is key and fault.code and fault.matches((topic, partition)):
                    hit.add(fault)
                    return fault.code
            if key in LED and partition is not None:
                leader = self._leaders.get((topic or "", partition), self._brokerId)
                if leader != node:
                    return ErrorCode.NOT_LEADER_OR_FOLLOWER
            return 0

        return codeOf

    def _nodeOf(self, state: ConnectionState) -> int:
        """The broker that a client takes this one for: by the port that it has reached."""
        port = 0 if state.isLost else state.local[1]
        for brokerId, listening in self._ports.items():
            if listening.getHost().port == port:
                return brokerId
        return self._brokerId

    def _answer(
        self,
        handler: Handler,
        header: RequestHeader,
        body: Any,
        state: ConnectionState,
        found: list[Place],
    ) -> Any:
        key = header.apiKey
        isRefusing = any(
            fault.key is key and fault.code and any(map(fault.mayMatch, found))
            for fault in self.faults
        )
        isMoved = bool(self._leaders) and (key in LED or key in _DESCRIBED)
        if not isRefusing and not isMoved:
            return handler(header, body, state)
        if key in SPLIT:
            return self._answerRest(handler, header, body, state)
        if key not in MARKED and key not in _DESCRIBED:
            return self._refuse(key)
        node = self._nodeOf(state)
        if key is ApiKey.FETCH:
            if body.sessionEpoch > 0:
                return noSession()
            body = body._replace(sessionId=0, sessionEpoch=-1)
            if isRefusing or self._isElsewhere(found, node):
                body = body._replace(maxWaitMs=0)
        answer = handler(header, body, state)

        def marked(response: Any) -> Any:
            hit: set[Fault] = set()
            response = mark(
                key,
                header.apiVersion,
                unpacked(header, response),
                self._codeOf(key, node, hit),
                self._nameOf,
            )
            self._hit(hit)
            if key is ApiKey.DESCRIBE_CLUSTER and isRefusing:
                return self._refuse(key)
            return self._withLeaders(key, response, node) if self._leaders else response

        return _then(answer, marked)

    def _isElsewhere(self, found: list[Place], node: int) -> bool:
        return any(
            self._leaders.get((topic or "", partition or 0), self._brokerId) != node
            for topic, partition in found
        )

    @staticmethod
    def _hit(faults: set[Fault]) -> None:
        for fault in faults:
            fault.hit()

    def _refuse(self, key: ApiKey) -> Any:
        """One error for the whole request."""
        hit: set[Fault] = set()
        code = self._codeOf(key, self._brokerId, hit)(None, None)
        self._hit(hit)
        return refusal(key.responseClass, code)

    def _answerRest(
        self, handler: Handler, header: RequestHeader, body: Any, state: ConnectionState
    ) -> Any:
        """Carry out what is not refused."""
        key, hit = header.apiKey, set[Fault]()
        codeOf = self._codeOf(key, self._nodeOf(state), hit)
        rest, refused = split(key, body, codeOf, self._nameOf)
        self._hit(hit)
        if refused is None:
            return handler(header, body, state)
        isAnswered = key is not ApiKey.PRODUCE or body.acks != 0
        if rest is None:
            if not isAnswered:  # as Kafka tells a producer that wants no answer
                raise _InjectedDisconnectError(
                    "a test has injected an error, which has no response"
                )
            return refused
        answer = handler(header, rest, state)

        def merged(response: Any) -> Any:
            if not isAnswered:
                raise _InjectedDisconnectError(
                    "a test has injected an error, which has no response"
                )
            return merge(key, refused, unpacked(header, response))

        return _then(answer, merged)

    # -- who leads

    def _withLeaders(self, key: ApiKey, response: Any, node: int) -> Any:
        """Name the further brokers, and the leaders."""
        if node != self._brokerId:
            # The client has reached us by the port of another broker, which is not ours.
            own = self._service.ports[0].getHost().port
            reached = self._ports[node].getHost().port
            coordinators = getattr(response, "coordinators", ())
            for each in (response, *coordinators, *getattr(response, "brokers", ())):
                if getattr(each, "port", 0) == reached:
                    each.port = own
        if getattr(response, "brokers", None):
            first = response.brokers[0]
            number = "nodeId" if key is ApiKey.METADATA else "brokerId"
            for brokerId, listening in self._ports.items():
                port = listening.getHost().port
                made = type(first)(**{number: brokerId}, host=first.host, port=port)
                response.brokers.append(made)
        for topic in getattr(response, "topics", ()) if key in _DESCRIBED else ():
            for place, part in enumerate(topic.partitions):
                leader = self._leaders.get((topic.name, part.partitionIndex), self._brokerId)
                if leader != self._brokerId and not part.errorCode:
                    topic.partitions[place] = _led(part, [self._brokerId, leader])
        return response


def _then(answer: Any, act: Callable[[Any], Any]) -> Any:
    """Do something with what a handler gives in the end (L{Handler})."""
    if isinstance(answer, Deferred):
        return answer.addCallback(lambda found: _then(found, act))
    if callable(answer):
        return lambda respond: answer(lambda found: respond(maybeDeferred(_then, found, act)))
    return act(answer)


def _led(part: Any, brokers: list[int]) -> Any:
    """A partition in a description, which the last of its brokers leads."""
    values: dict[str, Any] = {
        "leaderId": brokers[-1],
        "replicaNodes": brokers,
        "isrNodes": brokers,
    }
    return type(part)(**{**vars(part), **values})


def requestNamed(request: str | int) -> ApiKey:
    """
    @param request: a name, in Kafka's spelling or any other case, or a key.
    @raise ConfigurationError: there is no such request.
    """
    if isinstance(request, int):
        found = next((key for key in ApiKey if key == request), None)
    else:
        found = _REQUESTS.get(request.replace("_", "").lower())
    if found is None:
        near = difflib.get_close_matches(str(request), [key.apiName for key in ApiKey], 1, 0.5)
        raise ConfigurationError(
            f"there is no request {request!r}" + (f"; {near[0]} is one" if near else "")
        )
    return found


def errorNamed(error: str | int) -> ErrorCode:
    """
    @param error: a name or a code.
    @raise ConfigurationError: there is no such error.
    """
    if isinstance(error, int):
        found = next((code for code in ErrorCode if code == error), None)
    else:
        found = ErrorCode.__members__.get(error.upper())
    if found is None:
        near = difflib.get_close_matches(str(error).upper(), list(ErrorCode.__members__), 1, 0.6)
        raise ConfigurationError(
            f"there is no error {error!r}" + (f"; {near[0]} is one" if near else "")
        )
    return found
