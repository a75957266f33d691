"""Records as Apache Kafka 4.3.1 has written them, and broken ones."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.consumergroups import consumerrecords
from pylogbroker.coordinator.consumergroups.consumerrecords import (
    ClassicMemberMetadata,
    ConsumerGroupKey,
    CurrentValue,
    GroupEpochValue,
    MemberValue,
    PatternValue,
    TargetEpochValue,
)
from pylogbroker.coordinator.groupmessages import JoinProtocol
from pylogbroker.errors import FormatError

MEMBER = "A" * 22
TOPIC = bytes.fromhex("d99d942badce49ac8f56c7b1e9283944")
OTHER = bytes.fromhex("96ab2dee82424fe981f60e39f149e7ad")


class KeyTests(SynchronousTestCase):
    """Keys."""

    def test_kafkas(self) -> None:
        """Keys are written and read as Kafka's."""
        for data, key in (
            (b"\0\3\0\2g1", ConsumerGroupKey(3, "g1")),
            (b"\0\4\0\2k1", ConsumerGroupKey(4, "k1")),
            (b"\0\6\0\2g1", ConsumerGroupKey(6, "g1")),
            (b"\0\5\0\2g1\0\x16" + b"A" * 22, ConsumerGroupKey(5, "g1", MEMBER)),
            (b"\0\7\0\2g1\0\x16" + b"A" * 22, ConsumerGroupKey(7, "g1", MEMBER)),
            (b"\0\x08\0\2g1\0\x16" + b"A" * 22, ConsumerGroupKey(8, "g1", MEMBER)),
            (b"\0\x10\0\2g3\0\5t[12]", ConsumerGroupKey(16, "g3", "t[12]")),
        ):
            self.assertEqual(consumerrecords.encodeKey(key), data)
            self.assertEqual(consumerrecords.decodeKey(data), key)

    def test_others(self) -> None:
        """Keys of other kinds are not read; cut ones, and such with something behind, are bad."""
        self.assertIsNone(consumerrecords.decodeKey(b"\0\x09\0\2g1"))
        for data in (b"\0", b"\0\3\0\3g1", b"\0\3\0\2g1x", b"\0\5\0\2g1", b"\0\3\xff\xff"):
            self.assertRaises(FormatError, consumerrecords.decodeKey, data)
        long = ConsumerGroupKey(3, "g" * 0x8000)
        self.assertRaises(FormatError, consumerrecords.encodeKey, long)


