"""
Tests for L{pylogbroker.spark.datasource}.
"""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from twisted.trial.unittest import SynchronousTestCase

import pyspark_pylogbroker
from pylogbroker.errors import ConfigurationError, NoBrokersError
from pylogbroker.records.messageset import encodeSet
from pylogbroker.spark.datasource import SCHEMA, BatchReader, PylogbrokerDataSource, StreamReader
from pylogbroker.spark.rangereader import ARROW_SCHEMA
from pylogbroker.spark.sink import BatchWriter, StreamWriter
from tests.spark.sourcecase import SourceCase

VALUE = StructType().add("value", "binary")


class DataSourceTests(SynchronousTestCase):
    """What Spark finds."""

    def source(self, **options: Any) -> PylogbrokerDataSource:
        """With options."""
        return PylogbrokerDataSource({"brokers": "h:1", **options})

    def test_found(self) -> None:
        """
        Spark finds it in a module whose name begins with pyspark_, under the name pylogbroker.
        """
        self.assertIs(pyspark_pylogbroker.DefaultSource, PylogbrokerDataSource)
        self.assertEqual(PylogbrokerDataSource.name(), "pylogbroker")

    def test_columns(self) -> None:
        """
        The columns that Spark is told of are those of the batches, type by type; a query cannot ask
        for others.
        """
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
                "cannot be overwritten",
                str(self.assertRaises(ConfigurationError, ask, VALUE, True)),
            )


SETS = [encodeSet([b"%d" % index] * 20) for index in range(4)]


class BatchReaderTests(SourceCase):
    """What Spark asks, without Spark."""

    def test_splits(self) -> None:
        """
        Splits lie on all brokers, are cut at segments, survive being sent to workers, and have all
        messages together.
        """
        other = self.serve(number=7)
        self.broker.log().append(*SETS)
        other.log().append(*SETS[:2])
        options = self.options(brokers=f"{self.broker.listed},{other.listed}", minPartitions=6)
        reader = pickle.loads(pickle.dumps(BatchReader(options)))
        partitions = pickle.loads(pickle.dumps(reader.partitions()))
        self.assertEqual(len(partitions), 6)
        rows = [
            row
            for partition in partitions
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        self.assertEqual(
            [row["value"] for row in rows if row["broker"] == 0],
            [b"%d" % index for index in range(4) for _ in range(20)],
        )
        self.assertEqual(
            [row["value"] for row in rows if row["broker"] == 7],
            [b"%d" % index for index in range(2) for _ in range(20)],
        )

    def test_nothing(self) -> None:
        """No messages are no splits; the one that Spark makes up then has no rows."""
        self.broker.log()
        reader = BatchReader(self.options())
        self.assertEqual(reader.partitions(), [])
        self.assertEqual(list(reader.read(InputPartition(None))), [])

    def test_noSuchTopic(self) -> None:
        """
        A topic that no broker has is an error that names topic and cluster, not an empty table.
        """
        self.broker.log("impressions")
        for options in (
            {"subscribe": "impressions,clicks"},
            {"subscribe": None, "assign": '{"clicks": ["0-0"]}'},
        ):
            error = self.assertRaises(
                NoBrokersError, BatchReader(self.options(**options)).partitions
            )
            self.assertIn("topic clicks does not exist", str(error))
            self.assertIn(self.broker.listed.partition(":")[2], str(error))

    def test_oneOfTwoBrokers(self) -> None:
        """A topic exists if one broker has it, with messages or without."""
        other = self.serve(number=7)
        options = self.options(brokers=f"{self.broker.listed},{other.listed}")
        other.log()
        self.assertEqual(BatchReader(options).partitions(), [])
        other.log().append(*SETS[:1])
        self.assertEqual(len(BatchReader(options).partitions()), 1)

    def test_otherPartitionsThanNamed(self) -> None:
        """Offsets for a partition that is not there are refused, after it was looked for."""
        options = self.options(startingOffsets='{"clicks": {"0-0": 0, "3-0": 0}}', retryCount=0)
        self.assertIn(
            "names topic clicks, partition 3-0",
            str(self.assertRaises(ConfigurationError, BatchReader(options).partitions)),
        )
