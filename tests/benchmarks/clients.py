"""
C{python -m tests.benchmarks.clients}: what the asynchronous producer and a consumer group cost,
from Python objects to the broker and back.

A real ZooKeeper, a broker as C{twistd pylogbroker}, and the client, are a process each. What counts
is CPU time, of the client and of the broker, in seconds per million messages of 200 bytes; it
hardly depends on who else is on the machine. Beside compressed runs stands what the bare compressor
takes for the same sets. It judges (met, not met), but does not fail: a figure is no test.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pylogbroker.records.compression import NONE, codecByName, compress, decompress
from pylogbroker.records.messageset import encodeSet
from tests.benchmarks.clientload import BATCH_COUNT, POOL_COUNT, WARM_UP_COUNT, makePayloads
from tests.benchmarks.machine import describe, load, warmMemory
from tests.benchmarks.report import Verdicts, table
from tests.benchmarks.servers import ROOT, Broker
from tests.integration.zookeeperprocess import ZookeeperProcess

PRODUCE_TARGET, CONSUME_TARGET = 4.0, 3.0
"""CPU-seconds of the client per million messages, without compression."""

CONSUME_MESSAGE_COUNT_MIN = 20_000
RUN_SECONDS_MAX = 600
CODECS = ("none", "gzip", "snappy")
Figures = dict[str, float]


@dataclass(frozen=True)
class Client:
    """
    A client to be measured.

    @ivar what: C{produce} or C{consume}.
    @ivar way: see L{tests.benchmarks.clientload}.
    @ivar isConfirming: whether the broker confirms each batch.
    """

    what: str
    way: str
    codec: str = "none"
    isConfirming: bool = False
    isShort: bool = False

    @property
    def name(self) -> str:
        return f"{self.what}-{self.way}{'-confirm' if self.isConfirming else ''}-{self.codec}"

    @property
    def target(self) -> float | None:
        if self.codec != "none":
            return None
        return PRODUCE_TARGET if self.what == "produce" else CONSUME_TARGET


ALL = [
    Client("produce", "send", isShort=True),
    Client("produce", "send", "none", True),
    Client("produce", "sendTuned"),
    Client("produce", "sendKeyed"),
    Client("produce", "post", isShort=True),
    Client("produce", "post", "none", True),
    Client("produce", "sendBursts", isShort=True),
    Client("produce", "sendMany", isShort=True),
    Client("produce", "sendMany", "none", True),
    Client("produce", "send", "gzip"),
    Client("produce", "sendMany", "gzip", isShort=True),
    Client("produce", "sendMany", "gzip", True),
    Client("produce", "send", "snappy"),
    Client("produce", "sendMany", "snappy", isShort=True),
    Client("produce", "sendMany", "snappy", True),
    Client("consume", "iterate", isShort=True),
    Client("consume", "deliver"),
    Client("consume", "iterate", "gzip", isShort=True),
    Client("consume", "iterate", "snappy", isShort=True),
]


def runClient(client: Client, topic: str, count: int, settings: Sequence[str]) -> Figures:
    """In a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.clientload",
        client.what,
        client.way,
        topic,
        str(count),
        *settings,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{client.name} failed:\n{done.stdout}{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


class Bench:
    """
    A ZooKeeper, and a broker for each run.
    """

    def __init__(self, folder: Path, messageCount: int) -> None:
        """
        @param folder: for data; emptied by whoever gave it.
        @param messageCount: of a run.
        """
        self._folder = folder
        self._messageCount = messageCount
        self._zookeeper = ZookeeperProcess(str(folder / "zookeeper")).start()

    def close(self) -> None:
        self._zookeeper.stop()

    def run(self, client: Client) -> Figures:
        """CPU in microseconds per message of client and broker; messages a second."""
        directory = self._folder / "log"
        directory.mkdir()
        settings = {
            "enable.zookeeper": "true",
            "zk.connect": self._zookeeper.servers,
            "hostname": "127.0.0.1",
            "num.partitions": "1",
        }
        given = [f"zk.connect={self._zookeeper.servers}"]
        sending = [*given, f"compression.codec={codecByName(client.codec)}"]
        count = self._messageCount
        warmMemory((256 << 20) + 2 * count * 210)
        with Broker(self._folder, directory, settings) as broker:
            if client.what == "consume":
                runClient(Client("produce", "sendMany", client.codec), "bench", count, sending)
                time.sleep(1.5)  # the last flush
                before, brokerCount = broker.cpuSeconds(), count
                figures = runClient(client, "bench", count, given)
            else:
                brokerCount = count + min(count, WARM_UP_COUNT)
                before = broker.cpuSeconds()
                figures = runClient(
                    client,
                    "bench",
                    count,
                    [*sending, f"confirm={str(client.isConfirming).lower()}"],
                )
            brokerCpu = broker.cpuSeconds() - before
        shutil.rmtree(directory)
        return {
            "clientUs": figures["cpu"] / count * 1e6,
            "brokerUs": brokerCpu / brokerCount * 1e6,
            "rate": count / figures["seconds"],
        }


def bareCost(codec: str, what: str, count: int) -> float:
    """
    CPU in microseconds per message of the compressor alone, for sets as the clients make them.
    """
    payloads = makePayloads(min(count, POOL_COUNT))
    sets = [
        encodeSet(payloads[start : start + BATCH_COUNT])
        for start in range(0, len(payloads), BATCH_COUNT)
    ]
    number = codecByName(codec)
    wrapped = [compress(number, data) for data in sets]
    begun = time.process_time()
    if what == "produce":
        for data in sets:
            compress(number, data)
    else:
        for data, inner in zip(wrapped, sets, strict=True):
            decompress(number, data, len(inner))
    return (time.process_time() - begun) / len(payloads) * 1e6


def asMarkdown(
    surroundings: Sequence[tuple[str, str]],
    roundCount: int,
    measured: Sequence[tuple[Client, list[Figures]]],
    bare: dict[tuple[str, str], float],
    isShort: bool = False,
) -> str:
    """
    The whole report.

    @param isShort: judge no target.
    """
    verdicts = Verdicts(isShort)
    lines = [
        *(f"- {what}: {value}" for what, value in surroundings),
        f"- rounds: {roundCount}; medians",
    ]
    for what, title in (("produce", "Producing"), ("consume", "Consuming")):
        rows = []
        for client, rounds in measured:
            if client.what != what:
                continue
            values = [figures["clientUs"] for figures in rounds]
            cost, target = median(values), client.target
            alone = bare.get((client.codec, what))
            rows.append(
                [
                    client.name,
                    f"{cost:.2f}",
                    f"{min(values):.2f}–{max(values):.2f}" if len(values) > 1 else "one",
                    (
                        ""
                        if target is None
                        else verdicts.judge(client.name, f"≤ {target:g}", cost <= target)
                    ),
                    "" if alone is None else f"{alone:.2f}",
                    f"{median([figures['brokerUs'] for figures in rounds]):.2f}",
                    f"{median([figures['rate'] for figures in rounds]) / 1e3:.0f}",
                ]
            )
        if rows:
            lines += [
                "",
                f"## {title}",
                "",
                *table(
                    [
                        "scenario",
                        "client CPU",
                        "rounds",
                        "target",
                        "bare compressor",
                        "broker CPU",
                        "k/s",
                    ],
                    rows,
                ),
            ]
    return "\n".join([*lines, "", verdicts.lastLine("python -m tests.benchmarks.clients")]) + "\n"


def turnNs() -> float:
    """
    CPU in nanoseconds of one turn of a Python loop that adds numbers: the speed of this processor,
    now. 25 when it is quick and nobody else wants it.
    """
    begun, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    return (time.process_time() - begun) / 2_000_000 * 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.clients",
        description="Measure the asynchronous producer and consumer groups.",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="fewer scenarios and messages, one round: the gate's form, under a minute",
    )
    parser.add_argument("--rounds", type=int, help="how often (3, or 1 with --short)")
    parser.add_argument(
        "--count", type=int, help="messages of a run (500000, or 40000 with --short)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="scenarios whose name has this in it; can be repeated",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of the scenarios and stop"
    )
    parser.add_argument(
        "--directory", type=Path, help="where the data go (the system's folder for temporary files)"
    )
    parser.add_argument("--output", type=Path, help="write the tables into this file, too")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds into this file")
    options = parser.parse_args(arguments)
    offered = [client for client in ALL if options.only or client.isShort or not options.short]
    clients = [
        client
        for client in offered
        if not options.only or any(part in client.name for part in options.only)
    ]
    if options.list or not clients:
        print("\n".join(client.name for client in clients or ALL))
        return 0 if options.list else 2
    roundCount = options.rounds or (1 if options.short else 3)
    count = options.count or (40_000 if options.short else 500_000)
    loadBefore, turnBefore = load(), turnNs()
    measured: list[tuple[Client, list[Figures]]] = [(client, []) for client in clients]
    with tempfile.TemporaryDirectory(
        prefix="pylogbroker-benchmarks-", dir=options.directory
    ) as name:
        surroundings = [
            (what, value) for what, value in describe(Path(name), "", ()) if "yardstick" not in what
        ]
        bench = Bench(Path(name), count)
        try:
            for number in range(roundCount):
                for client, results in measured:
                    if sys.stderr.isatty():
                        sys.stderr.write(f"\r\x1b[Kround {number + 1}: {client.name}")
                    results.append(bench.run(client))
        finally:
            bench.close()
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    kinds = {(client.codec, client.what) for client in clients if codecByName(client.codec) != NONE}
    bare = {kind: bareCost(*kind, count) for kind in kinds}
    surroundings.append(
        (
            "load of the machine",
            (
                f"{loadBefore} before, {load()} after; where others want its processors, rates say"
                " nothing, and CPU less"
            ),
        )
    )
    surroundings.append(
        (
            "speed of the processor",
            f"a turn of a loop in Python takes {turnBefore:.0f} ns before, {turnNs():.0f} after",
        )
    )
    surroundings.append(
        (
            "messages",
            (
                f"{count} of 200 bytes in a run, batches of {BATCH_COUNT}, one partition; CPU in"
                " seconds per million"
            ),
        )
    )
    text = asMarkdown(surroundings, roundCount, measured, bare, options.short)
    print(text, end="", flush=True)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    if options.json is not None:
        options.json.write_text(
            json.dumps({client.name: results for client, results in measured}, indent=1),
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
