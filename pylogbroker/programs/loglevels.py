"""
Levels of the log, by namespace, that can be changed while a program runs: what 0.7.2 has its bean C{Log4jController} for (spec-0.7 metrics §5).

C{--log-levels FILE} names a property file with a namespace and its level a line::

    root=info
    pylogbroker.broker.authorization=error
    pylogbroker.consumer=debug

A namespace is what a line of the log has in brackets, or its beginning up to a dot: a module, or a class in it. C{root} stands for all others, and is
C{info} if nobody says anything. What is below its level is not logged. C{SIGHUP} has the file read again; if something is wrong with it then, all stays as
it was. What the levels are is logged each time.

Without a file nothing is left out. Levels are not set over HTTP, since the first promise of what is served there is that no request changes anything.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    LogPublisher,
)

from pylogbroker.broker.kafka07 import REQUEST_LOG as REQUESTS
from pylogbroker.config.properties import readProperties
from pylogbroker.errors import ConfigurationError

ROOT = "root"
DEFAULT = LogLevel.info
_OURS = "pylogbroker"

Levels = Mapping[str, Any]
"""C{twisted.logger} levels by namespace; C{""} for L{ROOT}."""


def readLevels(path: str, warn: Callable[[str], None]) -> Levels:
    """
    Read a file of levels. Blocks.

    @param warn: called with a sentence for each namespace of ours that does not exist, or comes twice.
    @raise ConfigurationError: it cannot be read, or says what is no level; names file and line.
    """
    properties = readProperties(path, warn)
    names = {level.name: level for level in LogLevel.iterconstants()}
    levels: dict[str, Any] = {"": DEFAULT}
    for namespace, name in properties.items():
        place = properties.location(namespace)
        if name.strip().lower() not in names:
            raise ConfigurationError(
                f"{place}: {namespace}={name}: must be one of {', '.join(names)}"
            )
        if namespace.partition(".")[0] == _OURS and not _exists(namespace):
            warn(f"{place}: {namespace}: nothing is logged under that name")
        levels["" if namespace == ROOT else namespace] = names[name.strip().lower()]
    return levels


def _exists(namespace: str) -> bool:
    module, _, name = namespace.rpartition(".")
    return namespace == REQUESTS or _isModule(
        module if name.lstrip("_")[:1].isupper() else namespace
    )


def _isModule(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # what is before the last dot is no package
        return False


class LogLevels:
    """
    What is logged, by a file.
    """

    _log = Logger()

    def __init__(self, path: str, levels: Levels) -> None:
        """
        @param path: the file.
        @param levels: what it says.
        """
        self.path = path
        self._levels = levels
        self._predicate = LogLevelFilterPredicate()

    def begin(self, publisher: LogPublisher) -> None:
        """Put a filter before each observer that a publisher has now."""
        self._set(self._levels)
        trace: list[tuple[Any, Any]] = []
        # The line is traced: that is how a publisher tells, to whom it publishes.
        Logger(self._log.namespace, observer=publisher).info(
            "Log levels: {levels}", levels=str(self), log_trace=trace
        )
        for observer in [observer for source, observer in trace if source is publisher]:
            publisher.removeObserver(observer)
            publisher.addObserver(FilteringLogObserver(observer, [self._predicate]))

    def change(self, levels: Levels) -> None:
        """From now on these."""
        self._levels = levels
        self._set(levels)
        self._log.info("Log levels: {levels}", levels=str(self))

    def keep(self, error: BaseException | None) -> None:
        """The file could not be read again."""
        self._log.error("The log levels stay as they were: {error}", error=error)

    def warn(self, sentence: str) -> None:
        """Something in the file is odd."""
        self._log.warn("{sentence}", sentence=sentence)

    def _set(self, levels: Levels) -> None:
        self._predicate.clearLogLevels()
        self._predicate.setLogLevelForNamespace(
            self._log.namespace, DEFAULT
        )  # who changes levels sees that, whatever they are
        for namespace, level in levels.items():
            self._predicate.setLogLevelForNamespace(namespace, level)

    def __str__(self) -> str:
        return " ".join(
            f"{namespace or ROOT}={level.name}" for namespace, level in sorted(self._levels.items())
        )
