"""
C{produce} and C{consume} for today's Kafka: records with keys, headers and timestamps.

What must be true of a member of a group: a committed record was printed. So positions are committed
behind the write to standard output, and before the member joins again or leaves.
"""

from __future__ import annotations

import base64
import os
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.publisher import BatchPublisher
from pylogbroker.cli.output import Progress, asJson, asJsonLine, formatBytes, payloadAsJson
from pylogbroker.cli.streams import READ_SIZE, LineDecoder, Streams, inputSize, writeAtOnce
from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import OffsetOutOfRangeError, PylogbrokerError
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.records.compression import crc32
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.groupmember import KafkaGroupMember
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.types import TopicPartition, formatCount

T = TypeVar("T")

POLL_MS = 500
COMMIT_MS = 1_000
WRITE_COUNT = 1_000
"""Records in one write to standard output."""

READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = ("read_uncommitted", READ_COMMITTED)

FIELDS = ("timestamp", "partition", "offset", "headers", "key")
"""What C{--print} can show before a record."""


def header(text: str) -> tuple[str, bytes]:
    """The type of C{NAME=VALUE}."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, os.fsencode(value)


def fields(text: str) -> list[str]:
    """The type of a list of L{FIELDS}."""
    found = text.split(",")
    unknown = [each for each in found if each not in FIELDS]
    if unknown:
        raise ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(FIELDS)}")
    return [each for each in FIELDS if each in found]


# -- produce


def produce(options: Namespace, streams: Streams) -> int:
    """Publish the lines of C{options.descriptor}."""
    with openCluster(options, streams) as cluster:
        publisher = _LinePublisher(cluster, options, options.topic)
        _publish(publisher, options, streams)
    if options.json:
        outcome = {
            "topic": options.topic,
            "messageCount": publisher.count,
            "payloadSize": publisher.size,
            "requestCount": publisher.batchCount,
        }
        show(streams, asJson(outcome))
    requests = formatCount(publisher.batchCount, "request")
    streams.say(
        f"sent {formatCount(publisher.count, 'message')} ({formatBytes(publisher.size)})"
        f" in {requests} to topic {options.topic}"
    )
    return 0


def _publish(publisher: _LinePublisher, options: Namespace, streams: Streams) -> None:
    size = inputSize(options.descriptor)
    progress = Progress(streams.errors, monotonic, size)
    decoder = LineDecoder(options.maxMessageSize)
    data = b"begin"
    try:
        while data and decoder.overlong is None:
            try:
                data = os.read(options.descriptor, READ_SIZE)
            except OSError as error:
                raise CommandError(f"cannot read {options.name}: {error.strerror}") from error
            publisher.addLines(decoder.feed(data) if data else decoder.finish())
            if size is None:
                publisher.flush()
            progress.update(publisher.count, publisher.size)
        publisher.flush()
    except ResponseError as error:
        raise CommandError(
            f"{error}; {formatCount(publisher.count, 'message')} before it were acknowledged"
        ) from error
    finally:
        progress.clear()
    if decoder.overlong is not None:
        before = "nothing was sent" if decoder.overlong == 1 else "the lines before it were sent"
        raise CommandError(
            f"line {decoder.overlong:,} of {options.name} is too long for a message of "
            f"{options.maxMessageSize:,} bytes; {before}"
        )


class _LinePublisher(BatchPublisher):
    """Makes records of lines."""

    def __init__(self, cluster: KafkaCluster, options: Namespace, topic: str) -> None:
        super().__init__(cluster, topic, options)
        self._options = options
        self._partitions = cluster.partitions(topic, isCreating=True)
        if options.partition is not None:
            if options.partition not in self._partitions:
                raise CommandError(f"topic {topic} has no partition {options.partition}")
            self._partitions = [options.partition]

    def addLines(self, lines: Iterable[bytes]) -> None:
        """Add records; full batches are sent."""
        separator, headers = self._options.keySeparator, tuple(self._options.headers)
        timestampMs = self._options.timestamp
        if timestampMs is None:
            timestampMs = int(time.time() * 1000)
        for line in lines:
            key: bytes | None = None
            value = line
            if separator is not None and separator in line:
                key, _, value = line.partition(separator)
            place = (
                # Records without a key stay together for a batch.
                self.batchCount % len(self._partitions)
                if key is None
                else keyPartition(key, len(self._partitions))
            )
            self.add(self._partitions[place], Record(0, timestampMs, key, value, headers))


# -- consume


def consume(options: Namespace, streams: Streams) -> int:
    """Print records until the end, or for ever."""
    printer = _Printer(options, streams)
    with openCluster(options, streams) as cluster:
        topics = _topics(cluster, options)
        source: _Source = (
            _Partitions(cluster, options, topics)
            if options.group is None
            else _Membership(cluster, options, topics)
        )
        try:
            _read(source, printer, options)
        except BrokenPipeError:
            pass
        finally:
            source.close(printer.isBroken)
            streams.say(f"read {formatCount(printer.count, 'message')}")
    return 0


def _topics(cluster: KafkaCluster, options: Namespace) -> list[str]:
    if options.topic is not None:
        cluster.partitions(options.topic, isCreating=options.follow)
        return [options.topic]
    pattern = options.whitelist or options.blacklist
    names = [topic.name for topic in cluster.metadata(None).topics if not topic.isInternal]
    found = sorted(pattern.streamCounts(names))
    if not found:
        raise CommandError(f"there is no topic that matches; there are: {', '.join(names)}")
    return found


def readUpTo(
    end: int,
    reader: RecordReader,
    read: Callable[[int], Iterable[T]],
    timeoutMs: int,
    name: str = "",
) -> Iterator[T]:
    """
    Read one partition up to the end that it had. What comes behind the end is given out, too.

    @param reader: of that partition only.
    @param read: C{reader.poll} or C{reader.fetch}, which is called until the position is there.
    @param timeoutMs: how long the position may stay where it is.
    @param name: the partition, for the error; by default, topic and number.
    @raise CommandError: the position did not move for C{timeoutMs}.
    """
    [where] = reader.positions
    movedAt = monotonic()
    while (before := reader.positions[where]) < end:
        yield from read(POLL_MS)
        now = monotonic()
        if reader.positions[where] != before:
            movedAt = now
        elif (now - movedAt) * 1000 > timeoutMs:
            raise CommandError(
                f"{name or where} has ended at {before}, before {end}: nothing has come for"
                f" {timeoutMs} ms"
            )


def lastValues(cluster: KafkaCluster, where: TopicPartition, timeoutMs: int) -> dict[bytes, bytes]:
    """
    What a partition of a compacted topic says now: the last value of each key, without tombstones.

    @param timeoutMs: as of L{readUpTo}.
    @raise CommandError: see L{readUpTo}.
    """
    end = cluster.offsetsAt([where], LATEST)[where]
    reader = RecordReader(cluster, cluster.offsetsAt([where], EARLIEST))
    found: dict[bytes, bytes] = {}
    for _where, record in readUpTo(end, reader, reader.poll, timeoutMs):
        if record.value is None:
            found.pop(record.key or b"", None)
        elif record.key:
            found[record.key] = record.value
    return found


def _read(source: _Source, printer: _Printer, options: Namespace) -> None:
    idleSince = monotonic()
    while printer.left:
        before = printer.count
        source.turn()
        ends = source.unread()
        if not options.follow and not ends:
            return
        try:
            for where, record in source.reader.poll(POLL_MS):
                printer.add(where, record)
                if not printer.left:
                    source.reader.positions[where] = record.offset + 1
                    break
        except OffsetOutOfRangeError as error:
            raise CommandError(str(error)) from error
        printer.flush()
        now = monotonic()
        if printer.count != before:
            idleSince = now
        elif options.follow and options.consumerTimeoutMs is not None:
            if (now - idleSince) * 1000 >= options.consumerTimeoutMs:
                return


class _Source:
    """
    Partitions to read.

    @ivar reader: reads them.
    """

    reader: RecordReader

    def __init__(self, cluster: KafkaCluster, options: Namespace, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._options = options
        self._topics = topics
        self._ends: dict[TopicPartition, int] = {}
        self._isCommitted = options.isolationLevel == READ_COMMITTED

    def turn(self) -> None:
        """What is to be done between two polls."""

    def unread(self) -> bool:
        """Whether there is something before the ends that the partitions had at the start."""
        positions = self.reader.positions
        return any(positions[where] < end for where, end in self._ends.items())

    def close(self, isBroken: bool) -> None:
        """
        The end.

        @param isBroken: whether what was read last was not printed.
        """

    def _open(self, positions: dict[TopicPartition, int]) -> None:
        self.reader = RecordReader(
            self._cluster, positions, self._options.fetchSize, self._isCommitted
        )
        self._ends = self._cluster.offsetsAt(positions, LATEST, self._isCommitted)

    def _starts(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where reading begins without a committed offset."""
        options = self._options
        if options.offset is not None:
            return dict.fromkeys(places, options.offset)
        time = options.fromTime
        if time is None:
            time = EARLIEST if options.fromBeginning else LATEST
        return self._cluster.offsetsAt(places, time, self._isCommitted)


