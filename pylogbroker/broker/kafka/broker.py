"""
L{KafkaBroker}: everything that a broker adds for Kafka's current protocol, put together. A module
of its own, so that the service need not know these parts.

The metadata are read when the log directory is locked, before its partitions are loaded, since they
hold the topics' settings. Topics are served from the moment the broker serves.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.kafka.coordinators.grouprequests import GroupRequests
from pylogbroker.broker.kafka.coordinators.groupservice import GroupService
from pylogbroker.broker.kafka.fetchrequests import FetchRequests
from pylogbroker.broker.kafka.producerequests import ProduceRequests
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler, KafkaProtocol
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import TopicManager, batchLogSettings, currentConfigs
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.broker.server import Broker
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.config.topicconfigs import EffectiveConfigs
from pylogbroker.interfaces import IFileSystem
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.storage.kafka.batchlog import BatchLogSettings
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.metadatastore import MetadataStore

log = Logger()


class KafkaBroker:
    """
    The parts of a broker for Kafka's current protocol.

    @ivar metadata: of the cluster.
    @ivar topics: and their partitions here.
    @ivar groups: of consumers.
    @ivar protocol: handles the requests of all its connections.
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
    ) -> None:
        """@param worker: writes the metadata."""
        self._clock = clock
        self._settings = settings
        self._random = random
        self._counters = counters
        self._requestLog = requestLog
        self._serverConfigs: dict[str, str] = {}
        self.metadata = MetadataManager(
            MetadataStore(fileSystem, settings.logDir), worker, random.randbytes
        )
        self.topics: TopicManager
        self.groups: GroupService
        self.protocol: KafkaProtocol
        self.purgatory = Purgatory(clock)

    def batchLogSettings(self, topic: str) -> BatchLogSettings | None:
        """The settings of a topic's partitions; L{None}: it is no topic of this protocol."""
        image = self.metadata.image
        found = image.topics.get(topic)
        if found is None:
            return None
        return batchLogSettings(
            EffectiveConfigs(found.configs, currentConfigs(image, self._serverConfigs)),
            self._settings,
            self._random.random,
            lambda: int(self._clock.seconds() * 1000),
        )

    def isTopic(self, name: str) -> bool:
        """Whether a name is that of a topic of this protocol."""
        return name in self.metadata.image.topics

    def serve(self, broker: Broker, directory: LogDirectory, logManager: LogManager) -> None:
        """Make the handlers, over what both protocols share."""
        self.topics = TopicManager(
            self.metadata, directory, logManager, self._serverConfigs, self._settings.maxPartitions
        )
        produce = ProduceRequests(broker, self.topics, logManager, self.purgatory)
        fetch = FetchRequests(broker, self.topics, self.purgatory, self._counters)
        self.groups = GroupService(
            self._clock, self.topics, broker.readWorker, self._settings, self._random
        )
        groups = GroupRequests(self.groups, self.topics, self._settings.brokerId, self.advertised)
        handlers: dict[ApiKey, Handler] = {
            ApiKey.PRODUCE: produce.produce,
            ApiKey.FETCH: fetch.fetch,
            **groups.handlers,
        }
        self.protocol = KafkaProtocol(
            handlers,
            self._settings.maxSocketRequestBytes,
            self._counters,
            self._clock.seconds,
            self._requestLog,
        )

    def advertised(self, state: ConnectionState) -> tuple[str, int]:
        """Host and port at which the broker tells a client to find it."""
        settings = self._settings
        host, port = state.local
        return settings.hostName or host or "localhost", port or settings.port

    def start(self) -> Deferred[None]:
        """
        Serve the topics, then the groups.

        @return: fires when all partitions are there, and the groups are loaded; what is ready
            sooner is served at once.
        """
        return self.topics.start().addCallback(lambda _none: self.groups.start())

    def endWaits(self) -> None:
        """Answer the requests that wait for other clients, since no more requests come."""
        self.groups.stop()

    def stop(self) -> None:
        """The waits are over; to be called when no request is under way."""
        self.purgatory.stop()
