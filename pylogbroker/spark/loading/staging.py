"""
Writing rows to a run's staging folder, and what then lies there.

As many files as there are topics and hours, and more only where one of them is large: C{rebalance} lets Spark join small parts and split large ones by
what they turned out to be, so that neither many small files nor one endless task comes of it.
"""

from __future__ import annotations

import os

import pyarrow.parquet as parquet
from pyspark.sql import DataFrame

from pylogbroker.errors import LoadError
from pylogbroker.warehouse.manifest import TableFile
from pylogbroker.warehouse.table import SUFFIX, fileName

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
PARTITION_COLUMNS = ("topic", "date", "hour")
_ORDER = (*PARTITION_COLUMNS, "broker", "partition", "offset")
_DATA = "data"


def writeStaged(rows: DataFrame, staging: str, compression: str) -> None:
    """
    @param rows: of a table.
    @param staging: the run's folder.
    """
    spread = rows.hint("rebalance", *PARTITION_COLUMNS).sortWithinPartitions(*_ORDER)
    spread.write.partitionBy(*PARTITION_COLUMNS).option("compression", compression).parquet(f"{staging}/{_DATA}")


def stagedFiles(staging: str, number: int) -> tuple[TableFile, ...]:
    """
    What was written, with the names that it will get.

    @param number: of the run.
    @raise LoadError: a file is not what Spark said it would be.
    """
    root = f"{staging}/{_DATA}"
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("_"))
        found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names) if name.endswith(SUFFIX) and not name.startswith(("_", "."))]
    return tuple(_described(root, path, number, index) for index, path in enumerate(found))


def _described(root: str, path: str, number: int, index: int) -> TableFile:
    full = os.path.join(root, path)
    try:
        rowCount = parquet.read_metadata(full).num_rows
    except Exception as error:  # whatever Arrow raises on what is no Parquet
        raise LoadError(f"{full}: it cannot be read back: {error}") from error
    return TableFile(f"{os.path.dirname(path)}/{fileName(number, index, path)}", f"{_DATA}/{path}", rowCount, os.path.getsize(full))
