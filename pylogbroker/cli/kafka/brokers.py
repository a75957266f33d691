"""
C{broker} and C{offset}: the brokers of a cluster of today's Kafka, and where partitions begin and
end. It is a module of its own, since L{pylogbroker.cli.commands.cluster} shows what ZooKeeper
knows.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.topics import wantedTopics
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import PylogbrokerError
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.types import TopicPartition

Versions = dict[str, list[int]]
"""The first and the last version of each request that a broker serves, by the request's name."""


def listBrokers(options: Namespace, streams: Streams) -> int:
    """
    Print a line for each broker.

    @return: 1 when a broker does not answer.
    """
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        found = cluster.metadata(None)
        leaders, replicas = Counter[int](), Counter[int]()
        for topic in found.topics:
            for part in topic.partitions:
                leaders[part.leaderId] += 1
                replicas.update(part.replicaNodes)
        brokers = sorted(found.brokers, key=lambda each: int(each.nodeId))
        versions = [_versions(cluster, each, problems) for each in brokers]
    rows = [
        (
            each.nodeId,
            each.host,
            each.port,
            each.rack or None,
            replicas[each.nodeId],
            leaders[each.nodeId],
            each.nodeId == found.controllerId,
            known is not None,
        )
        for each, known in zip(brokers, versions, strict=True)
    ]
    if options.json:
        keys = (
            *("broker", "host", "port", "rack", "replicaCount", "leaderCount"),
            *("isController", "answers"),
        )
        documents = [
            {**dict(zip(keys, row, strict=True)), "apiVersions": known}
            for row, known in zip(rows, versions, strict=True)
        ]
        document = {"clusterId": found.clusterId, "brokers": documents, "problems": problems}
        show(streams, asJson(document))
    else:
        headings = (
            *("BROKER", "HOST", "PORT", "RACK", "REPLICAS", "LEADERS"),
            *("CONTROLLER", "ANSWERS"),
        )
        texts = [(*row[:-2], *("yes" if each else "no" for each in row[-2:])) for row in rows]
        for problem in problems:
            streams.warn(problem)
        show(streams, tableOfRows(headings, texts))
    return 0 if all(known is not None for known in versions) else 1


def _versions(cluster: KafkaCluster, broker: Any, problems: list[str]) -> Versions | None:
    """What a broker serves; L{None} if it does not answer."""
    try:
        found = cluster.broker(broker.nodeId).versions()
    except PylogbrokerError as error:
        problems.append(
            f"broker {broker.nodeId} at {broker.host}:{broker.port} does not answer: {error}"
        )
        return None
    names = {int(key): key.apiName for key in ApiKey}
    return {names.get(key, str(key)): list(bounds) for key, bounds in sorted(found.items())}


def listOffsets(options: Namespace, streams: Streams) -> int:
    """
    Print the offset of each partition that belongs to a time, in lines as GetOffsetShell's of
    Kafka 4.x.

    @return: 1 when a partition cannot be asked.
    """
    wanted = None if options.partition is None else {options.partition}
    documents, lines = [], []
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        names = [] if options.topic is None else [options.topic]
        places = sorted(
            TopicPartition(topic.name, part.partitionIndex)
            for topic in wantedTopics(cluster, names)
            for part in topic.partitions
            if wanted is None or part.partitionIndex in wanted
        )
        if wanted and not places:
            raise CommandError(
                f"there is no partition {options.partition} of {options.topic or 'any topic'}"
            )
        found = cluster.offsets(places, options.time)
    for where in places:
        each = found[where]
        if isinstance(each, ResponseError):
            problems.append(str(each))
            continue
        offset, timestampMs = each
        if offset < 0:
            streams.say(f"{where} has no record of that time or later")
            continue
        documents.append(
            {
                **where._asdict(),
                "offset": offset,
                "timestampMs": timestampMs if timestampMs >= 0 else None,
            }
        )
        lines.append(f"{where.topic}:{where.partition}:{offset}\n")
    if options.json:
        show(streams, asJson({"offsets": documents, "problems": problems}))
    else:
        show(streams, "".join(lines))
        for problem in problems:
            streams.warn(problem)
    return 1 if problems else 0
