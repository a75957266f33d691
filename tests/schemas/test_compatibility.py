"""
Tests for L{pylogbroker.schemas.compatibility}.
"""

from __future__ import annotations

import json
from unittest.mock import patch

from avro.compatibility import ReaderWriterCompatibilityChecker
from fastavro import parse_schema
from fastavro.utils import generate_many
from hypothesis import HealthCheck, given, settings
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidSchemaError
from pylogbroker.schemas import compatibility
from pylogbroker.schemas.avro import AvroDecoder, AvroEncoder
from pylogbroker.schemas.compatibility import (
    COMPARED_SIZE_MAX,
    PROBLEM_COUNT_MAX,
    PROBLEM_SIZE_MAX,
    _Checker,
    incompatibilities,
)
from pylogbroker.schemas.logicaltypes import ParsedSchema
from pylogbroker.schemas.logrecords import LEVELS
from pylogbroker.schemas.schemaparser import PARSED_SIZE_MAX, isParsed, parseSchema
from pylogbroker.schemas.schematext import TEXT_SIZE_MAX
from tests.schemas.schematexts import LIST, field, record, records

X = record("A", field("x", "int"))
XY = record("A", field("x", "int"), field("y", "int"))
XY_DEFAULT = record("A", field("x", "int"), field("y", "int", default=0))
Y = record("A", field("y", "int"))


