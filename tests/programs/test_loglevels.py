"""
Tests for L{pylogbroker.programs.lifecycle}. That C{SIGHUP} has levels read again is shown by a
process, in L{tests.integration.test_loglevels}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from twisted.logger import (
    ILogObserver,
    LogEvent,
    Logger,
    LogLevel,
    LogPublisher,
    formatEvent,
    globalLogPublisher,
)
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import directlyProvides

from pylogbroker.errors import ConfigurationError
from pylogbroker.programs.lifecycle import LogLevels, readLevels


def observer(observe: Callable[[LogEvent], None]) -> ILogObserver:
    """A function, as an observer."""
    directlyProvides(observe, ILogObserver)
    return cast("ILogObserver", observe)


class FileTests(SynchronousTestCase):
    """What a file says."""

    def read(self, text: str) -> dict[str, str]:
        path = self.mktemp()
        with open(path, "w") as file:
            file.write(text)
        self.warnings: list[str] = []
        return {
            namespace: level.name
            for namespace, level in readLevels(path, self.warnings.append).items()
        }

    def test_levels(self) -> None:
        """
        A namespace and a level a line, in letters of either case; C{root} is all that is not named,
        and C{info} if nobody says anything.
        """
        self.assertEqual(self.read(""), {"": "info"})
        self.assertEqual(
            self.read("# a comment\nroot=WARN\npylogbroker.broker = debug\n"),
            {"": "warn", "pylogbroker.broker": "debug"},
        )
        found = self.read(
            "twisted.web=critical \npylogbroker.requests=error\n"
            "pylogbroker.programs.brokertap.TwistdBrokerService=info\n"
        )
        self.assertEqual(list(found.values()), ["info", "critical", "error", "info"])
        self.assertEqual(self.warnings, [])

    def test_wrong(self) -> None:
        """What is no level is named with its line, and what would be right."""
        error = self.assertRaises(ConfigurationError, self.read, "root=info\npylogbroker=loud\n")
        self.assertIn(
            ":2: pylogbroker=loud: must be one of debug, info, warn, error, critical", str(error)
        )
        self.assertRaises(ConfigurationError, readLevels, "/nowhere", self.fail)

    def test_misspelt(self) -> None:
        """
        A namespace of ours that does not exist is warned of, and so is one that comes twice; those
        of others are not for us to know.
        """
        self.assertEqual(
            self.read(
                "pylogbroker.brocker=debug\npylogbroker.broker.x.y=debug\nsomebody.elses=info\n"
            )["pylogbroker.brocker"],
            "debug",
        )
        self.assertEqual(len(self.warnings), 2)
        self.assertIn("pylogbroker.brocker: nothing is logged under that name", self.warnings[0])
        self.read("root=info\nroot=warn\n")
        self.assertIn("was set before", self.warnings[0])


class FilterTests(SynchronousTestCase):
    """What is logged then."""

    def setUp(self) -> None:
        self.lines: list[str] = []
        self.publisher = LogPublisher(
            observer(
                lambda event: self.lines.append(
                    f"{event['log_namespace']} {event['log_level'].name} {formatEvent(event)}"
                )
            )
        )

    def log(self) -> list[str]:
        """All levels, in some namespaces: those that come through."""
        self.lines.clear()
        for namespace in ("a", "a.b", "a.b.c", "ab"):
            for level in (LogLevel.debug, LogLevel.info, LogLevel.error):
                Logger(namespace, observer=self.publisher).emit(level, "{n}", n=level.name)
        return [line.rpartition(" ")[0] for line in self.lines]

    def test_below(self) -> None:
        """
        What is below the level of its namespace, or of the nearest one above it, is left out; the
        levels are said at the beginning.
        """
        self.assertEqual(len(self.log()), 12)
        levels = LogLevels(
            "file", {"": LogLevel.info, "a.b": LogLevel.error, "a.b.c": LogLevel.debug}
        )
        self.lines.clear()
        levels.begin(self.publisher)
        self.assertEqual(
            self.lines,
            [
                "pylogbroker.programs.lifecycle.LogLevels info Log levels: root=info a.b=error"
                " a.b.c=debug"
            ],
        )
        self.assertEqual(
            self.log(),
            [
                "a info",
                "a error",
                "a.b error",
                "a.b.c debug",
                "a.b.c info",
                "a.b.c error",
                "ab info",
                "ab error",
            ],
        )

    def test_change(self) -> None:
        """
        Other levels hold from then on, for each observer that was there; who has come later gets
        all. What changed is said, whatever the levels are.
        """
        levels = LogLevels("file", {"": LogLevel.critical})
        levels.begin(self.publisher)
        others: list[LogEvent] = []
        self.publisher.addObserver(observer(lambda event: others.append(event)))
        self.assertEqual(self.log(), [])
        said: list[str] = []
        tell = observer(
            lambda event: (
                said.append(formatEvent(event))
                if event.get("log_namespace") == "pylogbroker.programs.lifecycle.LogLevels"
                else None
            )
        )
        globalLogPublisher.addObserver(tell)
        self.addCleanup(globalLogPublisher.removeObserver, tell)
        levels.change({"": LogLevel.error, "a": LogLevel.debug})
        self.assertEqual(len(self.log()), 10)
        self.assertEqual(len(others), 24)
        levels.warn("odd")
        levels.keep(ConfigurationError("no level"))
        self.assertEqual(
            said,
            ["Log levels: root=error a=debug", "odd", "The log levels stay as they were: no level"],
        )

    def test_alwaysSaid(self) -> None:
        """Who changes levels sees that, even if all others are silent."""
        levels = LogLevels("file", {"": LogLevel.critical})
        levels.begin(self.publisher)
        self.lines.clear()
        Logger("pylogbroker.programs.lifecycle.LogLevels", observer=self.publisher).info("said")
        self.assertEqual(len(self.lines), 1)
