"""
Tests for L{pylogbroker.zookeeper.ephemeral}, on a ZooKeeper in memory.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    ConnectionLossException,
    NodeExistsException,
    NoNodeException,
    ZookeeperError,
)
from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient
from pylogbroker.zookeeper.ephemeral import (
    ConflictError,
    claim,
    claimWithin,
    createParents,
    createPersistent,
    write,
)

SESSION_MS = 6_000


class EphemeralCase(SynchronousTestCase):
    """Clients of one server, on a clock."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.server = FakeZookeeper(self.clock, latencyMs=2)
        self.client, self.other = self.connected(), self.connected()

    def connected(self) -> FakeZookeeperClient:
        client = self.server.client(SESSION_MS)
        client.connect()
        self.settle()
        return client

    def settle(self, seconds: float = 0.2) -> None:
        for _step in range(100):
            self.clock.advance(seconds / 100)

    def begin(self, work: Coroutine[Deferred[Any], Any, Any]) -> Deferred[Any]:
        return Deferred.fromCoroutine(work)

    def done(self, work: Coroutine[Deferred[Any], Any, Any]) -> Any:
        doing = self.begin(work)
        self.settle()
        return self.successResultOf(doing)

    def fails(self, kind: type[Exception], work: Coroutine[Deferred[Any], Any, Any]) -> Any:
        doing = self.begin(work)
        self.settle()
        return self.failureResultOf(doing, kind).value

    def make(self, path: str, data: bytes = b"", flags: int = 0, client: Any = None) -> None:
        (client or self.other).create(path, data, flags=flags)
        self.settle()


class PersistentTests(EphemeralCase):
    """Nodes that stay."""

    def test_parents(self) -> None:
        """
        Missing parents are created with null data, as 0.7.2 does; the node itself is not created.
        """
        self.make("/a", b"kept")
        self.done(createParents(self.client, "/a/b/c/d"))
        self.assertEqual(
            self.server.tree(), {"/a": (b"kept", 0), "/a/b": (None, 0), "/a/b/c": (None, 0)}
        )
        self.done(createParents(self.client, "/a/b/c/d"))
        self.done(createParents(self.client, "/top"))

    def test_persistent(self) -> None:
        """A node is made with its parents; what is there already stays."""
        self.done(createPersistent(self.client, "/a/b", b"one"))
        self.done(createPersistent(self.client, "/a/b", b"two"))
        self.assertEqual(self.server.tree()["/a/b"], (b"one", 0))

    def test_chrootDeleted(self) -> None:
        """
        Below a chroot that is deleted at run time nothing can be created: the error says so, after
        a few requests.
        """
        self.make("/chroot")
        client = self.server.client(SESSION_MS, "/chroot")
        client.connect()
        self.settle()
        self.other.delete("/chroot")
        self.settle()
        for work in (
            createPersistent(client, "/a/b", b"x"),
            createParents(client, "/a/b"),
            claim(client, "/a/b", b"x"),
            claim(client, "/a", b"x"),
            write(client, "/a/b", b"x"),
        ):
            error = self.fails(NoNodeException, work)
            self.assertEqual(
                str(error), "/a cannot be created: the chroot was deleted; create it again"
            )

    def test_parentsComeAndGo(self) -> None:
        """If somebody deletes the parents again and again, an end is made of it."""
        create = self.client.create

        def thenDeleted(path: str, *arguments: Any, **keywords: Any) -> Any:
            made = create(path, *arguments, **keywords)
            return made.addCallback(lambda _: self.other.delete("/a")) if path == "/a" else made

        self.client.create = thenDeleted  # type: ignore[method-assign]
        self.assertIn(
            "/a/b come and go",
            str(self.fails(ZookeeperError, createPersistent(self.client, "/a/b/c", b"x"))),
        )

    def test_write(self) -> None:
        """The last writer wins, whether the node is there or not."""
        for data in (b"one", b"two"):
            self.done(write(self.client, "/a/b", data))
            self.assertEqual(self.server.tree()["/a/b"], (data, 0))

    def test_writeAtOnce(self) -> None:
        """Two who make the same node are no error to each other."""
        first, second = (
            self.begin(write(self.client, "/a/b", b"one")),
            self.begin(write(self.other, "/a/b", b"two")),
        )
        self.settle()
        self.successResultOf(first)
        self.successResultOf(second)
        self.assertIn(self.server.tree()["/a/b"][0], (b"one", b"two"))


