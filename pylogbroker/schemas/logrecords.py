"""
The records of a registry's topic: one JSON object each, with a unique request id and a change.

The log is the order. A record says what is wanted and on what the decision rests, so that every
registry can tell whether it takes effect (L{pylogbroker.schemas.state}). All registries skip
records that they cannot decode; a record of a later version must not look like one of these.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pylogbroker.errors import InvalidEntryError

NONE = "NONE"
BACKWARD = "BACKWARD"
FORWARD = "FORWARD"
FULL = "FULL"
TRANSITIVE = "_TRANSITIVE"
LEVELS = (
    NONE,
    *(kind + suffix for kind in (BACKWARD, FORWARD, FULL) for suffix in ("", TRANSITIVE)),
)
"""
The compatibility levels of registries. BACKWARD: the new schema reads data of the latest version.
FORWARD: the latest version reads data of the new schema. FULL: both. TRANSITIVE: all versions
instead of the latest.
"""

DEFAULT_LEVEL = BACKWARD

FORMAT = 1
_KEY = "registry"
REQUEST_SIZE_MAX = 64
RECORD_SIZE_MAX = 950_000
"""Bytes. By default brokers drop larger messages."""


class Initialize(NamedTuple):
    """The first record of a registry's topic."""


class Register(NamedTuple):
    """
    A new version of a subject.

    @ivar text: of the schema, canonical.
    @ivar identity: the schema's fingerprint; equal schemas have one id in all subjects.
    @ivar basis: the revisions for which the schema was found compatible; see
        L{pylogbroker.schemas.state.RegistryState.basis}.
    """

    subject: str
    text: str
    identity: str
    basis: tuple[int, int]


class DeleteVersion(NamedTuple):
    """
    The deletion of a version.

    @ivar isPermanent: the second step; the first one hides the version from new readers.
    """

    subject: str
    version: int
    isPermanent: bool


class DeleteSubject(NamedTuple):
    """The deletion of all versions of a subject; C{isPermanent} as in L{DeleteVersion}."""

    subject: str
    isPermanent: bool


class SetLevel(NamedTuple):
    """
    A new compatibility level.

    @ivar subject: C{""}: the general level.
    @ivar level: C{""}: the subject has no level of its own any more.
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


class ChangeEnvelope(NamedTuple):
    """
    One record: a change with the id of its request.

    @ivar request: unique. A record with the same request is the same record, sent again.
    """

    request: str
    change: Change


def encodeRecord(record: ChangeEnvelope) -> bytes:
    """
    @raise InvalidEntryError: the record is too large for brokers.
    """
    fields = {
        _KEY: FORMAT,
        "request": record.request,
        "change": _NAMES[type(record.change)],
        **record.change._asdict(),
    }
    payload = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    if len(payload) > RECORD_SIZE_MAX:
        raise InvalidEntryError(f"an entry of {len(payload)} bytes; {RECORD_SIZE_MAX} are allowed")
    return payload


def decodeRecord(payload: bytes) -> ChangeEnvelope:
    """
    @raise InvalidEntryError: the payload is not a record, or a part is missing.
    """
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(f"not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get(_KEY) != FORMAT:
        raise InvalidEntryError(f"not an entry of a registry in format {FORMAT}")
    request = fields.get("request")
    if not isinstance(request, str) or not 0 < len(request) <= REQUEST_SIZE_MAX:
        raise InvalidEntryError("an entry without a request id")
    change = fields.get("change")
    if not isinstance(change, str) or change not in _CHANGES:
        raise InvalidEntryError(f"an entry with the unknown change {change!r:.40}")
    made, kinds = _CHANGES[change]
    record = ChangeEnvelope(
        request, made(**{name: _field(fields, name, kind) for name, kind in kinds.items()})
    )
    if isinstance(record.change, SetLevel) and record.change.level not in ("", *LEVELS):
        raise InvalidEntryError(f"an entry that sets the level {record.change.level!r:.40}")
    return record


def _field(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise InvalidEntryError(f"an entry whose {name} is not of type {kind.__name__}")
    if not isinstance(value, list):
        return value
    if [type(each) for each in value] != [int, int]:
        raise InvalidEntryError(f"an entry whose {name} is not two numbers")
    return tuple(value)
