"""
The order in which tests run, and how long the rest will take.

What must be true: all processes end together, so long modules run first, and a module that takes
longer than C{SPLIT_SECONDS} is handed out test by test. Modules that use Spark go to one process
only, since each process that uses Spark starts a session of its own, which costs 15 s and 1 GB.

C{seconds.txt} in this folder says how long modules take: a dotted name and seconds per line.
C{tests/run --checks --remember} writes it. A module that is not in it counts C{DEFAULT_SECONDS} per
test. The table decides on order, C{--quick} and the estimate only, so it need not be exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parent / "seconds.txt"
DEFAULT_SECONDS = 0.05
REMEMBERED_SECONDS_MIN = 1.0
"""Shorter modules do not stand in the table."""

SPLIT_SECONDS = 60.0


class Batch(NamedTuple):
    """
    Tests that one process runs one after the other.

    @ivar module: where they are.
    @ivar tests: their ids.
    @ivar seconds: how long they are expected to take.
    @ivar isSpark: they use the Spark session of their process.
    """

    module: str
    tests: tuple[str, ...]
    seconds: float
    isSpark: bool


def moduleOf(testId: str) -> str:
    """
    C{"tests.a.test_b.Class.test_c"} → C{"tests.a.test_b"}; the id of a module that cannot be
    imported is the module's name.
    """
    parts = testId.split(".")
    classes = [index for index, part in enumerate(parts) if part[:1].isupper()]
    return ".".join(parts[: classes[0]]) if classes else testId


def readSeconds(text: str) -> dict[str, float]:
    """The table: seconds by module."""
    lines = (line.split() for line in text.splitlines())
    return {line[0]: float(line[1]) for line in lines if len(line) == 2}


def writeSeconds(seconds: Mapping[str, float]) -> str:
    """The table as text: the longest first."""
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return "".join(
        f"{module} {value:.1f}\n" for module, value in ordered if value >= REMEMBERED_SECONDS_MIN
    )


def plan(
    tests: Iterable[str], seconds: Mapping[str, float], usesSpark: Callable[[str], bool]
) -> list[Batch]:
    """
    Tests in batches, in the order in which they begin.

    @param tests: the ids.
    @param seconds: how long modules take, as far as that is known.
    @param usesSpark: says of a module whether it uses a Spark session.
    """
    modules: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        modules[moduleOf(test)].append(test)
    batches = []
    for module, ids in modules.items():
        isSpark = usesSpark(module)
        expected = seconds.get(module, DEFAULT_SECONDS * len(ids))
        if expected > SPLIT_SECONDS and not isSpark:
            share = expected / len(ids)
            batches += [Batch(module, (test,), share, False) for test in ids]
        else:
            batches.append(Batch(module, tuple(ids), expected, isSpark))
    # The sort is stable, so the parts of a module stay together.
    total = {
        module: sum(batch.seconds for batch in batches if batch.module == module)
        for module in modules
    }
    return sorted(batches, key=lambda batch: (not batch.isSpark, -total[batch.module]))


def takeNext(pending: list[Batch], hasSpark: bool, sparkIsTaken: bool) -> Batch | None:
    """
    Take the batch that a free process runs next.

    @param pending: in order; the one that is taken goes from it.
    @param hasSpark: this process has a Spark session.
    @param sparkIsTaken: some process has.
    @return: C{None} if nothing is left for this process.
    """
    for index, batch in enumerate(pending):
        if not batch.isSpark or hasSpark or not sparkIsTaken:
            return pending.pop(index)
    return None
