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
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Any

from twisted.python.failure import Failure

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    AT_BROKER,
    AT_BROKER_OR_CLUSTER,
    BATCHING,
    IN_CLUSTER,
    LONG_MAX,
    PARTITION,
    TOPIC,
    Argument,
    Command,
    flag,
    group,
    intRange,
    option,
    positive,
)
from pylogbroker.cli.output import asJsonLine
from pylogbroker.cli.session import GroupMember, openConsumer, requireTopic
from pylogbroker.cli.streams import Streams
from pylogbroker.client.offsetlookup import singleOffset
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import ConsumerTimeoutError, PylogbrokerError
from pylogbroker.net.deferreds import closeAll, closing, gatherAll
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


Rates = tuple[float, float, int, float]


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
        self._row = (self.startMs, 0, 0)

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

    def total(self) -> Rates:
        """MB, MB a second, messages, and messages a second since the start."""
        return self._rates(self.startMs, 0, 0)

    def sinceRow(self) -> Rates:
        """MB and messages since the start, with the rates since the last row."""
        rates = self._rates(*self._row)
        self._row = (self.lastMs, self.count, self.size)
        return rates

    def _rates(self, sinceMs: int, count: int, size: int) -> Rates:
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
    for value in values:
        if isinstance(value, float):
            texts.append(f"{value:.{decimals}f}")
            decimals = 4
        else:
            texts.append(str(value))
    return SEPARATOR.join(texts) + "\n"


def formatHeader(columns: Sequence[str], options: Namespace) -> str:
    """The names of the columns; empty with C{--hide-header} or C{--json}."""
    return "" if options.hideHeader or options.json else SEPARATOR.join(columns) + "\n"


@dataclass
class _Rows:
    """The output of one command."""

    options: Namespace
    streams: Streams
    columns: tuple[str, ...]
    decimals: int

    def measurement(self) -> Measurement:
        """A new one, which starts now."""
        return Measurement(self.streams.nowMs, self.options.reportingInterval)

    async def header(self) -> None:
        """Print the names of the columns."""
        await self.streams.show(formatHeader(self.columns, self.options))

    async def detail(self, measurement: Measurement, *values: object) -> None:
        """Print a row since the last one, with C{--show-detailed-stats}."""
        if self.options.showDetailedStats:
            await self._row([measurement.lastMs], *values, *measurement.sinceRow())

    async def summary(self, measurement: Measurement, *values: object) -> None:
        """Print the row of the whole, without C{--show-detailed-stats}."""
        if not self.options.showDetailedStats:
            times = [measurement.startMs, measurement.lastMs]
            await self._row(times, *values, *measurement.total())

    async def _row(self, times: Sequence[int], *values: object) -> None:
        options = self.options
        dates = [formatDate(options.dateFormat, each) for each in times]
        text = formatRow(self.columns, [*dates, *values], self.decimals, options.json)
        await self.streams.show(text)


async def perfProduce(options: Namespace, streams: Streams) -> int:
    """Send, and print how fast that was."""
    columns = PRODUCE_DETAILED_COLUMNS if options.showDetailedStats else PRODUCE_COLUMNS
    rows = _Rows(options, streams, columns, decimals=2)
    settings = _producerSettings(options)
    producers = [Producer(streams.reactor, settings) for _ in range(options.threads)]

    async def close() -> None:
        for producer in producers:
            try:
                await producer.close()
            except PylogbrokerError as error:
                streams.warn(str(error))

    try:
        await gatherAll(producer.start() for producer in producers)
        await rows.header()
        share, more = divmod(options.messages, options.threads)
        sending = _Sending(rows, rows.measurement(), _payloads(options))
        await gatherAll(
            sending.sendShare(index, producer, share + (index < more))
            for index, producer in enumerate(producers)
        )
        sizes = (options.messageSize, options.batchSize)
        await rows.summary(sending.total, options.compression, *sizes)
    finally:
        await closeAll(close())
    return 0


