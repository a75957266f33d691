"""
Membership in a classic consumer group, as a state machine. A module of its own, since it is pure:
answers of the coordinator and times go in, the next step comes out.

  ========== ======================================== ==============================================
  phase      meaning                                  leaves it by
  ========== ======================================== ==============================================
  OUT        no member, or none any more              JOIN, when there are topics and a reader
  JOINING    JoinGroup is to be sent, or under way    the answer: SYNCING, OUT
  SYNCING    SyncGroup is to be sent, or under way    the answer: STABLE, JOINING, OUT
  STABLE     partitions are assigned                  a rebalance: JOINING; an error: OUT
  ========== ======================================== ==============================================

What must be true:

  - A member that the coordinator does not know any more has lost its partitions
  (C{isLost}), and says so before it joins again.
  - With eager assignors a member gives up all partitions before it joins; with cooperative ones it
  gives up what is assigned to it no more, and joins once more.
  - A member id is kept while the coordinator knows it; a static member keeps it by its instance id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from pylogbroker.cluster.kafka.assignors import IPartitionAssignor
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.consumerprotocol import PROTOCOL_TYPE, encodeSubscription
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import MemberSubscription, TopicPartition

NO_GENERATION = -1
_UNKNOWN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class Phase(Enum):
    """See the module."""

    OUT = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()


class Step(Enum):
    """
    What is to be done next.

    C{REST}: nothing, until something happens. C{LOSE}: drop all partitions, which others may have.
    C{LEAVE}: the same, and tell the coordinator.
    """

    REST = auto()
    LOSE = auto()
    LEAVE = auto()
    JOIN = auto()
    SYNC = auto()


class GroupMembership:
    """
    One member.

    @ivar phase: a L{Phase}.
    @ivar topics: those that it subscribes to; empty: it is to be no member.
    @ivar memberId: empty: none yet.
    @ivar generation: of the group; L{NO_GENERATION}: no member.
    @ivar isLost: whether its partitions may have other owners.
    @ivar isLeader: whether it assigns the partitions of its generation, and watches the topics.
    @ivar skipsAssignment: whether the leader, a static member that came back, leaves the
        assignment as it is (KIP-814).
    @ivar assignor: that the group has chosen, by name.
    @ivar members: of the generation, for the leader: C{JoinGroupResponseMember}s.
    @ivar polledAtMs: when the reader was here last.
    @cvar protocolType: what kind of group it is.
    """

    protocolType = PROTOCOL_TYPE

    def __init__(
        self,
        groupId: str,
        instanceId: str | None,
        assignors: Sequence[IPartitionAssignor],
        *,
        sessionTimeoutMs: int,
        maxPollIntervalMs: int,
        rackId: str | None = None,
    ) -> None:
        """
        @param assignors: the preferred one first.
        """
        self.groupId = groupId
        self.instanceId = instanceId
        self.phase = Phase.OUT
        self.topics: tuple[str, ...] = ()
        self.memberId = ""
        self.generation = NO_GENERATION
        self.isLost = self.isLeader = self.skipsAssignment = False
        self.assignor = ""
        self.members: Sequence[Any] = ()
        self.polledAtMs = 0.0
        self._isRejoining = False
        self._assignors = assignors
        self._sessionTimeoutMs = sessionTimeoutMs
        self._maxPollIntervalMs = maxPollIntervalMs
        self._rackId = rackId

    @property
    def isCooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances."""
        return all(each.isCooperative for each in self._assignors)

    # -- what is to be done

    def expiresAtMs(self) -> float:
        """When a reader that takes nothing must be out of the group."""
        return self.polledAtMs + self._maxPollIntervalMs

    def step(self, nowMs: float) -> Step:
        """What is to be done now."""
        if self.isLost:
            return Step.LOSE
        isAway = nowMs >= self.expiresAtMs()
        if not self.topics or isAway:
            return Step.REST if self.phase is Phase.OUT else Step.LEAVE
        if self.phase is Phase.SYNCING:
            return Step.SYNC
        return Step.REST if self.phase is Phase.STABLE and not self._isRejoining else Step.JOIN

    def givenUp(self, owned: Collection[TopicPartition]) -> list[TopicPartition]:
        """The partitions to give up before it joins."""
        return [each for each in owned if not self.isCooperative or each.topic not in self.topics]

    # -- what happens

    def subscribe(self, topics: Sequence[str]) -> None:
        """Other topics: the group rebalances."""
        if tuple(topics) != self.topics:
            self.topics = tuple(topics)
            self.rejoin()

    def rejoin(self) -> None:
        """The group rebalances, or is to."""
        self._isRejoining = True

    def joined(self, answer: Any) -> None:
        """
        The answer to JoinGroup.

        @raise ResponseError: for any code; the member is in no group then, or is to try again.
        """
        code = answer.errorCode
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.memberId = answer.memberId
            return
        self._check(code)
        self.memberId = answer.memberId
        self.generation = answer.generationId
        self.assignor = answer.protocolName or ""
        self.isLeader = answer.leader == answer.memberId
        self.skipsAssignment = answer.skipAssignment
        self.members = answer.members
        self.phase = Phase.SYNCING

    def synced(self, code: int) -> None:
        """
        The answer to SyncGroup.

        @raise ResponseError: as L{joined}.
        """
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.phase = Phase.JOINING
            return
        self._check(code)
        self.phase = Phase.STABLE

    def beaten(self, generation: int, code: int) -> None:
        """
        The answer to Heartbeat.

        @param generation: of the request; an answer of an earlier one says nothing.
        @raise ResponseError: as L{joined}.
        """
        if generation == self.generation and self.phase is Phase.STABLE:
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.rejoin()
            else:
                self._check(code)

    def _check(self, code: int) -> None:
        if code in _UNKNOWN:
            self.lose(code == ErrorCode.ILLEGAL_GENERATION)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.lose()
        if code:
            raise ResponseError(code, f"group {self.groupId}")

    def lose(self, isKnown: bool = False) -> None:
        """
        It is no member any more, and has lost its partitions.

        @param isKnown: whether the coordinator may know the member id still.
        """
        self.isLost = True
        self.phase = Phase.OUT
        self.generation = NO_GENERATION
        self.members = ()
        if not isKnown:
            self.memberId = ""

    # -- requests

    def joinRequest(self, owned: Collection[TopicPartition]) -> Any:
        """
        A JoinGroup.

        @param owned: the partitions that the member has kept.
        """
        self.phase = Phase.JOINING
        self._isRejoining = False
        cls = messages.JoinGroupRequest
        return cls(
            groupId=self.groupId,
            sessionTimeoutMs=self._sessionTimeoutMs,
            rebalanceTimeoutMs=self._maxPollIntervalMs,
            memberId=self.memberId,
            groupInstanceId=self.instanceId,
            protocolType=self.protocolType,
            protocols=[
                cls.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self._protocols(owned).items()
            ],
        )

    def _protocols(self, owned: Collection[TopicPartition]) -> Mapping[str, bytes]:
        """What the member tells the others, by the name of each protocol that it knows."""
        subscription = MemberSubscription(
            self.memberId,
            self.topics,
            tuple(owned),
            self.generation,
            self.instanceId,
            self._rackId,
        )
        return {
            each.name: encodeSubscription(subscription._replace(userData=each.userData()))
            for each in self._assignors
        }

    def syncRequest(self, assignments: Mapping[str, bytes]) -> Any:
        """
        A SyncGroup.

        @param assignments: of the leader: by member id.
        """
        cls = messages.SyncGroupRequest
        return cls(
            groupId=self.groupId,
            generationId=self.generation,
            memberId=self.memberId,
            groupInstanceId=self.instanceId,
            protocolType=self.protocolType,
            protocolName=self.assignor,
            assignments=[
                cls.SyncGroupRequestAssignment(memberId=member, assignment=data)
                for member, data in assignments.items()
            ],
        )

    def heartbeatRequest(self) -> Any:
        """A Heartbeat."""
        return messages.HeartbeatRequest(
            groupId=self.groupId,
            generationId=self.generation,
            memberId=self.memberId,
            groupInstanceId=self.instanceId,
        )
