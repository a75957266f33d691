"""
From messages to counts: which window a message belongs to, and its checksum. A module of its own,
since the tiers of both dialects count by it.

The time of a message is that of its envelope; else what the application's C{timeOf} reads in it;
else the timestamp of its record, if its producer has set that; else unknown: then it counts in the
window in which it is read. The checksum is that of the payload, of a record of today the value,
with its envelope. So it is the same in every tier that has the message, whatever the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.logger import Logger

from pylogbroker.audit.comparison import AuditAggregator
from pylogbroker.audit.counts import FUTURE_MS_MAX, CountReport, decodeReport
from pylogbroker.audit.envelope import envelopeTime
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.errors import FormatError
from pylogbroker.net.timer import wallMs
from pylogbroker.records.compression import crc32

TimeOf = Callable[[bytes], "int | None"]
"""The time of a payload in milliseconds since the epoch; L{None} when it has none."""

TimedPayloads = Iterable[tuple[bytes, "int | None"]]
"""
Payloads, and the timestamp of each in milliseconds since the epoch; L{None}: the message has none,
or not one of its producer.
"""

Take = Callable[[TimedPayloads], None]
"""Takes messages; or raises what the iteration raises, and takes none."""


class MessageCounter:
    """
    Counts the messages and reports of all tiers into one L{AuditAggregator}.

    @ivar messageCount: messages that were counted, all tiers and topics together.
    @ivar windowMs: the length of the windows.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        settings: AuditorSettings,
        ledger: AuditAggregator,
        timeOf: TimeOf | None = None,
    ) -> None:
        self.messageCount = 0
        self.windowMs = ledger.windowMs
        self._clock = clock
        self._auditTopic = settings.auditTopic
        self._ledger = ledger
        self._timeOf = timeOf
        self._foreignCount = self._futureCount = self._timeOfFailedCount = 0

    def _nowMs(self) -> int:
        return wallMs(self._clock)

    def takeReports(self, messages: TimedPayloads) -> None:
        """Take messages of the topic of the counts. A L{Take}."""
        reports: list[CountReport] = []
        foreignCount = 0
        for payload, _timestamp in messages:
            try:
                reports.append(decodeReport(payload))
            except FormatError:
                foreignCount += 1
        self._foreignCount += foreignCount
        latestMs = self._nowMs() + FUTURE_MS_MAX
        for report in reports:
            if report.startMs <= latestMs:
                self._ledger.enter(report)

    def takeMessages(self, tier: str, topic: str, messages: TimedPayloads) -> None:
        """Count messages. A L{Take}, with tier and topic."""
        windowMs, timeOf = self.windowMs, self._timeOf
        windows: dict[tuple[int | None, bool], tuple[int, int]] = {}
        for payload, timestamp in messages:
            time = envelopeTime(payload)
            if time is None and timeOf is not None:
                time = self._askTime(timeOf, payload)
            isRecordTime = time is None and timestamp is not None
            if isRecordTime:
                time = timestamp
            key = None if time is None else time - time % windowMs, isRecordTime
            count, checksum = windows.get(key, (0, 0))
            windows[key] = count + 1, checksum + crc32(payload)
        nowMs = self._nowMs()
        for (startMs, isRecordTime), (count, checksum) in windows.items():
            self.messageCount += count
            if startMs is None:
                self._ledger.see(tier, topic, self._ledger.startOf(nowMs), count, True, checksum)
            elif startMs > nowMs + FUTURE_MS_MAX:
                self._futureCount += count
            else:
                self._ledger.see(tier, topic, startMs, count, False, checksum, isRecordTime)

    def takeRows(
        self, tier: str, topic: str, timeMs: int, count: int, isArrival: bool, isRecordTime: bool
    ) -> None:
        """
        Count rows of a table, whose checksums are not known.

        @param isArrival: the time is that of loading.
        @param isRecordTime: the time is the timestamp of their records.
        """
        self.messageCount += count
        startMs = self._ledger.startOf(timeMs)
        self._ledger.see(tier, topic, startMs, count, isArrival, isRecordTime=isRecordTime)

    def leaveOut(self, count: int) -> None:
        """Messages that are there and cannot be counted."""
        self._ledger.leftOutCount += count

    def _askTime(self, timeOf: TimeOf, payload: bytes) -> int | None:
        try:
            time = timeOf(payload)
        except Exception:  # the application's own
            if not self._timeOfFailedCount:
                self._log.failure("timeOf failed; this is said once")
            self._timeOfFailedCount += 1
            return None
        return time if isinstance(time, int) else None

    def notes(self) -> list[str]:
        """What limits the result, a sentence each."""
        notes = []
        if self._foreignCount:
            notes.append(
                f"{self._foreignCount} messages of {self._auditTopic} are no counts, and were left"
                " out"
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
        return notes
