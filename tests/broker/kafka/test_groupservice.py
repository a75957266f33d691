"""The coordinator of groups with its log, over restarts, power cuts, failures and the clock."""

from __future__ import annotations

import errno

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators import coordinatorlog
from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC
from pylogbroker.cluster.metadataimage import RemoveTopicRecord
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.groupcase import GROUP, PARTITION, GroupCase


class TopicTests(GroupCase):
    """The topic of positions."""

    def test_created(self) -> None:
        """The first look for a coordinator creates the topic, and is answered when it is there."""
        answer = self.send(ApiKey.FIND_COORDINATOR, 4, coordinatorKeys=[GROUP, "h"])
        self.assertIsNone(answer.body)
        self.lead.settle()
        self.assertEqual([each.errorCode for each in answer.body.coordinators], [0, 0])
        topic = self.lead.service.kafka.topics.image.topics[OFFSETS_TOPIC]
        self.assertEqual(topic.partitionCount, 2)
        self.assertEqual(topic.configs["cleanup.policy"], "compact")

    def test_createdByMetadata(self) -> None:
        """A client that asks for the topic creates it the same way; it serves groups then, too."""
        cls = ApiKey.METADATA.requestClass
        asked = [cls.MetadataRequestTopic(name=OFFSETS_TOPIC)]
        (topic,) = self.ask(ApiKey.METADATA, 9, topics=asked).topics
        self.assertEqual((topic.errorCode, topic.isInternal, len(topic.partitions)), (0, True, 2))
        configs = self.lead.service.kafka.topics.image.topics[OFFSETS_TOPIC].configs
        self.assertEqual(configs["cleanup.policy"], "compact")
        answer = self.commit(1)
        self.lead.settle()
        self.assertEqual(self.committed(answer), [ErrorCode.NONE])
        self.assertEqual(self.find().errorCode, 0)
        self.commit(2)
        self.lead.settle()
        self.assertEqual(self.position(), 2)

    def test_notCreated(self) -> None:
        """If the topic cannot be created, clients are told to try again."""
        self.lead.stop()
        self.restart(properties={"max.partitions": "1"})
        self.assertEqual(self.find().errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.find().errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def test_missingPartition(self) -> None:
        """A partition that cannot be created is not served; the others are."""
        self.lead.fileSystem.fail("create", f"{OFFSETS_TOPIC}-0", errno.EIO)
        self.assertEqual(self.find(key="h").errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.find().errorCode, 0)

    def test_before(self) -> None:
        """Without the topic, this broker serves no group."""
        answer = self.commit(1)
        self.assertEqual(self.committed(answer), [ErrorCode.NOT_COORDINATOR])

    def test_otherPartitionCount(self) -> None:
        """A topic that is there keeps its number of partitions, whatever the settings say."""
        self.stable()
        self.lead.stop()
        self.restart(properties={"offsets.topic.num.partitions": "7"})
        self.assertEqual(self.find().errorCode, 0)
        self.assertEqual(len(self.ask(ApiKey.LIST_GROUPS, 4).groups), 1)

    def test_deleted(self) -> None:
        """When the topic is deleted, groups are not served until it is created anew."""
        joined = self.stable()
        self.delete(OFFSETS_TOPIC)
        self.assertEqual(self.heartbeat(joined), ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.find().errorCode, 0)
        self.assertEqual(self.heartbeat(joined), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_topicOfPositionsDeleted(self) -> None:
        """A deleted topic takes its positions along, in the log, too."""
        self.find()
        self.commit(5)
        self.lead.settle()
        self.assertEqual(self.position(), 5)
        self.delete("t")
        self.assertEqual(self.position(), -1)
        self.lead.stop()
        self.restart()
        self.assertEqual(self.position(), -1)

    def delete(self, name: str) -> None:
        topics = self.lead.service.kafka.topics
        topicId = str(topics.image.topics[name].topicId)
        changing = Deferred.fromCoroutine(
            topics.change(lambda image: ([RemoveTopicRecord(topicId)], None))
        )
        self.lead.settle()
        self.successResultOf(changing)


class DurableTests(GroupCase):
    """What was answered survives."""

    def test_restart(self) -> None:
        """Members and positions survive an orderly restart."""
        joined = self.stable()
        self.commit(7, joined)
        self.lead.settle()
        self.lead.stop()
        self.restart()
        self.assertEqual(self.position(), 7)
        self.assertEqual(self.heartbeat(joined), ErrorCode.NONE)

    def test_powerCut(self) -> None:
        """A commit is answered when it is flushed, and then survives a power cut."""
        joined = self.stable()
        answer = self.commit(7, joined)
        self.lead.turn()
        self.assertEqual(self.committed(answer), [])
        log = self.offsetsLog()
        self.assertEqual(log.flushedOffset, log.logEndOffset - 1)
        self.lead.settle()
        self.assertEqual(self.committed(answer), [ErrorCode.NONE])
        self.commit(8, joined)
        self.lead.turn()  # not flushed
        self.lead.fileSystem.cutPower()
        self.restart()
        self.assertEqual(self.position(), 7)
        self.assertEqual(self.heartbeat(joined), ErrorCode.NONE)

    def test_withoutFlush(self) -> None:
        """Where acks=all does not flush, a commit is answered from the page cache."""
        self.lead = self.made({"log.flush.acks.all": "false"})
        self.createTopic("t")
        self.find()
        answer = self.commit(3)
        self.lead.turn()
        self.assertEqual(self.committed(answer), [ErrorCode.NONE])
        self.lead.fileSystem.kill()
        self.restart()
        self.assertEqual(self.position(), 3)

    def test_loading(self) -> None:
        """While the groups are read, clients are told to try again."""
        self.find()
        self.commit(7)
        self.lead.settle()
        self.lead.stop()
        self.startUnsettled()
        answer = self.commit(8)
        self.assertEqual(self.committed(answer), [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
        self.lead.settle()
        self.assertEqual(self.position(), 7)

    def test_stoppedWhileLoading(self) -> None:
        """A stop does not wait for the groups."""
        self.find()
        self.commit(7)
        self.lead.settle()
        self.lead.stop()
        self.startUnsettled()
        self.lead.service.kafka.endWaits()
        self.lead.settle()
        answer = self.commit(8)
        self.assertEqual(self.committed(answer), [ErrorCode.NOT_COORDINATOR])

    def test_compactedWhileLoading(self) -> None:
        """What is compacted while the groups are read is read all the same."""
        self.find()
        for offset in range(5):
            self.commit(offset)
            self.lead.settle()
        self.lead.logManager.roll(self.lead.partition(OFFSETS_TOPIC, PARTITION))
        self.lead.settle()
        self.lead.stop()
        self.startUnsettled()
        self.lead.advance(15)
        for _ in range(20):
            self.lead.flushWorker.performAll()
            self.lead.turn()
        self.assertEqual(self.offsetsLog().cleanedOffset, 5)
        answer = self.commit(8)
        self.assertEqual(self.committed(answer), [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
        self.lead.settle()
        self.assertEqual(self.position(), 4)

    def test_manyPieces(self) -> None:
        """Positions of many commits, over several segments, are read in order."""
        self.find()
        self.patch(coordinatorlog, "PIECE_SIZE", 300)
        for offset in range(30):
            self.commit(offset)
            self.lead.settle()
        partition = self.lead.partition(OFFSETS_TOPIC, PARTITION)
        self.lead.logManager.roll(partition)
        self.lead.settle()
        self.commit(99)
        self.lead.settle()
        self.assertEqual(len(partition.log.segments), 2)
        self.lead.stop()
        self.restart()
        self.assertEqual(self.position(), 99)


class TimeTests(GroupCase):
    """The clock."""

    def test_session(self) -> None:
        """A member without heartbeats is removed when its session ends."""
        joined = self.stable()
        self.lead.advance(9.9)
        self.assertEqual(self.heartbeat(joined), ErrorCode.NONE)
        self.lead.advance(9.9)
        self.assertEqual(self.heartbeat(joined), ErrorCode.NONE)
        self.lead.advance(10.1)
        self.lead.settle()
        self.assertEqual(self.heartbeat(joined), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_initialDelay(self) -> None:
        """A new group waits for more members."""
        self.lead = self.made({"group.initial.rebalance.delay.ms": "3000"})
        self.createTopic("t")
        self.find()
        first = self.join()
        self.lead.settle()
        self.lead.advance(2.9)
        self.assertIsNone(first.body)
        self.lead.advance(0.2)
        self.assertEqual(first.body.errorCode, 0)

    def test_expiry(self) -> None:
        """Positions of a group without members expire, and are deleted from the log."""
        self.find()
        self.commit(7)
        self.lead.settle()
        for _ in range(7 * 144 + 2):
            self.lead.advance(600)
        self.lead.settle()
        self.assertEqual(self.position(), -1)
        self.assertEqual(self.ask(ApiKey.LIST_GROUPS, 4).groups, [])


class FailureTests(GroupCase):
    """Disks that are full, or fail."""

    def test_failedFlush(self) -> None:
        """A failed flush answers with an error, and ends the service of its groups."""
        joined = self.stable()
        waiting = self.join(groupId="h", version=4)
        self.lead.settle()
        self.assertEqual(waiting.body.errorCode, ErrorCode.MEMBER_ID_REQUIRED)
        self.lead.fileSystem.fail("fsync", f"{OFFSETS_TOPIC}-{PARTITION}/{0:020}.log", errno.EIO)
        answers = [self.commit(7, joined), self.commit(8, joined)]
        self.lead.settle()
        for answer in answers:
            self.assertEqual(self.committed(answer), [ErrorCode.NOT_COORDINATOR])
        self.assertEqual(self.heartbeat(joined), ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.find().errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def test_queueFull(self) -> None:
        """
        Of what waits for a partition that rolls, that beyond a limit of bytes is refused, in its
        turn and so that clients try again. What waited is written, and the group stays as it is.
        """
        joined = self.stable()
        self.patch(coordinatorlog, "QUEUED_SIZE_MAX", 200)
        self.lead.logManager.roll(self.lead.partition(OFFSETS_TOPIC, PARTITION))
        answers = [self.commit(offset, joined) for offset in range(5)]
        self.assertEqual([self.committed(each) for each in answers], [[]] * 5)
        self.lead.settle()
        refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.assertEqual(
            [self.committed(each) for each in answers],
            [[ErrorCode.NONE]] * 2 + [[refused]] * 3,
        )
        self.assertEqual((self.position(), self.heartbeat(joined)), (1, ErrorCode.NONE))
        again = self.commit(4, joined)
        self.lead.settle()
        self.assertEqual((self.committed(again), self.position()), ([ErrorCode.NONE], 4))

    def test_fullDisk(self) -> None:
        """What comes while the disk is full waits, in order."""
        joined = self.stable()
        name = f"{OFFSETS_TOPIC}-{PARTITION}/{0:020}.log"
        self.lead.fileSystem.fail("write", name, errno.ENOSPC, 2)
        answers = [self.commit(offset, joined) for offset in (1, 2)]
        self.lead.settle()
        answers += [self.commit(offset, joined) for offset in (3, 4)]
        self.lead.settle()
        self.assertEqual([self.committed(each) for each in answers], [[]] * 4)
        self.lead.advance(1)
        self.lead.advance(1)
        self.lead.settle()
        self.assertEqual([self.committed(each) for each in answers], [[ErrorCode.NONE]] * 4)
        self.assertEqual(self.position(), 4)

    def test_roll(self) -> None:
        """Commits during a roll wait for it, and none is lost."""
        joined = self.stable()
        self.lead.logManager.roll(self.lead.partition(OFFSETS_TOPIC, PARTITION))
        answers = [self.commit(offset, joined) for offset in (1, 2)]
        self.lead.settle()
        self.assertEqual([self.committed(each) for each in answers], [[ErrorCode.NONE]] * 2)
        self.assertEqual(self.position(), 2)

    def test_unreadable(self) -> None:
        """A partition that cannot be read is not served, and an operator is told why."""
        self.find()
        self.commit(7)
        self.lead.settle()
        path = self.offsetsLog().segments[0].path
        self.lead.stop()
        file = self.lead.fileSystem.open(path)
        size = file.size()
        data = bytearray(file.readAt(0, size))
        data[-1] ^= 1
        file.writeAt(0, [bytes(data)])
        lines = self.sentences()
        self.restart()
        self.assertTrue(any("The coordinator could not load" in each for each in lines()))
        self.assertEqual(self.committed(self.commit(8)), [ErrorCode.NOT_COORDINATOR])


class StopTests(GroupCase):
    """The end."""

    def test_stop(self) -> None:
        """A stop answers joins that wait for other members, and commits under way."""
        joined = self.stable()
        second = self.join()
        commit = self.commit(5, joined)
        self.assertIsNone(second.body)
        self.lead.stop()
        self.assertEqual(second.body.errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.committed(commit), [ErrorCode.NONE])
        self.assertEqual(self.find().errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.heartbeat(joined), ErrorCode.NOT_COORDINATOR)
