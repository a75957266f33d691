"""Tests for L{pylogbroker.config.kafka.tasksettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE, KafkaTaskSettings
from pylogbroker.errors import ConfigurationError

SERVERS = {"bootstrap.servers": "h:1,i:2"}
EXACTLY = {"processing.guarantee": "exactly_once_v2"}


class SettingsTestCase(SynchronousTestCase):
    """Makes settings."""

    def settings(self, **properties: str) -> KafkaTaskSettings:
        """Settings of these properties, with C{_} for each dot; nothing is warned of."""
        given = {key.replace("_", "."): value for key, value in properties.items()}
        return KafkaTaskSettings.fromProperties({**SERVERS, **given}, self.fail)

    def assertRefused(self, text: str, **properties: str) -> None:
        """Such properties are refused; the error has this text."""
        with self.assertRaises(ConfigurationError) as caught:
            self.settings(**properties)
        self.assertIn(text, str(caught.exception))


class TaskSettingsTests(SettingsTestCase):
    """A container's property file."""

    def test_defaults(self) -> None:
        """Those of Kafka Streams, but for C{state.dir}."""
        settings = self.settings()
        self.assertEqual(settings.stateDir, "task-state")
        self.assertEqual(settings.processingGuarantee, AT_LEAST_ONCE)
        self.assertFalse(settings.isExactlyOnce)
        self.assertEqual(settings.commitIntervalMs, 30_000)
        self.assertEqual(settings.statestoreCacheMaxBytes, 10_485_760)
        self.assertEqual(settings.maxPollRecords, 500)
        self.assertEqual(settings.replicationFactor, -1)
        self.assertEqual((settings.consumer, settings.producer), ({}, {}))
        self.assertEqual(settings.configTopic, "pylogbroker-task-configs")
        self.assertEqual(settings.metricsTopic, "pylogbroker-task-metrics")
        self.assertEqual(settings.metricsIntervalMs, 10_000)
        settings = self.settings(config_topic="", metrics_topic="")
        self.assertEqual((settings.configTopic, settings.metricsTopic), (None, None))

    def test_commitInterval(self) -> None:
        """With exactly once it is short, unless one is given."""
        settings = KafkaTaskSettings.fromProperties({**SERVERS, **EXACTLY}, self.fail)
        self.assertEqual(settings.processingGuarantee, EXACTLY_ONCE)
        self.assertTrue(settings.isExactlyOnce)
        self.assertEqual(settings.commitIntervalMs, 100)
        given = {**SERVERS, **EXACTLY, "commit.interval.ms": "0"}
        self.assertEqual(KafkaTaskSettings.fromProperties(given, self.fail).commitIntervalMs, 0)

    def test_wrong(self) -> None:
        """Each wrong value is named; of an unknown key there is a warning."""
        self.assertRefused("state.dir", state_dir="")
        self.assertRefused("processing.guarantee", processing_guarantee="exactly_once")
        self.assertRefused("commit.interval.ms", commit_interval_ms="-1")
        self.assertRefused("statestore.cache.max.bytes", statestore_cache_max_bytes="0")
        self.assertRefused("max.poll.records", max_poll_records="0")
        self.assertRefused("replication.factor", replication_factor="-2")
        self.assertRefused("metrics.interval.ms", metrics_interval_ms="0")
        with self.assertRaises(ConfigurationError) as caught:
            KafkaTaskSettings.fromProperties({}, self.fail)
        self.assertIn("bootstrap.servers is missing", str(caught.exception))
        warnings: list[str] = []
        KafkaTaskSettings.fromProperties({**SERVERS, "state.dirs": "x"}, warnings.append)
        self.assertEqual(len(warnings), 1)
        self.assertIn("did you mean state.dir?", warnings[0])

    def test_fixed(self) -> None:
        """What a container sets by itself, and what all its clients share, is refused."""
        for key in ("group.id", "enable.auto.commit", "partition.assignment.strategy"):
            self.assertRefused(
                f"consumer.{key}: a container sets this by itself", **{f"consumer.{key}": "x"}
            )
        for key in ("transactional.id", "enable.idempotence", "acks"):
            self.assertRefused(
                f"producer.{key}: a container sets this by itself", **{f"producer.{key}": "x"}
            )
        for name in ("consumer", "producer"):
            for key in ("client.id", "bootstrap.servers", "sasl.username"):
                self.assertRefused(
                    f"{name}.{key}: all clients of a container have {key}", **{f"{name}.{key}": "x"}
                )


