"""
Arguments that several commands share, and the types of arguments.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import blacklist, whitelist
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.connectionsettings import ConnectionSettings
from pylogbroker.errors import ConfigurationError, FormatError, PylogbrokerError
from pylogbroker.net.socketendpoints import brokerEndpoint
from pylogbroker.records.compression import codecByName
from pylogbroker.storage.filenames import validateTopic
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition

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
        except FormatError as error:
            raise ArgumentTypeError(error.reason) from None
        except PylogbrokerError as error:
            raise ArgumentTypeError(str(error)) from None

    return parseArgument


def _topic(text: str) -> str:
    validateTopic(text)
    return text


def _group(text: str) -> str:
    GroupPaths(text)
    return text


def _brokerPartition(text: str) -> BrokerPartition:
    return decodePartition("a partition", text)


topic = _checked(_topic)
group = _checked(_group)
codec = _checked(codecByName)
whitelistPattern = _checked(whitelist)
blacklistPattern = _checked(blacklist)
brokerPartition = _checked(_brokerPartition)
"""The type of a partition of a cluster, such as C{0-1}: broker 0, partition 1."""


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


def _attribute(name: str) -> str:
    first, *words = name.lstrip("-").split("-")
    return first + "".join(map(str.capitalize, words))


def option(
    parser: _ActionsContainer,
    names: str,
    text: str,
    type: Callable[[str], Any] = str,
    default: Any = None,
    **more: Any,
) -> None:
    """
    Add an option with a value: C{--max-messages N} as C{options.maxMessages}.

    @param names: the option, and perhaps the name of its value in the help.
    @param text: the help.
    @param more: see C{ArgumentParser.add_argument}.
    """
    name, _, metavar = names.partition(" ")
    more = {"dest": _attribute(name), "metavar": metavar or None, **more}
    parser.add_argument(name, help=text, type=type, default=default, **more)


def flag(parser: _ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value: C{--from-beginning} as C{options.fromBeginning}."""
    parser.add_argument(name, dest=_attribute(name), action="store_true", help=text)


def addBroker(parser: ArgumentParser, hasCluster: bool = False) -> None:
    """
    Add C{--broker}, C{--timeout-ms} and the arguments of L{addAccess}.

    @param hasCluster: whether C{--zookeeper} may stand instead of C{--broker}.
    """
    where = parser.add_mutually_exclusive_group() if hasCluster else parser
    option(
        where,
        "--broker HOST:PORT",
        "the broker, or a Twisted client endpoint string such as tls:log1:9093 (%(default)s)",
        default=DEFAULT_BROKER,
    )
    if hasCluster:
        addZookeeper(where, False, "; all brokers are found there")
    _addTimeout(parser, "for connecting and for each answer")


def addRequiredZookeeper(parser: ArgumentParser) -> None:
    """Add C{--zookeeper}, C{--timeout-ms} and the arguments of L{addAccess}."""
    addZookeeper(parser, True)
    _addTimeout(parser, "for ZooKeeper and for each answer")


def _addTimeout(parser: ArgumentParser, text: str) -> None:
    option(parser, "--timeout-ms MS", f"time-out {text} (%(default)s)", positive, TIMEOUT_MS)
    addAccess(parser)


def addZookeeper(parser: _ActionsContainer, isRequired: bool, more: str = "") -> None:
    """Add C{--zookeeper}."""
    option(
        parser,
        "--zookeeper HOST:PORT",
        f"ZooKeeper's servers, host:port[,host:port…][/chroot]{more}",
        required=isRequired,
    )


def addTopic(parser: _ActionsContainer, isRequired: bool = True, text: str = "the topic") -> None:
    """Add C{--topic}."""
    option(parser, "--topic", text, topic, required=isRequired)


def addPartition(parser: ArgumentParser, default: int | None = 0, more: str = "") -> None:
    """Add C{--partition} of a single broker; with C{more} it may be -1."""
    option(
        parser,
        "--partition N",
        f"the partition of the topic (0{more})",
        intRange(-1 if more else 0, INT_MAX),
        default,
    )


