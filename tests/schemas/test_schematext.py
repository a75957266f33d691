"""
Tests for L{pylogbroker.schemas.schematext}.
"""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidSchemaError
from pylogbroker.schemas.schematext import (
    NESTING_MAX,
    canonicalText,
    fingerprint,
    withoutLogicalType,
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "items", "values", "fields", "default", "x")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


class CanonicalTests(SynchronousTestCase):
    """The text that is kept."""

    def test_same(self) -> None:
        """
        White space, the order of keys and a type that stands alone make no difference; a default, a
        name and the order of fields do.
        """
        one = (
            '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "int"},'
            ' "default": 1}, {"name": "y", "type": "string"}]}'
        )
        same = (
            '{"name":"A","type":"record",\n"fields":[{"type":"int","name":"x","default":1},'
            '{"name":"y","type":{"type":"string"}}]}'
        )
        self.assertEqual(fingerprint(canonicalText(one)), fingerprint(canonicalText(same)))
        for old, new in (('"default": 1', '"default": 2'), ('"A"', '"B"'), ('"x"', '"z"')):
            self.assertNotEqual(
                fingerprint(canonicalText(one)), fingerprint(canonicalText(one.replace(old, new)))
            )

    def test_order(self) -> None:
        """Keys stay in the order in which they came."""
        self.assertEqual(
            canonicalText('{"type": "fixed", "size": 3, "name": "F"}'),
            '{"type":"fixed","size":3,"name":"F"}',
        )

    def test_onlySchemas(self) -> None:
        """What only looks like a schema, a default, is left as it is."""
        text = (
            '{"type":"record","name":"A","fields":[{"name":"x",'
            '"type":{"type":"map","values":"string"},"default":{"type":"int"}}]}'
        )
        self.assertEqual(canonicalText(text), text)

    def test_bare(self) -> None:
        """A primitive's name is taken with and without quotation marks."""
        self.assertEqual(
            [canonicalText(text) for text in ('"string"', " string ", '{"type":"string"}')],
            ['"string"'] * 3,
        )

    @given(_JSON)
    def test_twice(self, value: object) -> None:
        """The canonical text of a canonical text is that text."""
        text = json.dumps(value)
        try:
            canonical = canonicalText(text)
        except InvalidSchemaError:
            return
        self.assertEqual(canonicalText(canonical), canonical)

    def test_refused(self) -> None:
        """What is large, deep, or no JSON is refused, and says why."""
        for text, why in (
            ("x" * 100, "100 characters"),
            ('"' + "ü" * 40 + '"', "82 bytes"),
            ("[" * 40 + "]" * 39, "not JSON"),
            ('["\\ud800"]', "not JSON"),
            ('{"a":1e999}', "not JSON"),
        ):
            self.assertIn(
                why, str(self.assertRaises(InvalidSchemaError, canonicalText, text, 80)), text
            )
        self.assertIn(
            "deep",
            str(
                self.assertRaises(
                    InvalidSchemaError,
                    canonicalText,
                    "[" * (NESTING_MAX + 1) + "]" * (NESTING_MAX + 1),
                )
            ),
        )
        self.assertIn(
            "too deeply", str(self.assertRaises(InvalidSchemaError, canonicalText, "[" * 100_000))
        )


class LogicalTypeTests(SynchronousTestCase):
    """Schemas for somebody who does not know a logical type."""

    def test_without(self) -> None:
        """It is gone wherever a schema stands, and nothing else is."""
        uuid, date = (
            {"type": "string", "logicalType": "uuid"},
            {"type": "int", "logicalType": "date"},
        )
        fields: list[dict[str, object]] = [
            {"name": "x", "type": ["null", uuid]},
            {"name": "y", "type": {"type": "map", "values": date}, "default": uuid},
        ]
        schema = {"type": "array", "items": {"type": "record", "name": "A", "fields": fields}}
        found = json.loads(withoutLogicalType(json.dumps(schema), "uuid"))
        fields[0]["type"] = ["null", {"type": "string"}]
        self.assertEqual(found, schema)

    def test_refused(self) -> None:
        """What is not JSON is refused as it is elsewhere."""
        self.assertRaises(InvalidSchemaError, withoutLogicalType, "{", "uuid")
