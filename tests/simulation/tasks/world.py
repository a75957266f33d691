"""
The simulation of jobs in one process.

A seed decides the jobs, their inputs, the settings, the order of all events, and the faults. One
broker, or three of a cluster, serve containers on one to three machines. Jobs form a chain, each
reading what the one before has sent (L{tests.simulation.tasks.plans}); or there is one of streams,
tables and several inputs (L{tests.simulation.tasks.streamplans}). Containers come and go, are
killed, paused and started again; the power of their machines is cut, their stores are deleted or
damaged. After the faults everything is repaired, and all must be handled within
L{CALM_SECONDS_MAX}. L{tests.simulation.tasks.judge} and L{tests.simulation.tasks.streamjudge} say
what must hold then. Stand-bys must be there, and have what the changelogs say.

At last all containers are killed, and for each job one begins anew on a machine that has stores of
any age, or none. It must restore what the changelogs say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from random import Random
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.client.kafka.admin.topics import NewTopic
from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from pylogbroker.errors import PylogbrokerError
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.tasks.api import IncomingMessageEnvelope
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.testing.simulatednetwork import Process
from pylogbroker.types import TopicPartition
from tests.simulation.cluster.brokerworld import (
    CLIENT_HOST,
    CLIENT_PROPERTIES,
    CLOCK_RATES,
    LOOK_SECONDS,
    PRODUCER_PROPERTIES,
    BrokerWorld,
)
from tests.simulation.cluster.ledger import LogRecord, committedOf, recordsOf
from tests.simulation.seeds import BrokenPromiseError
from tests.simulation.tasks.containers import Machine, SimulatedContainer, SimulatedWriter
from tests.simulation.tasks.judge import JobJudge, Judge, Read
from tests.simulation.tasks.plans import (
    PARTITION_COUNTS,
    Message,
    Plan,
    randomMessage,
    randomPlans,
)
from tests.simulation.tasks.streamjudge import StreamJudge
from tests.simulation.tasks.streamplans import StreamPlan, randomStreamPlan

START_SECONDS_MAX = 20.0
FAULT_SECONDS = (1.0, 2.0, 4.0)
CALM_SECONDS_MAX = 60.0
FOLLOW_SECONDS_MAX = RESTORE_SECONDS_MAX = 20.0
PAUSE_SECONDS = (0.1, 1.0, 1.5, 3.0, 6.0)
WORK_SECONDS = (0.0, 0.001, 0.003, 0.01, 0.05)
"""Between a message that a task is given and what happens to its container."""

MESSAGE_COUNTS = (10, 25, 40)
TABLE_COUNTS = (5, 15)
STREAM_SHARE = 0.6
"""Of seeds with jobs of several inputs and of the high-level API."""

CLUSTER_SHARE = 0.04
"""Of seeds with three brokers; they take several times as long."""

LATE = ("bytes late", "bytes held back by a cut", "connection")
"""What may have let a request arrive behind a later one."""

CONTAINER_COUNT_MAX = 3
"""Of a job."""


class Life(NamedTuple):
    """
    A task, and a store of it, from its beginning in a container on.

    @ivar generation: of the group, as the container knew it.
    @ivar start: what the store has of its changelog: the offset behind it.
    """

    generation: int
    start: int
    process: Process


class TasksWorld(BrokerWorld):
    """
    One run.

    @ivar plans: of the jobs.
    @ivar containers: places for containers.
    @ivar calls: how often each job handled each message: topic, partition and offset.
    @ivar keyCalls: how often it handled messages of each topic, or repartition, and key.
    @ivar writers: of the inputs.
    """

    faults = {
        "containerKill": 3.0,
        "containerStop": 2.0,
        "containerPause": 2.0,
        "containerJoin": 1.5,
        "machine": 1.0,
        "stateDeleted": 1.0,
        "stateDamaged": 1.0,
        "kill": 1.5,
        "stop": 0.5,
        "pause": 1.0,
        "cut": 2.0,
        "connection": 2.0,
    }

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        super().__init__(seed, isTraced)
        random = self.random
        brokerCount = 3 if random.random() < CLUSTER_SHARE else 1
        self.isExactlyOnce = random.random() < 0.5
        self.properties = {
            "log.flush.acks.all": "false",
            "log.flush.before.read": "false",
            "default.replication.factor": str(brokerCount),
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "controlled.shutdown.retry.backoff.ms": "500",
            "group.initial.rebalance.delay.ms": random.choice(("0", "300")),
            "group.min.session.timeout.ms": "500",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "log.roll.ms": random.choice(("700", "2000", "3600000")),
            "log.cleaner.backoff.ms": random.choice(("500", "15000")),
            "log.cleaner.min.cleanable.ratio": "0",
            "log.segment.delete.delay.ms": "500",
            "auto.create.topics.enable": "false",
        }
        if brokerCount == 1:
            self.properties |= {"enable.zookeeper": "false", "metadata.store": "local"}
        else:
            self.properties |= {
                "replica.lag.time.max.ms": "1500",
                "replica.fetch.wait.max.ms": "400",
                "replica.fetch.backoff.ms": "100",
            }
        self.addBrokers(dict.fromkeys(range(1, brokerCount + 1), self.properties))
        self._endSeconds = random.choice(FAULT_SECONDS)
        self._faultSeconds = random.choice((0.2, 0.5, 1.0))
        self.plans: Sequence[Plan | StreamPlan]
        if random.random() < STREAM_SHARE:
            plan = randomStreamPlan(random)
            self.plans, self.inputs = [plan], dict(plan.counts)
            self.counts[f"jobs: {plan.kind}"] += 1
        else:
            names = ("in1", "in2")[: random.choice((1, 2))]
            self.inputs = {each: random.choice(PARTITION_COUNTS) for each in names}
            self.plans = randomPlans(random, self.inputs)
        self.machines = [
            Machine(
                CLIENT_HOST.format(number),
                random.choice(CLOCK_RATES),
                random.choice((0.0, 0.0, 0.002, 0.05)),
                self.counts,
            )
            for number in range(random.choice((1, 2, 2, 3)))
        ]
        self.containers: list[SimulatedContainer] = []
        self.calls: dict[str, Counter[tuple[str, int, int]]] = defaultdict(Counter)
        self.keyCalls: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        self.writers: list[SimulatedWriter] = []
        self._putBack: set[str] = set()
        self._tableEnds: dict[tuple[str, int], int] = {}
        self._lives: dict[tuple[str, int, str], list[Life]] = defaultdict(list)
        self._messageCount = 0
        self._atWork: dict[Process, list[Callable[[], object]]] = defaultdict(list)
        self._writers: dict[int, Process] = {}
        self._taskProperties = {
            each.name: self._randomProperties(brokerCount) for each in self.plans
        }
        self.addOperator()

    def _randomProperties(self, brokerCount: int) -> dict[str, str]:
        random = self.random
        return {
            **CLIENT_PROPERTIES,
            "bootstrap.servers": self.servers,
            "processing.guarantee": EXACTLY_ONCE if self.isExactlyOnce else AT_LEAST_ONCE,
            "commit.interval.ms": random.choice(("0", "50", "100", "500", "3000")),
            "max.poll.records": random.choice(("1", "5", "500")),
            "replication.factor": str(brokerCount),
            "metadata.max.age.ms": "5000",
            "consumer.session.timeout.ms": random.choice(("700", "2000")),
            "consumer.heartbeat.interval.ms": "300",
            "consumer.max.poll.interval.ms": random.choice(("3000", "10000")),
            "consumer.fetch.max.wait.ms": "400",
            "consumer.default.api.timeout.ms": "4000",
            "producer.delivery.timeout.ms": random.choice(("1200", "5000")),
            "producer.max.block.ms": "5000",
            "producer.linger.ms": random.choice(("0", "5", "100")),
            "max.task.idle.ms": random.choice(("0", "0", "-1", "300")),
            "buffered.records.per.partition": random.choice(("1", "1000")),
            "repartition.purge.interval.ms": random.choice(("200", "30000")),
            "num.standby.replicas": random.choice(("0", "0", "1", "2")),
            "acceptable.recovery.lag": random.choice(("0", "3", "10000")),
            **({"producer.transaction.timeout.ms": "3000"} if self.isExactlyOnce else {}),
        }

    # -- what tasks do

    def begins(self, job: str, partition: int, process: Process) -> None:
        """See L{Diary<tests.simulation.tasks.plans.Diary>}."""
        self.counts["tasks begun"] += 1
        for each in self.containers:
            if each.process is process and each.container is not None:
                generation = each.container._consumer.groupMetadata().generationId
                for name, engine in each.container._tasks[partition].engines.items():
                    lives = self._lives[job, partition, name]
                    if not lives or generation >= lives[-1].generation:  # or it has lost it already
                        offset = 0 if engine.mark is None else engine.mark.offset
                        lives.append(Life(generation, offset, process))

    def handles(self, job: str, envelope: IncomingMessageEnvelope, process: Process) -> None:
        """See L{Diary<tests.simulation.tasks.plans.Diary>}."""
        for act in self._atWork.pop(process, ()):
            self.scheduler.after(self.random.choice(WORK_SECONDS), act)
        self.counts["handled"] += 1
        self.calls[job][envelope.topic, envelope.partition, envelope.offset] += 1
        self.keyCalls[job][envelope.topic, envelope.key] += 1

    def _afterCall(self, process: Process) -> None:
        super()._afterCall(process)
        for each in self.containers:
            if each.process is process and each.container is not None:
                producer = each.container._committer._producer._sender._producer
                if producer is not None:
                    self._writers[producer[0]] = process

    def _isStale(self, job: str, task: int, store: str, records: list[LogRecord]) -> list[bool]:
        """
        Whether each record of a changelog is of a container that has lost the task: another one had
        begun with it, and had not read the record.
        """
        if self.isExactlyOnce:
            return [False] * len(records)
        lives = self._lives[job, task, store]
        owners = [
            next((life.process for life in reversed(lives) if life.start <= each.offset), None)
            for each in records
        ]
        return [
            self._writers[each.producerId] is not owner
            for each, owner in zip(records, owners, strict=True)
        ]

    # -- one run

    def live(self) -> None:
        """See the base class."""
        self.begin()
        end = self.scheduler.now + self._endSeconds
        while self.scheduler.now < end:
            self.advance(self.random.expovariate(1 / self._faultSeconds))
            self.fault()
        self.repair()
        self.waitFor(self._unsettled, CALM_SECONDS_MAX, "handled")
        self.judge()
        self.waitFor(self._unfollowed, FOLLOW_SECONDS_MAX, "followed")
        self.restore()

    def begin(self) -> None:
        """Brokers, topics, the first containers, and what is written."""
        self.say(f"{self.properties}")
        for plan in self.plans:
            self.say(f"{plan}")
            self.say(f"  {self._taskProperties[plan.name]}")
        self.network.isCalm = True
        for broker in self.brokers.values():
            broker.start()
        self.waitFor(self._unserved, START_SECONDS_MAX, "started")
        replicationFactor = len(self.brokers)
        new = [NewTopic(name, count, replicationFactor) for name, count in self.inputs.items()]
        made = self.do(lambda: self.admin.createTopics(new))
        if isinstance(made, Failure):
            raise BrokenPromiseError(f"no topics: {made.getErrorMessage()}")
        for plan in self.plans:
            if isinstance(plan, StreamPlan) and plan.hasTable:
                self._writeTable(plan)
        self.network.isCalm = False
        self.network.slowShare = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self._startWriter()
        for plan in self.plans:
            for _ in range(self.random.choice((1, 2, 2))):
                self._addContainer(plan)

    def _writeTable(self, plan: StreamPlan) -> None:
        """A table is there before its job begins."""
        writer = self._newWriter(plan.tableMessage)
        self._write(writer, self.random.choice(TABLE_COUNTS), 0.0)
        self.waitFor(lambda: "" if writer.isOver else "a table", START_SECONDS_MAX, "written")
        for topic, partition, offset in writer.acknowledged:
            place = topic, partition
            self._tableEnds[place] = max(self._tableEnds.get(place, 0), offset + 1)

    def _startWriter(self) -> None:
        first = self.plans[0]
        if isinstance(first, StreamPlan):
            writer = self._newWriter(first.message, self.random.random() < 0.3)
        else:
            topics = list(self.inputs)
            writer = self._newWriter(
                lambda random, _number, _nowMs: randomMessage(random, topics),
                self.random.random() < 0.3,
            )
        seconds = self.random.random() * self._endSeconds
        self._write(writer, self.random.choice(MESSAGE_COUNTS), seconds)

    def _newWriter(
        self, newMessage: Callable[[Random, int, int], Message], isTransactional: bool = False
    ) -> SimulatedWriter:
        """
        A program that writes.

        @param newMessage: of a random source, a number of its own, and the time in milliseconds.
        """
        properties = {**PRODUCER_PROPERTIES, "bootstrap.servers": self.servers}
        if isTransactional:
            properties |= {"transactional.id": "writer", "transaction.timeout.ms": "3000"}
        process, random = self._newProcess("writer"), self._random()

        def make() -> Message:
            self._messageCount += 1
            return newMessage(random, self._messageCount, int(process.seconds() * 1000))

        made = SimulatedWriter(process, properties, random, make, isTransactional)
        self.writers.append(made)
        return made

    def _write(self, writer: SimulatedWriter, count: int, seconds: float) -> None:
        def write() -> None:
            Deferred.fromCoroutine(writer.write(count, seconds)).addErrback(
                lambda failure: self.fail(f"the writer failed: {failure.getTraceback()}")
            )

        writer.process.perform(write)

    def _addContainer(self, plan: Plan | StreamPlan) -> SimulatedContainer:
        made = SimulatedContainer(
            self.network,
            plan,
            sum(each.plan.name == plan.name for each in self.containers),
            self.random.choice(self.machines),
            self._taskProperties[plan.name],
            self._random(),
            self,
        )
        made.onFailure = self.fail
        made.say = self.say
        self.containers.append(made)
        made.start()
        return made

    # -- faults

    def _someContainer(self) -> SimulatedContainer | None:
        up = [
            each
            for each in self.containers
            if each.isUp and each.process is not None and not each.process.isPaused
        ]
        return self.random.choice(up) if up else None

    def _soon(self, container: SimulatedContainer, act: Callable[[], object]) -> str:
        """Something happens to a container now, or when it is at work."""
        process = container.process
        assert process is not None
        if self.random.random() < 0.5:
            act()
            return ""
        self._atWork[process].append(act)
        return ", when it works"

    def _containerKill(self) -> str | None:
        container = self._someContainer()
        if container is None:
            return None
        process, seconds = container.process, self._away()

        def kill() -> None:
            if container.process is process and container.isUp and not self.isCalm:
                container.kill()
                container.restartIn(seconds)

        return f"{container}{self._soon(container, kill)}"

    def _containerStop(self) -> str | None:
        container = self._someContainer()
        if container is None:
            return None
        container.stop()
        others = [each for each in self.containers if each.plan is container.plan]
        if len(others) > 1 and self.random.random() < 0.3:
            container.isWanted = False
            return f"{container}, for good"
        return f"{container}"

    def _containerPause(self) -> str | None:
        container = self._someContainer()
        if container is None or container.process is None:
            return None
        process, seconds = container.process, self.random.choice(PAUSE_SECONDS)

        def pause() -> None:
            if not self.isCalm:
                process.pause()
                self.scheduler.after(seconds, process.resume)

        return f"{container}, {seconds:.3f} s{self._soon(container, pause)}"

    def _containerJoin(self) -> str | None:
        plan = self.random.choice(self.plans)
        if sum(each.plan.name == plan.name for each in self.containers) >= CONTAINER_COUNT_MAX:
            return None
        return f"{self._addContainer(plan)}"

    def _machine(self) -> str | None:
        """The power of a machine is cut."""
        machine = self.random.choice(self.machines)
        for each in self.containers:
            if each.machine is machine and each.isUp:
                each.kill()
                each.restartIn(self._away())
        machine.disk.cutPower(self.random)
        return machine.host

    def _stateDeleted(self) -> str | None:
        return self._spoil("deleted")

    def _stateDamaged(self) -> str | None:
        return self._spoil("damaged")

    def _spoil(self, how: str) -> str | None:
        """A container is killed, and a store of its machine is deleted or damaged."""
        container = self._someContainer()
        if container is None:
            return None
        container.kill()
        container.restartIn(self._away())
        disk = container.machine.disk
        free = disk.free()
        for key in self.random.sample(free, min(len(free), self.random.choice((1, 2, 9)))):
            if how == "deleted":
                del disk.files[key]
            else:
                disk.files[key].isDamaged = True
        return f"{container}, {free}"

    # -- the end

    def repair(self) -> None:
        """All faults end."""
        self.say("no more faults")
        self.isCalm = self.network.isCalm = True
        self._mendPaths()
        self._repairBrokers()
        for container in self.containers:
            assert container.process is not None
            container.process.resume()
            if not container.isUp and not container.isWanted:
                continue
            if not container.isUp:
                container.restartIn(0.5)

    def _unsettled(self) -> str:
        """What is missing until all is handled."""
        for broker in self.brokers.values():
            if not broker.isWanted and not broker.isUp:
                self._startIn(broker, 0.0)
        if missing := self._unserved():
            return f"{missing} does not serve"
        if not all(each.isOver for each in self.writers):
            return "the writer has not ended"
        for plan in self.plans:
            mine = [each for each in self.containers if each.plan is plan]
            if not any(each.isWanted for each in mine):
                mine[0].start()
        image = self.image
        assert image is not None
        for plan in self.plans:
            positions = self.do(partial(self.admin.listConsumerGroupOffsets, plan.name))
            if isinstance(positions, Failure):
                positions.trap(PylogbrokerError)
                return f"the positions of {plan.name}"
            found = {(each.topic, each.partition): at.offset for each, at in positions.items()}
            for topic in (*plan.inputs, *plan.repartitions):
                if topic not in image.topics:
                    return f"there is no {topic}"
                for index, records in self._committed(topic).items():
                    end = records[-1].offset + 1 if records else 0
                    at = found.get((topic, index), 0)
                    if at < end and not self._wasPutBack(plan, TopicPartition(topic, index), end):
                        return f"{plan.name} is at {at} of {end} in {topic}-{index}"
        return self._unstable()  # at last: time has gone by

    def _wasPutBack(self, plan: Plan | StreamPlan, place: TopicPartition, end: int) -> bool:
        """
        Whether a container was told that a position is committed, and a request that it had sent
        before, and once more since no answer came, has arrived behind it. OffsetCommit has no
        number that would tell the two from each other, so it puts the position back (in Kafka,
        too). The next commit puts it right; until then a restart would handle messages again.
        Transactions are numbered.
        """
        mayBeLate = any(self.counts[each] for each in LATE)
        wasTold = not self.isExactlyOnce and any(
            each.plan is plan
            and each.container is not None
            and each.container._committer.committed.get(place, 0) >= end
            for each in self.containers
        )
        if mayBeLate and wasTold:
            self._putBack.add(plan.name)
        return mayBeLate and wasTold

    def _unstable(self) -> str:
        """A transaction is open, or something is not replicated."""
        image = self.image
        assert image is not None
        for name, topic in sorted(image.topics.items()):
            for index in range(topic.partitionCount):
                log = self._leaderLog(name, index)
                if log is None:
                    return f"{name}-{index} has no leader"
                if log.lastStableOffset != log.logEndOffset:
                    return f"{name}-{index} is stable to {log.lastStableOffset}"
        return ""

    def _leaderOf(self, topic: str, index: int) -> int:
        """A broker alone knows of no leaders."""
        image = self.image
        assert image is not None
        partitions = image.topics[topic].partitions
        return partitions[index].leader if partitions else min(self.brokers)

    def _leaderLog(self, topic: str, index: int) -> BatchLog | None:
        leader = self.brokers.get(self._leaderOf(topic, index))
        return None if leader is None else leader.log(topic, index)

    def _committed(self, topic: str) -> dict[int, list[LogRecord]]:
        """The committed records of a topic, by partition. None is there of one with an open end."""
        image = self.image
        assert image is not None
        found: dict[int, list[LogRecord]] = {}
        if topic not in image.topics:
            return found
        for index in range(image.topics[topic].partitionCount):
            data = self._bytesOf(self._leaderOf(topic, index), topic, index)
            found[index] = committedOf((topic, index), list(recordsOf(data)))
        return found

    def judge(self) -> None:
        """
        See whether all that must hold holds.

        @raise BrokenPromiseError: something does not.
        """
        read = cache(self._committed)
        self._judgeInputs(read)
        for judge in self._judges(read):
            judge.judge()
            self.counts["stale keys"] += judge.staleCount
        for calls in self.calls.values():
            self.counts["handled again"] += sum(each - 1 for each in calls.values())

    def _judges(self, read: Read) -> list[Judge]:
        return [self._judgeOf(plan, read) for plan in self.plans]

    def _judgeOf(self, plan: Plan | StreamPlan, read: Read) -> Judge:
        calls, isStale = self.calls[plan.name], partial(self._isStale, plan.name)
        if isinstance(plan, Plan):
            return JobJudge(plan, self.isExactlyOnce, calls, read, isStale)
        keyCalls, ends = self.keyCalls[plan.name], self._tableEnds
        return StreamJudge(plan, self.isExactlyOnce, calls, read, isStale, keyCalls, ends)

    def _judgeInputs(self, read: Read) -> None:
        """What was acknowledged to the writer is there."""
        acknowledged = chain(*(each.acknowledged.items() for each in self.writers))
        for (topic, partition, offset), (key, value) in acknowledged:
            found = {each.offset: each for each in read(topic)[partition]}.get(offset)
            if found is None or (found.key, found.value) != (key, value):
                raise BrokenPromiseError(f"{topic}-{partition} has {found} at {offset}")

    def _unfollowed(self) -> str:
        """Which stand-bys are missing, or differ from their changelogs."""
        for plan in self.plans:
            wanted = int(self._taskProperties[plan.name]["num.standby.replicas"])
            if wanted and plan.stores:
                mine = [
                    each.container
                    for each in self.containers
                    if each.plan is plan and each.container is not None
                ]
                folders = {each._stores._folderId for each in mine}
                if missing := self._unfollowedOf(plan, mine, min(wanted, len(folders) - 1)):
                    return missing
        return ""

    def _unfollowedOf(
        self, plan: Plan | StreamPlan, containers: Sequence[TaskContainer], count: int
    ) -> str:
        """@param count: stand-bys that each task must have."""
        current = [
            (each, status.partition)
            for each in containers
            for status in each.standbys()
            if status.lag == 0
        ]
        for task in range(plan.taskCount):
            found = sum(number == task for _, number in current)
            if found < count:
                return f"{found} of {count} stand-bys follow task {task} of {plan.name}"
        try:
            judge = self._judgeOf(plan, cache(self._committed))
            for container, task in current:
                standbys = container._stores._standbys
                assert standbys is not None
                stores = standbys._standbys[task].stores
                for name in plan.stores:
                    place = TopicPartition(f"{plan.name}-{name}-changelog", task)
                    has = dict(stores[place].engine.range(None, None))
                    judge.judgeStore((task, name), has, f"the stand-by of {place}")
        except BrokenPromiseError as error:  # a window, or a task that begins, may write still
            return str(error)
        self.counts["stand-bys compared"] += len(current)
        return ""

    def restore(self) -> None:
        """
        Have one container of each job restore its stores.

        @raise BrokenPromiseError: they are not what the changelogs say.
        """
        for each in self.containers:
            each.isWanted = False
            if each.isUp:
                each.kill()
        self.containers.clear()
        self.advance(LOOK_SECONDS)  # what they have sent arrives
        for machine in self.machines:
            if self.random.random() < 0.5:
                machine.disk.cutPower(self.random)
        if self.random.random() < 0.3:
            self.machines = [Machine(machine.host, machine.rate, 0.0, self.counts)]
        made = [self._addContainer(plan.settled()) for plan in self.plans]

        def isMissing() -> str:
            for each in made:
                if each.container is None:
                    return f"{each} has ended"
                if len(each.running()) < each.plan.taskCount:
                    return f"{each} runs {each.running()}"
            return ""

        def differ() -> str:
            if missing := isMissing():
                return missing
            try:
                for each in made:
                    self._judgeOf(each.plan, cache(self._committed)).judgeStores(each.stored())
            except BrokenPromiseError as error:
                return str(error)
            return ""

        self.waitFor(isMissing, RESTORE_SECONDS_MAX, "restored")
        # What is read from the beginning at each start, or was put back, is about to be written.
        isAtWork = self._putBack or any(each.plan.broadcasts for each in made)
        self.waitFor(differ, RESTORE_SECONDS_MAX if isAtWork else 0.0, "restored")
        for each in made:
            assert each.container is not None
            self.counts["changes restored"] += each.container.restoredCount
