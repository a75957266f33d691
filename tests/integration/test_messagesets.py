"""
The scenarios of 0.7.2's tests of messages and message sets, each with a set in memory and with the
same set as it comes back from a segment file, by way of a broker.
"""

from __future__ import annotations

from collections.abc import Iterator

from pylogbroker.errors import InvalidChecksumError
from pylogbroker.records.compression import GZIP, NONE, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet
from pylogbroker.types import Message
from tests.integration.threaded import BrokerCase, inThread

ABCD = [b"abcd", b"efgh", b"ijkl"]


class MessageSetTests(BrokerCase):
    """
    BaseMessageSetTestCases, ByteBufferMessageSetTest, FileMessageSetTest, MessageTest, LogTest.
    """

    def both(self, data: bytes, topic: str) -> Iterator[MessageSet]:
        """A set in memory, and as it comes back."""
        yield MessageSet(data)
        client = self.client()
        client.produce(topic, 0, data)
        client.processed()
        code, found = client.fetch(topic, 0, 0)
        self.assertEqual(code, 0)
        yield MessageSet(found)

    @inThread
    def test_writtenEqualsRead(self) -> None:
        """BaseMessageSet.testWrittenEqualsRead: what was written is read."""
        self.serve()
        for codec in (NONE, GZIP, SNAPPY):
            for found in self.both(encodeSet(ABCD, codec=codec), f"t{codec}"):
                self.assertEqual([message.payload for message, _ in found], ABCD)

    @inThread
    def test_iteratorIsConsistent(self) -> None:
        """BaseMessageSet.testIteratorIsConsistent: iterating a second time gives the same."""
        self.serve()
        for found in self.both(encodeSet(ABCD), "t"):
            first = list(found)
            self.assertEqual((len(first), list(found)), (3, first))

    @inThread
    def test_sizeInBytes(self) -> None:
        """BaseMessageSet.testSizeInBytes: the sum of the entries; 0 for an empty set."""
        self.serve()
        for found in self.both(encodeSet(ABCD), "t"):
            self.assertEqual(
                found.sizeInBytes, sum(len(encodeMessage(payload)) for payload in ABCD)
            )
        for found in self.both(b"", "empty"):
            self.assertEqual((found.sizeInBytes, list(found)), (0, []))

    @inThread
    def test_validBytes(self) -> None:
        """
        ByteBufferMessageSetTest.testValidBytes: two trailing garbage bytes do not change it; 0 for
        an empty set.
        """
        self.serve()
        data = encodeSet([b"hello", b"there"])
        for found in self.both(data + b"\0\1", "t"):
            self.assertEqual((found.validSize, len(list(found))), (len(data), 2))
        for found in self.both(b"", "empty"):
            self.assertEqual(found.validSize, 0)

    @inThread
    def test_equals(self) -> None:
        """
        ByteBufferMessageSetTest.testEquals: sets of equal content are equal, compressed or not, and
        differ from others.
        """
        self.serve()
        for codec in (NONE, GZIP):
            data = encodeSet([b"hello", b"there"], codec=codec)
            memory, file = self.both(data, f"t{codec}")
            self.assertEqual(memory, MessageSet(encodeSet([b"hello", b"there"], codec=codec)))
            self.assertEqual(memory, file)
            self.assertNotEqual(memory, MessageSet(encodeSet([b"hello", b"where"], codec=codec)))
            self.assertNotEqual(memory, MessageSet(encodeSet([b"hello"], codec=codec)))

    @inThread
    def test_iterator(self) -> None:
        """
        ByteBufferMessageSetTest.testIterator: plain, compressed, and mixed with empty sets give the
        same messages; the last offset is the size.
        """
        self.serve()
        plain, packed = encodeSet(ABCD), encodeSet(ABCD, codec=GZIP)
        mixes = {
            "plain": (plain, 1),
            "packed": (packed, 1),
            "mixed": (encodeSet([], codec=GZIP) + packed + encodeSet([]) + plain + packed, 3),
        }
        for topic, (data, times) in mixes.items():
            for found in self.both(data, topic):
                for _ in range(2):
                    deep = list(found)
                    self.assertEqual([message.payload for message, _ in deep], ABCD * times)
                    self.assertEqual(deep[-1].nextOffset, len(data))
                    self.assertLessEqual(
                        {offset for _, offset in found.shallow()}, {offset for _, offset in deep}
                    )

    @inThread
    def test_iterationDoesNotChangePosition(self) -> None:
        """
        FileMessageSetTest.testIterationDoesntChangePosition: reading does not move where the next
        append goes.
        """
        self.serve()
        client = self.client()
        client.produce("t", 0, encodeSet(ABCD))
        end = client.end("t")
        for offset in (0, 14, 28, end, 5):
            client.fetch("t", 0, offset)
        client.produce("t", 0, encodeSet([b"more"]))
        self.assertEqual(client.fetch("t", 0, end), (0, encodeSet([b"more"])))

    @inThread
    def test_messageSizeCheck(self) -> None:
        """
        LogTest.testMessageSizeCheck: with a limit of 5, payloads of 3 and 5 bytes pass, one of 6
        does not.
        """
        self.serve({"max.message.size": "5"})
        client = self.client()
        client.produce("t", 0, encodeSet([b"You", b"bethe"]))
        client.produce("t", 0, encodeSet([b"change"]))
        self.assertEqual(client.payloads("t"), [b"You", b"bethe"])

    @inThread
    def test_message(self) -> None:
        """
        MessageTest: the fields are what was sent; a checksum that does not fit is found; equal
        messages are equal, and hash alike.
        """
        self.serve()
        for found in self.both(
            encodeMessage(b"hello", magic=0) + encodeSet([b"hello", b"there"]), "t"
        ):
            old, hello, there = (message for message, _ in found)
            self.assertEqual(hello, Message(b"hello", 1, 0, 0x3610A686))
            self.assertEqual(old, Message(b"hello", 0, 0, 0x3610A686))
            self.assertEqual(
                (hello.payload, hello.magic, hello.codec, there.checksum),
                (b"hello", 1, NONE, 0x5A2FE996),
            )
            self.assertNotEqual(hello, there)
            self.assertEqual({hello, there, Message(b"hello", 1, 0, 0x3610A686)}, {hello, there})
        broken = bytearray(encodeMessage(b"hello"))
        broken[-1] ^= 0x20
        self.assertRaises(InvalidChecksumError, list, MessageSet(bytes(broken)))
