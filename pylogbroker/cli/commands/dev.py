"""
C{dev} and C{zookeeper}: a cluster for one developer, or a ZooKeeper alone, in the foreground, on
the loopback interface. Ctrl-C stops the broker first, which removes its registration, and then
ZooKeeper.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from argparse import ArgumentParser, Namespace

from pylogbroker import __version__
from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import DEFAULT_BROKER, addPort, addProperties, intRange, option
from pylogbroker.cli.commands.demo import program, shortest
from pylogbroker.cli.session import closeAll
from pylogbroker.cli.streams import Streams
from pylogbroker.config.brokersettings import samplePath
from pylogbroker.config.properties import readProperties
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.zookeeper.serverprocess import HOST, TICK_MS, ZookeeperServerProcess

ZOOKEEPER_PORT = 2181
BROKER_PORT = int(DEFAULT_BROKER.rpartition(":")[2])

_DEV_EXAMPLES = """\
examples:
  pylogbroker dev
  pylogbroker dev --data ./cluster --port 0 --zookeeper-port 0

The second keeps its data, and takes free ports. The command needs Java and ZooKeeper; without them
it says what to install.
"""
_ZOOKEEPER_EXAMPLES = """\
examples:
  pylogbroker zookeeper --data /tmp/zookeeper
  pylogbroker zookeeper --data /tmp/zookeeper --port 0

The second takes a free port, and prints it. A cluster that must survive the loss of a machine needs
three or five servers, installed as ZooKeeper's own documentation says.
"""


def addDevArguments(parser: ArgumentParser) -> None:
    """Arguments of C{dev}."""
    parser.epilog = _DEV_EXAMPLES
    option(
        parser, "--data DIR", "the directory of all data, which stays; by default, a temporary one"
    )
    addPort(parser, "--port", BROKER_PORT, "the broker's port")
    addPort(parser, "--zookeeper-port", ZOOKEEPER_PORT, "ZooKeeper's port")
    addProperties(parser, None, "a property of the broker")
    parser.set_defaults(follow=True)  # it never ends by itself


async def dev(options: Namespace, streams: Streams) -> int:
    """Run both until a signal ends them."""
    try:
        directory = options.data or tempfile.mkdtemp(prefix="pylogbroker-dev-")
    except OSError as error:
        raise CommandError(f"cannot make a temporary directory: {error.strerror}") from error
    server = ZookeeperServerProcess(
        streams.reactor, os.path.join(directory, "zookeeper"), options.zookeeperPort
    )
    try:
        await server.start()
        config = readProperties(str(samplePath()), streams.warn)
        own = [
            "log.flush.interval=1",
            "num.partitions=2",
            *options.changes,
            f"port={options.port}",
            f"listen.interface={HOST}",
            f"hostname={HOST}",
            "listeners=",
        ]
        cluster = [
            f"log.dir={os.path.join(directory, 'log')}",
            "enable.zookeeper=true",
            f"zk.connect={server.servers}",
        ]
        broker = EmbeddedBroker(streams.reactor, config.withOverrides([*own, *cluster]))
        try:
            await broker.start()
            text = page(
                server.servers,
                f"{HOST}:{broker.port}",
                broker.settings.brokerId,
                directory,
                options.data is not None,
            )
            await streams.write(text.encode("utf-8", "surrogateescape"))
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
    The addresses of both, and commands to type next.

    @param servers: ZooKeeper's.
    @param address: the broker's.
    @param stays: whether the data stays.
    """
    command = program("pylogbroker")
    option = "" if address == DEFAULT_BROKER else f" --broker {address}"
    config = shlex.quote(shortest(str(samplePath())))
    number = brokerId + 1
    logDir = shlex.quote(os.path.join(directory, f"log{number}"))
    own = f"--set brokerid={number} --set port=0 --set hostname={HOST} --set log.dir={logDir}"
    another = f"--set enable.zookeeper=true --set zk.connect={servers} {own}"
    return f"""\
pylogbroker {__version__}

zookeeper  {servers}
broker     {address}, number {brokerId}, registered there
data       {directory}, which {"stays" if stays else "goes at the end"}

Ctrl-C ends all of it. In another terminal:

  {command} produce /var/log/dpkg.log{option} --topic first
  {command} consume{option} --topic first --from-beginning --follow
  {command} offset list{option} --topic first

With ZooKeeper, the members of a group share the messages, each with partitions of its own. The
topic has two partitions, so two members have work:

  {command} produce /var/log/dpkg.log --zookeeper {servers} --topic first
  {command} consume --zookeeper {servers} --topic first --group readers --from-beginning --follow
  {command} group describe --zookeeper {servers}

Applications connect with zk.connect={servers}, or to the broker's address. To add a broker:

  {program("twistd")} -n --pidfile= pylogbroker --config {config} {another}
"""


def addZookeeperArguments(parser: ArgumentParser) -> None:
    """Arguments of C{zookeeper}."""
    parser.epilog = _ZOOKEEPER_EXAMPLES
    option(parser, "--data DIR", "the directory of its data; made if it is missing", required=True)
    addPort(parser, "--port", ZOOKEEPER_PORT, "the port to listen on")
    option(
        parser,
        "--tick MS",
        "its tick time; sessions last at least two ticks (%(default)s)",
        intRange(50, 60_000),
        TICK_MS,
    )
    parser.set_defaults(follow=True)  # it never ends by itself


async def zookeeper(options: Namespace, streams: Streams) -> int:
    """Run ZooKeeper until a signal ends it."""
    server = ZookeeperServerProcess(
        streams.reactor, options.data, options.port, tickMs=options.tick
    )
    try:
        await server.start()
        await streams.write(
            f"ZooKeeper serves on {server.servers}, with its data in {options.data}; "
            "Ctrl-C ends it\n".encode(),
        )
        await server.whenEnded()
    finally:
        await closeAll(server.stop())
    raise CommandError("ZooKeeper has ended by itself")
