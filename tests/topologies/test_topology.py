"""Tests for L{pylogbroker.topologies.topology}."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.topologies.api import Bolt, Grouping, Spout
from pylogbroker.topologies.topology import (
    Resources,
    StreamId,
    StreamSpec,
    Topology,
    TopologyBuilder,
    TopologyOptions,
    loadTopologies,
)


class Sentences(Spout):
    """Has one stream."""

    outputs = ["sentence", "line"]

    def __init__(self, path: str = "") -> None:
        self.path = path


class Split(Bolt):
    """Has two streams."""

    outputs = {"default": ["word"], "errors": ("text",)}


class Count(Bolt):
    """Emits nothing."""


def wordCount(**config: Any) -> TopologyBuilder:
    """A builder with a spout and two bolts."""
    builder = TopologyBuilder("word-count", config)
    builder.setSpout("sentences", Sentences, 2)
    builder.setBolt("split", Split, 3, {"sentences": Grouping.SHUFFLE})
    builder.setBolt("count", Count, 3, {"split": Grouping.fields("word")})
    return builder


class BuilderTests(SynchronousTestCase):
    """What a builder gives, and what it refuses."""

    def refuses(self, text: str, function: Any, *arguments: Any, **named: Any) -> None:
        """The call raises a L{ConfigurationError} with this text."""
        error = self.assertRaises(ConfigurationError, function, *arguments, **named)
        self.assertIn(text, str(error))

    def test_topology(self) -> None:
        """A topology has its components in their order, with streams, inputs and resources."""
        topology = wordCount().build()
        self.assertEqual(list(topology.components), ["sentences", "split", "count"])
        split = topology.components["split"]
        self.assertEqual(
            split.outputs, {"default": StreamSpec(("word",)), "errors": StreamSpec(("text",))}
        )
        self.assertEqual(split.inputs, {StreamId("sentences"): Grouping.SHUFFLE})
        self.assertEqual(
            (split.parallelism, split.isSpout, split.resources), (3, False, Resources())
        )
        self.assertEqual(topology.components["count"].outputs, {})
        self.assertTrue(topology.components["sentences"].isSpout)
        self.assertEqual(
            topology.consumersOf(StreamId("split")), {"count": Grouping.fields("word")}
        )

    def test_factories(self) -> None:
        """Classes, partial classes and functions make components; others are refused."""
        builder = TopologyBuilder("t")
        builder.setSpout("partial", partial(Sentences, "a"))
        builder.setSpout("function", lambda: Sentences("b"))
        components = builder.build().components
        self.assertEqual(
            {name: each.outputs["default"].fields for name, each in components.items()},
            {"partial": ("sentence", "line"), "function": ("sentence", "line")},
        )
        self.refuses("component x: Split is no Spout", builder.setSpout, "x", Split)
        self.refuses("component x: Sentences is no Bolt", builder.setBolt, "x", Sentences)
        self.refuses("give its class", builder.setSpout, "x", Sentences())
        self.refuses("makes no Bolt: it cannot be called", builder.setBolt, "x", 7)
        self.refuses("component x: str is no Bolt", builder.setBolt, "x", lambda: "text")

    def test_names(self) -> None:
        """Names are short, of few characters, and not the machinery's."""
        for name in ("", "a b", "a/b", "..", "__system", "x" * 181, None):
            self.refuses("a name has 1 to 180 of", TopologyBuilder, name)
            self.refuses("a component's name", wordCount().setSpout, name, Sentences)
            self.refuses(
                "a stream's name", wordCount().setSpout, "x", Sentences, outputs={name: ["a"]}
            )

    def test_components(self) -> None:
        """A name twice, a parallelism of nothing and wrong resources are refused."""
        builder = wordCount()
        self.refuses("component split: it is there twice", builder.setSpout, "split", Sentences)
        for wrong in (0, -1, True, 1.5, "2"):
            self.refuses("is no whole number from 1", builder.setSpout, "x", Sentences, wrong)
        for resources in (Resources(-1), Resources(1, -1), Resources(float("nan")), 5, "ab"):
            self.refuses("resources are", builder.setSpout, "x", Sentences, resources=resources)
        self.refuses("is no string", builder.setSpout, "x", Sentences, config={1: 2})

    def test_outputs(self) -> None:
        """Outputs can be given; fields are different names in a list."""
        builder = TopologyBuilder("t")
        builder.setSpout("s", Sentences, outputs={"a": ["x"], "b": []})
        self.assertEqual(
            builder.build().components["s"].outputs,
            {"a": StreamSpec(("x",)), "b": StreamSpec(())},
        )
        for outputs, text in (
            ("word", "'word' is no list of the names"),
            ({"a": "word"}, "stream a: 'word' is no list"),
            ({"a": 7}, "stream a: 7 is no list"),
            (["a", "b", "a"], "its field a is twice"),
            ([""], "the field '' is no name"),
            ([3], "the field 3 is no name"),
        ):
            self.refuses(text, builder.setSpout, "x", Sentences, outputs=outputs)

    def test_inputs(self) -> None:
        """Inputs map streams to groupings that fit them."""
        custom = Grouping.custom(lambda: self)  # type: ignore[arg-type,return-value]
        for inputs, text in (
            ({"other": Grouping.ALL}, "its input other is no component"),
            ({StreamId("split", "x"): Grouping.ALL}, "no stream 'x', but default, errors"),
            ({"count": Grouping.ALL}, "count has no stream 'default', but none"),
            ({"split": Grouping.fields("line")}, "'line' of split.default, which has the fields"),
            ({"split": Grouping.fields()}, "the fields grouping of its input split.default has"),
            ({"split": Grouping.fields}, "is no grouping"),
            ({"split": Grouping("nearest")}, "is no grouping"),
            ({"split": Grouping("custom")}, "the custom grouping of its input split.default has"),
            ({"split": Grouping("all", ("word",))}, "the all grouping"),
            ({"split": Grouping("all", (), custom.chooser)}, "has the chooser"),
            ({"split": Grouping.ALL, StreamId("split"): Grouping.ALL}, "is there twice"),
            (["split"], "are no mapping"),
            ({7: Grouping.ALL}, "its input 7 is no component, and no stream"),
            ({("split", 1): Grouping.ALL}, "its input ('split', 1) is no component"),
            ({}, "it gets nothing"),
        ):

            def build(inputs: Any = inputs) -> None:
                builder = wordCount()
                builder.setBolt("x", Count, 1, inputs)
                builder.build()

            self.refuses(text, build)

    def test_ticksAlone(self) -> None:
        """A bolt may get nothing but tick tuples."""
        builder = wordCount()
        builder.setBolt("clock", Count, config={"topology.tick.tuple.freq.secs": 1})
        self.assertEqual(builder.build().optionsOf("clock").tickMs, 1000)

    def test_direct(self) -> None:
        """A stream is grouped directly for all bolts that get it, or for none."""
        builder = wordCount()
        builder.setBolt("direct", Count, 1, {"split": Grouping.DIRECT})
        self.refuses("its grouping is direct for direct, and fields for count", builder.build)

    def test_noSpout(self) -> None:
        """A topology has a spout."""
        self.refuses("topology t: it has no spout", TopologyBuilder("t").build)

    def test_loops(self) -> None:
        """A graph may have loops, as in Storm."""
        builder = TopologyBuilder("t")
        builder.setSpout("s", Sentences)
        builder.setBolt("b", Split, 1, {"s": Grouping.ALL, "b": Grouping.ALL})
        self.assertEqual(len(builder.build().components["b"].inputs), 2)


