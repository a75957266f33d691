"""Kafka's current protocol, put together: what a client finds when it connects."""

from __future__ import annotations

from uuid import UUID

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.storage.kafka.checkpoints import (
    MetaProperties,
    readMetaProperties,
    writeMetaProperties,
    writeTopicId,
)
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.types import TopicPartition
from tests.broker.kafka.kafkacase import KafkaCase
from tests.broker.kafka.requestbench import ROOT, RequestBench
from tests.broker.test_apachemetadata import A, batch, config, topic


class AdvertiseTests(KafkaCase):
    """What the broker says of itself."""

    properties = {"brokerid": "7", "num.partitions": "3", "hostname": "here.example"}

    def test_topicRequests(self) -> None:
        """The requests on topics, settings and logs are advertised, at all their versions."""
        response = self.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
        found = {each.apiKey: (each.minVersion, each.maxVersion) for each in response.apiKeys}
        for key in (
            ApiKey.METADATA,
            ApiKey.CREATE_TOPICS,
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.LIST_OFFSETS,
            ApiKey.INIT_PRODUCER_ID,
        ):
            self.assertEqual(found[key], (key.firstVersion, key.lastVersion))

    def test_metadata(self) -> None:
        """A client finds the broker under its name, and gets the topics that it asks for."""
        cls = messages.MetadataRequest
        names = ("new", "__consumer_offsets")
        request = cls(topics=[cls.MetadataRequestTopic(name=name) for name in names])
        response = self.ask(ApiKey.METADATA, 13, request)
        (broker,) = response.brokers
        self.assertEqual((broker.nodeId, broker.host, broker.port), (7, "here.example", 9092))
        self.assertEqual(response.controllerId, 7)
        self.assertEqual([len(topic.partitions) for topic in response.topics], [3, 50])
        topics = self.lead.service.kafka.topics.image.topics
        self.assertEqual(topics["__consumer_offsets"].configs["cleanup.policy"], "compact")

    def test_brokerConfigs(self) -> None:
        """The broker shows the settings that Kafka has, too."""
        cls = messages.DescribeConfigsRequest
        resource = cls.DescribeConfigsResource(
            resourceType=4, resourceName="7", configurationKeys=None
        )
        response = self.ask(ApiKey.DESCRIBE_CONFIGS, 4, cls(resources=[resource]))
        found = {each.name: each.value for each in response.results[0].configs}
        names = (
            "broker.id",
            "num.partitions",
            "default.replication.factor",
            "group.consumer.session.timeout.ms",
        )
        self.assertEqual([found[name] for name in names], ["7", "3", "1", "45000"])

    def test_logDirs(self) -> None:
        """The log directory has the partitions of the topics."""
        request = messages.DescribeLogDirsRequest(topics=None)
        (found,) = self.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, request).results
        self.assertEqual(found.logDir, self.lead.settings.logDir)
        self.assertEqual([(each.name, len(each.partitions)) for each in found.topics], [("t", 2)])


class DirectoryTests(SynchronousTestCase):
    """Whose a log directory is."""

    def test_identity(self) -> None:
        """
        A new directory gets cluster, node and directory id, which stay; a new node id is noted.
        """
        bench = RequestBench()
        first = readMetaProperties(bench.files, ROOT)
        assert first is not None
        clusterId = bench.kafka.metadata.image.clusterId
        self.assertEqual((first.clusterId, first.nodeId), (clusterId, 0))
        self.assertIsNotNone(first.directoryId)
        bench.directory.close()
        bench = RequestBench(bench.files, brokerid="5")
        self.assertEqual(readMetaProperties(bench.files, ROOT), first._replace(nodeId=5))

    def test_otherCluster(self) -> None:
        """A directory whose files name two clusters is refused."""
        bench = RequestBench()
        bench.directory.close()
        writeMetaProperties(bench.files, ROOT, MetaProperties("other", 0, None))
        error = self.assertRaises(StorageError, RequestBench, bench.files)
        self.assertIn("it names cluster other", str(error))

    def apaches(self) -> PowerCutFileSystem:
        """A directory of Apache's, with a topic."""
        files = PowerCutFileSystem()
        folder = f"{ROOT}/__cluster_metadata-0"
        files.makeDirectories(folder)
        writeMetaProperties(files, ROOT, MetaProperties("theirs", 1, None))
        records = [*topic("a", A), config(2, "a", "preallocate", "true")]
        files.open(f"{folder}/{0:020}.log", create=True).writeAt(0, [batch(0, *records)])
        files.open(f"{ROOT}/.kafka_cleanshutdown", create=True).close()
        return files

    def test_takenOver(self) -> None:
        """
        The first start on a directory of Apache's takes its metadata over, and creates what is
        missing; later starts do not look at them again.
        """
        files = self.apaches()
        with capturedLogs() as events:
            bench = RequestBench(files, brokerid="1")
        texts = [formatEvent(each) for each in events]
        self.assertTrue([each for each in texts if "a setting of topic a is left out" in each])
        self.assertEqual(bench.kafka.metadata.image.clusterId, "theirs")
        bench.append(b"x", name="a")
        bench.directory.close()
        files.remove(f"{ROOT}/__cluster_metadata-0/{0:020}.log")
        bench = RequestBench(files, brokerid="1")
        self.assertEqual(list(bench.topics.image.topics), ["a"])
        self.assertEqual(bench.topics.image.topics["a"].topicId, A)

    def test_otherTopic(self) -> None:
        """
        A partition of an earlier topic of the name, whose removal a kill has interrupted, is out of
        service: it gives no records to clients of the new one. It goes with the topic.
        """
        files = self.apaches()
        bench = RequestBench(files, brokerid="1")
        bench.append(b"x", name="a")
        bench.directory.close()
        writeTopicId(files, f"{ROOT}/a-0", UUID(int=99))
        with capturedLogs() as events:
            bench = RequestBench(files, brokerid="1")
        self.assertIn(TopicPartition("a", 0), bench.directory.failures)
        self.assertTrue([each for each in events if "belongs to topic id" in formatEvent(each)])
        self.assertIsNone(bench.topics.find("a", 0))

    def test_refused(self) -> None:
        """A directory that is refused is left as it was, and a later start may succeed."""
        files = self.apaches()
        self.assertRaises(StorageError, RequestBench, files)
        self.assertIsNotNone(files.status(f"{ROOT}/.kafka_cleanshutdown"))
        self.assertEqual(readMetaProperties(files, ROOT), MetaProperties("theirs", 1, None))
        bench = RequestBench(files, brokerid="1")
        self.assertEqual(list(bench.topics.image.topics), ["a"])
