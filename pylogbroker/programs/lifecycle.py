"""
Programs under C{twistd}: options, log levels, start, stop, and notification of systemd.

A failed start is one line and exit status 1. A signal ends a program with 0. (twistd by itself
would let the process die of the signal after an orderly stop.)

B{Log levels} by namespace can change while a program runs, as with 0.7.2's bean C{Log4jController}
(spec-0.7 metrics §5). C{--log-levels FILE} names a property file with a namespace and a level a
line::

    root=info
    pylogbroker.broker.authorization=error
    pylogbroker.consumer=debug

A namespace is the text in brackets in a log line, or its beginning up to a dot. C{root} stands for
all others, and is C{info} by default. C{SIGHUP} reads it again; a faulty file changes nothing.
Each change is logged. Without a file everything is logged. No HTTP request sets levels.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService
from twisted.internet.threads import deferToThreadPool
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    LogPublisher,
    globalLogPublisher,
)
from twisted.python import usage

from pylogbroker.broker.kafka07 import REQUEST_LOG as REQUESTS
from pylogbroker.config.properties import readProperties
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.clocksteps import bootSeconds, keepTimers

if TYPE_CHECKING:
    from pylogbroker.broker.service import BrokerService
    from pylogbroker.config.brokersettings import BrokerSettings
    from pylogbroker.console.service import ConsoleService

NOTIFY_SOCKET = "NOTIFY_SOCKET"
ROOT = "root"
DEFAULT = LogLevel.info
_OURS = "pylogbroker"


Levels = Mapping[str, Any]
"""C{twisted.logger} levels by namespace; C{""} is L{ROOT}."""


def readLevels(path: str, warn: Callable[[str], None]) -> Levels:
    """
    Read a file of levels. Blocks.

    @param warn: called with a sentence for each unknown or repeated namespace of ours.
    @raise ConfigurationError: the file cannot be read, or a level is unknown; names file and line.
    """
    properties = readProperties(path, warn)
    names = {level.name: level for level in LogLevel.iterconstants()}
    levels: dict[str, Any] = {"": DEFAULT}
    for namespace, name in properties.items():
        place = properties.location(namespace)
        level = names.get(name.strip().lower())
        if level is None:
            raise ConfigurationError(
                f"{place}: {namespace}={name}: must be one of {', '.join(names)}"
            )
        if namespace.partition(".")[0] == _OURS and not _exists(namespace):
            warn(f"{place}: {namespace}: nothing is logged under that name")
        levels["" if namespace == ROOT else namespace] = level
    return levels


def _exists(namespace: str) -> bool:
    module, _, name = namespace.rpartition(".")
    isClass = name.lstrip("_")[:1].isupper()
    try:
        return namespace == REQUESTS or (
            importlib.util.find_spec(module if isClass else namespace) is not None
        )
    except ImportError:  # what is before the last dot is no package
        return False


class LogLevels:
    """The levels of a file, as a filter of the log."""

    _log = Logger()

    def __init__(self, path: str, levels: Levels) -> None:
        self.path = path
        self._levels = levels
        self._predicate = LogLevelFilterPredicate()

    def begin(self, publisher: LogPublisher) -> None:
        """Put a filter before each present observer of a publisher."""
        self._set()
        trace: list[tuple[Any, Any]] = []
        # A publisher names its observers only in the trace of an event.
        Logger(self._log.namespace, observer=publisher).info(
            "Log levels: {levels}", levels=str(self), log_trace=trace
        )
        for observer in [observer for source, observer in trace if source is publisher]:
            publisher.removeObserver(observer)
            publisher.addObserver(FilteringLogObserver(observer, [self._predicate]))

    def change(self, levels: Levels) -> None:
        """Use new levels."""
        self._levels = levels
        self._set()
        self._log.info("Log levels: {levels}", levels=str(self))

    def keep(self, error: BaseException) -> None:
        """Log that the file could not be read again."""
        self._log.error("The log levels stay as they were: {error}", error=error)

    def warn(self, sentence: str) -> None:
        """Log a warning about the file."""
        self._log.warn("{sentence}", sentence=sentence)

    def _set(self) -> None:
        self._predicate.clearLogLevels()
        # A change of levels is logged, whatever they are.
        self._predicate.setLogLevelForNamespace(self._log.namespace, DEFAULT)
        for namespace, level in self._levels.items():
            self._predicate.setLogLevelForNamespace(namespace, level)

    def __str__(self) -> str:
        return " ".join(
            f"{namespace or ROOT}={level.name}" for namespace, level in sorted(self._levels.items())
        )


def warn(sentence: str) -> None:
    """Print a warning before there is a log."""
    sys.stderr.write(f"pylogbroker: {sentence}\n")


def printStartupError(
    kind: type[BaseException], error: BaseException, traceback: object, isLogShown: bool = False
) -> None:
    """
    Print an error on standard error and in the log, which twistd has put in place of C{sys.stderr}.

    @param isLogShown: whether the log goes to standard error; then the error is printed once.
    """
    for stream in {sys.__stderr__ if isLogShown else sys.stderr, sys.__stderr__}:
        if stream is not None:
            stream.write(f"pylogbroker: {error}\n")


def isLogShown(options: Mapping[str, Any]) -> bool:
    """Whether twistd's log and standard error go to the same terminal, file or socket."""
    if not options["nodaemon"] or options["syslog"] or (options["logfile"] or "-") != "-":
        return False
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False


