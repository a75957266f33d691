"""
Tests for L{pylogbroker.schemas.kafka.state} and L{pylogbroker.schemas.kafka.changes}: what changes
write, and what is read of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidEntryError, RegistryRefusalError
from pylogbroker.schemas.kafka.changes import (
    PlannedChange,
    SchemasRecord,
    comparedVersions,
    levelChange,
    modeChange,
    put,
    registration,
    remove,
    subjectDeletion,
    versionDeletion,
)
from pylogbroker.schemas.kafka.state import KafkaRegistryState
from pylogbroker.schemas.kafka.topicrecords import (
    ModeKey,
    SchemaKey,
    SubjectConfigKey,
    decodeKey,
    decodeValue,
    encodeKey,
)
from pylogbroker.schemas.schematext import canonicalText, fingerprint
from tests.schemas.kafka.goldenrecords import goldenRecords

SUBJECTS = ("a", "b")
TEXTS = ('"int"', '"long"', '{"type":"array","items":"int"}')
OPERATIONS = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(SUBJECTS), st.sampled_from(TEXTS)),
    st.tuples(
        st.just("deleteVersion"), st.sampled_from(SUBJECTS), st.integers(1, 4), st.booleans()
    ),
    st.tuples(st.just("deleteSubject"), st.sampled_from(SUBJECTS), st.booleans()),
    st.tuples(
        st.just("level"), st.sampled_from(("", *SUBJECTS)), st.sampled_from(("", "NONE", "FULL"))
    ),
    st.tuples(st.just("mode"), st.sampled_from(("", *SUBJECTS)), st.sampled_from(("", "READONLY"))),
)


def apply(state: KafkaRegistryState, records: Iterable[SchemasRecord]) -> None:
    """Read records from a topic."""
    for data, value in records:
        key = decodeKey(data)
        state.apply(key, None if value is None else decodeValue(key, value), data)


def compacted(records: list[SchemasRecord], isWithTombstones: bool) -> list[SchemasRecord]:
    """What a compaction leaves: the last record of each key, in the topic's order."""
    last = {record.key: number for number, record in enumerate(records)}
    return [
        record
        for number, record in enumerate(records)
        if last[record.key] == number and (record.value is not None or isWithTombstones)
    ]


def picture(state: KafkaRegistryState) -> Any:
    """Everything that a state answers."""
    versions = [
        (name, number, state.version(name, number, True), dict(state.attributes(name, number)))
        for name in state.subjects(True)
        for number in state.versions(name, True)
    ]
    return (
        versions,
        [(name, state.versions(name)) for name in state.subjects()],
        [(name, state.level(name), state.config(name)) for name in ("", *SUBJECTS)],
        [(name, state.mode(name), state.ownMode(name)) for name in ("", *SUBJECTS)],
        [list(state.usagesOf(found.schemaId, True)) for _s, _n, found, _d in versions],
        [state.referencedBy(name, number) for name, number, _f, _d in versions],
        state.textsSize,
    )


class ChangeCase(SynchronousTestCase):
    """A state, and the topic that it was read from."""

    def setUp(self) -> None:
        self.state = KafkaRegistryState()
        self.topic: list[SchemasRecord] = []

    def read(self, *records: SchemasRecord) -> None:
        self.topic += records
        apply(self.state, records)

    def do(self, change: PlannedChange) -> Any:
        """Write a change, and read it back."""
        self.read(*change.records)
        if change.key is not None:
            self.assertEqual(self.state.value(change.key), change.value)
        return change.result

    def register(self, subject: str, text: str) -> int:
        text = canonicalText(text)
        found = self.state.find(subject, fingerprint(text))
        if found is not None:
            return found.schemaId
        comparedVersions(self.state, subject)
        schemaId: int = self.do(registration(self.state, subject, text, fingerprint(text)))
        return schemaId

    def operate(self, operation: Any) -> None:
        """One of L{OPERATIONS}; what is refused writes nothing."""
        kind, *arguments = operation
        plans: dict[str, Any] = {
            "deleteVersion": versionDeletion,
            "deleteSubject": subjectDeletion,
            "level": levelChange,
            "mode": modeChange,
        }
        try:
            if kind == "register":
                self.register(*arguments)
            else:
                self.do(plans[kind](self.state, *arguments))
        except RegistryRefusalError:
            pass

    def golden(self) -> None:
        """Read what Confluent's registry wrote."""
        self.read(
            *(
                SchemasRecord(key.encode(), None if value is None else value.encode())
                for key, value in goldenRecords()
            )
        )


