"""
The owners of partitions in a group of KIP-848, as requests and answers show them. A module of its
own, since it knows nothing of the coordinator.

A partition is a member's from the answer that gives it, until the member says that it has given it
up, leaves or joins anew, or until the coordinator may take it for dead: its session, or the time it
has to give up partitions, is over. One of the classic protocol gives partitions up when it joins,
but for those that it names then; another process takes the place of an instance at any time.
"""

from __future__ import annotations

from typing import NamedTuple

from pylogbroker.coordinator.groupmessages import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatAnswer,
    JoinGroup,
)
from tests.simulation.coordinators.consumermember import Place
from tests.simulation.seeds import BrokenPromiseError


class SeenMember:
    """
    A member.

    @ivar lastMs: when the last heartbeat arrived that was accepted.
    @ivar sinceMs: when the first one arrived whose answer it has not heard since.
    @ivar owned: what is its own, and from which epoch on.
    @ivar revokedMs: since when it has to give up what, as long as the coordinator has not accepted
        that it did.
    @ivar epochs: the last two that it was told.
    @ivar removedNumber: of the last request that was to remove it.
    @ivar acceptedNumber: of its last heartbeat that was accepted.
    @ivar isClassic: it speaks the classic protocol.
    """

    def __init__(
        self,
        instanceId: str | None,
        sessionTimeoutMs: int,
        rebalanceTimeoutMs: int,
        isClassic: bool = False,
    ) -> None:
        self.instanceId = instanceId
        self.sessionTimeoutMs = sessionTimeoutMs
        self.rebalanceTimeoutMs = rebalanceTimeoutMs
        self.isClassic = isClassic
        self.lastMs = 0
        self.sinceMs: int | None = None
        self.owned: dict[Place, int] = {}
        self.revokedMs: dict[Place, int] = {}
        self.epochs: list[int] = []
        self.removedNumber = self.acceptedNumber = 0


class ArrivedHeartbeat(NamedTuple):
    """
    A heartbeat that has arrived.

    @ivar number: in the order of arrival.
    @ivar owned: what its sender says that it owns; L{None} if it does not.
    @ivar isReplaced: another process has the place of its sender.
    """

    request: ConsumerGroupHeartbeat
    number: int
    arrivedMs: int
    owned: frozenset[Place] | None
    isReplaced: bool


