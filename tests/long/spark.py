"""
Five million messages through Spark, and not one missing, twice, or out of place::

    python -m tests.long.spark --messages 5000000 --stops 3

Two brokers as processes, two partitions on each, many segments; plain sets, gzip, snappy, and
payloads that are valid message sets. They are read as a batch, cut into splits; and as a stream of
micro-batches that is stopped at moments of chance and started again from its checkpoint. Every
message is compared byte for byte with the one that was written, and the stretches are put together
again in order. The exit status is 0 if all of it is right.
"""

from __future__ import annotations

import argparse
import os
import sys
from random import Random
from time import monotonic, sleep
from typing import Any

from pylogbroker.types import BrokerPartition
from tests.integration.sparkchecks import STRETCHES, faults, judge, payload
from tests.integration.sparksession import SparkCluster, sharedSession

PLACES = [BrokerPartition(broker, partition) for broker in range(2) for partition in range(2)]
PIECE_COUNT = 50_000


class Run:
    """
    A cluster with numbered messages, and what is read of it.
    """

    def __init__(self, messageCount: int, random: Random) -> None:
        self.session = sharedSession()
        self.cluster = SparkCluster(
            2, num_partitions="2", log_file_size=str(32 << 20), log_flush_interval="20000"
        )
        self.counts = {place: messageCount // len(PLACES) for place in PLACES}
        self._random = random

    def fill(self) -> None:
        """Write all messages; each partition has its own codec."""
        for index, place in enumerate(PLACES):
            for start in range(0, self.counts[place], PIECE_COUNT):
                numbers = range(start, min(start + PIECE_COUNT, self.counts[place]))
                self.cluster.write(
                    "clicks", place, [payload(place, number) for number in numbers], codec=index % 3
                )

    def batch(self) -> list[str]:
        """Read all as a batch; returns what is wrong."""
        frame = (
            self.session.read.format("pylogbroker")
            .options(zookeeper=self.cluster.zookeeper, subscribe="clicks", minPartitions="16")
            .load()
        )
        return faults(frame.mapInArrow(judge, STRETCHES).collect(), self.counts)

    def stream(self, stopCount: int) -> list[str]:
        """Read all as a stream that is stopped so often; returns what is wrong."""
        table = f"{self.cluster.folder}/stretches"
        for _stop in range(stopCount):
            query = self._query(table)
            sleep(self._random.uniform(5, 15))
            query.stop()
        query = self._query(table)
        query.processAllAvailable()
        return faults(self.session.read.parquet(table).collect(), self.counts)

    def _query(self, table: str) -> Any:
        given = {
            "zookeeper": self.cluster.zookeeper,
            "subscribe": "clicks",
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": str(48 << 20),
        }
        stretches = (
            self.session.readStream.format("pylogbroker")
            .options(**given)
            .load()
            .mapInArrow(judge, STRETCHES)
        )
        write = (
            stretches.writeStream.format("parquet")
            .option("checkpointLocation", f"{table}.checkpoint")
            .trigger(availableNow=True)
        )
        return write.start(table)


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.spark",
        description="Many messages through Spark, compared one by one.",
    )
    parser.add_argument("--messages", type=int, default=5_000_000, help="how many (5000000)")
    parser.add_argument(
        "--stops", type=int, default=3, help="how often the stream is stopped and started again (3)"
    )
    parser.add_argument("--seed", type=int, default=2011, help="of the moments (2011)")
    options = parser.parse_args()
    out = sys.stdout
    out.write(
        f"{options.messages} messages, {options.stops} stops, seed {options.seed}; {os.cpu_count()}"
        f" processors, load {os.getloadavg()[0]:.1f}\n"
    )
    run = Run(options.messages, Random(options.seed))
    wrong: list[str] = []
    try:
        for name, step in (
            ("written", run.fill),
            ("batch", run.batch),
            ("stream", lambda: run.stream(options.stops)),
        ):
            begun = monotonic()
            found = step() or []
            wrong += found
            out.write(f"{name:>10} {monotonic() - begun:>8.0f} s  {'; '.join(found) or 'right'}\n")
            out.flush()
    finally:
        run.cluster.end()
    out.write("WRONG\n" if wrong else "nothing is missing, twice or out of place\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
