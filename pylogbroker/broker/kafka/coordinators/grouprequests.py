"""
The handlers of requests to the coordinator of consumer groups. A module of its own, since it alone
knows versions and topics.

The coordinator decides about groups; what depends on topics is decided here, as Kafka does: topic
ids become names, and unknown topics and partitions are left out of what the coordinator sees. Their
errors stand before its answers.

Each answer is a Deferred, since it may have to wait: for other members, or for an append.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators.groupservice import GroupService
from pylogbroker.broker.kafka.coordinators.transactionservice import TransactionService
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler, RepeatLimit
from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, TopicManager
from pylogbroker.cluster.metadataimage import ReachableBroker
from pylogbroker.coordinator.committedoffsets import commitFailed
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    DeletePartition,
    DeleteTopic,
    FetchedPartition,
    FetchedTopic,
    OffsetCommit,
    OffsetDelete,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
    OffsetFetchTopic,
    PartitionResult,
    TopicResults,
    TxnOffsetCommit,
)
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.replication.elections import NO_LEADER
from pylogbroker.types import TopicPartition

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""What a coordinator is looked for. There are no share groups."""
_TYPES = (GROUP, TRANSACTION, SHARE)

GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe and alter settings: everything that can be done to a group."""

_NO_OPERATIONS = -(2**31)
_BATCHED_FIND_VERSION = 4
_BATCHED_FETCH_VERSION = 8
_COMMIT_IDS_VERSION = 10
_SYNC_PROTOCOL_VERSION = 5
_FETCH_MEMBERS_VERSION = 9
_FETCH_IDS_VERSION = 10


_NOWHERE = {"nodeId": -1, "host": "", "port": -1}


class GroupRequests:
    """The handlers of the requests of group members, and of those about groups."""

    def __init__(
        self,
        groups: GroupService,
        transactions: TransactionService,
        topics: TopicManager,
        nodes: Callable[[ConnectionState], dict[int, ReachableBroker]],
        mayDescribe: Callable[[ConnectionState, str], bool] | None = None,
    ) -> None:
        """
        @param nodes: gives the brokers that clients of a connection's listener reach, by id.
        @param mayDescribe: whether a client may know of a topic, for patterns, which name none;
            L{None}: every client of every one.
        """
        self._mayDescribe = mayDescribe
        self._groups = groups
        self._transactions = transactions
        self._topics = topics
        self._nodes = nodes

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.FIND_COORDINATOR: self.findCoordinator,
            ApiKey.JOIN_GROUP: self.joinGroup,
            ApiKey.SYNC_GROUP: self.syncGroup,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leaveGroup,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.consumerGroupHeartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.consumerGroupDescribe,
            ApiKey.OFFSET_COMMIT: self.offsetCommit,
            ApiKey.OFFSET_FETCH: self.offsetFetch,
            ApiKey.OFFSET_DELETE: self.offsetDelete,
            ApiKey.DESCRIBE_GROUPS: self.describeGroups,
            ApiKey.LIST_GROUPS: self.listGroups,
            ApiKey.DELETE_GROUPS: self.deleteGroups,
        }

    # -- where the coordinator is

    def findCoordinator(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        return Deferred.fromCoroutine(self._findCoordinator(header, body, state))

    async def _findCoordinator(
        self, header: RequestHeader, body: Any, state: ConnectionState
    ) -> Any:
        response = messages.FindCoordinatorResponse
        if header.apiVersion < _BATCHED_FIND_VERSION:
            error, address = await self._find(body.keyType, body.key, state)
            text = error.message or error.name
            return response(errorCode=error, errorMessage=text, **address)
        coordinators = []
        for key in body.coordinatorKeys:
            error, address = await self._find(body.keyType, key, state)
            found = response.Coordinator(key=key, errorCode=error, **address)
            if body.keyType not in _TYPES:
                found.errorMessage = error.message
            coordinators.append(found)
        return response(coordinators=coordinators)

    async def _find(
        self, keyType: int, key: str, state: ConnectionState
    ) -> tuple[ErrorCode, dict[str, Any]]:
        leader = NO_LEADER
        if keyType == GROUP:
            leader = await self._groups.findCoordinator(key)
        elif keyType == TRANSACTION:
            leader = await self._transactions.findCoordinator(key)
        node = self._nodes(state).get(leader)
        if node is not None:
            return ErrorCode.NONE, {"nodeId": node.nodeId, "host": node.host, "port": node.port}
        isKnown = keyType in (GROUP, TRANSACTION)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if isKnown else ErrorCode.INVALID_REQUEST
        return error, _NOWHERE

    # -- membership

    def joinGroup(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        context = _context(header, state)
        return self._ask(
            messages.JoinGroupResponse,
            lambda reply: self._groups.coordinator.joinGroup(context, body, reply),
        )

    def syncGroup(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        context = _context(header, state)
        hasProtocol = header.apiVersion >= _SYNC_PROTOCOL_VERSION
        if hasProtocol and (body.protocolType is None or body.protocolName is None):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return messages.SyncGroupResponse(errorCode=code)
        return self._ask(
            messages.SyncGroupResponse,
            lambda reply: self._groups.coordinator.syncGroup(context, body, reply),
        )

    def heartbeat(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        answer = self._groups.coordinator.heartbeat(body)
        self._groups.schedule()
        return messages.HeartbeatResponse(**answer._asdict())

    def leaveGroup(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        context = _context(header, state)
        return self._ask(
            messages.LeaveGroupResponse,
            lambda reply: self._groups.coordinator.leaveGroup(context, body, reply),
        )

    def consumerGroupHeartbeat(
        self, header: RequestHeader, body: Any, state: ConnectionState
    ) -> Any:
        context = _context(header, state)
        if self._mayDescribe is not None:
            context = context._replace(sees=partial(self._mayDescribe, state))
        return self._ask(
            messages.ConsumerGroupHeartbeatResponse,
            lambda reply: self._groups.coordinator.consumerGroupHeartbeat(context, body, reply),
        )

    def _ask(
        self, response: Any, ask: Callable[[Callable[[Any], object]], object]
    ) -> Deferred[Any]:
        """
        @param response: the class of the response, whose fields the answer has.
        @param ask: called with what takes the answer.
        """
        return self._asked(ask).addCallback(lambda answer: response(**answer._asdict()))

    def _asked(self, ask: Callable[[Callable[[Any], object]], object]) -> Deferred[Any]:
        waiting: Deferred[Any] = Deferred()
        ask(waiting.callback)
        self._groups.schedule()
        return waiting

    # -- committed offsets

    def offsetCommit(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        refused: list[TopicResults] = []
        accepted: list[CommitTopic] = []
        hasIds = header.apiVersion >= _COMMIT_IDS_VERSION
        for topic in body.topics:
            name = self._nameOf(topic.topicId) if hasIds else topic.name
            if name is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
                results = [PartitionResult(each.partitionIndex, error) for each in topic.partitions]
                refused.append(TopicResults("", results, topic.topicId))
                continue
            topicId = self._idOf(name)
            known: list[CommitPartition] = []
            self._divide(name, topicId, topic.partitions, known, refused)
            if known:
                accepted.append(CommitTopic(name, known, topicId))
        response = messages.OffsetCommitResponse
        if not accepted:
            return response(topics=refused)
        request = OffsetCommit(
            body.groupId,
            accepted,
            body.generationIdOrMemberEpoch,
            body.memberId,
            body.groupInstanceId,
            body.retentionTimeMs,
        )
        context = _context(header, state)
        return self._asked(
            lambda reply: self._groups.coordinator.offsetCommit(context, request, reply)
        ).addCallback(lambda answer: response(topics=_joined(refused, answer.topics)))

    async def offsetsPartition(self, groupId: str) -> TopicPartition | None:
        """
        Where the offsets of a group are. Creates the topic if need be; L{None}: that failed.
        """
        if not await self._groups.awaitTopic():
            return None
        return TopicPartition(OFFSETS_TOPIC, self._groups.coordinator.partitionOf(groupId))

    def txnOffsetCommit(
        self,
        header: RequestHeader,
        body: Any,
        state: ConnectionState,
        admit: Callable[[TopicPartition], Awaitable[ErrorCode]],
    ) -> Deferred[Any]:
        """
        Commit offsets in a transaction.

        @param admit: tells whether the partition of the offsets is in the producer's transaction.
        """
        return Deferred.fromCoroutine(self._txnOffsetCommit(header, body, state, admit))

    async def _txnOffsetCommit(
        self,
        header: RequestHeader,
        body: Any,
        state: ConnectionState,
        admit: Callable[[TopicPartition], Awaitable[ErrorCode]],
    ) -> Any:
        refused: list[TopicResults] = []
        accepted: list[CommitTopic] = []
        for topic in body.topics:
            topicId = self._idOf(topic.name)
            known: list[CommitPartition] = []
            self._divide(topic.name, topicId, topic.partitions, known, refused)
            if known:
                accepted.append(CommitTopic(topic.name, known, topicId))
        response = messages.TxnOffsetCommitResponse
        if not accepted:
            return response(topics=refused)
        request = TxnOffsetCommit(
            body.groupId,
            accepted,
            body.producerId,
            body.producerEpoch,
            body.generationId,
            body.memberId,
            body.groupInstanceId,
        )
        error = ErrorCode.INVALID_GROUP_ID
        if body.groupId:
            place = await self.offsetsPartition(body.groupId)
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE if place is None else await admit(place)
        if error:
            answer = commitFailed(request, error)
        else:
            context = _context(header, state)
            answer = await self._asked(
                lambda reply: self._groups.coordinator.offsetCommit(context, request, reply)
            )
        return response(topics=_joined(refused, answer.topics))

    def _divide(
        self,
        name: str,
        topicId: bytes,
        partitions: Sequence[Any],
        known: list[Any],
        refused: list[TopicResults],
    ) -> None:
        """Sort out partitions that do not exist."""
        found = self._topics.image.topics.get(name)
        count = 0 if found is None else found.partitionCount
        unknown = []
        for each in partitions:
            if 0 <= each.partitionIndex < count:
                known.append(each)
            else:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                unknown.append(PartitionResult(each.partitionIndex, error))
        if unknown:
            refused.append(TopicResults(name, unknown, topicId))

    def _nameOf(self, topicId: bytes) -> str | None:
        found = self._topics.topicById(topicId)
        return None if found is None else found.name

    def _idOf(self, name: str) -> bytes:
        found = self._topics.image.topics.get(name)
        return ZERO_UUID if found is None else found.topicId.bytes

    def offsetFetch(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        return Deferred.fromCoroutine(self._offsetFetch(header, body, state))

    async def _offsetFetch(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        response = messages.OffsetFetchResponse
        context = _context(header, state)
        if header.apiVersion < _BATCHED_FETCH_VERSION:
            found = await self._fetchGroup(context, body, body.requireStable)
            return response(topics=found.topics, errorCode=found.errorCode)
        limit = RepeatLimit()
        asked = [
            self._fetchGroup(context, each, body.requireStable)
            for each in body.groups
            if limit.admits(each.groupId)
        ]
        return response(groups=await gatherAll(asked))

    async def _fetchGroup(
        self, context: ClientContext, group: Any, requireStable: bool
    ) -> OffsetFetchGroupAnswer:
        hasIds = context.apiVersion >= _FETCH_IDS_VERSION
        topics: list[OffsetFetchTopic] | None = None
        unknown: list[FetchedTopic] = []
        if group.topics is not None:
            topics = []
            limit = RepeatLimit()
            for topic in group.topics:
                name = self._nameOf(topic.topicId) if hasIds else topic.name
                if name is None:
                    partitions = [
                        FetchedPartition(index, errorCode=ErrorCode.UNKNOWN_TOPIC_ID)
                        for index in topic.partitionIndexes
                    ]
                    unknown.append(FetchedTopic("", partitions, topic.topicId))
                else:
                    known = [
                        index for index in topic.partitionIndexes if limit.admits((name, index))
                    ]
                    topics.append(OffsetFetchTopic(name, known, self._idOf(name)))
        request = OffsetFetchGroup(group.groupId, topics)
        if context.apiVersion >= _FETCH_MEMBERS_VERSION:
            request = request._replace(memberId=group.memberId, memberEpoch=group.memberEpoch)
        answer: OffsetFetchGroupAnswer = await self._asked(
            lambda reply: self._groups.coordinator.offsetFetch(
                context, request, requireStable, reply
            )
        )
        if answer.errorCode:
            return answer
        fetched = list(answer.topics)
        if topics is None and hasIds:
            fetched = [each._replace(topicId=self._idOf(each.name)) for each in fetched]
            fetched = [each for each in fetched if each.topicId != ZERO_UUID]
        return answer._replace(topics=fetched + unknown)

    def offsetDelete(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        refused: list[TopicResults] = []
        accepted: list[DeleteTopic] = []
        for topic in body.topics:
            known: list[DeletePartition] = []
            self._divide(topic.name, ZERO_UUID, topic.partitions, known, refused)
            if known:
                accepted.append(DeleteTopic(topic.name, known))
        response = messages.OffsetDeleteResponse
        request = OffsetDelete(body.groupId, accepted)

        def answered(answer: Any) -> Any:
            if answer.errorCode:
                return response(errorCode=answer.errorCode)
            return response(topics=_joined(refused, answer.topics))

        return self._asked(
            lambda reply: self._groups.coordinator.offsetDelete(request, reply)
        ).addCallback(answered)

    # -- administration

    def describeGroups(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        limit = RepeatLimit()
        groups = self._groups.coordinator.describeGroups(
            _context(header, state), [each for each in body.groups if limit.admits(each)]
        )
        operations = GROUP_OPERATIONS if body.includeAuthorizedOperations else _NO_OPERATIONS
        return messages.DescribeGroupsResponse(
            groups=[
                each if each.errorCode else each._replace(authorizedOperations=operations)
                for each in groups
            ]
        )

    def consumerGroupDescribe(
        self, header: RequestHeader, body: Any, state: ConnectionState
    ) -> Any:
        limit = RepeatLimit()
        groups = self._groups.coordinator.describeConsumerGroups(
            [each for each in body.groupIds if limit.admits(each)]
        )
        operations = GROUP_OPERATIONS if body.includeAuthorizedOperations else _NO_OPERATIONS
        return messages.ConsumerGroupDescribeResponse(
            groups=[
                each if each.errorCode else each._replace(authorizedOperations=operations)
                for each in groups
            ]
        )

    def listGroups(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        answer = self._groups.coordinator.listGroups(body.statesFilter, body.typesFilter)
        return messages.ListGroupsResponse(**answer._asdict())

    def deleteGroups(self, header: RequestHeader, body: Any, state: ConnectionState) -> Any:
        return self._asked(
            lambda reply: self._groups.coordinator.deleteGroups(body.groupsNames, reply)
        ).addCallback(lambda results: messages.DeleteGroupsResponse(results=results))


def _context(header: RequestHeader, state: ConnectionState) -> ClientContext:
    return ClientContext(header.apiVersion, header.clientId or "", javaHost(state.clientHost))


def javaHost(host: str) -> str:
    """
    A client's address as Java prints it, which is how Kafka shows it.

    @param host: a slash and the address.
    """
    if ":" in host:
        address = ip_address(host[1:].partition("%")[0])
        assert isinstance(address, IPv6Address)
        parts = address.exploded.split(":")
        return f"/{address.ipv4_mapped or ':'.join(f'{int(part, 16):x}' for part in parts)}"
    return host


def _joined(refused: list[TopicResults], results: Sequence[TopicResults]) -> list[TopicResults]:
    """Results of the coordinator behind errors; those of a topic together."""
    joined = {(each.name, each.topicId): each for each in refused}
    for each in results:
        before = joined.get((each.name, each.topicId))
        if before is not None:
            each = each._replace(partitions=[*before.partitions, *each.partitions])
        joined[each.name, each.topicId] = each
    return list(joined.values())
