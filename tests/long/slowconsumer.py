"""
What a stopped stream costs the others, in figures::

    python -m tests.long.slowconsumer --output docs/results/slow-consumer.md

One process reads a stream for each partition. In turn: all partitions but that of the first stream
are filled ("alone"); the first is filled as well, and its stream is not read ("beside"). What is
counted is the time until the others have read all of theirs. The figures are medians; the order
changes from round to round.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

from pylogbroker import __version__
from pylogbroker.records.compression import zlib
from tests.integration.brokerprocess import ROOT
from tests.integration.slowconsumer import (
    FETCH_SIZE,
    QUEUED_SIZE_MAX,
    STOPPED,
    STREAM_COUNT,
    Reading,
    SlowCluster,
)
from tests.integration.zookeeperprocess import ZookeeperProcess

ALONE, BESIDE = "alone", "beside a stopped one"
KINDS = (ALONE, BESIDE)


def row(kind: str, readings: list[Reading], count: int) -> str:
    """A line of the table: medians, and the extremes of memory."""
    total = count * (STREAM_COUNT - 1)
    rate = median(total / reading.seconds for reading in readings)
    slowest, fastest = (
        edge(total / reading.seconds for reading in readings) for edge in (min, max)
    )
    cpu = median(reading.cpuSeconds / total * 1e6 for reading in readings)
    cells = [
        kind,
        f"{rate:,.0f}",
        f"{slowest:,.0f} to {fastest:,.0f}",
        f"{cpu:.2f}",
        f"{max(reading.rssSizes[0] for reading in readings) / 1e6:.1f}",
        f"{max(max(reading.rssSizes) for reading in readings) / 1e6:.1f}",
        f"{max(reading.rssSizes[-1] for reading in readings) / 1e6:.1f}",
        f"{max(max(reading.queuedSizes) for reading in readings) / 1e6:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def course(reading: Reading) -> str:
    """Memory in ten steps of a run."""
    last = len(reading.rssSizes) - 1
    return ", ".join(f"{reading.rssSizes[last * step // 10] / 1e6:.1f}" for step in range(11))


def page(
    readings: dict[str, list[Reading]],
    brokerSizes: dict[str, list[int]],
    count: int,
    size: int,
    command: str,
    revision: str,
) -> str:
    """The whole page, in Markdown."""
    rates = {
        kind: median(1 / reading.seconds for reading in found) for kind, found in readings.items()
    }
    lines = [
        "# A slow consumer",
        "",
        f"`{command}`, at commit {revision}.",
        "",
        (
            f"One process with {STREAM_COUNT} streams, one for each partition of a broker, and"
            f" {count:,} messages of {size} bytes in each partition. *Beside a"
        ),
        (
            "stopped one*: the application never takes from one of the streams, whose partition"
            f" holds {count * size / 1e6:,.0f} MB, while it reads the others;"
        ),
        (
            f"*{ALONE}*: that partition is empty. In the end the stopped stream was read, too, and"
            " had all of its messages."
        ),
        "",
        "```",
        (
            f"pylogbroker {__version__}, Twisted {version('Twisted')}, Python"
            f" {platform.python_version()}, CRC by {zlib.__name__}, {platform.system()}"
            f" {platform.release()}"
        ),
        (
            f"max.queued.bytes={QUEUED_SIZE_MAX}, fetch.size={FETCH_SIZE}, {len(readings[ALONE])}"
            " rounds"
        ),
        "```",
        "",
        (
            "| the other streams | messages/s, median | lowest to highest | CPU-s per million "
            "| memory at the start (MB) | at most | at the end | queued in the stopped (MB) |"
        ),
        "|---|---|---|---|---|---|---|---|",
        *(row(kind, readings[kind], count) for kind in KINDS),
        "",
        (
            f"Throughput of the others beside a stopped stream: {rates[BESIDE] / rates[ALONE]:.2f}"
            " of what it is without."
        ),
        "",
        (
            "Memory of the process beside a stopped stream, in ten steps of the last round (MB):"
            f" {course(readings[BESIDE][-1])}."
        ),
        "",
        (
            "Memory of the broker after each round (MB):"
            f" {', '.join(f'{each / 1e6:.1f}' for each in brokerSizes[BESIDE])} with,"
            f" {', '.join(f'{each / 1e6:.1f}' for each in brokerSizes[ALONE])} without."
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.slowconsumer",
        description="Measure what a stopped stream costs the others.",
    )
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured (7)")
    parser.add_argument(
        "--count", type=int, default=300_000, help="messages in each partition (300000)"
    )
    parser.add_argument("--size", type=int, default=200, help="bytes of each (200)")
    parser.add_argument("--output", type=Path, help="a page to write the figures to")
    options = parser.parse_args()
    command = (
        f"python -m tests.long.slowconsumer --rounds {options.rounds} --count {options.count}"
        f" --size {options.size}"
    )
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    folder = tempfile.mkdtemp()
    zookeeper = ZookeeperProcess(folder + "/zookeeper").start()
    readings: dict[str, list[Reading]] = {kind: [] for kind in KINDS}
    brokerSizes: dict[str, list[int]] = {kind: [] for kind in KINDS}
    try:
        for number in range(options.rounds):
            for kind in KINDS if number % 2 else reversed(KINDS):
                counts = [options.count] * STREAM_COUNT
                if kind == ALONE:
                    counts[STOPPED] = 0
                name = f"round{number}{'alone' if kind == ALONE else 'beside'}"
                cluster = SlowCluster(f"{folder}/{name}", zookeeper, f"/{name}")
                try:
                    cluster.fill(name, counts, options.size)
                    reading = cluster.read(name, counts)
                    brokerSizes[kind].append(cluster.broker.rssSize())
                finally:
                    cluster.close()
                    shutil.rmtree(f"{folder}/{name}")
                assert (
                    reading.inTurn == [options.count] * (STREAM_COUNT - 1)
                    and reading.lateInTurn == counts[STOPPED]
                )
                readings[kind].append(reading)
                sys.stdout.write(
                    f"{number + 1}/{options.rounds} {row(kind, [reading], options.count)}\n"
                )
                sys.stdout.flush()
    finally:
        zookeeper.stop()
        shutil.rmtree(folder, ignore_errors=True)
    text = page(
        readings,
        brokerSizes,
        options.count,
        options.size,
        command,
        found.stdout.strip() or "unknown",
    )
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
