"""
C{produce}: each line of a file, or of standard input, becomes a message.

Lines of a file are gathered into batches. Lines of a pipe or a terminal leave at once, in a batch
only with lines that were read together: a person expects a typed line to be there.

C{replay}: copies the messages of a topic into another one, the oldest first (0.7's
ReplayLogProducer, spec-0.7 tools §6).

0.7 ends when no message has come for ten seconds. Here the ends of the logs at the start are the
end. So the command ends while others publish, and copying a topic into itself doubles it once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable

from twisted.internet.defer import CancelledError

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    ANY_BATCHING,
    AT_ANY,
    IN_EITHER,
    INT_MAX,
    MAX_MESSAGES,
    TOPIC,
    Command,
    endpointOf,
    flag,
    intRange,
    isCurrent,
    maxMessageSize,
    option,
    pointInTime,
    rejectOptions,
    repeated,
    separator,
    topic,
)
from pylogbroker.cli.commands.cluster import readBounds
from pylogbroker.cli.kafka import records
from pylogbroker.cli.kafka import replay as replays
from pylogbroker.cli.kafka.records import ISOLATION_LEVELS, header
from pylogbroker.cli.output import Progress, asJson, formatBytes
from pylogbroker.cli.publisher import BrokerPublisher, ClusterPublisher, Publisher, PublisherLimits
from pylogbroker.cli.session import ClusterSession, announceWait
from pylogbroker.cli.streams import LineDecoder, Streams, inputSize, openInput, read, readable
from pylogbroker.errors import FormatError, MessageTooLargeError, PylogbrokerError
from pylogbroker.net.deferreds import closing
from pylogbroker.records.compression import CODEC_NAMES
from pylogbroker.types import OffsetBounds, PartitionId, formatCount

FETCH_SIZE = 1 << 20
FETCH_SIZE_MAX = 64 << 20


def prepare(options: Namespace, streams: Streams) -> None:
    """
    Check the options, and open the file before the reactor runs: opening a named pipe waits for its
    writer, and Ctrl-C must end that.

    @raise CommandError: the file cannot be opened.
    """
    if not isCurrent(options):
        reason = "needs --bootstrap-server: messages of Kafka 0.7 have none"
        rejectOptions(options, reason, "--timestamp")
        if options.headers:
            options.parser.error(f"--header: {reason}")
        _requireCodec(options)
    if isCurrent(options):
        if options.partition == -1:
            options.parser.error("--partition: with --bootstrap-server it is 0 or more")
    elif options.zookeeper is None:
        reason = "needs --zookeeper or --bootstrap-server: at one broker, a key chooses nothing"
        rejectOptions(options, reason, "--key-separator")
        options.partition = options.partition or 0
    else:
        reason = "not with --zookeeper: there the key, or chance, chooses the partition"
        rejectOptions(options, reason, "--partition")
    with readable(options.file):
        options.descriptor, options.name = openInput(options.file, streams.input)


def _requireCodec(options: Namespace) -> None:
    if options.compression not in CODEC_NAMES:
        options.parser.error("--compression: lz4 and zstd need --bootstrap-server")


async def produce(options: Namespace, streams: Streams) -> int:
    """Publish the lines of C{options.descriptor}."""
    limits = PublisherLimits.of(options)
    zookeeper = options.zookeeper
    if zookeeper is None:
        server = receiver = f"the broker at {options.broker}"
        publisher: Publisher = BrokerPublisher(
            streams.reactor, endpointOf(options), options.topic, options.partition, limits
        )
    else:
        server, receiver = f"ZooKeeper at {zookeeper}", f"the cluster at {zookeeper}"
        publisher = ClusterPublisher(
            streams.reactor, zookeeper, options.topic, limits, options.access, options.keySeparator
        )
    async with closing(publisher):
        try:
            await announceWait(streams, publisher.check(), server, options.timeoutMs)
            await _publish(options, streams, publisher, receiver)
        except CancelledError:
            streams.say(f"ended after {formatCount(publisher.sentCount, 'message')}")
            raise
    if options.json:
        outcome = {
            "topic": options.topic,
            "messageCount": publisher.sentCount,
            "payloadSize": publisher.sentSize,
            "requestCount": publisher.batchCount,
        }
        await streams.show(asJson(outcome))
    messages = formatCount(publisher.sentCount, "message")
    requests = formatCount(publisher.batchCount, "request")
    streams.say(
        f"sent {messages} ({formatBytes(publisher.sentSize)}) in {requests} "
        f"to {publisher.destination}"
    )
    return 0


async def _publish(
    options: Namespace, streams: Streams, publisher: Publisher, receiver: str
) -> None:
    size = inputSize(options.descriptor)
    progress = Progress(streams.errors, streams.reactor.seconds, size)
    decoder = LineDecoder(options.maxMessageSize)

    async def wait(sending: Awaitable[None]) -> None:
        what = f"{receiver} to take what was sent"
        await announceWait(streams, sending, what, options.timeoutMs, progress)

    reason = "it is longer"
    try:
        data = b"begin"
        while data and decoder.overlong is None:
            try:
                data = await read(streams.reactor, options.descriptor)
            except OSError as error:
                raise CommandError(f"cannot read {options.name}: {error.strerror}") from error
            lines = decoder.feed(data) if data else decoder.finish()
            await wait(publisher.add(lines))
            if size is None:
                await wait(publisher.flush())
            progress.update(publisher.sentCount, publisher.sentSize)
        await wait(publisher.flush())
        await wait(publisher.confirm())
    except MessageTooLargeError as error:
        decoder.overlong, reason = publisher.sentCount + 1, error.reason
        await wait(publisher.confirm())
    except CommandError:
        raise
    except PylogbrokerError as error:
        raise publisher.failed(error) from error
    finally:
        progress.clear()
    if decoder.overlong is not None:
        before = "nothing was sent" if decoder.overlong == 1 else "the lines before it were sent"
        raise CommandError(
            f"line {decoder.overlong:,} of {options.name} is too long for a message of "
            f"{options.maxMessageSize:,} bytes: {reason}; {before}"
        )


def prepareReplay(options: Namespace, streams: Streams) -> None:
    """Check the options that only one kind of cluster has."""
    if isCurrent(options):
        reason = "not with --bootstrap-server; the mirror copies into the other kind of cluster"
        rejectOptions(options, reason, "--to-zookeeper")
    else:
        reason = "needs --bootstrap-server"
        rejectOptions(options, reason, "--to-bootstrap-server", "--from-time", "--isolation-level")
        _requireCodec(options)


async def replay(options: Namespace, streams: Streams) -> int:
    """Copy the messages."""
    publisher = ClusterPublisher(
        streams.reactor,
        options.toZookeeper or options.zookeeper,
        options.toTopic,
        PublisherLimits.of(options),
        options.otherAccess if options.toZookeeper else options.access,
        what="messages",
    )
    progress = Progress(streams.errors, streams.reactor.seconds)
    async with closing(publisher):
        try:
            async with ClusterSession(options, streams) as cluster:
                await publisher.check()
                await cluster.knownTopics([options.topic])
                bounds = await readBounds(cluster, [options.topic])
                if cluster.problems:
                    raise CommandError("\n".join(cluster.problems))
                for each, found in bounds.items():
                    assert found is not None  # or there would be a problem
                    async for payloads in _payloads(cluster, each, found):
                        await publisher.add(payloads[: options.maxMessages - publisher.sentCount])
                        progress.update(publisher.sentCount, publisher.sentSize)
                await publisher.confirm()
        except CommandError:
            raise
        except PylogbrokerError as error:
            raise publisher.failed(error) from error
        finally:
            progress.clear()
    count, size = publisher.sentCount, publisher.sentSize
    if options.json:
        topics = {"topic": options.topic, "toTopic": options.toTopic}
        await streams.show(asJson({**topics, "messageCount": count, "payloadSize": size}))
    streams.say(
        f"replayed {formatCount(count, 'message')} ({formatBytes(size)}) of {options.topic} "
        f"to {publisher.destination}"
    )
    return 0


async def _payloads(
    cluster: ClusterSession, where: PartitionId, bounds: OffsetBounds
) -> AsyncIterator[list[bytes]]:
    topic, partition = where
    consumer = await cluster.offsets.consumer(partition.broker)
    offset, fetchSize = bounds.start, FETCH_SIZE
    while offset < bounds.end:
        sizeMax = min(fetchSize, bounds.end - offset)
        fetched = await consumer.fetch(topic, partition.partition, offset, sizeMax)
        try:
            found = [payload for payload, _nextOffset in fetched.payloads()]
        except FormatError as error:
            if fetchSize < FETCH_SIZE_MAX and fetchSize < bounds.end - offset:
                fetchSize *= 8  # perhaps a message is larger
                continue
            raise CommandError(
                f"the message at offset {offset + error.position} of {topic} {partition} "
                f"is not valid: {error.reason}"
            ) from error
        if found:
            yield found
        if fetched.nextOffset == offset:
            raise CommandError(f"{topic} {partition} has ended at {offset}, before {bounds.end}")
        offset, fetchSize = fetched.nextOffset, FETCH_SIZE


_PRODUCE = Command(
    "produce",
    produce,
    (
        option("file FILE", "its lines are the messages; - is standard input"),
        *AT_ANY,
        TOPIC,
        option(
            "--partition N",
            "the partition of the topic (0; -1: the broker chooses one for each batch; "
            "not with --zookeeper; with --bootstrap-server, by default, that of the key)",
            intRange(-1, INT_MAX),
        ),
        option(
            "--key-separator TEXT",
            "not with --broker: the text between key and message in a line; \\t is a tab. The key "
            "chooses the partition; only with --bootstrap-server is it sent, too. A line without "
            "TEXT has no key and goes anywhere",
            separator,
        ),
        repeated(
            "--header NAME=VALUE",
            "with --bootstrap-server: a header of every record; can be repeated",
            "headers",
            header,
        ),
        option(
            "--timestamp TIME",
            "with --bootstrap-server: the records' time, in milliseconds since 1970 or as a date; "
            "by default, now",
            pointInTime,
        ),
        *ANY_BATCHING,
        maxMessageSize("line", "the broker's"),
        flag("--json", "print the outcome as a JSON document on standard output"),
    ),
    """\
