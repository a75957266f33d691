"""
Reading topics once: C{spark.read.format("pylogbroker")}.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.partitiondiscovery import Cluster
from pylogbroker.spark.ranges import batchRanges, checkNamed, expectedPlaces
from pylogbroker.spark.reading import readSplit
from pylogbroker.spark.splits import InputSplit, splitRanges


def planBatch(options: SourceOptions) -> list[InputSplit]:
    """
    What is read side by side; the ends are those of now.

    @raise PylogbrokerError: not everything that is wanted is there, or can be found out.
    """
    with Cluster(options.cluster) as cluster:
        places = cluster.places(options.selection, expectedPlaces(options))
        checkNamed("startingOffsets", options.starting, places)
        checkNamed("endingOffsets", options.ending, places)
        with cluster.brokers(partition.broker for _topic, partition in places) as brokers:
            ranges = batchRanges(options, brokers, places)
            cuts = splitRanges(
                list(ranges), options.minPartitionCount, lambda whole: ranges[whole].starts
            )
            return [InputSplit(each, brokers.address(each.partition.broker)) for each in cuts]


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
