"""
A client's connection: frames in, frames out, in order.

B{What holds a connection back.} It takes no further request while too much waits for the disk (its
own answers, or the transactions of all clients), while the client does not read, while the server
stops, and, for a large frame, until the memory that all connections share has room for it. Then it
does not read from the socket, and TCP holds the client back. So it does, too, when answers that
wait or are unread take all the memory that those of all connections may have, and the next request
wants a large answer; small ones go on.

B{An answer waits} until the transaction that it tells of is synced. Everything behind it waits,
too, so that a client never sees an answer before an earlier one.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol
from zope.interface import implementer

from pylogbroker.errors import FrameSizeError, WireError
from pylogbroker.limits import Reservation
from pylogbroker.zookeeper.server.changes import Client, RefusedError
from pylogbroker.zookeeper.server.requests import (
    NOTIFICATION_XID,
    PING_XID,
    EmptyRequest,
    KeeperCode,
    OpCode,
    Request,
    decodeConnect,
    decodeRequest,
    encodeConnected,
    encodeNotification,
    encodeReply,
)

if TYPE_CHECKING:
    from pylogbroker.zookeeper.server.service import ZookeeperServer

FRAME_SIZE_MAX = 0xFFFFF
"""Bytes of a request: the default of ZooKeeper's C{jute.maxbuffer}."""

FIRST_FRAME_SIZE_MAX = 4096
SMALL_FRAME_SIZE = 64 << 10
"""Frames up to this size reserve no memory."""

HELD_COUNT_MAX = 1_000
HELD_SIZE_MAX = 1 << 20
"""Answers of a connection that wait; above either, it takes no request."""

SMALL_ANSWER_SIZE = 64 << 10
"""Bytes of an answer that needs no room in the memory of all answers."""

UNREAD_EVENTS_SIZE_MAX = 4 << 20
"""
Bytes of watch events that wait; above, the connection is closed; so it is above
L{SMALL_ANSWER_SIZE} when there is no room for answers.
"""

LOGGED_LENGTH_MAX = 200
"""Characters of a reason in a log line: it may quote what the client sent."""

_HEAD = struct.Struct(">i")
_WORD_SIZE = 4


class _Held(NamedTuple):
    """
    A frame that waits.

    @ivar zxid: of the transaction that must be synced before.
    @ivar frame: the whole frame, if it is no reply.
    @ivar isEvent: whether it is a watch event. Its number does not tell: clients choose theirs.
    @ivar isWrite: whether the reply names C{zxid}; otherwise it names the last synced one.
    """

    zxid: int
    xid: int
    error: int
    body: bytes
    isWrite: bool
    frame: bytes | None = None
    isEvent: bool = False


