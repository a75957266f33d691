"""Showing and changing settings."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.configrequests import (
    CONFIGURED_GROUP_COUNT_MAX,
    BrokerConfig,
    ConfigOperation,
    ConfigRequests,
    ConfigSource,
    ResourceType,
)
from pylogbroker.cluster.metadataimage import ConfigRecord
from pylogbroker.config.topicconfigs import TOPIC_CONFIGS, ConfigType
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.requestbench import RequestBench

DESCRIBE, ALTER = ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS
INCREMENTAL, LIST = ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES
TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
INVALID = ErrorCode.INVALID_REQUEST
SESSION = "consumer.session.timeout.ms"

OWN = {
    "num.partitions": BrokerConfig(ConfigType.INT, "1", "Partitions of new topics.", "3"),
    "broker.id": BrokerConfig(ConfigType.INT, "-1", "The number of the broker."),
    "broker.rack": BrokerConfig(ConfigType.STRING, None, "The rack of the broker."),
}


class ConfigCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.bench = RequestBench()
        self.bench.handlers = ConfigRequests(self.bench.topics, 0, OWN).handlers
        self.bench.create("t", retention_ms="5")

    def describe(
        self, kind: int, name: str, *keys: str, version: int = 4, **fields: Any
    ) -> dict[str, Any]:
        """The settings of one resource, which is described without an error, by name."""
        result = self.described([(kind, name, list(keys) or None)], version, **fields)[0]
        self.assertEqual((result.errorCode, result.errorMessage), (0, ""))
        self.assertEqual((result.resourceType, result.resourceName), (kind, name))
        return {each.name: each for each in result.configs}

    def described(
        self, resources: list[tuple[int, str, list[str] | None]], version: int = 4, **fields: Any
    ) -> list[Any]:
        cls = messages.DescribeConfigsRequest
        request = cls(
            resources=[
                cls.DescribeConfigsResource(
                    resourceType=kind, resourceName=name, configurationKeys=keys
                )
                for kind, name, keys in resources
            ],
            **fields,
        )
        return list(self.bench.ask(DESCRIBE, version, request).results)

    def change(
        self,
        kind: int,
        name: str,
        *changes: tuple[str, int, str | None],
        version: int = 1,
        validateOnly: bool = False,
    ) -> tuple[int, str | None]:
        """Change one resource incrementally: (code, text)."""
        cls = messages.IncrementalAlterConfigsRequest
        resource = cls.AlterConfigsResource(
            resourceType=kind,
            resourceName=name,
            configs=[
                cls.AlterableConfig(name=key, configOperation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        request = cls(resources=[resource], validateOnly=validateOnly)
        (found,) = self.bench.ask(INCREMENTAL, version, request).responses
        self.assertEqual((found.resourceType, found.resourceName), (kind, name))
        return found.errorCode, found.errorMessage

    def replace(
        self, kind: int, name: str, version: int = 2, validateOnly: bool = False, **configs: Any
    ) -> tuple[int, str | None]:
        """Replace the settings of one resource: (code, text)."""
        cls = messages.AlterConfigsRequest
        resource = cls.AlterConfigsResource(
            resourceType=kind,
            resourceName=name,
            configs=[
                cls.AlterableConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = cls(resources=[resource], validateOnly=validateOnly)
        (found,) = self.bench.ask(ALTER, version, request).responses
        return found.errorCode, found.errorMessage

    @property
    def configs(self) -> dict[str, str]:
        return self.bench.topics.image.topics["t"].configs

    @property
    def brokerConfigs(self) -> dict[str, dict[str, str]]:
        return self.bench.topics.image.brokerConfigs


class DescribeTests(ConfigCase):
    """DescribeConfigs."""

    def test_topic(self) -> None:
        """A topic has every setting, with its source, type and, on request, documentation."""
        own: Any = None
        for version in (1, 4):
            found = self.describe(TOPIC, "t", version=version)
            self.assertEqual(found.keys(), TOPIC_CONFIGS.keys())
            own, other = found["retention.ms"], found["segment.bytes"]
            self.assertEqual((own.value, own.configSource), ("5", ConfigSource.DYNAMIC_TOPIC))
            self.assertEqual(other.configSource, ConfigSource.DEFAULT)
            self.assertFalse(any(each.readOnly or each.isSensitive for each in found.values()))
            self.assertEqual(own.synonyms, [])
        self.assertEqual((own.configType, own.documentation), (ConfigType.LONG, None))
        found = self.describe(TOPIC, "t", "retention.ms", includeDocumentation=True)
        self.assertEqual(list(found), ["retention.ms"])
        self.assertEqual(found["retention.ms"].documentation, TOPIC_CONFIGS["retention.ms"].doc)

    def test_repeated(self) -> None:
        """A resource is described twice at most, whatever keys and digits a request uses for it."""
        topics: list[tuple[int, str, list[str] | None]] = [
            (TOPIC, "t", keys) for keys in (None, [], ["retention.ms"])
        ]
        brokers = [(BROKER, name, None) for name in ("0", "00", "+0", "x")]
        found = self.described([*topics, *brokers, (TOPIC, "0", None)])
        names = [each.resourceName for each in found]
        self.assertEqual(names, ["t", "t", "0", "00", "x", "0"])

    def test_synonyms(self) -> None:
        """Synonyms go from the topic to the default; the first gives the value."""
        self.change(BROKER, "", ("log.segment.bytes", SET, "2000000"))
        self.change(BROKER, "0", ("log.segment.bytes", SET, "3000000"))
        key = "log.segment.bytes"

        def synonyms(name: str) -> list[tuple[str, str, int]]:
            config = self.describe(TOPIC, "t", name, includeSynonyms=True)[name]
            found = [(each.name, each.value, each.source) for each in config.synonyms]
            if found:
                self.assertEqual((config.value, config.configSource), found[0][1:])
            return found

        broker = [
            (key, "3000000", ConfigSource.DYNAMIC_BROKER),
            (key, "2000000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (key, "1073741824", ConfigSource.DEFAULT),
        ]
        self.assertEqual(synonyms("segment.bytes"), broker)
        self.change(TOPIC, "t", ("segment.bytes", SET, "4000000"))
        own = ("segment.bytes", "4000000", ConfigSource.DYNAMIC_TOPIC)
        self.assertEqual(synonyms("segment.bytes"), [own, *broker])
        # The default of log.roll.ms is that of log.roll.hours.
        self.assertEqual(synonyms("segment.ms"), [])

    def test_broker(self) -> None:
        """The broker has its own settings, and the defaults of topics, which can be changed."""
        self.change(BROKER, "0", ("log.retention.ms", SET, "9"))
        found = self.describe(BROKER, "0", includeSynonyms=True)
        self.assertLess(OWN.keys(), found.keys())
        self.assertEqual(
            [
                (each.value, each.configSource, each.readOnly)
                for each in (found[name] for name in (*OWN, "log.retention.ms", "log.roll.ms"))
            ],
            [
                ("3", ConfigSource.STATIC_BROKER, True),
                ("-1", ConfigSource.DEFAULT, True),
                (None, ConfigSource.DEFAULT, True),
                ("9", ConfigSource.DYNAMIC_BROKER, False),
                (None, ConfigSource.DEFAULT, False),
            ],
        )
        self.assertEqual(len(found["num.partitions"].synonyms), 2)

    def test_allBrokers(self) -> None:
        """Without a name, a broker's resource has the settings that were given to all brokers."""
        self.change(BROKER, "0", ("log.retention.ms", SET, "9"))
        self.change(BROKER, "", ("log.retention.ms", SET, "8"), ("log.roll.ms", SET, "7"))
        found = self.describe(BROKER, "")
        self.assertEqual(
            {name: (each.value, each.configSource) for name, each in found.items()},
            {
                "log.retention.ms": ("8", ConfigSource.DYNAMIC_DEFAULT_BROKER),
                "log.roll.ms": ("7", ConfigSource.DYNAMIC_DEFAULT_BROKER),
            },
        )
        found = self.describe(BROKER, "", includeSynonyms=True)
        self.assertEqual(
            [(each.name, each.value, each.source) for each in found["log.roll.ms"].synonyms],
            [("log.roll.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER)],
        )

    def test_refused(self) -> None:
        """What cannot be described says why; the rest of the request is answered."""
        found = self.described(
            [
                (TOPIC, "t", None),
                (TOPIC, "z", None),
                (TOPIC, "b/c", None),
                (BROKER, "1", None),
                (BROKER, "x", None),
                (ResourceType.CLIENT_METRICS, "m", None),
                (GROUP, "", None),
            ]
        )
        self.assertEqual(
            [each.errorCode for each in found],
            [
                0,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                INVALID,
                INVALID,
                INVALID,
                INVALID,
            ],
        )
        self.assertIn("expected 0 or empty string, but received 1", found[3].errorMessage)
        self.assertIn("Broker id must be an integer, but it is: x", found[4].errorMessage)
        self.assertEqual(found[5].errorMessage, "Unsupported resource type: CLIENT_METRICS")
        self.assertEqual(found[6].errorMessage, "Group name must not be empty")
        found = self.described([(TOPIC, "t", None), (99, "x", None)])
        self.assertEqual([each.errorCode for each in found], [INVALID, INVALID])


class AlterTests(ConfigCase):
    """AlterConfigs and IncrementalAlterConfigs."""

    def test_incremental(self) -> None:
        """Settings are set and removed; others stay."""
        for version in (0, 1):
            changes = ("segment.ms", SET, "70"), ("retention.ms", DELETE, None)
            self.assertEqual(self.change(TOPIC, "t", *changes, version=version), (0, None))
            self.assertEqual(self.configs, {"segment.ms": "70"})
        self.assertEqual(self.change(TOPIC, "t", ("retention.ms", DELETE, None)), (0, None))
        self.assertEqual(self.bench.partition().log.settings.rollAgeMs, 70)

    def test_lists(self) -> None:
        """Lists are appended to and taken from, beginning with what holds."""
        name = "cleanup.policy"
        self.assertEqual(self.change(TOPIC, "t", (name, APPEND, "compact,delete")), (0, None))
        self.assertEqual(self.configs[name], "delete,compact")
        self.assertEqual(self.change(TOPIC, "t", (name, SUBTRACT, "delete")), (0, None))
        self.assertEqual(self.configs[name], "compact")
        self.assertEqual(
            self.change(TOPIC, "t", ("retention.ms", APPEND, "1")),
            (
                ErrorCode.INVALID_CONFIG,
                "Can't APPEND to key retention.ms because its type is not LIST.",
            ),
        )
        key = "log.cleanup.policy"
        self.assertEqual(self.change(BROKER, "", (key, APPEND, "compact")), (0, None))
        self.assertEqual(self.brokerConfigs, {"": {key: "delete,compact"}})

    def test_replace(self) -> None:
        """AlterConfigs replaces all settings of a topic."""
        for version in (0, 2):
            self.assertEqual(self.replace(TOPIC, "t", version, segment_ms="70"), (0, None))
            self.assertEqual(self.configs, {"segment.ms": "70"})

    def test_validateOnly(self) -> None:
        """A request that only validates is answered as any other, and changes nothing."""
        self.assertEqual(self.replace(TOPIC, "t", validateOnly=True), (0, None))
        change = ("retention.ms", SET, "6")
        self.assertEqual(self.change(TOPIC, "t", change, validateOnly=True), (0, None))
        code, _ = self.change(TOPIC, "t", ("retention.ms", SET, "x"), validateOnly=True)
        self.assertEqual(code, ErrorCode.INVALID_CONFIG)
        self.assertEqual(self.configs, {"retention.ms": "5"})

    def test_broker(self) -> None:
        """Defaults of topics can be changed while the broker runs, and hold for them at once."""
        self.assertEqual(self.change(BROKER, "", ("log.roll.ms", SET, "80")), (0, None))
        settings = self.bench.partition().log.settings
        self.assertEqual(settings.rollAgeMs, 80)
        self.assertEqual(self.replace(BROKER, "0", log_roll_ms="90"), (0, None))
        self.assertEqual(self.bench.partition().log.settings.rollAgeMs, 90)
        self.assertEqual(self.replace(BROKER, "0"), (0, None))
        self.assertEqual(self.bench.partition().log.settings.rollAgeMs, 80)
        self.assertEqual(
            self.change(BROKER, "0", ("num.partitions", SET, "5")),
            (INVALID, "Cannot update these configs dynamically: [num.partitions]"),
        )
        for name in ("num.partitions", "no.setting"):
            for value in (None, ""):
                self.assertEqual(self.change(BROKER, "0", (name, DELETE, value)), (0, None))
        code, text = self.change(BROKER, "", ("log.roll.ms", SET, "0"))
        self.assertEqual(code, ErrorCode.INVALID_CONFIG)
        self.assertIn("log.roll.ms", text or "")

    def test_throttles(self) -> None:
        """
        Throttles of replication are set for brokers and topics as by Kafka's tools, described only
        while they are set, and removed together with a key that this broker does not have.
        """
        rate = "leader.replication.throttled.rate"
        replicas = "leader.replication.throttled.replicas"
        self.assertNotIn(rate, self.describe(BROKER, "0"))
        self.assertEqual(self.change(BROKER, "0", (rate, SET, "1000")), (0, None))
        found = self.describe(BROKER, "0")[rate]
        self.assertEqual(
            (found.value, found.configSource, found.readOnly),
            ("1000", ConfigSource.DYNAMIC_BROKER, False),
        )
        self.assertEqual(self.describe(BROKER, ""), {})
        self.assertEqual(self.change(BROKER, "", (rate, SET, "2000")), (0, None))
        self.assertEqual(self.describe(BROKER, "")[rate].value, "2000")
        self.assertEqual(self.change(BROKER, "0", (rate, SET, "-1"))[0], ErrorCode.INVALID_CONFIG)
        self.assertEqual(self.change(TOPIC, "t", (replicas, SET, "0:0,1:0")), (0, None))
        self.assertEqual(self.change(TOPIC, "t", (replicas, APPEND, "2:1")), (0, None))
        self.assertEqual(self.describe(TOPIC, "t")[replicas].value, "0:0,1:0,2:1")
        code, text = self.change(TOPIC, "t", (replicas, SET, "0"))
        self.assertEqual(code, ErrorCode.INVALID_CONFIG)
        self.assertIn("[partitionId]:[brokerId]", text or "")
        logDirs = "replica.alter.log.dirs.io.max.bytes.per.second"
        removed = [(rate, DELETE, ""), (logDirs, DELETE, "")]
        self.assertEqual(self.change(BROKER, "0", *removed), (0, None))
        self.assertEqual(self.describe(BROKER, "0")[rate].value, "2000")
        self.assertEqual(self.change(BROKER, "", *removed), (0, None))
        self.assertNotIn(rate, self.describe(BROKER, "0"))

    def test_refused(self) -> None:
        """What is refused changes nothing, and says why in Kafka's words."""
        cases: list[tuple[int, str, tuple[str, int, str | None], int, str]] = [
            (TOPIC, "t", ("x.y", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name"),
            (
                TOPIC,
                "z",
                ("retention.ms", SET, "1"),
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "The topic 'z' does not exist.",
            ),
            (TOPIC, "", ("retention.ms", SET, "1"), INVALID, "Default topic resources"),
            (TOPIC, "t", ("retention.ms", SET, None), INVALID, "Null value not supported for :"),
            (TOPIC, "t", ("retention.ms", 9, "1"), INVALID, "Unknown operations type"),
            (BROKER, "1", ("log.roll.ms", SET, "1"), INVALID, "expected 0, but received 1"),
            (BROKER, "x", ("log.roll.ms", SET, "1"), INVALID, "Node id must be an integer"),
            (16, "m", ("x", SET, "1"), INVALID, "Unknown resource type 16"),
            (GROUP, "", (SESSION, SET, "50000"), INVALID, "Default group resources"),
            (GROUP, "g", ("x", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name: x"),
            (GROUP, "g" * 1001, (SESSION, SET, "50000"), ErrorCode.POLICY_VIOLATION, "1000"),
        ]
        for kind, name, change, code, text in cases:
            found = self.change(kind, name, change)
            self.assertEqual(found[0], code, found)
            self.assertIn(text, found[1] or "")
        twice = self.change(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        self.assertEqual(twice, (INVALID, "Error due to duplicate config keys"))
        self.assertEqual((self.configs, self.brokerConfigs), ({"retention.ms": "5"}, {}))

    def test_group(self) -> None:
        """A group's settings are kept, whether or not it is there, until they are removed."""
        self.assertEqual(self.change(GROUP, "g", (SESSION, SET, "50000")), (0, None))
        found = self.describe(GROUP, "g", includeSynonyms=True)
        self.assertEqual(
            {name: (each.value, each.configSource) for name, each in found.items()},
            {
                "consumer.assignment.interval.ms": ("1000", ConfigSource.DEFAULT),
                "consumer.heartbeat.interval.ms": ("5000", ConfigSource.DEFAULT),
                SESSION: ("50000", ConfigSource.DYNAMIC_GROUP),
            },
        )
        self.assertEqual(
            [(each.name, each.value, each.source) for each in found[SESSION].synonyms],
            [
                (SESSION, "50000", ConfigSource.DYNAMIC_GROUP),
                (f"group.{SESSION}", "45000", ConfigSource.DEFAULT),
            ],
        )
        self.assertEqual(self.replace(GROUP, "g"), (0, None))
        self.assertEqual(self.change(GROUP, "g", (SESSION, DELETE, None)), (0, None))
        self.assertEqual(self.bench.topics.image.groupConfigs, {})

    def test_groupLimit(self) -> None:
        """With the most groups that may have settings, these can change, and no other gets some."""
        for each in range(CONFIGURED_GROUP_COUNT_MAX):
            self.bench.topics.image.apply(ConfigRecord("group", str(each), SESSION, "50000"))
        change = (SESSION, SET, "51000")
        self.assertEqual(self.change(GROUP, "g", change)[0], ErrorCode.POLICY_VIOLATION)
        self.assertEqual(self.change(GROUP, "g", (SESSION, DELETE, None)), (0, None))
        self.assertEqual(self.change(GROUP, "7", change), (0, None))

    def test_twice(self) -> None:
        """A resource that occurs twice in a request is refused both times."""
        cls = messages.AlterConfigsRequest
        resource = cls.AlterConfigsResource(resourceType=TOPIC, resourceName="t", configs=[])
        request = cls(resources=[resource, resource])
        for found in self.bench.ask(ALTER, 2, request).responses:
            self.assertEqual(found.errorCode, INVALID)
            self.assertEqual(found.errorMessage, "Each resource must appear at most once.")
        self.assertEqual(self.configs, {"retention.ms": "5"})


class ListTests(ConfigCase):
    """ListConfigResources."""

    def list(self, version: int, *kinds: int) -> tuple[int, list[tuple[str, int]]]:
        request = messages.ListConfigResourcesRequest(resourceTypes=list(kinds))
        response = self.bench.ask(LIST, version, request)
        found = [(each.resourceName, each.resourceType) for each in response.configResources]
        return response.errorCode, found

    def test_list(self) -> None:
        """All kinds, those that were asked for, or, in version 0, client metrics alone."""
        self.assertEqual(self.list(0), (0, []))
        everything = [("t", 2), ("0", 4), ("0", 8)]
        self.assertEqual(self.list(1), (0, everything))
        self.assertEqual(self.list(1, BROKER, BROKER, 16), (0, [("0", 4)]))
        self.change(GROUP, "g", (SESSION, SET, "50000"))
        self.assertEqual(self.list(1), (0, [*everything, ("g", 32)]))
        self.assertEqual(self.list(1, 77), (ErrorCode.UNSUPPORTED_VERSION, []))


class StaticTests(SynchronousTestCase):
    """Defaults of topics in the broker's file."""

    def described(self, bench: RequestBench, kind: ResourceType, name: str, *keys: str) -> Any:
        """(value, source, synonyms) by key."""
        cls = messages.DescribeConfigsRequest
        resource = cls.DescribeConfigsResource(
            resourceType=kind, resourceName=name, configurationKeys=list(keys)
        )
        answer = bench.ask(DESCRIBE, 4, cls(resources=[resource], includeSynonyms=True))
        return {
            each.name: (
                each.value,
                each.configSource,
                [(other.name, other.value, other.source) for other in each.synonyms],
            )
            for each in answer.results[0].configs
        }

    def test_described(self) -> None:
        """Value, source and synonyms are those of Kafka, also of a key in another unit."""
        bench = RequestBench(
            log_segment_bytes="5242880", log_retention_minutes="90", log_flush_interval_ms="7"
        )
        bench.handlers = ConfigRequests(bench.topics, 0, OWN).handlers
        bench.create("t")
        static, default = ConfigSource.STATIC_BROKER, ConfigSource.DEFAULT
        key = "log.segment.bytes"
        size = ("5242880", static, [(key, "5242880", static), (key, "1073741824", default)])
        flush = [
            ("log.flush.interval.ms", "7", static),
            ("log.flush.scheduler.interval.ms", str(2**63 - 1), default),
        ]
        self.assertEqual(
            self.described(bench, TOPIC, "t", "segment.bytes", "retention.ms", "flush.ms"),
            {
                "segment.bytes": size,
                "retention.ms": ("5400000", default, []),
                "flush.ms": ("7", static, flush),
            },
        )
        self.assertEqual(self.described(bench, BROKER, "0", key), {key: size})
        settings = bench.partition("t").log.settings
        self.assertEqual((settings.segmentSizeMax, settings.flushIntervalMs), (5242880, 7))

    def test_changed(self) -> None:
        """What is changed while the broker runs goes before its file, and a topic's before both."""
        bench = RequestBench(message_max_bytes="500000")
        bench.handlers = ConfigRequests(bench.topics, 0, OWN).handlers
        bench.create("t")
        cls = messages.IncrementalAlterConfigsRequest
        for kind, name, key, value in (
            (BROKER, "", "message.max.bytes", "600000"),
            (TOPIC, "t", "max.message.bytes", "700000"),
        ):
            config = cls.AlterableConfig(name=key, configOperation=SET, value=value)
            resource = cls.AlterConfigsResource(
                resourceType=kind, resourceName=name, configs=[config]
            )
            bench.ask(INCREMENTAL, 1, cls(resources=[resource]))
        (found,) = self.described(bench, TOPIC, "t", "max.message.bytes").values()
        self.assertEqual(
            [value for _, value, _ in found[2]], ["700000", "600000", "500000", "1048588"]
        )
