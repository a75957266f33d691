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

import math
from argparse import Namespace
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from twisted.internet.task import deferLater

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    AT_ANY,
    INT_MAX,
    MAX_MESSAGES,
    Command,
    blacklistPattern,
    either,
    flag,
    group,
    intRange,
    isCurrent,
    option,
    pointInTime,
    positive,
    rejectOptions,
    topic,
    whitelistPattern,
)
from pylogbroker.cli.kafka import records
from pylogbroker.cli.kafka.records import FIELDS, ISOLATION_LEVELS, fields
from pylogbroker.cli.output import FORMAT_OPTIONS, MESSAGE_FORMATS
from pylogbroker.cli.session import (
    GroupMember,
    announceWait,
    missingTopic,
    openConsumer,
)
from pylogbroker.cli.streams import Streams
from pylogbroker.client.offsetlookup import singleOffset
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import (
    ConsumerTimeoutError,
    FormatError,
    InvalidMessageSizeError,
    OffsetOutOfRangeError,
    PylogbrokerError,
)
from pylogbroker.net.deferreds import closing
from pylogbroker.protocol.brokercalls import CODE_SIZE, RESPONSE_SIZE_MAX
from pylogbroker.types import EARLIEST, LATEST, formatCount

T = TypeVar("T")

POLL_SECONDS = 0.25
COMMIT_MS = 1_000
BACKOFF_MS = 500
"""Time between attempts to own partitions that other members are about to release."""
WRITE_COUNT = 1_000
"""Messages in one write to standard output."""


def prepare(options: Namespace, streams: Streams) -> None:
    """Check the options that depend on others. Options that would print nothing are an error."""
    if not isCurrent(options):
        reason = "needs --bootstrap-server: messages of Kafka 0.7 have none"
        rejectOptions(options, reason, "--from-time", "--print")
        reason = "needs --bootstrap-server: Kafka 0.7 has no transactions"
        rejectOptions(options, reason, "--isolation-level")
    if isCurrent(options):
        rejectOptions(options, "needs --zookeeper", "--skip-message-on-error")
        if options.group is None:
            rejectOptions(options, "needs --group", "--autocommit-interval-ms")
        else:
            reason = "not with --group: a group shares all partitions, and knows where it was"
            rejectOptions(options, reason, "--partition", "--offset")
        if options.partition is not None and options.partition < 0:
            options.parser.error("--partition: with --bootstrap-server it is 0 or more")
    elif options.zookeeper is None:
        rejectOptions(
            options,
            "needs --zookeeper",
            "--group",
            "--whitelist",
            "--blacklist",
            "--autocommit-interval-ms",
            "--skip-message-on-error",
        )
        options.partition = options.partition or 0
    else:
        reason = "not with --zookeeper: a group shares all partitions, and knows where it was"
        rejectOptions(options, reason, "--partition", "--offset")
    hasStart = options.fromBeginning or options.group or options.fromTime is not None
    if not (hasStart or options.follow) and options.offset is None:
        other = "or --offset N" if options.zookeeper is None else "or the --group that was there"
        options.parser.error(
            "behind the last message there is nothing to read: "
            f"give --from-beginning {other}, or --follow to wait for new messages"
        )


async def consume(options: Namespace, streams: Streams) -> int:
    """Print messages until the end, or for ever."""
    isGroup = options.zookeeper is not None
    reader = _MemberReader(options, streams) if isGroup else _PartitionReader(options, streams)
    try:
        await reader.run()
    except BrokenPipeError:
        pass
    finally:
        if reader.isStarted:
            streams.say(f"read {formatCount(reader.count, 'message')}{reader.state()}")
    return 1 if reader.errors else 0


class _Reader:
    """
    What both ways of reading share.

    @ivar count: messages printed.
    @ivar isStarted: whether messages could be read.
    @ivar errors: of partitions that could not be read on.
    """

    def __init__(self, options: Namespace, streams: Streams) -> None:
        self._options = options
        self._streams = streams
        self._encode = MESSAGE_FORMATS[options.format]
        self.count = 0
        self.isStarted = False
        self.errors: set[str] = set()
        self._lastMs = streams.nowMs()

    def _idleMs(self) -> int:
        return self._streams.nowMs() - self._lastMs

    def _isIdle(self) -> bool:
        return self._idleMs() >= (self._options.consumerTimeoutMs or math.inf)

    def _missing(self, text: str) -> None:
        if not self._options.follow:
            raise CommandError(text)
        self._streams.warn(f"{text}; waiting for the first message")

    def _countMax(self) -> int:
        """Messages to print next; 0 at the end."""
        left: int = self._options.maxMessages - self.count
        return min(WRITE_COUNT, left)

    async def _write(self, lines: list[bytes]) -> None:
        await self._streams.write(b"\n".join(lines) + b"\n")
        self.count += len(lines)
        self._lastMs = self._streams.nowMs()


