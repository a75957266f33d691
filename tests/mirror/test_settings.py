"""
Tests for L{pylogbroker.mirror.service.MirrorSettings}, and for the property files that are shipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.subscription import whitelist
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.config.kafka.mirrorsettings import KafkaSourceSettings
from pylogbroker.config.producersettings import DEFAULT_ENCODER, ProducerSettings
from pylogbroker.config.properties import parseProperties
from pylogbroker.errors import ConfigurationError
from pylogbroker.mirror.service import MirrorSettings

ETC = Path(__file__).resolve().parent.parent.parent / "etc"
CONSUMER = {"zk.connect": "source:2181", "groupid": "mirrors"}
PRODUCER = {"zk.connect": "target:2181"}


class MirrorSettingsTests(SynchronousTestCase):
    """What a mirror is told."""

    def setUp(self) -> None:
        self.warnings: list[str] = []

    def settings(
        self, *consumers: dict[str, str], producer: dict[str, str] | None = None, **more: Any
    ) -> MirrorSettings:
        return MirrorSettings.fromProperties(
            consumers or (CONSUMER,),
            producer or PRODUCER,
            whitelist(".*"),
            self.warnings.append,
            **more,
        )

    def fails(self, *arguments: Any, **more: Any) -> str:
        return str(self.assertRaises(ConfigurationError, self.settings, *arguments, **more))

    def test_plain(self) -> None:
        """
        One source, one stream, one producer; what a mirror needs is so without being asked for.
        """
        settings = self.settings()
        self.assertEqual(
            (
                len(settings.consumers),
                settings.streamCount,
                settings.producerCount,
                settings.isKeeping,
            ),
            (1, 1, 1, False),
        )
        (source,) = settings.consumers
        assert isinstance(source, ConsumerSettings)
        self.assertEqual(
            (source.autoCommitEnable, source.shallowIteratorEnable, source.consumerTimeoutMs),
            (True, False, -1),
        )
        assert isinstance(settings.producer, ProducerSettings)
        self.assertEqual(
            (
                settings.producer.confirm,
                settings.producer.isAsync,
                settings.producer.queueEnqueueTimeoutMs,
            ),
            (True, False, -1),
        )
        self.assertEqual(self.warnings, [])

    def test_otherwise(self) -> None:
        """
        A file that wants what a mirror cannot do is told so, key by key, and the mirror does what
        it must.
        """
        settings = self.settings(
            {**CONSUMER, "autocommit.enable": "false", "shallowiterator.enable": "true"},
            producer={
                **PRODUCER,
                "confirm": "false",
                "queue.enqueueTimeout.ms": "0",
                "producer.type": "async",
            },
        )
        (source,) = settings.consumers
        assert isinstance(source, ConsumerSettings)
        assert isinstance(settings.producer, ProducerSettings)
        odd = ["autocommit.enable", "shallowiterator.enable", "confirm", "queue.enqueueTimeout.ms"]
        self.assertEqual([warning.partition("=")[0] for warning in self.warnings], odd)
        self.assertEqual(
            (
                source.autoCommitEnable,
                source.shallowIteratorEnable,
                settings.producer.confirm,
            ),
            (True, False, True),
        )

    def test_misspelt(self) -> None:
        """A key that nobody knows is a warning that names its neighbour."""
        self.settings({**CONSUMER, "fetch.sise": "1"})
        self.assertIn("fetch.size?", self.warnings[0])

    def test_wrong(self) -> None:
        """What is missing or does not go together is refused, with a sentence."""
        self.assertIn(
            "a source at least",
            str(
                self.assertRaises(
                    ConfigurationError,
                    MirrorSettings.fromProperties,
                    [],
                    PRODUCER,
                    whitelist("a"),
                    print,
                )
            ),
        )
        self.assertIn("0 streams", self.fails(streamCount=0))
        self.assertIn("0 producers", self.fails(producerCount=0))
        self.assertIn("zk.connect is missing", self.fails({"groupid": "g"}))
        self.assertIn("given twice", self.fails(CONSUMER, dict(CONSUMER)))
        self.assertIn("for ever", self.fails({**CONSUMER, **PRODUCER}))
        self.assertIn("broker.list", self.fails(producer={"broker.list": "0:h:1"}, isKeeping=True))
        for key in ("callback.handler", "event.handler"):
            self.assertIn(
                "bytes on as they are",
                self.fails(producer={**PRODUCER, key: "kafka.serializer.StringEncoder"}),
            )
        self.assertEqual(
            len(self.settings(CONSUMER, {**CONSUMER, "zk.connect": "other:2181"}).consumers), 2
        )

    def test_today(self) -> None:
        """
        C{bootstrap.servers} makes the target one of today, and partitions are kept; a message is
        never given up by time.
        """
        today = {"bootstrap.servers": "target:9092"}
        settings = self.settings(producer=today)
        self.assertEqual(
            (type(settings.producer), settings.isKeeping), (KafkaProducerSettings, True)
        )
        self.assertEqual(self.warnings, [])
        self.settings(producer={**today, "delivery.timeout.ms": "60000", "retries": "3"})
        odd = ["delivery.timeout.ms", "retries"]
        self.assertEqual([warning.partition("=")[0] for warning in self.warnings], odd)

    def test_todayWrong(self) -> None:
        """Two protocols in one file, no idempotence, and a source of today are refused."""
        today = {"bootstrap.servers": "target:9092"}
        self.assertIn("zk.connect: the first", self.fails(producer={**today, **PRODUCER}))
        self.assertIn(
            "broker.list: the first", self.fails(producer={**today, "broker.list": "0:h:1"})
        )
        self.assertIn(
            "enable.idempotence=false: a mirror",
            self.fails(producer={**today, "enable.idempotence": "false"}),
        )
        self.assertIn("zk.connect: the first", self.fails({**CONSUMER, **today}))

    def test_sourceOfToday(self) -> None:
        """
        C{bootstrap.servers} makes a source one of today. The mirror commits by itself, reads from
        the beginning, and what was committed, unless it is told otherwise.
        """
        source = {"bootstrap.servers": "source:9092", "group.id": "mirrors"}
        target = {"bootstrap.servers": "target:9092"}
        (found,) = self.settings(source, producer=target).consumers
        assert isinstance(found, KafkaSourceSettings)
        self.assertEqual(
            (found.enableAutoCommit, found.autoOffsetReset, found.isolationLevel),
            (False, "earliest", True),
        )
        self.assertEqual(self.warnings, [])
        other = {
            "auto.offset.reset": "latest",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": "true",
            "consumer.timeout.ms": "5",
        }
        (found,) = self.settings({**source, **other}, producer=target).consumers
        assert isinstance(found, KafkaSourceSettings)
        self.assertEqual((found.autoOffsetReset, found.isolationLevel), ("latest", False))
        self.assertEqual(found.consumerTimeoutMs, -1)
        odd = ["enable.auto.commit", "consumer.timeout.ms"]
        self.assertEqual([warning.partition("=")[0] for warning in self.warnings], odd)

    def test_sourceOfTodayWrong(self) -> None:
        """What cannot be mirrored is refused by name."""
        source = {"bootstrap.servers": "source:9092", "group.id": "mirrors"}
        target = {"bootstrap.servers": "target:9092"}
        for consumers, producer, text in (
            (({**source, "group.id": ""},), target, "group.id is missing"),
            (({**source, "groups": "(?=x)"},), target, "groups=(?=x)"),
            ((source, source), target, "given twice"),
            ((source,), {"bootstrap.servers": "b:1,source:9092"}, "source:9092 is a source and"),
            (
                (source, {**source, "bootstrap.servers": "other:9092"}),
                PRODUCER,
                "two sources have the same group.id",
            ),
            ((source,), {"broker.list": "0:h:1"}, "with broker.list the brokers pick"),
        ):
            self.assertIn(text, self.fails(*consumers, producer=producer))

    def test_encoder(self) -> None:
        """
        An encoder, as 0.7.2's own C{producer.properties} names one, has no effect, and a warning
        says so: a mirror passes bytes on as they are.
        """
        warnings: list[str] = []
        settings = MirrorSettings.fromProperties(
            [CONSUMER],
            {**PRODUCER, "serializer.class": "kafka.serializer.StringEncoder"},
            whitelist("a"),
            warnings.append,
        )
        assert isinstance(settings.producer, ProducerSettings)
        self.assertEqual(settings.producer.serializerClass, DEFAULT_ENCODER)
        self.assertEqual(len(warnings), 1)
        self.assertIn("serializer.class=kafka.serializer.StringEncoder: has no effect", warnings[0])


class SampleTests(SynchronousTestCase):
    """C{etc/mirror-consumer.properties} and C{etc/mirror-producer.properties}."""

    def test_together(self) -> None:
        """The two make a mirror, and say nothing odd."""
        warnings: list[str] = []
        properties = [
            parseProperties((ETC / f"mirror-{role}.properties").read_text(encoding="utf-8"))
            for role in ("consumer", "producer")
        ]
        MirrorSettings.fromProperties(
            [properties[0]], properties[1], whitelist(".*"), warnings.append
        )
        self.assertEqual(warnings, [])

    def test_againstTheTable(self) -> None:
        """
        Every key that stands in them, commented out or not, is one that has an effect; what is
        commented out shows the default.
        """
        for role, rows in (
            ("consumer", ConsumerSettings.keys),
            ("producer", ProducerSettings.keys),
        ):
            known = {key.key: key for key in rows if key.isEffective}
            for line in (
                (ETC / f"mirror-{role}.properties").read_text(encoding="utf-8").splitlines()
            ):
                if not line or line.startswith("# "):
                    continue
                key, _, value = line.lstrip("#").partition("=")
                self.assertIn(key, known, line)
                row = known[key]
                if line.startswith("#") and row.default:
                    self.assertEqual(value, row.default, line)
                else:
                    row.type.parse(value, self.fail)
