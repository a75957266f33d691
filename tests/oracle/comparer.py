"""
The differences between Apache's answers and another broker's, and the list of those that are
deliberate.

C{differences.json} is a list of rules. Each has a C{reason}, and patterns, as of a shell, for what
it allows: C{scenario}, C{request} (C{"Fetch v*"}), C{label}, C{path} (C{"topics.*.errorCode"}; a
number in a path is the place in a sorted list). A pattern that is left out allows everything. A
rule may give the values, too: C{apache} and C{ours}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracle.answers import asRecorded, readAnswers
from tests.oracle.conversation import Conversation, Line
from tests.oracle.steps import Scenario

DIFFERENCES = Path(__file__).parent / "differences.json"
ABSENT = "<absent>"
_PATTERNS = ("scenario", "request", "label", "path")


class Difference(NamedTuple):
    """One value that is not the same."""

    scenario: str
    request: str
    label: str
    path: str
    apache: Any
    ours: Any

    def __str__(self) -> str:
        where = f"{self.scenario}: {self.request}, {self.label}: {self.path or 'answer'}"
        return f"{where}\n    apache: {_short(self.apache)}\n    ours:   {_short(self.ours)}"


class Rules:
    """The deliberate differences."""

    def __init__(self, rules: Sequence[dict[str, Any]]) -> None:
        """
        @raise ValueError: a rule has no reason, or a word that no rule has.
        """
        for rule in rules:
            if not rule.get("reason"):
                raise ValueError(f"a deliberate difference without a reason: {rule}")
            unknown = rule.keys() - {*_PATTERNS, "reason", "apache", "ours"}
            if unknown:
                raise ValueError(f"a deliberate difference with {', '.join(sorted(unknown))}")
        self._rules = rules
        self._used = [False] * len(rules)

    @classmethod
    def load(cls, path: Path = DIFFERENCES) -> Rules:
        """The committed list."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def allow(self, difference: Difference) -> bool:
        """Whether a rule names the difference."""
        for index, rule in enumerate(self._rules):
            if _matches(rule, difference):
                self._used[index] = True
                return True
        return False

    def unused(self) -> list[dict[str, Any]]:
        """The rules that have allowed nothing: what they describe is no more."""
        return [rule for rule, used in zip(self._rules, self._used, strict=True) if not used]


def _matches(rule: dict[str, Any], difference: Difference) -> bool:
    for name in _PATTERNS:
        if name in rule and not fnmatchcase(getattr(difference, name), rule[name]):
            return False
    return all(
        rule[name] == getattr(difference, name) for name in ("apache", "ours") if name in rule
    )


def compareScenario(host: str, port: int, scenario: Scenario) -> list[Difference]:
    """
    All differences between a broker and the record, the deliberate ones included. Blocks.

    @param port: of a new broker with L{SETTINGS} and the scenario's, or one that has seen other
        scenarios with the same settings.
    """
    lines = [asRecorded(line) for line in Conversation(host, port).run(scenario)]
    return list(compareLines(scenario.name, readAnswers(scenario.name), lines))


def compareLines(scenario: str, apache: list[Line], ours: list[Line]) -> Iterator[Difference]:
    """
    The differences, in the order of the steps. After a step that is another step on each side, as
    when a scenario took another way, nothing more is compared.
    """
    for index in range(max(len(apache), len(ours))):
        if index >= len(apache) or index >= len(ours):
            longer = apache if index < len(apache) else ours
            text = f"{len(longer) - index} steps more"
            line = longer[index]
            sides = (text, ABSENT) if longer is apache else (ABSENT, text)
            yield Difference(scenario, line.request, line.label, "", *sides)
            return
        theirs, mine = apache[index], ours[index]
        if theirs[:2] != mine[:2]:
            sides = (" ".join(theirs[:2]), f"{' '.join(mine[:2])} {_short(mine.answer)}")
            yield Difference(scenario, theirs.request, theirs.label, "the step", *sides)
            return
        for path, left, right in compareValues(theirs.answer, mine.answer):
            yield Difference(scenario, theirs.request, theirs.label, path, left, right)


def compareValues(apache: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """
    Where two JSON values differ: path, one value, the other. Lists of different length differ as
    a whole.
    """
    if isinstance(apache, dict) and isinstance(ours, dict):
        for name in sorted(apache.keys() | ours.keys()):
            where = f"{path}.{name}" if path else name
            yield from compareValues(apache.get(name, ABSENT), ours.get(name, ABSENT), where)
    elif isinstance(apache, list) and isinstance(ours, list) and len(apache) == len(ours):
        for index, (left, right) in enumerate(zip(apache, ours, strict=True)):
            yield from compareValues(left, right, f"{path}.{index}" if path else str(index))
    elif type(apache) is not type(ours) or apache != ours:
        yield path, apache, ours


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."
