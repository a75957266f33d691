"""
Tests of spouts and bolts that are subprocesses: real ones of C{pystorm}, in real runners.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ComponentFailedError, ConfigurationError, TupleError
from pylogbroker.topologies.api import Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.instance.runners import BoltRunner
from pylogbroker.topologies.multilang import ShellBolt, ShellSpout, components
from pylogbroker.topologies.multilang.definitions import loadAnyTopologies
from pylogbroker.topologies.topology import StreamId, Topology, TopologyBuilder
from tests.topologies.instance.instances import Instances, withSink
from tests.topologies.multilang.test_definitions import quickstart

PROJECT = Path(__file__).parent / "project"


class ComponentsTestCase(SynchronousTestCase):
    """Runs topologies."""

    def project(self, name: str) -> Topology:
        """A topology of our project for C{streamparse}."""
        return loadAnyTopologies(str(PROJECT / "topologies" / f"{name}.py"))[name]

    def start(self, topology: Topology, *streams: StreamId, isThreaded: bool = True) -> Instances:
        """A topology whose instances end with the test."""
        instances = Instances(withSink(topology, *streams) if streams else topology, isThreaded)
        self.addCleanup(instances.close)
        return instances


class QuickstartTests(ComponentsTestCase):
    """The project of C{sparse quickstart}, as it is."""

    COUNT = 5_000

    def count(self, isThreaded: bool) -> None:
        """Each count is that of an independent counter."""
        path = quickstart() / "topologies" / "wordcount.py"
        topology = loadAnyTopologies(str(path))["wordcount"]
        instances = self.start(topology, StreamId("count_bolt"), isThreaded=isThreaded)
        instances.run(lambda: len(instances.values("count_bolt")) >= self.COUNT)
        counts: dict[str, int] = defaultdict(int)
        for word, count in instances.values("count_bolt"):
            counts[word] += 10 if word == "dog" else 1
            self.assertEqual(count, counts[word])
        self.assertEqual(set(counts), {"dog", "cat", "zebra", "elephant"})
        words = [word for (word,) in instances.values("word_spout")]
        self.assertEqual(set(words), set(counts))

    def test_threads(self) -> None:
        """As real instances run it, with many tuples in flight."""
        self.count(True)

    def test_inline(self) -> None:
        """As a simulator runs it: a call ends when the subprocess has done with it."""
        self.count(False)


class ProjectTests(ComponentsTestCase):
    """What components of C{pystorm} can do."""

    def isAcked(self, instances: Instances, spout: int) -> bool:
        """Whether all numbers are."""
        return instances.acked[spout] >= 1000

    def test_fail(self) -> None:
        """A tuple that a bolt fails comes again; the spout is told of each end, once."""
        for isThreaded in (True, False):
            instances = self.start(self.project("flaky"), StreamId("flaky"), isThreaded=isThreaded)
            (spout,) = instances.tasksOf("numbers")
            instances.run(partial(self.isAcked, instances, spout))
            self.assertEqual(
                Counter(twice for (twice,) in instances.values("flaky")),
                Counter(range(0, 2000, 2)),
            )
            # Two bolts: each may have failed a number once.
            self.assertTrue(143 <= instances.failed[spout] <= 286)
            self.assertEqual(instances.acked[spout], 1000)

    def test_batches(self) -> None:
        """Batches come by tick tuples, and from a thread of the subprocess's own."""
        topology = self.project("batches")
        instances = self.start(topology, StreamId("batches"), StreamId("timed"))
        (batches,) = instances.tasksOf("batches")
        runner = instances.runners[batches]
        assert isinstance(runner, BoltRunner)
        (spout,) = instances.tasksOf("numbers")

        def isDone() -> bool:
            if len(instances.values("numbers")) == 2000:  # each number goes to two bolts
                runner.tick()
            return self.isAcked(instances, spout)

        instances.run(isDone)
        sums: dict[int, int] = defaultdict(int)
        for isOdd, batchSum in instances.values("batches"):
            sums[isOdd] += batchSum
        self.assertEqual(sums, {0: sum(range(0, 1000, 2)), 1: sum(range(1, 1000, 2))})
        self.assertEqual(sum(count for (count,) in instances.values("timed")), 1000)

    def test_direct(self) -> None:
        """
        A direct emit reaches its task; task ids are told; a component knows where it is, and is
        told when the topology is activated or deactivated; metrics are counted; logs are logged.
        """
        topology = self.project("direct")
        self.assertFalse(topology.options.isAtLeastOnce)
        instances = self.start(topology, StreamId("chooser", "facts"), StreamId("keeper"))
        first, second = keepers = instances.tasksOf("keeper")
        (chooser,) = instances.tasksOf("chooser")
        (sink,) = instances.tasksOf("sink")
        with capturedLogs() as events:
            instances.run(lambda: len(instances.values("keeper")) >= 10)
            instances.runners[chooser].setActive(False)
            instances.runners[chooser].setActive(True)
            facts = lambda: instances.values("chooser", "facts")  # noqa: E731
            instances.run(lambda: any(key == "calls" for key, _value in facts()))
        self.assertEqual(
            sorted(map(tuple, instances.values("keeper"))),
            sorted((number, keepers[number % 2]) for number in range(10)),
        )
        told = [value for key, value in facts() if key == "told"]
        self.assertEqual(sorted(told), sorted([[sink]] * 10 + [[first]] * 5 + [[second]] * 5))
        known = dict(facts())
        self.assertEqual(known["calls"][0], "activate")
        del known["calls"], known["told"]
        self.assertEqual(
            known,
            {
                "topology": "direct",
                "component": "chooser",
                "isMine": True,
                "streams": ["direct", "facts"],
                "grouping": "DIRECT",
                "mine": [1, {"a": None}],
            },
        )
        metrics = instances.runners[first].metrics()
        self.assertEqual(metrics["counter.kept"], 5)
        warnings = [formatEvent(each) for each in events if each["log_level"] == LogLevel.warn]
        self.assertEqual(sum(": kept " in text or "- kept " in text for text in warnings), 10)
        self.assertEqual(sum("metric share with 0.5" in text for text in warnings), 2)


