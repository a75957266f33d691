"""
C{group}: consumer groups: members, offsets and lag (0.7's ConsumerOffsetChecker), owners
(VerifyConsumerRebalance), and changes of committed offsets (ExportZkOffsets, ImportZkOffsets,
UpdateOffsetsInZK; spec-0.7 tools §5, §8).

What must be true: a change is never an accident. C{import}, C{reset} and C{translate} show what
they would do; C{--execute} does it. They refuse a group with members, since a member commits its
own offsets over the new ones, and an offset at which no message begins. C{--force} overrides that.

Nodes that cannot be read and brokers that do not answer are named; the rest is shown.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addJson,
    addOtherAccess,
    addRequiredZookeeper,
    brokerPartition,
    flag,
    group,
    intRange,
    option,
    time,
    topic,
)
from pylogbroker.cli.output import asJson, table, tableOfRows
from pylogbroker.cli.session import ClusterSession
from pylogbroker.cli.streams import Streams, openInput
from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.client.offsetlookup import UNKNOWN, MessageAgeBounds
from pylogbroker.cluster.assignment import (
    OwnershipFault,
    ownershipFaults,
    threadCountsByTopic,
)
from pylogbroker.cluster.offsetexport import GroupOffset, decodeOffsetLines
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import decodeNumber, encodeNumber
from pylogbroker.errors import (
    FormatError,
    InvalidNameError,
    InvalidPatternError,
    PylogbrokerError,
)
from pylogbroker.mirror.offsetsyncs import readTables, translate
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.types import (
    EARLIEST,
    LATEST,
    BrokerPartition,
    PartitionId,
    escapeUnprintable,
)
from pylogbroker.zookeeper.ephemeral import write

FILE_SIZE_MAX = 64 << 20
CHECK_SIZE = 1 << 20
"""Bytes to fetch when checking that a message begins at an offset."""

_LIST_EXAMPLES = """\
examples:
  pylogbroker group list --zookeeper zk1:2181
  pylogbroker group list --zookeeper zk1:2181 --json
"""
_DESCRIBE_EXAMPLES = """\
examples:
  pylogbroker group describe --zookeeper zk1:2181
  pylogbroker group describe counters --zookeeper zk1:2181 --json

OFFSET is the committed offset, END the end of the log, LAG the bytes between them. BEHIND tells
when the first message behind OFFSET was written. Messages of this protocol carry no time, so BEHIND
is a range from the modification times of segment files: 5m-2h is at least 5 minutes and at most 2
hours, >5m is at least 5 minutes, and - is unknown.
"""
_VERIFY_EXAMPLES = """\
examples:
  pylogbroker group verify counters --zookeeper zk1:2181
  pylogbroker group verify --zookeeper zk1:2181 --json

The exit code is 1 when a partition of a topic that a member reads has no owner, or an owner that is
no thread of such a member, and when there are no members. While members come and go this happens
for a moment.
"""
_EXPORT_EXAMPLES = """\
examples:
  pylogbroker group export --zookeeper zk1:2181 --output offsets.txt
  pylogbroker group export counters --zookeeper zk1:2181

Each line is /consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>, as in 0.7's
ExportZkOffsets.
"""
_IMPORT_EXAMPLES = """\
examples:
  pylogbroker group import offsets.txt --zookeeper zk1:2181
  pylogbroker group import offsets.txt --zookeeper zk1:2181 --execute --force

The first shows the changes. The second makes them, even while members run.
"""
_RESET_EXAMPLES = """\
examples:
  pylogbroker group reset counters --to-earliest --zookeeper zk1:2181
  pylogbroker group reset counters --to-latest --topic clicks --zookeeper zk1:2181 --execute
  pylogbroker group reset counters --to-datetime 2026-01-31T12:00 --zookeeper zk1:2181 --json
  pylogbroker group reset counters --to-offset 0 --topic clicks --partition 0-0 --zookeeper zk1:2181

Without --execute nothing is changed. Messages of this protocol carry no time: --to-datetime goes to
the start of the last segment file that was not modified after that time, or else to the earliest
message, so that no later message is left out.
"""
_TRANSLATE_EXAMPLES = """\
examples:
  pylogbroker group translate counters --from zk1:2181 --mirror-group mirror --zookeeper zk2:2181
  pylogbroker group translate counters --from zk1:2181 --mirror-group mirror --zookeeper zk2:2181 --execute

