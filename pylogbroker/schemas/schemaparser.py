"""
Parsing schemas, and refusing those that are not safe to use.

Two libraries must accept a schema: C{avro}, Apache's own, which is strict about names and decides
compatibility; and C{fastavro}, which encodes and decodes, and is strict about defaults. Neither
expects hostile input, but a registry accepts schemas from strangers, and a consumer payloads. So:

  - Values may nest L{DEPTH_MAX} deep. fastavro's compiled reader recurses on C's stack without a
    limit: a linked list of 5,000 bytes ends the process. Values of recursive schemas are decoded by
    fastavro's Python code, which stops in order, and are measured before they are encoded.
  - Items of arrays must take bytes. Null or an empty record takes none, so ten bytes of payload
    could announce 2^63 items. A value may hold L{EMPTY_COUNT_MAX} values that take none: twenty
    records, each twice in the next, are a million values in an empty payload.
  - Names have a limit. Both libraries write out the namespace wherever a name stands, so a long
    namespace would be repeated for each of thousands of records.
  - Errors of the libraries become L{InvalidSchemaError}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Lock
from typing import Any

import avro.schema
import fastavro

from pylogbroker.errors import InvalidSchemaError, describeError
from pylogbroker.schemas.logicaltypes import HIDDEN, ParsedSchema, fillDefaults
from pylogbroker.schemas.lru import LruCache
from pylogbroker.schemas.schematext import canonicalText, mapSchema

DEPTH_MAX = 128
PARSED_COUNT_MAX = 2_000
"""Parsed schemas in the cache."""

PARSED_SIZE_MAX = 4 << 20
"""Characters of all texts in the cache. A parsed schema takes about forty times that."""

FILLED_COUNT_MIN = 1_000
FILLED_SIZE = 8
"""
The defaults of a schema may have C{FILLED_COUNT_MIN} records and filled-in fields, and one more for
C{FILLED_SIZE} characters of its text: so what is cached is not much larger.
"""

EMPTY_COUNT_MAX = 16
"""Values without bytes in one value."""

NAME_SIZE_MAX = 1_000
"""Characters of a name with its namespace."""

_NAMED = frozenset(("record", "error", "enum", "fixed"))
_SIZED = frozenset(
    (
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "bytes",
        "string",
        "enum",
        "array",
        "map",
        "union",
        "error_union",
    )
)


_parsed: LruCache[str, ParsedSchema] = LruCache(PARSED_COUNT_MAX, PARSED_SIZE_MAX)
_lock = Lock()


def parseSchema(text: str) -> ParsedSchema:
    """
    Parse a schema, or take it from the cache. From any thread.

    @raise InvalidSchemaError: the text is not a schema, or is not safe to use.
    """
    with _lock:
        parsed = _parsed.get(text)
    if parsed is None:
        parsed = _parse(text)
        with _lock:
            _parsed.put(text, parsed, len(text))
    return parsed


def isParsed(text: str) -> bool:
    """Whether the cache has a parsed schema. From any thread."""
    with _lock:
        return text in _parsed


def _parse(text: str) -> ParsedSchema:
    text = canonicalText(text)
    try:
        tree = avro.schema.parse(mapSchema(text, _hideLogicalType))
        schema = fastavro.parse_schema(json.loads(text))
        fillDefaults(schema, FILLED_COUNT_MIN + len(text) // FILLED_SIZE)
        _qualifyAliases(tree)
        isRecursive = _checkDepth(tree)
        _checkNames(tree)
        _checkEmpty(tree)
    except InvalidSchemaError:
        raise
    except Exception as error:  # the libraries raise errors of many types
        raise InvalidSchemaError(f"not an Avro schema: {describeError(error)}") from error
    return ParsedSchema(text, tree, schema, isRecursive)


def _hideLogicalType(schema: Any) -> Any:
    """
    Rename the property C{logicalType} for the library C{avro}, which warns of each logical type
    that it does not know. A filter of warnings would affect all threads.
    """
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return schema
    return {HIDDEN if key == "logicalType" else key: value for key, value in schema.items()}


def _inside(tree: Any) -> Iterator[Any]:
    """The direct inner schemas."""
    if tree.type in ("record", "error"):
        yield from (field.type for field in tree.fields)
    elif tree.type == "array":
        yield tree.items
    elif tree.type == "map":
        yield tree.values
    elif tree.type in ("union", "error_union"):
        yield from tree.schemas


def _all(tree: Any) -> Iterator[Any]:
    """All inner schemas and the schema itself, once."""
    seen: dict[int, Any] = {}
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            waiting.extend(_inside(each))
    yield from seen.values()


def _qualifyAliases(tree: Any) -> None:
    """Add the schema's namespace to aliases without one, which C{avro} does not do."""
    for each in _all(tree):
        aliases = each.props.get("aliases") if each.type in ("record", "enum", "fixed") else None
        if aliases:
            space = each.fullname.rpartition(".")[0]
            each.set_prop(
                "aliases",
                [alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases],
            )


def _checkDepth(tree: Any) -> bool:
    """Whether a schema is recursive. Raises L{InvalidSchemaError} if it is too deep."""
    depths: dict[int, int] = {}
    under: set[int] = set()
    isRecursive = False

    def depth(each: Any) -> int:
        nonlocal isRecursive
        if id(each) in under:
            isRecursive = True
            return 0
        if id(each) not in depths:
            under.add(id(each))
            depths[id(each)] = 1 + max(map(depth, _inside(each)), default=0)
            under.discard(id(each))
        return depths[id(each)]

    deepest = depth(tree)
    if deepest > DEPTH_MAX:
        raise InvalidSchemaError(
            f"values of this schema nest {deepest} deep; {DEPTH_MAX} is allowed"
        )
    return isRecursive


def _checkNames(tree: Any) -> None:
    for each in _all(tree):
        if each.type in _NAMED and len(each.fullname) > NAME_SIZE_MAX:
            raise InvalidSchemaError(
                f"the name {each.fullname[:40]}… has {len(each.fullname)} characters;"
                f" {NAME_SIZE_MAX} are allowed"
            )


def _checkEmpty(tree: Any) -> None:
    known: dict[int, bool] = {}
    counts: dict[int, int] = {}

    def takesBytes(each: Any) -> bool:
        """Whether each value takes a byte. A schema that holds only itself has no values."""
        if each.type in _SIZED:
            return True
        if each.type == "fixed":
            return bool(each.size)
        if id(each) not in known:
            known[id(each)] = True
            known[id(each)] = any(map(takesBytes, _inside(each)))
        return known[id(each)]

    def emptyCount(each: Any) -> int:
        """
        The values without bytes in each value, itself included; without those behind a byte of
        their own.
        """
        if each.type in _SIZED:
            return 0
        if id(each) not in counts:
            counts[id(each)] = 0
            counts[id(each)] = (not takesBytes(each)) + sum(map(emptyCount, _inside(each)))
        return counts[id(each)]

    for each in _all(tree):
        if each.type == "array" and not takesBytes(each.items):
            raise InvalidSchemaError(
                "an array's items take no bytes, so a few bytes could stand for any number of them"
            )
        if emptyCount(each) > EMPTY_COUNT_MAX:
            raise InvalidSchemaError(
                f"a value holds more than {EMPTY_COUNT_MAX} others that take no bytes, so a few"
                " bytes could stand for any number of them"
            )
