"""
The command C{pylogbroker}: the table of commands, errors and exit codes.

Exit codes: 0, success; 1, failure, with its reason and no traceback; 2, wrong arguments; 130 and
143, ended by Ctrl-C or C{SIGTERM}. A command without end, such as C{consume --follow}, exits with 0
then. A broken pipe is no error.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import difflib
import io
import signal
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import react
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from zope.interface import directlyProvides

from pylogbroker import __version__
from pylogbroker.cli.arguments import loadAccess
from pylogbroker.cli.commands import (
    audit,
    cluster,
    consume,
    demo,
    dev,
    dump,
    group,
    load,
    metrics,
    perf,
    produce,
    replay,
)
from pylogbroker.cli.streams import Streams, keepStandardDescriptors
from pylogbroker.errors import PylogbrokerError

PROGRAM = "pylogbroker"
_DESCRIPTION = """\
Publish to a pylogbroker or Kafka 0.7 broker, read from it, and administer a cluster.
The broker itself is started with: twistd pylogbroker
"""
_EXAMPLES = """\
examples:
  pylogbroker demo
  twistd -n pylogbroker --config etc/broker.properties
  pylogbroker produce /var/log/dpkg.log --topic dpkg
  pylogbroker consume --topic dpkg --from-beginning

pylogbroker COMMAND --help shows options and examples. docs/tools.md maps Kafka 0.7's scripts to
commands.
"""

CANCELLED = -1
"""What L{runCommand} returns for a cancelled command."""

FORCE_QUIT_SECONDS = 0.5
"""A second signal after this time kills. (C{timeout} sends two at once.)"""


def _nothing(_options: Namespace, _streams: Streams) -> None:
    """Most commands have nothing to prepare."""


class Command(NamedTuple):
    """
    A command.

    @ivar name: one word, or two: a noun and a verb.
    @ivar text: one sentence of help.
    @ivar addArguments: adds its arguments to a parser.
    @ivar run: runs it with options and streams, and returns the exit code; a coroutine function,
        unless C{isBlocking}. Its L{PylogbrokerError} is for the person who typed the command.
    @ivar prepare: called before the reactor runs; checks options, and may exit.
    @ivar isBlocking: whether the command runs without a reactor.
    """

    name: str
    text: str
    addArguments: Callable[[ArgumentParser], None]
    run: Callable[..., Any]
    prepare: Callable[[Namespace, Streams], None] = _nothing
    isBlocking: bool = False


COMMANDS = (
    Command(
        "demo",
        "Run a broker in this process, publish a file, read it back, and compare the bytes.",
        demo.addArguments,
        demo.demo,
    ),
    Command(
        "produce",
        "Publish each line of a file, or of standard input, as a message.",
        produce.addArguments,
        produce.produce,
        produce.prepare,
    ),
    Command(
        "consume",
        "Print messages on standard output, one a line.",
        consume.addArguments,
        consume.consume,
        consume.prepare,
    ),
    Command(
        "topic list",
        "Print the topics of a cluster.",
        cluster.addListArguments,
        cluster.listTopics,
    ),
    Command(
        "topic describe",
        "Print the partitions of topics, and where their logs begin and end.",
        cluster.addDescribeArguments,
        cluster.describeTopics,
    ),
    Command(
        "broker list",
        "Print the brokers of a cluster, and whether they answer.",
        cluster.addBrokerArguments,
        cluster.listBrokers,
    ),
    Command(
        "offset list",
        "Print where a partition begins or ends, or where it was at a time.",
        cluster.addOffsetArguments,
        cluster.listOffsets,
    ),
    Command(
        "group list",
        "Print the consumer groups of a cluster.",
        group.addListArguments,
        group.listGroups,
    ),
    Command(
        "group describe",
        "Print members, offsets and lag of consumer groups.",
        group.addDescribeArguments,
        group.describeGroups,
    ),
    Command(
        "group verify",
        "Check that each partition that a group reads has an owner among its members.",
        group.addVerifyArguments,
        group.verifyGroups,
    ),
    Command(
        "group export",
        "Write the committed offsets of consumer groups, one a line.",
        group.addExportArguments,
        group.exportOffsets,
    ),
    Command(
        "group import",
        "Set committed offsets to the output of group export; a dry run without --execute.",
        group.addImportArguments,
        group.importOffsets,
    ),
    Command(
        "group reset",
        "Set a group's offsets to an end, a time or a number; a dry run without --execute.",
        group.addResetArguments,
        group.resetOffsets,
    ),
    Command(
        "group translate",
        "Move a group's offsets to the target of a mirror; a dry run without --execute.",
        group.addTranslateArguments,
        group.translateOffsets,
    ),
    Command(
        "perf produce",
        "Publish messages and print how fast that was, with Kafka 0.7's columns.",
        perf.addProduceArguments,
        perf.perfProduce,
    ),
    Command(
        "perf consume",
        "Read as a consumer group and print how fast that was, with Kafka 0.7's columns.",
        perf.addConsumeArguments,
        perf.perfConsume,
    ),
    Command(
        "perf simple-consume",
        "Read one partition and print how fast that was, with Kafka 0.7's columns.",
        perf.addSimpleConsumeArguments,
        perf.perfSimpleConsume,
    ),
    Command(
        "load",
        "Load new messages of topics into a table of Parquet files, exactly once (needs Spark).",
        load.addLoadArguments,
        load.load,
        load.prepareLoad,
        isBlocking=True,
    ),
    Command(
        "table compact",
        "Merge the small files of a table, a day at a time (needs Spark).",
        load.addCompactArguments,
        load.compactTable,
        isBlocking=True,
    ),
    Command(
        "replay",
        "Copy the messages of a topic into another one, the oldest first.",
        replay.addArguments,
        replay.replay,
    ),
    Command(
        "audit",
        "Count the messages of clusters, and compare them with what producers have reported.",
        audit.addArguments,
        audit.audit,
    ),
    Command(
        "metrics",
        "Print the metrics of a broker as rows of comma-separated values, at an interval.",
        metrics.addArguments,
        metrics.metrics,
        metrics.prepare,
    ),
    Command(
        "dump",
        "Print the entries of segment files, and whether they are valid to the end.",
        dump.addDumpArguments,
        dump.dump,
        isBlocking=True,
    ),
    Command(
        "verify",
        "Check that the segment files of partitions are valid and contiguous.",
        dump.addVerifyArguments,
        dump.verifyFiles,
        isBlocking=True,
    ),
    Command(
        "dev",
        "Run a ZooKeeper and a broker for development, on this machine only.",
        dev.addDevArguments,
        dev.dev,
    ),
    Command(
        "zookeeper",
        "Run a ZooKeeper for development and tests, on this machine only.",
        dev.addZookeeperArguments,
        dev.zookeeper,
    ),
)
"""All commands, in the order of the help."""

_NOUNS = {
    "topic": "Topics of a cluster.",
    "broker": "Brokers of a cluster.",
    "offset": "Offsets of a partition.",
    "group": "Consumer groups: members, lag, and changes of committed offsets.",
    "perf": "How fast messages can be published and read.",
    "table": "Tables that load has filled.",
}
"""Help of the first words of commands of two words."""


def buildParser() -> ArgumentParser:
    """The parser of all arguments."""
    parser = ArgumentParser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _addCommands(parser)
    return parser


def _addCommands(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    subparsers = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    found = {}
    for command in COMMANDS:
        noun, _, verb = command.name.rpartition(" ")
        if noun not in subparsers:
            text = _NOUNS[noun]
            nounParser = subparsers[""].add_parser(noun, help=text, description=text)
            subparsers[noun] = nounParser.add_subparsers(metavar="COMMAND", required=True)
        commandParser = subparsers[noun].add_parser(
            verb,
            help=command.text,
            description=command.text,
            formatter_class=RawDescriptionHelpFormatter,
        )
        command.addArguments(commandParser)
        commandParser.set_defaults(parser=commandParser, command=command)
        found[command.name] = commandParser
    return found


def commands() -> dict[str, ArgumentParser]:
    """The parser of each command, by the command's name."""
    return _addCommands(ArgumentParser(prog=PROGRAM))


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The options of a command line. Wrong ones raise L{SystemExit}, and so does C{--help}."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = buildParser()
    problem = _misspelt(words)
    if problem:
        parser.error(problem)
    return parser.parse_args(words)


