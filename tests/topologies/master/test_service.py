"""
Tests for L{pylogbroker.topologies.master.service} and L{pylogbroker.topologies.control}: masters on
the loopback interface, with a ZooKeeper in memory.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent, readBody

from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient
from pylogbroker.topologies.connection import tcpEndpoints
from pylogbroker.topologies.control import ControlClient
from pylogbroker.topologies.master.service import MasterDeposedError, TopologyMaster
from pylogbroker.topologies.messages import (
    METRICS_MANAGER,
    STREAM_MANAGER,
    Control,
    Hello,
    Metrics,
    PlanPushed,
)
from pylogbroker.topologies.plan import ACTIVE, PAUSED, MasterLocation
from pylogbroker.topologies.statemanager import StateManager
from tests.topologies.definitions import DEFINITION

reactor: Any = _reactor
endpointTo = tcpEndpoints(reactor)


class StreamManagerStub:
    """
    What a stream manager does with a master: it connects to the announced one.

    @ivar plans: what it got.
    """

    def __init__(self, states: StateManager, container: int) -> None:
        self.plans: list[Any] = []
        self.client = ControlClient(
            reactor,
            endpointTo,
            lambda: 0.5,
            lambda _attempt: Hello(
                "words", STREAM_MANAGER, container, 5, address=f"host:{container}"
            ),
            self._received,
        )
        self._watch = states.watchMaster("words", self._announced)

    def _announced(self, location: MasterLocation | None) -> None:
        if location is not None:
            self.client.goTo(f"{location.host}:{location.port}")

    def _received(self, message: Control) -> None:
        assert isinstance(message, PlanPushed)
        self.plans.append(message.plan)

    def stop(self) -> None:
        self._watch.stop()
        self.client.goTo(None)


class TopologyMasterTests(TestCase):
    """Masters, one after the other."""

    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        self.server = FakeZookeeper(reactor)
        self.states = StateManager(reactor, await self.connected(), lambda: 0.5)
        await self.states.submit(DEFINITION)
        self.managers = [StreamManagerStub(self.states, each) for each in (1, 2)]
        for each in self.managers:
            self.addCleanup(each.stop)

    async def connected(self) -> FakeZookeeperClient:
        client = self.server.client()
        await client.connect()
        self.addCleanup(client.close)
        return client

    async def master(self) -> tuple[TopologyMaster, FakeZookeeperClient]:
        client = await self.connected()
        states = StateManager(reactor, client, lambda: 0.5)
        made = TopologyMaster(reactor, client, states, "words", 9)
        self.addCleanup(made.stop)
        return made, client

    def deposed(self, master: TopologyMaster) -> Deferred[Any]:
        """Why a master stops acting."""
        deposed: Deferred[Any] = master.whenDeposed()
        return self.assertFailure(deposed, MasterDeposedError)

    async def until(self, isTrue: Any) -> None:
        while not isTrue():
            await deferLater(reactor, 0.01)

    async def untilPlans(self, count: int) -> None:
        await self.until(lambda: all(len(each.plans) >= count for each in self.managers))

    async def status(self, master: TopologyMaster) -> Any:
        assert master.location is not None
        url = f"http://127.0.0.1:{master.location.statusPort}/status"
        answer = await Agent(reactor).request(b"GET", url.encode())
        return json.loads(await readBody(answer))

    async def test_plans(self) -> None:
        """Stream managers get the plan, and each change of the state; the status shows it."""
        master, _client = await self.master()
        self.assertEqual(master.status(), {"topology": "words", "isActing": False})
        await master.start()
        await self.untilPlans(1)
        await self.states.setState("words", PAUSED)
        await self.untilPlans(2)
        self.assertEqual(
            [[each.state for each in stub.plans] for stub in self.managers],
            [[ACTIVE, PAUSED]] * 2,
        )
        status = await self.status(master)
        self.assertEqual((status["state"], status["missing"]), (PAUSED, []))

    async def test_metrics(self) -> None:
        """Metrics that a metrics manager sends are in the status."""
        master, _client = await self.master()
        await master.start()
        assert master.location is not None
        client = ControlClient(
            reactor, endpointTo, lambda: 0.5, lambda _attempt: Hello("words", METRICS_MANAGER, 2, 6)
        )
        self.addCleanup(client.goTo, None)
        metrics = Metrics(2, "2", "bolt", 7, 1_000, {"emitted": 4})
        self.assertFalse(client.send(metrics))
        client.goTo(f"127.0.0.1:{master.location.port}")
        await self.until(lambda: client.isWelcome)
        self.assertTrue(client.send(metrics))
        await self.until(lambda: master.status()["metrics"])
        self.assertEqual(master.status()["metrics"][0]["values"], {"emitted": 4})

    async def test_expired(self) -> None:
        """
        A master whose session has ended stops acting at once, and the next one, which has waited,
        pushes plans with higher epochs.
        """
        first, client = await self.master()
        await first.start()
        await self.untilPlans(1)
        second, _client = await self.master()
        starting = second.start()
        deposed = self.deposed(first)
        self.server.expire(client)
        self.assertIn("session with ZooKeeper has ended", str(await deposed))
        self.assertFalse(first.status()["isActing"])
        await starting
        await self.untilPlans(2)
        for stub in self.managers:
            self.assertEqual([each.epoch >> 32 for each in stub.plans[:2]], [1, 2])

    async def test_replaced(self) -> None:
        """A master that sees another one announced, or its node gone, stops acting."""
        for isReplaced in (True, False):
            master, client = await self.master()
            await master.start()
            deposed = self.deposed(master)
            node = "/topologies/words/master"
            if isReplaced:
                await client.set(node, b'{"host":"x","port":1,"statusPort":2,"epoch":3}')
            else:
                await client.delete(node)
            text = "0x3 is announced" if isReplaced else "its node is gone"
            self.assertIn(text, str(await deposed))
            self.assertFalse(master.status()["isActing"])
            await client.close()

    async def test_suspended(self) -> None:
        """While ZooKeeper cannot be reached the master pushes nothing; then it goes on."""
        master, client = await self.master()
        await master.start()
        await self.untilPlans(1)
        self.server.disconnect(client)
        await self.until(lambda: not master.status()["isActing"])
        self.server.reconnect(client)
        await self.until(lambda: master.status()["isActing"])
        await self.states.setState("words", PAUSED)
        await self.untilPlans(2)

    async def test_hostileConnections(self) -> None:
        """What is no control message, or comes before a hello, is cut off; others go on."""
        master, _client = await self.master()
        await master.start()
        await self.untilPlans(1)
        assert master.location is not None
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", master.location.port)
        for data in (
            b"\0\0\0\1\1",
            b"\0\0\0\2\0\xff",
            b"GET / HTTP/1.0\r\n\r\n",
            b"\0\0\0\x23\0\x83\xa4type\xa7Confirm\xa6number\1" + b"\0" * 20,
        ):
            ended: Deferred[None] = Deferred()

            class Raw(Protocol):
                def connectionLost(self, reason: Any = None, ended: Any = ended) -> None:
                    ended.callback(None)

            protocol: Any = await endpoint.connect(Factory.forProtocol(Raw))
            protocol.transport.write(data)
            await ended
        await self.states.setState("words", PAUSED)
        await self.untilPlans(2)
