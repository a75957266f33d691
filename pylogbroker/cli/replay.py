"""
C{pylogbroker replay}: copy the messages of a topic into another, from the oldest on (0.7's ReplayLogProducer, spec-0.7 tools §6).

Where does it end? 0.7 ends when nothing has come for ten seconds. Here the ends of the logs are asked for at the start, and what stands before them is copied:
so it ends also while others publish, and copying a topic into itself doubles it, and no more.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    LONG_MAX,
    addBatching,
    addJson,
    addOtherAccess,
    addRequiredZookeeper,
    positive,
    topic,
    whole,
)
from pylogbroker.cli.clusterpublishing import ClusterPublisher
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.progress import Progress, formatBytes
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import asJson, show
from pylogbroker.cli.topics import PartitionBounds, readBounds
from pylogbroker.errors import FormatError, PylogbrokerError

FETCH_SIZE = 1 << 20
FETCH_SIZE_MAX = 64 << 20

_EXAMPLES = """\
examples:
  pylogbroker replay --topic clicks --to-topic clicks-again --zookeeper zk1:2181
  pylogbroker replay --topic clicks --to-topic clicks --zookeeper zk1:2181 --to-zookeeper zk2:2181 --max-messages 1000 --compression gzip

What stands in the topic at the start is copied, the messages of a partition in their order, to any partition of the target. Only what its
brokers have confirmed is counted.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("--topic", type=topic, required=True, help="the topic to copy")
    parser.add_argument(
        "--to-topic",
        dest="toTopic",
        metavar="TOPIC",
        type=topic,
        required=True,
        help="the topic to copy it to",
    )
    parser.add_argument(
        "--to-zookeeper",
        dest="toZookeeper",
        metavar="HOST:PORT",
        help="the cluster to copy it to; without, the same",
    )
    addOtherAccess(parser, "to", "the cluster to copy to")
    parser.add_argument(
        "--max-messages",
        dest="countMax",
        metavar="N",
        type=whole(0),
        default=LONG_MAX,
        help="stop after so many messages",
    )
    parser.add_argument(
        "--max-message-size", dest="payloadSizeMax", metavar="BYTES", type=positive, default=1_000_000,
        help="a longer message is an error; set it to the target's max.message.size if that is less (%(default)s)",
    )  # fmt: skip
    addBatching(parser)
    addRequiredZookeeper(parser)
    addJson(parser, "the outcome as a JSON document on standard output")


async def replay(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Copy.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out; the text says how far it got.
    """
    publisher = ClusterPublisher(
        reactor, options.toZookeeper or options.zookeeper, options.toTopic, None,
        codec=options.codec, batchCountMax=options.batchCount, payloadSizeMax=options.payloadSizeMax, timeoutMs=options.timeoutMs, what="messages",
        access=options.otherAccess if options.toZookeeper else options.access,
    )  # fmt: skip
    progress = Progress(streams.errors, reactor.seconds)
    try:
        async with ClusterSession(
            reactor, options.zookeeper, options.timeoutMs, options.access
        ) as cluster:
            await publisher.check()
            await cluster.knownTopics([options.topic])
            bounds = await readBounds(cluster, [options.topic])
            if cluster.problems:
                raise CommandError("\n".join(cluster.problems))
            try:
                for each in bounds:
                    async for payloads in _payloads(cluster, each):
                        await publisher.add(payloads[: options.countMax - publisher.sentCount])
                        progress.update(publisher.sentCount, publisher.sentSize)
                await publisher.confirm()
            except CommandError:
                raise
            except PylogbrokerError as error:
                raise publisher.failed(error, "messages") from error
    finally:
        progress.clear()
        await publisher.close()
    if options.isJson:
        outcome = {
            "topic": options.topic,
            "toTopic": options.toTopic,
            "messageCount": publisher.sentCount,
            "payloadSize": publisher.sentSize,
        }
        await show(reactor, streams, asJson(outcome))
    streams.say(
        f"replayed {publisher.sentCount:,} messages ({formatBytes(publisher.sentSize)}) of {options.topic} to {publisher.destination}"
    )
    return 0


async def _payloads(cluster: ClusterSession, bounds: PartitionBounds) -> AsyncIterator[list[bytes]]:
    """
    What stands in a partition before its end, a fetch at a time.

    @raise CommandError: something that is no message stands there.
    """
    assert bounds.start is not None and bounds.end is not None
    consumer = await cluster.ends.consumer(bounds.partition.broker)
    offset, fetchSize = bounds.start, FETCH_SIZE
    while offset < bounds.end:
        fetched = await consumer.fetch(
            bounds.topic, bounds.partition.partition, offset, min(fetchSize, bounds.end - offset)
        )
        try:
            found = list(fetched.payloads())
        except FormatError as error:
            if fetchSize < FETCH_SIZE_MAX and fetchSize < bounds.end - offset:
                fetchSize *= 8  # perhaps a message is larger
                continue
            raise CommandError(
                f"at offset {offset + error.position} of {bounds.topic} {bounds.partition} stands no valid message: {error.reason}"
            ) from error
        if found:
            yield [payload for payload, _nextOffset in found]
        if fetched.nextOffset == offset:
            raise CommandError(
                f"{bounds.topic} {bounds.partition} has ended at {offset}, before {bounds.end}"
            )
        offset, fetchSize = fetched.nextOffset, FETCH_SIZE
