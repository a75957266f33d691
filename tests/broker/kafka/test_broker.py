"""Kafka's current protocol, put together: what a client finds when it connects."""

from __future__ import annotations

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.broker.kafka.kafkacase import KafkaCase


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
        self.assertEqual((found["broker.id"], found["num.partitions"]), ("7", "3"))

    def test_logDirs(self) -> None:
        """The log directory has the partitions of the topics."""
        request = messages.DescribeLogDirsRequest(topics=None)
        (found,) = self.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, request).results
        self.assertEqual(found.logDir, self.lead.settings.logDir)
        self.assertEqual([(each.name, len(each.partitions)) for each in found.topics], [("t", 2)])