examples:
  pylogbroker produce /var/log/dpkg.log --topic dpkg
  pylogbroker produce orders.tsv --topic payments --key-separator '\\t' --bootstrap-server log1:9092
  tail -f /var/log/syslog | pylogbroker produce - --broker log1:9092 --topic syslog
  pylogbroker produce orders.tsv --zookeeper zk1:2181 --topic orders --key-separator '\\t' --json

With --bootstrap-server records are acknowledged by all replicas in sync, and a request that is sent
again is stored once.
""",
    prepare,
    current=records.produce,
)
_REPLAY = Command(
    "replay",
    replay,
    (
        option("--topic", "the topic to copy", topic, required=True),
        option("--to-topic TOPIC", "the topic to copy it to", topic, required=True),
        option(
            "--to-bootstrap-server HOST:PORT",
            "with --bootstrap-server: the cluster to copy it to; by default, the same",
        ),
        option(
            "--to-zookeeper HOST:PORT",
            "with --zookeeper: the cluster to copy it to; by default, the same",
        ),
        option(
            "--to-config FILE",
            "as --config, for the cluster to copy to; by default, the same for both",
            dest="otherAccessFile",
        ),
        MAX_MESSAGES,
        option(
            "--from-time TIME",
            "with --bootstrap-server: begin with the first records of that time or later, in "
            "milliseconds since 1970 or a date like 2026-01-31T12:00",
            pointInTime,
        ),
        option(
            "--isolation-level LEVEL",
            "with --bootstrap-server: read_committed, the default, leaves out records of aborted "
            "transactions, and ends before those of open ones; read_uncommitted copies them, too",
            choices=ISOLATION_LEVELS,
        ),
        maxMessageSize("message", "the target's"),
        *ANY_BATCHING,
        *IN_EITHER,
        flag("--json", "print the outcome as a JSON document on standard output"),
    ),
    """\
examples:
  pylogbroker replay --topic payments --to-topic payments-again --bootstrap-server log1:9092
  pylogbroker replay --topic clicks --to-topic clicks-again --zookeeper zk1:2181
  pylogbroker replay --topic clicks --to-topic clicks --zookeeper zk1:2181 --to-zookeeper zk2:2181

It copies the messages that the topic holds at the start, those of a partition in order, and counts
only those that the target's brokers have confirmed. With --zookeeper they go to any partition of
the target. With --bootstrap-server they keep keys, headers and timestamps, and, where both topics
have as many partitions, their partitions; otherwise the key chooses. A missing target gets as many
partitions as the source. Ctrl-C and errors report how far it came.
""",
    prepareReplay,
    current=replays.replay,
)
COMMANDS = (_PRODUCE, _REPLAY)
