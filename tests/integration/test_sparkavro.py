"""
Avro in Spark: what Confluent's client has encoded, decoded in a column by way of our registry.
"""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PythonException

from pylogbroker.spark.avro import fromAvro
from tests.integration.sparksession import sharedSession
from tests.integration.test_registry import CLICK, WIDER, RegistryCase


class ColumnTests(RegistryCase):
    """C{fromAvro} in queries."""

    def payloads(self, count: int) -> list[bytes]:
        where = SerializationContext("clicks", MessageField.VALUE)
        old, new = AvroSerializer(self.confluent(), CLICK), AvroSerializer(self.confluent(), WIDER)
        return [
            new({"user": f"u{number}", "at": 0, "page": "/", "ms": number}, where)
            if number % 2
            else old({"user": f"u{number}", "at": 0, "page": None}, where)
            for number in range(count)
        ]

    def test_column(self) -> None:
        """
        Rows of two schemas come as the subject's latest wants them; what is broken is null, or
        stands beside why, or stops the query.
        """
        session: Any = sharedSession()
        payloads = [*self.payloads(100), b"rubbish", b"\0\0\0\x03\xe7x"]
        frame = session.createDataFrame(
            [(bytes(payload),) for payload in payloads], "value binary"
        ).repartition(2)
        clicks = frame.select(
            fromAvro("value", registry=self.registry.url, subject="clicks-value").alias("click")
        )
        self.assertEqual(clicks.filter("click is null").count(), 2)
        [total] = clicks.selectExpr(
            "sum(click.ms) as ms",
            "count(distinct click.user) as users",
            "count(click.page) as pages",
        ).collect()
        self.assertEqual((total.ms, total.users, total.pages), (sum(range(1, 100, 2)), 100, 50))
        errors = frame.select(
            fromAvro(
                frame.value, registry=self.registry.url, readerSchema=CLICK, withErrors=True
            ).alias("row")
        )
        found = {
            row.error.partition(":")[0]
            for row in errors.select("row.*").filter("error is not null").collect()
        }
        self.assertEqual(found, {"InvalidPayloadError", "SchemaNotFoundError"})
        strict = frame.select(
            fromAvro("value", registry=self.registry.url, readerSchema=CLICK, mode="FAILFAST")
        )
        self.assertIn("schema", str(self.assertRaises(PythonException, strict.collect)))

    def test_fields(self) -> None:
        """The column's type is that of the schema."""
        sharedSession()
        kind = fromAvro(
            "value", registry="http://127.0.0.1:9", readerSchema=json.dumps(json.loads(CLICK))
        )
        self.assertIn("value", str(kind))
