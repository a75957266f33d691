"""
Figures as tables, in Markdown: what is printed is what is kept.

A ratio is the median of the broker's figures over the median of the yardstick's, of one run; beside
it stand the smallest and the largest ratio of a single round, which say how much to believe it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.scenarios import (
    BROKER,
    NEIGHBOURS,
    YARDSTICK,
    FetchScenario,
    Figures,
    HotScenario,
    ProduceScenario,
    Scenario,
    VisitScenario,
)

Results = dict[str, list[Figures]]
"""The figures of all rounds, by side."""


@dataclass
class Verdicts:
    """
    Counts the targets that were met, unless the run is too short to judge them.

    @ivar isShort: the run is short: targets are named, and not judged.
    @ivar count: how many targets there were.
    @ivar missed: the names of scenarios that missed theirs.
    """

    isShort: bool = False
    count: int = 0
    missed: tuple[str, ...] = ()

    def judge(self, name: str, sentence: str, isMet: bool) -> str:
        """The cell of a table that names a target, and says whether it was met."""
        self.count += 1
        if self.isShort:
            return sentence
        if not isMet:
            self.missed += (name,)
        return f"{sentence}: {'met' if isMet else '**not met**'}"

    def lastLine(self, command: str) -> str:
        """
        The line that closes the report.

        @param command: what to run to have the targets judged.
        """
        if self.isShort:
            return (
                f"The short form shows that the benchmarks run; it judges no target. `{command}` on"
                " a quiet machine does."
            )
        missed = f"; missed by {', '.join(self.missed)}" if self.missed else ""
        return f"{self.count - len(self.missed)} of {self.count} targets met{missed}."


def middle(rounds: Sequence[Figures], name: str) -> float:
    return median(figures[name] for figures in rounds)


def ratio(results: Results, name: str) -> float:
    """Of medians."""
    return middle(results[BROKER], name) / middle(results[YARDSTICK], name)


def spread(results: Results, name: str) -> str:
    """Of single rounds."""
    ratios = [
        broker[name] / yardstick[name]
        for broker, yardstick in zip(results[BROKER], results[YARDSTICK], strict=True)
    ]
    return f"{min(ratios):.2f}–{max(ratios):.2f}" if len(ratios) > 1 else "one"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown, with columns as wide as they must be, so that it can be read in a terminal, too."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (columns, *rows)
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def produceTable(
    measured: Sequence[tuple[ProduceScenario, Results]], verdicts: Verdicts
) -> list[str]:
    rows = []
    for scenario, results in measured:
        found = ratio(results, "cpuUs")
        target = (
            ""
            if scenario.target is None
            else verdicts.judge(scenario.name, f"≤ {scenario.target:g}", found <= scenario.target)
        )
        rows.append(
            [
                scenario.name,
                f"{middle(results[YARDSTICK], 'cpuUs'):.3f}",
                f"{middle(results[BROKER], 'cpuUs'):.3f}",
                f"{found:.2f}",
                spread(results, "cpuUs"),
                target,
                f"{middle(results[YARDSTICK], 'rate') / 1e3:.0f}",
                f"{middle(results[BROKER], 'rate') / 1e3:.0f}",
            ]
        )
    return [
        "## Produce: messages of 200 bytes",
        "",
        (
            "CPU of the server in seconds per million messages. `b` messages in a request, `c`"
            " connections, `p` partitions."
        ),
        "",
        *table(
            [
                "scenario",
                "yardstick CPU",
                "broker CPU",
                "ratio",
                "rounds",
                "target",
                "yardstick k/s",
                "broker k/s",
            ],
            rows,
        ),
    ]


def fetchTable(measured: Sequence[tuple[FetchScenario, Results]], verdicts: Verdicts) -> list[str]:
    rows = []
    for scenario, results in measured:
        share = ratio(results, "rate")
        target = (
            ""
            if scenario.target is None
            else verdicts.judge(scenario.name, f"≥ {scenario.target:g}", share >= scenario.target)
        )
        rows.append(
            [
                scenario.name,
                f"{middle(results[YARDSTICK], 'rate') / 1e6:.0f}",
                f"{middle(results[BROKER], 'rate') / 1e6:.0f}",
                f"{share:.2f}",
                spread(results, "rate"),
                target,
                f"{middle(results[YARDSTICK], 'cpuPerGB'):.3f}",
                f"{middle(results[BROKER], 'cpuPerGB'):.3f}",
                f"{ratio(results, 'cpuPerGB'):.2f}",
            ]
        )
    return [
        "## Fetch: cached data",
        "",
        (
            "MB/s of all consumers (`c`) together; the share is the broker's of bare sendfile's."
            " CPU of the server in seconds per GB."
        ),
        "",
        *table(
            [
                "scenario",
                "yardstick MB/s",
                "broker MB/s",
                "share",
                "rounds",
                "target",
                "yardstick CPU",
                "broker CPU",
                "ratio",
            ],
            rows,
        ),
    ]


def hotTable(measured: Sequence[tuple[HotScenario, Results]], verdicts: Verdicts) -> list[str]:
    lines = []
    for scenario, results in measured:
        rows = []
        for side in (YARDSTICK, BROKER):
            rounds = results[side]
            alone = middle(rounds, "alonep99")
            for neighbour in NEIGHBOURS[side]:
                p99 = middle(rounds, f"{neighbour.name}p99")
                rate = (
                    ""
                    if neighbour.pauseUs is None
                    else f"{middle(rounds, f'{neighbour.name}Rate') / 1e6:.0f}"
                )
                figures = [
                    f"{middle(rounds, neighbour.name + what):.0f}"
                    for what in ("p50", "p99", "worst")
                ]
                cold = ["", ""]
                if neighbour.cachedName:
                    toCached = p99 / middle(rounds, f"{neighbour.cachedName}p99")
                    cold = [
                        f"{toCached:.2f}",
                        verdicts.judge(
                            scenario.name, f"≤ {scenario.target:g}", toCached <= scenario.target
                        ),
                    ]
                rows.append(
                    [f"{side}, {neighbour.title}", *figures, f"{p99 / alone:.2f}", *cold, rate]
                )
        lines += [
            "## A hot consumer beside a cold one",
            "",
            (
                "Latency in microseconds of fetches of 200 KB, with a pause of 1 ms between them."
                " Before each cold part, `posix_fadvise` dropped the neighbour's file from the"
                f" cache ({max(figures['cachedShare'] for figures in results[BROKER]):.0%} of it"
                " stayed). Three processes share the machine's processors, so a neighbour costs"
                " something whatever it reads: the yardstick's rows show how much where each"
                " connection has a thread of its own and all is cached. What the cold does is told"
                " by the same neighbour with cached data; that ratio has the target."
            ),
            "",
            *table(
                [
                    "the hot consumer",
                    "p50",
                    "p99",
                    "worst",
                    "p99 to alone",
                    "p99 to a cached neighbour",
                    "target",
                    "neighbour MB/s",
                ],
                rows,
            ),
        ]
    return lines


def visitTable(measured: Sequence[tuple[VisitScenario, Results]], verdicts: Verdicts) -> list[str]:
    rows = [
        [
            f"{scenario.name}, {side}",
            f"{middle(results[side], 'connectingMs'):.0f}",
            f"{middle(results[side], 'ms'):.0f}",
            f"{middle(results[side], 'cpuUs'):.1f}",
            "" if side == YARDSTICK else f"{ratio(results, 'cpuUs'):.2f}",
        ]
        for scenario, results in measured
        for side in (YARDSTICK, BROKER)
    ]
    return [
        "## A thousand connections with one small request each",
        "",
        (
            "All connect; then each sends one message and waits for the server to close. CPU of the"
            " server in microseconds per connection, from accept to close."
        ),
        "",
        *table(["scenario", "ms to connect all", "ms in all", "CPU", "ratio"], rows),
    ]


TABLES = {
    ProduceScenario: produceTable,
    FetchScenario: fetchTable,
    HotScenario: hotTable,
    VisitScenario: visitTable,
}


def asMarkdown(
    surroundings: Sequence[tuple[str, str]],
    roundCount: int,
    measured: Sequence[tuple[Scenario, Results]],
    isShort: bool = False,
) -> str:
    """
    The whole report.

    @param isShort: judge no target.
    """
    verdicts = Verdicts(isShort)
    lines = [
        *(f"- {what}: {value}" for what, value in surroundings),
        f"- rounds: {roundCount}, yardstick and broker in turn; medians",
    ]
    for kind, write in TABLES.items():
        chosen = [
            (scenario, results) for scenario, results in measured if isinstance(scenario, kind)
        ]
        if chosen:
            lines += ["", *write(chosen, verdicts)]  # type: ignore[operator] # each table gets its own kind
    if verdicts.count:
        lines += ["", verdicts.lastLine("python -m tests.benchmarks")]
    return "\n".join(lines) + "\n"
