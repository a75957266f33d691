"""
Tests for L{pylogbroker.consumer.connector}: members of groups, on a clock, with a ZooKeeper in
memory and brokers at the far ends of puppet lines.
"""

from __future__ import annotations

import re
import sqlite3
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorCore
from zope.interface import alsoProvides

from pylogbroker.cluster.subscription import blacklist, whitelist
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.offsetstores import MemoryOffsetStore, SqliteOffsetStore
from pylogbroker.errors import (
    ClosedError,
    ClosingException,
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    InvalidNameError,
    NoNodeException,
    OffsetConflictError,
    OffsetOutOfRangeError,
    RebalanceFailedError,
    SessionExpiredException,
    ZookeeperTimeoutException,
)
from pylogbroker.records.compression import GZIP
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.broker.manualbroker import capture
from tests.consumer.fakebroker import FarCluster
from tests.consumer.groupcase import GroupCase, deleteTree, drain, place
from tests.consumer.model07 import Consumer07


class JoiningTests(GroupCase):
    """Connecting, asking for streams, leaving."""

    def test_names(self) -> None:
        """
        The consumer id, the registration, the owners and the offsets are 0.7.2's, byte for byte, as
        in golden/zookeeper-tree.txt.
        """
        member = ConsumerConnector(
            self.clock,
            {"groupid": "grp"},
            self.cluster.zookeeper.client(),
            hostName="vm",
            random=Random(1),
            endpointFor=self.cluster.endpointFor,
        )
        self.assertEqual(
            member.consumerId,
            f"grp_vm-1795194789952-{Random(1).getrandbits(64):x}"[
                : len("grp_vm-1795194789952-a13bd6c8")
            ],
        )
        self.cluster.do(member.connect())
        self.cluster.do(member.createMessageStreams({"t": 1}))
        self.cluster.do(member.commitOffsets())
        tree = {
            path: data
            for path, (data, _owner) in self.cluster.zookeeper.tree().items()
            if path.startswith("/consumers")
        }
        self.assertEqual(
            tree,
            {
                "/consumers": None,
                "/consumers/grp": None,
                "/consumers/grp/ids": None,
                f"/consumers/grp/ids/{member.consumerId}": b'{ "t": 1 }',
                "/consumers/grp/offsets": None,
                "/consumers/grp/offsets/t": None,
                "/consumers/grp/offsets/t/0-0": b"0",
                "/consumers/grp/offsets/t/0-1": b"0",
                "/consumers/grp/owners": None,
                "/consumers/grp/owners/t": None,
                "/consumers/grp/owners/t/0-0": f"{member.consumerId}-0".encode(),
                "/consumers/grp/owners/t/0-1": f"{member.consumerId}-0".encode(),
            },
        )
        self.cluster.do(member.shutdown())
        left = [path for path in self.cluster.zookeeper.tree() if path.startswith("/consumers")]
        self.assertEqual(
            left,
            [path for path in tree if "_vm-" not in path and not re.search("/owners/t/", path)],
        )

    def test_fixedId(self) -> None:
        """C{consumerid} is taken as it is."""
        self.assertEqual(self.member({"consumerid": "consumer1"}).consumerId, "g_consumer1")

    def test_onlyOnce(self) -> None:
        """Streams can be asked for once, by either call."""
        member = self.member()
        self.streams(member)
        self.failureResultOf(member.createMessageStreams({"t": 1}), ConsumerStateError)
        self.failureResultOf(
            member.createMessageStreamsByFilter(whitelist("t")), ConsumerStateError
        )

    def test_states(self) -> None:
        """Streams need a connection; nothing comes after the end."""
        member = ConsumerConnector(self.clock, {"groupid": "g"}, self.cluster.zookeeper.client())
        self.failureResultOf(member.createMessageStreams({"t": 1}), ConsumerStateError)
        self.cluster.do(member.start())
        self.assertIs(self.cluster.do(member.connect()), member)
        self.cluster.do(member.shutdown())
        self.cluster.do(member.shutdown())
        self.failureResultOf(member.connect(), ConsumerStateError)
        self.failureResultOf(member.createMessageStreams({"t": 1}), ConsumerStateError)

    def test_badInput(self) -> None:
        """
        Names with a slash, numbers of streams below 1 and a missing C{zk.connect} are refused by
        name.
        """
        with self.assertRaisesRegex(InvalidNameError, "'/'"):
            ConsumerConnector(self.clock, {"groupid": "a/b"}, self.cluster.zookeeper.client())
        with self.assertRaisesRegex(ConfigurationError, r"zk\.connect"):
            ConsumerConnector(self.clock, {"groupid": "g"})
        member = self.member()
        for count in (0, -1):
            self.assertRaises(ValueError, member.createMessageStreams, {"t": count})
            self.assertRaises(
                ValueError, member.createMessageStreamsByFilter, whitelist("t"), count
            )
        self.failureResultOf(member.createMessageStreams({"a/b": 1}), InvalidNameError)
        self.failureResultOf(member.createMessageStreams({"a" * 40_000: 1}), InvalidNameError)
        self.assertEqual(len(self.streams(member)), 1)

    def test_ownClient(self) -> None:
        """Without a client of ZooKeeper one is made for C{zk.connect}."""
        settings = ConsumerSettings.fromProperties(
            {"groupid": "g", "zk.connect": "192.0.2.1:2181"}, self.fail
        )
        member = ConsumerConnector(reactor, settings)
        self.assertIsInstance(member._zookeeper, ZookeeperClient)

    def test_unreachable(self) -> None:
        """A ZooKeeper that cannot be reached is a timed error."""
        self.cluster.zookeeper.stop()
        member = ConsumerConnector(
            self.clock,
            {"groupid": "g", "zk.connectiontimeout.ms": "1500"},
            self.cluster.zookeeper.client(),
        )
        connecting = member.connect()
        self.cluster.advance(1.4)
        self.assertNoResult(connecting)
        self.cluster.advance(0.2)
        self.failureResultOf(connecting, ZookeeperTimeoutException)

    def test_missingChroot(self) -> None:
        """
        A chroot that does not exist is an error, also by way of C{async with}, which cleans up
        behind itself.
        """
        member = ConsumerConnector(
            self.clock, {"groupid": "g"}, self.cluster.zookeeper.client(chroot="/none")
        )

        async def use() -> None:
            async with member:
                raise AssertionError("it cannot come here")

        with self.assertRaises(NoNodeException):
            self.cluster.do(use())

    def test_asContext(self) -> None:
        """C{async with} connects, and leaves the group at the end; the iteration ends, too."""
        self.broker.log("t", 0).append(b"a", b"b")
        session = self.cluster.zookeeper.client()
        got: list[Any] = []

        async def use() -> None:
            async with ConsumerConnector(
                self.clock, {"groupid": "g"}, session, endpointFor=self.cluster.endpointFor
            ) as member:
                streams = await member.createMessageStreams({"t": 1})
                async for message in streams["t"][0]:
                    got.append(message.value)
                    if len(got) == 2:
                        break

        self.cluster.do(use())
        self.assertEqual(got, [b"a", b"b"])
        self.assertEqual(self.owners(), {})
        self.assertEqual(self.offset("0-0"), "22")

    def triggers(self) -> list[Any]:
        """Have the clock take what is to be done before a reactor stops."""
        triggers: list[Any] = []
        reactor: Any = self.clock

        def add(phase: str, event: str, call: Any) -> Any:
            triggers.append((phase, event, call))
            return triggers[-1]

        reactor.addSystemEventTrigger = add
        reactor.removeSystemEventTrigger = triggers.remove
        return triggers

    def test_beforeStop(self) -> None:
        """
        A reactor can be asked to shut a consumer down before it stops, and to wait for that; one
        that is shut down earlier needs it no more.
        """
        triggers = self.triggers()
        self.broker.log("t", 0).append(b"a")
        member = self.member()
        (stream,) = self.streams(member)
        drain(stream)
        member.shutdownBeforeStop()
        member.shutdownBeforeStop()
        ((phase, event, call),) = triggers
        self.assertEqual((phase, event), ("before", "shutdown"))
        triggers.clear()
        self.cluster.do(call())
        self.assertEqual((stream.isEnded, self.owners(), self.offset("0-0")), (True, {}, "11"))
        member.shutdownBeforeStop()
        other = self.member()
        other.shutdownBeforeStop()
        self.assertEqual(len(triggers), 1)
        self.cluster.do(other.shutdown())
        self.assertEqual(triggers, [])

    def test_contextBeforeStop(self) -> None:
        """C{async with} asks a reactor for that, and who reads in it comes to the end."""
        triggers = self.triggers()
        alsoProvides(self.clock, IReactorCore)
        session = self.cluster.zookeeper.client()

        async def use() -> str:
            async with ConsumerConnector(
                self.clock, {"groupid": "g"}, session, endpointFor=self.cluster.endpointFor
            ) as member:
                async for _message in (await member.createMessageStreams({"t": 1}))["t"][0]:
                    raise AssertionError("nothing is there")
            return "goes on"

        using = Deferred.fromCoroutine(use())
        self.cluster.advance(3)
        ((_phase, _event, call),) = triggers
        triggers.clear()
        self.cluster.do(call())
        self.assertEqual((self.cluster.do(using), triggers), ("goes on", []))

    def test_joiningBeforeStop(self) -> None:
        """
        Who has no streams yet when the reactor stops is told by a L{ClosedError}, or a
        L{ClosingException}, whatever was about to be done.
        """
        alsoProvides(self.clock, IReactorCore)

        async def use(session: Any) -> None:
            async with ConsumerConnector(
                self.clock, {"groupid": "g"}, session, endpointFor=self.cluster.endpointFor
            ) as member:
                await member.createMessageStreams({"t": 1})
                raise AssertionError("it is stopped before")

        for turnCount in range(12):
            triggers = self.triggers()
            self.cluster.zookeeper.latency = 0.0
            session = self.cluster.zookeeper.client()
            self.cluster.do(session.connect())
            self.cluster.zookeeper.latency = 0.001
            using = Deferred.fromCoroutine(use(session))
            self.clock.pump([0.001] * turnCount)
            ((_phase, _event, call),) = triggers
            triggers.clear()
            stopping = call()
            self.cluster.advance(60)
            self.successResultOf(stopping)
            self.failureResultOf(using, ClosedError, ClosingException)

    def test_notRegistered(self) -> None:
        """Who cannot be registered hears so, and may try again."""
        member = self.member()
        joining = member.createMessageStreams({"t": 1})
        self.cluster.zookeeper.expire(self.sessions[member])
        self.cluster.turn()
        self.failureResultOf(joining, SessionExpiredException)
        self.assertEqual(len(self.streams(member)), 1)

    def test_shutdownWhileJoining(self) -> None:
        """Whoever waits for streams of a connector that is shut down gets an error."""
        member = self.member()
        self.cluster.write("/consumers/g/owners/t/0-0", b"nobody")
        joining = member.createMessageStreams({"t": 1})
        self.cluster.turn()
        self.assertNoResult(joining)
        self.cluster.do(member.shutdown())
        self.failureResultOf(joining, ClosedError)

    def test_shutdownWithFailingReader(self) -> None:
        """A reader that fails when a stream ends does not keep the shutdown from ending."""
        member = self.member()
        (stream,) = self.streams(member)

        def wake() -> None:
            raise RuntimeError("the reader is broken")

        drain(stream)
        stream.attach(wake)
        ending = member.shutdown()
        self.cluster.advance(1)
        self.successResultOf(ending)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_shutdownWhileRegistering(self) -> None:
        """The same a moment earlier; nothing stays behind."""
        member = self.member()
        joining = member.createMessageStreams({"t": 1})
        ending = member.shutdown()
        self.cluster.turn()
        self.failureResultOf(joining, ClosedError)
        self.successResultOf(ending)
        self.cluster.zookeeper.expire(self.sessions[member])
        self.cluster.turn()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelled(self) -> None:
        """Whoever stops waiting for streams does not stop the member."""
        member = self.member()
        joining = member.createMessageStreams({"t": 1})
        joining.cancel()
        self.failureResultOf(joining)
        self.cluster.advance(1)

    def test_emptyMap(self) -> None:
        """
        ZookeeperConsumerConnectorTest.testBasic, its end: a consumer of nothing disturbs nothing.
        """
        first = self.member()
        self.streams(first)
        nothing = self.member()
        self.assertEqual(self.cluster.do(nothing.createMessageStreams({})), {})
        self.assertEqual(self.cluster.zookeeper.tree()["/consumers/g/ids/g_m2"][0], b"{  }")
        self.cluster.advance(1)
        self.assertEqual(set(first.owned), {place("0-0"), place("0-1")})

    def test_rebalanceFails(self) -> None:
        """
        When ZooKeeper does not answer, the caller hears so after the retries; the member goes on
        trying and gets there.
        """
        member = self.member()
        self.cluster.write("/consumers/g/ids/g_other", b"{  }")
        self.cluster.zookeeper.latency = 0.01
        joining = member.createMessageStreams({"t": 1})
        self.cluster.advance(0.03)
        self.cluster.zookeeper.disconnect(self.sessions[member])
        for _attempt in range(10):
            self.cluster.advance(12.5)
        self.cluster.zookeeper.latency = 0
        self.failureResultOf(joining, RebalanceFailedError)
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.advance(1)
        self.assertEqual(set(member.owned), {place("0-0"), place("0-1")})

    def test_leavesWithoutZookeeper(self) -> None:
        """Leaving ends, in bounded time, also when ZooKeeper cannot be reached."""
        member = self.member()
        self.streams(member)
        self.cluster.zookeeper.stop()
        ending = member.shutdown()
        self.cluster.advance(60)
        self.successResultOf(ending)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class SharingTests(GroupCase):
    """Members of one group, and of two."""

    def fill(self, count: int) -> set[bytes]:
        """So many messages in each partition of broker 0."""
        payloads = {
            f"{partition}:{index}".encode() for partition in (0, 1) for index in range(count)
        }
        for partition in (0, 1):
            self.broker.log("t", partition).append(
                *(f"{partition}:{index}".encode() for index in range(count))
            )
        return payloads

    def test_queueInsidePubSubAcross(self) -> None:
        """
        Features 95 and 121: each message reaches one member of each group, in order within a
        partition.
        """
        first, second = self.member(), self.member()
        other = self.member({"groupid": "h"})
        streams = self.streams(first) + self.streams(second) + self.streams(other)
        self.cluster.advance(2)
        wanted = self.fill(50)
        self.cluster.advance(2)
        one, two, three = drain(streams[0]), drain(streams[1]), drain(streams[2])
        self.assertEqual(set(one) | set(two), wanted)
        self.assertEqual(len(one) + len(two), len(wanted))
        self.assertEqual((len(one), len(two)), (50, 50))
        self.assertEqual(set(three), wanted)
        for got in (one, two, three):
            for partition in (b"0", b"1"):
                self.assertEqual(
                    [each for each in got if each.startswith(partition)],
                    sorted(
                        (each for each in got if each.startswith(partition)),
                        key=lambda each: int(each[2:]),
                    ),
                )

    def test_handOver(self) -> None:
        """
        Features 100 and 120: when members join and leave, nothing is lost, and nothing is delivered
        twice, since positions are committed in between.
        """
        wanted = self.fill(200)
        first = self.member()
        one = self.streams(first)[0]
        got = [one.take() for _ in range(150)]
        second = self.member()
        two = self.streams(second)[0]
        got += [two.take() for _ in range(20)]
        self.cluster.do(first.shutdown())
        self.cluster.advance(2)
        values = [each.value for each in got if each is not None] + drain(two)
        self.assertEqual(sorted(values), sorted(wanted))

    def test_streamsOfATopic(self) -> None:
        """Features 96 and 97: several topics, several streams; thread i feeds stream i."""
        self.cluster.addTopic(0, "u", 1)
        member = self.member()
        streams = self.cluster.do(member.createMessageStreams({"t": 2, "u": 1}))
        self.assertEqual([len(streams[topic]) for topic in ("t", "u")], [2, 1])
        self.broker.log("t", 0).append(b"t0")
        self.broker.log("t", 1).append(b"t1")
        self.broker.log("u", 0).append(b"u0")
        self.cluster.advance(1.1)
        self.assertEqual(
            [drain(each) for each in (*streams["t"], *streams["u"])], [[b"t0"], [b"t1"], [b"u0"]]
        )

    def test_filter(self) -> None:
        """
        Features 98, 99 and gotcha 47: a filter finds topics as they appear, and thread i of every
        topic feeds stream i.
        """
        member = self.member()
        streams = self.soon(member.createMessageStreamsByFilter(whitelist("t|new.*", 5), 2))
        self.assertEqual(self.cluster.zookeeper.tree()["/consumers/g/ids/g_m1"][0], b"*2*t|new.*")
        self.cluster.addTopic(0, "newest", 2)
        self.cluster.addTopic(0, "old", 2)
        self.cluster.turn()
        for topic in ("t", "newest", "old"):
            for partition in (0, 1):
                self.broker.log(topic, partition).append(f"{topic}{partition}".encode())
        self.cluster.advance(1.1)
        self.assertEqual(
            [sorted(drain(each)) for each in streams], [[b"newest0", b"t0"], [b"newest1", b"t1"]]
        )

    def test_blacklist(self) -> None:
        """
        A blacklist takes all other topics; a filter's own number of streams holds if no other is
        given.
        """
        member = self.member()
        streams = self.soon(member.createMessageStreamsByFilter(blacklist("t", 3)))
        self.assertEqual(len(streams), 3)
        self.assertEqual(member.owned, {})
        self.cluster.addTopic(0, "u", 1)
        self.cluster.turn()
        self.assertEqual(set(member.owned), {place("0-0", "u")})

    def test_topicThatComesLater(self) -> None:
        """A topic that nobody has yet can be asked for; it is read when it is there."""
        member = self.member()
        (stream,) = self.streams(member, {"later": 1})
        self.assertEqual(member.owned, {})
        self.cluster.addTopic(0, "later", 1)
        self.broker.log("later", 0).append(b"x")
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"x"])

    def test_noBrokers(self) -> None:
        """Gotcha 61: a cluster without brokers is an empty one."""
        self.cluster.removeBroker(0)
        member = self.member()
        (stream,) = self.streams(member)
        self.assertEqual(member.owned, {})
        broker = self.cluster.addBroker(0, {"t": 1})
        broker.log("t", 0).append(b"x")
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"x"])

    def test_nothingInZookeeperYet(self) -> None:
        """Nor does it matter that no broker has ever been there."""
        self.cluster = FarCluster(self.clock)
        member = self.member()
        self.assertEqual(len(self.soon(member.createMessageStreamsByFilter(whitelist("t")))), 1)
        self.broker = self.cluster.addBroker(0, {"t": 1})
        self.cluster.advance(1)
        self.assertEqual(set(member.owned), {place("0-0")})

    def test_idle(self) -> None:
        """
        Feature 102: more members than partitions: who is left over is idle, and takes over when
        another goes.
        """
        members = [self.member() for _ in range(3)]
        for member in members:
            self.streams(member)
        self.cluster.advance(2)
        self.assertEqual([len(member.owned) for member in members], [1, 1, 0])
        self.assertTrue(members[2].isOwning)
        self.cluster.do(members[0].shutdown())
        self.cluster.advance(1)
        self.assertEqual([len(member.owned) for member in members[1:]], [1, 1])

    def test_killed(self) -> None:
        """
        A member that dies without a word loses its partitions with its session; what it had not
        committed is delivered again, and nothing is lost.
        """
        wanted = self.fill(20)
        first, second = self.member(), self.member()
        one, two = self.streams(first)[0], self.streams(second)[0]
        self.cluster.advance(1)
        drain(one)
        self.cluster.zookeeper.disconnect(self.sessions[first])
        self.cluster.advance(5.9)
        self.assertEqual(len(second.owned), 1)
        self.cluster.advance(1)
        self.assertEqual(len(second.owned), 2)
        self.cluster.advance(2)
        self.assertEqual(set(drain(two)), wanted)

    def test_with07(self) -> None:
        """
        A consumer that follows spec-0.7 zookeeper §4 to the letter shares a group with ours, as
        members come and go, and nobody fights.
        """
        theirs = [
            Consumer07(self.clock, self.cluster.zookeeper.client(), "g", name, {"t": 1})
            for name in ("a", "z")
        ]
        self.cluster.addBroker(1, {"t": 4})
        ours = self.member({"rebalance.backoff.ms": "2000"})
        self.cluster.do(theirs[0].start())
        self.cluster.advance(1)
        self.streams(ours)
        self.soon(theirs[1].start())
        self.cluster.advance(20)
        for step in range(4):
            owned = [{f"{each.partition}" for each in ours.owned}] + [
                {name for _topic, name in each.owned} for each in theirs
            ]
            self.assertEqual(
                sorted(name for names in owned for name in names),
                ["0-0", "0-1", "1-0", "1-1", "1-2", "1-3"],
                step,
            )
            self.assertEqual(
                self.owners(), {name: self.owners()[name] for names in owned for name in names}
            )
            counts = [each.attemptCount for each in theirs]
            self.cluster.advance(60)
            self.assertEqual([each.attemptCount for each in theirs], counts, "they are at rest")
            if step == 0:
                more = self.member({"rebalance.backoff.ms": "2000"})
                self.streams(more)
                self.cluster.advance(20)
                self.assertEqual(len(more.owned), 1)
                self.end(more)
            elif step == 1:
                self.cluster.zookeeper.expire(self.sessions[ours])
                self.cluster.advance(20)
            elif step == 2:
                self.soon(theirs.pop().stop())
                self.cluster.advance(20)
        self.assertEqual([each.failureCount for each in theirs], [0])


