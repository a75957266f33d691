"""
L{SaslProtocol}: the requests on a listener with SASL. A module of its own, since listeners without
SASL need none of this.

A connection begins with ApiVersions, if at all, once; then SaslHandshake names a mechanism; then
come tokens, in SaslAuthenticate requests or, after a handshake of version 0, with nothing but a
size. Nothing else is taken before the client has authenticated: no other request is decoded, no
frame may be larger than C{sasl.server.max.receive.size}, and one exchange is all that a connection
has. A client that fails gets its answer after C{connection.failed.authentication.delay.ms}, and is
disconnected; so a guess costs it a connection and that time.

Where C{connections.max.reauth.ms} limits an authentication, a client may begin with SaslHandshake
again on its connection, as the same user with the same mechanism. After the limit every other
request closes the connection.

  ============  ==========================  ================================================
  stage         takes                       and goes on to
  ============  ==========================  ================================================
  START         ApiVersions, SaslHandshake  HANDSHAKE; TOKENS, BARE
  HANDSHAKE     SaslHandshake               TOKENS, BARE
  TOKENS        SaslAuthenticate            TOKENS until the exchange is complete; OPEN
  BARE          tokens                      BARE until the exchange is complete; OPEN
  OPEN          every request               TOKENS, BARE by a second SaslHandshake
  FAILED        nothing                     the end
  ============  ==========================  ================================================
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from enum import Enum, auto
from random import Random
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.broker.connection import LastAnswer
from pylogbroker.broker.kafka.protocol import (
    ANONYMOUS,
    ConnectionState,
    Handler,
    KafkaProtocol,
    KafkaRequestDecoder,
    Request,
)
from pylogbroker.broker.kafka.security.mechanisms import (
    FindCredential,
    IExchange,
    SaslError,
    newExchange,
)
from pylogbroker.config.listenersettings import Listener
from pylogbroker.errors import PylogbrokerError, WireError
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeHeader, decodeRequest
from pylogbroker.protocol.kafka.responses import encodeResponse

AGAIN_SECONDS = 1
"""The shortest time between the beginnings of two further authentications of a connection."""

_BEFORE = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None)
_SIZE = struct.Struct(">i")
_EXPECTED = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_OTHER_SIZE_MAX = 4096
"""Bytes of other requests that are decoded, to be refused; a larger one costs 100 ms and more."""


class _Stage(Enum):
    START = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    BARE = auto()
    OPEN = auto()
    FAILED = auto()


class _Frame(NamedTuple):
    """A frame of a client that has not authenticated, and the decoder that gave it."""

    data: bytes
    decoder: SaslDecoder


class SaslDecoder(KafkaRequestDecoder):
    """
    Gives whole frames until the client has authenticated, then requests.

    @ivar isOpen: whether it has.
    """

    __slots__ = ("isOpen",)

    def __init__(self, sizeMax: int, keys: Container[ApiKey]) -> None:
        super().__init__(sizeMax, keys)
        self.isOpen = False

    def takeRequest(self) -> Request | None:
        if self.isOpen:
            return super().takeRequest()
        frame = self.take()
        return None if frame is None else (_BEFORE, _Frame(frame, self))


class SaslState(ConnectionState):
    """What the broker knows of a connection, and of its authentication."""

    __slots__ = (
        "againSeconds",
        "decoder",
        "endSeconds",
        "exchange",
        "isKnown",
        "mechanism",
        "stage",
    )

    def __init__(self, transport: Any, listener: Listener) -> None:
        super().__init__(transport, listener)
        self.principal = ANONYMOUS  # whatever certificate there is
        self.stage = _Stage.START
        self.mechanism = ""
        self.exchange: IExchange | None = None
        self.isKnown = False  # the principal has been found out before
        self.againSeconds: float | None = None  # when it last began again
        self.endSeconds: float | None = None
        self.decoder: SaslDecoder | None = None


class NotAuthenticatedError(PylogbrokerError):
    """The client did not authenticate, or not in time; its connection is closed."""


class SaslProtocol(KafkaProtocol):
    """Handles the requests of the connections of a listener with SASL."""

    def __init__(
        self,
        handlers: Mapping[ApiKey, Handler],
        requestSizeMax: int,
        counters: BrokerCounters,
        clock: Any,
        requestLog: Logger | None,
        listener: Listener,
        find: FindCredential,
        random: Random,
        log: RateLimitedLogger,
        receiveSizeMax: int,
        failedDelayMs: int,
    ) -> None:
        """
        @param find: finds what is kept of passwords for SCRAM.
        @param random: for nonces.
        @param receiveSizeMax: bytes of a frame before authentication.
        @param failedDelayMs: how long a failure is held back.
        """
        super().__init__(handlers, requestSizeMax, counters, clock.seconds, requestLog, listener)
        self._clock = clock
        self._find = find
        self._random = random
        self._log = log
        self._receiveSizeMax = min(receiveSizeMax, requestSizeMax)
        self._failedDelay = failedDelayMs / 1000

    def newDecoder(self) -> SaslDecoder:
        return SaslDecoder(self._receiveSizeMax, self._handlers)

    def newState(self, transport: Any) -> SaslState:
        return SaslState(transport, self._listener)

    def handle(self, request: Request, state: Any) -> Any:
        header, body = request
        if isinstance(body, _Frame):
            state.decoder = body.decoder
            return self._received(body.data, state)
        if header.apiKey is ApiKey.SASL_HANDSHAKE and self._mayBeginAgain(state):
            state.againSeconds = self._clock.seconds()
            state.decoder.isOpen, state.decoder.sizeMax = False, self._receiveSizeMax
            return self._handshake(header, body, state)
        if state.endSeconds is not None and self._clock.seconds() >= state.endSeconds:
            raise NotAuthenticatedError("its authentication has come to its end")
        return super().handle(request, state)

    def mustAuthenticate(self, state: Any) -> bool:
        return not state.isKnown

    def _mayBeginAgain(self, state: SaslState) -> bool:
        last = state.againSeconds
        return self._listener.maxReauthMs > 0 and (
            last is None or self._clock.seconds() - last >= AGAIN_SECONDS
        )

    # -- before the client has authenticated

    def _received(self, frame: bytes, state: SaslState) -> Any:
        if state.stage is _Stage.FAILED:
            return None
        try:
            if state.stage is _Stage.BARE:
                return self._bareToken(frame, state)
            key = decodeHeader(frame, self._handlers)[0].apiKey
            if key not in _EXPECTED and len(frame) > _OTHER_SIZE_MAX:
                return self._close(state, f"{key.apiName} before authentication")
            header, body = decodeRequest(frame, self._handlers)
        except WireError as error:
            return self._close(state, str(error))
        if state.stage is _Stage.TOKENS:
            if key is ApiKey.SASL_AUTHENTICATE:
                return self._token(header, body, state)
            return self._unexpected(header, body, state)
        if key is ApiKey.SASL_HANDSHAKE:
            return self._handshake(header, body, state)
        if key is ApiKey.API_VERSIONS and state.stage is _Stage.START:
            response = self._apiVersions(header, body, state)
            if not response.errorCode:
                state.stage = _Stage.HANDSHAKE
            return [encodeResponse(header, response)]
        return self._close(state, f"{key.apiName} before authentication")

    def _handshake(self, header: RequestHeader, body: Any, state: SaslState) -> Any:
        cls, enabled = messages.SaslHandshakeResponse, self._listener.mechanisms
        mechanism = body.mechanism
        if mechanism not in enabled:
            text = f"the mechanism {mechanism[:50]!r} is not enabled"
            if state.isKnown:
                return self._close(state, text)
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            response = cls(errorCode=code, mechanisms=list(enabled))
            return self._fail(header, response, state, text)
        if state.isKnown and mechanism != state.mechanism:
            state.exchange = None  # the next token ends the connection
        else:
            users = self._listener.plainUsers
            state.exchange = newExchange(mechanism, users, self._find, self._random)
        state.mechanism = mechanism
        state.stage = _Stage.TOKENS if header.apiVersion else _Stage.BARE
        return [encodeResponse(header, cls(mechanisms=list(enabled)))]

    def _bareToken(self, frame: bytes, state: SaslState) -> Any:
        try:
            answer = self._evaluate(frame, state)
        except SaslError as error:
            return self._close(state, str(error))
        return [_SIZE.pack(len(answer)) + answer]

    def _token(self, header: RequestHeader, body: Any, state: SaslState) -> Any:
        cls = messages.SaslAuthenticateResponse
        try:
            answer = self._evaluate(bytes(body.authBytes), state)
        except SaslError as error:
            text = error.text or (
                f"Authentication failed during {'re-' * state.isKnown}authentication due to invalid"
                f" credentials with SASL mechanism {state.mechanism}"
            )
            response = cls(errorCode=ErrorCode.SASL_AUTHENTICATION_FAILED, errorMessage=text)
            return self._fail(header, response, state, text)
        except WireError as error:
            return self._close(state, str(error))
        lifetimeMs = self._listener.maxReauthMs if state.stage is _Stage.OPEN else 0
        response = cls(errorMessage="", authBytes=answer, sessionLifetimeMs=lifetimeMs)
        return [encodeResponse(header, response)]

    def _evaluate(self, token: bytes, state: SaslState) -> bytes:
        """@raise WireError: the client must be disconnected without an answer."""
        exchange = state.exchange
        if exchange is None:
            raise WireError("another mechanism than in its first authentication")
        answer = exchange.evaluate(token)
        if exchange.user is not None:
            principal = f"User:{exchange.user}"
            if state.isKnown and principal != state.principal:
                raise SaslError(
                    "Cannot change principals during re-authentication from"
                    f" {state.principal.replace(':', '.', 1)}: {principal.replace(':', '.', 1)}"
                )
            self._open(principal, state)
        return answer

    def _open(self, principal: str, state: SaslState) -> None:
        state.principal = principal
        state.isKnown, state.stage, state.exchange = True, _Stage.OPEN, None
        lifetimeMs = self._listener.maxReauthMs
        if lifetimeMs:
            state.endSeconds = self._clock.seconds() + lifetimeMs / 1000
        assert state.decoder is not None
        state.decoder.isOpen, state.decoder.sizeMax = True, self._requestSizeMax

    # -- failures

    def _unexpected(self, header: RequestHeader, body: Any, state: SaslState) -> Any:
        text = f"{header.apiKey.apiName} during authentication"
        if header.apiKey is ApiKey.PRODUCE and not body.acks:
            return self._close(state, text)
        response = header.apiKey.responseClass()
        if "errorCode" in response._fields:
            response.errorCode = ErrorCode.ILLEGAL_SASL_STATE
        return self._fail(header, response, state, text)

    def _fail(
        self, header: RequestHeader, response: Any, state: SaslState, text: str
    ) -> Deferred[LastAnswer]:
        """Answer after a time, and close."""
        self._log.warn(
            "{peer} did not authenticate on listener {listener}: {reason}",
            peer=state.clientHost,
            listener=self._listener.name,
            reason=text,
        )
        state.stage = _Stage.FAILED
        answer = LastAnswer([encodeResponse(header, response)])
        return deferLater(self._clock, self._failedDelay, lambda: answer)

    def _close(self, state: SaslState, text: str) -> Deferred[Any]:
        """Close after a time, without an answer."""
        state.stage = _Stage.FAILED

        def fail() -> None:
            raise NotAuthenticatedError(text)

        return deferLater(self._clock, self._failedDelay, fail)


def _refuseHandshake(header: RequestHeader, body: Any, state: ConnectionState) -> Any:
    return messages.SaslHandshakeResponse(errorCode=ErrorCode.ILLEGAL_SASL_STATE)


def _refuseToken(header: RequestHeader, body: Any, state: ConnectionState) -> Any:
    return messages.SaslAuthenticateResponse(
        errorCode=ErrorCode.ILLEGAL_SASL_STATE,
        errorMessage="SaslAuthenticate request received after successful authentication",
    )


REFUSALS: dict[ApiKey, Handler] = {
    ApiKey.SASL_HANDSHAKE: _refuseHandshake,
    ApiKey.SASL_AUTHENTICATE: _refuseToken,
}
"""What clients get that need not authenticate, or have done so."""
