"""
What each request needs where there is an authorizer. Apache's answers are compared elsewhere
(C{tests.integration.test_oracle}); here are the rules of requests that need other handlers, and
those that Apache cannot show.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.broker.kafka.security import requestrules
from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.broker.kafka.security.requestrules import RULES, authorized
from pylogbroker.cluster.acls import AclBinding, AclOperation, AclResourceType, PatternType
from pylogbroker.cluster.metadataimage import MetadataImage, RemoveTopicRecord, TopicRecord
from pylogbroker.errors import InvalidRequestValueError, NotAllowedError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from pylogbroker.protocol.kafka.requests import RequestHeader
from tests.broker.kafka.kafkacase import KafkaCase, batchOf

ALICE = "User:alice"
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
DELETE = AclOperation.DELETE
ALTER, ACTION = AclOperation.ALTER, AclOperation.CLUSTER_ACTION
TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
NO_TOPIC, NO_GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
ID = "00000000-0000-0000-0000-000000000001"
OTHER_ID = "00000000-0000-0000-0000-000000000002"


class RuleCase(SynchronousTestCase):
    """A handler that notes what it is asked, behind the rule of its request."""

    def setUp(self) -> None:
        self.acls: dict[AclBinding, None] = {}
        self.asked: list[Any] = []
        self.image = MetadataImage()
        self.image.apply(TopicRecord("t", ID, 2))
        self.authorizer = AclAuthorizer(lambda: self.acls, frozenset(), False, Clock())

    def allow(self, resourceType: int, name: str, *operations: int) -> None:
        self.acls = self.acls | {
            AclBinding(resourceType, PatternType.LITERAL, name, ALICE, "*", operation, 3): None
            for operation in operations
        }

    def ask(self, key: ApiKey, version: int, body: Any, answer: Any = None) -> Any:
        def handle(header: RequestHeader, request: Any, state: ConnectionState) -> Any:
            self.asked.append(request)
            return answer

        state = ConnectionState(StringTransport(peerAddress=IPv4Address("TCP", "10.0.0.1", 5)))
        state.principal = ALICE
        handlers = authorized({key: handle}, self.authorizer, lambda: self.image)
        return handlers[key](RequestHeader(key, version, 1, "c"), body, state)


class OffsetFetchRuleTests(RuleCase):
    """OffsetFetch."""

    def test_twice(self) -> None:
        """Hidden topics stay hidden where a request names a group again."""
        self.allow(GROUP, "g", DESCRIBE)
        asked: Any = messages.OffsetFetchRequest
        all_ = asked.OffsetFetchRequestGroup(groupId="g", topics=None)
        none = asked.OffsetFetchRequestGroup(groupId="g", topics=[])
        cls: Any = messages.OffsetFetchResponse
        hidden = cls.OffsetFetchResponseTopics(name="t")
        answer = cls(
            groups=[
                cls.OffsetFetchResponseGroup(groupId="g", topics=topics)
                for topics in ([hidden], [])
            ]
        )
        found = self.ask(ApiKey.OFFSET_FETCH, 9, asked(groups=[all_, none]), answer)
        self.assertEqual([group.topics for group in found.groups], [[], []])


class DeleteTopicsRuleTests(RuleCase):
    """DeleteTopics."""

    def test_missing(self) -> None:
        """
        A client that may not delete a topic hears here that there is none: the handler does not get
        the name, since the topic may be created before the handler looks for it.
        """
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cls = messages.DeleteTopicsRequest
        self.allow(TOPIC, "n", DESCRIBE)

        def codes(version: int, **topics: Any) -> list[tuple[str, int]]:
            answer = messages.DeleteTopicsResponse()
            found = self.ask(ApiKey.DELETE_TOPICS, version, cls(**topics), answer)
            return [(each.name, each.errorCode) for each in found.responses]

        for version, topics in (
            (5, {"topicNames": ["n"]}),
            (6, {"topics": [cls.DeleteTopicState(name="n")]}),
        ):
            self.assertEqual(codes(version, **topics), [("n", unknown)])
            (body,) = self.asked
            self.assertEqual((body.topicNames, body.topics), ([], []))
            self.asked.clear()
        self.image.apply(TopicRecord("n", OTHER_ID, 1))
        self.assertEqual(codes(5, topicNames=["n"]), [("n", NO_TOPIC)])
        self.asked.clear()
        self.allow(TOPIC, "m", DESCRIBE, DELETE)
        self.assertEqual(codes(5, topicNames=["m"]), [])
        (body,) = self.asked
        self.assertEqual(body.topicNames, ["m"])


class TransactionRuleTests(RuleCase):
    """Requests of transactions."""

    def test_endTxn(self) -> None:
        """A transaction is ended by who may write with its id."""
        key, body = ApiKey.END_TXN, messages.EndTxnRequest(transactionalId="x")
        self.assertEqual(self.ask(key, 3, body).errorCode, NO_TRANSACTION)
        self.assertEqual(self.asked, [])
        self.allow(TRANSACTIONAL_ID, "x", WRITE)
        self.ask(key, 3, body)
        self.assertEqual(self.asked, [body])

    def test_addPartitions(self) -> None:
        """One topic that may not be written to keeps all out."""
        key, cls = ApiKey.ADD_PARTITIONS_TO_TXN, messages.AddPartitionsToTxnRequest
        body = cls(
            v3AndBelowTransactionalId="x",
            v3AndBelowTopics=[
                cls.AddPartitionsToTxnTopic(name=name, partitions=partitions)
                for name, partitions in (("t", [0, 9]), ("closed", [0]))
            ],
        )

        def codes() -> list[int]:
            return [
                part.partitionErrorCode
                for topic in self.ask(key, 3, body).resultsByTopicV3AndBelow
                for part in topic.resultsByPartition
            ]

        self.assertEqual(codes(), [NO_TRANSACTION] * 3)
        self.allow(TRANSACTIONAL_ID, "x", WRITE)
        self.allow(TOPIC, "t", WRITE)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.assertEqual(codes(), [ErrorCode.OPERATION_NOT_ATTEMPTED, unknown, NO_TOPIC])
        self.assertEqual(self.asked, [])
        self.allow(TOPIC, "closed", WRITE)
        self.ask(key, 3, body)
        self.assertEqual(self.asked, [body])

    def test_addPartitionsOfBrokers(self) -> None:
        """From version 4 brokers ask, which act for the cluster."""
        key, body = ApiKey.ADD_PARTITIONS_TO_TXN, messages.AddPartitionsToTxnRequest()
        self.assertEqual(self.ask(key, 4, body).errorCode, NO_CLUSTER)
        self.allow(CLUSTER, "kafka-cluster", ACTION)
        self.ask(key, 4, body)
        self.assertEqual(self.asked, [body])

    def test_offsets(self) -> None:
        """Positions in a transaction need the id, the group and each topic."""
        add = messages.AddOffsetsToTxnRequest(transactionalId="x", groupId="g")
        cls = messages.TxnOffsetCommitRequest
        answer = messages.TxnOffsetCommitResponse

        def commit() -> list[int]:
            body = cls(
                transactionalId="x",
                groupId="g",
                topics=[
                    cls.TxnOffsetCommitRequestTopic(
                        name=name, partitions=[cls.TxnOffsetCommitRequestPartition()]
                    )
                    for name in ("closed", "t")
                ],
            )
            response = self.ask(ApiKey.TXN_OFFSET_COMMIT, 3, body, answer())
            return [part.errorCode for topic in response.topics for part in topic.partitions]

        def added() -> int:
            response = messages.AddOffsetsToTxnResponse()
            code: int = self.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, add, response).errorCode
            return code

        self.assertEqual((added(), commit()), (NO_TRANSACTION, [NO_TRANSACTION] * 2))
        self.allow(TRANSACTIONAL_ID, "x", WRITE)
        self.assertEqual((added(), commit()), (NO_GROUP, [NO_GROUP] * 2))
        self.allow(GROUP, "g", READ)
        self.assertEqual((added(), commit()), (0, [NO_TOPIC] * 2))
        self.allow(TOPIC, "t", READ)
        self.asked.clear()
        self.assertEqual(commit(), [NO_TOPIC])
        (body,) = self.asked
        self.assertEqual([topic.name for topic in body.topics], ["t"])

    def test_markers(self) -> None:
        """Markers are written by who alters the cluster, or acts for it."""
        cls = messages.WriteTxnMarkersRequest
        topic = cls.WritableTxnMarkerTopic(name="t", partitionIndexes=[0])
        body = cls(markers=[cls.WritableTxnMarker(producerId=5, topics=[topic])])
        (marker,) = self.ask(ApiKey.WRITE_TXN_MARKERS, 1, body).markers
        self.assertEqual(marker.producerId, 5)
        self.assertEqual(marker.topics[0].partitions[0].errorCode, NO_CLUSTER)
        for operation in (ALTER, ACTION):
            self.acls = {}
            self.allow(CLUSTER, "kafka-cluster", operation)
            self.ask(ApiKey.WRITE_TXN_MARKERS, 1, body)
        self.assertEqual(self.asked, [body, body])

    def test_seen(self) -> None:
        """Transactions and their topics are shown to who may describe them."""
        cls, listed = messages.DescribeTransactionsResponse, messages.ListTransactionsResponse
        self.allow(TRANSACTIONAL_ID, "x", DESCRIBE)
        self.allow(TOPIC, "t", DESCRIBE)
        state = cls.TransactionState(
            transactionalId="x", topics=[cls.TopicData(topic="t"), cls.TopicData(topic="closed")]
        )
        body = messages.DescribeTransactionsRequest(transactionalIds=["x", "y", "y"])
        answer = self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, body, cls(transactionStates=[state]))
        found, refused = answer.transactionStates
        self.assertEqual([topic.topic for topic in found.topics], ["t"])
        self.assertEqual((refused.transactionalId, refused.errorCode), ("y", NO_TRANSACTION))
        states = [listed.TransactionState(transactionalId=name) for name in ("x", "y")]
        answer = self.ask(
            ApiKey.LIST_TRANSACTIONS,
            0,
            messages.ListTransactionsRequest(),
            listed(transactionStates=states),
        )
        self.assertEqual([each.transactionalId for each in answer.transactionStates], ["x"])

    def test_produce(self) -> None:
        """Records of a transaction need its id, whatever their topic."""
        records = memoryview(
            batchOf(b"v", producerId=1, producerEpoch=0, baseSequence=0, isTransactional=True)
        )
        topics = [TopicProduceData("t", bytes(16), [PartitionProduceData(0, records)])]

        def ask(transactionalId: str | None, acks: int = 1) -> Any:
            return self.ask(ApiKey.PRODUCE, 9, ProduceRequest(transactionalId, acks, 5, topics))

        for transactionalId in ("x", None):
            (frame,) = ask(transactionalId)
            body, _ = messages.ProduceResponse.decode(frame, 9, 9)
            self.assertEqual(body.responses[0].partitionResponses[0].errorCode, NO_TRANSACTION)
        self.assertRaises(InvalidRequestValueError, ask, "x", 0)
        self.assertEqual(self.asked, [])
        self.allow(TRANSACTIONAL_ID, "x", WRITE)
        ask("x")
        self.assertEqual(len(self.asked), 1)


class NewGroupRuleTests(RuleCase):
    """Groups of KIP-848."""

    def test_heartbeat(self) -> None:
        """A member reads its group and may see all topics to which it subscribes."""
        body = messages.ConsumerGroupHeartbeatRequest(groupId="g", subscribedTopicNames=["t", "u"])
        key = ApiKey.CONSUMER_GROUP_HEARTBEAT
        self.assertEqual(self.ask(key, 1, body).errorCode, NO_GROUP)
        self.allow(GROUP, "g", READ)
        self.allow(TOPIC, "t", READ)
        self.assertEqual(self.ask(key, 1, body).errorCode, NO_TOPIC)
        self.allow(TOPIC, "u", READ)
        self.ask(key, 1, body)
        self.assertEqual(self.asked, [body])

    def test_describe(self) -> None:
        """A group whose topics the client may not see is not shown."""
        cls = messages.ConsumerGroupDescribeResponse
        self.allow(GROUP, "g", DESCRIBE)
        self.allow(TOPIC, "t", DESCRIBE)

        def ask(topic: str) -> list[Any]:
            part = cls.TopicPartitions(topicName=topic)
            member = cls.Member(subscribedTopicNames=["t"])
            member.assignment = cls.Assignment(topicPartitions=[part])
            member.targetAssignment = cls.Assignment()
            group = cls.DescribedGroup(groupId="g", members=[member], authorizedOperations=5)
            body = messages.ConsumerGroupDescribeRequest(groupIds=["g", "h"])
            answer = self.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, body, cls(groups=[group]))
            return [
                (each.groupId, each.errorCode, len(each.members), each.authorizedOperations)
                for each in answer.groups
            ]

        refused = ("h", NO_GROUP, 0, -(2**31))
        self.assertEqual(ask("t"), [("g", 0, 1, 1 << DESCRIBE), refused])
        self.assertEqual(ask("closed"), [("g", NO_TOPIC, 0, -(2**31)), refused])


class ClusterRuleTests(RuleCase):
    """Requests that need rights to the cluster, and have no handler everywhere."""

    def test_refusals(self) -> None:
        """Each refusal is as the client reads it."""
        quotas, users = messages.AlterClientQuotasRequest, messages.AlterUserScramCredentialsRequest
        entity = quotas.EntityData(entityType="user", entityName="u")
        altered = self.ask(
            ApiKey.ALTER_CLIENT_QUOTAS, 0, quotas(entries=[quotas.EntryData(entity=[entity])])
        )
        self.assertEqual(altered.entries[0].errorCode, NO_CLUSTER)
        self.assertEqual(altered.entries[0].entity[0].entityName, "u")
        shown = self.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, messages.DescribeClientQuotasRequest())
        self.assertEqual((shown.errorCode, shown.entries), (NO_CLUSTER, None))
        gone = users.ScramCredentialDeletion(name="u")
        made = users.ScramCredentialUpsertion(name="v")
        credentials = self.ask(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            0,
            users(deletions=[gone, gone], upsertions=[made]),
        )
        self.assertEqual(
            [(each.user, each.errorCode) for each in credentials.results],
            [("u", NO_CLUSTER), ("v", NO_CLUSTER)],
        )
        body = messages.DescribeUserScramCredentialsRequest()
        answer = self.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, body)
        self.assertEqual(answer.errorCode, NO_CLUSTER)
        self.assertEqual(self.asked, [])

    def test_leaders(self) -> None:
        """Elections and reassignments are refused for each partition, and for all of them."""
        elect = messages.ElectLeadersRequest
        body = elect(topicPartitions=[elect.TopicPartitions(topic="t", partitions=[3])])
        found = self.ask(ApiKey.ELECT_LEADERS, 2, body)
        (result,) = found.replicaElectionResults
        (part,) = result.partitionResult
        self.assertEqual((found.errorCode, result.topic), (NO_CLUSTER, "t"))
        self.assertEqual((part.partitionId, part.errorCode), (3, NO_CLUSTER))
        found = self.ask(ApiKey.ELECT_LEADERS, 2, elect(topicPartitions=None))
        self.assertEqual((found.errorCode, found.replicaElectionResults), (NO_CLUSTER, []))
        move = messages.AlterPartitionReassignmentsRequest
        partition = move.ReassignablePartition(partitionIndex=3, replicas=[0])
        body = move(topics=[move.ReassignableTopic(name="t", partitions=[partition])])
        found = self.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)
        (part,) = found.responses[0].partitions
        self.assertEqual((found.errorCode, part.partitionIndex), (NO_CLUSTER, 3))
        self.assertEqual(part.errorCode, NO_CLUSTER)
        show = messages.ListPartitionReassignmentsRequest
        topic = show.ListPartitionReassignmentsTopics(name="t", partitionIndexes=[3])
        for topics, count in ((None, 0), ([topic], 1)):
            found = self.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, show(topics=topics))
            self.assertEqual((found.errorCode, len(found.topics)), (NO_CLUSTER, count))
        self.assertEqual(self.asked, [])


class GateTests(KafkaCase):
    """A broker with an authorizer fails closed."""

    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }

    def test_everyRequestHasARule(self) -> None:
        """What the broker serves, and what it will serve, has a rule."""
        self.assertEqual(set(ApiKey) - RULES.keys(), set())

    def test_withoutARule(self) -> None:
        """A request without a rule is refused, though it has a handler."""
        self.patch(requestrules, "RULES", {})
        handlers = authorized(
            {ApiKey.LIST_GROUPS: lambda *_: messages.ListGroupsResponse()},
            AclAuthorizer(dict, frozenset(("User:ANONYMOUS",)), True, Clock()),
            MetadataImage,
        )
        header = RequestHeader(ApiKey.LIST_GROUPS, 0, 1, "c")
        state = ConnectionState(None)
        self.assertRaises(NotAllowedError, handlers[ApiKey.LIST_GROUPS], header, None, state)

    def test_nothingIsAllowed(self) -> None:
        """Without lists and super users, topics are not to be seen, made, read or written."""
        wanted = messages.MetadataRequest
        body = wanted(topics=[wanted.MetadataRequestTopic(name="t")])
        found = self.ask(ApiKey.METADATA, 4, body)
        self.assertEqual([each.errorCode for each in found.topics], [NO_TOPIC])
        self.assertEqual(self.ask(ApiKey.METADATA, 4, wanted(topics=None)).topics, [])
        made = messages.CreateTopicsRequest
        body = made(topics=[made.CreatableTopic(name="n", numPartitions=1, replicationFactor=1)])
        self.assertEqual(self.ask(ApiKey.CREATE_TOPICS, 5, body).topics[0].errorCode, NO_TOPIC)
        produced = messages.ProduceRequest
        part = produced.PartitionProduceData(index=0, records=batchOf(b"v"))
        topic = produced.TopicProduceData(name="t", partitionData=[part])
        found = self.ask(ApiKey.PRODUCE, 9, produced(acks=1, topicData=[topic]))
        self.assertEqual(found.responses[0].partitionResponses[0].errorCode, NO_TOPIC)
        fetched = messages.FetchRequest
        one = fetched.FetchPartition(partition=0, partitionMaxBytes=9)
        for replicaId in (-1, 1):
            body = fetched(
                replicaId=replicaId,
                maxBytes=9,
                topics=[fetched.FetchTopic(topic="t", partitions=[one])],
            )
            found = self.ask(ApiKey.FETCH, 11, body)
            self.assertEqual(found.responses[0].partitions[0].errorCode, NO_TOPIC)
        self.assertNotIn("n", self.lead.service.kafka.topics.image.topics)
        authorizer = self.lead.service.kafka.authorizer
        assert authorizer is not None
        self.assertGreater(authorizer.refusedCount, 4)

    def test_versionsAreAnybodys(self) -> None:
        """A client may ask what the broker speaks before anybody knows who it is."""
        answer = self.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
        self.assertIn(ApiKey.CREATE_ACLS, [each.apiKey for each in answer.apiKeys])


class RemovedTopicTests(KafkaCase):
    """A topic that is removed: the metadata do not have it any more, but its partitions serve."""

    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }

    def test_unknownId(self) -> None:
        """
        Its id has no name that the authorizer could be asked for: nothing is read or written.
        """
        topicId = self.topicId()
        topics = self.lead.service.kafka.topics
        topics.image.apply(RemoveTopicRecord(str(UUID(bytes=topicId))))
        partition = topics.findById(topicId, 0)
        assert partition is not None
        produced, fetched = messages.ProduceRequest, messages.FetchRequest
        part = produced.PartitionProduceData(index=0, records=batchOf(b"v"))
        topic = produced.TopicProduceData(topicId=topicId, partitionData=[part])
        found = self.ask(ApiKey.PRODUCE, 13, produced(acks=1, topicData=[topic]))
        code = found.responses[0].partitionResponses[0].errorCode
        self.assertEqual(code, ErrorCode.UNKNOWN_TOPIC_ID)
        self.assertEqual(partition.log.logEndOffset, 0)
        one = fetched.FetchPartition(partition=0, partitionMaxBytes=9)
        for replicaId in (-1, 1):
            body = fetched(
                replicaState=fetched.ReplicaState(replicaId=replicaId),
                maxBytes=9,
                topics=[fetched.FetchTopic(topicId=topicId, partitions=[one])],
            )
            found = self.ask(ApiKey.FETCH, 17, body)
            code = found.responses[0].partitions[0].errorCode
            self.assertEqual(code, ErrorCode.UNKNOWN_TOPIC_ID)


class CursorTests(KafkaCase):
    """DescribeTopicPartitions goes on behind what is hidden."""

    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }

    def test_hiddenCursor(self) -> None:
        """A cursor at a topic that is hidden now means the next that is not."""
        for name in ("a", "b", "c"):
            self.create(name)
        made = messages.CreateAclsRequest
        one = made.AclCreation(
            resourceType=2,
            resourceName="b",
            principal=ALICE,
            host="*",
            operation=READ,
            permissionType=3,
        )
        self.ask(ApiKey.CREATE_ACLS, 3, made(creations=[one]))
        cls = messages.DescribeTopicPartitionsRequest
        for topics in ([], [cls.TopicRequest(name=name) for name in ("a", "b", "c", "t")]):
            body = cls(topics=topics, cursor=cls.Cursor(topicName="b", partitionIndex=0))
            found = self.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
            codes = {each.name: each.errorCode for each in found.topics}
            expected = {"c": 0, "t": 0, **({"b": NO_TOPIC} if topics else {})}
            self.assertEqual(codes, expected)
