"""
Loads that are killed, tasks that fail, loaders that start at the same time; and the one thing that
must be so in the end: the table equals the topic, row for row.

Each round publishes more messages, lets a loader load, and kills it with C{kill -9} at a moment
that a seed chooses, between the beginning and somewhat behind the time that a whole load takes: the
process, or now and then all of its group, Spark's Java machine included. After each kill, before
anything else looks at the table, what it has must be what its offsets say. Then a loader loads with
tasks that fail, and then two are told to begin at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

import pyarrow.parquet as parquet

from pylogbroker.audit.envelope import encodeEnvelope
from pylogbroker.lake.manifest import NO_RUN, RunManifest
from pylogbroker.lake.table import STAGING, Table
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.syncclient import SimpleConsumer
from pylogbroker.types import BrokerPartition, PartitionId
from tests.integration.loaderapp import FAILED, TOPIC
from tests.integration.sparksession import SparkCluster

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = [BrokerPartition(broker, partition) for broker in range(2) for partition in range(2)]
BASE_MS = 1_767_268_800_000
FETCH_SIZE = 8 << 20


class LoadTrialError(AssertionError):
    """The loader has broken its promise."""


class Figures(NamedTuple):
    """
    What a trial was made of.

    @ivar killCount: kills.
    @ivar committedCount: of these, those behind the commit.
    @ivar unpublishedCount: of these, those that left files for the next run to publish.
    @ivar stagedCount: kills that left files that were not committed.
    @ivar refusedCount: loads that were told that another one writes.
    @ivar failedCount: tasks that were made to fail.
    @ivar runCount: runs that were committed.
    @ivar rowCount: rows in the end.
    """

    killCount: int = 0
    committedCount: int = 0
    unpublishedCount: int = 0
    stagedCount: int = 0
    refusedCount: int = 0
    failedCount: int = 0
    runCount: int = 0
    rowCount: int = 0


class Loader:
    """A L{tests.integration.loaderapp} as a process, in a group of its own."""

    def __init__(self, folder: str, zookeeper: str) -> None:
        self._errors = open(f"{folder}/errors.txt", "ab+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.loaderapp", folder, zookeeper],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> Loader:
        """Wait until it is."""
        if self._line() != "ready\n":
            raise LoadTrialError(
                f"a loader did not start: status {self._process.wait()}\n{self._said()}"
            )
        return self

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4_000:].decode(errors="replace")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def begin(self, how: str = "load") -> None:
        """Let it load; waits for nothing."""
        assert self._process.stdin is not None
        self._process.stdin.write(how + "\n")
        self._process.stdin.flush()

    def said(self) -> dict[str, Any]:
        """What came of it."""
        line = self._line()
        if not line:
            raise LoadTrialError(
                f"a loader has died: status {self._process.wait()}\n{self._said()}"
            )
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self, isGroup: bool) -> None:
        """C{kill -9}; Spark's Java machine ends by itself then, if it was not killed, too."""
        if isGroup:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()


