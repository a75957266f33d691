"""
Which features there are, and which test shows each: C{docs/features.md} as values.

A row of that page is C{| what | sentence | `id of a test`, `id of another` |}. What begins with a
number is a row of the first table of the 0.7 feature checklist, else a scenario of its second
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "features.md"
_TEST_ID = re.compile(r"`(tests\.[\w.]+)`")
VOID = "void"


class Feature(NamedTuple):
    """
    One row.

    @ivar name: the number, or the scenario's name.
    @ivar sentence: what it is.
    @ivar tests: ids of the tests that show it; empty for a row that is void in Python.
    @ivar isVoid: the row says so.
    """

    name: str
    sentence: str
    tests: tuple[str, ...]
    isVoid: bool


def readFeatures(text: str) -> list[Feature]:
    """The rows of the page, in its order."""
    features = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or set(cells[0]) <= set("-: ") or cells[0] in ("#", "test"):
            continue
        name, sentence, tests = cells
        features.append(
            Feature(name, sentence, tuple(_TEST_ID.findall(tests)), tests.startswith(VOID))
        )
    return features


def faults(features: Iterable[Feature], outcomes: Mapping[str, str], passed: str) -> list[str]:
    """
    What is wrong with the rows after a run: a sentence each.

    @param outcomes: the outcome of each test that ran, by its id.
    @param passed: the outcome that is good.
    """
    found = []
    for feature in features:
        if feature.isVoid:
            continue
        if not feature.tests:
            found.append(f"{feature.name}: no test is named")
        for test in feature.tests:
            outcome = outcomes.get(test)
            if outcome is None:
                found.append(f"{feature.name}: {test} did not run")
            elif outcome != passed:
                found.append(f"{feature.name}: {test}: {outcome}")
    return found
