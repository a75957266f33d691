"""
Tests for L{pylogbroker.zookeeper.client} at a scripted server: what kazoo may do that no real
server makes it do on purpose. The rest of its promises is in C{tests.contracts.zookeeper} and
C{tests.integration.test_zookeeper}.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import MarshallingError
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.logger import LogEvent, capturedLogs, formatEvent

from pylogbroker.errors import ZookeeperError, ZookeeperTimeoutException
from pylogbroker.interfaces import SessionEvent
from pylogbroker.zookeeper import client as module
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.contracts import zookeeper
from tests.zookeeper.scriptedserver import ScriptedZookeeper

reactor: Any = _reactor


class ClockedReactor(Clock):
    """The real reactor's thread, and time that the test moves."""

    callFromThread = staticmethod(reactor.callFromThread)


class ClientTests(zookeeper.ZookeeperCase):
    """A client on a clock, and a server that does what the test says."""

    def setUp(self) -> None:
        self.clock = ClockedReactor()
        self.server = ScriptedZookeeper()
        port = reactor.listenTCP(0, self.server, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.addCleanup(self.server.drop)
        self.make(f"127.0.0.1:{port.getHost().port}")

    def make(self, servers: str, **keywords: Any) -> None:
        self.client = ZookeeperClient(self.clock, servers, 2_000, requestTimeoutMs=200, **keywords)
        self.addCleanup(self.client.close)
        self.kazoo: Any = self.client._kazoo
        self.told = self.events(self.client)

    def hasLogged(self, events: Sequence[LogEvent], count: int) -> bool:
        return len(events) == count

    async def session(self, number: int) -> None:
        """The server grants a session, over a new connection if there is one."""
        self.server.sessionId = number
        if self.client.connected:
            self.server.drop()
            await self.until(lambda: self.client.session_id == number, "another session")
        else:
            await self.client.connect()

    def test_calls(self) -> None:
        """
        Calls that were written for txzookeeper 0.9.8 have the arguments that they had there, but
        for the differences that the module names.
        """
        calls = {
            "add_auth": "scheme identity",
            "create": "path data acls flags",
            "delete": "path version",
            "exists": "path",
            "exists_and_watch": "path",
            "get": "path",
            "get_and_watch": "path",
            "get_children": "path",
            "get_children_and_watch": "path",
            "set": "path data version",
            "set_session_callback": "callback",
            "sync": "path",
        }
        self.assertEqual(
            {
                name: " ".join(inspect.signature(getattr(self.client, name)).parameters)
                for name in calls
            },
            calls,
        )

    async def test_unannounced(self) -> None:
        """A new session that kazoo has not announced is the end of the one before."""
        await self.session(5)
        await self.session(6)
        events = [
            SessionEvent.CONNECTED,
            SessionEvent.SUSPENDED,
            SessionEvent.EXPIRED,
            SessionEvent.CONNECTED,
        ]
        self.assertEqual((self.told, self.client.session_id), (events, 6))

    async def test_granted(self) -> None:
        """
        The time-out of a session is the one that the server grants, and an expired session does not
        change it.
        """
        self.assertEqual(self.client.session_timeout, 2_000)
        self.server.sessionTimeoutMs = 3_000
        await self.session(5)
        self.assertEqual(self.client.session_timeout, 3_000)
        self.server.sessionTimeoutMs = 0
        self.server.drop()
        await self.until(lambda: SessionEvent.EXPIRED in self.told, "the end of the session")
        self.assertEqual(self.client.session_timeout, 3_000)

    async def test_slowConnection(self) -> None:
        """
        A caller that waits longer than two seconds for a connection is not left without a word.
        """
        self.make("127.0.0.1:1")
        with capturedLogs() as events:
            connecting = self.client.connect(30_000)
            await self.until(lambda: self.client._kazooLog.warning, "kazoo's first attempt")
            self.clock.advance(1.9)
            self.assertEqual(events, [])
            self.clock.advance(0.2)
        self.assertEqual(len(events), 1)
        text = formatEvent(events[0])
        self.assertIn("No connection to ZooKeeper at 127.0.0.1:1 yet (", text)
        self.assertIn("refused", text)
        self.assertIn("trying for 30 s", text)
        self.clock.advance(28)
        self.assertIsInstance(await zookeeper.failureOf(connecting), ZookeeperTimeoutException)

    async def test_quickConnection(self) -> None:
        """A connection that comes about in time leaves no timer behind."""
        await self.session(5)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    async def test_notStarted(self) -> None:
        """A machine that has no threads left is an error of C{connect}."""
        self.patch(self.kazoo, "start_async", lambda: 1 / 0)
        error = await zookeeper.failureOf(self.client.connect())
        self.assertIs(type(error), ZookeeperError)
        self.assertIn("ZeroDivisionError", str(error))

    def test_attempts(self) -> None:
        """
        Several attempts to connect fall into a session's time, or a server that comes back would be
        found too late.
        """
        for sessionTimeoutMs, seconds in (
            (1_200, 0.2),
            (6_000, 1.0),
            (60_000, module.RETRY_DELAY_MAX),
        ):
            client = module.ZookeeperClient(reactor, "127.0.0.1:1", sessionTimeoutMs)
            self.assertAlmostEqual(client._kazoo._conn_retry.max_delay, seconds)

    async def test_ends(self) -> None:
        """A kazoo that ends by itself is started again, and again if that does not work."""
        await self.session(5)
        starts: list[int] = []
        started: Deferred[None] = Deferred()

        def start() -> None:
            starts.append(1)
            if len(starts) < 3:
                raise OSError("no threads")
            reactor.callFromThread(started.callback, None)

        self.patch(self.kazoo, "start_async", start)
        with capturedLogs() as events:
            await deferToThread(self.kazoo.stop)
            for count in (1, 2):
                await self.until(partial(self.hasLogged, events, count), "a failed start")
                self.clock.advance(module.RETRY_DELAY_MAX)
            await started
        self.assertEqual(
            (len(starts), self.told), (3, [SessionEvent.CONNECTED, SessionEvent.EXPIRED])
        )
        self.assertEqual(len([event for event in events if "no threads" in formatEvent(event)]), 2)

    async def test_refused(self) -> None:
        """
        One whose credentials are refused tries again, but not at once, and not when the client is
        closed meanwhile.
        """
        self.server.refusesCredentials = True
        self.make(self.client.servers, digest="user:wrong")
        begin, starts = self.kazoo.start_async, []

        def start() -> Any:
            starts.append(1)
            return begin()

        self.patch(self.kazoo, "start_async", start)
        connecting = self.client.connect()
        await self.until(lambda: SessionEvent.EXPIRED in self.told, "the refusal")
        self.clock.advance(module.RETRY_DELAY_MAX / 2)
        self.assertEqual(len(starts), 1)
        await self.client.close()
        self.clock.advance(module.RETRY_DELAY_MAX)
        self.assertIsInstance(await zookeeper.failureOf(connecting), ZookeeperError)
        self.assertEqual(len(starts), 1)
        events = [SessionEvent.CONNECTED, SessionEvent.EXPIRED, SessionEvent.CLOSED]
        self.assertEqual(self.told, events)

    async def test_lateAnswer(self) -> None:
        """An answer that comes after its time is dropped, and makes room for others."""
        await self.session(5)
        results = [self.kazoo.handler.async_result() for _ in range(2)]
        asking = self.client._ask("get", "/a", lambda path: results[0])
        self.clock.advance(0.2)
        self.assertIsInstance(await zookeeper.failureOf(asking), ZookeeperTimeoutException)
        self.assertEqual(len(self.client._inFlight), 1)
        results[0].set("late")
        await self.until(lambda: not self.client._inFlight, "the late answer")

    async def test_unknownError(self) -> None:
        """An error of kazoo's that has no name here is one all the same, with the path."""
        await self.session(5)
        result = self.kazoo.handler.async_result()
        asking = self.client._ask("get", "/a", lambda path: result)
        result.set_exception(MarshallingError())
        error = await zookeeper.failureOf(asking)
        self.assertIs(type(error), ZookeeperError)
        self.assertIn("get /a: MarshallingError", str(error))

    async def test_notSentLate(self) -> None:
        """
        What waits for its turn longer than its time is never sent, and neither is what stands
        behind it forgotten.
        """
        self.patch(module, "IN_FLIGHT_COUNT_MAX", 1)
        await self.session(5)
        results = [self.kazoo.handler.async_result() for _ in range(2)]
        first = self.client._ask("get", "/1", lambda path: results[0])
        second = self.client._ask("get", "/2", lambda path: self.fail("sent"))
        self.clock.advance(0.2)
        for each in (first, second):
            self.assertIsInstance(await zookeeper.failureOf(each), ZookeeperTimeoutException)
        third = self.client._ask("get", "/3", lambda path: results[1])
        results[0].set("late")
        await zookeeper.pause(0)
        results[1].set("in time")
        self.assertEqual(await third, "in time")

    async def test_closing(self) -> None:
        """All who close are told; what cannot be ended in time is left to the server, and said."""
        go = threading.Event()
        self.addCleanup(go.set)
        self.client._sessionTimeoutMs = 50
        self.patch(self.kazoo, "stop", lambda: go.wait(10))
        with capturedLogs() as events:
            first, second = self.client.close(), self.client.close()
            self.clock.advance(0.05)
            await first
            await second
        self.assertEqual(self.told, [SessionEvent.CLOSED])
        self.assertTrue(
            any("The server ends the session" in formatEvent(event) for event in events)
        )

    async def test_startAfterClose(self) -> None:
        """A start that comes late does not bring a closed client back."""
        self.patch(self.kazoo, "start_async", lambda: self.fail("started"))
        await self.client.close()
        self.client._begin()

    def test_biteFails(self) -> None:
        """A session that cannot be ended is logged, and the watchdog goes on."""
        self.patch(self.kazoo, "stop", lambda: 1 / 0)
        self.client._onHang()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    async def test_removedWhileTold(self) -> None:
        """A listener that another one removes is not told any more."""
        late: list[SessionEvent] = []
        removals: list[Any] = []
        self.client.add_session_listener(lambda event: removals[0]())
        removals.append(self.client.add_session_listener(late.append))
        await self.session(5)
        self.assertEqual(late, [])