First stop the group's members in the old cluster, then start them in the new one. They find there
all messages that they had not read, and a few that they had. The mirror may run or not.
"""

# -- list --------------------------------------------------------------------------------------


def addListArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group list}."""
    parser.epilog = _LIST_EXAMPLES
    addRequiredZookeeper(parser)
    addJson(parser)


async def listGroups(options: Namespace, streams: Streams) -> int:
    """Print a line for each group: its members, and the topics in which it has offsets."""
    async with ClusterSession(options, streams) as cluster:
        rows = []
        for name in await cluster.reader.groups():
            paths = GroupPaths(name)
            members = await cluster.reader.children(paths.ids)
            topics = await cluster.reader.children(paths.offsets)
            rows.append((name, len(members), len(topics)))
    if options.json:
        keys = ("group", "memberCount", "topicCount")
        text = asJson({"groups": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        text = tableOfRows(("GROUP", "MEMBERS", "TOPICS"), rows)
        if not rows:
            streams.say("there are no consumer groups")
    await streams.show(text)
    return 0


# -- describe ----------------------------------------------------------------------------------


def addDescribeArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group describe}."""
    parser.epilog = _DESCRIBE_EXAMPLES
    _addGroups(parser, "all")
    addRequiredZookeeper(parser)
    addJson(parser, "print one JSON document instead of tables; times are milliseconds")


def _addGroups(parser: ArgumentParser, default: str) -> None:
    parser.add_argument(
        "groups", metavar="GROUP", nargs="*", type=group, help=f"the groups; by default, {default}"
    )


@dataclass
class PartitionReport:
    """
    A partition of a topic that a group reads.

    @ivar owner: the thread that owns it.
    @ivar offset: the committed offset; L{None} without one.
    @ivar end: of the log; L{None} when the broker does not answer.
    """

    topic: str
    partition: BrokerPartition
    owner: str | None = None
    offset: int | None = None
    end: int | None = None
    ages: MessageAgeBounds = UNKNOWN

    @property
    def lag(self) -> int | None:
        """Bytes; negative when the log was emptied and ends before the offset."""
        return None if self.offset is None or self.end is None else self.end - self.offset

    def asDocument(self) -> dict[str, Any]:
        """The value for C{--json}."""
        return {
            "topic": self.topic,
            **self.partition._asdict(),
            "owner": self.owner,
            "offset": self.offset,
            "end": self.end,
            "lag": self.lag,
            "behindMsMin": self.ages.least,
            "behindMsMax": self.ages.most,
        }


@dataclass
class GroupReport:
    """
    A consumer group.

    @ivar members: subscriptions by member id.
    @ivar problems: what could not be read, for people.
    """

    group: str
    members: dict[str, str] = field(default_factory=dict)
    partitions: list[PartitionReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def asDocument(self) -> dict[str, Any]:
        """The value for C{--json}."""
        members = [{"id": name, "subscription": wanted} for name, wanted in self.members.items()]
        return {
            "group": self.group,
            "members": members,
            "partitions": [each.asDocument() for each in self.partitions],
            "problems": self.problems,
        }


async def describeGroups(options: Namespace, streams: Streams) -> int:
    """Print members and partitions of groups."""
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownGroups(options.groups)
        reports = [await GroupReader(cluster, name).read() for name in names]
    if options.json:
        text = asJson({"groups": [each.asDocument() for each in reports]})
    else:
        text = "\n".join(asTable(each) for each in reports)
        for problem in [problem for each in reports for problem in each.problems]:
            streams.warn(problem)
        if not reports:
            streams.say("there are no consumer groups")
    await streams.show(text)
    return 0


class GroupReader:
    """Reads one group: first its nodes in ZooKeeper, then the ends of the logs from the brokers."""

    def __init__(self, cluster: ClusterSession, name: str) -> None:
        self._offsets = cluster.offsets
        self._report = GroupReport(name)
        self._reader = ClusterMetadataReader(cluster.zookeeper, self._report.problems.append)
        self._paths = GroupPaths(name)

    async def read(self) -> GroupReport:
        """
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper does not answer.
        """
        report, reader, paths = self._report, self._reader, self._paths
        topics = await self._readMembers()
        owners, offsets = await reader.owners(paths), await reader.offsets(paths)
        topics |= {*await reader.children(paths.owners), *await reader.children(paths.offsets)}
        partitions = {*await reader.partitions(sorted(topics)), *owners, *offsets}
        report.partitions = [
            PartitionReport(*each, owners.get(each), offsets.get(each))
            for each in sorted(partitions)
        ]
        self._checkOwners()
        byBroker: dict[int, list[PartitionReport]] = {}
        for each in report.partitions:
            byBroker.setdefault(each.partition.broker, []).append(each)
        await gatherAll([self._askBroker(number, each) for number, each in byBroker.items()])
        return report

    async def _readMembers(self) -> set[str]:
        wanted: set[str] = set()
        names = await self._reader.topics()
        for name, (text, subscription) in (await self._reader.members(self._paths)).items():
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
        """Ask for ends and ages, until the broker does not answer."""
        problems = self._report.problems
        try:
            for each in partitions:
                end = each.end = await self._offsets.end(each.topic, each.partition)
                if each.offset is None:
                    continue
                if each.offset == end:
                    each.ages = MessageAgeBounds(0, 0)
                elif each.offset < end:
                    each.ages = await self._offsets.ages(each.topic, each.partition, each.offset)
                else:
                    problems.append(
                        f"{each.topic} {each.partition}: the offset {each.offset} "
                        f"is behind the end of the log, {end}"
                    )
        except PylogbrokerError as error:
            problems.append(f"broker {number} cannot be asked: {error}")


def asTable(report: GroupReport) -> str:
    """A group for people."""
    lines = [f"group {escapeUnprintable(report.group)}"]
    lines += [
        f"  member {escapeUnprintable(name)}  {escapeUnprintable(wanted)}"
        for name, wanted in report.members.items()
    ] or ["  no members"]
    if report.partitions:
        rows = [
            (
                each.topic,
                str(each.partition),
                each.offset,
                each.end,
                each.lag,
                formatAges(each.ages),
                each.owner,
            )
            for each in report.partitions
        ]
        headings = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "BEHIND", "OWNER")
        lines += [f"  {line}" for line in table(headings, rows).splitlines()]
    return "".join(f"{line}\n" for line in lines)


def formatAges(ages: MessageAgeBounds) -> str:
    """C{5m-2h}, C{>5m}, C{<2h}, or C{-}. The least is rounded down, the most up."""
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


# -- verify ------------------------------------------------------------------------------------


def addVerifyArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group verify}."""
    parser.epilog = _VERIFY_EXAMPLES
    _addGroups(parser, "all with members")
    addRequiredZookeeper(parser)
    addJson(parser)


async def verifyGroups(options: Namespace, streams: Streams) -> int:
    """Check that each partition that a group reads has an owner among its members."""
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownGroups(options.groups)
        active = [name for name in names if await cluster.reader.children(GroupPaths(name).ids)]
        idle = [name for name in options.groups if name not in active]
        if idle or not active:
            what = f"no members in {', '.join(idle)}" if idle else "no consumer group with members"
            raise CommandError(f"there is nothing to verify: {what}")
        results = {name: await _verify(cluster, name) for name in active}
    isGood = not cluster.problems and not any(faults for _count, faults in results.values())
    if options.json:
        documents = [
            {
                "group": name,
                "partitionCount": count,
                "faults": [_asDocument(each) for each in faults],
            }
            for name, (count, faults) in results.items()
        ]
        text = asJson({"groups": documents, "problems": cluster.problems, "successful": isGood})
    else:
        rows = [
            (name, fault.topic, str(fault.partition), fault.owner, fault.reason)
            for name, (_count, faults) in results.items()
            for fault in faults
        ]
        text = tableOfRows(("GROUP", "TOPIC", "PARTITION", "OWNER", "WRONG"), rows)
        text += f"Rebalance operation {'successful' if isGood else 'failed'} !\n"
        cluster.warnOfProblems()
    await streams.show(text)
    count = sum(count for count, _faults in results.values())
    streams.say(f"looked at {count:,} partitions of {len(results):,} groups")
    return 0 if isGood else 1


def _asDocument(fault: OwnershipFault) -> dict[str, Any]:
    return {
        "topic": fault.topic,
        **fault.partition._asdict(),
        "owner": fault.owner,
        "reason": fault.reason,
    }


async def _verify(cluster: ClusterSession, name: str) -> tuple[int, list[OwnershipFault]]:
    paths, reader = GroupPaths(name), cluster.reader
    members = (await reader.members(paths)).items()
    subscriptions = {member: node.subscription for member, node in members}
    try:
        threadCounts = threadCountsByTopic(subscriptions, await reader.topics())
    except InvalidPatternError as error:
        raise CommandError(f"{name}: {error}") from error
    partitions: dict[str, list[BrokerPartition]] = {}
    for topicName, partition in await reader.partitions(threadCounts):
        partitions.setdefault(topicName, []).append(partition)
    faults = ownershipFaults(threadCounts, partitions, await reader.owners(paths))
    return sum(map(len, partitions.values())), faults


# -- export ------------------------------------------------------------------------------------


def addExportArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group export}."""
    parser.epilog = _EXPORT_EXAMPLES
    _addGroups(parser, "all")
    option(parser, "--output FILE", "a new file; by default, standard output")
    addRequiredZookeeper(parser)
    addJson(parser, "print one JSON document instead of lines")


async def exportOffsets(options: Namespace, streams: Streams) -> int:
    """Print or write the committed offsets of groups."""
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownGroups(options.groups)
        found = [each for name in names for each in await _committedOffsets(cluster, name)]
    if options.json:
        documents = [{**_where(each), "offset": each.offset} for each in found]
        text = asJson({"offsets": documents, "problems": cluster.problems})
    else:
        text = "".join(f"{each.encode()}\n" for each in found)
    if options.output is None:
        await streams.show(text)
    else:
        _writeFile(options.output, text)
    cluster.warnOfProblems()
    groupCount = len({each.group for each in found})
    streams.say(f"exported {len(found):,} offsets of {groupCount:,} groups")
    return 1 if cluster.problems else 0


def _where(each: GroupOffset) -> dict[str, Any]:
    return {"group": each.group, "topic": each.topic, **each.partition._asdict()}


def _writeFile(path: str, text: str) -> None:
    """Write a new file. An existing one may be the only copy of older offsets."""
    try:
        with open(path, "x", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


async def _committedOffsets(cluster: ClusterSession, name: str) -> list[GroupOffset]:
    found = await cluster.reader.offsets(GroupPaths(name))
    return [GroupOffset(name, *partitionId, offset) for partitionId, offset in found.items()]


# -- changes -----------------------------------------------------------------------------------


class OffsetChange(NamedTuple):
    """
    A new offset.

    @ivar old: the present offset; L{None} without a readable one.
    """

    wanted: GroupOffset
    old: int | None


def _addTopics(parser: ArgumentParser) -> None:
    option(
        parser,
        "--topic TOPIC",
        "a topic; can be repeated; by default, all in which the group has offsets",
        topic,
        action="append",
        dest="topics",
    )


def _addChange(parser: ArgumentParser) -> None:
    flag(parser, "--execute", "make the changes; by default, they are only shown")
    flag(
        parser,
        "--force",
        "make refused changes, too: to a group with members, or to an offset at which "
        "no message begins",
    )
    addRequiredZookeeper(parser)
    addJson(parser)


async def _change(
    cluster: ClusterSession, wanted: Sequence[GroupOffset], options: Namespace, streams: Streams
) -> None:
    changes = [OffsetChange(each, await _oldOffset(cluster, each)) for each in wanted]
    running = [
        name
        for name in sorted({each.group for each in wanted})
        if await cluster.reader.children(GroupPaths(name).ids)
    ]
    refusal = (
        f"there are members in {', '.join(running)}: "
        "they would write their own positions over these; end them first"
        if running
        else None
    )
    isDone = options.execute and (refusal is None or options.force)
    if isDone:
        for each in wanted:
            await write(cluster.zookeeper, each.path, encodeNumber(each.offset))
    if options.json:
        documents = [{**_where(each), "old": old, "new": each.offset} for each, old in changes]
        text = asJson({"changes": documents, "executed": isDone})
    else:
        text = _changesTable(changes)
    await streams.show(text)
    cluster.warnOfProblems()
    if refusal is not None:
        if options.execute and not isDone:
            raise CommandError(f"nothing was changed: {refusal}")
        streams.warn(refusal)
    streams.say(
        f"set {len(changes):,} offsets" if isDone else "nothing was changed; --execute does it"
    )


async def _oldOffset(cluster: ClusterSession, each: GroupOffset) -> int | None:
    try:
        return await cluster.reader.value(each.path, decodeNumber)
    except InvalidNameError as error:
        raise CommandError(str(error)) from error


def _changesTable(changes: Iterable[OffsetChange]) -> str:
    rows = []
    for each, old in changes:
        change = None if old is None else each.offset - old
        rows.append((each.group, each.topic, str(each.partition), old, each.offset, change))
    return table(("GROUP", "TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"), rows)


async def _requireMessageAt(cluster: ClusterSession, each: PartitionId, offset: int) -> None:
    """Check that a message begins at an offset, or the log ends; else raise L{CommandError}."""
    where = f"{each.topic} {each.partition}"
    start, end = await cluster.offsets.start(*each), await cluster.offsets.end(*each)
    if not start <= offset <= end:
        raise CommandError(f"{where} holds {start} to {end}, and not {offset}")
    if offset == end:
        return
    consumer = await cluster.offsets.consumer(each.partition.broker)
    fetched = await consumer.fetch(each.topic, each.partition.partition, offset, CHECK_SIZE)
    try:
        next(iter(fetched.shallow()), None)
    except FormatError as error:
        raise CommandError(
            f"at offset {offset} of {where} no message begins, "
            f"or one of more than {CHECK_SIZE:,} bytes: {error.reason}"
        ) from error


# -- import ------------------------------------------------------------------------------------


def addImportArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group import}."""
    parser.epilog = _IMPORT_EXAMPLES
    parser.add_argument(
        "file", metavar="FILE", help="the output of group export; - is standard input"
    )
    _addChange(parser)


