"""
A ZooKeeper server that a test scripts: it grants the session that it is told to grant, and refuses
credentials if it is told to.
"""

from __future__ import annotations

import struct
from typing import Any

from twisted.internet.protocol import Protocol, ServerFactory
from twisted.protocols.basic import Int32StringReceiver

_PING, _AUTH, _CLOSE = -2, -4, -11
_AUTH_FAILED = -115


class _Session(Int32StringReceiver):
    """One connection."""

    factory: Any
    transport: Any
    _isGranted = False

    def connectionMade(self) -> None:
        self.factory.sessions.append(self)

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.sessions.remove(self)

    def stringReceived(self, string: bytes) -> None:
        if not self._isGranted:
            self._isGranted = True
            factory = self.factory
            head = struct.pack(">iiqi", 0, factory.sessionTimeoutMs, factory.sessionId, 16)
            self.sendString(head + bytes(16))
            return
        xid, kind = struct.unpack_from(">ii", string)
        isRefused = xid == _AUTH and self.factory.refusesCredentials
        self.sendString(
            struct.pack(">iqi", xid, 1, _AUTH_FAILED if isRefused else 0)
            + (b"" if xid < 0 or kind == _CLOSE else struct.pack(">qqqqiiiqiiq", *11 * (0,)))
        )
        if kind == _CLOSE or isRefused:
            self.transport.loseConnection()


class ScriptedZookeeper(ServerFactory):
    """
    The server. Every request that is not about the session is answered with the stat of a node.

    @ivar sessionId: granted to each connection.
    @ivar refusesCredentials: whether it answers credentials with C{AUTH_FAILED}.
    """

    noisy = False
    protocol: Any = _Session

    def __init__(self, sessionTimeoutMs: int = 2_000) -> None:
        self.sessionId = 5
        self.sessionTimeoutMs = sessionTimeoutMs
        self.refusesCredentials = False
        self.sessions: list[Protocol] = []

    def drop(self) -> None:
        """End all connections."""
        for session in list(self.sessions):
            session.transport.abortConnection()  # type: ignore[union-attr]
