"""
The data source C{pylogbroker}, registered by the module C{pyspark_pylogbroker} or by
C{spark.dataSource.register(PylogbrokerDataSource)}; and its batch reader. A module of its own,
because Spark finds the source there.

The columns are the same for every message format. C{key} and C{timestamp} are null until a format
carries them, so programs need not change then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.options import SinkOptions, SourceOptions, sinkOptions, sourceOptions
from pylogbroker.spark.partitiondiscovery import PartitionDiscovery
from pylogbroker.spark.rangereader import readSplit
from pylogbroker.spark.sink import BatchWriter, StreamWriter, checkColumns
from pylogbroker.spark.splits import (
    InputSplit,
    batchRanges,
    checkNamed,
    expectedPartitions,
    splitRanges,
)
from pylogbroker.spark.streamreader import StreamReader
from pylogbroker.types import LATEST

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("broker", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("nextOffset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)


def planBatch(options: SourceOptions) -> list[InputSplit]:
    """
    The splits of a batch, whose end is fixed now.

    @raise PylogbrokerError: something to read is missing, or a broker cannot be asked.
    """
    with PartitionDiscovery(options.cluster) as cluster:
        partitions = cluster.partitions(options.selection, expectedPartitions(options))
        checkNamed("startingOffsets", options.starting, partitions)
        checkNamed("endingOffsets", options.ending, partitions)
        with cluster.brokers(each.partition.broker for each in partitions) as brokers:
            ranges = batchRanges(options, brokers, partitions)
            cuts = splitRanges(
                list(ranges), options.minPartitionCount, lambda whole: ranges[whole].starts
            )
            return [InputSplit(each, brokers.address(each.partition.broker)) for each in cuts]


class BatchReader(DataSourceReader):
    """The data source's reader of a batch. Workers get copies, so it holds only options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """One for each split."""
        return [InputPartition(split) for split in planBatch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split. Spark passes one without a value if there are no splits."""
        return iter(()) if partition.value is None else readSplit(partition.value, self._options)


class PylogbrokerDataSource(DataSource):
    """C{format("pylogbroker")}."""

    @classmethod
    def name(cls) -> str:
        """The name for C{format}."""
        return "pylogbroker"

    def schema(self) -> StructType:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """
        @raise ConfigurationError: an option is wrong, or the schema is not the source's.
        """
        _checkSchema(schema)
        return BatchReader(sourceOptions(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """
        @raise ConfigurationError: an option is wrong, or the schema is not the source's.
        """
        _checkSchema(schema)
        options = sourceOptions(self.options)
        if options.ending != LATEST:
            raise ConfigurationError("endingOffsets has no meaning for a stream, which has no end")
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """
        @raise ConfigurationError: an option or a column is wrong, or the mode is not C{append}.
        """
        return BatchWriter(self._sinkOptions(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """
        @raise ConfigurationError: as C{writer}.
        """
        return StreamWriter(self._sinkOptions(schema, overwrite))

    def _sinkOptions(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise ConfigurationError("a topic cannot be overwritten: the only mode is append")
        options = sinkOptions(self.options)
        checkColumns(schema, options)
        return options


def _checkSchema(schema: StructType) -> None:
    if schema != SCHEMA:
        raise ConfigurationError(
            f"the columns of pylogbroker are fixed: {SCHEMA.simpleString()};"
            f" the schema given is {schema.simpleString()}"
        )
