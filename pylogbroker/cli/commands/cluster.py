"""
C{topic}, C{broker} and C{offset}: what a cluster holds, from ZooKeeper and the brokers.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any

from pylogbroker.cli.arguments import (
    INT_MAX,
    addBroker,
    addJson,
    addPartition,
    addRequiredZookeeper,
    addTopic,
    intRange,
    option,
    time,
)
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.session import ClusterSession, closeAll, openConsumer, requireTopic
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.types import BrokerPartition, OffsetBounds

_LIST_EXAMPLES = """\
examples:
  pylogbroker topic list --zookeeper zk1:2181
  pylogbroker topic list --zookeeper zk1:2181 --json

SIZE is the number of bytes that a consumer can read. The protocol of Kafka 0.7 cannot list the
topics of a broker without ZooKeeper: pylogbroker verify LOG_DIRECTORY shows its partitions, and so
does the broker's page at http.listener.
"""
_DESCRIBE_EXAMPLES = """\
examples:
  pylogbroker topic describe --zookeeper zk1:2181
  pylogbroker topic describe clicks --zookeeper zk1:2181 --json

PARTITION is BROKER-PARTITION. START is the offset of the oldest message, END the offset behind the
last message that consumers see, SIZE the number of bytes between them.
"""
_BROKER_EXAMPLES = """\
examples:
  pylogbroker broker list --zookeeper zk1:2181
  pylogbroker broker list --zookeeper zk1:2181 --json

TOPICS and PARTITIONS count those that are registered. ANSWERS says whether the broker has just
answered a request. The exit code is 1 when a broker does not answer.
"""
_OFFSET_EXAMPLES = """\
examples:
  pylogbroker offset list --topic dpkg
  pylogbroker offset list --topic dpkg --time earliest --json
  pylogbroker offset list --topic dpkg --time 2026-01-31T12:00 --count 5
