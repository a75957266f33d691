"""
Where a broker is, as people write it: C{"host:port"}, or one of Twisted's endpoint strings.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    clientFromString,
)
from twisted.internet.interfaces import IStreamClientEndpoint

from pylogbroker.errors import ConfigurationError
from pylogbroker.net.endpoints import KINDS, PLAIN, PORT_MAX


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
