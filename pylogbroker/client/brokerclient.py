"""
A broker's client that outlives its connections: it connects on demand and reconnects after a loss.

What must be true:

  - There is at most one connection to a broker, and at most one attempt to make one. Without a
  caller there is no attempt and no timer.
  - Callers get the connection in the order of their calls, so a producer's writes stay in order.
  - A caller waits at most C{connectTimeoutMs}. If the next attempt would come too late, the call
  fails at once with the last reason. This time does not run while an old connection closes.

All callers share the retry delay. A connection that ends within L{STABLE_MS} counts as a failure.

A broker that closes a connection may lose the last writes, and a protocol without answers does not
tell. So the log warns if a request without an answer was written within the last
L{UNCONFIRMED_WARN_MS}. It also warns of the first failed attempt of an outage, and of one longer
than L{REPORT_AFTER_MS}.

L{BrokerClient.call} repeats a read-only request once after a lost connection (spec-0.7 consumer
§1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from random import SystemRandom
from typing import Any, TypeVar, cast

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    clientFromString,
)
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.connection import DEFAULT_LIMITS, ClientConnection, ConnectionLimits
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
    TimedOutError,
    WireError,
    copyForReraise,
)
from pylogbroker.net.deferreds import asDeferred, gatherAll
from pylogbroker.net.endpointstrings import KINDS, PLAIN, PORT_MAX, brokerEndpoint
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.brokercalls import BrokerCall
from pylogbroker.retry import Backoff

T = TypeVar("T")

CONNECT_TIMEOUT_MS = 5_000
TIMEOUT_MS = 30_000
STABLE_MS = 1_000
"""A connection that lasted longer was a good one."""

UNCONFIRMED_WARN_MS = 60_000
"""
How long after a request without an answer the end of its connection may mean a loss. A broker may
handle a request for half of this, and is cut off when it reads nothing for the other half.
"""

REPORT_AFTER_MS = 2_000
"""An attempt to connect that takes longer is reported in the log."""

CALLER_COUNT_MAX = 10_000
BROKER_COUNT_MAX = 10_000

log = Logger()


@dataclass(eq=False, slots=True)
class _Caller:
    """
    A caller that waits for a connection.

    @ivar isPatient: whether its time runs only when there is no old connection to wait for.
    @ivar deadlineMs: on the clock; infinite while its time does not run.
    @ivar isOnce: whether the first failed attempt is the last for it.
    """

    waiter: Deferred[ClientConnection]
    isPatient: bool
    timer: Timer
    deadlineMs: float = inf
    isOnce: bool = False


class _QuietFactory(Factory):
    noisy = False


class BrokerClient:
    """
    The client of one broker.

    At most one of these exists at a time: an attempt to connect, a delay before the next attempt, a
    connection, or the end of an older connection that must come first. Without any of them the
    client is idle.

    @ivar name: the broker's, for texts.
    @ivar connectTimeoutMs: how long a caller waits for a connection, by default.
    @ivar current: the connection that L{connection} would give at once; else L{None}.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: str | IStreamClientEndpoint,
        *,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        random: Callable[[], float] | None = None,
        name: str = "",
    ) -> None:
        """
        @param endpoint: see L{clientEndpoint}.
        @param random: in [0, 1), for jitter; by default the system's.
        @param name: the broker's, for texts; by default the endpoint's.
        @raise ConfigurationError: the endpoint cannot be read.
        """
        self.name = name or (endpoint if isinstance(endpoint, str) else repr(endpoint))
        self.connectTimeoutMs = connectTimeoutMs
        self.current: ClientConnection | None = None
        self._clock = reactor
        self._endpoint = clientEndpoint(reactor, endpoint)
        self._factory = _QuietFactory.forProtocol(
            partial(
                ClientConnection, reactor, self.name, limits=limits, onEnd=self._connectionEnded
            )
        )
        self._backoff = Backoff(SystemRandom().random if random is None else random)
        self._dueAtMs = 0.0
        self._lastError: PylogbrokerError | None = None
        self._callers: deque[_Caller] = deque()
        self._connection: ClientConnection | None = None
        self._old: ClientConnection | None = None
        self._blockedBy: object = None  # what has to be gone before there is a new connection
        self._madeAtMs = 0.0
        self._attempt: Deferred[Any] | None = None
        self._holdTimer = Timer(reactor)
        self._reportTimer = Timer(reactor)
        self._isReported = False  # the outage, in the log
        self._rateLimitedLog = RateLimitedLogger(reactor, log)
        self._refusal: PylogbrokerError | None = None

    def __repr__(self) -> str:
        return f"<BrokerClient {self.name} {self._connection}, {len(self._callers)} waiting>"

    # -- requests

    def connection(
        self, timeoutMs: float | None = None, isOnce: bool = False
    ) -> Deferred[ClientConnection]:
        """
        The present connection, or a new one.

        @param timeoutMs: by default C{connectTimeoutMs}, from when an old connection is gone.
        @param isOnce: whether to fail with the first failed attempt, for a caller that knows other
            brokers to ask.
        @return: fails with L{BrokerConnectionError}, which names the broker and the last attempt's
            reason; with its subclass L{TimedOutError} if no attempt has ended; with L{ClosedError}
            after C{close}; with L{BackpressureError} when too many callers wait. Cancelling stops
            the wait.
        """
        if self.current is not None:
            return succeed(self.current)
        if self._refusal is not None:
            return fail(copyForReraise(self._refusal))
        if len(self._callers) >= CALLER_COUNT_MAX:
            return fail(
                BackpressureError(
                    f"{len(self._callers)} wait for a connection to {self.name} already"
                )
            )
        waiter: Deferred[ClientConnection] = Deferred(lambda _waiter: self._forget(caller))
        caller = _Caller(waiter, timeoutMs is None, Timer(self._clock), isOnce=isOnce)
        if timeoutMs is not None:
            self._limit(caller, timeoutMs)
        elif self._blockedBy is None:
            self._limit(caller, self.connectTimeoutMs)
        self._callers.append(caller)
        self._ensureConnection()
        return waiter

    @asDeferred
    async def call(self, call: BrokerCall[T], timeoutMs: float) -> T:
        """
        Send a request that may be sent twice.

        @param timeoutMs: for both attempts together.
        @return: fires with the decoded answer. A request on a lost connection is sent once more,
            then fails with L{BrokerConnectionError}. Fails with L{TimedOutError}; with L{WireError}
            when the answer cannot be decoded (the connection is cut); with what C{call.decode}
            raises. Can be cancelled.
        """
        deadlineMs = self._nowMs() + timeoutMs
        connection = await self._connectionBefore(deadlineMs)
        try:
            body = await connection.request(call.frame, timeoutMs)
        except (TimedOutError, ClosedError):
            raise
        except BrokerConnectionError:
            connection = await self._connectionBefore(deadlineMs)
            body = await connection.request(call.frame, deadlineMs - self._nowMs())
        try:
            return call.decode(body)
        except WireError as error:
            connection.drop(error)
            raise

    def _connectionBefore(self, deadlineMs: float) -> Deferred[ClientConnection]:
        return self.connection(min(self.connectTimeoutMs, deadlineMs - self._nowMs()))

    def _nowMs(self) -> float:
        return float(self._clock.seconds() * 1000)

    # -- callers

    def _limit(self, caller: _Caller, timeoutMs: float) -> None:
        caller.deadlineMs = self._nowMs() + timeoutMs
        caller.timer.start(timeoutMs, self._expire, caller, timeoutMs)

    def _blockOn(self, before: object) -> None:
        self._blockedBy = before
        for caller in self._callers:
            if caller.isPatient:
                caller.deadlineMs = inf
                caller.timer.stop()

    def _onGone(self, result: Any, before: object) -> Any:
        """Connect again; after a replaced connection even without a caller."""
        if self._old is before:
            self._old = None
        if self._blockedBy is before:
            self._blockedBy = None
            for caller in self._callers:
                if caller.isPatient:
                    self._limit(caller, self.connectTimeoutMs)
            if isinstance(before, ClientConnection):
                self._dueAtMs = self._nowMs()
                self._attemptConnect()
            else:
                self._ensureConnection()
        return result

    def _expire(self, caller: _Caller, timeoutMs: float) -> None:
        self._forget(caller)
        last = (
            f"; the attempt before failed: {self._lastError}" if self._lastError is not None else ""
        )
        caller.waiter.errback(
            TimedOutError(f"no connection to {self.name} within {timeoutMs:.0f} ms{last}")
        )

    def _forget(self, caller: _Caller) -> None:
        caller.timer.stop()
        self._callers.remove(caller)
        if not self._callers:
            self._cancelAttempt()

    def _failCallers(self, callers: list[_Caller], reason: PylogbrokerError) -> None:
        for caller in callers:
            self._callers.remove(caller)
            caller.timer.stop()
        for caller in callers:
            caller.waiter.errback(reason)

    def _serve(self) -> None:
        while self._callers and self._connection is not None:
            caller = self._callers.popleft()
            caller.timer.stop()
            caller.waiter.callback(self._connection)
        self.current = self._connection

    # -- connecting

    def _ensureConnection(self) -> None:
        """Connect for the callers, if the client is idle."""
        if (
            not self._callers
            or self._connection is not None
            or self._blockedBy is not None
            or self._attempt is not None
            or self._holdTimer.isRunning
        ):
            return
        waitMs = self._dueAtMs - self._nowMs()
        if waitMs > 0:
            self._holdTimer.start(waitMs, self._attemptConnect)
        else:
            self._attemptConnect()

    def _attemptConnect(self) -> None:
        self._attempt = attempt = self._endpoint.connect(self._factory)
        timeoutMs = self.connectTimeoutMs

        def late(_result: object, _seconds: float) -> None:
            raise TimedOutError(f"no connection to {self.name} within {timeoutMs:.0f} ms")

        if not self._isReported and timeoutMs > REPORT_AFTER_MS:
            self._reportTimer.start(
                REPORT_AFTER_MS, self._report, f"no answer within {REPORT_AFTER_MS / 1000:g} s"
            )
        attempt.addTimeout(timeoutMs / 1000, self._clock, late)
        attempt.addCallbacks(self._attemptMade, self._attemptFailed, errbackArgs=(attempt,))

    def _report(self, error: object) -> None:
        self._reportTimer.stop()
        if not self._isReported:
            self._isReported = True
            self._rateLimitedLog.warn(
                "No connection to {name} yet, trying again: {error}", name=self.name, error=error
            )

    def _attemptMade(self, connection: ClientConnection) -> None:
        self._reportTimer.stop()
        self._isReported = False
        self._attempt = self._lastError = None
        self._connection = connection
        self._madeAtMs = self._nowMs()
        self._serve()

    def _attemptFailed(self, reason: Failure, attempt: Deferred[Any]) -> None:
        if attempt is not self._attempt:  # it was cancelled
            return
        self._reportTimer.stop()
        self._attempt = None
        error = reason.value
        if not isinstance(error, PylogbrokerError):
            error = BrokerConnectionError(f"cannot connect to {self.name}: {error}")
            error.__cause__ = reason.value
        self._lastError = error
        self._dueAtMs = self._nowMs() + self._backoff.failed()
        self._failCallers(
            [each for each in self._callers if each.isOnce or each.deadlineMs < self._dueAtMs],
            error,
        )
        if self._callers:
            self._report(error)
        self._ensureConnection()

    def _cancelAttempt(self) -> None:
        self._holdTimer.stop()
        self._reportTimer.stop()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()

    def _connectionEnded(self, connection: ClientConnection) -> None:
        if connection is not self._connection:
            return
        self._connection = self.current = None
        self._dueAtMs = nowMs = self._nowMs()
        if (
            connection.lastUnackedAt is not None
            and nowMs - connection.lastUnackedAt * 1000 <= UNCONFIRMED_WARN_MS
        ):
            self._rateLimitedLog.warn(
                "What was written to {name} last may be lost, since nothing confirms it: {reason}",
                name=self.name,
                reason=connection.refusal,
            )
        if nowMs - self._madeAtMs < STABLE_MS:
            self._dueAtMs += self._backoff.failed()
        else:
            self._backoff.succeeded()
        self._ensureConnection()

    # -- closing

    def replace(self) -> Deferred[None]:
        """
        Close the connection in order and make a new one at once. Later calls use the new one.

        @return: as L{ClientConnection.close}; fires at once without a connection.
        """
        connection, self._connection, self.current = self._connection, None, None
        if connection is None:
            return succeed(None)
        self._old = connection
        self._blockOn(connection)
        return connection.close().addBoth(self._onGone, connection)

    def connectAfter(self, end: Deferred[None]) -> None:
        """
        Make no connection before an earlier client's is gone, so that writes cannot overtake. To be
        called before any other method.

        @param end: fires, or fails, when it is gone.
        """
        self._blockOn(end)
        end.addBoth(self._onGone, end).addErrback(lambda _failure: None)

    def close(self, flush: bool = True, final: bool = True) -> Deferred[None]:
        """
        Close the connection. Waiting callers fail with L{ClosedError}.

        @param flush: whether to finish requests under way; otherwise they fail with L{ClosedError}.
        @param final: whether no connection will be made any more.
        @return: as L{ClientConnection.close}.
        """
        closed = ClosedError(f"the client of {self.name} was closed")
        if final:
            self._refusal = closed
        connection = self._old = self._connection or self._old
        self._connection = self.current = self._blockedBy = None
        self._cancelAttempt()
        self._failCallers(list(self._callers), closed)
        return (
            succeed(None)
            if connection is None
            else connection.close(flush).addBoth(self._onGone, connection)
        )

    def abort(self) -> None:
        """
        Cut the connection for good, also one that is closing. Requests under way fail with
        L{ClosedError}.
        """
        self.close(flush=False).addErrback(lambda _failure: None)
        if self._old is not None:
            self._old.drop(
                ClosedError(
                    f"the connection to {self.name} was cut: there was no time to close it in order"
                )
            )


