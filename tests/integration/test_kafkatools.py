"""
Apache Kafka's console tools, each as its user runs it, and the Java client at its default settings.

What is polled for is polled L{POLL_COUNT_MAX} times; a poll returns as soon as there is something,
so a slow machine only makes the tests slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.cli.commands import performAtOnce
from tests.integration.certificates import Authority
from tests.integration.kafkatools import JavaProcess, ToolRun, sharedJava
from tests.integration.test_kafkaclients import Sent, records

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORD_COUNT = 20
POLL_MS = 100
POLL_COUNT_MAX = 1_200
BYTES = "org.apache.kafka.common.serialization.ByteArray"
LOGIN = "org.apache.kafka.common.security."
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"


class JavaCase(SynchronousTestCase):
    """A broker for each test, and one Java process for all."""

    java: JavaProcess

    def setUp(self) -> None:
        self.java = sharedJava(self)
        self.broker = BackgroundBroker({"brokerid": "1", **self.properties()})
        self.addCleanup(self.broker.close)
        self.broker.start()

    def properties(self) -> dict[str, str]:
        """Further settings of the broker."""
        return {}

    def run_(self, tool: str, *arguments: str, standardInput: bytes = b"") -> ToolRun:
        """A tool that connects to the broker."""
        server = ("--bootstrap-server", self.broker.bootstrapServers)
        return self.java.run(tool, *server, *arguments, standardInput=standardInput)

    def succeed(self, tool: str, *arguments: str, standardInput: bytes = b"") -> list[str]:
        """The lines of a tool that must end with status 0, without empty ones."""
        run = self.run_(tool, *arguments, standardInput=standardInput)
        self.assertEqual(run.status, 0, run.output)
        return [line for line in run.lines if line]

    def fail_(self, tool: str, *arguments: str, number: int = 0) -> str:
        """One line of a tool that must end with status 1."""
        run = self.run_(tool, *arguments)
        self.assertEqual(run.status, 1, run.output)
        return run.lines[number]

    def produce(self, topic: str, count: int, *arguments: str) -> None:
        """Records C{k0: v0} and so on."""
        lines = b"".join(b"k%d\tv%d\n" % (number, number) for number in range(count))
        parse = ("--reader-property", "parse.key=true")
        self.succeed("ConsoleProducer", "--topic", topic, *parse, *arguments, standardInput=lines)


class TopicToolTests(JavaCase):
    """C{kafka-topics}."""

    def test_topics(self) -> None:
        """Topics are created, described, grown, listed and deleted."""
        tool = "TopicCommand"
        lines = self.succeed(
            tool, "--create", "--topic", "t", "--partitions", "2", "--config", "retention.ms=5000"
        )
        self.assertEqual(lines, ["Created topic t."])
        self.assertEqual(
            self.fail_(tool, "--create", "--topic", "t"),
            "Error while executing topic command : Topic 't' already exists.",
        )
        self.succeed(tool, "--create", "--topic", "t", "--if-not-exists")
        self.succeed(tool, "--create", "--topic", "a.b", "--replica-assignment", "1,1")
        self.assertEqual(
            self.fail_(tool, "--create", "--topic", "a_b", number=1),
            "Error while executing topic command : Topic 'a_b' collides with existing topic: a.b",
        )
        self.succeed(tool, "--alter", "--topic", "t", "--partitions", "3")
        lines = self.succeed(tool, "--describe", "--topic", "t")
        lines[0] = re.sub(r"TopicId: [\w-]{22}\t", "", lines[0])
        self.assertEqual(
            lines,
            ["Topic: t\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=5000"]
            + [
                f"\tTopic: t\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1"
                "\tElr: \tLastKnownElr:"
                for number in range(3)
            ],
        )
        self.assertEqual(self.succeed(tool, "--list"), ["a.b", "t"])
        self.assertEqual(self.succeed(tool, "--describe", "--under-replicated-partitions"), [])
        self.succeed(tool, "--delete", "--topic", "t")
        self.assertEqual(self.succeed(tool, "--list"), ["a.b"])
        self.assertEqual(
            self.fail_(tool, "--describe", "--topic", "t"),
            "Error while executing topic command : Topic 't' does not exist as expected",
        )

    def test_offsets(self) -> None:
        """C{kafka-get-offsets}, C{kafka-delete-records} and C{kafka-log-dirs}."""
        self.produce("t", RECORD_COUNT)
        tool = "GetOffsetShell"
        for time, offset in (
            ("earliest", 0),
            ("latest", RECORD_COUNT),
            ("earliest-local", 0),
            ("0", 0),
        ):
            found = self.succeed(tool, "--topic", "t", "--time", time)
            self.assertEqual(found, [f"t:0:{offset}"], time)
        file = Path(self.mktemp())
        places = [{"topic": "t", "partition": 0, "offset": 5}]
        file.write_text(json.dumps({"partitions": places, "version": 1}), encoding="utf-8")
        lines = self.succeed("DeleteRecordsCommand", "--offset-json-file", str(file))
        self.assertEqual(lines[-1], "partition: t-0\tlow_watermark: 5")
        found = self.succeed(tool, "--topic", "t", "--time", "earliest")
        self.assertEqual(found, ["t:0:5"])
        lines = self.succeed("LogDirsCommand", "--describe", "--topic-list", "t")
        [broker] = json.loads(lines[-1])["brokers"]
        [directory] = broker["logDirs"]
        [partition] = directory["partitions"]
        self.assertEqual((broker["broker"], partition["partition"]), (1, "t-0"))
        self.assertGreater(partition["size"], 0)

    def test_cluster(self) -> None:
        """C{kafka-cluster} and C{kafka-broker-api-versions} find this broker."""
        server = ("--bootstrap-server", self.broker.bootstrapServers)
        first, again = (self.java.run("ClusterTool", "cluster-id", *server) for _ in range(2))
        self.assertRegex(first.output, r"^Cluster ID: [\w-]{22}\n$")
        self.assertEqual(first, again)
        run = self.java.run("ClusterTool", "list-endpoints", *server)
        self.assertEqual(
            run.lines[1].split()[:4], ["1", self.broker.host, str(self.broker.port), "null"]
        )
        run = self.java.run("BrokerApiVersionsCommand", *server)
        self.assertIn(f"{self.broker.bootstrapServers} (id: 1 rack: null", run.lines[0])
        self.assertIn("\tProduce(0): 0 to 13 [usable: 13],", run.lines)


class ConfigToolTests(JavaCase):
    """C{kafka-configs}."""

    TOOL = "kafka.admin.ConfigCommand"

    def test_topic(self) -> None:
        """A topic's settings are altered, described and deleted."""
        self.succeed("TopicCommand", "--create", "--topic", "t")
        entity = ("--entity-type", "topics", "--entity-name", "t")
        self.succeed(
            self.TOOL,
            "--alter",
            *entity,
            "--add-config",
            "retention.ms=2000,cleanup.policy=[compact,delete]",
        )
        lines = self.succeed(self.TOOL, "--describe", *entity)
        self.assertEqual(lines[0], "Dynamic configs for topic t are:")
        self.assertEqual(
            sorted(lines[1:]),
            [
                "  cleanup.policy=compact,delete sensitive=false synonyms="
                "{DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete,"
                " DEFAULT_CONFIG:log.cleanup.policy=delete}",
                "  retention.ms=2000 sensitive=false synonyms="
                "{DYNAMIC_TOPIC_CONFIG:retention.ms=2000}",
            ],
        )
        self.succeed(self.TOOL, "--alter", *entity, "--delete-config", "cleanup.policy")
        self.assertEqual(len(self.succeed(self.TOOL, "--describe", *entity)), 2)
        everything = self.succeed(self.TOOL, "--describe", "--all", *entity)
        self.assertIn("segment.bytes=1073741824", "".join(everything))
        self.assertIn(
            "Unknown topic config name: nonsense",
            self.run_(self.TOOL, "--alter", *entity, "--add-config", "nonsense=1").output,
        )

    def test_broker(self) -> None:
        """A broker's settings are described; those of all brokers hold for its topics."""
        one = ("--entity-type", "brokers", "--entity-name", "1")
        lines = self.succeed(self.TOOL, "--describe", "--all", *one)
        self.assertIn("log.dirs=", "".join(lines))
        everyone = ("--entity-type", "brokers", "--entity-default")
        self.succeed(self.TOOL, "--alter", *everyone, "--add-config", "log.retention.ms=77777")
        self.assertIn("log.retention.ms=77777", self.succeed(self.TOOL, "--describe", *everyone)[1])
        self.succeed("TopicCommand", "--create", "--topic", "t")
        topic = ("--entity-type", "topics", "--entity-name", "t")
        lines = self.succeed(self.TOOL, "--describe", "--all", *topic)
        self.assertIn("  retention.ms=77777 ", "\n".join(lines))


