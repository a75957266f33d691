"""
C{pylogbroker load}: topics into a table of Parquet files, what is new each time (the Hadoop consumer of 0.7, spec-0.7 tools §11, on Spark).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pylogbroker.cli.arguments import addAccess, addJson, addZookeeper, topic
from pylogbroker.cli.progress import formatBytes
from pylogbroker.cli.sparksession import addSpark, jobProgress, session
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.cli.tables import asJson, table
from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.config.properties import Properties
from pylogbroker.errors import LoadError, PostCommitError, PylogbrokerError
from pylogbroker.lake.commit import localPath
from pylogbroker.producer import plugins
from pylogbroker.storage.files import storageError

_EXAMPLES = """\
examples:
  pylogbroker load /tmp/warehouse --zookeeper zk1:2181 --topic clicks
  pylogbroker load /tmp/warehouse --zookeeper zk1:2181 --topic clicks --from earliest --json

Each run goes on where the last one was committed, up to where the logs end when it begins; one that died is repeated by the next, and no row is lost
or there twice. --from loads again, and replaces. Exit status: 0, all is loaded; 1, something failed, and the reason is on standard error. If that was behind
the commit, it says "committed as run N, but ...": what was committed stays, and the next run goes on behind it.
"""

_HEADINGS = ("TOPIC", "PARTITION", "FROM", "TO", "MESSAGES", "REPLACED")


def addTable(parser: argparse.ArgumentParser) -> None:
    """Which table, and how its files are written."""
    parser.add_argument(
        "path", metavar="FOLDER", help="the table's folder, on a local or mounted file system"
    )
    parser.add_argument(
        "--compression",
        metavar="NAME",
        default="zstd",
        help="of the files: zstd, snappy, gzip, lz4, none (%(default)s)",
    )


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    addTable(parser)
    cluster = parser.add_mutually_exclusive_group(required=True)
    addZookeeper(cluster, False)
    cluster.add_argument(
        "--brokers", metavar="ID:HOST:PORT,…", help="the brokers of a cluster without ZooKeeper"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--topic",
        dest="topics",
        metavar="TOPIC",
        type=topic,
        action="append",
        help="load this topic; can be repeated",
    )
    what.add_argument("--whitelist", metavar="PATTERN", help="load all topics whose names match")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--from", dest="beginnings", metavar="earliest|JSON",
        help='begin here, and replace what the table has from there on: earliest, latest, or {"TOPIC": {"BROKER-PARTITION": OFFSET}}',
    )  # fmt: skip
    begin.add_argument(
        "--offsets-in",
        dest="offsetsIn",
        metavar="FILE",
        help="begin at the offsets of these lines: uri, topic, partition and offset, with tabs between",
    )
    parser.add_argument(
        "--offsets-out",
        dest="offsetsOut",
        metavar="FILE",
        help="write such lines of where the table ends, for the next run of such a tool",
    )
    parser.add_argument(
        "--event-time",
        dest="eventTime",
        metavar="EXPRESSION",
        help="in SQL, when a message was made (the audit envelope's time, else that of the run)",
    )
    parser.add_argument(
        "--transform",
        metavar="MODULE.FUNCTION",
        help="adds columns: a function of a DataFrame to one that has a row for each row",
    )
    parser.add_argument(
        "--skip-lost",
        dest="isLossSkipped",
        action="store_true",
        help="go on where messages were deleted before they were loaded; without, that is an error",
    )
    addAccess(parser)
    addSpark(parser)
    addJson(parser)


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit when the options do not say what to load."""
    if not (options.topics or options.whitelist or options.offsetsIn):
        parser.error("one of --topic, --whitelist and --offsets-in says what to load")


