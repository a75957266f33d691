"""
Tests for L{pylogbroker.schemas.lru}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.schemas.lru import LruCache


class RememberedTests(SynchronousTestCase):
    """What may be forgotten."""

    def test_limit(self) -> None:
        """One more than the limit, and what was not used for longest is forgotten."""
        known: LruCache[int, str] = LruCache(2)
        known.put(1, "one")
        known.put(2, "two")
        self.assertEqual(known.get(1), "one")
        known.put(3, "three")
        self.assertEqual(
            (known.get(1), known.get(2), known.get(3), len(known)), ("one", None, "three", 2)
        )
        self.assertTrue(3 in known and 2 not in known)

    def test_again(self) -> None:
        """What is put again takes The registry is full."""
        known: LruCache[int, str] = LruCache(2)
        for text in ("a", "b", "c"):
            known.put(1, text)
        self.assertEqual((known.get(1), len(known)), ("c", 1))

    def test_size(self) -> None:
        """
        Nor may they be larger together than they may: as many go as it takes; one that is larger
        than that is not remembered, and drives none out.
        """
        known: LruCache[int, str] = LruCache(9, 10)
        for number in (1, 2, 3):
            known.put(number, "some", 3)
        known.put(4, "large", 7)
        self.assertEqual([number in known for number in (1, 2, 3, 4)], [False, False, True, True])
        known.put(5, "too large", 11)
        self.assertEqual((5 in known, len(known)), (False, 2))
        known.put(4, "less", 1)
        known.put(6, "rest", 6)
        self.assertEqual((known.get(3), known.get(4), known.get(6)), ("some", "less", "rest"))
        known.put(4, "too large now", 11)
        self.assertEqual((known.get(4), len(known)), (None, 2))
