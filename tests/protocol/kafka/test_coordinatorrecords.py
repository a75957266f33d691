"""Keys and values of the coordinators' topics: what stands before and behind a message."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.coordinatorrecords import (
    RECORDS,
    decodeRecord,
    encodeRecord,
    recordVersion,
)

TOPIC_ID = bytes(range(16))


class RecordTests(SynchronousTestCase):
    """Keys and values."""

    def test_version(self) -> None:
        """A record begins with its version, or the number of its type, as an int16."""
        made = RECORDS["OffsetCommitKey"](group="g", topic="t", partition=3)
        data = encodeRecord(made, 1)
        self.assertEqual(data, b"\0\1\0\1g\0\1t\0\0\0\3")
        self.assertEqual(recordVersion(data), 1)
        self.assertEqual(recordVersion(b"\xff\xff"), -1)
        self.assertEqual(decodeRecord("OffsetCommitKey", data), made)

    def test_everyRecord(self) -> None:
        """Every record can be encoded and decoded in each of its versions."""
        for name in RECORDS:
            made = RECORDS[name]()
            first, last = made._versions
            for version in range(first, last + 1):
                self.assertEqual(decodeRecord(name, encodeRecord(made, version)), made, name)

    def test_refused(self) -> None:
        """Cut records, records with bytes behind them, and unknown versions are refused."""
        data = b"\0\1\0\1g\0\1t\0\0\0\3"
        for size in range(len(data)):
            self.assertRaises(FormatError, decodeRecord, "OffsetCommitKey", data[:size])
        self.assertRaises(FormatError, decodeRecord, "OffsetCommitKey", data + b"\0")
        self.assertRaises(FormatError, decodeRecord, "OffsetCommitKey", b"\0\2" + data[2:])
        made = RECORDS["GroupMetadataKey"](group="x" * 0x8000)
        self.assertRaises(FormatError, encodeRecord, made, 2)

    def test_manyElements(self) -> None:
        """A record may have as many elements as its bytes hold; requests have a limit."""
        cls: Any = RECORDS["ConsumerGroupTargetAssignmentMemberValue"]
        made = cls(
            topicPartitions=[cls.TopicPartition(topicId=TOPIC_ID, partitions=list(range(100_001)))]
        )
        name = "ConsumerGroupTargetAssignmentMemberValue"
        self.assertEqual(decodeRecord(name, encodeRecord(made, 0)), made)
