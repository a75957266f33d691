"""
What each request needs: one table, L{RULES}, which stands in front of the handlers when there is an
authorizer. A module of its own, since handlers need not know who asks.

A rule refuses a request as a whole, or takes out of it what the client may not use, has the handler
answer for the rest, and puts the refusals into the response. It hides what the client may not see,
and says which operations are allowed where the client asks for them. Errors, and which of them
stands before which, are Kafka's.

What must be true: a request without a rule is refused (C{authorized}), so that a new request is
closed until it has a rule.

Two requests need more than a rule can do here. Fetch has partitions that stand in no request but in
a session, and Produce answers with bytes; their handlers ask the authorizer for each topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.broker.kafka.topicrequests import METADATA_TOPIC
from pylogbroker.cluster.acls import CLUSTER_NAME, AclOperation, AclResourceType
from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.errors import InvalidRequestValueError, NotAllowedError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceResponse,
    TopicProduceResponse,
    encodeProduceResponse,
)
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.responses import frameResponse
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records.recordbatch import MAGIC, MAGIC_POSITION, TRANSACTIONAL_ATTRIBUTE

_READ, _WRITE = AclOperation.READ, AclOperation.WRITE
_CREATE, _DELETE, _ALTER = AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER
_DESCRIBE, _CLUSTER_ACTION = AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
_TOPIC, _GROUP, _CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
_TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID

_NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

_NOT_ASKED = -(2**31)
"""In the place of allowed operations: the client did not ask for them."""
_ATTRIBUTES = 22
"""The lower byte of a batch's attributes."""


