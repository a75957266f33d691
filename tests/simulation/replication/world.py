"""
The simulated cluster: one partition, four brokers, and everything that can go wrong with them.

A seed decides the settings, the order of all events, and the faults. After the faults everything is
repaired, and the partition has to recover within L{CALM_MS_MAX}.

What must hold, unless an election was allowed to lose records:

 - what a leader commits is never replaced: all leaders commit the same records at each offset;
 - an acknowledged record is committed, and is at that offset in each replica at the end;
 - a leader of the latest epoch has all that was committed;
 - each replica has the committed records below its watermark;
 - one process writes in an epoch;
 - for a client that follows the epochs, the end of the partition never goes back;
 - the records of a producer are committed in order, those of an idempotent one once;
 - at the end all replicas are in sync and equal, and all producers have their answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from random import Random
from uuid import UUID
from zlib import crc32

from pylogbroker.cluster.metadataimage import (
    TOPIC,
    ClusterRecord,
    ConfigRecord,
    PartitionImage,
    PartitionRecord,
    Record,
    TopicRecord,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication import controller
from pylogbroker.replication.controller import AlterPartition
from pylogbroker.replication.elections import newPartition
from pylogbroker.replication.follower import Truncate
from pylogbroker.replication.replica import ReplicaSettings
from pylogbroker.replication.replicafetch import ReplicaFetch, ReplicaFetchAnswer
from tests.simulation.replication.brokers import (
    SESSION_TIMEOUT_MS,
    SimulatedBroker,
    partitionOf,
)
from tests.simulation.replication.metadatalog import MetadataLog
from tests.simulation.replication.modellog import ModelLog, ModelRecord
from tests.simulation.seeds import TRACE_COUNT_MAX, BrokenPromiseError

BROKER_COUNT = 4
PRODUCER_COUNT = 6
STEP_COUNT = 1_500
STEP_MS = (0, 0, 1, 2, 5, 20, 120)
LAG_MS = 4_000
CALM_STEP_MS = 100
CALM_MS_MAX = 60_000
GIVE_UP_MS = 15_000
"""After this time without a leader the operator has one elected that may lack records."""
PRODUCE_TIMEOUT_MS = 3_000
CLOCK_RATES = (0.9, 0.97, 1.0, 1.03, 1.1)
START_MS = 1_000_000


class SimulatedProducer:
    """
    Sends records with C{acks=all}, one at a time, and again until one is acknowledged.

    @ivar sequence: of the record that is being sent.
    @ivar attempt: grows with each request.
    @ivar isDone: the last record is acknowledged. When all is calm, there are no more.
    """

    def __init__(self, world: ReplicationWorld, producerId: int, isIdempotent: bool) -> None:
        self.world = world
        self.producerId = producerId
        self.isIdempotent = isIdempotent
        self.sequence = 0
        self.attempt = 0
        self.isWaiting = False
        self.isDone = True

    def act(self) -> None:
        """Send the next record, or the last one again."""
        world = self.world
        if self.isWaiting or (world.isCalm and self.isDone):
            return
        leader = world.seenLeader()
        if leader is None:
            return
        self.isWaiting, self.isDone = True, False
        self.attempt += 1
        attempt, sequence = self.attempt, self.sequence

        def reply(error: ErrorCode, offset: int) -> None:
            if error is ErrorCode.NONE:
                world.acknowledged(self, sequence, offset)
            world.transfer(lambda: self.answered(attempt, error))

        def arrive() -> None:
            if leader.isActive:
                leader.produce(self.producerId, sequence, self.isIdempotent, reply)

        world.transfer(arrive)
        world.after(PRODUCE_TIMEOUT_MS, lambda: self.timedOut(attempt))

    def answered(self, attempt: int, error: ErrorCode) -> None:
        if attempt == self.attempt and self.isWaiting:
            self.isWaiting = False
            if error is ErrorCode.NONE:
                self.world.counts["acknowledged"] += 1
                self.sequence += 1
                self.isDone = True
            else:
                self.world.counts["sent again"] += 1

    def timedOut(self, attempt: int) -> None:
        if attempt == self.attempt and self.isWaiting:
            self.isWaiting = False
            self.world.counts["timed out"] += 1


class SimulatedConsumer:
    """Reads committed records, and asks for the partition's end."""

    def __init__(self, world: ReplicationWorld) -> None:
        self.world = world
        self.position = 0
        self.leaderEpoch = 0
        self.end = 0

    def act(self) -> None:
        world = self.world
        broker = world.seenLeader()
        if broker is None or not broker.isActive:
            return
        found = broker.listLatest(self.leaderEpoch)
        if isinstance(found, ErrorCode):
            return
        assert broker.replica is not None and broker.replica.leader is not None
        self.leaderEpoch = broker.replica.leader.leaderEpoch
        if found < self.end and not world.isTainted:
            raise BrokenPromiseError(f"the end of the partition went back: {self.end} to {found}")
        self.end = found
        self.position = max(self.position, broker.log.logStartOffset)
        for record in broker.log.read(self.position, min(found - self.position, 5)):
            world.requireCommitted(self.position, record, "a consumer read")
            self.position += 1
            world.counts["consumed"] += 1


