"""
Spark for commands: what they have in common that want a session.

PySpark comes with the extra C{pylogbroker[spark]}; so nothing of it is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pylogbroker.cli import CommandError
from pylogbroker.cli.progress import Progress
from pylogbroker.cli.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylogbroker.spark.loader.sparkjobs import ProgressCallback

DEFAULT_MASTER = "local[*,4]"
"""All processors of this machine; a task may fail three times before the job does."""


def addSpark(parser: argparse.ArgumentParser) -> None:
    """Which Spark."""
    parser.add_argument(
        "--master",
        metavar="URL",
        default=DEFAULT_MASTER,
        help="Spark's master (%(default)s: this machine, a failed task is tried again)",
    )
    parser.add_argument(
        "--conf", dest="settings", metavar="KEY=VALUE", type=_setting, action="append", default=[],
        help="a setting of Spark, such as spark.driver.memory=4g; can be repeated",
    )  # fmt: skip


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key.startswith("spark.") or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not spark.KEY=VALUE")
    return key, value


def settingsOf(options: argparse.Namespace) -> dict[str, str]:
    """Of a session that a command starts: ours, unless C{--conf} says otherwise."""
    # What goes wrong is said once, by the command; Spark and PySpark would say it in a hundred lines each.
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    # Ten seconds, its own limit, are too short for a worker to start on a busy machine.
    defaults["spark.python.authenticate.socketTimeout"] = "120s"
    # A time that names no zone must not depend on which machine's cron has loaded it.
    defaults["spark.sql.session.timeZone"] = "UTC"
    return {**defaults, **dict(options.settings)}


@contextmanager
def session(options: argparse.Namespace, name: str) -> Iterator[SparkSession]:
    """
    A session for a command; it ends with it. A program that has one already, and calls the command, keeps it.

    @param name: of the application.
    @raise CommandError: there is no Spark here, or it does not start.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException, PySparkRuntimeError
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        from pylogbroker.spark.loader.sparkjobs import reason
    except ImportError as error:
        raise CommandError(
            f"this needs Spark: pip install 'pylogbroker[spark]' ({error})"
        ) from error
    try:
        # The program's, whichever of its threads made it: what would be started beside it would be the same one, and end with the command.
        existing = SparkSession.active()
    except PySparkRuntimeError:
        pass
    else:
        yield existing
        return
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # workers would take whatever python3 they find
    builder = SparkSession.builder.appName(name).master(options.master)
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True
    for key, value in settingsOf(options).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        raise CommandError(f"Spark does not start: {reason(str(error))}") from error
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def jobProgress(
    streams: Streams, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressCallback]:
    """
    What Spark tells of its jobs, on a terminal, until they are done.

    @param clock: seconds.
    """
    progress = Progress(streams.errors, clock)
    try:
        yield lambda done: progress.update(
            done.rowCount, done.size, f"{done.stage}, {done.doneCount} of {done.taskCount} tasks"
        )
    finally:
        progress.clear()
