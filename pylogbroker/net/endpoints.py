"""
Where a broker is, as people write it, for plain sockets: C{"host:port"}, or those of Twisted's client endpoint strings that mean something here,
C{"tcp:host:port"} and C{"tls:host:port:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem"}. So one property says it for all clients
(L{pylogbroker.client.brokerclient} has the rest).

What must be true of TLS: the broker's certificate is checked against authorities that are trusted, and against the host's name or address; TLS 1.2 at least.
There is no way to leave that out.
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
"""What Twisted's client endpoint strings begin with: in front of a port none of these is taken for a host."""

PLAIN = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]+)")
"""C{host:port}, an IPv6 address in brackets."""

_PART = re.compile(r"((?:[^\\:]|\\.)*):", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_TLS_PARTS = ("trustRoots", "certificate", "privateKey")


class Endpoint(NamedTuple):
    """
    Where a broker is: what the clients of this room are given first, C{SimpleConsumer(*endpoint("log1:9092"))}.

    @ivar tls: how to speak TLS there; L{None} for plain TCP.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None


def endpoint(description: str) -> Endpoint:
    """
    Read what people write. Reads the files that it names, too.

    @param description: C{host:port}; or C{tcp:} or C{tls:}, host and port, and for TLS any of C{trustRoots=}, a folder of C{.pem} files of authorities (by
        default those that the machine trusts), C{certificate=}, our own with the rest of its chain behind it, and C{privateKey=}, which may be the same file.
        As in Twisted's strings, a backslash takes away the meaning of the colon behind it.
    @raise ConfigurationError: it is something else, or a file is none; the text repeats it.
    """
    plain = PLAIN.fullmatch(description)
    if plain is not None and plain["host"] not in ("tcp", "tls"):
        return Endpoint(
            _host(description, plain["host"] or plain["v6"], bool(plain["v6"])),
            _port(description, plain["port"]),
        )
    kind, *parts = _split(description)
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
                f"endpoint {description!r}: {name}= is not known here; there are: {', '.join(known) or 'none'}"
            )
    tls = _context(description, named) if kind == "tls" else None
    return Endpoint(
        _host(description, given[0], ":" in given[0]), _port(description, given[1]), tls
    )


def _split(description: str) -> list[str]:
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
        raise ConfigurationError(
            f"endpoint {description!r}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
        ) from error
    return context


def _pemFiles(folder: str) -> list[str]:
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(".pem"))
    if not names:
        raise ValueError(f"there is no .pem file in {folder}")
    return [os.path.join(folder, name) for name in names]


def _noPassword() -> str:
    """Instead of asking for one at the terminal."""
    raise ValueError("the private key is encrypted; there is nobody to ask for its password")


def brokerEndpoint(template: str, address: str) -> str:
    """
    How to reach a broker that is known by its address.

    @param template: an endpoint string with C{{host}} and C{{port}} in it, or C{""} for the address itself, so written that a host by the name of C{unix} is
        one.
    @param address: C{host:port}; an IPv6 address in brackets. What is an endpoint string already stays as it is.
    """
    plain = PLAIN.fullmatch(address)
    if plain is None:
        return address
    if not template:
        return f"tcp:{address}" if plain["host"] in KINDS else address
    host, _, port = address.rpartition(":")
    quoted = host.strip("[]").replace("\\", "\\\\").replace(":", "\\:")
    return template.replace("{host}", quoted).replace("{port}", port)
