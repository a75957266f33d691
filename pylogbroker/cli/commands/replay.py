"""
C{replay}: copies the messages of a topic into another one, the oldest first (0.7's
ReplayLogProducer, spec-0.7 tools §6).

0.7 ends when no message has come for ten seconds. Here the ends of the logs at the start are the
end. So the command ends while others publish, and copying a topic into itself doubles it once.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addBatching,
    addJson,
    addMaxMessages,
    addMaxMessageSize,
    addOtherAccess,
    addRequiredZookeeper,
    addTopic,
    option,
    topic,
)
from pylogbroker.cli.commands.cluster import PartitionBounds, readBounds
from pylogbroker.cli.output import Progress, asJson, formatBytes
from pylogbroker.cli.publisher import ClusterPublisher
from pylogbroker.cli.session import ClusterSession
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import FormatError, PylogbrokerError

FETCH_SIZE = 1 << 20
FETCH_SIZE_MAX = 64 << 20

_EXAMPLES = """\
examples:
  pylogbroker replay --topic clicks --to-topic clicks-again --zookeeper zk1:2181
  pylogbroker replay --topic clicks --to-topic clicks --zookeeper zk1:2181 --to-zookeeper zk2:2181

It copies the messages that the topic holds at the start: those of a partition in order, to any
partition of the target. It counts only messages that the target's brokers have confirmed.
"""


def addArguments(parser: ArgumentParser) -> None:
    """Arguments of C{replay}."""
    parser.epilog = _EXAMPLES
    addTopic(parser, text="the topic to copy")
    option(parser, "--to-topic TOPIC", "the topic to copy it to", topic, required=True)
    option(parser, "--to-zookeeper HOST:PORT", "the cluster to copy it to; by default, the same")
    addOtherAccess(parser, "to", "the cluster to copy to")
    addMaxMessages(parser)
    addMaxMessageSize(parser, "message", "the target's")
    addBatching(parser)
    addRequiredZookeeper(parser)
    addJson(parser, "print the outcome as a JSON document on standard output")


async def replay(options: Namespace, streams: Streams) -> int:
    """Copy the messages."""
    publisher = ClusterPublisher(
        streams.reactor,
        options.toZookeeper or options.zookeeper,
        options.toTopic,
        None,
        codec=options.compression,
        batchCountMax=options.batchSize,
        payloadSizeMax=options.maxMessageSize,
        timeoutMs=options.timeoutMs,
        what="messages",
        access=options.otherAccess if options.toZookeeper else options.access,
    )
    progress = Progress(streams.errors, streams.reactor.seconds)
    try:
        async with ClusterSession(options, streams) as cluster:
            await publisher.check()
            await cluster.knownTopics([options.topic])
            bounds = await readBounds(cluster, [options.topic])
            if cluster.problems:
                raise CommandError("\n".join(cluster.problems))
            try:
                for each in bounds:
                    async for payloads in _payloads(cluster, each):
                        await publisher.add(payloads[: options.maxMessages - publisher.sentCount])
                        progress.update(publisher.sentCount, publisher.sentSize)
                await publisher.confirm()
            except CommandError:
                raise
            except PylogbrokerError as error:
                raise publisher.failed(error, "messages") from error
    finally:
        progress.clear()
        await publisher.close()
    count, size = publisher.sentCount, publisher.sentSize
    if options.json:
        topics = {"topic": options.topic, "toTopic": options.toTopic}
        await streams.show(asJson({**topics, "messageCount": count, "payloadSize": size}))
    streams.say(
        f"replayed {count:,} messages ({formatBytes(size)}) of {options.topic} "
        f"to {publisher.destination}"
    )
    return 0


async def _payloads(cluster: ClusterSession, bounds: PartitionBounds) -> AsyncIterator[list[bytes]]:
    assert bounds.start is not None and bounds.end is not None
    consumer = await cluster.offsets.consumer(bounds.partition.broker)
    number = bounds.partition.partition
    offset, fetchSize = bounds.start, FETCH_SIZE
    while offset < bounds.end:
        sizeMax = min(fetchSize, bounds.end - offset)
        fetched = await consumer.fetch(bounds.topic, number, offset, sizeMax)
        try:
            found = list(fetched.payloads())
        except FormatError as error:
            if fetchSize < FETCH_SIZE_MAX and fetchSize < bounds.end - offset:
                fetchSize *= 8  # perhaps a message is larger
                continue
            raise CommandError(
                f"the message at offset {offset + error.position} of {bounds.topic} "
                f"{bounds.partition} is not valid: {error.reason}"
            ) from error
        if found:
            yield [payload for payload, _nextOffset in found]
        if fetched.nextOffset == offset:
            raise CommandError(
                f"{bounds.topic} {bounds.partition} has ended at {offset}, before {bounds.end}"
            )
        offset, fetchSize = fetched.nextOffset, FETCH_SIZE
