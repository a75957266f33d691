"""
A group, its clients, the log and the network between them, in random orders of events; and what
must hold in each.

Clients of the classic protocol stop, leave, come back in their own or another's name, or fall
asleep and wake up in an old generation. Offsets expire, and an operator deletes the group.

The checkers know the clients, the answers and the log, not the inside of the coordinator:

  - I{two owners}: within a generation, no partition is given to two members;
  - I{a position that goes back}: the log of a partition's offsets never falls, and a fetch never
    shows less than what was acknowledged before it was sent, a crash or not;
  - I{a fenced writer that gets through}: a commit is refused if it comes with a generation older
    than one that members were told of, or from a member whose place was taken;
  - I{a rebalance that never ends}: at rest, the clients that live are the members, and own every
    partition once; every request has been answered;
  - I{memory and log differ}: another coordinator that reads the log knows the same;
  - I{counts}: what the limits count is what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    DeletedGroup,
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
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.offsetstopic import (
    OffsetCommitKey,
    decodeCommittedOffset,
    decodeKey,
    decodeStoredGroup,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.simulation.coordinators.world import (
    BrokenPromiseError,
    CoordinatorWorld,
    SimulatedClient,
)

GROUP, TOPIC = "g", "t"
MEMBER_COUNT_MAX = 5


class GroupMember(SimulatedClient):
    """
    A consumer of the classic protocol: eager, or cooperative as the whole group is.

    @ivar owned: partitions, numbers.
    @ivar positions: where it reads on, of those it has asked for.
    @ivar isSynced: whether C{owned} is what its generation gave it.
    @ivar mustRejoin: it was told of a rebalance, or has given partitions away.
    """

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
        self.mustRejoin = self.isSynced = False
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
            self.memberId, self.joined = answer.memberId, answer
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
                for partition in member.metadata:
                    claims.setdefault(partition, set()).add(member.memberId)
        return [
            MemberAssignment(
                memberId,
                bytes(
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
        given = list(answer.assignment)
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
            for each in topic.partitions
        }
        self.positions = {each: self.positions.get(each, found.get(each, 0)) for each in self.owned}

    def _commit(self, joined: JoinGroupAnswer, partition: int) -> None:
        offset = self.positions[partition] + self.world.random.randrange(3)
        self.send(
            OffsetCommit(
                GROUP,
                [CommitTopic(TOPIC, [CommitPartition(partition, offset)])],
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
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget()
        elif code == ErrorCode.ILLEGAL_GENERATION:
            self.forget(keepsId=True)


class GroupWorld(CoordinatorWorld):
    """One run with a group."""

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        super().__init__(seed, isTraced)
        random = self.random
        self.isCooperative = random.random() < 0.4
        self.partitionCount = random.choice((1, 4, 7))
        # What the checkers know.
        self.offsets: dict[int, int] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.generation = 0
        self.acknowledged: dict[int, int] = {}
        self.forgottenCount = 0
        self.instances: dict[str, str] = {}
        self.fenced: set[str] = set()
        self.settings = GroupSettings(
            partitionCount=1,
            initialRebalanceDelayMs=random.choice((0, 3_000)),
            groupMaxSize=random.choice((2, 2**31 - 1, 2**31 - 1)),
            newMemberJoinTimeoutMs=random.choice((10_000, 300_000)),
            offsetsRetentionMs=random.choice((8_000, 100_000_000)),
            offsetsRetentionCheckIntervalMs=5_000,
        )
        self._coordinator = self.load()

    @property
    def coordinator(self) -> GroupCoordinator:
        return self._coordinator

    def load(self) -> GroupCoordinator:
        append = partial(self.append, self.incarnation)
        made = GroupCoordinator(self.settings, append, lambda: self.nowMs, self.random)
        made.beginLoading(0)
        for key, value in self.log.records:
            made.replay(key, value)
        made.loaded(0)
        return made

    def restarted(self) -> None:
        self._coordinator = self.load()
        self.generation = self._lastGeneration()
        self.instances, self.fenced = {}, set()

    def _lastGeneration(self) -> int:
        """Of the group, as it would be read."""
        for key, value in reversed(self.log.records):
            if not isinstance(decodeKey(key), OffsetCommitKey):
                return 0 if value is None else decodeStoredGroup(value).generation
        return 0

    def kept(self, key: bytes, value: bytes | None) -> None:
        decoded = decodeKey(key)
        if not isinstance(decoded, OffsetCommitKey):
            if value is None:
                self.forgottenCount += 1
                self.owners = {}
                self.generation = 0
        elif value is None:
            self.forgottenCount += 1
            self.counts["forgotten"] += 1
            self.offsets.pop(decoded.partition, None)
            self.acknowledged.pop(decoded.partition, None)
        else:
            offset = decodeCommittedOffset(value).offset
            if offset < self.offsets.get(decoded.partition, 0):
                raise BrokenPromiseError(
                    f"the position of {decoded.partition} goes back to {offset}"
                )
            self.offsets[decoded.partition] = offset

    # -- events

    def events(self) -> Mapping[Callable[[], None], float]:
        return {self.clientComes: 1.5, self.clientGoes: 1.0, self.operatorDeletes: 0.7}

    def clientComes(self) -> None:
        """A new client; or a static one that was restarted, while the old one perhaps lives on."""
        if sum(each.isAlive for each in self.clients) < MEMBER_COUNT_MAX:
            instanceId = self.random.choice((None, None, "i", "j"))
            name = f"m{len(self.clients)}"
            if self.isCalm:
                instanceId = None
            self.clients.append(GroupMember(self, name, instanceId))
            self.say(lambda: f"{name} comes, instance {instanceId}")

    def clientGoes(self) -> None:
        """A client leaves, or dies."""
        alive = [each for each in self.clients if each.isAlive]
        if not alive:
            return
        member = self.random.choice(alive)
        member.isAlive = False
        isLeaving = self.random.random() < 0.5 and bool(member.memberId)
        self.say(lambda: f"{member.name} {'leaves' if isLeaving else 'dies'}")
        if isLeaving:
            leave = LeaveGroup(GROUP, members=[LeavingMember(member.memberId, member.instanceId)])
            self.requests.append((member, leave, lambda answer: None))

    def operatorDeletes(self) -> None:
        """An operator deletes the group, which works only if it is empty."""
        self.say(lambda: "an operator deletes the group")
        self._coordinator.deleteGroups([GROUP], self._groupDeleted)

    def _groupDeleted(self, deleted: Sequence[DeletedGroup]) -> None:
        self.say(lambda: f"deleted: {deleted}")
        self.counts["deleted"] += not deleted[0].errorCode

    # -- requests

    def deliver(self, client: Any, request: Any, reply: Callable[[Any], None]) -> None:
        context = ClientContext(client.version, client.name, "/host")
        if isinstance(request, JoinGroup):
            self.coordinator.joinGroup(context, request, partial(self._checkJoin, request, reply))
        elif isinstance(request, SyncGroup):
            version = 5 if client.version >= 5 else 1
            self.coordinator.syncGroup(
                ClientContext(version), request, partial(self._checkSync, request, reply)
            )
        elif isinstance(request, Heartbeat):
            reply(self.coordinator.heartbeat(request))
        elif isinstance(request, LeaveGroup):
            self.coordinator.leaveGroup(ClientContext(5), request, reply)
        elif isinstance(request, OffsetCommit):
            isOld = request.generationIdOrMemberEpoch < self.generation
            isFenced = request.memberId in self.fenced
            self.coordinator.offsetCommit(
                ClientContext(9),
                request,
                partial(self._checkCommit, request, isOld, isFenced, reply),
            )
        elif isinstance(request, OffsetFetchGroup):
            known = self.forgottenCount, dict(self.acknowledged)
            self.coordinator.offsetFetch(
                ClientContext(8), request, True, partial(self._checkFetch, known, reply)
            )

    # -- the checkers

    def _checkJoin(
        self, request: JoinGroup, reply: Callable[[Any], None], answer: JoinGroupAnswer
    ) -> None:
        if answer.errorCode == ErrorCode.NONE:
            self.counts["joined"] += 1
            self.generation = max(self.generation, answer.generationId)
            if request.groupInstanceId is not None:
                before = self.instances.get(request.groupInstanceId, answer.memberId)
                if before != answer.memberId:
                    self.counts["replaced"] += 1
                    self.fenced.add(before)
                self.instances[request.groupInstanceId] = answer.memberId
        reply(answer)

    def _checkSync(
        self,
        request: SyncGroup,
        reply: Callable[[Any], None],
        answer: SyncGroupAnswer,
    ) -> None:
        self.counts["synced"] += not answer.errorCode
        if answer.errorCode == ErrorCode.NONE:
            if request.generationId > self._lastGeneration():
                raise BrokenPromiseError(f"generation {request.generationId} is not in the log")
            owner = request.groupInstanceId or request.memberId
            for partition in answer.assignment:
                place = request.generationId, partition
                if self.owners.setdefault(place, owner) != owner:
                    raise BrokenPromiseError(
                        f"{place} has two owners: {self.owners[place]}, {owner}"
                    )
        reply(answer)

    def _checkCommit(
        self,
        request: OffsetCommit,
        isOld: bool,
        isFenced: bool,
        reply: Callable[[Any], None],
        answer: OffsetCommitAnswer,
    ) -> None:
        (result,) = answer.topics[0].partitions
        self.counts["refused" if result.errorCode else "committed"] += 1
        self.counts["old"] += isOld
        self.counts["fenced"] += isFenced
        if not result.errorCode:
            if isOld or isFenced:
                raise BrokenPromiseError(f"{request} got through")
            (committed,) = request.topics[0].partitions
            self.acknowledged[result.partitionIndex] = committed.committedOffset
        reply(answer)

    def _checkFetch(
        self,
        known: tuple[int, dict[int, int]],
        reply: Callable[[Any], None],
        answer: OffsetFetchGroupAnswer,
    ) -> None:
        found = {
            each.partitionIndex: each.committedOffset
            for topic in answer.topics
            for each in topic.partitions
        }
        forgottenCount, offsets = known
        if forgottenCount != self.forgottenCount or answer.errorCode:
            offsets = {}
        for partition, offset in offsets.items():
            if found.get(partition, -1) < offset:
                raise BrokenPromiseError(
                    f"{partition}: {found.get(partition)} was shown, not {offset}"
                )
        reply(answer)

    def check(self) -> None:
        """Memory and log agree, counts are right."""
        table = self._coordinator._table
        totals = table.totals
        groups = _classicGroups(self._coordinator)
        counted = (
            sum(len(each.members) + len(each.pendingMembers) for each in groups),
            sum(member.metadataSize for each in groups for member in each.members.values()),
            sum(len(partitions) for each in groups for partitions in each.offsets.values()),
        )
        if counted != (totals.memberCount, totals.metadataSize, totals.offsetCount):
            raise BrokenPromiseError(f"{totals} does not count {counted}")
        for group in groups:
            self._checkGroup(group)
        if self.log.isIdle and not self.log.isOffline and self.random.random() < 0.1:
            self._checkLog(groups)

    def _checkGroup(self, group: ClassicGroup) -> None:
        waiting = sum(each.joinReply is not None for each in group.members.values())
        if waiting != group.awaitingJoinCount:
            raise BrokenPromiseError(
                f"{waiting} members wait, {group.awaitingJoinCount} are counted"
            )
        if group.members and group.leaderId not in group.members:
            raise BrokenPromiseError(f"{group.leaderId} leads, who is no member")
        if not group.pendingSyncs <= group.members.keys():
            raise BrokenPromiseError("a sync is expected of one who is no member")
        deadlines = self._coordinator._table.deadlines
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and ("join", GROUP) not in deadlines
        ):
            raise BrokenPromiseError("nothing ends the rebalance")
        if group.pendingSyncs and ("sync", GROUP) not in deadlines:
            raise BrokenPromiseError("nothing ends the wait for syncs")
        for member in group.members.values():
            isParked = member.joinReply is not None or member.syncReply is not None
            if not isParked and ("session", GROUP, member.memberId) not in deadlines:
                raise BrokenPromiseError(f"nothing ends the session of {member.memberId}")

    def _checkLog(self, groups: Sequence[ClassicGroup]) -> None:
        read = {each.groupId: each for each in _classicGroups(self.load())}
        for group in groups:
            other = read.get(group.groupId)
            if group.offsets and (other is None or other.offsets != group.offsets):
                raise BrokenPromiseError("other offsets are in the log than in memory")
            if group.state is ClassicGroupState.STABLE:
                if other is None or _members(other) != _members(group):
                    raise BrokenPromiseError("another generation is in the log than in memory")

    # -- peace

    def calm(self) -> None:
        if self.settings.groupMaxSize < MEMBER_COUNT_MAX:
            for member in [each for each in self.clients if each.isAlive][
                self.settings.groupMaxSize :
            ]:
                member.isAlive = False
        self._someoneLives()

    def _someoneLives(self) -> None:
        if not any(each.isAlive for each in self.clients):
            self.clientComes()

    def isAtRest(self) -> bool:
        self._someoneLives()
        alive = [each for each in self.clients if each.isAlive]
        group = self._coordinator._table.classic(GROUP)
        if group is None or group.state is not ClassicGroupState.STABLE or self.unanswered:
            return False
        if set(group.members) != {each.memberId for each in alive}:
            return False
        if any(
            each.joined is None or each.joined.generationId != group.generation for each in alive
        ):
            return False
        if not all(each.isSettled and not each.mustRejoin for each in alive):
            return False
        owned = sorted(partition for each in alive for partition in each.owned)
        if owned != list(range(self.partitionCount)):
            raise BrokenPromiseError(f"at rest, {owned} are owned")
        return True

    def describe(self) -> str:
        group = self._coordinator._table.classic(GROUP)
        clients = [
            (
                each.name,
                each.instanceId,
                each.memberId,
                each.joined and each.joined.generationId,
                each.owned,
            )
            for each in self.clients
            if each.isAlive
        ]
        if group is None:
            return f"no group; {clients}"
        return f"{group.state}, generation {group.generation}, {list(group.members)}; {clients}"


def _classicGroups(coordinator: GroupCoordinator) -> list[ClassicGroup]:
    groups = coordinator._table.groups.values()
    return [each for each in groups if isinstance(each, ClassicGroup)]


def _members(group: ClassicGroup) -> tuple[object, ...]:
    return (
        group.generation,
        group.protocolName,
        group.leaderId,
        {
            each.memberId: (
                each.groupInstanceId,
                each.assignment,
                each.metadata(group.protocolName),
            )
            for each in group.members.values()
        },
    )
