"""
The examples that the commands' C{--help} shows, carried out as they stand there, on a live cluster
of processes.

Only the places are exchanged: the addresses of ZooKeeper and of a broker, and the paths of files
and directories. What follows new messages, or serves, is ended by Ctrl-C when it has said
something; all else must end by itself, and everything with exit code 0.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.arguments import LONG_MAX
from pylogbroker.cli.main import parse
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.mirror.checkpoints import Checkpoint, checkpointsTopic
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.topologies.statemanager import StateManager
from pylogbroker.types import BrokerPartition, TopicPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.broker.kafka.clusterbench import ClusterBench
from tests.cli.commands import ROOT, CommandCase, Outcome, Process, commands, reactor
from tests.cli.kafka.benchserver import BenchServer
from tests.integration.toolcluster import ToolCluster, sharedCluster
from tests.topologies.definitions import DEFINITION
from tests.topologies.multilang.test_definitions import quickstart

SERVING = ("dev", "zookeeper")
SEVERAL = ("broker drain", "broker decommission", "partition plan", "partition reassign")
"""Commands that need several brokers of today's Kafka."""
LINES = b"".join(b"line %d\n" % number for number in range(50))

SEGMENT = ROOT / "tests" / "golden" / "kafka43" / "segment" / f"{500:020}.log"
"""Of a topic of today's protocol; the cluster of these tests has topics of 0.7's only."""


def examples(command: str) -> list[str]:
    """The lines of a command's help that are examples of it."""
    text = commands()[command].epilog or ""
    found = re.findall(
        r"^  (\S.*\bpylogbroker .*|pylogbroker .*)$", text.partition("examples:")[2], re.MULTILINE
    )
    return [each for each in found if f"pylogbroker {command}" in each]


