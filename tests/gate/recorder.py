"""
A trial reporter that writes down which tests ran, and how each ended.

Trial's own closing line cannot be counted: an error in a clean-up is one more error of a test that is counted already, an error while
importing a module is an error of no test, and skipped tests leave the run successful. Here every test has one line in a file, by its id,
and its worst outcome is its outcome. Trial finds this reporter as a plugin (C{tests/gate/plugin}), so it serves with C{--jobs}, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from twisted.trial.reporter import TreeReporter
from twisted.trial.unittest import makeTodo

REPORT_VARIABLE = "PYLOGBROKER_TEST_REPORT"
"""The environment variable that names the file to write."""

PASSED = "passed"
END = "end"
"""The id of the last record: without it the run broke off."""


def readReport(path: Path) -> tuple[dict[str, str], bool]:
    """
    What a run wrote.

    @return: the worst outcome of each test by its id; and whether the run came to its end.
    """
    outcomes: dict[str, str] = {}
    ended = False
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            testId, outcome = json.loads(line)
            if testId == END:
                ended = True
            elif outcomes.get(testId, PASSED) == PASSED:
                outcomes[testId] = outcome
    return outcomes, ended


def _todo(todo: Any) -> Any:
    """What trial's reporters can print: a worker process sends the reason only."""
    return makeTodo(todo) if isinstance(todo, str) else todo


class Recorder(TreeReporter):  # type: ignore[misc, unused-ignore]  # trial's reporters are partly untyped
    """Trial's usual output, and a line of JSON for each outcome in the file that C{PYLOGBROKER_TEST_REPORT} names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._report = open(os.environ[REPORT_VARIABLE], "a", encoding="utf-8")  # noqa: SIM115 - closed in done()

    def _record(self, testId: str, outcome: str) -> None:
        self._report.write(json.dumps([testId, outcome]) + "\n")
        self._report.flush()

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._record(test.id(), PASSED)

    def addError(self, test: Any, *args: Any) -> None:
        super().addError(test, *args)
        self._record(test.id(), "error")

    def addFailure(self, test: Any, *args: Any) -> None:
        super().addFailure(test, *args)
        self._record(test.id(), "failure")

    def addSkip(self, test: Any, *args: Any) -> None:
        super().addSkip(test, *args)
        self._record(test.id(), "skipped")

    def addExpectedFailure(self, test: Any, error: Any, todo: Any = None) -> None:
        super().addExpectedFailure(test, error, _todo(todo))
        self._record(test.id(), "expected failure")

    def addUnexpectedSuccess(self, test: Any, todo: Any = None) -> None:
        super().addUnexpectedSuccess(test, _todo(todo))
        self._record(test.id(), "unexpected success")

    def done(self) -> None:
        super().done()
        self._record(END, END)
        self._report.close()