class CompactionTests(ChangeCase):
    """A registry that reads a topic anew."""

    @given(st.lists(OPERATIONS, max_size=25), st.booleans())
    def test_same(self, operations: list[Any], isWithTombstones: bool) -> None:
        """
        After any changes, a registry that reads the topic anew knows the same, also after a
        compaction, with or without the records that removed something.
        """
        self.setUp()
        for operation in operations:
            self.operate(operation)
        for records in (self.topic, compacted(self.topic, isWithTombstones)):
            again = KafkaRegistryState()
            apply(again, records)
            self.assertEqual(picture(again), picture(self.state))

    @given(st.lists(OPERATIONS, max_size=25), st.integers(0, 40))
    def test_compactedMeanwhile(self, operations: list[Any], at: int) -> None:
        """A compaction of a part of the topic changes nothing, either."""
        self.setUp()
        self.golden()
        for operation in operations:
            self.operate(operation)
        again = KafkaRegistryState()
        apply(again, [*compacted(self.topic[:at], True), *self.topic[at:]])
        self.assertEqual(picture(again), picture(self.state))


class IdTests(ChangeCase):
    """Ids of schemas."""

    def test_next(self) -> None:
        """The next id is the largest one and 1; equal schemas have one id in all subjects."""
        self.golden()
        self.assertEqual(self.register("a", TEXTS[0]), 101)
        self.assertEqual(self.register("b", ' { "type" : "int" } '), 101)
        self.assertEqual(self.register("a", TEXTS[1]), 10)  # as in old-value
        self.assertEqual(self.register("a", '"null"'), 102)

    def test_another(self) -> None:
        """A record that gives an id another schema has no effect."""
        self.register("a", TEXTS[0])
        before = picture(self.state)
        for key in (SchemaKey("a", 1), SchemaKey("b", 1)):
            value = {"id": 1, "schema": TEXTS[1]}
            error = self.assertRaises(
                InvalidEntryError, self.state.apply, key, value, encodeKey(key)
            )
            self.assertIn("is that of another schema", str(error))
        self.assertEqual(picture(self.state), before)

    def test_forgotten(self) -> None:
        """The schema of a version that was removed for ever is forgotten; its id is not used."""
        self.register("a", TEXTS[0])
        self.do(versionDeletion(self.state, "a", 1, False))
        self.assertEqual(self.state.schema(1), TEXTS[0])
        self.do(versionDeletion(self.state, "a", 1, True))
        self.assertRaises(RegistryRefusalError, self.state.schema, 1)
        self.assertEqual((self.state.textsSize, self.state.subjectCount), (0, 0))
        self.assertEqual(self.register("a", TEXTS[0]), 2)

    def test_lastId(self) -> None:
        """Without a further id a schema is refused."""
        key = SchemaKey("a", 1)
        self.state.apply(key, {"id": 2**31 - 1, "schema": "x"}, encodeKey(key))
        error = self.assertRaises(RegistryRefusalError, self.register, "b", '"int"')
        self.assertIn("in use", str(error))

    def test_several(self) -> None:
        """
        Of several ids of a schema the smallest is used; that of one with metadata is not, and a
        schema that is too large to be registered here has none.
        """
        large = '"' + "x" * 300_000 + '"'
        schemas: list[tuple[int, str, dict[str, Any]]] = [
            (7, '{"type": "int"}', {"metadata": {"properties": {"a": "b"}}}),
            (9, '"int"', {}),
            (8, ' "int"', {"schemaType": "AVRO"}),
            (6, '"int" ', {"references": [{"name": "n", "subject": "s", "version": 1}]}),
            (5, large, {}),
        ]
        for number, (schemaId, text, more) in enumerate(schemas):
            key = SchemaKey("s", number + 1)
            value = {"id": schemaId, "schema": text, **more}
            self.state.apply(key, value, encodeKey(key))
        self.assertEqual(self.state.idOf(fingerprint('"int"')), 8)
        self.assertEqual(self.register("t", '"int"'), 8)
        self.assertEqual(self.state.version("t", 1).text, ' "int"')
        self.assertEqual(self.state.schema(5), large)
        self.assertEqual(self.state.attributes("s", 3), {})


