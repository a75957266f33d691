"""
A connection between two processes of a topology: frames in, frames out. A module of its own, since
instances, stream managers, the master and metrics managers speak over it.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from pylogbroker.errors import WireError
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.topologies.messages import (
    BATCH,
    FRAME_SIZE_MAX,
    Control,
    decodeControl,
    encodeControl,
)


class IFrameHandler(Protocol):
    """What a connection tells. A L{WireError} that a method raises closes the connection."""

    def connected(self, connection: TopologyConnection) -> None:
        """It can be written to."""

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """A control message."""

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """A batch; C{body} is a frame's, and its first byte is L{BATCH}."""

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """It is gone; called once, and nothing of it is called behind it."""


class TopologyConnection(TwistedProtocol):
    """
    One end of a connection.

    @ivar isOver: whether nothing is read from it, or written to it, any more.
    """

    transport: Any

    def __init__(self, handler: IFrameHandler) -> None:
        self._handler = handler
        self._decoder = FrameDecoder(FRAME_SIZE_MAX)
        self.isOver = False

    def connectionMade(self) -> None:
        """See C{IProtocol}."""
        noDelay = getattr(self.transport, "setTcpNoDelay", None)
        if noDelay is not None:  # not on a unix socket
            noDelay(True)
        self._handler.connected(self)

    def dataReceived(self, data: bytes) -> None:
        """See C{IProtocol}."""
        if self.isOver:
            return
        decoder, handler = self._decoder, self._handler
        decoder.feed(data)
        try:
            while not self.isOver:
                body = decoder.take()
                if body is None:
                    break
                if body[0] == BATCH:
                    handler.batchReceived(self, body)
                else:
                    handler.controlReceived(self, decodeControl(body))
        except WireError as error:
            self.abort(str(error))

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment] # as Twisted's
        """See C{IProtocol}."""
        self._end(reason.getErrorMessage())

    def send(self, message: Control) -> None:
        """Write a control message."""
        self.write(encodeControl(message))

    def write(self, frame: bytes) -> None:
        """Write a frame."""
        if not self.isOver:
            self.transport.write(frame)

    def close(self, reason: str) -> None:
        """Close it, behind what was written; its handler is told at once."""
        if not self.isOver:
            self.transport.loseConnection()
            self._end(reason)

    def abort(self, reason: str) -> None:
        """Close it at once, and tell its handler."""
        if not self.isOver:
            self.transport.abortConnection()
            self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.isOver:
            self.isOver = True
            self._handler.disconnected(self, reason)
