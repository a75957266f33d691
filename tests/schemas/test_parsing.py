"""
Tests for L{pylogbroker.schemas.parsing}.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidSchemaError
from pylogbroker.schemas.parsing import DEPTH_MAX, PARSED_SIZE_MAX, parseSchema
from tests.schemas.schematexts import LIST, field, record


class ParseTests(SynchronousTestCase):
    """What is a schema, and can be used."""

    def refused(self, text: str) -> str:
        return str(self.assertRaises(InvalidSchemaError, parseSchema, text))

    def test_taken(self) -> None:
        """All kinds of schemas, with logical types that are known and that are not."""
        for text in (
            '"null"',
            '["null","int"]',
            '{"type":"long","logicalType":"timestamp-micros"}',
            '{"type":"long","logicalType":"lunar"}',
            '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}',
            '{"type":"enum","name":"E","symbols":["a"],"default":"a"}',
            '{"type":"map","values":"null"}',
            record("a.b.C", field("x", {"type": "array", "items": "C"}), field("y", {"type": "fixed", "name": "F", "size": 3}), field("z", "F")),
        ):
            self.assertFalse(parseSchema(text).isRecursive and "C" not in text, text)

    def test_refused(self) -> None:
        """What either library does not take is refused: wrong names, types, defaults, symbols, branches."""
        for text in (
            '"nothing"', "{}", "5", '{"type":"array"}', '["null","null"]', '[["null"]]',
            '{"type":"enum","name":"E","symbols":["a","a"]}', '{"type":"fixed","name":"F","size":-1}',
            '{"type":"record","name":"A-b","fields":[]}', '{"type":"record","name":"A","fields":5}',
            record("A", field("x", "int"), field("x", "int")), record("A", field("x", "int", default="one")), record("int"),
        ):  # fmt: skip
            self.assertIn("not an Avro schema", self.refused(text), text)

    def test_recursive(self) -> None:
        """A schema whose values can hold others of it is known as such; one that is used twice is not taken for one."""
        self.assertTrue(parseSchema(LIST).isRecursive)
        self.assertFalse(parseSchema(record("A", field("x", {"type": "record", "name": "B", "fields": []}), field("y", "B"))).isRecursive)

    def test_deep(self) -> None:
        """A chain of records, each in a field of the next, is refused above the limit: reading it would take C's stack."""

        def chain(count: int) -> str:
            links = [{"type": "record", "name": f"R{number}", "fields": [field("x", f"R{number - 1}" if number else "int")]} for number in range(count)]
            return record("T", *(field(f"f{number}", link) for number, link in enumerate(links)))

        self.assertFalse(parseSchema(chain(DEPTH_MAX - 2)).isRecursive)
        self.assertIn("nested", self.refused(chain(DEPTH_MAX)))

    def test_itemsWithoutBytes(self) -> None:
        """An array whose items take no bytes is refused: its payload could stand for any number of them."""
        empty = {"type": "record", "name": "E", "fields": [field("n", "null")]}
        for items in ("null", empty, {"type": "record", "name": "F", "fields": [field("e", empty), field("f", "E")]}):
            self.assertIn("take no bytes", self.refused(json.dumps({"type": "array", "items": items})))
        for good in (["null"], {"type": "record", "name": "E", "fields": [field("n", "null"), field("i", "int")]}, {"type": "map", "values": "null"}):
            parseSchema(json.dumps({"type": "array", "items": good}))

    def test_aliases(self) -> None:
        """An alias without a namespace is in that of its schema."""
        tree = parseSchema(record("B", namespace="n", aliases=["A", "other.C"])).tree
        self.assertEqual(tree.props["aliases"], ["n.A", "other.C"])
        self.assertEqual(parseSchema(record("B", aliases=["A"])).tree.props["aliases"], ["A"])

    def test_kept(self) -> None:
        """What was parsed is kept, but large texts drive one another out: strangers cannot fill the memory with them."""
        small, large = record("Kept"), 200 << 10
        texts = [record(f"A{number}", doc="x" * large) for number in range(PARSED_SIZE_MAX // large + 1)]
        kept = parseSchema(small)
        self.assertIs(parseSchema(small), kept)
        first = parseSchema(texts[0])
        self.assertIs(parseSchema(texts[0]), first)
        for text in texts:
            parseSchema(text)
        self.assertIsNot(parseSchema(texts[0]), first)
        self.assertIsNot(parseSchema(small), kept)
