"""
What the long trials with kills have in common: their options, a directory that stays if something
is lost, and what they print.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping
from time import monotonic
from typing import NamedTuple, Protocol

from tests.integration.kills import LostError
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


class IKillTrial(Protocol):
    """
    A broker that is killed again and again.

    @ivar figures: what the rounds were made of so far; a named tuple of numbers.
    """

    @property
    def figures(self) -> NamedTuple: ...

    def run(self, roundCount: int) -> None:
        """@raise LostError: the broker has broken its promise."""


def runKillTrial(
    program: str,
    description: str,
    seedOfWhat: str,
    makeTrial: Callable[[str, int], IKillTrial],
    version: str,
    properties: Mapping[str, str],
    promise: str,
) -> int:
    """
    Run a trial as the command line says.

    @param program: the module's name.
    @param seedOfWhat: what chance decides.
    @param makeTrial: makes the trial from a directory and a seed.
    @param version: of what the trial uses beside our own code.
    @param properties: the broker's settings.
    @param promise: what is not lost: C{"visible"} …
    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--rounds", type=int, default=200, help="how many kills (200)")
    addSeed(parser, seedOfWhat)
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(f"seed {seed}, {options.rounds} rounds", version, properties=properties)
    folder = tempfile.mkdtemp()
    begun = monotonic()
    trial = makeTrial(folder + "/logs", seed)
    try:
        trial.run(options.rounds)
    except LostError as error:
        tell(f"LOST: {error}\nthe directory is {folder}")
        return 1
    finally:
        tellFigures({**trial.figures._asdict(), "seconds": monotonic() - begun})
    shutil.rmtree(folder)
    tell(f"nothing that was {promise} is lost")
    return 0
