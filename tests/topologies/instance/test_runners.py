"""Tests for L{pylogbroker.topologies.instance.runners}."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ComponentFailedError, WireError
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.instance.collectors import EncodedEntry
from pylogbroker.topologies.instance.runners import (
    BoltRunner,
    InstanceSettings,
    RunnerOutput,
    SpoutRunner,
    newRunner,
)
from pylogbroker.topologies.messages import (
    ACKED,
    ACKS,
    FAILS,
    ROOTS,
    TUPLES,
    BatchEntry,
    decodeBatch,
    decodeNumbers,
    encodeBatch,
    encodeNumbers,
)
from pylogbroker.topologies.packings import packRoundRobin
from pylogbroker.topologies.topology import Topology, TopologyBuilder

SPOUT, BOLT, LAST = 1, 2, 3


class Source(Spout):
    """Emits what C{script} says, one call after the other."""

    outputs = ["a"]
    script: Any = ()

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Keep what it gets."""
        self.given, self.context = config, context
        self.calls: list[Any] = []
        self.steps = iter(config.get("script", ()))

    def nextTuple(self) -> None:
        """Emit a number of tuples."""
        self.calls.append("next")
        for number in range(next(self.steps, 0)):
            self.emit([number], number)

    def ack(self, tupleId: Any) -> None:
        """Keep it."""
        self.calls.append(("ack", tupleId))

    def fail(self, tupleId: Any) -> None:
        """Keep it."""
        self.calls.append(("fail", tupleId))


