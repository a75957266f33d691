"""
C{python -m tests.benchmarks.sparktasks}: how many words the jobs of word counts handle in a second
on Spark, of the same lines and in one run:

  - a word count of the high-level API, whose steps are Spark's operators,
  - the same query written for Spark by hand, over our source and our sink,
  - the high-level one by its tasks, in Python,
  - the two jobs of the low-level API, which are always by tasks.

The first two run in turn, some rounds of them, and the ratio is that of the medians; both leave the
same keys and values, which is checked. Each query has run before, over a few lines: the first run
starts Spark's processes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from pylogbroker.spark.kafka.options import KafkaSinkOptions
from pylogbroker.spark.kafka.sink import KafkaTaskWriter
from pylogbroker.spark.tasks.jobquery import (
    MAX_OFFSETS_DEFAULT,
    ROCKSDB_PROVIDER,
    JobPlace,
    JobQuery,
)
from pylogbroker.tasks.job import Job, loadJobs
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.streams import buildJob, stream
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.sparksession import ROOT, sharedSession

EXAMPLE = ROOT / "docs" / "examples" / "tasks" / "wordcount.py"
TASK_COUNT = 2
CACHE_SIZE = 10 << 20
LINE_SIZE = 10
"""Words of a line."""


def wordCount(topic: str) -> Job:
    """A word count of the high-level API; its changelog is the output."""
    words = stream(topic, message=STRING).flatMapValues(str.split, message=STRING)
    return buildJob("word-count", words.groupBy(lambda _, word: word, key=STRING).count("counts"))


def linesOf(words: Sequence[str]) -> list[tuple[None, bytes]]:
    """Messages of L{LINE_SIZE} words each."""
    starts = range(0, len(words), LINE_SIZE)
    return [(None, " ".join(words[at : at + LINE_SIZE]).encode()) for at in starts]


class Bench:
    """A broker, and Spark."""

    def __init__(self, spark: Any, servers: dict[str, str], folder: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._folder = folder
        self._place = JobPlace(
            str(folder / "state"), servers, {"startingOffsets": "earliest"}, {}, CACHE_SIZE
        )

    def produce(self, topic: str, messages: Sequence[tuple[str | None, bytes]]) -> None:
        """Send (key, value) pairs."""
        options = KafkaSinkOptions.fromOptions(self._servers)
        with options.cluster() as cluster:
            writer = KafkaTaskWriter(options, cluster)
            for number, (key, value) in enumerate(messages):
                writer.add(topic, number % TASK_COUNT if key is None else None, key, value)
            writer.flush()

    def create(self, topics: Sequence[str]) -> None:
        """Create topics."""
        with KafkaSinkOptions.fromOptions(self._servers).cluster() as cluster:
            for each in topics:
                cluster.partitions(each, isCreating=True)

    def run(self, job: Job, expectedCount: int, areOperatorsWanted: bool = True) -> float:
        """
        Run a job to the end of what there is.

        @param expectedCount: of messages that are handled.
        @return: seconds.
        """
        begun = time.perf_counter()
        query = JobQuery(self._spark, job, self._place, TASK_COUNT, areOperatorsWanted)
        query.start(isUntilEnd=True)
        while not query.wait(0.05):
            pass
        seconds = time.perf_counter() - begun
        count = query.progress().handledCount
        if count != expectedCount:
            raise RuntimeError(f"{job.name}: {count} of {expectedCount} messages were handled")
        return seconds

    def runByHand(self, topic: str, output: str) -> float:
        """
        The same query in Spark's own words: keys are words, values the greatest timestamp and the
        count, as the job's changelog has them.

        @return: seconds.
        """
        begun = time.perf_counter()
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB_PROVIDER)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(TASK_COUNT))
        lines = (
            self._spark.readStream.format("pylogbroker")
            .options(**self._servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", MAX_OFFSETS_DEFAULT)
            .load()
        )
        words = lines.select(
            sql.explode(sql.split(sql.col("value").cast("string"), " ")).alias("key"),
            sql.unix_millis("timestamp").alias("timestamp"),
        )
        counts = words.groupBy("key").agg(
            sql.max("timestamp").alias("timestamp"), sql.count("*").alias("count")
        )
        numbers = [sql.unhex(sql.lpad(sql.hex(name), 16, "0")) for name in ("timestamp", "count")]

        def write(batch: DataFrame, _number: int) -> None:
            sink = batch.write.format("pylogbroker").mode("append").options(**self._servers)
            sink.option("topic", output).save()

        query = (
            counts.select("key", sql.concat(*numbers).alias("value"))
            .writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", str(self._folder / "hand" / output))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.perf_counter() - begun

    def lastValues(self, topic: str) -> dict[bytes, bytes]:
        """Of each key."""
        rows = (
            self._spark.read.format("pylogbroker")
            .options(**self._servers)
            .option("subscribe", topic)
            .load()
            .orderBy("partition", "offset")
            .collect()
        )
        return {bytes(row["key"]): bytes(row["value"]) for row in rows}


def main(arguments: Sequence[str]) -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sparktasks")
    parser.add_argument("--words", type=int, default=2_000_000, help="for Spark's operators")
    parser.add_argument("--task-words", type=int, default=200_000, help="for tasks")
    parser.add_argument("--vocabulary", type=int, default=5_000, help="different words")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(options.vocabulary)]
    words = chance.choices(vocabulary, k=options.words)
    lines = linesOf(words)
    spark = sharedSession()
    with (
        tempfile.TemporaryDirectory() as folder,
        BackgroundBroker({"num.partitions": str(TASK_COUNT)}) as broker,
    ):
        bench = Bench(spark, {"kafka.bootstrap.servers": broker.bootstrapServers}, Path(folder))
        compareWithHand(bench, lines, len(words), options.rounds)
        runTasks(bench, words[: options.task_words])
    return 0


def compareWithHand(
    bench: Bench, lines: Sequence[tuple[str | None, bytes]], wordCountAll: int, rounds: int
) -> None:
    """Print the rates of Spark's operators, and of the query by hand."""
    bench.produce("few", lines[:LINE_SIZE])
    bench.produce("lines", lines)
    bench.run(wordCount("few"), LINE_SIZE)
    bench.runByHand("few", "few-by-hand")
    rates: dict[str, list[float]] = {"high-level": [], "by hand": []}
    for number in range(rounds):
        job = replace(wordCount("lines"), name=f"word-count-{number}")
        rates["high-level"].append(wordCountAll / bench.run(job, len(lines)))
        output = f"by-hand-{number}"
        rates["by hand"].append(wordCountAll / bench.runByHand("lines", output))
        if bench.lastValues(output) != bench.lastValues(job.changelogOf(job.stores[0])):
            raise RuntimeError("the two queries have different results")
    for name, found in rates.items():
        told = ", ".join(f"{each:,.0f}" for each in found)
        print(f"{name}, {wordCountAll:,} words: {told} words/s")
    ratio = statistics.median(rates["high-level"]) / statistics.median(rates["by hand"])
    print(f"high-level by Spark's operators: {ratio:.2f} of the query by hand")


def runTasks(bench: Bench, words: Sequence[str]) -> None:
    """Print the rates of jobs by tasks."""
    lines = linesOf(words)
    one = INTEGER.encode(1)
    jobs = loadJobs(str(EXAMPLE))
    byTasks = replace(wordCount("task-lines"), name="by-tasks")
    tried = (
        (byTasks, "task-lines", lines, len(words)),
        (jobs["count-words"], "words", [(word, one) for word in words], 0),
        (jobs["split-words"], "lines-to-split", lines, 0),
    )
    for job, topic, messages, repartitioned in tried:
        job = replace(job, inputs=[replace(job.inputs[0], topic=topic)])
        few = messages[:LINE_SIZE]
        bench.produce(topic, few)
        bench.create([job.repartitionTopicOf(each) for each in job.repartitions])
        bench.run(job, len(few) + (LINE_SIZE * len(few) if repartitioned else 0), False)
        bench.produce(topic, messages)
        seconds = bench.run(job, len(messages) + repartitioned, False)
        print(
            f"{job.name}, by tasks: {len(words):,} words, {len(Counter(words)):,} different ones,"
            f" in {seconds:.1f} s: {len(words) / seconds:,.0f} words/s"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
