"""
What every L{pylogbroker.interfaces.IZookeeper} promises: the suite runs on the double always, and
on a real server with kazoo in the integration run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from pylogbroker.errors import (
    BadVersionException,
    ClosingException,
    ConnectionLossException,
    MultiFailedException,
    NoChildrenForEphemeralsException,
    NodeExistsException,
    NoNodeException,
    NotEmptyException,
    RequestSizeException,
    SessionExpiredException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import (
    EPHEMERAL,
    SEQUENCE,
    CheckOperation,
    CreateOperation,
    DeleteOperation,
    IZookeeper,
    SessionEvent,
    SetOperation,
    WatchEvent,
)

reactor: Any = _reactor

SESSION_MS = 4_000
SECONDS_MAX = 300.0
CONNECT_MS = 120_000
"""For a server that shares its machine with much else."""
"""How long something may take that must happen."""


class Bench(Protocol):
    """
    A server, and what may befall its clients.

    @ivar sessionTimeoutMsMin: the shortest session that it gives.
    """

    sessionTimeoutMsMin: int

    def client(self, chroot: str = "", session_timeout: int = SESSION_MS) -> Any:
        """A client, not connected, whose connection can be cut."""
        ...

    async def disconnect(self, client: Any) -> None:
        """Cut its connection, and let it make no other; returns when it is told."""
        ...

    async def reconnect(self, client: Any) -> None:
        """Let it connect again; may return before it has."""
        ...

    async def end(self, client: Any) -> None:
        """End its session on the server, while it is disconnected."""
        ...

    async def stop(self) -> None:
        """Let nobody reach the server."""
        ...


async def failureOf(call: Awaitable[Any]) -> BaseException:
    """The error that it ends with."""
    try:
        result = await call
    except Exception as error:
        return error
    raise AssertionError(f"it did not fail, it gave {result!r}")


async def pause(seconds: float = 0.05) -> None:
    """Let what is on its way arrive."""
    await deferLater(reactor, seconds)


class ZookeeperCase(TestCase):
    """What tests of clients share."""

    timeout = 60

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that must happen."""
        begin = reactor.seconds()
        while not condition():
            if reactor.seconds() - begin > SECONDS_MAX:
                self.fail(f"it has not happened: {what}")
            await pause(0.01)

    def events(self, client: Any) -> list[SessionEvent]:
        """What the client is told from now on."""
        events: list[SessionEvent] = []
        client.add_session_listener(events.append)
        return events

    def outcome(self, watch: Deferred[Any]) -> list[Any]:
        """What a watch gives, as it comes: an event, or an exception."""
        outcome: list[Any] = []
        watch.addCallbacks(outcome.append, lambda failure: outcome.append(failure.value))
        return outcome