class LoadTrial:
    """
    @ivar figures: so far.
    """

    def __init__(
        self, folder: str, cluster: SparkCluster, seed: int, report: Callable[[str], object] = len
    ) -> None:
        """
        @param folder: for the table, and for Spark; it is there.
        @param cluster: two brokers of two partitions.
        @param report: is told how far it is.
        """
        self.figures = Figures()
        self._folder = folder
        self._cluster = cluster
        self._random = Random(seed)
        self._report = report
        self._number = 0
        self._loaders: list[Loader] = []
        self.table = Table(f"{folder}/table", RealFileSystem())

    def run(self, messageCount: int, killCount: int) -> None:
        """
        @param messageCount: messages that are published in each round.
        @raise LoadTrialError: a row is missing, or there twice, or another.
        """
        try:
            loader = self._loader()
            loadSeconds = self._whole(loader, messageCount)
            for _kill in range(killCount):
                self._killed(loader, messageCount, loadSeconds)
                loader = self._loader()
            self._failing(loader, messageCount)
            self._two(loader, messageCount)
            self._compare(self._published())
            last = self._last()
            self._count(runCount=last.number, rowCount=sum(self._loaded().values()))
        finally:
            while self._loaders:
                self._loaders.pop().kill(True)

    def _count(self, **changes: int) -> None:
        self.figures = self.figures._replace(
            **{name: getattr(self.figures, name) + change for name, change in changes.items()}
        )

    def _loader(self) -> Loader:
        loader = Loader(self._folder, self._cluster.zookeeper)
        self._loaders.append(loader)
        return loader.ready()

    def _last(self) -> RunManifest:
        last = self.table.last()
        if last is NO_RUN:
            raise LoadTrialError("nothing was committed")
        return last

    # -- rounds

    def _publish(self, count: int) -> None:
        for index, place in enumerate(PLACES):
            payloads = [
                self._payload(number)
                for number in range(self._number, self._number + count // len(PLACES))
            ]
            self._number += len(payloads)
            self._cluster.write(TOPIC, place, payloads, codec=(self._number + index) % 3)

    def _payload(self, number: int) -> bytes:
        data = b"%d " % number + b"." * self._random.randrange(100)
        return (
            data
            if number % 3
            else encodeEnvelope(BASE_MS + number % 7 * 3_600_000, b"web%d" % (number % 5), data)
        )

    def _whole(self, loader: Loader, messageCount: int) -> float:
        """
        A load that nobody disturbs; returns how long it takes a loader that has just started, as
        all that are killed have.
        """
        self._publish(messageCount)
        begun = monotonic()
        loader.begin()
        said = loader.said()
        if said.get("rowCount") != messageCount // len(PLACES) * len(PLACES):
            raise LoadTrialError(f"a load of {messageCount} messages said {said}")
        return monotonic() - begun

    def _killed(self, loader: Loader, messageCount: int, loadSeconds: float) -> None:
        self._publish(messageCount)
        before = self._last().number
        loader.begin()
        Event().wait(self._random.uniform(0, 1.2 * loadSeconds))  # the moment
        loader.kill(self._random.random() < 0.5)
        self._loaders.remove(loader)
        staged = os.listdir(self.table.path(STAGING))
        isCommitted = self._last().number > before
        self._count(
            killCount=1,
            committedCount=isCommitted,
            unpublishedCount=isCommitted and bool(staged),
            stagedCount=bool(staged) and not isCommitted,
        )
        self._compare(dict(self._last().positions))
        self._report(
            f"{self.figures.killCount} kills, {self._last().number} runs,"
            f" {sum(self._last().positions.values()):,} bytes of log"
        )

    def _failing(self, loader: Loader, messageCount: int) -> None:
        """Half of the tasks fail once."""
        self._publish(messageCount)
        loader.begin("flaky")
        said = loader.said()
        if not said.get("rowCount"):
            raise LoadTrialError(f"a load with tasks that fail once said {said}")
        self._count(
            failedCount=len(Path(self._folder, FAILED).read_text(encoding="ascii").splitlines())
        )
        self._compare(self._published())

    def _two(self, loader: Loader, messageCount: int) -> None:
        """Two loaders at once: what the one has loaded the other has not."""
        other = self._loader()
        self._publish(messageCount)
        for each in (loader, other):
            each.begin()
        outcomes = [each.said() for each in (loader, other)]
        if max(said.get("rowCount", 0) for said in outcomes) != messageCount // len(PLACES) * len(
            PLACES
        ):
            raise LoadTrialError(f"two loaders at once said {outcomes}")
        self._count(refusedCount=sum(said.get("error") == "TableBusyError" for said in outcomes))

    # -- looking

    def _published(self) -> dict[PartitionId, int]:
        """Where the brokers end."""
        ends = {}
        for place in PLACES:
            with SimpleConsumer("127.0.0.1", self._cluster.brokers[place.broker].port) as consumer:
                [ends[PartitionId(TOPIC, place)]] = consumer.getOffsetsBefore(
                    TOPIC, place.partition, -1, 1
                )
        return ends

    def _compare(self, ends: dict[PartitionId, int]) -> None:
        """The table has exactly what the topic has up to there."""
        if dict(self._last().positions) != ends:
            raise LoadTrialError(
                f"the table ends at {dict(self._last().positions)}, and not at {ends}"
            )
        wanted = self._stored(ends)
        found = self._loaded()
        if found != wanted:
            missing, more = list((wanted - found).items())[:3], list((found - wanted).items())[:3]
            raise LoadTrialError(
                f"{(wanted - found).total()} rows are missing, such as {missing};"
                f" {(found - wanted).total()} are too many, such as {more}"
            )

    def _stored(self, ends: dict[PartitionId, int]) -> Counter[tuple[BrokerPartition, int, bytes]]:
        """What the brokers have, up to there: partition, next offset and payload."""
        found: Counter[tuple[BrokerPartition, int, bytes]] = Counter()
        for place, end in ends.items():
            with SimpleConsumer(
                "127.0.0.1", self._cluster.brokers[place.partition.broker].port
            ) as consumer:
                begin = 0
                while begin < end:
                    for payload, behind in consumer.fetch(
                        TOPIC, place.partition.partition, begin, min(FETCH_SIZE, end - begin)
                    ).payloads():
                        found[place.partition, behind, payload] += 1
                        begin = behind
        return found

    def _loaded(self) -> Counter[tuple[BrokerPartition, int, bytes]]:
        """What the table has."""
        found: Counter[tuple[BrokerPartition, int, bytes]] = Counter()
        for path in self.table.files():
            rows = parquet.ParquetFile(path).read(
                columns=["broker", "partition", "nextOffset", "value"]
            )
            for broker, partition, nextOffset, value in zip(
                *(column.to_pylist() for column in rows.columns), strict=True
            ):
                found[BrokerPartition(broker, partition), nextOffset, value] += 1
        return found