async def importOffsets(options: Namespace, streams: Streams) -> int:
    """Show or write the offsets of a file."""
    wanted = decodeOffsetLines(_readFile(options.file, streams).split("\n"))
    async with ClusterSession(options, streams) as cluster:
        if not options.force:
            await _requireMessages(cluster, wanted)
        await _change(cluster, wanted, options, streams)
    return 0


async def _requireMessages(cluster: ClusterSession, wanted: Iterable[GroupOffset]) -> None:
    """Refuse offsets that are known to be wrong. An absent broker does not prevent an import."""
    silent: set[int] = set()
    for each in wanted:
        if each.partition.broker not in silent:
            try:
                await _requireMessageAt(
                    cluster, PartitionId(each.topic, each.partition), each.offset
                )
            except CommandError:
                raise
            except PylogbrokerError:
                silent.add(each.partition.broker)


def _readFile(path: str, streams: Streams) -> str:
    try:
        descriptor, name = openInput(path, streams.input)
        with open(descriptor, "rb", closefd=descriptor != streams.input) as file:
            data = file.read(FILE_SIZE_MAX + 1)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"cannot read {path!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if len(data) > FILE_SIZE_MAX:
        raise CommandError(
            f"{name} has more than {FILE_SIZE_MAX:,} bytes: that is no export of offsets"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8: that is no export of offsets") from error


# -- reset -------------------------------------------------------------------------------------


def addResetArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group reset}."""
    parser.epilog = _RESET_EXAMPLES
    parser.add_argument("group", metavar="GROUP", type=group, help="the group")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--to-earliest",
        dest="to",
        action="store_const",
        const=EARLIEST,
        help="to the oldest messages",
    )
    target.add_argument(
        "--to-latest", dest="to", action="store_const", const=LATEST, help="to the ends of the logs"
    )
    option(
        target,
        "--to-datetime TIME",
        "to a time: milliseconds since 1970, or a date like 2026-01-31T12:00",
        time,
        dest="to",
    )
    option(
        target,
        "--to-offset N",
        "to an offset at which a message begins, or the log ends",
        intRange(0),
    )
    _addTopics(parser)
    option(
        parser,
        "--partition BROKER-PARTITION",
        "a partition; can be repeated; by default, all",
        brokerPartition,
        action="append",
        dest="partitions",
    )
    _addChange(parser)


async def resetOffsets(options: Namespace, streams: Streams) -> int:
    """Show or write new offsets of a group."""
    async with ClusterSession(options, streams) as cluster:
        partitions = await _chosenPartitions(cluster, options)
        wanted = [
            GroupOffset(options.group, *each, await _target(cluster, each, options))
            for each in partitions
        ]
        await _change(cluster, wanted, options, streams)
    return 0


async def _chosenPartitions(cluster: ClusterSession, options: Namespace) -> list[PartitionId]:
    if options.topics:
        topics = await cluster.knownTopics(sorted(set(options.topics)))
    else:
        topics = await cluster.reader.children(GroupPaths(options.group).offsets)
        if not topics:
            raise CommandError(f"the group {options.group} has no positions; give --topic")
    found = await cluster.reader.partitions(topics)
    if options.partitions:
        known = {each.partition for each in found}
        missing = [str(partition) for partition in options.partitions if partition not in known]
        if missing:
            raise CommandError(f"there is no partition {', '.join(missing)} of {', '.join(topics)}")
        found = [each for each in found if each.partition in options.partitions]
    if not found:
        raise CommandError(f"{', '.join(topics)} has no partitions")
    return found


async def _target(cluster: ClusterSession, each: PartitionId, options: Namespace) -> int:
    if options.toOffset is None:
        found = await cluster.offsets.before(*each, options.to, 1)
        return found[0] if found else await cluster.offsets.start(*each)
    offset = int(options.toOffset)
    if not options.force:
        await _requireMessageAt(cluster, each, offset)
    return offset


# -- translate ---------------------------------------------------------------------------------


def addTranslateArguments(parser: ArgumentParser) -> None:
    """Arguments of C{group translate}."""
    parser.epilog = _TRANSLATE_EXAMPLES
    parser.add_argument("group", metavar="GROUP", type=group, help="the group that moves")
    option(
        parser,
        "--from HOST:PORT",
        "ZooKeeper's servers of the mirror's source; --zookeeper names those of its target",
        required=True,
        dest="source",
    )
    addOtherAccess(parser, "from", "the source cluster")
    option(
        parser,
        "--mirror-group GROUP",
        "groupid of the mirror in the source cluster",
        group,
        required=True,
    )
    option(
        parser, "--to-group GROUP", "the group's name in the target; by default, the same", group
    )
    _addTopics(parser)
    _addChange(parser)


async def translateOffsets(options: Namespace, streams: Streams) -> int:
    """
    Show or write where a group continues in the target of a mirror.

    A new offset is at or before the true one (L{pylogbroker.mirror.offsetsyncs}); without an offset
    sync it is that of the oldest message.
    """
    async with ClusterSession(options, streams, options.source, options.otherAccess) as source:
        positions = {
            PartitionId(each.topic, each.partition): each.offset
            for each in await _committedOffsets(source, options.group)
            if not options.topics or each.topic in options.topics
        }
        if not positions:
            raise CommandError(f"the group {options.group} has no positions at {options.source}")
        topics = sorted({each.topic for each in positions})
        tables = await readTables(source.zookeeper, options.mirrorGroup, topics)
    if not tables:
        raise CommandError(
            f"no mirror of the group {options.mirrorGroup} has written down offsets of these topics"
        )
    async with ClusterSession(options, streams) as target:
        target.problems += source.problems
        target.problems += [
            f"{each} was not mirrored: what came of it begins at the beginning"
            for each in positions
            if each not in tables
        ]
        partitions: dict[str, list[BrokerPartition]] = {each.topic: [] for each in positions}
        for name, partition in await target.reader.partitions(partitions):
            partitions[name].append(partition)
        wanted = [
            GroupOffset(
                options.toGroup or options.group, *each, await _existing(target, each, offset)
            )
            for each, offset in sorted(translate(positions, tables, partitions).items())
        ]
        await _change(target, wanted, options, streams)
    return 0


async def _existing(target: ClusterSession, each: PartitionId, offset: int) -> int:
    start, end = await target.offsets.start(*each), await target.offsets.end(*each)
    if offset > end:
        target.problems.append(
            f"{each} of the target ends at {end}, and had reached {offset} before: "
            "its data were lost. The group begins at the beginning"
        )
        return start
    return max(offset, start)
