"""
The positions of a group: in its coordinator, or in a store of the application's. A module of its
own, since a consumer that assigns its partitions itself has them, too.

What must be true: commits follow one another, so that a retried one never overwrites a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.offsetstores import IOffsetStore
from pylogbroker.errors import CommitFailedError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import byTopic
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.types import (
    BrokerPartition,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    PartitionId,
    TopicPartition,
)

NAMED_VERSION = 9
"""The last version of OffsetCommit and OffsetFetch that names topics instead of giving ids."""

GROUPS_VERSION, STABLE_VERSION = 8, 7
"""
The first versions of OffsetFetch that ask for several groups, and that wait for transactions.
"""

NO_BROKER = -1
"""The broker of today's partitions in an L{IOffsetStore}, where 2011's have one."""

_FENCED = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
)

STALE_COUNT_MAX = 8
"""How often a commit is tried again because the member's next heartbeat has a newer epoch."""

Commits = Mapping[TopicPartition, OffsetAndMetadata]


def storedPartition(place: TopicPartition) -> PartitionId:
    """A partition as an L{IOffsetStore} names it."""
    return PartitionId(place.topic, BrokerPartition(NO_BROKER, place.partition))


class GroupOffsets:
    """
    Commits positions, and loads them.

    @ivar committed: what this consumer has committed or loaded last, of each partition.
    """

    def __init__(
        self,
        clock: IReactorTime,
        cluster: ClusterClient,
        store: IOffsetStore | None,
        settings: KafkaConsumerSettings,
    ) -> None:
        """
        @param store: instead of the coordinator.
        """
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._clock = clock
        self._cluster = cluster
        self._store = store
        self._timeoutMs = settings.defaultApiTimeoutMs
        self._groupId = settings.groupId
        self._turn = DeferredLock()

    async def commit(
        self,
        offsets: Callable[[], Commits],
        committer: Callable[[], ConsumerGroupMetadata],
        timeoutMs: float | None = None,
    ) -> None:
        """
        @param offsets: returns them when this commit's turn comes.
        @param committer: as whom to commit, at each attempt; may raise L{CommitFailedError}.
        @raise CommitFailedError: this is no member of the group any more, or the store has not
            stored them all.
        @raise PylogbrokerError: as L{ClusterClient.attempt}.
        """
        await self._turn.acquire()
        try:
            wanted = dict(offsets())
            if not wanted:
                return
            committer()
            if self._store is not None:
                await self._commitToStore(self._store, wanted)
            else:
                await self._cluster.attempt(
                    lambda: self._cluster.coordinators.ask(
                        CoordinatorKind.GROUP,
                        self._groupId,
                        lambda connection: self._commit(connection, wanted, committer),
                    ),
                    self._timeoutMs if timeoutMs is None else timeoutMs,
                    f"commit of group {self._groupId}",
                )
            self.committed.update(wanted)
        except ResponseError as error:
            if error.code not in _FENCED:
                raise
            raise CommitFailedError(
                f"nothing was committed, since the group rebalances, or others may have the"
                f" partitions by now: {error}"
            ) from error
        finally:
            self._turn.release()

    async def _commitToStore(self, store: IOffsetStore, offsets: Commits) -> None:
        stored = await store.commit(
            {storedPartition(place): each.offset for place, each in offsets.items()}
        )
        missing = [str(each) for each in offsets if storedPartition(each) not in stored]
        if missing:
            raise CommitFailedError(f"not stored: the positions of {', '.join(missing[:10])}")

    async def _commit(
        self,
        connection: NegotiatedConnection,
        offsets: Commits,
        committer: Callable[[], ConsumerGroupMetadata],
    ) -> None:
        """Again with the newest epoch, while the member's is stale."""
        staleCount = 0
        while True:
            try:
                return await self._commitOnce(connection, offsets, committer())
            except ResponseError as error:
                staleCount += 1
                if error.code != ErrorCode.STALE_MEMBER_EPOCH or staleCount > STALE_COUNT_MAX:
                    raise
            pause: Deferred[None] = Deferred()
            waitMs = self._cluster.backoffMs(staleCount)
            pause.addTimeout(waitMs / 1000, self._clock, lambda _result, _seconds: None)
            await pause

    async def _commitOnce(
        self,
        connection: NegotiatedConnection,
        offsets: Commits,
        member: ConsumerGroupMetadata,
    ) -> None:
        cls = messages.OffsetCommitRequest
        body = cls(
            groupId=member.groupId,
            generationIdOrMemberEpoch=member.generationId,
            memberId=member.memberId,
            topics=[
                cls.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        cls.OffsetCommitRequestPartition(
                            partitionIndex=number,
                            committedOffset=found.offset,
                            committedLeaderEpoch=found.leaderEpoch,
                            committedMetadata=found.metadata,
                        )
                        for number in numbers
                        for found in [offsets[TopicPartition(topic, number)]]
                    ],
                )
                for topic, numbers in byTopic(offsets).items()
            ],
        )
        if member.groupInstanceId is not None:
            body.groupInstanceId = member.groupInstanceId
        answer = await connection.request(ApiKey.OFFSET_COMMIT, body, 0, NAMED_VERSION)
        for topic in answer.topics:
            for part in topic.partitions:
                checkCode(part.errorCode, f"commit of {topic.name}-{part.partitionIndex}")

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """
        @return: L{None} for a partition without a position.
        @raise PylogbrokerError: as L{ClusterClient.attempt}; what C{load} of the store raises.
        """
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        if self._store is not None:
            for place in partitions:
                offset = await self._store.load(storedPartition(place))
                found[place] = None if offset is None else OffsetAndMetadata(int(offset))
            return found
        if partitions:
            groupId = self._groupId
            found.update(
                await self._cluster.attempt(
                    lambda: self._cluster.coordinators.ask(
                        CoordinatorKind.GROUP,
                        groupId,
                        lambda connection: self._fetch(connection, groupId, partitions),
                    ),
                    self._timeoutMs,
                    f"positions of group {groupId}",
                )
            )
        return found

    async def _fetch(
        self,
        connection: NegotiatedConnection,
        groupId: str,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        cls, key = messages.OffsetFetchRequest, ApiKey.OFFSET_FETCH
        body: Any = cls()
        names = byTopic(partitions)
        if connection.version(key, NAMED_VERSION) >= GROUPS_VERSION:
            part = cls.OffsetFetchRequestTopics
            topics = [part(name=name, partitionIndexes=some) for name, some in names.items()]
            body.groups = [cls.OffsetFetchRequestGroup(groupId=groupId, topics=topics)]
        else:
            part = cls.OffsetFetchRequestTopic
            body.groupId = groupId
            body.topics = [part(name=name, partitionIndexes=some) for name, some in names.items()]
        if connection.supports(key, STABLE_VERSION):
            body.requireStable = True
        answer = await connection.request(key, body, 0, NAMED_VERSION)
        [group] = answer.groups or [answer]
        checkCode(group.errorCode, f"positions of group {groupId}")
        found = {}
        for topic in group.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partitionIndex)
                checkCode(each.errorCode, f"position of {place}")
                if each.committedOffset >= 0:
                    found[place] = OffsetAndMetadata(
                        each.committedOffset, each.committedLeaderEpoch, each.metadata or ""
                    )
        return found
