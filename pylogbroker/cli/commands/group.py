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

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import indent

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    AT_BOOTSTRAP,
    IN_CLUSTER,
    IN_EITHER,
    JSON,
    LONG_MAX,
    TO_POSITION,
    Argument,
    Command,
    anyPartition,
    either,
    flag,
    group,
    intRange,
    isCurrent,
    option,
    rejectOptions,
    repeated,
    topic,
)
from pylogbroker.cli.kafka import groupoffsets, groups
from pylogbroker.cli.kafka.groupoffsets import EXPORT, OFFSETS_SIZE_MAX
from pylogbroker.cli.output import asJson, table, tableOfRows
from pylogbroker.cli.session import ClusterSession
from pylogbroker.cli.streams import Streams, readText, writeNewFile
from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.client.offsetlookup import MessageAgeBounds
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
    InvalidPatternError,
    PylogbrokerError,
)
from pylogbroker.mirror.offsetsyncs import readTables, translate
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.types import (
    BrokerPartition,
    PartitionId,
    escapeUnprintable,
    formatCount,
)
from pylogbroker.zookeeper.ephemeral import write

CHECK_SIZE = 1 << 20
"""Bytes to fetch when checking that a message begins at an offset."""
_NO_GROUPS = "there are no consumer groups"


# -- list --------------------------------------------------------------------------------------


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
            streams.say(_NO_GROUPS)
    await streams.show(text)
    return 0


def _document(topic: str, partition: BrokerPartition, **values: object) -> dict[str, object]:
    return {"topic": topic, **partition._asdict(), **values}


# -- describe ----------------------------------------------------------------------------------


@dataclass
class PartitionReport:
    """
    A partition of a topic that a group reads, with the fields of C{--json}.

    @ivar owner: the thread that owns it.
    @ivar offset: the committed offset; L{None} without one.
    @ivar end: of the log; L{None} when the broker does not answer.
    @ivar lag: bytes; negative when the log was emptied and ends before the offset.
    @ivar behindMsMin: the least age of the first message behind C{offset}.
    @ivar behindMsMax: its greatest age.
    """

    topic: str
    broker: int
    partition: int
    owner: str | None
    offset: int | None
    end: int | None = None
    lag: int | None = None
    behindMsMin: int | None = None
    behindMsMax: int | None = None


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

    def asDocument(self) -> dict[str, object]:
        """The value for C{--json}."""
        members = [{"id": name, "subscription": wanted} for name, wanted in self.members.items()]
        return {**vars(self), "members": members, "partitions": [*map(vars, self.partitions)]}


async def describeGroups(options: Namespace, streams: Streams) -> int:
    """Print members and partitions of groups."""
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownGroups(options.groups)
        reports = [await _readGroup(cluster, name) for name in names]
    if options.json:
        text = asJson({"groups": [each.asDocument() for each in reports]})
    else:
        text = "\n".join(asTable(each) for each in reports)
        for each in reports:
            for problem in each.problems:
                streams.warn(problem)
        if not reports:
            streams.say(_NO_GROUPS)
    await streams.show(text)
    return 0


async def _readGroup(cluster: ClusterSession, name: str) -> GroupReport:
    """Read the group's nodes in ZooKeeper, and then the ends of the logs from the brokers."""
    report, paths = GroupReport(name), GroupPaths(name)
    reader = ClusterMetadataReader(cluster.zookeeper, report.problems.append)
    names = await reader.topics()
    topics: set[str] = set()
    for member, (text, subscription) in (await reader.members(paths)).items():
        report.members[member] = text
        try:
            topics.update(subscription.streamCounts(names))
        except InvalidPatternError as error:
            report.problems.append(f"{paths.ids}/{member}: {error}")
    owners, offsets = await reader.owners(paths), await reader.offsets(paths)
    topics |= {*await reader.children(paths.owners), *await reader.children(paths.offsets)}
    byBroker: dict[int, list[PartitionReport]] = {}
    for each in sorted({*await reader.partitions(sorted(topics)), *owners, *offsets}):
        owner = owners.get(each)
        # An owner is a thread: its member's id, a hyphen and a number.
        if owner is not None and owner.rpartition("-")[0] not in report.members:
            report.problems.append(
                f"{paths.owner(*each)}: the owner, {owner!r}, is no thread of a member"
            )
        found = PartitionReport(each.topic, *each.partition, owner, offsets.get(each))
        report.partitions.append(found)
        byBroker.setdefault(each.partition.broker, []).append(found)
    await gatherAll(
        [_askBroker(cluster, report, number, each) for number, each in byBroker.items()]
    )
    return report


