"""
Producers that say what they have sent, so that an auditor can tell whether it is there (C{docs/audit.md}; section 4 of the 2011 paper).

    producer = AuditedProducer(reactor, {"zk.connect": "zk1:2181", "audit.topic": "pylogbroker-audit"})

is a producer whose payloads go in envelopes (time, host, payload), and who publishes, in a topic of its own, how many messages of each topic and window of time
were sent. A message counts when its C{send} has succeeded; one whose outcome is not known is counted apart. With C{confirm}, a message that was counted
was taken by a broker; without, it was written to a connection, and that it did not arrive is just what the audit finds out.

Reports are published every so often, and at the end. What was not reported when the process is killed is sent and not counted: the audit sees more than
was sent there, which is no alarm.

L{CountPublisher} is the counting alone. A program at the other end, which loads a warehouse, say, uses it with C{role="seen"} to become a tier of the audit.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random, SystemRandom
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, fail, succeed
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
    TimedOutError,
    UnknownOutcomeError,
    copyForReraise,
)
from pylogbroker.metrics.exposition import Family
from pylogbroker.producer.encoding import ENCODERS, Encoder, defaultEncoder
from pylogbroker.producer.lifecycle import GracefulShutdown
from pylogbroker.producer.plugins import callableOf, loadPlugin
from pylogbroker.producer.producer import Producer, ProducerCounters, ProducerData
from pylogbroker.records.zlibbackend import crc32

KEEP_WINDOW_COUNT = 2
"""How many windows more, after its end, a window is kept open for messages whose sending takes long."""

REPORTING_COUNT_MAX = 1_000
"""Reports on their way; more wait for the next time."""

_MANY = frozenset((list, tuple))


class CountPublisher:
    """
    Counts by topic and window, and publishes the counts.

    @ivar host: this machine's name in the reports.
    @ivar leftOutCount: messages that could not be counted; see L{WindowCounter}.
    """

    _log = Logger()

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
        @param producer: takes the reports; it stays its owner's.
        @param settings: or properties that begin with C{audit.}.
        @param role: L{pylogbroker.audit.counts.SENT} or L{pylogbroker.audit.counts.SEEN}.
        @param random: makes the name of this life of the program; by default the system's.
        @raise ConfigurationError: the settings are wrong.
        """
        if not isinstance(settings, AuditedSettings):
            settings = AuditedSettings.fromProperties(settings, self._warn)
        self.host = settings.auditHost or socket.gethostname()
        self._reactor = reactor
        self._producer = producer
        self._settings = settings
        source = f"{self.host}-{self.nowMs()}-{(random or SystemRandom()).getrandbits(64):016x}"
        self._counter = WindowCounter(
            source, self.host, settings.auditTier, settings.auditWindowMs, role
        )
        self._onTheirWay: dict[tuple[str, int], Deferred[None]] = {}
        self._isFullTold = self._hasEnded = False
        self._ticking = LoopingCall(self.report)
        self._ticking.clock = reactor

    def _warn(self, sentence: str) -> None:
        self._log.warn("{sentence}", sentence=sentence)

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
        So many messages.

        @param timeMs: that of the messages, in milliseconds since the epoch; one that cannot be, which is before it or more than L{FUTURE_MS_MAX} ahead, is
            counted nowhere but in C{leftOutCount}.
        @param count: those that were sent, or seen, for certain.
        @param unknownCount: those that may have been.
        @param checksum: the sum of the CRC-32s of the former's payloads; without it the audit sees how many there are, and not whether they are the same.
        """
        self._counter.add(
            topic, timeMs, count, unknownCount, checksum, self.nowMs() + FUTURE_MS_MAX
        )
        if self._counter.leftOutCount and not self._isFullTold:
            self._isFullTold = True
            self._log.error(
                "Messages are not counted for the audit: {count} topics and windows are open already, or their times cannot be",
                count=len(self._counter),
            )
        if not self._ticking.running and not self._hasEnded:
            self._ticking.start(self._settings.auditIntervalMs / 1000, now=False)

    def report(self) -> None:
        """Publish what has changed. What does not get through is published again the next time."""
        nowMs = self.nowMs()
        for report in self._counter.due(nowMs):
            series = report.topic, report.startMs
            if series in self._onTheirWay or len(self._onTheirWay) >= REPORTING_COUNT_MAX:
                continue
            sending = self._producer.send(self._settings.auditTopic, report.encode())
            done: Deferred[None] = Deferred()
            self._onTheirWay[series] = done
            sending.addCallbacks(
                self._reported, self._notReported, callbackArgs=(report,), errbackArgs=(report,)
            )
            sending.addBoth(self._over, series, done)
        self._counter.forget(nowMs - KEEP_WINDOW_COUNT * self._settings.auditWindowMs)
        if not len(self._counter) and self._ticking.running:
            self._ticking.stop()

    def _reported(self, _result: object, report: CountReport) -> None:
        self._counter.arrived(report)

    def _notReported(self, failure: Failure, report: CountReport) -> None:
        self._log.warn(
            "The count of {topic} was not published, it will be tried again: {reason}",
            topic=report.topic,
            reason=failure.getErrorMessage(),
        )

    def _over(self, _result: object, series: tuple[str, int], done: Deferred[None]) -> None:
        del self._onTheirWay[series]
        done.callback(None)

    def close(self) -> Deferred[None]:
        """
        Publish what is left, once. To be called before the producer is closed. What is counted after that is not published.

        @return: fires when that has come to an end, well or not; does not fail.
        """
        return Deferred.fromCoroutine(self._close())

    def end(self) -> None:
        """
        Publish nothing more. For who could not wait for L{close}, behind the producer's own end: messages whose outcome is not known are told then, and
        nobody is there who would take their counts.
        """
        if self._hasEnded:
            return
        self._hasEnded = True
        if self._ticking.running:
            self._ticking.stop()
        if count := self._counter.dueCount:
            self._log.error(
                "{count} counts could not be published: the audit will see more messages than were reported",
                count=count,
            )

    async def _close(self) -> None:
        if self._ticking.running:
            self._ticking.stop()
        await self._settled()  # what is on its way may be an older count of the same series
        while due := self._counter.dueCount:
            self.report()
            await self._settled()
            if self._counter.dueCount >= due:
                break
        self.end()

    async def _settled(self) -> None:
        if self._onTheirWay:
            waiting = [_after(done) for done in self._onTheirWay.values()]
            self._producer.flush().addErrback(lambda _failure: None)
            await DeferredList(waiting, consumeErrors=True)


def _after(done: Deferred[None]) -> Deferred[None]:
    """One more who waits."""
    waiter: Deferred[None] = Deferred()

    def pass_(result: None) -> None:
        waiter.callback(None)

    done.addCallback(pass_)
    return waiter


@implementer(IConsumer)
class AuditedProducer:
    """
    A L{Producer} that counts what it sends, and can stand wherever one stands. Its payloads are encoded when they are given to it.

    @ivar producer: the one that sends.
    @ivar counts: the L{CountPublisher}.
    """

    _log = Logger()

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
        @param properties: a producer's, and those that begin with C{audit.} (L{pylogbroker.config.auditsettings.AUDITED_ROWS}).
        @param timeOf: the time of a payload, in milliseconds since the epoch, instead of the time of sending; L{None} leaves it at that. An auditor must be
            told the same, unless there are envelopes.
        @param encoder: as of L{Producer}.
        @param options: what else L{Producer} takes.
        @raise ConfigurationError: as of L{Producer}; or the audited topic would be that of the counts.
        """
        audit = {key: value for key, value in properties.items() if key.startswith(PREFIX)}
        others = {key: value for key, value in properties.items() if not key.startswith(PREFIX)}
        self._settings = AuditedSettings.fromProperties(audit, self._warn)
        settings = ProducerSettings.fromProperties(others, self._warn)
        if settings.topic is not None and settings.topic == self._settings.auditTopic:
            raise self._notForMessages()
        if encoder is None:
            encoder = loadPlugin("serializer.class", settings.serializerClass, ENCODERS, "encode")
        self._encoder: Encoder = callableOf("encoder", encoder, "encode")
        self._timeOf = timeOf
        self._reactor = reactor
        self.producer = Producer(reactor, settings, encoder=defaultEncoder, **options)
        self.counts = CountPublisher(reactor, self.producer, self._settings, random=auditRandom)
        self._host = hostBytes(self.counts.host)
        self._refusal: ClosedError | None = None
        self._deadlineMs: float | None = None
        self._finishing: Deferred[None] | None = None
        self._closing = GracefulShutdown(
            reactor,
            settings.closeTimeoutMs,
            self._beginToClose,
            self._close,
            self._abort,
            lambda: str(self.counters),
        )

    def _warn(self, sentence: str) -> None:
        self._log.warn("{sentence}", sentence=sentence)

    def __repr__(self) -> str:
        return f"<AuditedProducer over {self.producer!r}>"

    @property
    def settings(self) -> ProducerSettings:
        """The producer's."""
        return self.producer.settings

    @property
    def counters(self) -> ProducerCounters:
        """The producer's, reports included."""
        return self.producer.counters

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
        As L{Producer.sendMany}. When a value cannot be encoded, or a topic is that of the counts, nothing of the call is sent. Each message counts for itself,
        also where only a part of them gets through, and also when the Deferred is cancelled or times out, which takes back nothing that is on its way.
        """
        datas = [ProducerData(*data) for data in datas]
        datas = [
            data._replace(values=tuple(data.values)) for data in datas
        ]  # an iterator can be gone over once, and who is refused is counted, too
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
        sendings = self.producer.sendEach([data for data, _times in packed])
        for sending, counted in zip(
            sendings,
            [(data.topic, *each) for data, stamps in packed for each in stamps],
            strict=True,
        ):
            sending.addCallbacks(
                self._sent, self._notSent, callbackArgs=counted, errbackArgs=counted
            )
        return _apart(_all(sendings))

    def sendNoWait(self, topic: str, value: Any, key: Any = None) -> None:
        """As L{Producer.sendNoWait}: nobody is told but the counters, the log, and the audit."""
        self.send(topic, value, key).addErrback(lambda _failure: None)

    def _refused(self, datas: Sequence[ProducerData], error: PylogbrokerError) -> Deferred[None]:
        """The producer does not see them, so they are counted and logged here, as it would."""
        count = sum([len(data.values) for data in datas])
        self.counters.acceptedCount += count
        self.counters.failedCount += count
        self._log.error("{count} messages were not sent: {error}", count=count, error=error)
        return fail(error)

    def _notForMessages(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._settings.auditTopic} is the topic of the counts (audit.topic)"
        )

    def _pack(
        self, topic: str, values: Iterable[Any], key: Any
    ) -> tuple[ProducerData, list[tuple[int, int]]]:
        """What is sent in place of an application's data, and the time and checksum of each message."""
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
        Send what has been accepted, publish the last counts, close everything. No call is taken any more.

        @return: as of L{Producer.close}.
        """
        if self._deadlineMs is None and timeoutMs is not None:
            self._deadlineMs = self.counts.nowMs() + timeoutMs
        return self._closing.close(timeoutMs)

    def _beginToClose(self) -> None:
        self._refusal = ClosedError("the producer was closed")
        if self._deadlineMs is None:
            self._deadlineMs = self.counts.nowMs() + self.settings.closeTimeoutMs

    async def _close(self) -> None:
        self._finishing = Deferred.fromCoroutine(self._finish())
        await self._finishing.addErrback(lambda _cancelled: None)
        assert self._deadlineMs is not None  # set when it began
        try:
            await self.producer.close(max(self._deadlineMs - self.counts.nowMs(), 1))
        finally:
            self.counts.end()

    async def _finish(self) -> None:
        await self.producer.flush()
        await self.counts.close()

    def _abort(self, _reason: TimedOutError) -> None:
        """The time is over, for what comes before the producer's own end; that one keeps the same time."""
        assert self._finishing is not None  # there was time for that
        self._finishing.cancel()


def _apart(outcome: Deferred[None]) -> Deferred[None]:
    """The same outcome for somebody who may cancel it. Nothing else is cancelled by that: what is on its way still counts when it is there."""
    told: Deferred[None] = Deferred()  # without a canceller it is told in vain after that
    outcome.addCallbacks(told.callback, told.errback)
    return told


def _all(sendings: list[Deferred[None]]) -> Deferred[None]:
    """Fires when all have; fails with the worst: unknown before failed."""
    if not sendings:
        return succeed(None)
    if len(sendings) == 1:
        return sendings[0]

    def judge(results: list[tuple[bool, Any]]) -> None:
        failures = [result for isGood, result in results if not isGood]
        for failure in failures:
            if failure.check(UnknownOutcomeError):
                failure.raiseException()
        if failures:
            failures[0].raiseException()

    return DeferredList(sendings, consumeErrors=True).addCallback(judge)
