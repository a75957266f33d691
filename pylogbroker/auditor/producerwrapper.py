"""
What the audited producers of both protocols have in common: the methods that count nothing, and the
end, before which the last counts are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from pylogbroker.auditor.countpublisher import CountPublisher
from pylogbroker.config.auditsettings import PREFIX, AuditedSettings
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
    copyForReraise,
)
from pylogbroker.metrics.exposition import Family
from pylogbroker.producer.completion import ProducerCounters
from pylogbroker.producer.lifecycle import GracefulShutdown

log = Logger()


def splitProperties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The properties that begin with C{audit.}, and the others."""
    audit = {key: value for key, value in properties.items() if key.startswith(PREFIX)}
    return audit, {key: value for key, value in properties.items() if key not in audit}


def logWarning(sentence: str) -> None:
    """For settings."""
    log.warn("{sentence}", sentence=sentence)


def checkTopic(topic: str | None, settings: AuditedSettings) -> None:
    """@raise ConfigurationError: it is the topic of the counts."""
    if topic == settings.auditTopic:
        raise ConfigurationError(f"{topic} is the topic of the counts (audit.topic)")


class ProducerWrapper:
    """
    The part of an audited producer that is the same for both protocols.

    @ivar producer: the one that sends.
    @ivar counters: the producer's.
    @ivar counts: the L{CountPublisher}.
    """

    producer: Any
    counters: ProducerCounters
    counts: CountPublisher

    def __init__(
        self,
        reactor: Any,
        producer: Any,
        counts: CountPublisher,
        settings: AuditedSettings,
        reporting: Any = None,
    ) -> None:
        """
        @param reporting: publishes the reports, if the producer does not; it is closed with it.
        """
        self.producer = producer
        self.counters = producer.counters
        self.counts = counts
        self._auditSettings = settings
        self._reporting = reporting
        self._refusal: ClosedError | None = None
        self._closing = GracefulShutdown(
            reactor,
            producer.settings.closeTimeoutMs,
            self._beginToClose,
            self._close,
            lambda _reason: None,  # what precedes the producer's own end is awaited by the closing
            lambda: str(self.counters),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.producer!r}>"

    def metricFamilies(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """As the producer's."""
        found: list[Family] = self.producer.metricFamilies(labels)
        return found

    # -- refusals

    def _checkOpen(self) -> None:
        """@raise ClosedError: after C{close}."""
        if self._refusal is not None:
            raise copyForReraise(self._refusal)

    def _refused(self, count: int, error: PylogbrokerError) -> Deferred[Any]:
        """Count and log messages that the producer does not see, as it would."""
        self.counters.acceptedCount += count
        self.counters.failedCount += count
        log.error("{count} messages were not sent: {error}", count=count, error=error)
        return fail(error)

    # -- waiting

    def whenReady(self) -> Deferred[None]:
        """As the producer's."""
        ready: Deferred[None] = self.producer.whenReady()
        return ready

    def flush(self) -> Deferred[None]:
        """As the producer's."""
        flushing: Deferred[None] = self.producer.flush()
        return flushing

    # -- as a consumer of bytes, in Twisted's sense

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """As the producer's."""
        self.producer.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """As the producer's."""
        self.producer.unregisterProducer()

    # -- the end

    def closeBeforeStop(self) -> None:
        """As the producer's."""
        self._closing.beforeStop()

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        Send what was accepted, publish the last counts, close everything. No call is accepted any
        more.

        @return: as of the producer's C{close}.
        """
        return self._closing.close(timeoutMs)

    def _beginToClose(self) -> None:
        self._refusal = ClosedError("the producer was closed")

    async def _close(self) -> None:
        deadlineMs = self.counts.nowMs() + self._closing.timeoutMs
        await self._closing.awaitOrAbort(Deferred.fromCoroutine(self._finish()))
        try:
            await self.producer.close(max(deadlineMs - self.counts.nowMs(), 1))
        finally:
            self.counts.end()
            if self._reporting is not None:
                await self._reporting.close(max(deadlineMs - self.counts.nowMs(), 1))

    async def _finish(self) -> None:
        await self.producer.flush()
        await self.counts.close()
