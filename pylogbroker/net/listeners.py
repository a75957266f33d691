"""
Listening endpoints of servers, and the peers of their connections.

Twisted's C{ssl:} endpoint strings cannot require a client's certificate, so there is another kind::

    tls:9093:privateKey=key.pem:certKey=cert.pem:clientCAs=ca.pem:interface=10.0.0.5

C{certKey} may hold a chain; by default it is in C{privateKey}'s file. With C{clientCAs} a client
must show a certificate signed by one of these authorities; no byte of other clients is read. TLS
1.2 and later only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    SSL4ServerEndpoint,
    TCP4ServerEndpoint,
    TCP6ServerEndpoint,
    serverFromString,
)
from twisted.internet.error import CannotListenError
from twisted.python.failure import Failure

from pylogbroker.config.listenersettings import Listener
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.endpointstrings import PORT_MAX, splitEndpoint

BACKLOG = 1024
LOOPBACK = "127.0.0.1"
_LOOPBACKS = {"tcp": LOOPBACK, "ssl": LOOPBACK, "tls": LOOPBACK, "tcp6": r"\:\:1"}
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes to which RFC 2253 gives names."""
_KEYS = frozenset(("interface", "privateKey", "certKey", "clientCAs", "backlog"))


def serverEndpoint(reactor: Any, description: str) -> Any:
    """
    The endpoint that a string describes.

    @param description: C{tls:…} as above, or one of Twisted's server endpoint strings.
    @raise ConfigurationError: a mistake in a C{tls:} string.
    @raise Exception: what Twisted raises for others.
    """
    if not description.startswith("tls:"):
        return serverFromString(reactor, description)
    port, options = _parse(description)
    return _tlsEndpoint(
        reactor,
        port,
        options.get("interface", ""),
        lambda tls: tls.serverConnections(options),
        int(options.get("backlog", BACKLOG)),
    )


def listenerEndpoint(reactor: Any, listener: Listener) -> Any:
    """
    The endpoint of a broker's listener.

    @raise ConfigurationError: key or certificates cannot be used.
    @raise Exception: what Twisted raises for endpoint strings.
    """
    if listener.endpoint:
        return serverEndpoint(reactor, listener.endpoint)
    port, interface, stores = listener.port, listener.interface, listener.stores
    if stores is None:
        kind = TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint
        return kind(reactor, port, BACKLOG, interface)
    return _tlsEndpoint(reactor, port, interface, lambda tls: tls.connectionsOf(stores))


def _tlsEndpoint(
    reactor: Any,
    port: int,
    interface: str,
    connections: Callable[[Any], Any],
    backlog: int = BACKLOG,
) -> Any:
    try:
        from pylogbroker.net import tls
    except ImportError as error:
        raise ConfigurationError(
            f"TLS needs the extra tls: pip install '.[tls]' in the sources ({error})"
        ) from error
    return SSL4ServerEndpoint(reactor, port, connections(tls), backlog, interface)


def _parse(description: str) -> tuple[int, dict[str, str]]:
    _kind, port, *pieces = splitEndpoint(description)
    options: dict[str, str] = {}
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if not equals or key not in _KEYS:
            raise ConfigurationError(
                f"{piece!r} is none of {', '.join(f'{key}=' for key in sorted(_KEYS))}"
            )
        options[key] = value
    if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise ConfigurationError(f"{port!r} is no port; tls:PORT:privateKey=FILE is right")
    if not options.get("backlog", "1").isdigit():
        raise ConfigurationError(f"backlog={options['backlog']} is no number")
    if "privateKey" not in options:
        raise ConfigurationError("privateKey= is missing")
    return int(port), options


def listenerDescription(text: str) -> str:
    """
    The endpoint string of an HTTP server, by default on the loopback interface.

    @param text: an endpoint string, or only a port.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,5}", text):
        text = f"tcp:{text}"
    loopback = _LOOPBACKS.get(text.partition(":")[0])
    return (
        text
        if loopback is None or re.search(r"(?<!\\):interface=", text)
        else f"{text}:interface={loopback}"
    )


def listenNow(listen: Callable[[], Deferred[Any]], setting: str) -> Any:
    """
    Take a port before the reactor runs, so that a taken port fails the start.

    @param listen: an endpoint's C{listen} with its factory.
    @param setting: key and value that name the endpoint, for errors.
    @raise ConfigurationError: the port cannot be had, or not before the reactor runs.
    """
    outcomes: list[Any] = []
    try:
        listen().addBoth(outcomes.append)
    except Exception as error:
        raise ConfigurationError(f"{setting}: {listenError(error)}") from error
    [outcome] = outcomes or [None]
    if isinstance(outcome, Failure):
        raise ConfigurationError(f"{setting}: {listenError(outcome.value)}") from outcome.value
    if outcome is None:
        raise ConfigurationError(f"{setting}: it needs a running reactor")
    return outcome


def listenError(error: BaseException | None) -> str:
    """Why a port cannot be had, without the address, which the caller names."""
    cause = error.socketError if isinstance(error, CannotListenError) else error
    return getattr(cause, "strerror", None) or str(cause)


def formatAddress(address: Any) -> str:
    """A Twisted address for people: C{127.0.0.1:9092}, C{[::1]:9092}, or a path."""
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if host is not None:
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = getattr(address, "name", None)
    return str(address) if name is None else f"unix:{name.decode(errors='replace')}"


# -- the peer of a connection ----------------------------------------------------------------------


def isTls(transport: Any) -> bool:
    """Whether a connection has TLS around it."""
    return hasattr(transport, "getPeerCertificate")


def clientName(transport: Any) -> str | None:
    """The common name in a client's certificate; L{None} without exactly one."""
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    if certificate is None:
        return None
    from cryptography.x509.oid import NameOID

    names = certificate.to_cryptography().subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else None


def distinguishedName(transport: Any) -> str | None:
    """
    The subject of a client's certificate as Java writes it by RFC 2253, the last part first;
    L{None} without a certificate.
    """
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    if certificate is None:
        return None
    parts = reversed(certificate.to_cryptography().subject.rdns)
    return ",".join("+".join(_attribute(each) for each in part) for part in parts)


def _attribute(attribute: Any) -> str:
    oid = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(oid)
    value = attribute.value
    if keyword is None:
        data = value if isinstance(value, bytes) else value.encode()
        head = bytes((attribute._type.value, *_derLength(len(data))))
        return f"{oid}=#{(head + data).hex()}"
    return f"{keyword}={_escaped(str(value))}"


def _derLength(size: int) -> bytes:
    if size < 0x80:
        return bytes((size,))
    data = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(data), *data))


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    if value != " " and text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return text


def isTlsFailure(reason: Failure) -> bool:
    """Whether a connection ended by a failed handshake or broken TLS."""
    return type(reason.value).__module__ == "OpenSSL.SSL"


def tlsReason(reason: Failure) -> str:
    """The reason in OpenSSL's words."""
    error: Any = reason.value
    try:
        texts = [entry[-1] for entry in error.args[0]]
    except (IndexError, TypeError):
        texts = []
    return ", ".join(texts) or type(error).__name__
