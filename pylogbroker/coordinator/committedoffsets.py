"""
Committed offsets of groups: commit, fetch, delete, expire. A module of its own so that its rules
can be read beside Kafka's, apart from membership.

An offset is there when its record is appended: a fetch never shows one that a crash takes back. A
client that asks for stable offsets waits until the appends that have begun are done. Kafka's Java
client always does; a new owner then begins where the last acknowledged commit, and any later one
that was accepted, has left off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState
from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup
from pylogbroker.coordinator.effects import Record, TransactionalProducer
from pylogbroker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group
from pylogbroker.coordinator.groupmessages import (
    UNKNOWN_MEMBER_ID,
    ClientContext,
    CommitPartition,
    FetchedPartition,
    FetchedTopic,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetDelete,
    OffsetDeleteAnswer,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
    OffsetFetchTopic,
    PartitionResult,
    TopicResults,
    TxnOffsetCommit,
)
from pylogbroker.coordinator.grouptable import GroupTable
from pylogbroker.coordinator.membership import ClassicMembership
from pylogbroker.coordinator.offsetstopic import (
    CommittedOffset,
    OffsetCommitKey,
    encodeCommittedOffset,
    encodeOffsetCommitKey,
)
from pylogbroker.coordinator.pendingoffsets import PendingOffsets
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID

TOP_LEVEL_ERROR_VERSION = 2
"""From here on OffsetFetch has an error code for all partitions."""

GROUPS_VERSION = 8
"""From here on OffsetFetch may ask about several groups."""

GROUP_NOT_FOUND_VERSION = 9
"""From here on a commit of a member of an unknown group is told so."""

EPOCH_COMMIT_VERSION = 9
"""From here on OffsetCommit has the epoch of a member."""

DEFAULT_RETENTION_MS = -1
TIME_MAX_MS = 2**63 - 1
_METADATA_BYTES_MAX = 0x7FFF
"""What the record of a commit with an expiry time of its own can hold."""

_MANAGED = (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE)

_Commits = list[tuple[str, int, CommittedOffset]]


class CommittedOffsets:
    """
    The committed offsets of all groups of a coordinator.

    @ivar pending: those in transactions that are not ended.
    """

    def __init__(self, table: GroupTable, membership: ClassicMembership) -> None:
        """
        @param table: the groups.
        @param membership: is told of members that show that they live.
        """
        self._table = table
        self._membership = membership
        self._effects = table.effects
        self._settings = table.settings
        self.pending = PendingOffsets()

    # -- commit

    def commit(
        self,
        context: ClientContext,
        request: OffsetCommit | TxnOffsetCommit,
        reply: Callable[[OffsetCommitAnswer], object],
    ) -> None:
        """
        OffsetCommit or TxnOffsetCommit. A topic has both its name and its id, if it has one.
        """
        group = self._table.groups.get(request.groupId)
        error = self._commitError(context, request, group)
        if error is not ErrorCode.NONE:
            self._effects.reply(reply, commitFailed(request, error))
            return
        if (
            isinstance(group, ClassicGroup)
            and request.memberId in group.members
            and group.state in _MANAGED
        ):
            self._membership.rescheduleHeartbeat(group, request.memberId)
        commits, answer = self._commits(request, group)
        if not commits:
            self._effects.reply(reply, answer)
            return
        if group is None:
            group = self._table.create(request.groupId)
        records: list[Record] = []
        for topic, partition, committed in commits:
            group.pendingCommits[topic, partition] += 1
            key = encodeOffsetCommitKey(group.groupId, topic, partition)
            records.append((key, encodeCommittedOffset(committed)))
        done = partial(self._committed, group, commits, request, answer, reply)
        producer = None
        if isinstance(request, TxnOffsetCommit):
            producer = TransactionalProducer(request.producerId, request.producerEpoch)
        self._table.appendOffsets(group, records, done, producer)

    def _commitError(
        self,
        context: ClientContext,
        request: OffsetCommit | TxnOffsetCommit,
        group: Group | None,
    ) -> ErrorCode:
        generation = request.generationIdOrMemberEpoch
        isTransactional = isinstance(request, TxnOffsetCommit)
        if isinstance(group, ConsumerGroup):
            if group.isDeleting:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isTransactional and _namesNobody(request):
                return ErrorCode.NONE
            places = [
                (topic.topicId, each.partitionIndex)
                for topic in request.topics
                for each in topic.partitions
            ]
            hasEpochs = isTransactional or context.apiVersion >= EPOCH_COMMIT_VERSION
            return group.commitError(hasEpochs, request.memberId, generation, places)
        assert group is None or isinstance(group, ClassicGroup)
        if group is None:
            if generation < 0:
                isFull = self._table.isFull
                return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if isFull else ErrorCode.NONE
            isNew = context.apiVersion >= GROUP_NOT_FOUND_VERSION and not isTransactional
            return ErrorCode.GROUP_ID_NOT_FOUND if isNew else ErrorCode.ILLEGAL_GENERATION
        if group.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and group.state is ClassicGroupState.EMPTY:
            return ErrorCode.NONE
        memberId, instanceId = request.memberId, request.groupInstanceId
        if generation < 0 and memberId == UNKNOWN_MEMBER_ID and instanceId is None:
            return ErrorCode.NONE if isTransactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = group.memberError(memberId, instanceId)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        isCompleting = group.state is ClassicGroupState.COMPLETING_REBALANCE
        isRefused = isCompleting and not isTransactional
        return ErrorCode.REBALANCE_IN_PROGRESS if isRefused else ErrorCode.NONE

    def _commits(
        self, request: OffsetCommit | TxnOffsetCommit, group: Group | None
    ) -> tuple[_Commits, OffsetCommitAnswer]:
        """What can be committed, and the answer if that is appended."""
        nowMs = self._table.nowMs()
        expireTimestampMs = -1
        if request.retentionTimeMs != DEFAULT_RETENTION_MS:
            expireTimestampMs = min(max(nowMs + request.retentionTimeMs, 0), TIME_MAX_MS)
        held = self._table.totals.offsetCount + self.pending.count
        room = self._settings.offsetCountMax - held
        commits: _Commits = []
        topics = []
        for topic in request.topics:
            results = []
            for each in topic.partitions:
                error = ErrorCode.NONE
                isKnown = group is not None and group.hasOffset(topic.name, each.partitionIndex)
                if self._isMetadataTooLarge(each):
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                elif not isKnown and room <= 0:
                    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                else:
                    room -= not isKnown
                    committed = CommittedOffset(
                        each.committedOffset,
                        each.committedLeaderEpoch,
                        each.committedMetadata or "",
                        nowMs,
                        expireTimestampMs,
                        topic.topicId,
                    )
                    commits.append((topic.name, each.partitionIndex, committed))
                results.append(PartitionResult(each.partitionIndex, error))
            topics.append(TopicResults(topic.name, results, topic.topicId))
        return commits, OffsetCommitAnswer(topics)

    def _isMetadataTooLarge(self, partition: CommitPartition) -> bool:
        metadata = partition.committedMetadata
        if not metadata:
            return False
        size = len(metadata.encode("utf-16-le", "surrogatepass")) // 2
        return (
            size > self._settings.offsetMetadataMaxSize
            or len(metadata.encode()) > _METADATA_BYTES_MAX
        )

    def _committed(
        self,
        group: Group,
        commits: _Commits,
        request: OffsetCommit | TxnOffsetCommit,
        answer: OffsetCommitAnswer,
        reply: Callable[[OffsetCommitAnswer], object],
        error: ErrorCode,
    ) -> None:
        isHere = self._table.hasOffsetsOf(group)
        for topic, partition, committed in commits:
            group.pendingCommits[topic, partition] -= 1
            if not group.pendingCommits[topic, partition]:
                del group.pendingCommits[topic, partition]
            if error or not isHere:
                continue
            if isinstance(request, TxnOffsetCommit):
                key = OffsetCommitKey(group.groupId, topic, partition)
                self.pending.add(group.partition, request.producerId, key, committed)
            else:
                self.setOffset(group, topic, partition, committed)
        if error:
            self._dropIfNothing(group)
            answer = commitFailed(request, self._table.appendError(error))
        self._effects.reply(reply, answer)

    def setOffset(
        self, group: Group, topic: str, partition: int, committed: CommittedOffset | None
    ) -> None:
        """An offset was appended outside of transactions, or its deletion."""
        group.setOffset(topic, partition, committed)
        self.pending.supersede(OffsetCommitKey(group.groupId, topic, partition))

    def transactionEnded(self, offsetsPartition: int, producerId: int, isCommit: bool) -> None:
        """The end marker of a transaction was appended to a partition of the offsets topic."""
        for key, committed in self.pending.end(offsetsPartition, producerId):
            if isCommit and committed is not None:
                group = self._table.groups.get(key.groupId) or self._table.create(key.groupId)
                group.setOffset(key.topic, key.partition, committed)

    def _dropIfNothing(self, group: Group) -> None:
        """A group that a failed commit has begun, and that no member has joined, is not there."""
        if (
            self._table.has(group)
            and not group.isStored
            and group.isIdle
            and not group.offsets
            and not group.pendingCommits
        ):
            self._table.remove(group)

    # -- fetch

    def fetch(
        self,
        request: OffsetFetchGroup,
        requireStable: bool,
        reply: Callable[[OffsetFetchGroupAnswer], object],
    ) -> None:
        """
        OffsetFetch of one group.

        @param requireStable: wait for commits that are being appended.
        """
        group = self._table.groups.get(request.groupId)
        if isinstance(group, ConsumerGroup):
            error = group.fetchError(request.memberId, request.memberEpoch)
            if error:
                failed = OffsetFetchGroupAnswer(request.groupId, errorCode=error)
                self._effects.reply(reply, failed)
                return

        def answer() -> None:
            self._effects.reply(reply, self._fetched(request, group, requireStable))

        if group is None or not requireStable:
            answer()
        else:
            self._table.whenCommitted(group, answer)

    def _fetched(
        self, request: OffsetFetchGroup, group: Group | None, requireStable: bool
    ) -> OffsetFetchGroupAnswer:
        offsets = {} if group is None else group.offsets
        if request.topics is None:
            topics = [
                FetchedTopic(topic, [_fetched(*each) for each in partitions.items()])
                for topic, partitions in offsets.items()
            ]
        else:
            topics = [_fetchedTopic(topic, offsets.get(topic.name, {})) for topic in request.topics]
        if requireStable and self.pending.ofGroup(request.groupId):
            topics = [self._stable(request.groupId, topic) for topic in topics]
        return OffsetFetchGroupAnswer(request.groupId, topics)

    def _stable(self, groupId: str, topic: FetchedTopic) -> FetchedTopic:
        """Without offsets that a transaction may change."""
        return topic._replace(
            partitions=[
                FetchedPartition(each.partitionIndex, errorCode=ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if self.pending.isPending(groupId, topic.name, each.partitionIndex)
                else each
                for each in topic.partitions
            ]
        )

    # -- delete

    def delete(self, request: OffsetDelete, reply: Callable[[OffsetDeleteAnswer], object]) -> None:
        """OffsetDelete, for a group id that is not empty."""
        group = self._table.groups.get(request.groupId)
        if group is None or group.stateName == ClassicGroupState.DEAD.value:
            self._effects.reply(reply, OffsetDeleteAnswer(ErrorCode.GROUP_ID_NOT_FOUND))
            return
        isConsumers = (
            not isinstance(group, ClassicGroup) or group.protocolType == CONSUMER_PROTOCOL_TYPE
        )
        if not group.isEmpty and not isConsumers:
            self._effects.reply(reply, OffsetDeleteAnswer(ErrorCode.NON_EMPTY_GROUP))
            return
        deleted: list[tuple[str, int]] = []
        topics = []
        for topic in request.topics:
            error = ErrorCode.NONE
            if group.isSubscribedTo(topic.name):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                deleted += [
                    (topic.name, each.partitionIndex)
                    for each in topic.partitions
                    if group.hasOffset(topic.name, each.partitionIndex)
                ]
            results = [PartitionResult(each.partitionIndex, error) for each in topic.partitions]
            topics.append(TopicResults(topic.name, results))
        answer = OffsetDeleteAnswer(topics=topics)

        def done(error: ErrorCode) -> None:
            self._effects.reply(reply, OffsetDeleteAnswer(error) if error else answer)

        self.drop(group, deleted, done)

    def drop(
        self,
        group: Group,
        partitions: Sequence[tuple[str, int]],
        done: Callable[[ErrorCode], None] = lambda error: None,
    ) -> None:
        """
        Delete offsets.

        @param partitions: topics and partitions.
        @param done: called when that is appended, or with an error; at once if there is nothing.
        """
        if not partitions:
            done(ErrorCode.NONE)
            return

        def appended(error: ErrorCode) -> None:
            if not error and self._table.hasOffsetsOf(group):
                for topic, partition in partitions:
                    self.setOffset(group, topic, partition, None)
            done(self._table.appendError(error))

        self._table.appendOffsets(group, tombstones(group, partitions), appended)

    def topicDeleted(self, topic: str, topicId: bytes) -> None:
        """A topic is gone: its offsets go, too, but not those of another topic of its name."""
        for group in list(self._table.groups.values()):
            gone = [
                (topic, partition)
                for partition, committed in group.offsets.get(topic, {}).items()
                if committed.topicId in (ZERO_UUID, topicId)
            ]
            self.drop(group, gone)
        for key in self.pending.ofTopic(topic, topicId):
            pendingGroup = self._table.groups.get(key.groupId) or self._table.create(key.groupId)
            self.drop(pendingGroup, [(topic, key.partition)])

    # -- expiry

    def expired(self, group: Group, nowMs: int) -> list[tuple[str, int]]:
        """Topics and partitions whose offsets have expired."""
        if not isinstance(group, ClassicGroup) or group.protocolType is None:
            # No generation is managed: each commit ages by itself.
            baseMs = -1
        elif group.state is ClassicGroupState.EMPTY:
            baseMs = group.stateTimestampMs
        elif group.state is ClassicGroupState.STABLE and group.subscribedTopics is not None:
            # Topics without a subscriber.
            baseMs = -1
        else:
            return []
        retentionMs = self._settings.offsetsRetentionMs
        return [
            (topic, partition)
            for topic, partitions in group.offsets.items()
            if not group.isSubscribedTo(topic)
            for partition, committed in partitions.items()
            if (topic, partition) not in group.pendingCommits
            and not self.pending.isPending(group.groupId, topic, partition)
            and _isExpired(committed, baseMs, retentionMs, nowMs)
        ]


def _namesNobody(request: OffsetCommit | TxnOffsetCommit) -> bool:
    """A producer need not tell in whose name it commits."""
    return (
        request.generationIdOrMemberEpoch == -1
        and request.memberId == UNKNOWN_MEMBER_ID
        and request.groupInstanceId is None
    )


def tombstones(group: Group, partitions: Sequence[tuple[str, int]]) -> list[Record]:
    """The records that delete offsets."""
    return [
        (encodeOffsetCommitKey(group.groupId, topic, partition), None)
        for topic, partition in partitions
    ]


def commitFailed(request: OffsetCommit | TxnOffsetCommit, error: ErrorCode) -> OffsetCommitAnswer:
    """The same error for each partition."""
    return OffsetCommitAnswer(
        [
            TopicResults(
                topic.name,
                [PartitionResult(each.partitionIndex, error) for each in topic.partitions],
                topic.topicId,
            )
            for topic in request.topics
        ]
    )


def fetchFailed(
    context: ClientContext, request: OffsetFetchGroup, error: ErrorCode
) -> OffsetFetchGroupAnswer:
    """
    An error for the group. Before version 8, also for each partition: version 1 has no other place,
    and aiokafka (0.14) looks nowhere else. Without an error there, it takes the group for one
    without positions and reads everything again, wherever a coordinator moves. (Apache's brokers
    have it only for the group from version 2 on.)
    """
    code = error if context.apiVersion >= TOP_LEVEL_ERROR_VERSION else ErrorCode.NONE
    if context.apiVersion >= GROUPS_VERSION:
        return OffsetFetchGroupAnswer(request.groupId, errorCode=code)
    return OffsetFetchGroupAnswer(
        request.groupId,
        [
            FetchedTopic(
                topic.name,
                [FetchedPartition(each, errorCode=error) for each in topic.partitionIndexes],
                topic.topicId,
            )
            for topic in request.topics or ()
        ],
        code,
    )


def _fetchedTopic(topic: OffsetFetchTopic, offsets: dict[int, CommittedOffset]) -> FetchedTopic:
    fetched = []
    for partition in topic.partitionIndexes:
        committed = offsets.get(partition)
        storedId = ZERO_UUID if committed is None else committed.topicId
        # Offsets of a deleted topic do not belong to a new one of its name.
        isOther = storedId != topic.topicId and ZERO_UUID not in (storedId, topic.topicId)
        fetched.append(
            FetchedPartition(partition)
            if committed is None or isOther
            else _fetched(partition, committed)
        )
    return FetchedTopic(topic.name, fetched, topic.topicId)


def _fetched(partition: int, committed: CommittedOffset) -> FetchedPartition:
    return FetchedPartition(partition, committed.offset, committed.leaderEpoch, committed.metadata)


def _isExpired(committed: CommittedOffset, baseMs: int, retentionMs: int, nowMs: int) -> bool:
    if committed.expireTimestampMs != -1:
        return nowMs >= committed.expireTimestampMs
    sinceMs = committed.commitTimestampMs if baseMs == -1 else baseMs
    return nowMs - sinceMs >= retentionMs
