"""
C{task}: jobs, whose tasks read topics, keep state and write topics (L{pylogbroker.tasks}):
containers that run them; what jobs read and write; where they are; a new beginning.
"""

from __future__ import annotations

import argparse

from pylogbroker.cli.arguments import (
    AT_BOOTSTRAP,
    AT_BROKERS,
    BOOTSTRAP,
    JSON,
    TO_POSITION,
    Command,
    changesOption,
    either,
    flag,
    intRange,
    option,
)
from pylogbroker.cli.commands.load import SPARK_OPTIONS
from pylogbroker.cli.commands.task import plan, runner, sparkrunner, state
from pylogbroker.cli.streams import Streams

CONTAINER_COUNT_MAX = 100

_FILE = option("file FILE", "a Python file whose global names include Jobs")
_JOB = option("--job NAME", "this job of the file; by default, all")
_AS = option(
    "--as NAME",
    "the job under this name, with a group, stores and outputs of its own: .NAME stands behind "
    "the names of the topics that it writes",
    dest="newName",
)
_STATE_DIR = option(
    "--state-dir DIR", "the folder of stores; overrides state.dir of the property file"
)


async def _run(options: argparse.Namespace, streams: Streams) -> int:
    if options.engine == runner.SPARK:
        return await sparkrunner.runOnSpark(options, streams)
    return await runner.run(options, streams)


COMMANDS = (
    Command(
        "task run",
        _run,
        (
            _FILE,
            _JOB,
            _AS,
            option(
                "--bootstrap-server HOST:PORT",
                "brokers to begin with; overrides bootstrap.servers of the property file",
            ),
            option("--config FILE", "a property file for containers", dest="propertyFile"),
            changesOption("a property, which overrides the file"),
            _STATE_DIR,
            option(
                "--containers N",
                "run N containers of each job, each in a process, and start again what dies "
                "(%(default)s: one in this process)",
                intRange(1, CONTAINER_COUNT_MAX),
                1,
            ),
            flag(
                "--until-end",
                "end when all messages are handled that the inputs have at the start",
                dest="follow",
                action="store_false",
            ),
            option(
                "--container-id ID",
                "with exactly_once_v2: what names the container, so that it can take its own "
                "place; different for each; by default, drawn by lot",
                default="",
            ),
            option(
                "--engine NAME",
                "what runs the tasks: containers (the default), or spark, with the state and the "
                "positions in a checkpoint below the folder of stores",
                choices=runner.ENGINES,
                default=runner.CONTAINERS,
            ),
            *SPARK_OPTIONS,
            option("--report-to FD", argparse.SUPPRESS, int),
        ),
        """\
examples:
  pylogbroker task run job.py --bootstrap-server log1:9092
  pylogbroker task run job.py --bootstrap-server log1:9092 --until-end
  pylogbroker task run job.py --bootstrap-server log1:9092 --containers 2
  pylogbroker task run job.py --as new-count --bootstrap-server log1:9092 --until-end

A job has a task for each number of a partition; containers, here and on other machines, share the
tasks. Ctrl-C and SIGTERM commit, and end all. A message that its task cannot handle ends all with
exit code 1, unless the job's onError says otherwise. --containers starts a process again that dies,
later each time; one that dies more than five times a minute ends all. Keys of property files are in
docs/settings.md. --engine spark runs the same jobs on Spark: docs/spark.md says what differs.
""",
        runner.prepareRun,
    ),
    Command(
        "task plan",
        plan.plan,
        (
            option(
                "files FILE",
                "Python files whose global names include Jobs; without one, with "
                "--bootstrap-server, the jobs that containers have published there",
                nargs="*",
            ),
            _JOB,
            _AS,
            BOOTSTRAP,
            *AT_BROKERS,
            option(
                "--config-topic TOPIC",
                "where containers have published their jobs (pylogbroker-task-configs)",
            ),
            either(
                flag("--all", "print the writers and readers of each topic, over all jobs"),
                flag("--dot", "print a graph in the language of Graphviz"),
                flag("--svg", "print a picture, for a browser"),
            ),
            JSON,
        ),
        """\
examples:
  pylogbroker task plan job.py
  pylogbroker task plan job.py --bootstrap-server log1:9092
  pylogbroker task plan job.py --all
  pylogbroker task plan job.py --svg
  pylogbroker task plan --all --bootstrap-server log1:9092

With --bootstrap-server partitions and tasks are counted; nothing is created. Without files, the
jobs are those whose containers have run in the cluster. dot -Tsvg draws what --dot prints.
""",
        prepare=plan.preparePlan,
        isBlocking=True,
    ),
    Command(
        "task describe",
        state.describe,
        (
            _FILE,
            _JOB,
            _AS,
            _STATE_DIR,
            *AT_BOOTSTRAP,
            option(
                "--metrics-topic TOPIC",
                "where containers publish their metrics (that of --config, or "
                "pylogbroker-task-metrics)",
            ),
            JSON,
        ),
        """\
examples:
  pylogbroker task describe job.py --bootstrap-server log1:9092
  pylogbroker task describe job.py --bootstrap-server log1:9092 --job count-words --json

OFFSET is the committed position, END the end of the log, LAG the messages between them. Of each
store there are the offsets of its changelog, and the bytes that it has on this machine. Stand-bys
are as their containers have reported them: LAG is the changes that one lacks.
""",
        isBlocking=True,
    ),
    Command(
        "task reset",
        state.reset,
        (
            _FILE,
            _JOB,
            _AS,
            either(*TO_POSITION),
            flag("--execute", "make the changes; by default, they are only shown"),
            _STATE_DIR,
            *AT_BOOTSTRAP,
        ),
        """\
examples:
  pylogbroker task reset job.py --bootstrap-server log1:9092
  pylogbroker task reset job.py --job count-words --to-latest --bootstrap-server log1:9092
  pylogbroker task reset job.py --job count-words --bootstrap-server log1:9092 --execute

Positions go to the oldest messages, or where --to-latest, --to-datetime or --to-offset says.
Changelogs and repartition topics are deleted, and so are the stores on this machine; those on
others are built anew when they are used. Outputs stay. While a container runs, everything is
refused.
""",
        isBlocking=True,
    ),
)