class StoredOffsetTests(GroupCase):
    """What is stored as an offset may be anything."""

    def test_storedOffset(self) -> None:
        """A stored offset that is no number is as if there were none."""
        self.cluster.write("/consumers/g/offsets/t/0-0", b"twelve")
        self.broker.log("t", 0).append(b"a")
        (stream,) = self.streams(self.member())
        self.assertEqual(drain(stream), [b"a"])


class SqliteTests(GroupCase):
    """ConsumedOffsets in the application's own transaction."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.mktemp()

    def store(self) -> SqliteOffsetStore:
        """Of a member, with a connection of its own."""
        self.connection = sqlite3.connect(self.path)
        self.addCleanup(self.connection.close)
        return SqliteOffsetStore(self.connection, "g")

    def test_insideASet(self) -> None:
        """
        A transaction may end in the midst of a compressed set: who comes next goes on behind what
        is done, and so does a member whose session is over and who comes back.
        """
        log = self.broker.log("t", 0)
        for number in range(0, 30, 10):
            log.append(*(b"%d" % each for each in range(number, number + 10)), codec=GZIP)
        got: list[bytes] = []
        for count in (3, 10, 7, 1):
            store = self.store()
            member = self.member({"autocommit.enable": "false"}, offsetStore=store)
            (stream,) = self.streams(member)
            for _message in range(count):
                message = stream.take()
                assert message is not None
                got.append(message.value)
                store.store(message.topic, message.partition, message.nextOffset)
                if len(got) % 2:
                    self.connection.commit()
                    self.cluster.zookeeper.expire(self.sessions[member])
                    self.cluster.advance(3)
            self.connection.commit()
            self.end(member)
        self.assertEqual(got, [b"%d" % number for number in range(21)])

    def test_takenOver(self) -> None:
        """
        What a member has in hand when its partition goes to another, who does the same, counts
        once: the later one is refused.
        """
        self.broker.log("t", 0).append(*(b"%d" % number for number in range(10)), codec=GZIP)
        store = self.store()
        (stream,) = self.streams(
            self.member({"consumerid": "z", "autocommit.enable": "false"}, offsetStore=store)
        )
        mine = [stream.take() for _message in range(4)]
        other = self.store()
        (taken,) = self.streams(
            self.member({"consumerid": "a", "autocommit.enable": "false"}, offsetStore=other)
        )
        theirs = [taken.take() for _message in range(2)]
        for message in theirs:
            assert message is not None
            other.store(message.topic, message.partition, message.nextOffset)
        self.connection.commit()
        for message in mine:
            assert message is not None
            self.assertRaises(
                OffsetConflictError,
                store.store,
                message.topic,
                message.partition,
                message.nextOffset,
            )
        self.assertEqual(
            [message and message.value for message in (*theirs, taken.take())], [b"0", b"1", b"2"]
        )


class CommitTests(GroupCase):
    """Committing."""

    def setUp(self) -> None:
        super().setUp()
        self.broker.log("t", 0).append(*(b"%d" % index for index in range(10)))

    def versions(self) -> list[int]:
        """How often each offset was written."""
        return [
            self.cluster.do(self.cluster.admin.get(f"/consumers/g/offsets/t/0-{each}"))[1].version
            for each in (0, 1)
        ]

    def test_byClock(self) -> None:
        """
        Feature 104, gotcha 54: positions are stored every interval, the first time after one; what
        has not moved is not written again.
        """
        member = self.member({"autocommit.interval.ms": "1000"})
        (stream,) = self.cluster.do(member.createMessageStreams({"t": 1}))["t"]
        stream.take()
        self.assertIsNone(self.offset("0-0"))
        self.cluster.advance(1)
        self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("11", "0"))
        stream.take()
        self.cluster.advance(1)
        self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("22", "0"))
        self.cluster.advance(10)
        self.assertEqual(self.versions(), [1, 0])

    def test_byHand(self) -> None:
        """
        Features 105, 106, gotcha 48: without auto-commit nothing is stored, not in a rebalance and
        not at the end, but by C{commitOffsets}.
        """
        member = self.member({"autocommit.enable": "false"})
        (stream,) = self.streams(member)
        stream.take()
        other = self.member({"autocommit.enable": "false"})
        self.streams(other)
        self.cluster.advance(60)
        self.assertIsNone(self.offset("0-0"))
        self.cluster.do(member.commitOffsets())
        self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("11", None))
        stream.take()
        self.end(member)
        self.assertEqual(self.offset("0-0"), "11")
        self.end(other)

    def test_afterRelease(self) -> None:
        """
        Without auto-commit a partition that comes back from another goes on at what is stored.
        """
        member = self.member({"autocommit.enable": "false"})
        (stream,) = self.streams(member)
        self.assertEqual(len(drain(stream)), 10)
        other = self.member({"autocommit.enable": "false", "consumerid": "a"})
        self.streams(other)
        self.assertEqual(set(other.owned), {place("0-0")})
        self.end(other)
        self.cluster.advance(1)
        self.assertEqual(len(drain(stream)), 10)

    def test_failure(self) -> None:
        """A commit that fails says of which partitions, and the next one makes up for it."""
        member = self.member({"autocommit.enable": "false"})
        (stream,) = self.streams(member)
        stream.take()
        self.cluster.zookeeper.latency = 0.1
        committing = member.commitOffsets()
        self.cluster.advance(0.01)
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.advance(1)
        self.assertIn("t/0-0", str(self.failureResultOf(committing, CommitFailedError).value))
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.soon(member.commitOffsets())
        self.assertEqual(self.offset("0-0"), "11")

    def test_clockGoesOn(self) -> None:
        """A commit by the clock that fails does not end the commits."""
        member = self.member({"autocommit.interval.ms": "1000"})
        (stream,) = self.cluster.do(member.createMessageStreams({"t": 1}))["t"]
        stream.take()
        self.cluster.zookeeper.latency = 0.1
        self.cluster.advance(1.01)
        self.cluster.zookeeper.disconnect(self.sessions[member])
        self.cluster.advance(1)
        self.cluster.zookeeper.reconnect(self.sessions[member])
        self.cluster.advance(3)
        self.assertEqual(self.offset("0-0"), "11")

    def test_brokenOffRelease(self) -> None:
        """
        A member that is told to leave while it lets go of a partition commits the position of that
        one, too.
        """
        self.broker.log("t", 1).append(b"x")
        first, second = self.member(), self.member()
        (stream,) = self.streams(first)
        drain(stream)
        self.cluster.zookeeper.latency = 0.05
        joining = second.createMessageStreams({"t": 1})
        for _step in range(200):
            if "releasing" in repr(first):
                break
            self.cluster.advance(0.01)
        else:
            self.fail("it lets go of nothing")
        ending = first.shutdown()
        self.cluster.advance(3)
        self.successResultOf(ending)
        (theirs,) = self.successResultOf(joining)["t"]
        self.assertEqual(drain(theirs), [])
        self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("110", "11"))

    def test_brokenOffCommit(self) -> None:
        """
        A member that is told to leave while it commits keeps its partitions until its positions are
        stored, even if its store ends a cancelled commit as if all were well (seed 58071 of
        C{tests.simulation}).
        """

        class Slow(MemoryOffsetStore):
            def commit(self, positions: Any) -> Deferred[Any]:
                committing: Deferred[Any] = Deferred(lambda committing: committing.callback({}))
                commits.append((committing, positions))
                return committing

        self.broker.log("t", 1).append(b"x")
        commits: list[tuple[Deferred[Any], Any]] = []
        first = self.member(offsetStore=Slow({place("0-0"): 0, place("0-1"): 0}))
        (stream,) = self.streams(first)
        drain(stream)
        joining = self.member(offsetStore=MemoryOffsetStore()).createMessageStreams({"t": 1})
        self.cluster.advance(0.1)
        ending = first.shutdown()
        self.cluster.advance(0.1)
        self.assertEqual(
            [positions for _committing, positions in commits],
            [{place("0-1"): 11}, {place("0-1"): 11, place("0-0"): 110}],
        )
        self.assertEqual(set(self.owners()), {"0-0", "0-1"})
        commits[1][0].callback(commits[1][1])
        self.cluster.advance(1)
        self.successResultOf(ending)
        self.successResultOf(joining)

    def test_lateRelease(self) -> None:
        """
        A member that leaves, and whose session ends before it could commit, commits nothing in the
        next: others have its partitions by then.
        """
        first, second = self.member({"autocommit.interval.ms": "1000"}), self.member()
        (stream,) = self.streams(first)
        stream.take()
        self.cluster.advance(1)
        self.assertEqual(self.offset("0-0"), "11")
        stream.take()
        session = self.sessions[first]
        self.cluster.zookeeper.disconnect(session)
        self.cluster.advance(1.5)  # a commit by the clock hangs
        ending = first.shutdown()
        joining = second.createMessageStreams({"t": 1})
        self.cluster.advance(6)
        (theirs,) = self.successResultOf(joining)["t"]
        self.assertEqual(len(drain(theirs)), 9)
        self.soon(second.commitOffsets())
        self.cluster.zookeeper.reconnect(session)
        self.cluster.advance(3)
        self.successResultOf(ending)
        self.assertEqual(self.offset("0-0"), "110")

    def test_deleted(self) -> None:
        """
        Stored offsets that somebody has deleted are stored again at the next commit, though nothing
        has moved and nothing comes.
        """
        member = self.member({"autocommit.interval.ms": "1000"})
        (stream,) = self.streams(member)
        self.cluster.advance(1)
        stream.take()
        self.cluster.advance(1)
        for path in ("/consumers/g/offsets", "/consumers/g"):
            self.cluster.do(deleteTree(self.cluster.admin, path))
            self.assertIsNone(self.offset("0-0"))
            self.cluster.advance(1)
            self.assertEqual((self.offset("0-0"), self.offset("0-1")), ("11", "0"))

    def test_deletedBeforeTheEnd(self) -> None:
        """
        Who leaves before that stores them, so that a member that begins at the logs' ends without a
        stored offset skips nothing.
        """
        member = self.member({"autooffset.reset": "largest"})
        (stream,) = self.streams(member)
        self.assertIsNone(stream.take())
        self.broker.log("t", 0).append(b"new")
        self.cluster.advance(1)
        self.assertEqual(drain(stream), [b"new"])
        self.soon(member.commitOffsets())
        self.cluster.do(deleteTree(self.cluster.admin, "/consumers/g"))
        self.cluster.do(member.shutdown())
        self.broker.log("t", 0).append(b"newer")
        (stream,) = self.streams(self.member({"autooffset.reset": "largest"}))
        self.assertEqual(drain(stream), [b"newer"])

    def test_manyPartitions(self) -> None:
        """A commit of many partitions is pipelined: it takes no longer than a few round trips."""
        self.cluster.addTopic(0, "wide", 200)
        member = self.member({"autocommit.enable": "false"})
        self.streams(member, {"wide": 1})
        self.cluster.zookeeper.latency = 0.05
        committing = member.commitOffsets()
        self.cluster.advance(1.0)
        self.successResultOf(committing)
        self.assertEqual(self.offset("0-199", "wide"), "0")
        self.cluster.zookeeper.latency = 0

    def test_ownStore(self) -> None:
        """Feature 122: positions can be kept elsewhere; ZooKeeper has none then."""
        store = MemoryOffsetStore({place("0-0"): 55})
        member = self.member(offsetStore=store)
        (stream,) = self.streams(member)
        self.assertEqual(drain(stream), [b"%d" % index for index in range(5, 10)])
        self.cluster.do(member.shutdown())
        self.assertEqual(store.offsets, {place("0-0"): 110, place("0-1"): 0})
        self.assertIsNone(self.offset("0-0"))

    def test_repeatedFailure(self) -> None:
        """Commits by the clock that fail for the same partitions are logged once, and their end."""

        class Full(MemoryOffsetStore):
            isFull = True

            def commit(self, positions: Any) -> Deferred[Any]:
                return succeed({}) if self.isFull else super().commit(positions)

        store = Full()
        lines = capture(self)
        member = self.member({"autocommit.interval.ms": "1000"}, offsetStore=store)
        (stream,) = self.streams(member)
        drain(stream)
        self.cluster.advance(5)
        store.isFull = False
        self.cluster.advance(5)
        self.assertEqual(
            [line for line in lines() if "ositions" in line],
            [
                "the positions of 2 partitions were not stored: t/0-0, t/0-1. It is tried again",
                "Positions are stored again",
            ],
        )

    def test_brokenStore(self) -> None:
        """
        A store that fails in its own way stops nobody: loading is tried again, and what was not
        stored is reported.
        """

        class Broken(MemoryOffsetStore):
            isBroken = True

            def load(self, place: Any) -> Deferred[int | None]:
                return fail(RuntimeError("no disk")) if self.isBroken else super().load(place)

            def commit(self, positions: Any) -> Deferred[Any]:
                raise RuntimeError("no disk") if self.isBroken else ValueError("no disk")

        store = Broken()
        member = self.member({"autocommit.enable": "false"}, offsetStore=store)
        (stream,) = self.streams(member)
        self.assertEqual(drain(stream), [])
        store.isBroken = False
        self.cluster.advance(10)
        self.assertEqual(len(drain(stream)), 10)
        self.failureResultOf(member.commitOffsets(), CommitFailedError)
        self.flushLoggedErrors(ValueError)

    def test_shutDownByAReader(self) -> None:
        """
        An application that is told of an error while partitions are being taken over, and shuts
        down at once, is not in the way.
        """
        member = self.member({"autooffset.reset": "fail"}, offsetStore=MemoryOffsetStore())
        ending: list[Deferred[None]] = []

        async def read(stream: Any) -> None:
            try:
                await stream.__anext__()
            finally:
                ending.append(member.shutdown())

        other = self.member({"consumerid": "a"})
        self.streams(other)
        cuts = member.createMessageStreams({"t": 1})
        self.cluster.advance(2)
        stream = self.successResultOf(cuts)["t"][0]
        with self.assertRaises(OffsetOutOfRangeError):
            stream.take()
        reading = Deferred.fromCoroutine(read(stream))
        self.end(other)
        self.cluster.advance(1)
        self.failureResultOf(reading, OffsetOutOfRangeError)
        self.successResultOf(ending[0])
