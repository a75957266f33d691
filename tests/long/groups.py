"""
Large groups at a real ZooKeeper::

    python -m tests.long.groups join      # one consumer joins 19 others over 200 partitions, with
    rebalance.backoff.ms=200 python -m tests.long.groups commit    # the positions of 1,000
    partitions are committed while a stream is read

Broker and ZooKeeper are processes; the members are all in this one, each with a session of its own.
The exit status is 0 if what must hold did.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater, react

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.offsetstores import ZookeeperOffsetStore
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.protocol.kafka07.requests import encodeProduce
from pylogbroker.records.messageset import encodeSet
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.benchmarks.clients import turnNs
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.zookeeperprocess import ZookeeperProcess

TOPIC, GROUP = "t", "g"
MEMBER_COUNT, JOIN_PARTITION_COUNT, BACKOFF_MS, SETTLED_SECONDS_MAX = 20, 200, 200, 5.0
JOIN_COUNT = 5
COMMIT_PARTITION_COUNT = 1_000
MOVED_COUNT = 37
STREAM_MESSAGE_COUNT = 400_000
WAIT_SECONDS_MAX = 120.0


class Cluster:
    """
    A ZooKeeper and a broker with one topic.
    """

    def __init__(self, folder: str, partitionCount: int) -> None:
        self.zookeeper = ZookeeperProcess(f"{folder}/zookeeper").start()
        self.broker = BrokerProcess(
            f"{folder}/logs",
            {
                "num.partitions": str(partitionCount),
                "enable.zookeeper": "true",
                "zk.connect": self.zookeeper.servers,
                "hostname": "127.0.0.1",
                "log.flush.interval": "1000",
                "log.default.flush.interval.ms": "200",
                "log.default.flush.scheduler.interval.ms": "200",
            },
        )
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()
        self.zookeeper.stop()

    def produce(self, sets: Mapping[int, list[bytes]]) -> None:
        """Messages to partitions, in sets of 200."""
        client = self.broker.client()
        for partition, payloads in sets.items():
            for start in range(0, len(payloads), 200):
                client.send(
                    encodeProduce(TOPIC, partition, encodeSet(payloads[start : start + 200]))
                )
        client.close()


def report(what: str, value: object) -> None:
    sys.stdout.write(f"{what:>64} {value}\n")
    sys.stdout.flush()


async def until(reactor: Any, holds: Callable[[], bool]) -> None:
    """Looks every 5 ms."""
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it did not come to this in time")
        await deferLater(reactor, 0.005)


async def join(reactor: Any, cluster: Cluster) -> bool:
    """Twenty members, the last of whom comes late, some times."""
    cluster.produce({0: [b"x"]})
    settings = {
        "zk.connect": cluster.zookeeper.servers,
        "groupid": GROUP,
        "rebalance.backoff.ms": str(BACKOFF_MS),
        "rebalance.retries.max": "50",
    }
    members: list[ConsumerConnector] = []

    async def enter() -> None:
        member = await ConsumerConnector(reactor, settings).connect()
        members.append(member)
        await member.createMessageStreams({TOPIC: 1})

    def isShared(count: int) -> bool:
        places = [place for member in members for place in member.owned]
        isEven = (
            all(len(member.owned) == JOIN_PARTITION_COUNT // count for member in members)
            if not JOIN_PARTITION_COUNT % count
            else True
        )
        return (
            len(places) == len(set(places)) == JOIN_PARTITION_COUNT
            and isEven
            and all(member.isOwning for member in members)
        )

    await gatherResults([Deferred.fromCoroutine(enter()) for _member in range(MEMBER_COUNT - 1)])
    await until(reactor, lambda: isShared(MEMBER_COUNT - 1))
    report("members", MEMBER_COUNT - 1)
    isGood = True
    for number in range(JOIN_COUNT):
        begun = time.monotonic()
        await enter()
        first = time.monotonic() - begun
        await until(reactor, lambda: isShared(MEMBER_COUNT))
        settled = time.monotonic() - begun
        isGood = isGood and settled < SETTLED_SECONDS_MAX
        report(
            f"join {number + 1}: seconds until the newcomer has its share, and until all have",
            f"{first:.2f} {settled:.2f}",
        )
        await members.pop().shutdown()
        await until(reactor, lambda: isShared(MEMBER_COUNT - 1))
    await gatherResults([member.shutdown() for member in members])
    report(f"settled in under {SETTLED_SECONDS_MAX:g} s each time", isGood)
    return isGood


class CountingStore(ZookeeperOffsetStore):
    """
    Positions in ZooKeeper, and how many were written.
    """

    writtenCount = 0

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        self.writtenCount += len(positions)
        return super().commit(positions)


class Reader:
    """
    Reads a stream, and notes when messages came.

    @ivar gap: the longest time without any, in seconds by the clock.
    @ivar busyGap: the same in seconds of CPU of this thread: what somebody else on the machine took
        is not in it, nor is waiting.
    """

    def __init__(self, stream: MessageStream) -> None:
        self.count = 0
        self.gap = self.busyGap = 0.0
        self._last, self._busyLast = time.monotonic(), time.thread_time()
        self._reading = Deferred.fromCoroutine(self._read(stream))

    async def _read(self, stream: MessageStream) -> None:
        async for _message in stream:
            now, busyNow = time.monotonic(), time.thread_time()
            self.gap, self.busyGap = (
                max(self.gap, now - self._last),
                max(self.busyGap, busyNow - self._busyLast),
            )
            self._last, self._busyLast = now, busyNow
            self.count += 1

    def begin(self) -> int:
        """Measure from now on; returns the count so far."""
        self.gap = self.busyGap = 0.0
        self._last, self._busyLast = time.monotonic(), time.thread_time()
        return self.count


def flow(reader: Reader, before: int, seconds: float, busySeconds: float) -> str:
    """How a stream flowed."""
    count = reader.count - before
    return (
        f"{count / seconds:,.0f} messages/s, {count / busySeconds:,.0f} per CPU-second of the"
        f" reactor's thread; longest gap {reader.gap * 1e3:.0f} ms by the clock,"
        f" {reader.busyGap * 1e3:.0f} ms of CPU"
    )


async def commit(reactor: Any, cluster: Cluster) -> bool:
    """A thousand positions: all, none, some; and all while the stream flows."""
    cluster.produce({partition: [b"x" * 200] * 3 for partition in range(COMMIT_PARTITION_COUNT)})
    zookeeper = ZookeeperClient(reactor, cluster.zookeeper.servers)
    await zookeeper.connect()
    store = CountingStore(zookeeper, GROUP)
    settings = {
        "groupid": GROUP,
        "autocommit.enable": "false",
        "fetcher.backoff.ms": "50",
        "rebalance.backoff.ms": "200",
        "queuedchunks.max": "100000",
    }
    consumer = await ConsumerConnector(reactor, settings, zookeeper, store).connect()
    (stream,) = (await consumer.createMessageStreams({TOPIC: 1}))[TOPIC]
    reader = Reader(stream)
    isGood = True

    async def cycle(what: str, wanted: int) -> None:
        nonlocal isGood
        before, begun = store.writtenCount, time.monotonic()
        await consumer.commitOffsets()
        written = store.writtenCount - before
        isGood = isGood and written == wanted
        report(f"{what}: positions written, seconds", f"{written} {time.monotonic() - begun:.3f}")

    wantedCount = 3 * COMMIT_PARTITION_COUNT
    await until(reactor, lambda: reader.count == wantedCount)
    await cycle(f"all {COMMIT_PARTITION_COUNT} have moved", COMMIT_PARTITION_COUNT)
    await cycle("none has moved", 0)
    cluster.produce({partition: [b"y"] for partition in range(MOVED_COUNT)})
    wantedCount += MOVED_COUNT
    await until(reactor, lambda: reader.count == wantedCount)
    await cycle(f"{MOVED_COUNT} have moved", MOVED_COUNT)

    cluster.produce({partition: [b"z"] for partition in range(COMMIT_PARTITION_COUNT)})
    wantedCount += COMMIT_PARTITION_COUNT
    await until(reactor, lambda: reader.count == wantedCount)
    cluster.produce({0: [b"m" * 200] * STREAM_MESSAGE_COUNT})
    await until(reactor, lambda: reader.count > wantedCount + 1_000)
    before, begun, busy = reader.begin(), time.monotonic(), time.thread_time()
    await deferLater(reactor, 0.5)
    alone = flow(reader, before, time.monotonic() - begun, time.thread_time() - busy)
    before, writtenBefore = reader.begin(), store.writtenCount
    begun, busy = time.monotonic(), time.thread_time()
    await consumer.commitOffsets()
    seconds = time.monotonic() - begun
    during = flow(reader, before, seconds, time.thread_time() - busy)
    isLeft = reader.count < wantedCount + STREAM_MESSAGE_COUNT
    report("the stream alone", alone)
    report(
        f"the stream during a commit of {store.writtenCount - writtenBefore}, which took"
        f" {seconds:.2f} s",
        during,
    )
    report("messages were left to read at its end", isLeft)
    isGood = isGood and isLeft and reader.count > before
    await consumer.shutdown()
    await zookeeper.close()
    report("only what has moved was written, and the stream went on", isGood)
    return isGood


SCENES: dict[str, tuple[Callable[[Any, Cluster], Coroutine[Any, Any, bool]], int]] = {
    "join": (join, JOIN_PARTITION_COUNT),
    "commit": (commit, COMMIT_PARTITION_COUNT),
}


async def run(reactor: Any, name: str) -> None:
    scene, partitionCount = SCENES[name]
    folder = tempfile.mkdtemp()
    cluster = Cluster(folder, partitionCount)
    report(
        "load of the machine, ns for a turn of a loop in Python",
        f"{os.getloadavg()[0]:.1f} {turnNs():.0f}",
    )
    try:
        isGood = await scene(reactor, cluster)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if not isGood:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.groups", description="Large groups at a real ZooKeeper."
    )
    parser.add_argument("scene", choices=sorted(SCENES))
    options = parser.parse_args()
    react(lambda reactor: Deferred.fromCoroutine(run(reactor, options.scene)))


if __name__ == "__main__":
    main()
