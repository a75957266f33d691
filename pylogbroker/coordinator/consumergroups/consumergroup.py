"""
A group of KIP-848: its members, epochs and assignments. Who may do what is decided in
L{pylogbroker.coordinator.consumergroups.consumermembership}.

Three epochs never go back. The group's moves when members or their topics change. The target
assignment has that of the group for which it was made. A member has that of the target assignment
to which it has come. A member comes there in steps: it gives up what is not its own any more, says
so, and then gets what no other member holds.

  ==================== ==========================================================================
  state of a member    meaning
  ==================== ==========================================================================
  stable               owns its part of the target assignment
  unrevoked            has to give up partitions, and has not said that it did
  unreleased           waits for partitions that others have not given up
  ==================== ==========================================================================

What changes is noted (L{Group.changed}), and appended at the end of a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import blake2b

from pylogbroker.cluster.metadataimage import MetadataImage, TopicImage
from pylogbroker.coordinator.consumergroups import consumerrecords
from pylogbroker.coordinator.consumergroups.consumerrecords import (
    ClassicMemberMetadata,
    ConsumerGroupKey,
)
from pylogbroker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, GroupTotals
from pylogbroker.coordinator.groupmessages import JoinProtocol, protocolsSize
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

FIRST_EPOCH = 1
"""Of a group before its first change, and of its first target assignment, which is empty."""

LEFT_EPOCH = -1
AWAY_EPOCH = -2
"""Of a static member that has gone and may come back."""

Owned = dict[bytes, dict[int, int]]
"""By topic id and partition, the epoch since which it is the member's."""


