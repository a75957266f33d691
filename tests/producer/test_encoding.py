"""
Tests for L{pylogbroker.producer.encoding}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import EncodingError, MessageTooLargeError, PylogbrokerError
from pylogbroker.producer.encoding import Encoding, defaultEncoder, stringEncoder
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.types import Message


class EncoderTests(SynchronousTestCase):
    """Bytes of values."""

    def test_default(self) -> None:
        """
        The default encoder takes what is bytes, or a message, and nothing else
        (ProducerTest.testDefaultEncoder).
        """
        for value in (b"x", bytearray(b"x"), memoryview(b"x"), Message(b"x")):
            self.assertEqual(defaultEncoder(value), b"x")
        self.assertIn("StringEncoder", str(self.assertRaises(EncodingError, defaultEncoder, "x")))

    def test_string(self) -> None:
        """The string encoder takes text, as UTF-8, and nothing else."""
        self.assertEqual(stringEncoder("größe"), "größe".encode())
        self.assertRaises(EncodingError, stringEncoder, b"x")
        self.assertRaises(EncodingError, stringEncoder, "\ud800")


class EncodingTests(SynchronousTestCase):
    """Message sets of values."""

    def encoding(
        self,
        encoder: Any = defaultEncoder,
        codec: int = 0,
        topics: Any = (),
        payloadSizeMax: int = 100,
    ) -> Encoding:
        return Encoding(encoder, codec, topics, payloadSizeMax)

    def test_codecByTopic(self) -> None:
        """Without compressed.topics all topics are compressed, with them only those."""
        self.assertEqual(self.encoding(codec=1).codecFor("any"), 1)
        some = self.encoding(codec=1, topics={"t"})
        self.assertEqual((some.codecFor("t"), some.codecFor("u")), (1, 0))

    def test_plain(self) -> None:
        """A plain set is the format's, and its largest payload has exactly the limit."""
        encoding = self.encoding()
        self.assertEqual(encoding.encodeAll([b"a", b"x" * 100], "t"), encodeSet([b"a", b"x" * 100]))
        self.assertIn(
            "101",
            str(
                self.assertRaises(MessageTooLargeError, encoding.encodeAll, [b"a", b"x" * 101], "t")
            ),
        )

    def test_wrapper(self) -> None:
        """
        SyncProducerTest: a gzip wrapper counts as one message; ten messages of twenty equal bytes
        make a payload over the limit of 100: they go in two.
        """
        values = [b"t" * 20] * 10
        data = self.encoding(codec=1, payloadSizeMax=112).encodeAll(values, "t")
        self.assertEqual([message.payload for message, _ in MessageSet(data)], values)
        payloadSize = len(data) - 10
        self.encoding(codec=1, payloadSizeMax=payloadSize).encodeAll(values, "t")
        data = self.encoding(codec=1, payloadSizeMax=payloadSize - 1).encodeAll(values, "t")
        self.assertEqual(
            [message.message.payload for message in MessageSet(data).shallow()],
            [data[10 : len(data) // 2], data[len(data) // 2 + 10 :]],
        )
        self.assertEqual([message.payload for message, _ in MessageSet(data)], values)

    def test_incompressible(self) -> None:
        """
        What does not compress goes as it is, if it is small enough so; nothing is left out, and the
        order is kept.
        """
        random = Random(1)
        for count in (1, 2, 50):
            values = [random.randbytes(random.randrange(80, 101)) for _each in range(count)]
            values[count // 2] = random.randbytes(100)
            data, refused = self.encoding(codec=1).pack(values, "t")
            self.assertEqual(
                ([message.payload for message, _ in MessageSet(data)], refused), (values, {})
            )
            entries = [each.message for each in MessageSet(data).shallow()]
            self.assertTrue(all(len(each.payload) <= 100 for each in entries))
            self.assertEqual({each.codec for each in entries}, {0})

    def test_someTooLarge(self) -> None:
        """
        What is too large, compressed and as it is, takes no other with it, and is named; all or
        nothing names the first.
        """
        values = [b"a", bytes(range(101)), b"x" * 1000, bytes(range(150)), b"b"]
        encoding = self.encoding(codec=1)
        data, refused = encoding.pack(values, "t")
        self.assertEqual(
            [message.payload for message, _ in MessageSet(data)], [b"a", b"x" * 1000, b"b"]
        )
        self.assertEqual(sorted(refused), [1, 3])
        self.assertIn(
            "has 101 bytes",
            str(self.assertRaises(MessageTooLargeError, encoding.encodeAll, values, "t")),
        )
        self.assertEqual(
            sorted(self.encoding(codec=1, payloadSizeMax=0).pack(values, "t")[1]), [0, 1, 2, 3, 4]
        )

    def test_foreignEncoder(self) -> None:
        """An encoder that raises, or gives no bytes, is told as an encoding error."""
        self.assertIn(
            "ZeroDivisionError",
            str(self.assertRaises(EncodingError, self.encoding(lambda value: 1 // 0).payload, 1)),
        )
        self.assertIn(
            "gave str", str(self.assertRaises(EncodingError, self.encoding(str).payload, 1))
        )
        self.assertRaises(EncodingError, self.encoding(stringEncoder).payload, 1)

    def test_payloads(self) -> None:
        """Each value stands for itself: one that cannot be sent takes no other with it."""
        data, refused = self.encoding(stringEncoder, payloadSizeMax=3).encode(
            ["ab", 7, "abcd"], "t"
        )
        self.assertEqual(data, encodeSet([b"ab"]))
        self.assertIsInstance(refused[1], EncodingError)
        self.assertIsInstance(refused[2], MessageTooLargeError)
        _data, refused = self.encoding(stringEncoder, 1, payloadSizeMax=3).encode(["abcd"], "t")
        self.assertIn("in a compressed message", str(refused[0]))

    def test_allOrNothing(self) -> None:
        """For sync mode the first fault counts."""
        self.assertRaises(PylogbrokerError, self.encoding(stringEncoder).encodeAll, ["a", 7], "t")
        self.assertEqual(self.encoding(stringEncoder).encodeAll(["a"], "t"), encodeSet([b"a"]))

    def test_arePlain(self) -> None:
        """The quick way is taken only where it is the same."""
        self.assertTrue(self.encoding().arePlain([b"x" * 100], "t"))
        self.assertTrue(self.encoding().arePlain([], "t"))
        self.assertTrue(self.encoding(codec=1).arePlain([b"x" * 101], "t"))
        self.assertFalse(self.encoding().arePlain([b"x" * 101], "t"))
        self.assertFalse(self.encoding().arePlain([b"x", bytearray(b"x")], "t"))
        self.assertFalse(self.encoding(stringEncoder).arePlain([b"x"], "t"))