class OptionsTests(SynchronousTestCase):
    """What is read of a configuration."""

    def test_defaults(self) -> None:
        """At most once, with Heron's time-out."""
        self.assertEqual(wordCount().build().options, TopologyOptions(False, 30_000, 1_000, 0, 1))

    def test_values(self) -> None:
        """Numbers may be strings, as in Heron; a component's are over the topology's."""
        builder = TopologyBuilder(
            "t",
            {
                "topology.reliability.mode": "ATLEAST_ONCE",
                "topology.message.timeout.secs": "2.5",
                "topology.max.spout.pending": 7,
                "topology.stmgrs": "3",
                "topology.container.cpu.requested": 1.5,
                "topology.container.ram.requested": "1000",
            },
        )
        builder.setSpout("s", Sentences, config={"topology.max.spout.pending": 8, "mine": 1})
        builder.setSpout("t", Sentences, config={"topology.tick.tuple.freq.secs": 0.00001})
        topology = builder.build()
        capacity = Resources(1.5, 1000)
        self.assertEqual(topology.options, TopologyOptions(True, 2_500, 7, 0, 3, capacity))
        self.assertEqual(topology.optionsOf("s"), TopologyOptions(True, 2_500, 8, 0, 3, capacity))
        self.assertEqual(topology.optionsOf("t").tickMs, 1)
        self.assertEqual(topology.configOf("s")["mine"], 1)

    def test_noTimeouts(self) -> None:
        """Time-outs can be turned off."""
        topology = wordCount(**{"topology.enable.message.timeouts": "False"}).build()
        self.assertEqual(topology.options.messageTimeoutMs, 0)

    def test_wrong(self) -> None:
        """A value that a key cannot have is named, with the key and where it is."""
        for key, value in (
            ("topology.reliability.mode", "EXACTLY"),
            ("topology.message.timeout.secs", 0),
            ("topology.message.timeout.secs", "soon"),
            ("topology.message.timeout.secs", -1),
            ("topology.message.timeout.secs", True),
            ("topology.max.spout.pending", 0),
            ("topology.max.spout.pending", 1.5),
            ("topology.max.spout.pending", float("inf")),
            ("topology.enable.message.timeouts", "perhaps"),
            ("topology.stmgrs", None),
        ):
            error = self.assertRaises(ConfigurationError, wordCount(**{key: value}).build)
            self.assertIn(f"topology word-count: {key}", str(error))
        builder = wordCount()
        builder.setSpout("x", Sentences, config={"topology.max.spout.pending": 0})
        error = self.assertRaises(ConfigurationError, builder.build)
        self.assertIn("topology word-count, component x: topology.max.spout.pending=0", str(error))

    def test_wholeTopology(self) -> None:
        """What concerns all components cannot be a component's."""
        builder = wordCount()
        builder.setSpout("x", Sentences, config={"topology.reliability.mode": "ATLEAST_ONCE"})
        error = self.assertRaises(ConfigurationError, builder.build)
        self.assertIn(
            "component x: a component can have topology.max.spout.pending and"
            " topology.tick.tuple.freq.secs of its own, and no other key",
            str(error),
        )

    def test_withConfig(self) -> None:
        """Keys are put over a topology's configuration, and checked."""
        topology = wordCount(a=1).build().withConfig({"topology.stmgrs": 2})
        self.assertEqual((topology.config["a"], topology.options.containerCount), (1, 2))
        self.assertRaises(ConfigurationError, topology.withConfig, {"topology.stmgrs": 0})


