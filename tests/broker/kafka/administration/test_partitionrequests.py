"""Elections, reassignments, and brokers that will not come back."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import fail
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.administration import partitionrequests
from pylogbroker.broker.kafka.administration.partitionrequests import PartitionRequests
from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    PartitionImage,
    Record,
    TopicRecord,
)
from pylogbroker.errors import MetadataUnconfirmedError, StorageError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.controller import AlterPartition, InSyncReplica, alterPartition
from tests.broker.kafka.clusterbench import ClusterBench
from tests.broker.kafka.requestbench import RequestBench

ELECT, UNREGISTER = ApiKey.ELECT_LEADERS, ApiKey.UNREGISTER_BROKER
ALTER, LIST = ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS
INVALID_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class LocalCase(SynchronousTestCase):
    """A broker that keeps its metadata by itself."""

    def setUp(self) -> None:
        self.bench = RequestBench()
        self.bench.handlers = PartitionRequests(self.bench.topics).handlers


class ElectionTests(LocalCase):
    """ElectLeaders: one broker leads every partition that is in service."""

    def ask(self, wanted: dict[str, list[int]] | None, **fields: Any) -> Any:
        cls = messages.ElectLeadersRequest
        topics = None
        if wanted is not None:
            topics = [
                cls.TopicPartitions(topic=name, partitions=ids) for name, ids in wanted.items()
            ]
        return self.bench.ask(ApiKey.ELECT_LEADERS, 2, cls(topicPartitions=topics, **fields))

    def results(self, response: Any) -> list[tuple[str, list[tuple[int, int]]]]:
        return [
            (each.topic, [(part.partitionId, part.errorCode) for part in each.partitionResult])
            for each in response.replicaElectionResults
        ]

    def test_elect(self) -> None:
        """No election is needed; unknown partitions are told. All leaves out what has a leader."""
        self.bench.create("a", 2)
        unneeded, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for kind in (0, 1):
            found = self.ask({"a": [0, 2, -1], "b": [0]}, electionType=kind)
            self.assertEqual(found.errorCode, 0)
            self.assertEqual(
                self.results(found),
                [("a", [(0, unneeded), (2, unknown), (-1, unknown)]), ("b", [(0, unknown)])],
            )
            self.assertEqual(self.results(self.ask(None, electionType=kind)), [("a", [])])
        self.assertEqual(self.results(self.ask({})), [])

    def test_refused(self) -> None:
        """A kind of election that there is not, and no time for one."""
        self.bench.create("a")
        for code, fields in (
            (ErrorCode.INVALID_REQUEST, {"electionType": 2}),
            (ErrorCode.REQUEST_TIMED_OUT, {"timeoutMs": 0}),
        ):
            found = self.ask({"a": [0]}, **fields)
            self.assertEqual((found.errorCode, self.results(found)), (code, [("a", [(0, code)])]))
            found = self.ask(None, **fields)
            self.assertEqual((found.errorCode, self.results(found)), (code, []))

    def test_outOfService(self) -> None:
        """A partition that is out of service cannot get a leader."""
        self.bench.create("a", 2)
        self.bench.partition("a", 1).log.failure = StorageError("", "x", "", errno.EIO)
        for kind, code in (
            (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
            (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ):
            found = self.ask(None, electionType=kind)
            self.assertEqual(self.results(found), [("a", [(1, code)])])


class ReassignmentTests(LocalCase):
    """AlterPartitionReassignments and ListPartitionReassignments."""

    def ask(self, *wanted: tuple[str, int, list[int] | None], **fields: Any) -> Any:
        cls = messages.AlterPartitionReassignmentsRequest
        topics = [
            cls.ReassignableTopic(
                name=name,
                partitions=[cls.ReassignablePartition(partitionIndex=index, replicas=replicas)],
            )
            for name, index, replicas in wanted
        ]
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        return self.bench.ask(key, 1, cls(topics=topics, **fields))

    def results(self, response: Any) -> list[tuple[int, str | None]]:
        return [
            (part.errorCode, part.errorMessage)
            for each in response.responses
            for part in each.partitions
        ]

    def test_reassign(self) -> None:
        """A partition can be assigned to this broker, where it stays, and to no other."""
        self.bench.create("a")
        assignment = "The manual partition assignment includes "
        refused, unknown = (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        for replicas, expected in (
            ([0], (0, None)),
            ([0, 0], (refused, assignment + "the broker 0 more than once.")),
            ([0, 7], (refused, assignment + "broker 7, but no such broker is registered.")),
            ([], (refused, assignment + "an empty replica list.")),
            (None, (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)),
        ):
            self.assertEqual(self.results(self.ask(("a", 0, replicas))), [expected])
        self.assertEqual(
            self.results(self.ask(("b", 0, [0]), ("a", 1, [0]))),
            [
                (unknown, "Unable to find a topic named b."),
                (unknown, "Unable to find partition a:1."),
            ],
        )
        late, code = self.ask(("a", 0, [0]), timeoutMs=0), ErrorCode.REQUEST_TIMED_OUT
        self.assertEqual((late.errorCode, self.results(late)), (code, [(code, None)]))
        self.assertEqual(self.results(self.ask()), [])

    def test_list(self) -> None:
        """None is under way."""
        self.bench.create("a")
        cls = messages.ListPartitionReassignmentsRequest
        asked = [cls.ListPartitionReassignmentsTopics(name="a", partitionIndexes=[0])]
        for topics in (None, [], asked):
            found = self.bench.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, cls(topics=topics))
            self.assertEqual((found.errorCode, found.errorMessage, found.topics), (0, None, []))


class UnregisterTests(LocalCase):
    """UnregisterBroker, of a broker that is in no cluster."""

    def test_unregister(self) -> None:
        """There is no broker that could be unregistered."""
        for brokerId, text in (
            (8, "Broker ID 8 is not currently registered"),
            (0, "Broker 0 keeps its metadata by itself: it is in no cluster"),
        ):
            body = messages.UnregisterBrokerRequest(brokerId=brokerId)
            found = self.bench.ask(UNREGISTER, 0, body)
            self.assertEqual(
                (found.errorCode, found.errorMessage), (ErrorCode.BROKER_ID_NOT_REGISTERED, text)
            )


class ClusterCase(SynchronousTestCase):
    """
    Brokers 1, 2 and 3, which replicate; C{a} has a partition on all of them, led by broker 2, and
    one on broker 3 alone.
    """

    def setUp(self) -> None:
        self.bench = ClusterBench()
        self.put(PartitionImage(2, 0, 0, (1, 2, 3), (1, 2, 3)), PartitionImage(3, 0, 0, (3,), (3,)))

    def put(self, *partitions: PartitionImage, name: str = "a") -> None:
        """A topic with these partitions."""
        topicId = self.bench.metadata.newTopicId()
        self.bench.change(
            TopicRecord(name, str(topicId), len(partitions)),
            *(each.record(topicId, index) for index, each in enumerate(partitions)),
        )

    def partition(self, index: int = 0) -> PartitionImage:
        return self.bench.metadata.image.topics["a"].partitions[index]

    def elect(self, kind: int = 0, by: int = 1, **wanted: list[int]) -> dict[Any, int]:
        """The error codes; nothing wanted: of all partitions."""
        cls = messages.ElectLeadersRequest
        topics = [cls.TopicPartitions(topic=name, partitions=ids) for name, ids in wanted.items()]
        body = cls(electionType=kind, topicPartitions=topics or None)
        found = self.bench.ask(by, ELECT, 2, body)
        self.assertEqual(found.errorCode, 0)
        return {
            (each.topic, part.partitionId): part.errorCode
            for each in found.replicaElectionResults
            for part in each.partitionResult
        }

    def reassign(
        self, replicas: Sequence[int] | None, index: int = 0, **fields: Any
    ) -> tuple[int, str | None]:
        cls = messages.AlterPartitionReassignmentsRequest
        target = None if replicas is None else list(replicas)
        part = cls.ReassignablePartition(partitionIndex=index, replicas=target)
        body = cls(topics=[cls.ReassignableTopic(name="a", partitions=[part])], **fields)
        (topic,) = self.bench.ask(1, ALTER, 1, body).responses
        (found,) = topic.partitions
        return found.errorCode, found.errorMessage

    def moving(self, topics: Any = None) -> list[Any]:
        """What ListPartitionReassignments gives."""
        cls = messages.ListPartitionReassignmentsRequest
        if topics is not None:
            topics = [
                cls.ListPartitionReassignmentsTopics(name=name, partitionIndexes=indexes)
                for name, indexes in topics.items()
            ]
        found = self.bench.ask(3, LIST, 0, cls(topics=topics))
        self.assertEqual((found.errorCode, found.errorMessage), (0, None))
        return [
            (topic.name, part.partitionIndex, part.replicas, part.addingReplicas,
             part.removingReplicas)
            for topic in found.topics
            for part in topic.partitions
        ]  # fmt: skip

    def join(self, index: int, *inSync: int) -> None:
        """As the leader does when followers have caught up."""

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            topic = image.topics["a"]
            part, epochs = topic.partitions[index], image.brokers
            code, records = alterPartition(
                image,
                AlterPartition(
                    topic.topicId,
                    index,
                    part.leader,
                    epochs[part.leader].epoch,
                    part.leaderEpoch,
                    part.partitionEpoch,
                    tuple(InSyncReplica(each, epochs[each].epoch) for each in inSync),
                ),
            )
            self.assertEqual(code, 0)
            return records, None

        self.bench.do(self.bench.metadata.change(decide))


class ClusterElectionTests(ClusterCase):
    """ElectLeaders."""

    def test_preferred(self) -> None:
        """Whichever broker is asked, the first replica leads, from a new epoch on."""
        self.assertEqual(self.elect(a=[0, 1]), {("a", 0): 0, ("a", 1): 84})
        found = self.partition()
        self.assertEqual((found.leader, found.leaderEpoch), (1, 1))
        self.assertEqual(self.elect(by=2, a=[0]), {("a", 0): ErrorCode.ELECTION_NOT_NEEDED})

    def test_all(self) -> None:
        """Of all partitions, those that were in need are answered."""
        self.assertEqual(self.elect(), {("a", 0): 0})
        self.assertEqual(self.elect(), {})

    def test_inSeveralChanges(self) -> None:
        """Many partitions are decided in several changes; what is asked twice is elected once."""
        self.patch(partitionrequests, "CHANGE_COUNT_MAX", 2)
        self.put(*[PartitionImage(2, 0, 0, (3, 2), (3, 2))] * 5, name="b")
        position = self.bench.metadata.position
        found = self.elect(b=[0, 0, 1, 2, 3, 4], a=[5])
        self.assertEqual(found.pop(("a", 5)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        needless = {("b", 0): ErrorCode.ELECTION_NOT_NEEDED}  # the second answer
        self.assertEqual(found, {("b", each): 0 for each in range(5)} | needless)
        self.assertEqual(self.bench.metadata.position, position + 3)
        leaders = self.bench.metadata.image.topics["b"].partitions
        self.assertEqual([(each.leader, each.leaderEpoch) for each in leaders], [(3, 1)] * 5)

    def test_notAvailable(self) -> None:
        """A first replica that is not in sync does not lead; nor does one whose broker is gone."""
        self.join(0, 2, 3)
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        self.assertEqual(self.elect(a=[0]), {("a", 0): code})
        self.bench.fence(3)
        self.assertEqual(self.partition(1).leader, -1)
        self.assertEqual(self.elect(a=[1]), {("a", 1): code})
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        self.assertEqual(self.elect(1), {("a", 1): code})

    def test_unclean(self) -> None:
        """A replica that lacks records leads, if that is asked for and none other can."""
        self.join(0, 2)
        self.assertEqual(self.elect(1, a=[0]), {("a", 0): ErrorCode.ELECTION_NOT_NEEDED})
        self.bench.fence(2)
        self.assertEqual(self.elect(0, a=[0])["a", 0], ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        self.assertEqual(self.elect(1, a=[0]), {("a", 0): 0})
        self.assertEqual((self.partition().leader, self.partition().inSync), (1, (1,)))

    def test_unconfirmed(self) -> None:
        """What may or may not be there is no success."""
        error = MetadataUnconfirmedError("the connection was lost")
        self.patch(self.bench.metadata, "change", lambda decide: fail(error))
        self.assertEqual(self.elect(a=[0, 1]), {("a", 0): 7, ("a", 1): 7})
        self.assertEqual(self.reassign([3])[0], ErrorCode.REQUEST_TIMED_OUT)


class ClusterReassignmentTests(ClusterCase):
    """AlterPartitionReassignments and ListPartitionReassignments."""

    def test_moved(self) -> None:
        """A move is listed until the new replicas are in sync."""
        self.assertEqual(self.moving(), [])
        self.assertEqual(self.reassign([1, 2], 1), (0, None))
        expected = [("a", 1, [1, 2, 3], [1, 2], [3])]
        for wanted in (None, {"a": [1, 1, 0, 7, -1], "b": [0]}):
            self.assertEqual(self.moving(wanted), expected)
        for nothing in ({}, {"a": [0]}):
            self.assertEqual(self.moving(nothing), [])
        self.join(1, 3, 1)
        self.assertEqual(self.moving(), expected)
        self.join(1, 3, 1, 2)
        self.assertEqual(self.moving(), [])
        found = self.partition(1)
        self.assertEqual((found.replicas, found.leader), ((1, 2), 1))

    def test_cancelled(self) -> None:
        """A move that is stopped leaves the replicas as they were."""
        self.assertEqual(self.reassign(None, 1), (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None))
        self.reassign([1, 2], 1)
        self.assertEqual(self.reassign(None, 1), (0, None))
        self.assertEqual(self.moving(), [])
        self.assertEqual(self.partition(1).replicas, (3,))

    def test_cancelRefused(self) -> None:
        """It is not stopped where the added replica alone has all records."""
        self.reassign([1, 2], 1)
        self.join(1, 3, 1)
        self.bench.do(
            self.bench.metadata.change(
                lambda image: (
                    [
                        image.topics["a"].partitions[1]
                        ._replace(leader=1, leaderEpoch=9, partitionEpoch=9, inSync=(1,))
                        .record(image.topics["a"].topicId, 1)
                    ],
                    None,
                )
            )
        )  # fmt: skip
        code, text = self.reassign(None, 1)
        self.assertEqual(code, INVALID_ASSIGNMENT)
        self.assertIn("unclean leader election", text or "")
        self.assertEqual(self.partition(1).adding, (1, 2))

    def test_refused(self) -> None:
        """No such broker, a broker twice, none."""
        for replicas in ([7], [1, 1], []):
            code, text = self.reassign(replicas)
            self.assertEqual(code, INVALID_ASSIGNMENT)
            self.assertIn("The manual partition assignment includes ", text or "")
        self.assertEqual(self.partition().partitionEpoch, 0)

    def test_sameNumber(self) -> None:
        """A client may insist on the number of replicas; a move under way counts as complete."""
        factor = ErrorCode.INVALID_REPLICATION_FACTOR
        for replicas, index, expected in (
            ([1], 0, (factor, "The replication factor is changed from 3 to 1")),
            ([1, 2], 1, (factor, "The replication factor is changed from 1 to 2")),
            ([1], 1, (0, None)),
            ([2], 1, (0, None)),
        ):
            found = self.reassign(replicas, index, allowReplicationFactorChange=False)
            self.assertEqual(found, expected)
        self.assertEqual(self.partition(1).adding, (2,))


class ClusterUnregisterTests(ClusterCase):
    """UnregisterBroker."""

    def unregister(self, brokerId: int) -> tuple[int, str | None]:
        body = messages.UnregisterBrokerRequest(brokerId=brokerId)
        found = self.bench.ask(1, UNREGISTER, 0, body)
        return found.errorCode, found.errorMessage

    def test_unregister(self) -> None:
        """A broker goes when it is stopped, and has no replicas."""
        unknown, invalid = ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.INVALID_REQUEST
        self.assertEqual(self.unregister(7), (unknown, "Broker ID 7 is not currently registered"))
        self.assertEqual(self.unregister(1), (invalid, "Broker 1 is running: stop it first"))
        self.bench.kill(2)
        self.bench.fence(2)
        text = "Broker 2 has replicas of 1 partition(s): reassign them to other brokers first"
        self.assertEqual(self.unregister(2), (invalid, text))
        self.assertEqual(self.reassign([1, 3]), (0, None))
        self.assertEqual(self.unregister(2), (0, None))
        self.assertEqual(list(self.bench.metadata.image.brokers), [1, 3])
        self.assertEqual(self.unregister(2)[0], unknown)


class ClusterSettingsTests(ClusterCase):
    """Settings that elections depend on."""

    def test_minInSyncLowered(self) -> None:
        """No replica is eligible to lead any more, before fewer replicas may commit records."""
        cls = messages.IncrementalAlterConfigsRequest
        self.put(
            PartitionImage(1, 0, 0, (1, 2, 3), (1,), (2,)),
            name="e",
        )

        def alter(value: str) -> None:
            config = cls.AlterableConfig(name="min.insync.replicas", configOperation=0, value=value)
            resource = cls.AlterConfigsResource(resourceType=2, resourceName="e", configs=[config])
            body = cls(resources=[resource])
            (found,) = self.bench.ask(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
            self.assertEqual(found.errorCode, 0)

        def eligible() -> tuple[int, ...]:
            return self.bench.metadata.image.topics["e"].partitions[0].eligibleLeaders

        alter("3")
        self.assertEqual(eligible(), (2,))
        alter("1")
        self.assertEqual(eligible(), ())