async def _askBroker(
    cluster: ClusterSession, report: GroupReport, number: int, partitions: list[PartitionReport]
) -> None:
    """Ask for ends and ages, until the broker does not answer."""
    try:
        for each in partitions:
            where = PartitionId(each.topic, BrokerPartition(number, each.partition))
            end = each.end = await cluster.offsets.end(*where)
            if each.offset is None:
                continue
            each.lag = end - each.offset
            if each.lag == 0:
                each.behindMsMin = each.behindMsMax = 0
            elif each.lag > 0:
                ages = await cluster.offsets.ages(*where, each.offset)
                each.behindMsMin, each.behindMsMax = ages
            else:
                report.problems.append(
                    f"{each.topic} {where.partition}: the offset {each.offset} "
                    f"is behind the end of the log, {end}"
                )
    except PylogbrokerError as error:
        report.problems.append(f"broker {number} cannot be asked: {error}")


def asTable(report: GroupReport) -> str:
    """A group for people."""
    members = [
        f"member {escapeUnprintable(name)}  {escapeUnprintable(wanted)}"
        for name, wanted in report.members.items()
    ]
    rows = [
        (
            each.topic,
            f"{each.broker}-{each.partition}",
            each.offset,
            each.end,
            each.lag,
            formatAges(MessageAgeBounds(each.behindMsMin, each.behindMsMax)),
            each.owner,
        )
        for each in report.partitions
    ]
    headings = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "BEHIND", "OWNER")
    text = "\n".join(members or ["no members"]) + "\n" + tableOfRows(headings, rows)
    return f"group {escapeUnprintable(report.group)}\n" + indent(text, "  ")


def formatAges(ages: MessageAgeBounds) -> str:
    """C{5m-2h}, C{>5m}, C{<2h}, or C{-}. The least is rounded down, the most up."""
    if ages.most is None:
        return "-" if ages.least is None else f">{_duration(ages.least)}"
    most = _duration(ages.most, isUp=True)
    if ages.least is None:
        return f"<{most}"
    least = _duration(ages.least)
    return least if least == most else f"{least}-{most}"


def _duration(durationMs: int, isUp: bool = False) -> str:
    for sizeMs, letter in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if durationMs >= 2 * sizeMs:
            break
    return f"{-(-durationMs // sizeMs) if isUp else durationMs // sizeMs}{letter}"


# -- verify ------------------------------------------------------------------------------------


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
                "faults": [_document(*each[:2], owner=each[2], reason=each[3]) for each in faults],
            }
            for name, (count, faults) in results.items()
        ]
        text = asJson({"groups": documents, "problems": cluster.problems, "successful": isGood})
    else:
        rows = [(name, *each) for name, (_count, faults) in results.items() for each in faults]
        text = tableOfRows(("GROUP", "TOPIC", "PARTITION", "OWNER", "WRONG"), rows)
        text += f"Rebalance operation {'successful' if isGood else 'failed'} !\n"
        cluster.warnOfProblems()
    await streams.show(text)
    count = sum(count for count, _faults in results.values())
    partitions, groups = formatCount(count, "partition"), formatCount(len(results), "group")
    streams.say(f"looked at {partitions} of {groups}")
    return 0 if isGood else 1


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


async def exportOffsets(options: Namespace, streams: Streams) -> int:
    """Print or write the committed offsets of groups."""
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownGroups(options.groups)
        found = [each for name in names for each in await _committedOffsets(cluster, name)]
    if options.json:
        documents = [
            {"group": each.group, **_document(*each[1:3], offset=each.offset)} for each in found
        ]
        text = asJson({"offsets": documents, "problems": cluster.problems})
    else:
        text = "".join(f"{each.encode()}\n" for each in found)
    if options.output is None:
        await streams.show(text)
    else:
        writeNewFile(options.output, text)
    cluster.warnOfProblems()
    groupCount = len({each.group for each in found})
    offsets, groups = formatCount(len(found), "offset"), formatCount(groupCount, "group")
    streams.say(f"exported {offsets} of {groups}")
    return 1 if cluster.problems else 0


