"""
A group that goes on with the other protocol while it has members (C{bidirectional} as
C{group.consumer.migration.policy}): clients of both protocols in one group, as when an application
is moved to the new protocol process by process, and back. A module of its own, beside groups whose
clients speak one protocol at a time.

What must hold is that of L{tests.simulation.coordinators.groups}. No partition is given to two
members at any time, whatever their protocols are; and a member of the classic protocol, too, is
told nothing that is not in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from typing import Any

from pylogbroker.coordinator.classicgroup import ClassicGroup
from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup
from pylogbroker.coordinator.consumergroups.consumerprotocol import (
    decodeAssignment,
    decodeSubscription,
)
from pylogbroker.coordinator.group import Group
from pylogbroker.coordinator.groupmessages import (
    Heartbeat,
    JoinGroup,
    JoinGroupAnswer,
    JoinProtocol,
    OffsetCommit,
    SyncGroup,
    SyncGroupAnswer,
)
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.simulation.coordinators.classicmember import GROUP, TOPIC, ClassicConsumer
from tests.simulation.coordinators.consumermember import ModernConsumer, Place
from tests.simulation.coordinators.groups import TOPIC_IDS, GroupWorld
from tests.simulation.coordinators.ownership import SeenMember
from tests.simulation.seeds import BrokenPromiseError

_INT16 = Struct(">h")
_OWNED_VERSION = 1
"""From here on a subscription tells what its member owns."""

_VERSION_MAX = 3


class MigratingConsumer(ClassicConsumer):
    """A consumer of the classic protocol, whose subscriptions and assignments are Kafka's."""

    topicId = TOPIC_IDS[TOPIC].bytes

    def __init__(self, world: GroupWorld, name: str, instanceId: str | None) -> None:
        super().__init__(world, name, instanceId)
        versionMin = _OWNED_VERSION if self.isCooperative else 0
        self._version = world.random.randint(versionMin, _VERSION_MAX)

    @property
    def protocols(self) -> list[JoinProtocol]:
        cls: Any = messages.ConsumerProtocolSubscription
        owned = [cls.TopicPartition(topic=TOPIC, partitions=self.owned)] if self.owned else []
        encoded = cls(topics=[TOPIC], ownedPartitions=owned).encode(self._version)
        names = [each.name for each in super().protocols]
        return [JoinProtocol(name, _INT16.pack(self._version) + encoded) for name in names]

    def claimed(self, metadata: bytes) -> Collection[int]:
        return _partitionsOf(decodeSubscription(metadata).ownedPartitions)

    def assignment(self, partitions: Iterable[int]) -> bytes:
        cls: Any = messages.ConsumerProtocolAssignment
        parts = [cls.TopicPartition(topic=TOPIC, partitions=list(partitions))]
        encoded: bytes = cls(assignedPartitions=parts).encode(self._version)
        return _INT16.pack(self._version) + encoded

    def assigned(self, assignment: bytes) -> list[int]:
        return _assigned(assignment)


def _assigned(assignment: bytes) -> list[int]:
    return _partitionsOf(decodeAssignment(assignment).assignedPartitions if assignment else ())


def _partitionsOf(parts: Sequence[Any]) -> list[int]:
    return [partition for each in parts if each.topic == TOPIC for partition in each.partitions]


