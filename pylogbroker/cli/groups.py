"""
C{pylogbroker groups}: who is in the consumer groups, where they are, and how far they are behind (0.7's ConsumerOffsetChecker, spec-0.7 tools §5).

How far is told in bytes, and in time as far as brokers know it (L{pylogbroker.client.offsetlookup}): when the first message behind the committed offset
may have been written. What others have written into ZooKeeper and cannot be read, and brokers that cannot be asked, are named, and the rest is shown
all the same.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

from pylogbroker.cli.arguments import addJson, addRequiredZookeeper, group
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import asJson, show, table
from pylogbroker.client.clusterreader import ClusterReader
from pylogbroker.client.offsetlookup import UNKNOWN, MessageAge
from pylogbroker.cluster import paths
from pylogbroker.errors import InvalidPatternError, PylogbrokerError
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.types import BrokerPartition, escapeUnprintable

_EXAMPLES = """\
examples:
  pylogbroker groups --zookeeper zk1:2181
  pylogbroker groups counters --zookeeper zk1:2181 --json

OFFSET is what the group has committed, END where the log ends, LAG the bytes between them. BEHIND says how long ago the first message
behind OFFSET was written. Messages of this protocol carry no time, so it is a range, from when the segment files were last written
to: 5m-2h is at least 5 minutes and at most 2 hours, >5m at least 5 minutes, and - is shown where brokers cannot tell.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "groups", metavar="GROUP", nargs="*", type=group, help="the groups to show; without, all"
    )
    addRequiredZookeeper(parser)
    addJson(parser, "one JSON document instead of tables; times are milliseconds")


@dataclass
class PartitionReport:
    """
    A partition of a topic that a group reads.

    @ivar owner: the thread that has it; L{None} for nobody.
    @ivar offset: what is committed; L{None} for nothing.
    @ivar end: of the log; L{None} when the broker could not be asked.
    """

    topic: str
    partition: BrokerPartition
    owner: str | None = None
    offset: int | None = None
    end: int | None = None
    ages: MessageAge = UNKNOWN

    @property
    def lag(self) -> int | None:
        """Bytes; negative when the log ends before the offset, since somebody has emptied it."""
        return None if self.offset is None or self.end is None else self.end - self.offset

    def asJson(self) -> dict[str, Any]:
        """As C{--json} has it."""
        broker, partition = self.partition
        found = {
            "topic": self.topic,
            "broker": broker,
            "partition": partition,
            "owner": self.owner,
            "offset": self.offset,
            "end": self.end,
            "lag": self.lag,
        }
        return {**found, "behindMsMin": self.ages.least, "behindMsMax": self.ages.most}


