"""
Random kills of a broker of today's protocol, and what must hold over all of them: what was
acknowledged stays, once, where it was; a transaction is there as a whole or not at all.

In each round clients of librdkafka work until the broker is killed: an idempotent producer with
C{acks=all}, a transactional producer whose transactions span two partitions and are committed or
aborted, a producer to a compacted topic, a consumer that commits positions, and a client that
creates topics. Then the broker starts again in the same directory, and everything is read.

The books know what was tried and what was acknowledged. What was tried and not acknowledged may be
there, but not twice, and from then on it must stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.kills import LostError
from tests.oracle.directoryrecording import readRecords

LOG, TRANSACTIONS, COMPACTED = "log", "transactions", "compacted"
GROUP = "group"
TRANSACTIONAL_ID = "writer"
PARTITION_COUNT = 2
KEY_COUNT = 20
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "50",
    "log.roll.ms": "150",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "num.partitions": str(PARTITION_COUNT),
}
WORK_SECONDS = (0.1, 1.5)
_TIMEOUT_SECONDS = 60


class Figures(NamedTuple):
    """What a trial was made of."""

    roundCount: int = 0
    acknowledgedCount: int = 0
    unacknowledgedCount: int = 0
    committedCount: int = 0
    abortedCount: int = 0
    undecidedCount: int = 0
    keyedCount: int = 0
    positionCount: int = 0
    topicCount: int = 0


def _require(isTrue: bool, *what: object) -> None:
    if not isTrue:
        raise LostError(" ".join(map(str, what)))


class _Books:
    """
    What was tried, and what was answered.

    @ivar sent: how many numbers were tried in each partition of L{LOG}.
    @ivar places: by partition, the number at an offset: acknowledged, or seen.
    @ivar transactions: whether a transaction is there; L{None}: nobody knows yet.
    @ivar values: by key, the latest value that was acknowledged, and the latest that was tried.
    @ivar positions: the latest that was acknowledged, and the latest that was tried.
    @ivar topics: whose creation was answered.
    """

    def __init__(self) -> None:
        self.sent = [0] * PARTITION_COUNT
        self.places: list[dict[int, int]] = [{} for _ in range(PARTITION_COUNT)]
        self.transactions: dict[int, bool | None] = {}
        self.values: dict[int, list[int]] = {}
        self.positions = [0, 0]
        self.topics: set[str] = set()


class KafkaKillTrial:
    """
    A broker, its clients, and the books.

    @ivar figures: so far.
    """

    def __init__(self, directory: str, seed: int) -> None:
        self.figures = Figures()
        self._random = Random(seed)
        self._books = _Books()
        self._broker = BackgroundBroker(PROPERTIES, directory)
        self._working = threading.Event()
        self._problem: BaseException | None = None

    def run(self, roundCount: int) -> None:
        """@raise LostError: something that was acknowledged is gone, or is there twice."""
        try:
            self._broker.start()
            admin = self._admin()
            topics = [
                NewTopic(LOG, PARTITION_COUNT),
                NewTopic(TRANSACTIONS, PARTITION_COUNT),
                NewTopic(COMPACTED, 1, config={"cleanup.policy": "compact"}),
            ]
            for waiting in admin.create_topics(topics).values():
                waiting.result()
            for number in range(roundCount):
                self._work(number)
                self._broker.start()
                self._check()
                self._count(roundCount=1)
        finally:
            self._broker.close()

    def _count(self, **more: int) -> None:
        old = self.figures._asdict()
        self.figures = self.figures._replace(
            **{name: old[name] + count for name, count in more.items()}
        )

    def _settings(self, **settings: Any) -> dict[str, Any]:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        own = {"bootstrap.servers": self._broker.bootstrapServers, "log_level": 0}
        return {**own, "socket.timeout.ms": 2000, **named}

    def _admin(self) -> AdminClient:
        return AdminClient(self._settings())

    # -- the clients

    def _work(self, number: int) -> None:
        """Work until the broker is killed, and a little longer."""
        self._working.set()
        works: list[Callable[[], None]] = [
            self._produce,
            self._transact,
            self._compact,
            self._commit,
            lambda: self._create(number),
        ]
        threads = [threading.Thread(target=self._guarded, args=(each,)) for each in works]
        for thread in threads:
            thread.start()
        threading.Event().wait(self._random.uniform(*WORK_SECONDS))
        self._broker.kill()
        self._working.clear()
        for thread in threads:
            thread.join()
        if self._problem is not None:
            raise self._problem

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaException:
            pass  # the broker is gone
        except BaseException as error:
            self._problem = error

    def _produce(self) -> None:
        producer = Producer(self._settings(enable_idempotence=True, acks="all", linger_ms=1))
        books = self._books

        def done(partition: int, number: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    books.places[partition][message.offset()] = number
                    self._count(acknowledgedCount=1)
                else:
                    self._count(unacknowledgedCount=1)

            return delivered

        while self._working.is_set():
            for _ in range(5):
                for partition in range(PARTITION_COUNT):
                    number = books.sent[partition]
                    books.sent[partition] += 1
                    callback = done(partition, number)
                    producer.produce(LOG, b"%d" % number, partition=partition, callback=callback)
            producer.poll(0.02)
        producer.poll(0.05)
        producer.purge()
        producer.flush(1)

    def _transact(self) -> None:
        settings = self._settings(transactional_id=TRANSACTIONAL_ID)
        producer = Producer(settings)
        producer.init_transactions(2)
        while self._working.is_set():
            number = len(self._books.transactions)
            self._books.transactions[number] = None
            producer.begin_transaction()
            for partition in range(PARTITION_COUNT):
                producer.produce(TRANSACTIONS, b"%d" % number, partition=partition)
            if number % 3 == 2:
                producer.flush(1)  # else it takes the records back, and aborts nothing
                producer.abort_transaction(1)
                self._count(abortedCount=1)
            else:
                producer.commit_transaction(1)
                self._count(committedCount=1)
            self._books.transactions[number] = number % 3 != 2

    def _compact(self) -> None:
        producer = Producer(self._settings(acks="all", enable_idempotence=True))
        values = self._books.values

        def done(key: int, value: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    values[key][0] = value
                    self._count(keyedCount=1)

            return delivered

        while self._working.is_set():
            for key in range(KEY_COUNT):
                found = values.setdefault(key, [-1, -1])
                found[1] += 1
                producer.produce(
                    COMPACTED, b"%d" % found[1], b"%d" % key, callback=done(key, found[1])
                )
            producer.poll(0.02)
        producer.poll(0.05)
        producer.purge()
        producer.flush(1)

    def _commit(self) -> None:
        positions = self._books.positions
        isAnswered = threading.Event()

        def committed(error: Any, places: list[Any]) -> None:
            if error is None and places[0].error is None:
                positions[0] = max(positions[0], places[0].offset)
                self._count(positionCount=1)
            isAnswered.set()

        settings = self._settings(group_id=GROUP, enable_auto_commit=False)
        consumer = Consumer({**settings, "on_commit": committed})
        while self._working.is_set():
            positions[1] += 1
            isAnswered.clear()
            consumer.commit(offsets=[TopicPartition(LOG, 0, positions[1])], asynchronous=True)
            while self._working.is_set() and not isAnswered.is_set():
                consumer.poll(0.002)

    def _create(self, number: int) -> None:
        admin = self._admin()
        index = 0
        while self._working.is_set() and index < 5:
            name = f"topic-{number}-{index}"
            index += 1
            admin.create_topics([NewTopic(name, 1)], request_timeout=1)[name].result()
            self._books.topics.add(name)
            self._count(topicCount=1)

    # -- what is there

    def _check(self) -> None:
        address = self._broker.bootstrapServers
        producer = Producer(self._settings(transactional_id=TRANSACTIONAL_ID))
        producer.init_transactions(_TIMEOUT_SECONDS)  # ends what was open
        places = [(LOG, partition) for partition in range(PARTITION_COUNT)]
        records = readRecords(address, places, "read_uncommitted")
        for partition, known in enumerate(self._books.places):
            self._checkLog(partition, known, records[f"{LOG}-{partition}"])
        self._checkTransactions(address)
        self._checkCompacted(readRecords(address, [(COMPACTED, 0)], "read_uncommitted"))
        consumer = Consumer(self._settings(group_id=GROUP))
        (found,) = consumer.committed([TopicPartition(LOG, 0)], timeout=_TIMEOUT_SECONDS)
        consumer.close()
        first, last = self._books.positions
        _require(first <= max(found.offset, 0) <= last, "position", found.offset, first, last)
        self._books.positions[0] = max(found.offset, 0)
        admin = self._admin()
        topics = admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
        missing = self._books.topics - topics.keys()
        _require(not missing, "topics", missing)

    def _checkLog(self, partition: int, known: dict[int, int], records: list[Any]) -> None:
        found = {record[0]: int(record[4]) for record in records}
        numbers = list(found.values())
        _require(sorted(set(numbers)) == numbers, f"{LOG}-{partition} is not in order")
        for offset, number in known.items():
            _require(
                found.get(offset) == number,
                f"{LOG}-{partition} has {found.get(offset)} at {offset}, where {number} was",
            )
        known.update(found)

    def _checkTransactions(self, address: str) -> None:
        places = [(TRANSACTIONS, partition) for partition in range(PARTITION_COUNT)]
        records = readRecords(address, places, "read_committed")
        seen = [
            [int(record[4]) for record in records[f"{TRANSACTIONS}-{partition}"]]
            for partition in range(PARTITION_COUNT)
        ]
        _require(all(numbers == seen[0] for numbers in seen), "transactions differ", seen)
        _require(sorted(set(seen[0])) == seen[0], "transactions are not in order")
        present = set(seen[0])
        for number, isThere in self._books.transactions.items():
            if isThere is None:
                self._books.transactions[number] = number in present
                self._count(undecidedCount=1)
            else:
                _require(isThere == (number in present), "transaction", number, isThere)

    def _checkCompacted(self, records: dict[str, list[Any]]) -> None:
        found = {int(record[3]): int(record[4]) for record in records[f"{COMPACTED}-0"]}
        for key, value in self._books.values.items():
            last = found.get(key, -1)
            _require(value[0] <= last <= value[1], "key", key, "has", last, "of", value)
            value[0] = last
