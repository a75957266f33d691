"""
C{broker drain} and C{broker decommission}: a broker of today's Kafka gives its partitions to the
others, before it is stopped for long or for good.

Topics of Kafka 0.7 are never replicated: they stay where they are. C{--zookeeper} names them.
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
from pylogbroker.cli.output import tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster import metadata
from pylogbroker.cluster.kafka.reassignment import Assignment, planLeaders, planReassignment
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import checkCode
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.types import formatCount

_FENCED_VERSION = 2
"""The first version of DescribeCluster that tells fenced brokers."""


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
    hosted = {where: each for where, each in current.items() if leaving in each}
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
