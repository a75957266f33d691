"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pylogbroker.config.topicconfigs import SERVER_CONFIGS
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.pieces import awaitTopic, makeTopic, topic, versionsOf
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario

TOPIC = 2
BROKER = 4
GROUP = 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def _describe(*resources: tuple[int, str, list[str] | None], **fields: Any) -> Any:
    cls = messages.DescribeConfigsRequest
    return cls(
        resources=[
            cls.DescribeConfigsResource(
                resourceType=kind, resourceName=name, configurationKeys=keys
            )
            for kind, name, keys in resources
        ],
        **fields,
    )


def _alter(
    name: str, configs: Iterable[tuple[str, str | None]], kind: int = TOPIC, dry: bool = False
) -> Any:
    cls = messages.AlterConfigsRequest
    made = [cls.AlterableConfig(name=key, value=value) for key, value in configs]
    resource = cls.AlterConfigsResource(resourceType=kind, resourceName=name, configs=made)
    return cls(resources=[resource], validateOnly=dry)


def _increment(
    name: str, configs: Iterable[tuple[str, int, str | None]], kind: int = TOPIC, dry: bool = False
) -> Any:
    cls = messages.IncrementalAlterConfigsRequest
    made = [
        cls.AlterableConfig(name=key, configOperation=operation, value=value)
        for key, operation, value in configs
    ]
    resource = cls.AlterConfigsResource(resourceType=kind, resourceName=name, configs=made)
    return cls(resources=[resource], validateOnly=dry)


def _settled(label: str, name: str, keys: list[str], values: list[str], kind: int = TOPIC) -> Until:
    """What is described of a resource, once it has the values."""

    def done(body: Any) -> bool:
        found = {config.name: config.value for config in body.results[0].configs}
        return [found.get(key) for key in keys] == values

    body = _describe((kind, name, keys), includeSynonyms=True)
    return Until(Ask(label, ApiKey.DESCRIBE_CONFIGS, 4, body), done)


@scenario()
def describeConfigs(setting: Setting) -> Steps:
    """Topics, brokers, unknown resources and keys."""
    key = ApiKey.DESCRIBE_CONFIGS
    yield from makeTopic("described", 1, ("retention.ms", "12345"), ("cleanup.policy", "compact"))
    node = str(setting.nodeId)
    some = ["retention.ms", "cleanup.policy", "segment.bytes"]
    for version in versionsOf(key):
        yield Ask("all of a topic", key, version, _describe((TOPIC, "described", None)))
        for label, asked in (
            ("some of a topic", _describe((TOPIC, "described", some))),
            ("with synonyms", _describe((TOPIC, "described", some), includeSynonyms=True)),
            ("no keys", _describe((TOPIC, "described", []))),
            ("an unknown key", _describe((TOPIC, "described", ["no.such", "retention.ms"]))),
            ("an unknown topic", _describe((TOPIC, "described-none", None))),
            ("an invalid topic", _describe((TOPIC, "a/b", None))),
            ("an empty topic", _describe((TOPIC, "", None))),
            (
                "two resources",
                _describe((TOPIC, "described", some), (TOPIC, "described-none", some)),
            ),
            ("a resource twice", _describe((TOPIC, "described", some), (TOPIC, "described", some))),
            (
                "of the broker",
                _describe(
                    (
                        BROKER,
                        node,
                        [
                            "num.partitions",
                            "node.id",
                            "log.retention.ms",
                            "log.retention.hours",
                            "message.max.bytes",
                        ],
                    ),
                    includeSynonyms=True,
                ),
            ),
            ("of all brokers", _describe((BROKER, "", ["num.partitions", "log.retention.ms"]))),
            ("of another broker", _describe((BROKER, str(setting.nodeId + 7), ["num.partitions"]))),
            ("of a broker that is no number", _describe((BROKER, "abc", ["num.partitions"]))),
            ("type 0", _describe((0, "described", None))),
            ("type 3", _describe((3, "described", None))),
            ("type 99", _describe((99, "described", None))),
            ("nothing", _describe()),
        ):
            yield Ask(label, key, version, asked)
    body = _describe((TOPIC, "described", None), includeSynonyms=True)
    yield Ask("all with synonyms", key, 4, body)
    body = _describe((TOPIC, "described", some), includeDocumentation=True)
    yield Ask("with documentation", key, 4, body)


