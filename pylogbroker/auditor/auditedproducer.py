"""
A producer that publishes what it has sent, so that the auditor can tell whether it arrived
(C{docs/audit.md}; section 4 of the 2011 paper).

    properties = {"zk.connect": "zk1:2181", "audit.topic": "pylogbroker-audit"}
    producer = AuditedProducer(reactor, properties)

Its payloads go in envelopes (time, host, payload). It publishes in a topic of its own how many
messages of each topic and window of time were sent. A message counts when its C{send} has
succeeded; messages with an unknown outcome are counted separately. Reports are published at
intervals and at the end. If the process is killed, the audit sees more messages than were reported,
which is no alarm.

L{CountPublisher} is the counting alone. With C{role="seen"}, a program at the other end, which
loads a lake for example, becomes a tier of the audit.

The module stands in this room because C{audit} knows no Twisted, and the producer knows no audit.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random, SystemRandom
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IConsumer
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.audit.counts import FUTURE_MS_MAX, SENT, CountReport, WindowCounter
from pylogbroker.audit.envelope import encodeEnvelope, hostBytes
from pylogbroker.config.auditsettings import PREFIX, AuditedSettings
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
    UnknownOutcomeError,
    copyForReraise,
)
from pylogbroker.metrics.exposition import Family
from pylogbroker.net.deferreds import Waiters
from pylogbroker.producer.completion import SendGroup
from pylogbroker.producer.encoding import ENCODERS, Encoder, defaultEncoder
from pylogbroker.producer.lifecycle import GracefulShutdown
from pylogbroker.producer.plugins import callableOf, loadPlugin
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.records.compression import crc32

KEEP_WINDOW_COUNT = 2
"""Windows after the end of a window in which messages that take long to send still count for it."""

REPORTING_COUNT_MAX = 1_000
"""Reports in flight; more wait for the next interval."""

_MANY = frozenset((list, tuple))

log = Logger()


class CountPublisher:
    """
    Counts messages by topic and window, and publishes the counts.

    @ivar host: this machine's name in the reports.
    @ivar leftOutCount: messages that could not be counted; see L{WindowCounter}.
    """

    def __init__(
        self,
        reactor: Any,
        producer: Producer,
        settings: AuditedSettings | Mapping[str, str],
        *,
        role: str = SENT,
        random: Random | None = None,
    ) -> None:
        """
        @param producer: publishes the reports; its owner closes it.
        @param settings: or properties that begin with C{audit.}.
        @param role: L{pylogbroker.audit.counts.SENT} or L{pylogbroker.audit.counts.SEEN}.
        @param random: names this run of the program; by default the system's.
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
            source, self.host, settings.auditTier, settings.auditWindowMs, role
        )
        self._inFlight: set[tuple[str, int]] = set()
        self._idleWaiters: Waiters[None] = Waiters()
        self._isFullLogged = self._hasEnded = False
        self._ticking = LoopingCall(self.report)
        self._ticking.clock = reactor

    def nowMs(self) -> int:
        """The time, in milliseconds since the epoch."""
        return int(self._reactor.seconds() * 1000)

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


