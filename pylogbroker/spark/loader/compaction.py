"""
Compaction: rewriting many small files of a day as few large ones. Each run of the loader adds
files, and a query over a year of hourly runs opens them all.

Only files clearly smaller than Spark's usual files count as small. Otherwise each compaction would
rewrite a large hour, which needs several files anyway. Rows take less space in a file than in a
shuffle, so Spark may write small files for a large hour. So the files that one compaction has
written for an hour count as one file: the next compaction would write the same.

A day of a topic is one commit: new files come in, old ones go. No row changes, and the number of
rows is checked before the commit.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from time import time  # noqa: TID251 - the default clock
from typing import NamedTuple

from pyspark.sql import SparkSession

from pylogbroker.errors import ConfigurationError, TableError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.manifest import COMPACTION, NO_RUN
from pylogbroker.lake.table import runNumber
from pylogbroker.spark.loader.jobprogress import (
    ProgressCallback,
    reportProgress,
    translateErrors,
)
from pylogbroker.spark.loader.partitioncolumns import partitionColumns
from pylogbroker.spark.loader.stagedfiles import checkCompression, stagedFiles, writeStaged
from pylogbroker.spark.loader.tablereader import readFiles, tableAt

FILE_COUNT_MIN = 2
SMALL_PART = 4
"""
A file is small if it has less than this part of Spark's advisory partition size, the size of rows
in a shuffle. With half, say, files would count as small that cannot become larger.
"""

_ADVISORY = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
_ADVISORY_DEFAULT = "64m"
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE | re.ASCII)


class CompactedDay(NamedTuple):
    """
    The result of one topic and day.

    @ivar topic: as in the name of its folder.
    """

    topic: str
    date: str
    fileCountBefore: int
    fileCount: int
    rowCount: int
    size: int


def compact(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    date: str | None = None,
    fileCountMin: int = FILE_COUNT_MIN,
    compression: str = "zstd",
    progress: ProgressCallback | None = None,
    nowMs: Callable[[], int] = lambda: int(time() * 1000),
) -> list[CompactedDay]:
    """
    Rewrite the days in which an hour has many small files.

    @param date: only this day, C{2026-01-31}; L{None}: all days.
    @param fileCountMin: hours with fewer small files stay as they are.
    @return: one item for each topic and day that was rewritten; each is a commit of its own.
    @raise ConfigurationError: an option is wrong.
    @raise pylogbroker.errors.TableBusyError: another run writes to the table.
    @raise LoadError: a day failed; the text says why. Earlier days stay committed.
    @raise pylogbroker.errors.PostCommitError: a day is committed, but not all its files are
        published; the next call does that.
    """
    checkCompression(compression)
    found = tableAt(path)
    done = []
    smallSize = sizeOf(spark.conf.get(_ADVISORY, _ADVISORY_DEFAULT)) // SMALL_PART
    with TableWriter(found) as writer:
        isCompaction = cache(lambda number: found.manifest(number).kind == COMPACTION)
        for topic, day in list(found.days()):
            files = list(found.day(topic, day))
            if date in (None, day) and needsCompaction(
                {each: os.path.getsize(found.path(each)) for each in files},
                fileCountMin,
                smallSize,
                isCompaction,
            ):
                done.append(_compactDay(spark, writer, files, compression, progress, nowMs()))
    return done


def sizeOf(text: str | None) -> int:
    """
    A size in Spark's syntax, C{64MB} or C{67108864b}, in bytes. Plain numbers are bytes.

    @raise ConfigurationError: the text has another form.
    """
    found = _SIZE.fullmatch((text or "").strip())
    if found is None:
        raise ConfigurationError(f"{_ADVISORY}={text}: it is not a size like 64MB")
    return int(found[1]) << 10 * " kmgtp".index(found[2].lower() or " ")


def needsCompaction(
    sizes: Mapping[str, int], fileCountMin: int, smallSize: int, isCompaction: Callable[[int], bool]
) -> bool:
    """
    Whether an hour has C{fileCountMin} small files or more.

    @param sizes: of files, by path.
    @param smallSize: a file with fewer bytes is small.
    @param isCompaction: whether a run was a compaction; called only if that matters.
    """
    runs = defaultdict[str, Counter[int | None]](Counter)
    for path, size in sizes.items():
        if size < smallSize:
            runs[os.path.dirname(path)][runNumber(path)] += 1
    return any(
        hour.total() >= fileCountMin
        and sum(  # the files of one compaction count as one
            1 if number is not None and count > 1 and isCompaction(number) else count
            for number, count in hour.items()
        )
        >= fileCountMin
        for hour in runs.values()
    )


def _compactDay(
    spark: SparkSession,
    writer: TableWriter,
    files: list[str],
    compression: str,
    progress: ProgressCallback | None,
    startedMs: int,
) -> CompactedDay:
    found = writer.table
    last = found.last()
    if last is NO_RUN:
        raise TableError(found.folder, "it has files but no manifests, so no load has made it")
    topic, date = (part.partition("=")[2] for part in files[0].split("/")[:2])
    with writer.newRun(startedMs) as runId, translateErrors():
        staging = writer.staging(runId)
        with reportProgress(spark, runId, f"compacting {topic} {date}", progress):
            rows = readFiles(spark, found, [found.path(path) for path in files])
            rowCount = rows.count()
            writeStaged(rows, staging, compression, partitionColumns(last.positions))
        added = stagedFiles(staging, last.number + 1, rowCount)
    manifest = replace(
        NO_RUN,
        number=last.number + 1,
        runId=runId,
        kind=COMPACTION,
        startedMs=startedMs,
        positions=last.positions,
        added=added,
        removed=tuple(files),
        windowMs=last.windowMs,
        columns=last.columns,
    )
    writer.commit(manifest)
    return CompactedDay(topic, date, len(files), len(added), rowCount, manifest.size)
