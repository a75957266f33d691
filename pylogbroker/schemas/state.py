"""
The state of a registry, as a state machine: records of its topic in, in the log's order; answers
out. No clock, no randomness, no library that parses schemas.

What must be true: two registries that have applied the same records have the same state, whatever
version they run. So no judgement is made here (is this a schema, is it compatible). The registry
that appends a record has judged, and records the basis: the revisions of the subject and of the
general settings. If both are unchanged when the record is applied, the schema gets the next id. If
not, the record has no effect, and its author judges again. So no registry has to be the leader.

Rejected: every registry judges every record when it applies it. A registry with a newer library
might then judge an old record differently, and give later schemas other ids.

A schema's id is for ever, since payloads refer to it. Deletion removes versions from subjects, in
two steps (hidden from new readers; permanently), and keeps ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pylogbroker.errors import RegistryRefusalError
from pylogbroker.schemas.logrecords import (
    DEFAULT_LEVEL,
    ChangeEnvelope,
    DeleteSubject,
    DeleteVersion,
    Initialize,
    Register,
    SetLevel,
)

REQUEST_COUNT = 10_000
"""
Request ids that are remembered, to detect repetitions. All registries must have the same number.
"""

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
LEVEL_NOT_FOUND = 40408
MODE_NOT_FOUND = 40409
INCOMPATIBLE = 409
STALE = 40901
"""Internal: the basis of a record has changed."""
INVALID_SCHEMA = 42201
INVALID_MODE = 42204
NOT_ALLOWED = 42205
REFERENCED = 42206

READWRITE = "READWRITE"
"""The mode in which schemas are registered."""


class SchemaVersion(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    schemaId: int
    text: str


@dataclass(slots=True)
class StoredVersion:
    """A version of a subject: the id of its schema, and whether it is deleted."""

    schemaId: int
    isDeleted: bool = False


@dataclass(slots=True)
class StoredSubject:
    """
    @ivar revision: grows with each change that matters for compatibility.
    """

    versions: dict[int, StoredVersion] = field(default_factory=dict)
    level: str = ""
    revision: int = 0

    def visible(self, isWithDeleted: bool) -> dict[int, StoredVersion]:
        return {
            number: version
            for number, version in self.versions.items()
            if isWithDeleted or not version.isDeleted
        }


_UNKNOWN = StoredSubject()
"""Stands for a subject that no change has named. Never changed."""


class BaseRegistryState(ABC):
    """
    Subjects, their versions, and schemas by id: what both kinds of topics have in common. Methods
    of a subclass fill it.

    @ivar textsSize: characters of all schemas.
    @ivar contexts: the names of the contexts, the one that is served first.
    """

    def __init__(self) -> None:
        self.textsSize = 0
        self.contexts: dict[str, None] = {".": None}
        self._texts: dict[int, str] = {}
        self._subjects: dict[str, StoredSubject] = {}
        self._usages: dict[int, set[tuple[str, int]]] = {}
        self._level = DEFAULT_LEVEL

    # -- queries

    def _known(self, name: str) -> StoredSubject:
        return self._subjects.get(name, _UNKNOWN)

    @property
    def subjectCount(self) -> int:
        """The number of subjects, deleted ones included."""
        return len(self._subjects)

    def subjects(self, isWithDeleted: bool = False) -> list[str]:
        """Names of the subjects that have versions."""
        return sorted(
            name for name, subject in self._subjects.items() if subject.visible(isWithDeleted)
        )

    def _subject(self, name: str, isWithDeleted: bool) -> StoredSubject:
        subject = self._known(name)
        if not subject.visible(isWithDeleted):
            raise RegistryRefusalError(SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")
        return subject

    def versions(self, subject: str, isWithDeleted: bool = False) -> list[int]:
        """
        @raise RegistryRefusalError: there is no such subject.
        """
        return sorted(self._subject(subject, isWithDeleted).visible(isWithDeleted))

    def version(
        self, subject: str, number: int | None, isWithDeleted: bool = False
    ) -> SchemaVersion:
        """
        @param number: L{None} for the latest.
        @raise RegistryRefusalError: there is no such subject or version.
        """
        found = self._subject(subject, isWithDeleted).visible(isWithDeleted)
        if number is None:
            number = max(found)
        if number not in found:
            raise RegistryRefusalError(VERSION_NOT_FOUND, f"Version {number} not found.")
        schemaId = found[number].schemaId
        return SchemaVersion(subject, number, schemaId, self._texts[schemaId])

    def versionCount(self, subject: str) -> int:
        """The number of a subject's versions, deleted ones included."""
        return len(self._known(subject).versions)

    def earlier(self, subject: str) -> list[tuple[int, str]]:
        """
        Versions and texts with which a new schema of a subject must be compatible, the oldest
        first.
        """
        return [
            (number, self._texts[version.schemaId])
            for number, version in sorted(self._known(subject).visible(False).items())
        ]

    def find(
        self, subject: str, identity: str, isWithDeleted: bool = False
    ) -> SchemaVersion | None:
        """The latest version of a subject that has this schema; L{None}: there is none."""
        numbers = [
            number
            for number, version in self._known(subject).visible(isWithDeleted).items()
            if self._isSchema(version.schemaId, identity)
        ]
        return self.version(subject, max(numbers), isWithDeleted) if numbers else None

    @abstractmethod
    def _isSchema(self, schemaId: int, identity: str) -> bool:
        """Whether an id is that of a schema."""

    def attributes(self, subject: str, number: int) -> Mapping[str, Any]:
        """
        What a version has beside its schema: C{schemaType} unless that is Avro, C{references},
        C{metadata}, C{ruleSet}, as in an answer of the registry.
        """
        return {}

    def schemaAttributes(self, schemaId: int) -> Mapping[str, Any]:
        """The L{attributes} of a schema, by its id."""
        return {}

    def referencedBy(self, subject: str, number: int) -> list[int]:
        """The ids of the schemas that refer to a version, in order."""
        return []

    def mode(self, subject: str = "") -> str:
        """The mode of a subject; of C{""}, the general one."""
        return READWRITE

    def ownMode(self, subject: str) -> str:
        """The mode that was set for a subject; C{""}: none."""
        return ""

    def config(self, subject: str = "") -> Mapping[str, Any] | None:
        """What was set for a subject, or generally, beside its level; L{None}: nothing."""
        return None

    def schema(self, schemaId: int) -> str:
        """
        @raise RegistryRefusalError: there is no schema with this id.
        """
        text = self._texts.get(schemaId)
        if text is None:
            raise RegistryRefusalError(SCHEMA_NOT_FOUND, f"Schema {schemaId} not found")
        return text

    def usagesOf(self, schemaId: int, isWithDeleted: bool = False) -> Iterator[tuple[str, int]]:
        """
        Subjects and versions that have a schema.

        @raise RegistryRefusalError: there is no schema with this id.
        """
        self.schema(schemaId)
        for name, number in sorted(self._usages[schemaId]):
            if isWithDeleted or not self._subjects[name].versions[number].isDeleted:
                yield name, number

    def level(self, subject: str = "") -> str:
        """The compatibility level of a subject; of C{""}, the general one."""
        return self.ownLevel(subject) or self._level

    def ownLevel(self, subject: str) -> str:
        """The level that was set for a subject; C{""}: none."""
        return self._known(subject).level


