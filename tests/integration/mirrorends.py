"""
The two clusters of a mirror in tests: of 2011 or of today, as processes that can be killed and that
come back with their data. Messages are numbers, dealt to the partitions in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.mirror.offsetsyncs import OffsetSyncTable, decodeTable
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.types import BrokerPartition, PartitionId
from tests.integration.brokerprocess import BrokerProcess, until
from tests.integration.mirrortrial import BROKER, SESSION_MS
from tests.integration.zookeeperprocess import ZookeeperProcess

T = TypeVar("T")
TOPIC = "numbers"
PARTITION_COUNT = 4
MESSAGE_SIZE = 200
KEY_COUNT = 50
FIRST_TIME_MS = round(time.time()) * 1000 - 3_600_000
"""Of the first message: Apache's broker forgets what an idempotent producer has sent when its
messages say that they are older than C{producer.id.expiration.ms}."""

BATCH_COUNT = 100
TIMEOUT_SECONDS = 60.0

TODAY = {
    "num.partitions": str(PARTITION_COUNT),
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.ms": "-1",  # messages say that they are years old
}
"""Of a broker of today, ours or Apache's."""


def valueOf(number: int) -> bytes:
    """A message, as the source has it."""
    return b"%d " % number + b"." * (MESSAGE_SIZE - len(str(number)) - 1)


def keyOf(number: int) -> bytes:
    """Its key, in a cluster of today."""
    return b"k%d" % (number % KEY_COUNT)


def headersOf(number: int) -> list[Any]:
    """Its headers, in a cluster of today."""
    return [("number", b"%d" % number), ("twice", b"1"), ("twice", b"\xff")] if number % 3 else []


class Entry(NamedTuple):
    """
    A message in a partition.

    @ivar nextOffset: behind it.
    @ivar rest: key, headers and timestamp; L{None} in a cluster of 2011.
    """

    offset: int
    nextOffset: int
    number: int
    rest: tuple[bytes | None, list[Any], int] | None = None


