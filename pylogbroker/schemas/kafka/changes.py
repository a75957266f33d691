"""
What a change of a registry writes into its compacted topic, decided from the state: the records
that Confluent's registry writes for the same request. A module of its own, since it is pure.

One order differs. A schema that was deleted and is registered again becomes a new version, and the
deleted one is removed. Confluent's registry removes it first, and writes the new version then; here
the new version comes first, so that no failure in between loses the schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pylogbroker.errors import RegistryRefusalError
from pylogbroker.schemas.kafka.state import CONTEXT_START, KafkaRegistryState
from pylogbroker.schemas.kafka.topicrecords import (
    IMPORT,
    READONLY,
    DeleteSubjectKey,
    ModeKey,
    RegistryKey,
    SchemaKey,
    SubjectConfigKey,
    Value,
    encodeKey,
    encodeValue,
)
from pylogbroker.schemas.logrecords import DEFAULT_LEVEL, NONE, TRANSITIVE
from pylogbroker.schemas.state import (
    INCOMPATIBLE,
    INVALID_MODE,
    NOT_ALLOWED,
    READWRITE,
    REFERENCED,
    SUBJECT_NOT_FOUND,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_FOUND,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    BaseRegistryState,
)

MODES = (READWRITE, READONLY)
"""The modes that may be set here. The others are kept, and block changes that they forbid."""

_ID_MAX = 0x7FFFFFFF


class SchemasRecord(NamedTuple):
    """
    A record to write.

    @ivar value: L{None}: it removes the key.
    """

    key: bytes
    value: bytes | None


class PlannedChange(NamedTuple):
    """
    What a change writes, in order, and its result.

    @ivar key: whose value says whether the change has happened; L{None}: nothing is to be checked.
    @ivar value: the value that the key has then.
    """

    result: Any
    records: list[SchemasRecord]
    key: RegistryKey | None = None
    value: Value | None = None


def put(state: KafkaRegistryState, key: RegistryKey, value: Value) -> SchemasRecord:
    """
    A record that gives a key a value.

    @raise InvalidEntryError: it is too large for brokers.
    """
    return SchemasRecord(next(state.keyForms(key)), encodeValue(key, value))


def remove(state: KafkaRegistryState, key: RegistryKey) -> list[SchemasRecord]:
    """Records that remove a key, in all of its forms."""
    return [SchemasRecord(form, None) for form in state.keyForms(key)]


# -- versions


def checkSubject(subject: str) -> None:
    """
    @raise RegistryRefusalError: the subject belongs to a context that is not served.
    """
    if subject.startswith(CONTEXT_START):
        raise RegistryRefusalError(
            NOT_ALLOWED,
            f"Subject {subject} is in another context. Such subjects are kept, but not served",
        )


def checkWritable(state: KafkaRegistryState, subject: str) -> None:
    """
    @raise RegistryRefusalError: the subject's mode allows no change, or is not known here.
    """
    mode = state.mode(subject)
    if mode not in (READWRITE, IMPORT):
        raise RegistryRefusalError(
            NOT_ALLOWED, f"Subject {subject} is in read-only mode: its mode is {mode}"
        )


def comparedVersions(state: KafkaRegistryState, subject: str) -> list[tuple[int, str]]:
    """
    The versions with which a new Avro schema of a subject must be compatible, the oldest first.

    @raise RegistryRefusalError: the subject's mode, its settings, or a version that counts, are not
        served here, so that no schema can be registered.
    """
    checkSubject(subject)
    mode = state.mode(subject)
    if mode != READWRITE:
        raise RegistryRefusalError(
            NOT_ALLOWED, f"Subject {subject} is not in read-write mode: its mode is {mode}"
        )
    unserved = state.unservedSettings(subject)
    if unserved:
        raise RegistryRefusalError(
            NOT_ALLOWED,
            f"The configuration of {subject} has {', '.join(unserved)}, which this registry does"
            " not apply. Register at a registry that does, or remove them there",
        )
    versions = state.earlier(subject)
    if not versions:
        return []
    latest = versions[-1][0]
    rules = [name for name in ("metadata", "ruleSet") if name in state.attributes(subject, latest)]
    if rules:
        raise RegistryRefusalError(
            NOT_ALLOWED,
            f"Version {latest} of {subject} has {' and '.join(rules)}, which its next version"
            " would inherit: this registry does not apply them. Register at one that does",
        )
    level = state.level(subject)
    if level == NONE:
        return []
    compared = versions if level.endswith(TRANSITIVE) else versions[-1:]
    checkComparable(state, subject, [number for number, _text in compared])
    return compared


def checkComparable(state: BaseRegistryState, subject: str, numbers: Iterable[int]) -> None:
    """
    @raise RegistryRefusalError: a new Avro schema cannot be compared with one of the versions. The
        code is L{INCOMPATIBLE} when that is because it has another type.
    """
    for number in numbers:
        details = state.attributes(subject, number)
        if "schemaType" in details:
            raise RegistryRefusalError(
                INCOMPATIBLE,
                f"Incompatible because of different schema type: version {number} of {subject} is"
                f" {details['schemaType']}, and the new schema is AVRO",
            )
        if "references" in details:
            raise RegistryRefusalError(
                NOT_ALLOWED,
                f"Version {number} of {subject} refers to other schemas, with which this registry"
                " cannot compare. Use one that resolves references",
            )


def registration(
    state: KafkaRegistryState, subject: str, text: str, identity: str
) -> PlannedChange:
    """
    A new version of a subject; its result is the id. The schema must be compatible.

    @raise InvalidEntryError: the schema is too large for brokers.
    @raise RegistryRefusalError: there is no further id.
    """
    schemaId = state.idOf(identity)
    if schemaId is None:
        schemaId = state.idMax + 1
        if schemaId > _ID_MAX:
            raise RegistryRefusalError(NOT_ALLOWED, f"All ids up to {_ID_MAX} are in use")
    else:
        text = state.schema(schemaId)
    try:
        numbers = state.versions(subject, True)
    except RegistryRefusalError:
        numbers = []
    key = SchemaKey(subject, max(numbers, default=0) + 1)
    value = {
        "subject": subject,
        "version": key.version,
        "id": schemaId,
        "schema": text,
        "deleted": False,
    }
    records = [put(state, key, value)]
    for number in numbers:
        if state.version(subject, number, True).schemaId == schemaId:
            records += remove(state, SchemaKey(subject, number))
    return PlannedChange(schemaId, records, key, value)


def versionDeletion(
    state: KafkaRegistryState, subject: str, number: int, isPermanent: bool
) -> PlannedChange:
    """
    The deletion of a version; its result is the number.

    @raise RegistryRefusalError: there is no such version, it has to be deleted in the other way
        first, another schema refers to it, or the subject's mode forbids it.
    """
    checkWritable(state, subject)
    versions = state.versions(subject, True)
    if number not in versions:
        raise RegistryRefusalError(VERSION_NOT_FOUND, f"Version {number} not found.")
    _checkReferrers(state, subject, number)
    isDeleted = number not in dict(state.earlier(subject))
    where = f"Subject '{subject}' Version {number}"
    key = SchemaKey(subject, number)
    if isPermanent:
        if not isDeleted:
            raise RegistryRefusalError(
                VERSION_NOT_SOFT_DELETED,
                f"{where} was not deleted first before being permanently deleted",
            )
        return PlannedChange(number, remove(state, key), key)
    if isDeleted:
        raise RegistryRefusalError(
            VERSION_SOFT_DELETED,
            f"{where} was soft deleted. Set permanent=true to delete permanently",
        )
    value = {**(state.value(key) or {}), "deleted": True}
    records = [put(state, key, value)]
    if len(state.earlier(subject)) == 1:
        records += _settingsRemoval(state, subject)
    return PlannedChange(number, records, key, value)


def subjectDeletion(state: KafkaRegistryState, subject: str, isPermanent: bool) -> PlannedChange:
    """
    The deletion of a subject's versions; its result is their numbers.

    @raise RegistryRefusalError: as L{versionDeletion}.
    """
    checkWritable(state, subject)
    left = [number for number, _text in state.earlier(subject)]
    numbers = state.versions(subject, True) if isPermanent else left
    if isPermanent and left:
        raise RegistryRefusalError(
            SUBJECT_NOT_SOFT_DELETED,
            f"Subject '{subject}' was not deleted first before being permanently deleted",
        )
    if not numbers:
        state.versions(subject, True)
        raise RegistryRefusalError(
            SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    for number in numbers:
        _checkReferrers(state, subject, number)
    if isPermanent:
        return PlannedChange(
            numbers,
            [each for number in numbers for each in remove(state, SchemaKey(subject, number))],
            SchemaKey(subject, numbers[-1]),
        )
    key = DeleteSubjectKey(subject)
    value = encodeValue(key, {"subject": subject, "version": numbers[-1]})
    records = [SchemasRecord(encodeKey(key), value), *_settingsRemoval(state, subject)]
    return PlannedChange(numbers, records)


def _checkReferrers(state: KafkaRegistryState, subject: str, number: int) -> None:
    ids = state.referencedBy(subject, number)
    if ids:
        raise RegistryRefusalError(
            REFERENCED,
            f"One or more references exist to the schema of subject {subject}, version {number}:"
            f" ids {', '.join(map(str, ids[:20]))}",
        )


def _settingsRemoval(state: KafkaRegistryState, subject: str) -> list[SchemasRecord]:
    """A subject without versions has no settings, either."""
    return [
        record
        for key in (ModeKey(subject), SubjectConfigKey(subject))
        if state.value(key) is not None
        for record in remove(state, key)
    ]


# -- settings


def levelChange(state: KafkaRegistryState, subject: str, level: str) -> PlannedChange:
    """
    Another compatibility level; its result is the level that was set or removed.

    @param subject: C{""}: the general level.
    @param level: C{""}: remove the level, and the settings with it.
    @raise RegistryRefusalError: there is none to remove, or the mode forbids it.
    """
    checkSubject(subject)
    checkWritable(state, subject)
    key = SubjectConfigKey(subject or None)
    before = state.value(key)
    if not level:
        if subject and before is None:
            raise RegistryRefusalError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        found = DEFAULT_LEVEL if not subject else state.ownLevel(subject) or state.level()
        return PlannedChange(found, remove(state, key), key)
    value = {
        **(before or {}),
        **({"subject": subject} if subject else {}),
        "compatibilityLevel": level,
    }
    return PlannedChange(level, [put(state, key, value)], key, value)


def modeChange(state: KafkaRegistryState, subject: str, mode: str) -> PlannedChange:
    """
    Another mode; its result is the mode that was set or removed.

    @param subject: C{""}: the general mode.
    @param mode: C{""}: remove the subject's mode.
    @raise RegistryRefusalError: it is none that may be set, or there is none to remove.
    """
    checkSubject(subject)
    key = ModeKey(subject or None)
    if not mode:
        own = state.ownMode(subject)
        if not own:
            raise RegistryRefusalError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return PlannedChange(own, remove(state, key), key)
    if mode not in MODES:
        raise RegistryRefusalError(
            INVALID_MODE,
            f"Invalid mode. The modes that can be set here are {' and '.join(MODES)}",
        )
    value = {"subject": subject, "mode": mode} if subject else {"mode": mode}
    return PlannedChange(mode, [put(state, key, value)], key, value)
