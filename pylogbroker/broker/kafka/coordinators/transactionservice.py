"""
L{TransactionService}: drives the coordinator of transactions
(L{pylogbroker.coordinator.transactions.transactioncoordinator}), whose topic is
C{__transaction_state}, and writes the end markers that it asks for.

B{Markers} are appended to the partitions of this broker, as clients' batches are, and acknowledged
as C{acks=all} is. A marker in C{__consumer_offsets} goes through the group coordinator, which then
counts the offsets that were committed in the transaction.

B{Produce} asks L{TransactionService.verify} when a batch is appended: a batch
that came behind the end marker of its transaction would begin one that never ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.kafka.coordinators.coordinatorlog import (
    Appender,
    Loaded,
    LoadedRecord,
    encodeMarker,
)
from pylogbroker.broker.kafka.coordinators.coordinatorservice import CoordinatorService
from pylogbroker.broker.kafka.coordinators.groupservice import GroupService
from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicManager,
    batchLog,
)
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.coordinator.transactions.transactioncoordinator import (
    EPOCH_BUMP_VERSION,
    TransactionCoordinator,
    TransactionMarkers,
    TransactionSettings,
)
from pylogbroker.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    PylogbrokerError,
)
from pylogbroker.interfaces import EndMarker
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.types import TopicPartition

TRANSACTIONS_TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}
"""The settings with which Kafka creates the topic."""

log = Logger()


def transactionSettings(settings: BrokerSettings, partitionCount: int) -> TransactionSettings:
    """The coordinator's settings."""
    return TransactionSettings(
        partitionCount=partitionCount,
        timeoutMaxMs=settings.transactionMaxTimeoutMs,
        idExpirationMs=settings.transactionalIdExpirationMs,
        timeoutCheckIntervalMs=settings.transactionAbortTimedOutTransactionCleanupIntervalMs,
        expiryCheckIntervalMs=settings.transactionRemoveExpiredTransactionCleanupIntervalMs,
    )


class TransactionService(CoordinatorService):
    """
    The transactions of a broker; the module states the rules.

    @ivar coordinator: call C{schedule} behind each of its methods that changes something.
    """

    topicName = TRANSACTIONS_TOPIC
    topicConfigs = TRANSACTIONS_TOPIC_CONFIGS
    coordinator: TransactionCoordinator

    def __init__(
        self,
        clock: Any,
        topics: TopicManager,
        worker: IWorker,
        settings: BrokerSettings,
        groups: GroupService,
    ) -> None:
        super().__init__(clock, topics, worker, settings.transactionStateLogNumPartitions)
        self._settings = settings
        self._groups = groups
        self._makeCoordinator()

    def _makeCoordinator(self) -> None:
        self.coordinator = TransactionCoordinator(
            transactionSettings(self._settings, self.partitionCount),
            self._append,
            self._writeMarkers,
            self._newProducerId,
            self.nowMs,
        )

    def _replay(self, partition: int, records: Sequence[Loaded]) -> None:
        for each in records:
            if isinstance(each, LoadedRecord):
                self.coordinator.replay(partition, each.key, each.value)

    def _loaded(self, partition: int, appender: Appender) -> None:
        self.coordinator.loaded(partition, batchLog(appender.partition).leaderEpoch)

    async def findCoordinator(self, transactionalId: str) -> bool:
        """Whether this broker serves a transactional id. Creates the topic if need be."""
        isThere = await self.awaitTopic()
        return isThere and await self.findPartition(self.coordinator.partitionOf(transactionalId))

    # -- what the coordinator asks for

    def _newProducerId(self, got: Callable[[int | None], None]) -> None:
        def failed(failure: Failure) -> None:
            failure.trap(PylogbrokerError)
            got(None)

        self._topics.metadata.newProducerId().addCallbacks(got, failed).addErrback(_bug)

    def _writeMarkers(
        self, markers: TransactionMarkers, done: Callable[[Collection[TopicPartition]], None]
    ) -> None:
        producer = TransactionalProducer(markers.producerId, markers.producerEpoch)
        marker = EndMarker(markers.isCommit, markers.coordinatorEpoch, markers.transactionVersion)
        left: list[TopicPartition] = []

        async def write(place: TopicPartition) -> None:
            try:
                await self.writeMarker(*place, producer, marker)
            except (InvalidProducerEpochError, CoordinatorFencedError) as error:
                log.warn(
                    "A transaction of producer {producerId} has no end marker in {topic}-{index}:"
                    " {error}",
                    producerId=producer.producerId,
                    topic=place[0],
                    index=place[1],
                    error=error,
                )
            except PylogbrokerError:
                topic = self._topics.image.topics.get(place.topic)
                if topic is not None and place.partition < topic.partitionCount:
                    left.append(place)  # otherwise the partition was deleted

        def over(_none: object) -> None:
            done(left)
            self.schedule()

        writing = Deferred.fromCoroutine(gatherInBatches(write, list(markers.partitions)))
        writing.addCallback(over).addErrback(_bug)

    async def writeMarker(
        self, topic: str, index: int, producer: TransactionalProducer, marker: EndMarker
    ) -> None:
        """
        Append an end marker, and wait until it is acknowledged.

        @raise KafkaError: there is no such partition.
        @raise PylogbrokerError: it is refused, or the partition has failed.
        """
        found = self._topics.find(topic, index)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        batches = encodeMarker(producer, marker, self.nowMs())
        written: Deferred[PylogbrokerError | None] = Deferred()
        if topic == OFFSETS_TOPIC:
            if not self._groups.endTransaction(index, batches, written.callback):
                raise found.log.unavailableError("append to")
        else:
            while (result := found.append(batches, self.nowMs())) is None:
                await found.awaitAdmission()
            found.whenAcknowledged(result, True, written.callback)
        error = await written
        if error is not None:
            raise error

    # -- what Produce and TxnOffsetCommit ask

    def verify(
        self, transactionalId: str, producer: TransactionalProducer, place: TopicPartition
    ) -> ErrorCode:
        """
        Whether a batch may be appended in a producer's transaction now. TRANSACTION_ABORTABLE: the
        partition is not in it.
        """
        (error,) = self.coordinator.verify(transactionalId, *producer, [place])
        return _asToProducer(error)

    async def add(
        self,
        transactionalId: str,
        producer: TransactionalProducer,
        places: Collection[TopicPartition],
    ) -> ErrorCode:
        """
        Add partitions to a transaction for a client of C{transaction.version} 2, which does not do
        so itself, and wait until that is appended.
        """
        waiting: Deferred[ErrorCode] = Deferred()
        self.coordinator.addPartitions(
            transactionalId, *producer, places, EPOCH_BUMP_VERSION, waiting.callback
        )
        self.schedule()
        return _asToProducer(await waiting)


def _asToProducer(error: ErrorCode) -> ErrorCode:
    """The producer that is told is that of the records, whose epoch is wrong."""
    isFenced = error is ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH if isFenced else error


def _bug(failure: Any) -> None:
    log.failure("Ending a transaction failed unexpectedly: this is a bug", failure)