class MigrationWorld(GroupWorld):
    """One run with a group that goes on with the other protocol while it has members."""

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        self._lastGroup: Group | None = None
        super().__init__(seed, isTraced, (MigratingConsumer, ModernConsumer))

    def makeSettings(self) -> GroupSettings:
        return replace(super().makeSettings(), mayUpgrade=True, mayDowngrade=True)

    def noteProtocol(self) -> None:
        """Count the changes with members."""
        group, before = self.coordinator._table.groups.get(GROUP), self._lastGroup
        if group is not before:
            if isinstance(before, ConsumerGroup) and isinstance(group, ClassicGroup):
                self.counts["downgraded"] += group.generation >= before.epoch
            elif isinstance(group, ConsumerGroup):
                isMixed = any(each.classic is not None for each in group.members.values())
                self.counts["upgraded"] += isMixed and isinstance(before, ClassicGroup)
            self._lastGroup = group

    def protocolChanges(self) -> None:
        """Those that come now speak one of the protocols; a client of another one goes, perhaps."""
        self.protocol = self.random.choice(self.protocols)
        self.say(lambda: f"now come {self.protocol.__name__}")
        for each in self.clients:
            if each.isAlive and not isinstance(each, self.protocol) and self.random.random() < 0.4:
                self._goes(each)

    # -- the checkers

    def loggedStates(self, group: Group | None) -> dict[str, tuple[int, frozenset[Place]]]:
        if not isinstance(group, ClassicGroup):
            return super().loggedStates(group)
        return {
            each.memberId: (group.generation, _placesOf(_assigned(each.assignment)))
            for each in group.members.values()
        }

    def deliver(self, client: Any, request: Any, reply: Callable[[Any], None]) -> None:
        if isinstance(request, JoinGroup | SyncGroup | Heartbeat):
            if isinstance(request, JoinGroup):
                claimed = client.claimed(request.protocols[0].metadata)
                number = self.ownership.joinArrived(request, _placesOf(claimed))
            else:
                number = self.ownership.requestArrived()
            since = self.loggedNumber
            reply = partial(self._checkClassic, client, request, number, since, self.nowMs, reply)
        super().deliver(client, request, reply)

    def _checkClassic(
        self,
        client: MigratingConsumer,
        request: JoinGroup | SyncGroup | Heartbeat,
        number: int,
        since: int,
        arrivedMs: int,
        reply: Callable[[Any], None],
        answer: Any,
    ) -> None:
        if not answer.errorCode:
            memberId = request.memberId
            if isinstance(answer, JoinGroupAnswer):
                memberId = answer.memberId
            # Version 0 knows one time-out for both.
            timeoutMs = client.rebalanceTimeoutMs if client.version else client.sessionTimeoutMs
            made = SeenMember(client.instanceId, client.sessionTimeoutMs, timeoutMs, isClassic=True)
            if isinstance(request, SyncGroup):
                self._checkTold(client, request, since, answer)
            else:  # a sync need not begin a session anew
                self.ownership.classicAccepted(made, memberId, number, arrivedMs)
        elif answer.errorCode == ErrorCode.GROUP_MAX_SIZE_REACHED or (
            answer.errorCode == ErrorCode.UNKNOWN_MEMBER_ID
            and client.isAlive
            and client.request is request
        ):
            self.ownership.removed(request.memberId)  # or so it believes
        reply(answer)

    def _checkTold(
        self, client: MigratingConsumer, request: SyncGroup, since: int, answer: SyncGroupAnswer
    ) -> None:
        """What a member is told is in the log, or was when it asked; no other member has it."""
        given = _placesOf(client.assigned(answer.assignment))
        memberId, generation = request.memberId, request.generationId
        if not self.wasLogged(since, memberId, generation, given, [TOPIC]):
            raise BrokenPromiseError(f"{sorted(given)} for {memberId} is not in the log")
        if client.isAlive and client.request is request:
            instanceId = request.groupInstanceId
            self.ownership.classicTold(memberId, instanceId, given, generation, self.nowMs)

    def checkJoin(
        self, request: JoinGroup, reply: Callable[[Any], None], answer: JoinGroupAnswer
    ) -> None:
        self.counts["joined"] += not answer.errorCode
        reply(answer)

    def checkSync(
        self, request: SyncGroup, reply: Callable[[Any], None], answer: SyncGroupAnswer
    ) -> None:
        self.counts["synced"] += not answer.errorCode
        reply(answer)

    def isFenced(self, client: Any, request: OffsetCommit) -> tuple[bool, bool]:
        return False, self.isTaken(request)

    # -- peace

    def calm(self) -> None:
        protocols = self.random.choice((*((each,) for each in self.protocols), self.protocols))
        self.protocol = self.random.choice(protocols)
        settings = self.settings
        self.leave(protocols, min(settings.groupMaxSize, settings.consumerGroupMaxSize))

    def areSettled(self, group: ConsumerGroup, alive: Sequence[Any]) -> bool:
        for each in alive:
            if isinstance(each, MigratingConsumer):
                epoch = group.members[each.memberId].epoch
                if each.joined is None or each.mustRejoin or each.joined.generationId != epoch:
                    return False
        return super().areSettled(group, alive)


def _placesOf(partitions: Iterable[int]) -> frozenset[Place]:
    return frozenset((TOPIC, partition) for partition in partitions)


def groupWorld(seed: int, isTraced: bool = False) -> GroupWorld:
    """A run with a group; in a quarter of the seeds it goes on with the other protocol."""
    return MigrationWorld(seed, isTraced) if seed % 4 == 1 else GroupWorld(seed, isTraced)
