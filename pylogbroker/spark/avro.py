"""
A column of payloads to a column of values, by the schemas of a registry.

    from pylogbroker.spark.avro import fromAvro
    clicks = df.select(fromAvro("value", registry="http://registry:8081", subject="clicks-value").alias("click"))

The column's type has to be known before anything is read, so the values come as one schema wants them, the reader's; each was written by its own. What wrote
a payload is looked up by its id on the executors, once a process. A payload that cannot be read is null, or beside it stands why, or it stops the
query: as asked. That the registry cannot be reached is none of these: the task fails, and Spark tries it again; nulls would tell of broken data.

Types are those of Spark's own C{from_avro}: a union with null is what may be null; days, timestamps and decimals are Spark's, a UUID is its text. Other
unions, times of day and recursive schemas are refused when the query is made, since a column of several types would have to be guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow
from pyspark.sql import Column, types
from pyspark.sql.functions import arrow_udf, col  # type: ignore[attr-defined] # its stubs do not have it
from pyspark.sql.pandas.types import to_arrow_type

from pylogbroker.errors import (
    ConfigurationError,
    InvalidPayloadError,
    InvalidSchemaError,
    SchemaError,
    UnknownSchemaError,
)
from pylogbroker.schemas.avro import AvroDecoder
from pylogbroker.schemas.canonical import withoutLogicalType
from pylogbroker.schemas.framing import schemaIdOf
from pylogbroker.schemas.logical import logicalType
from pylogbroker.schemas.parsing import HIDDEN, parseSchema
from pylogbroker.syncclient.registryclient import RegistryClient

PERMISSIVE = "PERMISSIVE"
FAILFAST = "FAILFAST"
MODES = (PERMISSIVE, FAILFAST)

DECIMAL_DIGIT_COUNT_MAX = 38
"""Spark's."""

_PRIMITIVES: dict[str, types.DataType] = {
    "null": types.NullType(), "boolean": types.BooleanType(), "int": types.IntegerType(), "long": types.LongType(), "float": types.FloatType(),
    "double": types.DoubleType(), "bytes": types.BinaryType(), "string": types.StringType(), "fixed": types.BinaryType(), "enum": types.StringType(),
}  # fmt: skip
_LOGICAL: dict[tuple[str, str], types.DataType] = {
    ("int", "date"): types.DateType(), ("long", "timestamp-millis"): types.TimestampType(), ("long", "timestamp-micros"): types.TimestampType(),
    ("long", "local-timestamp-millis"): types.TimestampNTZType(), ("long", "local-timestamp-micros"): types.TimestampNTZType(),
}  # fmt: skip


def sparkType(text: str) -> types.DataType:
    """
    What values of a schema are in Spark.

    @raise InvalidSchemaError: it is none, or one that Spark has no type for: a recursive one, or one with a time of day.
    """
    parsed = parseSchema(text)
    if parsed.isRecursive:
        raise InvalidSchemaError(
            "a recursive schema: Spark has no type for values that hold others of their own kind"
        )
    return _typeOf(parsed.tree)[0]


def _typeOf(tree: Any) -> tuple[types.DataType, bool]:
    """Type, and whether it may be null."""
    if tree.type in ("record", "error"):
        return types.StructType(
            [types.StructField(field.name, *_typeOf(field.type)) for field in tree.fields]
        ), False
    if tree.type == "array":
        return types.ArrayType(*_typeOf(tree.items)), False
    if tree.type == "map":
        return types.MapType(types.StringType(), *_typeOf(tree.values)), False
    if tree.type in ("union", "error_union"):
        return _unionType(
            [branch for branch in tree.schemas if branch.type != "null"], len(tree.schemas)
        )
    logical = logicalType({**tree.props, "logicalType": tree.props.get(HIDDEN)})
    if logical == "decimal":
        return _decimalType(tree.props["precision"], tree.props.get("scale", 0)), False
    if logical in ("time-millis", "time-micros", "duration"):
        raise InvalidSchemaError(
            f"a schema with the logical type {logical}, which Spark has no type for"
        )
    return _LOGICAL.get((tree.type, logical), _PRIMITIVES[tree.type]), tree.type == "null"


def _decimalType(precision: int, scale: int) -> types.DecimalType:
    if precision > DECIMAL_DIGIT_COUNT_MAX:
        raise InvalidSchemaError(
            f"a decimal of {precision} digits: Spark has room for {DECIMAL_DIGIT_COUNT_MAX}"
        )
    return types.DecimalType(precision, scale)


