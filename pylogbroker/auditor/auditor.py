"""
One pass of an audit: read the counts, read the data, compare.

The counts are read first. A count is published after the messages that it counts were written; so
whatever has been reported when the data is read has been sent before, and can be there. (What was
written and is not flushed yet is not visible; the grace covers that.)

A tier that could not be read whole is left out of the comparison, and said: what has not been
looked for is not missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pylogbroker.audit.comparison import AuditAggregator, Comparison
from pylogbroker.auditor.clustertier import ClusterTier
from pylogbroker.auditor.kafkatier import KafkaTier
from pylogbroker.auditor.messagecounter import MessageCounter, TimeOf
from pylogbroker.auditor.tabletier import TableTier
from pylogbroker.auditor.tiers import IAuditTier
from pylogbroker.config.auditsettings import AuditorSettings, TierAddress
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.net.timer import wallMs

__all__ = ["Auditor", "TimeOf"]


class Auditor:
    """
    Audits the tiers of its settings, pass after pass.
    """

    def __init__(
        self,
        reactor: Any,
        settings: AuditorSettings,
        *,
        timeOf: TimeOf | None = None,
        zookeeper: Callable[[TierAddress], IZookeeper] | None = None,
    ) -> None:
        """
        @param reactor: for connecting and for time.
        @param timeOf: the time of a payload that has no envelope, in milliseconds since the epoch;
            L{None} when it knows none.
        @param zookeeper: makes the client of a tier, not connected.
        """
        self._reactor = reactor
        self._settings = settings
        self._ledger = AuditAggregator(settings.auditWindowMs)
        self._counter = MessageCounter(reactor, settings, self._ledger, timeOf)
        self._readers = [self._reader(tier, zookeeper) for tier in settings.tiers]

    def _reader(
        self, tier: TierAddress, zookeeper: Callable[[TierAddress], IZookeeper] | None
    ) -> IAuditTier:
        if tier.table:
            return TableTier(self._reactor, tier)
        if tier.bootstrapServers:
            return KafkaTier(self._reactor, tier, self._settings)
        return ClusterTier(self._reactor, tier, self._settings, zookeeper)

    @property
    def messageCount(self) -> int:
        """Messages that were counted, all tiers and topics together."""
        return self._counter.messageCount

    def nowMs(self) -> int:
        """The time, in milliseconds since the epoch."""
        return wallMs(self._reactor)

    async def audit(self) -> Comparison:
        """
        One pass.

        @return: what was found. Tiers that could not be read are named in its notes, and it is not
            certain then.
        """
        nowMs = self.nowMs()
        sinceMs = max(0, nowMs - self._settings.horizonMs)
        self._ledger.forgetBefore(sinceMs)
        problems: dict[str, str] = {}
        await self._eachTier(problems, lambda reader: reader.readCounts(self._counter, sinceMs))
        topics = set(self._settings.topics) or self._ledger.reportedTopics - {
            self._settings.auditTopic
        }
        await self._eachTier(
            problems, lambda reader: reader.readData(self._counter, sorted(topics), sinceMs)
        )
        for reader in self._readers:
            if reader.name not in problems and (lack := reader.lack(sinceMs)):
                problems[reader.name] = lack
        tiers = [reader.name for reader in self._readers if reader.name not in problems]
        notes = [f"{name} was not audited: {problem}" for name, problem in problems.items()]
        notes += self._counter.notes()
        for reader in self._readers:
            notes += reader.notes()
        comparison = self._ledger.compare(tiers, nowMs, self._settings.graceMs, topics, notes)
        return replace(comparison, isCertain=False) if problems else comparison

    async def _eachTier(self, problems: dict[str, str], act: Callable[[IAuditTier], Any]) -> None:
        """All at the same time; those that have failed already are left alone."""

        async def one(reader: IAuditTier) -> None:
            try:
                await act(reader)
            except PylogbrokerError as error:
                problems[reader.name] = str(error)

        await gatherAll([one(reader) for reader in self._readers if reader.name not in problems])

    async def close(self) -> None:
        """Let go of all connections."""
        for reader in self._readers:
            await reader.close()
