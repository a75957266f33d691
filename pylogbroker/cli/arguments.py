"""
Arguments that several commands have, and the types of arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime

from pylogbroker.commitlog.topics import validateTopic
from pylogbroker.errors import FormatError, InvalidTopicError
from pylogbroker.formats.compression import codecByName
from pylogbroker.model import EARLIEST, LATEST

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
        return int(text) if text.isascii() and text.isdigit() else int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is none of latest, earliest, milliseconds since 1970, a date like 2026-01-31T12:00") from None


def addBroker(parser: argparse.ArgumentParser) -> None:
    """Where the broker is, and how long to wait for it."""
    parser.add_argument(
        "--broker", metavar="HOST:PORT", default=DEFAULT_BROKER,
        help="the broker, or a Twisted client endpoint string such as tls:log1:9093 (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--timeout-ms", dest="timeoutMs", metavar="MS", type=positive, default=30_000, help="for connecting and for each answer (%(default)s)")


def addTopic(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Which partition."""
    parser.add_argument("--topic", type=topic, required=True, help="the topic")
    parser.add_argument(
        "--partition", metavar="N", type=whole(-1 if more else 0, INT_MAX), default=0, help=f"the partition of the topic (%(default)s{more})"
    )


def addBatching(parser: argparse.ArgumentParser) -> None:
    """How messages are sent."""
    parser.add_argument("--batch-size", dest="batchCount", metavar="N", type=positive, default=200, help="messages in one request (%(default)s)")
    parser.add_argument("--compression", dest="codec", metavar="none|gzip|snappy", type=codec, default=0, help="how each batch is compressed (none)")
