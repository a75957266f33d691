"""
What Twisted leaves open in TLS handshakes. It needs the extra C{tls}, and is imported where that is there.

A client that says in the middle of its handshake that it closes (an alert, I{close notify}) makes OpenSSL raise an error without a word in it, and Twisted
stumbles over the missing word: a traceback in the log for each, which any stranger can cause (U{https://github.com/twisted/twisted/issues/12181}).
Here it is an error like the others of a handshake.
"""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from zope.interface import implementer


class _Connection(SSL.Connection):
    """One side of TLS."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except SSL.ZeroReturnError as error:
            raise SSL.Error(
                [("SSL routines", "", "closed before the end of the handshake")]
            ) from error


@implementer(IOpenSSLServerConnectionCreator)
class ServerConnections:
    """
    Makes the server's side of each connection.
    """

    def __init__(self, context: SSL.Context) -> None:
        """@param context: certificates, and what is asked of clients."""
        self._context = context

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        """Called by Twisted for each connection."""
        return _Connection(self._context, None)