class GroupToolTests(JavaCase):
    """The console consumer and C{kafka-consumer-groups}."""

    TOOL = "consumer.group.ConsumerGroupCommand"

    def consume(self, topic: str, count: int, *arguments: str) -> list[str]:
        lines = self.succeed(
            "consumer.ConsoleConsumer",
            *("--topic", topic, "--group", "g", "--from-beginning", "--max-messages", str(count)),
            *arguments,
        )
        self.assertEqual(lines.pop(), f"Processed a total of {count} messages")
        return lines[-count:]  # the first may be an advertisement

    def offsets(self, group: str = "g") -> list[list[str]]:
        """Topic, partition, position, end and lag."""
        lines = self.succeed(self.TOOL, "--describe", "--group", group)
        rows = [line.split() for line in lines if line.startswith(f"{group} ")]
        return [row[1:2] + row[2:6] for row in rows]

    def test_console(self) -> None:
        """Keys, headers and values come back, in every codec."""
        show = [f"print.{what}=true" for what in ("key", "headers", "partition", "offset")]
        show = [part for each in show for part in ("--formatter-property", each)]
        for codec in CODECS:
            self.succeed(
                "ConsoleProducer",
                *("--topic", codec, "--compression-codec", codec),
                *("--reader-property", "parse.key=true"),
                *("--reader-property", "parse.headers=true"),
                standardInput=b"h1:x,h2:y\tkey\tvalue\nh1:z\t\xc3\xa9\t" + b"long" * 100 + b"\n",
            )
            self.assertEqual(
                self.consume(codec, 2, *show),
                [
                    "Partition:0\tOffset:0\th1:x,h2:y\tkey\tvalue",
                    "Partition:0\tOffset:1\th1:z\té\t" + "long" * 100,
                ],
                codec,
            )

    def test_restart(self) -> None:
        """A group's position survives a restart, and a C{kill -9}, of the broker."""
        for end in (self.broker.stop, self.broker.kill):
            self.produce("t", RECORD_COUNT)
            self.assertEqual(
                self.consume("t", RECORD_COUNT), [f"v{number}" for number in range(RECORD_COUNT)]
            )
            end()
            self.broker.start()
        self.assertEqual(self.offsets(), [["t", "0", "40", "40", "0"]])

    def test_groups(self) -> None:
        """Groups are listed and described; positions are moved and deleted."""
        self.produce("t", RECORD_COUNT)
        self.consume("t", 7)
        self.assertEqual(self.succeed(self.TOOL, "--list"), ["g"])
        self.assertEqual(self.offsets(), [["t", "0", "7", "20", "13"]])
        for option in ("--members", "--state"):
            lines = self.succeed(self.TOOL, "--describe", "--group", "g", option)
            self.assertEqual(lines[0], "Consumer group 'g' has no active members.")
        for options, offset in (
            (("--to-earliest",), "0"),
            (("--shift-by", "3"), "3"),
            (("--to-offset", "99"), "20"),
            (("--to-datetime", "2020-01-01T00:00:00.000"), "0"),
            (("--to-latest",), "20"),
        ):
            reset = ("--reset-offsets", "--group", "g", "--topic", "t", *options)
            before = self.offsets()
            self.succeed(self.TOOL, *reset, "--dry-run")
            self.assertEqual(self.offsets(), before)
            lines = self.succeed(self.TOOL, *reset, "--execute")
            self.assertEqual(lines[-1].split(), ["g", "t", "0", offset])
            self.assertEqual(self.offsets()[0][2], offset)
        self.succeed(self.TOOL, "--delete-offsets", "--group", "g", "--topic", "t")
        self.assertEqual(self.offsets(), [])
        reset = ("--reset-offsets", "--group", "new", "--topic", "t", "--to-earliest")
        self.succeed(self.TOOL, *reset, "--execute")
        lines = self.succeed(self.TOOL, "--delete", "--group", "new")
        self.assertEqual(lines, ["Deletion of requested consumer groups ('new') was successful."])
        self.assertIn(
            "GroupIdNotFoundException", self.run_(self.TOOL, "--delete", "--group", "new").output
        )

    def test_ourExport(self) -> None:
        """
        Kafka's tool takes the positions that C{group export} writes, and C{group import} those that
        it writes; C{offset list} prints the lines of Kafka's.
        """
        self.produce("t", RECORD_COUNT)
        self.consume("t", 7)
        place = ("--bootstrap-server", self.broker.bootstrapServers)
        exported = performAtOnce("group", "export", *place).output
        self.assertEqual(exported, b"g,t,0,7\n")
        reset = ("--reset-offsets", "--group", "g")
        lines = self.succeed(
            self.TOOL, *reset, "--topic", "t", "--shift-by", "-3", "--export", "--dry-run"
        )
        outcome = performAtOnce(
            *("group", "import", "-", "--group", "g", "--execute", *place),
            input="".join(f"{line}\n" for line in lines).encode(),
        )
        self.assertEqual((outcome.code, outcome.errors), (0, "set 1 offset\n"))
        self.assertEqual(self.offsets()[0][2], "4")
        file = Path(self.mktemp())
        file.write_bytes(exported)
        self.succeed(self.TOOL, *reset, "--from-file", str(file), "--execute")
        self.assertEqual(self.offsets()[0][2], "7")
        self.assertEqual(self.succeed("GetOffsetShell", "--topic", "t"), ["t:0:20"])
        found = performAtOnce("offset", "list", "--topic", "t", *place)
        self.assertEqual(found.output, b"t:0:20\n")


