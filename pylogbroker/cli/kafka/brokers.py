"""
C{broker} and C{offset}: the brokers of a cluster of today's Kafka, and where partitions begin and
end. It is a module of its own, since L{pylogbroker.cli.commands.cluster} shows what ZooKeeper
knows.

A broker gives its partitions to the others before it is stopped for long (C{broker drain}) or for
good (C{broker decommission}). Topics of Kafka 0.7 are never replicated: they stay where they are,
and C{--zookeeper} names them.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.partitions import (
    HEADINGS,
    NOTHING,
    PREFERRED,
    Pause,
    assignmentOf,
    brokerRacks,
    carryOut,
    changes,
    elect,
    partitionsOf,
    summary,
)
from pylogbroker.cli.kafka.topics import wantedTopics
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster import metadata
from pylogbroker.cluster.kafka.reassignment import Assignment, planLeaders, planReassignment
from pylogbroker.errors import PylogbrokerError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.types import TopicPartition, formatCount

_FENCED_VERSION = 2
"""The first version of DescribeCluster that tells fenced brokers."""

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


# -- a broker that gives its partitions away


def drainBroker(options: Namespace, streams: Streams, pause: Pause = sleep) -> int:
    """
    Show which partitions would leave a broker, and with C{--execute} move them.

    @return: 1 when a partition could not be moved.
    """
    with openCluster(options, streams) as cluster:
        found = cluster.metadata(None)
        if options.broker not in brokerRacks(found):
            known = ", ".join(map(str, brokerRacks(found)))
            raise CommandError(f"broker {options.broker} does not run; there are: {known}")
        code = _drain(cluster, found, options, streams, pause, options.leadersOnly)
        _tellOld(options, streams)
        return code


def _drain(
    cluster: KafkaCluster,
    found: Any,
    options: Namespace,
    streams: Streams,
    pause: Pause,
    isLeadersOnly: bool = False,
) -> int:
    """Move partitions, or only their leaders, away."""
    leaving: int = options.broker
    current = assignmentOf(partitionsOf(found))
    hosted = _hosted(found, leaving)
    if isLeadersOnly:
        plan = planLeaders(hosted, leaving)
        alone = sum(len(each) == 1 for each in hosted.values())
        if alone:
            text = formatCount(alone, "partition")
            streams.warn(
                f"broker {leaving} goes on leading {text}, of which it alone has a replica"
            )
    else:
        racks = brokerRacks(found)
        racks.pop(leaving, None)
        if hosted and not racks:
            raise CommandError(f"there is no other broker than {leaving}")
        plan = {
            where: each
            for where, each in planReassignment(current, racks).items()
            if where in hosted
        }
    if not plan:
        streams.say(f"no partition is to leave broker {leaving}")
        return 0
    show(streams, tableOfRows(HEADINGS, changes(current, plan)))
    streams.say(summary(hosted, plan))
    if not options.execute:
        streams.say(NOTHING)
        return 0
    code = carryOut(cluster, plan, plan, options, streams, pause)
    if isLeadersOnly:
        outcomes = elect(cluster, plan, PREFERRED, options.timeoutMs)
        for error in filter(None, outcomes.values()):
            streams.warn(str(error))
            code = 1
    return code


def _tellOld(options: Namespace, streams: Streams) -> None:
    """Name the topics of Kafka 0.7 that stay on the broker."""
    if options.zookeeper is None:
        streams.say(f"topics of Kafka 0.7 stay on broker {options.broker}: --zookeeper names them")
        return
    access = options.access
    with ZookeeperMetadata(
        options.zookeeper, digest=access.zkDigest, acl=access.zkAcl, timeoutMs=options.timeoutMs
    ) as zookeeper:
        partitions = zookeeper.read(metadata.partitions(zookeeper.read(metadata.topics())))
    counts = Counter(each.topic for each in partitions if each.partition.broker == options.broker)
    if counts:
        names = ", ".join(
            f"{name} ({formatCount(count, 'partition')})" for name, count in sorted(counts.items())
        )
        streams.warn(
            f"topics of Kafka 0.7 stay on broker {options.broker}: {names}. A mirror copies them"
            " (docs/mirror.md)"
        )
    else:
        streams.say(f"broker {options.broker} has no topics of Kafka 0.7")


def decommissionBroker(options: Namespace, streams: Streams, pause: Pause = sleep) -> int:
    """
    Take the next step towards a cluster without a broker: move its partitions away; when it is
    stopped, remove its registration. Without C{--execute} the step is only shown.

    @return: 0 when the registration is gone, or the step was shown; else 1.
    """
    leaving: int = options.broker
    with openCluster(options, streams) as cluster:
        found = cluster.metadata(None)
        isRunning = leaving in brokerRacks(found)
        if not isRunning and not _isRegistered(cluster, leaving):
            raise CommandError(f"broker {leaving} is not registered")
        hosted = _hosted(found, leaving)
        if hosted:
            code = _drain(cluster, found, options, streams, pause)
            if not options.execute or code:
                return code
            hosted = _hosted(cluster.metadata(None), leaving)
        if hosted:
            streams.warn(
                f"broker {leaving} is not unregistered: it has replicas of"
                f" {formatCount(len(hosted), 'partition')}"
            )
            return 1
        _tellOld(options, streams)
        if isRunning:
            streams.say(
                f"broker {leaving} has no partitions of today's Kafka: stop it, and run this again"
                " to remove its registration"
            )
            return 1 if options.execute else 0
        if not options.execute:
            streams.say(f"broker {leaving} would be unregistered; --execute does it")
            return 0
        body = messages.UnregisterBrokerRequest(brokerId=leaving)
        answer = cluster.change(ApiKey.UNREGISTER_BROKER, body)
        checkCode(answer.errorCode, f"broker {leaving}", answer.errorMessage)
        streams.say(f"unregistered broker {leaving}")
        return 0


def _hosted(found: Any, broker: int) -> Assignment:
    return {
        where: each for where, each in assignmentOf(partitionsOf(found)).items() if broker in each
    }


def _isRegistered(cluster: KafkaCluster, broker: int) -> bool:
    """Whether a broker that does not run is registered; C{True} where that is not told."""
    key = ApiKey.DESCRIBE_CLUSTER
    if not cluster.any().supports(key, _FENCED_VERSION):
        return True
    found = cluster.ask(key, messages.DescribeClusterRequest(includeFencedBrokers=True))
    checkCode(found.errorCode, "the cluster", found.errorMessage)
    return any(each.brokerId == broker for each in found.brokers)
