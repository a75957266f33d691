"""
Tests of topologies for C{streamparse}: loaded as they are, by a subprocess.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.topologies.api import Grouping, Spout
from pylogbroker.topologies.multilang.components import ShellBolt, ShellSpout
from pylogbroker.topologies.multilang.definitions import (
    STREAMPARSE,
    dialectOf,
    loadableFile,
    loadAnyTopologies,
)
from pylogbroker.topologies.topology import ComponentSpec, StreamId, StreamSpec, Topology

COMPONENTS = """
from streamparse import Bolt, Grouping, JavaBolt, JavaSpout, ShellBolt, ShellSpout, Spout, Stream
from streamparse import Topology

print("what the file writes is not read")

class Words(Spout):
    outputs = ["word", "count"]

class Split(Bolt):
    outputs = [Stream(["letter"], "letters"), Stream(["rest"])]
"""


def quickstart() -> Path:
    """The project of C{sparse quickstart}, as C{streamparse} ships it."""
    spec = importlib.util.find_spec("streamparse")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or [""]
    return Path(folder, "bootstrap", "project")


def commandOf(spec: ComponentSpec) -> list[str]:
    """What runs a component."""
    factory: Any = spec.factory
    assert isinstance(factory, partial)
    command: list[str] = factory.args[0]
    return command


class LoadTests(SynchronousTestCase):
    """L{loadAnyTopologies}."""

    def setUp(self) -> None:
        self.project = Path(self.mktemp())
        self.folder = self.project / "topologies"
        self.folder.mkdir(parents=True)

    def load(self, program: str, environment: str | None = None) -> dict[str, Topology]:
        """The topologies of a file C{mine.py}."""
        path = self.folder / "mine.py"
        # Python takes compiled code for current while second and size of its file are the same.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        path.write_text(COMPONENTS + program)
        return loadAnyTopologies(str(path), environment=environment)

    def refusal(self, program: str, environment: str | None = None) -> str:
        """Why a file is refused."""
        return str(self.assertRaises(ConfigurationError, self.load, program, environment))

    def test_quickstart(self) -> None:
        """The quickstart project's topology has its components, streams and groupings."""
        path = quickstart() / "topologies" / "wordcount.py"
        self.assertEqual(dialectOf(str(path)), STREAMPARSE)
        ((name, topology),) = loadAnyTopologies(str(path)).items()
        self.assertEqual((name, topology.name), ("wordcount", "wordcount"))
        spout, bolt = topology.components.values()
        self.assertEqual((spout.name, spout.isSpout, spout.parallelism), ("word_spout", True, 1))
        self.assertEqual((bolt.name, bolt.isSpout, bolt.parallelism), ("count_bolt", False, 2))
        self.assertEqual(bolt.outputs, {"default": StreamSpec(("word", "count"))})
        self.assertEqual(bolt.inputs, {StreamId("word_spout"): Grouping.fields("word")})
        self.assertIsInstance(spout.factory(), ShellSpout)
        self.assertIsInstance(bolt.factory(), ShellBolt)
        self.assertEqual(
            commandOf(bolt),
            [sys.executable, "-m", "streamparse.run", "bolts.wordcount.WordCountBolt"],
        )
        self.assertTrue(topology.options.isAtLeastOnce)

    def test_groupings(self) -> None:
        """Each grouping is ours of that name; a list of inputs is shuffled."""
        groupings = {
            "SHUFFLE": Grouping.SHUFFLE,
            "GLOBAL": Grouping.GLOBAL,
            "DIRECT": Grouping.DIRECT,
            "ALL": Grouping.ALL,
            "NONE": Grouping.NONE,
            "LOCAL_OR_SHUFFLE": Grouping.LOCAL_OR_SHUFFLE,
            'fields("count", "word")': Grouping.fields("count", "word"),
        }
        for word, grouping in groupings.items():
            (topology,) = self.load(
                "class T(Topology):\n"
                "    words = Words.spec()\n"
                f"    split = Split.spec(inputs={{words: Grouping.{word}}})\n"
                "    more = Split.spec(name='more-of-it', inputs=[split['letters'], split])\n"
            ).values()
            self.assertEqual(topology.components["split"].inputs, {StreamId("words"): grouping})
            self.assertEqual(
                topology.components["more-of-it"].inputs,
                {
                    StreamId("split", "letters"): Grouping.SHUFFLE,
                    StreamId("split"): Grouping.SHUFFLE,
                },
            )

    def test_config(self) -> None:
        """
        Keys of topology and component are kept, none that is C{None}; without ackers tuples are
        not tracked, and each worker is a container as long as there are instances for them.
        """
        (topology,) = self.load(
            "class T(Topology):\n"
            "    config = {'topology.acker.executors': 0, 'topology.workers': 9, 'my.key': [1],\n"
            "              'topology.max.spout.pending': None}\n"
            "    words = Words.spec(par=3)\n"
            "    split = Split.spec(inputs=[words], config={'topology.tick.tuple.freq.secs': 2})\n"
        ).values()
        self.assertFalse(topology.options.isAtLeastOnce)
        self.assertEqual(topology.options.containerCount, 4)
        self.assertEqual(topology.options.maxSpoutPending, 1_000)
        self.assertEqual(topology.config["my.key"], [1])
        self.assertEqual(topology.optionsOf("split").tickMs, 2_000)

    def test_environments(self) -> None:
        """C{par} and the options of C{config.json} are those of the environment."""
        program = (
            "class T(Topology):\n"
            "    config = {'mine': 1}\n"
            "    words = Words.spec(par={'prod': 7, 'beta': 2})\n"
        )
        self.assertIn("words: its par is for the environments prod, beta", self.refusal(program))
        (topology,) = self.load(program, "prod").values()
        self.assertEqual(topology.components["words"].parallelism, 7)
        config = {
            "envs": {"beta": {"options": {"mine": 2, "theirs": 3}}, "prod": {"user": ""}},
            "serializer": "msgpack",
        }
        (self.project / "config.json").write_text(json.dumps(config))
        (self.project / "src").mkdir()
        (topology,) = self.load(program, "beta").values()
        self.assertEqual(topology.components["words"].parallelism, 2)
        self.assertEqual((topology.config["mine"], topology.config["theirs"]), (1, 3))
        self.assertIn("has no environment 'test', but beta, prod", self.refusal(program, "test"))
        (self.project / "config.json").write_text("{")
        self.assertIn("config.json cannot be read", self.refusal(program, "beta"))

    def test_otherLanguages(self) -> None:
        """Components in other languages are run by their commands."""
        (topology,) = self.load(
            "class T(Topology):\n"
            "    words = ShellSpout.spec(command='node', script='words.js --fast', outputs=['w'])\n"
            "    split = ShellBolt.spec(command='./split', script='', inputs=[words])\n"
        ).values()
        words, split = topology.components.values()
        self.assertEqual(commandOf(words), ["node", "words.js", "--fast"])
        self.assertEqual(commandOf(split), ["./split"])

    def test_jvm(self) -> None:
        """What needs a JVM is refused by name: spouts, bolts and groupings."""
        spout = "class T(Topology):\n    words = {}\n"
        java = "full_class_name='org.example.Words', args_list=[1], outputs=['word']"
        self.assertIn(
            "topology mine, component words: org.example.Words needs a JVM",
            self.refusal(spout.format(f"JavaSpout.spec({java})")),
        )
        self.assertIn(
            "component words: a Java object needs a JVM",
            self.refusal(spout.format("JavaSpout.spec(serialized_java=b'', outputs=['word'])")),
        )
        words = spout.format("Words.spec()")
        self.assertIn(
            "component more: org.example.Words needs a JVM",
            self.refusal(f"{words}    more = JavaBolt.spec(inputs=[words], {java})\n"),
        )
        for grouping, name in (
            ("custom_object('org.example.Mine', [])", "org.example.Mine"),
            ("custom_serialized(b'123')", "a Java object"),
        ):
            bolt = f"    split = Split.spec(inputs={{words: Grouping.{grouping}}})\n"
            self.assertIn(
                f"component split: the grouping of words.default: {name} needs a JVM",
                self.refusal(words + bolt),
            )

    def test_severalTopologies(self) -> None:
        """The first topology is named after the file, as by C{sparse}; others by their classes."""
        spout = "class {}(Topology):\n    words = Words.spec()\n"
        topologies = self.load(spout.format("First") + spout.format("Second"))
        self.assertEqual(list(topologies), ["mine", "Second"])

    def test_importedTopology(self) -> None:
        """A topology that the file only imports is not its own, unless it has no other."""
        (self.folder / "base.py").write_text(
            COMPONENTS + "class Base(Topology):\n    base = Words.spec()\n"
        )
        (topology,) = self.load("from base import Base\n").values()
        self.assertEqual(list(topology.components), ["base"])
        (topology,) = self.load(
            "from base import Base\nclass T(Topology):\n    words = Words.spec()\n"
        ).values()
        self.assertEqual(list(topology.components), ["words"])

    def test_errors(self) -> None:
        """An error names the file, the line and what was raised."""
        text = self.refusal("raise RuntimeError('no luck')\n")
        self.assertIn("mine.py, line 12: RuntimeError: no luck", text)
        self.assertIn("it defines no topology", self.refusal(""))
        self.assertIn(
            "ValueError: A Topology requires at least one Spout",
            self.refusal("class T(Topology):\n    pass\n"),
        )

    def test_python(self) -> None:
        """A Python that is not there, or that cannot run the file, is named."""
        path = self.folder / "mine.py"
        self.assertRaises(ConfigurationError, loadAnyTopologies, str(path))
        path.write_text("import os\nos._exit(3)\n")
        self.assertIsNone(dialectOf(str(path)))
        path.write_text("import os, streamparse\nos._exit(3)\n")
        with self.assertRaises(ConfigurationError) as caught:
            loadAnyTopologies(str(path))
        self.assertIn("has ended with status 3", str(caught.exception))
        with self.assertRaises(ConfigurationError) as caught:
            loadAnyTopologies(str(path), "/no/python")
        self.assertIn("/no/python cannot be run", str(caught.exception))

    def test_noPython(self) -> None:
        """A file that is no Python is refused before it is run."""
        path = self.folder / "mine.py"
        path.write_text("def\n")
        self.assertRaises(ConfigurationError, dialectOf, str(path))

    def test_loadableFile(self) -> None:
        """What was defined once is loaded without the author's Python; a file of ours is itself."""
        path = self.folder / "mine.py"
        path.write_text("from pylogbroker.topologies import TopologyBuilder\n")
        folder = str(self.project / "state")
        self.assertEqual(loadableFile(str(path), folder), str(path))
        path.write_text(COMPONENTS + "class T(Topology):\n    words = Words.spec(par=2)\n")
        written = loadableFile(str(path), folder)
        self.assertEqual(loadableFile(str(path), folder, sys.executable), written)
        self.assertEqual(loadableFile(written, folder), written)
        before = loadAnyTopologies(str(path))
        path.write_text("")
        (topology,) = loadAnyTopologies(written).values()
        self.assertEqual(topology.name, "mine")
        self.assertEqual(
            [each._replace(factory=Spout) for each in topology.components.values()],
            [each._replace(factory=Spout) for each in before["mine"].components.values()],
        )
        Path(written).write_text("[]")
        self.assertRaises(ConfigurationError, loadAnyTopologies, written)
        Path(written).unlink()
        self.assertRaises(ConfigurationError, loadAnyTopologies, written)
        path.write_text(COMPONENTS)
        self.assertRaises(ConfigurationError, loadableFile, str(path), str(path))
