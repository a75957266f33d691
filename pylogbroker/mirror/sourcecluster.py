"""
One cluster that is mirrored: a member of a consumer group there, whose streams are forwarded.

It may be away at any time, at the start as well: it is looked for until it is there. Several mirrors with the same C{groupid} are members of one group, and
share the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import WildcardSubscription
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.offsetstores import ZookeeperOffsetStore
from pylogbroker.errors import ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.mirrorcounters import MirrorCounters
from pylogbroker.mirror.forwarding import Forwarder
from pylogbroker.mirror.offsets import ConfirmedOffsetStore
from pylogbroker.mirror.offsetsyncs import OffsetSyncStore
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.mirror.retry import loggedOutage
from pylogbroker.mirror.target import Target
from pylogbroker.net.deferreds import retryForever
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient


class SourceCluster:
    """
    What is mirrored from one cluster.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: ConsumerSettings,
        topics: WildcardSubscription,
        streamCount: int,
        target: Target,
        counters: MirrorCounters,
        isKeeping: bool = False,
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """
        @param zookeeper: makes a client, not connected; by default one of C{zk.connect}.
        """
        self._reactor = reactor
        self._settings = settings
        self._topics = topics
        self._streamCount = streamCount
        self._target = target
        self._counters = counters
        self._isKeeping = isKeeping
        self._makeZookeeper = zookeeper or self._client
        self._zookeeper: IZookeeper | None = None
        self._consumer: ConsumerConnector | None = None
        self._tables: OffsetSyncStore | None = None
        self._forwarders: list[Forwarder] = []
        self._positions: Mapping[PartitionId, int] = {}
        self._work: list[Deferred[None]] = []
        self._recording = LoopingCall(self._record)
        self._recording.clock = reactor

    def _client(self) -> IZookeeper:
        return ZookeeperClient.fromSettings(self._reactor, self._settings)

    def __repr__(self) -> str:
        return f"the source at {self._settings.zkConnect} (group {self._settings.groupId})"

    @property
    def isOwning(self) -> bool:
        """Whether it has its share of the partitions."""
        return self._consumer is not None and self._consumer.isOwning

    async def run(self) -> None:
        """Begin, however long it takes; then it goes on by itself. May be cancelled."""
        streams = await retryForever(
            self._reactor,
            self._join,
            loggedOutage(SystemRandom().random, f"{self!r} is not there yet"),
        )
        self._log.info(
            "{source}: mirroring {pattern}", source=self, pattern=self._topics.encode().decode()
        )
        self._recording.start(self._settings.autoCommitIntervalMs / 1000, now=True).addErrback(
            self._unforeseen
        )
        self._work = [Deferred.fromCoroutine(forwarder.run()) for forwarder in streams]
        for work in self._work:
            work.addErrback(self._unforeseen)

    async def _join(self) -> list[Forwarder]:
        """One attempt: connect, and become a member."""
        settings, random = self._settings, SystemRandom().random
        zookeeper = self._makeZookeeper()
        consumer = None
        try:
            await zookeeper.connect(settings.zkConnectionTimeoutMs)
            ledger = OffsetTracker()
            tables = OffsetSyncStore(
                zookeeper, GroupPaths(settings.groupId), self._target, ledger, self._isKeeping
            )
            store = ConfirmedOffsetStore(
                self._reactor,
                ZookeeperOffsetStore(zookeeper, settings.groupId),
                ledger,
                tables.take,
                self._committed,
            )
            consumer = ConsumerConnector(self._reactor, settings, zookeeper, store)
            await consumer.connect()
            streams = await consumer.createMessageStreamsByFilter(self._topics, self._streamCount)
        except BaseException:
            if consumer is not None:
                await consumer.shutdown()
            await zookeeper.close()
            raise
        self._zookeeper, self._consumer, self._tables, self._positions = (
            zookeeper,
            consumer,
            tables,
            streams[0].positions,
        )
        origin = {"group": settings.groupId, "zookeeper": settings.zkConnect}
        self._forwarders = [
            Forwarder(self._reactor, random, stream, self._target, ledger, self._counters, tables.home, origin, consumer.seek) for stream in streams
        ]  # fmt: skip
        return self._forwarders

    def _committed(self, offsets: Mapping[PartitionId, int]) -> None:
        self._counters.commitCount += len(offsets)

    def _unforeseen(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure(
                "{source} has stopped in a way that nobody foresaw: this is a bug",
                failure,
                source=self,
            )

    def _record(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.record())

    async def record(self) -> None:
        """Write down where the target ends; for who moves groups. That it did not work is only logged, since it is tried again."""
        if self._tables is None or self._consumer is None:
            return
        try:
            await self._tables.record(list(self._consumer.owned), self._positions)
        except ZookeeperError as error:
            self._log.warn(
                "{source}: offsets of the target were not written down: {error}",
                source=self,
                error=error,
            )

    # -- the end

    async def quiet(self) -> None:
        """Take nothing more."""
        for forwarder in self._forwarders:
            forwarder.stop()
        for work in self._work:
            work.cancel()
        await DeferredList(self._work, consumeErrors=True)

    async def leave(self) -> None:
        """Commit what is confirmed, and leave the group."""
        if self._recording.running:
            self._recording.stop()
        await self.record()
        if self._consumer is not None:
            await self._consumer.shutdown()
        for forwarder in self._forwarders:
            forwarder.abort()
        if self._zookeeper is not None:
            await self._zookeeper.close()
