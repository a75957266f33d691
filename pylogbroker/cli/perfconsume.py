"""
C{pylogbroker perf consume} and C{perf simple-consume}: how fast messages can be read, by the members' streams of a group and from one partition (0.7's
ConsumerPerformance and SimpleConsumerPerformance, spec-0.7 tools §10).

A group knows no end. As in 0.7, reading is over when nothing has come for a while, and that while is not counted: the end is when the last message came.
"""

from __future__ import annotations

import argparse
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    LONG_MAX,
    addBroker,
    addPartition,
    addRequiredZookeeper,
    addTopic,
    endpointOf,
    group,
    positive,
    whole,
)
from pylogbroker.cli.brokerchecks import closeAll, requireTopic
from pylogbroker.cli.groupmember import GroupMember
from pylogbroker.cli.perfrows import Measuring, addReporting, dateText, header, row
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import show
from pylogbroker.client.clusterreader import ClusterReader
from pylogbroker.client.offsetlookup import singleOffset
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import ConsumerTimeoutError
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.types import EARLIEST, LATEST

POLL_MS = 100
IDLE_MS = 5_000
THREAD_COUNT_MAX = 1_000
FETCH_SIZE_MAX = 1 << 30
TAKE_COUNT_MAX = 1_000
"""Messages that are counted together."""

_READ = ("fetch.size", "data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec")
SUMMARY_COLUMNS = ("start.time", "end.time", *_READ)
GROUP_DETAILED_COLUMNS = ("time", "thread.id", *_READ)
SIMPLE_DETAILED_COLUMNS = ("time", *_READ)

_GROUP_EXAMPLES = """\
examples:
  pylogbroker perf consume --zookeeper zk1:2181 --topic clicks --idle-ms 500
  pylogbroker perf consume --zookeeper zk1:2181 --topic clicks --messages 10 --threads 2 --json

It reads from the oldest message on, as a group of its own that is forgotten again. MB are 2^20 bytes of payload. (0.7's has no thread.id in the
header of the detailed rows, but in the rows.)
"""
_SIMPLE_EXAMPLES = """\
examples:
  pylogbroker perf simple-consume --broker log1:9092 --topic clicks
  pylogbroker perf simple-consume --broker log1:9092 --topic clicks --partition 1 --show-detailed-stats --reporting-interval 10

It ends at the end of the partition. MB are 2^20 bytes of payload.
"""


def _addReading(parser: argparse.ArgumentParser) -> None:
    addTopic(parser)
    parser.add_argument(
        "--messages",
        dest="countMax",
        metavar="N",
        type=whole(1),
        default=LONG_MAX,
        help="stop after so many (without, at the end)",
    )
    parser.add_argument(
        "--fetch-size",
        dest="fetchSize",
        metavar="BYTES",
        type=whole(1, FETCH_SIZE_MAX),
        default=1 << 20,
        help="bytes to ask for at a time (%(default)s)",
    )
    parser.add_argument(
        "--from-latest",
        dest="isFromLatest",
        action="store_true",
        help="begin behind the last message that is there",
    )
    addReporting(parser)


def addGroupArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _GROUP_EXAMPLES
    addRequiredZookeeper(parser)
    _addReading(parser)
    parser.add_argument(
        "--group",
        metavar="NAME",
        type=group,
        help="a group that stays, and goes on where it was; without, one that goes at the end",
    )
    parser.add_argument(
        "--threads",
        dest="threadCount",
        metavar="N",
        type=whole(1, THREAD_COUNT_MAX),
        default=1,
        help="streams that read beside one another (%(default)s)",
    )
    parser.add_argument(
        "--idle-ms",
        dest="idleMs",
        metavar="MS",
        type=positive,
        default=IDLE_MS,
        help="when nothing has come for so long, it is over (%(default)s)",
    )


def addSimpleArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _SIMPLE_EXAMPLES
    addBroker(parser)
    addPartition(parser)
    _addReading(parser)