class Once(Spout):
    """Emits one number."""

    outputs = ["number"]
    hasEmitted = False

    def nextTuple(self) -> None:
        """Emits it the first time."""
        if not self.hasEmitted:
            self.hasEmitted = True
            self.emit([1])


class Counting(Spout):
    """Emits numbers while it may, to be tracked."""

    outputs = ["number"]
    count = 0
    countMax = 40

    def nextTuple(self) -> None:
        """Emits one."""
        if self.count < self.countMax:
            self.count += 1
            self.emit([self.count], self.count)


class TrackedTests(ComponentsTestCase):
    """Tuples that a subprocess has neither acknowledged nor failed."""

    def test_forgetful(self) -> None:
        """
        Beyond the limit the oldest ones fail. What the subprocess says of those is ignored, and
        what it anchors to them belongs to no tree. An id that it never got is an error.
        """
        self.patch(components, "TRACKED_COUNT_MAX", 10)
        self.patch(components, "UNSENT_SIZE_MAX", 300)
        builder = TopologyBuilder("mine", {"topology.reliability.mode": "ATLEAST_ONCE"})
        builder.setSpout("numbers", Counting)
        program = [sys.executable, str(PROJECT / "forgetful.py")]
        builder.setBolt(
            "forgetful",
            partial(ShellBolt, program),
            inputs={"numbers": Grouping.SHUFFLE},
            outputs=["when"],
        )
        instances = self.start(builder.build(), StreamId("forgetful"))
        (spout,) = instances.tasksOf("numbers")
        (bolt,) = instances.tasksOf("forgetful")
        instances.run(lambda: bool(instances.acked[spout]) and instances.failed[spout] > 30)
        self.assertEqual(instances.values("forgetful"), [["late"], ["soon"]])
        # At the 10th, 20th, 30th and 40th the ten before the last ten fail; and one by itself.
        self.assertEqual((instances.acked[spout], instances.failed[spout]), (1, 31))
        self.assertEqual(instances.runners[bolt].metrics()["counter.whole"], 2)
        runner: Any = instances.runners[spout]
        runner.component.countMax = 41
        with self.assertRaises(ComponentFailedError) as caught:
            instances.run(lambda: False)
        self.assertIn("'none' is the id of no tuple that it got", str(caught.exception))

    def test_notInJson(self) -> None:
        """A tuple that cannot be in JSON is an error that names where it comes from."""
        bolt = ShellBolt([sys.executable, str(PROJECT / "forgetful.py")])
        context = TopologyContext(
            "mine", "bolt", 2, 0, {"bolt": [2]}, {"bolt": {}}, lambda: 0, lambda: 0.5, print
        )
        bolt.initialize({}, context)
        self.addCleanup(bolt.close)
        tup = StreamTuple(1, "spout", "default", 1, [object()], ["any"])
        error = self.assertRaises(TupleError, bolt.process, tup)
        self.assertIn("component bolt, task 2: a tuple of spout.default:", str(error))


