"""
What a registry knows, as a state machine: entries of its topic in, in the log's order; answers out. No clock, no chance, no library that reads schemas.

What must be true: two registries that have applied the same entries know the same, and answer alike, whatever version of what they run. So what takes
judgement (is this a schema, may it follow the others) is not done here. Whoever appends an entry has judged, and says on what: the subject's
revision and that of the general settings. If both are still so when the entry comes out of the log, the judgement holds, and the schema gets the next
id; if not, somebody was quicker, the entry counts for nothing, and who appended it judges anew. So no registry has to be the first among them.

Rejected: that every registry judges every entry when it applies it. A registry with a newer library might then judge an old entry otherwise, and give
every later schema another id than the others do.

A schema's id is for ever: what is in topics refers to it. Deleting takes versions out of subjects, in two steps (deleted for new readers;
permanently), and leaves ids alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from pylogbroker.errors import RegistryError
from pylogbroker.schemas.levels import DEFAULT_LEVEL
from pylogbroker.schemas.logrecords import (
    DeleteSubject,
    DeleteVersion,
    Entry,
    Initialize,
    Register,
    SetLevel,
)

REQUEST_COUNT = 10_000
"""Requests that are remembered, to know one that comes again. Part of the machine: all registries must have the same."""

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
LEVEL_NOT_FOUND = 40408
MODE_NOT_FOUND = 40409
STALE = 40901
"""Inside only: somebody was quicker."""


class Registered(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    schemaId: int
    text: str


class _Version:
    __slots__ = ("isDeleted", "schemaId")

    def __init__(self, schemaId: int) -> None:
        self.schemaId = schemaId
        self.isDeleted = False


class _Subject:
    """
    @ivar revision: grows with each change that matters to what may follow.
    """

    __slots__ = ("level", "revision", "versions")

    def __init__(self) -> None:
        self.versions: dict[int, _Version] = {}
        self.level = ""
        self.revision = 0

    def some(self, isWithDeleted: bool) -> dict[int, _Version]:
        return {
            number: version
            for number, version in self.versions.items()
            if isWithDeleted or not version.isDeleted
        }


class RegistryState:
    """
    Subjects, their versions, schemas by id.

    @ivar hasBegun: whether the first entry was there.
    @ivar textsSize: bytes of all schemas.
    """

    def __init__(self) -> None:
        self.hasBegun = False
        self.textsSize = 0
        self._texts: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._subjects: dict[str, _Subject] = {}
        self._places: dict[int, set[tuple[str, int]]] = {}
        self._level = DEFAULT_LEVEL
        self._revision = 0
        self._requests: OrderedDict[str, None] = OrderedDict()

    # -- entries

    def apply(self, entry: Entry) -> Any:
        """
        The next entry of the log.

        @return: L{Registered} of what was registered, the number or numbers of what was deleted, the level that was set; L{None} for an entry that came before.
        @raise RegistryError: it counts for nothing, and why.
        """
        if entry.request in self._requests:
            return None
        self._requests[entry.request] = None
        if len(self._requests) > REQUEST_COUNT:
            self._requests.popitem(last=False)
        change = entry.change
        match change:
            case Initialize():
                self.hasBegun = True
                return None
            case Register():
                return self._register(change)
            case DeleteVersion():
                return self._deleteVersion(change)
            case DeleteSubject():
                return self._deleteSubject(change)
            case SetLevel():
                return self._setLevel(change)

    def _register(self, change: Register) -> Registered:
        if change.basis != self.basis(change.subject):
            raise RegistryError(STALE, f"{change.subject} has changed meanwhile")
        schemaId = self._ids.get(change.identity)
        if schemaId is None:
            schemaId = self._ids[change.identity] = len(self._texts) + 1
            self._texts[schemaId] = change.text
            self.textsSize += len(change.text)
        subject = self._subjects.setdefault(change.subject, _Subject())
        number = max(subject.versions, default=0) + 1
        subject.versions[number] = _Version(schemaId)
        self._places.setdefault(schemaId, set()).add((change.subject, number))
        subject.revision += 1
        return Registered(change.subject, number, schemaId, self._texts[schemaId])

    def _deleteVersion(self, change: DeleteVersion) -> int:
        subject = self._subject(change.subject, True)
        version = subject.versions.get(change.version)
        where = f"Subject '{change.subject}' Version {change.version}"
        if version is None:
            raise RegistryError(VERSION_NOT_FOUND, f"Version {change.version} not found.")
        if change.isPermanent:
            if not version.isDeleted:
                raise RegistryError(
                    VERSION_NOT_SOFT_DELETED,
                    f"{where} was not deleted first before being permanently deleted",
                )
            self._remove(change.subject, subject, change.version)
        elif version.isDeleted:
            raise RegistryError(
                VERSION_SOFT_DELETED,
                f"{where} was soft deleted. Set permanent=true to delete permanently",
            )
        version.isDeleted = True
        subject.revision += 1
        return change.version

    def _remove(self, name: str, subject: _Subject, number: int) -> None:
        self._places[subject.versions.pop(number).schemaId].discard((name, number))

    def _deleteSubject(self, change: DeleteSubject) -> list[int]:
        subject = self._subject(change.subject, True)
        numbers = list(subject.some(change.isPermanent))
        if change.isPermanent:
            if subject.some(False):
                raise RegistryError(
                    SUBJECT_NOT_SOFT_DELETED,
                    f"Subject '{change.subject}' was not deleted first before being permanently deleted",
                )
            for number in numbers:
                self._remove(change.subject, subject, number)
        elif not numbers:
            raise RegistryError(
                SUBJECT_SOFT_DELETED,
                f"Subject '{change.subject}' was soft deleted. Set permanent=true to delete permanently",
            )
        for number in numbers if not change.isPermanent else ():
            subject.versions[number].isDeleted = True
        subject.revision += 1
        return numbers

    def _setLevel(self, change: SetLevel) -> str:
        if not change.subject:
            self._level = change.level or DEFAULT_LEVEL
            self._revision += 1
            return self._level
        subject = self._subjects.setdefault(change.subject, _Subject())
        before, subject.level = subject.level, change.level
        subject.revision += 1
        return change.level or before

    # -- what there is

    def basis(self, subject: str) -> tuple[int, int]:
        """The revisions on which a judgement rests whether a schema may follow in a subject."""
        found = self._subjects.get(subject)
        return (0 if found is None else found.revision), self._revision

    @property
    def subjectCount(self) -> int:
        """How many subjects there are, deleted ones included."""
        return len(self._subjects)

    def subjects(self, isWithDeleted: bool = False) -> list[str]:
        """Names of those that have versions."""
        return sorted(
            name for name, subject in self._subjects.items() if subject.some(isWithDeleted)
        )

    def _subject(self, name: str, isWithDeleted: bool) -> _Subject:
        subject = self._subjects.get(name)
        if subject is None or not subject.some(isWithDeleted):
            raise RegistryError(SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")
        return subject

    def versions(self, subject: str, isWithDeleted: bool = False) -> list[int]:
        """
        @raise RegistryError: there is no such subject.
        """
        return sorted(self._subject(subject, isWithDeleted).some(isWithDeleted))

    def version(self, subject: str, number: int | None, isWithDeleted: bool = False) -> Registered:
        """
        @param number: L{None} for the latest.
        @raise RegistryError: there is no such subject or version.
        """
        found = self._subject(subject, isWithDeleted).some(isWithDeleted)
        if number is None:
            number = max(found)
        if number not in found:
            raise RegistryError(VERSION_NOT_FOUND, f"Version {number} not found.")
        schemaId = found[number].schemaId
        return Registered(subject, number, schemaId, self._texts[schemaId])

    def versionCount(self, subject: str) -> int:
        """How many versions of a subject are kept, deleted ones included."""
        found = self._subjects.get(subject)
        return 0 if found is None else len(found.versions)

    def earlier(self, subject: str) -> list[tuple[int, str]]:
        """Version and text of all that a new schema of a subject has to get on with, the oldest first."""
        found = self._subjects.get(subject)
        return (
            []
            if found is None
            else [
                (number, self._texts[version.schemaId])
                for number, version in sorted(found.some(False).items())
            ]
        )

    def find(self, subject: str, identity: str, isWithDeleted: bool = False) -> Registered | None:
        """The latest version of a subject that is this schema; L{None}: none is."""
        found = self._subjects.get(subject)
        schemaId = self._ids.get(identity)
        numbers = (
            []
            if found is None
            else [
                number
                for number, version in found.some(isWithDeleted).items()
                if version.schemaId == schemaId
            ]
        )
        return self.version(subject, max(numbers), isWithDeleted) if numbers else None

    def schema(self, schemaId: int) -> str:
        """
        @raise RegistryError: there is none of that id.
        """
        text = self._texts.get(schemaId)
        if text is None:
            raise RegistryError(SCHEMA_NOT_FOUND, f"Schema {schemaId} not found")
        return text

    def places(self, schemaId: int, isWithDeleted: bool = False) -> Iterator[tuple[str, int]]:
        """
        Subjects and versions in which a schema is.

        @raise RegistryError: there is none of that id.
        """
        self.schema(schemaId)
        for name, number in sorted(self._places[schemaId]):
            if isWithDeleted or not self._subjects[name].versions[number].isDeleted:
                yield name, number

    def level(self, subject: str = "") -> str:
        """Which rule holds for a subject; C{""} for the general one."""
        return self.ownLevel(subject) or self._level

    def ownLevel(self, subject: str) -> str:
        """The rule that was set for a subject; C{""}: none was."""
        found = self._subjects.get(subject)
        return "" if found is None else found.level
