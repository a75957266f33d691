"""
How fast Spark reads a topic of today's Kafka by our source and by Spark's own, from the same broker
in the same run, beside its scan of the same rows in Parquet::

    python -m tests.benchmarks.kafka.spark --messages 2000000 --rounds 3

Messages of 200 bytes in two partitions, all columns, to the sink C{noop}: as a batch, and as a
stream that reads all in one micro-batch. Maven fetches Spark's own source.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

from pylogbroker import __version__
from pylogbroker.speedups import native
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.benchmarks.spark import MESSAGE_SIZE, measure, payloads
from tests.integration.sparksession import startSession
from tests.long.sparkrows import SOURCE, fetchJars

PARTITION_COUNT = 2
OURS = "pylogbroker"
OWN = "Spark's own"
QUEUE_COUNT = 100_000


def produce(servers: str, count: int) -> None:
    """Half of the messages go to each partition, with keys, in batches of librdkafka's size."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 2 * QUEUE_COUNT,
        }
    )
    for number, value in enumerate(payloads(count, 0)):
        producer.produce("clicks", value, key=b"%d" % number, partition=number % PARTITION_COUNT)
        if number % QUEUE_COUNT == 0:
            producer.flush(600)
    if producer.flush(600):
        raise RuntimeError("not all messages were taken")


class StreamFrame:
    """
    A stream with the C{write…save} of a batch, for L{tests.benchmarks.spark.rate}.
    """

    def __init__(self, reader: Any, folder: str) -> None:
        self._reader = reader
        self._folder = folder

    @property
    def write(self) -> StreamFrame:
        """Itself, as are C{format} and C{mode}."""
        return self

    def format(self, _name: str) -> StreamFrame:
        """The sink is C{noop}."""
        return self

    mode = format

    def save(self) -> None:
        """Read all that is there, from the beginning."""
        query = (
            self._reader.load()
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{self._folder}/{uuid4()}")
            .start()
        )
        query.awaitTermination()


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kafka.spark",
        description="Measure reading topics of today's Kafka in Spark.",
    )
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="in the two partitions (1000000)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds (3)")
    options = parser.parse_args()
    count, out = options.messages, sys.stdout
    out.write(
        f"{count} messages of {MESSAGE_SIZE} bytes; {os.cpu_count()} processors, load"
        f" {os.getloadavg()[0]:.1f}; speed-up in C: {'no' if native is None else 'yes'}\n"
        f"pylogbroker {__version__}, PySpark {version('pyspark')}, pyarrow {version('pyarrow')},"
        f" Python {platform.python_version()}\n"
    )
    out.flush()
    with (
        tempfile.TemporaryDirectory() as folder,
        BackgroundBroker({"num.partitions": str(PARTITION_COUNT)}) as broker,
    ):
        Path(folder, "spark").mkdir()
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(fetchJars(folder))} pyspark-shell"
        session = startSession(f"{folder}/spark")
        produce(broker.bootstrapServers, count)
        given = {"kafka.bootstrap.servers": broker.bootstrapServers, "subscribe": "clicks"}

        def batch(source: str) -> Any:
            return session.read.format(source).options(**given).load()

        def stream(source: str) -> Any:
            reader = session.readStream.format(source).options(**given)
            return StreamFrame(reader.option("startingOffsets", "earliest"), folder)

        if batch(OURS).count() != count or batch(SOURCE).count() != count:
            raise RuntimeError("a source does not give all rows")
        batch(SOURCE).write.parquet(f"{folder}/parquet")
        measures: dict[str, tuple[int, Callable[[], Any]]] = {
            "ours": (count, lambda: batch(OURS)),
            OWN: (count, lambda: batch(SOURCE)),
            "Parquet": (count, lambda: session.read.parquet(f"{folder}/parquet")),
            "ours, stream": (count, lambda: stream(OURS)),
            "own, stream": (count, lambda: stream(SOURCE)),
        }
        rates = measure(measures, options.rounds)
        session.stop()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    out.write(
        f"{'median':>12} " + "".join(f"{median:>14,.0f}" for median in medians.values()) + "\n"
        f"batch: {medians['ours'] / medians[OWN]:.2f} of Spark's own,"
        f" {medians['ours'] / medians['Parquet']:.2f} of Parquet;"
        f" stream: {medians['ours, stream'] / medians['own, stream']:.2f} of Spark's own\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
