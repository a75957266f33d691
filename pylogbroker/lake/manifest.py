"""
The manifest of a run: the files it added and removed, and each partition's position.

A manifest is one JSON object with a version, written once and never changed. What must be true:
each manifest alone has the positions of all partitions. So a run reads the last manifest only, and
a table with ten thousand runs opens as fast as a new one.

Partitions of Kafka 0.7 are written C{"<broker>-<number>"}, those of today's Kafka C{"<number>"}. A
table has partitions of one kind, since its rows name them by other columns.

Rows are counted per topic, window of event time, and host if the envelopes name one, or without an
event time in C{arrivals}. Replaced rows count negative, so sums over all manifests equal the
table's content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pylogbroker.errors import TableError
from pylogbroker.types import AnyPartition, BrokerPartition, PartitionId, TopicPartition, byTopic

MANIFEST_SIZE_MAX = 256 << 20
WINDOW_COUNT_MAX = 200_000
"""
Window counts in a manifest. If there are more, first hosts and then the smallest windows are left
out.
"""

WINDOWS_SIZE_MAX = MANIFEST_SIZE_MAX // 8
"""
Bytes of the window counts; if there are more, hosts are left out. A run that replaces rows has
twice as many, and ranges, positions and files take space, too.
"""

EVENT_TIME_RULE = "the envelope's time, else the message's timestamp, else the time of the run"
"""The C{eventTime} of runs whose user gives no expression."""

VERSION = 1
LOAD = "load"
COMPACTION = "compaction"
KINDS = (LOAD, COMPACTION)


class LoadedRange(NamedTuple):
    """
    The part of a partition that a run has loaded.

    @ivar replacedCount: rows of earlier runs, from C{fromOffset} on, that were removed.
    """

    topic: str
    partition: BrokerPartition | int
    fromOffset: int
    toOffset: int
    rowCount: int
    replacedCount: int = 0


class TableFile(NamedTuple):
    """
    A file of a table.

    @ivar path: below the folder of the table.
    @ivar staged: the path below the run's staging folder.
    @ivar size: bytes.
    """

    path: str
    staged: str
    rowCount: int
    size: int


class WindowCount(NamedTuple):
    """
    The rows of a topic whose event time is in a window.

    @ivar host: of the envelopes; C{""} without envelopes.
    @ivar rowCount: negative for removed rows.
    """

    topic: str
    startMs: int
    host: str
    rowCount: int


@dataclass(frozen=True)
class RunManifest:
    """
    One run.

    @ivar number: 1, 2, 3 … without gaps.
    @ivar runId: unique; the name of the staging folder.
    @ivar kind: L{LOAD} or L{COMPACTION}.
    @ivar startedMs: the run's start; the event time of rows without one.
    @ivar eventTime: the rule for event times, for people.
    @ivar positions: each partition's end after this run.
    @ivar removed: paths of files no longer part of the table.
    @ivar arrivals: by topic, the rows without an event time.
    @ivar leftOutCount: rows missing in C{windows}, which had too many entries.
    @ivar columns: by topic, as JSON, the columns of all runs, without topic, date and hour. If a
        topic is missing, its files tell.
    @ivar notes: sentences for investigators, such as what was lost. Early releases have none.
    @ivar logSize: loaded bytes of the brokers' logs; 0 where offsets do not tell, as in today's
        Kafka.
    """

    number: int
    runId: str
    kind: str
    startedMs: int
    eventTime: str
    ranges: tuple[LoadedRange, ...]
    positions: Mapping[AnyPartition, int]
    added: tuple[TableFile, ...]
    removed: tuple[str, ...]
    windowMs: int
    windows: tuple[WindowCount, ...]
    arrivals: Mapping[str, int]
    leftOutCount: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    logSize: int = 0

    @property
    def rowCount(self) -> int:
        return sum(each.rowCount for each in self.ranges)

    @property
    def replacedCount(self) -> int:
        return sum(each.replacedCount for each in self.ranges)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.added)

    def asDocument(self) -> dict[str, Any]:
        topics: dict[str, list[str]] = {}  # many topics have the same columns
        for topic, columns in sorted(self.columns.items()):
            topics.setdefault(columns, []).append(topic)
        return {
            "manifest": VERSION,
            **vars(self),
            "rowCount": self.rowCount,
            "replacedCount": self.replacedCount,
            "size": self.size,
            "ranges": [
                {**each._asdict(), "partition": str(each.partition)} for each in self.ranges
            ],
            "positions": byTopic(self.positions),
            "added": [each._asdict() for each in self.added],
            "columns": [{"columns": columns, "topics": some} for columns, some in topics.items()],
        }

    def encode(self) -> bytes:
        return json.dumps(self.asDocument()).encode() + b"\n"


NO_RUN = RunManifest(0, "/", LOAD, 0, "", (), {}, (), (), 1, (), {})
"""Stands for the last run of a table without runs. No staging folder can have its id."""


def decodeManifest(name: str, data: bytes) -> RunManifest:
    """
    @param name: of the file, for errors.
    @raise TableError: the data are not a manifest.
    """
    try:
        found: Any = json.loads(data)
        if found["manifest"] != VERSION or found["manifest"] is True:
            raise TableError(
                name,
                f"its version is {found['manifest']!r}, and this release knows {VERSION}:"
                " a newer release has written it",
            )
        manifest = RunManifest(
            found["number"],
            found["runId"],
            found["kind"],
            found["startedMs"],
            found["eventTime"],
            tuple(
                LoadedRange(**{**each, "partition": _partition(each["partition"])})
                for each in _list(found["ranges"])
            ),
            {
                _place(topic, _partition(text)): offset
                for topic, offsets in found["positions"].items()
                for text, offset in offsets.items()
            },
            tuple(
                TableFile(each["path"], each["staged"], each["rowCount"], each["size"])
                for each in _list(found["added"])
            ),
            tuple(_list(found["removed"])),
            found["windowMs"],
            tuple(WindowCount(*each) for each in _list(found["windows"])),
            found["arrivals"],
            found["leftOutCount"],
            {
                topic: each["columns"]
                for each in _list(found.get("columns", []))
                for topic in _list(each["topics"])
            },
            tuple(_list(found.get("notes", []))),
            found.get("logSize", 0),
        )
        _check(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TableError(name, f"it is not a manifest: {type(error).__name__} {error}") from error
    return manifest


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError(f"{str(found)[:40]!r} is not a list")
    return found


def _partition(text: str) -> BrokerPartition | int:
    return BrokerPartition(*map(int, text.split("-"))) if "-" in text else int(text)


def _place(topic: str, partition: BrokerPartition | int) -> AnyPartition:
    if isinstance(partition, BrokerPartition):
        return PartitionId(topic, partition)
    return TopicPartition(topic, partition)


def _check(manifest: RunManifest) -> None:
    """
    Check numbers and that paths stay below the folder: a manifest's author must not choose which of
    our files to remove.

    @raise ValueError: the check fails.
    """
    numbers: list[Any] = [
        manifest.number,
        manifest.startedMs,
        manifest.windowMs,
        manifest.leftOutCount,
        manifest.logSize,
        *manifest.positions.values(),
        *manifest.arrivals.values(),
    ]
    numbers += [number for each in (*manifest.ranges, *manifest.added) for number in each[2:]]
    numbers += [number for each in manifest.windows for number in (each.startMs, each.rowCount)]
    if any(type(number) is not int for number in numbers):
        raise ValueError("not a number")
    if any(
        type(text) is not str
        for text in (*manifest.columns, *manifest.columns.values(), *manifest.notes)
    ):
        raise ValueError("not a text")
    places = {type(each.partition) for each in (*manifest.ranges, *manifest.positions)}
    if len(places) > 1:
        raise ValueError("partitions of Kafka 0.7 and of today's Kafka")
    paths = [
        manifest.runId,
        *manifest.removed,
        *(path for each in manifest.added for path in (each.path, each.staged)),
    ]
    if any(not path or path.startswith(("/", "_")) or ".." in path.split("/") for path in paths):
        raise ValueError("a path leads out of the table")
    if manifest.kind not in KINDS or manifest.windowMs < 1:
        raise ValueError(f"the kind {manifest.kind!r}, or windows of {manifest.windowMs} ms")
