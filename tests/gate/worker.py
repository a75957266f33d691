"""
A process that loads and runs tests for the gate, and reports each outcome as a line of JSON.

Trial's own closing line cannot be counted. An error in a clean-up is one more error of a test that
is counted already. An error while importing a module is an error of no test. Skipped tests leave
the run successful. Trial's C{--jobs} also says nothing while a test runs. Here the process that
runs the tests reports when each test begins and ends, with every outcome that it has.

The gate writes one command to the standard input per line, a JSON object:

  - C{{"list": [name, ...]}} loads what the names stand for, and reports C{{"listed": [id, ...]}};
  - C{{"run": [id, ...]}} runs tests, and reports C{{"ran": true}} when they have ended.

Between the two the process reports C{{"begin": id}}, C{{"outcome": [id, outcome, text]}} and
C{{"end": id}}. The end of the input ends the process. Whatever a test prints goes to the standard
error output. The only argument is the folder in which the tests run.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from twisted.trial.reporter import Reporter
from twisted.trial.runner import TestLoader, TestSuite, TrialRunner

from tests.gate.outcomes import PASSED

TEST_SECONDS_MAX = 900.0
"""
A test whose result comes later than after this time has failed. Tests ask for less, with trial's
C{timeout}, for a person who runs one of them. Here no limit may be so short that a machine with
other work exceeds it.
"""

Report = Callable[[dict[str, Any]], None]


class LineReporter(Reporter):
    """
    Reports what becomes of each test.

    @ivar report: takes one record, as described at the top.
    """

    def __init__(self, report: Report, *_: Any) -> None:
        self._text = io.StringIO()
        super().__init__(self._text, realtime=True)
        self.report = report

    def _outcome(self, test: Any, outcome: str) -> None:
        self.report({"outcome": [test.id(), outcome, self._text.getvalue()]})
        self._text.seek(0)
        self._text.truncate()

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.report({"begin": test.id()})

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self.report({"end": test.id()})

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._outcome(test, PASSED)

    def addError(self, test: Any, error: Any) -> None:
        super().addError(test, error)
        self._outcome(test, "error")

    def addFailure(self, test: Any, fail: Any) -> None:
        super().addFailure(test, fail)
        self._outcome(test, "failure")

    def addSkip(self, test: Any, reason: Any) -> None:
        super().addSkip(test, reason)
        self._outcome(test, "skipped")

    def addExpectedFailure(self, test: Any, error: Any, todo: Any = None) -> None:
        super().addExpectedFailure(test, error, todo)
        self._outcome(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any, todo: Any = None) -> None:
        super().addUnexpectedSuccess(test, todo)
        self._outcome(test, "unexpected success")

    def done(self) -> None:
        """All tests of one command have ended; the gate does the summing up."""


def casesOf(suite: Any) -> Iterator[Any]:
    """The single tests of a suite of suites, in order."""
    if isinstance(suite, Iterable):
        for part in suite:
            yield from casesOf(part)
    else:
        yield suite


def patient(case: Any) -> Any:
    """The case itself, which then has L{TEST_SECONDS_MAX} at least."""
    if hasattr(case, "getTimeout"):
        case.timeout = max(case.getTimeout() or 0.0, TEST_SECONDS_MAX)
    return case


def serve(commands: Iterable[str], report: Report, folder: str) -> None:
    """
    Carry out commands until they end.

    @param folder: where the tests run; trial keeps the files of the last command there.
    """
    loader = TestLoader()
    runner = TrialRunner(
        partial(LineReporter, report), workingDirectory=folder, realTimeErrors=True
    )
    for line in commands:
        for command, names in json.loads(line).items():
            suite = loader.loadByNames(names, recurse=True)
            if command == "list":
                report({"listed": [case.id() for case in casesOf(suite)]})
            else:
                runner.run(TestSuite(map(patient, casesOf(suite))))
                report({"ran": True})


def main() -> None:
    """Take the standard streams, so that no test can read a command or disturb a report."""
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    # Stays open until the process ends, since its end says that the process has ended.
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)

    def report(record: dict[str, Any]) -> None:
        reports.write(json.dumps(record) + "\n")
        reports.flush()

    serve(iter(commands.readline, ""), report, sys.argv.pop())


if __name__ == "__main__":
    main()
