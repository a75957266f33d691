"""
C{load}: new messages of topics of Kafka 0.7 or of today's Kafka into a table of Parquet files (the
Hadoop consumer of 0.7, spec-0.7 tools §11, on Spark); and C{table compact}: fewer, larger files in
such a table.

PySpark comes with the extra C{spark}, so nothing of it is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    ACCESS,
    BOOTSTRAP,
    JSON,
    ZOOKEEPER,
    Command,
    either,
    flag,
    isCurrent,
    option,
    positive,
    rejectOptions,
    repeated,
    topic,
)
from pylogbroker.cli.kafka.records import ISOLATION_LEVELS
from pylogbroker.cli.output import Progress, asJson, formatBytes, table, tableOfRows
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.config.properties import Properties
from pylogbroker.config.securitysettings import BROKER_ENDPOINT
from pylogbroker.errors import LoadError, PostCommitError, PylogbrokerError
from pylogbroker.lake.commit import localPath
from pylogbroker.producer import plugins
from pylogbroker.storage.files import storageError
from pylogbroker.types import formatCount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylogbroker.spark.loader.jobprogress import ProgressCallback

DEFAULT_MASTER = "local[*,4]"
"""All processors of this machine; a task may fail three times."""

LOOPBACK = "127.0.0.1"

_HEADINGS = ("TOPIC", "PARTITION", "FROM", "TO", "MESSAGES", "REPLACED")


def prepareLoad(options: Namespace, streams: Streams) -> None:
    """
    @raise SystemExit: the options name no topics, or do not go together.
    """
    if isCurrent(options):
        reason = "these lines have the addresses and offsets of Kafka 0.7"
        rejectOptions(options, reason, "--offsets-in", "--offsets-out")
        given = Properties().withOverrides(options.accessChanges)
        if secrets := sorted(set(given) - {BROKER_ENDPOINT.key}):
            options.parser.error(
                f"--set {secrets[0]}: with --bootstrap-server it belongs in the file of --config,"
                " since Spark's options travel to the workers"
            )
    else:
        reason = "needs --bootstrap-server: Kafka 0.7 has no transactions"
        rejectOptions(options, reason, "--isolation-level")
    if not (options.topics or options.whitelist or options.offsetsIn):
        options.parser.error("one of --topic, --whitelist and --offsets-in says what to load")


def load(options: Namespace, streams: Streams) -> int:
    """Load new messages."""
    localPath(options.path)  # errors of folder and lines come before Spark starts
    lines = _readLines(options)
    with session(options, "pylogbroker load") as spark:
        from pylogbroker.spark import loader
        from pylogbroker.spark.loader.kafka07 import startOffsetsOf

        startOffsets, topics, pattern = options.startOffsets, options.topics, options.whitelist
        if options.offsetsIn is not None:
            startOffsets = startOffsetsOf(lines, _brokers(options))
            topics = topics or sorted(startOffsets)
        source: dict[str, Any] = _cluster(options)
        source |= {"subscribePattern": pattern} if pattern else {"subscribe": ",".join(topics)}
        transform = (
            None
            if options.transform is None
            else plugins.loadPlugin("transform", options.transform, {}, "transform")
        )
        with jobProgress(streams) as report:
            result = loader.load(
                spark,
                options.path,
                startOffsets=startOffsets,
                eventTime=options.eventTime,
                transform=transform,
                compression=options.compression,
                progress=report,
                failOnDataLoss="false" if options.skipLost else "true",
                **source,
            )
    try:
        with _afterCommit(result.manifest, "that could not be told"):
            _report(options, streams, result)
    finally:  # also after a broken pipe
        if options.offsetsOut is not None:
            isWanted = TopicPattern(pattern).matches if pattern else topics.__contains__
            with _afterCommit(result.manifest, "the offsets were not written"):
                _writeOffsets(options, isWanted)
    return 0


@contextmanager
def _afterCommit(manifest: Any, problem: str) -> Iterator[None]:
    try:
        yield
    except PylogbrokerError as error:
        if manifest is None:
            raise
        raise PostCommitError(
            f"committed as run {manifest.number}, but {problem}: {error}"
        ) from error


def _cluster(options: Namespace) -> dict[str, str]:
    """
    Options of the cluster and its credentials. What the file holds stays there, since options
    travel to workers.
    """
    from pylogbroker.spark.kafka.options import BOOTSTRAP_SERVERS
    from pylogbroker.spark.options import ACCESS_OPTIONS

    if isCurrent(options):
        found = {BOOTSTRAP_SERVERS: options.bootstrapServer}
        if options.isolationLevel is not None:
            found["kafka.isolation.level"] = options.isolationLevel
    elif options.zookeeper:
        found = {"zookeeper": options.zookeeper}
    else:
        found = {"brokers": options.brokers}
    found |= {"config": os.path.abspath(options.accessFile)} if options.accessFile else {}
    given = Properties().withOverrides(options.accessChanges)
    return found | {name: given[key] for name, key in ACCESS_OPTIONS.items() if key in given}


def _brokers(options: Namespace) -> Mapping[int, Any]:
    from pylogbroker.spark.options import ClusterOptions

    with ClusterOptions.fromOptions(_cluster(options)).metadata() as view:
        return view.brokers()


def _readLines(options: Namespace) -> list[str]:
    if options.offsetsIn is None:
        return []
    try:
        with open(options.offsetsIn, encoding="utf-8") as file:
            return file.read().split("\n")
    except UnicodeDecodeError as error:
        raise LoadError(
            f"{options.offsetsIn}: it is no text in UTF-8 ({error}); nothing was loaded. "
            "0.7's sequence files have to become text first"
        ) from error
    except OSError as error:
        raise storageError(options.offsetsIn, "read", error) from error


def _writeOffsets(options: Namespace, isWanted: Callable[[str], bool]) -> None:
    """Write the file as a whole: the next tool must not read half of the lines."""
    from pylogbroker.spark.loader.kafka07 import linesOf
    from pylogbroker.spark.loader.tablereader import tableAt

    last = tableAt(options.path).last()
    lines = linesOf(last.positions, _brokers(options), isWanted)
    try:
        with open(f"{options.offsetsOut}.new", "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{options.offsetsOut}.new", options.offsetsOut)
    except OSError as error:
        raise storageError(options.offsetsOut, "write", error) from error


def _report(options: Namespace, streams: Streams, result: Any) -> None:
    manifest = result.manifest
    if options.json:
        run = None if manifest is None else manifest.asDocument()
        text = asJson({"notes": list(result.notes), "run": run})
    else:
        text = tableOfRows(_HEADINGS, [] if manifest is None else manifest.ranges)
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
    for note in result.notes:
        streams.say(f"pylogbroker: {note}")
    if manifest is None:
        streams.say("nothing is new; the table is as it was")
        return
    written = f"{formatCount(len(manifest.added), 'file')} of {formatBytes(manifest.size)}"
    size = f" of {formatBytes(manifest.logSize)} of log" if manifest.logSize else ""
    rows = formatCount(manifest.rowCount, "row")
    streams.say(f"run {manifest.number}: {rows}{size}, in {written}")
    streams.say(f"event time: {manifest.eventTime}")
    for name, count in manifest.arrivals.items():
        rows = formatCount(count, "row")
        streams.say(f"{name}: {rows} without one, stored under the time of the run")


def _date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a date like 2026-01-31") from error


def compactTable(options: Namespace, streams: Streams) -> int:
    """Compact the small files of a table."""
    localPath(options.path)  # its errors come before Spark starts
    with session(options, "pylogbroker table compact") as spark:
        from pylogbroker.spark.loader import compact

        with jobProgress(streams) as report:
            days = compact(
                spark,
                options.path,
                date=options.date,
                fileCountMin=options.minFiles,
                compression=options.compression,
                progress=report,
            )
    text = (
        asJson({"days": [each._asdict() for each in days]})
        if options.json
        else table(("TOPIC", "DATE", "BEFORE", "FILES", "ROWS", "BYTES"), days)
    )
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
    return 0


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key.startswith("spark.") or not sign:
        raise ArgumentTypeError(f"{text!r} is not spark.KEY=VALUE")
    return key, value


def settingsOf(options: Namespace, name: str) -> dict[str, str]:
    """Settings of a session: our defaults, and C{--conf}, which overrides them."""
    defaults = {
        "spark.app.name": name,
        "spark.master": options.master,
        # The command reports an error once; Spark and PySpark would each print a hundred lines.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        # Spark's own limit of 10 s is too short for a worker to start on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
        # A time without a zone must not depend on the machine that loads it.
        "spark.sql.session.timeZone": "UTC",
    }
    given = dict(options.settings)
    if given.get("spark.master", options.master).startswith("local"):
        # No other machine takes part, so none needs to reach the driver.
        defaults |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {**defaults, **given}


@contextmanager
def session(options: Namespace, name: str) -> Iterator[SparkSession]:
    """
    A session that ends with the command. The session of a program that calls the command stays.

    @param name: of the application.
    @raise CommandError: Spark is not installed, or does not start.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException, PySparkRuntimeError
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        from pylogbroker.spark.loader.jobprogress import reason
    except ImportError as error:
        raise CommandError(
            f"this needs Spark: pip install '.[spark]' in pylogbroker's sources ({error})"
        ) from error
    try:
        # A program's session, of any thread: a second one would be the same, and end here.
        existing = SparkSession.active()
    except PySparkRuntimeError:
        pass
    else:
        yield existing
        return
    # Workers would take any python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.config(map={**settingsOf(options, name)})
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True
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
    Show the progress of Spark's jobs on a terminal.

    @param clock: seconds.
    """
    progress = Progress(streams.errors, clock)
    try:
        yield lambda done: progress.update(
            done.rowCount, done.size, f"{done.stage}, {done.doneCount} of {done.taskCount} tasks"
        )
    finally:
        progress.clear()


_TABLE = (
    option("path FOLDER", "the table's folder, on a local or mounted file system"),
    option(
        "--compression NAME",
        "of the files: zstd, snappy, gzip, lz4, none (%(default)s)",
        default="zstd",
    ),
)
SPARK_OPTIONS = (
    option(
        "--master URL",
        "Spark's master (%(default)s: this machine, a failed task is tried again)",
        default=DEFAULT_MASTER,
    ),
    repeated(
        "--conf KEY=VALUE",
        "a setting of Spark, such as spark.driver.memory=4g; can be repeated",
        "settings",
        _setting,
    ),
)
COMMANDS = (
    Command(
        "load",
        load,
        (
            *_TABLE,
            either(
                ZOOKEEPER,
                option("--brokers ID:HOST:PORT,…", "the brokers of a cluster without ZooKeeper"),
                BOOTSTRAP,
                isRequired=True,
            ),
            either(
                repeated("--topic TOPIC", "load this topic; can be repeated", "topics", topic),
                option("--whitelist PATTERN", "load all topics whose names match"),
            ),
            either(
                option(
                    "--from earliest|JSON",
                    "start here, and replace the rows of the table from there on: earliest, "
                    'latest, or {"TOPIC": {"BROKER-PARTITION": OFFSET}}, with --bootstrap-server '
                    '{"TOPIC": {"PARTITION": OFFSET}}',
                    dest="startOffsets",
                ),
                option(
                    "--offsets-in FILE",
                    "start at the offsets in lines of uri, topic, partition and offset, separated "
                    "by tabs",
                ),
            ),
            option(
                "--offsets-out FILE",
                "write such lines with the offsets at which the table ends",
            ),
            option(
                "--event-time EXPRESSION",
                "the time of a message, in SQL (the audit envelope's time, else the record's "
                "timestamp, else the time of the run)",
            ),
            option(
                "--transform MODULE.FUNCTION",
                "adds columns: a function from a DataFrame to one with a row for each row",
            ),
            option(
                "--isolation-level LEVEL",
                "with --bootstrap-server: read_committed, the default, leaves out records of "
                "aborted transactions, and ends before those of open ones; read_uncommitted loads "
                "them, too",
                choices=ISOLATION_LEVELS,
            ),
            flag(
                "--skip-lost",
                "continue behind messages that were deleted before they were loaded; by default, "
                "that is an error",
            ),
            *ACCESS,
            *SPARK_OPTIONS,
            JSON,
        ),
        """\
