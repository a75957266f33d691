"""
The simulation of a whole cluster in one process.

A seed decides the settings, the order of all events, and the faults. Three or four brokers run as
programs wire them: requests in frames on connections, logs on files that forget what was not
synced, the metadata log and the controller in a ZooKeeper with sessions, coordinators of groups and
transactions. Our own clients use them: producers, a group, an application that copies a topic in
transactions, readers, an operator. After the faults everything is repaired, and the cluster has to
recover within L{CALM_SECONDS_MAX}.

What must hold, beside what L{tests.simulation.cluster.ledger} says of logs and clients:

 - one process leads a partition in an epoch;
 - at each change of the metadata, each replica in sync has what its leader says is committed;
 - a committed position of a group does not go back, nor does the end of a partition;
 - no two members own a partition in one generation;
 - no broker says that something is a bug, and none drops committed records;
 - at the end all replicas are in sync and equal, all clients have their answers, the groups have
   read all, and no transaction is open;
 - then a leader is lost for good, and within L{SUCCESSION_SECONDS_MAX} others lead what it has led.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from errno import EIO
from functools import partial
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.broker.kafka.replicas.replicamanager import HostedReplica
from pylogbroker.broker.metadata import snapshots
from pylogbroker.client.kafka.admin.topics import (
    AlterConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceKind,
)
from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.config.brokersettings import RACK_AWARE_SELECTOR
from pylogbroker.config.topicconfigs import (
    FOLLOWER_THROTTLED_RATE,
    FOLLOWER_THROTTLED_REPLICAS,
    LEADER_THROTTLED_RATE,
    LEADER_THROTTLED_REPLICAS,
)
from pylogbroker.errors import PylogbrokerError
from pylogbroker.types import TopicPartition
from tests.simulation.cluster.brokers import SimulatedBroker
from tests.simulation.cluster.brokerworld import (
    CONSUMER_PROPERTIES,
    PRODUCER_PROPERTIES,
    BrokerWorld,
)
from tests.simulation.cluster.clients import (
    COPIERS,
    COPIES,
    LOGS,
    READERS,
    SimulatedClient,
    SimulatedCopier,
    SimulatedMember,
    SimulatedProducer,
    SimulatedReader,
)
from tests.simulation.cluster.ledger import Ledger, LogRecord, Place, recordsOf
from tests.simulation.seeds import BrokenPromiseError

PARTITION_COUNT = 2
FAULT_SECONDS = (1.5, 3.0, 5.0)
CALM_SECONDS_MAX = 40.0
SUCCESSION_SECONDS_MAX = 8.0
START_SECONDS_MAX = 20.0
ZOOKEEPER_DELAYS = (0.05, 0.3, 1.0)
"""Seconds, of a request and of an answer."""

RACK = "rack{}"
THROTTLED_RATES = ("100", "1000", None)
"""Bytes in a second."""

OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
COMPACTED = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


class ClusterWorld(BrokerWorld):
    """
    One run.

    @ivar isGivenUp: a disk has failed, or was replaced, that was the only one with all that is in
        a partition. It has no leader until an operator accepts a loss.
    """

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        super().__init__(seed, isTraced)
        random = self.random
        self.isGivenUp = False
        self.ledger = Ledger()
        self.isFlushed = random.random() < 0.85
        self.properties = {
            "log.flush.acks.all": str(self.isFlushed).lower(),
            "default.replication.factor": "3",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "replica.lag.time.max.ms": random.choice(("600", "1500", "3000")),
            "replica.fetch.wait.max.ms": "400",
            "replica.fetch.backoff.ms": random.choice(("50", "300")),
            "controlled.shutdown.retry.backoff.ms": "500",
            "group.initial.rebalance.delay.ms": random.choice(("0", "300")),
            "group.min.session.timeout.ms": "500",
            "group.consumer.session.timeout.ms": "2000",
            "group.consumer.heartbeat.interval.ms": "400",
            "group.consumer.assignment.interval.ms": random.choice(("0", "200")),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "log.roll.ms": random.choice(("700", "2000", "3600000")),
            "log.cleaner.backoff.ms": random.choice(("500", "1500")),
            "log.cleaner.min.cleanable.ratio": "0",
            "log.segment.delete.delay.ms": random.choice(("0", "500")),
            "log.flush.offset.checkpoint.interval.ms": random.choice(("300", "3000")),
            "auto.create.topics.enable": "false",
        }
        self._isRackAware = random.random() < 0.5
        if self._isRackAware:
            self.properties["replica.selector.class"] = RACK_AWARE_SELECTOR
        brokerCount = random.choice((3, 3, 4))
        self.addBrokers(
            {
                each: {**self.properties, "broker.rack": RACK.format(each)}
                for each in range(1, brokerCount + 1)
            }
        )
        for broker in self.brokers.values():
            broker.onStarting = self._starting
        self._isConsumerProtocol = random.random() < 0.4
        self._faultSeconds = random.choice((0.2, 0.5, 1.0))
        self._snapshotCount = random.choice((6, 1_000))
        self._hasMembers = random.random() < 0.4
        self._hasCopier = random.random() < 0.4
        self.producers: list[SimulatedProducer] = []
        self.members: list[SimulatedMember] = []
        self.copiers: list[SimulatedCopier] = []
        self.readers: list[SimulatedReader] = []
        self.addOperator()

    # -- what is watched

    def _starting(self, broker: SimulatedBroker) -> None:
        """See who leads what."""
        service, process = broker.service, broker.process
        assert service is not None and process is not None
        topics, replicas = service.kafka.topics, service.kafka.replicas
        lead, isThrottled = topics.lead, replicas.isThrottled

        def throttled(*asked: Any) -> bool:
            found = isThrottled(*asked)
            self.counts["fetches throttled"] += found
            return found

        def leads(topic: Any, index: int) -> None:
            for each in replicas._replicas.values():
                machine = each.machine
                if each.topic is topic and each.index == index and machine is not None:
                    assert machine.leader is not None
                    self.counts["led"] += 1
                    place = f"{topic.name} {topic.topicId}", index
                    try:
                        self.ledger.leads(place, machine.leader.leaderEpoch, process.name)
                    except BrokenPromiseError as error:
                        self.fail(str(error))
            lead(topic, index)

        service.kafka.metadata.listen(self._compareInSync)
        replicas.isThrottled = throttled  # type: ignore[method-assign,assignment] # watches, too
        topics.lead = leads  # type: ignore[method-assign] # watches what it does

    def _compareInSync(self) -> None:
        """Each replica in sync has what its leader says is committed."""
        image = self.image
        assert image is not None
        found: dict[tuple[bytes, int], list[tuple[int, HostedReplica]]] = defaultdict(list)
        for each in self._registered(image):
            assert each.service is not None
            for replica in each.service.kafka.replicas._replicas.values():
                if replica.machine is not None and replica.log.failure is None:
                    found[replica.key].append((each.brokerId, replica))
        for replicas in found.values():
            for leaderId, replica in replicas:
                leader = replica.machine.leader if replica.machine is not None else None
                topic = image.topicsById.get(replica.topic.topicId)
                if leader is None or topic is None:
                    continue
                part = topic.partitions[replica.index]
                if (part.leader, part.leaderEpoch) != (leaderId, leader.leaderEpoch):
                    continue
                for brokerId, other in replicas:
                    end = other.log.logEndOffset
                    if brokerId in part.inSync and end < leader.highWatermark:
                        self.fail(
                            f"broker {brokerId} is in sync in {topic.name}-{replica.index} with "
                            f"records to {end} of {leader.highWatermark}: {part}"
                        )

    def _registered(self, image: MetadataImage) -> Iterator[SimulatedBroker]:
        """The brokers whose processes the metadata know."""
        for each in self.brokers.values():
            known = image.brokers.get(each.brokerId)
            if each.service is not None and known is not None and not known.isFenced:
                if each.service.kafka.replicas._epoch == known.epoch:
                    yield each

    # -- one run

    def live(self) -> None:
        """See the base class."""
        with (
            patch.object(snapshots, "SNAPSHOT_COUNT", self._snapshotCount),
            patch.object(snapshots, "KEPT_COUNT", 3),
        ):
            self.begin()
            end = self.scheduler.now + self.random.choice(FAULT_SECONDS)
            while self.scheduler.now < end:
                self.advance(self.random.expovariate(1 / self._faultSeconds))
                self.fault()
            self.repair()
            self.recover()
            if self.isGivenUp:
                self.counts["given up with a disk"] += 1
            else:
                self.judge()
                self.loseLeader()

    def begin(self) -> None:
        """The cluster starts, with its topics and its clients."""
        self.say(f"{self.properties}")
        self.network.isCalm = True
        for broker in self.brokers.values():
            broker.start()
        self.waitFor(self._unserved, START_SECONDS_MAX, "started")
        minInSync = self.random.choice(("1", "2", "2"))
        resource = ConfigResource(ResourceKind.BROKER, "")
        change = {"min.insync.replicas": (AlterConfigOperation.SET, minInSync)}
        self.do(lambda: self.admin.incrementalAlterConfigs({resource: change}))
        self.say(f"min.insync.replicas={minInSync}")
        made = self.do(
            lambda: self.admin.createTopics(
                [NewTopic(each, PARTITION_COUNT, 3) for each in (LOGS, COPIES)]
            )
        )
        if isinstance(made, Failure):
            raise BrokenPromiseError(f"no topics: {made.getErrorMessage()}")
        self.network.isCalm = False
        self.network.slowShare = self.random.choice((0.0, 0.0, 0.01, 0.05))
        for _ in range(self.random.choice((1, 2))):
            self._addProducer()
        self._addReader(LOGS)
        if self._hasMembers:
            for _ in range(2):
                self._addMember()
        if self._hasCopier:
            self._addCopier()
            self._addReader(COPIES)
        self._watchPositions()

    @property
    def groups(self) -> list[str]:
        """The groups that there are."""
        return [READERS] * self._hasMembers + [COPIERS] * self._hasCopier

    # -- clients

    def _begin(self, made: SimulatedClient) -> None:
        made.onFailure = self.fail
        made.say = self.say
        made.start()

    def _addProducer(self) -> None:
        properties = {**PRODUCER_PROPERTIES, "bootstrap.servers": self.servers}
        made = SimulatedProducer(
            self._newProcess("producer"), properties, self.ledger, self._random()
        )
        self.producers.append(made)
        self._begin(made)

    def _groupProperties(self, group: str) -> dict[str, str]:
        properties = {
            **CONSUMER_PROPERTIES,
            "bootstrap.servers": self.servers,
            "group.id": group,
        }
        if self._isConsumerProtocol:
            return {**properties, "group.protocol": "consumer"}
        return {**properties, "session.timeout.ms": "2000", "heartbeat.interval.ms": "400"}

    def _addMember(self) -> None:
        made = SimulatedMember(
            self._newProcess("member"), self._groupProperties(READERS), self.ledger, self._random()
        )
        self.members.append(made)
        self._begin(made)

    def _addCopier(self) -> None:
        properties = {**self._groupProperties(COPIERS), "isolation.level": "read_committed"}
        made = SimulatedCopier(self._newProcess("copier"), properties, self.ledger, self._random())
        made.producerProperties = {
            **PRODUCER_PROPERTIES,
            "bootstrap.servers": self.servers,
            "transactional.id": "copier",
            "transaction.timeout.ms": "3000",
            "delivery.timeout.ms": "5000",
        }
        self.copiers.append(made)
        self._begin(made)

    def _addReader(self, topic: str) -> None:
        properties = {**CONSUMER_PROPERTIES, "bootstrap.servers": self.servers}
        if topic == COPIES:
            properties["isolation.level"] = "read_committed"
        if self._isRackAware:
            properties["client.rack"] = RACK.format(self.random.choice(sorted(self.brokers)))
        process, random = self._newProcess("reader"), self._random()
        made = SimulatedReader(process, properties, self.ledger, random, topic, self.counts)
        self.readers.append(made)
        self._begin(made)

    def _watchPositions(self) -> None:
        """Ask for the positions of the groups, again and again."""

        def ask(group: str) -> None:
            self.admin.listConsumerGroupOffsets(group, isStable=True).addCallbacks(
                partial(found, group), later, errbackArgs=(group,)
            )

        def found(group: str, positions: Any) -> None:
            for place, position in positions.items():
                try:
                    self.ledger.wasCommitted(group, (place.topic, place.partition), position.offset)
                except BrokenPromiseError as error:
                    self.fail(str(error))
            self.operator.callLater(self.random.random(), ask, group)

        def later(failure: Failure, group: str) -> None:
            failure.trap(PylogbrokerError)
            self.operator.callLater(self.random.random(), ask, group)

        for group in self.groups:
            self.operator.perform(partial(ask, group))

    # -- faults

    def _powerCutAtStep(self) -> str | None:
        """The power fails in the middle of what a broker does next."""
        broker = self._someBroker()
        if broker is None or not self.isFlushed or broker.fileSystem.cutAt is not None:
            return None
        count = self.random.choice((0, 1, 2, 5, 12, 30))
        broker.fileSystem.cutAt = broker.fileSystem.operationCount + count
        return f"{broker}, before file operation {count}"

    def _controller(self) -> str | None:
        """The controller is lost, by one of several ways."""
        for broker in self.brokers.values():
            service = broker.service
            if (
                service is not None
                and broker.isWanted
                and service.kafka.cluster is not None
                and service.kafka.cluster.isController
                and broker.process is not None
                and not broker.process.isPaused
            ):
                way = self.random.choice(("killed", "paused", "severed"))
                if way == "killed":
                    broker.kill()
                    self._startIn(broker)
                elif way == "paused":
                    self._pauseBroker(broker)
                else:
                    self._severBroker(broker)
                return f"{broker}, {way}"
        return None

    def _severed(self) -> str | None:
        broker = self._someBroker()
        return None if broker is None else self._severBroker(broker)

    def _severBroker(self, broker: SimulatedBroker) -> str:
        seconds = self._away()
        self.zookeeper.unreachable.add(broker.host)
        broker.sever()
        self.scheduler.after(seconds, self.zookeeper.unreachable.discard, broker.host)
        return f"{broker} from ZooKeeper, {seconds:.3f} s"

    def _zookeeperAway(self) -> str | None:
        for broker in self.brokers.values():
            self._severBroker(broker)
        return "for all"

    def _zookeeperSlow(self) -> str | None:
        """ZooKeeper is slow for a while: for one broker, or for all."""
        brokers = list(self.brokers.values())
        if self.random.random() < 0.7:
            brokers = [self.random.choice(brokers)]
        delay, seconds = self.random.choice(ZOOKEEPER_DELAYS), 2 * self._away()
        for broker in brokers:
            self.zookeeper.delays[broker.host] = delay
            self.scheduler.after(seconds, self.zookeeper.delays.pop, broker.host, None)
        return f"by {delay} s for {brokers}, {seconds:.3f} s"

    def _disk(self) -> str | None:
        """A disk fails once; later its broker is started again."""
        broker = self._someBroker()
        if broker is None:
            return None
        action = self.random.choice(("write", "fsync"))
        broker.fileSystem.fail(action, ".log", EIO)
        self.scheduler.after(1.0 + self._away(), self._replaceDisk, broker, broker.startCount)
        return f"{action} on {broker}"

    def _replaceDisk(self, broker: SimulatedBroker, startCount: int) -> None:
        broker.fileSystem.mend()
        if broker.startCount == startCount and broker.isUp and broker.isWanted:
            broker.kill()
            self._startIn(broker)

    def _wiped(self) -> str | None:
        """A broker comes back with an empty disk."""
        broker = self._someBroker()
        if broker is None:
            return None
        broker.kill()
        broker.wipe()
        self._startIn(broker)
        return f"{broker}"

    def _producerDies(self) -> str | None:
        return self._replace(self.producers, self._addProducer)

    def _memberDies(self) -> str | None:
        return self._replace(self.members, self._addMember)

    def _copierDies(self) -> str | None:
        return self._replace(self.copiers, self._addCopier)

    def _replace(self, clients: list[Any], add: Callable[[], None]) -> str | None:
        living = [each for each in clients if not each.isOver and not each.process.isPaused]
        if not living:
            return None
        client = self.random.choice(living)
        if self.random.random() < 0.6:
            client.kill()
            add()
            return f"{client.process} is killed"
        seconds = self._away()
        client.process.pause()
        self.scheduler.after(seconds, client.process.resume)
        if self.random.random() < 0.5:
            client.isOver = True  # it is thought to be dead, and replaced
            self.scheduler.after(seconds + 3.0, client.kill)
            add()
            return f"{client.process} pauses for {seconds:.3f} s, and is replaced"
        return f"{client.process} pauses for {seconds:.3f} s"

    # -- what an operator does

    def _ask(self, act: Callable[[], Deferred[Any]]) -> None:
        def ignore(failure: Failure) -> None:
            failure.trap(PylogbrokerError)

        self._operate(lambda: act().addErrback(ignore))

    def _reassign(self) -> str | None:
        place = TopicPartition(
            self.random.choice((LOGS, COPIES, OFFSETS_TOPIC)), self.random.randrange(2)
        )
        if place.topic == OFFSETS_TOPIC:
            place = place._replace(partition=0)
        count = self.random.choice((2, 3, 3))
        replicas = self.random.sample(sorted(self.brokers), count)
        target = None if self.random.random() < 0.2 else replicas
        self._ask(lambda: self.admin.alterPartitionReassignments({place: target}))
        return f"{place} to {target}"

    def _throttle(self) -> str | None:
        """Replicas that are behind are throttled, or are no more."""
        rate = self.random.choice(THROTTLED_RATES)
        self._ask(lambda: self._setThrottle(rate))
        return "no limit" if rate is None else f"{rate} bytes/s"

    def _setThrottle(self, rate: str | None) -> Deferred[Any]:
        """@param rate: bytes in a second, of each broker; L{None}: no limit."""
        operation = AlterConfigOperation.SET if rate else AlterConfigOperation.DELETE
        rates = dict.fromkeys((LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE), (operation, rate))
        replicas = dict.fromkeys(
            (LEADER_THROTTLED_REPLICAS, FOLLOWER_THROTTLED_REPLICAS),
            (operation, "*" if rate else None),
        )
        return self.admin.incrementalAlterConfigs(
            {
                ConfigResource(ResourceKind.BROKER, ""): rates,
                ConfigResource(ResourceKind.TOPIC, LOGS): replicas,
                ConfigResource(ResourceKind.TOPIC, COPIES): replicas,
            }
        )

    def _endThrottle(self) -> None:
        """Replication has no limit any more: again and again, since a late request may set one."""

        def again(result: object) -> None:
            if isinstance(result, Failure):
                result.trap(PylogbrokerError)
            self.operator.callLater(1.0, self._endThrottle)

        self._operate(lambda: self._setThrottle(None).addBoth(again))

    def _elect(self) -> str | None:
        self._ask(lambda: self.admin.electLeaders(None))
        return "the preferred leaders"

    def _minInSync(self) -> str | None:
        value = self.random.choice(("1", "2"))
        resource = ConfigResource(ResourceKind.TOPIC, self.random.choice((LOGS, COPIES)))
        change = {"min.insync.replicas": (AlterConfigOperation.SET, value)}
        self._ask(lambda: self.admin.incrementalAlterConfigs({resource: change}))
        return f"{resource.name}: {value}"

    def _topics(self) -> str | None:
        """Another topic comes, or goes."""
        name = f"scratch{self.random.randrange(2)}"
        if self.random.random() < 0.5:
            self._ask(lambda: self.admin.createTopics([NewTopic(name, 2, 2)]))
            return f"{name} is created"
        self._ask(lambda: self.admin.deleteTopics([name]))
        return f"{name} is deleted"

    # -- the end

    def repair(self) -> None:
        """All faults end."""
        self.say("no more faults")
        self.isCalm = self.network.isCalm = True
        self._mendPaths()
        if self.counts["throttle"]:
            self._endThrottle()
        for producer in self.producers:
            producer.end()
        self._repairBrokers()
        for client in (*self.members, *self.copiers, *self.readers, *self.producers):
            client.process.resume()

    def recover(self) -> None:
        """
        Everything comes to rest.

        @raise BrokenPromiseError: it does not.
        """
        since = self.scheduler.now
        for broker in self.brokers.values():
            if not broker.isWanted:
                self._startIn(broker, 0.5)
        self.waitFor(self._unsettled, CALM_SECONDS_MAX, "recovered")
        self.counts["calm ms"] += int((self.scheduler.now - since) * 1000)

    def _unsettled(self) -> str:
        """What is missing until all is at rest."""
        for broker in self.brokers.values():
            if not broker.isWanted and not broker.isUp:
                self._startIn(broker, 0.0)
        if missing := self._unserved():
            return f"{missing} does not serve"
        image = self.image
        assert image is not None
        for name, topic in sorted(image.topics.items()):
            for index, part in enumerate(topic.partitions):
                isLost = self.counts["disk"] or self.counts["wiped"]
                if isLost and part.leader == part.lastKnownLeader == -1:
                    if not part.inSync and not part.eligibleLeaders:
                        self.isGivenUp = True
                        return ""
                if part.leader < 0 or {*part.inSync} != {*part.replicas} or part.adding:
                    return f"{name}-{index} is {part}"
                logs = [self.brokers[each].log(name, index) for each in part.replicas]
                marks = {
                    (each.logEndOffset, each.highWatermark) if each is not None else None
                    for each in logs
                }
                if len(marks) != 1 or None in marks or len({*marks.pop()}) != 1:  # type: ignore[misc]
                    return f"{name}-{index} has marks {marks} in {part}"
        for producer in self.producers:
            if producer.waitingCount and not producer.process.isDead:
                return f"{producer.process} waits for {producer.waitingCount} messages"
        return self._unread()

    def _unread(self) -> str:
        for index in range(PARTITION_COUNT):
            logs, copies = self._log(LOGS, index), self._log(COPIES, index)
            if copies.lastStableOffset != copies.logEndOffset:
                return f"{COPIES}-{index} is stable to {copies.lastStableOffset}"
            for group in self.groups:
                found = self.ledger.committed.get((group, (LOGS, index)), 0)
                isLate = (
                    found in self.ledger.doubtful[group, (LOGS, index)]
                    and logs.logEndOffset - 1 in self.ledger.delivered[group, (LOGS, index)]
                )
                if found != logs.logEndOffset and not isLate:
                    return f"{group} are at {found} of {logs.logEndOffset} in {LOGS}-{index}"
            for reader, log in zip(self.readers, (logs, copies), strict=False):
                place = TopicPartition(reader.topic, index)
                if reader.consumer is None or reader.consumer.positions.get(place, 0) != (
                    log.logEndOffset
                ):
                    return f"{reader.process} has not read all of {place}"
        return ""

    def judge(self) -> None:
        """
        See whether all that must hold holds.

        @raise BrokenPromiseError: something does not.
        """
        image = self.image
        assert image is not None
        records: dict[Place, list[LogRecord]] = {}
        for name, topic in sorted(image.topics.items()):
            for index, part in enumerate(topic.partitions):
                logs = {each: self._bytesOf(each, name, index) for each in part.replicas}
                records[name, index] = list(recordsOf(logs[part.leader]))
                if name not in COMPACTED and len({*logs.values()}) != 1:
                    raise BrokenPromiseError(f"the replicas of {name}-{index} differ: {part}")
                if name in COMPACTED:
                    self._compare(f"{name}-{index}", logs)
        for index in range(PARTITION_COUNT):
            logs_, copies = (LOGS, index), (COPIES, index)
            self.ledger.judge(logs_, records[logs_])
            if self._hasMembers:
                self.ledger.judgeDelivered(READERS, logs_, records[logs_])
            if self._hasCopier:
                self.ledger.judgeCopies(logs_, records[logs_], copies, records[copies])
            self.counts["messages"] += len(records[logs_])
            self.counts["copies"] += len(records[copies])
        outcomes = self.ledger.outcomes.values()
        self.counts["acknowledged"] += sum(isinstance(each, int) for each in outcomes)
        self.counts["not acknowledged"] += sum(not isinstance(each, int) for each in outcomes)

    def loseLeader(self) -> None:
        """
        The leader of a partition is lost for good: others lead what it has led.

        @raise BrokenPromiseError: they do not.
        """
        image = self.image
        assert image is not None
        lost = image.topics[LOGS].partitions[0].leader
        self.brokers[lost].kill()

        def led() -> str:
            image = self.image
            assert image is not None
            return ", ".join(
                f"{name}-{index}"
                for name, topic in sorted(image.topics.items())
                for index, part in enumerate(topic.partitions)
                if part.leader == lost
            )

        self.waitFor(led, SUCCESSION_SECONDS_MAX, f"led by others than broker {lost}")

    def _compare(self, name: str, logs: dict[int, bytes]) -> None:
        """Replicas that are compacted, each by itself, have the same records at an offset."""
        found: dict[int, LogRecord] = {}
        for data in logs.values():
            for each in recordsOf(data):
                if found.setdefault(each.offset, each) != each:
                    raise BrokenPromiseError(
                        f"the replicas of {name} differ: {each} and {found[each.offset]}"
                    )
        self.counts["records compared"] += len(found)


FAULTS = {
    "kill": 3.0,
    "powerCut": 3.0,
    "powerCutAtStep": 2.0,
    "allDown": 1.0,
    "stop": 2.0,
    "pause": 2.5,
    "controller": 1.5,
    "severed": 2.0,
    "zookeeperAway": 0.5,
    "zookeeperSlow": 2.5,
    "cut": 3.0,
    "connection": 2.0,
    "disk": 1.0,
    "wiped": 1.0,
    "producerDies": 0.7,
    "memberDies": 1.5,
    "copierDies": 2.0,
    "reassign": 1.5,
    "throttle": 0.7,
    "elect": 1.0,
    "minInSync": 0.7,
    "topics": 1.0,
}

ClusterWorld.faults = FAULTS
