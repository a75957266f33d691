"""
The records of a registry's compacted topic, C{_schemas}, in the format of Confluent's registry. A
module of its own, since the format is Confluent's, and does not change with ours.

Keys and values are JSON objects without white space, their fields in Confluent's order. A record
replaces the earlier ones with the same key; one without a value removes them:

  ============== ========================================= =========================================
  keytype        key                                       value
  ============== ========================================= =========================================
  SCHEMA         C{keytype, subject, version, magic: 1}    C{subject, version, id, …, schema,
                                                           deleted}
  CONFIG         C{keytype, subject, magic: 0}             C{subject, …, compatibilityLevel, …}
  MODE           C{keytype, subject, magic: 0}             C{subject, mode}
  DELETE_SUBJECT C{keytype, subject, magic: 0}             C{subject, version}: deleted up to it
  CLEAR_SUBJECT  C{keytype, subject, magic: 0}             C{subject}: forget deleted versions
  NOOP           C{keytype, magic: 0}                      none; its offset tells how far to read
  ============== ========================================= =========================================

The subject of CONFIG and MODE is left out of the key and the value of the general setting (before
release 7, the key had C{null}). Which fields are left out while they are empty, and the order, were
taken from the sources of Confluent's registry, releases 5.5 to 7.6.

What must be true: a value keeps all of its fields, also those that are unknown here, so that a
record that is written again loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pylogbroker.errors import InvalidEntryError
from pylogbroker.schemas.logrecords import LEVELS, RECORD_SIZE_MAX

AVRO = "AVRO"
READONLY, READONLY_OVERRIDE, IMPORT = "READONLY", "READONLY_OVERRIDE", "IMPORT"

SUBJECT_SIZE_MAX = 65_536
"""Characters of a subject's name in a topic. Our API accepts far fewer."""

_INT_MAX = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class NoopKey:
    """The key of a record that changes nothing."""

    keyType: ClassVar[str] = "NOOP"


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """The key of a version."""

    keyType: ClassVar[str] = "SCHEMA"
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectConfigKey:
    """The key of a compatibility level and its kind; L{None}: the general one."""

    keyType: ClassVar[str] = "CONFIG"
    subject: str | None


@dataclass(frozen=True, slots=True)
class ModeKey:
    """The key of a mode; L{None}: the general one."""

    keyType: ClassVar[str] = "MODE"
    subject: str | None


@dataclass(frozen=True, slots=True)
class DeleteSubjectKey:
    """The key of a deletion of a subject's versions, in the first step."""

    keyType: ClassVar[str] = "DELETE_SUBJECT"
    subject: str


@dataclass(frozen=True, slots=True)
class ClearSubjectKey:
    """The key of a record that forgets deleted versions; L{None}: of all subjects."""

    keyType: ClassVar[str] = "CLEAR_SUBJECT"
    subject: str | None


@dataclass(frozen=True, slots=True)
class UnservedKey:
    """The key of a record of a kind that has no meaning here, such as CONTEXT."""

    keyType: str


RegistryKey = (
    NoopKey
    | SchemaKey
    | SubjectConfigKey
    | ModeKey
    | DeleteSubjectKey
    | ClearSubjectKey
    | UnservedKey
)
Value = Mapping[str, Any]
"""A record's value, decoded; it is never changed."""

_GENERAL: dict[str, type[SubjectConfigKey | ModeKey | ClearSubjectKey]] = {
    cls.keyType: cls for cls in (SubjectConfigKey, ModeKey, ClearSubjectKey)
}

_ORDERS: dict[type, tuple[str, ...]] = {
    SchemaKey: (
        "subject",
        "version",
        "id",
        "md5",
        "schemaType",
        "references",
        "metadata",
        "ruleSet",
        "schema",
        "deleted",
    ),
    SubjectConfigKey: (
        "subject",
        "alias",
        "normalize",
        "validateFields",
        "compatibilityLevel",
        "compatibilityGroup",
        "defaultMetadata",
        "overrideMetadata",
        "defaultRuleSet",
        "overrideRuleSet",
    ),
    ModeKey: ("subject", "mode"),
    DeleteSubjectKey: ("subject", "version"),
}


# -- encoding


