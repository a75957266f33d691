"""
The way to a broker that outlives its connections: connect when somebody asks, again after a loss, and not too eagerly.

What must be true:

  - There is at most one connection to a broker at a time, and at most one attempt to make one.
  - Nobody connects for nobody: without a caller there is no attempt, and no timer runs.
  - Callers are served in the order in which they asked, also when one of them asks again while they are being served: what a producer
    writes must not overtake itself.
  - A caller waits C{connectTimeoutMs} at most, over as many attempts as fit; when the next would come too late, it learns at once why the last one failed.
    While the connection before is being closed in order, that time does not run: a broker that still answers the old one is well, and nobody has tried to
    reach it anew. Closing has its own limit.

The wait before the next attempt belongs to the link, not to a caller (see L{pylogbroker.retry.Backoff}): a hundred callers of a dead
broker do not try it a hundred times. A connection that ends as soon as it was made counts as a failure, since a broker that accepts and closes would
otherwise be asked again as fast as the network allows; one that lasted is replaced at once.

A connection that ends from the other side takes along what was written last and not read, and nobody is told where nothing is answered: a broker that refuses a
request does just that. So it is a warning in the log, one a broker and while, if something was written without an answer within L{UNCONFIRMED_WARN_MS} before. (That is a
rule on time since the end of an idle connection looks the same, when a broker stops or thinks that it has waited long enough, and should worry nobody.)

A caller that waits is silent otherwise, so the first failed attempt of an outage is a warning in the log, and so is an attempt that takes longer than
L{REPORT_AFTER_MS}.

Requests that only read can be asked twice, and L{BrokerClient.call} does so once after a lost connection (spec-0.7 consumer §1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from random import SystemRandom
from typing import Any, Protocol, TypeVar, cast

from automat import TypeMachineBuilder
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    clientFromString,
)
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
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
from pylogbroker.net.endpoints import KINDS, PLAIN, PORT_MAX
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.brokercalls import BrokerCall
from pylogbroker.retry import Backoff

T = TypeVar("T")

CONNECT_TIMEOUT_MS = 5_000
TIMEOUT_MS = 30_000
STABLE_MS = 1_000
"""A connection that lasted so long was a good one."""

UNCONFIRMED_WARN_MS = 60_000
"""
How long after a request without an answer the end of its connection may mean that it is lost. Mostly that comes at once; but a broker may be at it for as long
as an answer may take, which is half of this, and what it reads not at all is cut off after as long.
"""

REPORT_AFTER_MS = 2_000
"""An attempt to connect that takes longer is reported in the log."""

CALLER_COUNT_MAX = 10_000

log = Logger()


class _Caller:
    """
    Somebody who waits for a connection.

    @ivar isPatient: whether its time runs only while there is no old connection to be waited for.
    @ivar deadlineMs: on the clock; infinite as long as its time does not run.
    """

    __slots__ = ("deadlineMs", "isPatient", "timer", "waiter")

    def __init__(self, waiter: Deferred[ClientConnection], isPatient: bool, timer: Timer) -> None:
        self.waiter = waiter
        self.isPatient = isPatient
        self.deadlineMs = inf
        self.timer = timer


class _ConnectionFactory(Factory):
    """Makes connections that report to a link."""

    noisy = False

    def __init__(self, build: Callable[[], ClientConnection]) -> None:
        self._build = build

    def buildProtocol(self, addr: IAddress | None) -> ClientConnection:
        return self._build()


class _Way(Protocol):
    """What can happen to the way to a broker."""

    def connect(self) -> None:
        """Somebody waits, and nothing speaks against an attempt."""

    def hold(self, waitMs: float) -> None:
        """Somebody waits, and it is too early for an attempt."""

    def ripe(self) -> None:
        """It is not too early any more."""

    def made(self) -> None:
        """The attempt came to a connection."""

    def failed(self) -> None:
        """The attempt came to nothing."""

    def unwanted(self) -> None:
        """Nobody waits any more."""

    def ended(self) -> None:
        """The connection takes no more requests."""

    def replace(self) -> None:
        """The connection is good, and old."""

    def replaced(self) -> None:
        """The old connection is gone."""

    def follow(self) -> None:
        """The connection of somebody before is still being closed."""

    def free(self) -> None:
        """It is gone."""

    def close(self) -> None:
        """The owner wants no more of it."""


class BrokerClient:
    """
    The way to one broker.

    @ivar name: of the broker, for texts.
    @ivar connectTimeoutMs: how long a caller waits for a connection, unless it says otherwise.
    @ivar current: the connection when there is one and nobody waits for it: what L{connection} would give at once.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: str | IStreamClientEndpoint,
        *,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param reactor: for connecting (with an endpoint string) and for time.
        @param endpoint: see L{clientEndpoint}.
        @param limits: of each connection.
        @param random: numbers from 0 up to, not including, 1, for the jitter; by default the system's.
        @raise ConfigurationError: the endpoint is none.
        """
        self.name = endpoint if isinstance(endpoint, str) else repr(endpoint)
        self.connectTimeoutMs = connectTimeoutMs
        self.current: ClientConnection | None = None
        self._clock = reactor
        self._endpoint = clientEndpoint(reactor, endpoint)
        self._limits = limits
        self._backoff = Backoff(SystemRandom().random if random is None else random)
        self._ripeAtMs = 0.0
        self._lastError: PylogbrokerError | None = None
        self._callers: deque[_Caller] = deque()
        self._connection: ClientConnection | None = None
        self._old: ClientConnection | None = None
        self._before: object = None  # what has to be gone before there is a new connection
        self._madeAtMs = 0.0
        self._attempt: Deferred[Any] | None = None
        self._timer = Timer(reactor)
        self._reportTimer = Timer(reactor)
        self._isReported = False  # the outage, in the log
        self._quietLog = RateLimitedLogger(reactor, log)
        self._refusal: PylogbrokerError | None = None
        self._way = _brokerWay(self)

    def __repr__(self) -> str:
        return f"<BrokerClient {self.name} {self._connection}, {len(self._callers)} waiting>"

    # -- asking -------------------------------------------------------------------------------------------------------

    def connection(self, timeoutMs: float | None = None) -> Deferred[ClientConnection]:
        """
        An open connection: the one there is, or else one that is made now.

        @param timeoutMs: how long to wait for it; by default C{connectTimeoutMs} from when one can be made, the one before being gone.
        @return: fails with L{BrokerConnectionError}, which names the broker and the reason of the last failed attempt, with L{TimedOutError} (one of
            these) if none came to an end, with L{ClosedError} after C{close}, with L{BackpressureError} when too many wait already. Cancelling stops waiting.
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
        caller = _Caller(waiter, timeoutMs is None, Timer(self._clock))
        if timeoutMs is not None:
            self._limit(caller, timeoutMs)
        elif self._before is None:
            self._limit(caller, self.connectTimeoutMs)
        self._callers.append(caller)
        self._pursue()
        return waiter

    def call(self, call: BrokerCall[T], timeoutMs: float) -> Deferred[T]:
        """
        Ask a question that may be asked twice.

        @param timeoutMs: for all of it.
        @return: fires with the decoded answer. When the connection is lost before that, the question is asked once more over a new one; then, or when no
            new one can be made, it fails with L{BrokerConnectionError}. Fails with L{TimedOutError} after C{timeoutMs}, with L{WireError} when the answer is none
            (the connection is then cut), and with what C{call.decode} raises. Can be cancelled at any time.
        """
        return Deferred.fromCoroutine(self._ask(call, self._nowMs() + timeoutMs, timeoutMs))

    async def _ask(self, call: BrokerCall[T], deadlineMs: float, timeoutMs: float) -> T:
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

    # -- callers ------------------------------------------------------------------------------------------------------

    def _limit(self, caller: _Caller, timeoutMs: float) -> None:
        """Its time begins."""
        caller.deadlineMs = self._nowMs() + timeoutMs
        caller.timer.start(timeoutMs, self._expire, caller, timeoutMs)

    def _waitFor(self, before: object) -> None:
        """Something has to be gone before there is a new connection. The time of the patient does not run meanwhile."""
        self._before = before
        for caller in self._callers:
            if caller.isPatient:
                caller.deadlineMs = inf
                caller.timer.stop()

    def _waitedFor(self) -> None:
        """It is gone, and their time begins."""
        self._before = None
        for caller in self._callers:
            if caller.isPatient:
                self._limit(caller, self.connectTimeoutMs)

    def _expire(self, caller: _Caller, timeoutMs: float) -> None:
        self._forget(caller)
        last = (
            f"; the attempt before failed: {self._lastError}" if self._lastError is not None else ""
        )
        caller.waiter.errback(
            TimedOutError(f"no connection to {self.name} within {timeoutMs:.0f} ms{last}")
        )

    def _forget(self, caller: _Caller) -> None:
        """It waits no longer."""
        caller.timer.stop()
        self._callers.remove(caller)
        if not self._callers:
            self._way.unwanted()

    def _failCallers(self, callers: list[_Caller], reason: PylogbrokerError) -> None:
        for caller in callers:
            self._callers.remove(caller)
            caller.timer.stop()
        for caller in callers:
            caller.waiter.errback(reason)

    def _serve(self) -> None:
        """Give the connection to those who wait, in order, and to those who come to wait meanwhile."""
        while self._callers and self._connection is not None:
            caller = self._callers.popleft()
            caller.timer.stop()
            caller.waiter.callback(self._connection)
        self.current = self._connection

    def _pursue(self) -> None:
        """Somebody waits: see to it that there will be a connection."""
        waitMs = self._ripeAtMs - self._nowMs()
        if waitMs > 0:
            self._way.hold(waitMs)
        else:
            self._way.connect()

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._attempt = attempt = self._endpoint.connect(_ConnectionFactory(self._build))
        timeoutMs = self.connectTimeoutMs

        def late(_result: object, _seconds: float) -> None:
            raise TimedOutError(f"no connection to {self.name} within {timeoutMs:.0f} ms")

        if not self._isReported and timeoutMs > REPORT_AFTER_MS:
            self._reportTimer.start(
                REPORT_AFTER_MS, self._report, f"no answer within {REPORT_AFTER_MS / 1000:g} s"
            )
        attempt.addTimeout(timeoutMs / 1000, self._clock, late)
        attempt.addCallbacks(self._attemptMade, self._attemptFailed, errbackArgs=(attempt,))

    def _build(self) -> ClientConnection:
        return ClientConnection(
            self._clock, self.name, limits=self._limits, onEnd=self._connectionEnded
        )

    def _report(self, error: object) -> None:
        """Callers wait, and go on waiting: say so, once an outage."""
        self._reportTimer.stop()
        if not self._isReported:
            self._isReported = True
            self._quietLog.warn(
                "No connection to {name} yet, trying again: {error}", name=self.name, error=error
            )

    def _attemptMade(self, connection: ClientConnection) -> None:
        self._reportTimer.stop()
        self._isReported = False
        self._attempt = self._lastError = None
        self._connection = connection
        self._madeAtMs = self._nowMs()
        self._way.made()

    def _attemptFailed(self, reason: Failure, attempt: Deferred[Any]) -> None:
        if attempt is not self._attempt:  # nobody wanted it any more
            return
        self._reportTimer.stop()
        self._attempt = None
        self._lastError = error = self._connectError(reason)
        self._ripeAtMs = self._nowMs() + self._backoff.failed()
        self._way.failed()
        self._failCallers(
            [caller for caller in self._callers if caller.deadlineMs < self._ripeAtMs], error
        )
        if self._callers:
            self._report(error)
            self._pursue()

    def _connectError(self, reason: Failure) -> PylogbrokerError:
        error = reason.value
        if isinstance(error, PylogbrokerError):
            return error
        refused = BrokerConnectionError(f"cannot connect to {self.name}: {error}")
        refused.__cause__ = error
        return refused

    def _giveUp(self) -> None:
        """Stop what is being tried."""
        self._timer.stop()
        self._reportTimer.stop()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()

    def _connectionEnded(self, connection: ClientConnection) -> None:
        """A connection takes no more requests, and nobody here asked for that, or else it would not be ours any more."""
        if connection is not self._connection:
            return
        self._connection = self.current = None
        self._ripeAtMs = nowMs = self._nowMs()
        if (
            connection.lastUnackedAt is not None
            and nowMs - connection.lastUnackedAt * 1000 <= UNCONFIRMED_WARN_MS
        ):
            self._quietLog.warn(
                "What was written to {name} last may be lost, since nothing confirms it: {reason}",
                name=self.name,
                reason=connection.refusal,
            )
        if nowMs - self._madeAtMs < STABLE_MS:
            self._ripeAtMs += self._backoff.failed()
        else:
            self._backoff.succeeded()
        self._way.ended()

    # -- letting go ---------------------------------------------------------------------------------------------------

    def replace(self) -> Deferred[None]:
        """
        Close the connection in an orderly way and make a new one at once. Who asks meanwhile waits for the new one, so that what is sent over it comes after.

        @return: as L{ClientConnection.close}; fires at once when there is no connection.
        """
        connection, self._connection, self.current = self._connection, None, None
        if connection is None:
            return succeed(None)
        self._old = connection
        self._waitFor(connection)
        self._way.replace()
        return (
            connection.close()
            .addBoth(self._forgetOld, connection)
            .addBoth(self._replaced, connection)
        )

    def _replaced(self, result: Any, connection: ClientConnection) -> Any:
        if self._before is connection:
            self._waitedFor()
            self._ripeAtMs = self._nowMs()
            self._way.replaced()
        return result

    def connectAfter(self, end: Deferred[None]) -> None:
        """
        Make no connection before that of somebody else is gone, so that what is sent comes after what was sent there.

        @param end: fires, or fails, when it is. To be told before anybody asks for a connection.
        """
        self._waitFor(end)
        self._way.follow()
        end.addBoth(self._freed, end)

    def _freed(self, _result: Any, end: Deferred[None]) -> None:
        if self._before is end:
            self._waitedFor()
            self._way.free()

    def close(self, flush: bool = True, final: bool = True) -> Deferred[None]:
        """
        Let go of the connection; who waits for one gets L{ClosedError}.

        @param flush: finish what is under way; L{False} fails it with L{ClosedError}.
        @param final: no new connection will be made; else the next caller makes one.
        @return: as L{ClientConnection.close}.
        """
        closed = ClosedError(f"the client of {self.name} was closed")
        if final:
            self._refusal = closed
        connection = self._old = self._connection or self._old
        self._connection = self.current = self._before = None
        self._way.close()
        self._failCallers(list(self._callers), closed)
        return (
            succeed(None)
            if connection is None
            else connection.close(flush).addBoth(self._forgetOld, connection)
        )

    def abort(self) -> None:
        """Close for good, without order: what is under way fails with L{ClosedError}, the connection is cut, and so is one that is still being closed."""
        self.close(flush=False).addErrback(lambda _failure: None)
        if self._old is not None:
            self._old.drop(
                ClosedError(
                    f"the connection to {self.name} was cut: there was no time to close it in order"
                )
            )

    def _forgetOld(self, result: Any, connection: ClientConnection) -> Any:
        if self._old is connection:
            self._old = None
        return result


