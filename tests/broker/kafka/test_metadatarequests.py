"""What clients are told of the cluster and its topics."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka import metadatarequests
from pylogbroker.broker.kafka.metadatarequests import (
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    MetadataRequests,
)
from pylogbroker.broker.kafka.topicrequests import TopicDefaults
from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    ReachableBroker,
    Record,
    RemoveTopicRecord,
)
from pylogbroker.errors import StorageError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.broker.kafka.requestbench import RequestBench

NONE_ASKED = -(2**31)
METADATA, CLUSTER = ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER
PARTITIONS = ApiKey.DESCRIBE_TOPIC_PARTITIONS


def wanted(*names: str | None, **fields: Any) -> Any:
    """A Metadata request for some topics."""
    cls = messages.MetadataRequest
    return cls(topics=[cls.MetadataRequestTopic(name=name) for name in names], **fields)


class MetadataCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.bench = RequestBench()
        self.serve()

    def serve(self, **defaults: Any) -> None:
        requests = MetadataRequests(
            self.bench.topics,
            lambda state: {0: ReachableBroker(0, "broker.example", 9092)},
            TopicDefaults(**defaults),
        )
        self.bench.handlers = requests.handlers

    def codes(self, response: Any) -> list[tuple[str | None, int]]:
        return [(topic.name, topic.errorCode) for topic in response.topics]


class MetadataTests(MetadataCase):
    """Metadata."""

    def test_allTopics(self) -> None:
        """Version 0 asks for all topics with an empty list, later ones with null."""
        self.bench.create("a", 2)
        self.bench.create("__consumer_offsets")
        response: Any = None
        for version, request in (
            (0, wanted()),
            (1, messages.MetadataRequest(topics=None)),
            (13, messages.MetadataRequest(topics=None)),
        ):
            response = self.bench.ask(METADATA, version, request)
            (broker,) = response.brokers
            self.assertEqual((broker.nodeId, broker.host, broker.port), (0, "broker.example", 9092))
            self.assertEqual(self.codes(response), [("a", 0), ("__consumer_offsets", 0)])
            first, second = response.topics[0].partitions
            self.assertEqual((first.partitionIndex, second.partitionIndex), (0, 1))
            self.assertEqual(
                (second.errorCode, second.leaderId, second.replicaNodes, second.isrNodes),
                (0, 0, [0], [0]),
            )
        self.assertEqual(response.clusterId, self.bench.topics.image.clusterId)
        self.assertEqual(response.controllerId, 0)
        self.assertEqual([topic.isInternal for topic in response.topics], [False, True])
        self.assertEqual(
            response.topics[0].topicId, self.bench.topics.image.topics["a"].topicId.bytes
        )
        self.assertEqual(response.topics[0].topicAuthorizedOperations, NONE_ASKED)

    def test_noTopics(self) -> None:
        """From version 1 on, an empty list asks for the cluster alone."""
        self.bench.create("a")
        response = self.bench.ask(METADATA, 1, wanted())
        self.assertEqual((response.topics, len(response.brokers)), ([], 1))

    def test_autoCreation(self) -> None:
        """A topic that the request creates is answered with partitions that take records."""
        self.serve(partitionCount=3, internal={"__consumer_offsets": (5, {"segment.ms": "7"})})
        waiting = self.bench.begin(METADATA, 13, wanted("a", "__consumer_offsets", "a"))
        self.assertNoResult(waiting)
        response = self.bench.do(waiting)
        self.assertEqual(self.codes(response), [("a", 0), ("__consumer_offsets", 0)])
        self.assertEqual([len(topic.partitions) for topic in response.topics], [3, 5])
        self.assertEqual({each.leaderId for each in response.topics[1].partitions}, {0})
        internal = self.bench.topics.image.topics["__consumer_offsets"]
        self.assertEqual(internal.configs, {"segment.ms": "7"})
        self.bench.append(b"x", name="a")

    def test_noAutoCreation(self) -> None:
        """Neither the client, nor the broker may want it; then a topic is unknown, or invalid."""
        expected = [
            ("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("b/c", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        request = wanted("a", "b/c", allowAutoTopicCreation=False)
        self.assertEqual(self.codes(self.bench.ask(METADATA, 4, request)), expected)
        self.serve(isAutoCreating=False)
        self.assertEqual(self.codes(self.bench.ask(METADATA, 13, wanted("a", "b/c"))), expected)
        self.assertEqual(self.bench.topics.image.topics, {})

    def test_refusedCreation(self) -> None:
        """What cannot be created says why; a name of a topic of 2011 is invalid, not retriable."""
        job = self.bench.directory.beginCreate("old", 0)
        job.run()
        self.bench.directory.finishCreate(job, None)
        response = self.bench.ask(METADATA, 13, wanted("old", "b/c", "new"))
        self.assertEqual(
            self.codes(response),
            [
                ("old", ErrorCode.INVALID_TOPIC_EXCEPTION),
                ("b/c", ErrorCode.INVALID_TOPIC_EXCEPTION),
                ("new", 0),
            ],
        )
        listed = self.bench.ask(METADATA, 13, messages.MetadataRequest(topics=None))
        self.assertEqual(self.codes(listed), [("new", 0)])

    def test_topicOfAnotherBroker(self) -> None:
        """So is the name of a topic of 2011 on another broker of the cluster."""

        async def find(name: str) -> str | None:
            return "/brokers/topics/old" if name == "old" else None

        self.bench.topics.findOf2011 = find
        response = self.bench.ask(METADATA, 13, wanted("old", "new"))
        expected = [("old", ErrorCode.INVALID_TOPIC_EXCEPTION), ("new", 0)]
        self.assertEqual(self.codes(response), expected)

    def test_createdWhileDeleted(self) -> None:
        """A topic that is being deleted is unknown, and is created when its client asks again."""
        self.bench.create("a")

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            return [RemoveTopicRecord(str(image.topics["a"].topicId))], None

        removing = Deferred.fromCoroutine(self.bench.topics.change(decide))
        self.bench.worker.perform()
        self.assertEqual(list(self.bench.topics.image.removing.values()), ["a"])
        waiting = self.bench.begin(METADATA, 13, wanted("a"))
        self.assertEqual(
            self.codes(self.bench.do(waiting)), [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        )
        self.bench.do(removing)
        self.assertEqual(self.codes(self.bench.ask(METADATA, 13, wanted("a"))), [("a", 0)])

    def test_byId(self) -> None:
        """From version 12 on topics can be asked for by id; an unknown one has no name."""
        self.bench.create("a")
        topicId = self.bench.topics.image.topics["a"].topicId.bytes
        cls = messages.MetadataRequest
        request = cls(
            topics=[
                cls.MetadataRequestTopic(name=None, topicId=topicId),
                cls.MetadataRequestTopic(name=None, topicId=b"\1" * 16),
            ]
        )
        response = self.bench.ask(METADATA, 12, request)
        self.assertEqual(
            [(each.name, each.topicId, each.errorCode) for each in response.topics],
            [("a", topicId, 0), (None, b"\1" * 16, ErrorCode.UNKNOWN_TOPIC_ID)],
        )

    def test_invalid(self) -> None:
        """Before version 12 an id, or no name, is an error of the whole request."""
        cls = messages.MetadataRequest
        for topic in (
            cls.MetadataRequestTopic(name=None),
            cls.MetadataRequestTopic(name="a", topicId=b"\1" * 16),
        ):
            response = self.bench.ask(METADATA, 10, cls(topics=[topic]))
            self.assertEqual(response.topics[0].errorCode, ErrorCode.INVALID_REQUEST)
        response = self.bench.ask(METADATA, 13, cls(topics=[cls.MetadataRequestTopic(name=None)]))
        self.assertEqual(response.errorCode, ErrorCode.UNKNOWN_SERVER_ERROR)
        self.assertEqual(self.bench.topics.image.topics, {})

    def test_operations(self) -> None:
        """Operations are told to those who ask: all, as nothing is refused."""
        self.bench.create("a")
        request = wanted(
            "a", includeTopicAuthorizedOperations=True, includeClusterAuthorizedOperations=True
        )
        response = self.bench.ask(METADATA, 8, request)
        self.assertEqual(response.clusterAuthorizedOperations, CLUSTER_OPERATIONS)
        self.assertEqual(response.topics[0].topicAuthorizedOperations, TOPIC_OPERATIONS)
        request.includeClusterAuthorizedOperations = False
        response = self.bench.ask(METADATA, 13, request)
        self.assertEqual(response.clusterAuthorizedOperations, NONE_ASKED)
        self.assertEqual(response.topics[0].topicAuthorizedOperations, TOPIC_OPERATIONS)

    def test_offline(self) -> None:
        """A partition that has failed, or is not there yet, has no leader."""
        self.bench.create("a")
        self.bench.partition("a").log.failure = StorageError("", "x", "", errno.EIO)
        creating = Deferred.fromCoroutine(self.bench.topics.create("b", 1))
        self.bench.worker.perform()
        response = self.bench.ask(METADATA, 13, messages.MetadataRequest(topics=None))
        for topic in response.topics:
            (part,) = topic.partitions
            self.assertEqual(
                (topic.errorCode, part.errorCode, part.leaderId, part.offlineReplicas),
                (0, ErrorCode.LEADER_NOT_AVAILABLE, -1, [0]),
            )
        self.assertEqual(len(response.topics), 2)
        self.bench.do(creating)


class ClusterTests(MetadataCase):
    """DescribeCluster."""

    def test_cluster(self) -> None:
        """Every version tells broker, controller and cluster id."""
        for version in (0, 2):
            request = messages.DescribeClusterRequest(includeClusterAuthorizedOperations=True)
            response = self.bench.ask(CLUSTER, version, request)
            (broker,) = response.brokers
            self.assertEqual(
                (broker.brokerId, broker.host, broker.port), (0, "broker.example", 9092)
            )
            self.assertEqual(response.clusterId, self.bench.topics.image.clusterId)
            self.assertEqual(response.clusterAuthorizedOperations, CLUSTER_OPERATIONS)
        response = self.bench.ask(CLUSTER, 2, messages.DescribeClusterRequest())
        self.assertEqual(response.clusterAuthorizedOperations, NONE_ASKED)

    def test_endpoints(self) -> None:
        """Controllers are asked elsewhere; other kinds do not exist."""
        for kind, code in (
            (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        ):
            request = messages.DescribeClusterRequest(endpointType=kind)
            self.assertEqual(self.bench.ask(CLUSTER, 1, request).errorCode, code)


class TopicPartitionsTests(MetadataCase):
    """DescribeTopicPartitions."""

    def ask(
        self, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
        """(name, code, partitions) of the topics, and the next cursor."""
        cls = messages.DescribeTopicPartitionsRequest
        request = cls(
            topics=[cls.TopicRequest(name=name) for name in names], responsePartitionLimit=limit
        )
        if cursor is not None:
            request.cursor = cls.Cursor(topicName=cursor[0], partitionIndex=cursor[1])
        self.response = response = self.bench.ask(PARTITIONS, 0, request)
        found = [
            (topic.name, topic.errorCode, [part.partitionIndex for part in topic.partitions])
            for topic in response.topics
        ]
        after = response.nextCursor
        return found, None if after is None else (after.topicName, after.partitionIndex)

    def test_pages(self) -> None:
        """A limit of partitions gives pages, which together are all topics in order."""
        self.bench.create("b", 3)
        self.bench.create("a", 2)
        self.bench.create("c", 1)
        self.assertEqual(self.ask(), ([("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])], None))
        self.assertEqual(self.ask(limit=2), ([("a", 0, [0, 1])], ("b", 0)))
        self.assertEqual(self.ask(limit=4), ([("a", 0, [0, 1]), ("b", 0, [0, 1])], ("b", 2)))
        self.assertEqual(self.ask(limit=2, cursor=("b", 2)), ([("b", 0, [2]), ("c", 0, [0])], None))
        self.assertEqual(self.ask(limit=0, cursor=("b", 9)), ([("b", 0, []), ("c", 0, [0])], None))
        self.patch(metadatarequests, "DESCRIBED_COUNT_MAX", 2)
        self.assertEqual(self.ask(), ([("a", 0, [0, 1])], ("b", 0)))

    def test_topics(self) -> None:
        """Each topic that was named is answered; lists are empty, not null, as Spark needs them."""
        self.bench.create("a")
        found, _ = self.ask("z", "a", "b/c")
        self.assertEqual(
            found,
            [
                ("a", 0, [0]),
                ("b/c", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
                ("z", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
            ],
        )
        topic = self.response.topics[0]
        (part,) = topic.partitions
        self.assertEqual(
            (part.leaderId, part.replicaNodes, part.isrNodes, part.offlineReplicas),
            (0, [0], [0], []),
        )
        self.assertEqual((part.eligibleLeaderReplicas, part.lastKnownElr), ([], []))
        self.assertEqual(topic.topicAuthorizedOperations, TOPIC_OPERATIONS)
        self.assertNotEqual(topic.topicId, ZERO_UUID)

    def test_badCursor(self) -> None:
        """A cursor at a topic that was not asked for, or before the first partition."""
        code = ErrorCode.INVALID_REQUEST
        self.assertEqual(self.ask("a", cursor=("b", 0)), ([("a", code, [])], None))
        self.assertEqual(self.ask("a", cursor=("a", -1)), ([("a", code, [])], None))