class VerifiableToolTests(JavaCase):
    """Kafka's own test programs."""

    def events(self, lines: Iterable[str], name: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in lines]
        return [each for each in found if each["name"] == name]

    def test_verifiable(self) -> None:
        """The verifiable consumer gets what the verifiable producer sent; and commits it."""
        self.succeed("TopicCommand", "--create", "--topic", "v", "--partitions", "3")
        count = ("--max-messages", str(RECORD_COUNT))
        server = ("--bootstrap-server", self.broker.bootstrapServers)
        run = self.java.runAlone("VerifiableProducer", *server, "--topic", "v", *count)
        sent = self.events(run.lines, "producer_send_success")
        places = {(each["partition"], each["offset"]): each["value"] for each in sent}
        self.assertEqual(len(places), RECORD_COUNT)
        for group, assignor in (("eager", RANGE), ("cooperative", COOPERATIVE)):
            lines = self.succeed(
                "VerifiableConsumer",
                *("--topic", "v", "--group-id", group, "--assignment-strategy", assignor),
                *(*count, "--verbose"),
            )
            got = self.events(lines, "record_data")
            self.assertEqual(
                {(each["partition"], each["offset"]): each["value"] for each in got}, places
            )
            last = self.events(lines, "offsets_committed")[-1]
            self.assertTrue(last["success"])

    def test_performance(self) -> None:
        """C{kafka-producer-perf-test}, C{kafka-consumer-perf-test} and C{kafka-e2e-latency}."""
        count = ("--num-records", "1000")
        properties = (
            "--command-property",
            f"bootstrap.servers={self.broker.bootstrapServers}",
        )
        run = self.java.run(
            "ProducerPerformance",
            *("--topic", "p", *count, "--record-size", "100", "--throughput", "-1", *properties),
        )
        self.assertRegex(run.output, r"(?m)^1000 records sent, ")
        lines = self.succeed("ConsumerPerformance", "--topic", "p", *count)
        self.assertEqual(lines[-1].split(", ")[4], "1000")
        lines = self.succeed(
            "EndToEndLatency",
            *("--topic", "p", *count, "--producer-acks", "all", "--record-size", "20"),
        )
        self.assertRegex(lines[-1], r"^Percentiles: ")


