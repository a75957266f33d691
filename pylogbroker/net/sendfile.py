"""
Sending slices: from the page cache to the socket, without a copy.

An answer is a list of *pieces*: bytes (headers) and L{pylogbroker.interfaces.Slice}s (message sets). L{SendfileTransport} is the transport of a plain
TCP connection; it has an ordered queue of pieces, which it sends with C{send(MSG_MORE)} and C{os.sendfile} whenever the socket is
writable. C{MSG_MORE} makes header and first bytes of the set leave together; without it (or C{TCP_NODELAY}) every fetch stalls for a delayed
acknowledgement. All writes of the transport go through this queue, so that Twisted's own write buffer is always empty and the order is
that of the calls.

What must be true: the reactor does not wait for cold data (each range of at most L{RANGE_SIZE_MAX} is sent only when L{pylogbroker.net.pagecache.PageCache} says
so, else a worker reads it in first; the answer holds for L{CACHED_SECONDS}, so that a range that leaves in several parts is asked about once); no connection takes a whole turn for itself (a budget); a segment that is deleted while slices of
it wait here stays readable (slices come pinned and are let go when sent or given up); a file that ends before the slice does was cut, and since
the header has promised bytes that do not exist, the connection is cut, too.

Connections that cannot use C{sendfile} (TLS) are served by L{BufferedSender}: a worker reads, the transport's back pressure says when.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from errno import EAGAIN, EINTR
from typing import Any, Protocol

from twisted.internet import main, tcp
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.interfaces import ISegmentFile, Slice
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.workers import IWorker

TURN_SIZE_MAX = 1 << 20
"""
Bytes that a connection may send before others have their turn: what a fetch waits for at most behind each busy neighbour, 0.2 to 0.4 ms. A fetch of
usual size then leaves in the turn in which its request came, as far as the socket has room.
"""
RANGE_SIZE_MAX = 1 << 20
"""Bytes of a slice that are looked up in the page cache, or read in by a worker, at a time."""
CACHED_SECONDS = 1
"""How long a range counts as cached after the kernel said so, or a worker has read it in."""
READ_SIZE = 256 << 10

ResponsePart = bytes | Slice


def letGo(pieces: Sequence[ResponsePart]) -> None:
    """Unpin the slices among pieces that will not be sent."""
    for piece in pieces:
        if isinstance(piece, Slice) and piece.file is not None:
            piece.file.unpin()


class ISendContext(Protocol):
    """What all connections of a broker share for sending."""

    warmth: PageCache
    readWorker: IWorker

    def countOut(self, size: int) -> None:
        """Bytes have gone out, in one write."""
        ...


class SendfileTransport(tcp.Server):
    """
    A TCP connection that sends slices with C{sendfile}.

    A listening port makes its connections of this class when it is told so: C{port.transport = SendfileTransport}.

    @ivar sentSize: bytes sent so far; who watches it sees whether a peer takes anything.
    """

    _log = Logger()
    _queue: deque[Any] | None = None
    _sent: Callable[[], None] | None = None
    _flow: ISendContext
    reactor: Any
    _warming = False
    _broken = False  # nothing more can be sent
    _cached: tuple[ISegmentFile, int, int, float] | None = (
        None  # what was found in the page cache, or read in, a moment ago: file, start, end, until when that holds
    )
    sentSize = 0

    def __init__(
        self, sock: Any, protocol: Any, client: Any, server: Any, sessionno: Any, reactor: Any
    ) -> None:
        # As in BrokerConnection: what is set from the beginning costs an idle connection least.
        self._queue = self._sent = self._cached = None
        self._flow = None  # type: ignore[assignment] # until there is something to send
        self._warming = self._broken = False
        self.sentSize = 0
        super().__init__(sock, protocol, client, server, sessionno, reactor)

    @property
    def bufferSize(self) -> int:  # type: ignore[override] # a plain attribute in Twisted, which only reads it
        """How much is received at a time: the protocol's factory shares it out among its connections."""
        receiveSize: int = self.protocol.receiveSize  # type: ignore[attr-defined]
        return receiveSize

    # -- queueing

    def sendPieces(
        self, pieces: Sequence[ResponsePart], flow: ISendContext, sent: Callable[[], None]
    ) -> bool:
        """
        Send pieces in order, behind what is being sent. A first attempt is made at once.

        @param pieces: their slices are pinned; they are unpinned in any case, however this ends.
        @param sent: called later, once all was handed to the kernel; never when the connection is lost before that.
        @return: whether all is sent already; then C{sent} is not called.
        """
        if not self.connected or self.disconnecting:
            letGo(pieces)
            return False
        self._flow = flow
        if self._queue is None:
            self._queue = deque()
        idle = not self._queue
        self._queue.extend([piece, 0] for piece in pieces)
        if not idle:
            self._sent = sent
            return False
        self._pump()
        if self._queue:
            self._sent = sent
            if not self._warming:
                self.startWriting()
            return False
        self._queue = None
        return True

    @property
    def isSending(self) -> bool:
        """Whether anything waits for the peer."""
        return bool(self._queue) and not self._warming

    def write(self, data: bytes) -> None:
        """Bytes queue like pieces do."""
        if not data or not self.connected or self._writeDisconnected:
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append([data, 0])
        if not self._warming:
            self.startWriting()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    # -- sending

    def doWrite(self) -> Any:
        """The socket is writable."""
        if self._queue:
            failure = self._pump()
            if failure is not None:
                return failure
            if self._queue:
                return None
            self._queue = None
        sent, self._sent = self._sent, None
        if sent is not None:
            self.stopWriting()
            sent()
            if self._queue or not self.disconnecting:
                return None
        return (
            super().doWrite()
        )  # with its empty buffer: it stops writing, and ends the connection if that was asked

    def _pump(self) -> Any:
        """Send until the queue is empty, the socket full, the turn's budget spent or the data cold. What it returns ends the connection."""
        queue = self._queue
        assert queue is not None
        if (
            self._broken
        ):  # at the first attempt; the reactor has been waited for to end the connection
            return main.CONNECTION_LOST
        flow: ISendContext | None = self._flow
        left = TURN_SIZE_MAX
        while queue and left > 0:
            head = queue[0]
            piece, done = head
            if isinstance(piece, bytes):
                size = self._sendBytes(piece, done, socket.MSG_MORE if len(queue) > 1 else 0)
                whole = len(piece)
            else:
                whole = piece.size
                size = self._sendSlice(piece, done, left) if whole else 0
            if size is None:
                return None
            if size < 0:
                self._broken = True
                return main.CONNECTION_LOST
            left -= size
            self.sentSize += size
            if flow is not None:  # nothing but plain writes so far
                flow.countOut(size)
            head[1] = done + size
            if head[1] < whole:  # the socket has no more room, or the turn is over
                return None
            queue.popleft()
            if not isinstance(piece, bytes) and piece.file is not None:
                piece.file.unpin()
                self._cached = None
        return None

    def _sendBytes(self, data: bytes, done: int, flags: int) -> int | None:
        """Returns bytes sent; L{None} when the socket is full; -1 when it is broken."""
        try:
            return self.socket.send(data[done:] if done else data, flags)
        except OSError as error:
            return None if error.errno in (EAGAIN, EINTR) else -1

    def _sendSlice(self, piece: Slice, done: int, sizeMax: int) -> int | None:
        """The same for a stretch of a slice; L{None} also when it has to be read in first."""
        file = piece.file
        assert file is not None
        position = piece.position + done
        size = self._cachedSize(file, position, min(piece.size - done, RANGE_SIZE_MAX))
        if not size:
            return None
        try:
            sent = os.sendfile(self.socket.fileno(), file.fileno(), position, min(size, sizeMax))
        except OSError as error:
            if error.errno in (EAGAIN, EINTR):
                return None
            self._log.info(
                "Sending {path} to {peer} broke: {error}",
                path=file.path,
                peer=self.repstr,
                error=error,
            )
            return -1
        if sent == 0:
            sentence = (
                "{path} ends before byte {position}, which was promised to {peer}: cutting it off"
            )
            self._log.error(sentence, path=file.path, position=position, peer=self.repstr)
            return -1
        return sent

    def _cachedSize(self, file: ISegmentFile, position: int, size: int) -> int:
        """How many bytes from a position are cached: all, or what is left of the range found last; 0 when a worker has to read them in first."""
        now = self.reactor.seconds()
        if self._cached is not None:
            known, start, end, until = self._cached
            if known is file and start <= position < end and now < until:
                return min(size, end - position)
        if not self._flow.warmth.isCached(file.path, file.fileno(), position, size):
            self._readIn(file, position, size)
            return 0
        self._cached = file, position, position + size, now + CACHED_SECONDS
        return size

    # -- cold data

    def _readIn(self, file: ISegmentFile, position: int, size: int) -> None:
        self._warming = True
        self.stopWriting()
        file.pin()  # the read must not meet a descriptor that was closed, and perhaps given to another file, meanwhile
        fileno, warmth = file.fileno(), self._flow.warmth
        reading = self._flow.readWorker.do(lambda: warmth.readIn(fileno, position, size))
        reading.addBoth(self._readInDone, file, position, size)

    def _readInDone(self, result: object, file: ISegmentFile, position: int, size: int) -> None:
        file.unpin()
        self._warming = False
        if isinstance(result, Failure):
            self._log.error(
                "Reading {path} at {position} failed: {reason}",
                path=file.path,
                position=position,
                reason=result.getErrorMessage(),
            )
            self.abortConnection()
        else:
            until = self.reactor.seconds() + CACHED_SECONDS
            self._cached = file, position, position + size, until
            if self.connected and self._queue:
                self.startWriting()

    # -- the end

    def connectionLost(self, reason: Failure) -> None:
        queue, self._queue, self._sent = self._queue, None, None
        if queue:
            letGo([piece for piece, _done in queue])
        super().connectionLost(reason)


