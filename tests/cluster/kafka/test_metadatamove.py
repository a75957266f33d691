"""What a move of a broker's metadata writes."""

from __future__ import annotations

from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka import metadatalog
from pylogbroker.cluster.kafka.metadatamove import nextMove
from pylogbroker.cluster.metadataimage import (
    CLUSTER_DEFAULT,
    GROUP,
    TOPIC,
    AclRecord,
    ClusterRecord,
    ConfigRecord,
    MetadataImage,
    PartitionImage,
    ProducerIdsRecord,
    QuotaRecord,
    Record,
    RemoveTopicRecord,
    ScramCredentialRecord,
    TopicRecord,
)
from pylogbroker.errors import MetadataError

OTHERS: list[Record] = [
    ConfigRecord(CLUSTER_DEFAULT, "", "retention.ms", "5"),
    ConfigRecord(GROUP, "g", "n", "v"),
    AclRecord(2, 3, "t", "User:a", "*", 3, 3),
    QuotaRecord({"user": "a"}, "producer_byte_rate", 1.0),
    ScramCredentialRecord("a", 1, "c2FsdA==", "a2V5", "a2V5", 4096),
]


def imageOf(*records: Record) -> MetadataImage:
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


def topicRecords(name: str, number: int, count: int = 2) -> list[Record]:
    topicId = str(UUID(int=number))
    return [TopicRecord(name, topicId, count), ConfigRecord(TOPIC, topicId, "retention.ms", "7")]


class MoveTests(SynchronousTestCase):
    """L{nextMove}."""

    def setUp(self) -> None:
        self.local = imageOf(
            ClusterRecord("L" * 22),
            *topicRecords("a", 1),
            *topicRecords("b", 2, 3),
            TopicRecord("gone", str(UUID(int=3)), 1),
            RemoveTopicRecord(str(UUID(int=3))),
            *OTHERS,
            ProducerIdsRecord(2_000),
        )

    def move(self, cluster: MetadataImage) -> int:
        """Carries a move out. Returns the number of changes."""
        for changes in range(1_000):
            records = nextMove(self.local, cluster, 5)
            if not records:
                return changes
            for record in records:
                cluster.apply(record)
        raise AssertionError("it does not end")

    def verify(self, cluster: MetadataImage) -> None:
        own = PartitionImage(5, 0, 0, (5,), (5,))
        for name, topic in self.local.topics.items():
            expected = topic._replace(partitions=(own,) * topic.partitionCount)
            self.assertEqual(cluster.topics[name], expected)
        self.assertGreaterEqual(cluster.nextProducerId, 2_000)

    def test_newCluster(self) -> None:
        """Everything is in the new cluster; the broker has and leads its partitions."""
        cluster = imageOf(ClusterRecord("L" * 22))
        self.assertEqual(self.move(cluster), 1)
        self.verify(cluster)
        self.assertEqual(set(cluster.topics), {"a", "b"})
        found = list(map(repr, cluster.records()))
        for record in OTHERS:
            self.assertIn(repr(record), found)

    def test_inSteps(self) -> None:
        """
        What does not fit in one change is continued, also by another run. A topic comes with its
        partitions, unless it is too large by itself.
        """
        self.patch(metadatalog, "RECORDS_SIZE_MAX", 1_200)
        for number in range(10, 20):
            for record in topicRecords(f"t{number}", number):
                self.local.apply(record)
        for record in topicRecords("large", 30, 40):
            self.local.apply(record)
        cluster = imageOf(ClusterRecord("L" * 22))
        while records := nextMove(self.local, cluster, 5):
            for record in records:
                cluster.apply(record)
            for topic in cluster.topics.values():
                if topic.name != "large":
                    self.assertEqual(len(topic.partitions), topic.partitionCount)
        self.verify(cluster)
        self.assertEqual(nextMove(self.local, cluster, 5), [])

    def test_intoCluster(self) -> None:
        """A cluster of another id takes the topics, if it has everything else."""
        own = topicRecords("own", 9)
        cluster = imageOf(ClusterRecord("C" * 22), *own, *OTHERS)
        self.move(cluster)
        self.verify(cluster)
        self.assertEqual((cluster.clusterId, set(cluster.topics)), ("C" * 22, {"a", "b", "own"}))

    def test_conflicts(self) -> None:
        """What contradicts is named, and nothing is moved."""
        base = [ClusterRecord("C" * 22)]
        for records, text in (
            (topicRecords("b", 7), "topics of these names already: b"),
            ([], "lacks rules, users, quotas or settings"),
            ([*OTHERS, ProducerIdsRecord(1_000)], "both given ids to producers"),
        ):
            cluster = imageOf(*base, *records)
            error = self.assertRaises(MetadataError, nextMove, self.local, cluster, 5)
            self.assertIn(text, str(error))

    def test_many(self) -> None:
        """Of many conflicts some are named."""
        records = [each for at in range(10, 20) for each in topicRecords(f"t{at}", at)]
        for record in records:
            self.local.apply(record)
        others = [each for at in range(20, 30) for each in topicRecords(f"t{at - 10}", at)]
        cluster = imageOf(ClusterRecord("C" * 22), *others)
        error = self.assertRaises(MetadataError, nextMove, self.local, cluster, 5)
        self.assertIn("t14 and 5 more", str(error))
