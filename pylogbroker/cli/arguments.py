"""
Arguments that several commands have, and the types of arguments.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import datetime

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import WildcardSubscription, blacklist, whitelist
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.connectionsettings import AccessSettings
from pylogbroker.errors import (
    ConfigurationError,
    FormatError,
    InvalidNameError,
    InvalidPatternError,
    InvalidTopicError,
    ZnodeError,
)
from pylogbroker.net.endpoints import brokerEndpoint
from pylogbroker.records.compression import codecByName
from pylogbroker.storage.filenames import validateTopic
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition

DEFAULT_BROKER = "127.0.0.1:9092"
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def whole(low: int, high: int = LONG_MAX) -> Callable[[str], int]:
    """The type of a whole number in a range."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{number} is not from {low} to {high}")
        return number

    return parse


positive = whole(1, INT_MAX)


def topic(text: str) -> str:
    """The type of a topic name."""
    try:
        validateTopic(text)
    except InvalidTopicError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def group(text: str) -> str:
    """The type of a consumer group's name."""
    try:
        GroupPaths(text)
    except InvalidNameError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _filter(make: Callable[[str], WildcardSubscription]) -> Callable[[str], WildcardSubscription]:
    def parse(text: str) -> WildcardSubscription:
        try:
            return make(text)
        except InvalidPatternError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


topicsThatMatch = _filter(whitelist)
"""The type of a pattern of topic names that are wanted."""

topicsThatDoNot = _filter(blacklist)
"""The type of a pattern of topic names that are not."""


def separator(text: str) -> bytes:
    """The type of what stands between a key and its message; C{\\t} is a tab."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text separates nothing")
    return os.fsencode(text.replace("\\t", "\t"))


def codec(text: str) -> int:
    """The type of a codec's name."""
    try:
        return codecByName(text)
    except FormatError as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def time(text: str) -> int:
    """The type of a time: a word, milliseconds since the epoch, or a date as ISO 8601 has it, local unless it says otherwise."""
    words = {"latest": LATEST, "earliest": EARLIEST}
    if text in words:
        return words[text]
    try:
        return (
            int(text)
            if text.isascii() and text.isdigit()
            else int(datetime.fromisoformat(text).timestamp() * 1000)
        )
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of latest, earliest, milliseconds since 1970, a date like 2026-01-31T12:00"
        ) from None


def addBroker(parser: argparse.ArgumentParser, hasCluster: bool = False) -> None:
    """
    Where the broker is, and how long to wait for it.

    @param hasCluster: whether ZooKeeper may be given instead, in which all brokers are found.
    """
    place = parser.add_mutually_exclusive_group() if hasCluster else parser
    place.add_argument(
        "--broker", metavar="HOST:PORT", default=DEFAULT_BROKER,
        help="the broker, or a Twisted client endpoint string such as tls:log1:9093 (%(default)s)",
    )  # fmt: skip
    if hasCluster:
        addZookeeper(place, False, "; all brokers are found there")
    parser.add_argument(
        "--timeout-ms",
        dest="timeoutMs",
        metavar="MS",
        type=positive,
        default=30_000,
        help="for connecting and for each answer (%(default)s)",
    )
    addAccess(parser)


def addZookeeper(parser: argparse._ActionsContainer, isRequired: bool, more: str = "") -> None:
    """Where ZooKeeper is."""
    parser.add_argument(
        "--zookeeper", metavar="HOST:PORT", required=isRequired, help=f"ZooKeeper's servers, host:port[,host:port…][/chroot]{more}"
    )  # fmt: skip


def addTopic(parser: argparse._ActionsContainer, isRequired: bool = True) -> None:
    """Which topic."""
    parser.add_argument("--topic", type=topic, required=isRequired, help="the topic")


def addPartition(parser: argparse.ArgumentParser, default: int | None = 0, more: str = "") -> None:
    """Which partition of a broker."""
    parser.add_argument(
        "--partition",
        metavar="N",
        type=whole(-1 if more else 0, INT_MAX),
        default=default,
        help=f"the partition of the topic (0{more})",
    )


def rejectOptions(
    parser: argparse.ArgumentParser, options: argparse.Namespace, words: dict[str, str], reason: str
) -> None:
    """
    Exit when options were given that mean nothing now.

    @param words: attributes of C{options}, and what people call them.
    """
    given = [word for name, word in words.items() if getattr(options, name) is not None]
    if given:
        parser.error(f"{', '.join(given)}: {reason}")


def addBatching(parser: argparse.ArgumentParser) -> None:
    """How messages are sent."""
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
        help="how each batch is compressed (none)",
    )


def addRequiredZookeeper(parser: argparse.ArgumentParser) -> None:
    """Where ZooKeeper is, and how long to wait for it and for the brokers."""
    addZookeeper(parser, True)
    parser.add_argument(
        "--timeout-ms",
        dest="timeoutMs",
        metavar="MS",
        type=positive,
        default=30_000,
        help="for ZooKeeper and for each answer (%(default)s)",
    )
    addAccess(parser)


_ACCESS_KEYS = ", ".join(key.key for key in AccessSettings.keys)


def addAccess(parser: argparse.ArgumentParser) -> None:
    """Credentials for ZooKeeper, and TLS at the brokers: what L{loadAccess} makes settings of."""
    parser.add_argument(
        "--config", dest="accessFile", metavar="FILE",
        help=f"how to get at a secured cluster: a property file, of which {_ACCESS_KEYS} are heeded; a producer's or a consumer's own will do",
    )  # fmt: skip
    parser.add_argument(
        "--set", dest="accessChanges", metavar="KEY=VALUE", action="append", default=[],
        help="one of these keys, over the file's; can be repeated. Others on this machine can see it: passwords belong into the file",
    )  # fmt: skip


def addOtherAccess(parser: argparse.ArgumentParser, word: str, cluster: str) -> None:
    """
    The same for a second cluster.

    @param word: that the argument begins with.
    @param cluster: which it is, for people.
    """
    parser.add_argument(
        f"--{word}-config",
        dest="otherAccessFile",
        metavar="FILE",
        help=f"as --config, of {cluster}; without, the same for both",
    )


def loadAccess(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Read the file; put into C{options.access} how to get at the cluster, and into C{options.otherAccess} how at the second, if there can be one."""
    if not hasattr(options, "accessFile"):
        return
    try:
        options.access = AccessSettings.read(options.accessFile, options.accessChanges)
        other = getattr(options, "otherAccessFile", None)
        options.otherAccess = options.access if other is None else AccessSettings.read(other, ())
    except ConfigurationError as error:
        parser.error(str(error))


def endpointOf(options: argparse.Namespace) -> str:
    """Where C{--broker} is, by C{broker.endpoint} if that was given."""
    template: str = options.access.brokerEndpoint
    return (
        brokerEndpoint(template, options.broker) if template else str(options.broker)
    )  # what somebody typed may be a mistake: tcp:9092 is no host


def addJson(
    parser: argparse.ArgumentParser, what: str = "one JSON document instead of a table"
) -> None:
    """For machines."""
    parser.add_argument("--json", dest="isJson", action="store_true", help=what)


def brokerPartition(text: str) -> BrokerPartition:
    """The type of a partition of a cluster."""
    try:
        return decodePartition("a partition", text)
    except ZnodeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
