"""
What commands print: tables for people, JSON for machines, messages, and progress on a terminal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from pylogbroker.cli.arguments import flag, option
from pylogbroker.records.compression import crc32
from pylogbroker.types import BrokerPartition, escapeUnprintable, formatCount

UNKNOWN = "-"
"""What a table shows for an unknown value."""

INTERVAL_SECONDS = 0.2
"""Time between two updates of a progress line."""

_WIDTH_MAX = 79


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """
    Columns below their headings. Numbers are aligned right; unprintable characters are escaped.

    @param rows: one cell for each heading; L{None} is an unknown value.
    @return: lines with their ends.
    """
    aligned = []
    for heading, *cells in zip(headings, *rows, strict=True):
        known = [cell for cell in cells if cell is not None]
        isNumber = bool(known) and all(isinstance(cell, int | float) for cell in known)
        texts = [UNKNOWN if cell is None else escapeUnprintable(str(cell)) for cell in cells]
        width = max(map(len, [heading, *texts]))
        align = str.rjust if isNumber else str.ljust
        aligned.append([align(text, width) for text in (heading, *texts)])
    return "".join("  ".join(line).rstrip() + "\n" for line in zip(*aligned, strict=True))


def tableOfRows(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """As L{table}; an empty text without rows."""
    return table(headings, rows) if rows else ""


def asJson(value: Any) -> str:
    """An indented document with a line feed behind it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def asJsonLine(value: Any) -> str:
    """A document in one line, with its line feed."""
    return json.dumps(value, ensure_ascii=False) + "\n"


MessageFormat = Callable[[bytes, str, "BrokerPartition | int", int], bytes]
"""Called with payload, topic, partition and next offset; returns a line without its end."""


def payloadAsJson(payload: bytes) -> dict[str, str]:
    """C{payload} for UTF-8 text; C{payloadBase64} for other bytes."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payloadBase64": base64.b64encode(payload).decode()}


def _json(payload: bytes, topic: str, partition: BrokerPartition | int, nextOffset: int) -> bytes:
    where: dict[str, Any] = (
        partition._asdict() if isinstance(partition, BrokerPartition) else {"partition": partition}
    )
    document = {"topic": topic, **where, "nextOffset": nextOffset, **payloadAsJson(payload)}
    return asJsonLine(document).rstrip("\n").encode("utf-8", "surrogatepass")


MESSAGE_FORMATS: dict[str, MessageFormat] = {
    "payload": lambda payload, *_where: payload,
    "checksum": lambda payload, *_where: b"checksum:%d" % crc32(payload),
    "json": _json,
}
"""By name; C{checksum} is 0.7's ChecksumMessageFormatter (spec-0.7 tools §3)."""


FORMAT_OPTIONS = (
    option(
        "--format",
        "print each message as it is (payload), as checksum:<its CRC-32>, or as a JSON object "
        "with topic, partition, nextOffset and payload (payloadBase64 if it is not UTF-8) "
        "(%(default)s)",
        default="payload",
        choices=tuple(MESSAGE_FORMATS),
    ),
    flag("--json", "short for --format json", dest="format", action="store_const", const="json"),
)
"""Arguments that choose one of L{MESSAGE_FORMATS}."""


def formatBytes(size: float) -> str:
    """A size for people, such as C{1.5 MB}, in powers of 1000."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"


class StatusLine:
    """
    A line on a terminal that is replaced by the next one. Elsewhere it prints nothing.

    @ivar isTerminal: whether lines are shown.
    """

    def __init__(self, errors: TextIO) -> None:
        """
        @param errors: standard error.
        """
        self._errors = errors
        self.isTerminal = errors.isatty()
        self._isShown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        self._write("\r" + text[:_WIDTH_MAX].ljust(_WIDTH_MAX))
        self._isShown = True

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._isShown:
            self._write("\r" + " " * _WIDTH_MAX + "\r")
            self._isShown = False

    def _write(self, text: str) -> None:
        try:
            self._errors.write(text)
            self._errors.flush()
        except (OSError, ValueError):
            self.isTerminal = False


class Progress(StatusLine):
    """
    A line on a terminal with messages, bytes, rate and percentage. Elsewhere it prints nothing.
    """

    def __init__(
        self, errors: TextIO, clock: Callable[[], float], sizeTotal: int | None = None
    ) -> None:
        """
        @param errors: standard error.
        @param clock: seconds.
        @param sizeTotal: bytes of the whole; L{None} when unknown.
        """
        super().__init__(errors)
        self._clock = clock
        self._sizeTotal = sizeTotal
        self._start = self._last = clock()

    def update(self, count: int, size: int, stage: str = "") -> None:
        """
        Show the line, at most once in L{INTERVAL_SECONDS}.

        @param count: messages done.
        @param size: bytes done.
        @param stage: the current step of several.
        """
        now = self._clock()
        if not self.isTerminal or now - self._last < INTERVAL_SECONDS:
            return
        self._last = now
        part = f", {100 * size / self._sizeTotal:.0f} %" if self._sizeTotal else ""
        rate = count / (now - self._start)
        messages = formatCount(count, "message")
        text = f"{stage + ': ' if stage else ''}{messages}, {formatBytes(size)}{part}"
        self.show(f"{text}, {rate:,.0f} messages/s")