class _PartitionReader(_Reader):
    """Reads a partition of a broker. C{_offset} is the next one; L{None} until it is known."""

    def __init__(self, options: Namespace, streams: Streams) -> None:
        super().__init__(options, streams)
        self._consumer = openConsumer(options, streams)
        self._offset: int | None = options.offset

    def state(self) -> str:
        """Where the reader is, for people."""
        return f"; the next offset is {self._offset}"

    async def run(self) -> None:
        """Read from the start to the end, and close."""
        async with closing(self._consumer):
            await self._read()

    async def _read(self) -> None:
        options, consumer = self._options, self._consumer
        topic, partition = options.topic, options.partition
        if text := await self._announced(missingTopic(consumer, topic, partition)):
            self._missing(text)
        if self._offset is None:
            self._offset = await self._bound(EARLIEST if options.fromBeginning else LATEST)
        while self._countMax():
            fetched = await self._announced(
                consumer.fetch(topic, partition, self._offset, options.fetchSize)
            )
            try:
                count = self.count
                self.isStarted |= fetched.error is None
                await self._print(fetched.payloads())
                if self.count == count:
                    # A set without messages, such as an empty compressed one, is stepped over.
                    self._offset, offset = fetched.nextOffset, self._offset
                    if self._offset == offset:
                        if not options.follow or self._isIdle():
                            return
                        await deferLater(self._streams.reactor, POLL_SECONDS)
            except OffsetOutOfRangeError as error:
                low, high = await self._bound(EARLIEST), await self._bound(LATEST)
                raise CommandError(
                    f"there is nothing at offset {self._offset}; "
                    f"{topic}-{partition} holds {low} to {high}"
                ) from error
            except InvalidMessageSizeError as error:
                raise CommandError(
                    f"the message at offset {self._offset} is larger than {options.fetchSize} "
                    "bytes (then give a larger --fetch-size), or none begins there: "
                    f"{error.reason}"
                ) from error
            except FormatError as error:
                raise CommandError(
                    f"the message at offset {self._offset} is not valid: {error.reason}"
                ) from error

    async def _announced(self, waiting: Awaitable[T]) -> T:
        options = self._options
        what = f"the broker at {options.broker}"
        return await announceWait(self._streams, waiting, what, options.timeoutMs)

    async def _bound(self, time: int) -> int:
        options = self._options
        return singleOffset(
            await self._consumer.getOffsetsBefore(options.topic, options.partition, time, 1)
        )

    async def _print(self, payloads: Iterator[tuple[bytes, int]]) -> None:
        """
        Write messages. C{count} and the offset are right also when Ctrl-C or a bad message ends it.
        """
        lines: list[bytes] = []
        offset = self._offset
        countMax = self._countMax()
        encode, topic, partition = self._encode, self._options.topic, self._options.partition
        try:
            for payload, offset in payloads:
                lines.append(encode(payload, topic, partition, offset))
                if len(lines) >= countMax:
                    full, lines = lines, []
                    await self._write(full)
                    self._offset, countMax = offset, self._countMax()
                    if not countMax:
                        return
        finally:
            if lines:
                await self._write(lines)
                self._offset = offset


class _MemberReader(_Reader):
    """Reads the partitions of a member."""

    def __init__(self, options: Namespace, streams: Streams) -> None:
        super().__init__(options, streams)
        changes = {
            "rebalance.backoff.ms": str(BACKOFF_MS),
            "autocommit.interval.ms": str(options.autocommitIntervalMs or COMMIT_MS),
            "autooffset.reset": "smallest" if options.fromBeginning else "largest",
        }
        pollMs = int(POLL_SECONDS * 1000)
        self._member = GroupMember(options, streams, "console-consumer", pollMs, changes)

    def state(self) -> str:
        """The name of the member, for people."""
        return f" as {self._member.consumer.consumerId}"

    async def run(self) -> None:
        """Read from the start to the end, and leave the group."""
        encode = self._encode
        async with self._member:
            stream = await self._join()
            self.isStarted = True
            self._lastMs = self._streams.nowMs()
            while countMax := self._countMax():
                batch = stream.poll(countMax)
                if batch.messages:
                    await self._write(
                        [
                            encode(each.value, each.topic, each.partition, each.nextOffset)
                            for each in batch.messages
                        ]
                    )
                    stream.acknowledge(batch)
                if batch.error is not None:
                    self._failed(batch.error)
                elif not batch.messages:
                    try:
                        await stream.wait()
                    except ConsumerTimeoutError:
                        if self._isIdle() if self._options.follow else await self._isAtEnd():
                            return

    async def _join(self) -> MessageStream:
        """A member would silently wait for a topic that does not exist."""
        options, consumer = self._options, self._member.consumer
        names = await self._member.reader.topics()
        pattern = options.whitelist or options.blacklist
        if pattern is None:
            isThere, wanted = options.topic in names, f"no topic {options.topic}"
        else:
            isThere, wanted = bool(pattern.streamCounts(names)), "no topic that matches"
        if not isThere:
            self._missing(f"there is {wanted}; there are: {', '.join(names) or 'none'}")
        if pattern is None:
            [stream] = (await consumer.createMessageStreams({options.topic: 1}))[options.topic]
        else:
            [stream] = await consumer.createMessageStreamsByFilter(pattern)
        return stream

    def _failed(self, error: Exception) -> None:
        """A partition cannot be read. Following and skipping commands continue with the others."""
        if not isinstance(error, PylogbrokerError):
            raise error
        if not (self._options.follow or self._options.skipMessageOnError):
            raise CommandError(str(error)) from error
        self.errors.add(str(error))
        self._streams.warn(str(error))

    async def _isAtEnd(self) -> bool:
        """
        Whether all of this member's messages were read.

        @raise CommandError: nothing has come within the time-out, and that is not the end.
        """
        reason = await self._whyNotAtEnd()
        idleMs = self._idleMs()
        if reason and idleMs > self._options.timeoutMs:
            raise CommandError(
                f"nothing has come for {idleMs:,} ms, and that is not the end: {reason}"
            )
        return not reason

    async def _whyNotAtEnd(self) -> str:
        """A partition that is not at its end; those that cannot be read do not count."""
        consumer = self._member.consumer
        if not consumer.isOwning:
            return "this member has not got its share of the partitions"
        positions, reasons = consumer.positions, []
        try:
            for each in consumer.owned:
                end = await self._member.offsets.end(*each)
                position = positions.get(each)
                if position is None or position < end:
                    where = "no offset yet" if position is None else position
                    reasons.append(f"{each} is at {where}, and ends at {end}")
        except PylogbrokerError as error:
            return str(error)
        return reasons[0] if len(reasons) > len(self.errors) else ""


