"""What metrics and the console are told of a cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.administration import clusterstatus
from pylogbroker.broker.kafka.administration.clusterstatus import ClusterStatus
from pylogbroker.cluster.metadataimage import (
    BrokerShutdownRecord,
    ConfigRecord,
    PartitionImage,
    TopicRecord,
)
from pylogbroker.metrics.brokermetrics import ClusterSnapshot
from tests.broker.kafka.clusterbench import ClusterBench
from tests.broker.kafka.requestbench import RequestBench

PARTITIONS = (
    PartitionImage(1, 0, 0, (1, 2, 3), (1, 2, 3)),
    PartitionImage(1, 0, 0, (1, 2), (1,)),
    PartitionImage(2, 0, 0, (1, 2), (2, 1)),
    PartitionImage(1, 0, 0, (2, 1), (1,), adding=(2,)),
    PartitionImage(-1, 0, 0, (3,), (), lastKnownLeader=3),
)


class _Member(NamedTuple):
    """What a broker's part in a cluster says."""

    isController: bool
    lastChange: int


class ClusterStatusTests(SynchronousTestCase):
    """Three brokers, of which one is gone."""

    def setUp(self) -> None:
        self.bench = ClusterBench()
        self.bench.kill(3)
        self.bench.fence(3)
        topicId = self.topicId = self.bench.metadata.newTopicId()
        self.bench.change(
            TopicRecord("t", str(topicId), len(PARTITIONS)),
            *(each.record(topicId, index) for index, each in enumerate(PARTITIONS)),
        )

    def snapshot(self, brokerId: int, **more: Any) -> ClusterSnapshot:
        return ClusterStatus(self.bench.metadata, brokerId, **more).snapshot()

    def test_counts(self) -> None:
        """What each broker leads and has, and what all know alike."""
        found = self.snapshot(1)
        self.assertEqual(
            (found.leaderCount, found.replicaCount, found.underReplicatedCount), (3, 4, 1)
        )
        self.assertEqual((found.reassigningCount, found.underMinInSyncCount), (1, 0))
        self.assertEqual((found.offlineCount, found.imbalancedCount), (1, 2))
        self.assertEqual((found.brokerCount, found.fencedCount), (2, 1))
        found = self.snapshot(2)
        self.assertEqual(
            (found.leaderCount, found.replicaCount, found.underReplicatedCount), (1, 4, 0)
        )
        self.assertEqual((found.offlineCount, found.imbalancedCount), (1, 2))

    def test_minInSync(self) -> None:
        """Fewer in sync than the topic demands; a change of the image is seen."""
        status = ClusterStatus(self.bench.metadata, 1)
        self.assertEqual(status.snapshot().underMinInSyncCount, 0)
        self.bench.change(ConfigRecord("topic", str(self.topicId), "min.insync.replicas", "2"))
        self.assertEqual(status.snapshot().underMinInSyncCount, 2)

    def test_log(self) -> None:
        """Where the broker is in the log of the metadata, and who is the controller."""
        position = self.bench.metadata.position
        found = self.snapshot(1)
        self.assertEqual((found.metadataChange, found.metadataLag), (position, 0))
        self.assertTrue(found.isController)
        found = self.snapshot(1, membership=_Member(False, position + 4))
        self.assertEqual((found.metadataLag, found.isController), (4, False))
        found = self.snapshot(1, membership=_Member(True, position - 1))
        self.assertEqual((found.metadataLag, found.isController), (0, True))

    def test_map(self) -> None:
        """Partitions in trouble come first, and each replica has its word."""
        self.bench.change(BrokerShutdownRecord(2, self.bench.metadata.image.brokers[2].epoch))
        status = ClusterStatus(self.bench.metadata, 1)
        found = status.map()
        assert found is not None
        self.assertEqual(
            [(each["id"], each["state"], each["leaderCount"]) for each in found["brokers"]],
            [(1, "running", 3), (2, "stopping", 1), (3, "gone", 0)],
        )
        self.assertEqual(
            (found["partitionCount"], found["troubledCount"], found["offlineCount"]), (5, 3, 1)
        )
        self.assertEqual(
            [(each["partition"], each["replicas"]) for each in found["partitions"]],
            [
                (1, {"1": "leader", "2": "behind"}),
                (3, {"2": "being added", "1": "leader"}),
                (4, {"3": "offline"}),
                (0, {"1": "leader", "2": "in sync", "3": "offline"}),
                (2, {"1": "in sync", "2": "leader"}),
            ],
        )
        self.assertIs(status.map(), found)

    def test_mapLimit(self) -> None:
        """A map has a limit; what is in trouble is in it."""
        self.patch(clusterstatus, "MAP_COUNT_MAX", 4)
        found = ClusterStatus(self.bench.metadata, 1).map()
        assert found is not None
        self.assertEqual([each["partition"] for each in found["partitions"]], [1, 3, 4, 0])
        self.assertEqual(found["partitionCount"], 5)


class AloneTests(SynchronousTestCase):
    """A broker that keeps its metadata by itself."""

    def test_alone(self) -> None:
        """It leads all, and is the controller of a cluster of one."""
        bench = RequestBench()
        bench.create("a", 3)
        found = bench.kafka.clusterStatus.snapshot()
        self.assertEqual(
            found,
            ClusterSnapshot(3, 3, 0, 0, 0, 0, 0, True, 1, 0, bench.topics.metadata.position, 0),
        )
        self.assertIsNone(bench.kafka.clusterStatus.map())