class FailureTests(ComponentsTestCase):
    """Subprocesses that fail: the instance does, and says why."""

    def failure(self, way: str, **config: object) -> str:
        """What is raised when the bolt breaks."""
        command = [sys.executable, "-m", "streamparse.run", "bolts.numbers.Broken"]
        builder = TopologyBuilder("broken", {"broken.way": way, **config})
        builder.setSpout("numbers", Once)
        builder.setBolt(
            "broken",
            partial(ShellBolt, command, str(PROJECT / "src")),
            inputs={"numbers": Grouping.SHUFFLE},
            outputs=["any"],
        )
        instances = self.start(builder.build())
        with self.assertRaises(ComponentFailedError) as caught:
            instances.run(lambda: False)
        text = str(caught.exception)
        self.assertIn("topology broken, component broken, task 2", text)
        self.flushLoggedErrors()
        return text

    def test_ends(self) -> None:
        """An exception of Python, an exit, a hang: each is told with what is known of it."""
        text = self.failure("raise")
        self.assertIn("has ended with status 1", text)
        self.assertIn("RuntimeError: it is broken", text)
        self.assertIn("ended with status 7", self.failure("exit"))
        text = self.failure("hang", **{"topology.subprocess.timeout.secs": 2})
        self.assertIn("it hangs: it was silent for 2 s", text)

    def test_protocol(self) -> None:
        """What breaks the protocol is quoted."""
        for way, reason in {
            "print": "'some text' is no message",
            "ack": "ack of tuple 1, which it does not have",
            "foreign": "'4000000000' is the id of no tuple that it got",
            "anchor": "a tuple is anchored to tuple 1, which was acknowledged or failed before",
            "command": "the command 'dance' is none that it may give",
            "nothing": "it emits without a tuple",
        }.items():
            self.assertIn(reason, self.failure(way), way)

    def test_emits(self) -> None:
        """A stream that is not declared, and a wrong number of values, are refused."""
        self.assertIn("stream nowhere: it is not declared", self.failure("stream"))
        self.assertIn("2 values for the fields any", self.failure("fields"))

    def startFailure(self, factory: partial[ShellSpout], **config: object) -> str:
        """What is raised when a spout cannot start."""
        builder = TopologyBuilder("mine", config)
        builder.setSpout("spout", factory, outputs=["any"])
        instances = Instances(builder.build(), True)
        with self.assertRaises(ComponentFailedError) as caught:
            instances.run(lambda: False)
        return str(caught.exception)

    def test_start(self) -> None:
        """A program that is not there, or does not answer the handshake, is named."""
        self.assertIn(
            "'/no/program' cannot be started",
            self.startFailure(partial(ShellSpout, ["/no/program"])),
        )
        program = partial(ShellSpout, [sys.executable, "-c", "import time; time.sleep(600)"])
        text = self.startFailure(program, **{"topology.subprocess.timeout.secs": "1"})
        self.assertIn("it hangs", text)
        text = self.startFailure(program, **{"topology.subprocess.timeout.secs": "soon"})
        self.assertIn("topology.subprocess.timeout.secs='soon' is no number", text)
        text = self.startFailure(program, mine={object()})
        self.assertIn("its configuration cannot be told to", text)

    def test_deadSpout(self) -> None:
        """The end of a spout's subprocess is noticed, though the topology is paused."""
        program = (
            "import json, sys\n"
            "assert 'conf' in json.loads(sys.stdin.readline())\n"
            "print('{\"pid\": 1}\\nend', flush=True)\n"
            "sys.exit(4)\n"
        )
        builder = TopologyBuilder("mine")
        builder.setSpout("spout", partial(ShellSpout, [sys.executable, "-c", program]))
        instances = self.start(builder.build())
        for runner in instances.runners.values():
            runner.setActive(False)
        with self.assertRaises(ComponentFailedError) as caught:
            instances.run(lambda: False)
        self.assertIn("ended with status 4", str(caught.exception))

    def test_command(self) -> None:
        """A command is a list."""
        self.assertRaises(ConfigurationError, ShellBolt, "node split.js")
        self.assertRaises(ConfigurationError, ShellSpout, [])
        builder = TopologyBuilder("mine")
        builder.setSpout("spout", partial(ShellSpout, ["x"]), outputs=["any"])
        builder.setBolt("bolt", partial(ShellBolt, ["x"]), inputs={"spout": Grouping.SHUFFLE})
        self.assertEqual(list(builder.build().components), ["spout", "bolt"])
