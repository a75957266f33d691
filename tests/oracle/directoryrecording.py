"""
Records log directories of Apache Kafka, and what it answered before it stopped:
C{python -m tests.oracle.directoryrecording} runs it twice, does L{fill}, and stops it once in
order, once by C{kill -9}. L{picture} is also what tests compare.
"""

from __future__ import annotations

import json
import signal
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.apachebroker import apacheProcess, fetchKafka
from tests.oracle.conversation import Conversation
from tests.oracle.directories import FOLDER, NAMES, Picture
from tests.oracle.steps import SETTINGS, Ask, Scenario, Setting, Steps

BASE_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUP = "readers"
FOREVER = {"retention.ms": "-1"}
_WAIT_SECONDS_MAX = 60

BROKER_SETTINGS = {
    **dict(SETTINGS),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "log.index.size.max.bytes": "4096",
}


# -- what is done


class Filler:
    """Does things to a broker, of which its directory tells later."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address})

    def producer(self, **settings: Any) -> Producer:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.address, "linger.ms": 50, **named})

    def create(self, name: str, count: int = 1, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(name, count, 1, config={**FOREVER, **named})
        self.admin.create_topics([topic])[name].result()

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        key: Callable[[int], bytes | None] = lambda number: None,
        atMs: Callable[[int], int] = lambda number: BASE_MS + number,
        **settings: Any,
    ) -> None:
        producer = self.producer(**settings)
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                key(number),
                partition=0,
                timestamp=atMs(number),
                headers=[("number", b"%d" % number), ("none", None)] if number % 3 == 0 else None,
            )
        producer.flush()

    def topics(self) -> None:
        self.create("plain", 2)
        self.send("plain", [b"value %d" % number for number in range(20)])
        self.create("codecs")
        for codec in CODECS:
            values = [codec.encode() * (number + 1) for number in range(10)]
            self.send("codecs", values, compression_type=codec)
        self.create("lz4", compression_type="lz4", message_timestamp_type="LogAppendTime")
        self.send("lz4", [b"x" * 100] * 10, compression_type="gzip")
        self.create("rolled", segment_ms="1000")
        self.send(
            "rolled", [b"r%d" % n for n in range(8)], atMs=lambda n: BASE_MS + n * 2000,
            batch_num_messages=1,
        )  # fmt: skip
        self.create("grown", 1)
        self.send("grown", [b"before"])
        self.admin.create_partitions([NewPartitions("grown", 3)])["grown"].result()
        self.create("gone", 2)
        self.send("gone", [b"lost"])
        self.admin.delete_topics(["gone"])["gone"].result()
        self.create("again")
        self.admin.delete_topics(["again"])["again"].result()
        time.sleep(1)
        self.create("again")
        self.send("again", [b"second"])
        self.create("deleted", segment_ms="1000")
        self.send(
            "deleted", [b"d%d" % n for n in range(6)], atMs=lambda n: BASE_MS + n * 2000,
            batch_num_messages=1,
        )  # fmt: skip
        self.admin.delete_records([TopicPartition("deleted", 0, 3)])
        self.create("empty")

    def compacted(self) -> None:
        self.create(
            "compacted",
            cleanup_policy="compact",
            segment_ms="1000",
            min_cleanable_dirty_ratio="0.01",
        )
        self.send(
            "compacted",
            [None if n == 7 else b"c%d" % n for n in range(12)],
            key=lambda n: b"key %d" % (n % 4),
            atMs=lambda n: BASE_MS + n * 2000,
            batch_num_messages=1,
        )
        time.sleep(3)

    def settings(self) -> None:
        def alter(kind: ResourceType, name: str, *entries: tuple[str, str | None]) -> None:
            changes = [
                ConfigEntry(
                    key,
                    value or "",
                    incremental_operation=AlterConfigOpType.SET
                    if value is not None
                    else AlterConfigOpType.DELETE,
                )
                for key, value in entries
            ]
            resource = ConfigResource(kind, name, incremental_configs=changes)
            self.admin.incremental_alter_configs([resource])[resource].result()

        alter(ResourceType.TOPIC, "plain", ("segment.ms", "500000"), ("max.message.bytes", "5000"))
        alter(ResourceType.TOPIC, "plain", ("max.message.bytes", None))
        alter(ResourceType.BROKER, "1", ("log.cleaner.min.cleanable.ratio", "0.3"))
        self.ask(self.brokerDefaults)

    def security(self) -> None:
        bindings = [
            AclBinding(
                ResourceType.TOPIC, "pl", ResourcePatternType.PREFIXED, "User:alice", "*",
                AclOperation.READ, AclPermissionType.ALLOW,
            ),
            AclBinding(
                ResourceType.GROUP, "*", ResourcePatternType.LITERAL, "User:*", "127.0.0.1",
                AclOperation.ALL, AclPermissionType.DENY,
            ),
        ]  # fmt: skip
        for waiting in self.admin.create_acls(bindings).values():
            waiting.result()
        for user, mechanism in (
            ("alice", ScramMechanism.SCRAM_SHA_256),
            ("alice", ScramMechanism.SCRAM_SHA_512),
            ("bob", ScramMechanism.SCRAM_SHA_512),
        ):
            change = UserScramCredentialUpsertion(
                user, ScramCredentialInfo(mechanism, 4096), b"secret of " + user.encode()
            )
            self.admin.alter_user_scram_credentials([change])[user].result()
        self.ask(self.quotas)

    def ask(self, run: Callable[[Setting], Steps]) -> None:
        host, _, port = self.address.rpartition(":")
        for line in Conversation(host, int(port)).run(Scenario("", run)):
            if not isinstance(line.answer, dict):
                raise AssertionError(line.answer)

    @staticmethod
    def brokerDefaults(_setting: Setting) -> Steps:
        """Settings of all brokers, which librdkafka cannot name."""
        cls = messages.IncrementalAlterConfigsRequest
        resource = cls.AlterConfigsResource
        config = cls.AlterableConfig(name="message.max.bytes", configOperation=0, value="900000")
        request = cls(
            resources=[resource(resourceType=4, resourceName="", configs=[config])],
            validateOnly=False,
        )
        yield Ask("settings", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)

    @staticmethod
    def quotas(_setting: Setting) -> Steps:
        cls = messages.AlterClientQuotasRequest
        entry = cls.EntryData
        request = cls(
            entries=[
                entry(
                    entity=[cls.EntityData(entityType=kind, entityName=name)],
                    ops=[cls.OpData(key=key, value=value, remove=False)],
                )
                for kind, name, key, value in (
                    ("user", "alice", "producer_byte_rate", 1000.5),
                    ("client-id", None, "consumer_byte_rate", 2e6),
                    ("user", "bob", "request_percentage", 50.0),
                )
            ],
            validateOnly=False,
        )
        yield Ask("quotas", ApiKey.ALTER_CLIENT_QUOTAS, 1, request)

    def transactions(self) -> None:
        self.create("transactions", 2)
        committing = self.producer(transactional_id="committing")
        committing.init_transactions()
        for number in range(3):
            committing.begin_transaction()
            for partition in (0, 1):
                committing.produce(
                    "transactions",
                    b"t%d" % number,
                    partition=partition,
                    timestamp=BASE_MS + number,
                )
            committing.flush()
            if number == 1:
                committing.abort_transaction()
            else:
                committing.commit_transaction()
        self.open = self.producer(transactional_id="open", transaction_timeout_ms=800_000)
        self.open.init_transactions()
        self.open.begin_transaction()
        self.open.produce("transactions", b"open", partition=1, timestamp=BASE_MS + 9)
        self.open.flush()
        self.send("transactions", [b"behind"], enable_idempotence=True)

    def positions(self) -> None:
        for group, topics in ((GROUP, ("plain", "codecs")), ("others", ("rolled",))):
            consumer = self.consumer(group)
            places = [
                TopicPartition(name, 0, 5 + at, metadata=f"at {name}")
                for at, name in enumerate(topics)
            ]
            consumer.commit(offsets=places, asynchronous=False)
            consumer.close()
        consumer = self.consumer("gone")
        consumer.commit(offsets=[TopicPartition("plain", 0, 1)], asynchronous=False)
        consumer.close()
        self.admin.delete_consumer_groups(["gone"])["gone"].result()
        member = self.consumer("members")
        member.subscribe(["plain"])
        while not member.assignment():
            member.poll(0.2)
        member.commit(offsets=[TopicPartition("plain", 1, 0)], asynchronous=False)
        member.close()

    def consumer(self, group: str, **settings: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "enable.auto.commit": False,
                **settings,
            }
        )


def fill(address: str) -> None:
    """Do to an empty broker what a recorded directory is to hold."""
    filler = Filler(address)
    filler.topics()
    filler.compacted()
    filler.settings()
    filler.security()
    filler.positions()
    filler.transactions()
    time.sleep(3)


# -- what is seen


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def readRecords(
    address: str, places: Iterable[tuple[str, int]], isolation: str
) -> dict[str, list[Any]]:
    """
    All records of some partitions: offset, type and value of the timestamp, key, value, headers.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "log_level": 3,
        }
    )
    assigned = [TopicPartition(topic, partition, 0) for topic, partition in places]
    consumer.assign(assigned)
    found: dict[str, list[Any]] = {f"{each.topic}-{each.partition}": [] for each in assigned}
    ended: set[str] = set()
    try:
        while len(ended) < len(found):
            message = consumer.poll(_WAIT_SECONDS_MAX)
            if message is None:
                raise AssertionError(f"{found.keys() - ended} do not end")
            place = f"{message.topic()}-{message.partition()}"
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise AssertionError(str(error))
                ended.add(place)
                continue
            headers: Any = message.headers() or ()
            found[place].append(
                [
                    message.offset(),
                    *message.timestamp(),
                    _text(message.key()),
                    _text(message.value()),
                    [[key, _text(value)] for key, value in headers],
                ]
            )
    finally:
        consumer.close()
    return found


