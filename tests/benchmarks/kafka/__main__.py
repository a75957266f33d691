"""
C{python -m tests.benchmarks.kafka [PART]}: today's dialect, beside Apache Kafka and a
yardstick in C, all in one run, whose rounds take turns.

Apache Kafka is fetched by Maven the first time (L{tests.oracle.apachebroker}), started as
installed, and warmed up with every row before the first round, since it is compiled as it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.kafka.compaction import KEY_COUNT, compactKeys
from tests.benchmarks.kafka.fetch import WAITING_COUNT, fetchRows, waitingFetches
from tests.benchmarks.kafka.produce import ROWS, measureProduce
from tests.benchmarks.kafka.servers import (
    Apache,
    BareTwisted,
    NativePrograms,
    Ours,
    Yardstick,
)
from tests.benchmarks.kafka.start import (
    TOPIC_COUNT,
    coldStarts,
    fixtureSeconds,
    localBrokerSeconds,
)
from tests.benchmarks.report import table

APACHE, OURS, CHECKED, TWISTED, YARDSTICK = SIDES = (
    "apache", "ours", "checked", "twisted", "yardstick"
)  # fmt: skip
WARM_UP_SHARE = 1.5
"""Of a run, for each row of Apache's, twice: 60,000 requests in all."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _produceSides(
    stack: ExitStack, programs: NativePrograms, folder: Path, names: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    made: dict[str, Callable[[], Any]] = {
        APACHE: Apache,
        OURS: lambda: Ours(folder / OURS, {}),
        CHECKED: lambda: Ours(folder / CHECKED, {"log.check.records": "true"}),
        TWISTED: lambda: BareTwisted(folder),
        YARDSTICK: lambda: Yardstick(programs, "receive", "0", str(folder)),
    }
    for name in names:
        yield name, stack.enter_context(made[name]())


def produce(options: argparse.Namespace, folder: Path) -> list[str]:
    """Measure the rows, and give them as a table."""
    programs = NativePrograms(folder)
    rows = [row for row in ROWS if not options.only or any(o in row.name for o in options.only)]
    found: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        sides = dict(_produceSides(stack, programs, folder, options.sides))
        for name, server in sides.items():
            share = WARM_UP_SHARE if name == APACHE else 0.1
            for row in rows * (2 if name == APACHE else 1):
                _say(f"warming up {name}, {row.name}")
                measureProduce(programs, server, row, folder, share * options.share)
        for number in range(options.rounds):
            for row in rows:
                for name, server in sides.items():
                    one = measureProduce(programs, server, row, folder, options.share)
                    found[row.name][name].append(one)
                    _say(f"round {number + 1}: {row.name}, {name}: {one['cpuUs']:.3f} µs")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    cells = []
    for title, results in found.items():
        cpu, kernel = (
            {
                name: median(one[which] for one in rounds) if rounds else float("nan")
                for name, rounds in ((side, results.get(side, [])) for side in SIDES)
            }
            for which in ("cpuUs", "kernelUs")
        )
        cells.append(
            [
                title,
                *(f"{cpu[side]:.3f}" for side in SIDES),
                f"{cpu[OURS] / cpu[APACHE]:.2f}",
                f"{cpu[CHECKED] / cpu[APACHE]:.2f}",
                f"{cpu[OURS] / cpu[YARDSTICK]:.2f}",
                f"{cpu[TWISTED] / cpu[YARDSTICK]:.2f}",
                *(f"{kernel[side]:.3f}" for side in (APACHE, OURS, YARDSTICK)),
            ]
        )
    columns = ["row", *SIDES, "ours/apache", "checked/apache", "ours/yardstick"]
    columns += ["twisted/yardstick"]
    columns += [f"kernel, {side}" for side in (APACHE, OURS, YARDSTICK)]
    return table(columns, cells)


def fetch(options: argparse.Namespace, folder: Path) -> list[str]:
    """Fetches of 1 MiB, in rounds."""
    rows = fetchRows(folder, options.rounds, APACHE in options.sides)
    return table(["fetch of 1 MiB", "MB/s", "CPU s/GB", "of bare sendfile"], rows)


def wait(_options: argparse.Namespace, folder: Path) -> list[str]:
    """Connections that wait in a fetch."""
    connected, waiting, share = waitingFetches(folder)
    return table(
        ["connections", "bytes each, connected", "bytes each, waiting", "CPU while waiting"],
        [[str(WAITING_COUNT), f"{connected:.0f}", f"{waiting:.0f}", f"{share:.2%}"]],
    )


def start(options: argparse.Namespace, folder: Path) -> list[str]:
    """Starts, and what tests with a broker add."""
    starts = localBrokerSeconds(folder)
    clock, used = ([one[which] * 1e3 for one in starts] for which in (0, 1))
    tests = fixtureSeconds(folder)
    return [
        *table(["cold start", "CPU s", "MiB"], coldStarts(2 * options.rounds, folder)),
        "",
        f"LocalBroker in a running process: {median(clock):.1f} ms, {max(clock):.1f} ms at most of"
        f" {len(starts)}; of the processor {median(used):.1f} ms, {max(used):.1f} ms at most",
        f"{TOPIC_COUNT} tests with the fixture, each with a topic: {tests[0]:.2f} s; of the"
        f" processor {tests[1]:.2f} s",
    ]


def compaction(options: argparse.Namespace, folder: Path) -> list[str]:
    """Compaction of as many keys."""
    found = compactKeys(folder, options.keys)
    return table(["compaction", ""], [[name, f"{value:,.3f}"] for name, value in found.items()])


PARTS = {
    "produce": produce, "fetch": fetch, "wait": wait, "start": start, "compaction": compaction
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kafka",
        description="Measure today's dialect beside Apache Kafka and a yardstick in C.",
    )
    parser.add_argument("part", choices=PARTS, nargs="?", default="produce")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="rows with this in their name")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--share", type=float, default=1.0, help="of the usual count of messages")
    parser.add_argument("--keys", type=int, default=KEY_COUNT, help="of the compaction")
    parser.add_argument("--directory", type=Path, help="where the data go")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pylogbroker-kafka-", dir=options.directory) as name:
        print("\n".join(PARTS[options.part](options, Path(name))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