@dataclass
class GroupReport:
    """
    @ivar members: ids, and what each wants to read.
    @ivar problems: for people: what could not be read.
    """

    group: str
    members: dict[str, str] = field(default_factory=dict)
    partitions: list[PartitionReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def asJson(self) -> dict[str, Any]:
        """As C{--json} has it."""
        members = [{"id": name, "subscription": wanted} for name, wanted in self.members.items()]
        return {
            "group": self.group,
            "members": members,
            "partitions": [each.asJson() for each in self.partitions],
            "problems": self.problems,
        }


async def groups(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print them.

    @return: the exit code.
    @raise PylogbrokerError: ZooKeeper cannot be read, or there is no such group.
    """
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        names = await cluster.knownGroups(options.groups)
        reports = [await GroupReading(cluster, name).read() for name in names]
    if options.isJson:
        text = asJson({"groups": [each.asJson() for each in reports]})
    else:
        text = "\n".join(asTable(each) for each in reports)
        for problem in [problem for each in reports for problem in each.problems]:
            streams.say(f"pylogbroker: {problem}")
        if not reports:
            streams.say("there are no consumer groups")
    await show(reactor, streams, text)
    return 0


class GroupReading:
    """Reads one group: first what stands in ZooKeeper, then what the brokers say."""

    def __init__(self, cluster: ClusterSession, name: str) -> None:
        self._ends = cluster.ends
        self._report = GroupReport(name)
        self._registries = ClusterReader(cluster.zookeeper, self._report.problems.append)
        self._paths = paths.GroupPaths(name)

    async def read(self) -> GroupReport:
        """
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper does not answer.
        """
        report, registries = self._report, self._registries
        topics = await self._readMembers()
        owners, offsets = (
            await registries.owners(self._paths),
            await registries.offsets(self._paths),
        )
        topics |= {
            *await registries.children(self._paths.owners),
            *await registries.children(self._paths.offsets),
        }
        places = {*await registries.partitions(sorted(topics)), *owners, *offsets}
        report.partitions = [
            PartitionReport(*place, owners.get(place), offsets.get(place))
            for place in sorted(places)
        ]
        self._checkOwners()
        byBroker: dict[int, list[PartitionReport]] = {}
        for each in report.partitions:
            byBroker.setdefault(each.partition.broker, []).append(each)
        await gatherAll([self._askBroker(number, each) for number, each in byBroker.items()])
        return report

    async def _readMembers(self) -> set[str]:
        """What they want to read, too."""
        wanted: set[str] = set()
        names = await self._registries.topics()
        for name, (text, subscription) in (await self._registries.members(self._paths)).items():
            self._report.members[name] = text
            try:
                wanted.update(subscription.streamCounts(names))
            except InvalidPatternError as error:
                self._report.problems.append(f"{self._paths.ids}/{name}: {error}")
        return wanted

    def _checkOwners(self) -> None:
        """An owner is a thread, C{<member>-<number>}."""
        for each in self._report.partitions:
            if each.owner is not None and each.owner.rpartition("-")[0] not in self._report.members:
                where = self._paths.owner(each.topic, each.partition)
                self._report.problems.append(
                    f"{where}: the owner, {each.owner!r}, is no thread of a member"
                )

    async def _askBroker(self, number: int, partitions: list[PartitionReport]) -> None:
        """One that does not answer is asked no more."""
        try:
            for each in partitions:
                each.end = await self._ends.end(each.topic, each.partition)
                if each.offset is not None and each.lag == 0:
                    each.ages = MessageAge(0, 0)
                elif each.offset is not None and each.offset < each.end:
                    each.ages = await self._ends.ages(each.topic, each.partition, each.offset)
                elif each.offset is not None:
                    text = f"{each.topic} {each.partition}: the offset {each.offset} is behind the end of the log, {each.end}"
                    self._report.problems.append(text)
        except PylogbrokerError as error:
            self._report.problems.append(f"broker {number} cannot be asked: {error}")


_HEADINGS = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "BEHIND", "OWNER")


def asTable(report: GroupReport) -> str:
    """A group for people."""
    lines = [f"group {escapeUnprintable(report.group)}"]
    lines += [
        f"  member {escapeUnprintable(name)}  {escapeUnprintable(wanted)}"
        for name, wanted in report.members.items()
    ] or ["  no members"]
    if report.partitions:
        rows = [
            (each.topic, str(each.partition), each.offset, each.end, each.lag, shownAges(each.ages), each.owner) for each in report.partitions
        ]  # fmt: skip
        lines += [f"  {line}" for line in table(_HEADINGS, rows).splitlines()]
    return "".join(f"{line}\n" for line in lines)


def shownAges(ages: MessageAge) -> str:
    """C{5m-2h}; C{>5m}; C{<2h}; C{-} when nothing is known. The least is rounded down and the most up."""
    if ages.least is None and ages.most is None:
        return "-"
    if ages.most is None:
        return f">{_duration(ages.least or 0)}"
    if ages.least is None:
        return f"<{_duration(ages.most, True)}"
    least, most = _duration(ages.least), _duration(ages.most, True)
    return least if least == most else f"{least}-{most}"


def _duration(durationMs: int, isUp: bool = False) -> str:
    for sizeMs, limitMs, letter in (
        (1_000, 120_000, "s"),
        (60_000, 7_200_000, "m"),
        (3_600_000, 172_800_000, "h"),
        (86_400_000, 2**63, "d"),
    ):
        if durationMs < limitMs:
            break
    return f"{-(-durationMs // sizeMs) if isUp else durationMs // sizeMs}{letter}"
