"""
Connections between processes of a topology, over a memory network whose far end is the test.
"""

from __future__ import annotations

import socket
from random import Random

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.errors import WireError
from pylogbroker.testing.network import MemoryNetwork
from pylogbroker.topologies import connection as connectionmodule
from pylogbroker.topologies.connection import CONNECT_TIMEOUT, TopologyClient, TopologyConnection
from pylogbroker.topologies.messages import (
    BATCH,
    Confirm,
    Control,
    Welcome,
    encodeBatch,
    encodeControl,
)


class _Told:
    """Keeps what connections say."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def connected(self, connection: TopologyConnection) -> None:
        self.said.append("connected")

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        self.said.append(message)
        if message == Confirm(13):
            raise WireError("no such batch")
        if message == Confirm(14):
            connection.close("enough")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        self.said.append(body)

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        self.said.append(f"disconnected: {reason}")


class TopologyClientTests(SynchronousTestCase):
    """A client that keeps its connection."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.told = _Told()
        self.client = TopologyClient(
            self.clock, self.network.endpoint, self.told, Random(16).random
        )

    def test_frames(self) -> None:
        """Frames arrive whole, however they are cut up; what is sent is framed."""
        self.client.goTo("a:1")
        line = self.network.accept()
        self.assertTrue(line.transport.isNoDelay)
        data = encodeControl(Welcome(5)) + encodeBatch(1, []) + encodeControl(Confirm(3))
        for at in range(0, len(data), 3):
            line.deliver(data[at : at + 3])
        batch = bytes([BATCH]) + (1).to_bytes(8, "big")
        self.assertEqual(self.told.said, ["connected", Welcome(5), batch, Confirm(3)])
        assert self.client.connection is not None
        self.client.connection.send(Confirm(9))
        self.network.turn()
        self.assertEqual(line.take(), encodeControl(Confirm(9)))

    def test_errors(self) -> None:
        """
        What cannot be read, or is refused by the handler, ends the connection, and what is behind
        it is not read; another one is made.
        """
        wrong = [b"\xff\xff\xff\xff", b"\0\0\0\x02\0\xc1", encodeControl(Confirm(13))]
        self.client.goTo("a:1")
        for number, data in enumerate(wrong, 1):
            line = self.network.accept()
            line.deliver(data + encodeControl(Welcome(1)))
            self.assertIsInstance(self.told.said[-1], str)
            self.assertNotIn(Welcome(1), self.told.said)
            self.assertIsNone(self.client.connection)
            self.clock.advance(2)
            self.assertEqual(self.client.attempt, number)
        self.assertEqual(self.told.said[-1], "disconnected: no such batch")

    def test_closedByTheHandler(self) -> None:
        """A connection that its handler has closed says nothing more, and takes nothing."""
        self.client.goTo("a:1")
        line = self.network.accept()
        connection = self.client.connection
        assert connection is not None
        line.deliver(encodeControl(Confirm(14)) + encodeControl(Welcome(1)))
        self.assertEqual(self.told.said, ["connected", Confirm(14), "disconnected: enough"])
        connection.write(b"more")
        connection.close("again")
        connection.abort("again")
        connection.dataReceived(encodeControl(Welcome(1)))
        self.network.turn()
        self.assertEqual((line.take(), len(self.told.said)), (b"", 3))

    def test_again(self) -> None:
        """
        It connects again with growing delays, and at once as before when it was welcomed; also
        when the far end takes too long to accept.
        """
        self.client.goTo("a:1")
        delays = []
        for _ in range(12):
            self.network.refuse(ConnectionDone())
            began = self.clock.seconds()
            while not self.network.waiting:
                self.clock.advance(0.005)
            delays.append(self.clock.seconds() - began)
        self.assertLess(delays[0], 0.03)
        self.assertGreater(max(delays), 0.45)
        self.assertLess(max(delays), 1.1)
        self.clock.advance(CONNECT_TIMEOUT)
        self.assertEqual(self.network.waiting, [])
        self.clock.advance(1.1)
        line = self.network.accept()
        self.client.welcomed()
        line.cut()
        self.clock.advance(0.03)
        self.assertEqual(len(self.network.waiting), 1)

    def test_anotherAddress(self) -> None:
        """It leaves an address for another one, or for none, connecting or connected."""
        self.client.goTo("a:1")
        self.client.goTo("a:1")
        self.client.goTo("b:1")
        self.assertEqual([each.state for each in self.network.attempts], ["cancelled", "waiting"])
        self.network.accept()
        self.client.goTo("c:1")
        self.assertEqual(self.told.said[-1], "disconnected: it is to connect to another address")
        self.assertEqual([each.name for each in self.network.waiting], ["c:1"])
        self.network.accept()
        self.client.goTo(None)
        self.clock.advance(10)
        self.assertEqual(self.network.waiting, [])
        self.assertIsNone(self.client.connection)


class _Filling(_Told):
    """Writes more than kernels hold, and tells when the connection is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: Deferred[None] = Deferred()
        self.isKeptAlive = False

    def connected(self, connection: TopologyConnection) -> None:
        super().connected(connection)
        handle = connection.transport.getHandle()
        self.isKeptAlive = bool(handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        connection.write(bytes(64 << 20))

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        super().disconnected(connection, reason)
        if not self.lost.called:
            self.lost.callback(None)


class SilenceTests(TestCase):
    """A connection by TCP whose other end does nothing."""

    timeout = 60

    async def test_lost(self) -> None:
        """It is lost, also when nothing closes it; an idle one is asked whether it is there."""
        self.patch(connectionmodule, "SILENCE_SECONDS_MAX", 0.3)
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        told = _Filling()
        client = TopologyClient(
            reactor,
            lambda address: TCP4ClientEndpoint(reactor, "127.0.0.1", silent.getsockname()[1]),
            told,
            Random(16).random,
        )
        self.addCleanup(client.goTo, None)
        client.goTo("a:1")
        await told.lost
        self.assertIn("disconnected", str(told.said[1]))
        self.assertTrue(told.isKeptAlive)