class AuthorizedRequest:
    """
    A request, and what its client may do.

    @ivar header: of the request.
    @ivar body: the request, which a rule may shorten.
    @ivar image: the metadata, to find names of ids.
    """

    def __init__(
        self,
        header: RequestHeader,
        body: Any,
        client: ConnectionState,
        handler: Handler,
        authorizer: AclAuthorizer,
        image: MetadataImage,
    ) -> None:
        self.header = header
        self.body = body
        self.image = image
        self._client = client
        self._handler = handler
        self._authorizer = authorizer

    def may(
        self, operation: AclOperation, resourceType: AclResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether the client may do something; a refusal is counted and logged."""
        return self._authorizer.requires(self._client, operation, resourceType, name)

    def sees(
        self, operation: AclOperation, resourceType: AclResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether the client may do something that it did not ask for by name."""
        return self._authorizer.allows(self._client, operation, resourceType, name)

    def mayWriteSomewhere(self) -> bool:
        """Whether the client may write to any topic."""
        return self._authorizer.allowsSome(self._client, _WRITE, _TOPIC)

    def operations(self, resourceType: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """What the client may do to a resource, each operation a bit."""
        return self._authorizer.operations(self._client, resourceType, name)

    def nameOf(self, topicId: bytes) -> str | None:
        """The name of a topic; L{None}: there is none."""
        found = self.image.topicsById.get(UUID(bytes=bytes(topicId)))
        return None if found is None else found.name

    def proceed(self, change: Callable[[Any], Any] | None = None, version: int = -1) -> Any:
        """
        Have the handler answer.

        @param change: changes the response body, in place.
        @param version: to be told to the handler instead of the request's.
        """
        header = self.header if version < 0 else self.header._replace(apiVersion=version)
        answer = self._handler(header, self.body, self._client)
        if change is None:
            return answer

        def changed(body: Any) -> Any:
            change(body)
            return body

        return answer.addCallback(changed) if isinstance(answer, Deferred) else changed(answer)

    def take(
        self, items: Iterable[Any], isAllowed: Callable[[Any], bool]
    ) -> tuple[list[Any], list[Any]]:
        """The items that are allowed, and the others."""
        kept: list[Any] = []
        refused: list[Any] = []
        for each in items:
            (kept if isAllowed(each) else refused).append(each)
        return kept, refused


Rule = Callable[[AuthorizedRequest], Any]
"""Answers as a L{Handler} does."""


def authorized(
    handlers: Mapping[ApiKey, Handler],
    authorizer: AclAuthorizer,
    image: Callable[[], MetadataImage],
) -> dict[ApiKey, Handler]:
    """Handlers that do only what L{RULES} allow. One without a rule closes the connection."""

    def guarded(key: ApiKey, handler: Handler) -> Handler:
        rule = RULES.get(key, _denied)

        def handle(header: RequestHeader, body: Any, client: ConnectionState) -> Any:
            return rule(AuthorizedRequest(header, body, client, handler, authorizer, image()))

        return handle

    return {key: guarded(key, handler) for key, handler in handlers.items()}


def _denied(ask: AuthorizedRequest) -> Any:
    raise NotAllowedError(f"{ask.header.apiKey.apiName} has no rule for an authorizer")


def _anyone(ask: AuthorizedRequest) -> Any:
    return ask.proceed()


# -- a request as a whole


def _group(operation: AclOperation, response: Any, **fields: Any) -> Rule:
    def rule(ask: AuthorizedRequest) -> Any:
        if ask.may(operation, _GROUP, ask.body.groupId):
            return ask.proceed()
        return response(errorCode=_NO_GROUP, **fields)

    return rule


def _cluster(operation: AclOperation, refuse: Callable[[AuthorizedRequest], Any]) -> Rule:
    def rule(ask: AuthorizedRequest) -> Any:
        return ask.proceed() if ask.may(operation, _CLUSTER) else refuse(ask)

    return rule


def _transactional(response: Any) -> Rule:
    def rule(ask: AuthorizedRequest) -> Any:
        if ask.may(_WRITE, _TRANSACTIONAL_ID, ask.body.transactionalId):
            return ask.proceed()
        return response(errorCode=_NO_TRANSACTION)

    return rule


def _joinGroup(ask: AuthorizedRequest) -> Any:
    if ask.may(_READ, _GROUP, ask.body.groupId):
        return ask.proceed()
    name = None if ask.header.apiVersion >= 7 else ""
    return messages.JoinGroupResponse(errorCode=_NO_GROUP, protocolName=name)


def _initProducerId(ask: AuthorizedRequest) -> Any:
    transactionalId = ask.body.transactionalId
    code = ErrorCode.NONE
    if transactionalId is not None:
        if not ask.may(_WRITE, _TRANSACTIONAL_ID, transactionalId):
            code = _NO_TRANSACTION
    elif not ask.mayWriteSomewhere() and not ask.may(AclOperation.IDEMPOTENT_WRITE, _CLUSTER):
        code = _NO_CLUSTER
    if not code:
        return ask.proceed()
    return messages.InitProducerIdResponse(errorCode=code, producerId=-1, producerEpoch=-1)


# -- topics of clients


def _produce(ask: AuthorizedRequest) -> Any:
    """The handler asks about each topic; here about the transaction."""
    request = ask.body
    transactionalId = request.transactionalId
    if not any(
        _isTransactional(part.records)
        for topic in request.topicData
        for part in topic.partitionData
    ):
        return ask.proceed()
    if transactionalId is not None and ask.may(_WRITE, _TRANSACTIONAL_ID, transactionalId):
        return ask.proceed()
    if request.acks == 0:
        raise InvalidRequestValueError("produce with a transactional id that is not allowed")
    topics = [
        TopicProduceResponse(
            topic.name,
            topic.topicId,
            [PartitionProduceResponse(part.index, _NO_TRANSACTION) for part in topic.partitionData],
        )
        for topic in request.topicData
    ]
    return [frameResponse(ask.header, encodeProduceResponse(ask.header.apiVersion, topics))]


def _isTransactional(records: memoryview | None) -> bool:
    return (
        records is not None
        and len(records) > _ATTRIBUTES
        and records[MAGIC_POSITION] == MAGIC
        and bool(records[_ATTRIBUTES] & TRANSACTIONAL_ATTRIBUTE)
    )


def _metadata(ask: AuthorizedRequest) -> Any:
    version, body = ask.header.apiVersion, ask.body
    cls = messages.MetadataResponse
    refused: list[Any] = []
    isHiding = False
    if body.topics is None or (version == 0 and not body.topics):
        isHiding = True
    elif any(each.topicId != ZERO_UUID for each in body.topics):
        isAllowed = lambda each: _isUnknownOr(ask, each.topicId, ask.may)  # noqa: E731
        body.topics, denied = ask.take(body.topics, isAllowed)
        for topicId in dict.fromkeys(each.topicId for each in denied):
            refused.append(
                cls.MetadataResponseTopic(errorCode=_NO_TOPIC, name=None, topicId=topicId)
            )
    elif all(each.name is not None for each in body.topics):
        body.topics, denied = ask.take(body.topics, lambda each: _mayAsk(ask, each.name))
        names = dict.fromkeys(each.name for each in denied)
        refused += [cls.MetadataResponseTopic(errorCode=_NO_TOPIC, name=each) for each in names]

    def change(response: Any) -> None:
        if isHiding:
            response.topics, _ = ask.take(
                response.topics, lambda each: ask.sees(_DESCRIBE, _TOPIC, each.name)
            )
        for each in response.topics:
            if body.includeTopicAuthorizedOperations and each.name is not None:
                each.topicAuthorizedOperations = ask.operations(_TOPIC, each.name)
        response.topics += refused
        if response.clusterAuthorizedOperations != _NOT_ASKED:
            response.clusterAuthorizedOperations = _clusterOperations(ask)

    # In version 0 an empty list would now be one of all topics.
    return ask.proceed(change, 1 if version == 0 and not body.topics and not isHiding else -1)


def _isUnknownOr(ask: AuthorizedRequest, topicId: bytes, isAllowed: Callable[..., bool]) -> bool:
    name = ask.nameOf(topicId)
    return name is None or isAllowed(_DESCRIBE, _TOPIC, name)


def _mayAsk(ask: AuthorizedRequest, name: str) -> bool:
    """Whether a topic may be looked up, and created by that if it is not there."""
    if not ask.may(_DESCRIBE, _TOPIC, name):
        return False
    if name in ask.image.topics or not ask.body.allowAutoTopicCreation:
        return True
    return ask.sees(_CREATE, _CLUSTER) or ask.may(_CREATE, _TOPIC, name)


def _clusterOperations(ask: AuthorizedRequest) -> int:
    return ask.operations(_CLUSTER) if ask.may(_DESCRIBE, _CLUSTER) else 0


def _describeTopicPartitions(ask: AuthorizedRequest) -> Any:
    cls, body, cursor = messages.DescribeTopicPartitionsResponse, ask.body, ask.body.cursor
    start = "" if cursor is None else cursor.topicName
    refused = []
    if body.topics:
        hasStart = cursor is None or any(each.name == start for each in body.topics)
        body.topics, denied = ask.take(
            body.topics, lambda each: ask.may(_DESCRIBE, _TOPIC, each.name)
        )
        refused = [
            cls.DescribeTopicPartitionsResponseTopic(errorCode=_NO_TOPIC, name=name)
            for name in dict.fromkeys(each.name for each in denied)
            if name >= start
        ]
    else:
        hasStart = True
        made = messages.DescribeTopicPartitionsRequest.TopicRequest
        names = [name for name in ask.image.topics if ask.sees(_DESCRIBE, _TOPIC, name)]
        body.topics = [made(name=name) for name in names]
    if hasStart and all(each.name != start for each in body.topics):
        # The topic at which to go on is not to be seen: go on behind it.
        body.topics = [each for each in body.topics if each.name >= start]
        body.cursor = None

    def change(response: Any) -> None:
        for each in response.topics:
            if each.topicAuthorizedOperations != _NOT_ASKED:
                each.topicAuthorizedOperations = ask.operations(_TOPIC, each.name)
        response.topics += refused

    # No topics would mean all of them.
    return ask.proceed(change) if body.topics else cls(topics=refused)


def _perTopic(
    operation: AclOperation,
    topicOf: Callable[[Any, list[Any]], Any],
    partitionOf: Callable[[int], Any],
    name: str = "name",
    index: str = "partitionIndex",
) -> Rule:
    """
    A rule for requests with partitions of topics, whose refusals stand behind the answers.
    @param topicOf: gives a topic of the response, of the one in the request and its partitions.
    @param partitionOf: gives a refused partition.
    """

    def rule(ask: AuthorizedRequest) -> Any:
        ask.body.topics, denied = ask.take(
            ask.body.topics, lambda each: ask.may(operation, _TOPIC, getattr(each, name))
        )
        refused = [
            topicOf(each, [partitionOf(getattr(part, index)) for part in each.partitions])
            for each in denied
        ]

        def change(response: Any) -> None:
            response.topics = [*response.topics, *refused]

        return ask.proceed(change)

    return rule


_LISTED = messages.ListOffsetsResponse
_listOffsets = _perTopic(
    _DESCRIBE,
    lambda topic, parts: _LISTED.ListOffsetsTopicResponse(name=topic.name, partitions=parts),
    lambda index: _LISTED.ListOffsetsPartitionResponse(partitionIndex=index, errorCode=_NO_TOPIC),
)
_ENDS = messages.OffsetForLeaderEpochResponse
_topicEpochs = _perTopic(
    _DESCRIBE,
    lambda topic, parts: _ENDS.OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts),
    lambda index: _ENDS.EpochEndOffset(partition=index, errorCode=_NO_TOPIC),
    "topic",
    "partition",
)
_DELETED = messages.DeleteRecordsResponse
_deleteRecords = _perTopic(
    _DELETE,
    lambda topic, parts: _DELETED.DeleteRecordsTopicResult(name=topic.name, partitions=parts),
    lambda index: _DELETED.DeleteRecordsPartitionResult(
        partitionIndex=index, lowWatermark=-1, errorCode=_NO_TOPIC
    ),
)


def _offsetForLeaderEpoch(ask: AuthorizedRequest) -> Any:
    """Brokers need no rights to single topics."""
    return ask.proceed() if ask.sees(_CLUSTER_ACTION, _CLUSTER) else _topicEpochs(ask)


def _describeProducers(ask: AuthorizedRequest) -> Any:
    cls = messages.DescribeProducersResponse
    ask.body.topics, denied = ask.take(
        ask.body.topics, lambda each: ask.may(_READ, _TOPIC, each.name)
    )

    def refused(index: int) -> Any:
        return cls.PartitionResponse(
            partitionIndex=index, errorCode=_NO_TOPIC, errorMessage=_NO_TOPIC.message
        )

    def change(response: Any) -> None:
        response.topics += [
            cls.TopicResponse(name=each.name, partitions=list(map(refused, each.partitionIndexes)))
            for each in denied
        ]

    return ask.proceed(change)


# -- groups


def _findCoordinator(ask: AuthorizedRequest) -> Any:
    cls, body = messages.FindCoordinatorResponse, ask.body
    kinds: Mapping[int, tuple[AclResourceType, ErrorCode]] = {
        0: (_GROUP, _NO_GROUP),
        1: (_TRANSACTIONAL_ID, _NO_TRANSACTION),
    }
    kind = kinds.get(body.keyType)
    if kind is None:  # a mistake, or a share group, of which there are none
        return ask.proceed()
    resourceType, code = kind
    nowhere = {"errorCode": code, "nodeId": -1, "host": "", "port": -1}
    if ask.header.apiVersion < 4:
        if ask.may(_DESCRIBE, resourceType, body.key):
            return ask.proceed()
        return cls(errorMessage=code.message, **nowhere)
    body.coordinatorKeys, denied = ask.take(
        body.coordinatorKeys, lambda key: ask.may(_DESCRIBE, resourceType, key)
    )

    def change(response: Any) -> None:
        response.coordinators += [cls.Coordinator(key=key, **nowhere) for key in denied]

    return ask.proceed(change)


def _offsetCommit(ask: AuthorizedRequest) -> Any:
    cls, body = messages.OffsetCommitResponse, ask.body
    refused = partial(_refusedTopics, cls, fields=("name", "topicId"))
    if not ask.may(_READ, _GROUP, body.groupId):
        return cls(topics=refused(body.topics, _NO_GROUP))
    body.topics, denied = ask.take(body.topics, lambda each: _mayRead(ask, each, 10))

    def change(response: Any) -> None:
        response.topics = [*response.topics, *refused(denied, _NO_TOPIC)]

    return ask.proceed(change)


def _refusedTopics(
    response: Any, topics: Iterable[Any], code: ErrorCode, fields: Iterable[str] = ("name",)
) -> list[Any]:
    """
    The topics of a response, with an error for each partition of the request.

    @param response: its class; those of its topics and partitions are named after it.
    @param fields: of the topics in the request that the response has, too.
    """
    topicOf = getattr(response, f"{response.__name__}Topic")
    partitionOf = getattr(response, f"{response.__name__}Partition")
    return [
        topicOf(
            partitions=[
                partitionOf(partitionIndex=part.partitionIndex, errorCode=code)
                for part in topic.partitions
            ],
            **{name: getattr(topic, name) for name in fields},
        )
        for topic in topics
    ]


def _mayRead(
    ask: AuthorizedRequest, topic: Any, idVersion: int, operation: AclOperation = _READ
) -> bool:
    """Whether a topic may be used, which has an id from a version on. Unknown ids are no secret."""
    name = ask.nameOf(topic.topicId) if ask.header.apiVersion >= idVersion else topic.name
    return name is None or ask.may(operation, _TOPIC, name)


def _offsetFetch(ask: AuthorizedRequest) -> Any:
    if ask.header.apiVersion < 8:
        return _offsetFetchOfOne(ask)
    cls = messages.OffsetFetchResponse
    groups, denied = ask.take(
        ask.body.groups, lambda each: ask.may(_DESCRIBE, _GROUP, each.groupId)
    )
    ask.body.groups = groups
    refusals: list[tuple[str, list[Any] | None]] = []
    for group in groups:
        topics: list[Any] | None = None
        if group.topics is not None:
            group.topics, topics = ask.take(
                group.topics, lambda each: _mayRead(ask, each, 10, _DESCRIBE)
            )
        # Of each group, also one that asks for all: a request may name a group twice.
        refusals.append((group.groupId, topics))

    def change(response: Any) -> None:
        made = []
        left = list(refusals)
        for answer in response.groups:
            at = next((i for i, each in enumerate(left) if each[0] == answer.groupId), None)
            topics = left.pop(at)[1] if at is not None else None
            made.append(_fetched(ask, answer, topics))
        response.groups = [
            *made,
            *(
                cls.OffsetFetchResponseGroup(groupId=each.groupId, errorCode=_NO_GROUP)
                for each in denied
            ),
        ]

    return ask.proceed(change)


def _fetched(ask: AuthorizedRequest, answer: Any, refused: list[Any] | None) -> Any:
    """
    A group in a response, as it may be seen.

    @param refused: topics of the request; L{None}: it has asked for all.
    """
    cls = messages.OffsetFetchResponse
    if answer.errorCode:
        return answer
    if refused is None:
        shown, _ = ask.take(answer.topics, lambda each: ask.sees(_DESCRIBE, _TOPIC, each.name))
    else:
        shown = [
            *answer.topics,
            *(
                cls.OffsetFetchResponseTopics(
                    name=topic.name,
                    topicId=topic.topicId,
                    partitions=[
                        cls.OffsetFetchResponsePartitions(**_unfetched(index, _NO_TOPIC))
                        for index in topic.partitionIndexes
                    ],
                )
                for topic in refused
            ),
        ]
    return _changed(answer, topics=shown)


def _unfetched(index: int, code: ErrorCode) -> dict[str, Any]:
    return {
        "partitionIndex": index,
        "committedOffset": -1,
        "metadata": "",
        "errorCode": code,
    }


def _offsetFetchOfOne(ask: AuthorizedRequest) -> Any:
    cls, body = messages.OffsetFetchResponse, ask.body

    def refused(topics: Iterable[Any], code: ErrorCode) -> list[Any]:
        return [
            cls.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    cls.OffsetFetchResponsePartition(**_unfetched(index, code))
                    for index in topic.partitionIndexes
                ],
            )
            for topic in topics
        ]

    if not ask.may(_DESCRIBE, _GROUP, body.groupId):
        if ask.header.apiVersion >= 2:
            return cls(errorCode=_NO_GROUP)
        return cls(topics=refused(body.topics, _NO_GROUP))
    isAll = body.topics is None
    denied: list[Any] = []
    if not isAll:
        body.topics, denied = ask.take(
            body.topics, lambda each: ask.may(_DESCRIBE, _TOPIC, each.name)
        )

    def change(response: Any) -> None:
        if response.errorCode:
            return
        if isAll:
            response.topics, _ = ask.take(
                response.topics, lambda each: ask.sees(_DESCRIBE, _TOPIC, each.name)
            )
        response.topics = [*response.topics, *refused(denied, _NO_TOPIC)]

    return ask.proceed(change)


