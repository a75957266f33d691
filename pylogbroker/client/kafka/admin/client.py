"""
The admin client for any cluster of today's Kafka.

It has a method for each request of an administrator, named as in Java's C{Admin}, and a Deferred
for each. Requests go where they belong: to the controller, to the leader of a partition, to the
coordinator of a group, to all brokers, or to any.

Where a method takes several things, its Deferred fires with a mapping, in which each has its
result, or the L{PylogbrokerError} with which the broker refused it; L{checkAll} raises the first of
these. It fails only when there is no result at all: with L{pylogbroker.errors.TimedOutError}, whose
text has the last reason, after C{default.api.timeout.ms}; with
L{pylogbroker.errors.UnsupportedVersionError}, when the broker has no such request; with
L{pylogbroker.errors.ClosedError} after C{close}. All can be cancelled.

Results that are more than a number are objects of C{pylogbroker.protocol.kafka.messages}: their
fields have Kafka's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.client.kafka.admin.groups import GroupAdmin
from pylogbroker.client.kafka.admin.routing import (
    AdminRouter,
    Found,
    checkAll,
    checkResponse,
    refusal,
)
from pylogbroker.client.kafka.admin.security import SecurityAdmin
from pylogbroker.client.kafka.admin.topics import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    AlterConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceKind,
    TopicAdmin,
)
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.errors import ClosedError, PylogbrokerError, UnsupportedVersionError
from pylogbroker.net.deferreds import asDeferred, gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import byTopic
from pylogbroker.types import TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AdminClient",
    "AlterConfigOperation",
    "ConfigResource",
    "NewTopic",
    "ResourceKind",
    "checkAll",
]

PREFERRED, UNCLEAN = 0, 1
"""Kinds of elections."""

_FENCED_VERSION = 2
"""The first version of DescribeCluster that tells fenced brokers."""

log = Logger()


class AdminClient(TopicAdmin, GroupAdmin, SecurityAdmin):
    """
    Administers a cluster; the module says how answers come::

        async with AdminClient(reactor, {"bootstrap.servers": servers}) as admin:
            checkAll(await admin.createTopics([NewTopic("clicks", partitionCount=6)]))
    """

    def __init__(
        self,
        reactor: Any,
        settings: KafkaAdminSettings | Mapping[str, str],
        *,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param settings: or properties.
        @param random: numbers from 0 up to, not including, 1.
        @raise ConfigurationError: the settings are wrong.
        """
        if not isinstance(settings, KafkaAdminSettings):
            settings = KafkaAdminSettings.fromProperties(
                settings, lambda text: log.warn("{text}", text=text)
            )
        self.settings = settings
        self._router = AdminRouter(reactor, settings, random)

    def __repr__(self) -> str:
        return f"<AdminClient {','.join(self.settings.bootstrapServers)}>"

    # -- the cluster

    def describeCluster(self, includeFencedBrokers: bool = False) -> Deferred[Any]:
        """
        The cluster's id, controller and brokers.

        @param includeFencedBrokers: also those that are registered and gone, with C{isFenced}.
        @return: fires with a C{DescribeClusterResponse}; of a broker without that request, with a
            C{MetadataResponse}, whose brokers have C{nodeId} for C{brokerId}. Fails as
            L{ClusterClient.attempt}; with L{pylogbroker.errors.UnsupportedVersionError} where the
            broker does not tell fenced brokers.
        """

        async def ask(connection: NegotiatedConnection) -> Any:
            key = ApiKey.DESCRIBE_CLUSTER
            if includeFencedBrokers and not connection.supports(key, _FENCED_VERSION):
                raise UnsupportedVersionError(
                    f"{connection} does not tell fenced brokers: it has no {key.apiName} of version"
                    f" {_FENCED_VERSION}"
                )
            if not connection.supports(key):
                return await self._router.cluster.lookUp(())
            answer = await connection.request(
                key, messages.DescribeClusterRequest(includeFencedBrokers=includeFencedBrokers)
            )
            return checkResponse(answer, "describeCluster")

        return self._router.anywhere(ask, "describeCluster")

    @asDeferred
    async def unregisterBroker(self, brokerId: int) -> None:
        """
        Remove the registration of a broker that will not come back.

        @return: fails with L{ResponseError}: BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST of a
            broker of this project that is running, or is to have replicas; with
            L{pylogbroker.errors.UnsupportedVersionError} where the broker has no such request; as
            L{ClusterClient.attempt}.
        """

        async def action() -> None:
            connection = await self._router.controller()
            answer = await connection.request(
                ApiKey.UNREGISTER_BROKER, messages.UnregisterBrokerRequest(brokerId=brokerId)
            )
            checkResponse(answer, f"broker {brokerId}")

        await self._router.attempt(action, "unregisterBroker")

    @asDeferred
    async def describeLogDirs(self, brokers: Iterable[int] | None = None) -> dict[int, list[Any]]:
        """
        The log directories of brokers.

        @param brokers: L{None}: all.
        @return: by broker: C{DescribeLogDirsResult}s (C{logDir}, C{errorCode}, C{totalBytes},
            C{usableBytes}, C{topics} with C{partitionSize}, C{offsetLag}). Fails as
            L{ClusterClient.attempt}.
        """
        router = self._router
        numbers = brokers
        if numbers is None:
            numbers = await router.attempt(router.brokers, "describeLogDirs")

        async def one(number: int) -> tuple[int, list[Any]]:
            async def action() -> Any:
                connection = await router.broker(number)
                answer = await connection.request(
                    ApiKey.DESCRIBE_LOG_DIRS, messages.DescribeLogDirsRequest(topics=None)
                )
                return checkResponse(answer, f"log directories of broker {number}").results

            return number, await router.attempt(action, "describeLogDirs")

        return dict(await gatherInBatches(one, numbers))

    # -- replicas

    def electLeaders(
        self, partitions: Iterable[TopicPartition] | None, kind: int = PREFERRED
    ) -> Deferred[Found[TopicPartition, None]]:
        """
        Elect leaders.

        @param partitions: L{None}: all of the cluster.
        @param kind: L{PREFERRED}, or L{UNCLEAN}, which may lose records.
        @return: by partition; ELECTION_NOT_NEEDED where the leader is the right one. Of all
            partitions, only those for which there was something to decide.
        """
        cls = messages.ElectLeadersRequest

        async def ask(
            connection: NegotiatedConnection, places: list[TopicPartition] | None
        ) -> dict[TopicPartition, PylogbrokerError | None]:
            topics = None
            if places is not None:
                topics = [
                    cls.TopicPartitions(topic=name, partitions=numbers)
                    for name, numbers in byTopic(places).items()
                ]
            body = cls(electionType=kind, topicPartitions=topics, timeoutMs=self._router.timeoutMs)
            answer = checkResponse(
                await connection.request(ApiKey.ELECT_LEADERS, body), "electLeaders"
            )
            return {
                TopicPartition(topic.topic, part.partitionId): refusal(
                    part.errorCode, f"{topic.topic}-{part.partitionId}", part.errorMessage
                )
                for topic in answer.replicaElectionResults
                for part in topic.partitionResult
            }

        async def askAll() -> Found[TopicPartition, None]:
            return dict(await ask(await self._router.controller(), None))

        if partitions is None:
            return self._router.attempt(askAll, "electLeaders")
        places = [TopicPartition(*place) for place in partitions]
        return self._router.atController(places, ask, "electLeaders")

    def alterPartitionReassignments(
        self, replicas: Mapping[TopicPartition, Iterable[int] | None]
    ) -> Deferred[Found[TopicPartition, None]]:
        """
        Move replicas to brokers.

        @param replicas: the brokers of each partition; L{None}: cancel the move.
        """
        wanted = {TopicPartition(*place): each for place, each in replicas.items()}
        cls = messages.AlterPartitionReassignmentsRequest

        def one(place: TopicPartition) -> Any:
            brokers = wanted[place]
            return cls.ReassignablePartition(
                partitionIndex=place.partition, replicas=None if brokers is None else list(brokers)
            )

        async def ask(
            connection: NegotiatedConnection, places: list[TopicPartition]
        ) -> dict[TopicPartition, PylogbrokerError | None]:
            body = cls(
                topics=[
                    cls.ReassignableTopic(
                        name=name,
                        partitions=[one(TopicPartition(name, number)) for number in numbers],
                    )
                    for name, numbers in byTopic(places).items()
                ],
                timeoutMs=self._router.timeoutMs,
            )
            answer = await connection.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
            checkResponse(answer, "alterPartitionReassignments")
            return {
                TopicPartition(topic.name, part.partitionIndex): refusal(
                    part.errorCode, f"{topic.name}-{part.partitionIndex}", part.errorMessage
                )
                for topic in answer.responses
                for part in topic.partitions
            }

        return self._router.atController(wanted, ask, "alterPartitionReassignments")

    @asDeferred
    async def listPartitionReassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Any]:
        """
        The moves under way.

        @param partitions: L{None}: all.
        @return: by partition: C{replicas}, C{addingReplicas}, C{removingReplicas}. Fails as
            L{ClusterClient.attempt}.
        """
        cls = messages.ListPartitionReassignmentsRequest
        body = cls(timeoutMs=self._router.timeoutMs)
        if partitions is not None:
            body.topics = [
                cls.ListPartitionReassignmentsTopics(name=name, partitionIndexes=numbers)
                for name, numbers in byTopic(partitions).items()
            ]

        async def action() -> Any:
            connection = await self._router.controller()
            answer = await connection.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, body)
            return checkResponse(answer, "listPartitionReassignments")

        answer = await self._router.attempt(action, "listPartitionReassignments")
        return {
            TopicPartition(topic.name, part.partitionIndex): part
            for topic in answer.topics
            for part in topic.partitions
        }

    # -- the end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @asDeferred
    async def close(self) -> None:
        """
        Close the connections. What is asked fails.

        @return: fires with L{None} when they are gone.
        """
        try:
            await self._router.close()
        except ClosedError:
            pass  # requests under way were cut
