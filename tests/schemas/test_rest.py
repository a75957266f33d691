"""
Tests for L{pylogbroker.schemas.rest}.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    PylogbrokerError,
    RegistryRefusalError,
    SchemaNotFoundError,
    WireError,
)
from pylogbroker.schemas.rest import (
    RegistryCall,
    compatibilityCall,
    findCall,
    registerCall,
    schemaCall,
    subjectsCall,
    versionCall,
    versionsCall,
)
from pylogbroker.schemas.state import SchemaVersion

CALLS: tuple[RegistryCall[Any], ...] = (
    schemaCall(1),
    registerCall("s", "t"),
    findCall("s", "t"),
    versionCall("s"),
    versionsCall("s"),
    subjectsCall(),
    compatibilityCall("s", "t"),
)


class CallTests(SynchronousTestCase):
    """Questions and answers."""

    def test_paths(self) -> None:
        """Subjects are quoted whole: what is in them cannot be taken for a part of the path."""
        self.assertEqual(
            (registerCall("a/b?c#ü", "t").method, registerCall("a/b?c#ü", "t").path),
            ("POST", "/subjects/a%2Fb%3Fc%23%C3%BC/versions"),
        )
        self.assertEqual(
            [versionCall("s").path, versionCall("s", 3).path],
            ["/subjects/s/versions/latest", "/subjects/s/versions/3"],
        )
        self.assertEqual(json.loads(registerCall("s", '"int"').body or b""), {"schema": '"int"'})

    def test_answers(self) -> None:
        """What a registry answers, as values."""
        whole = {"subject": "s", "version": 2, "id": 7, "schema": '"int"', "more": 1}
        for call, answer, value in (
            (schemaCall(7), whole, '"int"'),
            (registerCall("s", "t"), {"id": 7}, 7),
            (findCall("s", "t"), whole, SchemaVersion("s", 2, 7, '"int"')),
            (versionCall("s"), whole, SchemaVersion("s", 2, 7, '"int"')),
            (versionsCall("s"), [1, 2], [1, 2]),
            (subjectsCall(), ["a"], ["a"]),
            (compatibilityCall("s", "t"), {"is_compatible": True}, []),
            (compatibilityCall("s", "t"), {"is_compatible": False}, ["incompatible"]),
            (compatibilityCall("s", "t"), {"is_compatible": False, "messages": ["why"]}, ["why"]),
        ):
            self.assertEqual(call.decode(200, json.dumps(answer).encode()), value)

    def test_refusals(self) -> None:
        """
        A registry's no is an error with its code, its status and its words; that there is no such
        schema is one of its own.
        """
        call = schemaCall(7)
        error = self.assertRaises(
            RegistryRefusalError, call.decode, 409, b'{"error_code":409,"message":"why"}'
        )
        self.assertEqual((error.code, error.status, str(error)), (409, 409, "why"))
        self.assertEqual(
            self.assertRaises(
                RegistryRefusalError, call.decode, 422, b'{"error_code":42201,"message":""}'
            ).status,
            422,
        )
        self.assertRaises(
            SchemaNotFoundError, call.decode, 404, b'{"error_code":40403,"message":"no"}'
        )

    def test_endless(self) -> None:
        """A number that JSON can write and no integer can be is no answer."""
        for call, status, body in (
            (registerCall("s", "t"), 200, b'{"id":1e999}'),
            (versionsCall("s"), 200, b"[-1e999]"),
            (schemaCall(7), 404, b'{"error_code":1e999,"message":""}'),
        ):
            self.assertIn(
                "not a registry's answer",
                str(self.assertRaises(WireError, call.decode, status, body)),
            )

    @given(
        st.sampled_from(CALLS),
        st.sampled_from((200, 404, 500)),
        st.binary(max_size=30) | st.sampled_from((b"{}", b"[]", b"5", b'{"id":"x"}', b"[" * 9999)),
    )
    def test_anyAnswer(self, call: RegistryCall[Any], status: int, body: bytes) -> None:
        """Whatever comes is a value or an error of ours."""
        try:
            call.decode(status, body)
        except PylogbrokerError as error:
            self.assertIsInstance(error, WireError)
