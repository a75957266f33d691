"""
Our ZooKeeper server beside Apache's, in one run on one machine::

    python -m tests.benchmarks.zookeeper --rounds 3

Both are processes with their data in directories of one file system, and sync every change. The
same client measures both, in turns: nodes that are created and nodes that are read, by kazoo, one
at a time and many at a time over several connections; the time until the server serves; and its
memory. It prints a table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tests.integration.zookeeperprocess import ApacheZookeeperProcess, ZookeeperProcess

NEEDS = ("java", "zookeeper")
DATA = bytes(100)
CONNECTION_COUNT = 4
IN_FLIGHT_COUNT = 100
"""Requests of a connection that are under way at a time."""

NODE_COUNT = 8_000
ALONE_COUNT = 300
SERVERS: dict[str, type[ZookeeperProcess]] = {
    "ours": ZookeeperProcess,
    "Apache's": ApacheZookeeperProcess,
}


def _rate(count: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def _pipelined(clients: list[Any], begin: Callable[[Any, int], Any], count: int) -> None:
    """Requests over all connections, each with some under way."""
    under: list[Any] = []
    for number in range(count):
        under.append(begin(clients[number % len(clients)], number))
        if len(under) >= len(clients) * IN_FLIGHT_COUNT:
            for each in under[: len(under) // 2]:
                each.get()
            del under[: len(under) // 2]
    for each in under:
        each.get()


def _memory(pid: int) -> float:
    """Resident MiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(kind: type[ZookeeperProcess], nodeCount: int, aloneCount: int) -> dict[str, float]:
    """The figures of one server, with an empty directory."""
    folder = tempfile.mkdtemp(prefix="pylogbroker-zookeeper-")
    found: dict[str, float] = {}
    start = time.perf_counter()
    server = kind(folder).start()
    try:
        found["start, s"] = time.perf_counter() - start
        clients = [KazooClient(server.servers) for _ in range(CONNECTION_COUNT)]
        for each in clients:
            each.start()
        first = clients[0]
        first.create("/alone")
        first.create("/many")
        found["creates/s, one at a time"] = _rate(
            aloneCount,
            lambda: [first.create(f"/alone/{n}", DATA) for n in range(aloneCount)],
        )
        found["gets/s, one at a time"] = _rate(
            aloneCount,
            lambda: [first.get(f"/alone/{n}") for n in range(aloneCount)],
        )
        found["creates/s, 400 at a time"] = _rate(
            nodeCount,
            lambda: _pipelined(
                clients, lambda client, n: client.create_async(f"/many/{n}", DATA), nodeCount
            ),
        )
        found["gets/s, 400 at a time"] = _rate(
            nodeCount,
            lambda: _pipelined(
                clients, lambda client, n: client.get_async(f"/many/{n}"), nodeCount
            ),
        )
        found["memory behind it, MiB"] = _memory(server.pid)
        for each in clients:
            each.stop()
            each.close()
    finally:
        server.stop()
        shutil.rmtree(folder)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.zookeeper")
    parser.add_argument("--rounds", type=int, default=3, help="of each server, in turns (3)")
    parser.add_argument("--nodes", type=int, default=NODE_COUNT, help=f"({NODE_COUNT})")
    parser.add_argument("--alone", type=int, default=ALONE_COUNT, help=f"({ALONE_COUNT})")
    options = parser.parse_args(arguments)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
    for _ in range(options.rounds):
        for name, kind in SERVERS.items():
            rounds[name].append(measure(kind, options.nodes, options.alone))
    print(f"| median of {options.rounds} (least to most) | {' | '.join(SERVERS)} |")
    print("| -- | -- | -- |")
    for figure in rounds["ours"][0]:
        cells = []
        for name in SERVERS:
            values = sorted(each[figure] for each in rounds[name])
            digits = 2 if values[-1] < 10 else 0
            middle = statistics.median(values)
            cells.append(
                f"{middle:,.{digits}f} ({values[0]:,.{digits}f} to {values[-1]:,.{digits}f})"
            )
        print(f"| {figure} | {' | '.join(cells)} |")
    print(f"\n{os.cpu_count()} processors, Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
