"""
The command C{pylogbroker}: the table of commands, errors and exit codes. The module of a command is
imported when the command is typed, so that each starts as fast as it can.

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
from importlib import import_module
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import react
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from zope.interface import directlyProvides

from pylogbroker import __version__, speedups
from pylogbroker.cli.arguments import Command, blockingRun, loadAccess
from pylogbroker.cli.streams import Streams, keepStandardDescriptors
from pylogbroker.errors import PylogbrokerError

PROGRAM = "pylogbroker"
_DESCRIPTION = """\
Publish to a pylogbroker or Kafka broker, read from it, and administer a cluster: of today's Kafka
with --bootstrap-server, of Kafka 0.7 with --zookeeper or --broker. Without any of these, produce,
consume and offset list speak the protocol of Kafka 0.7 with a broker at 127.0.0.1:9092.
The broker itself, which speaks both, is started with: twistd pylogbroker
"""
_EXAMPLES = """\
examples:
  pylogbroker demo
  twistd -n pylogbroker --config etc/broker.properties
  pylogbroker produce /var/log/dpkg.log --topic dpkg
  pylogbroker consume --topic dpkg --from-beginning
  pylogbroker topic list --bootstrap-server 127.0.0.1:9092

pylogbroker COMMAND --help shows options and examples. docs/tools.md maps the scripts of Kafka 4 and
of Kafka 0.7 to commands, and tells which command speaks which protocol.
"""

CANCELLED = -1
"""What L{runCommand} returns for a cancelled command."""

FORCE_QUIT_SECONDS = 0.5
"""A second signal after this time kills. (C{timeout} sends two at once.)"""


class CommandEntry(NamedTuple):
    """
    A command, before its module is imported.

    @ivar name: one word, or two: a noun and a verb.
    @ivar module: in L{pylogbroker.cli.commands}; its C{COMMANDS} have the L{Command}.
    @ivar text: one sentence of help.
    """

    name: str
    module: str
    text: str

    def load(self) -> Command:
        """The command, of its module."""
        found: tuple[Command, ...] = import_module(
            f"pylogbroker.cli.commands.{self.module}"
        ).COMMANDS
        return next(each for each in found if each.name == self.name)


_TEXTS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "demo",
        {
            "demo": "Run a broker in this process, publish a file, read it back, and "
            "compare the bytes.",
        },
    ),
    (
        "produce",
        {
            "produce": "Publish each line of a file, or of standard input, as a message.",
        },
    ),
    (
        "consume",
        {
            "consume": "Print messages on standard output, one a line.",
        },
    ),
    (
        "cluster",
        {
            "topic list": "Print the topics of a cluster.",
            "topic describe": "Print the partitions of topics, and where their logs begin and end.",
            "topic create": "Create a topic of today's Kafka.",
            "topic alter": "Give a topic of today's Kafka more partitions, or other settings.",
            "topic delete": "Delete topics of today's Kafka, with their records.",
            "broker list": "Print the brokers of a cluster, and whether they answer.",
            "broker drain": "Move the partitions of today's Kafka away from a broker; a dry run "
            "without --execute.",
            "broker decommission": "Move a broker's partitions away, then remove its "
            "registration; a dry run without --execute.",
            "partition elect": "Give partitions their preferred leader, or any; a dry run without "
            "--execute.",
            "partition plan": "Plan which replicas move to which brokers, as Kafka's JSON.",
            "partition reassign": "Move replicas as Kafka's JSON says, and show the progress; a "
            "dry run without --execute.",
            "offset list": "Print where partitions begin or end, or where they were at a time.",
        },
    ),
    (
        "group",
        {
            "group list": "Print the consumer groups of a cluster.",
            "group describe": "Print members, offsets and lag of consumer groups.",
            "group verify": "Check that each partition that a group reads has an owner among its "
            "members.",
            "group export": "Write the committed offsets of consumer groups, one a line.",
            "group import": "Set committed offsets to the output of group export; a dry run "
            "without --execute.",
            "group reset": "Set a group's offsets to an end, a time or a number; a dry run "
            "without --execute.",
            "group delete": "Delete groups of today's Kafka that have no members, with their "
            "offsets.",
            "group translate": "Move a group's offsets to the target of a mirror; a dry run "
            "without --execute.",
        },
    ),
    (
        "task",
        {
            "task run": "Run the tasks of jobs, in containers that share them.",
            "task plan": "Print what jobs read, keep and write.",
            "task describe": "Print how far a job is, its members, and its state.",
            "task reset": "Begin a job anew, without state; a dry run without --execute.",
        },
    ),
    (
        "topology",
        {
            "topology submit": "Run a topology on this machine, in containers of processes.",
            "topology list": "Print the topologies that run, and their states.",
            "topology describe": "Print a topology's components, its instances, and what they "
            "have counted.",
            "topology activate": "Let the spouts of a topology emit again.",
            "topology deactivate": "Let the spouts of a topology rest.",
            "topology kill": "End a topology.",
        },
    ),
    (
        "user",
        {
            "user list": "Print the users that have a password for SCRAM.",
            "user add": "Give a user a password for SCRAM, or another one.",
            "user remove": "Take a user's passwords for SCRAM away.",
        },
    ),
    (
        "cluster",
        {
            "metadata move": "Move a stopped broker's metadata to a cluster in ZooKeeper.",
        },
    ),
    (
        "perf",
        {
            "perf produce": "Publish messages and print how fast that was, with Kafka 0.7's "
            "columns.",
            "perf consume": "Read as a consumer group and print how fast that was, with Kafka "
            "0.7's columns.",
            "perf simple-consume": "Read one partition and print how fast that was, with Kafka "
            "0.7's columns.",
        },
    ),
    (
        "load",
        {
            "load": "Load new messages of topics into a table of Parquet files, exactly "
            "once (needs Spark).",
            "table compact": "Merge the small files of a table, a day at a time (needs Spark).",
        },
    ),
    (
        "produce",
        {
            "replay": "Copy the messages of a topic into another one, the oldest first.",
        },
    ),
    (
        "audit",
        {
            "audit": "Count the messages of clusters, and compare them with what producers "
            "have reported.",
        },
    ),
    (
        "metrics",
        {
            "metrics": "Print the metrics of a broker as rows of comma-separated values, at "
            "an interval.",
        },
    ),
    (
        "dump",
        {
            "dump": "Print the entries of segment files, and whether they are valid to the end.",
            "verify": "Check that segment files, or the partitions of a cluster, are valid and "
            "contiguous.",
        },
    ),
    (
        "dev",
        {
            "dev": "Run a broker for development, on this machine only.",
            "zookeeper": "Run a ZooKeeper for development and tests, on this machine only.",
        },
    ),
)
"""For each module of L{pylogbroker.cli.commands}: the names of commands, and a sentence of help."""

COMMANDS = tuple(
    CommandEntry(name, module, text) for module, texts in _TEXTS for name, text in texts.items()
)
"""All commands, in the order of the help."""

_NOUNS = {
    "topic": "Topics of a cluster: partitions and sizes; changes of those of today's Kafka.",
    "broker": "Brokers of a cluster.",
    "partition": "Partitions of today's Kafka: leaders and replicas.",
    "offset": "Offsets of a partition.",
    "group": "Consumer groups: members, lag, and changes of committed offsets.",
    "task": "Jobs, whose tasks read topics, keep state and write topics.",
    "topology": "Topologies of spouts and bolts, which handle streams of tuples.",
    "user": "Users and their passwords, for SASL SCRAM.",
    "metadata": "Metadata of topics of today's Kafka.",
    "perf": "How fast messages can be published and read with Kafka 0.7's protocol.",
    "table": "Tables that load has filled.",
}
"""Help of the first words of commands of two words."""


class _Parser(ArgumentParser):
    """A parser that gets the arguments of its command when it is first used."""

    entry: CommandEntry | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Import the module of the command, and parse."""
        entry, self.entry = self.entry, None
        if entry is not None:
            command = entry.load()
            self.epilog = command.examples
            for argument in command.arguments:
                argument(self)
            self.set_defaults(parser=self, command=command)
        return super().parse_known_args(args, namespace)


