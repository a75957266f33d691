"""
The text of a schema, and when two texts are the same schema.

Schemas come as JSON. What is kept is that JSON without white space, the order of its keys as it came; C{{"type": "string"}} is shortened to
C{"string"}, as Java's clients write it. Two texts are the same schema if they then have the same keys and values, in whatever order.

Rejected: Avro's own *parsing canonical form*, which strips defaults, aliases and documentation; two schemas that differ in a default are not the same
to a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from pylogbroker.errors import InvalidSchemaError

TEXT_SIZE_MAX = 256 << 10
"""Bytes of a schema."""

NESTING_MAX = 64
"""How deep JSON may be nested. (A record in a record's field takes three.)"""


def canonicalText(text: str, sizeMax: int = TEXT_SIZE_MAX) -> str:
    """
    The text that is kept.

    @param sizeMax: bytes.
    @raise InvalidSchemaError: it is no JSON, too large or too deep.
    """
    if len(text) > sizeMax:
        raise InvalidSchemaError(f"a schema of {len(text)} characters; {sizeMax} bytes are allowed")
    short = _written(_shortened(_read(text)))
    if len(short.encode()) > sizeMax:
        raise InvalidSchemaError(f"a schema of {len(short.encode())} bytes; {sizeMax} are allowed")
    return short


def fingerprint(text: str) -> str:
    """
    What two texts have in common that are the same schema, and no others have.

    @param text: canonical.
    """
    return sha256(
        json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _read(text: str) -> Any:
    if not text.strip().startswith(("{", "[", '"')):
        text = json.dumps(text.strip())  # a bare "string", as some clients write it
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidSchemaError("a schema that is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchemaError(f"a schema that is no JSON: {error}") from error
    if exceedsDepth(value, NESTING_MAX):
        raise InvalidSchemaError(f"a schema that is nested more than {NESTING_MAX} deep")
    return value


def _written(value: Any) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
        return text
    except ValueError as error:  # NaN, or half a character
        raise InvalidSchemaError(f"a schema that is no JSON: {error}") from error


def exceedsDepth(value: Any, most: int) -> bool:
    """Whether lists and dictionaries are nested more than so deep in one another. Without recursion: it is there to protect from it."""
    level = [value]
    for _depth in range(most):
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


def rewritten(text: str, change: Callable[[Any], Any]) -> str:
    """
    A schema with each schema in it changed, the inner ones first.

    @param change: given the name of a type, or an object whose C{type} is a name; gives what is to stand there.
    @raise InvalidSchemaError: it is no JSON, or too deep.
    """

    def each(schema: Any) -> Any:
        if isinstance(schema, list):
            return [each(branch) for branch in schema]
        return change(_changed(schema, each) if isinstance(schema, dict) else schema)

    return _written(each(_read(text)))


def withoutLogicalType(text: str, name: str) -> str:
    """
    A schema whose values are as they would be for somebody who does not know a logical type.

    @raise InvalidSchemaError: it is no JSON, or too deep.
    """

    def without(schema: Any) -> Any:
        if not isinstance(schema, dict) or schema.get("logicalType") != name:
            return schema
        return {key: value for key, value in schema.items() if key != "logicalType"}

    return rewritten(text, without)


def _changed(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """With what it is made of changed, only where a schema stands: a default may look like one."""
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