class ZookeeperContract(ZookeeperCase):
    """
    Sub-classes set C{bench} in C{setUp}, and name this C{zookeeper.ZookeeperContract}, so that
    trial does not find it, bare, in their module.

    @ivar bench: under test.
    """

    bench: Bench

    # -- means

    async def connected(self, **keywords: Any) -> Any:
        """
        A client that is connected, and closed at the end. It provides L{IZookeeper}, as mypy sees
        here.
        """
        client: IZookeeper = self.bench.client(**keywords)
        self.addCleanup(client.close)
        await client.connect(CONNECT_MS)
        return client

    async def expire(self, client: Any) -> None:
        """Let its session expire, and wait for the next."""
        before = client.session_id
        await self.bench.disconnect(client)
        await self.bench.end(client)
        await self.bench.reconnect(client)
        await self.until(lambda: client.connected and client.session_id != before, "a new session")

    async def fails(self, kind: type[ZookeeperError], text: str, call: Awaitable[Any]) -> None:
        error = await failureOf(call)
        self.assertIs(type(error), kind, error)
        self.assertIn(text, str(error))

    # -- requests

    async def test_createAndGet(self) -> None:
        """A node that was created is there with its data, persistent; its path is the answer."""
        client = await self.connected()
        self.assertEqual(await client.create("/a", b"one"), "/a")
        data, stat = await client.get("/a")
        self.assertEqual(data, b"one")
        self.assertEqual(
            (stat.version, stat.cversion, stat.ephemeralOwner, stat.numChildren), (0, 0, 0, 0)
        )
        self.assertEqual(stat.czxid, stat.mzxid)
        self.assertEqual(await client.create("/a/b"), "/a/b")
        self.assertEqual((await client.get("/a/b"))[0], b"")
        self.assertEqual((await client.get("/a"))[1].numChildren, 1)

    async def test_createFails(self) -> None:
        """
        Without a parent, on top of another node, and under an ephemeral one: each is an error of
        its own that names the path.
        """
        client = await self.connected()
        await self.fails(NoNodeException, "/a/b", client.create("/a/b"))
        await client.create("/a")
        await self.fails(NodeExistsException, "/a", client.create("/a"))
        await client.create("/e", flags=EPHEMERAL)
        await self.fails(NoChildrenForEphemeralsException, "/e/x", client.create("/e/x"))

    async def test_sequence(self) -> None:
        """Nodes with a sequence number have ten digits more in their path, and those grow."""
        client = await self.connected()
        first = await client.create("/n-", flags=SEQUENCE)
        second = await client.create("/n-", flags=SEQUENCE | EPHEMERAL)
        for path in (first, second):
            self.assertRegex(path, r"^/n-\d{10}$")
        self.assertLess(first, second)
        self.assertEqual((await client.get(second))[1].ephemeralOwner, client.session_id)
        self.assertEqual((await client.get(first))[1].ephemeralOwner, 0)

    async def test_set(self) -> None:
        """
        Data can be set, with the version that one knows or any; another version is an error, and
        changes nothing.
        """
        client = await self.connected()
        await client.create("/a", b"one")
        before = await client.exists("/a")
        stat = await client.set("/a", b"two", 0)
        self.assertEqual(stat.version, 1)
        self.assertGreater(stat.mzxid, before.mzxid)
        self.assertEqual(stat.czxid, before.czxid)
        self.assertEqual((await client.set("/a", b"three")).version, 2)
        await self.fails(BadVersionException, "/a", client.set("/a", b"four", 0))
        await self.fails(NoNodeException, "/b", client.set("/b", b""))
        self.assertEqual((await client.get("/a"))[0], b"three")

    async def test_delete(self) -> None:
        """
        A node can be deleted, with its version or any, but not with children; one made anew has
        another creation.
        """
        client = await self.connected()
        await client.create("/a")
        await client.create("/a/b")
        before = await client.exists("/a")
        await self.fails(NotEmptyException, "/a", client.delete("/a"))
        await self.fails(BadVersionException, "/a/b", client.delete("/a/b", 3))
        self.assertIs(await client.delete("/a/b", 0), None)
        await client.delete("/a")
        await self.fails(NoNodeException, "/a", client.delete("/a"))
        await client.create("/a")
        self.assertGreater((await client.exists("/a")).czxid, before.czxid)

    async def test_existsAndChildren(self) -> None:
        """
        A missing node is no error to C{exists}, and one to everybody else; children come sorted.
        """
        client = await self.connected()
        self.assertIs(await client.exists("/a"), None)
        await self.fails(NoNodeException, "/a", client.get("/a"))
        await self.fails(NoNodeException, "/a", client.get_children("/a"))
        await client.create("/a")
        self.assertEqual((await client.exists("/a")).version, 0)
        self.assertEqual(await client.get_children("/a"), [])
        for name in ("10", "2", "b", "a"):
            await client.create(f"/a/{name}")
        self.assertEqual(await client.get_children("/a"), ["10", "2", "a", "b"])
        stat = await client.exists("/a")
        self.assertEqual((stat.cversion, stat.numChildren), (4, 4))

    async def test_syncAndAuth(self) -> None:
        """Both end with nothing."""
        client = await self.connected()
        self.assertIs(await client.sync(), None)
        self.assertIs(await client.add_auth("digest", "user:password"), None)

    async def test_ephemeral(self) -> None:
        """
        An ephemeral node belongs to the session, whose number everybody sees, and goes when that is
        closed.
        """
        client, other = await self.connected(), await self.connected()
        await client.create("/e", b"x", flags=EPHEMERAL)
        self.assertNotEqual(client.session_id, other.session_id)
        self.assertEqual((await other.get("/e"))[1].ephemeralOwner, client.session_id)
        await client.close()
        self.assertIs(await other.exists("/e"), None)

    async def test_many(self) -> None:
        """A thousand requests at a time are answered, in order."""
        client = await self.connected()
        await client.create("/m")
        made: list[str] = []
        requests = [client.create(f"/m/{i:04d}").addCallback(made.append) for i in range(1000)]
        for request in requests:
            await request
        self.assertEqual(made, [f"/m/{i:04d}" for i in range(1000)])
        self.assertEqual(len(await client.get_children("/m")), 1000)

    # -- several operations in one transaction

    async def test_multi(self) -> None:
        """
        A multi creates, changes, deletes and checks; an operation sees those before it, and each
        has its result.
        """
        client = await self.connected()
        await client.create("/a", b"one")
        await client.create("/gone")
        results = await client.multi(
            [
                CheckOperation("/a", 0),
                SetOperation("/a", b"two", 0),
                CheckOperation("/a", 1),
                CreateOperation("/b", b"x"),
                CreateOperation("/b/c"),
                DeleteOperation("/gone", 0),
                CreateOperation("/gone", b"again"),
            ]
        )
        stat = await client.exists("/a")
        self.assertEqual(results, [None, stat, None, "/b", "/b/c", None, "/gone"])
        self.assertEqual((await client.get("/a"))[0], b"two")
        self.assertEqual((await client.get("/b"))[0], b"x")
        self.assertEqual((await client.get("/b/c"))[0], b"")
        self.assertEqual((await client.get("/gone"))[0], b"again")
        created = {(await client.exists(path)).czxid for path in ("/b", "/b/c", "/gone")}
        self.assertEqual(created, {stat.mzxid}, "they are one transaction")
        self.assertEqual(await client.multi([]), [])

    async def test_multiRefused(self) -> None:
        """
        When one operation is refused, nothing is changed and no watch fires; the error names the
        operation and why it was refused.
        """
        client = await self.connected()
        await client.create("/a", b"one")
        await client.create("/a/child")
        await client.create("/e", flags=EPHEMERAL)
        await client.create("/other")
        result, watch = client.get_and_watch("/a")
        stat = (await result)[1]
        children, childWatch = client.get_children_and_watch("/")
        before = await children
        outcomes = self.outcome(watch), self.outcome(childWatch)
        refusals: list[tuple[Any, type[ZookeeperError]]] = [
            (SetOperation("/missing", b""), NoNodeException),
            (SetOperation("/a", b"", 7), BadVersionException),
            (DeleteOperation("/missing"), NoNodeException),
            (DeleteOperation("/a/child", 7), BadVersionException),
            (DeleteOperation("/a"), NotEmptyException),
            (CheckOperation("/missing", -1), NoNodeException),
            (CheckOperation("/other", 1), BadVersionException),
            (CreateOperation("/a"), NodeExistsException),
            (CreateOperation("/missing/x"), NoNodeException),
            (CreateOperation("/e/x"), NoChildrenForEphemeralsException),
        ]
        for operation, kind in refusals:
            call = client.multi(
                [
                    SetOperation("/a", b"two"),
                    CreateOperation("/n"),
                    DeleteOperation("/other"),
                    CreateOperation("/other"),
                    operation,
                    CreateOperation("/behind"),
                ]
            )
            error = await failureOf(call)
            assert isinstance(error, MultiFailedException), error
            self.assertEqual((error.index, type(error.reason)), (4, kind))
            self.assertIn("operation 5 of 6", str(error))
            self.assertIn(operation.path, str(error))
        self.assertEqual(await client.get("/a"), (b"one", stat))
        self.assertEqual(await client.get_children("/"), before)
        await client.sync()
        await pause()
        self.assertEqual(outcomes, ([], []))
        await client.set("/a", b"three")
        await self.until(lambda: outcomes[0], "the event")
        self.assertEqual(outcomes, ([WatchEvent("changed", "/a")], []))
        childWatch.addErrback(lambda _cancelled: None).cancel()

    async def test_multiWatches(self) -> None:
        """The changes of a multi fire watches as single changes do."""
        client = await self.connected()
        await client.create("/a")
        await client.create("/b")
        watches = [
            client.get_and_watch("/a"),
            client.exists_and_watch("/b"),
            client.exists_and_watch("/c"),
            client.get_children_and_watch("/"),
        ]
        for result, _watch in watches:
            await result
        await client.multi([SetOperation("/a", b"x"), DeleteOperation("/b"), CreateOperation("/c")])
        self.assertEqual(
            [await watch for _, watch in watches],
            [
                WatchEvent("changed", "/a"),
                WatchEvent("deleted", "/b"),
                WatchEvent("created", "/c"),
                WatchEvent("child", "/"),
            ],
        )

    async def test_multiFlagsAndChroot(self) -> None:
        """
        A multi creates ephemeral and sequential nodes; with a chroot, paths and results are those
        that the client knows.
        """
        client = await self.connected()
        await client.create("/root")
        inner = await self.connected(chroot="/root")
        plain, numbered = await inner.multi(
            [
                CreateOperation("/e", b"1", flags=EPHEMERAL),
                CreateOperation("/s-", b"2", flags=EPHEMERAL | SEQUENCE),
            ]
        )
        self.assertEqual(plain, "/e")
        self.assertRegex(numbered, r"^/s-\d{10}$")
        for path in (plain, numbered):
            stat = (await client.get(f"/root{path}"))[1]
            self.assertEqual(stat.ephemeralOwner, inner.session_id)
        error = await failureOf(inner.multi([CreateOperation("/e")]))
        self.assertIn("create /e", str(error))
        await inner.close()
        self.assertEqual(await client.get_children("/root"), [])

    async def test_multiCompares(self) -> None:
        """Of two clients that change a node of the same version, one succeeds."""
        clients = await self.connected(), await self.connected()
        await clients[0].create("/head", b"0")
        for version in range(20):
            calls = [
                client.multi(
                    [
                        SetOperation("/head", str(number).encode(), version),
                        CreateOperation(f"/by{version}-{number}"),
                    ]
                )
                for number, client in enumerate(clients)
            ]
            outcomes = []
            for call in calls:
                try:
                    await call
                    outcomes.append(True)
                except MultiFailedException as error:
                    self.assertEqual((error.index, type(error.reason)), (0, BadVersionException))
                    outcomes.append(False)
            self.assertEqual(sorted(outcomes), [False, True])
            winner = outcomes.index(True)
            self.assertEqual((await clients[0].get("/head"))[0], str(winner).encode())
            found = [name for name in await clients[0].get_children("/") if "by" in name]
            self.assertEqual(found.count(f"by{version}-{winner}"), 1)
            self.assertEqual(found.count(f"by{version}-{1 - winner}"), 0)

    async def test_multiCutOff(self) -> None:
        """
        A connection that is lost on the way leaves open whether a multi was carried out, and says
        so; it was carried out as a whole or not at all.
        """
        client, other = await self.connected(), await self.connected()
        for path in ("/a", "/b"):
            await client.create(path, b"")
        calls = [
            client.multi(
                [
                    SetOperation("/a", str(number).encode()),
                    CreateOperation(f"/n{number:03d}"),
                    SetOperation("/b", str(number).encode()),
                ]
            )
            for number in range(2_000)  # more than are under way at a time: some always are
        ]
        outcomes: list[Any] = []
        for call in calls:
            call.addBoth(outcomes.append)
        await calls[10]
        await self.bench.disconnect(client)
        await self.bench.reconnect(client)
        await self.until(lambda: len(outcomes) == len(calls), "the answers")
        lost = [each for each in outcomes if isinstance(each, Failure)]
        self.assertTrue(lost, "no answer was lost")
        for failure in lost:
            self.assertIs(failure.type, ConnectionLossException)
        found = [name for name in await other.get_children("/") if name[0] == "n"]
        self.assertGreaterEqual(len(found), len(calls) - len(lost))
        (first, stat), (second, otherStat) = await other.get("/a"), await other.get("/b")
        self.assertEqual((first, stat.version), (second, otherStat.version))
        self.assertEqual(stat.version, len(found))

    async def test_multiTooLarge(self) -> None:
        """A multi that no server takes is refused before it is sent, and the connection stays."""
        client = await self.connected()
        session, events = client.session_id, self.events(client)
        operations = [CreateOperation(f"/{i}", b"x" * 500_000) for i in range(2)]
        await self.fails(RequestSizeException, "2 operations", client.multi(operations))
        await client.multi(operations[:1])
        await client.create("/near", b"")
        await client.multi([SetOperation("/near", b"x" * 990_000)])
        self.assertEqual((client.session_id, events), (session, []))
        self.assertIs(await client.exists("/1"), None)

    async def test_multiExpired(self) -> None:
        """A multi that waits for its connection fails when the session has expired."""
        client, other = await self.connected(), await self.connected()
        await self.bench.disconnect(client)
        held = Deferred.fromCoroutine(failureOf(client.multi([CreateOperation("/x")])))
        await self.bench.end(client)
        await self.bench.reconnect(client)
        self.assertIsInstance(await held, SessionExpiredException)
        self.assertIs(await other.exists("/x"), None)
        await client.close()
        await self.fails(ClosingException, "multi", client.multi([CreateOperation("/x")]))

    # -- the session

    async def test_connect(self) -> None:
        """
        C{connect} gives the client; before it there is no session, after it there is, and once more
        changes nothing.
        """
        client = self.bench.client()
        self.addCleanup(client.close)
        self.assertEqual((client.session_id, client.connected), (0, False))
        self.assertIs(await client.connect(), client)
        session = client.session_id
        self.assertTrue(client.connected and session)
        self.assertIs(await client.connect(), client)
        self.assertEqual(client.session_id, session)

    async def test_nullData(self) -> None:
        """A node may have null data, which is not the same as no bytes."""
        client = await self.connected()
        await client.create("/null", None)
        await client.create("/empty")
        self.assertIs((await client.get("/null"))[0], None)
        self.assertEqual((await client.get("/empty"))[0], b"")

    async def test_sessionTimeout(self) -> None:
        """
        Who asks for a shorter session than the server gives knows, once connected, what it has got.
        """
        client = self.bench.client(session_timeout=100)
        self.addCleanup(client.close)
        self.assertEqual(client.session_timeout, 100)
        await client.connect(60_000)
        self.assertEqual(client.session_timeout, self.bench.sessionTimeoutMsMin)
        self.assertEqual((await self.connected()).session_timeout, SESSION_MS)

    async def test_connectAtOnce(self) -> None:
        """
        Who connects while another does waits for the same connection, and C{close} ends the one
        session that there is.
        """
        client, other = self.bench.client(), await self.connected()
        self.addCleanup(client.close)
        first, second = client.connect(), client.connect()
        self.assertEqual((await first, await second), (client, client))
        await client.create("/e", flags=EPHEMERAL)
        await client.close()
        self.assertIs(await other.exists("/e"), None)

    async def test_listeners(self) -> None:
        """
        The callback and every listener are told, when the session's number is known already; who
        was removed is not.
        """
        client = self.bench.client()
        self.addCleanup(client.close)
        sessions: list[tuple[SessionEvent, int]] = []
        events = self.events(client)
        removed: list[SessionEvent] = []
        remove = client.add_session_listener(removed.append)
        remove()
        remove()
        client.set_session_callback(lambda event: sessions.append((event, client.session_id)))
        await client.connect()
        self.assertEqual(sessions, [(SessionEvent.CONNECTED, client.session_id)])
        self.assertEqual((events, removed), ([SessionEvent.CONNECTED], []))

    async def test_suspended(self) -> None:
        """
        A lost connection is told; the session and what belongs to it stay, and requests made
        meanwhile are answered when it is back.
        """
        client, other = await self.connected(), await self.connected()
        events, session = self.events(client), client.session_id
        await client.create("/e", flags=EPHEMERAL)
        await self.bench.disconnect(client)
        self.assertEqual(
            (events, client.connected, client.session_id),
            ([SessionEvent.SUSPENDED], False, session),
        )
        request = client.create("/later", flags=EPHEMERAL)
        await self.bench.reconnect(client)
        self.assertEqual(await request, "/later")
        self.assertEqual(
            (events, client.connected, client.session_id),
            ([SessionEvent.SUSPENDED, SessionEvent.CONNECTED], True, session),
        )
        self.assertEqual((await other.exists("/e")).ephemeralOwner, session)

    async def test_expired(self) -> None:
        """
        The end of a session is told once to everybody, with no number left; then there is a new
        session, and its number is known when that is told.
        """
        client, other = await self.connected(), await self.connected()
        first, second, told = self.events(client), self.events(client), []
        client.set_session_callback(lambda event: told.append((event, client.session_id)))
        await client.create("/e", flags=EPHEMERAL)
        session = client.session_id
        await self.expire(client)
        expected = [SessionEvent.SUSPENDED, SessionEvent.EXPIRED, SessionEvent.CONNECTED]
        self.assertEqual((first, second), (expected, expected))
        self.assertEqual(told, list(zip(expected, (session, 0, client.session_id), strict=True)))
        self.assertIs(await other.exists("/e"), None)
        self.assertEqual(await client.create("/e", flags=EPHEMERAL), "/e")
        self.assertEqual((await other.exists("/e")).ephemeralOwner, client.session_id)

    async def test_heldOverExpiry(self) -> None:
        """
        A request that waits for its connection fails when its session has expired: it is not
        carried out in another.
        """
        client, other = await self.connected(), await self.connected()
        await self.bench.disconnect(client)
        held = Deferred.fromCoroutine(failureOf(client.create("/e", flags=EPHEMERAL)))
        await self.bench.end(client)
        await self.bench.reconnect(client)
        self.assertIsInstance(await held, SessionExpiredException)
        await self.until(lambda: client.connected, "a new session")
        self.assertIs(await other.exists("/e"), None)

    async def test_inFlight(self) -> None:
        """
        Requests under way fail when the connection is lost, and the client goes on when it is back.
        """
        client = await self.connected()
        await client.create("/a")
        requests = [Deferred.fromCoroutine(failureOf(client.set("/a", b"x"))) for _ in range(200)]
        await self.bench.disconnect(client)
        await self.bench.reconnect(client)
        lost = 0
        for request in requests:
            try:
                error = await request
            except AssertionError:
                continue  # it was answered before, or was held
            self.assertIs(type(error), ConnectionLossException)
            lost += 1
        self.assertGreater(lost, 0)
        await client.set("/a", b"y")

    async def test_timeout(self) -> None:
        """A request without a connection fails when its time is over, and is not sent later."""
        client, other = await self.connected(session_timeout=1_000), await self.connected()
        await self.bench.disconnect(client)
        await self.fails(ZookeeperTimeoutException, "/late", client.create("/late"))
        await self.bench.reconnect(client)
        await self.until(lambda: client.connected, "the connection")
        await client.sync()
        self.assertIs(await other.exists("/late"), None)

    async def test_unreachable(self) -> None:
        """Connecting to nobody fails when its time is over, with a client that is closed."""
        await self.bench.stop()
        client = self.bench.client()
        events = self.events(client)
        await self.fails(ZookeeperTimeoutException, "no connection", client.connect(500))
        self.assertEqual(events, [SessionEvent.CLOSED])
        await self.fails(ClosingException, "closed", client.connect())

    # -- chroot

    async def test_chroot(self) -> None:
        """
        A client with a chroot sees what is below it as if it were all; watches tell paths as the
        client knows them.
        """
        client = await self.connected()
        await client.create("/root")
        inner = await self.connected(chroot="/root")
        self.assertEqual(await inner.create("/a"), "/a")
        self.assertRegex(await inner.create("/s-", flags=SEQUENCE), r"^/s-\d{10}$")
        await inner.delete("/" + (await inner.get_children("/"))[1])
        self.assertEqual(await client.get_children("/root"), ["a"])
        result, watch = inner.get_and_watch("/a")
        await result
        await client.set("/root/a", b"x")
        self.assertEqual(await watch, WatchEvent("changed", "/a"))

    async def test_missingChroot(self) -> None:
        """A chroot that does not exist is an error that names it, and the client is closed."""
        client = self.bench.client(chroot="/nowhere")
        await self.fails(NoNodeException, "/nowhere", client.connect())
        await self.fails(ClosingException, "closed", client.get("/"))

    # -- closing

    async def test_close(self) -> None:
        """
        Closing is told once, ends what waits, and can be done twice; what comes after it fails.
        """
        client = await self.connected()
        events = self.events(client)
        await client.create("/a")
        result, watch = client.get_and_watch("/a")
        await result
        outcome = self.outcome(watch)
        await client.close()
        await client.close()
        self.assertEqual(
            (events, client.connected, client.session_id), ([SessionEvent.CLOSED], False, 0)
        )
        self.assertIsInstance(outcome[0], ClosingException)
        await self.fails(ClosingException, "/a", client.get("/a"))
        result, watch = client.get_and_watch("/a")
        await self.fails(ClosingException, "/a", result)

    async def test_closeUnconnected(self) -> None:
        """A client that never was connected can be closed."""
        client = self.bench.client()
        events = self.events(client)
        await client.close()
        self.assertEqual(events, [SessionEvent.CLOSED])

    async def test_closeSuspended(self) -> None:
        """A client without a connection can be closed; requests that wait fail."""
        client = await self.connected()
        await self.bench.disconnect(client)
        held = Deferred.fromCoroutine(failureOf(client.get("/")))
        await client.close()
        self.assertIsInstance(await held, ClosingException)

    async def test_closeConnecting(self) -> None:
        """
        A client that is connecting can be closed, and all who wait for the connection hear of it at
        once.
        """
        await self.bench.stop()
        client = self.bench.client(session_timeout=60_000)
        waiting = [Deferred.fromCoroutine(failureOf(client.connect())) for _ in range(2)]
        await client.close()
        for each in waiting:
            self.assertIsInstance(await each, ClosingException)

    # -- watches

    async def test_watchData(self) -> None:
        """
        A watch of data fires once, when the data is set, though it be to the same, or when the node
        is deleted.
        """
        client, other = await self.connected(), await self.connected()
        await client.create("/a", b"one")
        for change, kind in (
            (lambda: other.set("/a", b"one"), "changed"),
            (lambda: other.delete("/a"), "deleted"),
        ):
            result, watch = client.get_and_watch("/a")
            self.assertEqual((await result)[0], b"one")
            await change()
            self.assertEqual(await watch, WatchEvent(kind, "/a"))
        result, watch = client.get_and_watch("/a")
        await self.fails(NoNodeException, "/a", result)
        await other.create("/a")
        await client.sync()
        self.assertFalse(watch.called)

    async def test_watchExistence(self) -> None:
        """A watch of existence fires when the node is created, changed or deleted."""
        client, other = await self.connected(), await self.connected()
        for change, kind in (
            (lambda: other.create("/a"), "created"),
            (lambda: other.set("/a", b"x"), "changed"),
            (lambda: other.delete("/a"), "deleted"),
        ):
            result, watch = client.exists_and_watch("/a")
            self.assertEqual(await result is None, kind == "created")
            await change()
            self.assertEqual(await watch, WatchEvent(kind, "/a"))

    async def test_watchChildren(self) -> None:
        """
        A watch of children fires when one comes or goes, and when the parent goes; not when a
        child's data changes, nor for grandchildren.
        """
        client, other = await self.connected(), await self.connected()
        await client.create("/p")
        await client.create("/p/a")
        result, watch = client.get_children_and_watch("/p")
        self.assertEqual(await result, ["a"])
        await other.set("/p/a", b"x")
        await other.create("/p/a/deep")
        await other.delete("/p/a/deep")
        await client.sync()
        self.assertFalse(watch.called)
        await other.create("/p/b")
        self.assertEqual(await watch, WatchEvent("child", "/p"))
        await other.delete("/p/a")
        result, watch = client.get_children_and_watch("/p")
        self.assertEqual(await result, ["b"])
        await other.delete("/p/b")
        self.assertEqual(await watch, WatchEvent("child", "/p"))
        result, watch = client.get_children_and_watch("/p")
        await result
        await other.delete("/p")
        self.assertEqual(await watch, WatchEvent("deleted", "/p"))

    async def test_watchOfTwo(self) -> None:
        """
        Each of several watches of one path fires, and only those that were set before the change.
        """
        client, other = await self.connected(), await self.connected()
        await client.create("/a")
        first, watch1 = client.get_and_watch("/a")
        second, watch2 = client.exists_and_watch("/a")
        await first
        await second
        await other.set("/a", b"x")
        self.assertEqual([await watch1, await watch2], [WatchEvent("changed", "/a")] * 2)
        third, watch3 = client.get_and_watch("/a")
        await third
        outcome = self.outcome(watch3)
        await client.sync()
        self.assertEqual(outcome, [])

    async def test_watchCancelled(self) -> None:
        """
        A watch that was cancelled is forgotten, whatever happens then; others on the path are not.
        """
        client = await self.connected()
        await client.create("/a")
        first, watch1 = client.get_and_watch("/a")
        second, watch2 = client.get_and_watch("/a")
        await first
        await second
        outcome = self.outcome(watch1)
        watch1.cancel()
        await client.set("/a", b"x")
        self.assertEqual(await watch2, WatchEvent("changed", "/a"))
        self.assertEqual(len(outcome), 1)  # the cancellation itself
        self.assertNotIsInstance(outcome[0], WatchEvent)

    async def settings(self, client: Any) -> dict[str, Deferred[WatchEvent]]:
        """One watch of each kind, on nodes of their own."""
        await client.create("/data", b"same")
        await client.create("/parent")
        watches = {}
        for name, (result, watch) in {
            "data": client.get_and_watch("/data"),
            "existence": client.exists_and_watch("/data"),
            "missing": client.exists_and_watch("/missing"),
            "children": client.get_children_and_watch("/parent"),
        }.items():
            await result
            watches[name] = watch
        return watches

    async def test_watchSurvives(self) -> None:
        """
        Watches survive a lost connection without firing, and fire when something changes after it.
        """
        client, other = await self.connected(), await self.connected()
        watches = await self.settings(client)
        for _time in range(2):
            await self.bench.disconnect(client)
            await self.bench.reconnect(client)
            await self.until(lambda: client.connected, "the connection")
            await client.sync()
        self.assertEqual([name for name, watch in watches.items() if watch.called], [])
        await other.set("/data", b"same")
        await other.create("/missing")
        await other.create("/parent/x")
        self.assertEqual(await watches["data"], WatchEvent("changed", "/data"))
        self.assertEqual(await watches["existence"], WatchEvent("changed", "/data"))
        self.assertEqual(await watches["missing"], WatchEvent("created", "/missing"))
        self.assertEqual(await watches["children"], WatchEvent("child", "/parent"))

    async def changedMeanwhile(
        self, change: Callable[[Any], Awaitable[None]]
    ) -> dict[str, Deferred[WatchEvent]]:
        client, other = await self.connected(), await self.connected()
        watches = await self.settings(client)
        await self.bench.disconnect(client)
        await change(other)
        await self.bench.reconnect(client)
        return watches

    async def test_watchSeesWhatItMissed(self) -> None:
        """What has changed while there was no connection fires the watches when it is back."""

        async def change(other: Any) -> None:
            await other.set("/data", b"other")
            await other.create("/missing")
            await other.create("/parent/x")
            await other.delete("/parent/x")

        watches = await self.changedMeanwhile(change)
        self.assertEqual(await watches["data"], WatchEvent("changed", "/data"))
        self.assertEqual(await watches["existence"], WatchEvent("changed", "/data"))
        self.assertEqual(await watches["missing"], WatchEvent("created", "/missing"))
        self.assertEqual(await watches["children"], WatchEvent("child", "/parent"))

    async def test_watchSeesDeletion(self) -> None:
        """So does what was deleted meanwhile."""

        async def change(other: Any) -> None:
            await other.delete("/data")
            await other.delete("/parent")

        watches = await self.changedMeanwhile(change)
        self.assertEqual(await watches["data"], WatchEvent("deleted", "/data"))
        self.assertEqual(await watches["existence"], WatchEvent("deleted", "/data"))
        self.assertEqual(await watches["children"], WatchEvent("deleted", "/parent"))
        self.assertEqual(self.outcome(watches["missing"]), [])

    async def test_watchSeesAnotherNode(self) -> None:
        """A node that was deleted and made anew with the same data and children is another node."""

        async def change(other: Any) -> None:
            await other.delete("/data")
            await other.create("/data", b"same")
            await other.delete("/parent")
            await other.create("/parent")

        watches = await self.changedMeanwhile(change)
        for name in ("data", "existence", "children"):
            self.assertEqual(
                (await watches[name]).kind, "child" if name == "children" else "changed"
            )
        self.assertEqual(self.outcome(watches["missing"]), [])

    async def test_watchExpires(self) -> None:
        """Watches fail when the session expires, once; new ones can be set in the new session."""
        client, other = await self.connected(), await self.connected()
        watches = await self.settings(client)
        outcomes = {name: self.outcome(watch) for name, watch in watches.items()}
        await self.expire(client)
        await other.set("/data", b"x")
        await other.create("/missing")
        await client.sync()
        for name, outcome in outcomes.items():
            self.assertEqual([type(found) for found in outcome], [SessionExpiredException], name)
        result, watch = client.get_and_watch("/data")
        await result
        await other.set("/data", b"y")
        self.assertEqual((await watch).kind, "changed")

    async def test_watchHeld(self) -> None:
        """A watch that is set while there is no connection is armed when it is back."""
        client, other = await self.connected(), await self.connected()
        await client.create("/a")
        await self.bench.disconnect(client)
        result, watch = client.get_and_watch("/a")
        await self.bench.reconnect(client)
        await result
        await client.sync()
        self.assertFalse(watch.called)
        await other.set("/a", b"x")
        self.assertEqual(await watch, WatchEvent("changed", "/a"))
