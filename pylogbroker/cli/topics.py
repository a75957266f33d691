"""
C{pylogbroker topics}: the topics that are registered in ZooKeeper, and where the logs of their partitions begin and end.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from pylogbroker.cli.arguments import addJson, addRequiredZookeeper
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import asJson, show, table
from pylogbroker.types import BrokerPartition, OffsetBounds

_EXAMPLES = """\
examples:
  pylogbroker topics --zookeeper zk1:2181
  pylogbroker topics clicks --zookeeper zk1:2181
  pylogbroker topics --partitions --zookeeper zk1:2181 --json

SIZE is how many bytes a consumer could read. PARTITION is <broker>-<partition>.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "topics",
        metavar="TOPIC",
        nargs="*",
        help="the topics to show, with their partitions; without, all",
    )
    parser.add_argument(
        "--partitions",
        dest="isDetailed",
        action="store_true",
        help="show each partition, and where its log begins and ends",
    )
    addRequiredZookeeper(parser)
    addJson(parser)


@dataclass
class PartitionBounds:
    """
    A partition.

    @ivar start: the oldest message; L{None} when the broker could not be asked.
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
    Ask the brokers where the logs of topics begin and end. One that does not answer is named in the cluster's C{problems}.

    @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be read.
    """
    reports: list[PartitionBounds] = []
    problems: dict[int, str] = {}
    for (topic, partition), found in (
        await cluster.ends.bounds(await cluster.registries.partitions(topics))
    ).items():
        if isinstance(found, OffsetBounds):
            reports.append(PartitionBounds(topic, partition, found.start, found.end))
        else:
            reports.append(PartitionBounds(topic, partition))
            problems.setdefault(
                partition.broker, f"broker {partition.broker} cannot be asked: {found}"
            )
    cluster.problems += problems.values()
    return reports


async def topics(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print them.

    @return: the exit code.
    @raise PylogbrokerError: ZooKeeper cannot be read, or there is no such topic.
    """
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        names = await cluster.knownTopics(options.topics)
        bounds = await readBounds(cluster, names)
    byTopic: dict[str, list[PartitionBounds]] = {name: [] for name in names}
    for each in bounds:
        byTopic[each.topic].append(each)
    if options.isJson:
        text = asJson(
            {
                "topics": [_document(name, parts) for name, parts in byTopic.items()],
                "problems": cluster.problems,
            }
        )
    else:
        text = _detailed(bounds) if options.isDetailed or options.topics else _summary(byTopic)
        for problem in cluster.problems:
            streams.say(f"pylogbroker: {problem}")
        if not names:
            streams.say("there are no topics")
    await show(reactor, streams, text)
    return 0


def _size(parts: list[PartitionBounds]) -> int | None:
    """Of all; not known when one is not."""
    sizes = [each.size for each in parts if each.size is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def _document(topic: str, parts: list[PartitionBounds]) -> dict[str, Any]:
    shown = [
        {
            "broker": each.partition.broker,
            "partition": each.partition.partition,
            "start": each.start,
            "end": each.end,
            "size": each.size,
        }
        for each in parts
    ]
    return {"topic": topic, "size": _size(parts), "partitions": shown}


def _summary(byTopic: dict[str, list[PartitionBounds]]) -> str:
    rows = [
        (name, len({each.partition.broker for each in parts}), len(parts), _size(parts))
        for name, parts in byTopic.items()
    ]
    return table(("TOPIC", "BROKERS", "PARTITIONS", "SIZE"), rows) if rows else ""


def _detailed(bounds: list[PartitionBounds]) -> str:
    rows = [(each.topic, str(each.partition), each.start, each.end, each.size) for each in bounds]
    return table(("TOPIC", "PARTITION", "START", "END", "SIZE"), rows) if rows else ""
