"""
C{pylogbroker zookeeper}: a ZooKeeper for development and tests, in the foreground, on the loopback interface.
"""

from __future__ import annotations

import argparse
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import whole
from pylogbroker.cli.brokerchecks import closeAll
from pylogbroker.cli.streams import Streams, write
from pylogbroker.zookeeper.server import TICK_MS, ZookeeperServer

PORT = 2181

_EXAMPLES = """\
examples:
  pylogbroker zookeeper --data /tmp/zookeeper
  pylogbroker zookeeper --data /tmp/zookeeper --port 0

The second takes a free port, and prints it. It is one server for one machine. A cluster that must survive a machine
needs three or five, installed as ZooKeeper's own documentation says.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--data",
        metavar="DIR",
        required=True,
        help="the directory of its data; made if it is missing",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=whole(0, 65535),
        default=PORT,
        help="the port to listen on; 0 takes a free one (%(default)s)",
    )
    parser.add_argument(
        "--tick",
        metavar="MS",
        type=whole(50, 60_000),
        default=TICK_MS,
        help="its clock's step; sessions are at least two (%(default)s)",
    )
    parser.set_defaults(isFollowing=True)  # it is never done: ending it is no failure


async def zookeeper(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Run it until it is ended.

    @return: the exit code.
    @raise PylogbrokerError: it cannot be started, or has ended by itself.
    """
    server = ZookeeperServer(reactor, options.data, options.port, tickMs=options.tick)
    try:
        await server.start()
        await write(
            reactor,
            streams.output,
            f"ZooKeeper serves on {server.servers}, with its data in {options.data}; Ctrl-C ends it\n".encode(),
        )
        await server.whenEnded()
    finally:
        await closeAll(server.stop())
    raise CommandError("ZooKeeper has ended by itself")
