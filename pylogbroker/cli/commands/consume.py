"""
C{consume}: prints messages on standard output, one a line: those of one partition of one broker,
or, with C{--zookeeper}, those of a cluster, as a member of a consumer group.

What must be true of a member: a committed message was printed. We print many messages at a time,
while the consumer commits by the clock, and when a partition moves to another member. So we poll
messages, and acknowledge them when they are printed. Messages that were polled and not printed
(the output is closed, the process is killed, the partition moves) are printed by the next owner.

A member ends when it has received nothing for a moment and its positions are at the ends that the
brokers report. The messages of other members do not matter.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addBroker,
    addMaxMessages,
    addPartition,
    addTopic,
    blacklistPattern,
    flag,
    group,
    intRange,
    option,
    positive,
    rejectOptions,
    whitelistPattern,
)
from pylogbroker.cli.output import MESSAGE_FORMATS, addMessageFormat
from pylogbroker.cli.session import (
    GroupMember,
    announceWait,
    closeAll,
    hasTopic,
    missingTopicText,
    openConsumer,
)
from pylogbroker.cli.streams import Streams
from pylogbroker.client.offsetlookup import OffsetLookup, singleOffset
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import ConsumedMessage, MessageStream
from pylogbroker.errors import (
    ConsumerTimeoutError,
    FormatError,
    InvalidMessageSizeError,
    OffsetOutOfRangeError,
    PylogbrokerError,
)
from pylogbroker.protocol.brokercalls import CODE_SIZE, RESPONSE_SIZE_MAX
from pylogbroker.types import EARLIEST, LATEST

T = TypeVar("T")

POLL_SECONDS = 0.25
COMMIT_MS = 1_000
BACKOFF_MS = 500
"""Time between attempts to own partitions that other members are about to release."""
WRITE_COUNT = 1_000
"""Messages in one write to standard output."""

_EXAMPLES = """\
examples:
  pylogbroker consume --topic dpkg --from-beginning
  pylogbroker consume --topic dpkg --from-beginning --max-messages 10
  pylogbroker consume --broker log1:9092 --topic syslog --follow
  pylogbroker consume --zookeeper zk1:2181 --topic clicks --group counters --follow
  pylogbroker consume --topic dpkg --from-beginning --max-messages 2 --json
  pylogbroker consume --zookeeper zk1:2181 --whitelist log.* --from-beginning

