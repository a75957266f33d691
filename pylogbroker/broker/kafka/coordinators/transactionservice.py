"""
L{TransactionService}: drives the coordinator of transactions
(L{pylogbroker.coordinator.transactions.transactioncoordinator}), whose topic is
C{__transaction_state}, and writes the end markers that it asks for.

B{Markers} go to the leaders of their partitions
(L{pylogbroker.broker.kafka.coordinators.transactionmarkers}). Those that this broker leads get them
as clients' batches, acknowledged as C{acks=all} is. A marker in C{__consumer_offsets} goes through
the group coordinator, which then counts the offsets that were committed in the transaction.

B{Produce} asks L{TransactionService.verify} when a batch is appended: a batch
that came behind the end marker of its transaction would begin one that never ends. Before, it lets
L{TransactionService.admit} ask the coordinator if that is another broker
(L{pylogbroker.broker.kafka.coordinators.verification}).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.interbroker import InterBrokerConnections
from pylogbroker.broker.kafka.coordinators.coordinatorlog import (
    Appender,
    Loaded,
    LoadedRecord,
    encodeMarker,
)
from pylogbroker.broker.kafka.coordinators.coordinatorservice import CoordinatorService
from pylogbroker.broker.kafka.coordinators.groupservice import GroupService
from pylogbroker.broker.kafka.coordinators.transactionmarkers import MarkerWriter
from pylogbroker.broker.kafka.coordinators.verification import Admission, Verifier, asToProducer
from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicManager,
    batchLog,
)
from pylogbroker.config.brokersettings import ZOOKEEPER, BrokerSettings
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.coordinator.transactions.transactioncoordinator import (
    EPOCH_BUMP_VERSION,
    TransactionCoordinator,
    TransactionMarkers,
    TransactionSettings,
)
from pylogbroker.coordinator.transactions.transactionstopic import transactionPartition
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import EndMarker
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.elections import NO_LEADER
from pylogbroker.types import TopicPartition

TRANSACTIONS_TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}
"""The settings with which Kafka creates the topic, where it has one replica."""

log = Logger()


def transactionsTopicConfigs(settings: BrokerSettings) -> Mapping[str, str]:
    """The settings with which the topic is created."""
    if settings.metadataStore != ZOOKEEPER:
        return TRANSACTIONS_TOPIC_CONFIGS
    replicationFactor = settings.transactionStateLogReplicationFactor
    least = min(settings.transactionStateLogMinIsr, replicationFactor)
    return {**TRANSACTIONS_TOPIC_CONFIGS, "min.insync.replicas": str(least)}


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
    coordinator: TransactionCoordinator

    def __init__(
        self,
        clock: Any,
        topics: TopicManager,
        worker: IWorker,
        purgatory: Purgatory,
        settings: BrokerSettings,
        groups: GroupService,
        connections: InterBrokerConnections,
    ) -> None:
        """@param connections: to the other brokers of the cluster."""
        super().__init__(
            clock,
            topics,
            worker,
            purgatory,
            settings.transactionStateLogNumPartitions,
            settings.requestTimeoutMs,
        )
        self.topicConfigs = transactionsTopicConfigs(settings)
        self._settings = settings
        self._groups = groups
        self._markers = MarkerWriter(
            clock, settings.brokerId, self._leaderOf, connections, self.writeMarker
        )
        self._verifier = Verifier(connections, self._epochOf, RateLimitedLogger(clock, log))
        self._makeCoordinator()

    def _makeCoordinator(self) -> None:
        self.coordinator = TransactionCoordinator(
            transactionSettings(self._settings, self.partitionCount),
            self._append,
            self._writeMarkers,
            self._newProducerId,
            self.nowMs,
            self._isCurrent,
        )

    def _replay(self, partition: int, records: Sequence[Loaded]) -> None:
        for each in records:
            if isinstance(each, LoadedRecord):
                self.coordinator.replay(partition, each.key, each.value)

    def _loaded(self, partition: int, appender: Appender) -> None:
        self.coordinator.loaded(partition, batchLog(appender.partition).leaderEpoch)

    async def findCoordinator(self, transactionalId: str) -> int:
        """
        The broker that serves a transactional id, or L{NO_LEADER}. Creates the topic if need be.
        """
        if not await self.awaitTopic():
            return NO_LEADER
        return self.leaderOf(self.coordinator.partitionOf(transactionalId))

    # -- what the coordinator asks for

    def _newProducerId(self, got: Callable[[int | None], None]) -> None:
        def failed(failure: Failure) -> None:
            failure.trap(PylogbrokerError)
            got(None)

        self._topics.metadata.newProducerId().addCallbacks(got, failed).addErrback(_bug)

    def _writeMarkers(
        self, markers: TransactionMarkers, done: Callable[[Collection[TopicPartition]], None]
    ) -> None:
        def over(left: Collection[TopicPartition]) -> None:
            done(left)
            self.schedule()

        writing = Deferred.fromCoroutine(self._markers.write(markers))
        writing.addCallback(over).addErrback(_bug)

    def _leaderOf(self, place: TopicPartition) -> int | None:
        found = self._topics.leaderAt(*place)
        return None if found is None else found[0]

    def _epochOf(self, place: TopicPartition) -> int | None:
        """The leader epoch of a partition that this broker leads; L{None}: it does not lead it."""
        leader, epoch = self._topics.leaderAt(*place) or (NO_LEADER, -1)
        return epoch if leader == self._settings.brokerId else None

    async def writeMarker(
        self, place: TopicPartition, producer: TransactionalProducer, marker: EndMarker
    ) -> None:
        """
        Append an end marker to a partition of this broker, and wait until it is acknowledged.

        @raise KafkaError: there is no such partition, or another broker leads it.
        @raise PylogbrokerError: it is refused, or the partition has failed.
        """
        topic, index = place
        found = self._topics.find(topic, index)
        if found is None:
            raise self._topics.unavailable(self._topics.image.topics.get(topic), index)
        if found.lacksInSync:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)  # each try would append another one
        batches = encodeMarker(producer, marker, self.nowMs())
        written: Deferred[PylogbrokerError | None] = Deferred()
        if topic == OFFSETS_TOPIC:
            self._verifier.markerAppended(place, producer.producerId)
            if not self._groups.endTransaction(index, batches, written.callback):
                raise found.log.unavailableError("append to")
        else:
            while (result := found.append(batches, self.nowMs())) is None:
                await found.awaitAdmission()
            self._verifier.markerAppended(place, producer.producerId)
            found.whenAcknowledged(result, True, written.callback)
        error = await written
        if error is not None:
            raise error

    # -- what Produce and TxnOffsetCommit ask

    def isCoordinator(self, transactionalId: str) -> bool:
        """Whether no other broker coordinates a transactional id."""
        return self._coordinatorOf(transactionalId) in (None, self._settings.brokerId)

    def _coordinatorOf(self, transactionalId: str) -> int | None:
        """A broker; L{NO_LEADER}: none now; L{None}: there is no topic yet."""
        topic = self._topics.image.topics.get(self.topicName)
        if topic is None:
            return None
        index = transactionPartition(transactionalId, topic.partitionCount)
        return self._leaderOf(TopicPartition(self.topicName, index))

    def newAdmission(self) -> Admission:
        """For a request that appends in transactions; it must be closed."""
        return Admission(self._verifier)

    async def admit(
        self,
        admission: Admission,
        transactionalId: str,
        producer: TransactionalProducer,
        places: Sequence[TopicPartition],
        isAdding: bool,
        size: int = 0,
    ) -> None:
        """
        Find out whether batches may be appended in a producer's transaction, or add their
        partitions; then L{verify} tells the outcome.

        @param isAdding: for clients of C{transaction.version} 2, which do not add partitions
            themselves. The answer waits until that is appended.
        @param size: bytes of the batches.
        """
        coordinator = self._coordinatorOf(transactionalId)
        if coordinator in (None, self._settings.brokerId):
            if isAdding:
                error = await self._add(transactionalId, producer, places)
                if error:
                    admission.refuse(producer, places, error)
        elif coordinator == NO_LEADER:
            admission.refuse(producer, places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            assert coordinator is not None
            await self._verifier.ask(
                coordinator, transactionalId, producer, places, isAdding, admission, size
            )

    async def _add(
        self,
        transactionalId: str,
        producer: TransactionalProducer,
        places: Collection[TopicPartition],
    ) -> ErrorCode:
        waiting: Deferred[ErrorCode] = Deferred()
        self.coordinator.addPartitions(
            transactionalId, *producer, places, EPOCH_BUMP_VERSION, waiting.callback
        )
        self.schedule()
        return asToProducer(await waiting)

    def verify(
        self,
        transactionalId: str,
        producer: TransactionalProducer,
        place: TopicPartition,
        admission: Admission,
    ) -> ErrorCode:
        """
        Whether a batch may be appended in a producer's transaction now. TRANSACTION_ABORTABLE: the
        partition is not in it.

        @param admission: which L{admit} has been asked about.
        """
        if not self.isCoordinator(transactionalId):
            return admission.verdict(producer, place)
        error = admission.refusal(producer, place)
        if error:
            return error
        (error,) = self.coordinator.verify(transactionalId, *producer, [place])
        return asToProducer(error)


def _bug(failure: Any) -> None:
    log.failure("Ending a transaction failed unexpectedly: this is a bug", failure)
