"""
The pipeline's examples, as people run them: the programs of C{docs/examples/pipeline} as processes,
unchanged, with a real broker, ZooKeeper, registry and Spark. What they find is compared with what
plain Python finds (L{tests.integration.pipelinetruth}).
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow.dataset
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.schemas.avro import AvroDecoder
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer
from tests.integration import pipelinetruth as truth
from tests.integration.brokerprocess import ROOT, until
from tests.integration.registryprocess import RegistryProcess
from tests.integration.sparksession import SparkCluster

PROGRAMS = ROOT / "docs" / "examples" / "pipeline"
SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 300.0
WINDOW_SECONDS = 5
WINDOW_COUNT = 3
FETCH_SIZE = 1 << 20

SPARK_DEFAULTS = """\
spark.master local[2]
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 1g
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""
"""What an administrator may say of Spark, so that it is small, and quick to start."""


class Program:
    """
    One of the programs, as a process; all that it says is in a file.
    """

    def __init__(self, folder: str, name: str, *arguments: str) -> None:
        self._path = Path(folder, f"{name}.log")
        self._name = name
        environment = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": folder,
            "SPARK_LOCAL_DIRS": folder,
        }
        with open(self._path, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / name), *arguments],
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """So far."""
        return self._path.read_text(encoding="utf-8", errors="replace")

    def waitFor(self, pattern: str) -> re.Match[str]:
        """
        Wait until it says something.

        @raise AssertionError: it has not, in time, or has ended before.
        """
        until(
            lambda: re.search(pattern, self.said) is not None or self._process.poll() is not None,
            f"{pattern} from {self._name}",
            SECONDS_MAX,
            100,
        )
        found = re.search(pattern, self.said)
        assert found is not None, (
            f"{self._name} has ended with {self._process.returncode}:\n{self.said}"
        )
        return found

    def complete(self) -> str:
        """Wait for its end, which must be a good one; returns what it said."""
        status = self._process.wait(SECONDS_MAX)
        assert status == 0, f"{self._name} has ended with {status}:\n{self.said}"
        return self.said

    def interrupt(self) -> None:
        """Ctrl-C, and wait for its end."""
        assert self._process.poll() is None, (
            f"{self._name} has ended with {self._process.returncode}:\n{self.said}"
        )
        self._process.send_signal(signal.SIGINT)
        self._process.wait(STOP_SECONDS_MAX)

    def end(self) -> None:
        """Kill it and what it has started, if that is still there."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(STOP_SECONDS_MAX)


class HelpTests(SynchronousTestCase):
    """What is written about the programs."""

    PAGE = ROOT / "docs" / "pipeline.md"

    def test_options(self) -> None:
        """
        Each program has a C{--help}, which has every option that it is shown with, on the page and
        in its own words.
        """
        programs = {path.name: path.read_text(encoding="utf-8") for path in PROGRAMS.glob("*.py")}
        shown = re.findall(
            r"(?m)^ *python (\w+\.py)(.*)$",
            self.PAGE.read_text(encoding="utf-8") + "".join(programs.values()),
        )
        self.assertEqual(
            {name for name, _arguments in shown},
            {name for name, text in programs.items() if "__main__" in text},
        )
        for name in {name for name, _arguments in shown}:
            said = subprocess.run(
                [sys.executable, str(PROGRAMS / name), "--help"],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                text=True,
                timeout=SECONDS_MAX,
            ).stdout
            options = {
                word
                for each, arguments in shown
                if each == name
                for word in arguments.split()
                if word.startswith("--")
            }
            self.assertEqual(
                [
                    option
                    for option in options
                    if not re.search(rf"{option}\b", said.partition("options:")[2])
                ],
                [],
                name,
            )


class MistakeTests(SynchronousTestCase):
    """What a reader sees whose files or servers are not there."""

    def fails(self, *arguments: str) -> str:
        """The last line that the publisher says; it fails without a traceback."""
        ended = subprocess.run(
            [
                sys.executable,
                str(PROGRAMS / "publishlogs.py"),
                "--zookeeper",
                "127.0.0.1:1",
                "--registry",
                "http://127.0.0.1:1",
                *arguments,
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=SECONDS_MAX,
        )
        self.assertNotIn("Traceback", ended.stderr)
        self.assertGreater(ended.returncode, 0)
        return ended.stderr.splitlines()[-1]

    def test_noSuchFile(self) -> None:
        """A file that is not there is named, and so is the program that writes one."""
        self.assertEqual(
            self.fails("--apache", "nosuch.log"),
            "publishlogs.py: error: argument --apache: nosuch.log: No such file or directory;"
            " samplelogs.py writes sample files",
        )

    def test_noRegistry(self) -> None:
        """A registry that is not there is named."""
        self.assertRegex(
            self.fails("--apache", os.devnull), r"^publishlogs.py: http://127\.0\.0\.1:1 cannot be"
        )


class PipelineTests(SynchronousTestCase):
    """Each example, from its beginning to its end."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="pylogbroker-pipeline-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        Path(self.folder, "spark-defaults.conf").write_text(SPARK_DEFAULTS, encoding="ascii")
        self.cluster = SparkCluster(1, num_partitions="2")
        self.addCleanup(self.cluster.end)

    def run_(self, name: str, *arguments: str) -> Program:
        """Start a program."""
        program = Program(self.folder, name, *arguments)
        self.addCleanup(program.end)
        return program

    def start(self, name: str, *arguments: str) -> Program:
        """Start a program with this cluster's ZooKeeper."""
        return self.run_(name, *arguments, "--zookeeper", self.cluster.zookeeper)

    def payloads(self, topic: str) -> list[bytes]:
        """All that the broker has of a topic."""
        found: list[bytes] = []
        with SimpleConsumer("127.0.0.1", self.cluster.brokers[0].port) as consumer:
            for partition in range(2):
                offset = 0
                while pairs := list(
                    consumer.fetch(topic, partition, offset, FETCH_SIZE).payloads()
                ):
                    found += [payload for payload, _next in pairs]
                    offset = pairs[-1][1]
        return found

    # -- (a)

    def file(self, name: str, lines: list[bytes]) -> str:
        """A log file."""
        Path(self.folder, name).write_bytes(b"\n".join(lines))
        return name

    def loaded(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table."""
        files = pyarrow.dataset.dataset(
            Path(self.folder, table), format="parquet", partitioning="hive"
        )
        return list(files.to_table(columns=["hour", "record"]).to_pylist())

    def test_webServer(self) -> None:
        """
        Lines of Apache's and sshd's logs, odd ones among them, become Avro records in two topics;
        loaded and counted by Spark SQL they are the hours, levels and sessions that plain Python
        finds in the files; and there is a chart. A message that is no record is loaded, and
        disturbs nobody.
        """
        registry = RegistryProcess(f"{self.folder}/registry", self.cluster.brokers[0].port).start()
        self.addCleanup(registry.kill)
        apache, openssh = truth.apacheLines(), truth.opensshLines()
        self.run_("samplelogs.py").complete()
        samples = [
            Path(self.folder, name).read_bytes().split(b"\n")[:-1]
            for name in ("error.log", "auth.log")
        ]
        facts = truth.apacheFacts(apache + truth.ODD_APACHE + samples[0]) + truth.opensshFacts(
            openssh + truth.ODD_OPENSSH + samples[1]
        )

        said = self.start(
            "publishlogs.py",
            "--registry",
            registry.url,
            "--year",
            str(truth.YEAR),
            "--apache",
            "error.log",
            self.file("real_error.log", apache),
            self.file("odd_error.log", truth.ODD_APACHE),
            "--openssh",
            "auth.log",
            self.file("real_auth.log", openssh),
            self.file("odd_auth.log", truth.ODD_OPENSSH),
        ).complete()
        for name, lines, topic, strangeCount in (
            (
                "odd_error.log",
                truth.apacheFacts(truth.ODD_APACHE),
                "apache",
                truth.ODD_APACHE_STRANGE_COUNT,
            ),
            (
                "odd_auth.log",
                truth.opensshFacts(truth.ODD_OPENSSH),
                "openssh",
                truth.ODD_OPENSSH_STRANGE_COUNT,
            ),
        ):
            self.assertIn(
                f"{name}: {len(lines)} records for {topic}, {strangeCount} lines skipped", said
            )
        decoder = AvroDecoder(find=registry.registryClient().schema)
        records = [
            decoder.decode(payload)
            for topic in ("apache", "openssh")
            for payload in self.payloads(topic)
        ]
        self.assertEqual(len(records), len(facts))
        self.assertEqual({type(record["time"]).__name__ for record in records}, {"datetime"})

        with SyncProducer("127.0.0.1", self.cluster.brokers[0].port) as producer:
            producer.send("apache", 0, [b"this is no record"])
        said = self.start(
            "webserver.py",
            "table",
            "--registry",
            registry.url,
            "--json",
            "report.json",
            "--chart",
            "report.png",
        ).complete()
        found = json.loads(Path(self.folder, "report.json").read_text(encoding="utf-8"))
        expected = truth.reportOf(facts)
        for name, rows in expected.items():
            self.assertEqual(found[name], rows, name)
        self.assertGreater(len(expected["hours"]), 20)
        self.assertGreater(len(expected["sessions"]), 50)
        for row in expected["hours"]:
            self.assertRegex(said, rf"(?m)^{row['topic']} +{row['hour']} +{row['lines']} ")
        self.assertEqual(Path(self.folder, "report.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        loaded = [(row["hour"], row["record"]) for row in self.loaded("table")]
        self.assertEqual(
            (len(loaded), [record for _hour, record in loaded].count(None)), (len(facts) + 1, 1)
        )
        self.assertEqual(
            {hour == record["time"].hour for hour, record in loaded if record is not None}, {True}
        )

    # -- (b)

    def campaigns(self) -> dict[str, str]:
        """By ad."""
        with open(PROGRAMS / "ads.csv", newline="", encoding="utf-8") as file:
            return {row["ad"]: row["campaign"] for row in csv.DictReader(file)}

    def areThere(self, *topics: str) -> bool:
        """Whether somebody has topics."""
        with ZookeeperMetadata(self.cluster.zookeeper) as view:
            return set(topics) <= set(view.topics())

    def test_clickThrough(self) -> None:
        """
        While ads are shown and clicked, rates appear in their topic, and with them in the
        application that tells them; each is, to the click, what plain Python counts in the topics
        of events, and no window is left out.
        """
        traffic = self.start("adtraffic.py", "--rate", "100")
        until(lambda: self.areThere("impressions", "clicks"), "events", STOP_SECONDS_MAX)
        shown = self.start("showrates.py", "--listen", "tcp:0:interface=127.0.0.1")
        counting = self.start(
            "clickthrough.py", "--checkpoint", "checkpoint", "--window", f"{WINDOW_SECONDS} seconds"
        )
        port = int(shown.waitFor(r"serves on .*:(\d+)")[1])
        counting.waitFor("rates are being counted")
        lines = rf"(?s)(?:\n\d\S+Z [^\n]*){{{WINDOW_COUNT * len(set(self.campaigns().values()))}}}"
        shown.waitFor(lines)
        with urlopen(f"http://127.0.0.1:{port}/") as answer:
            served: dict[str, Any] = json.load(answer)
        traffic.interrupt()
        shown.interrupt()
        counting.interrupt()

        rates = [json.loads(payload) for payload in self.payloads("rates")]
        expected = truth.ratesOf(
            self.payloads("impressions"), self.payloads("clicks"), self.campaigns(), WINDOW_SECONDS
        )
        found = {
            (rate["campaign"], rate["begin"]): (rate["impressions"], rate["clicks"])
            for rate in rates
        }
        self.assertEqual(len(found), len(rates))
        self.assertEqual({key: expected.get(key) for key in found}, found)
        last = max(begin for _campaign, begin in found)
        self.assertEqual({key for key in expected if key[1] < last} - set(found), set())
        self.assertGreater(sum(clicks for _shown, clicks in found.values()), 0)
        for rate in rates:
            self.assertEqual(rate["rate"], rate["clicks"] / rate["impressions"])
        self.assertEqual([rate for rate in served.values() if rate not in rates], [])
        self.assertEqual(set(served), set(self.campaigns().values()))
        told = {
            f"{rate['begin']} {rate['campaign']}: {rate['clicks']} of {rate['impressions']},"
            f" {100 * rate['rate']:.1f} %"
            for rate in rates
        }
        self.assertEqual(set(re.findall(r"(?m)^\d\S+Z .*$", shown.said)) - told, set())