async def _committedOffsets(cluster: ClusterSession, name: str) -> list[GroupOffset]:
    found = await cluster.reader.offsets(GroupPaths(name))
    return [GroupOffset(name, *partitionId, offset) for partitionId, offset in found.items()]


# -- changes -----------------------------------------------------------------------------------


async def _change(
    cluster: ClusterSession, wanted: Sequence[GroupOffset], options: Namespace, streams: Streams
) -> None:
    old = [await cluster.reader.value(each.path, decodeNumber) for each in wanted]
    changes = list(zip(wanted, old, strict=True))
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
        documents = [
            {"group": each.group, **_document(*each[1:3], old=old, new=each.offset)}
            for each, old in changes
        ]
        text = asJson({"changes": documents, "executed": isDone})
    else:
        rows = [
            (*each[:3], old, each.offset, None if old is None else each.offset - old)
            for each, old in changes
        ]
        text = table(("GROUP", "TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"), rows)
    await streams.show(text)
    cluster.warnOfProblems()
    if refusal is not None:
        if options.execute and not isDone:
            raise CommandError(f"nothing was changed: {refusal}")
        streams.warn(refusal)
    streams.say(
        f"set {formatCount(len(changes), 'offset')}"
        if isDone
        else "nothing was changed; --execute does it"
    )


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


def prepareImport(options: Namespace, streams: Streams) -> None:
    """Check the option that only lines of today's Kafka need."""
    if not isCurrent(options):
        reason = "needs --bootstrap-server: the lines of Kafka 0.7 name their groups"
        rejectOptions(options, reason, "--group")


async def importOffsets(options: Namespace, streams: Streams) -> int:
    """Show or write the offsets of a file."""
    text, _name = readText(options.file, streams.input, OFFSETS_SIZE_MAX, EXPORT)
    wanted = decodeOffsetLines(text.split("\n"))
    async with ClusterSession(options, streams) as cluster:
        if not options.force:
            await _requireMessages(cluster, wanted)
        await _change(cluster, wanted, options, streams)
    return 0


async def _requireMessages(cluster: ClusterSession, wanted: Iterable[GroupOffset]) -> None:
    """Refuse offsets that are known to be wrong. An absent broker does not prevent an import."""
    silent: set[int] = set()
    for _group, topicName, partition, offset in wanted:
        if partition.broker not in silent:
            try:
                await _requireMessageAt(cluster, PartitionId(topicName, partition), offset)
            except CommandError:
                raise
            except PylogbrokerError:
                silent.add(partition.broker)


# -- reset -------------------------------------------------------------------------------------


def prepareReset(options: Namespace, streams: Streams) -> None:
    """Check that partitions are named as the kind of cluster names them."""
    if not isCurrent(options):
        reason = "needs --bootstrap-server: offsets of Kafka 0.7 are bytes"
        rejectOptions(options, reason, "--shift-by")
    isNumber = [isinstance(each, int) for each in options.partitions]
    if isCurrent(options) and not all(isNumber):
        options.parser.error("--partition: with --bootstrap-server a partition is a number")
    if not isCurrent(options) and any(isNumber):
        options.parser.error("--partition: with --zookeeper it is BROKER-PARTITION, such as 0-1")


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


