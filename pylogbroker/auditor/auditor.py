"""
One pass of an audit: read the counts, read the data, compare.

The counts are read first. A count is published after the messages that it counts were written; so
whatever has been reported when the data is read has been sent before, and can be there. (What was
written and is not flushed yet is not visible; the grace covers that.)

A table of a warehouse is a tier, too. What it has its loader has counted already
(L{TableTier}).

A tier that could not be read whole is left out of the comparison, and said: what has not been
looked for is not missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twisted.logger import Logger

from pylogbroker.audit.comparison import AuditAggregator, Comparison
from pylogbroker.audit.counts import FUTURE_MS_MAX, CountReport, decodeReport
from pylogbroker.audit.envelope import envelopeTime
from pylogbroker.auditor.tiers import ClusterTier, TableTier
from pylogbroker.config.auditsettings import AuditorSettings, TierAddress
from pylogbroker.errors import FormatError, PylogbrokerError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.records.compression import crc32
from pylogbroker.records.messageset import MessageSet

TimeOf = Callable[[bytes], "int | None"]
Tier = ClusterTier | TableTier


class Auditor:
    """
    Audits the tiers of its settings, pass after pass.

    @ivar messageCount: messages that were counted, all tiers and topics together.
    """

    _log = Logger()

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
        self.messageCount = 0
        self._reactor = reactor
        self._settings = settings
        self._timeOf = timeOf
        self._ledger = AuditAggregator(settings.auditWindowMs)
        self._readers = [
            TableTier(reactor, tier)
            if tier.table
            else ClusterTier(reactor, tier, settings, zookeeper)
            for tier in settings.tiers
        ]
        self._foreignCount = self._futureCount = self._timeOfFailedCount = 0

    def nowMs(self) -> int:
        """The time, in milliseconds since the epoch."""
        return int(self._reactor.seconds() * 1000)

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
        await self._eachTier(problems, lambda reader: self._readCounts(reader, sinceMs))
        topics = set(self._settings.topics) or self._ledger.reportedTopics - {
            self._settings.auditTopic
        }
        await self._eachTier(
            problems, lambda reader: self._readData(reader, sorted(topics), sinceMs)
        )
        for reader in self._readers:
            if (
                isinstance(reader, ClusterTier)
                and reader.name not in problems
                and (lack := reader.lack(sinceMs))
            ):
                problems[reader.name] = lack
        tiers = [reader.name for reader in self._readers if reader.name not in problems]
        notes = [f"{name} was not audited: {problem}" for name, problem in problems.items()]
        comparison = self._ledger.compare(
            tiers, nowMs, self._settings.graceMs, topics, (*notes, *self._notes())
        )
        return replace(comparison, isCertain=False) if problems else comparison

    async def _eachTier(self, problems: dict[str, str], act: Callable[[Tier], Any]) -> None:
        """All at the same time; those that have failed already are left alone."""

        async def one(reader: Tier) -> None:
            try:
                await act(reader)
            except PylogbrokerError as error:
                problems[reader.name] = str(error)

        await gatherAll([one(reader) for reader in self._readers if reader.name not in problems])

    # -- counts

    async def _readCounts(self, reader: Tier, sinceMs: int) -> None:
        if isinstance(reader, TableTier):
            return
        await reader.open()
        await reader.read(self._settings.auditTopic, sinceMs, self._takeReports)

    def _takeReports(self, fetched: MessageSet) -> int | None:
        reports: list[CountReport] = []
        behind, foreignCount = None, 0
        for payload, behind in fetched.payloads():
            try:
                reports.append(decodeReport(payload))
            except FormatError:
                foreignCount += 1
        self._foreignCount += foreignCount
        latestMs = self.nowMs() + FUTURE_MS_MAX
        for report in reports:
            if report.startMs <= latestMs:
                self._ledger.enter(report)
        return behind

    # -- data

    async def _readData(self, reader: Tier, topics: list[str], sinceMs: int) -> None:
        if isinstance(reader, TableTier):
            self.messageCount += await reader.read(self._ledger, set(topics), sinceMs)
            return
        for topic in topics:
            await reader.read(
                topic,
                sinceMs,
                lambda fetched, topic=topic: self._takeData(reader.name, topic, fetched),  # type: ignore[misc]
            )

    def _takeData(self, tier: str, topic: str, fetched: MessageSet) -> int | None:
        windowMs, timeOf = self._settings.auditWindowMs, self._timeOf
        windows: dict[int | None, tuple[int, int]] = {}
        behind = None
        for payload, behind in fetched.payloads():
            time = envelopeTime(payload)
            if time is None and timeOf is not None:
                time = self._askTime(timeOf, payload)
            startMs = None if time is None else time - time % windowMs
            count, checksum = windows.get(startMs, (0, 0))
            windows[startMs] = count + 1, checksum + crc32(payload)
        nowMs = self.nowMs()
        for startMs, (count, checksum) in windows.items():
            self.messageCount += count
            if startMs is None:
                self._ledger.see(tier, topic, self._ledger.startOf(nowMs), count, True, checksum)
            elif startMs > nowMs + FUTURE_MS_MAX:
                self._futureCount += count
            else:
                self._ledger.see(tier, topic, startMs, count, False, checksum)
        return behind

    def _askTime(self, timeOf: TimeOf, payload: bytes) -> int | None:
        try:
            time = timeOf(payload)
        except Exception:  # the application's own
            if not self._timeOfFailedCount:
                self._log.failure("timeOf failed; this is said once")
            self._timeOfFailedCount += 1
            return None
        return time if isinstance(time, int) else None

    # -- what else there is to say

    def _notes(self) -> list[str]:
        notes = []
        if self._foreignCount:
            notes.append(
                f"{self._foreignCount} messages of {self._settings.auditTopic} are no counts, and"
                " were left out"
            )
        if self._futureCount:
            notes.append(
                f"{self._futureCount} messages have a time that is more than a day ahead, and were"
                " left out"
            )
        if self._timeOfFailedCount:
            notes.append(
                f"timeOf failed on {self._timeOfFailedCount} messages; the first failure is logged"
            )
        for reader in self._readers:
            if reader.skippedCount:
                notes.append(
                    f"{reader.name}: {reader.skippedCount} times data was deleted before it was"
                    " counted"
                )
        return notes

    async def close(self) -> None:
        """Let go of all connections."""
        for reader in self._readers:
            await reader.close()
