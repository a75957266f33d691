"""Tests for L{pylogbroker.consumer.fetchermanager}."""

from __future__ import annotations

from typing import Any

from twisted.logger import capturedLogs, formatEvent

from pylogbroker.cluster.znodes import BrokerRegistration
from tests.consumer.groupcase import GroupCase, drain, place


class FetchersTests(GroupCase):
    """Brokers come, go and move, and each partition is fetched from where it is."""

    def test_brokersComeAndGo(self) -> None:
        """
        ZKLoadBalanceTest.testLoadBalance: with 400 alone, then 200 and 300, then without 400, the
        two members own what is listed.
        """
        self.cluster.removeBroker(0)
        self.cluster.addBroker(400, {"t": 1})
        first, second = (
            self.member({"consumerid": "consumer1"}),
            self.member({"consumerid": "consumer2"}),
        )
        self.streams(first)
        self.assertEqual(self.owners(), {"400-0": "g_consumer1-0"})
        self.streams(second)
        self.assertEqual(self.owners(), {"400-0": "g_consumer1-0"})
        self.cluster.addBroker(200, {"t": 2})
        self.cluster.addBroker(300, {"t": 2})
        self.cluster.advance(3)
        one, two = "g_consumer1-0", "g_consumer2-0"
        self.assertEqual(
            self.owners(), {"200-0": one, "200-1": one, "300-0": one, "300-1": two, "400-0": two}
        )
        self.cluster.removeBroker(400)
        self.cluster.advance(3)
        self.assertEqual(self.owners(), {"200-0": one, "200-1": one, "300-0": two, "300-1": two})

    def test_brokerMoves(self) -> None:
        """
        A broker that comes back elsewhere is found there; what is queued stays, and nothing comes
        twice.
        """
        self.broker.log("t", 0).append(b"a", b"b")
        member = self.member()
        (stream,) = self.streams(member)
        moving = self.cluster.sessions[0]
        self.cluster.do(self.cluster.admin.set("/brokers/ids/0", b"c:host0.elsewhere:9092"))
        self.cluster.do(moving.create("/brokers/ids/1", b"c:host1:9092", flags=1))
        self.broker.log("t", 0).append(b"c")
        self.cluster.advance(1.1)
        self.assertEqual(drain(stream), [b"a", b"b", b"c"])
        self.assertEqual(len(self.broker.network.attempts), 2)
        self.assertEqual(len(member.owned), 2)

    def test_readAgain(self) -> None:
        """
        A partition is read again from an offset on, what is queued of it is forgotten, and others
        are not touched; what somebody else has stored meanwhile counts more; and one that is not
        fetched stays so.
        """
        self.broker.log("t", 0).append(b"a", b"b", b"c")
        self.broker.log("t", 1).append(b"x")
        member = self.member({"autocommit.enable": "false"})
        (stream,) = self.streams(member)
        self.assertEqual(sorted(drain(stream)), [b"a", b"b", b"c", b"x"])
        member.seek(place("0-0"), 11)
        member.seek(place("9-9"), 11)
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"b", b"c"])
        self.soon(member.commitOffsets())
        self.cluster.write("/consumers/g/offsets/t/0-0", b"22")
        member.seek(place("0-0"), 0)
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"c"])
        self.assertEqual(set(member.owned), {place("0-0"), place("0-1")})

    def test_unregisteredBrokerIsToldOnce(self) -> None:
        """That a broker is not registered is said once, however often a member comes by."""
        self.cluster.write("/brokers/topics/t/7", b"1")
        self.cluster.write("/consumers/g/owners/t/0-0", b"nobody")
        with capturedLogs() as events:
            self.streams(self.member())
            self.cluster.advance(60)
        self.assertEqual(
            sum("broker 7 is not registered" in formatEvent(event) for event in events), 1
        )

    def test_unregisteredBroker(self) -> None:
        """
        Partitions of a broker that is not registered are shared out all the same, do not stop the
        others, and are read when it comes.
        """
        self.broker.log("t", 0).append(b"a")
        self.cluster.write("/brokers/topics/t/7", b"1")
        member = self.member()
        (stream,) = self.streams(member)
        self.assertEqual(set(member.owned), {place("0-0"), place("0-1"), place("7-0")})
        self.assertEqual(drain(stream), [b"a"])
        broker = self.cluster.addBroker(7, {})
        broker.log("t", 0).append(b"b")
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"b"])

    def test_noAddress(self) -> None:
        """
        A broker of whose address no endpoint can be made, by its own fault or C{broker.endpoint}'s,
        is told of once; its partitions wait, the others are read, and so are its own when it is
        somewhere.
        """
        endpointFor = self.cluster.endpointFor

        def some(registration: BrokerRegistration) -> Any:
            return "ev[il:1" if registration.port == 1 else endpointFor(registration)

        self.patch(self.cluster, "endpointFor", some)
        self.broker.log("t", 0).append(b"a")
        bad = self.cluster.addBroker(7, {"t": 1})
        bad.log("t", 0).append(b"b")
        self.cluster.do(self.cluster.admin.set("/brokers/ids/7", b"c:host7:1"))
        with capturedLogs() as events:
            member = self.member()
            (stream,) = self.streams(member)
            self.cluster.addBroker(8, {"t": 1})
            self.cluster.advance(1)
        self.assertEqual(
            set(member.owned), {place("0-0"), place("0-1"), place("7-0"), place("8-0")}
        )
        self.assertEqual(drain(stream), [b"a"])
        told = [formatEvent(event) for event in events if event["log_level"].name == "warn"]
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], r"broker 7 cannot be asked: .*ev\[il")
        self.cluster.do(self.cluster.admin.set("/brokers/ids/7", b"c:host7:9092"))
        self.cluster.addBroker(9, {"t": 1})
        self.cluster.advance(1.1)
        self.assertEqual(drain(stream), [b"b"])
