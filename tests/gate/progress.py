"""
What a run of the tests says while it runs: how many tests have ended, how long the rest will take,
and what runs now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tests.gate.commands import SILENCE_SECONDS_MAX, duration
from tests.gate.outcomes import PASSED, Outcomes
from tests.gate.schedule import Batch, moduleOf

ESTIMATE_SECONDS_MIN = 5.0
ESTIMATE_SHARE_MIN = 0.03
"""There is no estimate before this time and this share of the work have passed."""


class Progress:
    """
    Prints one line when a module has ended, what fails at once, and a sign of life at the latest
    after C{SILENCE_SECONDS_MAX}.

    @ivar outcomes: what became of the tests so far.
    @ivar running: the test that each process runs, and when it began.
    """

    def __init__(
        self, batches: Iterable[Batch], say: Callable[[str], object], clock: Callable[[], float]
    ) -> None:
        """
        @param batches: all that is to run.
        @param say: prints one line.
        @param clock: seconds.
        """
        self.outcomes = Outcomes()
        self.running: dict[int, tuple[str, float]] = {}
        self._say = say
        self._clock = clock
        self._beganAt = self._saidAt = clock()
        self._missing = {test for batch in batches for test in batch.tests}
        self._left = Counter(map(moduleOf, self._missing))
        self._weights = {
            test: batch.seconds / len(batch.tests) for batch in batches for test in batch.tests
        }
        self._weight = sum(self._weights.values())
        self._doneWeight = 0.0
        self.totalCount = len(self._missing)

    @property
    def missing(self) -> set[str]:
        """Tests that have not ended."""
        return self._missing

    def begin(self, process: int, test: str) -> None:
        """A process begins a test."""
        self.running[process] = (test, self._clock())

    def outcome(self, test: str, outcome: str, text: str) -> None:
        """A test has an outcome; the text is what there is to say about it."""
        self.outcomes.add(test, outcome)
        if outcome != PASSED:
            self._line(f"FAILED  {outcome}: {test}\n{text.rstrip()}".rstrip())

    def end(self, process: int, test: str) -> None:
        """A test has ended, with all its clean-ups."""
        _, began = self.running.pop(process, (test, self._clock()))
        module = moduleOf(test)
        self.outcomes.secondsOf[module] += self._clock() - began
        if test not in self._missing:
            return
        self._missing.discard(test)
        self._doneWeight += self._weights[test]
        self._left[module] -= 1
        if not self._left[module]:
            seconds = self.outcomes.secondsOf[module]
            self._line(f"{self._counts()} {module}  {seconds:.1f} s{self._estimate()}")

    def tick(self) -> None:
        """Name what runs, if nothing has been printed for long. To be called every second or so."""
        now = self._clock()
        if now - self._saidAt < SILENCE_SECONDS_MAX:
            return
        running = ", ".join(
            f"{test.removeprefix('tests.')} ({duration(now - began)})"
            for test, began in self.running.values()
        )
        what = f"running {running}{self._estimate()}" if running else "the processes are ending"
        self._line(f"{self._counts()} {what}")

    def _counts(self) -> str:
        width = len(str(self.totalCount))
        return f"{self.totalCount - len(self._missing):{width}} of {self.totalCount}"

    def _estimate(self) -> str:
        passed = self._clock() - self._beganAt
        share = self._doneWeight / self._weight if self._weight else 1.0
        if not self._missing or passed < ESTIMATE_SECONDS_MIN or share < ESTIMATE_SHARE_MIN:
            return ""
        return f"; about {duration(passed * (1 - share) / share)} left"

    def _line(self, text: str) -> None:
        self._saidAt = self._clock()
        self._say(text)
