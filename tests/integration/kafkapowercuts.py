"""
Random lives of a broker with clients of today's protocol (L{tests.integration.brokerlife}): what
was acknowledged stays, once, where it was.

The clients write to logs and to a compacted topic as idempotent producers, run transactions over
two topics and a group's positions, commit positions, are static members of a group, create, grow
and remove topics, change settings, passwords and quotas, and delete records. Some of them outlive
the broker, and send again what was not answered; others end with it.

The books know what was tried and what was answered. After each death everything is read. What was
answered must be there; what was tried may be there; a transaction is there as a whole or not at
all, with its position; no record is there twice; no producer id is given twice.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records.recordbatch import (
    Record,
    controlType,
    encodeBatch,
    iterateRecords,
    readHeader,
)
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from pylogbroker.types import TopicPartition
from tests.broker.kafka.kafkacase import decoded, frameOf
from tests.integration.brokerlife import Act, BrokerLife
from tests.integration.kills import LostError
from tests.integration.memorybroker import MemoryBroker, MemoryClient

LOGS = (TopicPartition("log", 0), TopicPartition("log", 1))
COMPACTED = TopicPartition("compacted", 0)
OUTPUTS = (TopicPartition("output", 0), TopicPartition("compactedoutput", 0))
TRANSACTIONAL_ID = "writer"
OUTPUT_GROUP, MEMBER_GROUP = "outputs", "members"
GROUPS = ("g0", "g1")
KEY_COUNT = 8
IN_FLIGHT_MAX = 5
TOPIC_COUNT_MAX = 4
ATTEMPT_COUNT_MAX = 200
JOURNAL_SIZE = 3_000
"""For C{metadatastore.SNAPSHOT_SIZE_MIN}: the journal is rewritten often."""

_GREETING = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 0, 0)
_ABORT = 0
_COMMITTED = 1
_EARLIEST = -2
_CLASSIC_PRODUCE, _NAMED_FETCH = 9, 11
_BUMPING_PRODUCE = 13
"""The version with which a producer need not add partitions to its transaction."""

_RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)

KINDS = (
    ("journal", re.compile(r"metadata\.journal")),
    ("compaction", re.compile(r"\.(cleaned|swap|deleted)$|/cleaner-offset")),
    ("snapshots", re.compile(r"\.snapshot")),
    ("checkpoints", re.compile(r"checkpoint|meta\.properties|cleanshutdown|partition\.metadata")),
    ("positions", re.compile(r"__consumer_offsets")),
    ("transactions", re.compile(r"__transaction_state|output-|\.txnindex")),
    ("logs", re.compile("")),
)
"""What a file is, by its path; the first that fits."""


def kindOf(path: str) -> str:
    """What the file of a path is: a name of L{KINDS}."""
    return next(name for name, pattern in KINDS if pattern.search(path))


class CountingFileSystem(PowerCutFileSystem):
    """
    Counts operations, and power cuts before one, by what the operation changes.

    @ivar counts: operations, by the names of L{KINDS}.
    @ivar cuts: power cuts, by the same names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.cuts: Counter[str] = Counter()
        self._latest = ""

    def _operation(
        self, action: str, path: str, changes: bool = True, generation: int | None = None
    ) -> Any:
        if changes and not self._isOff:
            self._latest = kindOf(path)
            self.counts[self._latest] += 1
        return super()._operation(action, path, changes, generation)

    def cutPower(self, random: Random | None = None) -> None:
        if self._isOff:
            self.cuts[self._latest] += 1
        super().cutPower(random)


class Found(NamedTuple):
    """A record that was read."""

    offset: int
    key: bytes | None
    value: bytes | None
    number: int


class KafkaClient:
    """
    A client that outlives brokers: what was not answered is sent again.

    @ivar isEnded: it was killed with the broker, and gets no answer any more.
    """

    def __init__(self) -> None:
        self.isEnded = False
        self._connection: MemoryClient | None = None
        self._pending: deque[tuple[bytes, ApiKey, int, Deferred[Any]]] = deque()

    @property
    def isBusy(self) -> bool:
        """Whether an answer is missing."""
        return bool(self._pending)

    def connect(self, broker: MemoryBroker) -> None:
        """A broker is there: send what is to be sent again."""
        self._connection = MemoryClient(broker)
        with suppress(PowerLostError):
            self._connection.ask(_GREETING)
            for frame, *_ in self._pending:
                self._connection.send(frame)

    def request(self, key: ApiKey, version: int, /, **fields: Any) -> Deferred[Any]:
        """Send a request. Fires with the response, perhaps by a later broker; never fails."""
        return self.send(key, version, key.requestClass(**fields))

    def send(self, key: ApiKey, version: int, body: Any) -> Deferred[Any]:
        """As L{request}."""
        answer: Deferred[Any] = Deferred()
        frame = frameOf(key, version, body)
        self._pending.append((frame, key, version, answer))
        if self._connection is not None:
            with suppress(PowerLostError):
                self._connection.send(frame)
        return answer

    def hear(self) -> None:
        """Take the answers that are there."""
        while self._connection is not None and (frame := self._connection.take()) is not None:
            _, key, version, answer = self._pending.popleft()
            answer.callback(decoded(key, version, frame))


