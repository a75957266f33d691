"""
A process with one member of a group and a stream for each partition, of which one is not read while
the others are: what that costs them, and in memory.

    python -m tests.integration.slowmember '{"servers": …, "topic": …, "counts": [0, 60000, …],
    "stopped": 0, "properties": {…}}'

reads all of the other streams, then, if there is one that was stopped, that one, too; and prints
what it saw, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.task import LoopingCall, react

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream

SAMPLE_SECONDS = 0.05


def rssSize() -> int:
    """Bytes of memory that this process has now."""
    return next(
        int(line.split()[1]) << 10
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmRSS")
    )


async def readAll(stream: MessageStream, count: int) -> int:
    """
    Read so many messages, which are numbered.

    @return: how many came in their turn.
    """
    inTurn = 0
    while count:
        message = await stream.__anext__()
        inTurn += int(message.value[:12]) == inTurn
        count -= 1
    return inTurn


async def run(reactor: Any, options: dict[str, Any]) -> None:
    """See the module."""
    counts, stopped = options["counts"], options["stopped"]
    consumer = ConsumerConnector(
        reactor, {"zk.connect": options["servers"], **options["properties"]}
    )
    await consumer.connect()
    streams: list[MessageStream] = (
        await consumer.createMessageStreams({options["topic"]: len(counts)})
    )[options["topic"]]
    byPartition = {
        place.partition.partition: streams[int(thread.rpartition("-")[2])]
        for place, thread in consumer.owned.items()
    }
    samples: list[tuple[float, int, int]] = []
    begun, cpuBegun = monotonic(), process_time()

    def sample() -> None:
        samples.append((monotonic() - begun, rssSize(), byPartition[stopped].queuedSize))

    sampling = LoopingCall(sample)
    sampling.clock = reactor
    sampling.start(SAMPLE_SECONDS)
    others = [number for number in range(len(counts)) if number != stopped]
    inTurn = await gatherResults(
        [Deferred.fromCoroutine(readAll(byPartition[number], counts[number])) for number in others]
    )
    seconds, cpuSeconds = monotonic() - begun, process_time() - cpuBegun
    sample()
    sampling.stop()
    late = await readAll(byPartition[stopped], counts[stopped])
    await consumer.shutdown()
    sys.stdout.write(
        json.dumps(
            {
                "seconds": seconds,
                "cpuSeconds": cpuSeconds,
                "inTurn": inTurn,
                "lateInTurn": late,
                "samples": samples,
            }
        )
    )


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    react(lambda reactor: ensureDeferred(run(reactor, given)))
