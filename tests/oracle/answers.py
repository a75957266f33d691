"""
The recorded answers: a file of JSON lines for each scenario, C{[label, request, answer]}. A number
in the place of an answer is that of the line, from 1, that has the same answer.
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
    lines: list[Line] = []
    for text in answersPath(name).read_text(encoding="utf-8").splitlines():
        label, request, answer = json.loads(text)
        if isinstance(answer, int):
            answer = lines[answer - 1].answer
        lines.append(Line(label, request, answer))
    return lines


def writeAnswers(name: str, lines: Iterable[Line]) -> None:
    """Replace what was recorded of a scenario."""
    ANSWERS.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, int] = {}
    text = ""
    for number, line in enumerate(lines, 1):
        answer = _dump(line.answer)
        if answer in numbers:
            answer = str(numbers[answer])
        else:
            numbers[answer] = number
        text += f"[{_dump(line.label)},{_dump(line.request)},{answer}]\n"
    answersPath(name).write_text(text, encoding="utf-8")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def asRecorded(line: Line) -> Line:
    """A line as it is when it has been written and read."""
    return Line(*json.loads(json.dumps(line)))