class BrokerClientPool:
    """
    Clients of many brokers, one for each endpoint.

    A forgotten broker may return before its connection has ended, for example after an expired
    session in ZooKeeper. Its new client connects only when the old connection is gone, so that no
    write overtakes.

    Rejected: not closing the connection at all. A grace time would be a guess, and a broker that
    has moved or died would look the same.
    """

    def __init__(
        self,
        reactor: Any,
        *,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        random: Callable[[], float] | None = None,
        template: str = "",
    ) -> None:
        """
        @param template: makes an endpoint of C{host:port}; see
            L{pylogbroker.net.endpointstrings.brokerEndpoint}.
        """
        self._make = partial(
            BrokerClient, reactor, connectTimeoutMs=connectTimeoutMs, limits=limits, random=random
        )
        self._template = template
        self._clients: dict[str, BrokerClient] = {}
        self._leaving: dict[str, BrokerClient] = {}  # forgotten, and not gone yet
        self._refusal: ClosedError | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, endpoint: str) -> BrokerClient:
        """
        The client of a broker. It connects on demand, after the connection of a forgotten one is
        gone.

        @param endpoint: see L{clientEndpoint}; the same string gives the same client.
        @raise ConfigurationError: the endpoint cannot be read.
        @raise BackpressureError: there are BROKER_COUNT_MAX clients.
        @raise ClosedError: after C{close}.
        """
        if self._refusal is not None:
            raise copyForReraise(self._refusal)
        client = self._clients.get(endpoint)
        if client is None:
            if len(self._clients) >= BROKER_COUNT_MAX:
                raise BackpressureError(f"there are ways to {len(self._clients)} brokers already")
            client = self._clients[endpoint] = self._make(brokerEndpoint(self._template, endpoint))
            before = self._leaving.get(endpoint)
            if before is not None:
                client.connectAfter(before.close())
        return client

    def forget(self, endpoint: str) -> Deferred[None]:
        """
        Close the connection of a broker that is gone or must be connected anew.

        @return: as L{BrokerClient.close}.
        """
        client = self._clients.pop(endpoint, None)
        if client is None:
            return succeed(None)
        closing = client.close()
        if not closing.called:
            self._leaving[endpoint] = client
            closing.addBoth(self._left, endpoint)
        return closing

    def _left(self, result: Any, endpoint: str) -> Any:
        del self._leaving[endpoint]
        return result

    def abort(self) -> None:
        """Cut all connections, also of forgotten brokers. C{close} then takes a moment."""
        self._refuse()
        for client in (*self._leaving.values(), *self._clients.values()):
            client.abort()

    def _refuse(self) -> None:
        self._refusal = ClosedError("the connections were closed")

    @asDeferred
    async def close(self) -> None:
        """
        @return: fires when all connections are gone, also of forgotten brokers; fails as
            L{BrokerClient.close}.
        """
        self._refuse()
        leaving = [client.close() for client in self._leaving.values()]
        await gatherAll(leaving + [self.forget(endpoint) for endpoint in list(self._clients)])


