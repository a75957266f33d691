"""
The applications of a simulated cluster: members of the group that read and now and then stop to
think, and producers that number what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from pylogbroker.client.discovery import ZookeeperDiscovery
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import PylogbrokerError, UnknownOutcomeError
from pylogbroker.producer.producer import Producer
from pylogbroker.types import PartitionId
from tests.producer.puppets import PuppetConnections
from tests.simulation.ledger import FAILED, SENT, UNKNOWN, Ledger, Sender, Sending
from tests.simulation.world import Process, World

Connect = Callable[..., ConsumerConnector]
"""Makes a member, of the arguments of L{ConsumerConnector}."""


class SimulatedMember:
    """
    A consumer of the group, from its start to its end. What it is handed counts as done in that
    moment.

    @ivar name: of it in the ledger.
    @ivar isOver: whether it has left, was killed, or gave up.
    @ivar isLeaving: whether it was told to leave, or does so by itself.
    @ivar failures: what went wrong that must not.
    """

    def __init__(
        self,
        world: World,
        session: Any,
        name: str,
        properties: Mapping[str, str],
        ledger: Ledger,
        random: Random,
        connect: Connect = ConsumerConnector,
    ) -> None:
        self.world = world
        self.session = session
        self.name = name
        self.isOver = self.isLeaving = False
        self.failures: list[str] = []
        self.process = process = Process(world, name)
        self._ledger = ledger
        self._random = random
        self._streamCount = random.choice((1, 1, 2))
        self._isByFilter = random.random() < 0.3
        self._pauseMax = random.choice((0.0, 0.05, 0.8))
        chance = Random(random.getrandbits(32))
        self.connector = connect(
            process,
            properties,
            session,
            hostName=name,
            random=chance,
            endpointFor=lambda broker: process.network.endpoint(f"{broker.host}:{broker.port}"),
        )

    def start(self, topic: str) -> None:
        """Join."""
        Deferred.fromCoroutine(self._live(topic)).addErrback(self._unforeseen)

    async def _live(self, topic: str) -> None:
        try:
            await self.connector.connect()
            if self._isByFilter:
                streams = await self.connector.createMessageStreamsByFilter(
                    whitelist(f"{topic}.*"), self._streamCount
                )
            else:
                streams = (await self.connector.createMessageStreams({topic: self._streamCount}))[
                    topic
                ]
        except PylogbrokerError:
            self.leave()
            return
        for stream in streams:
            Deferred.fromCoroutine(self._read(stream)).addErrback(self._unforeseen)

    async def _read(self, stream: MessageStream) -> None:
        async for message in stream:
            if self.process.isDead:
                return
            place = PartitionId(message.topic, message.partition)
            self._ledger.deliveries.append(
                Sender(self.world.now, self.name, place, message.value, message.nextOffset)
            )
            if self._pauseMax and self._random.random() < 0.3:
                await deferLater(self.process, self._random.random() * self._pauseMax)  # type: ignore[arg-type] # it needs what a reactor has

    def _unforeseen(self, failure: Failure) -> None:
        if not self.process.isDead:
            self.failures.append(f"{self.name}: {failure.getTraceback()}")

    def leave(self) -> None:
        """In order."""
        if not self.isLeaving and not self.process.isDead:
            self.isLeaving = True
            self.connector.shutdown().addCallback(self._left)

    def _left(self, _result: object) -> None:
        self.isOver = True
        self.session.close()
        self.process.kill()

    def crash(self) -> None:
        """Its session stays, until ZooKeeper misses it."""
        self.isOver = True
        self.trouble()
        self.process.kill()

    def trouble(self, seconds: float = 0) -> None:
        """
        From now on, and for so long, it has reason to get something again, or to leave something to
        others again.
        """
        self._ledger.troubles.setdefault(self.name, []).append(
            (self.world.now, self.world.now + seconds)
        )


class SimulatedProducer:
    """
    A producer that asks for confirmation.
    """

    def __init__(
        self,
        world: World,
        session: Any,
        name: str,
        properties: Mapping[str, str],
        ledger: Ledger,
        random: Random,
    ) -> None:
        self.session = session
        self.name = name
        self.process = Process(world, name)
        self.isClosed = False
        self._ledger = ledger
        self._random = random
        self._count = 0
        chance = Random(random.getrandbits(32)).random
        connections = PuppetConnections(self.process.network, chance)
        self._discovery = ZookeeperDiscovery(self.process, session, random=chance)
        self._view: object = None
        self._viewCount = 0
        properties = {"zk.connect": "double", "confirm": "true", **properties}
        self.producer = Producer(
            self.process,
            properties,
            discovery=self._discovery,
            connectionPool=connections,
            random=chance,
        )
        self._discovery.listen(self._brokerChanged)

    def _brokerChanged(self, number: int, broker: object) -> None:
        self._viewCount += 1

    def publish(self, topic: str, count: int) -> None:
        """Send so many messages."""
        view = list(self._discovery.partitions(topic))
        if view != self._view:
            self._view = view
            self._viewCount += 1
        for _message in range(count):
            key = self._random.choice((None, "a", "b", "c", "d"))
            payload = f"{self.name}-{self._count}-{key}".encode() + b"." * self._random.choice(
                (0, 10, 100)
            )
            self._ledger.sent(payload, Sending(self.name, key, self._count, self._viewCount))
            self._count += 1
            self.producer.send(topic, payload, key).addCallbacks(
                self._sent, self._notSent, callbackArgs=(payload,), errbackArgs=(payload,)
            )

    def _sent(self, _result: None, payload: bytes) -> None:
        self._ledger.outcomes[payload] = SENT

    def _notSent(self, failure: Failure, payload: bytes) -> None:
        failure.trap(PylogbrokerError)
        self._ledger.outcomes[payload] = UNKNOWN if failure.check(UnknownOutcomeError) else FAILED

    def close(self) -> None:
        """Send what is left, and end."""
        self.producer.close().addErrback(
            lambda failure: failure.trap(PylogbrokerError)
        ).addCallback(self._closed)

    def _closed(self, _result: object) -> None:
        counters = self.producer.counters
        self.isClosed = True
        self._ledger.repeats[self.name] = counters.repeatedCount, counters.retriedCount
        self.session.close()

    def faults(self) -> list[str]:
        """Whether its counters add up."""
        counters = self.producer.counters
        if (
            counters.acceptedCount != self._count
            or counters.acceptedCount
            != counters.writtenCount + counters.failedCount + counters.unknownCount
        ):
            return [f"{self.name} has sent {self._count} messages and counts {counters}"]
        return []