A member of a group has one stream. Start more members of a --group to share its messages; each
needs at least one partition of its own.
"""


def addArguments(parser: ArgumentParser) -> None:
    """Arguments of C{consume}."""
    parser.epilog = _EXAMPLES
    addBroker(parser, hasCluster=True)
    which = parser.add_mutually_exclusive_group(required=True)
    addTopic(which, isRequired=False)
    option(
        which,
        "--whitelist PATTERN",
        "with --zookeeper: all topics, future ones too, whose whole names match a regular "
        "expression; a comma means or",
        whitelistPattern,
    )
    option(
        which,
        "--blacklist PATTERN",
        "with --zookeeper: all topics whose names do not match",
        blacklistPattern,
    )
    addPartition(parser, None, "; not with --zookeeper")
    option(
        parser,
        "--group NAME",
        "with --zookeeper: the consumer group. Its members share the messages, and continue "
        "at its committed offsets. By default, a new group that is deleted at the end",
        group,
    )
    start = parser.add_mutually_exclusive_group()
    flag(
        start,
        "--from-beginning",
        "start with the oldest message, unless the group has committed offsets",
    )
    option(start, "--offset N", "start at an offset; by default, at the end", intRange(0))
    addMaxMessages(parser)
    flag(parser, "--follow", "wait for new messages at the end")
    option(
        parser,
        "--consumer-timeout-ms MS",
        "with --follow: end when no message has come for this long; by default, never",
        positive,
    )
    option(
        parser,
        "--autocommit-interval-ms MS",
        f"with --zookeeper: time between commits of offsets ({COMMIT_MS})",
        positive,
    )
    flag(
        parser,
        "--skip-message-on-error",
        "with --zookeeper: name a partition that cannot be read, and continue with the others, as "
        "--follow does; the exit code is 1",
    )
    addMessageFormat(parser)
    option(
        parser,
        "--fetch-size BYTES",
        "bytes of one fetch request; a larger message cannot be read (%(default)s)",
        intRange(1, RESPONSE_SIZE_MAX - CODE_SIZE),
        1 << 20,
    )


def prepare(options: Namespace, streams: Streams) -> None:
    """Check the options that depend on others. Options that would print nothing are an error."""
    if options.zookeeper is None:
        words = {"group": "--group", "whitelist": "--whitelist", "blacklist": "--blacklist"}
        words |= {
            "autocommitIntervalMs": "--autocommit-interval-ms",
            "skipMessageOnError": "--skip-message-on-error",
        }
        rejectOptions(options, words, "needs --zookeeper")
        options.partition = options.partition or 0
    else:
        words = {"partition": "--partition", "offset": "--offset"}
        rejectOptions(
            options,
            words,
            "not with --zookeeper: a group shares all partitions, and knows where it was",
        )
    if not (options.fromBeginning or options.follow or options.group) and options.offset is None:
        other = "or --offset N" if options.zookeeper is None else "or the --group that was there"
        options.parser.error(
            "behind the last message there is nothing to read: "
            f"give --from-beginning {other}, or --follow to wait for new messages"
        )


async def consume(options: Namespace, streams: Streams) -> int:
    """Print messages until the end, or for ever."""
    if options.zookeeper is not None:
        return await _consumeInGroup(options, streams)
    consumer = openConsumer(options, streams)
    reading = _PartitionReading(consumer, options, streams)
    try:
        await reading.run()
    except BrokenPipeError:
        pass
    finally:
        await closeAll(consumer.close())
        if reading.isStarted:
            streams.say(f"read {reading.count:,} messages; the next offset is {reading.offset}")
    return 0


class _Reading:
    """
    What both ways of reading share.

    @ivar count: messages printed.
    @ivar isStarted: whether messages could be read.
    """

    def __init__(self, options: Namespace, streams: Streams) -> None:
        self._options = options
        self._streams = streams
        self.count = 0
        self.isStarted = False
        self._lastMs = self._nowMs()

    def _nowMs(self) -> int:
        return int(self._streams.reactor.seconds() * 1000)

    def _isIdle(self) -> bool:
        idleMs = self._options.consumerTimeoutMs
        return idleMs is not None and self._nowMs() - self._lastMs >= idleMs

    def _missing(self, text: str) -> None:
        if not self._options.follow:
            raise CommandError(text)
        self._streams.warn(f"{text}; waiting for the first message")

    async def _writeLines(self, lines: list[bytes]) -> None:
        await self._streams.write(b"\n".join(lines) + b"\n")
        self.count += len(lines)
        self._lastMs = self._nowMs()


class _PartitionReading(_Reading):
    """
    Reads a partition of a broker.

    @ivar offset: the next offset; L{None} until it is known.
    """

    def __init__(self, consumer: SimpleConsumer, options: Namespace, streams: Streams) -> None:
        super().__init__(options, streams)
        self._consumer = consumer
        self.offset: int | None = options.offset

    async def run(self) -> None:
        """Read from the start to the end."""
        options = self._options
        if not await self._announced(
            Deferred.fromCoroutine(hasTopic(self._consumer, options.topic, options.partition))
        ):
            self._missing(missingTopicText(options.topic))
        if self.offset is None:
            self.offset = await self._bound(EARLIEST if options.fromBeginning else LATEST)
        while self.count < options.maxMessages:
            fetched = await self._announced(
                self._consumer.fetch(
                    options.topic, options.partition, self.offset, options.fetchSize
                )
            )
            try:
                count = self.count
                self.isStarted |= fetched.error is None
                await self._print(fetched.payloads())
                if self.count == count:
                    # A set without messages, such as an empty compressed one, is stepped over.
                    self.offset, offset = fetched.nextOffset, self.offset
                    if self.offset == offset:
                        if not options.follow or self._isIdle():
                            return
                        await deferLater(self._streams.reactor, POLL_SECONDS)
            except OffsetOutOfRangeError as error:
                low, high = await self._bound(EARLIEST), await self._bound(LATEST)
                raise CommandError(
                    f"there is nothing at offset {self.offset}; "
                    f"{options.topic}-{options.partition} holds {low} to {high}"
                ) from error
            except InvalidMessageSizeError as error:
                raise CommandError(
                    f"the message at offset {self.offset} is larger than {options.fetchSize} bytes "
                    f"(then give a larger --fetch-size), or none begins there: {error.reason}"
                ) from error
            except FormatError as error:
                raise CommandError(
                    f"the message at offset {self.offset} is not valid: {error.reason}"
                ) from error

    async def _announced(self, waiting: Deferred[T]) -> T:
        options = self._options
        what = f"the broker at {options.broker}"
        return await announceWait(self._streams, waiting, what, options.timeoutMs)

    async def _bound(self, time: int) -> int:
        return singleOffset(
            await self._consumer.getOffsetsBefore(
                self._options.topic, self._options.partition, time, 1
            )
        )

    async def _print(self, payloads: Iterator[tuple[bytes, int]]) -> None:
        """
        Write messages. C{count} and C{offset} are right also when Ctrl-C or a bad message ends it.
        """
        lines: list[bytes] = []
        offset = self.offset
        countMax = min(WRITE_COUNT, self._options.maxMessages - self.count)
        encode = MESSAGE_FORMATS[self._options.format]
        topic, partition = self._options.topic, self._options.partition
        try:
            for payload, offset in payloads:
                lines.append(encode(payload, topic, partition, offset))
                if len(lines) >= countMax:
                    full, lines = lines, []
                    await self._write(full, offset)
                    countMax = min(WRITE_COUNT, self._options.maxMessages - self.count)
                    if not countMax:
                        return
        finally:
            await self._write(lines, offset)

    async def _write(self, lines: list[bytes], offset: int | None) -> None:
        if lines:
            await self._writeLines(lines)
            self.offset = offset


async def _consumeInGroup(options: Namespace, streams: Streams) -> int:
    changes = {
        "rebalance.backoff.ms": str(BACKOFF_MS),
        "autocommit.interval.ms": str(options.autocommitIntervalMs or COMMIT_MS),
        "autooffset.reset": "smallest" if options.fromBeginning else "largest",
    }
    pollMs = int(POLL_SECONDS * 1000)
    member = GroupMember(options, streams, "console-consumer", pollMs, changes)
    ends = OffsetLookup(
        streams.reactor,
        member.reader.broker,
        options.timeoutMs,
        template=options.access.brokerEndpoint,
    )
    reading = _GroupReading(member, ends, options, streams)

    async def leave() -> None:
        await ends.close()
        await member.leave()

    try:
        await member.connect()
        await reading.run()
    except BrokenPipeError:
        pass
    finally:
        await closeAll(Deferred.fromCoroutine(leave()))
        if reading.isStarted:
            streams.say(f"read {reading.count:,} messages as {member.consumer.consumerId}")
    return 1 if reading.errors else 0


class _GroupReading(_Reading):
    """
    Reads the partitions of a member.

    @ivar errors: of partitions that could not be read on.
    """

    def __init__(
        self,
        member: GroupMember,
        ends: OffsetLookup,
        options: Namespace,
        streams: Streams,
    ) -> None:
        super().__init__(options, streams)
        self._reader = member.reader
        self._consumer: ConsumerConnector = member.consumer
        self._ends = ends
        self.errors: set[str] = set()

    async def _requireTopics(self) -> None:
        """A member would silently wait for a topic that does not exist."""
        options = self._options
        names = await self._reader.topics()
        pattern = options.whitelist or options.blacklist
        if pattern is None:
            isThere, wanted = options.topic in names, f"no topic {options.topic}"
        else:
            isThere, wanted = bool(pattern.streamCounts(names)), "no topic that matches"
        if not isThere:
            self._missing(f"there is {wanted}; there are: {', '.join(names) or 'none'}")

    async def _join(self) -> MessageStream:
        options, consumer = self._options, self._consumer
        pattern = options.whitelist or options.blacklist
        if pattern is not None:
            [stream] = await consumer.createMessageStreamsByFilter(pattern)
        else:
            [stream] = (await consumer.createMessageStreams({options.topic: 1}))[options.topic]
        return stream

    async def run(self) -> None:
        """Read from the start to the end."""
        options = self._options
        await self._requireTopics()
        stream = await self._join()
        self.isStarted = True
        self._lastMs = self._nowMs()
        while self.count < options.maxMessages:
            batch = stream.poll(min(WRITE_COUNT, options.maxMessages - self.count))
            if batch.messages:
                await self._print(batch.messages)
                stream.acknowledge(batch)
            if batch.error is not None:
                self._failed(batch.error)
            elif not batch.messages:
                try:
                    await stream.wait()
                except ConsumerTimeoutError:
                    if self._isIdle() if options.follow else await self._isAtEnd():
                        return

    def _failed(self, error: Exception) -> None:
        """A partition cannot be read. Following and skipping commands continue with the others."""
        if not isinstance(error, PylogbrokerError):
            raise error
        if not (self._options.follow or self._options.skipMessageOnError):
            raise CommandError(str(error)) from error
        self.errors.add(str(error))
        self._streams.warn(str(error))

    async def _print(self, messages: Sequence[ConsumedMessage]) -> None:
        encode = MESSAGE_FORMATS[self._options.format]
        await self._writeLines(
            [encode(each.value, each.topic, each.partition, each.nextOffset) for each in messages]
        )

    async def _isAtEnd(self) -> bool:
        """
        Whether all of this member's messages were read.

        @raise CommandError: nothing has come within the time-out, and that is not the end.
        """
        reason = await self._whyNotAtEnd()
        idleMs = self._nowMs() - self._lastMs
        if reason and idleMs > self._options.timeoutMs:
            raise CommandError(
                f"nothing has come for {idleMs:,} ms, and that is not the end: {reason}"
            )
        return not reason

    async def _whyNotAtEnd(self) -> str:
        """A partition that is not at its end; those that cannot be read do not count."""
        consumer = self._consumer
        if not consumer.isOwning:
            return "this member has not got its share of the partitions"
        positions, reasons = consumer.positions, []
        try:
            for each in consumer.owned:
                end = await self._ends.end(each.topic, each.partition)
                position = positions.get(each)
                if position is None or position < end:
                    where = "no offset yet" if position is None else position
                    reasons.append(f"{each} is at {where}, and ends at {end}")
        except PylogbrokerError as error:
            return str(error)
        return reasons[0] if len(reasons) > len(self.errors) else ""
