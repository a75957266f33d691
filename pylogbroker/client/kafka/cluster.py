"""
A cluster of today's Kafka, for a producer or a consumer: a connection to each broker, and metadata
that are refreshed when an answer says so.

What must be true:

  - There is at most one Metadata request at a time; if topics may be created, one for those, and
  then one for the others. Whoever asks for news meanwhile gets those of the next one, which is sent
  after a wait that grows with each failure. Without a failure it waits for C{retry.backoff.ms}
  behind the last answer, unless it is the first for a topic.
  - The brokers asked are, one after another, those with a connection, the least busy first, the
  others that are known, and those of C{bootstrap.servers}; else the order is drawn.
  - A missing topic may be created only while somebody wants it: each call of L{ClusterClient.topic}
  lets one answer create it. So a topic that was deleted does not come back by itself.
  - Without a caller, an unknown leader or the maximum age there is no request.

A refused password or a missing version fails whoever waits for metadata. A broker that cannot be
reached does not: the next one is asked, for as long as somebody waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.brokerclient import BrokerClientPool
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.kafka.connection import KafkaBrokerClient, NegotiatedConnection
from pylogbroker.client.kafka.coordinators import Coordinators
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.client.kafka.metadata import MetadataCache, TopicMetadata
from pylogbroker.config.kafka.clientsettings import RESPONSE_SIZE_MAX, KafkaClientSettings
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    InvalidTopicError,
    PylogbrokerError,
    TimedOutError,
    copyForReraise,
)
from pylogbroker.net.deferreds import Waiters, asDeferred, gatherAll
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.protocol.kafka.saslclient import SaslLogin

_DOUBLINGS_MAX = 30

CREATION_VERSION = 4
"""The first version of Metadata that says whether to create topics; before, all do."""

T = TypeVar("T")

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

log = Logger()


def checkTopic(name: Any) -> None:
    """
    Refuse what cannot be asked for: it would spoil the request for all topics.

    @raise InvalidTopicError: no topic can have this name.
    """
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(f"no topic can be named {name!r}")


class ClusterClient:
    """
    Connections to the brokers of a cluster, and its metadata.

    @ivar metadata: a L{MetadataCache}.
    @ivar settings: a L{KafkaClientSettings}.
    @ivar coordinators: a L{Coordinators}.
    """

    def __init__(
        self,
        reactor: Any,
        settings: KafkaClientSettings,
        *,
        isCreatingTopics: bool = True,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param isCreatingTopics: whether missing topics are created, if the broker does so.
        @param random: numbers from 0 up to, not including, 1.
        """
        random = SystemRandom().random if random is None else random
        newPool = partial(
            BrokerClientPool,
            reactor,
            connectTimeoutMs=settings.socketConnectionSetupTimeoutMs,
            limits=ConnectionLimits(
                responseSizeMax=RESPONSE_SIZE_MAX, stallMs=settings.requestTimeoutMs
            ),
            random=random,
            template=settings.brokerEndpoint,
        )
        login = None
        if settings.saslUsername:
            login = SaslLogin(settings.saslMechanism, settings.saslUsername, settings.saslPassword)
        self.settings = settings
        self.metadata = MetadataCache()
        self._clock = reactor
        self._random = random
        self._pool = newPool()
        self._newClient = partial(
            KafkaBrokerClient,
            reactor,
            clientId=settings.clientId,
            timeoutMs=settings.requestTimeoutMs,
            login=login,
        )
        self._clients: dict[str, KafkaBrokerClient] = {}
        self.coordinators = Coordinators(self.anyConnection, newPool(), self._newClient)
        self._isCreatingTopics = isCreatingTopics
        self._topics: dict[str, None] = {}  # those whose metadata are asked for
        self._missing: set[str] = set()  # of those, the ones that the next request may create
        self._listeners: list[Callable[[], None]] = []
        self._errorListeners: list[Callable[[PylogbrokerError], None]] = []
        self._isStale = False
        self._refreshing: Deferred[None] | None = None
        self._refreshed: Waiters[None] = Waiters()
        self._pauses: Waiters[None] = Waiters()  # between attempts
        self._timer = Timer(reactor)  # of the next Metadata request
        self._failureCount = 0  # in a row; an incomplete answer is one
        self._nextAtMs = 0.0  # no request before this time
        self._lastError: PylogbrokerError | None = None
        self._refusal: ClosedError | None = None

    def __repr__(self) -> str:
        return f"<ClusterClient {','.join(self.settings.bootstrapServers)}>"

    def backoffMs(self, failureCount: int) -> float:
        """How long to wait after so many failures in a row, 1 at least; drawn by the settings."""
        settings = self.settings
        delayMs = settings.retryBackoffMs * 2.0 ** min(failureCount - 1, _DOUBLINGS_MAX)
        longestMs = max(settings.retryBackoffMs, settings.retryBackoffMaxMs)
        return min(delayMs, longestMs) * (1 - self._random() / 2)

    # -- brokers

    def broker(self, number: int) -> KafkaBrokerClient:
        """
        The client of a broker.

        @raise BrokerConnectionError: the cluster has no such broker.
        """
        endpoint = self.metadata.brokers.get(number)
        if endpoint is None:
            raise BrokerConnectionError(f"the cluster has no broker {number}")
        return self._client(endpoint)

    def _client(self, endpoint: str) -> KafkaBrokerClient:
        client = self._clients.get(endpoint)
        if client is None:
            client = self._newClient(self._pool.get(endpoint))
            self._clients[endpoint] = client
        return client

    def _forgetBrokers(self) -> None:
        """Close the connections to addresses that are no broker's any more."""
        wanted = {*self.metadata.brokers.values(), *self.settings.bootstrapServers}
        for endpoint in self._clients.keys() - wanted:
            self._clients.pop(endpoint).stop()
            self._pool.forget(endpoint).addErrback(lambda _failure: None)

    def _candidates(self) -> list[str]:
        known = [*self.metadata.brokers.values(), *self.settings.bootstrapServers]

        def rank(endpoint: str) -> tuple[bool, int, bool, float]:
            client = self._clients.get(endpoint)
            current = None if client is None else client.current
            inFlightCount = 0 if current is None else current.raw.inFlightCount
            isBroker = endpoint in self.metadata.brokers.values()
            return current is None, inFlightCount, not isBroker, self._random()

        return sorted(dict.fromkeys(known), key=rank)

    @asDeferred
    async def anyConnection(self) -> NegotiatedConnection:
        """
        A connection to any broker that can be reached.

        @return: fails with the last broker's error when none can be reached, and as
            L{NegotiatedConnection.negotiate}.
        """
        problem: BrokerConnectionError | None = None
        for endpoint in self._candidates():
            if self._refusal is not None:
                raise copyForReraise(self._refusal)
            try:
                return await self._client(endpoint).connection()
            except BrokerConnectionError as error:
                problem = error
        assert problem is not None
        raise problem

    @asDeferred
    async def attempt(
        self, action: Callable[[], Coroutine[Any, Any, T]], timeoutMs: float, what: str
    ) -> T:
        """
        Try something until it succeeds, with waits that grow. Metadata are refreshed when the
        broker says that they are old.

        @param action: raises L{ResponseError} for the code of its response. It must be safe to
            repeat, also when a connection was lost and the broker may have carried it out.
        @param what: for the text of the time-out.
        @return: fires with the action's result. Fails with L{TimedOutError}, whose text has the
            last reason, after C{timeoutMs}; with L{ResponseError} for a code that is not to be
            retried; with L{ClosedError} after C{close}; with any other error of the action at once.
            Can be cancelled.
        """
        deadlineMs = self._clock.seconds() * 1000 + timeoutMs
        failureCount = 0
        reason: PylogbrokerError | None = None
        while True:
            if self._refusal is not None:
                raise copyForReraise(self._refusal)
            leftMs = deadlineMs - self._clock.seconds() * 1000
            trying = Deferred.fromCoroutine(action())
            trying.addTimeout(max(leftMs, 0) / 1000, self._clock)
            try:
                return await trying
            except BrokerConnectionError as error:
                reason = error
            except ResponseError as error:
                policy = policyOf(error.code)
                if ErrorPolicy.RETRY not in policy:
                    raise
                if ErrorPolicy.REFRESH in policy:
                    self.refreshSoon()
                reason = error
            except DeferredTimeoutError:
                raise self._late(what, timeoutMs, reason) from None
            failureCount += 1
            waitMs = self.backoffMs(failureCount)
            if self._clock.seconds() * 1000 + waitMs >= deadlineMs:
                raise self._late(what, timeoutMs, reason)
            pause = self._pauses.wait()
            pause.addTimeout(waitMs / 1000, self._clock, lambda _result, _seconds: None)
            await pause

    def _late(self, what: str, timeoutMs: float, reason: PylogbrokerError | None) -> TimedOutError:
        text = "" if reason is None else f": {reason}"
        return TimedOutError(f"{what}: not done within {timeoutMs:.0f} ms{text}")

    # -- metadata

    def listen(self, changed: Callable[[], None]) -> None:
        """
        @param changed: called after each change of the metadata.
        """
        self._listeners.append(changed)

    def listenErrors(self, failed: Callable[[PylogbrokerError], None]) -> None:
        """
        @param failed: called with each error for which L{refresh} fails, but for C{close}.
        """
        self._errorListeners.append(failed)

    def topic(self, name: str) -> TopicMetadata | None:
        """
        What is known of a topic now. A topic that was never asked for is asked for from now on. One
        that is not known may be created at the next request.

        @raise InvalidTopicError: no topic can have this name.
        """
        if name not in self._topics:
            checkTopic(name)
            self._topics[name] = None
            self._nextAtMs = 0
            self.refreshSoon()
        found = self.metadata.topics.get(name)
        if found is None and self._isCreatingTopics:
            self._missing.add(name)
        return found

    @asDeferred
    async def findTopic(self, name: str, timeoutMs: float) -> TopicMetadata:
        """
        Wait until a topic is known.

        @return: fails with L{InvalidTopicError} when no topic can have this name; with
            L{ResponseError} when it may not be seen; with L{TimedOutError}, whose text has the last
            reason, when it is not known in time; as L{refresh}. Can be cancelled. A topic that was
            asked for before is asked for still.
        """
        isNew = name not in self._topics
        deadlineMs = self._clock.seconds() * 1000 + timeoutMs
        while True:
            found = self.topic(name)
            if found is not None:
                return found
            code = self.metadata.errors.get(name, 0)
            if code and ErrorPolicy.RETRY not in policyOf(code):
                self._giveUp(name, isNew)
                raise ResponseError(code, f"topic {name}")
            leftMs = deadlineMs - self._clock.seconds() * 1000
            if leftMs <= 0:
                reason: object = ResponseError(code) if code else self._lastError
                self._giveUp(name, isNew)
                raise TimedOutError(
                    f"no metadata of topic {name} within {timeoutMs:.0f} ms: {reason}"
                )
            news = self.refresh()
            news.addTimeout(leftMs / 1000, self._clock, lambda _result, _seconds: None)
            try:
                await news
            except CancelledError:
                self._giveUp(name, isNew)
                raise

    def _giveUp(self, name: str, isNew: bool) -> None:
        if isNew:
            self.forgetTopic(name)
        self._missing.discard(name)  # others who wait for it say so again after each answer

    async def lookUp(self, names: Collection[str] | None) -> Any:
        """
        Ask once for topics, which are not asked for from now on, and not created.

        @param names: L{None}: all topics.
        @return: a C{MetadataResponse}.
        @raise PylogbrokerError: as L{anyConnection}, and L{NegotiatedConnection.request}.
        """
        connection = await self.anyConnection()
        cls = messages.MetadataRequest
        body = cls(topics=None)
        if names is not None:
            body.topics = [cls.MetadataRequestTopic(name=name) for name in names]
        elif not connection.supports(ApiKey.METADATA, 1):
            body.topics = []  # in version 0, all
        if connection.supports(ApiKey.METADATA, CREATION_VERSION):
            body.allowAutoTopicCreation = False
        found = await connection.request(ApiKey.METADATA, body)
        checkCode(found.errorCode, "metadata")
        self.metadata.updateBrokers(found)
        return found

    def forgetTopic(self, name: str) -> None:
        """Ask no more for a topic's metadata."""
        self._topics.pop(name, None)
        self._missing.discard(name)
        self.metadata.forget(name)
        self.metadata.errors.pop(name, None)

    def refresh(self) -> Deferred[None]:
        """
        Ask for the metadata of all topics that were asked for.

        @return: fires after the next response. Fails with L{ResponseError} when the password is
            refused, with L{pylogbroker.errors.WireError} when the broker is none of Kafka's, with
            L{ClosedError} after C{close}. While no broker can be reached it does not fire. Can be
            cancelled.
        """
        waiter = self._refreshed.wait()
        self.refreshSoon()
        return waiter

    def refreshSoon(self) -> None:
        """As L{refresh}, without waiting."""
        if self._refusal is not None:
            self._refreshed.fire(Failure(copyForReraise(self._refusal)))
            return
        if self._isStale:
            return
        self._isStale = True
        if self._refreshing is None:
            leftMs = self._nextAtMs - self._clock.seconds() * 1000
            self._timer.start(
                leftMs if self._lastError is None else self._nextWaitMs(), self._begin
            )

    def _begin(self) -> None:
        self._isStale = False
        self._refreshing = Deferred.fromCoroutine(self._ask())
        self._refreshing.addBoth(self._ended)

    async def _ask(self) -> None:
        connection = await self.anyConnection()
        missing = [name for name in self._topics if name in self._missing]
        others = [name for name in self._topics if name not in self._missing]
        if missing:
            await self._askFor(connection, missing, True)
            self._missing.difference_update(missing)
        if others or not missing:
            await self._askFor(connection, others, False)
        self._forgetBrokers()

    async def _askFor(
        self, connection: NegotiatedConnection, names: Sequence[str], isCreating: bool
    ) -> None:
        cls = messages.MetadataRequest
        body = cls(topics=[cls.MetadataRequestTopic(name=name) for name in names])
        if connection.supports(ApiKey.METADATA, CREATION_VERSION):
            body.allowAutoTopicCreation = isCreating
        found = await connection.request(ApiKey.METADATA, body)
        checkCode(found.errorCode, "metadata")
        if not found.brokers:
            raise BrokerConnectionError("the metadata name no broker")
        self.metadata.update(found)

    def _ended(self, result: Failure | None) -> None:
        self._refreshing = None
        if self._refusal is not None:
            return
        if isinstance(result, Failure):
            self._failed(result)
            return
        self._lastError = None
        self._nextAtMs = self._clock.seconds() * 1000 + self.settings.retryBackoffMs
        self._isStale = self._isStale or not self._isComplete()
        if self._isStale:
            self._timer.start(self._nextWaitMs(), self._begin)
        else:
            self._failureCount = 0
            self._timer.start(self.settings.metadataMaxAgeMs, self._begin)
        self._refreshed.fire(None)
        for changed in list(self._listeners):
            changed()

    def _isComplete(self) -> bool:
        """Whether every topic that is asked for is known, with all its leaders."""
        metadata = self.metadata
        return all(
            name in metadata.topics
            and name not in metadata.errors
            and all(each.node in metadata.brokers for each in metadata.topics[name].leaders)
            for name in self._topics
        )

    def _failed(self, reason: Failure) -> None:
        error = reason.value
        isPassing = isinstance(error, BrokerConnectionError) or (
            isinstance(error, ResponseError) and error.isRetriable
        )
        if isinstance(error, ResponseError) and error.code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self.metadata.brokers.clear()  # begin again with C{bootstrap.servers}
            isPassing = True
        if not isinstance(error, PylogbrokerError):
            log.failure("Asking for metadata failed unexpectedly", reason)
            error = BrokerConnectionError(f"unexpected: {error!r}")
        self._lastError = error
        self._isStale = True
        self._timer.start(self._nextWaitMs(), self._begin)
        if not isPassing:
            self._refreshed.fire(Failure(copyForReraise(error)))
            for failed in list(self._errorListeners):
                failed(error)

    def _nextWaitMs(self) -> float:
        self._failureCount += 1
        return self.backoffMs(self._failureCount)

    # -- the end

    def abort(self) -> None:
        """Cut all connections. L{close} then takes a moment."""
        self._stop()
        self._pool.abort()
        self.coordinators.abort()

    def _stop(self) -> None:
        if self._refusal is None:
            self._refusal = ClosedError("the client was closed")
        self._timer.stop()
        for client in self._clients.values():
            client.stop()
        refreshing, self._refreshing = self._refreshing, None
        if refreshing is not None:
            refreshing.cancel()
        self._refreshed.fire(Failure(copyForReraise(self._refusal)))
        self._pauses.fire(None)

    def close(self) -> Deferred[None]:
        """
        Ask no more, and close all connections.

        @return: as L{BrokerClientPool.close}.
        """
        self._stop()
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        await gatherAll([self._pool.close(), self.coordinators.close()])
