"""
Leaders and replicas for administrators: elections, reassignments, and brokers that will not come
back. A module of its own, since few clients ask for these, and all ask where partitions are.

In a cluster each answer is a decision of L{pylogbroker.replication.controller} on the latest
metadata, which any broker may make; the client is answered when it is durable. A request for many
partitions is decided in changes of at most L{CHANGE_COUNT_MAX} partitions. Each of these is whole,
so that a failure leaves the others as they are.

A broker that keeps its metadata by itself leads what is in service and has every replica: it
answers as Kafka does on one broker, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.kafka.topics import TopicManager
from pylogbroker.cluster.metadataimage import MetadataImage, PartitionImage, Record, TopicImage
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.replication.controller import (
    Answer,
    electLeader,
    hostedPartitions,
    reassign,
    unregisterBroker,
)
from pylogbroker.replication.placement import checkAssignment

T = TypeVar("T")

CHANGE_COUNT_MAX = 1_000
"""Partitions in a change of the metadata; about 250 bytes each."""

_UNCLEAN = 1
_LEADERLESS = {
    0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error of a partition that gets no leader, by the kind of election: preferred, unclean."""

_WITHOUT_TEXT = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


def _textOf(error: KafkaError) -> str | None:
    return None if error.code in _WITHOUT_TEXT else error.text


def _recordsOf(answer: Answer, text: str | None = None) -> list[Record]:
    """
    The records of a decision.

    @param text: says more than its error code.
    @raise KafkaError: it is a refusal.
    """
    code, records = answer
    if code is not ErrorCode.NONE:
        raise KafkaError(code, text)
    return records


