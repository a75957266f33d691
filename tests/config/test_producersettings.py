"""
Tests for L{pylogbroker.config.producersettings}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.config.propertytypes import BrokerAddress, Enum
from pylogbroker.errors import ConfigurationError


class ProducerSettingsTests(SynchronousTestCase):
    """Properties of a producer."""

    def read(self, **properties: str) -> ProducerSettings:
        self.warnings: list[str] = []
        given = {key.replace("_", "."): value for key, value in properties.items()}
        return ProducerSettings.fromProperties(
            given or {"broker.list": "0:a:1"}, self.warnings.append
        )

    def refused(self, **properties: str) -> str:
        return str(self.assertRaises(ConfigurationError, self.read, **properties))

    def test_defaults(self) -> None:
        """The defaults are those of 0.7.2's code, but for the full queue, where a message waits."""
        settings = self.read()
        self.assertEqual(settings.brokerList, (BrokerAddress(0, "a", 1),))
        self.assertEqual(
            (
                settings.isAsync,
                settings.compressionCodec,
                settings.compressedTopics,
                settings.maxMessageSize,
                settings.zkReadNumRetries,
            ),
            (False, 0, frozenset(), 1_000_000, 3),
        )
        self.assertEqual(
            (
                settings.queueTime,
                settings.queueSize,
                settings.batchSize,
                settings.numRetries,
            ),
            (5000, 10_000, 200, 0),
        )
        self.assertEqual((settings.connectTimeoutMs, settings.socketTimeoutMs), (5000, 30_000))
        self.assertEqual(
            (settings.reconnectInterval, settings.reconnectTimeIntervalMs),
            (30_000, 10_000_000),
        )
        self.assertEqual(settings.queueEnqueueTimeoutMs, -1)
        self.assertFalse(settings.confirm)
        self.assertEqual(
            (
                settings.partitionerClass,
                settings.eventHandler,
                settings.callbackHandler,
                settings.topic,
            ),
            (None, None, None, None),
        )
        self.assertEqual(settings.zkConnectionTimeoutMs, settings.zkSessionTimeoutMs)
        self.assertEqual(self.warnings, [])

    def test_everyRowHasItsSetting(self) -> None:
        """
        The table and the settings object name the same settings; keys without effect name none.
        """
        effective = [key.name for key in ProducerSettings.keys if key.isEffective]
        self.assertEqual(sorted(vars(self.read(broker_list="0:a:1"))), sorted(effective))

    def test_everyPropertyOfKafka(self) -> None:
        """Every property of 0.7.2's producer is known (spec-0.7 config §3)."""
        isKafkaKey = """
            zk.connect broker.list zk.sessiontimeout.ms zk.connectiontimeout.ms zk.synctime.ms
            zk.read.num.retries partitioner.class producer.type serializer.class compression.codec
            compressed.topics num.retries buffer.size connect.timeout.ms socket.timeout.ms
            reconnect.interval reconnect.time.interval.ms max.message.size queue.time queue.size
            queue.enqueueTimeout.ms batch.size event.handler event.handler.props callback.handler
            callback.handler.props host port
        """
        self.assertEqual(
            {row.key for row in ProducerSettings.keys if row.isKafkaKey}, set(isKafkaKey.split())
        )

    def test_oneOfTheTwo(self) -> None:
        """
        Neither of zk.connect and broker.list, or both, is an error; an empty one counts as not
        given (spec-0.7 producer §1).
        """
        self.assertIn("neither", self.refused(producer_type="sync"))
        self.assertIn("neither", self.refused(broker_list="", zk_connect=""))
        self.assertIn("both", self.refused(broker_list="0:a:1", zk_connect="z:2181"))
        self.assertEqual(self.read(zk_connect="z:2181/c").zkConnect, "z:2181/c")

    def test_partitionerNeedsZookeeper(self) -> None:
        """
        ProducerTest.testConfigBrokerPartitionInfoWithPartitioner: a partitioner and a broker.list
        do not go together.
        """
        self.assertIn(
            "partitioner.class=a.B", self.refused(broker_list="0:a:1", partitioner_class="a.B")
        )
        self.assertEqual(
            self.read(zk_connect="z:1", partitioner_class="a.B").partitionerClass, "a.B"
        )

    def test_producerType(self) -> None:
        """producer.type is sync or async, and nothing else."""
        self.assertTrue(self.read(broker_list="0:a:1", producer_type="async").isAsync)
        self.assertIn(
            "producer.type=Async: must be one of sync, async",
            self.refused(broker_list="0:a:1", producer_type="Async"),
        )

    def test_codec(self) -> None:
        """compression.codec is 0.7's number, or a name; another is refused."""
        for text, number in (("0", 0), ("1", 1), ("2", 2), ("gzip", 1), ("snappy", 2), ("none", 0)):
            self.assertEqual(
                self.read(broker_list="0:a:1", compression_codec=text).compressionCodec, number
            )
        self.assertIn(
            "compression.codec=3", self.refused(broker_list="0:a:1", compression_codec="3")
        )

    def test_brokerList(self) -> None:
        """
        Entries are id:host:port; what is behind a third colon is ignored; a number twice is told,
        and the last counts.
        """
        settings = self.read(broker_list="1:a:9092,0:b:9093:creator,1:c:9094,")
        self.assertEqual(
            settings.brokerList, (BrokerAddress(1, "c", 9094), BrokerAddress(0, "b", 9093))
        )
        self.assertIn("broker 1 twice", self.warnings[0])

    def test_brokerListRefused(self) -> None:
        """
        An entry with fewer than three parts, white space, or a number that is none is an error that
        shows the entry.
        """
        for text, why in (
            ("0:a", "'0:a' is not id:host:port"),
            ("x:a:1", "'x' is not a broker's number"),
            ("9999999999:a:1", "is not a broker's number"),
            ("0:a:1, 1:b:2", "' 1' is not a broker's number"),
            ("0::1", "'' is not a host"),
            ("0:a :1", "'a ' is not a host"),
            ("0:ev[il:1", "'ev[il' is not a host"),
            ("0:a:0", "'0' is not a port"),
            ("0:a:65536", "'65536' is not a port"),
            ("0:a:p", "'p' is not a port"),
        ):
            self.assertIn(why, self.refused(broker_list=text))

    def test_compressedTopics(self) -> None:
        """Names are not trimmed, as in 0.7; that is told."""
        settings = self.read(broker_list="0:a:1", compressed_topics="one, two,,")
        self.assertEqual(settings.compressedTopics, {"one", " two"})
        self.assertIn("' two'", self.warnings[0])

    def test_strayAddress(self) -> None:
        """A stray host or port redirects nobody (gotcha 41), and is told."""
        settings = self.read(broker_list="0:a:1", host="elsewhere", port="2")
        self.assertEqual(settings.brokerList, (BrokerAddress(0, "a", 1),))
        self.assertEqual(len(self.warnings), 2)

    def test_unknownKey(self) -> None:
        """A key that nobody knows is told with its nearest neighbour (gotcha 24)."""
        self.read(broker_list="0:a:1", bach_size="3")
        self.assertIn("did you mean batch.size?", self.warnings[0])

    def test_withoutWarnings(self) -> None:
        """Nobody has to listen."""
        self.assertEqual(
            ProducerSettings.fromProperties({"broker.list": "0:a:1", "x": "y"}).batchSize, 200
        )

    def test_given(self) -> None:
        """What is given overrides what is derived; an empty class name is none."""
        settings = ProducerSettings.fromProperties(
            {
                "zk.connect": "z:1",
                "zk.connectiontimeout.ms": "7",
                "event.handler": "",
                "callback.handler.props": "a=1,b=2",
            }
        )
        self.assertEqual((settings.zkConnectionTimeoutMs, settings.eventHandler), (7, None))
        self.assertEqual(settings.callbackHandlerProps, {"a": "1", "b": "2"})

    def test_ranges(self) -> None:
        """The reference page can say what is allowed."""
        self.assertEqual(Enum({"a": 1, "b": 2}).range, "`a`, `b`")