@scenario()
def alterConfigs(setting: Setting) -> Steps:
    """The form that replaces everything."""
    key = ApiKey.ALTER_CONFIGS
    for version in versionsOf(key):
        name = f"alter-{version}"
        yield from makeTopic(name, 1, ("retention.ms", "12345"))
        dry = _alter(name, [("retention.bytes", "777")], dry=True)
        yield Ask("validate only", key, version, dry)
        yield Ask("one setting", key, version, _alter(name, [("retention.bytes", "777")]))
        yield _settled("then", name, ["retention.bytes", "retention.ms"], ["777", "604800000"])
        for label, asked in (
            ("bad value", _alter(name, [("retention.bytes", "x")])),
            ("null", _alter(name, [("retention.bytes", None)])),
            ("unknown setting", _alter(name, [("no.such", "x")])),
            ("a setting twice", _alter(name, [("retention.ms", "1"), ("retention.ms", "2")])),
            ("unknown topic", _alter("alter-none", [("retention.ms", "1")])),
            ("invalid topic", _alter("a/b", [("retention.ms", "1")])),
            ("empty topic", _alter("", [("retention.ms", "1")])),
            ("unknown type", _alter(name, [("retention.ms", "1")], kind=0)),
            ("type 99", _alter(name, [("retention.ms", "1")], kind=99)),
            ("segments too small", _alter(name, [("segment.bytes", "10")])),
        ):
            yield Ask(label, key, version, asked)
        yield Ask("no settings", key, version, _alter(name, []))
        yield _settled("then none", name, ["retention.bytes"], ["-1"])


@scenario()
def incrementalAlterConfigs(setting: Setting) -> Steps:
    """Set, delete, append, subtract."""
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    for version in versionsOf(key):
        name = f"increment-{version}"
        yield from makeTopic(name, 1, ("retention.ms", "12345"))
        dry = _increment(name, [("retention.ms", SET, "5")], dry=True)
        yield Ask("validate only", key, version, dry)
        yield Ask("set", key, version, _increment(name, [("retention.bytes", SET, "777")]))
        yield _settled("then", name, ["retention.bytes", "retention.ms"], ["777", "12345"])
        yield Ask("append", key, version, _increment(name, [("cleanup.policy", APPEND, "compact")]))
        yield _settled("then", name, ["cleanup.policy"], ["delete,compact"])
        yield Ask(
            "append again", key, version, _increment(name, [("cleanup.policy", APPEND, "compact")])
        )
        yield Ask(
            "subtract", key, version, _increment(name, [("cleanup.policy", SUBTRACT, "delete")])
        )
        yield _settled("then", name, ["cleanup.policy"], ["compact"])
        yield Ask("delete", key, version, _increment(name, [("retention.ms", DELETE, None)]))
        yield _settled("then", name, ["retention.ms"], ["604800000"])
        for label, asked in (
            ("delete what is not set", _increment(name, [("segment.ms", DELETE, None)])),
            ("delete with a value", _increment(name, [("segment.ms", DELETE, "3")])),
            ("delete what is unknown", _increment(name, [("no.such", DELETE, None)])),
            ("set null", _increment(name, [("retention.ms", SET, None)])),
            ("set a bad value", _increment(name, [("retention.ms", SET, "x")])),
            ("set an unknown setting", _increment(name, [("no.such", SET, "x")])),
            ("append to no list", _increment(name, [("retention.ms", APPEND, "1")])),
            ("subtract from no list", _increment(name, [("retention.ms", SUBTRACT, "1")])),
            (
                "subtract what is not there",
                _increment(name, [("cleanup.policy", SUBTRACT, "delete")]),
            ),
            ("subtract all", _increment(name, [("cleanup.policy", SUBTRACT, "compact")])),
            ("operation 4", _increment(name, [("retention.ms", 4, "1")])),
            ("operation -1", _increment(name, [("retention.ms", -1, "1")])),
            (
                "a setting twice",
                _increment(name, [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]),
            ),
            (
                "good and bad",
                _increment(name, [("retention.ms", SET, "1"), ("segment.ms", SET, "x")]),
            ),
            ("unknown topic", _increment("increment-none", [("retention.ms", SET, "1")])),
            ("invalid topic", _increment("a/b", [("retention.ms", SET, "1")])),
            ("empty topic", _increment("", [("retention.ms", SET, "1")])),
            ("type 0", _increment(name, [("retention.ms", SET, "1")], kind=0)),
            ("type 99", _increment(name, [("retention.ms", SET, "1")], kind=99)),
            ("no settings", _increment(name, [])),
            (
                "another broker",
                _increment(
                    str(setting.nodeId + 7), [("log.cleaner.threads", SET, "2")], kind=BROKER
                ),
            ),
            (
                "a broker's static setting",
                _increment(str(setting.nodeId), [("broker.id", SET, "2")], kind=BROKER),
            ),
            (
                "a broker's static setting, deleted",
                _increment(str(setting.nodeId), [("broker.id", DELETE, "")], kind=BROKER),
            ),
            (
                "a broker's unknown setting, deleted",
                _increment("", [("no.such", DELETE, None)], kind=BROKER),
            ),
            (
                "a broker that is no number",
                _increment("abc", [("log.cleaner.threads", SET, "2")], kind=BROKER),
            ),
        ):
            yield Ask(label, key, version, asked)
        twice = _increment(name, [("retention.ms", SET, "1")])
        twice.resources = [*twice.resources, *twice.resources]
        yield Ask("a resource twice", key, version, twice)
        yield Ask("nothing", key, version, messages.IncrementalAlterConfigsRequest())


