"""
The values that every floor shares: what a message is, where it is, and the constants of the 2011 protocol.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HOST = re.compile(r"[A-Za-z0-9._-]+")
"""A host that others can be told: a name, or an IPv4 address."""

RANDOM_PARTITION = -1
"""As a produce request's partition: the broker picks one (spec-0.7 wire-protocol §3.1)."""

LATEST = -1
"""As an OFFSETS request's time: the visible end (§3.5)."""

EARLIEST = -2
"""As an OFFSETS request's time: the oldest retained offset (§3.5)."""


def escapeUnprintable(text: str) -> str:
    """
    A text that others chose, for a terminal: what would move its cursor, colour it, or turn a line around stands there by its number, C{\\u202e}, and so
    does the end of a line.
    """
    return (
        text
        if text.isprintable()
        else "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )
    )


class LogPosition(NamedTuple):
    """
    A place in a partition's log: Kafka's log offset metadata.

    @ivar offset: in the partition's stream.
    @ivar segment: base offset of the segment.
    @ivar byte: in the segment's file.
    """

    offset: int
    segment: int
    byte: int


class TopicPartition(NamedTuple):
    """One partition of one topic on one broker."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BrokerPartition(NamedTuple):
    """One partition of a topic in a cluster, where each broker numbers its own."""

    broker: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.partition}"


class PartitionId(NamedTuple):
    """One partition of one topic in a cluster."""

    topic: str
    partition: BrokerPartition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class IntraBatchOffset(int):
    """
    Where a compressed set stands of which some messages are done: a number like any other offset, since that is where a reader begins again, and how many
    messages it leaves out then.

    @ivar doneCount: those, of all depths; at least 1, and less than all.
    """

    doneCount: int

    def __new__(cls, offset: int, doneCount: int) -> IntraBatchOffset:
        made = super().__new__(cls, offset)
        made.doneCount = doneCount
        return made

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.doneCount


def consumedCount(offset: int) -> int:
    """How many messages of the set at an offset are done; 0 of a plain offset."""
    return offset.doneCount if isinstance(offset, IntraBatchOffset) else 0


class OffsetBounds(NamedTuple):
    """
    Where the log of a partition begins and ends.

    @ivar start: the oldest message that there is.
    @ivar end: behind the last message that consumers see.
    """

    start: int
    end: int


class Message(NamedTuple):
    """
    One message, as it was read from an entry.

    @ivar payload: the bytes that the application sent; of a wrapper that was not opened, the compressed bytes.
    @ivar magic: 0 or 1 (spec-0.7 wire-protocol §5.2, §5.3).
    @ivar attributes: the attribute byte, 0 for magic 0. Bits 0 and 1 are the codec.
    @ivar checksum: the CRC-32 from the header, 0..2^32-1.
    """

    payload: bytes
    magic: int = 1
    attributes: int = 0
    checksum: int = 0

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy."""
        return self.attributes & 3


class MessageAndOffset(NamedTuple):
    """
    A message and the offset *behind* it: what to fetch next, and what to commit (spec-0.7 wire-protocol §6).
    """

    message: Message
    nextOffset: int
