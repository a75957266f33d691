"""
C{twistd pylogbroker}: the broker as a twistd plugin.

What an operator gets: a start that fails says why in one line and exits with 1; C{SIGTERM} and C{SIGINT} flush everything, write the clean-shutdown
mark, and exit with 0. (twistd by itself would let the process die of the signal after an orderly stop.)
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from twisted.application.service import IService, Service
from twisted.python import usage

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.properties import readProperties
from pylogbroker.config.settings import BrokerSettings
from pylogbroker.errors import PylogbrokerError


class Options(usage.Options):
    """The options of C{twistd pylogbroker}."""

    synopsis = "[options] --config FILE [--set KEY=VALUE ...]"
    longdesc = "Runs a broker that speaks the protocol of Kafka 0.7. Example: twistd -n pylogbroker --config etc/broker.properties --set port=9093"
    optParameters = [["config", "c", None, "The property file, with Kafka's property names."]]

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    def opt_set(self, change: str) -> None:
        """A property that overrides the file's, as KEY=VALUE. Can be repeated."""
        self.changes.append(change)

    opt_s = opt_set

    def postOptions(self) -> None:
        """Read the file; what is wrong with it is a usage error."""
        if self["config"] is None:
            raise usage.UsageError("--config FILE is missing")
        try:
            properties = readProperties(self["config"], _warn).overlaid(self.changes)
            self.settings = BrokerSettings.fromProperties(properties, _warn)
        except PylogbrokerError as error:
            raise usage.UsageError(str(error)) from error


def _warn(sentence: str) -> None:
    sys.stderr.write(f"pylogbroker: {sentence}\n")


def _sayWhy(kind: type[BaseException], error: BaseException, traceback: object) -> None:
    """One line, in the log (which twistd has put in the place of standard error) and on standard error."""
    for stream in {sys.stderr, sys.__stderr__}:
        if stream is not None:
            stream.write(f"pylogbroker: {error}\n")


class EndsOrderly(Service):
    """Mixed into a service: its process ends with 0 when it was asked to end."""

    _reactor: Any

    def startService(self) -> None:
        super().startService()
        self._reactor.callWhenRunning(self._catchSignals)

    def _catchSignals(self) -> None:
        """After the reactor has installed its own: those would make twistd end by the signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._stopReactor))

    def _stopReactor(self) -> None:
        if self._reactor.running:
            self._reactor.stop()


class TwistdBrokerService(EndsOrderly, BrokerService):
    """A broker whose start fails in one line, and whose process ends with 0 when it was asked to end."""

    def privilegedStartService(self) -> None:
        try:
            super().privilegedStartService()
        except PylogbrokerError:
            # twistd tidies up, tells the parent process if it has detached, and lets the error end this one with status 1. (It would do neither
            # of the first two for a SystemExit.) What Python prints then is for people, not for us.
            sys.excepthook = _sayWhy
            raise


def makeService(options: Options) -> IService:
    """Called by twistd."""
    from twisted.internet import reactor

    service: Any = TwistdBrokerService(reactor, options.settings)
    return service  # type: ignore[no-any-return]
