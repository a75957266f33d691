"""
The data source, as Spark finds it: by C{spark.dataSource.register(PylogbrokerDataSource)}, or by itself through the module C{pyspark_pylogbroker}.

The columns are fixed, and are the same whatever the format of the messages is; C{key} and C{timestamp} are null until one carries them. So programs need not
change when one does.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
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
from pylogbroker.spark.batch import BatchReader
from pylogbroker.spark.options import SinkOptions, sinkOptions, sourceOptions
from pylogbroker.spark.sink import BatchWriter, StreamWriter, checkColumns
from pylogbroker.spark.streaming import StreamReader
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


class PylogbrokerDataSource(DataSource):
    """
    C{format("pylogbroker")}.
    """

    @classmethod
    def name(cls) -> str:
        """What C{format} is told."""
        return "pylogbroker"

    def schema(self) -> StructType:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """
        @raise ConfigurationError: an option is wrong, or a schema was given that is not the source's.
        """
        _checkSchema(schema)
        return BatchReader(sourceOptions(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """
        @raise ConfigurationError: an option is wrong, or a schema was given that is not the source's.
        """
        _checkSchema(schema)
        options = sourceOptions(self.options)
        if options.ending != LATEST:
            raise ConfigurationError("endingOffsets has no meaning for a stream, which has no end")
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """
        @raise ConfigurationError: an option is wrong, the columns are not those that can be written, or what is there should be overwritten.
        """
        return BatchWriter(self._sinkOptions(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """
        @raise ConfigurationError: as C{writer}.
        """
        return StreamWriter(self._sinkOptions(schema, overwrite))

    def _sinkOptions(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise ConfigurationError(
                "a topic can be appended to, not overwritten: mode append is the one that is left"
            )
        options = sinkOptions(self.options)
        checkColumns(schema, options)
        return options


def _checkSchema(schema: StructType) -> None:
    if schema != SCHEMA:
        raise ConfigurationError(
            f"the columns of pylogbroker are fixed: {SCHEMA.simpleString()}; a schema was given: {schema.simpleString()}"
        )
