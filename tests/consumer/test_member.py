"""Tests for L{pylogbroker.consumer.member}."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from pylogbroker.cluster.subscription import WildcardSubscription
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import (
    SessionExpiredException,
)
from tests.consumer.groupcase import GroupCase, drain


class SessionTests(GroupCase):
    """The end of a session, and lost connections."""

    def test_positionsSurvive(self) -> None:
        """
        Feature 118, gotcha 55: after an expiry the member registers again and goes on where it was:
        nothing is lost, and nothing comes twice.
        """
        self.broker.log("t", 0).append(*(b"%d" % index for index in range(10)))
        member = self.member()
        (stream,) = self.streams(member)
        got = [stream.take() for _ in range(5)]
        self.cluster.zookeeper.expire(self.sessions[member])
        self.assertIsNone(stream.take(), "what is queued may be another's")
        self.cluster.advance(1)
        self.assertEqual(len(member.owned), 2)
        self.assertEqual(
            [each.value for each in got if each is not None] + drain(stream),
            [b"%d" % index for index in range(10)],
        )

    def test_otherMovedOn(self) -> None:
        """If another had the partition meanwhile and committed, what it stored counts."""
        self.broker.log("t", 0).append(*(b"%d" % index for index in range(10)))
        member = self.member()
        (stream,) = self.streams(member)
        for _ in range(3):
            stream.take()
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.advance(7)
        self.cluster.write("/consumers/g/offsets/t/0-0", str(8 * 11).encode())
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"8", b"9"])

    def test_yieldDoesNotCommitOldPositions(self) -> None:
        """
        What a member claims back after an expiry and has to give up again is not committed from
        memory: another has moved on.
        """
        self.broker.log("t", 0).append(*(b"%d" % index for index in range(10)))
        member = self.member()
        (stream,) = self.streams(member)
        for _ in range(3):
            stream.take()
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.advance(7)
        self.cluster.write("/consumers/g/offsets/t/0-0", str(8 * 11).encode())
        self.cluster.write("/consumers/g/owners/t/0-1", b"somebody")
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.turn()
        self.assertEqual(self.owners(), {"0-1": "somebody"})
        self.assertEqual(self.offset("0-0"), "88")

    def test_expiryInARebalance(self) -> None:
        """
        A session that ends in any moment of a rebalance is followed by a new registration and a
        share.
        """
        for steps in range(1, 30):
            member = self.member()
            self.cluster.zookeeper.latency = 0.01
            joining = member.createMessageStreams({"t": 1})
            self.cluster.advance(0.005 + 0.02)
            self.cluster.advance(0.01 * steps)
            self.cluster.zookeeper.expire(self.sessions[member])
            self.cluster.advance(2)
            if member.owned:
                self.assertEqual(len(member.owned), 2, steps)
                self.successResultOf(joining)
            else:
                self.failureResultOf(joining, SessionExpiredException)
            self.cluster.zookeeper.latency = 0
            self.end(member)

    def test_registeringTakesTime(self) -> None:
        """A new session that cannot register at once tries again."""
        member = self.member()
        self.streams(member)
        path = "/consumers/g/ids/g_m1"
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.advance(7)
        self.cluster.write(path, b"somebody")
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.advance(1)
        self.assertEqual(member.owned, {})
        self.cluster.do(self.cluster.admin.delete(path))
        self.cluster.advance(1)
        self.assertEqual(len(member.owned), 2)

    def test_registeringIsCutShort(self) -> None:
        """A session that ends while the member registers in it is followed by the next."""
        member = self.member()
        self.streams(member)
        self.cluster.zookeeper.latency = 0.05
        for _time in range(3):
            self.cluster.zookeeper.expire(self.sessions[member])
            self.cluster.advance(0.02)
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.advance(1)
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.advance(3)
        self.assertEqual(len(member.owned), 2)

    def test_lostConnection(self) -> None:
        """
        A lost connection to ZooKeeper does not stop the fetching; what changed meanwhile is noticed
        when it is back.
        """
        member = self.member()
        (stream,) = self.streams(member)
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.broker.log("t", 0).append(b"a")
        self.cluster.addTopic(0, "u", 1)
        other = self.member()
        self.cluster.advance(1.5)
        self.assertEqual(drain(stream), [b"a"])
        joining = other.createMessageStreams({"t": 1})
        self.cluster.advance(1)
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.advance(2)
        self.successResultOf(joining)
        self.assertEqual([len(each.owned) for each in (member, other)], [1, 1])

    def test_clientClosed(self) -> None:
        """
        A client that its owner closes under a member ends the fetching; the member can still be
        shut down.
        """
        self.broker.log("t", 0).append(b"a")
        member = self.member()
        (stream,) = self.streams(member)
        self.sessions[member].close()
        self.cluster.turn()
        self.assertEqual(member.owned, {})
        self.assertIsNone(stream.take())

    def test_expiryAtTheEnd(self) -> None:
        """A session that ends while the member leaves does not keep it from leaving."""
        self.cluster.zookeeper.latency = 0.05
        member = ConsumerConnector(
            self.clock,
            {"groupid": "g"},
            session := self.cluster.zookeeper.client(),
            endpointFor=self.cluster.endpointFor,
        )
        member.connect()
        self.cluster.advance(1)
        self.soon(member.createMessageStreams({"t": 1}))
        ending = member.shutdown()
        self.cluster.advance(0.02)
        self.cluster.zookeeper.expire(session)
        self.cluster.advance(2)
        self.successResultOf(ending)
        session.close()


class FailingOnce(WildcardSubscription):
    """Has no memory left when it is asked for the third time, which is when a share is reckoned."""

    asked = count(1)

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """As others, but for that."""
        if next(self.asked) == 3:
            raise MemoryError("no room for all the threads")
        return super().streamCounts(topics)


class UnforeseenTests(GroupCase):
    """What nobody thought of."""

    def test_shareCannotBeReckoned(self) -> None:
        """
        An answer that cannot be dealt with, whatever is raised, is a failed attempt: it is logged,
        and tried again.
        """
        member = self.member()
        joining = member.createMessageStreamsByFilter(FailingOnce(True, 1, "t"))
        self.cluster.turn()
        (failure,) = self.flushLoggedErrors(MemoryError)
        self.assertIn("no room", str(failure.value))
        self.assertNoResult(joining)
        self.soon(joining)
        self.assertEqual(len(member.owned), 2)
