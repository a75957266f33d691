"""
Members of groups of KIP-848 that still speak the classic protocol: JoinGroup, SyncGroup, Heartbeat.
A module of its own, since these rules are neither those of classic groups nor those of
C{consumermembership}.

To such a member, its epoch is the generation. No member leads: the coordinator assigns. A join is
what a heartbeat is to other members: it tells what the member subscribes to and owns, and takes one
step towards the target assignment. It is answered at once, without the others. Whenever another
step is due, a heartbeat is answered with REBALANCE_IN_PROGRESS.

In one thing we are stricter than Kafka. A join that names partitions, in the name of a member that
was removed, is refused, so that its client gives them up. Kafka admits it as a new member, which
may then commit offsets for what is another member's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.coordinator.consumergroups.consumergroup import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from pylogbroker.coordinator.consumergroups.consumermembership import (
    ConsumerMembership,
    RefusedRequestError,
)
from pylogbroker.coordinator.consumergroups.consumerprotocol import (
    decodeSubscription,
    encodeAssignment,
    placesOf,
)
from pylogbroker.coordinator.consumergroups.consumerrecords import ClassicMemberMetadata
from pylogbroker.coordinator.effects import PendingAppend
from pylogbroker.coordinator.group import CONSUMER_PROTOCOL_TYPE
from pylogbroker.coordinator.groupmessages import (
    UNKNOWN_MEMBER_ID,
    ClientContext,
    Heartbeat,
    HeartbeatAnswer,
    JoinGroup,
    JoinGroupAnswer,
    SyncGroup,
    SyncGroupAnswer,
)
from pylogbroker.coordinator.grouptable import GroupTable
from pylogbroker.coordinator.membership import (
    REQUIRED_MEMBER_ID_VERSION,
    REQUIRED_PROTOCOL_VERSION,
    JoinReply,
    SyncReply,
    rebalanceTimeoutMs,
    withoutDuplicates,
)
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode


class ClassicMembers:
    """Such members of all groups of a coordinator."""

    def __init__(
        self,
        table: GroupTable,
        consumers: ConsumerMembership,
        image: Callable[[], MetadataImage],
    ) -> None:
        """
        @param table: the groups.
        @param consumers: the members of their groups.
        @param image: the topics.
        """
        self._table = table
        self._effects = table.effects
        self._settings = table.settings
        self._consumers = consumers
        self._image = image

    # -- join

    def join(
        self, context: ClientContext, request: JoinGroup, group: ConsumerGroup, reply: JoinReply
    ) -> None:
        """JoinGroup, to a group with members. Answered when what it changes is appended."""
        try:
            answer, pending = self._join(context, request, group)
        except RefusedRequestError as refused:
            self._effects.reply(reply, JoinGroupAnswer(refused.code))
            return
        self._consumers.replyWhenStored(pending, reply, answer, JoinGroupAnswer)

    def _join(
        self, context: ClientContext, request: JoinGroup, group: ConsumerGroup
    ) -> tuple[JoinGroupAnswer, PendingAppend | None]:
        isMigrating = self._settings.mayUpgrade or self._settings.mayDowngrade
        if not isMigrating or not group.supports(request.protocolType, request.protocols):
            raise RefusedRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        instanceId = request.groupInstanceId
        isUnknown = request.memberId == UNKNOWN_MEMBER_ID
        memberId = self._consumers.makeMemberId() if isUnknown else request.memberId
        isIdRequired = context.apiVersion >= REQUIRED_MEMBER_ID_VERSION
        if isUnknown and instanceId is None and isIdRequired:
            return JoinGroupAnswer(ErrorCode.MEMBER_ID_REQUIRED, memberId=memberId), None
        before, replaced = group.members.get(memberId), None
        if instanceId is not None:
            before = group.members.get(group.staticMembers.get(instanceId, ""))
            if not isUnknown:
                before = self._consumers.static(group, memberId, instanceId)
            elif before is not None:
                replaced = before
        known = ConsumerMember(memberId) if before is None else before
        if replaced is not None:
            known = replace(replaced, memberId=memberId, epoch=0, previousEpoch=0)
        protocols = withoutDuplicates(request)
        try:
            subscription = decodeSubscription(protocols[0].metadata)
        except FormatError as error:
            raise RefusedRequestError(ErrorCode.UNKNOWN_SERVER_ERROR) from error
        owned = placesOf(subscription.ownedPartitions, self._image())
        if before is None and owned and not isUnknown:
            # It does not know yet that it was removed. Others may have what it has not given up.
            raise RefusedRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        timeoutMs = rebalanceTimeoutMs(context, request)
        updated = replace(
            known,
            instanceId=instanceId or known.instanceId,
            rackId=subscription.rackId or known.rackId,
            clientId=context.clientId,
            clientHost=context.clientHost,
            topics=tuple(sorted(set(subscription.topics))),
            pattern="",
            rebalanceTimeoutMs=known.rebalanceTimeoutMs if timeoutMs == -1 else timeoutMs,
            classic=ClassicMemberMetadata(request.sessionTimeoutMs, protocols),
        )
        self._consumers.admit(group, group, before, known, updated)
        isLast = (
            before is not None
            and before.instanceId is not None
            and before.classic is None
            and self._consumers.mayDowngrade(group, [before.memberId], isReplaced=True)
        )
        if replaced is not None:
            self._consumers.replaceStatic(group, replaced, memberId)
        pending: PendingAppend | None
        if isLast:
            after, pending = self._consumers.joinAsLast(context, group, known, updated, owned)
        else:
            after = self._consumers.advance(context, group, known, updated, owned)
            self._consumers.expectSync(group, after)
            pending = self._consumers.store(group)
        answer = JoinGroupAnswer(
            generationId=after.epoch,
            protocolType=CONSUMER_PROTOCOL_TYPE,
            protocolName=protocols[0].name,
            memberId=memberId,
        )
        return answer, pending

    # -- sync

    def sync(
        self, context: ClientContext, request: SyncGroup, group: ConsumerGroup, reply: SyncReply
    ) -> None:
        """SyncGroup. Answered when what the member is told is appended."""
        try:
            assignment = self._sync(context, request, group)
        except RefusedRequestError as refused:
            self._effects.reply(reply, SyncGroupAnswer(refused.code))
            return
        answer = SyncGroupAnswer(
            ErrorCode.NONE, request.protocolType, request.protocolName, assignment
        )
        pending = self._consumers.store(group)
        self._consumers.replyWhenStored(pending, reply, answer, SyncGroupAnswer)

    def _sync(self, context: ClientContext, request: SyncGroup, group: ConsumerGroup) -> bytes:
        asked = (request.protocolType, request.protocolName)
        if context.apiVersion >= REQUIRED_PROTOCOL_VERSION and None in asked:
            raise RefusedRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member, classic = self._member(
            group, request.memberId, request.groupInstanceId, request.generationId
        )
        protocol = classic.protocols[0]
        for wanted, own in zip(asked, (CONSUMER_PROTOCOL_TYPE, protocol.name), strict=True):
            if wanted is not None and wanted != own:
                raise RefusedRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.targetEpoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._consumers.expectJoin(group, member)
            raise RefusedRequestError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._consumers.synced(group, member)
        return encodeAssignment(member.assigned, protocol.metadata, self._image())

    def _member(
        self, group: ConsumerGroup, memberId: str, instanceId: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMemberMetadata]:
        """@raise RefusedRequestError: it is none of this protocol, or of another generation."""
        member = group.members.get(memberId)
        if instanceId is not None:
            member = self._consumers.static(group, memberId, instanceId)
        if member is None or member.classic is None:
            raise RefusedRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.epoch != generation:
            raise RefusedRequestError(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    # -- heartbeat

    def heartbeat(self, request: Heartbeat, group: ConsumerGroup) -> HeartbeatAnswer:
        """Heartbeat."""
        try:
            member, _ = self._member(
                group, request.memberId, request.groupInstanceId, request.generationId
            )
        except RefusedRequestError as refused:
            return HeartbeatAnswer(refused.code)
        self._consumers.expectHeartbeat(group, member.memberId)
        if not group.mustJoinAgain(member):
            return HeartbeatAnswer()
        self._consumers.expectJoin(group, member)
        return HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