def prepareTranslate(options: Namespace, streams: Streams) -> None:
    """Check that the options name one kind of mirror."""
    isTables = options.source is not None
    if isTables:
        if options.mirrorGroup is None:
            options.parser.error("--mirror-group: is required with --from")
        rejectOptions(options, "not with --from: tables in ZooKeeper have none", "--source-alias")
    elif isCurrent(options):
        reason = "needs --from: between clusters of today's Kafka --source-alias names the mirror"
        rejectOptions(options, reason, "--mirror-group")
        options.sourceAlias = options.sourceAlias or groupoffsets.DEFAULT_ALIAS
    else:
        options.parser.error("--from: is required with --zookeeper")


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
        for topicName, partition in await target.reader.partitions(partitions):
            partitions[topicName].append(partition)
        name = options.toGroup or options.group
        wanted = [
            GroupOffset(name, *each, await _existing(target, each, offset))
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


# -- the commands ------------------------------------------------------------------------------

_CHANGES = (
    flag("--execute", "make the changes; by default, they are only shown"),
    flag(
        "--force",
        "make refused changes, too: to an offset at which no message begins, and with --zookeeper "
        "to a group with members",
    ),
)
_TOPICS = repeated(
    "--topic TOPIC",
    "a topic; can be repeated; by default, all in which the group has offsets",
    "topics",
    topic,
)


def _groups(default: str) -> Argument:
    return option("groups GROUP", f"the groups; by default, {default}", group, nargs="*")


COMMANDS = (
    Command(
        "group list",
        listGroups,
        (*IN_EITHER, JSON),
        """\
examples:
  pylogbroker group list --bootstrap-server log1:9092
  pylogbroker group list --zookeeper zk1:2181
  pylogbroker group list --zookeeper zk1:2181 --json
""",
        current=groups.listGroups,
    ),
    Command(
        "group describe",
        describeGroups,
        (
            _groups("all"),
            *IN_EITHER,
            flag("--json", "print one JSON document instead of tables; times are milliseconds"),
        ),
        """\
examples:
  pylogbroker group describe --bootstrap-server log1:9092
  pylogbroker group describe --zookeeper zk1:2181
  pylogbroker group describe counters --zookeeper zk1:2181 --json

OFFSET is the committed offset, END the end of the log, LAG what is between them: bytes with
--zookeeper, records with --bootstrap-server. BEHIND, of groups of Kafka 0.7, tells when the first
message behind OFFSET was written. Messages of that protocol carry no time, so BEHIND is a range
from the modification times of segment files: 5m-2h is at least 5 minutes and at most 2 hours, >5m
is at least 5 minutes, and - is unknown.
""",
        current=groups.describeGroups,
    ),
    Command(
        "group verify",
        verifyGroups,
        (_groups("all with members"), *IN_CLUSTER, JSON),
        """\
examples:
  pylogbroker group verify counters --zookeeper zk1:2181
  pylogbroker group verify --zookeeper zk1:2181 --json

The exit code is 1 when a partition of a topic that a member reads has no owner, or an owner that is
no thread of such a member, and when there are no members. While members come and go this happens
for a moment.
""",
    ),
    Command(
        "group export",
        exportOffsets,
        (
            _groups("all"),
            option("--output FILE", "a new file; by default, standard output"),
            *IN_EITHER,
            flag("--json", "print one JSON document instead of lines"),
        ),
        """\
examples:
  pylogbroker group export --bootstrap-server log1:9092 --output positions.csv
  pylogbroker group export billing --bootstrap-server log1:9092
  pylogbroker group export --zookeeper zk1:2181 --output offsets.txt
  pylogbroker group export counters --zookeeper zk1:2181

With --bootstrap-server each line is GROUP,TOPIC,PARTITION,OFFSET, as kafka-consumer-groups.sh
--export writes and --from-file reads it. With --zookeeper each line is
/consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>, as in 0.7's ExportZkOffsets.
""",
        current=groupoffsets.exportOffsets,
    ),
    Command(
        "group import",
        importOffsets,
        (
            option("file FILE", "the output of group export; - is standard input"),
            option(
                "--group NAME",
                "with --bootstrap-server: the group of all lines, which then need not name it",
                group,
            ),
            *_CHANGES,
            *IN_EITHER,
            JSON,
        ),
        """\
examples:
  pylogbroker group import positions.csv --bootstrap-server log1:9092
  pylogbroker group import positions.csv --bootstrap-server log1:9092 --execute
  pylogbroker group import offsets.txt --zookeeper zk1:2181
  pylogbroker group import offsets.txt --zookeeper zk1:2181 --execute --force

Without --execute the changes are only shown. --force makes them with --zookeeper even while members
run. With --bootstrap-server a group with members refuses the change, and --force sets offsets that
a partition does not hold. With --group it reads TOPIC,PARTITION,OFFSET, too, as
kafka-consumer-groups.sh --export writes for one group.
""",
        prepareImport,
        current=groupoffsets.importOffsets,
    ),
    Command(
        "group reset",
        resetOffsets,
        (
            option("group GROUP", "the group", group),
            either(
                *TO_POSITION,
                option(
                    "--shift-by N",
                    "with --bootstrap-server: N records further, or back if N is negative; at "
                    "most to the end, or the beginning",
                    intRange(-LONG_MAX),
                ),
                isRequired=True,
            ),
            _TOPICS,
            repeated(
                "--partition BROKER-PARTITION",
                "a partition, with --bootstrap-server a number; can be repeated; by default, all",
                "partitions",
                anyPartition,
            ),
            *_CHANGES,
            *IN_EITHER,
            JSON,
        ),
        """\
examples:
  pylogbroker group reset billing --to-earliest --topic payments --bootstrap-server log1:9092
  pylogbroker group reset billing --shift-by -1 --bootstrap-server log1:9092
  pylogbroker group reset counters --to-earliest --zookeeper zk1:2181
  pylogbroker group reset counters --to-latest --topic clicks --zookeeper zk1:2181 --execute
  pylogbroker group reset counters --to-datetime 2026-01-31T12:00 --zookeeper zk1:2181 --json
  pylogbroker group reset counters --to-offset 0 --topic clicks --partition 0-0 --zookeeper zk1:2181

Without --execute nothing is changed. Records of today's Kafka have timestamps: --to-datetime goes
to the first one of that time or later. Messages of Kafka 0.7 carry no time: there it goes to the
start of the last segment file that was not modified after that time, or else to the earliest
message, so that no later message is left out. A group of today's Kafka that has members refuses the
change, also with --force.
""",
        prepareReset,
        current=groupoffsets.resetOffsets,
    ),
    Command(
        "group delete",
        groups.deleteGroups,
        (option("groups GROUP", "the groups", nargs="+"), *AT_BOOTSTRAP),
        """\
examples:
  pylogbroker group delete billing --bootstrap-server log1:9092

The exit code is 1 when a group could not be deleted.
""",
        isBlocking=True,
    ),
    Command(
        "group translate",
        translateOffsets,
        (
            option("group GROUP", "the group that moves", group),
            option(
                "--from HOST:PORT",
                "ZooKeeper's servers of the mirror's source, a cluster of Kafka 0.7; without it, "
                "the source is a cluster of today's Kafka",
                dest="source",
            ),
            option(
                "--from-config FILE",
                "as --config, for the source cluster; by default, the same for both",
                dest="otherAccessFile",
            ),
            option("--mirror-group GROUP", "with --from: groupid of the mirror", group),
            option(
                "--source-alias NAME",
                "without --from: source.cluster.alias of the mirror "
                f"({groupoffsets.DEFAULT_ALIAS})",
            ),
            option(
                "--to-group GROUP", "the group's name in the target; by default, the same", group
            ),
            _TOPICS,
            *_CHANGES,
            *IN_EITHER,
            JSON,
        ),
        """\
examples:
  pylogbroker group translate billing --source-alias east --bootstrap-server kafka1:9092
  pylogbroker group translate hits --from zk1:2181 --mirror-group mm --bootstrap-server kafka1:9092
  pylogbroker group translate hits --from zk1:2181 --mirror-group mm --zookeeper zk2:2181
  pylogbroker group translate hits --from zk1:2181 --mirror-group mm --zookeeper zk2:2181 --execute

--zookeeper or --bootstrap-server names the mirror's target. First stop the group's members in the
old cluster, then start them in the new one. They find there all messages that they had not read,
and a few that they had. The mirror may run or not. Without --from positions are read from the
checkpoints of our mirror, or of MirrorMaker 2, in the target: those of the group when the mirror
last wrote them.
""",
        prepareTranslate,
        current=groupoffsets.translateOffsets,
    ),
)
