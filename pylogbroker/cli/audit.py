"""
C{pylogbroker audit}: count clusters once, compare with what producers say they have sent, and tell by the exit status: 0 for nothing is missing, 3 for
something is, 1 for it could not be found out.
"""

from __future__ import annotations

import argparse
from typing import Any

from pylogbroker.audit.reporting import asJson, asTable
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.cli import CommandError
from pylogbroker.cli.streams import Streams, write
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.config.properties import parseProperties, readProperties
from pylogbroker.producer.plugins import loadPlugin

MISSING_CODE = 3

_EXAMPLES = """\
examples:
  pylogbroker audit --tier live=zk1:2181/kafka
  pylogbroker audit --tier live=zk1:2181/kafka --tier mirror=zk9:2181/kafka --topic clicks --json
  pylogbroker audit --tier live=broker:log1:9092 --set horizon.ms=3600000 --set grace.ms=60000 --brief

The first tier is the measure where no producer has said what it sent. Exit status: 0, nothing is missing; 3, something is; 1, it could
not be found out, or not for certain. For cron: --brief prints holes and totals only.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--config", metavar="FILE", help="a property file such as etc/auditor.properties"
    )
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a property over the file's; can be repeated",
    )
    parser.add_argument(
        "--tier", dest="tiers", metavar="NAME=SERVERS", action="append", default=[],
        help="a cluster: ZooKeeper's servers, or broker:HOST:PORT; or table:FOLDER, filled by pylogbroker load; can be repeated, and is instead of the file's",
    )  # fmt: skip
    parser.add_argument(
        "--topic",
        dest="topics",
        metavar="TOPIC",
        action="append",
        default=[],
        help="audit only this topic; can be repeated",
    )
    parser.add_argument(
        "--json", dest="isJson", action="store_true", help="one JSON document instead of the table"
    )
    parser.add_argument(
        "--brief",
        dest="isBrief",
        action="store_true",
        help="leave out windows in which nothing is missing",
    )


def settingsOf(options: argparse.Namespace, streams: Streams) -> AuditorSettings:
    """
    @raise ConfigurationError: they are wrong.
    @raise CommandError: there is nothing to audit.
    """

    def warn(sentence: str) -> None:
        streams.say(f"pylogbroker: {sentence}")

    if options.config is None and not options.tiers:
        raise CommandError("there is nothing to audit: give --tier NAME=SERVERS, or --config FILE")
    properties = (
        parseProperties("") if options.config is None else readProperties(options.config, warn)
    )
    changes = list(options.changes)
    if options.tiers:
        changes.append("tiers=" + "|".join(options.tiers))
    if options.topics:
        changes.append("topics=" + "|".join(options.topics))
    return AuditorSettings.fromProperties(properties.withOverrides(changes), warn)


async def audit(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    One pass.

    @return: the exit code.
    @raise PylogbrokerError: the settings are wrong.
    """
    settings = settingsOf(options, streams)
    timeOf = (
        None if settings.timeOf is None else loadPlugin("timeof", settings.timeOf, {}, "timeOf")
    )
    auditor = Auditor(reactor, settings, timeOf=timeOf)
    try:
        comparison = await auditor.audit()
    finally:
        await auditor.close()
    text = asJson(comparison) + "\n" if options.isJson else asTable(comparison, options.isBrief)
    await write(reactor, streams.output, text.encode())
    if not comparison.isComplete:
        return MISSING_CODE
    if not comparison.isCertain:
        streams.say(
            "pylogbroker: nothing is known to be missing, but not everything could be counted"
        )
        return 1
    return 0
