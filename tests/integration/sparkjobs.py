"""
Jobs as they are written for Spark's own Kafka source, the topics that they read, and the rows that
Spark's own source gave (C{tests/golden/spark-rows.json}, by C{python -m tests.long.sparkrows}).
"""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer
from pyspark.errors import PySparkException

from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.records.compression import LZ4, NONE, ZSTD
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.types import TopicPartition
from tests.goldenfiles import GOLDEN

RECORDED = GOLDEN / "spark-rows.json"
PROPERTIES = {"num.partitions": "2", "log.retention.ms": "-1"}
START_MS = 1_700_000_000_000
STREAMS = ("stream", "stream with a least size")
REFUSED = ("from the latest", "from a latest offset")
"""Jobs that Spark's own source refuses; recorded without columns and rows."""

JOBS: dict[str, dict[str, str]] = {
    "all": {"subscribe": "clicks", "includeHeaders": "true"},
    "two topics": {"subscribe": "clicks,other"},
    "assign": {"assign": '{"clicks":[1],"other":[0]}'},
    "pattern": {"subscribePattern": "cl.*|no"},
    "no topic matches": {"subscribePattern": "no"},
    "offsets": {
        "subscribe": "clicks",
        "startingOffsets": '{"clicks":{"0":2,"1":-2}}',
        "endingOffsets": '{"clicks":{"0":7,"1":-1}}',
    },
    "from a time": {"subscribe": "clicks", "startingTimestamp": str(START_MS + 4_500)},
    "to a time": {"subscribe": "clicks", "endingTimestamp": str(START_MS + 5_000)},
    "times": {
        "subscribe": "clicks",
        "startingOffsetsByTimestamp": json.dumps(
            {"clicks": {"0": START_MS, "1": START_MS + 6_000}}
        ),
        "endingOffsetsByTimestamp": json.dumps(
            {"clicks": {"0": START_MS + 3_000, "1": START_MS + 99_000}}
        ),
    },
    "times before offsets": {
        "subscribe": "clicks",
        "startingTimestamp": str(START_MS + 8_000),
        "startingOffsets": "earliest",
    },
    "time behind the end": {
        "subscribe": "clicks",
        "startingTimestamp": str(START_MS + 99_000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "committed": {"subscribe": "other", "kafka.isolation.level": "read_committed"},
    "uncommitted": {"subscribe": "other"},
    "splits": {"subscribe": "clicks", "minPartitions": "5", "groupIdPrefix": "x"},
    "splits by size": {"subscribe": "clicks", "maxRecordsPerPartition": "5", "minPartitions": "3"},
    "tuning": {
        "subscribe": "clicks",
        "kafka.group.id": "jobs",
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "100",
        "kafkaConsumer.pollTimeoutMs": "30000",
        "minOffsetsPerTrigger": "2",
    },
    "from the latest": {"subscribe": "clicks", "startingOffsets": "latest"},
    "from a latest offset": {
        "subscribe": "clicks",
        "startingOffsets": '{"clicks":{"0":-1,"1":0}}',
    },
    "stream": {
        "subscribe": "clicks",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "5",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    },
    "stream with a least size": {
        "subscribe": "clicks",
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "4",
        "maxOffsetsPerTrigger": "10",
        "maxTriggerDelay": "1h",
        "maxRecordsPerPartition": "3",
    },
}


def fill(servers: str) -> None:
    """Make the topics C{clicks} and C{other}."""
    with KafkaCluster([endpoint(servers)]) as cluster:
        for topic in ("clicks", "other"):
            cluster.partitions(topic, isCreating=True)
        for partition in range(2):
            where = TopicPartition("clicks", partition)
            for index, codec in enumerate((NONE, LZ4, ZSTD)):
                records = [_record(partition, 4 * index + number) for number in range(4)]
                RecordWriter(cluster, codec).write(where, records)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "jobs"})
    producer.init_transactions(60)
    for number in range(4):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(
                "other", b"%d %d" % (number, each), partition=0, timestamp=START_MS + number
            )
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)


def _record(partition: int, number: int) -> Record:
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if number % 3 == 1:
        headers = (("ä", b"\x00\xff"), ("ä", None), ("", b""))
    key = [None, b"", b"key %d" % number][number % 3]
    value = None if number % 5 == 4 else b"value %d %d" % (partition, number)
    return Record(0, START_MS + 1_000 * number + partition, key, value, headers)


def run(spark: Any, source: str, name: str, servers: str, folder: str) -> dict[str, Any]:
    """
    Run a job.

    @param source: of the format.
    @param folder: for a stream's table and checkpoint.
    @return: the columns, and the rows as JSON has them, sorted; none if the job is refused.
    """
    options = {"kafka.bootstrap.servers": servers, **JOBS[name]}
    try:
        return _rows(spark, source, options, folder if name in STREAMS else None)
    except PySparkException:
        if name in REFUSED:
            return {"columns": "", "rows": []}
        raise


def _rows(spark: Any, source: str, options: dict[str, str], folder: str | None) -> dict[str, Any]:
    """@param folder: for a stream; L{None}: a batch."""
    if folder is not None:
        query = (
            spark.readStream.format(source)
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start(f"{folder}/table")
        )
        query.awaitTermination(120)
        frame = spark.read.parquet(f"{folder}/table")
    else:
        frame = spark.read.format(source).options(**options).load()
    columns = ["hex(key)", "hex(value)", "topic", "partition", "offset", "unix_micros(timestamp)"]
    columns.append("timestampType")
    if "headers" in frame.columns:
        columns.append("to_json(transform(headers, h -> array(h.key, hex(h.value)))) AS headers")
    rows = sorted(map(list, frame.selectExpr(*columns).collect()), key=lambda row: row[2:5])
    return {"columns": frame.schema.simpleString(), "rows": rows}
