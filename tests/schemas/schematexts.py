"""
Schemas for tests: some by hand, and any by Hypothesis.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st


def record(name: str, *fields: dict[str, Any], **more: Any) -> str:
    """The text of a record."""
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    """A record's field."""
    return {"name": name, "type": kind, **more}


LIST = record("List", field("next", ["null", "List"]))
"""A recursive one."""

_DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "string": "s",
    "bytes": "b",
}


def _fields(kinds: list[Any], names: list[str], withDefault: list[bool]) -> list[dict[str, Any]]:
    return [
        field(
            name,
            kind,
            **({"default": _DEFAULTS[kind]} if isDefault and isinstance(kind, str) else {}),
        )
        for name, kind, isDefault in zip(names, kinds, withDefault, strict=False)
    ]


def kinds() -> st.SearchStrategy[Any]:
    """
    Schemas, as JSON values. Records are called R, enums E, and fields one of four letters, so that
    two of them have something to do with each other.
    """
    leaf = st.sampled_from(sorted(_DEFAULTS)) | st.lists(
        st.sampled_from("abc"), min_size=1, max_size=3, unique=True
    ).map(lambda symbols: {"type": "enum", "name": "E", "symbols": symbols})
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map(lambda kind: {"type": "map", "values": kind}),
            inner.filter(lambda kind: kind != "null").map(
                lambda kind: {"type": "array", "items": kind}
            ),
            st.lists(st.sampled_from(sorted(_DEFAULTS)), min_size=1, max_size=3, unique=True),
        ),
        max_leaves=4,
    )


def records() -> st.SearchStrategy[str]:
    """Texts of records."""
    return st.builds(
        lambda kinds, names, withDefault: record("R", *_fields(kinds, names, withDefault)),
        st.lists(kinds().filter(lambda kind: '"E"' not in json.dumps(kind)), max_size=3),
        st.permutations("wxyz"),
        st.lists(st.booleans(), min_size=4, max_size=4),
    )
