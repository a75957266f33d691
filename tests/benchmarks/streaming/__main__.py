"""
C{python -m tests.benchmarks.streaming}: what jobs cost in one process, beside Quix Streams and
Faust, on one broker of ours in the same run, in turn: messages of I{words} for each second of the
client's processor, from the first message to the commit behind the last. All promise at least once
and commit at the same interval; the word count keeps its counts in RocksDB, with a changelog.

C{--keys N} has the word count of N different words in place of that: its greatest resident size,
and how fast its store is restored when the folder is gone, beside C{pylogbroker consume} of the
changelog.

Quix Streams and Faust are installed in environments of their own, below C{--rivals}.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from pylogbroker.producer.kafka.producer import KafkaProducer
from tests.benchmarks.kafka.servers import Ours
from tests.benchmarks.report import table
from tests.benchmarks.servers import ROOT
from tests.benchmarks.streaming.ours import BARE, STATELESS, WORD_COUNT

HERE = Path(__file__).resolve().parent
TOPIC = "words"
KEY_COUNT = 20_000
SETTINGS = {"num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
RUN_SECONDS_MAX = 3_600
OURS, QUIX, FAUST = "pylogbroker", "Quix Streams", "Faust"
REQUIREMENTS = {
    QUIX: ("quixstreams==3.28.1", "quix.py"),
    FAUST: ("faust-streaming[rocksdict]==0.15.3", "faustworker.py"),
}
_NUMBERS = re.compile(r"^[0-9][0-9. e+-]*$")


def _command(name: str, rivals: Path) -> list[str]:
    """What runs the jobs of one of them. Installs it, if it is not there."""
    if name == OURS:
        return [sys.executable, "-m", "tests.benchmarks.streaming.ours"]
    requirement, program = REQUIREMENTS[name]
    folder = rivals / requirement.replace("[", "-").replace("]", "-")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {requirement}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", requirement], check=True)
        (folder / "complete").touch()
    return [str(python), str(HERE / program)]


def run(command: Sequence[str], job: str, servers: str, count: int, folder: Path) -> list[float]:
    """
    Run a job over the words.

    @return: what its program printed last.
    @raise RuntimeError: it failed; says how.
    """
    done = subprocess.run(
        [*command, job, servers, TOPIC, str(count), "5", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        cwd=folder.parent,
        check=False,
        timeout=RUN_SECONDS_MAX,
    )
    lines = [line for line in done.stdout.splitlines() if _NUMBERS.match(line)]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} {job} failed: {done.stderr[-2000:]}")
    return [float(each) for each in lines[-1].split()]


async def _publish(reactor: Any, servers: str, count: int, keyCount: int) -> None:
    producer = KafkaProducer(reactor, {"bootstrap.servers": servers})
    for number in range(count):
        await producer.whenReady()
        producer.sendNoWait(TOPIC, b"1", b"word%d" % (number * 7919 % keyCount), (), None, 0)
    await producer.flush()
    if producer.counters.failedCount:
        raise RuntimeError(f"{producer.counters.failedCount} words were not published")
    await producer.close()


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Print what the jobs cost, and what that is of the bare loop's."""
    runs = [(OURS, BARE), (OURS, STATELESS), (OURS, WORD_COUNT)]
    if not options.isAlone:
        runs += [(name, job) for name in REQUIREMENTS for job in (STATELESS, WORD_COUNT)]
    rates: dict[tuple[str, str], list[float]] = {each: [] for each in runs}
    for number in range(options.rounds):
        # Each round has a broker of its own, and so new groups and changelogs.
        broker = Ours(folder / f"broker-{number}", SETTINGS)
        with broker:
            address = f"127.0.0.1:{broker.port}"
            _words(address, options.count, KEY_COUNT)
            for name, job in runs:
                # Faust needs ten times as long, and its rate does not depend on the count.
                count = options.count // 10 if name == FAUST else options.count
                command = _command(name, options.rivals)
                state = folder / f"{number}-{REQUIREMENTS.get(name, (OURS,))[0]}-{job}"
                used = run(command, job, address, count, state)[0]
                rates[name, job].append(count / used)
                print(f"round {number + 1}: {name}, {job}: {count / used:,.0f}", file=sys.stderr)
    bare = median(rates[OURS, BARE])
    rows = [
        (name, job, f"{median(found):,.0f}", f"{median(found) / bare:.2f}")
        for (name, job), found in rates.items()
    ]
    headings = ("", "job", "messages a processor second", "of the bare loop")
    print("\n".join(table(headings, rows)))


def _words(servers: str, count: int, keyCount: int) -> None:
    """Publish the words from a process of their own, since a reactor runs once."""
    subprocess.run(
        [
            *(sys.executable, "-m", "tests.benchmarks.streaming", "--publish", servers),
            *("--count", str(count), "--keys", str(keyCount)),
        ],
        check=True,
        cwd=ROOT,
    )


def restore(keyCount: int, folder: Path) -> None:
    """Print the size of a word count of many words, and how fast its store is restored."""
    with Ours(folder / "broker", SETTINGS) as broker:
        servers = f"127.0.0.1:{broker.port}"
        _words(servers, keyCount, keyCount)
        command, state = _command(OURS, folder), folder / "state"
        begun = time.perf_counter()
        used, counting, _ = run(command, WORD_COUNT, servers, keyCount, state)
        print(f"{keyCount:,} words counted in {time.perf_counter() - begun:.0f} s, {used:.0f} s of")
        print(f"the processor; resident at most {counting:,.0f} MiB", flush=True)
        shutil.rmtree(state)
        begun = time.perf_counter()
        _, restoring, restored = run(command, WORD_COUNT, servers, keyCount, state)
        seconds = time.perf_counter() - begun
        print(f"{restored:,.0f} changes restored in {seconds:.1f} s: {restored / seconds:,.0f} a")
        print(f"second; resident at most {restoring:,.0f} MiB", flush=True)
        begun = time.perf_counter()
        subprocess.run(
            [
                *(sys.executable, "-m", "pylogbroker", "consume", "--bootstrap-server", servers),
                *("--topic", f"ours-{WORD_COUNT}-counts-changelog", "--from-beginning"),
                *("--max-messages", str(int(restored)), "--isolation-level", "read_committed"),
            ],
            stdout=subprocess.DEVNULL,
            check=True,
            cwd=ROOT,
        )
        consuming = time.perf_counter() - begun
        print(f"consume: {restored / consuming:,.0f} a second; restore is")
        print(f"{consuming / seconds:.2f} of that")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.streaming")
    parser.add_argument("--count", type=int, default=300_000, help="words (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--keys", type=int, help="different words, for size and restore")
    parser.add_argument(
        "--rivals",
        type=Path,
        default=Path.home() / ".cache" / "pylogbroker-rivals",
        help="where they are installed (%(default)s)",
    )
    parser.add_argument("--alone", dest="isAlone", action="store_true", help="without the rivals")
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.publish:
        react(
            lambda reactor: Deferred.fromCoroutine(
                _publish(reactor, options.publish, options.count, options.keys)
            ),
            (),
        )
    with tempfile.TemporaryDirectory() as name:
        if options.keys:
            restore(options.keys, Path(name))
        else:
            compare(options, Path(name))


if __name__ == "__main__":
    main()