def picture(address: str) -> Picture:
    """What clients see of a broker: topics and their settings, records, marks, positions."""
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_topics(timeout=_WAIT_SECONDS_MAX).topics
    topics = {name: each for name, each in sorted(listed.items()) if not name.startswith("__")}
    places = [(name, index) for name, each in topics.items() for index in each.partitions]
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in topics}
    broker = ConfigResource(ResourceType.BROKER, "1")
    configs = admin.describe_configs([*resources.values(), broker])
    topicSources = (ConfigSource.DYNAMIC_TOPIC_CONFIG,)
    brokerSources = (
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    )

    def changed(resource: ConfigResource, sources: Iterable[ConfigSource]) -> dict[str, str]:
        wanted = {each.value for each in sources}
        entries = configs[resource].result()
        return {name: each.value for name, each in entries.items() if each.source in wanted}

    committed = readRecords(address, places, "read_committed")
    found: Picture = {
        "topics": {
            name: {
                "partitions": len(topic.partitions),
                "configs": changed(resources[name], topicSources),
            }
            for name, topic in topics.items()
        },
        "records": readRecords(address, places, "read_uncommitted"),
        "committed": {place: [each[0] for each in records] for place, records in committed.items()},
        "marks": {},
        "broker": changed(broker, brokerSources),
        "positions": {},
    }
    groups = sorted(each.group_id for each in admin.list_consumer_groups().result().valid)
    for group in groups:
        member = Consumer({"bootstrap.servers": address, "group.id": group})
        positions = member.committed(
            [TopicPartition(*place) for place in places], timeout=_WAIT_SECONDS_MAX
        )
        found["positions"][group] = {
            f"{each.topic}-{each.partition}": [each.offset, each.metadata]
            for each in positions
            if each.offset >= 0
        }
        if not found["marks"]:
            for topic, index in places:
                marks = member.get_watermark_offsets(
                    TopicPartition(topic, index), timeout=_WAIT_SECONDS_MAX
                )
                found["marks"][f"{topic}-{index}"] = list(marks)
        member.close()
    return found


def record(name: str, folder: Path) -> None:
    """Record a directory: C{clean} or C{killed}."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as temporary:
        work = Path(temporary)
        with apacheProcess(fetchKafka(), BROKER_SETTINGS, work) as (process, (host, port)):
            address = f"{host}:{port}"
            fill(address)
            seen = picture(address)
            seen["recordedMs"] = time.time_ns() // 1_000_000
            process.send_signal(signal.SIGTERM if name == "clean" else signal.SIGKILL)
            process.wait()
        text = json.dumps(seen, indent=1, sort_keys=True)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
        with tarfile.open(folder / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(work / "logs", ".")


if __name__ == "__main__":
    for each in NAMES:
        record(each, FOLDER)
