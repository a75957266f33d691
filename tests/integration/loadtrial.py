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
from typing import Any, NamedTuple, Protocol

import pyarrow.parquet as parquet
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from pylogbroker.audit.envelope import encodeEnvelope
from pylogbroker.lake.manifest import NO_RUN, RunManifest
from pylogbroker.lake.table import STAGING, Table
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.syncclient import SimpleConsumer
from pylogbroker.types import AnyPartition, BrokerPartition, PartitionId, TopicPartition
from tests.integration.loaderapp import FAILED, TOPIC
from tests.integration.sparksession import SparkCluster

ROOT = Path(__file__).resolve().parent.parent.parent
PARTITION_COUNT = 4
BASE_MS = 1_767_268_800_000
FETCH_SIZE = 8 << 20
READ_SECONDS = 0.5
"""For a thousand records; Confluent's client waits as long for the last of them."""

ATTEMPT_COUNT = 240


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


Row = tuple[Any, ...]


class TrialTopic(Protocol):
    """
    The topic of a trial, which has L{PARTITION_COUNT} partitions.

    @ivar source: where it is, as options of the loader.
    @ivar columns: those by which its rows are compared.
    """

    source: dict[str, str]
    columns: tuple[str, ...]

    def publish(self, index: int, payloads: list[bytes], codec: int) -> None:
        """Put messages into one of the partitions; they can be read when this returns."""

    def ends(self) -> dict[AnyPartition, int]:
        """Where the brokers end."""

    def stored(self, ends: dict[AnyPartition, int]) -> Counter[Row]:
        """What the brokers have, up to there, as C{columns}."""


