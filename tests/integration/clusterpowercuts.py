"""
Random lives of three brokers in one process, whose power fails at the same time, before a file
operation of one of them: what was acknowledged to C{acks=all} is there, and the replicas agree.

The brokers are services as C{twistd} starts them, on a clock that stands still, with workers on a
lead, connections that are pairs of sockets, and a file system for each that forgets what was not
synced (L{PowerCutFileSystem}). ZooKeeper is L{FakeZookeeper}: it keeps what it has answered, as a
server does that syncs first, and what was under way when the power failed may have come about or
not. Sometimes the power fails again while they start, and each starts at its own time.

What must hold after each cut, when all replicas are in sync again, within L{RECOVERY_SECONDS}:

  - the logs of the replicas are the same, byte for byte;
  - a partition has the messages in the order in which they were sent, none twice, none else; they
  are a beginning of what a replica had when the power failed;
  - with durable acknowledgement, or when all processes were killed and the machines were not: each
  acknowledged message is where the answer said; a group's position is no earlier than what was
  acknowledged.

Most lives have idempotent producers, which send again what was not acknowledged: it is there once,
and they need no new id, unless messages were lost.

With C{log.flush.acks.all=false}, what the last leader has lost is lost: the first two hold.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.records.recordbatch import Record, encodeBatch, iterateRecords, readHeader
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import TopicPartition
from tests.broker.kafka.clustercase import PORT, LeadNetwork
from tests.broker.kafka.kafkacase import decoded, frameOf
from tests.broker.manualbroker import LeadBroker, LeadReactor, Peer
from tests.integration.kills import LostError

BROKERS = (0, 1, 2)
PARTITIONS = tuple(TopicPartition("log", number) for number in range(3))
OFFSETS = TopicPartition("__consumer_offsets", 0)
GROUP = "g"
START_SECONDS = 1_700_000_000.0
SESSION_MS = 3_000
LATENCY_MS = 4.0
RECOVERY_SECONDS = 60.0
STEP_SECONDS = 0.05
LIFE_STEP_COUNT = 400
IN_FLIGHT_MAX = 3
OPERATIONS_TO_CUT = (5, 20, 80, 200)
START_COUNT_MAX = 20
PRODUCE, COMMIT, FETCH_POSITION, CREATE_TOPICS, INIT_PRODUCER = 9, 8, 7, 7, 4
NO_PRODUCER = -1
_LOST_STATE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
GREETING = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 0, 0)

PROPERTIES = {
    "enable.zookeeper": "true",
    "zk.connect": "zookeeper:2181",
    "zk.sessiontimeout.ms": str(SESSION_MS),
    "metadata.store": "zookeeper",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "replica.lag.time.max.ms": "4000",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "log.index.interval.bytes": "100",
}


class _Reactor(LeadReactor):
    """Stops in the middle of whatever it does, when the power fails."""

    isHalted = False

    def halt(self) -> None:
        self.isHalted = True
        self.rightNow = 0.0  # no call is due any more; they can be cancelled
        self.removeAll()

    def callLater(self, delay: float, callable: Any, *args: Any, **kw: Any) -> Any:
        return super().callLater(delay + self.isHalted, callable, *args, **kw)

    def addReader(self, reader: Any) -> None:
        if not self.isHalted:
            super().addReader(reader)

    def addWriter(self, writer: Any) -> None:
        if not self.isHalted:
            super().addWriter(writer)

    def advance(self, amount: float) -> None:
        if not self.isHalted:
            super().advance(amount)


class ClusterFileSystem(PowerCutFileSystem):
    """
    A broker's; it says at once that the power has failed.

    @ivar onLost: called then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.onLost: Callable[[], None] = lambda: None

    @contextmanager
    def _operation(
        self, action: str, path: str, changes: bool = True, generation: int | None = None
    ) -> Iterator[None]:
        try:
            with super()._operation(action, path, changes, generation):
                yield
        except PowerLostError:
            if generation in (None, self.generation):
                self.onLost()
            raise


