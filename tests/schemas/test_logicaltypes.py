"""
Tests for L{pylogbroker.schemas.logicaltypes}, by way of the decoder.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    IncompatibleReaderSchemaError,
    InvalidPayloadError,
    InvalidSchemaError,
)
from pylogbroker.schemas.avro import AvroDecoder, AvroEncoder
from pylogbroker.schemas.logicaltypes import logicalType
from pylogbroker.schemas.schemaparser import parseSchema
from tests.integration.brokerprocess import ROOT
from tests.schemas.schematexts import field, record

ID = uuid.UUID(int=7)
MOMENT = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
DECIMAL = {"precision": 6, "scale": 2}
FIXED = {"name": "F", "size": 4}


def logical(kind: str, name: str, **details: Any) -> dict[str, Any]:
    """A schema with a logical type."""
    return {
        "type": kind,
        "logicalType": name,
        **(FIXED if kind == "fixed" else {}),
        **(DECIMAL if name == "decimal" else {}),
        **details,
    }


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """The same without."""
    return {key: value for key, value in schema.items() if key not in ("logicalType", *DECIMAL)}


KINDS: tuple[tuple[dict[str, Any], Any, Any], ...] = (
    (logical("int", "date"), 3, date(1970, 1, 4)),
    (logical("int", "time-millis"), 5_000, time(0, 0, 5)),
    (logical("long", "time-micros"), 5_000_000, time(0, 0, 5)),
    (logical("long", "timestamp-millis"), 5_000, MOMENT),
    (logical("long", "timestamp-micros"), 5_000_000, MOMENT),
    (logical("long", "local-timestamp-millis"), 5_000, MOMENT.replace(tzinfo=None)),
    (logical("long", "local-timestamp-micros"), 5_000_000, MOMENT.replace(tzinfo=None)),
    (logical("bytes", "decimal"), b"\x04\xd2", Decimal("12.34")),
    (logical("fixed", "decimal"), b"\0\0\x04\xd2", Decimal("12.34")),
    (logical("string", "uuid"), str(ID), ID),
    (logical("long", "timestamp-nanos"), 5_000_000_000, 5_000_000_000),
    (logical("fixed", "duration", size=12), b"abcdefghijkl", b"abcdefghijkl"),
    (logical("long", "lunar"), 9, 9),
)
"""
Schema, what was written without a logical type, and what it stands for. The last three stand for
themselves.
"""


class ReadingCase(SynchronousTestCase):
    """What is read of what was written."""

    def read(self, writer: Any, value: Any, reader: Any) -> Any:
        """
        A value that was written as a record's field, beside some that are not wanted; with the kind
        of the value, since C{1 == 1.0}.
        """
        written = record(
            "R",
            field("a", logical("bytes", "decimal")),
            field("v", writer),
            field("z", logical("long", "timestamp-millis")),
        )
        decoder = AvroDecoder(
            None if reader is None else record("R", field("v", reader)),
            find=lambda schemaId: written,
        )
        found = decoder.decode(AvroEncoder(1, written).encode({"a": b"\x01", "v": value, "z": 2}))[
            "v"
        ]
        return type(found), found

    def refused(self, *arguments: Any) -> str:
        return str(self.assertRaises(IncompatibleReaderSchemaError, self.read, *arguments))

    def assertReads(self, writer: Any, value: Any, reader: Any, expected: Any) -> None:
        self.assertEqual(
            self.read(writer, value, reader), (type(expected), expected), (writer, reader)
        )


class LibraryTests(SynchronousTestCase):
    """What is expected of the library C{fastavro}, whose reader in Python is private."""

    CODE = """