class VersionTests(ChangeCase):
    """Versions."""

    def test_again(self) -> None:
        """A deleted schema becomes a new version, which is written before the old one goes."""
        self.register("a", TEXTS[0])
        self.register("a", TEXTS[1])
        self.do(versionDeletion(self.state, "a", 1, False))
        start = len(self.topic)
        self.assertEqual(self.register("a", TEXTS[0]), 1)
        keys = [decodeKey(each.key) for each in self.topic[start:]]
        self.assertEqual(keys, [SchemaKey("a", 3), SchemaKey("a", 1)])
        self.assertEqual(self.state.versions("a", True), [2, 3])

    def test_cleared(self) -> None:
        """A record of CLEAR_SUBJECT forgets the deleted versions of a subject, or of all."""
        for subject in SUBJECTS:
            self.register(subject, TEXTS[0])
            self.do(subjectDeletion(self.state, subject, False))
        self.register("b", TEXTS[1])
        self.read(SchemasRecord(b'{"keytype":"CLEAR_SUBJECT","subject":"a","magic":0}', b"{}"))
        self.assertEqual(self.state.subjects(True), ["b"])
        self.assertEqual(self.state.versions("b", True), [1, 2])
        self.read(SchemasRecord(b'{"keytype":"CLEAR_SUBJECT","magic":0}', b"{}"))
        self.assertEqual(self.state.versions("b", True), [2])

    def test_replaced(self) -> None:
        """A version that another registry gives another schema has that one; the old id goes."""
        self.register("a", TEXTS[0])
        key = SchemaKey("a", 1)
        self.state.apply(key, {"id": 2, "schema": TEXTS[1]}, encodeKey(key))
        self.assertEqual(self.state.version("a", 1).schemaId, 2)
        self.assertRaises(RegistryRefusalError, self.state.schema, 1)

    def test_referrers(self) -> None:
        """A version cannot be deleted while another one refers to it, deleted ones apart."""
        self.golden()
        self.assertRaises(RegistryRefusalError, versionDeletion, self.state, "user", 1, False)
        self.do(versionDeletion(self.state, "visits-value", 1, False))
        self.do(versionDeletion(self.state, "user", 1, False))
        self.assertEqual(self.state.referencedBy("user", 1), [])

    def test_rules(self) -> None:
        """The next version of one with rules is refused, since it would inherit them."""
        self.golden()
        key = SubjectConfigKey("secrets-value")
        self.state.apply(key, None, encodeKey(key))
        error = self.assertRaises(
            RegistryRefusalError, comparedVersions, self.state, "secrets-value"
        )
        self.assertIn("metadata and ruleSet", str(error))


