"""
The state of a registry whose topic has Confluent's records: records in, in the topic's order;
answers out.

What must be true:

  - Two registries that have read the same records give the same answers, and so does one that reads
  them after a compaction: as in Confluent's registry, a record replaces what its key had before.
  - An id stands for one schema. A record that gives an id another schema has no effect, as in
  Confluent's registry; it is skipped, and the registry that leads writes the right one again.
  - What is not served here stays as it is: schemas of other types, references, metadata and rules,
  unknown fields, unknown modes, subjects of other contexts. It can be read, where it is a schema,
  and is written again, unchanged, with the next record of its key.

A schema's id is forgotten with the last version that has it: a permanent deletion removes the
record, and a compaction leaves nothing of it. (A topic of our own records keeps ids for ever.)

A version may have been written with another form of its key, for example by karapace, which had the
fields in another order. Brokers compact by bytes, so such forms are remembered, and used again;
also those of records that were skipped, since the right value must replace them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pylogbroker.errors import InvalidEntryError, InvalidSchemaError
from pylogbroker.schemas.kafka.topicrecords import (
    AVRO,
    READONLY_OVERRIDE,
    ClearSubjectKey,
    DeleteSubjectKey,
    ModeKey,
    RegistryKey,
    SchemaKey,
    SubjectConfigKey,
    Value,
    encodeKey,
)
from pylogbroker.schemas.logrecords import DEFAULT_LEVEL
from pylogbroker.schemas.schematext import canonicalText, fingerprint
from pylogbroker.schemas.state import (
    READWRITE,
    BaseRegistryState,
    StoredSubject,
    StoredVersion,
)

CONTEXT_START = ":."
"""Begins the name of a subject in a context: C{:.CONTEXT:NAME}."""

_PLAIN = frozenset(("subject", "version", "id", "schema", "deleted"))
_ATTRIBUTES = ("schemaType", "references", "metadata", "ruleSet")
_UNSERVED_SETTINGS = (
    "alias",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


class KafkaRegistryState(BaseRegistryState):
    """
    Subjects, versions, schemas by id, levels and modes.

    @ivar idMax: the largest id that was read; the next one is larger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.idMax = 0
        self._identities: dict[int, str] = {}  # of plain Avro schemas
        self._ids: dict[str, set[int]] = {}
        self._details: dict[tuple[str, int], Value] = {}  # versions with more than plain fields
        self._schemaDetails: dict[int, Value] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._configs: dict[str, Value] = {}
        self._modes: dict[str, str] = {}
        self._forms: dict[RegistryKey, dict[bytes, None]] = {}

    # -- records

    def apply(self, key: RegistryKey, value: Value | None, keyBytes: bytes) -> None:
        """
        Apply the next record of the topic. The form of its key is remembered also if it has no
        effect, so that the right value replaces it there.

        @param value: L{None}: the record removes its key.
        @param keyBytes: the key as it is in the topic.
        @raise InvalidEntryError: the record gives an id another schema, and has no effect.
        """
        context = _contextOf(getattr(key, "subject", None))
        if context:
            self.contexts.setdefault(context)
            return
        if isinstance(key, SchemaKey | SubjectConfigKey | ModeKey):
            self._remember(key, keyBytes)
        match key:
            case SchemaKey():
                self._applySchema(key, value)
            case DeleteSubjectKey(name) if value is not None:
                self._hide(name, value["version"])
            case ClearSubjectKey(name):
                for each in list(self._subjects) if name is None else [name]:
                    self._clear(each)
            case SubjectConfigKey(name):
                self._setConfig(name or "", value)
            case ModeKey(name):
                self._modes.pop(name or "", None)
                if value is not None:
                    self._modes[name or ""] = value["mode"]

    def _remember(self, key: RegistryKey, keyBytes: bytes) -> None:
        forms = self._forms.get(key)
        if forms is None:
            usual = encodeKey(key)
            if keyBytes == usual:
                return
            # What the key has was read in the usual form, which is not remembered alone.
            forms = self._forms[key] = {} if self.value(key) is None else {usual: None}
        forms.pop(keyBytes, None)
        forms[keyBytes] = None

    def _applySchema(self, key: SchemaKey, value: Value | None) -> None:
        name, number = key.subject, key.version
        if value is None:
            self._drop(name, number)
            return
        schemaId, text = value["id"], value["schema"]
        known = self._texts.get(schemaId)
        if known is not None and known != text:
            raise InvalidEntryError(
                f"version {number} of {name:.80} has the id {schemaId}, which is that of another"
                " schema"
            )
        self._drop(name, number, schemaId)
        self._addSchema(schemaId, text, value)
        subject = self._subjects.setdefault(name, StoredSubject())
        subject.versions[number] = StoredVersion(schemaId)
        self._usages.setdefault(schemaId, set()).add((name, number))
        if not value.keys() <= _PLAIN:
            self._details[name, number] = {k: v for k, v in value.items() if k != "schema"}
        self._refer(name, number, True)
        if value.get("deleted"):
            self._hideVersion(name, subject, number)

    def _addSchema(self, schemaId: int, text: str, value: Value) -> None:
        self.idMax = max(self.idMax, schemaId)
        if schemaId in self._texts:
            return
        self._texts[schemaId] = text
        self.textsSize += len(text)
        details = {name: value[name] for name in _ATTRIBUTES if value.get(name)}
        if details.get("schemaType") == AVRO:
            del details["schemaType"]
        if details:
            self._schemaDetails[schemaId] = details
        if "schemaType" not in details and "references" not in details:
            try:
                identity = fingerprint(canonicalText(text))
            except InvalidSchemaError:  # too large to be registered here
                return
            self._identities[schemaId] = identity
            self._ids.setdefault(identity, set()).add(schemaId)

    def _drop(self, name: str, number: int, idKept: int = -1) -> None:
        """Remove a version, and its schema unless it has C{idKept} or another version has it."""
        subject = self._known(name)
        if number not in subject.versions:
            return
        self._refer(name, number, False)
        self._details.pop((name, number), None)
        schemaId = subject.versions.pop(number).schemaId
        self._usages[schemaId].discard((name, number))
        if not self._usages[schemaId] and schemaId != idKept:
            self._forget(schemaId)
        self._forgetSubject(name)

    def _forget(self, schemaId: int) -> None:
        del self._usages[schemaId]
        self.textsSize -= len(self._texts.pop(schemaId))
        self._schemaDetails.pop(schemaId, None)
        identity = self._identities.pop(schemaId, None)
        if identity is not None:
            self._ids[identity].discard(schemaId)
            if not self._ids[identity]:
                del self._ids[identity]

    def _forgetSubject(self, name: str) -> None:
        subject = self._known(name)
        if not subject.versions and not subject.level:
            self._subjects.pop(name, None)

    def _hide(self, name: str, numberMax: int) -> None:
        subject = self._known(name)
        for number in [each for each in subject.versions if each <= numberMax]:
            self._hideVersion(name, subject, number)

    def _hideVersion(self, name: str, subject: StoredSubject, number: int) -> None:
        subject.versions[number].isDeleted = True
        self._refer(name, number, False)

    def _clear(self, name: str) -> None:
        for number, version in list(self._known(name).versions.items()):
            if version.isDeleted:
                self._drop(name, number)

    def _refer(self, name: str, number: int, isReferring: bool) -> None:
        for each in self._details.get((name, number), {}).get("references") or ():
            target = each["subject"], each["version"]
            if isReferring:
                self._referrers.setdefault(target, set()).add((name, number))
            elif target in self._referrers:
                self._referrers[target].discard((name, number))
                if not self._referrers[target]:
                    del self._referrers[target]

    def _setConfig(self, name: str, value: Value | None) -> None:
        self._configs.pop(name, None)
        if value is not None:
            self._configs[name] = value
        level = (value or {}).get("compatibilityLevel") or ""
        if not name:
            self._level = level or DEFAULT_LEVEL
        elif level or name in self._subjects:
            self._subjects.setdefault(name, StoredSubject()).level = level
            self._forgetSubject(name)

    # -- queries

    def _isSchema(self, schemaId: int, identity: str) -> bool:
        return self._identities.get(schemaId) == identity

    def idOf(self, identity: str) -> int | None:
        """
        The id that a plain schema has, the smallest of several; L{None}: it has none. One with
        metadata or rules is another schema.
        """
        return min(
            (each for each in self._ids.get(identity, ()) if each not in self._schemaDetails),
            default=None,
        )

    def attributes(self, subject: str, number: int) -> Mapping[str, Any]:
        details = self._details.get((subject, number), {})
        found = {name: details[name] for name in _ATTRIBUTES if details.get(name)}
        if found.get("schemaType") == AVRO:
            del found["schemaType"]
        return found

    def schemaAttributes(self, schemaId: int) -> Mapping[str, Any]:
        return self._schemaDetails.get(schemaId, {})

    def referencedBy(self, subject: str, number: int) -> list[int]:
        return sorted(
            {
                self._subjects[name].versions[each].schemaId
                for name, each in self._referrers.get((subject, number), ())
            }
        )

    def config(self, subject: str = "") -> Value | None:
        return self._configs.get(subject)

    def unservedSettings(self, subject: str) -> list[str]:
        """Names of the settings of a subject, its own and general ones, that mean nothing here."""
        return sorted(
            {
                name
                for key in (subject, "")
                for name in _UNSERVED_SETTINGS
                if (self._configs.get(key) or {}).get(name)
            }
        )

    @property
    def subjectCount(self) -> int:
        """The number of subjects, or of modes if there are more: a mode needs no version."""
        return max(super().subjectCount, len(self._modes))

    def mode(self, subject: str = "") -> str:
        general = self._modes.get("", READWRITE)
        return general if general == READONLY_OVERRIDE else self._modes.get(subject, general)

    def ownMode(self, subject: str) -> str:
        return self._modes.get(subject, "")

    # -- what to write

    def value(self, key: RegistryKey) -> Value | None:
        """What the topic has for a key: the value that a record of it should have."""
        match key:
            case SchemaKey(name, number):
                version = self._known(name).versions.get(number)
                if version is None:
                    return None
                plain = {"subject": name, "version": number, "id": version.schemaId}
                return {
                    **plain,
                    **self._details.get((name, number), {}),
                    "schema": self._texts[version.schemaId],
                    "deleted": version.isDeleted,
                }
            case SubjectConfigKey(name):
                return self._configs.get(name or "")
            case ModeKey(name):
                mode = self._modes.get(name or "")
                if mode is None:
                    return None
                return {"mode": mode} if name is None else {"subject": name, "mode": mode}
            case _:
                return None

    def keyForms(self, key: RegistryKey) -> Iterator[bytes]:
        """
        The forms in which the topic has a key, the one to write first: the last one that was read,
        or Confluent's.
        """
        yield from reversed(self._forms.get(key) or {encodeKey(key): None})


def _contextOf(subject: str | None) -> str:
    """The context of a subject that is not in the one that is served; else C{""}."""
    if subject is None or not subject.startswith(CONTEXT_START):
        return ""
    return subject[1:].partition(":")[0]
