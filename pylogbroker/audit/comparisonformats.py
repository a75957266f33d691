"""
Comparisons as a table and as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from pylogbroker.audit.comparison import HOLES, OPEN, TOTAL_START, Comparison, Line
from pylogbroker.types import escapeUnprintable, formatCount

_HEADS = ("topic", "window", "tier", "expected", "unknown", "seen", "complete", "status")
_NUMBERS = frozenset((3, 4, 5, 6))


def timeText(timeMs: int) -> str:
    """A UTC time, or C{total}."""
    if timeMs == TOTAL_START:
        return "total"
    try:
        return datetime.fromtimestamp(timeMs / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a message may say anything
        return str(timeMs)


def _cells(line: Line) -> tuple[str, ...]:
    part = (
        "" if line.completeness is None else f"{int(line.completeness * 10_000) / 100:.2f} %"
    )  # rounded down: what is not whole does not look whole
    return (
        escapeUnprintable(line.topic), timeText(line.startMs), escapeUnprintable(line.tier),
        str(line.expectedCount), str(line.unknownCount), str(line.seenCount), part, line.status,
    )  # fmt: skip


def asTable(comparison: Comparison, isBrief: bool = False) -> str:
    """
    Holes, totals and windows as a table.

    @param isBrief: leave out complete windows.
    """
    lines = [line for line in comparison.lines if not isBrief or line.status in HOLES]
    rows = [_HEADS, *(_cells(line) for line in (*lines, *comparison.totals))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    text = [_row(row, widths) for row in rows]
    if comparison.missing:
        count = sum(line.missingCount for line in comparison.missing)
        places = formatCount(len(comparison.missing), "place")
        text.append(f"at least {_counted(count, 'message')} missing in {places}")
    elif not comparison.lines:
        text.append("nothing to compare")
    else:
        openCount = len({line.startMs for line in comparison.lines if line.status == OPEN})
        text.append(
            "nothing is missing"
            + (f"; {_counted(openCount, 'window')} not over yet" if openCount else "")
        )
    if comparison.more:
        count = sum(line.moreCount for line in comparison.more)
        text.append(
            f"{formatCount(count, 'message')} more than {'was' if count == 1 else 'were'} sent,"
            f" in {formatCount(len(comparison.more), 'place')}"
        )
    text += [f"note: {escapeUnprintable(note)}" for note in comparison.notes]
    return "\n".join(text) + "\n"


def _counted(count: int, noun: str) -> str:
    return f"{formatCount(count, noun)} {'is' if count == 1 else 'are'}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()


def asJson(comparison: Comparison) -> str:
    """As JSON; the fields are those of L{Line}."""
    return json.dumps(
        {
            "timeMs": comparison.nowMs,
            "windowMs": comparison.windowMs,
            "isComplete": comparison.isComplete,
            "isCertain": comparison.isCertain,
            "windows": [_asDictionary(line) for line in comparison.lines],
            "totals": [_asDictionary(line) for line in comparison.totals],
            "notes": list(comparison.notes),
        },
        indent=1,
    )


def _asDictionary(line: Line) -> dict[str, object]:
    fields: dict[str, object] = line._asdict()
    if line.startMs == TOTAL_START:
        del fields["startMs"]
    return {
        **fields,
        "missingCount": line.missingCount,
        "moreCount": line.moreCount,
        "completeness": line.completeness,
    }
