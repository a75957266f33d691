"""
Tests for L{pylogbroker.schemas.kafka.topicrecords}.
"""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidEntryError
from pylogbroker.schemas.kafka.topicrecords import (
    ClearSubjectKey,
    DeleteSubjectKey,
    ModeKey,
    NoopKey,
    SchemaKey,
    SubjectConfigKey,
    UnservedKey,
    decodeKey,
    decodeValue,
    encodeKey,
    encodeValue,
)
from pylogbroker.schemas.logrecords import RECORD_SIZE_MAX
from tests.schemas.kafka.goldenrecords import goldenRecords

SUBJECTS = st.text(st.characters(codec="utf-8"), max_size=30)
KEYS = st.one_of(
    st.builds(NoopKey),
    st.builds(SchemaKey, SUBJECTS, st.integers(1, 2**31 - 1)),
    st.builds(SubjectConfigKey, st.none() | SUBJECTS),
    st.builds(ModeKey, st.none() | SUBJECTS),
    st.builds(DeleteSubjectKey, SUBJECTS),
    st.builds(ClearSubjectKey, st.none() | SUBJECTS),
)


class KeyTests(SynchronousTestCase):
    """Keys."""

    @given(KEYS)
    def test_roundTrip(self, key: NoopKey) -> None:
        """Any key is decoded as it was encoded."""
        self.assertEqual(decodeKey(encodeKey(key)), key)

    def test_golden(self) -> None:
        """Confluent's keys are encoded byte for byte, but for the general key of old releases."""
        for text, _value in goldenRecords():
            key = decodeKey(text.encode())
            if isinstance(key, UnservedKey):
                self.assertEqual(key.keyType, "CONTEXT")
                self.assertRaises(InvalidEntryError, encodeKey, key)
            else:
                self.assertEqual(encodeKey(key).decode(), text.replace('"subject":null,', ""))

    def test_otherForms(self) -> None:
        """Fields in another order, unknown fields, and the magic byte of old releases are read."""
        for text in (
            '{"subject":"s","version":2,"magic":1,"keytype":"SCHEMA"}',
            '{"keytype":"SCHEMA","subject":"s","version":2,"magic":0,"tenant":"t"}',
        ):
            self.assertEqual(decodeKey(text.encode()), SchemaKey("s", 2))
        self.assertEqual(decodeKey(b'{"keytype":"CONFIG","subject":null}'), SubjectConfigKey(None))

    def test_wrong(self) -> None:
        """What is no key is refused, and the reason is told."""
        for data, reason in (
            (None, "without a key"),
            (b"\xff", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (b"[]", "JSON object"),
            (b"{}", "keytype"),
            (b'{"keytype":1}', "keytype"),
            (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":2}', "magic"),
            (b'{"keytype":"SCHEMA","subject":1,"version":1,"magic":1}', "subject"),
            (b'{"keytype":"SCHEMA","subject":"s","version":true,"magic":1}', "version"),
            (b'{"keytype":"SCHEMA","subject":"s","version":0,"magic":1}', "version"),
            (b'{"keytype":"DELETE_SUBJECT"}', "subject"),
            (b'{"keytype":"MODE","subject":"\\ud800"}', "Unicode"),
        ):
            with self.subTest(data=data and data[:60]):
                self.assertIn(reason, str(self.assertRaises(InvalidEntryError, decodeKey, data)))


class ValueTests(SynchronousTestCase):
    """Values."""

    def test_golden(self) -> None:
        """Confluent's values are encoded as they were, byte for byte."""
        count = 0
        for text, value in goldenRecords():
            key = decodeKey(text.encode())
            if value is not None and isinstance(key, SchemaKey | SubjectConfigKey | ModeKey):
                self.assertEqual(encodeValue(key, decodeValue(key, value.encode())).decode(), value)
                count += 1
        self.assertGreater(count, 20)

    def test_order(self) -> None:
        """Fields get Confluent's order, wherever they stood; unknown ones stand behind them."""
        key = SchemaKey("s", 1)
        fields = {"deleted": False, "later": [1], "schema": "ü<", "id": 3, "version": 1}
        self.assertEqual(
            encodeValue(key, {**fields, "subject": "s"}).decode(),
            '{"subject":"s","version":1,"id":3,"schema":"ü<","deleted":false,"later":[1]}',
        )

    def test_ignored(self) -> None:
        """The values of keys without a meaning here are not looked at."""
        self.assertEqual(decodeValue(NoopKey(), b"no JSON"), {})
        self.assertEqual(decodeValue(UnservedKey("LATER"), b"no JSON"), {})

    def test_tooLarge(self) -> None:
        """A record that brokers would refuse is refused."""
        value = {"schema": "x" * RECORD_SIZE_MAX}
        error = self.assertRaises(InvalidEntryError, encodeValue, SchemaKey("s", 1), value)
        self.assertIn("are allowed", str(error))

    def test_wrong(self) -> None:
        """A field that matters and is none of Confluent's is refused, and the reason is told."""
        schema = {"id": 1, "schema": "x"}
        for key, value, reason in (
            (SchemaKey("s", 1), {}, "id"),
            (SchemaKey("s", 1), {**schema, "id": -1}, "id"),
            (SchemaKey("s", 1), {"id": 1}, "without a schema"),
            (SchemaKey("s", 1), {**schema, "schema": "\ud800"}, "Unicode"),
            (SchemaKey("s", 1), {**schema, "deleted": "yes"}, "deleted"),
            (SchemaKey("s", 1), {**schema, "schemaType": 1}, "schemaType"),
            (SchemaKey("s", 1), {**schema, "references": {}}, "references"),
            (SchemaKey("s", 1), {**schema, "references": [1]}, "reference"),
            (SchemaKey("s", 1), {**schema, "references": [{"subject": "t"}]}, "version"),
            (SubjectConfigKey("s"), {"compatibilityLevel": "MAYBE"}, "compatibility level"),
            (ModeKey("s"), {"mode": ""}, "mode"),
            (DeleteSubjectKey("s"), {"version": "1"}, "version"),
        ):
            with self.subTest(value=value):
                data = json.dumps(value).encode()
                error = self.assertRaises(InvalidEntryError, decodeValue, key, data)
                self.assertIn(reason, str(error))