def _producerSettings(options: Namespace) -> dict[str, str]:
    if options.zookeeper is not None:
        cluster = {"zk.connect": options.zookeeper}
    elif _ADDRESS.fullmatch(options.broker):
        cluster = {"broker.list": f"0:{options.broker}"}
    else:
        raise CommandError(
            f"--broker {options.broker}: here it is a name or an IPv4 address, a colon and a port"
        )
    timeout = str(options.timeoutMs)
    return {
        **options.access.asProperties(),
        **cluster,
        "producer.type": "async" if options.isAsync else "sync",
        "compression.codec": str(options.compression),
        "batch.size": str(options.batchSize),
        "queue.size": str(max(10_000, 4 * options.batchSize)),
        "max.message.size": str(max(1_000_000, 2 * options.messageSize)),
        "confirm": "true" if options.confirm else "false",
        "connect.timeout.ms": timeout,
        "socket.timeout.ms": timeout,
        "close.timeout.ms": timeout,
    }


def _payloads(options: Namespace) -> Iterator[bytes]:
    """Messages without end."""
    payload, random = bytes(options.messageSize), Random(0)
    isVaried = options.varyMessageSize and payload
    while True:
        yield payload[: random.randint(1, len(payload))] if isVaried else payload


@dataclass
class _Sending:
    """What several producers share."""

    rows: _Rows
    total: Measurement
    payloads: Iterator[bytes]
    failures: list[Failure] = field(default_factory=list)

    async def sendShare(self, index: int, producer: Producer, count: int) -> None:
        """Send as many messages as a producer's share."""
        options = self.rows.options
        own = self.rows.measurement()
        while own.count < count:
            batch = list(islice(self.payloads, min(options.batchSize, count - own.count)))
            if options.isAsync:
                for payload in batch:
                    await producer.whenReady()
                    self._raiseFailure()
                    producer.send(options.topic, payload).addErrback(self.failures.append)
            else:
                await producer.send(options.topic, batch)
            size = sum(map(len, batch))
            if own.add(len(batch), size):
                sizes = (options.messageSize, options.batchSize)
                await self.rows.detail(own, options.compression, index, *sizes)
            self.total.add(len(batch), size)
        await producer.flush()
        self._raiseFailure()
        self.total.add(0, 0)
        if producer.counters.writtenCount != count:
            raise CommandError(
                f"{producer.counters.writtenCount:,} of {count:,} messages were sent: "
                f"{producer.counters}"
            )

    def _raiseFailure(self) -> None:
        if self.failures:
            error = self.failures[0].value
            raise error if isinstance(error, PylogbrokerError) else CommandError(repr(error))


async def perfConsume(options: Namespace, streams: Streams) -> int:
    """Read as a member of a group, and print how fast that was."""
    changes = {"autooffset.reset": "largest" if options.fromLatest else "smallest"}
    columns = GROUP_DETAILED_COLUMNS if options.showDetailedStats else CONSUME_COLUMNS
    rows = _Rows(options, streams, columns, decimals=4)
    topic = options.topic
    async with GroupMember(options, streams, "perf-consumer", POLL_MS, changes) as member:
        if topic not in await member.reader.topics():
            raise CommandError(f"there is no topic {topic}")
        found = await member.consumer.createMessageStreams({topic: options.threads})
        await rows.header()
        total = rows.measurement()
        await gatherAll(
            _readStream(rows, stream, index, total) for index, stream in enumerate(found[topic])
        )
        await rows.summary(total, options.fetchSize)
    return 0


async def _readStream(rows: _Rows, stream: MessageStream, index: int, total: Measurement) -> None:
    own, options = rows.measurement(), rows.options
    while total.count < options.maxMessages:
        try:
            size = len((await stream.__anext__()).value)
        except StopAsyncIteration:
            return
        except ConsumerTimeoutError:
            if rows.streams.nowMs() - total.lastMs >= options.idleMs:
                return
            continue
        count, countMax = 1, min(POLL_COUNT_MAX, options.maxMessages - total.count)
        while count < countMax and (message := stream.take()) is not None:
            size += len(message.value)
            count += 1
        total.add(count, size)
        if own.add(count, size):
            await rows.detail(own, index, options.fetchSize)


