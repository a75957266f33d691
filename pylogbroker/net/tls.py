"""
TLS of a broker's listeners, and of the broker as a client of other brokers' listeners: a module of
its own, since it needs the extra C{tls}.

A client that closes during its handshake (an alert, I{close notify}) makes OpenSSL raise an error
without a text, on which Twisted fails: any client could fill the log with tracebacks
(U{https://github.com/twisted/twisted/issues/12181}). L{ServerConnectionCreator} turns that error
into an ordinary handshake error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    TLSVersion,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from zope.interface import implementer

from pylogbroker.config.listenersettings import NONE, REQUESTED, REQUIRED, TlsStores
from pylogbroker.errors import ConfigurationError

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\r?\n.+?\r?\n-----END CERTIFICATE-----", re.DOTALL)
_ERRORS = (SSL.Error, crypto.Error, ValueError, TypeError)


class _Connection(SSL.Connection):
    """The server's side of one connection."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except SSL.ZeroReturnError as error:
            raise SSL.Error(
                [("SSL routines", "", "closed before the end of the handshake")]
            ) from error


@implementer(IOpenSSLServerConnectionCreator)
class ServerConnectionCreator:
    """
    Makes the server's side of each connection.
    """

    def __init__(self, context: SSL.Context) -> None:
        self._context = context

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        return _Connection(self._context, None)


def serverConnections(options: Mapping[str, str]) -> ServerConnectionCreator:
    """
    TLS 1.2 and later, by the options of a C{tls:} endpoint string.

    @param options: C{privateKey}, C{certKey}, C{clientCAs}, see L{pylogbroker.net.listeners}.
    @raise ConfigurationError: a file cannot be read, or key and certificates do not match.
    """
    stores = TlsStores(
        location=options["privateKey"],
        authoritiesLocation=options.get("clientCAs", ""),
        clientAuth=REQUIRED if "clientCAs" in options else NONE,
    )
    return connectionsOf(stores, options.get("certKey", ""))


def connectionsOf(stores: TlsStores, chainLocation: str = "") -> ServerConnectionCreator:
    """
    TLS 1.2 and later, with a listener's key and certificates.

    @param chainLocation: the file of the certificates, if they are not with the key.
    @raise ConfigurationError: a file cannot be read, or key and certificates do not match.
    """
    try:
        trustRoot = _trustRoot(stores) if stores.clientAuth != NONE else None
        made = CertificateOptions(
            **_identity(stores, chainLocation),
            trustRoot=trustRoot,
            raiseMinimumTo=TLSVersion.TLSv1_2,
        )
        if stores.clientAuth == REQUESTED:
            made.requireCertificate = False
        # Made now: else the first client would find what does not fit together.
        return ServerConnectionCreator(made.getContext())
    except _ERRORS as error:
        raise ConfigurationError(f"TLS cannot be used: {error}") from error


def clientOptions(stores: TlsStores, host: str) -> Any:
    """
    TLS 1.2 and later of a broker that is the client of another one: it shows its listener's
    certificate, and checks that of the other one, with its name.

    @param stores: of the listener that brokers share. Without authorities, those of the machine
        are trusted.
    @param host: of the other broker.
    @return: what L{twisted.internet.endpoints.wrapClientTLS} takes.
    @raise ConfigurationError: a file cannot be read, or key and certificates do not match.
    """
    isTrusting = bool(stores.authoritiesLocation or stores.authorities)
    try:
        return optionsForClientTLS(
            host,
            trustRoot=_trustRoot(stores) if isTrusting else None,
            extraCertificateOptions={
                **_identity(stores),
                "raiseMinimumTo": TLSVersion.TLSv1_2,
            },
        )
    except _ERRORS as error:
        raise ConfigurationError(f"TLS cannot be used: {error}") from error


def _identity(stores: TlsStores, chainLocation: str = "") -> dict[str, Any]:
    """Key and certificates, as arguments of L{CertificateOptions}."""
    place = stores.location
    keyText = stores.key.encode() if stores.key else _read(place)
    if stores.chain:
        own = _certificates(stores.chain.encode(), "the chain")
    else:
        own = _certificates(_read(chainLocation or place), chainLocation or place)
    # Without a password OpenSSL would ask for one on the terminal.
    key = crypto.load_privatekey(crypto.FILETYPE_PEM, keyText, stores.keyPassword.encode())
    return {
        "privateKey": key,
        "certificate": own[0].original,
        "extraCertChain": [each.original for each in own[1:]],
    }


def _trustRoot(stores: TlsStores) -> Any:
    texts = stores.authorities.encode() or _read(stores.authoritiesLocation)
    found = _certificates(texts, stores.authoritiesLocation or "the authorities' texts")
    return trustRootFromCertificates(found)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _certificates(data: bytes, place: str) -> list[Any]:
    found = [Certificate.loadPEM(text) for text in _PEM.findall(data)]
    if not found:
        raise ConfigurationError(f"there is no certificate in {place}")
    return found
