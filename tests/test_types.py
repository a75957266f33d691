"""
Tests of the values that every floor shares.
"""

from __future__ import annotations

import copy
import pickle

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.types import (
    EARLIEST,
    LATEST,
    RANDOM_PARTITION,
    BrokerPartition,
    Message,
    MessageAndOffset,
    PartialBatchOffset,
    PartitionId,
    TopicPartition,
    consumedCount,
    escapeUnprintable,
    formatCount,
)


class ValueTests(SynchronousTestCase):
    """Topic-partitions, messages, constants."""

    def test_topicPartition(self) -> None:
        """
        It is written as its directory is named, is equal to a plain tuple, and hashes like one.
        """
        self.assertEqual(str(TopicPartition("my-topic", 3)), "my-topic-3")
        self.assertEqual({("t", 0): 1}.get(TopicPartition("t", 0)), 1)

    def test_place(self) -> None:
        """
        One text for a partition in a cluster, whoever speaks of it; places sort by topic, broker
        and partition.
        """
        places = [
            PartitionId("t", BrokerPartition(0, 10)),
            PartitionId("t", BrokerPartition(0, 9)),
            PartitionId("s", BrokerPartition(1, 0)),
        ]
        self.assertEqual([str(place) for place in sorted(places)], ["s/1-0", "t/0-9", "t/0-10"])

    def test_offsetInSet(self) -> None:
        """
        An offset in the midst of a set is a number like any other, in text, too; it can be copied
        and sent to another process.
        """
        offset = PartialBatchOffset(30, 2)
        self.assertEqual(
            (
                offset,
                hash(offset),
                str(offset),
                f"{offset}",
                consumedCount(offset),
                consumedCount(30),
            ),
            (30, hash(30), "30", "30", 2, 0),
        )
        for made in (copy.copy(offset), pickle.loads(pickle.dumps(offset))):
            self.assertEqual((made, consumedCount(made)), (30, 2))

    def test_codec(self) -> None:
        """The codec is the two lowest bits of the attributes, whatever the others are."""
        self.assertEqual(
            [Message(b"", 1, attributes).codec for attributes in (0, 1, 2, 3, 0xFC, 0xFE)],
            [0, 1, 2, 3, 0, 2],
        )

    def test_messageDefaults(self) -> None:
        """A message made of a payload alone is plain and of magic 1."""
        message = Message(b"payload")
        self.assertEqual(
            (message.payload, message.magic, message.attributes, message.checksum, message.codec),
            (b"payload", 1, 0, 0, 0),
        )

    def test_unpacking(self) -> None:
        """A message and its offset can be taken apart by name and by place."""
        both = MessageAndOffset(Message(b"m"), 15)
        message, nextOffset = both
        self.assertEqual((message, nextOffset), (both.message, both.nextOffset))

    def test_constants(self) -> None:
        """The wire's special numbers (spec-0.7 wire-protocol §3.1, §3.5)."""
        self.assertEqual((RANDOM_PARTITION, LATEST, EARLIEST), (-1, -1, -2))


class CountTests(SynchronousTestCase):
    """Numbers of things."""

    def test_formatCount(self) -> None:
        """One is singular; none and many are plural, with separators."""
        self.assertEqual(
            [formatCount(count, "file") for count in (0, 1, 2, 2863)],
            ["0 files", "1 file", "2 files", "2,863 files"],
        )


class PrintableTests(SynchronousTestCase):
    """Texts that others chose."""

    def test_printable(self) -> None:
        """What can be seen stays as it is; what does something instead is shown by its number."""
        for text in ("", "clicks", "a b", "kl\u00f6\u00dfe \u65e5\u672c <script> \\"):
            self.assertEqual(escapeUnprintable(text), text)
        for text, shown in (
            ("\x1b[2J", "\\x1b[2J"),
            ("a\u202eb", "a\\u202eb"),
            ("a\r\nb", "a\\r\\nb"),
            ("\x9b1m", "\\x9b1m"),
            ("\udcff", "\\udcff"),
        ):
            self.assertEqual(escapeUnprintable(text), shown)
