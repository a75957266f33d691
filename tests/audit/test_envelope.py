"""
Tests for L{pylogbroker.audit.envelope}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.envelope import (
    HEAD_SIZE,
    decodeEnvelope,
    encodeEnvelope,
    envelopeTime,
    hostBytes,
    unwrapEnvelope,
)
from pylogbroker.errors import FormatError


class EnvelopeTests(SynchronousTestCase):
    """Time and host around a payload."""

    def test_layout(self) -> None:
        """The bytes are those of the page."""
        data = encodeEnvelope(0x0102030405060708, b"web1", b"payload")
        self.assertEqual(data, b"\xffpla\x01\x01\x02\x03\x04\x05\x06\x07\x08\x04web1payload")

    @given(st.integers(-(2**63), 2**63 - 1), st.text(max_size=300), st.binary())
    def test_roundTrip(self, timeMs: int, host: str, payload: bytes) -> None:
        """What goes in comes out; a host's name is cut to what fits."""
        data = encodeEnvelope(timeMs, hostBytes(host), payload)
        envelope = decodeEnvelope(data)
        self.assertEqual((envelope.timeMs, envelope.payload), (timeMs, payload))
        self.assertEqual(envelope.host, hostBytes(host).decode("utf-8", "replace"))
        self.assertEqual((envelopeTime(data), unwrapEnvelope(data)), (timeMs, payload))

    @given(st.binary())
    def test_anything(self, data: bytes) -> None:
        """
        Bytes that are no envelope are passed on as they are, and are refused by who insists on one.
        """
        if envelopeTime(data) is None:
            self.assertEqual(unwrapEnvelope(data), data)
            self.assertRaises(FormatError, decodeEnvelope, data)

    def test_cut(self) -> None:
        """An envelope that is cut before its payload is none."""
        data = encodeEnvelope(5, b"web1", b"")
        for size in range(len(data)):
            self.assertIs(envelopeTime(data[:size]), None)
        self.assertEqual(envelopeTime(data), 5)
        self.assertEqual(len(data), HEAD_SIZE + 4)

    def test_otherVersion(self) -> None:
        """Another version of the layout is not read as this one."""
        self.assertIs(envelopeTime(b"\xffpla\x02" + bytes(20)), None)

    def test_tooLarge(self) -> None:
        """A time of more than 64 bits, or a longer name, is refused."""
        self.assertRaises(FormatError, encodeEnvelope, 2**63, b"", b"")
        self.assertRaises(FormatError, encodeEnvelope, 0, b"x" * 256, b"")