@implementer(IPushProducer)
class ZookeeperConnection(Protocol):
    """
    One connection.

    @ivar client: on whose behalf it makes requests; its session is 0 before the first frame.
    @ivar connectedAt: seconds of the server's clock.
    """

    transport: Any

    def __init__(self, server: ZookeeperServer) -> None:
        self.client = Client(0)
        self.connectedAt = server.seconds()
        self._server = server
        self._received = bytearray()
        self._held: deque[_Held] = deque()
        self._heldSize = 0
        self._unreadSize = 0
        self._eventSize = 0
        self._reservation: Reservation | None = None
        self._isOutputFull = False
        self._isClosing = False
        self._isProcessing = False
        self._isReadPaused = False
        self._waitsForRoom = False

    @property
    def address(self) -> str:
        return str(self.transport.getPeer().host)

    def __repr__(self) -> str:
        peer = self.transport.getPeer()
        return f"{peer.host}:{peer.port}, session {self.client.sessionId:#x}"

    @property
    def isHeldBackByServer(self) -> bool:
        """Whether the client's requests, and pings, are not read, though it reads its answers."""
        return self._isReadPaused and not self._isOutputFull

    @property
    def _waitsForMemory(self) -> bool:
        return self._reservation is not None and not self._reservation.granted

    # -- the transport

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self.client.identities.append(("ip", self.address))
        if not self._server.admit(self):
            self._isClosing = True
            self.transport.loseConnection()

    def connectionLost(self, reason: Any = None) -> None:
        self._isClosing = True
        self._held.clear()
        self._server.countOutput(-self._heldSize - self._unreadSize)
        self._heldSize = self._unreadSize = 0
        self._releaseMemory()
        self._server.forget(self)

    def pauseProducing(self) -> None:
        """The client does not read."""
        self._isOutputFull = True

    def resumeProducing(self) -> None:
        self._isOutputFull = False
        self._countRead()
        self.release()

    def stopProducing(self) -> None:
        """The connection is lost."""
        self._isOutputFull = True

    def close(self) -> None:
        """Send what may be sent, and close."""
        self._isClosing = True
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abort(self) -> None:
        self._isClosing = True
        self.transport.abortConnection()

    # -- in

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        self.process()

    def process(self) -> None:
        """Take the requests that are there, until something holds the connection back."""
        if self._isProcessing:
            return
        self._isProcessing = True
        try:
            self._takeFrames()
        except WireError as error:
            self._server.clientLog.warn(
                "The connection {connection} sent what is no request of ZooKeeper's protocol, and"
                " is closed: {error}",
                connection=self,
                error=str(error)[:LOGGED_LENGTH_MAX],
            )
            self.abort()
        finally:
            self._isProcessing = False
            self._pauseReading(not self._isClosing and self._isHeldBack)

    @property
    def _isHeldBack(self) -> bool:
        return (
            not self._server.isServing
            or self._isOutputFull
            or len(self._held) >= HELD_COUNT_MAX
            or self._heldSize > HELD_SIZE_MAX
            or self._server.holdsBack(self)
            or self._waitsForMemory
            or self._waitsForRoom
        )

    def _pauseReading(self, isPaused: bool) -> None:
        if isPaused != self._isReadPaused and not self._isClosing:
            self._isReadPaused = isPaused
            if isPaused:
                self.transport.pauseProducing()
            else:
                self.transport.resumeProducing()

    def _takeFrames(self) -> None:
        received, position, server = self._received, 0, self._server
        self._waitsForRoom = False
        while not self._isClosing and len(received) - position >= _HEAD.size:
            if self._isHeldBack:
                break
            if not self.client.sessionId and self._takeWord():
                return
            (size,) = _HEAD.unpack_from(received, position)
            sizeMax = FRAME_SIZE_MAX if self.client.sessionId else FIRST_FRAME_SIZE_MAX
            if not 0 < size <= sizeMax:
                raise FrameSizeError(f"a frame of {size} bytes; 1 to {sizeMax} are possible")
            start = position + _HEAD.size
            if len(received) - start < size:
                if size > SMALL_FRAME_SIZE and self._reservation is None:
                    self._reservation = server.memory.reserve(size, self.process)
                break
            frame = bytes(received[start : start + size])
            if not self.client.sessionId:
                connect = decodeConnect(frame)
                position = self._pass(start + size)
                server.connectSession(self, connect)
                continue
            xid, number, request = decodeRequest(frame)
            if server.waitsForRoom(self, number, request):
                self._waitsForRoom = True
                break
            position = self._pass(start + size)
            self._takeRequest(xid, number, request)
        del received[:position]

    def _pass(self, position: int) -> int:
        """A frame that ends there is taken."""
        self._releaseMemory()
        self._server.counters.receivedCount += 1
        return position

    def _releaseMemory(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()

    def _takeWord(self) -> bool:
        """A four-letter word, instead of a first frame."""
        answer = self._server.answerWord(bytes(self._received[:_WORD_SIZE]))
        if answer is None:
            return False
        self._isClosing = True
        self.transport.unregisterProducer()
        self.transport.write(answer.encode("utf-8"))
        self.transport.loseConnection()
        return True

    def _takeRequest(self, xid: int, number: int, request: Request | None) -> None:
        server = self._server
        server.touch(self.client.sessionId)
        if request is None:
            self._server.clientLog.warn(
                "The connection {connection} sent a request of the unknown type {number}",
                connection=self,
                number=number,
            )
            self.answer(xid, 0, KeeperCode.UNIMPLEMENTED)
        elif number == OpCode.PING:
            self.answer(PING_XID, 0)
        elif number == OpCode.CLOSE_SESSION:
            assert isinstance(request, EmptyRequest)
            self._isClosing = True
            zxid = server.closeSession(self.client.sessionId)
            self._hold(_Held(zxid, xid, 0, b"", True))
        else:
            server.handle(self, xid, OpCode(number), request)

    # -- out

    def acceptSession(
        self, zxid: int, timeoutMs: int, password: bytes, knowsReadOnly: bool
    ) -> None:
        """Answer the first frame."""
        frame = encodeConnected(timeoutMs, self.client.sessionId, password, knowsReadOnly)
        self._hold(_Held(zxid, 0, 0, b"", False, frame))

    def refuseSession(self, knowsReadOnly: bool) -> None:
        """The session that the client wants is over."""
        self.transport.unregisterProducer()
        self.transport.write(encodeConnected(0, 0, bytes(16), knowsReadOnly))
        self._isClosing = True
        self.transport.loseConnection()

    def refuseCredentials(self, xid: int, error: RefusedError) -> None:
        """Answer, and close, as ZooKeeper does."""
        self._server.clientLog.warn(
            "The credentials of the connection {connection} are refused, and it is closed: {error}",
            connection=self,
            error=str(error)[:LOGGED_LENGTH_MAX],
        )
        self._isClosing = True
        self._hold(_Held(0, xid, error.code, b"", False))

    def answer(
        self, xid: int, zxid: int, error: int = 0, body: bytes = b"", isWrite: bool = False
    ) -> None:
        """
        Answer a request.

        @param zxid: of the transaction that the answer tells of.
        @param isWrite: whether the request made it.
        """
        self._hold(_Held(zxid, xid, error, b"" if error else body, isWrite))

    def notify(self, zxid: int, kind: int, path: str) -> None:
        """Tell of a watch event."""
        if self._isClosing:
            return
        body = encodeNotification(kind, path)
        self._eventSize += len(body)
        frame = encodeReply(NOTIFICATION_XID, -1, 0, body)
        self._hold(_Held(zxid, NOTIFICATION_XID, 0, body, False, frame, True))
        isTight = self._server.isOutputFull
        if self._eventSize > (SMALL_ANSWER_SIZE if isTight else UNREAD_EVENTS_SIZE_MAX):
            self._server.clientLog.warn(
                "The connection {connection} does not read its watch events, and is closed:"
                " {size} bytes wait",
                connection=self,
                size=self._eventSize,
            )
            self.abort()

    def _hold(self, held: _Held) -> None:
        self._held.append(held)
        self._heldSize += len(held.body)
        self._server.countOutput(len(held.body))
        if len(self._held) == 1:
            self._send(self._server.commits.syncedZxid)
        if self._held:
            self._server.waiting[self] = None

    def release(self) -> None:
        """More transactions are synced, or the client reads on."""
        self._send(self._server.commits.syncedZxid)
        if self._received or self._isReadPaused:
            self.process()

    def _send(self, syncedZxid: int) -> None:
        held, frames = self._held, []
        while held and held[0].zxid <= syncedZxid and not self._isOutputFull:
            first = held.popleft()
            self._heldSize -= len(first.body)
            self._unreadSize += len(first.body)
            if first.isEvent:
                self._eventSize -= len(first.body)
            frame = first.frame
            if frame is None:
                zxid = first.zxid if first.isWrite else syncedZxid
                frame = encodeReply(first.xid, zxid, first.error, first.body)
            frames.append(frame)
            self._server.counters.sentCount += 1
            if len(first.body) > SMALL_FRAME_SIZE:  # which may fill the transport
                self.transport.write(b"".join(frames))
                frames.clear()
        if frames:
            self.transport.write(b"".join(frames))
        if not self._isOutputFull:  # then the transport has little
            self._countRead()
        if not held:
            self._server.waiting.pop(self, None)
            if self._isClosing:
                self.close()

    def _countRead(self) -> None:
        size, self._unreadSize = self._unreadSize, 0
        if size:
            self._server.countOutput(-size)
