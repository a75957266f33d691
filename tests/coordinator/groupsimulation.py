"""
A group, its clients, the log and the network between them, in random orders of events; and what
must hold in each.

A seed gives the whole run. Requests and answers travel by themselves: they are late, or lost with
their connection. Appends wait, fail, or are lost in a crash, in which case some of them may be in
the log all the same. Clients stop, leave, come back in their own or another's name, or fall asleep
and wake up in an old generation. Offsets expire, and an operator deletes the group. At the end all
is well again, and the group has to come to rest.

The checkers know the clients, the answers and the log, not the inside of the coordinator:

  - I{two owners}: within a generation, no partition is given to two members;
  - I{a position that goes back}: the log of a partition's offsets never falls, and a fetch never
    shows less than what was acknowledged before it was sent;
  - I{a fenced writer that gets through}: a commit is refused if it comes with a generation older
    than one that members were told of, or from a member whose place was taken;
  - I{a rebalance that never ends}: at rest, the clients that live are the members, and own every
    partition once; every request has been answered;
  - I{memory and log differ}: another coordinator that reads the log knows the same;
  - I{counts}: what the limits count is what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState
from pylogbroker.coordinator.effects import Appended, Record
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

GROUP, TOPIC = "g", "t"
STEP_COUNT = 500
CALM_STEP_COUNT_MAX = 3_000
MEMBER_COUNT_MAX = 5
APPEND_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE)

FORGET = (ErrorCode.UNKNOWN_MEMBER_ID,)
REJOIN = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)


class BrokenPromiseError(Exception):
    """Something does not hold."""


class SimulatedMember:
    """A client. It has one request on its way at a time."""

    def __init__(self, world: GroupWorld, name: str, instanceId: str | None) -> None:
        random = world.random
        self.world = world
        self.name = name
        self.instanceId = instanceId
        self.version = (
            random.choice((0, 3, 4, 5, 9)) if instanceId is None else random.choice((5, 9))
        )
        self.sessionTimeoutMs = random.choice((6_000, 10_000))
        self.rebalanceTimeoutMs = random.choice((1_000, 5_000, 20_000))
        self.protocols = [JoinProtocol("range", bytes(random.randrange(4)))]
        if random.random() < 0.3:
            self.protocols.append(JoinProtocol("sticky", b""))
        self.memberId = ""
        self.joined: JoinGroupAnswer | None = None
        self.owned: list[int] | None = None
        self.positions: dict[int, int] = {}
        self.isAlive = True
        self.isAsleep = False
        self.mustRejoin = False
        self.request: object | None = None
        self.sentMs = 0

    def forget(self, keepsId: bool = False) -> None:
        """It is no member any more, as far as it knows."""
        if not keepsId:
            self.memberId = ""
        self.joined = self.owned = None
        self.positions = {}
        self.mustRejoin = False

    @property
    def isIdle(self) -> bool:
        """Whether it can send a request."""
        return self.isAlive and not self.isAsleep and self.request is None

    @property
    def isSettled(self) -> bool:
        """Whether it owns what it was assigned, and knows where to go on."""
        return self.owned is not None and self.positions.keys() == set(self.owned)

    def act(self) -> None:
        """Send the next request, if none is on its way."""
        if not self.isIdle:
            return
        if self.joined is None or self.mustRejoin:
            self._join()
        elif self.owned is None:
            self._sync(self.joined)
        elif not self.isSettled:
            self._fetch()
        elif self.owned and self.world.random.random() < 0.7:
            self._commit(self.joined, self.world.random.choice(self.owned))
        elif self.world.random.random() < 0.05 and not self.world.isCalm:
            self._join()
        else:
            self._heartbeat(self.joined)

    # -- requests

    def _send(self, request: object, handle: Callable[[Any], None]) -> None:
        self.request = request
        self.sentMs = self.world.nowMs
        self.world.requests.append((self, request, handle))

    def _join(self) -> None:
        # What it owned it has given up.
        self.owned, self.mustRejoin, self.positions = None, False, {}
        rebalanceTimeoutMs = self.rebalanceTimeoutMs if self.version else -1
        self._send(
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
        assignments = []
        if joined.members and not joined.skipAssignment:
            memberIds = [each.memberId for each in joined.members]
            self.world.random.shuffle(memberIds)
            count = len(memberIds)
            assignments = [
                MemberAssignment(each, bytes(range(index, self.world.partitionCount, count)))
                for index, each in enumerate(memberIds)
            ]
        self._send(
            SyncGroup(
                GROUP,
                joined.generationId,
                self.memberId,
                self.instanceId,
                "consumer",
                joined.protocolName,
                assignments,
            ),
            partial(self._syncAnswered, joined.generationId),
        )

    def _syncAnswered(self, generation: int, answer: SyncGroupAnswer) -> None:
        if answer.errorCode:
            self._failed(answer.errorCode)
            return
        self.owned = list(answer.assignment)

    def _fetch(self) -> None:
        self._send(OffsetFetchGroup(GROUP), self._fetchAnswered)

    def _fetchAnswered(self, answer: OffsetFetchGroupAnswer) -> None:
        if answer.errorCode:
            self._failed(answer.errorCode)
            return
        found = {
            each.partitionIndex: each.committedOffset
            for topic in answer.topics
            for each in topic.partitions
        }
        self.positions = {each: found.get(each, 0) for each in self.owned or ()}

    def _commit(self, joined: JoinGroupAnswer, partition: int) -> None:
        offset = self.positions[partition] + self.world.random.randrange(3)
        self._send(
            OffsetCommit(
                GROUP,
                [CommitTopic(TOPIC, [CommitPartition(partition, offset)])],
                joined.generationId,
                self.memberId,
                self.instanceId,
            ),
            partial(self._commitAnswered, partition, offset),
        )
        # It goes on from here whether the commit gets through or not.
        self.positions[partition] = offset

    def _commitAnswered(self, partition: int, offset: int, answer: OffsetCommitAnswer) -> None:
        code = answer.topics[0].partitions[0].errorCode
        if code:
            self._failed(code)

    def _heartbeat(self, joined: JoinGroupAnswer) -> None:
        self._send(
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
        elif code in FORGET:
            self.forget()
        elif code in REJOIN:
            self.forget(keepsId=True)


class SimulatedLog:
    """What is appended, and what is on its way there."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self.waiting: list[tuple[Sequence[Record], Appended]] = []
        self.records: list[Record] = []
        self.offsets: dict[int, int] = {}

    def append(self, partition: int, records: Sequence[Record], done: Appended) -> None:
        self.waiting.append((records, done))

    def flush(self, count: int, error: ErrorCode = ErrorCode.NONE) -> None:
        """The oldest appends are done, or have failed."""
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        for records, appended in done:
            if not error:
                self.keep(records)
            appended(error)

    def keep(self, records: Sequence[Record]) -> None:
        """Records are in the log."""
        for key, value in records:
            self.records.append((key, value))
            decoded = decodeKey(key)
            if value is None:
                self.world.forgotten(decoded)
            elif isinstance(decoded, OffsetCommitKey):
                offset = decodeCommittedOffset(value).offset
                if offset < self.offsets.get(decoded.partition, 0):
                    raise BrokenPromiseError(
                        f"the position of {decoded.partition} goes back to {offset}"
                    )
                self.offsets[decoded.partition] = offset

    def lastGeneration(self) -> int:
        """Of the group, as it would be read."""
        for key, value in reversed(self.records):
            if not isinstance(decodeKey(key), OffsetCommitKey):
                return 0 if value is None else decodeStoredGroup(value).generation
        return 0


