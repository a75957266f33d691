"""Tests for L{pylogbroker.topologies.instance.gateway}, with its executor on the same clock."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from threading import Event
from typing import Any

import msgspec
from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.errors import ComponentFailedError, ConfigurationError
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.testing.network import MemoryNetwork, MemoryPeer
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.instance import Gateway, InlineExecutor, ThreadExecutor
from pylogbroker.topologies.messages import (
    ACKED,
    BATCH,
    FAILED,
    FRAME_SIZE_MAX,
    INSTANCE,
    ROOTS,
    TUPLES,
    BackPressure,
    BatchEntry,
    Confirm,
    Control,
    Hello,
    PlanPushed,
    Refused,
    Welcome,
    batchNumber,
    decodeBatch,
    decodeControl,
    decodeNumbers,
    encodeBatch,
    encodeControl,
    encodeEntry,
    encodeNumbers,
)
from pylogbroker.topologies.packings import packRoundRobin
from pylogbroker.topologies.plan import ACTIVE, KILLED, PAUSED, PhysicalPlan
from pylogbroker.topologies.topology import Topology, TopologyBuilder

SPOUT, BOLT = 1, 2


class Numbers(Spout):
    """Emits numbers while it may, and remembers what is called."""

    outputs = ["number"]

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Begins at 0."""
        self.calls: list[Any] = ["initialize"]
        self.number = 0
        self.countMax = config.get("count", 1 << 62)

    def nextTuple(self) -> None:
        """Emits one."""
        if self.number < self.countMax:
            self.number += 1
            self.emit([self.number], self.number)

    def ack(self, tupleId: int) -> None:
        """Remembers it."""
        self.calls.append(("ack", tupleId))

    def fail(self, tupleId: int) -> None:
        """Remembers it."""
        self.calls.append(("fail", tupleId))

    def activate(self) -> None:
        """Remembers it."""
        self.calls.append("activate")

    def deactivate(self) -> None:
        """Remembers it."""
        self.calls.append("deactivate")

    def close(self) -> None:
        """Emits a last one."""
        self.calls.append("close")
        self.emit([-1])


