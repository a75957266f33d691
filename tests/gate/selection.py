"""
Which tests to run: the command line of C{tests/run}, rooms by name, and the modules that a name
stands for.

Imports nothing but the standard library, since C{tests/run} asks what to install before there is an
environment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from tests.gate.needs import NEEDS, needsOf, testFiles

BENCHMARKS = "tests.benchmarks"
SLOW = ("tests.benchmarks", "tests.fuzz", "tests.integration", "tests.simulation")
"""Folders that C{--quick} leaves out."""

HOUSE = "tests.test_house"
"""C{--quick} always checks the house rules."""

QUICK_SECONDS_MAX = 3.0
"""C{--quick} leaves out modules that take longer, by the gate's table of durations."""

EPILOG = """\
NAME is a room (storage), a test module (storage.test_partitionlog), or a class or method in one.
Without NAME all tests run. The last line is "N passed, N failed"; the exit status is 0 if nothing
failed.

What the chosen tests need is installed first. Python packages go into .venv in this checkout. With
root's rights and apt-get, missing programs are installed as Debian packages:

{needs}

and the line "127.0.0.1 localhost" is appended to /etc/hosts if that name is unknown. Without root's
rights, tests/run names everything that is missing and ends.
"""


class UnknownTestsError(Exception):
    """A name on the command line that stands for no tests; the text says which names there are."""


def parser() -> argparse.ArgumentParser:
    """The command line of C{tests/run}."""
    needs = "\n".join(
        f"  {' '.join(need.packages):35} {need.what}" for need in NEEDS.values() if need.packages
    )
    made = argparse.ArgumentParser(
        prog="tests/run",
        description="Install what the tests need, run them, and count.",
        epilog=EPILOG.format(needs=needs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    extent = made.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick",
        action="store_true",
        help="the unit tests that need nothing but Python, and ruff, mypy and the import contracts",
    )
    extent.add_argument(
        "--checks",
        action="store_true",
        help="also ruff, mypy, the import contracts and coverage: what .ci/run does",
    )
    made.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        metavar="N",
        help="processes that run tests (%(default)s)",
    )
    made.add_argument(
        "--remember",
        action="store_true",
        help="write how long the modules took into tests/gate/seconds.txt",
    )
    made.add_argument("names", nargs="*", metavar="NAME")
    return made


def rooms() -> list[str]:
    """
    The folders of C{tests/} that have tests, and the modules beside them, as C{tests/run} takes
    them.
    """
    first = {name.split(".")[1] for name in testModules()}
    return sorted(name.removeprefix("test_") for name in first)


def testModules() -> list[str]:
    """The dotted name of every module that has tests."""
    return sorted(name for name in testFiles() if name.rpartition(".")[2].startswith("test_"))


def _modulesOf(name: str) -> list[str]:
    """
    The test modules that a dotted name stands for: of a package all; of a class or method the one
    where it is.
    """
    modules = testModules()
    under = [module for module in modules if module == name or module.startswith(f"{name}.")]
    return under or [module for module in modules if name.startswith(f"{module}.")]


def resolve(given: str) -> str:
    """
    A name for trial.

    @param given: as on the command line: C{storage}, C{tests/storage/},
        C{storage.test_segments.SegmentTests}, C{house}.
    @raise UnknownTestsError: there are no such tests.
    """
    name = given.removesuffix(".py").strip("/").replace(os.sep, ".").removeprefix("tests.")
    if name == "tests":
        return name
    for candidate in (f"tests.{name}", f"tests.test_{name}"):
        if _modulesOf(candidate):
            return candidate
    raise UnknownTestsError(
        f"there are no tests for {given!r}; rooms with tests are: {', '.join(rooms())}"
    )


def chosenNames(options: argparse.Namespace, seconds: dict[str, float]) -> list[str]:
    """
    The names for trial.

    @param options: what L{parser} read.
    @param seconds: how long modules take, as far as that is known.
    @raise UnknownTestsError: a name stands for no tests.
    """
    if options.names:
        return [resolve(given) for given in options.names]
    if options.quick:
        return [
            module
            for module in testModules()
            if not module.startswith(SLOW)
            and not needsOf(module)
            and (seconds.get(module, 0.0) <= QUICK_SECONDS_MAX or module == HOUSE)
        ]
    return testModules()


def modulesOf(names: Iterable[str]) -> list[str]:
    """The test modules that names for trial stand for."""
    return sorted({module for name in names for module in _modulesOf(name)})