_GROUP_KEYS = [
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
]


def _group(*configs: tuple[str, int, str | None], name: str = "grouped", dry: bool = False) -> Any:
    return _increment(name, configs, GROUP, dry)


@scenario()
def groupConfigs(setting: Setting) -> Steps:
    """Settings of a group of consumers."""
    describe, alter = ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS
    interval, beat, session = _GROUP_KEYS
    for version in versionsOf(describe):
        for label, asked in (
            ("of a group", _describe((GROUP, "grouped", None), includeSynonyms=True)),
            ("some", _describe((GROUP, "grouped", [session, "no.such"]))),
            ("of no name", _describe((GROUP, "", None))),
        ):
            yield Ask(label, describe, version, asked)
    for version in versionsOf(alter):
        yield Ask("validate only", alter, version, _group((session, SET, "50000"), dry=True))
        made = _group((session, SET, "50000"), (interval, SET, " 7 "))
        yield Ask("set", alter, version, made)
        yield _settled("then", "grouped", _GROUP_KEYS, ["7", "5000", "50000"], GROUP)
        yield Ask("subtract", alter, version, _group((session, SUBTRACT, "50000")))
        for label, key, value in (
            ("the least", session, "45000"),
            ("too short a session", session, "44999"),
            ("the longest", session, "60000"),
            ("too long a session", session, "60001"),
            ("a session of none", session, "0"),
            ("too short a heartbeat", beat, "4999"),
            ("the longest heartbeat", beat, "15000"),
            ("too long a heartbeat", beat, "15001"),
            ("an interval of 0", interval, "0"),
            ("too long an interval", interval, "15001"),
            ("below 0", interval, "-1"),
            ("no number", beat, "x"),
            ("too large a number", beat, "2147483648"),
            ("an unknown setting", "no.such", "1"),
            ("null", beat, None),
        ):
            yield Ask(label, alter, version, _group((key, SET, value)))
        for label, asked in (
            ("a setting twice", _group((beat, SET, "6000"), (beat, SET, "7000"))),
            ("good and bad", _group((beat, SET, "6000"), (session, SET, "x"))),
            ("of no group", _group((beat, SET, "6000"), name="")),
            ("of no group, deleted", _group((beat, DELETE, None), name="")),
            ("delete what is not set", _group((beat, DELETE, None), name="ungrouped")),
            ("delete what is unknown", _group(("no.such", DELETE, None))),
            ("nothing", _group()),
            ("delete", _group(*((key, DELETE, None) for key in _GROUP_KEYS))),
        ):
            yield Ask(label, alter, version, asked)
        values = ["1000", "5000", "45000"]
        yield _settled("then none", "grouped", _GROUP_KEYS, values, GROUP)
    replace = ApiKey.ALTER_CONFIGS
    for version in versionsOf(replace):
        values = ["1000", "5000", "46000"]
        yield Ask("replace", replace, version, _alter("replaced", [(session, "46000")], GROUP))
        yield _settled("then", "replaced", _GROUP_KEYS, values, GROUP)
        yield Ask("an unknown setting", replace, version, _alter("replaced", [("x", "1")], GROUP))
        yield Ask("a wrong value", replace, version, _alter("replaced", [(session, "1")], GROUP))
        yield Ask("replace nothing", replace, version, _alter("replaced", [], GROUP))
        values = ["1000", "5000", "45000"]
        yield _settled("then none", "replaced", _GROUP_KEYS, values, GROUP)
    body = messages.ListConfigResourcesRequest(resourceTypes=[GROUP])
    yield Ask("none", ApiKey.LIST_CONFIG_RESOURCES, 1, body)
    yield Ask("set", alter, 1, _group((session, SET, "50000")))
    yield _settled("then", "grouped", _GROUP_KEYS, ["1000", "5000", "50000"], GROUP)
    yield Ask("one", ApiKey.LIST_CONFIG_RESOURCES, 1, body)


