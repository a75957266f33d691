"""Tests for L{pylogbroker.topologies.instance.collectors}."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from random import Random
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import TupleError
from pylogbroker.topologies.acktrees import AckTrees
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.instance.collectors import (
    BoltCollector,
    Collector,
    SpoutCollector,
)
from pylogbroker.topologies.messages import (
    ACKS,
    FAILS,
    ROOTS,
    TUPLES,
    BatchEntry,
    decodeBatch,
    decodeNumbers,
    encodeBatch,
)
from pylogbroker.topologies.topology import StreamId, Topology, TopologyBuilder

TASKS = {"source": [1], "all": [2, 3], "one": [4], "direct": [5, 6], "chosen": [7, 8]}
WHERE = "topology t, component source, stream"


class Nearest:
    """A custom grouping: no task, both, one twice, or an error."""

    def prepare(self, context: TopologyContext, stream: str, targetTasks: Sequence[int]) -> None:
        """Keep the tasks."""
        self.tasks = targetTasks

    def chooseTasks(self, values: Sequence[Any]) -> Sequence[int]:
        """By the first value."""
        if values[0] == "wrong":
            raise ValueError("no way")
        return {"none": [], "twice": [7, 7], "other": [1]}.get(values[0], self.tasks)


def topologyOf(kind: type[Spout] | type[Bolt]) -> Topology:
    """One whose component C{source} has streams for bolts of all kinds."""
    outputs = {
        "default": ["word", "n"],
        "both": ["a"],
        "direct": ["a"],
        "chosen": ["a"],
        "unread": ["a"],
        "empty": [],
    }
    builder = TopologyBuilder("t")
    if issubclass(kind, Spout):
        builder.setSpout("source", kind, outputs=outputs)
    else:
        builder.setSpout("spout", Spout, outputs=["a"])
        builder.setBolt("source", kind, 1, {"spout": Grouping.ALL}, outputs=outputs)
    streams = {name: StreamId("source", name) for name in outputs}
    default, both, empty = streams["default"], streams["both"], streams["empty"]
    builder.setBolt("all", Bolt, 2, {both: Grouping.ALL, default: Grouping.fields("word")})
    builder.setBolt("one", Bolt, 1, {both: Grouping.SHUFFLE, empty: Grouping.SHUFFLE})
    builder.setBolt("direct", Bolt, 2, {streams["direct"]: Grouping.DIRECT})
    builder.setBolt("chosen", Bolt, 2, {streams["chosen"]: Grouping.custom(Nearest)})
    return builder.build()


def contextOf(topology: Topology) -> TopologyContext:
    """Of C{source}."""
    streams = {
        name: {stream: each.fields for stream, each in spec.outputs.items()}
        for name, spec in topology.components.items()
    }
    return TopologyContext(
        "t",
        "source",
        1,
        0,
        {"spout": [9], **TASKS},
        streams,
        lambda: 5.0,
        Random(1).random,
        lambda name, number: None,
    )


class CollectorCase(SynchronousTestCase):
    """What was emitted, taken and decoded."""

    collector: Collector

    def setUp(self) -> None:
        self.flushed: list[BatchEntry] = []

    def flush(self) -> None:
        """Take what there is."""
        taken = self.collector.take()
        entries = decodeBatch(encodeBatch(1, [each.data for each in taken])[4:])
        self.assertEqual([each.amount for each in taken], [each.amount for each in entries])
        self.flushed += entries

    def make(self, kind: type[Collector], *arguments: Any) -> None:
        """A collector for C{source}."""
        topology = topologyOf(Bolt if kind is BoltCollector else Spout)
        context = contextOf(topology)
        self.collector = kind(topology, context, self.flush, *arguments)
        self.collector.replan(topology, context, [])

    def emit(
        self,
        values: Any,
        stream: str = "default",
        tupleId: Any = None,
        anchors: Sequence[StreamTuple] = (),
        directTask: int | None = None,
    ) -> list[int]:
        """Emit a tuple."""
        return list(self.collector.emit(values, stream, tupleId, anchors, directTask))

    def taken(self) -> list[tuple[int, str, list[Any]]]:
        """Task, stream and tuples of each entry of tuples."""
        self.flush()
        entries, self.flushed = self.flushed, []
        found = []
        for entry in entries:
            self.assertEqual(entry.kind, TUPLES)
            source, stream, tuples = msgspec.msgpack.decode(entry.data)
            self.assertEqual((source, len(tuples)), (1, entry.amount))
            found.append((entry.task, stream, tuples))
        return sorted(found, key=itemgetter(0))  # tasks are independent of one another


class AtMostOnceTests(CollectorCase):
    """Tuples without roots, and what all collectors share."""

    def setUp(self) -> None:
        super().setUp()
        self.make(Collector)

    def test_entries(self) -> None:
        """The tuples for a task are together, in their order, whatever their streams."""
        self.assertEqual(self.emit(["e", 1]), [3])
        self.assertEqual(self.emit(["e", 2]), [3])
        self.assertEqual(self.emit([b"x"], "both"), [2, 3, 4])
        self.assertEqual(self.emit(("e", 3)), [3])
        self.assertEqual(
            self.taken(),
            [
                (2, "both", [[b"x"]]),
                (3, "default", [["e", 1], ["e", 2]]),
                (3, "both", [[b"x"]]),
                (3, "default", [["e", 3]]),
                (4, "both", [[b"x"]]),
            ],
        )
        self.assertEqual((self.taken(), self.collector.size), ([], 0))
        counts = self.collector.emittedCounts
        self.assertEqual((counts["default"], counts["both"], counts["unread"]), (3, 1, 0))

    def test_valuesAreThoseOfTheEmit(self) -> None:
        """What the author changes afterwards does not change the tuple."""
        values: list[Any] = ["e", [1]]
        self.emit(values)
        values[1].append(2)
        values.clear()
        self.assertEqual(self.taken(), [(3, "default", [["e", [1]]])])

    def test_allTypes(self) -> None:
        """Values of all types arrive as they were, but tuples and sets, as lists."""
        now = datetime.now(UTC)
        value = [None, True, -(1 << 63), (1 << 64) - 1, 1.5, "ü", b"\0", now, {"a": {1: [2]}}]
        self.emit([(value,)], "both")
        self.assertEqual(self.taken()[0][2], [[[value]]])

    def test_noFields(self) -> None:
        """A stream may have no fields."""
        self.assertEqual(self.emit([], "empty"), [4])
        self.assertEqual(self.taken(), [(4, "empty", [[]])])

    def test_unread(self) -> None:
        """What no bolt reads goes nowhere, and counts as emitted."""
        self.assertEqual(self.emit([object()], "unread"), [])
        self.assertEqual(self.emit([1], "unread", directTask=2), [])
        self.assertEqual(self.taken(), [])
        self.assertEqual(self.collector.emittedCount, 2)

    def test_direct(self) -> None:
        """A tuple of a direct stream goes to the task that is named."""
        self.assertEqual(self.emit([1], "direct", directTask=6), [6])
        self.assertEqual(self.taken(), [(6, "direct", [[1]])])
        for stream, task, text in (
            ("direct", None, "direct: its grouping is direct, and no directTask is given"),
            ("direct", 4, "direct: task 4 does not get it directly, but 5, 6"),
            ("both", 4, "both: no grouping of it is direct, and task 4 is to get it"),
        ):
            error = self.assertRaises(TupleError, self.emit, [1], stream, directTask=task)
            self.assertEqual(str(error), f"{WHERE} {text}")

    def test_custom(self) -> None:
        """A custom grouping may choose any number of the tasks."""
        self.assertEqual(self.emit(["none"], "chosen"), [])
        self.assertEqual(self.emit(["twice"], "chosen"), [7, 7])
        self.assertEqual(self.emit(["both"], "chosen"), [7, 8])
        self.assertEqual([task for task, _, _ in self.taken()], [7, 8])
        for value, text in (
            ("other", "chosen: the custom grouping of source.chosen for chosen chose [1], of"),
            ("wrong", "chosen: ValueError: no way"),
        ):
            error = self.assertRaises(TupleError, self.emit, [value], "chosen")
            self.assertIn(f"{WHERE} {text}", str(error))

    def test_wrongTuples(self) -> None:
        """What cannot be emitted is named; nothing of it is sent."""
        for values, stream, text in (
            (["a"], "x", "x: it is not declared; declared: default, both, direct, chosen"),
            (["a"], "default", "default: 1 values for the fields word, n: ['a']"),
            ([], "both", "both: 0 values for the fields a: []"),
            ([1], "empty", "empty: 1 values for the fields none: [1]"),
            ("a", "both", "both: 'a': values are a list or a tuple"),
            ({"a": 1}, "both", "both: {'a': 1}: values are a list or a tuple"),
            (["a" * (17 << 20), 1], "default", "default: a tuple of 17825799 bytes; 16777216 are"),
            (["a", 1j], "default", "default, field n: 1j cannot be encoded: "),
            (["a", 1 << 64], "default", "default, field n: 18446744073709551616 cannot be encoded"),
            (["\ud800", 1], "default", "default, field word: '\\ud800' cannot be encoded"),
            ([2j, 1], "default", "default: a complex cannot be grouped by: 2j"),
        ):
            error = self.assertRaises(TupleError, self.emit, values, stream)
            self.assertIn(f"{WHERE} {text}", str(error))
        self.assertEqual((self.taken(), self.collector.emittedCount), ([], 0))

    def test_flush(self) -> None:
        """A tuple that fills the buffers has them flushed at once, and all arrives once."""
        self.make(Collector, 100)
        for number in range(50):
            self.emit(["a", number])
            self.assertLess(self.collector.size, 100)
        self.assertGreater(len(self.flushed), 1)
        self.assertEqual(
            [each for _, _, tuples in self.taken() for each in tuples],
            [["a", number] for number in range(50)],
        )

    def test_acknowledgements(self) -> None:
        """They are counted, once for each tuple; a spout's ids are kept for it."""
        tuples = [StreamTuple(n, "spout", "default", 9, [n], ["a"]) for n in range(2)]
        self.collector.ack(tuples[0])
        self.collector.fail(tuples[1])
        for each in tuples:
            self.collector.ack(each)
            self.collector.fail(each)
        self.assertEqual((self.collector.ackedCount, self.collector.failedCount), (1, 1))
        self.emit(["a", 1], tupleId=0)
        self.emit(["a", 1])
        self.emit([1], "unread", "id")
        self.assertEqual(list(self.collector.untracked), [0, "id"])

    def test_replan(self) -> None:
        """Other tasks get what is emitted behind a new plan."""
        topology = topologyOf(Spout)
        context = contextOf(topology)
        tasks = {**TASKS, "all": [12], "one": [4, 14]}
        self.emit(["e", 1])
        self.collector.replan(topology, context._replace(componentTasks=tasks), [14])
        self.emit(["e", 2])
        self.emit([1], "both")
        self.assertEqual(sorted({task for task, _, _ in self.taken()} - {4, 14}), [3, 12])


