"""
Endpoint strings of brokers, parsed for plain sockets: C{"host:port"}, and two kinds of Twisted's
client endpoint strings, C{"tcp:host:port"} and
C{"tls:host:port:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem"}.
L{pylogbroker.client.brokerclient.clientEndpoint} reads the other kinds.

What must be true of TLS: the broker's certificate is verified against trusted authorities and the
host's name or address; TLS 1.2 at least. This cannot be switched off.
"""

from __future__ import annotations

import os
import re
import ssl
from ipaddress import IPv6Address
from typing import NamedTuple

from pylogbroker.errors import ConfigurationError

PORT_MAX = 65_535

KINDS = frozenset(("tcp", "tcp4", "tcp6", "ssl", "tls", "unix", "systemd"))
"""Kinds of Twisted's client endpoint strings: none of them is a host in C{host:port}."""

PLAIN = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]+)")
"""C{host:port}, an IPv6 address in brackets."""

_PART = re.compile(r"((?:[^\\:]|\\.)*):", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_TLS_PARTS = ("trustRoots", "certificate", "privateKey")


class SocketAddress(NamedTuple):
    """
    A broker's address for plain sockets: the first arguments of clients,
    C{SimpleConsumer(*endpoint("log1:9092"))}.

    @ivar tls: L{None} for plain TCP.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None


def endpoint(description: str) -> SocketAddress:
    """
    Parse an endpoint, and read the files that it names.

    @param description: C{host:port}; or C{tcp:} or C{tls:}, host and port. For TLS any of
        C{trustRoots=}, a folder with C{.pem} files of authorities (by default the machine's),
        C{certificate=}, the client's with its chain, and C{privateKey=}, perhaps the same file. A
        backslash escapes a colon.
    @raise ConfigurationError: it is something else, or a file is invalid; the text repeats it.
    """
    plain = PLAIN.fullmatch(description)
    if plain is not None and plain["host"] not in ("tcp", "tls"):
        return SocketAddress(
            _host(description, plain["host"] or plain["v6"], bool(plain["v6"])),
            _port(description, plain["port"]),
        )
    kind, *parts = splitEndpoint(description)
    named = dict(part.split("=", 1) for part in parts if "=" in part)
    given = [part for part in parts if "=" not in part]
    known = _TLS_PARTS if kind == "tls" else ()
    if kind not in ("tcp", "tls") or len(given) != 2 or not given[0]:
        raise ConfigurationError(
            f"endpoint {description!r} is neither host:port nor tcp:host:port nor tls:host:port"
        )
    for name in named:
        if name not in known:
            raise ConfigurationError(
                f"endpoint {description!r}: {name}= is not known here; "
                f"there are: {', '.join(known) or 'none'}"
            )
    tls = _context(description, named) if kind == "tls" else None
    return SocketAddress(
        _host(description, given[0], ":" in given[0]), _port(description, given[1]), tls
    )


def splitEndpoint(description: str) -> list[str]:
    """The parts of an endpoint string between its colons, without backslashes."""
    return [_ESCAPE.sub(r"\1", part) for part in _PART.findall(f"{description}:")]


def _host(description: str, text: str, isV6: bool) -> str:
    try:
        isHost = bool(IPv6Address(text)) if isV6 else not {"[", "]"}.intersection(text)
    except ValueError:
        isHost = False
    if not isHost:
        raise ConfigurationError(f"endpoint {description!r}: {text!r} is not a host")
    return text


def _port(description: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:6]) <= PORT_MAX:
        raise ConfigurationError(
            f"endpoint {description!r}: {text!r} is not a port from 1 to {PORT_MAX}"
        )
    return int(text)


def _context(description: str, named: dict[str, str]) -> ssl.SSLContext:
    context = (
        ssl.create_default_context()
        if "trustRoots" not in named
        else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if "trustRoots" in named:
            for path in _pemFiles(named["trustRoots"]):
                context.load_verify_locations(path)
        if "certificate" in named or "privateKey" in named:
            certificate = named.get("certificate") or named["privateKey"]
            context.load_cert_chain(
                certificate, named.get("privateKey") or certificate, password=_noPassword
            )
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"endpoint {description!r}: {reason}") from error
    return context


def _pemFiles(folder: str) -> list[str]:
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(".pem"))
    if not names:
        raise ValueError(f"there is no .pem file in {folder}")
    return [os.path.join(folder, name) for name in names]


def _noPassword() -> str:
    raise ValueError("the private key is encrypted; there is nobody to ask for its password")


def brokerEndpoint(template: str, address: str) -> str:
    """
    The endpoint string of a broker's address.

    @param template: an endpoint string with C{{host}} and C{{port}}; C{""} for the address itself,
        written so that a host named C{unix} is a host.
    @param address: C{host:port}, an IPv6 address in brackets. An endpoint string is returned
        unchanged.
    """
    plain = PLAIN.fullmatch(address)
    if plain is None:
        return address
    if not template:
        return f"tcp:{address}" if plain["host"] in KINDS else address
    host, _, port = address.rpartition(":")
    quoted = host.strip("[]").replace("\\", "\\\\").replace(":", "\\:")
    return template.replace("{host}", quoted).replace("{port}", port)
