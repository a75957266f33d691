"""
Tests for L{pylogbroker.broker.registration}, on a ZooKeeper in memory whose clock stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.registration import OWN_PATIENCE_COUNT, Registration
from pylogbroker.errors import (
    ConfigurationError,
    ConnectionLossException,
    NoNodeException,
    SessionExpiredException,
)
from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient

SESSION_MS = 6_000
BEGIN = 1_795_194_782.704  # as in golden/zookeeper-tree.txt
OWN = "/brokers/ids/0"


class RegistrationTests(SynchronousTestCase):
    """
    Registering broker 0, which has two partitions of a topic, and three of the topic C{three}.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(BEGIN)
        self.server = FakeZookeeper(self.clock, latencyMs=2)

    def client(self) -> FakeZookeeperClient:
        client = self.server.client(SESSION_MS)
        connecting = client.connect()
        self.settle()
        self.successResultOf(connecting)
        return client

    def settle(self, seconds: float = 0.5) -> None:
        """Let what is on its way arrive; much less than a retry."""
        for _step in range(100):
            self.clock.advance(seconds / 100)

    def registration(self, client: Any, host: str = "127.0.0.1", port: int = 29095) -> Registration:
        return Registration(
            self.clock, client, 0, host, port, lambda topic: 3 if topic == "three" else 2
        )

    def started(self, *topics: str) -> tuple[FakeZookeeperClient, Registration]:
        client = self.client()
        registration = self.registration(client)
        starting = registration.start(topics)
        self.settle()
        self.successResultOf(starting)
        return client, registration

    def values(self) -> dict[str, bytes]:
        """The ephemeral nodes."""
        return {path: data for path, (data, owner) in self.server.tree().items() if owner}

    def outcome(self, starting: Deferred[None]) -> list[Any]:
        outcome: list[Any] = []
        starting.addBoth(outcome.append)
        return outcome

    def test_tree(self) -> None:
        """
        The tree is that of 0.7.2: parents without data that stay, one ephemeral node for the
        broker, one for each topic with its partitions.
        """
        client, registration = self.started("beta", "alpha", "three")
        millis, session = int(BEGIN * 1000), client.session_id
        tree = self.server.tree()
        value, owner = tree.pop(OWN)
        self.assertRegex(value.decode(), r"^127\.0\.0\.1-\d{13}:127\.0\.0\.1:29095$")
        self.assertLess(int(value.split(b":")[0].split(b"-")[1]) - millis, 1000)
        self.assertEqual(owner, session)
        parents = (
            "/brokers",
            "/brokers/ids",
            "/brokers/topics",
            "/brokers/topics/alpha",
            "/brokers/topics/beta",
            "/brokers/topics/three",
        )
        counts = {
            "/brokers/topics/alpha/0": b"2",
            "/brokers/topics/beta/0": b"2",
            "/brokers/topics/three/0": b"3",
        }
        self.assertEqual(
            tree,
            {
                **dict.fromkeys(parents, (None, 0)),
                **{path: (count, session) for path, count in counts.items()},
            },
        )
        self.assertTrue(registration.isRegistered)

    def test_ownFirst(self) -> None:
        """C{start} fires when the broker's own node is there; topics follow."""
        registration = self.registration(self.client())
        starting = self.outcome(registration.start(["alpha"]))
        self.assertFalse(registration.isRegistered)
        while not starting:
            self.clock.advance(0.001)
        self.assertEqual((starting, list(self.values())), ([None], [OWN]))
        self.settle()
        self.assertEqual(list(self.values()), [OWN, "/brokers/topics/alpha/0"])

    def test_newTopic(self) -> None:
        """A new topic is registered when it is told of; telling it again changes nothing."""
        _client, registration = self.started()
        registration.topicCreated("new")
        registration.topicCreated("new")
        self.settle()
        self.assertEqual(self.values()["/brokers/topics/new/0"], b"2")
        zxid = self.server._zxid
        registration.topicCreated("new")
        self.settle()
        self.assertEqual(self.server._zxid, zxid)

    def test_topicInARound(self) -> None:
        """A topic that comes while others are being registered is not forgotten."""
        _client, registration = self.started()
        registration.topicCreated("one")
        self.clock.advance(0.001)
        registration.topicCreated("two")
        self.settle(RETRY_INTERVAL_MS / 1000 + 0.5)
        self.assertEqual(
            sorted(self.values()), [OWN, "/brokers/topics/one/0", "/brokers/topics/two/0"]
        )

    def test_duplicate(self) -> None:
        """
        Another broker with the number, which stays, is an error that names both and the node, after
        twice the session's time.
        """
        self.started()
        registration = self.registration(self.client(), "10.0.0.2", 9092)
        with capturedLogs() as events:
            starting = registration.start([])
            self.settle(2 * SESSION_MS / 1000 - 0.1)
            self.assertNoResult(starting)
            self.settle()
        error = str(self.failureResultOf(starting, ConfigurationError).value)
        for part in ("brokerid=0", "127.0.0.1:29095", "10.0.0.2:9092", OWN, "12000 ms"):
            self.assertIn(part, error)
        self.assertEqual(
            [formatEvent(event) for event in events],
            [
                f"{OWN} is taken by a broker at 127.0.0.1:29095: "
                "waiting 12000 ms for its session to end"
            ],
        )

    def test_garbageInTheWay(self) -> None:
        """
        Foreign data in a persistent node in the broker's place is shown as it is, without waiting.
        """
        other = self.client()
        for path in ("/brokers", "/brokers/ids"):
            other.create(path)
            self.settle()
        other.create(OWN, b"\xffgarbage")
        self.settle()
        starting = self.registration(self.client()).start([])
        self.settle()
        self.assertIn(
            r"b'\xffgarbage'", str(self.failureResultOf(starting, ConfigurationError).value)
        )

    def test_fastRestart(self) -> None:
        """
        A broker that is restarted before its old session has expired waits for that, and then is
        registered, as what it is now (gotchas 9, 10).
        """
        old, before = self.started("alpha")
        before.stop()
        self.server.disconnect(old)
        client = self.client()
        starting = self.registration(client, port=9999).start(["alpha"])
        self.settle(SESSION_MS / 1000 - 1)
        self.assertNoResult(starting)
        self.settle(1.5)
        self.successResultOf(starting)
        tree = self.server.tree()
        self.assertTrue(tree[OWN][0].endswith(b":127.0.0.1:9999"))
        self.assertEqual(
            (tree[OWN][1], tree["/brokers/topics/alpha/0"]),
            (client.session_id, (b"2", client.session_id)),
        )

    def test_fastRestartOfShortSessions(self) -> None:
        """It waits as long as the server lets sessions live, though shorter ones were asked for."""
        self.server.sessionTimeoutMsMin = 3 * SESSION_MS
        old, before = self.started()
        before.stop()
        self.server.disconnect(old)
        client = self.client()
        with capturedLogs() as events:
            starting = self.registration(client).start([])
            self.settle(3 * SESSION_MS / 1000 - 1)
        self.assertNoResult(starting)
        self.assertIn("waiting 36000 ms", formatEvent(events[0]))
        self.settle(1.5)
        self.successResultOf(starting)
        self.assertEqual(self.server.tree()[OWN][1], client.session_id)

    def test_duplicateOfItself(self) -> None:
        """
        Where the entry that stays has the address of this broker it is not called another one, and
        waited for much longer: a server may begin anew.
        """
        self.started()
        starting = self.registration(self.client()).start([])
        for _time in range(OWN_PATIENCE_COUNT):
            self.assertNoResult(starting)
            self.settle(2 * SESSION_MS / 1000)
            self.settle()
        error = str(self.failureResultOf(starting, ConfigurationError).value)
        self.assertIn("probably its own session from before", error)
        self.assertEqual(error.count("127.0.0.1:29095"), 1)

    def test_persistent(self) -> None:
        """
        An entry that another program has made persistent never goes: the start fails at once.
        """
        other = self.client()
        for path, data in (("/brokers", b""), ("/brokers/ids", b""), (OWN, b"x:other:1")):
            other.create(path, data)
        self.settle()
        starting = self.registration(self.client()).start([])
        self.settle()
        self.assertIn("delete it", str(self.failureResultOf(starting, ConfigurationError).value))

    def test_deletedBySomebody(self) -> None:
        """
        If another program deletes or overwrites the broker's entry, the broker registers itself
        and its topics again a moment later, and logs it each time.
        """
        client, registration = self.started("alpha")
        other = self.client()
        before = self.values()
        for _time in range(2):
            with capturedLogs() as events:
                for path in (OWN, "/brokers/topics/alpha/0"):
                    other.delete(path)
                self.settle()
                self.assertEqual((self.values(), registration.isRegistered), ({}, False))
                self.settle(RETRY_INTERVAL_MS / 1000)
            self.assertEqual(list(self.values()), list(before))
            self.assertEqual(
                {owner for _data, owner in self.server.tree().values()}, {0, client.session_id}
            )
            self.assertEqual(
                [formatEvent(event) for event in events],
                [f"{OWN} was deleted, and not by this broker: registering broker 0 again"],
            )
        with capturedLogs() as events:
            other.set(OWN, b"x:elsewhere:1")
            self.settle(RETRY_INTERVAL_MS / 1000 + 0.5)
        self.assertTrue(self.values()[OWN].endswith(b":127.0.0.1:29095"))
        self.assertEqual(
            [formatEvent(event) for event in events],
            [f"{OWN} was changed, and not by this broker: registering broker 0 again"],
        )
        self.assertTrue(registration.isRegistered)
        zxid = self.server._zxid
        self.settle(10 * RETRY_INTERVAL_MS / 1000)
        self.assertEqual(self.server._zxid, zxid)

    def test_deletedMeanwhile(self) -> None:
        """
        So it is with one that was deleted while the connection was lost, or before it could be
        looked at.
        """
        client, _registration = self.started()
        other = self.client()
        self.server.disconnect(client)
        other.delete(OWN)
        self.settle()
        self.server.reconnect(client)
        self.settle(RETRY_INTERVAL_MS / 1000 + 0.5)
        self.assertEqual(self.server.tree()[OWN][1], client.session_id)
        for step in range(30):
            self.setUp()
            client, other = self.client(), self.client()
            starting = self.registration(client).start([])
            for _ in range(step):
                self.clock.advance(0.001)
            other.delete(OWN).addErrback(lambda failure: failure.trap(NoNodeException))
            self.settle(RETRY_INTERVAL_MS / 1000 + 0.5)
            self.successResultOf(starting)
            self.assertEqual(self.server.tree()[OWN][1], client.session_id, step)

    def test_takenAfterDeletion(self) -> None:
        """
        Another broker that takes the number meanwhile keeps it: there is no fight, and this one is
        registered when the other has gone.
        """
        client, registration = self.started()
        other = self.client()
        other.delete(OWN)
        second = self.registration(other, "10.0.0.2").start([])
        self.settle()
        self.successResultOf(second)
        with capturedLogs() as events:
            self.settle(2 * SESSION_MS / 1000 + 5)
        self.assertEqual(self.server.tree()[OWN][1], other.session_id)
        self.assertFalse(registration.isRegistered)
        self.assertTrue(
            any(
                "10.0.0.2:29095" in formatEvent(event) and "tried again" in formatEvent(event)
                for event in events
            )
        )
        other.close()
        self.settle(2)
        self.assertEqual(
            (self.server.tree()[OWN][1], registration.isRegistered), (client.session_id, True)
        )

    def test_deletedAfterStop(self) -> None:
        """Who has stopped takes no notice."""
        _client, registration = self.started()
        registration.stop()
        with capturedLogs() as events:
            self.client().delete(OWN)
            self.settle(RETRY_INTERVAL_MS / 1000 + 1)
        self.assertEqual((self.values(), events), ({}, []))

    def test_expiry(self) -> None:
        """
        After an expiry everything is registered again, in the new session, with a new creation
        time.
        """
        client, registration = self.started("alpha")
        registration.topicCreated("beta")
        self.settle()
        before = self.values()
        self.clock.advance(5)
        self.server.expire(client)
        self.assertEqual((self.values(), registration.isRegistered), ({}, False))
        self.settle()
        self.assertEqual(list(self.values()), list(before))
        self.assertNotEqual(self.values()[OWN], before[OWN])
        self.assertEqual(
            {owner for _data, owner in self.server.tree().values()}, {0, client.session_id}
        )
        self.assertTrue(registration.isRegistered)

    def interruptedStarts(self, interrupt: Callable[[Any], object]) -> None:
        """
        Nothing is left out in the end by starts that are interrupted at any moment.

        @param interrupt: called with the client.
        """
        for step in range(40):
            self.setUp()
            client = self.client()
            registration = self.registration(client)
            starting = self.outcome(registration.start(["alpha", "beta"]))
            for _ in range(step):
                self.clock.advance(0.001)
            interrupt(client)
            self.settle(2 * RETRY_INTERVAL_MS / 1000)
            self.assertEqual(starting, [None], step)
            self.assertEqual(
                list(self.values()),
                [OWN, "/brokers/topics/alpha/0", "/brokers/topics/beta/0"],
                step,
            )

    def test_expiryInARound(self) -> None:
        """The session expires."""
        self.interruptedStarts(lambda client: self.server.expire(client))

    def test_lostInARound(self) -> None:
        """The connection is lost for a moment."""

        def lose(client: Any) -> None:
            self.server.disconnect(client)
            self.clock.advance(0.001)
            self.server.reconnect(client)

        self.interruptedStarts(lose)

    def test_expiryAgainAndAgain(self) -> None:
        """A start whose sessions all expire fails in the end."""
        client = self.client()
        starting = self.outcome(self.registration(client).start([]))
        for _ in range(OWN_PATIENCE_COUNT):
            self.assertEqual(starting, [])
            self.server.expire(client)
            self.clock.advance(RETRY_INTERVAL_MS / 2000)  # there is a new session
            self.clock.advance(RETRY_INTERVAL_MS / 2000)
        starting[0].trap(SessionExpiredException)

    def test_suspended(self) -> None:
        """
        A connection that was lost while a topic should have been registered: that is done when it
        is back.
        """
        client, registration = self.started("alpha")
        self.server.disconnect(client)
        registration.topicCreated("beta")
        self.settle(3)
        self.assertNotIn("/brokers/topics/beta/0", self.values())
        self.server.reconnect(client)
        self.settle(RETRY_INTERVAL_MS / 1000 + 0.5)
        self.assertEqual(
            list(self.values()), [OWN, "/brokers/topics/alpha/0", "/brokers/topics/beta/0"]
        )

    def test_cutInARound(self) -> None:
        """
        A connection that is lost at any moment while topics are registered leaves nothing out in
        the end.
        """
        for step in range(20):
            self.setUp()
            client, registration = self.started()
            registration.topicCreated("alpha")
            registration.topicCreated("beta")
            for _ in range(step):
                self.clock.advance(0.001)
            self.server.disconnect(client)
            self.settle(1)
            self.server.reconnect(client)
            self.settle(2 * RETRY_INTERVAL_MS / 1000)
            self.assertEqual(
                list(self.values()),
                [OWN, "/brokers/topics/alpha/0", "/brokers/topics/beta/0"],
                step,
            )
            self.assertTrue(registration.isRegistered)

    def test_conflictOfOneTopic(self) -> None:
        """
        A topic's node that another session holds keeps no other topic from being registered. The
        broker tries again until the node is free.
        """
        other = self.client()
        for path in ("/brokers", "/brokers/topics", "/brokers/topics/alpha"):
            other.create(path)
            self.settle()
        other.create("/brokers/topics/alpha/0", b"7", flags=EPHEMERAL)
        self.settle()
        client, registration = self.started("alpha", "beta")
        self.assertEqual(self.values()["/brokers/topics/beta/0"], b"2")
        self.assertFalse(registration.isRegistered)
        other.close()
        self.settle(RETRY_INTERVAL_MS / 1000 + 0.5)
        self.assertEqual(self.server.tree()["/brokers/topics/alpha/0"], (b"2", client.session_id))
        self.assertTrue(registration.isRegistered)

    def test_oddTopic(self) -> None:
        """A topic whose name ZooKeeper cannot have is said, once, and left out."""
        with capturedLogs() as events:
            _client, registration = self.started("a\x01b", "beta")
        self.assertIn("/brokers/topics/beta/0", self.values())
        self.assertEqual(
            len([event for event in events if "cannot be registered" in formatEvent(event)]), 1
        )
        self.assertTrue(registration.isRegistered)

    def test_duplicateAfterExpiry(self) -> None:
        """
        A number that another broker has taken after an expiry is said again and again, and had as
        soon as the other goes.
        """
        client, registration = self.started("alpha")
        self.server.disconnect(client)
        self.settle(SESSION_MS / 1000 + 1)
        other = self.client()
        second = self.registration(other, "10.0.0.2").start([])
        self.settle()
        self.successResultOf(second)
        with capturedLogs() as events:
            self.server.reconnect(client)
            self.settle(2 * SESSION_MS / 1000 + 1)
        self.assertTrue(
            any(
                "10.0.0.2:29095" in formatEvent(event) and "tried again" in formatEvent(event)
                for event in events
            )
        )
        other.close()
        self.settle(2)
        self.assertEqual(self.server.tree()[OWN][1], client.session_id)
        self.assertTrue(registration.isRegistered)

    def test_bug(self) -> None:
        """An unexpected failure is logged with its traceback, and the round is tried again."""
        client = self.client()
        counts = iter((lambda: 1 / 0, lambda: 2))
        registration = Registration(
            self.clock, client, 0, "host", 1, lambda topic: int(next(counts)())
        )
        registration.start(["alpha"])
        self.settle()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.settle(RETRY_INTERVAL_MS / 1000)
        self.assertTrue(registration.isRegistered)

    def test_stop(self) -> None:
        """
        After C{stop} nothing is registered any more, whatever is under way.
        """
        client, registration = self.started("alpha")
        self.server.disconnect(client)
        registration.topicCreated("beta")
        self.settle(13)  # the request has failed, and another round is due
        registration.stop()
        registration.stop()
        self.server.reconnect(client)
        registration.topicCreated("gamma")
        self.settle(5)
        self.assertEqual(self.values(), {})

    def test_stopInARound(self) -> None:
        """What is under way then fails without a word."""
        client, registration = self.started()
        registration.topicCreated("alpha")
        with capturedLogs() as events:
            registration.stop()
            client.close()
            self.settle(5)
        self.assertEqual((events, self.values()), ([], {}))

    def test_startFails(self) -> None:
        """A start that loses its connection again and again fails as the last request does."""
        client = self.client()
        starting = self.registration(client).start([])
        for _ in range(OWN_PATIENCE_COUNT):
            self.assertNoResult(starting)
            self.server.disconnect(client)
            self.server.reconnect(client)
            self.clock.advance(RETRY_INTERVAL_MS / 1000)
        self.failureResultOf(starting, ConnectionLossException)

    def test_literal(self) -> None:
        """An IPv6 literal is refused, since readers of the value split at colons."""
        error = self.assertRaises(ConfigurationError, self.registration, self.client(), "::1")
        self.assertIn("hostname=::1", str(error))