class SecurityToolTests(JavaCase):
    """The tools over SASL_SSL, at a broker with an authorizer."""

    ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

    def properties(self) -> dict[str, str]:
        self.authority = Authority(self.mktemp())
        return {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "sasl.enabled.mechanisms": ",".join(self.ALL),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{LOGIN}plain.PlainLoginModule required user_admin="admin-secret";'
            ),
            "ssl.keystore.location": self.authority.issue("broker"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
        }

    def login(self, name: str, mechanism: str) -> tuple[str, str]:
        """The arguments with which a tool logs in."""
        module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        file = Path(self.mktemp())
        file.write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\n"
            f"sasl.jaas.config={LOGIN}{module}LoginModule required"
            f' username="{name}" password="{name}-secret";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority.ca}\n",
            encoding="utf-8",
        )
        return "--command-config", str(file)

    def test_scram(self) -> None:
        """C{kafka-configs} makes a user, who logs in with each mechanism until it deletes them."""
        admin = self.login("admin", "PLAIN")
        user = ("--entity-type", "users", "--entity-name", "alice")
        tool = ConfigToolTests.TOOL
        for mechanism in self.ALL[1:]:
            alice = self.login("alice", mechanism)
            add = ("--add-config", f"{mechanism}=[iterations=4096,password=alice-secret]")
            lines = self.succeed(tool, *admin, "--alter", *user, *add)
            self.assertEqual(lines, ["Completed updating config for user alice."])
            self.assertEqual(self.succeed("TopicCommand", *alice, "--list"), [])
            self.succeed(tool, *admin, "--alter", *user, "--delete-config", mechanism)
            run = self.run_("TopicCommand", *alice, "--list")
            self.assertIn("Authentication failed", run.output)

    def test_acls(self) -> None:
        """C{kafka-acls} lets a user produce and consume, lists that, and takes it back."""
        admin = self.login("admin", "PLAIN")
        add = ("--add-config", "SCRAM-SHA-512=[password=alice-secret]")
        user = ("--entity-type", "users", "--entity-name", "alice")
        self.succeed(ConfigToolTests.TOOL, *admin, "--alter", *user, *add)
        self.succeed("TopicCommand", *admin, "--create", "--topic", "t")
        alice = self.login("alice", "SCRAM-SHA-512")
        self.assertIn(
            "Topic 't' does not exist",
            self.run_("TopicCommand", *alice, "--describe", "--topic", "t").output,
        )
        principal = ("--allow-principal", "User:alice")
        self.succeed("AclCommand", *admin, "--add", *principal, "--producer", "--topic", "t")
        lines = self.succeed(
            "AclCommand", *admin, "--add", *principal, "--consumer", "--topic", "t", "--group", "g"
        )
        self.assertIn(
            "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)",
            "".join(lines),
        )
        sent = b"one\ntwo\n"
        self.succeed("ConsoleProducer", *alice, "--topic", "t", standardInput=sent)
        lines = self.succeed(
            "consumer.ConsoleConsumer",
            *(*alice, "--topic", "t", "--group", "g", "--from-beginning", "--max-messages", "2"),
        )
        self.assertEqual(lines[-3:-1], ["one", "two"])
        listed = self.succeed("AclCommand", *admin, "--list", "--topic", "t")
        self.assertEqual(len([line for line in listed if "User:alice" in line]), 4)
        self.succeed("AclCommand", *admin, "--remove", "--force", "--topic", "t")
        self.assertEqual(self.succeed("AclCommand", *admin, "--list", "--topic", "t"), [])
        lines = self.succeed(
            "consumer.ConsoleConsumer",
            *(*alice, "--topic", "t", "--group", "g", "--from-beginning", "--max-messages", "2"),
        )
        self.assertEqual(lines[-1], "Processed a total of 0 messages")


