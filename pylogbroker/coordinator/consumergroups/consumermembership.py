"""
Who is a member of a group of KIP-848, and what it may own: ConsumerGroupHeartbeat, and what happens
when a member is silent or does not give up what it has to. A module of its own, since its rules are
to be read beside Kafka's, apart from those of classic groups.

The rules are those of Apache Kafka 4.3. A classic group with members goes on as one of these when a
member of this protocol joins, and back when the last one goes. Meanwhile it has members of both
protocols; what those of the classic one may ask for is decided in
L{pylogbroker.coordinator.consumergroups.classicmembers}.

What a member is told is in the log. A step changes memory at once and appends what has changed; its
answer waits for that. If an append fails, what it held is appended with the next step, and no
member is answered before (L{GroupTable.store}).

A pattern is matched with the topics behind the answer to the heartbeat that brought it, as Kafka
does: the member learns of its partitions with a later one.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TypeVar
from uuid import UUID

from pylogbroker.cluster.metadataimage import MetadataImage, TopicImage
from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState
from pylogbroker.coordinator.consumergroups.assignors import ASSIGNORS, AssignedMember
from pylogbroker.coordinator.consumergroups.consumergroup import (
    AWAY_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Owned,
    ResolvedPattern,
)
from pylogbroker.coordinator.consumergroups.groupmigration import (
    UserDataError,
    downgraded,
    upgraded,
)
from pylogbroker.coordinator.consumergroups.topicregex import checkPattern, matchingTopics
from pylogbroker.coordinator.effects import PendingAppend, Record
from pylogbroker.coordinator.group import CLASSIC_KEY, CONSUMER_PROTOCOL_TYPE, Group
from pylogbroker.coordinator.groupconfigs import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
)
from pylogbroker.coordinator.groupmessages import (
    UNKNOWN_MEMBER_ID,
    ClientContext,
    ConsumerAssignment,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatAnswer,
    ConsumerPartitions,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    LeavingMember,
    LeftMember,
    NamedPartitions,
)
from pylogbroker.coordinator.grouptable import GroupTable
from pylogbroker.coordinator.membership import ClassicMembership
from pylogbroker.errors import FormatError, InvalidPatternError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

A = TypeVar("A")

HeartbeatReply = Callable[[ConsumerGroupHeartbeatAnswer], object]

_Outcome = tuple[PendingAppend | None, ConsumerGroupHeartbeatAnswer]
"""What has to be appended before the answer is true, and the answer."""

MEMBER_ID_VERSION = 1
"""From here on a member makes its own id."""

NAME_SIZE_MAX = 0x7FFF
"""Bytes of what becomes part of a key: ids and patterns."""

PATTERN_REFRESH_MS = 10_000
"""A group's patterns are matched with new topics after this time at the earliest."""