class ExampleTests(CommandCase):
    """Every command."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        self.cluster: ToolCluster = await sharedCluster()
        for topic in ("clicks", "dpkg", "syslog"):
            for broker in self.cluster.brokers:
                producer = SyncProducer(reactor, f"127.0.0.1:{broker.port}")
                for partition in (0, 1):
                    await producer.send(
                        topic,
                        partition,
                        [b"%s %d" % (topic.encode(), number) for number in range(20)],
                    )
                    await producer.confirm(topic, partition)
                await producer.close()
        await self.cluster.put(
            "counters", "clicks", {BrokerPartition(0, 0): 0, BrokerPartition(1, 1): 0}
        )
        await self.cluster.mirrored("mirror", "clicks")
        self.target = await self.mirrorTarget()
        self.several = BenchServer(ClusterBench())
        self.addCleanup(self.several.close)
        topics = self.several.bench.brokers[1].topics
        self.several.bench.do(topics.create("t", 3))
        self.folder = self.mktemp()
        os.makedirs(self.folder)
        for name, data in (("dpkg.log", LINES), ("syslog", LINES), ("orders.tsv", b"key\tvalue\n")):
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(data)
        shutil.copy(ROOT / "etc" / "job.py", self.folder)
        shutil.copy(ROOT / "docs" / "examples" / "topologies" / "wordcount.py", self.folder)
        for name in ("topologies", "src"):  # a project for streamparse, and its environment
            shutil.copytree(quickstart() / name, os.path.join(self.folder, name))
        os.symlink(sys.prefix, os.path.join(self.folder, "venv"))
        await self.words(self.cluster.brokers[0].port)
        stopped = LocalBroker(reactor, directory=os.path.abspath(f"{self.folder}/stopped"))
        await stopped.start()
        await stopped.stop()

    async def words(self, port: int) -> None:
        """What the sample job reads."""
        producer = KafkaProducer(reactor, {"bootstrap.servers": f"127.0.0.1:{port}"})
        for word in (b"a", b"b", b"a"):
            await producer.send("words", word)
        await producer.close()

    async def mirrorTarget(self) -> LocalBroker:
        """A broker of today's Kafka, to which a mirror has copied topics of 2011 and of today."""
        broker = LocalBroker(reactor)
        await broker.start()
        self.addCleanup(broker.stop)
        producer = KafkaProducer(reactor, {"bootstrap.servers": broker.bootstrapServers})
        key, value = Checkpoint("billing", TopicPartition("clicks", 0), 7, 1).encode()
        await producer.send(checkpointsTopic("east"), value, key)
        await producer.send("clicks", b"mirrored")
        await producer.close()
        return broker

    def placed(self, command: str, example: str) -> str:
        """An example, for a shell."""
        place = f"127.0.0.1:{self.cluster.brokers[0].port}"
        bootstrap = self.several.servers if command in SEVERAL else place
        for old, new in (
            ("zk1:2181/kafka", self.cluster.servers),
            ("zk9:2181/kafka", self.cluster.servers),
            ("zk1:2181", self.cluster.servers),
            ("zk2:2181", self.cluster.servers),
            ("log1:9092", bootstrap),
            ("kafka1:9092", self.target.bootstrapServers),
            ("log1:8067", f"127.0.0.1:{self.cluster.figuresPort(0)}"),
            ("/tmp/pylogbroker-logs/orders-0/00000000000000000000.log", str(SEGMENT)),
            ("/tmp/pylogbroker-logs", self.cluster.brokers[0].directory),
            ("/var/lib/pylogbroker", "stopped"),
            ("/tmp/zookeeper", "zookeeper"),
            ("/tmp/warehouse", "warehouse"),
            ("translate hits", "translate counters"),
            ("--mirror-group mm", "--mirror-group mirror"),
            ("/var/log/", ""),
            ("tail -f", "cat"),
            ("log.*", "'log.*|clicks'"),
        ):
            example = example.replace(old, new)
        more = {"zookeeper": " --port 0", "dev": " --zookeeper-port 0 --port 0"}.get(command, "")
        if command.startswith("topology ") and "--zookeeper" not in example:
            more += f" --zookeeper {self.cluster.servers}"
        if (
            re.search(r"--broker\b", commands()[command].format_help())
            and "--broker" not in example
            and "--zookeeper" not in example
            and "--bootstrap-server" not in example
        ):
            more += f" --broker {place}"
        example = re.sub(r"--(zookeeper-)?port \d+", "", example) if command in SERVING else example
        return (
            example.replace("pylogbroker ", f"{shlex.quote(sys.executable)} -m pylogbroker ", 1)
            + more
        )

    def shell(self, line: str) -> tuple[Process, Any]:
        """Start it. It is killed with the test."""
        protocol = Process()
        words = line if "|" in line.replace("'log.*|clicks'", "") else f"exec {line}"
        process = reactor.spawnProcess(
            protocol,
            "/bin/sh",
            ["/bin/sh", "-c", words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            path=self.folder,
        )
        process.closeStdin()

        self.addCleanup(self._kill, protocol, process)
        return protocol, process

    async def news(self) -> None:
        """Something for those who follow."""
        producer = SyncProducer(reactor, f"127.0.0.1:{self.cluster.brokers[0].port}")
        for topic in ("clicks", "syslog"):
            await producer.send(topic, 0, [b"news"])
        await producer.close()

    async def handle(self, command: str, example: str) -> Outcome:
        """An example, to its end."""
        protocol, process = self.shell(self.placed(command, example))
        options = parse(shlex.split(re.split(r"(?<!\S)pylogbroker ", example)[-1]))
        isFollowing = getattr(options, "follow", False) or options.command.isEndless
        if isFollowing or getattr(options, "count", 0) == LONG_MAX:
            publishing = LoopingCall(lambda: Deferred.fromCoroutine(self.news()))
            publishing.start(0.3)
            try:
                await protocol.saidAnything()
            finally:
                publishing.stop()
            process.signalProcess(signal.SIGINT)
        return await protocol.ended

    async def test_all(self) -> None:
        """The help of every command has an example, and each of them works."""
        failures = []
        for command in commands():
            found = examples(command)
            self.assertNotEqual(found, [], command)
            member = await self.member() if command == "group verify" else None
            for example in found:
                if command.startswith("topology ") and command != "topology submit":
                    await self.topology()
                outcome = await self.handle(command, example)
                if outcome.code or "Traceback" in outcome.errors:
                    failures.append(
                        f"{example}: {outcome.code}\n"
                        f"{outcome.output.decode(errors='replace')[-2000:]}\n{outcome.errors}"
                    )
            if member is not None:
                await member.shutdown()
        self.assertEqual(failures, [], "\n".join(failures))

    async def topology(self) -> None:
        """The nodes of a topology that was submitted, and does not run now."""
        client = ZookeeperClient(reactor, self.cluster.servers)
        await client.connect()
        states = StateManager(reactor, client, lambda: 0.5)
        await states.submit(msgspec.structs.replace(DEFINITION, name="word-count"))
        await client.close()

    async def member(self) -> ConsumerConnector:
        """A member of the group C{counters}, without which there is nothing to verify."""
        settings = {"zk.connect": self.cluster.servers, "groupid": "counters"}
        consumer = ConsumerConnector(reactor, settings)
        await consumer.connect()
        await consumer.createMessageStreams({"clicks": 1})
        while not consumer.isOwning:
            await deferLater(reactor, 0.02)
        return consumer


class PageTests(SynchronousTestCase):
    """C{docs/tools.md}."""

    PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    SCRIPTS = (
        "kafka-run-class",
        "kafka-server-start",
        "kafka-server-stop",
        "zookeeper-server-start",
        "zookeeper-server-stop",
        "zookeeper-shell",
        "kafka-console-producer",
        "kafka-console-consumer",
        "kafka-producer-shell",
        "kafka-consumer-shell",
        "kafka-simple-consumer-shell",
        "kafka-replay-log-producer",
        "kafka-producer-perf-test",
        "kafka-consumer-perf-test",
        "kafka-simple-consumer-perf-test",
        "run-rat",
    )
    CLASSES = (
        "ConsumerOffsetChecker",
        "DumpLogSegments",
        "ExportZkOffsets",
        "ImportZkOffsets",
        "GetOffsetShell",
        "JmxTool",
        "MirrorMaker",
        "VerifyConsumerRebalance",
        "UpdateOffsetsInZK",
    )

    COMING = {"audit"}
    """Commands that may come later than the page."""

    def test_scripts(self) -> None:
        """Every script of 0.7, and every class that has none, is on it."""
        self.assertEqual(
            [name for name in self.SCRIPTS if f"`{name}.sh`" not in self.PAGE]
            + [name for name in self.CLASSES if name not in self.PAGE],
            [],
        )

    def test_commands(self) -> None:
        """Every command is on it, and what it calls a command is one."""
        nouns = "|".join({name.split()[0] for name in commands() if " " in name})
        found = set(re.findall(rf"pylogbroker ((?:{nouns}) [a-z-]+|[a-z]+)", self.PAGE))
        self.assertEqual(
            (set(commands()) - found, found - set(commands()) - self.COMING), (set(), set())
        )

    def test_lines(self) -> None:
        """The commands that it shows are taken by their parsers."""
        lines = [
            line
            for block in re.findall(r"^```sh\n(.*?)^```$", self.PAGE, re.MULTILINE | re.DOTALL)
            for line in block.splitlines()
        ]
        self.assertEqual(len([parse(shlex.split(line)[1:]) for line in lines]), 4)
