"""
The command C{pylogbroker}: arguments, errors and exit codes.

Exit codes: 0, it worked; 1, it did not, and standard error says why in a line or two, never in a traceback; 2, the arguments are wrong; 130 and 143, somebody
ended it with Ctrl-C or C{SIGTERM} before it was done. C{consume --follow} is never done, so that ending it is 0. Whoever reads our output may leave
at any time: a broken pipe is 0, too.

Results go to standard output and everything else to standard error.
"""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import react
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from zope.interface import directlyProvides

from pylogbroker import __version__
from pylogbroker.cli import (
    audit,
    brokers,
    consume,
    demo,
    dev,
    dump,
    groupoffsets,
    groups,
    grouptranslate,
    groupverify,
    load,
    loadcompact,
    metrics,
    offsets,
    perfconsume,
    perfproduce,
    produce,
    replay,
    topics,
    verify,
    zookeeper,
)
from pylogbroker.cli.arguments import loadAccess
from pylogbroker.cli.streams import Streams, keepStandardDescriptors
from pylogbroker.errors import PylogbrokerError

_DESCRIPTION = "Publish to a pylogbroker or Kafka 0.7 broker, read from it, and see it work. The broker itself is started with: twistd pylogbroker"
_EXAMPLES = """\
examples:
  pylogbroker demo
  twistd -n pylogbroker --config etc/broker.properties
  pylogbroker produce /var/log/dpkg.log --topic dpkg
  pylogbroker consume --topic dpkg --from-beginning

pylogbroker COMMAND --help has the options of a command, and examples of it. docs/tools.md says which of Kafka 0.7's scripts each stands for.
"""

_Command = Callable[[Any, argparse.Namespace, Streams], Coroutine[Deferred[Any], Any, int]]


class _Subject(NamedTuple):
    """One of several commands of a module."""

    addArguments: Callable[[argparse.ArgumentParser], None]


_COMMANDS: tuple[tuple[str, Any, str], ...] = (
    (
        "demo",
        demo,
        "Run a broker in this process, publish a log file to it, read it back, compare it byte for byte, and stop again.",
    ),
    ("produce", produce, "Publish each line of a file, or of standard input, as a message."),
    ("consume", consume, "Print messages on standard output, one a line."),
    ("offsets", offsets, "Print where a partition begins or ends, or where it was at a time."),
    (
        "audit",
        audit,
        "Count what is in clusters, compare it with what producers say they have sent, and tell whether anything is missing.",
    ),
    (
        "groups",
        groups,
        "Print the consumer groups: who is in them, where they are, and how far they are behind.",
    ),
    (
        "groups export",
        _Subject(groupoffsets.addExportArguments),
        "Write the committed offsets of consumer groups, a line each.",
    ),
    (
        "groups import",
        _Subject(groupoffsets.addImportArguments),
        "Set committed offsets to what groups export has written; a dry run, unless told.",
    ),
    (
        "groups reset",
        _Subject(groupoffsets.addResetArguments),
        "Set a group's offsets to earliest, latest, a time or a number; a dry run, unless told.",
    ),
    (
        "groups translate",
        grouptranslate,
        "Set a group's offsets in a mirror's target to where it stands in the source; a dry run, unless told.",
    ),
    (
        "groups verify",
        groupverify,
        "Say whether every partition that a group wants has an owner among its members.",
    ),
    (
        "load",
        load,
        "Load what is new in topics to a table of Parquet files, so that no message is lost or there twice (needs Spark).",
    ),
    (
        "load compact",
        loadcompact,
        "Make few files of many in a table, a day at a time (needs Spark).",
    ),
    ("replay", replay, "Copy the messages of a topic into another, from the oldest on."),
    (
        "topics",
        topics,
        "Print the topics of a cluster, and where the logs of their partitions begin and end.",
    ),
    ("brokers", brokers, "Print the brokers of a cluster, and whether they answer."),
    (
        "metrics",
        metrics,
        "Print the figures of a broker as rows of comma-separated values, again and again.",
    ),
    (
        "dev",
        dev,
        "Run a ZooKeeper and a broker in the foreground, on this machine only, and say what to do next.",
    ),
    (
        "zookeeper",
        zookeeper,
        "Run a ZooKeeper for development and tests in the foreground, on this machine only.",
    ),
    ("dump", dump, "Print what stands in segment files, and whether they are valid to their ends."),
    ("verify", verify, "Say whether the segment files of partitions are whole and fit together."),
    (
        "perf produce",
        perfproduce,
        "Publish messages and print how fast that was, with Kafka 0.7's columns.",
    ),
    (
        "perf consume",
        _Subject(perfconsume.addGroupArguments),
        "Read as a consumer group and print how fast that was, with Kafka 0.7's columns.",
    ),
    (
        "perf simple-consume",
        _Subject(perfconsume.addSimpleArguments),
        "Read one partition and print how fast that was, with Kafka 0.7's columns.",
    ),
)


_TWO_WORDS = frozenset(name for name, _module, _sentence in _COMMANDS if " " in name)


