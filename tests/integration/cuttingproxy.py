"""
A TCP proxy in front of a broker, which cuts a connection in the middle of a frame when it is told
to: some bytes of a request, or of an answer, go through, and then nothing any more. Threads, since
who uses it waits for other things.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

PIECE_SIZE = 1 << 16
REQUEST, ANSWER = "request", "answer"
_SIZE = struct.Struct(">i")


class _Frames:
    """Where the frames of a stream of bytes end."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def middle(self, data: bytes) -> int | None:
        """
        Go on behind C{data}.

        @return: how many of its bytes end inside a frame; L{None}: no number of them does.
        """
        found = None
        position = 0
        while position < len(data):
            if self._left:
                step = min(self._left, len(data) - position)
                if step > 1 or self._left > step:
                    found = position + max(1, step // 2)
                self._left -= step
                position += step
                continue
            take = data[position : position + _SIZE.size - len(self._head)]
            self._head += take
            position += len(take)
            if len(self._head) == _SIZE.size:
                self._left = _SIZE.unpack(self._head)[0]
                self._head = b""
        return found


class CuttingProxy:
    """
    @ivar port: where clients connect to.
    @ivar cutCount: connections that were cut.
    """

    def __init__(self, brokerPort: int) -> None:
        self.cutCount = 0
        self._brokerPort = brokerPort
        self._cut: str | None = None
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._isClosed = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cutNext(self, direction: str) -> None:
        """Cut the next connection on which a frame goes in this direction."""
        self._cut = direction

    def close(self) -> None:
        """Accept nobody, and cut all."""
        self._isClosed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cutNow()

    def cutNow(self) -> None:
        """Cut all connections."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            self._end(each)

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._isClosed:
            try:
                client, _address = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                broker = socket.create_connection(("127.0.0.1", self._brokerPort), 5)
            except OSError:
                return
            with broker:
                broker.settimeout(None)
                for each in (client, broker):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets |= {client, broker}
                back = threading.Thread(
                    target=self._pump, args=(broker, client, ANSWER), daemon=True
                )
                back.start()
                self._pump(client, broker, REQUEST)
                back.join()
                with self._lock:
                    self._sockets -= {client, broker}

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        frames = _Frames()
        try:
            while data := source.recv(PIECE_SIZE):
                middle = frames.middle(data)
                if self._cut == direction and middle is not None:
                    with self._lock:
                        isMine = self._cut == direction
                        self._cut = None if isMine else self._cut
                    if isMine:
                        target.sendall(data[:middle])
                        self.cutCount += 1
                        break
                target.sendall(data)
        except OSError:
            pass
        self._end(source, target)
