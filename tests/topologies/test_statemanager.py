"""
Tests for L{pylogbroker.topologies.statemanager}, on a ZooKeeper in memory.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    ClosingException,
    ConfigurationError,
    ConnectionLossException,
    NodeExistsException,
    SessionExpiredException,
)
from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient
from pylogbroker.topologies.plan import ACTIVE, EPOCH_BITS, KILLED, PAUSED, MasterLocation
from pylogbroker.topologies.statemanager import NoSuchTopologyError, StateManager
from tests.topologies.definitions import DEFINITION

SESSION_MS = 6_000

PARTS = ("containers", "definition", "epoch", "scheduler", "state")


class StateManagerTests(SynchronousTestCase):
    """Nodes, with two sessions."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.server = FakeZookeeper(self.clock, latencyMs=2)
        self.client, self.other = self.connected(), self.connected()
        self.states, self.others = self.manager(self.client), self.manager(self.other)
        # Watches end with their clients, not when they are collected, and so does what still waits.
        self.doing: list[Deferred[Any]] = []
        self.addCleanup(self.settle)
        self.addCleanup(self.client.close)
        self.addCleanup(self.other.close)

    def connected(self) -> FakeZookeeperClient:
        client = self.server.client(SESSION_MS)
        client.connect()
        self.settle()
        return client

    def manager(self, client: FakeZookeeperClient) -> StateManager:
        return StateManager(self.clock, client, lambda: 0.5)

    def settle(self, seconds: float = 0.2) -> None:
        for _step in range(100):
            self.clock.advance(seconds / 100)

    def tearDown(self) -> None:
        for each in self.doing:
            each.addErrback(lambda failure: failure.trap(ClosingException, CancelledError))

    def begin(self, work: Coroutine[Deferred[Any], Any, Any]) -> Deferred[Any]:
        return self.begun(work, 0.2)

    def begun(self, work: Coroutine[Deferred[Any], Any, Any], seconds: float) -> Deferred[Any]:
        doing = self.follow(work)
        self.settle(seconds)
        return doing

    def follow(self, work: Coroutine[Deferred[Any], Any, Any]) -> Deferred[Any]:
        doing = Deferred.fromCoroutine(work)
        self.doing.append(doing)
        return doing

    def done(self, work: Coroutine[Deferred[Any], Any, Any]) -> Any:
        return self.successResultOf(self.begin(work))

    def fails(self, kind: type[Exception], work: Coroutine[Deferred[Any], Any, Any]) -> str:
        return str(self.failureResultOf(self.begin(work), kind).value)

    def submitted(self) -> None:
        self.done(self.states.submit(DEFINITION))

    # -- topologies

    def test_submit(self) -> None:
        """What is submitted can be read, listed, and removed."""
        self.assertEqual(self.done(self.states.topologies()), [])
        self.submitted()
        self.assertEqual(self.done(self.others.topologies()), ["words"])
        self.assertEqual(self.done(self.others.definition("words")), DEFINITION)
        self.assertEqual(self.done(self.others.state("words")), ACTIVE)
        self.assertIsNone(self.done(self.others.master("words")))
        self.done(self.states.remove("words"))
        self.done(self.states.remove("words"))
        self.assertEqual(self.server.tree(), {"/topologies": (None, 0)})

    def test_submitAgain(self) -> None:
        """One that runs cannot be submitted; one that has ended can, and its epochs go on."""
        self.submitted()
        self.done(self.others.claimContainer("words", 2, 100, lambda: None))
        self.done(self.others.announce("words", "host", 1, 2))
        text = self.fails(ConfigurationError, self.states.submit(DEFINITION))
        self.assertIn("runs already, with container 2, a master, a scheduler", text)
        self.server.expire(self.client)
        self.server.expire(self.other)
        self.settle()
        self.done(self.states.submit(DEFINITION, PAUSED))
        self.assertEqual(self.done(self.states.state("words")), PAUSED)
        location = self.done(self.others.announce("words", "host", 1, 2))
        self.assertEqual(location.epoch, 2 << EPOCH_BITS)

    def test_submitTogether(self) -> None:
        """Of two that submit one name at once, one runs; the end of the other removes nothing."""
        both = [self.follow(each.submit(DEFINITION)) for each in (self.states, self.others)]
        self.settle()
        winner = self.states
        for manager, submitting in zip((self.states, self.others), both, strict=True):
            failures: list[Any] = []
            submitting.addErrback(failures.append)
            if failures:
                failures[0].trap(ConfigurationError)
                self.assertIn("runs already, with a scheduler", str(failures[0].value))
                self.assertFalse(self.done(manager.remove("words")))
                self.assertEqual(self.done(manager.topologies()), ["words"])
            else:
                winner = manager
            self.assertTrue(submitting.called)
        self.assertTrue(self.done(winner.remove("words")))
        self.assertEqual(self.server.tree(), {"/topologies": (None, 0)})

    def test_submitBesideRemoval(self) -> None:
        """A topology that is removed meanwhile is written whole."""
        self.submitted()
        removing = self.follow(self.states.remove("words"))
        submitting: Deferred[None] | None = None
        while submitting is None or not submitting.called:
            if "/topologies/words/scheduler" not in self.server.tree() and submitting is None:
                submitting = self.follow(self.others.submit(DEFINITION))
            self.clock.advance(0.0005)
        self.successResultOf(submitting)
        self.assertTrue(self.successResultOf(removing))
        self.assertEqual(
            [each for each in self.server.tree() if each.startswith("/topologies/words/")],
            [f"/topologies/words/{each}" for each in sorted(PARTS)],
        )

    def test_keepScheduler(self) -> None:
        """In its next session it is the scheduler again, unless another one was faster."""
        self.submitted()
        keeping = self.begin(self.states.keepScheduler("words"))
        self.server.expire(self.client)
        self.settle(2)
        self.assertTrue(self.done(self.others.hasScheduler("words")))
        self.assertNoResult(keeping)
        self.server.disconnect(self.client)
        self.settle(60)
        self.assertFalse(self.done(self.others.hasScheduler("words")))
        self.done(self.others.submit(DEFINITION))
        self.server.reconnect(self.client)
        self.settle(10)
        self.successResultOf(keeping)
        self.assertFalse(self.done(self.states.remove("words")))
        removed = self.begin(self.others.keepScheduler("words"))
        self.assertTrue(self.done(self.others.remove("words")))
        self.settle()
        self.successResultOf(removed)

    def test_whenRemoved(self) -> None:
        """
        After a kill: what the scheduler removes, and at once; what has no scheduler any more; and
        what takes too long.
        """
        self.submitted()
        self.assertFalse(
            self.successResultOf(self.begun(self.others.whenRemoved("words", 3), seconds=5))
        )
        waiting = self.begin(self.others.whenRemoved("words", 60))
        self.assertNoResult(waiting)
        self.done(self.states.remove("words"))
        self.assertTrue(self.successResultOf(waiting))
        self.assertTrue(self.done(self.others.whenRemoved("words", 60)))
        self.submitted()
        waiting = self.begin(self.others.whenRemoved("words", 60))
        self.server.expire(self.client)
        self.settle(2)
        self.assertTrue(self.successResultOf(waiting))
        self.assertEqual(self.server.tree(), {"/topologies": (None, 0)})

    def test_whenRemovedServerEnds(self) -> None:
        """The server ends with the topology: its last word counts."""
        self.submitted()
        waiting = self.begin(self.others.whenRemoved("words", 60))
        self.client.delete("/topologies/words/definition")
        self.settle()
        self.server.disconnect(self.other)
        self.settle(60)
        self.assertTrue(self.successResultOf(waiting))

    def test_removeBeforeSessions(self) -> None:
        """Ephemeral nodes go with their sessions; the topology is not listed any more."""
        self.submitted()
        self.done(self.others.claimContainer("words", 2, 100, lambda: None))
        self.done(self.states.remove("words"))
        self.assertEqual(self.done(self.states.topologies()), [])

    def test_names(self) -> None:
        """A name is a node's."""
        for name in ("", "a/b", "..", "ä", "x" * 201):
            self.fails(ConfigurationError, self.states.definition(name))
        for work in (
            self.states.definition("none"),
            self.states.state("none"),
            self.states.setState("none", PAUSED),
            self.states.announce("none", "host", 1, 2),
            self.states.claimContainer("none", 1, 0, lambda: None),
        ):
            self.assertIn("no topology none", self.fails(NoSuchTopologyError, work))

    def test_unreadable(self) -> None:
        """What other programs have written is named."""
        self.submitted()
        for part in ("definition", "state", "epoch"):
            self.client.set(f"/topologies/words/{part}", b"\xff")
        self.settle()
        text = self.fails(ConfigurationError, self.states.definition("words"))
        self.assertIn("/topologies/words/definition cannot be read", text)
        self.assertIn("none of active", self.fails(ConfigurationError, self.states.state("words")))
        text = self.fails(ConfigurationError, self.states.announce("words", "host", 1, 2))
        self.assertIn("/topologies/words/epoch", text)

    def test_state(self) -> None:
        """Changes are seen; killed is final."""
        self.submitted()
        seen: list[str | None] = []
        watch = self.others.watchState("words", seen.append)
        self.settle()
        self.done(self.states.setState("words", PAUSED))
        self.client.set("/topologies/words/state", b"odd")
        self.settle()
        self.client.set("/topologies/words/state", b"active")
        self.settle()
        self.done(self.states.setState("words", KILLED))
        text = self.fails(ConfigurationError, self.states.setState("words", ACTIVE))
        self.assertIn("was killed", text)
        self.done(self.states.remove("words"))
        self.assertEqual(seen, [ACTIVE, PAUSED, ACTIVE, KILLED, None])
        watch.stop()
        self.submitted()
        self.assertEqual(len(seen), 5)

    def test_watchGoesOn(self) -> None:
        """After a lost connection and after the end of a session."""
        self.submitted()
        seen: list[str | None] = []
        self.others.watchState("words", seen.append)
        self.settle()
        self.server.disconnect(self.other)
        self.done(self.states.setState("words", PAUSED))
        self.server.reconnect(self.other)
        self.settle()
        self.assertEqual(seen, [ACTIVE, PAUSED])
        self.server.expire(self.other)
        self.done(self.states.setState("words", ACTIVE))
        self.assertEqual(seen[-1], ACTIVE)
        self.server.disconnect(self.other)
        self.settle(60)
        self.done(self.states.setState("words", PAUSED))
        self.server.reconnect(self.other)
        self.settle(10)
        self.assertEqual(seen[-1], PAUSED)

    def test_watchEnds(self) -> None:
        """With its client, without a word."""
        self.submitted()
        seen: list[str | None] = []
        self.others.watchState("words", seen.append)
        self.settle()
        self.other.close()
        self.settle()
        self.assertEqual(seen, [ACTIVE])

    def test_stoppedByItself(self) -> None:
        """What is told may stop the watch."""
        self.submitted()
        seen: list[str | None] = []

        def changed(state: str | None) -> None:
            seen.append(state)
            watch.stop()

        watch = self.others.watchState("words", changed)
        self.settle()
        self.done(self.states.setState("words", PAUSED))
        self.assertEqual(seen, [ACTIVE])

    # -- masters

    def test_announce(self) -> None:
        """The second master waits for the end of the first one's session."""
        self.submitted()
        seen: list[MasterLocation | None] = []
        self.states.watchMaster("words", seen.append)
        first = self.done(self.states.announce("words", "host", 1, 2))
        self.assertEqual(first, MasterLocation("host", 1, 2, 1 << EPOCH_BITS))
        waits: list[None] = []
        second = self.begin(
            self.others.announce("words", "other", 3, 4, lambda: waits.append(None))
        )
        self.settle(20)
        self.assertNoResult(second)
        self.assertEqual(len(waits), 1)
        self.server.expire(self.client)
        self.settle()
        location = MasterLocation("other", 3, 4, 2 << EPOCH_BITS)
        self.assertEqual(self.successResultOf(second), location)
        self.assertEqual(self.done(self.states.master("words")), location)
        self.settle()
        self.assertEqual(seen[0], None)
        self.assertEqual([each for each in seen if each is not None], [first, location])

    def test_announceTogether(self) -> None:
        """Of two that begin at once, one becomes the master."""
        self.submitted()
        both = [
            self.follow(each.announce("words", "host", 1, 2)) for each in (self.states, self.others)
        ]
        self.settle()
        self.assertEqual(len([each for each in both if each.called]), 1)

    def test_announceLost(self) -> None:
        """The request has worked and its answer was lost: the node is known again."""
        self.submitted()
        announcing = self.follow(self.states.announce("words", "host", 1, 2))
        while "/topologies/words/master" not in self.server.tree():
            self.clock.advance(0.0005)
        self.server.disconnect(self.client)
        self.settle()
        self.assertNoResult(announcing)
        self.server.reconnect(self.client)
        self.settle(2)
        self.assertEqual(self.successResultOf(announcing).epoch, 1 << EPOCH_BITS)

    def test_announceExpired(self) -> None:
        """A master that waits while its session ends waits on in the next one."""
        self.submitted()
        self.done(self.states.announce("words", "host", 1, 2))
        second = self.begin(self.others.announce("words", "other", 3, 4))
        self.server.expire(self.other)
        self.settle()
        self.assertNoResult(second)
        self.server.expire(self.client)
        self.settle()
        self.assertEqual(self.successResultOf(second).epoch, 2 << EPOCH_BITS)

    def test_unreadableMaster(self) -> None:
        """A node that no master has written counts as none."""
        self.submitted()
        seen: list[MasterLocation | None] = []
        self.states.watchMaster("words", seen.append)
        self.client.create("/topologies/words/master", b"?")
        self.settle()
        self.assertEqual(seen, [None, None])

    # -- containers

    def test_containers(self) -> None:
        """A container's executor waits for the end of the one before."""
        self.submitted()
        self.done(self.states.claimContainer("words", 1, 100, lambda: None))
        waits: list[None] = []
        second = self.begin(
            self.others.claimContainer("words", 1, 10_000, lambda: waits.append(None))
        )
        self.assertEqual((self.done(self.states.containers("words")), len(waits)), ([1], 1))
        self.server.expire(self.client)
        self.settle()
        self.successResultOf(second)
        third = self.begin(self.states.claimContainer("words", 1, 1_000, lambda: None))
        self.settle(5)
        self.failureResultOf(third, NodeExistsException)

    def test_errors(self) -> None:
        """What has no answer is not swallowed."""
        self.submitted()
        reading = self.follow(self.states.definition("words"))
        self.server.disconnect(self.client)
        self.settle(60)
        self.failureResultOf(reading, ConnectionLossException, SessionExpiredException)
