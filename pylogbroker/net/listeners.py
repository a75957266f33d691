"""
Where a broker listens, and who is at the other end of TLS.

Twisted's C{ssl:} endpoint strings cannot ask a client for its certificate. So there is one more kind::

    tls:9093:privateKey=key.pem:certKey=cert.pem:clientCAs=ca.pem:interface=10.0.0.5

C{certKey} may hold a chain, and by default is in C{privateKey}'s file. With C{clientCAs} a client must show a certificate that one of these authorities
has signed, and gets no further without: it has not sent a byte that we read by then. Without C{clientCAs} nobody is asked. TLS 1.2 and later only.
"""

from __future__ import annotations

import re
from typing import Any

from twisted.internet.endpoints import SSL4ServerEndpoint, serverFromString
from twisted.python.failure import Failure

from pylogbroker.errors import ConfigurationError

BACKLOG = 1024
_KEYS = frozenset(("interface", "privateKey", "certKey", "clientCAs", "backlog"))
_PIECES = re.compile(r"((?:[^:\\]|\\.)*)(?::|$)", re.DOTALL)
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\r?\n.+?\r?\n-----END CERTIFICATE-----", re.DOTALL)


def serverEndpoint(reactor: Any, description: str) -> Any:
    """
    @param description: C{tls:…} as above, or one of Twisted's server endpoint strings.
    @raise ConfigurationError: it is a C{tls:} string with something wrong in it.
    @raise Exception: what Twisted raises for others.
    """
    if not description.startswith("tls:"):
        return serverFromString(reactor, description)
    port, options = _parse(description)
    return SSL4ServerEndpoint(
        reactor,
        port,
        _connections(options),
        int(options.get("backlog", BACKLOG)),
        options.get("interface", ""),
    )


def _parse(description: str) -> tuple[int, dict[str, str]]:
    pieces = [re.sub(r"\\(.)", r"\1", piece) for piece in _split(description)][1:]
    options: dict[str, str] = {}
    for piece in pieces[1:]:
        key, equals, value = piece.partition("=")
        if not equals or key not in _KEYS:
            raise ConfigurationError(
                f"{piece!r} is none of {', '.join(f'{key}=' for key in sorted(_KEYS))}"
            )
        options[key] = value
    port = pieces[0] if pieces else ""
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ConfigurationError(f"{port!r} is no port; tls:PORT:privateKey=FILE is right")
    if not options.get("backlog", "1").isdigit():
        raise ConfigurationError(f"backlog={options['backlog']} is no number")
    if "privateKey" not in options:
        raise ConfigurationError("privateKey= is missing")
    return int(port), options


def _split(description: str) -> list[str]:
    """At colons that have no backslash before them."""
    pieces = _PIECES.findall(description)
    return pieces[:-1] if pieces and description and not description.endswith(":") else pieces


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _certificates(path: str) -> list[Any]:
    from twisted.internet.ssl import Certificate

    found = [Certificate.loadPEM(text) for text in _PEM.findall(_read(path))]
    if not found:
        raise ConfigurationError(f"there is no certificate in {path}")
    return found


def _connections(options: dict[str, str]) -> Any:
    try:
        from OpenSSL import SSL, crypto
        from twisted.internet.ssl import (
            CertificateOptions,
            KeyPair,
            TLSVersion,
            trustRootFromCertificates,
        )

        from pylogbroker.net.tlscompat import ServerConnections
    except ImportError as error:
        raise ConfigurationError(
            f"TLS needs the extra tls: pip install 'pylogbroker[tls]' ({error})"
        ) from error
    try:
        own = _certificates(options.get("certKey", options["privateKey"]))
        key = KeyPair.load(_read(options["privateKey"]), crypto.FILETYPE_PEM)
        trustRoot = (
            trustRootFromCertificates(_certificates(options["clientCAs"]))
            if "clientCAs" in options
            else None
        )
        made = CertificateOptions(
            privateKey=key.original,
            certificate=own[0].original,
            extraCertChain=[each.original for each in own[1:]],
            trustRoot=trustRoot,
            raiseMinimumTo=TLSVersion.TLSv1_2,
        )
        return ServerConnections(
            made.getContext()
        )  # made now, or what does not fit together would only be found by the first client
    except (SSL.Error, crypto.Error, ValueError) as error:
        raise ConfigurationError(f"TLS cannot be used: {error}") from error


def isTls(transport: Any) -> bool:
    """Whether a connection has TLS around it."""
    return hasattr(transport, "getPeerCertificate")


def clientName(transport: Any) -> str | None:
    """
    The common name of the certificate that a client has shown; L{None} for none, or for one without a common name, or with several.
    """
    get = getattr(transport, "getPeerCertificate", None)
    certificate = None if get is None else get()
    if certificate is None:
        return None
    from cryptography.x509.oid import NameOID

    names = certificate.to_cryptography().subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else None


def isTlsFailure(reason: Failure) -> bool:
    """Whether a connection has ended since TLS did not come about, or broke."""
    return type(reason.value).__module__ == "OpenSSL.SSL"


def tlsReason(reason: Failure) -> str:
    """Why, in OpenSSL's words."""
    error: Any = reason.value
    try:
        texts = [entry[-1] for entry in error.args[0]]
    except (IndexError, TypeError):
        texts = []
    return ", ".join(texts) or type(error).__name__