class MirrorEnd(Protocol):
    """
    A cluster of one broker.

    @ivar isOld: whether it is of 2011.
    """

    isOld: bool

    def consumerProperties(self, group: str) -> dict[str, str]:
        """Of a mirror that has it as its source."""

    def producerProperties(self) -> dict[str, str]:
        """Of a mirror that has it as its target."""

    def start(self) -> None:
        """Returns when clients are served."""

    def kill(self) -> None:
        """C{kill -9}. The data stays."""

    def close(self) -> None:
        """End it, however it is."""

    def produce(self, numbers: Sequence[int]) -> None:
        """Returns when all of them can be read."""

    def ends(self) -> list[int]:
        """Of the partitions."""

    def count(self) -> int:
        """The messages that it has."""

    def read(self, offsets: Mapping[int, int] | None = None) -> list[list[Entry]]:
        """What each partition has, from an offset on to its end."""

    def committed(self, group: str) -> dict[int, int]:
        """The positions of a group."""

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Set positions of a group that has no members."""


def _entries(data: bytes, offset: int) -> list[Entry]:
    found: list[Entry] = []
    start = offset
    for payload, behind in MessageSet(data).payloads():
        found.append(Entry(start, offset + behind, int(payload.split()[0])))
        start = offset + behind
    return found


class OldEnd:
    """A broker of 2011 with a real ZooKeeper."""

    isOld = True

    def __init__(self, directory: str, zookeeper: ZookeeperProcess, root: str) -> None:
        """
        @param root: its chroot in ZooKeeper.
        """
        self._root = root
        self._zookeeper = KazooClient(zookeeper.servers)
        self._zookeeper.start()
        self._zookeeper.ensure_path(root)
        self._connect = zookeeper.servers + root
        self.broker = BrokerProcess(directory, {**BROKER, "zk.connect": self._connect})
        self._sentCount = 0

    def _address(self) -> dict[str, str]:
        return {
            "zk.connect": self._connect,
            "zk.sessiontimeout.ms": SESSION_MS,
            "zk.connectiontimeout.ms": "10000",
        }

    def consumerProperties(self, group: str) -> dict[str, str]:
        """See L{MirrorEnd}."""
        return {
            **self._address(),
            "groupid": group,
            "autocommit.interval.ms": "200",
            "rebalance.backoff.ms": "300",
            "fetcher.backoff.ms": "20",
        }

    def producerProperties(self) -> dict[str, str]:
        """See L{MirrorEnd}."""
        return self._address()

    def start(self) -> None:
        """See L{MirrorEnd}."""
        self.broker.start()

    def kill(self) -> None:
        """See L{MirrorEnd}."""
        self.broker.kill()

    def close(self) -> None:
        """See L{MirrorEnd}."""
        self.broker.kill()
        self._zookeeper.stop()
        self._zookeeper.close()

    def produce(self, numbers: Sequence[int]) -> None:
        """See L{MirrorEnd}."""
        sets: dict[int, list[bytes]] = {}
        with self.broker.client() as client:
            for number in numbers:
                payloads = sets.setdefault(number % PARTITION_COUNT, [])
                payloads.append(valueOf(number))
                if len(payloads) == BATCH_COUNT:
                    client.produce(TOPIC, number % PARTITION_COUNT, encodeSet(payloads))
                    payloads.clear()
            for partition, payloads in sets.items():
                if payloads:
                    client.produce(TOPIC, partition, encodeSet(payloads))
            client.processed()
        self._sentCount += len(numbers)
        until(lambda: self.count() == self._sentCount, "what was produced is visible", 60)

    def ends(self) -> list[int]:
        """See L{MirrorEnd}."""
        with self.broker.client() as client:
            return [client.end(TOPIC, partition) for partition in range(PARTITION_COUNT)]

    def count(self) -> int:
        """See L{MirrorEnd}."""
        return sum(self.ends()) // (MESSAGE_SIZE + 10)

    def read(self, offsets: Mapping[int, int] | None = None) -> list[list[Entry]]:
        """See L{MirrorEnd}."""
        starts = offsets or {}
        with self.broker.client() as client:
            return [
                _entries(
                    client.readAll(TOPIC, partition, starts.get(partition, 0)),
                    starts.get(partition, 0),
                )
                for partition in range(PARTITION_COUNT)
            ]

    def committed(self, group: str) -> dict[int, int]:
        """See L{MirrorEnd}."""
        found = {}
        for partition in range(PARTITION_COUNT):
            path = f"{self._root}/consumers/{group}/offsets/{TOPIC}/0-{partition}"
            try:
                found[partition] = int(self._zookeeper.get(path)[0])
            except NoNodeError:
                pass
        return found

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """See L{MirrorEnd}."""
        for partition, offset in offsets.items():
            path = f"{self._root}/consumers/{group}/offsets/{TOPIC}/0-{partition}"
            self._zookeeper.ensure_path(path)
            self._zookeeper.set(path, b"%d" % offset)

    def tables(self, mirrors: str) -> dict[PartitionId, OffsetSyncTable]:
        """What a group of mirrors has written down here."""
        found = {}
        for number in range(PARTITION_COUNT):
            partition = BrokerPartition(0, number)
            path = self._root + GroupPaths(mirrors).mirrored(TOPIC, partition)
            try:
                table = decodeTable(path, self._zookeeper.get(path)[0])
            except NoNodeError:
                continue
            found[PartitionId(TOPIC, partition)] = table
        return found


class Server(Protocol):
    """A broker of today as a process."""

    @property
    def bootstrapServers(self) -> str:
        """Its address."""

    def start(self) -> Any:
        """Returns when it serves."""

    def kill(self) -> None:
        """C{kill -9}. Address and data stay."""

    def close(self) -> None:
        """End it."""


_PASSING = (
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "_TRANSPORT",
    "_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_WAIT_COORD",
)
"""Errors of a broker that has just come back, by name."""


def patiently(ask: Callable[[], T]) -> T:
    """
    Ask a broker that may have come back just now.

    @raise KafkaException: it refuses for good, or for too long.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].name() not in _PASSING or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class TodayEnd:
    """A broker of today, ours or Apache's."""

    isOld = False

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def address(self) -> str:
        """Its C{bootstrap.servers}."""
        return self.server.bootstrapServers

    def consumerProperties(self, group: str) -> dict[str, str]:
        """See L{MirrorEnd}."""
        return {
            "bootstrap.servers": self.address,
            "group.id": group,
            "auto.commit.interval.ms": "200",
            "session.timeout.ms": "1500",
            "heartbeat.interval.ms": "300",
            "metadata.max.age.ms": "1000",
            "emit.checkpoints.interval.seconds": "1",
            "sync.group.offsets.enabled": "true",
        }

    def producerProperties(self) -> dict[str, str]:
        """See L{MirrorEnd}."""
        return {"bootstrap.servers": self.address}

    def start(self) -> None:
        """See L{MirrorEnd}."""
        self.server.start()

    def kill(self) -> None:
        """See L{MirrorEnd}."""
        self.server.kill()

    def close(self) -> None:
        """See L{MirrorEnd}."""
        self.server.close()

    def createTopic(self) -> None:
        """The topic, with its partitions."""
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(TOPIC, PARTITION_COUNT)])[TOPIC].result(TIMEOUT_SECONDS)

    def produce(self, numbers: Sequence[int]) -> None:
        """See L{MirrorEnd}."""
        failures: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 5}
        )
        for number in numbers:
            if not number % 5000:
                producer.poll(0)
            producer.produce(
                TOPIC,
                valueOf(number),
                keyOf(number),
                number % PARTITION_COUNT,
                on_delivery=delivered,
                timestamp=FIRST_TIME_MS + number,
                headers=headersOf(number),
            )
        left = producer.flush(TIMEOUT_SECONDS)
        if left or failures:
            raise AssertionError(f"{left} messages are not sent, {failures[:1]}")

    def consumer(self, group: str, **settings: Any) -> Consumer:
        """One that commits nothing by itself, with a short session."""
        own = {key.replace("_", "."): value for key, value in settings.items()}
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "log_level": 2,
                **own,
            }
        )

    def ends(self) -> list[int]:
        """See L{MirrorEnd}."""
        consumer = self.consumer("nobody")
        try:
            return [self._end(consumer, partition) for partition in range(PARTITION_COUNT)]
        finally:
            consumer.close()

    def _end(self, consumer: Consumer, partition: int) -> int:
        """0 for a topic that is not there yet."""
        try:
            found = self._bounds(consumer, TopicPartition(TOPIC, partition))
        except KafkaException as error:
            if error.args[0].name() in ("_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART"):
                return 0
            raise
        return int(found[1])

    @staticmethod
    def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
        found: Any = patiently(lambda: consumer.get_watermark_offsets(place, TIMEOUT_SECONDS / 6))
        return found

    def count(self) -> int:
        """See L{MirrorEnd}."""
        return sum(self.ends())

    def read(self, offsets: Mapping[int, int] | None = None) -> list[list[Entry]]:
        """See L{MirrorEnd}."""
        starts = offsets or {}
        places = [(number, starts.get(number, 0)) for number in range(PARTITION_COUNT)]
        found: list[list[Entry]] = [[] for _number in range(PARTITION_COUNT)]
        for message in self.messages(TOPIC, places):
            found[message.partition()].append(entryOf(message))
        return found

    def messages(self, topic: str, places: Iterable[tuple[int, int]]) -> list[Any]:
        """
        All messages of partitions, from an offset of each on to their present ends.

        @raise AssertionError: they do not come in time.
        """
        consumer = self.consumer("nobody", isolation_level="read_committed")
        assigned = [TopicPartition(topic, number, offset) for number, offset in places]
        try:
            ends = {each.partition: self._bounds(consumer, each)[1] for each in assigned}
            consumer.assign(assigned)
            return takeTo(consumer, {each.partition: each.offset for each in assigned}, ends)
        finally:
            consumer.close()

    def readAsGroup(self, group: str, offsets: Mapping[int, int]) -> list[Any]:
        """
        What a member of a group reads to the present ends, that begins where the group has its
        positions; it is the only one, and commits nothing.

        @param offsets: where it should begin.
        """
        ends = dict(enumerate(self.ends()))
        consumer = self.consumer(group, session_timeout_ms=6000, heartbeat_interval_ms=200)
        consumer.subscribe([TOPIC])
        try:
            return takeTo(consumer, offsets, ends)
        finally:
            consumer.close()

    def committed(self, group: str) -> dict[int, int]:
        """See L{MirrorEnd}."""
        consumer = self.consumer(group)
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITION_COUNT)]
        try:
            found = patiently(lambda: consumer.committed(places, TIMEOUT_SECONDS / 6))
        finally:
            consumer.close()
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """See L{MirrorEnd}."""
        consumer = self.consumer(group)
        places = [TopicPartition(TOPIC, number, offset) for number, offset in offsets.items()]
        try:
            done = patiently(lambda: consumer.commit(offsets=places, asynchronous=False))
        finally:
            consumer.close()
        for each in done or ():
            if each.error is not None:
                raise AssertionError(str(each.error))


def entryOf(message: Any) -> Entry:
    """Of a message of confluent-kafka."""
    return Entry(
        message.offset(),
        message.offset() + 1,
        int(message.value().split()[0]),
        (message.key(), message.headers() or [], message.timestamp()[1]),
    )


def takeTo(consumer: Consumer, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Any]:
    """
    Read to the ends.

    @raise AssertionError: they do not come in time.
    """
    found: list[Any] = []
    left = {number for number, end in ends.items() if starts.get(number, 0) < end}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while left:
        if time.monotonic() > deadline:
            raise AssertionError(f"partitions {left} of {ends} do not come to their ends")
        for message in consumer.consume(1000, 0.02):
            if message.error() is not None:
                raise AssertionError(str(message.error()))
            number, offset = message.partition(), message.offset()
            assert number is not None and offset is not None
            if offset < ends[number]:
                found.append(message)
            if offset + 1 >= ends[number]:
                left.discard(number)
    return found
