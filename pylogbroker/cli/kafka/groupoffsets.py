"""
C{group export}, C{import}, C{reset} and C{translate}: committed offsets of groups of today's Kafka.
It is a module of its own, since L{pylogbroker.cli.kafka.groups} changes no offsets.

As with groups of 0.7, a change is shown, and C{--execute} makes it. A group with members refuses
it, also with C{--force}: that is its coordinator's rule.

Offsets are exported as the lines of comma-separated values that Kafka's own tool for consumer
groups reads and writes: group, topic, partition, offset. Lines without a group are read, too.
"""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.groups import committedOffsets, knownGroups, wantedGroups
from pylogbroker.cli.kafka.records import readUpTo
from pylogbroker.cli.kafka.topics import wantedTopics
from pylogbroker.cli.output import asJson, table
from pylogbroker.cli.streams import Streams, readText, writeNewFile
from pylogbroker.cluster import metadata
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.errors import FormatError
from pylogbroker.mirror.checkpoints import applyCheckpoint, checkpointsTopic
from pylogbroker.mirror.offsetsyncs import mirrorTables, translate
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.types import BrokerPartition, TopicPartition, formatCount

OFFSETS_SIZE_MAX = 64 << 20
"""Bytes of a file with offsets."""

EXPORT = "export of offsets"
"""What such a file is, for errors."""

DEFAULT_ALIAS = "source"
"""C{source.cluster.alias} of a mirror that names none."""

_NAMED_COMMIT = 9
"""The last version of OffsetCommit that names topics."""

_SHARE = "share"
_WITHOUT_MEMBERS = ("", "Empty", "Dead")
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1

Offsets = dict[TopicPartition, int]
GroupOffsets = dict[str, Offsets]


# -- export


def exportOffsets(options: Namespace, streams: Streams) -> int:
    """Print or write the committed offsets of groups."""
    with openCluster(options, streams) as cluster:
        names = [
            name
            for name, listed in wantedGroups(cluster, options.groups).items()
            if name in options.groups or getattr(listed, "groupType", "").lower() != _SHARE
        ]
        found = {name: committedOffsets(cluster, name) for name in names}
    rows = [
        (name, where.topic, where.partition, offset)
        for name, offsets in found.items()
        for where, offset in sorted(offsets.items())
    ]
    if options.json:
        keys = ("group", "topic", "partition", "offset")
        documents = [dict(zip(keys, row, strict=True)) for row in rows]
        text = asJson({"offsets": documents, "problems": []})
    else:
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(rows)
        text = written.getvalue()
    if options.output is None:
        show(streams, text)
    else:
        writeNewFile(options.output, text)
    groupCount = sum(map(bool, found.values()))
    streams.say(
        f"exported {formatCount(len(rows), 'offset')} of {formatCount(groupCount, 'group')}"
    )
    return 0


# -- import


def importOffsets(options: Namespace, streams: Streams) -> int:
    """Show or write the offsets of a file."""
    text, name = readText(options.file, streams.input, OFFSETS_SIZE_MAX, EXPORT)
    wanted = decodeOffsets(text, name, options.group)
    with openCluster(options, streams) as cluster:
        if not options.force:
            places = {where for offsets in wanted.values() for where in offsets}
            bounds = _bounds(cluster, _existing(cluster, places))
            for offsets in wanted.values():
                _requireWithin(offsets, *bounds)
        changeOffsets(cluster, wanted, options, streams)
    return 0


def decodeOffsets(text: str, name: str, group: str | None) -> GroupOffsets:
    """
    Decode lines of comma-separated values. Empty ones are skipped.

    @param name: of the file, for errors.
    @param group: the only group; lines need not name it. L{None}: each line names its group.
    @raise CommandError: a line is wrong, names another group, or contradicts another line.
    """
    found: GroupOffsets = {}
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        for fields in reader:
            if fields:
                _addLine(found, fields, group)
    except (csv.Error, ValueError) as error:
        raise CommandError(f"line {reader.line_num} of {name}: {error}") from error
    if not found:
        raise CommandError(f"{name} holds no offsets")
    return found


def _addLine(found: GroupOffsets, fields: list[str], group: str | None) -> None:
    form = "GROUP,TOPIC,PARTITION,OFFSET"
    if group is not None and len(fields) == len(form.split(",")) - 1:
        fields = [group, *fields]
    if len(fields) != len(form.split(",")):
        hint = "" if group is not None else " (without GROUP, if --group is given)"
        raise ValueError(f"a line is {form}{hint}, and not {','.join(fields)[:200]!r}")
    name, topic, partition, offset = fields
    if group not in (None, name):
        raise ValueError(f"it is of the group {name}, and not of {group}")
    where = TopicPartition(topic, _number(partition, _PARTITION_MAX, "partition"))
    at = _number(offset, _OFFSET_MAX, "offset")
    if found.setdefault(name, {}).setdefault(where, at) != at:
        raise ValueError(f"another line has offset {found[name][where]} for {where}")


