"""
The low-level consumer of one broker for threads; see L{pylogbroker.client.simpleconsumer}.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from threading import Lock
from typing import TypeVar, Unpack

from pylogbroker.errors import BrokerConnectionError, TimedOutError, WireError
from pylogbroker.protocol.brokercalls import (
    BrokerCall,
    FetchRange,
    fetchCall,
    multiFetchCall,
    offsetsCall,
)
from pylogbroker.records.messageset import MessageSet
from pylogbroker.syncclient.connection import TIMEOUT_MS, BrokerSocket, SocketOptions

T = TypeVar("T")


class SimpleConsumer:
    """
    The low-level consumer of one broker. It connects for the first call. One call at a time; other
    threads wait.

    When the connection is lost, a call is sent once more over a new one, since it only reads. Calls
    raise the errors of L{pylogbroker.client.simpleconsumer.SimpleConsumer}; a time-out drops the
    connection. A context manager: leaving it closes the connection.

    @ivar socket: its L{BrokerSocket}.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        timeoutMs: float = TIMEOUT_MS,
        **options: Unpack[SocketOptions],
    ) -> None:
        """
        @param tls: for TLS (L{pylogbroker.net.endpointstrings.endpoint} makes it); by default plain
            TCP.
        @param timeoutMs: for a call, connecting and the second try included.
        @param options: of L{BrokerSocket}: C{connectTimeoutMs}; C{responseSizeMax}, which bounds a
            fetch; C{random}, C{clock} and C{pause}.
        """
        self.socket = BrokerSocket(host, port, tls, **options)
        self._timeoutMs = timeoutMs
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<SimpleConsumer of {self.socket.name}>"

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def fetch(self, topic: str, partition: int, offset: int, sizeMax: int) -> MessageSet:
        """
        The messages from an offset on; see
        L{pylogbroker.client.simpleconsumer.SimpleConsumer.fetch}.

        @return: the set; an error code is its C{error}, which is raised when the set is iterated.
        @raise ValueError: C{sizeMax} is negative or more than is accepted.
        """
        return self._ask(fetchCall(topic, partition, offset, sizeMax, self.socket.responseSizeMax))

    def multifetch(self, fetches: Iterable[FetchRange]) -> list[MessageSet]:
        """
        Several fetches in one request; see
        L{pylogbroker.client.simpleconsumer.SimpleConsumer.multifetch}.

        @param fetches: of (topic, partition, offset, sizeMax); at most 32,767.
        @raise ValueError: a C{sizeMax} is negative, their sum is more than is accepted, or there
            are too many.
        """
        return self._ask(multiFetchCall(fetches, self.socket.responseSizeMax))

    def getOffsetsBefore(self, topic: str, partition: int, time: int, countMax: int) -> list[int]:
        """
        Offsets at which segments start, by time; see
        L{pylogbroker.client.simpleconsumer.SimpleConsumer.getOffsetsBefore}.

        @raise ValueError: C{countMax} is negative.
        """
        return self._ask(offsetsCall(topic, partition, time, countMax))

    def _ask(self, call: BrokerCall[T]) -> T:
        with self._lock:
            deadlineMs = self.socket.nowMs() + self._timeoutMs
            self._connect(deadlineMs)
            try:
                body = self._exchange(call, deadlineMs)
            except TimedOutError:
                raise
            except BrokerConnectionError:
                self._connect(deadlineMs)
                body = self._exchange(call, deadlineMs)
            try:
                return call.decode(body)
            except WireError:
                self.socket.drop()
                raise

    def _connect(self, deadlineMs: float) -> None:
        self.socket.connect(deadlineMs - self.socket.nowMs())

    def _exchange(self, call: BrokerCall[T], deadlineMs: float) -> bytes:
        self.socket.write(call.frame, max(deadlineMs - self.socket.nowMs(), 1))
        return self.socket.read(deadlineMs - self.socket.nowMs())

    def close(self) -> None:
        """
        Close the connection, after the call that is under way. The next call connects again, as
        with 0.7.2.
        """
        with self._lock:
            self.socket.drop()
