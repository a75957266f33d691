"""
Brokers for development, in the foreground, on the loopback interface. C{dev} runs one broker; with
C{--zookeeper}, a cluster of 2011: Ctrl-C then stops the broker first, which removes its
registration, and then ZooKeeper; with C{--brokers}, a cluster of today's Kafka. C{zookeeper} runs a
ZooKeeper alone. It is our own server (L{pylogbroker.zookeeper.server}), in this process.

What only one of them needs is imported when it runs: C{dev} is to answer at once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from twisted.internet.defer import Deferred

from pylogbroker import __version__
from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    DEFAULT_BROKER,
    Command,
    changesOption,
    flag,
    intRange,
    option,
    portOption,
)
from pylogbroker.cli.streams import Streams
from pylogbroker.config.brokersettings import samplePath
from pylogbroker.config.properties import readProperties
from pylogbroker.net.deferreds import closeAll
from pylogbroker.programs.clocksteps import bootSeconds, keepTimers
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.programs.standalonezookeeper import HOST, TICK_MS, StandaloneZookeeper
from pylogbroker.programs.standalonezookeeper import PORT as ZOOKEEPER_PORT

BROKER_PORT = int(DEFAULT_BROKER.rpartition(":")[2])

ENSEMBLE = "production wants an ensemble of Apache ZooKeeper"

BROKER_COUNT_MAX = 20
"""Brokers of a cluster on one machine."""

DEV_DEFAULTS = (
    "log.flush.interval=1",
    "log.flush.acks.all=false",
    "log.flush.before.read=false",
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
)
"""
Properties of C{dev}: no request waits for a flush. A kill loses nothing, a power cut may.
"""


@contextmanager
def temporaryDirectory(name: str) -> Iterator[str]:
    """A directory that is gone at the end of the block. Raises L{CommandError}."""
    try:
        directory = tempfile.mkdtemp(prefix=f"pylogbroker-{name}-")
    except OSError as error:
        raise CommandError(f"cannot make a temporary directory: {error.strerror}") from error
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def dev(options: Namespace, streams: Streams) -> int:
    """Run a broker, a broker and ZooKeeper, or a cluster, until a signal ends them."""
    keepTimers(streams.reactor, bootSeconds)
    isTemporary = options.data is None
    if options.brokers > 1 or options.processes:
        with temporaryDirectory("dev") if isTemporary else nullcontext(options.data) as directory:
            return await _cluster(options, streams, directory)
    with temporaryDirectory("dev") if isTemporary else nullcontext(options.data) as directory:
        config = readProperties(str(samplePath()), streams.warn).withOverrides(
            [
                *DEV_DEFAULTS,
                *(["num.partitions=2"] if options.zookeeper else []),
                *options.changes,
                f"port={options.port}",
                f"listen.interface={HOST}",
                f"hostname={HOST}",
                "listeners=",
                f"log.dir={os.path.join(directory, 'log')}",
            ]
        )
        if not options.zookeeper:
            broker = EmbeddedBroker(
                streams.reactor, config.withOverrides(["enable.zookeeper=false"])
            )
            try:
                await broker.start()
                text = brokerPage(f"{HOST}:{broker.port}", directory, not isTemporary)
                await streams.write(text.encode("utf-8", "surrogateescape"))
                return await Deferred()  # until a signal cancels it
            finally:
                await closeAll(broker.stop())
        server = StandaloneZookeeper(
            streams.reactor, os.path.join(directory, "zookeeper"), options.zookeeperPort
        )
        try:
            await server.start()
            broker = EmbeddedBroker(
                streams.reactor,
                config.withOverrides(["enable.zookeeper=true", f"zk.connect={server.servers}"]),
            )
            try:
                await broker.start()
                address = f"{HOST}:{broker.port}"
                brokerId = broker.settings.brokerId
                text = page(server.servers, address, brokerId, directory, not isTemporary)
                await streams.write(text.encode("utf-8", "surrogateescape"))
                return await server.whenFailed()
            finally:
                await closeAll(broker.stop())
        finally:
            await closeAll(server.stop())


async def _cluster(options: Namespace, streams: Streams, directory: str) -> int:
    # A broker alone needs none of it.
    from pylogbroker.programs.localcluster import LocalCluster, ProcessCluster

    config = readProperties(str(samplePath()), streams.warn).withOverrides(
        [
            *DEV_DEFAULTS,
            f"offsets.topic.num.partitions={options.brokers}",
            f"transaction.state.log.num.partitions={options.brokers}",
            *options.changes,
            "listeners=",
        ]
    )
    arguments = (
        streams.reactor, directory, options.brokers, config, options.port, options.zookeeperPort
    )  # fmt: skip

    def ended(number: int, pid: int, reason: str) -> None:
        assert isinstance(made, ProcessCluster)
        config = shlex.quote(shortest(made.configOf(number)))
        streams.warn(
            f"broker {number}, process {pid}, has ended with {reason}; the others go on. To start "
            f"it again: {program('twistd')} -n --pidfile= pylogbroker --config {config}"
        )

    made: LocalCluster | ProcessCluster
    if options.processes:
        made = ProcessCluster(*arguments, brokerEnded=ended)
    else:
        made = LocalCluster(*arguments)
    try:
        await made.start()
        pids = made.pids if isinstance(made, ProcessCluster) else {}
        text = clusterPage(made.servers, made.addresses, pids, directory, options.data is not None)
        await streams.write(text.encode("utf-8", "surrogateescape"))
        return await made.whenFailed()
    finally:
        await closeAll(made.stop())


def brokerPage(address: str, directory: str, stays: bool) -> str:
    """
    The broker's address, and commands to type next.

    @param stays: whether the data stays.
    """
    command = program("pylogbroker")
    option = "" if address == DEFAULT_BROKER else f" --broker {address}"
    return f"""\
