"""
Reading topics once: C{spark.read.format("pylogbroker")}.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pylogbroker.spark.asking import Brokers
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.plan import Split
from pylogbroker.spark.ranges import batchRanges, findPlaces, splitsOf
from pylogbroker.spark.reading import readSplit


def planBatch(options: SourceOptions) -> list[Split]:
    """
    What is read side by side; the ends are those of now.

    @raise PylogbrokerError: not everything that is wanted is there, or can be found out.
    """
    with options.cluster.view() as view, Brokers(view.brokers(), options.cluster) as brokers:
        return splitsOf(options, view, batchRanges(options, brokers, findPlaces(view, options.selection)))


class BatchReader(DataSourceReader):
    """
    What Spark asks. It goes to the workers, so that it holds nothing but options.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """One for each split."""
        return [InputPartition(split) for split in planBatch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split. Spark gives one without a value when there are no splits."""
        return iter(()) if partition.value is None else readSplit(partition.value, self._options)
