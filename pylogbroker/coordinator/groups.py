"""
The coordinator of consumer groups, as a pure state machine: requests in; answers, records to append
and deadlines out. No Twisted, no sockets, no clock of its own: a module of its own, so that
simulations can drive it.

The caller

  - gives requests to the methods below, decoded. What can wait is answered through C{reply}, called
    once; a dropped connection ends no session, its C{reply} may be called all the same;
  - appends records when the coordinator calls C{append}, and calls back what it is given;
  - calls L{GroupCoordinator.advance} at L{GroupCoordinator.nextDeadlineMs};
  - reads the partitions of C{__consumer_offsets} at the start, and gives their records to
    L{GroupCoordinator.replay} between L{GroupCoordinator.beginLoading} and
    L{GroupCoordinator.loaded}. Meanwhile clients are told to try again.

C{append}, C{reply} and the call back of an append may call the coordinator again.

What must be true: no member is told an assignment, and no commit is acknowledged, before the record
is appended as an acknowledged write. An offset that a fetch has shown never goes back, except by a
later commit. A request of a member whose generation is over, or whose place was taken, changes
nothing. What the log has of a group's members is what memory had behind one step: no append is kept
if one before it was refused (L{GroupTable.store}).
Every rebalance ends: by joins, by its time-out, or by the ends of sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from random import Random

from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState
from pylogbroker.coordinator.committedoffsets import (
    CommittedOffsets,
    commitFailed,
    fetchFailed,
    tombstones,
)
from pylogbroker.coordinator.consumergroups import consumerrecords
from pylogbroker.coordinator.consumergroups.classicmembers import ClassicMembers
from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup
from pylogbroker.coordinator.consumergroups.consumermembership import ConsumerMembership
from pylogbroker.coordinator.effects import Append
from pylogbroker.coordinator.group import CLASSIC_KEY, CONSUMER_PROTOCOL_TYPE, Group
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatAnswer,
    DeletedGroup,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedMember,
    Heartbeat,
    HeartbeatAnswer,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    LeaveGroupAnswer,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroupsAnswer,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetDelete,
    OffsetDeleteAnswer,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
    SyncGroup,
    SyncGroupAnswer,
    TxnOffsetCommit,
)
from pylogbroker.coordinator.grouptable import GroupSettings, GroupTable
from pylogbroker.coordinator.membership import ClassicMembership
from pylogbroker.coordinator.offsetstopic import (
    OffsetCommitKey,
    StoredGroup,
    decodeCommittedOffset,
    decodeKey,
    decodeStoredGroup,
)
from pylogbroker.interfaces import NO_PRODUCER
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

NULLABLE_PROTOCOL_VERSION = 7
"""From here on JoinGroup can say that there is no protocol."""

SEVERAL_LEAVE_VERSION = 3
"""From here on LeaveGroup names several members."""

GROUP_NOT_FOUND_VERSION = 6
"""From here on DescribeGroups tells an unknown group from a dead one."""

DUE_COUNT_MAX = 1_000
"""Deadlines that one call of L{GroupCoordinator.advance} handles; the rest is due at once."""

EXPIRY_POSITION_COUNT_MAX = 5_000
"""About as many committed offsets are checked for expiry at a time."""

_EXPIRY_KEY = "expiry"


class GroupCoordinator:
    """The coordinator of the groups of a broker."""

    def __init__(
        self,
        settings: GroupSettings,
        append: Append,
        nowMs: Callable[[], int],
        random: Random,
        image: Callable[[], MetadataImage] = MetadataImage,
        isCurrent: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param settings: see there.
        @param append: appends to a partition of C{__consumer_offsets}, see L{Append}.
        @param nowMs: the time since 1970. If it jumps ahead, sessions end.
        @param random: for the ids of members, which must be hard to guess.
        @param image: the topics, for groups of KIP-848; see L{topicsChanged}.
        @param isCurrent: whether no other broker can have taken over the groups unnoticed. While
            one can, every request is refused.
        """
        self._isCurrent = isCurrent
        self._table = GroupTable(settings, append, nowMs)
        self._effects = self._table.effects
        self._membership = ClassicMembership(self._table, random)
        self._consumers = ConsumerMembership(self._table, random, image, self._membership)
        self._classicMembers = ClassicMembers(self._table, self._consumers, image)
        self._offsets = CommittedOffsets(self._table, self._membership)
        self._loading: set[int] = set()
        self._active: set[int] = set()
        self._expiring: deque[str] = deque()

    # -- membership

    def joinGroup(
        self,
        context: ClientContext,
        request: JoinGroup,
        reply: Callable[[JoinGroupAnswer], object],
    ) -> None:
        """JoinGroup, versions 0 to 9. Answered when the next generation begins, or at once."""
        if context.apiVersion < NULLABLE_PROTOCOL_VERSION:
            reply = partial(_withProtocolName, reply)
        error, memberId = self._joinError(request), request.memberId
        if error is ErrorCode.NONE:
            error, memberId = self._unavailable(request.groupId), ""
        if error is ErrorCode.NONE:
            group = self._table.groups.get(request.groupId)
            if isinstance(group, ConsumerGroup) and group.members:
                self._classicMembers.join(context, request, group, reply)
            else:
                self._membership.join(context, request, reply)
        else:
            self._effects.reply(reply, JoinGroupAnswer(error, memberId=memberId))
        self._effects.deliver()

    def _joinError(self, request: JoinGroup) -> ErrorCode:
        if not request.groupId:
            return ErrorCode.INVALID_GROUP_ID
        settings, askedMs = self._table.settings, request.sessionTimeoutMs
        isWithin = settings.sessionTimeoutMinMs <= askedMs <= settings.sessionTimeoutMaxMs
        return ErrorCode.NONE if isWithin else ErrorCode.INVALID_SESSION_TIMEOUT

    def syncGroup(
        self,
        context: ClientContext,
        request: SyncGroup,
        reply: Callable[[SyncGroupAnswer], object],
    ) -> None:
        """SyncGroup, versions 0 to 5. Answered when the leader's assignment is appended."""
        error = self._unavailable(request.groupId, mayBeEmpty=False)
        if error is ErrorCode.NONE:
            group = self._table.groups.get(request.groupId)
            if isinstance(group, ConsumerGroup):
                self._classicMembers.sync(context, request, group, reply)
            else:
                self._membership.sync(context, request, reply)
        else:
            self._effects.reply(reply, SyncGroupAnswer(error))
        self._effects.deliver()

    def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        """Heartbeat, versions 0 to 4. While the group is loaded, every heartbeat is good."""
        error = self._unavailable(request.groupId, mayBeEmpty=False)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatAnswer()
        if error is not ErrorCode.NONE:
            return HeartbeatAnswer(error)
        group = self._table.groups.get(request.groupId)
        if isinstance(group, ConsumerGroup):
            return self._classicMembers.heartbeat(request, group)
        return self._membership.heartbeat(request)

    def consumerGroupHeartbeat(
        self,
        context: ClientContext,
        request: ConsumerGroupHeartbeat,
        reply: Callable[[ConsumerGroupHeartbeatAnswer], object],
    ) -> None:
        """ConsumerGroupHeartbeat, versions 0 and 1. Answered when what it changes is appended."""
        error = self._unavailable(request.groupId)
        if error is ErrorCode.NONE:
            self._consumers.heartbeat(context, request, reply)
        else:
            self._effects.reply(reply, ConsumerGroupHeartbeatAnswer(error, error.message))
        self._effects.deliver()

    def topicsChanged(self) -> None:
        """Topics, or numbers of partitions, are others now."""
        self._consumers.topicsChanged()

    def leaveGroup(
        self,
        context: ClientContext,
        request: LeaveGroup,
        reply: Callable[[LeaveGroupAnswer], object],
    ) -> None:
        """LeaveGroup, versions 0 to 5. If it leaves the group empty, that is appended first."""
        isSingle = context.apiVersion < SEVERAL_LEAVE_VERSION
        group = self._table.groups.get(request.groupId)
        error = self._unavailable(request.groupId, mayBeEmpty=False)
        isDead = group is not None and group.stateName == ClassicGroupState.DEAD.value
        if error is ErrorCode.NONE and isDead:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            self._effects.reply(reply, LeaveGroupAnswer(error, []))
            self._effects.deliver()
            return
        leaving = [LeavingMember(request.memberId)] if isSingle else request.members
        if group is None:
            left = [
                LeftMember(each.memberId, each.groupInstanceId, ErrorCode.UNKNOWN_MEMBER_ID)
                for each in leaving
            ]
            appended = None
        elif isinstance(group, ConsumerGroup):
            left, appended = self._consumers.leaveClassic(group, leaving)
        else:
            assert isinstance(group, ClassicGroup)
            left, appended = self._membership.leave(group, leaving)
        answer = LeaveGroupAnswer(left[0].errorCode, []) if isSingle else LeaveGroupAnswer(0, left)
        if appended is None:
            self._effects.reply(reply, answer)
        else:
            appended.then(partial(self._left, reply, answer))
        self._effects.deliver()

    def _left(
        self,
        reply: Callable[[LeaveGroupAnswer], object],
        answer: LeaveGroupAnswer,
        error: ErrorCode,
    ) -> None:
        if error:
            answer = LeaveGroupAnswer(self._table.appendError(error), [])
        self._effects.reply(reply, answer)

    # -- committed offsets

    def offsetCommit(
        self,
        context: ClientContext,
        request: OffsetCommit | TxnOffsetCommit,
        reply: Callable[[OffsetCommitAnswer], object],
    ) -> None:
        """
        OffsetCommit, versions 2 to 10, or TxnOffsetCommit, versions 0 to 5. Answered when the
        offsets are appended; those of a transaction count when it is committed.
        """
        error = self._unavailable(request.groupId)
        if error is ErrorCode.NONE:
            self._offsets.commit(context, request, reply)
        else:
            self._effects.reply(reply, commitFailed(request, error))
        self._effects.deliver()

    def offsetFetch(
        self,
        context: ClientContext,
        request: OffsetFetchGroup,
        requireStable: bool,
        reply: Callable[[OffsetFetchGroupAnswer], object],
    ) -> None:
        """
        OffsetFetch, versions 1 to 10, of one group.

        @param requireStable: answer when the commits that have been received are appended.
        """
        error = self._unavailable(request.groupId)
        if error is ErrorCode.NONE:
            self._offsets.fetch(request, requireStable, reply)
        else:
            self._effects.reply(reply, fetchFailed(context, request, error))
        self._effects.deliver()

    def offsetDelete(
        self, request: OffsetDelete, reply: Callable[[OffsetDeleteAnswer], object]
    ) -> None:
        """OffsetDelete, version 0. Answered when the deletions are appended."""
        error = self._unavailable(request.groupId, mayBeEmpty=False)
        if error is ErrorCode.NONE:
            self._offsets.delete(request, reply)
        else:
            self._effects.reply(reply, OffsetDeleteAnswer(error))
        self._effects.deliver()

    def transactionEnded(self, partition: int, producerId: int, isCommit: bool) -> None:
        """A transaction's end marker was appended to a partition of C{__consumer_offsets}."""
        self._offsets.transactionEnded(partition, producerId, isCommit)
        self._effects.deliver()

    def partitionOf(self, groupId: str) -> int:
        """The partition of C{__consumer_offsets} that holds a group."""
        return self._table.partitionOf(groupId)

    def topicDeleted(self, topic: str, topicId: bytes) -> None:
        """A topic was deleted: delete its committed offsets."""
        self._offsets.topicDeleted(topic, topicId)
        self._effects.deliver()

    # -- administration

    def describeGroups(
        self, context: ClientContext, groupIds: Iterable[str]
    ) -> list[DescribedGroup]:
        """DescribeGroups, versions 0 to 6, without authorized operations."""
        return [self._described(context, groupId) for groupId in groupIds]

    def _described(self, context: ClientContext, groupId: str) -> DescribedGroup:
        error = self._unavailable(groupId)
        if error is not ErrorCode.NONE:
            return DescribedGroup(groupId, error)
        group = self._table.classic(groupId)
        if group is None:
            dead = DescribedGroup(groupId, groupState=ClassicGroupState.DEAD.value)
            if context.apiVersion < GROUP_NOT_FOUND_VERSION:
                return dead
            reason = "is not a classic group" if groupId in self._table.groups else "not found"
            return dead._replace(
                errorCode=ErrorCode.GROUP_ID_NOT_FOUND,
                errorMessage=f"Group {groupId} {reason}.",
            )
        isStable = group.state is ClassicGroupState.STABLE
        return DescribedGroup(
            groupId,
            groupState=group.state.value,
            protocolType=group.protocolType or "",
            protocolData=(group.protocolName or "") if isStable else "",
            members=[
                DescribedMember(
                    each.memberId,
                    each.groupInstanceId,
                    each.clientId,
                    each.clientHost,
                    each.metadata(group.protocolName) if isStable else b"",
                    each.assignment,
                )
                for each in group.members.values()
            ],
        )

    def describeConsumerGroups(self, groupIds: Iterable[str]) -> list[DescribedConsumerGroup]:
        """ConsumerGroupDescribe, versions 0 and 1, without authorized operations."""
        found = []
        for groupId in groupIds:
            error = self._unavailable(groupId, mayBeEmpty=False)
            found.append(
                DescribedConsumerGroup(groupId, error)
                if error
                else self._consumers.described(groupId)
            )
        return found

    def listGroups(
        self, statesFilter: Collection[str] = (), typesFilter: Collection[str] = ()
    ) -> ListGroupsAnswer:
        """
        ListGroups, versions 0 to 5.

        @param statesFilter: names of states in any case; none for all.
        @param typesFilter: names of types in any case; none for all.
        """
        if not self._isCurrent():
            return ListGroupsAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._loading:
            return ListGroupsAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {each.lower().strip() for each in statesFilter}
        types = {each.lower() for each in typesFilter}
        return ListGroupsAnswer(
            groups=[
                ListedGroup(group.groupId, _protocolType(group), group.stateName, group.typeName)
                for group in self._table.groups.values()
                if (not states or group.stateName.lower() in states)
                and (not types or group.typeName in types)
            ]
        )

    def deleteGroups(
        self, groupIds: Iterable[str], reply: Callable[[list[DeletedGroup]], object]
    ) -> None:
        """DeleteGroups, versions 0 to 2. Answered when all deletions are appended."""
        results = {groupId: self._deleteError(groupId) for groupId in groupIds}
        waiting = {groupId: None for groupId, error in results.items() if not error}

        def done(groupId: str, error: ErrorCode) -> None:
            results[groupId] = error
            del waiting[groupId]
            answer()

        def answer() -> None:
            if not waiting:
                deleted = [DeletedGroup(groupId, error) for groupId, error in results.items()]
                self._effects.reply(reply, deleted)

        if waiting:
            for groupId in list(waiting):
                self._delete(self._table.groups[groupId], partial(done, groupId))
        else:
            answer()
        self._effects.deliver()

    def _deleteError(self, groupId: str) -> ErrorCode:
        error = self._unavailable(groupId)
        if error is not ErrorCode.NONE:
            return error
        group = self._table.groups.get(groupId)
        if group is None or group.stateName == ClassicGroupState.DEAD.value:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.isEmpty else ErrorCode.NON_EMPTY_GROUP

    def _delete(self, group: Group, done: Callable[[ErrorCode], None]) -> None:
        """Delete an empty group with its offsets. Until that is appended, it is dead."""
        partitions = list(
            dict.fromkeys([*group.allOffsets(), *self._offsets.pending.ofGroup(group.groupId)])
        )

        def forget() -> None:
            for place in partitions:
                self._offsets.setOffset(group, *place, None)

        if isinstance(group, ConsumerGroup):
            self._consumers.delete(group, tombstones(group, partitions), forget, done)
            return
        assert isinstance(group, ClassicGroup)
        stateTimestampMs = group.stateTimestampMs
        group.transition(ClassicGroupState.DEAD, self._table.nowMs())

        def appended(error: ErrorCode) -> None:
            if self._table.has(group):
                if error:
                    group.transition(ClassicGroupState.EMPTY, stateTimestampMs)
                else:
                    forget()
                    self._membership.unload(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            done(self._table.appendError(error))

        group.changed(CLASSIC_KEY)
        self._table.store(group, lambda key: None, appended, tombstones(group, partitions))

    # -- the log

    def beginLoading(self, partition: int) -> None:
        """A partition of C{__consumer_offsets} is going to be read."""
        self._loading.add(partition)

    def isLoading(self, partition: int) -> bool:
        """Whether a partition is being read."""
        return partition in self._loading

    def replay(
        self, key: bytes, value: bytes | None, partition: int = 0, producerId: int = NO_PRODUCER
    ) -> bool:
        """
        A record was read.

        @param producerId: in whose transaction it was appended, to a partition; -1: in none. The
            caller gives the end of the transaction to L{transactionEnded}.
        @return: whether its kind is known. Those of other kinds of groups are not.
        @raise FormatError: the record is broken.
        """
        decoded = decodeKey(key)
        if decoded is None:
            return self._replayConsumer(key, value)
        groupId = decoded.groupId
        group = self._table.groups.get(groupId)
        if isinstance(decoded, OffsetCommitKey):
            committed = None if value is None else decodeCommittedOffset(value)
            if committed is not None and producerId != NO_PRODUCER:
                pending = self._offsets.pending
                pending.add(partition, producerId, decoded, committed)
                return True
            if group is None and committed is not None:
                group = self._table.create(groupId)
            if group is not None:
                group.setOffset(decoded.topic, decoded.partition, committed)
            self._offsets.pending.supersede(decoded)
        elif value is not None:
            stored = decodeStoredGroup(value)
            made = self._table.classic(groupId)
            if made is None:
                made = self._table.create(groupId)
            if isinstance(group, ConsumerGroup):
                self._consumers.forgetMembers(group)
                group.deleteRecords()
            made.restore(stored)
        elif isinstance(group, ClassicGroup):
            # The offsets may go on in a group of another kind; theirs are records of their own.
            group.restore(StoredGroup("", 0, None, None, -1))
            group.isStored = False
        return True

    def _replayConsumer(self, key: bytes, value: bytes | None) -> bool:
        """The same for a record of a group of KIP-848."""
        decoded = consumerrecords.decodeKey(key)
        if decoded is None:
            return False
        group = self._table.groups.get(decoded.groupId)
        isEnd = value is None and decoded.keyType == consumerrecords.EPOCH_KEY
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return True
            made = ConsumerGroup(
                decoded.groupId, self._table.partitionOf(decoded.groupId), self._table.totals
            )
            if group is None:
                self._table.add(made)
            else:
                assert isinstance(group, ClassicGroup)
                self._membership.vacate(group)
                self._table.replace(made)
            group = made
        if isEnd:
            self._consumers.forgetMembers(group)
            self._table.create(decoded.groupId)
        else:
            group.replay(decoded, value)
        return True

    def loaded(self, partition: int) -> None:
        """A partition was read to its end: its groups are served, their sessions begin."""
        self._loading.discard(partition)
        self._active.add(partition)
        for group in list(self._table.groups.values()):
            if group.partition == partition:
                if isinstance(group, ConsumerGroup):
                    self._consumers.loaded(group)
                elif group.isStored or group.offsets:
                    assert isinstance(group, ClassicGroup)
                    self._membership.loaded(group)
                else:
                    self._table.remove(group)
        if _EXPIRY_KEY not in self._table.deadlines:
            self._expectExpiry()
        self._effects.deliver()

    def unload(self, partition: int) -> None:
        """A partition is not to be served any more, since its log has failed."""
        self._loading.discard(partition)
        self._active.discard(partition)
        self._offsets.pending.unload(partition)
        for group in list(self._table.groups.values()):
            if group.partition != partition:
                continue
            if isinstance(group, ConsumerGroup):
                self._consumers.unload(group)
            else:
                assert isinstance(group, ClassicGroup)
                self._membership.unload(group, ErrorCode.NOT_COORDINATOR)
        self._effects.deliver()

    def _unavailable(self, groupId: str | None, mayBeEmpty: bool = True) -> ErrorCode:
        if groupId is None or not (groupId or mayBeEmpty):
            return ErrorCode.INVALID_GROUP_ID
        if not self._isCurrent():
            return ErrorCode.NOT_COORDINATOR
        partition = self._table.partitionOf(groupId)
        if partition in self._active:
            return ErrorCode.NONE
        isLoading = partition in self._loading
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isLoading else ErrorCode.NOT_COORDINATOR

    # -- time

    def nextDeadlineMs(self) -> int | None:
        """When L{advance} is to be called, at the latest; L{None} if nothing is due ever."""
        return self._table.deadlines.nextMs()

    def advance(self) -> None:
        """Do what is due: end sessions and rebalances, expire offsets."""
        nowMs = self._table.nowMs()
        for _ in range(DUE_COUNT_MAX):
            due = self._table.deadlines.takeDue(nowMs)
            if due is None:
                break
            due()
        self._effects.deliver()

    def _expectExpiry(self) -> None:
        dueMs = self._table.nowMs() + self._table.settings.offsetsRetentionCheckIntervalMs
        self._table.deadlines.set(_EXPIRY_KEY, dueMs, self._expire)

    def _expire(self) -> None:
        """Expire offsets, and groups that have neither members nor offsets; in steps."""
        nowMs = self._table.nowMs()
        if not self._expiring:
            self._expiring.extend(self._table.groups)
        count = 0
        while self._expiring and count < EXPIRY_POSITION_COUNT_MAX:
            group = self._table.groups.get(self._expiring.popleft())
            if group is not None:
                count += 1 + sum(map(len, group.offsets.values()))
                self._expireGroup(group, nowMs)
        if self._expiring:
            self._table.deadlines.set(_EXPIRY_KEY, nowMs + 1, self._expire)
        else:
            self._expectExpiry()

    def _expireGroup(self, group: Group, nowMs: int) -> None:
        expired = self._offsets.expired(group, nowMs)
        isIdle = group.isIdle
        isNothingLeft = len(expired) == sum(map(len, group.offsets.values()))
        isPending = group.pendingCommits or self._offsets.pending.ofGroup(group.groupId)
        if isIdle and isNothingLeft and not isPending:
            self._delete(group, lambda error: None)
        else:
            self._offsets.drop(group, expired)


def _protocolType(group: Group) -> str:
    if isinstance(group, ClassicGroup):
        return group.protocolType or ""
    return CONSUMER_PROTOCOL_TYPE


def _withProtocolName(reply: Callable[[JoinGroupAnswer], object], answer: JoinGroupAnswer) -> None:
    """Versions that know no null have an empty name instead."""
    reply(answer if answer.protocolName is not None else answer._replace(protocolName=""))