class _RefusedError(Exception):
    """The disk was full: what was asked for is not done, and the client was told."""


class _Producer:
    """
    An idempotent producer of one partition.

    @ivar producerId: -1: it has none yet.
    @ivar sequence: of its next record.
    """

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.client = KafkaClient()
        self.producerId = -1
        self.sequence = 0
        self.inFlightCount = 0


class _Transactions:
    """
    The transactional producer.

    @ivar epoch: -1: it is to be initialized.
    @ivar sequences: the next, by partition.
    """

    def __init__(self) -> None:
        self.client = KafkaClient()
        self.producerId = self.epoch = -1
        self.sequences = [0, 0]
        self.isBusy = False

    def begin(self, producerId: int, epoch: int) -> None:
        """Go on with an epoch."""
        if (producerId, epoch) != (self.producerId, self.epoch):
            self.sequences = [0, 0]
        self.producerId, self.epoch = producerId, epoch


class _Topic:
    """
    A topic that comes and goes.

    @ivar state: C{"creating"}, C{"there"}, C{"removing"} or C{"removed"}.
    @ivar counts: of partitions: the number that was answered, and the one that was tried.
    """

    def __init__(self) -> None:
        self.state = "creating"
        self.counts = [1, 1]


class _Books:
    """
    What was tried, and what was answered. Of two numbers the first was answered.

    @ivar numbers: how many records were tried, by log.
    @ivar places: by log, the number at an offset: answered, or seen.
    @ivar stored: by log, the numbers that are there, at some offset.
    @ivar starts: where logs begin.
    @ivar keys: by key, the number that was answered; and the tried values, in order, from 0 on.
    @ivar transactions: whether a transaction is there; L{None}: not known yet.
    @ivar positions: of groups.
    @ivar settings: values of settings, passwords and quotas, by kind.
    @ivar producerIds: all that were given.
    """

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(LOGS, 0)
        self.places: dict[TopicPartition, dict[int, int]] = {place: {} for place in LOGS}
        self.stored: dict[TopicPartition, set[int]] = {place: set() for place in LOGS}
        self.starts = {place: [0, 0] for place in LOGS}
        self.keys: dict[bytes, tuple[list[int], list[bytes | None]]] = {}
        self.transactions: dict[int, bool | None] = {}
        self.positions = {group: [0, 0] for group in GROUPS}
        self.settings = {kind: [0, 0] for kind in ("config", "password", "quota")}
        self.topics: dict[str, _Topic] = {}
        self.producerIds: set[int] = set()
        self.member: tuple[str, int] | None = None


def _require(isTrue: bool, *what: object) -> None:
    if not isTrue:
        raise LostError(" ".join(map(str, what)))


def _properties(random: Random) -> dict[str, str]:
    return {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.roll.ms": str(random.choice((300, 1000, 3000))),
        "log.index.interval.bytes": "100",
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.min.cleanable.ratio": random.choice(("0.01", "0.3")),
        "log.cleaner.delete.retention.ms": random.choice(("0", "2000", "86400000")),
        "log.cleaner.dedupe.buffer.size": random.choice(("1", "1000000")),
        "log.flush.offset.checkpoint.interval.ms": "2000",
        "log.cleanup.interval.mins": "1",
    }


