"""Tests for L{pylogbroker.protocol.brokercalls}."""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    InvalidChecksumError,
    MessageTooLargeError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    RemoteUnknownError,
    UnknownCodecError,
    WireError,
)
from pylogbroker.protocol.brokercalls import (
    checkedPartition,
    destination,
    encodeMessages,
    fetchCall,
    multiFetchCall,
    multiProduceFrame,
    offsetsCall,
    produceFrame,
)
from pylogbroker.protocol.kafka07.requests import Fetch
from pylogbroker.protocol.kafka07.responses import encodeOffsets, fetchHeader, multiFetchHeader
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet

HELLO = encodeSet([b"hello", b"there"])


class FetchCallTests(SynchronousTestCase):
    """FETCH, as a client sees it."""

    def test_frame(self) -> None:
        """The request is the one of spec-0.7 wire-protocol §12."""
        self.assertEqual(
            fetchCall("test", 0, 0, 10_000, 1 << 20).frame,
            bytes.fromhex("00000018 0001 0004 74657374 00000000 0000000000000000 00002710"),
        )

    def test_set(self) -> None:
        """The answer is a message set that begins at the offset that was asked for."""
        messages = fetchCall("test", 0, 500, 100, 1 << 20).decode(b"\0\0" + HELLO)
        self.assertEqual(list(messages.payloads()), [(b"hello", 515), (b"there", 530)])
        self.assertIsNone(messages.error)

    def test_error(self) -> None:
        """
        An error code is not raised by decoding; it is the set's error, which names what was asked
        for, and iterating raises it.
        """
        messages = fetchCall("test", 3, 500, 100, 1 << 20).decode(b"\0\1")
        self.assertIsInstance(messages.error, RemoteOffsetOutOfRangeError)
        self.assertIn("test-3 at 500", str(messages.error))
        self.assertRaises(RemoteOffsetOutOfRangeError, list, messages)

    def test_unknownError(self) -> None:
        """A code that nobody knows is the unknown error, with its code."""
        error = fetchCall("test", 3, 500, 100, 1 << 20).decode(b"\0\x63").error
        self.assertIsInstance(error, RemoteUnknownError)
        assert error is not None
        self.assertEqual(error.code, 99)

    def test_noAnswer(self) -> None:
        """A frame without room for an error code is a wire error."""
        self.assertRaises(WireError, fetchCall("test", 0, 0, 100, 1 << 20).decode, b"\0")

    def test_sizes(self) -> None:
        """
        A size that is negative, or whose answer would not be accepted, is refused before it is
        asked for; the largest that is accepted is not.
        """
        self.assertRaises(ValueError, fetchCall, "test", 0, 0, -1, 1000)
        self.assertRaises(ValueError, fetchCall, "test", 0, 0, 999, 1000)
        fetchCall("test", 0, 0, 998, 1000)


