"""
Stream managers: what is routed where, what is dropped, what is welcomed and refused.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.messages import (
    ACKED,
    ACKS,
    FAILED,
    FAILS,
    INSTANCE,
    METRICS_MANAGER,
    ROOTS,
    STREAM_MANAGER,
    TUPLES,
    BackPressure,
    Control,
    Hello,
    PlanPushed,
    Refused,
    Welcome,
    encodeBatch,
    encodeEntry,
)
from pylogbroker.topologies.streammanager import manager as managermodule
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings
from tests.topologies.streammanager.containers import (
    EPOCH,
    PORT,
    TOPOLOGY,
    Containers,
    physicalPlan,
)


class RouteTests(SynchronousTestCase):
    """Entries get where they belong."""

    def setUp(self) -> None:
        self.all = Containers({1: [1, 2], 2: [3]}, spouts=[1])
        self.one, self.two, self.three = (self.all.instances[task] for task in (1, 2, 3))

    def test_localAndRemote(self) -> None:
        """Tuples get to instances of the same and of another container, in order, undecoded."""
        self.one.send(
            (TUPLES, 2, b"a"),
            (TUPLES, 2, b"b"),
            (TUPLES, 3, b"c"),
            (TUPLES, 2, b""),
            (TUPLES, 1, b"e"),
        )
        self.one.send((TUPLES, 3, b"f"))
        self.all.advance()
        self.assertEqual(self.two.tuples(), [b"a", b"b", b""])
        self.assertEqual(self.three.tuples(), [b"c", b"f"])
        self.assertEqual(self.one.tuples(), [b"e"])
        values = self.all.managers[1].metricValues()
        self.assertEqual((values["entries"], values["tuples"]), (6, 6))

    def test_coalesced(self) -> None:
        """What arrives in one turn for one instance is one batch."""
        self.three.send(*[(TUPLES, 2, b"x")] * 5, (TUPLES, 1, b"y"), *[(TUPLES, 2, b"z")] * 5)
        self.all.advance()
        self.assertEqual(len(self.two.tuples()), 10)
        self.assertEqual((self.two.receiver.received, self.one.receiver.received), (1, 1))

    def test_trees(self) -> None:
        """
        A tree is followed in the spout's container: acknowledged from another one, failed from
        here, or timed out.
        """
        self.one.send((ROOTS, 1, [7, 70, 8, 80, 9, 90]), (TUPLES, 3, b"a"), (TUPLES, 2, b"b"))
        self.all.advance()
        self.assertEqual(self.three.tuples(), [b"a"])
        self.three.send((ACKS, 1, [7, 70]))
        self.two.send((FAILS, 1, [8]), (TUPLES, 3, b"c"))
        self.all.advance()
        self.assertEqual(self.one.numbers(ACKED), [7])
        self.assertEqual(self.one.numbers(FAILED), [8])
        self.assertEqual(self.three.tuples(), [b"a", b"c"])
        self.all.advance(27)
        self.assertEqual(self.one.numbers(FAILED), [8])
        self.assertEqual(self.all.managers[1].metricValues()["trees.pending"], 1)
        self.all.advance(8)
        self.assertEqual(self.one.numbers(FAILED), [8, 9])
        values = self.all.managers[1].metricValues()
        counts = [values[f"trees.{each}"] for each in ("acked", "failed", "timed.out", "pending")]
        self.assertEqual(counts, [1, 1, 1, 0])

    def test_unknownTask(self) -> None:
        """A tuple for a task that is nowhere is dropped and counted; what is behind it is not."""
        self.one.send((TUPLES, 3, b"a"), (TUPLES, 9, b"b"), (TUPLES, 3, b"c"))
        self.all.advance()
        self.assertEqual(self.three.tuples(), [b"a", b"c"])
        self.assertEqual(self.all.managers[1].counts["tuples without a route"], 1)

    def test_badEntries(self) -> None:
        """A batch that cannot be read, or says what only an acker says, ends its connection."""
        for entry in (b"\0\0", encodeEntry(ACKED, 1, 1, b""), encodeEntry(ACKS, 1, 1, bytes(8))):
            before = len(self.two.said)
            self.two.sender.push(entry, 0)
            self.two.flush()
            self.all.advance(1)
            self.assertIsInstance(self.two.said[before], Welcome)
        self.two.send((TUPLES, 3, b"a"))
        self.all.advance()
        self.assertEqual(self.three.tuples(), [b"a"])

    def test_instanceDies(self) -> None:
        """
        What was under way to an instance that died is lost and counted, and gets to no other one;
        what was not sent yet waits for the next. Trees of a spout that died are forgotten.
        """
        settings = StreamManagerSettings(instanceWindow=1)
        self.all = Containers({1: [1, 2], 2: [3]}, spouts=[1], settings=settings)
        one, two = self.all.instances[1], self.all.instances[2]
        two.isReading = False
        one.send((TUPLES, 2, b"a"))
        self.all.advance()
        one.send((TUPLES, 2, b"b"), (ROOTS, 1, [7, 70]))
        self.all.advance()
        self.assertEqual(two.tuples(), [b"a"])
        two.process.kill()
        self.all.advance(1)
        again = self.all.startInstance(1, 2)
        self.all.advance(1)
        self.assertEqual(again.tuples(), [b"b"])
        manager = self.all.managers[1]
        self.assertEqual(manager.metricValues()["tuples.lost.c2"], 1)
        one.process.kill()
        spout = self.all.startInstance(1, 1)
        self.all.advance(1)
        self.assertEqual(manager.metricValues()["trees.pending"], 0)
        again.send((ACKS, 1, [7, 70]))
        self.all.advance(1)
        self.assertEqual(spout.numbers(ACKED), [])

    def test_connectionsAreCut(self) -> None:
        """A connection that is cut loses nothing, and repeats nothing, in any direction."""
        for number in range(60):
            self.one.send((TUPLES, 3, b"%d" % number), (TUPLES, 2, b"%d" % number))
            self.all.advance(self.all.random.choice((0, 0.0004, 0.001, 0.1)))
            if number % 5 == 4:
                process = self.all.random.choice(
                    [*self.all.processes.values(), self.one.process, self.two.process]
                )
                self.all.cut(process)
        self.all.advance(5)
        expected = [b"%d" % number for number in range(60)]
        self.assertEqual(self.three.tuples(), expected)
        self.assertEqual(self.two.tuples(), expected)
        self.assertTrue(self.one.process.lostCount)

    def test_managerDies(self) -> None:
        """Behind the death of a stream manager the new one routes; nothing is repeated."""
        self.one.send((TUPLES, 3, b"a"))
        self.all.advance()
        self.all.processes[2].kill()
        self.one.send((TUPLES, 3, b"b"))  # waits, or was under way
        self.all.advance(1)
        self.one.send((TUPLES, 3, b"c"))
        manager = self.all.startManager(2)
        self.three.send((TUPLES, 2, b"d"))
        self.all.advance(1)
        self.assertEqual(self.two.tuples(), [])  # not welcomed before there is a plan
        manager.setPlan(self.all.plan)
        self.all.advance(3)
        self.assertEqual(self.three.tuples()[-1], b"c")
        self.assertEqual(len(set(self.three.tuples())), len(self.three.tuples()))
        self.assertEqual(self.two.tuples(), [b"d"])

    def test_givenUp(self) -> None:
        """
        What waits for an instance that is away for long is dropped and counted, until it is there
        again.
        """
        self.two.process.kill()
        self.all.advance(1)
        manager = self.all.managers[1]
        self.one.send((TUPLES, 2, b"a"))
        self.all.advance(1)
        self.assertEqual(manager.metricValues()["tuples.dropped.c2"], 0)
        self.all.advance(15)
        self.one.send((TUPLES, 2, b"b"))
        self.all.advance(1)
        self.assertEqual(manager.metricValues()["tuples.dropped.c2"], 2)
        again = self.all.startInstance(1, 2)
        self.all.advance(1)
        self.one.send((TUPLES, 2, b"c"))
        self.all.advance(1)
        self.assertEqual(again.tuples(), [b"c"])

    def test_givenUpAndBack(self) -> None:
        """An instance that comes back after its tuples were given up gets those behind them."""
        self.two.isReading = False
        self.one.send((TUPLES, 2, b"a"))
        self.all.advance()
        self.all.managers[1].route(encodeBatch(1, [encodeEntry(TUPLES, 2, 1, b"b")])[4:])
        self.two.client.goTo(None)
        self.all.advance(16)
        self.two.client.goTo(f"h1:{PORT}")
        self.all.advance(1)
        self.one.send((TUPLES, 2, b"c"))
        self.all.advance()
        self.assertEqual(self.two.tuples(), [b"a", b"c"])
        self.assertEqual(self.two.numbers(ACKED), [])

    def test_full(self) -> None:
        """A queue has a limit: above it tuples are dropped and counted."""
        settings = StreamManagerSettings(instanceWindow=1, queueSizeMax=200)
        self.all = Containers({1: [1, 2]}, settings=settings)
        self.all.instances[2].isReading = False
        for number in range(10):
            self.all.instances[1].send((TUPLES, 2, bytes([number]) * 37))  # 50 bytes
            self.all.advance()
        values = self.all.managers[1].metricValues()
        self.assertEqual((values["tuples.dropped.c2"], values["queued.bytes.c2"]), (5, 200))
        self.all.instances[2].isReading = True
        self.all.instances[2].settle()
        self.all.advance()
        self.assertEqual([data[0] for data in self.all.instances[2].tuples()], [0, 1, 2, 3, 4])

    def test_tooManyTrees(self) -> None:
        """A spout's trees above the limit fail at once."""
        self.all = Containers({1: [1]}, [1], StreamManagerSettings(treeCountMax=2))
        one = self.all.instances[1]
        one.send((ROOTS, 1, [7, 70, 8, 80]), (ROOTS, 1, [9, 90]))
        self.all.advance()
        self.assertEqual(one.numbers(FAILED), [9])