class _Batch:
    """Messages that were tried; C{isInFlight}: an answer may come."""

    def __init__(self, first: int, count: int, sequence: int) -> None:
        self.first = first
        self.count = count
        self.sequence = sequence
        self.isInFlight = False


class _Partition:
    """
    What is known of a partition, and its producer.

    @ivar sentCount: messages that were tried; their numbers are their order.
    @ivar acknowledged: the number at an offset.
    @ivar pending: batches of an idempotent producer without an acknowledgement; those of another
        one are not kept.
    @ivar producerId: -1: there is none.
    @ivar sequence: of the next message.
    """

    def __init__(self) -> None:
        self.sentCount = 0
        self.acknowledged: dict[int, int] = {}
        self.pending: list[_Batch] = []
        self.producerId = NO_PRODUCER
        self.sequence = 0
        self.isAsking = False

    def reset(self) -> None:
        """Give up what is not acknowledged: with another producer id it could be there twice."""
        self.pending = []
        self.producerId, self.sequence = NO_PRODUCER, 0


Answer = Callable[[Any], None]


class _Client:
    """A connection to a broker, with requests under way."""

    def __init__(self, lead: LeadBroker) -> None:
        self._peer: Peer = lead.connect()
        self._peer.send(GREETING)
        self.waiting: list[tuple[ApiKey, int, Answer]] = []
        self._greeted = False

    def send(self, key: ApiKey, version: int, body: Any, answer: Answer) -> None:
        self.waiting.append((key, version, answer))
        self._peer.send(frameOf(key, version, body))

    def hear(self) -> None:
        for frame in self._peer.frames():
            if not self._greeted:
                self._greeted = True
                continue
            key, version, answer = self.waiting.pop(0)
            answer(decoded(key, version, frame))

    def close(self) -> None:
        self._peer._socket.close()
        if hasattr(self._peer.transport, "socket"):
            self._peer.transport.socket.close()


