"""
Tests for L{pylogbroker.cli.commands.load}: as a person at a terminal sees it. What a load does is
tested in L{tests.spark.loader}.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from pyspark.sql.functions import lit
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.load import load
from pylogbroker.cli.main import parse, prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import (
    ConfigurationError,
    FormatError,
    LoadError,
    PostCommitError,
    StorageError,
    TableError,
)
from pylogbroker.spark.loader import table
from tests.cli.commands import Outcome
from tests.spark.loader.cases import KafkaLoadCase, LoadCase


def marked(rows: Any) -> Any:
    """A transform."""
    return rows.withColumn("mark", lit(7))


class CommandTests(LoadCase):
    """One run after the other."""

    def perform(self, *arguments: str) -> Outcome:
        """Load the topic."""
        errors = io.StringIO()
        options = parse(["load", self.folder, "--brokers", self.cluster.listed, *arguments])
        path = self.mktemp()
        with open(path, "wb") as file:
            code = load(options, Streams(-1, file.fileno(), errors))
        return Outcome(code, Path(path).read_bytes(), errors.getvalue())

    def test_table(self) -> None:
        """
        The ranges as a table, and what else there is to say; with nothing new there is no table.
        """
        self.write(b"a", b"b")
        end = self.end()
        outcome = self.perform("--topic", self.topic)
        self.assertEqual(outcome.code, 0)
        head, row = (line.split() for line in outcome.output.decode().splitlines())
        self.assertEqual((head[0], row), ("TOPIC", [self.topic, "0-0", "0", str(end), "2", "0"]))
        self.assertIn("run 1: 2 rows of", outcome.errors)
        self.assertIn(f"{self.topic}: 2 rows without one", outcome.errors)
        self.assertEqual(
            self.perform("--topic", self.topic),
            Outcome(0, b"", "nothing is new; the table is as it was\n"),
        )

    def test_json(self) -> None:
        """One document with the run's manifest, or without a run."""
        self.write(b"7200000")
        outcome = self.perform(
            "--topic",
            self.topic,
            "--json",
            "--event-time",
            "mark",
            "--transform",
            "tests.cli.test_load.marked",
            "--skip-lost",
        )
        run = json.loads(outcome.output)["run"]
        self.assertEqual(
            (run["number"], run["rowCount"], run["arrivals"], run["eventTime"]),
            (1, 1, {}, "mark, else the time of the run"),
        )
        self.assertEqual([row["mark"] for row in table(self.spark, self.folder).collect()], [7])
        self.assertEqual(
            json.loads(self.perform("--topic", self.topic, "--json").output),
            {"notes": [], "run": None},
        )
        self.assertRaises(
            ConfigurationError,
            self.perform,
            "--topic",
            self.topic,
            "--transform",
            "no.such.function",
        )

    def test_offsetLines(self) -> None:
        """
        Lines of 0.7's Hadoop consumer say where to begin, and are written where the table ends.
        """
        self.write(b"a", b"b")
        middle = self.end()
        self.write(b"c")
        address = f"tcp://127.0.0.1:{self.cluster.brokers[0].port}"
        lines, out = self.mktemp(), self.mktemp()
        Path(lines).write_text(f"{address}\t{self.topic}\t0\t{middle}\n\n", encoding="utf-8")
        outcome = self.perform("--offsets-in", lines, "--offsets-out", out)
        self.assertIn("1 row of", outcome.errors)
        self.assertEqual(
            Path(out).read_text(encoding="utf-8"), f"{address}\t{self.topic}\t0\t{self.end()}\n"
        )
        Path(lines).write_text(f"{address}\t{self.topic}\t0\t-1\n", encoding="utf-8")
        outcome = self.perform("--offsets-in", lines)
        self.assertEqual(outcome.output.decode().splitlines()[1].split()[-2:], ["3", "1"])
        self.assertEqual(table(self.spark, self.folder).count(), 3)

    def test_wrongLines(self) -> None:
        """
        A file that is not there or not writable, lines that are none, and brokers that nobody knows
        are errors.
        """
        self.write(b"a")
        path = self.mktemp()
        self.assertRaises(StorageError, self.perform, "--offsets-in", path)
        Path(path).write_text("x\n", encoding="utf-8")
        self.assertRaises(FormatError, self.perform, "--offsets-in", path)
        Path(path).write_text("tcp://elsewhere:1\tx\t0\t0\n", encoding="utf-8")
        self.assertRaises(LoadError, self.perform, "--offsets-in", path)
        error = self.assertRaises(
            PostCommitError,
            self.perform,
            "--topic",
            self.topic,
            "--offsets-out",
            "/nonexistent/offsets",
        )
        self.assertIn(
            "committed as run 1, but the offsets were not written: cannot write"
            " /nonexistent/offsets",
            str(error),
        )
        self.assertRaises(
            StorageError,
            self.perform,
            "--topic",
            self.topic,
            "--offsets-out",
            "/nonexistent/offsets",
        )
        options = parse(["load", "s3a://bucket/table", "--brokers", "h:1", "--topic", "x"])
        self.assertRaises(TableError, load, options, Streams(-1, 1, io.StringIO()))

    def test_notTold(self) -> None:
        """
        A result that cannot be printed is a failure that says which run was committed all the same.
        """
        self.write(b"a")
        options = parse(
            ["load", self.folder, "--brokers", self.cluster.listed, "--topic", self.topic]
        )
        with open("/dev/full", "wb") as full:
            error = self.assertRaises(
                PostCommitError, load, options, Streams(-1, full.fileno(), io.StringIO())
            )
        self.assertIn(
            "committed as run 1, but that could not be told: cannot write the output", str(error)
        )
        self.assertEqual(table(self.spark, self.folder).count(), 1)

    def test_zookeeper(self) -> None:
        """Brokers and topics are found in ZooKeeper; notes are said."""
        self.write(b"a")
        out = self.mktemp()
        options = [
            "load",
            self.folder,
            "--zookeeper",
            self.cluster.zookeeper,
            "--whitelist",
            self.topic,
            "--offsets-out",
            out,
        ]
        begin = ["--from", json.dumps({self.topic: {"0-0": 0, "0-1": 0}})]
        errors = io.StringIO()
        with open(self.mktemp(), "wb") as file:
            self.assertEqual(load(parse([*options, *begin]), Streams(-1, file.fileno(), errors)), 0)
        self.assertIn(f"\t{self.topic}\t0\t{self.end()}\n", Path(out).read_text(encoding="utf-8"))


