"""
Spark's own Kafka source and sink: a batch written in every codec and read back, and a stream whose
checkpoint survives a restart of the broker.

    sparksource.py JARS FOLDER SERVERS first|second
"""

import glob
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

jars, folder, servers, phase = sys.argv[1:]
COUNT = 300
start, end = (0, COUNT) if phase == "first" else (COUNT, COUNT + 10)
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(glob.glob(f"{jars}/*.jar")))
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def reading(reader, topic):
    """The broker's port is a new one in each run of the test, but not in its phases."""
    return (
        reader.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )


for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    numbers = spark.range(start, end)
    (
        numbers.select(
            f.concat(f.lit("key "), "id").alias("key"),
            f.repeat(f.concat(f.lit("value "), "id"), 20).alias("value"),
            f.array(f.struct(f.lit("n").alias("key"), f.lit(b"h").alias("value"))).alias("headers"),
        )
        .write.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.compression.type", codec)
        .option("topic", codec)
        .save()
    )
    rows = reading(spark.read, codec).collect()
    found = {bytes(row.key): bytes(row.value) for row in rows}
    assert len(rows) == end, (codec, len(rows))
    assert found == {b"key %d" % n: b"value %d" % n * 20 for n in range(end)}, codec
    assert all(row.headers[0].value == b"h" for row in rows)
query = (
    reading(spark.readStream, "lz4")
    .writeStream.format("parquet")
    .option("path", f"{folder}/table")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
assert query.exception() is None
assert spark.read.parquet(f"{folder}/table").count() == end
spark.stop()