class PressureTests(SynchronousTestCase):
    """Spouts stop while a queue is too long."""

    def setUp(self) -> None:
        settings = StreamManagerSettings(
            highWaterMark=1000, lowWaterMark=300, instanceWindow=100, peerWindow=100
        )
        self.all = Containers({1: [1, 2], 2: [3, 4]}, spouts=[1, 3], settings=settings)
        self.spout, self.bolt, self.far, self.other = (
            self.all.instances[task] for task in (1, 2, 3, 4)
        )

    def pressures(self, task: int) -> list[bool]:
        """What an instance was told."""
        said = self.all.instances[task].said
        return [message.isOn for message in said if isinstance(message, BackPressure)]

    def test_all(self) -> None:
        """
        All spouts are stopped while one bolt's queue is too long, in all containers, and go on
        when it is short: all tuples are there. The spout's batches are not confirmed meanwhile, a
        bolt's are.
        """
        self.bolt.isReading = False
        self.other.isReading = False
        for number in range(30):
            self.spout.send((TUPLES, 2, bytes([number]) * 50))
            self.all.advance(0.02)
        self.assertEqual(
            (self.pressures(1), self.pressures(3), self.pressures(4)), ([True], [True], [])
        )
        self.assertTrue(self.spout.sender.unconfirmedSize)
        self.other.send((TUPLES, 1, b"x"))
        self.all.advance(0.2)
        self.assertEqual(self.other.sender.unconfirmedSize, 0)
        self.assertEqual(self.spout.tuples(), [b"x"])
        self.all.advance(2)
        self.bolt.isReading = True
        self.bolt.settle()
        self.all.advance()
        self.assertEqual((self.pressures(1), self.pressures(3)), ([True, False], [True, False]))
        self.assertEqual([data[0] for data in self.bolt.tuples()], list(range(30)))
        self.assertEqual(self.spout.sender.unconfirmedSize, 0)
        values = self.all.managers[1].metricValues()
        self.assertGreater(values["backpressure.ms.c2"], 2000)
        self.assertLess(values["backpressure.ms.c2"], 3000)
        self.assertEqual(values["tuples.dropped.c2"], 0)
        far = self.all.managers[2].metricValues()
        self.assertGreater(far["spouts.stopped.ms"], 2000)
        self.assertNotIn("backpressure.ms.c2", far)

    def test_peer(self) -> None:
        """A stream manager that takes nothing stops the spouts of the others."""
        self.all.processes[2].pause()
        for number in range(30):
            self.spout.send((TUPLES, 4, bytes([number]) * 50))
            self.all.advance(0.02)
        self.assertEqual(self.pressures(1), [True])
        self.all.processes[2].resume()
        self.all.advance(1)
        self.assertEqual(self.pressures(1), [True, False])
        self.assertEqual([data[0] for data in self.other.tuples()], list(range(30)))
        self.assertEqual(self.pressures(3), [True, False])

    def test_initiatorDies(self) -> None:
        """What a stream manager has asked for ends with it; a new spout is told what holds."""
        self.bolt.isReading = False
        for number in range(30):
            self.spout.send((TUPLES, 2, bytes([number]) * 50))
            self.all.advance(0.02)
        self.all.cut(self.far.process)
        self.all.advance(1)
        self.assertEqual(self.pressures(3), [True, True])
        self.all.cut(self.all.processes[1])
        self.all.advance(1)
        self.assertTrue(self.all.managers[2].areSpoutsStopped)  # told again
        self.all.processes[1].kill()
        self.all.advance(0.1)
        self.assertFalse(self.all.managers[2].areSpoutsStopped)

    def test_boltIsAway(self) -> None:
        """A bolt that does not come back stops spouts for as long as its tuples are held."""
        self.bolt.process.kill()
        self.all.advance(1)
        for number in range(30):
            self.spout.send((TUPLES, 2, bytes([number]) * 50))
            self.all.advance(0.02)
        self.assertEqual(self.pressures(1), [True])
        self.all.advance(15)
        self.assertEqual(self.pressures(1), [True, False])

    def test_boltNeverComes(self) -> None:
        """
        A bolt that a stream manager has never seen, since that one is new, stops spouts for as long
        as its first tuple is held: for longer than one that has gone, since it may be starting.
        """
        self.bolt.process.kill()
        self.all.processes[1].kill()
        self.all.advance(1)
        manager = self.all.startManager(1)
        manager.setPlan(self.all.plan)
        self.all.advance(3)
        before = len(self.pressures(1))
        for number in range(30):
            self.spout.send((TUPLES, 2, bytes([number]) * 50))
            self.all.advance(0.02)
        self.all.advance(58)
        self.assertEqual(self.pressures(1)[before:], [True])
        self.assertEqual(manager.metricValues()["tuples.dropped.c2"], 0)
        self.all.advance(2)
        self.assertEqual(self.pressures(1)[before:], [True, False])
        again = self.all.startInstance(1, 2)
        self.all.advance(1)
        self.spout.send((TUPLES, 2, b"at last"))
        self.all.advance(1)
        self.assertEqual(again.tuples(), [b"at last"])
        self.assertEqual(manager.metricValues()["tuples.dropped.c2"], 30)

    def test_ownSpout(self) -> None:
        """A spout's own queue, of what has become of its trees, stops nothing."""
        self.spout.isReading = False
        for number in range(60):
            self.bolt.send((TUPLES, 1, bytes([number]) * 50))
            self.all.advance(0.02)
        self.assertEqual(self.pressures(1), [])


