"""
Arguments that several commands share, and the types of arguments.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable
from datetime import datetime
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple, TypeVar

from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import blacklist, whitelist
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.securitysettings import ToolSettings
from pylogbroker.errors import ConfigurationError, FormatError, PylogbrokerError
from pylogbroker.net.endpointstrings import brokerEndpoint
from pylogbroker.records.compression import BATCH_CODEC_NAMES, codecByName
from pylogbroker.storage.filenames import validateTopic
from pylogbroker.types import EARLIEST, LATEST, MAX_TIMESTAMP, BrokerPartition

T = TypeVar("T")

DEFAULT_BROKER = "127.0.0.1:9092"
TIMEOUT_MS = 30_000
PAYLOAD_SIZE_MAX = 1_000_000
"""Default of C{--max-message-size}: the broker's default of C{max.message.size}."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def intRange(low: int, high: int = LONG_MAX) -> Callable[[str], int]:
    """The type of an integer from C{low} to C{high}."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= number <= high:
            raise ArgumentTypeError(f"{number} is not from {low} to {high}")
        return number

    return parse


positive = intRange(1, INT_MAX)
port = intRange(0, 65535)


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    def parseArgument(text: str) -> T:
        try:
            return parse(text)
        except PylogbrokerError as error:
            reason = error.reason if isinstance(error, FormatError) else str(error)
            raise ArgumentTypeError(reason) from None

    return parseArgument


@_checked
def topic(text: str) -> str:
    """The type of a topic's name."""
    validateTopic(text)
    return text


group = _checked(lambda text: GroupPaths(text).group)
codec = _checked(codecByName)
batchCodec = _checked(partial(codecByName, names=BATCH_CODEC_NAMES))
whitelistPattern = _checked(whitelist)
blacklistPattern = _checked(blacklist)
brokerPartition = _checked(partial(decodePartition, "a partition"))
"""The type of a partition of a cluster, such as C{0-1}: broker 0, partition 1."""


def anyPartition(text: str) -> BrokerPartition | int:
    """The type of a partition: C{0-1} of a cluster of Kafka 0.7, a number of today's Kafka."""
    return int(text) if text.isascii() and text.isdigit() else brokerPartition(text)


def separator(text: str) -> bytes:
    """The type of the text between a key and its message; C{\\t} is a tab."""
    if not text:
        raise ArgumentTypeError("an empty text separates nothing")
    return os.fsencode(text.replace("\\t", "\t"))


def time(text: str) -> int:
    """
    The type of a time: C{latest}, C{earliest}, milliseconds since the epoch, or an ISO 8601 date,
    which is local unless it names a zone.
    """
    words = {"latest": LATEST, "earliest": EARLIEST}
    if text in words:
        return words[text]
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ArgumentTypeError(
            f"{text!r} is none of latest, earliest, milliseconds since 1970, "
            "a date like 2026-01-31T12:00"
        ) from None


def offsetTime(text: str) -> int:
    """The type of a L{time} that may also be C{max-timestamp}."""
    return MAX_TIMESTAMP if text == "max-timestamp" else time(text)


def pointInTime(text: str) -> int:
    """The type of a time that is neither C{latest} nor C{earliest}, in milliseconds."""
    found = time(text)
    if found < 0:
        raise ArgumentTypeError(f"{text!r} is no time of a record")
    return found


Argument = Callable[[_ActionsContainer], object]
"""Adds an argument, or several, to a parser or a group of arguments."""


def _attribute(name: str) -> str:
    first, *words = name.lstrip("-").split("-")
    return first + "".join(map(str.capitalize, words))


def option(
    names: str, text: str, type: Callable[[str], Any] = str, default: Any = None, **more: Any
) -> Argument:
    """
    An argument with a value: C{--max-messages N} is C{options.maxMessages}.

    @param names: the argument, and perhaps the name of its value in the help. Without hyphens
        before it, it is positional.
    @param text: the help.
    @param more: see C{ArgumentParser.add_argument}.
    """
    name, _, metavar = names.partition(" ")
    if name.startswith("-"):
        more = {"dest": _attribute(name), **more}
    more |= {"metavar": metavar or None, "help": text, "type": type, "default": default}
    return methodcaller("add_argument", name, **more)


