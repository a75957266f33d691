"""Tests for L{pylogbroker.tasks.serdes}."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import EncodingError, InvalidPayloadError
from pylogbroker.tasks.serdes import BYTES, INTEGER, JSON, LONG, STRING, Serde

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=10,
)


class RoundTripTests(SynchronousTestCase):
    """Values to bytes and back."""

    def test_pickled(self) -> None:
        """All travel to other processes."""
        for serde in (BYTES, STRING, INTEGER, LONG, JSON):
            found = pickle.loads(pickle.dumps(serde))
            self.assertEqual((type(found), found.name), (type(serde), serde.name))
        self.assertEqual(pickle.loads(pickle.dumps(LONG)).encode(-2), LONG.encode(-2))

    def assertComesBack(self, serde: Serde, value: Any) -> None:
        """What is decoded equals what was encoded, and is of the same type."""
        found = serde.decode(serde.encode(value))
        self.assertEqual(found, value)
        self.assertIs(type(found), type(value))

    @given(st.binary())
    def test_bytes(self, value: bytes) -> None:
        """Bytes stay as they are."""
        self.assertIs(BYTES.encode(value), value)
        self.assertComesBack(BYTES, value)

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def test_string(self, value: str) -> None:
        """Text of all of Unicode but lone surrogates."""
        self.assertComesBack(STRING, value)

    @given(st.integers(-(2**31), 2**31 - 1))
    def test_integer(self, value: int) -> None:
        """Numbers of 32 bits."""
        self.assertComesBack(INTEGER, value)

    @given(st.integers(-(2**63), 2**63 - 1))
    def test_long(self, value: int) -> None:
        """Numbers of 64 bits."""
        self.assertComesBack(LONG, value)

    @given(JSON_VALUES)
    def test_json(self, value: Any) -> None:
        """What JSON can say."""
        self.assertComesBack(JSON, value)


class BytesTests(SynchronousTestCase):
    """The bytes are Kafka's, so that other clients read them."""

    def test_kafkas(self) -> None:
        """
        Those of C{StringSerializer}, C{IntegerSerializer} and C{LongSerializer}: UTF-8, and numbers
        in two's complement, the highest byte first.
        """
        for serde, value, data in (
            (STRING, "", b""),
            (STRING, "häß €𝄞", "häß €𝄞".encode()),
            (INTEGER, 0, b"\0\0\0\0"),
            (INTEGER, 258, b"\0\0\1\2"),
            (INTEGER, -1, b"\xff\xff\xff\xff"),
            (INTEGER, -(2**31), b"\x80\0\0\0"),
            (LONG, 258, b"\0\0\0\0\0\0\1\2"),
            (LONG, -2, b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
            (LONG, 2**63 - 1, b"\x7f\xff\xff\xff\xff\xff\xff\xff"),
        ):
            self.assertEqual(serde.encode(value), data, value)
            self.assertEqual(serde.decode(data), value)

    def test_jsonIsAlwaysTheSame(self) -> None:
        """Equal objects have equal bytes, so JSON can be a key: names are sorted, no spaces."""
        data = '{"a":[1,null,true],"ö":"€"}'.encode()
        self.assertEqual(JSON.encode({"ö": "€", "a": [1, None, True]}), data)
        self.assertEqual(JSON.encode({"a": [1, None, True], "ö": "€"}), data)
        self.assertEqual(JSON.decode(b' {"a" : 1.5}\n'), {"a": 1.5})

    def test_names(self) -> None:
        """Each has its name, for people."""
        self.assertEqual(
            [each.name for each in (BYTES, STRING, INTEGER, LONG, JSON)],
            ["bytes", "string", "integer", "long", "json"],
        )


class ErrorTests(SynchronousTestCase):
    """What is refused, and how."""

    def test_encode(self) -> None:
        """A value of another kind is named."""
        loop: list[Any] = []
        loop.append(loop)
        for serde, value, text in (
            (BYTES, "a", "str where bytes are expected"),
            (BYTES, bytearray(b"a"), "bytearray where bytes are expected"),
            (STRING, 1, "1 is no text in UTF-8"),
            (STRING, b"a", "b'a' is no text in UTF-8"),
            (STRING, "\ud800", r"'\ud800' is no text in UTF-8"),
            (INTEGER, 2**31, "2147483648 is no integer of 32 bits"),
            (INTEGER, "1", "'1' is no integer of 32 bits"),
            (INTEGER, 1.0, "1.0 is no integer of 32 bits"),
            (INTEGER, None, "None is no integer of 32 bits"),
            (LONG, -(2**63) - 1, "-9223372036854775809 is no long of 64 bits"),
            (JSON, {1, 2}, "no JSON: "),
            (JSON, float("nan"), "no JSON: "),
            (JSON, {1: 1, "a": 1}, "no JSON: "),
            (JSON, "\ud800", "no JSON: "),
            (JSON, loop, "no JSON: "),
            (JSON, 10**10_000, "no JSON: "),
        ):
            with self.assertRaises(EncodingError) as caught:
                serde.encode(value)
            self.assertIn(text, str(caught.exception))

    def test_aLongValueIsCut(self) -> None:
        """The error of a large value is short."""
        with self.assertRaises(EncodingError) as caught:
            INTEGER.encode("x" * 10_000)
        self.assertLess(len(str(caught.exception)), 200)

    def test_decode(self) -> None:
        """Bytes of another kind are named."""
        for serde, data, text in (
            (STRING, b"a\xff", "no text in UTF-8: "),
            (STRING, b"\xed\xa0\x80", "no text in UTF-8: "),
            (INTEGER, b"\0" * 3, "3 bytes where integer has 4"),
            (INTEGER, b"\0" * 8, "8 bytes where integer has 4"),
            (INTEGER, b"", "0 bytes where integer has 4"),
            (LONG, b"\0" * 4, "4 bytes where long has 8"),
            (JSON, b"", "no JSON: "),
            (JSON, b"{", "no JSON: "),
            (JSON, b"\xff", "no JSON: "),
            (JSON, b"[" * 100_000, "no JSON: "),
            (JSON, b"9" * 10_000, "no JSON: "),
            (JSON, b"NaN", "no JSON: "),
            (JSON, b"-Infinity", "no JSON: "),
            (JSON, b'"\xed\xa0\x80"', "no JSON: "),
            (JSON, "1".encode("utf-16"), "no JSON: "),
        ):
            with self.assertRaises(InvalidPayloadError) as caught:
                serde.decode(data)
            self.assertIn(text, str(caught.exception))

    @given(st.binary(max_size=40))
    def test_anyBytes(self, data: bytes) -> None:
        """Any bytes are a value, or refused; nothing else happens."""
        for serde in (STRING, INTEGER, LONG, JSON):
            try:
                value = serde.decode(data)
            except InvalidPayloadError:
                continue
            self.assertEqual(serde.decode(serde.encode(value)), value)
