"""
Logical types: the meaning of numbers and bytes.

The rule is the specification's: underlying types are resolved as if there were no logical types,
and the result means what the reader's schema says. So a plain long becomes a timestamp for a reader
that wants timestamps, and a timestamp becomes a long for a reader that wants longs. If both schemas
name a logical type, the unit is the writer's: microseconds remain the same moment for a reader of
milliseconds, and C{12.3} becomes C{12.30} with two digits. Logical types without a common meaning
(a date read as a timestamp, nanoseconds) are refused like incompatible schemas.

fastavro looks at the writer's logical type only. Its table of logical types can be extended,
though, and a function in this table also gets the reader's schema, after unions and names are
resolved. So numbers and bytes whose meaning depends on the reader get a logical type of ours
(L{readerFor}). fastavro's table belongs to the whole process. So we load its reader in Python a
second time, with a table of its own (decision 9). The compiled reader reads everything else.
Rejected: plain values, converted afterwards. The value of a union does not tell its branch.

Decimals are ours, too: fastavro takes two minutes for one of a megabyte, and rounds silently. So
are defaults (L{fillDefaults}): fastavro returns them as they stand in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from importlib.util import find_spec, module_from_spec
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
from fastavro.read import SchemaResolutionError

from pylogbroker.errors import InvalidSchemaError
from pylogbroker.schemas.schematext import mapSchema

DIGIT_COUNT_MAX = 1_000
"""Digits of a decimal. Reading one takes time that grows with their square."""

_MARK = "pylogbroker-meaning"
"""The name of our logical type."""

_WRITTEN = "pylogbroker-written"
"""The property that has the original logical type."""

HIDDEN = "pylogbroker-logicalType"
"""The property of C{ParsedSchema.tree} that has the logical type."""

_READ_UNITS = ("millis", "micros")
_MOMENTS = tuple(
    f"{kind}-{unit}"
    for kind in ("timestamp", "local-timestamp")
    for unit in (*_READ_UNITS, "nanos")
)
_NAMES: dict[str, tuple[str, ...]] = {
    "int": ("date", "time-millis"),
    "long": ("time-micros", *_MOMENTS),
    "bytes": ("decimal", "big-decimal"),
    "fixed": ("decimal", "duration", "uuid"),
    "string": ("uuid",),
}
"""The logical types of the specification, by underlying type."""

_PROMOTED = {
    "int": ("int",),
    "long": ("long", "int"),
    "bytes": ("bytes", "string"),
    "string": ("string", "bytes"),
    "fixed": ("fixed",),
}
"""Types that may be promoted to a type."""


def _loadReader() -> Any:
    """A private copy of fastavro's reader in Python."""
    spec = find_spec("fastavro._read_py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_reader = _loadReader()

_READERS: dict[str, Callable[..., Any]] = {
    f"{kind}-{name}": _reader.LOGICAL_READERS[f"{kind}-{name}"]
    for kind, names in _NAMES.items()
    for name in names
    if f"{kind}-{name}" in _reader.LOGICAL_READERS and name != "decimal"
}
"""fastavro's functions. Other logical types are read as their underlying type."""


def logicalType(schema: Mapping[str, Any]) -> str:
    """
    The logical type of a schema; C{""}: none, or one that its type cannot have.

    @param schema: its properties; C{type} is a text.
    """
    name = schema.get("logicalType")
    if name not in _NAMES.get(schema["type"], ()) or (
        name == "decimal" and not schema.get("precision")
    ):
        return ""
    return str(name)


# -- values


def _meaning(data: Any, writer: dict[str, Any], reader: dict[str, Any] | str | None) -> Any:
    """The function of our logical type. It gets a value of the underlying type."""
    written: str = writer[_WRITTEN]
    if reader is None:
        return _meant(data, written, writer, written, writer)
    if isinstance(reader, str):
        reader = {"type": reader}
    if reader["type"] != writer["type"]:
        data = _reader.maybe_promote(data, writer["type"], reader["type"])
    return _meant(data, written, writer, logicalType(reader), reader)


_reader.LOGICAL_READERS = {**_READERS, **{f"{kind}-{_MARK}": _meaning for kind in _NAMES}}


def _meant(
    data: Any, written: str, writer: Mapping[str, Any], wanted: str, reader: Mapping[str, Any]
) -> Any:
    if not wanted:
        return data
    name = _unit(written, wanted)
    if name == "decimal":
        return _decimal(data, writer if written else reader, reader)
    read = _READERS.get(f"{writer['type']}-{name}") or _READERS.get(f"{reader['type']}-{name}")
    return data if read is None else read(data)


@lru_cache(256)
def _unit(written: str, wanted: str) -> str:
    """The logical type whose function makes the wanted value."""
    if written in ("", wanted):
        return wanted
    (kind, _, unit), (wantedKind, _, wantedUnit) = written.rpartition("-"), wanted.rpartition("-")
    if {unit, wantedUnit} <= set(_READ_UNITS) and (kind == "time") == (wantedKind == "time"):
        return f"{wantedKind}-{unit}"
    raise SchemaResolutionError(f"what was written as {written} is not a {wanted}")


def _decimal(data: bytes, writer: Mapping[str, Any], reader: Mapping[str, Any]) -> Decimal:
    """A decimal with the reader's scale; never rounded."""
    unscaled = int.from_bytes(data, "big", signed=True)
    exponent, context = _form(reader["precision"], reader.get("scale", 0))
    if abs(unscaled) < 10**DIGIT_COUNT_MAX:
        try:
            return (
                Decimal(unscaled)
                .scaleb(-writer.get("scale", 0), _EXACT)
                .quantize(exponent, context=context)
            )
        except (Inexact, InvalidOperation):
            pass
    why = (
        f"a decimal that does not fit {context.prec} digits,"
        f" {-exponent.as_tuple().exponent} of them behind the point"  # type: ignore[operator]
    )
    raise ValueError(why) if writer is reader else SchemaResolutionError(why)


_EXACT = Context(prec=DIGIT_COUNT_MAX, traps=[Inexact, InvalidOperation])


@lru_cache(256)
def _form(precision: int, scale: int) -> tuple[Decimal, Context]:
    return Decimal((0, (1,), -scale)), Context(
        prec=min(precision, DIGIT_COUNT_MAX), traps=[Inexact, InvalidOperation]
    )


# -- schemas


class ParsedSchema(NamedTuple):
    """
    A schema that was parsed by both libraries.

    @ivar text: canonical.
    @ivar tree: of the library C{avro}, with logical types in the property L{HIDDEN}.
    @ivar schema: of the library C{fastavro}; its defaults are values
        (L{fillDefaults}).
    @ivar isRecursive: whether a value can hold another value of the same schema.
    """

    text: str
    tree: Any
    schema: Any
    isRecursive: bool


def readerFor(writer: ParsedSchema, reader: ParsedSchema | None) -> Callable[[BytesIO], Any]:
    """
    A function that decodes a body. Slow, as parsing is.

    @param reader: L{None}: values have the writer's schema.
    """
    schema = writer.schema
    wanted = None if reader is None else _wanted(reader.text)
    readerSchema = None if reader is None else reader.schema
    # the compiled reader is not safe with recursive schemas, and does not know our logical type
    isInterpreted = writer.isRecursive or (reader is not None and reader.isRecursive)

    def marked(each: Any) -> Any:
        nonlocal isInterpreted
        given = each if isinstance(each, dict) else {"type": each}
        written = logicalType(given)
        if written == "decimal" if wanted is None else given["type"] in wanted:
            isInterpreted = True
            return {**given, "logicalType": _MARK, _WRITTEN: written}
        if wanted is None or not written:
            return each
        return {key: value for key, value in each.items() if key != "logicalType"}

    changed = mapSchema(writer.text, marked)
    if changed != writer.text:
        schema = fastavro.parse_schema(json.loads(changed))
    read = _reader.schemaless_reader if isInterpreted else fastavro.schemaless_reader
    return lambda body: read(body, schema, readerSchema)


def _wanted(text: str) -> frozenset[str]:
    """Types that a reader's logical types may be read from."""
    found: set[str] = set()

    def look(each: Any) -> Any:
        if isinstance(each, dict) and logicalType(each):
            found.update(_PROMOTED[each["type"]])
        return each

    mapSchema(text, look)
    return frozenset(found)


# -- defaults


class _Defaults:
    """
    The values of one schema's defaults.

    @ivar leftCount: the records and filled-in fields that are still allowed.
    """

    def __init__(self, names: dict[str, Any], countMax: int) -> None:
        self.leftCount = countMax
        self._names = names

    def value(self, schema: Any, given: Any) -> Any:
        """
        The value of a JSON default.

        @raise ValueError: the default does not fit the schema. Or L{TypeError}, L{KeyError},
            L{ArithmeticError}, L{RecursionError}.
        """
        if isinstance(schema, list):
            return self._branch(schema, given)
        if isinstance(schema, str):
            schema = self._names.get(schema) or {"type": schema}
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema["fields"], _demand(given, dict))
        if kind == "array":
            return [self.value(schema["items"], each) for each in _demand(given, list)]
        if kind == "map":
            return {
                key: self.value(schema["values"], each)
                for key, each in _demand(given, dict).items()
            }
        name = logicalType(schema)
        return _meant(_plain(kind, given), name, schema, name, schema)

    def _record(self, fields: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
        self.leftCount -= 1 + sum(field["name"] not in given for field in fields)
        if self.leftCount < 0:
            raise InvalidSchemaError(
                "defaults of nested records that stand for far more than their text"
            )
        return {
            field["name"]: self.value(
                field["type"], given[field["name"]] if field["name"] in given else field["default"]
            )
            for field in fields
        }

    def _branch(self, branches: list[Any], given: Any) -> Any:
        for branch in branches:
            try:
                return self.value(branch, given)
            except _UNFIT:
                continue
        raise ValueError("it fits no branch")


_UNFIT = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, SchemaResolutionError)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "bytes": str,
    "fixed": str,
    "string": str,
    "enum": str,
}


