"""
C{perf}: how fast messages can be published and read, with 0.7's columns and number formats (its
ProducerPerformance, ConsumerPerformance and SimpleConsumerPerformance, spec-0.7 tools §10).

Unlike 0.7's, C{perf produce} sends exactly the requested number of messages. A message counts when
it was written to the broker's connection; with C{--confirm}, when the broker has processed it.

A group has no end. As in 0.7, C{perf consume} stops when no message has come for a while. It does
not count that while: the end time is that of the last message.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addBatching,
    addBroker,
    addJson,
    addMaxMessages,
    addPartition,
    addRequiredZookeeper,
    addTopic,
    flag,
    group,
    intRange,
    option,
    positive,
)
from pylogbroker.cli.output import asJsonLine
from pylogbroker.cli.session import GroupMember, closeAll, openConsumer, requireTopic
from pylogbroker.cli.streams import Streams
from pylogbroker.client.offsetlookup import singleOffset
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import ConsumerTimeoutError, PylogbrokerError
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.producer.producer import Producer
from pylogbroker.types import EARLIEST, LATEST

SEPARATOR = ", "
MEGABYTE = 1 << 20
DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"
THREAD_COUNT_MAX = 1_000
MESSAGE_SIZE_MAX = 1 << 30
FETCH_SIZE_MAX = 1 << 30
POLL_MS = 100
IDLE_MS = 5_000
POLL_COUNT_MAX = 1_000
"""Messages that are counted together."""

_DATE_FIELD = re.compile(r"yyyy|MM|dd|HH|mm|ss|SSS")
_ADDRESS = re.compile("[^:]+:[0-9]+")
"""Addresses that a producer's broker.list can hold."""

_SENT = ("total.data.sent.in.MB", "MB.sec", "total.data.sent.in.nMsg", "nMsg.sec")
_READ = ("fetch.size", "data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec")
_BATCHES = ("message.size", "batch.size")
PRODUCE_COLUMNS = ("start.time", "end.time", "compression", *_BATCHES, *_SENT)
PRODUCE_DETAILED_COLUMNS = ("time", "compression", "thread.id", *_BATCHES, *_SENT)
CONSUME_COLUMNS = ("start.time", "end.time", *_READ)
GROUP_DETAILED_COLUMNS = ("time", "thread.id", *_READ)
SIMPLE_DETAILED_COLUMNS = ("time", *_READ)

_PRODUCE_EXAMPLES = """\
examples:
  pylogbroker perf produce --zookeeper zk1:2181 --topic speed --messages 10000 --async
  pylogbroker perf produce --broker log1:9092 --topic speed --messages 1000 --batch-size 50 --json

MB are 2^20 bytes of payload. compression is 0 for none, 1 for gzip, 2 for snappy. --broker is an
address here, and no endpoint string; for TLS use --set
broker.endpoint=tls:{host}:{port}:trustRoots=DIR.
"""
_GROUP_EXAMPLES = """\
examples:
  pylogbroker perf consume --zookeeper zk1:2181 --topic clicks --idle-ms 500
  pylogbroker perf consume --zookeeper zk1:2181 --topic clicks --messages 10 --threads 2 --json

It reads from the oldest message on, in a new group that is deleted at the end. MB are 2^20 bytes of
payload. (0.7's detailed rows have a thread.id, but its header has not.)
"""
_SIMPLE_EXAMPLES = """\
examples:
  pylogbroker perf simple-consume --broker log1:9092 --topic clicks
  pylogbroker perf simple-consume --broker log1:9092 --topic clicks --partition 1 --hide-header

It ends at the end of the partition. MB are 2^20 bytes of payload.
"""


