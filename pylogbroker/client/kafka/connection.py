"""
One broker that speaks today's protocol: a connection whose versions are negotiated, and which is
authenticated where the client has a password.

What must be true:

  - A request leaves in a version that both sides have, so the first request on a new connection is
  ApiVersions: a broker may have been replaced by another release meanwhile.
  - Responses come in the order of the requests (L{pylogbroker.client.connection}); each must have
  its request's correlation id, or the connection is dropped: what comes next is unknown.
  - A request without an answer within its time drops the connection, as in Java's client. Nothing
  can be said about the requests behind it, either, and all fail together, in their order.
  - While the client authenticates again, no other request leaves, and requests keep their order.

A broker that limits the time of an authentication says so. The client authenticates again, on the
same connection, after nine tenths of it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker import __version__
from pylogbroker.client.brokerclient import BrokerClient
from pylogbroker.client.connection import ClientConnection
from pylogbroker.errors import (
    PylogbrokerError,
    TimedOutError,
    UnsupportedVersionError,
    WireError,
    copyForReraise,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, checkCode
from pylogbroker.protocol.kafka.requests import RequestHeader, encodeRequest
from pylogbroker.protocol.kafka.responses import decodeResponse
from pylogbroker.protocol.kafka.saslclient import SaslLogin, saslTokens

VERSION_MAX = 0x7FFF
"""No bound on the version of a request but that of broker and client."""

HASH_ITERATIONS_MAX = 16_384
"""Of SCRAM, as many as Kafka allows; hashing them keeps the reactor for some 10 ms."""

REAUTHENTICATION_PART = 0.9
"""Of a session's lifetime, after which the client authenticates again."""

_CORRELATION_ID_MAX = 0x7FFFFFFF

log = Logger()


class NegotiatedConnection:
    """
    A connection whose broker's versions are known.

    @ivar raw: the connection.
    @ivar name: the broker's, for texts.
    @ivar features: the cluster's, with the level of each.
    """

    def __init__(
        self,
        clock: IReactorTime,
        raw: ClientConnection,
        clientId: str,
        timeoutMs: float,
        login: SaslLogin | None = None,
    ) -> None:
        """
        @param timeoutMs: for each response, beyond the time that the request itself may wait.
        """
        self.raw = raw
        self.name = raw.name
        self._clientId = clientId
        self._timeoutMs = timeoutMs
        self._login = login
        self._correlationId = 0
        self.features: dict[str, int] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._loginTimer = Timer(clock)
        self._authenticating: Waiters[None] | None = None

    # -- requests

    def request(
        self, key: ApiKey, body: Any, waitMs: float = 0, versionMax: int = VERSION_MAX
    ) -> Deferred[Any]:
        """
        Send a request.

        @param body: an object of C{messages}.
        @param waitMs: how long the broker may wait, for other replicas or for records.
        @param versionMax: the last version that has what the caller needs.
        @return: fires with the response, an object of C{messages}, whose error codes are the
            caller's. Fails with L{UnsupportedVersionError} when broker and client have no version
            in common (nothing was sent); with L{pylogbroker.errors.BrokerConnectionError} when the
            connection was lost or the time was over: the broker may have the request or not; with
            L{WireError} when what came is no response. Can be cancelled: then the response is
            discarded.
        """
        if self._authenticating is not None:
            return self._authenticating.wait().addCallback(
                lambda _nothing: self.request(key, body, waitMs, versionMax)
            )
        try:
            header = self._header(key, versionMax)
            return self._exchange(header, body, waitMs)
        except (UnsupportedVersionError, WireError):
            return fail()

    def send(self, key: ApiKey, body: Any, versionMax: int = VERSION_MAX) -> Deferred[None]:
        """
        Send a request that has no response: Produce with C{acks=0}.

        @return: as of L{ClientConnection.send}.
        """
        if self._authenticating is not None:
            return self._authenticating.wait().addCallback(
                lambda _nothing: self.send(key, body, versionMax)
            )
        try:
            return self.raw.send(encodeRequest(self._header(key, versionMax), body))
        except (UnsupportedVersionError, WireError):
            return fail()

    def supports(self, key: ApiKey, version: int = 0) -> bool:
        """Whether the broker has a request, in a version or a later one."""
        return self._versions.get(key, (0, -1))[1] >= version

    def version(self, key: ApiKey, versionMax: int = VERSION_MAX) -> int:
        """
        The version in which a request leaves.

        @raise UnsupportedVersionError: broker and client have none in common.
        """
        first, last = self._versions.get(key, (0, -1))
        version = min(last, key.lastVersion, versionMax)
        if version < max(first, key.firstVersion):
            has = f"{first} to {last}" if last >= 0 else "none"
            raise UnsupportedVersionError(
                f"{key.apiName}: {self.name} has {has}, and {key.firstVersion} to"
                f" {min(key.lastVersion, versionMax)} are known here"
            )
        return version

    def _header(self, key: ApiKey, versionMax: int = VERSION_MAX) -> RequestHeader:
        self._correlationId = self._correlationId % _CORRELATION_ID_MAX + 1
        return RequestHeader(
            key, self.version(key, versionMax), self._correlationId, self._clientId
        )

    def _exchange(self, header: RequestHeader, body: Any, waitMs: float = 0) -> Deferred[Any]:
        answer = self.raw.request(encodeRequest(header, body), self._timeoutMs + waitMs)
        return answer.addCallbacks(partial(self._decode, header), self._failed)

    def _decode(self, header: RequestHeader, frame: bytes) -> Any:
        try:
            return decodeResponse(header, frame)
        except WireError as error:
            self.raw.drop(error)
            raise

    def _failed(self, reason: Failure) -> Failure:
        if isinstance(reason.value, TimedOutError):
            self.raw.drop(copyForReraise(reason.value))
        return reason

    # -- the beginning

    async def negotiate(self) -> None:
        """
        Learn the broker's versions, and authenticate.

        @raise ResponseError: the password is refused, or the broker wants none.
        @raise PylogbrokerError: as of L{request}.
        """
        body = messages.ApiVersionsRequest(
            clientSoftwareName="pylogbroker", clientSoftwareVersion=__version__
        )
        key = ApiKey.API_VERSIONS
        version = key.lastVersion
        while True:
            self._versions = {key: (version, version)}
            found = await self._exchange(self._header(key), body)
            if found.errorCode != ErrorCode.UNSUPPORTED_VERSION or not version:
                break
            served = [each.maxVersion for each in found.apiKeys if each.apiKey == key]
            version = max(min([*served, version - 1]), 0) if served else 0
        checkCode(found.errorCode, self.name)
        self._versions = {each.apiKey: (each.minVersion, each.maxVersion) for each in found.apiKeys}
        self.features = {each.name: each.maxVersionLevel for each in found.finalizedFeatures}
        if self._login is not None:
            await self._authenticate(self._login)

    async def _authenticate(self, login: SaslLogin) -> None:
        key = ApiKey.SASL_HANDSHAKE
        body = messages.SaslHandshakeRequest(mechanism=login.mechanism)
        found = await self._exchange(self._header(key), body)
        checkCode(found.errorCode, f"{self.name}, which has {', '.join(found.mechanisms)}")
        tokens = saslTokens(login, HASH_ITERATIONS_MAX)
        token = next(tokens)
        key = ApiKey.SASL_AUTHENTICATE
        while True:
            body = messages.SaslAuthenticateRequest(authBytes=token)
            found = await self._exchange(self._header(key), body)
            checkCode(found.errorCode, self.name, found.errorMessage)
            try:
                token = tokens.send(bytes(found.authBytes))
            except StopIteration:
                break
        if found.sessionLifetimeMs > 0 and self.raw.refusal is None:
            self._loginTimer.start(
                found.sessionLifetimeMs * REAUTHENTICATION_PART, self._authenticateAgain, login
            )

    def _authenticateAgain(self, login: SaslLogin) -> None:
        self._authenticating = Waiters()
        running = Deferred.fromCoroutine(self._authenticate(login))
        running.addCallbacks(self._authenticated, self._notAuthenticated)

    def _authenticated(self, _nothing: None) -> None:
        waiters, self._authenticating = self._authenticating, None
        assert waiters is not None
        waiters.fire(None)

    def _notAuthenticated(self, reason: Failure) -> None:
        if self.raw.refusal is None:
            log.warn(
                "{name} has refused to authenticate this client again: {reason}",
                name=self.name,
                reason=reason.getErrorMessage(),
            )
            self.raw.drop(asPylogbrokerError(reason))
        self._authenticated(None)  # those that wait now fail with the connection's reason

    def stop(self) -> None:
        """Authenticate no more."""
        self._loginTimer.stop()


