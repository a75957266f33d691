"""
C{pylogbroker consume}: messages on standard output, one a line, and everything else on standard error.

They are those of one partition of one broker; or, with C{--zookeeper}, of a whole cluster (L{pylogbroker.cli.groupconsume}).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    LONG_MAX,
    addBroker,
    addPartition,
    addTopic,
    endpointOf,
    group,
    rejectOptions,
    topicsThatDoNot,
    topicsThatMatch,
    whole,
)
from pylogbroker.cli.brokerchecks import announced, closeAll, hasTopic, missingTopic
from pylogbroker.cli.groupconsume import consumeInGroup
from pylogbroker.cli.messageformats import MESSAGE_FORMATS, addMessageFormat
from pylogbroker.cli.streams import Streams, write
from pylogbroker.client.offsetlookup import singleOffset
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import FormatError, InvalidMessageSizeError, OffsetOutOfRangeError
from pylogbroker.protocol.brokercalls import CODE_SIZE, RESPONSE_SIZE_MAX
from pylogbroker.types import EARLIEST, LATEST

T = TypeVar("T")

POLL_SECONDS = 0.25
WRITE_COUNT = 1000
"""Messages that are made into one piece of output."""

_EXAMPLES = """\
examples:
  pylogbroker consume --topic dpkg --from-beginning
  pylogbroker consume --topic dpkg --from-beginning --max-messages 10
  pylogbroker consume --broker log1:9092 --topic syslog --follow
  pylogbroker consume --zookeeper zk1:2181 --topic clicks --group counters --follow
  pylogbroker consume --topic dpkg --from-beginning --max-messages 2 --json
  pylogbroker consume --zookeeper zk1:2181 --whitelist log.* --from-beginning
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    addBroker(parser, hasCluster=True)
    which = parser.add_mutually_exclusive_group(required=True)
    addTopic(which, isRequired=False)
    which.add_argument(
        "--whitelist", metavar="PATTERN", type=topicsThatMatch,
        help="with --zookeeper: the topics whose whole names match a regular expression, those that come later too; a comma means or",
    )  # fmt: skip
    which.add_argument(
        "--blacklist",
        metavar="PATTERN",
        type=topicsThatDoNot,
        help="with --zookeeper: the topics whose names do not",
    )
    addPartition(parser, None, "; not with --zookeeper")
    parser.add_argument(
        "--group", metavar="NAME", type=group,
        help="with --zookeeper: the consumer group, whose members share the messages, and which goes on where it was; without, one that goes at the end",
    )  # fmt: skip
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from-beginning", dest="isFromBeginning", action="store_true",
        help="start with the oldest message that there is; a group that has been there goes on where it was",
    )  # fmt: skip
    start.add_argument(
        "--offset",
        metavar="N",
        type=whole(0),
        help="start at an offset; without either, at the end",
    )
    parser.add_argument(
        "--max-messages",
        dest="countMax",
        metavar="N",
        type=whole(0),
        default=LONG_MAX,
        help="stop after so many messages",
    )
    parser.add_argument(
        "--follow",
        dest="isFollowing",
        action="store_true",
        help="do not stop at the end; wait for new messages",
    )
    addMessageFormat(parser)
    parser.add_argument(
        "--fetch-size", dest="fetchSize", metavar="BYTES", type=whole(1, RESPONSE_SIZE_MAX - CODE_SIZE), default=1 << 20,
        help="bytes to ask for at a time; no message can be read that is larger (%(default)s)",
    )  # fmt: skip


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Judge what belongs together; what would print nothing is a mistake."""
    if options.zookeeper is None:
        rejectOptions(
            parser,
            options,
            {"group": "--group", "whitelist": "--whitelist", "blacklist": "--blacklist"},
            "needs --zookeeper",
        )
        options.partition = options.partition or 0
    else:
        words = {"partition": "--partition", "offset": "--offset"}
        rejectOptions(
            parser,
            options,
            words,
            "not with --zookeeper: a group shares all partitions, and knows where it was",
        )
    if (
        not (options.isFromBeginning or options.isFollowing or options.group)
        and options.offset is None
    ):
        other = "or --offset N" if options.zookeeper is None else "or the --group that was there"
        parser.error(
            f"behind the last message there is nothing to read: give --from-beginning {other}, or --follow to wait for new messages"
        )


async def consume(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print messages until the end, or for ever.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    if options.zookeeper is not None:
        return await consumeInGroup(reactor, options, streams)
    consumer = SimpleConsumer(
        reactor,
        endpointOf(options),
        timeoutMs=options.timeoutMs,
        connectTimeoutMs=options.timeoutMs,
    )
    reading = _Reading(reactor, consumer, options, streams)
    try:
        await reading.run()
    except BrokenPipeError:
        pass
    finally:
        await closeAll(consumer.close())
        if reading.isUnderWay:
            streams.say(f"read {reading.count:,} messages; the next offset is {reading.offset}")
    return 0


class _Reading:
    """
    The way through a partition.

    @ivar count: messages printed.
    @ivar offset: where to go on; L{None} until we know where to begin.
    @ivar isUnderWay: whether the broker has let us read from there.
    """

    def __init__(
        self, reactor: Any, consumer: SimpleConsumer, options: argparse.Namespace, streams: Streams
    ) -> None:
        self._reactor = reactor
        self._consumer = consumer
        self._options = options
        self._streams = streams
        self.count = 0
        self.offset: int | None = options.offset
        self.isUnderWay = False

    async def run(self) -> None:
        """From the start to the end."""
        options = self._options
        if not await self._announced(
            Deferred.fromCoroutine(hasTopic(self._consumer, options.topic, options.partition))
        ):
            missing = missingTopic(options.topic)
            if not options.isFollowing:
                raise CommandError(missing)
            self._streams.say(f"pylogbroker: {missing}; waiting for the first message")
        if self.offset is None:
            self.offset = await self._bound(EARLIEST if options.isFromBeginning else LATEST)
        while self.count < options.countMax:
            fetched = await self._announced(
                self._consumer.fetch(
                    options.topic, options.partition, self.offset, options.fetchSize
                )
            )
            try:
                count = self.count
                self.isUnderWay |= fetched.error is None
                await self._print(fetched.payloads())
                if self.count == count:
                    # What holds no message, an empty compressed set, is stepped over.
                    self.offset, offset = fetched.nextOffset, self.offset
                    if self.offset == offset:
                        if not options.isFollowing:
                            return
                        await deferLater(self._reactor, POLL_SECONDS)
            except OffsetOutOfRangeError as error:
                low, high = await self._bound(EARLIEST), await self._bound(LATEST)
                raise CommandError(
                    f"there is nothing at offset {self.offset}; {options.topic}-{options.partition} holds {low} to {high}"
                ) from error
            except InvalidMessageSizeError as error:
                raise CommandError(
                    f"at offset {self.offset} stands a message that is larger than {options.fetchSize} bytes (then give a larger --fetch-size), "
                    f"or none begins there: {error.reason}"
                ) from error
            except FormatError as error:
                raise CommandError(
                    f"at offset {self.offset} stands no valid message: {error.reason}"
                ) from error

    async def _announced(self, waiting: Deferred[T]) -> T:
        options = self._options
        return await announced(
            self._reactor,
            self._streams.say,
            waiting,
            f"the broker at {options.broker}",
            options.timeoutMs,
        )

    async def _bound(self, time: int) -> int:
        return singleOffset(
            await self._consumer.getOffsetsBefore(
                self._options.topic, self._options.partition, time, 1
            )
        )

    async def _print(self, payloads: Iterator[tuple[bytes, int]]) -> None:
        """Write messages; C{count} and C{offset} tell how far it came, also when it breaks off, by Ctrl-C or at a bad message."""
        pieces: list[bytes] = []
        offset = self.offset
        countMax = min(WRITE_COUNT, self._options.countMax - self.count)
        shape, topic, partition = (
            MESSAGE_FORMATS[self._options.format],
            self._options.topic,
            self._options.partition,
        )
        try:
            for payload, offset in payloads:
                pieces.append(shape(payload, topic, partition, offset))
                if len(pieces) >= countMax:
                    full, pieces = pieces, []
                    await self._write(full, offset)
                    countMax = min(WRITE_COUNT, self._options.countMax - self.count)
                    if not countMax:
                        return
        finally:
            await self._write(pieces, offset)

    async def _write(self, pieces: list[bytes], offset: int | None) -> None:
        if pieces:
            await write(self._reactor, self._streams.output, b"\n".join(pieces) + b"\n")
            self.count += len(pieces)
            self.offset = offset
