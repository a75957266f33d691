"""
A mirror as a Twisted service. A module of its own, since an application can run this service
without C{twistd}.

It starts without its clusters, and retries until they are there. It stops in this order: it takes
no more messages; the target confirms those in flight, for at most C{close.timeout.ms}; it commits
offsets and leaves the groups; it closes the producers. Unconfirmed messages are not committed and
are sent again later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList, TimeoutError  # noqa: A004
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.exposition import Family
from pylogbroker.metrics.mirrormetrics import MirrorCounters, mirrorFamilies
from pylogbroker.mirror.settings import MirrorSettings
from pylogbroker.mirror.sourcecluster import SourceCluster
from pylogbroker.mirror.target import TargetCluster

REPORT_SECONDS = 60


class MirrorService(Service):
    """
    One mirror, started once and stopped once.

    @ivar counters: a L{MirrorCounters}.
    @ivar sources: a L{SourceCluster} for each source.
    @ivar target: the L{TargetCluster}.
    """

    _log = Logger()
    name = "pylogbroker-mirror"

    def __init__(
        self,
        reactor: Any,
        settings: MirrorSettings,
        *,
        sourceZookeepers: Callable[[int], IZookeeper] | None = None,
        targetZookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """
        @param sourceZookeepers: makes an unconnected client for the source with an index; by
            default one of its C{zk.connect}.
        @param targetZookeeper: makes an unconnected client for the target.
        """
        self._reactor = reactor
        self._settings = settings
        self.counters = MirrorCounters()
        self.target = TargetCluster(
            reactor, settings.producer, settings.producerCount, targetZookeeper
        )
        self.sources = [
            SourceCluster(
                reactor, consumer, settings.topics, settings.streamCount, self.target, self.counters, settings.isKeeping,
                None if sourceZookeepers is None else lambda index=index: sourceZookeepers(index),  # type: ignore[misc]
            )
            for index, consumer in enumerate(settings.consumers)
        ]  # fmt: skip
        self._starting: Deferred[None] | None = None
        self._reporting = LoopingCall(self._report)
        self._reporting.clock = reactor
        self._reportedCount = 0

    def metricFamilies(self) -> list[Family]:
        """Its metrics, for L{pylogbroker.console.service.MetricsService}."""
        pairs = zip(self._settings.consumers, self.sources, strict=True)
        return mirrorFamilies(
            self.counters,
            ((settings.groupId, settings.zkConnect, source.isOwning) for settings, source in pairs),
        )

    def startService(self) -> None:
        """Start, without waiting for the clusters."""
        super().startService()
        self._log.info(
            "Mirroring to {target} from {sources}",
            target=self.target,
            sources=", ".join(map(repr, self.sources)),
        )
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(self._logBug)
        self._reporting.start(REPORT_SECONDS, now=False)

    async def _start(self) -> None:
        await self.target.connect()
        running = [Deferred.fromCoroutine(source.run()) for source in self.sources]
        for each in running:
            each.addErrback(self._logBug)
        try:
            await DeferredList(running)
        except CancelledError:
            for each in running:
                each.cancel()
            raise

    def _logBug(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure(
                "The mirror failed unexpectedly at its start: this is a bug",
                failure,
            )

    def _report(self) -> None:
        if self.counters.confirmedCount != self._reportedCount:
            self._reportedCount = self.counters.confirmedCount
            self._logCounters("Mirroring")

    def _logCounters(self, what: str) -> None:
        counters = self.counters
        self._log.info(
            "{what}: {confirmedCount} messages ({confirmedSize} bytes) confirmed, {underWayCount} under way, {repeatedCount} possibly twice",
            what=what, confirmedCount=counters.confirmedCount, confirmedSize=counters.confirmedSize, underWayCount=counters.underWayCount,
            repeatedCount=counters.repeatedCount,
        )  # fmt: skip

    def stopService(self) -> Deferred[None]:
        """
        Stop in order.

        @return: fires when everything is closed; does not fail.
        """
        super().stopService()
        stopping = Deferred.fromCoroutine(self._stop())
        stopping.addErrback(
            lambda failure: self._log.failure("Stopping failed unexpectedly", failure)
        )
        return stopping

    async def _stop(self) -> None:
        if self._reporting.running:
            self._reporting.stop()
        if self._starting is not None:
            self._starting.cancel()
        await DeferredList([Deferred.fromCoroutine(source.pause()) for source in self.sources])
        idle = self.target.inFlight.whenIdle()
        if not idle.called:
            timeoutMs = self._settings.producer.closeTimeoutMs
            try:
                await idle.addTimeout(timeoutMs / 1000, self._reactor)
            except TimeoutError:
                self._log.error(
                    "The target has not confirmed {underWayCount} messages within {timeoutMs} ms. They are not committed, and come again",
                    underWayCount=self.counters.underWayCount, timeoutMs=timeoutMs,
                )  # fmt: skip
        await DeferredList([Deferred.fromCoroutine(source.leave()) for source in self.sources])
        await self.target.close()
        self._logCounters("Stopped")
