"""
L{pylogbroker.zookeeper.client} at a real ZooKeeper.
"""

from __future__ import annotations

import threading
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import make_acl
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from pylogbroker.errors import (
    AuthFailedException,
    ClosingException,
    ConfigurationError,
    NoAuthException,
    SessionExpiredException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import EPHEMERAL, SessionEvent
from pylogbroker.zookeeper import client as client_module
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.contracts import zookeeper
from tests.contracts.zookeeperbench import RealBench, freePort
from tests.integration.apachezookeeper import ZookeeperServerProcess
from tests.integration.zookeeperprocess import TICK_MS, sharedApacheZookeeper

reactor: Any = _reactor


class ContractTests(zookeeper.ZookeeperContract):
    """The client keeps the promises of all clients."""

    def setUp(self) -> Any:
        self.bench = RealBench(self, sharedApacheZookeeper().port, TICK_MS)
        return self.bench.begin()


class FaultTests(zookeeper.ZookeeperCase):
    """What only a real server and real threads can show."""

    def setUp(self) -> Any:
        self.bench = RealBench(self, sharedApacheZookeeper().port, TICK_MS)
        return self.bench.begin()

    def client(self, session_timeout: int = 4_000, **keywords: Any) -> Any:
        """A client without a wire."""
        client = ZookeeperClient(
            reactor,
            f"{sharedApacheZookeeper().servers}{self.bench.root}",
            session_timeout,
            **keywords,
        )
        self.addCleanup(client.close)
        return client

    async def test_hungReactor(self) -> None:
        """
        A reactor that hangs loses its session and its ephemeral nodes while it hangs; when it is
        back it hears of it and has a new session.
        """
        client = self.client(session_timeout=600)
        await client.connect(zookeeper.CONNECT_MS)
        events, session = self.events(client), client.session_id
        await client.create("/e", flags=EPHEMERAL)
        result, watch = client.get_and_watch("/e")
        await result
        outcome = self.outcome(watch)
        hung = threading.Event()
        left: list[Any] = []

        def look() -> None:
            other = KazooClient(f"{sharedApacheZookeeper().servers}{self.bench.root}")
            other.start()
            for _look in range(6_000):
                left[:] = [other.exists("/e")]
                if left == [None] or hung.wait(0.05):
                    break
            other.stop()
            other.close()
            hung.set()

        looking = threading.Thread(target=look)
        looking.start()
        hung.wait(600)  # the reactor hangs here
        looking.join()
        self.assertEqual(left, [None])
        await self.until(lambda: events[-1:] == [SessionEvent.CONNECTED], "a new session")
        self.assertEqual(events.count(SessionEvent.EXPIRED), 1)
        self.assertEqual([type(found) for found in outcome], [SessionExpiredException])
        self.assertNotEqual(client.session_id, session)
        self.assertEqual(await client.create("/e", flags=EPHEMERAL), "/e")
        self.assertEqual(len(self.flushLoggedErrors()), 0)

    async def test_badCredentials(self) -> None:
        """
        Credentials that the server refuses are an error and the end of the session; the next one
        comes about without them.
        """
        client = self.client()
        await client.connect(zookeeper.CONNECT_MS)
        events = self.events(client)
        error = await zookeeper.failureOf(client.add_auth("nonsense", "user"))
        # The server refuses and ends the session; which of the two is heard of first is chance.
        self.assertIsInstance(error, (AuthFailedException, SessionExpiredException))
        await self.until(lambda: events[-1:] == [SessionEvent.CONNECTED], "a new session")
        self.assertEqual(events.count(SessionEvent.EXPIRED), 1)
        await client.create("/a")

    async def test_notAllowed(self) -> None:
        """What a node's access control list does not allow is an error of its own."""
        client = self.client()
        await client.connect(zookeeper.CONNECT_MS)
        await client.create("/a", acls=[make_acl("digest", "nobody:xxx", read=True)])
        self.assertIsInstance(await zookeeper.failureOf(client.set("/a", b"x")), NoAuthException)

    async def test_nonsense(self) -> None:
        """A request that cannot be made is an error of the request, not of the client."""
        client = self.client()
        await client.connect(zookeeper.CONNECT_MS)
        self.assertIs(
            type(await zookeeper.failureOf(client.create("/text", "no bytes"))), ZookeeperError
        )
        self.assertEqual(await client.create("/a"), "/a")

    async def test_slowServer(self) -> None:
        """
        A server that does not answer: requests end in time, closing does, and the client hears that
        the connection is lost.
        """
        server = ZookeeperServerProcess(reactor, self.mktemp(), tickMs=250)
        self.addCleanup(server.stop)
        await server.start()
        client = ZookeeperClient(reactor, server.servers, 2_000, requestTimeoutMs=300)
        self.addCleanup(client.close)
        await client.connect(zookeeper.CONNECT_MS)
        server.pause()
        begin = reactor.seconds()
        error: ZookeeperError | None = None
        while error is None:  # SIGSTOP may take a moment
            try:
                await client.get("/")
            except ZookeeperError as found:
                error = found
        self.assertIsInstance(error, ZookeeperTimeoutException)
        await client.close()
        # The server is still silent. Without limits both would wait for ever; no machine is so
        # slow.
        self.assertLess(reactor.seconds() - begin, 300)
        self.assertEqual((client.session_id, client.connected), (0, False))
        server.resume()

    async def test_restart(self) -> None:
        """
        A server that is killed and comes back finds the same session and the same nodes; watches
        have not fired.
        """
        # Java may take a while to come back, and a session has twenty ticks at most.
        server = ZookeeperServerProcess(reactor, self.mktemp(), tickMs=6_000)
        self.addCleanup(server.stop)
        await server.start()
        client = ZookeeperClient(reactor, server.servers, 120_000)
        self.addCleanup(client.close)
        await client.connect(zookeeper.CONNECT_MS)
        session = client.session_id
        await client.create("/e", b"x", flags=EPHEMERAL)
        result, watch = client.get_and_watch("/e")
        await result
        outcome = self.outcome(watch)
        await server.kill()
        await self.until(lambda: not client.connected, "the end of the connection")
        await server.start()
        await self.until(lambda: client.connected, "the connection")
        self.assertEqual((await client.get("/e"))[1].ephemeralOwner, session)
        self.assertEqual((client.session_id, outcome), (session, []))

    async def test_listenerFails(self) -> None:
        """A listener that raises does not keep others from being told."""
        client = self.client()
        client.set_session_callback(lambda event: 1 / 0)
        events = self.events(client)
        await client.connect(zookeeper.CONNECT_MS)
        self.assertEqual(events, [SessionEvent.CONNECTED])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        client.set_session_callback(lambda event: None)

    async def test_unreachableSaysWhy(self) -> None:
        """The error of a connection that did not come about has the last reason in it."""
        client = ZookeeperClient(reactor, f"127.0.0.1:{freePort()}", 2_000)
        self.assertIn("refused", str(await zookeeper.failureOf(client.connect(600))))
        client = ZookeeperClient(reactor, "no.such.host.invalid:2181", 2_000)
        self.assertIn("no.such.host.invalid", str(await zookeeper.failureOf(client.connect(600))))

    async def test_tooManyWait(self) -> None:
        """There is a limit on what may wait for a connection."""
        self.patch(client_module, "WAITING_COUNT_MAX", 2)
        client = self.client()
        held = [Deferred.fromCoroutine(zookeeper.failureOf(client.get("/"))) for _ in range(2)]
        self.assertIn("waiting already", str(await zookeeper.failureOf(client.get("/"))))
        await client.close()
        for each in held:
            self.assertIsInstance(await each, ClosingException)

    async def test_reprAndServers(self) -> None:
        """
        A client shows its servers and its session; a list of servers that is none is refused with
        its key.
        """
        client = self.client()
        self.assertIn("not connected, session 0x0", repr(client))
        await client.connect(zookeeper.CONNECT_MS)
        self.assertIn(f" connected, session {client.session_id:#x}", repr(client))
        for servers in ("", "host:port"):
            self.assertIn(
                f"zk.connect={servers}:",
                str(self.assertRaises(ConfigurationError, ZookeeperClient, reactor, servers)),
            )