class ClientSettingsTests(SettingsTestCase):
    """What a container's clients get."""

    def test_consumer(self) -> None:
        """A member of the group that commits by itself nothing, and begins at the beginning."""
        settings = self.settings(client_id="me", consumer_fetch_max_bytes="1000")
        made = settings.forConsumer("job", self.fail)
        self.assertEqual(made.groupId, "job")
        self.assertFalse(made.enableAutoCommit)
        self.assertEqual(made.autoOffsetReset, "earliest")
        self.assertTrue(made.isolationLevel)
        self.assertEqual(made.fetchMaxBytes, 1_000)
        self.assertEqual(made.bootstrapServers, ("h:1", "i:2"))
        self.assertEqual(made.clientId, "me")

    def test_given(self) -> None:
        """A consumer may begin at the end, and read what is not committed."""
        settings = self.settings(
            consumer_auto_offset_reset="latest", consumer_isolation_level="read_uncommitted"
        )
        made = settings.forConsumer("job", self.fail)
        self.assertEqual((made.autoOffsetReset, made.isolationLevel), ("latest", False))

    def test_changelogs(self) -> None:
        """They are read from the beginning, and only what was committed, whatever is given."""
        settings = self.settings(
            consumer_auto_offset_reset="latest", consumer_isolation_level="read_uncommitted"
        )
        made = settings.forConsumer(None, self.fail)
        self.assertEqual((made.autoOffsetReset, made.isolationLevel), ("earliest", True))
        self.assertFalse(made.groupId)

    def test_exactlyOnceReadsWhatIsCommitted(self) -> None:
        """Inputs of aborted transactions cannot be wanted with exactly once."""
        self.assertRefused(
            "consumer.isolation.level=read_uncommitted: with exactly_once_v2 it is read_committed",
            processing_guarantee="exactly_once_v2",
            consumer_isolation_level="read_uncommitted",
        )

    def test_producer(self) -> None:
        """Idempotent, with all acknowledgements; with an id its transactions end soon."""
        settings = self.settings(producer_batch_size="1000", client_id="me")
        made = settings.forProducer(None, self.fail)
        self.assertTrue(made.enableIdempotence)
        self.assertEqual((made.batchSize, made.lingerMs, made.clientId), (1_000, 5, "me"))
        self.assertFalse(made.transactionalId)
        transactional = settings.forProducer("job-1", self.fail)
        self.assertEqual(transactional.transactionalId, "job-1")
        self.assertEqual(transactional.transactionTimeoutMs, 10_000)
        given = self.settings(producer_transaction_timeout_ms="2000", producer_linger_ms="0")
        made = given.forProducer("job-1", self.fail)
        self.assertEqual((made.transactionTimeoutMs, made.lingerMs), (2_000, 0))

    def test_wrongOfAClient(self) -> None:
        """A wrong value of a client is named when its settings are made."""
        for key, make in (
            ("consumer.fetch.max.bytes", lambda settings: settings.forConsumer("j", self.fail)),
            ("producer.batch.size", lambda settings: settings.forProducer(None, self.fail)),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                make(self.settings(**{key: "many"}))
            self.assertIn(key.partition(".")[2], str(caught.exception))

    def test_admin(self) -> None:
        """The same brokers and name."""
        made = self.settings(client_id="me").forAdmin(self.fail)
        self.assertEqual((made.bootstrapServers, made.clientId), (("h:1", "i:2"), "me"))
