"""
What became of the tests of a run: for each its worst outcome, and how long it took.
"""

from __future__ import annotations

from collections import defaultdict

PASSED = "passed"


class Outcomes:
    """
    Every test counts once, by its worst outcome.

    @ivar byTest: the worst outcome of each test, by its id.
    @ivar secondsOf: how long the tests of each module took together, by the module's name.
    """

    def __init__(self) -> None:
        self.byTest: dict[str, str] = {}
        self.secondsOf: defaultdict[str, float] = defaultdict(float)

    @property
    def passedCount(self) -> int:
        return sum(outcome == PASSED for outcome in self.byTest.values())

    def add(self, test: str, outcome: str) -> None:
        """One outcome of a test, which may have several: of itself, and of its clean-ups."""
        if self.byTest.get(test, PASSED) == PASSED:
            self.byTest[test] = outcome

    def failed(self) -> list[str]:
        """C{"outcome: test"} of each test that did not pass, in order."""
        return [f"{outcome}: {test}" for test, outcome in self.byTest.items() if outcome != PASSED]
