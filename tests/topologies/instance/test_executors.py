"""Tests for L{pylogbroker.topologies.instance.executors}: turns on a thread, and on a clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from threading import Event, current_thread, main_thread
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.errors import ComponentFailedError
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple
from pylogbroker.topologies.instance.collectors import EncodedEntry
from pylogbroker.topologies.instance.executors import IExecutor, InlineExecutor, ThreadExecutor
from pylogbroker.topologies.instance.runners import Runner, RunnerOutput, newRunner
from pylogbroker.topologies.packings import packRoundRobin
from pylogbroker.topologies.topology import Topology, TopologyBuilder


class Owner:
    """What an executor tells, kept; what was handed over waits until the test takes it."""

    def __init__(self) -> None:
        self.unsentSize = 0
        self.isPressed = False
        self.handed: list[EncodedEntry] = []
        self.reports: list[str] = []
        self.failed: Deferred[list[Failure]] = Deferred()
        self.changed: Deferred[None] = Deferred()

    def handedOver(self, entries: list[EncodedEntry], number: int) -> None:
        """See L{IRunnerOwner}."""
        assert current_thread() is main_thread()
        self.handed += entries
        self.unsentSize += sum(len(each.data) for each in entries)
        changed, self.changed = self.changed, Deferred()
        changed.callback(None)

    def reported(self, text: str) -> None:
        """See L{IRunnerOwner}."""
        self.reports.append(text)

    def runnerFailed(self, failure: Failure) -> None:
        """See L{IRunnerOwner}."""
        self.failed.callback([failure])  # a bare one would be an errback

    @property
    def count(self) -> int:
        """Tuples that were handed over."""
        return sum(each.amount for each in self.handed)


class Endless(Spout):
    """Emits without end."""

    outputs = ["a"]

    def nextTuple(self) -> None:
        """A hundred bytes."""
        self.emit(["x" * 100])


class Burst(Spout):
    """Emits without end in one call, until it is told to stop."""

    outputs = ["a"]
    isOver = False

    def nextTuple(self) -> None:
        """More than there is room for."""
        while not self.isOver:
            self.emit(["x" * 100])


class Blocked(Spout):
    """Waits in a call."""

    outputs = ["a"]
    entered = Event()
    released = Event()

    def nextTuple(self) -> None:
        """Until it is released."""
        self.entered.set()
        self.released.wait(60)


class Broken(Spout):
    """Raises."""

    outputs = ["a"]

    def nextTuple(self) -> None:
        """At once."""
        raise ValueError("broken")


class Forgiving(Bolt):
    """Raises, and goes on."""

    isAutoAcked = True

    def process(self, tup: StreamTuple) -> None:
        """At once."""
        raise ValueError("forgiven")


def topologyOf(spout: type[Spout]) -> Topology:
    """With a bolt for what it emits."""
    builder = TopologyBuilder("t", {"topology.tick.tuple.freq.secs": 1})
    builder.setSpout("spout", spout)
    builder.setBolt("bolt", Forgiving, 1, {"spout": Grouping.ALL})
    return builder.build()


def starterOf(topology: Topology, task: int = 1) -> Callable[[RunnerOutput], Runner]:
    """Makes the runner of a task."""
    packing = packRoundRobin(topology, 1)
    return lambda output: newRunner(topology, packing, task, output, reactor.seconds, Random(1))


class ThreadTests(TestCase):
    """A thread, and the reactor of the tests."""

    timeout = 60

    def start(self, spout: type[Spout], outputSizeMax: int = 10_000) -> ThreadExecutor:
        """Start a spout that is active."""
        self.owner = Owner()
        executor = ThreadExecutor(reactor, outputSizeMax)
        self.addCleanup(executor.stop)
        self.runner: Any = executor.start(starterOf(topologyOf(spout)), self.owner)
        self.runner.setActive(True)
        executor.wake()
        return executor

    async def filled(self, sizeMin: int) -> None:
        """Wait until as many bytes are handed over."""
        while self.owner.unsentSize < sizeMin:
            await self.owner.changed

    async def test_room(self) -> None:
        """A spout goes on until the output is full, and again when there is room."""
        executor = self.start(Endless)
        await self.filled(10_000)
        count = self.owner.count
        self.assertLess(self.owner.unsentSize, 10_000 + (40 << 10))
        self.owner.unsentSize = 0
        executor.wake()
        await self.filled(10_000)
        self.assertGreater(self.owner.count, count)

    async def test_pressure(self) -> None:
        """Under back pressure a spout is not called."""
        self.owner = Owner()
        self.owner.isPressed = True
        executor = ThreadExecutor(reactor)
        self.addCleanup(executor.stop)
        runner: Any = executor.start(starterOf(topologyOf(Endless)), self.owner)
        runner.setActive(True)
        executor.wake()
        await executor.stop()
        self.assertEqual((self.owner.count, runner.handledCount), (0, 0))

    async def test_emitWaits(self) -> None:
        """An emit waits when the output is full, and a stop ends that."""
        executor = self.start(Burst)
        await self.filled(10_000)
        self.assertLess(self.owner.unsentSize, 10_000 + (80 << 10))
        self.runner.component.isOver = True
        await executor.stop()
        self.assertTrue(self.runner.isClosed)

    async def test_error(self) -> None:
        """An error of the author's is told on the reactor, with its trace."""
        executor = self.start(Broken)
        (failure,) = await self.owner.failed
        self.assertIsInstance(failure.value, ComponentFailedError)
        self.assertRegex(failure.getTraceback(), r"test_executors\.py\", line \d+, in nextTuple")
        await executor.stop()

    async def test_reports(self) -> None:
        """An error that a bolt survives is told on the reactor."""
        self.owner = Owner()
        executor = ThreadExecutor(reactor)
        runner: Any = executor.start(starterOf(topologyOf(Endless), 2), self.owner)
        runner.tick()
        executor.wake()
        done: Deferred[None] = Deferred()
        reported = self.owner.reported

        def report(text: str) -> None:
            reported(text)
            done.callback(None)

        self.owner.reported = report  # type: ignore[method-assign]
        await done
        await executor.stop()
        self.assertIn("forgiven", self.owner.reports[0])

    async def test_stop(self) -> None:
        """A stop fires when the author's call has returned, not before; a second one, too."""
        Blocked.entered.clear()
        Blocked.released.clear()
        executor = self.start(Blocked)
        while not Blocked.entered.is_set():
            waited: Deferred[None] = Deferred()
            reactor.callLater(0.01, waited.callback, None)
            await waited
        stopped, again = executor.stop(), executor.stop()
        self.assertNoResult(stopped)
        Blocked.released.set()
        await stopped
        await again
        await executor.stop()
        self.assertTrue(self.runner.isClosed)

    async def test_neverStarted(self) -> None:
        """An executor that has not started stops at once."""
        await ThreadExecutor(reactor).stop()


