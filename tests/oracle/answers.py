"""
The recorded answers: a file of JSON lines for each scenario, C{[label, request, answer]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.goldenfiles import GOLDEN
from tests.oracle.conversation import Line

ANSWERS = GOLDEN / "kafka43" / "answers"


def answersPath(name: str) -> Path:
    """The file of a scenario."""
    return ANSWERS / f"{name}.jsonl"


def readAnswers(name: str) -> list[Line]:
    """
    @raise FileNotFoundError: the scenario has not been recorded.
    """
    with answersPath(name).open(encoding="utf-8") as lines:
        return [Line(*json.loads(line)) for line in lines]


def writeAnswers(name: str, lines: Iterable[Line]) -> None:
    """Replace what was recorded of a scenario."""
    ANSWERS.mkdir(parents=True, exist_ok=True)
    text = "".join(
        json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines
    )
    answersPath(name).write_text(text, encoding="utf-8")


def asRecorded(line: Line) -> Line:
    """A line as it is when it has been written and read."""
    return Line(*json.loads(json.dumps(line)))