class ReplicationWorld:
    """
    One run.

    @cvar makeLog: makes the log of a replica.
    @ivar ledger: the committed records, by offset.
    @ivar isTainted: a leader was elected that may lack committed records, as was allowed.
    @ivar cuts: pairs of brokers: messages of the first do not reach the second.
    """

    makeLog: Callable[[], ModelLog] = ModelLog

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.nowMs = START_MS
        self.isTraced = isTraced
        self.isCalm = False
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.fingerprint = 0
        self.topicId = UUID(int=random.getrandbits(128))
        self.metadata = MetadataLog()
        self.settings = ReplicaSettings(random.random() < 0.7, LAG_MS, 300)
        self.isUncleanAllowed = random.random() < 0.05
        self.minInSync = random.choice((1, 2, 2))
        self.ledger: list[ModelRecord] = []
        self.ledgerEpoch = 0
        self.writers: dict[int, tuple[int, int]] = {}
        self.isTainted = False
        self.cuts: set[tuple[int, int]] = set()
        self.brokers = {each: SimulatedBroker(self, each) for each in range(1, BROKER_COUNT + 1)}
        self.producers = [
            SimulatedProducer(self, each, each % 2 == 0) for each in range(PRODUCER_COUNT)
        ]
        self.consumers = [SimulatedConsumer(self) for _ in range(2)]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._eventCount = 0
        self._lastMs = 0
        faultRate = random.choice((0.01, 0.02, 0.04))
        self._faultRate = faultRate

    def say(self, text: Callable[[], str]) -> None:
        """Note what happens. The text is made only if the seed is traced."""
        if self.isTraced:
            self.trace.append(f"{(self.nowMs - START_MS) / 1000:9.3f} {text()}")
            del self.trace[:-TRACE_COUNT_MAX]

    def chance(self, probability: float) -> bool:
        """Whether something unlikely happens; not when all is calm."""
        return not self.isCalm and self.random.random() < probability

    # -- one run

    def run(self) -> None:
        self.begin()
        for _ in range(STEP_COUNT):
            self.advance(self.random.choice(STEP_MS))
            self.step()
        self.repair()
        self.recover()
        self.checkEnd()

    def begin(self) -> None:
        random = self.random
        for broker in self.brokers.values():
            broker.setClockRate(random.choice(CLOCK_RATES))
        self.isCalm = True
        self.append([ClusterRecord("simulated")], "the cluster begins")
        for broker in self.brokers.values():
            broker.register()
            broker.register()
        replicas = random.sample(sorted(self.brokers), random.choice((2, 3, 3, 3)))
        made = newPartition(replicas, lambda each: True)
        assert made is not None
        text = str(self.topicId)
        configs: list[Record] = [
            ConfigRecord(TOPIC, text, controller.MIN_IN_SYNC, str(self.minInSync))
        ]
        if self.isUncleanAllowed:
            configs.append(ConfigRecord(TOPIC, text, controller.UNCLEAN_ELECTION, "true"))
        records = [TopicRecord("logs", text, 1), *configs, made.record(self.topicId, 0)]
        self.append(records, f"the topic: {made}, {self.settings}, min {self.minInSync}")
        self.isCalm = False

    def step(self) -> None:
        """One thing happens."""
        random = self.random
        if random.random() < self._faultRate:
            self.fault()
            return
        broker = self.brokers[random.randint(1, BROKER_COUNT)]
        kind = random.random()
        if kind < 0.30:
            broker.fetch()
        elif kind < 0.42:
            broker.flush()
        elif kind < 0.54:
            broker.readMetadata(random.choice((1, 1, 2, 100)))
        elif kind < 0.60:
            broker.timePassed()
        elif kind < 0.66:
            broker.control()
        elif kind < 0.70:
            broker.register()
        elif kind < 0.95:
            random.choice(self.producers).act()
        else:
            random.choice(self.consumers).act()

    def advance(self, ms: int) -> None:
        """Time goes by: messages arrive, sessions are heard of or end."""
        endMs = self.nowMs + ms
        while self._events and self._events[0][0] <= endMs:
            dueMs, _, act = heappop(self._events)
            self.nowMs = max(self.nowMs, dueMs)
            act()
        self.nowMs = endMs
        for broker in self.brokers.values():
            broker.contact()
        self.counts["sessions ended"] += self.metadata.expire(endMs, SESSION_TIMEOUT_MS)

    def after(self, ms: int, act: Callable[[], None]) -> None:
        """Do something later."""
        self._eventCount += 1
        heappush(self._events, (self.nowMs + ms, self._eventCount, act))

    # -- messages

    def send(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        """From one broker to another: late, not at all, or twice."""
        if (source, target) in self.cuts:
            self.counts["messages cut"] += 1
            return
        self.transfer(arrive)

    def transfer(self, arrive: Callable[[], None]) -> None:
        """A message is on its way."""
        if self.isCalm:
            self.after(1, arrive)
            return
        if self.random.random() < 0.03:
            self.counts["messages lost"] += 1
            return
        self.after(self.random.choice((0, 1, 5, 20, 100)), arrive)
        if self.random.random() < 0.03:
            self.counts["messages late"] += 1
            self.after(self.random.choice((500, 3_000, 10_000)), arrive)

    def fetchArrives(self, target: int, request: ReplicaFetch) -> None:
        broker = self.brokers[target]
        if not broker.isActive:
            return
        answer, records = broker.serveFetch(request)
        if answer.error is not ErrorCode.NONE:
            self.counts[f"fetch {answer.error.name}"] += 1
        self.fingerprint = crc32(repr((request, answer)).encode(), self.fingerprint)
        self.send(target, request.brokerId, lambda: self.answerArrives(request, answer, records))

    def answerArrives(
        self, request: ReplicaFetch, answer: ReplicaFetchAnswer, records: list[ModelRecord]
    ) -> None:
        broker = self.brokers[request.brokerId]
        if broker.isActive:
            broker.fetched(request, answer, records)

    # -- the metadata log

    def append(self, records: Sequence[Record], why: str, lost: int = 0) -> None:
        """
        Append a change. See whether it has elected a leader that may lack records.

        @param lost: a broker that has lost records.
        """
        topic = self.metadata.image.topicsById.get(self.topicId)
        before = topic.partitions[0] if topic is not None else None
        number = self.metadata.append(records)
        self.counts["changes"] += 1
        self.say(lambda: f"change {number}: {why}: {describe(records)}")
        for record in records:
            if isinstance(record, PartitionRecord) and before is not None:
                made = PartitionImage.of(record)
                self.changed(before, made, lost)
                before = made
        self.fingerprint = crc32(repr(records).encode(), self.fingerprint)

    def changed(self, before: PartitionImage, made: PartitionImage, lost: int) -> None:
        if made.leader in (before.leader, -1):
            return
        self.counts["elections"] += 1
        if made.leader in before.eligibleLeaders:
            self.counts["eligible leaders elected"] += 1
        if made.leader in (*before.inSync, *before.eligibleLeaders, *self._proposed):
            return
        isLast = {*before.inSync, *before.eligibleLeaders} <= {lost}
        isLastKnown = isLast and before.lastKnownLeader == made.leader
        if isLastKnown:
            self.counts["last known leaders elected"] += 1
        if self.isUncleanAllowed or self._isOperatorUnclean or isLastKnown:
            self.counts["unclean elections"] += 1
            self.isTainted = True

    _proposed: tuple[int, ...] = ()
    _isOperatorUnclean = False

    def ask(self, broker: SimulatedBroker, request: AlterPartition) -> None:
        """A leader asks for another in-sync set. The request, or its answer, may be lost."""
        self.counts["in-sync sets asked for"] += 1
        self.say(lambda: f"{broker} asks for {request}")
        self.transfer(lambda: self.alter(broker, request))

    def alter(self, broker: SimulatedBroker, request: AlterPartition) -> None:
        if not (broker.isConnected and broker.isRunning):
            return
        error, records = controller.alterPartition(broker.latest(), request)
        if records:
            self._proposed = tuple(each.brokerId for each in request.inSync)
            self.append(records, f"{broker} changes the in-sync set")
            self._proposed = ()
        if error is not ErrorCode.NONE:
            self.counts[f"refused {error.name}"] += 1
            self.transfer(lambda: broker.refused(request, error))

    def seenLeader(self) -> SimulatedBroker | None:
        """The leader that a client knows of, perhaps no longer one."""
        if self.chance(0.2):
            return self.random.choice(list(self.brokers.values()))
        return self.brokers.get(partitionOf(self.metadata.image, self).leader)

    # -- faults

    def fault(self) -> None:
        """Something goes wrong, or an operator does something."""
        random = self.random
        broker = self.brokers[random.randint(1, BROKER_COUNT)]
        kind = random.choice(_FAULTS)
        if kind in ("kill", "power cut", "wipe") and broker.isRunning:
            self.kill(broker, kind != "kill")
            if kind == "wipe" and self.chance(0.4):
                self.say(lambda: f"the disk of {broker} is empty")
                broker.log.wipe()
                self.counts["wiped"] += 1
            self.after(random.choice((0, 200, 2_000, 12_000)), lambda: self.restart(broker))
        elif kind == "all" and self.chance(0.3):
            self.counts["all cut at once"] += 1
            for each in self.brokers.values():
                if each.isRunning:
                    self.kill(each, True)
                    self.after(random.choice((0, 200, 2_000)), partial(self.restart, each))
        elif kind == "pause" and broker.isActive:
            self.counts["paused"] += 1
            self.say(lambda: f"{broker} pauses")
            broker.isPaused = True
            self.after(random.choice((300, 2_000, 10_000)), lambda: self.resume(broker))
        elif kind == "zookeeper":
            self.counts["cut off from ZooKeeper"] += 1
            self.say(lambda: f"{broker} is cut off from ZooKeeper")
            broker.isConnected = False
            self.after(random.choice((1_000, 5_000, 12_000)), lambda: self.reconnect(broker))
        elif kind == "cut":
            other = random.randint(1, BROKER_COUNT)
            self.counts["cut one way"] += 1
            self.say(lambda: f"{broker.brokerId} does not reach {other}")
            self.cuts.add((broker.brokerId, other))
            self.after(
                random.choice((1_000, 6_000, 15_000)),
                lambda: self.cuts.discard((broker.brokerId, other)),
            )
        elif kind == "shutdown" and broker.brokerEpoch != -1 and broker.isServing:
            self.shutDown(broker)
        elif kind == "disk" and broker.brokerEpoch != -1 and broker.isServing:
            self.failDisk(broker)
        elif kind == "clock":
            self.counts["clocks changed"] += 1
            broker.setClockRate(random.choice(CLOCK_RATES))
        elif kind == "reassign":
            self.reassign()
        elif kind == "settings":
            self.changeMinInSync()
        elif kind == "retention" and broker.replica is not None and broker.replica.leader:
            self.deleteOld(broker)

    def kill(self, broker: SimulatedBroker, isPowerCut: bool) -> None:
        self.counts["power cuts" if isPowerCut else "killed"] += 1
        broker.stop()
        lost = 0
        if isPowerCut:
            lost = broker.log.cutPower(self.random)
        else:
            broker.log.kill()
        self.counts["records lost unflushed"] += lost
        self.say(lambda: f"{broker} dies, {lost} records are lost or come back")

    def restart(self, broker: SimulatedBroker) -> None:
        if not broker.isRunning:
            self.counts["restarted"] += 1
            self.say(lambda: f"{broker} starts, its log ends at {broker.log.logEndOffset}")
            broker.start()

    def resume(self, broker: SimulatedBroker) -> None:
        if broker.isRunning and broker.isPaused:
            self.say(lambda: f"{broker} goes on")
            broker.isPaused = False

    def reconnect(self, broker: SimulatedBroker) -> None:
        broker.isConnected = True

    def shutDown(self, broker: SimulatedBroker) -> None:
        """It leaves in order, and ends a moment later."""
        image = broker.latest()
        error, records = controller.shutDownBroker(image, broker.brokerId, broker.brokerEpoch)
        if error is ErrorCode.NONE and records:
            self.counts["controlled shutdowns"] += 1
            self.append(records, f"{broker} wants to stop")
            self.after(self.random.choice((50, 500)), lambda: self.stopCleanly(broker))

    def stopCleanly(self, broker: SimulatedBroker) -> None:
        if broker.isRunning:
            if broker.replica is not None:
                broker.log.checkpoint = broker.replica.highWatermark
            broker.stop()
            broker.log.stop()
            self.say(lambda: f"{broker} has stopped")
            self.after(self.random.choice((100, 3_000)), lambda: self.restart(broker))

    def failDisk(self, broker: SimulatedBroker) -> None:
        """The broker says so, and gets another disk."""
        assert broker.replica is not None
        self.counts["disks failed"] += 1
        image, lost = broker.latest(), {(self.topicId, 0)}
        _, records = controller.loseReplicas(image, broker.brokerId, broker.brokerEpoch, lost)
        broker.perform(broker.replica.logFailed())
        if records:
            self.append(records, f"the disk of {broker} has failed", broker.brokerId)

        def replace() -> None:
            if broker.isRunning:
                broker.stop()
                broker.log.wipe()
                broker.start()

        self.after(2_000, replace)

    def reassign(self) -> None:
        random = self.random
        target = random.sample(sorted(self.brokers), random.choice((1, 2, 3, 3)))
        wanted = None if random.random() < 0.3 else target
        error, records = controller.reassign(self.metadata.image, self.topicId, 0, wanted)
        if records:
            self.counts["reassignments stopped" if wanted is None else "reassignments"] += 1
            self.append(records, f"the operator wants {wanted}")
        elif error is not ErrorCode.NONE:
            self.counts[f"reassignment {error.name}"] += 1

    def deleteOld(self, broker: SimulatedBroker) -> None:
        """
        Retention. It leaves the last records of idempotent producers, whose numbers a real broker
        remembers.
        """
        assert broker.replica is not None
        last = broker.log.lastOffsets()
        kept = [
            last[each.producerId]
            for each in self.producers
            if each.isIdempotent and each.producerId in last
        ]
        most, begin = min([*kept, broker.replica.highWatermark]), broker.log.logStartOffset
        if most > begin:
            self.counts["retention"] += 1
            broker.log.deleteBefore(self.random.randint(begin + 1, most))

    def changeMinInSync(self) -> None:
        value = self.random.choice((1, 2, 3))
        record = ConfigRecord(TOPIC, str(self.topicId), controller.MIN_IN_SYNC, str(value))
        self.counts["min.insync.replicas changed"] += 1
        records = controller.changeSettings(self.metadata.image, [record])
        self.append(records, f"min.insync.replicas is {value}")

    # -- what must hold

    def fail(self, text: str) -> None:
        if not self.isTainted:
            raise BrokenPromiseError(text)

    def requireCommitted(self, offset: int, record: ModelRecord | None, who: str) -> None:
        known = self.ledger[offset] if offset < len(self.ledger) else None
        if known is None or record != known:
            self.fail(f"{who} {record} at {offset}, where {known} is committed")

    def committed(self, broker: SimulatedBroker, offset: int) -> None:
        """A leader has moved its watermark."""
        log = broker.log
        assert broker.replica is not None and broker.replica.leader is not None
        self.ledgerEpoch = max(self.ledgerEpoch, broker.replica.leader.leaderEpoch)
        begin = max(log.logStartOffset, len(self.ledger) - 20)
        for at in range(begin, offset):
            record = log.at(at)
            if at < len(self.ledger):
                self.requireCommitted(at, record, f"{broker} has committed")
            elif record is not None and at == len(self.ledger):
                self.ledger.append(record)
                self.counts["committed"] += 1
            else:
                self.fail(f"{broker} has committed {offset}, and has no record at {at}")

    def followed(self, broker: SimulatedBroker, offset: int) -> None:
        """A follower has moved its watermark."""
        for at in range(max(broker.log.logStartOffset, offset - 20), offset):
            self.requireCommitted(at, broker.log.at(at), f"below its watermark {broker} has")

    def elected(self, broker: SimulatedBroker) -> None:
        """A broker has begun to lead."""
        assert broker.replica is not None and broker.replica.leader is not None
        leader = broker.replica.leader
        self.say(
            lambda: f"{broker} leads in epoch {leader.leaderEpoch} from {leader.epochStartOffset}"
        )
        self.counts["led"] += 1
        if leader.leaderEpoch >= self.ledgerEpoch:
            for at in range(broker.log.logStartOffset, len(self.ledger)):
                self.requireCommitted(at, broker.log.at(at), f"the new leader, {broker}, has")

    def writes(self, broker: SimulatedBroker, leaderEpoch: int) -> None:
        """A leader appends."""
        writer = (broker.brokerId, broker.brokerEpoch)
        if self.writers.setdefault(leaderEpoch, writer) != writer:
            known = self.writers[leaderEpoch]
            raise BrokenPromiseError(f"two write in epoch {leaderEpoch}: {known} and {writer}")

    def truncated(self, broker: SimulatedBroker, effect: Truncate) -> None:
        if effect.isBelowHighWatermark:
            self.counts["truncated below the watermark"] += 1
            self.fail(f"{broker} truncates to {effect.offset}, below its watermark")

    def acknowledged(self, producer: SimulatedProducer, sequence: int, offset: int) -> None:
        found = self.ledger[offset] if offset < len(self.ledger) else None
        if found is None or found[1:3] != (producer.producerId, sequence):
            self.fail(
                f"record {sequence} of producer {producer.producerId} is acknowledged at {offset}"
            )

    # -- the end

    def repair(self) -> None:
        """All faults end."""
        self.say(lambda: "no more faults")
        self.isCalm = True
        self.cuts.clear()
        for broker in self.brokers.values():
            broker.isConnected, broker.isPaused = True, False
            self.restart(broker)

    def recover(self) -> None:
        beginMs = self.nowMs
        while not self.isRecovered():
            waitedMs = self.nowMs - beginMs
            if waitedMs > CALM_MS_MAX:
                raise BrokenPromiseError(f"not recovered: {partitionOf(self.metadata.image, self)}")
            if waitedMs > GIVE_UP_MS and partitionOf(self.metadata.image, self).leader == -1:
                self.electUnclean()
            for broker in self.brokers.values():
                broker.register()
                broker.readMetadata(100)
                broker.control()
                broker.fetch()
                broker.flush()
                broker.timePassed()
            for producer in self.producers:
                producer.act()
            for consumer in self.consumers:
                consumer.act()
            self.advance(CALM_STEP_MS)
        self.counts["calm ms"] += self.nowMs - beginMs

    def electUnclean(self) -> None:
        partition = partitionOf(self.metadata.image, self)
        if partition.inSync or partition.eligibleLeaders:
            raise BrokenPromiseError(f"no leader, though all are there: {partition}")
        _, records = controller.electLeader(self.metadata.image, self.topicId, 0, isUnclean=True)
        self._isOperatorUnclean = True
        self.append(records, "the operator elects a leader")
        self.counts["elected by the operator"] += 1

    def isRecovered(self) -> bool:
        partition = partitionOf(self.metadata.image, self)
        leader = self.brokers.get(partition.leader)
        if leader is None or leader.replica is None or leader.replica.leader is None:
            return False
        isSettled = not partition.adding and not partition.removing
        if not isSettled or set(partition.inSync) != set(partition.replicas):
            return False
        if not all(producer.isDone for producer in self.producers):
            return False
        end = leader.log.logEndOffset
        replicas = [self.brokers[each] for each in partition.replicas]
        return all(
            each.replica is not None
            and each.log.logEndOffset == end
            and each.replica.highWatermark == end
            for each in replicas
        )

    def checkEnd(self) -> None:
        partition = partitionOf(self.metadata.image, self)
        replicas = [self.brokers[each] for each in partition.replicas]
        end = replicas[0].log.logEndOffset
        begin = max(each.log.logStartOffset for each in replicas)
        for at in range(begin, end):
            if len({each.log.at(at) for each in replicas}) != 1:
                raise BrokenPromiseError(f"the replicas differ at {at}")
        if len(self.ledger) != end:
            self.fail(f"{len(self.ledger)} records are committed, and the logs end at {end}")
        for at in range(begin, end):
            self.requireCommitted(at, replicas[0].log.at(at), "at the end there is")
        for producer in self.producers:
            self.checkOrder(producer)

    def checkOrder(self, producer: SimulatedProducer) -> None:
        found = [each.sequence for each in self.ledger if each.producerId == producer.producerId]
        distinct = list(dict.fromkeys(found))
        if distinct != list(range(len(distinct))) or len(distinct) < producer.sequence:
            self.fail(f"producer {producer.producerId}: {found} of {producer.sequence}")
        if producer.isIdempotent and len(found) != len(distinct):
            self.fail(f"idempotent producer {producer.producerId}: {found}")


_FAULTS = (
    *("kill", "power cut", "power cut", "wipe", "all", "pause", "zookeeper", "zookeeper"),
    *("cut", "shutdown", "disk", "clock", "reassign", "settings", "retention"),
)


def describe(records: Sequence[Record]) -> str:
    """Records, for people."""
    return ", ".join(
        str(PartitionImage.of(each)) if isinstance(each, PartitionRecord) else str(each)
        for each in records
    )
