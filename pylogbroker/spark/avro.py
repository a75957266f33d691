"""
Decoding a column of Avro payloads, with schemas from a registry::

    from pylogbroker.spark.avro import fromAvro

    click = fromAvro("value", registry="http://registry:8081", subject="clicks-value")
    clicks = df.select(click.alias("click"))

Spark must know the type of the column before it reads, so all values have the reader's schema. The
executors look up the writer's schema of each payload by its id, once in a process. A payload that
cannot be decoded is null, or null beside the reason, or fails the query. If the registry cannot be
reached, the task fails and Spark repeats it: nulls would look like broken data.

Types are those of Spark's own C{from_avro}: a union with null is nullable; dates, timestamps and
decimals are Spark's; a UUID is a string. Other unions, times of day and recursive schemas are
refused when the query is made.
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
    SchemaNotFoundError,
)
from pylogbroker.schemas.avro import AvroDecoder, schemaIdOf
from pylogbroker.schemas.logicaltypes import HIDDEN, logicalType
from pylogbroker.schemas.schemaparser import parseSchema
from pylogbroker.schemas.schematext import withoutLogicalType
from pylogbroker.syncclient.registryclient import RegistryClient

PERMISSIVE = "PERMISSIVE"
FAILFAST = "FAILFAST"
MODES = (PERMISSIVE, FAILFAST)

DECIMAL_DIGIT_COUNT_MAX = 38
"""Spark's limit."""

_PRIMITIVES: dict[str, types.DataType] = {
    "null": types.NullType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "bytes": types.BinaryType(),
    "string": types.StringType(),
    "fixed": types.BinaryType(),
    "enum": types.StringType(),
}
_LOGICAL: dict[str, types.DataType] = {
    "date": types.DateType(),
    "timestamp-millis": types.TimestampType(),
    "timestamp-micros": types.TimestampType(),
    "local-timestamp-millis": types.TimestampNTZType(),
    "local-timestamp-micros": types.TimestampNTZType(),
}


def sparkType(text: str) -> types.DataType:
    """
    The Spark type of a schema's values.

    @raise InvalidSchemaError: the text is not a schema, or Spark has no type for its values.
    """
    parsed = parseSchema(text)
    if parsed.isRecursive:
        raise InvalidSchemaError("a recursive schema, whose values have no type in Spark")
    return _typeOf(parsed.tree)[0]