class ValueTests(SynchronousTestCase):
    """Values."""

    def test_epoch(self) -> None:
        """A group's epoch, with and without topics."""
        for text, value in (
            ("000000000002010008138347e9a36e097d", GroupEpochValue(2, 0x138347E9A36E097D)),
            ("00000000000500", GroupEpochValue(5, 0)),
            ("000000000002010008f2df3b324a36497c", GroupEpochValue(2, -0xD20C4CDB5C9B684)),
        ):
            self.assertEqual(consumerrecords.encodeEpoch(value).hex(), text)
            self.assertEqual(consumerrecords.decodeEpoch(bytes.fromhex(text)), value)

    def test_classicMember(self) -> None:
        """What a member told that speaks the classic protocol; one that does not has no such."""
        protocols = (
            JoinProtocol("range", b"\1\2"),
            JoinProtocol("cooperative-sticky", bytes(200)),
        )
        value = MemberValue(
            None, None, "oracle", "/127.0.0.1", ("t1",), "", 30_000, None,
            ClassicMemberMetadata(45_000, protocols),
        )  # fmt: skip
        head = "00000000076f7261636c650b2f3132372e302e302e310203743101000075300001"
        tail = "00ef01010000afc8030672616e67650301020013636f6f70657261746976652d737469636b79c901"
        text = head.removesuffix("01") + "01" + tail + "00" * 202
        self.assertEqual(consumerrecords.encodeMember(value).hex(), text)
        self.assertEqual(consumerrecords.decodeMember(bytes.fromhex(text)), value)
        untagged = bytes.fromhex(head.removesuffix("01") + "00")
        self.assertIsNone(consumerrecords.decodeMember(untagged).classic)

    def test_member(self) -> None:
        """What members told about themselves: names, a pattern, an instance."""
        for text, value in (
            (
                "00000000076f7261636c650b2f3132372e302e302e3103056e6f70650374310100007530000100"
                "0100",
                MemberValue(None, None, "oracle", "/127.0.0.1", ("nope", "t1"), "", 30_000, None),
            ),
            (
                "00000000076f7261636c650b2f3132372e302e302e310106745b31325d000075300001000100",
                MemberValue(None, None, "oracle", "/127.0.0.1", (), "t[12]", 30_000, None),
            ),
            (
                "000003693100076f7261636c650b2f3132372e302e302e310203753101000075300001000100",
                MemberValue("i1", None, "oracle", "/127.0.0.1", ("u1",), "", 30_000, None),
            ),
        ):
            self.assertEqual(consumerrecords.encodeMember(value).hex(), text)
            self.assertEqual(consumerrecords.decodeMember(bytes.fromhex(text)), value)
        more = MemberValue("i", "r", "c", "/h", ("t" * 300,), "p", 5, "range")
        self.assertEqual(consumerrecords.decodeMember(consumerrecords.encodeMember(more)), more)

    def test_target(self) -> None:
        """The target assignment: when it was made, and each member's part."""
        text = "000000000002010008000001a205228915"
        value = TargetEpochValue(2, 0x1A205228915)
        self.assertEqual(consumerrecords.encodeTargetEpoch(value).hex(), text)
        self.assertEqual(consumerrecords.decodeTargetEpoch(bytes.fromhex(text)), value)
        never = TargetEpochValue(1, 0)
        encoded = consumerrecords.encodeTargetEpoch(never)
        self.assertEqual(consumerrecords.decodeTargetEpoch(encoded), never)
        for text, partitions in (
            ("000002d99d942badce49ac8f56c7b1e92839440300000000000000010000", {TOPIC: {0, 1}}),
            ("00000100", {}),
            (
                "00000396ab2dee82424fe981f60e39f149e7ad0400000000000000010000000200d99d942badce49"
                "ac8f56c7b1e92839440300000000000000010000",
                {OTHER: {0, 1, 2}, TOPIC: {0, 1}},
            ),
        ):
            self.assertEqual(consumerrecords.encodeTarget(partitions).hex(), text)
            self.assertEqual(consumerrecords.decodeTarget(bytes.fromhex(text)), partitions)

    def test_current(self) -> None:
        """What members own, what they have to give up, and since which epoch each is theirs."""
        for text, value in (
            (
                "000000000002000000000002d99d942badce49ac8f56c7b1e92839440300000000000000010100"
                "090300000002000000020100",
                CurrentValue(2, 0, 0, {TOPIC: {0: 2, 1: 2}}, {}),
            ),
            (
                "000000000002000000020102d99d942badce49ac8f56c7b1e92839440200000000010005020000"
                "000202d99d942badce49ac8f56c7b1e92839440200000001010005020000000200",
                CurrentValue(2, 2, 1, {TOPIC: {0: 2}}, {TOPIC: {1: 2}}),
            ),
            (
                "0000fffffffe000000000002d99d942badce49ac8f56c7b1e92839440300000000000000010100"
                "090300000000000000000100",
                CurrentValue(-2, 0, 0, {TOPIC: {0: 0, 1: 0}}, {}),
            ),
        ):
            self.assertEqual(consumerrecords.encodeCurrent(value).hex(), text)
            self.assertEqual(consumerrecords.decodeCurrent(bytes.fromhex(text)), value)

    def test_withoutEpochs(self) -> None:
        """Earlier versions wrote no epochs of partitions: they are the member's."""
        text = "000000000007000000060002" + TOPIC.hex() + "0200000003000100"
        found = consumerrecords.decodeCurrent(bytes.fromhex(text))
        self.assertEqual(found, CurrentValue(7, 6, 0, {TOPIC: {3: 7}}, {}))

    def test_otherEpochs(self) -> None:
        """As many epochs as partitions are there."""
        text = "000000000007000000060002" + TOPIC.hex() + "0200000003010001010100"
        self.assertRaises(FormatError, consumerrecords.decodeCurrent, bytes.fromhex(text))

    def test_pattern(self) -> None:
        """What a pattern has matched."""
        text = "0000030374310374320000000000000070000001a205229eb400"
        value = PatternValue(("t1", "t2"), 0x70, 0x1A205229EB4)
        self.assertEqual(consumerrecords.encodePattern(value).hex(), text)
        self.assertEqual(consumerrecords.decodePattern(bytes.fromhex(text)), value)

    def test_broken(self) -> None:
        """Cut values, values with something behind, and of other versions are refused."""
        texts = {
            consumerrecords.decodeEpoch: "000000000002010008138347e9a36e097d",
            consumerrecords.decodeMember: "00000000026302680101000075300001000100",
            consumerrecords.decodeTargetEpoch: "000000000002010008000001a205228915",
            consumerrecords.decodeTarget: "000002" + TOPIC.hex() + "03000000000000000100" + "00",
            consumerrecords.decodeCurrent: "0000000000010000000000010100",
            consumerrecords.decodePattern: "0000020374310000000000000070000001a205229eb400",
        }
        for decode, text in texts.items():
            data = bytes.fromhex(text)
            decode(data)
            for end in range(len(data)):
                self.assertRaises(FormatError, decode, data[:end])
            self.assertRaises(FormatError, decode, data + b"\0")
            self.assertRaises(FormatError, decode, b"\0\1" + data[2:])
        self.assertRaises(FormatError, consumerrecords.decodeTarget, b"\0\0" + b"\xff" * 5)
        self.assertRaises(FormatError, consumerrecords.decodeTarget, b"\0\0\xff\xff\x7f")
