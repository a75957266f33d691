"""Tests for L{pylogbroker.spark.datasource}."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from twisted.trial.unittest import SynchronousTestCase

import pyspark_pylogbroker
from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.batch import BatchReader
from pylogbroker.spark.datasource import SCHEMA, PylogbrokerDataSource
from pylogbroker.spark.reading import ARROW_SCHEMA
from pylogbroker.spark.sink import BatchWriter, StreamWriter
from pylogbroker.spark.streaming import StreamReader

VALUE = StructType().add("value", "binary")


class DataSourceTests(SynchronousTestCase):
    """What Spark finds."""

    def source(self, **options: Any) -> PylogbrokerDataSource:
        """With options."""
        return PylogbrokerDataSource({"brokers": "h:1", **options})

    def test_found(self) -> None:
        """Spark finds it in a module whose name begins with pyspark_, under the name pylogbroker."""
        self.assertIs(pyspark_pylogbroker.DefaultSource, PylogbrokerDataSource)
        self.assertEqual(PylogbrokerDataSource.name(), "pylogbroker")

    def test_columns(self) -> None:
        """The columns that Spark is told of are those of the batches, type by type; nobody can ask for others."""
        self.assertEqual(to_arrow_schema(self.source().schema(), timezone="UTC"), ARROW_SCHEMA)
        for ask in (self.source(subscribe="t").reader, self.source(subscribe="t").streamReader):
            self.assertIn(
                "are fixed: struct<key:binary,",
                str(self.assertRaises(ConfigurationError, ask, VALUE)),
            )

    def test_parts(self) -> None:
        """Readers and writers for batches and streams, with their options checked."""
        source = self.source(subscribe="t")
        self.assertIsInstance(source.reader(SCHEMA), BatchReader)
        self.assertIsInstance(source.streamReader(SCHEMA), StreamReader)
        self.assertRaises(ConfigurationError, self.source().reader, SCHEMA)
        sink = self.source(topic="t")
        self.assertIsInstance(sink.writer(VALUE, False), BatchWriter)
        self.assertIsInstance(sink.streamWriter(VALUE, False), StreamWriter)
        self.assertRaises(ConfigurationError, self.source().writer, VALUE, False)

    def test_endlessStream(self) -> None:
        """A stream has no end to be given."""
        source = self.source(subscribe="t", endingOffsets='{"t": {"0-0": 5}}')
        self.assertIn(
            "endingOffsets", str(self.assertRaises(ConfigurationError, source.streamReader, SCHEMA))
        )

    def test_overwrite(self) -> None:
        """Nothing can be overwritten."""
        for ask in (self.source(topic="t").writer, self.source(topic="t").streamWriter):
            self.assertIn(
                "not overwritten", str(self.assertRaises(ConfigurationError, ask, VALUE, True))
            )
