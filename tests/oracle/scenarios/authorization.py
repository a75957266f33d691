"""
What a client may do and what not, request by request, where an authorizer looks at ACLs.

Everybody may do everything to a resource without an ACL. So the scenarios make what they need, and
then take rights away: an ACL for somebody else shuts the oracle, C{User:ANONYMOUS}, out. CLUSTER
ACTION stays, since Apache's broker and controller are the same user.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.oracle.scenarios.groups import awaitCoordinator, join
from tests.oracle.scenarios.pieces import (
    NO_TOPIC_ID,
    batch,
    deleteTopicsBody,
    fetchBody,
    listOffsetsBody,
    makeTopic,
    metadataBody,
    produceBody,
    topic,
)
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario

_AUTHORIZER = (
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("allow.everyone.if.no.acl.found", "true"),
)
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = 2, 3, 4, 5
_LITERAL, _PREFIXED = 3, 4
_ALL, _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _ACTION = 2, 3, 4, 5, 6, 7, 8, 9
_DENY, _ALLOW = 2, 3
_ME, _ALICE = "User:ANONYMOUS", "User:alice"
_CLUSTER_NAME = "kafka-cluster"


def _rule(
    resourceType: int,
    name: str,
    operation: int,
    principal: str = _ME,
    permission: int = _ALLOW,
    pattern: int = _LITERAL,
) -> Any:
    return messages.CreateAclsRequest.AclCreation(
        resourceType=resourceType,
        resourceName=name,
        resourcePatternType=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permissionType=permission,
    )


def _make(*rules: Any) -> Steps:
    body = messages.CreateAclsRequest(creations=list(rules))
    yield Ask("make rules", ApiKey.CREATE_ACLS, 3, body, isRecorded=False)


def _drop(resourceType: int, name: str, operation: int = 1) -> Steps:
    """Drop the oracle's own rules about a resource, all at once."""
    cls = messages.DeleteAclsRequest
    body = cls(
        filters=[
            cls.DeleteAclsFilter(
                resourceTypeFilter=resourceType,
                resourceNameFilter=name,
                patternTypeFilter=_LITERAL,
                principalFilter=_ME,
                hostFilter=None,
                operation=operation,
                permissionType=1,
            )
        ]
    )
    yield Ask("drop rules", ApiKey.DELETE_ACLS, 3, body, isRecorded=False)


def _dropClusterRules() -> Steps:
    yield from _drop(_CLUSTER, _CLUSTER_NAME)
    body = messages.ListConfigResourcesRequest()
    settled = Ask("open again", ApiKey.LIST_CONFIG_RESOURCES, 1, body, isRecorded=False)
    yield Until(settled, lambda found: found.errorCode == 0)


def _awaitTopic(name: str, code: int) -> Steps:
    body = metadataBody([name], 12)
    ask = Ask("settled", ApiKey.METADATA, 12, body, isRecorded=False)
    yield Until(ask, lambda found: found.topics[0].errorCode == code)


