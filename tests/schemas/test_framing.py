"""
Tests for L{pylogbroker.schemas.framing}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidPayloadError
from pylogbroker.schemas.framing import HEADER_SIZE, ID_MAX, frame, schemaIdOf


class FramingTests(SynchronousTestCase):
    """Magic byte and id."""

    def test_bytes(self) -> None:
        """The bytes are those that registry clients write: 0, four bytes big-endian, the body."""
        self.assertEqual(frame(0x01020304, b"body"), b"\0\1\2\3\4body")

    @given(st.integers(0, ID_MAX), st.binary(max_size=50))
    def test_roundTrip(self, schemaId: int, body: bytes) -> None:
        """What is framed can be told apart again; cut anywhere in its first five bytes, it is refused."""
        payload = frame(schemaId, body)
        self.assertEqual((schemaIdOf(payload), payload[HEADER_SIZE:]), (schemaId, body))
        for size in range(HEADER_SIZE):
            self.assertRaises(InvalidPayloadError, schemaIdOf, payload[:size])

    def test_refused(self) -> None:
        """Another magic byte, an id that none can have, and too little are told apart."""
        for payload, text in (
            (b"\1\0\0\0\1", "magic byte 0"),
            (b"\0\x80\0\0\0", "no schema id"),
            (b"", "too few"),
        ):
            self.assertIn(text, str(self.assertRaises(InvalidPayloadError, schemaIdOf, payload)))
        for schemaId in (-1, ID_MAX + 1):
            self.assertRaises(ValueError, frame, schemaId, b"")