class LevelTests(SynchronousTestCase):
    """The rules, with schemas that tell them apart."""

    def allowed(self, new: str, *earlier: str) -> set[str]:
        return {
            level
            for level in LEVELS
            if not incompatibilities(new, list(enumerate(earlier, 1)), level)
        }

    def test_rules(self) -> None:
        """Which rules let which schema follow which."""
        backward, forward, full = (
            {kind, f"{kind}_TRANSITIVE"} for kind in ("BACKWARD", "FORWARD", "FULL")
        )
        everything = set(LEVELS)
        self.assertEqual(self.allowed(X), everything)
        self.assertEqual(self.allowed(X, X), everything)
        self.assertEqual(self.allowed(XY_DEFAULT, X), everything)
        self.assertEqual(self.allowed(XY, X), {"NONE", *forward})
        self.assertEqual(self.allowed(X, XY), {"NONE", *backward})
        self.assertEqual(self.allowed(Y, X), {"NONE"})
        self.assertEqual(self.allowed(XY, X, XY_DEFAULT), {"NONE", "BACKWARD", "FULL", *forward})
        self.assertEqual(self.allowed(X, Y, XY_DEFAULT), {"NONE", "BACKWARD", "FORWARD", "FULL"})
        self.assertEqual(full, {"FULL", "FULL_TRANSITIVE"})

    def test_says(self) -> None:
        """What speaks against it is told: the version, the direction, the kind and the place."""
        [text] = incompatibilities(XY, [(7, X)], "FULL")
        self.assertEqual(
            text,
            "the new schema cannot read what version 7 has written:"
            " reader_field_missing_default_value at /fields/1: y",
        )
        [text] = incompatibilities(X, [(7, XY)], "FORWARD")
        self.assertIn("version 7 cannot read what the new schema writes", text)

    def test_kinds(self) -> None:
        """Promotions, unions, enums, names and aliases, as Avro has them."""
        for reader, writer, isGood in (
            ("long", "int", True),
            ("int", "long", False),
            ("double", "float", True),
            ("bytes", "string", True),
            ("string", "bytes", True),
            (["null", "string"], "string", True),
            ("string", ["null", "string"], False),
            (["null", "string"], ["string"], True),
            (["null"], ["null", "int"], False),
            (
                {"type": "enum", "name": "E", "symbols": ["a", "b"]},
                {"type": "enum", "name": "E", "symbols": ["a"]},
                True,
            ),
            (
                {"type": "enum", "name": "E", "symbols": ["a"]},
                {"type": "enum", "name": "E", "symbols": ["a", "b"]},
                False,
            ),
            (
                {"type": "enum", "name": "E", "symbols": ["a"], "default": "a"},
                {"type": "enum", "name": "E", "symbols": ["a", "b"]},
                True,
            ),
            (
                {"type": "fixed", "name": "F", "size": 1},
                {"type": "fixed", "name": "F", "size": 2},
                False,
            ),
            (
                {"type": "fixed", "name": "F", "size": 1},
                {"type": "fixed", "name": "G", "size": 1},
                False,
            ),
            (
                {"type": "fixed", "name": "n.F", "size": 1, "aliases": ["G"]},
                {"type": "fixed", "name": "n.G", "size": 1},
                True,
            ),
            ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
            ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, False),
            ({"type": "long", "logicalType": "timestamp-millis"}, "long", True),
            (json.loads(LIST), json.loads(LIST), True),
        ):
            self.assertEqual(
                not incompatibilities(json.dumps(reader), [(1, json.dumps(writer))], "BACKWARD"),
                isGood,
                (reader, writer),
            )

    def test_tooComplicated(self) -> None:
        """Unions of thousands of branches are not compared for minutes, but refused."""
        unions = [
            json.dumps(
                [
                    {"type": "fixed", "name": f"{letter}{number}", "size": 1}
                    for number in range(1_000)
                ]
            )
            for letter in "ab"
        ]
        self.assertIn(
            "too complicated",
            str(
                self.assertRaises(
                    InvalidSchemaError, incompatibilities, unions[0], [(1, unions[1])], "BACKWARD"
                )
            ),
        )

    def test_versions(self) -> None:
        """
        Each version that does not fit is told, the latest first, whichever is still kept; versions
        with the same text are one, the latest.
        """
        texts = [record("A", field(f"v{number}", "int")) for number in range(4)]
        earlier = list(enumerate([texts[0], texts[1], texts[2], texts[0]], 1))
        parseSchema(texts[1])
        found = incompatibilities(texts[3], earlier, "BACKWARD_TRANSITIVE")
        self.assertEqual([text.partition("version ")[2][0] for text in found], ["4", "3", "2"])
        self.assertEqual(len(incompatibilities(texts[3], earlier, "FULL_TRANSITIVE")), 6)

    def test_manyVersions(self) -> None:
        """
        A thousand versions are parsed once: the next question about them finds them as they are
        kept.
        """
        earlier = [
            (number, record("A", field("x", "int"), doc=f"version {number}"))
            for number in range(1, 1_001)
        ]
        self.assertEqual(incompatibilities(XY_DEFAULT, earlier, "FULL_TRANSITIVE"), [])
        self.assertTrue(all(isParsed(text) for _version, text in earlier))
        self.assertEqual(incompatibilities(XY_DEFAULT, earlier[:-1], "FULL_TRANSITIVE"), [])

    def test_keptFirst(self) -> None:
        """
        Of more than can be kept, those that are kept are looked at before the others can drive them
        out.
        """
        size = PARSED_SIZE_MAX // 20
        earlier = [
            (number, record("A", field("x", "int"), doc=f"{number}".ljust(size, ".")))
            for number in range(1, 31)
        ]
        asked: list[bool] = []

        def parse(text: str) -> ParsedSchema:
            asked.append(isParsed(text))
            return parseSchema(text)

        for _question in range(2):
            with patch.object(compatibility, "parseSchema", parse):
                self.assertEqual(incompatibilities(X, earlier, "BACKWARD_TRANSITIVE"), [])
        second = asked[len(asked) // 2 + 1 :]
        self.assertEqual(
            (len(second), second.count(True), second), (30, 19, [True] * 19 + [False] * 11)
        )

    def test_tooLarge(self) -> None:
        """What is too large to be compared in seconds is refused before it is looked at."""
        earlier = [
            (number, str(number).ljust(TEXT_SIZE_MAX, " "))
            for number in range(COMPARED_SIZE_MAX // TEXT_SIZE_MAX + 1)
        ]
        self.assertIn(
            "too large",
            str(
                self.assertRaises(
                    InvalidSchemaError, incompatibilities, X, earlier, "BACKWARD_TRANSITIVE"
                )
            ),
        )
        self.assertEqual(incompatibilities(X, earlier, "NONE_TRANSITIVE"), [])

    def test_unusableVersion(self) -> None:
        """A version that would not be taken today is named, and what to do about it."""
        error = self.assertRaises(
            InvalidSchemaError,
            incompatibilities,
            X,
            [(1, X), (2, '{"type":"array","items":"null"}')],
            "BACKWARD",
        )
        self.assertRegex(
            str(error), "version 2 cannot be used any more.* until it is deleted: .* take no bytes"
        )

    def test_saysLittle(self) -> None:
        """Of thousands of problems in many versions some are told, and no more is looked at."""
        wide = record("A", *(field(f"f{number}", "int") for number in range(3_000)))
        earlier = [(number, record("A", doc=str(number))) for number in range(1, 41)]
        found = incompatibilities(wide, earlier, "BACKWARD_TRANSITIVE")
        self.assertEqual(
            (len(found), {len(text) < PROBLEM_SIZE_MAX + 100 for text in found}),
            (PROBLEM_COUNT_MAX, {True}),
        )
        self.assertIn("version 40 has", found[0])

    def test_wide(self) -> None:
        """
        Records of thousands of fields, of which none or all have to be looked for by another name,
        are compared in so many steps.
        """
        reader = record(
            "A", *(field(f"f{number}", "long", aliases=[f"g{number}"]) for number in range(3_000))
        )
        for letter in "fg":
            self.assertEqual(
                incompatibilities(
                    reader,
                    [
                        (
                            1,
                            record(
                                "A", *(field(f"{letter}{number}", "int") for number in range(3_000))
                            ),
                        )
                    ],
                    "BACKWARD",
                ),
                [],
            )

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(records(), records())
    def test_likeTheLibrary(self, new: str, old: str) -> None:
        """
        What is found is what the library finds, which names the top, too, where something else
        fits.
        """
        ours, theirs = (
            checker.get_compatibility(parseSchema(new).tree, parseSchema(old).tree)
            for checker in (_Checker(), ReaderWriterCompatibilityChecker())
        )
        self.assertEqual(
            (ours.compatibility, ours.messages), (theirs.compatibility, theirs.messages)
        )
        self.assertEqual(ours.locations - {"/"}, theirs.locations - {"/"})

    def test_unknownToTheLibrary(self) -> None:
        """A kind of schema that the library cannot compare is told as such."""
        text = '{"type":"error","name":"A","fields":[]}'
        self.assertIn(
            "cannot be compared",
            str(
                self.assertRaises(
                    InvalidSchemaError, incompatibilities, text, [(1, text)], "BACKWARD"
                )
            ),
        )


class MeaningTests(SynchronousTestCase):
    """What the rules promise."""

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(records(), records())
    def test_backwardReads(self, new: str, old: str) -> None:
        """
        If a schema may follow another by BACKWARD, our decoder reads with it whatever was written
        by the other.
        """
        if incompatibilities(new, [(1, old)], "BACKWARD"):
            return
        encoder, decoder = AvroEncoder(1, old), AvroDecoder(new)
        decoder.cache(1, decoder.prepare(old))
        for value in generate_many(parse_schema(json.loads(old)), 3):
            decoder.decode(encoder.encode(value))
