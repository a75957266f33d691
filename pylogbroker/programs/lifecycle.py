"""
What programs under C{twistd} have in common: levels of the log, which C{SIGHUP} has read again; a property file and changes to it; a site that lives as long as
they do; a start that fails in one line and exits with 1; an end with 0 when a signal has asked for it (twistd by itself would let the process die of the signal
after an orderly stop); and a word to systemd.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import globalLogPublisher
from twisted.python import usage
from twisted.python.failure import Failure

from pylogbroker.config.properties import readProperties
from pylogbroker.errors import PylogbrokerError
from pylogbroker.programs.loglevels import LogLevels, readLevels

NOTIFY_SOCKET = "NOTIFY_SOCKET"


def warn(sentence: str) -> None:
    """Before there is a log."""
    sys.stderr.write(f"pylogbroker: {sentence}\n")


def printStartupError(
    kind: type[BaseException],
    error: BaseException,
    traceback: object,
    isLogShown: bool = False,
) -> None:
    """
    One line on standard error, and one in the log (which twistd has put in the place of C{sys.stderr}).

    @param isLogShown: whether the log goes where standard error goes: then one line is enough.
    """
    for stream in {sys.__stderr__ if isLogShown else sys.stderr, sys.__stderr__}:
        if stream is not None:
            stream.write(f"pylogbroker: {error}\n")


def isLogShown(options: Mapping[str, Any]) -> bool:
    """
    Whether twistd's log goes to standard output, and that is the same terminal, file or socket as standard error.

    @param options: twistd's.
    """
    if not options["nodaemon"] or options["syslog"] or (options["logfile"] or "-") != "-":
        return False
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False


def notifySystemd(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """
    Tell systemd how things are (C{sd_notify}), for units of C{Type=notify}.

    @param state: C{READY=1}, C{STOPPING=1} …
    @return: whether systemd, or anybody, wanted to know and was told. It is never an error.
    """
    path = environment.get(NOTIFY_SOCKET, "")
    if not path:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1)
            sender.connect("\0" + path[1:] if path.startswith("@") else path)
            sender.send(state.encode())
    except OSError:
        return False
    return True


class ProgramOptions(usage.Options):
    """
    C{--log-levels FILE}.

    @ivar logLevels: L{None} without it.
    """

    optParameters: list[list[Any]] = [
        [
            "log-levels",
            None,
            None,
            "A property file with the log's levels, NAMESPACE=LEVEL; SIGHUP has it read again.",
        ]
    ]
    logLevels: LogLevels | None = None

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        @raise usage.UsageError: an option or a property is wrong.
        @raise SystemExit: the same under twistd, which would print a page of usage before the reason.
        """
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            if self.parent is None:
                raise
            raise SystemExit(f"pylogbroker: {error}") from error

    @property
    def isLogShown(self) -> bool:
        """See L{isLogShown}."""
        return self.parent is not None and isLogShown(self.parent)

    def postOptions(self) -> None:
        """Read the file; what is wrong with it is a usage error."""
        path = self["log-levels"]
        if path is None:
            return
        try:
            self.logLevels = LogLevels(os.path.abspath(path), readLevels(path, warn))
        except PylogbrokerError as error:
            raise usage.UsageError(str(error)) from error


class PropertyOptions(ProgramOptions):
    """
    C{--config FILE} and C{--set KEY=VALUE}.

    @ivar settings: what L{read} made of it.
    """

    optParameters = [["config", "c", None, "The property file."]]
    settings: Any

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    def opt_set(self, change: str) -> None:
        """A property that overrides the file's, as KEY=VALUE. Can be repeated."""
        self.changes.append(change)

    opt_s = opt_set

    def read(self, properties: Mapping[str, str], warn: Callable[[str], None]) -> Any:
        """Make the settings; to be overridden. Raises L{PylogbrokerError}."""
        raise NotImplementedError

    def postOptions(self) -> None:
        """Read the file; what is wrong with it is a usage error."""
        super().postOptions()
        if self["config"] is None:
            raise usage.UsageError("--config FILE is missing")
        try:
            self.settings = self.read(
                readProperties(self["config"], warn).withOverrides(self.changes), warn
            )
        except PylogbrokerError as error:
            raise usage.UsageError(str(error)) from error


class HttpEndpointMixin:
    """
    Beside a service, in front of it in the list of bases: it begins and ends with what it serves over HTTP. The site takes its port first, so that a taken one
    fails while nothing has happened, and lets it go first.

    @ivar site: a service; L{None}: nothing is served.
    """

    site: Any = None

    def privilegedStartService(self) -> None:
        """Before the reactor runs."""
        if self.site is not None:
            self.site.privilegedStartService()
        super().privilegedStartService()  # type: ignore[misc]

    def stopService(self) -> Deferred[None]:
        """Fires when both have stopped."""
        if self.site is None:
            return super().stopService()  # type: ignore[no-any-return, misc]
        return self.site.stopService().addCallback(  # type: ignore[no-any-return]
            lambda _: super(HttpEndpointMixin, self).stopService()  # type: ignore[misc]
        )


class TwistdLifecycle:
    """
    Beside a service, first in the list of bases: its start fails in one line, and it ends with 0.

    @ivar logLevels: what is logged; L{None}: all.
    @ivar isLogShown: see L{isLogShown}.
    """

    _reactor: Any
    logLevels: LogLevels | None = None
    isLogShown = False

    def privilegedStartService(self) -> None:
        """Before the reactor runs."""
        if self.logLevels is not None:
            self.logLevels.begin(globalLogPublisher)
            # Now, and not when it serves: until somebody catches this signal, it kills.
            signal.signal(
                signal.SIGHUP,
                lambda *_: self._reactor.callFromThread(self._readLevels, self.logLevels),
            )
        try:
            super().privilegedStartService()  # type: ignore[misc]
        except PylogbrokerError:
            # twistd tidies up, tells the parent process if it has detached, and lets the error end this one with status 1. (It would do neither
            # of the first two for a SystemExit.) What Python prints then is for people, not for us.
            sys.excepthook = partial(printStartupError, isLogShown=self.isLogShown)
            raise

    def startService(self) -> None:
        """Begin; systemd is told when the reactor runs."""
        super().startService()  # type: ignore[misc]
        self._reactor.callWhenRunning(self._catchSignals)

    def _catchSignals(self) -> None:
        """After the reactor has installed its own: those would make twistd end by the signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._stopReactor))
        notifySystemd("READY=1")

    def _readLevels(self, logLevels: LogLevels) -> None:
        """Again, on a thread."""

        def warn(sentence: str) -> None:
            self._reactor.callFromThread(logLevels.warn, sentence)

        def failed(failure: Failure) -> None:
            failure.trap(PylogbrokerError)
            logLevels.keep(failure.value)

        reading = deferToThreadPool(
            self._reactor, self._reactor.getThreadPool(), readLevels, logLevels.path, warn
        )
        reading.addCallbacks(logLevels.change, failed)

    def endInFailure(self, error: PylogbrokerError) -> None:
        """
        What makes it impossible to begin was found only after the reactor ran: one line, an orderly stop, and status 1.

        (twistd ends with 0 whatever happens while its reactor runs, and lets nobody say otherwise: so the interpreter does, as its last act.)
        """
        printStartupError(type(error), error, None, self.isLogShown)
        self._reactor.addSystemEventTrigger("after", "shutdown", atexit.register, os._exit, 1)
        self._stopReactor()

    def _stopReactor(self) -> None:
        if self._reactor.running:
            notifySystemd("STOPPING=1")
            self._reactor.stop()