def _offsetDelete(ask: AuthorizedRequest) -> Any:
    cls, body = messages.OffsetDeleteResponse, ask.body
    if not ask.may(_DELETE, _GROUP, body.groupId):
        return cls(errorCode=_NO_GROUP)
    body.topics, denied = ask.take(body.topics, lambda each: ask.may(_READ, _TOPIC, each.name))
    refused = _refusedTopics(cls, denied, _NO_TOPIC)

    def change(response: Any) -> None:
        if not response.errorCode:
            response.topics = [*response.topics, *refused]

    return ask.proceed(change) if body.topics or not denied else cls(topics=refused)


def _changed(value: Any, **fields: Any) -> Any:
    """A part of a response with other fields; coordinators make theirs of named tuples."""
    if isinstance(value, tuple):
        return value._replace(**fields)  # type: ignore[attr-defined]
    for name, field in fields.items():
        setattr(value, name, field)
    return value


def _withOperations(ask: AuthorizedRequest, groups: Iterable[Any]) -> list[Any]:
    """Described groups, with what the client may do to them."""
    return [
        each
        if each.authorizedOperations == _NOT_ASKED
        else _changed(each, authorizedOperations=ask.operations(_GROUP, each.groupId))
        for each in groups
    ]


def _describeGroups(ask: AuthorizedRequest) -> Any:
    cls = messages.DescribeGroupsResponse
    ask.body.groups, denied = ask.take(
        ask.body.groups, lambda group: ask.may(_DESCRIBE, _GROUP, group)
    )

    def change(response: Any) -> None:
        response.groups = [
            *_withOperations(ask, response.groups),
            *(
                cls.DescribedGroup(groupId=group, errorCode=_NO_GROUP)
                for group in dict.fromkeys(denied)
            ),
        ]

    return ask.proceed(change)