import fastavro.read as library
before = dict(library.LOGICAL_READERS)
import pylogbroker.schemas.logicaltypes
print(library.LOGICAL_READERS == before)
from fastavro import _read_py
print(pylogbroker.schemas.logicaltypes._reader is not _read_py, _read_py.LOGICAL_READERS == before)
"""

    def test_tableOfTheProcess(self) -> None:
        """
        The table of logical types that all users of the library share stays as it is; ours is
        another one.
        """
        ended = subprocess.run(
            [sys.executable, "-c", self.CODE],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((ended.stdout, ended.stderr), ("True\nTrue True\n", ""))

    def test_otherUsers(self) -> None:
        """
        What others put into that table changes nothing of what a reader's schema makes of a value.
        """
        library = fastavro.read.LOGICAL_READERS
        for key in list(library):
            before = library[key]
            self.addCleanup(library.__setitem__, key, before)
            library[key] = lambda *_arguments: self.fail("the process's table was used")
        for schema, value, expected in KINDS:
            wanted = record("R", field("v", ["null", schema]))
            text = record("R", field("v", schema))
            payload = AvroEncoder(1, record("R", field("v", plain(schema)))).encode({"v": value})
            self.assertEqual(
                AvroDecoder(wanted, find=lambda schemaId, text=text: text).decode(payload),  # type: ignore[misc]
                {"v": expected},
            )


class OneOrBothTests(ReadingCase):
    """Of two schemas none, one or both have a logical type."""

    def test_asWritten(self) -> None:
        """
        Without a reader's schema, and where both are the same, a value is what the logical type
        says.
        """
        for schema, value, expected in KINDS:
            self.assertReads(schema, value, None, expected)
            self.assertReads(schema, value, schema, expected)

    def test_writerOnly(self) -> None:
        """A reader that wants numbers and bytes gets these, whatever the writer took them for."""
        for schema, value, _expected in KINDS:
            self.assertReads(schema, value, plain(schema), value)

    def test_readerOnly(self) -> None:
        """A reader that knows better what plain numbers and bytes stand for gets that."""
        for schema, value, expected in KINDS:
            self.assertReads(plain(schema), value, schema, expected)

    def test_unions(self) -> None:
        """So in unions, lists, maps and behind names, on either side."""
        for schema, value, expected in KINDS:
            for writer, reader in ((plain(schema), schema), (schema, schema)):
                self.assertReads(["null", writer], value, ["null", reader], expected)
                self.assertReads(writer, value, ["null", reader], expected)
                self.assertReads(
                    {"type": "array", "items": writer},
                    [value],
                    {"type": "array", "items": reader},
                    [expected],
                )
                self.assertReads(
                    {"type": "map", "values": writer},
                    {"k": value},
                    {"type": "map", "values": reader},
                    {"k": expected},
                )

    def test_promoted(self) -> None:
        """What is promoted is promoted first; then it means what the reader says."""
        self.assertReads(
            "int", 5, logical("long", "timestamp-millis"), datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC)
        )
        self.assertReads("string", "\x04a", logical("bytes", "decimal"), Decimal("11.21"))
        self.assertReads("bytes", str(ID).encode(), logical("string", "uuid"), ID)
        self.assertReads(logical("long", "timestamp-millis"), 5, "double", 5.0)
        self.assertReads(logical("int", "date"), 5, "long", 5)
        self.assertReads(logical("string", "uuid"), str(ID), "bytes", str(ID).encode())

    def test_promotedBeside(self) -> None:
        """So it is where another of the reader's fields has a logical type."""
        wanted = record(
            "R",
            field("i", "double"),
            field("s", "bytes"),
            field("l", "long"),
            field("t", logical("long", "timestamp-millis")),
        )
        written = record(
            "R", field("i", "int"), field("s", "string"), field("l", "long"), field("t", "long")
        )
        decoder = AvroDecoder(wanted, find=lambda schemaId: written)
        found = decoder.decode(
            AvroEncoder(1, written).encode({"i": 1, "s": "x", "l": 2, "t": 5_000})
        )
        self.assertEqual(
            (found, type(found["i"])), ({"i": 1.0, "s": b"x", "l": 2, "t": MOMENT}, float)
        )

    def test_recursive(self) -> None:
        """So in recursive schemas, which another reader reads."""
        texts = [
            record("N", field("at", kind), field("next", ["null", "N"]))
            for kind in ("long", logical("long", "timestamp-millis"))
        ]
        decoder = AvroDecoder(texts[1], find=lambda schemaId: texts[0])
        found = decoder.decode(
            AvroEncoder(1, texts[0]).encode({"at": 5_000, "next": {"at": 0, "next": None}})
        )
        self.assertEqual((found["at"], found["next"]["at"].year), (MOMENT, 1970))

    def test_wrongValues(self) -> None:
        """A number or a text that stands for nothing is a broken payload."""
        for schema, value in (
            (logical("int", "date"), 2**31 - 1),
            (logical("string", "uuid"), "none"),
            (logical("long", "timestamp-micros"), 2**62),
        ):
            for writer in (schema, plain(schema)):
                self.assertRaises(InvalidPayloadError, self.read, writer, value, ["null", schema])


