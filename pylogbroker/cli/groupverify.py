"""
C{pylogbroker groups verify}: whether groups have shared their partitions out (0.7's VerifyConsumerRebalance, spec-0.7 tools §8).
"""

from __future__ import annotations

import argparse
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import addJson, addRequiredZookeeper, group
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import asJson, show, table
from pylogbroker.cluster import paths
from pylogbroker.cluster.assignment import (
    OwnershipFault,
    ownershipFaults,
    threadCountsByTopic,
)
from pylogbroker.errors import InvalidPatternError
from pylogbroker.types import BrokerPartition

_EXAMPLES = """\
examples:
  pylogbroker groups verify counters --zookeeper zk1:2181
  pylogbroker groups verify --zookeeper zk1:2181 --json

The exit code is 1 when a partition of a topic that a member wants has no owner, or one that is no thread of such a member. While members come
and go this is so for a moment.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "groups",
        metavar="GROUP",
        nargs="*",
        type=group,
        help="the groups to look at; without, all that have members",
    )
    addRequiredZookeeper(parser)
    addJson(parser)


async def verifyGroups(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print what is wrong.

    @return: the exit code: 1 when something is.
    @raise PylogbrokerError: ZooKeeper cannot be read, there is no such group, or it has no members.
    """
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        names = await cluster.knownGroups(options.groups)
        isActive = {
            name: bool(await cluster.registries.children(paths.GroupPaths(name).ids))
            for name in names
        }
        idle = [name for name in options.groups if not isActive[name]]
        if idle or not any(isActive.values()):
            who = f"no members in {', '.join(idle)}" if idle else "no consumer group with members"
            raise CommandError(f"there is nothing to verify: {who}")
        results = {name: await _verify(cluster, name) for name in names if isActive[name]}
    isGood = not cluster.problems and not any(faults for _count, faults in results.values())
    if options.isJson:
        documents = [
            {"group": name, "partitionCount": count, "faults": [_document(fault) for fault in faults]} for name, (count, faults) in results.items()
        ]  # fmt: skip
        text = asJson({"groups": documents, "problems": cluster.problems, "successful": isGood})
    else:
        rows = [
            (name, fault.topic, str(fault.partition), fault.owner, fault.reason) for name, (_count, faults) in results.items() for fault in faults
        ]  # fmt: skip
        text = table(("GROUP", "TOPIC", "PARTITION", "OWNER", "WRONG"), rows) if rows else ""
        text += f"Rebalance operation {'successful' if isGood else 'failed'} !\n"
        for problem in cluster.problems:
            streams.say(f"pylogbroker: {problem}")
    await show(reactor, streams, text)
    streams.say(
        f"looked at {sum(count for count, _faults in results.values()):,} partitions of {len(results):,} groups"
    )
    return 0 if isGood else 1


def _document(fault: OwnershipFault) -> dict[str, Any]:
    return {
        "topic": fault.topic,
        **fault.partition._asdict(),
        "owner": fault.owner,
        "reason": fault.reason,
    }


async def _verify(cluster: ClusterSession, name: str) -> tuple[int, list[OwnershipFault]]:
    """
    @return: how many partitions the group should read; what is wrong with them.
    """
    group = paths.GroupPaths(name)
    subscriptions = {
        member: node.subscription
        for member, node in (await cluster.registries.members(group)).items()
    }
    try:
        threadCounts = threadCountsByTopic(subscriptions, await cluster.registries.topics())
    except InvalidPatternError as error:
        raise CommandError(f"{name}: {error}") from error
    partitions: dict[str, list[BrokerPartition]] = {}
    for topic, partition in await cluster.registries.partitions(threadCounts):
        partitions.setdefault(topic, []).append(partition)
    owners = await cluster.registries.owners(group)
    return sum(map(len, partitions.values())), ownershipFaults(threadCounts, partitions, owners)