def notifySystemd(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """
    Send a state to systemd (C{sd_notify}), for units of C{Type=notify}. Does not fail.

    @param state: C{READY=1}, C{STOPPING=1} …
    @return: whether the state was sent.
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
    Options of all programs: C{--log-levels FILE}.

    @ivar logLevels: L{None} without the option.
    """

    optParameters: list[list[Any]] = [
        [
            "log-levels",
            None,
            None,
            "A property file with log levels, NAMESPACE=LEVEL; SIGHUP reads it again.",
        ]
    ]
    logLevels: LogLevels | None = None

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        @raise usage.UsageError: an option or a property is wrong.
        @raise SystemExit: the same, under twistd, which would print a page of usage first.
        """
        try:
            super().parseOptions(options)
        except (usage.UsageError, PylogbrokerError) as error:
            if self.parent is None:
                raise usage.UsageError(str(error)) from error
            raise SystemExit(f"pylogbroker: {error}") from error

    def configure(self, service: Any) -> IService:
        """Hand the options to a L{TwistdLifecycle}. Returns it."""
        service.logLevels = self.logLevels
        service.isLogShown = self.parent is not None and isLogShown(self.parent)
        return service  # type: ignore[no-any-return]

    def postOptions(self) -> None:
        """Read the file. C{parseOptions} turns errors into usage errors."""
        path = self["log-levels"]
        if path is not None:
            self.logLevels = LogLevels(os.path.abspath(path), readLevels(path, warn))


class PropertyOptions(ProgramOptions):
    """
    Options of programs with a property file: C{--config FILE} and C{--set KEY=VALUE}.

    @ivar settings: the result of L{read}.
    """

    optParameters = [["config", "c", None, "The property file."]]
    settings: Any

    def opt_set(self, change: str) -> None:
        """A property that overrides the file's, as KEY=VALUE. Can be repeated."""
        self.setdefault("set", []).append(change)

    opt_s = opt_set

    @staticmethod
    def read(properties: Mapping[str, str], warn: Callable[[str], None]) -> Any:
        """Make the settings. Subclasses name their settings' C{fromProperties}."""
        raise NotImplementedError

    def postOptions(self) -> None:
        """Read the file."""
        super().postOptions()
        if self["config"] is None:
            raise usage.UsageError("--config FILE is missing")
        properties = readProperties(self["config"], warn).withOverrides(self.get("set", ()))
        self.settings = self.read(properties, warn)


def brokerSite(
    reactor: Any, settings: BrokerSettings, broker: BrokerService
) -> ConsoleService | None:
    """
    The HTTP service of a broker, which is imported only where there is one: metrics, console and
    HTTP are a fifth of all that a broker imports.

    @return: L{None} without C{http.listener}.
    """
    if not settings.httpListener.strip():
        return None
    from pylogbroker.console.service import brokerConsole

    return brokerConsole(reactor, settings, broker)


class HttpServiceMixin:
    """
    A base class before a service's: an HTTP server that starts and stops with the service. It takes
    its port first, so that a taken port fails before anything has happened, and releases it first.

    @ivar site: the HTTP server, a service, or L{None}.
    """

    site: Any = None

    def privilegedStartService(self) -> None:
        """Take the ports, before the reactor runs."""
        if self.site is not None:
            self.site.privilegedStartService()
        super().privilegedStartService()  # type: ignore[misc]

    @asDeferred
    async def stopService(self) -> None:
        """@return: fires when both have stopped."""
        if self.site is not None:
            await self.site.stopService()
        await super().stopService()  # type: ignore[misc]


class TwistdLifecycle:
    """
    The first base class of a service under C{twistd}. A failed start is one line and status 1.
    C{SIGTERM} and C{SIGINT} end the process with status 0.

    @ivar logLevels: L{None} logs everything.
    @ivar isLogShown: see L{isLogShown}.
    """

    _reactor: Any
    logLevels: LogLevels | None = None
    isLogShown = False
    _isStopping = False

    def privilegedStartService(self) -> None:
        """Start the part that may fail, before the reactor runs."""
        if self.logLevels is not None:
            self.logLevels.begin(globalLogPublisher)
            # Before the service runs: without a handler the signal kills.
            signal.signal(
                signal.SIGHUP,
                lambda *_: self._reactor.callFromThread(self._readLevels, self.logLevels),
            )
        try:
            super().privilegedStartService()  # type: ignore[misc]
        except PylogbrokerError:
            # For an error, unlike a SystemExit, twistd cleans up, and tells a detached parent.
            sys.excepthook = partial(printStartupError, isLogShown=self.isLogShown)
            raise

    def startService(self) -> None:
        """Start; systemd is notified when the reactor runs."""
        keepTimers(self._reactor, bootSeconds)
        super().startService()  # type: ignore[misc]
        self._reactor.callWhenRunning(self._catchSignals)

    def _catchSignals(self) -> None:
        """Replace the reactor's own handlers, with which twistd would end by the signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._stopReactor))
        notifySystemd("READY=1")

    @asDeferred
    async def _readLevels(self, logLevels: LogLevels) -> None:
        """Read the file again, on a thread."""

        def warn(sentence: str) -> None:
            self._reactor.callFromThread(logLevels.warn, sentence)

        pool = self._reactor.getThreadPool()
        try:
            levels = await deferToThreadPool(self._reactor, pool, readLevels, logLevels.path, warn)
        except PylogbrokerError as error:
            logLevels.keep(error)
        else:
            logLevels.change(levels)

    def endInFailure(self, error: PylogbrokerError) -> None:
        """
        Print an error that prevents the service while the reactor runs, stop, and exit with 1.

        twistd exits with 0 whatever happened while its reactor ran, so the last C{atexit} function
        sets the status.
        """
        printStartupError(type(error), error, None, self.isLogShown)
        self._reactor.addSystemEventTrigger("after", "shutdown", atexit.register, os._exit, 1)
        self._stopReactor()

    def _stopReactor(self) -> None:
        # The reactor is still "running" after stop(), until all services have stopped.
        if self._reactor.running and not self._isStopping:
            self._isStopping = True
            notifySystemd("STOPPING=1")
            self._reactor.stop()