def repeated(names: str, text: str, dest: str, type: Callable[[str], Any] = str) -> Argument:
    """An L{option} that can be repeated, as a list C{options.DEST}; C{[]} by default."""
    return option(names, text, type, [], dest=dest, action="append")


def flag(names: str, text: str, **more: Any) -> Argument:
    """An argument without a value: C{--from-beginning} is C{options.fromBeginning}."""
    first, *others = names.split()
    more = {"dest": _attribute(first), "action": "store_true", "help": text, **more}
    return methodcaller("add_argument", first, *others, **more)


def either(*arguments: Argument, isRequired: bool = False) -> Argument:
    """Arguments of which a command line has at most one; exactly one if C{isRequired}."""

    def add(parser: _ActionsContainer) -> None:
        container = parser.add_mutually_exclusive_group(required=isRequired)
        for argument in arguments:
            argument(container)

    return add


_BOOTSTRAP_TEXT = (
    "brokers of today's Kafka to begin with, separated by commas; each may be a Twisted client "
    "endpoint string such as tls:log1:9093"
)


def _zookeeper(more: str = "", **required: Any) -> Argument:
    text = f"ZooKeeper's servers, host:port[,host:port…][/chroot], of a cluster of Kafka 0.7{more}"
    return option("--zookeeper HOST:PORT", text, **required)


def _timeout(text: str) -> Argument:
    return option("--timeout-ms MS", f"time-out {text} (%(default)s)", positive, TIMEOUT_MS)


ACCESS = (
    option(
        "--config FILE",
        "a property file with access to a secured cluster: "
        f"{', '.join(each.key for each in ToolSettings.keys)} have an effect; "
        "a producer's or a consumer's file will do",
        dest="accessFile",
    ),
    repeated(
        "--set KEY=VALUE",
        "one of these keys, which overrides the file; can be repeated. Other users of this "
        "machine can see it: passwords belong in the file",
        "accessChanges",
    ),
)
"""From these L{loadAccess} makes settings."""

_BROKER = option(
    "--broker HOST:PORT",
    "a broker, which is spoken to with Kafka 0.7's protocol, or a Twisted client endpoint string "
    "such as tls:log1:9093 (%(default)s)",
    default=DEFAULT_BROKER,
)
_BROKER_TIMEOUT = _timeout("for connecting and for each answer")
ZOOKEEPER = _zookeeper()
AT_BROKER = (_BROKER, _BROKER_TIMEOUT, *ACCESS)
BOOTSTRAP = option("--bootstrap-server HOST:PORT", _BOOTSTRAP_TEXT)
AT_BROKERS = (_BROKER_TIMEOUT, *ACCESS)
AT_BOOTSTRAP = (
    option("--bootstrap-server HOST:PORT", _BOOTSTRAP_TEXT, required=True),
    *AT_BROKERS,
)
AT_BROKER_OR_BOOTSTRAP = (either(_BROKER, BOOTSTRAP), _BROKER_TIMEOUT, *ACCESS)
AT_BROKER_OR_CLUSTER = (
    either(_BROKER, _zookeeper("; all brokers are found there")),
    _BROKER_TIMEOUT,
    *ACCESS,
)
IN_CLUSTER = (
    _zookeeper(required=True),
    _timeout("for ZooKeeper and for each answer"),
    *ACCESS,
)
IN_EITHER = (
    either(_zookeeper(), BOOTSTRAP, isRequired=True),
    _timeout("for ZooKeeper and for each answer"),
    *ACCESS,
)
"""A cluster of either kind; see L{Command.current}."""
AT_ANY = (
    either(_BROKER, _zookeeper("; all brokers are found there"), BOOTSTRAP),
    _BROKER_TIMEOUT,
    *ACCESS,
)
TOPIC = option("--topic", "the topic", topic, required=True)
PARTITION = option("--partition N", "the partition of the topic (0)", intRange(0, INT_MAX), 0)
MAX_MESSAGES = option(
    "--max-messages N", "stop after N messages; by default, at the end", intRange(0), LONG_MAX
)
BATCHING = (
    option("--batch-size N", "messages in one request (%(default)s)", positive, 200),
    option("--compression none|gzip|snappy", "compression of each batch (none)", codec, 0),
)
ANY_BATCHING = (
    option(
        "--batch-size N",
        "messages in one request, which with --bootstrap-server has at most --max-message-size "
        "bytes (%(default)s)",
        positive,
        200,
    ),
    option(
        "--compression none|gzip|snappy|lz4|zstd",
        "compression of each batch (none); lz4 and zstd need --bootstrap-server",
        batchCodec,
        0,
    ),
)
JSON = flag("--json", "print one JSON document instead of a table")
TO_POSITION = (
    flag(
        "--to-earliest",
        "to the oldest messages",
        dest="to",
        action="store_const",
        const=EARLIEST,
    ),
    flag(
        "--to-latest",
        "to the ends of the logs",
        dest="to",
        action="store_const",
        const=LATEST,
    ),
    option(
        "--to-datetime TIME",
        "to a time: milliseconds since 1970, or a date like 2026-01-31T12:00",
        time,
        dest="to",
    ),
    option(
        "--to-offset N",
        "to an offset at which a message begins, or the log ends",
        intRange(0),
    ),
)
"""Where a group is to continue; see L{either}."""