class PartitionRequests:
    """The handlers that change leaders, replicas and registrations."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.ELECT_LEADERS: self.electLeaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alterPartitionReassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.listPartitionReassignments,
            ApiKey.UNREGISTER_BROKER: self.unregisterBroker,
        }

    async def _decideEach(
        self, wanted: Sequence[T], decide: Callable[[MetadataImage, T], list[Record]]
    ) -> list[KafkaError | None]:
        """
        Decide on partitions, one after another.

        @param decide: gives the records for one of C{wanted}; raises L{PylogbrokerError} if it is
            refused. Its image has what was decided before.
        @return: for each of C{wanted}, why it was refused.
        """
        outcomes: list[KafkaError | None] = []

        def decideSome(
            image: MetadataImage, some: Sequence[T]
        ) -> tuple[list[Record], list[KafkaError | None]]:
            draft, records = image.copy(), list[Record]()
            found: list[KafkaError | None] = []
            for each in some:
                try:
                    more = decide(draft, each)
                except PylogbrokerError as problem:
                    found.append(errorOf(problem))
                    continue
                for record in more:
                    draft.apply(record)
                records += more
                found.append(None)
            return records, found

        for first in range(0, len(wanted), CHANGE_COUNT_MAX):
            some = wanted[first : first + CHANGE_COUNT_MAX]
            try:
                outcomes += await self._topics.metadata.change(
                    lambda image, some=some: decideSome(image, some)  # type: ignore[misc]
                )
            except PylogbrokerError as problem:
                outcomes += [errorOf(problem)] * len(some)
        return outcomes

    # -- ElectLeaders

    @asDeferred
    async def electLeaders(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """
        Handle ElectLeaders; as L{Handler}. Where all partitions are asked for, those that need no
        election are left out.
        """
        cls, kind = messages.ElectLeadersResponse, request.electionType
        wanted: list[tuple[str, Sequence[int]]] = []
        refusal = None
        if kind not in _LEADERLESS:
            refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}")
        elif request.timeoutMs <= 0:
            refusal = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        isAll = request.topicPartitions is None
        if not isAll:
            wanted = [(each.topic, each.partitions) for each in request.topicPartitions]
        elif refusal is None:
            topics = self._topics.image.topics.values()
            wanted = [(topic.name, range(topic.partitionCount)) for topic in topics]
        response = cls()
        if refusal is not None and (isAll or wanted):
            response.errorCode = refusal.code
        places = [(name, index) for name, indexes in wanted for index in indexes]
        outcomes: list[KafkaError | None] = [refusal] * len(places)
        if refusal is None:
            outcomes = await self._decideEach(
                places, lambda image, place: self._elect(image, *place, kind)
            )
        left = iter(outcomes)
        for name, indexes in wanted:
            result = cls.ReplicaElectionResult(topic=name)
            for index in indexes:
                made, error = cls.PartitionResult(partitionId=index, errorMessage=None), next(left)
                if error is not None:
                    if isAll and error.code == ErrorCode.ELECTION_NOT_NEEDED:
                        continue
                    made.errorCode, made.errorMessage = error.code, _textOf(error)
                result.partitionResult.append(made)
            response.replicaElectionResults.append(result)
        return response

    def _elect(self, image: MetadataImage, name: str, index: int, kind: int) -> list[Record]:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = image.topics.get(name)
        if topic is None:
            raise KafkaError(unknown, f"No such topic as {name}")
        if not 0 <= index < topic.partitionCount:
            raise KafkaError(unknown, f"No such partition as {name}-{index}")
        if topic.partitions:
            return _recordsOf(electLeader(image, topic.topicId, index, kind == _UNCLEAN))
        found = self._topics.find(name, index)
        isServed = found is not None and not found.log.isOffline
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED if isServed else _LEADERLESS[kind])

    # -- AlterPartitionReassignments

    @asDeferred
    async def alterPartitionReassignments(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """
        Handle AlterPartitionReassignments; as L{Handler}. The answer says that a reassignment has
        begun, or that nothing was to be done.
        """
        cls = messages.AlterPartitionReassignmentsResponse
        mayResize = request.allowReplicationFactorChange
        response = cls(allowReplicationFactorChange=mayResize)
        if not request.topics:
            return response
        response.errorMessage = None
        places = [(topic.name, part) for topic in request.topics for part in topic.partitions]
        if request.timeoutMs <= 0:
            late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            response.errorCode = late.code
            outcomes: list[KafkaError | None] = [late] * len(places)
        else:
            outcomes = await self._decideEach(
                places, lambda image, place: self._reassign(image, *place, mayResize)
            )
        left = iter(outcomes)
        for topic in request.topics:
            made = cls.ReassignableTopicResponse(name=topic.name)
            for each in topic.partitions:
                result = cls.ReassignablePartitionResponse(
                    partitionIndex=each.partitionIndex, errorMessage=None
                )
                error = next(left)
                if error is not None:
                    result.errorCode, result.errorMessage = error.code, _textOf(error)
                made.partitions.append(result)
            response.responses.append(made)
        return response

    def _reassign(
        self, image: MetadataImage, name: str, wanted: Any, mayResize: bool
    ) -> list[Record]:
        unknown, index = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted.partitionIndex
        topic, target = image.topics.get(name), wanted.replicas
        if topic is None:
            raise KafkaError(unknown, f"Unable to find a topic named {name}.")
        if not 0 <= index < topic.partitionCount:
            raise KafkaError(unknown, f"Unable to find partition {name}:{index}.")
        if target is not None:
            checkAssignment(image.brokers or (self._topics.brokerId,), target)
            have = self._settledReplicas(topic, index)
            if not mayResize and len(have) != len(target):
                raise KafkaError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"The replication factor is changed from {len(have)} to {len(target)}",
                )
        if not topic.partitions:
            if target is None:
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            return []
        answer = reassign(image, topic.topicId, index, target)
        text = None
        if answer[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT:
            text = (
                f"None of the replicas that {name}-{index} would keep has all of its records, so"
                " that this would require an unclean leader election."
            )
        return _recordsOf(answer, text)

    def _settledReplicas(self, topic: TopicImage, index: int) -> tuple[int, ...]:
        """The replicas of a partition when its reassignment, if there is one, is complete."""
        if not topic.partitions:
            return (self._topics.brokerId,)
        found = topic.partitions[index]
        return tuple(each for each in found.replicas if each not in found.removing)

    # -- ListPartitionReassignments

    def listPartitionReassignments(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """Handle ListPartitionReassignments; as L{Handler}. Partitions that rest are left out."""
        cls = messages.ListPartitionReassignmentsResponse
        response = cls(errorMessage=None)
        topics = self._topics.image.topics
        wanted: list[tuple[str, Sequence[int] | None]] = [(name, None) for name in topics]
        if request.topics is not None:
            wanted = [(each.name, each.partitionIndexes) for each in request.topics]
        for name, indexes in wanted:
            moving = _moving(topics.get(name), indexes)
            if moving:
                made = cls.OngoingTopicReassignment(name=name)
                made.partitions = [
                    cls.OngoingPartitionReassignment(
                        partitionIndex=index,
                        replicas=list(part.replicas),
                        addingReplicas=list(part.adding),
                        removingReplicas=list(part.removing),
                    )
                    for index, part in moving
                ]
                response.topics.append(made)
        return response

    # -- UnregisterBroker

    def unregisterBroker(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """
        Handle UnregisterBroker; as L{Handler}. A broker that is running, or that is to have
        replicas, is not unregistered. (Kafka does that, and leaves partitions without replicas.)
        """
        brokerId = request.brokerId

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            return _recordsOf(
                unregisterBroker(image, brokerId), self._whyKept(image, brokerId)
            ), None

        def failed(failure: Any) -> Any:
            failure.trap(PylogbrokerError)
            error = errorOf(failure.value)
            return cls(errorCode=error.code, errorMessage=error.text)

        cls = messages.UnregisterBrokerResponse
        changing = self._topics.metadata.change(decide)
        return changing.addCallbacks(lambda _none: cls(errorMessage=None), failed)

    def _whyKept(self, image: MetadataImage, brokerId: int) -> str:
        """Why a broker cannot be unregistered."""
        known = image.brokers.get(brokerId)
        if known is None and brokerId == self._topics.brokerId:
            return f"Broker {brokerId} keeps its metadata by itself: it is in no cluster"
        if known is None:
            return f"Broker ID {brokerId} is not currently registered"
        if not known.isFenced:
            return f"Broker {brokerId} is running: stop it first"
        count = len(hostedPartitions(image, brokerId))
        return (
            f"Broker {brokerId} has replicas of {count} partition(s): reassign them to other"
            " brokers first"
        )


def _moving(
    topic: TopicImage | None, indexes: Sequence[int] | None
) -> list[tuple[int, PartitionImage]]:
    """
    The partitions of a topic that are being reassigned.

    @param indexes: of those that are asked for; L{None}: all.
    """
    partitions = () if topic is None else topic.partitions
    return [
        (index, partitions[index])
        for index in (range(len(partitions)) if indexes is None else dict.fromkeys(indexes))
        if 0 <= index < len(partitions) and (partitions[index].adding or partitions[index].removing)
    ]
