"""
A group, its clients, the log and the network between them, in random orders of events; and what
must hold in each.

A seed has clients of the classic protocol, of KIP-848, or first of one and then of the other, which
get in when the group is empty; L{tests.simulation.coordinators.migration} has both in one group.
They stop, leave, come back in their own or another's name, or fall asleep and wake up in an old
generation or epoch. Those of KIP-848 subscribe to other topics, give up partitions too late, or are
removed by an operator; topics come and grow. Offsets expire, and an operator deletes the group.

The checkers know the clients, the answers and the log; where they look into the coordinator, it is
to see that nothing waits for ever and that memory and log agree:

  - I{two owners}: no partition is given to two members, within a generation, or at any time
    (L{tests.simulation.coordinators.ownership}); and no member is told what is not in the log;
  - I{a position that goes back}: the log of a partition's offsets never falls, and a fetch never
    shows less than what was acknowledged before it was sent, a crash or not;
  - I{a fenced member or writer that gets through}: a commit is refused if it comes with a
    generation or epoch older than that of the partition's owner, or from a member whose place was
    taken; a heartbeat is refused if it comes with an epoch before the last two, or from a member
    whose place was taken;
  - I{a rebalance that never ends}: at rest, the clients that live are the members, and own every
    partition once, and none of KIP-848 is left without any; every request has been answered;
    deadlines end every wait;
  - I{memory and log differ}: another coordinator that reads the log knows the same;
  - I{counts}: what the limits count is what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from pylogbroker.cluster.metadataimage import MetadataImage, PartitionCountRecord, TopicRecord
from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState
from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup, MemberState
from pylogbroker.coordinator.group import Group
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    ConsumerAssignment,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatAnswer,
    ConsumerPartitions,
    DeletedGroup,
    Heartbeat,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    LeavingMember,
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
from tests.simulation.coordinators.classicmember import GROUP, TOPIC, ClassicConsumer
from tests.simulation.coordinators.consumermember import AWAY_EPOCH, ModernConsumer, Place
from tests.simulation.coordinators.ownership import ArrivedHeartbeat, Ownership
from tests.simulation.coordinators.world import CoordinatorWorld
from tests.simulation.seeds import BrokenPromiseError

MEMBER_COUNT_MAX = 5
PARTITION_COUNT_MAX = 8
GROWING_TOPICS = ("u", "v")
TOPIC_IDS = {name: UUID(int=index + 1) for index, name in enumerate((TOPIC, *GROWING_TOPICS))}


Protocols = tuple[type[ClassicConsumer] | type[ModernConsumer], ...]


class LoggedMember(NamedTuple):
    """
    A state of a member that the log had or has.

    @ivar number: since when, by C{loggedNumber}.
    @ivar epoch: or the generation; -1: it was not there.
    """

    number: int
    epoch: int
    places: frozenset[Place]


PROTOCOLS: tuple[Protocols, ...] = (
    (ClassicConsumer,),
    (ModernConsumer,),
    (ClassicConsumer, ModernConsumer),
)


class GroupWorld(CoordinatorWorld):
    """
    One run with a group.

    @ivar protocols: of the clients.
    @ivar protocol: of those that come now.
    @ivar topicIds: by name.
    @ivar shadow: a coordinator that serves no client, and reads each record when it is in the log.
    @ivar logged: by member, the states that the log had; C{loggedNumber} counts those of the group.
    """

    stepsMs = (1, 100, 1_000, 4_000, 9_000)

    def __init__(
        self, seed: int, isTraced: bool = False, protocols: Protocols | None = None
    ) -> None:
        """@param protocols: of the clients; L{None}: as the seed has it."""
        super().__init__(seed, isTraced)
        random = self.random
        self.protocols = protocols or random.choice(PROTOCOLS)
        self.protocol = random.choice(self.protocols)
        self.isCooperative = random.random() < 0.4
        self.partitionCount = random.choice((1, 4, 7))
        self.topicIds = {name: each.bytes for name, each in TOPIC_IDS.items()}
        self.image = MetadataImage()
        self.image.apply(TopicRecord(TOPIC, str(TOPIC_IDS[TOPIC]), self.partitionCount))
        # What the checkers know.
        self.offsets: dict[Place, int] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.generation = self.storedGeneration = 0
        self.acknowledged: dict[Place, int] = {}
        self.forgottenCount = 0
        self.instances: dict[str, str] = {}
        self.fenced: set[str] = set()
        self.wasModern = False
        self.settings = self.makeSettings()
        self.ownership = Ownership(self.settings.consumerSessionTimeoutMs)
        self.logged: dict[str, list[LoggedMember]] = {}
        self.loggedNumber = 0
        self._coordinator, self.shadow = self.load(), self._readLog()

    def makeSettings(self) -> GroupSettings:
        """The settings of the seed."""
        random = self.random
        return GroupSettings(
            partitionCount=1,
            initialRebalanceDelayMs=random.choice((0, 3_000)),
            groupMaxSize=random.choice((2, 2**31 - 1, 2**31 - 1)),
            newMemberJoinTimeoutMs=random.choice((10_000, 300_000)),
            offsetsRetentionMs=random.choice((8_000, 100_000_000)),
            offsetsRetentionCheckIntervalMs=5_000,
            consumerSessionTimeoutMs=random.choice((6_000, 10_000)),
            consumerAssignmentIntervalMs=random.choice((0, 1_000)),
            consumerGroupMaxSize=random.choice((2, 2**31 - 1, 2**31 - 1)),
            # Else groups would find new topics by it, without being told.
            consumerRegexRefreshIntervalMs=2**31 - 1,
            # What these classic members tell about themselves, members of KIP-848 cannot read.
            mayUpgrade=False,
            mayDowngrade=False,
        )

    @property
    def coordinator(self) -> GroupCoordinator:
        return self._coordinator

    def _readLog(self) -> GroupCoordinator:
        append = partial(self.append, self.incarnation)
        made = GroupCoordinator(
            self.settings, append, lambda: self.nowMs, self.random, lambda: self.image
        )
        made.beginLoading(0)
        for key, value in self.log.records:
            made.replay(key, value)
        return made

    def load(self) -> GroupCoordinator:
        made = self._readLog()
        made.loaded(0)
        return made

    def restarted(self) -> None:
        self._coordinator, self.shadow = self.load(), self._readLog()
        self.generation = self.storedGeneration
        self.instances, self.fenced = {}, set()

    def kept(self, key: bytes, value: bytes | None) -> None:
        self.shadow.replay(key, value)
        decoded = decodeKey(key)
        if not isinstance(decoded, OffsetCommitKey):
            self._noteLogged()
        if decoded is None:
            return
        if not isinstance(decoded, OffsetCommitKey):
            self.storedGeneration = 0 if value is None else decodeStoredGroup(value).generation
            if value is None:
                self.forgottenCount += 1
                self.owners = {}
                self.generation = 0
            return
        place = decoded.topic, decoded.partition
        if value is None:
            self.forgottenCount += 1
            self.counts["forgotten"] += 1
            self.offsets.pop(place, None)
            self.acknowledged.pop(place, None)
        else:
            offset = decodeCommittedOffset(value).offset
            if offset < self.offsets.get(place, 0):
                raise BrokenPromiseError(f"the position of {place} goes back to {offset}")
            self.offsets[place] = offset

    def _noteLogged(self) -> None:
        """The log has another state of the group."""
        self.loggedNumber += 1
        states = self.loggedStates(self.shadow._table.groups.get(GROUP))
        for memberId in self.logged.keys() - states.keys():
            states[memberId] = -1, frozenset()
        for memberId, state in states.items():
            history = self.logged.setdefault(memberId, [])
            if not history or history[-1][1:] != state:
                history.append(LoggedMember(self.loggedNumber, *state))

    def loggedStates(self, group: Group | None) -> dict[str, tuple[int, frozenset[Place]]]:
        """By member, epoch and partitions, as far as answers are checked by them."""
        if not isinstance(group, ConsumerGroup):
            return {}
        return {
            each.memberId: (each.epoch, self.placesOfIds(each.assigned))
            for each in group.members.values()
        }

    def wasLogged(
        self,
        since: int,
        memberId: str,
        epoch: int,
        given: frozenset[Place] | None,
        topics: Collection[str] = tuple(TOPIC_IDS),
    ) -> bool:
        """
        Whether the log had a state of a member at any time since a request arrived, or has it.

        @param since: C{loggedNumber} when it arrived.
        @param given: its partitions of some topics; L{None}: not looked at.
        """
        history = self.logged.get(memberId, ())
        return any(
            state.epoch == epoch
            and (given is None or given == {each for each in state.places if each[0] in topics})
            and (after is None or after.number > since)
            for state, after in zip_longest(history, history[1:])
        )

    def placesOf(self, assignment: ConsumerAssignment) -> frozenset[Place]:
        """What a member of KIP-848 is told."""
        return self._placesOf(assignment.topicPartitions)

    def _placesOf(self, topics: Sequence[ConsumerPartitions]) -> frozenset[Place]:
        return self.placesOfIds({each.topicId: each.partitions for each in topics})

    def placesOfIds(self, owned: Mapping[bytes, Iterable[int]]) -> frozenset[Place]:
        """Partitions, by topic id."""
        names = {topicId: name for name, topicId in self.topicIds.items()}
        return frozenset((names[each], some) for each, parts in owned.items() for some in parts)

    def noteProtocol(self) -> None:
        """Generations begin anew when a group has gone on with another protocol."""
        group = self._coordinator._table.groups.get(GROUP)
        if group is not None and isinstance(group, ConsumerGroup) != self.wasModern:
            self.wasModern = not self.wasModern
            self.counts["other protocol"] += 1
            self.generation, self.owners = 0, {}

    # -- events

    def events(self) -> Mapping[Callable[[], None], float]:
        found = {self.clientComes: 1.5, self.clientGoes: 1.0, self.operatorDeletes: 0.7}
        if ModernConsumer in self.protocols:
            found |= {self.topicGrows: 0.3, self.clientSticks: 0.7, self.operatorRemoves: 0.3}
        if len(self.protocols) > 1:
            found |= {self.protocolChanges: 0.7}
        return found

    def clientComes(self) -> None:
        """A new client; or a static one that was restarted, while the old one perhaps lives on."""
        if sum(each.isAlive for each in self.clients) < MEMBER_COUNT_MAX:
            instanceId = self.random.choice((None, None, "i", "j"))
            name = f"m{len(self.clients)}"
            if self.isCalm:
                instanceId = None
            self.clients.append(self.protocol(self, name, instanceId))
            self.say(lambda: f"{name} comes, {self.protocol.__name__}, instance {instanceId}")

    def clientGoes(self) -> None:
        """A client leaves, or dies."""
        alive = [each for each in self.clients if each.isAlive]
        if alive:
            self._goes(self.random.choice(alive))

    def _goes(self, member: Any) -> None:
        member.isAlive = False
        leaving = member.leaving if self.random.random() < 0.5 else None
        self.say(lambda: f"{member.name} {'leaves' if leaving else 'dies'}")
        if leaving:
            self.requests.append((member, leaving, lambda answer: None))

    def protocolChanges(self) -> None:
        """The clients go; those that come now speak the other protocol."""
        self.protocol = self.random.choice(self.protocols)
        self.say(lambda: f"now come {self.protocol.__name__}")
        for each in self.clients:
            if each.isAlive and not isinstance(each, self.protocol) and self.random.random() < 0.8:
                self._goes(each)

    def clientSticks(self) -> None:
        """A client of KIP-848 does not come to give up what it should; or it does, again."""
        modern = [each for each in self.clients if isinstance(each, ModernConsumer)]
        if modern:
            client = self.random.choice(modern)
            client.isStuck = not client.isStuck

    def topicGrows(self) -> None:
        """A topic is created, or gets more partitions."""
        name = self.random.choice(GROWING_TOPICS)
        topic = self.image.topics.get(name)
        if topic is None:
            self.image.apply(TopicRecord(name, str(TOPIC_IDS[name]), self.random.randint(1, 3)))
        elif topic.partitionCount < PARTITION_COUNT_MAX:
            count = topic.partitionCount + self.random.randint(1, 2)
            self.image.apply(PartitionCountRecord(str(TOPIC_IDS[name]), count))
        self.say(lambda: f"{name} has {self.image.topics[name].partitionCount} partitions")
        self._coordinator.topicsChanged()

    def operatorRemoves(self) -> None:
        """An operator removes a member of KIP-848."""
        modern = [each for each in self.clients if isinstance(each, ModernConsumer) and each.epoch]
        if modern:
            client = self.random.choice(modern)
            leave = LeaveGroup(GROUP, members=[LeavingMember(client.memberId)])
            self.requests.append((client, leave, lambda answer: None))

    def operatorDeletes(self) -> None:
        """An operator deletes the group, which works only if it is empty."""
        self.say(lambda: "an operator deletes the group")
        self.isTouched = True
        self._coordinator.deleteGroups([GROUP], self._groupDeleted)

    def _groupDeleted(self, deleted: Sequence[DeletedGroup]) -> None:
        self.say(lambda: f"deleted: {deleted}")
        self.counts["deleted"] += not deleted[0].errorCode

    # -- requests

    def deliver(self, client: Any, request: Any, reply: Callable[[Any], None]) -> None:
        self.noteProtocol()
        context = ClientContext(client.version, client.name, "/host")
        if isinstance(request, ConsumerGroupHeartbeat):
            some = request.topicPartitions
            owned = None if some is None else self._placesOf(some)
            heartbeat = self.ownership.arrived(request, owned, self.nowMs)
            check = partial(self._checkHeartbeat, client, heartbeat, self.loggedNumber, reply)
            self.coordinator.consumerGroupHeartbeat(context, request, check)
        elif isinstance(request, JoinGroup):
            self.coordinator.joinGroup(context, request, partial(self.checkJoin, request, reply))
        elif isinstance(request, SyncGroup):
            version = 5 if client.version >= 5 else 1
            self.coordinator.syncGroup(
                ClientContext(version), request, partial(self.checkSync, request, reply)
            )
        elif isinstance(request, Heartbeat):
            reply(self.coordinator.heartbeat(request))
        elif isinstance(request, LeaveGroup):
            for each in request.members:
                self.ownership.removed(each.memberId)
            self.coordinator.leaveGroup(ClientContext(5), request, reply)
        elif isinstance(request, OffsetCommit):
            isOld, isFenced = self.isFenced(client, request)
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

        self.noteProtocol()

    def isFenced(self, client: Any, request: OffsetCommit) -> tuple[bool, bool]:
        """Whether a commit has an old generation or epoch; and whether it is another's turn."""
        epoch, memberId = request.generationIdOrMemberEpoch, request.memberId
        if isinstance(client, ClassicConsumer):
            return epoch < self.generation, memberId in self.fenced
        return False, self.isTaken(request)

    def isTaken(self, request: OffsetCommit) -> bool:
        """Whether another member has the partition of a commit, or the place of its sender."""
        epoch, memberId = request.generationIdOrMemberEpoch, request.memberId
        (topic,) = request.topics
        (each,) = topic.partitions
        isFenced = self.ownership.isFenced(memberId, epoch, (topic.name, each.partitionIndex))
        return isFenced or self.ownership.isReplaced(memberId, request.groupInstanceId)

    # -- the checkers

    def _checkHeartbeat(
        self,
        client: ModernConsumer,
        heartbeat: ArrivedHeartbeat,
        since: int,
        reply: Callable[[Any], None],
        answer: ConsumerGroupHeartbeatAnswer,
    ) -> None:
        code, request = answer.errorCode, heartbeat.request
        isFenced = code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID)
        self.counts["heartbeats fenced"] += isFenced
        self.counts["unreleased"] += code == ErrorCode.UNRELEASED_INSTANCE_ID
        if not code and request.memberEpoch >= 0:
            given = None if answer.assignment is None else self.placesOf(answer.assignment)
            if not self.wasLogged(since, answer.memberId or "", answer.memberEpoch, given):
                raise BrokenPromiseError(f"{answer} is not in the log")
            self.counts["given"] += bool(given)
            isHeard = client.isAlive and client.request is request
            timeoutMs = client.rebalanceTimeoutMs
            self.ownership.accepted(heartbeat, answer, given, timeoutMs, self.nowMs, isHeard)
        reply(answer)

    def checkJoin(
        self, request: JoinGroup, reply: Callable[[Any], None], answer: JoinGroupAnswer
    ) -> None:
        self.noteProtocol()
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

    def checkSync(
        self,
        request: SyncGroup,
        reply: Callable[[Any], None],
        answer: SyncGroupAnswer,
    ) -> None:
        self.counts["synced"] += not answer.errorCode
        if answer.errorCode == ErrorCode.NONE:
            if request.generationId > self.storedGeneration:
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
            (topic,) = request.topics
            (committed,) = topic.partitions
            self.acknowledged[topic.name, result.partitionIndex] = committed.committedOffset
        reply(answer)

    def _checkFetch(
        self,
        known: tuple[int, dict[Place, int]],
        reply: Callable[[Any], None],
        answer: OffsetFetchGroupAnswer,
    ) -> None:
        found = {
            (topic.name, each.partitionIndex): each.committedOffset
            for topic in answer.topics
            for each in topic.partitions
        }
        forgottenCount, offsets = known
        if forgottenCount != self.forgottenCount or answer.errorCode:
            offsets = {}
        for place, offset in offsets.items():
            if found.get(place, -1) < offset:
                raise BrokenPromiseError(f"{place}: {found.get(place)} was shown, not {offset}")
        reply(answer)

    def check(self) -> None:
        """Memory and log agree, counts are right, nothing waits for ever."""
        if not self.isTouched:
            return
        self.isTouched = False
        table = self._coordinator._table
        totals = table.totals
        groups = table.groups.values()
        counted = (
            sum(map(_memberCount, groups)),
            sum(each.metadataSize for group in groups for each in _membersOf(group)),
            sum(len(partitions) for each in groups for partitions in each.offsets.values()),
        )
        if counted != (totals.memberCount, totals.metadataSize, totals.offsetCount):
            raise BrokenPromiseError(f"{totals} does not count {counted}")
        for group in groups:
            if isinstance(group, ConsumerGroup):
                self._checkConsumerGroup(group)
            elif isinstance(group, ClassicGroup):
                self._checkGroup(group)
        if self.log.isIdle and not self.log.isOffline:
            self._checkLog()

    def _checkConsumerGroup(self, group: ConsumerGroup) -> None:
        deadlines = self._coordinator._table.deadlines
        for each in group.members.values():
            if ("consumer session", GROUP, each.memberId) not in deadlines:
                raise BrokenPromiseError(f"nothing ends the session of {each.memberId}")
            isRevoking = each.state is MemberState.UNREVOKED and each.epoch != AWAY_EPOCH
            isRevoking &= each.classic is None  # else its next heartbeat begins the time
            if isRevoking and ("revocation", GROUP, each.memberId) not in deadlines:
                raise BrokenPromiseError(f"nothing ends the revocation of {each.memberId}")
        static = {
            each.instanceId: each.memberId
            for each in group.members.values()
            if each.instanceId is not None
        }
        if group.staticMembers != static:
            raise BrokenPromiseError(f"{group.staticMembers} are static, not {static}")
        holders = Counter(
            (topicId, partition)
            for each in group.members.values()
            for owned in (each.assigned, each.pending)
            for topicId, partitions in owned.items()
            for partition in partitions
        )
        if group._holders != holders:
            raise BrokenPromiseError(f"{group._holders} hold, not {holders}")

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

    def _checkLog(self) -> None:
        group = self._coordinator._table.groups.get(GROUP)
        other = self.shadow._table.groups.get(GROUP)
        offsets = {} if group is None else group.offsets
        if offsets != ({} if other is None else other.offsets):
            raise BrokenPromiseError("other offsets are in the log than in memory")
        if isinstance(group, ConsumerGroup):
            # Records that were refused are appended with the next ones.
            isSame = bool(group.log.changed) or (
                isinstance(other, ConsumerGroup) and _modern(other) == _modern(group)
            )
        elif isinstance(group, ClassicGroup) and group.state is ClassicGroupState.STABLE:
            isSame = isinstance(other, ClassicGroup) and _members(other) == _members(group)
        else:
            isSame = True
        if not isSame:
            raise BrokenPromiseError("another generation is in the log than in memory")

    # -- peace

    def calm(self) -> None:
        sizeMax = self.settings.groupMaxSize
        if self.protocol is ModernConsumer:
            sizeMax = self.settings.consumerGroupMaxSize
        self.leave((self.protocol,), sizeMax)

    def leave(self, protocols: Protocols, sizeMax: int) -> None:
        """Clients of some protocols stay, and do what they should, as many as may be."""
        for each in self.clients:
            each.isAlive &= isinstance(each, protocols)
            if isinstance(each, ModernConsumer):
                each.isStuck = False
        for member in [each for each in self.clients if each.isAlive][sizeMax:]:
            member.isAlive = False
        self._someoneLives()

    def _someoneLives(self) -> None:
        if not any(each.isAlive for each in self.clients):
            self.clientComes()

    def isAtRest(self) -> bool:
        self._someoneLives()
        alive = [each for each in self.clients if each.isAlive]
        group = self._coordinator._table.groups.get(GROUP)
        if self.unanswered or group is None:
            return False
        if {each.memberId for each in alive} != {each.memberId for each in _membersOf(group)}:
            return False
        if isinstance(group, ConsumerGroup):
            return self.areSettled(group, alive)
        assert isinstance(group, ClassicGroup)
        if group.state is not ClassicGroupState.STABLE:
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

    def areSettled(self, group: ConsumerGroup, alive: Sequence[Any]) -> bool:
        """Whether the members own every partition of their topics, as they see it."""
        if group.stateName != "Stable" or not all(each.isSettled for each in alive):
            return False
        owned = [place for each in alive for place in each.places]
        if len(set(owned)) != len(owned):
            raise BrokenPromiseError(f"at rest, {sorted(owned)} are owned")
        if not all(each.subscribesTo(topic) for each in alive for topic, _ in each.places):
            return False
        if any(_isLeftOut(each, alive) for each in alive):
            return False
        return set(owned) == {
            (topic.name, partition)
            for topic in self.image.topics.values()
            if any(each.subscribesTo(topic.name) for each in alive)
            for partition in range(topic.partitionCount)
        }

    def describe(self) -> str:
        group = self._coordinator._table.groups.get(GROUP)
        clients = [vars(each) | {"world": None} for each in self.clients if each.isAlive]
        return f"{None if group is None else vars(group)}; {clients}"


def _isLeftOut(member: Any, others: Sequence[Any]) -> bool:
    """Whether a member has nothing, though another has two partitions of one of its topics."""
    return not member.places and any(
        count > 1 and member.subscribesTo(topic)
        for each in others
        for topic, count in Counter(topic for topic, _ in each.places).items()
    )


def _membersOf(group: Group) -> Sequence[Any]:
    assert isinstance(group, ClassicGroup | ConsumerGroup)
    return list(group.members.values())


def _memberCount(group: Group) -> int:
    """Members, and ids that were given and not used yet."""
    pending = len(group.pendingMembers) if isinstance(group, ClassicGroup) else 0
    return len(_membersOf(group)) + pending


def _modern(group: ConsumerGroup) -> tuple[object, ...]:
    return (
        group.epoch,
        group.targetEpoch,
        group.metadataHash,
        group.members,
        {memberId: _nonEmpty(target) for memberId, target in group.target.items()},
        {pattern: each.topics for pattern, each in group.patterns.items()},
    )


def _nonEmpty(target: Mapping[bytes, frozenset[int]]) -> dict[bytes, frozenset[int]]:
    return {topicId: some for topicId, some in target.items() if some}


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
