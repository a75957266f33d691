"""
Tests for L{pylogbroker.spark.options}.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.config.securitysettings import SecuritySettings
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.endpointstrings import SocketAddress
from pylogbroker.records.compression import SNAPPY
from pylogbroker.spark.options import (
    Selection,
    SinkOptions,
    SourceOptions,
)
from pylogbroker.syncclient.clustermetadata import StaticMetadata, ZookeeperMetadata
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition, PartitionId

LEAST = {"brokers": "h:1", "subscribe": "t"}


class SourceOptionsTests(SynchronousTestCase):
    """What is said to a source."""

    def refusal(self, **options: Any) -> str:
        """Why options are refused."""
        return str(self.assertRaises(ConfigurationError, SourceOptions.fromOptions, options))

    def test_defaults(self) -> None:
        """The least that can be said, and what follows from it."""
        options = SourceOptions.fromOptions(LEAST)
        self.assertEqual(options.brokers, (BrokerAddress(0, "h", 1),))
        self.assertEqual(options.selection, Selection(topics=("t",)))
        self.assertEqual(
            (options.startingOffsets, options.endingOffsets, options.startingTimestamp),
            (None, LATEST, None),
        )
        self.assertTrue(options.failOnDataLoss)
        self.assertEqual((options.minPartitions, options.maxBytesPerTrigger), (None, None))

    def test_keysInAnyCase(self) -> None:
        """Spark passes on keys in lower case; users write them as they like."""
        options = SourceOptions.fromOptions(
            {
                "ZOOKEEPER": "h:2181/root",
                "subscribepattern": "a.*",
                "FAILONDATALOSS": "False",
                "startingoffsets": "Latest",
            }
        )
        self.assertEqual(
            (options.zookeeper, options.selection.pattern, options.failOnDataLoss),
            ("h:2181/root", "a.*", False),
        )
        self.assertEqual(options.startingOffsets, LATEST)

    def test_views(self) -> None:
        """ZooKeeper or a list says who is there."""
        self.assertIsInstance(
            SourceOptions.fromOptions({"zookeeper": "h:2181", "subscribe": "t"}).metadata(),
            ZookeeperMetadata,
        )
        self.assertIsInstance(SourceOptions.fromOptions(LEAST).metadata(), StaticMetadata)

    def test_secret(self) -> None:
        """A password is for ZooKeeper, and not shown."""
        cluster = SourceOptions.fromOptions(
            {"zookeeper": "h:2181", "subscribe": "t", "zookeeperDigest": "me:secret"}
        )
        self.assertEqual(cluster.access().zkDigest, "me:secret")
        self.assertNotIn("secret", repr(cluster))
        self.assertNotIn("secret", self.refusal(**LEAST, zookeeperDigest="secret"))

    def test_accessFile(self) -> None:
        """
        A property file says how to get at a cluster, a producer's own for instance; options go
        before it. What stands in it is read where it is needed, and does not go to workers.
        """
        path = self.mktemp()
        Path(path).write_text(
            "zk.digest=me:secret\nzk.acl=private\nbroker.endpoint=tls:{host}:{port}:trustRoots=/ca\nproducer.type=sync\n",
            encoding="utf-8",
        )
        cluster = SourceOptions.fromOptions(
            {
                **LEAST,
                "config": path,
                "zookeeperAcl": "open",
                "brokerEndpoint": "tcp:{host}:1{port}",
            }
        )
        self.assertEqual(
            cluster.access(),
            SecuritySettings.fromProperties(
                {
                    "zk.digest": "me:secret",
                    "zk.acl": "open",
                    "broker.endpoint": "tcp:{host}:1{port}",
                }
            ),
        )
        self.assertNotIn(b"secret", pickle.dumps(cluster))
        self.assertEqual(pickle.loads(pickle.dumps(cluster)), cluster)
        self.assertEqual(cluster.endpoint(BrokerAddress(0, "h", 92)), SocketAddress("h", 192))
        os.unlink(path)
        self.assertIn(
            path, str(self.assertRaises(ConfigurationError, cluster.metadata().partitions, "t"))
        )
        self.assertIn(path, self.refusal(**LEAST, config=path))

    def test_wrongAccess(self) -> None:
        """What is wrong is refused before anything is asked."""
        self.assertIn("zk.acl", self.refusal(**LEAST, zookeeperAcl="nobody"))
        self.assertIn("broker.endpoint", self.refusal(**LEAST, brokerEndpoint="tls:h:1"))

    def test_selections(self) -> None:
        """Topics are listed, matched, or given with their partitions."""
        self.assertEqual(
            SourceOptions.fromOptions({**LEAST, "subscribe": " a, b,,a "}).selection.topics,
            ("a", "b"),
        )
        assigned = SourceOptions.fromOptions(
            {"brokers": "h:1", "assign": '{"t": ["2-1"]}'}
        ).selection.assigned
        self.assertEqual(assigned, (PartitionId("t", BrokerPartition(2, 1)),))

    def test_positions(self) -> None:
        """Words, maps and times say where to begin and to end."""
        options = SourceOptions.fromOptions(
            {**LEAST, "startingOffsets": "earliest", "endingOffsets": '{"t": {"0-0": 5}}'}
        )
        self.assertEqual(
            (options.startingOffsets, options.endingOffsets),
            (EARLIEST, {PartitionId("t", BrokerPartition(0, 0)): 5}),
        )
        self.assertEqual(
            SourceOptions.fromOptions({**LEAST, "startingTimestamp": "17"}).startingTimestamp, 17
        )

    def test_sizes(self) -> None:
        """A fetch is never more than the largest that is allowed."""
        options = SourceOptions.fromOptions(
            {
                **LEAST,
                "fetchSize": "1000000",
                "fetchSizeMax": "500000",
                "minPartitions": "8",
                "maxBytesPerTrigger": "9",
            }
        )
        self.assertEqual(
            (
                options.fetchSize,
                options.fetchSizeMax,
                options.minPartitions,
                options.maxBytesPerTrigger,
            ),
            (500_000, 500_000, 8, 9),
        )

    def test_unknownKey(self) -> None:
        """
        A misspelt key is refused with its nearest neighbour; what Spark adds of its own is let
        through.
        """
        self.assertIn("did you mean failOnDataLoss?", self.refusal(**LEAST, failOnDatalos="true"))
        self.assertIn("there are zookeeper, ", self.refusal(**LEAST, xyz="1"))
        SourceOptions.fromOptions({**LEAST, "checkpointLocation": "/tmp", "path": "x"})

    def test_refusals(self) -> None:
        """Each wrong option is refused by its name."""
        for change, reason in (
            ({"zookeeper": "h:2"}, "zookeeper and brokers are both"),
            ({"brokers": ""}, "neither zookeeper nor"),
            ({"assign": '{"t": ["0-0"]}'}, "subscribe and assign of"),
            ({"subscribe": ""}, "none of subscribe"),
            ({"subscribe": None, "subscribePattern": "("}, "subscribePattern=("),
            ({"subscribe": "a/b"}, "subscribe=a/b"),
            ({"subscribe": ", ,"}, "it names no topic"),
            ({"startingOffsets": "now"}, "startingOffsets=now"),
            ({"startingOffsets": "latest", "startingTimestamp": "1"}, "are both given"),
            ({"endingOffsets": "earliest"}, "endingOffsets=earliest"),
            ({"endingOffsets": '{"t": {"0-0": -2}}'}, "to end at the earliest"),
            ({"failOnDataLoss": "yes"}, "failOnDataLoss=yes: must be exactly true or false"),
            ({"minPartitions": "many"}, "minPartitions=many: is not a whole number"),
            ({"minPartitions": "0"}, "minPartitions=0: must be from 1"),
        ):
            options = {
                key: value for key, value in {**LEAST, **change}.items() if value is not None
            }
            self.assertIn(reason, self.refusal(**options))


class SinkOptionsTests(SynchronousTestCase):
    """What is said to a sink."""

    def test_options(self) -> None:
        """Topic, codec and sizes."""
        options = SinkOptions.fromOptions(
            {
                "brokers": "3:h:1",
                "topic": "t",
                "compression": "Snappy",
                "maxMessageSize": "5",
                "batchSize": "7",
            }
        )
        self.assertEqual(
            (options.topic, options.compression, options.maxMessageSize, options.batchSize),
            ("t", SNAPPY, 5, 7),
        )

    def test_refusals(self) -> None:
        """A codec that is none, and options of the other side."""
        self.assertIn(
            "compression=zip",
            str(
                self.assertRaises(
                    ConfigurationError,
                    SinkOptions.fromOptions,
                    {"brokers": "h:1", "compression": "zip"},
                )
            ),
        )
        self.assertIn(
            "no option subscribe",
            str(self.assertRaises(ConfigurationError, SinkOptions.fromOptions, LEAST)),
        )


class OffsetMapTests(SynchronousTestCase):
    """Offsets and assignments as JSON."""

    def parsed(self, option: str, text: str) -> SourceOptions:
        """The options of a source with one more."""
        least = {"brokers": "h:1"} if option == "assign" else LEAST
        return SourceOptions.fromOptions({**least, option: text})

    def refusal(self, option: str, text: str) -> str:
        """Why a text is refused."""
        return str(self.assertRaises(ConfigurationError, self.parsed, option, text))

    def test_offsets(self) -> None:
        """
        A topic has offsets by partition; -1 and -2 are some, and so is the largest that there can
        be.
        """
        text = (
            '{"b.c": {"1-0": -2, "0-2147483647": 9223372036854775807},'
            ' "\u00fc": {"0-0": -1}, "a": {}}'
        )
        expected = {
            PartitionId("b.c", BrokerPartition(1, 0)): -2,
            PartitionId("b.c", BrokerPartition(0, 2**31 - 1)): 2**63 - 1,
            PartitionId("ü", BrokerPartition(0, 0)): -1,
        }
        self.assertEqual(self.parsed("startingOffsets", text).startingOffsets, expected)

    def test_assignment(self) -> None:
        """A topic has a list of partitions, each of which counts once."""
        self.assertEqual(
            self.parsed("assign", '{"t": ["1-0", "0-3", "1-0"]}').assign,
            tuple(PartitionId("t", BrokerPartition(*each)) for each in ((0, 3), (1, 0))),
        )

    def test_refusals(self) -> None:
        """What is no map of offsets is refused, and the text says what is wrong."""
        for text, reason in (
            ("soon", "neither a known word nor JSON"),
            ("[1]", "must be an object of topics"),
            ("{}", "must be an object of topics"),
            ('{"t": 7}', "t must have an object of offsets"),
            ('{"t": {"0": 7}}', "'0' is not <broker>-<partition>"),
            ('{"t": {"0-0": -3}}', "which is neither an offset nor -1"),
            ('{"t": {"0-0": true}}', "which is neither an offset nor -1"),
            ('{"a/b": {}}', "has '/' in it"),
            ('{"t": {"0-0": 1}, "u": {}, "t": {"0-1": 2}}', "t appears twice"),
            ('{"t": {"0-0": 1, "0-0": 2}}', "0-0 appears twice"),
            ('{"t": {"0-0": 1, "00-0": 2}}', "t 0-0 appears twice, once as '00-0'"),
        ):
            self.assertIn(reason, self.refusal("startingOffsets", text))
        for text, reason in (
            ('{"t": []}', "t must have a list"),
            ('{"t": ["0"]}', "is not <broker>-<partition>"),
            ('{"": ["0-0"]}', "cannot be the name"),
            ('{"t": ["0-0"], "t": ["0-1"]}', "t appears twice"),
        ):
            self.assertIn(reason, self.refusal("assign", text))