class ClaimTests(EphemeralCase):
    """Making a node ours."""

    def test_free(self) -> None:
        """A node that nobody has is made with its parents, and is ours."""
        self.done(claim(self.client, "/a/b", b"x"))
        self.assertEqual(self.server.tree()["/a/b"], (b"x", self.client.session_id))

    def test_ours(self) -> None:
        """One that is ours already is left alone, or gets the value that it should have."""
        self.done(claim(self.client, "/a", b"x"))
        self.done(claim(self.client, "/a", b"x"))
        self.assertEqual(self.server.exists("/a").version, 0)  # type: ignore[union-attr]
        self.done(claim(self.client, "/a", b"y"))
        self.assertEqual(self.server.tree()["/a"], (b"y", self.client.session_id))

    def test_theirs(self) -> None:
        """One of another session is a conflict, though its value be the same (gotcha 10)."""
        self.make("/a", b"x", EPHEMERAL)
        error = self.fails(ConflictError, claim(self.client, "/a", b"x"))
        self.assertEqual((error.data, error.session), (b"x", self.other.session_id))
        self.assertIsInstance(error, NodeExistsException)

    def test_persistent(self) -> None:
        """One that goes with nobody is a conflict with nobody."""
        self.make("/a")
        self.assertEqual(self.fails(ConflictError, claim(self.client, "/a", b"x")).session, 0)

    def meanwhile(self, client: FakeZookeeperClient, method: str, *acts: Any) -> None:
        """
        Before each call of a client's method, as long as there are acts, one of them happens on the
        server.
        """
        left = list(acts)
        original = getattr(client, method)

        def called(*arguments: Any, **keywords: Any) -> Any:
            if left:
                left.pop(0)()
            return original(*arguments, **keywords)

        setattr(client, method, called)

    def test_vanishes(self) -> None:
        """One that vanishes before it can be looked at is free."""
        self.make("/a", b"x", EPHEMERAL)
        self.meanwhile(self.client, "get", lambda: self.server.delete("/a", -1))
        self.done(claim(self.client, "/a", b"y"))
        self.assertEqual(self.server.tree()["/a"], (b"y", self.client.session_id))

    def test_vanishesBeforeSet(self) -> None:
        """So does one of ours that somebody deletes before its value is set."""
        self.make("/a", b"x", EPHEMERAL, self.client)
        self.meanwhile(self.client, "set", lambda: self.server.delete("/a", -1))
        self.done(claim(self.client, "/a", b"y"))
        self.assertEqual(self.server.tree()["/a"], (b"y", self.client.session_id))

    def test_setFails(self) -> None:
        """A connection that is lost while the value is set is an error."""
        self.make("/a", b"x", EPHEMERAL, self.client)
        self.meanwhile(
            self.client, "set", lambda: self.clock.callLater(0, self.server.disconnect, self.client)
        )
        self.fails(ConnectionLossException, claim(self.client, "/a", b"y"))

    def test_comesAndGoes(self) -> None:
        """One that comes and goes all the time is an error at last."""

        def there() -> None:
            self.server.create("/a", b"x", EPHEMERAL, self.other.session_id)

        self.meanwhile(self.client, "create", *[there] * 20)
        self.meanwhile(self.client, "get", *[lambda: self.server.delete("/a", -1)] * 20)
        self.assertIn(
            "comes and goes", str(self.fails(ZookeeperError, claim(self.client, "/a", b"y")))
        )


class PatienceTests(EphemeralCase):
    """Waiting for another's session to end."""

    def patiently(self, patienceMs: int = 12_000) -> tuple[Deferred[Any], list[ConflictError]]:
        told: list[ConflictError] = []
        return self.begin(
            claimWithin(self.clock, self.client, "/a", b"y", patienceMs, told.append)
        ), told

    def test_goes(self) -> None:
        """As soon as the other's node goes, ours is there; what was waited for was told once."""
        self.make("/a", b"x", EPHEMERAL)
        waiting, told = self.patiently()
        self.settle(5)
        self.assertNoResult(waiting)
        self.other.close()
        self.settle()
        self.successResultOf(waiting)
        self.assertEqual(
            ([conflict.data for conflict in told], self.server.tree()["/a"]),
            ([b"x"], (b"y", self.client.session_id)),
        )
        self.assertEqual((self.client._watches, self.clock.getDelayedCalls()), ({}, []))

    def test_stays(self) -> None:
        """One that stays too long is a conflict after that time."""
        self.make("/a", b"x", EPHEMERAL)
        waiting, _told = self.patiently()
        self.settle(11.9)
        self.assertNoResult(waiting)
        self.settle(0.5)
        self.failureResultOf(waiting, ConflictError)
        self.assertEqual((self.client._watches, self.clock.getDelayedCalls()), ({}, []))

    def test_changes(self) -> None:
        """A change of the node, or another owner, takes nothing from the time."""
        self.make("/a", b"x", EPHEMERAL)
        waiting, told = self.patiently()
        for data in (b"1", b"2"):
            self.settle(4)
            self.server.set("/a", data, -1)
        self.settle(4.5)
        self.failureResultOf(waiting, ConflictError)
        self.assertEqual(len(told), 1)

    def test_neverGoes(self) -> None:
        """A persistent node is not waited for."""
        self.make("/a", b"x")
        waiting, told = self.patiently()
        self.settle()
        self.failureResultOf(waiting, ConflictError)
        self.assertEqual(told, [])

    def test_goesBeforeTheWatch(self) -> None:
        """
        A node that goes just before it is watched is not waited for, and the watch is forgotten.
        """
        self.make("/a", b"x", EPHEMERAL)
        original = self.client.exists_and_watch

        def late(path: str) -> Any:
            self.server.delete("/a", -1)
            return original(path)

        self.client.exists_and_watch = late  # type: ignore[method-assign]
        waiting, _told = self.patiently()
        self.settle()
        self.successResultOf(waiting)
        self.assertEqual((self.client._watches, self.clock.getDelayedCalls()), ({}, []))