class KafkaPowerCutLife(BrokerLife):
    """A life of a broker with clients of today's protocol."""

    fileSystem: CountingFileSystem

    def __init__(
        self, seed: int, makeFileSystem: Callable[[], CountingFileSystem] = CountingFileSystem
    ) -> None:
        self._books = _Books()
        self._producers = [_Producer(place) for place in (*LOGS, COMPACTED)]
        self._transactions = _Transactions()
        self._isBumping = seed % 2 == 1
        self._committers = {group: KafkaClient() for group in GROUPS}
        self._topicAdmin, self._admin, self._memberClient, self._deleter, self._reader = (
            KafkaClient() for _ in range(5)
        )
        self._waiting: list[Deferred[None]] = []
        self._problems: list[Failure] = []
        self._isReady = self._wasFull = False
        super().__init__(seed, _properties, makeFileSystem)

    # -- a new broker

    def _clients(self) -> Iterator[KafkaClient]:
        for producer in self._producers:
            yield producer.client
        yield self._transactions.client
        yield from self._committers.values()
        yield from (
            self._topicAdmin,
            self._admin,
            self._memberClient,
            self._deleter,
            self._reader,
        )

    def _connect(self) -> None:
        self._wasFull = False
        for client in self._clients():
            client.connect(self.broker)

    def _endSome(self) -> None:
        """Some clients have ended with the broker; what they have sent before may be there."""
        ends = self.random.random
        for index, producer in enumerate(self._producers):
            if ends() < 0.3:
                producer.client.isEnded = True
                self._producers[index] = _Producer(producer.place)
        if ends() < 0.4:
            self._transactions.client.isEnded = True
            self._transactions = _Transactions()
        for group in GROUPS:
            if ends() < 0.3:
                self._committers[group] = KafkaClient()
        if ends() < 0.3:
            self._memberClient = KafkaClient()
        if ends() < 0.3:
            self._topicAdmin = KafkaClient()
        if ends() < 0.3:
            self._admin = KafkaClient()
        self._reader = KafkaClient()

    # -- what is there

    def _ask(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        return self._askBody(key, version, key.requestClass(**fields))

    def _askBody(self, key: ApiKey, version: int, body: Any) -> Any:
        frame = self._checker.ask(frameOf(key, version, body))
        return decoded(key, version, frame)

    def _askUntil(self, ask: Callable[[], tuple[int, Any]], what: str) -> Any:
        """The answer, when it is no error that passes."""
        code, answer = ask()
        for _ in range(ATTEMPT_COUNT_MAX):
            if code not in _RETRIABLE:
                break
            self.broker.advance(0.01)
            self._settle()
            code, answer = ask()
        _require(code == 0, what, "has code", code)
        return answer

    def _check(self) -> None:
        self._endSome()
        self._checker = MemoryClient(self.broker)
        self._checker.ask(_GREETING)
        if not self._isReady:
            self._prepare()
        self._checkMetadata()
        for place in LOGS:
            self._checkLog(place)
        self._checkKeys()
        for group, (first, last) in self._books.positions.items():
            found = max(self._position(group), 0)
            _require(first <= found <= last, "position of", group, found, (first, last))
            self._books.positions[group][0] = found
        self._checkMember()
        self._checkTransactions()

    def _prepare(self) -> None:
        """Create the topics, unless an earlier broker has."""
        cls = messages.CreateTopicsRequest
        isCompacted = [cls.CreatableTopicConfig(name="cleanup.policy", value="compact")]
        topics = [
            cls.CreatableTopic(name=name, numPartitions=count, replicationFactor=1, configs=configs)
            for name, count, configs in (
                ("log", 2, []),
                ("compacted", 1, isCompacted),
                ("output", 1, []),
                ("compactedoutput", 1, isCompacted),
            )
        ]
        for each in self._ask(ApiKey.CREATE_TOPICS, 7, topics=topics).topics:
            isThere = each.errorCode in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
            _require(isThere, each.name, each.errorMessage)
        for keyType, key in ((0, GROUPS[0]), (1, TRANSACTIONAL_ID)):
            self._askUntil(lambda: self._find(keyType, key), key)  # noqa: B023 - it is called here
        self._isReady = True

    def _find(self, keyType: int, key: str) -> tuple[int, None]:
        found = self._ask(ApiKey.FIND_COORDINATOR, 2, key=key, keyType=keyType)
        return found.errorCode, None

    def _checkMetadata(self) -> None:
        books, kafka = self._books, self.broker.service.kafka
        self._settle()
        image = kafka.metadata.image
        for name, topic in list(books.topics.items()):
            found = image.topics.get(name)
            if topic.state in ("there", "removed"):
                _require((found is not None) == (topic.state == "there"), name, topic.state, found)
            if found is None:
                if not self._topicAdmin.isBusy:
                    del books.topics[name]
                continue
            first, last = topic.counts
            _require(first <= found.partitionCount <= last, name, found, topic.counts)
            topic.counts[0] = found.partitionCount
            for index in range(found.partitionCount):
                _require(kafka.topics.find(name, index) is not None, name, index, "is not served")
            if not self._topicAdmin.isBusy:
                topic.state = "there"
        _require("log" in image.topics, "log", "is not there")
        values = {
            "config": int(image.topics["log"].configs.get("file.delete.delay.ms", "0")),
            "password": max(
                (each.iterations - 4096 for each in image.scramCredentials.get("u", {}).values()),
                default=0,
            ),
            "quota": max(
                (int(each) for quotas in image.quotas.values() for each in quotas.values()),
                default=0,
            ),
        }
        for kind, value in values.items():
            first, last = books.settings[kind]
            _require(first <= value <= last, kind, value, (first, last))
            books.settings[kind][0] = value

    def _settle(self) -> None:
        """Have all jobs done."""
        workers = self.broker.workers
        self.broker.settle(lambda: not any(worker.jobs for worker in workers))

    def _fetched(self, body: Any, isCommitted: bool) -> tuple[list[Found], int]:
        """The records of a response for one partition, and the offset behind them."""
        ((part,),) = (topic.partitions for topic in body.responses)
        _require(part.errorCode == 0, "Fetch has code", part.errorCode)
        data, at, end = bytes(part.records or b""), 0, -1
        aborted = sorted(
            ((each.firstOffset, each.producerId) for each in part.abortedTransactions or ()),
        )
        ongoing: set[int] = set()
        found: list[Found] = []
        while at + 61 <= len(data):
            header = readHeader(data, at)
            if at + header.size > len(data):
                break
            records = list(iterateRecords(data, at, header))
            at, end = at + header.size, header.nextOffset
            while aborted and aborted[0][0] < header.nextOffset:
                ongoing.add(aborted.pop(0)[1])
            if header.isControl:
                if records and controlType(records[0]) == _ABORT:
                    ongoing.discard(header.producerId)
            elif not (isCommitted and header.isTransactional and header.producerId in ongoing):
                found += [
                    Found(each.offset, each.key, each.value, int(each.headers[0][1] or b"-1"))
                    for each in records
                ]
        return found, end

    def _read(self, place: TopicPartition, isCommitted: bool = False) -> tuple[int, list[Found]]:
        """Where a log starts, and what it has."""
        cls = messages.ListOffsetsRequest
        wanted = cls.ListOffsetsPartition(partitionIndex=place.partition, timestamp=_EARLIEST)
        topic = cls.ListOffsetsTopic(name=place.topic, partitions=[wanted])
        body = self._ask(ApiKey.LIST_OFFSETS, 4, replicaId=-1, isolationLevel=0, topics=[topic])
        part = body.topics[0].partitions[0]
        _require(part.errorCode == 0, place, "ListOffsets has code", part.errorCode)
        start = offset = part.offset
        found: list[Found] = []
        while True:
            body = self._askBody(ApiKey.FETCH, _NAMED_FETCH, _fetch(place, offset, isCommitted))
            records, end = self._fetched(body, isCommitted)
            if end < 0:
                return start, found
            found += [each for each in records if each.offset >= offset]
            offset = end

    def _checkLog(self, place: TopicPartition) -> None:
        start, records = self._read(place)
        first, last = self._books.starts[place]
        _require(first <= start <= last, place, "starts at", start, (first, last))
        found = {each.offset: each.number for each in records}
        numbers = list(found.values())
        _require(sorted(set(numbers)) == numbers, place, "is not in order:", numbers)
        known = self._books.places[place]
        for offset, number in known.items():
            _require(
                offset < start or found.get(offset) == number,
                f"{place} has {found.get(offset)} at {offset}, where {number} was",
            )
        missing = self._books.stored[place] - set(numbers)
        isDeleted = not missing or (start > 0 and max(missing) < min(numbers, default=1 << 62))
        _require(isDeleted, place, "has not", missing)
        self._books.starts[place][0] = start
        self._books.places[place] = found

    def _checkKeys(self) -> None:
        _, records = self._read(COMPACTED)
        found = {each.key: each for each in records}
        isWorking = self._producers[2].client.isBusy
        for key, (acknowledged, values) in self._books.keys.items():
            first = acknowledged[0]
            record = found.get(key)
            if record is None:
                gone = [at for at in range(max(first, 0), len(values)) if values[at] is None]
                _require(first < 0 or bool(gone), key, "is gone; there was", first, values[first:])
                now = min(gone, default=-1) if first >= 0 else -1
            else:
                now = record.number
                _require(first <= now < len(values), key, "has", now, "of", first, len(values))
                _require(values[now] == record.value, key, "has", record.value, "as", now)
            acknowledged[0] = now
            if not isWorking:
                del values[now + 1 :]

    def _position(self, group: str) -> int:
        cls = messages.OffsetFetchRequest
        wanted = cls.OffsetFetchRequestTopic(name="log", partitionIndexes=[0])

        def ask() -> tuple[int, int]:
            body = self._ask(
                ApiKey.OFFSET_FETCH, 6, groupId=group, topics=[wanted], requireStable=False
            )
            part = body.topics[0].partitions[0] if body.topics else None
            code = body.errorCode or (part.errorCode if part is not None else 0)
            return code, part.committedOffset if part is not None else -1

        return int(self._askUntil(ask, group))

    def _checkMember(self) -> None:
        if self._books.member is None or self._memberClient.isBusy:
            return
        memberId, generation = self._books.member

        def ask() -> tuple[int, None]:
            body = self._ask(
                ApiKey.HEARTBEAT,
                3,
                groupId=MEMBER_GROUP,
                generationId=generation,
                memberId=memberId,
                groupInstanceId="i",
            )
            return body.errorCode, None

        self._askUntil(ask, f"Heartbeat of {memberId}")

    def _checkTransactions(self) -> None:
        isNew = self._transactions.producerId < 0 and not self._transactions.client.isBusy
        if isNew and self._books.transactions:

            def ask() -> tuple[int, Any]:
                body = self._ask(
                    ApiKey.INIT_PRODUCER_ID,
                    4,
                    transactionalId=TRANSACTIONAL_ID,
                    transactionTimeoutMs=900_000,
                )
                return body.errorCode, body

            body = self._askUntil(ask, "InitProducerId")
            self._transactions.begin(body.producerId, body.producerEpoch)
        self._settle()
        seen = [
            [each.number for each in self._read(place, isCommitted=True)[1]] for place in OUTPUTS
        ]
        _require(seen[0] == seen[1], "transactions differ:", *seen)
        present = set(seen[0])
        _require(sorted(present) == seen[0], "transactions are not in order:", seen[0])
        for number, isThere in self._books.transactions.items():
            if isThere is not None:
                _require(isThere == (number in present), "transaction", number, isThere, seen[0])
            elif isNew:
                self._books.transactions[number] = number in present
        position = self._position(OUTPUT_GROUP)
        expected = max(present, default=-2) + 1
        _require(position == expected, "position of transactions", position, expected)

    # -- what clients do

    def _hear(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)
        for client in self._clients():
            client.hear()
        for failure in self._problems:
            failure.raiseException()

    def _acts(self) -> Sequence[tuple[float, Act]]:
        return (
            (8, self._produce),
            (8, self._put),
            (6, self._transact),
            (4, self._commit),
            (1, self._join),
            (2, self._changeTopics),
            (2, self._changeSettings),
            (0.5, self._deleteRecords),
            (3, self._fetchSome),
            (6, self._second),
            (0.3, self._minute),
            (0.3, self._full),
        )

    def _full(self) -> None:
        self._wasFull = True
        super()._full()

    def _work(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            super()._work()

    def _minute(self) -> None:
        """Retention and checkpoints come."""
        for _second in range(61):
            self.broker.advance(1)

    def _begin(self, work: Any) -> None:
        """Let a coroutine run until it ends; what it raises ends the life, but for a refusal."""
        done = Deferred.fromCoroutine(work).addErrback(lambda failure: failure.trap(_RefusedError))
        done.addErrback(self._problems.append)

    def _requireDone(self, code: int, *what: object, others: Container[int] = ()) -> None:
        """
        @param others: codes beside 0 that are as good.
        @raise _RefusedError: what was asked for is not done, since the disk is full.
        """
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self._wasFull:
            raise _RefusedError
        _require(code == 0 or code in others, *what, "has code", code)

    def _nowMs(self) -> int:
        return int(self.broker.reactor.seconds() * 1000)

    async def _retried(
        self, client: KafkaClient, send: Callable[[], Deferred[Any]], code: Callable[[Any], int]
    ) -> Any:
        """The answer, when it is no error that passes."""
        while True:
            body = await send()
            if code(body) not in _RETRIABLE:
                return body
            again: Deferred[None] = Deferred()
            self._waiting.append(again)
            await again
            if client.isEnded:
                await Deferred()  # for ever

    async def _producerId(self, client: KafkaClient) -> int:
        body = await client.request(
            ApiKey.INIT_PRODUCER_ID, 4, transactionalId=None, transactionTimeoutMs=1
        )
        self._requireDone(body.errorCode, "InitProducerId")
        _require(body.producerId not in self._books.producerIds, body.producerId, "again")
        self._books.producerIds.add(body.producerId)
        return int(body.producerId)

    async def _send(
        self, producer: _Producer, records: list[Record], done: Callable[[int], None]
    ) -> None:
        """
        Send a batch; C{done} is called with its first offset; -1: it is stored, and not known
        where. As in Apache's, a snapshot has only the last batch of a producer: a batch before that
        one is refused when it is sent again, since it is there.
        """
        broker = self.broker
        sequence = producer.sequence
        producer.sequence += len(records)
        producer.inFlightCount += 1
        data = encodeBatch(
            records, producerId=producer.producerId, producerEpoch=0, baseSequence=sequence
        )
        body = await producer.client.send(
            ApiKey.PRODUCE, _CLASSIC_PRODUCE, _produceBody({producer.place: data})
        )
        producer.inFlightCount -= 1
        part = body.responses[0].partitionResponses[0]
        isStored = (
            part.errorCode == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.broker is not broker
        )
        isGood = isStored or part.errorCode == 0
        _require(isGood, producer.place, "Produce has code", part.errorCode)
        done(-1 if isStored else part.baseOffset)

    def _produce(self) -> None:
        producer = self._producers[self.random.randrange(2)]
        if not self._mayProduce(producer):
            return
        first = self._books.numbers[producer.place]
        count = self.random.randrange(1, 4)
        self._books.numbers[producer.place] += count

        def done(offset: int) -> None:
            if offset < 0:
                self._books.stored[producer.place].update(range(first, first + count))
                return
            for at in range(count):
                found = self._books.places[producer.place].setdefault(offset + at, first + at)
                _require(found == first + at, producer.place, offset + at, found, first + at)

        padding = bytes(self.random.randrange(40))
        records = [
            self._record(at, first + at, None, b"%d" % (first + at) + padding)
            for at in range(count)
        ]
        self._begin(self._send(producer, records, done))

    def _mayProduce(self, producer: _Producer) -> bool:
        """Whether it has an id, for which it asks, and not too much in flight."""
        if producer.producerId < 0:
            if not producer.client.isBusy:

                async def start() -> None:
                    producer.producerId = await self._producerId(producer.client)

                self._begin(start())
            return False
        return producer.inFlightCount < IN_FLIGHT_MAX

    def _record(self, at: int, number: int, key: bytes | None, value: bytes | None) -> Record:
        return Record(at, self._nowMs(), key, value, (("n", b"%d" % number),))

    def _put(self) -> None:
        producer = self._producers[2]
        if not self._mayProduce(producer):
            return
        records: list[Record] = []
        tried: list[tuple[list[int], int]] = []
        for at in range(self.random.randrange(1, 4)):
            key = b"k%d" % self.random.randrange(KEY_COUNT)
            acknowledged, values = self._books.keys.setdefault(key, ([-1], []))
            number = len(values)
            isTombstone = self.random.random() < 0.2
            values.append(None if isTombstone else b"%d" % number + bytes(20))
            records.append(self._record(at, number, key, values[-1]))
            tried.append((acknowledged, number))

        def done(offset: int) -> None:
            for acknowledged, number in tried:
                acknowledged[0] = max(acknowledged[0], number)

        self._begin(self._send(producer, records, done))

    def _transact(self) -> None:
        if not self._transactions.isBusy:
            self._begin(self._transaction(self._transactions))

    async def _transaction(self, producer: _Transactions) -> None:
        producer.isBusy = True
        client, books = producer.client, self._books
        if producer.epoch < 0:
            body = await self._retried(
                client,
                lambda: client.request(
                    ApiKey.INIT_PRODUCER_ID,
                    4,
                    transactionalId=TRANSACTIONAL_ID,
                    transactionTimeoutMs=900_000,
                ),
                lambda body: int(body.errorCode),
            )
            _require(body.errorCode == 0, "InitProducerId has code", body.errorCode)
            producer.begin(body.producerId, body.producerEpoch)
        number = len(books.transactions)
        books.transactions[number] = None
        who = {"producerId": producer.producerId, "producerEpoch": producer.epoch}
        if not self._isBumping:
            await self._addPartitions(client, who)
        await self._output(producer, number)
        await self._commitInTransaction(client, who, number)
        isCommit = self.random.random() < 0.6
        version = 5 if self._isBumping else 3
        body = await self._retried(
            client,
            lambda: client.request(
                ApiKey.END_TXN,
                version,
                transactionalId=TRANSACTIONAL_ID,
                committed=isCommit,
                **who,
            ),
            lambda body: int(body.errorCode),
        )
        _require(body.errorCode == 0, "EndTxn has code", body.errorCode, "for", number)
        known = books.transactions[number]
        _require(known in (None, isCommit), "transaction", number, known, isCommit)
        books.transactions[number] = isCommit
        if self._isBumping:
            producer.begin(body.producerId, body.producerEpoch)
        producer.isBusy = False

    async def _addPartitions(self, client: KafkaClient, who: dict[str, int]) -> None:
        cls = messages.AddPartitionsToTxnRequest
        topics = [
            cls.AddPartitionsToTxnTopic(name=place.topic, partitions=[place.partition])
            for place in OUTPUTS
        ]
        body = await self._retried(
            client,
            lambda: client.request(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3AndBelowTransactionalId=TRANSACTIONAL_ID,
                v3AndBelowProducerId=who["producerId"],
                v3AndBelowProducerEpoch=who["producerEpoch"],
                v3AndBelowTopics=topics,
            ),
            lambda body: max(
                part.partitionErrorCode
                for topic in body.resultsByTopicV3AndBelow
                for part in topic.resultsByPartition
            ),
        )
        for topic in body.resultsByTopicV3AndBelow:
            code = topic.resultsByPartition[0].partitionErrorCode
            _require(code == 0, "AddPartitionsToTxn has code", code)
        body = await self._retried(
            client,
            lambda: client.request(
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                transactionalId=TRANSACTIONAL_ID,
                groupId=OUTPUT_GROUP,
                **who,
            ),
            lambda body: int(body.errorCode),
        )
        _require(body.errorCode == 0, "AddOffsetsToTxn has code", body.errorCode)

    async def _output(self, producer: _Transactions, number: int) -> None:
        """Send a record to each partition; together, or one after the other."""
        places: list[list[int]] = [[0, 1]] if self.random.random() < 0.5 else [[0], [1]]
        for indexes in places:
            data = {
                OUTPUTS[index]: encodeBatch(
                    [self._record(0, number, b"%d" % number, b"%d" % number)],
                    producerId=producer.producerId,
                    producerEpoch=producer.epoch,
                    baseSequence=producer.sequences[index],
                    isTransactional=True,
                )
                for index in indexes
            }
            version = _CLASSIC_PRODUCE
            body = _produceBody(data, TRANSACTIONAL_ID)
            if self._isBumping:
                version = _BUMPING_PRODUCE
                for topic in body.topicData:
                    image = self.broker.service.kafka.metadata.image
                    topic.topicId, topic.name = image.topics[topic.name].topicId.bytes, ""

            def code(body: Any) -> int:
                return max(
                    int(part.errorCode)
                    for topic in body.responses
                    for part in topic.partitionResponses
                )

            answer = await self._retried(
                producer.client,
                lambda: producer.client.send(ApiKey.PRODUCE, version, body),  # noqa: B023
                code,
            )
            _require(code(answer) == 0, "Produce in a transaction has code", code(answer))
            for index in indexes:
                producer.sequences[index] += 1

    async def _commitInTransaction(
        self, client: KafkaClient, who: dict[str, int], number: int
    ) -> None:
        cls = messages.TxnOffsetCommitRequest
        part = cls.TxnOffsetCommitRequestPartition(
            partitionIndex=0, committedOffset=number + 1, committedMetadata=""
        )
        topic = cls.TxnOffsetCommitRequestTopic(name="log", partitions=[part])

        def code(body: Any) -> int:
            return int(body.topics[0].partitions[0].errorCode)

        body = await self._retried(
            client,
            lambda: client.request(
                ApiKey.TXN_OFFSET_COMMIT,
                5 if self._isBumping else 3,
                transactionalId=TRANSACTIONAL_ID,
                groupId=OUTPUT_GROUP,
                memberId="",
                topics=[topic],
                **who,
            ),
            code,
        )
        _require(code(body) == 0, "TxnOffsetCommit has code", code(body))

    def _commit(self) -> None:
        group = self.random.choice(GROUPS)
        client = self._committers[group]
        if not client.isBusy:
            self._books.positions[group][1] += 1
            self._begin(self._commitPosition(client, group, self._books.positions[group][1]))

    async def _commitPosition(self, client: KafkaClient, group: str, offset: int) -> None:
        cls = messages.OffsetCommitRequest
        part = cls.OffsetCommitRequestPartition(
            partitionIndex=0, committedOffset=offset, committedMetadata="m"
        )
        topic = cls.OffsetCommitRequestTopic(name="log", partitions=[part])
        body = await client.request(
            ApiKey.OFFSET_COMMIT, 7, groupId=group, memberId="", topics=[topic]
        )
        code = body.topics[0].partitions[0].errorCode
        if code not in _RETRIABLE:
            _require(code == 0, "OffsetCommit has code", code)
            self._books.positions[group][0] = offset

    def _join(self) -> None:
        if not self._memberClient.isBusy:
            self._books.member = None
            self._begin(self._joinGroup(self._memberClient))

    async def _joinGroup(self, client: KafkaClient) -> None:
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        joined = await client.request(
            ApiKey.JOIN_GROUP,
            5,
            groupId=MEMBER_GROUP,
            sessionTimeoutMs=1_800_000,
            rebalanceTimeoutMs=1_800_000,
            memberId="",
            groupInstanceId="i",
            protocolType="consumer",
            protocols=[protocol],
        )
        if joined.errorCode in _RETRIABLE:
            return
        _require(joined.errorCode == 0, "JoinGroup has code", joined.errorCode)
        assignment = messages.SyncGroupRequest.SyncGroupRequestAssignment(
            memberId=joined.memberId, assignment=b"all"
        )
        synced = await client.request(
            ApiKey.SYNC_GROUP,
            3,
            groupId=MEMBER_GROUP,
            generationId=joined.generationId,
            memberId=joined.memberId,
            groupInstanceId="i",
            assignments=[assignment] if joined.leader == joined.memberId else [],
        )
        lost = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
        if synced.errorCode in (*_RETRIABLE, *lost):
            return  # what no SyncGroup has ended is nowhere written: the instance has its old id
        _require(synced.errorCode == 0, "SyncGroup has code", synced.errorCode)
        self._books.member = joined.memberId, joined.generationId

    # -- metadata

    def _changeTopics(self) -> None:
        if self._topicAdmin.isBusy:
            return
        topics = self._books.topics
        there = [name for name, topic in topics.items() if topic.state == "there"]
        act = self.random.random()
        if act < 0.5 and len(there) < TOPIC_COUNT_MAX:
            name = f"n{self._books.numbers[LOGS[0]]}-{len(self.log)}-{self.random.randrange(1000)}"
            if name not in topics:
                topics[name] = _Topic()
                self._begin(self._createTopic(self._topicAdmin, name))
        elif there and act < 0.7:
            name = self.random.choice(there)
            topics[name].counts[1] += 1
            self._begin(self._growTopic(self._topicAdmin, name))
        elif there:
            name = self.random.choice(there)
            topics[name].state = "removing"
            self._begin(self._removeTopic(self._topicAdmin, name))

    async def _createTopic(self, client: KafkaClient, name: str) -> None:
        topic = messages.CreateTopicsRequest.CreatableTopic(
            name=name, numPartitions=1, replicationFactor=1
        )
        body = await client.request(ApiKey.CREATE_TOPICS, 7, topics=[topic])
        code = body.topics[0].errorCode
        self._requireDone(code, "CreateTopics", others=(ErrorCode.TOPIC_ALREADY_EXISTS,))
        self._books.topics[name].state = "there"

    async def _growTopic(self, client: KafkaClient, name: str) -> None:
        topic = self._books.topics[name]
        count = topic.counts[1]
        wanted = messages.CreatePartitionsRequest.CreatePartitionsTopic(
            name=name, count=count, assignments=None
        )
        body = await client.request(ApiKey.CREATE_PARTITIONS, 3, topics=[wanted], timeoutMs=60_000)
        code = body.results[0].errorCode
        self._requireDone(code, "CreatePartitions", others=(ErrorCode.INVALID_PARTITIONS,))
        topic.counts[0] = count

    async def _removeTopic(self, client: KafkaClient, name: str) -> None:
        wanted = messages.DeleteTopicsRequest.DeleteTopicState(name=name)
        body = await client.request(ApiKey.DELETE_TOPICS, 6, topics=[wanted], timeoutMs=60_000)
        code = body.responses[0].errorCode
        self._requireDone(code, "DeleteTopics", others=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
        if name in self._books.topics:
            self._books.topics[name].state = "removed"

    def _changeSettings(self) -> None:
        if self._admin.isBusy:
            return
        kind = self.random.choice(tuple(self._books.settings))
        self._books.settings[kind][1] += 1
        self._begin(self._changeSetting(self._admin, kind, self._books.settings[kind][1]))

    async def _changeSetting(self, client: KafkaClient, kind: str, value: int) -> None:
        if kind == "config":
            configs = messages.IncrementalAlterConfigsRequest
            config = configs.AlterableConfig(
                name="file.delete.delay.ms", configOperation=0, value=str(value)
            )
            resource = configs.AlterConfigsResource(
                resourceType=2, resourceName="log", configs=[config]
            )
            body = await client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
            code = body.responses[0].errorCode
        elif kind == "password":
            passwords = messages.AlterUserScramCredentialsRequest
            password = passwords.ScramCredentialUpsertion(
                name="u",
                mechanism=1,
                iterations=4096 + value,
                salt=b"salt",
                saltedPassword=b"x" * 32,
            )
            body = await client.request(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[password]
            )
            code = body.results[0].errorCode
        else:
            quotas = messages.AlterClientQuotasRequest
            entry = quotas.EntryData(
                entity=[quotas.EntityData(entityType="client-id", entityName="other")],
                ops=[quotas.OpData(key="producer_byte_rate", value=float(value), remove=False)],
            )
            body = await client.request(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry])
            code = body.entries[0].errorCode
        self._requireDone(code, kind)
        self._books.settings[kind][0] = value

    # -- reading and deleting

    def _deleteRecords(self) -> None:
        place = self.random.choice(LOGS)
        offsets = sorted(self._books.places[place])
        if self._deleter.isBusy or not offsets:
            return
        offset = self.random.choice(offsets)
        starts = self._books.starts[place]
        starts[1] = max(starts[1], offset)
        self._begin(self._delete(place, offset))

    async def _delete(self, place: TopicPartition, offset: int) -> None:
        cls = messages.DeleteRecordsRequest
        part = cls.DeleteRecordsPartition(partitionIndex=place.partition, offset=offset)
        topic = cls.DeleteRecordsTopic(name=place.topic, partitions=[part])
        body = await self._deleter.request(
            ApiKey.DELETE_RECORDS, 1, topics=[topic], timeoutMs=60_000
        )
        found = body.topics[0].partitions[0]
        self._requireDone(found.errorCode, place, offset, "DeleteRecords")
        starts = self._books.starts[place]
        starts[0] = max(starts[0], offset)

    def _fetchSome(self) -> None:
        if self._reader.isBusy:
            return
        place = self.random.choice((*LOGS, *OUTPUTS))
        offset = 0
        if place in LOGS:
            starts = self._books.starts[place]
            offset = self.random.choice([starts[1], *self._books.places[place]])
            offset = max(offset, starts[1])
        self._begin(self._fetch(self._reader, place, offset))

    async def _fetch(self, client: KafkaClient, place: TopicPartition, offset: int) -> None:
        isCommitted = place in OUTPUTS
        body = await client.send(ApiKey.FETCH, _NAMED_FETCH, _fetch(place, offset, isCommitted))
        if body.responses[0].partitions[0].errorCode == ErrorCode.OFFSET_OUT_OF_RANGE:
            return  # records were deleted meanwhile
        records, _ = self._fetched(body, isCommitted)
        for each in records:
            if isCommitted:
                known = self._books.transactions.get(each.number)
                _require(known is not False, "aborted transaction", each.number, "is seen")
                self._books.transactions[each.number] = True
            elif each.offset >= offset:
                number = self._books.places[place].setdefault(each.offset, each.number)
                _require(number == each.number, place, each.offset, number, each.number)


def _fetch(place: TopicPartition, offset: int, isCommitted: bool) -> Any:
    cls = messages.FetchRequest
    part = cls.FetchPartition(
        partition=place.partition, fetchOffset=offset, partitionMaxBytes=1 << 20
    )
    topic = cls.FetchTopic(topic=place.topic, partitions=[part])
    return cls(
        maxWaitMs=0,
        minBytes=0,
        maxBytes=1 << 20,
        isolationLevel=_COMMITTED if isCommitted else 0,
        topics=[topic],
    )


def _produceBody(batches: dict[TopicPartition, bytes], transactionalId: str | None = None) -> Any:
    cls = messages.ProduceRequest
    topics = [
        cls.TopicProduceData(
            name=place.topic,
            partitionData=[cls.PartitionProduceData(index=place.partition, records=data)],
        )
        for place, data in batches.items()
    ]
    return cls(transactionalId=transactionalId, acks=-1, timeoutMs=3_600_000, topicData=topics)
