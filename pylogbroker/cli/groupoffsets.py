"""
C{pylogbroker groups export}, C{import}, C{reset}: the positions of consumer groups as lines of text, back from there, and to a place of one's own
choice (0.7's ExportZkOffsets, ImportZkOffsets and UpdateOffsetsInZK, spec-0.7 tools §5).

What must be true: nothing is changed by accident. C{import} and C{reset} only show what they would do; with C{--execute} they do it. A group with
members is refused, since a member commits its own position over what was written here; and a number is refused that is not the offset of a message.
C{--force} is for who knows better.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addJson,
    addRequiredZookeeper,
    brokerPartition,
    group,
    time,
    topic,
    whole,
)
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.streams import Streams, openInput
from pylogbroker.cli.tables import asJson, show, table
from pylogbroker.cluster import paths
from pylogbroker.cluster.offsetexport import GroupOffset, decodeOffsetLines
from pylogbroker.cluster.znodes import decodeNumber, encodeNumber
from pylogbroker.errors import FormatError, InvalidNameError, PylogbrokerError
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.ephemeral import write

FILE_SIZE_MAX = 64 << 20
CHECK_SIZE = 1 << 20
"""Bytes that are fetched to see whether a message begins at an offset."""

_EXPORT_EXAMPLES = """\
examples:
  pylogbroker groups export --zookeeper zk1:2181 --output offsets.txt
  pylogbroker groups export counters --zookeeper zk1:2181

Each line is /consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>, as 0.7's ExportZkOffsets writes it.
"""
_IMPORT_EXAMPLES = """\
examples:
  pylogbroker groups import offsets.txt --zookeeper zk1:2181
  pylogbroker groups import offsets.txt --zookeeper zk1:2181 --execute --force

The first shows what would be changed, the second changes it, even under members that run.
"""
_RESET_EXAMPLES = """\
examples:
  pylogbroker groups reset counters --to earliest --zookeeper zk1:2181
  pylogbroker groups reset counters --to latest --topic clicks --zookeeper zk1:2181 --execute
  pylogbroker groups reset counters --to 2026-01-31T12:00 --zookeeper zk1:2181 --json
  pylogbroker groups reset counters --to-offset 0 --topic clicks --partition 0-0 --zookeeper zk1:2181