class ClientCase(JavaCase):
    """With the Java client."""

    def settings(self, **settings: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.broker.bootstrapServers,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }

    def producer(self, **settings: str) -> Any:
        """One that ends with the test."""
        serializers = {f"{part}.serializer": f"{BYTES}Serializer" for part in ("key", "value")}
        found = self.java.kafka.clients.producer.KafkaProducer(
            {**serializers, **self.settings(**settings)}
        )
        self.addCleanup(found.close, self.java.jvm.java.time.Duration.ofSeconds(0))
        return found

    def sendAll(self, producer: Any, topic: str, sent: Iterable[Sent]) -> list[int]:
        """Returns the offsets."""
        futures = []
        for each in sent:
            record = self.java.kafka.clients.producer.ProducerRecord(topic, each.key, each.value)
            for name, value in each.headers:
                record.headers().add(name, value)
            futures.append(producer.send(record))
        producer.flush()
        return [each.get().offset() for each in futures]

    def produce_(self, topic: str, sent: Iterable[Sent], **settings: str) -> list[int]:
        """Returns the offsets."""
        producer = self.producer(**settings)
        offsets = self.sendAll(producer, topic, sent)
        producer.close()
        return offsets

    def consumer(self, *topics: str, **settings: str) -> Any:
        """One that ends with the test."""
        deserializers = {
            f"{part}.deserializer": f"{BYTES}Deserializer" for part in ("key", "value")
        }
        given = {"group_id": "g", "auto_offset_reset": "earliest", **settings}
        found = self.java.kafka.clients.consumer.KafkaConsumer(
            {**deserializers, **self.settings(**given)}
        )
        self.addCleanup(found.close)
        found.subscribe(list(topics))
        return found

    def poll(self, consumer: Any) -> list[Sent]:
        """What has come."""
        duration = self.java.jvm.java.time.Duration.ofMillis(POLL_MS)
        return [
            Sent(
                each.key(),
                each.value(),
                tuple((header.key(), header.value()) for header in each.headers().toArray()),
            )
            for each in consumer.poll(duration).iterator()
        ]

    def until(self, step: Callable[[], Any], isDone: Callable[[], bool]) -> None:
        """Do something again and again, until something is so."""
        for _ in range(POLL_COUNT_MAX):
            if isDone():
                return
            step()
        self.assertTrue(isDone(), "polled for too long")

    def consume(self, consumer: Any, count: int) -> list[Sent]:
        """So many records."""
        found: list[Sent] = []
        self.until(lambda: found.extend(self.poll(consumer)), lambda: len(found) >= count)
        return found

    def assigned(self, consumer: Any) -> set[int]:
        return {each.partition() for each in consumer.assignment()}