class GroupWorld:
    """
    One run.

    @ivar requests: on their way to the coordinator.
    @ivar answers: on their way back.
    @ivar isCalm: nothing goes wrong any more.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nowMs = 1_000_000
        self.isCalm = False
        self.partitionCount = self.random.choice((1, 4, 7))
        self.log = SimulatedLog(self)
        self.members: list[SimulatedMember] = []
        self.requests: list[tuple[SimulatedMember, object, Callable[[Any], None]]] = []
        self.answers: list[tuple[SimulatedMember, object, Callable[[Any], None], object]] = []
        self.unanswered: dict[int, object] = {}
        self._requestNumber = 0
        # What the checkers know.
        self.owners: dict[tuple[int, int], str] = {}
        self.generation = 0
        self.acknowledged: dict[int, int] = {}
        self.forgottenCount = 0
        self.instances: dict[str, str] = {}
        self.fenced: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.settings = GroupSettings(
            partitionCount=1,
            initialRebalanceDelayMs=self.random.choice((0, 3_000)),
            groupMaxSize=self.random.choice((2, 2**31 - 1, 2**31 - 1)),
            newMemberJoinTimeoutMs=self.random.choice((10_000, 300_000)),
            offsetsRetentionMs=self.random.choice((8_000, 100_000_000)),
            offsetsRetentionCheckIntervalMs=5_000,
        )
        self.incarnation = 0
        self.coordinator = self._load()

    # -- the run

    def run(self) -> None:
        """
        Everything in a random order, then peace.

        @raise BrokenPromiseError: something does not hold.
        """
        for _ in range(STEP_COUNT):
            self.step()
            self.check()
        self.comeToRest()

    def step(self) -> None:
        """Something happens."""
        (event,) = self.random.choices(
            (
                self.clientActs, self.requestArrives, self.answerArrives, self.flush,
                self.timeGoesBy, self.connectionBreaks, self.clientComes, self.clientGoes,
                self.clientSleeps,
                self.appendFails, self.crash, self.operatorDeletes,
            ),
            (34, 30, 30, 14, 4, 2, 1.5, 1, 2, 0.7, 0.3, 0.7),
        )  # fmt: skip
        event()

    def clientActs(self) -> None:
        idle = [each for each in self.members if each.isIdle]
        if idle:
            self.random.choice(idle).act()

    def clientComes(self) -> None:
        """A new client; or a static one that was restarted, while the old one perhaps lives on."""
        if sum(each.isAlive for each in self.members) < MEMBER_COUNT_MAX:
            instanceId = self.random.choice((None, None, "i", "j"))
            name = f"m{len(self.members)}"
            if self.isCalm:
                instanceId = None
            self.members.append(SimulatedMember(self, name, instanceId))

    def clientGoes(self) -> None:
        """A client leaves, or dies."""
        alive = [each for each in self.members if each.isAlive]
        if not alive:
            return
        member = self.random.choice(alive)
        member.isAlive = False
        if self.random.random() < 0.5 and member.memberId:
            leave = LeaveGroup(GROUP, members=[LeavingMember(member.memberId, member.instanceId)])
            self.requests.append((member, leave, lambda answer: None))

    def clientSleeps(self) -> None:
        """A client falls asleep, or wakes up."""
        alive = [each for each in self.members if each.isAlive]
        if alive:
            member = self.random.choice(alive)
            member.isAsleep = not member.isAsleep

    def connectionBreaks(self) -> None:
        """What a client waits for does not come; what it has sent may have arrived, or not."""
        waiting = [each for each in self.members if each.request is not None]
        if waiting:
            self._disconnect(self.random.choice(waiting))

    def _disconnect(self, member: SimulatedMember) -> None:
        self.requests = [each for each in self.requests if each[1] is not member.request]
        member.request = None

    def timeGoesBy(self) -> None:
        self._advance(self.random.choice((1, 100, 1_000, 4_000)))

    def _advance(self, ms: int) -> None:
        endMs = self.nowMs + ms
        while (dueMs := self.coordinator.nextDeadlineMs()) is not None and dueMs <= endMs:
            self.nowMs = max(self.nowMs, dueMs)
            self.coordinator.advance()
        self.nowMs = endMs

    def flush(self) -> None:
        self.log.flush(self.random.randrange(len(self.log.waiting) + 1))

    def appendFails(self) -> None:
        self.log.flush(1, self.random.choice(APPEND_ERRORS))

    def operatorDeletes(self) -> None:
        """An operator deletes the group, which works only if it is empty."""
        self.coordinator.deleteGroups([GROUP], self._groupDeleted)

    def _groupDeleted(self, deleted: Sequence[DeletedGroup]) -> None:
        self.counts["deleted"] += not deleted[0].errorCode

    def forgotten(self, key: object) -> None:
        """The log says that the group or one of its offsets is no more."""
        self.forgottenCount += 1
        if isinstance(key, OffsetCommitKey):
            self.counts["forgotten"] += 1
            self.log.offsets.pop(key.partition, None)
            self.acknowledged.pop(key.partition, None)
        else:
            self.owners = {}
            self.generation = 0

    def crash(self) -> None:
        """The broker is killed. Of what was being appended, a part may be in the log."""
        for records, _ in self.log.waiting[: self.random.randrange(len(self.log.waiting) + 1)]:
            self.log.keep(records)
        self.log.waiting = []
        self.requests, self.answers, self.unanswered = [], [], {}
        for member in self.members:
            member.request = None
        self.incarnation += 1
        self.coordinator = self._load()
        self.generation = self.log.lastGeneration()
        self.instances, self.fenced = {}, set()
        self.counts["crashed"] += 1

    def _load(self) -> GroupCoordinator:
        append = partial(self._append, self.incarnation)
        made = GroupCoordinator(self.settings, append, lambda: self.nowMs, self.random)
        made.beginLoading(0)
        for key, value in self.log.records:
            made.replay(key, value)
        made.loaded(0)
        return made

    def _append(
        self, incarnation: int, partition: int, records: Sequence[Record], done: Appended
    ) -> None:
        if incarnation == self.incarnation:
            self.log.append(partition, records, done)

    # -- requests and answers

    def requestArrives(self) -> None:
        if self.requests:
            index = self.random.randrange(len(self.requests))
            member, request, handle = self.requests.pop(index)
            self._requestNumber += 1
            number, incarnation = self._requestNumber, self.incarnation
            self.unanswered[number] = request
            self._deliver(
                member,
                request,
                partial(self._answered, member, request, handle, number, incarnation),
            )

    def _deliver(
        self, member: SimulatedMember, request: object, reply: Callable[[Any], None]
    ) -> None:
        context = ClientContext(member.version, member.name, "/host")
        if isinstance(request, JoinGroup):
            self.coordinator.joinGroup(context, request, partial(self._checkJoin, request, reply))
        elif isinstance(request, SyncGroup):
            version = 5 if member.version >= 5 else 1
            self.coordinator.syncGroup(
                ClientContext(version), request, partial(self._checkSync, member, request, reply)
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

    def _answered(
        self,
        member: SimulatedMember,
        request: object,
        handle: Callable[[Any], None],
        number: int,
        incarnation: int,
        answer: object,
    ) -> None:
        if incarnation == self.incarnation:
            if number not in self.unanswered:
                raise BrokenPromiseError(f"{request} was answered twice")
            del self.unanswered[number]
            self.answers.append((member, request, handle, answer))

    def answerArrives(self) -> None:
        if self.answers:
            index = self.random.randrange(len(self.answers))
            member, request, handle, answer = self.answers.pop(index)
            if member.request is request:
                member.request = None
                handle(answer)

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
        member: SimulatedMember,
        request: SyncGroup,
        reply: Callable[[Any], None],
        answer: SyncGroupAnswer,
    ) -> None:
        self.counts["synced"] += not answer.errorCode
        if answer.errorCode == ErrorCode.NONE:
            if request.generationId > self.log.lastGeneration():
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
        if forgottenCount != self.forgottenCount:
            offsets = {}
        for partition, offset in offsets.items():
            if found.get(partition, -1) < offset:
                raise BrokenPromiseError(
                    f"{partition}: {found.get(partition)} was shown, not {offset}"
                )
        reply(answer)

    def check(self) -> None:
        """Memory and log agree, counts are right."""
        table = self.coordinator._table
        totals = table.totals
        groups = list(table.groups.values())
        counted = (
            sum(len(each.members) + len(each.pendingMembers) for each in groups),
            sum(member.metadataSize for each in groups for member in each.members.values()),
            sum(len(partitions) for each in groups for partitions in each.positions.values()),
        )
        if counted != (totals.memberCount, totals.metadataSize, totals.positionCount):
            raise BrokenPromiseError(f"{totals} does not count {counted}")
        for group in groups:
            self._checkGroup(group)
        if not self.log.waiting and self.random.random() < 0.1:
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
        deadlines = self.coordinator._table.deadlines
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
        read = self._load()._table.groups
        for group in groups:
            other = read.get(group.groupId)
            if group.positions and (other is None or other.positions != group.positions):
                raise BrokenPromiseError("other offsets are in the log than in memory")
            if group.state is ClassicGroupState.STABLE:
                if other is None or _members(other) != _members(group):
                    raise BrokenPromiseError("another generation is in the log than in memory")

    # -- peace

    def comeToRest(self) -> None:
        """
        Nothing goes wrong any more; those who sleep wake up, and a client comes if there is none.

        @raise BrokenPromiseError: the group does not come to rest.
        """
        self.isCalm = True
        for member in self.members:
            member.isAsleep = False
        if self.settings.groupMaxSize < MEMBER_COUNT_MAX:
            for member in [each for each in self.members if each.isAlive][
                self.settings.groupMaxSize :
            ]:
                member.isAlive = False
        for _ in range(CALM_STEP_COUNT_MAX):
            if not any(each.isAlive for each in self.members):
                self.clientComes()
            for member in self.members:
                member.act()
            while self.requests:
                self.requestArrives()
            self.log.flush(len(self.log.waiting))
            while self.answers:
                self.answerArrives()
            self.check()
            if self._isAtRest():
                return
            self._advance(200)
        raise BrokenPromiseError(f"no rest: {self._describe()}")

    def _isAtRest(self) -> bool:
        alive = [each for each in self.members if each.isAlive]
        group = self.coordinator._table.groups.get(GROUP)
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
        owned = sorted(partition for each in alive for partition in each.owned or ())
        if owned != list(range(self.partitionCount)):
            raise BrokenPromiseError(f"at rest, {owned} are owned")
        return True

    def _describe(self) -> str:
        group = self.coordinator._table.groups.get(GROUP)
        clients = [
            (
                each.name,
                each.instanceId,
                each.memberId,
                each.joined and each.joined.generationId,
                each.owned,
            )
            for each in self.members
            if each.isAlive
        ]
        if group is None:
            return f"no group; {clients}"
        return f"{group.state}, generation {group.generation}, {list(group.members)}; {clients}"


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


def simulate(seeds: Sequence[int]) -> Counter[str]:
    """
    Run seeds.

    @return: how often things have happened.
    @raise BrokenPromiseError: with the seed that shows it.
    """
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = GroupWorld(seed)
        try:
            world.run()
        except Exception as error:
            raise BrokenPromiseError(f"seed {seed}: {type(error).__name__}: {error}") from error
        counts += world.counts
        counts["generations"] += world.generation
    return counts