class Keep(Bolt):
    """Keeps values, and fails at 13."""

    outputs = ["number"]

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Begins with none."""
        self.values: list[Any] = []

    def process(self, tup: StreamTuple) -> None:
        """Keeps one."""
        if tup.values[0] == 13:
            raise ValueError("thirteen")
        self.values.append(list(tup.values))
        self.ack(tup)


class SlowToClose(Numbers):
    """Takes its time at the end."""

    closing = Event()
    released = Event()

    def close(self) -> None:
        """Until it is released."""
        self.closing.set()
        self.released.wait(60)
        super().close()


def numbersTopology(**config: Any) -> Topology:
    """A spout, and a bolt that keeps what it emits."""
    builder = TopologyBuilder("numbers", config)
    builder.setSpout("numbers", Numbers)
    builder.setBolt("keep", Keep, 1, {"numbers": Grouping.SHUFFLE})
    return builder.build()


class FarManager:
    """A stream manager in the hands of the test, over one connection."""

    def __init__(self, line: MemoryPeer, clock: Clock, incarnation: int = 7) -> None:
        self.line = line
        self.clock = clock
        self.incarnation = incarnation
        self.number = 0
        self.controls: list[Control] = []
        self.numbers: list[int] = []
        self.entries: list[BatchEntry] = []
        self._decoder = FrameDecoder(FRAME_SIZE_MAX)

    def read(self) -> None:
        """Read what has arrived."""
        self.clock.advance(0)
        self._decoder.feed(self.line.take())
        while (body := self._decoder.take()) is not None:
            if body[0] == BATCH:
                self.numbers.append(batchNumber(body))
                self.entries += decodeBatch(body)
            else:
                self.controls.append(decodeControl(body))

    def of(self, kind: int) -> list[int]:
        """The numbers in entries of a kind."""
        return [each for entry in self.entries if entry.kind == kind for each in _all(entry)]

    def send(self, *messages: Control) -> None:
        """Send control messages."""
        self.line.deliver(b"".join(map(encodeControl, messages)))

    def sendBatch(self, *entries: bytes, number: int | None = None) -> None:
        """Send a batch."""
        self.number = self.number + 1 if number is None else number
        self.line.deliver(encodeBatch(self.number, entries))

    def sendTuples(self, *values: Any) -> None:
        """Send tuples to the bolt."""
        data = msgspec.msgpack.encode([SPOUT, "default", list(values)])
        self.sendBatch(encodeEntry(TUPLES, BOLT, len(values), data))


def _all(entry: BatchEntry) -> tuple[int, ...]:
    return decodeNumbers(entry.data)


class GatewayTests(SynchronousTestCase):
    """An instance, and a stream manager that is the test."""

    def instance(self, topology: Topology, task: int) -> None:
        """Start an instance."""
        self.topology = topology
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.executor = InlineExecutor(self.clock, 0.001)
        self.gateway = Gateway(
            self.clock,
            topology,
            task,
            self.network.endpoint,
            self.executor,
            Random(3),
        )
        self.gateway.goTo("manager:1")

    def accept(self, received: int = 0, incarnation: int = 7) -> FarManager:
        """Let it connect, and welcome it."""
        while not self.network.waiting:
            self.clock.advance(0.1)
        manager = FarManager(self.network.accept(), self.clock, incarnation)
        manager.read()
        manager.send(Welcome(incarnation, received))
        return manager

    def plan(self, state: str = ACTIVE, epoch: int = 1) -> PlanPushed:
        """A plan of one container."""
        packing = packRoundRobin(self.topology, 1)
        return PlanPushed(PhysicalPlan(self.topology.name, epoch, state, packing, {1: "manager:1"}))

    @property
    def component(self) -> Any:
        """The author's object."""
        assert self.gateway.runner is not None
        return self.gateway.runner.component

    def advance(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds / 0.01)):
            self.clock.advance(0.01)

    def test_hello(self) -> None:
        """The first frame says who it is; the author's code begins with the plan."""
        self.instance(numbersTopology(), SPOUT)
        manager = self.accept()
        incarnation = self.gateway.incarnation
        self.assertEqual(
            manager.controls, [Hello("numbers", INSTANCE, SPOUT, incarnation, attempt=1)]
        )
        self.advance(0.1)
        self.assertIsNone(self.gateway.runner)
        manager.send(self.plan(PAUSED))
        self.advance(0.1)
        self.assertEqual(self.component.calls, ["initialize"])

    def test_tuplesReachABolt(self) -> None:
        """A batch is handled in order, and confirmed when it is handled; again, it is not."""
        self.instance(numbersTopology(), BOLT)
        manager = self.accept()
        manager.send(self.plan())
        manager.sendTuples([1], [2])
        manager.sendTuples([3])
        manager.read()
        self.assertEqual(manager.controls[1:], [])
        self.advance(0.1)
        manager.read()
        self.assertEqual(self.component.values, [[1], [2], [3]])
        self.assertEqual(manager.controls[1:], [Confirm(2)])
        manager.number = 0
        manager.sendTuples([1], [2])
        self.advance(0.1)
        self.assertEqual(self.component.values, [[1], [2], [3]])

    def test_states(self) -> None:
        """A spout emits while the topology is active; it is told of changes only."""
        self.instance(numbersTopology(), SPOUT)
        manager = self.accept()
        manager.send(self.plan(), self.plan())
        self.advance(0.1)
        manager.send(self.plan(PAUSED), self.plan(KILLED))
        self.advance(0.1)
        count = self.component.number
        self.assertGreater(count, 0)
        self.advance(0.1)
        self.assertEqual(self.component.number, count)
        calls = [each for each in self.component.calls if isinstance(each, str)]
        self.assertEqual(calls, ["initialize", "activate", "deactivate"])

    def test_olderPlan(self) -> None:
        """A plan of a lower epoch is ignored."""
        self.instance(numbersTopology(), SPOUT)
        manager = self.accept()
        manager.send(self.plan(ACTIVE, 5), self.plan(PAUSED, 4))
        self.advance(0.1)
        self.assertNotIn("deactivate", self.component.calls)
        manager.send(self.plan(PAUSED, 5))
        self.advance(0.1)
        self.assertIn("deactivate", self.component.calls)

    def test_atMostOnce(self) -> None:
        """Tuples have no roots, and are acknowledged when they are sent."""
        self.instance(numbersTopology(count=3), SPOUT)
        manager = self.accept()
        manager.send(self.plan())
        self.advance(0.1)
        manager.read()
        self.assertEqual([entry.kind for entry in manager.entries], [TUPLES])
        self.assertEqual(self.component.calls[2:], [("ack", 1), ("ack", 2), ("ack", 3)])

    def tracked(self, **config: Any) -> FarManager:
        """A spout at least once, with all that it emits in the acker's hands."""
        name = "topology.reliability.mode"
        self.instance(numbersTopology(**{name: "ATLEAST_ONCE", "count": 3, **config}), SPOUT)
        manager = self.accept()
        manager.send(self.plan())
        self.advance(0.1)
        manager.read()
        return manager

    def test_atLeastOnce(self) -> None:
        """Roots come before tuples; each id comes back once, acknowledged or failed."""
        manager = self.tracked()
        self.assertEqual([entry.kind for entry in manager.entries], [ROOTS, TUPLES])
        one, _, two, _, three, _ = manager.of(ROOTS)
        self.assertEqual(self.component.calls[2:], [])
        manager.sendBatch(
            encodeEntry(ACKED, SPOUT, 1, encodeNumbers([two])),
            encodeEntry(FAILED, SPOUT, 2, encodeNumbers([one, two])),
        )
        manager.sendBatch(encodeEntry(ACKED, SPOUT, 3, encodeNumbers([99, one, three])))
        self.advance(0.1)
        self.assertEqual(self.component.calls[2:], [("ack", 2), ("fail", 1), ("ack", 3)])

    def test_maxSpoutPending(self) -> None:
        """No more tuples are pending than may be."""
        manager = self.tracked(count=1 << 62, **{"topology.max.spout.pending": 5})
        self.advance(1)
        self.assertEqual(self.component.number, 5)
        manager.sendBatch(encodeEntry(ACKED, SPOUT, 1, encodeNumbers([manager.of(ROOTS)[0]])))
        self.advance(0.1)
        self.assertEqual(self.component.number, 6)

    def test_silentAcker(self) -> None:
        """What the acker says nothing about fails, well behind its time-out."""
        self.tracked(**{"topology.message.timeout.secs": 1})
        self.advance(1.7)
        self.assertEqual(self.component.calls[2:], [])
        self.advance(1)
        self.assertEqual(self.component.calls[2:], [("fail", 1), ("fail", 2), ("fail", 3)])

    def test_noTimeouts(self) -> None:
        """Without time-outs, it waits for ever."""
        self.tracked(**{"topology.enable.message.timeouts": False})
        self.clock.advance(1e6)
        self.advance(0.1)
        self.assertEqual(self.component.calls[2:], [])

    def test_sameManager(self) -> None:
        """After a cut, the same stream manager gets again what it has not got, and nothing else."""
        manager = self.tracked()
        self.assertEqual(manager.numbers, [1])
        before = manager.entries
        manager.line.cut()
        manager = self.accept(received=0)
        self.assertEqual((manager.controls[0].peer, manager.controls[0].received), (7, 0))  # type: ignore[union-attr]
        manager.read()
        self.assertEqual((manager.numbers, manager.entries), ([1], before))
        manager.line.cut()
        manager = self.accept(received=1)
        manager.read()
        self.assertEqual(manager.entries, [])
        self.assertEqual(self.component.calls[2:], [])

    def test_otherManager(self) -> None:
        """Another stream manager gets nothing again, and what is pending fails at once."""
        manager = self.tracked()
        manager.line.cut()
        manager = self.accept(incarnation=8)
        self.advance(0.01)
        manager.read()
        self.assertEqual(manager.entries, [])
        self.assertEqual(self.component.calls[2:], [("fail", 1), ("fail", 2), ("fail", 3)])
        self.assertEqual(self.gateway.metrics().values["lost"], 6)

    def test_numbersOfAnotherManager(self) -> None:
        """The batches of another stream manager are new, though their numbers are not."""
        self.instance(numbersTopology(), BOLT)
        manager = self.accept()
        manager.send(self.plan())
        manager.sendTuples([1])
        manager.line.cut()  # before the bolt has handled it
        manager = self.accept(incarnation=8)
        manager.send(self.plan())
        manager.sendTuples([2])
        self.advance(0.1)
        manager.read()
        self.assertEqual(self.component.values, [[1], [2]])
        self.assertEqual(manager.controls[1:], [Confirm(1)])

    def test_backPressure(self) -> None:
        """A spout is not asked for tuples under back pressure; the time of it is counted."""
        self.instance(numbersTopology(), SPOUT)
        manager = self.accept()
        manager.send(self.plan(), BackPressure(1, True))
        self.advance(1)
        self.assertEqual(self.component.number, 0)
        self.assertAlmostEqual(self.gateway.metrics().values["stoppedSeconds"], 1, 1)
        manager.send(BackPressure(1, False))
        self.advance(1)
        self.assertGreater(self.component.number, 400)
        self.assertAlmostEqual(self.gateway.metrics().values["stoppedSeconds"], 1, 1)

    def test_fullOutput(self) -> None:
        """A spout whose batches are not confirmed stops; it goes on when they are."""
        self.instance(numbersTopology(), SPOUT)
        self.executor._outputSizeMax = 1000
        manager = self.accept()
        self.gateway._sender._windowSize = 1000
        manager.send(self.plan())
        self.advance(5)
        count = self.component.number
        self.assertLess(self.gateway.unsentSize, 1100)
        self.advance(1)
        self.assertEqual(self.component.number, count)
        manager.read()
        manager.send(Confirm(manager.numbers[-1]))
        self.advance(1)
        self.assertGreater(self.component.number, count)

    def test_wrongFrames(self) -> None:
        """A frame out of turn closes the connection, and another one is made."""
        self.instance(numbersTopology(), BOLT)
        for messages in (
            [Confirm(0)],
            [Refused("no")],
            [Welcome(7), Welcome(7)],
            [Welcome(7), Hello("numbers", INSTANCE, 3, 4)],
            [Welcome(7), Confirm(5)],
        ):
            while not self.network.waiting:
                self.clock.advance(0.1)
            manager = FarManager(self.network.accept(), self.clock)
            manager.send(*messages)
            self.clock.advance(0)
            self.assertIsNotNone(manager.line.reason, messages)
        manager = self.accept()
        manager.sendTuples([1])  # before a plan
        self.clock.advance(0)
        self.assertIsNotNone(manager.line.reason)

    def test_error(self) -> None:
        """An error of the author's ends the instance; it says where it was."""
        self.instance(numbersTopology(), BOLT)
        manager = self.accept()
        manager.send(self.plan())
        manager.sendTuples([1], [13], [2])
        self.advance(0.1)
        error = self.failureResultOf(self.gateway.done, ComponentFailedError).value
        self.assertRegex(
            str(error),
            r"^topology numbers, component keep, task 2 \(index 0\), in process: ValueError:"
            r" thirteen, at line \d+ of .*test_gateway\.py$",
        )
        self.assertIsNotNone(manager.line.reason)
        self.clock.advance(100)
        self.assertEqual(self.network.waiting, [])

    def test_planOfAnotherTopology(self) -> None:
        """A plan with another component, or without the task, ends the instance."""
        for task, found in ((BOLT, "keep"), (3, "no component")):
            self.instance(numbersTopology(), task)
            manager = self.accept()
            plan = self.plan()
            self.topology.components.pop("keep")  # type: ignore[attr-defined]
            manager.send(plan)
            error = self.failureResultOf(self.gateway.done, ConfigurationError).value
            self.assertIn(f"in its plan, task {task} is of {found}; its components:", str(error))

    def test_stop(self) -> None:
        """When it stops, the author's object is closed, and what it emits then is sent."""
        self.instance(numbersTopology(count=0), SPOUT)
        manager = self.accept()
        manager.send(self.plan())
        self.advance(0.1)
        done = self.gateway.stop()
        self.assertIs(done, self.gateway.stop())
        manager.read()
        self.assertEqual(self.component.calls, ["initialize", "activate", "close"])
        self.assertEqual([entry.kind for entry in manager.entries], [TUPLES])
        self.assertNoResult(done)
        manager.send(Confirm(1))
        self.successResultOf(done)
        self.clock.advance(0)
        self.assertIsNotNone(manager.line.reason)

    def test_stopWithoutConfirmation(self) -> None:
        """It does not wait for ever, whether connected or not."""
        self.instance(numbersTopology(), SPOUT)
        manager = self.accept()
        manager.send(self.plan())
        self.advance(0.1)
        done = self.gateway.stop()
        self.assertNoResult(done)
        self.clock.advance(5)
        self.successResultOf(done)
        self.instance(numbersTopology(), SPOUT)
        self.successResultOf(self.gateway.stop())
        self.clock.advance(100)
        self.assertEqual([each.state for each in self.network.attempts], ["cancelled"])

    def test_ticks(self) -> None:
        """A bolt gets tick tuples by the clock, and never more than one behind others."""
        self.instance(numbersTopology(**{"topology.tick.tuple.freq.secs": 0.5}), BOLT)
        manager = self.accept()
        manager.send(self.plan())
        self.advance(2.1)
        self.assertEqual(self.component.values, [[0.5]] * 4)
        self.clock.advance(5)
        self.advance(0.1)
        self.assertEqual(self.component.values, [[0.5]] * 5)

    def test_metrics(self) -> None:
        """What an instance tells of itself."""
        self.instance(numbersTopology(count=3), SPOUT)
        self.assertEqual(self.gateway.metrics().container, 0)
        manager = self.accept()
        manager.send(self.plan())
        self.advance(0.1)
        metrics = self.gateway.metrics()
        self.assertEqual(
            (metrics.container, metrics.source, metrics.component, metrics.timeMs),
            (1, "1", "numbers", int(self.clock.seconds() * 1000)),
        )
        self.assertEqual(metrics.values["emitted.default"], 3)
        self.assertEqual(metrics.values["acked"], 3)
        self.assertGreater(metrics.values["unconfirmedSize"], 30)
        self.assertEqual(metrics.values["unsentSize"], 0)


class ThreadTests(TestCase):
    """An instance with a thread."""

    timeout = 60

    async def test_disconnectedWhileItCloses(self) -> None:
        """A stream manager that leaves first does not cut off C{close} of the author's object."""
        builder = TopologyBuilder("numbers", {"count": 0})
        builder.setSpout("numbers", SlowToClose)
        topology = builder.build()
        network = MemoryNetwork(Clock())
        executor = ThreadExecutor(reactor)
        gateway = Gateway(reactor, topology, SPOUT, network.endpoint, executor, Random(3))
        gateway.goTo("manager:1")
        line = network.accept()
        plan = PhysicalPlan("numbers", 1, ACTIVE, packRoundRobin(topology, 1), {1: "manager:1"})
        line.deliver(encodeControl(Welcome(7)) + encodeControl(PlanPushed(plan)))
        runner: Any = gateway.runner
        done = gateway.stop()
        self.addCleanup(SlowToClose.released.set)
        self.assertTrue(SlowToClose.closing.wait(30))
        line.cut()
        network.turn()
        self.assertNoResult(done)
        SlowToClose.released.set()
        await done
        self.assertEqual(runner.component.calls[-1], "close")
