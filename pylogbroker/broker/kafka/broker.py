"""
L{KafkaBroker}: everything that a broker adds for Kafka's current protocol, put together. A module
of its own, so that the service need not know these parts.

The metadata are read when the log directory is locked, before its partitions are loaded, since they
hold the topics' settings; those of a directory of Apache's are taken over then. Topics are served
from the moment the broker serves.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.compaction.logcleaner import CompactionProcess, LogCleaner
from pylogbroker.broker.interbroker import InterBrokerConnections
from pylogbroker.broker.kafka.administration.clusterstatus import ClusterStatus
from pylogbroker.broker.kafka.administration.partitionrequests import PartitionRequests
from pylogbroker.broker.kafka.configrequests import BrokerConfig, ConfigRequests
from pylogbroker.broker.kafka.coordinators.grouprequests import GroupRequests
from pylogbroker.broker.kafka.coordinators.groupservice import OFFSETS_TOPIC_CONFIGS, GroupService
from pylogbroker.broker.kafka.coordinators.transactionrequests import TransactionRequests
from pylogbroker.broker.kafka.coordinators.transactionservice import (
    TransactionService,
    transactionsTopicConfigs,
)
from pylogbroker.broker.kafka.fetchrequests import FetchRequests
from pylogbroker.broker.kafka.fetchsessions import FetchSessionCache
from pylogbroker.broker.kafka.logrequests import LogRequests
from pylogbroker.broker.kafka.metadatarequests import MetadataRequests
from pylogbroker.broker.kafka.producerequests import ProduceRequests
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler, KafkaProtocol
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.replicas.replicamanager import ReplicaManager
from pylogbroker.broker.kafka.security.aclrequests import AclRequests
from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.broker.kafka.security.clientquotas import ClientQuotas, QuotaWindows
from pylogbroker.broker.kafka.security.credentialrequests import CredentialRequests
from pylogbroker.broker.kafka.security.quotarequests import QuotaRequests
from pylogbroker.broker.kafka.security.saslprotocol import REFUSALS, SaslProtocol
from pylogbroker.broker.kafka.topicrequests import TopicDefaults, TopicRequests
from pylogbroker.broker.kafka.topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicManager,
    batchLogSettings,
    currentConfigs,
)
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.metadata.clustermembership import ClusterMembership
from pylogbroker.broker.metadata.journal import MetadataJournal
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.broker.server import Broker
from pylogbroker.cluster.acls import AclOperation, AclResourceType
from pylogbroker.cluster.metadataimage import ReachableBroker, Record, ScramCredential
from pylogbroker.config.brokersettings import BrokerSettings, kafkaValues
from pylogbroker.config.listenersettings import Listener, interBrokerListener, readListeners
from pylogbroker.config.topicconfigs import (
    SERVER_CONFIGS,
    ConfigType,
    EffectiveConfigs,
    topicDefaults,
)
from pylogbroker.errors import StorageError
from pylogbroker.interfaces import ConnectBroker, IFileSystem
from pylogbroker.metrics.brokermetrics import GroupSnapshot
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.timer import wallMs
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.storage.kafka.batchlog import BatchLogSettings
from pylogbroker.storage.kafka.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    readMetaProperties,
    writeMetaProperties,
)
from pylogbroker.storage.kafka.compaction import Compactor
from pylogbroker.storage.logdirectory import APACHE_METADATA, LogDirectory
from pylogbroker.storage.metadatastore import JOURNAL_NAME, MetadataStore
from pylogbroker.types import TopicPartition

_SHOWN = {
    "auto.create.topics.enable": ConfigType.BOOLEAN,
    "auto.leader.rebalance.enable": ConfigType.BOOLEAN,
    "connections.max.idle.ms": ConfigType.LONG,
    "controller.quota.window.num": ConfigType.INT,
    "controller.quota.window.size.seconds": ConfigType.INT,
    "controlled.shutdown.enable": ConfigType.BOOLEAN,
    "controlled.shutdown.max.retries": ConfigType.INT,
    "controlled.shutdown.retry.backoff.ms": ConfigType.LONG,
    "default.replication.factor": ConfigType.INT,
    "delete.topic.enable": ConfigType.BOOLEAN,
    "group.consumer.assignment.interval.ms": ConfigType.INT,
    "group.consumer.heartbeat.interval.ms": ConfigType.INT,
    "group.consumer.max.size": ConfigType.INT,
    "group.consumer.session.timeout.ms": ConfigType.INT,
    "group.initial.rebalance.delay.ms": ConfigType.INT,
    "group.max.session.timeout.ms": ConfigType.INT,
    "group.max.size": ConfigType.INT,
    "group.min.session.timeout.ms": ConfigType.INT,
    "leader.imbalance.check.interval.seconds": ConfigType.LONG,
    "leader.imbalance.per.broker.percentage": ConfigType.INT,
    "log.cleaner.backoff.ms": ConfigType.LONG,
    "log.cleaner.dedupe.buffer.size": ConfigType.LONG,
    "log.cleaner.io.max.bytes.per.second": ConfigType.DOUBLE,
    "log.flush.offset.checkpoint.interval.ms": ConfigType.INT,
    "log.retention.hours": ConfigType.INT,
    "log.retention.minutes": ConfigType.INT,
    "log.roll.hours": ConfigType.INT,
    "log.roll.jitter.hours": ConfigType.INT,
    "max.connections.per.ip": ConfigType.INT,
    "max.incremental.fetch.session.cache.slots": ConfigType.INT,
    "num.partitions": ConfigType.INT,
    "offset.metadata.max.bytes": ConfigType.INT,
    "offsets.commit.timeout.ms": ConfigType.INT,
    "offsets.retention.check.interval.ms": ConfigType.LONG,
    "offsets.retention.minutes": ConfigType.INT,
    "offsets.topic.num.partitions": ConfigType.INT,
    "offsets.topic.replication.factor": ConfigType.SHORT,
    "producer.id.expiration.check.interval.ms": ConfigType.INT,
    "producer.id.expiration.ms": ConfigType.INT,
    "quota.window.num": ConfigType.INT,
    "quota.window.size.seconds": ConfigType.INT,
    "replica.fetch.backoff.ms": ConfigType.INT,
    "replica.fetch.max.bytes": ConfigType.INT,
    "replica.fetch.min.bytes": ConfigType.INT,
    "replica.fetch.response.max.bytes": ConfigType.INT,
    "replica.fetch.wait.max.ms": ConfigType.INT,
    "replica.lag.time.max.ms": ConfigType.LONG,
    "replica.selector.class": ConfigType.STRING,
    "request.timeout.ms": ConfigType.INT,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": ConfigType.INT,
    "transaction.max.timeout.ms": ConfigType.INT,
    "transaction.remove.expired.transaction.cleanup.interval.ms": ConfigType.INT,
    "transaction.state.log.min.isr": ConfigType.INT,
    "transaction.state.log.num.partitions": ConfigType.INT,
    "transaction.state.log.replication.factor": ConfigType.SHORT,
    "transactional.id.expiration.ms": ConfigType.INT,
}
"""Settings of this broker that Kafka has, too, with the same meaning, and does not change."""

log = Logger()


class KafkaBroker:
    """
    The parts of a broker for Kafka's current protocol.

    @ivar metadata: of the cluster.
    @ivar cluster: where the metadata are in ZooKeeper; else L{None}.
    @ivar brokerConnections: to the other brokers of the cluster.
    @ivar clusterStatus: for metrics and the console.
    @ivar topics: and their partitions here.
    @ivar replicas: partitions that other brokers have, too.
    @ivar groups: of consumers.
    @ivar transactions: of producers.
    @ivar fetchSessions: of consumers, too.
    @ivar cleaner: compacts.
    @ivar quotas: limit what clients do.
    @ivar authorizer: L{None}: every client may do everything.
    @ivar protocols: handle the requests of connections, one for each listener.
    """

    def __init__(
        self,
        clock: Any,
        settings: BrokerSettings,
        fileSystem: IFileSystem,
        worker: IWorker,
        random: Random,
        counters: BrokerCounters,
        requestLog: Logger | None = None,
        compactionWorker: IWorker | None = None,
        connectBroker: ConnectBroker | None = None,
        cluster: ClusterMembership | None = None,
    ) -> None:
        """
        @param worker: writes the metadata.
        @param compactionWorker: waits for the processes that compact; L{None}: C{worker} compacts
            itself, as tests need it.
        @param connectBroker: makes connections to other brokers; L{None}: there are none.
        @param cluster: has the metadata; L{None}: the broker's own journal has them.
        """
        self._clock = clock
        self._settings = settings
        self._random = random
        self._counters = counters
        self._requestLog = requestLog
        self._staticValues = kafkaValues(settings, (*SERVER_CONFIGS, *_SHOWN))
        self._serverConfigs = topicDefaults(self._staticValues)
        self._journal = MetadataJournal(MetadataStore(fileSystem, settings.logDir), worker)
        self.cluster = cluster
        if cluster is None:
            self.metadata = MetadataManager(self._journal, random.randbytes)
        else:
            self.metadata = cluster.metadata
        listener = interBrokerListener(settings, readListeners(settings))
        self.brokerConnections = InterBrokerConnections(
            lambda: self.metadata.image, "" if listener is None else listener.name, connectBroker
        )
        self._fileSystem = fileSystem
        self._worker = worker
        self._compactionWorker = compactionWorker
        self.cleaner: LogCleaner
        self.clusterStatus: ClusterStatus
        self.topics: TopicManager
        self.replicas: ReplicaManager
        self.groups: GroupService
        self.transactions: TransactionService
        self.fetchSessions: FetchSessionCache
        self.protocols: list[KafkaProtocol] = []
        self.purgatory = Purgatory(clock)
        self.quotas = ClientQuotas(
            lambda: self.metadata.image.quotas,
            clock.seconds,
            self.purgatory,
            counters.requests,
            QuotaWindows(settings.quotaWindowNum, settings.quotaWindowSizeSeconds * 1000),
            QuotaWindows(
                settings.controllerQuotaWindowNum,
                settings.controllerQuotaWindowSizeSeconds * 1000,
            ),
        )
        self._isLimiting = False
        self.authorizer: AclAuthorizer | None = None
        if settings.authorizerClassName:
            self.authorizer = AclAuthorizer(
                lambda: self.metadata.image.acls,
                settings.superUsers,
                settings.allowEveryoneIfNoAclFound,
                clock,
            )

    def batchLogSettings(self, topic: str) -> BatchLogSettings | None:
        """The settings of a topic's partitions; L{None}: it is no topic of this protocol."""
        image = self.metadata.image
        found = image.topics.get(topic)
        if found is None:
            return None
        made = batchLogSettings(
            EffectiveConfigs(
                found.configs,
                currentConfigs(image, self._serverConfigs, self._settings.brokerId),
            ),
            self._settings,
            self._random.random,
            lambda: wallMs(self._clock),
        )
        return replace(made, topicId=found.topicId)

    def isReplicated(self, topicPartition: TopicPartition) -> bool:
        """Whether other brokers are to have a partition, too."""
        found = self.metadata.image.topics.get(topicPartition.topic)
        return found is not None and found.isReplicated(topicPartition.partition)

    def open(self) -> None:
        """
        Read the metadata, unless the cluster has them. The log directory is locked, and nothing of
        it is loaded. Blocks.

        @raise pylogbroker.errors.StorageError: they cannot be read; or the directory is that of
            another cluster, or of a broker of Apache's that this one cannot follow.
        @raise pylogbroker.errors.MetadataError: they cannot be understood.
        """
        path, fileSystem = self._settings.logDir, self._fileSystem

        def report(text: str) -> None:
            log.warn("Apache Kafka's metadata in {path}: {text}", path=path, text=text)

        def isApaches() -> bool:
            if fileSystem.status(f"{path}/{APACHE_METADATA}") is not None:
                return True
            if fileSystem.status(f"{path}/{META_PROPERTIES}") is not None:
                raise StorageError(
                    f"{path}/{META_PROPERTIES}",
                    "use",
                    f"neither {JOURNAL_NAME} nor {APACHE_METADATA} is beside it: if the "
                    "metadata are in ZooKeeper, metadata.store=zookeeper must be set",
                )
            return False

        def takeOver() -> list[Record]:
            if not isApaches():
                return []
            # Needed once in the life of a directory.
            from pylogbroker.broker.apachemetadata import readApacheMetadata

            return readApacheMetadata(fileSystem, path, self._settings.brokerId, report)

        if self.cluster is None:
            if fileSystem.status(f"{path}/{JOURNAL_NAME}") is None:
                isApaches()  # before there is a journal
            self._journal.open(self.metadata, takeOver)
        else:
            self.cluster.directoryCluster()  # again, since the directory is locked now
        self._identify()

    def _identify(self) -> None:
        """Check whose the directory is, and write it there."""
        path, fileSystem = self._settings.logDir, self._fileSystem
        clusterId, nodeId = self.metadata.image.clusterId, self._settings.brokerId
        found = readMetaProperties(fileSystem, path)
        if found is None:
            found = MetaProperties(clusterId, nodeId, self.metadata.newTopicId())
            writeMetaProperties(fileSystem, path, found)
        elif found.clusterId != clusterId:
            raise StorageError(
                f"{path}/{META_PROPERTIES}",
                "use",
                f"it names cluster {found.clusterId}, and the metadata cluster {clusterId}",
            )
        elif found.nodeId != nodeId and self.metadata.image.brokers:
            # In a cluster the partitions of one broker are not those of another, which removes
            # what the metadata give to others.
            raise StorageError(
                f"{path}/{META_PROPERTIES}",
                "use",
                f"it is the directory of broker {found.nodeId}, and this is broker {nodeId}",
            )
        elif found.nodeId != nodeId:
            writeMetaProperties(fileSystem, path, found._replace(nodeId=nodeId))

    def isTopic(self, name: str) -> bool:
        """
        Whether a name is that of a topic of this protocol: one that is there, is just being
        created, or is not wholly removed.
        """
        return any(
            name in image.topics or name in image.removing.values()
            for image in (self.metadata.image, self.metadata.latest)
        )

    def serve(self, broker: Broker, directory: LogDirectory, logManager: LogManager) -> None:
        """Make the handlers, over what both protocols share."""
        self.topics = TopicManager(
            self.metadata,
            directory,
            logManager,
            self._staticValues,
            self._settings.maxPartitions,
            self._settings.brokerId,
            self._random,
            {
                "": self._settings.defaultReplicationFactor,
                OFFSETS_TOPIC: self._settings.offsetsTopicReplicationFactor,
                TRANSACTIONS_TOPIC: self._settings.transactionStateLogReplicationFactor,
            },
        )
        self.clusterStatus = ClusterStatus(self.metadata, self._settings.brokerId, self.cluster)
        sessions = self.fetchSessions = FetchSessionCache(
            self._settings.maxIncrementalFetchSessionCacheSlots, self._clock.seconds, self._random
        )
        self.replicas = ReplicaManager(
            self._clock,
            self.topics,
            logManager,
            self.brokerConnections,
            self._settings,
            sessions,
            self._counters.replication,
        )
        self.topics.replicas = self.replicas
        if self.cluster is not None:
            self.topics.findOf2011 = self.cluster.findOf2011
        self.cleaner = self._makeCleaner(directory, logManager)
        self._fetches = fetch = FetchRequests(
            broker,
            self.topics,
            self.purgatory,
            self._counters,
            sessions,
            self.nodes,
            self.authorizer,
            self.quotas,
            self.replicas,
            bool(self._settings.replicaSelectorClass),
        )
        self.groups = GroupService(
            self._clock,
            self.topics,
            broker.readWorker,
            self.purgatory,
            self._settings,
            self._random,
        )
        self.transactions = TransactionService(
            self._clock,
            self.topics,
            broker.readWorker,
            self.purgatory,
            self._settings,
            self.groups,
            self.brokerConnections,
        )
        groups = GroupRequests(
            self.groups,
            self.transactions,
            self.topics,
            self.nodes,
            None if self.authorizer is None else self._mayDescribe,
        )
        produce = ProduceRequests(
            broker,
            self.topics,
            logManager,
            self.purgatory,
            self.transactions,
            self.nodes,
            self.authorizer,
        )
        settings, topics = self._settings, self.topics
        defaults = TopicDefaults(
            settings.autoCreateTopicsEnable,
            settings.numPartitions,
            {
                OFFSETS_TOPIC: (settings.offsetsTopicNumPartitions, OFFSETS_TOPIC_CONFIGS),
                TRANSACTIONS_TOPIC: (
                    settings.transactionStateLogNumPartitions,
                    transactionsTopicConfigs(settings),
                ),
            },
            settings.deleteTopicEnable,
        )
        logs = LogRequests(
            broker, topics, self.purgatory, os.path.abspath(settings.logDir), _diskSpace
        )
        handlers: dict[ApiKey, Handler] = {
            ApiKey.PRODUCE: produce.produce,
            ApiKey.FETCH: fetch.fetch,
            **MetadataRequests(topics, self.nodes, defaults).handlers,
            **PartitionRequests(topics).handlers,
            **TopicRequests(topics, defaults, self.quotas).handlers,
            **ConfigRequests(topics, settings.brokerId, self._brokerConfigs()).handlers,
            **logs.handlers,
            **groups.handlers,
            **AclRequests(self.metadata, self.authorizer is not None).handlers,
            **QuotaRequests(self.metadata).handlers,
            **CredentialRequests(self.metadata).handlers,
            **TransactionRequests(self.transactions, groups, topics).handlers,
            **REFUSALS,
        }
        if self.authorizer is not None:
            # It makes the classes of dozens of responses, which other brokers make when asked.
            from pylogbroker.broker.kafka.security.requestrules import authorized

            handlers = authorized(handlers, self.authorizer, lambda: self.metadata.image)
        self._handlers = handlers
        # Behind an authorizer every request is looked at by itself.
        self._tryRun = produce.tryRun if self.authorizer is None else None

    def newProtocol(self, listener: Listener) -> KafkaProtocol:
        """What handles the requests of a listener's connections."""
        made = self._newProtocol(listener)
        if self._isLimiting:
            made.wrapHandlers(self.quotas.withQuotas)
        self.protocols.append(made)
        return made

    def _newProtocol(self, listener: Listener) -> KafkaProtocol:
        settings = self._settings
        if listener.isSasl:
            return SaslProtocol(
                self._handlers,
                settings.maxSocketRequestBytes,
                self._counters,
                self._clock,
                self._requestLog,
                listener,
                self._credential,
                self._random,
                RateLimitedLogger(self._clock, log),
                settings.saslServerMaxReceiveSize,
                settings.connectionFailedAuthenticationDelayMs,
            )
        return KafkaProtocol(
            self._handlers,
            settings.maxSocketRequestBytes,
            self._counters,
            self._clock.seconds,
            self._requestLog,
            listener,
            self._tryRun,
        )

    def _credential(self, user: str, mechanism: int) -> ScramCredential | None:
        return self.metadata.image.scramCredentials.get(user, {}).get(mechanism)

    def _mayDescribe(self, state: ConnectionState, topic: str) -> bool:
        assert self.authorizer is not None
        return self.authorizer.allows(state, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)

    def _makeCleaner(self, directory: LogDirectory, logManager: LogManager) -> LogCleaner:
        worker, fileSystem = self._compactionWorker, self._fileSystem
        process = CompactionProcess()
        compactor: Compactor = process
        if worker is None:
            from pylogbroker.broker.compaction.segmentrewrite import compact

            compactor = partial(compact, fileSystem)
        return LogCleaner(
            logManager,
            directory,
            self._settings,
            fileSystem,
            self._worker if worker is None else worker,
            compactor,
            process.stop,
            self._counters.compactions,
        )

    def _brokerConfigs(self) -> dict[str, BrokerConfig]:
        """The settings that Kafka has, too, by its names."""
        settings = self._settings
        own = str(settings.brokerId)
        number = ConfigType.INT
        return {
            "broker.id": BrokerConfig(number, "-1", "The number of the broker.", own),
            "node.id": BrokerConfig(number, None, "The number of the broker.", own),
            "log.dirs": BrokerConfig(ConfigType.LIST, None, "The log directory.", settings.logDir),
            **{
                key.key: BrokerConfig(
                    _SHOWN[key.key], key.default, key.doc, self._staticValues.get(key.key)
                )
                for key in settings.keys
                if key.key in _SHOWN
            },
        }

    def advertised(self, state: ConnectionState) -> tuple[str, int]:
        """Host and port at which the broker tells a client to find the listener that it uses."""
        settings, listener = self._settings, state.listener
        host, port = state.local
        return (
            listener.advertisedHost or settings.hostName or host or "localhost",
            listener.advertisedPort or port or settings.port,
        )

    def nodes(self, state: ConnectionState) -> dict[int, ReachableBroker]:
        """The brokers that are there, as clients of a connection's listener reach them, by id."""
        image = self.metadata.image
        if image.brokers:
            return image.nodes(state.listener.name)
        brokerId = self._settings.brokerId
        return {brokerId: ReachableBroker(brokerId, *self.advertised(state))}

    def start(self) -> Deferred[None]:
        """
        Serve the topics, then the groups, then transactions, whose ends the groups must know.

        @return: fires when all partitions are there, and groups and transactions are loaded; what
            is ready sooner is served at once.
        """
        self.metadata.listen(self._limit)
        self.metadata.listen(self.brokerConnections.follow)
        self._limit()
        self.cleaner.start()
        started = self.topics.start()
        self.replicas.start()
        started.addCallback(lambda _none: self.groups.start())
        return started.addCallback(lambda _none: self.transactions.start())

    def _limit(self) -> None:
        """Measure what clients do, from the first quota on."""
        if not self._isLimiting and self.metadata.image.quotas:
            self._isLimiting = True
            for protocol in self.protocols:
                protocol.wrapHandlers(self.quotas.withQuotas)

    def groupSnapshots(self) -> tuple[tuple[GroupSnapshot, ...], int]:
        """The groups that this broker coordinates, some of them, and the number of all."""
        from pylogbroker.broker.kafka.coordinators.groupsnapshots import groupSnapshots

        return groupSnapshots(self.groups.coordinator)

    async def leave(self) -> None:
        """Let other brokers of the cluster lead what this one leads, since it is about to stop."""
        await self.replicas.shutDown()

    def endWaits(self) -> None:
        """Answer the requests that wait for other clients, since no more requests come."""
        self.quotas.endWaits()
        self.replicas.stop()
        self.transactions.stop()
        self.groups.stop()
        self._fetches.endWaits()
        self.cleaner.stop()

    def stop(self) -> None:
        """The waits are over; to be called when no request is under way."""
        self.purgatory.stop()


def _diskSpace(path: str) -> tuple[int, int]:
    """Bytes of the file system of a path, and free ones. Blocks."""
    found = shutil.disk_usage(path)
    return found.total, found.free
