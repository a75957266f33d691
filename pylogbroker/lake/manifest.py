"""
A run's manifest: what it added to a table and what it took out, how far each partition is loaded now, and what an audit wants to know.

It is JSON with a version, one object, written once and never changed. What must be true: each manifest says by itself how far everything is loaded, not only
what its own run has moved; so who loads next, or exports offsets, reads the last one alone, and a table with ten thousand runs is as quick to open as a
new one.

Counts are per topic, window of event time, and host if the messages' envelopes name one. Rows without an event time are counted apart (C{arrivals}). Rows that
a run has replaced stand with a minus: so sums over all manifests are what is in the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pylogbroker.errors import TableError
from pylogbroker.types import BrokerPartition, PartitionId

MANIFEST_SIZE_MAX = 256 << 20
WINDOW_COUNT_MAX = 200_000
"""Lines of counts in a manifest; with more, hosts are left out, and then the smallest windows."""

WINDOWS_SIZE_MAX = MANIFEST_SIZE_MAX // 8
"""Bytes of these lines; with more, hosts are left out. A run that replaces rows has twice as many, and ranges, positions and files need room, too."""

VERSION = 1
LOAD = "load"
COMPACTION = "compaction"
KINDS = (LOAD, COMPACTION)


class LoadedRange(NamedTuple):
    """
    What a run has loaded of a partition.

    @ivar rowCount: messages in it.
    @ivar replacedCount: rows that had come of offsets from C{fromOffset} on in earlier runs, and were taken out.
    """

    topic: str
    partition: BrokerPartition
    fromOffset: int
    toOffset: int
    rowCount: int
    replacedCount: int = 0


class TableFile(NamedTuple):
    """
    A file of a table.

    @ivar path: below the table's folder.
    @ivar staged: where it was written, below the run's staging folder.
    @ivar size: bytes.
    """

    path: str
    staged: str
    rowCount: int
    size: int


class WindowCount(NamedTuple):
    """
    Rows of a topic whose event time is in a window.

    @ivar host: of the envelopes; C{""} where there are none.
    @ivar rowCount: less than 0 for rows that were taken out.
    """

    topic: str
    startMs: int
    host: str
    rowCount: int


@dataclass(frozen=True)
class Manifest:
    """
    One run.

    @ivar number: of the run, from 1 on without gaps.
    @ivar runId: unique; the name of its staging folder.
    @ivar kind: L{LOAD} or L{COMPACTION}.
    @ivar startedMs: when it began; the time of rows without event time.
    @ivar eventTime: the rule that gave rows their time, for people.
    @ivar positions: up to where each partition is loaded, after this run.
    @ivar removed: paths of files that are no part of the table any more.
    @ivar windowMs: how long the windows of the counts are.
    @ivar arrivals: by topic, rows without an event time.
    @ivar leftOutCount: rows that C{windows} does not have, since they were too many windows.
    @ivar columns: by topic, those of all runs so far as JSON, without topic, date and hour; topics may be missing, whose files then tell.
    @ivar notes: what somebody should know who wonders later, a sentence each: what was lost, for instance. Older manifests have none.
    """

    number: int
    runId: str
    kind: str
    startedMs: int
    eventTime: str
    ranges: tuple[LoadedRange, ...]
    positions: Mapping[PartitionId, int]
    added: tuple[TableFile, ...]
    removed: tuple[str, ...]
    windowMs: int
    windows: tuple[WindowCount, ...]
    arrivals: Mapping[str, int]
    leftOutCount: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def rowCount(self) -> int:
        """Messages that were loaded."""
        return sum(each.rowCount for each in self.ranges)

    @property
    def replacedCount(self) -> int:
        """Rows that were taken out for them."""
        return sum(each.replacedCount for each in self.ranges)

    @property
    def logSize(self) -> int:
        """Bytes of the brokers' logs that were loaded."""
        return sum(each.toOffset - each.fromOffset for each in self.ranges)

    @property
    def size(self) -> int:
        """Bytes of the files that were added."""
        return sum(each.size for each in self.added)

    def asDocument(self) -> dict[str, Any]:
        """As values of JSON."""
        positions: dict[str, dict[str, int]] = {}
        for place, offset in sorted(self.positions.items()):
            positions.setdefault(place.topic, {})[str(place.partition)] = offset
        topics: dict[str, list[str]] = {}  # many topics have the same columns
        for topic, columns in sorted(self.columns.items()):
            topics.setdefault(columns, []).append(topic)
        return {
            "manifest": VERSION, "number": self.number, "runId": self.runId, "kind": self.kind, "startedMs": self.startedMs, "eventTime": self.eventTime,
            "rowCount": self.rowCount, "replacedCount": self.replacedCount, "logSize": self.logSize, "size": self.size,
            "ranges": [{**each._asdict(), "partition": str(each.partition)} for each in self.ranges],
            "positions": positions, "added": [each._asdict() for each in self.added], "removed": list(self.removed),
            "windowMs": self.windowMs, "windows": [list(each) for each in self.windows], "arrivals": dict(self.arrivals), "leftOutCount": self.leftOutCount,
            "columns": [{"columns": columns, "topics": some} for columns, some in topics.items()],
            "notes": list(self.notes),
        }  # fmt: skip

    def encode(self) -> bytes:
        """As a file."""
        return json.dumps(self.asDocument()).encode() + b"\n"