class MultiFetchCallTests(SynchronousTestCase):
    """MULTIFETCH, as a client sees it."""

    def test_frame(self) -> None:
        """
        The request is the one of spec-0.7 wire-protocol §12; a L{Fetch} will do as well as a tuple.
        """
        self.assertEqual(
            multiFetchCall([("test", 0, 0, 10_000), Fetch("test2", 1, 54, 300)], 1 << 20).frame,
            bytes.fromhex(
                "00000031 0002 0002 0004 74657374 00000000 0000000000000000 00002710 0005 "
                "7465737432 00000001 0000000000000036 0000012c"
            ),
        )

    def test_sets(self) -> None:
        """Each answer has its own request's offset and its own error."""
        hello = encodeSet([b"hello"])
        body = (
            multiFetchHeader([len(hello), 0])
            + fetchHeader(0, len(hello))
            + hello
            + fetchHeader(3, 0)
        )[4:]
        first, second = multiFetchCall(
            [("test", 0, 40, 100), ("test", 9, 54, 100)], 1 << 20
        ).decode(body)
        self.assertEqual(list(first.payloads()), [(b"hello", 55)])
        self.assertIsInstance(second.error, RemotePartitionError)
        self.assertEqual(second.baseOffset, 54)

    def test_countOfSets(self) -> None:
        """An answer with more or fewer sets than were asked for is a wire error."""
        body = (multiFetchHeader([0]) + fetchHeader(0, 0))[4:]
        self.assertRaises(WireError, multiFetchCall([], 1 << 20).decode, body)
        self.assertRaises(
            WireError, multiFetchCall([("t", 0, 0, 1), ("t", 0, 0, 1)], 1 << 20).decode, body
        )

    def test_none(self) -> None:
        """Nothing asked is nothing answered."""
        self.assertEqual(multiFetchCall([], 2).decode(multiFetchHeader([])[4:]), [])

    def test_sizes(self) -> None:
        """The sizes count together, with the headers of the sets; and each is not negative."""
        self.assertRaises(ValueError, multiFetchCall, [("t", 0, 0, -1)], 1000)
        self.assertRaises(ValueError, multiFetchCall, [("t", 0, 0, 493), ("t", 0, 0, 494)], 1000)
        multiFetchCall([("t", 0, 0, 493), ("t", 0, 0, 493)], 1000)

    def test_tooMany(self) -> None:
        """More fetches than a request can count are refused."""
        self.assertRaises(ValueError, multiFetchCall, [("t", 0, 0, 1)] * 32_768, 1 << 30)


class OffsetsCallTests(SynchronousTestCase):
    """OFFSETS, as a client sees it."""

    def test_frame(self) -> None:
        """The request is the one of spec-0.7 wire-protocol §12."""
        self.assertEqual(
            offsetsCall("test", 0, -1, 10).frame,
            bytes.fromhex("00000018 0004 0004 74657374 00000000 ffffffffffffffff 0000000a"),
        )

    def test_offsets(self) -> None:
        """The offsets come as the broker sent them."""
        self.assertEqual(
            offsetsCall("test", 0, -1, 10).decode(encodeOffsets([240, 216, 108, 0])[4:]),
            [240, 216, 108, 0],
        )

    def test_error(self) -> None:
        """A broker that answers a code all the same is heard."""
        self.assertRaises(
            RemotePartitionError, offsetsCall("test", 0, -1, 10).decode, struct.pack(">hi", 3, 0)
        )

    def test_negativeCount(self) -> None:
        """Fewer than no offsets cannot be asked for: a broker would close the connection."""
        self.assertRaises(ValueError, offsetsCall, "test", 0, -1, -1)