def encodeKey(key: RegistryKey) -> bytes:
    """
    A record's key, as Confluent's registry writes it.

    @raise InvalidEntryError: there is no such key to write.
    """
    match key:
        case NoopKey():
            fields: dict[str, Any] = {"keytype": key.keyType, "magic": 0}
        case SchemaKey(subject, version):
            fields = {"keytype": key.keyType, "subject": subject, "version": version, "magic": 1}
        case UnservedKey(keyType):
            raise InvalidEntryError(f"a key of the kind {keyType:.40} is not written")
        case _:
            named = {} if key.subject is None else {"subject": key.subject}
            fields = {"keytype": key.keyType, **named, "magic": 0}
    return _encode(fields)


def encodeValue(key: RegistryKey, value: Value) -> bytes:
    """
    A record's value: the known fields in Confluent's order, and then the others in theirs.

    @raise InvalidEntryError: it is too large for brokers.
    """
    order = _ORDERS[type(key)]
    fields = {name: value[name] for name in order if name in value}
    fields.update((name, each) for name, each in value.items() if name not in fields)
    data = _encode(fields)
    if len(data) > RECORD_SIZE_MAX:
        raise InvalidEntryError(f"a record of {len(data)} bytes; {RECORD_SIZE_MAX} are allowed")
    return data


def _encode(fields: Value) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


# -- decoding


def decodeKey(data: bytes | None) -> RegistryKey:
    """
    A record's key, its fields in any order. Unknown fields are ignored.

    @raise InvalidEntryError: it is no key of a registry.
    """
    if data is None:
        raise InvalidEntryError("a record without a key")
    fields = _decode(data, "key")
    keyType = fields.get("keytype")
    if not isinstance(keyType, str):
        raise InvalidEntryError("a key without a keytype")
    if keyType == NoopKey.keyType:
        return NoopKey()
    if keyType == SchemaKey.keyType:
        if fields.get("magic") not in (0, 1):
            raise InvalidEntryError(f"a key of a schema with the magic byte {fields.get('magic')}")
        return SchemaKey(_subject(fields), _number(fields, "version", 1))
    if keyType == DeleteSubjectKey.keyType:
        return DeleteSubjectKey(_subject(fields))
    made = _GENERAL.get(keyType)
    if made is None:
        return UnservedKey(keyType)
    return made(None if fields.get("subject") is None else _subject(fields))


def decodeValue(key: RegistryKey, data: bytes) -> Value:
    """
    A record's value, with all of its fields.

    @raise InvalidEntryError: a field that matters here is missing, or is none of Confluent's.
    """
    if isinstance(key, NoopKey | UnservedKey | ClearSubjectKey):
        return {}
    fields = _decode(data, "value")
    match key:
        case SchemaKey():
            _checkSchema(fields)
        case SubjectConfigKey():
            level = fields.get("compatibilityLevel")
            if level is not None and level not in LEVELS:
                raise InvalidEntryError(f"the compatibility level {level!r:.40}")
        case ModeKey():
            if not isinstance(fields.get("mode"), str) or not fields["mode"]:
                raise InvalidEntryError("a mode that is no text")
        case DeleteSubjectKey():
            _number(fields, "version", 0)
    return fields


def _checkSchema(fields: Value) -> None:
    _number(fields, "id", 0)
    text = fields.get("schema")
    if not isinstance(text, str):
        raise InvalidEntryError("a version without a schema")
    _checkText(text)
    for name, kind in (("schemaType", str), ("references", list), ("deleted", bool)):
        if fields.get(name) is not None and not isinstance(fields[name], kind):
            raise InvalidEntryError(f"a version whose {name} is not of type {kind.__name__}")
    for each in fields.get("references") or ():
        if not isinstance(each, dict) or not isinstance(each.get("subject"), str):
            raise InvalidEntryError("a version with a reference that names no subject")
        _number(each, "version", -1)


def _decode(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidEntryError(f"a {what} that is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidEntryError(f"a {what} that is not a JSON object")
    return fields


def _subject(fields: Value) -> str:
    name = fields.get("subject")
    if not isinstance(name, str) or len(name) > SUBJECT_SIZE_MAX:
        raise InvalidEntryError(f"a subject that is no text of {SUBJECT_SIZE_MAX} characters")
    _checkText(name)
    return name


def _checkText(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InvalidEntryError(f"a text that is not Unicode: {error}") from error


def _number(fields: Value, name: str, least: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= _INT_MAX:
        raise InvalidEntryError(f"a {name} that is no number from {least} on")
    return value