class Ownership:
    """
    The members of a group.

    @ivar instances: the member that has got an instance's place last.
    """

    def __init__(self, sessionTimeoutMs: int) -> None:
        self._sessionTimeoutMs = sessionTimeoutMs
        self._members: dict[str, SeenMember] = {}
        self._lastOwners: dict[Place, tuple[str, int]] = {}
        self._number = 0
        self._joins: dict[tuple[str | None, bool], int] = {}
        self.instances: dict[str, str] = {}

    def arrived(
        self, request: ConsumerGroupHeartbeat, owned: frozenset[Place] | None, nowMs: int
    ) -> ArrivedHeartbeat:
        """
        A heartbeat has arrived.

        @param owned: what its sender says that it owns; L{None} if it does not.
        """
        self._number += 1
        if request.memberEpoch <= 0:
            owned = frozenset()
        if not request.memberEpoch:
            self._joins[request.instanceId, False] = self._number
        member = self._members.get(request.memberId)
        if member is not None:
            if member.sinceMs is None:
                member.sinceMs = nowMs
            if owned is not None:
                member.owned = {each: member.owned[each] for each in member.owned if each in owned}
        isReplaced = self.isReplaced(request.memberId, request.instanceId)
        return ArrivedHeartbeat(request, self._number, nowMs, owned, isReplaced)

    def removed(self, memberId: str) -> None:
        """A member is told that it is none, or an operator's request to remove it has arrived."""
        if memberId in self._members:
            self._number += 1
            self._members[memberId].removedNumber = self._number

    def isReplaced(self, memberId: str, instanceId: str | None) -> bool:
        """Whether another process has taken the place of a member."""
        return instanceId is not None and self.instances.get(instanceId, memberId) != memberId

    def isFenced(self, memberId: str, epoch: int, place: Place) -> bool:
        """Whether a member with an epoch must not commit: another one has got the partition."""
        last = self._lastOwners.get(place)
        return last is not None and (last[0] != memberId or epoch < last[1])

    def accepted(
        self,
        heartbeat: ArrivedHeartbeat,
        answer: ConsumerGroupHeartbeatAnswer,
        given: frozenset[Place] | None,
        rebalanceTimeoutMs: int,
        nowMs: int,
        isHeard: bool,
    ) -> None:
        """
        A heartbeat of a member, which stays one, is answered without an error.

        @param given: what the member may own from now on; L{None} if that is what it was.
        @param isHeard: the member waits for the answer, and has not lost its connection.
        @raise BrokenPromiseError: it was to be refused, or another member has what is given.
        """
        request, memberId = heartbeat.request, answer.memberId or ""
        made = SeenMember(request.instanceId, self._sessionTimeoutMs, rebalanceTimeoutMs)
        member = self._members.setdefault(memberId, made)
        if not request.memberEpoch:
            member.epochs = []
            if request.instanceId is not None:
                self.instances[request.instanceId] = memberId
        elif heartbeat.isReplaced or request.memberEpoch not in member.epochs:
            raise BrokenPromiseError(f"{request} got through, {member.epochs} were told")
        if answer.memberEpoch not in member.epochs:
            if member.epochs and answer.memberEpoch < member.epochs[-1]:
                raise BrokenPromiseError(f"the epoch of {memberId} goes back")
            member.epochs = [*member.epochs[-1:], answer.memberEpoch]
        member.lastMs, member.acceptedNumber = heartbeat.arrivedMs, heartbeat.number
        if heartbeat.owned is not None:
            for place in member.revokedMs.keys() - heartbeat.owned:
                del member.revokedMs[place]
        if isHeard:
            sinceMs = heartbeat.arrivedMs if member.sinceMs is None else member.sinceMs
            member.sinceMs = None
            if given is not None:
                self._told(memberId, given, answer.memberEpoch, sinceMs, nowMs)

    # -- the classic protocol

    def joinArrived(self, request: JoinGroup, owned: frozenset[Place]) -> int:
        """
        A join has arrived.

        @param owned: what its sender does not give up.
        @return: its number, in the order of arrival.
        """
        self._number += 1
        member = self._members.get(request.memberId)
        if member is not None:
            member.owned = {each: member.owned[each] for each in member.owned if each in owned}
        if not request.memberId:
            self._joins[request.groupInstanceId, True] = self._number
        return self._number

    def requestArrived(self) -> int:
        """Another request has arrived. Returns its number."""
        self._number += 1
        return self._number

    def classicAccepted(self, made: SeenMember, memberId: str, number: int, arrivedMs: int) -> None:
        """
        A request of a member is answered without an error.

        @param made: the member, if it is a new one.
        """
        member = self._members.setdefault(memberId, made)
        member.lastMs, member.acceptedNumber = arrivedMs, number

    def classicTold(
        self,
        memberId: str,
        instanceId: str | None,
        given: frozenset[Place],
        generation: int,
        nowMs: int,
    ) -> None:
        """
        A member of the classic protocol is told its assignment.

        @raise BrokenPromiseError: another member has what is given.
        """
        if instanceId is not None:
            self.instances[instanceId] = memberId
        member = self._members[memberId]
        # Of a group that began anew its generation may be an older one.
        member.owned = {
            each: epoch
            for each, epoch in member.owned.items()
            if each in given and epoch <= generation
        }
        for place in sorted(given - member.owned.keys()):
            self._give(place, memberId, generation, nowMs)

    # -- owners

    def _told(
        self, memberId: str, given: frozenset[Place], epoch: int, sinceMs: int, nowMs: int
    ) -> None:
        member = self._members[memberId]
        for place in member.owned.keys() - given:
            member.revokedMs.setdefault(place, sinceMs)
        for place in sorted(given):
            member.revokedMs.pop(place, None)
            if place not in member.owned:
                self._give(place, memberId, epoch, nowMs)

    def _give(self, place: Place, memberId: str, epoch: int, nowMs: int) -> None:
        for otherId, other in self._members.items():
            if otherId != memberId and place in other.owned:
                if not self._mayBeGone(other, nowMs):
                    raise BrokenPromiseError(f"{place} has two owners: {otherId}, {memberId}")
                other.owned = {}  # so it is gone
        self._members[memberId].owned[place] = epoch
        self._lastOwners[place] = memberId, epoch

    def _mayBeGone(self, member: SeenMember, nowMs: int) -> bool:
        """Whether the coordinator may take a member for dead."""
        numbers = [member.removedNumber]
        if member.instanceId is not None:
            # A process of the classic protocol takes the place even of a member that lives.
            numbers.append(self._joins.get((member.instanceId, True), 0))
            if member.isClassic:
                numbers.append(self._joins.get((member.instanceId, False), 0))
        if max(numbers) > member.acceptedNumber:
            return True
        if member.isClassic:
            # The last time that it was not told to join again.
            timeoutMs = min(member.sessionTimeoutMs, member.rebalanceTimeoutMs)
            return nowMs >= member.lastMs + timeoutMs
        # A heartbeat without an answer may have begun what the member has not heard of.
        sinceMs = list(member.revokedMs.values())
        if member.sinceMs is not None:
            sinceMs.append(member.sinceMs)
        return nowMs >= member.lastMs + member.sessionTimeoutMs or any(
            nowMs >= each + member.rebalanceTimeoutMs for each in sinceMs
        )