def decodeManifest(name: str, data: bytes) -> Manifest:
    """
    @param name: of the file, for the error.
    @raise TableError: it is none; the text names it.
    """
    try:
        found: Any = json.loads(data)
        if found["manifest"] != VERSION or found["manifest"] is True:
            raise TableError(
                name,
                f"its version is {found['manifest']!r}, and this release knows {VERSION}: a newer one has written it",
            )
        manifest = Manifest(
            found["number"], found["runId"], found["kind"], found["startedMs"], found["eventTime"], tuple(map(_range, _list(found["ranges"]))),
            {PartitionId(topic, _partition(text)): offset for topic, offsets in found["positions"].items() for text, offset in offsets.items()},
            tuple(TableFile(each["path"], each["staged"], each["rowCount"], each["size"]) for each in _list(found["added"])),
            tuple(_list(found["removed"])),
            found["windowMs"], tuple(WindowCount(*each) for each in _list(found["windows"])), found["arrivals"], found["leftOutCount"],
            {topic: each["columns"] for each in _list(found.get("columns", [])) for topic in _list(each["topics"])},
            tuple(_list(found.get("notes", []))),
        )  # fmt: skip
        _check(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TableError(name, f"it is no manifest: {type(error).__name__} {error}") from error
    return manifest


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError(f"{str(found)[:40]!r} is no list")
    return found


def _range(found: Mapping[str, Any]) -> LoadedRange:
    return LoadedRange(**{**found, "partition": _partition(found["partition"])})


def _partition(text: str) -> BrokerPartition:
    broker, _dash, partition = text.partition("-")
    return BrokerPartition(int(broker), int(partition))


def _check(manifest: Manifest) -> None:
    """That what is counted with are numbers, and paths stay below the folder: who can write a manifest must not choose which of our files to remove."""
    numbers: list[Any] = [
        manifest.number,
        manifest.startedMs,
        manifest.windowMs,
        manifest.leftOutCount,
    ]
    numbers += [*manifest.positions.values(), *manifest.arrivals.values()]
    numbers += [number for each in (*manifest.ranges, *manifest.added) for number in each[2:]]
    numbers += [number for each in manifest.windows for number in (each.startMs, each.rowCount)]
    if any(type(number) is not int for number in numbers):
        raise ValueError("a number is none")
    if any(
        type(text) is not str
        for text in (*manifest.columns, *manifest.columns.values(), *manifest.notes)
    ):
        raise ValueError("a text is none")
    paths = [
        manifest.runId,
        *manifest.removed,
        *(path for each in manifest.added for path in (each.path, each.staged)),
    ]
    if any(not path or path.startswith(("/", "_")) or ".." in path.split("/") for path in paths):
        raise ValueError("a path leads out of the table")
    if manifest.kind not in KINDS or manifest.windowMs < 1:
        raise ValueError(f"the kind {manifest.kind!r}, or windows of {manifest.windowMs} ms")
