"""
The long form of C{tests.integration.test_topologies}::

    python -m tests.long.topologykills --kills 100 --seed 7

kills and stops processes of a topology in three containers, and measures the time until it goes on.
At least once, nothing may be lost; at most once, nothing may come twice. It prints each kill, and
the longest times; the exit status is 0 if all was as promised. C{--memory N} measures the memory of
the processes of a topology of N instances in place of that.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

from tests.integration.test_topologies import words, writtenWords
from tests.integration.topologyprocess import SESSION_MS, TopologyProcess, until
from tests.long.telling import addSeed, seedOf, tell, tellStart

CONTAINERS = 3
ACKED_COUNT = 20
"""Tuples of each spout that must be acknowledged, before the topology is said to go on."""

SILENCE_MS = 3_000

ROLES = ("instance", "stream-manager", "metrics-manager", "master", "executor")
MODES = ("ATLEAST_ONCE", "ATMOST_ONCE")


def ends(running: TopologyProcess, random: Random, count: int) -> dict[str, list[float]]:
    """
    Kill and stop processes.

    @return: the seconds until the topology went on, by role and signal.
    """
    found = defaultdict(list)
    running.untilAcked(ACKED_COUNT)
    whole = running.processes().keys()
    for number in range(count):
        role = ROLES[number % len(ROLES)]
        one = signal.SIGSTOP if random.random() < 0.3 else signal.SIGKILL
        names = [each for each in running.processes() if each.split(" ")[1] == role]
        name = random.choice(sorted(names))
        began = time.monotonic()
        running.kill(name, one)
        replaced = time.monotonic() - began
        until(lambda: running.processes().keys() == whole, "all processes")
        running.untilAcked(ACKED_COUNT)
        seconds = time.monotonic() - began
        found[f"{role} {one.name}"].append(seconds)
        tell(
            f"{number + 1}: {one.name} {name}: replaced in {replaced:.1f} s, on in {seconds:.1f} s"
        )
    return found


def judged(running: TopologyProcess, mode: str) -> str:
    """What is wrong with what was written; empty: nothing."""
    (running.folder / "end").touch()
    if mode == MODES[0]:
        running.untilAllAcked()
    else:
        time.sleep(5)  # what has arrived is there; what was lost does not come
    lines = running.written("words")
    emitted, acked = running.numbers("emitted"), running.numbers("acked")
    written, twice = writtenWords(lines), [each for each, n in Counter(lines).items() if n > 1]
    tell(
        f"{len(emitted):,} sentences emitted, {len(acked):,} acknowledged, {len(lines):,} words"
        f" written, {len(words(emitted) - written):,} not, {len(twice):,} more than once"
    )
    if not written <= words(emitted):
        return "words were written that no sentence has"
    if mode == MODES[0] and written != words(acked):
        return f"{len(words(acked) - written)} words of acknowledged sentences are lost"
    if mode == MODES[1] and twice:
        return f"{twice[:5]} came twice, at most once"
    return ""


def kills(options: argparse.Namespace, random: Random) -> int:
    """Both modes, with half of the kills each."""
    longest: dict[str, float] = {}
    for mode in MODES:
        tell(mode)
        with tempfile.TemporaryDirectory() as folder:
            running = TopologyProcess(
                Path(folder, "run"),
                "word-count",
                CONTAINERS,
                "sentences.count=0",
                f"topology.reliability.mode={mode}",
                "topology.message.timeout.secs=3",
                f"process.silence.max.ms={SILENCE_MS}",
            )
            try:
                running.untilActive()
                for name, seconds in ends(running, random, options.kills // 2).items():
                    longest[name] = max(longest.get(name, 0), *seconds)
                problem = judged(running, mode)
                if problem or running.stop() or running.processes():
                    tell(f"WRONG: {problem or 'it does not end'}")
                    return 1
            finally:
                running.destroy()
    tell(f"longest times until it went on, with sessions of {SESSION_MS / 1000:g} s:")
    for name, value in sorted(longest.items()):
        tell(f"{name:>30} {value:6.1f} s")
    return 0


def memory(count: int) -> int:
    """The memory of each kind of process, of a topology with C{count} instances."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPLIT_COUNT"] = str(count - 5)
        running = TopologyProcess(
            Path(folder, "run"), "word-count", CONTAINERS, "sentences.count=0"
        )
        try:
            began = time.monotonic()
            running.untilActive()
            running.untilAcked(1_000)
            tell(f"{count} instances are active in {time.monotonic() - began:.0f} s")
            sizes = defaultdict(list)
            for name, pid in running.processes().items():
                status = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
                fields = {line.split(":")[0]: line.split()[1] for line in status[1:] if line}
                sizes[name.split(" ")[1]].append((int(fields["Rss"]), int(fields["Pss"])))
            for role, each in sorted(sizes.items()):
                resident, own = (sum(one[at] for one in each) / len(each) / 1024 for at in (0, 1))
                text = f"{resident:6.1f} MiB resident, {own:6.1f} with shared pages by parts"
                tell(f"{len(each):>5} {role:<16} {text}")
            return 1 if running.stop() else 0
        finally:
            running.destroy()


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.topologykills",
        description="Kill and stop processes of a topology; look for lost and repeated tuples.",
    )
    parser.add_argument("--kills", type=int, default=100, help="in all (100)")
    parser.add_argument("--memory", type=int, help="instances, to measure memory")
    addSeed(parser, "what is killed, and how")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(f"seed {seed}, {options.kills} kills")
    return memory(options.memory) if options.memory else kills(options, Random(seed))


if __name__ == "__main__":
    raise SystemExit(main())
