"""What clients are told by a broker that leads only some of the partitions."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, batchLog
from pylogbroker.cluster.kafka import metadatalog
from pylogbroker.cluster.metadataimage import BrokerShutdownRecord, PartitionImage
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.broker.kafka.clusterbench import ClusterBench
from tests.storage.batches import batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class ClusterCase(SynchronousTestCase):
    """
    Three brokers and a topic C{a}, of whose partitions each leads one.

    @ivar leaders: of the partitions.
    """

    properties: dict[str, str] = {}

    def setUp(self) -> None:
        self.bench = ClusterBench(self.properties)
        self.bench.do(self.bench.brokers[1].topics.create("a", 3))
        self.topic = self.bench.metadata.image.topics["a"]
        self.leaders = [each.leader for each in self.topic.partitions]

    def other(self, index: int = 0) -> int:
        """A broker that does not lead a partition."""
        return self.leaders[index] % 3 + 1


class MetadataTests(ClusterCase):
    """Metadata, DescribeCluster, DescribeTopicPartitions."""

    def metadata(self, version: int = 13, by: int = 1, listener: str = "PLAINTEXT") -> Any:
        wanted = messages.MetadataRequest(topics=None if version else [])
        return self.bench.ask(by, ApiKey.METADATA, version, wanted, listener)

    def test_brokers(self) -> None:
        """Each broker names all, with the addresses of the listener that the client has used."""
        for by in (1, 2, 3):
            for listener, host, port in (("PLAINTEXT", "b", 9092), ("OUTSIDE", "o", 9093)):
                found = self.metadata(by=by, listener=listener)
                self.assertEqual(
                    [(each.nodeId, each.host, each.port) for each in found.brokers],
                    [(each, f"{host}{each}", port) for each in (1, 2, 3)],
                )
                self.assertEqual(found.controllerId, by)
                parts = found.topics[0].partitions
                self.assertEqual([each.leaderId for each in parts], self.leaders)
                for part, leader in zip(parts, self.leaders, strict=True):
                    self.assertEqual(
                        (part.errorCode, part.leaderEpoch, part.replicaNodes, part.isrNodes),
                        (0, 0, [leader], [leader]),
                    )

    def test_fenced(self) -> None:
        """A broker that is gone is not named, and what it led has no leader."""
        self.bench.fence(2)
        index = self.leaders.index(2)
        for version, code, replicas in (
            (13, ErrorCode.LEADER_NOT_AVAILABLE, [2]),
            (5, ErrorCode.LEADER_NOT_AVAILABLE, [2]),
            (0, ErrorCode.LEADER_NOT_AVAILABLE, []),
        ):
            found = self.metadata(version)
            self.assertEqual([each.nodeId for each in found.brokers], [1, 3])
            part = found.topics[0].partitions[index]
            self.assertEqual(
                (part.errorCode, part.leaderId, part.replicaNodes), (code, -1, replicas)
            )
        part = self.metadata(7).topics[0].partitions[index]
        self.assertEqual((part.offlineReplicas, part.leaderEpoch), ([2], 1))
        self.bench.unfence(2)
        part = self.metadata(7).topics[0].partitions[index]
        self.assertEqual((part.errorCode, part.leaderId, part.leaderEpoch), (0, 2, 2))

    def test_otherListener(self) -> None:
        """A leader without the listener that the client has used cannot be reached."""
        record = self.bench.registration(2)
        self.bench.change(record._replace(endpoints=record.endpoints[:1]))
        index = self.leaders.index(2)
        for version, code in (
            (13, ErrorCode.LISTENER_NOT_FOUND),
            (6, ErrorCode.LISTENER_NOT_FOUND),
            (5, ErrorCode.LEADER_NOT_AVAILABLE),
        ):
            found = self.metadata(version, listener="OUTSIDE")
            self.assertEqual([each.nodeId for each in found.brokers], [1, 3])
            part = found.topics[0].partitions[index]
            self.assertEqual((part.errorCode, part.leaderId), (code, -1))
        self.assertEqual(self.metadata(13).topics[0].partitions[index].errorCode, 0)

    def test_outOfService(self) -> None:
        """A broker does not name itself as the leader of a log that is out of service."""
        index = self.leaders.index(2)
        log = self.bench.brokers[2].partition("a", index).log
        log.failure = self.bench.brokers[2].directory  # type: ignore[assignment]
        part = self.metadata(by=2).topics[0].partitions[index]
        self.assertEqual(
            (part.errorCode, part.leaderId, part.offlineReplicas),
            (ErrorCode.LEADER_NOT_AVAILABLE, -1, [2]),
        )

    def test_oldestClients(self) -> None:
        """Version 0 leaves out replicas that cannot be reached, and says so."""
        part = self.topic.partitions[0]
        more = part._replace(
            partitionEpoch=9, replicas=(*part.replicas, 9), inSync=(*part.inSync, 9)
        )
        self.bench.change(more.record(self.topic.topicId, 0))
        found = self.metadata(0).topics[0].partitions[0]
        self.assertEqual(
            (found.errorCode, found.replicaNodes, found.isrNodes),
            (ErrorCode.REPLICA_NOT_AVAILABLE, [self.leaders[0]], [self.leaders[0]]),
        )
        found = self.metadata(1).topics[0].partitions[0]
        self.assertEqual((found.errorCode, found.replicaNodes), (0, [self.leaders[0], 9]))

    def test_createdByMetadata(self) -> None:
        """A topic that a Metadata request creates is answered with its leaders."""
        wanted = messages.MetadataRequest(
            topics=[messages.MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)]
        )
        (topic,) = self.bench.ask(1, ApiKey.METADATA, 13, wanted).topics
        self.assertEqual((topic.errorCode, len(topic.partitions)), (0, 50))
        self.assertEqual({each.leaderId for each in topic.partitions}, {1, 2, 3})

    def test_describeCluster(self) -> None:
        """All brokers, and on request those that are fenced."""
        self.bench.fence(3)
        for isAll, expected in ((False, [(1, False), (2, False)]), (True, [1, 2, (3, True)])):
            request = messages.DescribeClusterRequest(includeFencedBrokers=isAll)
            found = self.bench.ask(1, ApiKey.DESCRIBE_CLUSTER, 2, request, "OUTSIDE")
            self.assertEqual(
                [(each.brokerId, each.isFenced) for each in found.brokers],
                [each if isinstance(each, tuple) else (each, False) for each in expected],
            )
            self.assertEqual(found.brokers[0].host, "o1")

    def test_topicPartitions(self) -> None:
        """Replicas, epochs and those that are eligible to lead come from the metadata."""
        part = self.topic.partitions[0]
        changed = part._replace(
            leader=-1,
            leaderEpoch=3,
            partitionEpoch=9,
            inSync=(),
            replicas=(1, 2),
            eligibleLeaders=(2,),
            lastKnownLeader=1,
        )
        self.bench.change(changed.record(self.topic.topicId, 0))
        request = messages.DescribeTopicPartitionsRequest
        body = request(topics=[request.TopicRequest(name="a")])
        (topic,) = self.bench.ask(2, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body).topics
        found = topic.partitions[0]
        self.assertEqual(
            (found.errorCode, found.leaderId, found.leaderEpoch, found.replicaNodes),
            (0, -1, 3, [1, 2]),
        )
        self.assertEqual((found.eligibleLeaderReplicas, found.lastKnownElr), ([2], [1]))
        found = topic.partitions[1]
        self.assertEqual((found.leaderId, found.lastKnownElr), (self.leaders[1], []))


class TopicRequestTests(ClusterCase):
    """CreateTopics and CreatePartitions."""

    def create(self, name: str = "b", **fields: Any) -> Any:
        cls = messages.CreateTopicsRequest
        topic = cls.CreatableTopic(name=name, **fields)
        body = cls(topics=[topic], timeoutMs=1000)
        (found,) = self.bench.ask(1, ApiKey.CREATE_TOPICS, 7, body).topics
        return found

    def assignment(self, *replicas: list[int]) -> list[Any]:
        made = messages.CreateTopicsRequest.CreatableReplicaAssignment
        return [made(partitionIndex=index, brokerIds=each) for index, each in enumerate(replicas)]

    def test_created(self) -> None:
        """Placed by the cluster, or where the client wants them."""
        found = self.create(numPartitions=6, replicationFactor=1)
        self.assertEqual((found.errorCode, found.numPartitions, found.replicationFactor), (0, 6, 1))
        found = self.create(
            "c", numPartitions=-1, replicationFactor=-1, assignments=self.assignment([3], [1], [3])
        )
        self.assertEqual((found.errorCode, found.numPartitions), (0, 3))
        topic = self.bench.metadata.image.topics["c"]
        self.assertEqual([each.leader for each in topic.partitions], [3, 1, 3])

    def test_refused(self) -> None:
        """With Kafka's codes."""
        factor = ErrorCode.INVALID_REPLICATION_FACTOR
        wrong = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        self.bench.change(BrokerShutdownRecord(3, self.bench.metadata.image.brokers[3].epoch))
        auto = {"numPartitions": -1, "replicationFactor": -1}
        for code, text, fields in (
            (factor, "only 2 broker(s)", {"numPartitions": 1, "replicationFactor": 3}),
            (wrong, "no such broker", {**auto, "assignments": self.assignment([8])}),
            (wrong, "controlled shutdown", {**auto, "assignments": self.assignment([3])}),
            (wrong, "more than once", {**auto, "assignments": self.assignment([1, 1])}),
        ):
            found = self.create(**fields)
            self.assertEqual(found.errorCode, code)
            self.assertIn(text, found.errorMessage)

    def test_grown(self) -> None:
        """More partitions, also where the client wants them."""
        cls = messages.CreatePartitionsRequest
        made = cls.CreatePartitionsAssignment
        for count, assignments, code in (
            (4, None, ErrorCode.NONE),
            (6, [made(brokerIds=[2]), made(brokerIds=[2])], ErrorCode.NONE),
            (7, [made(brokerIds=[9])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ):
            topic = cls.CreatePartitionsTopic(name="a", count=count, assignments=assignments)
            body = cls(topics=[topic], timeoutMs=1000)
            (found,) = self.bench.ask(1, ApiKey.CREATE_PARTITIONS, 3, body).results
            self.assertEqual(found.errorCode, code)
        partitions = self.bench.metadata.image.topics["a"].partitions
        self.assertEqual([each.leader for each in partitions[4:]], [2, 2])


class LeaderTests(ClusterCase):
    """Requests to brokers that lead a partition, and to others."""

    def produce(self, by: int, version: int = 12, index: int = 0, topicId: bytes = b"") -> Any:
        cls = messages.ProduceRequest
        part = cls.PartitionProduceData(index=index, records=batch(b"x"))
        topic = cls.TopicProduceData(name="a", topicId=topicId or ZERO_UUID, partitionData=[part])
        body = cls(acks=-1, timeoutMs=1000, topicData=[topic])
        return self.bench.ask(by, ApiKey.PRODUCE, version, body, "OUTSIDE")

    def fetch(self, by: int, version: int = 16, index: int = 0, **fields: Any) -> Any:
        return self.bench.ask(by, ApiKey.FETCH, version, self.fetchBody(index, **fields), "OUTSIDE")

    def fetchBody(self, index: int = 0, maxWaitMs: int = 0, epoch: int = -1) -> Any:
        cls = messages.FetchRequest
        part = cls.FetchPartition(
            partition=index, fetchOffset=0, partitionMaxBytes=1000, currentLeaderEpoch=epoch
        )
        topic = cls.FetchTopic(topic="a", topicId=self.topic.topicId.bytes, partitions=[part])
        return cls(maxWaitMs=maxWaitMs, minBytes=1, maxBytes=1000, topics=[topic])

    def nodes(self, response: Any) -> list[tuple[int, str, int]]:
        return [(each.nodeId, each.host, each.port) for each in response.nodeEndpoints]

    def test_produce(self) -> None:
        """The leader takes it; another broker says who leads, and where (KIP-951)."""
        leader, other = self.leaders[0], self.other()
        for version, topicId in ((12, b""), (13, self.topic.topicId.bytes)):
            (part,) = self.produce(leader, version, topicId=topicId).responses[0].partitionResponses
            self.assertEqual(part.errorCode, 0)
            response = self.produce(other, version, topicId=topicId)
            (part,) = response.responses[0].partitionResponses
            self.assertEqual(part.errorCode, NOT_LEADER)
            found = part.currentLeader
            self.assertEqual((found.leaderId, found.leaderEpoch), (leader, 0))
            self.assertEqual(self.nodes(response), [(leader, f"o{leader}", 9093)])
        response = self.produce(other, 9)
        (part,) = response.responses[0].partitionResponses
        self.assertEqual((part.errorCode, part.currentLeader.leaderId), (NOT_LEADER, -1))
        (part,) = self.produce(other, 12, 7).responses[0].partitionResponses
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        (part,) = self.produce(other, 13, topicId=b"z" * 16).responses[0].partitionResponses
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_ID)

    def test_noLeader(self) -> None:
        """Without a leader there is none to name."""
        self.bench.fence(self.leaders[0])
        response = self.produce(self.other())
        (part,) = response.responses[0].partitionResponses
        self.assertEqual((part.errorCode, part.currentLeader.leaderId), (NOT_LEADER, -1))
        self.assertEqual(part.currentLeader.leaderEpoch, 1)
        self.assertEqual(self.nodes(response), [])

    def test_fetch(self) -> None:
        """As with Produce; a fetch that waits for other partitions is answered at once."""
        leader, other = self.leaders[0], self.other()
        self.produce(leader)
        (part,) = self.fetch(leader).responses[0].partitions
        self.assertEqual((part.errorCode, bool(part.records)), (0, True))
        for version in (17, 16):
            response = self.fetch(other, version, maxWaitMs=5000)
            (part,) = response.responses[0].partitions
            self.assertEqual(part.errorCode, NOT_LEADER)
            self.assertEqual(
                (part.currentLeader.leaderId, part.currentLeader.leaderEpoch), (leader, 0)
            )
            self.assertEqual(self.nodes(response), [(leader, f"o{leader}", 9093)])
        response = self.fetch(other, 15)
        (part,) = response.responses[0].partitions
        self.assertEqual((part.errorCode, part.currentLeader.leaderId), (NOT_LEADER, -1))
        (part,) = self.fetch(other, 12).responses[0].partitions
        self.assertEqual(part.errorCode, NOT_LEADER)

    def test_fetchOfBoth(self) -> None:
        """A partition that is led elsewhere ends the wait for one that is led here."""
        leader, other = self.leaders[0], self.other()
        body = self.fetchBody(0, maxWaitMs=5000)
        body.topics[0].partitions += self.fetchBody(self.leaders.index(other)).topics[0].partitions
        response = self.bench.ask(leader, ApiKey.FETCH, 16, body)
        codes = {each.partitionIndex: each.errorCode for each in response.responses[0].partitions}
        self.assertEqual(codes, {self.leaders.index(other): NOT_LEADER, 0: 0})

    def test_epochs(self) -> None:
        """The epochs of clients are compared with those of the metadata, which batches carry."""
        leader = self.leaders[0]
        self.bench.fence(leader)
        self.bench.unfence(leader)
        self.produce(leader)
        log = batchLog(self.bench.brokers[leader].partition("a", 0))
        self.assertEqual((log.leaderEpoch, log.epochs.latest), (2, 2))
        for epoch, code in (
            (1, ErrorCode.FENCED_LEADER_EPOCH),
            (2, ErrorCode.NONE),
            (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            (part,) = self.fetch(leader, epoch=epoch).responses[0].partitions
            self.assertEqual(part.errorCode, code)
        files = self.bench.kill(leader)
        self.bench.run(leader, files)
        self.bench.settle()
        log = batchLog(self.bench.brokers[leader].partition("a", 0))
        self.assertEqual((log.leaderEpoch, log.epochs.latest), (2, 2))

    def test_notCurrent(self) -> None:
        """A broker that may have been replaced leads nothing, and does not know who does."""
        leader = self.leaders[0]
        self.bench.metadata._log.isCurrent = False  # type: ignore[misc]
        for response in (
            self.produce(leader),
            self.produce(leader, 13, 0, self.topic.topicId.bytes),
        ):
            (part,) = response.responses[0].partitionResponses
            self.assertEqual((part.errorCode, part.currentLeader.leaderId), (NOT_LEADER, -1))
        (part,) = self.fetch(leader).responses[0].partitions
        self.assertEqual((part.errorCode, part.currentLeader.leaderId), (NOT_LEADER, -1))
        self.bench.metadata._log.isCurrent = True  # type: ignore[misc]
        (part,) = self.produce(leader).responses[0].partitionResponses
        self.assertEqual(part.errorCode, 0)

    def test_logs(self) -> None:
        """What asks the log of a partition is refused by other brokers, too."""
        lists, epochs = messages.ListOffsetsRequest, messages.OffsetForLeaderEpochRequest
        deletes, describes = messages.DeleteRecordsRequest, messages.DescribeProducersRequest
        bodies: list[tuple[ApiKey, int, Any]] = [
            (
                ApiKey.LIST_OFFSETS,
                7,
                lists(
                    replicaId=-1,
                    topics=[
                        lists.ListOffsetsTopic(
                            name="a",
                            partitions=[lists.ListOffsetsPartition(partitionIndex=0, timestamp=-1)],
                        )
                    ],
                ),
            ),
            (
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                4,
                epochs(
                    topics=[
                        epochs.OffsetForLeaderTopic(
                            topic="a",
                            partitions=[epochs.OffsetForLeaderPartition(partition=0)],
                        )
                    ]
                ),
            ),
            (
                ApiKey.DELETE_RECORDS,
                2,
                deletes(
                    topics=[
                        deletes.DeleteRecordsTopic(
                            name="a",
                            partitions=[deletes.DeleteRecordsPartition(partitionIndex=0, offset=0)],
                        )
                    ]
                ),
            ),
            (
                ApiKey.DESCRIBE_PRODUCERS,
                0,
                describes(topics=[describes.TopicRequest(name="a", partitionIndexes=[0])]),
            ),
        ]
        for key, version, body in bodies:
            for by, code in ((self.leaders[0], 0), (self.other(), NOT_LEADER)):
                (topic,) = self.bench.ask(by, key, version, body).topics
                self.assertEqual(topic.partitions[0].errorCode, code, key)

    def test_logDirectories(self) -> None:
        """Each broker tells of its own partitions, also of those that have no leader now."""
        self.bench.fence(2)
        body = messages.DescribeLogDirsRequest(topics=None)
        for by in (1, 2, 3):
            (found,) = self.bench.ask(by, ApiKey.DESCRIBE_LOG_DIRS, 4, body).results
            (topic,) = found.topics
            indexes = [each.partitionIndex for each in topic.partitions]
            self.assertEqual(indexes, [self.leaders.index(by)])

    def test_settings(self) -> None:
        """A broker's own settings hold for it alone, and only it shows and changes them."""
        cls = messages.IncrementalAlterConfigsRequest
        config = cls.AlterableConfig(name="message.max.bytes", configOperation=0, value="99")
        for by, code in ((2, 0), (1, ErrorCode.INVALID_REQUEST)):
            resource = cls.AlterConfigsResource(resourceType=4, resourceName="2", configs=[config])
            body = cls(resources=[resource])
            (found,) = self.bench.ask(by, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
            self.assertEqual(found.errorCode, code)
        sizes = {
            by: batchLog(bench.partition("a", self.leaders.index(by))).settings.batchSizeMax
            for by, bench in self.bench.brokers.items()
        }
        self.assertEqual(sizes, {1: 1048588, 2: 99, 3: 1048588})
        described = messages.DescribeConfigsRequest
        for by, name, code, value in (
            (2, "2", 0, "99"),
            (1, "1", 0, "1048588"),
            (1, "2", ErrorCode.INVALID_REQUEST, None),
        ):
            wanted = described.DescribeConfigsResource(
                resourceType=4, resourceName=name, configurationKeys=["message.max.bytes"]
            )
            body = described(resources=[wanted])
            (result,) = self.bench.ask(by, ApiKey.DESCRIBE_CONFIGS, 4, body).results
            self.assertEqual(result.errorCode, code)
            self.assertEqual([each.value for each in result.configs], [value] * (value is not None))


class CoordinatorTests(ClusterCase):
    """Groups and transactional ids are served by the leaders of their partitions."""

    properties = {
        "offsets_topic_num_partitions": "6",
        "transaction_state_log_num_partitions": "6",
        "group_initial_rebalance_delay_ms": "0",
    }

    def find(self, key: str, by: int, keyType: int = 0) -> Any:
        body = messages.FindCoordinatorRequest(keyType=keyType, coordinatorKeys=[key])
        (found,) = self.bench.ask(by, ApiKey.FIND_COORDINATOR, 4, body, "OUTSIDE").coordinators
        return found

    def commit(self, by: int, group: str, offset: int) -> int:
        cls = messages.OffsetCommitRequest
        part = cls.OffsetCommitRequestPartition(partitionIndex=0, committedOffset=offset)
        topic = cls.OffsetCommitRequestTopic(name="a", partitions=[part])
        body = cls(groupId=group, topics=[topic])
        (found,) = self.bench.ask(by, ApiKey.OFFSET_COMMIT, 8, body).topics
        return int(found.partitions[0].errorCode)

    def committed(self, by: int, group: str) -> int | tuple[int]:
        """The offset, or a tuple of the error."""
        cls = messages.OffsetFetchRequest
        topic = cls.OffsetFetchRequestTopic(name="a", partitionIndexes=[0])
        body = cls(groupId=group, topics=[topic])
        found = self.bench.ask(by, ApiKey.OFFSET_FETCH, 7, body)
        if found.errorCode:
            return (int(found.errorCode),)
        return int(found.topics[0].partitions[0].committedOffset)

    def groups(self, by: int) -> list[str]:
        found = self.bench.ask(by, ApiKey.LIST_GROUPS, 4, messages.ListGroupsRequest())
        return [each.groupId for each in found.groups]

    def test_found(self) -> None:
        """All brokers name the same coordinator, which alone serves the group."""
        served: dict[int, list[str]] = {1: [], 2: [], 3: []}
        for number in range(20):
            group = f"g{number}"
            answers = [self.find(group, by) for by in (1, 2, 3)]
            self.assertEqual({each.errorCode for each in answers}, {0})
            (nodeId,) = {each.nodeId for each in answers}
            self.assertEqual({each.host for each in answers}, {f"o{nodeId}"})
            for by in (1, 2, 3):
                code = 0 if by == nodeId else ErrorCode.NOT_COORDINATOR
                self.assertEqual(self.commit(by, group, number), code)
            self.assertEqual(self.committed(nodeId, group), number)
            served[nodeId].append(group)
        self.assertEqual(
            {each: sorted(self.groups(each)) for each in served},
            {each: sorted(found) for each, found in served.items()},
        )
        self.assertNotIn([], served.values())

    def test_moved(self) -> None:
        """
        When the leader of a partition is gone, its groups have no coordinator; when it leads again,
        in another epoch, it has read them anew.
        """
        nodeId = self.find("g", 1).nodeId
        self.assertEqual(self.commit(nodeId, "g", 5), 0)
        self.bench.fence(nodeId)
        by = nodeId % 3 + 1
        self.assertEqual(self.find("g", by).errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.committed(nodeId, "g"), (ErrorCode.NOT_COORDINATOR,))
        self.assertEqual(self.groups(nodeId), [])
        self.bench.unfence(nodeId)
        self.assertEqual(self.find("g", by).nodeId, nodeId)
        self.assertEqual(self.committed(nodeId, "g"), 5)

    def test_loading(self) -> None:
        """While its partition is read, a group is told to wait, and a lost one is forgotten."""
        nodeId = self.find("g", 1).nodeId
        self.assertEqual(self.commit(nodeId, "g", 5), 0)
        self.bench.fence(nodeId)
        performAll = self.bench.brokers[nodeId].readWorker.performAll
        self.bench.brokers[nodeId].readWorker.performAll = _doNothing  # type: ignore[method-assign]
        self.bench.unfence(nodeId)
        self.assertEqual(self.committed(nodeId, "g"), (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,))
        self.bench.fence(nodeId)
        self.assertEqual(self.committed(nodeId, "g"), (ErrorCode.NOT_COORDINATOR,))
        self.bench.unfence(nodeId)
        self.bench.brokers[nodeId].readWorker.performAll = performAll  # type: ignore[method-assign]
        self.bench.settle()
        self.assertEqual(self.committed(nodeId, "g"), 5)
        self.assertEqual(self.groups(nodeId), ["g"])

    def test_restarted(self) -> None:
        """A broker that starts again reads what it leads."""
        nodeId = self.find("g", 1).nodeId
        self.assertEqual(self.commit(nodeId, "g", 5), 0)
        files = self.bench.kill(nodeId)
        self.bench.run(nodeId, files)
        self.bench.settle()
        self.assertEqual(self.committed(nodeId, "g"), 5)

    def test_loadedBeforeItIsCurrent(self) -> None:
        """A broker that does not know yet whether it is registered loads what it is to serve."""
        nodeId = self.find("g", 1).nodeId
        self.assertEqual(self.commit(nodeId, "g", 5), 0)
        files = self.bench.kill(nodeId)
        self.bench.metadata._log.isCurrent = False  # type: ignore[misc]
        self.bench.run(nodeId, files)
        self.bench.settle()
        self.bench.metadata._log.isCurrent = True  # type: ignore[misc]
        self.assertEqual(self.committed(nodeId, "g"), 5)

    def test_transactionalIds(self) -> None:
        """Likewise the coordinators of transactions."""
        for number in range(6):
            answers = [self.find(f"t{number}", by, 1) for by in (1, 2, 3)]
            (nodeId,) = {each.nodeId for each in answers}
            for by in (1, 2, 3):
                body = messages.InitProducerIdRequest(
                    transactionalId=f"t{number}", transactionTimeoutMs=1000
                )
                found = self.bench.ask(by, ApiKey.INIT_PRODUCER_ID, 4, body)
                code = 0 if by == nodeId else ErrorCode.NOT_COORDINATOR
                self.assertEqual(found.errorCode, code)

    def test_deleted(self) -> None:
        """When the topic is removed by another broker, no group is served; then anew."""
        nodeId = self.find("g", 1).nodeId
        self.assertEqual(self.commit(nodeId, "g", 5), 0)
        cls = messages.DeleteTopicsRequest
        body = cls(topics=[cls.DeleteTopicState(name=OFFSETS_TOPIC)], timeoutMs=1000)
        by = nodeId % 3 + 1
        (found,) = self.bench.ask(by, ApiKey.DELETE_TOPICS, 6, body).responses
        self.assertEqual(found.errorCode, 0)
        self.assertEqual(self.committed(nodeId, "g"), (ErrorCode.NOT_COORDINATOR,))
        nodeId = self.find("g", by).nodeId
        self.assertEqual(self.committed(nodeId, "g"), -1)


def _doNothing(countMax: int = 0) -> int:
    return 0


class SettingsTests(ClusterCase):
    """Settings that decide who may lead."""

    def alter(self, kind: int, owner: str, name: str, value: str) -> None:
        cls = messages.IncrementalAlterConfigsRequest
        config = cls.AlterableConfig(name=name, configOperation=0, value=value)
        resource = cls.AlterConfigsResource(resourceType=kind, resourceName=owner, configs=[config])
        wanted = cls(resources=[resource], validateOnly=False)
        (found,) = self.bench.ask(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, wanted).responses
        self.assertEqual((found.errorCode, found.errorMessage), (0, None))

    def test_clusterWide(self) -> None:
        """
        These settings are equal on all brokers: a value for a single broker is refused. So is the
        removal of the cluster's value, since a broker's file would seem to be in force then.
        """
        cls = messages.IncrementalAlterConfigsRequest
        self.alter(4, "", "min.insync.replicas", "2")
        for owner, operation in (("1", 0), ("", 1)):
            config = cls.AlterableConfig(
                name="min.insync.replicas", configOperation=operation, value="3"
            )
            resource = cls.AlterConfigsResource(
                resourceType=4, resourceName=owner, configs=[config]
            )
            wanted = cls(resources=[resource], validateOnly=False)
            (found,) = self.bench.ask(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, wanted).responses
            self.assertEqual(found.errorCode, ErrorCode.INVALID_CONFIG)
        self.alter(4, "", "min.insync.replicas", "3")
        self.alter(4, "1", "message.max.bytes", "99")
        configs = self.bench.metadata.image.brokerConfigs
        self.assertEqual(configs[""], {"min.insync.replicas": "3"})
        self.assertEqual(configs["1"], {"message.max.bytes": "99"})

    def lead(self, part: PartitionImage) -> None:
        """Give partition 0 another state."""
        self.bench.change(part.record(self.topic.topicId, 0))

    @property
    def part(self) -> PartitionImage:
        return self.bench.metadata.image.topics["a"].partitions[0]

    def test_lessInSync(self) -> None:
        """
        With a lower min.insync.replicas a leader may commit alone: those that were eligible are
        not any more, in the same change.
        """
        for kind, owner in ((4, ""), (2, "a")):
            self.alter(kind, owner, "min.insync.replicas", "2")
            self.lead(PartitionImage(2, 5, self.part.partitionEpoch + 1, (1, 2), (2,), (1,)))
            self.alter(kind, owner, "min.insync.replicas", "1")
            self.assertEqual((self.part.inSync, self.part.eligibleLeaders), ((2,), ()))

    def test_unclean(self) -> None:
        """Where unclean election is allowed from now on, a partition without a leader has one."""
        self.lead(PartitionImage(-1, 5, 7, (1, 2), (), ()))
        self.alter(2, "a", "unclean.leader.election.enable", "true")
        self.assertEqual((self.part.leader, self.part.inSync), (1, (1,)))

    def test_split(self) -> None:
        """What does not fit into one change is written in several; each of them is whole."""
        self.alter(4, "", "min.insync.replicas", "2")
        for index in range(3):
            part = PartitionImage(2, 5, 7, (1, 2), (2,), (1,))
            self.bench.change(part.record(self.topic.topicId, index))
        self.patch(metadatalog, "RECORDS_SIZE_MAX", 1)
        before = self.bench.metadata.position
        self.alter(4, "", "min.insync.replicas", "1")
        self.assertEqual(self.bench.metadata.position, before + 4)
        found = self.bench.metadata.image.topics["a"].partitions
        self.assertEqual([each.eligibleLeaders for each in found], [()] * 3)
