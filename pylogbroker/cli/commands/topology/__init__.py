"""
C{topology}: topologies of spouts and bolts (L{pylogbroker.topologies}): a local scheduler that runs
one; which there are, and how they are; pause and end.
"""

from __future__ import annotations

from pylogbroker.cli.arguments import (
    ACCESS,
    JSON,
    Command,
    changesOption,
    intRange,
    option,
    portOption,
    positive,
)
from pylogbroker.cli.commands.topology import scheduler, states
from pylogbroker.programs.standalonezookeeper import HOST
from pylogbroker.programs.standalonezookeeper import PORT as ZOOKEEPER_PORT

CONTAINER_COUNT_MAX = 1_000

DEFAULT_ZOOKEEPER = f"{HOST}:{ZOOKEEPER_PORT}"

_AT_ZOOKEEPER = (
    option(
        "--zookeeper HOST:PORT",
        "ZooKeeper's servers, host:port[,host:port…][/chroot] (%(default)s)",
        default=DEFAULT_ZOOKEEPER,
    ),
    option("--timeout-ms MS", "time-out for connecting (%(default)s)", positive, 10_000),
    *ACCESS,
)
_NAME = option("name TOPOLOGY", "the name of a topology")

COMMANDS = (
    Command(
        "topology submit",
        scheduler.submit,
        (
            option(
                "file FILE",
                "a Python file whose global names include a Topology, of ours, of streamparse or of"
                " heronpy",
            ),
            option("--topology NAME", "this topology of the file, if it has several"),
            option(
                "--containers N",
                "share the instances among N containers; by default, as the topology says"
                " (topology.stmgrs, or what a container has: topology.container.cpu.requested and"
                " topology.container.ram.requested), or one",
                intRange(1, CONTAINER_COUNT_MAX),
            ),
            option(
                "--python PATH",
                "the Python of the environment of a topology for streamparse or heronpy; by"
                " default, the one that runs this command",
            ),
            option(
                "--environment NAME",
                "with a topology for streamparse, the environment of its config.json and of its"
                " par",
            ),
            option(
                "--zookeeper HOST:PORT",
                "ZooKeeper's servers, host:port[,host:port…][/chroot]; overrides zk.connect of the "
                "property file. Without either, one on this machine, which is started if need be",
            ),
            portOption(
                "--zookeeper-port",
                ZOOKEEPER_PORT,
                "the port of that one",
            ),
            option(
                "--state-dir DIR",
                "the folder of logs and metrics; overrides state.dir of the property file",
            ),
            option("--config FILE", "a property file for the processes", dest="propertyFile"),
            changesOption(
                "a property, which overrides the file; or a key of the topology's configuration"
            ),
        ),
        """\
examples:
  pylogbroker topology submit wordcount.py
  pylogbroker topology submit wordcount.py --containers 3
  pylogbroker topology submit wordcount.py --set topology.reliability.mode=ATLEAST_ONCE
  pylogbroker topology submit topologies/wordcount.py --python venv/bin/python

Runs a topology on this machine until Ctrl-C, or until topology kill. Each instance, each
container's stream manager and metrics manager, and the master are processes; what dies is started
again. Each has a log file in the folder of --state-dir. Keys of property files are in
docs/settings.md.
""",
        scheduler.prepareSubmit,
        isEndless=True,
    ),
    Command(
        "topology list",
        states.listTopologies,
        (*_AT_ZOOKEEPER, JSON),
        """\
examples:
  pylogbroker topology list
  pylogbroker topology list --zookeeper zk1:2181 --json
""",
    ),
    Command(
        "topology describe",
        states.describe,
        (_NAME, *_AT_ZOOKEEPER, JSON),
        """\
examples:
  pylogbroker topology describe word-count
  pylogbroker topology describe word-count --json

Components and their inputs, and each instance with its container and what it has counted, as the
master has it: processes report every 10 seconds (metrics.interval.ms).
""",
    ),
    Command(
        "topology activate",
        states.activate,
        (_NAME, *_AT_ZOOKEEPER),
        """\
examples:
  pylogbroker topology activate word-count
""",
    ),
    Command(
        "topology deactivate",
        states.deactivate,
        (_NAME, *_AT_ZOOKEEPER),
        """\
examples:
  pylogbroker topology deactivate word-count

Spouts emit nothing until topology activate; bolts handle what is under way.
""",
    ),
    Command(
        "topology kill",
        states.kill,
        (_NAME, *_AT_ZOOKEEPER),
        """\
examples:
  pylogbroker topology kill word-count

Its scheduler ends all its processes in order, and removes its nodes in ZooKeeper. The command waits
until that is done, and removes them when the scheduler has died. Status 1: not within 90 s.
""",
    ),
)