class LoaderTests(SynchronousTestCase):
    """Topology files."""

    def load(self, text: str) -> dict[str, Topology]:
        """Load a file with this text."""
        self.path = self.mktemp() + ".py"
        Path(self.path).write_text(dedent(text))
        return loadTopologies(self.path)

    BUILD = """
        from pylogbroker.topologies import Spout, TopologyBuilder

        class Idle(Spout):
            outputs = ["a"]

        builder = TopologyBuilder("one")
        builder.setSpout("idle", Idle)
        """

    def test_file(self) -> None:
        """Topologies are found by their names, however often a global name is bound to one."""
        self.assertEqual(
            list(self.load(self.BUILD + "one = same = builder.build()\n        ")), ["one"]
        )

    def test_none(self) -> None:
        """A file with a builder alone is told what is missing; one without anything, too."""
        error = self.assertRaises(ConfigurationError, self.load, self.BUILD)
        self.assertIn("is a Topology; builder only builds one", str(error))
        error = self.assertRaises(ConfigurationError, self.load, "a = 1")
        self.assertEqual(str(error), f"{self.path}: no global name in it is a Topology")

    def test_twice(self) -> None:
        """Two topologies of one name are refused."""
        text = self.BUILD + "a, b = builder.build(), builder.build()\n        "
        error = self.assertRaises(ConfigurationError, self.load, text)
        self.assertEqual(str(error), f"{self.path}: two topologies are named one")

    def test_lineOfError(self) -> None:
        """An error of the author's names file and line."""
        error = self.assertRaises(
            ConfigurationError, self.load, self.BUILD + "builder.setSpout('idle', Idle)\n        "
        )
        self.assertIn(f"{self.path}, line 9: ", str(error))
        self.assertIn("topology one, component idle: it is there twice", str(error))
