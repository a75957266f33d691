"""
MirrorMaker 2's records of positions, so that its tools and ours read each other's. A module of its
own, since consumers that move read checkpoints without a mirror.

An I{offset sync} says that the message at an offset of a source partition is at an offset of the
target's. Its key is topic (STRING) and partition (INT32), its value both offsets (INT64).

A I{checkpoint} is the position of a group, in both clusters. Its key is group, topic (STRING) and
partition (INT32). Its value is a version (INT16, 0), both offsets (INT64), and the metadata of the
commit (STRING). Integers are big-endian; a STRING is its length (INT16), and UTF-8.

Source: Kafka 4.x, C{org.apache.kafka.connect.mirror.OffsetSync} and C{Checkpoint}.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.config.kafka.clientsettings import EARLIEST, KafkaConsumerSettings
from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import ConfigurationError, FormatError
from pylogbroker.types import TopicPartition

_VERSION = 0

log = Logger()


def offsetSyncsTopic(alias: str) -> str:
    """The source's topic of offset syncs for a target."""
    return f"mm2-offset-syncs.{alias}.internal"


def checkpointsTopic(alias: str) -> str:
    """The target's topic of checkpoints of a source."""
    return f"{alias}.checkpoints.internal"


class OffsetSync(NamedTuple):
    """
    The message at C{upstream} of a source partition is at C{downstream} in the target.
    """

    place: TopicPartition
    upstream: int
    downstream: int

    def encode(self) -> tuple[bytes, bytes]:
        """Key and value."""
        key = _text(self.place.topic) + struct.pack(">i", self.place.partition)
        return key, struct.pack(">qq", self.upstream, self.downstream)


class Checkpoint(NamedTuple):
    """
    A group that has read up to C{upstream} of a source partition continues at C{downstream} in the
    target.
    """

    group: str
    place: TopicPartition
    upstream: int
    downstream: int
    metadata: str = ""

    def encode(self) -> tuple[bytes, bytes]:
        """Key and value."""
        key = _text(self.group) + _text(self.place.topic) + struct.pack(">i", self.place.partition)
        value = struct.pack(">hqq", _VERSION, self.upstream, self.downstream)
        return key, value + _text(self.metadata)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _Fields:
    """Reads the fields of a key or a value."""

    def __init__(self, data: bytes | None) -> None:
        if data is None:
            raise ValueError("it is null")
        self._data = data
        self._at = 0

    def numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def text(self) -> str:
        (length,) = self.numbers(">h")
        data = self._data[self._at : self._at + length]
        if not 0 <= length == len(data):
            raise ValueError(f"a text of {length} bytes, of which {len(data)} are there")
        self._at += length
        return data.decode()


def decodeOffsetSync(record: ConsumerRecord) -> OffsetSync:
    """
    Decode a record of the topic of offset syncs.

    @raise FormatError: it is none.
    """
    try:
        key, value = _Fields(record.key), _Fields(record.value)
        place = TopicPartition(key.text(), *key.numbers(">i"))
        return OffsetSync(place, *value.numbers(">qq"))
    except (ValueError, struct.error) as error:
        raise _bad(record, "offset sync", error) from error


def decodeCheckpoint(record: ConsumerRecord) -> Checkpoint:
    """
    Decode a record of the topic of checkpoints.

    @raise FormatError: it is none, or of a later version; or it is a tombstone.
    """
    try:
        group, place = _checkpointKey(record)
        value = _Fields(record.value)
        (version,) = value.numbers(">h")
        if version != _VERSION:
            raise ValueError(f"version {version}")
        upstream, downstream = value.numbers(">qq")
        return Checkpoint(group, place, upstream, downstream, value.text())
    except (ValueError, struct.error) as error:
        raise _bad(record, "checkpoint", error) from error


def applyCheckpoint(
    record: ConsumerRecord, group: str, positions: dict[TopicPartition, int]
) -> None:
    """
    Apply the next record of the topic of checkpoints to the positions of a group in the target: a
    checkpoint replaces the earlier one of its key, and a tombstone removes it.

    @raise FormatError: as L{decodeCheckpoint}; nothing was changed.
    """
    if record.value is not None:
        checkpoint = decodeCheckpoint(record)
        if checkpoint.group == group:
            positions[checkpoint.place] = checkpoint.downstream
        return
    try:
        removedGroup, place = _checkpointKey(record)
    except (ValueError, struct.error) as error:
        raise _bad(record, "checkpoint", error) from error
    if removedGroup == group:
        positions.pop(place, None)


def _checkpointKey(record: ConsumerRecord) -> tuple[str, TopicPartition]:
    """Group and partition."""
    key = _Fields(record.key)
    return key.text(), TopicPartition(key.text(), *key.numbers(">i"))


def _bad(record: ConsumerRecord, what: str, error: Exception) -> FormatError:
    where = f"{record.topic}-{record.partition} at offset {record.offset}"
    return FormatError(f"{where}: it is no {what}: {error}")


class CompactedTopicReader:
    """
    Reads the one partition of a topic from its beginning, and later what has come since.
    """

    def __init__(self, clock: Any, consumer: KafkaConsumer, topic: str) -> None:
        """@param consumer: assigned nothing, with C{consumer.timeout.ms}."""
        self._clock = clock
        self._consumer = consumer
        self._place = TopicPartition(topic, 0)

    async def readToEnd(self, handle: Any) -> None:
        """
        Call a function with each new L{ConsumerRecord} up to the present end. A L{FormatError} that
        it raises is logged, and the record left out.

        @raise PylogbrokerError: the topic cannot be read; the next call goes on.
        """
        consumer, place = self._consumer, self._place
        if not consumer.assignment():
            consumer.assign([place])
        end = (await consumer.endOffsets([place]))[place]
        while end and consumer.positions.get(place, 0) < end:
            records = consumer.takeMany()
            if not records:
                await consumer.wait()
            for record in records:
                try:
                    handle(record)
                except FormatError as error:
                    log.warn("A record is left out: {error}", error=error)
            await deferLater(self._clock, 0)


READ_TIMEOUT_MS = 10_000


async def readCheckpoints(
    reactor: Any, properties: Mapping[str, str], group: str, sourceAlias: str = "source"
) -> dict[TopicPartition, int]:
    """
    The positions at which a group of the source continues in the target, as Java's
    C{RemoteClusterUtils.translateOffsets}: for L{KafkaConsumer.seek} or C{commitOffsets}.

    @param properties: of a client of the target.
    @param sourceAlias: C{source.cluster.alias} of the mirror.
    @return: by partition; those that the mirror has not translated are missing.
    @raise ConfigurationError: the properties are wrong.
    @raise PylogbrokerError: the topic of checkpoints cannot be read, or there is none.
    """
    settings = KafkaConsumerSettings.fromProperties(properties, _refuse)
    consumer = KafkaConsumer(
        reactor,
        settings.replace(
            autoOffsetReset=EARLIEST,
            consumerTimeoutMs=READ_TIMEOUT_MS,
            defaultApiTimeoutMs=READ_TIMEOUT_MS,
        ),
    )
    found: dict[TopicPartition, int] = {}

    def handle(record: ConsumerRecord) -> None:
        applyCheckpoint(record, group, found)

    try:
        reader = CompactedTopicReader(reactor, consumer, checkpointsTopic(sourceAlias))
        await reader.readToEnd(handle)
    finally:
        await consumer.close()
    return found


def _refuse(sentence: str) -> None:
    raise ConfigurationError(sentence)