@scenario(*_AUTHORIZER)
def authorization(setting: Setting) -> Steps:
    """Topics, groups and the cluster."""
    name = "authorization-"
    ids = {}
    for each in ("open", "read", "write", "described", "closed"):
        ids[each] = yield from makeTopic(name + each, 1)
    yield from awaitCoordinator()
    yield from _make(
        _rule(_TOPIC, name + "read", _READ),
        _rule(_TOPIC, name + "write", _WRITE),
        _rule(_TOPIC, name + "described", _DESCRIBE),
        _rule(_TOPIC, name + "lost", _ALL, _ALICE, pattern=_PREFIXED),
        _rule(_GROUP, name + "read", _READ),
        _rule(_GROUP, name + "described", _DESCRIBE),
        _rule(_GROUP, name + "closed", _READ, _ALICE),
        _rule(_TOPIC, name + "closed", _READ, _ALICE),
    )
    yield from _awaitTopic(name + "closed", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topics = [name + each for each in (*ids, "lost", "gone")]
    groups = [name + each for each in ("open", "read", "described", "closed")]

    yield from _lookUps(name, topics, ids)
    yield from _records(setting, name, topics, ids)
    yield from _logs(topics)
    yield from _members(name, topics, groups, ids)
    yield from _administration(topics)
    yield from _aboutCluster(name, ids)


def _lookUps(name: str, topics: list[str], ids: dict[str, bytes]) -> Steps:
    for version in (4, 9, 12):
        body = metadataBody(topics, version)
        if version >= 8:
            body.includeTopicAuthorizedOperations = True
        if version == 9:
            body.includeClusterAuthorizedOperations = True
        yield Ask("some", ApiKey.METADATA, version, body)
        body = metadataBody(None, version)
        yield Ask("all", ApiKey.METADATA, version, body, own=name)
    yield Ask("all", ApiKey.METADATA, 0, metadataBody(None, 0), own=name)
    wanted = [*ids.values(), NO_TOPIC_ID]
    yield Ask("by id", ApiKey.METADATA, 12, metadataBody(wanted, 12))
    body = metadataBody([name + "closed"], 1)
    yield Ask("a closed one", ApiKey.METADATA, 0, metadataBody([name + "closed"], 0))
    yield Ask("a closed one", ApiKey.METADATA, 1, body)
    body = metadataBody([name + "lost"], 12, mayCreate=True)
    yield Ask("would create", ApiKey.METADATA, 12, body)
    cls = messages.DescribeTopicPartitionsRequest
    body = cls(topics=[cls.TopicRequest(name=each) for each in topics])
    yield Ask("some", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    yield Ask("all", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, cls(), own=name)


def _records(setting: Setting, name: str, topics: list[str], ids: dict[str, bytes]) -> Steps:
    records = batch(setting.baseMs, b"value")
    for version in (3, 9, 13):
        body = produceBody(version, "", b"", [])
        wanted = list(ids) if version >= 13 else [each.removeprefix(name) for each in topics]
        cls = messages.ProduceRequest
        body.topicData = [
            cls.TopicProduceData(
                name=name + each,
                topicId=ids.get(each, bytes(16)),
                partitionData=[cls.PartitionProduceData(index=0, records=records)],
            )
            for each in wanted
        ]
        yield Ask("to all", ApiKey.PRODUCE, version, body)
    body = produceBody(9, name + "closed", b"", [(0, records)], acks=0)
    yield Ask("unacknowledged", ApiKey.PRODUCE, 9, body)
    for version in (4, 12, 13):
        found = fetchBody("", b"", [])
        fetched = messages.FetchRequest
        found.topics = [
            fetched.FetchTopic(
                topic=name + each,
                topicId=ids.get(each, NO_TOPIC_ID),
                partitions=[fetched.FetchPartition(partition=0, partitionMaxBytes=1 << 20)],
            )
            for each in ("open", "read", "write", "described", "closed", "lost")
        ]
        yield Ask("of all", ApiKey.FETCH, version, found)
    for version in (12, 13):
        topicId = ids["closed"]
        begun = fetchBody(name + "closed", topicId, [(0, 0)], sessionEpoch=0)
        found = yield Ask("a session", ApiKey.FETCH, version, begun, on="session")
        again = fetchBody("", b"", [], sessionId=found.sessionId, sessionEpoch=1)
        yield Ask("the session again", ApiKey.FETCH, version, again, on="session")


def _logs(topics: list[str]) -> Steps:
    body: Any = listOffsetsBody("", [])
    cls = messages.ListOffsetsRequest
    body.topics = [
        cls.ListOffsetsTopic(
            name=each,
            partitions=[cls.ListOffsetsPartition(partitionIndex=0, timestamp=-1)],
        )
        for each in topics
    ]
    yield Ask("of all", ApiKey.LIST_OFFSETS, 7, body)
    cls = messages.OffsetForLeaderEpochRequest
    body = cls(
        replicaId=-1,
        topics=[
            cls.OffsetForLeaderTopic(
                topic=each, partitions=[cls.OffsetForLeaderPartition(partition=0, leaderEpoch=0)]
            )
            for each in topics
        ],
    )
    yield Ask("of all", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body)
    cls = messages.DescribeProducersRequest
    body = cls(topics=[cls.TopicRequest(name=each, partitionIndexes=[0]) for each in topics])
    yield Ask("of all", ApiKey.DESCRIBE_PRODUCERS, 0, body)
    cls = messages.DeleteRecordsRequest
    body = cls(
        timeoutMs=5000,
        topics=[
            cls.DeleteRecordsTopic(
                name=each, partitions=[cls.DeleteRecordsPartition(partitionIndex=0, offset=0)]
            )
            for each in topics
        ],
    )
    yield Ask("of all", ApiKey.DELETE_RECORDS, 2, body)


def _members(name: str, topics: list[str], groups: list[str], ids: dict[str, bytes]) -> Steps:
    for version in (0, 3):
        for group in groups:
            body: Any = messages.FindCoordinatorRequest(key=group)
            yield Ask(f"of {group}", ApiKey.FIND_COORDINATOR, version, body)
    body = messages.FindCoordinatorRequest(coordinatorKeys=groups)
    yield Ask("of all", ApiKey.FIND_COORDINATOR, 6, body)
    for version in (0, 5, 7, 9):
        yield join("closed", version, name + "closed")
    yield join("described", 5, name + "described")
    for version in (0, 5):
        body = messages.SyncGroupRequest(
            groupId=name + "closed",
            generationId=1,
            memberId="m",
            protocolType="consumer" if version else None,
            protocolName="range" if version else None,
        )
        yield Ask("closed", ApiKey.SYNC_GROUP, version, body)
        body = messages.HeartbeatRequest(groupId=name + "closed", generationId=1, memberId="m")
        yield Ask("closed", ApiKey.HEARTBEAT, min(version, 4), body)
        if version:
            one = messages.LeaveGroupRequest.MemberIdentity(memberId="m")
            body = messages.LeaveGroupRequest(groupId=name + "closed", members=[one])
        else:
            body = messages.LeaveGroupRequest(groupId=name + "closed", memberId="m")
        yield Ask("closed", ApiKey.LEAVE_GROUP, version, body)
    for version in (2, 9, 10):
        for group in ("open", "described"):
            yield Ask(
                f"by {group}",
                ApiKey.OFFSET_COMMIT,
                version,
                _commit(version, name, group, topics, ids),
            )
    for version in (1, 7):
        cls = messages.OffsetFetchRequest
        for group in ("open", "described", "closed"):
            one = [cls.OffsetFetchRequestTopic(name=each, partitionIndexes=[0]) for each in topics]
            body = cls(groupId=name + group, topics=one)
            yield Ask(f"of {group}", ApiKey.OFFSET_FETCH, version, body)
            if version > 1:
                body = cls(groupId=name + group, topics=None)
                yield Ask(f"of {group}, all", ApiKey.OFFSET_FETCH, version, body)
    for version in (8, 10):
        yield Ask("of all", ApiKey.OFFSET_FETCH, version, _positions(version, name, ids))
    deleted = messages.OffsetDeleteRequest
    for group in ("open", "described"):
        body = deleted(
            groupId=name + group,
            topics=[
                deleted.OffsetDeleteRequestTopic(
                    name=each,
                    partitions=[deleted.OffsetDeleteRequestPartition(partitionIndex=0)],
                )
                for each in topics
            ],
        )
        yield Ask(f"by {group}", ApiKey.OFFSET_DELETE, 0, body)
    for version in (0, 3, 6):
        body = messages.DescribeGroupsRequest(groups=groups)
        body.includeAuthorizedOperations = version >= 3
        yield Ask("all", ApiKey.DESCRIBE_GROUPS, version, body)
    body = messages.DeleteGroupsRequest(groupsNames=groups[1:])
    yield Ask("all", ApiKey.DELETE_GROUPS, 2, body)


def _commit(version: int, name: str, group: str, topics: list[str], ids: dict[str, bytes]) -> Any:
    cls = messages.OffsetCommitRequest
    wanted = [*ids, "unknown"] if version >= 10 else [each.removeprefix(name) for each in topics]
    return cls(
        groupId=name + group,
        topics=[
            cls.OffsetCommitRequestTopic(
                name=name + each,
                topicId=ids.get(each, NO_TOPIC_ID),
                partitions=[
                    cls.OffsetCommitRequestPartition(
                        partitionIndex=0, committedOffset=1, committedMetadata=""
                    )
                ],
            )
            for each in wanted
        ],
    )


def _positions(version: int, name: str, ids: dict[str, bytes]) -> Any:
    cls = messages.OffsetFetchRequest

    def topics() -> Iterator[Any]:
        for each in (*ids, "unknown"):
            yield cls.OffsetFetchRequestTopics(
                name=name + each, topicId=ids.get(each, NO_TOPIC_ID), partitionIndexes=[0]
            )

    return cls(
        groups=[
            cls.OffsetFetchRequestGroup(groupId=name + group, topics=wanted)
            for group in ("open", "described", "closed")
            for wanted in ((list(topics())) if group != "open" else None,)
        ]
    )


def _administration(topics: list[str]) -> Steps:
    made = messages.CreatePartitionsRequest
    body: Any = made(
        topics=[
            made.CreatePartitionsTopic(name=each, count=2, assignments=None) for each in topics
        ],
        timeoutMs=5000,
    )
    yield Ask("all", ApiKey.CREATE_PARTITIONS, 3, body)
    shown = messages.DescribeConfigsRequest
    body = shown(
        resources=[
            shown.DescribeConfigsResource(
                resourceType=2, resourceName=each, configurationKeys=["retention.ms"]
            )
            for each in topics
        ]
    )
    yield Ask("all", ApiKey.DESCRIBE_CONFIGS, 4, body)
    for key, cls in (
        (ApiKey.ALTER_CONFIGS, messages.AlterConfigsRequest),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, messages.IncrementalAlterConfigsRequest),
    ):
        body = cls(
            resources=[
                cls.AlterConfigsResource(
                    resourceType=2,
                    resourceName=each,
                    configs=[cls.AlterableConfig(name="retention.ms", value="1000000")],
                )
                for each in topics
            ]
        )
        yield Ask("all", key, key.lastVersion, body)


def _aboutCluster(name: str, ids: dict[str, bytes]) -> Steps:
    """From here on the oracle may only alter the cluster, which is to describe it, too."""
    yield from _make(
        _rule(_CLUSTER, _CLUSTER_NAME, _ALTER), _rule(_CLUSTER, _CLUSTER_NAME, _ACTION)
    )
    body: Any = messages.ListConfigResourcesRequest()
    settled = Ask("settled", ApiKey.LIST_CONFIG_RESOURCES, 1, body, isRecorded=False)
    yield Until(settled, lambda found: found.errorCode != 0)
    yield from _withCluster("describe", name)
    # A right to write to some topic is enough for an idempotent producer.
    body = messages.InitProducerIdRequest(transactionalId=None)
    ask = Ask("writer", ApiKey.INIT_PRODUCER_ID, 4, body)
    yield Until(ask, lambda found: found.errorCode != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    new = [name + each for each in ("new", "lost-too", "mine", "described")]
    made = messages.CreateTopicsRequest
    yield from _make(
        _rule(_TOPIC, name + "mine", _CREATE),
        _rule(_TOPIC, name + "mine-too", _ALL),
        _rule(_TOPIC, name + "new", _ALL, _ALICE),
    )
    yield from _awaitTopic(name + "new", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for version in (2, 7):
        body = made(topics=[topic(each) for each in (*new, name + "mine-too")], validateOnly=True)
        yield Ask("new ones", ApiKey.CREATE_TOPICS, version, body)
    body = made(topics=[topic(new[0]), topic(new[0]), topic("__cluster_metadata")])
    yield Ask("twice", ApiKey.CREATE_TOPICS, 7, body)
    body = metadataBody([name + "lost-too"], 12, mayCreate=True)
    yield Ask("would create", ApiKey.METADATA, 12, body)
    for version in (5, 6):
        names = [name + each for each in ("described", "closed", "lost", "gone", "read")]
        yield Ask("by name", ApiKey.DELETE_TOPICS, version, deleteTopicsBody(version, *names))
    wanted = [ids["described"], ids["closed"], NO_TOPIC_ID]
    yield Ask("by id", ApiKey.DELETE_TOPICS, 6, deleteTopicsBody(6, *wanted))
    # Nor is describing the cluster allowed; altering it still is.
    yield from _make(_rule(_CLUSTER, _CLUSTER_NAME, _DESCRIBE, permission=_DENY))
    body = messages.DescribeLogDirsRequest(topics=None)
    settled = Ask("settled", ApiKey.DESCRIBE_LOG_DIRS, 4, body, isRecorded=False)
    yield Until(settled, lambda found: found.errorCode != 0)
    yield from _withCluster("nothing", name)
    yield from _dropClusterRules()


def _withCluster(label: str, name: str) -> Steps:
    """Requests that need rights to the cluster."""
    yield Ask(label, ApiKey.LIST_CONFIG_RESOURCES, 1, messages.ListConfigResourcesRequest())
    shown = messages.DescribeConfigsRequest
    kinds = ((4, "<node>"), (8, "<node>"), (16, "metrics"), (32, name + "closed"))
    for kind, owner in kinds:
        body: Any = shown(
            resources=[
                shown.DescribeConfigsResource(
                    resourceType=kind,
                    resourceName="" if kind == 4 else owner,
                    configurationKeys=[],
                )
            ]
        )
        yield Ask(f"{label}, kind {kind}", ApiKey.DESCRIBE_CONFIGS, 4, body)
    for key, cls in (
        (ApiKey.ALTER_CONFIGS, messages.AlterConfigsRequest),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, messages.IncrementalAlterConfigsRequest),
    ):
        for kind in (4, 32):
            body = cls(
                resources=[
                    cls.AlterConfigsResource(
                        resourceType=kind,
                        resourceName="" if kind == 4 else name + "closed",
                        configs=[cls.AlterableConfig(name="log.retention.ms", value="1000000")],
                    )
                ]
            )
            yield Ask(f"{label}, kind {kind}", key, key.lastVersion, body)
    body = messages.DescribeClusterRequest(includeClusterAuthorizedOperations=True)
    yield Ask(label, ApiKey.DESCRIBE_CLUSTER, 1, body)
    elected = messages.ElectLeadersRequest
    partitions = [elected.TopicPartitions(topic="none", partitions=[0, 1])]
    for version in (0, 2):
        body = elected(topicPartitions=partitions)
        yield Ask(label, ApiKey.ELECT_LEADERS, version, body)
    moved = messages.AlterPartitionReassignmentsRequest
    partition = moved.ReassignablePartition(partitionIndex=0, replicas=[1])
    body = moved(topics=[moved.ReassignableTopic(name="none", partitions=[partition])])
    yield Ask(label, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)
    shown = messages.ListPartitionReassignmentsRequest
    for topics in (
        None,
        [shown.ListPartitionReassignmentsTopics(name="none", partitionIndexes=[0])],
    ):
        yield Ask(label, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, shown(topics=topics))
    body = metadataBody([], 8)
    body.includeClusterAuthorizedOperations = True
    yield Ask(label, ApiKey.METADATA, 8, body)
    body = messages.DescribeLogDirsRequest(topics=[])
    yield Ask(label, ApiKey.DESCRIBE_LOG_DIRS, 2, body)
    yield Ask(label, ApiKey.DESCRIBE_LOG_DIRS, 4, body)
    yield Ask(label, ApiKey.LIST_GROUPS, 5, messages.ListGroupsRequest(), own=name)
    body = messages.DescribeAclsRequest(
        resourceTypeFilter=_TOPIC,
        resourceNameFilter=name + "read",
        patternTypeFilter=_LITERAL,
        principalFilter=None,
        hostFilter=None,
        operation=1,
        permissionType=1,
    )
    yield Ask(label, ApiKey.DESCRIBE_ACLS, 3, body)


@scenario(*_AUTHORIZER)
def idempotenceWithoutRights(setting: Setting) -> Steps:
    """A producer that may write nowhere gets no id; one that may write somewhere does."""
    name = "idempotence-without-rights-"
    body: Any = messages.InitProducerIdRequest(transactionalId=None)
    yield from _make(
        _rule(_CLUSTER, _CLUSTER_NAME, _ALTER),
        _rule(_CLUSTER, _CLUSTER_NAME, _ACTION),
        _rule(_TOPIC, "*", _WRITE, permission=_DENY),
    )
    ask = Ask("no rights", ApiKey.INIT_PRODUCER_ID, 4, body)
    yield Until(ask, lambda found: found.errorCode != 0)
    yield from _make(_rule(_TOPIC, name, _WRITE, pattern=_PREFIXED))
    yield from _drop(_TOPIC, "*", _WRITE)
    ask = Ask("a prefix", ApiKey.INIT_PRODUCER_ID, 4, body)
    yield Until(ask, lambda found: found.errorCode == 0)
    yield from _dropClusterRules()


@scenario(*_AUTHORIZER, ("super.users", "User:nobody"))
def refusedAcls(setting: Setting) -> Steps:
    """Who may not alter the cluster may not change ACLs; nor may the scenario clean up."""
    name = "refused-acls-"
    yield from _make(
        _rule(_CLUSTER, _CLUSTER_NAME, _ACTION),
        _rule(_CLUSTER, _CLUSTER_NAME, _ALTER, permission=_DENY),
    )
    created = messages.CreateAclsRequest(creations=[_rule(_TOPIC, name + "more", _READ)])
    for version in (1, 3):
        ask = Ask("refused", ApiKey.CREATE_ACLS, version, created)
        yield Until(ask, lambda found: found.results[0].errorCode != 0)
        yield Ask("none", ApiKey.CREATE_ACLS, version, messages.CreateAclsRequest())
        cls = messages.DeleteAclsRequest
        one = cls.DeleteAclsFilter(
            resourceTypeFilter=_TOPIC,
            resourceNameFilter=name + "more",
            patternTypeFilter=_LITERAL,
            principalFilter=None,
            hostFilter=None,
            operation=1,
            permissionType=1,
        )
        yield Ask("refused", ApiKey.DELETE_ACLS, version, cls(filters=[one, one]))


@scenario(*_AUTHORIZER)
def authorizationOfTransactions(setting: Setting) -> Steps:
    """Requests of transactions."""
    name = "authorization-of-transactions-"
    yield from makeTopic(name + "open")
    yield from makeTopic(name + "closed")
    yield from _make(
        _rule(_TOPIC, name + "closed", _READ, _ALICE),
        _rule(_GROUP, name + "closed", _READ, _ALICE),
        _rule(_TRANSACTIONAL_ID, name + "described", _DESCRIBE),
        _rule(_TRANSACTIONAL_ID, name + "closed", _WRITE, _ALICE),
    )
    find = messages.FindCoordinatorRequest
    body: Any = find(key=name + "closed", keyType=1)
    ask = Ask("closed", ApiKey.FIND_COORDINATOR, 3, body)
    yield Until(
        ask, lambda found: found.errorCode == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    body = find(coordinatorKeys=[name + "closed", name + "described"], keyType=1)
    ask = Ask("some", ApiKey.FIND_COORDINATOR, 6, body)
    yield Until(ask, lambda found: {each.errorCode for each in found.coordinators} == {0, 53})
    begun: Any = None
    for each in ("closed", "described", "open"):
        body = messages.InitProducerIdRequest(
            transactionalId=name + each, transactionTimeoutMs=60000
        )
        ask = Ask(each, ApiKey.INIT_PRODUCER_ID, 4, body)
        begun = yield Until(ask, lambda found: found.errorCode in (0, 53))
    who = {"producerId": begun.producerId, "producerEpoch": begun.producerEpoch}
    cls = messages.AddPartitionsToTxnRequest

    def wanted(*names: str) -> list[Any]:
        return [cls.AddPartitionsToTxnTopic(name=name + each, partitions=[0]) for each in names]

    for transactional in ("closed", "open"):
        body = cls(
            v3AndBelowTransactionalId=name + transactional,
            v3AndBelowProducerId=begun.producerId,
            v3AndBelowProducerEpoch=begun.producerEpoch,
            v3AndBelowTopics=wanted("open", "closed", "none"),
        )
        yield Ask(transactional, ApiKey.ADD_PARTITIONS_TO_TXN, 3, body)
        for group in ("closed", "open"):
            body = messages.AddOffsetsToTxnRequest(
                transactionalId=name + transactional, groupId=name + group, **who
            )
            label = f"{transactional}, group {group}"
            yield Ask(label, ApiKey.ADD_OFFSETS_TO_TXN, 3, body)
            commit = messages.TxnOffsetCommitRequest
            body = commit(
                transactionalId=name + transactional,
                groupId=name + group,
                topics=[
                    commit.TxnOffsetCommitRequestTopic(
                        name=name + each,
                        partitions=[
                            commit.TxnOffsetCommitRequestPartition(
                                partitionIndex=0, committedOffset=1, committedMetadata=""
                            )
                        ],
                    )
                    for each in ("open", "closed")
                ],
                **who,
            )
            yield Ask(label, ApiKey.TXN_OFFSET_COMMIT, 3, body)
        body = messages.EndTxnRequest(transactionalId=name + transactional, committed=False, **who)
        yield Ask(transactional, ApiKey.END_TXN, 3, body)
        records = batch(
            setting.baseMs,
            b"v",
            producerId=begun.producerId,
            producerEpoch=begun.producerEpoch,
            baseSequence=0,
            isTransactional=True,
        )
        if transactional == "closed":
            body = produceBody(
                9, name + "open", b"", [(0, records)], transactionalId=name + transactional
            )
            yield Ask(transactional, ApiKey.PRODUCE, 9, body)
            body = produceBody(9, name + "open", b"", [(0, records)])
            yield Ask("no transactional id", ApiKey.PRODUCE, 9, body)
    body = messages.DescribeTransactionsRequest(
        transactionalIds=[name + each for each in ("closed", "described", "open")]
    )
    ask = Ask("some", ApiKey.DESCRIBE_TRANSACTIONS, 0, body)
    yield Until(
        ask,
        lambda found: all(
            each.transactionState in ("", "CompleteAbort", "Empty")
            for each in found.transactionStates
        ),
    )
    yield from _make(_rule(_TRANSACTIONAL_ID, name + "open", _WRITE, _ALICE))
    body = messages.ListTransactionsRequest()
    ask = Ask("all", ApiKey.LIST_TRANSACTIONS, 1, body, own=name)
    yield Until(
        ask,
        lambda found: (
            not [each for each in found.transactionStates if each.transactionalId.startswith(name)]
        ),
    )


@scenario(*_AUTHORIZER)
def authorizationOfConsumerGroups(setting: Setting) -> Steps:
    """KIP-848's groups."""
    name = "authorization-of-consumer-groups-"
    yield from makeTopic(name + "open")
    yield from makeTopic(name + "closed")
    yield from awaitCoordinator()
    yield from _make(
        _rule(_GROUP, name + "closed", _READ, _ALICE),
        _rule(_GROUP, name + "described", _DESCRIBE),
        _rule(_TOPIC, name + "closed", _READ, _ALICE),
    )
    yield from _awaitTopic(name + "closed", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cls = messages.ConsumerGroupHeartbeatRequest
    for group, topics in (
        ("closed", ["open"]),
        ("described", ["open"]),
        ("open", ["open", "closed"]),
        ("open", ["open", "none"]),
    ):
        body: Any = cls(
            groupId=name + group,
            memberId="AAAAAAAAAAAAAAAAAAAAAA",
            rebalanceTimeoutMs=30000,
            subscribedTopicNames=[name + each for each in topics],
            topicPartitions=[],
        )
        label = f"{group} to {', '.join(topics)}"
        yield Ask(label, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
    body = messages.ConsumerGroupDescribeRequest(
        groupIds=[name + each for each in ("closed", "described", "open")],
        includeAuthorizedOperations=True,
    )
    yield Ask("all", ApiKey.CONSUMER_GROUP_DESCRIBE, 1, body)
    yield from _make(_rule(_TOPIC, name + "open", _READ, _ALICE))
    yield from _awaitTopic(name + "open", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    yield Ask("with a hidden topic", ApiKey.CONSUMER_GROUP_DESCRIBE, 1, body)


@scenario(*_AUTHORIZER)
def authorizationOfPatterns(setting: Setting) -> Steps:
    """Patterns of KIP-848's members leave out topics of which the client may not know."""
    name = "authorization-of-patterns-"
    yield from makeTopic(name + "open")
    yield from makeTopic(name + "closed")
    yield from awaitCoordinator()
    yield from _make(_rule(_TOPIC, name + "closed", _READ, _ALICE))
    yield from _awaitTopic(name + "closed", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cls = messages.ConsumerGroupHeartbeatRequest
    for label, pattern in (("both", ".*"), ("closed", "closed"), ("open", "op.n")):
        group, memberId = name + label, "AAAAAAAAAAAAAAAAAAAAAA"
        body: Any = cls(
            groupId=group,
            memberId=memberId,
            rebalanceTimeoutMs=30000,
            subscribedTopicRegex=name + pattern,
            topicPartitions=[],
        )
        yield Ask(label, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
        told: Any = cls(groupId=group, memberId=memberId, memberEpoch=1)
        beat = Ask(label, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, told)
        if label == "closed":
            yield beat
        else:
            yield Until(
                beat,
                lambda found: found.assignment is not None and found.assignment.topicPartitions,
            )
        body = messages.ConsumerGroupDescribeRequest(groupIds=[group])
        yield Ask(label, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, body)
