"""
L{KafkaProtocol}: the requests of Kafka's current protocol on a connection.

Each request has a handler, which gives the body of its response, a whole frame in parts, or L{None}
for no response; at once, by a Deferred, or (Produce alone) by a function. The connection calls this
function when it has handled the requests at hand, and passes what takes the answer. Only requests
with a handler are decoded and advertised, so what is not finished does not exist for clients. What
a client did wrong is an error code in the response. Bytes that are no request close the connection,
as does an unexpected failure, which is logged.

Several requests of a connection may be in progress; the connection sends their responses in order.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping
from functools import partial
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.connection import SeparateRequests
from pylogbroker.config.listenersettings import DEFAULT_RULES, MAPPING_RULES, Listener
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.listeners import distinguishedName
from pylogbroker.protocol.framing import SIZE_FIELD_SIZE, FrameDecoder
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import (
    ProduceRun,
    RequestHeader,
    decodeProduceRun,
    decodeRequest,
)
from pylogbroker.protocol.kafka.responses import apiVersionsResponse, encodeResponse
from pylogbroker.types import TopicPartition

SLOT_COUNT_MAX = 8
REPEAT_MAX = 2
"""
How often a response describes the same group, resource or partition. Kafka does it each time that
the request names it; clients name it once.
"""
_KIND_NAMES = {ApiKey.PRODUCE: "produce", ApiKey.FETCH: "fetch"}
_LONG_WAITS = frozenset((ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))
_KEYS: Mapping[int, ApiKey] = {int(key): key for key in ApiKey}
_SECRETS = frozenset((ApiKey.SASL_AUTHENTICATE, ApiKey.ALTER_USER_SCRAM_CREDENTIALS))
"""Requests whose bodies no log may show."""
_KEY_2011_MAX = 4
_HEAD = struct.Struct(">ihhih")
"""Size, key, version, correlation id, and the size of the client's id."""
_FIRST_CORRELATION_MAX = 0xFFFF
_PRINTABLE = range(0x21, 0x7F)
ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that has not authenticated, on a listener where it need not."""
FEATURES = {"group.version": 1, "transaction.version": 2}
"""
The features of the cluster on which its clients rely, with their versions: groups of KIP-848, and
transactions with an epoch each (KIP-890).
"""
_NAMED_VERSION = 3
"""The first version of ApiVersions in which a client names its software."""
_FEATURE_FROM_0_VERSION = 4
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")

Request = tuple[RequestHeader, Any]


class IThrottledChannel(Protocol):
    """
    A connection of which no requests are taken, since its client has exceeded a quota.

    @ivar released: called when requests are taken again.
    """

    released: Callable[[], object]

    def end(self) -> None:
        """Take requests again."""
        ...


class ConnectionState:
    """
    What the broker knows of one connection.

    @ivar appending: fires when the produce request before is appended; L{None}: it is. Requests
        whose records a worker checks would else be overtaken.
    @ivar fetches: what ends each waiting fetch.
    @ivar throttled: L{None}: further requests are taken.
    @ivar isLost: the client is gone, and what it has sent is still handled.
    @ivar listener: by which the client came.
    @ivar principal: who the client is, as Kafka writes it: C{User:name}.
    """

    __slots__ = (
        "_transport",
        "appending",
        "fetches",
        "isLost",
        "listener",
        "principal",
        "throttled",
    )

    def __init__(
        self,
        transport: Any,
        listener: Listener = Listener(),  # noqa: B008
        nameOf: Callable[[str], str] = str,
    ) -> None:
        """
        @param transport: L{None}: not connected.
        @param nameOf: gives the client's name from the subject of its certificate.
        """
        self._transport = transport
        self.listener = listener
        self.appending: Deferred[None] | None = None
        self.throttled: IThrottledChannel | None = None
        self.isLost = False
        name = distinguishedName(transport) if listener.isTls else None
        self.principal = ANONYMOUS if name is None else f"User:{nameOf(name)}"
        self.fetches: dict[int, Callable[[], object]] = {}

    @property
    def clientHost(self) -> str:
        """The client's address, as Kafka shows it: C{/127.0.0.1}."""
        return f"/{getattr(self._transport.getPeer(), 'host', '')}"

    @property
    def local(self) -> tuple[str, int]:
        """
        The address and port that the client has reached; C{("", 0)} where there is none, or the
        connection is lost.
        """
        if self.isLost:
            return "", 0
        found = self._transport.getHost()
        return getattr(found, "host", ""), getattr(found, "port", 0)


Respond = Callable[[Any], None]
Handler = Callable[[RequestHeader, Any, ConnectionState], Any]
"""
C{handle(header, body, state)}: a response body, a frame in parts, L{None}, or a Deferred of one;
or, for Produce, a function that takes a L{Respond}, and calls it with one of these.
"""


TryRun = Callable[[RequestHeader, ProduceRun, ConnectionState], Callable[[Respond], None] | None]
"""
C{tryRun(header, run, state)}: carries out all requests of a run at once, and returns a function as
L{Handler} does, for the frames of all responses; L{None}: nothing was done, and they must be
handled one by one.
"""


