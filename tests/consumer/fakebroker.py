"""
Brokers at the far ends of puppet lines: logs that are bytes, and the answers that spec-0.7 gives.
Nothing takes time but by the clock.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogbroker.cluster import paths
from pylogbroker.cluster.znodes import BrokerRegistration, creatorId, encodeNumber
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka07.requests import Fetch, MultiFetch, Offsets, decodeRequest
from pylogbroker.protocol.kafka07.responses import encodeOffsets, fetchHeader, multiFetchHeader
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.network import MemoryEndpoint, MemoryNetwork, MemoryPeer
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import EARLIEST
from pylogbroker.zookeeper.ephemeral import claim


class FarLog:
    """
    A partition.

    @ivar start: offset of the first byte that is left.
    @ivar code: the error code that it answers every fetch with, 0 for none.
    """

    def __init__(self) -> None:
        self.data = b""
        self.start = 0
        self.code = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def append(self, *payloads: bytes, codec: int = 0) -> None:
        self.data += encodeSet(payloads, codec)

    def read(self, fetch: Fetch) -> tuple[int, bytes]:
        if self.code:
            return self.code, b""
        if not self.start <= fetch.offset <= self.end:
            return 1, b""
        position = fetch.offset - self.start
        return 0, self.data[position : position + fetch.sizeMax]


class FarBroker:
    """
    @ivar logs: by topic and partition; made when they are asked for.
    @ivar asked: all requests that came.
    @ivar isUp: whether it takes connections and answers.
    @ivar isHolding: whether it answers nothing for now; see L{answer}.
    """

    def __init__(self, clock: Clock, number: int) -> None:
        self.clock = clock
        self.number = number
        self.logs: dict[tuple[str, int], FarLog] = {}
        self.asked: list[Any] = []
        self.isUp = True
        self.isHolding = False
        self.network = MemoryNetwork(clock)
        self.lines: list[MemoryPeer] = []
        self._decoders: dict[MemoryPeer, FrameDecoder] = {}
        self._held: list[tuple[MemoryPeer, bytes]] = []

    def log(self, topic: str, partition: int) -> FarLog:
        return self.logs.setdefault((topic, partition), FarLog())

    def endpoint(self) -> MemoryEndpoint:
        return self.network.endpoint(f"broker{self.number}")

    def serve(self) -> bool:
        """Do what there is to do. Returns whether there was anything."""
        busy = False
        for attempt in self.network.waiting:
            busy = True
            if self.isUp:
                line = attempt.accept()
                self.lines.append(line)
                self._decoders[line] = FrameDecoder(1 << 20)
            else:
                attempt.refuse()
        for line in list(self.lines):
            decoder = self._decoders[line]
            decoder.feed(line.take())
            while (body := decoder.take()) is not None:
                busy = True
                request = decodeRequest(body)
                self.asked.append(request)
                self._held.append((line, self._answer(request)))
            if line.reason is not None:
                self.lines.remove(line)
            elif line.isEnded:
                line.end()
        if not self.isHolding:
            self.answer()
        return busy

    def answer(self) -> None:
        """Send what was held back."""
        held, self._held = self._held, []
        for line, data in held:
            if line.reason is None:
                line.deliver(data)

    def stop(self) -> None:
        """Refuse and cut all."""
        self.isUp = False
        self._held = []
        for line in self.lines:
            line.cut()
        self.lines = []

    def _answer(self, request: Any) -> bytes:
        if isinstance(request, MultiFetch):
            parts = [self.log(each.topic, each.partition).read(each) for each in request.fetches]
            return multiFetchHeader([len(data) for _code, data in parts]) + b"".join(
                fetchHeader(code, len(data)) + data for code, data in parts
            )
        assert isinstance(request, Offsets)
        log = self.log(request.topic, request.partition)
        return encodeOffsets(
            [log.start if request.time == EARLIEST else log.end][: request.countMax]
        )


class FarCluster:
    """
    Brokers and a ZooKeeper, in which they are registered by hand.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.zookeeper = FakeZookeeper(clock)
        self.brokers: dict[int, FarBroker] = {}
        self.sessions: dict[int, Any] = {}
        self.admin = self.zookeeper.client()
        self.admin.connect()
        self.advance(0)

    def addBroker(self, number: int, topics: dict[str, int]) -> FarBroker:
        """A broker comes, or comes back."""
        broker = self.brokers.setdefault(number, FarBroker(self.clock, number))
        broker.isUp = True
        session = self.sessions[number] = self.zookeeper.client()
        session.connect()
        self.advance(0)
        host = f"host{number}"
        registration = BrokerRegistration(creatorId(host, 1315436360737), host, 9092)
        self.do(claim(session, paths.brokerId(number), registration.encode()))
        for topic, count in topics.items():
            self.addTopic(number, topic, count)
        return broker

    def addTopic(self, number: int, topic: str, count: int) -> None:
        self.do(claim(self.sessions[number], paths.topicBroker(topic, number), encodeNumber(count)))

    def removeBroker(self, number: int) -> None:
        self.brokers[number].stop()
        self.sessions.pop(number).close()

    def endpointFor(self, registration: BrokerRegistration) -> MemoryEndpoint:
        return self.brokers[
            int(registration.host.removeprefix("host").partition(".")[0])
        ].endpoint()

    def turn(self) -> None:
        """Let everything happen that takes no time."""
        for _round in range(10_000):
            self.clock.advance(0)
            busy = [broker.serve() for broker in self.brokers.values()]
            due = [
                call
                for call in self.clock.getDelayedCalls()
                if call.getTime() <= self.clock.seconds()
            ]
            if not any(busy) and not due:
                return
        raise AssertionError("it does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, call by call."""
        end = self.clock.seconds() + seconds
        self.turn()
        while True:
            due = [call.getTime() for call in self.clock.getDelayedCalls()]
            if not due or min(due) > end:
                break
            self.clock.advance(min(due) - self.clock.seconds())
            self.turn()
        self.clock.advance(end - self.clock.seconds())
        self.turn()

    def do(self, work: Any) -> Any:
        """The result of a coroutine or a Deferred that needs no time."""
        outcome: list[Any] = []
        doing = work if isinstance(work, Deferred) else Deferred.fromCoroutine(work)
        doing.addBoth(outcome.append)
        self.turn()
        assert outcome, "it is not done yet"
        if hasattr(outcome[0], "raiseException"):
            outcome[0].raiseException()
        return outcome[0]

    def write(self, path: str, data: bytes) -> None:
        """Somebody writes a persistent node."""
        from pylogbroker.zookeeper.ephemeral import write

        self.do(write(self.admin, path, data))
