"""
How a process reports its metrics. A module of its own, since instances and stream managers report
so, and import no sinks.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import LoopingCall

from pylogbroker.topologies.control import ControlClient
from pylogbroker.topologies.messages import Hello, Metrics


class MetricsReporter:
    """Sends the metrics of a process at intervals; those that cannot be sent are left out."""

    def __init__(
        self,
        clock: IReactorTime,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        random: Callable[[], float],
        address: str,
        hello: Hello,
        read: Callable[[], Metrics],
        intervalMs: int,
    ) -> None:
        """
        @param endpointTo: makes an endpoint of C{host:port}.
        @param random: numbers from 0 up to, not including, 1.
        @param address: of the metrics manager.
        @param hello: what the process says of itself.
        @param read: what it has counted now.
        """
        self._read = read
        self._address = address
        self._intervalMs = intervalMs
        self._client = ControlClient(clock, endpointTo, random, lambda _attempt: hello)
        self._ticking = LoopingCall(self.report)
        self._ticking.clock = clock

    def start(self) -> None:
        """Connect, and report from the first interval on."""
        self._client.goTo(self._address)
        self._ticking.start(self._intervalMs / 1000, now=False)

    def stop(self) -> None:
        """Report a last time, and disconnect."""
        if self._ticking.running:
            self.report()
            self._ticking.stop()
        self._client.goTo(None)

    def report(self) -> None:
        """Report now."""
        self._client.send(self._read())
