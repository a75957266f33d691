"""
Creating, growing and deleting topics for clients; a module of its own, since administrators alone
send these requests.

A change is answered when it is durable and its partitions are there, so that a client can produce
at once. Texts of errors are Kafka's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Coroutine, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.configrequests import configSource
from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.kafka.security.clientquotas import ClientQuotas
from pylogbroker.broker.kafka.topics import TopicManager
from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    Record,
    RemoveTopicRecord,
    TopicImage,
    TopicRecord,
)
from pylogbroker.config.topicconfigs import EffectiveConfigs
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.schemas import ZERO_UUID

METADATA_TOPIC = "__cluster_metadata"
"""Where Kafka's controllers keep the metadata; not here, but clients must not take the name."""

_WITHOUT_TEXT = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
CREATED_COUNT_MAX = 10_000
"""Partitions that one request may create, as in Kafka."""


_DELETION_DISABLED_VERSION = 3
"""The first whose clients know the error."""


class TopicDefaults(NamedTuple):
    """
    What holds where a client leaves a new topic open.

    @ivar isAutoCreating: whether Metadata requests create topics (C{auto.create.topics.enable}).
    @ivar partitionCount: C{num.partitions}.
    @ivar internal: partition count and settings of internal topics.
    @ivar isDeleting: whether topics may be deleted (C{delete.topic.enable}).
    """

    isAutoCreating: bool = True
    partitionCount: int = 1
    internal: Mapping[str, tuple[int, Mapping[str, str]]] = {}
    isDeleting: bool = True


