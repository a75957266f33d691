"""
Dataclasses as JSON documents, and back. A module of its own, since it knows no report.

Anyone may write to a topic, so a document is checked field by field. A field that the reader does
not know is left out; one that is missing has its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

VERSION = 1
"""Of all documents. A reader refuses a later one; new fields do not need one."""

DOCUMENT_SIZE_MAX = 512 << 10
"""Bytes of a document: half of what brokers take as one record by default."""

_NUMBER_MAX = 2**63 - 1


def encodeDocument(value: Any, shorten: Callable[[Any], Any]) -> bytes:
    """
    @param value: a dataclass.
    @param shorten: makes it about half as large; called until it has at most L{DOCUMENT_SIZE_MAX}
        bytes.
    """
    while True:
        document = {"version": VERSION, **asdict(value)}
        data = json.dumps(document, separators=(",", ":")).encode()
        if len(data) <= DOCUMENT_SIZE_MAX:
            return data
        value = shorten(value)


def decodeDocument(kind: type[T], data: bytes) -> T:
    """
    @param kind: a dataclass whose fields are texts, whole numbers, booleans, tuples, mappings from
        texts, and such dataclasses.
    @raise ValueError: it is none.
    """
    if len(data) > DOCUMENT_SIZE_MAX:
        raise ValueError(f"{len(data)} bytes are more than {DOCUMENT_SIZE_MAX}")
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    version = _read(int, document.get("version"), "version")
    if version > VERSION:
        raise ValueError(f"it has version {version}; this program knows {VERSION}")
    found: T = _readObject(kind, document, "")
    return found


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _readObject(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    given = {}
    for field in fields(kind):
        name = f"{where}.{field.name}" if where else field.name
        if field.name in value:
            given[field.name] = _read(_hints(kind)[field.name], value[field.name], name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{name} is missing")
    return kind(**given)


def _read(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, UnionType):
        [inner] = [each for each in get_args(kind) if each is not NoneType]
        return None if value is None else _read(inner, value, where)
    origin = get_origin(kind)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"{where} is no array")
        inner = get_args(kind)[0]
        return tuple(_read(inner, each, f"{where}[{at}]") for at, each in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no object")
        inner = get_args(kind)[1]
        return {
            _read(str, name, where): _read(inner, each, f"{where}.{name}")
            for name, each in value.items()
        }
    if kind in (str, int, bool):
        if type(value) is not kind or (kind is int and abs(value) > _NUMBER_MAX):
            raise ValueError(f"{where} is no {kind.__name__}")
        if kind is str and not value.isprintable():
            raise ValueError(f"{where} has characters that cannot be printed")
        return value
    return _readObject(kind, value, where)
