"""
Brokers whose strings the test holds: on a puppet network they take what producers send, answer when
they are told, and fall over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.task import Clock

from pylogbroker.client.brokerclient import BrokerClient, BrokerClientPool
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.protocol.kafka07.requests import (
    MultiProduce,
    Offsets,
    Produce,
    ProduceRuns,
    Request,
    RequestDecoder,
)
from pylogbroker.protocol.kafka07.responses import encodeOffsets
from pylogbroker.records.messageset import MessageSet
from pylogbroker.testing.network import MemoryNetwork, MemoryPeer


class PuppetConnections(BrokerClientPool):
    """Ways over the puppet network, by the names of the endpoints."""

    def __init__(
        self, network: MemoryNetwork, random: Callable[[], float], connectTimeoutMs: float = 5000
    ) -> None:
        super().__init__(network.clock, random=random)
        self._make: Any = lambda endpoint: BrokerClient(
            network.clock,
            network.endpoint(endpoint),
            connectTimeoutMs=connectTimeoutMs,
            limits=ConnectionLimits(waitingSizeMax=2**40, closeMs=2000, stallMs=30_000),
            random=random,
        )


class PuppetBroker:
    """
    One broker.

    @ivar log: (topic, partition, payload) of each message, in order.
    @ivar kinds: of requests that came.
    @ivar isAnswering: whether it answers questions.
    @ivar isUp: whether it accepts connections.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, int, bytes]] = []
        self.kinds: list[str] = []
        self.parts: list[list[tuple[str, int]]] = []
        self.isAnswering = True
        self.isUp = True
        self.lines: dict[MemoryPeer, RequestDecoder] = {}
        self.bytes = b""

    def payloads(self, topic: str | None = None) -> list[bytes]:
        """Of a topic, or of all."""
        return [payload for name, _partition, payload in self.log if topic in (None, name)]

    def accept(self, line: MemoryPeer) -> None:
        """A connection."""
        self.lines[line] = RequestDecoder(100 << 20)

    def step(self) -> bool:
        """Read and answer. Returns whether there was anything."""
        isBusy = False
        for line, decoder in list(self.lines.items()):
            data = line.take()
            if data:
                isBusy = True
                self.bytes += data
                decoder.feed(data)
                while (request := decoder.takeRequest()) is not None:
                    self._carryOut(line, request)
            if line.isEnded and line.reason is None:
                isBusy = True
                line.end()
            if line.reason is not None:
                del self.lines[line]
        return isBusy

    def _carryOut(self, line: MemoryPeer, request: Request) -> None:
        if isinstance(request, ProduceRuns):
            for each in request.produces:
                self._carryOut(line, each)
            return
        self.kinds.append(type(request).__name__)
        if isinstance(request, Offsets):
            if self.isAnswering and line.reason is None:
                line.deliver(encodeOffsets([len(self.log)]))
        elif isinstance(request, Produce):
            self._append([request])
        elif isinstance(request, MultiProduce):
            self._append(request.produces)
        else:
            raise AssertionError(request)

    def _append(self, produces: list[Produce]) -> None:
        self.parts.append([(produce.topic, produce.partition) for produce in produces])
        for produce in produces:
            for data in produce.sets:
                self.log += [
                    (produce.topic, produce.partition, payload)
                    for payload, _ in MessageSet(data).payloads()
                ]

    def cut(self) -> None:
        """All its connections break."""
        for line in list(self.lines):
            if line.reason is None:
                line.cut()
        self.lines.clear()


class PuppetCluster:
    """
    Brokers by their endpoints.
    """

    def __init__(self, *names: str) -> None:
        """
        @param names: endpoints, C{host:port}.
        """
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.brokers = {name: PuppetBroker() for name in names}

    def turn(self) -> None:
        """Let everything happen that takes no time."""
        isBusy, count = True, 0
        while isBusy and count < 1000:
            count += 1
            isBusy = False
            for attempt in self.network.waiting:
                isBusy = True
                broker = self.brokers.get(attempt.name)
                if broker is not None and broker.isUp:
                    broker.accept(attempt.accept())
                else:
                    attempt.refuse()
            self.clock.advance(0)
            for broker in self.brokers.values():
                isBusy = broker.step() or isBusy
            self.clock.advance(0)

    def pass_(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass."""
        self.turn()
        for _step in range(round(seconds / step)):
            self.clock.advance(step)
            self.turn()