def maxMessageSize(what: str, whose: str) -> Argument:
    """C{--max-message-size}."""
    return option(
        "--max-message-size BYTES",
        f"a longer {what} is an error; must not be above {whose} max.message.size, "
        "since a broker of Kafka 0.7 silently drops it (%(default)s)",
        positive,
        PAYLOAD_SIZE_MAX,
    )


def portOption(name: str, default: int, what: str) -> Argument:
    """A port to listen on."""
    return option(f"{name} N", f"{what}; 0 takes a free one (%(default)s)", port, default)


def changesOption(text: str) -> Argument:
    """C{--set}, as C{changes}."""
    return repeated("--set KEY=VALUE", f"{text}; can be repeated", "changes")


class Command(NamedTuple):
    """
    A command.

    @ivar name: one word, or two: a noun and a verb.
    @ivar run: runs it with options and streams, and returns the exit code; a coroutine function,
        unless C{isBlocking}. Its L{PylogbrokerError} is for the person who typed the command.
    @ivar arguments: of its parser.
    @ivar examples: the end of its help.
    @ivar prepare: called before the reactor runs; checks options, and may exit.
    @ivar isBlocking: whether the command runs without a reactor.
    @ivar isEndless: whether only a signal ends it, which is no failure then. With C{--follow} any
        command is.
    @ivar current: runs it with C{--bootstrap-server}, for today's Kafka, without a reactor.
    """

    name: str
    run: Callable[..., Any]
    arguments: tuple[Argument, ...]
    examples: str
    prepare: Callable[[Namespace, Streams], None] | None = None
    isBlocking: bool = False
    isEndless: bool = False
    current: Callable[[Namespace, Streams], int] | None = None


def loadAccess(options: Namespace) -> None:
    """
    Read C{--config} and C{--set} of L{ACCESS} into C{options.access}, and the option with
    C{dest="otherAccessFile"} of a command with two clusters into C{options.otherAccess}.

    @raise SystemExit: a file or a change is wrong.
    """
    if not hasattr(options, "accessFile"):
        return
    try:
        options.access = ToolSettings.read(options.accessFile, options.accessChanges)
        other = getattr(options, "otherAccessFile", None)
        options.otherAccess = options.access if other is None else ToolSettings.read(other, ())
    except ConfigurationError as error:
        options.parser.error(str(error))


def endpointOf(options: Namespace) -> str:
    """The endpoint of C{--broker}, made by C{broker.endpoint} if that is set."""
    template: str = options.access.brokerEndpoint
    # The text may be a mistake: tcp:9092 is no host.
    return brokerEndpoint(template, options.broker) if template else str(options.broker)


def isCurrent(options: Namespace) -> bool:
    """Whether a command is for today's Kafka."""
    return getattr(options, "bootstrapServer", None) is not None


def blockingRun(options: Namespace) -> Callable[[Namespace, Streams], int] | None:
    """What runs a command without a reactor; L{None}: it needs one."""
    command: Command = options.command
    current = command.current if isCurrent(options) else None
    return current or (command.run if command.isBlocking else None)


def rejectOptions(options: Namespace, reason: str, *names: str) -> None:
    """Exit when options were given that have no effect here."""
    values = {name: getattr(options, _attribute(name)) for name in names}
    given = [name for name, value in values.items() if value is not None and value is not False]
    if given:
        options.parser.error(f"{', '.join(given)}: {reason}")
