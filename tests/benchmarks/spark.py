"""
How fast Spark reads topics, beside its own scan of the same rows in Parquet, in the same run::

    python -m tests.benchmarks.spark --messages 1000000 --rounds 3

Messages of 200 bytes, all columns, to the sink C{noop}; one partition and two, against one Parquet
file and two. Two brokers as processes on the same machine do their part meanwhile, which Parquet
does not need. The exit status is 0 if two partitions reach a quarter of the scan.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from random import Random
from time import monotonic
from typing import Any

from pylogbroker import __version__
from pylogbroker.records.compression import zlib
from pylogbroker.types import BrokerPartition
from tests.integration.sparksession import SparkCluster, sharedSession

MESSAGE_SIZE = 200
SET_COUNT = 200
SHARE_MIN = 0.25
FIRST, SECOND = BrokerPartition(0, 0), BrokerPartition(1, 0)


def payloads(count: int, seed: int) -> list[bytes]:
    """Half of each is chance, half is text that repeats."""
    random = Random(seed)
    text = (
        b" GET /index.html HTTP/1.1 200 Mozilla/5.0 (X11; Linux x86_64) referrer=none status=ok"
        b" session=0000"
    )
    return [
        (random.randbytes(MESSAGE_SIZE // 2) + text).ljust(MESSAGE_SIZE, b".")[:MESSAGE_SIZE]
        for _number in range(count)
    ]


def rate(count: int, frame: Callable[[], Any]) -> float:
    """Rows a second, planning included."""
    begun = monotonic()
    frame().write.format("noop").mode("overwrite").save()
    return count / (monotonic() - begun)


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.spark",
        description="Measure reading topics beside reading Parquet.",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=1_000_000,
        help="how many messages in the two partitions (1000000)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds (3)")
    options = parser.parse_args()
    out, half = sys.stdout, options.messages // 2
    out.write(
        f"{2 * half} messages of {MESSAGE_SIZE} bytes; {os.cpu_count()} processors, load"
        f" {os.getloadavg()[0]:.1f}; checksums by {zlib.__name__}\n"
    )
    out.write(
        f"pylogbroker {__version__}, PySpark {version('pyspark')}, pyarrow {version('pyarrow')},"
        f" Python {platform.python_version()}\n"
    )
    session, cluster = sharedSession(), SparkCluster(2)
    try:
        for seed, place in enumerate((FIRST, SECOND)):
            cluster.write("clicks", place, payloads(half, seed), setCount=SET_COUNT)

        def topic(*places: BrokerPartition) -> Any:
            assigned = ", ".join(f'"{place}"' for place in places)
            given = {"brokers": cluster.listed, "assign": f'{{"clicks": [{assigned}]}}'}
            return session.read.format("pylogbroker").options(**given).load()

        for name, places in (("one", (FIRST,)), ("two", (FIRST, SECOND))):
            topic(*places).write.parquet(f"{cluster.folder}/{name}")
        measures: dict[str, tuple[int, Callable[[], Any]]] = {
            "1 partition": (half, lambda: topic(FIRST)),
            "1 file": (half, lambda: session.read.parquet(f"{cluster.folder}/one")),
            "2 partitions": (2 * half, lambda: topic(FIRST, SECOND)),
            "2 files": (2 * half, lambda: session.read.parquet(f"{cluster.folder}/two")),
        }
        rates = measure(measures, options.rounds)
    finally:
        cluster.end()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    out.write(
        f"{'median':>12} " + "".join(f"{median:>14,.0f}" for median in medians.values()) + "\n"
    )
    shares = [
        medians["1 partition"] / medians["1 file"],
        medians["2 partitions"] / medians["2 files"],
    ]
    out.write(
        f"share of the scan: 1 partition {shares[0]:.2f}, 2 partitions {shares[1]:.2f};"
        f" {'' if shares[1] >= SHARE_MIN else 'TOO LITTLE: '}{SHARE_MIN}\n"
    )
    return 0 if shares[1] >= SHARE_MIN else 1


def measure(
    measures: dict[str, tuple[int, Callable[[], Any]]], roundCount: int
) -> dict[str, list[float]]:
    """Rates of each, in turn; the first round is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in measures}
    sys.stdout.write(f"{'rows a second':>12} " + "".join(f"{name:>14}" for name in measures) + "\n")
    for number in range(roundCount + 1):
        found = {name: rate(*each) for name, each in measures.items()}
        sys.stdout.write(
            f"{f'round {number}' if number else 'warm-up':>12} "
            + "".join(f"{each:>14,.0f}" for each in found.values())
            + "\n"
        )
        sys.stdout.flush()
        for name, each in found.items() if number else ():
            rates[name].append(each)
    return rates


if __name__ == "__main__":
    raise SystemExit(main())
