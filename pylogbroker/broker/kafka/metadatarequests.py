"""
The cluster and its topics for clients: which there are, and who serves them; a module of its own,
since every client asks this, and few change topics.

A broker that keeps its metadata by itself leads every partition and is the controller. In a cluster
the image of the metadata says who leads, and each client is told of the brokers that it reaches by
the listener that it has used itself. A partition without a leader that can be reached, or whose log
is not in service here, has an error that clients try again on. A Metadata request that creates its
topics is answered when this broker's partitions of them are there, so that the client can produce
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.kafka.topicrequests import TopicDefaults
from pylogbroker.broker.kafka.topics import (
    INTERNAL_TOPICS,
    OtherProtocolError,
    TopicManager,
    checkName,
)
from pylogbroker.cluster.metadataimage import ReachableBroker, TopicImage
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred, gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.responses import MetadataResponsePartition
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.replication.elections import NO_LEADER

TOPIC_OPERATIONS = 3576
"""Read, write, create, delete, alter, describe, describe and alter configurations, as bits."""
CLUSTER_OPERATIONS = 8096
"""Create, alter, describe, cluster action, both configuration operations, idempotent write."""

DESCRIBED_COUNT_MAX = 2_000
"""Partitions in a DescribeTopicPartitions response (C{max.request.partition.size.limit})."""

_LISTENER_VERSION = 6
"""The first version of Metadata whose clients know LISTENER_NOT_FOUND."""

_BROKER, _CONTROLLER = 1, 2
_ENDPOINTS = {_BROKER: "BROKER", _CONTROLLER: "CONTROLLER"}


def notFound(name: str | None) -> ErrorCode:
    """The code for a topic that is not there."""
    try:
        checkName(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _Asked(NamedTuple):
    """
    A request, and whom its client can reach.

    @ivar nodes: by id.
    """

    version: int
    request: Any
    nodes: dict[int, ReachableBroker]
    isMetadata: bool = True


class MetadataRequests:
    """The handlers that describe the cluster and its topics."""

    def __init__(
        self,
        topics: TopicManager,
        nodes: Callable[[ConnectionState], dict[int, ReachableBroker]],
        defaults: TopicDefaults,
    ) -> None:
        """
        @param nodes: gives the brokers that clients of a connection's listener reach, by id.
        """
        self._topics = topics
        self._brokerId = topics.brokerId
        self._nodes = nodes
        self._defaults = defaults

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_CLUSTER: self.describeCluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describeTopicPartitions,
        }

    # -- Metadata

    def metadata(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """
        Handle Metadata; as L{Handler}. Missing topics are created first, where client and broker
        allow it.
        """
        version, wanted = header.apiVersion, request.topics
        image = self._topics.image
        asked = _Asked(version, request, self._nodes(state))
        if wanted is None or (version == 0 and not wanted):
            found = [self._topic(topic, asked) for topic in image.topics.values()]
            return self._response(asked, found)
        if any(
            (each.name is None and each.topicId == ZERO_UUID)
            or (version < 12 and (each.name is None or each.topicId != ZERO_UUID))
            for each in wanted
        ):
            return self._invalid(version, request)
        ids = dict.fromkeys(each.topicId for each in wanted if each.topicId != ZERO_UUID)
        if ids:
            found = [self._byId(topicId, asked) for topicId in ids]
            return self._response(asked, found)
        names = list(dict.fromkeys(each.name for each in wanted))
        missing = [name for name in names if name not in image.topics]
        if missing and request.allowAutoTopicCreation and self._defaults.isAutoCreating:
            return self._create(missing).addCallback(
                lambda refused: self._named(
                    asked._replace(nodes=self._nodes(state)), names, refused
                )
            )
        return self._named(asked, names, {})

    @asDeferred
    async def _create(self, names: list[str]) -> dict[str, ErrorCode]:
        """The names that are refused."""
        refused: dict[str, ErrorCode] = {}

        async def create(name: str) -> None:
            defaults = self._defaults
            count, configs = defaults.internal.get(name, (defaults.partitionCount, {}))
            try:
                await self._topics.create(name, count, configs)
            except PylogbrokerError as error:
                code = errorOf(error).code
                if code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    # A topic of 2011 is none that such a client can use, now or later. One that is
                    # being deleted can be created soon: the client asks again.
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if isinstance(error, OtherProtocolError):
                        code = ErrorCode.INVALID_TOPIC_EXCEPTION
                refused[name] = code

        await gatherInBatches(create, names)
        return refused

    def _named(self, asked: _Asked, names: list[str], refused: dict[str, ErrorCode]) -> Any:
        found = []
        for name in names:
            topic = self._topics.image.topics.get(name)
            if topic is not None:
                found.append(self._topic(topic, asked))
            else:
                found.append(self._unknown(refused.get(name) or notFound(name), name))
        return self._response(asked, found)

    def _byId(self, topicId: bytes, asked: _Asked) -> Any:
        topic = self._topics.topicById(topicId)
        if topic is None:
            return self._unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, topicId)
        return self._topic(topic, asked)

    @staticmethod
    def _unknown(code: ErrorCode, name: str | None, topicId: bytes = ZERO_UUID) -> Any:
        return messages.MetadataResponse.MetadataResponseTopic(
            errorCode=code, name=name, topicId=topicId, isInternal=name in INTERNAL_TOPICS
        )

    def _topic(self, topic: TopicImage, asked: _Asked) -> Any:
        made = messages.MetadataResponse.MetadataResponseTopic(
            name=topic.name,
            topicId=topic.topicId.bytes,
            isInternal=topic.name in INTERNAL_TOPICS,
            partitions=[
                self._partition(topic, index, asked) for index in range(topic.partitionCount)
            ],
        )
        if asked.request.includeTopicAuthorizedOperations:
            made.topicAuthorizedOperations = TOPIC_OPERATIONS
        return made

    def _partition(self, topic: TopicImage, index: int, asked: _Asked) -> MetadataResponsePartition:
        if topic.partitions:
            return self._placed(topic, index, asked)
        mine = (self._brokerId,)
        found = self._topics.find(topic.name, index)
        if found is None or found.log.isOffline:
            code = ErrorCode.LEADER_NOT_AVAILABLE
            return MetadataResponsePartition(code, index, -1, 0, mine, mine, mine)
        epoch = found.log.leaderEpoch
        return MetadataResponsePartition(0, index, self._brokerId, epoch, mine, mine)

    def _placed(self, topic: TopicImage, index: int, asked: _Asked) -> MetadataResponsePartition:
        """A partition of a cluster."""
        part, nodes = topic.partitions[index], asked.nodes
        replicas, inSync, leader = part.replicas, part.inSync, part.leader
        offline = tuple(each for each in replicas if each not in nodes)
        code = ErrorCode.NONE
        if leader not in nodes:
            isThere = leader in self._topics.image.brokers
            hasCode = isThere and asked.version >= _LISTENER_VERSION
            code = ErrorCode.LISTENER_NOT_FOUND if hasCode else ErrorCode.LEADER_NOT_AVAILABLE
        elif leader == self._brokerId:
            found = self._topics.find(topic.name, index)
            if found is None or found.log.isOffline:
                code = ErrorCode.LEADER_NOT_AVAILABLE
                offline = (*offline, leader)
        isOldest = asked.isMetadata and asked.version == 0
        if isOldest:  # its clients know no other replicas than those of the brokers
            replicas = tuple(each for each in replicas if each in nodes)
            if not code and len(replicas) < len(part.replicas):
                code = ErrorCode.REPLICA_NOT_AVAILABLE
            inSync = tuple(each for each in inSync if each in nodes)
        if code and code is not ErrorCode.REPLICA_NOT_AVAILABLE:
            leader = NO_LEADER
        return MetadataResponsePartition(
            code, index, leader, part.leaderEpoch, replicas, inSync, offline
        )

    @property
    def _controllerId(self) -> int:
        """Every broker changes the metadata, so that clients may take each for the controller."""
        return self._brokerId

    def _response(self, asked: _Asked, topics: list[Any]) -> Any:
        cls, request = messages.MetadataResponse, asked.request
        made = cls(
            brokers=[
                cls.MetadataResponseBroker(nodeId=nodeId, host=host, port=port, rack=rack)
                for nodeId, host, port, rack in asked.nodes.values()
            ],
            clusterId=self._topics.image.clusterId,
            controllerId=self._controllerId,
            topics=topics,
        )
        if request.includeClusterAuthorizedOperations and 8 <= asked.version <= 10:
            made.clusterAuthorizedOperations = CLUSTER_OPERATIONS
        return made

    def _invalid(self, version: int, request: Any) -> Any:
        # Since version 12 only the zero id is refused, and Kafka has no better code for it.
        code = ErrorCode.INVALID_REQUEST if version < 12 else ErrorCode.UNKNOWN_SERVER_ERROR
        topics = [self._unknown(code, each.name or "", each.topicId) for each in request.topics]
        return messages.MetadataResponse(errorCode=code, topics=topics)

    # -- DescribeCluster

    def describeCluster(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle DescribeCluster; as L{Handler}."""
        cls = messages.DescribeClusterResponse
        wanted = request.endpointType
        if wanted not in _ENDPOINTS:
            code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {wanted}"
            return cls(errorCode=code, errorMessage=text)
        if wanted != _BROKER:
            text = (
                f"The request was sent to an endpoint of type {_ENDPOINTS[_BROKER]}, but we wanted"
                f" an endpoint of type {_ENDPOINTS[wanted]}"
            )
            return cls(errorCode=ErrorCode.MISMATCHED_ENDPOINT_TYPE, errorMessage=text)
        found = list(self._nodes(state).values())
        image, listener = self._topics.image, state.listener.name
        if request.includeFencedBrokers:
            fenced = (each for each in image.brokers.values() if each.isFenced)
            found += filter(None, (each.node(listener) for each in fenced))
        made = cls(
            clusterId=image.clusterId,
            controllerId=self._controllerId,
            brokers=[
                cls.DescribeClusterBroker(
                    brokerId=nodeId,
                    host=host,
                    port=port,
                    rack=rack,
                    isFenced=nodeId in image.brokers and image.brokers[nodeId].isFenced,
                )
                for nodeId, host, port, rack in found
            ],
        )
        if request.includeClusterAuthorizedOperations:
            made.clusterAuthorizedOperations = CLUSTER_OPERATIONS
        return made

    # -- DescribeTopicPartitions

    def describeTopicPartitions(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """
        Handle DescribeTopicPartitions; as L{Handler}. Topics come in the order of their names; a
        cursor says where the next request goes on.
        """
        cls = messages.DescribeTopicPartitionsResponse
        image, cursor = self._topics.image, request.cursor
        start = "" if cursor is None else cursor.topicName
        isAll = not request.topics
        asked = image.topics if isAll else {each.name for each in request.topics}
        names = sorted(name for name in asked if name >= start)
        if cursor is not None and ((not isAll and start not in asked) or cursor.partitionIndex < 0):
            code = ErrorCode.INVALID_REQUEST
            made = cls.DescribeTopicPartitionsResponseTopic
            return cls(topics=[made(errorCode=code, name=each.name) for each in request.topics])
        seen = _Asked(header.apiVersion, request, self._nodes(state), isMetadata=False)
        left = max(min(request.responsePartitionLimit, DESCRIBED_COUNT_MAX), 1)
        response = cls()
        for name in names:
            first = cursor.partitionIndex if cursor is not None and name == start else 0
            if left == 0:
                response.nextCursor = cls.Cursor(topicName=name, partitionIndex=0)
                break
            topic = image.topics.get(name)
            if topic is None:
                response.topics.append(
                    cls.DescribeTopicPartitionsResponseTopic(
                        errorCode=notFound(name),
                        name=name,
                        isInternal=name in INTERNAL_TOPICS,
                        topicAuthorizedOperations=TOPIC_OPERATIONS,
                    )
                )
                continue
            end = min(topic.partitionCount, first + left)
            response.topics.append(self._described(topic, range(first, end), seen))
            if end < topic.partitionCount:
                response.nextCursor = cls.Cursor(topicName=name, partitionIndex=end)
                break
            left -= max(end - first, 0)
        return response

    def _described(self, topic: TopicImage, indexes: range, asked: _Asked) -> Any:
        cls = messages.DescribeTopicPartitionsResponse
        partitions = []
        for index in indexes:
            part = self._partition(topic, index, asked)
            image = topic.partitions[index] if topic.partitions else None
            partitions.append(
                cls.DescribeTopicPartitionsResponsePartition(
                    errorCode=part.errorCode if image is None else 0,  # the leader -1 says it
                    partitionIndex=index,
                    leaderId=part.leaderId,
                    leaderEpoch=part.leaderEpoch,
                    replicaNodes=list(part.replicaNodes),
                    isrNodes=list(part.isrNodes),
                    # Clients of Spark need lists.
                    eligibleLeaderReplicas=[] if image is None else list(image.eligibleLeaders),
                    lastKnownElr=[]
                    if image is None or image.lastKnownLeader == NO_LEADER
                    else [image.lastKnownLeader],
                    offlineReplicas=list(part.offlineReplicas),
                )
            )
        return cls.DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topicId=topic.topicId.bytes,
            isInternal=topic.name in INTERNAL_TOPICS,
            partitions=partitions,
            topicAuthorizedOperations=TOPIC_OPERATIONS,
        )
