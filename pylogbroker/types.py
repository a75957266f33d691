"""
Values that all floors share: messages, partitions, offsets, constants of the 2011 protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

HOST = re.compile(r"[A-Za-z0-9._-]+")
"""A host that can be advertised: a name, or an IPv4 address."""

RANDOM_PARTITION = -1
"""Partition of a produce request: the broker picks one (spec-0.7 wire-protocol §3.1)."""

LATEST = -1
"""Time of an OFFSETS request: the high watermark (§3.5)."""

EARLIEST = -2
"""Time of an OFFSETS request: the log start (§3.5)."""

MAX_TIMESTAMP = -3
"""Time of a ListOffsets request of today's Kafka: the record with the highest timestamp."""


def escapeUnprintable(text: str) -> str:
    """
    Escape foreign text for a terminal: control characters, line ends and direction marks become
    numbers, C{\\u202e}.
    """
    return (
        text
        if text.isprintable()
        else "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )
    )


def formatCount(count: int, noun: str) -> str:
    """
    A number of things for people: C{1 file}, C{2,863 messages}.

    @param noun: singular; the plural is the same with an C{s}.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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


AnyPartition = PartitionId | TopicPartition
"""A partition of Kafka 0.7, or of today's Kafka. Collections of both cannot be sorted."""

P = TypeVar("P", bound=AnyPartition)


def byTopic(values: Mapping[P, T]) -> dict[str, dict[str, T]]:
    """
    The form of a mapping in JSON: an object of partitions for each topic, both sorted.

    @param values: of partitions of one kind.
    """
    found: dict[str, dict[str, T]] = {}
    for (topic, partition), value in sorted(values.items()):
        found.setdefault(topic, {})[str(partition)] = value
    return found


class OffsetAndMetadata(NamedTuple):
    """
    A position of a group in a partition, as its members commit it.

    @ivar offset: of the next message.
    @ivar leaderEpoch: of the leader that appended the message before it; -1: unknown.
    @ivar metadata: the application's own text.
    """

    offset: int
    leaderEpoch: int = -1
    metadata: str = ""


class ConsumerGroupMetadata(NamedTuple):
    """
    A member of a consumer group, by which the coordinator knows its commits.

    @ivar generationId: of the group, or the member's epoch; -1: none.
    @ivar memberId: empty: none.
    @ivar groupInstanceId: of a static member.
    """

    groupId: str
    generationId: int = -1
    memberId: str = ""
    groupInstanceId: str | None = None


class MemberSubscription(NamedTuple):
    """
    What a member of a consumer group tells the member that assigns the partitions.

    @ivar groupInstanceId: of a static member.
    @ivar ownedPartitions: those that it has had.
    @ivar generation: of the group when it got them; -1: unknown.
    """

    memberId: str
    topics: Sequence[str]
    ownedPartitions: Sequence[TopicPartition] = ()
    generation: int = -1
    groupInstanceId: str | None = None
    rackId: str | None = None
    userData: bytes | None = None


class PartialBatchOffset(int):
    """
    The offset of a compressed set of which some messages are consumed. It equals the plain offset,
    where a reader begins again, and carries the number of messages to skip then.

    @ivar doneCount: consumed messages, of all depths; at least 1, and less than all.
    """

    doneCount: int

    def __new__(cls, offset: int, doneCount: int) -> PartialBatchOffset:
        made = super().__new__(cls, offset)
        made.doneCount = doneCount
        return made

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.doneCount


def consumedCount(offset: int) -> int:
    """Consumed messages of the set at an offset; 0 for a plain offset."""
    return offset.doneCount if isinstance(offset, PartialBatchOffset) else 0


class OffsetBounds(NamedTuple):
    """
    The range of a partition's log.

    @ivar start: the oldest message.
    @ivar end: the high watermark.
    """

    start: int
    end: int


class Message(NamedTuple):
    """
    One message of an entry.

    @ivar payload: the application's bytes; of an unopened wrapper, the compressed bytes.
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
    A message and the offset I{behind} it, to fetch next and to commit (spec-0.7 wire-protocol §6).
    """

    message: Message
    nextOffset: int