Without --execute nothing is changed. Messages of this protocol carry no time: --to TIME goes to the beginning of the last segment file
that was not written to any more after that time, or to the earliest message, so that nothing that came later is left out.
"""


def addExportArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXPORT_EXAMPLES
    parser.add_argument(
        "groups", metavar="GROUP", nargs="*", type=group, help="the groups to export; without, all"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="a new file to write to; without, standard output"
    )
    addRequiredZookeeper(parser)
    addJson(parser, "one JSON document instead of lines")


def addImportArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _IMPORT_EXAMPLES
    parser.add_argument(
        "file", metavar="FILE", help="what groups export has written; - is standard input"
    )
    addChange(parser)


def addResetArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _RESET_EXAMPLES
    parser.add_argument("group", metavar="GROUP", type=group, help="the group")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--to",
        metavar="TIME",
        type=time,
        help="earliest, latest, milliseconds since 1970, or a date like 2026-01-31T12:00",
    )
    where.add_argument(
        "--to-offset",
        dest="toOffset",
        metavar="N",
        type=whole(0),
        help="an offset at which a message begins, or the log ends",
    )
    addTopics(parser)
    parser.add_argument(
        "--partition",
        dest="partitions",
        metavar="BROKER-PARTITION",
        type=brokerPartition,
        action="append",
        help="a partition; can be repeated; without, all",
    )
    addChange(parser)


def addTopics(parser: argparse.ArgumentParser) -> None:
    """Which topics of a group."""
    parser.add_argument(
        "--topic", dest="topics", metavar="TOPIC", type=topic, action="append",
        help="a topic; can be repeated; without, those in which the group has positions",
    )  # fmt: skip


def addChange(parser: argparse.ArgumentParser) -> None:
    """Arguments of what may change something: where, whether really, and how to show it."""
    parser.add_argument(
        "--execute",
        dest="isExecuted",
        action="store_true",
        help="do it; without, what would be done is only shown",
    )
    parser.add_argument(
        "--force", dest="isForced", action="store_true",
        help="do it even where it is refused: while the group has members, or to a number at which no message begins",
    )  # fmt: skip
    addRequiredZookeeper(parser)
    addJson(parser)


# -- export ------------------------------------------------------------------------------------------------------------


async def exportOffsets(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Write the positions of groups.

    @return: the exit code: 1 when one of them could not be read.
    @raise PylogbrokerError: ZooKeeper cannot be read, there is no such group, or the file cannot be written.
    """
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        names = await cluster.knownGroups(options.groups)
        found = [each for name in names for each in await readOffsets(cluster, name)]
    if options.isJson:
        documents = [
            {
                "group": each.group,
                "topic": each.topic,
                **each.partition._asdict(),
                "offset": each.offset,
            }
            for each in found
        ]
        text = asJson({"offsets": documents, "problems": cluster.problems})
    else:
        text = "".join(f"{each.encode()}\n" for each in found)
    if options.output is None:
        await show(reactor, streams, text)
    else:
        _writeFile(options.output, text)
    for problem in cluster.problems:
        streams.say(f"pylogbroker: {problem}")
    streams.say(
        f"exported {len(found):,} offsets of {len({each.group for each in found}):,} groups"
    )
    return 1 if cluster.problems else 0