def _demand(given: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise TypeError(type(given))
    return given


def _plain(kind: str, given: Any) -> Any:
    _demand(given, _KINDS[kind])
    if kind in ("bytes", "fixed"):
        return given.encode("latin-1")
    return float(given) if kind in ("float", "double") else given


def fillDefaults(schema: Any, countMax: int) -> None:
    """
    Replace a schema's defaults by their values. A default that does not fit is removed; only a
    reader that needs it fails.

    @param schema: as fastavro has parsed it; changed.
    @param countMax: the most records and filled-in fields. In nested records they double with each
        line of text.
    @raise InvalidSchemaError: the defaults stand for too many values.
    """
    named = {each["name"]: each for each in _nodes(schema) if "name" in each}
    fields = [
        field for each in named.values() for field in each.get("fields", ()) if "default" in field
    ]
    defaults = _Defaults(named, countMax)
    filled = []
    for field in fields:
        try:
            filled.append((field, {"default": defaults.value(field["type"], field["default"])}))
        except _UNFIT:
            filled.append((field, {}))
    for field, default in filled:
        del field["default"]
        field.update(default)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """All inner schemas that are objects. (Their depth is limited.)"""
    if isinstance(schema, list):
        for branch in schema:
            yield from _nodes(branch)
    elif isinstance(schema, dict):
        yield schema
        for inner in (
            schema.get("items"),
            schema.get("values"),
            *(field["type"] for field in schema.get("fields", ())),
        ):
            yield from _nodes(inner)
