"""
Membership in a group of the consumer protocol (KIP-848), as a state machine. A module of its own,
since it is pure: answers of the coordinator and times go in, the next step comes out.

What must be true:

  - A member that is fenced or unknown has lost its partitions, and says so before it joins again.
  - A partition that is assigned no more is given up, and a heartbeat says so, before new ones are
  taken in. That holds also of one that was assigned and taken away again before a heartbeat could
  say that the member has it: the coordinator counts it as the member's until it is told otherwise.
  - A partition that is being taken in is named as one that the member has: else the coordinator
  would give it to another member meanwhile.
  - The first heartbeat, and one after an error, names everything; the others name what has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from pylogbroker.consumer.kafka.groupmembership import NO_GENERATION, Phase
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import TopicPartition

LEAVE_EPOCH, AWAY_EPOCH = -1, -2
"""The epochs of a member that leaves, and of a static one that may come back."""

FIRST_INTERVAL_MS = 3_000
"""The time between heartbeats, until the coordinator tells another."""

_LOST = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


class ConsumerStep(Enum):
    """
    What is to be done next.

    C{REST}: nothing, until something happens. C{LOSE}: drop all partitions, which others may have.
    C{LEAVE}: the same, and tell the coordinator. C{BEAT}: send a heartbeat now. C{REVOKE}: give up
    what is L{leaving<ConsumerMembershipManager.leaving>}. C{ADOPT}: take in what is
    L{coming<ConsumerMembershipManager.coming>}.
    """

    REST = auto()
    LOSE = auto()
    LEAVE = auto()
    BEAT = auto()
    REVOKE = auto()
    ADOPT = auto()


class ConsumerMembershipManager:
    """
    One member.

    @ivar phase: C{OUT}; C{JOINING}: the coordinator may know it; C{STABLE}: it is a member.
    @ivar topics: those that it subscribes to; empty: it is to be no member.
    @ivar memberId: empty: none yet.
    @ivar generation: its epoch; L{NO_GENERATION}: no member.
    @ivar isLost: whether its partitions may have other owners.
    @ivar intervalMs: between heartbeats, as the coordinator says.
    @ivar held: the topic ids of the partitions that it has.
    @ivar incoming: those of the partitions that are being taken in.
    @ivar polledAtMs: when the reader was here last.
    """

    def __init__(
        self,
        groupId: str,
        instanceId: str | None,
        *,
        maxPollIntervalMs: int,
        rackId: str | None = None,
        assignor: str | None = None,
    ) -> None:
        """
        @param assignor: of the coordinator's; L{None}: the one that it prefers.
        """
        self.groupId = groupId
        self.instanceId = instanceId
        self.phase = Phase.OUT
        self.topics: tuple[str, ...] = ()
        self.memberId = ""
        self.generation = NO_GENERATION
        self.isLost = False
        self.intervalMs = FIRST_INTERVAL_MS
        self.held: dict[TopicPartition, bytes] = {}
        self.incoming: dict[TopicPartition, bytes] = {}
        self.polledAtMs = 0.0
        self._maxPollIntervalMs = maxPollIntervalMs
        self._rackId = rackId
        self._assignor = assignor
        self._target: frozenset[tuple[bytes, int]] = frozenset()
        self._toldTopics: tuple[str, ...] | None = None  # None: tell everything
        self._toldHeld: dict[TopicPartition, bytes] = {}
        self._isTargetNew = False  # nothing was told of partitions since it is the target

    # -- what is to be done

    def expiresAtMs(self) -> float:
        """When a reader that takes nothing must be out of the group."""
        return self.polledAtMs + self._maxPollIntervalMs

    def step(self, nowMs: float, names: Mapping[bytes, str]) -> ConsumerStep:
        """
        What is to be done now.

        @param names: of topics, by id.
        """
        if self.isLost:
            return ConsumerStep.LOSE
        if not self.topics or nowMs >= self.expiresAtMs():
            return ConsumerStep.REST if self.phase is Phase.OUT else ConsumerStep.LEAVE
        if self.phase is not Phase.STABLE:
            return ConsumerStep.BEAT
        if self.leaving():
            return ConsumerStep.REVOKE
        if self._toldTopics != self.topics or self._toldHeld != self.held:
            return ConsumerStep.BEAT
        if self.coming(names):
            return ConsumerStep.ADOPT
        isToTell = self._isTargetNew and not self.hasUnknown(names)
        return ConsumerStep.BEAT if isToTell else ConsumerStep.REST

    def leaving(self) -> list[TopicPartition]:
        """The partitions that it has, and that are assigned to it no more."""
        return [
            place
            for place, topicId in self.held.items()
            if (topicId, place.partition) not in self._target
        ]

    def coming(self, names: Mapping[bytes, str]) -> dict[TopicPartition, bytes]:
        """
        The partitions that are assigned to it, and that it does not have.

        @param names: of topics, by id; what has no name yet is left out.
        @return: their topic ids.
        """
        found = {
            TopicPartition(names[topicId], partition): topicId
            for topicId, partition in sorted(self._target)
            if topicId in names
        }
        return {place: topicId for place, topicId in found.items() if place not in self.held}

    @property
    def isAdopting(self) -> bool:
        """Whether partitions are assigned to it that it does not have."""
        held = {(topicId, place.partition) for place, topicId in self.held.items()}
        return not self._target <= held

    def hasUnknown(self, names: Mapping[bytes, str]) -> bool:
        """Whether a topic without a name is assigned to it."""
        return any(topicId not in names for topicId, _partition in self._target)

    # -- what happens

    def subscribe(self, topics: Sequence[str]) -> None:
        """Other topics: the next heartbeat names them."""
        self.topics = tuple(topics)

    def beginAdoption(self, partitions: Mapping[TopicPartition, bytes]) -> None:
        """Partitions are being taken in."""
        self.incoming = dict(partitions)

    def endAdoption(self, isDone: bool) -> None:
        """They were taken in, or could not be; or the member has lost them meanwhile."""
        if isDone:
            self.held.update(self.incoming)
        self.incoming = {}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were given up."""
        for each in partitions:
            self.held.pop(each, None)

    def beaten(self, request: Any, answer: Any) -> None:
        """
        The answer to a heartbeat.

        @raise ResponseError: for any code.
        """
        code = answer.errorCode
        if code in _LOST:
            self.lose()
        if code:
            self.failed()
            text = answer.errorMessage or ""
            raise ResponseError(code, f"group {self.groupId}" + (f": {text}" if text else ""))
        self.phase = Phase.STABLE
        self.memberId = answer.memberId or self.memberId
        self.generation = answer.memberEpoch
        if answer.heartbeatIntervalMs > 0:
            self.intervalMs = answer.heartbeatIntervalMs
        if request.subscribedTopicNames is not None:
            self._toldTopics = tuple(request.subscribedTopicNames)
        if answer.assignment is not None:
            target = frozenset(
                (topic.topicId, partition)
                for topic in answer.assignment.topicPartitions
                for partition in topic.partitions
            )
            self._isTargetNew = self._isTargetNew or target != self._target
            self._target = target

    def failed(self) -> None:
        """A heartbeat has no answer, or an error: the next one names everything."""
        self._toldTopics = None

    def lose(self) -> None:
        """It is no member any more, and has lost its partitions."""
        self.isLost = True
        self.phase = Phase.OUT
        self.generation = NO_GENERATION
        self.held, self.incoming = {}, {}
        self._target = frozenset()
        self._isTargetNew = False
        self.failed()

    # -- requests

    def request(self) -> Any:
        """A ConsumerGroupHeartbeat; with epoch 0 it joins."""
        cls = messages.ConsumerGroupHeartbeatRequest
        isFull = self._toldTopics is None or self.phase is not Phase.STABLE
        if self.phase is Phase.OUT:
            self.phase = Phase.JOINING
        body = cls(
            groupId=self.groupId,
            memberId=self.memberId,
            memberEpoch=max(self.generation, 0),
            instanceId=self.instanceId,
        )
        if isFull:
            body.rackId = self._rackId
            body.rebalanceTimeoutMs = self._maxPollIntervalMs
            body.serverAssignor = self._assignor
        if isFull or self._toldTopics != self.topics:
            body.subscribedTopicNames = list(self.topics)
        owned = {**self.held, **self.incoming}
        if isFull or self._isTargetNew or self._toldHeld != owned:
            places: dict[bytes, list[int]] = {}
            for place, topicId in owned.items():
                places.setdefault(topicId, []).append(place.partition)
            body.topicPartitions = [
                cls.TopicPartitions(topicId=topicId, partitions=sorted(numbers))
                for topicId, numbers in places.items()
            ]
            self._toldHeld, self._isTargetNew = owned, False
        return body

    def leaveRequest(self) -> Any:
        """The last heartbeat."""
        return messages.ConsumerGroupHeartbeatRequest(
            groupId=self.groupId,
            memberId=self.memberId,
            memberEpoch=LEAVE_EPOCH if self.instanceId is None else AWAY_EPOCH,
            instanceId=self.instanceId,
        )