class EncodeMessagesTests(SynchronousTestCase):
    """What is sent, and what is not."""

    def test_payloads(self) -> None:
        """Payloads become a message set."""
        self.assertEqual(encodeMessages(iter([b"hello", b"there"]), 0, 1000), HELLO)

    def test_encoded(self) -> None:
        """A set that is encoded goes as it is, whatever holds its bytes."""
        for data in (HELLO, bytearray(HELLO), memoryview(HELLO)):
            self.assertEqual(encodeMessages(data, 0, 1000), HELLO)

    def test_compressed(self) -> None:
        """Payloads, or an encoded set, go into one wrapper."""
        for messages in (HELLO, [b"hello", b"there"]):
            data = encodeMessages(messages, 1, 1000)
            (wrapper,) = MessageSet(data).shallow()
            self.assertEqual(wrapper.message.codec, 1)
            self.assertEqual(
                [payload for payload, _ in MessageSet(data).payloads()], [b"hello", b"there"]
            )

    def test_unknownCodec(self) -> None:
        """A codec that nobody knows is refused."""
        self.assertRaises(UnknownCodecError, encodeMessages, [b"x"], 3, 1000)

    def test_largePayload(self) -> None:
        """
        A payload of exactly the limit is sent; one byte more is refused, and the error says which
        message it is and where it would have stood.
        """
        encodeMessages([b"x" * 5, b"y" * 100], 0, 100)
        error = self.assertRaises(
            MessageTooLargeError, encodeMessages, [b"x" * 5, b"y" * 101], 0, 100
        )
        self.assertIn("message 1 has 101 bytes, 100 are allowed", str(error))
        self.assertEqual(error.position, 15)

    def test_manySmallPayloads(self) -> None:
        """The limit is each payload's, not the set's."""
        self.assertEqual(len(encodeMessages([b"x" * 50] * 10, 0, 100)), 600)
        self.assertEqual(len(encodeMessages(encodeSet([b"x" * 50] * 10), 0, 100)), 600)

    def test_largeEncoded(self) -> None:
        """
        The same holds for a set that is encoded; magic 0 and magic 1 have headers of different
        sizes.
        """
        for magic in (0, 1):
            encodeMessages(encodeSet([b"x" * 100], magic=magic), 0, 100)
            error = self.assertRaises(
                MessageTooLargeError,
                encodeMessages,
                encodeMessage(b"small") + encodeMessage(b"x" * 101, magic),
                0,
                100,
            )
            self.assertIn("message 1 has 101 bytes", str(error))
            self.assertEqual(error.position, 15)

    def test_largeWrapper(self) -> None:
        """
        Of a compressed set the wrapper is measured: small messages may make too large a one, and
        large messages a small one.
        """
        noise = [bytes([each, 255 - each, each ^ 85]) for each in range(100)]
        error = self.assertRaises(MessageTooLargeError, encodeMessages, noise, 1, 100)
        self.assertIn("the compressed batch", str(error))
        encodeMessages([b"x" * 1000], 1, 100)

    def test_largeAndNoSet(self) -> None:
        """What is large and no message set is refused for that."""
        self.assertRaises(
            InvalidChecksumError, encodeMessages, b"\0\0\0\x20\1\0" + b"x" * 200, 0, 100
        )


class ProduceFrameTests(SynchronousTestCase):
    """PRODUCE and MULTIPRODUCE."""

    def test_produce(self) -> None:
        """The request is the one of spec-0.7 wire-protocol §12."""
        self.assertEqual(
            produceFrame("test", -1, [b"hello"], 0, 1000),
            bytes.fromhex(
                "0000001f 0000 0004 74657374 ffffffff 0000000f 0000000b01003610a68668656c6c6f"
            ),
        )

    def test_multiProduce(self) -> None:
        """The request is the one of spec-0.7 wire-protocol §12."""
        self.assertEqual(
            multiProduceFrame([("test", 0, [b"a"]), ("other", -1, [b"b"])], 0, 1000),
            bytes.fromhex(
                "00000037 0003 0002 0004 74657374 00000000 0000000b 00000007 0100e8b7be43 61 "
                "0005 6f74686572 ffffffff 0000000b 00000007 010071beeff9 62"
            ),
        )

    def test_multiProduceTooLarge(self) -> None:
        """One payload that is too large refuses the whole request."""
        self.assertRaises(
            MessageTooLargeError,
            multiProduceFrame,
            [("t", 0, [b"a"]), ("t", 0, [b"x" * 101])],
            0,
            100,
        )

    def test_multiProduceTooMany(self) -> None:
        """More parts than a request can count are refused."""
        self.assertRaises(ValueError, multiProduceFrame, [("t", 0, b"")] * 32_768, 0, 100)


class DestinationTests(SynchronousTestCase):
    """The two ways to call C{send}."""

    def test_withPartition(self) -> None:
        """Three arguments are topic, partition and messages."""
        self.assertEqual(destination("t", 2, [b"x"]), ("t", 2, [b"x"]))

    def test_withoutPartition(self) -> None:
        """Two are topic and messages; the broker picks the partition."""
        self.assertEqual(destination("t", [b"x"], None), ("t", -1, [b"x"]))

    def test_wrong(self) -> None:
        """A partition without messages, and messages in the place of the partition, are errors."""
        self.assertRaises(TypeError, destination, "t", 2, None)
        self.assertRaises(TypeError, destination, "t", [b"x"], [b"y"])

    def test_partitionToAskAbout(self) -> None:
        """Only a produce request may leave the choice to the broker."""
        self.assertEqual(checkedPartition(0), 0)
        self.assertRaises(ValueError, checkedPartition, -1)
