"""
Tests for L{pylogbroker.spark.avro}, but for what needs a session: that is in
L{tests.integration.test_sparkavro}.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow
from fastavro.read import LOGICAL_READERS
from pyspark.sql import types
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    BrokerConnectionError,
    ConfigurationError,
    InvalidPayloadError,
    InvalidSchemaError,
)
from pylogbroker.schemas.avro import AvroEncoder, frame
from pylogbroker.spark.avro import _decoder, batchDecoder, fromAvro, sparkType
from tests.schemas.schematexts import LIST, field, record
from tests.syncclient.registryend import RegistryEnd

EVERYTHING = record(
    "E",
    field("b", "boolean"),
    field("i", "int"),
    field("l", "long"),
    field("f", "float"),
    field("d", "double"),
    field("y", "bytes"),
    field("s", "string"),
    field("x", {"type": "fixed", "name": "F", "size": 2}),
    field("e", {"type": "enum", "name": "N", "symbols": ["a", "b"]}),
    field("o", ["null", "string"]),
    field("r", {"type": "record", "name": "R", "fields": [field("z", "int")]}),
    field("a", {"type": "array", "items": ["null", "R"]}),
    field("m", {"type": "map", "values": "long"}),
    field("day", {"type": "int", "logicalType": "date"}),
    field("at", {"type": "long", "logicalType": "timestamp-micros"}),
    field("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
)
VALUE: dict[str, Any] = {
    "b": True,
    "i": -1,
    "l": 1 << 40,
    "f": 0.5,
    "d": 0.1,
    "y": b"\0\xff",
    "s": "ü",
    "x": b"ab",
    "e": "b",
    "o": None,
    "r": {"z": 1},
    "a": [None, {"z": 2}],
    "m": {"k": 3},
    "day": date(2026, 11, 21),
    "at": datetime(2026, 11, 21, 12, 0, 0, 5, UTC),
    "price": Decimal("12.34"),
}

AT = datetime(2026, 11, 21, 12, 0, 0, 5_000, UTC)
LOGICAL_VALUES: dict[str, Any] = {
    "long-timestamp-millis": AT,
    "long-timestamp-micros": AT,
    "int-date": AT.date(),
    "bytes-decimal": Decimal("12.34"),
    "fixed-decimal": Decimal("12.34"),
    "long-local-timestamp-millis": AT.replace(tzinfo=None),
    "long-local-timestamp-micros": AT.replace(tzinfo=None),
    "string-uuid": "6f1f8c2e-4a0b-4d5e-9b1a-0123456789ab",
}
"""
What the column has, for what each key of the library's readers stands for; what is not here is
refused.
"""


def logicalSchema(key: str) -> str:
    """A record with a field of a logical type, that may be null."""
    kind, _, logical = key.partition("-")
    details: dict[str, Any] = {"precision": 6, "scale": 2} if logical == "decimal" else {}
    sized: dict[str, Any] = {"name": "F", "size": 4} if kind == "fixed" else {}
    return record(
        "L", field("v", ["null", {"type": kind, "logicalType": logical, **details, **sized}])
    )


class TypeTests(SynchronousTestCase):
    """What values are in Spark."""

    def test_types(self) -> None:
        """Each kind of schema has its type; what may be null is what a union says."""
        kind = sparkType(EVERYTHING)
        self.assertEqual(
            kind.simpleString(),
            "struct<b:boolean,i:int,l:bigint,f:float,d:double,y:binary,s:string,x:binary,e:string,o:string,r:struct<z:int>,a:array<struct<z:int>>,"
            "m:map<string,bigint>,day:date,at:timestamp,price:decimal(6,2)>",
        )
        assert isinstance(kind, types.StructType)
        self.assertEqual([each.name for each in kind.fields if each.nullable], ["o"])

    def test_refused(self) -> None:
        """What Spark has no type for is refused before anything is read."""
        for text, why in (
            (LIST, "recursive"),
            ('["int","string"]', "union of 2 branches"),
            ('["null","int","string"]', "union of 3 branches"),
            ('{"type":"int","logicalType":"time-millis"}', "time-millis"),
            ('{"type":"bytes","logicalType":"decimal","precision":39}', "39 digits"),
            ("nothing", "not an Avro schema"),
        ):
            self.assertIn(why, str(self.assertRaises(InvalidSchemaError, sparkType, text)))

    def test_refusedLogicalTypes(self) -> None:
        """
        Each logical type that the library makes an object of, and whose values no column has, is
        refused before anything is read.
        """
        own = {
            key
            for key, reader in LOGICAL_READERS.items()
            if reader.__module__.startswith("fastavro.")
        }  # other libraries add theirs
        refused = own - set(LOGICAL_VALUES)
        self.assertEqual(refused, {"int-time-millis", "long-time-micros"})
        for key in refused:
            self.assertIn(
                key.partition("-")[2],
                str(self.assertRaises(InvalidSchemaError, sparkType, logicalSchema(key))),
            )

    def test_arguments(self) -> None:
        """A mode that is none, and no schema or two, are told."""
        for arguments in (
            {"mode": "LENIENT", "readerSchema": '"int"'},
            {},
            {"readerSchema": '"int"', "subject": "s"},
        ):
            self.assertRaises(
                ConfigurationError, fromAvro, "value", registry="http://127.0.0.1:1", **arguments
            )


class DecodingTests(SynchronousTestCase):
    """What executors do with a batch."""

    def setUp(self) -> None:
        self.registry = RegistryEnd()
        self.addCleanup(self.registry.close)

    def decode(
        self,
        schema: str,
        payloads: list[bytes | None],
        isStrict: bool = False,
        withErrors: bool = False,
    ) -> list[Any]:
        kind = sparkType(schema)
        if withErrors:
            kind = types.StructType(
                [types.StructField("value", kind), types.StructField("error", types.StringType())]
            )
        found: list[Any] = batchDecoder(self.registry.url, schema, kind, isStrict, withErrors)(
            pyarrow.array(payloads, pyarrow.binary())
        ).to_pylist()
        return found

    def test_everything(self) -> None:
        """Every kind of value arrives; each schema is asked for once."""
        self.registry.schema(5, EVERYTHING)
        payload = AvroEncoder(5, EVERYTHING).encode(VALUE)
        [found, nothing, again] = self.decode(EVERYTHING, [payload, None, payload])
        self.assertEqual({**found, "m": dict(found["m"])}, VALUE)
        self.assertEqual((nothing, again), (None, found))
        self.assertEqual(len(self.registry.asked), 1)

    def test_logicalTypes(self) -> None:
        """Each other logical type that the library makes an object of arrives."""
        for schemaId, (key, value) in enumerate(LOGICAL_VALUES.items(), 1):
            schema = logicalSchema(key)
            self.registry.schema(schemaId, schema)
            payload = AvroEncoder(schemaId, schema).encode({"v": value})
            self.assertEqual(self.decode(schema, [payload], isStrict=True), [{"v": value}], key)

    def test_uuids(self) -> None:
        """
        A UUID is its text, whether the writer, the reader or both call it one; one that is none is
        a text like others.
        """
        plain, named = (
            record("U", field("v", "string")),
            record("U", field("v", {"type": "string", "logicalType": "uuid"})),
        )
        self.registry.schema(5, plain)
        self.registry.schema(6, named)
        text = str(uuid.UUID(int=7))
        payloads: list[bytes | None] = [
            AvroEncoder(schemaId, plain).encode({"v": value})
            for schemaId in (5, 6)
            for value in (text, "none")
        ]
        for wanted in (plain, named):
            self.assertEqual(
                self.decode(wanted, payloads, isStrict=True), [{"v": text}, {"v": "none"}] * 2
            )

    def test_oneOrBoth(self) -> None:
        """
        A logical type is the reader's, and a unit the writer's; where the two have nothing to do
        with each other the value is null, and beside it why.
        """
        plains = {"string-uuid": "string", "int-date": "int", "bytes-decimal": "bytes"}
        named = {
            key: json.dumps(json.loads(logicalSchema(key))["fields"][0]["type"][1])
            for key in LOGICAL_VALUES
        }
        for key, kind in plains.items():
            value = LOGICAL_VALUES[key]
            raw = AvroEncoder(1, named[key]).encode(value)
            for writer, reader in ((f'"{kind}"', named[key]), (named[key], f'"{kind}"')):
                self.registry.schema(1, writer)
                [found] = self.decode(reader, [raw], isStrict=True)
                self.assertEqual(
                    found,
                    value
                    if "logical" in reader or kind == "string"
                    else {"int": 20_778, "bytes": b"\x04\xd2"}[kind],
                    (writer, reader),
                )
                _decoder.cache_clear()
        self.registry.schema(1, '"long"')
        self.registry.schema(2, named["long-timestamp-micros"])
        self.registry.schema(3, named["int-date"])
        payloads: list[bytes | None] = [frame(schemaId, b"\x90\x4e") for schemaId in (1, 2, 3)]
        rows = self.decode(named["long-timestamp-millis"], payloads, withErrors=True)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        self.assertEqual(
            [row["value"] for row in rows],
            [epoch + timedelta(milliseconds=5_000), epoch + timedelta(microseconds=5_000), None],
        )
        self.assertIn(
            "IncompatibleReaderSchemaError: the reader's schema cannot read schema 3: what was"
            " written as date is not a timestamp-millis",
            rows[2]["error"],
        )

    def test_defaults(self) -> None:
        """A field that was not written has its default, in the reader's unit."""
        self.registry.schema(1, record("R"))
        wanted = record(
            "R",
            field("at", {"type": "long", "logicalType": "timestamp-millis"}, default=5_000),
            field("y", "bytes", default="\u00ff"),
        )
        [found] = self.decode(wanted, [AvroEncoder(1, record("R")).encode({})], isStrict=True)
        self.assertEqual(found, {"at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "y": b"\xff"})

    def test_broken(self) -> None:
        """What cannot be read is null, or stands beside why, or stops: as asked."""
        self.registry.schema(5, '"long"')
        self.registry.answers["GET", "/schemas/ids/6"] = (
            404,
            {"error_code": 40403, "message": "Schema 6 not found"},
        )
        payloads = [frame(5, b"\x04"), b"{}", frame(6, b""), frame(5, b""), None]
        self.assertEqual(self.decode('"long"', payloads), [2, None, None, None, None])
        rows = self.decode('"long"', payloads, withErrors=True)
        self.assertEqual([row["value"] for row in rows], [2, None, None, None, None])
        self.assertEqual(
            [(row["error"] or "").partition(":")[0] for row in rows],
            ["", "InvalidPayloadError", "SchemaNotFoundError", "InvalidPayloadError", ""],
        )
        self.assertRaises(InvalidPayloadError, self.decode, '"long"', payloads, True)

    def test_unknownOnce(self) -> None:
        """
        A schema that the registry does not have is asked for once a batch, since it may have it
        later; one that cannot be used never again.
        """
        self.registry.schema(5, '"long"')
        self.registry.schema(7, "{")
        self.registry.answers["GET", "/schemas/ids/6"] = (
            404,
            {"error_code": 40403, "message": "Schema 6 not found"},
        )
        payloads: list[bytes | None] = [
            frame(6, b"\x02"),
            frame(5, b"\x04"),
            frame(7, b""),
            b"{}",
        ] * 50
        rows = self.decode('"long"', payloads, withErrors=True)
        self.assertEqual([row["value"] for row in rows], [None, 2, None, None] * 50)
        kinds = ["SchemaNotFoundError", "", "InvalidSchemaError", "InvalidPayloadError"]
        self.assertEqual([(row["error"] or "").partition(":")[0] for row in rows], kinds * 50)
        self.assertEqual(
            [path for _method, path, _body in self.registry.asked],
            [f"/schemas/ids/{schemaId}" for schemaId in (6, 5, 7)],
        )
        self.registry.schema(6, '"long"')
        self.assertEqual(self.decode('"long"', payloads), [1, 2, None, None] * 50)
        self.assertEqual(len(self.registry.asked), 4)

    def test_noRoom(self) -> None:
        """
        A value for which Spark's type has no room is one that cannot be read; the others of the
        batch are.
        """
        schema = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0})
        self.registry.schema(7, '"bytes"')
        self.registry.schema(8, schema)
        wide = frame(8, b"\x06" + (100_000).to_bytes(3, "big"))
        good = AvroEncoder(8, schema).encode(Decimal(7))
        self.assertEqual(self.decode(schema, [good, wide, good]), [Decimal(7), None, Decimal(7)])
        [_, row, _] = self.decode(schema, [good, wide, good], withErrors=True)
        self.assertIn("does not fit", row["error"])
        self.assertRaises(InvalidPayloadError, self.decode, schema, [good, wide], True)

    def test_away(self) -> None:
        """
        A registry that cannot be reached is no broken payload: the task fails, in every mode, and
        Spark tries it again.
        """
        self.registry.close()
        self.registry = RegistryEnd()
        url, self.registry.url = self.registry.url, "http://127.0.0.1:9"
        self.assertRaises(BrokerConnectionError, self.decode, '"long"', [frame(5, b"\x04")])
        self.registry.url = url
