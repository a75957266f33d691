"""
One stopped stream beside others that are read: a broker with a partition for each of four streams,
filled, and one process that reads them but for the first (L{tests.integration.slowmember}).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

from kazoo.client import KazooClient

from pylogbroker.records.messageset import encodeSet
from tests.integration.brokerprocess import ROOT, BrokerProcess
from tests.integration.zookeeperprocess import ZookeeperProcess

TOPIC = "clicks"
STREAM_COUNT = 4
STOPPED = 0
BATCH_COUNT = 500
QUEUED_SIZE_MAX = 4 << 20
FETCH_SIZE = 1 << 18
PROPERTIES = {
    "groupid": "g",
    "max.queued.bytes": str(QUEUED_SIZE_MAX),
    "fetch.size": str(FETCH_SIZE),
    "queuedchunks.max": "1000",
}
SECONDS_MAX = 300


class Reading(NamedTuple):
    """
    What the process saw.

    @ivar seconds: until all of the others was read.
    @ivar inTurn: messages of each of the others that came in their order.
    @ivar lateInTurn: the same of the stopped one, read in the end.
    @ivar rssSizes: bytes of its memory, sampled while the others were read.
    @ivar queuedSizes: bytes that waited in the stopped stream, at the same times.
    """

    seconds: float
    cpuSeconds: float
    inTurn: list[int]
    lateInTurn: int
    rssSizes: list[int]
    queuedSizes: list[int]


class SlowCluster:
    """A registered broker that holds messages for each stream."""

    def __init__(self, folder: str, zookeeper: ZookeeperProcess, chroot: str) -> None:
        """
        @param chroot: to be made.
        """
        os.makedirs(folder, exist_ok=True)
        self.servers = zookeeper.servers + chroot
        client = KazooClient(zookeeper.servers)
        client.start(timeout=300)
        client.create(chroot)
        client.stop()
        client.close()
        properties = {
            "num.partitions": str(STREAM_COUNT),
            "enable.zookeeper": "true",
            "zk.connect": self.servers,
            "hostname": "127.0.0.1",
        }
        self.broker = BrokerProcess(
            f"{folder}/logs",
            {**properties, "log.flush.interval": "1000", "log.default.flush.interval.ms": "100"},
        ).start()

    def fill(self, topic: str, counts: list[int], size: int) -> None:
        """
        Numbered messages.

        @param counts: of each partition.
        @param size: of each message.
        """
        padding = b" " * (size - 12)
        with self.broker.client() as client:
            for partition, count in enumerate(counts):
                for start in range(0, count, BATCH_COUNT):
                    numbers = range(start, min(start + BATCH_COUNT, count))
                    client.produce(
                        topic,
                        partition,
                        encodeSet([b"%012d%s" % (number, padding) for number in numbers]),
                    )
            client.processed()

    def read(self, topic: str, counts: list[int]) -> Reading:
        """
        All of it, by a process of its own.

        @raise AssertionError: it has failed.
        """
        options = {
            "servers": self.servers,
            "topic": topic,
            "counts": counts,
            "stopped": STOPPED,
            "properties": {**PROPERTIES, "groupid": topic},
        }
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("COVERAGE_PROCESS")
        }
        ran = subprocess.run(
            [sys.executable, "-m", "tests.integration.slowmember", json.dumps(options)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if ran.returncode:
            raise AssertionError(f"reading has failed: {ran.stdout}{ran.stderr}")
        found = json.loads(ran.stdout)
        samples = found.pop("samples")
        return Reading(
            **found,
            rssSizes=[rss for _seconds, rss, _queued in samples],
            queuedSizes=[queued for _seconds, _rss, queued in samples],
        )

    def close(self) -> None:
        """End the broker."""
        self.broker.kill()