def _listGroups(ask: AuthorizedRequest) -> Any:
    def change(response: Any) -> None:
        if not ask.sees(_DESCRIBE, _CLUSTER):
            response.groups, _ = ask.take(
                response.groups, lambda each: ask.sees(_DESCRIBE, _GROUP, each.groupId)
            )

    return ask.proceed(change)


def _deleteGroups(ask: AuthorizedRequest) -> Any:
    cls = messages.DeleteGroupsResponse
    ask.body.groupsNames, denied = ask.take(
        ask.body.groupsNames, lambda group: ask.may(_DELETE, _GROUP, group)
    )

    def change(response: Any) -> None:
        response.results = [
            *response.results,
            *(
                cls.DeletableGroupResult(groupId=group, errorCode=_NO_GROUP)
                for group in dict.fromkeys(denied)
            ),
        ]

    return ask.proceed(change)


def _consumerGroupHeartbeat(ask: AuthorizedRequest) -> Any:
    cls, body = messages.ConsumerGroupHeartbeatResponse, ask.body
    if not ask.may(_READ, _GROUP, body.groupId):
        return cls(errorCode=_NO_GROUP)
    if not all(ask.may(_DESCRIBE, _TOPIC, name) for name in body.subscribedTopicNames or ()):
        return cls(errorCode=_NO_TOPIC)
    return ask.proceed()


