"""
Tests for L{pylogbroker.config.kafka.clientsettings}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.kafka.clientsettings import (
    RESPONSE_SIZE_MAX,
    KafkaClientSettings,
    KafkaConsumerSettings,
    KafkaProducerSettings,
)
from pylogbroker.errors import ConfigurationError

SERVERS = {"bootstrap.servers": " a:1, [::1]:2 ,"}


class SettingsTests(SynchronousTestCase):
    """Properties of a producer and of a consumer of today's Kafka."""

    def refused(self, cls: type[KafkaClientSettings], **properties: str) -> str:
        given = {key.replace("_", "."): value for key, value in properties.items()}
        return str(self.assertRaises(ConfigurationError, cls.fromProperties, {**SERVERS, **given}))

    def test_defaults(self) -> None:
        """The defaults are those of Java's clients."""
        made = KafkaProducerSettings.fromProperties(SERVERS)
        self.assertEqual(made.bootstrapServers, ("a:1", "[::1]:2"))
        self.assertEqual((made.acks, made.enableIdempotence, made.lingerMs), (-1, True, 5))
        self.assertEqual((made.batchSize, made.bufferMemory), (16_384, 32 << 20))
        self.assertEqual((made.deliveryTimeoutMs, made.retries), (120_000, 2**31 - 1))
        read = KafkaConsumerSettings.fromProperties(SERVERS)
        self.assertEqual((read.autoOffsetReset, read.isolationLevel), ("latest", False))
        self.assertEqual((read.fetchMaxBytes, read.maxPartitionFetchBytes), (50 << 20, 1 << 20))

    def test_servers(self) -> None:
        """There is a broker to begin with."""
        for text in ("", " ,", "a", "a:0", "a:1;b:2"):
            self.assertIn(
                "bootstrap.servers",
                self.refused(KafkaProducerSettings, **{"bootstrap.servers": text}),
            )
        self.assertRaises(ConfigurationError, KafkaConsumerSettings.fromProperties, {})

    def test_idempotence(self) -> None:
        """What contradicts idempotence is refused, not silently preferred to it."""
        for key, value in (
            ("acks", "1"),
            ("retries", "0"),
            ("max.in.flight.requests.per.connection", "6"),
        ):
            text = self.refused(KafkaProducerSettings, **{key: value})
            self.assertIn(f"{key}={value}", text)
            self.assertIn("enable.idempotence=false", text)
            KafkaProducerSettings.fromProperties(
                {**SERVERS, key: value, "enable.idempotence": "false"}
            )

    def test_times(self) -> None:
        """A message has the time of one request, at least."""
        self.assertIn("30005", self.refused(KafkaProducerSettings, delivery_timeout_ms="30004"))

    def test_fetchSize(self) -> None:
        """A response that the client could not take is not asked for."""
        key = "fetch.max.bytes"
        made = KafkaConsumerSettings.fromProperties({**SERVERS, key: str(127 << 20)})
        self.assertLess(made.fetchMaxBytes, RESPONSE_SIZE_MAX)
        for size in ((127 << 20) + 1, 128 << 20, 2**31 - 1):
            self.assertIn(f"{key}={size}", self.refused(KafkaConsumerSettings, **{key: str(size)}))

    def test_password(self) -> None:
        """Name and password need each other, and the password is not shown."""
        self.assertIn("need each other", self.refused(KafkaConsumerSettings, sasl_username="u"))
        made = KafkaConsumerSettings.fromProperties(
            {**SERVERS, "sasl.username": "u", "sasl.password": "secret"}
        )
        self.assertEqual(made.saslPassword, "secret")
        self.assertNotIn("secret", repr(made))
