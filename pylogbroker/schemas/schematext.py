"""
The canonical text of a schema, and when two texts are the same schema.

Schemas are JSON. The canonical text is that JSON without white space, in the given order of keys;
C{{"type": "string"}} becomes C{"string"}, as Java's clients write it. Two texts are the same schema
if they then have the same keys and values, in any order.

Rejected: Avro's own *parsing canonical form*, which removes defaults, aliases and documentation.
Two schemas that differ in a default are not the same to a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from pylogbroker.errors import InvalidSchemaError

TEXT_SIZE_MAX = 256 << 10
"""Bytes of a schema's text."""

NESTING_MAX = 64
"""The deepest JSON. (A record in a record's field takes three levels.)"""


def canonicalText(text: str, sizeMax: int = TEXT_SIZE_MAX) -> str:
    """
    The canonical text of a schema.

    @param sizeMax: bytes.
    @raise InvalidSchemaError: the text is not JSON, too large or too deep.
    """
    if len(text) > sizeMax:
        raise InvalidSchemaError(f"a schema of {len(text)} characters; {sizeMax} bytes are allowed")
    short = _written(_shortened(_read(text)))
    if len(short.encode()) > sizeMax:
        raise InvalidSchemaError(f"a schema of {len(short.encode())} bytes; {sizeMax} are allowed")
    return short


def fingerprint(text: str) -> str:
    """
    A hash that is equal for two texts of the same schema.

    @param text: canonical.
    """
    return sha256(
        json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _read(text: str) -> Any:
    if not text.strip().startswith(("{", "[", '"')):
        text = json.dumps(text.strip())  # some clients write "string" without quotes
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidSchemaError("a schema that is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchemaError(f"a schema that is not JSON: {error}") from error
    if exceedsDepth(value, NESTING_MAX):
        raise InvalidSchemaError(f"a schema that is nested more than {NESTING_MAX} deep")
    return value


def _written(value: Any) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
        return text
    except ValueError as error:  # NaN, or a lone surrogate
        raise InvalidSchemaError(f"a schema that is not JSON: {error}") from error


def exceedsDepth(value: Any, depthMax: int) -> bool:
    """
    Whether lists and dictionaries nest deeper than a limit. Not recursive, since it guards
    recursions.
    """
    level = [value]
    for _depth in range(depthMax):
        level = [
            inner
            for each in level
            for inner in (
                each.values()
                if isinstance(each, dict)
                else each
                if isinstance(each, list | tuple)
                else ()
            )
        ]
    return bool(level)


def _shortened(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_shortened(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if len(schema) == 1 and isinstance(schema.get("type"), str):
        return schema["type"]
    return _changed(schema, _shortened)


def mapSchema(text: str, change: Callable[[Any], Any]) -> str:
    """
    Replace each schema inside a schema, the inner ones first.

    @param change: gets the name of a type, or an object whose C{type} is a name; returns its
        replacement.
    @raise InvalidSchemaError: the text is not JSON, or too deep.
    """

    def each(schema: Any) -> Any:
        if isinstance(schema, list):
            return [each(branch) for branch in schema]
        return change(_changed(schema, each) if isinstance(schema, dict) else schema)

    return _written(each(_read(text)))


def withoutLogicalType(text: str, name: str) -> str:
    """
    A schema without one logical type.

    @raise InvalidSchemaError: the text is not JSON, or too deep.
    """

    def without(schema: Any) -> Any:
        if not isinstance(schema, dict) or schema.get("logicalType") != name:
            return schema
        return {key: value for key, value in schema.items() if key != "logicalType"}

    return mapSchema(text, without)


def _changed(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy with its direct inner schemas replaced. A default that looks like a schema stays."""
    inner: dict[str, Any] = {
        key: change(schema[key]) for key in ("items", "values") if key in schema
    }
    if "type" in schema and not isinstance(schema["type"], str):
        inner["type"] = change(schema["type"])
    fields = schema.get("fields")
    if isinstance(fields, list):
        inner["fields"] = [
            {**field, "type": change(field["type"])}
            if isinstance(field, dict) and "type" in field
            else field
            for field in fields
        ]
    return {key: inner.get(key, value) for key, value in schema.items()}
