"""
C{pylogbroker load compact}: few files of many, in a table that C{pylogbroker load} fills.
"""

from __future__ import annotations

import argparse
from datetime import date

from pylogbroker.cli.arguments import addJson, positive
from pylogbroker.cli.load import addTable
from pylogbroker.cli.sparksession import addSpark, jobProgress, session
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.cli.tables import asJson, table
from pylogbroker.lake.commit import localPath

_EXAMPLES = """\
examples:
  pylogbroker load compact /tmp/warehouse
  pylogbroker load compact /tmp/warehouse --date 2026-01-31 --min-files 4 --json

Each topic and day is a commit of its own, so that one that dies loses nothing, and the next goes on. Readers that began before must begin again.
"""


def _date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2026-01-31") from error


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    addTable(parser)
    parser.add_argument("--date", type=_date, help="only this day, of UTC; without, all")
    parser.add_argument(
        "--min-files",
        dest="fileCountMin",
        metavar="N",
        type=positive,
        default=2,
        help="leave days alone whose hours have fewer small files (%(default)s)",
    )
    addSpark(parser)
    addJson(parser)


def loadCompact(options: argparse.Namespace, streams: Streams) -> int:
    """
    Compact.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    localPath(options.path)  # what is wrong with it is said before Spark has started
    with session(options, "pylogbroker load compact") as spark:
        from pylogbroker.spark.loader import compact

        with jobProgress(streams) as report:
            days = compact(
                spark, options.path, date=options.date, fileCountMin=options.fileCountMin, compression=options.compression, progress=report
            )  # fmt: skip
    text = (
        asJson({"days": [each._asdict() for each in days]})
        if options.isJson
        else table(("TOPIC", "DATE", "BEFORE", "FILES", "ROWS", "BYTES"), days)
    )
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
    return 0