def asPylogbrokerError(reason: Failure) -> PylogbrokerError:
    """The error of a failure; one that is not ours is wrapped."""
    error = reason.value
    if isinstance(error, PylogbrokerError):
        return copyForReraise(error)
    return WireError(f"unexpected: {error!r}")


class KafkaBrokerClient:
    """
    The client of one broker, which outlives its connections.

    @ivar name: the broker's, for texts.
    """

    def __init__(
        self,
        clock: IReactorTime,
        client: BrokerClient,
        clientId: str,
        timeoutMs: float,
        login: SaslLogin | None = None,
    ) -> None:
        """
        @param client: makes the connections.
        @param timeoutMs: for each response.
        """
        self.name = client.name
        self._clock = clock
        self._client = client
        self._make = partial(
            NegotiatedConnection, clock, clientId=clientId, timeoutMs=timeoutMs, login=login
        )
        self._current: NegotiatedConnection | None = None
        self._isNegotiating = False
        self._waiters: Waiters[NegotiatedConnection] = Waiters()

    def __repr__(self) -> str:
        return f"<KafkaBrokerClient {self._client}>"

    @property
    def current(self) -> NegotiatedConnection | None:
        """The connection that L{connection} would give at once; else L{None}."""
        current = self._current
        return current if current is not None and current.raw.refusal is None else None

    def connection(self) -> Deferred[NegotiatedConnection]:
        """
        The present connection, or a new one.

        @return: fails with L{pylogbroker.errors.BrokerConnectionError} when the first attempt to
            connect fails; the next one waits for longer and longer. Fails as
            L{NegotiatedConnection.negotiate}. Cancelling stops the wait.
        """
        waiter = self._waiters.wait()
        if self.current is not None:
            self._waiters.fire(self.current)
        elif not self._isNegotiating:
            self._isNegotiating = True
            Deferred.fromCoroutine(self._connect()).addBoth(self._connected)
        return waiter

    async def _connect(self) -> NegotiatedConnection:
        raw = await self._client.connection(isOnce=True)
        made = self._make(raw)
        try:
            await made.negotiate()
        except Exception:
            raw.drop(asPylogbrokerError(Failure()))
            raise
        return made

    def _connected(self, result: NegotiatedConnection | Failure) -> None:
        self._isNegotiating = False
        if isinstance(result, NegotiatedConnection):
            self.stop()
            self._current = result
        self._waiters.fire(result)

    def stop(self) -> None:
        """Authenticate no more. The connections are closed by their own client."""
        if self._current is not None:
            self._current.stop()
