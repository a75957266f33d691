"""
A source cluster: a member of a consumer group there, whose streams are forwarded. A module of its
own, since a mirror has several source clusters.

The source may be unavailable at any time, also at the start; the mirror retries until it is there.
Mirrors with the same C{groupid} share the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
from pylogbroker.metrics.mirrormetrics import MirrorCounters
from pylogbroker.mirror.forwarder import Forwarder
from pylogbroker.mirror.offsetsyncs import ZookeeperOffsetSyncStore
from pylogbroker.mirror.offsettracker import ConfirmedOffsetStore, OffsetTracker
from pylogbroker.mirror.pipeline import Outage, retryForever
from pylogbroker.mirror.target import MirrorTarget
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient


class SourceCluster:
    """One source of a mirror."""

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: ConsumerSettings,
        topics: WildcardSubscription,
        streamCount: int,
        target: MirrorTarget,
        counters: MirrorCounters,
        isKeeping: bool = False,
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """@param zookeeper: makes an unconnected client; by default one of C{zk.connect}."""
        self._reactor = reactor
        self._settings = settings
        self._topics = topics
        self._streamCount = streamCount
        self._target = target
        self._counters = counters
        self._isKeeping = isKeeping
        self._makeZookeeper = zookeeper or partial(ZookeeperClient.fromSettings, reactor, settings)
        self._zookeeper: IZookeeper | None = None
        self._consumer: ConsumerConnector | None = None
        self._syncs: ZookeeperOffsetSyncStore | None = None
        self._forwarders: list[Forwarder] = []
        self._positions: Mapping[PartitionId, int] = {}
        self._work: list[Deferred[None]] = []
        self._recording = LoopingCall(lambda: Deferred.fromCoroutine(self.record()))
        self._recording.clock = reactor

    def __repr__(self) -> str:
        return f"the source at {self._settings.zkConnect} (group {self._settings.groupId})"

    @property
    def isOwning(self) -> bool:
        """True if it owns its share of the partitions."""
        return self._consumer is not None and self._consumer.isOwning

    @property
    def labels(self) -> dict[str, str]:
        """Of the source, in metrics."""
        return {"group": self._settings.groupId, "zookeeper": self._settings.zkConnect}

    async def run(self) -> None:
        """Join the group, with retries, and start to forward. Can be cancelled."""
        outage = Outage(SystemRandom().random, f"{self!r} is not there yet")
        forwarders = await retryForever(self._reactor, self._join, outage)
        self._log.info(
            "{source}: mirroring {pattern}", source=self, pattern=self._topics.encode().decode()
        )
        self._recording.start(self._settings.autoCommitIntervalMs / 1000, now=True).addErrback(
            self._logBug
        )
        self._work = [
            Deferred.fromCoroutine(forwarder.run()).addErrback(self._logBug)
            for forwarder in forwarders
        ]

    async def _join(self) -> list[Forwarder]:
        """One attempt to connect and to join the group."""
        settings, random = self._settings, SystemRandom().random
        zookeeper = self._makeZookeeper()
        consumer = None
        try:
            await zookeeper.connect(settings.zkConnectionTimeoutMs)
            tracker = OffsetTracker()
            syncs = ZookeeperOffsetSyncStore(
                zookeeper, GroupPaths(settings.groupId), self._target, tracker, self._isKeeping
            )
            store = ConfirmedOffsetStore(
                self._reactor,
                ZookeeperOffsetStore(zookeeper, settings.groupId),
                tracker,
                syncs.take,
                self._countCommits,
            )
            consumer = ConsumerConnector(self._reactor, settings, zookeeper, store)
            await consumer.connect()
            streams = await consumer.createMessageStreamsByFilter(self._topics, self._streamCount)
        except Exception:  # not GeneratorExit: an abandoned attempt must not wait
            if consumer is not None:
                await consumer.shutdown()
            await zookeeper.close()
            raise
        self._zookeeper, self._consumer, self._syncs, self._positions = (
            zookeeper,
            consumer,
            syncs,
            streams[0].positions,
        )
        self._forwarders = [
            Forwarder(
                self._reactor,
                random,
                stream,
                self._target,
                tracker,
                self._counters,
                syncs.fixedTarget,
                self.labels,
                consumer.seek,
            )
            for stream in streams
        ]
        return self._forwarders

    def _countCommits(self, offsets: Mapping[PartitionId, int]) -> None:
        self._counters.commitCount += len(offsets)

    def _logBug(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("{source} stopped unexpectedly: this is a bug", failure, source=self)

    async def record(self) -> None:
        """
        Record where the target ends, for tools that move groups. A failure is logged; the next call
        tries again.
        """
        if self._syncs is None or self._consumer is None:
            return
        try:
            await self._syncs.record(list(self._consumer.owned), self._positions)
        except ZookeeperError as error:
            self._log.warn(
                "{source}: offsets of the target were not written down: {error}",
                source=self,
                error=error,
            )

    # -- the end

    async def pause(self) -> None:
        """Take no more messages."""
        for forwarder in self._forwarders:
            forwarder.stop()
        for work in self._work:
            work.cancel()
        await DeferredList(self._work, consumeErrors=True)

    async def leave(self) -> None:
        """Commit the confirmed offsets and leave the group."""
        if self._recording.running:
            self._recording.stop()
        await self.record()
        if self._consumer is not None:
            await self._consumer.shutdown()
        for forwarder in self._forwarders:
            forwarder.abort()
        if self._zookeeper is not None:
            await self._zookeeper.close()
