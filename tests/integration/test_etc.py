"""
What lies in C{etc/}: sample property files, which say what the tables say, and units for systemd,
which start what there is.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.main import COMMANDS, buildParser
from pylogbroker.config.allowlist import PRODUCE, readAllowList
from pylogbroker.config.auditsettings import (
    PREFIX,
    AuditedSettings,
    AuditorSettings,
)
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.config.keys import ConfigKey
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.config.properties import readProperties
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.metrics.brokermetrics import ClusterSnapshot, brokerFamilies
from pylogbroker.programs.lifecycle import readLevels
from tests.integration.brokerprocess import twistd
from tests.metrics.test_brokermetrics import picture

ETC = Path(__file__).resolve().parent.parent.parent / "etc"
NEEDS = ("systemd",)
UNITS = ETC / "systemd"
METRICS_PAGE = (ETC.parent / "docs" / "metrics.md").read_text(encoding="utf-8")


class PropertyTests(SynchronousTestCase):
    """
    C{etc/*.properties}, beside C{broker.properties}, which L{tests.config.test_brokersettings} has.
    """

    def check(self, name: str, rows: Sequence[ConfigKey[Any]]) -> dict[str, str]:
        """
        It has every key that has an effect, commented out or not, in the order of the table and no
        other; each with the sentence of its row; and what is commented out shows the default, or an
        example that is valid. Returns what is not commented out.
        """
        text = (ETC / name).read_text(encoding="utf-8")
        used = [row for row in rows if row.isEffective]
        found = re.findall(r"\n((?:# .*\n)+)(#?)([a-zA-Z.]+)=(.*)", text)
        prefixes = tuple(row.key for row in rows if row.isPrefix)
        self.assertEqual(
            [
                next((prefix for prefix in prefixes if key.startswith(prefix)), key)
                for _, _, key, _ in found
            ],
            [row.key for row in used],
        )
        for row, (comment, mark, _key, value) in zip(used, found, strict=True):
            self.assertEqual(
                " ".join(line[2:] for line in comment.splitlines()),
                row.doc + ("" if row.isKafkaKey else " (ours)"),
            )
            if mark and row.default:
                self.assertEqual(value, row.default)
            elif mark:
                row.type.parse(value, self.fail)
                self.assertNotEqual(value, "")
        return dict(readProperties(str(ETC / name), self.fail))

    def test_producer(self) -> None:
        """C{producer.properties}, with the audit's keys, is valid as it is."""
        properties = self.check(
            "producer.properties", (*ProducerSettings.keys, *AuditedSettings.keys)
        )
        settings = ProducerSettings.fromProperties(properties, self.fail)
        self.assertTrue(settings.isAsync and settings.confirm)
        AuditedSettings.fromProperties(
            {key: value for key, value in properties.items() if key.startswith(PREFIX)}, self.fail
        )

    def test_consumer(self) -> None:
        """C{consumer.properties} is valid as it is."""
        self.assertEqual(
            ConsumerSettings.fromProperties(
                self.check("consumer.properties", ConsumerSettings.keys), self.fail
            ).groupId,
            "example",
        )

    def test_auditor(self) -> None:
        """C{auditor.properties} is valid as it is."""
        self.assertEqual(
            AuditorSettings.fromProperties(
                self.check("auditor.properties", AuditorSettings.keys), self.fail
            )
            .tiers[0]
            .name,
            "live",
        )

    def test_topology(self) -> None:
        """C{topology.properties} is valid as it is."""
        properties = self.check("topology.properties", TopologySettings.keys)
        settings = TopologySettings.fromProperties(properties, self.fail)
        self.assertEqual(settings, TopologySettings.fromProperties({}, self.fail))

    def test_registry(self) -> None:
        """C{registry.properties} is valid as it is."""
        self.assertEqual(
            RegistrySettings.fromProperties(
                self.check("registry.properties", RegistrySettings.keys), self.fail
            ).topic,
            "_schemas",
        )

    def test_task(self) -> None:
        """C{task.properties} is valid as it is."""
        self.assertEqual(
            KafkaTaskSettings.fromProperties(
                self.check("task.properties", KafkaTaskSettings.keys), self.fail
            ).bootstrapServers,
            ("localhost:9092",),
        )

    def test_allowList(self) -> None:
        """C{allow.txt} is valid as it is."""
        self.assertTrue(readAllowList(str(ETC / "allow.txt")).allows("loader", PRODUCE, "views-1"))

    def test_logLevels(self) -> None:
        """
        C{log-levels.properties} is valid as it is, and with everything that is commented out in it.
        """
        self.assertEqual(
            {
                level.name
                for level in readLevels(str(ETC / "log-levels.properties"), self.fail).values()
            },
            {"info"},
        )
        path = self.mktemp()
        text = (ETC / "log-levels.properties").read_text(encoding="utf-8")
        Path(path).write_text(
            re.sub(r"^#([a-z])", r"\1", text, flags=re.MULTILINE), encoding="utf-8"
        )
        self.assertEqual(len(readLevels(path, self.fail)), 5)


class RuleTests(SynchronousTestCase):
    """C{etc/prometheus-rules.yml}."""

    def test_rules(self) -> None:
        """Each rule names a metric that a broker has, and each command that it advises exists."""
        text = (ETC / "prometheus-rules.yml").read_text(encoding="utf-8")
        blocks = text.split("- alert: ")[1:]
        cluster = ClusterSnapshot(0, 0, 0, 0, 0, 0, 0, False, 1, 0, 1, 0)
        known = {each.name for each in brokerFamilies(picture()._replace(cluster=cluster), "1")}
        for block in blocks:
            name = block.partition("\n")[0]
            [expression] = re.findall(r"^ *expr: (.*)$", block, re.MULTILINE)
            metrics = re.findall(r"pylogbroker_[a-z_]+", expression)
            self.assertEqual((len(metrics), set(metrics) - known), (1, set()), name)
            self.assertIn("severity: ", block)
            self.assertEqual(
                len(re.findall(r"^ *(?:summary|remedy): \".+\"$", block, re.MULTILINE)), 2
            )
            for command in re.findall(r"pylogbroker ([a-z]+ [a-z]+)", block):
                self.assertIn(command, {entry.name for entry in COMMANDS})
            self.assertIn(f"`{metrics[0]}", METRICS_PAGE, name)
        self.assertEqual(len(blocks), 11)


class UnitTests(SynchronousTestCase):
    """C{etc/systemd}."""

    def commands(self) -> list[tuple[str, list[str]]]:
        """Name of the unit and words of its C{ExecStart}."""
        found = []
        for path in sorted(UNITS.glob("*.service")):
            [line] = re.findall(r"^ExecStart=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            found.append((path.name, shlex.split(line)))
        self.assertGreater(len(found), 4)
        return found

    def inEtc(self, word: str) -> str:
        """A word of a command, with a file of ours in the place of one that is installed."""
        if not word.startswith("/etc/pylogbroker/"):
            return word
        path = ETC / Path(word).name
        self.assertTrue(path.exists(), word)
        return str(path)

    def test_services(self) -> None:
        """There is a unit for each service that C{twistd} has."""
        started = {words[3] for _unit, words in self.commands() if Path(words[0]).name == "twistd"}
        self.assertEqual(
            started,
            {
                maker.tapname
                for maker in getPlugins(IServiceMaker)
                if maker.tapname.startswith("pylogbroker")
            },
        )

    def test_named(self) -> None:
        """C{docs/operations.md} names each service, and each file in C{etc/}."""
        page = (ETC.parent / "docs" / "operations.md").read_text(encoding="utf-8")
        named = set(re.findall(r"[`/]([a-z.-]+)[`)]", page))
        services = {
            maker.tapname
            for maker in getPlugins(IServiceMaker)
            if maker.tapname.startswith("pylogbroker")
        }
        self.assertEqual({*services, *(path.name for path in ETC.rglob("*.*"))} - named, set())

    def test_commands(self) -> None:
        """
        Each unit starts a service that C{twistd} has, or a command that C{pylogbroker} has, with
        options that it takes and files that are in C{etc/}.
        """
        makers = {maker.tapname: maker for maker in getPlugins(IServiceMaker)}
        for unit, words in self.commands():
            with self.subTest(unit):
                program = Path(words[0]).name
                own = [self.inEtc(word) for word in words]
                if program == "twistd":
                    self.assertEqual(own[1:3], ["-n", "--pidfile="])
                    makers[own[3]].options().parseOptions(own[4:])
                else:
                    self.assertEqual(program, "pylogbroker")
                    buildParser().parse_args(own[1:])

    def test_notify(self) -> None:
        """
        What runs for long tells systemd when it is ready, is started again when it fails, and has
        limits.
        """
        for unit, words in self.commands():
            text = (UNITS / unit).read_text(encoding="utf-8")
            isOnce = "Type=oneshot" in text
            for line in (
                "NoNewPrivileges=yes",
                "User=",
                *(
                    ()
                    if isOnce
                    else ("Type=notify", "Restart=on-failure", "LimitNOFILE=", "KillSignal=SIGTERM")
                ),
            ):
                self.assertIn(f"\n{line}", text, unit)
            self.assertEqual(Path(words[0]).name == "twistd", not isOnce)
            self.assertEqual(
                "--log-levels" in words, "\nExecReload=/bin/kill -HUP $MAINPID\n" in text, unit
            )

    def test_verified(self) -> None:
        """systemd has nothing against them, but that the programs are not installed there."""
        folder = Path(self.mktemp())
        folder.mkdir()
        for path in UNITS.iterdir():
            text = re.sub(
                r"/opt/pylogbroker/bin/\w+", "/bin/true", path.read_text(encoding="utf-8")
            )
            (folder / path.name).write_text(
                text.replace("User=pylogbroker", "User=root"), encoding="utf-8"
            )
        run = subprocess.run(
            ["systemd-analyze", "verify", *map(str, folder.iterdir())],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = [line for line in (run.stdout + run.stderr).splitlines() if "pylogbroker" in line]
        self.assertEqual(said, [])


class ReadyTests(SynchronousTestCase):
    """What C{Type=notify} relies on."""

    def check(self, *arguments: str) -> None:
        """
        A program of C{twistd} tells systemd when it is ready, and when it begins to stop; and it
        ends with 0.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(f"{folder}/notify")
            receiver.settimeout(60)
            process = subprocess.Popen(
                [*twistd(), "-n", "--pidfile=", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ETC.parent),
                    "NOTIFY_SOCKET": f"{folder}/notify",
                },
            )
            self.addCleanup(process.kill)
            self.assertEqual(receiver.recv(100), b"READY=1")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(receiver.recv(100), b"STOPPING=1")
            output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, output)

    def test_broker(self) -> None:
        """The broker, with the sample file, when it serves."""
        self.check(
            "pylogbroker",
            "--config",
            str(ETC / "broker.properties"),
            "--set",
            "port=0",
            "--set",
            "log.dir=log",
        )

    def test_mirror(self) -> None:
        """The mirror, with the sample files but for the clusters, which are not there."""
        words = []
        for port, option in enumerate(("consumer", "producer"), 1):
            text = (ETC / f"mirror-{option}.properties").read_text(encoding="utf-8")
            path = Path(self.mktemp()).absolute()
            path.write_text(
                re.sub("^zk.connect=.*", f"zk.connect=127.0.0.1:{port}", text, flags=re.MULTILINE),
                encoding="utf-8",
            )
            words += [f"--{option}", str(path)]
        self.check("pylogbroker-mirror", *words, "--whitelist", ".*", "--listen", "0")

    def test_console(self) -> None:
        """The console, while ZooKeeper is not there."""
        self.check("pylogbroker-console", "--zookeeper", "127.0.0.1:1", "--listen", "0")

    def test_task(self) -> None:
        """A container of the sample job, with the sample file but for the brokers."""
        words = ("--set", "bootstrap.servers=127.0.0.1:1", "--listen", "0", str(ETC / "job.py"))
        self.check("pylogbroker-task", "--config", str(ETC / "task.properties"), *words)

    def test_auditor(self) -> None:
        """The auditor, with the sample file but for the cluster, which is not there."""
        changes = ("--set", "listen=tcp:0:interface=127.0.0.1", "--set", "tiers=live=127.0.0.1:1")
        self.check("pylogbroker-auditor", "--config", str(ETC / "auditor.properties"), *changes)


class LogLineTests(SynchronousTestCase):
    """The lists of log lines in C{docs/operations.md}."""

    def setUp(self) -> None:
        page = (ETC.parent / "docs" / "operations.md").read_text(encoding="utf-8")
        page = page.partition("## What each log line means")[2].partition("## What to do when")[0]
        self.lines = set(re.findall(r"^(?:- |  )`([^`]+)`[,:]$", page, re.MULTILINE))
        self.trees = [
            ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted((ETC.parent / "pylogbroker").rglob("*.py"))
        ]

    def texts(self, node: ast.AST | None) -> list[str]:
        """Constants in an expression, as the page shows them: with an ellipsis for a field."""
        found = [
            each.value
            for each in ast.walk(node or ast.Pass())
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        return [re.sub(r"\{[^}]*\}|%[sd]", "…", text) for text in found]

    def logged(self, node: ast.AST) -> list[str]:
        """
        The format of a line that somebody should look at, if this logs or makes one: a call with a
        text at hand, a text named C{sentence}, a report.
        """
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            isLog = (
                node.func.attr in ("warn", "error", "critical", "failure")
                and "log" in ast.unparse(node.func.value).lower()
            )
            return self.texts(node.args[0]) if isLog or node.func.attr == "_report" else []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "sentence":
            return self.texts(node.value)
        if isinstance(node, ast.ClassDef):
            fields = {
                ast.unparse(each.target): each.value
                for each in node.body
                if isinstance(each, ast.AnnAssign)
            }
            return (
                self.texts(fields["format"])
                if ast.unparse(fields.get("isWarning") or ast.Pass()) == "True"
                else []
            )
        return []

    def test_linesExist(self) -> None:
        """Each line that the page explains is one that the code logs."""
        texts = {text for tree in self.trees for text in self.texts(tree)}
        self.assertGreater(len(self.lines), 30)
        self.assertEqual(sorted(self.lines - texts), [])

    def test_linesAreExplained(self) -> None:
        """
        Each warning, error or worse that the code logs is on the page, but those that say of
        themselves that they are bugs, or only pass on a text.
        """
        logged = {
            text for tree in self.trees for node in ast.walk(tree) for text in self.logged(node)
        }
        self.assertGreater(len(logged), 80)
        told = {
            text
            for text in logged
            if re.search(r"\w", text)
            and not re.search(
                "failed unexpectedly|this is a bug|This should not have happened", text
            )
        }
        self.assertEqual(sorted(told - self.lines), [])
