"""
Tests of topologies for C{heronpy}, in an environment that has it.
"""

from __future__ import annotations

import base64
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ComponentFailedError, ConfigurationError
from pylogbroker.topologies.api import Grouping
from pylogbroker.topologies.multilang.definitions import (
    HERONPY,
    dialectOf,
    loadAnyTopologies,
)
from pylogbroker.topologies.topology import StreamId, Topology
from tests.topologies.instance.instances import Instances, withSink
from tests.topologies.multilang.heronenvironment import heronPython

PROJECT = Path(__file__).parent / "heronproject"


def unpickled(value: dict[str, str]) -> Any:
    """A value that JSON does not have."""
    return pickle.loads(base64.b64decode(value["pickled.base64"]))


class HeronTests(SynchronousTestCase):
    """Topologies of our project for C{heronpy}."""

    def load(self, name: str) -> Topology:
        """A topology of the project."""
        path = PROJECT / "topologies" / f"{name}.py"
        self.assertEqual(dialectOf(str(path)), HERONPY)
        (topology,) = loadAnyTopologies(str(path), heronPython()).values()
        return topology

    def start(self, topology: Topology, *streams: StreamId) -> Instances:
        """A topology whose instances end with the test."""
        instances = Instances(withSink(topology, *streams), True)
        self.addCleanup(instances.close)
        return instances

    def test_builder(self) -> None:
        """
        A program's topology: groupings by field and custom, ticks, replay of what fails, values
        that JSON lacks, Heron's configuration.
        """
        topology = self.load("words")
        self.assertEqual(topology.name, "words")
        self.assertTrue(topology.options.isAtLeastOnce)
        self.assertEqual(topology.options.maxSpoutPending, 100)
        self.assertEqual(
            topology.components["count"].inputs, {StreamId("words"): Grouping.fields("word")}
        )
        streams = StreamId("words", "told"), StreamId("count", "ticks")
        instances = self.start(topology, *streams, StreamId("count"), StreamId("both"))
        told: dict[str, Any] = {}

        def isDone() -> bool:
            told.update(
                (what, unpickled(value)) for what, value in instances.values("words", "told")
            )
            return "ends" in told and bool(instances.values("count", "ticks"))

        instances.run(isDone)
        self.assertEqual(told["config"], [3, True])
        self.assertEqual(told["ends"]["acked"], 600)
        # Four instances have failed a tuple each, which may have been the same.
        self.assertTrue(1 <= told["ends"]["failed"] <= 4)
        counted = [(word, unpickled(count)) for word, count in instances.values("count")]
        last = dict(counted)
        # Words of a word's own task, each once or again when another one of its tuples failed.
        self.assertTrue(all(pair == (word, count) for word, pair in counted for count in pair[1:]))
        self.assertTrue(all(98 <= last[word][1] <= 100 for word in ("hello", "storm")))
        first, second, third = instances.tasksOf("both")
        direct = "default..to..both"
        got = [instances.emitted["words", direct, task] for task in (first, second, third)]
        self.assertEqual(got[0], got[1])
        self.assertEqual(len(got[0]), 600 + told["ends"]["failed"])
        self.assertEqual(got[2], [])

    def test_streamlet(self) -> None:
        """A streamlet: functions of its program, and a sliding window by key."""
        topology = self.load("streams")
        self.assertEqual(
            list(topology.components),
            ["generator-1", "flatmap-1", "map-1", "reducebykeyandwindow-1", "told", "log-1"],
        )
        instances = self.start(topology, StreamId("told", "output"))
        instances.run(lambda: len(instances.values("told", "output")) >= 6)
        pairs = [unpickled(value) for (value,) in instances.values("told", "output")]
        self.assertEqual({key for key, _count in pairs}, {"a", "b", "c"})
        words = Counter(word for (word,) in instances.values("flatmap-1", "output"))
        for key, count in pairs:
            self.assertTrue(1 <= count <= words[key], (key, count))

    def test_alone(self) -> None:
        """A class's topology, and what only its file knows: components, a grouping, values."""
        topology = self.load("alone")
        self.assertEqual(topology.name, "Alone")
        instances = self.start(topology, StreamId("numbers"))
        instances.run(lambda: len(instances.values("numbers")) >= 10)
        self.assertEqual(
            Counter(map(tuple, instances.values("numbers"))),
            Counter((x, "default") for x in range(10)),
        )
        for at, task in enumerate(instances.tasksOf("numbers")):
            values = instances.emitted["points", "default..to..numbers", task]
            self.assertEqual(len(values), 5, at)

    def test_error(self) -> None:
        """What a component raises is told, with its traceback."""
        topology = self.load("alone")
        name = "numbers"
        spec = topology.components[name]
        known = {**spec.config["pylogbroker.heron"], "pickled": {"any": "bm90aGluZw=="}}
        broken = spec._replace(config={**spec.config, "pylogbroker.heron": known})
        topology = topology._replace(components={**topology.components, name: broken})
        instances = self.start(topology, StreamId(name))
        with self.assertRaises(ComponentFailedError) as caught:
            instances.run(lambda: False)
        self.assertIn("ended with status 1; it reported:\nTraceback", str(caught.exception))
        self.flushLoggedErrors()

    def test_refused(self) -> None:
        """Effectively once, and a Python without C{heronpy}, are refused by name."""
        path = Path(self.mktemp())
        path.mkdir()
        path = path / "once.py"
        text = (PROJECT / "topologies" / "alone.py").read_text()
        path.write_text(text + '    config = {"topology.reliability.mode": "EFFECTIVELY_ONCE"}\n')
        with self.assertRaises(ConfigurationError) as caught:
            loadAnyTopologies(str(path), heronPython())
        self.assertIn("'EFFECTIVELY_ONCE' is none of", str(caught.exception))
        with self.assertRaises(ConfigurationError) as caught:
            loadAnyTopologies(str(path))
        self.assertIn("No module named 'heronpy'", str(caught.exception))
