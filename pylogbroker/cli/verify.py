"""
C{pylogbroker verify}: whether segment files are whole, those of a whole log directory at a time. It only reads, and needs no broker.
"""

from __future__ import annotations

import argparse

from pylogbroker.cli.arguments import addJson
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.cli.tables import asJson, table
from pylogbroker.errors import StorageError
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.recovery import SegmentReport, verify

_EXAMPLES = """\
examples:
  pylogbroker verify /tmp/pylogbroker-logs
  pylogbroker verify /tmp/pylogbroker-logs/dpkg-0 --json

Checked are the sizes and checksums of all entries, that compressed ones can be opened, and that each segment begins where the one before it
ends. The exit code is 1 when something is wrong. Of a broker that is running, the last entry of a partition may be seen half.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a log directory, the directory of a partition, or a segment file",
    )
    addJson(parser)


def verifyFiles(options: argparse.Namespace, streams: Streams) -> int:
    """
    Look at all, and print what was found.

    @return: the exit code: 1 when something is wrong.
    @raise BrokenPipeError: nobody reads the output any more.
    @raise StorageError: it cannot be written.
    """
    verdicts: list[SegmentReport] = []
    problems: list[str] = []
    for path in options.paths:
        try:
            verdicts += verify(RealFileSystem(), path, [Kafka07Format()])
        except StorageError as error:
            problems.append(str(error))
    if options.isJson:
        text = asJson({"segments": [each._asdict() for each in verdicts], "problems": problems})
    else:
        rows = [
            (
                _partition(each),
                each.baseOffset,
                each.size,
                each.entryCount,
                each.messageCount,
                each.fault or "good",
            )
            for each in verdicts
        ]
        text = (
            table(("PARTITION", "OFFSET", "SIZE", "ENTRIES", "MESSAGES", "VERDICT"), rows)
            if rows
            else ""
        )
    writeAtOnce(streams.output, text.encode("utf-8", "surrogateescape"))
    for problem in problems:
        streams.say(f"pylogbroker: {problem}")
    faultCount = sum(each.fault is not None for each in verdicts)
    for each in verdicts:
        if each.fault is not None:
            streams.say(f"pylogbroker: {each.path}: {each.fault}")
    count = sum(each.messageCount for each in verdicts)
    verdict = (
        f"{faultCount:,} of them not good"
        if faultCount
        else "all good"
        if verdicts
        else "nothing was looked at"
    )
    streams.say(f"{len(verdicts):,} segments with {count:,} messages: {verdict}")
    return 1 if faultCount or problems else 0


def _partition(verdict: SegmentReport) -> str:
    """The directory's name."""
    return verdict.path.rpartition("/")[0].rpartition("/")[2] or "."