def load(options: argparse.Namespace, streams: Streams) -> int:
    """
    Load.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    localPath(
        options.path
    )  # what is wrong with it, and with the lines, is said before Spark has started
    lines = _givenLines(options)
    with session(options, "pylogbroker load") as spark:
        from pylogbroker.spark import loader

        beginnings, topics = _beginnings(options, lines)
        source = _source(options, topics)
        transform = (
            None
            if options.transform is None
            else plugins.loadPlugin("transform", options.transform, {}, "transform")
        )
        with jobProgress(streams) as report:
            result = loader.load(
                spark, options.path, startOffsets=beginnings, eventTime=options.eventTime, transform=transform, compression=options.compression,
                progress=report, **source,
            )  # fmt: skip
    try:
        with _behindCommit(result.manifest, "that could not be told"):
            _tell(options, streams, result)
    finally:  # also if nobody reads to the end
        if options.offsetsOut is not None:
            with _behindCommit(result.manifest, "the offsets were not written"):
                _writeOffsets(options, _chosen(options, topics))
    return 0


@contextmanager
def _behindCommit(manifest: Any, problem: str) -> Iterator[None]:
    """
    What fails here has not kept the run from being committed, if there was one.

    @raise PostCommitError: for whatever of ours is raised.
    """
    try:
        yield
    except PylogbrokerError as error:
        if manifest is None:
            raise
        raise PostCommitError(
            f"committed as run {manifest.number}, but {problem}: {error}"
        ) from error


def _source(options: argparse.Namespace, topics: list[str]) -> dict[str, Any]:
    """The data source's options."""
    source = _cluster(options)
    source |= (
        {"subscribePattern": options.whitelist}
        if options.whitelist
        else {"subscribe": ",".join(topics)}
    )
    return source | {"failOnDataLoss": "false" if options.isLossSkipped else "true"}


def _cluster(options: argparse.Namespace) -> dict[str, str]:
    """Those that say where the cluster is and how to get at it. What stands in the file is left there: options travel to workers."""
    from pylogbroker.spark.options import ACCESS_OPTIONS

    found = {"zookeeper": options.zookeeper} if options.zookeeper else {"brokers": options.brokers}
    found |= {"config": os.path.abspath(options.accessFile)} if options.accessFile else {}
    given = Properties().withOverrides(options.accessChanges)
    return found | {name: given[key] for name, key in ACCESS_OPTIONS.items() if key in given}


def _brokers(options: argparse.Namespace) -> Mapping[int, Any]:
    """The addresses, by number."""
    from pylogbroker.spark.options import clusterOptions

    with clusterOptions(_cluster(options)).metadata() as view:
        return view.brokers()


def _givenLines(options: argparse.Namespace) -> list[str]:
    if options.offsetsIn is None:
        return []
    try:
        with open(options.offsetsIn, encoding="utf-8") as file:
            return file.read().split("\n")
    except UnicodeDecodeError as error:
        raise LoadError(
            f"{options.offsetsIn}: it is no text in UTF-8 ({error}); nothing was loaded. 0.7's sequence files have to become text first"
        ) from error
    except OSError as error:
        raise storageError(options.offsetsIn, "read", error) from error


def _beginnings(options: argparse.Namespace, lines: list[str]) -> tuple[Any, list[str]]:
    """Where to begin, and the topics that are meant."""
    if options.offsetsIn is None:
        return options.beginnings, options.topics or []
    from pylogbroker.spark.loader.plan import startOffsetsOf

    found = startOffsetsOf(lines, _brokers(options))
    return found, options.topics or sorted(found)


def _chosen(options: argparse.Namespace, topics: list[str]) -> Callable[[str], bool]:
    return TopicPattern(options.whitelist).matches if options.whitelist else topics.__contains__


def _writeOffsets(options: argparse.Namespace, isWanted: Callable[[str], bool]) -> None:
    """Only whole: the next tool must not begin at half of the lines."""
    from pylogbroker.spark.loader.plan import linesOf
    from pylogbroker.spark.loader.tablereader import tableAt

    last = tableAt(options.path).last()
    lines = linesOf(last.positions if last else {}, _brokers(options), isWanted)
    try:
        with open(f"{options.offsetsOut}.new", "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{options.offsetsOut}.new", options.offsetsOut)
    except OSError as error:
        raise storageError(options.offsetsOut, "write", error) from error


def _tell(options: argparse.Namespace, streams: Streams, result: Any) -> None:
    manifest = result.manifest
    if options.isJson:
        text = asJson(
            {
                "notes": list(result.notes),
                "run": None if manifest is None else manifest.asDocument(),
            }
        )
    elif manifest is not None:
        text = table(
            _HEADINGS, [(each.topic, each.partition, *each[2:]) for each in manifest.ranges]
        )
    else:
        text = ""
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
    for note in result.notes:
        streams.say(f"pylogbroker: {note}")
    if manifest is None:
        streams.say("nothing is new; the table is as it was")
        return
    written = f"{len(manifest.added)} files of {formatBytes(manifest.size)}"
    streams.say(
        f"run {manifest.number}: {manifest.rowCount:,} rows of {formatBytes(manifest.logSize)} of log, in {written}"
    )
    streams.say(f"event time: {manifest.eventTime}")
    for name, count in manifest.arrivals.items():
        streams.say(f"{name}: {count:,} rows have none, and stand under the time of the run")