class TransactionToolTests(ClientCase):
    """C{kafka-transactions}."""

    def rows(self, *arguments: str) -> list[list[str]]:
        """The cells of a table, without its head."""
        server = ("--bootstrap-server", self.broker.bootstrapServers)
        run = self.java.run("TransactionsCommand", *server, *arguments)
        self.assertEqual(run.status, 0, run.output)
        return [line.split() for line in run.lines if line][1:]

    def test_tools(self) -> None:
        """Transactions are listed, described, and aborted, where they hold up a partition."""
        self.succeed("TopicCommand", "--create", "--topic", "t")
        producer = self.producer(transactional_id="x")
        producer.initTransactions()
        producer.beginTransaction()
        self.sendAll(producer, "t", records(1))
        [[name, _, producerId, state]] = self.rows("list")
        self.assertEqual((name, state), ("x", "Ongoing"))
        [row] = self.rows("describe", "--transactional-id", "x")
        self.assertEqual([row[1], row[2], row[4], row[-1]], ["x", producerId, "Ongoing", "t-0"])
        [row] = self.rows("describe-producers", "--topic", "t", "--partition", "0")
        self.assertEqual([row[0], row[-1]], [producerId, "0"])
        place = ("--topic", "t", "--partition", "0", "--start-offset", "0")
        server = ("--bootstrap-server", self.broker.bootstrapServers)
        run = self.java.run("TransactionsCommand", *server, "abort", *place)
        self.assertEqual(run.status, 0, run.output)
        [row] = self.rows("describe-producers", "--topic", "t", "--partition", "0")
        self.assertEqual(row[-1], "None")
        reader = self.consumer("t", isolation_level="read_committed")
        self.produce_("t", records(3)[1:])
        self.assertEqual(self.consume(reader, 2), records(3)[1:])


