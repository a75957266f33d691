"""
A broker on real sockets that has just what a test puts there, and fails when it is told to:
segments can be deleted, logs emptied, answers cut short, connections closed. A thread for each
connection, since who is tested blocks.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from bisect import bisect_right
from collections.abc import Callable

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.protocol.kafka07.requests import (
    Fetch,
    MultiProduce,
    Offsets,
    Produce,
    ProduceRuns,
    Request,
    RequestDecoder,
)
from pylogbroker.protocol.kafka07.responses import encodeOffsets, fetchHeader
from pylogbroker.types import EARLIEST, LATEST


class Log:
    """
    A partition.

    @ivar segments: bytes by the offset where each begins.
    @ivar times: when each was written last, milliseconds.
    """

    def __init__(self) -> None:
        self.segments: dict[int, bytes] = {0: b""}
        self.times: dict[int, int] = {}

    @property
    def end(self) -> int:
        """Behind the last message."""
        base = max(self.segments)
        return base + len(self.segments[base])

    def append(self, *sets: bytes) -> list[int]:
        """Each set becomes a segment; returns where they begin."""
        if self.segments == {0: b""}:
            self.segments.clear()
        starts = []
        for data in sets:
            starts.append(self.end if self.segments else 0)
            self.segments[starts[-1]] = data
        return starts

    def deleteBefore(self, offset: int) -> None:
        """Retention."""
        self.segments = {base: data for base, data in self.segments.items() if base >= offset}

    def fetch(self, offset: int, sizeMax: int) -> bytes | None:
        """None: out of range."""
        bases = sorted(self.segments)
        if offset == self.end:
            return b""
        if not bases[0] <= offset < self.end:
            return None
        base = bases[bisect_right(bases, offset) - 1]
        return self.segments[base][offset - base :][:sizeMax]

    def offsets(self, time: int) -> list[int]:
        """Newest first."""
        bases = sorted(self.segments)
        if time == EARLIEST:
            return bases[:1]
        if time != LATEST:
            return [base for base in reversed(bases) if self.times.get(base, 0) <= time]
        return [self.end, *reversed(bases)] if self.end > bases[-1] else bases[::-1]


class LogBroker:
    """
    @ivar logs: by topic and partition.
    @ivar requests: all that came.
    @ivar before: called with each request, before it is answered; closes the connection by
        returning false.
    @ivar partitionCount: of each topic.
    """

    def __init__(self, number: int = 0, partitionCount: int = 1) -> None:
        self.number = number
        self.partitionCount = partitionCount
        self.logs: dict[tuple[str, int], Log] = {}
        self.requests: list[Request] = []
        self.before: Callable[[Request], object] = lambda request: True
        self._sockets: list[socket.socket] = []
        broker = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                broker._sockets.append(self.request)
                decoder = RequestDecoder(64 << 20)
                try:
                    while data := self.request.recv(1 << 16):
                        decoder.feed(data)
                        while (request := decoder.takeRequest()) is not None:
                            broker.requests.append(request)
                            if not broker.before(request):
                                return
                            self.request.sendall(broker._answer(request))
                except OSError:
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Connection)
        self.address = BrokerAddress(number, *self._server.server_address)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def log(self, topic: str = "clicks", partition: int = 0) -> Log:
        """A partition, made if it is new."""
        return self.logs.setdefault((topic, partition), Log())

    @property
    def listed(self) -> str:
        """The option C{brokers}."""
        return f"{self.number}:{self.address.host}:{self.address.port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed
        self._thread.join()

    def _answer(self, request: Request) -> bytes:
        if isinstance(request, Produce):
            self._append(request)
            return b""
        if isinstance(request, MultiProduce | ProduceRuns):
            for part in request.produces:
                self._append(part)
            return b""
        assert isinstance(request, Fetch | Offsets)
        log = self.logs.get((request.topic, request.partition))
        if isinstance(request, Offsets) and log is None and request.time >= 0:
            return encodeOffsets([])
        log = log or Log()
        if isinstance(request, Offsets):
            return encodeOffsets(log.offsets(request.time)[: request.countMax])
        if request.partition >= self.partitionCount:
            return fetchHeader(3, 0)
        found = log.fetch(request.offset, request.sizeMax)
        return fetchHeader(1, 0) if found is None else fetchHeader(0, len(found)) + found

    def _append(self, request: Produce) -> None:
        for data in request.sets:
            self.log(request.topic, max(request.partition, 0)).append(data)
