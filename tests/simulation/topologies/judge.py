"""
What must hold of simulated topologies.

 - A spout hears of each tuple that it has emitted once: acknowledged, or failed. One whose process
 has died hears nothing.
 - A tuple is acknowledged only when all that must come of it has been handled and acknowledged.
 - No bolt gets a tuple twice.
 - What one instance has emitted, another one gets in the order in which it was emitted.
 - At last every number is acknowledged, at least once. At most once, it is handled, unless a
 process has died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.simulation.seeds import BrokenPromiseError

PENDING, ACKED, FAILED = "pending", "acknowledged", "failed"


class _Emission:
    def __init__(self, task: int, life: int, number: int, partCount: int) -> None:
        self.task = task
        self.life = life
        self.number = number
        self.partCount = partCount
        self.state = PENDING


class TopologyJudge:
    """
    Sees what components do.

    @ivar isTracked: whether the topology is one at least once.
    @ivar isCalm: bolts fail nothing any more.
    """

    def __init__(
        self,
        isTracked: bool,
        spoutCount: int,
        numberCount: int,
        receivers: Sequence[str],
        counts: Counter[str],
    ) -> None:
        """
        @param spoutCount: instances of spouts.
        @param numberCount: what each instance of a spout is to emit.
        @param receivers: the components that handle each part.
        """
        self.isTracked = isTracked
        self.isCalm = False
        self.counts = counts
        self._spoutCount = spoutCount
        self._numberCount = numberCount
        self._receivers = receivers
        self._lifeCount = 0
        self._lives: dict[int, int] = {}
        self._spouts: dict[int, set[int]] = {}  # the numbers that are acknowledged, by task
        self._emissions: list[_Emission] = []
        self._handled: set[tuple[str, tuple[int, ...]]] = set()
        self._finished: set[tuple[str, tuple[int, ...]]] = set()
        self._sequences: dict[tuple[int, int], int] = {}

    # -- what components do

    def begins(self, task: int) -> int:
        """An instance begins; returns the number of its life."""
        self._lifeCount += 1
        self._lives[task] = self._lifeCount
        return self._lifeCount

    def missing(self, task: int) -> list[int]:
        """The numbers of a spout that are not acknowledged; at most once, that were not emitted."""
        done = self._spouts.setdefault(task, set())
        return [number for number in range(self._numberCount) if number not in done]

    def emits(self, task: int, life: int, number: int, partCount: int) -> int:
        """A spout emits; returns the tuple's id."""
        self._emissions.append(_Emission(task, life, number, partCount))
        return len(self._emissions) - 1

    def numberOf(self, emission: int) -> int:
        """Which number was emitted."""
        return self._emissions[emission].number

    def handles(
        self, component: str, task: int, path: Sequence[int], life: int, sequence: int, by: int
    ) -> None:
        """
        A bolt gets a tuple.

        @param life: of the instance that has emitted it.
        @param sequence: of the tuple, among those that it has emitted.
        @param by: the life of the instance that gets it.
        @raise BrokenPromiseError: it was handled before, or a later one was.
        """
        key = component, tuple(path)
        if key in self._handled:
            raise BrokenPromiseError(f"{component} gets {path} twice")
        self._handled.add(key)
        last = self._sequences.get((life, by), 0)
        if sequence <= last:
            raise BrokenPromiseError(f"{component} gets tuple {sequence} of {life} behind {last}")
        self._sequences[life, by] = sequence
        self.counts["tuples handled"] += 1

    def finishes(self, component: str, path: Sequence[int]) -> None:
        """A bolt acknowledges a tuple, or one of those that came together in it."""
        self._finished.add((component, tuple(path)))

    def acked(self, life: int, emission: int) -> None:
        """
        A spout's tuple is acknowledged.

        @raise BrokenPromiseError: it has come to its end before, or not all is handled.
        """
        found = self._end(life, emission, ACKED)
        self._spouts[found.task].add(found.number)
        if self.isTracked:
            lacking = self._lacking(emission)
            if lacking:
                raise BrokenPromiseError(f"emission {emission} is acknowledged without {lacking}")

    def failed(self, life: int, emission: int) -> None:
        """
        A spout's tuple has failed.

        @raise BrokenPromiseError: it has come to its end before.
        """
        self._end(life, emission, FAILED)

    def _end(self, life: int, emission: int, state: str) -> _Emission:
        found = self._emissions[emission]
        if found.life != life or found.state != PENDING:
            raise BrokenPromiseError(
                f"emission {emission} of life {found.life} is {state} in life {life}, and was"
                f" {found.state}"
            )
        found.state = state
        self.counts[f"tuples {state}"] += 1
        return found

    def _lacking(self, emission: int) -> list[tuple[str, tuple[int, ...]]]:
        """What must come of an emission, and is not acknowledged."""
        parts = [(emission, part) for part in range(self._emissions[emission].partCount)]
        expected: list[tuple[str, tuple[int, ...]]] = [
            (name, part) for name in self._receivers for part in parts
        ]
        expected.append(("split", (emission,)))
        return [each for each in expected if each not in self._finished]

    # -- the end

    def isDone(self) -> bool:
        """Whether all numbers are acknowledged; at most once, whether all are emitted."""
        return len(self._spouts) == self._spoutCount and all(
            len(done) == self._numberCount for done in self._spouts.values()
        )

    def judge(self, isWhole: bool) -> None:
        """
        All is at rest.

        @param isWhole: nothing can have been lost.
        @raise BrokenPromiseError: something does not hold.
        """
        for emission, found in enumerate(self._emissions):
            if found.state == PENDING and found.life == self._lives[found.task]:
                raise BrokenPromiseError(f"emission {emission} has come to no end")
            if isWhole and not self.isTracked:
                lacking = self._lacking(emission)
                if lacking:
                    raise BrokenPromiseError(f"of emission {emission}, {lacking} is lost")
