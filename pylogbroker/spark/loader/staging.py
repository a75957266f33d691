"""
Writing rows to a run's staging folder, and what then lies there.

As many files as there are topics and hours, and more only where one of them is large: C{rebalance} lets Spark join small parts and split large ones by
what they turned out to be, so that neither many small files nor one endless task comes of it.

Spark counts the rows on their way into the files, and the files are held against that: where the lock of a table does not reach, another run may have taken
some of them away.
"""

from __future__ import annotations

import os

import pyarrow.parquet as parquet
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from pylogbroker.errors import LoadError
from pylogbroker.lake.manifest import TableFile
from pylogbroker.lake.table import SUFFIX, fileName

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
PARTITION_COLUMNS = ("topic", "date", "hour")
_ORDER = (*PARTITION_COLUMNS, "broker", "partition", "offset")
_DATA = "data"


def writeStaged(rows: DataFrame, staging: str, compression: str) -> int:
    """
    @param rows: of a table.
    @param staging: the run's folder.
    @return: how many rows were written.
    """
    written = Observation()
    # Behind the shuffle, where a task that is repeated is counted once, and before the sort, whose order the writer must see.
    counted = rows.hint("rebalance", *PARTITION_COLUMNS).observe(
        written, sql.count(sql.lit(1)).alias("count")
    )
    spread = counted.sortWithinPartitions(*_ORDER)
    spread.write.partitionBy(*PARTITION_COLUMNS).option("compression", compression).parquet(
        f"{staging}/{_DATA}"
    )
    return int(written.get.get("count", 0))


def stagedFiles(staging: str, number: int, rowCount: int) -> tuple[TableFile, ...]:
    """
    What was written, with the names that it will get.

    @param number: of the run.
    @param rowCount: how many rows they ought to have.
    @raise LoadError: a file, or all of them, are not what Spark said they would be.
    """
    root = f"{staging}/{_DATA}"
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("_"))
        found += [
            os.path.relpath(os.path.join(folder, name), root)
            for name in sorted(names)
            if name.endswith(SUFFIX) and not name.startswith(("_", "."))
        ]
    files = tuple(_described(root, path, number, index) for index, path in enumerate(found))
    there = sum(each.rowCount for each in files)
    if there != rowCount:
        raise LoadError(
            f"{staging}: {rowCount} rows were written, and its files have {there}; nothing was committed. Does another run write to this table?"
        )
    return files


def _described(root: str, path: str, number: int, index: int) -> TableFile:
    full = os.path.join(root, path)
    try:
        rowCount = parquet.read_metadata(full).num_rows
    except Exception as error:  # whatever Arrow raises on what is no Parquet
        raise LoadError(f"{full}: it cannot be read back: {error}") from error
    return TableFile(
        f"{os.path.dirname(path)}/{fileName(number, index, path)}",
        f"{_DATA}/{path}",
        rowCount,
        os.path.getsize(full),
    )