"""


def addListArguments(parser: ArgumentParser) -> None:
    """Arguments of C{topic list}."""
    parser.epilog = _LIST_EXAMPLES
    addRequiredZookeeper(parser)
    addJson(parser)
    parser.set_defaults(topics=[])


def addDescribeArguments(parser: ArgumentParser) -> None:
    """Arguments of C{topic describe}."""
    parser.epilog = _DESCRIBE_EXAMPLES
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="the topics; by default, all")
    addRequiredZookeeper(parser)
    addJson(parser)


@dataclass
class PartitionBounds:
    """
    The offsets of a partition.

    @ivar start: of the oldest message; L{None} when the broker does not answer.
    @ivar end: behind the last message that consumers see.
    """

    topic: str
    partition: BrokerPartition
    start: int | None = None
    end: int | None = None

    @property
    def size(self) -> int | None:
        """Bytes."""
        return None if self.start is None or self.end is None else self.end - self.start


async def readBounds(cluster: ClusterSession, topics: list[str]) -> list[PartitionBounds]:
    """
    Ask the brokers for the bounds of topics. C{problems} names those that do not answer.

    @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be read.
    """
    reports: list[PartitionBounds] = []
    problems: dict[int, str] = {}
    partitions = await cluster.reader.partitions(topics)
    for (topic, partition), found in (await cluster.offsets.bounds(partitions)).items():
        if isinstance(found, OffsetBounds):
            reports.append(PartitionBounds(topic, partition, found.start, found.end))
        else:
            reports.append(PartitionBounds(topic, partition))
            number = partition.broker
            problems.setdefault(number, f"broker {number} cannot be asked: {found}")
    cluster.problems += problems.values()
    return reports


async def listTopics(options: Namespace, streams: Streams) -> int:
    """Print a line for each topic."""
    return await _showTopics(options, streams, isDetailed=False)


async def describeTopics(options: Namespace, streams: Streams) -> int:
    """Print a line for each partition."""
    return await _showTopics(options, streams, isDetailed=True)


async def _showTopics(options: Namespace, streams: Streams, isDetailed: bool) -> int:
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownTopics(options.topics)
        bounds = await readBounds(cluster, names)
    byTopic: dict[str, list[PartitionBounds]] = {name: [] for name in names}
    for each in bounds:
        byTopic[each.topic].append(each)
    if options.json:
        documents = [_asDocument(name, parts) for name, parts in byTopic.items()]
        text = asJson({"topics": documents, "problems": cluster.problems})
    else:
        text = _detailed(bounds) if isDetailed else _summary(byTopic)
        cluster.warnOfProblems()
        if not names:
            streams.say("there are no topics")
    await streams.show(text)
    return 0


def _size(parts: list[PartitionBounds]) -> int | None:
    sizes = [each.size for each in parts if each.size is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def _asDocument(topic: str, parts: list[PartitionBounds]) -> dict[str, Any]:
    partitions = [
        {**each.partition._asdict(), "start": each.start, "end": each.end, "size": each.size}
        for each in parts
    ]
    return {"topic": topic, "size": _size(parts), "partitions": partitions}


def _summary(byTopic: dict[str, list[PartitionBounds]]) -> str:
    rows = [
        (name, len({each.partition.broker for each in parts}), len(parts), _size(parts))
        for name, parts in byTopic.items()
    ]
    return tableOfRows(("TOPIC", "BROKERS", "PARTITIONS", "SIZE"), rows)


def _detailed(bounds: list[PartitionBounds]) -> str:
    rows = [(each.topic, str(each.partition), each.start, each.end, each.size) for each in bounds]
    return tableOfRows(("TOPIC", "PARTITION", "START", "END", "SIZE"), rows)


def addBrokerArguments(parser: ArgumentParser) -> None:
    """Arguments of C{broker list}."""
    parser.epilog = _BROKER_EXAMPLES
    addRequiredZookeeper(parser)
    addJson(parser)


async def listBrokers(options: Namespace, streams: Streams) -> int:
    """
    Print a line for each registered broker.

    @return: 1 when a broker does not answer.
    """
    async with ClusterSession(options, streams) as cluster:
        found = await cluster.reader.brokers()
        partitions = await cluster.reader.partitions(await cluster.reader.topics())
        answers: dict[int, bool] = {}
        await gatherAll(_ask(cluster, number, broker, answers) for number, broker in found.items())
    rows = []
    for number, broker in found.items():
        topics = [topic for topic, partition in partitions if partition.broker == number]
        rows.append((number, broker.host, broker.port, len(set(topics)), len(topics)))
    if options.json:
        keys = ("broker", "host", "port", "topicCount", "partitionCount")
        documents = [
            {**dict(zip(keys, row, strict=True)), "answers": answers[row[0]]} for row in rows
        ]
        text = asJson({"brokers": documents, "problems": cluster.problems})
    else:
        headings = ("BROKER", "HOST", "PORT", "TOPICS", "PARTITIONS", "ANSWERS")
        text = tableOfRows(headings, [(*row, "yes" if answers[row[0]] else "no") for row in rows])
        cluster.warnOfProblems()
        if not rows:
            streams.say("there are no brokers")
    await streams.show(text)
    return 0 if all(answers.values()) else 1


async def _ask(
    cluster: ClusterSession, number: int, broker: BrokerRegistration, answers: dict[int, bool]
) -> None:
    """Send an empty multifetch request, which costs the broker nothing."""
    answers[number] = False
    try:
        await (await cluster.offsets.consumer(number)).multifetch([])
        answers[number] = True
    except PylogbrokerError as error:
        cluster.problems.append(
            f"broker {number} at {broker.host}:{broker.port} does not answer: {error}"
        )


def addOffsetArguments(parser: ArgumentParser) -> None:
    """Arguments of C{offset list}."""
    parser.epilog = _OFFSET_EXAMPLES
    addBroker(parser)
    addTopic(parser)
    addPartition(parser)
    option(
        parser,
        "--time TIME",
        "latest: behind the last message that consumers see; earliest: the oldest message; "
        "milliseconds since 1970, or a date like 2026-01-31T12:00: the segment files that were "
        "last written before that time (latest)",
        time,
        "latest",
    )
    option(
        parser,
        "--count N",
        "print at most N offsets, one a line, the latest first (%(default)s)",
        intRange(1, INT_MAX),
        1,
    )
    addJson(parser, "print one JSON document instead of lines")


async def listOffsets(options: Namespace, streams: Streams) -> int:
    """Print offsets of a partition (0.7's GetOffsetShell, spec-0.7 tools §5)."""
    consumer = openConsumer(options, streams)
    topic, partition = options.topic, options.partition
    try:
        await requireTopic(consumer, topic, partition)
        found = await consumer.getOffsetsBefore(topic, partition, options.time, options.count)
        document = {"topic": topic, "partition": partition, "offsets": found}
        lines = "".join(f"{offset}\n" for offset in found)
        await streams.show(asJson(document) if options.json else lines)
    finally:
        await closeAll(consumer.close())
    if not found:
        streams.say("no segment file is that old")
    return 0
