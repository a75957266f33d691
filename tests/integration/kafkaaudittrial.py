"""
The audit of a cluster of today whose broker is killed, again and again, while audited producers
work: one with transactions, of which some are aborted, and one without. What must hold:

  - No pass of an auditor that runs beside them reports a hole.
  - In the end the audit says what the applications know (sent, unknown) and what another client
  reads (seen), in each window.
  - In a copy with planted losses and duplicates, the audit finds those, and no others.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from pylogbroker.audit.comparison import Comparison
from pylogbroker.auditor.auditedkafkaproducer import AuditedKafkaProducer
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.errors import PylogbrokerError, UnknownOutcomeError
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.testing.localbroker import LocalBroker

reactor: Any = _reactor

PARTITION_COUNT = 3
WINDOW_MS = 500
GRACE_MS = 10_000
"""Beside the work: a transaction that its producer could not end holds back records until then."""

FINAL_GRACE_MS = 1_000
TOPICS = ("clicks", "views")
PROPERTIES = {
    "num.partitions": str(PARTITION_COUNT),
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
TIMEOUTS = {
    "delivery.timeout.ms": "2000",
    "request.timeout.ms": "1000",
    "max.block.ms": "2000",
    "retry.backoff.ms": "20",
    "transaction.timeout.ms": "5000",
}
UP_SECONDS = (0.3, 2.0)
DOWN_SECONDS = (0.0, 1.5)
SENT_COUNT = 40
"""Messages between two pauses, or in a transaction."""

_TIMEOUT_SECONDS = 60

Cell = tuple[str, int]


class AuditError(AssertionError):
    """The audit does not say what is there."""


class Figures(NamedTuple):
    """What a trial was made of."""

    killCount: int = 0
    passCount: int = 0
    sentCount: int = 0
    unknownCount: int = 0
    failedCount: int = 0
    committedCount: int = 0
    abortedCount: int = 0
    undecidedCount: int = 0
    windowCount: int = 0
    lostCount: int = 0
    doubledCount: int = 0


class KafkaAuditTrial:
    """
    One trial.

    @ivar figures: what it was made of so far.
    """

    def __init__(self, seed: int, seconds: float, windowCount: int = 5) -> None:
        """
        @param seed: of the moments, the transactions and the losses.
        @param seconds: how long producers work and the broker is killed, at least.
        @param windowCount: windows into which losses are planted, and as many with duplicates.
        """
        self.figures = Figures()
        self._random = Random(seed)
        self._seconds = seconds
        self._windowCount = windowCount
        self._sent: Counter[Cell] = Counter()
        self._unknown: Counter[Cell] = Counter()
        self._isWorking = True
        self._producers: list[AuditedKafkaProducer] = []

    def _add(self, **counts: int) -> None:
        self.figures = self.figures._replace(
            **{name: getattr(self.figures, name) + count for name, count in counts.items()}
        )

    async def run(self) -> None:
        """@raise AuditError: the audit says what is not so."""
        with BackgroundBroker(PROPERTIES) as source:
            self._servers = source.bootstrapServers
            works = [
                Deferred.fromCoroutine(work)
                for work in (self._send(), self._transact(), self._kill(source), self._watch())
            ]
            begun = reactor.seconds()
            while reactor.seconds() < begun + self._seconds or not self._isWorthAuditing():
                await deferLater(reactor, 0.1)
            self._isWorking = False
            await gatherAll(works)
            async with self._producer(transactional_id="writer").transaction():
                pass  # ends what an earlier producer could not
            for producer in self._producers:
                await producer.close()  # while the broker is there: it publishes the last counts
            await self._compareWithBooks()
            target = LocalBroker(reactor, PROPERTIES)
            await target.start()
            try:
                await self._plant(target.bootstrapServers)
            finally:
                await target.stop()

    def _isWorthAuditing(self) -> bool:
        figures = self.figures
        counts = figures.killCount, figures.passCount, figures.committedCount
        return all(counts) and len(self._certain()) >= 2 * self._windowCount

    def _certain(self) -> list[Cell]:
        """The windows without messages of an unknown outcome."""
        return sorted(cell for cell in self._sent if not self._unknown[cell])

    # -- the work

    def _producer(self, **properties: str) -> AuditedKafkaProducer:
        producer = AuditedKafkaProducer(
            reactor,
            {
                "bootstrap.servers": self._servers,
                "audit.window.ms": str(WINDOW_MS),
                "audit.interval.ms": "200",
                **TIMEOUTS,
                **{key.replace("_", "."): value for key, value in properties.items()},
            },
            isLoggingFailures=False,
        )
        self._producers.append(producer)
        return producer

    async def _send(self) -> None:
        """Messages without transactions; each is in the books with its outcome."""
        producer = self._producer()
        number, waiting = 0, []
        while self._isWorking:
            if producer.fatalError is not None:
                producer = self._producer()
            for _message in range(SENT_COUNT):
                cell, timestamp = self._now(number)
                sending: Deferred[Any] = producer.send(
                    cell[0], b"plain %d" % number, b"%d" % (number % 50), timestamp=timestamp
                )
                waiting.append(
                    sending.addCallbacks(
                        self._wasSent, self._wasNotSent, callbackArgs=(cell,), errbackArgs=(cell,)
                    )
                )
                number += 1
            await producer.whenReady()
            await deferLater(reactor, 0.02)
        await DeferredList(waiting)

    def _now(self, number: int) -> tuple[Cell, int]:
        timestamp = int(reactor.seconds() * 1000)
        return (TOPICS[number % 2], timestamp // WINDOW_MS * WINDOW_MS), timestamp

    def _wasSent(self, _result: object, cell: Cell) -> None:
        self._sent[cell] += 1
        self._add(sentCount=1)

    def _wasNotSent(self, failure: Any, cell: Cell) -> None:
        failure.trap(PylogbrokerError)
        if failure.check(UnknownOutcomeError):
            self._unknown[cell] += 1
            self._add(unknownCount=1)
        else:
            self._add(failedCount=1)

    async def _transact(self) -> None:
        """Transactions; their messages are in the books when they have ended."""
        producer = self._producer(transactional_id="writer")
        number = 0
        while self._isWorking:
            cells: Counter[Cell] = Counter()
            try:
                async with producer.transaction():
                    for _message in range(SENT_COUNT):
                        cell, timestamp = self._now(number)
                        cells[cell] += 1
                        producer.sendNoWait(cell[0], b"transacted %d" % number, timestamp=timestamp)
                        number += 1
                        if self._random.random() < 0.1:
                            await deferLater(reactor, 0.01)
                    if self._random.random() < 0.25:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                self._add(abortedCount=1)
            except UnknownOutcomeError:
                self._unknown.update(cells)
                self._add(undecidedCount=1, unknownCount=sum(cells.values()))
            except PylogbrokerError:
                self._add(abortedCount=1)
                await deferLater(reactor, 0.05)
            else:
                self._sent.update(cells)
                self._add(committedCount=1, sentCount=sum(cells.values()))
            if producer.fatalError is not None:
                producer = self._producer(transactional_id="writer")

    async def _kill(self, broker: BackgroundBroker) -> None:
        while self._isWorking:
            await deferLater(reactor, self._random.uniform(*UP_SECONDS))
            broker.kill()
            self._add(killCount=1)
            await deferLater(reactor, self._random.uniform(*DOWN_SECONDS))
            await deferToThread(broker.start)

    # -- the audit

    def _auditor(self, graceMs: int, **tiers: str) -> Auditor:
        text = "|".join(f"{name}=kafka:{servers}" for name, servers in tiers.items())
        return Auditor(
            reactor,
            AuditorSettings.fromProperties(
                {
                    "tiers": text,
                    "audit.window.ms": str(WINDOW_MS),
                    "grace.ms": str(graceMs),
                    "timeout.ms": "3000",
                }
            ),
        )

    async def _watch(self) -> None:
        """Passes beside the work: none reports a hole."""
        auditor = self._auditor(GRACE_MS, source=self._servers)
        try:
            while self._isWorking:
                comparison = await auditor.audit()
                self._add(passCount=1)
                if comparison.missing:
                    raise AuditError(f"a false alarm: {comparison.missing[:3]}")
                await deferLater(reactor, 0.1)
        finally:
            await auditor.close()

    async def _finalAudit(self, **tiers: str) -> Comparison:
        auditor = self._auditor(FINAL_GRACE_MS, **tiers)
        try:
            while True:
                comparison = await auditor.audit()
                if comparison.isCertain and not any(
                    line.status == "open" for line in comparison.lines
                ):
                    return comparison
                await deferLater(reactor, 0.2)
        finally:
            await auditor.close()

    async def _compareWithBooks(self) -> None:
        comparison = await self._finalAudit(source=self._servers)
        records = await deferToThread(readAll, self._servers)
        seen = Counter(cell for cell, _key, _value, _timestamp in records)
        self._add(windowCount=len(comparison.lines))
        if comparison.missing or comparison.more or comparison.notes:
            raise AuditError(f"{comparison.missing[:3]}, {comparison.more[:3]}, {comparison.notes}")
        for name, found, book in (
            ("sent", {_cell(line): line.expectedCount for line in comparison.lines}, self._sent),
            (
                "unknown",
                {_cell(line): line.unknownCount for line in comparison.lines},
                self._unknown,
            ),
            ("seen", {_cell(line): line.seenCount for line in comparison.lines}, seen),
        ):
            if Counter(found) != book:
                raise AuditError(
                    f"{name}: {Counter(found) - book} more, {book - Counter(found)} less"
                )

    # -- planted losses

    async def _plant(self, servers: str) -> None:
        records = await deferToThread(readAll, self._servers)
        certain = self._certain()
        count = min(self._windowCount, len(certain) // 2)
        chosen = self._random.sample(certain, 2 * count)
        lost: dict[Cell, int] = {}
        for cell in chosen[:count]:
            lost[cell] = self._random.randint(1, max(1, self._sent[cell] // 2))
        doubled = {cell: self._random.randint(1, 5) for cell in chosen[count:]}
        producer = KafkaProducer(reactor, {"bootstrap.servers": servers})
        left, more = Counter(lost), Counter(doubled)
        for cell, key, value, timestamp in records:
            if left[cell] > 0:
                left[cell] -= 1
                continue
            times = 2 if more[cell] > 0 else 1
            more[cell] -= times - 1
            for _time in range(times):
                await producer.whenReady()
                producer.sendNoWait(cell[0], value, key, timestamp=timestamp)
        await producer.close()
        doubled = {cell: each - max(0, more[cell]) for cell, each in doubled.items()}
        comparison = await self._finalAudit(source=self._servers, copy=servers)
        found = {(*_cell(line), line.tier): line.missingCount for line in comparison.missing}
        surplus = {(*_cell(line), line.tier): line.moreCount for line in comparison.more}
        if found != {(*cell, "copy"): each for cell, each in lost.items()}:
            raise AuditError(f"planted losses: {lost}, found: {found}")
        if surplus != {(*cell, "copy"): each for cell, each in doubled.items() if each}:
            raise AuditError(f"planted duplicates: {doubled}, found: {surplus}")
        self._add(lostCount=sum(lost.values()), doubledCount=sum(doubled.values()))


def _cell(line: Any) -> Cell:
    return line.topic, line.startMs


def readAll(servers: str) -> list[tuple[Cell, bytes | None, bytes | None, int]]:
    """Cell, key, value and timestamp of all committed messages, by librdkafka. Blocks."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    left = {(topic, number) for topic in TOPICS for number in range(PARTITION_COUNT)}
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
    found = []
    while left:
        message = consumer.poll(_TIMEOUT_SECONDS)
        if message is None:
            raise AuditError(f"no end of {left} within {_TIMEOUT_SECONDS} s")
        topic, number = message.topic(), message.partition()
        assert topic is not None and number is not None
        if message.error() is not None:
            left.discard((topic, number))
            continue
        timestamp = message.timestamp()[1]
        cell = topic, timestamp // WINDOW_MS * WINDOW_MS
        found.append((cell, message.key(), message.value(), timestamp))
    consumer.close()
    return found