def _buildWay() -> Callable[[BrokerClient], _Way]:
    """
    The way to a broker: C{idle}, C{connecting}, C{holding} (it is too early for an attempt), C{connected}, C{replacing} (the old connection is being closed),
    C{following} (that of somebody before is).
    """
    builder = TypeMachineBuilder(_Way, BrokerClient)
    idle, connecting, holding = (
        builder.state("idle"),
        builder.state("connecting"),
        builder.state("holding"),
    )
    connected, replacing, following = (
        builder.state("connected"),
        builder.state("replacing"),
        builder.state("following"),
    )

    @idle.upon(_Way.connect).to(connecting)
    @holding.upon(_Way.ripe).to(connecting)
    @replacing.upon(_Way.replaced).to(connecting)
    def begin(_way: _Way, link: BrokerClient) -> None:
        link._begin()

    @idle.upon(_Way.hold).to(holding)
    def hold(way: _Way, link: BrokerClient, waitMs: float) -> None:
        link._timer.start(waitMs, way.ripe)

    @connecting.upon(_Way.made).to(connected)
    def serve(_way: _Way, link: BrokerClient) -> None:
        link._serve()

    @connected.upon(_Way.ended).to(idle)
    @following.upon(_Way.free).to(idle)
    def pursueAgain(_way: _Way, link: BrokerClient) -> None:
        if link._callers:
            link._pursue()

    @connecting.upon(_Way.unwanted).to(idle)
    @connecting.upon(_Way.close).to(idle)
    @holding.upon(_Way.unwanted).to(idle)
    @holding.upon(_Way.close).to(idle)
    def giveUp(_way: _Way, link: BrokerClient) -> None:
        link._giveUp()

    connecting.upon(_Way.failed).to(idle).returns(None)
    connected.upon(_Way.replace).to(replacing).returns(None)
    idle.upon(_Way.follow).to(following).returns(None)
    for state in (idle, connected, replacing, following):
        state.upon(_Way.close).to(idle).returns(None)
        state.upon(_Way.unwanted).loop().returns(None)
    for state in (connecting, holding, connected, replacing, following):
        state.upon(_Way.connect).loop().returns(None)
        state.upon(_Way.hold).loop().returns(None)
    return builder.build()


_brokerWay = _buildWay()


def clientEndpoint(reactor: Any, description: str | IStreamClientEndpoint) -> IStreamClientEndpoint:
    """
    The endpoint of a broker.

    @param reactor: what the endpoint is to connect with.
    @param description: C{"host:port"} (a name, which may stand for several addresses; IPv6 addresses in brackets), C{"tcp:host:port"},
        C{"tls:host:port"} (which checks the certificate), C{"ssl:host:port:caCertsDir=…"} (which does so only if told whom to trust), C{"unix:path"};
        or an endpoint, which is returned as it is.
    @raise ConfigurationError: a string that is none of these; the text repeats it.
    """
    if not isinstance(description, str):
        return description
    plain = PLAIN.fullmatch(description)
    if plain is None:
        return _fromTwistedString(reactor, description)
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


def _fromTwistedString(reactor: Any, description: str) -> IStreamClientEndpoint:
    try:
        return cast(IStreamClientEndpoint, clientFromString(reactor, description))
    except (ValueError, TypeError, LookupError, OSError) as error:
        raise ConfigurationError(
            f"endpoint {description!r} is neither host:port nor a client endpoint string: {error}"
        ) from error