_CONSUME = Command(
    "consume",
    consume,
    (
        *AT_ANY,
        either(
            option("--topic", "the topic", topic),
            option(
                "--whitelist PATTERN",
                "not with --broker: all topics, with --zookeeper future ones too, whose names "
                "match a regular expression; a comma means or",
                whitelistPattern,
            ),
            option(
                "--blacklist PATTERN",
                "not with --broker: all topics whose names do not match",
                blacklistPattern,
            ),
            isRequired=True,
        ),
        option(
            "--partition N",
            "the partition of the topic (0; not with --zookeeper; all with --bootstrap-server)",
            intRange(-1, INT_MAX),
        ),
        option(
            "--group NAME",
            "not with --broker: the consumer group. Its members share the messages, and continue "
            "at its committed offsets. By default, with --zookeeper a new group that is deleted at "
            "the end, with --bootstrap-server none",
            group,
        ),
        either(
            flag(
                "--from-beginning",
                "start with the oldest message, unless the group has committed offsets",
            ),
            option("--offset N", "start at an offset; by default, at the end", intRange(0)),
            option(
                "--from-time TIME",
                "with --bootstrap-server: start with the first records of that time or later, in "
                "milliseconds since 1970 or a date like 2026-01-31T12:00",
                pointInTime,
            ),
        ),
        MAX_MESSAGES,
        flag("--follow", "wait for new messages at the end"),
        option(
            "--consumer-timeout-ms MS",
            "with --follow: end when no message has come for this long; by default, never",
            positive,
        ),
        option(
            "--autocommit-interval-ms MS",
            f"in a group: time between commits of offsets ({COMMIT_MS})",
            positive,
        ),
        flag(
            "--skip-message-on-error",
            "with --zookeeper: name a partition that cannot be read, and continue with the others, "
            "as --follow does; the exit code is 1",
        ),
        *FORMAT_OPTIONS,
        option(
            "--print FIELDS",
            "with --bootstrap-server: print these before each message, with tabs between them: "
            f"any of {','.join(FIELDS)}",
            fields,
        ),
        option(
            "--isolation-level LEVEL",
            "with --bootstrap-server: read_committed leaves out records of aborted transactions, "
            "and ends before those of open ones; read_uncommitted, the default, prints them, too",
            choices=ISOLATION_LEVELS,
        ),
        option(
            "--fetch-size BYTES",
            "bytes of one fetch request; a larger message cannot be read (%(default)s)",
            intRange(1, RESPONSE_SIZE_MAX - CODE_SIZE),
            1 << 20,
        ),
    ),
    """\
examples:
  pylogbroker consume --topic dpkg --from-beginning
  pylogbroker consume --topic dpkg --from-beginning --max-messages 10
  pylogbroker consume --topic payments --from-beginning --print key --bootstrap-server log1:9092
  pylogbroker consume --topic payments --group billing --from-beginning --bootstrap-server log1:9092
  pylogbroker consume --broker log1:9092 --topic syslog --follow
  pylogbroker consume --zookeeper zk1:2181 --topic clicks --group counters --follow
  pylogbroker consume --topic dpkg --from-beginning --max-messages 2 --json
  pylogbroker consume --zookeeper zk1:2181 --whitelist log.* --from-beginning

A member of a group has one stream. Start more members of a --group to share its messages; each
needs at least one partition of its own. With --bootstrap-server the command ends where the logs
ended at its start, and --format json has offset, key, headers and timestamp.
""",
    prepare,
    current=records.consume,
)
COMMANDS = (_CONSUME,)