@scenario()
def listConfigResources(setting: Setting) -> Steps:
    """Of each type."""
    key, cls = ApiKey.LIST_CONFIG_RESOURCES, messages.ListConfigResourcesRequest
    yield Ask("version 0", key, 0, cls())
    for kinds in ([4], [8], [16], [32], [0], [99], [4, 8]):
        yield Ask(f"types {kinds}", key, 1, cls(resourceTypes=kinds))


_SERVER_KEYS = sorted(SERVER_CONFIGS)
_OTHER_KEYS = [
    "auto.create.topics.enable",
    "delete.topic.enable",
    "log.retention.hours",
    "log.retention.minutes",
    "log.roll.hours",
    "log.roll.jitter.hours",
    "min.insync.replicas",
    "num.partitions",
]
_STATIC = (
    ("auto.create.topics.enable", "false"),
    ("compression.type", "gzip"),
    ("delete.topic.enable", "false"),
    ("log.cleaner.delete.retention.ms", "86400001"),
    ("log.cleaner.max.compaction.lag.ms", "1000000"),
    ("log.cleaner.min.cleanable.ratio", "0.75"),
    ("log.cleaner.min.compaction.lag.ms", "20"),
    ("log.cleanup.policy", "compact,delete"),
    ("log.flush.interval.messages", "1000"),
    ("log.flush.interval.ms", "5000"),
    ("log.index.interval.bytes", "8192"),
    ("log.index.size.max.bytes", "1048576"),
    ("log.message.timestamp.after.max.ms", "7200000"),
    ("log.message.timestamp.before.max.ms", "86400000"),
    ("log.message.timestamp.type", "LogAppendTime"),
    ("log.retention.bytes", "1000000000"),
    ("log.roll.hours", "24"),
    ("log.roll.jitter.hours", "2"),
    ("log.retention.minutes", "90"),
    ("log.segment.bytes", "5242880"),
    ("message.max.bytes", "500000"),
    ("num.partitions", "3"),
)


def _describedBroker(setting: Setting, name: str, partitions: int) -> Steps:
    """The broker's settings that are defaults of topics, and a topic's, with synonyms."""
    key = ApiKey.DESCRIBE_CONFIGS
    node = str(setting.nodeId)
    body = _describe((BROKER, node, _SERVER_KEYS), includeSynonyms=True)
    yield Ask("defaults of topics", key, 4, body)
    body = _describe((BROKER, node, _OTHER_KEYS), includeSynonyms=True)
    yield Ask("other settings", key, 4, body)
    made = topic(name, -1, -1, configs=[("segment.ms", "123456")])
    yield Ask("creation", ApiKey.CREATE_TOPICS, 7, messages.CreateTopicsRequest(topics=[made]))
    yield from awaitTopic(name, partitions)
    body = _describe((TOPIC, name, None), includeSynonyms=True)
    yield Ask("a topic", key, 4, body)


@scenario()
def brokerConfigs(setting: Setting) -> Steps:
    """A broker with Kafka's defaults."""
    yield from _describedBroker(setting, "broker-configs", 1)


@scenario(*_STATIC)
def staticConfigs(setting: Setting) -> Steps:
    """A broker whose file has defaults for topics."""
    name = "static-configs"
    yield from _describedBroker(setting, name, 3)
    change = [("retention.ms", "12345"), ("segment.ms", None)]
    yield Ask(
        "changed", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1,
        _increment(name, [(key, SET if value else DELETE, value) for key, value in change]),
    )  # fmt: skip
    yield _settled("a changed topic", name, ["retention.ms"], ["12345"])
    metadata = messages.MetadataRequest
    for other in (name, f"{name}-none"):
        body = metadata(
            topics=[metadata.MetadataRequestTopic(name=other)], allowAutoTopicCreation=True
        )
        yield Ask(f"metadata of {other}", ApiKey.METADATA, 9, body)
    for version in (1, 2, 3, 6):
        delete = messages.DeleteTopicsRequest
        topics = [delete.DeleteTopicState(name=name)] if version == 6 else []
        body = delete(topics=topics, topicNames=[name] if version < 6 else [], timeoutMs=5000)
        yield Ask("a topic that may not be deleted", ApiKey.DELETE_TOPICS, version, body)
