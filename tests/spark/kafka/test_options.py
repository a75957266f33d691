"""
Tests for L{pylogbroker.spark.kafka.options}.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.spark.kafka.options import KafkaSourceOptions, parseKafkaOffsets
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST
from pylogbroker.types import TopicPartition
from tests.integration.certificates import Authority

JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required"
    ' username="ann" password="a\\"b";'
)


class OptionsTests(SynchronousTestCase):
    """What a job gives."""

    def read(self, **options: Any) -> KafkaSourceOptions:
        """C{_} stands for a dot."""
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
        given |= {key.replace("_", "."): value for key, value in options.items()}
        return KafkaSourceOptions.fromOptions(given)

    def test_offsets(self) -> None:
        """Words, and offsets by partition, as Spark's own source has them."""
        self.assertEqual(parseKafkaOffsets("Earliest"), EARLIEST)
        self.assertEqual(parseKafkaOffsets("latest"), LATEST)
        self.assertEqual(
            parseKafkaOffsets('{"t": {"0": 23, "1": -2}}'),
            {TopicPartition("t", 0): 23, TopicPartition("t", 1): -2},
        )

    def test_wrong(self) -> None:
        """Each mistake is named."""
        for reason, options in (
            ("exactly one is needed", {"assign": '{"t":[0]}'}),
            ("exactly one is needed", {"subscribe": ""}),
            ("is not a partition's number", {"subscribe": "", "assign": '{"t":["x"]}'}),
            ("must have a list", {"subscribe": "", "assign": '{"t":0}'}),
            ("is not a partition's number", {"startingOffsets": '{"t":{"0-0":1}}'}),
            ("none of offsets", {"startingOffsets": '{"t":{"0":-3}}'}),
            ("must have an object", {"startingOffsets": '{"t":[1]}'}),
            ("none of timestamps", {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}),
            ("to end at the earliest", {"endingOffsets": "earliest"}),
            ("did you mean failOnDataLoss", {"failOnDatLoss": "true"}),
            ("did you mean maxTriggerDelay", {"maxTriggerDelays": "1m"}),
            ("is not a time such as 15m", {"maxTriggerDelay": "1 week"}),
            ("is not a time such as 15m", {"maxTriggerDelay": "m"}),
            (
                "minOffsetsPerTrigger=5 is more than maxOffsetsPerTrigger=4",
                {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            ),
            ("cannot be set", {"kafka_auto_offset_reset": "latest"}),
            ("needs kafka.sasl.jaas.config", {"kafka_security_protocol": "SASL_SSL"}),
            ("kafka.ssl.truststore.type", {"kafka_ssl_truststore_type": "JKS"}),
        ):
            with self.assertRaisesRegex(ConfigurationError, reason):
                self.read(**options)

    def test_tuning(self) -> None:
        """What tunes Java's client, or names a group, is read over, and said."""
        with self.assertLogs("pylogbroker.spark.kafka.options", "WARNING") as logged:
            self.read(kafka_max_poll_records="1", groupIdPrefix="x", kafka_group_id="g")
        self.assertIn("The option kafka.max.poll.records tunes Java's client", logged.output[0])
        for line in logged.output[1:]:
            self.assertIn("has no effect: partitions are read without a group", line)
        self.assertEqual(len(logged.output), 3)

    def test_sparks(self) -> None:
        """Every option that Spark's guide has is known, with its default."""
        found = self.read()
        self.assertEqual(
            (
                found.fetchOffsetNumRetries,
                found.fetchOffsetRetryIntervalMs,
                found.kafkaConsumerPollTimeoutMs,
            ),
            (3, 1_000, 120_000),
        )
        self.assertEqual(found.maxTriggerDelay, 900_000)
        self.assertIsNone(found.maxRecordsPerPartition)
        for text, wanted in (
            ("250", 250),
            ("250ms", 250),
            ("1500us", 1),
            ("2S", 2_000),
            ("3min", 180_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
        ):
            self.assertEqual(self.read(maxTriggerDelay=text).maxTriggerDelay, wanted)

    def test_login(self) -> None:
        """User and password stand in the JAAS text."""
        options = self.read(
            kafka_security_protocol="SASL_PLAINTEXT",
            kafka_sasl_mechanism="PLAIN",
            kafka_sasl_jaas_config=JAAS,
        )
        self.assertEqual(options._login(options.access()), SaslLogin("PLAIN", "ann", 'a"b'))
        self.assertNotIn("ann", repr(options))
        plain = self.read()
        self.assertIsNone(plain._login(plain.access()))

    def test_file(self) -> None:
        """A property file of the tools says how to reach the brokers, and who the client is."""
        folder = self.mktemp()
        authority = Authority(folder)
        file = Path(folder, "access.properties")
        file.write_text(
            "sasl.username=ann\nsasl.password=secret\nsasl.mechanism=PLAIN\ngroupid=other\n"
            f"broker.endpoint=tls:{{host}}:{{port}}:trustRoots={authority.trustFolder()}\n",
            encoding="utf-8",
        )
        options = self.read(config=str(file))
        self.assertEqual(options._login(options.access()), SaslLogin("PLAIN", "ann", "secret"))
        self.assertNotIn("secret", repr(options))
        with options.cluster() as cluster:
            self.assertIsNotNone(cluster._bootstrap[0].tls)
        plain = self.read(config=str(file), brokerEndpoint="tcp:{host}:{port}")
        with plain.cluster() as cluster:
            self.assertIsNone(cluster._bootstrap[0].tls)
        for wrong in ({"config": f"{folder}/none"}, {"brokerEndpoint": "carrier-pigeon"}):
            self.assertRaises(ConfigurationError, self.read, **wrong)

    def test_tls(self) -> None:
        """PEM files are read where they are used; others are an error that names the file."""
        folder = self.mktemp()
        certificates = Authority(folder)
        options = self.read(
            kafka_security_protocol="SSL",
            kafka_ssl_truststore_location=certificates.ca,
            kafka_ssl_keystore_location=certificates.issue("ann"),
        )
        self.assertEqual(options._tls().verify_mode, ssl.CERT_REQUIRED)
        bad = Path(folder, "bad.pem")
        bad.write_text("nothing", encoding="ascii")
        for name in ("kafka_ssl_truststore_location", "kafka_ssl_keystore_location"):
            with self.assertRaisesRegex(ConfigurationError, "bad.pem is not a PEM file"):
                self.read(**{"kafka_security_protocol": "SSL", name: str(bad)}).cluster()
