"""
Results in two dresses: tables for people, JSON for machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pylogbroker.cli.streams import Streams, write
from pylogbroker.types import escapeUnprintable

NOTHING = "-"
"""What a table shows of what is not known."""


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """
    Columns below their headings. What is a number everywhere stands at the right. Names may come from anywhere: see L{escapeUnprintable}.

    @param rows: as many cells as there are headings in each; L{None} is what is not known.
    @return: lines, each with its end; with no rows none but the headings.
    """
    cells = [list(row) for row in rows]
    columns = [
        [row[index] for row in cells if row[index] is not None] for index in range(len(headings))
    ]
    isRight = [
        bool(column) and all(isinstance(cell, int | float) for cell in column) for column in columns
    ]
    texts = [
        list(headings),
        *(
            [NOTHING if cell is None else escapeUnprintable(str(cell)) for cell in row]
            for row in cells
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        placed = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, isRight, strict=True)
        ]
        lines.append("  ".join(placed).rstrip() + "\n")
    return "".join(lines)


def asJson(value: Any) -> str:
    """A document, with a line feed behind it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def asJsonLine(value: Any) -> str:
    """A document in a line, for results that come one after the other."""
    return json.dumps(value, ensure_ascii=False) + "\n"


async def show(reactor: Any, streams: Streams, text: str) -> None:
    """
    Write a result. Names that others chose may hold what is no Unicode.

    @raise BrokenPipeError: nobody reads any more.
    @raise pylogbroker.errors.StorageError: it cannot be written.
    """
    await write(reactor, streams.output, text.encode("utf-8", "surrogatepass"))
