"""
One broker over a plain socket, or one with TLS, one request at a time.

What must be true: after anything but a whole answer the socket is dropped, since what comes next on
it is unknown. Every wait ends. An announced size allocates no more than has arrived, or than the
limit.

An idle socket is checked before it is used. If the broker has closed it, say by a restart, a new
one is made. 0.7.2 does not check, and loses the first message after a broker's death (spec-0.7
producer §4).

Not thread-safe: the owner has a lock.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from random import SystemRandom
from typing import TypedDict

from pylogbroker.errors import BrokerConnectionError, TimedOutError, WireError
from pylogbroker.protocol.brokercalls import RESPONSE_SIZE_MAX
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.retry import Backoff

CONNECT_TIMEOUT_MS = 5_000
TIMEOUT_MS = 30_000
CLOSE_MS = 10_000
RECEIVE_SIZE = 256 << 10
SEND_SIZE = 256 << 10

monotonic = time.monotonic  # noqa: TID251 - a room that blocks a real thread may take the real clock by default
sleep = time.sleep  # noqa: TID251


class SocketOptions(TypedDict, total=False):
    """Options of a L{BrokerSocket}, which its owners pass on."""

    connectTimeoutMs: float
    responseSizeMax: int
    random: Callable[[], float] | None
    clock: Callable[[], float]
    pause: Callable[[float], None]


class BrokerSocket:
    """
    The socket of one broker.

    @ivar name: the broker's, for texts.
    @ivar responseSizeMax: bytes of an answer.
    @ivar random: numbers from 0 up to, not including, 1.
    @ivar serial: connections made so far.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        responseSizeMax: int = RESPONSE_SIZE_MAX,
        random: Callable[[], float] | None = None,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        """
        @param tls: for TLS (L{pylogbroker.net.endpointstrings.endpoint} makes it); L{None} for
            plain TCP.
        @param connectTimeoutMs: how long connecting may take, over all attempts, with TLS's
            handshake.
        @param responseSizeMax: bytes of an answer.
        @param random: numbers from 0 up to, not including, 1, for jitter; by default the system's.
        @param clock: seconds.
        @param pause: waits for a number of seconds.
        """
        self.name = f"{host}:{port}"
        self.responseSizeMax = responseSizeMax
        self.random = SystemRandom().random if random is None else random
        self.serial = 0
        self._address = (host, port)
        self._tls = tls
        self._connectTimeoutMs = connectTimeoutMs
        self._clock = clock
        self._pause = pause
        self._backoff = Backoff(self.random)
        self._socket: socket.socket | None = None

    def nowMs(self) -> float:
        """Milliseconds on the clock."""
        return self._clock() * 1000

    def fileno(self) -> int:
        """The socket's descriptor, for C{select}."""
        return self._live().fileno()

    @property
    def isConnected(self) -> bool:
        """Whether there is a socket. The broker may have closed it."""
        return self._socket is not None

    def connect(self, timeoutMs: float = inf) -> None:
        """
        Make a connection, unless there is one that looks alive.

        @param timeoutMs: how long it may take; C{connectTimeoutMs}, when that is less.
        @raise BrokerConnectionError: with the reason of the last attempt; L{TimedOutError}, when
            that was the time. A broker with a wrong certificate is not tried again.
        """
        if self._socket is not None and not self._isAlive(self._socket):
            self.drop()
        if self._socket is not None:
            return
        limitMs = min(timeoutMs, self._connectTimeoutMs)
        deadlineMs = self.nowMs() + limitMs
        while self._socket is None:
            try:
                self._socket = self._made(max(deadlineMs - self.nowMs(), 1) / 1000)
            except ssl.SSLCertVerificationError as error:
                raise BrokerConnectionError(
                    f"{self.name} has not shown that it is what it should be: "
                    f"{error.verify_message}"
                ) from error
            except OSError as error:
                waitMs = self._backoff.failed()
                if self.nowMs() + waitMs > deadlineMs:
                    kind = (
                        TimedOutError if isinstance(error, TimeoutError) else BrokerConnectionError
                    )
                    raise kind(
                        f"cannot connect to {self.name} within {limitMs:.0f} ms: {error}"
                    ) from error
                self._pause(waitMs / 1000)
        self._backoff.succeeded()
        self.serial += 1

    def _made(self, seconds: float) -> socket.socket:
        made = socket.create_connection(self._address, seconds)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return (
                made
                if self._tls is None
                else self._tls.wrap_socket(made, server_hostname=self._address[0])
            )
        except BaseException:
            made.close()
            raise

    def _isAlive(self, idle: socket.socket) -> bool:
        """Whether only silence comes. (With TLS, its own messages may come and are taken in.)"""
        idle.setblocking(False)
        try:
            idle.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def write(self, frame: bytes, stallMs: float) -> None:
        """
        Hand a request to the kernel.

        @param stallMs: how long the broker may take nothing.
        @raise BrokerConnectionError: the connection was lost, L{TimedOutError}, it took too long.
            The broker may have the request or not.
        """
        sender = self._live()
        with self._droppedOnError(f"{self.name} took nothing for {stallMs:.0f} ms"):
            sender.settimeout(stallMs / 1000)
            left = memoryview(frame)
            while left:
                left = left[sender.send(left[:SEND_SIZE]) :]

    @contextmanager
    def _droppedOnError(self, lateText: str, lostText: str = "was lost") -> Iterator[None]:
        """Translate the errors of sockets. After any error the socket is dropped."""
        try:
            yield
        except BaseException as error:  # an interrupt, too, leaves half a request behind
            self.drop()
            if isinstance(error, TimeoutError):
                raise TimedOutError(lateText) from error
            if isinstance(error, OSError):
                raise BrokerConnectionError(
                    f"the connection to {self.name} {lostText}: {error}"
                ) from error
            raise

    def read(self, timeoutMs: float) -> bytes:
        """
        The answer's frame, without its size field.

        @param timeoutMs: for all of it.
        @raise BrokerConnectionError: the connection was lost; L{TimedOutError}: it took too long;
            L{WireError}: it is no frame.
        """
        receiver = self._live()
        deadlineMs = self.nowMs() + timeoutMs
        decoder = FrameDecoder(self.responseSizeMax)
        with self._droppedOnError(f"no answer from {self.name} within {timeoutMs:.0f} ms"):
            body = None
            while body is None:
                leftMs = deadlineMs - self.nowMs()
                if leftMs <= 0:
                    raise TimeoutError
                receiver.settimeout(leftMs / 1000)
                data = receiver.recv(RECEIVE_SIZE)
                if not data:
                    raise BrokerConnectionError(
                        f"{self.name} closed the connection: it has stopped, or refuses a request"
                    )
                decoder.feed(data)
                body = decoder.take()
            if decoder.heldSize:
                raise WireError(f"{self.name} sent {decoder.heldSize} bytes without a request")
            return body

    def _live(self) -> socket.socket:
        if self._socket is None:
            raise BrokerConnectionError(f"not connected to {self.name}")
        return self._socket

    def close(self, closeMs: float = CLOSE_MS) -> None:
        """
        End our side, wait for the broker to end its side, and close. A broker reads to the end
        before it does.

        @param closeMs: how long that may take.
        @raise BrokerConnectionError: it did not happen; what the broker has taken is unknown.
        """
        if self._socket is None:
            return
        closing, deadlineMs = self._socket, self.nowMs() + closeMs
        lateText = (
            f"the connection to {self.name} could not be closed within {closeMs:.0f} ms; "
            "what the broker has taken is unknown"
        )
        with self._droppedOnError(lateText, "was lost while it was closed"):
            if isinstance(closing, ssl.SSLSocket):
                closing.settimeout(max(closeMs, 1) / 1000)
                closing.unwrap()  # says that we are done, and waits for the broker to say the same
            else:
                closing.shutdown(socket.SHUT_WR)
                data = b"unread"
                while data:
                    closing.settimeout(max(deadlineMs - self.nowMs(), 1) / 1000)
                    data = closing.recv(RECEIVE_SIZE)
        self.drop()

    def drop(self) -> None:
        """Close at once."""
        dropped, self._socket = self._socket, None
        if dropped is not None:
            dropped.close()
