"""
What the long chaos trials of both dialects have in common: their options, a run for each seed, what
they print, a directory that stays where something is broken, and a page with the figures.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from random import SystemRandom
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar

from pylogbroker import __version__
from tests.integration.brokerprocess import ROOT
from tests.integration.chaosrun import BrokenError


class IFigures(Protocol):
    """What a run was made of."""

    @property
    def faults(self) -> dict[str, int]:
        """How many there were, by kind."""


class IChaosTrial(Protocol):
    """
    A run.

    @ivar figures: what it was made of; also when it fails.
    """

    @property
    def figures(self) -> IFigures: ...

    def run(self) -> None:
        """@raise BrokenError: names what is wrong."""


class Outcome(NamedTuple):
    """
    A run that has ended.

    @ivar cells: of its line in the table.
    @ivar broken: what is wrong; L{None}: nothing.
    """

    seed: int
    figures: IFigures
    cells: Sequence[str]
    broken: str | None


class ChaosPage(NamedTuple):
    """
    What a page says beside the figures.

    @ivar text: what was run, and where it stands what must hold.
    @ivar versions: beside our own, and those of Twisted, Python and the system.
    @ivar settings: a line each.
    @ivar columns: of the table, between the seed and the verdict.
    """

    text: Sequence[str]
    versions: Sequence[str]
    settings: Sequence[str]
    columns: Sequence[str]

    def write(
        self, outcomes: Sequence[Outcome], seconds: float, command: str, revision: str
    ) -> str:
        """The whole page, in Markdown."""
        faults: dict[str, int] = {}
        for outcome in outcomes:
            for kind, count in outcome.figures.faults.items():
                faults[kind] = faults.get(kind, 0) + count
        columns = ("seed", *self.columns, "")
        known = (
            f"pylogbroker {__version__}",
            f"Twisted {version('Twisted')}",
            f"Python {platform.python_version()}",
            *self.versions,
            f"{platform.system()} {platform.release()}",
        )
        lines = [
            f"# Chaos: {len(outcomes)} runs of {seconds:g} s",
            "",
            f"`{command}`, at commit {revision}.",
            "",
            *self.text,
            "",
            "```",
            ", ".join(known),
            *self.settings,
            "```",
            "",
            (
                "Faults, of all runs:"
                f" {', '.join(f'{count} × {kind}' for kind, count in sorted(faults.items()))}."
            ),
            "",
            f"| {' | '.join(columns)} |",
            f"|{'---|' * len(columns)}",
        ]
        for seed, _figures, cells, broken in outcomes:
            verdict = "BROKEN" if broken else "holds"
            lines.append(f"| {' | '.join((str(seed), *cells, verdict))} |")
        held = sum(outcome.broken is None for outcome in outcomes)
        lines += ["", f"{held} of {len(outcomes)} runs held."]
        for seed, _figures, _cells, broken in outcomes:
            if broken:
                lines += ["", f"Seed {seed}:", "", "```", broken, "```"]
        return "\n".join(lines) + "\n"


T = TypeVar("T", bound=IChaosTrial)


def runChaos(
    program: str,
    description: str,
    seeds: int,
    seconds: float,
    page: ChaosPage,
    makeTrial: Callable[[str, int, float, Callable[[str], None]], T],
    cells: Callable[[T], Sequence[str]],
    arguments: Sequence[str] | None = None,
) -> int:
    """
    Run trials as the command line says.

    @param program: the module's name.
    @param seeds: how many, by default.
    @param seconds: how long faults come, by default.
    @param makeTrial: of a directory, a seed, seconds, and what is called with sentences.
    @param cells: a trial's figures, for the table.
    @param arguments: of the command line; L{None}: all of it.
    @return: the exit status: 0 if nothing was broken.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--seeds", type=int, default=seeds, help=f"how many runs ({seeds})")
    parser.add_argument("--seed", type=int, help="the first seed; the others follow it (random)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help=f"how long faults come, in each run ({seconds:g})",
    )
    parser.add_argument("--output", type=Path, help="a page to write the figures to")
    options = parser.parse_args(arguments)
    first = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    command = (
        f"python -m {program} --seeds {options.seeds} --seed {first} --seconds {options.seconds:g}"
    )
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    out = sys.stdout
    outcomes: list[Outcome] = []
    for number in range(options.seeds):
        seed = first + number
        folder = tempfile.mkdtemp(prefix="pylogbroker-chaos-")
        begun = monotonic()

        def tell(text: str, seed: int = seed, number: int = number, begun: float = begun) -> None:
            out.write(
                f"{number + 1}/{options.seeds} seed {seed} {monotonic() - begun:6.1f} s  {text}\n"
            )
            out.flush()

        trial = makeTrial(folder, seed, options.seconds, tell)
        broken = None
        try:
            trial.run()
        except BrokenError as error:
            broken = str(error)
            tell(f"BROKEN, see {folder}:\n{error}")
        else:
            tell("holds")
            shutil.rmtree(folder)
        tell(str(trial.figures))
        outcomes.append(Outcome(seed, trial.figures, cells(trial), broken))
        if options.output is not None:
            revision = found.stdout.strip() or "unknown"
            options.output.write_text(
                page.write(outcomes, options.seconds, command, revision), encoding="utf-8"
            )
    return 1 if any(outcome.broken for outcome in outcomes) else 0