class DifferentTests(ReadingCase):
    """Both have one, and not the same."""

    def test_units(self) -> None:
        """The unit is the writer's, and what it is the reader's: nothing is off by a thousand."""
        for kinds in (("timestamp", "local-timestamp"), ("time",)):
            writers = [
                each
                for each in KINDS
                if each[0]["logicalType"].rpartition("-")[0] in kinds
                and "nanos" not in each[0]["logicalType"]
            ]
            for writer, value, _expected in writers:
                for reader, _value, expected in writers:
                    if (writer["type"], reader["type"]) != ("long", "int"):
                        self.assertReads(writer, value, reader, expected)
        self.assertReads(
            logical("long", "timestamp-micros"),
            1,
            logical("long", "timestamp-millis"),
            datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
        )

    def test_others(self) -> None:
        """A number that stands for one thing is not taken for another: it is refused, and named."""
        for writer, reader in (
            (logical("int", "date"), logical("long", "timestamp-millis")),
            (logical("int", "time-millis"), logical("int", "date")),
            (logical("long", "timestamp-nanos"), logical("long", "timestamp-micros")),
            (logical("long", "timestamp-micros"), logical("long", "timestamp-nanos")),
            (logical("long", "time-micros"), logical("long", "local-timestamp-micros")),
        ):
            self.assertIn(
                f"{writer['logicalType']} is not a {reader['logicalType']}",
                self.refused(writer, 1, reader),
            )
        self.assertIn(
            "big-decimal is not a decimal",
            self.refused(logical("bytes", "big-decimal"), b"\x01", logical("bytes", "decimal")),
        )

    def test_unknown(self) -> None:
        """
        A logical type that Avro does not have, or not of that type, or without what it needs, is as
        none.
        """
        self.assertReads(
            logical("long", "lunar"), 5_000, logical("long", "timestamp-millis"), MOMENT
        )
        self.assertReads(
            logical("long", "timestamp-millis"), 5_000, logical("long", "lunar"), 5_000
        )
        for schema in (
            logical("string", "date"),
            {"type": "bytes", "logicalType": "decimal"},
            {"type": "int", "logicalType": ["date"]},
            {"type": "int"},
        ):
            self.assertEqual(logicalType(schema), "")

    def test_decimals(self) -> None:
        """
        A decimal has as many digits behind the point as the reader wants, if it has room for it;
        nothing is rounded.
        """
        for kind in ("bytes", "fixed"):
            written = logical(kind, "decimal")
            raw = b"\0\0\x04\xd2"
            for precision, scale in ((6, 2), (4, 2), (9, 4), (9, 2)):
                found = self.read(
                    written, raw, logical(kind, "decimal", precision=precision, scale=scale)
                )[1]
                self.assertEqual(
                    (str(found), found), (f"12.34{'0' * (scale - 2)}", Decimal("12.34"))
                )
            for precision, scale in ((6, 1), (3, 2), (6, 5)):
                self.assertIn(
                    "does not fit",
                    self.refused(
                        written, raw, logical(kind, "decimal", precision=precision, scale=scale)
                    ),
                )
            self.assertReads(
                written, b"\0\0\x04\xd8", logical(kind, "decimal", scale=1), Decimal("12.4")
            )
            self.assertReads(
                written, b"\xff\xff\xff\xff", logical(kind, "decimal", scale=2), Decimal("-0.01")
            )

    def test_decimalWithoutRoom(self) -> None:
        """
        A decimal of more digits than its schema says is broken, however long; it is not rounded,
        nor thought about for minutes.
        """
        written = logical("bytes", "decimal")
        for raw in (b"\x0f\x42\x40", b"\x80" + bytes(20), b"\x7f" * 1_000_000):
            self.assertIn(
                "6 digits",
                str(self.assertRaises(InvalidPayloadError, self.read, written, raw, None)),
            )
        self.assertReads(written, bytes(1_000_000) + b"\x04\xd2", None, Decimal("12.34"))
        wide = logical("bytes", "decimal", precision=10**9, scale=10**8)
        for reader in (None, ["null", wide]):
            error = self.assertRaises(
                (InvalidPayloadError, IncompatibleReaderSchemaError),
                self.read,
                written if reader else wide,
                b"\x7f" * 9,
                reader,
            )
            self.assertIn("decimal", str(error))