@implementer(IPushProducer)
class BufferedSender:
    """
    Sends pieces through a transport that cannot use C{sendfile}: a producer whose bytes a worker reads, and which goes on while the transport
    lets it. (A pull producer is asked again and again by TLS while it reads, which keeps the reactor spinning.)

    @ivar sentSize: bytes given to the transport so far; it grows in steps of up to 256 KiB.
    """

    _log = Logger()

    def __init__(
        self,
        transport: Any,
        pieces: Sequence[ResponsePart],
        flow: ISendContext,
        sent: Callable[[], None],
    ) -> None:
        """
        @param pieces: their slices are pinned; they are unpinned in any case, however this ends.
        @param sent: called when all was given to the transport and it would take more; never when the connection is lost before that.
        """
        self._transport = transport
        self._pieces = deque(pieces)
        self._position = 0
        self._reading = False
        self._paused = False
        self._ended = False
        self._flow = flow
        self._sent = sent
        self.sentSize = 0

    @property
    def isSending(self) -> bool:
        """Whether anything waits for the peer."""
        return self._paused and not self._ended

    def start(self) -> None:
        """Begin. Not before the transport has no other producer."""
        self._transport.registerProducer(self, True)
        self._goOn()

    def pauseProducing(self) -> None:
        """The transport is full."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The transport wants more."""
        self._paused = False
        self._goOn()

    def _goOn(self) -> None:
        while not (self._reading or self._paused or self._ended):
            if not self._pieces:
                self._ended = True
                self._transport.unregisterProducer()
                self._sent()
                return
            piece = self._pieces[0]
            if isinstance(piece, bytes):
                self._pieces.popleft()
                self._write(piece)
            elif piece.file is None:
                self._pieces.popleft()
            else:
                self._read(piece, piece.file)

    def _write(self, data: bytes) -> None:
        self.sentSize += len(data)
        self._flow.countOut(len(data))
        self._transport.write(data)

    def _read(self, piece: Slice, file: ISegmentFile) -> None:
        fileno, position = file.fileno(), piece.position + self._position
        size = min(READ_SIZE, piece.size - self._position)
        self._reading = True
        file.pin()  # the piece's own pin goes when the connection is lost, and the read must not meet a descriptor that was closed
        self._flow.readWorker.do(lambda: os.pread(fileno, size, position)).addBoth(
            self._readDone, piece, file
        )

    def _readDone(self, data: bytes | Failure, piece: Slice, file: ISegmentFile) -> None:
        self._reading = False
        file.unpin()
        if self._ended:
            return
        if isinstance(data, Failure) or not data:
            reason = data.getErrorMessage() if isinstance(data, Failure) else "it ends too soon"
            self._log.error(
                "Reading {path} for a client failed: {reason}", path=file.path, reason=reason
            )
            self._transport.abortConnection()
            return
        self._position += len(data)
        if self._position == piece.size:
            self._pieces.popleft()
            self._position = 0
            file.unpin()
        self._write(data)
        self._goOn()

    def stopProducing(self) -> None:
        """The connection is lost."""
        self._ended = True
        letGo(self._pieces)
        self._pieces.clear()
