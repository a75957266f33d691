"""
C{metrics}: the metrics of a broker, or of any server of Prometheus' text format, as a row of
comma-separated values at an interval (0.7's JmxTool, spec-0.7 tools §9).

The columns are those of the first answer. When an answer has others, a new header precedes its row.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatchcase

from twisted.internet.task import deferLater

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    LONG_MAX,
    TIMEOUT_MS,
    Command,
    flag,
    intRange,
    option,
    positive,
    repeated,
)
from pylogbroker.cli.commands.perf import SEPARATOR, dateFormat, formatDate
from pylogbroker.cli.httpget import httpGet
from pylogbroker.cli.output import asJsonLine
from pylogbroker.cli.streams import Streams

URL = "http://127.0.0.1:8067/metrics"
DATE_FORMAT = "yyyy-MM-dd HH:mm:ss.SSS"

_SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?'
)


def prepare(options: Namespace, streams: Streams) -> None:
    """A command without end is not interrupted: ending it is no failure."""
    options.follow = options.count == LONG_MAX


def readSamples(text: str) -> dict[str, str]:
    """
    Samples by name and labels, as text.

    @param text: in Prometheus' text format.
    @raise CommandError: the format is another one.
    """
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is None:
            raise CommandError(f"this is not Prometheus' text format: {line[:100]!r}")
        found[sample[1] + (sample[2] or "")] = sample[3]
    return found


async def metrics(options: Namespace, streams: Streams) -> int:
    """Print rows."""
    columns: list[str] = []
    count = 0
    begin = streams.reactor.seconds()
    while True:
        found = readSamples(await httpGet(streams.reactor, options.url, options.timeoutMs))
        time = formatDate(options.dateFormat, streams.nowMs())
        names = [name for name in sorted(found) if _isWanted(name, options.patterns)]
        if not names:
            raise CommandError(f"{options.url} has none of these metrics among {len(found)}")
        if options.json:
            text = asJsonLine({"time": time, **{name: _number(found[name]) for name in names}})
        else:
            text = ""
            if not set(names) <= set(columns):
                columns = names
                headings = [json.dumps(name, ensure_ascii=False) for name in ("time", *columns)]
                text = SEPARATOR.join(headings) + "\n"
            text += SEPARATOR.join([time, *[found.get(name, "") for name in columns]]) + "\n"
        await streams.show(text)
        count += 1
        if count >= options.count:
            return 0
        due = begin + count * options.intervalMs / 1000
        await deferLater(streams.reactor, max(0, due - streams.reactor.seconds()))


def _isWanted(name: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(
        fnmatchcase(name, pattern) or fnmatchcase(name.partition("{")[0], pattern)
        for pattern in patterns
    )


def _number(text: str) -> float | int | str:
    """JSON has no infinities and no NaN: they stay texts."""
    for parse in (int, float):
        try:
            number: float = parse(text)
        except ValueError:
            continue
        return number if number - number == 0 else text
    return text


COMMANDS = (
    Command(
        "metrics",
        metrics,
        (
            option(
                "--url URL",
                "where the metrics are served, such as http.listener of a broker (%(default)s)",
                default=URL,
            ),
            repeated(
                "--name PATTERN",
                "metrics to print, with their labels; * and ? match anything; by default, all",
                "patterns",
            ),
            option("--interval-ms MS", "time between two rows (%(default)s)", positive, 5_000),
            option("--count N", "rows to print; by default, without end", intRange(1), LONG_MAX),
            dateFormat(DATE_FORMAT),
            option(
                "--timeout-ms MS", "time-out of each answer (%(default)s)", positive, TIMEOUT_MS
            ),
            flag("--json", "print each row as a JSON object in a line"),
        ),
        """\
examples:
  pylogbroker metrics --url http://log1:8067/metrics --count 2 --interval-ms 100
  pylogbroker metrics --url http://log1:8067/metrics --name '*_total*' --count 1 --json
  pylogbroker metrics --url http://log1:8067/metrics

The third goes on until it is ended.
""",
        prepare,
    ),
)