def _number(text: str, high: int, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > high:
        raise ValueError(f"{text[:40]!r} is no {what}")
    return int(text)


# -- reset


def resetOffsets(options: Namespace, streams: Streams) -> int:
    """Show or write new offsets of a group."""
    with openCluster(options, streams) as cluster:
        old = committedOffsets(cluster, options.group)
        new = newOffsets(cluster, _chosen(cluster, options, old), old, options)
        changeOffsets(cluster, {options.group: new}, options, streams)
    return 0


def _chosen(cluster: KafkaCluster, options: Namespace, old: Offsets) -> list[TopicPartition]:
    topics = list(dict.fromkeys(options.topics)) or sorted({where.topic for where in old})
    if not topics:
        raise CommandError(f"the group {options.group} has no positions; give --topic")
    wanted = set(options.partitions)
    places = [
        TopicPartition(topic, index) for topic in topics for index in cluster.partitions(topic)
    ]
    missing = wanted - {where.partition for where in places}
    if missing:
        raise CommandError(
            f"there is no partition {', '.join(map(str, sorted(missing)))} of {', '.join(topics)}"
        )
    return [where for where in places if not wanted or where.partition in wanted]


def newOffsets(
    cluster: KafkaCluster, places: list[TopicPartition], old: Offsets, options: Namespace
) -> Offsets:
    """
    Where a group is to continue.

    @param old: where it is; for C{--shift-by}.
    @param options: C{shiftBy}, C{toOffset}, or else the time C{to}; and C{force}.
    @raise CommandError: a partition has no such offset.
    """
    if options.shiftBy is not None:
        missing = [str(where) for where in places if where not in old]
        if missing:
            raise CommandError(f"--shift-by: the group has no position in {', '.join(missing)}")
        starts, ends = _bounds(cluster, places)
        return {
            where: min(max(old[where] + options.shiftBy, starts[where]), ends[where])
            for where in places
        }
    if options.toOffset is None:
        return cluster.offsetsAt(places, options.to)
    wanted = dict.fromkeys(places, int(options.toOffset))
    if not options.force:
        _requireWithin(wanted, *_bounds(cluster, places))
    return wanted


def _bounds(cluster: KafkaCluster, places: list[TopicPartition]) -> tuple[Offsets, Offsets]:
    """Where the partitions begin and end."""
    return cluster.offsetsAt(places, EARLIEST), cluster.offsetsAt(places, LATEST)


def _existing(cluster: KafkaCluster, places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """@raise CommandError: there is no such topic or partition."""
    wanted = sorted(places)
    known = {
        TopicPartition(topic.name, part.partitionIndex)
        for topic in wantedTopics(cluster, sorted({where.topic for where in wanted}))
        for part in topic.partitions
    }
    missing = [str(where) for where in wanted if where not in known]
    if missing:
        raise CommandError(f"there is no partition {', '.join(missing)}")
    return wanted


def _requireWithin(wanted: Offsets, low: Offsets, high: Offsets) -> None:
    for where, offset in wanted.items():
        if not low[where] <= offset <= high[where]:
            raise CommandError(f"{where} holds {low[where]} to {high[where]}, and not {offset}")


# -- translate


def translateOffsets(options: Namespace, streams: Streams) -> int:
    """
    Show or write where a group continues in the target of a mirror: at or before its true position,
    never behind it.
    """
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        topics = {
            topic.name: sorted(part.partitionIndex for part in topic.partitions)
            for topic in cluster.metadata(None).topics
        }
        found = (
            _checkpoints(cluster, topics, options, problems)
            if options.source is None
            else _fromTables(topics, options, problems)
        )
        wanted = _within(cluster, topics, found, problems)
        if not wanted:
            raise CommandError("\n".join([*problems, "there is nothing to translate"]))
        for problem in problems:
            streams.warn(problem)
        name = options.toGroup or options.group
        changeOffsets(cluster, {name: wanted}, options, streams)
    return 0


def _checkpoints(
    cluster: KafkaCluster,
    topics: Mapping[str, list[int]],
    options: Namespace,
    problems: list[str],
) -> Offsets:
    """What a mirror between clusters of today has translated, from its topic in the target."""
    name = checkpointsTopic(options.sourceAlias)
    if name not in topics:
        raise CommandError(
            f"the target has no topic {name}: give the mirror's source.cluster.alias as"
            " --source-alias"
        )
    place = TopicPartition(name, 0)
    end = cluster.offsetsAt([place], LATEST)[place]
    reader = RecordReader(cluster, cluster.offsetsAt([place], EARLIEST))
    found: Offsets = {}
    for where, record in readUpTo(end, reader, reader.poll, options.timeoutMs):
        whole = ConsumerRecord(
            *where,
            record.offset,
            record.timestampMs,
            record.key,
            record.value,
            record.headers,
            leaderEpoch=-1,
            timestampType=0,
        )
        try:
            applyCheckpoint(whole, options.group, found)
        except FormatError as error:
            problems.append(f"left out: {error}")
    if options.topics:
        found = {each: offset for each, offset in found.items() if each.topic in options.topics}
    if not found:
        problems.append(f"the mirror has translated no positions of the group {options.group}")
    return found


def _fromTables(
    topics: Mapping[str, list[int]], options: Namespace, problems: list[str]
) -> Offsets:
    """Translate with the tables that a mirror of a cluster of 2011 has written in its ZooKeeper."""
    access = options.otherAccess
    with ZookeeperMetadata(
        options.source, digest=access.zkDigest, acl=access.zkAcl, timeoutMs=options.timeoutMs
    ) as source:
        positions = {
            each: offset
            for each, offset in source.read(metadata.offsets(GroupPaths(options.group))).items()
            if not options.topics or each.topic in options.topics
        }
        if not positions:
            raise CommandError(f"the group {options.group} has no positions at {options.source}")
        names = sorted({each.topic for each in positions})
        tables = source.read(mirrorTables(options.mirrorGroup, names))
    if not tables:
        raise CommandError(
            f"no mirror of the group {options.mirrorGroup} has written down offsets of these topics"
        )
    problems += [
        f"{each} was not mirrored: what came of it begins at the beginning"
        for each in positions
        if each not in tables
    ]
    targets = {
        name: [BrokerPartition(0, index) for index in topics.get(name, ())] for name in names
    }
    return {
        TopicPartition(each.topic, each.partition.partition): offset
        for each, offset in sorted(translate(positions, tables, targets).items())
    }


def _within(
    cluster: KafkaCluster,
    topics: Mapping[str, list[int]],
    found: Offsets,
    problems: list[str],
) -> Offsets:
    """The offsets of partitions that exist, moved to where their logs begin if need be."""
    wanted = {}
    for where, offset in sorted(found.items()):
        if where.partition in topics.get(where.topic, ()):
            wanted[where] = offset
        else:
            problems.append(f"the target has no partition {where}")
    starts, ends = _bounds(cluster, list(wanted))
    for where, offset in wanted.items():
        if offset > ends[where]:
            problems.append(
                f"{where} of the target ends at {ends[where]}, and had reached {offset} before: "
                "its data were lost. The group begins at the beginning"
            )
        if not starts[where] <= offset <= ends[where]:
            wanted[where] = starts[where]
    return wanted


# -- changes


def changeOffsets(
    cluster: KafkaCluster, wanted: GroupOffsets, options: Namespace, streams: Streams
) -> None:
    """
    Show new offsets, and with C{--execute} commit them.

    @raise CommandError: the coordinator refuses.
    """
    changes = [
        (name, where, before.get(where), offset)
        for name, offsets in sorted(wanted.items())
        for before in [committedOffsets(cluster, name)]
        for where, offset in sorted(offsets.items())
    ]
    if options.execute:
        done: list[str] = []
        for name, offsets in sorted(wanted.items()):
            _commit(cluster, name, offsets, done)
            done.append(name)
    else:
        listed = knownGroups(cluster)
        running = [
            name
            for name in sorted(wanted)
            if name in listed and getattr(listed[name], "groupState", "") not in _WITHOUT_MEMBERS
        ]
        if running:
            streams.warn(
                f"there are members in {', '.join(running)}: with them the change is refused;"
                " end them first"
            )
    if options.json:
        documents = [
            {"group": name, **where._asdict(), "old": before, "new": offset}
            for name, where, before, offset in changes
        ]
        show(streams, asJson({"changes": documents, "executed": options.execute}))
    else:
        rows = [
            (name, *where, before, offset, None if before is None else offset - before)
            for name, where, before, offset in changes
        ]
        show(streams, table(("GROUP", "TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"), rows))
    streams.say(
        f"set {formatCount(len(changes), 'offset')}"
        if options.execute
        else "nothing was changed; --execute does it"
    )


def _commit(cluster: KafkaCluster, name: str, offsets: Offsets, done: list[str]) -> None:
    """
    @param done: groups that are changed already, for the error.
    @raise CommandError: the coordinator refuses.
    """
    cls = messages.OffsetCommitRequest
    topics: dict[str, list[Any]] = {}
    for where, offset in offsets.items():
        topics.setdefault(where.topic, []).append(
            cls.OffsetCommitRequestPartition(
                partitionIndex=where.partition, committedOffset=offset, committedMetadata=""
            )
        )
    body = cls(
        groupId=name,
        topics=[
            cls.OffsetCommitRequestTopic(name=topic, partitions=parts)
            for topic, parts in topics.items()
        ],
    )

    def commit() -> None:
        connection = cluster.coordinator(name)
        for topic in connection.request(
            ApiKey.OFFSET_COMMIT, body, versionMax=_NAMED_COMMIT
        ).topics:
            for part in topic.partitions:
                checkCode(part.errorCode, f"group {name}, {topic.name}-{part.partitionIndex}")

    try:
        cluster.attempt(commit)
    except ResponseError as error:
        changed = f"changed are {', '.join(done)}; of {name} " if done else ""
        raise CommandError(
            f"{changed}nothing was changed, or not all: {error} (a group with members refuses"
            " changes: end them first)"
        ) from error