def _misspelt(words: Sequence[str]) -> str:
    names = [command.name.split() for command in COMMANDS]
    path: list[str] = []
    for word in words[:2]:
        candidates = sorted(
            {
                name[len(path)]
                for name in names
                if name[: len(path)] == path and len(name) > len(path)
            }
        )
        if word.startswith("-") or not candidates:
            break
        path.append(word)
        if word not in candidates:
            close = difflib.get_close_matches(word, candidates, 1)
            advice = f"did you mean {close[0]}?" if close else f"there are: {', '.join(candidates)}"
            return f"there is no command {' '.join(path)}; {advice}"
    return ""


def prepare(arguments: Sequence[str] | None, streams: Streams) -> Namespace:
    """
    Parse the arguments, and do what comes before the reactor.

    @return: the options; C{options.command} is the L{Command}.
    @raise SystemExit: the arguments are wrong, or ask for help.
    @raise PylogbrokerError: a file cannot be opened.
    """
    options = parse(arguments)
    loadAccess(options)
    options.command.prepare(options, streams)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run a command.

    @param arguments: without the program's name; by default, the process's own.
    @return: the exit code of a blocking command. Other commands exit the process.
    """
    keepStandardDescriptors()
    # sys.stderr is None when the process was started without standard error.
    streams = Streams(0, 1, sys.stderr or io.StringIO())
    try:
        options = prepare(arguments, streams)
        if options.command.isBlocking:
            code: int = options.command.run(options, streams)
            return code
    except BrokenPipeError:
        return 0
    except PylogbrokerError as error:
        streams.warn(str(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    globalLogBeginner.beginLoggingTo([logObserver(streams)], redirectStandardIO=False)
    react(_run, (options, streams))
    raise AssertionError("react exits")


async def _run(reactor: Any, options: Namespace, streams: Streams) -> None:
    streams = streams._replace(reactor=reactor)
    signals: list[tuple[int, float]] = []  # numbers and times
    running: Deferred[int] = Deferred()

    def end(number: int, _frame: object) -> None:
        now = streams.reactor.seconds()
        if not signals:
            streams.reactor.callFromThread(running.cancel)
        elif now - signals[0][1] > FORCE_QUIT_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        signals.append((number, now))

    def begin() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)

    streams.reactor.callWhenRunning(begin)  # after the reactor has installed its own
    running = Deferred.fromCoroutine(runCommand(options, streams))
    code = await running
    if code == CANCELLED:
        code = 0 if getattr(options, "follow", False) else 128 + signals[0][0]
    if code:
        raise SystemExit(code)


async def runCommand(options: Namespace, streams: Streams) -> int:
    """
    Run C{options.command}, and report its error on C{streams.errors}.

    @return: the exit code; L{CANCELLED} when it was cancelled.
    """
    try:
        code: int = await options.command.run(options, streams)
        return code
    except BrokenPipeError:
        return 0
    except PylogbrokerError as error:
        streams.warn(str(error))
        return 1
    except CancelledError:
        return CANCELLED


def logObserver(streams: Streams) -> ILogObserver:
    """Prints warnings in a line, and failures of the program itself with their traceback."""

    def observe(event: LogEvent) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.warn:
            failure = event.get("log_failure")
            text = formatEvent(event)
            if failure is not None and level is LogLevel.critical:
                text += f"\n{failure.getTraceback()}"
            streams.warn(text)

    directlyProvides(observe, ILogObserver)
    return observe  # type: ignore[return-value] # mypy does not see what zope declares