def _consumerGroupDescribe(ask: AuthorizedRequest) -> Any:
    cls = messages.ConsumerGroupDescribeResponse
    ask.body.groupIds, denied = ask.take(
        ask.body.groupIds, lambda group: ask.may(_DESCRIBE, _GROUP, group)
    )

    def visible(group: Any) -> Any:
        names = {
            part.topicName
            for member in group.members
            for assignment in (member.assignment, member.targetAssignment)
            for part in assignment.topicPartitions
        }
        names.update(name for member in group.members for name in member.subscribedTopicNames)
        if all(ask.may(_DESCRIBE, _TOPIC, name) for name in names):
            return group
        return cls.DescribedGroup(
            groupId=group.groupId,
            errorCode=_NO_TOPIC,
            errorMessage="The group has described topic(s) that the client is not authorized to"
            " describe.",
        )

    def change(response: Any) -> None:
        response.groups = [
            *_withOperations(ask, map(visible, response.groups)),
            *(
                cls.DescribedGroup(groupId=group, errorCode=_NO_GROUP)
                for group in dict.fromkeys(denied)
            ),
        ]

    return ask.proceed(change)


# -- transactions


def _addPartitionsToTxn(ask: AuthorizedRequest) -> Any:
    cls, body = messages.AddPartitionsToTxnResponse, ask.body
    if ask.header.apiVersion >= 4:  # of brokers
        if ask.may(_CLUSTER_ACTION, _CLUSTER):
            return ask.proceed()
        return cls(errorCode=_NO_CLUSTER)

    def refused(codeOf: Callable[[str, int], ErrorCode]) -> Any:
        return cls(
            resultsByTopicV3AndBelow=[
                cls.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    resultsByPartition=[
                        cls.AddPartitionsToTxnPartitionResult(
                            partitionIndex=index, partitionErrorCode=codeOf(topic.name, index)
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in body.v3AndBelowTopics
            ]
        )

    if not ask.may(_WRITE, _TRANSACTIONAL_ID, body.v3AndBelowTransactionalId):
        return refused(lambda name, index: _NO_TRANSACTION)
    denied = {
        topic.name for topic in body.v3AndBelowTopics if not ask.may(_WRITE, _TOPIC, topic.name)
    }
    if not denied:
        return ask.proceed()

    def codeOf(name: str, index: int) -> ErrorCode:
        if name in denied:
            return _NO_TOPIC
        topic = ask.image.topics.get(name)
        isThere = topic is not None and 0 <= index < topic.partitionCount
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED if isThere else unknown

    return refused(codeOf)


def _addOffsetsToTxn(ask: AuthorizedRequest) -> Any:
    cls, body = messages.AddOffsetsToTxnResponse, ask.body
    if not ask.may(_WRITE, _TRANSACTIONAL_ID, body.transactionalId):
        return cls(errorCode=_NO_TRANSACTION)
    return ask.proceed() if ask.may(_READ, _GROUP, body.groupId) else cls(errorCode=_NO_GROUP)


def _txnOffsetCommit(ask: AuthorizedRequest) -> Any:
    cls, body = messages.TxnOffsetCommitResponse, ask.body
    refused = partial(_refusedTopics, cls)
    if not ask.may(_WRITE, _TRANSACTIONAL_ID, body.transactionalId):
        return cls(topics=refused(body.topics, _NO_TRANSACTION))
    if not ask.may(_READ, _GROUP, body.groupId):
        return cls(topics=refused(body.topics, _NO_GROUP))
    body.topics, denied = ask.take(body.topics, lambda each: ask.may(_READ, _TOPIC, each.name))

    def change(response: Any) -> None:
        response.topics = [*response.topics, *refused(denied, _NO_TOPIC)]

    # Without topics there is nothing to commit, but the transaction would still be looked at.
    return ask.proceed(change) if body.topics else cls(topics=refused(denied, _NO_TOPIC))


def _writeTxnMarkers(ask: AuthorizedRequest) -> Any:
    if ask.sees(_ALTER, _CLUSTER) or ask.may(_CLUSTER_ACTION, _CLUSTER):
        return ask.proceed()
    cls = messages.WriteTxnMarkersResponse
    return cls(
        markers=[
            cls.WritableTxnMarkerResult(
                producerId=marker.producerId,
                topics=[
                    cls.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            cls.WritableTxnMarkerPartitionResult(
                                partitionIndex=index, errorCode=_NO_CLUSTER
                            )
                            for index in topic.partitionIndexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in ask.body.markers
        ]
    )


def _describeTransactions(ask: AuthorizedRequest) -> Any:
    cls = messages.DescribeTransactionsResponse
    ask.body.transactionalIds, denied = ask.take(
        ask.body.transactionalIds, lambda each: ask.may(_DESCRIBE, _TRANSACTIONAL_ID, each)
    )

    def change(response: Any) -> None:
        response.transactionStates = [
            *(
                _changed(
                    each,
                    topics=[
                        topic for topic in each.topics if ask.sees(_DESCRIBE, _TOPIC, topic.topic)
                    ],
                )
                for each in response.transactionStates
            ),
            *(
                cls.TransactionState(transactionalId=each, errorCode=_NO_TRANSACTION)
                for each in dict.fromkeys(denied)
            ),
        ]

    return ask.proceed(change)


def _listTransactions(ask: AuthorizedRequest) -> Any:
    def change(response: Any) -> None:
        response.transactionStates, _ = ask.take(
            response.transactionStates,
            lambda each: ask.sees(_DESCRIBE, _TRANSACTIONAL_ID, each.transactionalId),
        )

    return ask.proceed(change)


# -- administration of topics


def _createTopics(ask: AuthorizedRequest) -> Any:
    cls, body = messages.CreateTopicsResponse, ask.body
    counts = Counter(each.name for each in body.topics)
    isAllAllowed = ask.sees(_CREATE, _CLUSTER)
    body.topics, denied = ask.take(
        body.topics,
        lambda each: (
            isAllAllowed
            or counts[each.name] > 1  # which is refused in any case, as is the next
            or each.name == METADATA_TOPIC
            or ask.may(_CREATE, _TOPIC, each.name)
        ),
    )

    def change(response: Any) -> None:
        for each in response.topics:
            if not each.errorCode and not ask.sees(_DESCRIBE_CONFIGS, _TOPIC, each.name):
                each.topicConfigErrorCode = _NO_TOPIC
                each.numPartitions = each.replicationFactor = -1
                each.configs = []
        response.topics += [
            cls.CreatableTopicResult(
                name=each.name, errorCode=_NO_TOPIC, errorMessage="Authorization failed."
            )
            for each in denied
        ]

    return ask.proceed(change)


def _deleteTopics(ask: AuthorizedRequest) -> Any:
    cls, body = messages.DeleteTopicsResponse, ask.body
    if ask.sees(_DELETE, _CLUSTER):
        return ask.proceed()
    counts = Counter([*body.topicNames, *((each.name, each.topicId) for each in body.topics)])
    missing: list[Any] = []
    refused = []

    def isAllowed(name: str | None, topicId: bytes, count: int) -> bool:
        if count > 1 or (name is None) == (topicId == ZERO_UUID):
            return True  # a mistake, whose error tells nothing
        found = ask.nameOf(topicId) if name is None else name
        if found is None:
            return True
        isSeen = ask.sees(_DESCRIBE, _TOPIC, found)
        if name is not None and isSeen and found not in ask.image.topics:
            if ask.sees(_DELETE, _TOPIC, found):
                return True
            # Told here: the topic may be created before the handler decides.
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            missing.append(
                cls.DeletableTopicResult(
                    name=name, topicId=topicId, errorCode=unknown, errorMessage=unknown.message
                )
            )
            return False
        if (isSeen or name is None) and ask.may(_DELETE, _TOPIC, found):
            return True
        refused.append(
            cls.DeletableTopicResult(
                name=found if isSeen else name,
                topicId=topicId,
                errorCode=_NO_TOPIC,
                errorMessage=_NO_TOPIC.message,
            )
        )
        return False

    body.topicNames, _ = ask.take(
        body.topicNames, lambda name: isAllowed(name, ZERO_UUID, counts[name])
    )
    body.topics, _ = ask.take(
        body.topics,
        lambda each: isAllowed(each.name, each.topicId, counts[each.name, each.topicId]),
    )

    def change(response: Any) -> None:
        response.responses = [*missing, *response.responses, *refused]

    return ask.proceed(change)


def _createPartitions(ask: AuthorizedRequest) -> Any:
    cls, body = messages.CreatePartitionsResponse, ask.body
    counts = Counter(each.name for each in body.topics)
    body.topics, denied = ask.take(
        body.topics, lambda each: counts[each.name] > 1 or ask.may(_ALTER, _TOPIC, each.name)
    )

    def change(response: Any) -> None:
        response.results += [
            cls.CreatePartitionsTopicResult(name=each.name, errorCode=_NO_TOPIC) for each in denied
        ]

    return ask.proceed(change)


def _refusedElections(ask: AuthorizedRequest) -> Any:
    cls, text = messages.ElectLeadersResponse, _NO_CLUSTER.message
    return cls(
        errorCode=_NO_CLUSTER,
        replicaElectionResults=[
            cls.ReplicaElectionResult(
                topic=each.topic,
                partitionResult=[
                    cls.PartitionResult(partitionId=i, errorCode=_NO_CLUSTER, errorMessage=text)
                    for i in each.partitions
                ],
            )
            for each in ask.body.topicPartitions or ()
        ],
    )


def _refusedReassignments(ask: AuthorizedRequest) -> Any:
    cls, text = messages.AlterPartitionReassignmentsResponse, _NO_CLUSTER.message
    made = cls.ReassignablePartitionResponse
    return cls(
        errorCode=_NO_CLUSTER,
        errorMessage=text,
        responses=[
            cls.ReassignableTopicResponse(
                name=each.name,
                partitions=[
                    made(
                        partitionIndex=one.partitionIndex, errorCode=_NO_CLUSTER, errorMessage=text
                    )
                    for one in each.partitions
                ],
            )
            for each in ask.body.topics
        ],
    )


def _refusedReassignmentList(ask: AuthorizedRequest) -> Any:
    cls = messages.ListPartitionReassignmentsResponse
    made = cls.OngoingPartitionReassignment
    return cls(
        errorCode=_NO_CLUSTER,
        errorMessage=_NO_CLUSTER.message,
        topics=[
            cls.OngoingTopicReassignment(
                name=each.name, partitions=[made(partitionIndex=i) for i in each.partitionIndexes]
            )
            for each in ask.body.topics or ()
        ],
    )


_CONFIGURED: Mapping[int, tuple[AclResourceType, ErrorCode]] = {
    2: (_TOPIC, _NO_TOPIC),
    4: (_CLUSTER, _NO_CLUSTER),
    8: (_CLUSTER, _NO_CLUSTER),
    16: (_CLUSTER, _NO_CLUSTER),
    32: (_GROUP, _NO_GROUP),
}
"""What protects the settings of a resource, by its type on the wire."""


def _configs(operation: AclOperation, refusalOf: Callable[..., Any], answers: str) -> Rule:
    def isAllowed(ask: AuthorizedRequest, resource: Any) -> bool:
        kind = _CONFIGURED.get(resource.resourceType)
        if kind is None:
            return True  # there is no such resource, which the handler says
        if kind[0] is _CLUSTER:
            return ask.may(operation, _CLUSTER)
        return ask.may(operation, kind[0], resource.resourceName)

    def rule(ask: AuthorizedRequest) -> Any:
        ask.body.resources, denied = ask.take(ask.body.resources, lambda each: isAllowed(ask, each))

        def change(response: Any) -> None:
            refused = []
            for each in denied:
                code = _CONFIGURED[each.resourceType][1]
                refused.append(
                    refusalOf(
                        errorCode=code,
                        errorMessage=code.message,
                        resourceType=each.resourceType,
                        resourceName=each.resourceName,
                    )
                )
            setattr(response, answers, [*getattr(response, answers), *refused])

        return ask.proceed(change)

    return rule


# -- refusals of what belongs to the cluster


def _refusedCreations(ask: AuthorizedRequest) -> Any:
    cls = messages.CreateAclsResponse
    refused = cls.AclCreationResult(errorCode=_NO_CLUSTER, errorMessage=_NO_CLUSTER.message)
    return cls(results=[refused for _ in ask.body.creations])


def _refusedDeletions(ask: AuthorizedRequest) -> Any:
    cls = messages.DeleteAclsResponse
    refused = cls.DeleteAclsFilterResult(errorCode=_NO_CLUSTER, errorMessage=_NO_CLUSTER.message)
    return cls(filterResults=[refused for _ in ask.body.filters])


def _refusedQuotas(ask: AuthorizedRequest) -> Any:
    cls = messages.AlterClientQuotasResponse
    return cls(
        entries=[
            cls.EntryData(
                errorCode=_NO_CLUSTER,
                errorMessage=_NO_CLUSTER.message,
                entity=[
                    cls.EntityData(entityType=part.entityType, entityName=part.entityName)
                    for part in entry.entity
                ],
            )
            for entry in ask.body.entries
        ]
    )


def _refusedCredentials(ask: AuthorizedRequest) -> Any:
    cls = messages.AlterUserScramCredentialsResponse
    names = dict.fromkeys(each.name for each in (*ask.body.deletions, *ask.body.upsertions))
    return cls(
        results=[
            cls.AlterUserScramCredentialsResult(
                user=name, errorCode=_NO_CLUSTER, errorMessage=_NO_CLUSTER.message
            )
            for name in names
        ]
    )


def _describeCluster(ask: AuthorizedRequest) -> Any:
    def change(response: Any) -> None:
        if response.clusterAuthorizedOperations != _NOT_ASKED:
            response.clusterAuthorizedOperations = _clusterOperations(ask)

    return ask.proceed(change)


def _coded(response: Any, hasText: bool = False, **fields: Any) -> Callable[[Any], Any]:
    """Refuses with one error code for all."""
    if hasText:
        fields["errorMessage"] = _NO_CLUSTER.message
    return lambda ask: response(errorCode=_NO_CLUSTER, **fields)


RULES: dict[ApiKey, Rule] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _anyone,  # the handler asks
    ApiKey.LIST_OFFSETS: _listOffsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offsetCommit,
    ApiKey.OFFSET_FETCH: _offsetFetch,
    ApiKey.FIND_COORDINATOR: _findCoordinator,
    ApiKey.JOIN_GROUP: _joinGroup,
    ApiKey.HEARTBEAT: _group(_READ, messages.HeartbeatResponse),
    ApiKey.LEAVE_GROUP: _group(_READ, messages.LeaveGroupResponse),
    ApiKey.SYNC_GROUP: _group(_READ, messages.SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: _describeGroups,
    ApiKey.LIST_GROUPS: _listGroups,
    ApiKey.SASL_HANDSHAKE: _anyone,
    ApiKey.API_VERSIONS: _anyone,
    ApiKey.CREATE_TOPICS: _createTopics,
    ApiKey.DELETE_TOPICS: _deleteTopics,
    ApiKey.DELETE_RECORDS: _deleteRecords,
    ApiKey.INIT_PRODUCER_ID: _initProducerId,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offsetForLeaderEpoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: _addPartitionsToTxn,
    ApiKey.ADD_OFFSETS_TO_TXN: _addOffsetsToTxn,
    ApiKey.END_TXN: _transactional(messages.EndTxnResponse),
    ApiKey.WRITE_TXN_MARKERS: _writeTxnMarkers,
    ApiKey.TXN_OFFSET_COMMIT: _txnOffsetCommit,
    ApiKey.DESCRIBE_ACLS: _cluster(_DESCRIBE, _coded(messages.DescribeAclsResponse, True)),
    ApiKey.CREATE_ACLS: _cluster(_ALTER, _refusedCreations),
    ApiKey.DELETE_ACLS: _cluster(_ALTER, _refusedDeletions),
    ApiKey.DESCRIBE_CONFIGS: _configs(
        _DESCRIBE_CONFIGS, messages.DescribeConfigsResponse.DescribeConfigsResult, "results"
    ),
    ApiKey.ALTER_CONFIGS: _configs(
        _ALTER_CONFIGS, messages.AlterConfigsResponse.AlterConfigsResourceResponse, "responses"
    ),
    ApiKey.DESCRIBE_LOG_DIRS: _cluster(_DESCRIBE, _coded(messages.DescribeLogDirsResponse)),
    ApiKey.SASL_AUTHENTICATE: _anyone,
    ApiKey.CREATE_PARTITIONS: _createPartitions,
    ApiKey.DELETE_GROUPS: _deleteGroups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(
        _ALTER_CONFIGS,
        messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
        "responses",
    ),
    ApiKey.ELECT_LEADERS: _cluster(_ALTER, _refusedElections),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(_ALTER, _refusedReassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(_DESCRIBE, _refusedReassignmentList),
    ApiKey.OFFSET_DELETE: _offsetDelete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(
        _DESCRIBE_CONFIGS, _coded(messages.DescribeClientQuotasResponse, True, entries=None)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: _cluster(_ALTER_CONFIGS, _refusedQuotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(
        _DESCRIBE, _coded(messages.DescribeUserScramCredentialsResponse, True)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _cluster(_ALTER, _refusedCredentials),
    ApiKey.DESCRIBE_CLUSTER: _describeCluster,
    ApiKey.DESCRIBE_PRODUCERS: _describeProducers,
    ApiKey.UNREGISTER_BROKER: _cluster(_ALTER, _coded(messages.UnregisterBrokerResponse, True)),
    ApiKey.DESCRIBE_TRANSACTIONS: _describeTransactions,
    ApiKey.LIST_TRANSACTIONS: _listTransactions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumerGroupHeartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumerGroupDescribe,
    ApiKey.LIST_CONFIG_RESOURCES: _cluster(
        _DESCRIBE_CONFIGS, _coded(messages.ListConfigResourcesResponse)
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describeTopicPartitions,
}
"""What stands before the handler of each request."""