def _typeOf(tree: Any) -> tuple[types.DataType, bool]:
    """The type, and whether it is nullable."""
    if tree.type in ("record", "error"):
        return types.StructType(
            [types.StructField(field.name, *_typeOf(field.type)) for field in tree.fields]
        ), False
    if tree.type == "array":
        return types.ArrayType(*_typeOf(tree.items)), False
    if tree.type == "map":
        return types.MapType(types.StringType(), *_typeOf(tree.values)), False
    if tree.type in ("union", "error_union"):
        branches = [branch for branch in tree.schemas if branch.type != "null"]
        if len(branches) == 1:
            return _typeOf(branches[0])[0], len(tree.schemas) > 1
        raise InvalidSchemaError(
            f"a union of {len(tree.schemas)} branches: in a reader's schema for Spark, a union may"
            " have null and one other branch"
        )
    logical = logicalType({**tree.props, "logicalType": tree.props.get(HIDDEN)})
    if logical == "decimal":
        precision = tree.props["precision"]
        if precision > DECIMAL_DIGIT_COUNT_MAX:
            raise InvalidSchemaError(
                f"a decimal of {precision} digits; Spark's have at most {DECIMAL_DIGIT_COUNT_MAX}"
            )
        return types.DecimalType(precision, tree.props.get("scale", 0)), False
    if logical in ("time-millis", "time-micros", "duration"):
        raise InvalidSchemaError(
            f"a schema with the logical type {logical}, which has no type in Spark"
        )
    return _LOGICAL.get(logical, _PRIMITIVES[tree.type]), tree.type == "null"


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
    @param registry: C{http://HOST:PORT}, as the executors reach it; several separated by commas.
    @param readerSchema: the schema of the values.
    @param subject: instead: its latest schema, which the driver looks up now.
    @param mode: C{PERMISSIVE}: a payload that cannot be decoded is null; C{FAILFAST}: it fails the
        query.
    @param withErrors: return a struct of C{value} and C{error}, the reason why the value is null.
    @raise ConfigurationError: the mode is unknown, or not one of C{readerSchema} and C{subject} is
        given.
    @raise InvalidSchemaError: values of the schema have no type in Spark.
    """
    if mode not in MODES:
        raise ConfigurationError(f"mode={mode}: it must be one of {', '.join(MODES)}")
    if readerSchema is None and subject is not None:
        readerSchema = RegistryClient(registry).version(subject).text
    elif readerSchema is None or subject is not None:
        raise ConfigurationError("either readerSchema or subject is needed, not both")
    kind = sparkType(readerSchema)
    if withErrors:
        kind = types.StructType(
            [types.StructField("value", kind), types.StructField("error", types.StringType())]
        )
    decode = arrow_udf(
        batchDecoder(registry, readerSchema, kind, mode == FAILFAST, withErrors), kind
    )
    decoded: Column = decode(col(column) if isinstance(column, str) else column)
    return decoded


_Outcome = tuple[Any, SchemaError | None]


def batchDecoder(
    registry: str, readerSchema: str, kind: types.DataType, isStrict: bool, withErrors: bool
) -> Callable[[pyarrow.Array], pyarrow.Array]:
    """The function that decodes a batch on the executors."""

    def decode(payloads: pyarrow.Array) -> pyarrow.Array:
        decoder = _decoder(registry, readerSchema)
        unknown: dict[int, SchemaError] = {}
        outcomes = [_decoded(decoder, payload, unknown) for payload in payloads.to_pylist()]
        try:
            return asArray(outcomes)
        except pyarrow.ArrowException:  # a value does not fit its type: find it
            return asArray([_fitting(outcome, valueType) for outcome in outcomes])

    def asArray(outcomes: list[_Outcome]) -> pyarrow.Array:
        for _value, error in outcomes if isStrict else ():
            if error is not None:
                raise error
        if not withErrors:
            return pyarrow.array([value for value, _error in outcomes], arrowType)
        rows = [
            {"value": value, "error": None if error is None else f"{type(error).__name__}: {error}"}
            for value, error in outcomes
        ]
        return pyarrow.array(rows, arrowType)

    arrowType = to_arrow_type(kind, timezone="UTC")
    valueType = arrowType.field("value").type if withErrors else arrowType
    return decode


def _decoded(
    decoder: AvroDecoder, payload: bytes | None, unknown: dict[int, SchemaError]
) -> _Outcome:
    """
    A value, or the error.

    @param unknown: schemas that the registry does not have, looked up once for a batch; changed.
    """
    if payload is None:
        return None, None
    try:
        if unknown and (schemaId := schemaIdOf(payload)) in unknown:
            return None, unknown[schemaId]
        return decoder.decode(payload), None
    except SchemaNotFoundError as error:
        unknown[schemaIdOf(payload)] = error
        return None, error
    except SchemaError as error:
        return None, error


def _fitting(outcome: _Outcome, kind: pyarrow.DataType) -> _Outcome:
    try:
        pyarrow.array([outcome[0]], kind)
        return outcome
    except pyarrow.ArrowException as error:
        return None, InvalidPayloadError(f"a value that does not fit {kind}: {error}")


@lru_cache(64)
def _decoder(registry: str, readerSchema: str) -> AvroDecoder:
    """
    One a process, with its schemas. A UUID is wanted as its text, whatever the writer's schema
    says.
    """
    return AvroDecoder(withoutLogicalType(readerSchema, "uuid"), RegistryClient(registry).schema)