class RefusedRequestError(Exception):
    """
    A request is answered with an error.

    @ivar code: the error.
    @ivar text: for the client, where the answer has a place for it.
    """

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class ConsumerMembership:
    """The members of all groups of KIP-848 of a coordinator."""

    def __init__(
        self,
        table: GroupTable,
        random: Random,
        image: Callable[[], MetadataImage],
        classic: ClassicMembership,
    ) -> None:
        """
        @param table: the groups.
        @param random: for member ids.
        @param image: the topics, and the settings of groups.
        @param classic: the members of classic groups.
        """
        self._table = table
        self._effects = table.effects
        self._settings = table.settings
        self._random = random
        self._image = image
        self._classic = classic
        self._topicsVersion = 0

    def topicsChanged(self) -> None:
        """Groups look at the topics again, each with the next heartbeat of a member."""
        self._topicsVersion += 1

    # -- heartbeat

    def heartbeat(
        self, context: ClientContext, request: ConsumerGroupHeartbeat, reply: HeartbeatReply
    ) -> None:
        """ConsumerGroupHeartbeat. Answered when what has changed is appended."""
        try:
            self._check(context, request)
            if request.memberEpoch < 0:
                pending, answer = self._leave(request)
            else:
                pending, answer = self._beat(context, request)
        except RefusedRequestError as refused:
            answer = ConsumerGroupHeartbeatAnswer(refused.code, refused.text)
            self._effects.reply(reply, answer)
            return
        self.replyWhenStored(
            pending,
            reply,
            answer,
            lambda code: ConsumerGroupHeartbeatAnswer(code, code.message),
        )

    def replyWhenStored(
        self,
        pending: PendingAppend | None,
        reply: Callable[[A], object],
        answer: A,
        refused: Callable[[ErrorCode], A],
    ) -> None:
        """
        Answer a request when what the answer tells is appended.

        @param pending: the last append of the group's records, if there is any.
        @param refused: the answer if it has failed.
        """
        if pending is None or pending.isDone:
            self._effects.reply(reply, answer)
        else:
            pending.then(partial(self._stored, reply, answer, refused))

    def _stored(
        self,
        reply: Callable[[A], object],
        answer: A,
        refused: Callable[[ErrorCode], A],
        error: ErrorCode,
    ) -> None:
        code = self._table.appendError(error)
        self._effects.reply(reply, refused(code) if code else answer)

    def store(self, group: ConsumerGroup) -> PendingAppend | None:
        """
        Append what has changed.

        @return: the last append of the group's records, if there is any.
        """
        if group.log.changed:
            self._table.store(group, group.valueOf, lambda error: None)
        return group.log.last

    def _check(self, context: ClientContext, request: ConsumerGroupHeartbeat) -> None:
        """What is wrong with a request by itself."""
        isEmpty = [
            text
            for value, text in (
                (request.groupId, "GroupId can't be empty."),
                (request.instanceId, "InstanceId can't be empty."),
                (request.rackId, "RackId can't be empty."),
            )
            if value == ""
        ]
        hasNoTopics = request.subscribedTopicNames is None and request.subscribedTopicRegex is None
        text = None
        if not request.memberId and (
            request.memberEpoch or context.apiVersion >= MEMBER_ID_VERSION
        ):
            text = "MemberId can't be empty."
        elif isEmpty:
            text = isEmpty[0]
        elif not request.memberEpoch and request.rebalanceTimeoutMs == -1:
            text = "RebalanceTimeoutMs must be provided in first request."
        elif not request.memberEpoch and (
            request.topicPartitions is None or request.topicPartitions
        ):
            text = "TopicPartitions must be empty when (re-)joining."
        elif not request.memberEpoch and hasNoTopics:
            text = (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining."
            )
        elif request.memberEpoch == AWAY_EPOCH and request.instanceId is None:
            text = "InstanceId can't be null."
        elif request.memberEpoch < AWAY_EPOCH:
            text = "MemberEpoch is invalid."
        elif _isTooLong(request):
            text = f"An id or a pattern has more than {NAME_SIZE_MAX} bytes."
        if text is not None:
            raise RefusedRequestError(ErrorCode.INVALID_REQUEST, text)
        assignor = request.serverAssignor
        if assignor is not None and assignor not in self._settings.consumerAssignors:
            raise RefusedRequestError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {assignor} is not supported. Supported assignors:"
                f" {', '.join(self._settings.consumerAssignors)}.",
            )

    # -- join and go on

    def _beat(self, context: ClientContext, request: ConsumerGroupHeartbeat) -> _Outcome:
        found = self._table.groups.get(request.groupId)
        group = self._groupFor(request, found)
        before, replaced = self._memberFor(group, request)
        memberId = request.memberId or self.makeMemberId()
        known = before or ConsumerMember(memberId)
        updated = _updated(context, request, replace(known, memberId=memberId))
        self.admit(group, found, before, known, updated)
        if found is not group:
            self._begin(group, found)
        if replaced is not None:
            self.replaceStatic(group, replaced, memberId)
        owned = _owned(request)
        after = self.advance(context, group, known, updated, owned)
        if known.classic is not None:
            self.synced(group, after)
        isFull = (
            request.rebalanceTimeoutMs != -1
            and request.topicPartitions is not None
            and not (request.subscribedTopicNames is None and request.subscribedTopicRegex is None)
        )
        isTold = not request.memberEpoch or isFull or _places(known) != _places(after)
        answer = ConsumerGroupHeartbeatAnswer(
            memberId=memberId,
            memberEpoch=after.epoch,
            heartbeatIntervalMs=self._configured(
                group, HEARTBEAT_INTERVAL, self._settings.consumerHeartbeatIntervalMs
            ),
            assignment=_assignmentOf(after) if isTold else None,
        )
        return self.store(group), answer

    def advance(
        self,
        context: ClientContext,
        group: ConsumerGroup,
        known: ConsumerMember,
        updated: ConsumerMember,
        owned: Mapping[bytes, Collection[int]] | None,
    ) -> ConsumerMember:
        """
        Have a member take one step towards the target assignment; its session begins anew.

        @param known: the member as it was; C{updated}: with what it tells now.
        @param owned: what it says it owns; L{None} if it does not say.
        @return: the member as it is now.
        """
        group.put(updated)
        isSubscriptionChanged = self._subscribed(context, group, known, updated)
        self._assignIfDue(group)
        after = group.reconciled(updated, owned, isSubscriptionChanged, self._image())
        group.put(after)
        self.expectHeartbeat(group, after.memberId)
        self._expectRevocation(group, updated, after)
        return after

    def _groupFor(self, request: ConsumerGroupHeartbeat, found: Group | None) -> ConsumerGroup:
        """The group, which is perhaps a new one without a record."""
        groupId = request.groupId
        if isinstance(found, ConsumerGroup):
            if found.isDeleting:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                raise RefusedRequestError(code, code.message)
            return found
        if request.memberEpoch:
            text = (
                f"Consumer group {groupId} not found."
                if found is None
                else f"Group {groupId} is not a consumer group."
            )
            raise RefusedRequestError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if isinstance(found, ClassicGroup) and found.state is ClassicGroupState.DEAD:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise RefusedRequestError(code, code.message)
        if isinstance(found, ClassicGroup) and not found.isEmpty:
            return self._upgraded(found)
        return ConsumerGroup(groupId, self._table.partitionOf(groupId), self._table.totals)

    def _upgraded(self, found: ClassicGroup) -> ConsumerGroup:
        """A group of KIP-848 in the place of a classic one, if the member is admitted."""
        reason = None
        if not self._settings.mayUpgrade:
            reason = "online upgrade is disabled."
        elif found.protocolType != CONSUMER_PROTOCOL_TYPE:
            reason = "the group does not use the consumer embedded protocol."
        elif len(found.members) > self._settings.consumerGroupMaxSize:
            reason = "the group size exceeds the consumer group maximum size."
        else:
            try:
                return upgraded(found, self._image())
            except UserDataError:
                reason = (
                    "an unsupported custom assignor is in use. Please refer to the documentation or"
                    " switch to a default assignor before re-attempting the upgrade."
                )
            except FormatError:
                reason = "the embedded consumer protocol is malformed."
        raise RefusedRequestError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {found.groupId} to consumer group because {reason}",
        )

    def _memberFor(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeat
    ) -> tuple[ConsumerMember | None, ConsumerMember | None]:
        """The member, if it is there; and the one whose place it takes, whose state it has."""
        memberId, instanceId = request.memberId, request.instanceId
        member = group.members.get(memberId)
        if instanceId is None:
            if member is None and request.memberEpoch:
                raise self._unknown(group, memberId)
        else:
            static = group.members.get(group.staticMembers.get(instanceId, ""))
            if not request.memberEpoch:
                if static is not None and (
                    static.epoch == AWAY_EPOCH
                    or (static.classic is not None and static.memberId != memberId)
                ):
                    back = replace(static, epoch=0, previousEpoch=0)
                    return back, static
                if static is not None and static.memberId != memberId:
                    raise RefusedRequestError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {memberId} with instance id {instanceId} cannot join the"
                        f" group because the instance id is owned by {static.memberId} member.",
                    )
            else:
                member = self.static(group, memberId, instanceId)
        if member is not None and request.memberEpoch:
            _checkEpoch(member, request.memberEpoch, _owned(request))
        return member, None

    def _unknown(self, group: ConsumerGroup, memberId: str) -> RefusedRequestError:
        return RefusedRequestError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {memberId} is not a member of group {group.groupId}.",
        )

    def static(self, group: ConsumerGroup, memberId: str, instanceId: str) -> ConsumerMember:
        """@raise RefusedRequestError: the member does not have the instance."""
        current = group.staticMembers.get(instanceId)
        if current is None:
            raise RefusedRequestError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instanceId} is unknown."
            )
        if current != memberId:
            raise RefusedRequestError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {memberId} with instance id {instanceId} was fenced by member"
                f" {current}.",
            )
        return group.members[memberId]

    def admit(
        self,
        group: ConsumerGroup,
        found: Group | None,
        before: ConsumerMember | None,
        known: ConsumerMember,
        updated: ConsumerMember,
    ) -> None:
        """
        Limits, and the pattern.

        @param found: the group, if it is there.
        @param before: the member, or the one whose place it takes, if there is one.
        @param known: what was known of it; C{updated}: what is now.
        @raise RefusedRequestError: it cannot be a member like that.
        """
        settings, totals = self._settings, self._table.totals
        text = None
        if before is None and len(group.members) >= settings.consumerGroupMaxSize:
            text = (
                "The consumer group has reached its maximum capacity of"
                f" {settings.consumerGroupMaxSize} members."
            )
        elif (found is None and self._table.isFull) or (
            before is None and totals.memberCount >= settings.memberCountMax
        ):
            text = "The coordinator has as many groups or members as it may have."
        elif updated.metadataSize > settings.memberMetadataSizeMax or (
            totals.metadataSize + updated.metadataSize > settings.metadataSizeMax
        ):
            text = "The subscription is too large."
        if text is not None:
            raise RefusedRequestError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        if updated.pattern and updated.pattern != known.pattern:
            try:
                checkPattern(updated.pattern)
            except InvalidPatternError as error:
                raise RefusedRequestError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{updated.pattern}` is not a valid regular expression:"
                    f" {error}.",
                ) from error

    def _begin(self, group: ConsumerGroup, found: Group | None) -> None:
        """The group is there from now on, perhaps in the place of a classic one."""
        if found is None:
            self._table.add(group)
            return
        assert isinstance(found, ClassicGroup)
        self._classic.succeeded(found)
        self._table.replace(group)
        group.countIn(self._table.totals)
        for memberId in group.members:
            self.expectHeartbeat(group, memberId)
        if found.isStored:
            group.changed(CLASSIC_KEY)

    def replaceStatic(self, group: ConsumerGroup, old: ConsumerMember, memberId: str) -> None:
        """Another process takes the place of a static member that has gone."""
        self._forget(group, old.memberId)
        target = group.target.get(old.memberId)
        group.remove(old.memberId)
        if target is not None:
            group.setTarget(memberId, target)

    def makeMemberId(self) -> str:
        """An id that cannot be guessed."""
        made = self._random.getrandbits(128).to_bytes(16, "big")
        return urlsafe_b64encode(made).decode().rstrip("=")

    # -- topics

    def _subscribed(
        self,
        context: ClientContext,
        group: ConsumerGroup,
        known: ConsumerMember,
        updated: ConsumerMember,
    ) -> bool:
        """
        Look at the topics of the group.

        @return: whether the member subscribes to other ones than before.
        """
        isBumped = known.topics != updated.topics
        isPatternNew = known.pattern != updated.pattern
        if isPatternNew:
            isBumped |= not group.patterns.keys().isdisjoint((known.pattern, updated.pattern))
            group.dropPattern(known.pattern)
        if updated.pattern and updated.pattern not in group.patterns:
            self._expectPatterns(context, group)
        elif group.patterns:
            lastMs = max(each.madeMs for each in group.patterns.values())
            intervalMs = self._settings.consumerRegexRefreshIntervalMs
            if group.patternsVersion != self._topicsVersion:
                intervalMs = PATTERN_REFRESH_MS
            if self._table.nowMs() - lastMs >= intervalMs:
                self._expectPatterns(context, group)
        if isBumped or group.topicsVersion != self._topicsVersion:
            isBumped |= self._isHashNew(group)
        if isBumped:
            group.bump()
        return known.topics != updated.topics or isPatternNew

    def _isHashNew(self, group: ConsumerGroup) -> bool:
        group.topicsVersion = self._topicsVersion
        before, group.metadataHash = group.metadataHash, group.hashOf(self._image())
        return before != group.metadataHash

    def _expectPatterns(self, context: ClientContext, group: ConsumerGroup) -> None:
        self._table.deadlines.set(
            _patternsKey(group),
            self._table.nowMs(),
            partial(self._resolve, group, context.sees),
        )

    def _resolve(self, group: ConsumerGroup, sees: Callable[[str], bool] | None) -> None:
        """Match the patterns of a group with the topics of which the member may know."""
        if not self._table.has(group):
            return  # its last member has gone, and it goes on as a classic one
        group.patternsVersion = self._topicsVersion
        nowMs = self._table.nowMs()
        names: Collection[str] = self._image().topics
        if sees is not None:
            names = list(filter(sees, names))
        isBumped = False
        for pattern in dict.fromkeys(each.pattern for each in group.members.values()):
            if pattern:
                resolved = ResolvedPattern(matchingTopics(pattern, names), nowMs)
                isBumped |= group.setPattern(pattern, resolved)
        if self._isHashNew(group) or isBumped:
            group.bump()
        self.store(group)

    # -- assignments

    def _assignIfDue(self, group: ConsumerGroup) -> None:
        """Make a target assignment, unless one was made a moment ago."""
        nowMs = self._table.nowMs()
        dueMs = group.targetMs + self._configured(
            group, ASSIGNMENT_INTERVAL, self._settings.consumerAssignmentIntervalMs
        )
        if group.epoch <= group.targetEpoch or group.targetMs <= nowMs < dueMs:
            return
        image = self._image()
        counts: dict[bytes, int] = {}
        members = []
        for member in group.members.values():
            topicIds = set()
            for name in sorted(group.topicsOf(member)):
                topic = image.topics.get(name)
                if topic is not None:
                    topicIds.add(topic.topicId.bytes)
                    counts[topic.topicId.bytes] = topic.partitionCount
            owned = group.target.get(member.memberId, {})
            members.append(AssignedMember(member.memberId, member.instanceId, topicIds, owned))
        group.assign(ASSIGNORS[self._assignorOf(group)](members, counts), group.epoch, nowMs)

    def _assignorOf(self, group: ConsumerGroup) -> str:
        """The one that most members prefer; the default if none prefers any."""
        known = self._settings.consumerAssignors
        votes = [each.assignor for each in group.members.values() if each.assignor in known]
        return max(known, key=lambda each: (votes.count(each), -known.index(each)))

    # -- leave

    def _leave(self, request: ConsumerGroupHeartbeat) -> _Outcome:
        group = self._table.groups.get(request.groupId)
        if not isinstance(group, ConsumerGroup):
            reason = "not found" if group is None else "is not a consumer group"
            text = f"Group {request.groupId} {reason}."
            raise RefusedRequestError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if request.instanceId is not None:
            member = self.static(group, request.memberId, request.instanceId)
        else:
            found = group.members.get(request.memberId)
            if found is None:
                raise self._unknown(group, request.memberId)
            member = found
        if request.memberEpoch == AWAY_EPOCH:
            self._table.deadlines.cancel(_revocationKey(group, member.memberId))
            group.put(
                replace(
                    member,
                    epoch=AWAY_EPOCH,
                    previousEpoch=0,
                    assigned=_sinceEver(member.assigned),
                    pending=_sinceEver(member.pending),
                )
            )
            pending = self.store(group)
        else:
            pending = self._remove(group, [member.memberId])
        answer = ConsumerGroupHeartbeatAnswer(
            memberId=request.memberId, memberEpoch=request.memberEpoch
        )
        return pending, answer

    def leaveClassic(
        self, group: ConsumerGroup, leaving: Sequence[LeavingMember]
    ) -> tuple[list[LeftMember], PendingAppend | None]:
        """
        LeaveGroup, by which an administrator removes members.

        @return: what became of each, and what has to be appended before that is true.
        """
        left = []
        memberIds: dict[str, None] = {}
        for each in leaving:
            memberId = each.memberId
            error = ErrorCode.NONE
            if each.groupInstanceId is not None:
                current = group.staticMembers.get(each.groupInstanceId)
                if current is None or current in memberIds:
                    error = ErrorCode.UNKNOWN_MEMBER_ID
                elif memberId not in (UNKNOWN_MEMBER_ID, current):
                    error = ErrorCode.FENCED_INSTANCE_ID
                memberId = current or ""
            elif memberId not in group.members or memberId in memberIds:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            if error is ErrorCode.NONE:
                memberIds[memberId] = None
            left.append(LeftMember(each.memberId, each.groupInstanceId, error))
        if not memberIds:
            return left, None
        return left, self._remove(group, memberIds)

    def _remove(self, group: ConsumerGroup, memberIds: Collection[str]) -> PendingAppend | None:
        """
        Members are no more. If the others speak the classic protocol, the group goes on with it.

        @return: what has to be appended before that is true.
        """
        isLast = self.mayDowngrade(group, memberIds)
        for memberId in memberIds:
            self._forget(group, memberId)
            pattern = group.members[memberId].pattern
            group.remove(memberId)
            group.dropPattern(pattern)
        if isLast:
            return self._downgrade(group, group.epoch, True)
        self._isHashNew(group)
        group.bump()
        return self.store(group)

    # -- the classic protocol

    def mayDowngrade(
        self, group: ConsumerGroup, leaving: Collection[str], isReplaced: bool = False
    ) -> bool:
        """
        Whether the group goes on with the classic protocol without some members.

        @param isReplaced: their place is taken by a member of that protocol.
        """
        if not self._settings.mayDowngrade:
            return False
        size = len(group.members) if isReplaced else len(group.members) - len(leaving)
        isClassic = group.isClassicWithout(leaving) or (isReplaced and len(group.members) == 1)
        return isClassic and size <= self._settings.groupMaxSize

    def joinAsLast(
        self,
        context: ClientContext,
        group: ConsumerGroup,
        known: ConsumerMember,
        updated: ConsumerMember,
        owned: Mapping[bytes, Collection[int]],
    ) -> tuple[ConsumerMember, PendingAppend]:
        """
        A static member goes on with the classic protocol, which all others speak: so does the
        group. As L{advance}.

        @return: the member, and what has to be appended before that is true.
        """
        epoch = group.epoch
        group.put(updated)
        isSubscriptionChanged = self._subscribed(context, group, known, updated)
        isStale = group.targetEpoch < group.epoch
        after = updated
        if not isStale:
            after = group.reconciled(updated, owned, isSubscriptionChanged, self._image())
            group.put(after)
            isStale = not all(each.isAt(group.targetEpoch) for each in group.members.values())
        return after, self._downgrade(group, epoch, isStale)

    def _downgrade(self, group: ConsumerGroup, epoch: int, isRebalancing: bool) -> PendingAppend:
        """All members speak the classic protocol."""
        made = downgraded(group, epoch, self._image(), self._table.nowMs(), self._table.totals)
        self.forgetMembers(group)
        group.deleteRecords()
        return self._classic.takeOver(made, isRebalancing)

    def expectJoin(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member of the classic protocol was told to join again, and has its time for it."""
        key = _joinKey(group, member.memberId)
        if key not in self._table.deadlines:
            self._expect(group, member, key)

    def expectSync(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Such a member has joined, and shall ask for its assignment."""
        self._table.deadlines.cancel(_joinKey(group, member.memberId))
        self._expect(group, member, _syncKey(group, member.memberId))

    def _expect(self, group: ConsumerGroup, member: ConsumerMember, key: Hashable) -> None:
        dueMs = self._table.nowMs() + max(member.rebalanceTimeoutMs, 0)
        self._table.deadlines.set(key, dueMs, partial(self._fence, group, member.memberId))

    def synced(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Such a member has asked for its assignment, or speaks the other protocol now."""
        self._table.deadlines.cancel(_syncKey(group, member.memberId))
        if member.classic is None:
            self._table.deadlines.cancel(_joinKey(group, member.memberId))
        else:
            self.expectHeartbeat(group, member.memberId)

    def _forget(self, group: ConsumerGroup, memberId: str) -> None:
        for key in (_sessionKey, _revocationKey, _joinKey, _syncKey):
            self._table.deadlines.cancel(key(group, memberId))

    # -- time

    def _configured(self, group: ConsumerGroup, name: str, own: int) -> int:
        """The value of a setting for a group; C{own}: the coordinator's."""
        return int(self._image().groupConfigs.get(group.groupId, {}).get(name, own))

    def expectHeartbeat(self, group: ConsumerGroup, memberId: str) -> None:
        """A member has shown that it lives: its session begins anew."""
        classic = group.members[memberId].classic
        if classic is None:
            own = self._settings.consumerSessionTimeoutMs
            timeoutMs = self._configured(group, SESSION_TIMEOUT, own)
        else:
            timeoutMs = classic.sessionTimeoutMs
        dueMs = self._table.nowMs() + timeoutMs
        self._table.deadlines.set(
            _sessionKey(group, memberId), dueMs, partial(self._fence, group, memberId)
        )

    def _expectRevocation(
        self, group: ConsumerGroup, before: ConsumerMember | None, after: ConsumerMember
    ) -> None:
        """
        Begin a member's time to give up partitions, of the length that it asked for; anew if they
        are other partitions. A member of the classic protocol has to join again, instead.
        """
        key = _revocationKey(group, after.memberId)
        if after.state is not MemberState.UNREVOKED or after.classic is not None:
            self._table.deadlines.cancel(key)
        elif (
            before is None
            or before.state is not MemberState.UNREVOKED
            or before.pending != after.pending
        ):
            dueMs = self._table.nowMs() + max(after.rebalanceTimeoutMs, 0)
            self._table.deadlines.set(key, dueMs, partial(self._fence, group, after.memberId))

    def _fence(self, group: ConsumerGroup, memberId: str) -> None:
        """A member was silent for too long, or has kept what it had to give up."""
        self._remove(group, [memberId])

    # -- administration

    def described(self, groupId: str) -> DescribedConsumerGroup:
        """ConsumerGroupDescribe, of a group that is served."""
        group = self._table.groups.get(groupId)
        if not isinstance(group, ConsumerGroup):
            reason = "not found" if group is None else "is not a consumer group"
            return DescribedConsumerGroup(
                groupId, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {groupId} {reason}."
            )
        topics = self._image().topicsById
        return DescribedConsumerGroup(
            groupId,
            groupState=group.stateName,
            groupEpoch=group.epoch,
            assignmentEpoch=group.targetEpoch,
            assignorName=self._assignorOf(group),
            members=[
                DescribedConsumer(
                    each.memberId,
                    each.instanceId,
                    each.rackId,
                    each.epoch,
                    each.clientId,
                    each.clientHost,
                    each.topics,
                    each.pattern,
                    _described(_places(each, isPendingIn=True), topics),
                    _described(group.target.get(each.memberId, {}), topics),
                    int(each.classic is None),
                )
                for each in group.members.values()
            ],
        )

    def delete(
        self,
        group: ConsumerGroup,
        deleted: Sequence[Record],
        forget: Callable[[], None],
        done: Callable[[ErrorCode], None],
    ) -> None:
        """
        Delete a group without members, and its offsets.

        @param deleted: the records that delete its offsets.
        @param forget: called when they are deleted.
        @param done: called with the outcome.
        """
        group.isDeleting = True
        group.deleteRecords()

        def appended(error: ErrorCode) -> None:
            group.isDeleting = False
            if not error and self._table.has(group):
                forget()
                self.unload(group)
            done(self._table.appendError(error))

        self._table.store(group, lambda key: None, appended, deleted)

    # -- the log

    def loaded(self, group: ConsumerGroup) -> None:
        """A group was read from the log: its members' sessions begin."""
        for member in group.members.values():
            self.expectHeartbeat(group, member.memberId)
            self._expectRevocation(group, None, member)

    def unload(self, group: ConsumerGroup) -> None:
        """The group is not here any more."""
        self.forgetMembers(group)
        self._table.remove(group)

    def forgetMembers(self, group: ConsumerGroup) -> None:
        """The group goes, or goes on as a classic one."""
        self._table.deadlines.cancel(_patternsKey(group))
        for memberId in list(group.members):
            self._forget(group, memberId)
            group.remove(memberId)


def _isTooLong(request: ConsumerGroupHeartbeat) -> bool:
    texts = (request.groupId, request.memberId, request.subscribedTopicRegex or "")
    return any(len(each.encode()) > NAME_SIZE_MAX for each in texts)


def _checkEpoch(
    member: ConsumerMember, epoch: int, owned: Mapping[bytes, Sequence[int]] | None
) -> None:
    """
    Whether a request has the epoch of its member: or the one before, by one that has lost an answer
    and owns nothing that it should not.
    """
    relation = "greater" if epoch > member.epoch else "smaller"
    if epoch == member.epoch:
        return
    if epoch < member.epoch and epoch == member.previousEpoch and owned is not None:
        if all(
            partition in member.assigned.get(topicId, ())
            for topicId, partitions in owned.items()
            for partition in partitions
        ):
            return
    raise RefusedRequestError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by"
        f" the group coordinator ({member.epoch}). The member must abandon all its partitions and"
        " rejoin.",
    )


def _updated(
    context: ClientContext, request: ConsumerGroupHeartbeat, known: ConsumerMember
) -> ConsumerMember:
    """The member with what its request tells about it."""
    topics = known.topics
    if request.subscribedTopicNames is not None:
        topics = tuple(sorted(set(request.subscribedTopicNames)))
    pattern = request.subscribedTopicRegex
    timeoutMs = request.rebalanceTimeoutMs
    return replace(
        known,
        instanceId=known.instanceId if request.instanceId is None else request.instanceId,
        rackId=known.rackId if request.rackId is None else request.rackId,
        clientId=context.clientId,
        clientHost=context.clientHost,
        topics=topics,
        pattern=known.pattern if pattern is None else pattern,
        rebalanceTimeoutMs=known.rebalanceTimeoutMs if timeoutMs == -1 else timeoutMs,
        assignor=known.assignor if request.serverAssignor is None else request.serverAssignor,
        classic=None,
    )


def _owned(request: ConsumerGroupHeartbeat) -> dict[bytes, Sequence[int]] | None:
    if request.topicPartitions is None:
        return None
    return {each.topicId: each.partitions for each in request.topicPartitions}


def _places(member: ConsumerMember, isPendingIn: bool = False) -> dict[bytes, frozenset[int]]:
    """What a member may own; perhaps with what it has to give up."""
    found = {topicId: frozenset(some) for topicId, some in member.assigned.items()}
    if isPendingIn:
        for topicId, some in member.pending.items():
            found[topicId] = found.get(topicId, frozenset()) | frozenset(some)
    return {topicId: some for topicId, some in found.items() if some}


def _assignmentOf(member: ConsumerMember) -> ConsumerAssignment:
    return ConsumerAssignment(
        [ConsumerPartitions(each, sorted(some)) for each, some in _places(member).items()]
    )


def _described(
    places: Mapping[bytes, Iterable[int]], topics: Mapping[UUID, TopicImage]
) -> DescribedAssignment:
    """Partitions of topics that are still there."""
    found = ((topics.get(UUID(bytes=topicId)), some) for topicId, some in places.items())
    return DescribedAssignment(
        [
            NamedPartitions(topic.topicId.bytes, topic.name, sorted(some))
            for topic, some in found
            if topic is not None
        ]
    )


def _sinceEver(owned: Owned) -> Owned:
    return {topicId: dict.fromkeys(some, 0) for topicId, some in owned.items()}


def _sessionKey(group: ConsumerGroup, memberId: str) -> tuple[str, str, str]:
    return "consumer session", group.groupId, memberId


def _revocationKey(group: ConsumerGroup, memberId: str) -> tuple[str, str, str]:
    return "revocation", group.groupId, memberId


def _joinKey(group: ConsumerGroup, memberId: str) -> tuple[str, str, str]:
    return "consumer join", group.groupId, memberId


def _syncKey(group: ConsumerGroup, memberId: str) -> tuple[str, str, str]:
    return "consumer sync", group.groupId, memberId


def _patternsKey(group: ConsumerGroup) -> tuple[str, str]:
    return "patterns", group.groupId