class Work(Bolt):
    """Does with a tuple what C{config} says."""

    outputs = ["a"]

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Keep what it gets."""
        self.given, self.context = config, context
        self.seen: list[StreamTuple] = []
        self.does: Callable[[Work, StreamTuple], object] = config.get("does", Bolt.ack)
        context.counter("begun", 1)

    def process(self, tup: StreamTuple) -> None:
        """Keep it, and do it."""
        self.seen.append(tup)
        self.does(self, tup)


class Automatic(Work):
    """Anchors and acknowledges by itself."""

    isAutoAnchored = True
    isAutoAcked = True


def pipeline(
    config: Mapping[str, Any], bolt: type[Bolt] = Work, spout: type[Spout] = Source
) -> Topology:
    """A spout, a bolt and another one behind it."""
    builder = TopologyBuilder("line", config)
    builder.setSpout("source", spout)
    builder.setBolt("work", bolt, 1, {"source": Grouping.SHUFFLE})
    builder.setBolt("last", Work, 1, {"work": Grouping.SHUFFLE})
    return builder.build()


TRACKED = {"topology.reliability.mode": "ATLEAST_ONCE"}


class RunnerCase(SynchronousTestCase):
    """A runner, called by the test."""

    def setUp(self) -> None:
        self.now = 100.0
        self.sent: list[BatchEntry] = []
        self.numbers: list[int] = []
        self.reported: list[str] = []
        self.mayEmit = True

    def send(self, entries: list[EncodedEntry], number: int) -> None:
        """The runner hands over."""
        self.sent += decodeBatch(encodeBatch(1, [each.data for each in entries])[4:])
        self.numbers.append(number)

    def runner(self, topology: Topology, task: int, **settings: Any) -> Any:
        """The runner of a task."""
        output = RunnerOutput(self.send, lambda: self.mayEmit, self.reported.append)
        packing = packRoundRobin(topology, 1)
        return newRunner(
            topology,
            packing,
            task,
            output,
            lambda: self.now,
            Random(1),
            InstanceSettings(**settings),
        )

    def tuples(self, *values: Any, source: int = SPOUT, stream: str = "default") -> BatchEntry:
        """An entry for the bolt."""
        data = msgspec.msgpack.encode([source, stream, list(values)])
        return BatchEntry(TUPLES, BOLT, len(values), memoryview(data))

    def sentNumbers(self, kind: int) -> list[int]:
        """In entries of a kind."""
        entries = (entry for entry in self.sent if entry.kind == kind)
        return [number for entry in entries for number in decodeNumbers(entry.data)]


class SpoutRunnerTests(RunnerCase):
    """When a spout is called, and with what."""

    def test_context(self) -> None:
        """A spout knows the configuration and where it is."""
        runner: SpoutRunner = self.runner(pipeline({"mine": 1}), SPOUT)
        self.assertIsNone(runner.turn())
        component: Any = runner.component
        context = component.context
        self.assertEqual(component.given["mine"], 1)
        self.assertEqual(
            (context.topology, context.component, context.taskId, context.taskIndex),
            ("line", "source", 1, 0),
        )
        self.assertEqual(context.componentTasks, {"source": [1], "work": [2], "last": [3]})
        self.assertEqual(context.streams["work"], {"default": ("a",)})
        self.assertEqual((context.parallelism, context.seconds()), (1, 100.0))

    def test_turns(self) -> None:
        """A turn calls it until it is late; a call without tuples is followed by growing delays."""
        runner: SpoutRunner = self.runner(pipeline({"script": [1, 2]}), SPOUT, idleDelayMax=0.003)
        runner.setActive(True)
        waits = [runner.turn() for _ in range(4)]
        self.assertEqual(waits, [0.001, 0.002, 0.003, 0.003])
        component: Any = runner.component
        component.steps = iter([1])
        self.assertEqual([runner.turn(), runner.turn()], [0.001, 0.002])
        self.assertEqual(component.calls[:3], ["next"] * 3)
        self.assertEqual((component.calls.count("next"), runner.handledCount), (9, 9))
        sent = [(each.kind, each.amount) for each in self.sent]
        self.assertEqual(sent, [(TUPLES, 3), (TUPLES, 1)])

    def test_countMax(self) -> None:
        """A turn has a greatest number of calls, and goes on at once in the next one."""
        runner: SpoutRunner = self.runner(pipeline({"script": [1] * 10}), SPOUT)
        runner.setActive(True)
        self.assertEqual([runner.turn(4) for _ in range(3)], [0, 0, 0.001])

    def test_deadline(self) -> None:
        """A turn ends when its time is over, and hands over what was emitted."""

        class Slow(Source):
            """Takes its time."""

            def nextTuple(self) -> None:
                """Five seconds."""
                super().nextTuple()
                case.now += 5

        case = self
        runner: SpoutRunner = self.runner(pipeline({"script": [1] * 9}, spout=Slow), SPOUT)
        runner.setActive(True)
        self.assertEqual(runner.turn(), 0)
        self.assertEqual([each.amount for each in self.sent], [1])
        self.assertEqual(runner.metrics()["busySeconds"], 5)

    def test_mayNotEmit(self) -> None:
        """Without room, it is not called; the time is counted."""
        runner: SpoutRunner = self.runner(pipeline({"script": [1] * 9}), SPOUT)
        runner.setActive(True)
        self.mayEmit = False
        self.assertIsNone(runner.turn())
        self.now += 3
        self.assertIsNone(runner.turn())
        self.assertEqual(runner.metrics()["stoppedSeconds"], 3)
        self.mayEmit = True
        runner.turn(1)
        self.now += 3
        self.assertEqual(runner.metrics()["stoppedSeconds"], 3)
        component: Any = runner.component
        self.assertEqual(component.calls, ["next", ("ack", 0)])

    def test_stoppedWhileInactive(self) -> None:
        """A spout that is not active is not stopped by what others cannot take."""
        runner: SpoutRunner = self.runner(pipeline({"script": [1] * 9}), SPOUT)
        runner.setActive(True)
        self.mayEmit = False
        runner.turn()
        self.now += 1
        runner.setActive(False)
        runner.turn()
        self.now += 5
        self.assertEqual(runner.metrics()["stoppedSeconds"], 1)

    def test_failPending(self) -> None:
        """All that is pending fails, once."""
        runner: SpoutRunner = self.runner(pipeline({**TRACKED, "script": [2]}), SPOUT)
        runner.setActive(True)
        runner.turn()
        self.assertEqual(runner.metrics()["pending"], 2)
        roots = self.sentNumbers(ROOTS)[::2]
        runner.failPending()
        data = encodeNumbers(roots)
        runner.take(1, [BatchEntry(ACKED, SPOUT, 2, data)])
        runner.failPending()
        runner.turn()
        component: Any = runner.component
        self.assertEqual(
            [each for each in component.calls if each != "next"], [("fail", 0), ("fail", 1)]
        )
        self.assertEqual((runner.metrics()["failed"], runner.metrics()["acked"]), (2, 0))
        self.assertEqual(self.numbers[-1], 1)

    def test_completeSeconds(self) -> None:
        """The time until a tree is complete is added up."""
        runner: SpoutRunner = self.runner(pipeline({**TRACKED, "script": [2]}), SPOUT)
        runner.setActive(True)
        runner.turn()
        self.now += 2
        data = encodeNumbers(self.sentNumbers(ROOTS)[::2])
        runner.take(1, [BatchEntry(ACKED, SPOUT, 2, data)])
        runner.turn()
        metrics = runner.metrics()
        self.assertEqual((metrics["acked"], metrics["completeSeconds"]), (2, 4))

    def test_emitInAck(self) -> None:
        """What is emitted while a tuple is acknowledged is sent, too."""

        class Chain(Source):
            """Emits the next one when one is acknowledged."""

            def ack(self, tupleId: Any) -> None:
                """Four times."""
                super().ack(tupleId)
                if tupleId < 4:
                    self.emit([tupleId], tupleId + 1)

        runner: SpoutRunner = self.runner(pipeline({"script": [1]}, spout=Chain), SPOUT)
        runner.setActive(True)
        self.assertEqual([runner.turn() for _ in range(4)], [0, 0, 0, 0])
        self.assertEqual(runner.turn(), 0.016)
        component: Any = runner.component
        acks = [each for each in component.calls if each != "next"]
        self.assertEqual(acks, [("ack", number) for number in range(5)])
        self.assertEqual(sum(each.amount for each in self.sent), 5)

    def test_wrongEntry(self) -> None:
        """A spout gets no tuples."""
        runner: SpoutRunner = self.runner(pipeline({}), SPOUT)
        runner.take(1, [self.tuples([1])])
        error = self.assertRaises(WireError, runner.turn)
        self.assertIn(
            "component source, task 1 (index 0): a spout got an entry of kind 0", str(error)
        )


class BoltRunnerTests(RunnerCase):
    """What a bolt gets, and what is handed over."""

    def test_tuples(self) -> None:
        """Tuples say where they come from, and have ids of their own."""
        runner: BoltRunner = self.runner(pipeline({}), BOLT)
        runner.take(5, [self.tuples([1], [2]), self.tuples([3])])
        self.assertIsNone(runner.turn())
        component: Any = runner.component
        tup = component.seen[2]
        self.assertEqual(
            (tup.component, tup.stream, tup.task, tup.values, tup["a"], tup.isTick),
            ("source", "default", 1, [3], 3, False),
        )
        self.assertRaises(KeyError, tup.__getitem__, "b")
        self.assertEqual(len({each.id for each in component.seen}), 3)
        self.assertEqual(self.numbers, [5])
        metrics = runner.metrics()
        self.assertEqual(
            (metrics["executed.source.default"], metrics["acked"], metrics["counter.begun"]),
            (3, 3, 1),
        )

    def test_oneByOne(self) -> None:
        """A turn of one tuple handles one; a batch is handled with its last one."""
        runner: BoltRunner = self.runner(pipeline({}), BOLT)
        runner.take(1, [self.tuples([1], [2])])
        runner.take(2, [self.tuples([3])])
        waits = [runner.turn(1) for _ in range(4)]
        self.assertEqual(waits, [0, 0, 0, None])
        self.assertEqual(self.numbers, [1, 2])
        self.assertEqual(runner.handledCount, 3)

    def test_deadline(self) -> None:
        """A turn ends when its time is over, within a batch, too."""

        def slow(bolt: Bolt, tup: StreamTuple) -> None:
            bolt.emit([1])
            self.now += 5

        runner: BoltRunner = self.runner(pipeline({"does": slow}), BOLT)
        runner.take(1, [self.tuples([1], [2])])
        self.assertEqual(runner.turn(), 0)
        self.assertEqual(([each.amount for each in self.sent], self.numbers), ([1], [0]))

    def test_idle(self) -> None:
        """A bolt hears that no tuple waits; what it emits and acknowledges then is sent."""

        class Collecting(Work):
            def idle(self) -> None:
                for each in self.seen:
                    self.ack(each)
                self.emit([len(self.seen)])

        config = {**TRACKED, "does": lambda _bolt, _tup: None}
        runner: BoltRunner = self.runner(pipeline(config, Collecting), BOLT)
        runner.take(1, [self.tuples([[1, 100, 7], [5]], [[1, 101, 8], [6]])])
        self.assertEqual((runner.turn(1), self.sentNumbers(ACKS)), (0, []))
        self.assertEqual(runner.turn(2), None)
        self.assertEqual(self.sentNumbers(ACKS), [100, 7, 101, 8])
        self.assertEqual([each.amount for each in self.sent if each.kind == TUPLES], [1])

    def test_ticks(self) -> None:
        """A tick tuple is one, and only one waits."""
        key = "topology.tick.tuple.freq.secs"
        runner: BoltRunner = self.runner(pipeline({key: 2, "does": Bolt.ack}), BOLT)
        runner.take(1, [self.tuples([1])])
        runner.tick()
        runner.tick()
        runner.turn()
        runner.tick()
        runner.turn()
        component: Any = runner.component
        self.assertEqual([each.isTick for each in component.seen], [False, True, True])
        self.assertEqual(component.seen[1]["seconds"], 2)

    def tracked(self, does: Callable[[Bolt, StreamTuple], object], kind: type[Bolt]) -> BoltRunner:
        """A bolt that has got a tuple of the root 100 with the edge 7."""
        runner: BoltRunner = self.runner(pipeline({**TRACKED, "does": does}, kind), BOLT)
        runner.take(1, [self.tuples([[1, 100, 7], [5]])])
        runner.turn()
        return runner

    def test_automatic(self) -> None:
        """What is emitted is anchored, unless it says to what; the tuple is acknowledged."""

        def emitTwo(bolt: Bolt, tup: StreamTuple) -> None:
            bolt.emit([1])
            bolt.emit([2], anchors=[])

        self.tracked(emitTwo, Automatic)
        acks, tuples = self.sent
        root, value = decodeNumbers(acks.data)
        (spout, rootOfTuple, edge), none = [
            each[0] for each in msgspec.msgpack.decode(tuples.data)[2]
        ]
        self.assertEqual((acks.kind, acks.task, root), (ACKS, SPOUT, 100))
        self.assertEqual((spout, rootOfTuple, 7 ^ edge, none), (SPOUT, 100, value, []))

    def test_automaticFailure(self) -> None:
        """A tuple whose process raises fails, and the bolt goes on; it is reported."""

        def fail(bolt: Bolt, tup: StreamTuple) -> None:
            raise ValueError("five")

        runner = self.tracked(fail, Automatic)
        self.assertEqual(self.sentNumbers(FAILS), [100])
        (text,) = self.reported
        self.assertRegex(
            text,
            r"^topology line, component work, task 2 \(index 0\), in process: ValueError: five, at"
            r" line \d+ of .*test_runners\.py; the tuple failed$",
        )
        component: Any = runner.component
        component.does = lambda bolt, tup: bolt.emit([1])
        runner.take(2, [self.tuples([[1, 101, 7], [5]])])
        runner.turn()
        self.assertEqual(self.sentNumbers(ACKS)[0], 101)

    def test_byHand(self) -> None:
        """Without that, nothing is anchored or acknowledged, unless the author does it."""
        self.tracked(lambda bolt, tup: bolt.emit([1]), Work)
        (tuples,) = self.sent
        self.assertEqual(msgspec.msgpack.decode(tuples.data)[2], [[[], [1]]])

    def test_wrongEntries(self) -> None:
        """What cannot be a tuple of the topology is named."""
        whole = self.tuples([1])
        for entry, text in (
            (whole._replace(kind=ACKED), "a bolt got an entry of kind 4 for task 2"),
            (whole._replace(task=3), "a bolt got an entry of kind 0 for task 3"),
            (whole._replace(data=b"\xc1"), "tuples cannot be decoded: "),
            (whole._replace(data=b"\x93\x01"), "tuples cannot be decoded: "),
            (whole._replace(data=b"\x01"), "tuples cannot be decoded: "),
            (self.tuples([1], source=77), "a tuple of an unknown source, 77"),
            (self.tuples([1], stream="x"), "a tuple of an unknown source, 'x'"),
        ):
            runner: BoltRunner = self.runner(pipeline({}), BOLT)
            runner.take(1, [entry])
            self.assertIn(text, str(self.assertRaises(WireError, runner.turn)))

    def test_close(self) -> None:
        """When it is closed, what waits is left, and turns do nothing any more."""
        runner: BoltRunner = self.runner(pipeline({}), BOLT)
        runner.turn()
        runner.take(1, [self.tuples([1])])
        runner.close()
        self.assertIsNone(runner.turn())
        self.assertTrue(runner.isClosed)
        self.assertIsNone(runner.turn())
        component: Any = runner.component
        self.assertEqual((component.seen, self.numbers), ([], []))


class ErrorTests(RunnerCase):
    """Errors of the author's say where they were."""

    def raised(self, topology: Topology, task: int, call: Callable[[Any], object]) -> str:
        """The text of the error of a turn."""
        runner = self.runner(topology, task)
        call(runner)
        return str(self.assertRaises(ComponentFailedError, runner.turn))

    def test_methods(self) -> None:
        """Each method is named."""

        def boom(*arguments: Any) -> None:
            raise KeyError("x")

        for name, call in (
            ("__init__", lambda runner: None),
            ("initialize", lambda runner: None),
            ("activate", lambda runner: runner.setActive(True)),
            ("nextTuple", lambda runner: runner.setActive(True)),
            ("ack", lambda runner: runner.setActive(True)),
            ("close", lambda runner: runner.close()),
        ):
            kind = type("Broken", (Source,), {name: boom})
            text = self.raised(pipeline({"script": [1]}, spout=kind), SPOUT, call)
            where = f"topology line, component source, task 1 (index 0), in {name}: KeyError: "
            self.assertTrue(text.startswith(where), text)
            self.assertIn(f" of {__file__}", text)

    def test_errorsOfTheWire(self) -> None:
        """The author's code may raise an error of the wire, of a connection of its own."""

        def lose(bolt: Bolt, tup: StreamTuple) -> None:
            raise WireError("mine")

        text = self.raised(
            pipeline({"does": lose}), BOLT, lambda runner: runner.take(1, [self.tuples([1])])
        )
        self.assertIn("component work, task 2 (index 0), in process: WireError: mine", text)

    def test_exit(self) -> None:
        """An author's code that ends the process ends the instance with an error."""

        def leave(bolt: Bolt, tup: StreamTuple) -> None:
            sys.exit("enough")

        text = self.raised(
            pipeline({"does": leave}), BOLT, lambda runner: runner.take(1, [self.tuples([1])])
        )
        self.assertIn("in process: SystemExit: enough", text)

    def test_tupleErrors(self) -> None:
        """What cannot be emitted is at the author's line, not in this package."""

        def emit(bolt: Bolt, tup: StreamTuple) -> None:
            bolt.emit([1, 2])

        text = self.raised(
            pipeline({"does": emit}), BOLT, lambda runner: runner.take(1, [self.tuples([1])])
        )
        self.assertIn(
            "TupleError: topology line, component work, stream default: 2 values for the fields a",
            text,
        )
        self.assertIn(f" of {__file__}", text)
