"""
Avro in Spark: what Confluent's client has encoded, decoded in a column by way of our registry.
"""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PythonException

from pylogbroker.spark.avro import fromAvro
from pylogbroker.spark.loader import load, table
from pylogbroker.testing.backgroundbroker import BackgroundBroker
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

    def test_today(self) -> None:
        """
        Values of a topic of today's Kafka are decoded on the way into a table, and a field is the
        event time; a key is decoded alike.
        """
        session: Any = sharedSession()
        broker = BackgroundBroker({"num.partitions": "1"}).start()
        self.addCleanup(broker.close)
        keys = AvroSerializer(self.confluent(), CLICK)
        where = SerializationContext("clicks", MessageField.KEY)
        key = keys({"user": "key", "at": 0, "page": None}, where)
        producer = Producer({"bootstrap.servers": broker.bootstrapServers})
        for payload in (*self.payloads(10), None, b"rubbish"):
            producer.produce("clicks", payload, key)
        producer.flush(60)
        registry = self.registry.url

        def decoded(rows: Any) -> Any:
            click = fromAvro("value", registry=registry, subject="clicks-value")
            return rows.withColumn("click", click)

        source: dict[str, Any] = {
            "kafka.bootstrap.servers": broker.bootstrapServers,
            "subscribe": "clicks",
        }
        folder = f"{self.folder}/table"
        run = load(session, folder, transform=decoded, eventTime="click.at", **source)
        assert run.manifest is not None
        self.assertEqual((run.manifest.rowCount, run.manifest.arrivals), (12, {"clicks": 2}))
        rows = table(session, folder)
        [total] = rows.selectExpr("sum(click.ms) AS ms", "count(click) AS count").collect()
        self.assertEqual((total["ms"], total["count"]), (25, 10))
        [hours] = rows.where("NOT isArrival").select("date", "hour").distinct().collect()
        self.assertEqual((str(hours["date"]), hours["hour"]), ("1970-01-01", 0))
        user = fromAvro("key", registry=registry, subject="clicks-key")["user"]
        self.assertEqual(
            [row[0] for row in rows.select(user.alias("user")).distinct().collect()], ["key"]
        )

    def test_fields(self) -> None:
        """The column's type is that of the schema."""
        sharedSession()
        kind = fromAvro(
            "value", registry="http://127.0.0.1:9", readerSchema=json.dumps(json.loads(CLICK))
        )
        self.assertIn("value", str(kind))
