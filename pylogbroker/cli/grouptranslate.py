"""
C{pylogbroker groups translate}: a consumer group moves from a cluster that is mirrored to the mirror's target.

Where it goes on there is what L{pylogbroker.mirror.offsetsyncs} makes of the mirror's tables: at or before the true point, never behind it. Where a table says
nothing, that is the oldest message that there is. As with C{groups reset}, nothing is changed by accident (L{pylogbroker.cli.groupoffsets}).
"""

from __future__ import annotations

import argparse
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import addOtherAccess, group
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.groupoffsets import addChange, addTopics, change, readOffsets
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.offsetexport import GroupOffset
from pylogbroker.mirror.offsetsyncs import readTables, translate
from pylogbroker.types import BrokerPartition, PartitionId

_EXAMPLES = """\
examples:
  pylogbroker groups translate counters --from zk1:2181 --mirror-group mirror --zookeeper zk2:2181
  pylogbroker groups translate counters --from zk1:2181 --mirror-group mirror --zookeeper zk2:2181 --execute

End the group's members in the old cluster first, and begin them in the new one afterwards. They find there all that they had not read,
and a little that they had. The mirror may be running or not.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument("group", metavar="GROUP", type=group, help="the group that moves")
    parser.add_argument(
        "--from", dest="source", metavar="HOST:PORT", required=True,
        help="ZooKeeper's servers of the cluster that was mirrored; --zookeeper has those of the mirror's target",
    )  # fmt: skip
    addOtherAccess(parser, "from", "the cluster that was mirrored")
    parser.add_argument(
        "--mirror-group",
        dest="mirrorGroup",
        metavar="GROUP",
        type=group,
        required=True,
        help="the groupid of the mirror, in that cluster",
    )
    parser.add_argument(
        "--to-group",
        dest="toGroup",
        metavar="GROUP",
        type=group,
        help="how the group is called in the target; without, the same",
    )
    addTopics(parser)
    addChange(parser)


async def translateOffsets(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Show or write where a group goes on in the target.

    @return: the exit code.
    @raise PylogbrokerError: one of the clusters cannot be reached, the group has no positions, nothing was mirrored, or it is refused.
    """
    async with ClusterSession(
        reactor, options.source, options.timeoutMs, options.otherAccess
    ) as source:
        found = [
            each
            for each in await readOffsets(source, options.group)
            if not options.topics or each.topic in options.topics
        ]
        if not found:
            raise CommandError(f"the group {options.group} has no positions at {options.source}")
        positions = {PartitionId(each.topic, each.partition): each.offset for each in found}
        tables = await readTables(
            source.zookeeper, options.mirrorGroup, sorted({place.topic for place in positions})
        )
        problems = source.problems
    if not tables:
        raise CommandError(
            f"no mirror of the group {options.mirrorGroup} has written down offsets of these topics"
        )
    problems += [
        f"{place} was not mirrored: what came of it begins at the beginning"
        for place in positions
        if place not in tables
    ]
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as target:
        target.problems += problems
        partitions: dict[str, list[BrokerPartition]] = {place.topic: [] for place in positions}
        for name, partition in await target.registries.partitions(partitions):
            partitions[name].append(partition)
        wanted = [
            GroupOffset(
                options.toGroup or options.group,
                place.topic,
                place.partition,
                await _there(target, place, offset),
            )
            for place, offset in sorted(translate(positions, tables, partitions).items())
        ]
        await change(reactor, target, wanted, options, streams)
    return 0


async def _there(target: ClusterSession, place: PartitionId, offset: int) -> int:
    """An offset that there is: what has been deleted cannot be gone back to."""
    start, end = await target.ends.start(*place), await target.ends.end(*place)
    if offset > end:
        target.problems.append(
            f"{place} of the target ends at {end}, and had reached {offset} before: its data were lost. The group begins at the beginning"
        )
        return start
    return max(offset, start)