examples:
  pylogbroker load /tmp/warehouse --zookeeper zk1:2181 --topic clicks
  pylogbroker load /tmp/warehouse --zookeeper zk1:2181 --topic clicks --from earliest --json
  pylogbroker load /tmp/warehouse-payments --bootstrap-server log1:9092 --topic payments

Each run continues where the last committed one ended, up to the ends of the logs at its start. The
next run repeats one that died; no row is lost or doubled. --from loads again, and replaces rows.
The exit status is 1 when something failed. If that was after the commit, the error says "committed
as run N, but ...": the run stays, and the next one continues behind it.
""",
        prepareLoad,
        isBlocking=True,
    ),
    Command(
        "table compact",
        compactTable,
        (
            *_TABLE,
            option("--date", "only this day, in UTC; by default, all", _date),
            option(
                "--min-files N",
                "skip days whose hours have fewer small files (%(default)s)",
                positive,
                2,
            ),
            *SPARK_OPTIONS,
            JSON,
        ),
        """\
examples:
  pylogbroker table compact /tmp/warehouse
  pylogbroker table compact /tmp/warehouse --date 2026-01-31 --min-files 4 --json

Each topic and day is one commit: a run that dies loses nothing, and the next one continues. Readers
that started before must start again.
""",
        isBlocking=True,
    ),
)
