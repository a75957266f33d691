"""
A group of the classic protocol: its members, its state, its committed offsets. Who may do what is
decided in L{pylogbroker.coordinator.membership} and L{pylogbroker.coordinator.committedoffsets}.

  ==================== ============================================ ==============================
  state                meaning                                      then
  ==================== ============================================ ==============================
  Empty                no members; perhaps committed offsets        PreparingRebalance, Dead
  PreparingRebalance   waits for all members to join                CompletingRebalance, Empty
  CompletingRebalance  a generation has begun; the leader assigns   Stable, PreparingRebalance
  Stable               every member may have its assignment         PreparingRebalance
  Dead                 is being deleted, or was unloaded            Empty, if that failed
  ==================== ============================================ ==============================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct

from pylogbroker.cluster.partitioner import javaHash
from pylogbroker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, GroupTotals
from pylogbroker.coordinator.groupmessages import (
    JoinedMember,
    JoinGroupAnswer,
    JoinProtocol,
    SyncGroupAnswer,
    protocolsSize,
)
from pylogbroker.coordinator.offsetstopic import StoredGroup, StoredMember
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

_INT16, _INT32 = Struct(">h"), Struct(">i")
_HASH_TABLE_SIZE_MIN = 16
_HASH_TABLE_FILL = 0.75


class ClassicGroupState(Enum):
    """The state of a group; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class ClassicMember:
    """
    A member.

    @ivar isNew: has not got an answer to its first join yet, so that it cannot send heartbeats.
    @ivar joinReply: the answer to a join waits for the next generation.
    @ivar syncReply: the answer to a sync waits for the leader.
    """

    memberId: str
    groupInstanceId: str | None
    clientId: str
    clientHost: str
    rebalanceTimeoutMs: int
    sessionTimeoutMs: int
    protocolType: str
    protocols: tuple[JoinProtocol, ...]
    assignment: bytes = b""
    isNew: bool = False
    joinReply: Callable[[JoinGroupAnswer], object] | None = None
    syncReply: Callable[[SyncGroupAnswer], object] | None = None

    @property
    def metadataSize(self) -> int:
        """Bytes that the member makes the coordinator hold."""
        return len(self.assignment) + protocolsSize(self.protocols)

    def metadata(self, protocolName: str | None) -> bytes:
        """What the member told about itself for a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocolName), b"")


class ClassicGroup(Group):
    """
    A group of the classic protocol.

    @ivar stateTimestampMs: when the group got into its state, since 1970, or -1.
    @ivar members: in the order in which they joined, by id.
    @ivar pendingMembers: ids that were given, and have not joined yet.
    @ivar pendingSyncs: members of this generation that have not asked for their assignment yet.
    @ivar staticMembers: ids by instance.
    @ivar awaitingJoinCount: members whose join waits for its answer.
    @ivar isMemberAdded: since the initial rebalance was last put off.
    @ivar isAssigning: the leader's assignment is being appended.
    @ivar mustRebalance: this generation has come from another protocol, and not every partition has
        an owner. Its record has no leader, so that a start knows.
    @ivar subscribedTopics: L{None} if it is not known.
    """

    def __init__(self, groupId: str, partition: int, nowMs: int, totals: GroupTotals) -> None:
        super().__init__(groupId, partition, totals)
        self.state = self.previousState = ClassicGroupState.EMPTY
        self.stateTimestampMs = nowMs
        self.generation = 0
        self.protocolType: str | None = None
        self.protocolName: str | None = None
        self.leaderId: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.pendingMembers: set[str] = set()
        self.pendingSyncs: set[str] = set()
        self.staticMembers: dict[str, str] = {}
        self.isMemberAdded = False
        self.isAssigning = False
        self.mustRebalance = False
        self.subscribedTopics: frozenset[str] | None = None
        self.awaitingJoinCount = 0
        self._supported: Counter[str] = Counter()

    # -- state

    typeName = "classic"

    @property
    def stateName(self) -> str:
        return self.state.value

    @property
    def isEmpty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def isIdle(self) -> bool:
        return self.isEmpty and not self.pendingMembers

    def transition(self, state: ClassicGroupState, nowMs: int) -> None:
        """Get into another state."""
        self.previousState, self.state = self.state, state
        self.stateTimestampMs = nowMs

    @property
    def canRebalance(self) -> bool:
        """Whether a rebalance can begin: it has not begun, and the group is not being deleted."""
        return self.state not in (ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.DEAD)

    def beginGeneration(self, nowMs: int) -> None:
        """The members that are here make up the next generation; perhaps there are none."""
        self.generation += 1
        self.pendingSyncs.clear()
        self.isAssigning = self.mustRebalance = False
        self.protocolName = self.selectProtocol() if self.members else None
        self.subscribedTopics = self._subscribedTopics()
        self.transition(
            ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY,
            nowMs,
        )

    def takeUp(self, generation: int, nowMs: int) -> None:
        """The members have a generation to which another protocol has led them."""
        self.generation = generation
        self.protocolName = self.selectProtocol()
        self.subscribedTopics = self._subscribedTopics()
        self.transition(ClassicGroupState.STABLE, nowMs)

    # -- members

    @property
    def haveAllJoined(self) -> bool:
        """Whether no member is waited for."""
        return not self.pendingMembers and self.awaitingJoinCount == len(self.members)

    @property
    def rebalanceTimeoutMs(self) -> int:
        """The longest of any member."""
        return max((each.rebalanceTimeoutMs for each in self.members.values()), default=0)

    def add(self, member: ClassicMember) -> None:
        """Add a member, or bring one back from the log."""
        if member.groupInstanceId is not None:
            self.staticMembers[member.groupInstanceId] = member.memberId
        if not self.members:
            self.protocolType = member.protocolType
        if self.leaderId is None:
            self.leaderId = member.memberId
        self.dropPending(member.memberId)
        self.members[member.memberId] = member
        self._count(member, 1)

    def addPending(self, memberId: str) -> None:
        """An id was given; its owner shall join with it."""
        self.pendingMembers.add(memberId)
        self._totals.memberCount += 1

    def dropPending(self, memberId: str) -> None:
        """An id that was given was used, or not in time."""
        if memberId in self.pendingMembers:
            self.pendingMembers.remove(memberId)
            self._totals.memberCount -= 1

    def remove(self, memberId: str) -> None:
        """Remove a member, or an id that was given, if there is such a one. Nothing is answered."""
        member = self.members.pop(memberId, None)
        if member is not None:
            self._count(member, -1)
            self.takeJoinReply(member)
            if member.groupInstanceId is not None:
                self.staticMembers.pop(member.groupInstanceId, None)
        if self.leaderId == memberId:
            self.leaderId = next(iter(self.members), None)
        self.dropPending(memberId)
        self.pendingSyncs.discard(memberId)

    def awaitJoin(
        self, member: ClassicMember, reply: Callable[[JoinGroupAnswer], object] | None
    ) -> None:
        """A member's join waits; L{None} if no join of it does."""
        self.awaitingJoinCount += (reply is not None) - (member.joinReply is not None)
        member.joinReply = reply

    def takeJoinReply(self, member: ClassicMember) -> Callable[[JoinGroupAnswer], object] | None:
        """The answer that a member's join waits for; it waits no more."""
        reply = member.joinReply
        self.awaitJoin(member, None)
        return reply

    def update(self, member: ClassicMember, change: Callable[[ClassicMember], None]) -> None:
        """Change what a member has said about itself, or what it is assigned."""
        self._count(member, -1)
        change(member)
        self._count(member, 1)

    def replaceStatic(self, groupInstanceId: str, memberId: str) -> ClassicMember:
        """Another process has taken an instance's place: the same member with another id."""
        old = self.members.pop(self.staticMembers[groupInstanceId])
        new = ClassicMember(
            memberId,
            old.groupInstanceId,
            old.clientId,
            old.clientHost,
            old.rebalanceTimeoutMs,
            old.sessionTimeoutMs,
            old.protocolType,
            old.protocols,
            old.assignment,
        )
        self.members[memberId] = new
        if old.memberId in self.pendingSyncs:
            self.pendingSyncs.remove(old.memberId)
            self.pendingSyncs.add(memberId)
        if self.leaderId == old.memberId:
            self.leaderId = memberId
        self.staticMembers[groupInstanceId] = memberId
        return new

    def electJoined(self) -> bool:
        """
        Make sure that the leader has joined, or make another one that has the leader.

        @return: whether anyone has.
        """
        if self.leaderId is not None and self.members[self.leaderId].joinReply is not None:
            return True
        joined = (each.memberId for each in self.members.values() if each.joinReply is not None)
        self.leaderId = next(joined, self.leaderId)
        return self.leaderId is not None and self.members[self.leaderId].joinReply is not None

    def memberError(self, memberId: str, groupInstanceId: str | None) -> ErrorCode:
        """Whether a request comes from a member, and not from one whose place was taken."""
        if groupInstanceId is not None:
            current = self.staticMembers.get(groupInstanceId)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != memberId:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if memberId in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _count(self, member: ClassicMember, sign: int) -> None:
        self._totals.memberCount += sign
        self._totals.metadataSize += sign * member.metadataSize
        for protocol in member.protocols:
            self._supported[protocol.name] += sign
            if not self._supported[protocol.name]:
                del self._supported[protocol.name]

    # -- protocols

    def supports(self, protocolType: str, protocols: Sequence[JoinProtocol]) -> bool:
        """Whether a member fits: by type, and by one protocol that all members know."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocolType) and bool(protocols)
        return protocolType == self.protocolType and any(
            self._supported[each.name] == len(self.members) for each in protocols
        )

    def selectProtocol(self) -> str:
        """
        The protocol that most members put first among those that all know. At a tie, the one that
        Kafka's hash table shows first.
        """
        candidates = {name for name, count in self._supported.items() if count == len(self.members)}
        votes = Counter(
            next(each.name for each in member.protocols if each.name in candidates)
            for member in self.members.values()
        )
        most = max(votes.values())
        tableSize = _HASH_TABLE_SIZE_MIN
        while len(votes) > tableSize * _HASH_TABLE_FILL:
            tableSize *= 2
        return min(
            (name for name, count in votes.items() if count == most),
            key=lambda name: _spread(javaHash(name)) & (tableSize - 1),
        )

    def joinedMembers(self) -> list[JoinedMember]:
        """All members, for the leader."""
        return [
            JoinedMember(each.memberId, each.groupInstanceId, each.metadata(self.protocolName))
            for each in self.members.values()
        ]

    def isSubscribedTo(self, topic: str) -> bool:
        """Whether offsets of a topic are in use. Unknown subscriptions may be to every topic."""
        if self.subscribedTopics is not None:
            return topic in self.subscribedTopics
        return self.protocolType == CONSUMER_PROTOCOL_TYPE

    def _subscribedTopics(self) -> frozenset[str] | None:
        if self.protocolType != CONSUMER_PROTOCOL_TYPE:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = subscribedTopics(member.metadata(self.protocolName))
            if topics is None:
                return None
            found.update(topics)
        return frozenset(found)

    # -- the log

    def stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        """
        The group as its record holds it.

        @param assignments: by member.
        """
        return StoredGroup(
            self.protocolType or "",
            self.generation,
            self.protocolName,
            None if self.mustRebalance else self.leaderId,
            self.stateTimestampMs,
            tuple(
                StoredMember(
                    each.memberId,
                    each.groupInstanceId,
                    each.clientId,
                    each.clientHost,
                    each.rebalanceTimeoutMs,
                    each.sessionTimeoutMs,
                    each.metadata(self.protocolName),
                    assignments.get(each.memberId, b""),
                )
                for each in self.members.values()
            ),
        )

    def restore(self, stored: StoredGroup) -> None:
        """The record of the group was read. Committed offsets stay."""
        self.isStored = True
        for memberId in list(self.members):
            self.remove(memberId)
        self.generation = stored.generation
        self.protocolName = stored.protocol
        for each in stored.members:
            self.add(
                ClassicMember(
                    each.memberId,
                    each.groupInstanceId,
                    each.clientId,
                    each.clientHost,
                    each.rebalanceTimeoutMs,
                    each.sessionTimeoutMs,
                    stored.protocolType,
                    (JoinProtocol(stored.protocol or "", each.subscription),),
                    each.assignment,
                )
            )
        self.mustRebalance = bool(stored.members) and stored.leader is None
        self.leaderId = stored.leader
        if self.leaderId not in self.members:
            self.leaderId = next(iter(self.members), None)
        self.protocolType = stored.protocolType or None
        self.subscribedTopics = self._subscribedTopics()
        state = ClassicGroupState.STABLE if self.members else ClassicGroupState.EMPTY
        self.transition(state, stored.currentStateTimestampMs)


def subscribedTopics(metadata: bytes) -> list[str] | None:
    """
    The topics in a consumer's metadata: version, then a list of names, whatever follows.

    @return: L{None} if these are no such metadata.
    """
    size = len(metadata)
    if size < 6 or _INT16.unpack_from(metadata)[0] < 0:
        return None
    (count,) = _INT32.unpack_from(metadata, 2)
    if not 0 <= count <= size // 2:
        return None
    position, topics = 6, []
    for _ in range(count):
        if position + 2 > size:
            return None
        (length,) = _INT16.unpack_from(metadata, position)
        position += 2 + length
        if length < 0 or position > size:
            return None
        topics.append(metadata[position - length : position].decode("utf-8", "replace"))
    return topics


def _spread(hashCode: int) -> int:
    """How Java's C{HashMap} spreads a hash before it takes its low bits."""
    unsigned = hashCode & 0xFFFFFFFF
    return unsigned ^ (unsigned >> 16)
