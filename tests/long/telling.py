"""
What the long trials have in common: a seed, and what they print about it, about the versions, and
about what they were made of.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from random import SystemRandom

from pylogbroker import __version__


def addSeed(parser: argparse.ArgumentParser, of: str) -> None:
    """
    @param of: what chance decides; the machine decides the rest.
    """
    parser.add_argument(
        "--seed", type=int, help=f"of {of} (random; moments depend on the machine, too)"
    )


def seedOf(options: argparse.Namespace) -> int:
    """The one that was given, or any."""
    return SystemRandom().randrange(1 << 32) if options.seed is None else int(options.seed)


def tell(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tellStart(what: str, *versions: str, properties: Mapping[str, str] | None = None) -> None:
    """
    @param what: is done, with the seed.
    @param versions: beside our own, and those of Twisted, Python and the system.
    @param properties: of a broker.
    """
    known = (
        f"pylogbroker {__version__}",
        f"Twisted {version('Twisted')}",
        f"Python {platform.python_version()}",
        *versions,
    )
    tell(what)
    tell(", ".join((*known, f"{platform.system()} {platform.release()}")))
    for key, value in (properties or {}).items():
        tell(f"{key}={value}")


def tellFigures(figures: Mapping[str, float]) -> None:
    """Names and numbers, below one another."""
    for name, value in figures.items():
        tell(f"{name:>20} {value:>12,.0f}")
