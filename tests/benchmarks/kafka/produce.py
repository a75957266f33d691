"""
Produce: processor time of the broker for a message, by acknowledgement, batch and codec.

Each run has a topic of its own, which goes with it. One connection has L{IN_FLIGHT} requests under
way, as producers have by default, so a server sees few of them at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pylogbroker.records.compression import BATCH_CODEC_NAMES, LZ4, NONE
from tests.benchmarks.kafka.frames import BlockingClient, batch, errorPlace, produceFrame
from tests.benchmarks.kafka.servers import NativePrograms
from tests.benchmarks.machine import warmMemory
from tests.benchmarks.servers import kernelWorkerSeconds

IN_FLIGHT = 5
BATCHES = (1, 50, 200, 1000)
ALL, LEADER = -1, 1
MESSAGE_COUNTS = {1: 20_000, 50: 400_000, 200: 800_000, 1000: 1_500_000}
"""Of a run, by batch; a flushed run of single messages waits for the disk four thousand times."""

WARM_UP_COUNT = 200


class ProduceRow(NamedTuple):
    """What is compared."""

    acks: int
    batch: int
    codec: int

    @property
    def name(self) -> str:
        acks = "all" if self.acks == ALL else "1"
        return f"acks={acks} b{self.batch} {BATCH_CODEC_NAMES[self.codec]}"


ROWS = [
    ProduceRow(acks, count, codec)
    for acks in (LEADER, ALL)
    for codec in (NONE, LZ4)
    for count in BATCHES
]


def measureProduce(
    programs: NativePrograms, server: Any, row: ProduceRow, folder: Path, share: float = 1.0
) -> dict[str, float]:
    """
    One run.

    @param share: of the usual count of messages.
    @return: processor microseconds of the server for a message, and of the kernel's workers (for
        whatever process), and messages a second.
    """
    topic = "bench"
    records = batch(row.batch, row.codec)
    path = folder / "request"
    path.write_bytes(produceFrame(topic, records, row.acks))
    count = max(int(MESSAGE_COUNTS[row.batch] * share) // row.batch, 1)
    if server.isBroker:
        with BlockingClient(server.port) as client:
            client.createTopics([topic])
    warmMemory((64 << 20) + 2 * count * len(records))
    place = errorPlace(topic)
    programs.run("produce", server.port, path, min(count, WARM_UP_COUNT), IN_FLIGHT, place)
    before, kernelBefore = server.cpuSeconds(), kernelWorkerSeconds()
    load = programs.run("produce", server.port, path, count, IN_FLIGHT, place)
    cpu, kernel = server.cpuSeconds() - before, kernelWorkerSeconds() - kernelBefore
    if server.isBroker:
        with BlockingClient(server.port) as client:
            client.deleteTopic(topic)
    messageCount = count * row.batch
    return {
        "cpuUs": cpu / messageCount * 1e6,
        "kernelUs": kernel / messageCount * 1e6,
        "rate": messageCount / load["seconds"],
    }
