"""
What came of a run of mutations, as values and as lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Figures:
    """
    What came of a run.

    @ivar endedCount: mutations that ended their connection, or swallowed what came behind them.
    @ivar quietCount: those of them after which the broker waited for more, and was left.
    @ivar watchCount: rounds of the watcher.
    @ivar rssSize: of the broker, at the last round.
    @ivar faults: what must not be; empty for a good run.
    """

    triedCount: int = 0
    connectionCount: int = 0
    endedCount: int = 0
    quietCount: int = 0
    answerCount: int = 0
    answerSize: int = 0
    watchCount: int = 0
    watchSecondsMax: float = 0.0
    rssSizeAtStart: int = 0
    rssSize: int = 0
    rssSizeMax: int = 0
    socketCountAtStart: int = 0
    socketCountAtEnd: int = 0
    seconds: float = 0.0
    broker: dict[str, int] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def describe(figures: Figures) -> Iterator[str]:
    """The figures in lines."""
    for name, value in vars(figures).items():
        if isinstance(value, dict):
            yield f"{name}:"
            yield from (f"  {key}: {each}" for key, each in value.items())
        elif isinstance(value, list):
            yield f"{name}: {len(value)}"
            yield from (f"  {each}" for each in value)
        elif isinstance(value, float):
            yield f"{name}: {value:.3f}"
        else:
            yield f"{name}: {value}"
