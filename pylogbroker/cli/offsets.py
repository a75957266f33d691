"""
C{pylogbroker offsets}: where a partition begins and ends, and where it was at a time (0.7's GetOffsetShell, spec-0.7 tools §5).
"""

from __future__ import annotations

import argparse
from typing import Any

from pylogbroker.cli.arguments import (
    INT_MAX,
    addBroker,
    addJson,
    addPartition,
    addTopic,
    endpointOf,
    time,
    whole,
)
from pylogbroker.cli.brokerchecks import closeAll, requireTopic
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import asJson, show
from pylogbroker.client.simpleconsumer import SimpleConsumer

_EXAMPLES = """\
examples:
  pylogbroker offsets --topic dpkg
  pylogbroker offsets --topic dpkg --time earliest --json
  pylogbroker offsets --topic dpkg --time 2026-01-31T12:00 --count 5
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    addBroker(parser)
    addTopic(parser)
    addPartition(parser)
    parser.add_argument(
        "--time", metavar="TIME", type=time, default="latest",
        help="latest: behind the last message that consumers see; earliest: the oldest message; milliseconds since 1970, or a date like "
        "2026-01-31T12:00: the segment files that were last written to before then (latest)",
    )  # fmt: skip
    parser.add_argument(
        "--count",
        metavar="N",
        type=whole(1, INT_MAX),
        default=1,
        help="offsets to show at most, one a line, the latest first (%(default)s)",
    )
    addJson(parser, "one JSON document instead of lines")


async def offsets(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print the offsets.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out, or there is no such topic.
    """
    consumer = SimpleConsumer(
        reactor,
        endpointOf(options),
        timeoutMs=options.timeoutMs,
        connectTimeoutMs=options.timeoutMs,
    )
    try:
        await requireTopic(consumer, options.topic, options.partition)
        found = await consumer.getOffsetsBefore(
            options.topic, options.partition, options.time, options.count
        )
        document = {"topic": options.topic, "partition": options.partition, "offsets": found}
        await show(
            reactor,
            streams,
            asJson(document) if options.isJson else "".join(f"{offset}\n" for offset in found),
        )
    finally:
        await closeAll(consumer.close())
    if not found:
        streams.say("no segment file is that old")
    return 0
