"""
An admin client's requests for topics, their partitions and records, and settings. A module of
its own, since each subject of the admin client has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.client.kafka.admin.routing import AdminRouter, Found, checkResponse, refusal
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import byTopic
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.types import TopicPartition

DEFAULT = -1
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -2, -1, -3, -4
"""Times for L{TopicAdmin.listOffsets}."""

_ID_SIZE = 16
_IDS_VERSION = 6
_INCREMENTAL = ApiKey.INCREMENTAL_ALTER_CONFIGS


_THERE = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND)
"""What is said of a topic that exists: it may have no leader for the moment."""


class ResourceKind(IntEnum):
    """What has settings; as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """
    @ivar name: a topic, a broker's number, a group; empty: the default of all brokers.
    """

    kind: int
    name: str


class AlterConfigOperation(IntEnum):
    """What to do with a setting; as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class NewTopic(NamedTuple):
    """
    @ivar partitionCount: L{DEFAULT}: the broker's own.
    @ivar replicationFactor: likewise.
    @ivar configs: settings of the topic.
    @ivar replicas: the brokers of each partition, in place of both numbers.
    """

    name: str
    partitionCount: int = DEFAULT
    replicationFactor: int = DEFAULT
    configs: Mapping[str, str] = {}
    replicas: Mapping[int, Sequence[int]] = {}


class TopicAdmin:
    """See the module. The Deferreds fire as L{AdminRouter.each} says."""

    _router: AdminRouter

    # -- topics

    def createTopics(
        self, topics: Iterable[NewTopic], isDryRun: bool = False
    ) -> Deferred[dict[str, Any]]:
        """
        Create topics.

        @param isDryRun: only say whether they could be created.
        @return: by name: what was created (C{topicId}, C{numPartitions}, C{replicationFactor},
            C{configs}, of a broker that says so).
        """
        given = {each.name: each for each in topics}
        cls = messages.CreateTopicsRequest

        def one(new: NewTopic) -> Any:
            return cls.CreatableTopic(
                name=new.name,
                numPartitions=DEFAULT if new.replicas else new.partitionCount,
                replicationFactor=DEFAULT if new.replicas else new.replicationFactor,
                assignments=[
                    cls.CreatableReplicaAssignment(partitionIndex=number, brokerIds=list(brokers))
                    for number, brokers in new.replicas.items()
                ],
                configs=[
                    cls.CreatableTopicConfig(name=name, value=value)
                    for name, value in new.configs.items()
                ],
            )

        async def ask(connection: NegotiatedConnection, names: list[str]) -> dict[str, Any]:
            body = cls(
                topics=[one(given[name]) for name in names],
                timeoutMs=self._router.timeoutMs,
                validateOnly=isDryRun,
            )
            answer = await connection.request(ApiKey.CREATE_TOPICS, body)
            return {
                each.name: refusal(each.errorCode, f"topic {each.name}", each.errorMessage) or each
                for each in answer.topics
            }

        return self._router.atController(given, ask, "createTopics")

    def deleteTopics(self, topics: Iterable[str | bytes]) -> Deferred[Found[str | bytes, None]]:
        """
        Delete topics.

        @param topics: names, or ids of 16 bytes (where the broker has version 6).
        """
        cls = messages.DeleteTopicsRequest

        async def ask(
            connection: NegotiatedConnection, some: list[str | bytes]
        ) -> dict[str | bytes, PylogbrokerError | None]:
            body = cls(timeoutMs=self._router.timeoutMs)
            if connection.supports(ApiKey.DELETE_TOPICS, _IDS_VERSION):
                body.topics = [
                    cls.DeleteTopicState(name=each)
                    if isinstance(each, str)
                    else cls.DeleteTopicState(topicId=each)
                    for each in some
                ]
            else:
                body.topicNames = some
            answer = await connection.request(ApiKey.DELETE_TOPICS, body)
            found: dict[str | bytes, PylogbrokerError | None] = {}
            for each in answer.responses:
                outcome = refusal(each.errorCode, f"topic {each.name}", each.errorMessage)
                found[each.topicId] = outcome
                if each.name is not None:
                    found[each.name] = outcome
            return found

        return self._router.atController(topics, ask, "deleteTopics")

    @asDeferred
    async def listTopics(self) -> list[str]:
        """
        The names of all topics that may be seen, Kafka's own included, sorted.

        @return: fails as L{ClusterClient.attempt}.
        """
        found = await self._router.attempt(lambda: self._router.cluster.lookUp(None), "listTopics")
        return sorted(each.name for each in found.topics if each.errorCode in _THERE)

    def describeTopics(self, names: Iterable[str]) -> Deferred[dict[str, Any]]:
        """
        Describe topics.

        @return: by name: a C{MetadataResponseTopic} (C{topicId}, C{isInternal}, C{partitions} with
            C{leaderId}, C{leaderEpoch}, C{replicaNodes}, C{isrNodes}, C{offlineReplicas}).
        """

        async def ask(some: list[str]) -> dict[str, Any]:
            found = await self._router.cluster.lookUp(some)
            return {
                each.name: refusal(each.errorCode, f"topic {each.name}") or each
                for each in found.topics
            }

        return self._router.each(names, ask, "describeTopics")

    @asDeferred
    async def describeTopicPartitions(
        self, names: Iterable[str], countMax: int = 2000
    ) -> dict[str, list[Any]]:
        """
        Describe the partitions of topics, a piece at a time.

        @param countMax: partitions in a response.
        @return: by name: C{DescribeTopicPartitionsResponsePartition}s. Fails with L{ResponseError}
            for a topic that is refused; with L{pylogbroker.errors.UnsupportedVersionError} where
            the broker has no such request; as L{ClusterClient.attempt}.
        """
        cls = messages.DescribeTopicPartitionsRequest
        body = cls(
            topics=[cls.TopicRequest(name=name) for name in sorted(names)],
            responsePartitionLimit=countMax,
        )
        found: dict[str, list[Any]] = {}
        while True:
            answer = await self._router.anywhere(
                lambda connection: _ask(connection, ApiKey.DESCRIBE_TOPIC_PARTITIONS, body),
                "describeTopicPartitions",
            )
            for topic in answer.topics:
                problem = refusal(topic.errorCode, f"topic {topic.name}")
                if problem is not None:
                    raise problem
                found.setdefault(topic.name, []).extend(topic.partitions)
            cursor = answer.nextCursor
            if cursor is None:
                return found
            body.cursor = cls.Cursor(
                topicName=cursor.topicName, partitionIndex=cursor.partitionIndex
            )

    def createPartitions(
        self, counts: Mapping[str, int], isDryRun: bool = False
    ) -> Deferred[Found[str, None]]:
        """
        Give topics more partitions.

        @param counts: of all partitions then, by topic.
        """
        cls = messages.CreatePartitionsRequest

        async def ask(connection: NegotiatedConnection, names: list[str]) -> dict[str, Any]:
            body = cls(
                topics=[
                    cls.CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                    for name in names
                ],
                timeoutMs=self._router.timeoutMs,
                validateOnly=isDryRun,
            )
            answer = await connection.request(ApiKey.CREATE_PARTITIONS, body)
            return {
                each.name: refusal(each.errorCode, f"topic {each.name}", each.errorMessage)
                for each in answer.results
            }

        return self._router.atController(counts, ask, "createPartitions")

    # -- records

    def deleteRecords(
        self, offsets: Mapping[TopicPartition, int]
    ) -> Deferred[Found[TopicPartition, int]]:
        """
        Delete the records before offsets.

        @param offsets: -1: up to the high watermark.
        @return: by partition: the first offset that is left.
        """
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        cls = messages.DeleteRecordsRequest

        async def ask(
            connection: NegotiatedConnection, places: list[TopicPartition]
        ) -> dict[TopicPartition, int | PylogbrokerError]:
            body = cls(
                topics=[
                    cls.DeleteRecordsTopic(
                        name=name,
                        partitions=[
                            cls.DeleteRecordsPartition(
                                partitionIndex=number, offset=wanted[TopicPartition(name, number)]
                            )
                            for number in numbers
                        ],
                    )
                    for name, numbers in byTopic(places).items()
                ],
                timeoutMs=self._router.timeoutMs,
            )
            answer = await connection.request(ApiKey.DELETE_RECORDS, body)
            return {
                place: refusal(part.errorCode, place) or part.lowWatermark
                for place, part in _parts(answer.topics)
            }

        return self._router.atLeaders(wanted, ask, "deleteRecords")

    def listOffsets(
        self, times: Mapping[TopicPartition, int], isCommitted: bool = False
    ) -> Deferred[dict[TopicPartition, Any]]:
        """
        Find offsets by time.

        @param times: L{EARLIEST}, L{LATEST}, L{MAX_TIMESTAMP}, or milliseconds since the epoch: of
            the first record that is not older.
        @param isCommitted: L{LATEST} is where the first open transaction begins.
        @return: by partition: C{offset}, C{timestamp}, C{leaderEpoch}; -1: there is none.
        """
        wanted = {TopicPartition(*place): time for place, time in times.items()}
        cls = messages.ListOffsetsRequest

        async def ask(
            connection: NegotiatedConnection, places: list[TopicPartition]
        ) -> dict[TopicPartition, Any]:
            body = cls(
                replicaId=-1,
                topics=[
                    cls.ListOffsetsTopic(
                        name=name,
                        partitions=[
                            cls.ListOffsetsPartition(
                                partitionIndex=number,
                                timestamp=wanted[TopicPartition(name, number)],
                            )
                            for number in numbers
                        ],
                    )
                    for name, numbers in byTopic(places).items()
                ],
            )
            if isCommitted:
                body.isolationLevel = 1
            answer = await connection.request(ApiKey.LIST_OFFSETS, body)
            return {
                place: refusal(part.errorCode, place) or part
                for place, part in _parts(answer.topics)
            }

        return self._router.atLeaders(wanted, ask, "listOffsets")

    # -- settings

    def describeConfigs(
        self,
        resources: Iterable[ConfigResource],
        names: Sequence[str] | None = None,
        includeSynonyms: bool = False,
        includeDocumentation: bool = False,
    ) -> Deferred[dict[ConfigResource, Any]]:
        """
        Describe settings.

        @param names: of settings; L{None}: all.
        @return: by resource: the settings by name, with C{value}, C{readOnly}, C{configSource},
            C{isSensitive}, C{synonyms}, C{configType}, C{documentation}.
        """
        cls = messages.DescribeConfigsRequest

        async def ask(
            connection: NegotiatedConnection, some: list[ConfigResource]
        ) -> dict[ConfigResource, Any]:
            body = cls(
                resources=[
                    cls.DescribeConfigsResource(
                        resourceType=each.kind,
                        resourceName=each.name,
                        configurationKeys=None if names is None else list(names),
                    )
                    for each in some
                ],
                includeSynonyms=includeSynonyms,
            )
            if includeDocumentation:
                body.includeDocumentation = True
            answer = await connection.request(ApiKey.DESCRIBE_CONFIGS, body)
            return {
                ConfigResource(each.resourceType, each.resourceName): refusal(
                    each.errorCode, f"settings of {each.resourceName}", each.errorMessage
                )
                or {found.name: found for found in each.configs}
                for each in answer.results
            }

        return self._atOwners(resources, ask, "describeConfigs")

    def incrementalAlterConfigs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, tuple[AlterConfigOperation, str | None]]],
        isDryRun: bool = False,
    ) -> Deferred[Found[ConfigResource, None]]:
        """
        Change single settings.

        @param changes: by resource and name: what to do, and a value.
        """
        wanted = {ConfigResource(*each): all_ for each, all_ in changes.items()}
        cls = messages.IncrementalAlterConfigsRequest

        async def ask(
            connection: NegotiatedConnection, some: list[ConfigResource]
        ) -> dict[ConfigResource, Any]:
            body = cls(
                resources=[
                    cls.AlterConfigsResource(
                        resourceType=each.kind,
                        resourceName=each.name,
                        configs=[
                            cls.AlterableConfig(name=name, configOperation=operation, value=value)
                            for name, (operation, value) in wanted[each].items()
                        ],
                    )
                    for each in some
                ],
                validateOnly=isDryRun,
            )
            return _altered(await connection.request(_INCREMENTAL, body))

        return self._atOwners(wanted, ask, "incrementalAlterConfigs")

    def alterConfigs(
        self, configs: Mapping[ConfigResource, Mapping[str, str]], isDryRun: bool = False
    ) -> Deferred[Found[ConfigResource, None]]:
        """
        Replace all settings of resources: those that are not named go back to their default.
        L{incrementalAlterConfigs} is for all brokers since 2.3.
        """
        wanted = {ConfigResource(*each): all_ for each, all_ in configs.items()}
        cls = messages.AlterConfigsRequest

        async def ask(
            connection: NegotiatedConnection, some: list[ConfigResource]
        ) -> dict[ConfigResource, Any]:
            body = cls(
                resources=[
                    cls.AlterConfigsResource(
                        resourceType=each.kind,
                        resourceName=each.name,
                        configs=[
                            cls.AlterableConfig(name=name, value=value)
                            for name, value in wanted[each].items()
                        ],
                    )
                    for each in some
                ],
                validateOnly=isDryRun,
            )
            return _altered(await connection.request(ApiKey.ALTER_CONFIGS, body))

        return self._atOwners(wanted, ask, "alterConfigs")

    @asDeferred
    async def listConfigResources(self, kinds: Iterable[int] = ()) -> list[ConfigResource]:
        """
        The resources that have settings of their own.

        @param kinds: none: all.
        @return: fails as L{ClusterClient.attempt}.
        """
        body = messages.ListConfigResourcesRequest(resourceTypes=list(kinds))
        answer = await self._router.anywhere(
            lambda connection: _ask(connection, ApiKey.LIST_CONFIG_RESOURCES, body),
            "listConfigResources",
        )
        checkResponse(answer, "listConfigResources")
        return [
            ConfigResource(each.resourceType, each.resourceName) for each in answer.configResources
        ]

    def _atOwners(
        self, resources: Iterable[ConfigResource], ask: Any, what: str
    ) -> Deferred[dict[ConfigResource, Any]]:
        """A broker's own settings are asked for there; all others anywhere."""
        router = self._router

        async def at(some: list[ConfigResource]) -> dict[ConfigResource, Any]:
            groups: dict[int | None, list[ConfigResource]] = {}
            for each in some:
                isBroker = each.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER)
                node = int(each.name) if isBroker and each.name.isdecimal() else None
                groups.setdefault(node, []).append(each)
            found: dict[ConfigResource, Any] = {}
            for number, group in groups.items():
                connection = (
                    await router.cluster.anyConnection()
                    if number is None
                    else await router.broker(number)
                )
                found.update(await ask(connection, group))
            return found

        return router.each([ConfigResource(*each) for each in resources], at, what)


async def _ask(connection: NegotiatedConnection, key: ApiKey, body: Any) -> Any:
    return await connection.request(key, body)


def _parts(topics: Any) -> list[tuple[TopicPartition, Any]]:
    return [
        (TopicPartition(topic.name, part.partitionIndex), part)
        for topic in topics
        for part in topic.partitions
    ]


def _altered(answer: Any) -> dict[ConfigResource, Any]:
    return {
        ConfigResource(each.resourceType, each.resourceName): refusal(
            each.errorCode, f"settings of {each.resourceName}", each.errorMessage
        )
        for each in answer.responses
    }
