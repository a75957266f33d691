"""
Sends slices from the page cache to the socket, without a copy.

An answer is a list of I{parts}: bytes (headers) and L{pylogbroker.interfaces.Slice}s (message
sets). L{SendfileTransport}, the transport of plain TCP connections, sends its queue of parts with
C{send(MSG_MORE)} and C{os.sendfile}. With C{MSG_MORE} header and set leave together; otherwise
every fetch would stall for a delayed acknowledgement. All writes use this queue; Twisted's own
write buffer stays empty.

What must be true:

 - The reactor does not wait for the disk: a range is sent only if
 L{pylogbroker.net.pagecache.PageCache} knows it as cached, else a worker prefetches it. The answer
 holds for L{CACHED_SECONDS}.
 - No connection occupies a whole turn of the reactor: L{TURN_SIZE_MAX}.
 - A deleted segment stays readable while its slices are queued: slices come pinned, and are
 unpinned when sent or discarded.
 - A slice beyond the end of its file was truncated. Its header has promised bytes that do not
 exist, so the connection is closed.

L{BufferedSender} serves connections without C{sendfile} (TLS): a worker reads, and the transport's
back pressure sets the pace.
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

from pylogbroker.interfaces import IPinnableFile, Slice
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.workers import IWorker

TURN_SIZE_MAX = (1 << 20) + (64 << 10)
"""
Bytes that a connection may send before others have their turn: a fetch waits 0.2 to 0.4 ms behind
each busy neighbour. A fetch of usual size, 1 MiB with the headers before it, leaves in the turn in
which its request came, as far as the socket has room.
"""
RANGE_SIZE_MAX = 1 << 20
"""Bytes of a slice that are looked up in the page cache, or prefetched, at a time."""
CACHED_SECONDS = 1
"""How long a range counts as cached after it was looked up or prefetched."""
READ_SIZE = 256 << 10

ResponsePart = bytes | Slice


def releaseSlices(parts: Iterable[ResponsePart]) -> None:
    """Unpin the slices among parts that will not be sent."""
    for part in parts:
        if isinstance(part, Slice) and part.file is not None:
            part.file.unpin()


class ISendContext(Protocol):
    """What all connections of a broker share for sending."""

    pageCache: PageCache
    readWorker: IWorker

    def onBytesSent(self, size: int) -> None:
        """Bytes were given to a transport in one write."""
        ...


class SendfileTransport(tcp.Server):
    """
    A TCP connection that sends slices with C{sendfile}; set C{port.transport} to this class.

    @ivar sentSize: bytes sent so far; it does not grow while a peer takes nothing.
    """

    _log = Logger()
    _queue: deque[Any] | None = None
    _onSent: Callable[[], None] | None = None
    _context: ISendContext
    reactor: Any
    _prefetching = False
    _broken = False  # nothing more can be sent
    # The range found in the page cache, or prefetched: file, start, end, until when that holds.
    _cached: tuple[IPinnableFile, int, int, float] | None = None
    sentSize = 0

    def __init__(
        self, sock: Any, protocol: Any, client: Any, server: Any, sessionno: Any, reactor: Any
    ) -> None:
        # As in ServerConnection: attributes set from the start cost an idle connection least.
        self._queue = self._onSent = self._cached = None
        self._context = None  # type: ignore[assignment] # until there is something to send
        self._prefetching = self._broken = False
        self.sentSize = 0
        super().__init__(sock, protocol, client, server, sessionno, reactor)

    # -- queueing

    def sendParts(
        self, parts: Sequence[ResponsePart], context: ISendContext, onSent: Callable[[], None]
    ) -> bool:
        """
        Send parts in order, behind queued ones. The first attempt is made at once.

        @param parts: pinned slices; they are unpinned in any case.
        @param onSent: called later, when the kernel has all; never if the connection is lost first.
        @return: whether the kernel has all already; then C{onSent} is not called.
        """
        if not self.connected or self.disconnecting:
            releaseSlices(parts)
            return False
        self._context = context
        if self._queue is None:
            self._queue = deque()
        idle = not self._queue
        self._queue.extend([part, 0] for part in parts)
        if not idle:
            self._onSent = onSent
            return False
        self._pump()
        if self._queue:
            self._onSent = onSent
            if not self._prefetching:
                self.startWriting()
            return False
        self._queue = None
        return True

    @property
    def isSending(self) -> bool:
        return bool(self._queue) and not self._prefetching

    def write(self, data: bytes) -> None:
        if not data or not self.connected or self._writeDisconnected:
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append([data, 0])
        if not self._prefetching:
            self.startWriting()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    # -- sending

    def doWrite(self) -> Any:
        if self._queue:
            failure = self._pump()
            if failure is not None:
                return failure
            if self._queue:
                return None
            self._queue = None
        onSent, self._onSent = self._onSent, None
        if onSent is not None:
            self.stopWriting()
            onSent()
            if self._queue or not self.disconnecting:
                return None
        # With its empty buffer, this stops writing, and ends the connection if that was requested.
        return super().doWrite()

    def _pump(self) -> Any:
        """
        Send until the queue is empty, the socket full, the turn over or the data not cached. A
        result other than L{None} ends the connection.
        """
        queue = self._queue
        assert queue is not None
        if self._broken:  # at the first attempt, whose result the reactor does not see
            return main.CONNECTION_LOST
        context: ISendContext | None = self._context
        left = TURN_SIZE_MAX
        while queue and left > 0:
            head = queue[0]
            part, done = head
            if isinstance(part, bytes):
                size = self._sendBytes(part, done, socket.MSG_MORE if len(queue) > 1 else 0)
                whole = len(part)
            else:
                whole = part.size
                size = self._sendSlice(part, done, left) if whole else 0
            if size is None:
                return None
            if size < 0:
                self._broken = True
                return main.CONNECTION_LOST
            left -= size
            self.sentSize += size
            if context is not None:  # plain writes only so far
                context.onBytesSent(size)
            head[1] = done + size
            if head[1] < whole:  # the socket has no more room, or the turn is over
                return None
            queue.popleft()
            if not isinstance(part, bytes) and part.file is not None:
                part.file.unpin()
                self._cached = None
        return None

    def _sendBytes(self, data: bytes, done: int, flags: int) -> int | None:
        """Returns the bytes sent; L{None}: the socket is full; -1: it is broken."""
        try:
            return self.socket.send(data[done:] if done else data, flags)
        except OSError as error:
            return None if error.errno in (EAGAIN, EINTR) else -1

    def _sendSlice(self, part: Slice, done: int, sizeMax: int) -> int | None:
        file = part.file
        assert file is not None
        position = part.position + done
        size = self._cachedSize(file, position, min(part.size - done, RANGE_SIZE_MAX))
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
            self._log.error(
                "{path} ends before byte {position}, which was promised to {peer}: cutting it off",
                path=file.path,
                position=position,
                peer=self.repstr,
            )
            return -1
        return sent

    def _cachedSize(self, file: IPinnableFile, position: int, size: int) -> int:
        """The cached bytes from a position; 0 when a worker must prefetch them."""
        now = self.reactor.seconds()
        if self._cached is not None:
            known, start, end, until = self._cached
            if known is file and start <= position < end and now < until:
                return min(size, end - position)
        if not self._context.pageCache.isCached(file.path, file.fileno(), position, size):
            self._prefetch(file, position, size)
            return 0
        self._cached = file, position, position + size, now + CACHED_SECONDS
        return size

    def _prefetch(self, file: IPinnableFile, position: int, size: int) -> None:
        self._prefetching = True
        self.stopWriting()
        # Else the descriptor might be closed, and given to another file, during the read.
        file.pin()
        fileno, pageCache = file.fileno(), self._context.pageCache
        self._context.readWorker.submit(lambda: pageCache.prefetch(fileno, position, size)).addBoth(
            self._prefetched, file, position, size
        )

    def _prefetched(self, result: object, file: IPinnableFile, position: int, size: int) -> None:
        file.unpin()
        self._prefetching = False
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
        queue, self._queue, self._onSent = self._queue, None, None
        if queue:
            releaseSlices([part for part, _done in queue])
        super().connectionLost(reason)


@implementer(IPushProducer)
class BufferedSender:
    """
    A push producer that sends parts without C{sendfile}; a worker reads the bytes. (TLS polls a
    pull producer, which would keep the reactor busy.)

    @ivar sentSize: bytes given to the transport so far; it grows in steps of up to L{READ_SIZE}.
    """

    _log = Logger()

    def __init__(
        self,
        transport: Any,
        parts: Sequence[ResponsePart],
        context: ISendContext,
        onSent: Callable[[], None],
    ) -> None:
        """
        @param parts: pinned slices; they are unpinned in any case.
        @param onSent: called when the transport has all and would take more; never if the
            connection is lost first.
        """
        self._transport = transport
        self._parts = deque(parts)
        self._position = 0
        self._reading = False
        self._paused = False
        self._ended = False
        self._context = context
        self._onSent = onSent
        self.sentSize = 0

    @property
    def isSending(self) -> bool:
        return self._paused and not self._ended

    def start(self) -> None:
        """The transport must have no other producer."""
        self._transport.registerProducer(self, True)
        self._continue()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        self._continue()

    def _continue(self) -> None:
        while not (self._reading or self._paused or self._ended):
            if not self._parts:
                self._ended = True
                self._transport.unregisterProducer()
                self._onSent()
                return
            part = self._parts[0]
            if isinstance(part, bytes):
                self._parts.popleft()
                self._write(part)
            elif part.file is None:
                self._parts.popleft()
            else:
                self._read(part, part.file)

    def _write(self, data: bytes) -> None:
        self.sentSize += len(data)
        self._context.onBytesSent(len(data))
        self._transport.write(data)

    def _read(self, part: Slice, file: IPinnableFile) -> None:
        fileno, position = file.fileno(), part.position + self._position
        size = min(READ_SIZE, part.size - self._position)
        self._reading = True
        # The part's own pin goes when the connection is lost, and the read still needs it.
        file.pin()
        self._context.readWorker.submit(lambda: os.pread(fileno, size, position)).addBoth(
            self._readDone, part, file
        )

    def _readDone(self, data: bytes | Failure, part: Slice, file: IPinnableFile) -> None:
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
        if self._position == part.size:
            self._parts.popleft()
            self._position = 0
            file.unpin()
        self._write(data)
        self._continue()

    def stopProducing(self) -> None:
        self._ended = True
        releaseSlices(self._parts)
        self._parts.clear()