def clientEndpoint(reactor: Any, description: str | IStreamClientEndpoint) -> IStreamClientEndpoint:
    """
    The endpoint of a broker.

    @param description: C{"host:port"} (a name may stand for several addresses; IPv6 addresses in
        brackets), C{"tcp:host:port"}, C{"tls:host:port"} (checks the certificate),
        C{"ssl:host:port:caCertsDir=…"} (checks it only with authorities), C{"unix:path"}; or an
        endpoint, which is returned.
    @raise ConfigurationError: it is another string; the text repeats it.
    """
    if not isinstance(description, str):
        return description
    plain = PLAIN.fullmatch(description)
    if plain is None:
        try:
            return cast(IStreamClientEndpoint, clientFromString(reactor, description))
        except (ValueError, TypeError, LookupError, OSError) as error:
            raise ConfigurationError(
                f"endpoint {description!r} is neither host:port nor a client endpoint string: "
                f"{error}"
            ) from error
    host, port = plain["v6"] or plain["host"], int(plain["port"])
    if host in KINDS:
        raise ConfigurationError(
            f"endpoint {description!r} names no host; {host}:HOST:{port} would be one"
        )
    if not 0 < port <= PORT_MAX:
        raise ConfigurationError(f"endpoint {description!r}: port {port} is not in 1..{PORT_MAX}")
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port)
    if isIPv6Address(host):
        return TCP6ClientEndpoint(reactor, host, port)
    if plain["v6"]:
        raise ConfigurationError(f"endpoint {description!r}: {host!r} is no IPv6 address")
    return HostnameEndpoint(reactor, host, port)
