"""
C{pylogbroker perf produce}: how fast messages can be published (0.7's ProducerPerformance, spec-0.7 tools §10).

Unlike 0.7's it sends exactly as many messages as it was told, and what it counts as sent has been written to the brokers' connections; with C{--confirm}
they have proven that they took it.
"""

from __future__ import annotations

import argparse
import re
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import addBatching, addBroker, addTopic, whole
from pylogbroker.cli.brokerchecks import closeAll
from pylogbroker.cli.perfrows import Measuring, addReporting, dateText, header, row
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import show
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.producer.producer import Producer

THREAD_COUNT_MAX = 1_000
MESSAGE_SIZE_MAX = 1 << 30

_ADDRESS = re.compile("[^:]+:[0-9]+")
"""What a producer's broker.list can carry."""

_SENT = ("total.data.sent.in.MB", "MB.sec", "total.data.sent.in.nMsg", "nMsg.sec")
SUMMARY_COLUMNS = ("start.time", "end.time", "compression", "message.size", "batch.size", *_SENT)
DETAILED_COLUMNS = ("time", "compression", "thread.id", "message.size", "batch.size", *_SENT)

_EXAMPLES = """\
examples:
  pylogbroker perf produce --zookeeper zk1:2181 --topic speed --messages 10000 --async
  pylogbroker perf produce --broker log1:9092 --topic speed --messages 1000 --message-size 200 --batch-size 50 --compression gzip --json

MB are 2^20 bytes of payload. compression is 0 for none, 1 for gzip, 2 for snappy.
--broker is an address here, and no endpoint string; for TLS there is --set broker.endpoint=tls:{host}:{port}:trustRoots=DIR.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    addBroker(parser, hasCluster=True)
    addTopic(parser)
    parser.add_argument(
        "--messages",
        dest="count",
        metavar="N",
        type=whole(1),
        required=True,
        help="how many to send",
    )
    parser.add_argument(
        "--message-size",
        dest="messageSize",
        metavar="BYTES",
        type=whole(0, MESSAGE_SIZE_MAX),
        default=100,
        help="bytes of each message (%(default)s)",
    )
    parser.add_argument(
        "--vary-message-size",
        dest="isVaried",
        action="store_true",
        help="each message has a size by chance, from 1 to --message-size",
    )
    parser.add_argument(
        "--async",
        dest="isAsync",
        action="store_true",
        help="gather messages into batches in the background; without, wait for each batch",
    )
    parser.add_argument(
        "--threads",
        dest="threadCount",
        metavar="N",
        type=whole(1, THREAD_COUNT_MAX),
        default=1,
        help="producers beside one another (%(default)s)",
    )
    parser.add_argument(
        "--confirm",
        dest="isConfirming",
        action="store_true",
        help="count only what the brokers have proven to have taken",
    )
    addBatching(parser)
    addReporting(parser)


async def perfProduce(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Send, and print how fast that was.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    pushing = _Pushing(reactor, options, streams)
    try:
        await pushing.run()
    finally:
        await closeAll(Deferred.fromCoroutine(pushing.close()))
    return 0


class _Pushing:
    """Several producers that send alike."""

    def __init__(self, reactor: Any, options: argparse.Namespace, streams: Streams) -> None:
        self._reactor = reactor
        self._options = options
        self._streams = streams
        self._random = Random(0)
        self._payload = bytes(options.messageSize)
        self._producers = [Producer(reactor, self._settings()) for _ in range(options.threadCount)]
        self._error: BaseException | None = None

    def _settings(self) -> dict[str, str]:
        options = self._options
        if options.zookeeper is None and not _ADDRESS.fullmatch(options.broker):
            raise CommandError(
                f"--broker {options.broker}: here it is a name or an IPv4 address, a colon and a port"
            )
        place = (
            {"broker.list": f"0:{options.broker}"}
            if options.zookeeper is None
            else {"zk.connect": options.zookeeper}
        )
        return {
            **options.access.asProperties(),
            **place,
            "producer.type": "async" if options.isAsync else "sync",
            "compression.codec": str(options.codec),
            "batch.size": str(options.batchCount),
            "queue.size": str(max(10_000, 4 * options.batchCount)),
            "max.message.size": str(max(1_000_000, 2 * options.messageSize)),
            "confirm": "true" if options.isConfirming else "false",
            "connect.timeout.ms": str(options.timeoutMs),
            "socket.timeout.ms": str(options.timeoutMs),
            "close.timeout.ms": str(options.timeoutMs),
        }

    def _nowMs(self) -> int:
        return int(self._reactor.seconds() * 1000)

    async def run(self) -> None:
        """From the first message to the last."""
        options = self._options
        await gatherAll(self._start(producer) for producer in self._producers)
        await show(
            self._reactor,
            self._streams,
            header(DETAILED_COLUMNS if options.isDetailed else SUMMARY_COLUMNS, options),
        )
        each, more = divmod(options.count, options.threadCount)
        whole = Measuring(self._nowMs, options.rowCount)
        await gatherAll(
            self._push(index, producer, each + (index < more), whole)
            for index, producer in enumerate(self._producers)
        )
        if not options.isDetailed:
            times = (
                dateText(options.dateFormat, whole.startMs),
                dateText(options.dateFormat, whole.lastMs),
            )
            values = (
                *times,
                options.codec,
                options.messageSize,
                options.batchCount,
                *whole.total(),
            )
            await show(
                self._reactor, self._streams, row(SUMMARY_COLUMNS, values, 2, options.isJson)
            )

    @staticmethod
    async def _start(producer: Producer) -> None:
        await producer.start()

    async def _push(self, index: int, producer: Producer, count: int, whole: Measuring) -> None:
        """One producer's share."""
        options = self._options
        own = Measuring(self._nowMs, options.rowCount)
        send = self._sendAsync if options.isAsync else self._sendSync
        while own.count < count:
            payloads = [self._next() for _ in range(min(options.batchCount, count - own.count))]
            await send(producer, payloads)
            size = sum(map(len, payloads))
            if own.add(len(payloads), size) and options.isDetailed:
                await self._showDetail(index, own)
            whole.add(len(payloads), size)
        await producer.flush()
        self._check()
        whole.add(0, 0)
        if producer.counters.writtenCount != count:
            raise CommandError(
                f"{producer.counters.writtenCount:,} of {count:,} messages were sent: {producer.counters}"
            )

    async def _showDetail(self, index: int, own: Measuring) -> None:
        options = self._options
        time = dateText(options.dateFormat, own.lastMs)
        values = (
            time,
            options.codec,
            index,
            options.messageSize,
            options.batchCount,
            *own.sinceRow(),
        )
        await show(self._reactor, self._streams, row(DETAILED_COLUMNS, values, 2, options.isJson))

    def _next(self) -> bytes:
        return (
            self._payload[: self._random.randint(1, len(self._payload))]
            if self._options.isVaried and self._payload
            else self._payload
        )

    async def _sendSync(self, producer: Producer, payloads: list[bytes]) -> None:
        await producer.send(self._options.topic, payloads)

    async def _sendAsync(self, producer: Producer, payloads: list[bytes]) -> None:
        for payload in payloads:
            await producer.whenReady()
            self._check()
            producer.send(self._options.topic, payload).addErrback(self._failed)

    def _failed(self, failure: Any) -> None:
        if self._error is None:
            self._error = failure.value

    def _check(self) -> None:
        if self._error is not None:
            raise (
                self._error
                if isinstance(self._error, PylogbrokerError)
                else CommandError(repr(self._error))
            )

    async def close(self) -> None:
        """Let go of the connections. What was not sent has been told."""
        for producer in self._producers:
            try:
                await producer.close()
            except PylogbrokerError as error:
                self._streams.say(f"pylogbroker: {error}")
