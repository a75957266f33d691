"""Topics whose partitions are on several brokers."""

from __future__ import annotations

import errno
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.topics import NotLeaderOrFollowerError, batchLog
from pylogbroker.cluster.kafka.metadatalog import RECORDS_SIZE_MAX
from pylogbroker.cluster.metadataimage import (
    TOPIC,
    ConfigRecord,
    FenceBrokerRecord,
    MetadataImage,
    PartitionCountRecord,
    Record,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
    encodeRecords,
)
from pylogbroker.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    StorageError,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.elections import Loss
from pylogbroker.types import TopicPartition
from tests.broker.kafka.clusterbench import ClusterBench
from tests.broker.kafka.requestbench import ROOT, RequestBench
from tests.storage.batches import batch


class ClusterTopicTests(SynchronousTestCase):
    """L{pylogbroker.broker.kafka.topics.TopicManager} of several brokers."""

    def setUp(self) -> None:
        self.bench = ClusterBench()
        self.metadata = self.bench.metadata

    def create(self, name: str = "a", count: int = 3, by: int = 1) -> None:
        self.bench.do(self.bench.brokers[by].topics.create(name, count))

    def remove(self, name: str = "a", by: int = 1) -> None:
        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            return [RemoveTopicRecord(str(image.topics[name].topicId))], None

        self.bench.do(self.bench.brokers[by].topics.change(decide))

    def served(self, name: str = "a") -> dict[int, list[int]]:
        """The partitions that each broker serves."""
        return {
            brokerId: [index for index in range(9) if bench.topics.find(name, index) is not None]
            for brokerId, bench in self.bench.brokers.items()
        }

    def allServed(self) -> list[int]:
        return sorted(index for found in self.served().values() for index in found)

    def directories(self, brokerId: int) -> list[str]:
        """The partitions on a broker's disk."""
        names = self.bench.brokers[brokerId].files.list(ROOT)
        return sorted(name for name in names if name.startswith("a-"))

    def leaders(self) -> list[int]:
        return [each.leader for each in self.metadata.image.topics["a"].partitions]

    def test_created(self) -> None:
        """
        Each partition is on the disk of its broker alone, whichever broker was asked, and that is
        noted there.
        """
        self.create(count=6, by=2)
        leaders = self.leaders()
        self.assertEqual(sorted(leaders), [1, 1, 2, 2, 3, 3])
        for brokerId, found in self.served().items():
            own = [index for index, leader in enumerate(leaders) if leader == brokerId]
            self.assertEqual(found, own)
            self.assertEqual(self.directories(brokerId), [f"a-{index}" for index in own])
            bench = self.bench.brokers[brokerId]
            for index in own:
                self.assertTrue(bench.directory.isRemembered(TopicPartition("a", index)))
            text = bench.files.contents(f"{bench.directory.path}/replication-offset-checkpoint")
            self.assertEqual(text.count(b"a "), len(own))

    def test_losses(self) -> None:
        """
        What cannot be loaded is lost where another broker has it, too, and what is gone in any
        case; not what belongs to an earlier topic of the name, or is not this broker's.
        """
        bench = self.bench.brokers[1]
        topics, directory = bench.topics, bench.directory
        for name, assignment in (("r", (1, 2)), ("s", (1,)), ("o", (2,))):

            def decide(image: Any, name: str = name, replicas: Any = assignment) -> Any:
                return topics.newTopic(image, name, 1, {}, len(replicas), [replicas]), None

            self.bench.do(topics.change(decide))
        image = self.metadata.image
        keys = {name: (image.topics[name].topicId, 0) for name in "rso"}
        self.assertEqual(topics.losses(image), {})
        for name in "rso":
            place = TopicPartition(name, 0)
            directory.failures[place] = StorageError("/logs", "load", "it is damaged")
        self.assertEqual(topics.losses(image), {keys["r"]: Loss.ALL})
        directory.topicIds[TopicPartition("r", 0)] = UUID(int=1)
        self.assertEqual(topics.losses(image), {})
        directory.failures.clear()
        directory.topicIds.clear()
        directory.missing = {TopicPartition(name, 0) for name in "rso"}
        self.assertEqual(topics.losses(image), {keys["r"]: Loss.ALL, keys["s"]: Loss.ALL})
        directory.missing.clear()
        directory.shortened = {TopicPartition("s", 0)}
        self.assertEqual(topics.losses(image), {keys["s"]: Loss.ALL})  # nothing is left of it
        bench.broker.tryAppend(bench.partition("s", 0), batch(b"a"))
        self.bench.settle()
        self.assertEqual(topics.losses(image), {keys["s"]: Loss.SUFFIX})
        directory.shortened.clear()
        directory.isMemoryDamaged = True
        self.assertEqual(topics.losses(image), {})
        del directory.logs[TopicPartition("s", 0)]
        self.assertEqual(topics.losses(image), {keys["s"]: Loss.ALL})

    def test_answeredWhenOwnAreThere(self) -> None:
        """A change does not wait for the disks of other brokers."""
        topics = self.bench.brokers[1].topics
        creating = Deferred.fromCoroutine(topics.create("a", 3))
        self.bench.worker.performAll()
        self.assertNoResult(creating)
        self.bench.brokers[1].settle()
        self.successResultOf(creating)
        self.assertEqual(len(self.served()[1]), 1)
        self.assertEqual(self.served()[2], [])

    def test_unavailable(self) -> None:
        """What is asked of the wrong broker is told who leads; what does not exist is unknown."""
        self.create()
        image = self.metadata.image
        leader = self.leaders()[0]
        other = self.bench.brokers[leader % 3 + 1].topics
        error = other.unavailable(image.topics["a"], 0)
        assert isinstance(error, NotLeaderOrFollowerError)
        self.assertEqual(error.leader, (leader, 0))
        for topic, index in ((image.topics["a"], 3), (image.topics["a"], -1), (None, 0)):
            found = other.unavailable(topic, index)
            self.assertEqual(found.code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def test_grown(self) -> None:
        """More partitions go to all brokers, too."""
        self.create(count=1)

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            return self.bench.brokers[1].topics.morePartitions(image, image.topics["a"], 7), None

        self.bench.do(self.bench.brokers[1].topics.change(decide))
        self.assertEqual(self.allServed(), list(range(7)))
        self.assertEqual(set(map(bool, self.served().values())), {True})

    def test_settings(self) -> None:
        """A topic's settings, changed at one broker, hold at all."""
        self.create()
        topicId = str(self.metadata.image.topics["a"].topicId)
        self.bench.change(ConfigRecord(TOPIC, topicId, "max.message.bytes", "123"))
        for brokerId, (index,) in self.served().items():
            found = self.bench.brokers[brokerId].partition("a", index)
            self.assertEqual(batchLog(found).settings.batchSizeMax, 123)
        self.bench.change(ConfigRecord("cluster", "", "message.max.bytes", "77"))
        self.bench.change(ConfigRecord(TOPIC, topicId, "max.message.bytes", None))
        for brokerId, (index,) in self.served().items():
            found = self.bench.brokers[brokerId].partition("a", index)
            self.assertEqual(batchLog(found).settings.batchSizeMax, 77)

    def test_removed(self) -> None:
        """Each broker removes its own partitions; when all have, nothing is left."""
        self.create()
        self.remove(by=3)
        for brokerId in self.bench.brokers:
            self.assertEqual(self.directories(brokerId), [])
        image = self.metadata.image
        self.assertEqual((image.removing, image.removingBrokers), ({}, {}))

    def test_createdAgainWhileRemoved(self) -> None:
        """
        A topic of the name of one that is being removed is another topic: none of its partitions
        begins with old records, though the brokers have not removed those when it is created.
        """
        self.create()
        for brokerId, (index,) in self.served().items():
            bench = self.bench.brokers[brokerId]
            partition = bench.partition("a", index)

            bench.broker.tryAppend(partition, batch(b"old"))
            bench.settle()
        old = self.metadata.image.topics["a"].topicId
        topics = self.bench.brokers[1].topics

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            records: list[Record] = [RemoveTopicRecord(str(old))]
            later = image.copy()
            later.apply(records[0])
            return records + topics.newTopic(later, "a", 9, {}), None

        self.bench.do(topics.change(decide))
        self.assertEqual(self.allServed(), list(range(9)))
        for brokerId, indexes in self.served().items():
            for index in indexes:
                found = batchLog(self.bench.brokers[brokerId].partition("a", index))
                self.assertEqual(found.logEndOffset, 0)
                self.assertNotEqual(found.topicId, old)
        self.assertEqual(self.metadata.image.removing, {})

    def test_restarted(self) -> None:
        """A broker that starts again serves what it had."""
        self.create()
        before = self.served()
        files = self.bench.kill(2)
        self.bench.fence(2)
        self.bench.run(2, files)
        self.bench.settle()
        self.assertEqual(self.served()[2], [])
        self.assertEqual(self.bench.brokers[2].topics.hosted("a", before[2][0]) is None, False)
        self.bench.unfence(2)
        self.assertEqual(self.served(), before)
        self.assertEqual(
            batchLog(self.bench.brokers[2].partition("a", before[2][0])).leaderEpoch, 2
        )

    def test_createdWhileAway(self) -> None:
        """A broker that is fenced gets no partition; one that was away creates its own later."""
        files = self.bench.kill(2)
        self.create("a")
        (index,) = [at for at, leader in enumerate(self.leaders()) if leader == 2]
        self.bench.run(2, files)
        self.bench.settle()
        self.assertEqual(self.served()[2], [index])
        self.bench.fence(3)
        self.create("b", 4)
        leaders = {each.leader for each in self.metadata.image.topics["b"].partitions}
        self.assertEqual(leaders, {1, 2})

    def test_removedWhileAway(self) -> None:
        """A broker that was away finds out at its start; the name is free before that."""
        self.create()
        before = self.served()[2]
        files = self.bench.kill(2)
        self.remove()
        self.assertEqual(list(self.metadata.image.removing.values()), ["a"])
        self.create()
        self.bench.run(2, files)
        self.bench.settle()
        image = self.metadata.image
        self.assertEqual(image.removing, {})
        (index,) = self.served()[2]
        log = batchLog(self.bench.brokers[2].partition("a", index))
        self.assertEqual(log.topicId, image.topics["a"].topicId)
        self.assertEqual(self.directories(2), [f"a-{index}"])
        self.assertEqual(len(before), 1)

    def test_unregisteredWhileAway(self) -> None:
        """A removal does not wait for a broker that is given up."""
        self.create()
        self.bench.kill(2)
        self.remove()
        epoch = self.metadata.image.brokers[2].epoch
        self.bench.change(FenceBrokerRecord(2, epoch), UnregisterBrokerRecord(2))
        self.assertEqual(self.metadata.image.removing, {})

    def test_stray(self) -> None:
        """
        A partition of a topic that the metadata do not know is kept, and is not served; it keeps
        another topic of its name from having it, in clear words.
        """
        self.create()
        index = self.served()[2][0]
        files = self.bench.kill(2)
        self.bench = ClusterBench(seed=4)
        self.metadata = self.bench.metadata
        self.bench.kill(2)
        with capturedLogs() as events:
            self.bench.run(2, files)
            self.bench.settle()
        texts = " ".join(filter(None, map(formatEvent, events)))
        self.assertIn("Stray partitions of topic a", texts)
        self.assertIn("is of another protocol, or", self.failureOf("a", [[2]] * (index + 1)))
        self.bench.kill(2)
        with capturedLogs() as events:
            self.bench.run(2, files)
            self.bench.settle()
        self.assertIn("belongs to topic id", " ".join(filter(None, map(formatEvent, events))))
        self.assertEqual(self.directories(2), [f"a-{at}" for at in range(index + 1)])
        self.assertEqual(self.served()[2], list(range(index)))

    def failureOf(self, name: str, assignment: Any) -> str:
        """What broker 2 logs when it creates a topic."""
        topics = self.bench.brokers[2].topics

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            if name in image.topics:
                return [], None
            return self.bench.brokers[1].topics.newTopic(
                image, name, len(assignment), {}, assignment=assignment
            ), None

        with capturedLogs() as events:
            self.bench.do(topics.change(decide))
            self.bench.do(topics.create(name, 1))
        return " ".join(filter(None, map(formatEvent, events)))

    def test_given(self) -> None:
        """A partition that the image gives to another broker is removed here."""
        self.create("a", 1)
        topic = self.metadata.image.topics["a"]
        (part,) = topic.partitions
        other = part.leader % 3 + 1
        moved = part._replace(
            leader=other, leaderEpoch=5, partitionEpoch=9, replicas=(other,), inSync=(other,)
        )
        self.bench.change(moved.record(topic.topicId, 0))
        self.assertEqual(self.directories(part.leader), [])
        self.assertEqual(self.served()[other], [0])
        self.assertEqual(batchLog(self.bench.brokers[other].partition("a")).leaderEpoch, 5)

    def test_directoryOfAnotherBroker(self) -> None:
        """A broker does not take another's directory: it would remove what is not its own."""
        self.create()
        files = self.bench.kill(2)
        error = self.assertRaises(StorageError, self.bench.run, 3, files)
        self.assertIn("it is the directory of broker 2, and this is broker 3", str(error))

    def test_epochOfTheLogIsLater(self) -> None:
        """A partition whose log has seen a later leader than the metadata know is not served."""
        self.create()
        (index,) = self.served()[2]
        batchLog(self.bench.brokers[2].partition("a", index)).assignEpoch(7)
        with capturedLogs() as events:
            self.bench.fence(2)
            self.bench.unfence(2)
        self.assertEqual(self.served()[2], [])
        texts = [formatEvent(event) for event in events]
        self.assertTrue(
            [each for each in texts if "leader epoch 7, and the metadata only 2" in each]
        )

    def test_failedRemoval(self) -> None:
        """
        A directory that cannot be removed keeps its name from a new topic until the next start,
        which removes it.
        """
        self.create()
        (index,) = self.served()[2]
        files = self.bench.brokers[2].files
        files.fail("rename", f"a-{index}", errno.EIO)
        with capturedLogs() as events:
            self.remove()
            self.create("a", 9)
        texts = " ".join(filter(None, map(formatEvent, events)))
        self.assertIn(f"a-{index} cannot be removed", texts)
        self.assertIn("the next start of the broker tries again", texts)
        files.mend()
        self.bench.kill(2)
        self.bench.run(2, files)
        self.bench.settle()
        self.assertEqual(self.metadata.image.removing, {})
        self.assertEqual(self.allServed(), list(range(9)))

    def test_topicOf2011(self) -> None:
        """Another broker's topic of this name leaves the partition of 2011's protocol alone."""
        directory = self.bench.brokers[2].directory
        job = directory.beginCreate("a", 0)
        job.run()
        log = directory.finishCreate(job, None)
        text = self.failureOf("a", [[2]])
        self.assertIn("a-0 cannot be created", text)
        self.remove()
        self.assertEqual(self.directories(2), ["a-0"])
        self.assertIs(directory.logs[TopicPartition("a", 0)], log)
        files = self.bench.brokers[2].files
        self.bench.kill(2)
        self.bench.run(2, files)
        self.bench.settle()
        self.assertEqual(self.directories(2), ["a-0"])
        self.assertEqual(self.metadata.image.removing, {})

    def test_refused(self) -> None:
        """Replicas that cannot be, and too many partitions."""
        topics = self.bench.brokers[1].topics
        image = self.metadata.image
        error: Exception = self.assertRaises(
            InvalidReplicationFactorError, topics.newTopic, image, "a", 1, {}, 4
        )
        self.assertIn("only 3 broker(s) are registered", str(error))
        wrong: list[list[list[int]]] = [[[4]], [[1], [1, 2]], [[]]]
        for assignment in wrong:
            self.assertRaises(
                InvalidReplicaAssignmentError, topics.newTopic, image, "a", 1, {}, 1, assignment
            )
        self.create()
        self.bench.fence(3)
        image = self.metadata.image
        topic = image.topics["a"]
        error = self.assertRaises(
            InvalidReplicaAssignmentError, topics.morePartitions, image, topic, 5, [[1], [3]]
        )
        self.assertIn("for partition 4 are fenced", str(error))
        self.assertRaises(
            InvalidReplicaAssignmentError, topics.morePartitions, image, topic, 4, [[1, 2]]
        )
        found = topics.morePartitions(image, topic, 4, [[2]])
        self.assertIsInstance(found[0], PartitionCountRecord)
        error = self.assertRaises(KafkaError, topics.newTopic, image, "b", 3001, {})
        self.assertIn("3000 are possible at a time", str(error))
        size = len(encodeRecords(topics.newTopic(image, "b", 3000, {})))
        self.assertLess(size, RECORDS_SIZE_MAX)
        self.bench = ClusterBench({"max_partitions": "2"})
        self.create("a", 6)
        error = self.assertRaises(KafkaError, self.create, "b", 1)
        self.assertIn("would exceed max.partitions", str(error))

    def test_manyAtOnce(self) -> None:
        """Hundreds of partitions come and go, at most some at a time."""
        bench: RequestBench = self.bench.brokers[1]
        self.create("a", 900)
        self.assertEqual(sum(len(each.directory.logs) for each in self.bench.brokers.values()), 900)
        files = self.bench.kill(1)
        self.assertEqual(len(bench.directory.logs), 300)
        bench = self.bench.run(1, files)
        self.bench.settle()
        self.assertEqual(len(bench.directory.logs), 300)
        self.remove()
        self.assertEqual(len(bench.directory.logs), 0)
