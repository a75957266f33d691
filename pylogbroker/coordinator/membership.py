"""
Who is a member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what happens
when a member is silent. A module of its own so that its rules can be read beside Kafka's, apart
from committed offsets.

The rules are those of Apache Kafka 4.3's classic groups. Deviations, all for requests that no
client sends: a second join or sync of a member, while the first one waits, has the first one
answered with "rebalance in progress" (Kafka never answers it); a second sync of a leader, while its
assignment is being appended, does not replace the assignment (in Kafka, log and memory may then
differ).

A new generation is not in the log until its leader has assigned. What a member was told is never
ahead of the log: assignments are given out when the record that holds them is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from uuid import UUID

from pylogbroker.coordinator.classicgroup import (
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
)
from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup
from pylogbroker.coordinator.effects import PendingAppend
from pylogbroker.coordinator.groupmessages import (
    UNKNOWN_MEMBER_ID,
    ClientContext,
    Heartbeat,
    HeartbeatAnswer,
    JoinedMember,
    JoinGroup,
    JoinGroupAnswer,
    JoinProtocol,
    LeavingMember,
    LeftMember,
    SyncGroup,
    SyncGroupAnswer,
    protocolsSize,
)
from pylogbroker.coordinator.grouptable import GroupTable
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

JoinReply = Callable[[JoinGroupAnswer], object]
SyncReply = Callable[[SyncGroupAnswer], object]

REQUIRED_MEMBER_ID_VERSION = 4
"""From here on a dynamic member gets an id first, and joins with it."""

SKIPPED_ASSIGNMENT_VERSION = 9
"""From here on a static leader that comes back is told that it need not assign."""

REQUIRED_PROTOCOL_VERSION = 5
"""From here on a sync has to name the protocol."""

STATIC_REJOIN_WAIT_MIN_MS = 100
"""How long to wait at least when no static member has joined in time; Kafka may wait not at all."""

ID_PREFIX_LENGTH_MAX = 8_000
"""Characters of a client id or instance id in a member id, which has to fit 32,767 bytes."""

_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = ClassicGroupState


class ClassicMembership:
    """The members of all classic groups of a coordinator."""

    def __init__(self, table: GroupTable, random: Random) -> None:
        """
        @param table: the groups.
        @param random: for member ids.
        """
        self._table = table
        self._effects = table.effects
        self._settings = table.settings
        self._random = random

    # -- join

    def join(self, context: ClientContext, request: JoinGroup, reply: JoinReply) -> None:
        """JoinGroup, for a group id that is not empty and a session time-out within bounds."""
        memberId = request.memberId
        isUnknown = memberId == UNKNOWN_MEMBER_ID
        found = self._table.groups.get(request.groupId)
        group = self._table.classic(request.groupId)
        isNew = group is None
        if found is not None and group is None and not found.isEmpty:
            self._refuseJoin(reply, ErrorCode.COORDINATOR_NOT_AVAILABLE)  # is being deleted
            return
        if isNew and not isUnknown:
            self._refuseJoin(reply, ErrorCode.UNKNOWN_MEMBER_ID, memberId)
            return
        if self._isAboveLimits(group, request):
            self._refuseJoin(reply, ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        if group is None:
            group = self._table.create(request.groupId)
        if isinstance(found, ConsumerGroup):
            found.deleteRecords()
        appended = None
        if not self._accepts(group, memberId):
            self._removeMember(group, memberId, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._refuseJoin(reply, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif group.state is _DEAD:
            self._refuseJoin(reply, ErrorCode.COORDINATOR_NOT_AVAILABLE, memberId)
        elif not group.supports(request.protocolType, request.protocols):
            self._refuseJoin(reply, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, memberId)
        elif isUnknown:
            appended = self._joinNew(context, request, group, reply)
        else:
            appended = self._joinExisting(context, request, group, reply)
        if isinstance(found, ConsumerGroup):
            # If this fails, the record of the first generation puts an end to the group before.
            self._table.storeNew(group, lambda error: None)
        elif isNew and appended is None:
            self._table.storeNew(group, partial(self._newGroupAppended, group))

    def _isAboveLimits(self, group: ClassicGroup | None, request: JoinGroup) -> bool:
        size = protocolsSize(request.protocols)
        totals, settings = self._table.totals, self._settings
        if size > settings.memberMetadataSizeMax:
            return True
        if totals.metadataSize + size > settings.metadataSizeMax:
            return True
        if group is None:
            return self._table.isFull or totals.memberCount >= settings.memberCountMax
        isKnown = request.memberId in group.members or request.memberId in group.pendingMembers
        return not isKnown and totals.memberCount >= settings.memberCountMax

    def _accepts(self, group: ClassicGroup, memberId: str) -> bool:
        """Whether C{group.max.size} admits a member, as Kafka counts it in each state."""
        member = group.members.get(memberId)
        if group.state in (_EMPTY, _DEAD):
            return True
        if group.state is _PREPARING:
            isAwaiting = member is not None and member.joinReply is not None
            return isAwaiting or group.awaitingJoinCount < self._settings.groupMaxSize
        return member is not None or len(group.members) < self._settings.groupMaxSize

    def _joinNew(
        self, context: ClientContext, request: JoinGroup, group: ClassicGroup, reply: JoinReply
    ) -> PendingAppend | None:
        instanceId = request.groupInstanceId
        memberId = self._makeMemberId(context.clientId if instanceId is None else instanceId)
        if instanceId is None and context.apiVersion >= REQUIRED_MEMBER_ID_VERSION:
            group.addPending(memberId)
            self._expectHeartbeat(group, memberId, request.sessionTimeoutMs)
            self._refuseJoin(reply, ErrorCode.MEMBER_ID_REQUIRED, memberId)
            return None
        if instanceId is not None and instanceId in group.staticMembers:
            return self._replaceStatic(context, request, group, instanceId, memberId, reply)
        return self._addMember(context, request, group, memberId, reply)

    def _joinExisting(
        self, context: ClientContext, request: JoinGroup, group: ClassicGroup, reply: JoinReply
    ) -> PendingAppend | None:
        memberId = request.memberId
        if memberId in group.pendingMembers:
            if request.groupInstanceId is not None:
                self._refuseJoin(reply, ErrorCode.UNKNOWN_SERVER_ERROR)
                return None
            return self._addMember(context, request, group, memberId, reply)
        error = group.memberError(memberId, request.groupInstanceId)
        if error is not ErrorCode.NONE:
            self._refuseJoin(reply, error, memberId)
            return None
        member = group.members[memberId]
        isLeader = group.leaderId == memberId
        isSame = withoutDuplicates(request) == member.protocols
        if isSame and (group.state is _COMPLETING or (group.state is _STABLE and not isLeader)):
            # It has not got the answer to its last join: the generation is still the one.
            members = group.joinedMembers() if isLeader else []
            self.rescheduleHeartbeat(group, memberId)
            self._effects.reply(reply, self._joined(group, member, members))
            return None
        self._updateMember(context, group, member, request, reply)
        return self._rebalanceOrComplete(group)

    def _addMember(
        self,
        context: ClientContext,
        request: JoinGroup,
        group: ClassicGroup,
        memberId: str,
        reply: JoinReply,
    ) -> PendingAppend | None:
        member = ClassicMember(
            memberId,
            request.groupInstanceId,
            context.clientId,
            context.clientHost,
            rebalanceTimeoutMs(context, request),
            request.sessionTimeoutMs,
            request.protocolType,
            withoutDuplicates(request),
            isNew=True,
        )
        if group.state is _PREPARING and group.previousState is _EMPTY:
            group.isMemberAdded = True
        group.add(member)
        group.awaitJoin(member, reply)
        # A client that disconnects while it waits tries again with another id. So that such dead
        # members do not pile up, a new one is dropped after a while even though it waits.
        self._expectHeartbeat(group, memberId, self._settings.newMemberJoinTimeoutMs)
        return self._rebalanceOrComplete(group)

    def _updateMember(
        self,
        context: ClientContext,
        group: ClassicGroup,
        member: ClassicMember,
        request: JoinGroup,
        reply: JoinReply,
    ) -> None:
        def change(member: ClassicMember) -> None:
            member.protocols = withoutDuplicates(request)
            member.rebalanceTimeoutMs = rebalanceTimeoutMs(context, request)
            member.sessionTimeoutMs = request.sessionTimeoutMs

        group.update(member, change)
        self._answerJoin(
            group,
            member,
            JoinGroupAnswer(ErrorCode.REBALANCE_IN_PROGRESS, memberId=member.memberId),
        )
        group.awaitJoin(member, reply)

    def _replaceStatic(
        self,
        context: ClientContext,
        request: JoinGroup,
        group: ClassicGroup,
        instanceId: str,
        memberId: str,
        reply: JoinReply,
    ) -> PendingAppend | None:
        """Another process with the same instance: the old one is fenced at once."""
        leaderId = group.leaderId
        old = group.members[group.staticMembers[instanceId]]
        self._fence(group, old)
        self._table.deadlines.cancel(_sessionKey(group, old.memberId))
        new = group.replaceStatic(instanceId, memberId)
        self._updateMember(context, group, new, request, reply)
        self._expectHeartbeat(group, memberId, new.sessionTimeoutMs)
        if group.state is _COMPLETING:
            # The leader assigns to the old id.
            return self._prepareRebalance(group)
        if group.state is not _STABLE:
            return self._completeIfAllJoined(group)
        if group.selectProtocol() != group.protocolName:
            return self._rebalanceOrComplete(group)
        # Nothing changes for the others: store the new id and go on.
        return self._table.storeGroup(
            group,
            {each.memberId: each.assignment for each in group.members.values()},
            partial(self._staticReplaced, context, group, new, leaderId),
        )

    def _staticReplaced(
        self,
        context: ClientContext,
        group: ClassicGroup,
        new: ClassicMember,
        oldLeaderId: str | None,
        error: ErrorCode,
    ) -> None:
        if group.members.get(new.memberId) is not new or new.joinReply is None:
            return
        # Its session may have ended while it waited, which then did not count.
        self.rescheduleHeartbeat(group, new.memberId)
        if error:
            answer = JoinGroupAnswer(self._appendError(error), memberId=UNKNOWN_MEMBER_ID)
            self._answerJoin(group, new, answer)
            if group.state is _STABLE:
                # The log has another id than memory: the next generation will be in both.
                self._prepareRebalance(group)
            return
        if group.state is not _STABLE:
            # A rebalance has begun meanwhile, which the waiting join takes part in.
            return
        isLeader = group.leaderId == new.memberId
        if context.apiVersion >= SKIPPED_ASSIGNMENT_VERSION:
            members = group.joinedMembers() if isLeader else []
            answer = self._joined(group, new, members)._replace(skipAssignment=isLeader)
        else:
            # Shown as a follower, it does not assign.
            answer = self._joined(group, new, [])._replace(leader=oldLeaderId or "")
        self._answerJoin(group, new, answer)

    def _newGroupAppended(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Without its first record a group does not exist."""
        if error and not group.generation and self._table.has(group):
            self.unload(group, self._appendError(error))

    def _makeMemberId(self, prefix: str) -> str:
        made = UUID(int=self._random.getrandbits(128), version=4)
        return f"{prefix[:ID_PREFIX_LENGTH_MAX]}-{made}"

    def _refuseJoin(
        self, reply: JoinReply, error: ErrorCode, memberId: str = UNKNOWN_MEMBER_ID
    ) -> None:
        self._effects.reply(reply, JoinGroupAnswer(error, memberId=memberId))

    def _joined(
        self, group: ClassicGroup, member: ClassicMember, members: list[JoinedMember]
    ) -> JoinGroupAnswer:
        return JoinGroupAnswer(
            ErrorCode.NONE,
            group.generation,
            group.protocolType,
            group.protocolName,
            group.leaderId or "",
            False,
            member.memberId,
            members,
        )

    def _answerJoin(
        self, group: ClassicGroup, member: ClassicMember, answer: JoinGroupAnswer
    ) -> None:
        reply = group.takeJoinReply(member)
        if reply is not None:
            self._effects.reply(reply, answer)

    def _answerSync(self, member: ClassicMember, answer: SyncGroupAnswer) -> bool:
        reply, member.syncReply = member.syncReply, None
        if reply is not None:
            self._effects.reply(reply, answer)
        return reply is not None

    def _fence(self, group: ClassicGroup, member: ClassicMember) -> None:
        error = ErrorCode.FENCED_INSTANCE_ID
        self._answerJoin(group, member, JoinGroupAnswer(error, memberId=member.memberId))
        self._answerSync(member, SyncGroupAnswer(error))

    # -- the join phase

    def _rebalanceOrComplete(self, group: ClassicGroup) -> PendingAppend | None:
        if group.canRebalance:
            return self._prepareRebalance(group)
        return self._completeIfAllJoined(group)

    def _prepareRebalance(self, group: ClassicGroup) -> PendingAppend | None:
        if group.state is _COMPLETING:
            self._resetAssignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pendingSyncs.clear()
        self._table.deadlines.cancel(_syncKey(group))
        isInitial = group.state is _EMPTY
        group.transition(_PREPARING, self._table.nowMs())
        if not isInitial:
            if group.haveAllJoined:
                return self._completeJoin(group)
            self._expectJoins(group)
            return None
        group.isMemberAdded = False
        delayMs = self._settings.initialRebalanceDelayMs
        remainingMs = max(group.rebalanceTimeoutMs - delayMs, 0)
        if not delayMs:
            return self._completeJoin(group)
        self._delayInitial(group, delayMs, remainingMs)
        return None

    def _delayInitial(self, group: ClassicGroup, delayMs: int, remainingMs: int) -> None:
        """Members of a new group tend to come one after the other."""
        self._table.deadlines.set(
            _joinKey(group),
            self._table.nowMs() + delayMs,
            partial(self._initialDelayOver, group, delayMs, remainingMs),
        )

    def _initialDelayOver(self, group: ClassicGroup, delayMs: int, remainingMs: int) -> None:
        if group.isMemberAdded and remainingMs:
            group.isMemberAdded = False
            nextMs = min(self._settings.initialRebalanceDelayMs, remainingMs)
            self._delayInitial(group, nextMs, max(remainingMs - delayMs, 0))
        else:
            self._completeJoin(group)

    def _expectJoins(self, group: ClassicGroup, waitMinMs: int = 0) -> None:
        dueMs = self._table.nowMs() + max(group.rebalanceTimeoutMs, waitMinMs)
        self._table.deadlines.set(_joinKey(group), dueMs, partial(self._completeJoin, group))

    def _completeIfAllJoined(self, group: ClassicGroup) -> PendingAppend | None:
        isInitial = group.previousState is _EMPTY
        if group.state is _PREPARING and not isInitial and group.haveAllJoined:
            return self._completeJoin(group)
        return None

    def _completeJoin(self, group: ClassicGroup) -> PendingAppend | None:
        """The next generation begins, without the dynamic members that have not joined."""
        self._table.deadlines.cancel(_joinKey(group))
        for member in list(group.members.values()):
            if member.joinReply is None and member.groupInstanceId is None:
                self._removeMember(group, member.memberId, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.members and not group.electJoined():
            # Static members only, none of which has joined: until their sessions end.
            self._expectJoins(group, STATIC_REJOIN_WAIT_MIN_MS)
            return None
        group.beginGeneration(self._table.nowMs())
        if not group.members:
            return self._table.storeGroup(group, {}, lambda error: None)
        for member in group.members.values():
            isLeader = member.memberId == group.leaderId
            members = group.joinedMembers() if isLeader else []
            self._answerJoin(group, member, self._joined(group, member, members))
            self._expectHeartbeat(group, member.memberId, member.sessionTimeoutMs)
            member.isNew = False
            group.pendingSyncs.add(member.memberId)
        self._table.deadlines.set(
            _syncKey(group),
            self._table.nowMs() + group.rebalanceTimeoutMs,
            partial(self._syncsOverdue, group),
        )
        return None

    # -- sync

    def sync(self, context: ClientContext, request: SyncGroup, reply: SyncReply) -> None:
        """SyncGroup, for a group id that is not empty."""
        group = self._table.classic(request.groupId)
        error = self._syncError(context, request, group)
        if error is not ErrorCode.NONE or group is None:
            self._effects.reply(reply, SyncGroupAnswer(error))
            return
        member = group.members[request.memberId]
        self._synced(group, member)
        if group.state is _STABLE:
            # The log may lack the assignments still, if the group was one of KIP-848 until now.
            answer = partial(self._answerStable, group, member, group.generation, reply)
            self._table.whenStored(group, answer)
            return
        self._answerSync(member, SyncGroupAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.syncReply = reply
        if group.leaderId == member.memberId and not group.isAssigning:
            self._assign(group, request)

    def _answerStable(
        self, group: ClassicGroup, member: ClassicMember, generation: int, reply: SyncReply
    ) -> None:
        isStable = group.state is _STABLE and group.generation == generation
        if isStable and group.members.get(member.memberId) is member:
            self._effects.reply(reply, self._assigned(group, member))
        else:
            self._effects.reply(reply, SyncGroupAnswer(ErrorCode.REBALANCE_IN_PROGRESS))

    def _syncError(
        self, context: ClientContext, request: SyncGroup, group: ClassicGroup | None
    ) -> ErrorCode:
        asked = (request.protocolType, request.protocolName)
        if context.apiVersion >= REQUIRED_PROTOCOL_VERSION and None in asked:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group is None or group.state is _EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is _DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.memberError(request.memberId, request.groupInstanceId)
        if error is not ErrorCode.NONE:
            return error
        if request.generationId != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        for wanted, own in zip(asked, (group.protocolType, group.protocolName), strict=True):
            if wanted is not None and own is not None and wanted != own:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        isPreparing = group.state is _PREPARING
        return ErrorCode.REBALANCE_IN_PROGRESS if isPreparing else ErrorCode.NONE

    def _assign(self, group: ClassicGroup, request: SyncGroup) -> None:
        given = {each.memberId: each.assignment for each in request.assignments}
        assignments = {memberId: given.get(memberId, b"") for memberId in group.members}
        if (
            self._table.totals.metadataSize + sum(map(len, assignments.values()))
            > self._settings.metadataSizeMax
        ):
            self._resetAssignments(group, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._rebalanceOrComplete(group)
            return
        group.isAssigning = True
        self._table.storeGroup(
            group,
            assignments,
            partial(self._assignmentAppended, group, assignments, group.generation),
        )

    def _assignmentAppended(
        self, group: ClassicGroup, assignments: dict[str, bytes], generation: int, error: ErrorCode
    ) -> None:
        if group.state is not _COMPLETING or group.generation != generation:
            return
        group.isAssigning = False
        if error:
            self._resetAssignments(group, self._appendError(error))
            self._rebalanceOrComplete(group)
            return
        for member in group.members.values():
            group.update(member, partial(_assignTo, assignments[member.memberId]))
        group.transition(_STABLE, self._table.nowMs())
        for member in group.members.values():
            if self._answerSync(member, self._assigned(group, member)):
                self._expectHeartbeat(group, member.memberId, member.sessionTimeoutMs)

    def _assigned(self, group: ClassicGroup, member: ClassicMember) -> SyncGroupAnswer:
        return SyncGroupAnswer(
            ErrorCode.NONE, group.protocolType, group.protocolName, member.assignment
        )

    def _resetAssignments(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Members that wait for an assignment shall join again."""
        for member in group.members.values():
            group.update(member, partial(_assignTo, b""))
            if self._answerSync(member, SyncGroupAnswer(error)):
                self._expectHeartbeat(group, member.memberId, member.sessionTimeoutMs)

    def _synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        group.pendingSyncs.discard(member.memberId)
        if not group.pendingSyncs:
            self._table.deadlines.cancel(_syncKey(group))

    def _syncsOverdue(self, group: ClassicGroup) -> None:
        """Members that did not ask for their assignment in time are removed."""
        for memberId in list(group.pendingSyncs):
            self._removeMember(group, memberId, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepareRebalance(group)

    # -- heartbeats and sessions

    def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        """Heartbeat, for a group id that is not empty."""
        group = self._table.classic(request.groupId)
        if group is None:
            return HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is _DEAD:
            return HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        error = group.memberError(request.memberId, request.groupInstanceId)
        if error is not ErrorCode.NONE:
            return HeartbeatAnswer(error)
        if request.generationId != group.generation:
            return HeartbeatAnswer(ErrorCode.ILLEGAL_GENERATION)
        self.rescheduleHeartbeat(group, request.memberId)
        isPreparing = group.state is _PREPARING
        return HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS if isPreparing else ErrorCode.NONE)

    def rescheduleHeartbeat(self, group: ClassicGroup, memberId: str) -> None:
        """A member has sent something: its session begins anew."""
        self._expectHeartbeat(group, memberId, group.members[memberId].sessionTimeoutMs)

    def _expectHeartbeat(self, group: ClassicGroup, memberId: str, timeoutMs: int) -> None:
        self._table.deadlines.set(
            _sessionKey(group, memberId),
            self._table.nowMs() + timeoutMs,
            partial(self._sessionOver, group, memberId),
        )

    def _sessionOver(self, group: ClassicGroup, memberId: str) -> None:
        if memberId in group.pendingMembers:
            group.dropPending(memberId)
            if group.state is _PREPARING and group.haveAllJoined:
                self._completeJoin(group)
            return
        member = group.members[memberId]
        if not member.isNew and (member.joinReply is not None or member.syncReply is not None):
            # It waits for us. Its session begins anew when it gets its answer.
            return
        self._removeMember(group, memberId, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is _PREPARING:
            if group.haveAllJoined:
                self._completeJoin(group)
        else:
            self._rebalanceOrComplete(group)

    def _removeMember(self, group: ClassicGroup, memberId: str, error: ErrorCode) -> None:
        """
        A member, or an id that was given, is no more. What it waits for is answered; a client that
        lives joins again.
        """
        self._table.deadlines.cancel(_sessionKey(group, memberId))
        member = group.members.get(memberId)
        if member is not None:
            self._answerJoin(group, member, JoinGroupAnswer(error, memberId=UNKNOWN_MEMBER_ID))
            self._answerSync(member, SyncGroupAnswer(error))
        group.remove(memberId)

    # -- leave

    def leave(
        self, group: ClassicGroup, leaving: Sequence[LeavingMember]
    ) -> tuple[list[LeftMember], PendingAppend | None]:
        """
        LeaveGroup, for a group that is not dead.

        @return: what became of each, and what has to be appended before that is true.
        """
        left = [self._leaveOne(group, member) for member in leaving]
        appended = None
        if any(not each.errorCode for each in left):
            if group.state in (_STABLE, _COMPLETING):
                appended = self._rebalanceOrComplete(group)
            elif group.state is _PREPARING:
                appended = self._completeIfAllJoined(group)
        return left, appended

    def _leaveOne(self, group: ClassicGroup, leaving: LeavingMember) -> LeftMember:
        memberId: str | None = leaving.memberId
        error = ErrorCode.NONE
        if memberId == UNKNOWN_MEMBER_ID:
            # An administrator names a static member by its instance.
            memberId = group.staticMembers.get(leaving.groupInstanceId or "")
            if memberId is None or leaving.groupInstanceId is None:
                error = ErrorCode.UNKNOWN_MEMBER_ID
        elif memberId not in group.pendingMembers:
            error = group.memberError(leaving.memberId, leaving.groupInstanceId)
        if error is ErrorCode.NONE and memberId is not None:
            self._removeMember(group, memberId, ErrorCode.UNKNOWN_MEMBER_ID)
        return LeftMember(leaving.memberId, leaving.groupInstanceId, error)

    # -- the log

    def loaded(self, group: ClassicGroup) -> None:
        """A group was read from the log: its members' sessions begin."""
        for member in group.members.values():
            self._expectHeartbeat(group, member.memberId, member.sessionTimeoutMs)
        if group.mustRebalance or len(group.members) > self._settings.groupMaxSize:
            self._prepareRebalance(group)

    def unload(self, group: ClassicGroup, error: ErrorCode) -> None:
        """The group is not here any more. Members that wait are answered with an error."""
        self.vacate(group, error)
        group.transition(_DEAD, self._table.nowMs())
        self._table.remove(group)

    def succeeded(self, group: ClassicGroup) -> None:
        """The members go on in a group of KIP-848: those that wait shall join again."""
        error = ErrorCode.REBALANCE_IN_PROGRESS
        for member in group.members.values():
            self._answerJoin(group, member, JoinGroupAnswer(error, memberId=member.memberId))
            self._answerSync(member, SyncGroupAnswer(error))
        self.vacate(group)
        group.transition(_DEAD, self._table.nowMs())  # whatever becomes of its last append

    def takeOver(self, group: ClassicGroup, isRebalancing: bool) -> PendingAppend:
        """
        A group goes on with the classic protocol alone. If this append fails, the record of the
        next generation puts an end to the group before.

        @param isRebalancing: whether its members have to join again in any case.
        """
        self._table.replace(group)
        group.mustRebalance = isRebalancing
        assignments = {each.memberId: each.assignment for each in group.members.values()}
        stored = self._table.storeGroup(group, assignments, partial(self._takenOver, group))
        self.loaded(group)
        return stored

    def _takenOver(self, group: ClassicGroup, error: ErrorCode) -> None:
        if error and group.state is _STABLE and self._table.has(group):
            self._prepareRebalance(group)

    def vacate(self, group: ClassicGroup, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Forget members, and ids that were given."""
        self._table.deadlines.cancel(_joinKey(group))
        self._table.deadlines.cancel(_syncKey(group))
        for memberId in [*group.members, *group.pendingMembers]:
            self._removeMember(group, memberId, error)

    def _appendError(self, error: ErrorCode) -> ErrorCode:
        return self._table.appendError(error)


def _assignTo(assignment: bytes, member: ClassicMember) -> None:
    member.assignment = assignment


def rebalanceTimeoutMs(context: ClientContext, request: JoinGroup) -> int:
    """Version 0 knows one time-out for both."""
    return request.sessionTimeoutMs if not context.apiVersion else request.rebalanceTimeoutMs


def withoutDuplicates(request: JoinGroup) -> tuple[JoinProtocol, ...]:
    """The protocols of a request in its order, each name once."""
    byName: dict[str, JoinProtocol] = {}
    for each in request.protocols:
        byName.setdefault(each.name, JoinProtocol(each.name, bytes(each.metadata)))
    return tuple(byName.values())


def _sessionKey(group: ClassicGroup, memberId: str) -> tuple[str, str, str]:
    return "session", group.groupId, memberId


def _joinKey(group: ClassicGroup) -> tuple[str, str]:
    return "join", group.groupId


def _syncKey(group: ClassicGroup) -> tuple[str, str]:
    return "sync", group.groupId
