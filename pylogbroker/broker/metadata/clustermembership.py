"""
L{ClusterMembership}: a broker's part in a cluster whose metadata are in ZooKeeper. It reads the
log, registers, and is a candidate for the controller, in this order; the stop is the reverse.

A log directory belongs to one cluster. One that has metadata of its own, or those of another
cluster, is refused before anything is changed, here or in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.metadata.clusterregistration import ClusterRegistration
from pylogbroker.broker.metadata.controllerservice import ControllerService, LeaderBalance
from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster import paths
from pylogbroker.cluster.kafka.metadatalog import beginningOf
from pylogbroker.cluster.metadataimage import Endpoint, MetadataImage, Record
from pylogbroker.config.brokersettings import BrokerSettings, kafkaValues
from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IFileSystem, IZookeeper
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.workers import IWorker
from pylogbroker.replication.controller import (
    CLUSTER_WIDE,
    LogState,
    PartitionKey,
    adoptDefaults,
)
from pylogbroker.replication.elections import Loss
from pylogbroker.storage.kafka.checkpoints import (
    META_PROPERTIES,
    LastRegistration,
    readMetaProperties,
    readRegistration,
    writeRegistration,
)
from pylogbroker.storage.logdirectory import APACHE_METADATA
from pylogbroker.storage.metadatastore import JOURNAL_NAME

log = Logger()


class ClusterMembership:
    """
    The log of the cluster's metadata, and this broker's registration in it.

    @ivar metadata: of the cluster.
    """

    def __init__(
        self,
        clock: Any,
        elapsed: Callable[[], float],
        zookeeper: IZookeeper,
        settings: BrokerSettings,
        fileSystem: IFileSystem,
        worker: IWorker,
        random: Random,
    ) -> None:
        """
        @param elapsed: seconds of a clock that is never set.
        @param zookeeper: not yet connected.
        @param worker: reads and writes small files, and encodes and decodes snapshots.
        """
        self._clock = clock
        self._settings = settings
        self._fileSystem = fileSystem
        self._worker = worker
        self._log = ZookeeperLog(clock, elapsed, zookeeper, settings.brokerId, worker, random)
        self.metadata = MetadataManager(self._log, random.randbytes)
        self._logs = LogState.INTACT
        self._registration: ClusterRegistration | None = None
        self._controller: ControllerService | None = None

    @property
    def isController(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._controller is not None and self._controller.epoch > 0

    @property
    def lastChange(self) -> int:
        """The number of the last change of the metadata that this broker knows to exist."""
        return self._log.head.last

    @asDeferred
    async def connect(self) -> None:
        """
        Read the metadata; where ZooKeeper has no cluster, make one. C{zookeeper} is connected.

        @return: fires when the image is that of the last change. Fails with L{ZookeeperError},
            L{MetadataError}, or L{StorageError} when the log directory is not of this cluster.
        """
        clusterId = await self._worker.submit(self.directoryCluster)
        if not await self._log.open(self.metadata):
            if clusterId:
                raise StorageError(
                    f"{self._settings.logDir}/{META_PROPERTIES}",
                    "use",
                    f"it names cluster {clusterId}, and ZooKeeper at {self._settings.zkConnect} "
                    "has none: check zk.connect and its chroot",
                )
            await self._log.create([self.metadata.newCluster()])
            await self._log.open(self.metadata)
            log.info(
                "Made cluster {clusterId} in ZooKeeper", clusterId=self.metadata.image.clusterId
            )

    def directoryCluster(self) -> str:
        """
        Check that the log directory has no metadata of its own. Blocks.

        @return: the cluster that it belongs to; C{""} for a new one.
        @raise StorageError: it has metadata, and how they get to ZooKeeper.
        """
        path, fileSystem = self._settings.logDir, self._fileSystem
        for name in (JOURNAL_NAME, APACHE_METADATA):
            if fileSystem.status(f"{path}/{name}") is not None:
                raise StorageError(
                    f"{path}/{name}",
                    "use",
                    "the broker has metadata of its own, and metadata.store=zookeeper: move them "
                    "with pylogbroker metadata move"
                    + ("" if name == JOURNAL_NAME else ", after a start with metadata.store=local"),
                )
        found = readMetaProperties(fileSystem, path) if fileSystem.status(path) else None
        self._logs = LogState.EMPTY if found is None else LogState.UNCERTAIN
        return "" if found is None else found.clusterId

    @asDeferred
    async def register(
        self,
        endpoints: Sequence[Endpoint],
        wasClosedCleanly: bool,
        hasPartitions: bool,
        losses: Callable[[MetadataImage], Mapping[PartitionKey, Loss]],
    ) -> None:
        """
        Register, and be a candidate for the controller. The log directory is open.

        @param wasClosedCleanly: whether the last broker on this directory has stopped cleanly.
        @param hasPartitions: whether the directory has any. They are made behind the registration:
            without any, and without an earlier registration, it is new, also when a start on it has
            named its cluster there and has ended before it could register.
        @param losses: gives what the directory has lost of the partitions of an image.
        @return: fires when the broker is registered; fails as L{ClusterRegistration.start}.
        """
        settings = self._settings
        previous = await self._worker.submit(
            lambda: readRegistration(self._fileSystem, settings.logDir)
        )
        if previous.brokerEpoch < 0 and not hasPartitions:
            self._logs = LogState.EMPTY
        # What that process has acknowledged counts, and not what this one will.
        if self._logs is LogState.UNCERTAIN and (wasClosedCleanly or previous.isFlushed):
            self._logs = LogState.INTACT
        self._registration = ClusterRegistration(
            self._clock,
            self._log,
            self.metadata,
            settings.brokerId,
            endpoints,
            settings.brokerRack or None,
            self._logs,
            previous.brokerEpoch,
            self._keepEpoch,
            losses,
        )
        await self._registration.start()
        await self._adoptDefaults()
        self._controller = ControllerService(
            self._clock,
            self._log,
            self.metadata,
            settings.brokerId,
            self._worker,
            LeaderBalance(
                settings.leaderImbalanceCheckIntervalSeconds * 1000
                if settings.autoLeaderRebalanceEnable
                else 0,
                settings.leaderImbalancePerBrokerPercentage,
            ),
        )
        self._controller.start()

    async def _adoptDefaults(self) -> None:
        values = kafkaValues(self._settings, CLUSTER_WIDE)

        def decide(image: MetadataImage) -> tuple[list[Record], bool]:
            some = beginningOf(adoptDefaults(image, values))
            return some, bool(some)

        hasMore = bool(values)
        while hasMore:  # perhaps not all fits into one change
            hasMore = await self.metadata.change(decide)
        known = self.metadata.image.brokerConfigs.get("", {})
        for name, value in values.items():
            if known.get(name) != value:
                log.warn(
                    "{name}={value} of this broker's file has no effect: the cluster's default is"
                    " {known}",
                    name=name,
                    value=value,
                    known=known.get(name),
                )

    def _keepEpoch(self, epoch: int) -> Deferred[None]:
        """
        Without its epoch the directory counts as one that may have lost what it had. It is there
        before the first acknowledgement.
        """
        settings = self._settings
        kept = LastRegistration(epoch, settings.logFlushAcksAll)
        return self._worker.submit(
            lambda: writeRegistration(self._fileSystem, settings.logDir, kept)
        )

    async def findOf2011(self, name: str) -> str | None:
        """The node of a topic of 2011, which a broker of this ZooKeeper has or had; or L{None}."""
        path = paths.topic(name)
        return path if await self._log.zookeeper.exists(path) is not None else None

    def stop(self) -> None:
        """
        Change the metadata no more; a second call does nothing. Closing C{zookeeper} then tells
        the others that this broker is gone.
        """
        if self._controller is not None:
            self._controller.stop()
        if self._registration is not None:
            self._registration.stop()
        self.metadata.close()
