"""
The rows of the performance tools, with 0.7's columns and number formats (spec-0.7 tools §10): a measuring that knows how much there was in all, and since the
last row.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from pylogbroker.cli.arguments import positive
from pylogbroker.cli.tables import asJsonLine

SEPARATOR = ", "
MEGABYTE = 1 << 20
DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"
_FIELD = re.compile(r"yyyy|MM|dd|HH|mm|ss|SSS")


def dateText(pattern: str, nowMs: int) -> str:
    """
    A time as Java's SimpleDateFormat shows it, local.

    @param pattern: of which yyyy, MM, dd, HH, mm, ss and SSS are known.
    @param nowMs: milliseconds since the epoch.
    """
    date = datetime.fromtimestamp(nowMs // 1000, UTC).astimezone()
    parts = {
        "yyyy": f"{date.year:04}",
        "MM": f"{date.month:02}",
        "dd": f"{date.day:02}",
        "HH": f"{date.hour:02}",
        "mm": f"{date.minute:02}",
    }
    parts.update({"ss": f"{date.second:02}", "SSS": f"{nowMs % 1000:03}"})
    return _FIELD.sub(lambda found: parts[found.group()], pattern)


def addReporting(parser: argparse.ArgumentParser) -> None:
    """How the outcome is shown."""
    parser.add_argument(
        "--show-detailed-stats",
        dest="isDetailed",
        action="store_true",
        help="a row each --reporting-interval messages, not one for all",
    )
    parser.add_argument(
        "--reporting-interval",
        dest="rowCount",
        metavar="N",
        type=positive,
        default=5_000,
        help="messages between two rows (%(default)s)",
    )
    parser.add_argument(
        "--date-format",
        dest="dateFormat",
        metavar="PATTERN",
        default=DATE_FORMAT,
        help="as Java has it (%(default)s)",
    )
    parser.add_argument(
        "--hide-header",
        dest="isHeadless",
        action="store_true",
        help="leave the names of the columns out",
    )
    parser.add_argument(
        "--json",
        dest="isJson",
        action="store_true",
        help="each row as a JSON object in a line, with the columns' names as keys",
    )


class Measuring:
    """
    How much there was since the start.

    @ivar count: messages.
    @ivar size: bytes of payload.
    @ivar startMs: milliseconds since the epoch.
    """

    def __init__(self, nowMs: Callable[[], int], rowCount: int) -> None:
        """
        @param rowCount: messages after which a row is due.
        """
        self._nowMs = nowMs
        self._rowCount = rowCount
        self.count = self.size = 0
        self.startMs = self.lastMs = nowMs()
        self._rowMs, self._rowCountBefore, self._rowSizeBefore = self.startMs, 0, 0

    def add(self, count: int, size: int) -> bool:
        """
        There was more.

        @return: whether a row is due.
        """
        before = self.count
        self.count += count
        self.size += size
        self.lastMs = self._nowMs()
        return before // self._rowCount != self.count // self._rowCount

    def total(self) -> tuple[float, float, int, float]:
        """MB, MB a second, messages, messages a second: of all, up to the last message."""
        return self._figures(self.startMs, 0, 0)

    def sinceRow(self) -> tuple[float, float, int, float]:
        """The same, but the rates since this was asked the last time."""
        figures = self._figures(self._rowMs, self._rowCountBefore, self._rowSizeBefore)
        self._rowMs, self._rowCountBefore, self._rowSizeBefore = self.lastMs, self.count, self.size
        return figures

    def _figures(self, sinceMs: int, count: int, size: int) -> tuple[float, float, int, float]:
        seconds = max(1, self.lastMs - sinceMs) / 1000
        return (
            self.size / MEGABYTE,
            (self.size - size) / MEGABYTE / seconds,
            self.count,
            (self.count - count) / seconds,
        )


def row(columns: Sequence[str], values: Sequence[Any], decimals: int, isJson: bool) -> str:
    """
    A line.

    @param decimals: of the first fraction in it, the megabytes; rates have 4.
    """
    if isJson:
        return asJsonLine(dict(zip(columns, values, strict=True)))
    texts = []
    isFirst = True
    for value in values:
        if isinstance(value, float):
            texts.append(f"{value:.{decimals if isFirst else 4}f}")
            isFirst = False
        else:
            texts.append(str(value))
    return SEPARATOR.join(texts) + "\n"


def header(columns: Sequence[str], options: argparse.Namespace) -> str:
    """The names of the columns, if they are wanted."""
    return "" if options.isHeadless or options.isJson else SEPARATOR.join(columns) + "\n"