def buildParser() -> ArgumentParser:
    """The parser of all arguments."""
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"{PROGRAM} {__version__} ({speedups.description})"
    )
    subparsers = {"": parser.add_subparsers(metavar="COMMAND", required=True)}
    for entry in COMMANDS:
        noun, _, verb = entry.name.rpartition(" ")
        if noun not in subparsers:
            text = _NOUNS[noun]
            nounParser = subparsers[""].add_parser(noun, help=text, description=text)
            subparsers[noun] = nounParser.add_subparsers(metavar="COMMAND", required=True)
        commandParser = subparsers[noun].add_parser(
            verb,
            help=entry.text,
            description=entry.text,
            formatter_class=RawDescriptionHelpFormatter,
        )
        commandParser.entry = entry
    return parser


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The options of a command line. Wrong ones raise L{SystemExit}, and so does C{--help}."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = buildParser()
    problem = _misspelt(words)
    if problem:
        parser.error(problem)
    return parser.parse_args(words)


def _misspelt(words: Sequence[str]) -> str:
    names = [entry.name.split() for entry in COMMANDS]
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
    if options.command.prepare is not None:
        options.command.prepare(options, streams)
    return options


def main(
    arguments: Sequence[str] | None = None, onPrepared: Callable[[], object] = lambda: None
) -> int:
    """
    Run a command.

    @param arguments: without the program's name; by default, the process's own.
    @param onPrepared: called when the command's modules are imported, before it runs.
    @return: the exit code of a blocking command. Other commands exit the process.
    """
    keepStandardDescriptors()
    # sys.stderr is None when the process was started without standard error.
    streams = Streams(0, 1, sys.stderr or io.StringIO())
    try:
        options = prepare(arguments, streams)
        onPrepared()
        run = blockingRun(options)
        if run is not None:
            return _blocking(run, options, streams)
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


def _blocking(run: Callable[..., int], options: Namespace, streams: Streams) -> int:
    """
    Run a command without a reactor. A signal ends it where it stands; what follows new records has
    no other end, so that is no failure.
    """

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one kills
        raise _EndedError(number)

    before = [signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        return run(options, streams)
    except _EndedError as error:
        return 0 if getattr(options, "follow", False) else 128 + int(error.args[0])
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


class _EndedError(BaseException):
    """A signal has ended the command; its number."""


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
        isEndless = options.command.isEndless or getattr(options, "follow", False)
        code = 0 if isEndless else 128 + signals[0][0]
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
