"""
C{python -m tests.benchmarks.kafka.replication}: three brokers, three replicas, C{acks=all}:
processor time of the brokers for a message, beside three of Apache Kafka's, all in one run, whose
rounds take turns.

Apache's brokers are controllers, too, and are warmed up with every row before the first round,
since they are compiled as they run; they never flush. Ours are measured with a flush on each
replica in sync before the answer, as shipped, and without (C{log.flush.acks.all=false}), as
Apache's.

Each run has a topic of its own: one partition, three replicas, C{min.insync.replicas=2}. One
connection has L{IN_FLIGHT} requests under way, as producers have by default.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.benchmarks.kafka.clusters import BROKERS, ApacheCluster, Cluster, OurCluster
from tests.benchmarks.kafka.frames import BlockingClient, batch, errorPlace, produceFrame
from tests.benchmarks.kafka.produce import (
    ALL,
    IN_FLIGHT,
    MESSAGE_COUNTS,
    ROWS,
    WARM_UP_COUNT,
    ProduceRow,
)
from tests.benchmarks.kafka.servers import NativePrograms
from tests.benchmarks.machine import load, warmMemory
from tests.benchmarks.report import table
from tests.benchmarks.servers import kernelWorkerSeconds

APACHE, FLUSHED, WRITTEN = SIDES = ("apache", "flushed", "written")
MIN_IN_SYNC = {"min.insync.replicas": "2"}
WARM_UP_SHARE, WARM_UP_COUNT_APACHE = 1.0, 3
"""Of a run, for each row of Apache's, and how often."""

CREATORS: dict[str, Callable[[Path], Cluster]] = {
    APACHE: lambda folder: ApacheCluster(folder, {}),
    FLUSHED: lambda folder: OurCluster(folder, {}),
    WRITTEN: lambda folder: OurCluster(folder, {"log.flush.acks.all": "false"}),
}


def measure(
    programs: NativePrograms, cluster: Cluster, row: ProduceRow, folder: Path, share: float
) -> dict[str, float]:
    """
    One run.

    @param share: of the usual count of messages.
    @return: processor microseconds for a message, of the brokers together, of the leader, of what
        coordinates them, and of the kernel's workers (for whatever process); and messages a second.
    """
    topic = "bench"
    records = batch(row.batch, row.codec)
    path = folder / "request"
    path.write_bytes(produceFrame(topic, records, row.acks))
    count = max(int(MESSAGE_COUNTS[row.batch] * share) // row.batch, 1)
    with BlockingClient(cluster.running[BROKERS[0]].port) as client:
        client.createTopics([topic], MIN_IN_SYNC, len(BROKERS))
        leader = client.awaitLeader(topic, len(BROKERS))
    port = cluster.running[leader].port
    with BlockingClient(port) as client:
        client.awaitLeader(topic, len(BROKERS))
    warmMemory((64 << 20) + 4 * count * len(records))
    place = errorPlace(topic)
    programs.run("produce", port, path, min(count, WARM_UP_COUNT), IN_FLIGHT, place)
    before, other, kernel = cluster.brokerSeconds(), cluster.otherSeconds(), kernelWorkerSeconds()
    found = programs.run("produce", port, path, count, IN_FLIGHT, place)
    after = cluster.brokerSeconds()
    used = {each: after[each] - before[each] for each in after}
    messageCount = count * row.batch
    seconds = {
        "cpuUs": sum(used.values()),
        "leaderUs": used[leader],
        "otherUs": cluster.otherSeconds() - other,
        "kernelUs": kernelWorkerSeconds() - kernel,
    }
    with BlockingClient(cluster.running[BROKERS[0]].port) as client:
        client.deleteTopic(topic)
        client.awaitGone(topic)
    return {
        **{name: value / messageCount * 1e6 for name, value in seconds.items()},
        "rate": messageCount / found["seconds"],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kafka.replication",
        description="Measure replication with acks=all beside three brokers of Apache Kafka.",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="rows with this in their name")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--share", type=float, default=0.3, help="of the usual count of messages")
    parser.add_argument("--directory", type=Path, help="where the data go")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds there")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if row.acks == ALL]
    rows = [row for row in rows if not options.only or any(o in row.name for o in options.only)]
    with tempfile.TemporaryDirectory(prefix="pylogbroker-kafka-", dir=options.directory) as name:
        found = _rounds(options, rows, Path(name))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("\n".join(_table(found, options.sides)))
    return 0


_Found = dict[str, dict[str, list[dict[str, float]]]]


def _rounds(options: argparse.Namespace, rows: Sequence[ProduceRow], folder: Path) -> _Found:
    programs = NativePrograms(folder)
    found: _Found = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        sides = {name: stack.enter_context(CREATORS[name](folder / name)) for name in options.sides}
        for name, cluster in sides.items():
            isApache = name == APACHE
            share = options.share * (WARM_UP_SHARE if isApache else 0.1)
            for row in [*rows] * (WARM_UP_COUNT_APACHE if isApache else 1):
                one = measure(programs, cluster, row, folder, share)
                _say(f"warming up {name}, {row.name}: {one['cpuUs']:.3f} µs")
        for number in range(options.rounds):
            for row in rows:
                for name, cluster in sides.items():
                    one = measure(programs, cluster, row, folder, options.share)
                    found[row.name][name].append(one)
                    _say(
                        f"round {number + 1}: {row.name}, {name}: {one['cpuUs']:.3f} µs, of that"
                        f" the leader {one['leaderUs']:.3f}; {one['rate']:.0f} messages/s; load"
                        f" {load()}"
                    )
    return found


def _table(found: _Found, sides: Sequence[str]) -> list[str]:
    cells = []
    for title, results in found.items():
        middle = {
            side: {name: median(one[name] for one in results[side]) for name in results[side][0]}
            for side in sides
        }
        cpu = {side: middle[side]["cpuUs"] for side in sides}
        row = [title]
        for side in sides:
            leader, rate = middle[side]["leaderUs"], middle[side]["rate"]
            row += [f"{cpu[side]:.3f}", f"{leader:.3f}", f"{rate / 1000:.1f}"]
        for side in sides:
            if side != APACHE:
                row += [f"{middle[side]['otherUs']:.3f}", f"{middle[side]['kernelUs']:.3f}"]
                row += _ratios(results, side) if APACHE in sides else []
        cells.append(row)
    columns = ["row"]
    for side in sides:
        columns += [side, f"{side}: leader", f"{side}: k/s"]
    for side in sides:
        if side != APACHE:
            columns += [f"{side}: ZooKeeper", f"{side}: kernel"]
            columns += [f"{side}/apache", "rounds"] if APACHE in sides else []
    return table(columns, cells)


def _ratios(results: dict[str, list[dict[str, float]]], side: str) -> list[str]:
    ours, apache = ([one["cpuUs"] for one in results[each]] for each in (side, APACHE))
    single = [a / b for a, b in zip(ours, apache, strict=True)]
    return [f"{median(ours) / median(apache):.2f}", f"{min(single):.2f} to {max(single):.2f}"]


if __name__ == "__main__":
    raise SystemExit(main())
