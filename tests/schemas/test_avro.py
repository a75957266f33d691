"""
Tests for L{pylogbroker.schemas.avro}.
"""

from __future__ import annotations

import json
from typing import Any

from fastavro import parse_schema
from fastavro.utils import generate_one
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    EncodingError,
    IncompatibleReaderSchemaError,
    InvalidPayloadError,
    InvalidSchemaError,
    SchemaError,
    SchemaNotFoundError,
)
from pylogbroker.schemas.avro import (
    HEADER_SIZE,
    ID_MAX,
    AvroDecoder,
    AvroEncoder,
    frame,
    schemaIdOf,
)
from pylogbroker.schemas.schemaparser import PARSED_SIZE_MAX
from tests.schemas.schematexts import LIST, field, kinds, record

CLICK = record(
    "Click",
    field("user", "string"),
    field("count", "long"),
    field("page", ["null", "string"], default=None),
)


class RoundTripTests(SynchronousTestCase):
    """Values to payloads and back."""

    def test_golden(self) -> None:
        """The bytes are those that registry clients write: frame, then Avro's binary encoding."""
        self.assertEqual(
            AvroEncoder(258, CLICK).encode({"user": "ab", "count": -2, "page": None}),
            b"\0\0\0\1\2\x04ab\x03\x00",
        )

    def test_readersSchema(self) -> None:
        """
        Values come as the reader's schema wants them, whoever wrote them; without one, as they were
        written.
        """
        payload = AvroEncoder(1, CLICK)({"user": "u", "count": 3})
        wanted = record("Click", field("count", "double"), field("host", "string", default="none"))
        written = {"user": "u", "count": 3, "page": None}
        for schema, value in (
            (None, written),
            (wanted, {"count": 3.0, "host": "none"}),
            (CLICK, written),
        ):
            decoder = AvroDecoder(schema, find={1: CLICK}.__getitem__)
            self.assertEqual(decoder(payload), value)

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(kinds())
    def test_roundTrip(self, kind: Any) -> None:
        """
        A schema's values come back as they were; cut somewhere, they are broken or values, and
        nothing else happens.
        """
        text = json.dumps(kind)
        encoder, decoder = AvroEncoder(1, text), AvroDecoder(find=lambda schemaId: text)
        value = generate_one(parse_schema(kind))
        payload = encoder.encode(value)
        self.assertEqual(encoder.encode(decoder.decode(payload)), payload)
        for size in range(0, len(payload), max(1, len(payload) // 20)):
            try:
                decoder.decode(payload[:size])
            except SchemaError:
                pass

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(kinds(), st.binary(max_size=40))
    def test_anyBytes(self, kind: Any, body: bytes) -> None:
        """Any bytes are a value or broken: nothing but our own errors comes out."""
        decoder = AvroDecoder(find=lambda schemaId: json.dumps(kind))
        try:
            decoder.decode(frame(1, body))
        except SchemaError:
            pass


class RefusalTests(SynchronousTestCase):
    """What is not read, and not written."""

    def test_values(self) -> None:
        """A value that is not of the schema is an L{EncodingError} that says what is wrong."""
        encoder = AvroEncoder(9, CLICK)
        for value in ({"user": 5, "count": 1}, {"count": 1}, None, {"user": "u", "count": "many"}):
            self.assertIn("schema 9", str(self.assertRaises(EncodingError, encoder.encode, value)))

    def test_broken(self) -> None:
        """
        A body that ends too early, or too late, or is no such body, is told apart from a schema
        that nobody knows.
        """
        decoder = AvroDecoder(find={1: CLICK}.__getitem__)
        payload = AvroEncoder(1, CLICK).encode({"user": "u", "count": 3})
        for wrong, text in (
            (payload + b"x", "1 bytes too many"),
            (payload[:-1], "a body that does not fit schema 1"),
            (frame(1, b"\x02\xff\0\0"), "schema 1"),
            (b"{}", "too few"),
        ):
            self.assertIn(text, str(self.assertRaises(InvalidPayloadError, decoder.decode, wrong)))
        self.assertIn(
            "has not been looked up",
            str(self.assertRaises(SchemaNotFoundError, AvroDecoder().decode, frame(77, b""))),
        )

    def test_incompatible(self) -> None:
        """What the reader's schema cannot read is told as that."""
        decoder = AvroDecoder(record("Click", field("host", "string")), find={1: CLICK}.__getitem__)
        payload = AvroEncoder(1, CLICK).encode({"user": "u", "count": 3})
        self.assertIn(
            "schema 1",
            str(self.assertRaises(IncompatibleReaderSchemaError, decoder.decode, payload)),
        )

    def test_unusable(self) -> None:
        """A schema that cannot be used is told when it is met."""
        decoder = AvroDecoder(find=lambda schemaId: '{"type":"array","items":"null"}')
        self.assertRaises(
            InvalidSchemaError, decoder.decode, frame(1, b"\x80\x80\x80\x80\x80\x80\x80\x80\x7f")
        )
        self.assertRaises(InvalidSchemaError, AvroDecoder, "nothing")
        self.assertRaises(InvalidSchemaError, AvroEncoder, 1, "nothing")

    def test_deep(self) -> None:
        """
        A payload that is nested a million deep, which a few bytes each can say, is broken; it does
        not end the process. Nor does such a value.
        """
        decoder = AvroDecoder(find=lambda schemaId: LIST)
        for depth in (5_000, 1_000_000):
            self.assertIn(
                "recursion",
                str(
                    self.assertRaises(
                        InvalidPayloadError, decoder.decode, frame(1, b"\x02" * depth + b"\0")
                    )
                ),
            )
        value: dict[str, Any] = {"next": None}
        self.assertEqual(
            decoder.decode(AvroEncoder(1, LIST).encode({"next": value})), {"next": value}
        )
        for _ in range(5_000):
            value = {"next": value}
        self.assertRaises(EncodingError, AvroEncoder(1, LIST).encode, value)

    def test_largeNumbers(self) -> None:
        """Sizes that the payload does not have are broken, at once and without memory for them."""
        decoder = AvroDecoder(find=lambda schemaId: '{"type":"array","items":"bytes"}')
        self.assertRaises(
            InvalidPayloadError,
            decoder.decode,
            frame(1, b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"abc"),
        )
        self.assertRaises(
            InvalidPayloadError, decoder.decode, frame(1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")
        )


class KnowingTests(SynchronousTestCase):
    """Schemas that a decoder has learnt."""

    def test_limit(self) -> None:
        """Above the limit, the one that was not used for longest is asked for again."""
        asked: list[int] = []

        def find(schemaId: int) -> str:
            asked.append(schemaId)
            return '"int"'

        decoder = AvroDecoder(find=find, schemaCountMax=2)
        for schemaId in (1, 2, 1, 3, 1, 2):
            self.assertEqual(decoder.decode(frame(schemaId, b"\x02")), 1)
        self.assertEqual(asked, [1, 2, 3, 2])
        self.assertTrue(decoder.isCached(2) and not decoder.isCached(3))

    def test_unusable(self) -> None:
        """
        A schema that cannot be used is asked for and looked at once, within the limit, and told
        each time.
        """
        asked: list[int] = []

        def find(schemaId: int) -> str:
            asked.append(schemaId)
            return "{"

        decoder = AvroDecoder(find=find, schemaCountMax=2)
        texts = {
            str(self.assertRaises(InvalidSchemaError, decoder.decode, frame(schemaId, b"")))
            for schemaId in (1, 2, 1, 3, 1, 2)
        }
        self.assertEqual((asked, len(texts)), ([1, 2, 3, 2], 1))
        error = self.assertRaises(InvalidSchemaError, decoder.decode, frame(2, b"\x02"))
        self.assertIn(str(error), texts)
        self.assertEqual((asked, decoder.isCached(2)), ([1, 2, 3, 2], True))

    def test_looking(self) -> None:
        """
        What was found out about a schema elsewhere is taken as if it had been found here: it can be
        used, or not, and why.
        """
        decoder = AvroDecoder(schemaCountMax=2)
        self.assertFalse(decoder.isCached(1) or decoder.isCached(2))
        looks = decoder.prepare('"int"'), decoder.prepare("{")
        self.assertFalse(decoder.isCached(1))
        for schemaId, look in enumerate(looks, 1):
            decoder.cache(schemaId, look)
        self.assertEqual(
            [
                (decoder.isCached(schemaId), look.read is None)
                for schemaId, look in enumerate(looks, 1)
            ],
            [(True, False), (True, True)],
        )
        self.assertEqual(decoder.decode(frame(1, b"\x02")), 1)
        self.assertEqual(
            str(self.assertRaises(InvalidSchemaError, decoder.decode, frame(2, b""))),
            looks[1].reason,
        )

    def test_sizes(self) -> None:
        """Large schemas are forgotten sooner: they do not fill the memory."""
        decoder = AvroDecoder(find=lambda schemaId: record("A", doc="x" * (PARSED_SIZE_MAX // 20)))
        for schemaId in range(25):
            decoder.decode(frame(schemaId, b""))
        self.assertEqual(
            [decoder.isCached(schemaId) for schemaId in (0, 4, 10, 24)], [False, False, True, True]
        )

    def test_unknown(self) -> None:
        """A schema that nobody has is asked for again: somebody may have it later."""
        found: dict[int, str] = {}

        def find(schemaId: int) -> str:
            if schemaId not in found:
                raise SchemaNotFoundError("not yet")
            return found[schemaId]

        decoder = AvroDecoder(find=find)
        self.assertRaises(SchemaNotFoundError, decoder.decode, frame(1, b"\x02"))
        found[1] = '"int"'
        self.assertEqual(decoder.decode(frame(1, b"\x02")), 1)


class FramingTests(SynchronousTestCase):
    """Magic byte and id."""

    def test_bytes(self) -> None:
        """The bytes are those that registry clients write: 0, four bytes big-endian, the body."""
        self.assertEqual(frame(0x01020304, b"body"), b"\0\1\2\3\4body")

    @given(st.integers(0, ID_MAX), st.binary(max_size=50))
    def test_roundTrip(self, schemaId: int, body: bytes) -> None:
        """
        What is framed can be told apart again; cut anywhere in its first five bytes, it is refused.
        """
        payload = frame(schemaId, body)
        self.assertEqual((schemaIdOf(payload), payload[HEADER_SIZE:]), (schemaId, body))
        for size in range(HEADER_SIZE):
            self.assertRaises(InvalidPayloadError, schemaIdOf, payload[:size])

    def test_refused(self) -> None:
        """Another magic byte, an id that none can have, and too little are told apart."""
        for payload, text in (
            (b"\1\0\0\0\1", "magic byte 0"),
            (b"\0\x80\0\0\0", "is not a schema id"),
            (b"", "too few"),
        ):
            self.assertIn(text, str(self.assertRaises(InvalidPayloadError, schemaIdOf, payload)))
        for schemaId in (-1, ID_MAX + 1):
            self.assertRaises(ValueError, frame, schemaId, b"")
