"""
The log of 2011, for log spouts and log bolts. A module of its own: a reader of today's dialect need
not open it.

Brokers and partitions are found in ZooKeeper, and a group's positions are there, where the groups
of 2011 keep theirs. The messages inside a compressed set share its offset, so a position behind one
of them is the set's. After a restart the whole set is read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.config.kafka.clientsettings import EARLIEST, LATEST
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.config.topologies.logsettings import (
    BY_DURATION,
    BY_LAG,
    LogBoltSettings,
    LogClientSettings,
    LogSpoutSettings,
    StartPosition,
)
from pylogbroker.errors import (
    BrokerConnectionError,
    MessageTooLargeError,
    NoBrokersError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    ZookeeperError,
)
from pylogbroker.net.endpointstrings import SocketAddress, brokerEndpoint, endpoint
from pylogbroker.records.compression import NONE
from pylogbroker.records.messageset import MessageSet
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.topologies.log.logclients import (
    AwayBrokers,
    LogMessage,
    LogRecord,
    ReadResult,
    byPartition,
)
from pylogbroker.types import LATEST as LATEST_TIME
from pylogbroker.types import AnyPartition, BrokerPartition, OffsetBounds, PartitionId

FETCH_SIZE_MAX = 64 << 20
"""Bytes of an entry that can be read."""

SEGMENT_COUNT_MAX = 1_000_000


def _of2011(partitions: Iterable[AnyPartition]) -> list[PartitionId]:
    return [each for each in partitions if isinstance(each, PartitionId)]


def _metadata(settings: LogClientSettings) -> ZookeeperMetadata:
    return ZookeeperMetadata(settings.zkConnect, digest=settings.zkDigest, acl=settings.zkAcl)


def _address(settings: LogClientSettings, broker: BrokerAddress) -> SocketAddress:
    return endpoint(brokerEndpoint(settings.brokerEndpoint, f"{broker.host}:{broker.port}"))


class Kafka07LogReader:
    """
    See L{pylogbroker.topologies.log.logclients.ILogReader}. A broker that does not answer holds up
    its own partitions only.
    """

    def __init__(
        self,
        settings: LogSpoutSettings,
        topics: Sequence[str],
        group: str,
        clock: Callable[[], float],
        random: Callable[[], float],
        pause: Callable[[float], object] = sleep,
    ) -> None:
        """
        @param clock: gives seconds.
        @param random: gives numbers from 0 up to, not including, 1.
        @param pause: waits for a number of seconds.
        @raise InvalidNameError: the group cannot have this name.
        """
        self._settings = settings
        self._topics = list(topics)
        self._paths = GroupPaths(group)
        self._metadata = _metadata(settings)
        self._pause = pause
        self._addresses: dict[int, BrokerAddress] = {}
        self._consumers: dict[int, SimpleConsumer] = {}
        self._sizes: dict[PartitionId, int] = {}
        self._away = AwayBrokers(clock, random)

    def partitions(self) -> list[AnyPartition]:
        self._addresses = self._metadata.brokers()
        found = [
            PartitionId(topic, each)
            for topic in self._topics
            for each in self._metadata.partitions(topic)
        ]
        if not found:
            raise NoBrokersError(f"no broker has {', '.join(self._topics)}")
        return list(found)

    def share(self, partition: AnyPartition) -> int:
        [(topic, (broker, number))] = _of2011([partition])
        return self._topics.index(topic) + broker + number

    def committed(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, int]:
        read = {
            each: self._metadata.number(self._paths.offset(*each)) for each in _of2011(partitions)
        }
        return {each: offset for each, offset in read.items() if offset is not None}

    def commit(self, positions: Mapping[AnyPartition, int]) -> None:
        for each in _of2011(positions):
            self._metadata.storeNumber(self._paths.offset(*each), positions[each])

    def starts(
        self, partitions: Collection[AnyPartition], start: StartPosition, nowMs: int
    ) -> Mapping[AnyPartition, int]:
        return {each: self._start(each, start, nowMs) for each in _of2011(partitions)}

    def _start(self, where: PartitionId, start: StartPosition, nowMs: int) -> int:
        offsets = self._offsetsBefore(where, LATEST_TIME)  # the end, and where segments begin
        if start.kind == LATEST:
            return offsets[0]
        if start.kind == BY_LAG:
            return next(
                (each for each in offsets if each <= offsets[0] - start.amount), offsets[-1]
            )
        if start.kind == EARLIEST:
            return offsets[-1]
        time = nowMs - start.amount if start.kind == BY_DURATION else start.amount
        return next(iter(self._offsetsBefore(where, time)), offsets[-1])

    def bounds(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, OffsetBounds]:
        found: dict[AnyPartition, OffsetBounds] = {}
        for each in _of2011(partitions):
            offsets = self._offsetsBefore(each, LATEST_TIME)
            found[each] = OffsetBounds(offsets[-1], offsets[0])
        return found

    def ends(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, int]:
        found: dict[AnyPartition, int] = {}
        for each in _of2011(partitions):
            broker = each.partition.broker
            if self._away.mustWait(broker):
                continue
            try:
                found[each] = self._offsetsBefore(each, LATEST_TIME)[0]
            except (BrokerConnectionError, NoBrokersError, ZookeeperError) as error:
                self._isAway(broker, error)
        return found

    def _isAway(self, broker: int, error: Exception) -> None:
        self._away.failed(broker, error)
        self._addresses.pop(broker, None)  # it may come back elsewhere
        if consumer := self._consumers.pop(broker, None):
            consumer.close()

    def _offsetsBefore(self, where: PartitionId, time: int) -> list[int]:
        """Newest first; of a partition that its broker has not yet created, 0."""
        topic, (broker, number) = where
        consumer = self._consumer(broker)
        # A broker closes the connection on an OFFSETS request for a partition that it does not
        # have, but answers a FETCH request with an error code.
        if isinstance(consumer.fetch(topic, number, 0, 0).error, RemotePartitionError):
            return [0]
        found = consumer.getOffsetsBefore(topic, number, time, SEGMENT_COUNT_MAX)
        return found or ([0] if time == LATEST_TIME else [])

    def _consumer(self, broker: int) -> SimpleConsumer:
        if broker not in self._addresses:
            self._addresses = self._metadata.brokers()
        if broker not in self._addresses:
            raise NoBrokersError(f"broker {broker} is not registered in ZooKeeper")
        if broker not in self._consumers:
            address = _address(self._settings, self._addresses[broker])
            self._consumers[broker] = SimpleConsumer(
                *address, timeoutMs=self._settings.requestTimeoutMs
            )
        return self._consumers[broker]

    def read(self, positions: Mapping[AnyPartition, int], waitMs: int) -> ReadResult:
        byBroker: dict[int, list[PartitionId]] = {}
        for each in _of2011(positions):
            byBroker.setdefault(each.partition.broker, []).append(each)
        records: list[LogRecord] = []
        behind = dict(positions)
        failure: PylogbrokerError | None = None
        for broker, places in byBroker.items():
            try:
                for where, found in self._fetch(broker, places, positions):
                    self._take(where, found, records, behind)
            except (BrokerConnectionError, NoBrokersError, ZookeeperError) as error:
                failure = error
        if failure is not None and not records:
            raise failure
        if not records:
            self._pause(waitMs / 1000)
        return ReadResult(records, behind)

    def _fetch(
        self, broker: int, places: Sequence[PartitionId], positions: Mapping[AnyPartition, int]
    ) -> Sequence[tuple[PartitionId, MessageSet]]:
        self._away.check(broker)
        least = self._settings.maxPartitionFetchBytes
        try:
            sets = self._consumer(broker).multifetch(
                (where.topic, where.partition.partition, positions[where],
                 self._sizes.pop(where, least))
                for where in places
            )  # fmt: skip
        except (BrokerConnectionError, NoBrokersError) as error:
            self._isAway(broker, error)
            raise
        self._away.succeeded(broker)
        return list(zip(places, sets, strict=True))

    def _take(
        self,
        where: PartitionId,
        found: MessageSet,
        records: list[LogRecord],
        behind: dict[AnyPartition, int],
    ) -> None:
        if isinstance(found.error, RemoteOffsetOutOfRangeError):
            raise OffsetOutOfRangeError(f"{where} has no offset {behind[where]}")
        if isinstance(found.error, RemotePartitionError):
            return  # it is created by the first message
        if found.error is None and not found.data:
            return
        size = found.cutEntrySize if found.error is None else 0
        if size > FETCH_SIZE_MAX:
            raise MessageTooLargeError(
                f"{where}: the entry at offset {behind[where]} has {size} bytes, or is damaged"
            )
        if size:
            self._sizes[where] = size
            return
        offset = behind[where]
        for message, nextOffset in found:
            behind[where] = int(nextOffset)
            records.append(LogRecord(where, offset, int(nextOffset), None, message.payload))
            offset = int(nextOffset)
        behind[where] = found.nextOffset

    def close(self) -> None:
        consumers, self._consumers = self._consumers, {}
        for each in consumers.values():
            each.close()
        self._metadata.close()


class Kafka07LogWriter:
    """
    See L{pylogbroker.topologies.log.logclients.ILogWriter}. A key goes to the partition that the
    default partitioner of 2011 chooses for it. Messages without one go to a random partition,
    another one for each call. The protocol has no acknowledgement: a request behind the messages,
    which the broker answers in order, confirms them.
    """

    def __init__(
        self,
        settings: LogClientSettings,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """
        @param clock: gives seconds.
        @param random: gives numbers from 0 up to, not including, 1.
        """
        self._settings = settings
        self._codec = settings.compressionType if isinstance(settings, LogBoltSettings) else NONE
        self._sizeMax = (
            settings.maxMessageSize if isinstance(settings, LogBoltSettings) else 1_000_000
        )
        self._clock = clock
        self._random = random
        self._metadata = _metadata(settings)
        self._addresses: dict[int, BrokerAddress] = {}
        self._partitions: dict[str, tuple[float, list[BrokerPartition]]] = {}
        self._producers: dict[int, SyncProducer] = {}

    def write(self, messages: Sequence[LogMessage]) -> Sequence[PylogbrokerError | None]:
        outcomes: list[PylogbrokerError | None] = [None] * len(messages)
        try:
            places = self._places(messages)
        except (NoBrokersError, ZookeeperError) as error:
            self._partitions.clear()
            return [error] * len(messages)
        byBroker: dict[int, list[tuple[PartitionId, list[int]]]] = {}
        for where, indexes in byPartition(places).items():
            assert isinstance(where, PartitionId)
            byBroker.setdefault(where.partition.broker, []).append((where, indexes))
        for broker, parts in byBroker.items():
            try:
                self._writeParts(broker, parts, messages, outcomes)
            except (BrokerConnectionError, NoBrokersError) as error:
                self._forget(broker)
                for _where, indexes in parts:
                    for index in indexes:
                        outcomes[index] = outcomes[index] or error
        return outcomes

    def _places(self, messages: Sequence[LogMessage]) -> list[PartitionId]:
        found = {topic: self._partitionsOf(topic) for topic in {each.topic for each in messages}}
        chosen = {
            topic: partitions[int(self._random() * len(partitions))]
            for topic, partitions in found.items()
        }
        return [
            PartitionId(
                topic,
                chosen[topic]
                if key is None
                else found[topic][defaultPartitioner(key, len(found[topic]))],
            )
            for topic, key, *_rest in messages
        ]

    def _partitionsOf(self, topic: str) -> list[BrokerPartition]:
        """Of a new topic, partition 0 of each broker (spec-0.7 producer §2)."""
        atSeconds, known = self._partitions.get(topic, (0.0, []))
        now = self._clock()
        if known and (now - atSeconds) * 1000 < self._settings.metadataMaxAgeMs:
            return known
        self._addresses = self._metadata.brokers()
        found = self._metadata.partitions(topic)
        if found:
            self._partitions[topic] = now, found
            return found
        if not self._addresses:
            raise NoBrokersError(f"there is no broker for topic {topic}")
        return [BrokerPartition(number, 0) for number in sorted(self._addresses)]

    def _writeParts(
        self,
        broker: int,
        parts: Sequence[tuple[PartitionId, list[int]]],
        messages: Sequence[LogMessage],
        outcomes: list[PylogbrokerError | None],
    ) -> None:
        """
        Send, and wait for the confirmation.

        @raise BrokerConnectionError: what the broker has taken is unknown.
        """
        producer = self._producer(broker)
        sent: PartitionId | None = None
        waiting = deque((where, indexes, self._codec) for where, indexes in parts)
        while waiting:
            where, indexes, codec = waiting.popleft()
            payloads = [messages[index].value or b"" for index in indexes]
            try:
                producer.send(where.topic, where.partition.partition, payloads, codec=codec)
            except MessageTooLargeError as error:
                if len(indexes) > 1:
                    middle = len(indexes) // 2
                    waiting.extendleft(
                        [(where, indexes[middle:], codec), (where, indexes[:middle], codec)]
                    )
                elif codec != NONE:
                    waiting.appendleft((where, indexes, NONE))
                else:
                    outcomes[indexes[0]] = error
            else:
                sent = where
        if sent is not None:
            producer.confirm(sent.topic, sent.partition.partition)

    def _producer(self, broker: int) -> SyncProducer:
        if broker not in self._producers:
            if broker not in self._addresses:
                raise NoBrokersError(f"broker {broker} has the topic, but is not registered")
            address = _address(self._settings, self._addresses[broker])
            self._producers[broker] = SyncProducer(
                *address,
                payloadSizeMax=self._sizeMax,
                timeoutMs=self._settings.requestTimeoutMs,
                random=self._random,
            )
        return self._producers[broker]

    def _forget(self, broker: int) -> None:
        """Of a broker that has failed, nothing is taken for known."""
        self._partitions.clear()
        if producer := self._producers.pop(broker, None):
            producer.socket.drop()

    def close(self) -> None:
        producers, self._producers = self._producers, {}
        for each in producers.values():
            each.socket.drop()  # everything was confirmed
        self._metadata.close()