def _writeFile(path: str, text: str) -> None:
    """What is there already is not written over: it may be the only copy of what was there before."""
    try:
        with open(path, "x", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


async def readOffsets(cluster: ClusterSession, name: str) -> list[GroupOffset]:
    """Of a group, sorted; without what cannot be read."""
    found = await cluster.registries.offsets(paths.GroupPaths(name))
    return [
        GroupOffset(name, topic, partition, offset) for (topic, partition), offset in found.items()
    ]


# -- changes -----------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """
    @ivar old: what is there; L{None} for nothing, or what cannot be read.
    """

    wanted: GroupOffset
    old: int | None


async def importOffsets(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Show or write what stands in a file.

    @return: the exit code.
    @raise PylogbrokerError: the file is none, ZooKeeper cannot be reached, or it is refused.
    """
    wanted = decodeOffsetLines(_readFile(options.file, streams).split("\n"))
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        if not options.isForced:
            await _checkAll(cluster, wanted)
        await change(reactor, cluster, wanted, options, streams)
    return 0


async def _checkAll(cluster: ClusterSession, wanted: Iterable[GroupOffset]) -> None:
    """
    Refuse what is known to be wrong. A broker that is not there, or does not answer, keeps nobody from bringing back what was exported.

    @raise CommandError: a number is none at which a message begins.
    """
    silent: set[int] = set()
    for each in wanted:
        if each.partition.broker not in silent:
            try:
                await _check(cluster, each.topic, each.partition, each.offset)
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


async def resetOffsets(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Show or write new positions.

    @return: the exit code.
    @raise PylogbrokerError: ZooKeeper or a broker cannot be asked, there is nothing to reset, or it is refused.
    """
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        places = await _places(cluster, options)
        wanted = [
            GroupOffset(options.group, *place, await _target(cluster, *place, options))
            for place in places
        ]
        await change(reactor, cluster, wanted, options, streams)
    return 0


async def _places(cluster: ClusterSession, options: argparse.Namespace) -> list[PartitionId]:
    """What is to be reset."""
    if options.topics:
        topics = await cluster.knownTopics(sorted(set(options.topics)))
    else:
        topics = await cluster.registries.children(paths.GroupPaths(options.group).offsets)
        if not topics:
            raise CommandError(f"the group {options.group} has no positions; give --topic")
    places = await cluster.registries.partitions(topics)
    if options.partitions:
        known = {partition for _topic, partition in places}
        missing = [str(partition) for partition in options.partitions if partition not in known]
        if missing:
            raise CommandError(f"there is no partition {', '.join(missing)} of {', '.join(topics)}")
        places = [place for place in places if place[1] in options.partitions]
    if not places:
        raise CommandError(f"{', '.join(topics)} has no partitions")
    return places


async def _target(
    cluster: ClusterSession, name: str, partition: BrokerPartition, options: argparse.Namespace
) -> int:
    """Where to go in a partition."""
    if options.toOffset is None:
        found = await cluster.ends.before(name, partition, options.to, 1)
        return found[0] if found else await cluster.ends.start(name, partition)
    offset = int(options.toOffset)
    if not options.isForced:
        await _check(cluster, name, partition, offset)
    return offset


async def _check(
    cluster: ClusterSession, name: str, partition: BrokerPartition, offset: int
) -> None:
    """
    Whether a message begins there, or the log ends.

    @raise PylogbrokerError: neither, or nobody knows.
    """
    start, end = await cluster.ends.start(name, partition), await cluster.ends.end(name, partition)
    if not start <= offset <= end:
        raise CommandError(f"{name} {partition} holds {start} to {end}, and not {offset}")
    if offset == end:
        return
    consumer = await cluster.ends.consumer(partition.broker)
    try:
        next(
            iter((await consumer.fetch(name, partition.partition, offset, CHECK_SIZE)).shallow()),
            None,
        )
    except FormatError as error:
        raise CommandError(
            f"at offset {offset} of {name} {partition} no message begins, or one of more than {CHECK_SIZE:,} bytes: {error.reason}"
        ) from error


async def change(
    reactor: Any,
    cluster: ClusterSession,
    wanted: Sequence[GroupOffset],
    options: argparse.Namespace,
    streams: Streams,
) -> None:
    """Show what is to be changed, and change it if it was said so."""
    changes = [Change(each, await _old(cluster, each)) for each in wanted]
    running = [
        name
        for name in sorted({each.group for each in wanted})
        if await cluster.registries.children(paths.GroupPaths(name).ids)
    ]
    refusal = (
        f"there are members in {', '.join(running)}: they would write their own positions over these; end them first"
        if running
        else None
    )
    isDone = options.isExecuted and (refusal is None or options.isForced)
    if isDone:
        for each in wanted:
            await write(cluster.zookeeper, each.path, encodeNumber(each.offset))
    await show(reactor, streams, _asJson(changes, isDone) if options.isJson else _asTable(changes))
    for problem in cluster.problems:
        streams.say(f"pylogbroker: {problem}")
    if refusal is not None:
        if options.isExecuted and not isDone:
            raise CommandError(f"nothing was changed: {refusal}")
        streams.say(f"pylogbroker: {refusal}")
    streams.say(
        f"set {len(changes):,} offsets" if isDone else "nothing was changed; --execute does it"
    )


async def _old(cluster: ClusterSession, each: GroupOffset) -> int | None:
    try:
        return await cluster.registries.value(each.path, decodeNumber)
    except InvalidNameError as error:
        raise CommandError(str(error)) from error


def _asJson(changes: Iterable[Change], isDone: bool) -> str:
    documents = [
        {"group": each.group, "topic": each.topic, **each.partition._asdict(), "old": old, "new": each.offset} for each, old in changes
    ]  # fmt: skip
    return asJson({"changes": documents, "executed": isDone})


def _asTable(changes: Iterable[Change]) -> str:
    rows = [
        (
            each.group,
            each.topic,
            str(each.partition),
            old,
            each.offset,
            None if old is None else each.offset - old,
        )
        for each, old in changes
    ]
    return table(("GROUP", "TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"), rows)
