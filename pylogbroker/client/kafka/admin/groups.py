"""
An admin client's requests for consumer groups, their offsets, producers and transactions. A module
of its own, since each subject of the admin client has one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from pylogbroker.client.kafka.admin.routing import AdminRouter, Found, checkResponse, refusal
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred, gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import byTopic
from pylogbroker.protocol.kafka.errorcodes import checkCode
from pylogbroker.types import OffsetAndMetadata, TopicPartition

T = TypeVar("T")

GROUP, TRANSACTION = CoordinatorKind.GROUP, CoordinatorKind.TRANSACTION

_NAMED_VERSION = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""

_GROUPS_VERSION, _MEMBERS_VERSION = 8, 3
"""The first versions of OffsetFetch with groups, and of LeaveGroup with several members."""


class GroupAdmin:
    """See the module. The Deferreds fire as L{AdminRouter.each} says."""

    _router: AdminRouter

    # -- groups

    @asDeferred
    async def listGroups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> dict[str, Any]:
        """
        The groups of all brokers.

        @param states: only groups in one of these states, by Kafka's names; none: all.
        @param types: only C{classic}, C{consumer} and so on.
        @return: by group: C{protocolType}, C{groupState}, C{groupType}. Fails with
            L{ResponseError}; as L{ClusterClient.attempt}.
        """
        body = messages.ListGroupsRequest()
        if states:
            body.statesFilter = list(states)
        if types:
            body.typesFilter = list(types)
        found = await self._everywhere(ApiKey.LIST_GROUPS, body, "listGroups")
        return {each.groupId: each for answer in found for each in answer.groups}

    def describeGroups(self, groups: Iterable[str]) -> Deferred[dict[str, Any]]:
        """
        Describe groups of the classic protocol; a group that is missing is in the state C{Dead}.

        @return: by group: C{groupState}, C{protocolType}, C{protocolData}, C{members} (whose
            metadata and assignment L{pylogbroker.protocol.kafka.consumerprotocol} decodes).
        """

        async def ask(connection: NegotiatedConnection, group: str) -> Any:
            body = messages.DescribeGroupsRequest(groups=[group])
            [found] = (await connection.request(ApiKey.DESCRIBE_GROUPS, body)).groups
            checkCode(found.errorCode, f"group {group}", found.errorMessage)
            return found

        return self._router.atCoordinators(GROUP, groups, ask, "describeGroups")

    def describeConsumerGroups(self, groups: Iterable[str]) -> Deferred[dict[str, Any]]:
        """
        Describe groups of the new protocol (KIP-848).

        @return: by group: C{groupState}, C{groupEpoch}, C{assignmentEpoch}, C{assignorName},
            C{members}. A group of the classic protocol is refused with GROUP_ID_NOT_FOUND.
        """

        async def ask(connection: NegotiatedConnection, group: str) -> Any:
            body = messages.ConsumerGroupDescribeRequest(groupIds=[group])
            answer = await connection.request(ApiKey.CONSUMER_GROUP_DESCRIBE, body)
            [found] = answer.groups
            checkCode(found.errorCode, f"group {group}", found.errorMessage)
            return found

        return self._router.atCoordinators(GROUP, groups, ask, "describeConsumerGroups")

    def deleteGroups(self, groups: Iterable[str]) -> Deferred[Found[str, None]]:
        """Delete groups without members, and their offsets."""

        async def ask(connection: NegotiatedConnection, group: str) -> None:
            body = messages.DeleteGroupsRequest(groupsNames=[group])
            [found] = (await connection.request(ApiKey.DELETE_GROUPS, body)).results
            checkCode(found.errorCode, f"group {group}")

        return self._router.atCoordinators(GROUP, groups, ask, "deleteGroups")

    def removeMembers(
        self, group: str, members: Iterable[tuple[str, str | None]], reason: str | None = None
    ) -> Deferred[Found[str, None]]:
        """
        Remove members from a group.

        @param members: member id, and instance id or L{None}; a static member has the id C{""}.
        @param reason: for the broker's log.
        @return: by instance id, or by member id.
        """
        given = {instance or member: (member, instance) for member, instance in members}
        cls = messages.LeaveGroupRequest

        async def ask(names: list[str]) -> dict[str, PylogbrokerError | None]:
            async def leave(connection: NegotiatedConnection) -> Any:
                body = cls(groupId=group)
                body.members = [
                    cls.MemberIdentity(memberId=member, groupInstanceId=instance, reason=reason)
                    for member, instance in (given[name] for name in names)
                ]
                answer = await connection.request(ApiKey.LEAVE_GROUP, body)
                return checkResponse(answer, f"group {group}")

            answer = await self._router.cluster.coordinators.ask(GROUP, group, leave)
            return {
                each.groupInstanceId or each.memberId: refusal(
                    each.errorCode, f"member {each.groupInstanceId or each.memberId} of {group}"
                )
                for each in answer.members
            }

        return self._router.each(given, ask, "removeMembers")

    # -- offsets

    @asDeferred
    async def listConsumerGroupOffsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, isStable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """
        The committed positions of a group.

        @param partitions: L{None}: all that have one.
        @param isStable: wait for transactions that commit some.
        @return: without those that have none. Fails with L{ResponseError}; as
            L{ClusterClient.attempt}.
        """
        wanted = None if partitions is None else byTopic(partitions)
        cls = messages.OffsetFetchRequest

        async def ask(connection: NegotiatedConnection) -> Any:
            body = cls()
            if connection.supports(ApiKey.OFFSET_FETCH, _GROUPS_VERSION):
                one = cls.OffsetFetchRequestGroup(groupId=group)
                one.topics = wanted and [
                    cls.OffsetFetchRequestTopics(name=name, partitionIndexes=numbers)
                    for name, numbers in wanted.items()
                ]
                body.groups = [one]
            else:
                body.groupId = group
                body.topics = wanted and [
                    cls.OffsetFetchRequestTopic(name=name, partitionIndexes=numbers)
                    for name, numbers in wanted.items()
                ]
            if isStable:
                body.requireStable = True
            answer = await connection.request(ApiKey.OFFSET_FETCH, body, versionMax=_NAMED_VERSION)
            [found] = answer.groups or [answer]
            checkCode(found.errorCode, f"group {group}")
            for topic in found.topics:
                for part in topic.partitions:
                    checkCode(part.errorCode, f"{group}: {topic.name}-{part.partitionIndex}")
            return found

        found = await self._atGroup(group, ask, "listConsumerGroupOffsets")
        return {
            TopicPartition(topic.name, part.partitionIndex): OffsetAndMetadata(
                part.committedOffset, part.committedLeaderEpoch, part.metadata or ""
            )
            for topic in found.topics
            for part in topic.partitions
            if part.committedOffset >= 0
        }

    def alterConsumerGroupOffsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> Deferred[Found[TopicPartition, None]]:
        """Set the positions of a group without members."""
        cls = messages.OffsetCommitRequest

        def one(place: TopicPartition) -> Any:
            given = offsets[place]
            offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            return cls.OffsetCommitRequestPartition(
                partitionIndex=place.partition,
                committedOffset=offset.offset,
                committedLeaderEpoch=offset.leaderEpoch,
                committedMetadata=offset.metadata,
            )

        async def ask(connection: NegotiatedConnection, some: list[TopicPartition]) -> Any:
            topics = [
                cls.OffsetCommitRequestTopic(
                    name=name, partitions=[one(TopicPartition(name, number)) for number in numbers]
                )
                for name, numbers in byTopic(some).items()
            ]
            body = cls(groupId=group, topics=topics)
            return await connection.request(ApiKey.OFFSET_COMMIT, body, versionMax=_NAMED_VERSION)

        places = [TopicPartition(*place) for place in offsets]
        return self._eachOf(group, places, ask, "alterConsumerGroupOffsets")

    def deleteConsumerGroupOffsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Deferred[Found[TopicPartition, None]]:
        """Forget positions of a group. Fails with L{ResponseError} when the group is refused."""
        cls = messages.OffsetDeleteRequest

        async def ask(connection: NegotiatedConnection, some: list[TopicPartition]) -> Any:
            body = cls(
                groupId=group,
                topics=[
                    cls.OffsetDeleteRequestTopic(
                        name=name,
                        partitions=[
                            cls.OffsetDeleteRequestPartition(partitionIndex=number)
                            for number in numbers
                        ],
                    )
                    for name, numbers in byTopic(some).items()
                ],
            )
            answer = await connection.request(ApiKey.OFFSET_DELETE, body)
            checkCode(answer.errorCode, f"group {group}")
            return answer

        places = [TopicPartition(*place) for place in partitions]
        return self._eachOf(group, places, ask, "deleteConsumerGroupOffsets")

    def _eachOf(
        self, group: str, places: Iterable[TopicPartition], ask: Any, what: str
    ) -> Deferred[Found[TopicPartition, None]]:
        """Ask a group's coordinator for partitions, each of which may be refused."""
        coordinators = self._router.cluster.coordinators

        async def at(some: list[TopicPartition]) -> Found[TopicPartition, None]:
            answer = await coordinators.ask(GROUP, group, lambda connection: ask(connection, some))
            found: Found[TopicPartition, None] = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    place = TopicPartition(topic.name, part.partitionIndex)
                    found[place] = refusal(part.errorCode, f"{group}: {place}")
                    if ErrorPolicy.FIND_COORDINATOR in policyOf(part.errorCode):
                        coordinators.forget(GROUP, group)
            return found

        return self._router.each(places, at, what)

    def _atGroup(
        self, group: str, ask: Callable[[NegotiatedConnection], Coroutine[Any, Any, T]], what: str
    ) -> Deferred[T]:
        router = self._router
        return router.attempt(lambda: router.cluster.coordinators.ask(GROUP, group, ask), what)

    async def _everywhere(self, key: ApiKey, body: Any, what: str) -> list[Any]:
        """Ask all brokers."""
        router = self._router

        async def one(number: int) -> Any:
            async def action() -> Any:
                answer = await (await router.broker(number)).request(key, body)
                return checkResponse(answer, what)

            return await router.attempt(action, what)

        return await gatherInBatches(one, await router.attempt(router.brokers, what))

    # -- producers and transactions

    def describeProducers(
        self, partitions: Iterable[TopicPartition]
    ) -> Deferred[dict[TopicPartition, Any]]:
        """
        The idempotent producers of partitions.

        @return: by partition: C{producerId}, C{producerEpoch}, C{lastSequence}, C{lastTimestamp},
            C{coordinatorEpoch}, C{currentTxnStartOffset} of each.
        """
        cls = messages.DescribeProducersRequest

        async def ask(
            connection: NegotiatedConnection, places: list[TopicPartition]
        ) -> dict[TopicPartition, Any]:
            body = cls(
                topics=[
                    cls.TopicRequest(name=name, partitionIndexes=numbers)
                    for name, numbers in byTopic(places).items()
                ]
            )
            answer = await connection.request(ApiKey.DESCRIBE_PRODUCERS, body)
            return {
                TopicPartition(topic.name, part.partitionIndex): refusal(
                    part.errorCode, f"{topic.name}-{part.partitionIndex}", part.errorMessage
                )
                or part.activeProducers
                for topic in answer.topics
                for part in topic.partitions
            }

        return self._router.atLeaders(partitions, ask, "describeProducers")

    @asDeferred
    async def listTransactions(
        self,
        states: Iterable[str] = (),
        producerIds: Iterable[int] = (),
        durationMs: int = -1,
        pattern: str | None = None,
    ) -> dict[str, Any]:
        """
        The transactional ids of all brokers.

        @param states: only those in one of these states, by Kafka's names; none: all.
        @param durationMs: only transactions that have been open for longer; -1: all.
        @param pattern: for the id, as the broker's regular expressions are.
        @return: by transactional id: C{producerId}, C{transactionState}. Fails with
            L{ResponseError}; as L{ClusterClient.attempt}.
        """
        body = messages.ListTransactionsRequest(
            stateFilters=list(states), producerIdFilters=list(producerIds)
        )
        if durationMs >= 0:
            body.durationFilter = durationMs
        if pattern is not None:
            body.transactionalIdPattern = pattern
        found = await self._everywhere(ApiKey.LIST_TRANSACTIONS, body, "listTransactions")
        return {each.transactionalId: each for answer in found for each in answer.transactionStates}

    def describeTransactions(self, transactionalIds: Iterable[str]) -> Deferred[dict[str, Any]]:
        """
        Describe transactions.

        @return: by transactional id: C{transactionState}, C{transactionTimeoutMs},
            C{transactionStartTimeMs}, C{producerId}, C{producerEpoch}, C{topics}.
        """

        async def ask(connection: NegotiatedConnection, name: str) -> Any:
            body = messages.DescribeTransactionsRequest(transactionalIds=[name])
            answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, body)
            [found] = answer.transactionStates
            checkCode(found.errorCode, f"transactional id {name}")
            return found

        return self._router.atCoordinators(
            TRANSACTION, transactionalIds, ask, "describeTransactions"
        )

    def fenceProducers(
        self, transactionalIds: Iterable[str], timeoutMs: int = 60_000
    ) -> Deferred[dict[str, Any]]:
        """
        Fence the producers of transactional ids: their open transactions are aborted.

        @return: by transactional id: the producer id and epoch that are valid now.
        """

        async def ask(connection: NegotiatedConnection, name: str) -> tuple[int, int]:
            body = messages.InitProducerIdRequest(
                transactionalId=name, transactionTimeoutMs=timeoutMs
            )
            found = await connection.request(ApiKey.INIT_PRODUCER_ID, body)
            checkCode(found.errorCode, f"transactional id {name}")
            return found.producerId, found.producerEpoch

        return self._router.atCoordinators(TRANSACTION, transactionalIds, ask, "fenceProducers")

    @asDeferred
    async def abortTransaction(
        self,
        partition: TopicPartition,
        producerId: int,
        producerEpoch: int,
        coordinatorEpoch: int,
    ) -> None:
        """
        Abort a transaction that hangs in a partition, as L{describeProducers} shows it. Only for
        one whose coordinator does not know it.

        @return: fires with L{None}. Fails with L{ResponseError}; as L{ClusterClient.attempt}.
        """
        cls = messages.WriteTxnMarkersRequest
        place = TopicPartition(*partition)
        topic = cls.WritableTxnMarkerTopic(name=place.topic, partitionIndexes=[place.partition])
        marker = cls.WritableTxnMarker(
            producerId=producerId,
            producerEpoch=producerEpoch,
            transactionResult=False,
            topics=[topic],
            coordinatorEpoch=coordinatorEpoch,
        )

        async def ask(
            connection: NegotiatedConnection, places: list[TopicPartition]
        ) -> dict[TopicPartition, PylogbrokerError | None]:
            answer = await connection.request(ApiKey.WRITE_TXN_MARKERS, cls(markers=[marker]))
            return {
                TopicPartition(each.name, part.partitionIndex): refusal(part.errorCode, place)
                for found in answer.markers
                for each in found.topics
                for part in each.partitions
            }

        found = await self._router.atLeaders([place], ask, "abortTransaction")
        error = found[place]
        if error is not None:
            raise error