class Kafka07Topic:
    """A topic of Kafka 0.7 on two brokers of two partitions."""

    columns: tuple[str, ...] = ("broker", "partition", "nextOffset", "value")

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster
        self._places = [BrokerPartition(index // 2, index % 2) for index in range(PARTITION_COUNT)]
        self.source = {"zookeeper": cluster.zookeeper}

    def publish(self, index: int, payloads: list[bytes], codec: int) -> None:
        """See L{TrialTopic.publish}."""
        self._cluster.write(TOPIC, self._places[index], payloads, codec=codec)

    def _consumer(self, broker: int) -> SimpleConsumer:
        return SimpleConsumer("127.0.0.1", self._cluster.brokers[broker].port)

    def ends(self) -> dict[AnyPartition, int]:
        """See L{TrialTopic.ends}."""
        found: dict[AnyPartition, int] = {}
        for place in self._places:
            with self._consumer(place.broker) as consumer:
                [found[PartitionId(TOPIC, place)]] = consumer.getOffsetsBefore(
                    TOPIC, place.partition, -1, 1
                )
        return found

    def stored(self, ends: dict[AnyPartition, int]) -> Counter[Row]:
        """See L{TrialTopic.stored}."""
        found: Counter[Row] = Counter()
        for place, end in ends.items():
            assert isinstance(place, PartitionId)
            with self._consumer(place.partition.broker) as consumer:
                begin = 0
                while begin < end:
                    size = min(FETCH_SIZE, end - begin)
                    fetched = consumer.fetch(TOPIC, place.partition.partition, begin, size)
                    for payload, behind in fetched.payloads():
                        found[(*place.partition, behind, payload)] += 1
                        begin = behind
        return found


class KafkaTopic:
    """
    A topic of today's Kafka. What is published is a transaction; an aborted one follows, so that
    offsets have gaps. Confluent's client writes and reads.
    """

    columns: tuple[str, ...] = ("partition", "offset", "value")

    def __init__(self, servers: str) -> None:
        self._servers = {"bootstrap.servers": servers}
        self.source = {"kafka.bootstrap.servers": servers}
        self._producers: dict[int, Producer] = {}

    def _producer(self, codec: int) -> Producer:
        if codec not in self._producers:
            self._producers[codec] = Producer(
                {
                    **self._servers,
                    "transactional.id": f"trial {codec}",
                    "compression.type": ("none", "gzip", "lz4")[codec],
                }
            )
            self._producers[codec].init_transactions(60)
        return self._producers[codec]

    def publish(self, index: int, payloads: list[bytes], codec: int) -> None:
        """See L{TrialTopic.publish}."""
        producer = self._producer(codec)
        for values, end in (
            (payloads, producer.commit_transaction),
            ([b"aborted"] * 3, producer.abort_transaction),
        ):
            producer.begin_transaction()
            for value in values:
                producer.produce(TOPIC, value, key=value[:2], partition=index)
            producer.flush(60)
            end(60)

    def _consumer(self) -> Consumer:
        settings = {"group.id": "trial", "enable.partition.eof": True}
        return Consumer({**self._servers, **settings, "isolation.level": "read_committed"})

    def ends(self) -> dict[AnyPartition, int]:
        """See L{TrialTopic.ends}."""
        consumer = self._consumer()
        found: dict[AnyPartition, int] = {}
        for index in range(PARTITION_COUNT):
            _low, high = consumer.get_watermark_offsets(ConfluentPartition(TOPIC, index), 60)
            found[TopicPartition(TOPIC, index)] = high
        consumer.close()
        return found

    def stored(self, ends: dict[AnyPartition, int]) -> Counter[Row]:
        """See L{TrialTopic.stored}."""
        found: Counter[Row] = Counter()
        consumer = self._consumer()
        consumer.assign([ConfluentPartition(TOPIC, index, 0) for index in range(PARTITION_COUNT)])
        reading = set(range(PARTITION_COUNT))
        for _attempt in range(ATTEMPT_COUNT):
            for message in consumer.consume(1_000, READ_SECONDS):
                error, index, offset = message.error(), message.partition(), message.offset()
                if error is None:
                    assert index is not None
                    assert offset is not None
                    if offset < ends[TopicPartition(TOPIC, index)]:
                        found[index, offset, message.value()] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(index)
                else:
                    raise LoadTrialError(f"the topic cannot be read: {error}")
            if not reading:
                break
        else:
            raise LoadTrialError(f"the ends of partitions {reading} were not reached")
        consumer.close()
        return found


class Loader:
    """A L{tests.integration.loaderapp} as a process, in a group of its own."""

    def __init__(self, folder: str, source: dict[str, str]) -> None:
        self._errors = open(f"{folder}/errors.txt", "ab+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.loaderapp", folder, json.dumps(source)],
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
        self, folder: str, topic: TrialTopic, seed: int, report: Callable[[str], object] = len
    ) -> None:
        """
        @param folder: for the table, and for Spark; it is there.
        @param report: is told how far it is.
        """
        self.figures = Figures()
        self._folder = folder
        self._topic = topic
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
            self._compare(self._topic.ends())
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
        loader = Loader(self._folder, self._topic.source)
        self._loaders.append(loader)
        return loader.ready()

    def _last(self) -> RunManifest:
        last = self.table.last()
        if last is NO_RUN:
            raise LoadTrialError("nothing was committed")
        return last

    # -- rounds

    def _publish(self, count: int) -> None:
        for index in range(PARTITION_COUNT):
            payloads = [
                self._payload(number)
                for number in range(self._number, self._number + count // PARTITION_COUNT)
            ]
            self._number += len(payloads)
            self._topic.publish(index, payloads, (self._number + index) % 3)

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
        if said.get("rowCount") != messageCount // PARTITION_COUNT * PARTITION_COUNT:
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
            f" {sum(self._last().positions.values()):,} in offsets"
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
        self._compare(self._topic.ends())

    def _two(self, loader: Loader, messageCount: int) -> None:
        """Two loaders at once: what the one has loaded the other has not."""
        other = self._loader()
        self._publish(messageCount)
        for each in (loader, other):
            each.begin()
        outcomes = [each.said() for each in (loader, other)]
        wanted = messageCount // PARTITION_COUNT * PARTITION_COUNT
        if max(said.get("rowCount", 0) for said in outcomes) != wanted:
            raise LoadTrialError(f"two loaders at once said {outcomes}")
        self._count(refusedCount=sum(said.get("error") == "TableBusyError" for said in outcomes))

    # -- looking

    def _compare(self, ends: dict[AnyPartition, int]) -> None:
        """The table has exactly what the topic has up to there."""
        if dict(self._last().positions) != ends:
            raise LoadTrialError(
                f"the table ends at {dict(self._last().positions)}, and not at {ends}"
            )
        wanted = self._topic.stored(ends)
        found = self._loaded()
        if found != wanted:
            missing, more = list((wanted - found).items())[:3], list((found - wanted).items())[:3]
            raise LoadTrialError(
                f"{(wanted - found).total()} rows are missing, such as {missing};"
                f" {(found - wanted).total()} are too many, such as {more}"
            )

    def _loaded(self) -> Counter[Row]:
        """What the table has."""
        found: Counter[Row] = Counter()
        for path in self.table.files():
            rows = parquet.ParquetFile(path).read(columns=list(self._topic.columns))
            found.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        return found
