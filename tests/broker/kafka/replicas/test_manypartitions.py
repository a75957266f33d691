"""What many partitions at rest cost: counts, on two brokers that fetch from each other."""

from __future__ import annotations

from typing import Any

from pylogbroker.broker.kafka.fetchsessions import FetchSessionCache
from pylogbroker.broker.kafka.topics import batchLog
from pylogbroker.broker.logmanager import Partition
from pylogbroker.cluster.metadataimage import PartitionRecord, Record, TopicRecord
from pylogbroker.errors import StorageError
from pylogbroker.protocol.kafka.fetch import FetchRequest
from pylogbroker.replication.follower import FollowerReplica
from pylogbroker.replication.leader import LeaderReplica
from pylogbroker.storage.partitionlog import MarkKind
from tests.broker.kafka.clustercase import ClusterCase
from tests.broker.kafka.kafkacase import batchOf

TOPIC_ID = "12345678-1234-4234-8234-1234567800ee"
COUNT = 150
EPOCH = 4
MAX_OPEN = 20
BOTH = [0, 1]


class ManyPartitionsTests(ClusterCase):
    """
    C{m} has many partitions; the brokers lead them in turn, and each follows the other.

    @ivar requests: the fetches of replicas.
    """

    propertiesOf = ({"max.open.segments": str(MAX_OPEN)},) * 2

    def records(self) -> list[Record]:
        return [
            *super().records(),
            TopicRecord("m", TOPIC_ID, COUNT),
            *(
                PartitionRecord(TOPIC_ID, each, each % 2, EPOCH, 0, BOTH, BOTH, [], -1, [], [])
                for each in range(COUNT)
            ),
        ]

    def setUp(self) -> None:
        super().setUp()
        self.go(3)
        self.requests: list[FetchRequest] = []
        begin = FetchSessionCache.begin

        def noted(cache: Any, request: FetchRequest, *more: Any) -> Any:
            if request.replicaId >= 0:
                self.requests.append(request)
            return begin(cache, request, *more)

        self.patch(FetchSessionCache, "begin", noted)

    def images(self) -> Any:
        return self.leads[0].service.kafka.metadata.image.topics["m"].partitions

    def go(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds * 20)):
            self.reactor.advance(0.05)
            self.lead.settle()

    def hosted(self, broker: int, index: int) -> Partition:
        found = self.leads[broker].service.kafka.topics.hosted("m", index)
        assert found is not None
        return found

    def partition(self, index: int) -> Partition:
        """At its leader."""
        return self.hosted(index % 2, index)

    @property
    def named(self) -> list[int]:
        """The partitions that the requests have named."""
        return [
            each.partition
            for request in self.requests
            for topic in request.topics
            for each in topic.partitions
        ]

    def counted(self, owner: type, name: str) -> list[object]:
        """The calls of a method from now on."""
        calls: list[object] = []
        method = getattr(owner, name)

        def call(*given: Any) -> Any:
            calls.append(given)
            return method(*given)

        self.patch(owner, name, call)
        return calls

    def test_rest(self) -> None:
        """At rest, neither the clock nor a fetch looks at any partition."""
        calls = [
            self.counted(LeaderReplica, "timePassed"),
            self.counted(LeaderReplica, "fetched"),
            self.counted(FollowerReplica, "nextFetch"),
            self.counted(FollowerReplica, "answered"),
        ]
        self.go(5)
        self.assertEqual([len(each) for each in calls], [0] * 4)
        self.assertEqual((self.named, len(self.requests) > 4), ([], True))

    def test_oneIsWritten(self) -> None:
        """A record of one partition concerns that one only."""
        looked = self.counted(LeaderReplica, "fetched")
        self.leads[0].service._broker.tryAppend(self.partition(4), batchOf(b"x"))
        self.partition(4).write()
        self.go(5)
        self.assertEqual(self.hosted(1, 4).log.logEndOffset, 1)
        self.assertEqual({*self.named}, {4})
        self.assertLess(len(looked), 10)

    def test_metadata(self) -> None:
        """A change of one partition concerns that one only; another leads, and is followed."""
        changed = self.counted(LeaderReplica, "metadataChanged")
        before = self.images()[6]
        record = before._replace(leader=1, leaderEpoch=EPOCH + 1, partitionEpoch=99)
        self.change([record.record(self.image().topics["m"].topicId, 6)])
        self.go(2)
        self.assertEqual((len(changed), {*self.named}), (0, {6}))

    def image(self) -> Any:
        return self.leads[0].service.kafka.metadata.image

    def test_disk(self) -> None:
        """Logs that fail together are given up in one change."""
        metadata = self.leads[0].service.kafka.metadata
        position = metadata.position
        for index in range(0, COUNT, 2):
            error = StorageError(f"/logs/m-{index}", "write", "the disk is gone")
            batchLog(self.partition(index))._fail(error)
        self.go(2)
        self.assertEqual({each.leader for each in self.images()}, {1})
        self.assertEqual(metadata.position, position + 1)

    def test_descriptors(self) -> None:
        """However many partitions are written, few files stay open."""
        for index in range(COUNT):
            lead = self.leads[index % 2]
            lead.service._broker.tryAppend(self.partition(index), batchOf(b"x"))
            self.partition(index).write()
        self.go(2)
        for broker in range(2):
            for each in range(COUNT):
                found = self.hosted(broker, each)
                self.assertEqual(found.log.logEndOffset, 1)
                found.whenReached(MarkKind.FLUSHED, 1, lambda _error: None)
        self.go(2)
        for lead in self.leads:
            self.assertLessEqual(lead.service.directory.cache.openCount, MAX_OPEN)
