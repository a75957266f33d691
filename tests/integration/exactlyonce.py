"""
Exactly once under C{kill -9}: applications read numbered records and write others in transactions,
while they and the broker are killed at random moments. In the end a reader of committed records
must have seen each number once, in the order of its partition.

Kills are ordered by progress, not by time: a slow machine only makes a run slow.
"""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.transformer import QUICK, SOURCE, TARGET, TIMEOUT_SECONDS, transactionalId

PARTITION_COUNT = 2
APPLICATION_COUNT = 2
POLL_SECONDS = 0.1
IDLE_POLL_COUNT_MAX = 3_000
"""Polls without a new record, after which nothing more is expected."""

PROPERTIES = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class NotExactError(Exception):
    """A record is missing, comes twice, or in another order."""


class ExactFigures(NamedTuple):
    """
    What a run was made of.

    @ivar endedCount: applications that ended by themselves after an error.
    @ivar abortedCount: offsets in the second topic that hold no committed record: aborted ones and
        markers.
    """

    recordCount: int
    brokerKillCount: int
    applicationKillCount: int
    endedCount: int
    abortedCount: int


class ExactlyOnceTrial:
    """One run."""

    def __init__(self, seed: int, recordCount: int, stepMax: int) -> None:
        """@param stepMax: committed records between two kills, at most."""
        self._random = Random(seed)
        self._recordCount = recordCount
        self._stepMax = stepMax
        self._broker = BackgroundBroker(PROPERTIES)
        self._applications: list[subprocess.Popen[bytes] | None] = [None] * APPLICATION_COUNT
        self._victims: list[int] = []  # each gets its turn before any comes again
        self._found: list[list[int]] = [[] for _ in range(PARTITION_COUNT)]
        self._brokerKillCount = self._applicationKillCount = self._endedCount = 0

    def run(self) -> ExactFigures:
        """
        @raise NotExactError: the outcome is not exact.
        """
        self._broker.start()
        try:
            self._fill()
            self._work()
            self._stopApplications()
            end = self._readToEnd()
            self._check()
        finally:
            self._stopApplications()
            self._broker.close()
        return ExactFigures(
            self._recordCount,
            self._brokerKillCount,
            self._applicationKillCount,
            self._endedCount,
            end - self._recordCount,
        )

    @property
    def _foundCount(self) -> int:
        return sum(map(len, self._found))

    def _fill(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrapServers})
        topics = [NewTopic(name, PARTITION_COUNT) for name in (SOURCE, TARGET)]
        for waiting in admin.create_topics(topics).values():
            waiting.result(TIMEOUT_SECONDS)
        producer = Producer(
            {"bootstrap.servers": self._broker.bootstrapServers, "enable.idempotence": True}
        )
        for number in range(self._recordCount):
            producer.produce(SOURCE, b"%d" % number, partition=number % PARTITION_COUNT)
        if producer.flush(TIMEOUT_SECONDS):
            raise NotExactError("the first topic could not be filled")

    def _reader(self) -> Any:
        reader = Consumer(
            {
                **QUICK,
                "bootstrap.servers": self._broker.bootstrapServers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        places = range(PARTITION_COUNT)
        reader.assign([TopicPartition(TARGET, each, OFFSET_BEGINNING) for each in places])
        return reader

    def _work(self) -> None:
        """Until each number was seen, or too many."""
        reader = self._reader()
        killAt = self._step()
        idleCount = 0
        while self._foundCount < self._recordCount:
            self._startApplications()
            message = reader.poll(POLL_SECONDS)
            if message is None or message.error():
                idleCount += 1
                if idleCount > IDLE_POLL_COUNT_MAX:
                    raise NotExactError(f"{self._foundCount} records, and no more come")
                continue
            idleCount = 0
            self._found[message.partition()].append(int(message.value() or b""))
            if self._foundCount >= killAt:
                killAt += self._step()
                self._killSomething()
        reader.close()

    def _step(self) -> int:
        return self._random.randint(1, self._stepMax)

    def _killSomething(self) -> None:
        if not self._victims:
            self._victims = list(range(APPLICATION_COUNT + 1))
            self._random.shuffle(self._victims)
        chosen = self._victims.pop()
        if chosen == APPLICATION_COUNT:
            self._broker.kill()
            self._broker.start()
            self._brokerKillCount += 1
            return
        application = self._applications[chosen]
        if application is not None:
            application.kill()
            application.wait()
            self._applications[chosen] = None
            self._applicationKillCount += 1

    def _startApplications(self) -> None:
        for number, application in enumerate(self._applications):
            if application is not None and application.poll() is not None:
                self._endedCount += 1
                application = None
            if application is None:
                seed = self._random.getrandbits(32)
                self._applications[number] = subprocess.Popen(
                    [
                        sys.executable,
                        *("-m", "tests.integration.transformer"),
                        self._broker.bootstrapServers,
                        str(number),
                        str(seed),
                    ],
                    stderr=subprocess.DEVNULL,
                )

    def _stopApplications(self) -> None:
        for application in self._applications:
            if application is not None:
                application.kill()
                application.wait()
        self._applications = [None] * APPLICATION_COUNT

    def _readToEnd(self) -> int:
        """Read everything anew, when nothing is open any more. The ends of the partitions."""
        for number in range(APPLICATION_COUNT):
            successor = Producer(
                {
                    "bootstrap.servers": self._broker.bootstrapServers,
                    "transactional.id": transactionalId(number),
                }
            )
            successor.init_transactions(TIMEOUT_SECONDS)
        self._found = [[] for _ in range(PARTITION_COUNT)]
        reader = self._reader()
        places = [TopicPartition(TARGET, each) for each in range(PARTITION_COUNT)]
        ends = {
            each.partition: reader.get_watermark_offsets(each, TIMEOUT_SECONDS)[1]
            for each in places
        }
        for _ in range(IDLE_POLL_COUNT_MAX + self._recordCount):
            message = reader.poll(POLL_SECONDS)
            if message is not None and not message.error():
                self._found[message.partition()].append(int(message.value() or b""))
            elif all(each.offset >= ends[each.partition] for each in reader.position(places)):
                reader.close()
                return sum(ends.values())
        raise NotExactError("the second topic cannot be read to its end")

    def _check(self) -> None:
        for partition, found in enumerate(self._found):
            expected = list(range(partition, self._recordCount, PARTITION_COUNT))
            if found != expected:
                missing = sorted(set(expected) - set(found))[:10]
                twice = sorted({each for each in found if found.count(each) > 1})[:10]
                raise NotExactError(
                    f"partition {partition}: {len(found)} records of {len(expected)}; missing"
                    f" {missing}, more than once {twice}, in order: {found == sorted(found)}"
                )