class MemberState(IntEnum):
    """The state of a member; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """
    A member.

    @ivar topics: names that it subscribes to, sorted.
    @ivar pattern: empty for none.
    @ivar previousEpoch: the one before, which a client that has lost an answer still sends.
    @ivar assigned: what it may own.
    @ivar pending: what it has to give up.
    @ivar classic: L{None}: it speaks this protocol. Otherwise its generation is its epoch.
    """

    memberId: str
    instanceId: str | None = None
    rackId: str | None = None
    clientId: str = ""
    clientHost: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    rebalanceTimeoutMs: int = -1
    assignor: str | None = None
    epoch: int = 0
    previousEpoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    pending: Owned = field(default_factory=dict)
    classic: ClassicMemberMetadata | None = None

    @property
    def metadataSize(self) -> int:
        """Bytes that the member makes the coordinator hold, about."""
        size = sum(map(len, self.topics)) + len(self.pattern) + len(self.clientId)
        return size if self.classic is None else size + protocolsSize(self.classic.protocols)

    def isAt(self, targetEpoch: int) -> bool:
        """Whether it has come to the target assignment."""
        return self.state is MemberState.STABLE and self.epoch == targetEpoch


@dataclass(frozen=True, slots=True)
class ResolvedPattern:
    """
    The topics that a pattern matched.

    @ivar madeMs: when it was looked at, since 1970.
    """

    topics: frozenset[str]
    madeMs: int


class ConsumerGroup(Group):
    """
    A group of KIP-848.

    @ivar epoch: the group's.
    @ivar metadataHash: of the topics that members subscribe to.
    @ivar targetEpoch: that of the target assignment.
    @ivar targetMs: when it was made, since 1970.
    @ivar members: by id, in the order in which they came.
    @ivar staticMembers: ids by instance.
    @ivar target: by member and topic id.
    @ivar patterns: those that were resolved.
    @ivar topicsVersion: of the topics for which C{metadataHash} was computed.
    @ivar patternsVersion: of the topics that the patterns were matched with.
    @ivar isDeleting: its deletion is being appended.
    """

    typeName = "consumer"

    def __init__(self, groupId: str, partition: int, totals: GroupTotals) -> None:
        super().__init__(groupId, partition, totals)
        self.epoch = self.targetEpoch = FIRST_EPOCH
        self.metadataHash = 0
        self.targetMs = 0
        self.members: dict[str, ConsumerMember] = {}
        self.staticMembers: dict[str, str] = {}
        self.target: dict[str, dict[bytes, frozenset[int]]] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        self.topicsVersion = self.patternsVersion = -1
        self.isDeleting = False
        self._holders: dict[tuple[bytes, int], int] = {}

    # -- state

    @property
    def isEmpty(self) -> bool:
        return not self.members and not self.isDeleting

    @property
    def isIdle(self) -> bool:
        return self.isEmpty

    @property
    def stateName(self) -> str:
        if not self.members:
            return "Dead" if self.isDeleting else "Empty"
        if self.epoch > self.targetEpoch:
            return "Assigning"
        isReconciled = all(each.isAt(self.targetEpoch) for each in self.members.values())
        return "Stable" if isReconciled else "Reconciling"

    # -- members

    def put(self, member: ConsumerMember) -> None:
        """A member is new, or has changed."""
        before = self.members.get(member.memberId)
        if before is None:
            self._totals.memberCount += 1
        else:
            self._count(before, -1)
        self._count(member, 1)
        if before is not None and before.instanceId != member.instanceId:
            self.staticMembers.pop(before.instanceId or "", None)
        isNew = before is None or before.instanceId != member.instanceId
        if member.instanceId is not None and isNew:
            self.staticMembers[member.instanceId] = member.memberId
        self.members[member.memberId] = member
        if before is None or _memberValue(before) != _memberValue(member):
            self.changed(consumerrecords.MEMBER_KEY, member.memberId)
        if before is None or _currentValue(before) != _currentValue(member):
            self.changed(consumerrecords.CURRENT_KEY, member.memberId)

    def remove(self, memberId: str) -> None:
        """A member is gone, with its part of the target assignment."""
        member = self.members.pop(memberId)
        self._totals.memberCount -= 1
        self._count(member, -1)
        if member.instanceId is not None and self.staticMembers.get(member.instanceId) == memberId:
            del self.staticMembers[member.instanceId]
        self.target.pop(memberId, None)
        for keyType in (
            consumerrecords.CURRENT_KEY,
            consumerrecords.TARGET_MEMBER_KEY,
            consumerrecords.MEMBER_KEY,
        ):
            self.changed(keyType, memberId)

    def _count(self, member: ConsumerMember, sign: int) -> None:
        self._totals.metadataSize += sign * member.metadataSize
        for topicId, partitions in (*member.assigned.items(), *member.pending.items()):
            for partition in partitions:
                place = topicId, partition
                self._holders[place] = self._holders.get(place, 0) + sign
                if not self._holders[place]:
                    del self._holders[place]

    def countIn(self, totals: GroupTotals) -> None:
        """The group is one of the coordinator's: its members count there."""
        totals.memberCount += self._totals.memberCount
        totals.metadataSize += self._totals.metadataSize
        self._totals = totals

    def supports(self, protocolType: str, protocols: Iterable[JoinProtocol]) -> bool:
        """Whether all members that speak the classic protocol know one of a member's protocols."""
        common = {each.name for each in protocols}
        for member in self.members.values():
            if member.classic is not None:
                common.intersection_update(each.name for each in member.classic.protocols)
        return protocolType == CONSUMER_PROTOCOL_TYPE and bool(common)

    def isClassicWithout(self, memberIds: Collection[str]) -> bool:
        """Whether some members are left without these, and all speak the classic protocol."""
        left = [each for each in self.members.values() if each.memberId not in memberIds]
        return bool(left) and all(each.classic is not None for each in left)

    def bump(self) -> None:
        """Members or their topics have changed."""
        self.epoch += 1
        self.changed(consumerrecords.EPOCH_KEY)

    # -- topics

    def topicsOf(self, member: ConsumerMember) -> set[str]:
        """The names that a member subscribes to."""
        found = set(member.topics)
        resolved = self.patterns.get(member.pattern)
        return found if resolved is None else found | resolved.topics

    def subscribedTopics(self) -> set[str]:
        """The names that any member subscribes to."""
        found: set[str] = set()
        for member in self.members.values():
            found.update(member.topics)
        for resolved in self.patterns.values():
            found |= resolved.topics
        return found

    def isSubscribedTo(self, topic: str) -> bool:
        return any(topic in each.topics for each in self.members.values()) or any(
            topic in each.topics for each in self.patterns.values()
        )

    def existingTopics(self, image: MetadataImage) -> list[TopicImage]:
        """The topics that any member subscribes to, without those that are not there; by name."""
        found = (image.topics.get(name) for name in sorted(self.subscribedTopics()))
        return [each for each in found if each is not None]

    def hashOf(self, image: MetadataImage) -> int:
        """What the group's topics are now, as a number; 0 for no topics."""
        topics = self.existingTopics(image)
        digest = blake2b(digest_size=8)
        for each in topics:
            digest.update(f"{each.name} {each.topicId} {each.partitionCount}\n".encode())
        return int.from_bytes(digest.digest(), "big", signed=True) if topics else 0

    def hasPattern(self, pattern: str) -> bool:
        """Whether a member has a pattern."""
        return any(each.pattern == pattern for each in self.members.values())

    def dropPattern(self, pattern: str) -> None:
        """Forget a pattern if no member has it any more."""
        if pattern in self.patterns and not self.hasPattern(pattern):
            del self.patterns[pattern]
            self.changed(consumerrecords.PATTERN_KEY, pattern)

    def setPattern(self, pattern: str, resolved: ResolvedPattern) -> bool:
        """
        A pattern was matched with the topics.

        @return: whether its members subscribe to other topics than before.
        """
        before = self.patterns.get(pattern)
        self.patterns[pattern] = resolved
        if before is None or before.topics != resolved.topics:
            self.changed(consumerrecords.PATTERN_KEY, pattern)
        return resolved.topics != (frozenset() if before is None else before.topics)

    # -- assignments

    def setTarget(self, memberId: str, partitions: Mapping[bytes, frozenset[int]]) -> None:
        """A member has another part of the target assignment."""
        if self.target.get(memberId) != partitions:
            self.changed(consumerrecords.TARGET_MEMBER_KEY, memberId)
        self.target[memberId] = dict(partitions)

    def assign(
        self, target: Mapping[str, Mapping[bytes, frozenset[int]]], epoch: int, nowMs: int
    ) -> None:
        """There is another target assignment."""
        for memberId, partitions in target.items():
            self.setTarget(memberId, partitions)
        self.targetEpoch, self.targetMs = epoch, nowMs
        self.changed(consumerrecords.TARGET_KEY)

    def reconciled(
        self,
        member: ConsumerMember,
        owned: Mapping[bytes, Collection[int]] | None,
        isSubscriptionChanged: bool,
        image: MetadataImage,
    ) -> ConsumerMember:
        """
        The next step of a member towards its part of the target assignment.

        @param owned: what the member says it owns; L{None} if it does not say.
        """
        wanted = self._wantedIds(member, image) if isSubscriptionChanged else None
        if member.state is MemberState.UNREVOKED:
            if owned is not None and not _meet(member.pending, owned):
                return self._next(member, owned, wanted)
        elif not member.isAt(self.targetEpoch):
            return self._next(member, owned, wanted)
        return member if wanted is None else self._unsubscribed(member, owned, wanted)

    def _wantedIds(self, member: ConsumerMember, image: MetadataImage) -> set[bytes]:
        topics = (image.topics.get(name) for name in self.topicsOf(member))
        return {each.topicId.bytes for each in topics if each is not None}

    def _next(
        self,
        member: ConsumerMember,
        owned: Mapping[bytes, Collection[int]] | None,
        wantedIds: Collection[bytes] | None,
    ) -> ConsumerMember:
        target = self.target.get(member.memberId, {})
        if wantedIds is not None:
            target = {each: some for each, some in target.items() if each in wantedIds}
        kept: Owned = {}
        revoked: Owned = {}
        for topicId, epochs in member.assigned.items():
            wanted = target.get(topicId, frozenset())
            for partition, epoch in epochs.items():
                which = kept if partition in wanted else revoked
                which.setdefault(topicId, {})[partition] = epoch
        if revoked and (owned is None or _meet(revoked, owned)):
            return replace(
                member,
                previousEpoch=member.epoch,
                state=MemberState.UNREVOKED,
                assigned=kept,
                pending=revoked,
            )
        isWaiting = False
        mine = {
            (topicId, partition)
            for some in (member.assigned, member.pending)
            for topicId, partitions in some.items()
            for partition in partitions
        }
        for topicId, wanted in target.items():
            for partition in sorted(wanted - kept.get(topicId, {}).keys()):
                place = topicId, partition
                # What this very member holds, or has just given up, does not keep it waiting.
                if self._holders.get(place, 0) > (place in mine):
                    isWaiting = True
                else:
                    kept.setdefault(topicId, {})[partition] = self.targetEpoch
        return replace(
            member,
            epoch=self.targetEpoch,
            previousEpoch=member.epoch,
            state=MemberState.UNRELEASED if isWaiting else MemberState.STABLE,
            assigned=kept,
            pending={},
        )

    def mustJoinAgain(self, member: ConsumerMember) -> bool:
        """Whether a member of the classic protocol may get other partitions now."""
        if member.epoch < self.epoch or member.state is MemberState.UNREVOKED:
            return True
        return member.state is MemberState.UNRELEASED and not any(
            (topicId, partition) in self._holders
            for topicId, wanted in self.target.get(member.memberId, {}).items()
            for partition in wanted - member.assigned.get(topicId, {}).keys()
        )

    def _unsubscribed(
        self,
        member: ConsumerMember,
        owned: Mapping[bytes, Collection[int]] | None,
        wanted: Collection[bytes],
    ) -> ConsumerMember:
        """A member gives up topics that it does not subscribe to any more, at once."""
        kept = {each: some for each, some in member.assigned.items() if each in wanted}
        revoked = {each: some for each, some in member.assigned.items() if each not in wanted}
        state, pending = member.state, member.pending
        if revoked and (owned is None or _meet(revoked, owned)):
            merged = {each: {**pending.get(each, {}), **some} for each, some in revoked.items()}
            state, pending = MemberState.UNREVOKED, {**pending, **merged}
        return replace(
            member, previousEpoch=member.epoch, state=state, assigned=kept, pending=pending
        )

    # -- the log

    def deleteRecords(self) -> None:
        """The group, which has no members, is not of this kind any more: its records go."""
        for each in self.patterns:
            self.changed(consumerrecords.PATTERN_KEY, each)
        for keyType in (
            consumerrecords.TARGET_KEY,
            consumerrecords.PARTITIONS_KEY,
            consumerrecords.EPOCH_KEY,
        ):
            self.changed(keyType)

    def valueOf(self, key: ConsumerGroupKey) -> bytes | None:
        """What a record holds; L{None}: it is deleted."""
        if key.keyType == consumerrecords.EPOCH_KEY:
            value = consumerrecords.GroupEpochValue(self.epoch, self.metadataHash)
            return consumerrecords.encodeEpoch(value)
        if key.keyType == consumerrecords.TARGET_KEY:
            made = consumerrecords.TargetEpochValue(self.targetEpoch, self.targetMs)
            return consumerrecords.encodeTargetEpoch(made)
        if key.keyType == consumerrecords.PATTERN_KEY:
            resolved = self.patterns.get(key.name)
            if resolved is None:
                return None
            topics = tuple(sorted(resolved.topics))
            return consumerrecords.encodePattern(
                consumerrecords.PatternValue(topics, 0, resolved.madeMs)
            )
        if key.keyType == consumerrecords.TARGET_MEMBER_KEY:
            target = self.target.get(key.name)
            return None if target is None else consumerrecords.encodeTarget(target)
        member = self.members.get(key.name)
        if member is None:
            return None
        if key.keyType == consumerrecords.MEMBER_KEY:
            return consumerrecords.encodeMember(_memberValue(member))
        return consumerrecords.encodeCurrent(_currentValue(member))

    def replay(self, key: ConsumerGroupKey, value: bytes | None) -> None:
        """
        A record was read.

        @raise FormatError: the value is broken.
        """
        name = key.name
        self.isStored |= value is not None
        if key.keyType == consumerrecords.EPOCH_KEY and value is not None:
            self.epoch, self.metadataHash = consumerrecords.decodeEpoch(value)
        elif key.keyType == consumerrecords.TARGET_KEY:
            if value is not None:
                self.targetEpoch, self.targetMs = consumerrecords.decodeTargetEpoch(value)
        elif key.keyType == consumerrecords.PATTERN_KEY:
            if value is None:
                self.patterns.pop(name, None)
            else:
                found = consumerrecords.decodePattern(value)
                self.patterns[name] = ResolvedPattern(frozenset(found.topics), found.madeMs)
        elif key.keyType == consumerrecords.TARGET_MEMBER_KEY:
            if value is None:
                self.target.pop(name, None)
            else:
                self.target[name] = consumerrecords.decodeTarget(value)
        elif key.keyType == consumerrecords.MEMBER_KEY:
            if value is None:
                if name in self.members:
                    self.remove(name)
            else:
                self._replayMember(name, consumerrecords.decodeMember(value))
        elif key.keyType == consumerrecords.CURRENT_KEY and name in self.members:
            self._replayCurrent(name, value)
        self.log.changed.clear()

    def _replayMember(self, memberId: str, value: consumerrecords.MemberValue) -> None:
        before = self.members.get(memberId, ConsumerMember(memberId))
        self.put(
            replace(
                before,
                instanceId=value.instanceId,
                rackId=value.rackId,
                clientId=value.clientId,
                clientHost=value.clientHost,
                topics=value.topics,
                pattern=value.pattern,
                rebalanceTimeoutMs=value.rebalanceTimeoutMs,
                assignor=value.assignor,
                classic=value.classic,
            )
        )

    def _replayCurrent(self, memberId: str, value: bytes | None) -> None:
        found = consumerrecords.CurrentValue(LEFT_EPOCH, 0, 0, {}, {})
        if value is not None:
            found = consumerrecords.decodeCurrent(value)
        state = MemberState(found.state) if found.state in tuple(MemberState) else None
        self.put(
            replace(
                self.members[memberId],
                epoch=found.epoch,
                previousEpoch=found.previousEpoch,
                state=MemberState.STABLE if state is None else state,
                assigned={each: dict(some) for each, some in found.assigned.items()},
                pending={each: dict(some) for each, some in found.pending.items()},
            )
        )

    # -- who may commit and fetch

    def commitError(
        self, hasEpochs: bool, memberId: str, epoch: int, places: Iterable[tuple[bytes, int]]
    ) -> ErrorCode:
        """
        Whether a member may commit offsets. One that is behind may, for partitions that were its
        own at that time already.

        @param hasEpochs: the request is of a version that knows epochs.
        @param places: topic ids and partitions.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(memberId)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not hasEpochs and member.classic is None:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch:
            return ErrorCode.NONE
        if epoch < member.epoch and all(_since(member, *each) <= epoch for each in places):
            return ErrorCode.NONE
        return _epochError(member)

    def fetchError(self, memberId: str | None, epoch: int) -> ErrorCode:
        """Whether offsets may be fetched: by a member, or by anybody who names none."""
        if memberId is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(memberId or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else _epochError(member)


_NEVER = 2**31


def _epochError(member: ConsumerMember) -> ErrorCode:
    """The error for a member that sends another epoch, or generation, than its own."""
    isClassic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if isClassic else ErrorCode.STALE_MEMBER_EPOCH


def _since(member: ConsumerMember, topicId: bytes, partition: int) -> int:
    """The epoch since which a partition is a member's."""
    for owned in (member.assigned, member.pending):
        found = owned.get(topicId, {}).get(partition)
        if found is not None:
            return found
    return _NEVER


def _meet(some: Mapping[bytes, Collection[int]], owned: Mapping[bytes, Collection[int]]) -> bool:
    """Whether any partition is in both."""
    return any(
        set(partitions).intersection(owned.get(each, ())) for each, partitions in some.items()
    )


def _memberValue(member: ConsumerMember) -> consumerrecords.MemberValue:
    return consumerrecords.MemberValue(
        member.instanceId,
        member.rackId,
        member.clientId,
        member.clientHost,
        member.topics,
        member.pattern,
        member.rebalanceTimeoutMs,
        member.assignor,
        member.classic,
    )


def _currentValue(member: ConsumerMember) -> consumerrecords.CurrentValue:
    return consumerrecords.CurrentValue(
        member.epoch, member.previousEpoch, int(member.state), member.assigned, member.pending
    )
