"""
Topics of today's Kafka in PySpark: a real Spark session and a real broker.
"""

from __future__ import annotations

from typing import Any

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.test_spark import SparkCase

ROW_COUNT = 50_000


class KafkaSparkTests(SparkCase):
    """Jobs as they are written for Spark's own Kafka source, with the format's name changed."""

    def setUp(self) -> None:
        super().setUp()
        self.broker = BackgroundBroker({"num.partitions": "2"}).start()
        self.addCleanup(self.broker.close)
        self.servers = {"kafka.bootstrap.servers": self.broker.bootstrapServers}

    def produce(self, topic: str) -> Any:
        """Rows for a topic, written by the sink."""
        frame = self.spark.range(ROW_COUNT).selectExpr(
            "CAST(id % 100 AS STRING) AS key",
            "CAST(id AS STRING) AS value",
            "array(named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY)))"
            " AS headers",
        )
        frame.write.format("pylogbroker").mode("append").options(topic=topic, **self.servers).save()
        return frame

    def test_batch(self) -> None:
        """What the sink wrote is what the source reads, with keys, headers and splits."""
        self.produce("batch")
        frame = self.batch(
            subscribe="batch", includeHeaders="true", minPartitions="4", **self.servers
        )
        self.assertEqual(
            frame.schema.simpleString(),
            "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
            "timestamp:timestamp,timestampType:int,"
            "headers:array<struct<key:string,value:binary>>>",
        )
        [row] = frame.selectExpr(
            "count(*)",
            "count(DISTINCT CAST(value AS STRING))",
            "sum(CAST(CAST(value AS STRING) AS BIGINT))",
            "bool_and(headers[0].value = value AND headers[0].key = 'n')",
            "bool_and(CAST(value AS STRING) % 100 = CAST(key AS STRING))",
            "count(DISTINCT partition, offset)",
        ).collect()
        total = ROW_COUNT * (ROW_COUNT - 1) // 2
        self.assertEqual(tuple(row), (ROW_COUNT, ROW_COUNT, total, True, True, ROW_COUNT))
        keys = frame.selectExpr("key", "partition").distinct()
        self.assertEqual(keys.count(), 100)  # a key is in one partition

    def test_stream(self) -> None:
        """A stream into a table, interrupted, limited, and from topic to topic."""
        self.produce("stream")
        options = {
            "subscribe": "stream",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "20000",
            **self.servers,
        }
        self.load(self.stream(**options))
        self.produce("stream")
        self.load(self.stream(**options))
        table = self.spark.read.parquet(f"{self.folder}/table")
        self.assertEqual(table.count(), 2 * ROW_COUNT)
        self.assertEqual(table.select("partition", "offset").distinct().count(), 2 * ROW_COUNT)
        query = (
            self.stream(**options)
            .select("key", "value")
            .writeStream.format("pylogbroker")
            .trigger(availableNow=True)
            .options(topic="copy", checkpointLocation=f"{self.folder}/copied", **self.servers)
        )
        self.start(query).awaitTermination(120)
        copy = self.batch(subscribe="copy", **self.servers)
        self.assertEqual(copy.select("value").distinct().count(), ROW_COUNT)
        self.assertEqual(copy.count(), 2 * ROW_COUNT)