class _Told:
    """Keeps what a connection says."""

    def __init__(self, *messages: Control | bytes) -> None:
        self.messages = messages
        self.said: list[Control] = []
        self.reason = ""

    def connected(self, connection: TopologyConnection) -> None:
        for message in self.messages:
            if isinstance(message, bytes):
                connection.write(message)
            else:
                connection.send(message)

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        self.said.append(message)

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        raise AssertionError(body)

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        self.reason = reason


class GreetingTests(SynchronousTestCase):
    """Who is welcomed."""

    def setUp(self) -> None:
        self.all = Containers({1: [1, 2], 2: [3]}, spouts=[1])

    def connect(self, *messages: Control | bytes) -> _Told:
        """Connect to the first stream manager, and say something."""
        told = _Told(*messages)
        endpoint = TCP4ClientEndpoint(self.all.instances[3].process, "h1", PORT)
        endpoint.connect(Factory.forProtocol(lambda: TopologyConnection(told)))
        self.all.advance()
        return told

    def refusal(self, hello: Hello) -> str:
        """Why a hello is refused."""
        told = self.connect(hello)
        [refused] = told.said
        assert isinstance(refused, Refused)
        self.assertTrue(told.reason)
        return refused.reason

    def test_refused(self) -> None:
        """Processes of another topology, container or kind are told why they are refused."""
        cases = {
            "this is topology words, not other": Hello("other", INSTANCE, 1, 5),
            "task 3 is not in container 1": Hello(TOPOLOGY, INSTANCE, 3, 5),
            "container 7 is not in the plan": Hello(TOPOLOGY, STREAM_MANAGER, 7, 5),
            "container 1 is not in the plan": Hello(TOPOLOGY, STREAM_MANAGER, 1, 5),
            "no metrics-manager connects to a stream manager": Hello(
                TOPOLOGY, METRICS_MANAGER, 1, 5
            ),
        }
        for reason, hello in cases.items():
            self.assertEqual(self.refusal(hello), reason)

    def test_disorder(self) -> None:
        """Anything before the welcome, and what its kind does not say, ends the connection."""
        instance = Hello(TOPOLOGY, INSTANCE, 1, 5)
        peer = Hello(TOPOLOGY, STREAM_MANAGER, 2, 5)
        own = self.all.instances[2].incarnation
        cases: list[list[Control | bytes]] = [
            [BackPressure(1, True)],
            [encodeBatch(1, [])],
            [b"\0\0\0\x05\0bad!"],
            [b"\xff\xff\xff\xff"],
            [instance, instance],
            [peer, peer],
            [Hello(TOPOLOGY, INSTANCE, 2, own, received=99, attempt=9)],
        ]
        for messages in cases:
            self.assertTrue(self.connect(*messages).reason, messages)
        self.all.advance(1)

    def test_tooMany(self) -> None:
        """Connections have a limit; there is room again when one is closed."""
        self.patch(managermodule, "ACCEPTED_COUNT_MAX", len(self.all.managers[1]._accepted) + 1)
        first = self.connect()
        self.assertTrue(self.connect().reason)
        self.assertFalse(first.reason)
        self.all.advance(11)
        hello = Hello(TOPOLOGY, STREAM_MANAGER, 2, 5, attempt=9)
        self.assertIsInstance(self.connect(hello).said[0], Welcome)

    def test_late(self) -> None:
        """
        What a process has said on a connection that it has given up, or before its successor came,
        counts no more when it arrives late; what it sent before is known still.
        """
        two = self.all.instances[2]
        late = Hello(TOPOLOGY, INSTANCE, 2, two.incarnation)
        self.assertEqual(self.connect(late).said, [])
        two.process.kill()
        self.all.advance(1)
        again = self.all.startInstance(1, 2)
        again.send((TUPLES, 3, b"a"))
        self.all.advance()
        self.assertEqual(self.connect(late).said, [])  # refused, as the former process is
        unknown = self.connect(Hello(TOPOLOGY, INSTANCE, 2, 77))
        self.assertIsInstance(unknown.said[0], Welcome)  # which of them is dead, cannot be known
        self.all.advance(1)
        self.assertTrue(again.client.connection is None or not again.peer)
        self.all.cut(self.all.instances[3].process)  # it is the unknown one that is
        self.all.advance(3)
        again.send((TUPLES, 3, b"b"))
        self.all.advance(1)
        self.assertEqual(self.all.instances[3].tuples(), [b"a", b"b"])
        for number in range(100, 120):
            self.connect(Hello(TOPOLOGY, INSTANCE, 2, number))
        self.assertLess(len(self.all.managers[1]._instances[2]._senders), 20)

    def test_silence(self) -> None:
        """A connection that says nothing is closed in 10 seconds."""
        told = self.connect()
        self.all.advance(9)
        self.assertFalse(told.reason)
        self.all.advance(2)
        self.assertTrue(told.reason)

    def test_replaced(self) -> None:
        """The newer one of two connections of an instance counts."""
        first = self.all.instances[2]
        second = self.all.startInstance(1, 2)
        self.all.advance(0.01)
        second.send((TUPLES, 3, b"a"))
        self.all.advance(0.01)
        first.client.goTo(None)
        self.all.advance()
        self.assertEqual(self.all.instances[3].tuples(), [b"a"])

    def test_stops(self) -> None:
        """A stream manager that stops closes all, and connects to nothing."""
        manager = self.all.managers[1]
        manager.stop()
        manager.setMaster("h9:1", EPOCH)
        manager.route(encodeBatch(1, [encodeEntry(TUPLES, 2, 1, b"")])[4:])
        self.all.advance(0.01)
        process = self.all.processes[1]
        self.assertEqual(
            [each for each in process.transports if each.protocol and not each.protocol.isOver], []
        )