@implementer(IConsumer)
class AuditedProducer:
    """
    A producer with the methods of L{Producer} that counts what it sends. Values are encoded when
    they are given to it.

    @ivar producer: the one that sends.
    @ivar settings: the producer's.
    @ivar counters: the producer's, reports included.
    @ivar counts: the L{CountPublisher}.
    """

    def __init__(
        self,
        reactor: Any,
        properties: Mapping[str, str],
        *,
        timeOf: Callable[[bytes], int | None] | None = None,
        encoder: Encoder | Any = None,
        auditRandom: Random | None = None,
        **options: Any,
    ) -> None:
        """
        @param properties: a producer's, and those that begin with C{audit.}
            (L{pylogbroker.config.auditsettings.AuditedSettings}).
        @param timeOf: the time of a payload in milliseconds since the epoch, or L{None} for the
            time of sending. Without envelopes, the auditor must be configured alike.
        @param encoder: as of L{Producer}.
        @param options: other arguments of L{Producer}.
        @raise ConfigurationError: as of L{Producer}; or C{topic} is the topic of the counts.
        """
        audit = {key: value for key, value in properties.items() if key.startswith(PREFIX)}
        others = {key: value for key, value in properties.items() if not key.startswith(PREFIX)}
        self._settings = AuditedSettings.fromProperties(audit, _warn)
        self.settings = settings = ProducerSettings.fromProperties(others, _warn)
        if settings.topic is not None and settings.topic == self._settings.auditTopic:
            raise self._notForMessages()
        if encoder is None:
            encoder = loadPlugin("serializer.class", settings.serializerClass, ENCODERS, "encode")
        self._encoder: Encoder = callableOf("encoder", encoder, "encode")
        self._timeOf = timeOf
        self._reactor = reactor
        self.producer = Producer(reactor, settings, encoder=defaultEncoder, **options)
        self.counters = self.producer.counters
        self.counts = CountPublisher(reactor, self.producer, self._settings, random=auditRandom)
        self._host = hostBytes(self.counts.host)
        self._refusal: ClosedError | None = None
        self._closing = GracefulShutdown(
            reactor,
            settings.closeTimeoutMs,
            self._beginToClose,
            self._close,
            lambda _reason: None,  # what precedes the producer's own end is awaited by the closing
            lambda: str(self.counters),
        )

    def __repr__(self) -> str:
        return f"<AuditedProducer over {self.producer!r}>"

    def metricFamilies(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """As L{Producer.metricFamilies}, reports included."""
        return self.producer.metricFamilies(labels)

    def start(self) -> Deferred[AuditedProducer]:
        """As L{Producer.start}."""
        return self.producer.start().addCallback(lambda _producer: self)

    # -- sending

    def send(self, topic: str, value: Any, key: Any = None) -> Deferred[None]:
        """
        As L{Producer.send}. Fails with L{ConfigurationError} for the topic of the counts.
        """
        return self.sendMany(
            (ProducerData(topic, value if type(value) in _MANY else (value,), key),)
        )

    def sendMany(self, datas: Iterable[ProducerData]) -> Deferred[None]:
        """
        As L{Producer.sendMany}. When a value cannot be encoded, or a topic is the topic of the
        counts, nothing of the call is sent. Each message that is sent counts, even if others of the
        call fail, or the Deferred is cancelled, which takes nothing back.
        """
        # iterators can be read once, and refused messages are counted, too
        datas = [ProducerData(topic, tuple(values), key) for topic, values, key in datas]
        if self._refusal is not None:
            return self._refused(datas, copyForReraise(self._refusal))
        try:
            packed = [self._pack(*data) for data in datas]
        except PylogbrokerError as error:
            return self._refused(datas, error)
        except Exception as error:  # the application's own encoder, or its timeOf
            return self._refused(
                datas, PylogbrokerError(f"the encoder or timeOf failed: {error!r}")
            )
        sendings = self.producer.sendEach([data for data, _stamps in packed])
        stamped = [(data.topic, *each) for data, stamps in packed for each in stamps]
        group = SendGroup(len(sendings))
        for sending, counted in zip(sendings, stamped, strict=True):
            sending.addCallbacks(
                self._sent, self._notSent, callbackArgs=counted, errbackArgs=counted
            ).addCallbacks(group.callback, group.errback)
        return group.waiter if sendings else succeed(None)

    def sendNoWait(self, topic: str, value: Any, key: Any = None) -> None:
        """As L{Producer.sendNoWait}: the counters, the log and the audit report the outcome."""
        self.send(topic, value, key).addErrback(lambda _failure: None)

    def _refused(self, datas: Sequence[ProducerData], error: PylogbrokerError) -> Deferred[None]:
        """Count and log messages that the producer does not see, as it would."""
        count = sum([len(data.values) for data in datas])
        self.counters.acceptedCount += count
        self.counters.failedCount += count
        log.error("{count} messages were not sent: {error}", count=count, error=error)
        return fail(error)

    def _notForMessages(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._settings.auditTopic} is the topic of the counts (audit.topic)"
        )

    def _pack(
        self, topic: str, values: Iterable[Any], key: Any
    ) -> tuple[ProducerData, list[tuple[int, int]]]:
        """The data to send, and the time and checksum of each message."""
        if topic == self._settings.auditTopic:
            raise self._notForMessages()
        payloads, stamps = [], []
        for value in values:
            payload = self._encoder(value)
            timeMs = None if self._timeOf is None else self._timeOf(payload)
            if timeMs is None:
                timeMs = self.counts.nowMs()
            payloads.append(
                encodeEnvelope(timeMs, self._host, payload)
                if self._settings.auditEnvelope
                else payload
            )
            stamps.append((timeMs, crc32(payloads[-1])))
        return ProducerData(topic, payloads, key), stamps

    def _sent(self, _result: object, topic: str, timeMs: int, checksum: int) -> None:
        self.counts.count(topic, timeMs, checksum=checksum)

    def _notSent(self, failure: Failure, topic: str, timeMs: int, _checksum: int) -> Failure:
        if failure.check(UnknownOutcomeError):
            self.counts.count(topic, timeMs, 0, 1)
        return failure

    def whenReady(self) -> Deferred[None]:
        """As L{Producer.whenReady}."""
        return self.producer.whenReady()

    def flush(self) -> Deferred[None]:
        """As L{Producer.flush}."""
        return self.producer.flush()

    # -- as a consumer of bytes, in Twisted's sense

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """As L{Producer.registerProducer}."""
        self.producer.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """As L{Producer.unregisterProducer}."""
        self.producer.unregisterProducer()

    def write(self, data: bytes) -> None:
        """As L{Producer.write}."""
        self.sendNoWait(self.producer.ownTopic(), data)
        self.producer.onUpstreamWrite()

    # -- the end

    def closeBeforeStop(self) -> None:
        """As L{Producer.closeBeforeStop}."""
        self._closing.beforeStop()

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        Send what was accepted, publish the last counts, close everything. No call is accepted any
        more.

        @return: as of L{Producer.close}.
        """
        return self._closing.close(timeoutMs)

    def _beginToClose(self) -> None:
        self._refusal = ClosedError("the producer was closed")

    async def _close(self) -> None:
        deadlineMs = self.counts.nowMs() + self._closing.timeoutMs
        await self._closing.awaitOrAbort(Deferred.fromCoroutine(self._finish()))
        try:
            await self.producer.close(max(deadlineMs - self.counts.nowMs(), 1))
        finally:
            self.counts.end()

    async def _finish(self) -> None:
        await self.producer.flush()
        await self.counts.close()


def _warn(sentence: str) -> None:
    log.warn("{sentence}", sentence=sentence)
