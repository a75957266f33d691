"""
Tests for L{pylogbroker.producer.encoding}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import EncodingError, MessageTooLargeError, PylogbrokerError
from pylogbroker.formats.messageset import MessageSet, encodeSet
from pylogbroker.model import Message
from pylogbroker.producer.encoding import Encoding, defaultEncoder, stringEncoder


class EncoderTests(SynchronousTestCase):
    """Bytes of values."""

    def test_default(self) -> None:
        """The default encoder takes what is bytes, or a message, and nothing else (ProducerTest.testDefaultEncoder)."""
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

    def encoding(self, encoder: Any = defaultEncoder, codec: int = 0, topics: Any = (), payloadSizeMax: int = 100) -> Encoding:
        return Encoding(encoder, codec, topics, payloadSizeMax)

    def test_codecByTopic(self) -> None:
        """Without compressed.topics all topics are compressed, with them only those."""
        self.assertEqual(self.encoding(codec=1).codecFor("any"), 1)
        some = self.encoding(codec=1, topics={"t"})
        self.assertEqual((some.codecFor("t"), some.codecFor("u")), (1, 0))

    def test_plain(self) -> None:
        """A plain set is the format's, and its largest payload has exactly the limit."""
        encoding = self.encoding()
        self.assertEqual(encoding.messageSetOf([b"a", b"x" * 100], "t"), encodeSet([b"a", b"x" * 100]))
        self.assertIn("101", str(self.assertRaises(MessageTooLargeError, encoding.messageSetOf, [b"a", b"x" * 101], "t")))

    def test_wrapper(self) -> None:
        """SyncProducerTest: a gzip wrapper counts as one message; ten messages of twenty equal bytes make a payload over the limit of 100."""
        values = [b"t" * 20] * 10
        data = self.encoding(codec=1, payloadSizeMax=112).messageSetOf(values, "t")
        self.assertEqual([message.payload for message, _ in MessageSet(data)], values)
        payloadSize = len(data) - 10
        self.encoding(codec=1, payloadSizeMax=payloadSize).messageSetOf(values, "t")
        error = self.assertRaises(MessageTooLargeError, self.encoding(codec=1, payloadSizeMax=payloadSize - 1).messageSetOf, values, "t")
        self.assertIn("10 compressed messages", str(error))

    def test_foreignEncoder(self) -> None:
        """An encoder that raises, or gives no bytes, is told as an encoding error."""
        self.assertIn("ZeroDivisionError", str(self.assertRaises(EncodingError, self.encoding(lambda value: 1 // 0).payload, 1)))
        self.assertIn("gave str", str(self.assertRaises(EncodingError, self.encoding(str).payload, 1)))
        self.assertRaises(EncodingError, self.encoding(stringEncoder).payload, 1)

    def test_payloads(self) -> None:
        """Each value stands for itself: one that cannot be sent takes no other with it."""
        found = self.encoding(stringEncoder, payloadSizeMax=3).payloads(["ab", 7, "abcd"], "t")
        self.assertEqual(found[0], b"ab")
        self.assertIsInstance(found[1], EncodingError)
        self.assertIsInstance(found[2], MessageTooLargeError)
        self.assertEqual(self.encoding(stringEncoder, 1, payloadSizeMax=3).payloads(["abcd"], "t"), [b"abcd"])

    def test_allOrNothing(self) -> None:
        """For sync mode the first fault counts."""
        self.assertRaises(PylogbrokerError, self.encoding(stringEncoder).messageSetOf, ["a", 7], "t")
        self.assertEqual(self.encoding(stringEncoder).messageSetOf(["a"], "t"), encodeSet([b"a"]))

    def test_arePlain(self) -> None:
        """The quick way is taken only where it is the same."""
        self.assertTrue(self.encoding().arePlain([b"x" * 100], "t"))
        self.assertTrue(self.encoding().arePlain([], "t"))
        self.assertTrue(self.encoding(codec=1).arePlain([b"x" * 101], "t"))
        self.assertFalse(self.encoding().arePlain([b"x" * 101], "t"))
        self.assertFalse(self.encoding().arePlain([b"x", bytearray(b"x")], "t"))
        self.assertFalse(self.encoding(stringEncoder).arePlain([b"x"], "t"))
