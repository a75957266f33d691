"""
Records what the clients of the contract and a broker say to each other: a proxy for each listener,
which passes on whole requests and answers. TLS ends at the proxy, and it speaks TLS to the broker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int32StringReceiver

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.produce import decodeProduceRequest
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeHeader, skipTags
from tests.contracts.conversations import Conversation, Exchange, condensed
from tests.contracts.kafkaclients import CLIENT_IDS, LISTENERS, SASL_TLS, TLS

FRAME_SIZE_MAX = 64 << 20
_ALL_KEYS = frozenset(ApiKey)
_CORRELATION_ID_SIZE = 4


def serverString(listener: str, keystore: str) -> str:
    """The endpoint of a listener on a free port of loopback."""
    if listener not in (TLS, SASL_TLS):
        return "tcp:0:interface=127.0.0.1"
    return f"ssl:0:interface=127.0.0.1:privateKey={keystore}:certKey={keystore}"


class _Asked(NamedTuple):
    """A request without an answer yet, and its place in the record."""

    header: RequestHeader
    number: int


class Recorder:
    """
    Stands between clients and a broker.

    @ivar ports: of the proxies, by listener.
    """

    def __init__(self, reactor: Any, keystore: str, trustFolder: str) -> None:
        """
        @param keystore: a PEM file with key and certificate of the proxies.
        @param trustFolder: the certificate of the authority of the broker's.
        """
        self.reactor = reactor
        self.ports: dict[str, int] = {}
        self._keystore = keystore
        self._trustFolder = trustFolder
        self._brokerPorts: Mapping[str, int] = {}
        self._listening: list[Any] = []
        self._exchanges: list[Exchange] = []
        self._startMs = 0

    async def listen(self) -> None:
        """Take the ports."""
        for listener in LISTENERS:
            endpoint = serverFromString(self.reactor, serverString(listener, self._keystore))
            factory = Factory.forProtocol(_ClientSide)
            factory.recorder, factory.listener = self, listener  # type: ignore[attr-defined]
            port = await endpoint.listen(factory)
            self._listening.append(port)
            self.ports[listener] = port.getHost().port

    def connect(self, brokerPorts: Mapping[str, int]) -> None:
        """
        @param brokerPorts: where the broker listens, by listener.
        """
        self._brokerPorts = brokerPorts

    def upstream(self, listener: str) -> Any:
        """An endpoint of the broker."""
        port = self._brokerPorts[listener]
        if listener in (TLS, SASL_TLS):
            text = f"tls:127.0.0.1:{port}:trustRoots={self._trustFolder}"
        else:
            text = f"tcp:127.0.0.1:{port}"
        return clientFromString(self.reactor, text)

    def begin(self) -> None:
        """Record from now on."""
        self._exchanges = []
        self._startMs = time.time_ns() // 1_000_000

    def end(self) -> tuple[Conversation, int]:
        """
        The record without what depends on time alone, and how many requests there were.
        """
        exchanges, self._exchanges = self._exchanges, []
        found = Conversation(self._startMs, dict(self.ports), condensed(exchanges, CLIENT_IDS))
        return found, len(exchanges)

    async def stop(self) -> None:
        """Free the ports."""
        for port in self._listening:
            await port.stopListening()

    def asked(self, frame: bytes) -> _Asked | None:
        """
        Write down a request.

        @return: L{None}: it has no answer.
        """
        header, position = decodeHeader(frame, _ALL_KEYS)
        key, version = header.apiKey, header.apiVersion
        body = frame[position:]
        self._exchanges.append(Exchange(header.clientId or "", key, version, body, None, 0))
        if key is ApiKey.PRODUCE and not decodeProduceRequest(frame, version, position).acks:
            return None
        return _Asked(header, len(self._exchanges) - 1)

    def answered(self, asked: _Asked, frame: bytes) -> None:
        """Write down an answer."""
        key, version = asked.header.apiKey, asked.header.apiVersion
        position = _CORRELATION_ID_SIZE
        if version >= key.flexibleVersion and key is not ApiKey.API_VERSIONS:
            position = skipTags(frame, position)
        if asked.number < len(self._exchanges):  # else it is of an earlier record
            self._exchanges[asked.number] = self._exchanges[asked.number]._replace(
                answer=frame[position:], after=len(self._exchanges)
            )


class _ClientSide(Int32StringReceiver):
    """A client's connection."""

    transport: Any

    MAX_LENGTH = FRAME_SIZE_MAX

    def connectionMade(self) -> None:
        self._waiting: list[bytes] = []
        self._asked: deque[_Asked] = deque()
        self._broker: _BrokerSide | None = None
        self._isLost = False
        self._recorder: Recorder = self.factory.recorder
        endpoint = self._recorder.upstream(self.factory.listener)
        connecting = connectProtocol(endpoint, _BrokerSide(self))
        connecting.addCallbacks(self._connected, self._refused)

    def _connected(self, broker: _BrokerSide) -> None:
        self._broker = broker
        if self._isLost:
            broker.transport.abortConnection()
        for frame in self._waiting:
            broker.sendString(frame)
        self._waiting.clear()

    def _refused(self, reason: Any) -> None:
        reason.trap(ConnectError)
        self.transport.loseConnection()

    def stringReceived(self, string: bytes) -> None:
        asked = self._recorder.asked(string)
        if asked is not None:
            self._asked.append(asked)
        if self._broker is None:
            self._waiting.append(string)
        else:
            self._broker.sendString(string)

    def answered(self, frame: bytes) -> None:
        self._recorder.answered(self._asked.popleft(), frame)
        self.sendString(frame)

    def connectionLost(self, reason: Any = None) -> None:
        self._isLost = True
        if self._broker is not None and not self._broker.isLost:
            self._broker.transport.abortConnection()


class _BrokerSide(Int32StringReceiver):
    """The connection to the broker for one of a client's."""

    transport: Any

    MAX_LENGTH = FRAME_SIZE_MAX

    def __init__(self, client: _ClientSide) -> None:
        self._client = client
        self.isLost = False

    def stringReceived(self, string: bytes) -> None:
        self._client.answered(string)

    def connectionLost(self, reason: Any = None) -> None:
        self.isLost = True
        self._client.transport.loseConnection()