class RegistryState(BaseRegistryState):
    """
    The state of a registry whose topic has our own records.

    @ivar isInitialized: whether the first record was applied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.isInitialized = False
        self._ids: dict[str, int] = {}
        self._revision = 0
        self._requests: OrderedDict[str, None] = OrderedDict()

    # -- records

    def apply(self, record: ChangeEnvelope) -> Any:
        """
        Apply the next record of the log.

        @return: L{SchemaVersion}, the deleted version or versions, or the level that was set;
            L{None} for a repetition.
        @raise RegistryRefusalError: the record has no effect; the text says why.
        """
        if record.request in self._requests:
            return None
        self._requests[record.request] = None
        if len(self._requests) > REQUEST_COUNT:
            self._requests.popitem(last=False)
        match record.change:
            case Initialize():
                self.isInitialized = True
                return None
            case Register() as change:
                return self._register(change)
            case DeleteVersion() as change:
                return self._deleteVersion(change)
            case DeleteSubject() as change:
                return self._deleteSubject(change)
            case SetLevel() as change:
                return self._setLevel(change)

    def _register(self, change: Register) -> SchemaVersion:
        if change.basis != self.basis(change.subject):
            raise RegistryRefusalError(STALE, f"{change.subject} has changed meanwhile")
        schemaId = self._ids.get(change.identity)
        if schemaId is None:
            schemaId = self._ids[change.identity] = len(self._texts) + 1
            self._texts[schemaId] = change.text
            self.textsSize += len(change.text)
        subject = self._subjects.setdefault(change.subject, StoredSubject())
        number = max(subject.versions, default=0) + 1
        subject.versions[number] = StoredVersion(schemaId)
        self._usages.setdefault(schemaId, set()).add((change.subject, number))
        subject.revision += 1
        return SchemaVersion(change.subject, number, schemaId, self._texts[schemaId])

    def _deleteVersion(self, change: DeleteVersion) -> int:
        subject = self._subject(change.subject, True)
        version = subject.versions.get(change.version)
        where = f"Subject '{change.subject}' Version {change.version}"
        if version is None:
            raise RegistryRefusalError(VERSION_NOT_FOUND, f"Version {change.version} not found.")
        if change.isPermanent:
            if not version.isDeleted:
                raise RegistryRefusalError(
                    VERSION_NOT_SOFT_DELETED,
                    f"{where} was not deleted first before being permanently deleted",
                )
            self._remove(change.subject, subject, change.version)
        elif version.isDeleted:
            raise RegistryRefusalError(
                VERSION_SOFT_DELETED,
                f"{where} was soft deleted. Set permanent=true to delete permanently",
            )
        version.isDeleted = True
        subject.revision += 1
        return change.version

    def _remove(self, name: str, subject: StoredSubject, number: int) -> None:
        self._usages[subject.versions.pop(number).schemaId].discard((name, number))

    def _deleteSubject(self, change: DeleteSubject) -> list[int]:
        subject = self._subject(change.subject, True)
        numbers = list(subject.visible(change.isPermanent))
        if change.isPermanent:
            if subject.visible(False):
                raise RegistryRefusalError(
                    SUBJECT_NOT_SOFT_DELETED,
                    f"Subject '{change.subject}' was not deleted first before being permanently"
                    " deleted",
                )
            for number in numbers:
                self._remove(change.subject, subject, number)
        elif not numbers:
            raise RegistryRefusalError(
                SUBJECT_SOFT_DELETED,
                f"Subject '{change.subject}' was soft deleted. Set permanent=true to delete"
                " permanently",
            )
        else:
            for number in numbers:
                subject.versions[number].isDeleted = True
        subject.revision += 1
        return numbers

    def _setLevel(self, change: SetLevel) -> str:
        if not change.subject:
            self._level = change.level or DEFAULT_LEVEL
            self._revision += 1
            return self._level
        subject = self._subjects.setdefault(change.subject, StoredSubject())
        before, subject.level = subject.level, change.level
        subject.revision += 1
        return change.level or before

    def basis(self, subject: str) -> tuple[int, int]:
        """The revisions on which compatibility in a subject depends."""
        return self._known(subject).revision, self._revision

    def _isSchema(self, schemaId: int, identity: str) -> bool:
        return self._ids.get(identity) == schemaId
