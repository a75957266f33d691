"""
C{python -m tests.benchmarks.sparktasks}: how many messages the tasks of a job handle in a second on
Spark: the word count's second job, with its store and changelog, and the first, which has no state.

The query of each job runs twice: the first run, of a few messages, starts Spark's processes.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pylogbroker.spark.kafka.options import KafkaSinkOptions
from pylogbroker.spark.kafka.sink import KafkaTaskWriter
from pylogbroker.spark.tasks.jobquery import JobPlace, JobQuery
from pylogbroker.tasks.job import Job, loadJobs
from pylogbroker.tasks.serdes import INTEGER
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.sparksession import ROOT, sharedSession

EXAMPLE = ROOT / "docs" / "examples" / "tasks" / "wordcount.py"
TASK_COUNT = 2
CACHE_SIZE = 10 << 20


def produce(
    servers: dict[str, str], topic: str, messages: Sequence[tuple[str | None, bytes]]
) -> None:
    """Send (key, value) pairs."""
    options = KafkaSinkOptions.fromOptions(servers)
    with options.cluster() as cluster:
        writer = KafkaTaskWriter(options, cluster)
        for number, (key, value) in enumerate(messages):
            writer.add(topic, number % TASK_COUNT if key is None else None, key, value)
        writer.flush()


def run(spark: Any, job: Job, place: JobPlace) -> tuple[int, float]:
    """
    Run a job to the end of what there is.

    @return: messages, and seconds.
    """
    begun = time.perf_counter()
    query = JobQuery(spark, job, place, TASK_COUNT)
    query.start(isUntilEnd=True)
    while not query.wait(0.2):
        pass
    return query.progress().handledCount, time.perf_counter() - begun


def main(arguments: Sequence[str]) -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sparktasks")
    parser.add_argument("--words", type=int, default=400_000, help="to count")
    parser.add_argument("--vocabulary", type=int, default=5_000, help="different words")
    options = parser.parse_args(arguments)
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(options.vocabulary)]
    words = chance.choices(vocabulary, k=options.words)
    one = INTEGER.encode(1)
    jobs = loadJobs(str(EXAMPLE))
    spark = sharedSession()
    with (
        tempfile.TemporaryDirectory() as folder,
        BackgroundBroker({"num.partitions": str(TASK_COUNT)}) as broker,
    ):
        servers = {"kafka.bootstrap.servers": broker.bootstrapServers}
        place = JobPlace(
            str(Path(folder, "state")), servers, {"startingOffsets": "earliest"}, {}, CACHE_SIZE
        )
        produce(servers, "words", [(word, one) for word in vocabulary[:10]])
        run(spark, jobs["count-words"], place)
        produce(servers, "words", [(word, one) for word in words])
        count, seconds = run(spark, jobs["count-words"], place)
        if count != len(words):
            raise RuntimeError(f"{count} of {len(words)} words were handled")
        print(
            f"count-words: {count:,} words, {len(Counter(words)):,} different ones, in"
            f" {seconds:.1f} s: {count / seconds:,.0f} words/s"
        )
        lines = [(None, " ".join(words[at : at + 10]).encode()) for at in range(0, len(words), 10)]
        produce(servers, "lines", lines[:10])
        run(spark, jobs["split-words"], place)
        produce(servers, "lines", lines)
        count, seconds = run(spark, jobs["split-words"], place)
        print(f"split-words: {count:,} lines in {seconds:.1f} s: {count / seconds:,.0f} lines/s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