class TrackedTests(CollectorCase):
    """Trees: what a spout and a bolt say to the acker."""

    def test_spout(self) -> None:
        """A tuple with an id has a root, and an edge for each task; one without has neither."""
        collector: SpoutCollector
        self.make(SpoutCollector, Random(1).getrandbits)
        collector = self.collector  # type: ignore[assignment]
        self.emit([1], "both", "id")
        self.emit([2], "both")
        self.emit([3], "unread", "unread")
        self.flush()
        roots = self.flushed.pop(0)
        self.assertEqual((roots.kind, roots.task, roots.amount), (ROOTS, 1, 1))
        root, edges = decodeNumbers(roots.data)
        self.assertEqual(collector.pending, {root: ("id", 5.0)})
        self.assertEqual(list(collector.untracked), ["unread"])
        found = []
        for _, _, ((tree, one), (none, two)) in self.taken():
            self.assertEqual((tree[:2], one, none, two), ([1, root], [1], [], [2]))
            found.append(tree[2])
        self.assertEqual(len(found), 3)
        self.assertEqual(found[0] ^ found[1] ^ found[2], edges)
        self.assertEqual(len(set(found)), 3)

    def tuplesOf(self, entries: Sequence[BatchEntry]) -> list[StreamTuple]:
        """As their receivers get them."""
        return [
            StreamTuple(0, "source", "both", 1, values, ["a"], roots)
            for entry in entries
            if entry.kind == TUPLES
            for roots, values in msgspec.msgpack.decode(entry.data)[2]
        ]

    def numbersOf(self, kind: int, task: int = 9) -> list[int]:
        """What was flushed for a spout."""
        return [
            number
            for entry in self.flushed
            if (entry.kind, entry.task) == (kind, task)
            for number in decodeNumbers(entry.data)
        ]

    def test_tree(self) -> None:
        """A tree is complete when its last tuple is acknowledged, in any order, and not before."""
        for seed in range(20):
            random = Random(seed)
            self.make(BoltCollector, random.getrandbits)
            trees = AckTrees()
            trees.announce([100, 1000])
            unhandled = [StreamTuple(0, "spout", "default", 9, [1], ["a"], [9, 100, 1000])]
            handled = 0
            while unhandled:
                tup = unhandled.pop(random.randrange(len(unhandled)))
                handled += 1
                if handled < 30:
                    for _ in range(random.randrange(3)):
                        self.emit([1], "both", anchors=[tup])
                self.collector.ack(tup)
                self.collector.ack(tup)  # a second one does nothing
                self.flush()
                new = self.tuplesOf(self.flushed)
                acks = self.numbersOf(ACKS)
                self.flushed.clear()
                self.assertEqual(len(acks), 2)
                unhandled += new
                self.assertEqual(trees.acknowledge(acks), [] if unhandled else [100])

    def test_severalAnchors(self) -> None:
        """A tuple with several anchors is in the trees of all, and of a common one once."""
        self.make(BoltCollector, Random(1).getrandbits)
        trees = AckTrees()
        trees.announce([100, 7 ^ 6, 101, 5])
        anchors = [
            StreamTuple(0, "spout", "default", 9, [1], ["a"], [9, 100, 7]),
            StreamTuple(1, "spout", "default", 9, [1], ["a"], [9, 101, 5, 9, 100, 6]),
            StreamTuple(2, "spout", "default", 9, [1], ["a"]),
        ]
        self.assertEqual(self.emit([1], "direct", anchors=anchors, directTask=5), [5])
        for anchor in anchors:
            self.collector.ack(anchor)
        self.flush()
        (child,) = self.tuplesOf(self.flushed)
        self.assertEqual(sorted(child.roots[1::3]), [100, 101])
        self.assertEqual(trees.acknowledge(self.numbersOf(ACKS)), [])
        self.flushed.clear()
        self.collector.ack(child)
        self.flush()
        self.assertEqual(sorted(trees.acknowledge(self.numbersOf(ACKS))), [100, 101])

    def test_untracked(self) -> None:
        """What is not anchored has no roots."""
        self.make(BoltCollector, Random(1).getrandbits)
        tup = StreamTuple(0, "spout", "default", 9, [1], ["a"])
        self.emit([1], "both")
        self.emit([2], "both", anchors=[tup])
        self.collector.ack(tup)
        self.flush()
        self.assertEqual([list(each.roots) for each in self.tuplesOf(self.flushed)], [[]] * 6)
        self.assertEqual({entry.kind for entry in self.flushed}, {TUPLES})

    def test_fails(self) -> None:
        """A tuple that failed is said to the acker of its spout, before tuples."""
        self.make(BoltCollector, Random(1).getrandbits)
        first = StreamTuple(0, "spout", "default", 9, [1], ["a"], [9, 100, 7, 8, 200, 7])
        second = StreamTuple(0, "spout", "default", 9, [1], ["a"], [9, 101, 7])
        self.emit([1], "both")
        self.collector.fail(first)
        self.collector.fail(first)
        self.collector.ack(first)
        self.collector.ack(second)
        self.flush()
        self.assertEqual(
            [entry.kind for entry in self.flushed], [ACKS, FAILS, FAILS, *[TUPLES] * 3]
        )
        self.assertEqual((self.numbersOf(FAILS), self.numbersOf(FAILS, 8)), ([100], [200]))
        self.assertEqual(self.numbersOf(ACKS), [101, 7])

    def test_anchorsThatAreDone(self) -> None:
        """What is acknowledged or failed cannot be an anchor any more."""
        self.make(BoltCollector, Random(1).getrandbits)
        tup = StreamTuple(0, "spout", "default", 9, [1], ["a"], [9, 100, 7])
        self.collector.ack(tup)
        error = self.assertRaises(TupleError, self.emit, [1], "both", anchors=[tup])
        self.assertIn(f"{WHERE} both: the anchor <StreamTuple of spout.default: [1]>", str(error))

    def test_acksFlush(self) -> None:
        """Many acknowledgements or failures are sent, though nothing is emitted."""
        self.make(BoltCollector, Random(1).getrandbits, 100)
        for number, end in enumerate([self.collector.ack] * 20 + [self.collector.fail] * 20):
            end(StreamTuple(0, "spout", "default", 9, [1], ["a"], [9, number, 7]))
            self.assertLess(self.collector.size, 100)
        self.flush()
        self.assertEqual(self.numbersOf(ACKS)[::2], list(range(20)))
        self.assertEqual(self.numbersOf(FAILS), list(range(20, 40)))