def buildParser() -> argparse.ArgumentParser:
    """The parser of all arguments."""
    parser = argparse.ArgumentParser(
        prog="pylogbroker",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pylogbroker {__version__}")
    _addCommands(parser)
    return parser


def _addCommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module, sentence in _COMMANDS:
        command = commands.add_parser(
            name,
            help=sentence,
            description=sentence,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.addArguments(command)
        command.set_defaults(parser=command)
    return dict(commands.choices)


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by its name of one word or two."""
    return _addCommands(argparse.ArgumentParser(prog="pylogbroker"))


_COROUTINES: dict[str, _Command] = {
    "demo": demo.demo,
    "produce": produce.produce,
    "consume": consume.consume,
    "offsets": offsets.offsets,
    "audit": audit.audit,
    "groups": groups.groups,
    "groups export": groupoffsets.exportOffsets,
    "groups import": groupoffsets.importOffsets,
    "groups reset": groupoffsets.resetOffsets,
    "groups translate": grouptranslate.translateOffsets,
    "groups verify": groupverify.verifyGroups,
    "replay": replay.replay,
    "topics": topics.topics,
    "brokers": brokers.brokers,
    "metrics": metrics.metrics,
    "dev": dev.dev,
    "zookeeper": zookeeper.zookeeper,
    "perf produce": perfproduce.perfProduce,
    "perf consume": perfconsume.perfConsume,
    "perf simple-consume": perfconsume.perfSimpleConsume,
}

_WITHOUT_REACTOR: dict[str, Callable[[argparse.Namespace, Streams], int]] = {
    "dump": dump.dump, "verify": verify.verifyFiles, "load": load.load, "load compact": loadcompact.loadCompact,
}  # fmt: skip


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Options, of commands of one word and of two.

    @param arguments: without the program's name; by default the process's own.
    @raise SystemExit: the arguments are wrong, or ask for help.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if " ".join(words[:2]) in _TWO_WORDS:
        words[:2] = [" ".join(words[:2])]
    return buildParser().parse_args(words)


def prepare(
    arguments: Sequence[str] | None, streams: Streams
) -> tuple[argparse.Namespace, _Command | None]:
    """
    All that is done before there is a reactor.

    @param arguments: without the program's name; by default the process's own.
    @return: (the options; the command, or L{None} for one that needs no reactor).
    @raise SystemExit: the arguments are wrong, or ask for help.
    @raise PylogbrokerError: a file cannot be opened.
    """
    options = parse(arguments)
    loadAccess(options.parser, options)
    if options.command == "produce":
        produce.check(options.parser, options)
        produce.prepare(options, streams)
    elif options.command == "consume":
        consume.check(options.parser, options)
    elif options.command == "metrics":
        metrics.check(options)
    elif options.command == "load":
        load.check(options.parser, options)
    return options, _COROUTINES.get(options.command)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run a command.

    @param arguments: without the program's name; by default the process's own.
    @return: the exit code; a command that needs the reactor exits with it instead.
    """
    keepStandardDescriptors()
    streams = Streams(
        0, 1, sys.stderr or io.StringIO()
    )  # Python has none when it was started without
    try:
        options, command = prepare(arguments, streams)
        if command is None:
            return _WITHOUT_REACTOR[options.command](options, streams)
    except BrokenPipeError:
        return 0
    except PylogbrokerError as error:
        streams.say(f"pylogbroker: {error}")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    globalLogBeginner.beginLoggingTo([reporter(streams)], redirectStandardIO=False)
    react(_run, (command, options, streams))
    raise AssertionError("react exits")


async def _run(
    reactor: Any, command: _Command, options: argparse.Namespace, streams: Streams
) -> None:
    """Under L{react}: a command, which signals may end."""
    signals: list[tuple[int, float]] = []  # which, and when
    running: Deferred[int] = Deferred()

    def end(number: int, _frame: object) -> None:
        now = reactor.seconds()
        if not signals:
            reactor.callFromThread(running.cancel)
        elif now - signals[0][1] > FORCE_QUIT_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        signals.append((number, now))

    def begin() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)

    reactor.callWhenRunning(begin)  # after the reactor has installed its own
    running = Deferred.fromCoroutine(runCommand(reactor, command, options, streams))
    code = await running
    if code == ENDED:
        code = 0 if getattr(options, "isFollowing", False) else 128 + signals[0][0]
    if code:
        raise SystemExit(code)


ENDED = -1

FORCE_QUIT_SECONDS = 0.5
"""Who sends a second signal after this does not want to wait for an orderly end. (Before, it is the same one: C{timeout} and others send it twice.)"""


async def runCommand(
    reactor: Any, command: _Command, options: argparse.Namespace, streams: Streams
) -> int:
    """
    Carry out a command.

    @return: its exit code; L{ENDED} when it was cancelled. What a person did wrong, or a machine, was said on C{streams.errors}.
    """
    try:
        return await command(reactor, options, streams)
    except BrokenPipeError:
        return 0
    except PylogbrokerError as error:
        streams.say(f"pylogbroker: {error}")
        return 1
    except CancelledError:
        return ENDED


def reporter(streams: Streams) -> ILogObserver:
    """Shows log events that a person should know of: warnings in a line, failures of the program itself with their traceback."""

    def report(event: LogEvent) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.warn:
            failure = event.get("log_failure")
            streams.say(
                f"pylogbroker: {formatEvent(event)}"
                + (
                    f"\n{failure.getTraceback()}"
                    if failure is not None and level is LogLevel.critical
                    else ""
                )
            )

    directlyProvides(report, ILogObserver)
    return report  # type: ignore[return-value] # mypy does not see what zope declares
