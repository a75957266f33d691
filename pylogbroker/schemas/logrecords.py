"""
What a registry writes into its topic: one JSON object an entry, with a unique request id and a change.

The log is the order. An entry says what is wanted, and on what it rests, in such a way that whether it counts can be told without judgement: see
L{pylogbroker.schemas.state}. What cannot be read is skipped by every registry alike; so an entry that a later version will write must not look like
one of these.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pylogbroker.errors import InvalidEntryError
from pylogbroker.schemas.levels import LEVELS

FORMAT = 1
_KEY = "registry"
REQUEST_SIZE_MAX = 64
ENTRY_SIZE_MAX = 950_000
"""Bytes. Brokers drop larger ones by default."""


class Initialize(NamedTuple):
    """The first entry of a registry's topic."""


class Register(NamedTuple):
    """
    A new version of a subject.

    @ivar text: of the schema, canonical.
    @ivar identity: of the schema; the same schema has one id, whatever the subject.
    @ivar basis: what the subject and the general settings were like for whoever judged that this schema may follow; see L{RegistryState.basis}.
    """

    subject: str
    text: str
    identity: str
    basis: tuple[int, int]


class DeleteVersion(NamedTuple):
    """
    @ivar isPermanent: the second step, after it was deleted for new readers only.
    """

    subject: str
    version: int
    isPermanent: bool


class DeleteSubject(NamedTuple):
    """All versions of a subject; C{isPermanent} as above."""

    subject: str
    isPermanent: bool


class SetLevel(NamedTuple):
    """
    Which schema may follow.

    @ivar subject: C{""}: for all that have no level of their own.
    @ivar level: C{""}: none of its own any more.
    """

    subject: str
    level: str


Change = Initialize | Register | DeleteVersion | DeleteSubject | SetLevel
_CHANGES: dict[str, tuple[Any, dict[str, type]]] = {
    "begin": (Initialize, {}),
    "register": (Register, {"subject": str, "text": str, "identity": str, "basis": list}),
    "deleteVersion": (DeleteVersion, {"subject": str, "version": int, "isPermanent": bool}),
    "deleteSubject": (DeleteSubject, {"subject": str, "isPermanent": bool}),
    "setLevel": (SetLevel, {"subject": str, "level": str}),
}
_NAMES = {made: name for name, (made, _) in _CHANGES.items()}


class Entry(NamedTuple):
    """
    @ivar request: unique; the same again is the same entry, sent twice.
    """

    request: str
    change: Change


def encodeEntry(entry: Entry) -> bytes:
    """
    @raise InvalidEntryError: it is too large for brokers to keep.
    """
    fields = {
        _KEY: FORMAT,
        "request": entry.request,
        "change": _NAMES[type(entry.change)],
        **entry.change._asdict(),
    }
    payload = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    if len(payload) > ENTRY_SIZE_MAX:
        raise InvalidEntryError(f"an entry of {len(payload)} bytes; {ENTRY_SIZE_MAX} are allowed")
    return payload


def decodeEntry(payload: bytes) -> Entry:
    """
    @raise InvalidEntryError: it is none of ours, or not whole.
    """
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(f"no JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get(_KEY) != FORMAT:
        raise InvalidEntryError(f"no entry of a registry in format {FORMAT}")
    request = fields.get("request")
    if not isinstance(request, str) or not 0 < len(request) <= REQUEST_SIZE_MAX:
        raise InvalidEntryError("an entry without a request id")
    change = fields.get("change")
    if not isinstance(change, str) or change not in _CHANGES:
        raise InvalidEntryError(f"an entry that asks for {change!r:.40}")
    made, kinds = _CHANGES[change]
    entry = Entry(
        request, made(**{name: _field(fields, name, kind) for name, kind in kinds.items()})
    )
    if isinstance(entry.change, SetLevel) and entry.change.level not in ("", *LEVELS):
        raise InvalidEntryError(f"an entry that sets the level {entry.change.level!r:.40}")
    return entry


def _field(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise InvalidEntryError(f"an entry whose {name} is no {kind.__name__}")
    if not isinstance(value, list):
        return value
    if [type(each) for each in value] != [int, int]:
        raise InvalidEntryError(f"an entry whose {name} is not two numbers")
    return tuple(value)