class ClusterPowerCutLife:
    """
    A life of a cluster, over several power cuts.

    @ivar figures: what it was made of.
    @ivar log: what happened, for the text of a failure.
    """

    def __init__(
        self,
        seed: int,
        isDurable: bool,
        makeFileSystem: Callable[[], ClusterFileSystem] = ClusterFileSystem,
        isFlushing: bool | None = None,
    ) -> None:
        """
        @param isDurable: whether nothing that was acknowledged may be lost.
        @param isFlushing: C{log.flush.acks.all}; by default, as C{isDurable}.
        """
        self.random = Random(seed)
        self.isDurable = isDurable
        self._isFlushing = str(isDurable if isFlushing is None else isFlushing).lower()
        self.figures: Counter[str] = Counter()
        self.log: list[str] = [f"seed {seed}, durable: {isDurable}"]
        self._zookeeperClock = Clock()
        self._zookeeperClock.rightNow = START_SECONDS
        self._zookeeper = FakeZookeeper(self._zookeeperClock, LATENCY_MS)
        self._clients: list[Any] = []
        self._fileSystems = [makeFileSystem() for _broker in BROKERS]
        for each in self._fileSystems:
            each.pageSize = self.random.choice((16, 64, 512))
            each.onLost = self._halt
        self._partitions = {place: _Partition() for place in PARTITIONS}
        self._isIdempotent = self.random.random() < 0.6
        self._producerIds: set[int] = set()
        self._hasLost = False
        self._positions = [0, 0]
        """The position that was acknowledged, and the one that was tried."""
        self._topicsAre = False
        self._start()

    # -- starting

    def _halt(self) -> None:
        self.reactor.halt()

    def _isOff(self) -> bool:
        """Whether the power has failed, or the processes were killed."""
        return self.reactor.isHalted

    def _makeLeads(self) -> None:
        self.reactor = _Reactor()
        self.reactor.rightNow = self._zookeeperClock.seconds()
        self._network = LeadNetwork(self.reactor)
        self._connections: dict[int, _Client] = {}
        self.leads: list[LeadBroker] = []
        for number in BROKERS:
            files = self._fileSystems[number]
            files.clock = lambda: int(self.reactor.seconds() * 1000)
            lead = LeadBroker(
                {
                    **PROPERTIES,
                    "brokerid": str(number),
                    "port": str(PORT + number),
                    "hostname": "192.0.2.9",
                    "log.flush.acks.all": self._isFlushing,
                    "log.flush.before.read": self._isFlushing,
                },
                fileSystem=files,
                reactor=self.reactor,
                seed=self.random.randrange(1 << 30),
                formats=(Kafka07Format(), KafkaFormat()),
                connectBroker=lambda *address, number=number: self._connectors[number](*address),
                zookeeper=self._newZookeeperClient,
            )
            self.leads.append(lead)
            self._network.leads[PORT + number] = lead
        self._connectors = [self._network.connector(lead.settings) for lead in self.leads]

    def _newZookeeperClient(self) -> Any:
        client = self._zookeeper.client(SESSION_MS)
        self._clients.append(client)
        return client

    def _start(self) -> None:
        """Start until all replicas are in sync, and look whether everything is there."""
        for _attempt in range(START_COUNT_MAX):
            self._makeLeads()
            if self.random.random() < 0.25:
                self._arm()
            if self._recover():
                break
            self.log.append("cut while they start")
            self._isKill = False
            self._cut()
        else:
            raise AssertionError("they never come up")
        for files in self._fileSystems:
            files.cutAt = None
        self._check()

    def _arm(self) -> None:
        """The power will fail soon, before an operation of one of the brokers."""
        files = self.random.choice(self._fileSystems)
        files.cutAt = files.operationCount + self.random.randrange(
            self.random.choice(OPERATIONS_TO_CUT)
        )

    def _recover(self) -> bool:
        """Returns whether the power has stayed on."""
        begun = self.reactor.seconds()
        order = [*BROKERS]
        self.random.shuffle(order)
        due = {number: begun + self.random.choice((0, 0, 0.5, 4)) for number in order}
        started: dict[int, list[Any]] = {}
        wrong = ""
        while self.reactor.seconds() < begun + RECOVERY_SECONDS:
            for number in order:
                if number not in started and self.reactor.seconds() >= due[number]:
                    outcomes: list[Any] = []
                    started[number] = outcomes
                    self.leads[number].service.start().addBoth(outcomes.append)
            self._advance(STEP_SECONDS)
            if self._isOff():
                return False
            for number, outcomes in started.items():
                if outcomes and isinstance(outcomes[0], Failure):
                    raise LostError(f"broker {number} cannot start: {outcomes[0]}; {self.log}")
            if len(started) == len(BROKERS) and all(started.values()):
                if not self._topicsAre:
                    self._createTopics()
                    continue
                wrong = self._outOfSync()
                if not wrong:
                    seconds = self.reactor.seconds() - begun
                    self.figures["recoveryMsMax"] = max(
                        self.figures["recoveryMsMax"], round(seconds * 1000)
                    )
                    return True
        raise LostError(
            f"not in sync within {RECOVERY_SECONDS} s: {wrong or 'not started'}; {self.log}"
        )

    def _createTopics(self) -> None:
        if self._connections.get(0) is None:
            cls = messages.CreateTopicsRequest
            topics = [
                cls.CreatableTopic(name="log", numPartitions=len(PARTITIONS), replicationFactor=3)
            ]
            body = cls(topics=topics, timeoutMs=60_000)

            def created(answer: Any) -> None:
                code = answer.topics[0].errorCode
                assert code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), answer
                self._topicsAre = True

            self._client(0).send(ApiKey.CREATE_TOPICS, CREATE_TOPICS, body, created)
            find = messages.FindCoordinatorRequest(key=GROUP, keyType=0)
            self._client(1).send(ApiKey.FIND_COORDINATOR, 2, find, lambda _answer: None)
        self._hear()

    def _image(self) -> Any:
        """The latest that a broker has."""
        managers = [lead.service.kafka.metadata for lead in self.leads]
        return max(managers, key=lambda each: each.position).image

    def _places(self) -> list[TopicPartition]:
        isThere = OFFSETS.topic in self._image().topics
        return [*PARTITIONS, *([OFFSETS] if isThere else [])]

    def _outOfSync(self) -> str:
        """What is not; empty: all replicas are."""
        image = self._image()
        for place in self._places():
            partition = image.topics[place.topic].partitions[place.partition]
            if set(partition.inSync) != set(BROKERS) or partition.leader not in BROKERS:
                return f"{place} has {partition}"
            logs = [lead.directory.logs.get(place) for lead in self.leads]
            ends = {(log.logEndOffset, log.highWatermark) if log else None for log in logs}
            if len(ends) > 1 or len({*ends.pop()}) > 1:  # type: ignore[misc] # all are there
                return f"{place} ends at {[*ends]}"
        return ""

    # -- what happens

    def _advance(self, seconds: float) -> None:
        """Let time pass, and all workers do what they have."""
        self._zookeeperClock.advance(seconds)
        self.reactor.advance(seconds)
        for _round in range(1000):
            if self._isOff():
                return
            self.reactor.turn()
            busy = [worker for lead in self.leads for worker in self._workers(lead) if worker.jobs]
            if not busy:
                return
            for worker in busy:
                if not self._isOff() and worker.jobs:
                    worker.perform()
        raise AssertionError("the workers are still busy")

    @staticmethod
    def _workers(lead: LeadBroker) -> tuple[Any, Any]:
        return lead.flushWorker, lead.readWorker

    def run(self, cutCount: int) -> None:
        """
        Live on.

        @raise LostError: something does not hold.
        """
        for _cut in range(cutCount):
            isKill = self.random.random() < 0.15
            if not isKill:
                self._arm()
            for _step in range(self.random.randrange(20, LIFE_STEP_COUNT)):
                self._step()
                if self._isOff():
                    break
            self._hear()
            self.log.append("killed" if isKill else f"cut: halted {self._isOff()}")
            self._before = {
                place: [self._numbers(number, place) for number in BROKERS] for place in PARTITIONS
            }
            self._cut(isKill)
            self._isKill = isKill
            self._start()

    def _cut(self, isKill: bool = False) -> None:
        """All of them at once."""
        self._halt()
        self.figures["kills" if isKill else "cuts"] += 1
        for client in self._connections.values():
            client.close()
        for _port, transport in self._network.transports:
            if hasattr(transport, "socket"):  # else it was closed before
                transport.socket.close()
        for client in self._clients:
            self._zookeeper.lose(client)
        self._clients.clear()
        for files in self._fileSystems:
            if isKill:
                files.kill()
            else:
                files.cutPower(self.random if self.random.random() < 0.7 else None)
        self._zookeeperClock.advance(self.random.choice((0, 0.5, 5)))

    def _step(self) -> None:
        (act,) = self.random.choices(
            (self._produce, self._commit, self._work, self._turn, self._wait), (4, 0.5, 10, 4, 2)
        )
        try:
            act()
        except PowerLostError:
            assert self._isOff()
        if not self._isOff():
            self._hear()

    @property
    def operationCount(self) -> int:
        """Of all brokers' files, so far."""
        return sum(files.operationCount for files in self._fileSystems)

    def _work(self) -> None:
        busy = [worker for lead in self.leads for worker in self._workers(lead) if worker.jobs]
        if busy:
            self.random.choice(busy).perform()

    def _turn(self) -> None:
        self.reactor.turn()

    def _wait(self) -> None:
        seconds = self.random.choice((0.002, 0.02, 0.2))
        self._zookeeperClock.advance(seconds)
        self.reactor.advance(seconds)

    def _client(self, number: int) -> _Client:
        if number not in self._connections:
            self._connections[number] = _Client(self.leads[number])
        return self._connections[number]

    def _hear(self) -> None:
        for client in self._connections.values():
            client.hear()

    def _produce(self) -> None:
        place = self.random.choice(PARTITIONS)
        leader = self._leader(place)
        partition = self._partitions[place]
        if leader < 0 or len(self._client(leader).waiting) >= IN_FLIGHT_MAX:
            return
        if self._isIdempotent and partition.producerId == NO_PRODUCER:
            self._initialize(partition)
            return
        waiting = [each for each in partition.pending if not each.isInFlight]
        if waiting:  # again, in order, when no answer can come any more
            if len(waiting) == len(partition.pending):
                self.figures["batches sent again"] += 1
                for each in waiting[:IN_FLIGHT_MAX]:
                    self._send(leader, place, each)
            return
        count = self.random.randrange(1, 4)
        batch = _Batch(partition.sentCount, count, partition.sequence)
        partition.sentCount += count
        partition.sequence += count
        self.figures["sent"] += count
        partition.pending.append(batch)
        self._send(leader, place, batch)

    def _initialize(self, partition: _Partition) -> None:
        if partition.isAsking:
            return
        partition.isAsking = True
        body = messages.InitProducerIdRequest(
            transactionalId=None, transactionTimeoutMs=60_000, producerId=-1, producerEpoch=-1
        )

        def initialized(answer: Any) -> None:
            partition.isAsking = False
            if not answer.errorCode:
                self._require(answer.producerId not in self._producerIds, "given twice", answer)
                self._producerIds.add(answer.producerId)
                partition.producerId = answer.producerId

        number = self.random.choice(BROKERS)
        self._client(number).send(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER, body, initialized)

    def _send(self, leader: int, place: TopicPartition, batch: _Batch) -> None:
        partition = self._partitions[place]
        nowMs = int(self.reactor.seconds() * 1000)
        records = [
            Record(at, nowMs, None, b"%d:" % (batch.first + at) + b"x" * self.random.randrange(60))
            for at in range(batch.count)
        ]
        producer: dict[str, Any] = {}
        if self._isIdempotent:
            producer = {
                "producerId": partition.producerId,
                "producerEpoch": 0,
                "baseSequence": batch.sequence,
            }
        cls = messages.ProduceRequest
        data = cls.PartitionProduceData(
            index=place.partition, records=encodeBatch(records, **producer)
        )
        topic = cls.TopicProduceData(name=place.topic, partitionData=[data])
        body = cls(transactionalId=None, acks=-1, timeoutMs=3_600_000, topicData=[topic])
        batch.isInFlight = True
        self._client(leader).send(
            ApiKey.PRODUCE,
            PRODUCE,
            body,
            lambda answer: self._onProduced(
                partition, batch, answer.responses[0].partitionResponses[0]
            ),
        )

    def _onProduced(self, partition: _Partition, batch: _Batch, answer: Any) -> None:
        code = answer.errorCode
        batch.isInFlight = False
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.figures["acknowledged"] += batch.count
            if batch in partition.pending:
                partition.pending.remove(batch)
            if answer.baseOffset >= 0:
                for at in range(batch.count):
                    partition.acknowledged[answer.baseOffset + at] = batch.first + at
            return
        self.figures["refused"] += batch.count
        if not self._isIdempotent:
            if batch in partition.pending:
                partition.pending.remove(batch)
        elif code in _LOST_STATE:
            isFirst = partition.pending[:1] == [batch]  # it may have been given up
            self._require(not isFirst or self._hasLost, "sequences are lost:", code)
            if isFirst:
                partition.reset()

    def _leader(self, place: TopicPartition) -> int:
        topic = self._image().topics.get(place.topic)
        return -1 if topic is None else topic.partitions[place.partition].leader

    def _commit(self) -> None:
        leader = self._leader(OFFSETS)
        if leader < 0 or len(self._client(leader).waiting) >= IN_FLIGHT_MAX:
            return
        self._positions[1] += 1
        position = self._positions[1]
        cls = messages.OffsetCommitRequest
        part = cls.OffsetCommitRequestPartition(
            partitionIndex=0, committedOffset=position, committedMetadata=""
        )
        body = cls(
            groupId=GROUP,
            generationIdOrMemberEpoch=-1,
            memberId="",
            topics=[cls.OffsetCommitRequestTopic(name="log", partitions=[part])],
        )

        def committed(answer: Any) -> None:
            if not answer.topics[0].partitions[0].errorCode:
                self._positions[0] = max(self._positions[0], position)
                self.figures["commits"] += 1

        self._client(leader).send(ApiKey.OFFSET_COMMIT, COMMIT, body, committed)

    # -- what is there

    def _numbers(self, broker: int, place: TopicPartition) -> list[tuple[int, int]]:
        """Offset and number of each message that a replica has, as programs see its files."""
        lead = self.leads[broker]
        if place not in lead.directory.logs:
            return []
        data = lead.contents(*place)
        found, at = [], 0
        while at + 61 <= len(data):
            header = readHeader(data, at)
            if at + header.size > len(data):
                break
            found += [
                (each.offset, int(bytes(each.value or b"").partition(b":")[0]))
                for each in iterateRecords(data, at, header)
            ]
            at += header.size
        return found

    def _require(self, isTrue: bool, *what: object) -> None:
        if not isTrue:
            raise LostError(f"{' '.join(map(str, what))}; {self.log}")

    _before: dict[TopicPartition, list[list[tuple[int, int]]]] = {}
    _isKill = False

    def _check(self) -> None:
        for lead in self.leads:
            failures = [
                *lead.directory.failures.values(),
                *(log.failure for log in lead.directory.logs.values() if log.failure is not None),
            ]
            self._require(not failures, "out of service:", failures)
        for place in self._places():
            contents = [lead.contents(*place) for lead in self.leads]
            self.figures["bytes compared"] += len(contents[0])
            self._require(
                len({*contents}) == 1, place, "is not the same:", [len(each) for each in contents]
            )
        for place, partition in self._partitions.items():
            found = self._numbers(0, place)
            numbers = [number for _offset, number in found]
            self._require(sorted(set(numbers)) == numbers, place, "is not in order:", numbers)
            self._require(not numbers or numbers[-1] < partition.sentCount, place, "has", numbers)
            if self._before:
                replicas = self._before[place]
                self._require(
                    any(each[: len(found)] == found for each in replicas),
                    place,
                    "has",
                    found[-3:],
                    "which is no beginning of what a replica had",
                    [each[-3:] for each in replicas],
                )
            kept = dict(found)
            lost = {
                offset: number
                for offset, number in partition.acknowledged.items()
                if kept.get(offset) != number
            }
            self.figures["lost"] += len(lost)
            self._require(not lost or self._mayLose, place, "has lost", lost, "ends", found[-3:])
            self._hasLost |= bool(lost)
            partition.acknowledged = kept
            for batch in partition.pending:
                batch.isInFlight = False
            if not self._isIdempotent:
                partition.pending = []
            partition.isAsking = False
        self._checkPosition()

    @property
    def _mayLose(self) -> bool:
        return not self.isDurable and not self._isKill

    def _checkPosition(self) -> None:
        """A group's position, by the coordinator, when it has read its topic."""
        if OFFSETS.topic not in self._image().topics:
            return
        codes, found = [], []
        cls = messages.OffsetFetchRequest
        topic = cls.OffsetFetchRequestTopic(name="log", partitionIndexes=[0])
        body = cls(groupId=GROUP, topics=[topic], requireStable=False)

        def fetched(answer: Any) -> None:
            codes.append(answer.errorCode)
            if not answer.errorCode:
                found.append(answer.topics[0].partitions[0].committedOffset)

        for _attempt in range(200):
            count = len(codes)
            self._client(self._leader(OFFSETS)).send(
                ApiKey.OFFSET_FETCH, FETCH_POSITION, body, fetched
            )
            while len(codes) == count:
                self._advance(STEP_SECONDS)
                self._hear()
            if found:
                break
        self._require(bool(found), "no position:", codes[-1])
        first, last = self._positions
        position = max(found[0], 0)
        isThere = first <= position or self._mayLose
        self._require(isThere and position <= last, "position", position, self._positions)
        self._positions[0] = position