class _Showing:
    """The rows of one command."""

    def __init__(
        self,
        reactor: Any,
        options: argparse.Namespace,
        streams: Streams,
        detailedColumns: tuple[str, ...],
    ) -> None:
        self._reactor = reactor
        self._options = options
        self._streams = streams
        self._detailedColumns = detailedColumns

    def nowMs(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._reactor.seconds() * 1000)

    def measuring(self) -> Measuring:
        """A new one."""
        return Measuring(self.nowMs, self._options.rowCount)

    async def header(self) -> None:
        """The names of the columns."""
        columns = self._detailedColumns if self._options.isDetailed else SUMMARY_COLUMNS
        await show(self._reactor, self._streams, header(columns, self._options))

    async def detail(self, measuring: Measuring, *more: int) -> None:
        """A row of what was since the last."""
        options = self._options
        if options.isDetailed:
            values = (
                dateText(options.dateFormat, measuring.lastMs),
                *more,
                options.fetchSize,
                *measuring.sinceRow(),
            )
            await show(
                self._reactor, self._streams, row(self._detailedColumns, values, 4, options.isJson)
            )

    async def summary(self, measuring: Measuring) -> None:
        """The row of all."""
        options = self._options
        if not options.isDetailed:
            times = (
                dateText(options.dateFormat, measuring.startMs),
                dateText(options.dateFormat, measuring.lastMs),
            )
            values = (*times, options.fetchSize, *measuring.total())
            await show(
                self._reactor, self._streams, row(SUMMARY_COLUMNS, values, 4, options.isJson)
            )


async def perfConsume(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Read as a group, and print how fast that was.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    changes = {"autooffset.reset": "largest" if options.isFromLatest else "smallest"}
    member = GroupMember(reactor, options, streams, "perf-consumer", POLL_MS, changes)
    showing = _Showing(reactor, options, streams, GROUP_DETAILED_COLUMNS)
    try:
        await member.connect()
        if options.topic not in await ClusterReader(member.zookeeper, streams.say).topics():
            raise CommandError(f"there is no topic {options.topic}")
        found = (await member.consumer.createMessageStreams({options.topic: options.threadCount}))[
            options.topic
        ]
        await showing.header()
        total = showing.measuring()
        await gatherAll(
            _read(showing, stream, index, total, options) for index, stream in enumerate(found)
        )
        await showing.summary(total)
    finally:
        await closeAll(Deferred.fromCoroutine(member.leave()))
    return 0


async def _read(
    showing: _Showing,
    stream: MessageStream,
    index: int,
    total: Measuring,
    options: argparse.Namespace,
) -> None:
    """One stream's share, until enough was read by all together, or nothing comes any more."""
    own = showing.measuring()
    while total.count < options.countMax:
        try:
            size = len((await stream.__anext__()).value)
        except StopAsyncIteration:
            return
        except ConsumerTimeoutError:
            if showing.nowMs() - total.lastMs >= options.idleMs:
                return
            continue
        count, countMax = 1, min(TAKE_COUNT_MAX, options.countMax - total.count)
        while count < countMax and (message := stream.take()) is not None:
            size += len(message.value)
            count += 1
        total.add(count, size)
        if own.add(count, size):
            await showing.detail(own, index)


async def perfSimpleConsume(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Read a partition, and print how fast that was.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    showing = _Showing(reactor, options, streams, SIMPLE_DETAILED_COLUMNS)
    consumer = SimpleConsumer(
        reactor,
        endpointOf(options),
        timeoutMs=options.timeoutMs,
        connectTimeoutMs=options.timeoutMs,
    )
    try:
        await requireTopic(consumer, options.topic, options.partition)
        offset = singleOffset(
            await consumer.getOffsetsBefore(
                options.topic, options.partition, LATEST if options.isFromLatest else EARLIEST, 1
            )
        )
        await showing.header()
        total = showing.measuring()
        while total.count < options.countMax:
            fetched = await consumer.fetch(
                options.topic, options.partition, offset, options.fetchSize
            )
            count = size = 0
            for payload, _nextOffset in fetched.payloads():
                count += 1
                size += len(payload)
                if total.count + count == options.countMax:
                    break
            if fetched.nextOffset == offset:
                break
            offset = fetched.nextOffset
            if total.add(count, size):
                await showing.detail(total)
        await showing.summary(total)
    finally:
        await closeAll(consumer.close())
    return 0
