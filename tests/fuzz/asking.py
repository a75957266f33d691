"""
Connections that ask and wait for the answer: plain, and over TLS.
"""

from __future__ import annotations

import socket
import ssl
import time

from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka07.requests import encodeOffsets
from pylogbroker.protocol.kafka07.responses import decodeOffsets
from tests.fuzz.livebroker import ANSWER_SECONDS_MAX

RECEIVE_SIZE = 1 << 16


def connect(port: int, context: ssl.SSLContext | None = None) -> socket.socket:
    """A socket, over TLS when there is a context for that."""
    plain = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if context is None else context.wrap_socket(plain)


class Caller:
    """A connection that asks requests of 2011."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = FrameDecoder(2**31 - 1)

    def ask(self, request: bytes) -> bytes:
        """The answer's body."""
        self._socket.sendall(request)
        while (frame := self._decoder.take()) is None:
            data = self._socket.recv(RECEIVE_SIZE)
            if not data:
                raise AssertionError("the broker has closed the connection")
            self._decoder.feed(data)
        return frame

    def untilVisible(self, topic: str, offset: int) -> None:
        """Wait until a partition is visible up to an offset, and no further."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while (found := decodeOffsets(self.ask(encodeOffsets(topic, 0, -1, 1)))[1]) != [offset]:
            if found > [offset] or time.monotonic() > deadline:
                raise AssertionError(f"{topic} is visible up to {found}, not {offset}")
            time.sleep(0.02)

    def close(self) -> None:
        self._socket.close()