class InlineTests(SynchronousTestCase):
    """A clock in place of a thread."""

    def start(self, spout: type[Spout], **named: Any) -> IExecutor:
        """Start a spout that is active."""
        self.clock = Clock()
        self.owner = Owner()
        executor = InlineExecutor(self.clock, **named)
        self.runner: Any = executor.start(starterOf(topologyOf(spout)), self.owner)
        self.runner.setActive(True)
        executor.wake()
        return executor

    def test_pace(self) -> None:
        """A call takes its time on the clock, however often the executor is woken."""
        executor = self.start(Endless, secondsPerTuple=0.01, outputSizeMax=1 << 30)
        for _ in range(1000):
            self.clock.advance(0.001)
            executor.wake()
        self.assertAlmostEqual(self.owner.count, 100, delta=1)

    def test_room(self) -> None:
        """It stops when the output is full, and goes on when it is woken with room."""
        executor = self.start(Endless, outputSizeMax=1000)
        self.clock.pump([0.01] * 100)
        count = self.owner.count
        self.clock.pump([0.01] * 100)
        self.assertEqual(self.owner.count, count)
        self.owner.unsentSize = 0
        executor.wake()
        self.clock.pump([0.01] * 100)
        self.assertGreater(self.owner.count, 1.5 * count)

    def test_error(self) -> None:
        """An error is told; there is no turn behind it."""
        executor = self.start(Broken)
        self.clock.advance(0)
        (failure,) = self.successResultOf(self.owner.failed)
        self.assertIsInstance(failure.value, ComponentFailedError)
        executor.wake()
        self.successResultOf(executor.stop())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stop(self) -> None:
        """A stop closes the author's object."""
        executor = self.start(Endless)
        self.clock.advance(0)
        self.successResultOf(executor.stop())
        self.assertTrue(self.runner.isClosed)
        executor.wake()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_kill(self) -> None:
        """A kill does not."""
        executor: Any = self.start(Endless)
        self.clock.advance(0)
        executor.kill()
        count = self.owner.count
        executor.wake()
        self.clock.pump([0.01] * 10)
        self.assertEqual((self.runner.isClosed, self.owner.count), (False, count))
