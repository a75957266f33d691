"""
A table as a tier: its reader counts the rows in the manifests of its loads
(L{pylogbroker.lake.manifest}), and reads no rows. A module of its own, since it needs no broker.

A manifest counts once and as a whole; the reader keeps the last one and its counts in memory. Rows
that a later run has replaced are negative. All topics are counted within the horizon, because the
audited topics may change from pass to pass.

A row's time is that of an envelope if the count names its host. Otherwise it is the timestamp of a
record of today, unless the load's user gave an expression.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from pylogbroker.auditor.messagecounter import MessageCounter
from pylogbroker.config.auditsettings import TierAddress
from pylogbroker.errors import ConfigurationError, TableError
from pylogbroker.lake.manifest import EVENT_TIME_RULE, RunManifest
from pylogbroker.lake.table import Table
from pylogbroker.storage.files import RealFileSystem

WAITING_COUNT_MAX = 500_000
"""Windows of topics that no caller has asked for yet."""

AHEAD_MS = 24 * 3_600_000
"""A row's time may be so much later than the run that has loaded it."""


class _Seen(NamedTuple):
    """
    Rows of a topic.

    @ivar isArrival: the time is that of loading.
    @ivar isRecordTime: the time is the timestamp of their records.
    """

    topic: str
    timeMs: int
    rowCount: int
    isArrival: bool
    isRecordTime: bool


class TableTier:
    """
    The reader of one table.

    @ivar name: see L{IAuditTier}.
    """

    def __init__(self, reactor: Any, address: TierAddress) -> None:
        """@param reactor: its threads read the files."""
        self.name = address.name
        self._reactor = reactor
        self._table = Table(os.path.abspath(address.table), RealFileSystem())
        self._number = 0
        self._waiting: list[_Seen] = []

    async def readCounts(self, counter: MessageCounter, sinceMs: int) -> None:
        """A table has no counts of producers."""

    async def readData(
        self, counter: MessageCounter, topics: Collection[str], sinceMs: int
    ) -> None:
        """
        Count the rows loaded since the last call.

        @param sinceMs: older rows need not be counted.
        @raise pylogbroker.errors.PylogbrokerError: the table cannot be read or does not exist, or
            its windows do not fit. Rows found before the error count in the next call.
        """
        for manifest in reversed(await self._new(sinceMs)):
            if counter.windowMs % manifest.windowMs:
                raise ConfigurationError(
                    f"run {manifest.number} has counted in windows of {manifest.windowMs} ms, which"
                    f" do not divide {counter.windowMs} ms"
                )
            isByRule = manifest.eventTime == EVENT_TIME_RULE
            self._waiting += [
                _Seen(each.topic, each.startMs, each.rowCount, False, isByRule and not each.host)
                for each in manifest.windows
            ]
            self._waiting += [
                _Seen(topic, manifest.startedMs, count, True, False)
                for topic, count in manifest.arrivals.items()
            ]
            counter.leaveOut(manifest.leftOutCount)
            self._number = manifest.number
        chosen = [each for each in self._waiting if each.topic in topics]
        waiting = [
            each for each in self._waiting if each.topic not in topics and each.timeMs >= sinceMs
        ]
        self._waiting = waiting[-WAITING_COUNT_MAX:]
        counter.leaveOut(sum(each.rowCount for each in waiting[:-WAITING_COUNT_MAX]))
        for each in chosen:
            counter.takeRows(self.name, *each)

    def _new(self, sinceMs: int) -> Deferred[list[RunManifest]]:
        """The new manifests, the latest first."""

        def find() -> list[RunManifest]:
            if not self._table.manifestCount():
                raise TableError(
                    self._table.folder, "there is no table, or nothing was ever loaded to it"
                )
            return list(self._table.since(sinceMs - AHEAD_MS, self._number))

        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), find)

    def lack(self, sinceMs: int) -> str:
        """A table is there or not: L{readData} says."""
        return ""

    def notes(self) -> list[str]:
        """See L{IAuditTier}."""
        return []

    async def close(self) -> None:
        """There is nothing to close."""
