"""
Tests for L{pylogbroker.schemas.schemaparser}.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import avro.schema
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidSchemaError
from pylogbroker.schemas.schemaparser import (
    DEPTH_MAX,
    EMPTY_COUNT_MAX,
    NAME_SIZE_MAX,
    PARSED_SIZE_MAX,
    parseSchema,
)
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
            record(
                "a.b.C",
                field("x", {"type": "array", "items": "C"}),
                field("y", {"type": "fixed", "name": "F", "size": 3}),
                field("z", "F"),
            ),
        ):
            self.assertFalse(parseSchema(text).isRecursive and "C" not in text, text)

    def test_refused(self) -> None:
        """
        What either library does not take is refused: wrong names, types, defaults, symbols,
        branches.
        """
        for text in (
            '"nothing"',
            "{}",
            "5",
            '{"type":"array"}',
            '["null","null"]',
            '[["null"]]',
            '{"type":"enum","name":"E","symbols":["a","a"]}',
            '{"type":"fixed","name":"F","size":-1}',
            '{"type":"record","name":"A-b","fields":[]}',
            '{"type":"record","name":"A","fields":5}',
            record("A", field("x", "int"), field("x", "int")),
            record("A", field("x", "int", default="one")),
            record("int"),
        ):
            self.assertIn("not an Avro schema", self.refused(text), text)

    def test_noWarnings(self) -> None:
        """
        A logical type that nobody knows is no reason to warn, and no filter is set that other
        threads would share.
        """
        filters, seen = warnings.filters, []
        make = avro.schema.make_avsc_object

        def watching(*arguments: Any, **options: Any) -> Any:
            seen.append(warnings.filters is filters)
            return make(*arguments, **options)

        self.patch(avro.schema, "make_avsc_object", watching)
        text = record(
            "Moon",
            field("phase", {"type": "long", "logicalType": "lunar"}),
            field("seen", {"type": "string", "logicalType": "date"}),
            field(
                "size",
                {"type": "fixed", "name": "S", "size": 2, "logicalType": "decimal", "precision": 0},
            ),
        )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            filters = warnings.filters
            parseSchema(text)
        self.assertEqual((warned, set(seen)), ([], {True}))

    def test_recursive(self) -> None:
        """
        A schema whose values can hold others of it is known as such; one that is used twice is not
        taken for one.
        """
        self.assertTrue(parseSchema(LIST).isRecursive)
        self.assertFalse(
            parseSchema(
                record(
                    "A", field("x", {"type": "record", "name": "B", "fields": []}), field("y", "B")
                )
            ).isRecursive
        )

    def test_deep(self) -> None:
        """
        A chain of records, each in a field of the next, is refused above the limit: reading it
        would take C's stack.
        """

        def chain(count: int) -> str:
            links = [
                {
                    "type": "record",
                    "name": f"R{number}",
                    "fields": [field("x", f"R{number - 1}" if number else "int")],
                }
                for number in range(count)
            ]
            return record("T", *(field(f"f{number}", link) for number, link in enumerate(links)))

        self.assertFalse(parseSchema(chain(DEPTH_MAX - 2)).isRecursive)
        self.assertIn("nest 1", self.refused(chain(DEPTH_MAX)))

    def test_itemsWithoutBytes(self) -> None:
        """
        An array whose items take no bytes is refused: its payload could stand for any number of
        them.
        """
        empty = {"type": "record", "name": "E", "fields": [field("n", "null")]}
        for items in (
            "null",
            empty,
            {"type": "record", "name": "F", "fields": [field("e", empty), field("f", "E")]},
        ):
            self.assertIn(
                "take no bytes", self.refused(json.dumps({"type": "array", "items": items}))
            )
        for good in (
            ["null"],
            {"type": "record", "name": "E", "fields": [field("n", "null"), field("i", "int")]},
            {"type": "map", "values": "null"},
        ):
            parseSchema(json.dumps({"type": "array", "items": good}))

    def test_valuesWithoutBytes(self) -> None:
        """
        What holds many values that take no bytes is refused: records, each twice in the next, would
        make a million of them of an empty payload.
        """

        def twice(count: int, innermost: Any) -> str:
            rows = [
                field("f0", {"type": "record", "name": "R0", "fields": [field("a", innermost)]})
            ]
            for number in range(1, count):
                fields = [field(name, f"R{number - 1}") for name in "ab"]
                rows.append(
                    field(f"f{number}", {"type": "record", "name": f"R{number}", "fields": fields})
                )
            return record("R", *rows)

        empties: tuple[Any, ...] = (
            "null",
            {"type": "fixed", "name": "F", "size": 0},
            {"type": "record", "name": "E", "fields": []},
        )
        for innermost in empties:
            parseSchema(twice(2, innermost))
            self.assertIn("take no bytes", self.refused(twice(20, innermost)))
            self.assertIn(
                "take no bytes",
                self.refused(
                    json.dumps({"type": "map", "values": json.loads(twice(20, innermost))})
                ),
            )
        for other in ("int", ["null", "int"], "string"):
            parseSchema(twice(20, other))
        parseSchema(
            record("R", *(field(f"f{number}", "null") for number in range(EMPTY_COUNT_MAX - 1)))
        )
        self.assertIn(
            "take no bytes",
            self.refused(
                record(
                    "R",
                    field("i", "int"),
                    *(field(f"f{number}", "null") for number in range(EMPTY_COUNT_MAX + 1)),
                )
            ),
        )

    def test_names(self) -> None:
        """
        Names that are long are refused, also when a namespace makes them so: each record would have
        it.
        """
        parseSchema(record("R", namespace="n" * (NAME_SIZE_MAX - 2)))
        for text in (
            record("R", namespace="n" * (NAME_SIZE_MAX - 1)),
            record("R" * (NAME_SIZE_MAX + 1)),
        ):
            self.assertIn("1001 characters", self.refused(text))
        inner = {"type": "enum", "name": "E" * 600, "symbols": ["a"]}
        self.assertIn(
            "characters", self.refused(record("R", field("e", inner), namespace="n" * 600))
        )

    def test_aliases(self) -> None:
        """An alias without a namespace is in that of its schema."""
        tree = parseSchema(record("B", namespace="n", aliases=["A", "other.C"])).tree
        self.assertEqual(tree.props["aliases"], ["n.A", "other.C"])
        self.assertEqual(parseSchema(record("B", aliases=["A"])).tree.props["aliases"], ["A"])

    def test_kept(self) -> None:
        """
        What was parsed is kept, but large texts drive one another out: strangers cannot fill the
        memory with them.
        """
        small, large = record("Kept"), 200 << 10
        texts = [
            record(f"A{number}", doc="x" * large) for number in range(PARSED_SIZE_MAX // large + 1)
        ]
        kept = parseSchema(small)
        self.assertIs(parseSchema(small), kept)
        first = parseSchema(texts[0])
        self.assertIs(parseSchema(texts[0]), first)
        for text in texts:
            parseSchema(text)
        self.assertIsNot(parseSchema(texts[0]), first)
        self.assertIsNot(parseSchema(small), kept)
