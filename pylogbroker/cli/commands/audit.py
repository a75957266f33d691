"""
C{audit}: counts the messages of clusters once, and compares them with what producers have reported.
The exit code is 0 when no message is missing, 3 when one is, 1 when that is unknown.
"""

from __future__ import annotations

from argparse import Namespace

from pylogbroker.audit.comparisonformats import asJson, asTable
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    JSON,
    Command,
    changesOption,
    flag,
    option,
    repeated,
)
from pylogbroker.cli.streams import Streams
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.config.properties import parseProperties, readProperties
from pylogbroker.producer.plugins import loadPlugin

MISSING_CODE = 3


def settingsOf(options: Namespace, streams: Streams) -> AuditorSettings:
    """
    The settings of an audit.

    @raise ConfigurationError: a property is wrong.
    @raise CommandError: there is nothing to audit.
    """
    if options.config is None and not options.tiers:
        raise CommandError("there is nothing to audit: give --tier NAME=SERVERS, or --config FILE")
    properties = (
        parseProperties("")
        if options.config is None
        else readProperties(options.config, streams.warn)
    )
    changes = list(options.changes)
    if options.tiers:
        changes.append("tiers=" + "|".join(options.tiers))
    if options.topics:
        changes.append("topics=" + "|".join(options.topics))
    return AuditorSettings.fromProperties(properties.withOverrides(changes), streams.warn)


async def audit(options: Namespace, streams: Streams) -> int:
    """Count and compare once."""
    settings = settingsOf(options, streams)
    timeOf = (
        None if settings.timeOf is None else loadPlugin("timeof", settings.timeOf, {}, "timeOf")
    )
    auditor = Auditor(streams.reactor, settings, timeOf=timeOf)
    try:
        comparison = await auditor.audit()
    finally:
        await auditor.close()
    text = asJson(comparison) + "\n" if options.json else asTable(comparison, options.brief)
    await streams.write(text.encode())
    if not comparison.isComplete:
        return MISSING_CODE
    if not comparison.isCertain:
        streams.warn("nothing is known to be missing, but not everything could be counted")
        return 1
    return 0


COMMANDS = (
    Command(
        "audit",
        audit,
        (
            option("--config FILE", "a property file such as etc/auditor.properties"),
            changesOption("a property that overrides the file's"),
            repeated(
                "--tier NAME=SERVERS",
                "a cluster of 2011: ZooKeeper's servers, or broker:HOST:PORT; of today: "
                "kafka:HOST:PORT; or table:FOLDER, filled by pylogbroker load; can be repeated; "
                "replaces the file's tiers",
                "tiers",
            ),
            repeated("--topic TOPIC", "audit only this topic; can be repeated", "topics"),
            JSON,
            flag("--brief", "leave out windows without missing messages"),
        ),
        """\
examples:
  pylogbroker audit --tier live=zk1:2181/kafka
  pylogbroker audit --tier live=zk1:2181/kafka --tier mirror=zk9:2181/kafka --topic clicks --json
  pylogbroker audit --tier old=zk1:2181/kafka --tier new=kafka:log1:9092,log2:9092
  pylogbroker audit --tier live=broker:log1:9092 --set grace.ms=60000 --brief

Topics without reports of producers are compared with the first tier. Exit status: 0, nothing is
missing; 3, messages are missing; 1, unknown or uncertain. For cron: --brief prints only windows
with missing messages, and totals.
""",
    ),
)