class KafkaCommandTests(KafkaLoadCase):
    """A topic of today's Kafka."""

    def test_today(self) -> None:
        """
        The ranges have plain numbers of partitions, and no bytes of log; C{--from} and
        C{--isolation-level} mean what they mean there. Credentials are read from the file.
        """
        self.write(b"a", b"b", partition=1)
        config = self.mktemp()
        Path(config).write_text("broker.endpoint=tcp:{host}:{port}\n", encoding="utf-8")
        begin = json.dumps({self.topic: {"1": 1}})
        for arguments, wanted in (
            ((), ["1", "0", "2", "2", "0"]),
            (
                ("--from", begin, "--isolation-level", "read_uncommitted", "--config", config),
                ["1", "1", "2", "1", "1"],
            ),
        ):
            at = ["--bootstrap-server", self.broker.bootstrapServers]
            options = parse(["load", self.folder, "--topic", self.topic, *at, *arguments])
            path, errors = self.mktemp(), io.StringIO()
            with open(path, "wb") as file:
                self.assertEqual(load(options, Streams(-1, file.fileno(), errors)), 0)
            _head, row = (line.split() for line in Path(path).read_text("utf-8").splitlines())
            self.assertEqual(row, [self.topic, *wanted])
            self.assertIn("rows, in 1 file of" if not arguments else "row", errors.getvalue())


class ArgumentTests(SynchronousTestCase):
    """What does not belong together, or is wrong before Spark has started."""

    def test_binaryLines(self) -> None:
        """A file of offsets that is no text is an error that names it."""
        path = self.mktemp()
        Path(path).write_bytes(b"SEQ\x06\xff\xfe")
        options = parse(
            ["load", "/nonexistent/table", "--brokers", "0:127.0.0.1:1", "--offsets-in", path]
        )
        error = self.assertRaises(LoadError, load, options, Streams(-1, 1, io.StringIO()))
        self.assertIn(f"{path}: it is no text", str(error))

    def test_nothingToLoad(self) -> None:
        """Something has to be chosen, and only in one way."""
        for arguments, reason in (
            ((), "says what to load"),
            (("--topic", "x", "--whitelist", "y"), "not allowed with"),
            (("--topic", "x", "--from", "earliest", "--offsets-in", "f"), "not allowed with"),
            (("--topic", "x", "--zookeeper", "z"), "not allowed with"),
            (("--topic", "a/b"), "a/b"),
            (("--topic", "x", "--config", "/nonexistent/properties"), "/nonexistent/properties"),
            (("--topic", "x", "--set", "zk.diggest=me:secret"), "zk.digest"),
            (("--topic", "x", "--isolation-level", "read_committed"), "needs --bootstrap-server"),
            (("--topic", "x", "--bootstrap-server", "h:1"), "not allowed with"),
        ):
            errors = io.StringIO()
            with redirect_stderr(errors):
                ended = self.assertRaises(
                    SystemExit,
                    prepare,
                    ["load", "/t", "--brokers", "h:1", *arguments],
                    Streams(-1, 1, errors),
                )
            self.assertEqual(ended.code, 2)
            self.assertIn(reason, errors.getvalue())
        today = ["load", "/t", "--bootstrap-server", "h:1", "--topic", "x"]
        for more, reason in (
            (("--offsets-out", "f"), "addresses and offsets of Kafka 0.7"),
            (("--set", "sasl.password=secret", "--set", "sasl.username=ann"), "in the file"),
        ):
            errors = io.StringIO()
            with redirect_stderr(errors):
                self.assertRaises(SystemExit, prepare, [*today, *more], Streams(-1, 1, errors))
            self.assertIn(reason, errors.getvalue())
