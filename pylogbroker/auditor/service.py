"""
The auditor as a Twisted service: it audits at an interval, logs each hole, and serves its last
result over HTTP. A module of its own, since an application can run this service without C{twistd}.

    /metrics      for Prometheus
    /audit.json   for programs
    /audit.txt    for people

It only reads, and listens on the loopback interface by default. It logs a hole once when it appears
and once when it closes, because data may come late.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pylogbroker.audit.comparison import Comparison
from pylogbroker.audit.comparisonformats import asJson, asTable, timeText
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.metrics.exposition import CONTENT_TYPE, families, render, scalar
from pylogbroker.net.httpserver import HttpResponse, HttpService, HttpSite, Query, textReply
from pylogbroker.net.listeners import formatAddress

LOGGED_COUNT_MAX = 1_000
"""Holes that are logged one by one, at a time; the number of the others is."""

_METRICS = (
    (
        "expected_messages",
        "expected",
        "Messages that ought to be there, in the windows that are over.",
    ),
    ("seen_messages", "seen", "Messages that are there, in the windows that are over."),
    (
        "missing_messages",
        "missing",
        "Messages that are missing, over all windows that are over.",
    ),
    ("missing_windows", "missingWindows", "Windows in which messages are missing."),
    (
        "more_messages",
        "more",
        "Messages that are there beyond those that were sent, over all windows that are over.",
    ),
)


def asPrometheus(comparison: Comparison) -> str:
    """A comparison as gauges by topic and tier."""
    rows = {
        (line.topic, line.tier): {
            "expected": line.expectedCount,
            "seen": line.seenCount,
            "missing": 0,
            "missingWindows": 0,
            "more": 0,
        }
        for line in comparison.totals
    }
    for line in comparison.missing:
        rows[line.topic, line.tier]["missing"] += line.missingCount
        rows[line.topic, line.tier]["missingWindows"] += 1
    for line in comparison.more:
        rows[line.topic, line.tier]["more"] += line.moreCount
    labelled = [({"topic": topic, "tier": tier}, row) for (topic, tier), row in rows.items()]
    return render(
        [
            *families("pylogbroker_audit", _METRICS, labelled),
            scalar(
                "pylogbroker_audit_certain",
                "Whether everything could be counted.",
                comparison.isCertain,
            ),
            scalar(
                "pylogbroker_audit_time_seconds",
                "When the tiers were compared, since the epoch.",
                comparison.nowMs / 1000,
            ),
        ]
    ).decode()


_PAGES: dict[str, tuple[str, Callable[[Comparison], str]]] = {
    "/metrics": (CONTENT_TYPE, asPrometheus),
    "/audit.json": ("application/json", asJson),
    "/audit.txt": ("text/plain; charset=utf-8", asTable),
}


class AuditorService(HttpService):
    """
    The service around an L{Auditor}.

    @ivar auditor: the auditor.
    @ivar comparison: the last result; L{None} before the first pass ends.
    """

    _log = Logger()
    name = "pylogbroker-auditor"

    def __init__(self, reactor: Any, settings: AuditorSettings, auditor: Auditor) -> None:
        self.auditor = auditor
        self.comparison: Comparison | None = None
        pages = {path: partial(self._show, kind, show) for path, (kind, show) in _PAGES.items()}
        web = HttpSite(reactor, pages, settings.hosts, "hosts")
        super().__init__(reactor, web, settings.listen, f"listen={settings.listen}")
        self._settings = settings
        self._holes: dict[tuple[str, int, str], None] = {}
        self._passing = LoopingCall(self._pass)
        self._passing.clock = reactor
        self._isPassing: Deferred[None] | None = None

    def privilegedStartService(self) -> None:
        """As L{HttpService.privilegedStartService}; an empty C{listen} serves no site."""
        if self._settings.listen:
            super().privilegedStartService()

    def _show(self, kind: str, show: Callable[[Comparison], str], _query: Query) -> HttpResponse:
        if self.comparison is None:
            return textReply("The first pass is not over yet.", 503)
        return HttpResponse(200, kind, show(self.comparison).encode())

    def startService(self) -> None:
        """Start the first pass."""
        self.privilegedStartService()
        super().startService()
        names = " ".join(tier.name for tier in self._settings.tiers)
        self._log.info(
            "The auditor counts {tiers}, and tells on {listen}",
            tiers=names,
            listen=formatAddress(self.port.getHost()) if self.port else "nothing",
        )
        passing = self._passing.start(self._settings.intervalMs / 1000)
        passing.addErrback(
            lambda failure: self._log.failure("The auditor has stopped: this is a bug", failure)
        )

    async def _stop(self) -> None:
        """A running pass is cancelled."""
        await super()._stop()
        if self._passing.running:
            self._passing.stop()
        if self._isPassing is not None:
            self._isPassing.cancel()
        await self.auditor.close()

    def _pass(self) -> Deferred[None]:
        self._isPassing = passing = Deferred.fromCoroutine(self._audit())

        def over(result: Any) -> None:
            self._isPassing = None
            if result is not None and self.running:
                self._log.failure(
                    "A pass of the auditor has failed, the next one tries again", result
                )

        return passing.addBoth(over)

    async def _audit(self) -> None:
        comparison = await self.auditor.audit()
        before = self.comparison
        self.comparison = comparison
        self._tell(comparison)
        if before is None or list(before.notes) != list(comparison.notes):
            for note in comparison.notes:
                self._log.warn("{note}", note=note)

    def _tell(self, comparison: Comparison) -> None:
        """Log new holes and closed ones."""
        found = {(line.topic, line.startMs, line.tier): line for line in comparison.missing}
        news = [line for key, line in found.items() if key not in self._holes]
        judged = {
            (line.topic, line.startMs, line.tier)
            for line in (*comparison.lines, *comparison.totals)
        }
        closed = [key for key in self._holes if key not in found and key in judged]
        for line in news[:LOGGED_COUNT_MAX]:
            self._log.error(
                "At least {missing} of {expected} messages of {topic} are missing in {tier}, window"
                " {window}",
                missing=line.missingCount,
                expected=line.expectedCount,
                topic=line.topic,
                tier=line.tier,
                window=timeText(line.startMs),
            )
        if len(news) > LOGGED_COUNT_MAX:
            self._log.error("{count} more windows have holes", count=len(news) - LOGGED_COUNT_MAX)
        for topic, startMs, tier in closed:
            self._log.info(
                "Nothing is missing any more of {topic} in {tier}, window {window}",
                topic=topic,
                tier=tier,
                window=timeText(startMs),
            )
        # What was not judged this time, since its tier could not be read, is as it was; what is
        # older than the horizon is gone.
        horizonMs = comparison.nowMs - self._settings.horizonMs
        kept = [
            key for key in self._holes if key not in judged and (key[1] >= horizonMs or key[1] < 0)
        ]
        self._holes = dict.fromkeys([*kept, *found])
