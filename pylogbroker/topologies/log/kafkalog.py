"""
The log of today's Kafka, for log spouts and log bolts. A module of its own: a reader of the dialect
of 2011 need not open it.

Spouts have partitions by their instances' indexes, and join no group. Its positions are committed
without a member, which the coordinator takes while the group has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.config.kafka.clientsettings import EARLIEST, LATEST
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
    ConfigurationError,
    MessageTooLargeError,
    PylogbrokerError,
)
from pylogbroker.net.endpointstrings import brokerEndpoint, endpoint
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.records.compression import NONE
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka import cluster as times
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.groupmember import KafkaGroupMember
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.topologies.log.logclients import (
    AwayBrokers,
    LogMessage,
    LogRecord,
    ReadResult,
    byPartition,
    isTransient,
)
from pylogbroker.types import AnyPartition, OffsetBounds, TopicPartition

CONNECT_TIMEOUT_MS = 2_000
"""For a broker that does not answer; then the others are asked who leads its partitions now."""

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def openCluster(settings: LogClientSettings) -> KafkaCluster:
    """
    A client, which connects at its first request.

    @raise ConfigurationError: an address is none.
    """
    login = None
    if settings.saslUsername:
        login = SaslLogin(settings.saslMechanism, settings.saslUsername, settings.saslPassword)
    addresses = [
        endpoint(brokerEndpoint(settings.brokerEndpoint, each))
        for each in settings.bootstrapServers or ()
    ]
    return KafkaCluster(
        addresses,
        settings.clientId,
        settings.requestTimeoutMs,
        login=login,
        connectTimeoutMs=min(CONNECT_TIMEOUT_MS, settings.requestTimeoutMs),
    )


def _isTooLarge(error: PylogbrokerError) -> bool:
    return isinstance(error, MessageTooLargeError) or (
        isinstance(error, ResponseError) and error.code in _TOO_LARGE
    )


def _today(partitions: Collection[AnyPartition]) -> list[TopicPartition]:
    return [each for each in partitions if isinstance(each, TopicPartition)]


class KafkaLogReader:
    """See L{pylogbroker.topologies.log.logclients.ILogReader}."""

    def __init__(
        self,
        settings: LogSpoutSettings,
        topics: Sequence[str],
        group: str,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """
        @param clock: gives seconds.
        @param random: gives numbers from 0 up to, not including, 1.
        """
        self._settings = settings
        self._topics = list(topics)
        self._group = group
        self._away = AwayBrokers(clock, random)
        self._cluster = openCluster(settings)
        self._reader = RecordReader(
            self._cluster, {}, settings.maxPartitionFetchBytes, settings.isolationLevel
        )
        self._member = KafkaGroupMember(self._cluster, group, topics)

    def partitions(self) -> list[AnyPartition]:
        return [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in self._cluster.partitions(topic)
        ]

    def share(self, partition: AnyPartition) -> int:
        [where] = _today([partition])
        return self._topics.index(where.topic) + where.partition

    def committed(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, int]:
        self._member.partitions = _today(partitions)
        return dict(self._member.committed().items())

    def commit(self, positions: Mapping[AnyPartition, int]) -> None:
        if not self._member.commit({each: positions[each] for each in _today(positions)}):
            raise ConfigurationError(
                f"group.id={self._group}: the group has members, so positions cannot be committed;"
                " give the spout a group of its own"
            )

    def starts(
        self, partitions: Collection[AnyPartition], start: StartPosition, nowMs: int
    ) -> Mapping[AnyPartition, int]:
        if start.kind == BY_LAG:
            return {
                where: max(each.start, each.end - start.amount)
                for where, each in self.bounds(partitions).items()
            }
        words = {EARLIEST: times.EARLIEST, LATEST: times.LATEST}
        time = nowMs - start.amount if start.kind == BY_DURATION else start.amount
        isCommitted = self._settings.isolationLevel
        found = self._cluster.offsetsAt(
            _today(partitions), words.get(start.kind, time), isCommitted
        )
        return dict(found.items())

    def bounds(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, OffsetBounds]:
        places = _today(partitions)
        first = self._cluster.offsetsAt(places, times.EARLIEST)
        last = self._cluster.offsetsAt(places, times.LATEST, self._settings.isolationLevel)
        return {each: OffsetBounds(first[each], last[each]) for each in places}

    def ends(self, partitions: Collection[AnyPartition]) -> Mapping[AnyPartition, int]:
        ends: dict[AnyPartition, int] = {}
        for number, places in self._byLeader(partitions)[0].items():
            try:
                found = self._cluster.offsets(
                    places, times.LATEST, self._settings.isolationLevel, isRetried=False
                )
            except (BrokerConnectionError, ResponseError) as error:
                if not isTransient(error):
                    raise
                self._away.failed(number, error)
                self._cluster.forget()
            else:
                for where, each in found.items():
                    if not isinstance(each, ResponseError):
                        ends[where] = each[0]
        return ends

    def read(self, positions: Mapping[AnyPartition, int], waitMs: int) -> ReadResult:
        records: list[LogRecord] = []
        behind = dict(positions)
        byLeader, failure = self._byLeader(positions)
        for at, (number, places) in enumerate(byLeader.items()):
            isLast = at + 1 == len(byLeader)
            try:
                self._readFrom(places, behind, records, waitMs if isLast and not records else 0)
            except (BrokerConnectionError, ResponseError) as error:
                if not isTransient(error):
                    raise
                self._away.failed(number, error)
                failure = error
            else:
                self._away.succeeded(number)
        if failure is not None:
            self._cluster.forget()
            if not records:
                raise failure
        return ReadResult(records, behind)

    def _byLeader(
        self, partitions: Collection[AnyPartition]
    ) -> tuple[dict[int, list[TopicPartition]], PylogbrokerError | None]:
        """The partitions that can be asked for, and why others cannot."""
        found: dict[int, list[TopicPartition]] = {}
        failure: PylogbrokerError | None = None
        for where in _today(partitions):
            try:
                number = self._cluster.leader(where)
                self._away.check(number)
            except (BrokerConnectionError, ResponseError) as error:
                if not isTransient(error):
                    raise
                failure = error
            else:
                found.setdefault(number, []).append(where)
        return found, failure

    def _readFrom(
        self,
        places: Sequence[TopicPartition],
        behind: dict[AnyPartition, int],
        records: list[LogRecord],
        waitMs: int,
    ) -> None:
        reader = self._reader
        reader.positions = {each: behind[each] for each in places}
        found = [
            LogRecord(
                where,
                each.offset,
                each.offset + 1,
                each.key,
                each.value,
                each.timestampMs,
                each.headers,
            )
            for where, each in reader.poll(waitMs, isRetried=False)
        ]
        records += found
        behind.update(reader.positions.items())

    def close(self) -> None:
        self._cluster.close()


class KafkaLogWriter:
    """
    See L{pylogbroker.topologies.log.logclients.ILogWriter}. A key goes to the partition that Java's
    producer chooses for it. Messages without one go to a random partition, another one for each
    call.
    """

    def __init__(
        self,
        settings: LogClientSettings,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """
        @param clock: gives seconds since 1970.
        @param random: gives numbers from 0 up to, not including, 1.
        """
        self._codec = settings.compressionType if isinstance(settings, LogBoltSettings) else NONE
        self._cluster = openCluster(settings)
        self._clock = clock
        self._random = random
        self._metadataMaxAgeMs = settings.metadataMaxAgeMs
        self._partitions: dict[str, tuple[float, list[int]]] = {}
        self._writer = RecordWriter(self._cluster, self._codec)

    def write(self, messages: Sequence[LogMessage]) -> Sequence[PylogbrokerError | None]:
        outcomes: list[PylogbrokerError | None] = [None] * len(messages)
        chances: dict[str, float] = {}
        places: list[TopicPartition] = []
        try:
            for each in messages:
                places.append(self._choose(each, chances))
        except PylogbrokerError as error:
            if not isTransient(error):
                raise
            return [error] * len(messages)
        parts = deque(byPartition(places).items())
        failure: PylogbrokerError | None = None
        while parts:
            where, indexes = parts.popleft()
            # One broker that is away shall not take the time-out of each partition.
            part = [messages[index] for index in indexes]
            refusal = failure or self._tryPart(where, part)
            if refusal is None:
                continue
            if _isTooLarge(refusal) and len(indexes) > 1:
                middle = len(indexes) // 2
                parts.extendleft([(where, indexes[middle:]), (where, indexes[:middle])])
                continue
            if isinstance(refusal, BrokerConnectionError):
                failure = refusal
            for index in indexes:
                outcomes[index] = refusal
        return outcomes

    def _choose(self, message: LogMessage, chances: dict[str, float]) -> TopicPartition:
        topic = message.topic
        atSeconds, numbers = self._partitions.get(topic, (0.0, []))
        now = self._clock()
        if not numbers or (now - atSeconds) * 1000 >= self._metadataMaxAgeMs:
            numbers = self._cluster.partitions(topic, isCreating=True)
            self._partitions[topic] = now, numbers
        if message.key is not None:
            return TopicPartition(topic, numbers[keyPartition(message.key, len(numbers))])
        if topic not in chances:
            chances[topic] = self._random()
        return TopicPartition(topic, numbers[int(chances[topic] * len(numbers))])

    def _tryPart(
        self, where: AnyPartition, messages: Sequence[LogMessage]
    ) -> PylogbrokerError | None:
        assert isinstance(where, TopicPartition)
        nowMs = int(self._clock() * 1000)
        records = [
            Record(
                0,
                nowMs if each.timestampMs is None else each.timestampMs,
                each.key,
                each.value,
                each.headers,
            )
            for each in messages
        ]
        try:
            self._writer.write(where, records)
        except PylogbrokerError as error:
            # Whether the batch is in the log is unknown, or its numbers were not used: another
            # batch with them could be taken for the same one. A new producer begins anew.
            self._writer = RecordWriter(self._cluster, self._codec)
            self._partitions.pop(where.topic, None)
            if not _isTooLarge(error) and not isTransient(error):
                raise
            return error
        return None

    def close(self) -> None:
        self._cluster.close()
