"""
A consumer of the classic protocol. A module of its own, beside that of KIP-848's, so that each can
be read beside its protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pylogbroker.coordinator.groupmessages import (
    CommitPartition,
    CommitTopic,
    Heartbeat,
    HeartbeatAnswer,
    JoinGroup,
    JoinGroupAnswer,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    OffsetCommit,
    OffsetCommitAnswer,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
    SyncGroup,
    SyncGroupAnswer,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.simulation.coordinators.world import SimulatedClient

if TYPE_CHECKING:
    from tests.simulation.coordinators.groups import GroupWorld

GROUP, TOPIC = "g", "t"
"""The group, and the topic that consumers of the classic protocol read."""


class ClassicConsumer(SimulatedClient):
    """
    A consumer of the classic protocol: eager, or cooperative as the whole group is.

    @cvar topicId: that its commits bring.
    @ivar owned: partitions, numbers.
    @ivar positions: where it reads on, of those it has asked for.
    @ivar isSynced: whether C{owned} is what its generation gave it.
    @ivar mustRejoin: it was told of a rebalance, has given partitions away, or has asked to join
        and not heard of a generation since.
    """

    topicId = ZERO_UUID

    def __init__(self, world: GroupWorld, name: str, instanceId: str | None) -> None:
        super().__init__(world, name)
        self.partitionCount = world.partitionCount
        random = world.random
        self.instanceId = instanceId
        self.version = (
            random.choice((0, 3, 4, 5, 9)) if instanceId is None else random.choice((5, 9))
        )
        self.sessionTimeoutMs = random.choice((6_000, 10_000))
        self.rebalanceTimeoutMs = random.choice((1_000, 5_000, 20_000))
        self.isCooperative = world.isCooperative
        self.filler = bytes(random.randrange(4))
        self.knowsSticky = random.random() < 0.3
        self.memberId = ""
        self.joined: JoinGroupAnswer | None = None
        self.owned: list[int] = []
        self.positions: dict[int, int] = {}
        self.isSynced = False
        self.mustRejoin = False

    def forget(self, keepsId: bool = False) -> None:
        """It is no member any more, as far as it knows."""
        if not keepsId:
            self.memberId = ""
        self.joined = None
        self.owned, self.positions = [], {}
        self.isSynced = self.mustRejoin = False

    @property
    def isSettled(self) -> bool:
        """Whether it owns what it was assigned, and knows where to go on."""
        return self.isSynced and self.positions.keys() == set(self.owned)

    @property
    def protocols(self) -> list[JoinProtocol]:
        """What it joins with. In a cooperative group it tells what it owns."""
        if self.isCooperative:
            return [JoinProtocol("cooperative", bytes(self.owned))]
        known = [JoinProtocol("range", self.filler)]
        if self.knowsSticky:
            known.append(JoinProtocol("sticky", b""))
        return known

    @property
    def leaving(self) -> LeaveGroup | None:
        """The request to leave, if it can."""
        if not self.memberId:
            return None
        return LeaveGroup(GROUP, members=[LeavingMember(self.memberId, self.instanceId)])

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        """What it owns, with the topic."""
        return frozenset((TOPIC, partition) for partition in self.owned)

    def subscribesTo(self, topic: str) -> bool:
        """Whether a topic is its own."""
        return topic == TOPIC

    # -- what only clients read

    def claimed(self, metadata: bytes) -> Collection[int]:
        """The partitions that a member of a cooperative group owns, by what it has joined with."""
        return metadata

    def assignment(self, partitions: Iterable[int]) -> bytes:
        """What a leader assigns."""
        return bytes(partitions)

    def assigned(self, assignment: bytes) -> list[int]:
        """What a member is assigned."""
        return list(assignment)

    def act(self) -> None:
        random = self.world.random
        if self.joined is None:
            self._join()
        elif self.mustRejoin:
            if self.isCooperative and self.isSettled and self.owned and random.random() < 0.5:
                self._commit(self.joined, random.choice(self.owned))
            else:
                self._join()
        elif not self.isSynced:
            self._sync(self.joined)
        elif not self.isSettled:
            self._fetch()
        elif self.owned and random.random() < 0.7:
            self._commit(self.joined, random.choice(self.owned))
        elif random.random() < 0.05 and not self.world.isCalm:
            self._join()
        else:
            self._heartbeat(self.joined)

    # -- requests

    def _join(self) -> None:
        self.mustRejoin, self.isSynced = True, False  # until a generation has it
        if not self.isCooperative:
            self.owned, self.positions = [], {}
        rebalanceTimeoutMs = self.rebalanceTimeoutMs if self.version else -1
        self.send(
            JoinGroup(
                GROUP,
                self.sessionTimeoutMs,
                rebalanceTimeoutMs,
                self.memberId,
                self.instanceId,
                "consumer",
                self.protocols,
            ),
            self._joinAnswered,
        )

    def _joinAnswered(self, answer: JoinGroupAnswer) -> None:
        if answer.errorCode == ErrorCode.NONE:
            self.memberId, self.joined, self.mustRejoin = answer.memberId, answer, False
        elif answer.errorCode == ErrorCode.MEMBER_ID_REQUIRED:
            self.memberId = answer.memberId
        else:
            self._failed(answer.errorCode)

    def _sync(self, joined: JoinGroupAnswer) -> None:
        assignments: list[MemberAssignment] = []
        if joined.members and not joined.skipAssignment:
            assignments = self._assign(joined)
        self.send(
            SyncGroup(
                GROUP,
                joined.generationId,
                self.memberId,
                self.instanceId,
                "consumer",
                joined.protocolName,
                assignments,
            ),
            self._syncAnswered,
        )

    def _assign(self, joined: JoinGroupAnswer) -> list[MemberAssignment]:
        """As the leader does. What another member owns is given away a generation later."""
        memberIds = [each.memberId for each in joined.members]
        self.world.random.shuffle(memberIds)
        count = len(memberIds)
        claims: dict[int, set[str]] = {}
        if self.isCooperative:
            for member in joined.members:
                for partition in self.claimed(member.metadata):
                    claims.setdefault(partition, set()).add(member.memberId)
        return [
            MemberAssignment(
                memberId,
                self.assignment(
                    partition
                    for partition in range(index, self.partitionCount, count)
                    if claims.get(partition, set()) <= {memberId}
                ),
            )
            for index, memberId in enumerate(memberIds)
        ]

    def _syncAnswered(self, answer: SyncGroupAnswer) -> None:
        if answer.errorCode:
            self._failed(answer.errorCode)
            return
        given = self.assigned(answer.assignment)
        if self.isCooperative:
            self.mustRejoin = not set(self.owned) <= set(given)
        self.owned, self.isSynced = given, True
        self.positions = {each: offset for each, offset in self.positions.items() if each in given}

    def _fetch(self) -> None:
        self.send(OffsetFetchGroup(GROUP), self._fetchAnswered)

    def _fetchAnswered(self, answer: OffsetFetchGroupAnswer) -> None:
        if answer.errorCode:
            self._failed(answer.errorCode)
            return
        found = {
            each.partitionIndex: each.committedOffset
            for topic in answer.topics
            if topic.name == TOPIC
            for each in topic.partitions
        }
        self.positions = {each: self.positions.get(each, found.get(each, 0)) for each in self.owned}

    def _commit(self, joined: JoinGroupAnswer, partition: int) -> None:
        offset = self.positions[partition] + self.world.random.randrange(3)
        self.send(
            OffsetCommit(
                GROUP,
                [CommitTopic(TOPIC, [CommitPartition(partition, offset)], self.topicId)],
                joined.generationId,
                self.memberId,
                self.instanceId,
            ),
            self._commitAnswered,
        )
        # It goes on from here whether the commit gets through or not.
        self.positions[partition] = offset

    def _commitAnswered(self, answer: OffsetCommitAnswer) -> None:
        code = answer.topics[0].partitions[0].errorCode
        if code:
            self._failed(code)

    def _heartbeat(self, joined: JoinGroupAnswer) -> None:
        self.send(
            Heartbeat(GROUP, joined.generationId, self.memberId, self.instanceId),
            self._heartbeatAnswered,
        )

    def _heartbeatAnswered(self, answer: HeartbeatAnswer) -> None:
        if answer.errorCode == ErrorCode.REBALANCE_IN_PROGRESS:
            self.mustRejoin = True
        elif answer.errorCode:
            self._failed(answer.errorCode)

    def _failed(self, code: int) -> None:
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.isAlive = False
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.mustRejoin = True
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            self.forget()
        elif code == ErrorCode.ILLEGAL_GENERATION:
            self.forget(keepsId=True)