def addMaxMessages(parser: ArgumentParser, name: str = "--max-messages", low: int = 0) -> None:
    """Add an option that limits the number of messages, as C{maxMessages}."""
    text = "stop after N messages; by default, at the end"
    option(parser, f"{name} N", text, intRange(low), LONG_MAX, dest="maxMessages")


def addMaxMessageSize(parser: ArgumentParser, what: str, whose: str) -> None:
    """Add C{--max-message-size}, as C{maxMessageSize}."""
    option(
        parser,
        "--max-message-size BYTES",
        f"a longer {what} is an error; must not be above {whose} max.message.size, "
        "or the broker silently drops it (%(default)s)",
        positive,
        PAYLOAD_SIZE_MAX,
    )


def addBatching(parser: ArgumentParser) -> None:
    """Add C{--batch-size} and C{--compression}."""
    option(parser, "--batch-size N", "messages in one request (%(default)s)", positive, 200)
    option(parser, "--compression none|gzip|snappy", "compression of each batch (none)", codec, 0)


def addJson(
    parser: ArgumentParser, text: str = "print one JSON document instead of a table"
) -> None:
    """Add C{--json}."""
    flag(parser, "--json", text)


def addPort(parser: ArgumentParser, name: str, default: int, what: str) -> None:
    """Add a port to listen on."""
    option(parser, f"{name} N", f"{what}; 0 takes a free one (%(default)s)", port, default)


def addProperties(parser: ArgumentParser, config: str | None, changes: str) -> None:
    """
    Add C{--config}, unless L{None}, and C{--set}, as C{changes}.

    @param config: help text of C{--config}.
    @param changes: help text of C{--set}.
    """
    if config is not None:
        option(parser, "--config FILE", config)
    option(
        parser,
        "--set KEY=VALUE",
        f"{changes}; can be repeated",
        default=[],
        action="append",
        dest="changes",
    )


_ACCESS_KEYS = ", ".join(each.key for each in ConnectionSettings.keys)


def addAccess(parser: ArgumentParser) -> None:
    """Add C{--config} and C{--set}, from which L{loadAccess} makes settings."""
    option(
        parser,
        "--config FILE",
        f"a property file with access to a secured cluster: {_ACCESS_KEYS} have an effect; "
        "a producer's or a consumer's file will do",
        dest="accessFile",
    )
    option(
        parser,
        "--set KEY=VALUE",
        "one of these keys, which overrides the file; can be repeated. Other users of this "
        "machine can see it: passwords belong in the file",
        default=[],
        action="append",
        dest="accessChanges",
    )


def addOtherAccess(parser: ArgumentParser, word: str, cluster: str) -> None:
    """
    Add C{--WORD-config} for a second cluster.

    @param cluster: the second cluster, for people.
    """
    parser.add_argument(
        f"--{word}-config",
        dest="otherAccessFile",
        metavar="FILE",
        help=f"as --config, for {cluster}; by default, the same for both",
    )


def loadAccess(options: Namespace) -> None:
    """
    Read the file of L{addAccess} into C{options.access} and that of L{addOtherAccess} into
    C{options.otherAccess}.

    @raise SystemExit: a file or a change is wrong.
    """
    if not hasattr(options, "accessFile"):
        return
    try:
        options.access = ConnectionSettings.read(options.accessFile, options.accessChanges)
        other = getattr(options, "otherAccessFile", None)
        options.otherAccess = (
            options.access if other is None else ConnectionSettings.read(other, ())
        )
    except ConfigurationError as error:
        options.parser.error(str(error))


def endpointOf(options: Namespace) -> str:
    """The endpoint of C{--broker}, made by C{broker.endpoint} if that is set."""
    template: str = options.access.brokerEndpoint
    # The text may be a mistake: tcp:9092 is no host.
    return brokerEndpoint(template, options.broker) if template else str(options.broker)


def rejectOptions(options: Namespace, words: dict[str, str], reason: str) -> None:
    """
    Exit when options were given that have no effect here.

    @param words: names in C{options}, and the options that people type.
    """
    values = {word: getattr(options, name) for name, word in words.items()}
    given = [word for word, value in values.items() if value is not None and value is not False]
    if given:
        options.parser.error(f"{', '.join(given)}: {reason}")