class _Partitions(_Source):
    """All partitions of topics, or one."""

    def __init__(self, cluster: KafkaCluster, options: Namespace, topics: Sequence[str]) -> None:
        super().__init__(cluster, options, topics)
        places = [
            TopicPartition(topic, index) for topic in topics for index in cluster.partitions(topic)
        ]
        if options.partition is not None:
            places = [where for where in places if where.partition == options.partition]
            if not places:
                raise CommandError(
                    f"topic {', '.join(topics)} has no partition {options.partition}"
                )
        self._open(self._starts(places))


class _Membership(_Source):
    """The partitions that a group gives to this member."""

    def __init__(self, cluster: KafkaCluster, options: Namespace, topics: Sequence[str]) -> None:
        super().__init__(cluster, options, topics)
        self._member = KafkaGroupMember(cluster, options.group, topics)
        self._committed: dict[TopicPartition, int] = {}
        self._committedAt = monotonic()
        self._intervalSeconds = (options.autocommitIntervalMs or COMMIT_MS) / 1000
        self._join()

    def _join(self) -> None:
        places = self._member.join()
        self._committed = self._member.committed() if places else {}
        missing = [where for where in places if where not in self._committed]
        self._open({**(self._starts(missing) if missing else {}), **self._committed})

    def turn(self) -> None:
        """Commit and send heartbeats, when it is time; join again, when others come and go."""
        if monotonic() - self._committedAt >= self._intervalSeconds:
            self._commit()
        if self._member.heartbeat():
            self._commit()
            self._join()

    def _commit(self) -> None:
        self._committedAt = monotonic()
        positions = self.reader.positions
        new = {where: at for where, at in positions.items() if self._committed.get(where) != at}
        if self._member.commit(new):
            self._committed.update(new)

    def close(self, isBroken: bool) -> None:
        """Commit what was printed, and leave the group."""
        try:
            if not isBroken:
                self._commit()
            self._member.leave()
        except PylogbrokerError:
            pass  # the session ends by itself


