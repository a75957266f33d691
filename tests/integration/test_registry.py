"""
The registry as people run it: C{twistd pylogbroker-registry} as a process over a real broker, asked
by the clients that the world has.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import count
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import RegistryRefusalError
from pylogbroker.schemas.avro import AvroDecoder, AvroEncoder, schemaIdOf
from pylogbroker.syncclient.registryclient import RegistryClient
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.brokerprocess import BrokerProcess, until
from tests.integration.registryprocess import RegistryProcess
from tests.schemas.kafka.goldenrecords import goldenRecords

CLICK = json.dumps({
    "type": "record", "name": "Click", "namespace": "web",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "page", "type": ["null", "string"], "default": None},
    ],
})  # fmt: skip
WIDER = json.dumps(
    {
        **json.loads(CLICK),
        "fields": [*json.loads(CLICK)["fields"], {"name": "ms", "type": "int", "default": 0}],
    }
)
BROKEN_RULE = json.dumps(
    {**json.loads(CLICK), "fields": [*json.loads(CLICK)["fields"], {"name": "ms", "type": "int"}]}
)
HOSTILE = "a/b?c#d%00 <script>&\"'\\../ü💥"


_shared: list[BrokerProcess] = []
_numbers = count()


def sharedBroker() -> BrokerProcess:
    """One for all tests that do nothing to it; it goes with the process of the tests."""
    if not _shared:
        folder = tempfile.mkdtemp()
        broker = BrokerProcess(f"{folder}/log")
        # Not when the reactor shuts down: a worker of trial lets it do so after each test.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(broker.kill)
        _shared.append(broker.start())
    return _shared[0]


class RegistryCase(SynchronousTestCase):
    """A broker, and a registry with a topic of its own."""

    def setUp(self) -> None:
        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        self.topic = f"_schemas{next(_numbers)}"
        self.broker = self.startBroker()
        self.registry = self.startRegistry("one")

    def startBroker(self) -> BrokerProcess:
        return sharedBroker()

    def startRegistry(self, name: str, **properties: str) -> RegistryProcess:
        return self.makeRegistry(name, **properties).start()

    def makeRegistry(self, name: str, **properties: str) -> RegistryProcess:
        registry = RegistryProcess(
            f"{self.folder}/{name}", self.broker.port, **{"topic": self.topic, **properties}
        )
        self.addCleanup(registry.kill)
        return registry

    def confluent(self) -> SchemaRegistryClient:
        return SchemaRegistryClient({"url": self.registry.url})


class ConfluentTests(RegistryCase):
    """Confluent's client."""

    def refused(self, code: int, act: Any, *arguments: Any) -> str:
        error = self.assertRaises(SchemaRegistryError, act, *arguments)
        self.assertEqual(error.error_code, code, error)
        return str(error)

    def test_registerAndFetch(self) -> None:
        """
        It registers, fetches by id and by version, looks up, and lists; the same schema again is
        the same id, under other subjects, too.
        """
        client = self.confluent()
        first = client.register_schema("clicks-value", Schema(CLICK, "AVRO"))
        second = client.register_schema("clicks-value", Schema(WIDER, "AVRO"))
        self.assertEqual((first, second), (1, 2))
        self.assertEqual(
            self.confluent().register_schema(
                "clicks-value", Schema(json.dumps(json.loads(CLICK), indent=4), "AVRO")
            ),
            1,
        )
        self.assertEqual(client.register_schema(HOSTILE, Schema(CLICK, "AVRO")), 1)
        self.assertEqual(
            json.loads(str(self.confluent().get_schema(2).schema_str)), json.loads(WIDER)
        )
        latest = client.get_latest_version("clicks-value")
        self.assertEqual(
            (latest.schema_id, latest.version, json.loads(str(latest.schema.schema_str))),
            (2, 2, json.loads(WIDER)),
        )
        self.assertEqual(client.get_version("clicks-value", 1).schema_id, 1)
        found = client.lookup_schema("clicks-value", Schema(CLICK, "AVRO"))
        self.assertEqual((found.schema_id, found.version), (1, 1))
        self.assertEqual(sorted(client.get_subjects()), sorted(["clicks-value", HOSTILE]))
        self.assertEqual(client.get_versions("clicks-value"), [1, 2])
        self.assertEqual(client.get_subjects_by_schema_id(1), sorted(["clicks-value", HOSTILE]))
        self.assertEqual(
            [(each.subject, each.version) for each in client.get_schema_versions(2)],
            [("clicks-value", 2)],
        )
        self.assertEqual(client.get_schema_types(), ["AVRO"])
        self.assertEqual(client.get_global_mode(), "READWRITE")

    def test_compatibility(self) -> None:
        """
        It checks compatibility, is refused with 409, and sets, reads and deletes the rule, for a
        subject and for all.
        """
        client = self.confluent()
        client.register_schema("s", Schema(CLICK, "AVRO"))
        self.assertTrue(client.test_compatibility("s", Schema(WIDER, "AVRO")))
        self.assertFalse(client.test_compatibility("s", Schema(BROKEN_RULE, "AVRO"), verbose=True))
        self.assertFalse(client.test_compatibility_all_versions("s", Schema(BROKEN_RULE, "AVRO")))
        self.assertIn(
            "reader_field_missing_default_value",
            self.refused(409, client.register_schema, "s", Schema(BROKEN_RULE, "AVRO")),
        )
        self.assertEqual(client.get_compatibility(), "BACKWARD")
        self.refused(40408, client.get_compatibility, "s")
        answer: Any = client.set_compatibility("s", "NONE")
        self.assertEqual(answer["compatibility"], "NONE")
        self.assertEqual(client.get_compatibility("s"), "NONE")
        self.assertEqual(client.register_schema("s", Schema(BROKEN_RULE, "AVRO")), 2)
        client.delete_config("s")
        self.refused(40408, client.get_compatibility, "s")
        client.set_compatibility(level="FULL_TRANSITIVE")
        self.assertEqual(client.get_compatibility(), "FULL_TRANSITIVE")
        self.refused(42203, client.set_compatibility, "s", "SIDEWAYS")

    def test_lists(self) -> None:
        """
        It turns the pages of lists, and asks for what was deleted alone, or for one subject of a
        schema.
        """
        client = self.confluent()
        for name in "abc":
            client.register_schema(name, Schema(CLICK, "AVRO"))
        client.register_schema("a", Schema(WIDER, "AVRO"))
        self.assertEqual(
            [client.get_subjects(offset=number, limit=1) for number in range(4)],
            [["a"], ["b"], ["c"], []],
        )
        client.delete_subject("b")
        client.delete_version("a", 1)
        self.assertEqual(
            (
                client.get_subjects(deleted_only=True),
                client.get_versions("a", deleted_only=True),
                client.get_versions("a"),
            ),
            (["b"], [1], [2]),
        )
        self.assertEqual(
            (
                client.get_subjects_by_schema_id(1),
                client.get_subjects_by_schema_id(1, subject_name="a", deleted=True),
            ),
            (["c"], ["a"]),
        )
        self.assertEqual(
            [
                (each.subject, each.version)
                for each in client.get_schema_versions(1, deleted=True, limit=2)
            ],
            [("a", 1), ("b", 1)],
        )

    def test_flows(self) -> None:
        """
        Its serializer registers, looks up, takes the latest, and normalizes; all payloads have the
        ids that they should. It checks before it registers.
        """
        client = self.confluent()
        where = SerializationContext("clicks", MessageField.VALUE)
        value = {"user": "u", "at": 0, "page": None, "ms": 1}
        self.assertTrue(client.test_compatibility("clicks-value", Schema(WIDER, "AVRO")))
        for number, (schema, settings) in enumerate(
            [
                (CLICK, {"normalize.schemas": True}),
                (CLICK, {"auto.register.schemas": False}),
                (WIDER, {}),
                (CLICK, {"auto.register.schemas": False, "use.latest.version": True}),
            ]
        ):
            payload = AvroSerializer(self.confluent(), schema, conf=settings)(value, where)
            self.assertEqual(schemaIdOf(payload), 1 if number < 2 else 2)
            self.assertEqual(AvroDeserializer(self.confluent(), WIDER)(payload, where)["user"], "u")
        found = self.confluent().register_schema_full_response(
            "clicks-value", Schema(CLICK, "AVRO")
        )
        self.assertEqual((found.schema_id, found.subject), (1, "clicks-value"))

    def test_notTaken(self) -> None:
        """
        Rules that its serializers would carry out are refused, not lost; so are settings that
        nobody would heed, and what it may ask for and is not here.
        """
        client = self.confluent()
        rule = Rule(
            "encrypt",
            None,
            RuleKind.TRANSFORM,
            RuleMode.WRITEREAD,
            "ENCRYPT",
            ["PII"],
            None,
            None,
            None,
            None,
            False,
        )
        rules = RuleSet(migration_rules=None, domain_rules=[rule])
        self.assertIn(
            "ruleSet",
            self.refused(42201, client.register_schema, "s", Schema(CLICK, "AVRO", rule_set=rules)),
        )
        self.refused(
            42205,
            client.set_config,
            "s",
            ServerConfig(compatibility=ConfigCompatibilityLevel.FULL, override_rule_set=rules),
        )
        self.refused(404, client.get_schema_by_guid, "6f1f8c2e-4a0b-4d5e-9b1a-0123456789ab")
        self.refused(404, client.get_latest_with_metadata, "s", {"owner": "anna"})
        self.refused(40409, client.delete_mode, "s")
        answer: Any = client.set_config(
            "s", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL)
        )
        self.assertEqual(
            (answer, client.get_compatibility("s")), ({"compatibility": "FULL"}, "FULL")
        )

    def test_delete(self) -> None:
        """It deletes versions and subjects, in two steps; ids stay, since data refers to them."""
        client = self.confluent()
        client.register_schema("s", Schema(CLICK, "AVRO"))
        client.register_schema("s", Schema(WIDER, "AVRO"))
        self.refused(40407, client.delete_version, "s", 1, True)
        self.assertEqual(client.delete_version("s", 1), 1)
        self.assertEqual(client.get_versions("s"), [2])
        self.refused(40406, client.delete_version, "s", 1)
        self.assertEqual(client.delete_version("s", 1, True), 1)
        self.assertEqual(client.delete_subject("s"), [2])
        self.refused(40401, client.get_versions, "s")
        self.assertEqual(client.get_subjects(deleted=True), ["s"])
        self.refused(40404, client.delete_subject, "s")
        self.assertEqual(client.get_subjects(), [])
        self.assertEqual(
            json.loads(str(self.confluent().get_schema(1).schema_str)), json.loads(CLICK)
        )

    def test_errors(self) -> None:
        """What is not there, and what is no schema, has the code that clients know."""
        client = self.confluent()
        self.refused(40403, client.get_schema, 77)
        self.refused(40401, client.get_latest_version, "nothing")
        self.refused(42201, client.register_schema, "s", Schema('{"type": "nothing"}', "AVRO"))
        self.refused(42201, client.register_schema, "s", Schema("message A {}", "PROTOBUF"))
        client.register_schema("s", Schema(CLICK, "AVRO"))
        self.refused(40402, client.get_version, "s", 9)
        self.refused(42202, client.get_version, "s", 0)
        self.refused(40403, client.lookup_schema, "s", Schema(WIDER, "AVRO"))

    def test_theyEncodeWeDecode(self) -> None:
        """
        What their serializer makes, our decoder reads, through a topic of ours; an id that it has
        registered is known to our client.
        """
        serializer = AvroSerializer(self.confluent(), CLICK)
        where = SerializationContext("clicks", MessageField.VALUE)
        values = [
            {"user": f"u{number}", "at": number * 1000, "page": None if number % 3 else "/ü"}
            for number in range(100)
        ]
        with SyncProducer("127.0.0.1", self.broker.port) as producer:
            producer.send(self.topic + "clicks", 0, [serializer(value, where) for value in values])
        with SimpleConsumer("127.0.0.1", self.broker.port) as consumer:
            until(
                lambda: len(consumer.fetch(self.topic + "clicks", 0, 0, 1 << 20).data) > 0,
                "the messages are visible",
            )
            payloads = [
                payload
                for payload, _ in consumer.fetch(self.topic + "clicks", 0, 0, 1 << 20).payloads()
            ]
        decoder = AvroDecoder(WIDER, self.registry.registryClient().schema)
        found = [decoder.decode(payload) for payload in payloads]
        self.assertEqual(
            [
                (each["user"], int(each["at"].timestamp() * 1000), each["page"], each["ms"])
                for each in found
            ],
            [(each["user"], each["at"], each["page"], 0) for each in values],
        )

    def test_weEncodeTheyDecode(self) -> None:
        """What our encoder makes, their deserializer reads."""
        client = self.registry.registryClient()
        encoder = AvroEncoder(client.register("clicks-value", CLICK), CLICK)
        deserializer = AvroDeserializer(self.confluent())
        where = SerializationContext("clicks", MessageField.VALUE)
        for page in (None, "/a"):
            found = deserializer(
                encoder.encode({"user": "u", "at": 1_700_000_000_000, "page": page}), where
            )
            self.assertEqual(
                (found["user"], found["page"], found["at"].timestamp()),
                ("u", page, 1_700_000_000.0),
            )