class JavaClientTests(ClientCase):
    """The Java client."""

    def test_records(self) -> None:
        """Keys, values and headers come back, in order, in every codec."""
        sent = records(RECORD_COUNT)
        for codec in CODECS:
            offsets = self.produce_(codec, sent, compression_type=codec, linger_ms="50")
            self.assertEqual(offsets, list(range(RECORD_COUNT)))
            found = self.consume(self.consumer(codec, group_id=codec), RECORD_COUNT)
            self.assertEqual(found, sent, codec)

    def test_restart(self) -> None:
        """Committed positions survive a restart, and a C{kill -9}, of the broker."""
        for number, end in enumerate((self.broker.stop, self.broker.kill)):
            new = records(20)[10 * number :][:10]
            self.produce_("t", new)
            consumer = self.consumer("t")
            self.assertEqual(self.consume(consumer, 10), new)
            consumer.commitSync()
            consumer.close()
            end()
            self.broker.start()

    def transactional(self, name: str = "transaction") -> Any:
        """A producer that may begin transactions; it ends with the test."""
        made = self.producer(transactional_id=name)
        made.initTransactions()
        return made

    def send(self, producer: Any, topic: str, value: bytes) -> Any:
        record = self.java.kafka.clients.producer.ProducerRecord(topic, None, value)
        return producer.send(record)

    def test_transactions(self) -> None:
        """
        Records and positions of committed transactions count, and no others. The client has an
        epoch for each transaction, and leaves it to the broker to add partitions.
        """
        self.produce_("in", records(40))
        producer = self.transactional()
        for end, isCommit in ((20, False), (20, True), (40, False), (40, True)):
            consumer = self.consumer("in", group_id="work", enable_auto_commit="false")
            producer.beginTransaction()
            for each in self.consume(consumer, 20)[:20]:
                self.send(producer, "out", (each.value or b"") + b"!")
            position = self.java.kafka.clients.consumer.OffsetAndMetadata(end)
            place = self.java.kafka.common.TopicPartition("in", 0)
            producer.sendOffsetsToTransaction({place: position}, consumer.groupMetadata())
            if isCommit:
                producer.commitTransaction()
            else:
                producer.abortTransaction()
            consumer.close()
        reader = self.consumer("out", group_id="r", isolation_level="read_committed")
        found = [each.value for each in self.consume(reader, 40)]
        self.assertEqual(found, [(each.value or b"") + b"!" for each in records(40)])
        lines = self.succeed("TransactionsCommand", "describe", "--transactional-id", "transaction")
        row = lines[1].split()
        # One epoch at the beginning, and one for each transaction.
        self.assertEqual(row[3:5], ["4", "CompleteCommit"])

    def test_fencing(self) -> None:
        """A second producer with the same id ends what the first has begun, and fences it."""
        first = self.transactional()
        first.beginTransaction()
        self.send(first, "t", b"first").get()
        lines = self.succeed("TransactionsCommand", "list")
        self.assertEqual(lines[1].split()[::3], ["transaction", "Ongoing"])
        second = self.transactional()
        second.beginTransaction()
        self.send(second, "t", b"second")
        second.commitTransaction()
        with self.assertRaises(Py4JJavaError) as raised:
            self.send(first, "t", b"late").get()
            first.commitTransaction()
        self.assertRegex(
            str(raised.exception.java_exception), "ProducerFenced|InvalidProducerEpoch"
        )
        reader = self.consumer("t", isolation_level="read_committed")
        self.assertEqual([each.value for each in self.consume(reader, 1)], [b"second"])
        lines = self.succeed(
            "TransactionsCommand", "describe-producers", "--topic", "t", "--partition", "0"
        )
        self.assertEqual(lines[1].split()[-1], "None")
        self.assertEqual(
            len(self.succeed("TransactionsCommand", "find-hanging", "--broker-id", "1")), 1
        )

    def test_exactlyOnce(self) -> None:
        """
        From topic to topic, with the positions in the transactions, nothing is missed or doubled,
        though one transaction is aborted, one left open by a producer that a new one replaces, and
        the broker is killed.
        """
        sent = records(RECORD_COUNT)
        self.produce_("source", sent)
        self.succeed("TopicCommand", "--create", "--topic", "target")
        position = self.java.kafka.common.TopicPartition("source", 0)
        got: list[Sent] = []
        producers = []
        for end in ("abort", "commit", "open", "kill"):
            if end in ("abort", "kill"):
                producers.append(self.producer(transactional_id="x"))
                producers[-1].initTransactions()
            producer = producers[-1]
            consumer = self.consumer("source", enable_auto_commit="false")
            taken = self.consume(consumer, RECORD_COUNT // 2)[: RECORD_COUNT // 2]
            producer.beginTransaction()
            self.sendAll(producer, "target", taken)
            next_ = len(got) + len(taken)
            offsets = {position: self.java.kafka.clients.consumer.OffsetAndMetadata(next_)}
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata())
            consumer.close()
            if end == "abort":
                producer.abortTransaction()
            elif end == "commit":
                producer.commitTransaction()
                got += taken
            elif end == "kill":
                self.broker.kill()
                self.broker.start()
                producer.commitTransaction()
                got += taken
        self.assertEqual(got, sent)
        reader = self.consumer("target", group_id="reader", isolation_level="read_committed")
        self.assertEqual(self.consume(reader, RECORD_COUNT), sent)
        fenced = self.assertRaises(Py4JJavaError, producers[0].commitTransaction)
        self.assertIn("Fenced", str(fenced))

    def checkRebalance(self, **settings: str) -> None:
        self.succeed("TopicCommand", "--create", "--topic", "t", "--partitions", "2")
        first = self.consumer("t", **settings)
        self.until(lambda: self.poll(first), lambda: self.assigned(first) == {0, 1})
        second = self.consumer("t", **settings)

        def step() -> None:
            self.poll(first)
            self.poll(second)

        self.until(step, lambda: len(self.assigned(first)) == len(self.assigned(second)) == 1)
        self.assertEqual(self.assigned(first) | self.assigned(second), {0, 1})
        second.close()
        self.until(lambda: self.poll(first), lambda: self.assigned(first) == {0, 1})

    def test_eagerRebalance(self) -> None:
        """A second member gets one of two partitions; when it leaves, the first has both."""
        self.checkRebalance(partition_assignment_strategy=RANGE)

    def test_cooperativeRebalance(self) -> None:
        """Likewise, where members keep what they need not give away."""
        self.checkRebalance(partition_assignment_strategy=COOPERATIVE)

    def test_serverSideRebalance(self) -> None:
        """Likewise, where the coordinator assigns (KIP-848)."""
        self.checkRebalance(group_protocol="consumer")
        lines = self.succeed("GroupsCommand", "--list")
        self.assertEqual(lines[1].split(), ["g", "Consumer", "consumer"])