class RepeatLimit:
    """
    Leaves out what a request names again and again, so that a small request does not have a
    response of gigabytes.
    """

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()

    def admits(self, key: Hashable) -> bool:
        """Whether C{key} has been asked about no more than L{REPEAT_MAX} times, with this one."""
        self._counts[key] += 1
        return self._counts[key] <= REPEAT_MAX


class KafkaRequestDecoder(FrameDecoder):
    """Bytes in, requests out."""

    __slots__ = ("_keys", "_takesRuns")

    def __init__(self, sizeMax: int, keys: Container[ApiKey], takesRuns: bool = False) -> None:
        """@param takesRuns: whether there is a handler of L{ProduceRun}s."""
        super().__init__(sizeMax)
        self._keys = keys
        self._takesRuns = takesRuns

    def takeRequest(self) -> Request | None:
        """
        @return: L{None} while the next request is not whole.
        @raise WireError: the bytes are no request that has a handler.
        """
        run = self._takeRun() if self._takesRuns else None
        if run is not None:
            return run
        frame = self.take()
        return None if frame is None else decodeRequest(frame, self._keys)

    def _takeRun(self) -> Request | None:
        if self._pieces is not None and not self._gather(self._pieces):
            return None
        buffer, position = self._buffer, self._position
        size = int.from_bytes(buffer[position : position + SIZE_FIELD_SIZE], "big")
        if len(buffer) - position <= size + 2 * SIZE_FIELD_SIZE:
            return None  # nothing is behind the next frame
        found = decodeProduceRun(buffer, position, self.sizeMax)
        if found is None:
            return None
        header, run, behind = found
        self._advance(behind)
        return header, run