class PlanTests(SynchronousTestCase):
    """Plans, masters and their epochs."""

    def setUp(self) -> None:
        self.all = Containers({1: [1, 2], 2: [3]}, spouts=[1])
        self.manager = self.all.managers[1]

    def plans(self, task: int) -> list[int]:
        """The epochs that an instance was told."""
        said = self.all.instances[task].said
        return [message.plan.epoch for message in said if isinstance(message, PlanPushed)]

    def test_passedOn(self) -> None:
        """Instances get each plan, also when they connect later."""
        self.manager.setPlan(physicalPlan(self.all.tasks, EPOCH + 1))
        self.all.advance()
        self.assertEqual(self.plans(1), [EPOCH, EPOCH + 1])
        self.all.instances[2].process.kill()
        self.all.startInstance(1, 2)
        self.all.advance()
        self.assertEqual(self.plans(2), [EPOCH + 1])

    def test_epochs(self) -> None:
        """A plan of a lower epoch than one that was seen, or than the master's, is refused."""
        with self.assertRaisesRegex(WireError, f"a plan of epoch 5, below {EPOCH}"):
            self.manager.setPlan(physicalPlan(self.all.tasks, 5))
        self.manager.setPlan(physicalPlan(self.all.tasks, EPOCH))
        self.manager.setMaster("h9:1", EPOCH * 2)
        with self.assertRaises(WireError):
            self.manager.setPlan(physicalPlan(self.all.tasks, EPOCH + 7))
        with self.assertRaisesRegex(WireError, "a plan of topology other, not words"):
            self.manager.setPlan(physicalPlan(self.all.tasks, EPOCH * 3, "other"))
        self.assertEqual(self.manager.counts["plans refused"], 2)

    def test_anotherPlan(self) -> None:
        """Instances and containers come and go with plans."""
        self.manager.setPlan(physicalPlan({1: [1], 3: [2]}, EPOCH + 1))
        self.all.advance()
        one = self.all.instances[1]
        one.send((TUPLES, 3, b"a"), (TUPLES, 2, b"b"))
        self.all.advance()
        self.assertEqual(self.manager.counts["tuples without a route"], 1)
        self.assertGreater(self.manager.metricValues()["queued.bytes.container 3"], 0)
        self.manager.setPlan(physicalPlan(self.all.tasks, EPOCH + 2))
        self.all.advance(3)
        one.send((TUPLES, 3, b"c"), (TUPLES, 2, b"d"))
        self.all.advance(1)
        self.assertEqual(self.all.instances[3].tuples(), [b"c"])
        self.assertEqual(self.all.instances[2].tuples(), [b"d"])

    def test_connectedInstances(self) -> None:
        """Its metrics say which instances are connected, and it says when that has changed."""
        said: list[tuple[float, float]] = []

        def changed() -> None:
            values = self.manager.metricValues()
            said.append((values["connected.1"], values["connected.2"]))

        self.manager.whenInstancesChange = changed
        self.all.instances[2].process.kill()
        self.all.advance(1)
        self.assertEqual(said, [(1, 0)])
        self.all.startInstance(1, 2)
        self.all.advance(1)
        self.assertEqual(said, [(1, 0), (1, 1)])

    def test_master(self) -> None:
        """
        It connects to the master that is named, says where it is, takes its plan, connects again,
        and leaves it for another one; an older one it does not go to.
        """
        process = self.all.instances[3].process
        masters = []

        def listen(port: int, *messages: Control | bytes) -> list[_Told]:
            told: list[_Told] = []

            def accept() -> TopologyConnection:
                told.append(_Told(*messages))
                return TopologyConnection(told[-1])

            process.listenTCP(port, Factory.forProtocol(accept))
            masters.append(told)
            return told

        plan = physicalPlan(self.all.tasks, EPOCH + 1)
        first = listen(1, Welcome(5), PlanPushed(plan))
        self.manager.setMaster("h2:1", EPOCH)
        self.all.advance(1)
        [hello] = first[0].said
        expected = Hello(
            TOPOLOGY,
            STREAM_MANAGER,
            1,
            self.manager.incarnation,
            epoch=EPOCH,
            address="h1:7000",
            attempt=1,
        )
        self.assertEqual(hello, expected)
        self.assertEqual(self.plans(1), [EPOCH, EPOCH + 1])
        self.all.cut(process)
        self.all.advance(1)
        self.assertEqual(len(first), 2)
        second = listen(2, Welcome(6))
        self.manager.setMaster("h2:2", EPOCH * 2)
        self.manager.setMaster("h2:1", EPOCH)
        self.all.advance(3)
        self.assertTrue(first[1].reason)
        self.assertEqual((len(first), len(second)), (2, 1))
        refusing = listen(3, Refused("no"))
        self.manager.setMaster("h2:3", EPOCH * 3)
        self.all.advance(10)
        self.assertGreater(len(refusing), 5)
        self.assertLess(len(refusing), 100)
        wrong = listen(4, encodeBatch(1, []))
        self.manager.setMaster("h2:4", EPOCH * 3)
        self.all.advance(1)
        self.assertTrue(wrong[0].reason)
        self.manager.setMaster(None)
        self.all.advance(3)
        counts = [len(each) for each in masters]
        self.all.advance(5)
        self.assertEqual([len(each) for each in masters], counts)

    def test_peerMisbehaves(self) -> None:
        """Another stream manager that refuses, or says what none says, is connected to again."""
        process = self.all.instances[3].process
        plan = physicalPlan({1: [1, 2], 3: [3]}, EPOCH + 1)
        answers: list[Control | bytes] = [
            Refused("no"),
            PlanPushed(plan),
            encodeBatch(1, []),
            Welcome(5),
        ]
        for port, answer in enumerate(answers, 1):
            told: list[_Told] = []

            def accept(answer: Control | bytes = answer, told: list[_Told] = told) -> Any:
                told.append(_Told(answer))
                return TopologyConnection(told[-1])

            process.listenTCP(port, Factory.forProtocol(accept))
            address = {3: f"h2:{port}"}
            self.manager.setPlan(structs.replace(plan, streamManagers=address))
            self.all.advance(3)
            isTaken = isinstance(answer, Welcome)
            self.assertEqual(bool(told[0].reason), not isTaken)
            self.assertEqual(len(told) > 1, not isTaken)

    def test_noTimeouts(self) -> None:
        """Trees need not time out."""
        self.all = Containers({1: [1]}, [1], StreamManagerSettings(messageTimeout=0))
        self.all.instances[1].send((ROOTS, 1, [7, 70]))
        self.all.advance(100)
        self.assertEqual(self.all.managers[1].metricValues()["trees.pending"], 1)
