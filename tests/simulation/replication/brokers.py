"""
A broker of the simulated cluster: it carries out what the pure machines of
L{pylogbroker.replication} decide, as a real one does, and keeps what a process keeps in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    PartitionImage,
    Record,
    RegisterBrokerRecord,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication import controller
from pylogbroker.replication.controller import AlterPartition, LogState
from pylogbroker.replication.follower import (
    AppendRecords,
    Flush,
    FollowerReplica,
    SetHighWatermark,
    StartOver,
    Truncate,
)
from pylogbroker.replication.leader import MoveHighWatermark, PartitionState, ProposeInSync
from pylogbroker.replication.replica import (
    PartitionReplica,
    RemoveLog,
    ReplicaEffect,
    ReplicaSettings,
    StopLeading,
)
from pylogbroker.replication.replicafetch import ReplicaFetch, ReplicaFetchAnswer
from tests.simulation.replication.modellog import ModelRecord

if TYPE_CHECKING:
    from tests.simulation.replication.world import ReplicationWorld

SESSION_TIMEOUT_MS = 6_000
FETCH_COUNT_MAX = 4
"""Records in an answer."""

Reply = Callable[[ErrorCode, int], None]
"""Called with an error, or with the offset of the acknowledged record."""


class _Waiting(NamedTuple):
    offset: int
    reply: Reply


class SimulatedBroker:
    """
    @ivar clockRate: how fast its clock runs.
    @ivar isRunning: there is a process.
    @ivar isPaused: it does nothing for now.
    @ivar isConnected: it reaches ZooKeeper.
    @ivar session: L{None}: it has none.
    @ivar brokerEpoch: of its registration; -1: none.
    @ivar image: of the metadata up to C{position}, which its replica knows of.
    @ivar replica: since its registration.
    @ivar controllerEpoch: in which it is the controller; -1: it is not.
    @ivar listing: brokers that have nodes, and the position of the image before they were listed.
    """

    def __init__(self, world: ReplicationWorld, brokerId: int) -> None:
        self.world = world
        self.brokerId = brokerId
        self.log = world.makeLog()
        self.clockRate = 1.0
        self._clockSet = world.nowMs, world.nowMs
        self.isRunning = False
        self.isConnected = True
        self.start()

    def __repr__(self) -> str:
        return f"broker {self.brokerId}"

    @property
    def nowMs(self) -> int:
        """By its own clock, which is too fast or too slow, but does not jump."""
        sinceMs, shownMs = self._clockSet
        return int(shownMs + (self.world.nowMs - sinceMs) * self.clockRate)

    def setClockRate(self, rate: float) -> None:
        self._clockSet = self.world.nowMs, self.nowMs
        self.clockRate = rate

    @property
    def isActive(self) -> bool:
        """Whether the process does anything."""
        return self.isRunning and not self.isPaused

    @property
    def isServing(self) -> bool:
        """Whether its session was heard of, by its own clock."""
        isHeard = self.nowMs - self.contactMs <= SESSION_TIMEOUT_MS
        return self.isActive and self.session is not None and isHeard

    # -- a process

    def start(self) -> None:
        """A process begins: it remembers nothing but the log."""
        self.isRunning, self.isPaused = True, False
        self.hasGoneOn = False
        self.isStopping = False
        self.session: int | None = None
        self.contactMs = self.nowMs
        self.brokerEpoch = -1
        self.image, self.position = MetadataImage(), 0
        self._read = MetadataImage(), 0
        self.replica: PartitionReplica | None = None
        self.waiting: list[_Waiting] = []
        self.controllerEpoch = -1
        self.listing: tuple[frozenset[int], int] | None = None
        self.log.restart()

    def stop(self) -> None:
        """The process ends."""
        self.isRunning = False
        self.replica = None
        self.waiting = []

    # -- sessions and the metadata log

    def contact(self) -> None:
        """Hear from ZooKeeper, if it is to be reached."""
        if not (self.isActive and self.isConnected):
            return
        metadata = self.world.metadata
        if self.session is not None and self.session in metadata.heardMs:
            metadata.heardMs[self.session] = self.world.nowMs
            self.contactMs = self.nowMs
        elif self.session is not None:
            self.loseSession()

    def loseSession(self) -> None:
        self.world.say(lambda: f"{self} learns that its session has ended")
        self.session, self.brokerEpoch = None, -1
        self.controllerEpoch, self.listing = -1, None
        if self.replica is not None:
            self.log.checkpoint = self.replica.highWatermark
            self.perform(self.replica.resign())
            self.replica = None

    def register(self) -> None:
        """Make a node; then, at another time, append the registration."""
        if not (self.isActive and self.isConnected) or self.brokerEpoch != -1 or self.isStopping:
            return
        world = self.world
        if self.session is None:
            self.session = world.metadata.connect(self.brokerId, world.nowMs)
            self.contactMs = self.nowMs
            return
        if self.session not in world.metadata.heardMs:
            self.loseSession()
            return
        number = world.metadata.last + 1
        registration = RegisterBrokerRecord(self.brokerId, number, [], None)
        records = controller.registerBroker(
            self.latest(), registration, self.logState(), self.log.brokerEpoch
        )
        lost = self.brokerId if self.logState() is not LogState.INTACT else 0
        begin = records.index(registration)
        if begin and world.chance(0.3):
            self.world.counts["registrations split"] += 1
            world.append(records[:begin], f"{self} begins to register", lost)
            return
        world.append(records, f"{self} registers, {self.logState().value}", lost)
        self.image, self.position = self.latest(), number
        if world.chance(0.02):
            world.kill(self, isPowerCut=False)  # the directory does not know of it
            return
        self.brokerEpoch = self.log.brokerEpoch = number
        self.hasGoneOn, self.log.isStoppedCleanly = True, False
        self.replica = PartitionReplica(
            world.topicId,
            0,
            self.brokerId,
            number,
            self.log,
            self.log.checkpoint,
            world.settings,
        )
        self.applied()

    def logState(self) -> LogState:
        if self.log.brokerEpoch == -1:
            return LogState.EMPTY
        isKnown = self.hasGoneOn or self.log.isStoppedCleanly or self.world.settings.isFlushed
        return LogState.INTACT if isKnown else LogState.UNCERTAIN

    def readMetadata(self, count: int) -> None:
        """Apply some changes."""
        if not self.isActive or not self.isConnected or self.brokerEpoch == -1:
            return
        metadata = self.world.metadata
        if self.position < metadata.last:
            self.image, self.position = metadata.read(self.image, self.position, count)
            self.applied()

    def applied(self) -> None:
        if self.replica is None or (state := self.state()) is None:
            return
        before = self.replica.leader
        effects = self.replica.metadataChanged(state, self.nowMs)
        if self.replica.leader is not None and self.replica.leader is not before:
            self.world.elected(self)
        self.perform(effects)
        registered = self.image.brokers.get(self.brokerId)
        if registered is None or registered.epoch != self.brokerEpoch or registered.isFenced:
            if self.session is not None:
                self.world.metadata.heardMs.pop(self.session, None)
            self.loseSession()

    def state(self) -> PartitionState | None:
        topic = self.image.topicsById.get(self.world.topicId)
        if topic is None or not topic.partitions:
            return None
        least = controller.minInSyncReplicas(self.image, topic)
        return PartitionState(topic.partitions[0], self.image.brokers, least)

    # -- the controller

    def control(self) -> None:
        """Become the controller, or do a step as such."""
        world, metadata = self.world, self.world.metadata
        if not (self.isServing and self.isConnected) or self.brokerEpoch == -1:
            return
        if self.controllerEpoch == -1:
            if metadata.controller is None and self.session in metadata.heardMs:
                assert self.session is not None
                self.controllerEpoch = metadata.takeController(self.session)
                self.image, self.position = metadata.read(self.image, self.position, 1 << 30)
                world.counts["controllers"] += 1
                world.say(lambda: f"{self} is the controller, epoch {self.controllerEpoch}")
                self.applied()
                if self.controllerEpoch != -1:
                    self.write(controller.settle(self.latest()))
            return
        if self.listing is None:
            self.listing = (frozenset(metadata.nodes), self.position)
            return
        present, listedAt = self.listing
        self.listing = None
        self.write(controller.fenceAbsent(self.latest(), present, listedAt))
        if self.controllerEpoch != -1 and world.chance(0.1):
            self.write(controller.electPreferred(self.latest()))

    def write(self, records: Sequence[Record]) -> None:
        """AppendRecords as the controller: only while this one is it."""
        world = self.world
        if not self.isCurrentController():
            world.counts["controllers fenced"] += 1
            self.controllerEpoch, self.listing = -1, None
            return
        if len(records) > 1 and world.chance(0.3):
            world.counts["changes split"] += 1
            records = records[: world.random.randrange(1, len(records))]
            self.controllerEpoch = -1
            world.metadata.controller = None  # it dies as the controller, in the middle
        if records:
            world.append(records, f"{self} decides")

    def latest(self) -> MetadataImage:
        """
        The image that a decision is made on: this broker reads all changes before. Its replica
        learns of them later.
        """
        self._read = self.world.metadata.read(*self._read, 1 << 30)
        return self._read[0]

    def isCurrentController(self) -> bool:
        return self.controllerEpoch == self.world.metadata.controllerEpoch

    # -- replication

    def perform(self, effects: Sequence[ReplicaEffect]) -> None:
        """Carry out what a machine wants, except what needs an answer's records."""
        for effect in effects:
            if isinstance(effect, MoveHighWatermark):
                self.world.committed(self, effect.offset)
                self.acknowledge(effect.offset)
            elif isinstance(effect, ProposeInSync):
                self.world.ask(self, effect.request)
            elif isinstance(effect, SetHighWatermark):
                if effect.logStartOffset > self.log.logStartOffset:
                    self.world.counts["log starts followed"] += 1
                    self.log.deleteBefore(effect.logStartOffset)
                self.world.followed(self, effect.offset)
            elif isinstance(effect, StopLeading):
                waiting, self.waiting = self.waiting, []
                for each in waiting:
                    each.reply(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            elif isinstance(effect, RemoveLog):
                if self.log.logEndOffset or self.log.logStartOffset:
                    self.world.counts["logs removed"] += 1
                self.log.startOver(0)
                self.log.checkpoint = 0
            elif isinstance(effect, Truncate):
                self.truncate(effect)
            elif isinstance(effect, StartOver):
                self.world.counts["started over"] += 1
                self.log.startOver(effect.offset)
                assert self.follower is not None
                self.perform(self.follower.startedOver(effect.offset))
            else:
                assert isinstance(effect, Flush)  # comes by itself

    def truncate(self, effect: Truncate) -> None:
        follower = self.follower
        self.world.say(lambda: f"{self} truncates to {effect.offset}")
        self.world.truncated(self, effect)
        self.log.truncate(effect.offset)
        assert follower is not None
        self.perform(follower.truncated(self.log.logEndOffset))

    @property
    def follower(self) -> FollowerReplica | None:
        return None if self.replica is None else self.replica.follower

    def flush(self) -> None:
        if self.isActive and self.log.flushedOffset < self.log.logEndOffset:
            self.log.flush()
            if self.replica is not None:
                self.perform(self.replica.logChanged(self.nowMs))

    def fetch(self) -> None:
        """Send the next fetch, if there is one."""
        follower = self.follower
        if not self.isActive or follower is None:
            return
        request = follower.nextFetch(self.nowMs)
        if request is not None:
            leader = follower.leader
            self.world.send(self.brokerId, leader, lambda: self.world.fetchArrives(leader, request))
            self.world.after(
                self.world.random.choice((1_500, 3_000)),
                lambda: self.unanswered(request),
            )

    def unanswered(self, request: ReplicaFetch) -> None:
        if self.isRunning and self.follower is not None:
            self.perform(self.follower.unanswered(request, self.nowMs))

    def serveFetch(self, request: ReplicaFetch) -> tuple[ReplicaFetchAnswer, list[ModelRecord]]:
        """As the leader."""
        leader = None if self.replica is None else self.replica.leader
        if leader is None:
            return ReplicaFetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER), []
        answer, effects = leader.fetched(request, self.log.logStartOffset, self.nowMs)
        records: list[ModelRecord] = []
        if answer.error is ErrorCode.NONE and answer.diverging is None:
            records = self.log.read(request.offset, FETCH_COUNT_MAX)
        self.perform(effects)
        return answer, records

    def fetched(
        self, request: ReplicaFetch, answer: ReplicaFetchAnswer, records: list[ModelRecord]
    ) -> None:
        """The leader's answer has come."""
        follower = self.follower
        if not self.isRunning or follower is None:
            return
        effects = follower.answered(request, answer, bool(records), self.nowMs)
        if effects and isinstance(effects[0], AppendRecords):
            self.log.append(records)
            effects = follower.appended(self.log.logEndOffset)
        if answer.diverging is not None and effects:
            self.world.counts["diverged"] += 1
        self.perform(effects)

    def timePassed(self) -> None:
        if self.isActive and self.replica is not None:
            self.log.checkpoint = self.replica.highWatermark
            if self.replica.leader is not None:
                self.perform(self.replica.leader.timePassed(self.nowMs))

    def refused(self, request: AlterPartition, error: ErrorCode) -> None:
        """An answer of the metadata log."""
        if self.isRunning and self.replica is not None and self.replica.leader is not None:
            self.world.counts["in-sync sets refused"] += 1
            leader = self.replica.leader
            self.perform(leader.alterPartitionRefused(request, error, self.nowMs))

    # -- clients

    def produce(self, producerId: int, sequence: int, isIdempotent: bool, reply: Reply) -> None:
        """A request with C{acks=all}."""
        leader = None if self.replica is None else self.replica.leader
        if leader is None or not self.isServing:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        if not leader.hasEnoughInSync:
            self.world.counts["not enough in sync"] += 1
            reply(ErrorCode.NOT_ENOUGH_REPLICAS, -1)
            return
        last = self.log.lastOf(producerId) if isIdempotent else None
        if last is not None and last[1].sequence > sequence:
            reply(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)
            return
        offset = None
        if last is not None and last[1].sequence == sequence:
            offset = last[0]
        if offset is None:
            offset = self.log.logEndOffset
            self.world.writes(self, leader.leaderEpoch)
            self.log.lead(ModelRecord(leader.leaderEpoch, producerId, sequence))
        self.waiting.append(_Waiting(offset, reply))
        assert self.replica is not None
        self.perform(self.replica.logChanged(self.nowMs))
        self.acknowledge(leader.highWatermark)

    def acknowledge(self, highWatermark: int) -> None:
        """Answer producers whose records are committed."""
        done = [each for each in self.waiting if each.offset < highWatermark]
        self.waiting = [each for each in self.waiting if each.offset >= highWatermark]
        for each in done:
            each.reply(ErrorCode.NONE, each.offset)

    def listLatest(self, leaderEpoch: int) -> int | ErrorCode:
        """ListOffsets for a client that knows an epoch."""
        leader = None if self.replica is None else self.replica.leader
        if leader is None or not self.isServing:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if leader.leaderEpoch < leaderEpoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not leader.hasReachedEpoch:
            self.world.counts["watermark not known"] += 1
            return ErrorCode.OFFSET_NOT_AVAILABLE
        return leader.highWatermark


def partitionOf(image: MetadataImage, world: ReplicationWorld) -> PartitionImage:
    """The partition, as an image has it."""
    return image.topicsById[world.topicId].partitions[0]


__all__ = ["ReplicaSettings", "SimulatedBroker", "partitionOf"]