def formatDate(pattern: str, nowMs: int) -> str:
    """
    A local time in the format of Java's SimpleDateFormat.

    @param pattern: yyyy, MM, dd, HH, mm, ss and SSS are replaced.
    @param nowMs: milliseconds since the epoch.
    """
    date = datetime.fromtimestamp(nowMs // 1000, UTC).astimezone()
    parts = {
        "yyyy": f"{date.year:04}",
        "MM": f"{date.month:02}",
        "dd": f"{date.day:02}",
        "HH": f"{date.hour:02}",
        "mm": f"{date.minute:02}",
        "ss": f"{date.second:02}",
        "SSS": f"{nowMs % 1000:03}",
    }
    return _DATE_FIELD.sub(lambda found: parts[found.group()], pattern)


def addDateFormat(parser: ArgumentParser, default: str) -> None:
    """Add C{--date-format}."""
    option(parser, "--date-format PATTERN", "as in Java (%(default)s)", default=default)


def addReporting(parser: ArgumentParser) -> None:
    """Add the arguments of the rows."""
    flag(
        parser,
        "--show-detailed-stats",
        "print a row after each --reporting-interval messages instead of one row",
    )
    option(
        parser, "--reporting-interval N", "messages between two rows (%(default)s)", positive, 5_000
    )
    addDateFormat(parser, DATE_FORMAT)
    flag(parser, "--hide-header", "leave out the names of the columns")
    addJson(parser, "print each row as a JSON object in a line, with the columns as keys")


class Measurement:
    """
    Messages and bytes since the start and since the last row.

    @ivar count: messages.
    @ivar size: bytes of payload.
    @ivar startMs: milliseconds since the epoch.
    @ivar lastMs: time of the last message.
    """

    def __init__(self, nowMs: Callable[[], int], rowCount: int) -> None:
        """
        @param rowCount: messages between two rows.
        """
        self._nowMs = nowMs
        self._rowCount = rowCount
        self.count = self.size = 0
        self.startMs = self.lastMs = nowMs()
        self._rowMs, self._rowCountBefore, self._rowSizeBefore = self.startMs, 0, 0

    def add(self, count: int, size: int) -> bool:
        """
        Count more messages.

        @return: whether a row is due.
        """
        before = self.count
        self.count += count
        self.size += size
        self.lastMs = self._nowMs()
        return before // self._rowCount != self.count // self._rowCount

    def total(self) -> tuple[float, float, int, float]:
        """MB, MB a second, messages, and messages a second since the start."""
        return self._values(self.startMs, 0, 0)

    def sinceRow(self) -> tuple[float, float, int, float]:
        """MB and messages since the start, with the rates since the last row."""
        values = self._values(self._rowMs, self._rowCountBefore, self._rowSizeBefore)
        self._rowMs, self._rowCountBefore, self._rowSizeBefore = self.lastMs, self.count, self.size
        return values

    def _values(self, sinceMs: int, count: int, size: int) -> tuple[float, float, int, float]:
        seconds = max(1, self.lastMs - sinceMs) / 1000
        return (
            self.size / MEGABYTE,
            (self.size - size) / MEGABYTE / seconds,
            self.count,
            (self.count - count) / seconds,
        )


def formatRow(columns: Sequence[str], values: Sequence[Any], decimals: int, isJson: bool) -> str:
    """
    A line with its end.

    @param decimals: of the first float, the megabytes; the rates have 4.
    """
    if isJson:
        return asJsonLine(dict(zip(columns, values, strict=True)))
    texts = []
    isFirst = True
    for value in values:
        if isinstance(value, float):
            texts.append(f"{value:.{decimals if isFirst else 4}f}")
            isFirst = False
        else:
            texts.append(str(value))
    return SEPARATOR.join(texts) + "\n"


def formatHeader(columns: Sequence[str], options: Namespace) -> str:
    """The names of the columns; empty with C{--hide-header} or C{--json}."""
    return "" if options.hideHeader or options.json else SEPARATOR.join(columns) + "\n"


class _Rows:
    """The output of one command."""

    def __init__(
        self,
        options: Namespace,
        streams: Streams,
        columns: tuple[str, ...],
        detailedColumns: tuple[str, ...],
        decimals: int,
    ) -> None:
        self._options = options
        self._streams = streams
        self._columns = detailedColumns if options.showDetailedStats else columns
        self._decimals = decimals

    def nowMs(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._streams.reactor.seconds() * 1000)

    def measurement(self) -> Measurement:
        """A new one, which starts now."""
        return Measurement(self.nowMs, self._options.reportingInterval)

    async def header(self) -> None:
        """Print the names of the columns."""
        await self._streams.show(formatHeader(self._columns, self._options))

    async def detail(self, measurement: Measurement, *values: object) -> None:
        """Print a row since the last one, with C{--show-detailed-stats}."""
        if self._options.showDetailedStats:
            time = formatDate(self._options.dateFormat, measurement.lastMs)
            await self._row(time, *values, *measurement.sinceRow())

    async def summary(self, measurement: Measurement, *values: object) -> None:
        """Print the row of the whole, without C{--show-detailed-stats}."""
        if not self._options.showDetailedStats:
            pattern = self._options.dateFormat
            start = formatDate(pattern, measurement.startMs)
            end = formatDate(pattern, measurement.lastMs)
            await self._row(start, end, *values, *measurement.total())

    async def _row(self, *values: object) -> None:
        text = formatRow(self._columns, values, self._decimals, self._options.json)
        await self._streams.show(text)


def _addThreads(parser: ArgumentParser, what: str) -> None:
    option(
        parser,
        "--threads N",
        f"{what} side by side (%(default)s)",
        intRange(1, THREAD_COUNT_MAX),
        1,
    )


def addProduceArguments(parser: ArgumentParser) -> None:
    """Arguments of C{perf produce}."""
    parser.epilog = _PRODUCE_EXAMPLES
    addBroker(parser, hasCluster=True)
    addTopic(parser)
    option(parser, "--messages N", "messages to send", intRange(1), required=True)
    option(
        parser,
        "--message-size BYTES",
        "bytes of each message (%(default)s)",
        intRange(0, MESSAGE_SIZE_MAX),
        100,
    )
    flag(parser, "--vary-message-size", "draw each size from 1 to --message-size at random")
    parser.add_argument(
        "--async",
        dest="isAsync",
        action="store_true",
        help="gather batches in the background; by default, wait for each batch",
    )
    _addThreads(parser, "producers")
    flag(parser, "--confirm", "count only messages that brokers have confirmed")
    addBatching(parser)
    addReporting(parser)


async def perfProduce(options: Namespace, streams: Streams) -> int:
    """Send, and print how fast that was."""
    sending = _Sending(options, streams)
    try:
        await sending.run()
    finally:
        await closeAll(Deferred.fromCoroutine(sending.close()))
    return 0


class _Sending:
    """Several producers with the same settings."""

    def __init__(self, options: Namespace, streams: Streams) -> None:
        self._options = options
        self._streams = streams
        self._rows = _Rows(options, streams, PRODUCE_COLUMNS, PRODUCE_DETAILED_COLUMNS, decimals=2)
        self._random = Random(0)
        self._payload = bytes(options.messageSize)
        self._producers = [
            Producer(streams.reactor, self._settings()) for _ in range(options.threads)
        ]
        self._error: BaseException | None = None

    def _settings(self) -> dict[str, str]:
        options = self._options
        if options.zookeeper is not None:
            cluster = {"zk.connect": options.zookeeper}
        elif _ADDRESS.fullmatch(options.broker):
            cluster = {"broker.list": f"0:{options.broker}"}
        else:
            raise CommandError(
                f"--broker {options.broker}: here it is a name or an IPv4 address, "
                "a colon and a port"
            )
        return {
            **options.access.asProperties(),
            **cluster,
            "producer.type": "async" if options.isAsync else "sync",
            "compression.codec": str(options.compression),
            "batch.size": str(options.batchSize),
            "queue.size": str(max(10_000, 4 * options.batchSize)),
            "max.message.size": str(max(1_000_000, 2 * options.messageSize)),
            "confirm": "true" if options.confirm else "false",
            "connect.timeout.ms": str(options.timeoutMs),
            "socket.timeout.ms": str(options.timeoutMs),
            "close.timeout.ms": str(options.timeoutMs),
        }

    async def run(self) -> None:
        """Send from the first message to the last."""
        options, rows = self._options, self._rows
        await gatherAll(producer.start() for producer in self._producers)
        await rows.header()
        share, more = divmod(options.messages, options.threads)
        total = rows.measurement()
        await gatherAll(
            self._sendShare(index, producer, share + (index < more), total)
            for index, producer in enumerate(self._producers)
        )
        await rows.summary(total, options.compression, options.messageSize, options.batchSize)

    async def _sendShare(
        self, index: int, producer: Producer, count: int, total: Measurement
    ) -> None:
        options = self._options
        own = self._rows.measurement()
        send = self._sendAsync if options.isAsync else self._sendSync
        while own.count < count:
            payloads = [self._next() for _ in range(min(options.batchSize, count - own.count))]
            await send(producer, payloads)
            size = sum(map(len, payloads))
            if own.add(len(payloads), size):
                sizes = (options.messageSize, options.batchSize)
                await self._rows.detail(own, options.compression, index, *sizes)
            total.add(len(payloads), size)
        await producer.flush()
        self._raiseError()
        total.add(0, 0)
        if producer.counters.writtenCount != count:
            raise CommandError(
                f"{producer.counters.writtenCount:,} of {count:,} messages were sent: "
                f"{producer.counters}"
            )

    def _next(self) -> bytes:
        if self._options.varyMessageSize and self._payload:
            return self._payload[: self._random.randint(1, len(self._payload))]
        return self._payload

    async def _sendSync(self, producer: Producer, payloads: list[bytes]) -> None:
        await producer.send(self._options.topic, payloads)

    async def _sendAsync(self, producer: Producer, payloads: list[bytes]) -> None:
        for payload in payloads:
            await producer.whenReady()
            self._raiseError()
            producer.send(self._options.topic, payload).addErrback(self._failed)

    def _failed(self, failure: Any) -> None:
        if self._error is None:
            self._error = failure.value

    def _raiseError(self) -> None:
        if isinstance(self._error, PylogbrokerError):
            raise self._error
        if self._error is not None:
            raise CommandError(repr(self._error))

    async def close(self) -> None:
        """Close the producers."""
        for producer in self._producers:
            try:
                await producer.close()
            except PylogbrokerError as error:
                self._streams.warn(str(error))


def _addReading(parser: ArgumentParser) -> None:
    addTopic(parser)
    addMaxMessages(parser, "--messages", low=1)
    option(
        parser,
        "--fetch-size BYTES",
        "bytes of one fetch request (%(default)s)",
        intRange(1, FETCH_SIZE_MAX),
        1 << 20,
    )
    flag(parser, "--from-latest", "start at the end of the log")
    addReporting(parser)


def addConsumeArguments(parser: ArgumentParser) -> None:
    """Arguments of C{perf consume}."""
    parser.epilog = _GROUP_EXAMPLES
    addRequiredZookeeper(parser)
    _addReading(parser)
    option(
        parser,
        "--group NAME",
        "a group whose offsets stay; by default, a new one that is deleted at the end",
        group,
    )
    _addThreads(parser, "streams")
    option(
        parser,
        "--idle-ms MS",
        "stop when no message has come for this long (%(default)s)",
        positive,
        IDLE_MS,
    )


async def perfConsume(options: Namespace, streams: Streams) -> int:
    """Read as a member of a group, and print how fast that was."""
    changes = {"autooffset.reset": "largest" if options.fromLatest else "smallest"}
    member = GroupMember(options, streams, "perf-consumer", POLL_MS, changes)
    rows = _Rows(options, streams, CONSUME_COLUMNS, GROUP_DETAILED_COLUMNS, decimals=4)
    topic = options.topic
    try:
        await member.connect()
        if topic not in await member.reader.topics():
            raise CommandError(f"there is no topic {topic}")
        found = await member.consumer.createMessageStreams({topic: options.threads})
        await rows.header()
        total = rows.measurement()
        await gatherAll(
            _readStream(rows, stream, index, total, options)
            for index, stream in enumerate(found[topic])
        )
        await rows.summary(total, options.fetchSize)
    finally:
        await closeAll(Deferred.fromCoroutine(member.leave()))
    return 0


async def _readStream(
    rows: _Rows,
    stream: MessageStream,
    index: int,
    total: Measurement,
    options: Namespace,
) -> None:
    own = rows.measurement()
    while total.count < options.maxMessages:
        try:
            size = len((await stream.__anext__()).value)
        except StopAsyncIteration:
            return
        except ConsumerTimeoutError:
            if rows.nowMs() - total.lastMs >= options.idleMs:
                return
            continue
        count, countMax = 1, min(POLL_COUNT_MAX, options.maxMessages - total.count)
        while count < countMax and (message := stream.take()) is not None:
            size += len(message.value)
            count += 1
        total.add(count, size)
        if own.add(count, size):
            await rows.detail(own, index, options.fetchSize)


def addSimpleConsumeArguments(parser: ArgumentParser) -> None:
    """Arguments of C{perf simple-consume}."""
    parser.epilog = _SIMPLE_EXAMPLES
    addBroker(parser)
    addPartition(parser)
    _addReading(parser)


async def perfSimpleConsume(options: Namespace, streams: Streams) -> int:
    """Read a partition, and print how fast that was."""
    rows = _Rows(options, streams, CONSUME_COLUMNS, SIMPLE_DETAILED_COLUMNS, decimals=4)
    consumer = openConsumer(options, streams)
    topic, partition = options.topic, options.partition
    try:
        await requireTopic(consumer, topic, partition)
        time = LATEST if options.fromLatest else EARLIEST
        offset = singleOffset(await consumer.getOffsetsBefore(topic, partition, time, 1))
        await rows.header()
        total = rows.measurement()
        while total.count < options.maxMessages:
            fetched = await consumer.fetch(topic, partition, offset, options.fetchSize)
            count = size = 0
            for payload, _nextOffset in fetched.payloads():
                count += 1
                size += len(payload)
                if total.count + count == options.maxMessages:
                    break
            if fetched.nextOffset == offset:
                break
            offset = fetched.nextOffset
            if total.add(count, size):
                await rows.detail(total, options.fetchSize)
        await rows.summary(total, options.fetchSize)
    finally:
        await closeAll(consumer.close())
    return 0