class LogTests(RegistryCase):
    """The topic is the truth."""

    def test_restart(self) -> None:
        """
        A registry that is killed and started again knows what it knew: ids, versions, rules,
        deletions. So does a second one.
        """
        client = self.registry.registryClient()
        for number in range(20):
            client.register(
                f"s{number % 10}",
                json.dumps({"type": "fixed", "name": f"F{number % 10}", "size": 5}),
            )
        client.register(
            "s0",
            json.dumps({"type": "fixed", "name": "F0", "size": 5, "doc": "the same, explained"}),
        )
        confluent = self.confluent()
        confluent.set_compatibility("s1", "NONE")
        confluent.delete_version("s2", 1)
        before = self.snapshot(self.registry)
        self.registry.kill()
        self.registry.start()
        self.assertEqual(self.snapshot(self.registry), before)
        self.assertEqual(self.snapshot(self.startRegistry("two")), before)

    def snapshot(self, registry: RegistryProcess) -> dict[str, Any]:
        client = SchemaRegistryClient({"url": registry.url})
        found: dict[str, Any] = {
            "level": client.get_compatibility(),
            "all": client.get_subjects(deleted=True),
        }
        for subject in client.get_subjects():
            versions = [
                client.get_version(subject, version) for version in client.get_versions(subject)
            ]
            found[subject] = [
                (each.version, each.schema_id, each.schema.schema_str) for each in versions
            ]
        return found

    def test_twoAgree(self) -> None:
        """
        Two registries on one topic, asked for the same and for different things at once, give every
        schema one id, and every subject one history.
        """
        registries = [self.registry, self.startRegistry("two")]
        schemas = [
            json.dumps(
                {
                    "type": "record",
                    "name": "R",
                    "fields": [{"name": f"f{number}", "type": "int", "default": 0}],
                }
            )
            for number in range(12)
        ]

        def register(task: int) -> tuple[str, str, int]:
            subject, text = f"s{task % 3}", schemas[task % 12]
            return (
                subject,
                text,
                RegistryClient(registries[task // 12 % 2].url).register(subject, text),
            )

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(register, range(72)))
        ids: dict[str, set[int]] = {}
        for _subject, text, schemaId in answers:
            ids.setdefault(text, set()).add(schemaId)
        self.assertEqual({len(found) for found in ids.values()}, {1})
        self.assertEqual(
            {schemaId for found in ids.values() for schemaId in found}, set(range(1, 13))
        )
        for each in registries:
            client = RegistryClient(each.url)
            for subject, text, schemaId in answers:
                self.assertEqual(json.loads(client.schema(schemaId)), json.loads(text))
                self.assertIn(client.find(subject, text).version, range(1, 5))
        self.assertEqual(self.snapshot(registries[0]), self.snapshot(registries[1]))

    def test_foreignTopic(self) -> None:
        """A topic that holds something else is refused at the start."""
        with SyncProducer("127.0.0.1", self.broker.port) as producer:
            producer.send("foreign", 0, [b"a click"])
        registry = self.makeRegistry("foreign", topic="foreign")
        registry.launch()
        self.assertEqual(registry.wait(), 1)
        self.assertIn("does not begin with a registry's first record", registry.log)

    def test_unreadableEntries(self) -> None:
        """Entries that cannot be read are skipped, by all alike, and logged with their offsets."""
        client = self.registry.registryClient()
        client.register("before", CLICK)
        with SyncProducer("127.0.0.1", self.broker.port) as producer:
            wrong = (
                b'{"registry":1,"request":"x","change":"explode"}',
                b'{"registry":1,"request":"y","change":"register","subject":5}',
            )
            producer.send(self.topic, 0, [b"rubbish", *wrong])
        client.register("behind", WIDER)
        until(
            lambda: (
                len(
                    [line for line in self.registry.lines if "Skipped the record at offset" in line]
                )
                == 3
            ),
            "three lines in the log",
        )
        self.assertEqual(self.snapshot(self.registry), self.snapshot(self.startRegistry("two")))


class HostileTests(RegistryCase):
    """Whoever can reach the port."""

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.registry.port, timeout=300)
        self.addCleanup(connection.close)
        connection.request(
            method,
            path,
            body,
            {
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] in b"{[" and text else text

    def test_refused(self) -> None:
        """
        Bodies that are no JSON, deep or large, or posted by a page, odd names and hosts: all are
        refused, and it goes on.
        """
        body = json.dumps({"schema": CLICK}).encode()
        for expected, method, path, data, headers in (
            (400, "POST", "/subjects/s/versions", b"{", {}),
            (400, "POST", "/subjects/s/versions", b"[" * 100_000, {}),
            (
                422,
                "POST",
                "/subjects/s/versions",
                json.dumps({"schema": "[" * 100_000}).encode(),
                {},
            ),
            (
                422,
                "POST",
                "/subjects/s/versions",
                json.dumps(
                    {"schema": '{"type":"array","items":' * 500 + '"null"' + "}" * 500}
                ).encode(),
                {},
            ),
            (
                422,
                "POST",
                "/subjects/s/versions",
                json.dumps({"schema": json.dumps("x" * 300_000)}).encode(),
                {},
            ),
            (413, "POST", "/subjects/s/versions", b"x" * (2 << 20), {}),
            (415, "POST", "/subjects/s/versions", body, {"Content_Type": "text/plain"}),
            (422, "POST", "/subjects/a%0Ab/versions", body, {}),
            (400, "POST", "/subjects/%ff/versions", body, {}),
            (421, "GET", "/subjects", None, {"Host": "evil.example"}),
            (404, "GET", "/../etc/passwd", None, {}),
            (405, "PATCH", "/subjects/s", None, {}),
        ):
            with self.subTest(path=path, expected=expected):
                try:
                    status, _answer = self.ask(method, path, data, **headers)
                except (BrokenPipeError, ConnectionResetError):
                    status = 413  # it did not read on
                self.assertEqual(status, expected)
        self.assertEqual(self.ask("POST", "/subjects/s/versions", body), (200, {"id": 1}))


class BrokerTests(RegistryCase):
    """What happens to the broker."""

    def startBroker(self) -> BrokerProcess:
        broker = BrokerProcess(f"{self.folder}/log", {"log.file.size": "4096"})
        self.addCleanup(broker.kill)
        return broker.start()

    def test_cutLog(self) -> None:
        """
        A topic whose beginning retention has deleted: the registry does not start, says why and
        what to do, and exits with 1.
        """
        client = self.registry.registryClient()
        for number in range(40):
            client.register(f"s{number}", CLICK)
        self.registry.kill()
        self.broker.stop()
        first = sorted(
            name
            for name in os.listdir(f"{self.folder}/log/{self.topic}-0")
            if name.endswith(".kafka")
        )[0]
        os.unlink(f"{self.folder}/log/{self.topic}-0/{first}")
        self.broker = self.startBroker()
        registry = self.makeRegistry("late")
        registry.launch()
        self.assertEqual(registry.wait(), 1)
        self.assertRegex(
            registry.log,
            r"(?m)^pylogbroker: _schemas\d+ begins at \d+, not at 0: the broker's retention has"
            r" deleted schemas",
        )

    def test_brokerAway(self) -> None:
        """
        While the broker is away questions are answered, changes are refused in bounded time and say
        why; then it goes on.
        """
        self.registry = self.startRegistry("hasty", timeout_ms="2000")
        client = self.registry.registryClient()
        client.register("s", CLICK)
        self.broker.kill()
        self.assertEqual(json.loads(RegistryClient(self.registry.url).schema(1)), json.loads(CLICK))
        error = self.assertRaises(RegistryRefusalError, client.register, "t", WIDER)
        self.assertEqual(error.status, 500)
        self.assertIn("was not read back within 2000 ms", str(error))


class KafkaTests(SynchronousTestCase):
    """Two registries on a topic of today's Kafka, which Confluent's registry had before."""

    def setUp(self) -> None:
        self.broker = BackgroundBroker({"group.min.session.timeout.ms": "1000"})
        self.broker.start()
        self.addCleanup(self.broker.stop)
        self.access: dict[str, Any] = {"bootstrap.servers": self.broker.bootstrapServers}

    def startRegistry(self, name: str) -> RegistryProcess:
        folder = os.path.abspath(self.mktemp())
        registry = RegistryProcess(
            f"{folder}/{name}",
            0,
            bootstrap_servers=self.broker.bootstrapServers,
            kafkagroup_session_timeout_ms="6000",
            kafkagroup_heartbeat_interval_ms="200",
        )
        self.addCleanup(registry.kill)
        registry.start()
        registry.waitForLine("The registry at http.* leads", 30)
        return registry

    def takeOver(self) -> None:
        """Give the topic the records of Confluent's registry."""
        admin = AdminClient(self.access)
        topic = NewTopic("_schemas", 1, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([topic])["_schemas"].result()
        producer = Producer({**self.access, "linger.ms": 0})
        for key, value in goldenRecords():
            producer.produce("_schemas", value, key, partition=0)
        producer.flush()

    def test_confluentsClients(self) -> None:
        """
        Confluent's client and serializers work with both registries, on the topic that Confluent's
        registry wrote; when the one that leads is killed, the other one goes on with its ids.
        """
        self.takeOver()
        registries = {each.url: each for each in map(self.startRegistry, ("one", "two"))}
        clients = {url: SchemaRegistryClient({"url": url}) for url in registries}
        last = list(registries.values())[1]
        leader = last.waitForLine("The registry at (http.*?) leads", 30).group(1)
        [other] = set(registries) - {leader}
        client = clients[other]
        self.assertEqual(client.get_latest_version("clicks-value").schema_id, 2)
        self.assertEqual(client.get_schema(5).schema_type, "PROTOBUF")
        self.assertEqual(client.get_compatibility("clicks-value"), "BACKWARD_TRANSITIVE")
        self.assertEqual(client.register_schema("new-value", Schema(CLICK, "AVRO")), 101)
        self.assertEqual(client.register_schema("new-value", Schema(WIDER, "AVRO")), 102)
        self.assertFalse(client.test_compatibility("new-value", Schema('"int"', "AVRO")))
        with self.assertRaises(SchemaRegistryError) as caught:
            client.register_schema("frozen-value", Schema(CLICK, "AVRO"))
        self.assertEqual(caught.exception.error_code, 42205)
        self.assertEqual(client.delete_version("new-value", 1), 1)
        self.assertEqual(clients[leader].get_versions("new-value"), [2])

        where = SerializationContext("new", MessageField.VALUE)
        serializer = AvroSerializer(client, WIDER)
        producer = Producer(self.access)
        values = [{"user": f"u{n}", "at": n, "page": None, "ms": n} for n in range(50)]
        for value in values:
            producer.produce("new", serializer(value, where))
        producer.flush()
        del producer  # or it logs that the broker is away
        consumer = Consumer({**self.access, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["new"])
        deserializer = AvroDeserializer(clients[leader])
        found: list[Any] = []
        while len(found) < len(values):
            for message in consumer.consume(100, 1):
                self.assertIsNone(message.error())
                found.append(deserializer(message.value(), where))
        consumer.close()
        self.assertEqual([each["user"] for each in found], [each["user"] for each in values])

        registries[leader].kill()

        def isTakenOver() -> bool:
            try:
                return client.register_schema("late", Schema('"int"', "AVRO")) == 103
            except SchemaRegistryError:
                return False

        until(isTakenOver, "the other registry leads")
        self.assertEqual(client.delete_subject("new-value"), [2])
        again = SchemaRegistryClient({"url": self.startRegistry("three").url})
        self.assertEqual(again.get_latest_version("late").schema_id, 103)
        self.assertNotIn("new-value", again.get_subjects())