def _unionType(branches: list[Any], branchCount: int) -> tuple[types.DataType, bool]:
    isNullable = len(branches) < branchCount
    if len(branches) == 1:
        return _typeOf(branches[0])[0], isNullable
    raise InvalidSchemaError(
        f"a union of {branchCount} branches: as the reader's schema for Spark, a union may have null and one more"
    )


def fromAvro(
    column: Column | str,
    *,
    registry: str,
    readerSchema: str | None = None,
    subject: str | None = None,
    mode: str = PERMISSIVE,
    withErrors: bool = False,
) -> Column:
    """
    Decode a column of payloads.

    @param column: of type binary.
    @param registry: C{http://HOST:PORT}, as the executors reach it; several with commas between.
    @param readerSchema: how values are wanted.
    @param subject: instead: as this subject's latest schema has them, which the driver asks for now.
    @param mode: C{PERMISSIVE}: what cannot be read is null; C{FAILFAST}: it fails the query, with what is wrong.
    @param withErrors: give a struct of C{value} and C{error}, a text that says why the value is null: for a dead-letter table.
    @raise ConfigurationError: the mode is none, or there is not one of C{readerSchema} and C{subject}.
    @raise InvalidSchemaError: values of the schema have no type in Spark.
    """
    if mode not in MODES:
        raise ConfigurationError(f"mode={mode} is none of {', '.join(MODES)}")
    if (readerSchema is None) == (subject is None):
        raise ConfigurationError("either readerSchema or subject is needed, and not both")
    if readerSchema is None:
        assert subject is not None
        readerSchema = RegistryClient(registry).version(subject).text
    kind = sparkType(readerSchema)
    if withErrors:
        kind = types.StructType(
            [types.StructField("value", kind), types.StructField("error", types.StringType())]
        )
    decode = arrow_udf(decoding(registry, readerSchema, kind, mode == FAILFAST, withErrors), kind)
    decoded: Column = decode(col(column) if isinstance(column, str) else column)
    return decoded


def decoding(
    registry: str, readerSchema: str, kind: types.DataType, isStrict: bool, withErrors: bool
) -> Callable[[pyarrow.Array], pyarrow.Array]:
    """What the executors do with a batch."""

    def decode(payloads: pyarrow.Array) -> pyarrow.Array:
        decoder = _decoder(registry, readerSchema)
        unknown: dict[int, SchemaError] = {}
        outcomes = [_decoded(decoder, payload, unknown) for payload in payloads.to_pylist()]
        try:
            return _asArray(outcomes, arrowType, isStrict, withErrors)
        except pyarrow.ArrowException:  # a value that the type has no room for: which one?
            return _asArray(
                [_checked(outcome, valueType) for outcome in outcomes],
                arrowType,
                isStrict,
                withErrors,
            )

    arrowType = to_arrow_type(kind, timezone="UTC")
    valueType = arrowType.field("value").type if withErrors else arrowType
    return decode


_Outcome = tuple[Any, SchemaError | None]


def _decoded(
    decoder: AvroDecoder, payload: bytes | None, unknown: dict[int, SchemaError]
) -> _Outcome:
    """
    A value, or what is wrong.

    @param unknown: schemas that the registry was found not to have, which are asked for once a batch; this adds to it.
    """
    if payload is None:
        return None, None
    try:
        if unknown and (schemaId := schemaIdOf(payload)) in unknown:
            return None, unknown[schemaId]
        return decoder.decode(payload), None
    except UnknownSchemaError as error:
        unknown[schemaIdOf(payload)] = error
        return None, error
    except SchemaError as error:
        return None, error


def _checked(outcome: _Outcome, kind: pyarrow.DataType) -> _Outcome:
    try:
        pyarrow.array([outcome[0]], kind)
        return outcome
    except pyarrow.ArrowException as error:
        return None, InvalidPayloadError(f"a value that {kind} has no room for: {error}")


def _asArray(
    outcomes: list[_Outcome], kind: pyarrow.DataType, isStrict: bool, withErrors: bool
) -> pyarrow.Array:
    for _value, error in outcomes if isStrict else ():
        if error is not None:
            raise error
    if not withErrors:
        return pyarrow.array([value for value, _error in outcomes], kind)
    rows = [
        {"value": value, "error": None if error is None else f"{type(error).__name__}: {error}"}
        for value, error in outcomes
    ]
    return pyarrow.array(rows, kind)


@lru_cache(64)
def _decoder(registry: str, readerSchema: str) -> AvroDecoder:
    """One a process, with its schemas. A UUID is wanted as its text, whatever the writer's schema says."""
    return AvroDecoder(withoutLogicalType(readerSchema, "uuid"), RegistryClient(registry).schema)
