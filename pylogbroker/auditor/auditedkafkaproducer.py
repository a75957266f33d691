"""
A producer of today's protocol that publishes what it has sent, so that the auditor can tell whether
it arrived (C{docs/audit.md}). A module of its own, since a reader of one protocol need not read the
other.

    producer = AuditedKafkaProducer(reactor, {"bootstrap.servers": "log1:9092"})

What must be true:

  - A message counts in the window of the timestamp that its record has. So records need no
  envelope.
  - A message counts when its C{send} has succeeded; with an unknown outcome it is counted apart.
  - Messages of a transaction count when it is committed, and not if it is aborted. If it is unknown
  whether it was committed, all of them are unknown.

A producer with transactions takes messages in transactions only. So it has a second producer for
the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import TracebackType
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.audit.counts import IN_ENVELOPE, IN_RECORD, CountBatch
from pylogbroker.audit.envelope import encodeEnvelope, hostBytes
from pylogbroker.auditor.countpublisher import CountPublisher
from pylogbroker.auditor.producerwrapper import (
    ProducerWrapper,
    checkTopic,
    logWarning,
    splitProperties,
)
from pylogbroker.config.kafka.auditedsettings import KafkaAuditedSettings
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.errors import PylogbrokerError, UnknownOutcomeError
from pylogbroker.producer.completion import FailureWaiter, SendGroup
from pylogbroker.producer.kafka.partitionqueue import RecordMetadata
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.producer.kafka.transactions import Transaction
from pylogbroker.producer.producer import ProducerData
from pylogbroker.records.batchbuilder import GivenHeaders
from pylogbroker.records.compression import crc32
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


@implementer(IConsumer)
class AuditedKafkaProducer(ProducerWrapper):
    """
    A producer with the methods of L{KafkaProducer} that counts what it sends.

    @ivar producer: the one that sends.
    @ivar settings: the producer's.
    @ivar counters: the producer's; reports included, unless it has transactions.
    @ivar counts: the L{CountPublisher}.
    """

    producer: KafkaProducer

    def __init__(
        self,
        reactor: Any,
        properties: Mapping[str, str],
        *,
        timeOf: Callable[[bytes], int | None] | None = None,
        auditRandom: Random | None = None,
        **options: Any,
    ) -> None:
        """
        @param properties: a producer's, and those that begin with C{audit.}
            (L{KafkaAuditedSettings}).
        @param timeOf: the timestamp of a value in milliseconds since the epoch, or L{None} for the
            time of sending. A call's C{timestamp} comes before it.
        @param options: other arguments of L{KafkaProducer}.
        @raise ConfigurationError: as of L{KafkaProducer}; or C{topic} is the topic of the counts.
        """
        audit, others = splitProperties(properties)
        auditSettings = KafkaAuditedSettings.fromProperties(audit, logWarning)
        self.settings = settings = KafkaProducerSettings.fromProperties(others, logWarning)
        checkTopic(settings.topic, auditSettings)
        producer = KafkaProducer(reactor, settings, **options)
        reporting = None
        if settings.transactionalId:
            reporting = KafkaProducer(reactor, settings.replace(transactionalId=None))
        counts = CountPublisher(
            reactor,
            reporting or producer,
            auditSettings,
            random=auditRandom,
            timeSource=IN_ENVELOPE if auditSettings.auditEnvelope else IN_RECORD,
        )
        super().__init__(reactor, producer, counts, auditSettings, reporting)
        self._timeOf = timeOf
        self._host = hostBytes(counts.host) if auditSettings.auditEnvelope else None
        self._batch: CountBatch | None = None  # of the open transaction

    @property
    def fatalError(self) -> PylogbrokerError | None:
        """As L{KafkaProducer.fatalError}."""
        return self.producer.fatalError

    # -- sending

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Deferred[RecordMetadata]:
        """
        As L{KafkaProducer.send}. Fails with L{ConfigurationError} for the topic of the counts. A
        message that is sent counts, also if the Deferred is cancelled, which takes nothing back.
        """
        try:
            value, timestamp = self._pack(topic, value, timestamp)
        except PylogbrokerError as error:
            return self._refused(1, error)
        waiter: Deferred[RecordMetadata] = Deferred()
        self._send(topic, value, key, headers, timestamp, partition, waiter)
        return waiter

    def sendNoWait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | None = None,
        partition: int | None = None,
        waiter: FailureWaiter | None = None,
    ) -> None:
        """
        As L{KafkaProducer.sendNoWait}: the counters, the log and the audit report the outcome.
        """
        sending = self.send(topic, value, key, headers, timestamp, partition)
        sending.addErrback(lambda failure: None if waiter is None else waiter.errback(failure))

    def sendMany(
        self, datas: Iterable[ProducerData], partition: int | None = None
    ) -> Deferred[None]:
        """
        As L{KafkaProducer.sendMany}. When C{timeOf} fails, or a topic is the topic of the counts,
        nothing of the call is sent.
        """
        calls = [(topic, value, key) for topic, values, key in datas for value in values]
        try:
            packed = [self._pack(topic, value, None) for topic, value, _key in calls]
        except PylogbrokerError as error:
            return self._refused(len(calls), error)
        if not calls:
            return succeed(None)
        group = SendGroup(len(calls))
        for (topic, _value, key), (value, timestamp) in zip(calls, packed, strict=True):
            self._send(topic, value, key, (), timestamp, partition, group)
        return group.waiter

    def sendEach(self, datas: Iterable[ProducerData]) -> list[Deferred[RecordMetadata]]:
        """As L{KafkaProducer.sendEach}."""
        return [self.send(topic, value, key) for topic, values, key in datas for value in values]

    def _pack(
        self, topic: str, value: bytes | None, timestamp: int | None
    ) -> tuple[bytes | None, int]:
        """The value to send, and its timestamp."""
        self._checkOpen()
        checkTopic(topic, self._auditSettings)
        if timestamp is None and self._timeOf is not None and value is not None:
            try:
                timestamp = self._timeOf(value)
            except Exception as error:  # the application's own
                raise PylogbrokerError(f"timeOf failed: {error!r}") from error
        if timestamp is None:
            timestamp = self.counts.nowMs()
        if self._host is not None and type(value) is bytes:
            value = encodeEnvelope(timestamp, self._host, value)
        return value, timestamp

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: GivenHeaders,
        timestamp: int,
        partition: int | None,
        waiter: Any,
    ) -> None:
        """@param waiter: a Deferred, or what takes the outcome like one."""
        # The producer refuses what is neither.
        checksum = crc32(value) if isinstance(value, (bytes, bytearray, memoryview)) else 0
        counted = topic, timestamp, checksum, self._batch
        self.producer.send(topic, value, key, headers, timestamp, partition).addCallbacks(
            self._sent, self._notSent, callbackArgs=counted, errbackArgs=counted
        ).addCallbacks(waiter.callback, waiter.errback)

    def _sent(
        self, result: Any, topic: str, timeMs: int, checksum: int, batch: CountBatch | None
    ) -> Any:
        if batch is None:
            self.counts.count(topic, timeMs, checksum=checksum)
        else:
            batch.add(topic, timeMs, checksum)
        return result

    def _notSent(
        self, failure: Failure, topic: str, timeMs: int, _checksum: int, batch: CountBatch | None
    ) -> Failure:
        # A transaction with a message that was not stored is aborted.
        if batch is None and failure.check(UnknownOutcomeError):
            self.counts.count(topic, timeMs, 0, 1)
        return failure

    def partitionsFor(self, topic: str) -> Deferred[list[int]]:
        """As L{KafkaProducer.partitionsFor}."""
        return self.producer.partitionsFor(topic)

    # -- transactions

    def transaction(self) -> AuditedTransaction:
        """As L{KafkaProducer.transaction}: its messages count when it is committed."""
        return AuditedTransaction(self, self.producer.transaction())

    def onBegun(self) -> None:
        """A transaction is open."""
        self._batch = self.counts.newBatch()

    def onEnded(self) -> CountBatch:
        """The transaction takes no more messages. Returns those that it has."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch

    # -- as a consumer of bytes, in Twisted's sense

    def ownTopic(self) -> str:
        """As L{KafkaProducer.ownTopic}."""
        return self.producer.ownTopic()

    def write(self, data: bytes) -> None:
        """As L{KafkaProducer.write}."""
        self.sendNoWait(self.ownTopic(), data)
        self.producer.onUpstreamWrite()


class AuditedTransaction:
    """A L{Transaction}, whose messages count when it is committed."""

    def __init__(self, producer: AuditedKafkaProducer, transaction: Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    async def __aenter__(self) -> AuditedTransaction:
        await self._transaction.__aenter__()
        self._producer.onBegun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        batch, counts = self._producer.onEnded(), self._producer.counts
        try:
            await self._transaction.__aexit__(kind, error, trace)
        except UnknownOutcomeError:
            counts.countBatch(batch, isUnknown=True)
            raise
        if error is None:
            counts.countBatch(batch)

    def sendOffsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        groupMetadata: ConsumerGroupMetadata,
    ) -> Deferred[None]:
        """As L{Transaction.sendOffsets}."""
        return self._transaction.sendOffsets(offsets, groupMetadata)
