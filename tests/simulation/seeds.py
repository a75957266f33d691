"""
Seeds of simulated worlds: what the simulations of coordinators, replicas, clusters, tasks and
topologies share. A world makes all of its decisions by its seed, and runs until its end, or until
something does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

TRACE_COUNT_MAX = 4_000
"""Lines of a trace that are kept, the last ones."""


class BrokenPromiseError(Exception):
    """Something does not hold."""


class SimulatedWorld(Protocol):
    """What a seed is run in."""

    trace: list[str]
    counts: Counter[str]
    fingerprint: int

    def run(self) -> None: ...


class SeedOutcome(NamedTuple):
    """
    What became of a seed.

    @ivar faults: what did not hold.
    @ivar steps: the trace, of a seed that failed or that is to be traced.
    @ivar figures: how often what.
    @ivar fingerprint: of all answers.
    """

    seed: int
    faults: list[str]
    steps: list[str]
    figures: Counter[str]
    fingerprint: int


def simulateSeed(
    make: Callable[[int, bool], SimulatedWorld], seed: int, isTraced: bool = False
) -> SeedOutcome:
    """
    Run a seed; one that fails is run again for its trace.

    @param make: a world, of the seed and of whether it is traced.
    """
    world = make(seed, isTraced)
    try:
        world.run()
    except Exception as error:
        if not isTraced:
            return simulateSeed(make, seed, True)
        fault = f"{type(error).__name__}: {error}"
        return SeedOutcome(seed, [fault], world.trace, world.counts, world.fingerprint)
    return SeedOutcome(seed, [], world.trace, world.counts, world.fingerprint)


class Plant(NamedTuple):
    """
    A mistake.

    @ivar origin: who made it, or which proposal is against it.
    @ivar fault: a part of what the simulation says.
    @ivar patches: what is replaced: an object, the name of its attribute, the mistaken one.
    @ivar seed: of the first run that finds it.
    """

    origin: str
    fault: str
    seed: int
    patches: Sequence[tuple[Any, str, Any]]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this lasts, the mistake is made."""
        with ExitStack() as stack:
            for where, name, what in self.patches:
                stack.enter_context(patch.object(where, name, what))
            yield
