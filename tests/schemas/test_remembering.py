"""
Tests for L{pylogbroker.schemas.remembering}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.schemas.remembering import Remembered


class RememberedTests(SynchronousTestCase):
    """What may be forgotten."""

    def test_limit(self) -> None:
        """One more than the limit, and what was not used for longest is forgotten."""
        known: Remembered[int, str] = Remembered(2)
        known.put(1, "one")
        known.put(2, "two")
        self.assertEqual(known.get(1), "one")
        known.put(3, "three")
        self.assertEqual((known.get(1), known.get(2), known.get(3), len(known)), ("one", None, "three", 2))
        self.assertTrue(3 in known and 2 not in known)

    def test_again(self) -> None:
        """What is put again takes no more room."""
        known: Remembered[int, str] = Remembered(2)
        for text in ("a", "b", "c"):
            known.put(1, text)
        self.assertEqual((known.get(1), len(known)), ("c", 1))