pylogbroker {__version__}

broker     {address}
data       {directory}, which {"stays" if stays else "goes at the end"}

Ctrl-C ends it. Clients of Kafka connect with bootstrap.servers={address}; for example, in
another terminal, Kafka's own tools:

  kafka-console-producer.sh --bootstrap-server {address} --topic first
  kafka-console-consumer.sh --bootstrap-server {address} --topic first --from-beginning

Clients of Kafka 0.7 connect to the same port. Their topics are their own:

  {command} produce /var/log/dpkg.log{option} --topic lines
  {command} consume{option} --topic lines --from-beginning --follow
  {command} offset list{option} --topic lines
"""


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

zookeeper  {servers}, a single server for development; {ENSEMBLE}
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


def clusterPage(
    servers: str, addresses: Mapping[int, str], pids: Mapping[int, int], directory: str, stays: bool
) -> str:
    """
    The addresses of all, and commands to type next.

    @param servers: ZooKeeper's.
    @param addresses: of the brokers, by id.
    @param pids: of their processes, by id; none: all are in this one.
    @param stays: whether the data stays.
    """
    command = program("pylogbroker")
    lines = [
        f"broker {number:<3} {address}" + (f", process {pids[number]}" if pids else "")
        for number, address in addresses.items()
    ]
    first = next(iter(addresses.values()))
    option = f"--bootstrap-server {first}"
    kill = ""
    if pids:
        number, pid = list(pids.items())[-1]
        kill = f"""
To see what clients notice of a lost machine, end broker {number}; this command tells of it:

  kill -9 {pid}
"""
    return f"""\
pylogbroker {__version__}

zookeeper  {servers}, a single server for development; {ENSEMBLE}
{chr(10).join(lines)}
data       {directory}, which {"stays" if stays else "goes at the end"}

Ctrl-C ends all of it. Clients of Kafka connect with bootstrap.servers={first},
or to any of the brokers. In another terminal:

  {command} broker list {option}
  {command} topic create first --partitions {2 * len(addresses)} {option}
  {command} produce /var/log/dpkg.log --topic first {option}
  {command} consume --topic first --from-beginning --follow {option}
  {command} topic describe first {option}

A page that shows the cluster, at http://127.0.0.1:8067/:

  {program("twistd")} -n --pidfile= pylogbroker-console {option}
{kill}"""


async def zookeeper(options: Namespace, streams: Streams) -> int:
    """Run ZooKeeper until a signal ends it."""
    keepTimers(streams.reactor, bootSeconds)
    server = StandaloneZookeeper(streams.reactor, options.data, options.port, tickMs=options.tick)
    try:
        await server.start()
        await streams.write(
            f"ZooKeeper serves on {server.servers}, with its data in {options.data}; "
            f"Ctrl-C ends it\nIt is a single server for development; {ENSEMBLE}\n".encode(),
        )
        return await server.whenFailed()
    finally:
        await closeAll(server.stop())


def program(name: str) -> str:
    """The name of a program of this installation, or its path if the shell would find another."""
    path = os.path.join(os.path.dirname(sys.executable), name)
    found = shutil.which(name)
    if not os.path.exists(path) or (found is not None and os.path.samefile(found, path)):
        return name
    return shlex.quote(shortest(path))


def shortest(path: str) -> str:
    """The shorter one of the absolute and the relative path."""
    return min(os.path.abspath(path), os.path.relpath(path), key=len)


COMMANDS = (
    Command(
        "dev",
        dev,
        (
            option(
                "--data DIR", "the directory of all data, which stays; by default, a temporary one"
            ),
            portOption(
                "--port", BROKER_PORT, "the broker's port; with --brokers, that of the first one"
            ),
            option(
                "--brokers N",
                "run a cluster of N brokers for today's Kafka, and its ZooKeeper (%(default)s)",
                intRange(1, BROKER_COUNT_MAX),
                1,
            ),
            flag("--processes", "with --brokers, run each of them in a process of its own"),
            flag(
                "--zookeeper",
                "run a ZooKeeper, too, and register the broker there, for producer and consumer "
                "groups of Kafka 0.7",
            ),
            portOption(
                "--zookeeper-port",
                ZOOKEEPER_PORT,
                "ZooKeeper's port, with --zookeeper or --brokers",
            ),
            changesOption("a property of the broker"),
        ),
        """\
examples:
  pylogbroker dev
  pylogbroker dev --zookeeper --data ./cluster --port 0 --zookeeper-port 0
  pylogbroker dev --brokers 3
  pylogbroker dev --brokers 3 --processes

The first serves clients of today's Kafka and of Kafka 0.7. The second keeps its data, and takes
free ports. The third runs a cluster of today's Kafka in this process; the fourth in four processes,
of which any broker can be killed. Acknowledged records survive the end of the process, but not a
power cut.
""",
        isEndless=True,
    ),
    Command(
        "zookeeper",
        zookeeper,
        (
            option("--data DIR", "the directory of its data; made if it is missing", required=True),
            portOption("--port", ZOOKEEPER_PORT, "the port to listen on"),
            option(
                "--tick MS",
                "its tick time; sessions last at least two ticks (%(default)s)",
                intRange(50, 60_000),
                TICK_MS,
            ),
        ),
        """\
examples:
  pylogbroker zookeeper --data /tmp/zookeeper
  pylogbroker zookeeper --data /tmp/zookeeper --port 0

The second takes a free port, and prints it. What was answered survives a power cut, but there is no
ensemble: a cluster that must survive the loss of a machine needs three or five servers of Apache
ZooKeeper, installed as its documentation says.
""",
        isEndless=True,
    ),
)