async def perfSimpleConsume(options: Namespace, streams: Streams) -> int:
    """Read a partition, and print how fast that was."""
    columns = SIMPLE_DETAILED_COLUMNS if options.showDetailedStats else CONSUME_COLUMNS
    rows = _Rows(options, streams, columns, decimals=4)
    topic, partition = options.topic, options.partition
    consumer = openConsumer(options, streams)
    async with closing(consumer):
        await requireTopic(consumer, topic, partition)
        time = LATEST if options.fromLatest else EARLIEST
        offset = singleOffset(await consumer.getOffsetsBefore(topic, partition, time, 1))
        await rows.header()
        total = rows.measurement()
        while total.count < options.maxMessages:
            fetched = await consumer.fetch(topic, partition, offset, options.fetchSize)
            left = options.maxMessages - total.count
            sizes = [len(payload) for payload, _nextOffset in islice(fetched.payloads(), left)]
            if fetched.nextOffset == offset:
                break
            offset = fetched.nextOffset
            if total.add(len(sizes), sum(sizes)):
                await rows.detail(total, options.fetchSize)
        await rows.summary(total, options.fetchSize)
    return 0


def dateFormat(default: str) -> Argument:
    """C{--date-format}."""
    return option("--date-format PATTERN", "as in Java (%(default)s)", default=default)


def _threads(what: str) -> Argument:
    text = f"{what} side by side (%(default)s)"
    return option("--threads N", text, intRange(1, THREAD_COUNT_MAX), 1)


REPORTING_OPTIONS = (
    flag(
        "--show-detailed-stats",
        "print a row after each --reporting-interval messages instead of one row",
    ),
    option("--reporting-interval N", "messages between two rows (%(default)s)", positive, 5_000),
    dateFormat(DATE_FORMAT),
    flag("--hide-header", "leave out the names of the columns"),
    flag("--json", "print each row as a JSON object in a line, with the columns as keys"),
)
"""Arguments of the rows."""

_READING = (
    TOPIC,
    option(
        "--messages N",
        "stop after N messages; by default, at the end",
        intRange(1),
        LONG_MAX,
        dest="maxMessages",
    ),
    option(
        "--fetch-size BYTES",
        "bytes of one fetch request (%(default)s)",
        intRange(1, FETCH_SIZE_MAX),
        1 << 20,
    ),
    flag("--from-latest", "start at the end of the log"),
    *REPORTING_OPTIONS,
)
COMMANDS = (
    Command(
        "perf produce",
        perfProduce,
        (
            *AT_BROKER_OR_CLUSTER,
            TOPIC,
            option("--messages N", "messages to send", intRange(1), required=True),
            option(
                "--message-size BYTES",
                "bytes of each message (%(default)s)",
                intRange(0, MESSAGE_SIZE_MAX),
                100,
            ),
            flag("--vary-message-size", "draw each size from 1 to --message-size at random"),
            flag(
                "--async",
                "gather batches in the background; by default, wait for each batch",
                dest="isAsync",
            ),
            _threads("producers"),
            flag("--confirm", "count only messages that brokers have confirmed"),
            *BATCHING,
            *REPORTING_OPTIONS,
        ),
        """\
examples:
  pylogbroker perf produce --zookeeper zk1:2181 --topic speed --messages 10000 --async
  pylogbroker perf produce --broker log1:9092 --topic speed --messages 1000 --batch-size 50 --json

MB are 2^20 bytes of payload. compression is 0 for none, 1 for gzip, 2 for snappy. --broker is an
address here, and no endpoint string; for TLS use --set
broker.endpoint=tls:{host}:{port}:trustRoots=DIR.
""",
    ),
    Command(
        "perf consume",
        perfConsume,
        (
            *IN_CLUSTER,
            *_READING,
            option(
                "--group NAME",
                "a group whose offsets stay; by default, a new one that is deleted at the end",
                group,
            ),
            _threads("streams"),
            option(
                "--idle-ms MS",
                "stop when no message has come for this long (%(default)s)",
                positive,
                IDLE_MS,
            ),
        ),
        """\
examples:
  pylogbroker perf consume --zookeeper zk1:2181 --topic clicks --idle-ms 500
  pylogbroker perf consume --zookeeper zk1:2181 --topic clicks --messages 10 --threads 2 --json

It reads from the oldest message on, in a new group that is deleted at the end. MB are 2^20 bytes of
payload. (0.7's detailed rows have a thread.id, but its header has not.)
""",
    ),
    Command(
        "perf simple-consume",
        perfSimpleConsume,
        (*AT_BROKER, PARTITION, *_READING),
        """\
examples:
  pylogbroker perf simple-consume --broker log1:9092 --topic clicks
  pylogbroker perf simple-consume --broker log1:9092 --topic clicks --partition 1 --hide-header

It ends at the end of the partition. MB are 2^20 bytes of payload.
""",
    ),
)
