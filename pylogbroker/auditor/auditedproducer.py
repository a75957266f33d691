"""
A producer of 2011's protocol that publishes what it has sent, so that the auditor can tell whether
it arrived (C{docs/audit.md}; section 4 of the 2011 paper).

    properties = {"zk.connect": "zk1:2181", "audit.topic": "pylogbroker-audit"}
    producer = AuditedProducer(reactor, properties)

Its payloads go in envelopes (time, host, payload). A message counts when its C{send} has succeeded;
messages with an unknown outcome are counted separately. L{pylogbroker.auditor.countpublisher}
publishes the counts; for today's protocol there is L{pylogbroker.auditor.auditedkafkaproducer}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.audit.counts import IN_ENVELOPE, IN_PAYLOAD
from pylogbroker.audit.envelope import encodeEnvelope, hostBytes
from pylogbroker.auditor.countpublisher import CountPublisher
from pylogbroker.auditor.producerwrapper import (
    ProducerWrapper,
    checkTopic,
    logWarning,
    splitProperties,
)
from pylogbroker.config.auditsettings import AuditedSettings
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import PylogbrokerError, UnknownOutcomeError
from pylogbroker.producer.completion import SendGroup
from pylogbroker.producer.encoding import ENCODERS, Encoder, defaultEncoder
from pylogbroker.producer.plugins import callableOf, loadPlugin
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.records.compression import crc32

__all__ = ["AuditedProducer", "CountPublisher"]

_MANY = frozenset((list, tuple))


@implementer(IConsumer)
class AuditedProducer(ProducerWrapper):
    """
    A producer with the methods of L{Producer} that counts what it sends. Values are encoded when
    they are given to it.

    @ivar producer: the one that sends.
    @ivar settings: the producer's.
    @ivar counters: the producer's, reports included.
    @ivar counts: the L{CountPublisher}.
    """

    producer: Producer

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
        audit, others = splitProperties(properties)
        auditSettings = AuditedSettings.fromProperties(audit, logWarning)
        self.settings = settings = ProducerSettings.fromProperties(others, logWarning)
        checkTopic(settings.topic, auditSettings)
        if encoder is None:
            encoder = loadPlugin("serializer.class", settings.serializerClass, ENCODERS, "encode")
        self._encoder: Encoder = callableOf("encoder", encoder, "encode")
        self._timeOf = timeOf
        producer = Producer(reactor, settings, encoder=defaultEncoder, **options)
        counts = CountPublisher(
            reactor,
            producer,
            auditSettings,
            random=auditRandom,
            timeSource=IN_ENVELOPE if auditSettings.auditEnvelope else IN_PAYLOAD,
        )
        super().__init__(reactor, producer, counts, auditSettings)
        self._host = hostBytes(counts.host)

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
        count = sum([len(data.values) for data in datas])
        try:
            self._checkOpen()
            packed = [self._pack(*data) for data in datas]
        except PylogbrokerError as error:
            return self._refused(count, error)
        except Exception as error:  # the application's own encoder, or its timeOf
            return self._refused(
                count, PylogbrokerError(f"the encoder or timeOf failed: {error!r}")
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

    def _pack(
        self, topic: str, values: Iterable[Any], key: Any
    ) -> tuple[ProducerData, list[tuple[int, int]]]:
        """The data to send, and the time and checksum of each message."""
        checkTopic(topic, self._auditSettings)
        payloads, stamps = [], []
        for value in values:
            payload = self._encoder(value)
            timeMs = None if self._timeOf is None else self._timeOf(payload)
            if timeMs is None:
                timeMs = self.counts.nowMs()
            payloads.append(
                encodeEnvelope(timeMs, self._host, payload)
                if self._auditSettings.auditEnvelope
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

    def write(self, data: bytes) -> None:
        """As L{Producer.write}."""
        self.sendNoWait(self.producer.ownTopic(), data)
        self.producer.onUpstreamWrite()
