"""
A consumer of KIP-848: what Kafka's Java client does about heartbeats, and what a slow or careless
one may do. A module of its own, beside that of the classic protocol.

It tells what has changed since the last heartbeat that was answered; everything, if an answer was
lost. Partitions that it has to give up it gives up when it comes to it, perhaps with a last commit,
and says so; then it may get others. A member that was fenced drops all it has, and joins again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pylogbroker.coordinator.groupmessages import (
    CommitPartition,
    CommitTopic,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatAnswer,
    ConsumerPartitions,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.simulation.coordinators.world import SimulatedClient
from tests.simulation.seeds import BrokenPromiseError

if TYPE_CHECKING:
    from tests.simulation.coordinators.groups import GroupWorld

GROUP = "g"
LEFT_EPOCH, AWAY_EPOCH = -1, -2
Place = tuple[str, int]
"""A topic and a partition."""

SUBSCRIPTIONS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("t",), None), (("t",), None), (("t", "u"), None), (("u",), None), ((), "[uv]"),
    (("t",), "[vu]"),
)  # fmt: skip
"""Names, and a pattern."""

LOST = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
TRY_AGAIN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class ModernConsumer(SimulatedClient):
    """
    A consumer of KIP-848.

    @ivar epoch: 0 if it is no member, as far as it knows.
    @ivar given: what the coordinator has said that it may own.
    @ivar owned: what it owns.
    @ivar told: what it has said that it owns; L{None}: the coordinator may not know.
    @ivar positions: where it reads on, of those it has asked for.
    @ivar isStuck: its heartbeats go on, but it gives nothing up and takes nothing over.
    """

    def __init__(self, world: GroupWorld, name: str, instanceId: str | None) -> None:
        super().__init__(world, name)
        random = world.random
        self._group = world
        self.instanceId = instanceId
        self.version = random.choice((0, 1))
        self.memberId = f"{name}-id" if self.version else ""
        self.rebalanceTimeoutMs = random.choice((1_000, 5_000, 20_000))
        self.topics, self.pattern = random.choice(SUBSCRIPTIONS)
        self.assignor = random.choice((None, "uniform", "range"))
        self.isStuck = False
        self._lose()

    def _lose(self) -> None:
        """It is no member any more, as far as it knows."""
        self.epoch = 0
        self.given: frozenset[Place] = frozenset()
        self.owned: frozenset[Place] = frozenset()
        self.told: frozenset[Place] | None = None
        self.positions: dict[Place, int] = {}
        self._isSubscriptionTold = False

    @property
    def isSettled(self) -> bool:
        """Whether it owns what it was given, has said so, and knows where to go on."""
        return self.owned == self.given == self.told == self.positions.keys()

    @property
    def places(self) -> frozenset[Place]:
        """What it owns."""
        return self.owned

    def subscribesTo(self, topic: str) -> bool:
        """Whether a topic is its own."""
        return topic in self.topics or topic in (self.pattern or "")

    @property
    def leaving(self) -> ConsumerGroupHeartbeat | None:
        """The request to leave, or to go for a while, if it can."""
        if not self.epoch:
            return None
        isAway = self.instanceId is not None and self.world.random.random() < 0.7
        epoch = AWAY_EPOCH if isAway else LEFT_EPOCH
        return ConsumerGroupHeartbeat(GROUP, self.memberId, epoch, self.instanceId)

    def act(self) -> None:
        random, isCalm = self.world.random, self.world.isCalm
        if not self.epoch or self.told is None:
            self._beat()
        elif self.owned != self.given and not self.isStuck:
            self._reconcile()
        elif self.owned != self.told:
            self._beat()
        elif self.positions.keys() != self.owned and random.random() < 0.8:
            request = OffsetFetchGroup(GROUP, None, self.memberId, self.epoch)
            self.send(request, self._fetched)
        elif self.positions and random.random() < 0.6:
            self._commit(random.choice(sorted(self.positions)))
        elif random.random() < 0.05 and not isCalm:
            self.topics, self.pattern = random.choice(SUBSCRIPTIONS)
            self._isSubscriptionTold = False
            self._beat()
        else:
            self._beat()

    def _reconcile(self) -> None:
        leftPlaces = sorted(self.positions.keys() - self.given)
        if leftPlaces and self.world.random.random() < 0.5:
            self._commit(self.world.random.choice(leftPlaces))
            return
        self.owned = self.given
        self.positions = {
            each: self.positions[each] for each in self.positions if each in self.owned
        }
        self._beat()

    # -- requests

    def _beat(self) -> None:
        isJoining, isFull = not self.epoch, self.told is None
        isSubscribing = isFull or not self._isSubscriptionTold
        owned = self.owned
        request = ConsumerGroupHeartbeat(
            GROUP,
            self.memberId,
            self.epoch,
            self.instanceId,
            None,
            self.rebalanceTimeoutMs if isFull else -1,
            list(self.topics) if isSubscribing else None,
            (self.pattern or "") if isSubscribing else None,
            self.assignor if isFull else None,
            self._partitions(() if isJoining else owned) if isFull or owned != self.told else None,
        )
        self._isSubscriptionTold = False
        self.told = None
        self.send(request, lambda answer: self._beaten(owned, answer))

    def _partitions(self, places: Iterable[Place]) -> list[ConsumerPartitions]:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(places):
            topics.setdefault(topic, []).append(partition)
        ids = self._group.topicIds
        return [ConsumerPartitions(ids[topic], some) for topic, some in topics.items()]

    def _beaten(self, told: frozenset[Place], answer: ConsumerGroupHeartbeatAnswer) -> None:
        code = answer.errorCode
        if code == ErrorCode.NONE:
            self.memberId, self.epoch = answer.memberId or "", answer.memberEpoch
            self.told, self._isSubscriptionTold = told, True
            if answer.assignment is not None:
                self.given = self._group.placesOf(answer.assignment)
        elif code in LOST:
            self._lose()
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.isAlive = False
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self.isAlive = not self.world.isCalm and self.world.random.random() < 0.7
        elif code not in TRY_AGAIN:
            raise BrokenPromiseError(f"{self.name} was answered {answer}")

    def _fetched(self, answer: OffsetFetchGroupAnswer) -> None:
        if answer.errorCode:
            return  # it goes on with a heartbeat, some time
        found = {
            (topic.name, each.partitionIndex): each.committedOffset
            for topic in answer.topics
            for each in topic.partitions
        }
        self.positions = {each: self.positions.get(each, found.get(each, 0)) for each in self.owned}

    def _commit(self, place: Place) -> None:
        topic, partition = place
        offset = self.positions[place] + self.world.random.randrange(3)
        commit = CommitTopic(
            topic, [CommitPartition(partition, offset)], self._group.topicIds[topic]
        )
        request = OffsetCommit(GROUP, [commit], self.epoch, self.memberId, self.instanceId)
        self.send(request, self._committed)
        # It goes on from here whether the commit gets through or not.
        self.positions[place] = offset

    def _committed(self, answer: OffsetCommitAnswer) -> None:
        """Whatever it is, a heartbeat will tell what to do."""