class _Printer:
    """
    Prints records.

    @ivar count: those that are printed.
    @ivar isBroken: whether some were not, since the output is closed.
    """

    def __init__(self, options: Namespace, streams: Streams) -> None:
        self._output = streams.output
        self._countMax: int = options.maxMessages
        self._encode = _FORMATS[options.format]
        self._fields: list[str] = options.print or []
        self._lines: list[bytes] = []
        self.count = 0
        self.isBroken = False

    @property
    def left(self) -> int:
        """How many may still be printed."""
        return self._countMax - self.count - len(self._lines)

    def add(self, where: TopicPartition, record: Record) -> None:
        """Print a record, perhaps later."""
        line = self._encode(where, record)
        for name in reversed(self._fields):
            line = _FIELD_TEXTS[name](where, record) + b"\t" + line
        self._lines.append(line)
        if len(self._lines) >= WRITE_COUNT:
            self.flush()

    def flush(self) -> None:
        """Print what waits."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        self.isBroken = True
        writeAtOnce(self._output, b"\n".join(lines) + b"\n")
        self.isBroken = False
        self.count += len(lines)


def _asJsonLine(where: TopicPartition, record: Record) -> bytes:
    document: dict[str, Any] = {
        "topic": where.topic,
        "partition": where.partition,
        "offset": record.offset,
        "timestampMs": record.timestampMs,
        **_named("key", record.key),
        "headers": [{"name": name, **_named("value", value)} for name, value in record.headers],
        **({"payload": None} if record.value is None else payloadAsJson(record.value)),
    }
    return asJsonLine(document).rstrip("\n").encode("utf-8", "surrogatepass")


def _named(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}


_FORMATS: dict[str, Callable[[TopicPartition, Record], bytes]] = {
    "payload": lambda where, record: record.value or b"",
    "checksum": lambda where, record: b"checksum:%d" % crc32(record.value or b""),
    "json": _asJsonLine,
}
_FIELD_TEXTS: dict[str, Callable[[TopicPartition, Record], bytes]] = {
    "timestamp": lambda where, record: b"%d" % record.timestampMs,
    "partition": lambda where, record: b"%d" % where.partition,
    "offset": lambda where, record: b"%d" % record.offset,
    "headers": lambda where, record: b",".join(
        name.encode("utf-8", "replace") + b":" + (value or b"") for name, value in record.headers
    ),
    "key": lambda where, record: b"null" if record.key is None else record.key,
}
