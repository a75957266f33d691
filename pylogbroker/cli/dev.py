"""
C{pylogbroker dev}: a whole cluster for one developer in one foreground command: a ZooKeeper, a broker that registers in it, and what to do next.

Both listen on the loopback interface only. Ctrl-C stops the broker first, which takes its registration away, and the ZooKeeper after it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import tempfile
from typing import Any

from pylogbroker import __version__
from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import DEFAULT_BROKER, whole
from pylogbroker.cli.brokerchecks import closeAll
from pylogbroker.cli.demo import program, shortest
from pylogbroker.cli.streams import Streams, write
from pylogbroker.cli.zookeeper import PORT
from pylogbroker.config.brokersettings import samplePath
from pylogbroker.config.properties import readProperties
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.zookeeper.server import HOST, ZookeeperServer

BROKER_PORT = int(DEFAULT_BROKER.rpartition(":")[2])

_EXAMPLES = """\
examples:
  pylogbroker dev
  pylogbroker dev --data ./cluster --port 0 --zookeeper-port 0

The second keeps its data, and takes free ports. It needs Java and ZooKeeper; if they are missing, it says what to install.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="the directory of all data, which stays; without, a temporary one, which does not",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=whole(0, 65535),
        default=BROKER_PORT,
        help="the broker's port; 0 takes a free one (%(default)s)",
    )
    parser.add_argument(
        "--zookeeper-port",
        dest="zookeeperPort",
        metavar="N",
        type=whole(0, 65535),
        default=PORT,
        help="ZooKeeper's port; 0 takes a free one (%(default)s)",
    )
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a property of the broker; can be repeated",
    )
    parser.set_defaults(isFollowing=True)  # it is never done: ending it is no failure


async def dev(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Run both until they are ended.

    @return: the exit code.
    @raise PylogbrokerError: one cannot be started, or ZooKeeper has ended by itself.
    """
    try:
        directory = options.data or tempfile.mkdtemp(prefix="pylogbroker-dev-")
    except OSError as error:
        raise CommandError(f"cannot make a temporary directory: {error.strerror}") from error
    server = ZookeeperServer(reactor, os.path.join(directory, "zookeeper"), options.zookeeperPort)
    try:
        await server.start()
        config = readProperties(
            str(samplePath()), lambda sentence: streams.say(f"pylogbroker: {sentence}")
        )
        own = [
            "log.flush.interval=1",
            *options.changes,
            f"port={options.port}",
            f"listen.interface={HOST}",
            f"hostname={HOST}",
            "listeners=",
        ]
        place = [
            f"log.dir={os.path.join(directory, 'log')}",
            "enable.zookeeper=true",
            f"zk.connect={server.servers}",
        ]
        broker = EmbeddedBroker(reactor, config.withOverrides([*own, *place]))
        try:
            await broker.start()
            text = page(
                server.servers,
                f"{HOST}:{broker.port}",
                broker.settings.brokerId,
                directory,
                options.data is not None,
            )
            await write(reactor, streams.output, text.encode("utf-8", "surrogateescape"))
            await server.whenEnded()
        finally:
            await closeAll(broker.stop())
    finally:
        await closeAll(server.stop())
        if options.data is None:
            shutil.rmtree(directory, ignore_errors=True)
    raise CommandError("ZooKeeper has ended by itself")


def page(servers: str, address: str, brokerId: int, directory: str, stays: bool) -> str:
    """
    What runs, and what to do next.

    @param servers: ZooKeeper's.
    @param address: the broker's.
    @param stays: whether the data does.
    """
    command = program("pylogbroker")
    place = "" if address == DEFAULT_BROKER else f" --broker {address}"
    config = shlex.quote(shortest(str(samplePath())))
    another = f"--set brokerid={brokerId + 1} --set port=0 --set hostname={HOST} --set log.dir={shlex.quote(os.path.join(directory, f'log{brokerId + 1}'))}"
    return f"""\
pylogbroker {__version__}

zookeeper  {servers}
broker     {address}, number {brokerId}, registered there
data       {directory}, which {"stays" if stays else "goes at the end"}

Ctrl-C ends all of it. In another terminal:

  {command} produce /var/log/dpkg.log{place} --topic first
  {command} consume{place} --topic first --from-beginning --follow
  {command} offsets{place} --topic first

The same by way of ZooKeeper, with the members of a group that share the messages; start the second line as often as you like:

  {command} produce /var/log/dpkg.log --zookeeper {servers} --topic first
  {command} consume --zookeeper {servers} --topic first --group readers --from-beginning --follow
  {command} groups --zookeeper {servers}

Applications are told zk.connect={servers}, or the broker's address. One more broker for the cluster:

  {program("twistd")} -n --pidfile= pylogbroker --config {config} --set enable.zookeeper=true --set zk.connect={servers} {another}
"""
