"""
Tests for L{pylogbroker.schemas.logrecords}.
"""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidEntryError
from pylogbroker.schemas.logrecords import (
    DEFAULT_LEVEL,
    LEVELS,
    RECORD_SIZE_MAX,
    ChangeEnvelope,
    DeleteSubject,
    DeleteVersion,
    Initialize,
    Register,
    SetLevel,
    decodeRecord,
    encodeRecord,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBER = st.integers(0, 2**31)
CHANGES = st.one_of(
    st.just(Initialize()),
    st.builds(Register, TEXT, TEXT, TEXT, st.tuples(NUMBER, NUMBER)),
    st.builds(DeleteVersion, TEXT, NUMBER, st.booleans()),
    st.builds(DeleteSubject, TEXT, st.booleans()),
    st.builds(SetLevel, TEXT, st.sampled_from(("", "NONE", "FULL_TRANSITIVE"))),
)


class EntryTests(SynchronousTestCase):
    """Entries to bytes and back."""

    @given(CHANGES)
    def test_roundTrip(self, change: Initialize) -> None:
        """Every entry comes back as it was; cut anywhere, it is refused."""
        entry = ChangeEnvelope("a1", change)
        payload = encodeRecord(entry)
        self.assertEqual(decodeRecord(payload), entry)
        for size in range(len(payload)):
            self.assertRaises(InvalidEntryError, decodeRecord, payload[:size])

    def test_bytes(self) -> None:
        """What is written, for good: a topic has to be read by every later version."""
        self.assertEqual(
            encodeRecord(ChangeEnvelope("r", Register("s", '"int"', "id", (1, 2)))),
            b'{"registry":1,"request":"r","change":"register","subject":"s","text":"\\"int\\"","identity":"id","basis":[1,2]}',
        )
        self.assertEqual(
            encodeRecord(ChangeEnvelope("r", Initialize())),
            b'{"registry":1,"request":"r","change":"begin"}',
        )

    @given(
        st.binary(max_size=60)
        | st.recursive(st.none() | st.integers() | TEXT, lambda inner: st.lists(inner)).map(
            lambda value: json.dumps(value).encode()
        )
    )
    def test_anyBytes(self, payload: bytes) -> None:
        """Any other bytes are refused, and nothing else happens."""
        self.assertRaises(InvalidEntryError, decodeRecord, payload)

    def test_refused(self) -> None:
        """An entry of another format, without a request, or with a field that is none, says so."""
        good = json.loads(encodeRecord(ChangeEnvelope("r", Register("s", "t", "i", (1, 2)))))
        for changed, why in (
            ({"registry": 2}, "format"),
            ({"request": ""}, "request id"),
            ({"request": 5}, "request id"),
            ({"request": "x" * 65}, "request id"),
            ({"change": "explode"}, "'explode'"),
            ({"change": ["a"]}, "['a']"),
            ({"subject": None}, "subject is not of type str"),
            ({"basis": [1]}, "two numbers"),
            ({"basis": [1, True]}, "two numbers"),
            ({"basis": "12"}, "basis is not of type list"),
        ):
            self.assertIn(
                why,
                str(
                    self.assertRaises(
                        InvalidEntryError, decodeRecord, json.dumps({**good, **changed}).encode()
                    )
                ),
            )
        wrong = b'{"registry":1,"request":"r","change":"setLevel","subject":"","level":"SIDEWAYS"}'
        self.assertIn("SIDEWAYS", str(self.assertRaises(InvalidEntryError, decodeRecord, wrong)))
        self.assertRaises(InvalidEntryError, decodeRecord, b"[" * 100_000)

    def test_large(self) -> None:
        """An entry that brokers would drop without a word is not made."""
        self.assertRaises(
            InvalidEntryError,
            encodeRecord,
            ChangeEnvelope("r", Register("s", "x" * RECORD_SIZE_MAX, "i", (0, 0))),
        )


class LevelTests(SynchronousTestCase):
    """The rules."""

    def test_names(self) -> None:
        """They have the names that clients know."""
        names = {
            "NONE",
            "BACKWARD",
            "BACKWARD_TRANSITIVE",
            "FORWARD",
            "FORWARD_TRANSITIVE",
            "FULL",
            "FULL_TRANSITIVE",
        }
        self.assertEqual((set(LEVELS), len(LEVELS), DEFAULT_LEVEL), (names, 7, "BACKWARD"))
