"""
One broker that speaks Kafka's current protocol, one request at a time; a module of its own, since
a cluster has several.

What must be true: a request leaves in a version that both sides have. So the first request on every
new connection is ApiVersions; a broker may have been replaced by another version meanwhile. A
client that has a password authenticates next.

Not thread-safe: the owner has a lock.
"""

from __future__ import annotations

import ssl
from typing import Any, Unpack

from pylogbroker import __version__
from pylogbroker.errors import UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, checkCode
from pylogbroker.protocol.kafka.requests import RequestHeader, encodeRequest
from pylogbroker.protocol.kafka.responses import decodeResponse
from pylogbroker.protocol.kafka.saslclient import SaslLogin, saslTokens
from pylogbroker.syncclient.connection import TIMEOUT_MS, BrokerSocket, SocketOptions

CLIENT_ID = "pylogbroker"
RESPONSE_SIZE_MAX = 128 << 20
"""Bytes of a response: a fetch of 50 MB, and the batch behind it that had to be whole."""

_CORRELATION_ID_MAX = 0x7FFFFFFF


class KafkaConnection:
    """
    A connection to one broker, made when it is first needed.

    @ivar name: C{host:port}, for texts.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        clientId: str = CLIENT_ID,
        timeoutMs: float = TIMEOUT_MS,
        login: SaslLogin | None = None,
        **options: Unpack[SocketOptions],
    ) -> None:
        """
        @param timeoutMs: for each response, beyond the time that the request itself may wait.
        @param login: for a listener with SASL.
        @param options: of the L{BrokerSocket}.
        """
        options.setdefault("responseSizeMax", RESPONSE_SIZE_MAX)
        options.setdefault("connectTimeoutMs", timeoutMs)
        self._socket = BrokerSocket(host, port, tls, **options)
        self._clientId = clientId
        self._timeoutMs = timeoutMs
        self._login = login
        self._correlationId = 0
        self._serial = 0  # of the socket whose versions are known
        self._versions: dict[int, tuple[int, int]] = {}
        self.name = self._socket.name

    def request(self, key: ApiKey, body: Any, waitMs: float = 0, versionMax: int = 1 << 15) -> Any:
        """
        Send a request, and wait for its response.

        @param body: an object of C{messages}.
        @param waitMs: how long the broker may wait for other clients, or for records.
        @param versionMax: the last version that has what the caller needs.
        @return: the response, an object of C{messages}; its error codes are the caller's.
        @raise UnsupportedVersionError: broker and client have no version of it in common.
        @raise BrokerConnectionError: the connection was lost; the broker may have the request or
            not. L{TimedOutError<pylogbroker.errors.TimedOutError>}: it took too long.
        @raise WireError: what came is no response.
        """
        self._negotiate()
        version = self._version(key, versionMax)
        return self._exchange(
            RequestHeader(key, version, self._nextId(), self._clientId), body, waitMs
        )

    def supports(self, key: ApiKey, version: int = 0) -> bool:
        """Whether the broker has a request, in a version or a later one. Raises as L{request}."""
        self._negotiate()
        return self._versions.get(key, (0, -1))[1] >= version

    def versions(self) -> dict[int, tuple[int, int]]:
        """
        The first and the last version of each request that the broker serves, by its number. Raises
        as L{request}.
        """
        self._negotiate()
        return dict(self._versions)

    def close(self) -> None:
        """Close at once."""
        self._socket.drop()

    def _nextId(self) -> int:
        self._correlationId = self._correlationId % _CORRELATION_ID_MAX + 1
        return self._correlationId

    def _exchange(self, header: RequestHeader, body: Any, waitMs: float = 0) -> Any:
        frame = encodeRequest(header, body)
        self._socket.write(frame, self._timeoutMs)
        answer = self._socket.read(self._timeoutMs + waitMs)
        try:
            return decodeResponse(header, answer)
        except WireError:
            self._socket.drop()
            raise

    def _negotiate(self) -> None:
        self._socket.connect()
        if self._serial == self._socket.serial:
            return
        body = messages.ApiVersionsRequest(
            clientSoftwareName="pylogbroker", clientSoftwareVersion=__version__
        )
        version = ApiKey.API_VERSIONS.lastVersion
        while True:
            header = RequestHeader(ApiKey.API_VERSIONS, version, self._nextId(), self._clientId)
            found = self._exchange(header, body)
            if found.errorCode != ErrorCode.UNSUPPORTED_VERSION or not version:
                break
            served = [each.maxVersion for each in found.apiKeys if each.apiKey == header.apiKey]
            version = min([*served, version - 1]) if served else 0
        checkCode(found.errorCode, self.name)
        self._versions = {each.apiKey: (each.minVersion, each.maxVersion) for each in found.apiKeys}
        if self._login is not None:
            try:
                self._authenticate(self._login)
            except BaseException:
                self._socket.drop()
                raise
        self._serial = self._socket.serial

    def _authenticate(self, login: SaslLogin) -> None:
        def ask(key: ApiKey, body: Any) -> Any:
            version = self._version(key, key.lastVersion)
            found = self._exchange(
                RequestHeader(key, version, self._nextId(), self._clientId), body
            )
            checkCode(found.errorCode, self.name, getattr(found, "errorMessage", None))
            return found

        ask(ApiKey.SASL_HANDSHAKE, messages.SaslHandshakeRequest(mechanism=login.mechanism))
        tokens = saslTokens(login)
        token = next(tokens)
        try:
            while True:
                body = messages.SaslAuthenticateRequest(authBytes=token)
                token = tokens.send(bytes(ask(ApiKey.SASL_AUTHENTICATE, body).authBytes))
        except StopIteration:
            pass

    def _version(self, key: ApiKey, versionMax: int) -> int:
        first, last = self._versions.get(key, (0, -1))
        version = min(last, key.lastVersion, versionMax)
        if version < max(first, key.firstVersion):
            has = f"{first} to {last}" if last >= 0 else "none"
            raise UnsupportedVersionError(
                f"{key.apiName}: {self.name} has {has}, and {key.firstVersion} to"
                f" {min(key.lastVersion, versionMax)} are known here"
            )
        return version