class DefaultTests(ReadingCase):
    """Fields that were not written."""

    def default(self, kind: Any, given: Any) -> Any:
        decoder = AvroDecoder(
            record("R", field("v", kind, default=given)), find=lambda schemaId: record("R")
        )
        return decoder.decode(AvroEncoder(1, record("R")).encode({}))["v"]

    def test_meaning(self) -> None:
        """
        A default is what it would be if it had been written: a moment, bytes, a decimal; in
        records, lists, maps and unions, too.
        """
        for schema, value, expected in KINDS:
            given = value.decode("latin-1") if isinstance(value, bytes) else value
            self.assertEqual(self.default(schema, given), expected)
            self.assertEqual(self.default([schema, "null"], given), expected)
            self.assertEqual(self.default({"type": "array", "items": schema}, [given]), [expected])
            self.assertEqual(
                self.default({"type": "map", "values": schema}, {"k": given}), {"k": expected}
            )
            inner = {
                "type": "record",
                "name": "I",
                "fields": [field("a", schema, default=given), field("b", "int")],
            }
            self.assertEqual(self.default(inner, {"b": 1}), {"a": expected, "b": 1})
        for kind, given, expected in (
            ("bytes", "\u00ff", b"\xff"),
            ("double", 1, 1.0),
            ("boolean", True, True),
            (["null", "int"], None, None),
            (["null", "int"], 5, 5),
            ({"type": "enum", "name": "E", "symbols": ["a"]}, "a", "a"),
        ):
            found = self.default(kind, given)
            self.assertEqual((found, type(found)), (expected, type(expected)))

    def test_unfit(self) -> None:
        """
        A default that is none of its schema's values is missed by who needs it, and by nobody else.
        """
        far = logical("long", "timestamp-micros")
        numbers = {"type": "array", "items": "int"}
        for kind, given in (
            (far, 2**62),
            (logical("string", "uuid"), "x"),
            (numbers, ["x"]),
            (["null", far], 2**62),
            ("bytes", "\u20ac"),
        ):
            self.assertIn(
                "No default value",
                str(self.assertRaises(IncompatibleReaderSchemaError, self.default, kind, given)),
            )
        text = record("R", field("v", "bytes", default="\u20ac"))
        self.assertEqual(
            AvroDecoder(text, find=lambda schemaId: text).decode(
                AvroEncoder(1, text).encode({"v": b"x"})
            ),
            {"v": b"x"},
        )

    def test_recursive(self) -> None:
        """A recursive default that ends is a value; one that does not is none."""
        text = record(
            "List",
            field("next", ["null", "List"], default=None),
            field("rest", ["List", "null"], default={"rest": None}),
        )
        found = AvroDecoder(text, find=lambda schemaId: record("List")).decode(
            AvroEncoder(1, record("List")).encode({})
        )
        self.assertEqual(found, {"next": None, "rest": {"next": None, "rest": None}})
        endless = record("List", field("rest", "List", default={}))
        decoder = AvroDecoder(endless, find=lambda schemaId: record("List"))
        self.assertRaises(
            IncompatibleReaderSchemaError, decoder.decode, AvroEncoder(1, record("List")).encode({})
        )

    def test_tooMany(self) -> None:
        """Defaults that double with each line of text are refused."""

        def rows(count: int) -> str:
            found: list[dict[str, Any]] = [
                field(
                    "f0",
                    {"type": "record", "name": "R0", "fields": [field("i", "int", default=0)]},
                    default={},
                )
            ]
            for number in range(1, count):
                fields = [field(name, f"R{number - 1}", default={}) for name in "ab"]
                found.append(
                    field(
                        f"f{number}",
                        {"type": "record", "name": f"R{number}", "fields": fields},
                        default={},
                    )
                )
            return record("R", *found)

        parseSchema(rows(6))
        self.assertIn("far more", str(self.assertRaises(InvalidSchemaError, parseSchema, rows(30))))
        many = [{"a": number} for number in range(10_000)]
        inner = {"type": "record", "name": "I", "fields": [field("a", "int")]}
        self.assertEqual(self.default({"type": "array", "items": inner}, many), many)

    def test_encoder(self) -> None:
        """An encoder writes a default for what a value does not have."""
        text = record(
            "R",
            field("b", "bytes", default="\u00ff"),
            field("t", logical("long", "timestamp-millis"), default=5_000),
        )
        payload = AvroEncoder(1, text).encode({})
        self.assertEqual(
            AvroDecoder(find=lambda schemaId: text).decode(payload), {"b": b"\xff", "t": MOMENT}
        )
        self.assertEqual(AvroEncoder(1, text).encode({"b": b"\xff", "t": MOMENT}), payload)
