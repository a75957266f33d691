"""
Making few files of many, a day at a time: each run of the loader adds files, and a query over a year of hourly runs opens them all.

Only files that are clearly smaller than what Spark makes anyway count as many: else a large hour, which is several files however often it is written, would be
rewritten by each call. And as rows take less in a file than on their way, Spark may make small files of a large hour; so what one compaction has made of an
hour counts as one file, since the next would make the same of it.

A day of a topic is one commit: the new files come in, the old ones go. No row changes; that they are as many as before is looked at before the commit.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from time import time  # noqa: TID251 - who does not care has the real clock
from typing import NamedTuple

from pyspark.sql import SparkSession

from pylogbroker.errors import ConfigurationError, TableError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.manifest import COMPACTION
from pylogbroker.lake.table import runNumber
from pylogbroker.spark.loader.progress import Report, watched
from pylogbroker.spark.loader.reading import readFiles, tableAt
from pylogbroker.spark.loader.sparkerrors import sparkErrors
from pylogbroker.spark.loader.staging import COMPRESSIONS, stagedFiles, writeStaged
from pylogbroker.storage.files import RealFileSystem

FILE_COUNT_MIN = 2
SMALL_PART = 4
"""
A file is small below this part of Spark's advisory size of a partition. That is one of rows on their way through a shuffle; in a file they take less, so that a
half, say, would call files small that cannot become larger.
"""

_ADVISORY = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
_ADVISORY_DEFAULT = "64m"
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE | re.ASCII)


class CompactedDay(NamedTuple):
    """
    What became of a topic's day.

    @ivar topic: as it stands in the name of the folder.
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
    report: Report | None = None,
    nowMs: Callable[[], int] = lambda: int(time() * 1000),
) -> list[CompactedDay]:
    """
    Rewrite the days in which an hour has many small files.

    @param date: only this day, C{2026-01-31}; L{None}: all of them.
    @param fileCountMin: an hour with fewer small files is good as it is; those that one compaction has made of it count as one.
    @return: what was done, a line for each topic and day; each was committed by itself.
    @raise ConfigurationError: an option is wrong.
    @raise pylogbroker.errors.TableBusyError: another run writes to the table.
    @raise LoadError: it came to nothing, and why; days that were done before stay so.
    @raise pylogbroker.errors.PostCommitError: a day is committed, and not all of its files are published; the next call does that.
    """
    if compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"compression={compression}: it must be one of {', '.join(COMPRESSIONS)}"
        )
    found = tableAt(path)
    done = []
    smallSize = sizeOf(spark.conf.get(_ADVISORY, _ADVISORY_DEFAULT)) // SMALL_PART
    with TableWriter(found, RealFileSystem()) as writer:
        isCompaction = cache(lambda number: found.manifest(number).kind == COMPACTION)
        for topic, day in list(found.days()):
            files = list(found.day(topic, day))
            if date in (None, day) and isFull(
                {each: os.path.getsize(found.at(each)) for each in files},
                fileCountMin,
                smallSize,
                isCompaction,
            ):
                done.append(_compactDay(spark, writer, files, compression, report, nowMs()))
    return done


def sizeOf(text: str | None) -> int:
    """
    Of a size as Spark's settings have them, C{64MB} or C{67108864b}; plain numbers are bytes.

    @raise ConfigurationError: it is none.
    """
    found = _SIZE.fullmatch((text or "").strip())
    if found is None:
        raise ConfigurationError(f"{_ADVISORY}={text}: it is no size like 64MB")
    return int(found[1]) << 10 * " kmgtp".index(found[2].lower() or " ")


def isFull(
    sizes: Mapping[str, int], fileCountMin: int, smallSize: int, isCompaction: Callable[[int], bool]
) -> bool:
    """
    Whether one of the hours has as many small files.

    @param sizes: by path.
    @param smallSize: a file with fewer bytes is small.
    @param isCompaction: whether a run was one; asked only where it matters.
    """
    runs: dict[str, list[int | None]] = {}
    for path, size in sizes.items():
        if size < smallSize:
            runs.setdefault(path.rpartition("/")[0], []).append(runNumber(path))
    return any(
        len(hour) >= fileCountMin and _joinableCount(hour, isCompaction) >= fileCountMin
        for hour in runs.values()
    )


def _joinableCount(runs: list[int | None], isCompaction: Callable[[int], bool]) -> int:
    """
    How many files there are, without those beside another one of the same compaction.

    @param runs: the number of each file's run.
    """
    return sum(
        1 if number is not None and count > 1 and isCompaction(number) else count
        for number, count in Counter(runs).items()
    )


def _compactDay(
    spark: SparkSession,
    writer: TableWriter,
    files: list[str],
    compression: str,
    report: Report | None,
    startedMs: int,
) -> CompactedDay:
    found = writer.table
    last = found.last()
    if last is None:
        raise TableError(found.path, "it has files and no manifests: no load has made it")
    runId = f"{startedMs}-{uuid.uuid4().hex}"
    staging = writer.staging(runId)
    topic, date = (part.partition("=")[2] for part in files[0].split("/")[:2])
    try:
        with sparkErrors(), watched(spark, runId, f"compacting {topic} {date}", report):
            rows = readFiles(spark, found, [found.at(path) for path in files])
            rowCount = rows.count()
            writeStaged(rows, staging, compression)
        added = stagedFiles(staging, last.number + 1, rowCount)
    except BaseException:
        writer.discard(runId)
        raise
    manifest = replace(
        last, number=last.number + 1, runId=runId, kind=COMPACTION, startedMs=startedMs, eventTime="", ranges=(), added=added, removed=tuple(files),
        windows=(), arrivals={}, leftOutCount=0, notes=(),
    )  # fmt: skip
    writer.commit(manifest)
    return CompactedDay(topic, date, len(files), len(added), rowCount, manifest.size)