class TopicRequests:
    """The handlers that create, grow and delete topics."""

    def __init__(
        self,
        topics: TopicManager,
        defaults: TopicDefaults,
        quotas: ClientQuotas | None = None,
    ) -> None:
        """@param quotas: L{None}: clients may change topics as often as they like."""
        self._quotas = quotas
        self._topics = topics
        self._defaults = defaults

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.createTopics,
            ApiKey.DELETE_TOPICS: self.deleteTopics,
            ApiKey.CREATE_PARTITIONS: self.createPartitions,
        }

    # -- CreateTopics

    def createTopics(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle CreateTopics; as L{Handler}. Topics are created independently of each other."""
        return self._limited(header, state, lambda take: self._createTopics(request, take))

    def _limited(
        self,
        header: RequestHeader,
        state: ConnectionState,
        handle: Callable[[Callable[[int], None]], Coroutine[Any, Any, Any]],
    ) -> Deferred[Any]:
        """
        Handle a request whose changes are limited by a quota.

        @param handle: called with what takes a number of partitions from the quota, and raises
            L{KafkaError} if it is used up.
        """
        if self._quotas is None:
            return Deferred.fromCoroutine(handle(lambda count: None))
        return self._quotas.handleMutation(header, state, handle)

    async def _createTopics(self, request: Any, take: Callable[[int], None]) -> Any:
        cls = messages.CreateTopicsResponse
        counts = Counter(each.name for each in request.topics)
        wanted = [each for each in request.topics if counts[each.name] == 1]
        together = counts.keys() - self._topics.image.topics.keys()
        refusal = None
        if sum(max(self._countOf(each), 0) for each in wanted) > CREATED_COUNT_MAX:
            text = "Excessively large number of partitions per request."
            refusal = KafkaError(ErrorCode.POLICY_VIOLATION, text)
        elif request.timeoutMs <= 0:
            refusal = KafkaError(ErrorCode.REQUEST_TIMED_OUT)

        async def create(topic: Any) -> Any:
            try:
                if refusal is not None:
                    raise refusal
                await self._topics.checkOtherBrokers(topic.name)
                return await self._topics.change(
                    lambda image: self._decideTopic(
                        image, topic, together, request.validateOnly, take
                    )
                )
            except PylogbrokerError as error:
                found = errorOf(error)
                return cls.CreatableTopicResult(
                    name=topic.name,
                    errorCode=found.code,
                    errorMessage=None if found.code in _WITHOUT_TEXT else found.text,
                )

        results = await gatherInBatches(create, wanted)
        results += [
            cls.CreatableTopicResult(
                name=name,
                errorCode=ErrorCode.INVALID_REQUEST,
                errorMessage="Duplicate topic name.",
            )
            for name, count in counts.items()
            if count > 1
        ]
        return cls(topics=results)

    def _countOf(self, topic: Any) -> int:
        """The partitions that a topic in a request would have."""
        if topic.assignments:
            return len(topic.assignments)
        return self._defaults.partitionCount if topic.numPartitions == -1 else topic.numPartitions

    def _decideTopic(
        self,
        image: MetadataImage,
        topic: Any,
        together: Container[str],
        validateOnly: bool,
        take: Callable[[int], None],
    ) -> tuple[list[Record], Any]:
        configs = {each.name: each.value for each in topic.configs}
        if topic.name == METADATA_TOPIC:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Creation of internal topic {METADATA_TOPIC} is prohibited.",
            )
        checked = self._topics.checkNewTopic(image, topic.name, configs)
        self._topics.checkSimilarNames(image, topic.name, together)
        if topic.assignments:
            self._checkAssignments(topic)
        elif topic.replicationFactor < -1 or topic.replicationFactor == 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        count = self._countOf(topic)
        assignment = [
            each.brokerIds
            for each in sorted(topic.assignments, key=lambda each: each.partitionIndex)
        ]
        factor = topic.replicationFactor
        if factor == -1:
            factor = self._topics.replicationFactor(image, topic.name)
        records = self._topics.newTopic(image, topic.name, count, checked, factor, assignment)
        assert isinstance(records[0], TopicRecord)
        if assignment:
            factor = len(assignment[0])
        result = self._created(topic.name, UUID(records[0].topicId), count, factor, checked)
        if validateOnly:
            return [], result
        take(count)
        return records, result

    def _checkAssignments(self, topic: Any) -> None:
        for value, name in (
            (topic.replicationFactor, "replication factor"),
            (topic.numPartitions, "numPartitions"),
        ):
            if value != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {name} was not set to -1.",
                )
        seen: set[int] = set()
        for each in topic.assignments:
            if each.partitionIndex in seen:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "Found multiple manual partition assignments for partition"
                    f" {each.partitionIndex}",
                )
            seen.add(each.partitionIndex)
        if seen != set(range(len(seen))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )

    def _created(
        self, name: str, topicId: UUID, count: int, factor: int, configs: dict[str, str]
    ) -> Any:
        cls = messages.CreateTopicsResponse
        effective = EffectiveConfigs(configs, self._topics.serverConfigs)
        return cls.CreatableTopicResult(
            name=name,
            topicId=topicId.bytes,
            errorMessage=None,
            numPartitions=count,
            replicationFactor=factor,
            configs=[
                cls.CreatableTopicConfigs(
                    name=key, value=value, configSource=configSource(self._topics, configs, key)[0]
                )
                for key, value in effective.items()
            ],
        )

    # -- DeleteTopics

    def deleteTopics(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle DeleteTopics; as L{Handler}."""
        return self._limited(
            header, state, lambda take: self._deleteTopics(request, header.apiVersion, take)
        )

    async def _deleteTopics(self, request: Any, version: int, take: Callable[[int], None]) -> Any:
        cls = messages.DeleteTopicsResponse
        wanted = [(name, ZERO_UUID) for name in request.topicNames]
        wanted += [(each.name, each.topicId) for each in request.topics]
        invalid = ErrorCode.INVALID_REQUEST
        if not self._defaults.isDeleting:
            isKnown = version >= _DELETION_DISABLED_VERSION
            code = ErrorCode.TOPIC_DELETION_DISABLED if isKnown else invalid
            return cls(
                responses=[
                    cls.DeletableTopicResult(
                        name=name, topicId=topicId, errorCode=code, errorMessage=None
                    )
                    for name, topicId in wanted
                ]
            )
        if any(name is None and topicId == ZERO_UUID for name, topicId in wanted):
            error = KafkaError(invalid, "Neither topic name nor id were specified.")
        elif any(name is not None and topicId != ZERO_UUID for name, topicId in wanted):
            error = KafkaError(invalid, "You may not specify both topic name and topic id.")
        else:
            try:
                return await self._topics.change(
                    lambda image: self._decideDeletion(image, wanted, take)
                )
            except PylogbrokerError as problem:
                error = errorOf(problem)
        return cls(
            responses=[
                cls.DeletableTopicResult(
                    name=name, topicId=topicId, errorCode=error.code, errorMessage=error.text
                )
                for name, topicId in wanted
            ]
        )

    def _decideDeletion(
        self,
        image: MetadataImage,
        wanted: list[tuple[str | None, bytes]],
        take: Callable[[int], None],
    ) -> tuple[list[Record], Any]:
        cls = messages.DeleteTopicsResponse
        response = cls()

        def answer(
            name: str | None, topicId: bytes, code: ErrorCode, text: str | None = None
        ) -> None:
            response.responses.append(
                cls.DeletableTopicResult(
                    name=name, topicId=topicId, errorCode=code, errorMessage=text
                )
            )

        invalid = ErrorCode.INVALID_REQUEST
        removed: dict[UUID, TopicImage] = {}
        byId = Counter(wanted)
        for (name, topicId), count in sorted(byId.items(), key=lambda item: item[0][0] is not None):
            if count > 1:
                kind = "name" if name is not None else "id"
                answer(name, topicId, invalid, f"Duplicate topic {kind}.")
                continue
            if name is None:
                topic, code = image.topicsById.get(UUID(bytes=topicId)), ErrorCode.UNKNOWN_TOPIC_ID
            else:
                topic, code = image.topics.get(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic is None:
                answer(name, topicId, code, code.message)
            elif topic.topicId in removed:
                del removed[topic.topicId]
                text = "The provided topic name maps to an ID that was already supplied."
                answer(topic.name, topic.topicId.bytes, invalid, text)
            else:
                removed[topic.topicId] = topic
        for topic in list(removed.values()):
            try:
                take(topic.partitionCount)
            except KafkaError as error:
                del removed[topic.topicId]
                answer(topic.name, topic.topicId.bytes, error.code)
            else:
                answer(topic.name, topic.topicId.bytes, ErrorCode.NONE)
        return [RemoveTopicRecord(str(topicId)) for topicId in removed], response

    # -- CreatePartitions

    def createPartitions(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle CreatePartitions; as L{Handler}."""
        return self._limited(header, state, lambda take: self._createPartitions(request, take))

    async def _createPartitions(self, request: Any, take: Callable[[int], None]) -> Any:
        cls = messages.CreatePartitionsResponse
        counts = Counter(each.name for each in request.topics)
        results = [
            cls.CreatePartitionsTopicResult(
                name=name,
                errorCode=ErrorCode.INVALID_REQUEST,
                errorMessage="Duplicate topic name.",
            )
            for name, count in counts.items()
            if count > 1
        ]

        async def grow(topic: Any) -> Any:
            result = cls.CreatePartitionsTopicResult(name=topic.name)
            try:
                await self._topics.change(
                    lambda image: (
                        self._decideGrowth(image, topic, request.validateOnly, take),
                        None,
                    )
                )
            except PylogbrokerError as error:
                found = errorOf(error)
                result.errorCode = found.code
                result.errorMessage = None if found.text == found.code.message else found.text
            return result

        wanted = [each for each in request.topics if counts[each.name] == 1]
        results += await gatherInBatches(grow, wanted)
        return cls(results=results)

    def _decideGrowth(
        self, image: MetadataImage, wanted: Any, validateOnly: bool, take: Callable[[int], None]
    ) -> list[Record]:
        topic = image.topics.get(wanted.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        have, count = topic.partitionCount, wanted.count
        if count == have:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s)."
            )
        if count < have:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {have} partition(s); {count} would not be"
                " an increase.",
            )
        if wanted.assignments is not None:
            if len(wanted.assignments) != count - have:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {count - have} additional partition(s), but only"
                    f" {len(wanted.assignments)} assignment(s) were specified.",
                )
        assignment = [each.brokerIds for each in wanted.assignments or ()]
        records = self._topics.morePartitions(image, topic, count, assignment)
        if validateOnly:
            return []
        take(count - have)
        return records
