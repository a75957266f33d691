"""
A mirror as a Twisted service.

It starts whether its clusters are there or not, and looks for them until they are. It stops in this order: nothing more is taken from the sources; what was
taken is confirmed by the target (for C{close.timeout.ms} at most); offsets are committed and the groups left; the producers are closed. What the
target did not confirm in time was not committed either, and comes again.
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
from pylogbroker.metrics.mirrorcounters import MirrorCounters
from pylogbroker.metrics.mirrormetrics import mirrorFamilies
from pylogbroker.mirror.settings import MirrorSettings
from pylogbroker.mirror.sourcecluster import SourceCluster
from pylogbroker.mirror.target import Target

TELL_SECONDS = 60


class MirrorService(Service):
    """
    One mirror, started once and stopped once.

    @ivar counters: a L{MirrorCounters}.
    @ivar sources: a L{SourceCluster} for each cluster that is mirrored.
    @ivar target: the L{Target}.
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
        @param sourceZookeepers: makes a client, not connected, for the source of this index; by default one of its C{zk.connect}.
        @param targetZookeeper: the same for the target.
        """
        self._reactor = reactor
        self._settings = settings
        self.counters = MirrorCounters()
        self.target = Target(reactor, settings.producer, settings.producerCount, targetZookeeper)
        self.sources = [
            SourceCluster(
                reactor, consumer, settings.topics, settings.streamCount, self.target, self.counters, settings.isKeeping,
                None if sourceZookeepers is None else lambda index=index: sourceZookeepers(index),  # type: ignore[misc]
            )
            for index, consumer in enumerate(settings.consumers)
        ]  # fmt: skip
        self._starting: Deferred[None] | None = None
        self._telling = LoopingCall(self._tell)
        self._telling.clock = reactor
        self._toldCount = 0

    def figures(self) -> list[Family]:
        """Its figures, to be served to a scraper (L{pylogbroker.console.service.MetricsService})."""
        pairs = zip(self._settings.consumers, self.sources, strict=True)
        return mirrorFamilies(
            self.counters,
            ((settings.groupId, settings.zkConnect, source.isOwning) for settings, source in pairs),
        )

    def startService(self) -> None:
        """Begin; nothing is waited for."""
        super().startService()
        self._log.info(
            "Mirroring to {target} from {sources}",
            target=self.target,
            sources=", ".join(map(repr, self.sources)),
        )
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(self._unforeseen)
        self._telling.start(TELL_SECONDS, now=False)

    async def _start(self) -> None:
        await self.target.connect()
        running = [Deferred.fromCoroutine(source.run()) for source in self.sources]
        for each in running:
            each.addErrback(self._unforeseen)
        try:
            await DeferredList(running)
        except CancelledError:
            for each in running:
                each.cancel()
            raise

    def _unforeseen(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure(
                "The mirror could not begin, for a reason that nobody foresaw: this is a bug",
                failure,
            )

    def _tell(self) -> None:
        if self.counters.confirmedCount != self._toldCount:
            self._toldCount = self.counters.confirmedCount
            self._say("Mirroring")

    def _say(self, what: str) -> None:
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
            lambda failure: self._log.failure(
                "Stopping failed in a way that nobody foresaw", failure
            )
        )
        return stopping

    async def _stop(self) -> None:
        if self._telling.running:
            self._telling.stop()
        if self._starting is not None:
            self._starting.cancel()
        await DeferredList([Deferred.fromCoroutine(source.quiet()) for source in self.sources])
        idle = self.target.room.whenIdle()
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
        self._say("Stopped")