class KafkaProtocol:
    """
    Handles the requests of all connections that speak Kafka's current protocol
    (L{pylogbroker.broker.connection.IProtocolHandler}).
    """

    name = "Kafka's current protocol"
    slotCountMax = SLOT_COUNT_MAX
    allowsHalfClose = False
    endsIdle = True

    def __init__(
        self,
        handlers: Mapping[ApiKey, Handler],
        requestSizeMax: int,
        counters: BrokerCounters,
        seconds: Callable[[], float],
        requestLog: Logger | None = None,
        listener: Listener = Listener(),  # noqa: B008
        tryRun: TryRun | None = None,
    ) -> None:
        """
        @param handlers: of all requests but ApiVersions.
        @param requestSizeMax: bytes of a frame.
        @param seconds: a clock that times requests.
        @param requestLog: logs every request; costs more than the requests do.
        @param listener: of its connections.
        @param tryRun: for Produce requests that came together.
        @raise ConfigurationError: its rules for names of clients are none.
        """
        self._listener = listener
        self._nameOf = _nameOf(listener)
        self._handlers = {**handlers, ApiKey.API_VERSIONS: self._apiVersions}
        self._requestSizeMax = requestSizeMax
        self._counters = counters.requests
        self._apis = {key: counters.api(key.apiName) for key in self._handlers}
        self._seconds = seconds
        self._requestLog = requestLog
        self._tryRun = tryRun if requestLog is None else None

    def wrapHandlers(self, wrap: Callable[[ApiKey, Handler], Handler]) -> None:
        """
        Put something around every handler: the faults that a test orders, or quotas. Holds for
        requests from now on.
        """
        self._handlers = {key: wrap(key, handler) for key, handler in self._handlers.items()}
        self._tryRun = None

    def newDecoder(self) -> KafkaRequestDecoder:
        return KafkaRequestDecoder(self._requestSizeMax, self._handlers, self._tryRun is not None)

    def newState(self, transport: Any) -> ConnectionState:
        return ConnectionState(transport, self._listener, self._nameOf)

    def handle(self, request: Request, state: ConnectionState) -> Any:
        header, body = request
        if type(body) is ProduceRun:
            return self._handleRun(header, body, state)
        if self._requestLog is not None:
            self._requestLog.info(
                "{kind} v{version} of {clientId}: {body}",
                kind=header.apiKey.apiName,
                version=header.apiVersion,
                clientId=header.clientId,
                body="…" if header.apiKey in _SECRETS else body,
            )
        key = header.apiKey
        counters, apis = self._counters, self._apis[key]
        apis.count += 1
        started = self._seconds()
        if key is ApiKey.PRODUCE:
            counters.produceCount += 1
            answer = self._handlers[key](header, body, state)
            return self._timed(answer, header, started, counters.produced)
        if key is ApiKey.FETCH:
            counters.fetchCount += 1
            answer = self._handlers[key](header, body, state)
            return self._timed(answer, header, started, counters.fetched)
        answer = self._handlers[key](header, body, state)
        if isinstance(answer, Deferred):
            return answer.addCallback(self._handled, header, started)
        return self._handled(answer, header, started)

    def _handleRun(self, header: RequestHeader, run: ProduceRun, state: ConnectionState) -> Any:
        started = self._seconds()
        finish = None if self._tryRun is None else self._tryRun(header, run, state)
        if finish is None:
            return SeparateRequests(run.separated(header))
        count = len(run.correlationIds)
        self._apis[ApiKey.PRODUCE].count += count
        self._counters.produceCount += count
        return partial(self._finish, finish, header, started, self._counters.produced)

    def _handled(self, answer: Any, header: RequestHeader, started: float) -> Any:
        seconds = self._seconds() - started
        self._apis[header.apiKey].handled(seconds, getattr(answer, "errorCode", 0))
        return self._encoded(answer, header)

    def _timed(
        self, answer: Any, header: RequestHeader, started: float, took: Callable[[float], None]
    ) -> Any:
        """
        The answer, encoded and timed at its end. Frequent kinds and cheap tests come first.
        """
        if type(answer) is not list:
            if callable(answer):
                return partial(self._finish, answer, header, started, took)
            if isinstance(answer, Deferred):
                return answer.addCallback(self._timed, header, started, took)
            answer = self._encoded(answer, header)
        took(self._seconds() - started)
        return answer

    def _finish(
        self,
        finish: Callable[[Respond], None],
        header: RequestHeader,
        started: float,
        took: Callable[[float], None],
        respond: Respond,
    ) -> None:
        def timed(answer: Any) -> None:
            respond(self._timed(answer, header, started, took))

        finish(timed)

    @staticmethod
    def _encoded(answer: Any, header: RequestHeader) -> Any:
        if answer is None or type(answer) is list:
            return answer
        return [encodeResponse(header, answer)]

    def _apiVersions(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        response = apiVersionsResponse(header, self._handlers)
        names = (body.clientSoftwareName, body.clientSoftwareVersion)
        if header.isVersionServed and header.apiVersion >= _NAMED_VERSION:
            if not all(_SOFTWARE_NAME.fullmatch(name) for name in names):
                response.errorCode, response.apiKeys = ErrorCode.INVALID_REQUEST, []
        if not response.errorCode:
            _addFeatures(response, header.apiVersion)
        return response

    def mustAuthenticate(self, state: Any) -> bool:
        """Only on listeners with SASL."""
        return False

    def keepsFrame(self, request: Request) -> bool:
        """
        All do that wait only for the broker's own work, such as produce requests, whose records are
        parts of the frame. Those that wait for records, or for other members of a group, as long as
        clients say do not.
        """
        return request[0].apiKey not in _LONG_WAITS

    def isThrottled(self, state: ConnectionState, released: Callable[[], object]) -> bool:
        if state.throttled is None:
            return False
        state.throttled.released = released
        return True

    def connectionLost(self, state: ConnectionState) -> None:
        """End the waits for data that will not be read any more."""
        state.isLost = True
        for end in list(state.fetches.values()):
            end()
        if state.throttled is not None:
            state.throttled.end()

    def describe(self, request: Request) -> tuple[str, TopicPartition | None]:
        """A request for people, without its partitions, of which there may be many."""
        key = request[0].apiKey
        return _KIND_NAMES.get(key, key.apiName), None

    def sniff(self, greeting: bytes) -> str | None:
        """A guess is made only where 2011's protocol was expected."""
        return None


def _nameOf(listener: Listener) -> Callable[[str], str]:
    if not listener.isTls or listener.principalRules == DEFAULT_RULES:
        return str
    from pylogbroker.broker.kafka.security.principalmapper import PrincipalMapper

    return PrincipalMapper.fromText(MAPPING_RULES.key, listener.principalRules).name


def _addFeatures(response: Any, version: int) -> None:
    """Clients of version 3 take a feature that begins at 0 for an error."""
    cls = type(response)
    if version >= _FEATURE_FROM_0_VERSION:
        response.supportedFeatures = [
            cls.SupportedFeatureKey(name=name, maxVersion=level) for name, level in FEATURES.items()
        ]
    response.finalizedFeatures = [
        cls.FinalizedFeatureKey(name=name, maxVersionLevel=level, minVersionLevel=level)
        for name, level in FEATURES.items()
    ]
    response.finalizedFeaturesEpoch = 0


def isCurrentProtocol(greeting: bytes) -> bool:
    """
    Whether a connection that begins so speaks Kafka's current protocol. Requests 0 to 4 exist in
    both, with other layouts. They mean 2011's, unless they are none of 2011's, and have a whole
    head of today's: some clients, such as kafkajs, ask for the versions on their first connection
    only, and begin the others with Metadata, Fetch or Produce; aiokafka before 0.9 begins with
    Metadata 0. A small correlation id and a client id are where 2011's requests have the name of a
    topic, which must not be empty nor have a NUL, or where a request of no parts has ended.

    @param greeting: at least fifteen bytes, or a whole frame.
    """
    key = int.from_bytes(greeting[4:6], "big")
    if key > _KEY_2011_MAX:
        return key in _KEYS
    if len(greeting) <= _HEAD.size:
        return False
    size, key, version, correlation, idSize = _HEAD.unpack_from(greeting)
    apiKey = _KEYS.get(key)
    return (
        apiKey is not None
        and apiKey.isServed(version)
        and 0 <= correlation <= _FIRST_CORRELATION_MAX
        and 0 < idSize <= size - (_HEAD.size - 4)
        and greeting[_HEAD.size] in _PRINTABLE
    )
