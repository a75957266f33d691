"""
What a text means, and whether it can be used safely.

Two libraries have to agree to a schema: C{avro}, Apache's own, which is strict about names and says which schema can read which; and C{fastavro}, which
reads and writes, and is strict about defaults. Neither is made for hostile input, so some things more are seen to here, since a registry takes
schemas from strangers and a consumer payloads:

  - How deep a value may be nested. fastavro's compiled reader recurses on C's stack without a limit: 5,000 bytes of a linked list end the process. So
    schemas that are not recursive may nest L{DEPTH_MAX} deep; what recursive ones have written is read by fastavro's Python code, which stops in good
    order, and what they write is measured before.
  - Items of arrays that take no bytes (null, an empty record): ten bytes of payload could say that 2^63 of them follow. They are refused. So is what holds more
    than L{EMPTY_COUNT_MAX} values that take none: twenty records, each twice in the next, are a million of them in a payload of nothing.
  - Names, which both libraries write out in full wherever one stands: a long namespace is there once, and then with each of thousands of records.
  - Foreign errors of all kinds become L{InvalidSchemaError}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Lock
from typing import Any, NamedTuple

import avro.schema
import fastavro

from pylogbroker.errors import InvalidSchemaError, describeError
from pylogbroker.schemas.canonical import canonicalText, rewritten
from pylogbroker.schemas.logical import fillDefaults
from pylogbroker.schemas.lru import LruCache

DEPTH_MAX = 128
PARSED_COUNT_MAX = 2_000
"""Schemas that are kept parsed."""

PARSED_SIZE_MAX = 4 << 20
"""Characters of their texts together. Parsed they take about forty times that: strangers may send large ones, so a count alone is no limit."""

FILLED_COUNT_MIN = 1_000
FILLED_SIZE = 8
"""So many records may a schema's defaults be, with the fields that are filled in, and one more for so many characters: what is kept is not much larger."""

EMPTY_COUNT_MAX = 16
"""Values that take no bytes in one value."""

NAME_SIZE_MAX = 1_000
"""Characters of a name, with its namespace."""

HIDDEN = "pylogbroker-logicalType"
"""The property that has a schema's logical type in C{Parsed.tree}."""

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


class Parsed(NamedTuple):
    """
    A schema that was understood.

    @ivar text: canonical.
    @ivar tree: of the library C{avro}, with logical types in the property L{HIDDEN}.
    @ivar schema: of the library C{fastavro}; its defaults are values (L{pylogbroker.schemas.logical.fillDefaults}).
    @ivar isRecursive: whether a value of it can hold another of it.
    """

    text: str
    tree: Any
    schema: Any
    isRecursive: bool


_parsed: LruCache[str, Parsed] = LruCache(PARSED_COUNT_MAX, PARSED_SIZE_MAX)
_lock = Lock()


def parseSchema(text: str) -> Parsed:
    """
    From any thread.

    @raise InvalidSchemaError: it is none, or cannot be used safely.
    """
    with _lock:
        parsed = _parsed.get(text)
    if parsed is None:
        parsed = _parse(text)
        with _lock:
            _parsed.put(text, parsed, len(text))
    return parsed


def isKept(text: str) -> bool:
    """Whether parsing it would take no time now. From any thread."""
    with _lock:
        return text in _parsed


def _parse(text: str) -> Parsed:
    text = canonicalText(text)
    try:
        tree = avro.schema.parse(rewritten(text, _hideLogicalType))
        schema = fastavro.parse_schema(json.loads(text))
        fillDefaults(schema, FILLED_COUNT_MIN + len(text) // FILLED_SIZE)
        _qualifyAliases(tree)
        isRecursive = _checkDepth(tree)
        _checkNames(tree)
        _checkEmpty(tree)
    except InvalidSchemaError:
        raise
    except Exception as error:  # whatever the libraries raise, RecursionError included
        raise InvalidSchemaError(f"not an Avro schema: {describeError(error)}") from error
    return Parsed(text, tree, schema, isRecursive)


def _hideLogicalType(schema: Any) -> Any:
    """
    A schema without a logical type for the library C{avro}, which would warn of each that it does not know. (A filter of warnings would be the whole
    process's, whatever thread sets it.)
    """
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return schema
    return {HIDDEN if key == "logicalType" else key: value for key, value in schema.items()}


def _inside(tree: Any) -> Iterator[Any]:
    """The schemas that a value of this one is made of."""
    if tree.type in ("record", "error"):
        yield from (field.type for field in tree.fields)
    elif tree.type == "array":
        yield tree.items
    elif tree.type == "map":
        yield tree.values
    elif tree.type in ("union", "error_union"):
        yield from tree.schemas


def _all(tree: Any) -> Iterator[Any]:
    """Every schema in it, once."""
    seen: dict[int, Any] = {}
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            waiting.extend(_inside(each))
    yield from seen.values()


def _qualifyAliases(tree: Any) -> None:
    """An alias without a namespace is in that of its schema, which C{avro} does not heed when it compares."""
    for each in _all(tree):
        aliases = each.props.get("aliases") if each.type in ("record", "enum", "fixed") else None
        if aliases:
            space = each.fullname.rpartition(".")[0]
            each.set_prop(
                "aliases",
                [alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases],
            )


def _checkDepth(tree: Any) -> bool:
    """Whether it is recursive; C{InvalidSchemaError} if it is not and too deep."""
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
            f"values of this schema are nested {deepest} deep; {DEPTH_MAX} is allowed"
        )
    return isRecursive


def _checkNames(tree: Any) -> None:
    for each in _all(tree):
        if each.type in _NAMED and len(each.fullname) > NAME_SIZE_MAX:
            raise InvalidSchemaError(
                f"the name {each.fullname[:40]}… has {len(each.fullname)} characters; {NAME_SIZE_MAX} are allowed"
            )


def _checkEmpty(tree: Any) -> None:
    known: dict[int, bool] = {}
    counts: dict[int, int] = {}
    for each in _all(tree):
        if each.type == "array" and not _takesBytes(each.items, known):
            raise InvalidSchemaError(
                "an array's items take no bytes: a few bytes could stand for any number of them"
            )
        if _emptyCount(each, known, counts) > EMPTY_COUNT_MAX:
            raise InvalidSchemaError(
                f"a value holds more than {EMPTY_COUNT_MAX} others that take no bytes: a few bytes could stand for any number of them"
            )


def _emptyCount(tree: Any, known: dict[int, bool], counts: dict[int, int]) -> int:
    """How many values that take no bytes are in each value, itself included; those left out that a byte of its own stands before."""
    if tree.type in _SIZED:
        return 0
    if id(tree) not in counts:
        counts[id(tree)] = 0
        counts[id(tree)] = (not _takesBytes(tree, known)) + sum(
            _emptyCount(each, known, counts) for each in _inside(tree)
        )
    return counts[id(tree)]


def _takesBytes(tree: Any, known: dict[int, bool]) -> bool:
    """Whether each value of a schema takes at least a byte. What holds itself and nothing else can have no value at all."""
    if tree.type in _SIZED:
        return True
    if tree.type == "fixed":
        return bool(tree.size)
    if id(tree) not in known:
        known[id(tree)] = True
        known[id(tree)] = any(_takesBytes(each, known) for each in _inside(tree))
    return known[id(tree)]
