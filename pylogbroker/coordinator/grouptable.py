"""
The groups of a coordinator with what their rules share: settings, limits, time, appends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pylogbroker.coordinator.classicgroup import ClassicGroup
from pylogbroker.coordinator.consumergroups.consumerrecords import ConsumerGroupKey
from pylogbroker.coordinator.effects import (
    Append,
    Appended,
    Deadlines,
    Effects,
    PendingAppend,
    Record,
    TransactionalProducer,
    appendError,
)
from pylogbroker.coordinator.group import (
    CLASSIC_KEY,
    Group,
    GroupLog,
    GroupRecords,
    GroupTotals,
)
from pylogbroker.coordinator.offsetstopic import (
    StoredGroup,
    encodeStoredGroup,
    partitionFor,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

APPEND_SIZE_MAX = 256 << 10
"""Bytes of records that have waited for the same append and are one append then."""

WAITING_SIZE_MAX = 64 << 20
"""Bytes of records that wait, each behind an append of its group; more are refused."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """
    Settings of a group coordinator. Those with a name in brackets are Kafka's, with its defaults;
    the others are limits that Kafka does not have, all for the whole coordinator but one.

    @ivar partitionCount: of C{__consumer_offsets} (C{offsets.topic.num.partitions}).
    @ivar sessionTimeoutMinMs: (C{group.min.session.timeout.ms}).
    @ivar sessionTimeoutMaxMs: (C{group.max.session.timeout.ms}).
    @ivar initialRebalanceDelayMs: how long a new group waits for more members, each time one comes
        (C{group.initial.rebalance.delay.ms}); 0 for not at all.
    @ivar newMemberJoinTimeoutMs: how long a member waits in its first join, at most; Kafka has no
        setting for it.
    @ivar groupMaxSize: members of a group (C{group.max.size}).
    @ivar offsetMetadataMaxSize: UTF-16 units of a committed offset's metadata
        (C{offset.metadata.max.bytes}).
    @ivar offsetsRetentionMs: how long offsets are kept after the group is empty, or after the
        commit if no group is managed (C{offsets.retention.minutes}).
    @ivar offsetsRetentionCheckIntervalMs: (C{offsets.retention.check.interval.ms}).
    @ivar groupCountMax: groups.
    @ivar memberCountMax: members, and ids that were given and not used yet.
    @ivar memberMetadataSizeMax: bytes that a single member tells about itself.
    @ivar metadataSizeMax: bytes that all members tell about themselves, and their assignments.
    @ivar offsetCountMax: committed offsets.
    @ivar consumerSessionTimeoutMs: of KIP-848's groups, like the next ones
        (C{group.consumer.session.timeout.ms}).
    @ivar consumerHeartbeatIntervalMs: (C{group.consumer.heartbeat.interval.ms}).
    @ivar consumerAssignmentIntervalMs: between two target assignments of a group
        (C{group.consumer.assignment.interval.ms}).
    @ivar consumerGroupMaxSize: members of a group (C{group.consumer.max.size}).
    @ivar consumerAssignors: the first is the default (C{group.consumer.assignors}).
    @ivar consumerRegexRefreshIntervalMs: after which patterns are matched again, since what their
        members may know of has perhaps changed (C{group.consumer.regex.refresh.interval.ms}).
    @ivar mayUpgrade: whether a classic group with members goes on as one of KIP-848 when a member
        of that protocol joins (C{group.consumer.migration.policy}, with the next one).
    @ivar mayDowngrade: whether it goes on as a classic group when the last such member goes.
    """

    partitionCount: int = 50
    sessionTimeoutMinMs: int = 6_000
    sessionTimeoutMaxMs: int = 1_800_000
    initialRebalanceDelayMs: int = 3_000
    newMemberJoinTimeoutMs: int = 300_000
    groupMaxSize: int = 2**31 - 1
    offsetMetadataMaxSize: int = 4_096
    offsetsRetentionMs: int = 7 * 24 * 3_600_000
    offsetsRetentionCheckIntervalMs: int = 600_000
    groupCountMax: int = 100_000
    memberCountMax: int = 100_000
    memberMetadataSizeMax: int = 1 << 20
    metadataSizeMax: int = 256 << 20
    offsetCountMax: int = 2_000_000
    consumerSessionTimeoutMs: int = 45_000
    consumerHeartbeatIntervalMs: int = 5_000
    consumerAssignmentIntervalMs: int = 1_000
    consumerGroupMaxSize: int = 2**31 - 1
    consumerAssignors: tuple[str, ...] = ("uniform", "range")
    consumerRegexRefreshIntervalMs: int = 600_000
    mayUpgrade: bool = True
    mayDowngrade: bool = True


class GroupTable:
    """
    The groups of a coordinator.

    @ivar groups: by id.
    @ivar totals: what all groups hold together.
    @ivar nowMs: the time since 1970.
    """

    def __init__(self, settings: GroupSettings, append: Append, nowMs: Callable[[], int]) -> None:
        self.settings = settings
        self.nowMs = nowMs
        self.effects = Effects(append)
        self.deadlines = Deadlines()
        self.groups: dict[str, Group] = {}
        self.totals = GroupTotals()
        self._waitingSize = 0

    @property
    def isFull(self) -> bool:
        """Whether there may be no more groups."""
        return len(self.groups) >= self.settings.groupCountMax

    def partitionOf(self, groupId: str) -> int:
        """The partition of C{__consumer_offsets} that holds a group."""
        return partitionFor(groupId, self.settings.partitionCount)

    def create(self, groupId: str) -> ClassicGroup:
        """Begin an empty group, perhaps in the place of one of another protocol."""
        made = ClassicGroup(groupId, self.partitionOf(groupId), self.nowMs(), self.totals)
        if groupId in self.groups:
            self.replace(made)
        else:
            self.add(made)
        return made

    def classic(self, groupId: str) -> ClassicGroup | None:
        """A group, if it is one of the classic protocol."""
        found = self.groups.get(groupId)
        return found if isinstance(found, ClassicGroup) else None

    def replace(self, made: Group) -> None:
        """A group goes on with another protocol; its offsets stay."""
        before = self.groups[made.groupId]
        made.succeed(before)
        self.groups[made.groupId] = made

    def add(self, made: Group) -> None:
        """A new group is there."""
        self.groups[made.groupId] = made

    def has(self, group: Group) -> bool:
        """Whether this very group is there, not another one of its name."""
        return self.groups.get(group.groupId) is group

    def hasOffsetsOf(self, group: Group) -> bool:
        """Whether this group is there, perhaps with another protocol by now."""
        found = self.groups.get(group.groupId)
        return found is not None and found.offsets is group.offsets

    def remove(self, group: Group) -> None:
        """Forget a group that has no deadlines."""
        del self.groups[group.groupId]
        group.forgotten()

    # -- appends

    def appendOffsets(
        self,
        group: Group,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Append committed offsets of a group, perhaps in a transaction, or their deletion."""
        group.lastCommit = self.effects.append(group.partition, records, done, producer)

    def store(
        self,
        group: Group,
        valueOf: Callable[[ConsumerGroupKey], bytes | None],
        done: Appended,
        deletedOffsets: Sequence[Record] = (),
    ) -> PendingAppend:
        """
        Append what has changed of a group, so that the log has it as it is now. One append of a
        group is under way at a time, and what changes meanwhile is the next one. If an append is
        refused, so is what waits behind it, since the log would have that without what it rests on.
        Then all of it counts as changed again.

        @param valueOf: the value of a record; L{None}: it is deleted.
        @param done: called with the outcome.
        @param deletedOffsets: records that delete committed offsets.
        """
        group.isStored = True
        log = group.log
        taken = log.take(valueOf, done, deletedOffsets)
        if log.appending and self._waitingSize + taken.size > WAITING_SIZE_MAX:
            log.refused([taken])
            self.effects.reply(taken.outcome.completed, ErrorCode.REQUEST_TIMED_OUT)
        else:
            log.waiting.append(taken)
            self._waitingSize += taken.size
            self._storeNext(group.partition, log)
        return taken.outcome

    def _storeNext(self, partition: int, log: GroupLog) -> None:
        if log.waiting and not log.appending:
            taken = log.takeWaiting(APPEND_SIZE_MAX)
            self._waitingSize -= sum(each.size for each in taken)
            records = [record for each in taken for record in each.records]
            self.effects.append(partition, records, partial(self._stored, partition, log))

    def _stored(self, partition: int, log: GroupLog, error: ErrorCode) -> None:
        done, log.appending = log.appending, ()
        behind: list[GroupRecords] = []
        if error:
            behind.extend(log.waiting)
            log.waiting.clear()
            self._waitingSize -= sum(each.size for each in behind)
            log.refused([*done, *behind])
        self._storeNext(partition, log)
        for each in done:
            each.outcome.completed(error)
        for each in behind:
            each.outcome.completed(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def storeGroup(
        self,
        group: ClassicGroup,
        assignments: Mapping[str, bytes],
        done: Appended,
    ) -> PendingAppend:
        """Append the generation of a group, with the assignments of its members."""
        return self._storeClassic(group, group.stored(assignments), done)

    def storeNew(self, group: ClassicGroup, done: Appended) -> PendingAppend:
        """Append that a group exists, whatever has become of it meanwhile."""
        stored = StoredGroup("", 0, None, None, group.stateTimestampMs)
        return self._storeClassic(group, stored, done)

    def _storeClassic(
        self, group: ClassicGroup, stored: StoredGroup, done: Appended
    ) -> PendingAppend:
        value = encodeStoredGroup(stored)
        group.changed(CLASSIC_KEY)
        return self.store(group, lambda key: value if key.keyType == CLASSIC_KEY else None, done)

    def whenStored(self, group: Group, callback: Callable[[], None]) -> None:
        """Call back when what has changed of a group is appended; at once if nothing has."""
        _whenDone(group.log.last, callback)

    def whenCommitted(self, group: Group, callback: Callable[[], None]) -> None:
        """Call back when no committed offset is being appended; at once if none is."""
        _whenDone(group.lastCommit, callback)

    def appendError(self, error: ErrorCode) -> ErrorCode:
        """What a client is told when an append fails."""
        return appendError(error)


def _whenDone(last: PendingAppend | None, callback: Callable[[], None]) -> None:
    if last is None or last.isDone:
        callback()
    else:
        last.then(lambda error: callback())
