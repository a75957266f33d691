"""
What the tests of tables share: a table whose files have lines for rows, filled by runs that do what
a load does, without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogbroker.interfaces import IFileSystem
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.manifest import (
    COMPACTION,
    LOAD,
    NO_RUN,
    LoadedRange,
    RunManifest,
    TableFile,
    WindowCount,
)
from pylogbroker.lake.table import Table, fileName
from pylogbroker.types import BrokerPartition, PartitionId

PATH = "/data/table"
PLACE = PartitionId("clicks", BrokerPartition(0, 1))
HOUR = "topic=clicks/date=2026-01-31/hour="


def write(fileSystem: IFileSystem, path: str, data: bytes) -> None:
    """A file, as Spark leaves one: not synced."""
    fileSystem.makeDirectories(path.rpartition("/")[0])
    file = fileSystem.open(path, create=True)
    file.writeAt(0, [data])
    file.close()


def read(fileSystem: IFileSystem, path: str) -> bytes:
    """All of a file."""
    file = fileSystem.open(path, write=False)
    try:
        return file.readAt(0, 1 << 20)
    finally:
        file.close()


def manifest(number: int = 1, runId: str = "", **changes: object) -> RunManifest:
    """A run that has loaded ten rows of one partition into one file."""
    fromOffset = 10 * (number - 1)
    staged = f"{HOUR}7/part-0.parquet"
    values: dict[str, object] = {
        "number": number,
        "runId": runId or f"run{number}",
        "kind": LOAD,
        "startedMs": 1_000_000 + number,
        "eventTime": "envelope",
        "ranges": (LoadedRange(*PLACE, fromOffset, fromOffset + 10, 10),),
        "positions": {PLACE: fromOffset + 10},
        "added": (TableFile(f"{HOUR}7/{fileName(number, 0, staged)}", staged, 10, 100),),
        "removed": (),
        "windowMs": 60_000,
        "windows": (WindowCount("clicks", 60_000, "web1", 10),),
        "arrivals": {},
    }
    return RunManifest(**{**values, **changes})  # type: ignore[arg-type]


def load(fileSystem: IFileSystem, runId: str, count: int = 10) -> None:
    """A run that loads the next rows, which are numbers; they go to two hours."""
    table = Table(PATH, fileSystem)
    with TableWriter(table) as writer:
        last = table.last()
        begin = last.positions.get(PLACE, 0)
        number = table.manifestCount() + 1
        rows: Mapping[int, list[int]] = {
            hour: [row for row in range(begin, begin + count) if row % 2 == hour] for hour in (0, 1)
        }
        added = []
        for hour, some in rows.items():
            staged = f"{HOUR}{hour}/part-{hour}.snappy.parquet"
            data = b"".join(b"%d\n" % row for row in some)
            write(fileSystem, f"{writer.staging(runId)}/{staged}", data)
            added.append(
                TableFile(
                    f"{HOUR}{hour}/{fileName(number, hour, staged)}", staged, len(some), len(data)
                )
            )
        loaded = (LoadedRange(*PLACE, begin, begin + count, count),)
        writer.commit(
            manifest(
                number, runId, ranges=loaded, positions={PLACE: begin + count}, added=tuple(added)
            )
        )


def compact(fileSystem: IFileSystem, runId: str) -> None:
    """A run that makes one file of all files of the second hour."""
    table = Table(PATH, fileSystem)
    with TableWriter(table) as writer:
        last = table.last()
        assert last is not NO_RUN
        old = [path for path in table.published() if path.startswith(f"{HOUR}1/")]
        data = b"".join(read(fileSystem, table.path(path)) for path in old)
        staged = f"{HOUR}1/part-9.parquet"
        write(fileSystem, f"{writer.staging(runId)}/{staged}", data)
        added = TableFile(
            f"{HOUR}1/{fileName(last.number + 1, 0, staged)}", staged, data.count(b"\n"), len(data)
        )
        writer.commit(
            manifest(
                last.number + 1,
                runId,
                kind=COMPACTION,
                ranges=(),
                positions=last.positions,
                added=(added,),
                removed=tuple(old),
            )
        )


def rows(fileSystem: IFileSystem) -> list[int]:
    """The rows of the committed runs, sorted."""
    return sorted(
        int(line)
        for path in Table(PATH, fileSystem).files()
        for line in read(fileSystem, path).split()
    )


def plainRows(fileSystem: IFileSystem) -> list[int]:
    """The rows that a plain reader finds, sorted."""
    table = Table(PATH, fileSystem)
    return sorted(
        int(line)
        for path in table.published()
        for line in read(fileSystem, table.path(path)).split()
    )
