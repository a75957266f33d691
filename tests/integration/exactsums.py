"""
An application that keeps its positions in SQLite, killed at random moments: after each of its lives
its sums are exactly those of the messages up to the positions beside them. Sets are compressed, or
not; in some lives a second one joins that shares the database, and at last there are two in any
case.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

from pylogbroker.protocol.kafka07.requests import encodeProduce
from pylogbroker.records.compression import GZIP, NONE, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.types import consumedCount
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.exactsumapp import GROUP, TOPIC, openDatabase, totalCount

ROOT = Path(__file__).resolve().parent.parent.parent
PARTITION_COUNT = 4
NUMBERS_PER_LIFE = 4_000
SET_COUNT = 50
LIFE_SECONDS_MAX = 1.0
SHARED_LIFE_SECONDS_MAX = 4.0
SHARED_PART = 0.8
"""Of the lives, those that two members share."""
WAIT_SECONDS_MAX = 120.0


class InexactError(Exception):
    """A sum is wrong."""


class ExactSumTrial:
    """
    @ivar killCount: lives that were ended.
    @ivar hitCount: of these, those in which something had been added.
    @ivar sharedCount: lives that were two members'.
    @ivar conflictCount: how often one was refused what another had added, as far as they could say
        so.
    @ivar numberCount: messages so far.
    """

    def __init__(self, directory: str, servers: str, seed: int) -> None:
        """
        @param directory: for the broker's data and the database.
        @param servers: ZooKeeper's, with a chroot of our own.
        """
        self._random = Random(seed)
        self._database = f"{directory}/sums.sqlite"
        self._servers = servers
        self.broker = BrokerProcess(
            f"{directory}/logs",
            {
                "num.partitions": str(PARTITION_COUNT),
                "enable.zookeeper": "true",
                "zk.connect": servers,
                "hostname": "127.0.0.1",
            },
        )
        self.killCount = self.hitCount = self.sharedCount = self.conflictCount = (
            self.numberCount
        ) = 0
        # By offset, and how many messages of the set there are done: total and count.
        self._prefixes: list[dict[tuple[int, int], tuple[int, int]]] = [
            {(0, 0): (0, 0)} for _partition in range(PARTITION_COUNT)
        ]
        self._ends = [0] * PARTITION_COUNT

    def run(self, killCount: int) -> None:
        """
        So many kills, then a life to its end.

        @raise InexactError: something was added twice, or not at all.
        """
        self.broker.start()
        try:
            for _life in range(killCount):
                self._produce()
                self._liveAndDie()
                self._check()
            self._produce()
            self._liveOn()
            self._check(isAll=True)
        finally:
            self.broker.kill()

    def _produce(self) -> None:
        client = self.broker.client()
        for _set in range(NUMBERS_PER_LIFE // SET_COUNT):
            partition = self._random.randrange(PARTITION_COUNT)
            numbers = [
                self._random.randrange(-1_000_000, 1_000_000) for _number in range(SET_COUNT)
            ]
            data = encodeSet(
                [b"%d" % number for number in numbers], self._random.choice((NONE, GZIP, SNAPPY))
            )
            start = self._ends[partition]
            total, count = self._prefixes[partition][start, 0]
            for (_payload, offset), number in zip(
                MessageSet(data, start).payloadsWithOffsets(), numbers, strict=True
            ):
                total, count = total + number, count + 1
                self._prefixes[partition][int(offset), consumedCount(offset)] = total, count
            self._ends[partition] = start + len(data)
            client.send(encodeProduce(TOPIC, partition, data))
            self.numberCount += SET_COUNT
        client.close()

    def _launch(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        command = [
            sys.executable,
            "-m",
            "tests.integration.exactsumapp",
            self._database,
            self._servers,
            str(self.numberCount),
        ]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _liveAndDie(self) -> None:
        before = self._count()
        processes = [self._begun()]
        if self._random.random() < SHARED_PART:
            processes.append(self._begun())
            self.sharedCount += 1
        time.sleep(
            self._random.uniform(
                0, LIFE_SECONDS_MAX if len(processes) == 1 else SHARED_LIFE_SECONDS_MAX
            )
        )
        self._random.shuffle(processes)
        for process in processes:
            process.send_signal(signal.SIGKILL)
            self._end(process)
            time.sleep(self._random.uniform(0, LIFE_SECONDS_MAX) if len(processes) > 1 else 0)
        self.killCount += 1
        self.hitCount += self._count() > before

    def _begun(self) -> subprocess.Popen[str]:
        process = self._launch()
        watchdog = threading.Timer(WAIT_SECONDS_MAX, process.kill)
        watchdog.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        if line != "begins\n":
            raise InexactError(f"it did not begin: {line}{process.stdout.read()}")
        return process

    def _end(self, process: subprocess.Popen[str]) -> str:
        """What it still says to its end, which has to come."""
        try:
            output, _errors = process.communicate(timeout=WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise InexactError(
                f"it did not come to an end: {self._count()} of {self.numberCount} numbers:"
                f" {process.communicate()[0]}"
            ) from None
        self.conflictCount += output.count("conflict\n")
        return output

    def _liveOn(self) -> None:
        processes = [self._launch(), self._launch()]
        for process in processes:
            output = self._end(process)
            if process.returncode:
                raise InexactError(f"it ended with {process.returncode}: {output}")

    def _count(self) -> int:
        connection = openDatabase(self._database)
        try:
            return totalCount(connection)
        finally:
            connection.close()

    def _check(self, isAll: bool = False) -> None:
        connection = sqlite3.connect(self._database)
        sums = {
            partition: (total, count)
            for partition, total, count in connection.execute("SELECT * FROM sums")
        }
        rows = connection.execute(
            'SELECT "partition", offset, done FROM pylogbroker_offsets WHERE "group" = ?', (GROUP,)
        )
        positions = {partition: (offset, done) for partition, offset, done in rows}
        connection.close()
        for partition in range(PARTITION_COUNT):
            position = positions.get(partition, (0, 0))
            wanted = self._prefixes[partition].get(position)
            if sums.get(partition, (0, 0)) != wanted:
                raise InexactError(
                    f"partition {partition} at {position}: {sums.get(partition)} were added up,"
                    f" {wanted} would be right"
                )
            if isAll and position != (self._ends[partition], 0):
                raise InexactError(
                    f"partition {partition} ends at {self._ends[partition]}, the application at"
                    f" {position}"
                )
