"""
Arguments that several commands share, and the types of arguments.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import blacklist, whitelist
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.connectionsettings import AccessSettings
from pylogbroker.errors import ConfigurationError, FormatError, PylogbrokerError
from pylogbroker.net.endpoints import brokerEndpoint
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

# -- types -------------------------------------------------------------------------------------


def intRange(low: int, high: int = LONG_MAX) -> Callable[[str], int]:
    """The type of an integer from C{low} to C{high}."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{number} is not from {low} to {high}")
        return number

    return parse


positive = intRange(1, INT_MAX)
port = intRange(0, 65535)


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The type of what C{parse} returns; its errors become argparse's."""

    def parseArgument(text: str) -> T:
        try:
            return parse(text)
        except FormatError as error:
            raise argparse.ArgumentTypeError(error.reason) from None
        except PylogbrokerError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

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
        raise argparse.ArgumentTypeError("an empty text separates nothing")
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
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of latest, earliest, milliseconds since 1970, "
            "a date like 2026-01-31T12:00"
        ) from None


# -- shared arguments --------------------------------------------------------------------------


def addBroker(parser: argparse.ArgumentParser, hasCluster: bool = False) -> None:
    """
    Add C{--broker}, C{--timeout-ms} and the arguments of L{addAccess}.

    @param hasCluster: whether C{--zookeeper} may stand instead of C{--broker}.
    """
    where = parser.add_mutually_exclusive_group() if hasCluster else parser
    where.add_argument(
        "--broker",
        metavar="HOST:PORT",
        default=DEFAULT_BROKER,
        help="the broker, or a Twisted client endpoint string such as tls:log1:9093 (%(default)s)",
    )
    if hasCluster:
        addZookeeper(where, False, "; all brokers are found there")
    _addTimeout(parser, "for connecting and for each answer")


def addRequiredZookeeper(parser: argparse.ArgumentParser) -> None:
    """Add C{--zookeeper}, C{--timeout-ms} and the arguments of L{addAccess}."""
    addZookeeper(parser, True)
    _addTimeout(parser, "for ZooKeeper and for each answer")


def _addTimeout(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--timeout-ms",
        dest="timeoutMs",
        metavar="MS",
        type=positive,
        default=TIMEOUT_MS,
        help=f"time-out {text} (%(default)s)",
    )
    addAccess(parser)


def addZookeeper(parser: argparse._ActionsContainer, isRequired: bool, more: str = "") -> None:
    """Add C{--zookeeper}."""
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT",
        required=isRequired,
        help=f"ZooKeeper's servers, host:port[,host:port…][/chroot]{more}",
    )


def addTopic(
    parser: argparse._ActionsContainer, isRequired: bool = True, text: str = "the topic"
) -> None:
    """Add C{--topic}."""
    parser.add_argument("--topic", type=topic, required=isRequired, help=text)


def addPartition(parser: argparse.ArgumentParser, default: int | None = 0, more: str = "") -> None:
    """Add C{--partition} of a single broker; with C{more} it may be -1."""
    parser.add_argument(
        "--partition",
        metavar="N",
        type=intRange(-1 if more else 0, INT_MAX),
        default=default,
        help=f"the partition of the topic (0{more})",
    )


def addMaxMessages(
    parser: argparse.ArgumentParser, option: str = "--max-messages", low: int = 0
) -> None:
    """Add an option that limits the number of messages, as C{countMax}."""
    parser.add_argument(
        option,
        dest="countMax",
        metavar="N",
        type=intRange(low),
        default=LONG_MAX,
        help="stop after N messages; by default, at the end",
    )


def addMaxMessageSize(parser: argparse.ArgumentParser, what: str, whose: str) -> None:
    """Add C{--max-message-size}, as C{payloadSizeMax}."""
    parser.add_argument(
        "--max-message-size",
        dest="payloadSizeMax",
        metavar="BYTES",
        type=positive,
        default=PAYLOAD_SIZE_MAX,
        help=f"a longer {what} is an error; must not be above {whose} max.message.size, "
        "or the broker silently drops it (%(default)s)",
    )


def addBatching(parser: argparse.ArgumentParser) -> None:
    """Add C{--batch-size} and C{--compression}."""
    parser.add_argument(
        "--batch-size",
        dest="batchCount",
        metavar="N",
        type=positive,
        default=200,
        help="messages in one request (%(default)s)",
    )
    parser.add_argument(
        "--compression",
        dest="codec",
        metavar="none|gzip|snappy",
        type=codec,
        default=0,
        help="compression of each batch (none)",
    )


def addJson(
    parser: argparse.ArgumentParser, text: str = "print one JSON document instead of a table"
) -> None:
    """Add C{--json}."""
    parser.add_argument("--json", dest="isJson", action="store_true", help=text)


def addPort(parser: argparse.ArgumentParser, option: str, default: int, what: str) -> None:
    """Add a port to listen on."""
    first, *words = option.lstrip("-").split("-")
    dest = first + "".join(map(str.capitalize, words))
    parser.add_argument(
        option,
        dest=dest,
        metavar="N",
        type=port,
        default=default,
        help=f"{what}; 0 takes a free one (%(default)s)",
    )


def addProperties(parser: argparse.ArgumentParser, config: str | None, changes: str) -> None:
    """
    Add C{--config}, unless L{None}, and C{--set}, as C{changes}.

    @param config: help text of C{--config}.
    @param changes: help text of C{--set}.
    """
    if config is not None:
        parser.add_argument("--config", metavar="FILE", help=config)
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help=f"{changes}; can be repeated",
    )


# -- access to secured clusters ----------------------------------------------------------------

_ACCESS_KEYS = ", ".join(each.key for each in AccessSettings.keys)


def addAccess(parser: argparse.ArgumentParser) -> None:
    """Add C{--config} and C{--set}, from which L{loadAccess} makes settings."""
    parser.add_argument(
        "--config",
        dest="accessFile",
        metavar="FILE",
        help=f"a property file with access to a secured cluster: {_ACCESS_KEYS} have an effect; "
        "a producer's or a consumer's file will do",
    )
    parser.add_argument(
        "--set",
        dest="accessChanges",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one of these keys, which overrides the file; can be repeated. Other users of this "
        "machine can see it: passwords belong in the file",
    )


def addOtherAccess(parser: argparse.ArgumentParser, word: str, cluster: str) -> None:
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


def loadAccess(options: argparse.Namespace) -> None:
    """
    Read the file of L{addAccess} into C{options.access} and that of L{addOtherAccess} into
    C{options.otherAccess}.

    @raise SystemExit: a file or a change is wrong.
    """
    if not hasattr(options, "accessFile"):
        return
    try:
        options.access = AccessSettings.read(options.accessFile, options.accessChanges)
        other = getattr(options, "otherAccessFile", None)
        options.otherAccess = options.access if other is None else AccessSettings.read(other, ())
    except ConfigurationError as error:
        options.parser.error(str(error))


def endpointOf(options: argparse.Namespace) -> str:
    """The endpoint of C{--broker}, made by C{broker.endpoint} if that is set."""
    template: str = options.access.brokerEndpoint
    # The text may be a mistake: tcp:9092 is no host.
    return brokerEndpoint(template, options.broker) if template else str(options.broker)


def rejectOptions(options: argparse.Namespace, words: dict[str, str], reason: str) -> None:
    """
    Exit when options were given that have no effect here.

    @param words: names in C{options}, and the options that people type.
    """
    given = [word for name, word in words.items() if getattr(options, name) is not None]
    if given:
        options.parser.error(f"{', '.join(given)}: {reason}")