class SettingTests(ChangeCase):
    """Levels and modes."""

    def test_levels(self) -> None:
        """The level of a subject is its own one or the general one."""
        self.assertEqual(self.do(levelChange(self.state, "", "FULL")), "FULL")
        self.assertEqual(self.do(levelChange(self.state, "a", "NONE")), "NONE")
        self.assertEqual((self.state.level("a"), self.state.level("b")), ("NONE", "FULL"))
        self.assertEqual(self.do(levelChange(self.state, "a", "")), "NONE")
        self.assertEqual(self.state.level("a"), "FULL")
        self.assertEqual(self.do(levelChange(self.state, "", "")), "BACKWARD")
        self.assertEqual(self.state.level("a"), "BACKWARD")
        self.assertEqual(self.state.subjectCount, 0)

    def test_modes(self) -> None:
        """
        The mode of a subject is its own one or the general one; READONLY_OVERRIDE holds for all.
        """
        self.do(modeChange(self.state, "", "READONLY"))
        self.do(modeChange(self.state, "a", "READWRITE"))
        self.assertEqual((self.state.mode("a"), self.state.mode("b")), ("READWRITE", "READONLY"))
        self.read(
            SchemasRecord(b'{"keytype":"MODE","magic":0}', b'{"mode":"READONLY_OVERRIDE"}'),
        )
        self.assertEqual(self.state.mode("a"), "READONLY_OVERRIDE")
        self.assertEqual(self.state.value(ModeKey("a")), {"subject": "a", "mode": "READWRITE"})
        self.assertRaises(RegistryRefusalError, self.register, "a", TEXTS[0])
        self.do(modeChange(self.state, "", "READWRITE"))
        self.register("a", TEXTS[0])

    def test_unknownMode(self) -> None:
        """A mode that is not known here allows no change, and can be replaced."""
        self.read(
            SchemasRecord(encodeKey(ModeKey("a")), b'{"subject":"a","mode":"FORWARD"}'),
        )
        for plan in (comparedVersions, lambda state, name: levelChange(state, name, "NONE")):
            error = self.assertRaises(RegistryRefusalError, plan, self.state, "a")
            self.assertIn("FORWARD", str(error))
        self.do(modeChange(self.state, "a", "READWRITE"))
        self.register("a", TEXTS[0])

    def test_keyForms(self) -> None:
        """
        A key that the topic has in two forms is written in the last one, and removed in both.
        """
        old, new = (
            b'{"keytype":"CONFIG","subject":null,"magic":0}',
            encodeKey(SubjectConfigKey(None)),
        )
        self.read(
            SchemasRecord(new, b'{"compatibilityLevel":"NONE"}'),
            SchemasRecord(old, b'{"compatibilityLevel":"FULL"}'),
        )
        [record] = levelChange(self.state, "", "FORWARD").records
        self.assertEqual(record.key, old)
        removal = levelChange(self.state, "", "").records
        self.assertEqual([each.key for each in removal], [old, new])
        self.read(SchemasRecord(new, b'{"compatibilityLevel":"NONE"}'))
        removal = levelChange(self.state, "", "").records
        self.assertEqual({each.key for each in removal}, {old, new})

    def test_skippedForm(self) -> None:
        """
        A record that was skipped, because it gives an id another schema, with its key in another
        form: the right value is written in that form, and a compaction keeps nothing wrong. A
        version that is only in such a record is removed in the form of its key.
        """
        self.register("a", TEXTS[0])
        before, wrongs = picture(self.state), list[SchemasRecord]()
        for number in (1, 2):
            key = b'{"magic":1,"version":%d,"subject":"a","keytype":"SCHEMA"}' % number
            value = b'{"subject":"a","version":%d,"id":1,"schema":"\\"long\\""}' % number
            wrong = SchemasRecord(key, value)
            wrongs.append(wrong)
            self.topic.append(wrong)
            self.assertRaises(InvalidEntryError, apply, self.state, [wrong])
        one, two = SchemaKey("a", 1), SchemaKey("a", 2)
        right = self.state.value(one)
        assert right is not None
        self.read(put(self.state, one, right), *remove(self.state, two))
        self.assertEqual([each.key for each in self.topic[-2:]], [each.key for each in wrongs])
        again = KafkaRegistryState()
        apply(again, compacted(self.topic, False))
        self.assertEqual(picture(again), before)
