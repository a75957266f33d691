"""Tests for L{pylogbroker.tasks.avroserde}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    EncodingError,
    InvalidPayloadError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from pylogbroker.tasks.avroserde import AvroSerde
from tests.schemas.schematexts import field, record

CLICK = record("Click", field("user", "string"), field("count", "long"))
OLD_CLICK = record("Click", field("user", "string"))
NEW_CLICK = record("Click", field("user", "string"), field("count", "long", default=7))


class AvroSerdeTests(SynchronousTestCase):
    """Values of a schema."""

    def test_roundTrip(self) -> None:
        """The frame is a schema registry's: byte 0, the id in four bytes; then Avro's encoding."""
        serde = AvroSerde(258, CLICK)
        data = serde.encode({"user": "ab", "count": -2})
        self.assertEqual(data, b"\0\0\0\1\2\x04ab\x03")
        self.assertEqual(serde.decode(data), {"user": "ab", "count": -2})
        self.assertEqual(serde.name, "avro")

    def test_anotherSchemasValues(self) -> None:
        """What another schema has written is found by its id, and read as this one says."""
        asked: list[int] = []

        def find(number: int) -> str:
            asked.append(number)
            return OLD_CLICK

        serde = AvroSerde(2, NEW_CLICK, find)
        data = AvroSerde(1, OLD_CLICK).encode({"user": "u"})
        self.assertEqual(serde.decode(data), {"user": "u", "count": 7})
        self.assertEqual(serde.decode(serde.encode({"user": "v", "count": 1}))["count"], 1)
        self.assertEqual(asked, [1])

    def test_refused(self) -> None:
        """Each thing that cannot be done has its error."""
        serde = AvroSerde(1, CLICK)
        with self.assertRaises(EncodingError):
            serde.encode({"user": 3, "count": 1})
        with self.assertRaises(InvalidPayloadError):
            serde.decode(b"no frame")
        with self.assertRaises(InvalidSchemaError):
            AvroSerde(1, '{"type": "nothing"}')
        with self.assertRaises(SchemaNotFoundError) as caught:
            serde.decode(AvroSerde(9, OLD_CLICK).encode({"user": "u"}))
        self.assertIn("schema 9 is not known, only 1 is", str(caught.exception))
