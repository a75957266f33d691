"""Tests for L{pylogbroker.consumer.decoders}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.decoders import decodeText


class DecoderTests(SynchronousTestCase):
    """Feature 110."""

    def test_text(self) -> None:
        """Text is UTF-8, and nothing else."""
        self.assertEqual(decodeText("Grüße".encode()), "Grüße")
        self.assertRaises(UnicodeDecodeError, decodeText, b"\xff")
