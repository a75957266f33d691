"""
A client that is a blocking socket and the layouts of spec-0.7 wire-protocol, for tests that want to
see bytes.
"""

from __future__ import annotations

import socket
import struct
from typing import Self

from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeMultiFetch, decodeOffsets
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.types import LATEST

PROBE_TOPIC = "probe-that-nobody-produces"


class ClosedByBrokerError(Exception):
    """The broker has closed the connection."""


class RawClient:
    """
    One connection. Everything that waits has a time-out, in which case it raises C{TimeoutError}.
    """

    def __init__(self, port: int, secondsMax: float = 300.0, receiveBufferSize: int = 0) -> None:
        """
        @param receiveBufferSize: C{SO_RCVBUF}; 0: what the system gives.
        """
        self.socket = socket.socket()
        self.socket.settimeout(secondsMax)
        if receiveBufferSize:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receiveBufferSize)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def over(cls, connected: socket.socket) -> Self:
        """A client over a connection that is there already."""
        client = cls.__new__(cls)
        client.socket = connected
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Twice does nothing."""
        self.socket.close()

    # -- bytes

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """
        Exactly so many bytes.

        @raise ClosedByBrokerError: they do not come.
        """
        pieces: list[bytes] = []
        while size:
            try:
                piece = self.socket.recv(min(size, 1 << 20))
            except ConnectionError as error:
                raise ClosedByBrokerError(str(error)) from error
            if not piece:
                raise ClosedByBrokerError(f"{size} bytes are missing")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def receiveBody(self) -> bytes:
        """A response without its size field."""
        return self.receive(struct.unpack(">i", self.receive(4))[0])

    def isClosed(self) -> bool:
        """
        Wait for the broker to close the connection.

        @return: whether it did so without another byte.
        """
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    # -- requests

    def produce(self, topic: str, partition: int, messageSet: bytes) -> None:
        """PRODUCE, which has no answer."""
        self.send(encodeProduce(topic, partition, messageSet))

    def multiProduce(self, produces: list[tuple[str, int, bytes]]) -> None:
        """MULTIPRODUCE, which has no answer."""
        self.send(encodeMultiProduce(produces))

    def fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int = 1 << 30
    ) -> tuple[int, bytes]:
        """FETCH: the code and the bytes."""
        self.send(encodeFetch(topic, partition, offset, sizeMax))
        return decodeFetch(self.receiveBody())

    def multiFetch(self, fetches: list[tuple[str, int, int, int]]) -> list[tuple[int, bytes]]:
        """MULTIFETCH."""
        self.send(encodeMultiFetch(fetches))
        return decodeMultiFetch(self.receiveBody())

    def offsets(
        self, topic: str, partition: int, time: int = LATEST, countMax: int = 1
    ) -> list[int]:
        """OFFSETS."""
        self.send(encodeOffsets(topic, partition, time, countMax))
        return decodeOffsets(self.receiveBody())[1]

    def processed(self) -> None:
        """
        Return when every request before this was carried out, or dropped (spec-0.7 wire-protocol
        §11).
        """
        assert self.offsets(PROBE_TOPIC, 0) == [0]

    # -- more than one request

    def end(self, topic: str, partition: int = 0) -> int:
        """The visible end."""
        return self.offsets(topic, partition)[0]

    def readAll(
        self, topic: str, partition: int = 0, offset: int = 0, sizeMax: int = 1 << 20
    ) -> bytes:
        """
        What is visible from an offset on, by as many fetches as it takes; whole bytes of it, so
        that sets may be cut anywhere in between.
        """
        pieces: list[bytes] = []
        while True:
            code, data = self.fetch(topic, partition, offset, sizeMax)
            assert code == 0, f"fetch of {topic}-{partition} at {offset}: code {code}"
            if not data:
                return b"".join(pieces)
            pieces.append(data)
            offset += len(data)

    def payloads(self, topic: str, partition: int = 0) -> list[bytes]:
        """Every message that is visible, wrappers opened."""
        return [payload for payload, _next in MessageSet(self.readAll(topic, partition)).payloads()]

    def roundTrip(self, topic: str, payload: bytes) -> None:
        """
        Produce a message to a topic that nobody else uses, and see it come back.

        @raise AssertionError: something else comes.
        """
        offset = self.end(topic)
        entry = encodeSet([payload])
        self.produce(topic, 0, entry)
        assert self.fetch(topic, 0, offset) == (0, entry)
