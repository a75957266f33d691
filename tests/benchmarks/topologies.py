"""
C{python -m tests.benchmarks.topologies}: what the parts of a topology cost, each alone on the
processor.

A row of the stream manager is for batches of a number of entries with a number of tuples of 20
bytes in each, from one instance to nine others of its container, over connections without a kernel.
Each tuple comes in and goes out. With trees, each tuple is announced by its spout and acknowledged
by its receiver, too.

A row of the instances is for one mode of reliability; see L{tests.benchmarks.topologyinstances}.
The last row is for components of C{pystorm}; see L{tests.benchmarks.topologybridge}.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from twisted.internet.task import Clock

from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.messages import (
    ACKS,
    INSTANCE,
    ROOTS,
    TUPLES,
    Confirm,
    Hello,
    batchNumber,
    encodeBatch,
    encodeControl,
    encodeEntry,
    encodeNumbers,
)
from pylogbroker.topologies.streammanager.manager import StreamManager
from pylogbroker.topologies.topology import RELIABILITY_MODES
from tests.benchmarks.topologybridge import bridgeCosts
from tests.benchmarks.topologyinstances import instanceCosts
from tests.topologies.streammanager.containers import TOPOLOGY, physicalPlan

TUPLE_SIZE = 20
TASKS = range(1, 11)
SPOUT, BOLTS = TASKS[0], TASKS[1:]
CONFIRM_COUNT = 8
"""Batches that an instance confirms at once."""


class RouteFigures(NamedTuple):
    """
    What a stream manager has done in a second of the processor.

    @ivar entries: per second.
    @ivar tuples: per second.
    """

    entries: float
    tuples: float


class _Socket:
    """Where a stream manager writes to: the last batch is kept."""

    def __init__(self) -> None:
        self.number = 0
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if data[4] == 1:
            self.number = batchNumber(data[4:])


def routing(batchCount: int, entryCount: int, tupleCount: int, hasTrees: bool) -> RouteFigures:
    """
    Route batches.

    @param entryCount: in a batch.
    @param tupleCount: in an entry.
    @raise RuntimeError: not all have come out.
    """
    random = Random(16)
    clock = Clock()
    manager = StreamManager(clock, TOPOLOGY, 1, _nowhere, random)
    manager.setPlan(physicalPlan({1: TASKS}))
    connections: dict[int, TopologyConnection] = {}
    sockets = {task: _Socket() for task in TASKS}
    for task in TASKS:
        connection = manager.factory.buildProtocol(None)
        assert isinstance(connection, TopologyConnection)
        connection.makeConnection(sockets[task])
        hello = Hello(TOPOLOGY, INSTANCE, task, task)
        connection.dataReceived(encodeControl(hello))
        connections[task] = connection
    frames = _frames(random, batchCount, entryCount, tupleCount, hasTrees)
    began = time.process_time()
    for at, (task, frame) in enumerate(frames):
        connections[task].dataReceived(frame)
        clock.advance(0)
        if at % CONFIRM_COUNT == 0:
            for bolt in BOLTS:
                if sockets[bolt].number:
                    connections[bolt].dataReceived(encodeControl(Confirm(sockets[bolt].number)))
    elapsed = time.process_time() - began
    values = manager.metricValues()
    count = batchCount * entryCount * tupleCount
    size = sum(sockets[bolt].size for bolt in BOLTS)
    acked = values.get("trees.acked", 0)
    if values["tuples"] != count or size < count * TUPLE_SIZE or acked != count * hasTrees:
        raise RuntimeError(f"{count} tuples: {values}, {size} bytes")
    return RouteFigures(batchCount * entryCount / elapsed, count / elapsed)


def _frames(
    random: Random, batchCount: int, entryCount: int, tupleCount: int, hasTrees: bool
) -> list[tuple[int, bytes]]:
    """Frames, each with the task that sends it."""
    frames = []
    numbers = dict.fromkeys(TASKS, 0)
    data = bytes(TUPLE_SIZE * tupleCount)
    for _ in range(batchCount):
        targets = random.choices(BOLTS, k=entryCount)
        pairs = [random.getrandbits(64) for _ in range(2 * entryCount * tupleCount)]
        entries = [encodeEntry(TUPLES, task, tupleCount, data) for task in targets]
        if hasTrees:
            entries.insert(0, encodeEntry(ROOTS, SPOUT, len(pairs) // 2, encodeNumbers(pairs)))
        numbers[SPOUT] += 1
        frames.append((SPOUT, encodeBatch(numbers[SPOUT], entries)))
        if hasTrees:
            numbers[BOLTS[0]] += 1
            acks = encodeEntry(ACKS, SPOUT, len(pairs) // 2, encodeNumbers(pairs))
            frames.append((BOLTS[0], encodeBatch(numbers[BOLTS[0]], [acks])))
    return frames


def _nowhere(address: str) -> Any:
    raise AssertionError(address)


def main(arguments: Sequence[str]) -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.topologies",
        description="Measure the parts of a topology.",
    )
    parser.add_argument("--count", type=int, default=2_000, help="of batches (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each row (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of a round of instances (%(default)s)"
    )
    parser.add_argument("--words", type=int, default=50_000, help="through pystorm (%(default)s)")
    options = parser.parse_args(arguments)
    print("One stream manager, per second of the processor; the best round of each row:\n")
    print("| entries in a batch | tuples in an entry | trees | entries | tuples |")
    print("| --: | --: | -- | --: | --: |")
    for entryCount, tupleCount in ((1, 1), (10, 1), (10, 10), (10, 100), (100, 10)):
        for hasTrees in (False, True):
            best = max(
                routing(options.count, entryCount, tupleCount, hasTrees)
                for _ in range(options.rounds)
            )
            print(
                f"| {entryCount} | {tupleCount} | {'yes' if hasTrees else 'no'} |"
                f" {best.entries:,.0f} | {best.tuples:,.0f} |",
                flush=True,
            )
    print("\nInstances, microseconds of the processor for a tuple; the best round of each row:\n")
    print("| mode | emitted | processed | both |")
    print("| -- | --: | --: | --: |")
    for mode in RELIABILITY_MODES:
        cost = min((instanceCosts(mode, options.seconds) for _ in range(options.rounds)), key=sum)
        print(f"| {mode} | {cost.spout:.2f} | {cost.bolt:.2f} | {sum(cost):.2f} |", flush=True)
    print(
        "\nWord count of streamparse, microseconds of the processor for a word; the best round:\n"
    )
    print("| instances | subprocesses of pystorm | both | words per second |")
    print("| --: | --: | --: | --: |")
    bridge = min((bridgeCosts(options.words) for _ in range(options.rounds)), key=lambda it: it[0])
    both = bridge.instances + bridge.subprocesses
    print(
        f"| {bridge.instances:.1f} | {bridge.subprocesses:.1f} | {both:.1f} |"
        f" {bridge.perSecond:,.0f} |"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
