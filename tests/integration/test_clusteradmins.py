"""
Admin clients of others, and ours, on brokers that replicate: elections, reassignments, and brokers
that are gone.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from kafka import TopicPartition as PythonPartition
from kafka.admin import KafkaAdminClient
from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.client.kafka.admin.client import UNCLEAN, AdminClient
from pylogbroker.cluster.metadataimage import PartitionImage, TopicRecord
from pylogbroker.console.kafkacluster import KafkaClusterView
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import TopicPartition
from tests.broker.kafka.clusterbench import ClusterBench
from tests.cli.kafka.benchserver import BenchServer

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class _Cluster:
    """
    Three brokers; C{a} has a partition that broker 2 leads though broker 1 is preferred, and one on
    broker 3 alone.
    """

    def __init__(self, case: Any) -> None:
        self.bench = ClusterBench()
        self.server = BenchServer(self.bench)
        case.addCleanup(self.server.close)
        images = PartitionImage(2, 0, 0, (1, 2), (1, 2)), PartitionImage(3, 0, 0, (3,), (3,))
        topicId = self.bench.metadata.newTopicId()
        self.bench.change(
            TopicRecord("a", str(topicId), 2),
            *(each.record(topicId, index) for index, each in enumerate(images)),
        )

    def partition(self, index: int = 0) -> PartitionImage:
        return self.bench.metadata.image.topics["a"].partitions[index]

    def stop(self, brokerId: int) -> None:
        """A broker is gone."""
        self.bench.kill(brokerId)
        self.bench.fence(brokerId)


class ConfluentTests(SynchronousTestCase):
    """confluent-kafka: it can elect leaders, and create topics on brokers of its choice."""

    def test_elect(self) -> None:
        """The preferred replica leads; a second election is not needed."""
        cluster = _Cluster(self)
        admin = ConfluentAdmin({"bootstrap.servers": cluster.server.servers})
        wanted = [ConfluentPartition("a", 0)]
        found = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(20)
        self.assertEqual(list(found.values()), [None])
        self.assertEqual(cluster.partition().leader, 1)
        [error] = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(20).values()
        assert isinstance(error, (KafkaError, KafkaException)), error
        self.assertIn("ELECTION_NOT_NEEDED", repr(error))
        described = admin.describe_cluster().result(20)
        self.assertEqual(sorted(node.id for node in described.nodes), [1, 2, 3])


class KafkaPythonTests(SynchronousTestCase):
    """kafka-python."""

    def test_life(self) -> None:
        """An election; a reassignment, listed and stopped; another one, to its end."""
        cluster = _Cluster(self)
        cluster.server.isCatchingUp = False
        admin = KafkaAdminClient(bootstrap_servers=cluster.server.servers)
        self.addCleanup(admin.close)
        self.assertEqual(
            sorted(each["broker_id"] for each in admin.describe_cluster()["brokers"]), [1, 2, 3]
        )
        admin.elect_leaders(0, {"a": [0]})
        self.assertEqual(cluster.partition().leader, 1)
        where = PythonPartition("a", 1)
        self.assertEqual(admin.alter_partition_reassignments({where: [1, 2]}), {where: None})
        self.assertEqual(
            admin.list_partition_reassignments(),
            {where: {"replicas": [1, 2, 3], "adding_replicas": [1, 2], "removing_replicas": [3]}},
        )
        self.assertEqual(admin.alter_partition_reassignments({where: None}), {where: None})
        self.assertEqual(cluster.partition(1).replicas, (3,))


class TwistedTests(TestCase):
    """L{AdminClient}."""

    timeout = 60

    def setUp(self) -> None:
        self.cluster = _Cluster(self)
        settings = {"bootstrap.servers": self.cluster.server.servers}
        self.admin = AdminClient(reactor, settings)
        self.addCleanup(self.admin.close)

    def refused(self, error: object, code: ErrorCode) -> None:
        assert isinstance(error, ResponseError)
        self.assertEqual(error.code, code)

    async def test_elect(self) -> None:
        """Elections are answered at once, also refusals that pass for a producer."""
        self.assertEqual(await self.admin.electLeaders(None), {A0: None})
        self.assertEqual(self.cluster.partition().leader, 1)
        self.cluster.stop(3)
        found = await self.admin.electLeaders([A0, A1], UNCLEAN)
        self.refused(found[A0], ErrorCode.ELECTION_NOT_NEEDED)
        self.refused(found[A1], ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)

    async def test_reassign(self) -> None:
        """A reassignment is listed until it is complete; one can be stopped."""
        self.cluster.server.isCatchingUp = False
        self.assertEqual(await self.admin.alterPartitionReassignments({A1: [1, 2]}), {A1: None})
        [(where, part)] = (await self.admin.listPartitionReassignments()).items()
        self.assertEqual(
            (where, list(part.addingReplicas), list(part.removingReplicas)), (A1, [1, 2], [3])
        )
        self.assertEqual(await self.admin.listPartitionReassignments([A0]), {})
        self.assertEqual(await self.admin.alterPartitionReassignments({A1: None}), {A1: None})
        self.assertEqual(self.cluster.partition(1).replicas, (3,))

    async def test_gone(self) -> None:
        """A broker that is gone is told, and unregistered when it has no replicas."""
        self.cluster.stop(3)
        found = await self.admin.describeCluster()
        self.assertEqual([each.brokerId for each in found.brokers], [1, 2])
        found = await self.admin.describeCluster(includeFencedBrokers=True)
        self.assertEqual([each.brokerId for each in found.brokers if each.isFenced], [3])
        try:
            await self.admin.unregisterBroker(3)
        except ResponseError as error:
            self.refused(error, ErrorCode.INVALID_REQUEST)
        else:
            self.fail("it has replicas")
        await self.admin.deleteTopics(["a"])
        await self.admin.unregisterBroker(3)
        self.assertEqual(list(self.cluster.bench.metadata.image.brokers), [1, 2])
        self.assertEqual(sorted(await self.admin.describeLogDirs()), [1, 2])

    async def test_console(self) -> None:
        """The stand-alone console has the map of the cluster's brokers and partitions."""
        self.cluster.stop(3)
        view = KafkaClusterView(reactor, {"bootstrap.servers": self.cluster.server.servers})
        self.addCleanup(view.close)
        found = (await view.state())["cluster"]
        self.assertEqual(
            [(each["id"], each["state"], each["leaderCount"]) for each in found["brokers"]],
            [(1, "running", 0), (2, "running", 1), (3, "gone", 0)],
        )
        self.assertEqual(
            [(each["partition"], each["replicas"]) for each in found["partitions"]],
            [(1, {"3": "offline"}), (0, {"1": "in sync", "2": "leader"})],
        )
