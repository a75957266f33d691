"""
A broker's clients of other brokers: connections in today's protocol, with the security of the
listener by which the brokers of a cluster reach one another.

A module of its own, on the floor that knows both: a broker and a client meet only in bytes, so the
broker is given what connects (L{pylogbroker.interfaces.ConnectBroker}).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint

from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.config.listenersettings import (
    INTER_BROKER_MECHANISM,
    LISTENER_NAME,
    Listener,
    interBrokerListener,
    readListeners,
)
from pylogbroker.errors import ConfigurationError
from pylogbroker.interfaces import ConnectBroker, IBrokerClient, IBrokerConnection
from pylogbroker.net.deferreds import asDeferred, gatherSettled
from pylogbroker.net.endpointstrings import brokerEndpoint

if TYPE_CHECKING:
    from pylogbroker.client.brokerclient import BrokerClient
    from pylogbroker.client.kafka.connection import KafkaBrokerClient
    from pylogbroker.protocol.kafka.saslclient import SaslLogin

MakeEndpoint = Callable[[str, int], "str | IStreamClientEndpoint"]
"""C{endpoint(host, port)} makes what L{BrokerClient} connects to."""

IN_FLIGHT_COUNT_MAX = 100
"""Requests to a broker, on one connection, without a response."""

WAITING_COUNT_MAX = 1_000
WAITING_SIZE_MAX = 16 << 20
"""Bytes of requests that wait until the connection takes them; a single one may be larger."""

READ_SIZE = 512 << 10
"""Bytes that are read at once of what a leader sends: each piece costs a turn of the reactor."""


class _Client:
    """The client of one address; an L{IBrokerClient}."""

    def __init__(self, raw: BrokerClient, client: KafkaBrokerClient) -> None:
        self._raw = raw
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client)

    def connection(self) -> Deferred[IBrokerConnection]:
        """See L{IBrokerClient}."""
        return self._client.connection()  # type: ignore[return-value]

    @asDeferred
    async def close(self) -> None:
        """See L{IBrokerClient}."""
        self._client.stop()
        self._raw.abort()
        await gatherSettled([self._raw.close()])


def interBrokerClients(
    reactor: Any,
    settings: BrokerSettings,
    endpoint: MakeEndpoint | None = None,
    random: Callable[[], float] | None = None,
) -> ConnectBroker:
    """
    The factory of a broker's clients of other brokers.

    @param endpoint: makes the endpoint of a host and a port; by default TCP, or TLS if the listener
        has it.
    @param random: numbers from 0 up to, not including, 1, for waits between attempts.
    @return: raises L{ConfigurationError} when it is called, if the listener's key, certificates or
        password cannot be used.
    """
    listener = interBrokerListener(settings, readListeners(settings))

    def connect(host: str, port: int) -> IBrokerClient:
        if listener is None:
            raise ConfigurationError("no listener speaks Kafka's current protocol to brokers")
        # Only a broker of a cluster needs these: a start costs less without them.
        from pylogbroker.client.brokerclient import BrokerClient
        from pylogbroker.client.connection import ConnectionLimits
        from pylogbroker.client.kafka.connection import KafkaBrokerClient
        from pylogbroker.config.kafka.clientsettings import RESPONSE_SIZE_MAX

        make = partial(_endpoint, reactor, listener) if endpoint is None else endpoint
        timeoutMs = settings.requestTimeoutMs
        raw = BrokerClient(
            reactor,
            make(host, port),
            limits=ConnectionLimits(
                responseSizeMax=RESPONSE_SIZE_MAX,
                inFlightCountMax=IN_FLIGHT_COUNT_MAX,
                waitingCountMax=WAITING_COUNT_MAX,
                waitingSizeMax=WAITING_SIZE_MAX,
                stallMs=timeoutMs,
                readSize=READ_SIZE,
            ),
            name=f"{host}:{port}",
            random=random,
        )
        login = _login(settings, listener) if listener.isSasl else None
        client = KafkaBrokerClient(reactor, raw, f"broker-{settings.brokerId}", timeoutMs, login)
        return _Client(raw, client)

    return connect


def _endpoint(
    reactor: Any, listener: Listener, host: str, port: int
) -> str | IStreamClientEndpoint:
    if not listener.isTls:
        return brokerEndpoint("", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    if listener.stores is None:
        raise ConfigurationError(
            f"{listener}: an endpoint string cannot secure connections between brokers; give the"
            " listener a name, and its key and certificates by ssl.keystore.location"
        )
    from pylogbroker.net.tls import clientOptions

    return wrapClientTLS(
        clientOptions(listener.stores, host), HostnameEndpoint(reactor, host, port)
    )


def _login(settings: BrokerSettings, listener: Listener) -> SaslLogin:
    from pylogbroker.protocol.kafka.saslclient import SaslLogin

    mechanism = settings.saslMechanismInterBrokerProtocol
    found = listener.logins.get(mechanism)
    if found is None:
        key = f"{LISTENER_NAME.key}{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        raise ConfigurationError(
            f"{INTER_BROKER_MECHANISM.key}={mechanism} needs a username and a password in {key},"
            f" and {mechanism} among sasl.enabled.mechanisms of the listener"
        )
    return SaslLogin(mechanism, *found)
