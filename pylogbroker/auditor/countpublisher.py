"""
The publisher of counts: what the audited producers of both protocols, and programs that load a
warehouse, count by (C{docs/audit.md}; section 4 of the 2011 paper).

    counts = CountPublisher(reactor, producer, {"audit.tier": "warehouse"}, role="seen")
    counts.count("clicks", timeMs, 17)

It publishes in a topic of its own how many messages of each topic and window of time were sent, or
seen. Reports are published at intervals and at the end. If the process is killed, the audit sees
more messages than were reported, which is no alarm.

The module stands in this room because C{audit} knows no Twisted, and the producers know no audit.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from random import Random, SystemRandom
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pylogbroker.audit.counts import FUTURE_MS_MAX, SENT, CountBatch, CountReport, WindowCounter
from pylogbroker.config.auditsettings import AuditedSettings
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import wallMs

KEEP_WINDOW_COUNT = 2
"""Windows after the end of a window in which messages that take long to send still count for it."""

REPORTING_COUNT_MAX = 1_000
"""Reports in flight; more wait for the next interval."""

log = Logger()


class IReportProducer(Protocol):
    """What publishes reports."""

    def send(self, topic: str, value: Any, key: Any = None) -> Deferred[Any]:
        """Publish a message. Fires when it is sent."""

    def flush(self) -> Deferred[None]:
        """Send collected messages at once."""


class CountPublisher:
    """
    Counts messages by topic and window, and publishes the counts.

    @ivar host: this machine's name in the reports.
    @ivar leftOutCount: messages that could not be counted; see L{WindowCounter}.
    """

    def __init__(
        self,
        reactor: Any,
        producer: IReportProducer,
        settings: AuditedSettings | Mapping[str, str],
        *,
        role: str = SENT,
        random: Random | None = None,
        timeSource: str = "",
    ) -> None:
        """
        @param producer: publishes the reports: a
            L{Producer<pylogbroker.producer.producer.Producer>}, or a
            L{KafkaProducer<pylogbroker.producer.kafka.producer.KafkaProducer>} without
            transactions. Its owner closes it.
        @param settings: or properties that begin with C{audit.}.
        @param role: L{pylogbroker.audit.counts.SENT} or L{pylogbroker.audit.counts.SEEN}.
        @param random: names this run of the program; by default the system's.
        @param timeSource: as of L{CountReport}, for sent messages.
        @raise ConfigurationError: the settings are wrong.
        """
        if not isinstance(settings, AuditedSettings):
            settings = AuditedSettings.fromProperties(settings, _warn)
        self.host = settings.auditHost or socket.gethostname()
        self._reactor = reactor
        self._producer = producer
        self._settings = settings
        source = f"{self.host}-{self.nowMs()}-{(random or SystemRandom()).getrandbits(64):016x}"
        self._counter = WindowCounter(
            source,
            self.host,
            settings.auditTier,
            settings.auditWindowMs,
            role,
            timeSource=timeSource,
        )
        self._inFlight: set[tuple[str, int]] = set()
        self._idleWaiters: Waiters[None] = Waiters()
        self._isFullLogged = self._hasEnded = False
        self._ticking = LoopingCall(self.report)
        self._ticking.clock = reactor

    def nowMs(self) -> int:
        """The time, in milliseconds since the epoch."""
        return wallMs(self._reactor)

    @property
    def leftOutCount(self) -> int:
        """Messages that could not be counted."""
        return self._counter.leftOutCount

    def count(
        self,
        topic: str,
        timeMs: int,
        count: int = 1,
        unknownCount: int = 0,
        checksum: int | None = None,
    ) -> None:
        """
        Count messages.

        @param timeMs: their time, in milliseconds since the epoch. Impossible times (before the
            epoch, more than L{FUTURE_MS_MAX} ahead) are counted in C{leftOutCount} only.
        @param count: messages that were sent, or seen, for certain.
        @param unknownCount: messages that may have been.
        @param checksum: the sum of the CRC-32s of the payloads of C{count} messages. Without it the
            audit compares numbers only, and not whether the messages are the same.
        """
        self._counter.add(
            topic, timeMs, count, unknownCount, checksum, self.nowMs() + FUTURE_MS_MAX
        )
        self._onCounted()

    def newBatch(self) -> CountBatch:
        """For messages that count together or not at all."""
        return CountBatch(self._settings.auditWindowMs)

    def countBatch(self, batch: CountBatch, isUnknown: bool = False) -> None:
        """
        Count the messages of a batch.

        @param isUnknown: whether they may have been sent, and may not.
        """
        for topic, startMs, count, checksum in batch:
            if isUnknown:
                self.count(topic, startMs, 0, count)
            else:
                self.count(topic, startMs, count, checksum=checksum)
        self._counter.leftOutCount += batch.leftOutCount
        self._onCounted()

    def _onCounted(self) -> None:
        if self._counter.leftOutCount and not self._isFullLogged:
            self._isFullLogged = True
            log.error(
                "Messages are not counted for the audit: {count} topics and windows are open "
                "already, or the times of the messages are impossible",
                count=len(self._counter),
            )
        if not self._ticking.running and not self._hasEnded:
            self._ticking.start(self._settings.auditIntervalMs / 1000, now=False)

    def report(self) -> None:
        """Publish the counts that have changed. A count that is not published is tried again."""
        nowMs = self.nowMs()
        for report in self._counter.due(nowMs):
            series = report.topic, report.startMs
            if series not in self._inFlight and len(self._inFlight) < REPORTING_COUNT_MAX:
                self._inFlight.add(series)
                Deferred.fromCoroutine(self._publish(report, series))
        self._counter.forget(nowMs - KEEP_WINDOW_COUNT * self._settings.auditWindowMs)
        if not len(self._counter) and self._ticking.running:
            self._ticking.stop()

    async def _publish(self, report: CountReport, series: tuple[str, int]) -> None:
        try:
            await self._producer.send(self._settings.auditTopic, report.encode())
            self._counter.arrived(report)
        except Exception as error:
            log.warn(
                "The count of {topic} was not published, it will be tried again: {reason}",
                topic=report.topic,
                reason=error,
            )
        self._inFlight.remove(series)
        if not self._inFlight:
            self._idleWaiters.fire(None)

    def close(self) -> Deferred[None]:
        """
        Publish the last counts, before the producer is closed. Messages that are counted later are
        not published.

        @return: fires when the reports have an outcome, good or bad; does not fail.
        """
        return Deferred.fromCoroutine(self._close())

    def end(self) -> None:
        """
        Publish nothing more. A program that could not wait for L{close} calls this after the
        producer has ended, which gives messages an unknown outcome that no report can contain any
        more.
        """
        if self._hasEnded:
            return
        self._hasEnded = True
        if self._ticking.running:
            self._ticking.stop()
        if count := self._counter.dueCount:
            log.error(
                "{count} counts could not be published: the audit will see more messages than "
                "were reported",
                count=count,
            )

    async def _close(self) -> None:
        if self._ticking.running:
            self._ticking.stop()
        await self._whenIdle()  # a report in flight may be an older count of the same series
        while due := self._counter.dueCount:
            self.report()
            await self._whenIdle()
            if self._counter.dueCount >= due:
                break
        self.end()

    async def _whenIdle(self) -> None:
        if self._inFlight:
            waiting = self._idleWaiters.wait()
            self._producer.flush().addErrback(lambda _failure: None)
            await waiting


def _warn(sentence: str) -> None:
    log.warn("{sentence}", sentence=sentence)
