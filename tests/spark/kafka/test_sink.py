"""
Tests for L{pylogbroker.spark.kafka.sink}, on a real broker.
"""

from __future__ import annotations

from time import time
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from pylogbroker.errors import ConfigurationError, EncodingError, UnknownPartitionError
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.spark.kafka import sink
from pylogbroker.spark.kafka.options import KafkaSinkOptions
from pylogbroker.spark.kafka.sink import (
    KafkaStreamWriter,
    KafkaTaskWriter,
    checkKafkaColumns,
    sendRows,
)
from pylogbroker.spark.sink import TaskResult
from tests.spark.kafka.kafkasource import KafkaSourceCase

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class SinkTests(KafkaSourceCase):
    """Rows become records."""

    def sinkOptions(self, **options: Any) -> KafkaSinkOptions:
        """By default for the topic C{clicks}."""
        given = self.given(**{"subscribe": None, "topic": "clicks", **options})
        return KafkaSinkOptions.fromOptions(given)

    def test_rows(self) -> None:
        """Keys, values, headers and tombstones arrive where Java's producer would send them."""
        rows = {
            "topic": ["clicks"] * 4,
            "partition": pa.array([None, None, 1, 0], pa.int32()),
            "key": ["a", "b", "a", None],
            "value": [b"1", None, b"3", b"4"],
            "headers": pa.array([[{"key": "h", "value": b"x"}], None, [], None], HEADERS),
        }
        options = self.sinkOptions(topic=None, kafka_compression_type="zstd")
        self.assertEqual(sendRows(options, [pa.RecordBatch.from_pydict(rows)]), 4)
        found = [
            (row["partition"], row["key"], row["value"], row["headers"])
            for row in self.rows(includeHeaders="true")
        ]
        self.assertEqual(
            sorted(found, key=repr),
            sorted(
                [
                    (0, b"a", b"1", [{"key": "h", "value": b"x"}]),
                    (0, b"b", None, None),
                    (1, b"a", b"3", None),
                    (0, None, b"4", None),
                ],
                key=repr,
            ),
        )
        self.assertEqual(sendRows(self.sinkOptions(kafka_bootstrap_servers="127.0.0.1:1"), []), 0)

    def test_batches(self) -> None:
        """
        Rows without a key stay in a partition until a batch is sent; the buffer of all is bounded.
        """
        numbers = iter([0.0, 0.9, 0.0, 0.9])
        options = self.sinkOptions(kafka_batch_size=100)
        writer = KafkaTaskWriter(options, self.cluster, lambda: 5.0, lambda: next(numbers))
        for number in range(10):
            writer.add("clicks", None, None, b"%020d" % number)
        writer.flush()
        self.assertEqual(writer.sentCount, 10)
        rows = self.rows()
        self.assertEqual({row["partition"] for row in rows}, {0, 1})
        self.assertEqual({row["timestamp"].timestamp() for row in rows}, {5.0})
        self.patch(sink, "BUFFERED_SIZE_MAX", 150)
        writer = KafkaTaskWriter(self.sinkOptions(), self.cluster)
        for number in range(2):
            writer.add("clicks", number, None, bytes(100))
        self.assertEqual(writer.sentCount, 2)

    def test_tooLarge(self) -> None:
        """A batch that a broker refuses as too large is halved; a single record is an error."""
        fault = self.broker.injectError("Produce", "MESSAGE_TOO_LARGE", count=2)
        writer = KafkaTaskWriter(self.sinkOptions(), self.cluster)
        for number in range(4):
            writer.add("clicks", 0, None, b"%d" % number)
        writer.flush()
        self.assertEqual((fault.hitCount, writer.sentCount), (2, 4))
        self.assertEqual(self.values(), [b"0", b"1", b"2", b"3"])
        self.broker.injectError("Produce", "MESSAGE_TOO_LARGE")
        writer.add("clicks", 0, None, b"x")
        with self.assertRaisesRegex(ResponseError, "clicks-0: MESSAGE_TOO_LARGE"):
            writer.flush()

    def test_refused(self) -> None:
        """A row without a topic, or with a partition that does not exist."""
        writer = KafkaTaskWriter(self.sinkOptions(), self.cluster)
        with self.assertRaisesRegex(EncodingError, "a row without a topic"):
            writer.add(None, None, b"k", b"v")
        with self.assertRaisesRegex(UnknownPartitionError, "2 partitions, and a row names 5"):
            writer.add("clicks", 5, None, b"v")

    def test_timestamps(self) -> None:
        """A column may have the records' timestamps; a null is the time of sending."""
        times = pa.array([1_700_000_000_123_000, None], pa.timestamp("us", tz="UTC"))
        rows = {"partition": pa.array([0, 0], pa.int32()), "value": [b"a", b"b"], "at": times}
        options = self.sinkOptions(timestampColumn="at")
        begun = int(time() * 1000)
        self.assertEqual(sendRows(options, [pa.RecordBatch.from_pydict(rows)]), 2)
        first, second = (int(row["timestamp"].timestamp() * 1000) for row in self.rows())
        self.assertEqual(first, 1_700_000_000_123)
        self.assertGreaterEqual(second, begun)
        for kind, found in ((LongType(), "bigint"), (None, "not there")):
            schema = StructType().add("value", BinaryType())
            schema = schema if kind is None else schema.add("at", kind)
            with self.assertRaisesRegex(ConfigurationError, f"the column is {found}; it must be"):
                checkKafkaColumns(schema, options)

    def test_columns(self) -> None:
        """Columns and types are checked before anything runs."""

        def schema(**columns: DataType) -> StructType:
            found = StructType()
            for name, kind in columns.items():
                found = found.add(name, kind)
            return found

        text = StringType()
        pair = schema(key=text, value=BinaryType())
        checkKafkaColumns(schema(value=text, headers=ArrayType(pair)), self.sinkOptions())
        for columns, reason in (
            (schema(key=BinaryType()), "there is no column value"),
            (schema(value=IntegerType()), "column value is of type int"),
            (schema(value=text, partition=LongType()), "column partition is of type bigint"),
            (
                schema(value=text, headers=ArrayType(text)),
                "column headers is of type array<string>",
            ),
        ):
            with self.assertRaisesRegex(ConfigurationError, reason):
                checkKafkaColumns(columns, self.sinkOptions())
        with self.assertRaisesRegex(ConfigurationError, "no column topic, nor an option topic"):
            checkKafkaColumns(schema(value=text), self.sinkOptions(topic=None))

    def test_stream(self) -> None:
        """A micro-batch counts its rows, and a failed one says that they stay."""
        writer = KafkaStreamWriter(self.sinkOptions())
        result = writer.write(iter([pa.RecordBatch.from_pydict({"value": ["a", "b"]})]))
        self.assertEqual(result, TaskResult("", 2))
        with self.assertLogs("pylogbroker.spark.kafka.sink", "WARNING") as logged:
            writer.abort([result, None], 7)
        self.assertIn("Micro-batch 7 failed; 2 rows or more were written", logged.output[0])
